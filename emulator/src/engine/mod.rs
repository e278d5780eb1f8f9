//! The data paths of the modelled GPU: what happens to bytes once an instruction has been issued.
//!
//! Nothing in here knows PTX text, threads or time. The interpreter decodes an instruction, decides
//! when it runs, and calls one function of this module with plain values:
//!
//! | module | hardware unit |
//! |---|---|
//! | [`mod@format`] | number formats of `cvt`, the tensor cores and scale factors |
//! | [`swizzle`] | the address XOR shared by TMA, `wgmma` and `tcgen05` |
//! | [`descriptor`] | 64-bit SMEM matrix descriptors and the address walk they stand for |
//! | [`idesc`] | 32-bit instruction descriptors of `tcgen05.mma` |
//! | [`tensor_map`] | the TMA engine: tensor maps, boxes, bounds |
//! | [`tmem`] | Tensor Memory: allocation, `ld`, `st`, `cp`, `shift` |
//! | [`mma`] | the arithmetic of `tcgen05.mma` |
//! | [`collector`] | the buffers that keep A, or B, from one `tcgen05.mma` to the next |
//! | [`wgmma`] | the arithmetic of `wgmma.mma_async` |
//! | [`fragment`] | matrices in the registers of a warp: `mma.sync` |
//!
//! Shared memory is always reached through a closure of the caller's, so that the caller can check
//! bounds and notice reads of bytes nothing wrote; its error type travels through unchanged.

pub mod collector;
pub mod descriptor;
pub mod format;
pub mod fragment;
pub mod idesc;
pub mod mma;
mod sparsity;
pub mod swizzle;
pub mod tensor_map;
pub mod tmem;
pub mod wgmma;

#[cfg(test)]
mod tests;

/// Reads `buffer.len()` bytes of a CTA's shared memory, starting at a byte offset in its window.
///
/// The engines ask for 16 bytes at a time, 16-byte aligned, unless a function says otherwise.
pub type SmemReader<'a, E> = dyn FnMut(u32, &mut [u8]) -> Result<(), E> + 'a;
