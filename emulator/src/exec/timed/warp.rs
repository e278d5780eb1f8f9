//! One instruction of a warp: when it issues, what it does, and when its results are available.

use super::{CODE_LINE, Event, Timed, WarpClock, World};
use crate::exec::access::Target;
use crate::exec::state::{Cluster, Group, Suspended, Wait, Warp};
use crate::exec::step::Flow;
use crate::launch::{Reconvergence, product};
use crate::program::{Fence, Inst, Op, Order, Scope, Space};
use crate::time::cost::{Cost, Unit};
use crate::time::record::{Bar, Cause, Moment, Track};

/// Clocks by which a warp may run ahead of other warps, as long as it executes nothing that they can observe.
const AHEAD: f64 = 48.0;
/// Instructions after which a warp that nobody else runs beside ends its turn, so that limits are looked at.
const TURN: u32 = 1 << 16;

/// The next step of a warp.
enum Next {
    /// These lanes continue.
    Go(Group),
    /// Waits for others.
    Sleep(u32),
    Over,
}

impl<'r> World<'r> {
    /// Runs a warp until it waits, or until others come first.
    pub(super) fn turn(&mut self, k: usize, c: usize, wi: usize) {
        let Some(mut t) = self.clusters[k].take() else { return };
        if let Some(mut w) = t.cluster.ctas[c].warps[wi].take() {
            t.ctas[c].warps[wi].scheduled = false;
            self.run_warp(k, &mut t, c, &mut w);
            t.cluster.ctas[c].warps[wi] = Some(w);
        }
        self.settle(k, &mut t, c, wi);
        self.clusters[k] = Some(t);
    }

    /// After a turn: handles exits, and warps that can continue now.
    fn settle(&mut self, k: usize, t: &mut Timed<'r>, c: usize, wi: usize) {
        let moment = t.ctas[c].warps[wi].at;
        if !t.ctas[c].gone && t.cluster.ctas[c].gone() {
            t.ctas[c].gone = true;
            t.ctas[c].times.end = moment.time;
        }
        self.wake(k, t, moment, 0);
    }

    fn run_warp(&mut self, k: usize, t: &mut Timed<'r>, c: usize, w: &mut Warp) {
        let wi = w.index as usize;
        let mut ran = 0;
        loop {
            let mut g = match self.next(t, c, w) {
                Next::Go(g) => g,
                Next::Sleep(line) => {
                    let clock = &mut t.ctas[c].warps[wi];
                    clock.asleep = Some((clock.at.time, line));
                    self.draw(t, c, w.index, None);
                    return;
                }
                Next::Over => {
                    t.ctas[c].warps[wi].done = true;
                    self.draw(t, c, w.index, None);
                    return;
                }
            };
            // Lanes that are alone stay in hand from one instruction to the next.
            loop {
                let at = self.when(t, c, w, &g);
                let pc = g.pc as usize;
                let shared = self.costs.get(pc).is_none_or(|cost| cost.shared) || w.groups.len() > 1;
                let horizon = self.horizon();
                if ran >= TURN || at.time > horizon + if shared { 0.0 } else { AHEAD } {
                    w.groups.push(g);
                    t.ctas[c].warps[wi].scheduled = true;
                    self.push(at.time, Event::Warp(k, c, wi));
                    return;
                }
                ran += 1;
                let goes_on = self.execute(k, t, c, w, &mut g, at);
                let alone = w.groups.is_empty();
                if goes_on && !alone {
                    w.groups.push(std::mem::replace(&mut g, Group::new(0, 0)));
                }
                if t.cluster.fatal {
                    return;
                }
                if t.progress != t.cluster.progress {
                    self.wake(k, t, at, self.run.program.code[pc].line);
                }
                if !goes_on || !alone || w.finished() {
                    break;
                }
            }
        }
    }

