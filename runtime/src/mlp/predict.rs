//! Predicted times of a block's launches.

use super::parts::Quantised;
use super::{Mlp, MlpError};
use crate::gemm::LoadedKernel;
use crate::predict::{KernelPrediction, TimeOptions, predict};
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
        let [up, down] = self.kernels_for(rows)?.map(LoadedKernel::kernel);
        let steps = [
            (MlpStep::QuantiseX, Work::Quantise(self.quantised.as_ref())),
            (MlpStep::GateUp, Work::Gemm(up)),
            (MlpStep::QuantiseMiddle, Work::Quantise(self.requantised.as_ref())),
            (MlpStep::Down, Work::Gemm(down)),
        ];
        let mut kernels = Vec::new();
        for (step, work) in steps {
            let behind = |early: bool| {
                let programmatic = if kernels.is_empty() { timing.programmatic } else { early };
                TimeOptions { programmatic, sass: None, timeline: None, ..timing.clone() }
            };
            let prediction = match work {
                Work::Quantise(None) => continue,
                Work::Quantise(Some(quantised)) => {
                    let launch = quantised.plain_launch(tokens)?;
                    launch.predict(&behind(starts_early(launch.kernel, launch.ctas)))
                }
                Work::Gemm(kernel) => {
                    let early = kernel.launches.iter().any(|launch| launch.programmatic);
                    predict(kernel, None, &behind(early))
                }
            };
            kernels.push(PredictedKernel { step, prediction: prediction.map_err(Box::new)? });
        }
        Ok(MlpPrediction { kernels })
    }
}

/// A kernel of a call.
enum Work<'a> {
    /// Quantises, if the block does so.
    Quantise(Option<&'a Quantised>),
    /// Multiplies.
    Gemm(&'a Kernel),
}
