//! The native half of the Python package `silumin`: functions of plain values, without numpy.
//!
//! The other half, in `package/silumin/`, is Python. It makes launches out of numpy arrays, and objects out of the JSON that comes
//! back.
//!
//! - this file: the module
//! - `fault`: errors as exceptions, and work that a user can interrupt
//! - `launch`: launches and buffers
//! - `run`: emulation and prediction
//! - `kernel`: emitted kernels, and quantised matrices
//! - `gpu`: kernels on a GPU

mod fault;
mod gpu;
mod kernel;
mod launch;
mod run;

/// What Python imports as `silumin._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::gpu::{Borrowed, Gpu, Loaded, open_gpu};
    #[pymodule_export]
    use crate::kernel::{Emitted, emit, knobs, quantize, right_factors};
    #[pymodule_export]
    use crate::run::{check, emulate, emulate_file, inspect, predict};
}
