//! Narrow number formats on the host.
//!
//! - [`e2m1`], [`e4m3`], [`ue8m0`]: one module a format, each with its table of values, `decode`
//!   and the encoders that the hardware's `cvt` instructions implement;
//! - [`fp4x2`]: two e2m1 codes in a byte;
//! - [`Nvfp4Matrix`]: a K-major matrix of e2m1 codes with one e4m3 scale for every 16 along K;
//! - [`quantize`]: real numbers to an [`Nvfp4Matrix`];
//! - [`f16_from_f64`]: f64 to f16 in a single rounding.
//!
//! Everything here is bytes and arithmetic; where the bytes of the scales go in memory is
//! [`crate::layout`].

pub mod e2m1;
pub mod e4m3;
mod f16_round;
pub mod fp4x2;
mod nvfp4;
pub mod quantize;
pub mod ue8m0;

pub use f16_round::f16_from_f64;
pub(crate) use nvfp4::checked_elements;
pub use nvfp4::{FormatError, Nvfp4Matrix, SCALE_BLOCK};
