//! A call of a block that is recorded once and launched with one call of the driver.

use super::MlpError;
#[cfg(feature = "cuda")]
use crate::device::Backend;
#[cfg(feature = "cuda")]
use crate::device::cuda::Recorded;
use crate::device::{Buffer, Device, Stream};
use crate::gemm::LoadedKernel;

/// A CUDA graph of a call, the buffers that it reads and writes, and its stream. On the emulated device there is no graph.
pub(super) struct Call {
    #[cfg(feature = "cuda")]
    recorded: Option<Recorded>,
    #[cfg(feature = "cuda")]
    reads: Vec<Buffer>,
    #[cfg(feature = "cuda")]
    writes: Vec<Buffer>,
    #[cfg(feature = "cuda")]
    device: Device,
    pub stream: Stream,
}

impl Call {
    /// Records what `forward` enqueues, which launches `kernels`. `writes` has memory between the kernels, too.
    ///
    /// # Errors
    ///
    /// Another device's stream, the default stream of a GPU, and what `forward` and the driver say.
    pub fn record(
        device: &Device,
        stream: &Stream,
        kernels: &[&LoadedKernel],
        [reads, writes]: [Vec<Buffer>; 2],
        forward: impl FnOnce() -> Result<(), MlpError>,
    ) -> Result<Self, MlpError> {
        if stream.device() != device {
            return Err(MlpError::Stream { device: device.numbered() });
        }
        #[cfg(feature = "cuda")]
        let recorded = match (device.backend(), stream.lane()) {
            (Backend::Cuda(cuda), Some(lane)) => {
                if !lane.can_be_captured() {
                    return Err(MlpError::DefaultStream);
                }
                for kernel in kernels {
                    kernel.reserve(stream)?;
                }
                // Weights were copied on the default stream, and a graph waits for no other.
                device.stream().synchronize()?;
                Some(cuda.record(lane, forward)?)
            }
            _ => None,
        };
        #[cfg(not(feature = "cuda"))]
        let _ = (kernels, reads, writes, forward);
        Ok(Call {
            #[cfg(feature = "cuda")]
            recorded,
            #[cfg(feature = "cuda")]
            reads,
            #[cfg(feature = "cuda")]
            writes,
            #[cfg(feature = "cuda")]
            device: device.clone(),
            stream: stream.clone(),
        })
    }

    /// Enqueues the graph; without one, calls `forward`.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn launch(&self, forward: impl FnOnce() -> Result<(), MlpError>) -> Result<(), MlpError> {
        #[cfg(feature = "cuda")]
        if let (Backend::Cuda(cuda), Some(recorded)) = (self.device.backend(), &self.recorded) {
            let [reads, writes] =
                [&self.reads, &self.writes].map(|buffers| buffers.iter().collect::<Vec<_>>());
            return Ok(cuda.replay(recorded, &reads, &writes)?);
        }
        forward()
    }
}
