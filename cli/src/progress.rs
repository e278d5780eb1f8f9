//! Bars of work that takes longer than a second: how much is done, how fast, and the time left. They go to standard error, and nowhere if that
//! is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// What a bar shows: how much is done, how fast, and the time left.
const TEMPLATE: &str = "{wide_bar} {pos} of {len} {msg}, {per_sec}, {eta} left";

/// A bar over `total` pieces of work, such as `kernels verified`; dropping it leaves nothing on the terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that shows up once a second has passed.
    #[must_use]
    pub fn new(total: u64, what: &'static str) -> Self {
        let style = ProgressStyle::with_template(TEMPLATE);
        let bar = ProgressBar::new(total).with_message(what);
        // The template is a constant, which the tests parse.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar }
    }

    /// Sets how many pieces are done, and how many there are.
    pub fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        if self.bar.elapsed() >= Duration::from_secs(1) {
            self.bar.set_position(done);
        }
    }

    /// Takes the bar off the terminal until it moves again.
    pub fn clear(&self) {
        self.bar.set_position(0);
        self.bar.finish_and_clear();
        self.bar.reset();
    }

    /// One piece more is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_one() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
        let progress = Progress::new(4, "kernels");
        progress.step();
        progress.set(3, 8);
        assert_eq!((progress.bar.position(), progress.bar.length()), (1, Some(8)));
    }
}
