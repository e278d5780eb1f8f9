//! Time: how long a kernel takes on a chip, and what bounds it, without the chip.
//!
//! A run with a clock executes the same warps, mbarriers, copies and products as a run for values, in the order of time. Each
//! instruction, copy and product takes what a [`Chip`] says; all CTAs that are resident share L2 and DRAM.
//!
//! - `chip`: the numbers of a chip, from a file
//! - `clock`: which clock the SMs have, under a load that lasts, too
//! - `cost`: what each instruction asks of which unit
//! - `live`: registers that a thread holds at one time
//! - `memory`: L2 and DRAM
//! - `rate`: bytes a clock, shared by requests in any order
//! - `record`: where time went
//! - `sass`: issue costs from machine code, where there is some; `source`: whether they come from it
//! - `prediction`: the result; [`timeline`]: its forms for people
//! - `table`: issue costs by opcode, where there is none
//!
//! The run itself is `exec::timed`.

mod chip;
mod clock;
pub(crate) mod cost;
pub(crate) mod live;
pub(crate) mod memory;
mod prediction;
pub(crate) mod product;
pub(crate) mod rate;
pub(crate) mod record;
mod sass;
mod source;
mod table;
pub mod timeline;

pub use chip::{Chip, ChipError, Quantity};
pub use clock::{Clock, ClockError};
pub(crate) use prediction::TENSOR_CORES;
pub use prediction::{Phase, Prediction, Share};
pub use record::{Bar, Cause, Track, Wait, WarpTime};
pub use sass::{SassCosts, SassError};
pub use source::{FoundCosts, IssueSource};

/// Options of a prediction.
#[derive(Clone, Debug)]
pub struct TimeOptions {
    /// The chip.
    pub chip: Chip,
    /// Whether to make products and move the bytes of copies. It is needed only if control flow depends on them.
    pub values: bool,
    /// Whether all buffers are in L2 at the start, as far as they fit.
    pub warm: bool,
    /// Whether the launch depends on the one before it programmatically (PDL).
    pub programmatic: bool,
    /// The CTA whose cluster gets a timeline.
    pub timeline: Option<[u32; 3]>,
    /// Issue costs from machine code; without, a table is used.
    pub sass: Option<SassCosts>,
}

impl TimeOptions {
    /// Options for a chip: without values, with L2 cold.
    pub fn new(chip: Chip) -> Self {
        TimeOptions { chip, values: false, warm: false, programmatic: false, timeline: None, sass: None }
    }
}

/// The cost of a PTX line for the warp that executes it, without waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IssueCost {
    /// Line of the text, from 1.
    pub line: u32,
    /// Issue slots of a sub-core: machine instructions, averaged over unrolled copies.
    pub slots: f64,
    /// Clocks until the warp can issue its next line.
    pub clocks: f64,
}

/// Issue costs of a kernel's lines with instructions, in the order of its code, from machine code or from the table.
///
/// # Errors
/// [`TimeError::Launch`] where there is no such kernel, [`TimeError::Sass`] where the machine code is not its.
pub fn issue_costs(
    module: &crate::Module,
    entry: &str,
    chip: &Chip,
    sass: Option<&SassCosts>,
) -> Result<Vec<IssueCost>, TimeError> {
    let program = module.program(entry).ok_or_else(|| crate::LaunchError::NoSuchEntry {
        name: entry.to_owned(),
        available: module.entries().map(str::to_owned).collect(),
    })?;
    let mut costs = cost::costs(program, chip);
    if let Some(sass) = sass {
        sass.apply(entry, program, chip, &mut costs)?;
    }
    let mut out: Vec<IssueCost> = Vec::new();
    for (inst, cost) in program.code.iter().zip(&costs) {
        match out.last_mut() {
            Some(last) if last.line == inst.line => {
                last.slots += cost.slots;
                last.clocks += cost.hold;
            }
            _ => out.push(IssueCost { line: inst.line, slots: cost.slots, clocks: cost.hold }),
        }
    }
    Ok(out)
}

/// Why a launch has no predicted time.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TimeError {
    /// The launch is illegal.
    #[error("{0}")]
    Launch(#[from] crate::LaunchError),
    /// The machine code is not that of the kernel.
    #[error("{0}")]
    Sass(#[from] SassError),
    /// The chip does not run kernels of this target.
    #[error(
        "the module is for {target}, and {chip} runs {runs}: name another chip, or compile for one of those"
    )]
    Target {
        /// `.target` of the module.
        target: String,
        /// The chip.
        chip: String,
        /// What it runs.
        runs: String,
    },
    /// A CTA or cluster does not fit the chip.
    #[error("{what} needs {needed} {unit}, and {chip} has {limit}")]
    Room {
        /// A CTA or a cluster.
        what: &'static str,
        /// How much it needs.
        needed: u64,
        /// What `needed` and `limit` count.
        unit: &'static str,
        /// The chip.
        chip: String,
        /// What there is.
        limit: u64,
    },
    /// The kernel is wrong and does not end.
    #[error("the kernel stopped at {clocks:.0} clk: {finding}")]
    Stopped {
        /// When.
        clocks: f64,
        /// Why.
        finding: Box<crate::Finding>,
    },
    /// Clusters wait for an event that never occurs.
    #[error(
        "nothing can continue after {clocks:.0} clk (warps that wait: {waiting}): CTA {cta:?}, warp {warp} waits at line {line}: `{text}`"
    )]
    Stuck {
        /// When.
        clocks: f64,
        /// Warps.
        waiting: usize,
        /// A CTA.
        cta: [u32; 3],
        /// A warp.
        warp: u32,
        /// Its line.
        line: u32,
        /// That line.
        text: String,
    },
    /// The time limit.
    #[error("the time limit was reached at {clocks:.0} clk: raise it, or predict a smaller problem")]
    Deadline {
        /// When.
        clocks: f64,
    },
    /// The instruction limit.
    #[error(
        "the kernel executed {limit} instructions and has not ended at {clocks:.0} clk: raise the limit, or predict a smaller problem"
    )]
    Limit {
        /// The limit.
        limit: u64,
        /// When.
        clocks: f64,
    },
}
