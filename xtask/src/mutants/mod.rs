//! Writes `evidence/mutants.jsonl`: mutants of every golden kernel, and what caught them.
//!
//! ```text
//! cargo xtask mutants --every 4
//! cargo xtask mutants --kernel scales_all --stdout
//! cargo xtask mutants --kernel hopper --every 13 --stdout
//! cargo xtask mutants --kernel dynamic_pair --line 588 --line 596
//! cargo xtask mutants --left evidence/mutants.jsonl
//! ```
//!
//! Every 4th mutant takes hours of two cores from nothing, and with what earlier runs have kept seconds. `--again` runs what survived
//! once more, as does `--left` with what a file lists as open, without those results.
//! What is known of a kernel is kept in `target/mutants`, under the kernel's hash, so that a run that was broken off goes on
//! with the next kernel. Exit status: 0 if at least 95 % of the mutants of each kernel were
//! caught or explained, 1 if not, 2 for bad input.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

mod left;
pub mod row;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use row::Row;
use silumin::codegen::config::{Schedule, Setting};
use silumin::{Kernel, Shape};
use silumin_emulator::mutate::{Earlier, Outcome, Subject, Survey, SurveyOptions, Verdict, json};
use silumin_testkit::launches;
use silumin_testkit::mutants::{self, KERNELS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Two more sizes of a kernel, at which surviving mutants are tried again. At the first, K takes more rounds of the ring of stages
/// and ends elsewhere in it. The second has more rows and columns: tiles have indices above 0, and persistent CTAs have several.
/// The edges cut tiles as before, so that the text differs in numbers alone.
///
/// Each size is a list of candidates. The first one counts for which the same kernel can be made: a tile of 16 columns, for example,
/// must be the only one.
fn others(shape: Shape, plan: &silumin::Plan) -> [Vec<Shape>; 2] {
    // Parts of a tile's K have a ring each.
    let parts = match plan.config.schedule {
        Setting::Fixed(Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts)) => parts,
        _ => 1,
    };
    let per_part = shape.k.div_ceil(plan.tile.k * parts);
    // One more, so that the end is elsewhere in a ring of one stage more, too, which that of scale factors may be.
    let rounds = if per_part > plan.stages { plan.stages + 2 } else { 2 * plan.stages + 2 };
    // How many K tiles a loop takes at once can follow from their number.
    let deep = |more| Shape { k: shape.k + parts * (rounds + more) * plan.tile.k, ..shape };
    let high = Shape { m: shape.m + 256, ..shape };
    let wide = Shape { n: shape.n + 256, ..shape };
    [(0..24).map(deep).collect(), vec![Shape { m: high.m, ..wide }, high, wide]]
}

/// Golden kernels beside those of the test.
const MORE: &[(&str, Shape)] = &[
    ("grouped", Shape::new(400, 160, 800).grouped(3)),
    ("grouped_decode", Shape::new(60, 136, 544).grouped(40)),
    ("hopper_blocks", Shape::new(130, 136, 512)),
    // Six K tiles together, twice, and three that are left.
    ("hopper_blocks_gemm", Shape::new(10, 136, 1920)),
    ("hopper_blocks_decode", Shape::new(60, 256, 512).grouped(8)),
    ("hopper_decode", Shape::new(10, 136, 1064)),
    ("hopper_e4m3", Shape::new(130, 136, 416)),
    // Five K tiles together, twice, and one that is left.
    ("hopper_e4m3_few_tokens", Shape::new(10, 136, 1392)),
    ("hopper_e4m3_gemm", Shape::new(10, 136, 1392)),
    ("hopper_few_rows", Shape::new(40, 136, 520)),
    ("hopper_grouped", Shape::new(300, 136, 200).grouped(3)),
    ("hopper_split_k", Shape::new(130, 136, 520)),
    ("hopper_stream_k", Shape::new(130, 264, 520)),
    ("hopper_weights", Shape::new(10, 136, 2912)),
    ("hopper_mxfp4_weights", Shape::new(10, 136, 1056)),
    ("hopper_repacked", Shape::new(10, 136, 2912)),
    ("hopper_nvfp4", Shape::new(10, 136, 2912)),
    ("hopper_mxfp4", Shape::new(150, 136, 1056)),
];

/// Kernels that are only sampled: those of several launches (each launch runs on what the one before left), and those
/// with vectors in the gate. The numbers are the steps between mutants of each launch.
const SAMPLES: &[(&str, Shape, &[usize])] = &[
    ("two_pass", Shape::new(130, 136, 5536), &[8, 8, 2]),
    ("second_fused", Shape::new(130, 136, 5536), &[8, 8]),
    ("bias", Shape::new(130, 136, 1440), &[24]),
    ("hopper_both", Shape::new(200, 136, 1152), &[2, 24]),
    ("hopper_cluster_split_k", Shape::new(250, 136, 1152), &[24]),
    ("hopper_two_pass", Shape::new(130, 136, 344), &[8, 8, 2]),
    ("two_pass_mxfp8_out", Shape::new(130, 160, 2336), &[8, 8, 2]),
    ("hopper_vectors", Shape::new(130, 136, 344), &[24]),
];

