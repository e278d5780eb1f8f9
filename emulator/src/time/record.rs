//! Records a simulation: time along the critical path, by warp and by line, and the work of engines.

use std::collections::BTreeMap;

/// Why time passed on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Launch of the grid, and CTAs that wait for an SM.
    Launch,
    /// First fetches of code and parameters.
    ColdStart,
    /// Instructions of warps: issue, arithmetic and its latency.
    Instructions,
    /// Loads, stores and matrices in shared memory.
    SharedMemory,
    /// Loads and atomics of warps in global memory.
    GlobalMemory,
    /// Stores of warps under way.
    Stores,
    /// Issue of TMA copies, and the TMA working through boxes.
    TmaIssue,
    /// Latency of TMA requests that hit L2.
    TmaLatency,
    /// Waiting for lines from DRAM.
    Dram,
    /// Waiting for other requests to L2 and DRAM.
    MemoryQueue,
    /// TMA writing into shared memory.
    TmaDelivery,
    /// TMA stores.
    TmaStore,
    /// Tensor core at work: math.
    TensorMath,
    /// Tensor core at work: operands from shared memory.
    TensorOperands,
    /// Scale factors copied to Tensor Memory.
    TensorCopy,
    /// Latency of products and commits.
    TensorLatency,
    /// Loads and stores of Tensor Memory.
    TensorMemory,
    /// Allocation of Tensor Memory.
    Allocation,
    /// Arrival at mbarriers, and waking up.
    Mbarrier,
    /// Barriers of a CTA.
    Barrier,
    /// Barriers of a cluster, and shared memory of others.
    Cluster,
    /// Fences.
    Fence,
    /// Cluster launch control.
    LaunchControl,
    /// From the last instruction to the end of the kernel.
    Exit,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 24] = [
        Cause::Launch,
        Cause::ColdStart,
        Cause::Instructions,
        Cause::SharedMemory,
        Cause::GlobalMemory,
        Cause::Stores,
        Cause::TmaIssue,
        Cause::TmaLatency,
        Cause::Dram,
        Cause::MemoryQueue,
        Cause::TmaDelivery,
        Cause::TmaStore,
        Cause::TensorMath,
        Cause::TensorOperands,
        Cause::TensorCopy,
        Cause::TensorLatency,
        Cause::TensorMemory,
        Cause::Allocation,
        Cause::Mbarrier,
        Cause::Barrier,
        Cause::Cluster,
        Cause::Fence,
        Cause::LaunchControl,
        Cause::Exit,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Launch => "launch",
            Cause::ColdStart => "first fetch of code and parameters",
            Cause::Instructions => "instructions",
            Cause::SharedMemory => "shared memory",
            Cause::GlobalMemory => "global loads",
            Cause::Stores => "global stores",
            Cause::TmaIssue => "TMA issue",
            Cause::TmaLatency => "TMA latency",
            Cause::Dram => "DRAM latency",
            Cause::MemoryQueue => "DRAM and L2 bandwidth",
            Cause::TmaDelivery => "TMA delivery",
            Cause::TmaStore => "TMA stores",
            Cause::TensorMath => "tensor core",
            Cause::TensorOperands => "tensor core operands",
            Cause::TensorCopy => "scale factor copies",
            Cause::TensorLatency => "tensor core latency",
            Cause::TensorMemory => "tensor memory",
            Cause::Allocation => "tensor memory allocation",
            Cause::Mbarrier => "mbarriers",
            Cause::Barrier => "CTA barriers",
            Cause::Cluster => "cluster barriers and DSMEM",
            Cause::Fence => "fences",
            Cause::LaunchControl => "launch control",
            Cause::Exit => "exit",
        }
    }
}

/// A time, with how it was spent along the critical path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub time: f64,
    pub spent: [f32; 24],
}

impl Default for Moment {
    fn default() -> Self {
        Moment { time: 0.0, spent: [0.0; 24] }
    }
}

impl Moment {
    /// Extends the moment until `time` by a cause, unless that is past.
    #[must_use]
    pub fn until(mut self, time: f64, cause: Cause) -> Moment {
        if time > self.time {
            self.spent[cause as usize] += (time - self.time) as f32;
            self.time = time;
        }
        self
    }

    /// Extends the moment by a number of clocks.
    #[must_use]
    pub fn after(self, clocks: f64, cause: Cause) -> Moment {
        let time = self.time + clocks;
        self.until(time, cause)
    }

    /// The later of two moments.
    #[must_use]
    pub fn max(self, other: Moment) -> Moment {
        if other.time > self.time { other } else { self }
    }
}

/// Times of the warps with one index in their CTAs.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct WarpTime {
    /// PTX instructions.
    pub instructions: u64,
    /// Issue slots taken.
    pub slots: f64,
    /// Clocks from start to exit.
    pub lived: f64,
    /// Clocks of waiting, by the line of the wait.
    pub waits: BTreeMap<u32, Wait>,
}

/// Waiting at a line.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Wait {
    /// Clocks in all.
    pub clocks: f64,
    /// How often.
    pub count: u64,
    /// Clocks by the line that ended the wait.
    pub ended_by: BTreeMap<u32, f64>,
}

/// Bars of a timeline.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Bar {
    /// CTA in the grid.
    pub cta: [u32; 3],
    /// The row: a warp or an engine.
    pub track: Track,
    /// What was done.
    pub name: String,
    /// Line of the PTX file.
    pub line: u32,
    /// For a wait, the line that ended it; 0 for other bars, and where no instruction did.
    pub ended_by: u32,
    /// Start in ns from the launch.
    pub start: f64,
    /// Length, in ns.
    pub length: f64,
}

/// A row of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Track {
    /// A warp.
    Warp(u32),
    /// TMA of the SM: from issue to arrival.
    Tma,
    /// The tensor core.
    Tensor,
}

/// Sums over all CTAs, in clk from the launch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CtaTimes {
    pub start: f64,
    pub first_copy: Option<f64>,
    pub first_product: Option<f64>,
    pub last_product: Option<f64>,
    pub end: f64,
}
