//! mbarrier objects (ISA section 9.7.13.15).

use super::order::Strength;
use super::report::Origin;
use super::state::{Cluster, Group, Phase, PhaseTest, Suspended, Wait, Warp};
use super::step::{Ctx, Flow, bits};
use crate::finding::FindingKind;
use crate::launch::{Schedule, Tracking};
use crate::memory::Fault;
use crate::program::{Op, Order, SINK};
use std::sync::Arc;

/// Largest counts of an mbarrier.
const MAX_COUNT: u64 = (1 << 20) - 1;

/// An mbarrier in shared memory. The 8 bytes of memory themselves are opaque.
#[derive(Clone, Debug)]
pub(crate) struct Mbar {
    pub offset: u32,
    /// Number of the current phase; waits name its parity.
    pub phase: u64,
    pub expected: u32,
    pub pending: u32,
    /// Bytes expected minus bytes arrived.
    pub tx: i64,
    /// The current phase, if lanes are suspended for it.
    pub awaited: Option<Arc<Phase>>,
    /// Instruction count of the cluster when the last phase completed.
    pub completed: u64,
}

impl Mbar {
    /// Whether a wait is satisfied.
    pub fn passes(&self, test: PhaseTest) -> bool {
        match test {
            PhaseTest::Parity(p) => self.phase & 1 != u64::from(p & 1),
            PhaseTest::Number(n) => self.phase != n,
        }
    }

    pub fn describe(&self) -> String {
        format!(
            "phase {} (parity {}) with {} of {} arrivals pending and a transaction count of {}",
            self.phase,
            self.phase & 1,
            self.pending,
            self.expected,
            self.tx
        )
    }

    fn settle(&mut self) {
        if self.pending == 0 && self.tx == 0 {
            self.phase += 1;
            self.pending = self.expected;
        }
    }

    /// The opaque state that `mbarrier.arrive` returns.
    fn state(&self) -> u64 {
        self.phase << 32 | u64::from(self.pending)
    }
}

/// An operation on an mbarrier.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MbarOp {
    /// `(arrivals, expected bytes, drop)`.
    Arrive(u32, u32, bool),
    Expect(u32),
    Complete(u32),
}

impl<'r> Cluster<'r> {
    /// Applies an operation; returns the state before its arrival.
    pub fn mbar_apply(&mut self, cta: usize, offset: u32, op: MbarOp, at: Origin) -> Option<u64> {
        self.progress += 1;
        self.pairs.mbar_arrive((cta, offset), at);
        let Some(b) = self.ctas.get_mut(cta).and_then(|c| c.mbars.iter_mut().find(|b| b.offset == offset))
        else {
            self.report(
                FindingKind::MbarrierMisuse,
                at,
                format!("there is no initialised mbarrier at shared offset {offset:#x} of CTA {cta} of the cluster"),
            );
            return None;
        };
        let mut wrong = None;
        let mut kind = FindingKind::MbarrierMisuse;
        let state = b.state();
        match op {
            MbarOp::Arrive(n, bytes, drop) => {
                b.tx += i64::from(bytes);
                if n > b.pending || n == 0 {
                    if n != 0 {
                        kind = FindingKind::ArrivalOverflow;
                    }
                    wrong = Some(format!(
                        "{n} arrivals, but the mbarrier at shared offset {offset:#x} is in {}",
                        b.describe()
                    ));
                } else {
                    b.pending -= n;
                    if drop {
                        b.expected -= n.min(b.expected);
                    }
                }
            }
            MbarOp::Expect(bytes) => b.tx += i64::from(bytes),
            MbarOp::Complete(bytes) => b.tx -= i64::from(bytes),
        }
        if wrong.is_none() && b.tx.unsigned_abs() > MAX_COUNT {
            wrong = Some(format!(
                "the transaction count of the mbarrier at shared offset {offset:#x} leaves its range of +-{MAX_COUNT}: {}",
                b.describe()
            ));
        }
        if wrong.is_none() && !matches!(op, MbarOp::Expect(_)) {
            b.settle();
        }
        if b.phase != state >> 32 {
            if let Some(h) = &mut self.time {
                h.noted = true;
                h.phases.push((cta, offset));
            }
            self.pairs.mbar_complete((cta, offset));
            self.track_phase(cta, offset, at);
            self.wake(cta, offset);
        }
        if let Some(text) = wrong {
            self.report(kind, at, text);
            return None;
        }
        Some(state)
    }

    /// Resumes lanes that are suspended for the phase that has just completed.
    fn wake(&mut self, cta: usize, offset: u32) {
        let Some(b) = self.ctas[cta].mbars.iter_mut().find(|b| b.offset == offset) else { return };
        b.completed = self.executed;
        if let Some(phase) = b.awaited.take().filter(|phase| Arc::strong_count(phase) > 1) {
            phase.end(self.tracker.as_ref().and_then(|t| t.mbar_released((cta, offset))));
        }
    }

