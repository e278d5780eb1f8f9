//! The program `silumin`, verb by verb: each is a module with its flags (`command`) and what it does with them (`main`).
//!
//! ```text
//! silumin emit --shape 512,4096,7168          a kernel, its plan, and a run on the emulated device
//! silumin explain --tile 128,256,512          why a configuration is legal or not, and what bounds it
//! silumin sweep --shape 16,4096,7168          configurations side by side
//! silumin emulate LAUNCH.toml                 PTX of any compiler on the emulated GPU
//! silumin mutate LAUNCH.toml                  which mistakes in a kernel the emulator catches
//! silumin tune --device cuda:0                the fastest knobs for shapes, kept in a file
//! silumin cache list                          compiled kernels that are kept
//! silumin bring-up --out PACK                 a folder for the first hour on a GPU
//! silumin view --arch sm_90a --out DIR        a page on a kernel: memory, time, waits, findings, SASS
//! silumin completions bash                    completions of verbs and flags
//! silumin man --out DIR                       manual pages
//! ```
//!
//! Exit status of all verbs: [`EXIT_STATUS`].
//!
//! Programs beside it take the parts that they share from here: [`print`](mod@print), [`parallel`], [`measure`], [`ladder`].

#[macro_use]
pub mod print;

pub mod bring_up;
pub mod cache;
pub mod emit;
pub mod emulate;
pub mod ladder;
pub mod measure;
pub mod mutate;
pub mod parallel;
pub mod progress;
pub mod shell;
pub mod tune;
pub mod view;

use clap::{ArgMatches, Command};
use std::error::Error;
use std::process::ExitCode;

/// One of the things that the program does.
pub struct Verb {
    /// Its name and flags.
    pub command: fn() -> Command,
    /// Does what the flags say.
    pub main: fn(&ArgMatches) -> ExitCode,
}

/// All verbs, in the order of the help.
pub const VERBS: [Verb; 11] = [
    Verb { command: emit::command, main: emit::main },
    Verb { command: emit::explain_command, main: emit::main },
    Verb { command: emit::sweep_command, main: emit::main },
    Verb { command: emulate::command, main: emulate::main },
    Verb { command: mutate::command, main: mutate::main },
    Verb { command: tune::command, main: tune::main },
    Verb { command: cache::command, main: cache::main },
    Verb { command: bring_up::command::command, main: bring_up::command::main },
    Verb { command: view::command, main: view::main },
    Verb { command: shell::completions_command, main: shell::completions },
    Verb { command: shell::man_command, main: shell::man },
];

/// What the exit status of every verb means.
pub const EXIT_STATUS: &str = "Exit status: 0 if all is well; 1 if something is wrong with a kernel (a finding, a wrong result, an illegal \
    configuration, a damaged cache); 2 for bad input, and then no file is written; 141 if nobody reads the output any more";

/// What the program `silumin` is, in a line.
#[must_use]
pub fn about() -> &'static str {
    "Gated dual GEMMs: kernels, what they do, how long they take, and whether they are right"
}

/// A program of several verbs.
#[must_use]
pub fn program(name: &'static str, about: &'static str, verbs: &[Verb]) -> Command {
    let verbs = verbs.iter().map(|verb| (verb.command)());
    Command::new(name)
        .about(about)
        .after_help(EXIT_STATUS)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(verbs)
}

/// Does what the matches of [`program`] say.
#[must_use]
pub fn dispatch(matches: &ArgMatches, verbs: &[Verb]) -> ExitCode {
    print::end_with_reader();
    let named = matches.subcommand().and_then(|(name, matches)| {
        let verb = verbs.iter().find(|verb| (verb.command)().get_name() == name)?;
        Some((verb, matches))
    });
    // The parser has refused other names.
    named.map_or(ExitCode::from(2), |(verb, matches)| (verb.main)(matches))
}

/// The exit status of a result: 0 where all is well, 1 where something is not, 2 with the reason for bad input.
#[must_use]
#[allow(clippy::print_stderr, reason = "errors of a program go there")]
pub fn status(result: Result<bool, Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(well) => ExitCode::from(u8::from(!well)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
