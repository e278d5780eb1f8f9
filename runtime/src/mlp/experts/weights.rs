//! The weights of a layer's experts, on the host and on a device.

use silumin_codegen::prepare::MAX_EXPERTS;
use silumin_codegen::problem::OperandFormat;

use super::super::{MlpError, MlpWeights};
use crate::device::{Buffer, Device};
#[cfg(feature = "safetensors")]
use crate::weights::{Checkpoint, Names};
use crate::weights::{Weight, WeightError};

/// The weights of a layer's experts, on the host: all of one shape and one format.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsWeights<'a> {
    experts: Vec<MlpWeights<'a>>,
}

impl<'a> ExpertsWeights<'a> {
    /// The weights of the experts, in order. Scales of whole tensors may differ from expert to expert.
    ///
    /// # Errors
    ///
    /// [`MlpError::UnlikeExperts`]; [`MlpError::Experts`] for none, and for more than 1024.
    pub fn new(experts: Vec<MlpWeights<'a>>) -> Result<Self, MlpError> {
        let kind =
            |weights: &MlpWeights<'_>| ([weights.hidden(), weights.features()], weights.gate_up.format());
        let limit = MAX_EXPERTS;
        let found = experts.len();
        let Some(expected) = experts.first().map(kind).filter(|_| found <= limit as usize) else {
            return Err(MlpError::Experts { found, limit });
        };
        match experts.iter().map(kind).enumerate().find(|(_, found)| *found != expected) {
            Some((expert, found)) => Err(MlpError::UnlikeExperts { expert, expected, found }),
            None => Ok(ExpertsWeights { experts }),
        }
    }

    /// The weights of some experts of a layer such as `model.layers.0.mlp`, by their numbers: `0..128` for all of 128. A
    /// checkpoint calls them `model.layers.0.mlp.experts.0` and so on: DeepSeek, Qwen and others.
    ///
    /// # Errors
    ///
    /// [`MlpError::Checkpoint`], [`MlpError::UnlikeExperts`], [`MlpError::Experts`].
    #[cfg(feature = "safetensors")]
    pub fn of_layer(
        checkpoint: &'a Checkpoint,
        layer: &str,
        experts: std::ops::Range<usize>,
    ) -> Result<Self, MlpError> {
        Self::of_layer_named(checkpoint, layer, experts, &Names::default())
    }

    /// The same by a model's own names, [`Names::mixtral`] for example.
    ///
    /// # Errors
    ///
    /// As [`ExpertsWeights::of_layer`].
    #[cfg(feature = "safetensors")]
    pub fn of_layer_named(
        checkpoint: &'a Checkpoint,
        layer: &str,
        experts: std::ops::Range<usize>,
        names: &Names,
    ) -> Result<Self, MlpError> {
        let one =
            |expert| MlpWeights::of_layer_named(checkpoint, &format!("{layer}.experts.{expert}"), names);
        Self::new(experts.map(one).collect::<Result<_, _>>()?)
    }

    /// How many experts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.experts.len()
    }

    /// The experts' weights, in order.
    #[must_use]
    pub fn experts(&self) -> &[MlpWeights<'a>] {
        &self.experts
    }

    /// Width of x and of the result; 0 without experts.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.experts.first().map_or(0, MlpWeights::hidden)
    }

    /// Width between the projections of an expert; 0 without experts.
    #[must_use]
    pub fn features(&self) -> usize {
        self.experts.first().map_or(0, MlpWeights::features)
    }

    /// The format of all weights.
    pub(super) fn format(&self) -> OperandFormat {
        self.experts.first().map_or(OperandFormat::Bf16, |weights| weights.gate_up.format())
    }

    /// The largest calibrated scale of activations of all experts. With it no expert's activations saturate that
    /// calibration saw. `None` if the checkpoint has none.
    pub(super) fn scale_of(&self, scale: impl Fn(&MlpWeights<'a>) -> Option<f32>) -> Option<f32> {
        self.experts.iter().filter_map(scale).reduce(f32::max)
    }
}

/// A matrix of each expert, `[experts, N, K]` on a device.
#[derive(Clone)]
pub(super) struct Stack {
    pub codes: Buffer,
    /// Scale factors, each expert's padded to whole blocks.
    pub scales: Option<Buffer>,
    /// A scale for each column of the product, f32 `[experts, N]`; `None` where all are 1.
    pub tensor_scales: Option<Buffer>,
}

impl Stack {
    /// Uploads one matrix of each expert, converted to `format`. Products are multiplied by the matrix's scales times `factor`,
    /// which are uploaded if `scaled`.
    pub fn upload<'a>(
        device: &Device,
        weights: impl Iterator<Item = Weight<'a>> + Clone,
        format: OperandFormat,
        factor: f32,
        scaled: bool,
    ) -> Result<Self, WeightError> {
        let bytes = weights.clone().map(|weight| weight.codes().len()).sum();
        let codes = device.alloc(bytes)?;
        let (mut at, mut scales, mut tensor_scales) = (0, Vec::new(), Vec::new());
        for weight in weights {
            let converted = weight.converted(format)?;
            let weight = match &converted {
                Some(matrix) => weight.with_elements_of(matrix)?,
                None => weight,
            };
            codes.slice(at, weight.codes().len())?.write(weight.codes())?;
            at += weight.codes().len();
            scales.extend(weight.blocked_scales()?);
            tensor_scales.extend(weight.product_scales().map(|scale| factor * scale));
        }
        let bytes: Vec<u8> = tensor_scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let there = |needed: bool, bytes: &[u8]| needed.then(|| device.upload(bytes)).transpose();
        Ok(Stack {
            codes,
            scales: there(!scales.is_empty(), &scales)?,
            tensor_scales: there(scaled, &bytes)?,
        })
    }
}
