//! Typed matrices on the emulated device: every element there and back, kernels from `f32` to `f32`, wrong input.

use silumin_codegen::arch::Arch;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::{FormatNames, SpecFile};
use silumin_formats::FormatError;
use silumin_formats::quantize::{TensorScale, quantize};
use silumin_runtime::device::{Device, DeviceError};
use silumin_runtime::gemm::{DualGemm, LoadedKernel};
use silumin_runtime::tensor::{E4m3, Matrix, Nvfp4, TensorError, bf16, f16};

fn values(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (step * i as f32).sin()).collect()
}

fn device() -> Device {
    Device::emulated(Arch::Sm100a)
}

fn kernel(device: &Device, [operands, c]: [&str; 2], gate: &str, shape: Shape) -> LoadedKernel {
    let [a, b, c] = [operands, operands, c].map(str::to_owned);
    let formats = FormatNames { a, b, c, ..FormatNames::default() };
    let file = SpecFile {
        arch: device.arch().target().to_owned(),
        gate: gate.to_owned(),
        formats,
        ..SpecFile::new(shape)
    };
    DualGemm::new(file.read().unwrap().0).load(device, shape).unwrap()
}

#[test]
fn every_element_comes_back() {
    let (device, given) = (device(), values(6 * 32, 0.7));
    let same = Matrix::<f32>::upload(&device, &given, 6, 32).unwrap();
    assert_eq!(same.to_f32().unwrap(), given);
    assert_eq!((same.rows(), same.columns(), same.buffer().len()), (6, 32, 4 * 6 * 32));

    let halves = Matrix::<f16>::upload(&device, &given, 6, 32).unwrap();
    let expected: Vec<f16> = given.iter().map(|value| f16::from_f32(*value)).collect();
    assert_eq!(halves.to_elements().unwrap(), expected);
    let brains = Matrix::<bf16>::upload(&device, &given, 6, 32).unwrap();
    let expected: Vec<f32> = given.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
    assert_eq!(brains.to_f32().unwrap(), expected);

    let eights = Matrix::<E4m3>::upload_scaled(&device, &given, 6, 32, TensorScale::One).unwrap();
    let expected: Vec<E4m3> = given.iter().map(|value| E4m3::from_f32(*value)).collect();
    assert_eq!((eights.to_elements().unwrap(), eights.tensor_scale()), (expected, 1.0));
    let scaled = Matrix::<E4m3>::upload(&device, &given, 6, 32).unwrap();
    assert!(scaled.tensor_scale() < 1.0 / 400.0, "{}", scaled.tensor_scale());
    let pairs = || given.iter().zip(scaled.to_f32().unwrap());
    assert!(pairs().all(|(value, got)| (value - got).abs() <= value.abs() / 16.0 + 1e-4));

    let packed = Matrix::<Nvfp4>::upload(&device, &given, 6, 32).unwrap();
    let host = quantize(&given, 6, 32, TensorScale::FromMax).unwrap();
    assert_eq!(packed.to_host().unwrap(), host);
    let expected: Vec<f32> = (0..given.len()).map(|i| host.value(i / 32, i % 32).unwrap() as f32).collect();
    assert_eq!(packed.to_f32().unwrap(), expected);
    assert_eq!(packed.scales().unwrap().len(), 512);
}

#[test]
fn elements_are_little_endian_and_writable() {
    let device = device();
    let matrix = Matrix::<bf16>::zeros(&device, 1, 2).unwrap();
    matrix.write(&[bf16::from_f32(1.0), bf16::from_f32(-2.0)]).unwrap();
    assert_eq!(matrix.buffer().download().unwrap(), [0x80, 0x3F, 0x00, 0xC0]);
    let view = Matrix::<bf16>::from_buffer(matrix.buffer().slice(2, 2).unwrap(), 1, 1).unwrap();
    assert_eq!(view.to_f32().unwrap(), [-2.0]);
    assert_eq!(matrix.clone().to_f32().unwrap(), [1.0, -2.0]);
    assert_eq!(format!("{matrix:?}"), "Matrix(1 x 2 of bf16 on emulated sm_100a)");
    assert_eq!(Matrix::<Nvfp4>::zeros(&device, 3, 32).unwrap().to_f32().unwrap(), [0.0; 96]);
    let blank = Matrix::<f32>::uninitialised(&device, 1, 2).unwrap();
    assert!(matches!(blank.to_elements(), Err(DeviceError::Uninitialised { .. })));
    assert!(Matrix::<Nvfp4>::uninitialised(&device, 1, 16).unwrap().to_f32().is_err());
}

