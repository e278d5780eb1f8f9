//! What tests and programs of several crates share. It is never published, so that its functions may panic where a test would.
//!
//! * [`agreement`]: kernels as folders that `scripts/hardware/run.py` takes, with what the emulator makes of them.
//! * [`allocations`]: counts a thread's allocations.
//! * [`compiler`]: a compiler for tests of the cache.
//! * [`draws`], [`lattice`]: configurations drawn from all knobs, and what is wrong with one.
//! * [`driver`]: processes that find the emulated driver.
//! * [`judge`]: what the assembler and the emulator have against a kernel.
//! * [`launches`]: launch files of kernels of several launches.
//! * [`mutants`]: golden kernels that mistakes are put into.
//! * [`sample`]: the part of the cases that this commit judges.
//! * [`sixteen`]: activations in 16 bits as bytes and back.
//! * [`values`]: every value of every knob.

pub mod agreement;
pub mod allocations;
pub mod compiler;
pub mod draws;
pub mod driver;
pub mod judge;
pub mod lattice;
pub mod launches;
pub mod mutants;
pub mod sample;
pub mod sixteen;
pub mod values;

pub use judge::{by_turns, clean_plan, faults, miscounted, strict, unclean};
pub use silumin_cli::parallel;

use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Configurations of all golden kernels, sorted, so that an index is the same kernel on every machine.
#[must_use]
pub fn golden_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("tests/in")).expect("tests/in");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("tests/in").path()).collect();
    files.sort();
    files
}

/// How the test harness names a test of the module whose `module_path!()` this is.
///
/// ```
/// assert_eq!(silumin_testkit::test_name("all::launch", "streams_come_and_go"), "launch::streams_come_and_go");
/// ```
#[must_use]
pub fn test_name(module: &str, test: &str) -> String {
    module.split_once("::").map_or_else(|| test.to_owned(), |(_, rest)| format!("{rest}::{test}"))
}
