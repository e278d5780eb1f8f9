//! Tensors of other libraries, and ours for them, by the C interface of [DLPack](https://dmlc.github.io/dlpack/latest/).
//!
//! [`import`] borrows a tensor of a GPU without a copy, and calls its deleter when the last handle of the buffer is dropped.
//! [`Matrix::from_dlpack`] makes a typed matrix of it. [`Matrix::to_dlpack`] lends a matrix; its memory lives until the other
//! library calls the deleter.
//!
//! The emulated device keeps a record of written bytes beside its memory, which no other library does. It takes tensors of the CPU
//! as copies, and hands out copies as tensors of the CPU.
//!
//! * `mod.rs`: import and export.
//! * `managed.rs`: [`Managed`], which owns a tensor.
//! * `abi.rs`: the C structs.
//! * `error.rs`: [`DlpackError`].

pub mod abi;
mod error;
mod export;
mod managed;

pub use error::DlpackError;
pub use managed::{Abi, Managed, RawManaged};

use abi::{BFLOAT, CPU, CUDA, DLDataType, DLTensor, FLOAT, FLOAT4_E2M1FN, FLOAT8_E4M3FN, UINT};
use silumin_codegen::problem::OutputFormat;

use crate::device::{Buffer, Stream};
use crate::tensor::{Element, Matrix, Nvfp4, Plain};

/// What the address of a GPU's tensor is a multiple of, in bytes: what TMA and vector loads read.
const ALIGNMENT: u64 = 16;

/// A tensor of another library in device memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// Its bytes. The owner's deleter is called when the last handle is dropped.
    pub buffer: Buffer,
    /// Its element type.
    pub dtype: DLDataType,
    /// Its sizes, the outer dimension first.
    pub shape: Vec<usize>,
    /// Whether its owner allows no writes.
    pub read_only: bool,
}

/// Borrows a tensor of any rank and type, which is row-major without gaps.
///
/// On a GPU nothing is copied. The tensor counts as used by `stream` last: its owner has been asked to make it ready there (in
/// Python, `__dlpack__(stream=...)`). Launches on other streams of ours are ordered behind each other as for every buffer, and the
/// deleter is called after `stream` has been made to wait for them. On the emulated device a tensor of the CPU is copied, and the
/// deleter called at once.
///
/// # Errors
///
/// [`DlpackError`], after which the deleter has been called.
pub fn import(managed: Managed, stream: &Stream) -> Result<Imported, DlpackError> {
    let tensor = *managed.tensor();
    let shape = contiguous(&tensor)?;
    let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    let bits = usize::from(tensor.dtype.bits) * usize::from(tensor.dtype.lanes);
    // Elements of four bits are packed unless the owner says otherwise.
    let bits = if managed.is_padded() { bits.next_multiple_of(8) } else { bits };
    let bytes = elements.and_then(|elements| elements.checked_mul(bits)).map(|bits| bits.div_ceil(8));
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize) else {
        let size = shape.first().map_or(0, |size| *size as i64);
        return Err(DlpackError::Size { dimension: 0, size });
    };
    if tensor.data.is_null() {
        return Err(DlpackError::Null { what: "the tensor's data" });
    }
    let (device, read_only) = (stream.device(), managed.is_read_only());
    let address = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
    let on_gpu = tensor.device.device_type == CUDA
        && device.ordinal().is_some_and(|ordinal| i32::try_from(ordinal) == Ok(tensor.device.device_id));
    let buffer = if on_gpu {
        if !address.is_multiple_of(ALIGNMENT) {
            return Err(DlpackError::Alignment { address, alignment: ALIGNMENT });
        }
        borrow(stream, address, bytes, managed)?
    } else if tensor.device.device_type == CPU && device.is_emulated() {
        let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        // SAFETY: the memory is there until the deleter is called, by the contract of `Managed::from_raw`, and the host reads it.
        device.upload(unsafe { std::slice::from_raw_parts(first, bytes) })?
    } else {
        return Err(DlpackError::Device { found: tensor.device, device: device.numbered() });
    };
    Ok(Imported { buffer, dtype: tensor.dtype, shape, read_only })
}

#[cfg(feature = "cuda")]
fn borrow(stream: &Stream, address: u64, bytes: usize, owner: Managed) -> Result<Buffer, DlpackError> {
    // SAFETY: the owner keeps the memory until its deleter is called, by the contract of `Managed::from_raw`.
    Ok(unsafe { stream.borrow(address, bytes, Box::new(owner)) }?)
}

#[cfg(not(feature = "cuda"))]
fn borrow(stream: &Stream, _: u64, _: usize, owner: Managed) -> Result<Buffer, DlpackError> {
    // Without the feature there is no device with an ordinal.
    Err(DlpackError::Device { found: owner.tensor().device, device: stream.device().numbered() })
}

/// The sizes of a tensor without gaps.
fn contiguous(tensor: &DLTensor) -> Result<Vec<usize>, DlpackError> {
    let dimensions =
        usize::try_from(tensor.ndim).map_err(|_| DlpackError::Rank { dimensions: tensor.ndim })?;
    if dimensions > 0 && tensor.shape.is_null() {
        return Err(DlpackError::Null { what: "the tensor's shape" });
    }
    let read = |from: *const i64, index: usize| {
        // SAFETY: shape and strides have `ndim` entries, by the contract of `Managed::from_raw`.
        unsafe { from.add(index).read() }
    };
    let mut shape = vec![0; dimensions];
    let mut expected = 1i64;
    for dimension in (0..dimensions).rev() {
        let size = read(tensor.shape, dimension);
        let wrong = || DlpackError::Size { dimension, size };
        let count = usize::try_from(size).ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        // A dimension of one element has no use for its stride.
        if !tensor.strides.is_null() && count > 1 && read(tensor.strides, dimension) != expected {
            let stride = read(tensor.strides, dimension);
            return Err(DlpackError::Stride { dimension, stride, expected });
        }
        expected = expected.checked_mul(size).ok_or_else(wrong)?;
        shape[dimension] = count;
    }
    Ok(shape)
}

