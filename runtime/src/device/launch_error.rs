//! Errors of a launch.

use silumin_codegen::plan::Operand;
use silumin_codegen::problem::{OutputFormat, Problem};
use thiserror::Error;

use super::{DeviceError, emulated};
use silumin_verify::vectors::VectorError;

/// Why a launch was refused, or what is wrong with its result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The stream belongs to another device.
    #[error(
        "`{kernel}` is loaded on another device ({device}) than that of the stream ({found}): load it on the stream's"
    )]
    StreamDevice {
        /// The kernel's name.
        kernel: String,
        /// The kernel's device.
        device: String,
        /// The stream's device.
        found: String,
    },
    /// A tensor is on another device.
    #[error("`{operand}` is on another device ({found}) than the kernel ({device}): upload it there")]
    OperandDevice {
        /// The tensor.
        operand: Operand,
        /// The tensor's device.
        found: String,
        /// The kernel's device.
        device: String,
    },
    /// A tensor that the formats require is missing.
    #[error(
        "`{operand}` is missing: the problem {problem} has {expected} bytes of it; add it to the arguments"
    )]
    MissingOperand {
        /// The tensor.
        operand: Operand,
        /// Required length in bytes.
        expected: u64,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// A tensor is given that the formats do not have.
    #[error("`{operand}` is given, but the problem {problem} has none: leave it out")]
    SuperfluousOperand {
        /// The tensor.
        operand: Operand,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// The scale of the whole C is missing, superfluous, or not a positive finite number.
    #[error("the scale of C is {}, and for C in {format} {}", in_words(.given), output_scale_help(*.format))]
    OutputScale {
        /// As given.
        given: Option<f32>,
        /// C's format.
        format: OutputFormat,
    },
    /// A tensor has the wrong length.
    #[error("`{operand}` has {found} bytes, but in the problem {problem} it has {expected}: {}", length_help(*.found as u64, *.expected))]
    Length {
        /// The tensor.
        operand: Operand,
        /// Length of the buffer in bytes.
        found: usize,
        /// Length of the tensor in bytes.
        expected: u64,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// `Args::rows` is more than the kernel computes, or 0.
    #[error(
        "Args::rows is {rows}, and the kernel computes {problem}: it can be 1 to M, for one matrix; use the kernel of a larger bucket, or leave it out"
    )]
    Rows {
        /// The given number of rows.
        rows: u32,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// The address of a tensor has the wrong alignment for TMA.
    #[error("the address of `{operand}` is not a multiple of {alignment}: slice at an offset that is")]
    Alignment {
        /// The tensor.
        operand: Operand,
        /// Required alignment in bytes.
        alignment: u32,
    },
    /// An output overlaps another tensor in memory.
    #[error(
        "`{output}` overlaps `{operand}` in memory, and the kernel uses both at the same time: give `{output}` memory of its own"
    )]
    Aliasing {
        /// The output.
        output: Operand,
        /// The other tensor.
        operand: Operand,
    },
    /// The weights have scales of their whole tensors, and the gate has no scalar to apply them.
    #[error(
        "the weights have tensor scales, {gate_scale} and {up_scale}, and the gate `{gate}` has no scalar to apply them: C would be wrong, and often infinite. Write the gate as `silu(gate_scale * (A @ B1)) * (up_scale * (A @ B2))` and pass DeviceGateUp::scalars; or quantise with TensorScale::One; or set Args::weight_scales to None if a vector applies them"
    )]
    UnappliedScales {
        /// The gate.
        gate: String,
        /// Scale of the whole B1.
        gate_scale: f32,
        /// Scale of the whole B2.
        up_scale: f32,
    },
    /// A scalar of the gate has no value.
    #[error("the gate `{gate}` needs a value for `{name}`: add it to the scalars")]
    MissingScalar {
        /// The gate.
        gate: String,
        /// The scalar.
        name: String,
    },
    /// A value is given for a name that is no scalar of the gate.
    #[error("the gate `{gate}` has no scalar `{name}`; it has: {known}")]
    UnknownScalar {
        /// The gate.
        gate: String,
        /// As given.
        name: String,
        /// The gate's scalars.
        known: String,
    },
    /// A scalar has two values.
    #[error("the scalar `{name}` has two values: give one")]
    DuplicateScalar {
        /// The scalar.
        name: String,
    },
    /// A vector of the gate is wrong.
    #[error(transparent)]
    Vector(#[from] VectorError),
    /// The tensor map of an operand cannot be encoded.
    #[error("the tensor map of `{operand}`: {reason}")]
    TensorMap {
        /// The tensor.
        operand: Operand,
        /// The rule that it violates.
        reason: String,
    },
    /// The device refused the launch.
    #[error("{device} refused to launch `{kernel}`: {reason}")]
    Refused {
        /// The device, in words.
        device: String,
        /// The kernel.
        kernel: String,
        /// The device's message.
        reason: String,
    },
    /// The emulated device found something wrong with the kernel.
    #[error("`{kernel}` ran, and {report}")]
    Emulator {
        /// The kernel.
        kernel: String,
        /// The findings.
        report: Box<emulated::Findings>,
    },
    /// The kernel changed an input.
    #[error("`{kernel}` wrote to `{operand}`, which is an input; please report this")]
    InputWritten {
        /// The kernel.
        kernel: String,
        /// The input.
        operand: Operand,
    },
    /// The kernel left a part of C unwritten.
    #[error("`{kernel}` left {bytes} of the {of} bytes of `{operand}` unwritten; please report this")]
    Unwritten {
        /// The kernel.
        kernel: String,
        /// C or its scale factors.
        operand: Operand,
        /// Unwritten bytes.
        bytes: u64,
        /// Bytes of the tensor.
        of: u64,
    },
    /// The kernel changed rows of C that belong to no group.
    #[error("`{kernel}` wrote rows of `{operand}` that belong to no group; please report this")]
    OutsideGroups {
        /// The kernel.
        kernel: String,
        /// C or its scale factors.
        operand: Operand,
    },
    /// The kernel left its workspace in a state that breaks the next launch.
    #[error("`{kernel}` did not reset `{buffer}` of its workspace to zero; please report this")]
    WorkspaceLeft {
        /// The kernel.
        kernel: String,
        /// The workspace's buffer.
        buffer: &'static str,
    },
    /// The device's memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn in_words(scale: &Option<f32>) -> String {
    scale.map_or("not given".to_owned(), |value| value.to_string())
}

fn output_scale_help(format: OutputFormat) -> &'static str {
    match format.has_tensor_scale() {
        true => "it has to be finite and above 0: use 1 for none",
        false => "there is none: leave it out",
    }
}

fn length_help(found: u64, expected: u64) -> &'static str {
    if found > expected {
        "pass a slice of it"
    } else {
        "allocate what Operand::bytes says (scale factors are padded to 128 rows and 4 columns, in each matrix or group)"
    }
}
