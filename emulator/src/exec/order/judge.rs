//! Decides whether two accesses are ordered, and what is missing if not.

use super::clock::{Clock, View};
use super::shadow::{Cell, Past, SEVERAL, WHOLE};
use super::world::{Act, World};
use super::{Access, GRANULE, Issue, Thread, Tracker, Unit, unit};
use crate::finding::FindingKind;

/// The memory of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    Shared(usize, u32),
    Tensor(usize, u32, u32),
    Global(u64),
    /// Global memory that another cluster of the grid accessed.
    Abroad(u64, u32),
    Mbar(usize, u32),
    Alloc(usize),
    /// Shared memory of a CTA that has exited.
    Exit(usize, u32),
}

/// Two unordered accesses.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub kind: FindingKind,
    pub region: Region,
    pub agent: u16,
    pub line: u32,
    pub old_agent: u16,
    pub old_line: u32,
    pub text: &'static str,
}

/// The kind of order that is missing between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Order,
    /// The lane that announced the access did not synchronise with the lane that made it.
    Unmet,
    Lanes,
    ProxyFence,
    FenceBefore,
    FenceAfter,
}

fn view<'a>(a: &'a Access, threads: &'a [Thread]) -> &'a View {
    match &a.view {
        Some(v) => v,
        None => &threads[a.agent as usize].view,
    }
}

/// For the warp of a past access: lanes that announced something alone, and its count when all lanes last
/// synchronised.
#[derive(Clone, Copy)]
struct Lanes<'a> {
    alone: &'a [(u8, u16)],
    met: u32,
}

impl Lanes<'_> {
    /// How many lanes that can speak for `lane` have announced a count alone.
    fn said(self, clock: &Clock, lane: u8, count: u32) -> usize {
        let speaks = |l: u8| l == lane || lane >= SEVERAL;
        self.alone.iter().filter(|&&(l, c)| speaks(l) && clock.has(c, count)).count()
    }

    /// Whether lanes have announced what `lane` did: one lane for itself or for an instruction of all lanes, several
    /// lanes for several.
    fn speak(self, clock: &Clock, lane: u8, count: u32) -> bool {
        self.said(clock, lane, count) > usize::from(lane == SEVERAL)
    }
}

/// Decides the order of accesses to shared and global memory. `lanes` is given if the past access was a warp's own;
/// `met` is what a relaxed cluster barrier has ordered, if that is enough.
fn bytes(old: &Past, a: &Access, v: &View, lanes: Option<Lanes<'_>>, met: Option<&Clock>) -> Option<Missing> {
    let before = |clock: &Clock| {
        clock.has(old.component, old.clock) || lanes.is_some_and(|l| l.speak(clock, old.lane, old.clock))
    };
    // Within one instruction any lane may win.
    let own = old.agent == a.agent && lanes.is_some();
    let apart = old.lane <= SEVERAL && a.lane < SEVERAL && old.lane != a.lane && old.line != a.line;
    if !before(&v.all) && !met.is_some_and(before) {
        return match lanes {
            Some(_) if own && !apart => None,
            Some(_) if own => Some(Missing::Lanes),
            Some(l) if l.said(&v.all, SEVERAL, old.clock) > 0 => Some(Missing::Unmet),
            _ => Some(Missing::Order),
        };
    }
    // Other lanes of the warp, without a synchronisation since.
    if let Some(l) = lanes
        && own
        && apart
        && old.clock > l.met
        && !l.speak(&v.all, old.lane, old.clock)
    {
        return Some(Missing::Lanes);
    }
    // A write of the generic proxy reaches the async proxy through a fence. A read needs none: its
    // value is in a register when the thread goes on.
    let crosses = old.nature.write && !old.nature.proxy && a.nature.proxy;
    (crosses && !before(&v.proxied)).then_some(Missing::ProxyFence)
}

/// Whether an access of a whole warp is ordered before, or one of its lanes may have announced it alone.
pub(super) fn whole(alone: &[(u8, u16)], clock: &Clock, component: u16, count: u32) -> bool {
    clock.has(component, count) || alone.iter().any(|&(_, c)| clock.has(c, count))
}

/// How accesses to tensor memory are judged.
#[derive(Clone, Copy)]
struct Fences {
    /// Whether fences of `tcgen05` are required.
    asked: bool,
    strict: bool,
    /// Warps of the cluster.
    warps: usize,
    /// Whether the past access is a load that was published before its wait.
    early: bool,
}

