//! The fastest configuration for a problem on a device: [`tune`], and [`Tune`] with more to choose.
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
mod predicted;
mod race;
mod record;
mod run;
mod space;
mod table;
#[cfg(feature = "cuda")]
mod timed;
mod trial;

pub use descent::{Depth, Descent, rules};
pub use race::{Finish, Rules, Verdict, median, quantile, race, sign_test};
pub use record::{RecordError, TuningEntry, TuningKey};
pub use space::{Space, SpaceError, difference, knobs, words};
pub use table::{Damaged, FILE, Found, Stale, Table, TableError};

use std::fmt;
use std::time::Duration;

use silumin_codegen::config::Config;
use silumin_codegen::problem::{Problem, Shape};
use thiserror::Error;

use crate::device::{Device, DeviceError};
use crate::gemm::{DualGemm, KernelError, LoadError, VerifyError};
use crate::warmup::Cancel;

/// Why nothing was tuned. A configuration that is illegal, refused or wrong is none of these: it is a [`Fate`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// There is no kernel for the problem at all, or not with the knobs that the user has set.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Operands, their reference, or memory of the device.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Predicted times have no chip of this name.
    #[error(transparent)]
    Chip(#[from] crate::predict::ChipError),
    /// Every kernel was refused, failed or was wrong.
    #[error("none of {tried} kernels for {problem} is right: {first}")]
    NoneRight {
        /// The problem.
        problem: Problem,
        /// Kernels that were tried.
        tried: usize,
        /// What is wrong with the first of them.
        first: String,
    },
    /// A kernel took the device's context along: nothing works in this process any more.
    #[error(
        "the kernel of `{knobs}` has left the device beyond use: {reason}; start another process, with Tune::lost for that \
         configuration"
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

/// What became of a configuration that was tried.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fate {
    /// Right, and timed.
    Timed {
        /// Microseconds of a launch, the median of all turns.
        us: f64,
        /// Turns that it was in the race.
        turns: usize,
        /// Whether it was still in the race at its end.
        in_race: bool,
    },
    /// Ranked by its predicted time, and right on the emulated device.
    Right,
    /// Ranked by its predicted time, and not run.
    Ranked,
    /// It computes something else. It is told to the listener, or on the standard error, and never chosen.
    Wrong(String),
    /// The device does not take the kernel.
    Refused(String),
    /// It was launched and failed.
    Failed(String),
    /// The time was out before its turn, or its bound was above the time of a better one.
    Untried,
}

/// A configuration that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// As asked for: on top of what the user set.
    pub config: Config,
    /// Microseconds below which it cannot be, by the numbers of the chip.
    pub bound: f64,
    /// Microseconds of a launch as predicted; `None` where it was timed, or its bound was enough to leave it out.
    pub predicted: Option<f64>,
    /// Bytes between global memory and the SMs, exactly.
    pub bytes: u64,
    /// Waves of tiles.
    pub waves: f64,
    /// What became of it.
    pub fate: Fate,
}

/// How the winner was found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ranked {
    /// By predicted times: nothing was measured.
    Predicted {
        /// Microseconds of a launch of the winner on the chip of that name, predicted.
        us: f64,
        /// The same of what `auto` makes.
        auto_us: f64,
        /// The chip: see [`crate::predict::default_chip`].
        chip: &'static str,
    },
    /// By times on the device.
    Measured {
        /// Microseconds of a launch of the winner, the median.
        us: f64,
        /// The same of what `auto` makes; `None` where that does not run.
        auto_us: Option<f64>,
        /// The median of the winner's time over that of `auto`, turn by turn.
        ratio: Option<f64>,
        /// Turns.
        turns: usize,
        /// How sure it is.
        verdict: Verdict,
    },
}

/// How many configurations there were, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// In the space, `auto` among them.
    pub drawn: usize,
    /// Refused by the generator.
    pub illegal: usize,
    /// Those that make the same kernel as others.
    pub same: usize,
    /// Left out by their bounds.
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
    /// The winner: what the user set, and what makes it the fastest. Where nothing was shown to be faster than what `auto`
    /// makes, it is that.
    pub config: Config,
    /// What the user had set.
    pub base: Config,
    /// How it was found.
    pub ranked: Ranked,
    /// All that were tried, the winner first, then by times (measured or predicted), then what did not run.
    pub candidates: Vec<Candidate>,
    /// Counts.
    pub counts: Counts,
    /// Why configurations are illegal: the knob, how many, and one of the reasons.
    pub illegal: Vec<(&'static str, usize, String)>,
    /// How long it took.
    pub took: Duration,
}

