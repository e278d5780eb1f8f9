//! The memories of the modelled GPU that hold plain bytes: global memory, and a CTA's shared memory.
//!
//! Both track which bytes were written, so that reads of bytes nothing wrote can be reported.

mod global;
mod shared;

pub(crate) use global::Fault;
pub use global::{Buffer, GlobalMemory};
pub(crate) use shared::Smem;

/// Generic addresses of shared memory: this base, then `rank << 24 | offset`.
pub(crate) const SHARED_WINDOW: u64 = 0x1_0000_0000;
/// Generic addresses of a thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x2_0000_0000;
/// Generic addresses of kernel parameters.
pub(crate) const PARAM_WINDOW: u64 = 0x3_0000_0000;
/// Size of each window.
pub(crate) const WINDOW: u64 = 0x1_0000_0000;
