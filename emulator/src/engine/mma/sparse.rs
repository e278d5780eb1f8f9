//! Sparse A and the zero columns of `.ws`.
//!
//! A holds half of the elements of every row, metadata says which. A row's product is the dense one of
//! what it holds with the same elements of B, whose scale factors (one per 16 or 32 elements held) are
//! used as they are.
//!
//! Metadata has four bits for each chunk: two indices of two bits, the first in the low ones.
//!
//! | kind | chunk | held | lane, bits of row m, element k |
//! |---|---|---|---|
//! | tf32 | 2 | 1 | m % 8 + 8 (k / 8) + 16 (m / 16); 16 (m / 8 % 2) + 2 (k % 8) |
//! | f16 | 4 | 2 | m % 8 + 8 (k / 16) + 16 (m / 16); 16 (m / 8 % 2) + k % 16 |
//! | 8-bit slots | 4 | 2 | m; k of 64 bits in two columns |
//! | mxf4, mxf4nvf4 | 8 | 2 pairs | m; k / 2 of 64 bits in two columns |
//!
//! For 16- and 32-bit elements the sparsity selector counts columns from the address. Where D's rows
//! come in groups of 16 so do these. Sources: PTX ISA, "Sparse Matrices" of `tcgen05`; CUTLASS
//! `mma_traits_sm100_frag.hpp` (`tmem_e_frg`) and `sm1xx_sparse_config.inl`.

use super::layout::{Half, base_lane, spreads_rows};
use super::operands::Scales;
use super::path::Path;
use super::product::Product;
use super::{Arithmetic, MmaError, Notes, Operand};
use crate::engine::descriptor::OperandTile;
use crate::engine::idesc::{InstructionDescriptor, MmaKind};
use crate::engine::tmem::{Tmem, TmemAddress};

/// A sparse product, for the columns of one half of D.
#[derive(Clone, Debug)]
pub struct SparseProduct {
    /// Its instruction descriptor.
    pub idesc: InstructionDescriptor,
    /// How products are added.
    pub arithmetic: Arithmetic,
    /// Host instructions.
    pub path: Path,
    /// The stored elements of A.
    pub a: OperandTile,
    /// The first and second 32 bytes of K of B.
    pub b: [OperandTile; 2],
    /// Scale factors.
    pub scales: Option<Scales>,
    /// Metadata of each row, four bits per chunk.
    pub metadata: Vec<u64>,
}

impl SparseProduct {
    /// Adds row `row` of A times all columns of B to `words`.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        let held = held(self.idesc.kind, self.metadata[row]);
        let rows = (self.b[0].rows.iter().zip(&self.b[1].rows))
            .map(|(low, high)| pick(self.idesc.kind, &held, low, high))
            .collect();
        let b = OperandTile { packing: self.b[0].packing, rows };
        let scales =
            self.scales.as_ref().map(|s| Scales { factors: s.factors, a: vec![s.a[row]], b: s.b.clone() });
        let a = self.a.slice(row..row + 1);
        Product::new(&self.idesc, self.arithmetic, self.path, &a, &b, scales.as_ref())
            .accumulate_row(0, words);
    }
}

/// The place among K of every group of bytes that A holds: of elements, or pairs of 4-bit ones.
fn held(kind: MmaKind, metadata: u64) -> Vec<usize> {
    let index = |chunk: usize, second: u32| (metadata >> (4 * chunk as u32 + 2 * second) & 3) as usize;
    match kind {
        MmaKind::Tf32 => (0..8).map(|c| 2 * c + index(c, 0) / 2).collect(),
        MmaKind::F16 => (0..16).map(|i| 4 * (i / 2) + index(i / 2, i as u32 % 2)).collect(),
        _ => (0..32).map(|i| 4 * (i / 2) + index(i / 2, i as u32 % 2)).collect(),
    }
}

fn pick(kind: MmaKind, held: &[usize], low: &[u8; 32], high: &[u8; 32]) -> [u8; 32] {
    let width = match kind {
        MmaKind::Tf32 => 4,
        MmaKind::F16 => 2,
        _ => 1,
    };
    let mut out = [0; 32];
    for (to, &from) in out.chunks_exact_mut(width).zip(held) {
        let at = from * width;
        let source = if at < 32 { &low[at..] } else { &high[at - 32..] };
        to.copy_from_slice(&source[..width]);
    }
    out
}

