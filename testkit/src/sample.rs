//! Samples that the commit chooses: a run of the tests judges a part of the cases, and after some commits all are judged.
//!
//! Only cases that are known to pass are sampled, so that what fails came with the change. `SILUMIN_SAMPLE_SEED` chooses another
//! part, and `SILUMIN_FULL=1` takes all.

use std::process::Command;
use std::sync::LazyLock;

/// The seed: `SILUMIN_SAMPLE_SEED` if it is set, else from the commit, or 1 without git.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    std::env::var("SILUMIN_SAMPLE_SEED").map_or_else(
        |_| commit().unwrap_or(1),
        |text| text.parse().unwrap_or_else(|_| panic!("SILUMIN_SAMPLE_SEED={text} is no number")),
    )
});

/// The first digits of the commit's name. A package or an archive of the sources has none.
fn commit() -> Option<u64> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(crate::root()).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    u64::from_str_radix(name.get(..8)?, 16).ok()
}

/// Whether `SILUMIN_FULL` asks for all there is.
#[must_use]
pub fn full() -> bool {
    std::env::var_os("SILUMIN_FULL").is_some()
}

/// The number that chooses a part of `parts`.
#[must_use]
pub fn turn(parts: usize) -> usize {
    usize::try_from(*SEED % parts.max(1) as u64).unwrap_or_default()
}

/// The cases of this commit, one in `parts`, each with its index among all; one case if there are fewer than `parts`.
///
/// ```
/// let all: Vec<(usize, char)> = "abcdefgh".chars().enumerate().collect();
/// let some = silumin_testkit::sample::of("abcdefgh".chars().collect(), 4);
/// assert!(some.len() == 2 && some.iter().all(|case| all.contains(case)));
/// let few = silumin_testkit::sample::of("ab".chars().collect(), 4);
/// assert!(few.len() == 1 && all.contains(&few[0]));
/// ```
#[must_use]
pub fn of<T>(cases: Vec<T>, parts: usize) -> Vec<(usize, T)> {
    let parts = if full() { 1 } else { parts.min(cases.len()) };
    let first = turn(parts);
    cases.into_iter().enumerate().skip(first).step_by(parts.max(1)).collect()
}

/// How to judge the same sample again, for a test's message.
#[must_use]
pub fn again() -> String {
    match full() {
        true => "SILUMIN_FULL=1 repeats it".to_owned(),
        false => format!("SILUMIN_SAMPLE_SEED={} repeats this sample", *SEED),
    }
}

/// Fails unless there are no faults among so many cases of a sample; the message says how to repeat it.
pub fn assert_none(faults: &[String], cases: usize) {
    assert!(cases > 0, "an empty sample");
    assert!(faults.is_empty(), "{} of {cases}; {}:\n{}", faults.len(), again(), faults.join("\n"));
}
