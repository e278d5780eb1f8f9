//! Gated dual GEMMs from the command line: see `silumin help`, and `silumin help VERB`.

use silumin_cli::{VERBS, dispatch, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    let about = "Gated dual GEMMs: kernels, what they do, how long they take, and whether they are right";
    dispatch(&program("silumin", about, &VERBS).get_matches(), &VERBS)
}
