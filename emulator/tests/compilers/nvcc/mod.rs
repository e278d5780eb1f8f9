//! References of the kernels in `corpus/nvcc`, a file for each source there.

mod asynchronous;
mod control;
mod elementwise;
mod matrices;
mod reductions;

use crate::compilers::harness::{self, Results};

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("nvcc", name, inputs, check);
}