impl Tuned {
    /// The winner's knobs beside what the user set, as [`knobs`] reads them; empty where `auto` won.
    #[must_use]
    pub fn knobs(&self) -> String {
        difference(&self.config, &self.base)
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
            "; of {drawn} {illegal} illegal, {same} the same, {left_out} left out, {timed} timed, {} refused, {wrong} wrong",
            refused + failed
        )
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// The space has been looked at, and so many are to be tried.
    Drawn {
        /// Configurations in the space.
        of: usize,
        /// Kept.
        kept: usize,
    },
    /// So many kernels are loaded or refused.
    Loaded {
        /// Kernels done.
        done: usize,
        /// Of so many.
        of: usize,
    },
    /// So many kernels are checked.
    Checked {
        /// Kernels done.
        done: usize,
        /// Of so many.
        of: usize,
    },
    /// A kernel computes something else.
    Wrong {
        /// The kernel's problem.
        problem: Problem,
        /// Its knobs.
        knobs: String,
        /// How wrong it is.
        report: String,
    },
    /// A kernel is about to be launched: what happens to the process from here to the next step, this kernel did.
    Trying {
        /// Its knobs beside what the user set; empty for `auto`.
        knobs: String,
    },
    /// A turn of the race begins.
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

/// What is to be tuned, and how long.
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

/// The fastest configuration in `space` for one problem on a device, in 20 seconds at most: see [`Tune`].
///
/// # Errors
///
/// [`TuneError`].
pub fn tune(device: &Device, gemm: &DualGemm, shape: Shape, space: &Space) -> Result<Tuned, TuneError> {
    Tune::of(gemm, shape).space(space.clone()).run(device)
}

impl<'a> Tune<'a> {
    /// Of a dual GEMM, for one shape. Knobs that it sets stay as they are.
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

    /// What may be tried; [`Space::usual`], if this is not called.
    pub fn space(mut self, space: Space) -> Self {
        self.space = Some(space);
        self
    }

    /// How long it may take: on a GPU half of it for loading and checking, the rest for timing; on the emulated device all of it
    /// for predicting. 20 seconds, if this is not called. What has begun is finished.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// How many kernels are loaded at first; as many again may be when neighbours of the fastest are tried. 32, if this is
    /// not called.
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep.max(1);
        self
    }

    /// How the race is judged.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Values of the gate's scalars; 1 for each, if this is not called.
    pub fn scalars(mut self, scalars: &[(&str, f32)]) -> Self {
        self.scalars = scalars.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self
    }

    /// Seed of the operands.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long one replay takes about: 2 ms, if this is not called.
    pub fn replay_length(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets of operands at most, which launches take by turns so that none finds its own in L2: as many as have 256 MB
    /// together, but no more than 64, if this is not called.
    pub fn sets(mut self, sets: usize) -> Self {
        self.sets = sets.max(1);
        self
    }

    /// Multiply-adds of a check: of larger problems a sample of C is compared that takes about so many, an element of each
    /// patch of C at the least; on the emulated device, what takes more than an eighth of it is not run. 2e9, if this is not called.
    pub fn check_up_to(mut self, macs: f64) -> Self {
        self.macs = macs;
        self
    }

    /// Launches no kernel of these knobs, and has them among the results as failed, with a reason each: those that took an earlier
    /// process along, by [`TuneError::Lost`] or by [`Step::Trying`]. May be called several times.
    pub fn lost(mut self, knobs: &str, reason: &str) -> Self {
        self.lost.push((knobs.to_owned(), reason.to_owned()));
        self
    }

    /// Calls `listener` now and then, from any thread. Without one, what is wrong is printed to standard error.
    pub fn on_progress(mut self, listener: impl Fn(&Step) + Send + Sync + 'a) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Ends early when `cancel` says so, with [`TuneError::Cancelled`].
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Tries, checks and times.
    ///
    /// # Errors
    ///
    /// [`TuneError`].
    pub fn run(self, device: &Device) -> Result<Tuned, TuneError> {
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

/// A kernel that is not there: [`LoadError`] in words.
fn refused(error: &LoadError) -> String {
    error.to_string()
}
