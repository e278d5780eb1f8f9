//! Executes one instruction of a group of lanes.

use super::report::Origin;
use super::state::{Cluster, Group, Wait, Warp};
use crate::finding::FindingKind;
use crate::lanes::{Lanes, int};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW};
use crate::program::{CARRY, Clock, Inst, Op, Order, Pred, SINK, Scope, Slot, Space};

/// Where a group continues after an instruction.
#[derive(Debug)]
pub(crate) enum Flow {
    Next,
    Jump(u32),
    /// Lanes continue at several places.
    Split(Vec<(u32, u32)>),
    Wait(Wait),
    Exit,
    /// A fatal finding was made.
    Stop,
}

/// The lanes of a mask, lowest first.
pub(crate) fn bits(mut m: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if m == 0 {
            return None;
        }
        let i = m.trailing_zeros();
        m &= m - 1;
        Some(i)
    })
}

/// Where an instruction runs: CTA, active lanes, source line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ctx {
    pub c: usize,
    pub m: u32,
    pub line: u32,
    pub order: Order,
    pub scope: Scope,
}

impl<'r> Cluster<'r> {
    /// Checks that the whole warp executes an instruction together; `None` if it does.
    pub fn converge(&mut self, w: &Warp, m: u32, need: u32) -> Option<Flow> {
        let need = need & w.present();
        if m & need == need { None } else { Some(Flow::Wait(Wait::Lanes { need })) }
    }

