//! `mma.sync` and `wgmma` (ISA sections 9.7.14 and 9.7.15).
//!
//! A `wgmma` reads shared memory and registers at some time between its issue and the wait for its
//! group, in order with the others of its warp; its results are not valid before that wait. The
//! schedule decides when the products are made.

use super::access::{Target, payload};
use super::order::shadow::WHOLE;
use super::order::track::Touch;
use super::order::{Issue, Unit};
use super::report::Origin;
use super::state::{Cluster, Source, Wait, Warp};
use super::step::{Ctx, Flow};
use crate::engine::descriptor::{Packing, spread_slots};
use crate::engine::fragment::Kind;
use crate::engine::wgmma::{self, Instruction, OperandA, WgmmaError};
use crate::finding::FindingKind;
use crate::lanes::Lanes;
use crate::memory::Fault;
use crate::program::{Op, Slot, Space, Wgmma, WgmmaA};
use std::sync::Arc;

/// A `wgmma.mma_async` that no wait has completed.
#[derive(Debug)]
pub(crate) struct PendingWgmma {
    pub op: Arc<Wgmma>,
    /// Group that it belongs to.
    group: u32,
    /// Descriptors of A (0 if A is in registers) and B, and scale-d, as at the issue.
    a: u64,
    b: u64,
    scale_d: bool,
    pub line: u32,
    /// Lanes that execute it.
    pub mask: u32,
    /// First use of a result before the wait.
    pub used: Option<super::results::EarlyUse>,
    /// For the tracker: the accesses that are ordered before it.
    issue: Option<Issue>,
    /// Whether the product was computed.
    done: bool,
}

impl Warp {
    /// Whether a register is the result of a `wgmma` without a wait so far.
    pub fn awaits_wgmma(&self, s: Slot) -> bool {
        self.wgmma.iter().any(|p| p.op.d.contains(&s))
    }
}

impl<'r> Cluster<'r> {
    pub(super) fn matrix_op(&mut self, x: Ctx, w: &mut Warp, op: &'r Op) -> Flow {
        if let Some(f) = self.converge(w, x.m, u32::MAX) {
            return f;
        }
        match op {
            Op::WarpMma(mma) => {
                if let Err(text) = self.warp_mma(x, w, mma) {
                    self.report(FindingKind::IllegalDescriptor, Origin::of(x.c, w, None, x.line), text);
                    return Flow::Stop;
                }
            }
            Op::WmmaMma(mma) => self.wmma_mma(x, w, mma),
            Op::WmmaMove(m) => return self.wmma_move(x, w, m),
            Op::MovMatrix { d, a } => {
                let known = self.known(x, w, *a);
                let v = *w.lanes(self.run.program, *a);
                let element = |r: usize, c: usize| v[4 * r + c / 2] >> (16 * (c % 2)) & 0xffff;
                let out = std::array::from_fn(|t| {
                    let (r, c) = (t / 4, 2 * (t % 4));
                    element(c, r) | element(c + 1, r) << 16
                });
                w.set(*d, x.m, &out);
                // A value that nothing wrote goes on.
                let lost = |t: usize| [0, 1].iter().any(|c| known >> (8 * (t % 4) + 4 * c + t / 8) & 1 == 0);
                let missing = (0..32).fold(0, |m, t| m | u32::from(lost(t)) << t) & x.m;
                if missing != 0 {
                    w.spoil(*d, Some((missing, *a)), x.line);
                }
            }
            Op::ByteMatrix { load, space, at, slots, registers } => {
                let a = self.addresses(x, w, *at, *space);
                return self.byte_matrix(x, w, *load, (*space, *slots), &a, registers);
            }
            Op::WgmmaFence => w.unfenced.fill(false),
            Op::Wgmma(op) => return self.wgmma_issue(x, w, op),
            Op::WgmmaCommit => w.wgmma_groups += 1,
            Op::WgmmaWait { groups } => {
                let complete = w.wgmma_groups.saturating_sub(*groups);
                if !self.warpgroup_committed(x.c, w.index, complete) {
                    return Flow::Wait(Wait::Warpgroup { complete });
                }
                self.wgmma_complete(x.c, w, complete, x.m);
            }
            _ => {}
        }
        if self.fatal { Flow::Stop } else { Flow::Next }
    }

