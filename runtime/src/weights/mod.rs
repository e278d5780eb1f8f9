//! Weights of a gated MLP, from a checkpoint to a kernel's arguments.
//!
//! * `weight.rs`: [`Weight`], one matrix of weights as a loader sees it: borrowed codes, borrowed scale factors in
//!   row-major order, one scale of the tensor.
//! * `gate_up.rs`: [`GateUp`], the two of a layer, made of two tensors or of one that holds both ([`Order`]), and
//!   [`DeviceGateUp`], the same on a device.
//! * `checkpoint/`: [`Checkpoint`], NVFP4 layers out of safetensors files, with the feature `safetensors`.
//!
//! Nothing is copied on the host but scale factors, which change their order on the way ([`silumin_formats::layout`]).
//!
//! Real numbers are first made weights by [`silumin_formats::quantize`]:
//!
//! ```
//! use silumin_codegen::{arch::Arch, problem::{OperandFormat, Shape}, spec::Spec};
//! use silumin_runtime::device::Device;
//! use silumin_formats::quantize::{TensorScale, quantize};
//! use silumin_runtime::gemm::DualGemm;
//! use silumin_runtime::weights::{GateUp, Order, Weight};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One tensor of 2N = 16 rows, gate first, as models with a fused projection keep it.
//! let (m, n, k) = (3, 8, 64);
//! let stacked = quantize(&vec![0.5f32; 2 * n * k], 2 * n, k, TensorScale::FromMax)?;
//! let weights = GateUp::stacked(Weight::of(&stacked)?, Order::GateFirst)?;
//! let device = Device::emulated(Arch::Sm100a);
//! let weights = weights.upload(&device)?;
//!
//! // Scales of whole tensors are scalars of the gate: that of the gate's product before silu.
//! let gate = "silu(gate_scale * (x @ gate)) * (up_scale * (x @ up))";
//! let swiglu = DualGemm::new(Spec::new(gate.parse()?, &[Arch::Sm100a])?);
//! let kernel = swiglu.load(&device, Shape::new(m, n as u32, k as u32))?;
//!
//! let x = quantize(&vec![0.25f32; m as usize * k], m as usize, k, TensorScale::One)?;
//! let (a, sfa) = (device.upload(x.codes())?, device.upload(&x.blocked_scales()?)?);
//! let c = device.alloc(m as usize * n * 2)?;
//! let scalars = weights.scalars(x.tensor_scale());
//! kernel.launch(&device.stream(), &weights.args(&a, Some(&sfa), &c).scalars(&scalars))?;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "safetensors")]
mod checkpoint;
mod gate_up;
mod weight;

#[cfg(feature = "safetensors")]
pub use checkpoint::{Checkpoint, CheckpointError, Convention, Names};
pub use gate_up::{DeviceGateUp, GateUp, Order};
pub use weight::{RowScales, Weight};

use silumin_codegen::problem::OperandFormat;
use thiserror::Error;

use crate::device::DeviceError;
use silumin_formats::FormatError;
use silumin_formats::layout::LayoutError;

/// Why weights cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// A length, K or the tensor's scale is wrong.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A scale factor is NaN or negative.
    #[error(
        "the scale factor of row {row}, block {column} is {code:#04x} ({value}): a kernel reads scale factors as \
         magnitudes, and NaN would spread over a row of the result; the weights are damaged or in another format"
    )]
    ScaleFactor {
        /// The row.
        row: usize,
        /// Block of the row.
        column: usize,
        /// Its code.
        code: u8,
        /// Value of the code.
        value: f64,
    },
    /// An f32 scale factor is no finite magnitude.
    #[error(
        "the scale factor of block ({row}, {column}) is {value}, but it has to be finite and not below 0: the weights are damaged"
    )]
    BlockScale {
        /// Row, or block of 128 rows.
        row: usize,
        /// Block of 128 columns.
        column: usize,
        /// Its scale factor.
        value: f32,
    },
    /// A range of rows cuts a block of rows that share scale factors.
    #[error(
        "rows {start}..{end} of {rows} cut a block of {multiple} rows that share scale factors: take multiples of {multiple}, or store gate and up as two tensors"
    )]
    RowBlocks {
        /// First row of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Rows there are.
        rows: usize,
        /// Rows of a block.
        multiple: usize,
    },
    /// The scale of a row is not a positive finite number.
    #[error(
        "the scale of row {row} is {value}, but it has to be finite and above 0: the weights are damaged"
    )]
    RowScale {
        /// The row.
        row: usize,
        /// Its scale.
        value: f32,
    },
    /// Weights with scales of rows were to go where scales of rows have no place.
    #[error(
        "the weights have a scale for each row, which has no place here: use `Mlp`; or read `Weight::product_scales` first, upload \
         them as a vector `s[n]` of the gate, and go on with `without_row_scales`"
    )]
    RowsScaled,
    /// The weights' format has no repacked form.
    #[error("{format} weights cannot be repacked, only nvfp4 and mxfp4 ones: upload these without repacking")]
    NotRepacked {
        /// Their format.
        format: OperandFormat,
    },
    /// A stacked tensor has an odd number of rows.
    #[error(
        "a stacked tensor has twice N rows, gate and up, but this one has {rows}: an odd number has no halves"
    )]
    OddRows {
        /// Its rows.
        rows: usize,
    },
    /// Gate and up differ in shape or format.
    #[error("gate is {} x {} in {}, up is {} x {} in {}: one kernel multiplies both, so they have one shape and one format",
        .gate.0, .gate.1, .gate.2, .up.0, .up.1, .up.2)]
    Unlike {
        /// Rows, K and format of the gate.
        gate: (usize, usize, OperandFormat),
        /// Rows, K and format of the up projection.
        up: (usize, usize, OperandFormat),
    },
    /// There are no weights.
    #[error("the weights are empty ({rows} x {k}): there is nothing to multiply by")]
    Empty {
        /// Rows.
        rows: usize,
        /// Elements a row.
        k: usize,
    },
    /// The range of rows exceeds the matrix.
    #[error("rows {start}..{end} do not lie in a matrix of {rows} rows: end at {rows} at most")]
    Rows {
        /// First row of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The range of columns exceeds the matrix, or cuts a block of scale factors or a byte.
    #[error(
        "columns {start} to {end} of {k}: a part of a matrix has whole blocks, from and to multiples of {multiple} up to {k}"
    )]
    Columns {
        /// First column of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Elements of a row.
        k: usize,
        /// Both have to be multiples of this.
        multiple: usize,
    },
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device's memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
