//! Errors of DLPack tensors.

use thiserror::Error;

use super::abi::{self, DLDataType, DLDevice};
use crate::device::DeviceError;
use crate::tensor::TensorError;

/// Why a tensor of another library is not taken, or none is handed out.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum DlpackError {
    /// An address is null.
    #[error("{what} is null: the tensor has no memory, or its capsule was used before")]
    Null {
        /// What is null.
        what: &'static str,
    },
    /// The struct has a layout of another major version.
    #[error("the tensor is of DLPack {major}.{minor}, and 1.x is read: ask its owner for max_version=(1, 1)")]
    Version {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// The memory is on another device.
    #[error("the tensor is on {}, and the stream is of {device}: {}", device_name(*.found), device_help(*.found))]
    Device {
        /// The tensor's device.
        found: DLDevice,
        /// The stream's device.
        device: String,
    },
    /// The elements have another type.
    #[error("the tensor has elements of {} in place of {expected}: convert it with its own library{}", type_name(*.found), lanes_help(*.found))]
    Type {
        /// The tensor's type.
        found: DLDataType,
        /// What is read.
        expected: &'static str,
    },
    /// The tensor is no matrix.
    #[error(
        "the tensor's rank is {dimensions}, and a matrix has 2 dimensions: reshape it to [rows, columns]"
    )]
    Rank {
        /// Its dimensions.
        dimensions: i32,
    },
    /// A size is negative or too large.
    #[error(
        "dimension {dimension} of the tensor has the size {size}: it is at least 1, and all elements fit the address space"
    )]
    Size {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Its size.
        size: i64,
    },
    /// The tensor has gaps, or columns before rows.
    #[error(
        "dimension {dimension} of the tensor has the stride {stride}, and a row-major matrix without gaps has {expected}: \
         make it contiguous first (weights are [N, K]: leave their transposition out)"
    )]
    Stride {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Its stride in elements.
        stride: i64,
        /// The stride of a contiguous matrix.
        expected: i64,
    },
    /// The first element is at an address that TMA does not read.
    #[error(
        "the first element is at {address:#x}, and TMA reads multiples of {alignment}: copy the view to memory of its own"
    )]
    Alignment {
        /// The address.
        address: u64,
        /// What it has to be a multiple of.
        alignment: u64,
    },
    /// No matrix can be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Memory of the device.
    #[error(transparent)]
    Memory(#[from] DeviceError),
}

fn device_name(device: DLDevice) -> String {
    match device.device_type {
        abi::CPU => "the CPU".to_owned(),
        abi::CUDA => format!("GPU {}", device.device_id),
        3 => "pinned memory of the CPU".to_owned(),
        13 => "managed memory of CUDA".to_owned(),
        kind => format!("a device of DLPack's kind {kind}"),
    }
}

fn device_help(device: DLDevice) -> &'static str {
    match device.device_type {
        abi::CUDA => "copy it to this device",
        _ => "copy it to the GPU first, or use the emulated device for tensors of the CPU",
    }
}

fn type_name(data: DLDataType) -> String {
    let name = match data.code {
        abi::INT => "int",
        abi::UINT => "uint",
        abi::FLOAT => "float",
        abi::BFLOAT => "bfloat",
        abi::FLOAT8_E4M3FN => "float8_e4m3fn, ",
        abi::FLOAT4_E2M1FN => "float4_e2m1fn, ",
        3 => "opaque handles of ",
        5 => "complex",
        6 => "bool",
        _ => return format!("DLPack's kind {} with {} bits and {} lanes", data.code, data.bits, data.lanes),
    };
    match data.lanes {
        1 => format!("{name}{}", data.bits),
        lanes => format!("{name}{} in {lanes} lanes", data.bits),
    }
}

fn lanes_help(data: DLDataType) -> &'static str {
    if data.lanes > 1 { ", to elements of 1 lane" } else { "" }
}
