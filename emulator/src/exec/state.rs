//! The state of a cluster: CTAs, warps, and groups of lanes that run together.

use super::Run;
use super::mbarrier::Mbar;
use super::order::{Released, Tracker, world::Own};
use super::pair::Pairs;
use super::queue::Flight;
use super::registers::SM_REGISTERS;
use super::resident::Spin;
use crate::engine::collector::Collectors;
use crate::engine::tmem::{Tmem, transfer::Transfer};
use crate::finding::{Finding, FindingKind, Stats};
use crate::lanes::Lanes;
use crate::launch::{Tracking, product};
use crate::memory::Smem;
use crate::program::{CONSTANTS, Fence, Inst, Op, Pred, Program, SINK, SMEM_BASE, Slot, Special, TRUE};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// The event that a group of lanes waits for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// A phase of an mbarrier of this CTA.
    Mbar(Suspended),
    /// The next turn of the warp.
    Turn,
    /// A generation of a named barrier.
    Bar { id: u32, generation: u64 },
    /// A phase of the cluster barrier.
    Cluster { phase: u64 },
    /// Other lanes of the warp, at the same instruction.
    Lanes { need: u32 },
    /// The other CTA of the pair, in the `index`-th allocation of this one.
    Pair { index: usize },
    /// Room in tensor memory: the count of deallocations seen.
    Tmem { frees: u64 },
    /// Bulk groups of these lanes: at most this many still pending, or still reading.
    Bulk { groups: u32, read: bool },
    /// `cp.async` groups.
    Copies { groups: u32 },
    /// This many `wgmma` groups, committed by all warps of the warpgroup.
    Warpgroup { complete: u32 },
    /// This many more registers a thread, from the CTA's pool.
    Registers { missing: u32 },
}

impl Wait {
    /// Whether there is something to wait for.
    pub fn is_some(&self) -> bool {
        !matches!(self, Wait::No)
    }
}

/// The phase that a wait asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseTest {
    /// The phase with this parity has completed.
    Parity(u32),
    /// The phase of this number has completed.
    Number(u64),
}

/// A phase of an mbarrier that lanes are suspended for. When it completes they resume, whatever happens later,
/// although its parity may match a later phase again before their turn.
#[derive(Debug, Default)]
pub(crate) struct Phase(OnceLock<Option<Released>>);

impl Phase {
    /// Completes the phase, with what it released for the tracker.
    pub fn end(&self, released: Option<Released>) {
        // A phase completes once.
        let _ = self.0.set(released);
    }

    pub fn is_over(&self) -> bool {
        self.0.get().is_some()
    }

    pub fn released(&self) -> Option<&Released> {
        self.0.get()?.as_ref()
    }
}

/// A wait for an mbarrier of this CTA that was not satisfied.
#[derive(Clone, Debug)]
pub(crate) struct Suspended {
    pub offset: u32,
    pub test: PhaseTest,
    pub phase: Arc<Phase>,
}

/// Lanes that run together.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub pc: u32,
    pub mask: u32,
    pub wait: Wait,
    /// In a run with a clock: when the wait began, in clk.
    pub waits_since: f64,
    /// Whether the instruction is executed again after its wait was satisfied.
    pub resumed: bool,
    /// Whether a `try_wait` must give up.
    pub timed_out: bool,
    /// The pending wait for an mbarrier, until it is tested again.
    pub suspended: Option<Suspended>,
}

impl Group {
    pub fn new(pc: u32, mask: u32) -> Self {
        Group {
            pc,
            mask,
            wait: Wait::No,
            waits_since: 0.0,
            resumed: false,
            timed_out: false,
            suspended: None,
        }
    }
}

/// A `tcgen05.ld` before its wait.
#[derive(Debug)]
pub(crate) struct TmemLoad {
    pub dst: Box<[Slot]>,
    pub transfer: Transfer,
    /// The reduction of an `ld.red`.
    pub reduce: Option<crate::program::TcReduce>,
    /// The values, if they were read at the issue.
    pub values: Option<super::tensor::Loaded>,
    pub line: u32,
    /// Lanes that execute it.
    pub mask: u32,
    /// Whether the registers have their values.
    pub arrived: bool,
    /// First use before the wait.
    pub used: Option<super::results::EarlyUse>,
    /// For the tracker: its count among the warp's loads.
    pub clock: u32,
}

