//! The tests of the runtime, a module a file.
//!
//! One program: linking one for each file took longer than running them. `cargo test --test all NAME::` runs a file's tests.

#[cfg(feature = "safetensors")]
mod checkpoint;
mod dlpack;
mod emulated;
mod formats;
#[cfg(feature = "nvtx")]
mod nvtx;
mod prepare;
mod tensor;
mod weights;

use std::path::Path;

/// The tests of a file that is not declared here would never run.
#[test]
fn every_file_is_declared() {
    let declared: Vec<&str> = include_str!("all.rs")
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let mut files = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let is_module =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("mod.rs").is_file();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if is_module && name != "all" {
            assert!(declared.contains(&name), "tests/all.rs does not declare `mod {name};`");
            files += 1;
        }
    }
    assert_eq!(files, declared.len());
}
