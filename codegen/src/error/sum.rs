//! The sum in a refusal: what all was to fit.

use std::fmt;

/// A sum that does not fit, part by part: `3 x 53248 (stages) + 224 (barriers) = 159968`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    parts: Vec<(u64, u64, &'static str)>,
}

impl Sum {
    /// Adds `count` times `size` for `what`.
    pub fn add(&mut self, count: u64, size: u64, what: &'static str) {
        self.parts.push((count, size, what));
    }

    /// The first part.
    pub(super) fn first(&self) -> u64 {
        self.parts.first().map_or(0, |(count, size, _)| count.saturating_mul(*size))
    }

    /// The total.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|(count, size, _)| count.saturating_mul(*size)).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (count, size, what)) in self.parts.iter().enumerate() {
            let plus = if position == 0 { "" } else { " + " };
            match count {
                1 => write!(f, "{plus}{size} ({what})")?,
                _ => write!(f, "{plus}{count} x {size} ({what})")?,
            }
        }
        write!(f, " = {}", self.total())
    }
}
