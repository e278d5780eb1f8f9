//! Happens-before tracking: which accesses are ordered by the kernel's own synchronisation.
//!
//! Whatever the schedule did, two accesses to the same bytes of which one writes are a race unless one
//! comes before the other by program order and synchronisation. Epochs are kept instead of full
//! clocks for past accesses, as in FastTrack (Flanagan and Freund, PLDI 2009).
//!
//! - this file: units, what synchronisation carries
//! - `clock`: vector clocks
//! - `shadow`: past accesses by granule
//! - `judge`: whether two accesses are ordered, and what is missing when they are not
//! - `phases`: what mbarriers carry; `lives`: their ends; `peers`: arrivals at a CTA that exits
//! - `world`: races in global memory between clusters
//! - `track`: where execution meets the tracker
//!
//! Units of the clock, each with a counter (W warps in the cluster):
//!
//! | component | counts | seen by others through |
//! |---|---|---|
//! | warp | releases, fences and asynchronous issues | release and acquire |
//! | tensor pipe of a warp | `tcgen05.mma`, `cp`, `shift` that it issued | `tcgen05.commit` |
//! | loads, stores of a warp | `tcgen05.ld`, `st` | `wait::ld`, `wait::st`, then `fence::before_thread_sync` |
//! | bulk reads, bulk writes of a warp | its bulk groups | `wait_group.read`, `wait_group` |
//! | small copies of a warp | its `cp.async` groups | `cp.async.wait_group`, `cp.async.mbarrier.arrive` |
//! | `wgmma` of a warp | its `wgmma` groups | `wgmma.wait_group` of any warp of its warpgroup |
//! | an mbarrier | its phases | a wait for the phase that counted the copy's bytes |
//! | a lane of a warp | as the warp | an arrival, or an asynchronous operation, of that lane alone |
//!
//! A warp is one unit, but for what its lanes did since they last met: at `bar.warp.sync`, at a barrier of the CTA or the
//! cluster, or at an mbarrier where all arrived. An arrival of one lane speaks for the others up to there only. That lanes
//! execute an instruction together, as `.sync.aligned` has it, orders none of their accesses (ISA, memory consistency
//! model: barriers, mbarriers and fences do); nor do votes and shuffles. Strong accesses to flags speak for the whole warp,
//! which misses races. An explicit `.cta` orders no threads of other CTAs, an explicit `.cluster` none of other clusters; where no scope is
//! written it is taken to be wide enough.

pub(super) mod clock;
pub(super) mod judge;
mod lives;
mod peers;
mod phases;
pub(super) mod shadow;
pub(super) mod track;
pub(super) mod world;

use crate::program::Scope;
use clock::{Clock, View};
use judge::Found;
pub(super) use phases::Released;
pub(super) use shadow::Nature;
use shadow::{Cell, SEVERAL};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a granule of shared and global memory.
const GRANULE: u32 = 16;

/// Kinds of components of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Warp = 0,
    Pipe = 1,
    Load = 2,
    Store = 3,
    BulkRead = 4,
    BulkWrite = 5,
    Small = 6,
    Wgmma = 7,
}

const UNITS: usize = 8;

/// The unit and warp of a component in a cluster of `warps` warps; `None` for an mbarrier or a lane.
fn unit(component: u16, warps: usize) -> Option<Unit> {
    const ALL: [Unit; UNITS] = [
        Unit::Warp,
        Unit::Pipe,
        Unit::Load,
        Unit::Store,
        Unit::BulkRead,
        Unit::BulkWrite,
        Unit::Small,
        Unit::Wgmma,
    ];
    ALL.get(component as usize / warps).copied()
}

/// State that an asynchronous operation takes from its issuing thread.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub agent: u16,
    pub lane: u8,
    pub beat: u32,
    /// Count of the operation, or of its group, in the component that it belongs to.
    pub clock: u32,
    pub view: Arc<View>,
}

/// An access about to be made.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub agent: u16,
    pub lane: u8,
    pub beat: u32,
    pub component: u16,
    pub clock: u32,
    pub line: u32,
    pub nature: Nature,
    /// The events ordered before it; `None` stands for those ordered before its warp now.
    pub view: Option<Arc<View>>,
}

