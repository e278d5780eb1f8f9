//! Operations across the lanes of a warp, and barriers of threads.

use super::report::Origin;
use super::state::{Cluster, Group, Wait, Warp};
use super::step::{Ctx, Flow, bits};
use crate::finding::FindingKind;
use crate::lanes::Lanes;
use crate::program::{BarKind, Op, Order, Pred, SINK, Shuffle, Slot, Vote};

impl<'r> Cluster<'r> {
    /// Lanes of a member mask; `Err` until all of them have arrived.
    fn members(&mut self, x: Ctx, w: &Warp, mask: Slot) -> Result<u32, Flow> {
        let v = self.read(x, w, mask);
        let first = v[x.m.trailing_zeros() as usize & 31] as u32;
        if let Some(lane) = bits(x.m).find(|&i| v[i as usize] as u32 >> i & 1 == 0) {
            let at = Origin::of(x.c, w, Some(lane), x.line);
            let mask = v[lane as usize];
            self.report(
                FindingKind::NonUniform,
                at,
                format!(
                    "lane {lane} executes this instruction, but its member mask {mask:#010x} does not name it"
                ),
            );
            return Err(Flow::Stop);
        }
        match self.converge(w, x.m, first) {
            None => Ok(first & w.present()),
            Some(f) => Err(f),
        }
    }

    /// Lanes with different member masks form different groups: each continues when its own lanes have arrived.
    pub(super) fn collective(&mut self, x: Ctx, w: &mut Warp, g: &mut Group, op: &'r Op) -> Flow {
        let mask = match op {
            Op::BarWarpSync { mask }
            | Op::Vote { mask, .. }
            | Op::Shfl { mask, .. }
            | Op::Match { mask, .. }
            | Op::Redux { mask, .. }
            | Op::Elect { mask, .. } => *mask,
            _ => return self.meeting(x, w, g, op),
        };
        let masks = self.read(x, w, mask);
        let (mut left, mut done, mut need) = (x.m, 0, 0);
        while left != 0 {
            let first = masks[left.trailing_zeros() as usize] as u32;
            let class = bits(left).filter(|&i| masks[i as usize] as u32 == first).fold(0, |a, i| a | 1 << i);
            left &= !class;
            match self.meeting(Ctx { m: class, ..x }, w, g, op) {
                Flow::Next => done |= class,
                Flow::Wait(Wait::Lanes { need: n }) => need |= n,
                other => return other,
            }
        }
        match (done, x.m & !done) {
            (_, 0) => Flow::Next,
            (0, _) => Flow::Wait(Wait::Lanes { need }),
            (done, waiting) => Flow::Split(vec![(g.pc + 1, done), (g.pc, waiting)]),
        }
    }

    fn meeting(&mut self, x: Ctx, w: &mut Warp, g: &mut Group, op: &'r Op) -> Flow {
        match self.collective_inner(x, w, g, op) {
            Ok(f) | Err(f) => f,
        }
    }

