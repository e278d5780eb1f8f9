//! What the MMA warp issues.

use crate::plan::{Plan, with_scale_id};

/// One MMA step of K.
pub(in crate::render) struct Block {
    pub index: u32,
    /// The instruction descriptor.
    pub instruction: String,
    /// Whether K ends before this block in the last K tile; set on the first such block, from
    /// which the rest is skipped.
    pub beyond_k: bool,
    pub sfa: Vec<ScaleCopy>,
    pub sfb1: Vec<ScaleCopy>,
    pub sfb2: Vec<ScaleCopy>,
    pub product1: Mma,
    pub product2: Mma,
    /// The predicate that says whether D is added to.
    pub accumulate: &'static str,
}

/// What one MMA reads: on its row side A, on its column side B, or the other way round.
pub(in crate::render) struct Mma {
    /// The registers of the operands' first descriptor words in the stage, and the steps from there.
    pub rows: &'static str,
    pub rows_step: u32,
    pub columns: &'static str,
    pub columns_step: u32,
    /// TMEM columns of their scale factors.
    pub rows_scales: u32,
    pub columns_scales: u32,
}

/// 512 bytes of scale factors on their way from SMEM to TMEM.
pub(in crate::render) struct ScaleCopy {
    /// 16-byte units from the slot's start.
    pub smem_units: u32,
    pub column: u32,
}

pub(super) fn block(p: &Plan, index: u32) -> Block {
    let d = &p.descriptors;
    let (scale_block, step) = (index / p.scales.steps_per_block, index % p.scales.steps_per_block);
    let here = scale_block * d.scale_step;
    let scaled = p.kind.scales_per_mma() > 0;
    let copies = |start: u32, column: u32, rows: u32| -> Vec<ScaleCopy> {
        // A block of four serves the steps after it, too.
        (0..if scaled && step == 0 { rows } else { 0 })
            .map(|row| ScaleCopy {
                smem_units: start / 16 + row * d.scale_row_step + here,
                column: column + 4 * row,
            })
            .collect()
    };
    let (sfb1, sfb2) =
        (p.tmem.sfb1 + scale_block * p.tmem.sfb_step, p.tmem.sfb2 + scale_block * p.tmem.sfb_step);
    let sfa = p.tmem.sfa + scale_block * p.tmem.sfa_step;
    let (a_step, b_step) = (d.a_blocks[index as usize], d.b_blocks[index as usize]);
    let mma = |b: &'static str, sfb: u32| match p.swap_ab {
        false => Mma {
            rows: "%a",
            rows_step: a_step,
            columns: b,
            columns_step: b_step,
            rows_scales: sfa,
            columns_scales: sfb,
        },
        true => Mma {
            rows: b,
            rows_step: b_step,
            columns: "%a",
            columns_step: a_step,
            rows_scales: sfb,
            columns_scales: sfa,
        },
    };
    Block {
        index,
        instruction: format!("{:#010x}", with_scale_id(d.instruction, step * p.kind.scales_per_mma())),
        beyond_k: p.ragged_k() && index == p.k_loop.last_blocks,
        sfa: copies(0, sfa, p.scales.a_row_blocks),
        sfb1: copies(p.smem.sfb1, sfb1, p.scales.b_row_blocks),
        sfb2: copies(p.smem.sfb2, sfb2, p.scales.b_row_blocks),
        product1: mma("%b1", sfb1),
        product2: mma("%b2", sfb2),
        accumulate: if index == 0 { "%accumulate" } else { "1" },
    }
}
