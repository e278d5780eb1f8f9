//! The scheduler of one cluster: turns of warps, choice among diverged lanes, stalls, deadlocks.

use super::report::Origin;
use super::state::{Cluster, Group, PhaseTest, Suspended, Wait, Warp};
use super::step::Flow;
use crate::finding::FindingKind;
use crate::launch::{Reconvergence, Schedule, Step};
use std::sync::atomic::Ordering;

/// Instructions a warp may execute in one turn.
const QUANTUM: u64 = 512;
/// Instructions without progress after which asynchronous operations are completed.
pub(super) const PATIENCE: u64 = 20_000;
/// Instructions without progress after which the cluster yields to others.
const SLICE: u64 = 500_000;
/// Factor on the instruction limit for all clusters together without progress: one that computes for long shares its
/// thread with many that wait for it.
const TOGETHER: u64 = 8;

impl Cluster<'_> {
    /// Runs until the cluster is done (true) or appears to wait for another one (false).
    pub fn advance(&mut self) -> bool {
        self.spin.forget();
        let done = self.turns();
        if done {
            self.stats.instructions = self.executed;
        }
        done
    }

    fn turns(&mut self) -> bool {
        let schedule = self.run.options.schedule;
        let random = schedule.seed().is_some();
        let starved = schedule.starved();
        // Whose work is held back, too.
        let held = starved.filter(|_| matches!(schedule, Schedule::Starve { .. }));
        let order: Vec<(usize, usize)> = self
            .ctas
            .iter()
            .enumerate()
            .flat_map(|(c, cta)| (0..cta.warps.len()).map(move |w| (c, w)))
            .collect();
        loop {
            if self.run.stop.load(Ordering::Relaxed) {
                return true;
            }
            let mut ran = false;
            let mut alive = false;
            let last = self.executed - self.last_progress.1 > PATIENCE;
            for i in 0..2 * order.len() {
                // The second half is for the starved warp, when nobody else ran.
                let second = i >= order.len();
                if second && (starved.is_none() || ran && !last) {
                    break;
                }
                let i = i % order.len();
                let (c, wi) = if random { order[self.random(order.len() as u64) as usize] } else { order[i] };
                let (c, wi) = if second { order[i] } else { (c, wi) };
                if starved.is_some_and(|s| (s == wi as u32) != second) {
                    continue;
                }
                let Some(mut w) = self.ctas[c].warps[wi].take() else {
                    continue;
                };
                if !w.finished() {
                    let quantum = if random { 1 + self.random(64) } else { QUANTUM };
                    ran |= self.turn(c, &mut w, quantum);
                }
                self.ctas[c].warps[wi] = Some(w);
                self.report_found();
                if self.fatal {
                    return true;
                }
                if random && self.random(4) == 0 {
                    self.complete_some(held);
                }
            }
            for cta in &self.ctas {
                alive |= !cta.gone();
            }
            if !alive {
                self.finish();
                return true;
            }
            if self.executed > self.run.options.instruction_limit {
                self.report_limit();
                return true;
            }
            if self.run.is_over() {
                self.report_time();
                return true;
            }
            if self.last_progress.0 != self.progress {
                self.last_progress = (self.progress, self.executed);
                // A cluster that starts is no sign that those that wait get anywhere.
                if self.waited {
                    self.run.idle.store(0, Ordering::Relaxed);
                }
            }
            let idle = self.executed - self.last_progress.1;
            // A random pass may have missed the warps that can run.
            let stuck = !(ran || random && self.any_ready());
            if stuck || idle > PATIENCE {
                if self.complete_one() {
                    continue;
                }
                if idle > SLICE {
                    self.last_progress.1 = self.executed;
                    self.waited = true;
                    let together = self.run.idle.fetch_add(idle, Ordering::Relaxed) + idle;
                    if together > self.run.options.instruction_limit.saturating_mul(TOGETHER) {
                        self.report_idle(together);
                        return true;
                    }
                    return false;
                }
                if stuck && !self.stall() {
                    return true;
                }
            }
            if self.fatal {
                return true;
            }
        }
    }

    fn any_ready(&mut self) -> bool {
        for c in 0..self.ctas.len() {
            for i in 0..self.ctas[c].warps.len() {
                let Some(mut w) = self.ctas[c].warps[i].take() else {
                    continue;
                };
                // Groups that came to one instruction at the end of their turns are no group yet.
                Self::merge(&mut w, self.run.options.reconvergence == Reconvergence::Eager);
                let ready = w.groups.iter().any(|g| self.ready(c, &w, g));
                self.ctas[c].warps[i] = Some(w);
                if ready {
                    return true;
                }
            }
        }
        false
    }

    /// Whether a group can execute its instruction.
    pub(super) fn ready(&self, c: usize, w: &Warp, g: &Group) -> bool {
        match &g.wait {
            Wait::No => true,
            Wait::Lanes { .. } => false,
            Wait::Turn => true,
            Wait::Mbar(Suspended { offset, test, phase }) => {
                g.timed_out
                    || phase.is_over()
                    || self.ctas[c].mbars.iter().find(|m| m.offset == *offset).is_none_or(|m| m.passes(*test))
            }
            Wait::Bar { id, generation } => self.ctas[c].bars[*id as usize].generation > *generation,
            Wait::Cluster { phase } => self.cluster_phase > *phase,
            Wait::Pair { index } => self.pairs.ready(c, *index),
            Wait::Tmem { frees } => self.ctas[c].tmem_frees != *frees,
            Wait::Bulk { groups, read } => self.bulk_done(c, w, g.mask, *groups, *read),
            Wait::Copies { groups } => self.copies_done(c, w, g.mask, *groups),
            Wait::Warpgroup { complete } => self.warpgroup_committed(c, w.index, *complete),
            Wait::Registers { missing } => self.ctas[c].spare_registers.is_none_or(|spare| spare >= *missing),
        }
    }

    /// Merges groups of lanes that stand at the same instruction.
    /// Under [`Reconvergence::Forced`] only where one of them waits for the others.
    pub(super) fn merge(w: &mut Warp, eager: bool) {
        let mut i = 0;
        while i < w.groups.len() {
            let mut j = i + 1;
            while j < w.groups.len() {
                let (a, b) = (&w.groups[i], &w.groups[j]);
                let free =
                    |g: &Group| matches!(g.wait, Wait::No | Wait::Lanes { .. }) && !g.resumed && !g.timed_out;
                let forced = [a, b].iter().any(|g| matches!(g.wait, Wait::Lanes { .. }));
                if a.pc == b.pc && free(a) && free(b) && (eager || forced) {
                    w.groups[i].mask |= w.groups[j].mask;
                    w.groups[i].wait = Wait::No;
                    w.groups.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Runs one turn of a warp; true if it executed something.
    fn turn(&mut self, c: usize, w: &mut Warp, quantum: u64) -> bool {
        let end = self.executed + quantum;
        let start = self.executed;
        self.makes_way = false;
        self.turn_start = start;
        while self.executed < end && !self.fatal && !self.makes_way && !w.finished() {
            if w.groups.len() > 1 {
                Self::merge(w, self.run.options.reconvergence == Reconvergence::Eager);
            }
            // The lowest program counter first: it is the one that others may be waiting for.
            let avoid = w.last_turn.take();
            let mut pick: Option<usize> = None;
            let mut second: Option<usize> = None;
            for (i, g) in w.groups.iter().enumerate() {
                if !self.ready(c, w, g) {
                    continue;
                }
                let best = if avoid.is_some_and(|l| g.mask >> l & 1 == 1) { &mut second } else { &mut pick };
                if best.is_none_or(|b| g.pc < w.groups[b].pc) {
                    *best = Some(i);
                }
            }
            let Some(i) = pick.or(second) else { break };
            let mut g = w.groups.swap_remove(i);
            if g.wait.is_some() {
                g.wait = Wait::No;
                g.resumed = true;
            }
            self.run_group(c, w, g, end);
        }
        self.executed > start
    }

    /// Runs one group until it blocks, splits, meets another group, or the turn ends.
    fn run_group(&mut self, c: usize, w: &mut Warp, mut g: Group, end: u64) {
        let program = self.run.program;
        let alone = w.groups.is_empty();
        let eager = self.run.options.reconvergence == Reconvergence::Eager;
        let others: Vec<u32> = w.groups.iter().map(|o| o.pc).collect();
        // Another group that could run and is further back goes first.
        let lowest =
            w.groups.iter().filter(|o| matches!(o.wait, Wait::No)).map(|o| o.pc).min().unwrap_or(u32::MAX);
        let mut first = true;
        let cta = self.ctas[c].id;
        let trace = self.run.options.trace.filter(|t| t.of.is_none_or(|of| of == (cta, w.index)));
        let mut traced = None;
        loop {
            if self.executed >= end {
                if !alone {
                    w.last_turn = Some(g.mask.trailing_zeros());
                }
                break;
            }
            if !alone && !first && eager && (others.contains(&g.pc) || g.pc > lowest) {
                break;
            }
            first = false;
            let Some(inst) = program.code.get(g.pc as usize) else {
                // Every function ends with a return, so that this cannot happen.
                self.fatal = true;
                break;
            };
            self.executed += 1;
            let m = match inst.guard {
                None => g.mask,
                Some(p) => {
                    let known = w.pinit[p.slot as usize];
                    if known & g.mask != g.mask {
                        let lane = (g.mask & !known).trailing_zeros();
                        let at = Origin::of(c, w, Some(lane), inst.line);
                        self.report(
                            FindingKind::UninitialisedRegister,
                            at,
                            "the guard predicate was never written",
                        );
                    }
                    g.mask & w.pred(p)
                }
            };
            if let Some(trace) = trace {
                // A line may be several operations, and an instruction that waited is met again.
                let again = g.resumed || traced == Some((g.pc.wrapping_sub(1), inst.line));
                traced = Some((g.pc, inst.line));
                if !again {
                    let text = self.run.module.line(inst.line);
                    (trace.sink)(Step { cta, warp: w.index, line: inst.line, text, active: m });
                }
            }
            if m == 0 {
                g.pc += 1;
                (g.resumed, g.timed_out) = (false, false);
                continue;
            }
            let flow = self.execute(c, w, &mut g, m, inst);
            if self.clobbered.is_some() {
                self.report_clobbered(Origin::of(c, w, None, inst.line));
            }
            if self.fatal {
                break;
            }
            if let Flow::Wait(wait) = flow {
                // Lanes that the guard switched off go on without the others.
                if m != g.mask {
                    w.groups.push(Group::new(g.pc + 1, g.mask & !m));
                    g.mask = m;
                }
                g.wait = wait;
                g.resumed = false;
                g.timed_out = false;
                break;
            }
            (g.resumed, g.timed_out) = (false, false);
            match flow {
                Flow::Next => g.pc += 1,
                Flow::Jump(target) if m == g.mask => g.pc = target,
                Flow::Jump(target) => {
                    w.groups.push(Group::new(target, m));
                    g.mask &= !m;
                    g.pc += 1;
                    break;
                }
                Flow::Split(list) => {
                    for (pc, mask) in list {
                        w.groups.push(Group::new(pc, mask));
                    }
                    g.mask &= !m;
                    g.pc += 1;
                    break;
                }
                Flow::Exit => {
                    g.mask &= !m;
                    g.pc += 1;
                    self.exit_lanes(c, w, m);
                    break;
                }
                Flow::Wait(_) | Flow::Stop => break,
            }
        }
        if g.mask != 0 {
            w.groups.push(g);
        }
    }

    pub(super) fn exit_lanes(&mut self, c: usize, w: &mut Warp, m: u32) {
        w.exited |= m;
        self.ctas[c].exited[w.index as usize] = w.exited;
        self.progress += 1;
        // Lanes that waited for the leavers look again.
        for g in &mut w.groups {
            if matches!(g.wait, Wait::Lanes { .. }) {
                g.wait = Wait::No;
            }
        }
        if w.finished() {
            self.release_registers(c, w);
            self.flush_tmem(c, w);
            // A barrier of the cluster waits for the exit of a warp that has not arrived: as a relaxed arrival.
            let counted = self.ctas[c].cluster_arrived[w.index as usize] != 0;
            if let Some(t) = self.tracker.as_mut().filter(|_| !counted) {
                t.cluster_release(t.agent(c, w.index), true);
            }
        }
        self.settle_barriers(c);
    }

    /// After the last thread: completes asynchronous operations and checks what must be released.
    fn finish(&mut self) {
        while !self.fatal && self.complete_one() {}
        if let Some(t) = &mut self.tracker {
            t.exit();
        }
        self.report_found();
        if self.fatal {
            return;
        }
        self.pairs_finish();
        for c in 0..self.ctas.len() {
            for (address, columns) in self.ctas[c].tmem.leaks() {
                let at = Origin { cta: c as u32, warp: 0, lane: None, line: 0 };
                self.report(
                    FindingKind::TmemLeak,
                    at,
                    format!(
                        "{columns} columns of tensor memory at column {address} are still allocated at exit"
                    ),
                );
            }
        }
    }

    /// A warp that can run, or is not done.
    fn somewhere(&self) -> Origin {
        let mut at = Origin { cta: 0, warp: 0, lane: None, line: 0 };
        for (c, cta) in self.ctas.iter().enumerate() {
            for w in cta.warps.iter().flatten() {
                let running = w.groups.iter().find(|g| !g.wait.is_some());
                if let Some(g) = running.or(w.groups.first().filter(|_| at.line == 0)) {
                    let line = self.run.program.code.get(g.pc as usize).map_or(0, |i| i.line);
                    at = Origin { cta: c as u32, warp: w.index, lane: None, line };
                }
            }
        }
        at
    }

    /// Why clusters may wait for ever here and not on a device.
    fn few(&self) -> String {
        self.run.fitting.map_or(String::new(), |n| {
            format!("; only {n} clusters fit into the memory limit at a time, and one that it waits for may not have started")
        })
    }

    fn report_limit(&mut self) {
        let limit = self.run.options.instruction_limit;
        self.report(
            FindingKind::InstructionLimit,
            self.somewhere(),
            format!("the cluster executed {limit} instructions and is not done; it was here{}", self.few()),
        );
    }

    fn report_time(&mut self) {
        let limit = match self.run.options.time_limit {
            _ if self.run.is_interrupted() => "the run was interrupted".to_owned(),
            limit => format!("the time limit of {:.3} s is over", limit.unwrap_or_default().as_secs_f64()),
        };
        let clusters = self.run.clusters.iter().map(|&n| u64::from(n)).product::<u64>();
        self.report(
            FindingKind::TimeLimit,
            self.somewhere(),
            format!(
                "{limit}; the run of {clusters} clusters is not done, this one was here, and what was not executed was \
                 not checked"
            ),
        );
    }

    /// Reports that clusters wait for each other without effect.
    fn report_idle(&mut self, together: u64) {
        self.report(
            FindingKind::InstructionLimit,
            self.somewhere(),
            format!(
                "the clusters executed {together} instructions since the last that another could wait for; this one \
                 was here{}",
                self.few()
            ),
        );
    }

    /// Handles a cluster in which nothing runs and nothing is pending: lets `try_wait` give up once, then reports a
    /// deadlock. Returns true if something may run again.
    fn stall(&mut self) -> bool {
        let mut here = 0xcbf2_9ce4_8422_2325u64;
        let mut mix = |v: u64| here = (here ^ v).wrapping_mul(0x100_0000_01b3);
        for cta in &self.ctas {
            for g in cta.warps.iter().flatten().flat_map(|w| &w.groups) {
                mix(u64::from(g.pc));
                mix(u64::from(g.mask));
            }
        }
        let again = self.last_stall == Some((self.progress, here));
        let same_progress = self.last_stall.is_some_and(|(p, _)| p == self.progress);
        self.stall_rounds = if same_progress { self.stall_rounds + 1 } else { 0 };
        self.last_stall = Some((self.progress, here));
        let mut woken = false;
        if !again && self.stall_rounds < 1000 {
            for w in self.ctas.iter_mut().flat_map(|c| &mut c.warps).flatten() {
                for g in &mut w.groups {
                    if matches!(g.wait, Wait::Mbar(_)) {
                        g.timed_out = true;
                        woken = true;
                    }
                }
            }
        }
        if !woken {
            self.deadlock();
        }
        woken
    }

    fn deadlock(&mut self) {
        self.pairs_stuck();
        let mut lines = Vec::new();
        let mut blame: Option<(u32, Origin)> = None;
        // All have arrived at the barrier, but not the bytes it was told of: or others have.
        let mut mismatch = None;
        for (c, cta) in self.ctas.iter().enumerate() {
            for w in cta.warps.iter().flatten() {
                for g in &w.groups {
                    let line = self.run.program.code.get(g.pc as usize).map_or(0, |i| i.line);
                    let (weight, what) = self.describe_wait(c, w, g);
                    let [x, y, z] = cta.id;
                    lines.push(format!(
                        "CTA ({x}, {y}, {z}) warp {} lanes {:#010x}, line {line} `{}`: {what}",
                        w.index,
                        g.mask,
                        self.run.module.line(line)
                    ));
                    let at = Origin::of(c, w, Some(g.mask.trailing_zeros()), line);
                    if let Wait::Mbar(Suspended { offset, .. }) = g.wait
                        && cta.mbars.iter().any(|b| b.offset == offset && b.pending == 0 && b.tx != 0)
                    {
                        mismatch = Some(at);
                    }
                    if blame.is_none_or(|(b, _)| weight > b) {
                        blame = Some((weight, at));
                    }
                }
            }
        }
        let Some((weight, at)) = blame else { return };
        let (kind, at) = match (mismatch, weight) {
            (Some(at), _) => (FindingKind::TransactionMismatch, at),
            (None, 2) => (FindingKind::Divergent, at),
            _ => (FindingKind::Deadlock, at),
        };
        let more = lines.len().saturating_sub(64);
        lines.truncate(64);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        self.report(
            kind,
            at,
            format!(
                "no warp of the cluster can go on and nothing is in flight:\n    {}",
                lines.join("\n    ")
            ),
        );
    }

    fn describe_wait(&self, c: usize, w: &Warp, g: &Group) -> (u32, String) {
        let cta = &self.ctas[c];
        match &g.wait {
            Wait::No | Wait::Turn => (0, "can run".to_owned()),
            Wait::Mbar(Suspended { offset, test, .. }) => {
                let want = match test {
                    PhaseTest::Parity(p) => format!("waits for the phase of parity {p}"),
                    PhaseTest::Number(n) => format!("waits for phase {n}"),
                };
                let state = cta.mbars.iter().find(|m| m.offset == *offset);
                let state = state.map_or("gone".to_owned(), |m| m.describe());
                let address = cta.rank << 24 | offset;
                (3, format!("{want} of the mbarrier at shared address {address:#x}, which is in {state}"))
            }
            Wait::Bar { id, .. } => {
                let bar = &cta.bars[*id as usize];
                let arrived: u32 = bar.arrived.iter().map(|m| m.count_ones()).sum();
                let expected = match bar.expected {
                    Some(n) => format!("{n} threads"),
                    None => "all threads of the CTA".to_owned(),
                };
                (
                    1,
                    format!(
                        "waits at barrier {id}, where {arrived} lanes have arrived and {expected} are expected"
                    ),
                )
            }
            Wait::Cluster { phase } => {
                let missing: Vec<u32> = (self.ctas.iter())
                    .filter(|k| k.cluster_arrived.iter().zip(&k.exited).any(|(a, e)| a | e != u32::MAX))
                    .map(|k| k.rank)
                    .collect();
                (
                    1,
                    format!(
                        "waits for phase {phase} of the cluster barrier; CTAs {missing:?} have not all arrived"
                    ),
                )
            }
            Wait::Lanes { need } => {
                let rest = need & !g.mask & w.present();
                (
                    2,
                    format!(
                        "is at an instruction that lanes {need:#010x} must execute together; lanes {rest:#010x} are elsewhere"
                    ),
                )
            }
            Wait::Pair { index } => (3, self.pairs.describe(c, *index)),
            Wait::Tmem { .. } => {
                let held: Vec<String> =
                    cta.tmem.leaks().iter().map(|(a, n)| format!("{n} columns at {a}")).collect();
                (3, format!("waits for free tensor memory; allocated are {}", held.join(", ")))
            }
            Wait::Bulk { groups, .. } => (1, format!("waits until at most {groups} bulk groups are pending")),
            Wait::Copies { groups } => {
                (1, format!("waits until at most {groups} cp.async groups are pending"))
            }
            Wait::Warpgroup { complete } => {
                (2, format!("waits until all warps of its warpgroup have committed {complete} wgmma groups"))
            }
            Wait::Registers { missing } => (3, self.describe_registers(c, *missing)),
        }
    }
}