    fn collective_inner(&mut self, x: Ctx, w: &mut Warp, g: &mut Group, op: &'r Op) -> Result<Flow, Flow> {
        let m = x.m;
        match op {
            Op::Bar { kind, id, count, aligned, p, d, dp } => {
                return Ok(self.bar(x, w, g, *kind, [*id, *count, *d], *aligned, *p, *dp));
            }
            Op::BarWarpSync { mask } => {
                self.members(x, w, *mask)?;
                self.lanes_met(x, w);
            }
            Op::ClusterArrive { aligned } => {
                if *aligned && let Some(f) = self.converge(w, m, u32::MAX) {
                    return Ok(f);
                }
                let again = w.cluster_arrived & m;
                if again != 0 {
                    let at = Origin::of(x.c, w, Some(again.trailing_zeros()), x.line);
                    self.report(
                        FindingKind::BarrierMisuse,
                        at,
                        "a thread arrives at the cluster barrier twice without a wait in between",
                    );
                    return Ok(Flow::Stop);
                }
                w.cluster_arrived |= m;
                self.ctas[x.c].cluster_arrived[w.index as usize] |= m;
                if let Some(t) = &mut self.tracker {
                    let agent = t.agent(x.c, w.index);
                    t.cluster_release(agent, x.order == Order::Relaxed);
                }
                w.cluster_phase = self.cluster_phase;
                self.progress += 1;
                self.settle_barriers(x.c);
            }
            Op::ClusterWait { aligned } => {
                if *aligned && let Some(f) = self.converge(w, m, u32::MAX) {
                    return Ok(f);
                }
                let without = m & !w.cluster_arrived;
                if without != 0 {
                    let at = Origin::of(x.c, w, Some(without.trailing_zeros()), x.line);
                    self.report(
                        FindingKind::BarrierMisuse,
                        at,
                        "a wait at the cluster barrier without an arrival since the last wait",
                    );
                    return Ok(Flow::Stop);
                }
                let phase = w.cluster_phase;
                if self.cluster_phase <= phase {
                    return Ok(Flow::Wait(Wait::Cluster { phase }));
                }
                w.cluster_arrived &= !m;
                self.pairs.cluster_wait(x.c, w.index);
                if let Some(t) = &mut self.tracker {
                    let agent = t.agent(x.c, w.index);
                    t.cluster_acquire(agent);
                    t.lanes_met(agent);
                }
            }
            Op::Vote { kind, d, p, src, mask } => {
                let members = self.members(x, w, *mask)?;
                let v = self.read_pred(x, w, *src) & members;
                match kind {
                    Vote::Ballot => w.set(*d, m, &[u64::from(v); 32]),
                    Vote::All => w.set_pred(*p, m, if v == members { u32::MAX } else { 0 }),
                    Vote::Any => w.set_pred(*p, m, if v != 0 { u32::MAX } else { 0 }),
                    Vote::Uni => w.set_pred(*p, m, if v == members || v == 0 { u32::MAX } else { 0 }),
                }
            }
            Op::Shfl { kind, d, p, a, b, c, mask } => {
                let members = self.members(x, w, *mask)?;
                // A value that nothing wrote goes on; the lanes it comes from must be known.
                let known = self.known(x, w, *a);
                let va = *w.lanes(self.run.program, *a);
                let [vb, vc] = [*b, *c].map(|s| self.read(x, w, s));
                let mut out = [0u64; 32];
                let (mut ok, mut missing) = (0u32, 0u32);
                for i in bits(m) {
                    let lane = i;
                    let bval = vb[i as usize] as u32 & 31;
                    let cval = vc[i as usize] as u32 & 31;
                    let segment = vc[i as usize] as u32 >> 8 & 31;
                    let max = lane & segment | cval & !segment;
                    let min = lane & segment;
                    let (from, valid) = match kind {
                        Shuffle::Up => (lane.wrapping_sub(bval), lane as i32 - bval as i32 >= max as i32),
                        Shuffle::Down => (lane + bval, lane + bval <= max),
                        Shuffle::Bfly => (lane ^ bval, lane ^ bval <= max),
                        Shuffle::Idx => (min | bval & !segment, (min | bval & !segment) <= max),
                    };
                    let from = if valid { from } else { lane };
                    ok |= u32::from(valid) << i;
                    if members >> from & 1 == 0 {
                        let at = Origin::of(x.c, w, Some(lane), x.line);
                        self.report(
                            FindingKind::UninitialisedRegister,
                            at,
                            format!("lane {lane} reads from lane {from}, which does not take part"),
                        );
                    }
                    out[i as usize] = va[from as usize & 31];
                    missing |= (!known >> (from & 31) & 1) << i;
                }
                w.set(*d, m, &out);
                w.set_pred(*p, m, ok);
                if missing != 0 {
                    w.spoil(*d, Some((missing, *a)), x.line);
                }
            }
            Op::Match { all, d, p, a, mask } => {
                let members = self.members(x, w, *mask)?;
                let v = self.read(x, w, *a);
                let same = |i: u32| {
                    bits(members).fold(0u32, |acc, j| acc | u32::from(v[i as usize] == v[j as usize]) << j)
                };
                let mut out = [0u64; 32];
                if *all {
                    let all_same = bits(m).next().is_some_and(|i| same(i) == members);
                    if all_same {
                        out = [u64::from(members); 32];
                    }
                    w.set_pred(*p, m, if all_same { u32::MAX } else { 0 });
                } else {
                    for i in bits(m) {
                        out[i as usize] = u64::from(same(i));
                    }
                }
                w.set(*d, m, &out);
            }
            Op::Redux { f, d, a, mask } => {
                let members = self.members(x, w, *mask)?;
                let v = self.read(x, w, *a);
                let mut lanes = bits(members);
                let Some(first) = lanes.next() else {
                    return Ok(Flow::Next);
                };
                let mut acc: Lanes = [v[first as usize]; 32];
                let mut out: Lanes = [0; 32];
                for i in lanes {
                    f(&acc, &[v[i as usize]; 32], &mut out);
                    acc = out;
                }
                w.set(*d, m, &acc);
            }
            Op::Activemask { d } => w.set(*d, m, &[u64::from(m); 32]),
            Op::Elect { d, p, mask } => {
                let members = self.members(x, w, *mask)?;
                // The ISA leaves the choice open; it is the same lane each time.
                let leader = members.trailing_zeros();
                w.set(*d, m, &[u64::from(leader); 32]);
                w.set_pred(*p, m, 1u32.checked_shl(leader).unwrap_or(0));
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operands of the instruction")]
    fn bar(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        g: &Group,
        kind: BarKind,
        [id, count, d]: [Slot; 3],
        aligned: bool,
        p: Pred,
        dp: u32,
    ) -> Flow {
        if aligned && let Some(f) = self.converge(w, x.m, u32::MAX) {
            return f;
        }
        let ids = self.read(x, w, id);
        let Some(id) = self.uniform(x, w, &ids, "the barrier number") else {
            return Flow::Stop;
        };
        let at = Origin::of(x.c, w, None, x.line);
        if id > 15 {
            self.report(FindingKind::BarrierMisuse, at, format!("barrier {id}: there are 16, from 0"));
            return Flow::Stop;
        }
        let id = id as usize;
        if g.resumed {
            let generation = self.ctas[x.c].bars[id].generation;
            self.bar_heard(x, w, id);
            return self.bar_result(x, w, kind, id, generation, d, dp);
        }
        let expected = if count == SINK {
            None
        } else {
            let v = self.read(x, w, count);
            let Some(n) = self.uniform(x, w, &v, "the thread count of a barrier") else {
                return Flow::Stop;
            };
            if n == 0 || n % 32 != 0 || n > 1024 {
                self.report(
                    FindingKind::BarrierMisuse,
                    at,
                    format!("barrier {id} expects {n} threads: the count is a multiple of the warp size, 32 to 1024"),
                );
                return Flow::Stop;
            }
            Some(n as u32)
        };
        let value =
            if matches!(kind, BarKind::Sync | BarKind::Arrive) { 0 } else { self.read_pred(x, w, p) & x.m };
        let bar = &mut self.ctas[x.c].bars[id];
        let index = w.index as usize;
        let fresh = bar.arrived.iter().all(|&m| m == 0);
        if !fresh && bar.expected != expected {
            let (a, b) = (bar.expected, expected);
            self.report(
                FindingKind::BarrierMisuse,
                at,
                format!("threads meet at barrier {id} with different counts: {a:?} and {b:?} (None: the whole CTA)"),
            );
            return Flow::Stop;
        }
        if bar.arrived[index] & x.m != 0 {
            self.report(
                FindingKind::BarrierMisuse,
                at,
                format!("this warp arrives at barrier {id} again before the barrier has completed"),
            );
            return Flow::Stop;
        }
        bar.expected = expected;
        bar.arrived[index] |= x.m;
        bar.popc += value.count_ones();
        bar.and &= value == x.m;
        bar.or |= value != 0;
        let generation = bar.generation;
        self.pairs.bar_arrive(x.c, w.index, id);
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(x.c, w.index);
            t.bar_release(agent, (x.c, id));
        }
        self.progress += 1;
        self.settle_barriers(x.c);
        if self.fatal {
            return Flow::Stop;
        }
        if kind == BarKind::Arrive {
            return Flow::Next;
        }
        if self.ctas[x.c].bars[id].generation > generation {
            self.bar_heard(x, w, id);
            return self.bar_result(x, w, kind, id, generation + 1, d, dp);
        }
        Flow::Wait(Wait::Bar { id: id as u32, generation })
    }

    /// Orders what others did before a completed barrier before what this warp does now.
    fn bar_heard(&mut self, x: Ctx, w: &Warp, id: usize) {
        self.pairs.bar_wait(x.c, w.index, id);
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(x.c, w.index);
            t.bar_acquire(agent, (x.c, id));
            t.lanes_met(agent);
        }
    }

    /// Orders what lanes of a warp did before what any of them does now.
    fn lanes_met(&mut self, x: Ctx, w: &Warp) {
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(x.c, w.index);
            t.lanes_met(agent);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operands of the instruction")]
    fn bar_result(
        &self,
        x: Ctx,
        w: &mut Warp,
        kind: BarKind,
        id: usize,
        generation: u64,
        d: Slot,
        dp: u32,
    ) -> Flow {
        let results = &self.ctas[x.c].bars[id].results;
        let (_, popc, and, or) =
            results.iter().copied().find(|r| r.0 == generation).unwrap_or((generation, 0, false, false));
        let all = |b: bool| if b { u32::MAX } else { 0 };
        match kind {
            BarKind::Popc => w.set(d, x.m, &[u64::from(popc); 32]),
            BarKind::And => w.set_pred(dp, x.m, all(and)),
            BarKind::Or => w.set_pred(dp, x.m, all(or)),
            BarKind::Sync | BarKind::Arrive => {}
        }
        Flow::Next
    }

    /// Completes the barriers that are full; called after arrivals and exits.
    pub(super) fn settle_barriers(&mut self, c: usize) {
        let cta = &mut self.ctas[c];
        for (id, bar) in cta.bars.iter_mut().enumerate() {
            if bar.arrived.iter().all(|&m| m == 0) {
                continue;
            }
            let full = match bar.expected {
                None => bar.arrived.iter().zip(&cta.exited).all(|(a, e)| a | e == u32::MAX),
                Some(n) => {
                    // A warp counts whole once its remaining lanes are here.
                    let arrived: u32 = (bar.arrived.iter().zip(&cta.exited))
                        .map(|(&a, &e)| match a {
                            0 => 0,
                            a if a | e == u32::MAX => 32,
                            a => a.count_ones(),
                        })
                        .sum();
                    arrived >= n
                }
            };
            if full {
                bar.generation += 1;
                self.pairs.bar_complete(c, id);
                if let Some(t) = &mut self.tracker {
                    t.bar_complete((c, id));
                }
                bar.results[(bar.generation % 4) as usize] = (bar.generation, bar.popc, bar.and, bar.or);
                bar.arrived.fill(0);
                (bar.popc, bar.and, bar.or, bar.expected) = (0, true, false, None);
                self.progress += 1;
            }
        }
        let all = (self.ctas.iter())
            .all(|k| k.cluster_arrived.iter().zip(&k.exited).all(|(a, e)| a | e == u32::MAX));
        let any = self.ctas.iter().any(|k| k.cluster_arrived.iter().any(|&a| a != 0));
        if all && any {
            self.cluster_phase += 1;
            if let Some(t) = &mut self.tracker {
                t.cluster_complete();
            }
            self.progress += 1;
            for k in &mut self.ctas {
                k.cluster_arrived.fill(0);
            }
        }
    }
}
