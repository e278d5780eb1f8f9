//! Kernels that other compilers made of sources of ours, run on inputs of ours and compared with
//! references of ours.
//!
//! The sources, PTX and launch files are in `corpus`, a folder for each compiler; `make.py` there
//! makes them again. Every kernel runs for every chip it was compiled for, under several schedules of
//! asynchronous work with happens-before tracking, and must end without a finding, but for mistakes
//! of the compilers that `harness` lists.
//!
//! - `harness`: runs a launch file with given buffers
//! - `product`, `scaled`: products of matrices, which all compilers make
//! - `number`: number formats, independent of the emulator's
//! - the rest: references, a folder for each compiler

mod cute;
mod cutlass;
mod gluon;
mod harness;
mod math;
mod number;
mod nvcc;
mod product;
mod scaled;
mod tilelang;
mod triton;