/// A `tcgen05.st` before its wait.
#[derive(Debug)]
pub(crate) struct TmemStore {
    pub transfer: Transfer,
    pub values: Vec<[u32; 32]>,
    /// By register: lanes with undefined values; empty for none.
    pub undefined: Vec<u32>,
    pub line: u32,
}

/// The origin of an undefined value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// A register.
    Register,
    /// Local memory.
    Local,
    /// Shared memory, at this offset.
    Shared(u32),
    /// Tensor memory.
    Tensor { lane: u32, column: u32 },
}

impl Source {
    /// Whether an undefined part makes the whole value undefined. Compilers pack undefined halves of registers and of
    /// local arrays that are never used.
    pub fn spreads(self) -> bool {
        match self {
            Source::Register | Source::Local => false,
            Source::Shared(_) | Source::Tensor { .. } => true,
        }
    }
}

/// Why a register is undefined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undefined {
    /// The register that first held the value, and the line that loaded it; 0 if the register was never written.
    pub root: Slot,
    pub loaded: u32,
    /// The first line that computed something from it; 0 for none.
    pub computed: u32,
    pub source: Source,
}

/// A warp.
#[derive(Debug)]
pub(crate) struct Warp {
    pub index: u32,
    pub regs: Vec<Lanes>,
    pub init: Vec<u32>,
    pub preds: Vec<u32>,
    pub pinit: Vec<u32>,
    pub groups: Vec<Group>,
    /// Lanes that exist.
    pub live: u32,
    pub exited: u32,
    /// Registers of a thread, in a kernel that hands them over.
    pub held: u32,
    pub local: Smem,
    /// Registers loaded from undefined memory, or computed from such or from undefined registers. `init` decides; an
    /// entry may be of an earlier value.
    pub undefined: HashMap<Slot, Undefined>,
    pub returns: Vec<Vec<u32>>,
    pub loads: Vec<TmemLoad>,
    pub stores: Vec<TmemStore>,
    /// Products issued and not waited for, in order.
    pub wgmma: Vec<super::matrix::PendingWgmma>,
    /// Registers written since the last `wgmma.fence`; empty in kernels without `wgmma`.
    pub unfenced: Vec<bool>,
    /// Committed groups of them.
    pub wgmma_groups: u32,
    /// Committed bulk groups, per lane.
    pub bulk_groups: [u32; 32],
    /// Committed `cp.async` groups, per lane.
    pub copy_groups: [u32; 32],
    /// The cluster-barrier phase that this warp last arrived for.
    pub cluster_phase: u64,
    /// Lanes that have arrived at the cluster barrier and have not waited since.
    pub cluster_arrived: u32,
    /// Lane whose group had the last full turn, for fairness among diverged groups.
    pub last_turn: Option<u32>,
}

impl Warp {
    pub fn finished(&self) -> bool {
        self.exited & self.live == self.live
    }

    /// Lanes that have not exited.
    pub fn present(&self) -> u32 {
        self.live & !self.exited
    }

    #[inline]
    pub fn lanes<'a>(&'a self, p: &'a Program, s: Slot) -> &'a Lanes {
        if s >= CONSTANTS { &p.constants[(s - CONSTANTS) as usize] } else { &self.regs[s as usize] }
    }

    #[inline]
    pub fn set(&mut self, d: Slot, m: u32, v: &Lanes) {
        if d == SINK {
            return;
        }
        let r = &mut self.regs[d as usize];
        if m == u32::MAX {
            *r = *v;
        } else {
            for i in 0..32 {
                if m >> i & 1 == 1 {
                    r[i] = v[i];
                }
            }
        }
        self.init[d as usize] |= m;
        if let Some(u) = self.unfenced.get_mut(d as usize) {
            *u = true;
        }
    }

    /// Marks lanes of a register as undefined.
    #[inline]
    pub fn forget(&mut self, d: Slot, m: u32) {
        if d != SINK && m != 0 {
            self.init[d as usize] &= !m;
        }
    }

    /// Marks a result as undefined in the lanes in which a source was.
    #[inline]
    pub fn spoil(&mut self, d: Slot, undefined: Option<(u32, Slot)>, line: u32) {
        if let Some((lanes, source)) = undefined {
            self.spoil_from(d, lanes, source, line);
        }
    }

    #[cold]
    fn spoil_from(&mut self, d: Slot, lanes: u32, source: Slot, line: u32) {
        self.forget(d, lanes);
        let fresh = Undefined { root: source, loaded: 0, computed: 0, source: Source::Register };
        let mut from = self.undefined.get(&source).copied().unwrap_or(fresh);
        if from.computed == 0 {
            from.computed = line;
        }
        self.undefined.insert(d, from);
    }

