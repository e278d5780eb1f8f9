//! The experts of a mixture over candle's tensors.

use crate::block::{Host, dtype, host};
use crate::op::bytes_of;
use crate::{Error, check_contiguous, check_device, check_elements, check_layout};
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Shape, Tensor};
use half::{bf16, f16};
use silumin::runtime::mlp::{Choices, Experts as Loaded, ExpertsOptions, ExpertsWeights, MlpWeights, Source};
use silumin::runtime::weights::GateUp;
use silumin::{Arch, Cache, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// The experts of a layer, `sum of weight * expert(x)` over what a router chose, loaded on a device: a cheap handle, for any
/// number of threads.
///
/// x is in bf16 or f16, and so is the result; weights are in these, in FP8, or in NVFP4 ([`silumin::runtime::mlp`]).
///
/// ```
/// use candle_core::{D, DType, Device, Tensor};
/// use silumin::Buckets;
/// use silumin::runtime::mlp::ExpertsOptions;
/// use silumin_candle::Experts;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // At model load: gate, up and down of four experts, as checkpoints have them.
/// let device = Device::Cpu;
/// let gate = Tensor::full(0.125f32, (128, 64), &device)?.to_dtype(DType::BF16)?;
/// let down = Tensor::full(0.125f32, (64, 128), &device)?.to_dtype(DType::BF16)?;
/// let layer = vec![[gate.clone(), gate, down]; 4];
/// let options = ExpertsOptions::new(Buckets::new([8])?, 2);
/// let experts = Experts::of_tensors(&layer, options).load(&device)?;
///
/// // For each batch of tokens: what the router says, the best two of it, and their shares.
/// let logits = Tensor::new(&[[0f32, 1.0, 2.0, 2.0], [4.0, 3.0, 1.0, 4.0], [1.0, 1.0, 0.0, 0.0]], &device)?;
/// let chosen = logits.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, 2)?.contiguous()?;
/// let shares = Tensor::new(&[[0.5f32, 0.5], [0.75, 0.25], [1.0, 1.0]], &device)?;
/// let x = Tensor::ones((3, 64), DType::BF16, &device)?;
/// let y = experts.run(&x, &chosen, &shares)?;
/// // Each expert gives 1024, and the last token's shares add up to 2.
/// let first = y.narrow(1, 0, 1)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
/// assert_eq!(first, [1024.0, 1024.0, 2048.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Experts {
    inner: Arc<Inner>,
}

struct Inner {
    loaded: Loaded,
    /// On CUDA candle's own stream, on the CPU the emulated device's.
    stream: Stream,
    candle: Device,
    source: Source,
    /// Held while a call is put in the stream: memory between the kernels is the block's own, or shared with other layers.
    calling: Arc<Mutex<()>>,
}

/// How [`Experts`] are loaded.
#[must_use]
pub struct ExpertsBuilder<'a> {
    weights: Weights<'a>,
    options: ExpertsOptions,
    emulating: Arch,
    /// For devices of the driver.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    cache: Option<Cache>,
}

enum Weights<'a> {
    Host(&'a ExpertsWeights<'a>),
    Tensors(&'a [[Tensor; 3]]),
}

impl Experts {
    /// Experts from weights out of a checkpoint (`ExpertsWeights::of_layer`) or a loader of one's own, in any format. They are
    /// copied to the device.
    pub fn of<'a>(weights: &'a ExpertsWeights<'a>, options: ExpertsOptions) -> ExpertsBuilder<'a> {
        ExpertsBuilder { weights: Weights::Host(weights), options, emulating: Arch::Sm90a, cache: None }
    }