    /// The lanes that continue next, and the time at which they can.
    fn next(&mut self, t: &mut Timed<'r>, c: usize, w: &mut Warp) -> Next {
        if w.finished() {
            return Next::Over;
        }
        let eager = self.run.options.reconvergence == Reconvergence::Eager;
        if w.groups.len() > 1 {
            Cluster::merge(w, eager);
        }
        let ready = |g: &Group| t.cluster.ready(c, w, g);
        // The lowest program counter first: it is the one that others may be waiting for.
        let pick = (0..w.groups.len()).filter(|&i| ready(&w.groups[i])).min_by_key(|&i| w.groups[i].pc);
        let Some(pick) = pick else {
            let line =
                w.groups.first().and_then(|g| self.run.program.code.get(g.pc as usize)).map_or(0, |i| i.line);
            return Next::Sleep(line);
        };
        let mut g = w.groups.swap_remove(pick);
        // Lanes that waited while others of the warp did not.
        let mut floor = Moment::default();
        if g.wait.is_some() {
            if let Wait::Mbar(Suspended { offset, .. }) = g.wait
                && let Some((seen, _)) = t.phase((c, offset))
            {
                let alone = w.groups.is_empty() || w.groups.iter().any(|other| t.cluster.ready(c, w, other));
                floor = self.woken(seen, g.waits_since, alone);
            }
            g.wait = Wait::No;
            g.resumed = true;
        }
        let clock = &mut t.ctas[c].warps[w.index as usize];
        clock.at = clock.at.max(floor);
        Next::Go(g)
    }

    /// When an instruction can issue.
    fn when(&self, t: &Timed<'r>, c: usize, w: &Warp, g: &Group) -> Moment {
        let cta = &t.ctas[c];
        let clock = &cta.warps[w.index as usize];
        let sm = &self.sms[cta.sm];
        let pc = g.pc as usize;
        let mut at = clock.at;
        let Some(cost) = self.costs.get(pc) else { return at };
        let mut late = (at.time, Cause::Instructions);
        for &r in &cost.reads {
            let ready = clock.ready[r as usize];
            if ready.0 > late.0 {
                late = ready;
            }
        }
        at = at.until(late.0, late.1);
        // Lines that follow the one before are fetched ahead.
        let line = pc / CODE_LINE;
        let ahead = pc.is_multiple_of(CODE_LINE) && line > 0 && sm.code[line - 1];
        if !sm.code[line] && !ahead && cost.unit != Unit::Folded {
            at = at.after(self.chip.code_miss.value, Cause::ColdStart);
        }
        match &self.run.program.code[pc].op {
            Op::Load { space: Space::Param, .. } if !sm.parameters => {
                at = at.after(self.chip.param_miss.value, Cause::ColdStart);
            }
            Op::ClusterWait { .. } => at = if t.met.time > at.time { t.met } else { at },
            Op::TcWait { load: true } => at = at.until(clock.tmem_loaded, Cause::TensorMemory),
            Op::TcWait { load: false } => at = at.until(clock.tmem_stored, Cause::TensorMemory),
            Op::WgmmaWait { groups } => {
                let complete = w.wgmma_groups.saturating_sub(*groups);
                let first = w.index as usize / 4 * 4;
                for other in cta.warps.iter().skip(first).take(4) {
                    for (_, done) in other.products.iter().filter(|(group, _)| *group < complete) {
                        at = if done.time > at.time { *done } else { at };
                    }
                }
            }
            Op::Fence(Fence::Thread) if self.run.program.code[pc].scope != Scope::Cta => {
                at = at.until(clock.stored, Cause::Stores);
            }
            Op::Fence(Fence::MapAcquire | Fence::MapRelease) => at = at.until(clock.stored, Cause::Stores),
            _ => {}
        }
        at
    }