impl Imported {
    fn matrix(&self) -> Result<[usize; 2], DlpackError> {
        let dimensions = self.shape.len() as i32;
        self.shape[..].try_into().map_err(|_| DlpackError::Rank { dimensions })
    }
}

/// The DLPack type of elements.
fn data_type(format: OutputFormat) -> DLDataType {
    let (code, bits) = match format {
        OutputFormat::F32 => (FLOAT, 32),
        OutputFormat::F16 => (FLOAT, 16),
        OutputFormat::Bf16 => (BFLOAT, 16),
        OutputFormat::E4m3 | OutputFormat::Mxfp8 => (FLOAT8_E4M3FN, 8),
        // Two in a byte: libraries without a type for that read bytes.
        OutputFormat::Nvfp4 => (UINT, 8),
    };
    DLDataType { code, bits, lanes: 1 }
}

const BYTES: DLDataType = DLDataType { code: UINT, bits: 8, lanes: 1 };

impl<T: Plain> Matrix<T> {
    /// Borrows a matrix of another library, as [`import`] does. FP8 may come as `float8_e4m3fn` or as bytes.
    ///
    /// # Errors
    ///
    /// [`DlpackError`], after which the deleter has been called.
    pub fn from_dlpack(managed: Managed, stream: &Stream) -> Result<Self, DlpackError> {
        let expected = data_type(T::OUTPUT);
        let found = managed.tensor().dtype;
        let bytes_of_fp8 = expected.code == FLOAT8_E4M3FN && found == BYTES;
        if found != expected && !bytes_of_fp8 {
            return Err(DlpackError::Type { found, expected: T::OUTPUT.name() });
        }
        let imported = import(managed, stream)?;
        let [rows, columns] = imported.matrix()?;
        Ok(Self::from_buffer(imported.buffer, rows, columns)?.read_only(imported.read_only))
    }
}

impl Matrix<Nvfp4> {
    /// Borrows codes and scale factors of another library, as [`import`] does. `codes` are bytes `[rows, columns / 2]`, or
    /// `float4_e2m1fn` of two lanes in the same shape, or of one lane `[rows, columns]`. `scales` are bytes or `float8_e4m3fn` of any
    /// shape, in the blocked layout.
    ///
    /// # Errors
    ///
    /// [`DlpackError`], after which both deleters have been called.
    pub fn from_dlpack(
        codes: Managed,
        scales: Managed,
        tensor_scale: f32,
        stream: &Stream,
    ) -> Result<Self, DlpackError> {
        let fp4 = |lanes| DLDataType { code: FLOAT4_E2M1FN, bits: 4, lanes };
        let found = codes.tensor().dtype;
        let per_unit = match found {
            BYTES => 2,
            _ if found == fp4(2) => 2,
            _ if found == fp4(1) && !codes.is_padded() => 1,
            _ => return Err(DlpackError::Type { found, expected: "bytes of two e2m1 (uint8)" }),
        };
        let found = scales.tensor().dtype;
        if found != BYTES && found != data_type(OutputFormat::E4m3) {
            return Err(DlpackError::Type {
                found,
                expected: "scale factors in e4m3 (uint8 or float8_e4m3fn)",
            });
        }
        let (codes, scales) = (import(codes, stream)?, import(scales, stream)?);
        let [rows, units] = codes.matrix()?;
        let read_only = codes.read_only || scales.read_only;
        let matrix = Self::from_buffers(codes.buffer, scales.buffer, tensor_scale, rows, units * per_unit)?;
        Ok(matrix.read_only(read_only))
    }
}

impl<T: Element> Matrix<T> {
    /// Lends the elements to another library, as a tensor `[rows, columns]`; NVFP4 as bytes `[rows, columns / 2]`. The memory lives
    /// until the other library calls the deleter. Scale factors are not in it: lend [`Matrix::scales`] with [`export`].
    ///
    /// `stream` is the one that the other library works on. It waits for what is still to be written. What the other library does
    /// later is not recorded: synchronise before other streams of ours use the matrix.
    ///
    /// # Errors
    ///
    /// [`DlpackError::Memory`]; on the emulated device, also for bytes that were never written.
    pub fn to_dlpack(&self, stream: &Stream, abi: Abi) -> Result<Managed, DlpackError> {
        let per_unit = if T::OUTPUT.bits() < 8 { 2 } else { 1 };
        let shape = [self.rows(), self.columns() / per_unit];
        export::export(self.buffer(), &shape, data_type(T::OUTPUT), self.is_read_only(), stream, abi)
    }
}

/// Lends a buffer as a tensor of bytes with one dimension, as [`Matrix::to_dlpack`] does.
///
/// # Errors
///
/// As [`Matrix::to_dlpack`].
pub fn export(buffer: &Buffer, stream: &Stream, abi: Abi) -> Result<Managed, DlpackError> {
    export::export(buffer, &[buffer.len()], BYTES, false, stream, abi)
}
