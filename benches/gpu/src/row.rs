//! Reports: a row for each kernel, and messages from a child to its parent.

use crate::compare::Errors;
use serde::{Deserialize, Serialize};

/// Result of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Right, and timed if that was requested.
    Ok,
    /// It ran, and C is wrong.
    Wrong,
    /// The generator refuses the configuration.
    Illegal,
    /// The kernel equals, byte for byte, one with other knobs.
    Duplicate,
    /// It did not load, did not run, or did not end in time.
    #[default]
    Failed,
}

/// A kernel with its results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The shape's name, or `MxNxK`.
    pub shape: String,
    /// Rows of C.
    pub m: u32,
    /// Columns of C, and of each of B1 and B2.
    pub n: u32,
    /// The summed dimension.
    pub k: u32,
    /// The formats, as given.
    pub format: String,
    /// The gate expression.
    pub gate: String,
    /// Description of the device.
    pub device: String,
    /// The knobs, as given.
    pub knobs: String,
    /// The resulting configuration: tile, stages and so on.
    pub plan: String,
    /// Whether it was right.
    pub status: Status,
    /// The reason, if it is not right.
    pub why: Option<String>,
    /// Microseconds of a launch: median, minimum and maximum over the replays.
    pub us: Option<f64>,
    /// The least.
    pub us_min: Option<f64>,
    /// The most.
    pub us_max: Option<f64>,
    /// Rate in 10^12 operations per second, counting 4 M N K operations.
    pub tflops: Option<f64>,
    /// Compulsory bytes in 10^9 per second.
    pub gbytes: Option<f64>,
    /// Lower bound in microseconds: compulsory bytes at the measured bandwidth, or operations at the peak rate.
    pub floor_us: Option<f64>,
    /// When timed in turns: median over the turns of this kernel's time divided by the first one's.
    pub ratio: Option<f64>,
    /// 10th and 90th percentile of these ratios.
    pub ratio_spread: Option<[f64; 2]>,
    /// Median over replays of each replay's mean SM clock, in MHz.
    pub mhz: Option<f64>,
    /// Errors of C.
    pub error: Option<Errors>,
    /// Registers per thread, the maximum over the entries.
    pub registers: Option<i32>,
    /// Bytes of local memory per thread, the maximum over the entries.
    pub local_bytes: Option<i32>,
    /// Dynamic shared memory in bytes, the maximum over the launches.
    pub smem_bytes: u32,
    /// Launches per dual GEMM.
    pub launches: usize,
    /// CTAs of the first launch.
    pub ctas: u32,
    /// Milliseconds in which the driver compiled and loaded the module.
    pub load_ms: Option<f64>,
    /// Milliseconds in which the generator made the kernel.
    pub emit_ms: Option<f64>,
    /// Sets of operands.
    pub sets: usize,
    /// Launches in a graph.
    pub calls: usize,
    /// Timed replays.
    pub reps: usize,
    /// Seed of the operands.
    pub seed: u64,
    /// Its launch file, if one was written.
    pub file: Option<String>,
    /// Hash of the kernel.
    pub hash: String,
}

/// Measurements of the machine while nothing else ran.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Description of the device.
    pub device: String,
    /// Its chip.
    pub arch: String,
    /// SMs.
    pub sms: i32,
    /// Bytes of L2.
    pub l2_bytes: i32,
    /// Read bandwidth in 10^9 bytes per second, of a kernel that does nothing else.
    pub read_gbytes: f64,
}

/// A message from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The child is at this step with the kernel of this number.
    At(usize, String),
    /// A kernel is finished.
    Row(usize, Box<Row>),
    /// Measurements of the machine.
    Machine(Machine),
    /// For the reader.
    Note(String),
    /// All work is finished.
    Done,
}
