//! Bulk, tensor and small asynchronous copies, and cluster launch control.

use super::order::track::Touch;
use super::queue::{Copy, Pixels, Place, StoreTo};
use super::report::Origin;
use super::state::{Cluster, Wait, Warp};
use super::step::{Ctx, Flow, bits};
use crate::engine::tensor_map::encoding;
use crate::engine::tensor_map::im2col::Im2colParams;
use crate::engine::tensor_map::{DataType, TensorMapParams};
use crate::finding::FindingKind;
use crate::isa::Ty;
use crate::lanes::atomic;
use crate::memory::Fault;
use crate::program::{Addr, Op, Rmw, SINK, Slot, Space, TensorCopy};

/// Type of a tensor map's elements in a reduction.
fn reduce_type(t: DataType, op: Rmw) -> Option<Ty> {
    let bitwise = matches!(op, Rmw::And | Rmw::Or | Rmw::Xor);
    let ty = match t {
        DataType::U32 if bitwise => Ty::B32,
        DataType::U64 if bitwise => Ty::B64,
        DataType::U32 => Ty::U32,
        DataType::I32 => Ty::S32,
        DataType::U64 => Ty::U64,
        DataType::I64 => Ty::S64,
        DataType::F16 => Ty::F16,
        DataType::Bf16 => Ty::Bf16,
        DataType::F32 | DataType::F32Ftz => Ty::F32,
        _ => return None,
    };
    atomic::supported(op, ty).then_some(ty)
}

impl<'r> Cluster<'r> {
    pub(super) fn copy_op(&mut self, x: Ctx, w: &mut Warp, op: &'r Op) -> Flow {
        match op {
            Op::MapCopy { dst, src } => {
                if let Some(f) = self.converge(w, x.m, u32::MAX) {
                    return f;
                }
                // The warp copies one map, whose addresses all lanes agree on.
                let lane = x.m.trailing_zeros() & 31;
                if let Err(f) = self.copy_map(x, w, *dst, *src, lane) {
                    self.fault(Origin::of(x.c, w, Some(lane), x.line), "tensormap.cp_fenceproxy", f);
                }
            }
            Op::BulkCommit => Self::commit_group(w, x.m, false),
            Op::CpAsyncCommit => Self::commit_group(w, x.m, true),
            Op::BulkWait { groups, read } => {
                if !self.bulk_done(x.c, w, x.m, *groups, *read) {
                    return Flow::Wait(Wait::Bulk { groups: *groups, read: *read });
                }
                self.track_groups(x, w, false, *groups, *read);
            }
            Op::CpAsyncWait { groups } => {
                // wait_all also covers copies that no group was made of.
                if *groups == 0 {
                    Self::commit_group(w, x.m, true);
                }
                if !self.copies_done(x.c, w, x.m, *groups) {
                    return Flow::Wait(Wait::Copies { groups: *groups });
                }
                self.track_groups(x, w, true, *groups, false);
            }
            Op::QueryCanceled { p, lo } => {
                let v = self.read(x, w, *lo);
                let yes = (0..32).fold(0, |acc, i| acc | ((v[i] & 1) as u32) << i);
                w.set_pred(*p, x.m, yes);
            }
            Op::QueryCtaid { d, lo, hi, first } => {
                let (lo, hi) = (self.read(x, w, *lo), self.read(x, w, *hi));
                for (k, d) in d.iter().enumerate() {
                    let v = match k + *first as usize {
                        0 => lo.map(|v| v >> 32),
                        1 => hi.map(|v| v & 0xffff_ffff),
                        2 => hi.map(|v| v >> 32),
                        _ => [0; 32],
                    };
                    w.set(*d, x.m, &v);
                }
            }
            _ => {
                for i in bits(x.m) {
                    let one = Ctx { m: 1 << i, ..x };
                    let at = Origin::of(x.c, w, Some(i), x.line);
                    if let Err(f) = self.start(one, w, i, at, op) {
                        self.fault(at, "asynchronous copy", f);
                    }
                    if self.fatal {
                        return Flow::Stop;
                    }
                }
            }
        }
        if self.fatal { Flow::Stop } else { Flow::Next }
    }

    fn copy_map(&mut self, x: Ctx, w: &mut Warp, dst: Addr, src: Addr, lane: u32) -> Result<(), Fault> {
        let from = self.address(x, w, src, Space::SharedCta, lane);
        let to = self.address(x, w, dst, Space::Global, lane);
        for address in [from, to] {
            if !address.is_multiple_of(128) {
                return Err(Fault::Misaligned { address, bytes: 128 });
            }
        }
        let mut bytes = [0u8; 128];
        let source = self.resolve(x.c, Space::SharedCta, from)?;
        self.touch(x, w, None, source, Touch::Read(128));
        let (written, kind) = self.load_bytes(w, lane, source, &mut bytes)?;
        if !written {
            let text = format!("nothing has written all of the tensor map at shared address {from:#x}");
            self.report(kind, Origin::of(x.c, w, Some(lane), x.line), text);
        }
        let target = self.resolve(x.c, Space::Global, to)?;
        self.touch(x, w, None, target, Touch::Write(&bytes));
        self.store_bytes(w, lane, target, &bytes)
    }