/// Which mutants of each kernel to run.
struct Run {
    /// Step between mutants: 1 runs all.
    every: usize,
    /// Whether survivors of an earlier run are kept without running them again.
    keep: bool,
    /// Only mutants of these PTX lines, if there are any.
    lines: Vec<u32>,
}

/// Prints the progress of a survey, and its survivors.
fn progress(outcome: &Outcome, done: usize, all: usize) {
    let m = &outcome.mutant;
    if outcome.verdict == Verdict::Survived {
        eprintln!("  line {}: {}: {} ({}): neither caught nor explained", m.line, m.kind, m.was, m.change);
    }
    if done.is_multiple_of(20) || done == all {
        eprintln!("  {done} of {all}");
    }
}

/// Survey of a launch: its name, the step between mutants, and the results.
struct Found {
    name: String,
    every: usize,
    survey: Survey,
}

/// Surveys of several launches.
type Surveys = Vec<Found>;

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("mutants")
        .about("Surveys mutants of all golden kernels, and writes evidence/mutants.jsonl")
        .arg(
            Arg::new("kernel")
                .long("kernel")
                .value_name("NAME")
                .default_value("")
                .help("run only the kernel of this name, or all whose names start with it, and write nothing"),
        )
        .arg(
            Arg::new("every")
                .long("every")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("1")
                .help("run only every n-th mutant, of kernels that are not sampled already"),
        )
        .arg(
            Arg::new("line")
                .long("line")
                .value_name("LINE")
                .action(ArgAction::Append)
                .value_parser(value_parser!(u32))
                .requires("kernel")
                .help("run only mutants of this PTX line, 0 for tensor maps, and keep no results; may be repeated"),
        )
        .arg(
            Arg::new("stdout")
                .long("stdout")
                .action(ArgAction::SetTrue)
                .help("print the lines and write nothing"),
        )
        .arg(
            Arg::new("again")
                .long("again")
                .action(ArgAction::SetTrue)
                .help("run survivors of an earlier run again, for example after a change of the emulator"),
        )
        .arg(
            Arg::new("left")
                .long("left")
                .value_name("FILE")
                .help("run only the mutants that this file of an earlier run lists as neither caught nor explained, and print the results"),
        )
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let wanted = matches.get_one::<String>("kernel").map_or("", String::as_str);
    if let Some(file) = matches.get_one::<String>("left") {
        let done = row::read(Path::new(file)).and_then(|before| left::run(wanted, &before));
        return silumin_cli::status(done.map(|()| true).map_err(|error| format!("{file}: {error}").into()));
    }
    let run = Run {
        every: matches.get_one::<u32>("every").map_or(1, |&every| every as usize),
        keep: !matches.get_flag("again"),
        lines: matches.get_many::<u32>("line").map(|l| l.copied().collect()).unwrap_or_default(),
    };
    let (whole, samples) = match survey(wanted, &run) {
        Ok(surveys) => surveys,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if whole.is_empty() && samples.is_empty() {
        eprintln!("error: no kernel's name starts with `{wanted}`");
        return ExitCode::from(2);
    }
    let lines = whole.iter().chain(&samples).map(|found| serde_json::to_string(&Row::of(found)));
    let text: String = match lines.collect::<Result<Vec<_>, _>>() {
        Ok(lines) => lines.into_iter().map(|line| line + "\n").collect(),
        Err(error) => return silumin_cli::status(Err(error.into())),
    };
    if !wanted.is_empty() || matches.get_flag("stdout") {
        print!("{text}");
    } else {
        let path = silumin_testkit::root().join("evidence/mutants.jsonl");
        if let Err(error) = fs::write(&path, &text) {
            return silumin_cli::status(Err(format!("{}: {error}", path.display()).into()));
        }
        println!("{} surveys written to {}", whole.len() + samples.len(), path.display());
    }
    ExitCode::from(u8::from(!whole.iter().all(|found| found.survey.holds())))
}

/// Surveys the kernel named `wanted`, or all kernels whose names start with it.
fn survey(wanted: &str, run: &Run) -> Result<(Surveys, Surveys), String> {
    let (mut whole, mut samples) = (Vec::new(), Vec::new());
    let mut errors = Vec::new();
    // Kernels of sm_90a, whose products the emulator takes longest for, come last.
    let (hopper, others): (Vec<_>, Vec<_>) =
        KERNELS.iter().chain(MORE).copied().partition(|(name, _)| name.starts_with("hopper"));
    let named: Vec<_> = others.into_iter().chain(hopper).collect();
    let exact = named.iter().any(|(name, _)| *name == wanted);
    let is_wanted = |name: &str| if exact { name == wanted } else { name.starts_with(wanted) };
    for (name, shape) in named.into_iter().filter(|(name, _)| is_wanted(name)) {
        match launches_of(name, shape, &[run.every], run) {
            Ok(surveys) => whole.extend(surveys),
            Err(error) => errors.push(format!("{name}: {error}")),
        }
    }
    for &(name, shape, steps) in SAMPLES.iter().filter(|(name, ..)| is_wanted(name)) {
        match launches_of(name, shape, steps, run) {
            Ok(surveys) => samples.extend(surveys),
            Err(error) => errors.push(format!("{name}: {error}")),
        }
    }
    // The others are kept, so that the next run has this one to do only.
    if errors.is_empty() { Ok((whole, samples)) } else { Err(errors.join("\n")) }
}

