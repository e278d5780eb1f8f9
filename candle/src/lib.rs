//! Gated MLPs over candle's tensors: `act(x @ gate) * (x @ up)` as one kernel of silumin's, a custom operation.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use silumin::dual_gemm;
//! use silumin_candle::GatedMlp;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At model load. Weights are [N, K], as checkpoints have them: `gate_proj.weight`, `up_proj.weight`.
//! let device = Device::Cpu;
//! let gate = Tensor::ones((64, 128), DType::BF16, &device)?;
//! let up = gate.affine(0.5, 0.0)?;
//! let swiglu = dual_gemm!(<bf16 -> bf16> silu(x @ gate) * (x @ up));
//! let mlp = GatedMlp::of(&swiglu).tensors(&gate, &up).largest(16).build()?;
//!
//! // For each batch of tokens: [.., K] -> [.., N].
//! let x = Tensor::full(0.25f32, (1, 5, 128), &device)?.to_dtype(DType::BF16)?;
//! let y = mlp.run(&x)?;
//! assert_eq!(y.dims(), [1, 5, 64]);
//! // silu(32) * 16.
//! assert_eq!(y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?, [512.0; 5 * 64]);
//! # Ok(())
//! # }
//! ```
//!
//! **On a GPU** (feature `cuda`) no tensor is copied: a kernel reads x and the weights where candle has them, writes a tensor that
//! candle's stream has allocated, and is launched on that stream. Kernels are made for sizes of M at model load; a batch runs
//! through the next larger one, which leaves out tiles behind the batch's rows, and the result's storage has that size's rows.
//!
//! **On the CPU** the same kernel runs on silumin's emulator, instruction by instruction, and everything that is wrong with it is an
//! error: for tests on machines without a GPU, not for serving. There tensors are copied to the emulated device and back.
//!
//! [`Mlp`] is the whole block, down projection and residual included. [`Experts`] is the same for the experts of a mixture.
//!
//! There is no backward pass: `backward` through the result is an error of candle's.

// The one thing that takes it: addresses of candle's tensors on a GPU.
#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]

mod block;
mod error;
mod experts;
mod op;

#[cfg(feature = "cuda")]
mod cuda;

pub use block::{Mlp, MlpBuilder};
pub use error::Error;
pub use experts::{Experts, ExpertsBuilder};

use candle_core::{DType, Device, Module, Tensor};
use op::Op;
use silumin::runtime::weights::{DeviceGateUp, GateUp};
use silumin::{Arch, Buckets, Cache, DualGemm, Kernels, OperandFormat, OutputFormat, Stream, Warmup};
use std::sync::Arc;

/// Scalars that weights with a scale of their own set, where the gate has them.
const WEIGHT_SCALES: [&str; 2] = ["gate_scale", "up_scale"];

/// A gated MLP's first half, loaded on a device: a cheap handle, for any number of threads.
#[derive(Clone)]
pub struct GatedMlp {
    inner: Arc<Inner>,
}

/// What an operation works with.
struct Inner {
    kernels: Kernels,
    device: silumin::Device,
    /// On CUDA candle's own stream, on the CPU the emulated device's.
    stream: Stream,
    candle: Device,
    weights: DeviceGateUp,
    /// Keeps candle's memory, where weights are lent from tensors.
    _tensors: Option<[Tensor; 2]>,
    scalars: Vec<(String, f32)>,
    /// Types of x and of the result.
    dtypes: [DType; 2],
}

/// What a [`GatedMlp`] is made of.
#[must_use]
pub struct Builder<'a> {
    gemm: &'a DualGemm,
    weights: Source<'a>,
    buckets: Buckets,
    emulating: Arch,
    /// For devices of the driver.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    cache: Option<Cache>,
    scalars: Vec<(String, f32)>,
}

enum Source<'a> {
    None,
    Tensors(&'a Tensor, &'a Tensor),
    Weights(GateUp<'a>, &'a Device),
}

