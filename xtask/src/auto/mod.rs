//! Compares what `auto` chooses with the best of a search by predicted times, problem by problem.
//!
//! ```text
//! cargo xtask auto
//! cargo xtask auto --formats nvfp4,bf16 --shapes 64x4096x7168,256x4096x7168
//! cargo xtask auto --space full --largest 20
//! cargo xtask auto --again
//! cargo xtask auto --table
//! cargo xtask auto --only --formats nvfp4 --shapes 192x12288x4096 --try 'store=tma'
//! ```
//!
//! Each problem's search starts with `auto` and some configurations of every kind, and goes on with neighbours of the best.
//! Writes a line a problem to `evidence/auto.jsonl`. What was predicted is kept in FILE.sims, so that a run that was ended early
//! goes on where it was. `--only` does not search: it prints the times of `auto` and of each `--try`, or why there is none, and writes
//! nothing. `--table` prints the table of book/src/auto.md. Nothing is measured. Exit status: 0, 1 if a problem that is searched has no prediction, 2 for bad input.

pub mod board;
pub mod problems;
pub mod rows;
mod tries;

use board::{Board, Job};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use problems::{FORMATS, Problem};
use rows::Line;
use silumin::Arch;
use silumin::codegen::config::Config;
use silumin::runtime::predict::{Chip, default_chip};
use silumin::runtime::tune::{Depth, knobs};
use std::path::PathBuf;
use std::process::ExitCode;

/// The flags.
#[must_use]
pub fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("auto")
        .about("Holds what `auto` chooses against a search by predicted times")
        .arg(
            option("chip", "CHIP", "b200, b300 or h200")
                .default_value("b200")
                .value_parser(["b200", "b300", "h200"]),
        )
        .arg(option("formats", "NAME,...", "nvfp4, mxfp4, mxfp8, mxfp8_mxfp4, e4m3, bf16 [default: all]"))
        .arg(option("shapes", "MxNxK,...", "these shapes instead of the models'"))
        .arg(
            option("largest", "N", "skip problems of more than N billion multiply-adds per product")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            option("space", "SPACE", "how far the search goes")
                .default_value("quick")
                .value_parser(["quick", "full"]),
        )
        .arg(
            option("try", "KNOBS", "also predict these knobs, such as 'swap_ab=off tile=128x64x256'")
                .action(ArgAction::Append),
        )
        .arg(
            Arg::new("again")
                .long("again")
                .action(ArgAction::SetTrue)
                .help("do not search: predict `auto` and the file's best again, for the rows in the file"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .action(ArgAction::SetTrue)
                .requires("try")
                .conflicts_with("again")
                .help("do not search: print the times of `auto` and of each --try, and write nothing"),
        )
        .arg(
            Arg::new("table")
                .long("table")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["again", "only", "try"])
                .help("predict nothing: print the table of book/src/auto.md, from the file of rows"),
        )
        .arg(
            option("threads", "N", "threads; 0 is one per core")
                .default_value("0")
                .value_parser(value_parser!(usize)),
        )
        .arg(option("commit", "NAME", "the commit recorded in rows, if git does not know it"))
        .arg(
            option("out", "FILE", "file of rows [default: evidence/auto.jsonl]")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(Arg::new("dry").long("dry").action(ArgAction::SetTrue).help("write nothing"))
}

