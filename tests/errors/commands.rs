//! What the program's verbs say of flags and files, besides those of `silumin emit`.

use super::knobs::words;
use super::{Page, emulator};
use clap::FromArgMatches;
use silumin_cli::{cache, emulate, tune};
use silumin_emulator::command;
use std::error::Error;
use std::fs;
use std::path::Path;

type Said = Result<(), Box<dyn Error>>;

pub fn emulate(page: &mut Page) {
    let lines = [
        "missing.toml",
        "launch.toml --seeds 0",
        "launch.toml --threads 2000",
        "launch.toml --resident 0",
        "launch.toml --schedule late --seed 3",
        "launch.toml --memory-limit 1000",
        "launch.toml --time-limit 0",
        "launch.toml --time b900",
    ];
    page.refusals("Flags of silumin emulate", &lines, |folder, words| {
        fs::write(folder.join("k.ptx"), emulator::ptx("", ""))?;
        fs::write(folder.join("launch.toml"), format!("{}[buffers.c]\nbytes = 4096\n", emulator::HEAD))?;
        let request = emulate::request(&emulate::command().try_get_matches_from(words)?)?;
        let mut said = Vec::new();
        match command::execute(&request, &mut Vec::new(), &mut said) {
            command::BAD_INPUT => {
                Err(String::from_utf8(said)?.trim_start_matches("error: ").trim_end().into())
            }
            _ => Ok(()),
        }
    });
}

pub fn cache(page: &mut Page) {
    let lines = [
        "--folder empty list",
        "--folder cache prune 12X",
        "--folder cache export model.kernels",
        "--folder cache list --bundle missing.kernels",
    ];
    page.refusals("Flags of silumin cache", &lines, |folder, words| {
        fs::create_dir_all(folder.join("cache"))?;
        let options = cache::Options::from_arg_matches(&cache::command().try_get_matches_from(words)?)?;
        cache::execute(options, &mut Vec::new()).map(drop)
    });
}

pub fn tune(page: &mut Page) {
    let lines = [
        "--out tuning.jsonl --device gpu0",
        "--out tuning.jsonl --device emulated:sm_80",
        "--out tuning.jsonl --shapes 256x4096",
        "--out tuning.jsonl --formats bf16",
        "--out tuning.jsonl --knobs stages",
        "--out tuning.jsonl --merge missing.jsonl",
    ];
    page.refusals("Flags of silumin tune", &lines, |_, words| {
        let flags = tune::Flags::from_arg_matches(&tune::command().try_get_matches_from(words)?)?;
        let own = || Err(std::io::Error::other("no other process is started"));
        tune::execute(&flags, &own, &mut Vec::new())
    });
}

impl Page {
    /// Lines of a verb with what it says to them; names of files are those of a new folder.
    fn refusals(&mut self, title: &str, lines: &[&str], run: impl Fn(&Path, Vec<String>) -> Said) {
        let folder = tempfile::tempdir().unwrap();
        let verb = title.trim_start_matches("Flags of ");
        let placed = |word: String| match word.contains('.') || matches!(word.as_str(), "empty" | "cache") {
            true => folder.path().join(word).display().to_string(),
            false => word,
        };
        let text = |line: &&str| {
            let words = [verb.to_owned()].into_iter().chain(words(line).into_iter().map(placed)).collect();
            let error = run(folder.path(), words).expect_err(line).to_string();
            let error = error.replace(&format!("{}/", folder.path().display()), "");
            let first = error.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            format!("$ {verb} {line}\nerror: {first}\n")
        };
        self.subsection(title);
        self.block(&lines.iter().map(text).collect::<Vec<_>>());
    }
}
