//! What can be wrong with tensors.

use candle_core::{DType, DeviceLocation};
use silumin::runtime::warmup::{BucketError, UnknownShape, WarmupError};
use silumin::{DeviceError, LaunchError, OperandFormat, OutputFormat};
use thiserror::Error;

/// Why a gated MLP was not made, or did not run. Out of a [`candle_core::Error`] it comes by `Error::from`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Elements of another type.
    #[error(
        "`{tensor}` has elements of {found:?}, and the kernel reads {expected:?}: use `to_dtype({expected:?})`, or other formats in the dual GEMM"
    )]
    DType {
        /// The tensor.
        tensor: &'static str,
        /// Its elements.
        found: DType,
        /// What the dual GEMM's formats ask for.
        expected: DType,
    },
    /// Dimensions that are not a matrix, or not the weights'.
    #[error("`{tensor}` is {shape:?}, and it has to be {expected}")]
    Shape {
        /// The tensor.
        tensor: &'static str,
        /// Its dimensions.
        shape: Vec<usize>,
        /// What it has to be, in words.
        expected: String,
    },
    /// A view whose elements are not contiguous.
    #[error(
        "`{tensor}` is a view of {shape:?} with strides {stride:?}, and a kernel reads rows of K that lie one behind the other: \
         use `contiguous()` once, at model load for weights"
    )]
    Strided {
        /// The tensor.
        tensor: &'static str,
        /// Its dimensions.
        shape: Vec<usize>,
        /// Its strides, in elements.
        stride: Vec<usize>,
    },
    /// A view that starts where the tensor memory accelerator can't.
    #[error(
        "`{tensor}` starts {bytes} bytes into its storage, and it has to be at a multiple of {alignment}: narrow it at another row, \
         or copy it with `force_contiguous()`"
    )]
    Alignment {
        /// The tensor.
        tensor: &'static str,
        /// Where it starts.
        bytes: usize,
        /// What that has to be a multiple of.
        alignment: usize,
    },
    /// A tensor on another device than the weights.
    #[error("`{tensor}` is on {found:?}, and the weights are on {expected:?}: use `to_device`")]
    Device {
        /// The tensor.
        tensor: &'static str,
        /// Where it is.
        found: DeviceLocation,
        /// Where it has to be.
        expected: DeviceLocation,
    },
    /// A device that kernels do not run on.
    #[error("tensors on {found:?} are not supported: {advice}")]
    Unsupported {
        /// The device.
        found: DeviceLocation,
        /// What would do.
        advice: &'static str,
    },
    /// Activations that candle has no tensors of.
    #[error(
        "the dual GEMM reads activations in {format}, and tensors have them in bf16 or f16: say `A: bf16` (weights may be nvfp4 on \
         sm_90a), or quantise with silumin::runtime::prepare and launch the kernel yourself"
    )]
    Activations {
        /// The format of A.
        format: OperandFormat,
    },
    /// A result that candle has no tensors of.
    #[error("the dual GEMM writes {format}, and candle's tensors are bf16, f16 or f32: say `C: bf16`")]
    Output {
        /// The format of C.
        format: OutputFormat,
    },
    /// Weights in another format than the dual GEMM's.
    #[error("the weights are in {found}, and the dual GEMM reads them in {expected}: say `B: {found}`")]
    Weights {
        /// As given.
        found: OperandFormat,
        /// As the dual GEMM has it.
        expected: OperandFormat,
    },
    /// A gate that reads vectors.
    #[error(
        "the gate reads the vector `{name}`, which no tensor is given for: launch that kernel yourself, or put the scale into the weights"
    )]
    Vector {
        /// The vector.
        name: String,
    },
    /// Kept pre-activations.
    #[error("the dual GEMM keeps its pre-activations, which no tensor takes: leave them out of its formats")]
    Preactivations,
    /// A residual was given to a block that adds none, or left out.
    #[error(
        "{}",
        match .given {
            true => "the block adds no residual: call `run`, or load it with `MlpOptions` that have one",
            false => "the block adds a residual: call `run_adding`, or load it with `MlpOptions::without_residual`",
        }
    )]
    Residual {
        /// Whether one was given.
        given: bool,
    },
    /// A block that could not be loaded or run.
    #[error(transparent)]
    Block(Box<silumin::runtime::mlp::MlpError>),
    /// No weights.
    #[error("no weights: call `tensors` or `weights` before `build`")]
    NoWeights,
    /// M beyond the buckets.
    #[error(transparent)]
    Rows(#[from] UnknownShape),
    /// Sizes of M that are none.
    #[error(transparent)]
    Buckets(#[from] BucketError),
    /// Kernels that could not be made or loaded.
    #[error(transparent)]
    Warmup(#[from] WarmupError),
    /// A launch.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Memory of the device.
    #[error(transparent)]
    Memory(#[from] DeviceError),
    /// Weights that are none.
    #[error(transparent)]
    Checkpoint(#[from] silumin::runtime::weights::WeightError),
    /// What candle says.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

impl From<silumin::runtime::mlp::MlpError> for Error {
    fn from(error: silumin::runtime::mlp::MlpError) -> Self {
        Error::Block(Box::new(error))
    }
}

/// The variant that carries an error of any type, and shows it as it is; its name is candle's.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            own => candle_core::Error::Cuda(Box::new(own)),
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match error {
            candle_core::Error::Cuda(carried) => match carried.downcast::<Error>() {
                Ok(own) => *own,
                Err(other) => Error::Candle(Box::new(candle_core::Error::Cuda(other))),
            },
            other => Error::Candle(Box::new(other)),
        }
    }
}
