//! e4m3 with f32 scale factors on sm_90a, of 128 elements of a row of A and of 128 x 128 of B: knobs that take turns assemble
//! without spills and serialisation, move what the plan says and compute right; so do batches and groups of rows. Other chips
//! and tiles that cut blocks are refused with a reason.

use silumin::codegen::gate::Gate;
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat};
use silumin::codegen::spec::Spec;
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::sample;

use OperandFormat::{E4m3Block128, E4m3Vector128};

/// Knobs, as pairs of name and value.
type Knobs<'a> = &'a [(&'a str, &'a str)];

/// One set of sums for two products, two sets, one product a K loop, side by side; by one, two and three warpgroups, and by
/// turns; every order of K; tokens on either side.
const KNOBS: [Knobs; 28] = [
    &[],
    &[("tile", "[128, 128, 128]")],
    &[("tile", "[128, 64, 128]"), ("store", "tma"), ("k_order", "reverse")],
    &[("tile", "[64, 128, 128]"), ("k_order", "odd_even")],
    &[("tile", "[192, 64, 128]")],
    &[("tile", "[128, 96, 128]")],
    &[("tile", "[64, 96, 128]"), ("schedule", "persistent"), ("sms", "2"), ("store", "tma")],
    &[("tile", "[128, 96, 128]"), ("strategy", "sequential"), ("multicast", "a(2)")],
    &[("tile", "[128, 160, 128]"), ("strategy", "two_pass")],
    &[("tile", "[256, 64, 128]"), ("multicast", "b(2)")],
    &[("tile", "[128, 64, 128]"), ("accumulators", "side_by_side"), ("multicast", "a(2)")],
    &[("consumers", "ping_pong"), ("schedule", "persistent"), ("sms", "2"), ("k_order", "serpentine")],
    &[("consumers", "ping_pong"), ("tile", "[64, 128, 128]"), ("store", "tma"), ("sms", "2")],
    &[("consumers", "ping_pong"), ("tile", "[128, 32, 128]"), ("schedule", "persistent"), ("sms", "2")],
    &[("strategy", "sequential"), ("tile", "[128, 128, 128]"), ("promotion", "every(128)")],
    &[("strategy", "sequential"), ("schedule", "stream_k"), ("sms", "3")],
    &[("strategy", "two_pass"), ("tile", "[128, 128, 128]")],
    &[("strategy", "second_fused"), ("schedule", "split_k(2)"), ("k_order", "odd_even")],
    &[("schedule", "stream_k"), ("multicast", "a(2)"), ("sms", "4"), ("k_order", "serpentine")],
    &[("schedule", "cluster_split_k(2)"), ("tile", "[128, 64, 128]"), ("pdl", "on")],
    &[("schedule", "persistent"), ("sms", "3"), ("pdl", "on"), ("raster", "along_n")],
    &[("swap_ab", "on")],
    &[("swap_ab", "on"), ("k_order", "reverse"), ("store", "direct")],
    &[("swap_ab", "on"), ("tile", "[24, 128, 128]"), ("multicast", "b(2)")],
    &[("swap_ab", "on"), ("tile", "[32, 256, 128]"), ("schedule", "split_k(3)")],
    &[("swap_ab", "on"), ("tile", "[32, 192, 128]"), ("schedule", "stream_k"), ("sms", "3")],
    &[("swap_ab", "on"), ("tile", "[16, 64, 128]"), ("strategy", "two_pass")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 128]"), ("strategy", "second_fused")],
];

fn spec(formats: Formats, knobs: Knobs, arch: Arch) -> Spec {
    let gate: Gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
    let mut spec = Spec::new(gate, &[arch]).unwrap();
    spec.formats = formats;
    for (knob, value) in knobs {
        spec.config.set(knob, value).unwrap();
    }
    spec
}

fn formats(c: OutputFormat) -> Formats {
    Formats::new(E4m3Vector128, E4m3Block128, c)
}

