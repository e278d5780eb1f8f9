//! A call of a block, recorded once and launched with one call of the driver.

use super::{Mlp, MlpError};
#[cfg(feature = "cuda")]
use crate::device::cuda::Recorded;
#[cfg(feature = "cuda")]
use crate::device::{Backend, DeviceError};
use crate::device::{Buffer, Stream};

/// A call of [`Mlp::forward`] with its tokens and buffers, as one CUDA graph: one call of the driver in place of one for each
/// kernel, and each kernel's setup overlaps the end of the one before. It keeps its block and buffers.
///
/// On the emulated device a launch is a call of `forward`.
pub struct MlpGraph {
    /// Dropped before the block: NCCL waits for graphs before it ends a communicator.
    #[cfg(feature = "cuda")]
    recorded: Option<Recorded>,
    mlp: Mlp,
    stream: Stream,
    tokens: u32,
    x: Buffer,
    residual: Option<Buffer>,
    out: Buffer,
    /// Memory between the kernels.
    #[cfg(feature = "cuda")]
    between: Vec<Buffer>,
}

impl std::fmt::Debug for MlpGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MlpGraph({} tokens of {:?})", self.tokens, self.mlp)
    }
}

impl Mlp {
    /// Records a call of [`Mlp::forward`] on the stream, without running it. With several ranks, each records its own.
    ///
    /// The call reads and writes these buffers at each launch: an engine writes the next x there.
    ///
    /// # Errors
    ///
    /// As [`Mlp::forward`]; on a GPU, the device's default stream, which cannot be captured, and what the driver says.
    pub fn record(
        &self,
        stream: &Stream,
        tokens: u32,
        x: &Buffer,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<MlpGraph, MlpError> {
        let rows = self.check(tokens, x, residual, out)?;
        if stream.device() != &self.device {
            return Err(MlpError::Stream { device: self.device.to_string() });
        }
        #[cfg(feature = "cuda")]
        let (recorded, between) = match (self.device.backend(), stream.lane()) {
            (Backend::Cuda(cuda), Some(lane)) => {
                if !lane.can_be_captured() {
                    return Err(MlpError::DefaultStream);
                }
                for kernel in self.kernels_for(rows)? {
                    kernel.reserve(stream)?;
                }
                // Weights were copied on the default stream, and a graph waits for no other.
                self.device.stream().synchronize()?;
                let recorded = cuda.record(lane, || self.forward(stream, tokens, x, residual, out))?;
                let mut between: Vec<Buffer> = self.middle.of(rows)?.buffers().collect();
                if let Some(quantised) = &self.quantised {
                    between.extend(quantised.of(tokens, rows)?.buffers());
                }
                (Some(recorded), between)
            }
            _ => (None, Vec::new()),
        };
        #[cfg(not(feature = "cuda"))]
        let _ = rows;
        Ok(MlpGraph {
            #[cfg(feature = "cuda")]
            recorded,
            mlp: self.clone(),
            stream: stream.clone(),
            tokens,
            x: x.clone(),
            residual: residual.cloned(),
            out: out.clone(),
            #[cfg(feature = "cuda")]
            between,
        })
    }
}

impl MlpGraph {
    /// Enqueues the call on the stream that it was recorded on.
    ///
    /// # Errors
    ///
    /// What the device says; with several ranks, that the group failed.
    pub fn launch(&self) -> Result<(), MlpError> {
        #[cfg(feature = "cuda")]
        if let (Backend::Cuda(cuda), Some(recorded)) = (self.mlp.device.backend(), &self.recorded) {
            if let Some(communicator) = &self.mlp.communicator {
                communicator.replayed()?;
            }
            let reads: Vec<&Buffer> = [&self.x].into_iter().chain(&self.residual).collect();
            let writes: Vec<&Buffer> = [&self.out].into_iter().chain(&self.between).collect();
            return cuda.replay(recorded, &reads, &writes).map_err(|error: DeviceError| error.into());
        }
        self.mlp.forward(&self.stream, self.tokens, &self.x, self.residual.as_ref(), &self.out)
    }

    /// Tokens of the call.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The block.
    #[must_use]
    pub fn mlp(&self) -> &Mlp {
        &self.mlp
    }
}