    fn value(&mut self, x: Ctx, w: &Warp, s: Slot, lane: u32) -> u64 {
        self.read(x, w, s)[lane as usize]
    }

    fn address(&mut self, x: Ctx, w: &Warp, a: Addr, space: Space, lane: u32) -> u64 {
        self.addresses(x, w, a, space)[lane as usize]
    }

    fn place(&mut self, x: Ctx, w: &Warp, a: Addr, lane: u32) -> Result<Place, Fault> {
        let v = self.address(x, w, a, Space::SharedCluster, lane);
        self.resolve_shared(x.c, Space::SharedCluster, v)
    }

    /// Whether a cache policy asks L2 to evict lines first: its priority is in bits 57 to 59, as `createpolicy.fractional` makes it on an
    /// H200.
    fn evicts_first(&mut self, x: Ctx, w: &Warp, policy: Slot, lane: u32) -> bool {
        policy != SINK && self.value(x, w, policy, lane) >> 57 & 7 == 1
    }

    /// Destinations and mbarriers of a load, with multicast.
    fn destinations(
        &mut self,
        x: Ctx,
        w: &Warp,
        lane: u32,
        at: Origin,
        (dst, mbar, mask): (Place, Place, Slot),
        pair: bool,
    ) -> Result<Vec<(Place, Place)>, Fault> {
        if mask == SINK {
            if !pair && dst.0 != mbar.0 {
                self.report(
                    FindingKind::MbarrierMisuse,
                    at,
                    format!(
                        "the copy goes to CTA {} of the cluster, but its mbarrier is in CTA {}",
                        dst.0, mbar.0
                    ),
                );
            }
            return Ok(vec![(dst, mbar)]);
        }
        let m = self.value(x, w, mask, lane) as u32;
        if m == 0 || m >> self.ctas.len() != 0 {
            return Err(Fault::OutOfBounds(format!(
                "multicast mask {m:#x} in a cluster of {} CTAs",
                self.ctas.len()
            )));
        }
        Ok(bits(m)
            .map(|r| {
                let r = r as usize;
                let owner = if pair { r & !1 | mbar.0 & 1 } else { r };
                ((r, dst.1), (owner, mbar.1))
            })
            .collect())
    }

