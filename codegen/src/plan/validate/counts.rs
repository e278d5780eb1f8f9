//! Sizes of the launches beside the MMAs': what they count has to fit where it is counted.

use super::{COUNT_LIMIT, GATE_THREAD_LIMIT};
use crate::config::Strategy;
use crate::error::ConfigError;
use crate::plan::{ORDER_BLOCK, Warpgroups};
use crate::problem::Problem;

/// The gate's own kernel, and the one that brings activations into the order of K in which weights are decoded.
pub(super) fn check(
    problem: &Problem,
    strategy: Strategy,
    warpgroups: Option<Warpgroups>,
    errors: &mut Vec<ConfigError>,
) {
    let shape = problem.shape;
    let mut check = |knob, what, count, limit| {
        if count > limit {
            errors.push(ConfigError::Count { knob, what, count, limit });
        }
    };
    if strategy == Strategy::TwoPass {
        // Threads of at least four columns each, or of 32 and rows for the pads of scale factors.
        let threads = match problem.formats.c.scales() {
            None => shape.rows() * u64::from(shape.n.div_ceil(4)),
            Some(_) => u64::from(shape.m.next_multiple_of(128)) * u64::from(shape.n.div_ceil(32)),
        };
        check("strategy", "threads of the gate's own kernel", threads, GATE_THREAD_LIMIT);
    }
    if warpgroups.is_some_and(|warpgroups| warpgroups.ordered) {
        let k_blocks = u64::from(shape.k.div_ceil(ORDER_BLOCK));
        let ctas = shape.rows().div_ceil(ORDER_BLOCK.into()).saturating_mul(k_blocks);
        check("accumulators", "CTAs of the launch that brings activations into order", ctas, COUNT_LIMIT);
        // Its stores reach a warp's 16 rows with constant offsets.
        let reach = 16 * 2 * u64::from(ORDER_BLOCK) * k_blocks;
        check("accumulators", "bytes of 16 rows of activations in order", reach, COUNT_LIMIT);
    }
}