    /// Marks lanes of a register as loaded from undefined memory.
    #[cold]
    pub fn loaded(&mut self, d: Slot, lanes: u32, source: Source, line: u32) {
        if d != SINK && lanes != 0 {
            self.forget(d, lanes);
            self.undefined.insert(d, Undefined { root: d, loaded: line, computed: 0, source });
        }
    }

    /// Lanes of `m` in which a register's value spoils a register that it is a part of ([`Source::spreads`]).
    pub fn spreading(&self, s: Slot, m: u32) -> u32 {
        if s >= CONSTANTS || self.init[s as usize] & m == m {
            return 0;
        }
        let spreads = self.undefined.get(&s).is_some_and(|u| u.source.spreads());
        if spreads { m & !self.init[s as usize] } else { 0 }
    }

    #[inline]
    pub fn pred(&self, p: Pred) -> u32 {
        let v = self.preds[p.slot as usize];
        if p.negated { !v } else { v }
    }

    #[inline]
    pub fn set_pred(&mut self, d: u32, m: u32, bits: u32) {
        if d == SINK {
            return;
        }
        let r = &mut self.preds[d as usize];
        *r = *r & !m | bits & m;
        self.pinit[d as usize] |= m;
    }
}

/// A named barrier of a CTA.
#[derive(Debug, Default)]
pub(crate) struct Bar {
    /// Lanes that arrived, per warp.
    pub arrived: Vec<u32>,
    pub generation: u64,
    pub expected: Option<u32>,
    pub popc: u32,
    pub and: bool,
    pub or: bool,
    /// `(generation, popc, and, or)` of the last completions.
    pub results: [(u64, u32, bool, bool); 4],
}

/// A CTA.
#[derive(Debug)]
pub(crate) struct Cta {
    pub rank: u32,
    pub id: [u32; 3],
    pub smem: Smem,
    pub tmem: Tmem,
    pub tmem_frees: u64,
    pub warps: Vec<Option<Box<Warp>>>,
    /// Exited lanes per warp, including those that never existed.
    pub exited: Vec<u32>,
    pub bars: Vec<Bar>,
    pub mbars: Vec<Mbar>,
    /// Offsets of the start of the first mbarrier and of the end of the last one.
    pub mbar_span: (u32, u32),
    /// The contents of the collectors. A pair uses those of its even CTA.
    pub collectors: Collectors,
    /// Registers per thread left in the pool; `None` in a kernel whose `setmaxnreg` does nothing.
    pub spare_registers: Option<u32>,
    /// Tensor-core operations in order of issue.
    pub pipe: VecDeque<super::pipe::PipeOp>,
    /// Lanes that arrived at the cluster barrier, per warp.
    pub cluster_arrived: Vec<u32>,
}

impl Cta {
    /// Sets `%smid` and `%nsmid` to the SM and to the chip's SMs. Untimed runs use the CTA's number modulo 148, and 148.
    pub fn runs_on(&mut self, program: &Program, sm: usize, sms: f64) {
        for &(slot, special) in &program.specials {
            let known = [(Special::Smid, sm as u64), (Special::Nsmid, sms as u64)];
            for (_, value) in known.into_iter().filter(|(known, _)| *known == special) {
                for warp in self.warps.iter_mut().flatten() {
                    warp.regs[slot as usize] = [value; 32];
                }
            }
        }
    }

    /// True when every thread has exited.
    pub fn gone(&self) -> bool {
        self.exited.iter().all(|&e| e == u32::MAX)
    }
}

