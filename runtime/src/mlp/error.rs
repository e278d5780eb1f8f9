//! Why a block cannot be loaded or run.

use silumin_codegen::arch::Arch;
use silumin_codegen::error::{ConfigError, explain};
use silumin_codegen::gate::{EvalError, GateError, GateParseError};
use silumin_codegen::problem::OperandFormat;
use silumin_verify::block::BlockError;
use thiserror::Error;

use crate::communicator::CommunicatorError;
use crate::device::{DeviceError, LaunchError};
#[cfg(feature = "emulated")]
use crate::predict::PredictError;
use crate::prepare::PrepareError;
use crate::warmup::{UnknownShape, WarmupError};
#[cfg(feature = "safetensors")]
use crate::weights::CheckpointError;
use crate::weights::WeightError;

/// Why a gated MLP cannot be loaded or run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MlpError {
    /// The shape or format of down does not fit gate and up.
    #[error(
        "down is {} x {} in {}, and gate and up are {} x {} in {}: beside them down has to be {} x {} in {}",
        .found[0], .found[1], .formats[1], .expected[1], .expected[0], .formats[0], .expected[0], .expected[1], .formats[0]
    )]
    Down {
        /// Rows and K that down has to have.
        expected: [usize; 2],
        /// Rows and K that it has.
        found: [usize; 2],
        /// Formats of gate and up, and of down.
        formats: [OperandFormat; 2],
    },
    /// The scale of the middle tensor is not a positive finite number.
    #[error(
        "the scale of the intermediate activations is {value}, but it has to be finite and above 0: leave it out for the format's own"
    )]
    MiddleScale {
        /// As given.
        value: f32,
    },
    /// The features of a block cannot be divided among so many ranks.
    #[error("{}", divided(*.features, *.ranks, *.multiple))]
    Ranks {
        /// Width between the projections.
        features: usize,
        /// Number of ranks.
        ranks: usize,
        /// Each rank's features have to be a multiple of this.
        multiple: usize,
    },
    /// There is no rank of this number.
    #[error("rank {rank} of {ranks}: ranks are numbered from 0 to one below their number")]
    Rank {
        /// As asked for.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A graph was to be recorded on a stream that cannot be captured.
    #[error(
        "the default stream cannot be captured: record the block on one of `Device::new_stream` or `Device::stream_of`"
    )]
    DefaultStream,
    /// The stream is another device's.
    #[error("the stream does not belong to {device}, the device of the block: use one of that device")]
    Stream {
        /// The device.
        device: String,
    },
    /// Ranks could not add up.
    #[error(transparent)]
    Communicator(#[from] CommunicatorError),
    /// The chip has no kernel for these weights.
    #[error("no kernels of a block with {weights} weights on {arch}:\n{}", explain(.reasons))]
    Formats {
        /// The format of the weights.
        weights: OperandFormat,
        /// The chip.
        arch: Arch,
        /// What is against 16-bit activations.
        reasons: Vec<ConfigError>,
    },
    /// The number of tokens has no bucket.
    #[error(
        "{}",
        match .tokens {
            0 => "0 tokens: there is nothing to compute".to_owned(),
            tokens => format!(
                "{tokens} tokens: the block has buckets for 1 to {most}; load it with a larger one, or call it for parts"
            ),
        }
    )]
    Tokens {
        /// As asked for.
        tokens: u32,
        /// Tokens of the largest bucket.
        most: u32,
    },
    /// A residual was given to a block that adds none, or left out.
    #[error(
        "{}",
        match .given {
            true => "a residual was given, but the block adds none: pass `None`, or load it without `without_residual`",
            false => "the block adds a residual, and none was given: pass one, or load it `without_residual`",
        }
    )]
    Residual {
        /// Whether one was given.
        given: bool,
    },
    /// A buffer has another length.
    #[error(
        "`{tensor}` has {found} bytes, and {rows} x {hidden} of 16 bits are {expected}: pass exactly {expected}, as a slice of a longer buffer for example"
    )]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// Its bytes.
        found: usize,
        /// The bytes that it has to have.
        expected: usize,
        /// Its rows.
        rows: u32,
        /// Elements of a row.
        hidden: usize,
    },
    /// An expert's weights have another shape or format than the first expert's.
    #[error(
        "expert {expert} has {} features of {} in {}, but the experts before it have {} of {} in {}: one kernel multiplies all, so \
         that they have one shape and one format",
        .found.0[1], .found.0[0], .found.1, .expected.0[1], .expected.0[0], .expected.1
    )]
    UnlikeExperts {
        /// The expert.
        expert: usize,
        /// Hidden size and features, and the format of the first.
        expected: ([usize; 2], OperandFormat),
        /// What this one has.
        found: ([usize; 2], OperandFormat),
    },
    /// One scale of FP8 activations is given, and the other is not.
    #[error(
        "{}FP8 activations have a scale for {}: set both (`GateUp::with_input_scale`, `MlpWeights::with_middle_scale`), or drop it by \
         `MlpWeights::without_activation_scales`, and each token gets its own",
        .expert.map(|expert| format!("expert {expert}: ")).unwrap_or_default(),
        match .input { true => "x, and none for the intermediate activations", false => "the intermediate activations, and none for x" }
    )]
    HalfCalibrated {
        /// The expert, for experts of a mixture.
        expert: Option<usize>,
        /// Whether the scale of x is given.
        input: bool,
    },
    /// The hidden size of experts is not a multiple of 16.
    #[error(
        "hidden is {hidden}, and the kernels that gather and sum rows of experts want a multiple of 16: pad weights and x with zeros"
    )]
    Hidden {
        /// Width of x.
        hidden: usize,
    },
    /// A layer was to share kernels with one of another kind.
    #[error("a layer `{found}` cannot share the kernels of `{expected}`: load it by itself")]
    UnlikeLayer {
        /// Widths, format and gates of the layer that has kernels.
        expected: String,
        /// Those of the other.
        found: String,
    },
    /// Experts have numbers beyond 31 bits.
    #[error(
        "experts {first} to {first} + {count} - 1: numbers of experts are below 2^31, as choices are i32"
    )]
    FirstExpert {
        /// Number of the first expert.
        first: u32,
        /// How many.
        count: usize,
    },
    /// There are no experts, or more than the router's kernel has counters for.
    #[error(
        "{found} experts: a layer has from 1 to {limit}; divide more among several blocks by `ExpertsOptions::first_expert`"
    )]
    Experts {
        /// As given.
        found: usize,
        /// The most.
        limit: u32,
    },
    /// A token chooses no expert, or more than rows can be counted for.
    #[error(
        "{top_k} choices for each of {tokens} tokens: a token has at least one, and all have less than 2^31 together"
    )]
    TopK {
        /// Choices of a token.
        top_k: u32,
        /// Tokens of the largest bucket.
        tokens: u32,
    },
    /// A buffer of choices has another length.
    #[error(
        "`{tensor}` has {found} bytes: {tokens} tokens with {top_k} choices of 4 bytes are {expected}; pass exactly {expected}, as a slice of a longer buffer for example"
    )]
    Choices {
        /// Which.
        tensor: &'static str,
        /// Its bytes.
        found: usize,
        /// The bytes that it has to have.
        expected: usize,
        /// Tokens of the call.
        tokens: u32,
        /// Choices of a token.
        top_k: u32,
    },
    /// A buffer's address has the wrong alignment.
    #[error("the address of `{tensor}` is not a multiple of {bytes}: slice at an offset that is")]
    Alignment {
        /// Which.
        tensor: &'static str,
        /// What it has to be a multiple of.
        bytes: usize,
    },
    /// A buffer is on another device.
    #[error("`{tensor}` is on {found}, and the block is on {expected}: use a buffer of that device")]
    Foreign {
        /// Which.
        tensor: &'static str,
        /// Where it is.
        found: String,
        /// Where it should be.
        expected: String,
    },
    /// The sizes of a reference do not fit.
    #[error(transparent)]
    Reference(#[from] BlockError),
    /// The gate's text; a bug of this crate.
    #[error(transparent)]
    Gate(#[from] GateParseError),
    /// The gate's value; a bug of this crate.
    #[error(transparent)]
    Value(#[from] EvalError),
    /// The gate's code; a bug of this crate.
    #[error(transparent)]
    Code(#[from] GateError),
    /// The checkpoint.
    #[cfg(feature = "safetensors")]
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The weights.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// Kernels could not be made or loaded.
    #[error(transparent)]
    Warmup(#[from] WarmupError),
    /// A bucket without a kernel; a bug of this crate.
    #[error(transparent)]
    Shape(#[from] Box<UnknownShape>),
    /// Activations could not be quantised.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// A launch was refused or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Memory of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A kernel has no predicted time.
    #[cfg(feature = "emulated")]
    #[error(transparent)]
    Predict(#[from] Box<PredictError>),
}

/// What is wrong with a division of features among ranks, and the nearest that do divide.
fn divided(features: usize, ranks: usize, multiple: usize) -> String {
    let step = ranks * multiple;
    let below = features / step * step;
    let widths = match below {
        0 => format!("{step}"),
        below => format!("{below} and {}", below + step),
    };
    let divides = |ranks: &usize| features.is_multiple_of(*ranks * multiple);
    let fewer = (1..ranks).rev().find(divides);
    let more = (ranks + 1..=features / multiple).find(divides);
    let numbers: Vec<String> = fewer.into_iter().chain(more).map(|ranks| ranks.to_string()).collect();
    let numbers = match numbers.is_empty() {
        true => "no number of ranks divides it".to_owned(),
        false => format!("the nearest numbers of ranks are {}", numbers.join(" and ")),
    };
    format!(
        "{features} features cannot be divided among {ranks} ranks, for each has a multiple of {multiple}: {numbers}; the nearest \
         numbers of features for {ranks} ranks are {widths} (pad gate, up and down with zeros)"
    )
}
