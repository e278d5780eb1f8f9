//! Writes `evidence/coverage.jsonl`: every value of every knob, and what has been tried with it.
//!
//! ```text
//! cargo xtask coverage
//! cargo xtask coverage --knob schedule --stdout
//! cargo xtask coverage --arch sm_90a --seeds 8
//! cargo xtask coverage --quick
//! ```
//!
//! Needs ptxas. Exit status: 0 if every row holds, 1 if one does not, 2 for bad input.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

pub mod table;

use clap::{Arg, ArgAction, ArgMatches, Command};
use silumin::verify::toolchain::Ptxas;
use silumin_testkit::parallel;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::{CHIPS, Effort, Tools, kernels, read, row};

/// The flags.
#[must_use]
pub fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    Command::new("coverage")
        .about("Tries every value of every knob, and writes evidence/coverage.jsonl")
        .arg(
            Arg::new("knob")
                .long("knob")
                .value_name("NAME")
                .help("try only values of this knob, and write nothing"),
        )
        .arg(
            Arg::new("arch")
                .long("arch")
                .value_name("ARCH")
                .help("try values only on this chip, and keep the file's other rows"),
        )
        .arg(flag("quick", "try every tenth value with a few schedules and mutants, and write nothing"))
        .arg(
            Arg::new("seeds")
                .long("seeds")
                .value_name("N")
                .value_parser(clap::value_parser!(u64).range(1..=100_000))
                .help("random schedules for each value, and limit on the mutants of each launch [default: 64, and 16]"),
        )
        .arg(flag("stdout", "print the rows and write nothing"))
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let tools = match Ptxas::find().map_err(|e| e.to_string()).and_then(Tools::new) {
        Ok(tools) => tools,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let quick = matches.get_flag("quick");
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let effort = match matches.get_one::<u64>("seeds") {
        Some(seeds) => Effort { seeds: *seeds, mutants: effort.mutants.min(*seeds as usize) },
        None => effort,
    };
    let only = matches.get_one::<String>("knob");
    let chip = matches.get_one::<String>("arch");
    let wanted: Vec<_> = CHIPS
        .iter()
        .filter(|(arch, _)| chip.is_none_or(|chip| chip == arch.target()))
        .flat_map(|(arch, values)| values.iter().map(|value| (*arch, value)))
        .filter(|(_, (knob, ..))| only.is_none_or(|only| only == knob))
        .step_by(if quick { 10 } else { 1 })
        .collect();
    if wanted.is_empty() {
        eprintln!("error: --knob, --arch: no such value is listed");
        return ExitCode::from(2);
    }
    // Each set of kernels is tried once, for the first value that has it.
    let keys: Vec<_> = wanted.iter().map(|(arch, entry)| kernels(*arch, entry)).collect();
    let first_of = |index: usize| match &keys[index] {
        Ok(_) => keys.iter().position(|key| key == &keys[index]).unwrap_or(index),
        Err(_) => index,
    };
    let firsts: Vec<usize> = (0..wanted.len()).filter(|index| first_of(*index) == *index).collect();
    let done = AtomicUsize::new(0);
    let tried = parallel::map(&firsts, |_, index| {
        let (arch, entry) = wanted[*index];
        let row = row(arch, entry, &tools, effort);
        eprintln!("{:>3} of {}  {}", done.fetch_add(1, Ordering::Relaxed) + 1, firsts.len(), row.name());
        row
    });
    let of = |index: usize| firsts.iter().position(|first| *first == first_of(index)).unwrap_or(0);
    let rows: Vec<_> = (0..wanted.len()).map(|index| tried[of(index)].of_value(wanted[index].1)).collect();
    let path = silumin_testkit::root().join("evidence/coverage.jsonl");
    let print = quick || only.is_some() || matches.get_flag("stdout");
    // Rows of a chip that was not asked for stay as they are.
    let others = match print || chip.is_none() {
        true => Vec::new(),
        false => match read(&path) {
            Ok(before) => before,
            Err(error) => return silumin_cli::status(Err(error.into())),
        },
    };
    let mut lines = String::new();
    for (arch, _) in CHIPS {
        let own = rows.iter().filter(|row| row.chip == arch.target());
        let kept = others
            .iter()
            .filter(|row| row.chip == arch.target() && chip.is_some_and(|chip| chip != arch.target()));
        for row in own.chain(kept) {
            match serde_json::to_string(row) {
                Ok(line) => lines += &(line + "\n"),
                Err(error) => return silumin_cli::status(Err(error.into())),
            }
        }
    }
    if print {
        print!("{lines}");
    } else {
        if let Err(error) = std::fs::write(&path, &lines) {
            return silumin_cli::status(Err(format!("{}: {error}", path.display()).into()));
        }
        println!("{} rows written to {}", rows.len(), path.display());
    }
    let faults: Vec<String> = rows.iter().flat_map(|row| row.faults()).collect();
    for fault in &faults {
        eprintln!("{fault}\n");
    }
    ExitCode::from(u8::from(!faults.is_empty()))
}
