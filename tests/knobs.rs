//! Every value of every knob, alone, against the reference, on an even shape and on a ragged one. A commit judges a fifth.

use silumin::Arch;
use silumin::codegen::config::{KNOBS, Knob};
use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::{Device, EmulatorOptions};
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin_testkit::sample;
use silumin_testkit::values::{GEFORCE_VALUES, HOPPER_VALUES, SHAPES, VALUES};

#[test]
fn every_knob_and_every_row_of_its_values_is_tested() {
    for (arch, values) in
        [(Arch::Sm100a, VALUES), (Arch::Sm90a, HOPPER_VALUES), (Arch::Sm120a, GEFORCE_VALUES)]
    {
        for knob in &KNOBS {
            let named = values.iter().any(|(name, ..)| *name == knob.name);
            assert!(
                named || knob.draws(arch.tensor_core()).is_empty(),
                "{arch}: no value of {} is tested",
                knob.name
            );
            for value in knob.values {
                let alone = Knob { values: std::slice::from_ref(value), has_auto: false, ..*knob };
                // What few formats take has tests of those formats.
                let usual = !alone.draws(arch.tensor_core()).is_empty();
                let tested = values.iter().any(|(name, text, _)| *name == knob.name && value.covers(text));
                assert!(tested || !usual, "{arch}: {} = {} is not tested", knob.name, value.spelling);
            }
        }
    }
}

#[test]
fn every_value_computes_right() {
    let runs: Vec<_> = VALUES.iter().flat_map(|value| SHAPES.map(|shape| (value, shape))).collect();
    // Prime to the number of shapes, so that a part has all of them.
    let runs = sample::of(runs, 5);
    let faults = silumin_testkit::faults(&runs, |_, &(_, ((knob, value, beside), shape))| {
        let mut file = SpecFile::new(shape);
        for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
            file.config.set(knob, value).unwrap();
        }
        let (spec, _) = file.read().unwrap();
        let options = EmulatorOptions { threads: 1, ..EmulatorOptions::default() };
        let device = Device::emulated_with(Arch::Sm100a, options);
        match DualGemm::new(spec).verify(&device, shape, Distribution::Full, 7, &[]) {
            Ok(verification) if verification.check.pass => None,
            Ok(verification) => Some(format!("{knob} = {value}, {shape}: {}", verification.check)),
            Err(error) => Some(format!("{knob} = {value}, {shape}: {error}")),
        }
    });
    sample::assert_none(&faults, runs.len());
}
