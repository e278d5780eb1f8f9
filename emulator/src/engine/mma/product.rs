//! Computes rows of D from gathered operands, for every kind.

use super::Arithmetic;
use super::float::{FloatMode, FloatProduct};
use super::fp4::Fp4Product;
use super::integer::IntegerProduct;
use super::operands::Scales;
use super::path::Path;
use crate::engine::descriptor::OperandTile;
use crate::engine::format::{Format, Overflow, Rounding};
use crate::engine::idesc::{AccumulatorType, ElementType, InstructionDescriptor};

/// The operands of one instruction, decoded, ready to make rows of D.
#[derive(Clone, Debug)]
pub enum Product {
    /// Kinds mxf4 and mxf4nvf4.
    Fp4(Fp4Product),
    /// The other floating-point kinds.
    Float(FloatProduct),
    /// Kind i8.
    Integer(IntegerProduct),
}

impl Product {
    /// Decodes the operands. `a` has the rows of D, `b` its columns, both with 32 bytes of K in the
    /// packing that `idesc` asks for; `scales` is `None` for plain kinds.
    pub fn new(
        idesc: &InstructionDescriptor,
        arithmetic: Arithmetic,
        path: Path,
        a: &OperandTile,
        b: &OperandTile,
        scales: Option<&Scales>,
    ) -> Self {
        let plain = arithmetic == Arithmetic::F32;
        let negate = idesc.negate_a != idesc.negate_b;
        match (idesc.a, idesc.b, scales) {
            (ElementType::Float(_), ElementType::Float(_), Some(scales)) if idesc.kind.k() == 64 => {
                Self::Fp4(Fp4Product::new(path, plain, negate, a, b, scales))
            }
            (ElementType::Float(a_format), ElementType::Float(b_format), _) => {
                let half = idesc.d == AccumulatorType::F16;
                let mode = FloatMode { plain, half, negate, narrow: false };
                Self::Float(FloatProduct::new(path, mode, (a_format, a), (b_format, b), scales))
            }
            _ => {
                let signed = |element| element == ElementType::S8;
                let (a, b) = ((signed(idesc.a), a), (signed(idesc.b), b));
                Self::Integer(IntegerProduct::new(path, idesc.saturate, a, b))
            }
        }
    }

    /// Adds row `row` of A times all columns of B to `words`, one word an element of D. Where D's
    /// old value is not an input the words are zero. Panics if `row` is not a row of A.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        match self {
            Self::Fp4(product) => product.accumulate_row(row, words),
            Self::Float(product) => product.accumulate_row(row, words),
            Self::Integer(product) => product.accumulate_row(row, words),
        }
    }
}

/// Divides accumulators by `2^shift` (at most 126), as `scale-input-d` asks. Results below the
/// normal numbers are rounded to nearest.
pub(super) fn scale_down(d: AccumulatorType, shift: u32, words: &mut [u32]) {
    let factor = f32::from_bits((127 - shift) << 23);
    for word in words {
        *word = match d {
            AccumulatorType::F16 => {
                let value = Format::F16.decode(*word) * factor;
                Format::F16.encode(value, Rounding::NearestEven, Overflow::Ieee)
            }
            _ => (f32::from_bits(*word) * factor).to_bits(),
        };
    }
}
