//! Builds the pack for the first hour on a GPU: kernels from the simplest to the rarest, with operands, the emulator's results and probes.
//!
//! ```text
//! silumin bring-up --out PACK                                     # here
//! scp -r PACK MACHINE: && ssh MACHINE python3 PACK/bring_up.py     # there: a driver and Python 3, nothing else
//! ```
//!
//! `book/src/bring-up.md` says what each step tests and how to read the report.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

use super::Size;
use super::pack::{Options, build};
use super::plant::Plant;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use silumin::Arch;
use std::path::PathBuf;
use std::process::ExitCode;

/// Builds the bring-up pack: kernels for the first hour on a GPU, with operands, expected results and probes.
#[derive(Parser)]
struct Flags {
    /// A target of the pack; may be given several times.
    #[arg(long, default_values = ["sm_100a", "sm_90a"])]
    arch: Vec<Arch>,
    /// The folder to write, which must be new or empty.
    #[arg(long)]
    out: PathBuf,
    /// Use small shapes only, to test the pack on the emulated driver.
    #[arg(long)]
    small: bool,
    /// Numbers of the steps to build, separated by commas; by default all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Damage one kernel, to test that the report names it: `5a` makes some of its results wrong, `5a:hang` makes it hang.
    #[arg(long)]
    plant: Option<Plant>,
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Flags::command().name("bring-up").arg(crate::print::json_flag())
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let flags = match Flags::from_arg_matches(matches) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    let options = Options {
        arches: flags.arch,
        size: if flags.small { Size::Small } else { Size::Full },
        only: flags.only,
        plant: flags.plant,
        out: flags.out,
    };
    let as_json = matches.get_flag("json");
    match build(&options) {
        Ok(summary) if as_json => {
            let document = serde_json::json!({
                "folder": options.out.display().to_string(), "kernels": summary.kernels, "probes": summary.probes, "bytes": summary.bytes,
            });
            crate::status(crate::print::document(&document).map(|()| true).map_err(Into::into))
        }
        Ok(summary) => {
            println!(
                "{} kernels and {} probes, {:.1} MB in {}",
                summary.kernels,
                summary.probes,
                summary.bytes as f64 / 1e6,
                options.out.display()
            );
            println!("on the machine with the GPU: python3 {}/bring_up.py", options.out.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
