//! Writes kernels of ours for a GPU, with operands and what the emulator makes of them, to be compared bit for bit.
//!
//! ```text
//! cargo xtask agreement --out FOLDER
//! python3 scripts/hardware/run.py FOLDER
//! ```
//!
//! Legal configurations of every knob on ragged shapes, some for each family of kernels: formats of the operands, groups and
//! batches, schedules, clusters, kernels of two launches, other formats of C. FOLDER gets a folder for each launch, `ours-FAMILY-N`
//! or, of several launches, `ours-FAMILY-N.LAUNCH`, in the form that `scripts/hardware/run.py` reads; `ours.jsonl` says what each
//! one is and leaves, a line each, as `tests/hardware/ours.jsonl` has it. Partial sums in a workspace are not compared, all else
//! that a launch writes is.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use silumin::codegen::plan::Operand;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::{Arch, Groups, Kernel};
use silumin_testkit::agreement::Point;
use silumin_testkit::draws::Draws;
use silumin_testkit::parallel;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes kernels with operands and the emulator's results, to be compared with a GPU's.
#[derive(Parser)]
struct Flags {
    /// The chip.
    #[arg(long, default_value = "sm_90a")]
    arch: String,
    /// Number of kernels of each family.
    #[arg(long, default_value_t = 10)]
    each: usize,
    /// Only families whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Limit on the operands and results of one kernel, in bytes.
    #[arg(long, default_value_t = 300_000)]
    bytes: u64,
    /// Seed of the draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder to write.
    #[arg(long, default_value = "agreement")]
    out: PathBuf,
}

/// A family of kernels that share formats and knobs.
struct Family {
    name: &'static str,
    /// Formats of A, B and C; `None` to draw them.
    formats: Option<[&'static str; 3]>,
    /// Knobs of the family; their values rotate.
    knobs: &'static [(&'static str, &'static [&'static str])],
    groups: fn(Groups) -> bool,
}

const fn family(name: &'static str, formats: Option<[&'static str; 3]>) -> Family {
    Family { name, formats, knobs: &[], groups: |_| true }
}

const BF16: Option<[&str; 3]> = Some(["bf16", "bf16", "bf16"]);
const E4M3: Option<[&str; 3]> = Some(["e4m3", "e4m3", "bf16"]);
const BLOCKS: Option<[&str; 3]> = Some(["e4m3_1x128", "e4m3_128x128", "bf16"]);
const NVFP4: Option<[&str; 3]> = Some(["bf16", "nvfp4", "bf16"]);
const MXFP4: Option<[&str; 3]> = Some(["bf16", "mxfp4", "bf16"]);
const NVFP4_REPACKED: Option<[&str; 3]> = Some(["bf16", "nvfp4_repacked", "bf16"]);
const MXFP4_REPACKED: Option<[&str; 3]> = Some(["bf16", "mxfp4_repacked", "bf16"]);
/// Knob values of MMAs with rows of both products.
const BOTH: (&str, &[&str]) = ("accumulators", &["interleaved_rows"]);

const FAMILIES: &[Family] = &[
    family("bf16", BF16),
    family("f16", Some(["f16", "f16", "f16"])),
    Family { knobs: &[("promotion", &["off"])], ..family("e4m3_off", E4M3) },
    Family { knobs: &[("promotion", &["every(128)", "every(256)"])], ..family("e4m3_every", E4M3) },
    Family { knobs: &[("promotion", &["auto"])], ..family("e4m3_auto", E4M3) },
    family("nvfp4_bf16", NVFP4),
    family("nvfp4_f16", Some(["f16", "nvfp4", "f16"])),
    Family { groups: |groups| matches!(groups, Groups::Rows(_)), ..family("groups", None) },
    Family { groups: |groups| matches!(groups, Groups::Batch(_)), ..family("batches", None) },
    Family { knobs: &[("schedule", &["split_k(2)", "split_k(3)"])], ..family("split_k", None) },
    Family { knobs: &[("schedule", &["stream_k"]), ("sms", &["3", "5", "8"])], ..family("stream_k", None) },
    Family { knobs: &[("swap_ab", &["on"])], ..family("swapped", None) },
    Family { knobs: &[("multicast", &["a(2)", "b(2)", "a(4)", "b(4)"])], ..family("clusters", None) },
    Family { knobs: &[("consumers", &["ping_pong"])], ..family("ping_pong", None) },
    Family { knobs: &[("strategy", &["two_pass", "second_fused"])], ..family("two_launches", None) },
    family("outputs", Some(["bf16", "bf16", ""])),
    Family { knobs: &[BOTH], ..family("nvfp4_both", NVFP4) },
    Family { knobs: &[BOTH], ..family("mxfp4_both", MXFP4) },
    Family {
        knobs: &[BOTH, ("schedule", &["stream_k"]), ("sms", &["3", "5", "8"])],
        ..family("nvfp4_both_stream_k", NVFP4)
    },
    family("e4m3_blocks", BLOCKS),
    family("nvfp4_repacked", NVFP4_REPACKED),
    family("mxfp4_repacked", MXFP4_REPACKED),
    Family {
        knobs: &[("schedule", &["stream_k"]), ("sms", &["3", "5", "8"])],
        ..family("nvfp4_repacked_stream_k", NVFP4_REPACKED)
    },
    Family {
        knobs: &[("schedule", &["split_k(2)", "cluster_split_k(2)"])],
        ..family("mxfp4_repacked_split_k", MXFP4_REPACKED)
    },
];

