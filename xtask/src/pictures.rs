//! Draws the pictures of the book from plans of golden kernels: `cargo xtask pictures` writes `book/src/pictures`.

use clap::{ArgMatches, Command};
use silumin_cli::view::{pictures, plan};
use silumin_testkit::root;
use std::error::Error;
use std::process::ExitCode;

/// Kernels that the book draws: the name of their pictures, and their golden configuration.
const BOOK: [(&str, &str); 4] = [
    ("blackwell_pair", "tests/in/default.toml"),
    ("blackwell_overlapped", "tests/in/overlapped.toml"),
    ("hopper", "tests/in/hopper_default.toml"),
    ("hopper_weights", "tests/in/hopper_weights.toml"),
];

/// The flags: none.
#[must_use]
pub fn command() -> Command {
    Command::new("pictures").about("Draws the pictures of the book from plans of golden kernels")
}

/// Does it; the exit status.
#[must_use]
pub fn main(_: &ArgMatches) -> ExitCode {
    silumin_cli::status(run().map(|()| true))
}

fn run() -> Result<(), Box<dyn Error>> {
    let folder = root().join("book/src/pictures");
    for (name, svg) in of_the_book()? {
        let path = folder.join(name);
        std::fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// File names and texts of the pictures that `book/src/pictures` holds.
///
/// # Errors
///
/// A configuration that cannot be read or planned, or a plan that cannot be drawn.
pub fn of_the_book() -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for (name, file) in BOOK {
        all.extend(pictures(name, &plan(&root().join(file))?)?);
    }
    Ok(all)
}
