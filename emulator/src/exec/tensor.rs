//! Tensor memory and the issue of matrix products: `tcgen05` (ISA section 9.7.16).
//!
//! `mma`, `cp`, `shift` and `commit` go into the pipe of the CTA that issues them. `ld` and `st` are done by the warp, at the
//! issue or at the wait.

use super::access::Target;
use super::order::track::Touch;
use super::pipe::{PipeOp, Work};
use super::report::Origin;
use super::state::{Cluster, Source, TmemLoad, TmemStore, Wait, Warp};
use super::step::{Ctx, Flow, bits};
use crate::engine::mma::{MmaInstruction, OperandA, Variant};
use crate::engine::tmem::transfer::Transfer;
use crate::engine::tmem::{LANES, Tmem, TmemAddress, TmemError};
use crate::finding::FindingKind;
use crate::launch::{Schedule, TmemLoads};
use crate::memory::Fault;
use crate::program::{MatrixA, Mma, Op, SINK, Slot, Space, TcAccess, TcReduce};

pub(super) fn tmem_kind(e: &TmemError) -> FindingKind {
    match e {
        TmemError::OutOfBounds { .. } => FindingKind::OutOfBounds,
        TmemError::Unallocated { .. } => FindingKind::TmemUnallocated,
        TmemError::UseAfterFree { .. } => FindingKind::TmemUseAfterFree,
        TmemError::NeverWritten { .. } => FindingKind::UninitialisedTmem,
        TmemError::ForeignLanes { .. } => FindingKind::TmemWrongWarp,
        _ => FindingKind::TmemMisuse,
    }
}

/// The values that a `tcgen05.ld` has read.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    values: Vec<[u32; 32]>,
    /// By register the lanes with undefined values, and the first undefined word.
    undefined: Option<(Vec<u32>, TmemAddress)>,
}

/// The values of `registers` registers, the last of which is a reduction if there is one.
fn load(
    tmem: &Tmem,
    transfer: &Transfer,
    registers: usize,
    reduce: Option<TcReduce>,
) -> Result<Loaded, TmemError> {
    let mut values = vec![[0u32; 32]; registers - usize::from(reduce.is_some())];
    let mut undefined = tmem.load_any(transfer, &mut values)?;
    if let Some(r) = reduce {
        values.push(r.of(&values));
        if let Some((missing, _)) = &mut undefined {
            missing.push(missing.iter().fold(0, |a, m| a | m));
        }
    }
    Ok(Loaded { values, undefined })
}

impl Warp {
    /// Gives registers the values of a `tcgen05.ld`.
    fn take(&mut self, dst: &[Slot], loaded: &Loaded, mask: u32, line: u32) {
        for (&d, v) in dst.iter().zip(&loaded.values) {
            self.set(d, mask, &v.map(u64::from));
        }
        if let Some((missing, first)) = &loaded.undefined {
            for (&d, lanes) in dst.iter().zip(missing) {
                let source = Source::Tensor { lane: first.lane, column: first.column };
                self.loaded(d, lanes & mask, source, line);
            }
        }
    }
}

impl<'r> Cluster<'r> {
    pub(super) fn tmem_error(&mut self, at: Origin, what: &str, e: TmemError) {
        self.report(tmem_kind(&e), at, format!("{what}: {e}"));
    }

    pub(super) fn tensor_op(&mut self, x: Ctx, w: &mut Warp, op: &'r Op) -> Flow {
        let at = Origin::of(x.c, w, None, x.line);
        match op {
            Op::TcAlloc { .. }
            | Op::TcDealloc { .. }
            | Op::TcRelinquish { .. }
            | Op::TcLoad { .. }
            | Op::TcStore { .. }
            | Op::TcWait { .. } => {
                if let Some(f) = self.converge(w, x.m, u32::MAX) {
                    return f;
                }
                return self.warp_op(x, w, at, op);
            }
            _ => {
                for i in bits(x.m) {
                    let one = Ctx { m: 1 << i, ..x };
                    let at = Origin { lane: Some(i), ..at };
                    match self.issue(one, w, i, op) {
                        Ok(Some(work)) => {
                            let commit = matches!(work, Work::Commit { .. });
                            let issue = self.tracker.as_mut().map(|t| {
                                let agent = t.agent(x.c, w.index);
                                t.issue_pipe(agent, i as u8, commit)
                            });
                            self.submit_work(x.c, PipeOp { at, work, issue });
                        }
                        Ok(None) => {}
                        Err(f) => self.fault(at, "tcgen05", f),
                    }
                    if self.fatal {
                        return Flow::Stop;
                    }
                }
            }
        }
        Flow::Next
    }

