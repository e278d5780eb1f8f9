//! Weights on a device are what kernels' own inputs are, however they came there.

use silumin_codegen::arch::Arch;
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_formats::Matrix;
use silumin_formats::quantize::{TensorScale, quantize};
use silumin_runtime::device::Device;
use silumin_runtime::gemm::{Args, DeviceOperands, DualGemm, LaunchError};
use silumin_runtime::prepare::ScaleBlocker;
use silumin_runtime::weights::{GateUp, Order, Weight};
use silumin_verify::inputs::{Distribution, DualGemmInputs};

fn stacked(first: &Matrix, second: &Matrix) -> Matrix {
    let both = |part: fn(&Matrix) -> &[u8]| [part(first), part(second)].concat();
    let rows = first.rows() + second.rows();
    Matrix::new(first.format(), rows, first.k(), both(Matrix::codes), both(Matrix::scales), 1.0).unwrap()
}

#[test]
fn stacked_and_separate_weights_are_the_inputs_of_kernels_in_every_format() {
    let device = Device::emulated(Arch::Sm100a);
    for format in OperandFormat::ALL {
        let a = match format {
            OperandFormat::E4m3Block128 => OperandFormat::E4m3Vector128,
            OperandFormat::Nvfp4Repacked | OperandFormat::Mxfp4Repacked => OperandFormat::Bf16,
            other => other,
        };
        // That of activations alone.
        if format == OperandFormat::E4m3Vector128 {
            continue;
        }
        let blocks = a == OperandFormat::E4m3Vector128;
        // Rows that share scale factors are not cut.
        for n in [1, 40, 128, 131, 256].into_iter().filter(|n| !blocks || n % 128 == 0) {
            let formats = Formats::new(a, format, OutputFormat::F16);
            let shape = Shape::new(3, n, if blocks { 256 } else { 160 });
            let inputs = DualGemmInputs::generate_for(shape, formats, Distribution::Full, 5).unwrap();
            let operands = DeviceOperands::upload(&device, &inputs).unwrap();
            let both = [stacked(&inputs.b1, &inputs.b2), stacked(&inputs.b2, &inputs.b1)];
            let [gate_first, up_first] = [&both[0], &both[1]].map(|both| Weight::of(both).unwrap());
            let pairs = [
                GateUp::new(Weight::of(&inputs.b1).unwrap(), Weight::of(&inputs.b2).unwrap()),
                GateUp::stacked(gate_first, Order::GateFirst),
                GateUp::stacked(up_first, Order::UpFirst),
            ];
            for pair in pairs {
                let there = pair.unwrap().upload(&device).unwrap();
                let bytes = |buffer: &silumin_runtime::device::Buffer| buffer.download().unwrap();
                assert_eq!(bytes(&there.b1), bytes(&operands.b1), "{format}, N = {n}");
                assert_eq!(bytes(&there.b2), bytes(operands.b2.as_ref().unwrap()), "{format}, N = {n}");
                assert_eq!(there.sfb1.as_ref().map(bytes), operands.sfb1.as_ref().map(bytes));
                assert_eq!(there.sfb2.as_ref().map(bytes), operands.sfb2.as_ref().map(bytes));
            }
        }
    }
}

