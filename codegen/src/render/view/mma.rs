//! What the MMA warp issues.

use crate::plan::Plan;

/// One MMA step of K.
pub(in crate::render) struct Block {
    pub index: u32,
    /// Whether K ends before this block in the last K tile; set on the first such block, from
    /// which the rest is skipped.
    pub beyond_k: bool,
    /// Descriptor steps from the stage's A, B1 or B2.
    pub a: u32,
    pub b: u32,
    pub sfa: Vec<ScaleCopy>,
    pub sfb1: Vec<ScaleCopy>,
    pub sfb2: Vec<ScaleCopy>,
    pub sfa_column: u32,
    pub sfb1_column: u32,
    pub sfb2_column: u32,
    /// The predicate that says whether D is added to.
    pub accumulate: &'static str,
}

/// 512 bytes of scale factors on their way from SMEM to TMEM.
pub(in crate::render) struct ScaleCopy {
    /// 16-byte units from the slot's start.
    pub smem_units: u32,
    pub column: u32,
}

pub(super) fn block(p: &Plan, index: u32) -> Block {
    let d = &p.descriptors;
    let here = index * d.scale_step;
    let copies = |start: u32, column: u32| -> Vec<ScaleCopy> {
        (0..p.scales.b_row_blocks)
            .map(|row| ScaleCopy {
                smem_units: start / 16 + row * d.scale_row_step + here,
                column: column + 4 * row,
            })
            .collect()
    };
    let (sfb1, sfb2) = (p.tmem.sfb1 + index * p.tmem.sfb_step, p.tmem.sfb2 + index * p.tmem.sfb_step);
    let sfa = p.tmem.sfa + index * p.tmem.sfa_step;
    Block {
        index,
        beyond_k: p.ragged_k() && index == p.k_loop.last_blocks,
        a: d.a_blocks[index as usize],
        b: d.b_blocks[index as usize],
        sfa: vec![ScaleCopy { smem_units: here, column: sfa }],
        sfb1: copies(p.smem.sfb1, sfb1),
        sfb2: copies(p.smem.sfb2, sfb2),
        sfa_column: sfa,
        sfb1_column: sfb1,
        sfb2_column: sfb2,
        accumulate: if index == 0 { "%accumulate" } else { "1" },
    }
}
