//! Number formats of silumin's operands on the host: encodings and memory layouts.
//!
//! - [`e2m1`], [`e4m3`], [`e5m2`], [`ue8m0`]: one module a format, each with its table of values,
//!   `decode` and the encoders that the hardware's `cvt` instructions implement;
//! - [`element`]: all of them, and bf16 and f16, by their names in a problem;
//! - [`fp4x2`]: two e2m1 codes in a byte;
//! - [`block_scale`]: from the largest magnitude of a block to its scale factor;
//! - [`Matrix`]: a K-major operand in any of the formats, with its scale factors;
//! - [`quantize`]: real numbers to a [`Matrix`];
//! - [`f16_from_f64`], [`bf16_from_f64`]: f64 to a half in a single rounding; [`f32_to_odd`] for the
//!   narrower ones;
//! - [`repack`]: the bits of 4-bit elements permuted for decoding, and back;
//! - [`layout`]: scale factors between row-major order and the 128x4 blocked order that the tensor cores read;
//! - [`groups`]: how the rows of batches and groups lie.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod block_scale;
pub mod e2m1;
pub mod e4m3;
pub mod e5m2;
pub mod element;
pub mod fp4x2;
pub mod groups;
pub mod layout;
mod matrix;
pub mod quantize;
pub mod repack;
mod rounding;
mod small_float;
pub mod ue8m0;

pub use matrix::{FormatError, Matrix, checked_elements, code_bytes, kernel_scales, scale_bytes};
pub use rounding::{bf16_from_f64, f16_from_f64, f32_to_odd};
