//! Gated dual GEMMs from the command line: see `silumin help`, and `silumin help VERB`.

use silumin_cli::{VERBS, about, dispatch, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    let program = program("silumin", about(), &VERBS).version(env!("CARGO_PKG_VERSION"));
    dispatch(&program.get_matches(), &VERBS)
}
