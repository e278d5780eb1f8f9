//! The tests across crates, a module a file.
//!
//! One program: linking one for each file took longer than running them. `cargo test --test all NAME::` runs a file's tests.

#[global_allocator]
static ALLOCATOR: silumin_testkit::allocations::Counting = silumin_testkit::allocations::Counting;

mod accuracy;
mod agreement;
mod auto;
mod benchmark;
mod blocks;
mod book;
mod bring_up;
mod bytes;
mod cache_command;
mod cache_damage;
mod cache_driver;
mod cache_lookup;
#[cfg(target_os = "linux")]
mod cache_processes;
mod coverage;
mod cuda;
mod dual_gemm;
mod emit;
mod emulate;
mod errors;
mod experts;
mod formats;
mod forms;
mod gate_inputs;
mod geforce;
mod grouped;
mod hopper;
mod hopper_fp8;
mod hopper_fp8_blocks;
mod hopper_rows;
mod ideas;
mod issue;
mod knobs;
mod ladder;
mod lattice;
mod launch;
mod mlp;
mod mutants;
mod ordered;
mod pictures;
mod preactivations;
mod prepare;
mod rows;
mod sass;
mod sass_audit;
mod targets;
mod tensors;
mod tiles;
mod time;
mod times;
mod tune_command;
mod tuning;
mod view;
mod weights;
mod winner;

/// The tests of a file that is not declared here would never run.
#[test]
fn every_file_is_declared() {
    let declared: Vec<&str> = include_str!("all.rs")
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let mut files = 0;
    for entry in std::fs::read_dir(silumin_testkit::root().join("tests")).unwrap() {
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