    /// Executes an instruction of the lanes `g`, and says whether they go on: if not, they are among `w.groups`, or have exited.
    fn execute(
        &mut self,
        k: usize,
        t: &mut Timed<'r>,
        c: usize,
        w: &mut Warp,
        g: &mut Group,
        mut at: Moment,
    ) -> bool {
        let wi = w.index as usize;
        let pc = g.pc as usize;
        let program = self.run.program;
        let Some(inst) = program.code.get(pc) else {
            t.cluster.fatal = true;
            return false;
        };
        let before = t.ctas[c].warps[wi].at.time;
        let sm = &mut self.sms[t.ctas[c].sm];
        let sub = &mut sm.sub[wi % super::sm::SUB_CORES];
        let cost: &Cost = &self.costs[pc];
        let active = match inst.guard {
            None => g.mask,
            Some(p) => g.mask & w.pred(p),
        };
        sm.code[pc / CODE_LINE] = true;
        if active != 0 && releases(inst) {
            let stored = t.ctas[c].warps[wi].stored;
            at = at.until(stored, Cause::Stores).after(self.chip.fence_gpu.value, Cause::Fence);
        }
        if matches!(inst.op, Op::Load { .. }) {
            sm.parameters = true;
        }
        if cost.slots > 0.0 {
            let issued = sub.issue.take(at.time, cost.slots);
            at = at.until(issued - cost.slots, Cause::Instructions);
            sm.used.slots += cost.slots;
        }
        if active != 0 && cost.ports > 0.0 {
            at = at.until(sub.ports.claim(at.time, cost.ports), Cause::Instructions);
        }
        // `mma.sync` is the tensor core's work, of which each sub-core does a quarter.
        let product = active != 0 && cost.unit == Unit::Matrix;
        if active != 0 {
            let units = sub.units.iter_mut().zip(&cost.busy).enumerate();
            for (i, (unit, &busy)) in units.filter(|(_, (_, busy))| **busy > 0.0) {
                let matrix = Unit::Matrix.index() == Some(i);
                let cause = if matrix { Cause::TensorMath } else { Cause::Instructions };
                let free = unit.take(at.time, busy);
                at = at.until(free - busy, cause);
            }
        }
        if product {
            let clocks = cost.unit.busy(&cost.busy);
            sm.used.tensor += clocks / super::sm::SUB_CORES as f64;
            let times = &mut t.ctas[c].times;
            times.first_product.get_or_insert(at.time);
            times.last_product = Some(times.last_product.unwrap_or(0.0).max(at.time + clocks));
        }
        // What an engine takes to accept its instruction, and a branch, go on beside the stalls of the machine code.
        let (hold, branch) = (cost.hold, self.chip.branch.value * cost.slots.min(1.0));
        let beside = matches!(cost.unit, Unit::Engine | Unit::Branch);
        let mut next = at.after(if beside { hold.min(1.0) } else { hold }, Cause::Instructions);
        let (latency, folded) = (cost.latency, cost.unit == Unit::Folded);
        if active != 0 {
            let cause = match cost.unit {
                Unit::Memory => Cause::SharedMemory,
                Unit::Matrix => Cause::TensorLatency,
                _ => Cause::Instructions,
            };
            // What is folded is ready with its operands.
            let done = if folded { at.time } else { at.time + latency.max(1.0) };
            for &d in &cost.writes {
                t.ctas[c].warps[wi].ready[d as usize] = (done, cause);
            }
        }
        self.instructions += 1;
        let record = &mut self.warps[wi];
        record.instructions += 1;
        record.slots += self.costs[pc].slots;
        t.cluster.executed += 1;
        if let Some(h) = &mut t.cluster.time {
            h.now = at.time;
        }
        let goes_on = if active == 0 {
            g.pc += 1;
            (g.resumed, g.timed_out) = (false, false);
            true
        } else {
            let resumed = g.resumed;
            let flow = t.cluster.execute(c, w, g, active, inst);
            let waits = matches!(flow, Flow::Wait(_));
            if matches!(flow, Flow::Jump(_) | Flow::Split(_)) {
                next = next.after(branch, Cause::Instructions);
            }
            g.waits_since = at.time;
            let goes_on = apply(&mut t.cluster, c, w, g, active, flow);
            if waits {
                next = at;
            } else {
                next = self.charge(k, t, c, w, pc, at, next, resumed);
                next = next.until(at.time + hold, Cause::Instructions);
            }
            goes_on
        };
        let clock = &mut t.ctas[c].warps[wi];
        clock.at = next;
        self.lines[inst.line as usize] += next.time - before;
        goes_on
    }

