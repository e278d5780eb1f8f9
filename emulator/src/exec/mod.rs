//! Execution: clusters of CTAs as units of work for the host's threads.
//!
//! - this file: a run over the grid
//! - `state`: clusters, CTAs, warps, groups of lanes
//! - `schedule`: the scheduler of one cluster, stalls and deadlocks
//! - `step`: one instruction; `operands`: what it reads
//! - `access`: loads and stores; `atomics`: `atom` and `red`
//! - `collective`: operations across lanes, and barriers of threads
//! - `mbarrier`: mbarrier objects
//! - `queue`: asynchronous operations and when they complete
//! - `copy`: issue of bulk, tensor and small asynchronous copies; `transfer`: their completion
//! - `matrix`: `wgmma`; `warp_matrix`: `mma.sync` and `wmma`
//! - `results`: registers whose values arrive late
//! - `tensor`: tensor memory, the issue of matrix products; `pipe`: their completion
//! - `pair`: tensor memory of pairs of CTAs
//! - `order`: happens-before tracking
//! - `resident`: clusters that run at a time, and such as wait for others for ever
//! - `registers`: registers that warps hand over
//! - `report`: findings
//! - `room`: host memory, before it is allocated
//!
//! A cluster runs on one host thread at a time, so that its shared memory needs no locks. Clusters
//! share global memory only.

mod access;
mod atomics;
mod collective;
mod copy;
mod matrix;
mod mbarrier;
mod operands;
mod order;
mod pair;
mod pipe;
mod queue;
pub(crate) mod registers;
mod report;
mod resident;
mod results;
pub(crate) mod room;
mod schedule;
mod state;
mod step;
mod tensor;
pub(crate) mod timed;
mod transfer;
mod warp_matrix;

use crate::finding::{Finding, FindingKind, Report, Stats};
use crate::launch::{Launch, LaunchError, Options, Tracking, dynamic_base, product};
use crate::lower::module::MODULE_BASE;
use crate::memory::GlobalMemory;
use crate::module::Module;
use crate::program::Program;
use state::Cluster;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// State that all clusters of a run share.
pub(crate) struct Run<'r> {
    pub module: &'r Module,
    pub program: &'r Program,
    pub launch: &'r Launch,
    pub params: Vec<u8>,
    pub memory: &'r GlobalMemory,
    /// Buffers of the module's `.global` and `.const` variables.
    pub statics: GlobalMemory,
    pub options: &'r Options<'r>,
    pub dynamic_base: u32,
    /// End of shared memory.
    pub smem_end: u32,
    pub clusters: [u32; 3],
    pub start: Instant,
    /// The time limit as an instant.
    pub deadline: Option<Instant>,
    /// Clusters that fit into the memory limit at a time, if fewer than the chip runs.
    pub fitting: Option<u64>,
    /// Accesses of all clusters to global memory, if they are tracked and there are several clusters.
    pub world: Option<order::world::World>,
    /// Clusters that run at a time.
    pub resident: u64,
    /// Whether to detect clusters that spin.
    pub watched: bool,
    next: AtomicU64,
    /// Instructions of all clusters since the last event that another cluster could wait for.
    pub idle: AtomicU64,
    pub stop: AtomicBool,
}

impl Run<'_> {
    /// Whether somebody has interrupted the run.
    pub fn is_interrupted(&self) -> bool {
        self.options.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether the time limit is reached, or the run interrupted.
    pub fn is_over(&self) -> bool {
        self.is_interrupted() || self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    /// Takes the next cluster that has not started.
    pub fn take_cluster(&self) -> Option<u64> {
        let total = product(self.clusters);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < total).then_some(n + 1)).ok()
    }

    /// CTA coordinates of the first CTA of a cluster.
    pub fn first_cta(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.clusters.map(u64::from);
        let c = [index % x, index / x % y, index / x / y];
        [0, 1, 2].map(|i| c[i] as u32 * self.launch.cluster[i])
    }
}

#[derive(Default)]
struct Shared<'r> {
    suspended: VecDeque<Box<Cluster<'r>>>,
    findings: Vec<Finding>,
    warnings: Vec<Finding>,
    left_out: BTreeSet<(FindingKind, u32)>,
    stopped: bool,
    stats: Stats,
    done: u64,
    /// Number of finished clusters.
    ended: u64,
    /// Counts events that may let a cluster continue, and clusters that were seen to spin since the last event.
    events: u64,
    spinning: u64,
    last_spun: u64,
}

impl Shared<'_> {
    /// Adds the findings of a cluster.
    fn take(&mut self, cluster: &mut Cluster<'_>) {
        for (all, own) in
            [(&mut self.findings, &mut cluster.findings), (&mut self.warnings, &mut cluster.warnings)]
        {
            for f in std::mem::take(own) {
                report::merge(all, f);
            }
        }
        self.left_out.append(&mut cluster.left_out);
    }
}

