//! Kernels that Triton compiled, run on inputs of ours and compared with references of ours.
//!
//! The sources, PTX and launch files are in `tests/corpus/triton`; `make.py` there makes them again.
//! Every kernel runs for every chip it was compiled for, under several schedules of asynchronous work,
//! and must end without a finding.
//!
//! - `harness`: runs a launch file with given buffers
//! - `number`: number formats, independent of the emulator's
//! - the rest: references, by kind of kernel

mod elementwise;
mod harness;
mod matmul;
mod number;
mod reductions;
mod scaled;
