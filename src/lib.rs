//! Gated dual GEMMs for LLM inference: one line, `silu(A @ B1) * (A @ B2)`, becomes a PTX kernel that is specialised
//! for one shape, one chip and one set of knobs.
//!
//! Kernels are generated and loaded per shape at model load, and launched with buffers of their device. The device is
//! an argument. The emulated device runs the same PTX on the CPU, needs neither a GPU nor CUDA, and reports what is
//! wrong with a kernel.
//!
//! ```
//! use silumin::formats::quantize::{TensorScale, quantize};
//! use silumin::{Arch, Args, Device, Shape, dual_gemm};
//!
//! // At model load: the kernels for the shapes that will come.
//! let swiglu = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (A @ B2));
//! let device = Device::emulated(Arch::Sm100a);
//! let (m, n, k) = (3, 8, 64);
//! let kernels = swiglu.warmup(&device, &[Shape::new(m, n, k)])?;
//!
//! // Operands: NVFP4 codes, and scale factors in the order the tensor cores read.
//! let rows = |rows: u32| quantize(&vec![0.75f32; (rows * k) as usize], rows as usize, k as usize, TensorScale::One);
//! let (x, w) = (rows(m)?, rows(n)?);
//! let [a, b1, b2] = [device.upload(x.codes())?, device.upload(w.codes())?, device.upload(w.codes())?];
//! let sfa = device.upload(&x.blocked_scales()?)?;
//! let sfb1 = device.upload(&w.blocked_scales()?)?;
//! let sfb2 = device.upload(&w.blocked_scales()?)?;
//! let c = device.alloc((m * n * 2) as usize)?;
//!
//! // In the middle of serving: look up and launch, nothing is compiled.
//! let args = Args::new(&a, &b1, &b2, &c).scales(&sfa, &sfb1, &sfb2);
//! kernels.for_problem(m, n, k)?.launch(&device.stream(), &args)?;
//!
//! // Both products are 64 * 0.75 * 0.75 = 36, and silu(36) * 36 is 1296 in f16.
//! let one = c.slice(0, 2)?.download()?;
//! assert_eq!(one, 0x6510u16.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A gate may read vectors: `b[n]` has an element per column of C (a bias, a scale per output feature), `s[m]` one per
//! row (a scale per token). They are f32 in device memory and passed by name:
//!
//! ```
//! use silumin::verify::inputs::DualGemmInputs;
//! use silumin::{Arch, Args, Device, DeviceOperands, Distribution, Shape, dual_gemm};
//!
//! let biased = dual_gemm!(<nvfp4 -> f16> silu(s[m] * (x @ gate) + b1[n]) * (s[m] * (x @ up) + b2[n]));
//! let (device, shape) = (Device::emulated(Arch::Sm100a), Shape::new(3, 8, 64));
//! let operands =
//!     DeviceOperands::upload(&device, &DualGemmInputs::generate(shape, Distribution::Benchmark, 1)?)?;
//! let f32s = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
//! let [s, b1, b2] = [&[0.0f32; 3][..], &[30.0; 8], &[2.0; 8]].map(|values| device.upload(&f32s(values)));
//! let (s, b1, b2) = (s?, b1?, b2?);
//!
//! let vectors = [("s", &s), ("b1", &b1), ("b2", &b2)];
//! let args = Args { vectors: &vectors, ..operands.args(&[]) };
//! biased.load(&device, shape)?.launch(&device.stream(), &args)?;
//! // The scales are zero, which leaves silu(30) * 2.
//! assert!(operands.result()?.iter().all(|value| value.to_f32() == 60.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The scales of FP8 checkpoints are passed the same way: one per tensor as a scalar, one per token and one per output
//! feature as vectors. Those of 128 x 128 blocks are scale factors of the format `e4m3_128x128`. On Hopper, sums of FP8 products leave the tensor core every 128 elements of K; with
//! `promotion = off` they stay there, which others call fast accumulation:
//!
//! ```
//! # use silumin::verify::inputs::DualGemmInputs;
//! # use silumin::{Arch, Args, Device, DeviceOperands, Distribution, Shape, dual_gemm};
//! # let (device, shape) = (Device::emulated(Arch::Sm90a), Shape::new(3, 8, 256));
//! let fp8 = dual_gemm!(<e4m3 -> bf16> silu(s[m] * (x @ gate) * w1[n]) * (s[m] * (x @ up) * w2[n]));
//! # let inputs = DualGemmInputs::generate_for(shape, fp8.spec().formats, Distribution::Benchmark, 1)?;
//! # let operands = DeviceOperands::upload(&device, &inputs)?;
//! # let ones = |n: usize| device.upload(&[1.0f32.to_le_bytes()].repeat(n).concat());
//! # let (s, w1, w2) = (ones(3)?, ones(8)?, ones(8)?);
//! let vectors = [("s", &s), ("w1", &w1), ("w2", &w2)];
//! let args = Args { vectors: &vectors, ..operands.args(&[]) };
//! fp8.load(&device, shape)?.launch(&device.stream(), &args)?;
//! # assert_eq!(operands.output()?.codes().len(), 2 * 3 * 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`gemm!`] has one product, as a down projection. A matrix, `r[m, n]`, has the shape of C: a residual is added before the
//! result is rounded.
//!
//! ```
//! use silumin::{Args, Arch, Device, Shape, gemm};
//!
//! let down = gemm!(<bf16 -> bf16> A @ B + residual[m, n]);
//! let (m, n, k) = (3, 8, 64);
//! let device = Device::emulated(Arch::Sm90a);
//! // bf16: 0x3F80 is 1, 0x4000 is 2. Each sum is 64 * 1 * 1, and the residual adds 2.
//! let filled = |value: u16, count: u32| device.upload(&value.to_le_bytes().repeat(count as usize));
//! let [a, b, residual, c] = [filled(0x3F80, m * k)?, filled(0x3F80, n * k)?, filled(0x4000, m * n)?, filled(0, m * n)?];
//!
//! let matrices = [("residual", &residual)];
//! let args = Args::gemm(&a, &b, &c).vectors(&matrices);
//! down.load(&device, Shape::new(m, n, k))?.launch(&device.stream(), &args)?;
//! assert_eq!(c.download()?, 0x4284u16.to_le_bytes().repeat(24)); // 66
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The experts of a mixture are one launch, too: rows of A are sorted by expert, each expert has its own weights, and
//! the kernel reads the row offsets on the device.
//!
//! ```
//! use silumin::verify::inputs::DualGemmInputs;
//! use silumin::{Arch, Device, DeviceOperands, Distribution, Shape, dual_gemm};
//!
//! let experts = dual_gemm!(<nvfp4 -> f16> silu(x @ gate) * (x @ up));
//! // Room for ten rows and three experts, the second of which has none.
//! let shape = Shape::new(10, 64, 64).grouped(3);
//! let (sizes, formats) = ([4, 0, 5], experts.spec().formats);
//! let inputs = DualGemmInputs::generate_grouped(shape, &sizes, formats, Distribution::Benchmark, 1)?;
//! assert_eq!(inputs.group_sizes().offsets(), [0, 4, 4, 9]);
//! let device = Device::emulated(Arch::Sm100a);
//! let kernel = experts.load(&device, shape)?;
//! let operands = DeviceOperands::upload(&device, &inputs)?;
//! kernel.launch(&device.stream(), &operands.args(&[]))?;
//! assert!(kernel.verify_on(&inputs, &[])?.check.pass);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`dual_gemm!`], [`gemm!`]: declare a dual GEMM or a GEMM, and check it while your program compiles.
//! * [`codegen`]: problem and knobs to plan to PTX; [`Spec`], [`Config`], [`Plan`], [`Kernel`].
//! * [`Mlp`](runtime::mlp::Mlp): the gated MLP of a layer, from weights to one call.
//! * [`runtime`]: devices, launches, caches and tuning; [`Device`], [`DualGemm`], [`LoadedKernel`]. In it
//!   [`tensor`](runtime::tensor): typed matrices from `f32` and back, [`Matrix`]; [`dlpack`](runtime::dlpack): tensors of other
//!   libraries without a copy; [`weights`](runtime::weights): gate and up weights, out of checkpoints or of a loader of your own; and
//!   [`prepare`](runtime::prepare): activations to NVFP4 on the device.
//! * [`formats`]: number formats, quantisers and the layout of scale factors.
//! * [`verify`]: seeded operands, reference mathematics and the checker.

