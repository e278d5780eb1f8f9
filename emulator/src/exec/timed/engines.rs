//! TMA, small asynchronous copies and tensor cores: when operations start, what they wait for, when they are
//! done.

use super::{Event, Timed, World};
use crate::engine::collector::{Action, Buffer};
use crate::engine::idesc::{CtaGroup, MmaKind};
use crate::engine::mma::{MmaInstruction, OperandA};
use crate::engine::tensor_map::{Chunk, TensorMapParams};
use crate::engine::tmem::CpShape;
use crate::exec::pipe::Work;
use crate::exec::queue::{Copy, Pending, StoreTo};
use crate::exec::state::Warp;
use crate::time::memory::{LINE, Read, Source};
use crate::time::record::{Bar, Cause, Moment, Track};

/// Requests to L2 that a load makes before other SMs get their turn.
const REQUESTS: u32 = 32;

/// A contiguous part of global memory, or of a box's rows that lie outside of the tensor.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Address of the next byte, or `None` for rows outside.
    global: Option<u64>,
    /// Bytes that are left.
    bytes: u64,
    /// Most bytes of a request.
    request: u64,
}

impl Piece {
    fn global(address: u64, bytes: u64) -> Self {
        Piece { global: Some(address), bytes, request: LINE }
    }

    /// Bytes of the next request, which ends with a line.
    fn next(&self) -> u64 {
        self.global.map_or(self.request, |address| LINE - address % LINE).min(self.bytes)
    }
}

/// A load that an SM's TMA works on.
#[derive(Debug)]
pub(super) struct Load {
    pub cluster: usize,
    cta: usize,
    sm: usize,
    /// SMs whose shared memory it fills.
    to: Vec<usize>,
    /// The pieces that it reads, and whether L2 is to evict them first.
    pieces: Vec<Piece>,
    evicted_first: bool,
    /// The next piece.
    next: usize,
    /// When the TMA starts on it, and when a warp issued it.
    start: Moment,
    issued: f64,
    /// Clocks of the TMA's work on it.
    working: f64,
    /// Total bytes, and requested bytes.
    total: f64,
    sent: f64,
    /// When the first line arrived.
    first: Option<f64>,
    /// The latest line: when it was requested, L2's answer, and when it arrived.
    slowest: Option<(f64, Read, f64)>,
    sequence: u64,
    line: u32,
}

/// The pieces of a tensor copy, and its rows of at most 128 bytes.
fn pieces(map: &TensorMapParams, coords: &[i32], im2col: bool) -> (Vec<Piece>, f64) {
    let rows = f64::from(map.transaction_bytes().max(map.shared_bytes()));
    let row = f64::from(map.shared_row_bytes().clamp(16, 128));
    let gathered = if map.gathers(coords) { 4.0 } else { 1.0 };
    let rows = (rows / row * gathered).max(1.0);
    let mut list: Vec<Piece> = Vec::new();
    let mut add = |global: u64, bytes: u64| match list.last_mut() {
        Some(last) if last.global.is_some_and(|from| from + last.bytes == global) => last.bytes += bytes,
        _ => list.push(Piece::global(global, bytes)),
    };
    let plain = !im2col && !map.gathers(coords) && map.element_strides.iter().all(|&s| s == 1);
    if plain {
        let bits = u64::from(map.data_type.bits());
        let inside = |d: usize| {
            let (from, size) = (i64::from(coords[d]), i64::from(map.box_dims[d]));
            let (low, high) = (from.max(0), (from + size).min(map.global_dims[d] as i64));
            (low, (high - low).max(0))
        };
        let (x, width) = inside(0);
        let outer: Vec<(i64, i64)> = (1..map.rank()).map(inside).collect();
        let count = if width == 0 { 0 } else { outer.iter().map(|o| o.1).product() };
        for i in 0..count {
            let mut rest = i;
            let mut address = map.global_address + x as u64 * bits / 8;
            for (&(low, n), &stride) in outer.iter().zip(&map.global_strides) {
                address += (low + rest % n) as u64 * stride;
                rest /= n;
            }
            add(address, width as u64 * bits / 8);
        }
        let all: u64 = map.box_dims[1..map.rank()].iter().map(|&size| u64::from(size)).product();
        let outside = all - (count as u64).min(all);
        if outside > 0 {
            let request = (u64::from(map.box_dims[0]) * bits / 8).clamp(1, LINE);
            list.push(Piece { global: None, bytes: outside * request, request });
        }
    } else if !im2col {
        // The walk hands out each piece; nothing here can fail.
        let _ = map.load_box::<()>(coords, 0, &mut |chunk| {
            if let Chunk::Copy { global, length, .. } = chunk {
                add(global, u64::from(length));
            }
            Ok(())
        });
    }
    (list, rows)
}

