//! Operands of `tcgen05.mma`: A and B through matrix descriptors, A and the scale factors out of
//! Tensor Memory.
//!
//! Sources: PTX ISA, `tcgen05.mma` scale factor layouts; CUTLASS `mma_traits_sm100_frag.hpp` and
//! `sm100_blockscaled_layout.hpp`.

use super::layout::{Half, base_lane, copies, scale_columns_of_b, spreads_rows};
use super::{CtaMemory, MmaError, MmaInstruction, Notes, Operand, OperandA};
use crate::engine::descriptor::{GatherError, OperandTile, Packing, SmemDescriptor};
use crate::engine::idesc::{InstructionDescriptor, MmaKind, ScaleFactors, ScaleVec};
use crate::engine::tmem::{Tmem, TmemAddress};

/// Scale factors of one instruction: up to 4 bytes per row, the first along K in the lowest byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scales {
    /// Format and count.
    pub factors: ScaleFactors,
    /// For every row of A.
    pub a: Vec<u32>,
    /// For every column of B.
    pub b: Vec<u32>,
}

impl OperandTile {
    /// Some of its rows.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> Self {
        Self { packing: self.packing, rows: self.rows[rows].to_vec() }
    }
}

fn gather_error<E>(operand: Operand) -> impl Fn(GatherError<E>) -> MmaError<E> {
    move |error| match error {
        GatherError::Descriptor(source) => MmaError::Descriptor { operand, source },
        GatherError::Memory(error) => MmaError::Memory { operand, error },
    }
}

