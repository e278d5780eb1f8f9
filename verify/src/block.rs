//! The gated MLP of a layer in f64: `down(act(gate(x)) * up(x))`, with activations rounded where kernels round them.

use silumin_codegen::problem::OperandFormat;
use silumin_formats::quantize::{MxRule, TensorScale, quantize_to, quantize_with};
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
    /// The format of x and of the intermediate activations.
    pub format: OperandFormat,
    /// What elements are multiples of.
    pub scales: Scales,
    /// The format of 16 bits in which kernels write the intermediate activations, if it is rounded to `format` after that.
    pub between: Option<OperandFormat>,
}

/// Scales of activations, beside the scale factors of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales {
    /// Those of the whole tensors: of x, and of the intermediate activations. 1 for formats of 16 bits.
    Tensors([f32; 2]),
    /// One for each token: its largest magnitude over the largest number of the format.
    Rows,
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
        let (n, scales) = (self.matrix.rows(), self.row_scales.len());
        if scales > 0 && scales != n {
            return Err(ReferenceError::Length { m: n, n: 1, expected: n, got: scales });
        }
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
/// `[hidden, features]`. Weights are decoded, which is exact; x and the intermediate activations are rounded as
/// `activations` says, with scale factors of the MX formats rounded up ([`MxRule::Up`]).
///
/// ```
/// use silumin_codegen::problem::OperandFormat;
/// use silumin_formats::quantize::{TensorScale, quantize_to};
/// use silumin_verify::block::{Activations, Scales, gated_mlp};
///
/// let format = OperandFormat::Bf16;
/// let ones = |rows, k| quantize_to(format, &vec![1.0f32; rows * k], rows, k, TensorScale::One);
/// let weights = [ones(3, 8)?, ones(3, 8)?, ones(8, 3)?].map(Into::into);
/// let activations = Activations { format, scales: Scales::Tensors([1.0; 2]), between: None };
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
    // Rows that share no scale are matrices of their own.
    let rounded = |values: &[f32], k: usize, which: usize| -> Result<Vec<Matrix>, FormatError> {
        let k = k.max(1);
        match activations.scales {
            Scales::Tensors(scales) => {
                let (rows, scale) = (values.len() / k, TensorScale::Fixed(scales[which]));
                Ok(vec![quantize_with(activations.format, values, rows, k, scale, MxRule::Up)?])
            }
            Scales::Rows => {
                let one = |row: &[f32]| quantize_to(activations.format, row, 1, k, TensorScale::FromMax);
                values.chunks(k).map(one).collect()
            }
        }
    };
    let products = |weights: &Weights, rows: &[Matrix]| -> Result<Vec<f64>, ReferenceError> {
        let parts: Vec<Vec<f64>> =
            rows.iter().map(|rows| weights.products(rows)).collect::<Result<_, _>>()?;
        Ok(parts.concat())
    };
    let x = rounded(x, gate.matrix.k(), 0)?;
    let (gates, ups) = rayon::join(|| products(gate, &x), || products(up, &x));
    let middle: Vec<f32> = gates?.into_iter().zip(ups?).map(|(gate, up)| act(gate, up) as f32).collect();
    let middle: Vec<f32> = match activations.between {
        Some(OperandFormat::Bf16) => {
            middle.into_iter().map(|value| half::bf16::from_f32(value).to_f32()).collect()
        }
        Some(OperandFormat::F16) => {
            middle.into_iter().map(|value| half::f16::from_f32(value).to_f32()).collect()
        }
        Some(_) | None => middle,
    };
    Ok(products(down, &rounded(&middle, down.matrix.k(), 1)?)?)
}

/// The norm of the difference over the norm of what is expected; NaN where a value is not finite.
#[must_use]
pub fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let (off, norm) = got.iter().zip(expected).fold((0.0, 0.0), |(off, norm), (got, expected)| {
        (off + (got - expected).powi(2), norm + expected.powi(2))
    });
    (off / norm).sqrt()
}