impl<'r> World<'r> {
    /// Processes copies that an instruction has issued; returns when the warp can continue.
    #[allow(clippy::too_many_arguments, reason = "they say which instruction of whom")]
    pub(super) fn copies_issued(
        &mut self,
        k: usize,
        t: &mut Timed<'r>,
        c: usize,
        w: &Warp,
        copies: Vec<u64>,
        at: Moment,
        next: Moment,
        line: u32,
    ) -> Moment {
        let mut next = next;
        let mut small: Vec<u64> = Vec::new();
        let mut small_done = at;
        let mut remote: Vec<u64> = Vec::new();
        let mut remote_done = at;
        let sm = t.ctas[c].sm;
        for sequence in copies {
            let Some(i) = t.cluster.queue.place(sequence) else { continue };
            // Lent from the queue, and given back below.
            let lent = Copy::SmallArrive { mbar: (0, 0), group: 0 };
            let copy = std::mem::replace(&mut t.cluster.queue[i].copy, lent);
            match &copy {
                Copy::TensorLoad { map, coords, pixels, to, first } => {
                    next = next.after(self.chip.tma_issue.value, Cause::TmaIssue);
                    let (list, rows) = match pixels {
                        None => pieces(map, coords, false),
                        Some(p) => {
                            // Pixels lie row by row of the box.
                            let bytes = u64::from(p.0.transaction_bytes());
                            let list = vec![Piece::global(map.global_address, bytes)];
                            (list, bytes as f64 / 128.0)
                        }
                    };
                    let to: Vec<usize> = to.iter().map(|((cta, _), _)| t.ctas[*cta].sm).collect();
                    let map = Some(map.global_address);
                    self.load(k, t, c, to, (list, rows, *first), map, next, sequence, line);
                }
                Copy::BulkLoad { src, bytes, to, first } => {
                    next = next.after(self.chip.tma_issue.value, Cause::TmaIssue);
                    let list = vec![Piece::global(*src, u64::from(*bytes))];
                    let rows = (f64::from(*bytes) / 128.0).max(1.0);
                    let to: Vec<usize> = to.iter().map(|((cta, _), _)| t.ctas[*cta].sm).collect();
                    self.load(k, t, c, to, (list, rows, *first), None, next, sequence, line);
                }
                Copy::Store { from, to, .. } => {
                    next = next.after(self.chip.tma_issue.value, Cause::TmaIssue);
                    let bytes = match to {
                        StoreTo::Linear { bytes, .. } => f64::from(*bytes),
                        StoreTo::Tensor { map, .. } => f64::from(map.transaction_bytes()),
                    };
                    let _ = from;
                    let unit = &mut self.sms[sm];
                    let start = next.max(unit.tma_store);
                    let clocks = bytes / self.chip.tma_store_rate.value;
                    unit.tma_store = start.after(clocks, Cause::TmaStore);
                    let read = start.after(self.chip.tma_store_latency.value + clocks, Cause::TmaStore);
                    self.copy_bar(t, c, "store", line, next.time, read.time);
                    self.push(read.time, Event::Copies(k, vec![sequence], read));
                }
                Copy::BulkSmem { bytes, .. } => {
                    next = next.after(self.chip.tma_issue.value, Cause::TmaIssue);
                    let unit = &mut self.sms[sm];
                    unit.dsmem = unit.dsmem.max(next.time) + f64::from(*bytes) / self.chip.dsmem_rate.value;
                    let done = next.until(unit.dsmem + self.chip.dsmem_latency.value, Cause::Cluster);
                    self.push(done.time, Event::Copies(k, vec![sequence], done));
                }
                Copy::Small { src, bytes, .. } => {
                    // One line after the other; lanes of the warp are issued together.
                    let unit = &mut self.sms[sm];
                    let first = small.is_empty();
                    unit.lsu =
                        unit.lsu.max(at.time) + if first { 1.0 } else { f64::from(*bytes) / LINE as f64 };
                    let request = unit.lsu;
                    let read = self.memory.read(src / LINE, f64::from(*bytes), request, unit.place, false);
                    let unit = &mut self.sms[sm];
                    let entered = unit.port_in.take(read.at, f64::from(*bytes));
                    small_done = small_done.max(at.until(entered + 20.0, Cause::GlobalMemory));
                    small.push(sequence);
                }
                Copy::SmallArrive { .. } => {
                    // After the copies of its thread that are still under way.
                    let last = t.small_done.max(at).after(self.chip.mbarrier_arrive.value, Cause::Mbarrier);
                    self.push(last.time, Event::Copies(k, vec![sequence], last));
                }
                Copy::Remote { data, .. } => {
                    let unit = &mut self.sms[sm];
                    unit.dsmem = unit.dsmem.max(at.time) + data.len() as f64 / self.chip.dsmem_rate.value;
                    // Lanes of the warp arrive together.
                    remote_done = at.until(unit.dsmem + self.chip.dsmem_latency.value, Cause::Cluster);
                    remote.push(sequence);
                }
                Copy::Answer { .. } => {
                    let done = next.after(self.chip.launch_control.value, Cause::LaunchControl);
                    self.push(done.time, Event::Copies(k, vec![sequence], done));
                }
            }
            t.cluster.queue[i].copy = copy;
        }
        if !small.is_empty() {
            t.small_done = t.small_done.max(small_done);
            let unit = &self.sms[sm];
            next = next.until(unit.lsu - 16.0, Cause::GlobalMemory);
            self.push(small_done.time, Event::Copies(k, small, small_done));
        }
        if !remote.is_empty() {
            self.push(remote_done.time, Event::Copies(k, remote, remote_done));
        }
        let _ = w;
        next
    }

