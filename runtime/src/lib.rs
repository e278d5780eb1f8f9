//! Devices, launches, caches, weights and tuning for silumin kernels.
//!
//! The host side of a dual GEMM, from weights to a launch:
//!
//! - [`gemm`]: a dual GEMM's kernels, loaded for many shapes, launched with checked arguments, and
//!   verified in one call;
//! - [`device`]: devices, their memory and streams; today the one that runs PTX on the CPU;
//! - [`tensor`]: typed matrices on a device, from `f32` and back;
//! - [`dlpack`]: tensors of other libraries without a copy, and ours for them;
//! - [`warmup`]: kernels for all shapes of a model, made before the first request;
//! - [`tune`](mod@tune): the fastest knobs for a problem on a device, found and kept in a file;
//! - [`cache`]: compiled kernels, kept in memory and on disk, and shipped with a model;
//! - [`weights`]: gate and up weights, out of checkpoints or of one's own loader, on their way to a device;
//! - [`mlp`]: the gated MLP of a layer, from weights to one call;
//! - [`communicator`]: devices that compute parts of one result and add them up;
//! - [`prepare`]: activations and scale factors made on the device what kernels read;
//! - [`predict`]: predicted times, without a chip;
//! - [`regular_file`]: files that users name, read up to a limit.
//!
//! Number formats, quantisers and layouts are in [`silumin_formats`]; inputs, reference mathematics and the checker in
//! [`silumin_verify`].

#![cfg_attr(
    not(feature = "emulated"),
    allow(
        dead_code,
        reason = "without an emulated device nothing uses its memory, which buffers keep all the same"
    )
)]

pub mod cache;
pub mod communicator;
pub mod device;
pub mod dlpack;
pub mod gemm;
pub mod mlp;
mod nvtx;
#[cfg(feature = "emulated")]
pub mod predict;
pub mod prepare;
pub mod regular_file;
pub mod tensor;
pub mod tune;
mod tuned;
pub mod warmup;
pub mod weights;
