//! Every pair of operand formats that an MMA multiplies, with every format of C, on ragged shapes and
//! under schedules that take turns: it assembles without spills, computes right, and orders what it does.

use silumin::codegen::gate::Gate;
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat};
use silumin::codegen::spec::Spec;
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::sample;

/// Knobs that take turns.
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

fn fault(
    index: usize,
    formats: Formats,
    shape: Shape,
    knobs: &[(&str, &str)],
    ptxas: &Ptxas,
) -> Option<String> {
    let name = format!("{formats}, {shape}, {knobs:?}");
    let spec = spec(formats, knobs);
    let plan = match silumin_testkit::clean_plan(&spec, shape, Arch::Sm100a, ptxas) {
        Ok(plan) => plan,
        Err(fault) => return Some(format!("{name}: {fault}")),
    };
    let device = silumin_testkit::strict(Arch::Sm100a, silumin_testkit::by_turns(index));
    let distribution = if index.is_multiple_of(3) { Distribution::Benchmark } else { Distribution::Full };
    match DualGemm::new(spec).verify(&device, shape, distribution, index as u64, &[]) {
        Ok(verification) if verification.check.pass => {
            silumin_testkit::miscounted(&verification, &plan).map(|text| format!("{name}: {text}"))
        }
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
                let formats = Formats::new(a, b, c);
                // Decoded weights and f32 scale factors are sm_90a's: `tests/hopper.rs`, `tests/hopper_fp8_blocks.rs`.
                let decoded = silumin::codegen::problem::MmaKind::Decoded;
                if !formats.scales_sums() && formats.check().is_ok_and(|kind| kind != decoded) {
                    cases.push((formats, KNOBS[(cases.len() + cases.len() / KNOBS.len()) % KNOBS.len()]));
                }
            }
        }
    }
    assert_eq!(cases.len(), 16 * 6);
    // Prime to the numbers of operands and outputs, so that a part has all of both.
    let cases = sample::of(cases, 5);
    let faults = silumin_testkit::faults(&cases, |_, (index, (formats, knobs))| {
        // Many tokens, or few; N ends inside a tile, K inside a K tile; rows of C are a multiple of 16 bytes.
        let m = if index.is_multiple_of(2) { 203 } else { 30 };
        let shape = Shape::new(m, 352, if formats.k_multiple() == 128 { 896 } else { 928 });
        fault(*index, *formats, shape, knobs, &ptxas)
    });
    sample::assert_none(&faults, cases.len());
}

