//! Verifies kernels: draws seeded operands, computes the answer in f64, and compares a result with it. It also reads
//! the output of NVIDIA's assembler and disassembler.
//!
//! - [`inputs`]: seeded operands, distributed as in the public benchmark or over the whole format;
//! - [`vectors`]: vectors of a gate;
//! - [`reference`](mod@reference): the answer, in f64 on decoded values;
//! - [`block`]: the gated MLP of a layer, in f64, with activations rounded where kernels round them;
//! - [`output`]: C in any of its formats, scale factors included;
//! - [`check`]: compares a result with the answer: f16 by the benchmark's tolerance, other formats by error bounds;
//! - `launch_file` (feature `launch-files`, on by default): a kernel's launch as a file that any tool can run;
//! - [`toolchain`]: runs NVIDIA's assembler and disassembler, if they are installed;
//! - [`sass`]: counts the instructions of loops in machine code.
//!
//! Nothing here needs a GPU or depends on how a kernel computes: of the code generator it uses shapes and formats only.
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
//! // What a kernel reads: packed codes, and scale factors in the order that the hardware reads.
//! let sfa = inputs.a.blocked_scales()?;
//! assert_eq!(inputs.a.codes().len(), 72 * 256 / 2);
//! assert_eq!(sfa.len(), 128 * 16);
//!
//! // What it must compute.
//! let expected = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up)?;
//! let report = check(expected.rounded(), &expected, Tolerance::default())?;
//! assert!(report.pass, "{report}");
//! # Ok(())
//! # }
//! ```

pub mod block;
pub mod check;
pub mod inputs;
#[cfg(feature = "launch-files")]
pub mod launch_file;
pub mod output;
pub mod reference;
pub mod sass;
pub mod toolchain;
pub mod vectors;
