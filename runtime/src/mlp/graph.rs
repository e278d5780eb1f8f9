//! A call of a block, recorded once and launched with one call of the driver.

use super::call::Call;
use super::{Mlp, MlpError};
use crate::device::{Buffer, Stream};
use crate::nvtx::range;

/// A call of [`Mlp::forward`] with its tokens and buffers, as one CUDA graph: one call of the driver in place of one for each
/// kernel, and each kernel's setup overlaps the end of the one before. It keeps its block and buffers.
///
/// On the emulated device a launch is a call of `forward`.
pub struct MlpGraph {
    /// Dropped before the block: NCCL waits for graphs before it ends a communicator.
    call: Call,
    mlp: Mlp,
    tokens: u32,
    x: Buffer,
    residual: Option<Buffer>,
    out: Buffer,
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
        let reads = [x].into_iter().chain(residual).cloned().collect();
        let mut writes: Vec<Buffer> =
            [out.clone()].into_iter().chain(self.middle.of(rows)?.buffers()).collect();
        for quantised in self.quantised.iter().chain(&self.requantised) {
            writes.extend(quantised.of(rows)?.buffers());
        }
        let kernels = self.kernels_for(rows)?;
        let forward = || self.forward(stream, tokens, x, residual, out);
        Ok(MlpGraph {
            call: Call::record(&self.device, stream, &kernels, [reads, writes], forward)?,
            mlp: self.clone(),
            tokens,
            x: x.clone(),
            residual: residual.cloned(),
            out: out.clone(),
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
        let _range = range(format_args!("graph of Mlp, {} tokens", self.tokens));
        #[cfg(feature = "cuda")]
        if let (false, Some(communicator)) = (self.mlp.device.is_emulated(), &self.mlp.communicator) {
            communicator.replayed()?;
        }
        let Self { mlp, tokens, x, residual, out, .. } = self;
        self.call.launch(|| mlp.forward(&self.call.stream, *tokens, x, residual.as_ref(), out))
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