/// Gathers all N columns of B: each CTA's part, the even CTA's first. A sparse product has two steps of K, of which
/// this is the `step`-th. With `.ws` the columns start at `shift`.
pub(super) fn gather_b<E>(
    instruction: &MmaInstruction,
    idesc: &InstructionDescriptor,
    ctas: &mut [CtaMemory<'_, E>],
    (step, shift): (u32, u32),
) -> Result<OperandTile, MmaError<E>> {
    let descriptor = SmemDescriptor::decode_sm100(instruction.b)
        .map_err(|source| MmaError::Descriptor { operand: Operand::B, source })?;
    let packing = idesc.packing(idesc.b);
    let mut all: Option<OperandTile> = None;
    for cta in ctas {
        let tile = descriptor
            .gather_from(idesc.b_major, packing, idesc.columns_per_cta() + shift, step, cta.smem)
            .map_err(gather_error(Operand::B))?;
        let tile = if shift > 0 { tile.slice(shift as usize..tile.rows.len()) } else { tile };
        match &mut all {
            None => all = Some(tile),
            Some(all) => all.rows.extend(tile.rows),
        }
    }
    Ok(all.unwrap_or(OperandTile { packing, rows: Vec::new() }))
}

/// Gathers one CTA's rows of A.
pub(super) fn gather_a<E>(
    instruction: &MmaInstruction,
    idesc: &InstructionDescriptor,
    cta: &mut CtaMemory<'_, E>,
    notes: &mut Notes<'_, E>,
) -> Result<OperandTile, MmaError<E>> {
    let operand = Operand::A;
    let packing = idesc.packing(idesc.a);
    match instruction.a {
        OperandA::Smem(bits) => {
            let descriptor = SmemDescriptor::decode_sm100(bits)
                .map_err(|source| MmaError::Descriptor { operand, source })?;
            descriptor
                .gather(idesc.a_major, packing, idesc.rows_per_cta(), cta.smem)
                .map_err(gather_error(operand))
        }
        OperandA::Tmem(address) => a_from_tmem(instruction, idesc, packing, address, cta.tmem, notes),
    }
}

fn a_from_tmem<E>(
    instruction: &MmaInstruction,
    idesc: &InstructionDescriptor,
    packing: Packing,
    address: u32,
    tmem: &Tmem,
    notes: &mut Notes<'_, E>,
) -> Result<OperandTile, MmaError<E>> {
    let operand = Operand::A;
    let base = base_lane(idesc, operand, address)?;
    let column = TmemAddress::from_bits(address).column;
    // Sums in f32 are what tf32 reads, in the same layout; no other kind's A is laid out as any sums are.
    let sums = instruction.kind != MmaKind::Tf32;
    let mut read = |lane: u32| {
        let words = notes.row(tmem, operand, (lane, column, 8))?;
        if let Some(column) = tmem.first_sum(lane, column, 8).filter(|_| sums) {
            notes.put(MmaError::Sums { operand, lane, column })?;
        }
        Ok::<_, MmaError<E>>(words)
    };
    let mut rows = Vec::with_capacity(idesc.rows_per_cta() as usize);
    let last = idesc.rows_per_cta() - 1;
    for row in 0..=last {
        // `.ashift`: as tcgen05.shift, every row but the last is the one after it.
        let row = if instruction.variant.shift_a { (row + 1).min(last) } else { row };
        let lane = base + if spreads_rows(idesc) { 32 * (row / 16) + row % 16 } else { row };
        let words = read(lane)?;
        for copy in 1..copies(idesc) {
            // The other lanes work on other parts of N and need their own copies of A.
            let second = lane + copy * (128 / copies(idesc));
            let copy = read(second)?;
            if let Some(i) = (0..8).find(|&i| words[i] != copy[i]) {
                return Err(MmaError::NotReplicated {
                    operand,
                    row,
                    first: lane,
                    second,
                    column: column + i as u32,
                    first_word: words[i],
                    second_word: copy[i],
                });
            }
        }
        let mut bytes = [0u8; 32];
        for (four, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *four = word.to_le_bytes();
        }
        match packing {
            // 0b00ABCD00, as tcgen05.cp's decompression leaves them.
            Packing::Slot4 => bytes.iter_mut().for_each(|b| *b = *b >> 2 & 0xf),
            Packing::Slot6 => bytes.iter_mut().for_each(|b| *b &= 0x3f),
            _ => {}
        }
        rows.push(bytes);
    }
    let packing = match packing {
        Packing::Slot4 | Packing::Slot6 => Packing::Bits8,
        other => other,
    };
    Ok(OperandTile { packing, rows })
}

/// The scale factors that the lanes of `half` work with; `None` for plain kinds.
pub(super) fn read_scales<E>(
    instruction: &MmaInstruction,
    idesc: &InstructionDescriptor,
    tmem: &Tmem,
    half: Half,
    notes: &mut Notes<'_, E>,
) -> Result<Option<Scales>, MmaError<E>> {
    let Some(factors) = idesc.scale else {
        return Ok(None);
    };
    let a = read_factors(
        tmem,
        Operand::ScaleA,
        instruction.scale_a,
        (factors.vec, factors.a_id),
        (idesc.rows_per_cta(), half.quarters),
        notes,
    )?;
    let column = TmemAddress::from_bits(instruction.scale_b & 0x3fff_ffff).column;
    tmem.check_live(0, column, scale_columns_of_b(half.count))
        .map_err(|source| MmaError::Tmem { operand: Operand::ScaleB, source })?;
    let b = read_factors(
        tmem,
        Operand::ScaleB,
        instruction.scale_b,
        (factors.vec, factors.b_id),
        (half.count, half.quarters),
        notes,
    )?;
    Ok(Some(Scales { factors, a, b }))
}

/// Row r's factors are in lane r % 32 of each quarter, column r / 32, from byte `id` on.
fn read_factors<E>(
    tmem: &Tmem,
    operand: Operand,
    address: u32,
    (vec, id): (ScaleVec, u8),
    (rows, quarters): (u32, u32),
    notes: &mut Notes<'_, E>,
) -> Result<Vec<u32>, MmaError<E>> {
    // The two top bits are a byte selector in CUTLASS's pointers; the instruction descriptor says
    // the same again, and that is what counts.
    let at = TmemAddress::from_bits(address & 0x3fff_ffff);
    if at.lane != 0 {
        let rule = "scale factors start at lane 0";
        return Err(MmaError::Lane { operand, address, lane: at.lane, rule });
    }
    let mask = u32::MAX >> (32 - 8 * vec.per_instruction());
    let mut factors = vec![0; rows as usize];
    let first = quarters.trailing_zeros();
    for quarter in (0..4).filter(|q| quarters >> q & 1 == 1) {
        for lane in 0..rows.min(32) {
            let columns = (rows - lane).div_ceil(32);
            let words = notes.row(tmem, operand, (32 * quarter + lane, at.column, columns))?;
            if let Some(column) = tmem.first_sum(32 * quarter + lane, at.column, columns) {
                notes.put(MmaError::Sums { operand, lane: 32 * quarter + lane, column })?;
            }
            for (column, &word) in words.iter().enumerate() {
                let word = word >> (8 * id) & mask;
                let row = 32 * column + lane as usize;
                if quarter == first {
                    factors[row] = word;
                } else if factors[row] != word {
                    return Err(MmaError::NotReplicated {
                        operand,
                        row: row as u32,
                        first: 32 * first + lane,
                        second: 32 * quarter + lane,
                        column: at.column + column as u32,
                        first_word: factors[row],
                        second_word: word,
                    });
                }
            }
        }
    }
    Ok(factors)
}