#[test]
fn bits_that_are_no_numbers_pass_through_sixteen_bits() {
    let given = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30];
    let got = Matrix::<bf16>::upload(&device(), &given, 2, 2).unwrap().to_f32().unwrap();
    assert!(got[0] == f32::INFINITY && got[1] == f32::NEG_INFINITY && got[2].is_nan(), "{got:?}");
    let got = Matrix::<f16>::upload(&device(), &given, 2, 2).unwrap().to_f32().unwrap();
    assert_eq!(got[3], f32::INFINITY);
}

#[test]
fn wrong_input_is_refused() {
    let device = device();
    let error = Matrix::<f16>::upload(&device, &[1.0; 7], 2, 4).unwrap_err();
    assert_eq!(error.to_string(), "a matrix of 2 x 4 has 8 values, and 7 were given: pass 8");
    let empty = Matrix::<f32>::zeros(&device, 0, 4).unwrap_err();
    assert_eq!(empty, TensorError::Empty { rows: 0, columns: 4 });
    let large = Matrix::<f32>::uninitialised(&device, usize::MAX, 2).unwrap_err();
    assert!(matches!(large, TensorError::TooLarge { .. }));
    let ragged = Matrix::<Nvfp4>::upload(&device, &[1.0; 24], 1, 24).unwrap_err();
    assert!(matches!(ragged, TensorError::Format(FormatError::KNotBlocked { k: 24, .. })), "{ragged}");
    let infinite = Matrix::<E4m3>::upload(&device, &[1.0, f32::NAN], 1, 2).unwrap_err();
    assert!(matches!(infinite, TensorError::Format(FormatError::NotFinite { column: 1, .. })), "{infinite}");
    let buffer = device.upload(&[0; 10]).unwrap();
    assert!(matches!(
        Matrix::<f32>::from_buffer(buffer.clone(), 1, 3),
        Err(TensorError::Length { expected: 12, given: 10, .. })
    ));
    let (codes, scales) = (device.upload(&[0; 8]).unwrap(), device.upload(&[0; 512]).unwrap());
    let parts = |codes: &_, scales: &_, scale| {
        Matrix::<Nvfp4>::from_buffers(Clone::clone(codes), Clone::clone(scales), scale, 1, 16)
    };
    assert!(parts(&codes, &scales, 0.5).is_ok());
    assert!(matches!(parts(&codes, &buffer, 0.5), Err(TensorError::Length { expected: 512, .. })));
    assert!(matches!(parts(&codes, &scales, f32::NAN), Err(TensorError::Format(_))));
    let foreign = Device::emulated(Arch::Sm100a).upload(&[0; 512]).unwrap();
    assert!(matches!(parts(&codes, &foreign, 1.0), Err(TensorError::TwoDevices { .. })));
    let host = silumin_formats::quantize::quantize_to(
        silumin_codegen::problem::OperandFormat::Mxfp4,
        &[1.0f32; 32],
        1,
        32,
        TensorScale::One,
    );
    assert!(matches!(
        Matrix::<Nvfp4>::from_host(&device, &host.unwrap()),
        Err(TensorError::OtherFormat { found: "mxfp4", expected: "nvfp4" })
    ));
}

