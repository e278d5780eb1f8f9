//! Every legal pair of operand formats and every output format, from drawn bytes to a verdict, with
//! decoders and sums that share nothing with the crate's own.

use half::{bf16, f16};
use microfloat::{f4e2m1fn, f8e4m3fn, f8e5m2, f8e8m0fnu};
use silumin_codegen::arch::Arch;
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_formats::Matrix;
use silumin_runtime::device::Device;
use silumin_runtime::gemm::{DeviceOperands, expected};
use silumin_verify::check::check_output;
use silumin_verify::inputs::{Distribution, DualGemmInputs};
use silumin_verify::output::Output;

fn legal() -> Vec<(OperandFormat, OperandFormat)> {
    let all = OperandFormat::ALL;
    let pairs = all.into_iter().flat_map(|a| all.into_iter().map(move |b| (a, b)));
    pairs.filter(|&(a, b)| Formats::new(a, b, OutputFormat::F16).check().is_ok()).collect()
}

/// The byte of a blocked scale factor, from the six-dimensional shape that libraries document.
fn blocked(row: usize, column: usize, columns: usize) -> usize {
    let strides = [16, 4, columns.div_ceil(4) * 512, 1, 512];
    let index = [row % 32, row % 128 / 32, row / 128, column % 4, column / 4];
    strides.iter().zip(index).map(|(stride, i)| stride * i).sum()
}

/// The code of element `index` of repacked elements, by the table of `OperandFormat::repacks`.
fn repacked_code(codes: &[u8], index: usize) -> u8 {
    let block = u64::from_le_bytes(codes[index / 16 * 8..][..8].try_into().unwrap());
    let (word, pair, upper) = (index % 8 / 4, index % 4, index % 16 / 8 == 1);
    let half = if upper != (pair == 3) { 16 } else { 0 };
    let places = [[15, 8, 7, 6], [12, 5, 4, 3], [9, 2, 1, 0], [13, 11, 10, 14]][pair];
    places.into_iter().fold(0, |code, place| code << 1 | (block >> (32 * word + half + place) & 1) as u8)
}

/// The operand that a kernel reads, decoded one element at a time by other crates.
fn decoded(matrix: &Matrix, block_shift: usize) -> Vec<Vec<f64>> {
    let (k, codes, scales) = (matrix.k(), matrix.codes(), matrix.blocked_scales().unwrap());
    let value = |row: usize, column: usize| {
        let index = row * k + column;
        let pair = || [codes[2 * index], codes[2 * index + 1]];
        use OperandFormat as F;
        let element = match matrix.format() {
            F::Nvfp4 | F::Mxfp4 => {
                f64::from(f4e2m1fn::from_bits(codes[index / 2] >> (4 * (index % 2)) & 0xF).to_f32())
            }
            F::Nvfp4Repacked | F::Mxfp4Repacked => {
                f64::from(f4e2m1fn::from_bits(repacked_code(codes, index)).to_f32())
            }
            F::Mxfp8 | F::E4m3 | F::E4m3Vector128 | F::E4m3Block128 => {
                f64::from(f8e4m3fn::from_bits(codes[index]).to_f32())
            }
            F::Mxfp8E5m2 | F::E5m2 => f64::from(f8e5m2::from_bits(codes[index]).to_f32()),
            F::Bf16 => bf16::from_le_bytes(pair()).to_f64(),
            _ => f16::from_le_bytes(pair()).to_f64(),
        };
        let scale =
            |block: usize| scales[blocked(row, (column / block + block_shift) % (k / block), k / block)];
        let factor = |rows: usize| {
            let place = 4 * (row / rows * (k / 128) + (column / 128 + block_shift) % (k / 128));
            f64::from(f32::from_le_bytes(scales[place..place + 4].try_into().unwrap()))
        };
        element
            * match matrix.format() {
                F::E4m3Vector128 => factor(1),
                F::E4m3Block128 => factor(128),
                F::Nvfp4 | F::Nvfp4Repacked => f64::from(f8e4m3fn::from_bits(scale(16)).to_f32()),
                F::Mxfp4 | F::Mxfp4Repacked | F::Mxfp8 | F::Mxfp8E5m2 => {
                    f64::from(f8e8m0fnu::from_bits(scale(32)).to_f32())
                }
                _ => 1.0,
            }
    };
    (0..matrix.rows()).map(|row| (0..k).map(|column| value(row, column)).collect()).collect()
}

