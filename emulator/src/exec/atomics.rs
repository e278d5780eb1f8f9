//! `atom` and `red`: read-modify-writes of lanes, one lane after the other.

use super::access::Target;
use super::order::track::Touch;
use super::report::Origin;
use super::state::{Cluster, Warp};
use super::step::{Ctx, Flow, bits};
use crate::finding::FindingKind;
use crate::isa::Ty;
use crate::lanes::{Lanes, atomic};
use crate::memory::Fault;
use crate::program::{Rmw, SINK, Slot, Space};

impl Cluster<'_> {
    /// Performs a read-modify-write and returns the old value.
    fn update(
        &mut self,
        target: Target,
        ty: Ty,
        f: impl Fn(u64) -> u64,
    ) -> Result<(u64, bool, FindingKind), Fault> {
        let n = ty.bytes();
        match target {
            Target::Global(a) => {
                self.stats.global_read += u64::from(n);
                self.stats.global_written += u64::from(n);
                let (old, written) = self.global(a).update(a, n, &f)?;
                self.spin.changes += u64::from(f(old) != old);
                Ok((old, written, FindingKind::UninitialisedGlobal))
            }
            Target::Shared(cta, offset) => {
                let mut b = [0u8; 8];
                let written = match self.ctas[cta].smem.read(offset, &mut b[..n as usize]) {
                    Ok(v) => v,
                    Err(_) => return Err(self.outside(cta, offset, n as usize)),
                };
                let old = u64::from_le_bytes(b);
                let new = f(old);
                if new != old || !written {
                    self.progress += 1;
                }
                self.store_shared(cta, offset, &new.to_le_bytes()[..n as usize])?;
                Ok((old, written, FindingKind::UninitialisedShared))
            }
            Target::Local(_) | Target::Param(_) => {
                Err(Fault::OutOfBounds("atomics work on global and shared memory".to_owned()))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operands of the instruction")]
    pub(super) fn wide_atom(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        space: Space,
        a: &Lanes,
        d: [Slot; 2],
        b: [Slot; 2],
        swap: Option<[Slot; 2]>,
    ) -> Flow {
        let wide = |s: &mut Self, w: &Warp, [lo, hi]: [Slot; 2]| -> [u128; 32] {
            let (lo, hi) = (s.read(x, w, lo), s.read(x, w, hi));
            std::array::from_fn(|i| u128::from(lo[i]) | u128::from(hi[i]) << 64)
        };
        let value = wide(self, w, b);
        let swap = swap.map(|s| wide(self, w, s));
        let mut old = [[0u64; 32]; 2];
        for lane in bits(x.m) {
            let (i, address) = (lane as usize, a[lane as usize]);
            let new = |now: u128| match &swap {
                None => value[i],
                Some(s) if now == value[i] => s[i],
                Some(_) => now,
            };
            let target = match address.is_multiple_of(16) {
                true => self.resolve(x.c, space, address),
                false => Err(Fault::Misaligned { address, bytes: 16 }),
            };
            let done = target.and_then(|t| {
                self.touch(x, w, Some(lane), t, Touch::Update(16));
                match t {
                    Target::Global(at) => {
                        let (v, written) = self.global(at).update_wide(at, new)?;
                        self.spin.changes += u64::from(new(v) != v);
                        self.polled(x, w);
                        self.heard_abroad(x, w, at, true);
                        Ok((v, written, FindingKind::UninitialisedGlobal))
                    }
                    Target::Shared(cta, offset) => {
                        let mut bytes = [0u8; 16];
                        let Ok(written) = self.ctas[cta].smem.read(offset, &mut bytes) else {
                            return Err(self.outside(cta, offset, 16));
                        };
                        let v = u128::from_le_bytes(bytes);
                        self.progress += 1;
                        self.store_shared(cta, offset, &new(v).to_le_bytes())?;
                        Ok((v, written, FindingKind::UninitialisedShared))
                    }
                    _ => Err(Fault::OutOfBounds("atomics work on global and shared memory".to_owned())),
                }
            });
            match done {
                Ok((v, written, kind)) => {
                    (old[0][i], old[1][i]) = (v as u64, (v >> 64) as u64);
                    if !written && swap.is_some() {
                        let text = self.unwritten_text(space, address, 16);
                        self.report(kind, Origin::of(x.c, w, Some(lane), x.line), text);
                    }
                }
                Err(f) => {
                    self.fault(Origin::of(x.c, w, Some(lane), x.line), "atomic", f);
                    return Flow::Stop;
                }
            }
        }
        for (d, v) in d.iter().zip(&old) {
            w.set(*d, x.m, v);
        }
        Flow::Next
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operands of the instruction")]
    pub(super) fn atom(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        space: Space,
        a: &Lanes,
        op: Rmw,
        ty: Ty,
        d: &[Slot],
        b: &[Slot],
        c: Slot,
    ) -> Flow {
        let n = u64::from(ty.bytes()) * b.len() as u64;
        let swap = if c == SINK { [0; 32] } else { self.read(x, w, c) };
        let sources: Vec<Lanes> = b.iter().map(|&s| self.read(x, w, s)).collect();
        let mut old = vec![[0u64; 32]; b.len()];
        for i in bits(x.m) {
            let address = a[i as usize];
            for (k, s) in sources.iter().enumerate() {
                let at = address.wrapping_add(k as u64 * u64::from(ty.bytes()));
                let result = if !address.is_multiple_of(n) {
                    Err(Fault::Misaligned { address, bytes: n })
                } else {
                    let (v, e) = (s[i as usize], swap[i as usize]);
                    self.resolve(x.c, space, at).and_then(|t| {
                        self.touch(x, w, Some(i), t, Touch::Update(ty.bytes() as usize));
                        let global = matches!(t, Target::Global(_));
                        let done = self.update(t, ty, |o| match global {
                            true => atomic::combine_global(op, ty, o, v, e, true),
                            false => atomic::combine(op, ty, o, v, e),
                        });
                        if let Target::Global(at) = t {
                            self.heard_abroad(x, w, at, true);
                            self.polled(x, w);
                        }
                        done
                    })
                };
                match result {
                    Ok((v, written, kind)) => {
                        old[k][i as usize] = v;
                        if !written && op != Rmw::Exch {
                            let text = self.unwritten_text(space, at, ty.bytes() as usize);
                            self.report(kind, Origin::of(x.c, w, Some(i), x.line), text);
                        }
                    }
                    Err(f) => {
                        self.fault(Origin::of(x.c, w, Some(i), x.line), "atomic", f);
                        return Flow::Stop;
                    }
                }
            }
        }
        for (d, v) in d.iter().zip(&old) {
            w.set(*d, x.m, v);
        }
        Flow::Next
    }
}
