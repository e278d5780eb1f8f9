//! What a survey runs, and how.

use super::Kind;
use super::explain::Equivalents;
use super::harness::Outcome;
use crate::launch::{Options, Reconvergence};
use std::time::Duration;

/// How to run mutants.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Random schedules besides all early, all late and those that starve a warp.
    pub seeds: u64,
    /// Mutants at a time; 0 is one a core.
    pub threads: usize,
    /// Kinds to run; all if empty.
    pub only: Vec<Kind>,
    /// Mutants of these lines only, 0 for the launch's; all if empty.
    pub lines: Vec<u32>,
    /// Run every n-th mutant; 1 is all of them.
    pub every: usize,
    /// Called after each mutant: what became of it, how many are done, of how many.
    pub progress: Option<fn(&Outcome, usize, usize)>,
    /// When lanes of a warp that took different ways run together again.
    pub reconvergence: Reconvergence,
    /// Wall-clock time of one run; a mutant that takes longer is caught. `None` for no limit but that of instructions.
    pub time_limit: Option<Duration>,
    /// [`Options::instruction_limit`] of one run: the kernel itself has to end within it, and a mutant that does not is caught.
    /// Mutants have no more than a multiple of what the kernel executed, whatever this says.
    pub instruction_limit: u64,
    /// Bytes of host memory of one run, as of [`Options::memory_limit`].
    pub memory_limit: Option<u64>,
    /// Mutants that survived an earlier survey are not run again either; only the rules are applied anew.
    pub keep: bool,
    /// Survivors that are known to be no mistakes.
    pub equivalents: Equivalents,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            seeds: 4,
            threads: 0,
            only: Vec::new(),
            lines: Vec::new(),
            every: 1,
            progress: None,
            reconvergence: Reconvergence::Eager,
            time_limit: None,
            instruction_limit: Options::default().instruction_limit,
            memory_limit: None,
            keep: false,
            equivalents: Equivalents::default(),
        }
    }
}