    fn warp_op(&mut self, x: Ctx, w: &mut Warp, at: Origin, op: &'r Op) -> Flow {
        match op {
            Op::TcAlloc { dst, space, columns, pair } => {
                let n = self.read(x, w, *columns);
                let Some(n) = self.uniform(x, w, &n, "the column count of tcgen05.alloc") else {
                    return Flow::Stop;
                };
                let a = self.addresses(x, w, *dst, *space);
                let Some(a) = self.uniform(x, w, &a, "the address of tcgen05.alloc") else {
                    return Flow::Stop;
                };
                if !a.is_multiple_of(4) {
                    self.fault(at, "tcgen05.alloc", Fault::Misaligned { address: a, bytes: 4 });
                    return Flow::Stop;
                }
                let result = if *pair {
                    let slot = match self.unit_operand(at, x.c, *space, a) {
                        Ok((_, offset)) => offset,
                        Err(f) => {
                            self.fault(at, "tcgen05.alloc", f);
                            return Flow::Stop;
                        }
                    };
                    match self.pair_alloc(x, w, at, (n as u32, slot)) {
                        Ok(address) => Ok(Some(address)),
                        Err(flow) => return flow,
                    }
                } else {
                    let result = self.ctas[x.c].tmem.alloc(n as u32);
                    if let Ok(Some(address)) = result {
                        self.track_alloc(x, w, x.c, address & 0xffff, n as u32);
                    }
                    result
                };
                match result {
                    Ok(Some(address)) => {
                        let r = self.unit_operand(at, x.c, *space, a).and_then(|(cta, offset)| {
                            self.touch(
                                x,
                                w,
                                None,
                                Target::Shared(cta, offset),
                                Touch::Address(&address.to_le_bytes()),
                            );
                            self.store_shared(cta, offset, &address.to_le_bytes())
                        });
                        self.progress += 1;
                        if let Err(f) = r {
                            self.fault(at, "tcgen05.alloc", f);
                        }
                    }
                    Ok(None) => {
                        return Flow::Wait(Wait::Tmem { frees: self.ctas[x.c].tmem_frees });
                    }
                    Err(e) => self.tmem_error(at, "tcgen05.alloc", e),
                }
            }
            Op::TcDealloc { at: address, columns, pair } => {
                let n = self.read(x, w, *columns);
                let Some(n) = self.uniform(x, w, &n, "the column count of tcgen05.dealloc") else {
                    return Flow::Stop;
                };
                let a = self.read(x, w, *address);
                let Some(a) = self.uniform(x, w, &a, "the address of tcgen05.dealloc") else {
                    return Flow::Stop;
                };
                match self.ctas[x.c].tmem.dealloc(a as u32, n as u32) {
                    Ok(()) => {
                        self.track_free(x, w, a as u32 & 0xffff, n as u32);
                        self.ctas[x.c].tmem_frees += 1;
                        if *pair {
                            self.pair_freed(x.c, at, a as u32, n as u32);
                        }
                        self.progress += 1;
                    }
                    Err(e) => self.tmem_error(at, "tcgen05.dealloc", e),
                }
            }
            Op::TcRelinquish { pair } => {
                self.ctas[x.c].tmem.relinquish_alloc_permit();
                if *pair {
                    self.pair_relinquished(x.c, at);
                }
            }
            Op::TcLoad { access, dst, reduce } => {
                let Some(transfer) = self.transfer(x, w, access, "the address of tcgen05.ld") else {
                    return Flow::Stop;
                };
                if self.without_values() {
                    dst.iter().for_each(|&d| w.set(d, x.m, &[0; 32]));
                    return Flow::Next;
                }
                let clock = self.track_transfer(x, w, &transfer, false);
                let interlocked = self.run.options.tmem_loads == TmemLoads::Interlocked;
                let mut values = None;
                if interlocked || self.at_issue() {
                    match load(&self.ctas[x.c].tmem, &transfer, dst.len(), *reduce) {
                        Ok(v) => values = Some(v),
                        Err(e) => {
                            self.tmem_error(at, "tcgen05.ld", e);
                            return Flow::Stop;
                        }
                    }
                }
                if interlocked {
                    if let Some(loaded) = &values {
                        w.take(dst, loaded, x.m, x.line);
                    }
                    return Flow::Next;
                }
                // The registers hold nothing until the wait, whatever the schedule.
                for &d in dst {
                    w.forget(d, x.m);
                }
                let (line, mask) = (x.line, x.m);
                w.loads.push(TmemLoad {
                    dst: dst.clone(),
                    transfer,
                    reduce: *reduce,
                    values,
                    line,
                    mask,
                    arrived: false,
                    used: None,
                    clock,
                });
            }
            Op::TcStore { access, src } => {
                let Some(transfer) = self.transfer(x, w, access, "the address of tcgen05.st") else {
                    return Flow::Stop;
                };
                if self.without_values() {
                    return Flow::Next;
                }
                self.track_transfer(x, w, &transfer, true);
                let program = self.run.program;
                let missing: Vec<u32> = src.iter().map(|&s| x.m & !self.known(x, w, s)).collect();
                let values = src.iter().map(|&s| w.lanes(program, s).map(|v| v as u32)).collect();
                let undefined = if missing.iter().all(|&m| m == 0) { Vec::new() } else { missing };
                let store = TmemStore { transfer, values, undefined, line: x.line };
                if self.at_issue() {
                    self.store_tmem(x.c, w, &store);
                } else {
                    w.stores.push(store);
                }
                self.progress += 1;
            }
            Op::TcWait { load: true } => {
                self.track_tensor_wait(x, w, true);
                for i in 0..w.loads.len() {
                    self.arrive(x, w, i);
                    if self.fatal {
                        return Flow::Stop;
                    }
                }
                w.loads.clear();
            }
            Op::TcWait { load: false } => {
                self.track_tensor_wait(x, w, false);
                self.flush_tmem(x.c, w);
            }
            _ => {}
        }
        if self.fatal { Flow::Stop } else { Flow::Next }
    }

