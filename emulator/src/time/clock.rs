//! The clock of the SMs.

use super::{Chip, ChipError};
use std::fmt;
use std::str::FromStr;

/// Runs after the first one, each at the clock that the run before gives. The tensor cores' use rises a little as the
/// clock falls, since memory keeps its speed; the second correction is below 2 %.
const CORRECTIONS: usize = 2;

/// The clock of the SMs for a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Clock {
    /// The maximum, for one launch or a few.
    #[default]
    Maximum,
    /// A given clock in MHz.
    Mhz(f64),
    /// The clock that the power limit leaves under a load that lasts, such as the same launch for seconds
    /// ([`Chip::sustained_clock`]).
    Sustained,
}

/// A text that is not a clock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a clock: give `maximum`, `sustained`, or MHz above 0, such as 1500")]
pub struct ClockError {
    /// The text.
    text: String,
}

impl FromStr for Clock {
    type Err = ClockError;

    fn from_str(text: &str) -> Result<Self, ClockError> {
        match text {
            "maximum" => Ok(Clock::Maximum),
            "sustained" => Ok(Clock::Sustained),
            _ => match text.parse() {
                Ok(mhz) if f64::is_finite(mhz) && mhz > 0.0 => Ok(Clock::Mhz(mhz)),
                _ => Err(ClockError { text: text.to_owned() }),
            },
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clock::Maximum => f.write_str("maximum"),
            Clock::Mhz(mhz) => write!(f, "{mhz}"),
            Clock::Sustained => f.write_str("sustained"),
        }
    }
}

impl Clock {
    /// Predicts a launch at this clock. `run` predicts it on a chip, from the same state of memory each time;
    /// `tensor_use` returns the fraction of time for which the tensor cores of all SMs were busy.
    ///
    /// # Errors
    /// Those of `run`, and a clock that no chip has.
    pub fn settle<T, E: From<ChipError>>(
        self,
        chip: &Chip,
        run: impl Fn(Chip) -> Result<T, E>,
        tensor_use: impl Fn(&T) -> f64,
    ) -> Result<T, E> {
        match self {
            Clock::Maximum => run(chip.clone()),
            Clock::Mhz(mhz) => run(chip.with("clock", mhz)?),
            Clock::Sustained => {
                let mut settled = run(chip.clone())?;
                let mut mhz = chip.clock.value;
                for _ in 0..CORRECTIONS {
                    let next = chip.sustained_clock(tensor_use(&settled));
                    if next > mhz * 0.995 {
                        break;
                    }
                    mhz = next;
                    settled = run(chip.with("clock", mhz)?)?;
                }
                Ok(settled)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_falls_with_the_cube_root_of_what_is_over_the_limit() {
        let chip = Chip::named("h200").unwrap().with("tensor_power", 0.4).unwrap();
        assert_eq!(chip.sustained_clock(0.3), chip.clock.value);
        assert_eq!(chip.sustained_clock(0.4), chip.clock.value);
        let half = chip.sustained_clock(3.2) / chip.clock.value;
        assert!((half - 0.5).abs() < 1e-12, "{half}");
    }

    #[test]
    fn a_load_that_lasts_settles_where_power_meets_its_limit() {
        // 60 % of the time at the maximum clock is products, the rest waits for memory.
        let chip = Chip::named("h200").unwrap().with("tensor_power", 0.4).unwrap();
        let top = chip.clock.value;
        let run = |c: Chip| -> Result<(f64, f64), ChipError> {
            let time = 0.6 * top / c.clock.value + 0.4;
            Ok((c.clock.value, 0.6 * top / c.clock.value / time))
        };
        let (mhz, busy) = Clock::Sustained.settle(&chip, run, |r| r.1).unwrap();
        let power = busy * (mhz / top).powi(3);
        assert!((power / 0.4 - 1.0).abs() < 0.02, "{power}");
        assert_eq!(Clock::Maximum.settle(&chip, run, |r| r.1).unwrap().0, top);
        assert_eq!(Clock::Mhz(1500.0).settle(&chip, run, |r| r.1).unwrap().0, 1500.0);
    }

    #[test]
    fn clocks_are_read_as_they_are_written() {
        for clock in [Clock::Maximum, Clock::Sustained, Clock::Mhz(1594.5)] {
            assert_eq!(clock.to_string().parse(), Ok(clock));
        }
        for bad in ["", "0", "-3", "nan", "inf", "fast"] {
            assert!(bad.parse::<Clock>().unwrap_err().to_string().contains("sustained"), "{bad}");
        }
    }
}
