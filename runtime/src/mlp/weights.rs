//! The weights of a block, on the host.

use silumin_codegen::problem::OperandFormat;

use silumin_formats::Matrix;

use super::MlpError;
#[cfg(feature = "safetensors")]
use crate::weights::{Checkpoint, Names};
use crate::weights::{GateUp, Weight};

/// The weights of a block, converted to the format that kernels read.
pub(super) struct ConvertedWeights<'a> {
    given: MlpWeights<'a>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl ConvertedWeights<'_> {
    /// As the weights of a block.
    pub fn weights(&self) -> Result<MlpWeights<'_>, MlpError> {
        let MlpWeights { gate_up, down, middle_scale } = self.given;
        let (gate, up) =
            (gate_up.gate().with_elements_of(&self.gate)?, gate_up.up().with_elements_of(&self.up)?);
        let converted = GateUp::new(gate, up)?.with_input_scale(gate_up.input_scale());
        let weights = MlpWeights::new(converted, down.with_elements_of(&self.down)?)?;
        Ok(MlpWeights { middle_scale, ..weights })
    }
}

/// The weights of a block, on the host: gate and up `[features, hidden]`, down `[hidden, features]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpWeights<'a> {
    pub(super) gate_up: GateUp<'a>,
    pub(super) down: Weight<'a>,
    pub(super) middle_scale: Option<f32>,
}

impl<'a> MlpWeights<'a> {
    /// The weights of one layer.
    ///
    /// # Errors
    ///
    /// [`MlpError::Down`] where down does not fit gate and up.
    pub fn new(gate_up: GateUp<'a>, down: Weight<'a>) -> Result<Self, MlpError> {
        let (expected, found) = ([gate_up.k(), gate_up.n()], [down.rows(), down.k()]);
        if expected != found || down.format() != gate_up.format() {
            let formats = [gate_up.format(), down.format()];
            return Err(MlpError::Down { expected, found, formats });
        }
        Ok(MlpWeights { gate_up, down, middle_scale: None })
    }

    /// The weights of a layer such as `model.layers.0.mlp`, by the names of most models: [`MlpWeights::of_layer_named`].
    ///
    /// # Errors
    ///
    /// [`MlpError::Checkpoint`], [`MlpError::Down`].
    #[cfg(feature = "safetensors")]
    pub fn of_layer(checkpoint: &'a Checkpoint, layer: &str) -> Result<Self, MlpError> {
        Self::of_layer_named(checkpoint, layer, &Names::default())
    }

    /// The weights of a layer by a model's own names, as views of the files. The middle has the scale that down's
    /// activations were calibrated for, if the checkpoint says one.
    ///
    /// # Errors
    ///
    /// [`MlpError::Checkpoint`], [`MlpError::Down`].
    #[cfg(feature = "safetensors")]
    pub fn of_layer_named(checkpoint: &'a Checkpoint, layer: &str, names: &Names) -> Result<Self, MlpError> {
        let gate_up = checkpoint.gate_up_named(layer, names)?;
        let (down, middle_scale) = checkpoint.down_named(layer, names)?;
        Ok(MlpWeights { middle_scale, ..Self::new(gate_up, down)? })
    }

    /// Sets the scale of the whole tensor between the projections, which is used where it is quantised: what the
    /// checkpoint calls the input scale of the down projection. If it is not set, it is 1/16 in NVFP4. In e4m3 it goes with
    /// an input scale of x; without both, each token has scales of its own.
    ///
    /// # Errors
    ///
    /// [`MlpError::MiddleScale`] for a scale that is not finite and above 0.
    pub fn with_middle_scale(self, middle_scale: f32) -> Result<Self, MlpError> {
        match middle_scale.is_finite() && middle_scale > 0.0 {
            true => Ok(MlpWeights { middle_scale: Some(middle_scale), ..self }),
            false => Err(MlpError::MiddleScale { value: middle_scale }),
        }
    }

    /// Whether rows of a matrix have scales of their own.
    pub(super) fn row_scales(&self) -> bool {
        let weights = [self.gate_up.gate(), self.gate_up.up(), self.down];
        weights.iter().any(|weight| weight.row_scales().is_some())
    }

    /// Converts the weights to the format that kernels read; `None` if kernels read them unconverted.
    pub(super) fn converted(&self, format: OperandFormat) -> Result<Option<ConvertedWeights<'a>>, MlpError> {
        let [gate, up, down] =
            [self.gate_up.gate(), self.gate_up.up(), self.down].map(|weight| weight.converted(format));
        Ok(match (gate?, up?, down?) {
            (Some(gate), Some(up), Some(down)) => Some(ConvertedWeights { given: *self, gate, up, down }),
            _ => None,
        })
    }

    /// Width of x and of the result.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.gate_up.k()
    }

    /// Width between the projections.
    #[must_use]
    pub fn features(&self) -> usize {
        self.gate_up.n()
    }

    /// Drops the scales that activations were calibrated for: of x, and of the intermediate activations.
    #[must_use]
    pub fn without_activation_scales(self) -> Self {
        MlpWeights { gate_up: self.gate_up.with_input_scale(None), middle_scale: None, ..self }
    }

    /// Whether there are scales for whole tensors of activations. `expert` is named in errors.
    ///
    /// # Errors
    ///
    /// [`MlpError::HalfCalibrated`] in e4m3 if one of the two is missing.
    pub(super) fn calibrated(&self, expert: Option<usize>) -> Result<bool, MlpError> {
        let scales = [self.gate_up.input_scale().is_some(), self.middle_scale.is_some()];
        match (self.gate_up.format(), scales) {
            (OperandFormat::E4m3, [input, middle]) if input != middle => {
                Err(MlpError::HalfCalibrated { expert, input })
            }
            (_, scales) => Ok(scales == [true; 2]),
        }
    }
}
