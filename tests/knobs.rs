//! Every value of every knob, alone, on an even shape and on a ragged one, against the reference.

mod common;

use silumin::codegen::config::KNOBS;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::{Device, EmulatorOptions};
use silumin::runtime::gemm::DualGemm;
use silumin::runtime::inputs::Distribution;
use silumin::{Arch, Shape};

/// A knob and a value of it.
type Value = (&'static str, &'static str);

/// A knob, its value, and what must stand beside it for it to be legal.
const VALUES: [(&str, &str, &[Value]); 90] = [
    ("strategy", "auto", &[]),
    ("strategy", "two_pass", &[]),
    ("strategy", "second_fused", &[]),
    ("strategy", "second_fused", &[("cta_group", "2"), ("schedule", "stream_k"), ("sms", "6")]),
    ("strategy", "sequential", &[]),
    ("strategy", "sequential", &[("sf_preload", "all"), ("schedule", "persistent"), ("sms", "2")]),
    ("strategy", "interleaved", &[]),
    ("accumulator_buffers", "auto", &[("schedule", "persistent"), ("sms", "2")]),
    ("accumulator_buffers", "1", &[("schedule", "persistent"), ("sms", "2")]),
    ("accumulator_buffers", "2", &[("schedule", "dynamic"), ("tile", "[128, 64, 256]")]),
    ("schedule", "auto", &[("sms", "2")]),
    ("schedule", "one_tile", &[]),
    ("schedule", "persistent", &[("sms", "3"), ("store", "tma")]),
    ("schedule", "persistent", &[("sms", "3"), ("k_order", "split_tail(2)"), ("sf_preload", "ahead(2)")]),
    ("schedule", "persistent", &[("sms", "4"), ("cta_group", "2"), ("sf_preload", "all")]),
    ("schedule", "dynamic", &[]),
    ("schedule", "dynamic", &[("cta_group", "2"), ("store", "tma")]),
    ("schedule", "stream_k", &[("sms", "5")]),
    ("schedule", "stream_k", &[("sms", "6"), ("cta_group", "2"), ("store", "tma"), ("k_order", "reverse")]),
    ("schedule", "split_k(2)", &[]),
    ("schedule", "split_k(3)", &[("cta_group", "2"), ("k_order", "ping_pong")]),
    ("raster", "along_m", &[("schedule", "persistent"), ("sms", "2")]),
    ("raster", "along_n", &[]),
    ("raster", "swizzled(2)", &[("tile", "[128, 64, 128]")]),
    ("sms", "auto", &[("schedule", "stream_k")]),
    ("sms", "1", &[("schedule", "persistent")]),
    ("swap_ab", "auto", &[]),
    ("swap_ab", "off", &[]),
    ("swap_ab", "on", &[("tile", "[64, 128, 256]")]),
    ("swap_ab", "on", &[("tile", "[128, 128, 256]"), ("store", "tma"), ("k_order", "split_tail(2)")]),
    ("swap_ab", "on", &[("strategy", "two_pass"), ("schedule", "split_k(2)")]),
    ("swap_ab", "on", &[("strategy", "second_fused"), ("sf_preload", "all")]),
    ("swap_ab", "on", &[("cta_group", "2"), ("schedule", "persistent"), ("sms", "4")]),
    ("swap_ab", "on", &[("tile", "[192, 128, 128]"), ("sf_preload", "ahead(2)"), ("schedule", "dynamic")]),
    ("multicast", "none", &[]),
    ("multicast", "a(2)", &[]),
    ("multicast", "a(4)", &[("schedule", "persistent"), ("sms", "4"), ("store", "tma")]),
    ("multicast", "a(8)", &[("tile", "[128, 64, 256]"), ("sf_preload", "all")]),
    ("multicast", "b(2)", &[("schedule", "dynamic")]),
    ("multicast", "b(2)", &[("schedule", "stream_k"), ("sms", "4")]),
    ("multicast", "b(4)", &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("schedule", "split_k(2)")]),
    ("multicast", "a(2)", &[("accumulators", "side_by_side"), ("sf_load", "tensor_map")]),
    ("sf_load", "auto", &[]),
    ("sf_load", "bulk", &[("sf_preload", "ahead(2)")]),
    ("sf_load", "tensor_map", &[]),
    ("sf_load", "tensor_map", &[("sf_preload", "all"), ("schedule", "persistent"), ("sms", "3")]),
    ("pdl", "off", &[]),
    ("pdl", "on", &[]),
    ("pdl", "on", &[("strategy", "two_pass")]),
    ("tile", "auto", &[]),
    ("tile", "[128, 64, 256]", &[]),
    ("tile", "[128, 128, 64]", &[]),
    ("tile", "[128, 192, 128]", &[]),
    ("tile", "[128, 128, 512]", &[]),
    ("cta_group", "1", &[]),
    ("cta_group", "2", &[]),
    ("cta_group", "2", &[("accumulators", "side_by_side"), ("tile", "[256, 128, 256]")]),
    ("cta_group", "2", &[("tile", "[256, 192, 128]"), ("k_order", "split_tail(2)")]),
    ("cta_group", "2", &[("sf_preload", "all"), ("store", "tma"), ("k_order", "ping_pong")]),
    ("cta_group", "2", &[("sf_preload", "ahead(2)"), ("tile", "[256, 64, 320]")]),
    ("stages", "auto", &[]),
    ("stages", "1", &[]),
    ("stages", "2", &[]),
    ("stages", "3", &[]),
    ("k_order", "forward", &[]),
    ("k_order", "reverse", &[]),
    ("k_order", "ping_pong", &[]),
    ("k_order", "split_tail(1)", &[]),
    ("k_order", "split_tail(2)", &[]),
    ("k_order", "split_tail(3)", &[]),
    ("sf_preload", "per_stage", &[]),
    ("sf_preload", "ahead(1)", &[]),
    ("sf_preload", "ahead(4)", &[]),
    ("sf_preload", "all", &[]),
    ("accumulators", "separate", &[]),
    ("accumulators", "side_by_side", &[]),
    ("a_reuse", "auto", &[]),
    ("a_reuse", "none", &[]),
    ("a_reuse", "collector", &[]),
    ("tmem_columns", "auto", &[("tile", "[128, 64, 128]")]),
    ("tmem_columns", "256", &[("tile", "[128, 64, 128]")]),
    ("tmem_columns", "512", &[("tile", "[128, 64, 128]")]),
    ("cache", "auto", &[]),
    ("cache", "none", &[]),
    ("cache", "[a: evict_normal, sf: evict_first]", &[]),
    ("cache", "[b: evict_last, c: evict_first]", &[]),
    ("cache", "[c: evict_last]", &[("store", "tma")]),
    ("store", "auto", &[]),
    ("store", "direct", &[]),
    ("store", "tma", &[]),
];

/// Whole tiles, and tiles that M, N and K all end inside of. N is a multiple of 8 for TMA stores.
const SHAPES: [Shape; 2] = [Shape::new(256, 384, 1024), Shape::new(203, 328, 928)];

#[test]
fn every_knob_is_tested() {
    for knob in &KNOBS {
        assert!(VALUES.iter().any(|(name, ..)| *name == knob.name), "no value of {} is tested", knob.name);
    }
}

#[test]
fn every_value_computes_right_on_an_even_and_a_ragged_shape() {
    let runs: Vec<_> = VALUES.iter().flat_map(|value| SHAPES.map(|shape| (value, shape))).collect();
    let faults = common::faults(&runs, |_, &((knob, value, beside), shape)| {
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
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