    /// Whether all warps of the warpgroup have committed this many groups: a group belongs to the warpgroup and
    /// completes as a whole (ISA 9.7.15.7.2, 9.7.15.7.3).
    pub(super) fn warpgroup_committed(&self, c: usize, warp: u32, complete: u32) -> bool {
        let first = (warp / 4 * 4) as usize;
        let others = self.ctas[c].warps.iter().skip(first).take(4).flatten();
        others.filter(|o| !o.finished()).all(|o| o.index == warp || o.wgmma_groups >= complete)
    }

    /// Completes the first `complete` groups of a warpgroup. Registers become valid only in the warp that waits.
    /// Shared memory has been read by all four warps, so any thread may release it.
    fn wgmma_complete(&mut self, c: usize, w: &mut Warp, complete: u32, mask: u32) {
        let covered = |w: &Warp| w.wgmma.iter().take_while(|p| p.group < complete).count();
        let own = covered(w);
        self.wgmma_run(c, w, own);
        let first = w.index / 4 * 4;
        for i in first..first + 4 {
            if let Some(mut other) = self.ctas[c].warps.get_mut(i as usize).and_then(Option::take) {
                let n = covered(&other);
                self.wgmma_run(c, &mut other, n);
                self.ctas[c].warps[i as usize] = Some(other);
            }
        }
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(c, w.index);
            t.warpgroup_wait(agent, complete);
        }
        let finished: Vec<PendingWgmma> = w.wgmma.drain(..own).collect();
        for p in finished {
            for &d in &p.op.d {
                if !w.awaits_wgmma(d) {
                    w.init[d as usize] |= mask;
                }
            }
        }
        self.progress += 1;
    }

    /// Rows of 16 bytes, transposed (ISA figures 105 and 108, by the layouts of CUTLASS's
    /// `SM100_U8x8_LDSM_T` and `SM100_U8x4_STSM_T`): byte `b` of a lane's register is in column
    /// `lane / 4 + 8 * (b / 2)`, of the row that lane `row` names.
    fn byte_matrix(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        load: bool,
        (space, slots): (Space, Packing),
        a: &Lanes,
        registers: &[Slot],
    ) -> Flow {
        // A 16 x 16 matrix of a load fills two registers and takes 16 rows; a 16 x 8 matrix of a store
        // comes from one and makes 8.
        let count = 8 * registers.len();
        let row = |lane: usize, r: usize, b: usize| match load {
            true => 16 * (r / 2) + 4 * (lane % 4) + 2 * (r % 2) + b % 2,
            false => 8 * r + 2 * (lane % 4) + b % 2,
        };
        let column = |lane: usize, b: usize| lane / 4 + 8 * (b / 2);
        let mut rows = vec![[0u8; 16]; count];
        // Bytes that nothing has written, a bit each, and the first place of them.
        let (mut missing, mut source) = (vec![0u16; count], None);
        let mut values = vec![[0u64; 32]; registers.len()];
        if !load {
            for (r, &s) in registers.iter().enumerate() {
                let v = self.read(x, w, s);
                for (lane, word) in v.iter().enumerate() {
                    for (b, byte) in word.to_le_bytes()[..4].iter().enumerate() {
                        rows[row(lane, r, b)][column(lane, b)] = *byte;
                    }
                }
            }
        }
        for (lane, bytes) in rows.iter_mut().enumerate() {
            let at = Origin::of(x.c, w, Some(lane as u32), x.line);
            let address = a[lane];
            let target = match address.is_multiple_of(16) {
                true => self.resolve(x.c, space, address),
                false => Err(Fault::Misaligned { address, bytes: 16 }),
            };
            if let Ok(t) = &target {
                let touch = if load { Touch::Read(payload(slots)) } else { Touch::Write(bytes) };
                self.touch(x, w, Some(lane as u32), *t, touch);
            }
            let done = target.clone().and_then(|t| match load {
                true => {
                    let done = self.load_bytes(w, lane as u32, t, &mut bytes[..payload(slots)]);
                    *bytes = spread_slots(slots, *bytes);
                    done
                }
                false => self
                    .store_bytes(w, lane as u32, t, bytes)
                    .map(|()| (true, FindingKind::UninitialisedShared)),
            });
            match done {
                Ok((true, _)) => {}
                Ok((false, _)) => {
                    let Ok(Target::Shared(cta, offset)) = target else { continue };
                    let smem = &self.ctas[cta].smem;
                    missing[lane] = match slots {
                        Packing::Slot4 | Packing::Slot6 => u16::MAX,
                        _ => (0..16).fold(0, |m, b| m | u16::from(!smem.is_written(offset + b, 1)) << b),
                    };
                    source.get_or_insert(Source::Shared(offset + missing[lane].trailing_zeros()));
                }
                Err(f) => {
                    self.fault(at, if load { "ldmatrix" } else { "stmatrix" }, f);
                    return Flow::Stop;
                }
            }
        }
        if load {
            for (r, v) in values.iter_mut().enumerate() {
                for (lane, word) in v.iter_mut().enumerate() {
                    for b in 0..4 {
                        *word |= u64::from(rows[row(lane, r, b)][column(lane, b)]) << (8 * b);
                    }
                }
            }
            for (r, (&d, v)) in registers.iter().zip(&values).enumerate() {
                w.set(d, x.m, v);
                if let Some(source) = source {
                    let lost =
                        |lane: usize| (0..4).any(|b| missing[row(lane, r, b)] >> column(lane, b) & 1 == 1);
                    let lanes = (0..32).fold(0, |m, lane| m | u32::from(lost(lane)) << lane);
                    w.loaded(d, lanes & x.m, source, x.line);
                }
            }
        }
        Flow::Next
    }

    fn wgmma_issue(&mut self, x: Ctx, w: &mut Warp, op: &Arc<Wgmma>) -> Flow {
        let scale_d = self.read_pred(x, w, op.scale_d);
        let bits = std::array::from_fn(|i| u64::from(scale_d >> i & 1));
        let Some(scale_d) = self.uniform(x, w, &bits, "scale-d of wgmma") else {
            return Flow::Stop;
        };
        let descriptor = |cluster: &mut Self, slot, what| {
            let v = cluster.read(x, w, slot);
            cluster.uniform(x, w, &v, what)
        };
        let a = match &op.a {
            WgmmaA::Smem(slot) => descriptor(self, *slot, "the descriptor of A"),
            WgmmaA::Registers(_) => Some(0),
        };
        let b = descriptor(self, op.b, "the descriptor of B");
        let (Some(a), Some(b)) = (a, b) else {
            return Flow::Stop;
        };
        if let WgmmaA::Registers(slots) = &op.a {
            slots.iter().for_each(|&s| self.check(x, w, s));
        }
        if let Some((metadata, _)) = op.sparse {
            self.check(x, w, metadata);
        }
        for &d in &op.d {
            if scale_d == 1 && !w.awaits_wgmma(d) {
                self.check(x, w, d);
            }
        }
        let inputs = match &op.a {
            WgmmaA::Registers(slots) => &slots[..],
            WgmmaA::Smem(_) => &[],
        };
        let sums = if scale_d == 1 { &op.d[..] } else { &[] };
        let late = |s: &&Slot| w.unfenced.get(**s as usize) == Some(&true);
        if let Some(&s) = inputs.iter().chain(sums).find(late) {
            let text = format!(
                "{} was written after the last wgmma.fence of this warp: one must come between the write and wgmma",
                self.run.program.register_name(s)
            );
            self.report(FindingKind::MissingWgmmaFence, Origin::of(x.c, w, None, x.line), text);
        }
        for &d in &op.d {
            w.forget(d, x.m);
        }
        let group = w.wgmma_groups;
        let issue = self.tracker.as_mut().map(|t| {
            let agent = t.agent(x.c, w.index);
            t.issue(agent, WHOLE, group + 1)
        });
        w.wgmma.push(PendingWgmma {
            op: op.clone(),
            group,
            a,
            b,
            scale_d: scale_d == 1,
            line: x.line,
            mask: x.m,
            used: None,
            issue,
            done: false,
        });
        if self.at_issue() {
            self.wgmma_run(x.c, w, w.wgmma.len());
        }
        if self.fatal { Flow::Stop } else { Flow::Next }
    }

    /// Computes the first `count` products of a warp that are not yet computed.
    pub(super) fn wgmma_run(&mut self, c: usize, w: &mut Warp, count: usize) {
        for i in 0..count.min(w.wgmma.len()) {
            let p = &mut w.wgmma[i];
            if std::mem::replace(&mut p.done, true) {
                continue;
            }
            if self.time.as_ref().is_some_and(|h| !h.values) {
                continue;
            }
            let (op, line, a, b, scale_d) = (p.op.clone(), p.line, p.a, p.b, p.scale_d);
            let issue = p.issue.take();
            let at = Origin::of(c, w, None, line);
            let program = self.run.program;
            let lanes = |slot: Slot| *w.lanes(program, slot);
            let instruction = Instruction {
                kind: op.kind,
                n: op.n,
                a: match &op.a {
                    WgmmaA::Smem(_) => OperandA::Smem(a),
                    WgmmaA::Registers(slots) => {
                        OperandA::Registers(slots.iter().map(|&s| lanes(s)).collect())
                    }
                },
                b,
                a_major: op.a_major,
                b_major: op.b_major,
                negate: op.negate,
                warp: w.index % 4,
                sparse: op.sparse.map(|(slot, selector)| (lanes(slot), selector)),
            };
            let zero = [0; 32];
            let mut d: Vec<Lanes> = op.d.iter().map(|&s| if scale_d { lanes(s) } else { zero }).collect();
            let mut unwritten = None;
            let mut reads = Vec::new();
            let result = {
                let read = super::pipe::reader(&self.ctas[c].smem, &mut unwritten);
                let mut read = super::pipe::noting(read, &mut reads, self.tracker.is_some());
                wgmma::execute(&instruction, self.run.options.mma_arithmetic, &mut d, &mut read)
            };
            if let Some(t) = &mut self.tracker {
                t.performing = issue;
            }
            let access = self.unit_access(at, Unit::Wgmma, false);
            for (offset, n) in reads {
                self.track_shared((c, offset), n as usize, &access);
            }
            if let Some(offset) = unwritten {
                let text = format!("wgmma reads shared offset {offset:#x}, which nothing has written");
                self.report(FindingKind::UninitialisedShared, at, text);
            }
            match result {
                Ok(None) => {}
                Ok(Some(text)) => self.report(FindingKind::UndefinedMetadata, at, text),
                Err(WgmmaError::Memory { operand, error }) => {
                    self.fault(at, &format!("operand {operand} of wgmma"), error);
                    return;
                }
                Err(e @ (WgmmaError::Descriptor { .. } | WgmmaError::Metadata(_))) => {
                    let text = WgmmaError::<Fault>::to_string(&e);
                    self.report(FindingKind::IllegalDescriptor, at, text);
                    return;
                }
            }
            for (&slot, v) in op.d.iter().zip(&d) {
                w.regs[slot as usize] = *v;
            }
            let k = 256 / op.kind.bits() as usize;
            let name = match op.kind {
                Kind::Integer { .. } | Kind::Bits { .. } => "wgmma integer",
                _ => "wgmma",
            };
            *self.stats.mma_macs.entry(name).or_default() += (16 * op.n * k) as u64;
        }
    }
}