    /// Adds the costs of engines, barriers and memory of an executed instruction; returns when the warp can continue.
    #[allow(clippy::too_many_arguments, reason = "they say which instruction of whom")]
    fn charge(
        &mut self,
        k: usize,
        t: &mut Timed<'r>,
        c: usize,
        w: &mut Warp,
        pc: usize,
        at: Moment,
        next: Moment,
        resumed: bool,
    ) -> Moment {
        let wi = w.index as usize;
        let chip = self.chip;
        let inst = &self.run.program.code[pc];
        let mut next = next;
        let noted = t.cluster.time.as_mut().filter(|h| h.noted).map(|h| {
            h.noted = false;
            (
                std::mem::take(&mut h.accesses),
                std::mem::take(&mut h.copies),
                std::mem::take(&mut h.pipes),
                std::mem::take(&mut h.phases),
                std::mem::take(&mut h.remote),
            )
        });
        let (mut accesses, copies, pipes, phases, remote) = noted.unwrap_or_default();
        if !accesses.is_empty() {
            next = self.accessed(t, c, w, pc, &accesses, at, next);
            let global = accesses.iter().any(|a| matches!(a.target, Target::Global(_)));
            if global && inst.scope != Scope::Cta && matches!(inst.order, Order::Acquire | Order::Both) {
                for &d in &self.costs[pc].writes {
                    t.ctas[c].warps[wi].ready[d as usize].0 += chip.acquire.value;
                }
            }
            accesses.clear();
            if let Some(h) = &mut t.cluster.time {
                h.accesses = accesses;
            }
        }
        if !copies.is_empty() {
            next = self.copies_issued(k, t, c, w, copies, at, next, inst.line);
        }
        for p in pipes {
            next = self.pipe_issued(k, t, c, p, at, next, inst.line);
        }
        match &inst.op {
            Op::MbarArrive { .. } | Op::MbarTx { .. } => {
                let far = if remote { chip.mbarrier_remote.value } else { 0.0 };
                let cause = if remote { Cause::Cluster } else { Cause::Mbarrier };
                let seen = at.after(chip.mbarrier_arrive.value, Cause::Mbarrier).after(far, cause);
                for p in phases {
                    t.phase_done(p, seen, inst.line);
                }
            }
            Op::MbarWait { at: _, p, .. } => {
                let done = at.after(if resumed { 0.0 } else { chip.mbarrier_test.value }, Cause::Mbarrier);
                let slot = self.run.program.registers as usize + *p as usize;
                if let Some(r) = t.ctas[c].warps[wi].ready.get_mut(slot) {
                    *r = (done.time, Cause::Mbarrier);
                }
            }
            Op::Bar { .. } if !resumed => {
                next = next.after(self.barrier(t), Cause::Barrier);
            }
            Op::ClusterArrive { .. } => {
                t.releases |= inst.order != Order::Relaxed;
                if inst.order != Order::Relaxed {
                    next = next.until(t.ctas[c].warps[wi].stored, Cause::Stores);
                }
            }
            Op::Fence(f) => {
                let clocks = match f {
                    Fence::Thread if inst.scope == Scope::Cta => chip.fence_cta.value,
                    Fence::Thread => chip.fence_gpu.value,
                    Fence::Proxy | Fence::MbarInit | Fence::MapAcquire => chip.fence_cta.value,
                    Fence::ProxyAll => chip.fence_proxy.value,
                    Fence::MapRelease => chip.fence_gpu.value,
                    Fence::TensorBefore | Fence::TensorAfter => 1.4,
                    Fence::None => 0.0,
                };
                next = at.after(clocks.max(1.0), Cause::Fence);
                if *f == Fence::MapAcquire {
                    let sm = &mut self.sms[t.ctas[c].sm];
                    sm.maps.clear();
                    sm.maps_acquired = true;
                }
            }
            // Each lane's word goes to L2 by an exchange.
            Op::MapCopy { .. } => {
                let clock = &mut t.ctas[c].warps[wi];
                clock.stored = clock.stored.max(at.time + chip.tma_publish.value);
            }
            Op::TcAlloc { .. } => next = at.after(chip.tmem_alloc.value, Cause::Allocation),
            Op::TcLoad { access: _, dst, .. } => {
                let sub = &mut self.sms[t.ctas[c].sm].sub[wi % super::sm::SUB_CORES];
                let start = sub.tmem_load.max(at.time);
                sub.tmem_load = start + 128.0 * dst.len() as f64 / chip.tmem_load_rate.value;
                let done = sub.tmem_load + chip.tmem_load_latency.value;
                let clock = &mut t.ctas[c].warps[wi];
                clock.tmem_loaded = clock.tmem_loaded.max(done);
                for &d in dst {
                    if let Some(r) = clock.ready.get_mut(d as usize) {
                        *r = (done, Cause::TensorMemory);
                    }
                }
            }
            Op::TcStore { src, .. } => {
                let sub = &mut self.sms[t.ctas[c].sm].sub[wi % super::sm::SUB_CORES];
                let start = sub.tmem_store.max(at.time);
                sub.tmem_store = start + 128.0 * src.len() as f64 / chip.tmem_store_rate.value;
                let clock = &mut t.ctas[c].warps[wi];
                clock.tmem_stored = clock.tmem_stored.max(sub.tmem_store + chip.tmem_store_latency.value);
            }
            Op::TcWait { .. } => next = at.after(12.8, Cause::TensorMemory),
            Op::Wgmma(_) => next = self.wgmma_issued(t, c, w, at),
            Op::WgmmaWait { groups } => {
                let complete = w.wgmma_groups.saturating_sub(*groups);
                t.ctas[c].warps[wi].products.retain(|(group, _)| *group >= complete);
            }
            _ => {}
        }
        next
    }