    /// The words that a warp's `ld` or `st` accesses; `None` if its lanes have different addresses, which is a
    /// finding.
    fn transfer(&mut self, x: Ctx, w: &mut Warp, access: &TcAccess, what: &str) -> Option<Transfer> {
        let &TcAccess { at, shape, repeat, packed, split } = access;
        let addresses = self.addresses(x, w, at, Space::SharedCta);
        let address = self.uniform(x, w, &addresses, what)? as u32;
        self.check_lane(Origin::of(x.c, w, None, x.line), address);
        Some(Transfer { shape, repeat, packed, half_split: split, address, warp: w.index })
    }

    /// Under strict tracking: checks that the lane field of a tensor-memory address is below 128; hardware takes it
    /// modulo 128.
    fn check_lane(&mut self, at: Origin, address: u32) {
        let lane = address >> 16;
        if lane >= LANES && self.strict() {
            let text = format!(
                "lane {lane} in the tensor memory address {address:#010x}: a CTA has lanes 0 to {}, and its own whichever CTA of a pair it is",
                LANES - 1
            );
            self.report(FindingKind::TmemLaneWrapped, at, text);
        }
    }

    /// Gives the registers of a `tcgen05.ld` their values, if it has not happened.
    pub(super) fn arrive(&mut self, x: Ctx, w: &mut Warp, index: usize) {
        let l = &mut w.loads[index];
        if std::mem::replace(&mut l.arrived, true) {
            return;
        }
        let (dst, mask, line) = (l.dst.clone(), l.mask, l.line);
        let loaded = match l.values.take() {
            Some(v) => v,
            None => match load(&self.ctas[x.c].tmem, &l.transfer, dst.len(), l.reduce) {
                Ok(v) => v,
                Err(e) => {
                    let at = Origin::of(x.c, w, None, line);
                    self.tmem_error(at, "tcgen05.ld (values read at its wait)", e);
                    return;
                }
            },
        };
        w.take(&dst, &loaded, mask, line);
    }

    /// Whether an operation that may happen late happens at its issue.
    pub(super) fn at_issue(&mut self) -> bool {
        match self.run.options.schedule {
            Schedule::Early => true,
            Schedule::Late => false,
            Schedule::Random(_) | Schedule::Starve { .. } | Schedule::Delay { .. } => self.random(2) == 0,
        }
    }