    /// A builder for weights in tensors, gate, up and down of each expert: gate and up `[features, hidden]`, down `[hidden,
    /// features]`, all in bf16 or all in f16. They are copied, so the tensors may go.
    pub fn of_tensors(experts: &[[Tensor; 3]], options: ExpertsOptions) -> ExpertsBuilder<'_> {
        ExpertsBuilder { weights: Weights::Tensors(experts), options, emulating: Arch::Sm90a, cache: None }
    }

    /// Loads another layer of the same widths, format and number of experts, with the same options, on the same device. It shares
    /// this one's kernels and the memory between them.
    ///
    /// # Errors
    ///
    /// [`Error`]: a layer of another kind; memory of the device.
    pub fn load_layer(&self, weights: &ExpertsWeights<'_>) -> Result<Experts, Error> {
        let Inner { loaded, stream, candle, source, calling } = &*self.inner;
        let inner = Inner {
            loaded: loaded.load_layer(weights)?,
            stream: stream.clone(),
            candle: candle.clone(),
            source: *source,
            calling: calling.clone(),
        };
        Ok(Experts { inner: Arc::new(inner) })
    }

    /// The sum of each token's experts, each times its weight: x `[.., hidden]`, numbers of experts in u32 and weights in f32
    /// `[.., top_k]`, all contiguous. A number that is no expert's adds nothing. The result has x's shape and type.
    ///
    /// # Errors
    ///
    /// [`Error`]: what is wrong with the tensors, before anything runs; more tokens than the largest bucket; on the CPU what
    /// the emulator finds.
    pub fn run(&self, x: &Tensor, experts: &Tensor, weights: &Tensor) -> Result<Tensor, Error> {
        let Inner { loaded, candle, source, .. } = &*self.inner;
        check_elements("x", x, dtype(*source))?;
        check_elements("experts", experts, DType::U32)?;
        check_elements("weights", weights, DType::F32)?;
        let mut chosen = x.dims().to_vec();
        if chosen.pop() != Some(loaded.hidden()) || x.elem_count() == 0 {
            let expected = format!("[.., {}], with at least one row", loaded.hidden());
            return Err(Error::Shape { tensor: "x", shape: x.dims().to_vec(), expected });
        }
        chosen.push(loaded.top_k() as usize);
        for (tensor, given) in [("experts", experts), ("weights", weights)] {
            if given.dims() != chosen {
                let expected = format!("{chosen:?}: the choices of each of x's tokens");
                return Err(Error::Shape { tensor, shape: given.dims().to_vec(), expected });
            }
        }
        for (name, tensor) in [("x", x), ("experts", experts), ("weights", weights)] {
            check_device(name, tensor, candle)?;
            check_contiguous(name, tensor)?;
        }
        check_layout("x", x)?;
        Ok(x.apply_op3_arc(experts, weights, Arc::new(Box::new(Op(self.inner.clone()))))?)
    }

    /// The loaded experts.
    #[must_use]
    pub fn loaded(&self) -> &Loaded {
        &self.inner.loaded
    }
}

impl ExpertsBuilder<'_> {
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

    /// Copies the weights to the device, makes the kernels of all buckets on all cores and loads them.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn load(self, device: &Device) -> Result<Experts, Error> {
        let (ours, stream) = crate::open(device, self.emulating, self.cache)?;
        let loaded = match self.weights {
            Weights::Host(weights) => Loaded::load(&ours, weights, &self.options)?,
            Weights::Tensors(tensors) => {
                let read = |[gate, up, down]: &[Tensor; 3]| host(&[gate, up, down]);
                let hosts: Vec<[Host; 3]> = tensors.iter().map(read).collect::<Result<_, _>>()?;
                let mut experts = Vec::with_capacity(hosts.len());
                for [gate, up, down] in &hosts {
                    experts
                        .push(MlpWeights::new(GateUp::new(gate.weight()?, up.weight()?)?, down.weight()?)?);
                }
                Loaded::load(&ours, &ExpertsWeights::new(experts)?, &self.options)?
            }
        };
        let (candle, source, calling) = (device.clone(), self.options.source, Arc::default());
        Ok(Experts { inner: Arc::new(Inner { loaded, stream, candle, source, calling }) })
    }
}