/// The clocks of a warp.
#[derive(Debug, Default)]
struct Thread {
    view: View,
    /// What a relaxed release publishes: the view at the last fence, and at the last fence with a scope wider than
    /// the CTA.
    fenced: [Option<Arc<View>>; 2],
    /// What relaxed acquires observed, until the next fence: within the CTA, and beyond.
    unacquired: [View; 2],
    /// The CTA's events at the last cluster barrier, released or not.
    met_here: Clock,
    /// Number of synchronisations of its lanes, and the warp's count at the last one.
    beat: u32,
    met: u32,
    issued: u32,
    loads: u32,
    stores: u32,
    /// Counts of tensor-memory loads that an arrival at an mbarrier announced before their wait.
    early: HashSet<u32>,
}

/// A synchronisation object: an mbarrier, a named barrier of a CTA, or the cluster barrier.
#[derive(Debug, Default)]
struct Sync {
    /// Released so far.
    current: View,
    /// The view released when the last phase completed.
    done: View,
}

/// The part of an mbarrier's record that outlives it.
#[derive(Debug, Default)]
struct MbarSync {
    component: u16,
    /// Warp, count and line of its initialisation.
    init: (u16, u32, u32),
    /// Phases of earlier lives at the same place, and of all lives.
    base: u32,
    top: u32,
    sync: Sync,
    /// Releases by threads of other CTAs.
    remote: Sync,
}

/// A synchronisation: relaxed or not, and whether it reaches beyond the CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strength {
    pub relaxed: bool,
    pub wide: bool,
}

impl Strength {
    pub fn new(relaxed: bool, scope: Scope) -> Self {
        Strength { relaxed, wide: scope != Scope::Cta }
    }
}

/// The tracker of one cluster.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// Warps of a CTA.
    per_cta: usize,
    threads: Vec<Thread>,
    smem: Vec<Vec<Cell>>,
    /// By CTA: column `c` of quarter `q` at `512 q + c`.
    tmem: Vec<Vec<Cell>>,
    global: HashMap<u64, Cell>,
    mbars: HashMap<(usize, u32), MbarSync>,
    mbar_uses: HashMap<(usize, u32), Vec<lives::Use>>,
    /// Arrivals from other CTAs that no thread has waited for.
    arrivals: HashMap<(usize, u32), Vec<peers::Arrival>>,
    /// By warp: lanes that announced something alone, with their components.
    lanes: Vec<Vec<(u8, u16)>>,
    /// Components of mbarriers and of lanes.
    extra: u16,
    bars: HashMap<(usize, usize), Sync>,
    cluster: Sync,
    /// By CTA: the events of its warps that are at the cluster barrier, now and at the last one.
    here: Vec<[Clock; 2]>,
    /// Flags and semaphores by address; shared ones by `rank << 24 | offset`. For each the view released beyond the
    /// CTA, and for each CTA the view that its own threads released.
    flags: HashMap<u64, View>,
    own_flags: HashMap<(u64, usize), View>,
    /// Whether strict tracking is on.
    strict: bool,
    /// Among other clusters; `None` if there are none.
    pub own_world: Option<world::Own>,
    /// Warp and count of the last `tcgen05.alloc` of a CTA, and its line.
    allocs: Vec<Option<(u16, u32, u32)>>,
    /// Whether fences of `tcgen05` are required.
    fences: bool,
    /// The copy that is being performed.
    pub performing: Option<Issue>,
    found: Vec<Found>,
    seen: HashSet<(crate::finding::FindingKind, u32, u32)>,
}

impl Tracker {
    /// Host memory for the tracker of one cluster in bytes: past accesses, and clocks that refer to each other.
    pub fn bytes(ctas: u64, per_cta: u64, smem: u32) -> u64 {
        let cells = u64::from(smem.div_ceil(GRANULE)) + 4 * 512;
        let threads = ctas * per_cta;
        // One past access a granule, and four clocks a warp, each of all components.
        let past = (size_of::<Cell>() + size_of::<shadow::Past>()) as u64;
        ctas * cells * past + 4 * threads * threads * UNITS as u64 * 4
    }