/// The metadata of every row of a CTA's A, for the lanes of `half`.
pub(super) fn read_metadata<E>(
    idesc: &InstructionDescriptor,
    address: u32,
    half: Half,
    tmem: &Tmem,
    notes: &mut Notes<'_, E>,
) -> Result<Vec<u64>, MmaError<E>> {
    let operand = Operand::Metadata;
    base_lane(idesc, operand, address)?;
    let at = TmemAddress::from_bits(address);
    let mut word = |lane: u32, column: u32| notes.row(tmem, operand, (lane, column, 1)).map(|w| w[0]);
    let groups = if spreads_rows(idesc) { 32 } else { 16 };
    let mut all = Vec::with_capacity(idesc.rows_per_cta() as usize);
    for row in 0..idesc.rows_per_cta() {
        let first = half.lane + row / 16 * groups;
        let bits = if matches!(idesc.kind, MmaKind::F16 | MmaKind::Tf32) {
            let column = at.column + idesc.selector;
            let mut part =
                |k: u32| word(first + row % 8 + 8 * k, column).map(|w| w >> (row / 8 % 2 * 16) & 0xffff);
            u64::from(part(0)?) | u64::from(part(1)?) << 16
        } else {
            let lane = first + row % 16;
            u64::from(word(lane, at.column)?) | u64::from(word(lane, at.column + 1)?) << 32
        };
        all.push(bits);
    }
    for (row, &bits) in (0..).zip(&all) {
        check(idesc.kind, row, bits).or_else(|e| notes.put(e))?;
    }
    Ok(all)
}

fn check<E>(kind: MmaKind, row: u32, bits: u64) -> Result<(), MmaError<E>> {
    let chunks = if matches!(kind, MmaKind::F16 | MmaKind::Tf32) { 8 } else { 16 };
    for chunk in 0..chunks {
        let index = (bits >> (4 * chunk) & 15) as u32;
        let known = match kind {
            MmaKind::Tf32 => matches!(index, 0b1110 | 0b0100),
            _ => matches!(index, 0b0100 | 0b1000 | 0b1100 | 0b1001 | 0b1101 | 0b0110 | 0b1110),
        };
        if !known {
            return Err(MmaError::Metadata { row, chunk, index, kind });
        }
    }
    Ok(())
}

/// The zero-column mask of `.ws` (PTX ISA, "Zero-Column Mask Descriptor").
///
/// The manual's table names the spans the other way round from its four examples; the examples are
/// followed: `use span` columns of B are used, then `skip span` columns are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroColumns {
    /// Columns by which B is shifted.
    pub shift: u32,
    /// For every column of D, whether B's is zero; empty for none.
    zero: Vec<bool>,
}

impl ZeroColumns {
    /// Decodes and checks a descriptor; 0 is none.
    pub(super) fn decode<E>(descriptor: u64, idesc: &InstructionDescriptor) -> Result<Self, MmaError<E>> {
        let shift = (descriptor >> 56 & 0x3f) as u32;
        let limit = idesc.max_shift.min(if idesc.m == 32 { 16 } else { 32 });
        if descriptor >> 36 & 7 != 0 || descriptor >> 62 != 0 || shift > limit {
            return Err(MmaError::ZeroColumns { descriptor, limit });
        }
        let mut zero = Vec::new();
        if descriptor >> 39 & 1 == 1 {
            let parts = 128 / idesc.m;
            let skip = (descriptor >> 40 & 0xff) as u32 + 1;
            let used = (descriptor >> 48 & 0xff) as u32 + 1;
            for part in 0..parts {
                let start = (descriptor >> (8 * part) & 0xff) as u32;
                let first = descriptor >> (32 + part) & 1 == 1;
                let (on, off) = if first { (skip, used) } else { (used, skip) };
                let columns = (0..idesc.n / parts).map(|c| ((c + start) % (on + off) < on) == first);
                zero.extend(columns);
            }
        }
        Ok(Self { shift, zero })
    }

    /// Clears the zero columns of B.
    pub(super) fn clear(&self, b: &mut OperandTile) {
        for (row, _) in b.rows.iter_mut().zip(&self.zero).filter(|(_, z)| **z) {
            *row = [0; 32];
        }
    }
}
