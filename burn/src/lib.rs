//! silumin's gated MLP on burn's tensors: `[batch, tokens, hidden]` in bf16, and back.
//!
//! * On CUDA the kernels read and write burn's own memory (`src/cuda.rs`).
//! * On the CPU ([`Device::flex`]) the tensor is copied to silumin's emulated device and back. That is for tests.
//!
//! ```
//! use burn::tensor::{DType, Device, Tensor};
//! use silumin::{Buckets, OperandFormat};
//! use silumin::runtime::mlp::MlpWeights;
//! use silumin::runtime::weights::{GateUp, Weight};
//! use silumin_burn_example::GatedMlp;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // At model load: 64 wide, 128 features, all weights 0.125 in bf16.
//! let codes = [0x00, 0x3E].repeat(128 * 64);
//! let weight = |rows, k| Weight::new(OperandFormat::Bf16, rows, k, &codes, &[], 1.0);
//! let weights = MlpWeights::new(GateUp::new(weight(128, 64)?, weight(128, 64)?)?, weight(64, 128)?)?;
//! let device = Device::flex();
//! let mlp = GatedMlp::load(&device, &weights, Buckets::new([8])?)?;
//!
//! // For each batch.
//! let x = Tensor::<3>::ones([2, 3, 64], (&device, DType::BF16));
//! let y = mlp.forward(x)?;
//! // gate and up are 8; silu(8) * 8 is 64 in bf16; down is 128 * 64 * 0.125.
//! assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1024.0; 2 * 3 * 64]);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod order;

#[cfg(feature = "cuda")]
pub use order::Order;

use burn::backend::{DispatchDevice, ExecutionError};
use burn::tensor::{DType, Device, Tensor, TensorData};
use silumin::runtime::mlp::{Mlp, MlpError, MlpOptions, MlpWeights};
use silumin::{Arch, Buckets, DeviceError, Stream};
use std::sync::{Mutex, PoisonError};

