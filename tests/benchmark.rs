//! The public NVFP4 dual-GEMM benchmark: its shapes, its inputs, its checker, with the default configuration,
//! with every strategy under every schedule, and, for the shapes it times, with more knobs turned.
//!
//! The test suite runs the small shapes; `SILUMIN_FULL=1 cargo test --release --test all benchmark:: -- --nocapture`
//! runs all fourteen at full size.

// `--nocapture` shows how far off each shape is.
#![allow(clippy::print_stdout)]

use silumin::codegen::problem::Problem;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::Device;
use silumin::runtime::gemm::{DeviceOperands, DualGemm, expected};
use silumin::verify::check::check_output;
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::{Arch, Shape};
use silumin_testkit::sample;

/// The benchmark's correctness shapes; the first is there twice.
const TESTS: [Shape; 10] = [
    Shape::new(1536, 512, 7168),
    Shape::new(1536, 512, 7168),
    Shape::new(256, 512, 256),
    Shape::new(3072, 1024, 1536),
    Shape::new(7168, 1024, 256),
    Shape::new(7168, 2304, 2048),
    Shape::new(4608, 384, 7168),
    Shape::new(7168, 384, 2304),
    Shape::new(512, 768, 7168),
    Shape::new(4096, 768, 512),
];

/// The shapes it times.
const TIMED: [Shape; 4] = [
    Shape::new(256, 4096, 7168),
    Shape::new(512, 4096, 7168),
    Shape::new(256, 3072, 4096),
    Shape::new(512, 3072, 7168),
];

/// The benchmark's seed.
const SEED: u64 = 1111;

/// Multiply-adds that the suite spends on one shape.
const SMALL: f64 = 4e9;

#[test]
fn the_benchmark_s_shapes_pass_its_checker() {
    let full = std::env::var_os("SILUMIN_FULL").is_some();
    let device = Device::emulated(Arch::Sm100a);
    let mut checked = 0;
    for shape in TESTS.into_iter().chain(TIMED) {
        if !full && Problem::nvfp4(shape).operations() / 2.0 > SMALL {
            continue;
        }
        let (spec, _) = SpecFile::new(shape).read().unwrap();
        let gemm = DualGemm::new(spec);
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let verification = gemm.verify(&device, shape, distribution, SEED, &[]).unwrap();
            println!("{shape}, {distribution:?}: {}", verification.check);
            assert!(verification.check.pass, "{shape}, {distribution:?}: {}", verification.check);
        }
        checked += 1;
    }
    assert_eq!(checked, if full { 14 } else { 3 });
}

const STRATEGIES: [&str; 4] = ["two_pass", "second_fused", "sequential", "interleaved"];
const SCHEDULES: [&str; 5] = ["one_tile", "persistent", "dynamic", "stream_k", "split_k(2)"];

/// Beside strategies and schedules, for the shapes that are timed.
const TURNED: [&[(&str, &str)]; 17] = [
    &[("cta_group", "1")],
    &[("cta_group", "1"), ("tile", "[128, 128, 256]")],
    &[("k_order", "split_tail(3)")],
    &[("k_order", "split_tail(3)"), ("store", "tma")],
    &[("k_order", "serpentine"), ("sf_preload", "ahead(2)")],
    &[("k_order", "reverse"), ("stages", "3")],
    &[("accumulators", "side_by_side"), ("tile", "[256, 128, 256]")],
    &[("tile", "[256, 192, 256]"), ("schedule", "persistent"), ("sms", "64")],
    &[("tile", "[256, 64, 512]")],
    &[("sf_preload", "all"), ("cta_group", "1"), ("tile", "[128, 64, 128]"), ("stages", "3")],
    &[("multicast", "a(2)")],
    &[("cta_group", "2"), ("multicast", "a(2)")],
    &[("cta_group", "2"), ("multicast", "b(2)")],
    &[("cta_group", "2"), ("multicast", "a(4)"), ("schedule", "dynamic"), ("sf_preload", "ahead(2)")],
    &[("multicast", "b(2)"), ("schedule", "persistent"), ("raster", "swizzled(2)")],
    &[("swap_ab", "on")],
    &[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("schedule", "stream_k")],
];

