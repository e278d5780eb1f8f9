//! What `dual_gemm!` says without a shape and with one, against `validate`: brackets that make a
//! kernel for any shape are taken, and a fixed shape is taken exactly where `validate` takes it.

use proptest::prelude::*;
use proptest::test_runner::{Config as Settings, TestRunner};
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, KNOBS};
use silumin_codegen::dsl::parse;
use silumin_codegen::plan::validate;
use silumin_codegen::problem::{Problem, Shape};
use std::cell::Cell;
use syn::parse::Parser;

/// A value of every knob, or nothing, often such that there is a shape for them.
fn knobs() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let tile_n =
        prop_oneof![3 => prop::sample::select(vec![64u32, 128, 192]), 2 => (1u32..33).prop_map(|n| 8 * n)];
    let tile = (prop_oneof![20 => Just(128u32), 10 => Just(256u32), 1 => 0u32..300], tile_n, 1u32..10)
        .prop_map(|(m, n, k)| format!("[{m}, {n}, {}]", 64 * k));
    let stages = (0u32..18).prop_map(|n| n.to_string());
    let k_order = prop_oneof![
        Just("reverse".to_owned()),
        Just("ping_pong".to_owned()),
        (0u32..12).prop_map(|n| format!("split_tail({n})"))
    ];
    let sf_preload = prop_oneof![Just("all".to_owned()), (0u32..20).prop_map(|n| format!("ahead({n})"))];
    let one_of = |values: &'static [&'static str]| prop::sample::select(values).prop_map(str::to_owned);
    let columns = prop_oneof![4 => one_of(&["128", "256", "512"]), 1 => one_of(&["32", "64", "300"])];
    let values = (
        prop::option::of(tile),
        prop::option::weighted(0.4, one_of(&["1", "2"])),
        prop::option::of(stages),
        prop::option::of(k_order),
        prop::option::of(sf_preload),
        prop::option::weighted(0.3, one_of(&["separate", "side_by_side"])),
        prop::option::weighted(0.3, one_of(&["none", "collector"])),
        prop::option::weighted(0.3, columns),
        prop::option::weighted(0.2, one_of(&["none", "[b: evict_first]"])),
        prop::option::weighted(0.5, one_of(&["direct", "tma"])),
    );
    values.prop_map(|(tile, group, stages, order, preload, accumulators, reuse, columns, cache, store)| {
        let values = [tile, group, stages, order, preload, accumulators, reuse, columns, cache, store];
        KNOBS
            .iter()
            .map(|knob| knob.name)
            .zip(values)
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    })
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![1 => 1u32..20, 2 => (1u32..40).prop_map(|n| 32 * n), 1 => (1u32..200).prop_map(|n| 64 * n)]
}

fn taken(brackets: &str) -> bool {
    let text = format!("<{brackets}> silu(A @ B1) * (A @ B2)");
    parse.parse2(text.parse().expect("tokens")).is_ok()
}

#[test]
fn brackets_are_taken_where_validate_takes_them() {
    let (legal, illegal) = (Cell::new(0u32), Cell::new(0u32));
    let mut runner = TestRunner::new(Settings { cases: 6000, ..Settings::default() });
    let outcome = runner.run(&(knobs(), size(), size(), size()), |(knobs, m, n, k)| {
        let mut config = Config::default();
        for (name, value) in &knobs {
            config.set(name, value).expect("a value");
        }
        let is_legal = validate(&Problem::nvfp4(Shape::new(m, n, k)), &config, Arch::Sm100a).is_ok();
        let brackets: Vec<String> = knobs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let brackets = brackets.join(", ");
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