/// Decides the order of accesses to tensor memory.
fn tensor(old: &Past, a: &Access, v: &View, alone: &[(u8, u16)], fences: Fences) -> Option<Missing> {
    let of_pipe = |component| unit(component, fences.warps) == Some(Unit::Pipe);
    // Operations of one thread on the tensor core are a pipeline.
    if old.component == a.component && of_pipe(a.component) {
        return None;
    }
    if !whole(alone, &v.all, old.component, old.clock) {
        return Some(Missing::Order);
    }
    // What a commit or a wait::ld stands for is done: published kernels that run on hardware have no fence behind them.
    // A store is asked for its fences, and so is a load that an arrival came before the wait of.
    let done = of_pipe(old.component) || !old.nature.write && !fences.early;
    if done && !fences.strict {
        return None;
    }
    if old.agent == a.agent || !fences.asked || a.nature.free || v.tensor.has(old.component, old.clock) {
        return None;
    }
    Some(if v.heard.has(old.component, old.clock) { Missing::FenceAfter } else { Missing::FenceBefore })
}

/// The lanes of the warp that made a past access by itself.
fn lanes_of<'a>(lanes: &'a [Vec<(u8, u16)>], threads: &[Thread], old: &Past) -> Option<Lanes<'a>> {
    let own = (old.component as usize) < threads.len();
    own.then(|| Lanes { alone: &lanes[old.agent as usize], met: threads[old.agent as usize].met })
}

impl Tracker {
    /// An access to shared memory.
    pub fn shared(&mut self, cta: usize, offset: u32, n: u32, a: &Access) {
        let end = offset.saturating_add(n);
        let mut at = offset;
        while at < end {
            let granule = at / GRANULE;
            let stop = end.min((at | (GRANULE - 1)).saturating_add(1));
            let mask = span(at % GRANULE, stop - at);
            // Kernels that run on hardware wait for cp.async, meet at a barrier and multiply, with no fence.
            let lenient = !self.strict && self.unit(a.component) == Some(Unit::Pipe);
            let Tracker { smem, threads, lanes, strict, per_cta, .. } = self;
            let v = view(a, threads);
            let of = |old: &Past| lanes_of(lanes, threads, old);
            let here = |agent: u16| agent as usize / *per_cta == cta;
            let thread = !*strict && a.view.is_none() && !a.nature.proxy && here(a.agent);
            // Kernels that run on hardware meet at a relaxed barrier of the cluster and go on with what their own CTA has stored.
            let met = |old: &Past| {
                let stored = old.nature.write && !old.nature.proxy && here(old.agent);
                (thread && stored).then(|| &threads[a.agent as usize].met_here)
            };
            let mut bad = None;
            let Some(cell) = smem.get_mut(cta).and_then(|s| s.get_mut(granule as usize)) else { return };
            // What the generic proxy has read back is in memory: a write of the async proxy comes after.
            let settled = if a.nature.write && a.nature.proxy { cell.observed() } else { 0 };
            cell.access(a.past(mask), |old| {
                // The address of tensor memory has been read and is not needed when kernels copy over it.
                let stale = old.mask & mask & !settled == 0 || old.nature.address && !*strict;
                let copied = lenient && unit(old.component, threads.len()) == Some(Unit::Small);
                if let Some(m) = bytes(old, a, v, of(old), met(old))
                    && !(m == Missing::ProxyFence && (stale || copied))
                {
                    bad = Some((*old, m));
                }
            });
            if let Some((old, m)) = bad {
                self.conflict(Region::Shared(cta, at), &old, a, m);
            }
            at = stop;
        }
    }

    /// Checks an access to global memory. Reads of the async proxy are not recorded: there are many, and their data
    /// is seldom written in the same kernel.
    pub fn global(&mut self, address: u64, n: u32, a: &Access) {
        let keep = a.nature.write || !a.nature.proxy;
        if !keep && self.global.is_empty() {
            return;
        }
        let end = address.saturating_add(u64::from(n));
        let mut at = address;
        while at < end {
            let granule = at / u64::from(GRANULE);
            let stop = end.min((at | u64::from(GRANULE - 1)).saturating_add(1));
            let mask = span((at % u64::from(GRANULE)) as u32, (stop - at) as u32);
            let Tracker { global, threads, lanes, .. } = self;
            let v = view(a, threads);
            let mut bad = None;
            let check = |old: &Past| {
                if let Some(m) = bytes(old, a, v, lanes_of(lanes, threads, old), None) {
                    bad = Some((*old, m));
                }
            };
            if keep {
                global.entry(granule).or_default().access(a.past(mask), check);
            } else if let Some(cell) = global.get(&granule) {
                cell.clone().access(a.past(mask), check);
            }
            if let Some((old, m)) = bad {
                self.conflict(Region::Global(at), &old, a, m);
            }
            at = stop;
        }
    }

