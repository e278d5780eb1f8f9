//! What batches and groups of rows rule out.

use super::SIZE_LIMIT;
use crate::config::{Config, Schedule, Setting, Strategy};
use crate::error::ConfigError;
use crate::problem::{GROUP_LIMIT, Groups, Problem};

/// Largest distance between two matrices of a tensor map, in bytes (cuTensorMapEncodeTiled: less than 2^40).
const MATRIX_LIMIT: u64 = (1 << 40) - 1;

/// Sizes: kernels count rows, and rows of weights, in 31 bits.
pub(crate) fn check_shape(problem: &Problem, errors: &mut Vec<ConfigError>) {
    let shape = problem.shape;
    let dimension = match shape.groups {
        Groups::One => return,
        Groups::Batch(_) => "batch",
        Groups::Rows(_) => "groups",
    };
    let count = shape.groups.count();
    if !(1..=GROUP_LIMIT).contains(&count) {
        errors.push(ConfigError::Size { dimension, value: count, limit: GROUP_LIMIT });
        return;
    }
    let weights = u64::from(shape.n) * u64::from(count);
    for (what, given, limit) in [
        ("rows of all matrices of A", shape.rows(), SIZE_LIMIT.into()),
        ("rows of all matrices of B1", weights, SIZE_LIMIT.into()),
        ("bytes of a matrix of A", problem.a_bytes() / u64::from(count), MATRIX_LIMIT),
        ("bytes of a matrix of B1", problem.b_bytes() / u64::from(count), MATRIX_LIMIT),
        ("bytes of a matrix of C", problem.output_bytes() / u64::from(count), MATRIX_LIMIT),
    ] {
        if given > limit {
            errors.push(ConfigError::Count { knob: "shape", what, count: given, limit });
        }
    }
}

/// What needs to know on the host where rows end.
pub(crate) fn check_knobs(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    let groups = problem.shape.groups;
    let format = problem.formats.c;
    let scaled = format.scales().is_some();
    if scaled && strategy == Strategy::TwoPass && groups != Groups::One {
        let reason = "the gate's own kernel has threads for the pads of one matrix's scale factors".into();
        errors.push(ConfigError::OutputScales { knob: "strategy", format, reason });
    }
    if !groups.by_rows() {
        return;
    }
    if scaled && swap_ab {
        let reason =
            "lanes hold columns of C then, and only the device knows which rows are a group's pads".into();
        errors.push(ConfigError::OutputScales { knob: "swap_ab", format, reason });
    }
    let mut refuse = |knob, value, reason| errors.push(ConfigError::GroupsOfRows { knob, value, reason });
    if config.schedule == Setting::Fixed(Schedule::StreamK) {
        refuse(
            "schedule",
            "stream_k",
            "equal shares of all K tiles are worked out on the host, and how many tiles there are only the device knows",
        );
    }
    if strategy == Strategy::TwoPass {
        refuse(
            "strategy",
            "two_pass",
            "the gate's own kernel goes over all rows of C, and which of them are a group's only the device knows",
        );
    }
}
