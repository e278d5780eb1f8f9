//! Where D lies in Tensor Memory.
//!
//! | case | name in the ISA | CTA | lane of (m, n) | column |
//! |---|---|---|---|---|
//! | one CTA, M 128 | D | 0 | m | n |
//! | one CTA, M 64 | F | 0 | 32 (m / 16) + m % 16, 16 further if d's lane is 16 | n |
//! | two CTAs, M 256 | A | m / 128 | m % 128 | n |
//! | `.ws`, M 128 | D | 0 | m | n |
//! | `.ws`, M 64 | E | 0 | m + 64 (n >= N / 2) | n % (N / 2) |
//! | `.ws`, M 32 | G | 0 | m + 32 (n / (N / 4)) | n % (N / 4) |
//! | two CTAs, M 128, sparse | C | m / 64 | as F | n |
//! | two CTAs, M 128 | B | m / 64 | m % 64 + 64 (n >= N / 2) | n % (N / 2) |
//!
//! Sources: PTX ISA, `tcgen05.mma` data path layouts; CUTLASS `mma_traits_sm100_frag.hpp`.

use super::{MmaError, MmaInstruction, Operand, OperandA};
use crate::engine::idesc::{CtaGroup, InstructionDescriptor};
use crate::engine::tmem::TmemAddress;

/// A range of D's columns that lies in one set of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// First column of D.
    pub first: u32,
    /// Columns.
    pub count: u32,
    /// Lane of row 0.
    pub lane: u32,
    /// The quarters of the lanes whose tensor-core slices work on it, each with its own copy of
    /// the scale factors.
    pub quarters: u32,
}

impl Half {
    /// The columns, as a range of B's rows.
    pub fn columns(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// The layout of one instruction's D.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DLayout {
    column: u32,
    /// Rows come in groups of 16 that are 32 lanes apart (layout F).
    spread: bool,
    halves: [Half; 4],
    count: usize,
}

impl DLayout {
    /// The layout for an instruction whose D operand is `address`.
    ///
    /// # Errors
    /// [`MmaError::Lane`] for a lane field other than 0 (or 16, with M 64 and one CTA).
    pub fn new<E>(idesc: &InstructionDescriptor, address: u32) -> Result<Self, MmaError<E>> {
        let lane = base_lane(idesc, Operand::D, address)?;
        let n = idesc.n;
        let whole = Half { first: 0, count: n, lane, quarters: 0b1111 };
        let count = copies(idesc);
        let mut halves = [whole; 4];
        if count > 1 {
            for (i, half) in (0..count).zip(&mut halves) {
                let quarters = (0b1111 >> (4 - 4 / count)) << (i * (4 / count));
                *half = Half { first: i * (n / count), count: n / count, lane: i * (128 / count), quarters };
            }
        }
        let count = count as usize;
        let column = TmemAddress::from_bits(address).column;
        Ok(Self { column, spread: spreads_rows(idesc), halves, count })
    }

    /// The parts of D, by columns.
    pub fn halves(&self) -> &[Half] {
        &self.halves[..self.count]
    }

    /// First Tensor Memory column of every half.
    pub fn column(&self) -> u32 {
        self.column
    }

    /// Lane of row `row` (of the CTA's own rows).
    pub fn lane(&self, row: u32, half: Half) -> u32 {
        half.lane + if self.spread { 32 * (row / 16) + row % 16 } else { row }
    }
}

/// Whether each group of 16 rows of D occupies the first 16 lanes of another quarter (32 lanes) of tensor memory.
pub(crate) fn spreads_rows(idesc: &InstructionDescriptor) -> bool {
    match idesc.cta_group {
        CtaGroup::One => idesc.m == 64 && !idesc.form.stationary,
        CtaGroup::Two => idesc.m == 128 && idesc.form.sparse,
    }
}

/// Into how many parts N is cut, each in lanes of its own, which need their own copy of A.
pub(crate) fn copies(idesc: &InstructionDescriptor) -> u32 {
    match (idesc.cta_group, idesc.m) {
        (CtaGroup::One, 32) => 4,
        (CtaGroup::One, 64) if idesc.form.stationary => 2,
        (CtaGroup::Two, 128) if !idesc.form.sparse => 2,
        _ => 1,
    }
}

/// Columns of Tensor Memory that the scale factors of `n` columns of B take: always an even number, as the checks count that
/// ptxas 13.5 adds with `--g-tensor-memory-access-check`.
pub(crate) const fn scale_columns_of_b(n: u32) -> u32 {
    2 * n.div_ceil(64)
}

/// Checks that D does not overlap an operand of the same instruction in tensor memory, which the ISA does not allow.
pub(super) fn check_overlap<E>(
    instruction: &MmaInstruction,
    idesc: &InstructionDescriptor,
) -> Result<(), MmaError<E>> {
    let d = TmemAddress::from_bits(instruction.d);
    let end = d.column + idesc.n / copies(idesc);
    // Rows of 16 lanes in each quarter leave the other 16 to others.
    let apart = |at: TmemAddress| spreads_rows(idesc) && at.lane != d.lane;
    let mut operands = Vec::with_capacity(4);
    if let OperandA::Tmem(a) = instruction.a {
        let at = TmemAddress::from_bits(a);
        if !apart(at) {
            operands.push((Operand::A, at.column, 8));
        }
    }
    if idesc.scale.is_some() {
        let column = |address: u32| TmemAddress::from_bits(address & 0x3fff_ffff).column;
        let n = idesc.n / copies(idesc);
        operands.push((Operand::ScaleA, column(instruction.scale_a), idesc.rows_per_cta().div_ceil(32)));
        operands.push((Operand::ScaleB, column(instruction.scale_b), scale_columns_of_b(n)));
    }
    if let Some(metadata) = instruction.variant.metadata {
        let at = TmemAddress::from_bits(metadata);
        if !apart(at) {
            let columns = if idesc.kind.k() > 16 { 2 } else { 1 };
            operands.push((Operand::Metadata, at.column + idesc.selector, columns));
        }
    }
    match operands.into_iter().find(|&(_, first, count)| first < end && d.column < first + count) {
        Some((operand, first, _)) => Err(MmaError::OverOperand {
            operand,
            first: d.column,
            last: end - 1,
            column: first.max(d.column),
        }),
        None => Ok(()),
    }
}

/// The lane field of D's or A's address, checked.
pub(super) fn base_lane<E>(
    idesc: &InstructionDescriptor,
    operand: Operand,
    address: u32,
) -> Result<u32, MmaError<E>> {
    let lane = TmemAddress::from_bits(address).lane;
    if lane == 0 || lane == 16 && spreads_rows(idesc) {
        return Ok(lane);
    }
    let rule = if spreads_rows(idesc) {
        "with M 64 the matrix starts at lane 0 or 16"
    } else {
        "the matrix starts at lane 0"
    };
    Err(MmaError::Lane { operand, address, lane, rule })
}

#[cfg(test)]
mod tests {
    use super::scale_columns_of_b;

    #[test]
    fn scale_factors_of_b_take_an_even_number_of_columns() {
        let counts = [8, 32, 40, 64, 72, 96, 128, 192, 256].map(scale_columns_of_b);
        assert_eq!(counts, [2, 2, 2, 2, 4, 4, 4, 6, 8]);
    }
}
