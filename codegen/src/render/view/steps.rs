//! Where in a stage one MMA step finds its operands.

use crate::plan::Plan;

/// What one MMA reads: on its row side A, on its column side B, or the other way round.
#[derive(Clone, Copy)]
pub(crate) struct MmaOperands {
    /// The registers of the operands' first descriptor words in the stage, and the steps from there.
    pub rows: &'static str,
    pub rows_step: u32,
    pub columns: &'static str,
    pub columns_step: u32,
}

/// The operands of both products in step `index` of a K tile.
pub(crate) fn operands(p: &Plan, index: u32) -> [MmaOperands; 2] {
    let (a_step, b_step) = (p.descriptors.a_blocks[index as usize], p.descriptors.b_blocks[index as usize]);
    ["%b1", "%b2"].map(|b| match p.swap_ab {
        false => MmaOperands { rows: "%a", rows_step: a_step, columns: b, columns_step: b_step },
        true => MmaOperands { rows: b, rows_step: b_step, columns: "%a", columns_step: a_step },
    })
}
