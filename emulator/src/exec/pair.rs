//! Tensor memory of a pair of CTAs: `alloc`, `dealloc` and `relinquish_alloc_permit` with `.cta_group::2`
//! (PTX ISA 9.7.16.5 and 9.7.16.7).
//!
//! Both CTAs perform each of them, with the same column count. The issuing warp must make sure that the peer CTA has been
//! launched: as ptxas assembles it, `alloc` arrives at an mbarrier in shared memory that the system reserves in the peer,
//! and stores the address there. Before the peer runs the arrival is lost, and the peer waits for ever.
//!
//! What proves to a warp that another CTA of its cluster runs, whatever the memory order of its parts:
//! - a wait at the cluster barrier
//! - a wait for a phase of an mbarrier at which a thread, a copy or a commit of that CTA arrived
//! - a barrier of its own CTA at which a warp arrived that knows
//! - an earlier `alloc` of the pair
//!
//! Flags in memory do not count. A copy or a commit passes on what the warp that issued it knows when it arrives, which may
//! be more than it knew at the issue.
//!
//! The even CTA chooses the columns, for both. Under [`Schedule::Early`] it goes on at once, as ptxas 13.5 has it; under the
//! others it waits until the odd CTA allocates, which the ISA allows. The odd CTA always waits for the even one. `dealloc`
//! and `relinquish_alloc_permit` do not wait.

use super::report::Origin;
use super::state::{Cluster, Wait, Warp};
use super::step::{Ctx, Flow};
use crate::engine::tmem::Tmem;
use crate::finding::FindingKind;
use crate::launch::Schedule;
use crate::program::{Op, Program};
use std::collections::HashMap;

/// CTAs of the cluster, bit `i` for rank `i`.
type Ranks = u16;

/// CTAs whose arrivals came so far, and those that had come when the last phase completed.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    now: Ranks,
    done: Ranks,
}

/// A `tcgen05.alloc` of one CTA of a pair.
#[derive(Clone, Copy, Debug)]
struct Alloc {
    at: Origin,
    /// The instruction has completed.
    done: bool,
}

/// Columns that the even CTA got for both.
#[derive(Clone, Copy, Debug)]
struct Grant {
    address: u32,
    columns: u32,
    /// Offset in shared memory of the word that receives the address.
    slot: u32,
}

/// Operations that one CTA has executed.
#[derive(Debug, Default)]
struct Done {
    allocs: Vec<Alloc>,
    /// Address and columns.
    frees: Vec<(Origin, u32, u32)>,
    relinquished: Option<Origin>,
}

/// The pairs of a cluster. Empty in kernels that allocate no tensor memory for pairs.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// By CTA, then by warp: CTAs known to run.
    known: Vec<Vec<Ranks>>,
    bars: HashMap<(usize, usize), Heard>,
    mbars: HashMap<(usize, u32), Heard>,
    ctas: Vec<Done>,
    /// By pair, in order.
    grants: Vec<Vec<Grant>>,
}

impl Pairs {
    /// Pairs of a cluster of `ctas` CTAs with `warps` warps each; empty for a kernel without pairs.
    pub fn new(program: &Program, ctas: usize, warps: usize) -> Self {
        if !program.code.iter().any(|i| matches!(i.op, Op::TcAlloc { pair: true, .. })) {
            return Pairs::default();
        }
        Pairs {
            known: (0..ctas).map(|rank| vec![1 << rank; warps]).collect(),
            ctas: (0..ctas).map(|_| Done::default()).collect(),
            grants: vec![Vec::new(); ctas.div_ceil(2)],
            ..Pairs::default()
        }
    }

    fn off(&self) -> bool {
        self.known.is_empty()
    }

    fn known(&self, cta: usize, warp: u32) -> Ranks {
        self.known.get(cta).and_then(|k| k.get(warp as usize)).copied().unwrap_or_default()
    }

    fn learn(&mut self, cta: usize, warp: u32, what: Ranks) {
        if let Some(known) = self.known.get_mut(cta).and_then(|k| k.get_mut(warp as usize)) {
            *known |= what;
        }
    }

    /// A wait at the cluster barrier is over: all CTAs run.
    pub fn cluster_wait(&mut self, cta: usize, warp: u32) {
        self.learn(cta, warp, Ranks::MAX);
    }

    /// A warp arrives at a barrier of its CTA.
    pub fn bar_arrive(&mut self, cta: usize, warp: u32, id: usize) {
        if !self.off() {
            let known = self.known(cta, warp);
            self.bars.entry((cta, id)).or_default().now |= known;
        }
    }

