//! Tensors for other libraries.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::abi::{
    CPU, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, IS_COPIED, READ_ONLY,
    VERSION,
};
use super::{Abi, DlpackError, Managed, RawManaged};
use crate::device::{Backend, Buffer, DeviceError, Stream};

/// What a tensor keeps until its deleter is called.
struct Kept {
    /// Sizes and strides, which the tensor points to.
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// A buffer of a GPU, or a copy of the emulated device's memory.
    _memory: Box<dyn Send + Sync>,
}

/// Lends a buffer as a tensor.
pub(super) fn export(
    buffer: &Buffer,
    shape: &[usize],
    dtype: DLDataType,
    read_only: bool,
    stream: &Stream,
    abi: Abi,
) -> Result<Managed, DlpackError> {
    let device = buffer.device();
    let foreign = || DeviceError::Foreign { what: "stream", device: device.numbered() };
    if stream.device() != device {
        return Err(foreign().into());
    }
    let (memory, address, place): (Box<dyn Send + Sync>, _, _) = match device.backend() {
        Backend::Emulated(_) => {
            // Words are aligned for every element type.
            let mut copy: Vec<u128> = Vec::new();
            let bytes = buffer.download()?;
            copy.extend(bytes.chunks(16).map(|chunk| {
                let mut word = [0; 16];
                word[..chunk.len()].copy_from_slice(chunk);
                u128::from_le_bytes(word)
            }));
            let address = copy.as_mut_ptr().cast::<c_void>();
            (Box::new(copy), address, DLDevice { device_type: CPU, device_id: 0 })
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda(cuda) => {
            let lane = stream.lane().ok_or_else(foreign)?;
            let mut address = 0;
            let note = |at, _| {
                address = at;
                Ok::<(), DeviceError>(())
            };
            cuda.enqueue(buffer, lane, note)?;
            let address = std::ptr::without_provenance_mut::<c_void>(address as usize);
            let place = DLDevice { device_type: super::CUDA, device_id: cuda.ordinal() as i32 };
            (Box::new(buffer.clone()), address, place)
        }
    };
    let copied = place.device_type == CPU;
    let mut strides = vec![1i64; shape.len()];
    for dimension in (1..shape.len()).rev() {
        strides[dimension - 1] = strides[dimension] * shape[dimension] as i64;
    }
    let shape = shape.iter().map(|size| *size as i64).collect();
    let mut kept = Box::new(Kept { shape, strides, _memory: memory });
    let tensor = DLTensor {
        data: address,
        device: place,
        ndim: kept.shape.len() as i32,
        dtype,
        shape: kept.shape.as_mut_ptr(),
        strides: kept.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let manager_ctx = Box::into_raw(kept).cast::<c_void>();
    let raw = match abi {
        Abi::Unversioned => {
            let managed =
                DLManagedTensor { dl_tensor: tensor, manager_ctx, deleter: Some(delete_unversioned) };
            RawManaged::Unversioned(NonNull::from(Box::leak(Box::new(managed))))
        }
        Abi::Versioned => {
            let flags = if read_only { READ_ONLY } else { 0 } | if copied { IS_COPIED } else { 0 };
            let managed = DLManagedTensorVersioned {
                version: VERSION,
                manager_ctx,
                deleter: Some(delete_versioned),
                flags,
                dl_tensor: tensor,
            };
            RawManaged::Versioned(NonNull::from(Box::leak(Box::new(managed))))
        }
    };
    // SAFETY: the struct was made above, with shape and strides of `ndim` entries, and its memory is kept.
    unsafe { Managed::from_raw(raw) }
}

/// # Safety
/// `managed` was made by `export`, and is not used again.
unsafe extern "C" fn delete_unversioned(managed: *mut DLManagedTensor) {
    if !managed.is_null() {
        // SAFETY: both boxes were leaked by `export`.
        drop(unsafe {
            let managed = Box::from_raw(managed);
            Box::from_raw(managed.manager_ctx.cast::<Kept>())
        });
    }
}

/// # Safety
/// `managed` was made by `export`, and is not used again.
unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: both boxes were leaked by `export`.
        drop(unsafe {
            let managed = Box::from_raw(managed);
            Box::from_raw(managed.manager_ctx.cast::<Kept>())
        });
    }
}