/// A cluster of CTAs, or a single CTA.
pub(crate) struct Cluster<'r> {
    pub run: &'r Run<'r>,
    pub ctas: Vec<Cta>,
    pub queue: Flight,
    pub sequence: u64,
    pub rng: u64,
    pub findings: Vec<Finding>,
    pub warnings: Vec<Finding>,
    /// Kinds and lines of findings beyond the limit.
    pub left_out: BTreeSet<(FindingKind, u32)>,
    pub fatal: bool,
    /// CTA and offset of a live mbarrier that was overwritten, until it is reported.
    pub clobbered: Option<(usize, u32)>,
    pub stats: Stats,
    pub executed: u64,
    /// Counts events that may let another warp continue.
    pub progress: u64,
    /// Whether the turn of the running warp ends.
    pub makes_way: bool,
    /// `executed` when the turn began.
    pub turn_start: u64,
    /// `progress` and `executed` when progress was last seen.
    pub last_progress: (u64, u64),
    /// Whether it has yielded to others since something last happened here.
    pub waited: bool,
    pub cluster_phase: u64,
    /// State at the last stall: progress, and the places of all warps.
    pub last_stall: Option<(u64, u64)>,
    pub stall_rounds: u32,
    pub pairs: Pairs,
    pub spin: Spin,
    /// Event count of the grid when it was last seen to spin.
    pub spun_at: Option<u64>,
    /// Hooks of a run with a clock.
    pub time: Option<Box<super::timed::hooks::Hooks>>,
    /// Happens-before tracking, when it is on.
    pub tracker: Option<Box<Tracker>>,
}

impl<'r> Cluster<'r> {
    pub fn new(run: &'r Run<'r>, index: u64) -> Self {
        let first = run.first_cta(index);
        let shape = run.launch.cluster;
        let count = product(shape) as u32;
        let ctas = (0..count)
            .map(|rank| {
                let within = [rank % shape[0], rank / shape[0] % shape[1], rank / shape[0] / shape[1]];
                new_cta(run, rank, [0, 1, 2].map(|i| first[i] + within[i]), within)
            })
            .collect();
        let seed = run.options.schedule.seed().unwrap_or(0);
        let warps = (product(run.launch.block) as usize).div_ceil(32);
        let fences = |i: &Inst| matches!(i.op, Op::Fence(Fence::TensorBefore | Fence::TensorAfter));
        let tracker = match run.options.tracking {
            Tracking::Off => None,
            Tracking::HappensBefore => Some(run.program.code.iter().any(fences)),
            Tracking::Strict => Some(true),
        };
        let tracker = tracker.map(|f| tracker_of(run, index, (count as usize, warps), f));
        Cluster {
            run,
            ctas,
            queue: Flight::default(),
            sequence: 0,
            rng: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd134_2543_de82_ef95),
            findings: Vec::new(),
            warnings: Vec::new(),
            left_out: BTreeSet::new(),
            fatal: false,
            clobbered: None,
            stats: Stats::default(),
            executed: 0,
            progress: 0,
            makes_way: false,
            turn_start: 0,
            last_progress: (0, 0),
            waited: false,
            cluster_phase: 0,
            last_stall: None,
            stall_rounds: 0,
            spin: Spin::default(),
            spun_at: None,
            pairs: Pairs::new(run.program, count as usize, warps),
            time: None,
            tracker,
        }
    }

    /// Whether strict tracking is on.
    pub fn strict(&self) -> bool {
        self.run.options.tracking == Tracking::Strict
    }

    /// Whether products and the bytes of copies are left out.
    pub fn without_values(&self) -> bool {
        self.time.as_ref().is_some_and(|h| !h.values)
    }

    /// A random number below `n`.
    pub fn random(&mut self, n: u64) -> u64 {
        // SplitMix64.
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n.max(1)
    }
}

/// The tracker of cluster `index`, with the given CTAs and warps.
fn tracker_of(run: &Run<'_>, index: u64, (ctas, warps): (usize, usize), fences: bool) -> Box<Tracker> {
    let strict = run.options.tracking == Tracking::Strict;
    let mut t = Tracker::new(ctas, warps, run.smem_end, fences, strict);
    if run.world.is_some() {
        t.own_world = Some(Own::new(index as u32, ctas * warps));
    }
    Box::new(t)
}

fn new_cta(run: &Run<'_>, rank: u32, id: [u32; 3], within: [u32; 3]) -> Cta {
    let threads = product(run.launch.block) as u32;
    let count = threads.div_ceil(32);
    let mut exited = Vec::new();
    let warps = (0..count)
        .map(|w| {
            let lanes = (threads - w * 32).min(32);
            let live = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
            exited.push(!live);
            Some(Box::new(new_warp(run, w, live, rank, id, within)))
        })
        .collect();
    let bar = || Bar { arrived: vec![0; count as usize], and: true, ..Bar::default() };
    Cta {
        rank,
        id,
        smem: Smem::new(run.smem_end, SMEM_BASE),
        tmem: Tmem::new(),
        tmem_frees: 0,
        warps,
        exited,
        bars: (0..16).map(|_| bar()).collect(),
        mbars: Vec::new(),
        mbar_span: (u32::MAX, 0),
        collectors: Collectors::default(),
        spare_registers: run.program.registers_at_entry(SM_REGISTERS).map(|_| 0),
        pipe: VecDeque::new(),
        cluster_arrived: vec![0; count as usize],
    }
}

