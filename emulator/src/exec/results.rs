//! Registers whose values arrive after their instruction: results of `tcgen05.ld` and of `wgmma`.
//!
//! The ISA makes such a register valid at the wait for it. Assemblers track register dependencies
//! all the same, and compilers count on that: Triton lets arithmetic and stores float up between a
//! `tcgen05.ld` (or the commit of a `wgmma` group) and its wait, which then only keeps Tensor Memory
//! from being overwritten or freed too early. So a plain use before the wait takes the value. It is a
//! finding if the thread exits without having waited; of a `wgmma`, and under strict tracking, also if it
//! arrives at an mbarrier or frees Tensor Memory before. Kernels that run on hardware arrive first and
//! wait with a later load: a use waits for its load, and a load that was issued before an arrival reads
//! long before a product that waits for the arrival writes. Any other use (addresses, collective and
//! asynchronous operands) is a finding at once.

use super::report::Origin;
use super::state::{Cluster, Warp};
use super::step::Ctx;
use crate::finding::FindingKind;
use crate::program::{Op, SINK, Slot};

/// The first use of a result before its wait: line, register and lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyUse {
    line: u32,
    slot: Slot,
    lane: u32,
}

/// Calls `f` with the value operands of arithmetic, moves and stores.
fn operands(op: &Op, f: &mut impl FnMut(Slot)) {
    match op {
        Op::Alu1 { a, .. } | Op::Mov { a, .. } => f(*a),
        Op::Alu2 { a, b, .. }
        | Op::Setp { a, b, .. }
        | Op::Set { a, b, .. }
        | Op::Setp2 { a, b, .. }
        | Op::Selp { a, b, .. }
        | Op::Cvt { a, b, .. }
        | Op::Carry { a, b, .. } => [a, b].into_iter().for_each(|s| f(*s)),
        Op::Alu3 { a, b, c, .. } => [a, b, c].into_iter().for_each(|s| f(*s)),
        Op::Lop3 { s, .. } | Op::Permute { s, .. } | Op::Pure { s, .. } => s.iter().for_each(|s| f(*s)),
        Op::Bfi { s, .. } => s.iter().for_each(|s| f(*s)),
        Op::Pack { s, .. } | Op::Unpack { s, .. } => s.iter().for_each(|s| f(*s)),
        Op::Store { src, .. } | Op::StMatrix { src, .. } | Op::TcStore { src, .. } => {
            src.iter().for_each(|s| f(*s));
        }
        Op::Shfl { a, .. } => f(*a),
        Op::ByteMatrix { load: false, registers, .. } => registers.iter().for_each(|s| f(*s)),
        _ => {}
    }
}

/// Whether tensor memory or shared memory may be reused because of this instruction.
fn publishes(op: &Op) -> bool {
    matches!(op, Op::MbarArrive { .. } | Op::TcDealloc { .. })
}

/// Whether the thread ends.
fn ends(op: &Op, w: &Warp) -> bool {
    matches!(op, Op::Exit) || matches!(op, Op::Ret) && w.returns.iter().all(Vec::is_empty)
}

impl<'r> Cluster<'r> {
    /// Before an instruction of a warp with pending results: completes those that it uses, and reports those that
    /// were used without a wait.
    pub(super) fn settle(&mut self, x: Ctx, w: &mut Warp, op: &'r Op) {
        let (publishes, ends) = (publishes(op), ends(op, w));
        if publishes || ends {
            let count = if ends || self.strict() { w.loads.len() } else { 0 };
            let loads = w.loads.iter_mut().take(count).map(|l| ("tcgen05.wait::ld", l.used.take()));
            let products = w.wgmma.iter_mut().map(|p| ("wgmma.wait_group", p.used.take()));
            let early: Vec<_> = loads.chain(products).filter_map(|(n, u)| u.map(|u| (n, u))).collect();
            for (wait, u) in early {
                let name = self.run.program.register_name(u.slot);
                let text = format!(
                    "{name} is read before {wait} has made it valid, and the thread goes on to line {} without that wait",
                    x.line
                );
                let at = Origin::of(x.c, w, Some(u.lane), u.line);
                self.report(FindingKind::MissingWait, at, text);
            }
        }
        if matches!(op, Op::MbarArrive { .. }) && !self.strict() {
            for i in 0..w.loads.len() {
                self.arrive(x, w, i);
                if let Some(t) = &mut self.tracker {
                    let agent = t.agent(x.c, w.index);
                    t.announced_early(agent, w.loads[i].clock);
                }
            }
            self.done_early(x, w);
        }
        let mut slots: Vec<Slot> = Vec::new();
        operands(op, &mut |s| {
            if s != SINK && !slots.contains(&s) {
                slots.push(s);
            }
        });
        for s in slots {
            let early = EarlyUse { line: x.line, slot: s, lane: x.m.trailing_zeros() & 31 };
            if let Some(i) = w.loads.iter().position(|l| l.dst.contains(&s)) {
                w.loads[i].used.get_or_insert(early);
                self.arrive(x, w, i);
                self.done_early(x, w);
            }
            if let Some(i) = w.wgmma.iter().rposition(|p| p.op.d.contains(&s)) {
                w.wgmma[i].used.get_or_insert(early);
                self.wgmma_run(x.c, w, i + 1);
                let p = &w.wgmma[i];
                for &d in &p.op.d {
                    w.init[d as usize] |= p.mask;
                }
            }
            if self.fatal {
                return;
            }
        }
    }

    /// Completes loads whose results have arrived: later accesses of the warp are ordered after them. Strict tracking
    /// requires the wait.
    fn done_early(&mut self, x: Ctx, w: &Warp) {
        let done = w.loads.iter().take_while(|l| l.arrived).last().map(|l| l.clock);
        let strict = self.strict();
        if let (Some(clock), false, Some(t)) = (done, strict, &mut self.tracker) {
            let agent = t.agent(x.c, w.index);
            t.tensor_done(agent, clock);
        }
    }
}
