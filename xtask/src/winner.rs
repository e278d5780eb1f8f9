//! Predicts the kernel that leads the NVFP4 dual-GEMM benchmark beside ours, on a B200.
//!
//! ```text
//! cargo xtask winner                    # predicts ours, writes evidence/winner.jsonl, prints the tables of book/src/winner.md
//! cargo xtask winner --theirs FOLDER    # predicts theirs, too, from launch files v2_M_N_K.toml
//! cargo xtask winner --tables           # prints the tables of what the file has
//! ```
//!
//! Both are predicted by one chip file, with issue costs by the table and L2 cold. Nothing is measured here; the published times
//! are the leaderboard's. Exit status: 0, or 2 for bad input.

use crate::auto::commit;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use silumin::Shape;
use silumin::codegen::error::explain;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, Prediction, TimeOptions, predict};
use silumin_emulator::LaunchFile;
use silumin_emulator::command::{Limits, Timing, predict as predict_launch};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// M, N and K of the benchmark's problems, and the published time of the winner in microseconds.
pub const PROBLEMS: [([u32; 3], f64); 4] = [
    ([256, 4096, 7168], 12.4),
    ([512, 4096, 7168], 16.4),
    ([256, 3072, 4096], 9.43),
    ([512, 3072, 7168], 16.3),
];
/// Names of the kernels.
pub const KERNELS: [&str; 2] = ["v2", "silumin"];
const CHIP: &str = "b200";
/// Phases of a prediction, in the order of the table.
const PHASES: [&str; 4] = ["setup", "first bytes", "K loop", "epilogue"];

/// A kernel on a problem. Times are in microseconds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Line {
    /// Which kernel.
    pub kernel: String,
    /// M, N and K.
    pub shape: [u32; 3],
    /// Predicted time of a launch.
    pub us: f64,
    /// With all numbers of the chip at their fast ends.
    pub low_us: f64,
    /// At their slow ends.
    pub high_us: f64,
    /// From the first instruction to the end.
    pub net_us: f64,
    /// Mean lengths of phases.
    pub phases: BTreeMap<String, f64>,
    /// The time below which no kernel can be, by the chip's rates.
    pub floor_us: f64,
    /// The chip.
    pub chip: String,
    /// MHz.
    pub clock: f64,
    /// The commit that made the row.
    pub commit: String,
}

fn rounded(ns: f64) -> f64 {
    ns.round() / 1e3
}

fn line(
    kernel: &str,
    shape @ [m, n, k]: [u32; 3],
    predicted: &Prediction,
    [low, high]: [f64; 2],
    commit: &str,
) -> Result<Line, Box<dyn Error>> {
    let file = SpecFile::new(Shape::new(m, n, k));
    let (spec, arch) = file.read()?;
    let plan = spec.plan(file.shape(), arch).map_err(|errors| explain(&errors))?;
    let phases = predicted.phases.iter().map(|p| (p.name.to_owned(), rounded(p.end - p.start)));
    Ok(Line {
        kernel: kernel.to_owned(),
        shape,
        us: rounded(predicted.time),
        low_us: rounded(low),
        high_us: rounded(high),
        net_us: rounded(predicted.kernel),
        phases: phases.collect(),
        floor_us: rounded(plan.floor_seconds() * 1e9),
        chip: predicted.chip.clone(),
        clock: predicted.clock,
        commit: commit.to_owned(),
    })
}

/// Predicts our kernel.
///
/// # Errors
///
/// A kernel that cannot be made or predicted.
pub fn ours(shape @ [m, n, k]: [u32; 3], commit: &str) -> Result<Line, Box<dyn Error>> {
    let file = SpecFile::new(Shape::new(m, n, k));
    let (spec, arch) = file.read()?;
    let kernel = spec.kernel(file.shape(), arch)?;
    let chip = Chip::named(CHIP)?;
    let time = |chip: Chip| predict(&kernel, None, &TimeOptions::new(chip));
    let predicted = time(chip.clone())?;
    let range = [time(chip.extreme(false))?.time(), time(chip.extreme(true))?.time()];
    let [only] = &predicted.launches[..] else { return Err("more than one launch".into()) };
    line(KERNELS[1], shape, only, range, commit)
}