/// Runs a checked launch.
pub(crate) fn run(
    module: &Module,
    program: &Program,
    launch: &Launch,
    params: Vec<u8>,
    memory: &GlobalMemory,
    options: &Options<'_>,
) -> Result<Report, LaunchError> {
    let start = Instant::now();
    let mut statics = GlobalMemory::at(MODULE_BASE);
    if !module.image.is_empty() {
        statics.alloc_from("module variables", &module.image);
    }
    let dynamic = dynamic_base(program);
    let smem_end = if launch.dynamic_smem > 0 { dynamic + launch.dynamic_smem } else { program.static_end };
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let resident = options
        .resident
        .map_or_else(|| resident::resident(module.target(), launch, smem_end), |n| u64::from(n.max(1)));
    let wanted = resident.min(product(launch.grid) / product(launch.cluster));
    let fit = room::fitting(program, launch, smem_end, options, wanted)?;
    let run = Run {
        module,
        program,
        launch,
        params,
        memory,
        statics,
        options,
        dynamic_base: dynamic,
        smem_end,
        clusters: [0, 1, 2].map(|i| launch.grid[i] / launch.cluster[i]),
        start,
        deadline: options.time_limit.and_then(|limit| start.checked_add(limit)),
        fitting: (fit < wanted).then_some(fit),
        world: (options.tracking != Tracking::Off && product(launch.grid) > product(launch.cluster))
            .then(order::world::World::new),
        resident: if fit < wanted { fit } else { resident },
        watched: resident::Spin::is_possible(program),
        next: AtomicU64::new(0),
        idle: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let shared = Mutex::new(Shared::default());
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.min(fit as usize))
        .build()
        .map_err(|e| LaunchError::Threads(e.to_string()))?;
    pool.broadcast(|_| worker(&run, &shared));
    let mut shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    // After a stop: what was found in clusters that wait for others.
    for mut cluster in std::mem::take(&mut shared.suspended) {
        shared.stats.instructions += cluster.executed;
        shared.take(&mut cluster);
    }
    shared.findings.sort_by_key(|f| (!f.kind.is_fatal(), f.line));
    let kept = options.max_findings.max(1).min(shared.findings.len());
    shared.left_out.extend(shared.findings[kept..].iter().map(|f| (f.kind, f.line)));
    shared.findings.truncate(kept);
    shared.warnings.sort_by_key(|f| f.line);
    shared.warnings.truncate(options.max_findings.max(1));
    // Another cluster may have had room for what one had left out.
    shared.left_out.retain(|&(kind, line)| !shared.findings.iter().any(|f| f.kind == kind && f.line == line));
    shared.stats.time = start.elapsed();
    Ok(Report {
        findings: shared.findings,
        warnings: shared.warnings,
        left_out: shared.left_out.len() as u64,
        stopped: shared.stopped,
        stats: shared.stats,
    })
}

fn worker<'r>(run: &'r Run<'r>, shared: &Mutex<Shared<'r>>) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let per_cluster = product(run.launch.cluster);
    let total = product(run.launch.grid);
    loop {
        if run.stop.load(Ordering::Relaxed) {
            return;
        }
        let mut s = lock();
        let live = run.next.load(Ordering::Relaxed) - s.ended;
        let fresh = if live < run.resident { run.take_cluster() } else { None };
        let resumed = if fresh.is_none() { s.suspended.pop_front() } else { None };
        s.events += u64::from(fresh.is_some());
        let events = s.events;
        drop(s);
        let mut cluster = match (fresh, resumed) {
            (Some(index), _) => Box::new(Cluster::new(run, index)),
            (None, Some(c)) => c,
            (None, None) => return,
        };
        let before = cluster.mark();
        // A cluster that waits for another one gives its thread away.
        if !cluster.advance() {
            let mut s = lock();
            match cluster.spinning().filter(|_| cluster.mark() == before) {
                None => (s.events, s.spinning) = (s.events + 1, 0),
                Some(at) if s.events == events => {
                    if cluster.spun_at != Some(events) {
                        s.spinning = if s.last_spun == events { s.spinning + 1 } else { 1 };
                        (cluster.spun_at, s.last_spun) = (Some(events), events);
                    }
                    let started = run.next.load(Ordering::Relaxed);
                    let (live, total) = (started - s.ended, product(run.clusters));
                    // Where memory bounds the clusters, one that they wait for may not have started for that alone.
                    let full = live >= run.resident && run.fitting.is_none();
                    if s.spinning == live && (full || started == total) {
                        cluster.report_hang(at, live, total, started);
                    }
                }
                Some(_) => {}
            }
            if !cluster.fatal {
                s.suspended.push_back(cluster);
                continue;
            }
        }
        let mut s = lock();
        s.ended += 1;
        s.events += 1;
        run.idle.store(0, Ordering::Relaxed);
        s.stats.add(&cluster.stats);
        s.done += per_cluster;
        s.take(&mut cluster);
        if cluster.fatal {
            s.stopped = true;
            run.stop.store(true, Ordering::Relaxed);
        }
        let done = s.done;
        drop(s);
        if let Some(progress) = run.options.progress {
            progress(done, total);
        }
    }
}
