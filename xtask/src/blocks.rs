//! Predicted times of a gated MLP, by chip and format.
//!
//! ```text
//! cargo xtask blocks             # predicts all, writes evidence/blocks.jsonl, prints the table of book/src/guide/mlp.md
//! cargo xtask blocks --table     # prints the table of what the file has
//! ```
//!
//! Launches that quantise activations are in these times. Nothing is measured. Exit status: 0, or 2 for bad input.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use silumin::codegen::problem::OperandFormat;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::mlp::{Mlp, MlpOptions, MlpWeights};
use silumin::runtime::predict::{Chip, TimeOptions, default_chip};
use silumin::runtime::warmup::Buckets;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Arch, Device};
use silumin_testkit::parallel;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Hidden size and features: those of Llama 3.1 8B.
pub const WIDTHS: [usize; 2] = [4096, 14336];
/// Numbers of tokens.
pub const TOKENS: [u32; 4] = [1, 16, 256, 1024];
/// Chips and formats of weights, in the order of the table.
pub const BLOCKS: [(Arch, OperandFormat, &str); 6] = [
    (Arch::Sm100a, OperandFormat::Nvfp4, "NVFP4"),
    (Arch::Sm100a, OperandFormat::Mxfp8, "MXFP8"),
    (Arch::Sm100a, OperandFormat::Bf16, "bf16"),
    (Arch::Sm90a, OperandFormat::Nvfp4, "NVFP4, activations in bf16"),
    (Arch::Sm90a, OperandFormat::E4m3, "FP8"),
    (Arch::Sm90a, OperandFormat::Bf16, "bf16"),
];

/// A row of the file: microseconds of a call for each number of tokens.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Line {
    /// The chip's name.
    pub chip: String,
    /// MHz.
    pub clock: f64,
    /// The format of weights and activations.
    pub format: String,
    /// Hidden size and features.
    pub widths: [usize; 2],
    /// For each of [`TOKENS`].
    pub us: [f64; 4],
}

/// Predicts a block of `widths` for each of [`TOKENS`].
///
/// # Errors
///
/// Whatever keeps the block from being loaded, or a kernel from being predicted.
pub fn line(
    arch: Arch,
    format: OperandFormat,
    name: &str,
    widths @ [hidden, features]: [usize; 2],
) -> Result<Line, Box<dyn Error>> {
    let zeros =
        |rows: usize, k: usize| quantize_to(format, &vec![0.0f32; rows * k], rows, k, TensorScale::One);
    let [gate, up, down] = [zeros(features, hidden)?, zeros(features, hidden)?, zeros(hidden, features)?];
    let weights = MlpWeights::new(GateUp::new(Weight::of(&gate)?, Weight::of(&up)?)?, Weight::of(&down)?)?;
    let chip = Chip::named(default_chip(arch.target())?)?;
    let timing = TimeOptions { programmatic: true, ..TimeOptions::new(chip.clone()) };
    let mlp = Mlp::load(&Device::emulated(arch), &weights, &MlpOptions::new(Buckets::new(TOKENS)?))?;
    let mut us = [0.0; 4];
    for (us, tokens) in us.iter_mut().zip(TOKENS) {
        *us = mlp.predict(tokens, &timing)?.time() / 1e3;
    }
    let us = us.map(|us| (us * 10.0).round() / 10.0);
    Ok(Line { clock: chip.clock.value, chip: chip.name, format: name.to_owned(), widths, us })
}

/// The rows of `evidence/blocks.jsonl`.
///
/// # Errors
///
/// A file that is missing or has another form.
pub fn read_lines() -> Result<Vec<Line>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path())?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn path() -> PathBuf {
    silumin_testkit::root().join("evidence/blocks.jsonl")
}

/// The table of rows, in Markdown.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let tokens = TOKENS.map(|tokens| tokens.to_string()).join(" | ");
    let mut out =
        format!("| predicted for | format | {tokens} |\n|---|---|{}\n", "---|".repeat(TOKENS.len()));
    for Line { chip, clock, format, us, .. } in lines {
        let us = us.map(|us| format!("{us:.1} us")).join(" | ");
        out += &format!("| {chip}, {clock:.0} MHz | {format} | {us} |\n");
    }
    out
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("blocks").about("Predicts the times of a gated MLP by chip and format").arg(
        Arg::new("table")
            .long("table")
            .action(ArgAction::SetTrue)
            .help("predict nothing: print the table of evidence/blocks.jsonl"),
    )
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_cli::status(run(matches).map(|()| true))
}

fn run(matches: &ArgMatches) -> Result<(), Box<dyn Error>> {
    if !matches.get_flag("table") {
        let mut text = String::new();
        let lines = parallel::map(&BLOCKS, |_, (arch, format, name)| {
            line(*arch, *format, name, WIDTHS).map_err(|error| format!("{arch}, {name}: {error}"))
        });
        for line in lines {
            text += &format!("{}\n", serde_json::to_string(&line?)?);
        }
        std::fs::write(path(), text).map_err(|error| format!("{}: {error}", path().display()))?;
    }
    print!("{}", table(&read_lines()?));
    Ok(())
}
