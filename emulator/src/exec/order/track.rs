//! Hooks of execution into the tracker; they do nothing if tracking is off.

use super::judge::Region;
use super::shadow::{Nature, WHOLE};
use super::world::Act;
use super::{Access, Issue, Unit};
use crate::engine::mma::{MmaInstruction, OperandA, layout};
use crate::engine::tmem::{LdStShape, TmemAddress, transfer::Transfer};
use crate::exec::access::Target;
use crate::exec::queue::{Copy, Place};
use crate::exec::report::Origin;
use crate::exec::state::{Cluster, PhaseTest, Suspended, Wait, Warp};
use crate::exec::step::{Ctx, bits};
use crate::finding::FindingKind;
use crate::program::{Fence, Order, Scope};

/// A warp's own access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch<'a> {
    Read(usize),
    Write(&'a [u8]),
    /// The address that `tcgen05.alloc` writes.
    Address(&'a [u8]),
    /// A read-modify-write.
    Update(usize),
}

impl Cluster<'_> {
    /// Whether memory holds these bytes already.
    fn holds(&self, target: Target, data: &[u8]) -> bool {
        let mut now = [0u8; 64];
        let Some(now) = now.get_mut(..data.len()) else { return false };
        let written = match target {
            Target::Shared(cta, offset) => self.ctas[cta].smem.read(offset, now).unwrap_or(false),
            Target::Global(address) => self.global(address).load(address, now).unwrap_or(false),
            Target::Local(_) | Target::Param(_) => false,
        };
        written && now == data
    }

    /// A warp's own access to shared or global memory.
    #[inline]
    pub(in crate::exec) fn touch(
        &mut self,
        x: Ctx,
        w: &Warp,
        lane: Option<u32>,
        target: Target,
        touch: Touch<'_>,
    ) {
        if let Some(h) = &mut self.time {
            let (bytes, write, atomic) = match touch {
                Touch::Read(n) => (n, false, false),
                Touch::Update(n) => (n, true, true),
                Touch::Write(data) | Touch::Address(data) => (data.len(), true, false),
            };
            h.noted = true;
            h.accesses.push(crate::exec::timed::hooks::Access { target, bytes: bytes as u32, write, atomic });
        }
        if self.tracker.is_some() {
            self.touched(x, w, lane, target, touch);
        }
    }

    fn touched(&mut self, x: Ctx, w: &Warp, lane: Option<u32>, target: Target, touch: Touch<'_>) {
        let (n, write, atomic, same) = match touch {
            Touch::Read(n) => (n, false, false, false),
            Touch::Update(n) => (n, true, true, false),
            Touch::Write(data) | Touch::Address(data) => (data.len(), true, false, self.holds(target, data)),
        };
        let Some(t) = &mut self.tracker else { return };
        let agent = t.agent(x.c, w.index);
        let strong = atomic || x.order != Order::Default;
        let address = matches!(touch, Touch::Address(_));
        let nature = Nature { write, atomic: strong, same, address, ..Nature::default() };
        let a = t.own(agent, lane.map_or(WHOLE, |l| l as u8), x.line, nature);
        let wide = x.scope != Scope::Cta;
        let relaxed = [
            !matches!(x.order, Order::Acquire | Order::Both),
            !matches!(x.order, Order::Release | Order::Both),
        ];
        if let (Target::Global(address), Some(world)) = (target, &self.run.world) {
            let atomic = strong && x.scope.abroad();
            let data = match touch {
                Touch::Write(data) | Touch::Address(data) => Some(data),
                Touch::Read(_) | Touch::Update(_) => None,
            };
            let act = Act { write, atomic, data, line: x.line };
            t.foreign(world, address, n, agent, act);
            if let Some(own) = t.own_world.as_mut().filter(|_| atomic && write) {
                own.release(world, agent, address, relaxed[1]);
            }
        }
        let flag = match target {
            Target::Shared(cta, offset) => {
                t.shared(cta, offset, n as u32, &a);
                (cta as u64) << 24 | u64::from(offset)
            }
            Target::Global(address) => {
                t.global(address, n as u32, &a);
                address
            }
            Target::Local(_) | Target::Param(_) => return,
        };
        if strong {
            t.flag(agent, flag, [write, atomic || !write], relaxed, wide);
        }
    }

    /// After a strong read of global memory: joins what other clusters had released by then.
    #[inline]
    pub(in crate::exec) fn heard_abroad(&mut self, x: Ctx, w: &Warp, address: u64, atomic: bool) {
        let (Some(t), Some(world)) = (&mut self.tracker, &self.run.world) else { return };
        if !(atomic || x.order != Order::Default) || !x.scope.abroad() {
            return;
        }
        let agent = t.agent(x.c, w.index);
        if let Some(own) = &mut t.own_world {
            own.acquire(world, agent, address, !matches!(x.order, Order::Acquire | Order::Both));
        }
    }

    pub(in crate::exec) fn track_fence(&mut self, x: Ctx, w: &Warp, fence: Fence) {
        let Some(t) = &mut self.tracker else { return };
        let agent = t.agent(x.c, w.index);
        match fence {
            Fence::Thread => t.thread_fence(agent, x.scope),
            Fence::Proxy | Fence::ProxyAll => t.proxy_fence(agent),
            Fence::MbarInit => t.init_fence(agent),
            Fence::TensorBefore => t.fence_before(agent),
            Fence::TensorAfter => t.fence_after(agent),
            Fence::MapAcquire | Fence::MapRelease | Fence::None => {}
        }
    }

    /// State that a copy takes from its issue.
    pub(in crate::exec) fn issue_copy(&mut self, at: Origin, copy: &Copy) -> Option<Issue> {
        let t = self.tracker.as_mut()?;
        let agent = t.agent(at.cta as usize, at.warp);
        let clock = match copy {
            Copy::Store { group, .. } | Copy::Small { group, .. } | Copy::SmallArrive { group, .. } => {
                group + 1
            }
            _ => 0,
        };
        let lane = at.lane.map_or(WHOLE, |l| l as u8);
        Some(match copy {
            Copy::Small { .. } | Copy::SmallArrive { .. } => t.issue_own(agent, lane, clock),
            _ => t.issue(agent, lane, clock),
        })
    }

    /// The accesses of a copy whose bytes an mbarrier counts.
    pub(in crate::exec) fn landing(&self, at: Origin, mbar: Place, write: bool) -> Option<Access> {
        let t = self.tracker.as_ref()?;
        let issue = t.performing.as_ref()?;
        let phase = self.ctas.get(mbar.0)?.mbars.iter().find(|b| b.offset == mbar.1)?.phase;
        let (component, clock) = t.mbar_epoch(mbar, phase)?;
        let nature = Nature { write, proxy: true, ..Nature::default() };
        Some(Access {
            agent: issue.agent,
            lane: issue.lane,
            beat: issue.beat,
            component,
            clock,
            line: at.line,
            nature,
            view: Some(issue.view.clone()),
        })
    }

    /// The accesses of an asynchronous operation that its warp's own counters order.
    pub(in crate::exec) fn unit_access(&self, at: Origin, unit: Unit, write: bool) -> Option<Access> {
        let t = self.tracker.as_ref()?;
        let issue = t.performing.as_ref()?;
        let component = t.component(issue.agent, unit);
        let nature = Nature { write, proxy: unit != Unit::Small, ..Nature::default() };
        let view = Some(issue.view.clone());
        Some(Access {
            agent: issue.agent,
            lane: issue.lane,
            beat: issue.beat,
            component,
            clock: issue.clock,
            line: at.line,
            nature,
            view,
        })
    }

    #[inline]
    pub(in crate::exec) fn track_shared(&mut self, (cta, offset): Place, n: usize, a: &Option<Access>) {
        if let (Some(t), Some(a)) = (&mut self.tracker, a) {
            t.shared(cta, offset, n as u32, a);
        }
    }

    #[inline]
    pub(in crate::exec) fn track_global(&mut self, address: u64, n: usize, a: &Option<Access>) {
        if let (Some(t), Some(a)) = (&mut self.tracker, a) {
            if let Some(world) = &self.run.world {
                let act = Act { write: a.nature.write, atomic: a.nature.atomic, data: None, line: a.line };
                t.foreign(world, address, n, a.agent, act);
            }
            t.global(address, n as u32, a);
        }
    }

    /// `tcgen05.ld` and `st`: the count of this one among the warp's loads, or stores.
    pub(in crate::exec) fn track_transfer(
        &mut self,
        x: Ctx,
        w: &Warp,
        transfer: &Transfer,
        store: bool,
    ) -> u32 {
        let Some(t) = &mut self.tracker else { return 0 };
        let agent = t.agent(x.c, w.index);
        let a = t.warp_tensor(agent, x.line, store);
        let width = if transfer.packed { 2 } else { 1 };
        let (columns, second) = match transfer.shape {
            LdStShape::S32x32b => (transfer.repeat, None),
            LdStShape::S16x32bx2 => {
                (transfer.repeat, Some(transfer.address.wrapping_add(transfer.half_split)))
            }
            shape => (2 * shape.registers(transfer.repeat), None),
        };
        for address in [Some(transfer.address), second].into_iter().flatten() {
            let at = TmemAddress::from_bits(address);
            let lanes = match transfer.shape {
                LdStShape::S32x32b => u32::MAX,
                _ => 0xffff << (at.lane & 16),
            };
            t.tensor(x.c, 1 << (w.index % 4), lanes, at.column..at.column + width * columns, &a);
        }
        a.clock
    }

    /// Shared and tensor memory that a `tcgen05.mma` read and wrote.
    pub(in crate::exec) fn track_mma(
        &mut self,
        ctas: std::ops::Range<usize>,
        at: Origin,
        m: &MmaInstruction,
        reads: &[Vec<(u32, u32)>; 2],
    ) {
        let (Some(read), Some(write)) =
            (self.unit_access(at, Unit::Pipe, false), self.unit_access(at, Unit::Pipe, true))
        else {
            return;
        };
        let Ok(i) = m.descriptor() else { return };
        let Some(t) = &mut self.tracker else { return };
        let halves = layout::spreads_rows(&i);
        let n = i.n / layout::copies(&i);
        // With M 64 the rows are in 16 lanes of each quarter.
        let lanes = |a: TmemAddress| if halves { 0xffff << (a.lane & 16) } else { u32::MAX };
        for (rank, cta) in ctas.enumerate() {
            for &(offset, n) in &reads[rank] {
                t.shared(cta, offset, n, &read);
            }
            if let OperandA::Tmem(a) = m.a {
                let a = TmemAddress::from_bits(a);
                t.tensor(cta, 0xf, lanes(a), a.column..a.column + 8, &read);
            }
            if m.scale_vec.is_some() {
                let columns =
                    [(m.scale_a, i.rows_per_cta().div_ceil(32)), (m.scale_b, layout::scale_columns_of_b(n))];
                for (address, count) in columns {
                    let column = TmemAddress::from_bits(address).column;
                    t.tensor(cta, 0xf, u32::MAX, column..column + count, &read);
                }
            }
            if let Some(address) = m.variant.metadata {
                let at = TmemAddress::from_bits(address);
                let first = at.column + i.selector;
                t.tensor(cta, 0xf, lanes(at), first..first + if i.kind.k() > 16 { 2 } else { 1 }, &read);
            }
            let d = TmemAddress::from_bits(m.d);
            t.tensor(cta, 0xf, lanes(d), d.column..d.column + n, &write);
        }
    }

    /// `tcgen05.cp` and `shift` of one CTA.
    pub(in crate::exec) fn track_columns(
        &mut self,
        cta: usize,
        at: Origin,
        (quarters, lanes): (u32, u32),
        columns: std::ops::Range<u32>,
        reads: &[(u32, u32)],
    ) {
        let read = self.unit_access(at, Unit::Pipe, false);
        for &(offset, n) in reads {
            self.track_shared((cta, offset), n as usize, &read);
        }
        let write = self.unit_access(at, Unit::Pipe, true);
        if let (Some(t), Some(a)) = (&mut self.tracker, write) {
            t.tensor(cta, quarters, lanes, columns, &a);
        }
    }

    /// `tcgen05.wait::ld` and `wait::st`.
    pub(in crate::exec) fn track_tensor_wait(&mut self, x: Ctx, w: &Warp, load: bool) {
        if let Some(t) = &mut self.tracker {
            let agent = t.agent(x.c, w.index);
            t.tensor_wait(agent, load);
        }
    }

    /// `tcgen05.dealloc`, which comes after every use.
    pub(in crate::exec) fn track_free(&mut self, x: Ctx, w: &Warp, first: u32, columns: u32) {
        let Some(t) = &mut self.tracker else { return };
        let agent = t.agent(x.c, w.index);
        let nature = Nature { write: true, free: true, ..Nature::default() };
        let a = t.own(agent, WHOLE, x.line, nature);
        t.tensor(x.c, 0xf, u32::MAX, first..first + columns, &a);
    }

    /// `tcgen05.alloc` of columns of CTA `cta`.
    pub(in crate::exec) fn track_alloc(&mut self, x: Ctx, w: &Warp, cta: usize, first: u32, columns: u32) {
        let Some(t) = &mut self.tracker else { return };
        let agent = t.agent(x.c, w.index);
        t.alloc(cta, agent, x.line, first..first + columns);
    }

    /// A wait of lanes for bulk groups, or for groups of `cp.async`, that was satisfied.
    pub(in crate::exec) fn track_groups(&mut self, x: Ctx, w: &Warp, small: bool, groups: u32, read: bool) {
        let Some(t) = &mut self.tracker else { return };
        let agent = t.agent(x.c, w.index);
        let counts = if small { &w.copy_groups } else { &w.bulk_groups };
        let committed = bits(x.m).map(|i| counts[i as usize]).max().unwrap_or(0);
        if small {
            t.group_wait(agent, Unit::Small, committed, groups);
            return;
        }
        t.group_wait(agent, Unit::BulkRead, committed, groups);
        if !read {
            t.group_wait(agent, Unit::BulkWrite, committed, groups);
        }
    }

    /// Called after a phase of an mbarrier has completed. Under strict tracking, a thread that still waits for the
    /// phase before is a finding: hardware wakes it in time, as the emulator does, but nothing guarantees that.
    pub(in crate::exec) fn track_phase(&mut self, cta: usize, offset: u32, at: Origin) {
        let strict = self.strict();
        let Some(t) = &mut self.tracker else { return };
        t.mbar_complete((cta, offset));
        if !strict {
            return;
        }
        let Some(b) = self.ctas[cta].mbars.iter().find(|b| b.offset == offset) else { return };
        let mut late = None;
        for w in self.ctas[cta].warps.iter().flatten() {
            for g in &w.groups {
                let Wait::Mbar(Suspended { offset: o, test: test @ PhaseTest::Parity(_), .. }) = g.wait
                else {
                    continue;
                };
                // Before this phase completed the wait was satisfied; now it is not.
                if o == offset && !b.passes(test) && b.phase >= 2 && !g.timed_out {
                    late = Some((w.index, g.pc));
                }
            }
        }
        if let Some((warp, pc)) = late {
            let line = self.run.program.code.get(pc as usize).map_or(0, |i| i.line);
            let by = at.line;
            let text = format!(
                "the phase that this thread waits for has completed, and so has the next (line {by} `{}`): the mbarrier at shared offset {offset:#x} of CTA {cta} of the cluster runs ahead of a waiter, who must arrive or be waited for before the next phase may complete",
                self.run.module.line(by)
            );
            let at = Origin { cta: cta as u32, warp, lane: None, line };
            self.report(FindingKind::PhaseSkipped, at, text);
        }
    }

    /// Reports what the tracker has found since the last call.
    #[inline]
    pub(in crate::exec) fn report_found(&mut self) {
        let Some(t) = &mut self.tracker else { return };
        let found = t.take_found();
        if found.is_empty() {
            return;
        }
        for f in found {
            let Some(t) = &self.tracker else { return };
            let ((c, w), (old_c, old_w)) = (t.place(f.agent), t.place(f.old_agent));
            let place = match f.region {
                Region::Shared(cta, at) | Region::Exit(cta, at) => {
                    format!("shared offset {at:#x} of CTA {cta} of the cluster")
                }
                Region::Tensor(cta, lane, column) => {
                    format!("tensor memory lane {lane}, column {column} of CTA {cta} of the cluster")
                }
                Region::Global(at) | Region::Abroad(at, _) => self.global(at).describe(at, 1),
                Region::Mbar(cta, at) => {
                    format!(
                        "the mbarrier at shared offset {at:#x} of CTA {cta} of the cluster, initialised and used"
                    )
                }
                Region::Alloc(cta) => format!("allocations of tensor memory of CTA {cta} of the cluster"),
            };
            let old = self.run.module.line(f.old_line);
            let from = match f.region {
                Region::Abroad(_, cluster) => format!("cluster {cluster} of the grid"),
                _ => format!("CTA {old_c} of the cluster, warp {old_w}"),
            };
            let text = match f.region {
                Region::Exit(..) => format!(
                    "{place}: line {} `{old}` ({from}) may be under way when the last thread of the CTA exits: {}",
                    f.old_line, f.text
                ),
                _ => format!(
                    "{place}: line {} `{old}` ({from}) does not come before line {} (CTA {c}, warp {w}): {}",
                    f.old_line, f.line, f.text
                ),
            };
            let at = Origin { cta: c as u32, warp: w, lane: None, line: f.line };
            self.report(f.kind, at, text);
        }
    }
}
