//! Typed matrices on a device: `f32` on the host in, a kernel's operands on the device, `f32` out.
//!
//! A [`Matrix`] is row-major, `[rows, columns]`, without gaps between rows. A kernel's A is `[M, K]`, B1 and B2 are `[N, K]`, C
//! is `[M, N]`. Below it are [`Buffer`](crate::device::Buffer)s, which hold bytes.
//!
//! | element | bytes | scale factors | scale of the whole matrix |
//! |---|---|---|---|
//! | `f32` | 4 | - | - |
//! | [`bf16`](struct@bf16), [`f16`](struct@f16) | 2 | - | - |
//! | [`E4m3`] | 1 | - | of operands |
//! | [`Nvfp4`] | 1/2 | one for each 16 of a row, in the blocked layout | yes |
//!
//! ```
//! use silumin_codegen::problem::{Formats, Shape};
//! use silumin_codegen::{arch::Arch, spec::Spec};
//! use silumin_runtime::tensor::{Matrix, bf16};
//! use silumin_runtime::{device::Device, gemm::DualGemm};
//!
//! let (m, n, k) = (2, 8, 64);
//! let (x, weight) = (vec![0.5f32; m * k], vec![0.25f32; n * k]);
//! let device = Device::emulated(Arch::Sm90a);
//! let a = Matrix::<bf16>::upload(&device, &x, m, k)?;
//! let b = Matrix::<bf16>::upload(&device, &weight, n, k)?;
//! let c = Matrix::<bf16>::zeros(&device, m, n)?;
//!
//! let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse()?, &[Arch::Sm90a])?;
//! let swiglu = DualGemm::new(Spec { formats: Formats::usual(Arch::Sm90a), ..spec });
//! let kernel = swiglu.load(&device, Shape::new(m as u32, n as u32, k as u32))?;
//! kernel.launch(&device.stream(), &kernel.args(&a, &b, &b, &c)?)?;
//! // Both products are 64 * 0.5 * 0.25 = 8, and silu(8) * 8 is 63.98.
//! assert_eq!(c.to_f32()?, [64.0; 16]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * `matrix.rs`: [`Matrix`].
//! * `element.rs`: element types.
//! * `args.rs`: [`LoadedKernel::args`](crate::gemm::LoadedKernel::args), matrices as the arguments of a launch.
//! * `error.rs`: [`TensorError`].

mod args;
mod element;
mod error;
mod matrix;

pub use element::{E4m3, Element, Nvfp4, Plain, Quantised};
pub use error::TensorError;
pub use half::{bf16, f16};
pub use matrix::Matrix;
