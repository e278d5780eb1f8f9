//! `evidence/coverage.jsonl` is about the values that the tests know, all of them, and a sample of it holds; with `SILUMIN_FULL=1` all
//! of it, under a few schedules.

use silumin::Arch;
use silumin::codegen::config::KNOBS;
use silumin::verify::toolchain::Ptxas;
use xtask::coverage::table::{CHIPS, Effort, Entry, Tools, read, row};

#[test]
fn the_table_has_every_value_and_all_of_it_holds() {
    let rows = read(&silumin_testkit::root().join("evidence/coverage.jsonl")).unwrap();
    let values: Vec<_> =
        CHIPS.iter().flat_map(|(arch, values)| values.iter().map(move |value| (*arch, value))).collect();
    let again = "run `cargo xtask coverage`, which writes evidence/coverage.jsonl";
    assert_eq!(rows.len(), values.len(), "{again}");
    for (row, (arch, value)) in rows.iter().zip(values) {
        assert!(
            row.is_of(arch, value),
            "`{}` stands where {value:?} on {arch} should be: {again}",
            row.name()
        );
        assert!(row.holds(), "{}: {:?}", row.name(), row.fails);
        let mutants = row.mutants.unwrap();
        assert!(mutants.caught + mutants.explained <= mutants.all && mutants.all > 0, "{}", row.name());
    }
    for knob in &KNOBS {
        assert!(rows.iter().any(|row| row.knob == knob.name), "{}", knob.name);
    }
}

#[test]
fn a_sample_of_the_table_holds() {
    let tools = Tools::new(Ptxas::find().unwrap()).unwrap();
    let full = silumin_testkit::sample::full();
    // The commit chooses a third of these values. With QUICK's few mutants some other values miss the bar.
    // Every value of sm_90a runs on even and ragged shapes in `tests/hopper.rs`, where the emulator takes its time.
    let effort = Effort { mutants: if full { Effort::FULL } else { Effort::QUICK }.mutants, ..Effort::QUICK };
    let step = |arch| match arch {
        _ if full => 1,
        Arch::Sm90a => 47,
        _ => 23,
    };
    let of = |(arch, values): &(Arch, &'static [Entry])| {
        let (arch, step) = (*arch, step(*arch));
        values.iter().skip(step / 2).step_by(step).map(move |value| (arch, value))
    };
    let sample = silumin_testkit::sample::of(CHIPS.iter().flat_map(of).collect(), 3);
    let rows = silumin_testkit::parallel::map(&sample, |_, (_, (arch, value))| {
        row(*arch, value, &tools, effort).faults()
    });
    let faults: Vec<String> = rows.into_iter().flatten().collect();
    silumin_testkit::sample::assert_none(&faults, sample.len());
}
