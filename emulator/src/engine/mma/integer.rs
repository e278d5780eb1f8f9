//! Kind i8: 8-bit integers, exact sums, wrapping or saturating accumulators.

use super::path::Path;
use crate::engine::descriptor::OperandTile;

/// Columns worked on at a time.
const LANES: usize = 16;

/// Decoded operands of one instruction.
#[derive(Clone, Debug)]
pub struct IntegerProduct {
    path: Path,
    saturate: bool,
    a: Vec<[i16; 32]>,
    /// For every 16 columns, K times 16 values.
    b: Vec<[[i16; LANES]; 32]>,
}

impl IntegerProduct {
    /// Decodes tiles of signed or unsigned bytes. With `saturate` accumulators stop at the limits
    /// of 32 bits, else they wrap. A `path` that the machine lacks is replaced by one it has.
    pub fn new(
        path: Path,
        saturate: bool,
        (a_signed, a): (bool, &OperandTile),
        (b_signed, b): (bool, &OperandTile),
    ) -> Self {
        let value = |signed: bool, byte: u8| match signed {
            true => i16::from(byte as i8),
            false => i16::from(byte),
        };
        let rows = a.rows.iter().map(|row| row.map(|byte| value(a_signed, byte))).collect();
        let mut blocks = vec![[[0; LANES]; 32]; b.rows.len().div_ceil(LANES)];
        for (column, codes) in b.rows.iter().enumerate() {
            for (lanes, &byte) in blocks[column / LANES].iter_mut().zip(codes) {
                lanes[column % LANES] = value(b_signed, byte);
            }
        }
        Self { path: path.or_portable(), saturate, a: rows, b: blocks }
    }

    /// Adds row `row` of A times B to s32 accumulators, one a column.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        for (words, b) in words.chunks_mut(LANES).zip(&self.b) {
            let dots = match self.path {
                // SAFETY: `new` kept these paths only if the processor has what they need.
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 | Path::Avx2 => unsafe { avx2(&self.a[row], b) },
                _ => dots(&self.a[row], b),
            };
            for (word, dot) in words.iter_mut().zip(dots) {
                let c = *word as i32;
                let sum = if self.saturate { c.saturating_add(dot) } else { c.wrapping_add(dot) };
                *word = sum as u32;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(a: &[i16; 32], b: &[[i16; LANES]; 32]) -> [i32; LANES] {
    dots(a, b)
}

/// Sums of 32 products below 2^16: far from the limits.
#[inline(always)]
fn dots(a: &[i16; 32], b: &[[i16; LANES]; 32]) -> [i32; LANES] {
    let mut sums = [0; LANES];
    for (&a, b) in a.iter().zip(b) {
        for (sum, &b) in sums.iter_mut().zip(b) {
            *sum += i32::from(a) * i32::from(b);
        }
    }
    sums
}
