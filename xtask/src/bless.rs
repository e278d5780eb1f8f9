//! Rewrites what tests compare with, after a change that was meant. Look at `git diff` before you commit it.
//!
//! ```text
//! cargo xtask bless
//! cargo xtask bless golden prepared
//! ```

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

use clap::{Arg, ArgMatches, Command};
use silumin_testkit::root;
use std::process::ExitCode;

/// A set of files: its name, the tests that compare with them, and the variable that has those rewrite them.
const SETS: [(&str, &[&str], &str); 7] = [
    ("golden", &["-p", "silumin-codegen", "--test", "golden"], "SILUMIN_BLESS"),
    ("knobs", &["-p", "silumin-codegen", "--test", "knob_pages"], "SILUMIN_BLESS"),
    ("prepared", &["--test", "all", "prepare::"], "SILUMIN_BLESS"),
    ("agreement", &["--test", "all", "agreement::"], "SILUMIN_BLESS"),
    ("messages", &["-p", "silumin-messages", "--test", "ui"], "TRYBUILD"),
    ("errors", &["--test", "all", "errors::"], "SILUMIN_BLESS"),
    ("pictures", &[], ""),
];

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("bless").about("Rewrites the files that tests compare with").arg(
        Arg::new("set")
            .value_name("SET")
            .num_args(0..)
            .value_parser(SETS.map(|(name, ..)| name))
            .help("golden kernels, the page of knobs, kernels that prepare operands, kernels that a GPU has run, messages of the macro, the page of errors, pictures of the book [default: all]"),
    )
}

/// Does what the flags say; the exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let wanted: Vec<&String> = matches.get_many("set").into_iter().flatten().collect();
    for (name, tests, variable) in SETS {
        if !wanted.is_empty() && !wanted.iter().any(|set| *set == name) {
            continue;
        }
        if tests.is_empty() {
            let done = crate::pictures::main(matches);
            if done != ExitCode::SUCCESS {
                return done;
            }
            continue;
        }
        println!("{name}: {variable} cargo test {}", tests.join(" "));
        let value = if variable == "TRYBUILD" { "overwrite" } else { "1" };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = std::process::Command::new(cargo)
            .current_dir(root())
            .arg("test")
            .args(tests)
            .env(variable, value)
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => {
                eprintln!("error: {name}: the tests ended with {status}");
                return ExitCode::from(1);
            }
            Err(error) => {
                eprintln!("error: cargo: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}
