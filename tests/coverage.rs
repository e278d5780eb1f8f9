//! `evidence/coverage.md` is about the values that the tests know, all of them, and a sample of it holds; with `SILUMIN_FULL=1` all
//! of it, under a few schedules.

use silumin::Arch;
use silumin::codegen::config::KNOBS;
use silumin::runtime::toolchain::Ptxas;
use std::path::Path;
use xtask::coverage::table::{CHIPS, COLUMNS, Effort, Entry, Tools, heading, row, title};

#[test]
fn the_table_has_every_value_and_no_empty_cell() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/coverage.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let values: Vec<_> = CHIPS.iter().flat_map(|(_, values)| *values).collect();
    assert_eq!(rows.len(), values.len(), "run `cargo xtask coverage`, which writes evidence/coverage.md");
    for (arch, _) in CHIPS {
        assert!(text.contains(&title(arch)), "{arch}");
    }
    for (row, value) in rows.iter().zip(values) {
        let cells = row.strip_prefix(&heading(value)).unwrap_or_else(|| {
            panic!("evidence/coverage.md has `{row}` where {value:?} should be: run `cargo xtask coverage`")
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
    let full = std::env::var_os("SILUMIN_FULL").is_some();
    // Every value of sm_90a runs on even and ragged shapes in `tests/hopper.rs`, where the emulator takes its time.
    let step = |arch| match arch {
        _ if full => 1,
        Arch::Sm90a => 31,
        _ => 13,
    };
    let of = |(arch, values): &(Arch, &'static [Entry])| {
        let (arch, step) = (*arch, step(*arch));
        values.iter().skip(step / 2).step_by(step).map(move |value| (arch, value))
    };
    let sample: Vec<_> = CHIPS.iter().flat_map(of).collect();
    let rows = silumin_testkit::parallel::map(&sample, |_, (arch, value)| {
        row(*arch, value, &tools, Effort::QUICK).faults()
    });
    let faults: Vec<String> = rows.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
