//! Whole kernels on the emulated device: right results, wrong kernels found, nothing touched that
//! should not be.

use half::f16;
use silumin_codegen::arch::Arch;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::{Spec, SpecFile};
use silumin_runtime::device::{Arithmetic, Device, EmulatorOptions, Schedule};
use silumin_runtime::gemm::{DeviceOperands, DualGemm, expected};
use silumin_verify::check::{Tolerance, check};
use silumin_verify::inputs::{Distribution, DualGemmInputs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn gemm(gate: &str) -> DualGemm {
    DualGemm::new(Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn from_file(text: &str) -> (DualGemm, Shape) {
    let file: SpecFile = toml::from_str(text).unwrap();
    (DualGemm::new(file.read().unwrap().0), file.shape())
}

const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

#[test]
fn one_tile_is_right() {
    let device = Device::emulated(Arch::Sm100a);
    for distribution in [Distribution::Benchmark, Distribution::Full] {
        let shape = Shape::new(128, 64, 256);
        let done = gemm(SWIGLU).verify(&device, shape, distribution, 1111, &[]).unwrap();
        assert!(done.check.pass, "{distribution}: {}", done.check);
        assert!(done.check.rel_frobenius < 1e-3, "{}", done.check);
        let stats = done.launch.emulator.unwrap();
        let macs: u64 = stats.mma_macs.values().sum();
        assert_eq!(macs, 2 * 128 * 64 * 256);
        assert_eq!(stats.global_written + stats.tma_written, 128 * 64 * 2);
    }
}

#[test]
fn ragged_shapes_are_right() {
    let device = Device::emulated(Arch::Sm100a);
    for text in [
        "shape = [1, 40, 32]\n[config]\ntile = [128, 40, 64]",
        "shape = [130, 201, 544]\n[config]\ntile = [128, 64, 256]",
        "shape = [130, 200, 416]\n[config]\ntile = [128, 192, 128]\nk_order = \"split_tail(2)\"\nsf_preload = \"ahead(1)\"\nstore = \"tma\"",
    ] {
        let (gemm, shape) = from_file(text);
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let done = gemm.verify(&device, shape, distribution, 7, &[]).unwrap();
            assert!(done.check.pass, "{text}: {distribution}: {}", done.check);
        }
    }
}

#[test]
fn scalars_reach_the_gate() {
    let device = Device::emulated(Arch::Sm100a);
    let gemm = gemm("silu(alpha * (X @ Wg)) * (alpha * (X @ Wu))");
    let shape = Shape::new(64, 64, 128);
    let done = gemm.verify(&device, shape, Distribution::Benchmark, 3, &[("alpha", 0.25)]).unwrap();
    assert!(done.check.pass, "{}", done.check);
    // The same result is wrong for another alpha, so that the scalar is not lost on both sides.
    let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, 3).unwrap();
    let [quarter, half] =
        [0.25, 0.5].map(|alpha| expected(gemm.spec(), &inputs, &[("alpha", alpha)]).unwrap());
    assert_ne!(quarter.rounded(), half.rounded());
}

#[test]
fn every_schedule_gives_the_same_bits() {
    let shape = Shape::new(129, 72, 320);
    let inputs = DualGemmInputs::generate(shape, Distribution::Full, 5).unwrap();
    let run = |schedule, threads| {
        let options = EmulatorOptions { schedule, threads, ..EmulatorOptions::default() };
        let device = Device::emulated_with(Arch::Sm100a, options);
        let kernel = gemm(SWIGLU).load(&device, shape).unwrap();
        let operands = DeviceOperands::upload(&device, &inputs).unwrap();
        kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
        operands.c.download().unwrap()
    };
    let early = run(Schedule::Early, 1);
    let reference = expected(gemm(SWIGLU).spec(), &inputs, &[]).unwrap();
    let result: Vec<f16> = early.as_chunks::<2>().0.iter().map(|&pair| f16::from_le_bytes(pair)).collect();
    assert!(check(&result, &reference, Tolerance::default()).unwrap().pass);
    for (schedule, threads) in [(Schedule::Late, 1), (Schedule::Random(1), 2), (Schedule::Random(2), 1)] {
        assert_eq!(run(schedule, threads), early, "{schedule:?}");
    }
}

#[test]
fn plain_f32_sums_pass_too_and_progress_reaches_the_end() {
    let seen = Arc::new(AtomicU64::new(0));
    let last = seen.clone();
    let options = EmulatorOptions {
        arithmetic: Arithmetic::F32,
        progress: Some(Arc::new(move |done, all| {
            assert!(done <= all);
            last.fetch_max(done, Ordering::Relaxed);
        })),
        ..EmulatorOptions::default()
    };
    let device = Device::emulated_with(Arch::Sm100a, options);
    let kernel = gemm(SWIGLU).load(&device, Shape::new(256, 192, 256)).unwrap();
    let done = kernel.verify(Distribution::Full, 11, &[]).unwrap();
    assert!(done.check.pass, "{}", done.check);
    let [x, y, z] = kernel.kernel().launches[0].grid;
    assert_eq!(seen.load(Ordering::Relaxed), u64::from(x * y * z));
}

#[test]
fn an_input_that_nothing_wrote_is_found_and_named() {
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(128, 64, 256);
    let kernel = gemm(SWIGLU).load(&device, shape).unwrap();
    let inputs = DualGemmInputs::generate(shape, Distribution::Full, 5).unwrap();
    let mut operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let before = operands.c.download().unwrap();
    operands.sfb2 = operands.sfb2.map(|buffer| device.alloc(buffer.len()).unwrap());
    let error = kernel.launch(&device.stream(), &operands.args(&[])).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("UninitialisedGlobal") && text.contains("line "), "{text}");
    assert_eq!(operands.c.download().unwrap(), before, "C is left as it was");
}

#[test]
fn slices_of_one_allocation_serve_as_b1_b2_and_c() {
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(128, 64, 256);
    let kernel = gemm(SWIGLU).load(&device, shape).unwrap();
    let inputs = DualGemmInputs::generate(shape, Distribution::Full, 5).unwrap();
    let mut operands = DeviceOperands::upload(&device, &inputs).unwrap();
    kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
    let whole = operands.result().unwrap();
    let stacked = [inputs.b1.codes(), inputs.b2.codes()].concat();
    let half = stacked.len() / 2;
    let room = device.alloc(stacked.len() + operands.c.len() + 64).unwrap();
    room.slice(0, stacked.len()).unwrap().write(&stacked).unwrap();
    operands.b1 = room.slice(0, half).unwrap();
    operands.b2 = Some(room.slice(half, half).unwrap());
    operands.c = room.slice(stacked.len() + 32, operands.c.len()).unwrap();
    kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
    assert_eq!(operands.result().unwrap(), whole);
    assert!(room.slice(stacked.len(), 32).unwrap().download().is_err(), "around C nothing is written");
}