impl GatedMlp {
    /// A builder for a dual GEMM, whose formats say what x, the weights and the result are: `<bf16 -> bf16>`,
    /// `<f16 -> f32>`, or `<A: bf16, B: nvfp4, C: bf16>` with quantised weights.
    pub fn of(gemm: &DualGemm) -> Builder<'_> {
        Builder {
            gemm,
            weights: Source::None,
            buckets: Buckets::powers_of_two(1024),
            emulating: Arch::Sm90a,
            cache: None,
            scalars: Vec::new(),
        }
    }

    /// `gate(x @ gate, x @ up)`: x is `[.., K]` in the dual GEMM's A, contiguous, at an offset that is a multiple of 16 bytes,
    /// on the weights' device. The result is `[.., N]`. Compiles nothing.
    ///
    /// # Errors
    ///
    /// [`Error`] with what is wrong with x, before anything runs; more rows than the largest bucket ([`Error::Rows`]); on the CPU
    /// what the emulator finds.
    pub fn run(&self, x: &Tensor) -> Result<Tensor, Error> {
        let Inner { weights, candle, dtypes, .. } = &*self.inner;
        check_elements("x", x, dtypes[0])?;
        check_device("x", x, candle)?;
        if x.dims().last() != Some(&weights.k) || x.elem_count() == 0 {
            let expected = format!("[.., {}], K of the weights, with at least one row", weights.k);
            return Err(Error::Shape { tensor: "x", shape: x.dims().to_vec(), expected });
        }
        check_layout("x", x)?;
        // Through candle's own way, so that a backward pass is told that there is none.
        let op: Box<dyn candle_core::CustomOp1 + Send + Sync> = Box::new(Op(self.inner.clone()));
        Ok(x.apply_op1_arc(Arc::new(op))?)
    }

    /// N: the columns of the result.
    #[must_use]
    pub fn n(&self) -> usize {
        self.inner.weights.n
    }

    /// K: the columns of x.
    #[must_use]
    pub fn k(&self) -> usize {
        self.inner.weights.k
    }

    /// The loaded kernels, one for each bucket of M.
    #[must_use]
    pub fn kernels(&self) -> &Kernels {
        &self.inner.kernels
    }
}

impl Module for GatedMlp {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.run(x)?)
    }
}

impl<'a> Builder<'a> {
    /// Weights in tensors: both `[N, K]`, contiguous, in the dual GEMM's B, on one device. On CUDA they are used where they
    /// are, and must not be written as long as the MLP lives.
    pub fn tensors(mut self, gate: &'a Tensor, up: &'a Tensor) -> Self {
        self.weights = Source::Tensors(gate, up);
        self
    }

    /// Weights out of a checkpoint or a loader of one's own, in any format that the dual GEMM's B has, NVFP4 among them; they
    /// are uploaded to `device`. Scales of their tensors become the gate's scalars `gate_scale` and `up_scale`, where it has them.
    pub fn weights(mut self, weights: GateUp<'a>, device: &'a Device) -> Self {
        self.weights = Source::Weights(weights, device);
        self
    }

    /// Sizes of M that kernels are made for: 1, 2, 4 and so on to 1024, if this is not called.
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = buckets;
        self
    }

    /// Powers of two up to `rows`: the largest batch.
    pub fn largest(self, rows: u32) -> Self {
        self.buckets(Buckets::powers_of_two(rows))
    }

    /// The chip that stands in where tensors are on the CPU; `sm_90a`, if this is not called.
    pub fn emulating(mut self, arch: Arch) -> Self {
        self.emulating = arch;
        self
    }

    /// Compiles through this cache, on CUDA.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// A value of one of the gate's scalars.
    pub fn scalar(mut self, name: &str, value: f32) -> Self {
        self.scalars.push((name.to_owned(), value));
        self
    }

    /// Checks the weights, makes the kernels on all cores and loads them.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn build(self) -> Result<GatedMlp, Error> {
        let spec = self.gemm.spec();
        let formats = spec.formats;
        let x = plain(formats.a).ok_or(Error::Activations { format: formats.a })?;
        let result = match formats.c {
            OutputFormat::Bf16 => DType::BF16,
            OutputFormat::F16 => DType::F16,
            OutputFormat::F32 => DType::F32,
            format => return Err(Error::Output { format }),
        };
        if formats.preactivations.is_some() {
            return Err(Error::Preactivations);
        }
        if let Some(vector) = spec.gate.expr.vectors().into_iter().next() {
            return Err(Error::Vector { name: vector.name });
        }
        let candle = match &self.weights {
            Source::None => return Err(Error::NoWeights),
            Source::Tensors(gate, up) => {
                let expected = plain(formats.b);
                for (tensor, weight) in [("gate", *gate), ("up", *up)] {
                    let Some(expected) = expected else {
                        let found = of_dtype(weight.dtype()).unwrap_or(OperandFormat::Bf16);
                        return Err(Error::Weights { found, expected: formats.b });
                    };
                    check_elements(tensor, weight, expected)?;
                    check_device(tensor, weight, gate.device())?;
                    let shape = || weight.dims().to_vec();
                    if weight.rank() != 2 || weight.elem_count() == 0 {
                        let expected = "[N, K], as checkpoints have weights".to_owned();
                        return Err(Error::Shape { tensor, shape: shape(), expected });
                    }
                    if weight.dims() != gate.dims() {
                        let expected = format!("{:?}, as `gate` is", gate.dims());
                        return Err(Error::Shape { tensor, shape: shape(), expected });
                    }
                    check_layout(tensor, weight)?;
                }
                gate.device().clone()
            }
            Source::Weights(weights, device) => {
                if weights.format() != formats.b {
                    return Err(Error::Weights { found: weights.format(), expected: formats.b });
                }
                (*device).clone()
            }
        };
        let (device, stream) = open(&candle, self.emulating, self.cache)?;
        let (weights, tensors) = match &self.weights {
            Source::Tensors(gate, up) => {
                let [b1, b2] = [*gate, *up].map(|weight| op::lent(&device, &stream, weight));
                let (n, k) = gate.dims2()?;
                let weights = DeviceGateUp {
                    b1: b1?,
                    b2: b2?,
                    sfb1: None,
                    sfb2: None,
                    gate_scale: 1.0,
                    up_scale: 1.0,
                    input_scale: None,
                    n,
                    k,
                    format: formats.b,
                };
                (weights, Some([(*gate).clone(), (*up).clone()]))
            }
            Source::Weights(weights, _) => (weights.upload(&device)?, None),
            Source::None => return Err(Error::NoWeights),
        };
        let known = spec.gate.expr.scalars();
        let own = WEIGHT_SCALES.into_iter().zip([weights.gate_scale, weights.up_scale]);
        let own = own.filter(|(name, _)| known.iter().any(|scalar| scalar == name));
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let mut scalars = self.scalars;
        let given = scalars.len();
        scalars.extend(own);
        // What the caller says comes before what the weights say.
        let named: Vec<String> = scalars[..given].iter().map(|(name, _)| name.clone()).collect();
        let mut place = 0;
        scalars.retain(|(name, _)| {
            place += 1;
            place <= given || !named.contains(name)
        });
        let size = |value: usize, what: &str| {
            u32::try_from(value).map_err(|_| Error::Shape {
                tensor: "gate",
                shape: vec![weights.n, weights.k],
                expected: format!("smaller: {what} is at most 2^32 - 1"),
            })
        };
        let warmup = Warmup::of(self.gemm).weights(size(weights.n, "N")?, size(weights.k, "K")?);
        let kernels = warmup.buckets(self.buckets).run(&device)?;
        let dtypes = [x, result];
        let inner = Inner { kernels, device, stream, candle, weights, _tensors: tensors, scalars, dtypes };
        Ok(GatedMlp { inner: Arc::new(inner) })
    }
}

