//! Tuning: finds the fastest configuration for a problem on a device. [`tune`] has defaults, [`Tune`] more to choose.
//!
//! * `mod.rs`: what is asked for and what comes out.
//! * `space.rs`: [`Space`], what may be tried.
//! * `bound.rs`: which of it is worth a closer look.
//! * `descent.rs`: [`Descent`], a search by predicted times, step by step.
//! * `run.rs`: what is tried; `predicted.rs`: ranking where nothing can be timed; `timed.rs`: loading, checking and timing.
//! * `trial.rs`: kernels on a device.
//! * `race.rs`: the statistics: which is the fastest, and how sure that is.
//! * `table.rs`, `record.rs`: [`Table`], results as a file.
//!
//! On a GPU kernels are timed. On the emulated device they are ranked by the times that [`crate::predict`] gives them, and the
//! result says so ([`Ranked::Predicted`]).
//!
//! ```
//! use silumin_codegen::{arch::Arch, problem::Shape, spec::Spec};
//! use silumin_runtime::device::Device;
//! use silumin_runtime::gemm::DualGemm;
//! use silumin_runtime::tune::{Ranked, Space, tune};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let swiglu = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse()?, &[Arch::Sm100a])?);
//! let space: Space = "tile=128x64x256|128x128x256|128x72x256 schedule=one_tile|persistent".parse()?;
//! let tuned = tune(&Device::emulated(Arch::Sm100a), &swiglu, Shape::new(128, 256, 256), &space)?;
//! assert!(matches!(tuned.ranked, Ranked::Predicted { .. }));
//! // Tiles of 72 columns do not go with scale factors: that is counted, and no error.
//! assert_eq!(tuned.counts.illegal, 2);
//! println!("{tuned}");
//! # Ok(())
//! # }
//! ```

mod bound;
mod descent;
#[cfg(feature = "emulated")]
mod predicted;
mod race;
mod run;
#[cfg(feature = "cuda")]
mod timed;
mod trial;

pub use crate::tuned::{
    Damaged, FILE, Found, Ranked, RecordError, Space, SpaceError, Stale, Table, TableError, TuningEntry,
    TuningKey, Verdict, difference, knobs, words,
};
pub use descent::{Depth, Descent, rules};
pub use race::{Finish, Rules, median, quantile, race, sign_test};

use std::fmt;
use std::time::Duration;

use silumin_codegen::config::Config;
use silumin_codegen::problem::{Problem, Shape};
use thiserror::Error;

use crate::device::{Device, DeviceError};
use crate::gemm::{DualGemm, KernelError, LoadError, VerifyError};
use crate::nvtx::range;
use crate::tuned::code_of;
use crate::warmup::Cancel;

/// Why tuning failed. An illegal, refused or wrong configuration is not an error but a [`Fate`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// There is no legal kernel for the problem and the user's knobs.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Operands or reference could not be made, or device memory failed.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No time is predicted for the device's chip.
    #[cfg(feature = "emulated")]
    #[error(transparent)]
    Predict(#[from] crate::predict::PredictError),
    /// Every kernel was refused, failed or was wrong.
    #[error(
        "no right kernel for {problem} among the {tried} that were tried; the first failed with: {first}"
    )]
    NoneRight {
        /// The problem.
        problem: Problem,
        /// Kernels that were tried.
        tried: usize,
        /// The error of the first kernel.
        first: String,
    },
    /// A kernel broke the device's context: no later call works in this process.
    #[error(
        "the kernel {} has left the device beyond use: {reason}; start another process and exclude that configuration with Tune::lost",
        match .knobs.as_str() { "" => "with no knobs of its own".to_owned(), knobs => format!("of `{knobs}`") }
    )]
    Lost {
        /// The configuration.
        knobs: String,
        /// The driver's words.
        reason: String,
    },
    /// It was cancelled.
    #[error("the tuning was cancelled")]
    Cancelled,
}

/// Outcome of a configuration.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fate {
    /// Right, and timed.
    Timed {
        /// Median time per launch over all turns, in microseconds.
        us: f64,
        /// Turns in the race.
        turns: usize,
        /// Whether it stayed until the end of the race.
        in_race: bool,
    },
    /// Ranked by its predicted time, and found right on the emulated device.
    Right,
    /// Ranked by its predicted time, and not run.
    Ranked,
    /// Its result is wrong. It is reported to the listener or on standard error, and never chosen.
    Wrong(String),
    /// The device refused the kernel.
    Refused(String),
    /// The launch failed.
    Failed(String),
    /// Not tried: time was up, or its bound is above the time of a better one.
    Untried,
}

/// A configuration that was considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The configuration as requested, on top of the user's knobs.
    pub config: Config,
    /// Lower bound on the time of a launch, in microseconds, from the chip's numbers.
    pub bound: f64,
    /// Predicted time of a launch, in microseconds; `None` if it was timed, or excluded by its bound.
    pub predicted: Option<f64>,
    /// Bytes moved between global memory and the SMs, exactly.
    pub bytes: u64,
    /// Waves of tiles.
    pub waves: f64,
    /// Its outcome.
    pub fate: Fate,
}