fn new_warp(run: &Run<'_>, index: u32, live: u32, rank: u32, id: [u32; 3], within: [u32; 3]) -> Warp {
    let p = run.program;
    let mut w = Warp {
        index,
        regs: vec![[0; 32]; p.registers as usize],
        init: vec![0; p.registers as usize],
        preds: vec![0; p.predicates as usize],
        pinit: vec![0; p.predicates as usize],
        groups: vec![Group::new(0, live)],
        live,
        exited: !live,
        held: p.registers_at_entry(SM_REGISTERS).unwrap_or_default(),
        local: Smem::new(p.local_bytes * 32, 0),
        undefined: HashMap::new(),
        returns: Vec::new(),
        loads: Vec::new(),
        stores: Vec::new(),
        wgmma: Vec::new(),
        unfenced: vec![true; if p.wgmma { p.registers as usize } else { 0 }],
        wgmma_groups: 0,
        bulk_groups: [0; 32],
        copy_groups: [0; 32],
        cluster_phase: 0,
        cluster_arrived: 0,
        last_turn: None,
    };
    w.preds[TRUE as usize] = u32::MAX;
    w.pinit[TRUE as usize] = u32::MAX;
    for &(slot, special) in &p.specials {
        w.regs[slot as usize] = special_value(run, special, index, rank, id, within);
        w.init[slot as usize] = u32::MAX;
    }
    w
}

fn special_value(run: &Run<'_>, s: Special, warp: u32, rank: u32, id: [u32; 3], within: [u32; 3]) -> Lanes {
    let l = run.launch;
    let at = |v: [u32; 3], i: u8| [u64::from(v[i as usize]); 32];
    let lane = |f: fn(u32) -> u32| std::array::from_fn(|i| u64::from(f(i as u32)));
    let window = |offset: u32| [u64::from(rank << 24 | offset); 32];
    let dynamic = u64::from(l.dynamic_smem);
    let one = |v: u64| [v; 32];
    match s {
        Special::Tid(axis) => std::array::from_fn(|i| {
            let t = warp * 32 + i as u32;
            let [x, y, _] = l.block;
            u64::from(match axis {
                0 => t % x,
                1 => t / x % y,
                _ => t / x / y,
            })
        }),
        Special::Ntid(i) => at(l.block, i),
        Special::Ctaid(i) => at(id, i),
        Special::Nctaid(i) => at(l.grid, i),
        Special::Clusterid(i) => at([0, 1, 2].map(|k| id[k] / l.cluster[k]), i),
        Special::Nclusterid(i) => at(run.clusters, i),
        Special::ClusterCtaid(i) => at(within, i),
        Special::ClusterNctaid(i) => at(l.cluster, i),
        Special::ClusterCtarank => one(u64::from(rank)),
        Special::ClusterNctarank => one(product(l.cluster)),
        Special::IsExplicitCluster => one(u64::from(product(l.cluster) > 1)),
        Special::Laneid => lane(|i| i),
        Special::Warpid => one(u64::from(warp)),
        Special::Nwarpid => one(64),
        Special::Smid => {
            let linear = u64::from(id[0])
                + u64::from(l.grid[0]) * (u64::from(id[1]) + u64::from(l.grid[1]) * u64::from(id[2]));
            one(linear % 148)
        }
        Special::Nsmid => one(148),
        Special::Gridid | Special::Zero => one(0),
        Special::LanemaskEq => lane(|i| 1 << i),
        Special::LanemaskLt => lane(|i| (1 << i) - 1),
        Special::LanemaskLe => lane(|i| (1 << i) | ((1 << i) - 1)),
        Special::LanemaskGt => lane(|i| !((1 << i) | ((1 << i) - 1))),
        Special::LanemaskGe => lane(|i| !((1 << i) - 1)),
        Special::DynamicSmemSize => one(dynamic),
        Special::TotalSmemSize => one(u64::from(run.smem_end - SMEM_BASE)),
        // With what the system reserves at the start.
        Special::AggrSmemSize => one(u64::from(run.smem_end)),
        Special::StackTop(at) => one(u64::from(at)),
        Special::Shared(offset) => window(offset),
        Special::Dynamic(offset) => window(run.dynamic_base.wrapping_add(offset)),
    }
}
