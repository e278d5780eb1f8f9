//! The book's page of errors: what the program, the macro and the library say when something is wrong, from real runs.
//!
//! `cargo xtask bless errors` writes the page. A variant that is added to one of [`ENUMS`] needs an example, or a reason in
//! [`WITHOUT_EXAMPLE`].

mod blocks;
mod checkpoints;
mod commands;
mod coverage;
mod devices;
mod emulator;
mod findings;
mod knobs;
mod launches;
mod load;
mod prepare;
mod results;
mod tensors;
mod tuning;
mod weights;

use coverage::{Kind, kind};
use silumin_testkit::root;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Characters of a line of the page.
const LINE: usize = 150;

/// An error that something caused.
struct Case {
    /// What was wrong, in words.
    what: Cow<'static, str>,
    /// The variants of the error.
    kinds: Vec<Kind>,
    /// The message.
    said: String,
}

/// What was wrong, and the error that a run returned.
fn case<E: Error + 'static>(what: &'static str, error: E) -> Case {
    Case { what: what.into(), kinds: vec![kind(&error)], said: error.to_string() }
}

impl Case {
    /// The same with the variant of an error within the error.
    fn and(mut self, inner: Kind) -> Self {
        self.kinds.push(inner);
        self
    }

    /// The same with the first lines of the message alone.
    fn shortened(mut self, lines: usize) -> Self {
        let kept: Vec<&str> = self.said.lines().take(lines).collect();
        self.said = format!("{}\n...", kept.join("\n"));
        self
    }

    /// The same with paths that start in a folder of the page.
    fn without(mut self, folder: &Path) -> Self {
        self.said = self.said.replace(&format!("{}/", folder.display()), "");
        self
    }

    /// Cases for another process.
    fn all_to_json(cases: &[Self]) -> Vec<u8> {
        let cases: Vec<_> = cases.iter().map(|case| (&case.what, &case.kinds, &case.said)).collect();
        serde_json::to_vec(&cases).unwrap()
    }

    /// Cases of another process.
    fn all_from_json(bytes: &[u8]) -> Vec<Self> {
        let cases: Vec<(String, Vec<Kind>, String)> = serde_json::from_slice(bytes).unwrap();
        cases.into_iter().map(|(what, kinds, said)| Case { what: what.into(), kinds, said }).collect()
    }
}

/// The page, and the variants that it shows.
#[derive(Default)]
struct Page {
    text: String,
    seen: BTreeSet<Kind>,
}

impl Page {
    fn section(&mut self, title: &str, sentence: &str) {
        write!(self.text, "\n## {title}\n\n{}\n", wrapped(sentence, 130)).unwrap();
    }

    fn subsection(&mut self, title: &str) {
        write!(self.text, "\n### {title}\n").unwrap();
    }

    /// A block of texts, each of which ends with a line.
    fn block(&mut self, texts: &[String]) {
        write!(self.text, "\n```text\n{}\n```\n", in_short_lines(&renumbered(&texts.join("\n")))).unwrap();
    }

    fn saw(&mut self, cases: &[Case]) {
        self.seen.extend(cases.iter().flat_map(|case| case.kinds.clone()));
    }

    /// A subsection of cases.
    fn cases(&mut self, title: &str, cases: Vec<Case>) {
        self.subsection(title);
        let indented = |case: &Case| format!("{}:\n  {}\n", case.what, case.said.replace('\n', "\n  "));
        self.block(&cases.iter().map(indented).collect::<Vec<_>>());
        self.saw(&cases);
    }
}

/// The words in lines of so many characters; all lines but the first are indented by `hanging`.
fn lines_of(text: &str, most: usize, first: &str, hanging: &str) -> String {
    let mut lines = vec![first.to_owned()];
    let mut is_empty = true;
    for word in text.split(' ') {
        let last = lines.len() - 1;
        match lines[last].len() + word.len() < most {
            true if is_empty => lines[last] += word,
            true => lines[last] += &format!(" {word}"),
            false => lines.push(format!("{hanging}{word}")),
        }
        is_empty = false;
    }
    lines.join("\n")
}

fn wrapped(text: &str, most: usize) -> String {
    lines_of(text, most, "", "")
}