/// Number of configurations, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Configurations in the space, `auto` included.
    pub drawn: usize,
    /// Refused by the code generator.
    pub illegal: usize,
    /// Same kernel as another configuration.
    pub same: usize,
    /// Excluded by their bounds.
    pub left_out: usize,
    /// Refused by the device.
    pub refused: usize,
    /// Failed when launched.
    pub failed: usize,
    /// Wrong.
    pub wrong: usize,
    /// Right, and timed.
    pub timed: usize,
}

/// What tuning found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tuned {
    /// The problem.
    pub problem: Problem,
    /// The winner: the user's knobs and the fastest values for the others. If nothing was shown to be faster than
    /// `auto`, it is `auto`.
    pub config: Config,
    /// The user's knobs.
    pub base: Config,
    /// How the winner was found.
    pub ranked: Ranked,
    /// All considered configurations: the winner, then by measured or predicted time, then those that did not run.
    pub candidates: Vec<Candidate>,
    /// Counts.
    pub counts: Counts,
    /// Illegal configurations by knob: how many, and one of the reasons.
    pub illegal: Vec<(&'static str, usize, String)>,
    /// Duration of the tuning.
    pub took: Duration,
}

impl Tuned {
    /// The winner's knobs beside the user's, as [`knobs`] reads them; empty if `auto` won.
    #[must_use]
    pub fn knobs(&self) -> String {
        difference(&self.config, &self.base)
    }
}

impl TuningEntry {
    /// The tuning result for a dual GEMM on a device.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where the result is another dual GEMM's.
    pub fn of(device: &Device, gemm: &DualGemm, tuned: &Tuned) -> Result<Self, KernelError> {
        let shape = tuned.problem.shape;
        let code = code_of(gemm.spec(), tuned.config, shape, device.arch())?;
        let key = TuningKey::of(device.facts(), gemm.spec(), shape);
        let tried = tuned.counts.timed.max(tuned.candidates.len()) as u32;
        Ok(Self { key, knobs: tuned.knobs(), code, ranked: tuned.ranked, tried })
    }
}

impl Table {
    /// Adds what was found of a dual GEMM on a device; whether it was better than what was there.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where the result is another dual GEMM's.
    pub fn add(&mut self, device: &Device, gemm: &DualGemm, tuned: &Tuned) -> Result<bool, KernelError> {
        Ok(self.insert(TuningEntry::of(device, gemm, tuned)?))
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let knobs = Some(self.knobs()).filter(|knobs| !knobs.is_empty());
        write!(f, "{}: {}, ", self.problem, knobs.as_deref().unwrap_or("auto"))?;
        match self.ranked {
            Ranked::Predicted { us, auto_us, chip } => {
                let ratio = us / auto_us;
                write!(
                    f,
                    "predicted {us:.2} us on {chip}, auto {auto_us:.2} us, ratio {ratio:.3}; not measured"
                )?
            }
            Ranked::Measured { us, auto_us, ratio, turns, verdict } => {
                let sure = match verdict {
                    Verdict::Clear => "clear",
                    Verdict::Tied => "as fast as any",
                    Verdict::Open => "out of time",
                };
                write!(f, "{us:.2} us, ")?;
                if let (Some(auto_us), Some(ratio)) = (auto_us, ratio) {
                    write!(f, "auto {auto_us:.2} us, ratio {ratio:.3}, ")?;
                }
                write!(f, "{sure} after {turns} turns")?;
            }
        }
        let Counts { drawn, illegal, same, left_out, refused, failed, wrong, timed } = self.counts;
        write!(
            f,
            "; of {drawn} kernels {illegal} illegal, {same} the same, {left_out} left out, {timed} timed, {} refused, {wrong} wrong",
            refused + failed
        )
    }
}

/// Progress of tuning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// The space was checked.
    Drawn {
        /// Configurations in the space.
        of: usize,
        /// Kept.
        kept: usize,
    },
    /// Kernels loaded or refused so far.
    Loaded {
        /// Kernels done.
        done: usize,
        /// Kernels in all.
        of: usize,
    },
    /// Kernels checked so far.
    Checked {
        /// Kernels done.
        done: usize,
        /// Kernels in all.
        of: usize,
    },
    /// A kernel's result is wrong.
    Wrong {
        /// The kernel's problem.
        problem: Problem,
        /// Its knobs.
        knobs: String,
        /// The deviation, as text.
        report: String,
    },
    /// A kernel is about to be launched. If the process ends before the next step, this kernel is the cause.
    Trying {
        /// The kernel's knobs beside the user's; empty for `auto`.
        knobs: String,
    },
    /// A turn of the race starts.
    Turn {
        /// Turns before it.
        turn: usize,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Drawn { of, kept } => write!(f, "{kept} of {of} configurations to try"),
            Step::Loaded { done, of } => write!(f, "{done}/{of} loaded"),
            Step::Checked { done, of } => write!(f, "{done}/{of} checked"),
            Step::Wrong { problem, knobs, report } => {
                write!(
                    f,
                    "WRONG, and left out: the kernel of `{knobs}` for {problem}: {report}; please report this"
                )
            }
            Step::Trying { knobs } if knobs.is_empty() => write!(f, "trying auto"),
            Step::Trying { knobs } => write!(f, "trying {knobs}"),
            Step::Turn { turn } => write!(f, "turn {turn}"),
        }
    }
}

