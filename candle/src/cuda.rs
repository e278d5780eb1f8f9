//! Tensors on CUDA: where they are, on candle's own stream.

use crate::op::Call;
use crate::{Error, Inner};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Shape};
use cudarc::driver::{CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use silumin::{Buffer, Cache, Device, Stream};
use std::sync::Arc;

/// candle's context as a device of ours, and its stream.
pub(crate) fn open(cuda: &CudaDevice, cache: Option<Cache>) -> Result<(Device, Stream), Error> {
    let stream = cuda.cuda_stream();
    let device = Device::from_cuda(stream.context().clone())?;
    let device = match cache {
        Some(cache) => device.with_cache(cache),
        None => device,
    };
    let stream = device.stream_of(stream)?;
    Ok((device, stream))
}

/// Elements of 16 bits that blocks read and write.
pub(crate) trait CudaElements: CudaDType + DeviceRepr + ValidAsZeroBits {}

impl CudaElements for bf16 {}
impl CudaElements for f16 {}

/// The elements of a contiguous view.
pub(crate) fn elements<'a, T: CudaElements>(
    storage: &'a CudaStorage,
    layout: &Layout,
) -> Result<CudaView<'a, T>, Error> {
    let start = layout.start_offset();
    Ok(storage.as_cuda_slice::<T>()?.slice(start..start + layout.shape().elem_count()))
}

/// Calls `f` with the address of a tensor's first element, while cudarc knows that the stream reads it.
pub(crate) fn read<T>(
    stream: &Arc<CudaStream>,
    storage: &CudaStorage,
    layout: &Layout,
    f: impl FnOnce(u64) -> Result<T, Error>,
) -> Result<T, Error> {
    let offset = (layout.start_offset() * storage.slice_size()) as u64;
    match &storage.slice {
        CudaStorageSlice::BF16(slice) => {
            let (address, _reading) = slice.device_ptr(stream);
            f(address + offset)
        }
        CudaStorageSlice::F16(slice) => {
            let (address, _reading) = slice.device_ptr(stream);
            f(address + offset)
        }
        CudaStorageSlice::U32(slice) => {
            let (address, _reading) = slice.device_ptr(stream);
            f(address + offset)
        }
        CudaStorageSlice::F32(slice) => {
            let (address, _reading) = slice.device_ptr(stream);
            f(address + offset)
        }
        // Types have been checked before.
        _ => Err(Error::DType { tensor: "x", found: storage.found(), expected: DType::BF16 }),
    }
}

/// Sizes and types of storages.
trait Elements {
    fn found(&self) -> DType;
    fn slice_size(&self) -> usize;
}

impl Elements for CudaStorage {
    fn found(&self) -> DType {
        use candle_core::backend::BackendStorage;
        self.dtype()
    }

    fn slice_size(&self) -> usize {
        self.found().size_in_bytes()
    }
}

/// A weight where it is; the tensor is kept by whoever has the buffer.
pub(crate) fn lend(stream: &Stream, storage: &CudaStorage, layout: &Layout) -> Result<Buffer, Error> {
    let cuda = storage.device.cuda_stream();
    let bytes = layout.shape().elem_count() * storage.slice_size();
    // SAFETY: the view lies in the storage, which the MLP keeps a handle of; candle's work on it is in the same stream.
    read(&cuda, storage, layout, |address| Ok(unsafe { stream.lend(address, bytes) }?))
}

impl Inner {
    pub(crate) fn on_cuda(
        &self,
        storage: &CudaStorage,
        layout: &Layout,
    ) -> Result<(CudaStorage, Shape), Error> {
        let call = self.call(layout)?;
        let result = match self.dtypes[1] {
            DType::BF16 => self.into::<bf16>(&call, storage, layout)?,
            DType::F16 => self.into::<f16>(&call, storage, layout)?,
            // Nothing else is let in.
            _ => self.into::<f32>(&call, storage, layout)?,
        };
        Ok((result, call.shape))
    }

    /// Launches into new memory of candle's.
    fn into<T: CudaDType + DeviceRepr>(
        &self,
        call: &Call<'_>,
        storage: &CudaStorage,
        layout: &Layout,
    ) -> Result<CudaStorage, Error> {
        let device = &storage.device;
        let stream = device.cuda_stream();
        // SAFETY: the kernel writes every element, those behind the result's rows too.
        let mut c = unsafe { device.alloc::<T>(call.room) }?;
        let bytes = layout.shape().elem_count() * storage.slice_size();
        read(&stream, storage, layout, |address| {
            let (target, _writing) = c.device_ptr_mut(&stream);
            // SAFETY: both lie in storages that live until the launch is in the stream, which frees memory in its order.
            let (x, c) = unsafe {
                (self.stream.lend(address, bytes)?, self.stream.lend(target, call.room * size_of::<T>())?)
            };
            self.launch(call, &x, &c)
        })?;
        stream.context().check_err().w()?;
        Ok(CudaStorage::wrap_cuda_slice(c, device.clone()))
    }
}
