//! Processes that find the emulated driver. A process looks for the driver's library once, at its start; so a test runs
//! itself again in one.

#[path = "library.rs"]
mod library;

use library::library;
use std::process::{Command, Output};

/// Set in the process that finds the driver, to what it is to do.
const ROLE: &str = "SILUMIN_TEST_DRIVER_ROLE";

/// What this process is to do, if a test started it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the test called `name` in a process of its own that finds the driver, in that role; what it said, if all went well.
pub fn run(name: &str, role: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(library(), folder.path().join(file)).unwrap();
    }
    let Output { status, stdout, stderr } = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains("1 passed"), "{said}");
    said.into_owned()
}
