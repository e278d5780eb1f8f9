//! Issue costs from the table beside those from machine code. See docs/decisions/0080-issue-costs-from-sass.md.

use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, KernelPrediction, TimeOptions, default_chip, predict};
use silumin_emulator::Module;
use silumin_emulator::time::{SassCosts, SassError, TimeError, issue_costs};
use std::fs;
use std::path::Path;

/// The golden kernel `tests/in/NAME.toml`, and its target.
fn golden(name: &str) -> (silumin::Kernel, &'static str) {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in").join(format!("{name}.toml"));
    let file: SpecFile = toml::from_str(&fs::read_to_string(input).unwrap()).unwrap();
    let (spec, arch) = file.read().unwrap();
    (spec.kernel(file.shape(), arch).unwrap(), arch.target())
}

/// Slots of all warps of all launches.
fn slots(of: &KernelPrediction) -> f64 {
    of.launches.iter().flat_map(|l| &l.warps).map(|w| w.slots).sum()
}

/// Slots by the table may differ by this part, and times by that one.
const SLOTS: f64 = 0.1;
const TIME: f64 = 0.03;

fn compare(name: &str) {
    let (kernel, target) = golden(name);
    let chip = Chip::named(default_chip(target)).unwrap();
    let table = TimeOptions::new(chip);
    let sass = TimeOptions { sass: Some(SassCosts::assemble(&kernel.ptx, target).unwrap()), ..table.clone() };
    let (table, sass) = (predict(&kernel, None, &table).unwrap(), predict(&kernel, None, &sass).unwrap());
    let (s, t) = (slots(&table) / slots(&sass) - 1.0, table.time() / sass.time() - 1.0);
    assert!(s.abs() <= SLOTS, "{name}: {:+.1} % of slots", 100.0 * s);
    assert!(t.abs() <= TIME, "{name}: {:+.1} % of the time", 100.0 * t);
}

#[test]
fn the_table_issues_what_ptxas_does_on_hopper() {
    compare("hopper_split_k");
}

#[test]
fn the_table_issues_what_ptxas_does_of_one_cta_on_blackwell() {
    compare("one_cta");
}

#[test]
fn the_table_issues_what_ptxas_does_of_pairs() {
    compare("default");
}

#[test]
fn machine_code_of_another_module_is_refused() {
    let (kernel, target) = golden("hopper_split_k");
    let (other, its) = golden("two_pass");
    let sass = SassCosts::assemble(&other.ptx, its).unwrap();
    let module = Module::parse("k.ptx", &kernel.ptx).unwrap();
    let chip = Chip::named(default_chip(target)).unwrap();
    let entry = module.entries().next().unwrap();
    let error = issue_costs(&module, entry, &chip, Some(&sass)).unwrap_err();
    assert!(matches!(error, TimeError::Sass(SassError::Entry { .. })), "{error}");
    assert!(error.to_string().contains(entry), "{error}");
}

#[test]
fn an_assembler_that_refuses_the_text_is_quoted() {
    let error = SassCosts::assemble(".version 8.0\n.target sm_90a\nnothing\n", "sm_90a").unwrap_err();
    assert!(matches!(&error, SassError::Refused { log, .. } if log.contains("line 3")), "{error}");
}
