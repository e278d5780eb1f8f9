//! Predicts what `evidence/times` has measured times of, and says how far off the predictions are.
//!
//! ```text
//! cargo xtask times
//! cargo xtask times --set h200_auto --dry
//! cargo xtask times --public FOLDER
//! cargo xtask times --plot
//! ```
//!
//! Kernels of ours are made and timed. Those of others are launch files in FOLDER; where it is not given, or lacks a file, their
//! rows stay as they are in `evidence/time.jsonl`, with the commit that predicted them. Writes `evidence/time.jsonl` and
//! `evidence/time.svg`. Exit status: 0 if every row was predicted or kept, 1 if one was not, 2 for bad input.

pub mod plot;
pub mod predict;
pub mod rows;
pub mod score;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use predict::{Estimate, Options, estimate};
use rows::{Line, Set};
use silumin_emulator::time::Clock;
use silumin_testkit::parallel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("times")
        .about("Predicts the kernels of evidence/times, and compares them with their measured times")
        .arg(
            Arg::new("public")
                .long("public")
                .value_name("FOLDER")
                .help("folder of launch files of other kernels, named as in evidence/times")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("NAME")
                .action(ArgAction::Append)
                .help("predict only this set again; may be given several times"),
        )
        .arg(
            Arg::new("rows")
                .long("rows")
                .value_name("TEXT")
                .action(ArgAction::Append)
                .help("predict only rows again whose kernel, shape and formats contain this text; may be given several times"),
        )
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("SECONDS")
                .default_value("300")
                .help("time limit of one simulation; a row that takes longer is not changed")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            Arg::new("clock")
                .long("clock")
                .value_name("MHZ")
                .help("clock that replaces the sets': maximum, sustained, or MHz; writes nothing")
                .value_parser(|text: &str| text.parse::<Clock>()),
        )
        .arg(Arg::new("no-range").long("no-range").action(ArgAction::SetTrue).help(
            "predict with the chip file's values alone, a third of the work; the rows then have no range",
        ))
        .arg(
            Arg::new("slow")
                .long("slow")
                .action(ArgAction::SetTrue)
                .help("also predict rows again that take minutes to simulate"),
        )
        .arg(
            Arg::new("dry")
                .long("dry")
                .action(ArgAction::SetTrue)
                .help("write nothing, and skip the ends of ranges"),
        )
        .arg(
            Arg::new("plot")
                .long("plot")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["public", "set", "rows", "limit", "clock", "no-range", "slow", "dry"])
                .help(
                    "predict nothing: print the scores and draw evidence/time.svg, from evidence/time.jsonl",
                ),
        )
}

/// The commit that is checked out, marked where what predictions come from was changed since.
fn commit(root: &Path) -> Result<String, String> {
    let git = |args: &[&str]| {
        let out = std::process::Command::new("git").arg("-C").arg(root).args(args).output();
        let out = out.map_err(|e| format!("git: {e}"))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
            false => Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim())),
        }
    };
    let head = git(&["rev-parse", "--short=7", "HEAD"])?;
    let sources = ["status", "--porcelain", "--", "chips", "codegen", "emulator", "runtime", "templates"];
    Ok(if git(&sources)?.is_empty() { head } else { format!("{head}+") })
}

/// What became of a row.
enum Outcome {
    New(Line),
    Kept(Line),
    /// Why, and the row that stays: the earlier one, or the new one if it could not be written.
    Failed(String, Option<Line>),
    /// Not asked for, or without its launch files, and without an earlier row.
    Missing,
}