/// The commit that is checked out, or the one that a flag names.
pub(crate) fn commit(matches: &ArgMatches) -> String {
    if let Some(given) = matches.get_one::<String>("commit") {
        return given.clone();
    }
    let git = std::process::Command::new("git").args(["rev-parse", "--short=7", "HEAD"]).output();
    let head = git.ok().filter(|out| out.status.success());
    head.map_or("unknown".into(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// The target for a chip.
pub fn arch(chip: &str) -> Arch {
    let of = |arch: &Arch| default_chip(arch.target()).is_ok_and(|its| its == chip);
    Arch::ALL.into_iter().find(of).unwrap_or(Arch::Sm100a)
}

fn problems(matches: &ArgMatches) -> Result<Vec<Problem>, String> {
    let wanted: Vec<&str> = match matches.get_one::<String>("formats") {
        Some(text) => text.split(',').map(str::trim).collect(),
        None => FORMATS.map(|(name, _)| name).to_vec(),
    };
    let known = |name: &&str| {
        let found = FORMATS.iter().find(|(known, _)| known == name);
        found.map(|(name, _)| *name).ok_or_else(|| format!("--formats: there are no formats `{name}`"))
    };
    let formats = wanted.iter().map(known).collect::<Result<Vec<_>, _>>()?;
    let mut all = problems::all(&formats);
    if let Some(text) = matches.get_one::<String>("shapes") {
        let sizes = |text: &str| {
            let sizes: Result<Vec<u32>, _> = text.split('x').map(|size| size.trim().parse()).collect();
            let sizes = sizes.ok().and_then(|sizes| <[u32; 3]>::try_from(sizes).ok());
            sizes.ok_or_else(|| format!("--shapes: `{text}` is not MxNxK, such as 64x4096x7168"))
        };
        let given = text.split(',').map(sizes).collect::<Result<Vec<_>, String>>()?;
        let of = |formats| given.iter().map(move |sizes| Problem { sizes: *sizes, groups: 0, formats });
        all = formats.iter().flat_map(|formats| of(*formats)).collect();
    }
    if let Some(most) = matches.get_one::<u64>("largest") {
        all.retain(|problem| problem.size() <= most.saturating_mul(1_000_000_000));
    }
    Ok(all)
}

fn run(matches: &ArgMatches) -> Result<ExitCode, String> {
    let name = matches.get_one::<String>("chip").ok_or("--chip has a default")?;
    let chip = Chip::named(name).map_err(|e| e.to_string())?;
    let space = matches.get_one::<String>("space").ok_or("--space has a default")?;
    let depth = if space == "full" { Depth::FULL } else { Depth::QUICK };
    let usual = silumin_testkit::root().join("evidence").join("auto.jsonl");
    let path = matches.get_one::<PathBuf>("out").cloned().unwrap_or(usual);
    let (commit, dry, again) = (commit(matches), matches.get_flag("dry"), matches.get_flag("again"));
    let old = rows::read(&path)?;
    let tried: Vec<&String> = matches.get_many("try").into_iter().flatten().collect();
    let tried = tried.iter().map(|text| knobs(text, &Config::default())).collect::<Result<Vec<_>, _>>();
    let tried = tried.map_err(|e| format!("--try: {e}"))?;
    if matches.get_flag("table") {
        print!("{}", rows::by_tokens(&old));
        return Ok(ExitCode::SUCCESS);
    }
    if matches.get_flag("only") {
        let all = tries::times(&problems(matches)?, arch(name), &tried, &chip);
        print!("{}", all.concat());
        return Ok(ExitCode::SUCCESS);
    }
    let mut jobs = Vec::new();
    for problem in problems(matches)? {
        let row = old.iter().find(|line| line.is_of(&problem, name));
        let job = match (row, again) {
            (Some(row), true) => Job::again(problem, arch(name), row),
            (None, true) => continue,
            // As far as asked for, by this commit: there is nothing to do.
            (Some(row), false) if row.commit == commit && (row.space == *space || row.space == "full") => {
                continue;
            }
            (_, false) => Job::search(problem, arch(name), depth, space, &tried),
        };
        // Formats or sizes that the chip has no kernel for have no row.
        match job {
            Ok(job) => jobs.push(job),
            Err(reason) => println!("{reason}"),
        }
    }
    let kept = (!dry).then(|| path.with_extension("jsonl.sims"));
    let board = Board::new(jobs, chip, name, &commit, kept.as_deref())?;
    let threads = *matches.get_one::<usize>("threads").ok_or("--threads has a default")?;
    let mut lines = old;
    let failed = board.run(threads, &mut |line: &Line| {
        println!("{}", line.text());
        lines.retain(|other| {
            (&other.problem, &other.formats, &other.chip) != (&line.problem, &line.formats, &line.chip)
        });
        lines.push(line.clone());
        if dry { Ok(()) } else { rows::write(&path, &lines) }
    })?;
    lines.retain(|line| line.chip == *name);
    println!("\n{}", rows::summary(&lines));
    for reason in &failed {
        println!("not predicted: {reason}");
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    run(matches).unwrap_or_else(|error| silumin_cli::status(Err(error.into())))
}
