//! Draws the pictures of the README and the book: `cargo xtask pictures` writes `book/src/pictures`.
//!
//! Maps and schemes come from plans of golden kernels, plots from `evidence/` and `tests/hardware`, and the timeline of `glance.svg`
//! from the simulator.

use crate::plots;
use clap::{ArgMatches, Command};
use silumin::Shape;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, TimeOptions, predict};
use silumin_cli::view::{overview, pictures, plan};
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

/// The command line, which takes no flags.
#[must_use]
pub fn command() -> Command {
    Command::new("pictures")
        .about("Draws the pictures of the README and the book from plans, evidence and the simulator")
}

/// Does it; the exit status.
#[must_use]
pub fn main(_: &ArgMatches) -> ExitCode {
    silumin_cli::status(run().map(|()| true))
}

fn run() -> Result<(), Box<dyn Error>> {
    let folder = root().join("book/src/pictures");
    let simulated = ("glance.svg".to_owned(), glance()?);
    for (name, svg) in of_the_book()?.into_iter().chain([simulated]) {
        let path = folder.join(name);
        std::fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The default kernel at a glance: a predicted timeline on a B200, and maps of its memory.
///
/// # Errors
///
/// The kernel has no predicted time.
pub fn glance() -> Result<String, Box<dyn Error>> {
    let file = SpecFile::new(Shape::new(256, 4096, 7168));
    let (spec, arch) = file.read()?;
    let plan = spec.plan(file.shape(), arch).map_err(|errors| silumin::codegen::error::explain(&errors))?;
    let kernel = spec.kernel(file.shape(), arch)?;
    let cta = [0; 3];
    // Issue costs by the table, which is the same on all machines.
    let timing = TimeOptions { timeline: Some(cta), ..TimeOptions::new(Chip::named("b200")?) };
    let predicted = predict(&kernel, None, &timing)?;
    Ok(overview(&plan, predicted.launches.first().ok_or("a kernel without launches")?, cta))
}

/// File names and texts of the pictures that follow from plans and evidence alone.
///
/// # Errors
///
/// A configuration that cannot be read or planned, a plan that cannot be drawn, or malformed evidence.
pub fn of_the_book() -> Result<Vec<(String, String)>, String> {
    let mut all = plots::all(&root())?;
    for (name, file) in BOOK {
        all.extend(pictures(name, &plan(&root().join(file))?));
    }
    Ok(all)
}
