//! Predicts what each of the ideas is worth that people had for the NVFP4 dual GEMM on a B200.
//!
//! ```text
//! cargo xtask ideas                # predicts all, writes evidence/ideas.jsonl, prints the tables of book/src/ideas.md
//! cargo xtask ideas --tables       # prints the tables of what the file has
//! ```
//!
//! An idea is a set of steps. A step compares two sets of knobs on the same problem; knobs that neither names are left to `auto`.
//! Nothing is measured. Exit status: 0, or 2 for bad input.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

use crate::auto::commit;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use silumin::Shape;
use silumin::codegen::error::explain;
use silumin::codegen::kernel::Kernel;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::Chip;
use silumin_cli::measure::predicted;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Knobs with their values.
type Knobs = &'static [(&'static str, &'static str)];

/// What an idea changes: what the step is called, the knobs before and after it.
pub struct Step {
    /// In the table's first column.
    pub name: &'static str,
    /// Knobs without the idea.
    pub before: Knobs,
    /// Knobs with it.
    pub after: Knobs,
}

const fn step(name: &'static str, before: Knobs, after: Knobs) -> Step {
    Step { name, before, after }
}

/// An idea, and its steps.
pub struct Idea {
    /// The heading of its section.
    pub name: &'static str,
    /// Its steps.
    pub steps: &'static [Step],
}

const PER_STAGE: Knobs = &[("sf_preload", "per_stage")];
const FORWARD: Knobs = &[("k_order", "forward")];

/// The ideas, in the order of the page.
pub const IDEAS: [Idea; 7] = [
    Idea {
        name: "One loop for both products",
        steps: &[
            step("two launches and a gate", &[("strategy", "two_pass")], &[("strategy", "interleaved")]),
            step("one kernel, two loops", &[("strategy", "sequential")], &[("strategy", "interleaved")]),
        ],
    },
    Idea {
        name: "Pairs of CTAs",
        steps: &[step("`cta_group = 2`", &[("cta_group", "1")], &[("cta_group", "2")])],
    },
    Idea {
        name: "CTAs that stay",
        steps: &[
            step("`persistent`", &[("schedule", "one_tile")], &[("schedule", "persistent")]),
            step("`dynamic`", &[("schedule", "one_tile")], &[("schedule", "dynamic")]),
            step("`stream_k`", &[("schedule", "one_tile")], &[("schedule", "stream_k")]),
        ],
    },
    Idea {
        name: "The order of K",
        steps: &[
            step("`reverse`", FORWARD, &[("k_order", "reverse")]),
            step("`serpentine`", FORWARD, &[("k_order", "serpentine")]),
            step("`odd_even`", FORWARD, &[("k_order", "odd_even")]),
            step("`split_tail(2)`", FORWARD, &[("k_order", "split_tail(2)")]),
            step(
                "two K tiles at a time",
                &[("k_order", "forward"), ("tile", "[256, 64, 256]")],
                &[("k_order", "forward"), ("tile", "[256, 64, 512]")],
            ),
        ],
    },
    Idea {
        name: "Scale factors ahead",
        steps: &[
            step("`ahead(1)`", PER_STAGE, &[("sf_preload", "ahead(1)")]),
            step("`ahead(2)`", PER_STAGE, &[("sf_preload", "ahead(2)")]),
            step("`all`", PER_STAGE, &[("sf_preload", "all")]),
        ],
    },
    Idea {
        name: "Fewer columns of tensor memory",
        steps: &[
            step(
                "256 of 512",
                &[("tmem_columns", "512"), ("tile", "[256, 64, 256]")],
                &[("tmem_columns", "256"), ("tile", "[256, 64, 256]")],
            ),
            step(
                "one buffer of accumulators",
                &[("schedule", "persistent")],
                &[("schedule", "persistent"), ("accumulator_buffers", "1")],
            ),
        ],
    },
    Idea {
        name: "Two CTAs on an SM",
        steps: &[
            step(
                "a tile each",
                &[("schedule", "one_tile"), ("tile", "[128, 64, 256]")],
                &[("schedule", "one_tile"), ("tile", "[128, 64, 256]"), ("ctas_per_sm", "2")],
            ),
            step(
                "`persistent`",
                &[("schedule", "persistent"), ("tile", "[128, 64, 256]")],
                &[("schedule", "persistent"), ("tile", "[128, 64, 256]"), ("ctas_per_sm", "2")],
            ),
            step(
                "`persistent`, in pairs",
                &[("schedule", "persistent"), ("tile", "[256, 64, 256]")],
                &[("schedule", "persistent"), ("tile", "[256, 64, 256]"), ("ctas_per_sm", "2")],
            ),
        ],
    },
];

/// M, N and K: the benchmark's four problems, and a prefill.
pub const SHAPES: [[u32; 3]; 5] =
    [[256, 4096, 7168], [512, 4096, 7168], [256, 3072, 4096], [512, 3072, 7168], [2048, 7168, 4096]];