fn run(matches: &ArgMatches) -> Result<ExitCode, String> {
    let root = &silumin_testkit::root();
    let evidence = root.join("evidence");
    let sets = rows::sets(&evidence.join("times"))?;
    let old = rows::lines(&evidence.join("time.jsonl"))?;
    let wanted: Vec<&String> = matches.get_many("set").into_iter().flatten().collect();
    if let Some(name) = wanted.iter().find(|name| !sets.iter().any(|s| s.name == ***name)) {
        let names: Vec<_> = sets.iter().map(|s| s.name.as_str()).collect();
        return Err(format!("there is no set `{name}`: there are {}", names.join(", ")));
    }
    let texts: Vec<&String> = matches.get_many("rows").into_iter().flatten().collect();
    let of_wanted = || {
        sets.iter().filter(|set| wanted.is_empty() || wanted.contains(&&set.name)).flat_map(|set| &set.row)
    };
    if let Some(text) = texts.iter().find(|text| !of_wanted().any(|row| row.name().contains(text.as_str()))) {
        return Err(format!(
            "no row contains `{text}`: rows are written as in evidence/time.jsonl, such as `auto, 16 x 4096 x 7168, e4m3,e4m3,bf16`"
        ));
    }
    let clock = matches.get_one::<Clock>("clock").copied();
    let dry = matches.get_flag("dry") || clock.is_some();
    let draws = matches.get_flag("plot");
    let public = matches.get_one::<PathBuf>("public").map(PathBuf::as_path);
    let options = Options {
        public,
        clock,
        range: !dry && !matches.get_flag("no-range"),
        limit: *matches.get_one::<f64>("limit").ok_or("--limit has a default")?,
    };
    let commit = commit(root)?;
    let jobs: Vec<(&Set, usize)> =
        sets.iter().flat_map(|set| (0..set.row.len()).map(move |i| (set, i))).collect();
    // Written as they come in, so that a run that is ended early has not been for nothing.
    let path = evidence.join("time.jsonl");
    let written = Mutex::new(old.clone());
    let outcomes = parallel::map(&jobs, |_, &(set, index)| {
        let row = &set.row[index];
        let kept = old.iter().find(|l| l.same(set, row));
        let keep = |otherwise| kept.map_or(otherwise, |l| Outcome::Kept(l.measured_anew(set, row)));
        let later = row.slow && !matches.get_flag("slow");
        let named = texts.is_empty() || texts.iter().any(|text| row.name().contains(text.as_str()));
        let asked = named && (wanted.is_empty() || wanted.contains(&&set.name));
        if draws || later || !asked {
            return keep(Outcome::Missing);
        }
        let start = Instant::now();
        match estimate(set, row, &options) {
            Ok(Some(got)) => {
                let seconds = start.elapsed().as_secs_f64();
                println!("{}", progress(set, index, &got, seconds));
                let line = Line::new(set, row, &got, &commit);
                let mut written = written.lock().expect("no thread panics with the lock held");
                written.retain(|l| !l.same(set, row));
                written.push(line.clone());
                match dry {
                    true => Outcome::New(line),
                    false => {
                        let failed = |text| Outcome::Failed(text, Some(line.clone()));
                        rows::write(&path, &written).map_or_else(failed, |()| Outcome::New(line.clone()))
                    }
                }
            }
            Ok(None) => keep(Outcome::Missing),
            Err(error) => {
                let kept = kept.map(|line| line.measured_anew(set, row));
                Outcome::Failed(format!("{}, {}: {error}", set.name, row.name()), kept)
            }
        }
    });
    let (mut all, mut failed, mut missing) = (Vec::new(), Vec::new(), 0);
    for outcome in outcomes {
        match outcome {
            Outcome::New(line) | Outcome::Kept(line) => all.push(line),
            Outcome::Failed(text, kept) => {
                failed.push(text);
                all.extend(kept);
            }
            Outcome::Missing => missing += 1,
        }
    }
    println!();
    for set in &sets {
        println!("{}", score::text(set, &all));
    }
    for text in &failed {
        println!("not predicted: {text}");
    }
    if missing > 0 {
        println!("{missing} rows were not asked for, or have no launch file, and no prediction of before");
    }
    if !dry {
        if !draws {
            rows::write(&path, &all)?;
        }
        let svg = plot::svg(&sets, &all);
        fs::write(evidence.join("time.svg"), svg).map_err(|e| format!("evidence/time.svg: {e}"))?;
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

fn progress(set: &Set, index: usize, got: &Estimate, seconds: f64) -> String {
    let row = &set.row[index];
    format!(
        "{:<24} {:<44} {:8.2} us predicted ({:.2} to {:.2}), {:8.2} measured, {:+6.1} %; {seconds:.1} s; {}",
        set.name,
        row.name(),
        got.time,
        got.low,
        got.high,
        row.measured(),
        100.0 * (got.time / row.measured() - 1.0),
        got.bound
    )
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    run(matches).unwrap_or_else(|error| silumin_cli::status(Err(error.into())))
}
