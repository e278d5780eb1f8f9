//! What the book says of knobs is what the table says.
//!
//! `SILUMIN_BLESS=1 cargo test -p silumin-codegen --test knob_pages` writes the page.

use silumin_codegen::arch::TensorCore;
use silumin_codegen::config::{KNOBS, Knob, Value};
use silumin_codegen::dsl::DSL_KNOBS;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// `text` is the file's, or with `SILUMIN_BLESS=1` becomes it.
fn holds(path: &Path, text: &str) {
    if std::env::var_os("SILUMIN_BLESS").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{} is not what the table of knobs says: see {}", path.display(), file!());
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A table's cell.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

/// Lines of at most 140 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = lines.last().is_some_and(|line| line.len() + word.len() >= 140);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            *line += if line.is_empty() { "" } else { " " };
            *line += word;
        }
    }
    lines.join("\n")
}

/// Kernels that honour the value.
fn kernels(value: &Value) -> &'static str {
    match value.samples.on {
        [TensorCore::Tcgen05] => "`tcgen05`",
        [TensorCore::Wgmma] => "`wgmma`",
        [TensorCore::Tcgen05, TensorCore::Wgmma] => "`tcgen05`, `wgmma`",
        _ => "all",
    }
}

fn section(page: &mut String, knob: &Knob) {
    let Knob { name, about, has_auto, values, words } = knob;
    let default =
        if *has_auto { String::new() } else { format!(" The default is `{}`.", values[0].spelling) };
    write!(page, "\n## `{name}`\n\n{}\n", wrapped(&format!("{about}{default}"))).unwrap();
    page.push_str("\n| value | meaning | kernels |\n|---|---|---|\n");
    let mut row = |value: &Value, of: &str| {
        let kernels = if of.is_empty() { kernels(value) } else { of };
        writeln!(page, "| `{}` | {} | {kernels} |", cell(value.spelling), cell(value.about)).unwrap();
    };
    values.iter().for_each(|value| row(value, ""));
    for (word, values) in *words {
        values.iter().for_each(|value| row(value, &format!("as `{word}`")));
    }
}

#[test]
fn the_book_has_every_knob_and_every_value() {
    let mut page = "# Knobs\n\n".to_owned();
    page.push_str(
        "A knob is written the same in the brackets of `dual_gemm!`, in TOML and on the command line, where it is a flag with dashes.\n\
         What is left out, or `auto`, is chosen by rules: [auto.md](auto.md) has them. `tcgen05` kernels are those for `sm_100a`,\n\
         `sm_100f`, `sm_103a` and `sm_110a`, `wgmma` kernels those for `sm_90a`. Those for `sm_120a` and `sm_121a` (`mma.sync`) honour what all do.\n\
         A value that a chip does not have is refused with a reason.\n\n\
         `cargo run --example emit -- --help` prints this page, which a test writes from the table in `codegen/src/config/table.rs`.\n",
    );
    KNOBS.iter().for_each(|knob| section(&mut page, knob));
    page.push_str(
        "\n## Entries of the brackets that are no knobs\n\n| entry | takes | meaning |\n|---|---|---|\n",
    );
    for entry in &DSL_KNOBS {
        writeln!(page, "| `{}` | `{}` | {} |", entry.name, cell(&entry.takes()), cell(entry.about)).unwrap();
    }
    holds(&root().join("book/src/knobs.md"), &page);
}