    /// An access to columns of tensor memory: the same lanes of each quarter in `quarters`.
    pub fn tensor(
        &mut self,
        cta: usize,
        quarters: u32,
        lanes: u32,
        columns: std::ops::Range<u32>,
        a: &Access,
    ) {
        if self.tmem[cta].is_empty() {
            self.tmem[cta] = vec![Cell::default(); 2048];
        }
        let fences =
            Fences { asked: self.fences, strict: self.strict, warps: self.threads.len(), early: false };
        for q in (0..4).filter(|q| quarters >> q & 1 == 1) {
            for column in columns.start..columns.end.min(512) {
                let Tracker { tmem, threads, lanes: alone, .. } = self;
                let v = view(a, threads);
                let mut bad = None;
                tmem[cta][(512 * q + column) as usize].access(a.past(lanes), |old| {
                    // Units other than the warp itself have no lanes.
                    let own = (old.component as usize) < threads.len();
                    let alone = if own { &alone[old.agent as usize][..] } else { &[] };
                    let early = threads[old.agent as usize].early.contains(&old.clock);
                    if let Some(m) = tensor(old, a, v, alone, Fences { early, ..fences }) {
                        bad = Some((*old, m));
                    }
                });
                if let Some((old, m)) = bad {
                    self.conflict(Region::Tensor(cta, 32 * q + lanes.trailing_zeros(), column), &old, a, m);
                }
            }
        }
    }

    /// `tcgen05.ld` and `st` of a warp.
    pub fn warp_tensor(&mut self, agent: u16, line: u32, store: bool) -> Access {
        let t = &mut self.threads[agent as usize];
        let (unit, clock) = if store {
            t.stores += 1;
            (Unit::Store, t.stores)
        } else {
            t.loads += 1;
            (Unit::Load, t.loads)
        };
        let component = self.component(agent, unit);
        let nature = super::Nature { write: store, ..Default::default() };
        let lane = WHOLE;
        Access { agent, lane, beat: 0, component, clock, line, nature, view: None }
    }

    /// `tcgen05.alloc`: two warps must not allocate without an order, and the columns' history is cleared.
    pub fn alloc(&mut self, cta: usize, agent: u16, line: u32, columns: std::ops::Range<u32>) {
        let c = self.component(agent, Unit::Warp);
        let v = &self.threads[agent as usize].view;
        let now = v.all.get(c);
        if let Some((other, clock, old_line)) = self.allocs[cta]
            && !whole(&self.lanes[other as usize], &v.all, self.component(other, Unit::Warp), clock)
        {
            let text = "which warp gets which columns depends on the schedule; a barrier between them, or one warp that allocates, settles it";
            self.add(Found {
                kind: FindingKind::TmemAllocRace,
                region: Region::Alloc(cta),
                agent,
                line,
                old_agent: other,
                old_line,
                text,
            });
        }
        self.allocs[cta] = Some((agent, now, line));
        if let Some(cells) = self.tmem.get_mut(cta).filter(|t| !t.is_empty()) {
            for q in 0..4 {
                for column in columns.clone() {
                    if let Some(cell) = cells.get_mut((512 * q + column) as usize) {
                        cell.clear();
                    }
                }
            }
        }
    }

