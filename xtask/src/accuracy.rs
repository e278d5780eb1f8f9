//! What a gated MLP loses by each format: the block on the emulated device against f64 on the weights before they were quantised.
//!
//! ```text
//! cargo xtask accuracy             # runs all, writes evidence/accuracy.jsonl, prints the table of book/src/guide/mlp.md
//! cargo xtask accuracy --table     # prints the table of what the file has
//! ```
//!
//! Weights and activations are drawn: weights normal, activations normal, and once more with some channels 20 times as large. The
//! weights are rounded to bf16 first, as those of a checkpoint are. Exit status: 0, or 2 for bad input.

use clap::{Arg, ArgAction, ArgMatches, Command};
use half::bf16;
use serde::{Deserialize, Serialize};
use silumin::codegen::problem::OperandFormat;
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::mlp::{Mlp, MlpOptions, MlpWeights, Source};
use silumin::runtime::warmup::Buckets;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::verify::block::relative_error;
use silumin::{Arch, Device};
use silumin_testkit::parallel;
use silumin_testkit::sixteen::{normal, read, rounded};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Hidden size, features and tokens of the block.
pub const SIZES: [usize; 3] = [1024, 2816, 32];
/// Channels of x that are larger, one in so many, and how much.
const OUTLIERS: (usize, f32) = (128, 20.0);
/// The largest NVFP4 number: an element of 6 times a scale factor of 448.
const NVFP4_LARGEST: f64 = 6.0 * 448.0;

/// A way to compute the block.
pub struct Way {
    /// In the table's first column.
    pub name: &'static str,
    /// The chip whose kernels are run.
    pub arch: Arch,
    /// The format of the weights.
    pub weights: OperandFormat,
    /// Whether x and the middle have scales from their largest values, as those of a calibrated checkpoint.
    pub calibrated: bool,
}

/// All ways, in the order of the table.
pub const WAYS: [Way; 8] = [
    way("bf16", Arch::Sm90a, OperandFormat::Bf16, false),
    way("FP8, a scale for each tensor and each token", Arch::Sm90a, OperandFormat::E4m3, false),
    way("FP8 in blocks of 128 x 128, on Hopper", Arch::Sm90a, OperandFormat::E4m3Block128, false),
    way("MXFP8", Arch::Sm100a, OperandFormat::Mxfp8, false),
    way("NVFP4 weights, bf16 activations, on Hopper", Arch::Sm90a, OperandFormat::Nvfp4, false),
    way("MXFP4 weights, bf16 activations, on Hopper", Arch::Sm90a, OperandFormat::Mxfp4, false),
    way("NVFP4, on Blackwell, calibrated", Arch::Sm100a, OperandFormat::Nvfp4, true),
    way("NVFP4, on Blackwell, scales left at 1 and 1/16", Arch::Sm100a, OperandFormat::Nvfp4, false),
];

const fn way(name: &'static str, arch: Arch, weights: OperandFormat, calibrated: bool) -> Way {
    Way { name, arch, weights, calibrated }
}

/// A row of the file. Errors are norms of differences over the norm of the exact result.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Line {
    /// The name of the way.
    pub way: String,
    /// Hidden size, features and tokens.
    pub sizes: [usize; 3],
    /// The error that quantised weights cause, all else exact.
    pub weights: f64,
    /// The block's error with normal activations.
    pub normal: f64,
    /// The block's error where some channels of x are larger.
    pub outliers: f64,
}

fn as_bf16(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| bf16::from_f32(value).to_f32()).collect()
}

/// `a @ b^T` in f64, a `[.., k]`, b `[n, k]`.
fn multiply(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let rows: Vec<&[f64]> = a.chunks(k).collect();
    let product = |_, row: &&[f64]| -> Vec<f64> {
        b.chunks(k).map(|column| row.iter().zip(column).map(|(a, b)| a * b).sum()).collect()
    };
    parallel::map(&rows, product).concat()
}

/// Gate, up and down before quantisation, and two inputs.
pub struct Block {
    sizes: [usize; 3],
    weights: [Vec<f32>; 3],
    inputs: [Vec<f32>; 2],
}

/// The largest magnitudes of x and of the middle, and the result.
struct Exact {
    largest: [f64; 2],
    result: Vec<f64>,
}

impl Block {
    /// Draws a block of these sizes.
    #[must_use]
    pub fn new(sizes @ [hidden, features, tokens]: [usize; 3]) -> Block {
        let of = |rows: usize, k: usize, seed, size: f64| {
            as_bf16(normal(rows * k, seed, size / (k as f64).sqrt()))
        };
        let x = normal(tokens * hidden, 4, 1.0);
        let outliers = x.iter().enumerate().map(|(i, value)| {
            let larger = i % hidden % OUTLIERS.0 == OUTLIERS.0 / 2;
            if larger { value * OUTLIERS.1 } else { *value }
        });
        let outliers = outliers.collect();
        Block {
            sizes,
            weights: [
                of(features, hidden, 1, 1.0),
                of(features, hidden, 2, 1.0),
                of(hidden, features, 3, 1.0),
            ],
            inputs: [as_bf16(x), as_bf16(outliers)],
        }
    }