/// The text with lines of at most [`LINE`] characters; the rest of a longer one stands below it, four deeper.
fn in_short_lines(text: &str) -> String {
    let short = |line: &str| {
        let (indent, words) = line.split_at(line.len() - line.trim_start().len());
        match line.len() <= LINE {
            true => line.to_owned(),
            false => lines_of(words, LINE, indent, &format!("{indent}    ")),
        }
    };
    text.lines().map(short).collect::<Vec<_>>().join("\n")
}

/// The text with emulated devices numbered as they appear in it: other tests of the process have some, too.
fn renumbered(text: &str) -> String {
    const BEFORE: &str = ", number ";
    let mut parts = text.split(BEFORE);
    let (mut out, mut seen) = (parts.next().unwrap_or_default().to_owned(), Vec::new());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        let place = seen.iter().position(|other| *other == number).unwrap_or(seen.len());
        if place == seen.len() {
            seen.push(number);
        }
        out += &format!("{BEFORE}{place}{rest}");
    }
    out
}

fn page() -> Page {
    let mut page = Page { text: "# Errors\n\n".to_owned(), seen: BTreeSet::new() };
    page.text += &wrapped(
        "This page shows what silumin says when something is wrong: of knobs and declarations, of tensors and weights, at model \
         load, at a launch, while it tunes, and on the emulator. An error names the knob, tensor or file, the limit with its \
         sum, and a way out. All that is wrong with a configuration is said at once. A test writes this page from real runs, \
         and breaks long lines: `cargo xtask bless errors`.",
        130,
    );
    page.text += "\n";
    page.section(
        "Problems and knobs",
        "The command checks the problem and all knobs before it makes a kernel.",
    );
    knobs::problems(&mut page);
    page.section("Declarations", "The compiler points at the knob, the format or the operand.");
    knobs::declarations(&mut page);
    page.section(
        "Formats and tensors",
        "Matrices are checked when they are made, so that a kernel gets only what it can read.",
    );
    tensors::show(&mut page);
    prepare::show(&mut page);
    page.section(
        "Weights and checkpoints",
        "Weights are checked before they are uploaded, and a checkpoint when a layer is read ([Weights from checkpoints](weights.md)).",
    );
    weights::show(&mut page);
    checkpoints::show(&mut page);
    page.section(
        "Model load, cache and bundles",
        "Kernels are generated and loaded at model load, so their errors appear there.",
    );
    load::show(&mut page);
    commands::cache(&mut page);
    page.section(
        "The MLP block and experts",
        "A block checks its weights at load and its buffers at each call.",
    );
    blocks::show(&mut page);
    page.section(
        "Launches",
        "A launch checks its arguments before anything runs, on a GPU as on the emulated device. The kernel here is for 4 tokens, \
         64 features and K = 128, in NVFP4, if nothing else is said.",
    );
    launches::show(&mut page);
    page.section(
        "Checking results",
        "Functions that draw operands and compare results check what they are given.",
    );
    results::show(&mut page);
    page.section(
        "Devices and several GPUs",
        "These are errors of devices, of their memory and of groups of ranks.",
    );
    devices::show(&mut page);
    page.section(
        "Tuning",
        "The tuner says why it found no kernel, and what is wrong with a space or a file of results.",
    );
    tuning::show(&mut page);
    commands::tune(&mut page);
    page.section(
        "The emulator",
        "The emulator checks a launch as a device would, and then reports what the kernel does wrong.",
    );
    emulator::show(&mut page);
    commands::emulate(&mut page);
    findings::show(&mut page);
    page
}

#[test]
fn the_book_shows_what_errors_say() {
    let page = page();
    let path = root().join("book/src/errors.md");
    if std::env::var_os("SILUMIN_BLESS").is_some() {
        fs::write(&path, &page.text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    coverage::check(&page.seen);
    assert!(found == page.text, "book/src/errors.md is not what errors say: run cargo xtask bless errors");
}

#[test]
fn long_lines_keep_their_indent() {
    let line = format!("  {}end", "word ".repeat(40));
    let lines: Vec<String> = in_short_lines(&line).lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("  word") && lines[1].starts_with("      word"), "{lines:?}");
    assert!(lines.iter().all(|line| line.len() <= LINE), "{lines:?}");
}
