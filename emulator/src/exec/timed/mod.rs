//! A run with a clock: all resident clusters at once, in the order of time.
//!
//! - this file: clusters on SMs, events, the end
//! - `warp`: one instruction of a warp, and what it costs
//! - `access`: loads, stores and atomics of warps
//! - `engines`: TMA, tensor cores
//! - `wgmma`: products of warpgroups
//! - `sm`: the parts of an SM that are shared
//! - `queue`: events in the order of time
//! - `hooks`: what clusters note while they execute
//! - `result`: the prediction
//!
//! Functional state changes at the event that changes it: a warp's instruction when it issues, a copy or product when it
//! is complete. So warps see what they would see at that time. Times are in clk of the SMs from the first instruction of
//! the grid's first CTA.

mod access;
mod engines;
pub(crate) mod hooks;
mod queue;
mod result;
mod sm;
mod warp;
mod wgmma;

use super::registers::{GRANULE, MAX_REGISTERS, registers_per_thread};
use super::state::Cluster;
use super::{Run, room};
use crate::launch::{Launch, Options, Schedule, Tracking, dynamic_base, product};
use crate::lower::module::MODULE_BASE;
use crate::memory::GlobalMemory;
use crate::module::Module;
use crate::program::Program;
use crate::time::cost::{Cost, costs};
use crate::time::live::live_registers;
use crate::time::memory::{Memory, Place, gpcs};
use crate::time::record::{Bar, Cause, CtaTimes, Moment, WarpTime};
use crate::time::{Chip, Prediction, TimeError, TimeOptions};
use engines::Load;
use hooks::Hooks;
use queue::Queue;
use sm::Sm;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// Machine instructions that are fetched at once: about a KiB.
const CODE_LINE: usize = 64;

/// Something that happens.
#[derive(Debug)]
enum Event {
    /// A warp may execute: cluster, CTA, warp.
    Warp(usize, usize, usize),
    /// Copies of one instruction are complete, or the first half of stores.
    Copies(usize, Vec<u64>, Moment),
    /// A TMA load requests more lines.
    Load(Box<Load>),
    /// The oldest operation of a tensor core is done.
    Pipe(usize, usize),
    /// A cluster starts on these SMs.
    Start(Vec<usize>, Moment),
}

/// A warp with its times.
#[derive(Debug)]
struct WarpClock {
    /// Earliest issue of its next instruction.
    at: Moment,
    /// When registers and predicates have their values, and the cause of the delay.
    ready: Vec<(f64, Cause)>,
    /// The start and line of a wait for others.
    asleep: Option<(f64, u32)>,
    /// When its tensor-memory loads and stores are done.
    tmem_loaded: f64,
    tmem_stored: f64,
    /// When its global stores have arrived.
    stored: f64,
    /// `wgmma` groups with their end times.
    products: Vec<(u32, Moment)>,
    /// When it can issue another.
    next_product: f64,
    started: f64,
    done: bool,
    /// Whether an event is scheduled.
    scheduled: bool,
    /// Start of the current bar.
    drawn: f64,
}

/// A CTA with its times.
struct CtaClock {
    sm: usize,
    warps: Vec<WarpClock>,
    times: CtaTimes,
    /// End times of its tensor core's operations.
    pipe: VecDeque<Moment>,
    /// When the last result of them is available.
    results: Moment,
    /// When the last `wgmma` of each warpgroup was accepted.
    accepted: Vec<Moment>,
    gone: bool,
}

/// A cluster with its times, and the times of its mbarriers.
struct Timed<'r> {
    cluster: Box<Cluster<'r>>,
    ctas: Vec<CtaClock>,
    /// When the last phase of each mbarrier completed, and the line that completed it.
    phases: Vec<((usize, u32), (Moment, u32))>,
    /// When the last cluster barrier completed.
    met: Moment,
    /// Whether an arrival at the cluster barrier releases.
    releases: bool,
    progress: u64,
    /// When the last pending small copy is done.
    small_done: Moment,
    /// Cluster barriers that are included in `met`.
    phase_seen: u64,
    place: Vec<usize>,
    /// Bars are kept.
    watched: bool,
}

impl Timed<'_> {
    /// A phase of an mbarrier completed.
    fn phase_done(&mut self, place: (usize, u32), moment: Moment, line: u32) {
        match self.phases.iter_mut().find(|p| p.0 == place) {
            Some(p) => p.1 = (moment, line),
            None => self.phases.push((place, (moment, line))),
        }
    }

    /// When the last phase of an mbarrier completed.
    fn phase(&self, place: (usize, u32)) -> Option<(Moment, u32)> {
        self.phases.iter().find(|p| p.0 == place).map(|p| p.1)
    }
}