    fn store_tmem(&mut self, c: usize, w: &Warp, s: &TmemStore) {
        if let Err(e) = self.ctas[c].tmem.store_warp(&s.transfer, &s.values) {
            self.tmem_error(Origin::of(c, w, None, s.line), "tcgen05.st", e);
        }
        if !s.undefined.is_empty() {
            self.ctas[c].tmem.forget_warp(&s.transfer, &s.undefined);
        }
    }

    /// Performs the pending tensor-memory stores of a warp.
    pub(super) fn flush_tmem(&mut self, c: usize, w: &mut Warp) {
        for s in std::mem::take(&mut w.stores) {
            self.store_tmem(c, w, &s);
        }
    }

    /// Operand values of an operation for the pipe.
    fn issue(&mut self, x: Ctx, w: &Warp, lane: u32, op: &'r Op) -> Result<Option<Work>, Fault> {
        let k = lane as usize;
        Ok(Some(match op {
            Op::TcMma(m) => return Ok(self.issue_mma(x, w, lane, m)),
            Op::TcCopy { at, desc, shape, decompress, pair } => {
                let address = self.addresses(x, w, *at, Space::SharedCta)[k] as u32;
                let descriptor = self.read(x, w, *desc)[k];
                self.check_lane(Origin::of(x.c, w, Some(lane), x.line), address & 0x3fff_ffff);
                Work::Copy { shape: *shape, decompress: *decompress, address, descriptor, pair: *pair }
            }
            Op::TcShift { at, pair } => {
                let address = self.addresses(x, w, *at, Space::SharedCta)[k] as u32;
                self.check_lane(Origin::of(x.c, w, Some(lane), x.line), address);
                Work::Shift { address, pair: *pair }
            }
            Op::TcCommit { at, space, mask, .. } => {
                let space = if *space == Space::SharedCta { Space::SharedCluster } else { *space };
                let a = self.addresses(x, w, *at, space)[k];
                let at = Origin::of(x.c, w, Some(lane), x.line);
                let (cta, offset) = self.unit_operand(at, x.c, space, a)?;
                let to = if *mask == SINK {
                    vec![(cta, offset)]
                } else {
                    let m = self.read(x, w, *mask)[k] as u32;
                    if m == 0 || m >> self.ctas.len() != 0 {
                        return Err(Fault::OutOfBounds(format!(
                            "multicast mask {m:#x} in a cluster of {} CTAs",
                            self.ctas.len()
                        )));
                    }
                    bits(m).map(|r| (r as usize, offset)).collect()
                };
                Work::Commit { to }
            }
            _ => return Ok(None),
        }))
    }

    fn issue_mma(&mut self, x: Ctx, w: &Warp, lane: u32, m: &Mma) -> Option<Work> {
        let k = lane as usize;
        let at = Origin::of(x.c, w, Some(lane), x.line);
        let address = |s: &mut Self, a| {
            let address = s.addresses(x, w, a, Space::SharedCta)[k] as u32;
            s.check_lane(at, address & 0x3fff_ffff);
            address
        };
        let d = address(self, m.d);
        let a = match m.a {
            MatrixA::Smem(s) => OperandA::Smem(self.read(x, w, s)[k]),
            MatrixA::Tmem(a) => OperandA::Tmem(address(self, a)),
        };
        let (scale_a, scale_b, scale_vec) = match m.scales {
            Some((sa, sb, v)) => (address(self, sa), address(self, sb), Some(v)),
            None => (0, 0, None),
        };
        let mut disabled_lanes = [0; 8];
        for (slot, &s) in disabled_lanes.iter_mut().zip(&m.lane_mask) {
            *slot = self.read(x, w, s)[k] as u32;
        }
        let scale_input_d = if m.scale_d == SINK { 0 } else { self.read(x, w, m.scale_d)[k] as u32 };
        let instruction = Box::new(MmaInstruction {
            kind: m.kind,
            scale_vec,
            cta_group: m.group,
            idesc: self.read(x, w, m.idesc)[k] as u32,
            d,
            a,
            b: self.read(x, w, m.b)[k],
            scale_a,
            scale_b,
            enable_input_d: self.read_pred(x, w, m.enable_d) >> lane & 1 == 1,
            scale_input_d,
            disabled_lanes,
            variant: Variant {
                metadata: m.metadata.map(|a| address(self, a)),
                stationary: m.stationary,
                zero_columns: if m.zero_columns == SINK { 0 } else { self.read(x, w, m.zero_columns)[k] },
                shift_a: m.shift_a,
            },
        });
        Some(Work::Mma(instruction, m.collector))
    }
}