    /// All have arrived.
    pub fn bar_complete(&mut self, cta: usize, id: usize) {
        if let Some(heard) = self.bars.get_mut(&(cta, id)) {
            heard.done = heard.now;
        }
    }

    /// A warp continues after a barrier of its CTA.
    pub fn bar_wait(&mut self, cta: usize, warp: u32, id: usize) {
        if let Some(heard) = self.bars.get(&(cta, id)).copied() {
            self.learn(cta, warp, heard.done);
        }
    }

    /// A thread, or what it issued, arrives at an mbarrier.
    pub fn mbar_arrive(&mut self, mbar: (usize, u32), from: Origin) {
        if !self.off() {
            let known = self.known(from.cta as usize, from.warp);
            self.mbars.entry(mbar).or_default().now |= known;
        }
    }

    /// A phase of an mbarrier completes.
    pub fn mbar_complete(&mut self, mbar: (usize, u32)) {
        if let Some(heard) = self.mbars.get_mut(&mbar) {
            heard.done = heard.now;
        }
    }

    /// A wait for an mbarrier is over.
    pub fn mbar_wait(&mut self, mbar: (usize, u32), warp: u32) {
        if let Some(heard) = self.mbars.get(&mbar).copied() {
            self.learn(mbar.0, warp, heard.done);
        }
    }

    /// Whether the `index`-th allocation of a CTA can go on.
    pub fn ready(&self, cta: usize, index: usize) -> bool {
        let granted = self.grants[cta / 2].len();
        match cta % 2 {
            0 => granted == index && self.ctas[cta + 1].allocs.len() > index,
            _ => granted > index,
        }
    }

    /// The description of what a warp waits for.
    pub fn describe(&self, cta: usize, index: usize) -> String {
        let peer = cta ^ 1;
        format!(
            "waits until CTA {peer} of the cluster executes tcgen05.alloc.cta_group::2, too: it has done so {} times, this CTA {}",
            self.ctas[peer].allocs.len(),
            index + 1
        )
    }
}