    fn start(&mut self, x: Ctx, w: &mut Warp, lane: u32, at: Origin, op: &'r Op) -> Result<(), Fault> {
        match op {
            Op::TensorLoad(copy) => {
                let (map, coords) = self.map(x, w, lane, at, copy)?;
                let Some((map, pixels)) = map else { return Ok(()) };
                let dst = self.place(x, w, copy.smem, lane)?;
                let mbar = self.place(x, w, copy.mbar, lane)?;
                let to = self.destinations(x, w, lane, at, (dst, mbar, copy.mask), copy.pair)?;
                let first = self.evicts_first(x, w, copy.policy, lane);
                self.submit(at, Copy::TensorLoad { map, coords, pixels, to, first });
            }
            Op::TensorStore { copy, reduce } => {
                let (map, coords) = self.map(x, w, lane, at, copy)?;
                let Some((map, pixels)) = map else { return Ok(()) };
                let from = self.own(x, w, copy.smem, lane)?;
                let reduce = match reduce {
                    None => None,
                    Some(op) => match reduce_type(map.data_type, *op) {
                        Some(ty) => Some((*op, ty)),
                        None => {
                            let text = format!("reduction {op:?} of {:?}", map.data_type);
                            return Err(Fault::Unsupported(text));
                        }
                    },
                };
                let group = w.bulk_groups[lane as usize];
                let to = StoreTo::Tensor { map, coords, pixels, reduce };
                self.submit(at, Copy::Store { from, to, group, staged: None });
            }
            Op::Remote { at: to, mbar, space, ty, src, reduce } => {
                let n = ty.bytes() as usize;
                let mut data = Vec::with_capacity(n * src.len());
                for &s in src {
                    data.extend_from_slice(&self.value(x, w, s, lane).to_le_bytes()[..n]);
                }
                let address = self.address(x, w, *to, *space, lane);
                let to = self.resolve_shared(x.c, *space, address)?;
                let barrier = self.address(x, w, *mbar, *space, lane);
                let mbar = self.resolve_shared(x.c, *space, barrier)?;
                if !address.is_multiple_of(data.len() as u64) {
                    return Err(Fault::Misaligned { address, bytes: data.len() as u64 });
                }
                if to.0 != mbar.0 {
                    let text = format!(
                        "the value goes to CTA {} of the cluster, but its mbarrier is in CTA {}",
                        to.0, mbar.0
                    );
                    self.report(FindingKind::MbarrierMisuse, at, text);
                }
                let reduce = reduce.map(|op| (op, *ty));
                self.submit(at, Copy::Remote { to, data, mbar, reduce });
            }
            Op::MapReplace { at: map, space, field, ordinal, value } => {
                let address = self.address(x, w, *map, *space, lane);
                let ordinal = if *ordinal == SINK { 0 } else { self.value(x, w, *ordinal, lane) as u32 };
                let value = self.value(x, w, *value, lane);
                if !address.is_multiple_of(128) {
                    return Err(Fault::Misaligned { address, bytes: 128 });
                }
                let target = self.resolve(x.c, *space, address)?;
                let mut bytes = [0u8; 128];
                self.load_bytes(w, lane, target, &mut bytes)?;
                if let Err(e) = encoding::replace(&mut bytes, *field, ordinal, value) {
                    let text = format!("tensor map at {address:#x}: {e}");
                    self.report(FindingKind::IllegalTensorMap, at, text);
                    return Ok(());
                }
                self.touch(x, w, Some(lane), target, Touch::Write(&bytes));
                self.store_bytes(w, lane, target, &bytes)?;
            }
            Op::TensorPrefetch(copy) => {
                let (map, coords) = self.map(x, w, lane, at, copy)?;
                if let Some((map, _)) = map
                    && let Err(e) = map.check_coordinates::<std::convert::Infallible>(&coords)
                {
                    self.report(FindingKind::IllegalTensorMap, at, e.to_string());
                }
            }
            Op::BulkLoad { dst, src, bytes, mbar, mask, policy } => {
                let src = self.address(x, w, *src, Space::Global, lane);
                let bytes = self.value(x, w, *bytes, lane) as u32;
                let dst = self.place(x, w, *dst, lane)?;
                let mbar = self.place(x, w, *mbar, lane)?;
                bounded(bytes)?;
                aligned(&[src, u64::from(dst.1), u64::from(bytes)])?;
                let to = self.destinations(x, w, lane, at, (dst, mbar, *mask), false)?;
                let first = self.evicts_first(x, w, *policy, lane);
                self.submit(at, Copy::BulkLoad { src, bytes, to, first });
            }
            Op::BulkSmem { dst, src, bytes, mbar, reduce } => {
                let src = self.own(x, w, *src, lane)?;
                let bytes = self.value(x, w, *bytes, lane) as u32;
                let dst = self.place(x, w, *dst, lane)?;
                let mbar = self.place(x, w, *mbar, lane)?;
                bounded(bytes)?;
                aligned(&[u64::from(src.1), u64::from(dst.1), u64::from(bytes)])?;
                self.submit(at, Copy::BulkSmem { src, dst, bytes, mbar, reduce: *reduce });
            }
            Op::BulkStore { dst, src, bytes, mask, reduce } => {
                let mask = if *mask == SINK { u16::MAX } else { self.value(x, w, *mask, lane) as u16 };
                let global = self.address(x, w, *dst, Space::Global, lane);
                let from = self.own(x, w, *src, lane)?;
                let bytes = self.value(x, w, *bytes, lane) as u32;
                bounded(bytes)?;
                aligned(&[global, u64::from(from.1), u64::from(bytes)])?;
                let group = w.bulk_groups[lane as usize];
                let to = StoreTo::Linear { global, bytes, mask, reduce: *reduce };
                self.submit(at, Copy::Store { from, to, group, staged: None });
            }
            Op::CpAsync { dst, src, bytes, valid, ignore } => {
                let src = self.address(x, w, *src, Space::Global, lane);
                let dst = self.own(x, w, *dst, lane)?;
                let mut valid = if *valid == SINK { *bytes } else { self.value(x, w, *valid, lane) as u32 };
                if let Some(p) = ignore
                    && self.read_pred(x, w, *p) & x.m != 0
                {
                    valid = 0;
                }
                if valid > *bytes {
                    return Err(Fault::OutOfBounds(format!("{valid} source bytes of a copy of {bytes}")));
                }
                for a in [src, u64::from(dst.1)] {
                    if a % u64::from(*bytes) != 0 {
                        return Err(Fault::Misaligned { address: a, bytes: u64::from(*bytes) });
                    }
                }
                let group = w.copy_groups[lane as usize];
                self.submit(at, Copy::Small { src, dst, bytes: *bytes, valid, group });
            }
            Op::CpAsyncArrive { at: a, space, noinc } => {
                let v = self.address(x, w, *a, *space, lane);
                let mbar = self.unit_operand(at, x.c, *space, v)?;
                if !noinc && let Some(b) = self.ctas[mbar.0].mbars.iter_mut().find(|b| b.offset == mbar.1) {
                    b.pending += 1;
                }
                let group = w.copy_groups[lane as usize];
                self.submit(at, Copy::SmallArrive { mbar, group });
            }
            Op::TryCancel { dst, mbar, multicast } => {
                let dst = self.own(x, w, *dst, lane)?;
                let mbar = self.own(x, w, *mbar, lane)?;
                let mut bytes = [0u8; 16];
                if let Some(index) = self.run.take_cluster() {
                    let [cx, cy, cz] = self.run.first_cta(index);
                    for (k, v) in [1, cx, cy, cz].into_iter().enumerate() {
                        bytes[4 * k..4 * k + 4].copy_from_slice(&v.to_le_bytes());
                    }
                }
                let to = if *multicast {
                    (0..self.ctas.len()).map(|r| ((r, dst.1), (r, mbar.1))).collect()
                } else {
                    vec![(dst, mbar)]
                };
                self.submit(at, Copy::Answer { bytes, to });
            }
            _ => {}
        }
        Ok(())
    }