/// The device of ours, and the stream, for tensors on a device of candle's.
fn open(
    candle: &Device,
    emulating: Arch,
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))] cache: Option<Cache>,
) -> Result<(silumin::Device, Stream), Error> {
    match candle {
        Device::Cpu => {
            let device = silumin::Device::emulated(emulating);
            let stream = device.stream();
            Ok((device, stream))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => cuda::open(cuda, cache),
        other => {
            let advice = match other.is_cuda() {
                true => "turn on the feature `cuda` of silumin-candle",
                false => "silumin's kernels run on NVIDIA GPUs, and on the CPU's emulator",
            };
            Err(Error::Unsupported { found: other.location(), advice })
        }
    }
}

/// The type of a tensor's elements in a format without scale factors.
fn plain(format: OperandFormat) -> Option<DType> {
    match format {
        OperandFormat::Bf16 => Some(DType::BF16),
        OperandFormat::F16 => Some(DType::F16),
        _ => None,
    }
}

/// The other way round.
fn of_dtype(dtype: DType) -> Option<OperandFormat> {
    [OperandFormat::Bf16, OperandFormat::F16].into_iter().find(|format| plain(*format) == Some(dtype))
}

fn check_elements(name: &'static str, tensor: &Tensor, expected: DType) -> Result<(), Error> {
    match tensor.dtype() {
        found if found == expected => Ok(()),
        found => Err(Error::DType { tensor: name, found, expected }),
    }
}

fn check_device(name: &'static str, tensor: &Tensor, expected: &Device) -> Result<(), Error> {
    match tensor.device().same_device(expected) {
        true => Ok(()),
        false => {
            let (found, expected) = (tensor.device().location(), expected.location());
            Err(Error::Device { tensor: name, found, expected })
        }
    }
}

/// Checks that elements are contiguous, from an address that tensor maps accept.
fn check_layout(name: &'static str, tensor: &Tensor) -> Result<(), Error> {
    /// Alignment of a tensor map's address (CUDA driver API, `cuTensorMapEncodeTiled`).
    const ALIGNMENT: usize = 16;
    check_contiguous(name, tensor)?;
    match tensor.layout().start_offset() * tensor.dtype().size_in_bytes() {
        bytes if bytes % ALIGNMENT == 0 => Ok(()),
        bytes => Err(Error::Alignment { tensor: name, bytes, alignment: ALIGNMENT }),
    }
}

fn check_contiguous(name: &'static str, tensor: &Tensor) -> Result<(), Error> {
    let layout = tensor.layout();
    match layout.is_contiguous() {
        true => Ok(()),
        false => {
            let (shape, stride) = (tensor.dims().to_vec(), layout.stride().to_vec());
            Err(Error::Strided { tensor: name, shape, stride })
        }
    }
}
