//! Options of a survey.

use super::Kind;
use super::explain::Equivalents;
use super::harness::Outcome;
use crate::launch::{Options, Reconvergence};
use std::time::Duration;

/// How to run mutants.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// Random schedules besides early, late, and those that starve a warp.
    pub seeds: u64,
    /// Mutants that run at a time; 0 uses one per core.
    pub threads: usize,
    /// Kinds to run; all if empty.
    pub only: Vec<Kind>,
    /// Lines whose mutants run (0 for the launch's); all if empty.
    pub lines: Vec<u32>,
    /// Run every n-th mutant; 1 is all of them.
    pub every: usize,
    /// Called after each mutant with its outcome, the number of finished mutants, and the number of all.
    pub progress: Option<fn(&Outcome, usize, usize)>,
    /// When diverged lanes of a warp reconverge.
    pub reconvergence: Reconvergence,
    /// Wall-clock time of one run; a mutant that takes longer is caught. `None` sets no limit.
    pub time_limit: Option<Duration>,
    /// [`Options::instruction_limit`] of one run. The kernel must end within it; a mutant that does not is caught. A
    /// mutant's limit is also bounded by a multiple of the kernel's instructions.
    pub instruction_limit: u64,
    /// Host memory of one run in bytes, as [`Options::memory_limit`].
    pub memory_limit: Option<u64>,
    /// Whether survivors of an earlier survey are kept without a run; only the rules are applied again.
    pub keep: bool,
    /// Survivors that are known to be no mistakes.
    pub equivalents: Equivalents,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        SurveyOptions {
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