/// Surveys each launch of a kernel, running every `every`th mutant.
fn launches_of(name: &str, shape: Shape, every: &[usize], run: &Run) -> Result<Surveys, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let kernel = mutants::write(name, shape, folder.path(), &[])?;
    let files = launches::launches(&kernel, folder.path())?;
    // A kernel of several launches has no twins: only a sample of its mutants is run.
    let others = if files.len() == 1 { twins(name, shape, &kernel, folder.path())? } else { Vec::new() };
    let mut surveys = Vec::new();
    for (index, (file, every)) in files.iter().zip(every).enumerate() {
        let row = if files.len() == 1 { name.to_owned() } else { format!("{name}_{}", index + 1) };
        let hash = &kernel.hash_hex()[..16];
        let known = silumin_testkit::root().join(format!("target/mutants/{row}.{hash}.json"));
        let mut earlier = Earlier::default();
        // A survey of single lines keeps nothing, and has no use for what was kept.
        let whole = run.lines.is_empty();
        if let (true, Ok(text)) = (whole, fs::read_to_string(&known)) {
            earlier.read(&text).map_err(|e| format!("{}: {e}", known.display()))?;
        }
        let plan = SurveyOptions {
            every: *every,
            keep: run.keep,
            lines: run.lines.clone(),
            progress: Some(progress),
            ..mutants::plan()?
        };
        eprintln!("{row}: the kernel itself, under all schedules");
        let started = std::time::Instant::now();
        let survey = read(file)?.survey_with(&plan, &others, &earlier).map_err(|e| format!("{row}: {e}"))?;
        eprintln!("{row}: {} mutants, {:.0} s", survey.outcomes.len(), started.elapsed().as_secs_f64());
        if whole {
            let text = json(std::slice::from_ref(&survey));
            let kept =
                known.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&known, text));
            kept.map_err(|e| format!("{}: {e}", known.display()))?;
        }
        surveys.push(Found { name: row, every: *every, survey });
    }
    Ok(surveys)
}

/// A kernel at its other sizes, with all knobs as chosen for the first size.
fn twins(name: &str, shape: Shape, kernel: &Kernel, folder: &Path) -> Result<Vec<Subject>, String> {
    let plan = mutants::settled(name, shape)?;
    let knobs = mutants::knobs(&plan);
    let knobs: Vec<(&str, &str)> = knobs.iter().map(|(knob, value)| (*knob, value.as_str())).collect();
    let mut twins = Vec::new();
    for (index, shapes) in others(shape, &plan).into_iter().enumerate() {
        let shares = plan.config.schedule == Setting::Fixed(Schedule::StreamK);
        let few = shares || index == 1 && plan.config.schedule == Setting::Fixed(Schedule::Persistent);
        let chips = shapes.into_iter().flat_map(|shape| {
            // A chip of few SMs, whose CTAs have several tiles, or more than one step of K; or of as many that none has a tile's.
            let tiles = shape.m.div_ceil(plan.tile.m) * shape.n.div_ceil(plan.tile.n);
            let counts = [few.then_some(4), (shares && !plan.has_fixup()).then_some(tiles + 2)];
            let counts: Vec<Option<u32>> =
                if few { counts.into_iter().filter(Option::is_some).collect() } else { vec![None] };
            counts.into_iter().map(move |sms| (shape, sms.map(|sms| sms.to_string())))
        });
        // Not every configuration is legal at every size: all scale factors of a longer K may not fit, for one.
        // The first that is the same but for its numbers, or else the first.
        let mut found: Option<(Kernel, PathBuf)> = None;
        for (attempt, (shape, sms)) in chips.enumerate() {
            let folder = folder.join(format!("{index}.{attempt}"));
            fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
            let knobs: Vec<_> = knobs.iter().copied().chain(sms.as_deref().map(|sms| ("sms", sms))).collect();
            let twin = match mutants::write(name, shape, &folder, &knobs) {
                Ok(twin) => twin,
                Err(error) => {
                    eprintln!("{name} at {shape}: {error}");
                    continue;
                }
            };
            let is_alike = twin.ptx.lines().count() == kernel.ptx.lines().count();
            if is_alike || found.is_none() {
                found = Some((twin, folder));
            }
            if is_alike {
                break;
            }
        }
        let Some((twin, folder)) = found else { continue };
        let lines = [kernel, &twin].map(|k| k.ptx.lines().count());
        if lines[0] != lines[1] {
            eprintln!("{}: another kernel, of {} lines instead of {}", twin.name, lines[1], lines[0]);
        }
        twins.push(read(&folder.join(format!("{}.toml", twin.name)))?);
    }
    Ok(twins)
}

fn read(path: &Path) -> Result<Subject, String> {
    Subject::read(path).map_err(|e| format!("{}: {e}", path.display()))
}