    /// Clocks of a barrier of a CTA.
    fn barrier(&self, t: &Timed<'_>) -> f64 {
        let warps = t.ctas.first().map_or(1, |c| c.warps.len()) as f64;
        self.chip.barrier.value
            + self.chip.barrier_warp.value * warps.min(product(self.run.launch.block) as f64)
    }

    /// When lanes go on that have waited at an mbarrier since `since`, and whose phase was complete at `seen`. Unless they are `alone`,
    /// other lanes of their warp wait elsewhere: then they look at the mbarrier only from time to time.
    fn woken(&self, seen: Moment, since: f64, alone: bool) -> Moment {
        let (first, step) = (since + self.chip.mbarrier_first_look.value, self.chip.mbarrier_look.value);
        let looked = match alone || step <= 0.0 {
            true => seen,
            false => {
                let looks = ((seen.time - first) / step).ceil().max(0.0);
                seen.until(first + looks * step, Cause::Mbarrier)
            }
        };
        looked.after(self.chip.mbarrier_wake.value, Cause::Mbarrier)
    }

    /// Wakes warps whose wait is over. `line` is that of the completing operation, if it was no thread.
    pub(super) fn wake(&mut self, k: usize, t: &mut Timed<'r>, moment: Moment, line: u32) {
        if t.cluster.cluster_phase != t.phase_seen {
            let clocks =
                if t.releases { self.chip.cluster_release.value } else { self.chip.cluster_relaxed.value };
            t.met = moment.after(clocks, Cause::Cluster);
            t.phase_seen = t.cluster.cluster_phase;
            t.releases = false;
        }
        if t.progress == t.cluster.progress {
            return;
        }
        t.progress = t.cluster.progress;
        let barrier = self.barrier(t);
        for c in 0..t.ctas.len() {
            for wi in 0..t.ctas[c].warps.len() {
                let Some((since, waits_at)) = t.ctas[c].warps[wi].asleep else { continue };
                let Some(w) = t.cluster.ctas[c].warps[wi].as_ref() else { continue };
                let ready = w
                    .groups
                    .iter()
                    .find(|g| t.cluster.ready(c, w, g))
                    .map(|g| (g.wait.clone(), g.waits_since));
                if w.finished() {
                    t.ctas[c].warps[wi].done = true;
                    t.ctas[c].warps[wi].asleep = None;
                    continue;
                }
                let Some((wait, waits_since)) = ready else { continue };
                let own = t.ctas[c].warps[wi].at;
                let (ends, by) = match wait {
                    Wait::Mbar(Suspended { offset, .. }) => {
                        let (seen, by) = t.phase((c, offset)).unwrap_or((moment, line));
                        (self.woken(own.max(seen), waits_since, w.groups.len() == 1), by)
                    }
                    Wait::Bar { .. } => (own.max(moment).after(barrier, Cause::Barrier), line),
                    Wait::Cluster { .. } => (own.max(t.met), line),
                    Wait::Bulk { .. } | Wait::Copies { .. } => {
                        (own.max(moment).after(8.0, Cause::Instructions), line)
                    }
                    _ => (own.max(moment).after(2.0, Cause::Instructions), line),
                };
                let record = self.warps[wi].waits.entry(waits_at).or_default();
                record.clocks += ends.time - since;
                record.count += 1;
                *record.ended_by.entry(by).or_default() += ends.time - since;
                self.lines[waits_at as usize] += ends.time - since;
                let clock = &mut t.ctas[c].warps[wi];
                clock.at = ends;
                clock.asleep = None;
                clock.scheduled = true;
                self.draw(t, c, wi as u32, Some((since, waits_at, by, ends.time)));
                self.push(ends.time, Event::Warp(k, c, wi));
            }
        }
    }

