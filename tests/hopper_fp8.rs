//! 8-bit operands on sm_90a, whose tensor cores add up their products with 14 bits: every pair of formats with every
//! format of C, under knobs that take turns, assembles without spills and serialisation and computes right; and sums
//! that leave the tensor core every so much of K lose no more than C's rounding.

use silumin::codegen::gate::Gate;
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat};
use silumin::codegen::spec::Spec;
use silumin::runtime::device::Device;
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::sample;

use OperandFormat::{Bf16, E4m3, E5m2};

/// Knobs, as pairs of name and value.
type Knobs<'a> = &'a [(&'a str, &'a str)];

/// One set for two products, two sets, one product a K loop, side by side; windows of one K tile and of several; by
/// one, two and three warpgroups, and by turns.
const KNOBS: [Knobs; 22] = [
    &[],
    &[("promotion", "off")],
    &[("tile", "[128, 128, 128]")],
    &[("tile", "[128, 96, 128]"), ("store", "tma")],
    &[("tile", "[128, 96, 128]"), ("promotion", "every(256)")],
    &[("tile", "[128, 64, 64]"), ("promotion", "every(192)"), ("schedule", "persistent"), ("sms", "2")],
    &[("tile", "[128, 96, 128]"), ("accumulators", "side_by_side")],
    &[("tile", "[128, 64, 128]"), ("accumulators", "side_by_side"), ("promotion", "every(256)")],
    &[("tile", "[128, 128, 128]"), ("accumulators", "side_by_side"), ("promotion", "off")],
    &[("tile", "[64, 96, 128]")],
    &[("tile", "[192, 56, 128]")],
    &[("tile", "[256, 48, 128]"), ("multicast", "b(2)")],
    &[("consumers", "ping_pong"), ("schedule", "persistent"), ("sms", "2")],
    &[("consumers", "ping_pong"), ("tile", "[64, 128, 128]"), ("store", "tma"), ("sms", "2")],
    &[("strategy", "sequential"), ("tile", "[128, 128, 128]"), ("promotion", "every(128)")],
    &[("strategy", "sequential"), ("tile", "[128, 96, 64]"), ("schedule", "stream_k"), ("sms", "3")],
    &[("strategy", "two_pass")],
    &[("strategy", "second_fused"), ("schedule", "split_k(2)"), ("promotion", "every(256)")],
    &[("schedule", "stream_k"), ("sms", "3"), ("multicast", "a(2)"), ("sms", "4")],
    &[("schedule", "split_k(3)"), ("tile", "[128, 64, 128]"), ("promotion", "every(256)")],
    &[("swap_ab", "on"), ("k_order", "reverse")],
    &[("swap_ab", "on"), ("tile", "[24, 128, 256]"), ("multicast", "b(2)"), ("promotion", "every(512)")],
];

fn spec(formats: Formats, gate: &str, knobs: Knobs) -> Spec {
    let gate: Gate = gate.parse().unwrap();
    let mut spec = Spec::new(gate, &[Arch::Sm90a]).unwrap();
    spec.formats = formats;
    for (knob, value) in knobs {
        spec.config.set(knob, value).unwrap();
    }
    spec
}

const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

fn hopper(index: usize) -> Device {
    silumin_testkit::strict(Arch::Sm90a, silumin_testkit::by_turns(index))
}