#[test]
fn knobs_that_a_format_rules_out_are_refused_with_the_format_named() {
    let problem = |a, b, c| Formats::new(a, b, c);
    let bf16 = problem(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    let scaled = problem(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::Nvfp4);
    for (formats, knobs, says) in [
        (bf16, ("sf_preload", "all"), "bf16 x bf16 -> bf16 has no scale factors"),
        (bf16, ("sf_load", "bulk"), "bf16 x bf16 -> bf16 has no scale factors"),
        (bf16, ("tile", "[128, 72, 64]"), "multiple of 16"),
        (scaled, ("tile", "[128, 240, 256]"), "C in nvfp4 has scale factors: N = 240"),
    ] {
        let error = spec(formats, &[knobs]).kernel(Shape::new(256, 512, 512), Arch::Sm100a).unwrap_err();
        assert!(error.to_string().contains(says), "{knobs:?}: {error}");
    }
}

/// Where blocks of C lie across lanes, pass through shared memory, or are made by the gate's own kernel.
const SCALED_KNOBS: &[&[(&str, &str)]] = &[
    &[("swap_ab", "on")],
    &[("swap_ab", "on"), ("tile", "[8, 128, 256]")],
    &[("swap_ab", "on"), ("tile", "[16, 128, 256]"), ("store", "tma")],
    &[
        ("swap_ab", "on"),
        ("tile", "[64, 128, 256]"),
        ("store", "tma"),
        ("schedule", "persistent"),
        ("sms", "2"),
    ],
    &[("swap_ab", "on"), ("tile", "[192, 128, 256]"), ("schedule", "dynamic")],
    &[("swap_ab", "on"), ("tile", "[64, 256, 256]"), ("cta_group", "2"), ("store", "tma")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("schedule", "split_k(2)")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 128]"), ("schedule", "cluster_split_k(2)")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("multicast", "b(2)")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("multicast", "b(4)"), ("schedule", "dynamic")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("k_order", "split_tail(2)"), ("store", "tma")],
    &[("swap_ab", "on"), ("strategy", "second_fused"), ("cache", "[c: evict_first]")],
    &[("swap_ab", "on"), ("strategy", "sequential"), ("schedule", "stream_k"), ("sms", "3")],
    &[("strategy", "two_pass"), ("swap_ab", "on"), ("pdl", "on")],
    &[("strategy", "two_pass"), ("store", "tma"), ("cache", "[c: evict_last]")],
    &[("store", "tma"), ("tile", "[128, 64, 256]"), ("cta_group", "1")],
    &[("store", "tma"), ("tile", "[128, 192, 256]"), ("schedule", "persistent"), ("sms", "2")],
    &[("store", "tma"), ("cta_group", "2"), ("schedule", "dynamic"), ("cache", "[c: evict_first]")],
    &[("store", "tma"), ("strategy", "sequential"), ("tile", "[128, 128, 256]"), ("multicast", "a(2)")],
    &[("store", "tma"), ("k_order", "split_tail(1)"), ("tile", "[128, 128, 256]"), ("multicast", "b(2)")],
    &[("store", "tma"), ("tile", "[128, 128, 256]"), ("schedule", "split_k(2)")],
];

/// Tokens and features: whole tiles, tiles that both end inside of, and few tokens with one block of features, whose
/// scale factors are mostly pads.
const SCALED_SHAPES: [Shape; 4] =
    [Shape::new(256, 384, 512), Shape::new(203, 352, 416), Shape::new(5, 32, 288), Shape::new(130, 160, 544)];

#[test]
fn c_with_scale_factors_goes_with_every_side_store_and_strategy() {
    let ptxas = Ptxas::find().unwrap();
    let mut cases = Vec::new();
    for (turn, knobs) in SCALED_KNOBS.iter().enumerate() {
        for (place, shape) in SCALED_SHAPES.into_iter().enumerate() {
            for c in [OutputFormat::Nvfp4, OutputFormat::Mxfp8] {
                let operand = [OperandFormat::Nvfp4, OperandFormat::Bf16][(turn + place) % 2];
                let mut formats = Formats::new(operand, operand, c);
                formats.preactivations = [None, Some(PreactivationFormat::Bf16)][place % 2];
                let mut knobs = knobs.to_vec();
                if operand == OperandFormat::Bf16 {
                    // A K tile of the same bytes.
                    for (_, value) in knobs.iter_mut().filter(|(knob, _)| *knob == "tile") {
                        *value = match *value {
                            "[8, 128, 256]" => "[16, 128, 64]",
                            "[16, 128, 256]" => "[48, 128, 64]",
                            "[64, 128, 256]" | "[64, 128, 128]" => "[64, 128, 64]",
                            "[192, 128, 256]" => "[192, 128, 64]",
                            "[64, 256, 256]" => "[64, 256, 64]",
                            "[128, 64, 256]" => "[128, 96, 64]",
                            "[128, 192, 256]" => "[128, 160, 64]",
                            _ => "[128, 128, 64]",
                        };
                    }
                }
                // One tile takes any width with operands that have scale factors.
                let one_tile =
                    knobs.iter().any(|(_, value)| matches!(*value, "[8, 128, 256]" | "[16, 128, 256]"));
                if one_tile && shape.m > 8 || knobs.contains(&("k_order", "split_tail(2)")) && shape.m == 5 {
                    continue;
                }
                cases.push((formats, shape, knobs));
            }
        }
    }
    assert!(cases.len() > 120, "{} cases", cases.len());
    // An odd number, so that a part has both formats of C.
    let cases = sample::of(cases, 7);
    let faults = silumin_testkit::faults(&cases, |_, (index, (formats, shape, knobs))| {
        fault(*index, *formats, *shape, knobs, &ptxas)
    });
    sample::assert_none(&faults, cases.len());
}