/// Why an MLP was not loaded, or did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device of burn's that silumin has no kernels for.
    #[error(
        "no kernels for tensors on {0}: use `Device::cuda` (feature `cuda`), or `Device::flex` for the emulated device"
    )]
    Unsupported(String),
    /// A tensor on another device than the weights.
    #[error("x is on {found}, and the weights are on {expected}: use `to_device`")]
    Device {
        /// Where x is.
        found: String,
        /// Where the weights are.
        expected: String,
    },
    /// A tensor that gradients are computed for.
    #[error("x is on an autodiff device, and the MLP has no backward pass: use `inner()`")]
    Autodiff,
    /// Elements of another type.
    #[error("x has elements of {0:?}, and the kernels read bf16: use `cast(DType::BF16)`")]
    DType(DType),
    /// Another width than the weights have.
    #[error("x is {found:?}, and the weights take [batch, tokens, {hidden}]")]
    Shape {
        /// Dimensions of x.
        found: [usize; 3],
        /// Width of the weights.
        hidden: usize,
    },
    /// What silumin says about the weights, the number of tokens or a launch.
    #[error(transparent)]
    Mlp(#[from] MlpError),
    /// What silumin says about the device.
    #[error(transparent)]
    SiluminDevice(#[from] DeviceError),
    /// What the driver says about events.
    #[cfg(feature = "cuda")]
    #[error("{0}")]
    Driver(String),
    /// A failure of burn's own work, which made x for example.
    #[error("burn reports: {0}")]
    Burn(String),
}

impl From<ExecutionError> for Error {
    fn from(error: ExecutionError) -> Self {
        Error::Burn(error.to_string())
    }
}

/// `down(silu(gate(x)) * up(x))` on a device of burn's.
pub struct GatedMlp {
    mlp: Mlp,
    stream: Stream,
    device: Device,
    /// Held during a call: the memory between the kernels is the MLP's own.
    calling: Mutex<()>,
    #[cfg(feature = "cuda")]
    events: Option<order::Events>,
}

impl GatedMlp {
    /// Copies the weights to the device, and makes the kernels for all buckets.
    ///
    /// # Errors
    ///
    /// [`Error`]: a device without kernels, no driver, sizes or buckets that have no kernel, memory.
    pub fn load(device: &Device, weights: &MlpWeights<'_>, buckets: Buckets) -> Result<Self, Error> {
        if device.is_autodiff() {
            return Err(Error::Autodiff);
        }
        let ours = match device.as_dispatch() {
            DispatchDevice::Flex(_) => silumin::Device::emulated(Arch::Sm90a),
            // The driver's number of the GPU. Both sides retain its primary context, so addresses are valid in both.
            #[cfg(feature = "cuda")]
            DispatchDevice::Cube(cubecl::Device::Cuda(gpu)) => silumin::Device::cuda(gpu.index)?,
            #[allow(unreachable_patterns)]
            other => return Err(Error::Unsupported(format!("{other:?}"))),
        };
        let mlp = Mlp::load(&ours, weights, &MlpOptions::new(buckets).without_residual())?;
        Ok(GatedMlp {
            mlp,
            stream: ours.new_stream()?,
            device: device.clone(),
            calling: Mutex::default(),
            #[cfg(feature = "cuda")]
            events: None,
        })
    }

    /// Orders calls on CUDA in another way than [`Order::Host`]. It does nothing for CPU tensors.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: an old driver, what the driver says.
    #[cfg(feature = "cuda")]
    pub fn ordered(mut self, order: Order) -> Result<Self, Error> {
        let device = self.mlp.device();
        self.events = match (order, device.ordinal()) {
            (Order::Context, Some(ordinal)) => {
                // The primary context once more, as silumin and cubecl have it.
                let context = cudarc::driver::CudaContext::new(ordinal)?;
                let stream = context.new_stream()?;
                self.stream = device.stream_of(stream.clone())?;
                Some(order::Events::new(&context, stream)?)
            }
            _ => None,
        };
        Ok(self)
    }

    /// `down(silu(gate(x)) * up(x))` for `[batch, tokens, hidden]` in bf16.
    ///
    /// # Errors
    ///
    /// [`Error`]: what is wrong with x, before anything runs; more tokens than the largest bucket; what the device says.
    pub fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let (found, hidden) = (x.dims(), self.mlp.hidden());
        let device = x.device();
        if device != self.device {
            let [found, expected] =
                [&device, &self.device].map(|device| format!("{:?}", device.as_dispatch()));
            return Err(Error::Device { found, expected });
        }
        if device.is_autodiff() {
            return Err(Error::Autodiff);
        }
        if x.dtype() != DType::BF16 {
            return Err(Error::DType(x.dtype()));
        }
        let [batch, length, width] = found;
        if width != hidden {
            return Err(Error::Shape { found, hidden });
        }
        let tokens = u32::try_from(batch * length).unwrap_or(u32::MAX);
        // Residual and result have the rows of a bucket: more than the tokens, or as many.
        let rows = self.mlp.rows(tokens)? as usize;
        let _calling = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(feature = "cuda")]
        if !self.mlp.device().is_emulated() {
            return self.on_cuda(x, tokens, rows);
        }
        self.on_cpu(x, tokens, rows)
    }

    /// The loaded MLP.
    pub fn mlp(&self) -> &Mlp {
        &self.mlp
    }

    /// Copies x to the emulated device, and the result back.
    fn on_cpu(&self, x: Tensor<3>, tokens: u32, rows: usize) -> Result<Tensor<3>, Error> {
        let shape = x.dims();
        let emulated = self.mlp.device();
        let x = emulated.upload(x.try_into_data()?.as_bytes())?;
        let out = emulated.alloc(rows * self.mlp.row_bytes())?;
        self.mlp.forward(&self.stream, tokens, &x, None, &out)?;
        let bytes = out.slice(0, tokens as usize * self.mlp.row_bytes())?.download()?;
        let data = TensorData::from_bytes_vec(bytes, shape, DType::BF16);
        Ok(Tensor::from_data(data, (&self.device, DType::BF16)))
    }
}
