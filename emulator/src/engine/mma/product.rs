//! Rows of D from decoded operands.

use super::Arithmetic;
use super::operands::Scales;
use super::scalar::Cell;
use super::sum::{Number, SumRule};
use crate::engine::descriptor::{OperandTile, Packing};
use crate::engine::format::{Format, Overflow, Rounding};
use crate::engine::idesc::{AccumulatorType, ElementType, InstructionDescriptor};

/// The operands of one instruction, decoded for one pass over rows of D.
#[derive(Clone, Debug)]
pub struct Product {
    idesc: InstructionDescriptor,
    arithmetic: Arithmetic,
    /// Codes along K of every row of A.
    a: Vec<Vec<u32>>,
    /// Codes along K of every column of B.
    b: Vec<Vec<u32>>,
    scales: Option<Scales>,
}

impl Product {
    /// Decodes the operands. `a` has the rows of D, `b` its columns; `scales` is `None` for plain
    /// kinds.
    pub fn new(
        idesc: &InstructionDescriptor,
        arithmetic: Arithmetic,
        a: &OperandTile,
        b: &OperandTile,
        scales: Option<Scales>,
    ) -> Self {
        Self {
            idesc: *idesc,
            arithmetic,
            a: codes(a),
            b: codes(b),
            scales,
        }
    }

    /// Adds row `row` of A times all columns of B to `words`, one word an element of D. Where D's
    /// old value is not an input the words are zero.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        let a = &self.a[row];
        for (column, (word, b)) in words.iter_mut().zip(&self.b).enumerate() {
            *word = self.cell(row, column, a, b, *word);
        }
    }

    fn cell(&self, row: usize, column: usize, a: &[u32], b: &[u32], word: u32) -> u32 {
        let (ElementType::Float(a_format), ElementType::Float(b_format)) =
            (self.idesc.a, self.idesc.b)
        else {
            return self.integer(a, b, word);
        };
        let scales = self.scales.as_ref().map(|s| {
            let count = s.factors.vec.per_instruction() as usize;
            (
                s.factors.format,
                s.a[row].to_le_bytes(),
                s.b[column].to_le_bytes(),
                count,
            )
        });
        let negate = self.idesc.negate_a != self.idesc.negate_b;
        if self.arithmetic == Arithmetic::F32 {
            return self.plain((a_format, a), (b_format, b), scales, negate, word);
        }
        let (c, rule) = match self.idesc.d {
            AccumulatorType::F16 => (Number::of(Format::F16, word), SumRule::TCGEN05_F16),
            _ if a.len() == 64 => (Number::of_f32(f32::from_bits(word)), SumRule::TCGEN05_FP4),
            _ => (Number::of_f32(f32::from_bits(word)), SumRule::TCGEN05),
        };
        let scales = scales
            .as_ref()
            .map(|(f, sa, sb, n)| (*f, &sa[..*n], &sb[..*n]));
        Cell {
            a: (a_format, a),
            b: (b_format, b),
            scales,
            negate,
            c,
            rule,
        }
        .value()
    }

    fn plain(
        &self,
        (a_format, a): (Format, &[u32]),
        (b_format, b): (Format, &[u32]),
        scales: Option<(Format, [u8; 4], [u8; 4], usize)>,
        negate: bool,
        word: u32,
    ) -> u32 {
        let half = self.idesc.d == AccumulatorType::F16;
        let mut sum = if half {
            Format::F16.decode(word)
        } else {
            f32::from_bits(word)
        };
        for (k, (&a, &b)) in a.iter().zip(b).enumerate() {
            let mut product = a_format.decode(a) * b_format.decode(b);
            if let Some((format, sa, sb, count)) = &scales {
                let index = k * count / self.idesc.kind.k() as usize;
                product *= format.decode(sa[index].into()) * format.decode(sb[index].into());
            }
            sum += if negate { -product } else { product };
        }
        match half {
            _ if sum.is_nan() && half => 0x7fff,
            _ if sum.is_nan() => 0x7fff_ffff,
            true => Format::F16.encode(sum, Rounding::NearestEven, Overflow::Ieee),
            false => sum.to_bits(),
        }
    }

    fn integer(&self, a: &[u32], b: &[u32], word: u32) -> u32 {
        let value = |element: ElementType, code: u32| match element {
            ElementType::S8 => i64::from(code as u8 as i8),
            _ => i64::from(code),
        };
        let dot: i64 = a
            .iter()
            .zip(b)
            .map(|(&a, &b)| value(self.idesc.a, a) * value(self.idesc.b, b))
            .sum();
        let sum = dot + i64::from(word as i32);
        let clamped = sum.clamp(i32::MIN.into(), i32::MAX.into());
        // Without saturation the sum wraps.
        if self.idesc.saturate {
            clamped as u32
        } else {
            sum as u32
        }
    }
}

/// Divides accumulators by `2^shift`, as `scale-input-d` asks. Results below the normal numbers
/// are rounded to nearest.
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

/// The codes along K of every row.
fn codes(tile: &OperandTile) -> Vec<Vec<u32>> {
    tile.rows
        .iter()
        .map(|row| match tile.packing {
            Packing::Packed4 => (0..64)
                .map(|k| u32::from(row[k / 2] >> (k % 2 * 4) & 0xf))
                .collect(),
            Packing::Bits16 => row
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&le| u16::from_le_bytes(le).into())
                .collect(),
            Packing::Bits32 => row
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&le| u32::from_le_bytes(le))
                .collect(),
            _ => row.iter().map(|&code| code.into()).collect(),
        })
        .collect()
}
