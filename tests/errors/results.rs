//! Operands that are drawn, references, and results that are compared.

use super::{Case, Page, case};
use half::f16;
use silumin::codegen::spec::SpecFile;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::verify::check::{Tolerance, check};
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::launch_file::{self, LaunchFileError};
use silumin::verify::output::{Output, OutputError};
use silumin::verify::reference::{Reference, dual_gemm};
use silumin::{Distribution, Formats, OperandFormat, OutputFormat, Shape};

pub fn show(page: &mut Page) {
    page.cases("Operands that are drawn", inputs());
    page.cases("References and comparisons", references());
    page.cases("Results", outputs());
    page.cases("Launch files with drawn operands", launch_files());
}

fn inputs() -> Vec<Case> {
    let drawn =
        |m, n, k| DualGemmInputs::generate(Shape::new(m, n, k), Distribution::Full, 0).map(drop).unwrap_err();
    let pair = Formats { a: OperandFormat::Nvfp4, b: OperandFormat::Bf16, ..Formats::default() };
    let pair = DualGemmInputs::generate_for(Shape::new(4, 64, 128), pair, Distribution::Full, 0);
    vec![
        case("A problem without rows", drawn(0, 64, 128)),
        case("A result that is larger than memory", drawn(u32::MAX, u32::MAX, 16)),
        case("K = 40 in NVFP4", drawn(4, 64, 40)),
        case("Formats that no MMA multiplies", pair.map(drop).unwrap_err()),
    ]
}

fn references() -> Vec<Case> {
    let of = |rows: usize, k: usize| {
        quantize_to(OperandFormat::Bf16, &vec![1.0f32; rows * k], rows, k, TensorScale::One).unwrap()
    };
    let product = |b1: [usize; 2], b2: [usize; 2]| {
        let [b1, b2] = [b1, b2].map(|[rows, k]| of(rows, k));
        dual_gemm(&of(2, 16), &b1, &b2, |x, y| x * y).map(drop).unwrap_err()
    };
    let reference = Reference::new(2, 3, vec![0.0; 6]).unwrap();
    let compared = |count: usize, rtol| {
        check(&vec![f16::ZERO; count], &reference, Tolerance { rtol, atol: 0.0 }).map(drop).unwrap_err()
    };
    vec![
        case("Weights with another K than A", product([2, 24], [2, 16])),
        case("Weights of two widths", product([2, 16], [4, 16])),
        case("5 numbers for a reference of 2 x 2", Reference::new(2, 2, vec![0.0; 5]).map(drop).unwrap_err()),
        case(
            "A reference that is larger than memory",
            Reference::new(usize::MAX, 2, Vec::new()).map(drop).unwrap_err(),
        ),
        case("A result without its last element", compared(5, 0.0)),
        case("A tolerance that is NaN", compared(6, f32::NAN)),
    ]
}

fn outputs() -> Vec<Case> {
    let new = |format, codes: usize, scales: usize, tensor_scale| -> OutputError {
        Output::new(2, 64, format, vec![0; codes], vec![0; scales], tensor_scale).map(drop).unwrap_err()
    };
    let ragged = Output::encode(1, 40, OutputFormat::Nvfp4, &[0.0; 40], 1.0).map(drop).unwrap_err();
    vec![
        case("C with a byte too much", new(OutputFormat::Nvfp4, 65, 512, 1.0)),
        case("C without its scale factors", new(OutputFormat::Mxfp8, 128, 0, 1.0)),
        case("N = 40 for C in NVFP4", ragged),
        case("A scale of C that is 0", new(OutputFormat::Nvfp4, 64, 512, 0.0)),
    ]
}

fn launch_files() -> Vec<Case> {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape::new(4, 64, 128);
    let kernel = |gate: &str| {
        let mut file = SpecFile::new(shape);
        gate.clone_into(&mut file.gate);
        let (spec, arch) = file.read().unwrap();
        spec.kernel(shape, arch).unwrap()
    };
    let (plain, scaled) = (kernel("silu(A @ B1) * (A @ B2)"), kernel("silu(alpha * (A @ B1)) * (A @ B2)"));
    let written = |inputs: &DualGemmInputs| -> LaunchFileError {
        launch_file::write(folder.path(), &plain, Some(inputs), &[]).map(drop).unwrap_err()
    };
    let other = DualGemmInputs::generate(Shape::new(8, 64, 128), Distribution::Full, 5).unwrap();
    let bf16 = Formats { a: OperandFormat::Bf16, b: OperandFormat::Bf16, ..Formats::default() };
    let bf16 = DualGemmInputs::generate_for(shape, bf16, Distribution::Full, 5).unwrap();
    vec![
        case(
            "No value for a scalar",
            launch_file::write(folder.path(), &scaled, None, &[]).map(drop).unwrap_err(),
        ),
        case("Operands of another problem", written(&other)),
        case("Operands in other formats", written(&bf16)),
    ]
}
