//! Loads, stores and atomics of lanes.

use super::mbarrier::Mbar;
use super::order::shadow::SEVERAL;
use super::order::track::Touch;
use super::report::Origin;
use super::state::{Cluster, Source, Warp};
use super::step::{Ctx, Flow, bits};
use crate::engine::descriptor::{Packing, spread_slots};
use crate::finding::FindingKind;
use crate::lanes::Lanes;
use crate::lower::module::MODULE_BASE;
use crate::memory::{Fault, GlobalMemory, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW};
use crate::program::{Op, Slot, Space};

/// The memory that an address refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Global(u64),
    /// CTA of the cluster, and offset.
    Shared(usize, u32),
    Local(u32),
    Param(u32),
}

/// Bytes of a row of 16 elements, without padding, which may stay unwritten.
pub(super) fn payload(slots: Packing) -> usize {
    match slots {
        Packing::Slot4 => 8,
        Packing::Slot6 => 12,
        _ => 16,
    }
}

impl<'r> Cluster<'r> {
    /// The memory that holds a global address.
    pub fn global(&self, address: u64) -> &'r GlobalMemory {
        let run = self.run;
        if address >= MODULE_BASE { &run.statics } else { run.memory }
    }

    /// Resolves an address of a CTA's thread.
    pub fn resolve(&self, c: usize, space: Space, address: u64) -> Result<Target, Fault> {
        match space {
            Space::Global | Space::Const => Ok(Target::Global(address)),
            Space::Local => Ok(Target::Local(address as u32)),
            Space::Param => Ok(Target::Param(address as u32)),
            Space::SharedCta => {
                let rank = (address >> 24) as u32;
                let own = self.ctas[c].rank;
                if rank != own {
                    return Err(Fault::OutOfBounds(format!(
                        "shared::cta address {address:#x} names CTA {rank} of the cluster, but this is CTA {own}"
                    )));
                }
                Ok(Target::Shared(c, address as u32 & 0xff_ffff))
            }
            Space::SharedCluster => {
                let rank = (address >> 24) as usize;
                match self.ctas.get(rank) {
                    None => Err(Fault::OutOfBounds(format!(
                        "shared::cluster address {address:#x} names CTA {rank} of a cluster of {}",
                        self.ctas.len()
                    ))),
                    Some(cta) if rank != c && cta.gone() => Err(Fault::Peer(rank as u32)),
                    Some(_) => Ok(Target::Shared(rank, address as u32 & 0xff_ffff)),
                }
            }
            Space::Generic => {
                let within = |base: u64| (base..base + WINDOW).contains(&address);
                if within(SHARED_WINDOW) {
                    self.resolve(c, Space::SharedCluster, address - SHARED_WINDOW)
                } else if within(LOCAL_WINDOW) {
                    Ok(Target::Local((address - LOCAL_WINDOW) as u32))
                } else if within(PARAM_WINDOW) {
                    Ok(Target::Param((address - PARAM_WINDOW) as u32))
                } else {
                    Ok(Target::Global(address))
                }
            }
        }
    }

    /// A shared-memory address as CTA and offset.
    pub fn resolve_shared(&self, c: usize, space: Space, address: u64) -> Result<(usize, u32), Fault> {
        match self.resolve(c, space, address)? {
            Target::Shared(cta, offset) => Ok((cta, offset)),
            _ => Err(Fault::OutOfBounds(format!("{address:#x} is not a shared-memory address"))),
        }
    }

    /// The shared-memory operand of an instruction whose unit takes 32 bits: mbarriers, `tcgen05.commit` and `alloc`,
    /// `ldmatrix` and `stmatrix` (their SASS is `SYNCS`, `UTCBAR`, `STS`, `LDSM` and `STSM`, which ignore the upper
    /// half). By the ISA, an address without a state space is generic; Triton and others use a shared address there.
    pub fn unit_operand(
        &mut self,
        at: Origin,
        c: usize,
        space: Space,
        address: u64,
    ) -> Result<(usize, u32), Fault> {
        if space != Space::Generic || (SHARED_WINDOW..SHARED_WINDOW + WINDOW).contains(&address) {
            return self.resolve_shared(c, space, address);
        }
        if self.strict() {
            let text = format!(
                "{address:#x} is no generic address of shared memory, which an instruction without a state space takes; name the space, e.g. .shared::cta, or convert with cvta"
            );
            self.report(FindingKind::GenericAddress, at, text);
        }
        self.resolve_shared(c, Space::SharedCluster, address & 0xffff_ffff)
    }

    /// A fault for shared memory.
    pub fn outside(&self, cta: usize, offset: u32, n: usize) -> Fault {
        let end = self.ctas.get(cta).map_or(0, |c| c.smem.len());
        Fault::OutOfBounds(format!(
            "{n} bytes at shared offset {offset:#x} of CTA {cta} of the cluster; the kernel's shared memory is {:#x} to {end:#x}",
            crate::program::SMEM_BASE
        ))
    }

    /// Reads bytes; returns whether all were written, and the kind of finding if not.
    pub fn load_bytes(
        &self,
        w: &Warp,
        lane: u32,
        target: Target,
        out: &mut [u8],
    ) -> Result<(bool, FindingKind), Fault> {
        match target {
            Target::Global(a) => Ok((self.global(a).load(a, out)?, FindingKind::UninitialisedGlobal)),
            Target::Shared(cta, offset) => match self.ctas[cta].smem.read(offset, out) {
                Ok(written) => Ok((written, FindingKind::UninitialisedShared)),
                Err(_) => Err(self.outside(cta, offset, out.len())),
            },
            Target::Local(offset) => {
                let at = self.local(lane, offset, out.len())?;
                match w.local.read(at, out) {
                    Ok(written) => Ok((written, FindingKind::UninitialisedLocal)),
                    Err(_) => Err(self.local_fault(offset, out.len())),
                }
            }
            Target::Param(offset) => {
                let from = offset as usize;
                match self.run.params.get(from..from + out.len()) {
                    Some(bytes) => {
                        out.copy_from_slice(bytes);
                        Ok((true, FindingKind::UninitialisedGlobal))
                    }
                    None => Err(Fault::OutOfBounds(format!(
                        "{} bytes at parameter offset {offset}; the parameters have {} bytes",
                        out.len(),
                        self.run.params.len()
                    ))),
                }
            }
        }
    }

    fn local_fault(&self, offset: u32, n: usize) -> Fault {
        Fault::OutOfBounds(format!(
            "{n} bytes at local offset {offset}; a thread has {} bytes",
            self.run.program.local_bytes
        ))
    }

    fn local(&self, lane: u32, offset: u32, n: usize) -> Result<u32, Fault> {
        let size = self.run.program.local_bytes;
        if u64::from(offset) + n as u64 > u64::from(size) {
            return Err(self.local_fault(offset, n));
        }
        Ok(lane * size + offset)
    }

    /// Writes bytes.
    pub fn store_bytes(&mut self, w: &mut Warp, lane: u32, target: Target, data: &[u8]) -> Result<(), Fault> {
        self.progress += 1;
        match target {
            Target::Global(a) => self.global(a).store(a, data),
            Target::Shared(cta, offset) => self.store_shared(cta, offset, data),
            Target::Local(offset) => {
                let at = self.local(lane, offset, data.len())?;
                match w.local.write(at, data) {
                    Ok(()) => Ok(()),
                    Err(_) => Err(self.local_fault(offset, data.len())),
                }
            }
            Target::Param(_) => Err(Fault::OutOfBounds("kernel parameters cannot be written".to_owned())),
        }
    }

    /// Writes shared memory. A live mbarrier there ends, and [`Cluster::report_clobbered`] reports it.
    pub fn store_shared(&mut self, cta: usize, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let k = &mut self.ctas[cta];
        let end = offset.saturating_add(data.len() as u32);
        let near = offset < k.mbar_span.1 && k.mbar_span.0 < end;
        let covers = |b: &Mbar| offset < b.offset + 8 && b.offset < end;
        if near && let Some(b) = k.mbars.iter().find(|b| covers(b)) {
            self.clobbered = Some((cta, b.offset));
            k.mbars.retain(|b| !covers(b));
        }
        match k.smem.write(offset, data) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.outside(cta, offset, data.len())),
        }
    }

    /// Reports live mbarriers that were overwritten.
    #[cold]
    pub(super) fn report_clobbered(&mut self, at: Origin) {
        if let Some((cta, offset)) = self.clobbered.take() {
            let text = format!(
                "the write covers the live mbarrier at shared offset {offset:#x} of CTA {cta} of the cluster, which ends there; mbarrier.inval comes first"
            );
            self.report(FindingKind::MbarrierOverwritten, at, text);
        }
    }

    pub(super) fn memory_op(&mut self, x: Ctx, w: &mut Warp, op: &'r Op) -> Flow {
        match op {
            Op::Load { space, at, elem, dst, signed, reg_bits } => {
                let a = self.addresses(x, w, *at, *space);
                self.load(x, w, *space, &a, *elem, dst, if *signed { *reg_bits } else { 0 })
            }
            Op::Store { space, at, elem, src } => {
                let a = self.addresses(x, w, *at, *space);
                self.store(x, w, *space, &a, *elem, src)
            }
            Op::Atom { space, at, op, ty, d, b, c } => {
                let a = self.addresses(x, w, *at, *space);
                self.atom(x, w, *space, &a, *op, *ty, d, b, *c)
            }
            Op::WideAtom { space, at, d, b, swap } => {
                let a = self.addresses(x, w, *at, *space);
                self.wide_atom(x, w, *space, &a, *d, *b, *swap)
            }
            Op::LdMatrix { space, at, trans, slots, dst } => {
                if let Some(f) = self.converge(w, x.m, u32::MAX) {
                    return f;
                }
                let a = self.addresses(x, w, *at, *space);
                let Some((space, a)) = self.matrix_rows(x, w, *space, a, 8 * dst.len()) else {
                    return Flow::Stop;
                };
                self.ldmatrix(x, w, (space, *slots), &a, *trans, dst)
            }
            Op::StMatrix { space, at, trans, src } => {
                if let Some(f) = self.converge(w, x.m, u32::MAX) {
                    return f;
                }
                let a = self.addresses(x, w, *at, *space);
                let Some((space, a)) = self.matrix_rows(x, w, *space, a, 8 * src.len()) else {
                    return Flow::Stop;
                };
                self.stmatrix(x, w, space, &a, *trans, src)
            }
            Op::BulkFill { dst, bytes } => {
                let a = self.addresses(x, w, *dst, Space::SharedCta);
                let n = self.read(x, w, *bytes);
                for i in bits(x.m) {
                    let zeros = vec![0; (n[i as usize] as usize).min(1 << 20)];
                    let r = self.resolve(x.c, Space::SharedCta, a[i as usize]).and_then(|t| {
                        self.touch(x, w, Some(i), t, Touch::Write(&zeros));
                        self.store_bytes(w, i, t, &zeros)
                    });
                    if let Err(f) = r {
                        self.fault(Origin::of(x.c, w, Some(i), x.line), "st.bulk", f);
                        return Flow::Stop;
                    }
                }
                Flow::Next
            }
            Op::Prefetch { at, space } => {
                self.addresses(x, w, *at, *space);
                Flow::Next
            }
            _ => Flow::Next,
        }
    }

    /// The shared addresses of `ldmatrix` and `stmatrix`, of which the first `rows` lanes' are used.
    fn matrix_rows(
        &mut self,
        x: Ctx,
        w: &Warp,
        space: Space,
        mut a: Lanes,
        rows: usize,
    ) -> Option<(Space, Lanes)> {
        if space != Space::Generic {
            return Some((space, a));
        }
        for (lane, address) in (0..).zip(&mut a).take(rows) {
            let at = Origin::of(x.c, w, Some(lane), x.line);
            match self.unit_operand(at, x.c, space, *address) {
                Ok((cta, offset)) => *address = (cta as u64) << 24 | u64::from(offset),
                Err(f) => {
                    self.fault(at, "ldmatrix or stmatrix", f);
                    return None;
                }
            }
        }
        Some((Space::SharedCluster, a))
    }

    #[allow(clippy::too_many_arguments, reason = "they are the operands of the instruction")]
    fn load(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        space: Space,
        a: &Lanes,
        elem: u32,
        dst: &[Slot],
        extend: u32,
    ) -> Flow {
        let n = (elem as usize * dst.len()).min(64);
        let mut values = [[0u64; 32]; 8];
        let mut undefined = [0u32; 8];
        let mut source = None;
        for i in bits(x.m) {
            let address = a[i as usize];
            let mut buffer = [0u8; 64];
            let result = if !address.is_multiple_of(n as u64) {
                Err(Fault::Misaligned { address, bytes: n as u64 })
            } else {
                self.resolve(x.c, space, address).and_then(|t| {
                    if matches!(t, Target::Global(_)) {
                        self.stats.global_read += n as u64;
                    }
                    self.touch(x, w, Some(i), t, Touch::Read(n));
                    let done = self.load_bytes(w, i, t, &mut buffer[..n]);
                    if let Target::Global(at) = t {
                        self.heard_abroad(x, w, at, false);
                        self.polled(x, w);
                    }
                    done
                })
            };
            match result {
                Ok((true, _)) => {}
                // Compilers load whole vectors of a local array and choose afterwards: what counts is
                // whether anything is computed from the elements that nothing has written.
                Ok((false, FindingKind::UninitialisedLocal)) => {
                    // The windows are 4 GiB apart: the lower half is the offset.
                    let base = i * self.run.program.local_bytes + address as u32;
                    for (k, u) in undefined.iter_mut().enumerate().take(dst.len()) {
                        let nothing = !w.local.any_written(base + k as u32 * elem, elem);
                        *u |= u32::from(nothing) << i;
                    }
                    source = Some(Source::Local);
                }
                // The same of shared memory: what counts is whether the value has an effect.
                Ok((false, FindingKind::UninitialisedShared)) => {
                    let Ok(Target::Shared(cta, offset)) = self.resolve(x.c, space, address) else { continue };
                    for (k, u) in undefined.iter_mut().enumerate().take(dst.len()) {
                        let at = offset + k as u32 * elem;
                        if !self.ctas[cta].smem.is_written(at, elem) {
                            *u |= 1 << i;
                            source.get_or_insert(Source::Shared(at));
                        }
                    }
                }
                Ok((false, kind)) => {
                    let at = Origin::of(x.c, w, Some(i), x.line);
                    self.report(kind, at, self.unwritten_text(space, address, n));
                }
                Err(f) => {
                    self.fault(Origin::of(x.c, w, Some(i), x.line), "load", f);
                    return Flow::Stop;
                }
            }
            for (k, v) in values.iter_mut().enumerate().take(dst.len()) {
                let from = k * elem as usize;
                let mut word = [0u8; 8];
                word[..elem as usize].copy_from_slice(&buffer[from..from + elem as usize]);
                let raw = u64::from_le_bytes(word);
                v[i as usize] = if extend == 0 {
                    raw
                } else {
                    let shift = 64 - elem * 8;
                    let wide = ((raw << shift) as i64 >> shift) as u64;
                    if extend >= 64 { wide } else { wide & ((1 << extend) - 1) }
                };
            }
        }
        for ((d, v), undefined) in dst.iter().zip(&values).zip(undefined) {
            w.set(*d, x.m, v);
            if let Some(source) = source {
                w.loaded(*d, undefined, source, x.line);
            }
        }
        Flow::Next
    }

    pub(super) fn unwritten_text(&self, space: Space, address: u64, n: usize) -> String {
        match space {
            Space::Global => {
                format!("nothing has written all of {}", self.global(address).describe(address, n as u64))
            }
            _ => format!("nothing has written all of the {n} bytes at address {address:#x}"),
        }
    }

    /// Whether all lanes of a warp store one value at one address. Then any of them may announce it, as kernels that
    /// run on hardware let one lane do; strict tracking requires a `bar.warp.sync` before that.
    fn stores_alike(&self, x: Ctx, w: &Warp, a: &Lanes, src: &[Slot]) -> bool {
        if self.tracker.is_none() || self.strict() || self.time.is_some() || x.m != w.present() {
            return false;
        }
        let equal = |v: &Lanes| bits(x.m).all(|i| v[i as usize] == v[x.m.trailing_zeros() as usize]);
        equal(a) && src.iter().all(|&s| equal(w.lanes(self.run.program, s)))
    }

    fn store(&mut self, x: Ctx, w: &mut Warp, space: Space, a: &Lanes, elem: u32, src: &[Slot]) -> Flow {
        let n = (elem as usize * src.len()).min(64);
        let mut known = [u32::MAX; 8];
        for (k, &s) in known.iter_mut().zip(src) {
            *k = self.known(x, w, s);
        }
        let program = self.run.program;
        let alike = self.stores_alike(x, w, a, src);
        for i in bits(x.m) {
            let address = a[i as usize];
            let mut buffer = [0u8; 64];
            for (k, &s) in src.iter().enumerate().take(8) {
                let from = k * elem as usize;
                let word = w.lanes(program, s)[i as usize].to_le_bytes();
                buffer[from..from + elem as usize].copy_from_slice(&word[..elem as usize]);
            }
            let result = if !address.is_multiple_of(n as u64) {
                Err(Fault::Misaligned { address, bytes: n as u64 })
            } else {
                self.resolve(x.c, space, address).and_then(|t| {
                    if matches!(t, Target::Global(_)) {
                        self.stats.global_written += n as u64;
                        self.spin.changes += 1;
                    }
                    if !alike {
                        self.touch(x, w, Some(i), t, Touch::Write(&buffer[..n]));
                    } else if i == x.m.trailing_zeros() {
                        self.touch(x, w, None, t, Touch::Write(&buffer[..n]));
                    }
                    self.store_bytes(w, i, t, &buffer[..n])?;
                    for (k, &s) in src.iter().enumerate().take(8).filter(|&(k, _)| known[k] >> i & 1 == 0) {
                        match t {
                            // A copy of an undefined value, as of the padding of a struct.
                            Target::Local(offset) => {
                                let at = i * program.local_bytes + offset + k as u32 * elem;
                                w.local.forget(at, elem);
                            }
                            // What is read from there later is judged then.
                            Target::Shared(cta, offset) => {
                                self.ctas[cta].smem.forget(offset + k as u32 * elem, elem);
                            }
                            Target::Global(_) | Target::Param(_) => {
                                self.check(Ctx { m: 1 << i, ..x }, w, s);
                            }
                        }
                    }
                    Ok(())
                })
            };
            if let Err(f) = result {
                self.fault(Origin::of(x.c, w, Some(i), x.line), "store", f);
                return Flow::Stop;
            }
        }
        Flow::Next
    }

    fn ldmatrix(
        &mut self,
        x: Ctx,
        w: &mut Warp,
        (space, slots): (Space, Packing),
        a: &Lanes,
        trans: bool,
        dst: &[Slot],
    ) -> Flow {
        let n = payload(slots);
        for (k, &d) in dst.iter().enumerate() {
            // Lanes 8k to 8k + 7 hold the row addresses of matrix k.
            let mut rows = [[0u8; 16]; 8];
            // Elements that nothing has written, a bit each, and the first of them.
            let (mut missing, mut source) = ([0u8; 8], None);
            for (r, row) in rows.iter_mut().enumerate() {
                let lane = 8 * k + r;
                let address = a[lane];
                let result = if !address.is_multiple_of(16) {
                    Err(Fault::Misaligned { address, bytes: 16 })
                } else {
                    self.resolve(x.c, space, address).and_then(|t| {
                        self.touch(x, w, None, t, Touch::Read(n));
                        let done = self.load_bytes(w, lane as u32, t, &mut row[..n]);
                        *row = spread_slots(slots, *row);
                        done
                    })
                };
                let at = Origin::of(x.c, w, Some(lane as u32), x.line);
                match result {
                    Ok((true, _)) => {}
                    Ok((false, _)) => {
                        let Ok(Target::Shared(cta, offset)) = self.resolve(x.c, space, address) else {
                            continue;
                        };
                        let smem = &self.ctas[cta].smem;
                        // Elements of less than 8 bits are spread: the row as a whole.
                        missing[r] = match slots {
                            Packing::Slot4 | Packing::Slot6 => 0xff,
                            _ => {
                                (0..8).fold(0, |m, c| m | u8::from(!smem.is_written(offset + 2 * c, 2)) << c)
                            }
                        };
                        source.get_or_insert(Source::Shared(offset + 2 * missing[r].trailing_zeros()));
                    }
                    Err(f) => {
                        self.fault(at, "ldmatrix", f);
                        return Flow::Stop;
                    }
                }
            }
            let element =
                |r: usize, c: usize| u64::from(u16::from_le_bytes([rows[r][2 * c], rows[r][2 * c + 1]]));
            let v = std::array::from_fn(|t| {
                let (r, c) = (t / 4, 2 * (t % 4));
                if trans {
                    element(c, r) | element(c + 1, r) << 16
                } else {
                    element(r, c) | element(r, c + 1) << 16
                }
            });
            w.set(d, x.m, &v);
            if let Some(source) = source {
                let lost = |t: usize| {
                    let (r, c) = (t / 4, 2 * (t % 4));
                    match trans {
                        true => (missing[c] | missing[c + 1]) >> r & 1 == 1,
                        false => missing[r] >> c & 3 != 0,
                    }
                };
                let lanes = (0..32).fold(0, |m, t| m | u32::from(lost(t)) << t);
                w.loaded(d, lanes & x.m, source, x.line);
            }
        }
        Flow::Next
    }

    fn stmatrix(&mut self, x: Ctx, w: &mut Warp, space: Space, a: &Lanes, trans: bool, src: &[Slot]) -> Flow {
        for (k, &s) in src.iter().enumerate() {
            let known = self.known(x, w, s);
            let v = *w.lanes(self.run.program, s);
            for r in 0..8usize {
                let mut row = [0u8; 16];
                for c in 0..8usize {
                    let (i, j) = if trans { (c, r) } else { (r, c) };
                    let word = v[i * 4 + j / 2] >> (16 * (j % 2)) & 0xffff;
                    row[2 * c..2 * c + 2].copy_from_slice(&(word as u16).to_le_bytes());
                }
                let lane = 8 * k + r;
                let address = a[lane];
                let result = if !address.is_multiple_of(16) {
                    Err(Fault::Misaligned { address, bytes: 16 })
                } else {
                    self.resolve(x.c, space, address).and_then(|t| {
                        // Four lanes' elements: what they do together they have not told each other.
                        self.touch(x, w, Some(u32::from(SEVERAL)), t, Touch::Write(&row));
                        self.store_bytes(w, lane as u32, t, &row)?;
                        if let Target::Shared(cta, offset) = t
                            && known != u32::MAX
                        {
                            for c in 0..8 {
                                let (i, j) = if trans { (c, r) } else { (r, c) };
                                if known >> (i * 4 + j / 2) & 1 == 0 {
                                    self.ctas[cta].smem.forget(offset + 2 * c as u32, 2);
                                }
                            }
                        }
                        Ok(())
                    })
                };
                if let Err(f) = result {
                    self.fault(Origin::of(x.c, w, Some(lane as u32), x.line), "stmatrix", f);
                    return Flow::Stop;
                }
            }
        }
        Flow::Next
    }

    pub(super) fn copy_local(&mut self, x: Ctx, w: &mut Warp, dst: u32, src: u32, n: u32) -> Flow {
        let size = self.run.program.local_bytes;
        for i in bits(x.m) {
            // Byte by byte, so that padding nobody wrote stays unwritten.
            for k in 0..n {
                let mut b = [0u8];
                if w.local.read(i * size + src + k, &mut b) == Ok(true) {
                    let _ = w.local.write(i * size + dst + k, &b);
                }
            }
        }
        Flow::Next
    }
}
