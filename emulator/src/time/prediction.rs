//! The result of a prediction.

use super::record::{Bar, Cause, WarpTime};
use std::collections::BTreeMap;

/// Name of the tensor cores' share.
pub(crate) const TENSOR_CORES: &str = "tensor cores";

/// A part of a kernel's time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Mean start and end over CTAs, in ns from the launch.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// How much a part of the chip was used between the first and the last instruction.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Share {
    /// Which part.
    pub name: &'static str,
    /// Used fraction, 0 to 1, over all SMs of the chip.
    pub used: f64,
}

/// The prediction for one launch. Nothing in it is measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// The chip.
    pub chip: String,
    /// Its clock in MHz.
    pub clock: f64,
    /// Time per launch in a stream of launches, in ns: from the end of the kernel before to its own end.
    pub time: f64,
    /// Time from the first instruction to the end of the last CTA, in ns.
    pub kernel: f64,
    /// The time in SM clocks.
    pub clocks: f64,
    /// SMs that ran a CTA.
    pub sms: u32,
    /// CTAs.
    pub ctas: u64,
    /// CTAs that run at a time.
    pub resident: u64,
    /// PTX instructions of all warps.
    pub instructions: u64,
    /// Parts of the time.
    pub phases: Vec<Phase>,
    /// Use of the chip.
    pub shares: Vec<Share>,
    /// Bytes that DRAM delivered.
    pub dram_bytes: f64,
    /// Bytes that L2 served or took. Requests that join another one are not counted.
    pub l2_bytes: f64,
    /// The critical path: ns by cause. They add up to `time`.
    pub path: BTreeMap<Cause, f64>,
    /// Times by index of the warp in its CTA.
    pub warps: Vec<WarpTime>,
    /// Clocks by line, issue and waiting, summed over warps.
    pub lines: BTreeMap<u32, f64>,
    /// Bars of the requested CTAs.
    #[serde(skip)]
    pub bars: Vec<Bar>,
}

impl Prediction {
    /// Fraction of the time for which the tensor cores of all SMs were busy, 0 to 1.
    pub fn tensor_use(&self) -> f64 {
        self.shares.iter().find(|s| s.name == TENSOR_CORES).map_or(0.0, |s| s.used)
    }

    /// The largest cause on the critical path.
    pub fn bound(&self) -> Option<Cause> {
        self.path.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(c, _)| *c)
    }
}