#![forbid(unsafe_code)]

// The README's program and the tutorials of the book are compiled and run as documentation tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../book/src/guide/first-kernel.md")]
    mod first_kernel {}
    #[doc = include_str!("../book/src/guide/dsl.md")]
    mod dsl {}
    #[doc = include_str!("../book/src/guide/formats.md")]
    mod formats {}
    #[doc = include_str!("../book/src/guide/groups.md")]
    mod groups {}
    #[doc = include_str!("../book/src/guide/load.md")]
    mod load {}
    #[doc = include_str!("../book/src/guide/mlp.md")]
    mod mlp {}
    #[doc = include_str!("../book/src/guide/experts.md")]
    mod experts {}
    #[doc = include_str!("../book/src/guide/matrices.md")]
    mod matrices {}
    #[doc = include_str!("../book/src/guide/ranks.md")]
    mod ranks {}
    #[doc = include_str!("../book/src/guide/profile.md")]
    mod profile {}
    #[doc = include_str!("../book/src/guide/engines.md")]
    mod engines {}
}

pub use silumin_codegen as codegen;
pub use silumin_formats as formats;
pub use silumin_macros::{dual_gemm, gemm};
pub use silumin_runtime as runtime;
pub use silumin_verify as verify;

// What a program that makes and launches kernels names. The rest is in its module, and named there only.
pub use codegen::arch::Arch;
pub use codegen::config::Config;
pub use codegen::gate::Gate;
pub use codegen::kernel::Kernel;
pub use codegen::plan::Plan;
pub use codegen::problem::{Formats, Groups, OperandFormat, OutputFormat, Shape};
pub use codegen::spec::Spec;
pub use formats::groups::GroupSizes;
pub use runtime::cache::{Bundle, Cache, CacheOptions};
#[cfg(feature = "emulated")]
pub use runtime::device::EmulatorOptions;
pub use runtime::device::{Buffer, Device, DeviceError, Stream};
pub use runtime::gemm::{Args, DeviceOperands, DualGemm, Gemm, LaunchError, LoadError, LoadedKernel};
pub use runtime::tensor::Matrix;
pub use runtime::warmup::{Buckets, Kernels, Warmup, WarmupError};
pub use verify::inputs::Distribution;
