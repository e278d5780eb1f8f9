//! Sizes of the gate's own kernel: what it counts has to fit where it is counted.

use super::GATE_THREAD_LIMIT;
use crate::config::Strategy;
use crate::error::ConfigError;
use crate::problem::Problem;

/// The gate's own kernel.
pub(crate) fn check(problem: &Problem, strategy: Strategy, errors: &mut Vec<ConfigError>) {
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
}
