//! Kinds mxf4 and mxf4nvf4: K = 64 elements of e2m1 as four runs of 16, each an exact integer dot
//! product times a pair of scale factors.
//!
//! Operands are decoded once per instruction, B into the order that the dot product of the machine's
//! widest integer instruction wants:
//!
//! - `avx512`: AVX-512 VNNI, 16 columns at a time
//! - `avx2`: AVX2, 8 columns at a time
//! - `portable`: any machine, 16 columns at a time
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
use super::sum::ZERO_EXPONENT;
use crate::engine::descriptor::OperandTile;
use crate::engine::format::Format;
use std::sync::LazyLock;

/// Columns of B that are packed together.
const BLOCK: usize = 16;

/// One row of A.
#[derive(Clone, Debug)]
struct Row {
    /// Twice the values plus 12, four along K to a word, the first in the lowest byte: the unsigned
    /// factor of the SIMD dot products.
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
    /// Twice the values as signed bytes, `[k / 4][column]`, four along K to a word.
    quads: [[u32; BLOCK]; 16],
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
        let mut row = Self { quads: quads(codes), scale: [0.0; 4], power: [0.0; 4] };
        for quad in &mut row.quads {
            let values = quad.to_le_bytes().map(|byte| byte as i8);
            let values = values.map(|value| if negate { 12 - value } else { 12 + value });
            *quad = u32::from_le_bytes(values.map(|value| value as u8));
        }
        row
    }
}

impl Block {
    /// Packs up to 16 columns; missing ones are zeros.
    fn new(columns: &[[u8; 32]]) -> Self {
        let mut block = Self {
            quads: [[0; BLOCK]; 16],
            correction: [[0; BLOCK]; 4],
            scale: [[0.0; BLOCK]; 4],
            power: [[1.0; BLOCK]; 4],
        };
        for (column, codes) in columns.iter().enumerate() {
            for (quad, values) in quads(codes).into_iter().enumerate() {
                block.quads[quad][column] = values;
            }
            for (run, pairs) in codes.as_chunks::<8>().0.iter().enumerate() {
                let sum: i32 = pairs.iter().map(|&pair| PAIR_SUM[usize::from(pair)]).sum();
                block.correction[run][column] = -12 * sum;
            }
        }
        block
    }
}

/// Twice the values of the e2m1 codes.
const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Twice the values of two packed codes, as two bytes, the low nibble's in the low byte.
static PAIR: [u32; 256] = {
    let mut table = [0; 256];
    let mut pair = 0;
    while pair < 256 {
        let (low, high) = (HALVES[pair & 0xf] as u8, HALVES[pair >> 4] as u8);
        table[pair] = u16::from_le_bytes([low, high]) as u32;
        pair += 1;
    }
    table
};

/// Twice the sum of the values of two packed codes.
static PAIR_SUM: [i32; 256] = {
    let mut table = [0; 256];
    let mut pair = 0;
    while pair < 256 {
        table[pair] = HALVES[pair & 0xf] as i32 + HALVES[pair >> 4] as i32;
        pair += 1;
    }
    table
};

/// Twice the values of 64 packed codes, four to a word, as signed bytes.
fn quads(codes: &[u8; 32]) -> [u32; 16] {
    let pairs = codes.as_chunks::<2>().0;
    std::array::from_fn(|quad| {
        let [low, high] = pairs[quad];
        PAIR[usize::from(low)] | PAIR[usize::from(high)] << 16
    })
}

/// Value and power of two of every code of a scale factor.
type FactorTable = [(f64, f64); 256];

fn factor_table(format: Format) -> &'static FactorTable {
    static UE4M3: LazyLock<FactorTable> = LazyLock::new(|| make_table(Format::Ue4m3));
    static UE8M0: LazyLock<FactorTable> = LazyLock::new(|| make_table(Format::Ue8m0));
    if format == Format::Ue4m3 { &UE4M3 } else { &UE8M0 }
}

fn make_table(format: Format) -> FactorTable {
    std::array::from_fn(|code| {
        let value = f64::from(format.decode(code as u32));
        let exponent = match value {
            0.0 => ZERO_EXPONENT,
            _ if value.is_nan() => 0,
            _ => ((value.to_bits() >> 52) as i32 - 1023).max(format.min_exponent()),
        };
        (value, power(exponent))
    })
}