/// silu(A @ B1) * (A @ B2), summed in f64 steps of 16 to an f32 and evaluated in f32.
fn kernel(inputs: &DualGemmInputs, block_shift: usize) -> Vec<f64> {
    let [a, b1, b2] = [&inputs.a, &inputs.b1, &inputs.b2].map(|matrix| decoded(matrix, block_shift));
    let dot = |x: &[f64], y: &[f64]| {
        let steps = x.chunks(16).zip(y.chunks(16));
        steps.fold(0f32, |sum, (x, y)| {
            (f64::from(sum) + x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>()) as f32
        })
    };
    let element = |row: &[f64], gate: &[f64], up: &[f64]| {
        let (gate, up) = (dot(row, gate), dot(row, up));
        f64::from(gate / (1.0 + (-gate).exp()) * up)
    };
    a.iter().flat_map(|row| b1.iter().zip(&b2).map(move |(gate, up)| element(row, gate, up))).collect()
}

fn spec() -> Spec {
    Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap()
}

/// A scale of C under which no block saturates, or 1.
fn tensor_scale(format: OutputFormat, values: &[f64]) -> f32 {
    let amax = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    if format.has_tensor_scale() { (amax / 2688.0) as f32 } else { 1.0 }
}

#[test]
fn references_are_those_of_a_naive_product_in_every_format() {
    let shape = Shape::new(35, 64, 256);
    for (a, b) in legal() {
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let formats = Formats::new(a, b, OutputFormat::F32);
            let inputs = DualGemmInputs::generate_for(shape, formats, distribution, 21).unwrap();
            let reference = expected(&spec(), &inputs, &[]).unwrap();
            let [left, first, second] = [&inputs.a, &inputs.b1, &inputs.b2].map(|m| decoded(m, 0));
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            for (index, &got) in reference.exact().iter().enumerate() {
                let (row, column) = (index / 64, index % 64);
                let (gate, up) = (dot(&left[row], &first[column]), dot(&left[row], &second[column]));
                let wanted = gate / (1.0 + (-gate).exp()) * up;
                let near = 1e-9 * wanted.abs() + 1e-9;
                assert!((got - wanted).abs() <= near, "{a} x {b}, {distribution}: {got}, not {wanted}");
            }
        }
    }
}

#[test]
fn right_kernels_pass_and_wrong_ones_fail_in_every_format() {
    let shape = Shape::new(35, 64, 512);
    for (a, b) in legal() {
        for c in OutputFormat::ALL {
            let inputs =
                DualGemmInputs::generate_for(shape, Formats::new(a, b, c), Distribution::Full, 5).unwrap();
            let reference = expected(&spec(), &inputs, &[]).unwrap();
            assert_eq!(reference.bounds().is_some(), c != OutputFormat::F16);
            let scale = tensor_scale(c, reference.exact());
            let judge = |values: &[f64]| {
                let output = Output::encode(35, 64, c, values, scale).unwrap();
                check_output(&output, &reference).unwrap()
            };
            let values = kernel(&inputs, 0);
            let right = judge(&values);
            assert!(right.pass, "{a} x {b} -> {c}: {right}");
            let swapped: Vec<f64> =
                values.chunks(64).flat_map(|row| row[32..].iter().chain(&row[..32]).copied()).collect();
            assert!(judge(&swapped).mismatches > 200, "{a} x {b} -> {c}");
            if a.spec().scales.is_some() {
                let stale = judge(&kernel(&inputs, 1));
                assert!(!stale.pass && stale.mismatches > 200, "{a} x {b} -> {c}: {stale}");
            }
        }
    }
}

#[test]
fn operands_of_every_format_go_to_a_device_and_back() {
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(130, 64, 128);
    for (a, b) in legal() {
        for c in OutputFormat::ALL {
            let formats = Formats::new(a, b, c);
            let inputs = DualGemmInputs::generate_for(shape, formats, Distribution::Benchmark, 2).unwrap();
            let operands = DeviceOperands::upload(&device, &inputs).unwrap();
            let args = operands.args(&[]);
            assert_eq!(args.a.download().unwrap(), inputs.a.codes());
            assert_eq!(args.sfa.is_some(), a.spec().scales.is_some());
            assert_eq!(args.sfb2.is_some(), b.spec().scales.is_some());
            assert_eq!(args.sfc.is_some(), c.scales().is_some());
            assert_eq!(args.c_scale, (c == OutputFormat::Nvfp4).then_some(1.0));
            if let Some(sfb1) = args.sfb1 {
                assert_eq!(sfb1.download().unwrap(), inputs.b1.blocked_scales().unwrap());
            }
            // What nobody has computed is no answer.
            let reference = expected(&spec(), &inputs, &[]).unwrap();
            let report = check_output(&operands.output().unwrap(), &reference).unwrap();
            assert!(!report.pass && report.mismatches > report.elements * 9 / 10, "{formats}: {report}");
        }
    }
}
