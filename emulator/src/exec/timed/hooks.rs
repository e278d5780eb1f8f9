//! Records of a cluster for the run with a clock.

use crate::exec::access::Target;

/// An access of a lane to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub target: Target,
    pub bytes: u32,
    pub write: bool,
    pub atomic: bool,
}

/// Records of one instruction, or of one operation that completes.
#[derive(Debug)]
pub(crate) struct Hooks {
    /// clk since the launch.
    pub now: f64,
    /// ns a clk.
    pub nanoseconds: f64,
    /// Whether there are records.
    pub noted: bool,
    /// Whether products are made and copies move bytes.
    pub values: bool,
    pub accesses: Vec<Access>,
    /// Sequence numbers of copies that were issued.
    pub copies: Vec<u64>,
    /// CTAs whose tensor core received an operation.
    pub pipes: Vec<usize>,
    /// mbarriers that completed a phase.
    pub phases: Vec<(usize, u32)>,
    /// Whether mbarriers of other CTAs received an arrival of a thread.
    pub remote: bool,
}

impl Hooks {
    pub fn new(nanoseconds: f64, values: bool) -> Self {
        Hooks {
            now: 0.0,
            nanoseconds,
            noted: false,
            values,
            accesses: Vec::new(),
            copies: Vec::new(),
            pipes: Vec::new(),
            phases: Vec::new(),
            remote: false,
        }
    }
}