    /// Whether an mbarrier's initialisation is ordered before its use.
    pub(super) fn check_init(
        &mut self,
        agent: u16,
        at: (usize, u32),
        line: u32,
        issue: Option<&Issue>,
        engine: bool,
    ) {
        let Some(b) = self.mbars.get(&at) else { return };
        let (by, clock, old_line) = b.init;
        let c = self.component(by, Unit::Warp);
        let v = match issue {
            Some(i) => &i.view,
            None => &self.threads[agent as usize].view,
        };
        // Kernels of compilers that are known to run hand fresh barriers to the async proxy behind a
        // barrier of threads alone; strict tracking asks for the fence.
        let has = |view: &Clock| whole(&self.lanes[by as usize], view, c, clock);
        let engine = engine && self.strict && !(has(&v.inits) || has(&v.proxied));
        if !engine && (has(&v.all) || has(&v.inits)) {
            return;
        }
        let text = if has(&v.all) {
            "fence.mbarrier_init or fence.proxy.async after mbarrier.init makes it visible to the async proxy"
        } else if self.place(by).0 == self.place(agent).0 {
            "a barrier of the CTA (bar.sync) after mbarrier.init makes it visible to the other warps"
        } else {
            "fence.mbarrier_init.release.cluster and a barrier of the cluster after mbarrier.init make it visible to the other CTAs"
        };
        self.add(Found {
            kind: FindingKind::MbarrierNotVisible,
            region: Region::Mbar(at.0, at.1),
            agent,
            line,
            old_agent: by,
            old_line,
            text,
        });
    }

    /// Checks an access to global memory against other clusters.
    pub(super) fn foreign(&mut self, world: &World, address: u64, n: usize, agent: u16, act: Act<'_>) {
        let Some((cluster, old_line, at)) = self.abroad(world, address, n as u64, act) else { return };
        self.add(Found {
            kind: FindingKind::RaceGlobal,
            region: Region::Abroad(at, cluster),
            agent,
            line: act.line,
            old_agent: 0,
            old_line,
            text: "clusters run in any order; a release and an acquire of a flag with .gpu scope order them, or atomics",
        });
    }

    /// Checks after the last thread: copies to shared memory that no thread of its CTA waited for; under strict
    /// tracking also stores from there, which CUTLASS's epilogues leave under way and which are known to run; then
    /// arrivals from peers.
    pub fn exit(&mut self) {
        for cta in 0..self.smem.len() {
            let mut heard = Clock::default();
            let warps = cta * self.per_cta..(cta + 1) * self.per_cta;
            self.threads[warps.clone()].iter().for_each(|t| heard.join(&t.view.all));
            let open = |p: &&Past| {
                let copied = p.nature.write && p.nature.proxy && self.unit(p.component).is_none();
                let read = self.strict && self.unit(p.component) == Some(Unit::BulkRead);
                (copied || read) && !heard.has(p.component, p.clock)
            };
            let cells = self.smem[cta].iter().enumerate();
            let left: Vec<(u32, Past)> = cells
                .filter_map(|(i, cell)| Some((i as u32 * GRANULE, *cell.pasts().iter().find(open)?)))
                .collect();
            for (at, old) in left {
                self.add(Found {
                    kind: FindingKind::ExitDuringCopy,
                    region: Region::Exit(cta, at),
                    agent: warps.start as u16,
                    line: old.line,
                    old_agent: old.agent,
                    old_line: old.line,
                    text: match old.nature.write {
                        true => {
                            "a wait for the phase of the mbarrier that counts its bytes comes before the exit"
                        }
                        false => "cp.async.bulk.wait_group.read by its thread comes before the exit",
                    },
                });
            }
            self.exit_with_arrivals(cta, &heard);
        }
    }

    fn conflict(&mut self, region: Region, old: &Past, a: &Access, m: Missing) {
        let (kind, text) = self.explain(region, old, a, m);
        self.add(Found {
            kind,
            region,
            agent: a.agent,
            line: a.line,
            old_agent: old.agent,
            old_line: old.line,
            text,
        });
    }

    pub(super) fn add(&mut self, f: Found) {
        if self.seen.len() < 256 && self.seen.insert((f.kind, f.line, f.old_line)) {
            self.found.push(f);
        }
    }

    /// Takes the unordered pairs found so far.
    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }

    /// The kind of finding, and what usually provides the missing order.
    fn explain(&self, region: Region, old: &Past, a: &Access, m: Missing) -> (FindingKind, &'static str) {
        match m {
            Missing::Lanes => {
                return (
                    race(region, old, a),
                    "they are of different lanes of one warp; bar.warp.sync between them orders them",
                );
            }
            Missing::ProxyFence => {
                return (
                    FindingKind::MissingProxyFence,
                    "the first is of the generic proxy, the second of the async proxy; fence.proxy.async by the first thread, after its access and before the synchronisation, orders them",
                );
            }
            Missing::FenceBefore => {
                return (
                    FindingKind::MissingTcgen05Fence,
                    "tcgen05.fence::before_thread_sync by the first thread, before the synchronisation, is missing",
                );
            }
            Missing::FenceAfter => {
                return (
                    FindingKind::MissingTcgen05Fence,
                    "tcgen05.fence::after_thread_sync by the second thread, after the synchronisation, is missing",
                );
            }
            Missing::Unmet => {
                return (
                    race(region, old, a),
                    "a lane of the first warp has announced it (an arrival at an mbarrier, or a copy that arrives there), but it was another lane's; bar.warp.sync after the access and before the announcement lets one lane speak for all",
                );
            }
            Missing::Order => {}
        }
        let from = self.unit(old.component);
        let write = a.nature.write;
        match (from, region) {
            (None, _) if !old.nature.write => (
                FindingKind::SlotOverwritten,
                "the copy may still read its source; a wait for the phase of the mbarrier that counts its bytes comes first",
            ),
            (None, _) if write => (
                FindingKind::SlotOverwritten,
                "the copy may still be writing; a wait for the phase of the mbarrier that counts its bytes comes first",
            ),
            (None, _) => (
                FindingKind::MissingMbarrierWait,
                "the copy may still be in flight; a wait for the phase of the mbarrier that counts its bytes comes first (a wait may also have passed for an earlier phase)",
            ),
            (Some(Unit::Pipe), Region::Tensor(..)) => (
                FindingKind::MissingMbarrierWait,
                "the tensor core may not be done; tcgen05.commit to an mbarrier and a wait for its phase come first",
            ),
            (Some(Unit::Pipe), _) => (
                FindingKind::SlotOverwritten,
                "the tensor core may still read it; tcgen05.commit to an mbarrier and a wait for its phase come first",
            ),
            (Some(Unit::Load), _) => (
                FindingKind::MissingTmemWait,
                "the load may not be done; tcgen05.wait::ld by its warp, and synchronisation with the second warp, come first",
            ),
            (Some(Unit::Store), _) => (
                FindingKind::MissingTmemWait,
                "the store may not be done; tcgen05.wait::st by its warp, and synchronisation with the second warp, come first",
            ),
            (Some(Unit::BulkRead), _) => (
                FindingKind::SlotOverwritten,
                "the bulk store may still read it; cp.async.bulk.wait_group.read by its thread, and synchronisation, come first",
            ),
            (Some(Unit::BulkWrite), _) => (
                FindingKind::MissingCopyWait,
                "the bulk store may still be in flight; cp.async.bulk.wait_group by its thread, and synchronisation, come first",
            ),
            (Some(Unit::Small), _) => (
                FindingKind::MissingCopyWait,
                "cp.async may still be in flight; cp.async.wait_group by its thread, and synchronisation, come first",
            ),
            (Some(Unit::Wgmma), _) => (
                FindingKind::SlotOverwritten,
                "wgmma may still read it; wgmma.wait_group by its warp, and synchronisation, come first",
            ),
            (Some(Unit::Warp), Region::Shared(..)) if write && !old.nature.write => (
                FindingKind::SlotOverwritten,
                "the first warp may not have read it yet; an mbarrier or a barrier of threads between them orders them",
            ),
            (Some(Unit::Warp), Region::Tensor(..)) => {
                (FindingKind::RaceTmem, "a barrier of threads between them orders them")
            }
            (Some(Unit::Warp), Region::Global(_)) => (
                FindingKind::RaceGlobal,
                "a barrier, or a release and an acquire of a flag, between them orders them",
            ),
            (Some(Unit::Warp), _) => {
                (FindingKind::RaceShared, "an mbarrier or a barrier of threads between them orders them")
            }
        }
    }
}

/// The kind of race between two unordered accesses of threads.
fn race(region: Region, old: &Past, a: &Access) -> FindingKind {
    match region {
        Region::Global(_) => FindingKind::RaceGlobal,
        _ if a.nature.write && !old.nature.write => FindingKind::SlotOverwritten,
        _ => FindingKind::RaceShared,
    }
}

impl Access {
    fn past(&self, mask: u32) -> Past {
        Past {
            mask,
            line: self.line,
            component: self.component,
            clock: self.clock,
            agent: self.agent,
            lane: self.lane,
            beat: self.beat,
            nature: self.nature,
        }
    }
}

/// `n` bits from `first` up.
fn span(first: u32, n: u32) -> u32 {
    if n >= 32 { u32::MAX } else { ((1 << n) - 1) << first }
}
