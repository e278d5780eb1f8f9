//! What tuning has found, and what it is made of: what a warm-up reads.
//!
//! * `space.rs`: knobs and their values as text.
//! * `record.rs`, `table.rs`: results, a line each, and files of them.

mod record;
mod space;
mod table;

pub(crate) use record::code_of;
pub use record::{RecordError, TuningEntry, TuningKey};
pub use space::{Space, SpaceError, difference, knobs, words};
pub use table::{Damaged, FILE, Found, Stale, Table, TableError};

/// How a race ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Everything else was shown to be slower.
    Clear,
    /// Others are in the race still, and the winner was shown to be no slower than any of them by more than the margin.
    Tied,
    /// The time was out, or it was cancelled, with others still in the race.
    Open,
}

/// How the winner was found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ranked {
    /// By predicted times: nothing was measured.
    Predicted {
        /// Microseconds of a launch of the winner on the chip of that name, predicted.
        us: f64,
        /// Predicted microseconds of a launch of `auto`'s kernel.
        auto_us: f64,
        /// The chip: see [`crate::predict::default_chip`].
        chip: &'static str,
    },
    /// By times on the device.
    Measured {
        /// Microseconds of a launch of the winner, the median.
        us: f64,
        /// Median microseconds of a launch of `auto`'s kernel; `None` if it does not run.
        auto_us: Option<f64>,
        /// The median of the winner's time over that of `auto`, turn by turn.
        ratio: Option<f64>,
        /// Turns.
        turns: usize,
        /// How sure it is.
        verdict: Verdict,
    },
}
