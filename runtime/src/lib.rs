//! Devices, launches, scale-factor layouts and reference mathematics for silumin kernels.
//!
//! The host side of a block-scaled dual GEMM, from bytes to a verdict:
//!
//! - [`gemm`]: a dual GEMM's kernels, loaded for many shapes, launched with checked arguments, and
//!   verified in one call;
//! - [`device`]: devices, their memory and streams; today the one that runs PTX on the CPU;
//! - [`warmup`]: kernels for all shapes of a model, made before the first request;
//! - [`tune`](mod@tune): the fastest knobs for a problem on a device, found and kept in a file;
//! - [`cache`]: compiled kernels, kept in memory and on disk, and shipped with a model;
//! - [`format`](mod@format): number formats (e2m1, e4m3, e5m2, ue8m0, bf16, f16), operands in NVFP4, the
//!   MX formats and plain ones, the quantisers;
//! - [`weights`]: gate and up weights, out of checkpoints or of one's own loader, on their way to a device;
//! - [`prepare`]: activations and scale factors made on the device what kernels read;
//! - [`layout`]: scale factors between row-major order and the 128x4 blocked order that the tensor
//!   cores read;
//! - [`inputs`]: seeded operands, as the public benchmark draws them and over the whole format;
//! - [`reference`](mod@reference): the answer, in f64 on decoded values;
//! - [`output`]: C in any of its formats, scale factors included;
//! - [`check`]: the verdict on a result: the benchmark's for f16, error bounds for the others;
//! - [`launch_file`]: a kernel's launch as a file, to be run again by any tool;
//! - [`regular_file`]: files that users name, read up to a limit;
//! - [`groups`]: how the rows of batches and groups lie;
//! - [`toolchain`]: NVIDIA's assembler and disassembler, where they are installed;
//! - [`sass`]: what their machine code does in its loops.
//!
//! None of it needs a GPU. Formats, layouts, inputs, reference and check know nothing of how a kernel
//! computes: of the code generator they use shape and formats alone.
//!
//! ```
//! use silumin_runtime::check::{Tolerance, check};
//! use silumin_runtime::inputs::{Distribution, DualGemmInputs, Shape};
//! use silumin_runtime::reference::{dual_gemm, silu};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // C = silu(A @ B1^T) * (A @ B2^T) for a ragged problem, on seeded operands.
//! let shape = Shape::new(72, 40, 256);
//! let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, 1111)?;
//!
//! // What a kernel is handed: packed codes, and scales in the order the hardware reads.
//! let sfa = inputs.a.blocked_scales()?;
//! assert_eq!(inputs.a.codes().len(), 72 * 256 / 2);
//! assert_eq!(sfa.len(), 128 * 16);
//!
//! // What it has to return.
//! let expected = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up)?;
//! let report = check(expected.rounded(), &expected, Tolerance::default())?;
//! assert!(report.pass, "{report}");
//! # Ok(())
//! # }
//! ```

pub mod cache;
pub mod check;
pub mod device;
pub mod format;
pub mod gemm;
pub mod groups;
pub mod inputs;
pub mod launch_file;
pub mod layout;
pub mod output;
pub mod predict;
pub mod prepare;
pub mod reference;
pub mod regular_file;
pub mod sass;
pub mod toolchain;
pub mod tune;
pub mod warmup;
pub mod weights;
