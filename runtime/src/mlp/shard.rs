//! The part of a block's weights that a rank has.

use silumin_codegen::problem::OperandFormat;
use silumin_formats::Matrix;

use super::{MlpError, MlpWeights};
use crate::weights::{GateUp, RowScales, Weight};

/// Bytes that a row of an operand is a multiple of, as tensor maps want it.
const ROW_BYTES: usize = 16;

/// A rank's weights: its columns of gate and up, `[features / ranks, hidden]`, and its rows of down, `[hidden, features /
/// ranks]` as stored. Gate and up are borrowed, down is a copy, for its rows are cut.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpShard<'a> {
    gate_up: GateUp<'a>,
    down: Matrix,
    /// Scales of down's rows, of which each rank has all.
    row_scales: Option<RowScales<'a>>,
    middle_scale: Option<f32>,
}

/// The features of a rank are a multiple of this: whole blocks of scale factors, and rows of whole 16 bytes.
fn multiple(format: OperandFormat) -> usize {
    let spec = format.spec();
    let block = spec.scales.map_or(1, |scales| scales.block as usize);
    // Both are powers of two.
    block.max(ROW_BYTES * 8 / spec.element_bits as usize)
}

impl<'a> MlpWeights<'a> {
    /// The weights of a rank of several that compute the block: gate and up by columns (rows as stored), down by rows
    /// (columns as stored), scale factors cut along. Scales of whole tensors stay as they are.
    ///
    /// ```
    /// use silumin_formats::quantize::{TensorScale, quantize};
    /// use silumin_runtime::mlp::MlpWeights;
    /// use silumin_runtime::weights::{GateUp, Weight};
    ///
    /// let ones = |rows: usize, k: usize| quantize(&vec![1.0f32; rows * k], rows, k, TensorScale::One);
    /// let (gate, up, down) = (ones(128, 64)?, ones(128, 64)?, ones(64, 128)?);
    /// let gate_up = GateUp::new(Weight::of(&gate)?, Weight::of(&up)?)?;
    /// let weights = MlpWeights::new(gate_up, Weight::of(&down)?)?;
    /// let second = weights.shard(1, 2)?;
    /// assert_eq!((second.weights()?.hidden(), second.weights()?.features()), (64, 64));
    ///
    /// let error = weights.shard(0, 3).unwrap_err();
    /// assert!(error.to_string().contains("the nearest numbers of ranks are 2 and 4"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MlpError::Rank`]; [`MlpError::Ranks`] where a rank's features are no multiple of a block of scale factors, or of 16
    /// bytes.
    pub fn shard(&self, rank: usize, ranks: usize) -> Result<MlpShard<'a>, MlpError> {
        if rank >= ranks {
            return Err(MlpError::Rank { rank, ranks });
        }
        let (features, multiple) = (self.features(), multiple(self.gate_up.format()));
        if !features.is_multiple_of(ranks * multiple) {
            return Err(MlpError::Ranks { features, ranks, multiple });
        }
        let width = features / ranks;
        let own = rank * width..(rank + 1) * width;
        let (gate, up) = (self.gate_up.gate().slice(own.clone())?, self.gate_up.up().slice(own.clone())?);
        Ok(MlpShard {
            gate_up: GateUp::new(gate, up)?.with_input_scale(self.gate_up.input_scale()),
            down: self.down.without_row_scales().columns(own)?,
            row_scales: self.down.row_scales(),
            middle_scale: self.middle_scale,
        })
    }
}

impl MlpShard<'_> {
    /// The weights as those of a block of its own.
    ///
    /// # Errors
    ///
    /// None that [`MlpWeights::shard`] has not had.
    pub fn weights(&self) -> Result<MlpWeights<'_>, MlpError> {
        let down = Weight::of(&self.down)?;
        let down = match self.row_scales {
            Some(row_scales) => down.with_row_scales(row_scales)?,
            None => down,
        };
        let weights = MlpWeights::new(self.gate_up, down)?;
        Ok(MlpWeights { middle_scale: self.middle_scale, ..weights })
    }
}
