//! What the MMA warp issues.

use crate::plan::{Plan, TmemMap};
use crate::render::view::steps::{MmaOperands, operands};
use crate::target::sm_100a::descriptor::with_scale_id;

/// One MMA step of K.
pub(crate) struct Block {
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

/// One MMA: its operands, and TMEM columns of their scale factors.
pub(crate) struct Mma {
    pub operands: MmaOperands,
    pub rows_scales: u32,
    pub columns_scales: u32,
}

/// 512 bytes of scale factors on their way from SMEM to TMEM.
pub(crate) struct ScaleCopy {
    /// 16-byte units from the slot's start.
    pub smem_units: u32,
    pub column: u32,
}

pub(super) fn block(p: &Plan, tmem: &TmemMap, index: u32) -> Block {
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
    let (sfb1, sfb2) = (tmem.sfb1 + scale_block * tmem.sfb_step, tmem.sfb2 + scale_block * tmem.sfb_step);
    let sfa = tmem.sfa + scale_block * tmem.sfa_step;
    let [product1, product2] = operands(p, index);
    let mma = |operands, sfb: u32| {
        let (rows_scales, columns_scales) = if p.swap_ab { (sfb, sfa) } else { (sfa, sfb) };
        Mma { operands, rows_scales, columns_scales }
    };
    Block {
        index,
        instruction: format!("{:#010x}", with_scale_id(d.instruction, step * p.kind.scales_per_mma())),
        beyond_k: p.ragged_k() && index == p.k_loop.last_blocks,
        sfa: copies(0, sfa, p.scales.a_row_blocks),
        sfb1: copies(p.smem.sfb1, sfb1, p.scales.b_row_blocks),
        sfb2: copies(p.smem.sfb2, sfb2, p.scales.b_row_blocks),
        product1: mma(product1, sfb1),
        product2: mma(product2, sfb2),
        accumulate: if index == 0 { "%accumulate" } else { "1" },
    }
}