    pub(super) fn mbarrier_op(&mut self, x: Ctx, w: &mut Warp, g: &mut Group, op: &'r Op) -> Flow {
        match op {
            Op::MbarWait { at, space, p, token, parity, blocking } => {
                let a = self.addresses(x, w, *at, *space);
                let t = self.read(x, w, *token);
                let mut passed = 0u32;
                let mut wait = None;
                let over = g.suspended.take().filter(|s| s.phase.is_over());
                for i in bits(x.m) {
                    let origin = Origin::of(x.c, w, Some(i), x.line);
                    let (cta, offset) = match self.unit_operand(origin, x.c, *space, a[i as usize]) {
                        Ok(v) => v,
                        Err(f) => {
                            self.fault(origin, "mbarrier wait", f);
                            return Flow::Stop;
                        }
                    };
                    if cta != x.c {
                        self.report(
                            FindingKind::MbarrierMisuse,
                            origin,
                            "a thread can wait on mbarriers of its own CTA only",
                        );
                        return Flow::Stop;
                    }
                    let v = t[i as usize];
                    let test =
                        if *parity { PhaseTest::Parity(v as u32 & 1) } else { PhaseTest::Number(v >> 32) };
                    let woken = over.as_ref().filter(|a| (a.offset, a.test) == (offset, test));
                    let b = self.ctas[cta].mbars.iter_mut().find(|b| b.offset == offset);
                    // Where it has ended, those that a phase of it has woken may go on.
                    if b.is_none() && woken.is_none() {
                        self.report(
                            FindingKind::MbarrierMisuse,
                            origin,
                            format!("a wait on shared offset {offset:#x}, where no mbarrier was initialised"),
                        );
                        return Flow::Stop;
                    }
                    // What completes at once takes its time on hardware, in which others come to their own waits. Where time is
                    // kept it does so by itself.
                    if let Some(b) = &b
                        && *blocking
                        && self.time.is_none()
                        && self.run.options.schedule == Schedule::Early
                        && self.run.options.tracking != Tracking::Strict
                        && woken.is_none()
                        && b.passes(test)
                        && b.completed > self.turn_start
                    {
                        self.makes_way = true;
                        return Flow::Wait(Wait::Turn);
                    }
                    let phase = b
                        .filter(|b| woken.is_none() && !b.passes(test))
                        .map(|b| b.awaited.get_or_insert_default().clone());
                    // A boolean widened with its sign is fine. The SASS of a wait shifts all but the lowest bit away.
                    if *parity && v > 1 && v as u32 != u32::MAX {
                        let text =
                            format!("a phase parity of {v}: it is 0 or 1, and the lowest bit is what counts");
                        self.report(FindingKind::PhaseParity, origin, text);
                    }
                    if phase.is_none() {
                        passed |= 1 << i;
                        self.pairs.mbar_wait((cta, offset), w.index);
                        if let Some(t) = &mut self.tracker {
                            let agent = t.agent(x.c, w.index);
                            t.mbar_acquire(
                                agent,
                                (cta, offset),
                                x.line,
                                Strength::new(x.order == Order::Relaxed, x.scope),
                                woken.and_then(|a| a.phase.released()),
                            );
                        }
                    }
                    if let Some(phase) = phase {
                        wait = Some(Suspended { offset, test, phase });
                        self.polled(x, w);
                    }
                }
                // A `try_wait` may give up at any time (PTX ISA): code that does not look at its result is wrong.
                let gives_up = wait.is_some()
                    && match self.run.options.schedule {
                        Schedule::Early | Schedule::Late => false,
                        Schedule::Random(_) => self.random(8) == 0,
                        // What they wait for is far away where a warp is starved.
                        Schedule::Starve { .. } | Schedule::Delay { .. } => self.random(2) == 0,
                    };
                // Only when no lane can go on is there nothing better to do than to wait.
                if let Some(wait) = wait
                    && *blocking
                    && passed == 0
                    && !g.timed_out
                    && !gives_up
                {
                    g.suspended = Some(wait.clone());
                    return Flow::Wait(Wait::Mbar(wait));
                }
                w.set_pred(*p, x.m, passed);
            }
            Op::MbarPending { d, state } => {
                let v = self.read(x, w, *state);
                w.set(*d, x.m, &v.map(|v| v & 0xffff_ffff));
            }
            Op::MbarInit { at, space, count } => {
                let a = self.addresses(x, w, *at, *space);
                let n = self.read(x, w, *count);
                for i in bits(x.m) {
                    let origin = Origin::of(x.c, w, Some(i), x.line);
                    if let Err(f) = self.mbar_init(x.c, origin, a[i as usize], *space, n[i as usize]) {
                        self.fault(origin, "mbarrier.init", f);
                        return Flow::Stop;
                    }
                }
            }
            Op::MbarInval { at, space } => {
                let a = self.addresses(x, w, *at, *space);
                for i in bits(x.m) {
                    let origin = Origin::of(x.c, w, Some(i), x.line);
                    match self.unit_operand(origin, x.c, *space, a[i as usize]) {
                        Ok((cta, offset)) => {
                            self.end_mbarrier((cta, offset), origin);
                            let before = self.ctas[cta].mbars.len();
                            self.ctas[cta].mbars.retain(|b| b.offset != offset);
                            if self.ctas[cta].mbars.len() == before {
                                self.report(
                                    FindingKind::MbarrierMisuse,
                                    origin,
                                    format!(
                                        "mbarrier.inval at shared offset {offset:#x}, where no mbarrier is"
                                    ),
                                );
                            }
                        }
                        Err(f) => self.fault(origin, "mbarrier.inval", f),
                    }
                }
                self.progress += 1;
            }
            Op::MbarArrive { at, space, state, count, expect, drop } => {
                let a = self.addresses(x, w, *at, *space);
                let n = if *count == SINK { [1; 32] } else { self.read(x, w, *count) };
                let e = if *expect == SINK { [0; 32] } else { self.read(x, w, *expect) };
                let mut out = [0u64; 32];
                for i in bits(x.m) {
                    let k = i as usize;
                    let op = MbarOp::Arrive(n[k] as u32, e[k] as u32, *drop);
                    match self.mbar_lane(x, w, i, a[k], *space, op) {
                        Some(v) => out[k] = v,
                        None => return Flow::Stop,
                    }
                }
                w.set(*state, x.m, &out);
            }
            Op::MbarTx { at, space, bytes, complete } => {
                let a = self.addresses(x, w, *at, *space);
                let n = self.read(x, w, *bytes);
                for i in bits(x.m) {
                    let b = n[i as usize] as u32;
                    let op = if *complete { MbarOp::Complete(b) } else { MbarOp::Expect(b) };
                    if self.mbar_lane(x, w, i, a[i as usize], *space, op).is_none() {
                        return Flow::Stop;
                    }
                }
            }
            _ => {}
        }
        if self.fatal { Flow::Stop } else { Flow::Next }
    }

