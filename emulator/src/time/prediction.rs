//! The result of a simulation.

use super::record::{Bar, Cause, WarpTime};
use std::collections::BTreeMap;

/// Name of the share that the tensor cores are busy for.
pub(crate) const TENSOR_CORES: &str = "tensor cores";

/// A part of a kernel's time.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Start and end in ns from the launch, means over CTAs.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// How much of what it could do a part of the chip did, from the first instruction to the last.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Share {
    /// Which part.
    pub name: &'static str,
    /// 0 to 1, over all SMs of the chip.
    pub used: f64,
}

/// What the simulator says about one launch. All of it is predicted; nothing was measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// The chip.
    pub chip: String,
    /// Its clock in MHz.
    pub clock: f64,
    /// From the end of the kernel before it on the stream to its own, in ns: what a stream of launches takes a launch.
    pub time: f64,
    /// From the first instruction to the end of the last CTA, in ns.
    pub kernel: f64,
    /// The same in clk.
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
    /// Bytes that L2 delivered or took.
    pub l2_bytes: f64,
    /// The critical path: ns by what they went to, all of `time` together.
    pub path: BTreeMap<Cause, f64>,
    /// By warp of a CTA.
    pub warps: Vec<WarpTime>,
    /// Clocks of warps by line: issue and waiting, summed over warps.
    pub lines: BTreeMap<u32, f64>,
    /// Bars of the CTAs asked for.
    #[serde(skip)]
    pub bars: Vec<Bar>,
}

impl Prediction {
    /// Part of the time for which the tensor cores of all SMs were busy, 0 to 1.
    pub fn tensor_use(&self) -> f64 {
        self.shares.iter().find(|s| s.name == TENSOR_CORES).map_or(0.0, |s| s.used)
    }

    /// What most of the critical path went to.
    pub fn bound(&self) -> Option<Cause> {
        self.path.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(c, _)| *c)
    }
}
