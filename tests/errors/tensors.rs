//! Matrices on the host and on a device, and tensors of other libraries.

use super::{Case, Page, case};
use silumin::formats::groups::GroupSizes;
use silumin::formats::layout::{blocked_len, from_blocked, sf_columns, to_blocked};
use silumin::formats::quantize::{TensorScale, quantize, quantize_to};
use silumin::formats::{FormatError, Matrix as HostMatrix};
use silumin::runtime::dlpack::abi::{CUDA, DLManagedTensorVersioned};
use silumin::runtime::dlpack::{Abi, DlpackError, Managed, RawManaged};
use silumin::runtime::tensor::{Nvfp4, bf16, f16};
use silumin::{Arch, Device, DualGemm, Formats, LoadedKernel, Matrix, OperandFormat, Shape, Spec};

pub fn show(page: &mut Page) {
    page.cases("Formats", formats());
    page.cases("Scale factors in the blocked layout", layouts());
    page.cases("Groups of rows", groups());
    page.cases("Matrices on a device", matrices());
    page.cases("Matrices as arguments of a kernel", arguments());
    page.cases("Tensors of other libraries", tensors());
}

fn formats() -> Vec<Case> {
    let refused = |values: &[f32], k: usize, scale| quantize(values, 2, k, scale).map(drop).unwrap_err();
    let damaged = |value: f32| {
        let mut values = [1.0; 64];
        values[37] = value;
        refused(&values, 32, TensorScale::One)
    };
    let short = HostMatrix::new(OperandFormat::Nvfp4, 2, 32, vec![0; 32], vec![0; 2], 1.0);
    let large: Result<HostMatrix, FormatError> =
        HostMatrix::new(OperandFormat::Nvfp4, usize::MAX, 32, Vec::new(), Vec::new(), 1.0);
    vec![
        case("Rows of 40 elements in NVFP4", refused(&[1.0; 80], 40, TensorScale::One)),
        case("Scale factors of half of the rows", short.map(drop).unwrap_err()),
        case("More elements than there are addresses", large.map(drop).unwrap_err()),
        case("A tensor scale of 0", refused(&[1.0; 64], 32, TensorScale::Fixed(0.0))),
        case("Infinity in a matrix to quantise", damaged(f32::INFINITY)),
    ]
}

fn layouts() -> Vec<Case> {
    vec![
        case("K = 48 in blocks of 32", sf_columns(48, 32).unwrap_err()),
        case("15 bytes for 4 x 4 scale factors", to_blocked(&[0; 15], 4, 4).unwrap_err()),
        case("Blocked scale factors without their padding", from_blocked(&[0; 16], 4, 4).unwrap_err()),
        case("More scale factors than there are addresses", blocked_len(usize::MAX, 1 << 20).unwrap_err()),
    ]
}

fn groups() -> Vec<Case> {
    let refused = |shape: Shape, sizes: &[u32]| GroupSizes::new(shape, sizes).map(drop).unwrap_err();
    let shape = Shape::new(16, 64, 128);
    vec![
        case("Two sizes for three groups", refused(shape.grouped(3), &[8, 8])),
        case("17 rows in groups of a shape with 16", refused(shape.grouped(3), &[8, 9, 0])),
        case("Sizes of groups for a plain shape", refused(shape, &[8, 8])),
    ]
}

fn matrices() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let (codes, scales) = (device.upload(&[0; 8]).unwrap(), device.upload(&[0; 512]).unwrap());
    let foreign = Device::emulated(Arch::Sm100a).upload(&[0; 512]).unwrap();
    let two = Matrix::<Nvfp4>::from_buffers(codes, foreign, 1.0, 1, 16).map(drop).unwrap_err();
    let host = quantize_to(OperandFormat::Mxfp4, &[1.0f32; 32], 1, 32, TensorScale::One).unwrap();
    let ragged = Matrix::<Nvfp4>::upload(&device, &[1.0; 24], 1, 24).map(drop).unwrap_err();
    let blank = Matrix::<f32>::uninitialised(&device, 1, 2).unwrap().to_elements().map(drop).unwrap_err();
    vec![
        case("A matrix without rows", Matrix::<f32>::zeros(&device, 0, 4).map(drop).unwrap_err()),
        case(
            "More elements than there are addresses",
            Matrix::<f32>::uninitialised(&device, usize::MAX, 2).map(drop).unwrap_err(),
        ),
        case(
            "12 numbers for a matrix of 4 x 4",
            Matrix::<f32>::upload(&device, &[0.0; 12], 4, 4).map(drop).unwrap_err(),
        ),
        case(
            "A buffer of 512 bytes for 3 rows",
            Matrix::<f32>::from_buffer(scales, 3, 16).map(drop).unwrap_err(),
        ),
        case("Codes on one device, scale factors on another", two),
        case(
            "A matrix in MXFP4 for one in NVFP4",
            Matrix::<Nvfp4>::from_host(&device, &host).map(drop).unwrap_err(),
        ),
        case("24 numbers for a row in NVFP4", ragged),
        case("A matrix that nothing wrote", blank),
    ]
}

