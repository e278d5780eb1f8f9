//! Predicted times of a block's launches.

use super::{Mlp, MlpError};
use crate::predict::{KernelPrediction, PredictError, TimeOptions, predict, predict_call};
use crate::prepare::starts_early;
use silumin_codegen::kernel::Kernel;

/// Predicted times of a call of a block. Nothing is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpPrediction {
    /// Each kernel of the call, in order.
    pub kernels: Vec<PredictedKernel>,
}

/// A kernel of a call, and its predicted time.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedKernel {
    /// What it computes.
    pub step: MlpStep,
    /// Its launches.
    pub prediction: KernelPrediction,
}

/// What a kernel of a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlpStep {
    /// x in the format of the weights.
    QuantiseX,
    /// `act(gate(x)) * up(x)`.
    GateUp,
    /// The same in the format of the weights, where the first kernel does not write that.
    QuantiseMiddle,
    /// `down(..)`, with the residual.
    Down,
}

impl MlpPrediction {
    /// Time of all launches with the gaps before them, in nanoseconds.
    #[must_use]
    pub fn time(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.prediction.time()).sum()
    }
}

impl Mlp {
    /// Predicts the time of a call for `tokens` tokens, on operands of the bucket's size. The sum over ranks is not in it.
    ///
    /// Each launch starts with an L2 as `timing` says. A launch follows the one before it programmatically where its kernel does;
    /// for the first one `timing.programmatic` says it. Issue costs are by the table, and no timeline is made.
    ///
    /// ```
    /// use silumin_codegen::arch::Arch;
    /// use silumin_formats::quantize::{TensorScale, quantize};
    /// use silumin_runtime::device::Device;
    /// use silumin_runtime::mlp::{Mlp, MlpOptions, MlpStep, MlpWeights};
    /// use silumin_runtime::predict::{Chip, TimeOptions};
    /// use silumin_runtime::warmup::Buckets;
    /// use silumin_runtime::weights::{GateUp, Weight};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let zeros = |rows, k| quantize(&vec![0.0f32; rows * k], rows, k, TensorScale::One);
    /// let [gate, up, down] = [zeros(256, 128)?, zeros(256, 128)?, zeros(128, 256)?];
    /// let gate_up = GateUp::new(Weight::of(&gate)?, Weight::of(&up)?)?;
    /// let weights = MlpWeights::new(gate_up, Weight::of(&down)?)?;
    /// let mlp = Mlp::load(&Device::emulated(Arch::Sm100a), &weights, &MlpOptions::new(Buckets::new([16])?))?;
    ///
    /// let predicted = mlp.predict(5, &TimeOptions::new(Chip::named("b200")?))?;
    /// assert_eq!(predicted.kernels[0].step, MlpStep::QuantiseX);
    /// println!("predicted for a B200: {:.1} us", predicted.time() / 1e3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A number of tokens beyond the buckets, and a chip that does not run the kernels.
    pub fn predict(&self, tokens: u32, timing: &TimeOptions) -> Result<MlpPrediction, MlpError> {
        let rows = self.rows(tokens)?;
        let [up, down] = self.kernels_for(rows)?;
        let mut kernels = Vec::new();
        let chained = |kernel: &Kernel| kernel.launches.iter().any(|launch| launch.programmatic);
        let (up, down) = (up.kernel(), down.kernel());
        let mut add = |step,
                       how: &dyn Fn(&TimeOptions) -> Result<KernelPrediction, PredictError>,
                       chained| {
            let first = kernels.is_empty();
            let programmatic = if first { timing.programmatic } else { chained };
            let prediction = how(&TimeOptions { programmatic, sass: None, timeline: None, ..timing.clone() })
                .map_err(Box::new)?;
            kernels.push(PredictedKernel { step, prediction });
            Ok::<(), MlpError>(())
        };
        if let Some(quantised) = &self.quantised {
            let (kernel, call) = quantised.call(tokens)?;
            add(
                MlpStep::QuantiseX,
                &|timing| predict_call(kernel, &call, timing),
                starts_early(kernel, call.ctas),
            )?;
        }
        add(MlpStep::GateUp, &|timing| predict(up, None, timing), chained(up))?;
        if let Some(quantised) = &self.requantised {
            let (kernel, call) = quantised.call(tokens)?;
            add(
                MlpStep::QuantiseMiddle,
                &|timing| predict_call(kernel, &call, timing),
                starts_early(kernel, call.ctas),
            )?;
        }
        add(MlpStep::Down, &|timing| predict(down, None, timing), chained(down))?;
        Ok(MlpPrediction { kernels })
    }
}