    pub fn new(ctas: usize, per_cta: usize, smem: u32, fences: bool, strict: bool) -> Self {
        let mut t = Tracker {
            per_cta,
            threads: (0..ctas * per_cta).map(|_| Thread::default()).collect(),
            smem: vec![vec![Cell::default(); smem.div_ceil(GRANULE) as usize + 1]; ctas],
            tmem: vec![Vec::new(); ctas],
            global: HashMap::new(),
            mbars: HashMap::new(),
            mbar_uses: HashMap::new(),
            arrivals: HashMap::new(),
            lanes: vec![Vec::new(); ctas * per_cta],
            extra: 0,
            bars: HashMap::new(),
            cluster: Sync::default(),
            here: vec![<[Clock; 2]>::default(); ctas],
            flags: HashMap::new(),
            own_flags: HashMap::new(),
            strict,
            own_world: None,
            allocs: vec![None; ctas],
            fences,
            performing: None,
            found: Vec::new(),
            seen: HashSet::new(),
        };
        for i in 0..t.threads.len() {
            t.tick(i as u16);
        }
        t
    }

    pub fn agent(&self, cta: usize, warp: u32) -> u16 {
        (cta * self.per_cta + warp as usize) as u16
    }

    /// CTA and warp of an agent.
    pub fn place(&self, agent: u16) -> (usize, u32) {
        (agent as usize / self.per_cta, (agent as usize % self.per_cta) as u32)
    }

    pub fn component(&self, agent: u16, unit: Unit) -> u16 {
        (unit as usize * self.threads.len()) as u16 + agent
    }

    /// Creates a component beyond those of the warps.
    fn another(&mut self) -> u16 {
        self.extra += 1;
        (UNITS * self.threads.len()) as u16 + self.extra - 1
    }

    /// A warp's view as one of its lanes announces it: what the other lanes did only up to their last
    /// synchronisation.
    fn of_lane(&mut self, agent: u16, lane: u8, view: View) -> View {
        let known = self.lanes[agent as usize].iter().find(|(l, _)| *l == lane).map(|&(_, c)| c);
        let component = known.unwrap_or_else(|| {
            let c = self.another();
            self.lanes[agent as usize].push((lane, c));
            c
        });
        view.of_lane(self.component(agent, Unit::Warp), self.threads[agent as usize].met, component)
    }

    /// The unit of a component; `None` for an mbarrier or a lane.
    fn unit(&self, component: u16) -> Option<Unit> {
        unit(component, self.threads.len())
    }

    /// Ends an epoch of a warp, so that later events are distinct from earlier ones.
    fn tick(&mut self, agent: u16) {
        let c = self.component(agent, Unit::Warp);
        let all = &mut self.threads[agent as usize].view.all;
        all.raise(c, all.get(c) + 1);
    }

    /// An access of a warp itself.
    pub fn own(&self, agent: u16, lane: u8, line: u32, nature: Nature) -> Access {
        let component = self.component(agent, Unit::Warp);
        let clock = self.threads[agent as usize].view.all.get(component);
        let beat = self.threads[agent as usize].beat;
        Access { agent, lane, beat, component, clock, line, nature, view: None }
    }

    /// Records that lanes of a warp have synchronised.
    pub fn lanes_met(&mut self, agent: u16) {
        let c = self.component(agent, Unit::Warp);
        let t = &mut self.threads[agent as usize];
        t.beat += 1;
        t.met = t.view.all.get(c);
        self.tick(agent);
    }

    /// The order of an asynchronous operation that one lane or the whole warp issues.
    pub fn issue(&mut self, agent: u16, lane: u8, clock: u32) -> Issue {
        let beat = self.threads[agent as usize].beat;
        let view = self.threads[agent as usize].view.clone();
        let view = if lane < SEVERAL { self.of_lane(agent, lane, view) } else { view };
        self.issue_with(agent, (lane, beat), clock, view)
    }