const GATES: [&str; 4] = [
    "silu(A @ B1) * (A @ B2)",
    "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])",
    "gelu(X @ Wg) * (X @ Wu)",
    "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
];

/// The flags.
#[must_use]
pub fn command() -> Command {
    Flags::command().name("agreement")
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let done = Flags::from_arg_matches(matches).map_err(Into::into).and_then(|flags| run(&flags));
    silumin_cli::status(done.map(|()| true))
}

fn run(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let arch: Arch = flags.arch.parse()?;
    let families: Vec<&Family> = FAMILIES.iter().filter(|family| family.name.contains(&flags.only)).collect();
    let mut points = Vec::new();
    for (index, family) in families.iter().enumerate() {
        points.extend(draw(family, arch, flags, flags.seed * 1000 + index as u64)?);
    }
    fs::create_dir_all(&flags.out).map_err(|error| format!("{}: {error}", flags.out.display()))?;
    let written = parallel::map(&points, |_, point| {
        point.write(&flags.out).map_err(|error| format!("{}: {error}", point.name))
    });
    let mut text = String::new();
    for (point, left) in points.iter().zip(written) {
        text += &serde_json::to_string(&(point, left?))?;
        text.push('\n');
    }
    let path = flags.out.join("ours.jsonl");
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{} kernels of {} families in {}", points.len(), families.len(), flags.out.display());
    Ok(())
}

/// Draws distinct legal configurations of a family.
fn draw(family: &Family, arch: Arch, flags: &Flags, seed: u64) -> Result<Vec<Point>, Box<dyn Error>> {
    let mut draws = Draws::new(arch, seed);
    let mut points: Vec<Point> = Vec::new();
    for tries in 0.. {
        if points.len() == flags.each {
            break;
        }
        if tries == 200_000 {
            return Err(format!(
                "{} of {} kernels of the family {} in {tries} draws",
                points.len(),
                flags.each,
                family.name
            )
            .into());
        }
        let (shape, mut config) = (draws.shape(), draws.config());
        let gate = draws.pick(&GATES);
        let pair = draws.pair();
        let output = draws.output();
        if !(family.groups)(shape.groups) {
            continue;
        }
        let turn = points.len();
        for (knob, values) in family.knobs {
            config.set(knob, values[turn % values.len()])?;
        }
        let [a, b, c] = match family.formats {
            Some(formats) => formats.map(str::to_owned),
            None => [pair.0.clone(), pair.1, if pair.0 == "f16" { "f16" } else { "bf16" }.to_owned()],
        };
        let mut file = SpecFile::new(shape);
        file.arch = arch.to_string();
        file.gate = gate.to_owned();
        file.config = config;
        let c = if c.is_empty() { output } else { c };
        file.formats = FormatNames { a, b, c, ..FormatNames::default() };
        if family.name == "outputs" {
            file.formats.preactivations = ["none", "bf16", "f16", "f32"][turn % 4].to_owned();
        }
        let (spec, arch) = file.read()?;
        if spec.plan(shape, arch).is_err() {
            continue;
        }
        let Ok(kernel) = spec.kernel(shape, arch) else { continue };
        if bytes(&kernel) > flags.bytes || family.name == "clusters" && kernel.launches[0].cluster == [1; 3] {
            continue;
        }
        // A configuration twice tells nothing new.
        if points.iter().any(|point| point.spec.config == config && point.spec.shape() == shape) {
            continue;
        }
        let name = format!("ours-{}-{turn:02}", family.name);
        points.push(Point { name, full: turn.is_multiple_of(2), seed: seed * 100 + turn as u64, spec: file });
    }
    Ok(points)
}

/// Bytes of all tensors and of the workspace together.
fn bytes(kernel: &Kernel) -> u64 {
    let tensors = Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem));
    let workspace: u64 = kernel.workspace.iter().map(|buffer| buffer.bytes).sum();
    tensors.map(|operand| operand.bytes(&kernel.problem)).sum::<u64>() + workspace
}