fn fault(index: usize, formats: Formats, shape: Shape, knobs: Knobs, ptxas: &Ptxas) -> Option<String> {
    let name = format!("{formats}, {shape}, {knobs:?}");
    let spec = spec(formats, SWIGLU, knobs);
    let plan = match silumin_testkit::clean_plan(&spec, shape, Arch::Sm90a, ptxas) {
        Ok(plan) => plan,
        Err(fault) => return Some(format!("{name}: {fault}")),
    };
    match DualGemm::new(spec).verify(&hopper(index), shape, Distribution::Full, index as u64, &[]) {
        Ok(verification) if verification.check.pass => {
            silumin_testkit::miscounted(&verification, &plan).map(|text| format!("{name}: {text}"))
        }
        Ok(verification) => Some(format!("{name}: {}", verification.check)),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

#[test]
fn every_way_to_sum_assembles_and_computes_right() {
    let ptxas = Ptxas::find().unwrap();
    let pairs = [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)];
    let outputs = [OutputFormat::Bf16, OutputFormat::F32, OutputFormat::F16, OutputFormat::E4m3];
    let mut cases: Vec<(Formats, Knobs)> = Vec::new();
    for (i, knobs) in KNOBS.iter().enumerate() {
        // Each knob with two of the sixteen, all of which come up.
        for j in [i, i + 5] {
            let (a, b) = pairs[j % 4];
            cases.push((Formats::new(a, b, outputs[j / 4 % 4]), knobs));
        }
    }
    let cases = sample::of(cases, 3);
    let faults = silumin_testkit::faults(&cases, |_, &(index, (formats, knobs))| {
        // N ends inside a tile, K inside a K tile and a window; rows of C are a multiple of 16 bytes.
        let m = if index.is_multiple_of(2) { 203 } else { 140 };
        let swapped = knobs.contains(&("swap_ab", "on"));
        fault(index, formats, Shape::new(if swapped { 30 } else { m }, 272, 928), knobs, &ptxas)
    });
    sample::assert_none(&faults, cases.len());
}

/// Scales a row of activations and a column of each weight, as FP8 checkpoints have them.
const SCALES: &str = "silu(s[m] * (x @ gate) * w1[n]) * (s[m] * (x @ up) * w2[n])";
/// Scales of whole tensors.
const SCALARS: &str = "silu(gate_scale * (x @ gate)) * (up_scale * (x @ up))";
/// A bias beside a scale a row, of one product each.
const TURNED: &str = "gelu(alpha * (x @ gate) + b[n]) * (s[m] * (x @ up))";

/// With tokens on either side, whole tiles and parts of some, through every strategy and store.
const SCALED: [Knobs; 9] = [
    &[],
    &[("store", "tma")],
    &[("swap_ab", "on")],
    &[("swap_ab", "on"), ("tile", "[24, 64, 128]"), ("schedule", "persistent"), ("sms", "2")],
    &[("swap_ab", "on"), ("schedule", "stream_k"), ("sms", "3")],
    &[("swap_ab", "on"), ("strategy", "two_pass")],
    &[("swap_ab", "on"), ("strategy", "second_fused")],
    &[("swap_ab", "on"), ("strategy", "sequential"), ("promotion", "off")],
    &[("consumers", "ping_pong"), ("schedule", "persistent"), ("sms", "2")],
];

#[test]
fn scales_of_tensors_rows_and_columns_reach_the_gate_on_either_side() {
    let ptxas = Ptxas::find().unwrap();
    let shapes = [
        Shape::new(30, 136, 384),
        Shape::new(17, 200, 384),
        Shape::new(16, 128, 384).batch(3),
        Shape::new(21, 136, 384).batch(2),
        Shape::new(45, 128, 384).grouped(4),
    ];
    let mut cases = Vec::new();
    for (i, knobs) in SCALED.iter().enumerate() {
        for (j, gate) in [SCALES, SCALARS, TURNED].into_iter().enumerate() {
            for (l, shape) in shapes.into_iter().enumerate() {
                let c = [OutputFormat::Bf16, OutputFormat::F32, OutputFormat::E4m3][(i + j + l) % 3];
                let mut formats = Formats::new(E4m3, E4m3, c);
                formats.preactivations = (i % 3 == 2).then_some(PreactivationFormat::F32);
                // Groups of rows go without some; rows of C may be too odd for TMA.
                if spec(formats, gate, knobs).plan(shape, Arch::Sm90a).is_ok() {
                    cases.push((formats, gate, shape, *knobs));
                }
            }
        }
    }
    assert_eq!(cases.len(), 126);
    // Prime to the numbers of gates, shapes and schedules, so that a part has all of them.
    let cases = sample::of(cases, 7);
    let faults = silumin_testkit::faults(&cases, |_, (index, (formats, gate, shape, knobs))| {
        let name = format!("{gate}, {formats}, {shape}, {knobs:?}");
        let spec = spec(*formats, gate, knobs);
        let kernel = match spec.kernel(*shape, Arch::Sm90a) {
            Ok(kernel) => kernel,
            Err(error) => return Some(format!("{name}: {error}")),
        };
        if let Some(fault) = silumin_testkit::unclean(&ptxas, &kernel) {
            return Some(format!("{name}: {fault}"));
        }
        let scalars: &[(&str, f32)] = match *gate {
            SCALARS => &[("gate_scale", 0.03), ("up_scale", 0.7)],
            TURNED => &[("alpha", 0.04)],
            _ => &[],
        };
        match DualGemm::new(spec).verify(&hopper(*index), *shape, Distribution::Full, *index as u64, scalars)
        {
            Ok(verification) if verification.check.pass => None,
            Ok(verification) => Some(format!("{name}: {}", verification.check)),
            Err(error) => Some(format!("{name}: {error}")),
        }
    });
    sample::assert_none(&faults, cases.len());
}

/// Relative Frobenius error against f64 of a kernel on random operands.
fn error(c: OutputFormat, promotion: &str, k: u32) -> f64 {
    // CTAs that share K would each have a part of the error.
    let knobs = [("promotion", promotion), ("tile", "[64, 64, 128]"), ("schedule", "one_tile")];
    let spec = spec(Formats::new(E4m3, E4m3, c), SWIGLU, &knobs);
    let verification = DualGemm::new(spec)
        .verify(&hopper(0), Shape::new(64, 64, k), Distribution::Benchmark, 3, &[])
        .unwrap();
    assert!(verification.check.pass, "{promotion}: {}", verification.check);
    verification.check.rel_frobenius
}

#[test]
fn promotion_leaves_the_error_of_cs_rounding() {
    // What is left: the tensor core's within 128 of K, and C's rounding, which bf16 shows alone.
    for (c, limit) in [(OutputFormat::F32, 2.2e-4), (OutputFormat::F16, 3e-4), (OutputFormat::Bf16, 1.7e-3)] {
        let [off, wide, usual] =
            ["off", "every(512)", "every(128)"].map(|promotion| error(c, promotion, 7168));
        assert!(off > 2.5e-3 && off > wide && wide > usual && usual < limit, "{c}");
    }
}

#[test]
fn what_promotion_cannot_be_is_refused_with_a_reason() {
    let shape = Shape::new(256, 512, 1024);
    let bf16 = Formats::new(Bf16, Bf16, OutputFormat::Bf16);
    let e4m3 = Formats::new(E4m3, E4m3, OutputFormat::Bf16);
    for (formats, arch, knobs, says) in [
        (bf16, Arch::Sm90a, &[("promotion", "every(128)")][..], "promotion = every(128): not on sm_90a"),
        (e4m3, Arch::Sm100a, &[("promotion", "off")], "promotion = off: not on sm_100a"),
        (e4m3, Arch::Sm90a, &[("promotion", "every(192)")], "192 is no multiple of 128"),
        (e4m3, Arch::Sm90a, &[("promotion", "every(0)")], "0 is no multiple of 128"),
        (
            e4m3,
            Arch::Sm90a,
            &[("promotion", "every(256)"), ("tile", "[128, 112, 128]")],
            "as many sums on their way there of 64 x 112 in 2 warpgroups take 224 registers",
        ),
        (
            e4m3,
            Arch::Sm90a,
            &[("tile", "[128, 136, 128]")],
            "and sums on their way there of 64 x 136 in 2 warpgroups take 204 registers",
        ),
    ] {
        let gate: Gate = SWIGLU.parse().unwrap();
        let mut spec = Spec::new(gate, &[arch]).unwrap();
        spec.formats = formats;
        for (knob, value) in knobs {
            spec.config.set(knob, value).unwrap();
        }
        let error = spec.kernel(shape, arch).unwrap_err();
        assert!(error.to_string().contains(says), "{knobs:?}: {error}");
    }
}
