//! The C structs of DLPack 1.1 (`dlpack.h`), by its names.

use std::ffi::c_void;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// Kind of device: [`CPU`], [`CUDA`] or another.
    pub device_type: i32,
    /// Number among devices of this kind.
    pub device_id: i32,
}

/// Memory of the host.
pub const CPU: i32 = 1;
/// Memory of a GPU (`kDLCUDA`).
pub const CUDA: i32 = 2;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// Kind of number: the constants of this module.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element; 1 for scalars.
    pub lanes: u16,
}

/// Signed integers.
pub const INT: u8 = 0;
/// Unsigned integers.
pub const UINT: u8 = 1;
/// IEEE floating point.
pub const FLOAT: u8 = 2;
/// bfloat16.
pub const BFLOAT: u8 = 4;
/// FP8 e4m3 without infinities (`kDLFloat8_e4m3fn`).
pub const FLOAT8_E4M3FN: u8 = 10;
/// FP4 e2m1 (`kDLFloat4_e2m1fn`).
pub const FLOAT4_E2M1FN: u8 = 17;

/// A tensor in memory of another owner.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Address, or on some devices a handle.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// `ndim` sizes, the outer dimension first.
    pub shape: *mut i64,
    /// `ndim` strides in elements; null if the tensor is row-major without gaps.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor with its owner, as before DLPack 1.0: the capsule `dltensor`.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The owner's.
    pub manager_ctx: *mut c_void,
    /// Frees the struct and what it holds; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Version of the struct that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Structs of another major version have another layout.
    pub major: u32,
    /// Minor versions add constants.
    pub minor: u32,
}

/// A tensor with its owner since DLPack 1.0: the capsule `dltensor_versioned`.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version of this struct.
    pub version: DLPackVersion,
    /// The owner's.
    pub manager_ctx: *mut c_void,
    /// Frees the struct and what it holds; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bits: [`READ_ONLY`], [`IS_COPIED`], [`SUBBYTE_PADDED`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The memory must not be written.
pub const READ_ONLY: u64 = 1;
/// The producer has made a copy.
pub const IS_COPIED: u64 = 2;
/// Elements of less than a byte have a byte each.
pub const SUBBYTE_PADDED: u64 = 4;

/// The version that this crate writes.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };
