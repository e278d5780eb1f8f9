//! The whole gated MLP over candle's tensors.

use crate::op::bytes_of;
use crate::{Error, check_device, check_elements, check_layout};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Device, Layout, Module, Shape, Storage, Tensor};
use half::{bf16, f16};
use silumin::runtime::mlp::{Mlp as Loaded, MlpOptions, MlpWeights, Source};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Arch, Cache, OperandFormat, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// The gated MLP of a layer, `down(act(gate(x)) * up(x))` or with `+ residual`, loaded on a device: a cheap handle, for any
/// number of threads.
///
/// x is in bf16 or f16, and so is the result; weights are in these, in FP8, or in NVFP4, with activations quantised between
/// the kernels where the chip wants that ([`silumin::runtime::mlp`]).
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use silumin::Buckets;
/// use silumin::runtime::mlp::MlpOptions;
/// use silumin_candle::Mlp;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // At model load. Weights are as checkpoints have them: `vb.get((n, k), "gate_proj.weight")` of candle_nn's VarBuilder.
/// let device = Device::Cpu;
/// let gate = Tensor::full(0.125f32, (128, 64), &device)?.to_dtype(DType::BF16)?;
/// let down = Tensor::full(0.125f32, (64, 128), &device)?.to_dtype(DType::BF16)?;
/// let options = MlpOptions::new(Buckets::new([8])?).without_residual();
/// let mlp = Mlp::of_tensors(&gate, &gate, &down).options(options).load(&device)?;
///
/// // For each batch of tokens: [.., hidden] -> [.., hidden].
/// let x = Tensor::ones((1, 3, 64), DType::BF16, &device)?;
/// let y = mlp.forward(&x)?;
/// // gate and up are 8; silu(8) * 8 is 64 in bf16; down is 128 * 64 * 0.125.
/// assert_eq!(y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?, [1024.0; 3 * 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mlp {
    block: Arc<Block>,
}

struct Block {
    loaded: Loaded,
    /// On CUDA candle's own stream, on the CPU the emulated device's.
    stream: Stream,
    candle: Device,
    source: Source,
    residual: bool,
    /// Held while a call is put in the stream: memory between the kernels is the block's own, or shared with other layers.
    calling: Arc<Mutex<()>>,
}

/// How an [`Mlp`] is loaded.
#[must_use]
pub struct MlpBuilder<'a> {
    weights: Weights<'a>,
    options: Option<MlpOptions>,
    emulating: Arch,
    /// For devices of the driver.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    cache: Option<Cache>,
}

enum Weights<'a> {
    Host(Box<MlpWeights<'a>>),
    Tensors([&'a Tensor; 3]),
}

impl Mlp {
    /// A block from weights out of a checkpoint (`MlpWeights::of_layer`) or a loader of one's own, in any format. They are
    /// copied to the device.
    pub fn of<'a>(weights: &MlpWeights<'a>) -> MlpBuilder<'a> {
        MlpBuilder::new(Weights::Host(Box::new(*weights)))
    }

    /// A builder for weights in tensors: gate and up `[features, hidden]`, down `[hidden, features]`, all in bf16 or all in
    /// f16. They are copied, so the tensors may go.
    pub fn of_tensors<'a>(gate: &'a Tensor, up: &'a Tensor, down: &'a Tensor) -> MlpBuilder<'a> {
        MlpBuilder::new(Weights::Tensors([gate, up, down]))
    }

    /// Loads another layer of the same widths and format, with the same options, on the same device. It shares this one's
    /// kernels and the memory between them.
    ///
    /// # Errors
    ///
    /// [`Error`]: a layer of another kind; memory of the device.
    pub fn load_layer(&self, weights: &MlpWeights<'_>) -> Result<Mlp, Error> {
        let Block { loaded, stream, candle, source, residual, calling } = &*self.block;
        let block = Block {
            loaded: loaded.load_layer(weights)?,
            stream: stream.clone(),
            candle: candle.clone(),
            source: *source,
            residual: *residual,
            calling: calling.clone(),
        };
        Ok(Mlp { block: Arc::new(block) })
    }

    /// `down(act(gate(x)) * up(x))` of x, `[.., hidden]`, contiguous.
    ///
    /// # Errors
    ///
    /// [`Error`]: what is wrong with x, before anything runs; a block that was loaded with a residual; more tokens than the
    /// largest bucket; on the CPU what the emulator finds.
    pub fn run(&self, x: &Tensor) -> Result<Tensor, Error> {
        self.check("x", x)?;
        match self.block.residual {
            true => Err(Error::Residual { given: false }),
            false => Ok(x.apply_op1_arc(Arc::new(Box::new(Op(self.block.clone()))))?),
        }
    }

    /// The same with `+ residual`, of x's shape.
    ///
    /// # Errors
    ///
    /// As [`Mlp::run`]; a block that was loaded without a residual.
    pub fn run_adding(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor, Error> {
        self.check("x", x)?;
        self.check("residual", residual)?;
        if !self.block.residual {
            return Err(Error::Residual { given: true });
        }
        if residual.dims() != x.dims() {
            let expected = format!("{:?}, as x is", x.dims());
            return Err(Error::Shape { tensor: "residual", shape: residual.dims().to_vec(), expected });
        }
        Ok(x.apply_op2_arc(residual, Arc::new(Box::new(Op(self.block.clone()))))?)
    }

    fn check(&self, name: &'static str, tensor: &Tensor) -> Result<(), Error> {
        let Block { loaded, candle, source, .. } = &*self.block;
        check_elements(name, tensor, dtype(*source))?;
        check_device(name, tensor, candle)?;
        if tensor.dims().last() != Some(&loaded.hidden()) || tensor.elem_count() == 0 {
            let expected = format!("[.., {}], with at least one row", loaded.hidden());
            return Err(Error::Shape { tensor: name, shape: tensor.dims().to_vec(), expected });
        }
        check_layout(name, tensor)
    }

    /// Width of x and of the result.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.block.loaded.hidden()
    }

    /// The loaded block.
    #[must_use]
    pub fn loaded(&self) -> &Loaded {
        &self.block.loaded
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.run(x)?)
    }
}

impl<'a> MlpBuilder<'a> {
    fn new(weights: Weights<'a>) -> Self {
        MlpBuilder { weights, options: None, emulating: Arch::Sm90a, cache: None }
    }

    /// Buckets, activation, formats, residual: [`MlpOptions`]. Without them: SiLU, bf16 and no residual, up to 1024 tokens.
    pub fn options(mut self, options: MlpOptions) -> Self {
        self.options = Some(options);
        self
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

    /// Copies the weights to the device, makes the kernels of all buckets on all cores and loads them.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn load(self, device: &Device) -> Result<Mlp, Error> {
        let (ours, stream) = crate::open(device, self.emulating, self.cache)?;
        let options = self
            .options
            .unwrap_or_else(|| MlpOptions::new(silumin::Buckets::powers_of_two(1024)).without_residual());
        let loaded = match &self.weights {
            Weights::Host(weights) => Loaded::load(&ours, weights, &options)?,
            Weights::Tensors(tensors) => {
                let [gate, up, down] = host(tensors)?;
                let gate_up = GateUp::new(gate.weight()?, up.weight()?)?;
                Loaded::load(&ours, &MlpWeights::new(gate_up, down.weight()?)?, &options)?
            }
        };
        let (source, residual) = (options.source, options.residual);
        let (candle, calling) = (device.clone(), Arc::default());
        Ok(Mlp { block: Arc::new(Block { loaded, stream, candle, source, residual, calling }) })
    }
}

/// A tensor's elements on the host.
pub(crate) struct Host {
    format: OperandFormat,
    rows: usize,
    k: usize,
    bytes: Vec<u8>,
}

impl Host {
    pub(crate) fn weight(&self) -> Result<Weight<'_>, Error> {
        Ok(Weight::new(self.format, self.rows, self.k, &self.bytes, &[], 1.0)?)
    }
}

pub(crate) fn host(tensors: &[&Tensor; 3]) -> Result<[Host; 3], Error> {
    let one = |name: &'static str, tensor: &Tensor| {
        let format = match tensor.dtype() {
            DType::F16 => OperandFormat::F16,
            DType::BF16 => OperandFormat::Bf16,
            found => return Err(Error::DType { tensor: name, found, expected: DType::BF16 }),
        };
        let Ok((rows, k)) = tensor.dims2() else {
            let expected = "a matrix, as checkpoints have weights".to_owned();
            return Err(Error::Shape { tensor: name, shape: tensor.dims().to_vec(), expected });
        };
        let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
        let (storage, layout) = tensor.storage_and_layout();
        let bytes = match &*storage {
            Storage::Cpu(storage) => bytes_of(storage, layout)?,
            _ => Vec::new(),
        };
        Ok(Host { format, rows, k, bytes })
    };
    Ok([one("gate", tensors[0])?, one("up", tensors[1])?, one("down", tensors[2])?])
}

pub(crate) fn dtype(source: Source) -> DType {
    match source {
        Source::Bf16 => DType::BF16,
        Source::F16 => DType::F16,
    }
}

/// The operation on x, or on x and a residual.
struct Op(Arc<Block>);

impl Block {
    /// Tokens of x, and rows of its bucket.
    fn rows(&self, x: &Layout) -> Result<(u32, usize), Error> {
        let tokens = u32::try_from(x.shape().elem_count() / self.loaded.hidden()).unwrap_or(u32::MAX);
        Ok((tokens, self.loaded.rows(tokens)? as usize))
    }

    fn on_cpu(
        &self,
        (x, x_layout): (&CpuStorage, &Layout),
        residual: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape), Error> {
        let (tokens, rows) = self.rows(x_layout)?;
        let device = self.loaded.device();
        let bytes = bytes_of(x, x_layout)?;
        let length = bytes.len();
        let x = device.upload(&bytes)?;
        // The residual is in the result's memory; rows that no token has are zeros.
        let mut initial = match residual {
            Some((residual, layout)) => bytes_of(residual, layout)?,
            None => Vec::new(),
        };
        initial.resize(rows * self.loaded.row_bytes(), 0);
        let out = device.upload(&initial)?;
        {
            let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
            let added = self.residual.then_some(&out);
            self.loaded.forward(&self.stream, tokens, &x, added, &out)?;
        }
        let bytes = out.slice(0, length)?.download()?;
        let bits = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let result = match self.source {
            Source::Bf16 => CpuStorage::BF16(bits.map(bf16::from_bits).collect()),
            Source::F16 => CpuStorage::F16(bits.map(f16::from_bits).collect()),
        };
        Ok((result, x_layout.shape().clone()))
    }
}

impl CustomOp1 for Op {
    fn name(&self) -> &'static str {
        "silumin-mlp"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(self.0.on_cpu((x, layout), None)?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        Ok(self.0.on_cuda((x, layout), None)?)
    }
}

impl CustomOp2 for Op {
    fn name(&self) -> &'static str {
        "silumin-mlp-residual"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok(self.0.on_cpu((x, layout), Some((residual, residual_layout)))?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
        residual: &candle_core::CudaStorage,
        residual_layout: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        Ok(self.0.on_cuda((x, layout), Some((residual, residual_layout)))?)
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Block, Error};
    use crate::cuda::{CudaElements, elements, read};
    use candle_core::cuda_backend::WrapErr;
    use candle_core::{CudaStorage, Layout, Shape};
    use cudarc::driver::DevicePtrMut;
    use half::{bf16, f16};
    use silumin::runtime::mlp::Source;
    use std::sync::PoisonError;

    impl Block {
        pub(super) fn on_cuda(
            &self,
            x: (&CudaStorage, &Layout),
            residual: Option<(&CudaStorage, &Layout)>,
        ) -> Result<(CudaStorage, Shape), Error> {
            match self.source {
                Source::Bf16 => self.into::<bf16>(x, residual),
                Source::F16 => self.into::<f16>(x, residual),
            }
        }

        /// Runs the block into new memory of candle's, in which the residual has been copied.
        fn into<T: CudaElements>(
            &self,
            (x, layout): (&CudaStorage, &Layout),
            residual: Option<(&CudaStorage, &Layout)>,
        ) -> Result<(CudaStorage, Shape), Error> {
            let (tokens, rows) = self.rows(layout)?;
            let device = &x.device;
            let stream = device.cuda_stream();
            let (hidden, count) = (self.loaded.hidden(), layout.shape().elem_count());
            // SAFETY: kernels write every element, those behind the tokens' rows too. A residual is read from all rows, and is
            // written there below.
            let mut out = unsafe { device.alloc::<T>(rows * hidden) }?;
            if let Some((residual, layout)) = residual {
                let from = elements::<T>(residual, layout)?;
                stream.memcpy_dtod(&from, &mut out.slice_mut(0..count)).w()?;
                if count < rows * hidden {
                    stream.memset_zeros(&mut out.slice_mut(count..)).w()?;
                }
            }
            read(&stream, x, layout, |address| {
                let (target, _writing) = out.device_ptr_mut(&stream);
                // SAFETY: both lie in storages that live until the kernels are in the stream, which frees memory in its order.
                let (x, out) = unsafe {
                    (self.stream.lend(address, 2 * count)?, self.stream.lend(target, 2 * rows * hidden)?)
                };
                let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
                let added = self.residual.then_some(&out);
                Ok(self.loaded.forward(&self.stream, tokens, &x, added, &out)?)
            })?;
            stream.context().check_err().w()?;
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), layout.shape().clone()))
        }
    }
}