    /// As [`Tracker::issue`], for copies that every lane issues for itself.
    pub fn issue_own(&mut self, agent: u16, lane: u8, clock: u32) -> Issue {
        let Thread { beat, view, .. } = &self.threads[agent as usize];
        self.issue_with(agent, (lane, *beat), clock, view.clone())
    }

    fn issue_with(&mut self, agent: u16, (lane, beat): (u8, u32), clock: u32, view: View) -> Issue {
        let view = Arc::new(view);
        self.tick(agent);
        Issue { agent, lane, beat, clock, view }
    }

    /// As [`Tracker::issue`], for the tensor pipe. A commit counts no operation.
    pub fn issue_pipe(&mut self, agent: u16, lane: u8, commit: bool) -> Issue {
        let t = &mut self.threads[agent as usize];
        t.issued += u32::from(!commit);
        let n = t.issued;
        self.issue(agent, lane, n)
    }

    /// `fence.proxy.async`: what came before is visible to the async proxy.
    pub fn proxy_fence(&mut self, agent: u16) {
        let v = &mut self.threads[agent as usize].view;
        v.proxied.join(&v.all);
        v.inits.join(&v.all);
        self.tick(agent);
    }

    /// `fence.mbarrier_init`.
    pub fn init_fence(&mut self, agent: u16) {
        let v = &mut self.threads[agent as usize].view;
        v.inits.join(&v.all);
        self.tick(agent);
    }

    /// `fence.acq_rel`, `fence.sc`, `membar`.
    pub fn thread_fence(&mut self, agent: u16, scope: Scope) {
        let t = &mut self.threads[agent as usize];
        let wide = scope != Scope::Cta;
        for late in t.unacquired.iter_mut().take(1 + usize::from(wide)) {
            t.view.hear(&std::mem::take(late));
        }
        t.view.inits.join(&t.view.all);
        let view = Arc::new(t.view.clone());
        if wide {
            t.fenced[1] = Some(view.clone());
        }
        t.fenced[0] = Some(view);
        self.tick(agent);
        if let Some(own) = self.own_world.as_mut().filter(|_| scope.abroad()) {
            own.fence(agent);
        }
    }

    /// `tcgen05.fence::before_thread_sync`.
    pub fn fence_before(&mut self, agent: u16) {
        let own = [Unit::Load, Unit::Store].map(|u| self.component(agent, u));
        let v = &mut self.threads[agent as usize].view;
        for c in own {
            // Only what wait::ld and wait::st have completed.
            v.heard.raise(c, v.all.get(c));
        }
    }

    /// `tcgen05.fence::after_thread_sync`.
    pub fn fence_after(&mut self, agent: u16) {
        let v = &mut self.threads[agent as usize].view;
        v.tensor.join(&v.heard);
    }

    /// `tcgen05.wait::ld` or `::st`.
    pub fn tensor_wait(&mut self, agent: u16, load: bool) {
        let c = self.component(agent, if load { Unit::Load } else { Unit::Store });
        let t = &mut self.threads[agent as usize];
        t.view.all.raise(c, if load { t.loads } else { t.stores });
    }

    /// Completes the first `count` tensor-memory loads of a warp.
    pub fn tensor_done(&mut self, agent: u16, count: u32) {
        let c = self.component(agent, Unit::Load);
        self.threads[agent as usize].view.all.raise(c, count);
    }

    /// Records that a thread arrives at an mbarrier after a tensor-memory load that it has not waited for.
    pub fn announced_early(&mut self, agent: u16, load: u32) {
        self.threads[agent as usize].early.insert(load);
    }

    /// A wait for groups of asynchronous copies: all but the last `groups` of `committed` are complete.
    pub fn group_wait(&mut self, agent: u16, unit: Unit, committed: u32, groups: u32) {
        let c = self.component(agent, unit);
        self.threads[agent as usize].view.all.raise(c, committed.saturating_sub(groups));
    }

    /// `wgmma.wait_group`: this many groups of the warpgroup are complete, in all of its warps.
    pub fn warpgroup_wait(&mut self, agent: u16, complete: u32) {
        let warp = self.place(agent).1;
        let first = agent - (warp % 4) as u16;
        let last = (first + 4).min(agent + (self.per_cta as u32 - warp) as u16);
        for other in first..last {
            let c = self.component(other, Unit::Wgmma);
            self.threads[agent as usize].view.all.raise(c, complete);
        }
    }

