//! What is reported: a row for each kernel, and the messages from a child to its parent.

use crate::compare::Errors;
use serde::{Deserialize, Serialize};

/// What became of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Right, and timed where that was asked for.
    Ok,
    /// It ran, and C is not what it should be.
    Wrong,
    /// The generator has no such kernel.
    Illegal,
    /// The same kernel, to the byte, as that of other knobs.
    Duplicate,
    /// It was not loaded, did not run, or did not end in time.
    #[default]
    Failed,
}

/// A kernel: what it is, how it did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The shape's name, or `MxNxK`.
    pub shape: String,
    /// Rows of C.
    pub m: u32,
    /// Columns of C: of one of B1 and B2.
    pub n: u32,
    /// The summed dimension.
    pub k: u32,
    /// The formats, as asked for.
    pub format: String,
    /// The gate expression.
    pub gate: String,
    /// The device, in words.
    pub device: String,
    /// The knobs, as asked for.
    pub knobs: String,
    /// What was made of them: the tile, the stages and the like.
    pub plan: String,
    /// What became of it.
    pub status: Status,
    /// Why, where it is not right.
    pub why: Option<String>,
    /// Microseconds of a launch: median, least and most of the replays.
    pub us: Option<f64>,
    /// The least.
    pub us_min: Option<f64>,
    /// The most.
    pub us_max: Option<f64>,
    /// 10^12 operations a second, 4 M N K of them.
    pub tflops: Option<f64>,
    /// 10^9 compulsory bytes a second.
    pub gbytes: Option<f64>,
    /// The floor in microseconds: compulsory bytes over measured bandwidth or operations over the peak.
    pub floor_us: Option<f64>,
    /// In turns with others: the median of this one's time over the first one's, of each turn.
    pub ratio: Option<f64>,
    /// And the ratios' 10th and 90th percentile.
    pub ratio_spread: Option<[f64; 2]>,
    /// The SMs' clock right after its replays, in MHz.
    pub mhz: Option<f64>,
    /// How far off C is.
    pub error: Option<Errors>,
    /// Registers of a thread, the most of all entries.
    pub registers: Option<i32>,
    /// Bytes of local memory of a thread, the most of all entries.
    pub local_bytes: Option<i32>,
    /// Dynamic shared memory in bytes, the most of all launches.
    pub smem_bytes: u32,
    /// Launches of one dual GEMM.
    pub launches: usize,
    /// CTAs of the first launch.
    pub ctas: u32,
    /// Milliseconds that the driver took to compile and load the module.
    pub load_ms: Option<f64>,
    /// Milliseconds that the generator took.
    pub emit_ms: Option<f64>,
    /// Sets of operands, and launches in a graph, and timed replays.
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

/// What the machine gave while nothing else ran.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The device, in words.
    pub device: String,
    /// Its chip.
    pub arch: String,
    /// SMs.
    pub sms: i32,
    /// Bytes of L2.
    pub l2_bytes: i32,
    /// 10^9 bytes a second that a kernel reads which does nothing else.
    pub read_gbytes: f64,
}

/// A line from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The child is at this step with the kernel of this number.
    At(usize, String),
    /// A kernel is done.
    Row(usize, Box<Row>),
    /// What was measured of the machine.
    Machine(Machine),
    /// For the reader.
    Note(String),
    /// Nothing is left to do.
    Done,
}