    /// A place in the CTA's own shared memory.
    fn own(&mut self, x: Ctx, w: &Warp, a: Addr, lane: u32) -> Result<Place, Fault> {
        let v = self.address(x, w, a, Space::SharedCta, lane);
        self.resolve_shared(x.c, Space::SharedCta, v)
    }

    /// The tensor map and the coordinates of a tensor copy; no map after a finding.
    #[allow(clippy::type_complexity, reason = "a pair, used once")]
    fn map(
        &mut self,
        x: Ctx,
        w: &Warp,
        lane: u32,
        at: Origin,
        copy: &TensorCopy,
    ) -> Result<(Option<(Box<TensorMapParams>, Option<Pixels>)>, Vec<i32>), Fault> {
        let coords: Vec<i32> = copy.coords.iter().map(|&s| self.value(x, w, s, lane) as i32).collect();
        if copy.wide {
            let text = "copies of the im2col::w and im2col::w::128 modes are not modelled: the manual has where \
                        their halo pixels lie in shared memory in figures only";
            self.report(FindingKind::Unsupported, at, text);
            return Ok((None, coords));
        }
        let address = self.address(x, w, copy.map, Space::Generic, lane);
        if !address.is_multiple_of(64) {
            return Err(Fault::Misaligned { address, bytes: 64 });
        }
        let target = self.resolve(x.c, Space::Generic, address)?;
        let mut bytes = [0u8; 128];
        self.load_bytes(w, lane, target, &mut bytes)?;
        match TensorMapParams::decode(&bytes) {
            Ok(map) if copy.gather != map.gathers(&coords) => {
                let text = format!("{} coordinates for a tensor map of rank {}", coords.len(), map.rank());
                self.report(FindingKind::IllegalTensorMap, at, text);
                Ok((None, coords))
            }
            Ok(map) => {
                let found = Im2colParams::decode(&bytes).ok().flatten();
                let pixels = match (found, &copy.im2col) {
                    (None, None) => None,
                    (Some(p), Some(offsets)) => {
                        let offsets = offsets.iter().map(|&s| self.value(x, w, s, lane) as u16).collect();
                        Some(Box::new((p, offsets)))
                    }
                    (found, _) => {
                        let is = if found.is_some() { "im2col" } else { "tiled" };
                        let text =
                            format!("the tensor map at {address:#x} is {is}, but the instruction is not");
                        self.report(FindingKind::IllegalTensorMap, at, text);
                        return Ok((None, coords));
                    }
                };
                Ok((Some((Box::new(map), pixels)), coords))
            }
            Err(e) => {
                self.report(FindingKind::IllegalTensorMap, at, format!("tensor map at {address:#x}: {e}"));
                Ok((None, coords))
            }
        }
    }
}

/// Sizes and addresses of bulk copies are multiples of 16.
fn aligned(values: &[u64]) -> Result<(), Fault> {
    match values.iter().find(|v| *v % 16 != 0) {
        Some(&address) => Err(Fault::Misaligned { address, bytes: 16 }),
        None => Ok(()),
    }
}

/// Refuses a copy larger than shared memory, which cannot be right and would cost much host memory.
fn bounded(bytes: u32) -> Result<(), Fault> {
    if bytes > crate::launch::MAX_SMEM {
        return Err(Fault::OutOfBounds(format!("{bytes} bytes are more than shared memory has")));
    }
    Ok(())
}
