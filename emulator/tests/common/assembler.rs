//! The assembler, to ask it what the emulator is asked.
//!
//! Without an assembler the tests that ask it fail.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The assembler: `SILUMIN_PTXAS`, else `.tools/bin/ptxas` of the repository, else the PATH's.
fn ptxas() -> OsString {
    if let Some(path) = std::env::var_os("SILUMIN_PTXAS") {
        return path;
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/ptxas");
    if own.exists() { own.into() } else { "ptxas".into() }
}

/// The assembler's error for a text; `None` if it accepts it.
///
/// # Panics
/// There is no assembler, or it breaks down.
pub fn assembler(target: &str, text: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.ptx");
    std::fs::write(&file, text).unwrap();
    let out = Command::new(ptxas())
        .args(["-arch", target, "-O0", "-o"])
        .args([folder.path().join("out").as_os_str(), file.as_os_str()])
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; scripts/setup.sh fetches it", ptxas().display()));
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.code().is_some(), "the assembler broke down at\n{text}\n{said}");
    (!out.status.success()).then_some(said)
}
