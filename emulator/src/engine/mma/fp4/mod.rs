//! Kinds mxf4 and mxf4nvf4: K = 64 elements of e2m1 as four runs of 16, each an exact integer dot
//! product times a pair of scale factors.
//!
//! Operands are decoded once per instruction, B into the order that the dot product of the machine's
//! widest integer instruction wants:
//!
//! - [`avx512`]: AVX-512 VNNI, 16 columns at a time
//! - [`avx2`]: AVX2, 8 columns at a time
//! - [`portable`]: any machine, 16 columns at a time
//!
//! All three give the same bits, those of [`super::scalar`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::exact::power;
use super::operands::Scales;
use super::path::Path;
use crate::engine::descriptor::OperandTile;
use crate::engine::format::Format;

/// Columns of B that are packed together.
const BLOCK: usize = 16;

/// One row of A.
#[derive(Clone, Debug)]
struct Row {
    /// Twice the values: -12..=12.
    halves: [i8; 64],
    /// The same plus 12, four along K to a word: the unsigned factor of the SIMD dot products.
    quads: [u32; 16],
    /// For each run, the scale factor divided by 4 (values of A and B are both doubled).
    scale: [f64; 4],
    /// For each run, the power of two of the scale factor.
    power: [f64; 4],
}

/// 16 columns of B.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Block {
    /// Twice the values, `[k / 4][4 * column + k % 4]`.
    quads: [[i8; 64]; 16],
    /// By run: -12 times the sum of a column's 16 values, which makes up for [`Row::quads`] being
    /// 12 too large.
    correction: [[i32; BLOCK]; 4],
    /// By run: scale factors.
    scale: [[f64; BLOCK]; 4],
    /// By run: their powers of two.
    power: [[f64; BLOCK]; 4],
}

/// Decoded operands of one instruction.
#[derive(Clone, Debug)]
pub struct Fp4Product {
    path: Path,
    /// Round every partial sum to f32 instead of following the hardware.
    plain: bool,
    rows: Vec<Row>,
    blocks: Vec<Block>,
}

impl Fp4Product {
    /// Decodes packed e2m1 tiles and their scale factors.
    ///
    /// `negate` flips the sign of every product. With `plain` the four terms are added in f32, in
    /// order, rounding to nearest. A `path` that the machine lacks is replaced by one it has.
    pub fn new(
        path: Path,
        plain: bool,
        negate: bool,
        a: &OperandTile,
        b: &OperandTile,
        scales: &Scales,
    ) -> Self {
        let path = path.or_portable();
        let per_row = scales.factors.vec.per_instruction() as usize;
        let table = factor_table(scales.factors.format);
        let factor = |factors: u32, run: usize| {
            let byte = factors >> (8 * (run * per_row / 4));
            table[(byte & 0xff) as usize]
        };
        let rows = a.rows.iter().zip(&scales.a).map(|(codes, &factors)| {
            let mut row = Row::new(codes, negate);
            for run in 0..4 {
                let (scale, power) = factor(factors, run);
                row.scale[run] = scale * 0.25;
                row.power[run] = power;
            }
            row
        });
        let blocks = b.rows.chunks(BLOCK).zip(scales.b.chunks(BLOCK)).map(|(codes, factors)| {
            let mut block = Block::new(codes);
            for (column, &factors) in factors.iter().enumerate() {
                for run in 0..4 {
                    let (scale, power) = factor(factors, run);
                    block.scale[run][column] = scale;
                    block.power[run][column] = power;
                }
            }
            block
        });
        Self { path, plain, rows: rows.collect(), blocks: blocks.collect() }
    }

    /// Adds row `row` of A times B to f32 accumulators, one a column.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        let row = &self.rows[row];
        let (whole, rest) = words.as_chunks_mut::<BLOCK>();
        let (blocks, last) = self.blocks.split_at(whole.len());
        self.accumulate(row, blocks, whole);
        if !rest.is_empty() {
            let mut padded = [0; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            self.accumulate(row, last, std::slice::from_mut(&mut padded));
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }

    fn accumulate(&self, row: &Row, blocks: &[Block], words: &mut [[u32; BLOCK]]) {
        match self.path {
            // SAFETY: `new` kept these paths only if the processor has what they need.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { avx512::accumulate(row, blocks, words, self.plain) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { avx2::accumulate(row, blocks, words, self.plain) },
            _ => portable::accumulate(row, blocks, words, self.plain),
        }
    }
}

impl Row {
    fn new(codes: &[u8; 32], negate: bool) -> Self {
        let mut halves = decode(codes);
        if negate {
            halves = halves.map(|value| -value);
        }
        let quads = std::array::from_fn(|quad| {
            u32::from_le_bytes(std::array::from_fn(|k| (halves[4 * quad + k] + 12) as u8))
        });
        Self { halves, quads, scale: [0.0; 4], power: [0.0; 4] }
    }
}

impl Block {
    /// Packs up to 16 columns; missing ones are zeros.
    fn new(columns: &[[u8; 32]]) -> Self {
        let mut block = Self {
            quads: [[0; 64]; 16],
            correction: [[0; BLOCK]; 4],
            scale: [[0.0; BLOCK]; 4],
            power: [[1.0; BLOCK]; 4],
        };
        for (column, codes) in columns.iter().enumerate() {
            let halves = decode(codes);
            for (quad, values) in halves.as_chunks::<4>().0.iter().enumerate() {
                block.quads[quad][4 * column..][..4].copy_from_slice(values);
            }
            for (run, values) in halves.as_chunks::<16>().0.iter().enumerate() {
                let sum: i32 = values.iter().map(|&value| i32::from(value)).sum();
                block.correction[run][column] = -12 * sum;
            }
        }
        block
    }
}

/// Twice the values of 64 packed e2m1 codes, the even ones from the low nibbles.
fn decode(codes: &[u8; 32]) -> [i8; 64] {
    const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    std::array::from_fn(|k| HALVES[usize::from(codes[k / 2] >> (k % 2 * 4) & 0xf)])
}

/// Value and power of two of every scale factor code.
fn factor_table(format: Format) -> [(f64, f64); 256] {
    std::array::from_fn(|code| {
        let value = f64::from(format.decode(code as u32));
        let exponent = match value {
            0.0 => -126,
            _ if value.is_nan() => 0,
            _ => ((value.to_bits() >> 52) as i32 - 1023).max(format.min_exponent()),
        };
        (value, power(exponent))
    })
}
