//! Plain code.

use super::super::exact::{EXPONENT, alignment, larger, power, to_f32_toward_zero, truncate};
use super::{BLOCK, Block, Row};

/// Adds one row of A times the blocks to the accumulators.
pub(super) fn accumulate(row: &Row, blocks: &[Block], words: &mut [[u32; BLOCK]], plain: bool) {
    for (block, words) in blocks.iter().zip(words) {
        let dots = dots(row, block);
        for (column, word) in words.iter_mut().enumerate() {
            let term = |run: usize| {
                let scale = row.scale[run] * block.scale[run][column];
                f64::from(dots[run][column]) * scale
            };
            if plain {
                let sum = (0..4).fold(f32::from_bits(*word), |sum, run| sum + term(run) as f32);
                *word = if sum.is_nan() { 0x7fff_ffff } else { (sum + 0.0).to_bits() };
                continue;
            }
            let c = f64::from(f32::from_bits(*word));
            let accumulator = larger(f64::from_bits(c.to_bits() & EXPONENT), power(-126));
            let largest = (0..4)
                .fold(accumulator, |largest, run| larger(largest, row.power[run] * block.power[run][column]));
            let align = alignment(35, largest);
            let sum = (0..4).fold(truncate(c * align), |sum, run| sum + truncate(term(run) * align));
            *word = to_f32_toward_zero(sum * (largest * power(-35)));
        }
    }
}

/// Four times the dot products, by run and column.
fn dots(row: &Row, block: &Block) -> [[i16; BLOCK]; 4] {
    // At most 16 * 12 * 12 in magnitude.
    let mut dots = [[0i16; BLOCK]; 4];
    for (run, dots) in dots.iter_mut().enumerate() {
        for quad in 4 * run..4 * run + 4 {
            let a = row.quads[quad].to_le_bytes().map(|byte| i16::from(byte) - 12);
            for (dot, b) in dots.iter_mut().zip(&block.quads[quad]) {
                for (a, b) in a.into_iter().zip(b.to_le_bytes()) {
                    *dot += a * i16::from(b as i8);
                }
            }
        }
    }
    dots
}