/// A run with a clock.
struct World<'r> {
    run: &'r Run<'r>,
    chip: &'r Chip,
    options: &'r TimeOptions,
    costs: Vec<Cost>,
    clusters: Vec<Option<Box<Timed<'r>>>>,
    sms: Vec<Sm>,
    memory: Memory,
    queue: Queue<Event>,
    now: f64,
    // What is kept.
    warps: Vec<WarpTime>,
    /// Clocks by line of the text.
    lines: Vec<f64>,
    cta_times: Vec<CtaTimes>,
    bars: Vec<Bar>,
    instructions: u64,
    end: Moment,
    resident: u64,
}

/// Times a checked launch.
pub(crate) fn time(
    module: &Module,
    program: &Program,
    launch: &Launch,
    params: Vec<u8>,
    memory: &GlobalMemory,
    options: &Options<'_>,
    timing: &TimeOptions,
) -> Result<Prediction, TimeError> {
    let start = Instant::now();
    let chip = &timing.chip;
    if !module.target().iter().any(|t| chip.runs(t)) {
        return Err(TimeError::Target {
            target: module.target().join(", "),
            chip: chip.name.clone(),
            runs: chip.targets.join(", "),
        });
    }
    let mut statics = GlobalMemory::at(MODULE_BASE);
    if !module.image.is_empty() {
        statics.alloc_from("module variables", &module.image);
    }
    let dynamic = dynamic_base(program);
    let smem_end = if launch.dynamic_smem > 0 { dynamic + launch.dynamic_smem } else { program.static_end };
    let mut costs = costs(program, chip);
    if let Some(sass) = &timing.sass {
        let entry = module.kernels.iter().find(|(_, p)| std::ptr::eq(p, program)).map_or("", |(n, _)| n);
        sass.apply(entry, program, chip, &mut costs)?;
    }
    let per_sm = ctas_of_an_sm(chip, program, &costs, launch, smem_end)?;
    let resident = clusters_at_a_time(chip, launch, per_sm)?;
    let options = Options {
        schedule: Schedule::Early,
        tracking: Tracking::Off,
        trace: None,
        progress: None,
        ..*options
    };
    let total = product(launch.grid) / product(launch.cluster);
    let wanted = resident.min(total);
    let fit = room::fitting(program, launch, smem_end, &options, wanted)?;
    let run = Run {
        module,
        program,
        launch,
        params,
        memory,
        statics,
        options: &options,
        dynamic_base: dynamic,
        smem_end,
        clusters: [0, 1, 2].map(|i| launch.grid[i] / launch.cluster[i]),
        start,
        deadline: options.time_limit.and_then(|limit| start.checked_add(limit)),
        fitting: (fit < wanted).then_some(fit),
        world: None,
        resident,
        watched: false,
        next: AtomicU64::new(0),
        idle: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let lines = program.code.len().div_ceil(CODE_LINE);
    let count = chip.sms.value as usize;
    let mut world = World {
        run: &run,
        chip,
        options: timing,
        costs,
        clusters: Vec::new(),
        sms: (0..count).map(|i| Sm::new(chip, i, lines)).collect(),
        memory: Memory::new(chip),
        queue: Queue::default(),
        now: 0.0,
        warps: vec![WarpTime::default(); (product(launch.block) as usize).div_ceil(32)],
        lines: vec![0.0; 1 + program.code.iter().map(|i| i.line as usize).max().unwrap_or(0)],
        cta_times: Vec::new(),
        bars: Vec::new(),
        instructions: 0,
        end: Moment::default(),
        resident,
    };
    if timing.warm {
        for (address, bytes) in memory.ranges() {
            world.memory.warm(address, bytes);
        }
    }
    world.first_wave(wanted);
    world.events()?;
    Ok(world.prediction())
}

/// Registers per thread. A kernel that hands registers over starts with [`Program::registers_at_entry`]. Other kernels have
/// their live registers, at most those that `.minnctapersm` leaves them.
fn registers_of_a_thread(chip: &Chip, program: &Program, costs: &[Cost], threads: u64) -> u64 {
    let all = chip.registers.value as u32;
    let needed = program.registers_at_entry(all).map_or_else(
        || {
            let least = program.min_ctas.unwrap_or(1).max(1);
            let most = registers_per_thread(all, least, threads, program.sm_threads).unwrap_or(MAX_REGISTERS);
            live_registers(program, costs).min(most.into())
        },
        u64::from,
    );
    needed.next_multiple_of(GRANULE.into()).max(GRANULE.into())
}

/// CTAs per SM by registers.
fn ctas_by_registers(chip: &Chip, program: &Program, costs: &[Cost], threads: u64) -> u64 {
    let each = registers_of_a_thread(chip, program, costs, threads);
    (chip.registers.value as u64 / (each * threads).max(1)).max(1)
}

/// CTAs that fit on an SM.
fn ctas_of_an_sm(
    chip: &Chip,
    program: &Program,
    costs: &[Cost],
    launch: &Launch,
    smem: u32,
) -> Result<u32, TimeError> {
    let room = |what, needed: u64, unit, limit: f64| {
        let fit = limit as u64 / needed.max(1);
        if fit == 0 {
            let chip = chip.name.clone();
            return Err(TimeError::Room { what, needed, unit, chip, limit: limit as u64 });
        }
        Ok(fit)
    };
    let threads = room("a CTA", product(launch.block).next_multiple_of(32), "threads", chip.threads.value)?;
    let smem = room("a CTA", u64::from(smem.max(1024)), "bytes of shared memory", chip.smem.value)?;
    let warps = product(launch.block).next_multiple_of(32);
    Ok(threads.min(smem).min(ctas_by_registers(chip, program, costs, warps)).min(32) as u32)
}

/// Clusters that the chip runs at a time.
fn clusters_at_a_time(chip: &Chip, launch: &Launch, per_sm: u32) -> Result<u64, TimeError> {
    let size = product(launch.cluster);
    let places = match size {
        1 => chip.sms.value,
        2 => chip.clusters_of_2.value,
        3..=4 => chip.clusters_of_4.value,
        5..=8 => chip.clusters_of_8.value,
        _ => chip.clusters_of_16.value,
    };
    if places < 1.0 {
        let chip_name = chip.name.clone();
        return Err(TimeError::Room {
            what: "a cluster",
            needed: size,
            unit: "SMs of one GPC",
            chip: chip_name,
            limit: 0,
        });
    }
    Ok(places as u64 * u64::from(per_sm))
}

/// SMs of the first clusters, in the order in which a chip fills its places. CTAs without clusters fill GPC after GPC; if there are fewer
/// than SMs, each GPC gets its share. Clusters go to one GPC after the other.
fn places(chip: &Chip, size: usize, clusters: usize) -> Vec<Vec<usize>> {
    let count = chip.sms.value as usize;
    let mut free: Vec<Vec<usize>> = vec![Vec::new(); gpcs(chip)];
    for sm in 0..count {
        free[Place::of(chip, sm).gpc].push(sm);
    }
    if size == 1 {
        let (sms, ctas) = (free.concat(), clusters.clamp(1, count));
        return (0..ctas).map(|i| vec![sms[i * count / ctas]]).collect();
    }
    let mut all = Vec::new();
    while free.iter().any(|sms| sms.len() >= size) {
        for sms in free.iter_mut().filter(|sms| sms.len() >= size) {
            all.push(sms.drain(..size).collect());
        }
    }
    // A chip file may allow more of them than the GPCs have room for here.
    let rest = free.concat();
    all.extend(rest.chunks_exact(size).map(<[usize]>::to_vec));
    if all.is_empty() {
        all.push((0..size).map(|k| k % count).collect());
    }
    all
}

/// Events from one look at the time limit to the next.
const PATIENCE: u64 = 64;

impl<'r> World<'r> {
    fn push(&mut self, time: f64, event: Event) {
        self.queue.push(time, event);
    }

    /// Time of the next event.
    fn horizon(&self) -> f64 {
        self.queue.next_time().unwrap_or(f64::MAX)
    }

    /// Places the first clusters on SMs.
    fn first_wave(&mut self, clusters: u64) {
        let size = product(self.run.launch.cluster) as usize;
        let places = places(self.chip, size, clusters as usize);
        for (i, place) in places.iter().cycle().take(clusters as usize).enumerate() {
            let delay = (i * size) as f64 * self.chip.cta_interval.value;
            self.push(delay, Event::Start(place.clone(), Moment::default().until(delay, Cause::Launch)));
        }
    }

    fn events(&mut self) -> Result<(), TimeError> {
        let limit = self.run.options.instruction_limit;
        let mut events = 0u64;
        while let Some((time, event)) = self.queue.pop() {
            self.now = time;
            events += 1;
            let cluster = match event {
                Event::Warp(k, c, w) => {
                    self.turn(k, c, w);
                    k
                }
                Event::Copies(k, list, moment) => {
                    self.copies_done(k, &list, moment);
                    k
                }
                Event::Load(load) => {
                    self.load_on(load);
                    continue;
                }
                Event::Pipe(k, c) => {
                    self.pipe_done(k, c);
                    k
                }
                Event::Start(place, moment) => {
                    self.start(place, moment);
                    continue;
                }
            };
            self.after(cluster)?;
            if self.instructions > limit {
                return Err(TimeError::Limit { limit, clocks: self.now });
            }
            if events.is_multiple_of(PATIENCE) && self.run.is_over() {
                return Err(TimeError::Deadline { clocks: self.now });
            }
        }
        self.stuck()
    }

    /// Processes the end of a cluster, if an event ended it.
    fn after(&mut self, k: usize) -> Result<(), TimeError> {
        let Some(t) = self.clusters[k].as_mut() else { return Ok(()) };
        if t.cluster.fatal {
            let finding = t.cluster.findings.iter().find(|f| f.kind.is_fatal()).cloned();
            if let Some(f) = finding {
                return Err(TimeError::Stopped { clocks: self.now, finding: Box::new(f) });
            }
        }
        let over = t.ctas.iter().all(|c| c.gone && c.pipe.is_empty()) && t.cluster.queue.is_empty();
        if !over {
            return Ok(());
        }
        let Some(t) = self.clusters[k].take() else { return Ok(()) };
        self.instructions_of(&t);
        let mut last = Moment::default();
        for c in &t.ctas {
            self.cta_times.push(c.times);
            for w in &c.warps {
                last = last.max(w.at.until(w.stored, Cause::Stores));
            }
        }
        let last = last.until(self.now, Cause::TmaStore);
        self.end = self.end.max(last);
        let gap = self.chip.cta_gap.value;
        let next = last.after(gap, Cause::Launch);
        self.push(next.time, Event::Start(t.place, next));
        Ok(())
    }

    fn instructions_of(&mut self, t: &Timed<'_>) {
        for (index, warp) in self.warps.iter_mut().enumerate() {
            for c in &t.ctas {
                warp.lived += c.warps[index].at.time - c.warps[index].started;
            }
        }
    }

    fn start(&mut self, place: Vec<usize>, moment: Moment) {
        let Some(index) = self.run.take_cluster() else { return };
        let mut cluster = Box::new(Cluster::new(self.run, index));
        cluster.time = Some(Box::new(Hooks::new(1000.0 / self.chip.clock.value, self.options.values)));
        for (cta, &sm) in cluster.ctas.iter_mut().zip(&place) {
            cta.runs_on(self.run.program, sm, self.chip.sms.value);
        }
        let slots = (self.run.program.registers + self.run.program.predicates) as usize;
        let ctas = (cluster.ctas.iter().zip(&place))
            .map(|(cta, &sm)| CtaClock {
                sm,
                warps: (cta.warps.iter())
                    .map(|_| WarpClock {
                        at: moment,
                        ready: vec![(0.0, Cause::Instructions); slots],
                        asleep: None,
                        tmem_loaded: 0.0,
                        tmem_stored: 0.0,
                        stored: 0.0,
                        products: Vec::new(),
                        next_product: 0.0,
                        started: moment.time,
                        done: false,
                        scheduled: true,
                        drawn: moment.time,
                    })
                    .collect(),
                times: CtaTimes { start: moment.time, ..CtaTimes::default() },
                pipe: VecDeque::new(),
                results: Moment::default(),
                accepted: vec![Moment::default(); cta.warps.len().div_ceil(4)],
                gone: false,
            })
            .collect::<Vec<_>>();
        let k = self.clusters.iter().position(Option::is_none).unwrap_or(self.clusters.len());
        if k == self.clusters.len() {
            self.clusters.push(None);
        }
        let watched = self.options.timeline.is_some_and(|of| cluster.ctas.iter().any(|c| c.id == of));
        let shape: Vec<usize> = ctas.iter().map(|c| c.warps.len()).collect();
        for &sm in &place {
            self.sms[sm].used.ran = true;
        }
        self.clusters[k] = Some(Box::new(Timed {
            cluster,
            ctas,
            phases: Vec::new(),
            met: Moment::default(),
            releases: false,
            progress: 0,
            small_done: Moment::default(),
            phase_seen: 0,
            place,
            watched,
        }));
        for (c, warps) in shape.into_iter().enumerate() {
            for w in 0..warps {
                self.push(moment.time, Event::Warp(k, c, w));
            }
        }
    }

    /// Called when no event is left: all clusters have run, or some wait for ever.
    fn stuck(&mut self) -> Result<(), TimeError> {
        let mut waiting = 0;
        let mut first = None;
        for t in self.clusters.iter().flatten() {
            for (c, cta) in t.ctas.iter().enumerate() {
                for (w, clock) in cta.warps.iter().enumerate().filter(|(_, w)| !w.done) {
                    waiting += 1;
                    let line = clock.asleep.map_or(0, |(_, line)| line);
                    first.get_or_insert((t.cluster.ctas[c].id, w as u32, line));
                }
            }
        }
        let Some((cta, warp, line)) = first else { return Ok(()) };
        let text = self.run.module.line(line).trim().to_owned();
        Err(TimeError::Stuck { clocks: self.now, waiting, cta, warp, line, text })
    }
}
