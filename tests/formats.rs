//! Every pair of operand formats that an MMA multiplies, with every format of C, on ragged shapes and
//! under schedules that take turns: it assembles without spills, computes right, and orders what it does.

mod common;

use silumin::codegen::gate::Gate;
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat};
use silumin::codegen::spec::Spec;
use silumin::runtime::device::{Device, EmulatorOptions, Schedule, Tracking};
use silumin::runtime::gemm::DualGemm;
use silumin::runtime::inputs::Distribution;
use silumin::runtime::toolchain::Ptxas;
use silumin::{Arch, Shape};

/// Knobs that take turns; the last are for a C without scale factors.
const KNOBS: [&[(&str, &str)]; 8] = [
    &[],
    &[("cta_group", "2"), ("schedule", "persistent"), ("sms", "2")],
    &[("strategy", "second_fused"), ("schedule", "stream_k"), ("sms", "3")],
    &[("strategy", "sequential"), ("schedule", "dynamic")],
    &[("k_order", "split_tail(2)"), ("multicast", "a(2)")],
    &[("swap_ab", "on"), ("tile", "auto"), ("store", "tma")],
    &[("strategy", "two_pass")],
    &[("store", "tma"), ("schedule", "split_k(2)")],
];

fn spec(formats: Formats, knobs: &[(&str, &str)]) -> Spec {
    let gate: Gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
    let mut spec = Spec::new(gate, &[Arch::Sm100a]).unwrap();
    spec.formats = formats;
    for (knob, value) in knobs {
        spec.config.set(knob, value).unwrap();
    }
    spec
}

fn fault(index: usize, formats: Formats, knobs: &[(&str, &str)], ptxas: &Ptxas) -> Option<String> {
    // Many tokens, or few; N ends inside a tile, K inside a K tile; rows of C are a multiple of 16 bytes.
    let m = if index.is_multiple_of(2) { 203 } else { 30 };
    let shape = Shape::new(m, 352, if formats.k_multiple() == 128 { 896 } else { 928 });
    let name = format!("{formats}, {shape}, {knobs:?}");
    let spec = spec(formats, knobs);
    let kernel = match spec.kernel(shape, Arch::Sm100a) {
        Ok(kernel) => kernel,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    match ptxas.assemble(&kernel.ptx, kernel.arch) {
        Err(error) => return Some(format!("{name}: {error}")),
        Ok(assembled) => {
            let clean = kernel.launches.iter().all(|launch| {
                let entry = assembled.entry(&launch.entry);
                entry.is_some_and(|e| e.spill_stores + e.spill_loads + e.stack_frame == 0)
            });
            if !clean || !assembled.warnings.is_empty() {
                return Some(format!("{name}: spills or warnings:\n{}", assembled.log));
            }
        }
    }
    let schedule = [
        Schedule::Early,
        Schedule::Late,
        Schedule::Random(index as u64),
        Schedule::Starve { warp: 4, seed: 1 },
    ];
    let options = EmulatorOptions {
        threads: 1,
        tracking: Tracking::Strict,
        schedule: schedule[index % 4],
        ..EmulatorOptions::default()
    };
    let device = Device::emulated_with(Arch::Sm100a, options);
    let distribution = if index.is_multiple_of(3) { Distribution::Benchmark } else { Distribution::Full };
    match DualGemm::new(spec).verify(&device, shape, distribution, index as u64, &[]) {
        Ok(verification) if verification.check.pass => None,
        Ok(verification) => Some(format!("{name}: {}", verification.check)),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

#[test]
fn every_pair_with_every_output_assembles_and_computes_right() {
    let ptxas = Ptxas::find().unwrap();
    let mut cases = Vec::new();
    for a in OperandFormat::ALL {
        for b in OperandFormat::ALL {
            for c in OutputFormat::ALL {
                let formats = Formats { a, b, c };
                if formats.check().is_ok() {
                    let turns = if c.scales().is_some() { 5 } else { KNOBS.len() };
                    cases.push((formats, KNOBS[cases.len() % turns]));
                }
            }
        }
    }
    assert_eq!(cases.len(), 16 * 6);
    let faults = common::faults(&cases, |index, (formats, knobs)| fault(index, *formats, knobs, &ptxas));
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn knobs_that_a_format_rules_out_are_refused_with_the_format_named() {
    let problem = |a, b, c| Formats { a, b, c };
    let bf16 = problem(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    let scaled = problem(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::Nvfp4);
    for (formats, knobs, says) in [
        (bf16, ("sf_preload", "all"), "bf16 x bf16 -> bf16 has no scale factors"),
        (bf16, ("sf_load", "bulk"), "bf16 x bf16 -> bf16 has no scale factors"),
        (bf16, ("tile", "[128, 72, 64]"), "multiple of 16"),
        (scaled, ("store", "tma"), "C in nvfp4 has scale factors"),
        (scaled, ("swap_ab", "on"), "C in nvfp4 has scale factors"),
        (scaled, ("strategy", "two_pass"), "C in nvfp4 has scale factors"),
    ] {
        let error = spec(formats, &[knobs]).kernel(Shape::new(256, 512, 512), Arch::Sm100a).unwrap_err();
        assert!(error.to_string().contains(says), "{knobs:?}: {error}");
    }
}