    fn first_copy(&self, t: &mut Timed<'r>, c: usize, time: f64) {
        t.ctas[c].times.first_copy.get_or_insert(time);
    }

    fn copy_bar(&mut self, t: &Timed<'r>, c: usize, name: &str, line: u32, start: f64, end: f64) {
        self.bar(t, c, Track::Tma, name, line, start, end);
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a bar")]
    pub(super) fn bar(
        &mut self,
        t: &Timed<'r>,
        c: usize,
        track: Track,
        name: &str,
        line: u32,
        start: f64,
        end: f64,
    ) {
        if t.watched {
            let ns = 1000.0 / self.chip.clock.value;
            let cta = t.cluster.ctas[c].id;
            let (start, length) = (start * ns, (end - start) * ns);
            self.bars.push(Bar { cta, track, name: name.to_owned(), line, ended_by: 0, start, length });
        }
    }

    /// Gives a load to the TMA of an SM. Its requests go out as the TMA works through the box, a few per event, so
    /// that those of several SMs reach L2 in the order of time.
    #[allow(clippy::too_many_arguments, reason = "they say which load of whom")]
    fn load(
        &mut self,
        k: usize,
        t: &mut Timed<'r>,
        c: usize,
        to: Vec<usize>,
        (pieces, rows, evicted_first): (Vec<Piece>, f64, bool),
        map: Option<u64>,
        issued: Moment,
        sequence: u64,
        line: u32,
    ) {
        let chip = self.chip;
        let sm = t.ctas[c].sm;
        let unit = &mut self.sms[sm];
        let mut start = issued.max(unit.tma);
        if let Some(map) = map
            && !unit.maps.contains(&map)
        {
            unit.maps.push(map);
            let fetch = if unit.maps_acquired { chip.tma_acquired } else { chip.tma_descriptor };
            start = start.after(fetch.value, Cause::ColdStart);
        }
        let working = rows * chip.tma_row.value;
        unit.tma = start.after(working, Cause::TmaIssue);
        unit.used.tma += working;
        let total = pieces.iter().map(|p| p.bytes as f64).sum::<f64>().max(1.0);
        let first = start.time + chip.tma_latency.value;
        self.first_copy(t, c, issued.time);
        let load = Load {
            cluster: k,
            cta: c,
            sm,
            to,
            pieces,
            evicted_first,
            next: 0,
            start,
            issued: issued.time,
            working,
            total,
            sent: 0.0,
            first: None,
            slowest: None,
            sequence,
            line,
        };
        self.push(first, Event::Load(Box::new(load)));
    }

    /// Makes up to [`REQUESTS`] requests of a load. With the last one it is known when all bytes have arrived and
    /// their mbarriers are signalled.
    pub(super) fn load_on(&mut self, mut load: Box<Load>) {
        let chip = self.chip;
        let place = self.sms[load.sm].place;
        let begin = load.start.time + chip.tma_latency.value;
        let mut left = REQUESTS;
        while let Some(p) = load.pieces.get_mut(load.next) {
            let unit = &mut self.sms[load.sm];
            // The TMA goes on when one of the requests that are under way comes back.
            let full = unit.under_way >= chip.tma_under_way.value;
            let back = unit.requests.next_time().filter(|_| full).unwrap_or_default();
            let request = (begin + load.working * load.sent / load.total).max(back);
            if left == 0 || request > self.now + f64::from(REQUESTS) {
                self.push(request, Event::Load(load));
                return;
            }
            left -= 1;
            // Those that have come back need no place. They come in any order.
            while let Some((_, returned)) = unit.requests.pop_until(request) {
                unit.under_way -= returned;
            }
            let bytes = p.next();
            let read = match p.global {
                Some(address) => {
                    self.memory.read(address / LINE, bytes as f64, request, place, load.evicted_first)
                }
                None => self.memory.outside(load.sm, bytes as f64, request),
            };
            let unit = &mut self.sms[load.sm];
            unit.requests.push(read.at, bytes as f64);
            unit.under_way += bytes as f64;
            load.sent += bytes as f64;
            (p.global, p.bytes) = (p.global.map(|address| address + bytes), p.bytes - bytes);
            load.next += usize::from(p.bytes == 0);
            let mut ready = read.at;
            for &d in &load.to {
                ready = ready.max(self.sms[d].tma_port.take(read.at, bytes as f64));
            }
            load.first = Some(load.first.map_or(ready, |first| first.min(ready)));
            if load.slowest.is_none_or(|(_, _, last)| ready > last) {
                load.slowest = Some((request, read, ready));
            }
        }
        let start = load.start;
        let mut last = start.after(chip.tma_latency.value, Cause::TmaIssue);
        if let Some((request, read, ready)) = load.slowest.filter(|(_, _, ready)| *ready > last.time) {
            let waited = if read.source == Source::L2 { Cause::MemoryQueue } else { Cause::Dram };
            last = (start.until(request, Cause::TmaIssue).after(read.latency, Cause::TmaLatency))
                .until(read.at - read.queued, waited)
                .until(read.at, Cause::MemoryQueue)
                .until(ready, Cause::TmaDelivery);
        }
        let end = start.time + load.working;
        let done = last.until(end, Cause::TmaIssue).after(chip.tma_arrive.value, Cause::Mbarrier);
        if let (Some(first), Some((_, _, last))) = (load.first, load.slowest) {
            let bytes = load.total * chip.smem_tma_cost.value;
            let clocks = (last - first).max(bytes / chip.smem_rate.value);
            for &d in &load.to {
                self.sms[d].smem_stores.spread(first, clocks, bytes);
            }
        }
        if let Some(t) = self.clusters[load.cluster].take() {
            self.bar(&t, load.cta, Track::Tma, "load", load.line, load.issued, done.time);
            self.clusters[load.cluster] = Some(t);
        }
        self.push(done.time, Event::Copies(load.cluster, vec![load.sequence], done));
    }

    /// Completes copies, or the reads of stores.
    pub(super) fn copies_done(&mut self, k: usize, list: &[u64], moment: Moment) {
        let Some(mut t) = self.clusters[k].take() else { return };
        if let Some(h) = &mut t.cluster.time {
            h.now = moment.time;
        }
        let mut line = 0;
        for sequence in list {
            let Some(i) = t.cluster.queue.place(*sequence) else { continue };
            let mut p = t.cluster.queue.take(i);
            line = p.at.line;
            t.cluster.progress += 1;
            if !t.cluster.perform(&mut p) {
                // A store that has read: now it writes.
                let sm = t.ctas[p.at.cta as usize].sm;
                let done = self.written(sm, &p, moment);
                t.cluster.queue.push(p);
                self.push(done.time, Event::Copies(k, vec![*sequence], done));
            }
        }
        self.completed(k, &mut t, moment, line);
        self.clusters[k] = Some(t);
    }

    /// Records completed phases and wakes waiting warps.
    fn completed(&mut self, k: usize, t: &mut Timed<'r>, moment: Moment, line: u32) {
        let done = t.cluster.time.as_mut().map(|h| {
            h.accesses.clear();
            h.noted = !h.copies.is_empty() || !h.pipes.is_empty();
            std::mem::take(&mut h.phases)
        });
        for p in done.into_iter().flatten() {
            t.phase_done(p, moment, line);
        }
        self.wake(k, t, moment, line);
    }

    /// The time at which a store's bytes are in L2.
    fn written(&mut self, sm: usize, p: &Pending, read: Moment) -> Moment {
        let Copy::Store { to, .. } = &p.copy else { return read };
        let list = match to {
            StoreTo::Linear { global, bytes, .. } => {
                vec![Piece::global(*global, u64::from(*bytes))]
            }
            StoreTo::Tensor { map, coords, pixels, .. } => pieces(map, coords, pixels.is_some()).0,
        };
        let mut last = read.time;
        for p in list {
            // Nothing is written outside of a tensor.
            let Some(mut address) = p.global else { continue };
            let end = address + p.bytes;
            while address < end {
                let stop = ((address / LINE + 1) * LINE).min(end);
                let bytes = (stop - address) as f64;
                let unit = &mut self.sms[sm];
                unit.port_out = unit.port_out.max(read.time) + bytes / self.chip.sm_write_rate.value;
                let sent = unit.port_out;
                last = last.max(self.memory.write(address / LINE, bytes, sent));
                address = stop;
            }
        }
        read.until(last + self.chip.store_latency.value, Cause::TmaStore)
    }

    /// Processes an operation for a tensor core; returns when the warp can continue.
    #[allow(clippy::too_many_arguments, reason = "they say which instruction of whom")]
    pub(super) fn pipe_issued(
        &mut self,
        k: usize,
        t: &mut Timed<'r>,
        c: usize,
        owner: usize,
        at: Moment,
        next: Moment,
        line: u32,
    ) -> Moment {
        let chip = self.chip;
        let next = next.until(at.time + chip.tcgen05_warp.value, Cause::Instructions);
        let Some(op) = t.cluster.ctas[owner].pipe.back() else { return next };
        let issued = at.after(chip.tcgen05_issue.value, Cause::TensorLatency);
        let mut sms = vec![t.ctas[owner].sm];
        let pair = match &op.work {
            Work::Mma(m, _) => m.cta_group != CtaGroup::One,
            Work::Copy { pair, .. } | Work::Shift { pair, .. } => *pair,
            Work::Commit { .. } => false,
        };
        if pair && let Some(peer) = t.ctas.get(owner ^ 1) {
            sms.push(peer.sm);
        }
        let start = sms.iter().fold(issued, |m, &s| m.max(self.sms[s].tensor));
        let mut name = "";
        let (busy, cause, latency) = match &op.work {
            Work::Mma(m, usage) => {
                name = "mma";
                let kept = usage.buffer == Buffer::A && matches!(usage.action, Action::Use | Action::LastUse);
                let (math, operands, a) = product_clocks(m, kept, chip);
                for &s in &sms {
                    let unit = &mut self.sms[s];
                    unit.used.tensor += math;
                    unit.used.operands += operands;
                    unit.read_operands(start.time, math.max(operands), operands);
                }
                t.ctas[c].times.first_product.get_or_insert(start.time);
                let pair = if pair { chip.tcgen05_pair.value } else { 0.0 };
                let cause = if operands > math { Cause::TensorOperands } else { Cause::TensorMath };
                (math.max(operands), cause, a + chip.tcgen05_tail.value + pair)
            }
            Work::Copy { shape, .. } => {
                name = "copy";
                let clocks = match shape {
                    CpShape::S32x128bWarpx4 => chip.tcgen05_copy_scales.value,
                    s => f64::from(s.rows() * s.units() * 16) / chip.tcgen05_copy_rate.value,
                };
                // Bytes are read once, however often they are written.
                let reading = f64::from(shape.rows() * shape.units() * 16) / chip.smem_rate.value;
                for &s in &sms {
                    self.sms[s].used.copies += clocks;
                    self.sms[s].read_operands(start.time, clocks, reading);
                }
                (clocks, Cause::TensorCopy, 0.0)
            }
            Work::Shift { .. } => (8.0, Cause::TensorCopy, 0.0),
            Work::Commit { .. } => (0.0, Cause::TensorLatency, 0.0),
        };
        let free = start.after(busy, cause);
        let commit = matches!(op.work, Work::Commit { .. });
        if !commit {
            for &s in &sms {
                self.sms[s].tensor = free;
            }
        }
        let last = t.ctas[owner].pipe.back().copied().unwrap_or_default();
        let results = t.ctas[owner].results;
        let done = if commit {
            issued.max(results).after(chip.tcgen05_commit.value, Cause::TensorLatency).max(last)
        } else {
            let done = free.after(latency, Cause::TensorLatency);
            t.ctas[owner].results = results.max(done);
            let times = &mut t.ctas[c].times;
            times.last_product = Some(times.last_product.unwrap_or(0.0).max(done.time));
            done.max(last)
        };
        if !name.is_empty() {
            self.bar(t, owner, Track::Tensor, name, line, start.time, free.time);
        }
        t.ctas[owner].pipe.push_back(done);
        self.push(done.time, Event::Pipe(k, owner));
        next
    }

    /// Completes the oldest operation of a tensor core.
    pub(super) fn pipe_done(&mut self, k: usize, c: usize) {
        let Some(mut t) = self.clusters[k].take() else { return };
        if let Some(moment) = t.ctas[c].pipe.pop_front() {
            if let Some(h) = &mut t.cluster.time {
                h.now = moment.time;
            }
            let line = t.cluster.ctas[c].pipe.front().map_or(0, |p| p.at.line);
            t.cluster.progress += 1;
            t.cluster.advance_pipe(c);
            self.completed(k, &mut t, moment, line);
        }
        self.clusters[k] = Some(t);
    }
}

/// Clocks of a product: math, operands from shared memory, and the wait for A before the first one.
fn product_clocks(m: &MmaInstruction, kept: bool, chip: &crate::time::Chip) -> (f64, f64, f64) {
    let Ok(i) = m.descriptor() else { return (1.0, 0.0, 0.0) };
    let (rows, n) = (f64::from(i.m), f64::from(i.n));
    let pair = m.cta_group != CtaGroup::One;
    let own_rows = if pair { rows / 2.0 } else { rows };
    // 64 rows a CTA take as long as 128, but in a pair, whose halves of N they are.
    let columns = if pair && rows <= 128.0 { n / 2.0 } else { n };
    let ratio = match m.kind {
        MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => chip.tcgen05_fp4.value,
        _ => 1.0,
    };
    let math = columns * chip.tcgen05_column.value * ratio;
    // A row of an operand has 32 bytes, of a sparse A half as many for twice the K.
    let from_smem = matches!(m.a, OperandA::Smem(_));
    let a = if from_smem && !kept { own_rows * 32.0 / chip.smem_rate.value } else { 0.0 };
    let b_rows = if pair { n / 2.0 } else { n };
    let operands = a + b_rows * 32.0 / chip.smem_rate.value;
    (math, operands, a)
}
