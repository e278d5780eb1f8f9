//! The verb `mutate`: puts one mistake at a time into correct kernels, and reports whether the emulator catches it.
//!
//! ```text
//! silumin mutate LAUNCH.toml
//! silumin mutate LAUNCH.toml --only fence --only wait --seeds 16
//! silumin mutate A.toml B.toml --markdown
//! ```
//!
//! Exit status: 0 if at least 95 % of the mutants of each kernel were caught or explained, 1 if not, 2 for
//! bad input, which includes a kernel that has findings of its own.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

use crate::progress::Progress;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use silumin::runtime::regular_file::read_text;
use silumin_emulator::Reconvergence;
use silumin_emulator::mutate::{
    Earlier, Equivalents, Kind, Subject, SurveyOptions, json, list, markdown, text,
};
use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Size limit of files given to `--reuse` and `--equivalents`, in bytes.
const LIST_LIMIT: u64 = 64 << 20;

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_emulator::note_slow_build();
    crate::status(run(matches))
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    Command::new("mutate")
        .about("Puts mistakes into correct kernels, one at a time, and reports which ones the emulator catches")
        .after_help("Exit status: 0 if at least 95 % of each kernel's mutants were caught or explained; 1 if fewer; 2 for bad input")
        .arg(
            Arg::new("launch")
                .value_name("LAUNCH.toml")
                .help("launch files: kernels with their grids, buffers and parameters")
                .num_args(1..)
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            option("seeds", "N", "random schedules for each mutant, beside early, late and one that starves each warp")
                .default_value("4")
                .value_parser(value_parser!(u64).range(..=1_000_000)),
        )
        .arg(
            option("threads", "N", "mutants that run at a time; 0 is one per core")
                .default_value("0")
                .value_parser(value_parser!(u16).range(..=1024)),
        )
        .arg(
            option("time-limit", "SECONDS", "time limit of one run; a mutant that takes longer counts as caught")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            option(
                "instruction-limit",
                "N",
                "limit on the PTX instructions of one cluster in one run; the kernel must end within it, and a mutant \
                 that does not counts as caught [default: 1000000000]",
            )
            .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            option(
                "memory-limit",
                "BYTES",
                "limit on host memory of one run [default: 7/8 of what the machine has available]",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(
            option("only", "KIND", "only mutants of this kind; may be repeated")
                .action(ArgAction::Append)
                .value_parser(|text: &str| text.parse::<Kind>()),
        )
        .arg(
            option("line", "LINE", "only mutants of this PTX line, 0 for tensor maps; may be repeated")
                .action(ArgAction::Append)
                .value_parser(value_parser!(u32)),
        )
        .arg(
            option("every", "N", "run every n-th mutant")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            option(
                "also",
                "LAUNCH.toml",
                "launch file of the same kernel at another size, in which survivors are tried again",
            )
            .num_args(1..)
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            option(
                "reuse",
                "FILE.json",
                "output of an earlier --json: mutants that it lists as caught or explained are not run again",
            )
            .num_args(1..)
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            flag("keep", "with --reuse: run no mutant again, only apply --equivalents anew")
                .requires("reuse"),
        )
        .arg(
            option("reconvergence", "HOW", "when diverged lanes of a warp run together again, as for `emulate`")
                .value_parser(Reconvergence::NAMES.map(|(name, _)| name))
                .default_value("eager"),
        )
        .arg(
            option("equivalents", "FILE.toml", "survivors known to be equivalent to the kernel, with reasons")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(flag("list", "list the mutants and run none"))
        .arg(flag("json", "print only one JSON document").conflicts_with("markdown"))
        .arg(flag("markdown", "print only tables of the numbers and of the survivors"))
}

/// The bar of the kernel whose mutants run.
static BAR: Mutex<Option<Progress>> = Mutex::new(None);

/// Shows that so many mutants of so many have run.
fn show(done: usize, all: usize) {
    let mut bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    bar.get_or_insert_with(|| Progress::new(all as u64, "mutants")).set(done as u64, all as u64);
    if done == all {
        *bar = None;
    }
}

fn run(matches: &ArgMatches) -> Result<bool, Box<dyn Error>> {
    let read = |path: &PathBuf| read_text(path, LIST_LIMIT);
    let mut earlier = Earlier::default();
    for path in matches.get_many::<PathBuf>("reuse").into_iter().flatten() {
        earlier.read(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let others = matches.get_many::<PathBuf>("also").into_iter().flatten();
    let others: Vec<Subject> = others
        .map(|path| Subject::read(path).map_err(|e| format!("{}: {e}", path.display())))
        .collect::<Result<_, _>>()?;
    let plan = SurveyOptions {
        reconvergence: (matches.get_one::<String>("reconvergence"))
            .and_then(|name| Reconvergence::named(name))
            .unwrap_or_default(),
        keep: matches.get_flag("keep"),
        time_limit: matches.get_one::<u32>("time-limit").map(|&s| Duration::from_secs(s.into())),
        instruction_limit: (matches.get_one::<u64>("instruction-limit").copied())
            .unwrap_or(SurveyOptions::default().instruction_limit),
        memory_limit: matches.get_one::<u64>("memory-limit").copied(),
        seeds: matches.get_one::<u64>("seeds").copied().unwrap_or_default(),
        threads: matches.get_one::<u16>("threads").map_or(0, |&n| n.into()),
        only: matches.get_many::<Kind>("only").map(|k| k.copied().collect()).unwrap_or_default(),
        lines: matches.get_many::<u32>("line").map(|l| l.copied().collect()).unwrap_or_default(),
        every: matches.get_one::<u32>("every").map_or(1, |&n| n as usize),
        progress: std::io::stderr().is_terminal().then_some(|_, done, all| show(done, all)),
        equivalents: match matches.get_one::<PathBuf>("equivalents") {
            Some(path) => Equivalents::parse(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))?,
            None => Equivalents::default(),
        },
    };
    let (as_json, as_markdown) = (matches.get_flag("json"), matches.get_flag("markdown"));
    let mut surveys = Vec::new();
    for path in matches.get_many::<PathBuf>("launch").into_iter().flatten() {
        let at = |e: &dyn Error| format!("{}: {e}", path.display());
        let subject = Subject::read(path).map_err(|e| at(&e))?;
        if matches.get_flag("list") {
            print!("{}", list(&subject.mutants(&plan.only)));
            continue;
        }
        let survey = subject.survey_with(&plan, &others, &earlier).map_err(|e| at(&e))?;
        if !as_json && !as_markdown {
            println!("{}", text(&survey));
        }
        let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        surveys.push((name, survey));
    }
    let holds = surveys.iter().all(|(_, s)| s.holds());
    if as_markdown && !matches.get_flag("list") {
        print!("{}", markdown(&surveys));
    }
    if as_json && !matches.get_flag("list") {
        let surveys: Vec<_> = surveys.into_iter().map(|(_, s)| s).collect();
        print!("{}", json(&surveys));
    }
    Ok(holds)
}
