//! The completion of asynchronous copies.

use super::mbarrier::MbarOp;
use super::order::Unit;
use super::queue::{Copy, Pending, Pixels, Place, StoreTo};
use super::report::Origin;
use super::state::Cluster;
use crate::engine::tensor_map::{BoxError, Chunk, TensorMapParams};
use crate::finding::FindingKind;
use crate::isa::Ty;
use crate::lanes::atomic;
use crate::memory::Fault;
use crate::program::Rmw;

impl Cluster<'_> {
    /// Performs a copy or its next part; true when it is complete.
    pub(super) fn perform(&mut self, p: &mut Pending) -> bool {
        let at = p.at;
        if let Some(t) = &mut self.tracker {
            t.performing = p.issue.clone();
        }
        let result = match &mut p.copy {
            Copy::TensorLoad { .. } | Copy::BulkLoad { .. } if self.without_values() => {
                self.pretend(at, &p.copy);
                Ok(true)
            }
            Copy::TensorLoad { map, coords, pixels, to, .. } => {
                self.tensor_load(at, (map, pixels.as_ref()), coords, to).map(|()| true)
            }
            Copy::BulkLoad { src, bytes, to, .. } => self.bulk_load(at, *src, *bytes, to).map(|()| true),
            Copy::BulkSmem { src, dst, bytes, mbar, reduce } => {
                self.bulk_smem(at, *src, *dst, *bytes, *mbar, *reduce).map(|()| {
                    self.complete_tx(*mbar, *bytes, at);
                    true
                })
            }
            Copy::Store { from, to, staged, .. } => match staged.take() {
                None => self.stage(at, *from, to).map(|s| {
                    *staged = Some(s);
                    false
                }),
                Some(data) => self.write_out(at, to, &data).map(|()| true),
            },
            Copy::Small { src, dst, bytes, valid, .. } => {
                self.small(at, *src, *dst, *bytes, *valid).map(|()| true)
            }
            Copy::Remote { to, data, mbar, reduce } => self.remote(at, *to, *mbar, data, *reduce).map(|()| {
                self.complete_tx(*mbar, data.len() as u32, at);
                true
            }),
            Copy::SmallArrive { mbar, .. } => {
                if let (Some(t), Some(issue)) = (&mut self.tracker, &p.issue) {
                    t.mbar_deliver(*mbar, at.line, issue, Some(Unit::Small), 0);
                }
                self.mbar_apply(mbar.0, mbar.1, MbarOp::Arrive(1, 0, false), at);
                Ok(true)
            }
            Copy::Answer { bytes, to } => to
                .iter()
                .try_for_each(|(dst, mbar)| {
                    let a = self.landing(at, *mbar, true);
                    self.track_shared(*dst, 16, &a);
                    self.store_shared(dst.0, dst.1, bytes)?;
                    self.complete_tx(*mbar, 16, at);
                    Ok(())
                })
                .map(|()| true),
        };
        if self.clobbered.is_some() {
            self.report_clobbered(at);
        }
        match result {
            Ok(done) => done,
            Err(f) => {
                self.fault(at, "asynchronous copy", f);
                true
            }
        }
    }

    /// Marks the bytes of a load as written and counts them on its mbarrier, without moving any.
    fn pretend(&mut self, at: Origin, copy: &Copy) {
        let (to, bytes) = match copy {
            Copy::TensorLoad { map, coords, pixels, to, .. } => {
                let rows = if map.gathers(coords) { 4 } else { 1 };
                (to, pixels.as_ref().map_or(rows * map.transaction_bytes(), |p| p.0.transaction_bytes()))
            }
            Copy::BulkLoad { bytes, to, .. } => (to, *bytes),
            _ => return,
        };
        for &((cta, offset), mbar) in to {
            self.ctas[cta].smem.mark(offset, bytes);
            self.complete_tx(mbar, bytes, at);
        }
    }

    fn box_error(&mut self, at: Origin, e: BoxError<Fault>) -> Result<(), Fault> {
        match e {
            BoxError::Memory(f) => Err(f),
            e => {
                self.report(FindingKind::IllegalTensorMap, at, e.to_string());
                Ok(())
            }
        }
    }

    /// Reads global memory for a copy; returns whether all of it was defined, and how many bytes are the buffer's.
    /// Bytes past the end are reported and treated as hardware does: mapped, and never written.
    fn read_global(&mut self, at: Origin, address: u64, out: &mut [u8]) -> Result<(bool, usize), Fault> {
        let memory = self.global(address);
        match memory.load(address, out) {
            Ok(written) => Ok((written, out.len())),
            Err(f) => {
                let Some(own) = memory.load_past(address, out) else { return Err(f) };
                let text = format!(
                    "asynchronous copy: {}; hardware reads on in the page that the buffer ends in",
                    memory.describe(address, out.len() as u64)
                );
                self.report(FindingKind::ReadPastBuffer, at, text);
                Ok((true, own))
            }
        }
    }

    /// Writes what a copy has read. The first `own` bytes are the buffer's; the others count as undefined.
    fn land(&mut self, to: Place, data: &[u8], own: usize) -> Result<(), Fault> {
        self.store_shared(to.0, to.1, data)?;
        if own < data.len() {
            self.ctas[to.0].smem.forget(to.1 + own as u32, (data.len() - own) as u32);
        }
        Ok(())
    }

    fn tensor_load(
        &mut self,
        at: Origin,
        (map, pixels): (&TensorMapParams, Option<&Pixels>),
        coords: &[i32],
        to: &[(Place, Place)],
    ) -> Result<(), Fault> {
        for (index, ((cta, offset), mbar)) in to.iter().enumerate() {
            if self.ctas[*cta].gone() {
                return Err(Fault::Peer(*cta as u32));
            }
            let (a, source) = (self.landing(at, *mbar, true), self.landing(at, *mbar, false));
            // A multicast reads global memory once.
            let first = index == 0;
            let mut unwritten = None;
            let mut buffer = [0u8; 256];
            let mut sink = |chunk| {
                match chunk {
                    Chunk::Copy { mut global, mut shared, mut length } => {
                        self.stats.tma_read += if first { u64::from(length) } else { 0 };
                        self.track_global(global, length as usize, &source);
                        self.track_shared((*cta, shared), length as usize, &a);
                        while length > 0 {
                            let n = length.min(256);
                            let part = &mut buffer[..n as usize];
                            let (written, own) = self.read_global(at, global, part)?;
                            if !written {
                                unwritten.get_or_insert(global);
                            }
                            self.land((*cta, shared), part, own)?;
                            global += u64::from(n);
                            shared += n;
                            length -= n;
                        }
                    }
                    Chunk::Fill { mut shared, mut length, pattern } => {
                        for (i, b) in buffer.iter_mut().enumerate() {
                            *b = pattern[i % 8];
                        }
                        self.track_shared((*cta, shared), length as usize, &a);
                        while length > 0 {
                            let n = length.min(256);
                            self.store_shared(*cta, shared, &buffer[..n as usize])?;
                            shared += n;
                            length -= n;
                        }
                    }
                }
                Ok(())
            };
            let result = match pixels {
                None => map.load_box(coords, *offset, &mut sink),
                Some(p) => p.0.walk(coords, &p.1, *offset, true, &mut sink),
            };
            if let Err(e) = result {
                return self.box_error(at, e);
            }
            if let Some(a) = unwritten {
                let text = format!("nothing has written all of {}", self.global(a).describe(a, 16));
                self.report(FindingKind::UninitialisedGlobal, at, text);
            }
            let rows = if map.gathers(coords) { 4 } else { 1 };
            let bytes = pixels.map_or(rows * map.transaction_bytes(), |p| p.0.transaction_bytes());
            self.complete_tx(*mbar, bytes, at);
        }
        Ok(())
    }

    fn bulk_load(&mut self, at: Origin, src: u64, bytes: u32, to: &[(Place, Place)]) -> Result<(), Fault> {
        let mut data = vec![0u8; bytes as usize];
        let (written, own) = self.read_global(at, src, &mut data)?;
        if !written {
            let text =
                format!("nothing has written all of {}", self.global(src).describe(src, u64::from(bytes)));
            self.report(FindingKind::UninitialisedGlobal, at, text);
        }
        self.stats.tma_read += u64::from(bytes);
        for ((cta, offset), mbar) in to {
            if self.ctas[*cta].gone() {
                return Err(Fault::Peer(*cta as u32));
            }
            let (a, source) = (self.landing(at, *mbar, true), self.landing(at, *mbar, false));
            self.track_global(src, data.len(), &source);
            self.track_shared((*cta, *offset), data.len(), &a);
            self.land((*cta, *offset), &data, own)?;
            self.complete_tx(*mbar, bytes, at);
        }
        Ok(())
    }

    /// Reads shared memory for an asynchronous unit.
    fn read_shared(&mut self, at: Origin, (cta, offset): Place, out: &mut [u8]) -> Result<(), Fault> {
        match self.ctas[cta].smem.read(offset, out) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let text = format!(
                    "nothing has written all of the {} bytes at shared offset {offset:#x}",
                    out.len()
                );
                self.report(FindingKind::UninitialisedShared, at, text);
                Ok(())
            }
            Err(_) => Err(self.outside(cta, offset, out.len())),
        }
    }

    fn bulk_smem(
        &mut self,
        at: Origin,
        src: Place,
        dst: Place,
        bytes: u32,
        mbar: Place,
        reduce: Option<(Rmw, Ty)>,
    ) -> Result<(), Fault> {
        let mut data = vec![0u8; bytes as usize];
        self.read_shared(at, src, &mut data)?;
        if self.ctas[dst.0].gone() {
            return Err(Fault::Peer(dst.0 as u32));
        }
        let (read, mut write) = (self.landing(at, mbar, false), self.landing(at, mbar, true));
        if let Some(a) = &mut write {
            a.nature.atomic = reduce.is_some();
        }
        self.track_shared(src, data.len(), &read);
        self.track_shared(dst, data.len(), &write);
        if let Some((op, ty)) = reduce {
            let mut old = vec![0u8; data.len()];
            self.read_shared(at, dst, &mut old)?;
            let n = ty.bytes() as usize;
            for (new, old) in data.chunks_exact_mut(n).zip(old.chunks_exact(n)) {
                let word = |bytes: &[u8]| {
                    let mut le = [0u8; 8];
                    le[..n].copy_from_slice(bytes);
                    u64::from_le_bytes(le)
                };
                let v = atomic::combine(op, ty, word(old), word(new), 0);
                new.copy_from_slice(&v.to_le_bytes()[..n]);
            }
        }
        self.store_shared(dst.0, dst.1, &data)
    }

    fn remote(
        &mut self,
        at: Origin,
        to: Place,
        mbar: Place,
        data: &[u8],
        reduce: Option<(Rmw, Ty)>,
    ) -> Result<(), Fault> {
        if self.ctas[to.0].gone() {
            return Err(Fault::Peer(to.0 as u32));
        }
        let mut a = self.landing(at, mbar, true);
        if let Some(a) = &mut a {
            // Unlike bulk copies these are of the generic proxy.
            a.nature.proxy = false;
            a.nature.atomic = reduce.is_some();
        }
        self.track_shared(to, data.len(), &a);
        let Some((op, ty)) = reduce else {
            return self.store_shared(to.0, to.1, data);
        };
        let mut old = [0u8; 8];
        self.read_shared(at, to, &mut old[..data.len()])?;
        let mut b = [0u8; 8];
        b[..data.len()].copy_from_slice(data);
        let new = atomic::combine(op, ty, u64::from_le_bytes(old), u64::from_le_bytes(b), 0);
        self.store_shared(to.0, to.1, &new.to_le_bytes()[..data.len()])
    }

    fn small(&mut self, at: Origin, src: u64, dst: Place, bytes: u32, valid: u32) -> Result<(), Fault> {
        let mut data = [0u8; 16];
        let part = &mut data[..valid as usize];
        let (written, own) = if valid > 0 { self.read_global(at, src, part)? } else { (true, 0) };
        if !written {
            let text =
                format!("nothing has written all of {}", self.global(src).describe(src, u64::from(valid)));
            self.report(FindingKind::UninitialisedGlobal, at, text);
        }
        self.stats.global_read += u64::from(valid);
        let (read, mut write) =
            (self.unit_access(at, Unit::Small, false), self.unit_access(at, Unit::Small, true));
        if let Some(a) = &mut write {
            let mut now = [0u8; 16];
            let now = &mut now[..bytes as usize];
            let there = self.ctas[dst.0].smem.read(dst.1, now).unwrap_or(false);
            a.nature.repeated = there && now == &data[..bytes as usize];
        }
        self.track_global(src, valid as usize, &read);
        self.track_shared(dst, bytes as usize, &write);
        // What is not read is filled with zeros, which count.
        let own = if own < valid as usize { own } else { bytes as usize };
        self.land(dst, &data[..bytes as usize], own)
    }

    /// First half of a store: shared memory is read.
    fn stage(&mut self, at: Origin, from: Place, to: &StoreTo) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
        // The CTA may have exited: kernels that run on hardware leave their last stores under way. Strict tracking asks for
        // cp.async.bulk.wait_group.read before (`Tracker::exit`).
        let a = self.unit_access(at, Unit::BulkRead, false);
        match to {
            StoreTo::Linear { global, bytes, mask, .. } => {
                self.track_shared(from, *bytes as usize, &a);
                let mut data = vec![0u8; *bytes as usize];
                self.read_shared(at, from, &mut data)?;
                if *mask == u16::MAX {
                    return Ok(vec![(*global, data)]);
                }
                // Runs of bytes that the mask lets through.
                let on = |i: &usize| mask >> (i % 16) & 1 == 1;
                let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
                for i in (0..data.len()).filter(on) {
                    match runs.last_mut().filter(|(start, run)| start + run.len() as u64 == global + i as u64)
                    {
                        Some((_, run)) => run.push(data[i]),
                        None => runs.push((global + i as u64, vec![data[i]])),
                    }
                }
                Ok(runs)
            }
            StoreTo::Tensor { map, coords, pixels, .. } => {
                let mut out = Vec::new();
                let mut sink = |chunk| {
                    if let Chunk::Copy { global, shared, length } = chunk {
                        let mut data = vec![0u8; length as usize];
                        self.track_shared((from.0, shared), length as usize, &a);
                        self.read_shared(at, (from.0, shared), &mut data)?;
                        out.push((global, data));
                    }
                    Ok(())
                };
                let result = match pixels {
                    None => map.store_box(coords, from.1, &mut sink),
                    Some(p) => p.0.walk(coords, &p.1, from.1, false, &mut sink),
                };
                if let Err(e) = result {
                    self.box_error(at, e)?;
                }
                Ok(out)
            }
        }
    }

    /// Second half of a store: global memory is written.
    fn write_out(&mut self, at: Origin, to: &StoreTo, data: &[(u64, Vec<u8>)]) -> Result<(), Fault> {
        let reduce = match to {
            StoreTo::Linear { reduce, .. } | StoreTo::Tensor { reduce, .. } => *reduce,
        };
        let mut a = self.unit_access(at, Unit::BulkWrite, true);
        if let Some(a) = &mut a {
            a.nature.atomic = reduce.is_some();
        }
        for (global, bytes) in data {
            if let Some(a) = &mut a {
                let mut now = vec![0u8; bytes.len()];
                let there = self.global(*global).load(*global, &mut now).unwrap_or(false) && now == *bytes;
                a.nature.repeated = there && reduce.is_none();
            }
            self.track_global(*global, bytes.len(), &a);
            self.stats.tma_written += bytes.len() as u64;
            let memory = self.global(*global);
            let Some((op, ty)) = reduce else {
                memory.store(*global, bytes)?;
                continue;
            };
            let n = ty.bytes() as usize;
            for (k, e) in bytes.chunks_exact(n).enumerate() {
                let mut word = [0u8; 8];
                word[..n].copy_from_slice(e);
                let v = u64::from_le_bytes(word);
                let address = global + (k * n) as u64;
                let (_, written) = memory
                    .update(address, n as u32, |old| atomic::combine_global(op, ty, old, v, 0, false))?;
                if !written {
                    let text = format!("nothing has written all of {}", memory.describe(address, n as u64));
                    self.report(FindingKind::UninitialisedGlobal, at, text);
                }
            }
        }
        Ok(())
    }
}