impl Cluster<'_> {
    /// The other CTA of the pair; a finding if there is none.
    pub(super) fn peer(&mut self, c: usize, at: Origin) -> Option<usize> {
        if self.ctas.len() > c ^ 1 {
            return Some(c ^ 1);
        }
        let n = self.ctas.len();
        let text = format!("cta_group::2 needs a pair of CTAs in one cluster; this cluster has {n}");
        self.report(FindingKind::Unsupported, at, text);
        None
    }

    /// `tcgen05.alloc.cta_group::2` of `columns` columns, whose address goes to offset `slot`: the address once both CTAs
    /// have it.
    pub(super) fn pair_alloc(
        &mut self,
        x: Ctx,
        w: &Warp,
        at: Origin,
        (columns, slot): (u32, u32),
    ) -> Result<u32, Flow> {
        let Some(peer) = self.peer(x.c, at) else { return Err(Flow::Stop) };
        let index = match self.pairs.ctas[x.c].allocs.iter().position(|a| a.at.warp == w.index && !a.done) {
            Some(index) => index,
            None => {
                if let Err(e) = self.ctas[x.c].tmem.may_alloc(columns) {
                    self.tmem_error(at, "tcgen05.alloc", e);
                    return Err(Flow::Stop);
                }
                self.pairs.ctas[x.c].allocs.push(Alloc { at, done: false });
                self.progress += 1;
                let index = self.pairs.ctas[x.c].allocs.len() - 1;
                // A question of order: it depends on when the peer starts, and the values do not show it.
                let tracked = self.tracker.is_some();
                if tracked && index == 0 && self.pairs.known(x.c, w.index) >> peer & 1 == 0 {
                    self.alloc_before_peer(at, peer);
                }
                index
            }
        };
        let even = x.c.is_multiple_of(2);
        let (granted, others) = (self.pairs.grants[x.c / 2].len(), self.pairs.ctas[peer].allocs.len());
        let early = self.run.options.schedule == Schedule::Early;
        let wait = if even { granted < index || !early && others <= index } else { granted <= index };
        if wait {
            return Err(Flow::Wait(Wait::Pair { index }));
        }
        if even {
            let [a, b] = &mut self.ctas[x.c..x.c + 2] else { return Err(Flow::Stop) };
            match Tmem::alloc_pair(&mut a.tmem, &mut b.tmem, columns) {
                Ok(Some(address)) => {
                    self.pairs.grants[x.c / 2].push(Grant { address, columns, slot });
                    for cta in [x.c, peer] {
                        self.track_alloc(x, w, cta, address & 0xffff, columns);
                    }
                }
                Ok(None) => return Err(Flow::Wait(Wait::Tmem { frees: self.ctas[x.c].tmem_frees })),
                Err(e) => {
                    self.tmem_error(at, "tcgen05.alloc", e);
                    return Err(Flow::Stop);
                }
            }
        }
        let grant = self.pairs.grants[x.c / 2][index];
        if !even && (grant.columns != columns || grant.slot != slot) {
            let text = if grant.columns == columns {
                format!(
                    "the address goes to shared offset {slot:#x} here and to {:#x} in CTA {peer} of the cluster: as ptxas assembles \
                     tcgen05.alloc.cta_group::2, the even CTA writes both, at the same offset",
                    grant.slot
                )
            } else {
                format!(
                    "{columns} columns are asked for here and {} by CTA {peer} of the cluster: both CTAs of a pair name the same \
                     count",
                    grant.columns
                )
            };
            self.report(FindingKind::TmemPairMismatch, at, text);
        }
        self.pairs.ctas[x.c].allocs[index].done = true;
        // The odd CTA has waited for the even one, and the even one for the odd one where it had to.
        if !even || self.pairs.ctas[peer].allocs.len() > index {
            self.pairs.learn(x.c, w.index, 1 << peer);
        }
        self.progress += 1;
        Ok(grant.address)
    }

    #[cold]
    fn alloc_before_peer(&mut self, at: Origin, peer: usize) {
        let text = format!(
            "nothing has shown this warp that CTA {peer} of the cluster runs: the issuing warp must make sure of it (PTX ISA, \
             tcgen05.alloc), or the kernel may hang; put a wait at the cluster barrier before it, relaxed will do"
        );
        self.report(FindingKind::PairAllocBeforePeer, at, text);
    }

    /// Records that one CTA has executed `tcgen05.dealloc.cta_group::2`.
    pub(super) fn pair_freed(&mut self, c: usize, at: Origin, address: u32, columns: u32) {
        if let Some(done) = self.pairs.ctas.get_mut(c) {
            done.frees.push((at, address, columns));
        }
        if let Some(peer) = self.ctas.get_mut(c ^ 1) {
            peer.tmem_frees += 1;
        }
    }

    /// `tcgen05.relinquish_alloc_permit.cta_group::2` of one CTA.
    pub(super) fn pair_relinquished(&mut self, c: usize, at: Origin) {
        if let Some(done) = self.pairs.ctas.get_mut(c) {
            done.relinquished.get_or_insert(at);
        }
    }

    /// Checks after the last thread: reports operations that only one CTA of a pair executed.
    pub(super) fn pairs_finish(&mut self) {
        let mut alone = Vec::new();
        for (c, own) in self.pairs.ctas.iter().enumerate() {
            let Some(other) = self.pairs.ctas.get(c ^ 1) else { continue };
            if let Some(a) = own.allocs.get(other.allocs.len()) {
                alone.push((a.at, "alloc"));
            }
            if let (Some(at), None) = (own.relinquished, other.relinquished) {
                alone.push((at, "relinquish_alloc_permit"));
            }
            let mut rest: Vec<(u32, u32)> = other.frees.iter().map(|&(_, a, n)| (a, n)).collect();
            for &(at, address, columns) in &own.frees {
                match rest.iter().position(|&r| r == (address, columns)) {
                    Some(i) => drop(rest.swap_remove(i)),
                    None => alone.push((at, "dealloc")),
                }
            }
        }
        for (at, what) in alone {
            self.alone(at, what);
        }
    }

    #[cold]
    fn alone(&mut self, at: Origin, what: &str) {
        let peer = at.cta ^ 1;
        let text = format!(
            "CTA {peer} of the cluster does not execute this tcgen05.{what}.cta_group::2: a warp of each CTA of the pair must (PTX \
             ISA, tcgen05 issue granularity)"
        );
        self.report(FindingKind::TmemPairMismatch, at, text);
    }

    /// At a deadlock: reports each `alloc` that waits for the other CTA.
    pub(super) fn pairs_stuck(&mut self) {
        let mut stuck = Vec::new();
        for (c, cta) in self.ctas.iter().enumerate() {
            for g in cta.warps.iter().flatten().flat_map(|w| &w.groups) {
                if let Wait::Pair { index } = g.wait
                    && self.pairs.ctas[c ^ 1].allocs.len() <= index
                {
                    stuck.push(self.pairs.ctas[c].allocs[index].at);
                }
            }
        }
        for at in stuck {
            self.alone(at, "alloc");
        }
    }
}
