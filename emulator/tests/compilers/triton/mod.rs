//! References of the kernels in `corpus/triton`, by kind of kernel.

mod elementwise;
mod matmul;
mod reductions;
mod scaled;

use crate::compilers::harness::{self, Results};

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("triton", name, inputs, check);
}