#[test]
fn a_kernel_takes_matrices() {
    let (device, (m, n, k)) = (device(), (3, 8, 64));
    let swiglu = kernel(&device, ["bf16", "f32"], "silu(A @ B1) * (A @ B2)", Shape::new(m, n, k));
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let a = Matrix::<bf16>::upload(&device, &vec![0.5; m * k], m, k).unwrap();
    let b = Matrix::<bf16>::upload(&device, &vec![0.25; n * k], n, k).unwrap();
    let c = Matrix::<f32>::uninitialised(&device, m, n).unwrap();
    swiglu.launch(&device.stream(), &swiglu.args(&a, &b, &b, &c).unwrap()).unwrap();
    let expected = 8.0 / (1.0 + (-8.0f32).exp()) * 8.0;
    assert!(c.to_f32().unwrap().iter().all(|value| (value - expected).abs() < 1e-3));

    // Fewer rows of A; C keeps the kernel's.
    let one = Matrix::<bf16>::upload(&device, &vec![0.5; k], 1, k).unwrap();
    let args = swiglu.args(&one, &b, &b, &c).unwrap();
    assert_eq!(args.rows, Some(1));
    swiglu.launch(&device.stream(), &args).unwrap();

    let error = swiglu.args(&a, &a, &b, &c).unwrap_err().to_string();
    assert!(
        error.starts_with("`b1` is 3 x 64, and in the problem") && error.contains("it is 8 x 64"),
        "{error}"
    );
    let narrow = Matrix::<bf16>::zeros(&device, m, k / 2).unwrap();
    assert!(matches!(swiglu.args(&narrow, &b, &b, &c), Err(TensorError::OperandShape { .. })));
    let halves = Matrix::<f16>::zeros(&device, m, k).unwrap();
    let error = swiglu.args(&halves, &b, &b, &c).unwrap_err().to_string();
    assert!(error.starts_with("`a` is a matrix of f16, and in the problem"), "{error}");
    let error = swiglu.args(&a, &b, &b, &Matrix::<f16>::zeros(&device, m, n).unwrap()).unwrap_err();
    assert!(matches!(error, TensorError::OperandFormat { found: "f16", expected: "f32", .. }));
    let error = swiglu.gemm_args(&a, &b, &c).unwrap_err().to_string();
    assert!(error.contains("has two products: use LoadedKernel::args"), "{error}");
}

#[test]
fn quantised_matrices_need_their_scales_applied() {
    let (device, (m, n, k)) = (device(), (2, 32, 64));
    let (x, weight) = (values(m * k, 0.3), values(n * k, 0.9));
    let a = Matrix::<Nvfp4>::upload(&device, &x, m, k).unwrap();
    let b = Matrix::<Nvfp4>::upload(&device, &weight, n, k).unwrap();
    let c = Matrix::<f32>::uninitialised(&device, m, n).unwrap();
    let shape = Shape::new(m as u32, n as u32, k as u32);
    let plain = kernel(&device, ["nvfp4", "f32"], "A @ B", shape);
    let error = plain.gemm_args(&a, &b, &c).unwrap_err().to_string();
    assert!(error.contains("alpha * (A @ B)") && error.contains("TensorScale::One"), "{error}");

    let scaled = kernel(&device, ["nvfp4", "f32"], "alpha * (A @ B)", shape);
    let scalars = [("alpha", a.tensor_scale() * b.tensor_scale())];
    let args = scaled.gemm_args(&a, &b, &c).unwrap().scalars(&scalars);
    scaled.launch(&device.stream(), &args).unwrap();
    let (x, weight) = (a.to_f32().unwrap(), b.to_f32().unwrap());
    for (index, got) in c.to_f32().unwrap().into_iter().enumerate() {
        let (row, column) = (&x[index / n * k..][..k], &weight[index % n * k..][..k]);
        let expected: f32 = row.iter().zip(column).map(|(x, w)| x * w).sum();
        assert!((got - expected).abs() < 1e-3, "{index}: {got}, not {expected}");
    }

    // C in NVFP4, and its own scale.
    let packed = kernel(&device, ["nvfp4", "nvfp4"], "alpha * (A @ B)", shape);
    let c4 = Matrix::<Nvfp4>::uninitialised(&device, m, n).unwrap().with_tensor_scale(1.0 / 64.0).unwrap();
    packed.launch(&device.stream(), &packed.gemm_args(&a, &b, &c4).unwrap().scalars(&scalars)).unwrap();
    let pairs = || c.to_f32().unwrap().into_iter().zip(c4.to_f32().unwrap());
    assert!(pairs().all(|(exact, got)| (exact - got).abs() < 3.0), "{:?}", pairs().collect::<Vec<_>>());
    // Scale factors of fewer rows would lie elsewhere.
    let one = Matrix::<Nvfp4>::upload(&device, &values(k, 0.3), 1, k).unwrap();
    assert!(matches!(plain.gemm_args(&one, &b, &c), Err(TensorError::OperandShape { .. })));
}
