//! See `cargo xtask help`.

use silumin_cli::{dispatch, program};
use std::process::ExitCode;
use xtask::VERBS;

fn main() -> ExitCode {
    let about = "Surveys, drawn configurations, and predicted against measured times";
    dispatch(&program("xtask", about, &VERBS).get_matches(), &VERBS)
}