type Listener<'a> = Box<dyn Fn(&Step) + Send + Sync + 'a>;

/// A tuning run: the problem, the space, and limits.
#[must_use]
pub struct Tune<'a> {
    gemm: &'a DualGemm,
    shape: Shape,
    space: Option<Space>,
    budget: Duration,
    keep: usize,
    rules: Rules,
    scalars: Vec<(String, f32)>,
    seed: u64,
    length: Duration,
    sets: usize,
    macs: f64,
    lost: Vec<(String, String)>,
    listener: Option<Listener<'a>>,
    cancel: Cancel,
}

/// Finds the fastest configuration in `space` for one problem on a device, within 20 seconds: see [`Tune`].
///
/// # Errors
///
/// [`TuneError`].
pub fn tune(device: &Device, gemm: &DualGemm, shape: Shape, space: &Space) -> Result<Tuned, TuneError> {
    Tune::of(gemm, shape).space(space.clone()).run(device)
}

impl<'a> Tune<'a> {
    /// A tuning run of a dual GEMM for one shape. Knobs that it sets stay.
    pub fn of(gemm: &'a DualGemm, shape: Shape) -> Self {
        Self {
            gemm,
            shape,
            space: None,
            budget: Duration::from_secs(20),
            keep: 32,
            rules: Rules::default(),
            scalars: Vec::new(),
            seed: 0,
            length: Duration::from_millis(2),
            sets: 64,
            macs: 2e9,
            lost: Vec::new(),
            listener: None,
            cancel: Cancel::new(),
        }
    }

    /// Sets the space; the default is [`Space::usual`].
    pub fn space(mut self, space: Space) -> Self {
        self.space = Some(space);
        self
    }

    /// Sets the time limit; the default is 20 seconds. On a GPU half of it is for loading and checking, the rest for
    /// timing; on the emulated device all of it is for predicting. Steps that have started are finished.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets how many kernels are loaded first; the default is 32. Up to as many more are loaded when neighbours of
    /// the fastest are tried.
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep.max(1);
        self
    }

    /// Sets the rules of the race.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the gate's scalars; the default is 1 for each.
    pub fn scalars(mut self, scalars: &[(&str, f32)]) -> Self {
        self.scalars = scalars.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self
    }

    /// Sets the seed of the operands.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the approximate duration of one replay; the default is 2 ms.
    pub fn replay_length(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets the most operand sets. Launches use them in turn so that none finds its own in L2. The default is as many
    /// as have 256 MB together, at most 64.
    pub fn sets(mut self, sets: usize) -> Self {
        self.sets = sets.max(1);
        self
    }

    /// Sets the multiply-adds of a check; the default is 2e9. For larger problems a sample of C is compared, with at
    /// least one element per patch of C. On the emulated device, kernels of more than an eighth of it are not run.
    pub fn check_up_to(mut self, macs: f64) -> Self {
        self.macs = macs;
        self
    }

    /// Excludes the kernel of these knobs and lists it as failed with the given reason: for kernels that ended an
    /// earlier process, by [`TuneError::Lost`] or [`Step::Trying`]. May be called several times.
    pub fn lost(mut self, knobs: &str, reason: &str) -> Self {
        self.lost.push((knobs.to_owned(), reason.to_owned()));
        self
    }

    /// Calls `listener` at each step, from any thread. Without one, wrong kernels are reported on standard error.
    pub fn on_progress(mut self, listener: impl Fn(&Step) + Send + Sync + 'a) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Ends early with [`TuneError::Cancelled`] when `cancel` is cancelled.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Checks, times and ranks the configurations.
    ///
    /// # Errors
    ///
    /// [`TuneError`].
    pub fn run(self, device: &Device) -> Result<Tuned, TuneError> {
        let _range = range(format_args!("tune {}", self.shape));
        run::run(self, device)
    }

    fn tell(&self, step: &Step) {
        use std::io::Write;
        match (&self.listener, step) {
            (Some(listener), _) => listener(step),
            // Where standard error is gone, there is nobody to tell.
            (None, Step::Wrong { .. }) => drop(writeln!(std::io::stderr(), "silumin: {step}")),
            (None, _) => {}
        }
    }
}

/// A [`LoadError`] as text.
fn refused(error: &LoadError) -> String {
    error.to_string()
}