/// A step on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The idea.
    pub idea: String,
    /// Its step.
    pub step: String,
    /// M, N and K.
    pub shape: [u32; 3],
    /// Knobs without the idea.
    pub before: BTreeMap<String, String>,
    /// Knobs with it.
    pub after: BTreeMap<String, String>,
    /// Predicted microseconds without the idea.
    pub before_us: f64,
    /// Predicted microseconds with it; none where the knobs do not go with the problem.
    pub after_us: Option<f64>,
    /// Why there is no time with the idea; empty where there is one.
    pub refused: String,
    /// The chip.
    pub chip: String,
    /// MHz.
    pub clock: f64,
    /// The commit that made the row.
    pub commit: String,
}

/// The rows in `evidence/ideas.jsonl`.
pub fn read() -> Result<Vec<Line>, String> {
    let path = path();
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(|e| format!("{}: {e}", path.display())))
        .collect()
}

fn path() -> PathBuf {
    silumin_testkit::root().join("evidence").join("ideas.jsonl")
}

/// The table of an idea: a row for each step, a column for each problem, how much longer the launch takes with the idea.
#[must_use]
pub fn table(idea: &Idea, lines: &[Line]) -> String {
    let sizes = SHAPES.map(|shape| shape.map(|size| size.to_string()).join(" x "));
    let mut out = format!("| step | {} |\n|---|{}\n", sizes.join(" | "), "---|".repeat(SHAPES.len()));
    for step in idea.steps {
        let cell = |shape: &[u32; 3]| {
            let is = |line: &&Line| line.idea == idea.name && line.step == step.name && line.shape == *shape;
            match lines.iter().find(is) {
                Some(Line { before_us, after_us: Some(after), .. }) => {
                    format!("{before_us:.1} to {after:.1} us, {:+.0} %", 100.0 * (after / before_us - 1.0))
                }
                Some(_) => "refused".to_owned(),
                None => "not predicted".to_owned(),
            }
        };
        out += &format!("| {} | {} |\n", step.name, SHAPES.each_ref().map(cell).join(" | "));
    }
    out
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("ideas")
        .about("Predicts what seven ideas for the NVFP4 dual GEMM are worth on a B200")
        .arg(
            Arg::new("tables")
                .long("tables")
                .action(ArgAction::SetTrue)
                .help("predict nothing: print the tables of evidence/ideas.jsonl"),
        )
        .arg(
            Arg::new("commit")
                .long("commit")
                .value_name("NAME")
                .help("the commit recorded in rows, if git does not know it"),
        )
}

/// The kernel, or why the knobs do not go with the problem.
pub fn kernel([m, n, k]: [u32; 3], knobs: Knobs) -> Result<Result<Kernel, String>, String> {
    let shape = Shape::new(m, n, k);
    let mut file = SpecFile::new(shape);
    for (knob, value) in knobs {
        file.config.set(knob, value).map_err(|e| e.to_string())?;
    }
    let (spec, arch) = file.read().map_err(|e| e.to_string())?;
    if let Err(errors) = spec.plan(shape, arch) {
        return Ok(Err(explain(&errors)));
    }
    spec.kernel(shape, arch).map(Ok).map_err(|e| e.to_string())
}

/// The predicted time in microseconds, or why the knobs do not go with the problem.
pub fn time(shape: [u32; 3], knobs: Knobs, chip: &str) -> Result<Result<f64, String>, String> {
    match kernel(shape, knobs)? {
        Ok(kernel) => predicted(&kernel, chip).map(|prediction| Ok(prediction.time() / 1e3)),
        Err(reason) => Ok(Err(reason)),
    }
}

fn run(matches: &ArgMatches) -> Result<(), String> {
    if !matches.get_flag("tables") {
        let chip = "b200";
        let clock = Chip::named(chip).map_err(|e| e.to_string())?.clock.value;
        let mut text = String::new();
        for idea in &IDEAS {
            for (step, shape) in idea.steps.iter().flat_map(|step| SHAPES.map(|shape| (step, shape))) {
                let before_us = time(shape, step.before, chip)?.map_err(|e| format!("{}: {e}", step.name))?;
                let after = time(shape, step.after, chip)?;
                let named =
                    |knobs: Knobs| knobs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
                let line = Line {
                    idea: idea.name.to_owned(),
                    step: step.name.to_owned(),
                    shape,
                    before: named(step.before),
                    after: named(step.after),
                    before_us,
                    after_us: after.as_ref().ok().copied(),
                    refused: after.err().unwrap_or_default(),
                    chip: chip.to_owned(),
                    clock,
                    commit: commit(matches),
                };
                eprintln!("{} {} {shape:?}: {before_us:.2} us, {:?}", line.idea, line.step, line.after_us);
                text += &serde_json::to_string(&line).map_err(|e| e.to_string())?;
                text.push('\n');
            }
        }
        std::fs::write(path(), text).map_err(|e| format!("{}: {e}", path().display()))?;
    }
    let lines = read()?;
    for idea in &IDEAS {
        println!("{}\n\n{}", idea.name, table(idea, &lines));
    }
    Ok(())
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_cli::status(run(matches).map(|()| true).map_err(Into::into))
}