    fn mbar_lane(
        &mut self,
        x: Ctx,
        w: &Warp,
        lane: u32,
        address: u64,
        space: crate::program::Space,
        op: MbarOp,
    ) -> Option<u64> {
        let at = Origin::of(x.c, w, Some(lane), x.line);
        match self.unit_operand(at, x.c, space, address) {
            Ok((cta, offset)) => {
                if let Some(h) = &mut self.time {
                    h.noted = true;
                    h.remote |= cta != x.c;
                }
                // Arrivals release, but for relaxed ones; what counts bytes is relaxed, and releases what a fence before it has.
                let relaxed = match op {
                    MbarOp::Arrive(..) => Some(x.order == Order::Relaxed),
                    MbarOp::Complete(_) => Some(true),
                    MbarOp::Expect(_) => None,
                };
                if let (Some(t), Some(relaxed)) = (&mut self.tracker, relaxed) {
                    let agent = t.agent(x.c, w.index);
                    let s = Strength::new(relaxed, x.scope);
                    let alone = (x.m != w.present()).then_some(lane as u8);
                    t.mbar_release(agent, (cta, offset), x.line, s, alone);
                }
                self.mbar_apply(cta, offset, op, at)
            }
            Err(f) => {
                self.fault(at, "mbarrier operation", f);
                None
            }
        }
    }

    fn mbar_init(
        &mut self,
        c: usize,
        at: Origin,
        address: u64,
        space: crate::program::Space,
        count: u64,
    ) -> Result<(), Fault> {
        let (cta, offset) = self.unit_operand(at, c, space, address)?;
        if !offset.is_multiple_of(8) {
            return Err(Fault::Misaligned { address, bytes: 8 });
        }
        if count == 0 || count > MAX_COUNT {
            let text = format!("an mbarrier that expects {count} arrivals: 1 to {MAX_COUNT} are allowed");
            self.report(FindingKind::MbarrierMisuse, at, text);
            return Ok(());
        }
        if self.ctas[cta].mbars.iter().any(|b| b.offset == offset) {
            self.end_mbarrier((cta, offset), at);
        }
        // Undefined by the ISA. Hardware writes the word: a new life begins, whatever the old one had pending.
        if let Some(i) = self.ctas[cta].mbars.iter().position(|b| b.offset == offset) {
            let old = self.ctas[cta].mbars.swap_remove(i);
            let text = format!(
                "mbarrier.init at shared offset {offset:#x}, where an mbarrier is alive, in {}; mbarrier.inval comes first",
                old.describe()
            );
            self.report(FindingKind::MbarrierReinitialised, at, text);
        }
        if self.ctas[cta].smem.write(offset, &[0; 8]).is_err() {
            return Err(self.outside(cta, offset, 8));
        }
        let n = count as u32;
        let k = &mut self.ctas[cta];
        k.mbars.push(Mbar { offset, phase: 0, expected: n, pending: n, tx: 0, awaited: None, completed: 0 });
        k.mbar_span = (k.mbar_span.0.min(offset), k.mbar_span.1.max(offset + 8));
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(at.cta as usize, at.warp);
            t.mbar_init(agent, (cta, offset), at.line);
        }
        self.progress += 1;
        Ok(())
    }
}