    /// The sizes of rows and of K of a matrix of weights.
    fn shape(&self, which: usize) -> [usize; 2] {
        let [hidden, features, _] = self.sizes;
        if which == 2 { [hidden, features] } else { [features, hidden] }
    }

    /// The block in f64.
    fn exact(&self, weights: &[Vec<f64>; 3], x: &[f32]) -> Exact {
        let [hidden, features, _] = self.sizes;
        let x: Vec<f64> = x.iter().map(|value| f64::from(*value)).collect();
        let [gate, up] = [0, 1].map(|which| multiply(&x, &weights[which], hidden));
        let silu = |gate: f64| gate / (1.0 + (-gate).exp());
        let middle: Vec<f64> = gate.into_iter().zip(up).map(|(gate, up)| silu(gate) * up).collect();
        let largest = |values: &[f64]| values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        Exact { largest: [largest(&x), largest(&middle)], result: multiply(&middle, &weights[2], features) }
    }

    /// Runs one way on the emulated device.
    ///
    /// # Errors
    ///
    /// Whatever keeps the block from being loaded or run.
    pub fn run(&self, way: &Way) -> Result<Line, Box<dyn Error>> {
        let [hidden, _, tokens] = self.sizes;
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
        let before = self.weights.each_ref().map(|values| wide(values));
        let mut quantised: Vec<Matrix> = Vec::new();
        let mut decoded: [Vec<f64>; 3] = Default::default();
        for (which, out) in decoded.iter_mut().enumerate() {
            let [rows, k] = self.shape(which);
            let matrix = quantize_to(way.weights, &self.weights[which], rows, k, TensorScale::FromMax)?;
            out.resize(rows * k, 0.0);
            for (row, out) in out.chunks_mut(k).enumerate() {
                matrix.decode_row(row, 0, out);
            }
            quantised.push(matrix);
        }
        let device = Device::emulated(way.arch);
        let mut errors = [0.0; 2];
        let mut weights_alone = 0.0;
        for (which, input) in self.inputs.iter().enumerate() {
            let exact = self.exact(&before, input);
            if which == 0 {
                weights_alone = relative_error(&self.exact(&decoded, input).result, &exact.result);
            }
            let scale = |largest: f64| (largest / NVFP4_LARGEST) as f32;
            let [x_scale, middle_scale] = exact.largest.map(scale);
            let gate_up = GateUp::new(Weight::of(&quantised[0])?, Weight::of(&quantised[1])?)?;
            let gate_up = gate_up.with_input_scale(way.calibrated.then_some(x_scale));
            let weights = MlpWeights::new(gate_up, Weight::of(&quantised[2])?)?;
            let weights = if way.calibrated { weights.with_middle_scale(middle_scale)? } else { weights };
            let options = MlpOptions::new(Buckets::new([tokens as u32])?).without_residual();
            let mlp = Mlp::load(&device, &weights, &options)?;
            let x = device.upload(&rounded(Source::Bf16, input).1)?;
            let out = device.alloc(tokens * mlp.row_bytes())?;
            mlp.forward(&device.stream(), tokens as u32, &x, None, &out)?;
            let got = read(Source::Bf16, &out.download()?);
            errors[which] = relative_error(&got[..tokens * hidden], &exact.result);
        }
        let round = |error: f64| (error * 1e6).round() / 1e6;
        Ok(Line {
            way: way.name.to_owned(),
            sizes: self.sizes,
            weights: round(weights_alone),
            normal: round(errors[0]),
            outliers: round(errors[1]),
        })
    }
}

/// The rows of `evidence/accuracy.jsonl`.
///
/// # Errors
///
/// A file that is missing or has another form.
pub fn read_lines() -> Result<Vec<Line>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path())?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn path() -> PathBuf {
    silumin_testkit::root().join("evidence/accuracy.jsonl")
}

/// The table of rows, in Markdown.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let percent = |error: f64| format!("{:.2} %", 100.0 * error);
    let mut out =
        "| block | weights alone | whole block | some channels of x 20 times as large |\n|---|---|---|---|\n"
            .to_owned();
    for line in lines {
        let [weights, normal, outliers] = [line.weights, line.normal, line.outliers].map(percent);
        out += &format!("| {} | {weights} | {normal} | {outliers} |\n", line.way);
    }
    out
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("accuracy")
        .about("Runs a gated MLP in each format against f64 on the weights before quantisation")
        .arg(
            Arg::new("table")
                .long("table")
                .action(ArgAction::SetTrue)
                .help("run nothing: print the table of evidence/accuracy.jsonl"),
        )
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_cli::status(run(matches).map(|()| true))
}

fn run(matches: &ArgMatches) -> Result<(), Box<dyn Error>> {
    if !matches.get_flag("table") {
        let block = Block::new(SIZES);
        let lines = WAYS.iter().map(|way| block.run(way)).collect::<Result<Vec<_>, _>>()?;
        let mut text = String::new();
        for line in &lines {
            text += &format!("{}\n", serde_json::to_string(line)?);
        }
        std::fs::write(path(), text).map_err(|error| format!("{}: {error}", path().display()))?;
    }
    print!("{}", table(&read_lines()?));
    Ok(())
}
