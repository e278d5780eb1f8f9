//! Runs tests in processes that find the emulated driver. A process looks for the driver's library once, at its
//! start, so a test starts itself again.

use crate::test_name;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Set in a process that finds the driver, to its role.
const ROLE: &str = "SILUMIN_TEST_DRIVER_ROLE";

/// The role of this process, if a test started it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the test `name` of `module` (`module_path!()`) in a process that finds the driver, with a role. Returns its
/// output if it passes.
pub fn run(module: &str, name: &str, role: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(library(), folder.path().join(file)).unwrap();
    }
    let Output { status, stdout, stderr } = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test_name(module, name), "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains("1 passed"), "{said}");
    said.into_owned()
}

/// Path of the emulated driver's library, which is built with the tests.
pub fn library() -> PathBuf {
    // The crate is named so that it is linked, and so built.
    let _ = silumin_emulated_driver::cuInit;
    let name =
        format!("{}silumin_emulated_driver{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = std::env::current_exe().unwrap().parent().unwrap().join(name);
    assert!(library.is_file(), "{} was not built", library.display());
    library
}