    /// Executes one instruction for the lanes of `m`.
    pub(super) fn execute(&mut self, c: usize, w: &mut Warp, g: &mut Group, m: u32, inst: &'r Inst) -> Flow {
        let x = Ctx { c, m, line: inst.line, order: inst.order, scope: inst.scope };
        if !w.loads.is_empty() || !w.wgmma.is_empty() {
            self.settle(x, w, &inst.op);
            if self.fatal {
                return Flow::Stop;
            }
        }
        let p = self.run.program;
        let mut out: Lanes = [0; 32];
        match &inst.op {
            Op::Nop => {}
            Op::SetMaxNreg { count, increase } => return self.set_max_registers(x, w, *count, *increase),
            Op::Fence(f) => self.track_fence(x, w, *f),
            Op::Alu1 { f, d, a } => {
                let undefined = self.undefined(x, w, &[*a]);
                f(w.lanes(p, *a), &mut out);
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Alu2 { f, d, a, b } => {
                let undefined = self.undefined(x, w, &[*a, *b]);
                f(w.lanes(p, *a), w.lanes(p, *b), &mut out);
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Alu3 { f, d, a, b, c } => {
                let undefined = self.undefined(x, w, &[*a, *b, *c]);
                f(w.lanes(p, *a), w.lanes(p, *b), w.lanes(p, *c), &mut out);
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Permute { d, s } => {
                let selectors = self.read(x, w, s[2]);
                let known = [s[0], s[1]].map(|s| self.known(x, w, s));
                let spreading = [s[0], s[1]].map(|s| w.spreading(s, m));
                let (a, b) = (w.lanes(p, s[0]), w.lanes(p, s[1]));
                // Compilers widen vectors of bytes with undefined ones; one defined byte is enough.
                let mut defined = 0;
                for i in 0..32 {
                    out[i] = int::prmt(a[i], b[i], selectors[i]);
                    let from = |bit: u64| (0..4).any(|k| selectors[i] >> (4 * k) & 4 == bit);
                    let known = known.map(|k| k >> i & 1 == 1);
                    let spoils = spreading.map(|k| k >> i & 1 == 1);
                    let any = known[0] && from(0) || known[1] && from(4);
                    let none = spoils[0] && from(0) || spoils[1] && from(4);
                    defined |= u32::from(any && !none) << i;
                }
                w.set(*d, m, &out);
                let missing = m & !defined;
                if missing != 0 {
                    let from = if missing & (spreading[1] | !known[1]) != 0 { s[1] } else { s[0] };
                    let from = if missing & (spreading[0] | !known[0]) != 0 { s[0] } else { from };
                    w.spoil(*d, Some((missing, from)), x.line);
                }
            }
            Op::Pure { f, d, s } => {
                let undefined = self.undefined(x, w, s);
                let [a, b, e] = s.map(|s| w.lanes(p, s));
                for i in bits(m) {
                    let i = i as usize;
                    out[i] = f.apply(a[i], b[i], e[i]);
                }
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Mov { d, a } => {
                let known = self.known(x, w, *a);
                let v = *w.lanes(p, *a);
                w.set(*d, m, &v);
                if m & !known != 0 {
                    w.spoil(*d, Some((m & !known, *a)), x.line);
                }
            }
            Op::Bfi { d, s, bits } => {
                let undefined = self.undefined(x, w, s);
                let [a, b, e, f] = s.map(|s| w.lanes(p, s));
                for i in 0..32 {
                    out[i] = int::bfi(a[i], b[i], e[i], f[i], *bits);
                }
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Lop3 { d, s, table, p, combine } => {
                let undefined = match *p {
                    SINK => self.undefined(x, w, s),
                    _ => {
                        s.iter().for_each(|&s| self.check(x, w, s));
                        None
                    }
                };
                let [a, b, e] = s.map(|s| w.lanes(self.run.program, s));
                for i in 0..32 {
                    out[i] = int::lop3(a[i], b[i], e[i], *table);
                }
                if *p != SINK {
                    let nonzero = (0..32).fold(0u32, |acc, i| acc | u32::from(out[i] != 0) << i);
                    let q = combine.map(|(and, q)| (and, self.read_pred(x, w, q)));
                    w.set_pred(
                        *p,
                        m,
                        match q {
                            Some((true, q)) => nonzero & q,
                            Some((false, q)) => nonzero | q,
                            None => nonzero,
                        },
                    );
                }
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Cvt { how, d, a, b, packed } => {
                let two = *packed && *b != SINK;
                let undefined = self.undefined(x, w, &[*a, if two { *b } else { *a }]);
                let va = w.lanes(p, *a);
                if two {
                    let vb = w.lanes(p, *b);
                    for i in bits(m) {
                        out[i as usize] = how.pack(va[i as usize], vb[i as usize]);
                    }
                } else {
                    for i in bits(m) {
                        let v = va[i as usize];
                        out[i as usize] = if *packed { how.repack(v) } else { how.apply(v) };
                    }
                }
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
            }
            Op::Carry { d, a, b, subtract, use_carry, set_carry, bits } => {
                let undefined = match set_carry {
                    false => self.undefined(x, w, &[*a, *b]),
                    true => {
                        self.check(x, w, *a);
                        self.check(x, w, *b);
                        None
                    }
                };
                let (va, vb) = (*w.lanes(p, *a), *w.lanes(p, *b));
                let carry = if *use_carry {
                    self.read_pred(x, w, Pred { slot: CARRY, negated: false })
                } else if *subtract {
                    u32::MAX
                } else {
                    0
                };
                let mut carry_out = 0;
                for i in 0..32 {
                    // A borrow is kept as the carry of a + !b + 1.
                    let b = if *subtract { !vb[i] } else { vb[i] };
                    let b = if *bits == 32 { u64::from(b as u32) } else { b };
                    let sum = u128::from(va[i]) + u128::from(b) + u128::from(carry >> i & 1);
                    out[i] = if *bits == 32 { u64::from(sum as u32) } else { sum as u64 };
                    carry_out |= ((sum >> bits & 1) as u32) << i;
                }
                w.set(*d, m, &out);
                w.spoil(*d, undefined, x.line);
                if *set_carry {
                    w.set_pred(CARRY, m, carry_out);
                }
            }
            Op::Pack { d, s, bits } => {
                let per = (64 / bits).min(s.len() as u32) as usize;
                for (k, d) in d.iter().enumerate() {
                    out = [0; 32];
                    // Compilers pack undefined halves that nothing uses; one defined part is enough.
                    let (mut known, mut spoils, mut from) = (0, 0, SINK);
                    for (j, s) in s.iter().skip(k * per).take(per).enumerate() {
                        let defined = self.known(x, w, *s);
                        known |= defined;
                        if m & !defined != 0 {
                            let spreading = w.spreading(*s, m);
                            if from == SINK || spreading != 0 {
                                from = *s;
                            }
                            spoils |= spreading;
                        }
                        let v = w.lanes(p, *s);
                        for i in 0..32 {
                            out[i] |= v[i] << (j as u32 * bits);
                        }
                    }
                    w.set(*d, m, &out);
                    let missing = m & (!known | spoils);
                    if missing != 0 {
                        w.spoil(*d, Some((missing, from)), x.line);
                    }
                }
            }
            Op::Unpack { d, s, bits } => {
                let per = (64 / bits).max(1) as usize;
                let mask = if *bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                let known: Vec<u32> = s.iter().map(|s| self.known(x, w, *s)).collect();
                let values: Vec<Lanes> = s.iter().map(|s| *w.lanes(p, *s)).collect();
                for (j, d) in d.iter().enumerate() {
                    let Some(v) = values.get(j / per) else {
                        continue;
                    };
                    for i in 0..32 {
                        out[i] = v[i] >> ((j % per) as u32 * bits) & mask;
                    }
                    w.set(*d, m, &out);
                    let missing = m & !known[j / per];
                    if missing != 0 {
                        w.spoil(*d, Some((missing, s[j / per])), x.line);
                    }
                }
            }
            Op::Setp { f, p: pd, q, a, b, combine } => {
                self.check(x, w, *a);
                self.check(x, w, *b);
                let r = f(w.lanes(p, *a), w.lanes(p, *b));
                self.set_compared(x, w, r, *combine, *pd, *q);
            }
            Op::Setp2 { f, p, q, a, b, combine } => {
                let (va, vb) = (self.read(x, w, *a), self.read(x, w, *b));
                let low = f(&va.map(|v| v & 0xffff), &vb.map(|v| v & 0xffff));
                let high = f(&va.map(|v| v >> 16 & 0xffff), &vb.map(|v| v >> 16 & 0xffff));
                self.set_compared(x, w, low, *combine, *p, SINK);
                self.set_compared(x, w, high, *combine, *q, SINK);
            }
            Op::Set { f, d, a, b, combine, yes } => {
                let (va, vb) = (self.read(x, w, *a), self.read(x, w, *b));
                let mut r = f(&va, &vb);
                if let Some((table, q)) = combine {
                    let q = self.read_pred(x, w, *q);
                    r = truth(*table, r, q);
                }
                for (i, o) in out.iter_mut().enumerate() {
                    *o = if r >> i & 1 == 1 { *yes } else { 0 };
                }
                w.set(*d, m, &out);
            }
            Op::Selp { d, a, b, p: sel } => {
                let sel = self.read_pred(x, w, *sel);
                let known = [self.known(x, w, *a), self.known(x, w, *b)];
                let (va, vb) = (w.lanes(p, *a), w.lanes(p, *b));
                for i in 0..32 {
                    out[i] = if sel >> i & 1 == 1 { va[i] } else { vb[i] };
                }
                w.set(*d, m, &out);
                let missing = m & !(known[0] & sel | known[1] & !sel);
                if missing != 0 {
                    let from = if missing & sel & !known[0] != 0 { *a } else { *b };
                    w.spoil(*d, Some((missing, from)), x.line);
                }
            }
            Op::Truth { d, a, b, table } => {
                let (a, b) = (self.read_pred(x, w, *a), self.read_pred(x, w, *b));
                w.set_pred(*d, m, truth(*table, a, b));
            }
            Op::ReadClock { d, what } => {
                let (clocks, ns) = match &self.time {
                    None => (self.executed, self.run.start.elapsed().as_nanos() as u64),
                    Some(h) => (h.now as u64, (h.now * h.nanoseconds) as u64),
                };
                let v = match what {
                    Clock::Low => clocks & 0xffff_ffff,
                    Clock::High => clocks >> 32,
                    Clock::Wide => clocks,
                    Clock::Globaltimer => ns,
                    Clock::GlobaltimerLo => ns & 0xffff_ffff,
                    Clock::GlobaltimerHi => ns >> 32,
                };
                w.set(*d, m, &[v; 32]);
            }
            Op::Bra { target } => return Flow::Jump(*target),
            Op::Brx { index, targets } => return self.brx(x, w, *index, targets),
            Op::Call { target } => {
                if w.returns.is_empty() {
                    w.returns = vec![Vec::new(); 32];
                }
                for i in bits(m) {
                    w.returns[i as usize].push(g.pc + 1);
                }
                return Flow::Jump(*target);
            }
            Op::Ret => return self.ret(w, m),
            Op::Exit => return Flow::Exit,
            Op::Trap { what } => {
                let at = Origin::of(c, w, Some(m.trailing_zeros()), x.line);
                self.report(FindingKind::Trap, at, *what);
                return Flow::Stop;
            }
            Op::ToGeneric { d, a, space } => {
                let undefined = self.undefined(x, w, &[*a]);
                let v = *w.lanes(p, *a);
                let base = window(*space);
                w.set(*d, m, &v.map(|v| if base == 0 { v } else { base + (v & 0xffff_ffff) }));
                w.spoil(*d, undefined, x.line);
            }
            Op::FromGeneric { d, a, space } => {
                let undefined = self.undefined(x, w, &[*a]);
                let v = *w.lanes(p, *a);
                let base = window(*space);
                w.set(*d, m, &v.map(|v| v.wrapping_sub(base)));
                w.spoil(*d, undefined, x.line);
            }
            Op::IsSpace { p, a, space } => {
                let v = self.read(x, w, *a);
                let own = u64::from(self.ctas[c].rank);
                let yes = |v: u64| {
                    let within = |base: u64| (base..base + WINDOW).contains(&v);
                    match space {
                        Space::SharedCta => within(SHARED_WINDOW) && (v - SHARED_WINDOW) >> 24 == own,
                        Space::SharedCluster => within(SHARED_WINDOW),
                        Space::Local => within(LOCAL_WINDOW),
                        Space::Param => within(PARAM_WINDOW),
                        _ => v >= PARAM_WINDOW + WINDOW,
                    }
                };
                let r = (0..32).fold(0, |acc, i| acc | u32::from(yes(v[i])) << i);
                w.set_pred(*p, m, r);
            }
            Op::Mapa { d, a, rank, generic } => {
                let (v, r) = (self.read(x, w, *a), self.read(x, w, *rank));
                for i in 0..32 {
                    let base = if *generic { SHARED_WINDOW } else { 0 };
                    out[i] = base + (v[i] & 0xff_ffff | (r[i] & 0xff) << 24);
                }
                w.set(*d, m, &out);
            }
            Op::GetCtaRank { d, a } => {
                let v = self.read(x, w, *a);
                w.set(*d, m, &v.map(|v| v >> 24 & 0xff));
            }
            Op::CopyLocal { dst, src, bytes } => return self.copy_local(x, w, *dst, *src, *bytes),
            Op::Load { .. }
            | Op::Store { .. }
            | Op::Atom { .. }
            | Op::WideAtom { .. }
            | Op::LdMatrix { .. }
            | Op::StMatrix { .. }
            | Op::BulkFill { .. }
            | Op::Prefetch { .. } => return self.memory_op(x, w, &inst.op),
            Op::Bar { .. }
            | Op::BarWarpSync { .. }
            | Op::ClusterArrive { .. }
            | Op::ClusterWait { .. }
            | Op::Vote { .. }
            | Op::Shfl { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Activemask { .. }
            | Op::Elect { .. } => return self.collective(x, w, g, &inst.op),
            Op::MbarInit { .. }
            | Op::MbarInval { .. }
            | Op::MbarArrive { .. }
            | Op::MbarTx { .. }
            | Op::MbarWait { .. }
            | Op::MbarPending { .. } => return self.mbarrier_op(x, w, g, &inst.op),
            Op::CpAsync { .. }
            | Op::CpAsyncCommit
            | Op::CpAsyncWait { .. }
            | Op::CpAsyncArrive { .. }
            | Op::BulkLoad { .. }
            | Op::BulkSmem { .. }
            | Op::BulkStore { .. }
            | Op::TensorLoad(_)
            | Op::TensorStore { .. }
            | Op::TensorPrefetch(_)
            | Op::MapReplace { .. }
            | Op::MapCopy { .. }
            | Op::Remote { .. }
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::TryCancel { .. }
            | Op::QueryCanceled { .. }
            | Op::QueryCtaid { .. } => return self.copy_op(x, w, &inst.op),
            Op::TcAlloc { .. }
            | Op::TcDealloc { .. }
            | Op::TcRelinquish { .. }
            | Op::TcCopy { .. }
            | Op::TcMma(_)
            | Op::TcShift { .. }
            | Op::TcLoad { .. }
            | Op::TcStore { .. }
            | Op::TcWait { .. }
            | Op::TcCommit { .. } => return self.tensor_op(x, w, &inst.op),
            Op::WarpMma(_)
            | Op::WmmaMove(_)
            | Op::WmmaMma(_)
            | Op::MovMatrix { .. }
            | Op::ByteMatrix { .. }
            | Op::WgmmaFence
            | Op::Wgmma(_)
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. } => return self.matrix_op(x, w, &inst.op),
        }
        Flow::Next
    }

    fn set_compared(&mut self, x: Ctx, w: &mut Warp, r: u32, combine: Option<(u8, Pred)>, p: u32, q: u32) {
        match combine {
            None => {
                w.set_pred(p, x.m, r);
                w.set_pred(q, x.m, !r);
            }
            Some((table, c)) => {
                let c = self.read_pred(x, w, c);
                w.set_pred(p, x.m, truth(table, r, c));
                w.set_pred(q, x.m, truth(table, !r, c));
            }
        }
    }

    fn brx(&mut self, x: Ctx, w: &Warp, index: Slot, targets: &[u32]) -> Flow {
        let v = self.read(x, w, index);
        let mut list: Vec<(u32, u32)> = Vec::new();
        for i in bits(x.m) {
            let Some(&t) = targets.get(v[i as usize] as usize) else {
                let at = Origin::of(x.c, w, Some(i), x.line);
                let text = format!("branch index {} of {} targets", v[i as usize], targets.len());
                self.report(FindingKind::OutOfBounds, at, text);
                return Flow::Stop;
            };
            match list.iter_mut().find(|(pc, _)| *pc == t) {
                Some((_, m)) => *m |= 1 << i,
                None => list.push((t, 1 << i)),
            }
        }
        match list.as_slice() {
            [(t, _)] => Flow::Jump(*t),
            _ => Flow::Split(list),
        }
    }

    fn ret(&mut self, w: &mut Warp, m: u32) -> Flow {
        if w.returns.is_empty() {
            return Flow::Exit;
        }
        let mut list: Vec<(u32, u32)> = Vec::new();
        let mut leaving = 0;
        for i in bits(m) {
            match w.returns[i as usize].pop() {
                None => leaving |= 1 << i,
                Some(t) => match list.iter_mut().find(|(pc, _)| *pc == t) {
                    Some((_, m)) => *m |= 1 << i,
                    None => list.push((t, 1 << i)),
                },
            }
        }
        match list.as_slice() {
            [] => Flow::Exit,
            [(t, _)] if leaving == 0 => Flow::Jump(*t),
            _ if leaving == 0 => Flow::Split(list),
            _ => {
                // Lanes of the kernel's own body and of a function met here: the former leave by the
                // return that ends the kernel.
                list.push((self.run.program.exit_pc, leaving));
                Flow::Split(list)
            }
        }
    }
}

fn window(space: Space) -> u64 {
    match space {
        Space::SharedCta | Space::SharedCluster => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        _ => 0,
    }
}

/// A truth table (bit `2a + b`) on lane masks.
fn truth(table: u8, a: u32, b: u32) -> u32 {
    let on = |i: u32| if table >> i & 1 == 1 { u32::MAX } else { 0 };
    (on(3) & a & b) | (on(2) & a & !b) | (on(1) & !a & b) | (on(0) & !a & !b)
}
