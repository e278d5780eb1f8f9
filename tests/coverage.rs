//! `docs/coverage.md` is about the values that the tests know, all of them, and a sample of it holds.

mod common;
#[path = "../examples/shared/launches.rs"]
mod launches;
#[path = "../examples/coverage/table.rs"]
#[allow(dead_code)]
mod table;
#[path = "../examples/shared/values.rs"]
mod values;

use silumin::codegen::config::KNOBS;
use silumin::runtime::toolchain::Ptxas;
use std::path::Path;
use table::{CHIPS, COLUMNS, Effort, Tools, heading, row, title};

#[test]
fn the_table_has_every_value_and_no_empty_cell() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/coverage.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let values: Vec<_> = CHIPS.iter().flat_map(|(_, values)| *values).collect();
    assert_eq!(
        rows.len(),
        values.len(),
        "run `cargo run --release --example coverage`, which writes docs/coverage.md"
    );
    for (arch, _) in CHIPS {
        assert!(text.contains(&title(arch)), "{arch}");
    }
    for (row, value) in rows.iter().zip(values) {
        let cells = row.strip_prefix(&heading(value)).unwrap_or_else(|| {
            panic!("docs/coverage.md has `{row}` where {value:?} should be: run the example `coverage`")
        });
        let cells: Vec<&str> = cells.trim().trim_end_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), COLUMNS.len(), "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty() && !cell.contains("fails")), "{row}");
    }
    for knob in &KNOBS {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| `{}` |", knob.name))), "{}", knob.name);
    }
}

#[test]
fn a_sample_of_the_table_holds() {
    let tools = Tools::new(Ptxas::find().unwrap()).unwrap();
    let all = CHIPS.iter().flat_map(|(arch, values)| values.iter().map(move |value| (*arch, value)));
    let sample: Vec<_> = all.skip(1).step_by(11).collect();
    let rows =
        common::parallel::map(&sample, |_, (arch, value)| row(*arch, value, &tools, Effort::QUICK).faults());
    let faults: Vec<String> = rows.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
