//! Golden kernels: `tests/in/NAME.toml` must render to `tests/out/NAME.ptx` and `NAME.plan`, byte
//! for byte, so that a change to a template is reviewed as a diff of real PTX.
//!
//! `SILUMIN_BLESS=1 cargo test -p silumin-codegen --test golden` rewrites the outputs.

#![cfg(feature = "render")]

use silumin_codegen::spec::SpecFile;
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(name)
}

fn inputs() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder("in")).expect("tests/in");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("tests/in").path()).collect();
    files.sort();
    files
}

/// The kernel and the plan of one input, as text.
fn render(input: &Path) -> (String, String) {
    let text = fs::read_to_string(input).unwrap();
    let file: SpecFile = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
    let (spec, arch) = file.read().unwrap_or_else(|error| panic!("{}: {error}", input.display()));
    let kernel =
        spec.kernel(file.shape(), arch).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
    let plan = spec.plan(file.shape(), arch).unwrap();
    (kernel.ptx, plan.to_string())
}

#[test]
fn kernels_and_plans_are_as_reviewed() {
    let bless = std::env::var_os("SILUMIN_BLESS").is_some();
    let inputs = inputs();
    assert!(inputs.len() >= 8, "only {} golden kernels", inputs.len());
    let mut changed = Vec::new();
    for input in &inputs {
        let name = input.file_stem().unwrap().to_string_lossy().into_owned();
        let (ptx, plan) = render(input);
        for (extension, text) in [("ptx", ptx), ("plan", plan)] {
            let output = folder("out").join(format!("{name}.{extension}"));
            if bless {
                fs::write(&output, &text).unwrap();
            } else if fs::read_to_string(&output).ok().as_deref() != Some(&text) {
                changed.push(output);
            }
        }
    }
    assert!(
        changed.is_empty(),
        "these differ from what was reviewed: {changed:#?}\nlook at the change, then run SILUMIN_BLESS=1 cargo test -p silumin-codegen --test golden"
    );
}

#[test]
fn every_output_has_an_input() {
    let names: Vec<String> =
        inputs().iter().map(|input| input.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    for entry in fs::read_dir(folder("out")).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(names.contains(&stem), "{} has no tests/in/{stem}.toml", path.display());
    }
}

#[test]
fn rendering_is_deterministic() {
    for input in inputs() {
        assert_eq!(render(&input), render(&input), "{}", input.display());
    }
}
