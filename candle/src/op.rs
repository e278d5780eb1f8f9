//! The operation, as candle calls it.

use crate::{Error, Inner};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Storage, Tensor};
use half::{bf16, f16};
use silumin::{Buffer, LoadedKernel, Stream};
use std::sync::Arc;

/// The operation on x; the weights are its own.
pub(crate) struct Op(pub Arc<Inner>);

/// What one call computes.
pub(crate) struct Call<'a> {
    pub kernel: &'a LoadedKernel,
    /// Rows of x.
    pub rows: u32,
    /// Elements of the result, and of the memory that the kernel writes.
    pub elements: usize,
    pub room: usize,
    /// The result's shape.
    pub shape: Shape,
}

impl Inner {
    /// The kernel for x, and sizes.
    pub(crate) fn call(&self, x: &Layout) -> Result<Call<'_>, Error> {
        let (n, k) = (self.weights.n, self.weights.k);
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n;
        }
        let rows = x.shape().elem_count() / k;
        let asked = u32::try_from(rows).unwrap_or(u32::MAX);
        // N and K came from 32 bits.
        let kernel = self.kernels.for_problem(asked, n as u32, k as u32)?;
        let room = kernel.kernel().problem.shape.m as usize * n;
        Ok(Call { kernel, rows: asked, elements: rows * n, room, shape: Shape::from(dims) })
    }

    /// Launches on x, into memory of the kernel's rows.
    pub(crate) fn launch(&self, call: &Call<'_>, x: &Buffer, c: &Buffer) -> Result<(), Error> {
        let scalars: Vec<(&str, f32)> =
            self.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let args = self.weights.args(x, None, c).scalars(&scalars).rows(call.rows);
        call.kernel.launch(&self.stream, &args)?;
        Ok(())
    }

    fn on_cpu(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape), Error> {
        let call = self.call(layout)?;
        let x = self.device.upload(&bytes_of(storage, layout)?)?;
        let size = self.dtypes[1].size_in_bytes();
        let c = self.device.alloc(call.room * size)?;
        self.launch(&call, &x, &c)?;
        let bytes = c.slice(0, call.elements * size)?.download()?;
        let pairs = || bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let words =
            || bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let result = match self.dtypes[1] {
            candle_core::DType::BF16 => CpuStorage::BF16(pairs().map(bf16::from_bits).collect()),
            candle_core::DType::F16 => CpuStorage::F16(pairs().map(f16::from_bits).collect()),
            // Nothing else is let in.
            _ => CpuStorage::F32(words().map(f32::from_bits).collect()),
        };
        Ok((result, call.shape))
    }
}

impl CustomOp1 for Op {
    fn name(&self) -> &'static str {
        "silumin-gated-mlp"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(self.0.on_cpu(storage, layout)?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        Ok(self.0.on_cuda(storage, layout)?)
    }
}

/// The bytes of a contiguous view.
pub(crate) fn bytes_of(storage: &CpuStorage, layout: &Layout) -> Result<Vec<u8>, Error> {
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    let bits: Vec<u16> = match storage {
        CpuStorage::BF16(values) => values[range].iter().map(|value| value.to_bits()).collect(),
        CpuStorage::F16(values) => values[range].iter().map(|value| value.to_bits()).collect(),
        CpuStorage::U32(values) => {
            return Ok(values[range].iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        CpuStorage::F32(values) => {
            return Ok(values[range].iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        // Types have been checked.
        _ => Vec::new(),
    };
    Ok(bits.into_iter().flat_map(u16::to_le_bytes).collect())
}

/// A weight as the kernels take it: on CUDA where it is, on the CPU a copy on the emulated device. It has been checked.
pub(crate) fn lent(device: &silumin::Device, stream: &Stream, weight: &Tensor) -> Result<Buffer, Error> {
    let (storage, layout) = weight.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(device.upload(&bytes_of(storage, layout)?)?),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => crate::cuda::lend(stream, storage, layout),
        _ => {
            let _ = stream;
            let advice = "silumin's kernels run on NVIDIA GPUs, and on the CPU's emulator";
            Err(Error::Unsupported { found: weight.device().location(), advice })
        }
    }
}
