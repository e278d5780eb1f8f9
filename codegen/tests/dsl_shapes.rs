//! What `dual_gemm!` says without a shape and with one, against `validate`: brackets that make a
//! kernel for any shape are taken, and a fixed shape is taken exactly where `validate` takes it.

use proptest::prelude::*;
use proptest::test_runner::{Config as Settings, TestRunner};
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, KNOBS};
use silumin_codegen::dsl::parse;
use silumin_codegen::plan::validate;
use silumin_codegen::problem::{Formats, OperandFormat, Operation, OutputFormat, Problem, Shape};
use std::cell::Cell;
use syn::parse::{ParseStream, Parser};

/// A value of every knob, or nothing, often such that there is a shape for them.
fn knobs(arch: Arch) -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let tile_n =
        prop_oneof![3 => prop::sample::select(vec![64u32, 128, 192]), 2 => (1u32..33).prop_map(|n| 8 * n)];
    let step = if arch == Arch::Sm90a { 16 } else { 64 };
    let tile = (prop_oneof![20 => Just(128u32), 10 => Just(256u32), 1 => 0u32..300], tile_n, 1u32..10)
        .prop_map(move |(m, n, k)| format!("[{m}, {n}, {}]", step * k));
    // What a chip has none of is refused whatever stands beside it.
    let (of_tmem, of_warpgroups) = match arch {
        Arch::Sm90a => (0.02, 0.4),
        Arch::Sm120a => (0.02, 0.02),
        _ => (0.3, 0.02),
    };
    let stages = (0u32..18).prop_map(|n| n.to_string());
    let k_order = prop_oneof![
        Just("reverse".to_owned()),
        Just("serpentine".to_owned()),
        Just("odd_even".to_owned()),
        (0u32..12).prop_map(|n| format!("split_tail({n})"))
    ];
    let sf_preload = prop_oneof![Just("all".to_owned()), (0u32..20).prop_map(|n| format!("ahead({n})"))];
    let one_of = |values: &'static [&'static str]| prop::sample::select(values).prop_map(str::to_owned);
    let columns = prop_oneof![4 => one_of(&["128", "256", "512"]), 1 => one_of(&["32", "64", "300"])];
    let schedule = prop_oneof![
        2 => one_of(&["one_tile", "persistent", "dynamic", "stream_k"]),
        1 => (0u32..12).prop_map(|n| format!("split_k({n})"))
    ];
    let strategy = one_of(&["two_pass", "second_fused", "sequential", "interleaved"]);
    let named = |name: &'static str, share: f64, values: BoxedStrategy<String>| {
        prop::option::weighted(share, values).prop_map(move |value| Some((name, value?))).boxed()
    };
    let values = vec![
        named("strategy", 0.3, strategy.boxed()),
        named("tile", 0.5, tile.boxed()),
        named("cta_group", of_tmem, one_of(&["1", "2"]).boxed()),
        named("ctas_per_sm", 0.6 * of_tmem, one_of(&["1", "2"]).boxed()),
        named("swap_ab", 0.3, one_of(&["off", "on"]).boxed()),
        named(
            "multicast",
            if arch == Arch::Sm120a { 0.02 } else { 0.2 },
            one_of(&["a(2)", "b(4)", "a(3)"]).boxed(),
        ),
        named("consumers", of_warpgroups, one_of(&["cooperative", "ping_pong"]).boxed()),
        named("promotion", 0.01, one_of(&["off", "every(128)"]).boxed()),
        named("stages", 0.5, stages.boxed()),
        named("k_order", 0.5, k_order.boxed()),
        named("sf_preload", 1.6 * of_tmem, sf_preload.boxed()),
        named("sf_load", 0.6 * of_tmem, one_of(&["bulk", "tensor_map", "multicast"]).boxed()),
        named(
            "accumulators",
            if arch == Arch::Sm120a { 0.03 } else { 0.3 },
            one_of(&["separate", "side_by_side"]).boxed(),
        ),
        named("accumulator_buffers", 0.6 * of_tmem, one_of(&["1", "2", "3", "overlapped"]).boxed()),
        named("epilogue_warps", 0.6 * of_tmem, one_of(&["4", "8"]).boxed()),
        named("a_reuse", of_tmem, one_of(&["none", "collector"]).boxed()),
        named("tmem_columns", of_tmem, columns.boxed()),
        named("schedule", 0.4, schedule.boxed()),
        named("raster", 0.3, one_of(&["along_n", "swizzled(3)"]).boxed()),
        named("sms", 0.2, one_of(&["1", "7", "148"]).boxed()),
        named("cache", 0.2, one_of(&["none", "[b: evict_first]"]).boxed()),
        named(
            "store",
            0.5,
            one_of(&[
                "direct",
                "tma",
                "direct(16x256b)",
                "direct(16x64b, 16)",
                "direct(32x32b, 32)",
                "direct(16x128b, 9)",
            ])
            .boxed(),
        ),
        named("pdl", 0.2, one_of(&["on", "off"]).boxed()),
    ];
    assert_eq!(values.len(), KNOBS.len(), "a knob is not drawn");
    values.prop_map(|values| values.into_iter().flatten().collect())
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 1u32..20, 2 => (1u32..40).prop_map(|n| 32 * n), 1 => (1u32..200).prop_map(|n| 64 * n)]
}

fn taken(brackets: &str) -> bool {
    let text = format!("<{}> silu(A @ B1) * (A @ B2)", brackets.trim_end_matches([',', ' ']));
    (|input: ParseStream| parse(Operation::DualGemm, input)).parse2(text.parse().expect("tokens")).is_ok()
}

#[test]
fn brackets_are_taken_where_validate_takes_them() {
    // The chip is named: otherwise it would be enough that one of the default's takes them.
    compare(Arch::Sm100a, "arch = sm_100a, ", Problem::nvfp4, 6000);
}

#[test]
fn brackets_for_warpgroups_are_taken_where_validate_takes_them() {
    let formats = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    compare(Arch::Sm90a, "bf16 -> bf16, arch = sm_90a, ", |shape| Problem::dual(shape, formats), 4000);
}

#[test]
fn brackets_for_warps_are_taken_where_validate_takes_them() {
    compare(Arch::Sm120a, "arch = sm_120a, ", Problem::nvfp4, 5000);
}

/// The brackets of drawn knobs, behind what is `always` there.
fn compare(arch: Arch, always: &str, problem: impl Fn(Shape) -> Problem, cases: u32) {
    let (legal, illegal) = (Cell::new(0u32), Cell::new(0u32));
    let mut runner = TestRunner::new(Settings { cases, ..Settings::default() });
    let outcome = runner.run(&(knobs(arch), size(), size(), size()), |(knobs, m, n, k)| {
        let mut config = Config::default();
        for (name, value) in &knobs {
            config.set(name, value).expect("a value");
        }
        let is_legal = validate(&problem(Shape::new(m, n, k)), &config, arch).is_ok();
        let brackets: Vec<String> = knobs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let brackets = format!("{always}{}", brackets.join(", "));
        let fixed = format!("shape = [{m}, {n}, {k}], {brackets}");
        prop_assert_eq!(taken(&fixed), is_legal, "{}", fixed);
        if is_legal {
            prop_assert!(taken(&brackets), "legal for {m} x {n} x {k}, but refused without: {brackets}");
        }
        let count = if is_legal { &legal } else { &illegal };
        count.set(count.get() + 1);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(legal.get() > 500 && illegal.get() > 500, "{} legal, {} illegal", legal.get(), illegal.get());
}
