//! By which rules `auto` was settled here.

use super::{Tcgen05, tail};
use crate::config::{Accumulators, CtaGroup, KOrder, Strategy};
use crate::plan::Plan;

impl Tcgen05 {
    /// The rule of a knob that only tensor memory has, or that it settles in its own way.
    pub(super) fn rule_of(&self, plan: &Plan, knob: &str) -> Option<String> {
        let rule = match knob {
            "accumulator_buffers" if self.tmem.shared > 0 => format!(
                "a CTA computes several tiles, and TMEM holds two buffers that share {} columns of each product: the rest of an epilogue overlaps the next tile's MMAs (published kernels overlap one product's; `accumulator_buffers = 1` avoids it)",
                self.tmem.shared
            ),
            "accumulator_buffers" if self.buffers == 2 => {
                "a CTA computes several tiles, and TMEM holds two buffers: an epilogue overlaps the next tile's MMAs".into()
            }
            "accumulator_buffers" if plan.work.is_looped() => "two buffers do not fit TMEM, and would share all their columns".into(),
            "accumulator_buffers" => "a CTA computes one tile: there is nothing to overlap".into(),
            "a_reuse" if self.collector => "two MMAs of a K block read the same A".into(),
            "a_reuse" if plan.cta_group == CtaGroup::Two && reads_a_twice(plan) => {
                "pairs keep A in the collector for NVFP4 alone: no published kernel was seen to for other kinds".into()
            }
            "a_reuse" => "no two MMAs of a K block read the same A".into(),
            "tmem_columns" => format!("the least power of two that holds {} columns", self.tmem.used),
            "consumers" => "accumulators are in tensor memory, and one warp issues all MMAs".into(),
            "k_order" => tail_rule(plan),
            _ => return None,
        };
        Some(rule)
    }
}

/// Whether two MMAs of a K block read the same A.
fn reads_a_twice(plan: &Plan) -> bool {
    plan.strategy == Strategy::Interleaved
        && plan.accumulators == Accumulators::Separate
        && !plan.swap_ab
        && plan.k_loop.main_tiles > 0
}

/// Why the K loop has a split tail of its length, or none.
fn tail_rule(plan: &Plan) -> String {
    let tail::Model { gate, tile } = tail_model(plan);
    let k_tiles = plan.k_loop.tiles;
    match plan.k_order {
        KOrder::SplitTail(tail) => {
            return format!(
                "the gate's first part takes {gate} cycles, GEMM 2 on a K tile {tile} (modelled): {tail} of {k_tiles} K tiles hide {} of them",
                gate.min(tail * tile)
            );
        }
        KOrder::Forward | KOrder::Reverse | KOrder::Serpentine => {}
    }
    match () {
        _ if plan.work.has_ranges() => "the products of a part of K are not the gate's".into(),
        _ if plan.work.is_looped() => "a CTA takes several tiles: other MMAs overlap its epilogue".into(),
        _ if plan.strategy != Strategy::Interleaved || plan.accumulators == Accumulators::SideBySide => {
            "no K loop has an MMA for each product".into()
        }
        _ if gate < tile => format!(
            "the gate's first part takes {gate} cycles, less than the {tile} of GEMM 2 on a K tile (modelled)"
        ),
        _ => format!("a split tail is an eighth of the K loop at most, and there are {k_tiles} K tiles"),
    }
}

/// What a split tail of this plan would hide, and with what.
fn tail_model(plan: &Plan) -> tail::Model {
    let steps = plan.k_loop.blocks;
    let blocks =
        if plan.kind.scales_per_mma() == 0 { 0 } else { steps.div_ceil(plan.scales.steps_per_block) };
    tail::Model::new(plan.mma_columns, plan.cta_group.ctas(), steps, blocks)
}