#[test]
fn every_strategy_and_schedule_passes_its_checker() {
    let full = std::env::var_os("SILUMIN_FULL").is_some();
    let device = Device::emulated(Arch::Sm100a);
    let mut checked = 0;
    for shape in TESTS.into_iter().skip(1).chain(TIMED) {
        if !full && Problem::nvfp4(shape).operations() / 2.0 > SMALL {
            continue;
        }
        let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, SEED).unwrap();
        let (spec, _) = SpecFile::new(shape).read().unwrap();
        let reference = expected(&spec, &inputs, &[]).unwrap();
        let mut turned: Vec<Vec<(&str, &str)>> = STRATEGIES
            .into_iter()
            .flat_map(|strategy| {
                SCHEDULES.map(|schedule| vec![("strategy", strategy), ("schedule", schedule)])
            })
            .collect();
        if TIMED.contains(&shape) {
            turned.extend(TURNED.map(<[_]>::to_vec));
        }
        // A part of the kernels of each shape. Seven is prime to the numbers of strategies and schedules.
        for (_, knobs) in sample::of(turned, 7) {
            // One K tile has no two parts.
            if shape.k <= 256 && knobs.contains(&("schedule", "split_k(2)")) {
                continue;
            }
            let mut spec = spec.clone();
            for (knob, value) in &knobs {
                spec.config.set(knob, value).unwrap();
            }
            let kernel = DualGemm::new(spec).load(&device, shape).unwrap();
            let operands = DeviceOperands::upload(&device, &inputs).unwrap();
            let launched = kernel.launch(&device.stream(), &operands.args(&[]));
            launched.unwrap_or_else(|error| panic!("{shape}, {knobs:?}: {error}; {}", sample::again()));
            let check = check_output(&operands.output().unwrap(), &reference).unwrap();
            assert!(check.pass, "{shape}, {knobs:?}: {check}; {}", sample::again());
            checked += 1;
        }
        println!("{shape}: {checked} kernels so far");
    }
    assert!(checked >= if full { 13 * 18 + 4 * TURNED.len() } else { 6 }, "{checked}");
}

/// The group benchmark's problems: rows of each group, N and K. Its groups may differ in N and K, which is a launch for each
/// N and K here; those of its cases that have one N and one K are taken as they are, of the others each group's own.
const GROUP_TESTS: [&[(&[u32], u32, u32)]; 10] = [
    &[(&[96], 128, 256), (&[128], 256, 512)],
    &[(&[256], 512, 256), (&[72], 384, 256)],
    &[(&[128], 128, 512), (&[128], 256, 256)],
    &[(&[80], 384, 256), (&[128], 256, 512), (&[256], 128, 256)],
    &[(&[64], 128, 512), (&[72], 384, 512), (&[96], 512, 256)],
    &[(&[64], 768, 256), (&[256], 128, 512), (&[128], 256, 512)],
    &[(&[128], 256, 768), (&[128], 512, 256), (&[64], 512, 768)],
    &[(&[128, 128], 128, 512), (&[128, 128], 128, 256)],
    &[(&[40], 512, 256), (&[56], 384, 256), (&[384], 256, 256), (&[512], 128, 256)],
    &[(&[512, 256], 256, 512), (&[384, 128], 256, 768)],
];

const GROUP_TIMED: [(&[u32], u32, u32); 4] = [
    (&[80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168),
    (&[40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048),
    (&[192, 320], 3072, 4096),
    (&[128, 384], 4096, 1536),
];

/// Ways to compute groups: what `auto` chooses, and one of each side of the MMA.
const GROUP_KNOBS: [&[(&str, &str)]; 5] = [
    &[],
    &[("cta_group", "1"), ("swap_ab", "off"), ("schedule", "persistent")],
    &[("cta_group", "2"), ("schedule", "persistent")],
    &[("swap_ab", "on"), ("schedule", "persistent")],
    &[("schedule", "dynamic"), ("swap_ab", "off")],
];

/// Runs a problem with the gate, of which the group benchmark has none, on its checker.
fn grouped_case(device: &Device, sizes: &[u32], n: u32, k: u32, knobs: &[(&str, &str)]) {
    let shape = Shape::new(sizes.iter().sum(), n, k).grouped(sizes.len() as u32);
    let mut file = SpecFile::new(shape);
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, _) = file.read().unwrap();
    let inputs =
        DualGemmInputs::generate_grouped(shape, sizes, spec.formats, Distribution::Benchmark, SEED).unwrap();
    let verification = DualGemm::new(spec).load(device, shape).unwrap().verify_on(&inputs, &[]);
    let check = verification.unwrap_or_else(|error| panic!("{shape}, {sizes:?}, {knobs:?}: {error}")).check;
    println!("{shape}, {sizes:?}, {knobs:?}: {check}");
    assert!(check.pass, "{shape}, {sizes:?}, {knobs:?}: {check}");
}

#[test]
fn the_group_benchmark_s_problems_pass_its_checker() {
    let device = Device::emulated(Arch::Sm100a);
    for (sizes, n, k) in GROUP_TESTS.into_iter().flatten().copied() {
        for knobs in GROUP_KNOBS {
            grouped_case(&device, sizes, n, k, knobs);
        }
    }
    // All rows of a case in groups of one N and K, as a mixture of experts has them.
    for case in GROUP_TESTS {
        let sizes: Vec<u32> = case.iter().flat_map(|(sizes, ..)| sizes.iter().copied()).collect();
        grouped_case(&device, &sizes, 256, 512, &[]);
    }
    if std::env::var_os("SILUMIN_FULL").is_some() {
        for (sizes, n, k) in GROUP_TIMED {
            for knobs in &GROUP_KNOBS[..4] {
                grouped_case(&device, sizes, n, k, knobs);
            }
        }
    }
}
