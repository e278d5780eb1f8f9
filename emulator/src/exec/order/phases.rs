//! The views that a phase of an mbarrier passes from arriving threads to waiting threads.

use super::clock::View;
use super::lives::Use;
use super::{Issue, MbarSync, Strength, Sync, Tracker, Unit};

/// The views that a phase of an mbarrier released: by threads of its own CTA and asynchronous operations, and by
/// threads of other CTAs.
#[derive(Debug)]
pub(crate) struct Released {
    own: View,
    remote: View,
    /// The mbarrier's life: the warp, count and line of its initialisation.
    init: (u16, u32, u32),
}

impl Tracker {
    /// `mbarrier.init`.
    pub fn mbar_init(&mut self, agent: u16, at: (usize, u32), line: u32) {
        let next = match self.mbars.get(&at) {
            Some(b) => b.component,
            None => self.another(),
        };
        let c = self.component(agent, Unit::Warp);
        let clock = self.threads[agent as usize].view.all.get(c);
        let init = (agent, clock, line);
        let fresh = MbarSync { component: next, init, ..MbarSync::default() };
        let b = self.mbars.entry(at).or_insert(fresh);
        // Phases of a new life start at 0: they count on from those of the last.
        *b = MbarSync {
            component: b.component,
            init,
            base: b.top,
            top: b.top,
            sync: Sync::default(),
            remote: Sync::default(),
        };
    }

    /// `mbarrier.arrive` and its like, of one lane `alone` or of all lanes of the warp.
    pub fn mbar_release(&mut self, agent: u16, at: (usize, u32), line: u32, s: Strength, alone: Option<u8>) {
        self.check_init(agent, at, line, None, false);
        let arrival = self.mbar_used(at, agent, line);
        self.peer_arrives(at, arrival);
        let own = agent as usize / self.per_cta == at.0;
        // Kernels that run on hardware arrive at a peer's barrier with .cta scope; strict tracking asks for .cluster.
        if self.mbars.contains_key(&at) && (own || s.wide || !self.strict) {
            let mut said = View::default();
            let beyond = !own && self.strict;
            let tensor = self.tensor_units();
            Self::release_to(&self.threads[agent as usize], s.relaxed, beyond, &mut said, tensor);
            if let Some(lane) = alone {
                said = self.of_lane(agent, lane, said);
            }
            if let Some(b) = self.mbars.get_mut(&at) {
                let to = if own { &mut b.sync } else { &mut b.remote };
                to.current.hear(&said);
            }
        }
        self.tick(agent);
    }

    /// A wait that was satisfied, by the last phase that completed or by an earlier one that it was suspended for.
    pub fn mbar_acquire(
        &mut self,
        agent: u16,
        at: (usize, u32),
        line: u32,
        s: Strength,
        earlier: Option<&Released>,
    ) {
        // The phase may have been of a life that has ended since.
        if earlier.is_none_or(|e| self.mbars.get(&at).is_some_and(|b| b.init == e.init)) {
            self.check_init(agent, at, line, None, false);
            self.mbar_used(at, agent, line);
        }
        let c = self.component(agent, Unit::Warp);
        let tensor = self.tensor_units();
        if let Some(b) = self.mbars.get(&at) {
            let (own, remote) = match earlier {
                Some(Released { own, remote, .. }) => (own, remote),
                None => (&b.sync.done, &b.remote.done),
            };
            let thread = &mut self.threads[agent as usize];
            Self::acquire_from(thread, s.relaxed, false, own, tensor.clone());
            if s.wide || !self.strict {
                Self::acquire_from(thread, s.relaxed, self.strict, remote, tensor);
            }
            // What all lanes had announced, all have heard.
            let back = own.all.get(c);
            if back > thread.met {
                thread.met = back;
                thread.beat += 1;
            }
        }
        self.arrivals_waited_for(at);
    }

    /// An asynchronous arrival at an mbarrier: the bytes of a copy, counted by `phase`, or a commit.
    pub fn mbar_deliver(
        &mut self,
        at: (usize, u32),
        line: u32,
        issue: &Issue,
        unit: Option<Unit>,
        phase: u64,
    ) {
        self.check_init(issue.agent, at, line, Some(issue), unit != Some(Unit::Small));
        let own = unit.map(|u| self.component(issue.agent, u));
        let Some(b) = self.mbars.get_mut(&at) else { return };
        let to = &mut b.sync.current;
        to.hear(&issue.view);
        match own {
            None => {
                let clock = b.base + phase as u32 + 1;
                b.top = b.top.max(clock);
                to.all.raise(b.component, clock);
                let new = Use { agent: issue.agent, component: b.component, clock, line };
                self.mbar_used_by(at, new);
            }
            Some(c) => {
                to.all.raise(c, issue.clock);
                // A commit implies tcgen05.fence::before_thread_sync.
                to.heard.raise(c, issue.clock);
                let new = Use { agent: issue.agent, component: c, clock: issue.clock, line };
                self.mbar_used_by(at, new);
                self.peer_arrives(at, new);
            }
        }
    }

    /// The epoch of copies that a phase of an mbarrier counts.
    pub fn mbar_epoch(&self, at: (usize, u32), phase: u64) -> Option<(u16, u32)> {
        self.mbars.get(&at).map(|b| (b.component, b.base + phase as u32 + 1))
    }

    pub fn mbar_complete(&mut self, at: (usize, u32)) {
        if let Some(b) = self.mbars.get_mut(&at) {
            b.sync.done = b.sync.current.clone();
            b.remote.done = b.remote.current.clone();
        }
        self.arrivals_counted(at);
    }

    /// The views that the last completed phase has released.
    pub fn mbar_released(&self, at: (usize, u32)) -> Option<Released> {
        let of =
            |b: &MbarSync| Released { own: b.sync.done.clone(), remote: b.remote.done.clone(), init: b.init };
        self.mbars.get(&at).map(of)
    }
}