fn fault(index: usize, formats: Formats, shape: Shape, knobs: Knobs, ptxas: &Ptxas) -> Option<String> {
    let name = format!("{formats}, {shape}, {knobs:?}");
    let spec = spec(formats, knobs, Arch::Sm90a);
    let plan = match silumin_testkit::clean_plan(&spec, shape, Arch::Sm90a, ptxas) {
        Ok(plan) => plan,
        Err(fault) => return Some(format!("{name}: {fault}")),
    };
    let device = silumin_testkit::strict(Arch::Sm90a, silumin_testkit::by_turns(index));
    match DualGemm::new(spec).verify(&device, shape, Distribution::Full, index as u64, &[]) {
        // Sizes of groups are drawn, and the plan's figures are those of even ones.
        Ok(verification) if verification.check.pass && shape.groups.by_rows() => None,
        Ok(verification) if verification.check.pass => {
            silumin_testkit::miscounted(&verification, &plan).map(|text| format!("{name}: {text}"))
        }
        Ok(verification) => Some(format!("{name}: {}", verification.check)),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

#[test]
fn every_way_to_scale_sums_assembles_and_computes_right() {
    let ptxas = Ptxas::find().unwrap();
    let outputs = [OutputFormat::Bf16, OutputFormat::F32, OutputFormat::F16, OutputFormat::E4m3];
    let cases: Vec<(usize, Knobs)> = KNOBS.iter().copied().enumerate().collect();
    let cases = sample::of(cases, 2);
    let faults = silumin_testkit::faults(&cases, |_, &(_, (index, knobs))| {
        let swapped = knobs.contains(&("swap_ab", "on"));
        let mut formats = formats(outputs[index % 4]);
        formats.preactivations = index.is_multiple_of(5).then_some(PreactivationFormat::F32);
        // N ends inside a tile and inside a block, M inside a tile.
        fault(index, formats, Shape::new(if swapped { 30 } else { 203 }, 272, 896), knobs, &ptxas)
    });
    sample::assert_none(&faults, cases.len());
}

#[test]
fn batches_and_groups_have_scale_factors_of_their_own() {
    let ptxas = Ptxas::find().unwrap();
    let shapes = [
        Shape::new(21, 256, 384).batch(3),
        Shape::new(45, 128, 384).grouped(4),
        Shape::new(150, 256, 256).grouped(3),
    ];
    let knobs: [Knobs; 5] = [
        &[],
        &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "3")],
        &[("swap_ab", "off"), ("multicast", "a(2)")],
        &[("swap_ab", "off"), ("tile", "[64, 96, 128]")],
        &[("swap_ab", "on"), ("tile", "[8, 128, 128]"), ("multicast", "b(2)")],
    ];
    let cases: Vec<_> = shapes.iter().flat_map(|shape| knobs.map(|knobs| (*shape, knobs))).collect();
    let faults = silumin_testkit::faults(&cases, |index, (shape, knobs)| {
        fault(index, formats(OutputFormat::Bf16), *shape, knobs, &ptxas)
    });
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

/// What is left: the tensor core's error within 128 of K, and C's rounding.
#[test]
fn sums_are_as_exact_as_promoted_ones() {
    for (c, limit) in [(OutputFormat::F32, 2.5e-4), (OutputFormat::F16, 3.5e-4), (OutputFormat::Bf16, 1.8e-3)]
    {
        let spec = spec(formats(c), &[], Arch::Sm90a);
        let device = silumin_testkit::strict(Arch::Sm90a, silumin_testkit::by_turns(0));
        let verification = DualGemm::new(spec)
            .verify(&device, Shape::new(64, 64, 7168), Distribution::Benchmark, 3, &[])
            .unwrap();
        assert!(
            verification.check.pass && verification.check.rel_frobenius < limit,
            "{c}: {}",
            verification.check
        );
    }
}

/// Scale factors of many tokens would take more registers than there are: `auto` takes fewer columns.
#[test]
fn auto_makes_a_kernel_for_any_number_of_tokens_on_either_side() {
    for m in [1, 8, 33, 65, 72, 100, 128, 300, 4096] {
        for (strategy, swap_ab) in
            [("auto", "auto"), ("auto", "on"), ("auto", "off"), ("two_pass", "on"), ("sequential", "on")]
        {
            let knobs = [("strategy", strategy), ("swap_ab", swap_ab)];
            let (spec, shape) =
                (spec(formats(OutputFormat::Bf16), &knobs, Arch::Sm90a), Shape::new(m, 2048, 7168));
            if let Err(error) = spec.plan(shape, Arch::Sm90a) {
                panic!("{m} tokens, {knobs:?}: {error:?}");
            }
        }
    }
}

#[test]
fn what_cuts_blocks_is_refused_with_a_reason() {
    let shape = Shape::new(256, 512, 1024);
    for (arch, shape, knobs, says) in [
        (Arch::Sm100a, shape, &[][..], "requantise both operands to mxfp8"),
        (Arch::Sm120a, shape, &[], "requantise both operands to mxfp8"),
        (Arch::Sm90a, shape, &[("promotion", "off")], "every(128) or auto"),
        (Arch::Sm90a, shape, &[("promotion", "every(256)")], "every(128) or auto"),
        (
            Arch::Sm90a,
            shape,
            &[("tile", "[128, 64, 64]")],
            "K is 128, the elements that share a scale factor",
        ),
        (Arch::Sm90a, shape, &[("tile", "[128, 4294967264, 128]")], "N = 4294967264"),
        (Arch::Sm90a, shape, &[("tile", "[128, 4294967295, 128]")], "N = 4294967295"),
        (Arch::Sm90a, shape, &[("tile", "[128, 48, 128]")], "N divides 128 or is a multiple of 32"),
        (
            Arch::Sm90a,
            shape,
            &[("tile", "[96, 128, 128]"), ("swap_ab", "on")],
            "and scale factors of 64 x 96",
        ),
        (Arch::Sm90a, shape, &[("sf_preload", "all")], "has no scale factors"),
        (Arch::Sm90a, Shape { k: 1040, ..shape }, &[], "covers 128 elements"),
        (Arch::Sm90a, Shape { n: 520, ..shape }.batch(2), &[], "whole blocks of 128 rows"),
    ] {
        let error = spec(formats(OutputFormat::Bf16), knobs, arch).kernel(shape, arch).unwrap_err();
        assert!(error.to_string().contains(says), "{knobs:?}: {error}");
    }
}
