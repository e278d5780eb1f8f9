//! Lists everything in PTX files that is malformed or not supported.

use super::{BAD_INPUT, CLEAN, FOUND, json};
use crate::launch_file::{MAX_PTX_BYTES, slurp};
use crate::module::{Module, ParseError};
use std::path::PathBuf;

/// The result for one file.
pub(super) enum Checked {
    /// The file was not read.
    Unread(String),
    /// Wrong lines, and the names of the kernels if there are none.
    Lines(Vec<ParseError>, Vec<String>),
}

/// Checks all files; returns the worst status.
pub(super) fn check(files: &[PathBuf], as_json: bool) -> Result<(u8, String), String> {
    if files.is_empty() {
        return Err("--check: name at least one PTX file".to_owned());
    }
    let mut checked = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let result = match slurp(path, MAX_PTX_BYTES) {
            Err(message) => Checked::Unread(message),
            Ok(bytes) => one(&name, &String::from_utf8_lossy(&bytes)),
        };
        checked.push((name, result));
    }
    let status = |c: &Checked| match c {
        Checked::Unread(_) => BAD_INPUT,
        Checked::Lines(lines, _) if lines.is_empty() => CLEAN,
        Checked::Lines(..) => FOUND,
    };
    let worst = checked.iter().map(|(_, c)| status(c)).max().unwrap_or(CLEAN);
    let text = if as_json { json::checked(&checked, worst) } else { text(&checked) };
    Ok((worst, text))
}

fn one(name: &str, text: &str) -> Checked {
    // The strict reading first: it is what runs use, and in most files it finds nothing.
    let kernels = match Module::parse(name, text) {
        Ok(module) => module.entries().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    };
    Checked::Lines(Module::problems(name, text), kernels)
}

fn text(checked: &[(String, Checked)]) -> String {
    let mut out = String::new();
    for (name, c) in checked {
        match c {
            Checked::Unread(message) => out += &format!("{name}: {message}\n"),
            Checked::Lines(lines, kernels) if lines.is_empty() => {
                let kernels = if kernels.is_empty() { "no kernel".to_owned() } else { kernels.join(", ") };
                out += &format!("{name}: all of it can run: {kernels}\n");
            }
            Checked::Lines(lines, _) => {
                for e in lines {
                    out += &format!("{}:{}: {}: {}\n", e.file, e.line, e.text, e.message);
                }
                let s = if lines.len() == 1 { "" } else { "s" };
                out += &format!("{name}: {} problem{s}\n", lines.len());
            }
        }
    }
    out
}
