//! Explanations of survivors: edits that change nothing a program may rely on.

use super::{Kind, Mutant, pairs};
use crate::launch::{Launch, product};
use serde::Deserialize;

/// Lines before and after an instruction that `near` searches.
const NEAR: usize = 8;

/// A mutant that is known to be equivalent to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// Kind of the mutant; any if absent.
    pub kind: Option<String>,
    /// A part of the instruction's text.
    pub text: String,
    /// A part of the change's text; any if absent.
    pub change: Option<String>,
    /// A part of a line near the instruction; any if absent.
    pub near: Option<String>,
    /// The nearest unindented label before the instruction, without its colon; any if absent.
    pub under: Option<String>,
    /// A part of the PTX; any if absent.
    pub with: Option<String>,
    /// Whether the reason depends on the launch's sizes; then the kernel's other sizes are tried first.
    #[serde(default)]
    pub here: bool,
    /// Why the mutant changes nothing.
    pub reason: String,
}

/// Known equivalents of a kernel: a TOML file of `[[equivalent]]` tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalents {
    /// The list.
    #[serde(default)]
    pub equivalent: Vec<Equivalent>,
}

impl Equivalents {
    /// Parses a TOML text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Equivalents, String> {
        let list: Equivalents = toml::from_str(text).map_err(|e| e.to_string())?;
        for e in &list.equivalent {
            if let Some(kind) = &e.kind {
                kind.parse::<Kind>()?;
            }
        }
        Ok(list)
    }

    /// The reason of the first equivalent that matches, among those for one size or for all sizes. `lines` are those
    /// of the PTX.
    pub(super) fn reason(&self, mutant: &Mutant, lines: &[&str], here: bool) -> Option<String> {
        let line = mutant.line as usize;
        let around =
            lines.get(line.saturating_sub(NEAR + 1)..lines.len().min(line + NEAR)).unwrap_or_default();
        let before = lines.get(..line.saturating_sub(1)).unwrap_or_default();
        let label = before
            .iter()
            .rev()
            .filter(|l| !l.starts_with(char::is_whitespace))
            .find_map(|l| l.strip_suffix(':'));
        let fits = |e: &&Equivalent| {
            e.here == here
                && e.kind.as_deref().is_none_or(|k| k == mutant.kind.name())
                && mutant.was.contains(&e.text)
                && e.near.as_deref().is_none_or(|n| around.iter().any(|l| l.contains(n)))
                && e.change.as_deref().is_none_or(|c| mutant.change.contains(c))
                && e.under.as_deref().is_none_or(|u| Some(u) == label)
                && e.with.as_deref().is_none_or(|w| lines.iter().any(|l| l.contains(w)))
        };
        self.equivalent.iter().find(fits).map(|e| e.reason.clone())
    }
}

/// Why a survivor is no mistake, by rules that hold for any kernel. `lines` are those of the PTX.
pub(super) fn explain(mutant: &Mutant, lines: &[&str], launch: &Launch) -> Option<String> {
    let reason = match mutant.kind {
        Kind::Hint if mutant.was.contains("relinquish_alloc_permit") => {
            "it lets CTAs that come later allocate sooner, and none of the launch waits for that"
        }
        Kind::Hint => "a hint for caches or the scheduler, without effect on results (PTX ISA)",
        Kind::Collector if mutant.change != pairs::ANOTHER_A => {
            "the collector is a cache of A that the program does not see as long as A stays unchanged"
        }
        Kind::WarpBarrier if leads_out(mutant, lines) => {
            "no memory access of another lane is between it and the barrier of the CTA or the exit: it only lets lanes \
             meet again, which the emulator does at once"
        }
        Kind::Fence if mutant.was.starts_with("fence.mbarrier_init") && product(launch.cluster) == 1 => {
            "it tells other CTAs of the cluster of the initialisation, and there are none; the barrier of the CTA tells its own \
             threads (PTX ISA, fence.mbarrier_init)"
        }
        Kind::Fence if mutant.was.starts_with("fence.mbarrier_init") && released(lines) => {
            "the cluster barrier that follows arrives with .release, which orders the initialisation too; the fence is needed with \
             .relaxed"
        }
        _ => return None,
    };
    Some(reason.to_owned())
}

/// Whether a jump, a label, the end or a barrier of more threads comes next.
fn leads_out(mutant: &Mutant, lines: &[&str]) -> bool {
    let rest = lines.iter().skip(mutant.line as usize).map(|l| l.trim());
    let next = rest
        .filter(|l| !l.is_empty() && !l.starts_with("//") && !l.ends_with(':'))
        .find(|l| !l.starts_with("tcgen05.fence"));
    next.is_some_and(|l| ["bra", "ret", "exit", "bar.sync", "barrier"].iter().any(|op| l.starts_with(op)))
}

/// Whether every arrival at a cluster barrier releases, as it does by default.
fn released(lines: &[&str]) -> bool {
    !lines.iter().any(|l| l.contains("barrier.cluster.arrive.relaxed"))
}