    /// The components of units that work on tensor memory.
    fn tensor_units(&self) -> Range<usize> {
        let n = self.threads.len();
        Unit::Pipe as usize * n..(Unit::Store as usize + 1) * n
    }

    /// The view that a release publishes. `beyond` says that the receiving threads are in other CTAs. Relaxed
    /// synchronisation orders execution, and with it accesses to tensor memory, which has no caches that a release
    /// would have to pass.
    fn release_to(thread: &Thread, relaxed: bool, beyond: bool, to: &mut View, tensor: Range<usize>) {
        if !relaxed {
            to.hear(&thread.view);
        } else if let Some(f) = &thread.fenced[usize::from(beyond)] {
            to.hear(f);
        }
        if relaxed {
            to.all.join_part(&thread.view.all, tensor);
            to.heard.join(&thread.view.heard);
        }
        to.inits.join(&thread.view.inits);
    }

    fn acquire_from(thread: &mut Thread, relaxed: bool, beyond: bool, from: &View, tensor: Range<usize>) {
        if relaxed {
            thread.unacquired[usize::from(beyond)].hear(from);
            thread.view.all.join_part(&from.all, tensor);
            thread.view.heard.join(&from.heard);
            thread.view.inits.join(&from.inits);
        } else {
            thread.view.hear(from);
        }
    }

    pub fn bar_release(&mut self, agent: u16, at: (usize, usize)) {
        let tensor = self.tensor_units();
        let s = self.bars.entry(at).or_default();
        Self::release_to(&self.threads[agent as usize], false, false, &mut s.current, tensor);
        self.tick(agent);
    }

    pub fn bar_complete(&mut self, at: (usize, usize)) {
        if let Some(s) = self.bars.get_mut(&at) {
            s.done = std::mem::take(&mut s.current);
        }
    }

    pub fn bar_acquire(&mut self, agent: u16, at: (usize, usize)) {
        let tensor = self.tensor_units();
        if let Some(s) = self.bars.get(&at) {
            Self::acquire_from(&mut self.threads[agent as usize], false, false, &s.done, tensor);
        }
    }

    pub fn cluster_release(&mut self, agent: u16, relaxed: bool) {
        let tensor = self.tensor_units();
        Self::release_to(&self.threads[agent as usize], relaxed, true, &mut self.cluster.current, tensor);
        self.here[agent as usize / self.per_cta][0].join(&self.threads[agent as usize].view.all);
        self.arrivals_before_barrier(agent);
        self.tick(agent);
    }

    pub fn cluster_complete(&mut self) {
        self.cluster.done = std::mem::take(&mut self.cluster.current);
        for [current, done] in &mut self.here {
            *done = std::mem::take(current);
        }
        self.arrivals_barrier_complete();
    }

    pub fn cluster_acquire(&mut self, agent: u16) {
        let tensor = self.tensor_units();
        Self::acquire_from(&mut self.threads[agent as usize], false, true, &self.cluster.done, tensor);
        self.threads[agent as usize].met_here.join(&self.here[agent as usize / self.per_cta][1]);
        self.arrivals_passed_barrier(agent);
    }

    /// Records a strong access to a flag, with its release and acquire.
    pub fn flag(&mut self, agent: u16, at: u64, [write, read]: [bool; 2], relaxed: [bool; 2], wide: bool) {
        let cta = agent as usize / self.per_cta;
        let tensor = self.tensor_units();
        let t = &mut self.threads[agent as usize];
        let common = self.flags.entry(at).or_default();
        let own = self.own_flags.entry((at, cta)).or_default();
        if read {
            Self::acquire_from(t, relaxed[0], false, own, tensor.clone());
            if wide {
                Self::acquire_from(t, relaxed[0], true, common, tensor.clone());
            }
        }
        if write {
            Self::release_to(t, relaxed[1], false, own, tensor.clone());
            if wide {
                Self::release_to(t, relaxed[1], true, common, tensor);
            }
            self.tick(agent);
        }
    }
}