fn theirs(shape @ [m, n, k]: [u32; 3], folder: &Path, commit: &str) -> Result<Line, Box<dyn Error>> {
    let timing = Timing { range: true, ..Timing::of(CHIP) };
    let file = LaunchFile::read(&folder.join(format!("v2_{m}_{n}_{k}.toml")))?;
    let predicted = predict_launch(&file, &timing, Limits::default(), None)?;
    let (low, high) = predicted.range.ok_or("a prediction without a range")?;
    line(KERNELS[0], shape, &predicted.prediction, [low, high], commit)
}

/// The rows of `evidence/winner.jsonl`.
///
/// # Errors
///
/// A file that is missing or has another form.
pub fn read_lines() -> Result<Vec<Line>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path())?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn path() -> PathBuf {
    silumin_testkit::root().join("evidence/winner.jsonl")
}

fn of<'a>(lines: &'a [Line], kernel: &str, shape: [u32; 3]) -> Option<&'a Line> {
    lines.iter().find(|line| line.kernel == kernel && line.shape == shape)
}

/// The tables in Markdown: times of launches, and phases.
#[must_use]
pub fn tables(lines: &[Line]) -> [String; 2] {
    let mut times =
        "| M x N x K | published | v2 | silumin | silumin / v2 | without the launch | floor |\n".to_owned();
    times += &format!("|{}\n", "---|".repeat(7));
    let mut parts = "| M x N x K | kernel | setup | first bytes | K loop | epilogue |\n".to_owned();
    parts += &format!("|{}\n", "---|".repeat(6));
    let (mut product, mut count) = (1.0, 0);
    for (shape, published) in PROBLEMS {
        let size = shape.map(|size| size.to_string()).join(" x ");
        let [Some(theirs), Some(ours)] = KERNELS.map(|kernel| of(lines, kernel, shape)) else { continue };
        let range = |line: &Line| format!("{:.1} ({:.1} to {:.1})", line.us, line.low_us, line.high_us);
        let net = ours.net_us / theirs.net_us;
        (product, count) = (product * net, count + 1);
        times += &format!(
            "| {size} | {published} | {} | {} | {:.2} | {net:.2} | {:.1} |\n",
            range(theirs),
            range(ours),
            ours.us / theirs.us,
            ours.floor_us
        );
        for line in [theirs, ours] {
            let phase =
                |name: &str| line.phases.get(name).map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
            parts += &format!("| {size} | {} | {} |\n", line.kernel, PHASES.map(phase).join(" | "));
        }
    }
    if count > 0 {
        times += &format!("| geometric mean | | | | | {:.2} | |\n", product.powf(1.0 / f64::from(count)));
    }
    [times, parts]
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("winner")
        .about("Predicts the leading kernel of the NVFP4 dual-GEMM benchmark beside ours, on a B200")
        .arg(
            Arg::new("tables")
                .long("tables")
                .action(ArgAction::SetTrue)
                .help("predict nothing: print the tables of evidence/winner.jsonl"),
        )
        .arg(
            Arg::new("theirs")
                .long("theirs")
                .value_name("FOLDER")
                .value_parser(clap::value_parser!(PathBuf))
                .help("launch files v2_M_N_K.toml of the leading kernel; without them its rows stay"),
        )
        .arg(
            Arg::new("commit")
                .long("commit")
                .value_name("NAME")
                .help("the commit recorded in rows, if git does not know it"),
        )
}

fn run(matches: &ArgMatches) -> Result<(), Box<dyn Error>> {
    if !matches.get_flag("tables") {
        let (commit, known) = (commit(matches), read_lines().unwrap_or_default());
        let mut text = String::new();
        for (shape, _) in PROBLEMS {
            let theirs = match matches.get_one::<PathBuf>("theirs") {
                Some(folder) => theirs(shape, folder, &commit)?,
                None => {
                    of(&known, KERNELS[0], shape).cloned().ok_or("no rows of v2: pass --theirs FOLDER")?
                }
            };
            for line in [theirs, ours(shape, &commit)?] {
                text += &format!("{}\n", serde_json::to_string(&line)?);
            }
        }
        std::fs::write(path(), text).map_err(|error| format!("{}: {error}", path().display()))?;
    }
    println!("{}", tables(&read_lines()?).join("\n"));
    Ok(())
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_cli::status(run(matches).map(|()| true))
}