fn kernel(device: &Device, [ab, c]: [&str; 2], gate: &str, shape: Shape) -> LoadedKernel {
    let mut spec = Spec::new(gate.parse().unwrap(), &[device.arch()]).unwrap();
    let ab = ab.parse().unwrap();
    spec.formats = Formats { a: ab, b: ab, c: c.parse().unwrap(), ..Formats::default() };
    DualGemm::new(spec).load(device, shape).unwrap()
}

fn arguments() -> Vec<Case> {
    let (device, shape) = (Device::emulated(Arch::Sm100a), Shape::new(3, 32, 64));
    let swiglu = kernel(&device, ["bf16", "f32"], "silu(A @ B1) * (A @ B2)", shape);
    let batch = kernel(&device, ["bf16", "f32"], "silu(A @ B1) * (A @ B2)", shape.batch(2));
    let product = kernel(&device, ["nvfp4", "f32"], "A @ B", shape);
    let zeros = |rows, columns| Matrix::<bf16>::zeros(&device, rows, columns).unwrap();
    let (a, b) = (zeros(3, 64), zeros(32, 64));
    let c = Matrix::<f32>::zeros(&device, 3, 32).unwrap();
    let halves = Matrix::<f16>::zeros(&device, 3, 64).unwrap();
    let scaled = |rows: usize| Matrix::<Nvfp4>::upload(&device, &vec![0.3; rows * 64], rows, 64).unwrap();
    let read_only = lent(&c, |tensor| tensor.flags |= 1).unwrap();
    let read_only = Matrix::<f32>::from_dlpack(read_only, &device.stream()).unwrap();
    vec![
        case("A in f16 for a kernel that takes bf16", swiglu.args(&halves, &b, &b, &c).unwrap_err()),
        case("A in place of B1", swiglu.args(&a, &a, &b, &c).unwrap_err()),
        case("A kernel for a batch", batch.args(&a, &b, &b, &c).unwrap_err()),
        case("One matrix of weights for two products", swiglu.gemm_args(&a, &b, &c).unwrap_err()),
        case(
            "Tensor scales, and a gate without a scalar",
            product.gemm_args(&scaled(3), &scaled(32), &c).unwrap_err(),
        ),
        case("C in memory that is lent for reading", swiglu.args(&a, &b, &b, &read_only).unwrap_err()),
    ]
}

/// A matrix as another library would hand it over, after a change of its description.
pub fn lent<T: silumin::runtime::tensor::Element>(
    matrix: &Matrix<T>,
    change: impl FnOnce(&mut DLManagedTensorVersioned),
) -> Result<Managed, DlpackError> {
    let managed = matrix.to_dlpack(&matrix.device().stream(), Abi::Versioned).unwrap();
    let RawManaged::Versioned(mut raw) = managed.into_raw() else { panic!("it is versioned") };
    // SAFETY: the struct is this function's own, and its deleter frees what it has made whatever the description says.
    unsafe {
        change(raw.as_mut());
        Managed::from_raw(RawManaged::Versioned(raw))
    }
}

fn tensors() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let stream = device.stream();
    let matrix = Matrix::<f16>::zeros(&device, 2, 3).unwrap();
    let refused = |change: fn(&mut DLManagedTensorVersioned)| -> DlpackError {
        lent(&matrix, change)
            .and_then(|managed| Matrix::<f16>::from_dlpack(managed, &stream))
            .map(drop)
            .unwrap_err()
    };
    // SAFETY: null is allowed.
    let null = unsafe { Managed::from_address(std::ptr::null_mut(), Abi::Versioned) };
    let short = Matrix::<Nvfp4>::upload(&device, &[1.0; 32], 2, 16).unwrap();
    let codes = short.to_dlpack(&stream, Abi::Versioned).unwrap();
    let scales = matrix.to_dlpack(&stream, Abi::Versioned).unwrap();
    let parts = Matrix::<Nvfp4>::from_dlpack(codes, scales, 1.0, &stream).map(drop).unwrap_err();
    vec![
        case("A capsule that was used before", null.map(drop).unwrap_err()),
        case(
            "A tensor of DLPack 2.0",
            refused(|tensor| (tensor.version.major, tensor.version.minor) = (2, 0)),
        ),
        case("A tensor of a GPU for an emulated device", refused(|t| t.dl_tensor.device.device_type = CUDA)),
        case("A tensor of 32-bit numbers", refused(|tensor| tensor.dl_tensor.dtype.bits = 32)),
        case(
            "A tensor of one dimension",
            refused(|tensor| {
                tensor.dl_tensor.ndim = 1;
                set(tensor.dl_tensor.strides, 0, 1);
            }),
        ),
        case("A tensor without rows", refused(|tensor| set(tensor.dl_tensor.shape, 0, 0))),
        case("Every second column of a tensor", refused(|tensor| set(tensor.dl_tensor.strides, 1, 2))),
        case("Scale factors in f16", parts),
    ]
}

/// Writes a size or a stride of a matrix.
fn set(numbers: *mut i64, index: usize, value: i64) {
    assert!(index < 2);
    // SAFETY: a matrix has two of each, in memory that its struct owns.
    unsafe { numbers.add(index).write(value) }
}
