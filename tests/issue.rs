//! Issue costs from the table beside those from machine code. See book/src/decisions/0080-issue-costs-from-sass.md.

use serde_json::Value;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, IssueSource, KernelPrediction, TimeOptions, default_chip, predict};
use silumin_emulator::Module;
use silumin_emulator::command::{Limits, Request, Timing, execute};
use silumin_emulator::time::{SassCosts, SassError, TimeError, issue_costs};
use std::fs;

/// The golden kernel `tests/in/NAME.toml`, and its target.
fn golden(name: &str) -> (silumin::Kernel, &'static str) {
    let input = silumin_testkit::root().join("tests/in").join(format!("{name}.toml"));
    let file: SpecFile = toml::from_str(&fs::read_to_string(input).unwrap()).unwrap();
    let (spec, arch) = file.read().unwrap();
    (spec.kernel(file.shape(), arch).unwrap(), arch.target())
}

/// Slots of all warps of all launches.
fn slots(of: &KernelPrediction) -> f64 {
    of.launches.iter().flat_map(|l| &l.warps).map(|w| w.slots).sum()
}

/// Slots by the table may differ by this part, and times by that one.
const SLOTS: f64 = 0.11;
const TIME: f64 = 0.03;

fn compare(name: &str) {
    let (kernel, target) = golden(name);
    let chip = Chip::named(default_chip(target).unwrap()).unwrap();
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
    let chip = Chip::named(default_chip(target).unwrap()).unwrap();
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

/// What `emulate --time` prints of a pair of CuTe's, and its exit status.
fn emulated(issue: IssueSource, json: bool) -> String {
    let timing = Timing { issue, ..Timing::of("b200") };
    let launch = concat!(env!("CARGO_MANIFEST_DIR"), "/../emulator/tests/corpus/cute/pair.sm100.toml").into();
    let request = Request::Time { launch, timing, limits: Limits::default(), json };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(execute(&request, &mut out, &mut err), 0, "{}", String::from_utf8_lossy(&err));
    String::from_utf8(out).unwrap()
}

#[test]
fn a_time_is_by_machine_code_where_there_is_some_and_says_so() {
    let of = |issue| serde_json::from_str::<Value>(&emulated(issue, true)).unwrap();
    let time = |document: &Value| document["predicted"]["time"].as_f64().unwrap();
    let (auto, again) = (of(IssueSource::Auto), of(IssueSource::Auto));
    let (sass, table) = (of(IssueSource::Sass), of(IssueSource::Table));
    assert_eq!(auto, again);
    assert_eq!(auto, sass);
    assert_eq!(
        (auto["issue"]["from"].as_str(), table["issue"]["from"].as_str()),
        (Some("sass"), Some("table"))
    );
    assert!((time(&table) / time(&sass) - 1.0).abs() < 0.1 && time(&table) != time(&sass));
    assert!(emulated(IssueSource::Auto, false).contains("\nissue     by machine code that ptxas made\n"));
    assert!(emulated(IssueSource::Table, false).contains("\nissue     by a table by opcode\n"));
}

#[test]
fn without_machine_code_the_table_serves_and_the_reason_is_said() {
    let (kernel, target) = golden("hopper_split_k");
    let chip = Chip::named(default_chip(target).unwrap()).unwrap();
    let module = Module::parse("k.ptx", &kernel.ptx).unwrap();
    let found = IssueSource::Auto.find(&module, "nothing\n", &chip).unwrap();
    assert_eq!((found.name(), found.sass.is_none()), ("table", true));
    assert!(found.to_string().starts_with("a table by opcode: ") && found.to_string().contains("refused it"));
    // Machine code of another text is none, too.
    let (other, _) = golden("hopper_default");
    let found = IssueSource::Auto.find(&module, &other.ptx, &chip).unwrap();
    assert!(found.missing.unwrap().contains("another module"));
    assert!(IssueSource::Sass.find(&module, "nothing\n", &chip).is_err());
    let table = IssueSource::Table.find(&module, "nothing\n", &chip).unwrap();
    assert_eq!((table.sass.is_none(), table.missing), (true, None));
    assert!(IssueSource::NAMES.iter().all(|(name, source)| IssueSource::named(name) == Some(*source)));
}