/// The operation on x, numbers of experts and weights.
struct Op(Arc<Inner>);

impl Inner {
    fn tokens(&self, x: &Layout) -> u32 {
        u32::try_from(x.shape().elem_count() / self.loaded.hidden()).unwrap_or(u32::MAX)
    }
}

impl CustomOp3 for Op {
    fn name(&self) -> &'static str {
        "silumin-experts"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        experts: &CpuStorage,
        experts_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Inner { loaded, stream, source, calling, .. } = &*self.0;
        let run = || -> Result<Vec<u8>, Error> {
            let upload =
                |storage, layout| Ok::<_, Error>(loaded.device().upload(&bytes_of(storage, layout)?)?);
            let (x, experts) = (upload(x, layout)?, upload(experts, experts_layout)?);
            let weights = upload(weights, weights_layout)?;
            let out = loaded.device().alloc(x.len())?;
            let _calling = calling.lock().unwrap_or_else(PoisonError::into_inner);
            let choices = Choices { experts: &experts, weights: &weights };
            loaded.forward(stream, self.0.tokens(layout), &x, &choices, None, &out)?;
            Ok(out.download()?)
        };
        let bytes = run()?;
        let bits = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let result = match source {
            Source::Bf16 => CpuStorage::BF16(bits.map(bf16::from_bits).collect()),
            Source::F16 => CpuStorage::F16(bits.map(f16::from_bits).collect()),
        };
        Ok((result, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
        experts: &candle_core::CudaStorage,
        experts_layout: &Layout,
        weights: &candle_core::CudaStorage,
        weights_layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        let choices = [(experts, experts_layout), (weights, weights_layout)];
        Ok(match self.0.source {
            Source::Bf16 => self.0.on_cuda::<bf16>((x, layout), choices)?,
            Source::F16 => self.0.on_cuda::<f16>((x, layout), choices)?,
        })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Choices, Error, Inner};
    use crate::cuda::{CudaElements, read};
    use candle_core::cuda_backend::WrapErr;
    use candle_core::{CudaStorage, Layout, Shape};
    use cudarc::driver::DevicePtrMut;
    use std::sync::PoisonError;

    impl Inner {
        /// Runs the experts into new memory of candle's.
        pub(super) fn on_cuda<T: CudaElements>(
            &self,
            (x, layout): (&CudaStorage, &Layout),
            [experts, weights]: [(&CudaStorage, &Layout); 2],
        ) -> Result<(CudaStorage, Shape), Error> {
            let (device, count) = (&x.device, layout.shape().elem_count());
            let (stream, tokens) = (device.cuda_stream(), self.tokens(layout));
            // SAFETY: the kernel that sums writes every element.
            let mut out = unsafe { device.alloc::<T>(count) }?;
            let size = |layout: &Layout| 4 * layout.shape().elem_count();
            read(&stream, x, layout, |x_address| {
                read(&stream, experts.0, experts.1, |experts_address| {
                    read(&stream, weights.0, weights.1, |weights_address| {
                        let (target, _writing) = out.device_ptr_mut(&stream);
                        let lend = |address, bytes| {
                            // SAFETY: all lie in storages that live until the kernels are in the stream, which frees memory in
                            // its order.
                            unsafe { self.stream.lend(address, bytes) }
                        };
                        let (x, out) = (lend(x_address, 2 * count)?, lend(target, 2 * count)?);
                        let numbers = lend(experts_address, size(experts.1))?;
                        let weights = lend(weights_address, size(weights.1))?;
                        let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
                        let choices = Choices { experts: &numbers, weights: &weights };
                        Ok(self.loaded.forward(&self.stream, tokens, &x, &choices, None, &out)?)
                    })
                })
            })?;
            stream.context().check_err().w()?;
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), layout.shape().clone()))
        }
    }
}
