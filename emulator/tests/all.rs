//! The tests of the emulator, a module a file.
//!
//! One program: linking one for each file took longer than running them. `cargo test -p silumin-emulator-tests NAME::` runs a file's tests.

mod arithmetic;
mod collector;
mod common;
mod compilers;
mod control;
mod copies;
mod damages;
mod exits;
mod forms;
mod gemm;
mod grid_hangs;
mod grid_truth;
mod hardware;
mod im2col;
mod known_bad;
mod lanes;
mod launch_file;
mod lenient;
mod lenient_warps;
mod limits;
mod matrices;
mod matrix_truth;
mod order;
mod pair;
mod parsing;
mod races;
mod rare;
mod scalar_truth;
mod scopes;
mod spellings;
mod synchronisation;
mod targets;
mod warp_matrices;

/// The tests of a file that is not declared here would never run.
#[test]
fn every_file_is_declared() {
    let declared: Vec<&str> = include_str!("all.rs")
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let mut files = 0;
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap() {
        let path = entry.unwrap().path();
        let is_module =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("mod.rs").is_file();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if is_module && name != "all" {
            assert!(declared.contains(&name), "all.rs does not declare `mod {name};`");
            files += 1;
        }
    }
    assert_eq!(files, declared.len());
}
