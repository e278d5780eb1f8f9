//! Arrivals from other CTAs of the cluster at the mbarriers of a CTA that exits.
//!
//! Shared memory lives as long as its CTA (PTX ISA, `mapa`, `barrier.cluster`). An arrival from a peer is pending
//! until the CTA has waited for the phase that counts it, or until a later release has reached the CTA. A relaxed
//! cluster barrier is not such a release: it orders execution, not what was sent. Kernels that run on hardware end
//! that way after arrivals of threads, so only strict tracking reports it. A commit arrives when its products are
//! done, and needs a wait.

use super::clock::Clock;
use super::judge::{Found, Region, whole};
use super::lives::Use;
use super::{Tracker, Unit};
use crate::finding::FindingKind;

/// An arrival that its CTA has not waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    by: Use,
    /// Whether a completed phase counts it.
    counted: bool,
    barrier: Barrier,
}

/// Progress of a cluster barrier that follows an arrival in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Barrier {
    None,
    Arrived,
    Complete,
}

impl Tracker {
    /// A warp arrives at an mbarrier, or a commit that it issued.
    pub(super) fn peer_arrives(&mut self, at: (usize, u32), by: Use) {
        if by.agent as usize / self.per_cta == at.0 {
            return;
        }
        let new = Arrival { by, counted: false, barrier: Barrier::None };
        let arrivals = self.arrivals.entry(at).or_default();
        // The last of a line stands for those before.
        let key = |by: &Use| (by.agent, by.component, by.line);
        let same = |a: &&mut Arrival| key(&a.by) == key(&by) && !a.counted;
        match arrivals.iter_mut().find(same) {
            Some(a) => *a = new,
            None => arrivals.push(new),
        }
    }

    /// A phase of the mbarrier completes.
    pub(super) fn arrivals_counted(&mut self, at: (usize, u32)) {
        self.arrivals.entry(at).and_modify(|list| list.iter_mut().for_each(|a| a.counted = true));
    }

    /// A thread of the mbarrier's CTA has seen that a phase is over.
    pub(super) fn arrivals_waited_for(&mut self, at: (usize, u32)) {
        if let Some(list) = self.arrivals.get_mut(&at) {
            list.retain(|a| !a.counted);
        }
    }

    /// A thread that knows of arrivals arrives at the barrier of the cluster.
    pub(super) fn arrivals_before_barrier(&mut self, agent: u16) {
        let (lanes, known) = (&self.lanes, &self.threads[agent as usize].view.all);
        for a in self.arrivals.values_mut().flatten().filter(|a| a.barrier == Barrier::None) {
            if whole(&lanes[a.by.agent as usize], known, a.by.component, a.by.clock) {
                a.barrier = Barrier::Arrived;
            }
        }
    }

    /// The barrier of the cluster completes.
    pub(super) fn arrivals_barrier_complete(&mut self) {
        let met = self.arrivals.values_mut().flatten().filter(|a| a.barrier == Barrier::Arrived);
        met.for_each(|a| a.barrier = Barrier::Complete);
    }

    /// A thread of a CTA has waited at the barrier of the cluster.
    pub(super) fn arrivals_passed_barrier(&mut self, agent: u16) {
        let cta = agent as usize / self.per_cta;
        if !self.strict {
            let there = self.arrivals.iter_mut().filter(|((c, _), _)| *c == cta);
            there.for_each(|(_, list)| list.retain(|a| a.barrier != Barrier::Complete));
        }
    }

    /// Checks after the last thread of a CTA, with what its threads have observed in `heard`.
    pub(super) fn exit_with_arrivals(&mut self, cta: usize, heard: &Clock) {
        let lanes = &self.lanes;
        let under_way = |by: &Use| {
            // A later commit that is known to have arrived elsewhere says little of this one.
            let commit = self.unit(by.component) == Some(Unit::Pipe);
            self.strict && commit || !whole(&lanes[by.agent as usize], heard, by.component, by.clock)
        };
        let mut left: Vec<(u32, Use)> = (self.arrivals.iter())
            .filter(|((c, _), _)| *c == cta)
            .flat_map(|((_, offset), list)| list.iter().map(|a| (*offset, a.by)))
            .filter(|(_, by)| under_way(by))
            .collect();
        left.sort_by_key(|(offset, by)| (*offset, by.agent, by.line));
        for (offset, by) in left {
            self.add(Found {
                kind: FindingKind::ExitDuringArrival,
                region: Region::Exit(cta, offset),
                agent: (cta * self.per_cta) as u16,
                line: by.line,
                old_agent: by.agent,
                old_line: by.line,
                text: "a wait of the CTA for the phase that counts the arrival comes before the exit, or a barrier of the cluster \
                       that releases",
            });
        }
    }
}
