//! A call of a layer's experts, recorded once and launched with one call of the driver.

use super::super::call::Call;
use super::{Choices, Experts, MlpError};
use crate::device::{Buffer, Stream};
use crate::nvtx::range;

/// A call of [`Experts::forward`] with its tokens and buffers, as one CUDA graph. It serves whatever the buffers hold at its
/// launch: other tokens, other choices. On the emulated device a launch is a call of `forward`.
pub struct ExpertsGraph {
    call: Call,
    experts: Experts,
    tokens: u32,
    x: Buffer,
    /// Numbers of experts, and weights.
    choices: [Buffer; 2],
    residual: Option<Buffer>,
    out: Buffer,
}

impl std::fmt::Debug for ExpertsGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExpertsGraph({} tokens of {:?})", self.tokens, self.experts)
    }
}

impl Experts {
    /// Records a call of [`Experts::forward`] on the stream, without running it.
    ///
    /// # Errors
    ///
    /// As [`Experts::forward`]; no tokens; on a GPU, the device's default stream, which cannot be captured, and what the driver says.
    pub fn record(
        &self,
        stream: &Stream,
        tokens: u32,
        x: &Buffer,
        choices: &Choices<'_>,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<ExpertsGraph, MlpError> {
        let (kernels, memory) = self.call(tokens, x, choices, residual, out)?;
        let choices_of = [choices.experts, choices.weights];
        let reads = [x].into_iter().chain(choices_of).chain(residual).cloned().collect();
        let writes = [out.clone()].into_iter().chain(memory.buffers()).collect();
        let forward = || self.forward(stream, tokens, x, choices, residual, out);
        Ok(ExpertsGraph {
            call: Call::record(&self.device, stream, &kernels, [reads, writes], forward)?,
            experts: self.clone(),
            tokens,
            x: x.clone(),
            choices: choices_of.map(Buffer::clone),
            residual: residual.cloned(),
            out: out.clone(),
        })
    }
}

impl ExpertsGraph {
    /// Enqueues the call on the stream that it was recorded on.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn launch(&self) -> Result<(), MlpError> {
        let _range = range(format_args!("graph of Experts, {} tokens", self.tokens));
        let Self { experts, tokens, x, choices: [numbers, weights], residual, out, .. } = self;
        let choices = Choices { experts: numbers, weights };
        self.call.launch(|| experts.forward(&self.call.stream, *tokens, x, &choices, residual.as_ref(), out))
    }

    /// Tokens of the call.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}
