//! The end of an mbarrier's life: every use must be ordered before `mbarrier.inval` or another initialisation.

use super::judge::{Found, Region, whole};
use super::{Tracker, Unit};
use crate::exec::report::Origin;
use crate::exec::state::{Cluster, Wait};
use crate::finding::FindingKind;

/// A use of an mbarrier by a thread, or by a thread's copies and commits: an event with count `clock` of `component`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub agent: u16,
    pub component: u16,
    pub clock: u32,
    pub line: u32,
}

impl Tracker {
    /// Records that a thread arrives at an mbarrier or observes that a phase has completed; returns the use.
    pub(super) fn mbar_used(&mut self, at: (usize, u32), agent: u16, line: u32) -> Use {
        let component = self.component(agent, Unit::Warp);
        let clock = self.threads[agent as usize].view.all.get(component);
        let new = Use { agent, component, clock, line };
        self.mbar_used_by(at, new);
        new
    }

    /// Records a use by bytes of a copy, or by a commit.
    pub(super) fn mbar_used_by(&mut self, at: (usize, u32), new: Use) {
        let uses = self.mbar_uses.entry(at).or_default();
        match uses.iter_mut().find(|u| (u.agent, u.component) == (new.agent, new.component)) {
            Some(u) => *u = new,
            None => uses.push(new),
        }
    }

    /// Ends the life of an mbarrier.
    pub fn mbar_end(&mut self, agent: u16, at: (usize, u32), line: u32) {
        self.arrivals.remove(&at);
        for u in self.mbar_uses.remove(&at).unwrap_or_default() {
            let v = &self.threads[agent as usize].view;
            let own = u.component == self.component(agent, Unit::Warp);
            if own || whole(&self.lanes[u.agent as usize], &v.all, u.component, u.clock) {
                continue;
            }
            self.add(Found {
                kind: FindingKind::MbarrierReused,
                region: Region::Mbar(at.0, at.1),
                agent,
                line,
                old_agent: u.agent,
                old_line: u.line,
                text: "the mbarrier ends, or starts anew, while it may still be waited for or arrived at; a barrier of the threads \
                       that use it, or a wait for its last phase, comes first",
            });
        }
    }
}

impl Cluster<'_> {
    /// Ends the life of an mbarrier; reports threads and operations that may still use it.
    pub(in crate::exec) fn end_mbarrier(&mut self, (cta, offset): (usize, u32), at: Origin) {
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(at.cta as usize, at.warp);
            t.mbar_end(agent, (cta, offset), at.line);
        }
        let Some(b) = self.ctas[cta].mbars.iter().find(|b| b.offset == offset) else { return };
        // Nothing says that those whose phase has completed have resumed.
        let waits = |g: &crate::exec::state::Group| matches!(&g.wait, Wait::Mbar(s) if s.offset == offset);
        let waiter = self.ctas[cta].warps.iter().flatten().find(|w| w.groups.iter().any(waits));
        let what = match waiter {
            Some(w) => format!("warp {} waits for it", w.index),
            None if b.tx != 0 => format!("copies have yet to bring {} bytes", b.tx),
            None => return,
        };
        let text = format!(
            "the mbarrier at shared offset {offset:#x} of CTA {cta} of the cluster ends, or starts anew, in {}, while {what}",
            b.describe()
        );
        self.report(FindingKind::MbarrierReused, at, text);
    }
}
