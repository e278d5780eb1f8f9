//! Arrivals of other CTAs of the cluster at the mbarriers of one that exits.
//!
//! Shared memory lives as long as its CTA (PTX ISA, `mapa`, `barrier.cluster`). An arrival from a peer is under way until the
//! CTA has waited for the phase that counts it, or a release that comes after it has reached the CTA. A relaxed barrier of
//! the cluster is no such release: it orders execution, and not what has been sent.

use super::clock::Clock;
use super::judge::{Found, Region, whole};
use super::lives::Use;
use super::{Tracker, Unit};
use crate::finding::FindingKind;

/// An arrival that its CTA has not waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    by: Use,
    /// A phase that has completed counts it.
    counted: bool,
}

impl Tracker {
    /// A warp arrives at an mbarrier, or a commit that it issued.
    pub(super) fn peer_arrives(&mut self, at: (usize, u32), by: Use) {
        if by.agent as usize / self.per_cta == at.0 {
            return;
        }
        let new = Arrival { by, counted: false };
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

    /// After the last thread, of a CTA whose threads have `heard` of so much.
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
