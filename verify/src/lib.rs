//! Whether a kernel is right: seeded operands, the answer in f64, the verdict on a result; and readers of what NVIDIA's tools say.
//!
//! - [`inputs`]: seeded operands, as the public benchmark draws them and over the whole format; [`vectors`]: the gate's vectors;
//! - [`reference`](mod@reference): the answer, in f64 on decoded values;
//! - [`output`]: C in any of its formats, scale factors included;
//! - [`check`]: the verdict on a result: the benchmark's for f16, error bounds for the others;
//! - `launch_file` (feature `launch-files`, on by default): a kernel's launch as a file, to be run again by any tool;
//! - [`toolchain`]: NVIDIA's assembler and disassembler, where they are installed;
//! - [`sass`]: what their machine code does in its loops.
//!
//! None of it needs a GPU, and none of it knows how a kernel computes: of the code generator it uses shape and formats alone.
//!
//! ```
//! use silumin_verify::check::{Tolerance, check};
//! use silumin_verify::inputs::{Distribution, DualGemmInputs, Shape};
//! use silumin_verify::reference::{dual_gemm, silu};
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

pub mod check;
pub mod inputs;
#[cfg(feature = "launch-files")]
pub mod launch_file;
pub mod output;
pub mod reference;
pub mod sass;
pub mod toolchain;
pub mod vectors;