    /// Ends the bar of a running warp, and draws the bar of a wait.
    fn draw(&mut self, t: &mut Timed<'r>, c: usize, warp: u32, wait: Option<(f64, u32, u32, f64)>) {
        if !t.watched {
            return;
        }
        let ns = 1000.0 / self.chip.clock.value;
        let cta = t.cluster.ctas[c].id;
        let clock: &mut WarpClock = &mut t.ctas[c].warps[warp as usize];
        let (name, line, ended_by, start, end) = match wait {
            None => ("run".to_owned(), 0, 0, clock.drawn, clock.at.time),
            Some((since, line, by, end)) => ("wait".to_owned(), line, by, since, end),
        };
        clock.drawn = end;
        if end > start {
            let track = Track::Warp(warp);
            let (start, length) = (start * ns, (end - start) * ns);
            self.bars.push(Bar { cta, track, name, line, ended_by, start, length });
        }
    }
}

/// Whether an instruction waits until what the thread has written is seen by the GPU.
fn releases(inst: &Inst) -> bool {
    let wide = matches!(inst.scope, Scope::Cluster | Scope::Gpu);
    let space = match &inst.op {
        Op::Store { space, .. } | Op::Atom { space, .. } | Op::WideAtom { space, .. } => *space,
        _ => return false,
    };
    wide && matches!(space, Space::Global | Space::Generic)
        && matches!(inst.order, Order::Release | Order::Both)
}

/// Moves lanes to their next instruction; `true` if `g` continues there.
fn apply(cluster: &mut Cluster<'_>, c: usize, w: &mut Warp, g: &mut Group, m: u32, flow: Flow) -> bool {
    if let Flow::Wait(wait) = flow {
        if m != g.mask {
            w.groups.push(Group::new(g.pc + 1, g.mask & !m));
            g.mask = m;
        }
        g.wait = wait;
        (g.resumed, g.timed_out) = (false, false);
        w.groups.push(std::mem::replace(g, Group::new(0, 0)));
        return false;
    }
    (g.resumed, g.timed_out) = (false, false);
    match flow {
        Flow::Next => g.pc += 1,
        Flow::Jump(target) if m == g.mask => g.pc = target,
        Flow::Jump(target) => {
            w.groups.push(Group::new(target, m));
            g.mask &= !m;
            g.pc += 1;
        }
        Flow::Split(list) => {
            for (pc, mask) in list {
                w.groups.push(Group::new(pc, mask));
            }
            g.mask &= !m;
            g.pc += 1;
        }
        Flow::Exit => {
            g.mask &= !m;
            g.pc += 1;
            cluster.exit_lanes(c, w, m);
        }
        Flow::Wait(_) | Flow::Stop => {}
    }
    g.mask != 0
}
