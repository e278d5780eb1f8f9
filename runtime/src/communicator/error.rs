//! Why ranks cannot add up.

use thiserror::Error;

use crate::device::DeviceError;

/// Why the ranks of a group cannot be joined, or a sum over them has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CommunicatorError {
    /// No device was given.
    #[error("no devices were given: a group has at least one")]
    NoDevices,
    /// A device was given twice.
    #[error("ranks {first} and {second} are the same device, {device}: each rank has a device of its own")]
    SameDevice {
        /// The first rank.
        first: usize,
        /// The second rank.
        second: usize,
        /// The device.
        device: String,
    },
    /// Devices of different kinds were given.
    #[error("rank 0 is {first}, and rank {rank} is {other}: all ranks are GPUs, or all are emulated devices")]
    Mixed {
        /// The device of rank 0.
        first: String,
        /// The rank with a device of the other kind.
        rank: usize,
        /// Its device.
        other: String,
    },
    /// NCCL was not found.
    #[error(
        "NCCL was not found (tried {tried}): install it (Debian's and NVIDIA's package is libnccl2, a Python wheel \
         nvidia-nccl-cu13), add its folder to LD_LIBRARY_PATH, or set SILUMIN_NCCL to its file"
    )]
    NoNccl {
        /// File names that were tried.
        tried: String,
    },
    /// NCCL's library lacks a function.
    #[error("the NCCL library {library} has no {missing}: install NCCL 2.10 or newer")]
    OldNccl {
        /// The file name.
        library: String,
        /// The function.
        missing: String,
    },
    /// A call of NCCL failed.
    #[error("{call} failed: {reason}")]
    Nccl {
        /// The call.
        call: &'static str,
        /// NCCL's words.
        reason: String,
    },
    /// A rank did not ask for a sum that others wait for.
    #[error(
        "rank {rank} ({device}) is late: it has asked for {its} sums, and rank {waiting} has waited {seconds} s for sum {number}; the group cannot be used any more"
    )]
    Late {
        /// The rank that is late.
        rank: usize,
        /// Its device.
        device: String,
        /// Sums that it has asked for.
        its: u64,
        /// The rank that waited.
        waiting: usize,
        /// The sum that it waited for, counted from 1.
        number: u64,
        /// How long, in seconds.
        seconds: u64,
    },
    /// A rank's communicator was dropped while others wait for it.
    #[error(
        "rank {rank} ({device}) has left after {its} sums, and rank {waiting} waits for sum {number}: see why its thread ended; the group cannot be used any more"
    )]
    Left {
        /// The rank that left.
        rank: usize,
        /// Its device.
        device: String,
        /// Sums that it had asked for.
        its: u64,
        /// The rank that waits for it.
        waiting: usize,
        /// The sum that it waits for, counted from 1.
        number: u64,
    },
    /// All ranks have asked for a sum, and it does not end.
    #[error(
        "rank {rank} ({device}) has waited {seconds} s for work that does not end, though all ranks have asked for its sums; the group cannot be used any more"
    )]
    Unfinished {
        /// The rank that waited.
        rank: usize,
        /// Its device.
        device: String,
        /// How long, in seconds.
        seconds: u64,
    },
    /// Ranks ask for sums of different lengths.
    #[error(
        "ranks 0 and {rank} ask for a sum of {first} and of {other} bytes: all ranks call with the same number of tokens"
    )]
    Lengths {
        /// Bytes of rank 0.
        first: usize,
        /// The rank that differs.
        rank: usize,
        /// Its bytes.
        other: usize,
    },
    /// The buffer or the stream is another device's.
    #[error("the {what} does not belong to {device}, the device of rank {rank}: use one of that device")]
    Foreign {
        /// What was passed.
        what: &'static str,
        /// The device of the rank.
        device: String,
        /// The rank.
        rank: usize,
    },
    /// The group failed before.
    #[error("the group failed before: {reason}")]
    Failed {
        /// How.
        reason: String,
    },
    /// Memory or streams of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
