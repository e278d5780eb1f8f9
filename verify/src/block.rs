//! The gated MLP of a layer in f64: `down(act(gate(x)) * up(x))`, with activations rounded where kernels round them.

use silumin_codegen::problem::OperandFormat;
use silumin_formats::quantize::{TensorScale, quantize_to};
use silumin_formats::{FormatError, Matrix};
use thiserror::Error;

use crate::reference::{ReferenceError, gemm};

/// Why a block has no reference.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Activations have no such format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The sizes of weights and activations do not fit each other.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// What activations are rounded to before each multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activations {
    /// The format of x and of what is between the projections.
    pub format: OperandFormat,
    /// Scales of the whole tensors: of x, and of what is between the projections. 1 for formats of 16 bits.
    pub scales: [f32; 2],
}

/// A matrix of weights, `[N, K]`, and a scale for each of its rows beside what the matrix has; empty for none.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Elements, scale factors and the scale of the whole tensor.
    pub matrix: Matrix,
    /// Scales of the rows: N, or none.
    pub row_scales: Vec<f32>,
}

impl Weights {
    /// `a @ matrix^T` in f64, each column times the scale of its row.
    fn products(&self, a: &Matrix) -> Result<Vec<f64>, ReferenceError> {
        let mut products = gemm(a, &self.matrix)?;
        if !self.row_scales.is_empty() {
            for row in products.chunks_mut(self.matrix.rows().max(1)) {
                row.iter_mut().zip(&self.row_scales).for_each(|(value, scale)| *value *= f64::from(*scale));
            }
        }
        Ok(products)
    }
}

impl From<Matrix> for Weights {
    fn from(matrix: Matrix) -> Self {
        Weights { matrix, row_scales: Vec::new() }
    }
}

/// `down(act(x @ gate, x @ up))` in f64, `[tokens, hidden]`, for x `[tokens, hidden]`, gate and up `[features, hidden]`, down
/// `[hidden, features]`. Weights are decoded, which is exact; x and what is between the projections are rounded as
/// `activations` says.
///
/// ```
/// use silumin_codegen::problem::OperandFormat;
/// use silumin_formats::quantize::{TensorScale, quantize_to};
/// use silumin_verify::block::{Activations, gated_mlp};
///
/// let format = OperandFormat::Bf16;
/// let ones = |rows, k| quantize_to(format, &vec![1.0f32; rows * k], rows, k, TensorScale::One);
/// let weights = [ones(3, 8)?, ones(3, 8)?, ones(8, 3)?].map(Into::into);
/// let activations = Activations { format, scales: [1.0; 2] };
/// let y = gated_mlp(&weights, &[0.5; 8], activations, |gate, up| gate.max(0.0) * up)?;
/// assert_eq!(y, [3.0 * 4.0 * 4.0; 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`BlockError`].
pub fn gated_mlp(
    [gate, up, down]: &[Weights; 3],
    x: &[f32],
    activations: Activations,
    act: impl Fn(f64, f64) -> f64,
) -> Result<Vec<f64>, BlockError> {
    let Activations { format, scales: [x_scale, middle_scale] } = activations;
    let (hidden, features) = (gate.matrix.k(), down.matrix.k());
    let rows = x.len() / hidden.max(1);
    let x = quantize_to(format, x, rows, hidden, TensorScale::Fixed(x_scale))?;
    let (gates, ups) = rayon::join(|| gate.products(&x), || up.products(&x));
    let middle: Vec<f32> = gates?.into_iter().zip(ups?).map(|(gate, up)| act(gate, up) as f32).collect();
    let middle = quantize_to(format, &middle, rows, features, TensorScale::Fixed(middle_scale))?;
    Ok(down.products(&middle)?)
}

/// The norm of the difference over the norm of what is expected; NaN where a value is not finite.
#[must_use]
pub fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let (off, norm) = got.iter().zip(expected).fold((0.0, 0.0), |(off, norm), (got, expected)| {
        (off + (got - expected).powi(2), norm + expected.powi(2))
    });
    (off / norm).sqrt()
}