#[test]
fn a_kernel_computes_the_same_of_either_and_of_scale_factors_blocked_on_the_device() {
    let device = Device::emulated(Arch::Sm100a);
    let gemm = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap());
    // Neither N nor the columns of scale factors, K / 16 = 10, are whole blocks.
    let shape = Shape::new(5, 72, 160);
    let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, 5).unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let (kernel, stream) = (gemm.load(&device, shape).unwrap(), device.stream());
    kernel.launch(&stream, &operands.args(&[])).unwrap();
    let expected = operands.c.download().unwrap();

    let pair = GateUp::new(Weight::of(&inputs.b1).unwrap(), Weight::of(&inputs.b2).unwrap()).unwrap();
    let there = pair.upload(&device).unwrap();
    let c = device.alloc(expected.len()).unwrap();
    let args = there.args(&operands.a, operands.sfa.as_ref(), &c);
    kernel.launch(&stream, &args).unwrap();
    assert_eq!(c.download().unwrap(), expected);

    let blocker = ScaleBlocker::load(&device).unwrap();
    let blocked = [pair.gate(), pair.up()].map(|weight| {
        let linear = device.upload(weight.scales()).unwrap();
        let to = device.alloc(weight.blocked_scales().unwrap().len()).unwrap();
        blocker.launch(&stream, &linear, [72, 10], &to).unwrap();
        to
    });
    let c = device.alloc(expected.len()).unwrap();
    kernel
        .launch(&stream, &Args { c: &c, sfb1: Some(&blocked[0]), sfb2: Some(&blocked[1]), ..args })
        .unwrap();
    assert_eq!(c.download().unwrap(), expected);
}

/// Weights quantised with `TensorScale::FromMax` have the largest codes there are, so C overflows f16 if the gate leaves
/// the tensors' scales out.
#[test]
fn scales_of_weight_tensors_cannot_be_forgotten_in_silence() {
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(3, 8, 64);
    let (m, n, k) = (3, 8, 64);
    let weight = |value: f32, scale| quantize(&vec![value; n * k], n, k, scale).unwrap();
    let upload = |scale| {
        let (gate, up) = (weight(0.75, scale), weight(0.375, scale));
        let pair = GateUp::new(Weight::of(&gate).unwrap(), Weight::of(&up).unwrap()).unwrap();
        pair.upload(&device).unwrap()
    };
    let load = |gate: &str| {
        let spec = Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap();
        DualGemm::new(spec).load(&device, shape).unwrap()
    };
    let x = quantize(&vec![0.375f32; m * k], m, k, TensorScale::One).unwrap();
    let a = device.upload(x.codes()).unwrap();
    let sfa = device.upload(&x.blocked_scales().unwrap()).unwrap();
    let c = device.alloc(m * n * 2).unwrap();
    let stream = device.stream();
    let result = || {
        let bytes = c.download().unwrap();
        let halves = bytes.as_chunks::<2>().0.iter();
        halves.map(|half| f64::from(half::f16::from_le_bytes(*half))).collect::<Vec<_>>()
    };
    // The products are 64 * 0.375 * 0.75 and 64 * 0.375 * 0.375. Values of 6 * 2^n are exact in NVFP4.
    let expected = 18.0 / (1.0 + (-18f64).exp()) * 9.0;
    let is_right = |values: &[f64]| values.iter().all(|value| (value / expected - 1.0).abs() < 1e-3);

    let weights = upload(TensorScale::FromMax);
    let args = weights.args(&a, Some(&sfa), &c);
    let plain = load("silu(A @ B1) * (A @ B2)");
    let error = plain.launch(&stream, &args).unwrap_err();
    assert!(matches!(error, LaunchError::UnappliedScales { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("silu(gate_scale * (A @ B1)) * (up_scale * (A @ B2))"), "{text}");

    // What the refusal saves from: the same launch, unchecked.
    plain.launch(&stream, &Args { weight_scales: None, ..args }).unwrap();
    assert!(result().iter().all(|value| value.is_infinite()), "{:?}", result());

    // The way out that the message names.
    let scalars = weights.scalars(x.tensor_scale());
    let scaled = load("silu(gate_scale * (A @ B1)) * (up_scale * (A @ B2))");
    scaled.launch(&stream, &args.scalars(&scalars)).unwrap();
    assert!(is_right(&result()), "{:?} and not {expected}", result());

    // Weights without a scale need none of it.
    let weights = upload(TensorScale::One);
    plain.launch(&stream, &weights.args(&a, Some(&sfa), &c)).unwrap();
    assert!(is_right(&result()), "{:?} and not {expected}", result());
}
