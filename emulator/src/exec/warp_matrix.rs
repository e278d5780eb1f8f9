//! `mma.sync` and `wmma` (ISA section 9.7.14).
//!
//! The ISA does not specify which lane holds which element of a `wmma` fragment. Here element `i` of lane `l` is
//! element `l n + i` of the matrix, row by row (for B column by column), repeated if a fragment has more room than
//! the matrix.

use super::order::shadow::SEVERAL;
use super::order::track::Touch;
use super::report::Origin;
use super::state::{Cluster, Warp};
use super::step::{Ctx, Flow};
use crate::engine::fragment::{self, Extras, Kind, Shape};
use crate::engine::idesc::ScaleFactors;
use crate::engine::mma::operands::Scales;
use crate::finding::FindingKind;
use crate::lanes::Lanes;
use crate::memory::Fault;
use crate::program::{SINK, Slot, WarpMma, WarpScale, WmmaMove};

/// Results of a product that is not computed: zeros.
fn clear(x: Ctx, w: &mut Warp, mma: &WarpMma) {
    mma.d.iter().for_each(|slot| w.set(*slot, x.m, &[0; 32]));
}

impl Cluster<'_> {
    fn all(&mut self, x: Ctx, w: &Warp, list: &[Slot]) -> Vec<Lanes> {
        list.iter().map(|&s| self.read(x, w, s)).collect()
    }

    fn count_macs(&mut self, s: Shape) {
        *self.stats.mma_macs.entry("mma.sync").or_default() += (s.m * s.n * s.k) as u64;
    }

    /// `mma.sync`, dense, sparse and block-scaled.
    pub(super) fn warp_mma(&mut self, x: Ctx, w: &mut Warp, mma: &WarpMma) -> Result<(), String> {
        if self.without_values() {
            clear(x, w, mma);
            return Ok(());
        }
        let [a, b, c] = [&mma.a, &mma.b, &mma.c].map(|list| self.all(x, w, list));
        let scales = match &mma.scale {
            Some(s) => Some(self.scales(x, w, s)?),
            None => None,
        };
        let extras = Extras {
            c_half: mma.c_half,
            rounding: mma.rounding,
            sparse: mma.sparse.map(|(slot, selector)| (self.read(x, w, slot), selector)),
            scales,
            quads: mma.quads,
            widened: mma.widened,
        };
        let arithmetic = self.run.options.mma_arithmetic;
        let (d, note) = fragment::mma(mma.shape, mma.kind, arithmetic, [&a, &b, &c], &extras)?;
        if let Some(text) = note {
            self.report(FindingKind::UndefinedMetadata, Origin::of(x.c, w, None, x.line), text);
        }
        for (slot, v) in mma.d.iter().zip(&d) {
            w.set(*slot, x.m, v);
        }
        self.count_macs(mma.shape);
        Ok(())
    }

    /// Scale factors from the threads and bytes that the selectors name (ISA section 9.7.14.3).
    fn scales(&mut self, x: Ctx, w: &Warp, s: &WarpScale) -> Result<Scales, String> {
        let mut side = |[data, byte, thread]: [Slot; 3], what: &str, threads: u64| {
            let values = self.read(x, w, data);
            let mut one = |slot, name: &str, fits: &dyn Fn(u64) -> bool| {
                let v = self.read(x, w, slot);
                match self.uniform(x, w, &v, "a scale factor selector of mma") {
                    Some(v) if fits(v & 0xffff) => Ok((v & 0xffff) as u32),
                    Some(v) => Err(format!("{name} {v} of {what} does not exist for this scale vector size")),
                    None => Err(format!("{name} of {what} differs among lanes")),
                }
            };
            let count = s.vec.per_instruction();
            let byte = one(byte, "byte-id", &|v| v.is_multiple_of(count.into()) && v < 4)?;
            let thread = one(thread, "thread-id", &|v| v < threads)? as usize;
            let mask = u32::MAX >> (32 - 8 * count);
            Ok::<_, String>((values.map(move |v| (v as u32) >> (8 * byte) & mask), thread))
        };
        let (a, pair) = side(s.a, "A", 2)?;
        let (b, thread) = side(s.b, "B", 4)?;
        Ok(Scales {
            factors: ScaleFactors { format: s.format, vec: s.vec, a_id: 0, b_id: 0 },
            // The first of a pair of threads has row `lane / 4`, the second the row 8 further.
            a: (0..16).map(|row| a[4 * (row % 8) + 2 * pair + row / 8]).collect(),
            b: (0..8).map(|column| b[4 * column + thread]).collect(),
        })
    }

    /// `wmma.mma`.
    pub(super) fn wmma_mma(&mut self, x: Ctx, w: &mut Warp, mma: &WarpMma) {
        if self.without_values() {
            clear(x, w, mma);
            return;
        }
        let [a, b, c] = [&mma.a, &mma.b, &mma.c].map(|list| self.all(x, w, list));
        let s = mma.shape;
        let half = matches!(mma.kind, Kind::Float { half: true, .. });
        let wide = mma.kind.bits() == 64;
        let width = |half: bool| {
            if wide {
                64
            } else if half {
                16
            } else {
                32
            }
        };
        let (ca, cb) = (matrix(&a, s.m * s.k, mma.kind.bits()), matrix(&b, s.n * s.k, mma.kind.bits()));
        let mut d = matrix(&c, s.m * s.n, width(mma.c_half));
        fragment::convert(&mut d, mma.c_half, half);
        let extras = Extras { rounding: mma.rounding, ..Extras::default() };
        fragment::product(s, mma.kind, self.run.options.mma_arithmetic, (&ca, &cb), &mut d, &extras);
        for (slot, v) in mma.d.iter().zip(&fragment_of(&d, mma.d.len(), width(half))) {
            w.set(*slot, x.m, v);
        }
        self.count_macs(s);
    }

    /// `wmma.load` and `wmma.store`.
    pub(super) fn wmma_move(&mut self, x: Ctx, w: &mut Warp, m: &WmmaMove) -> Flow {
        let base = self.addresses(x, w, m.at, m.space);
        let Some(base) = self.uniform(x, w, &base, "the address of a wmma fragment") else {
            return Flow::Stop;
        };
        let stride = match m.stride {
            SINK => m.length as u64,
            s => {
                let v = self.read(x, w, s);
                match self.uniform(x, w, &v, "the stride of a wmma fragment") {
                    Some(v) => v & 0xffff_ffff,
                    None => return Flow::Stop,
                }
            }
        };
        let total = m.lines * m.length;
        let mut codes = vec![0u64; total];
        if m.store {
            let registers = self.all(x, w, &m.registers);
            codes = matrix(&registers, total, m.bits);
        }
        // Whole bytes of a line at a time, as lane 0's.
        let n = (m.length * m.bits as usize).div_ceil(8);
        for line in 0..m.lines {
            let address = base.wrapping_add((line as u64).wrapping_mul(stride) * u64::from(m.bits) / 8);
            // Number in the fragment of element `i` of this line.
            let number = |i: usize| if m.along { line * m.length + i } else { i * m.lines + line };
            let mut bytes = vec![0u8; n];
            let put = |bytes: &mut [u8], i: usize, code: u64| {
                for bit in 0..m.bits as usize {
                    let at = i * m.bits as usize + bit;
                    bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
                }
            };
            if m.store {
                (0..m.length).for_each(|i| put(&mut bytes, i, codes[number(i)]));
            }
            let at = Origin::of(x.c, w, Some(0), x.line);
            let aligned = u64::from(m.bits.max(8) / 8);
            let result = match address.is_multiple_of(aligned) {
                true => self.resolve(x.c, m.space, address),
                false => Err(Fault::Misaligned { address, bytes: aligned }),
            };
            let result = result.and_then(|t| {
                let touch = if m.store { Touch::Write(&bytes) } else { Touch::Read(n) };
                self.touch(x, w, m.store.then_some(u32::from(SEVERAL)), t, touch);
                match m.store {
                    true => self.store_bytes(w, 0, t, &bytes).map(|()| None),
                    false => self.load_bytes(w, 0, t, &mut bytes).map(Some),
                }
            });
            match result {
                Ok(None | Some((true, _))) => {}
                Ok(Some((false, kind))) => {
                    let text = format!("nothing has written all of the {n} bytes at address {address:#x}");
                    self.report(kind, at, text);
                }
                Err(f) => {
                    self.fault(at, "wmma", f);
                    return Flow::Stop;
                }
            }
            if !m.store {
                for i in 0..m.length {
                    let mut code = 0;
                    for bit in 0..m.bits as usize {
                        let at = i * m.bits as usize + bit;
                        code |= u64::from(bytes[at / 8] >> (at % 8) & 1) << bit;
                    }
                    codes[number(i)] = code;
                }
            }
        }
        if !m.store {
            for (slot, v) in m.registers.iter().zip(&fragment_of(&codes, m.registers.len(), m.bits)) {
                w.set(*slot, x.m, v);
            }
        }
        Flow::Next
    }
}

/// Elements in a register.
fn per(bits: u32) -> usize {
    if bits == 64 { 1 } else { 32 / bits as usize }
}

/// The matrix that a fragment holds.
fn matrix(registers: &[Lanes], total: usize, bits: u32) -> Vec<u64> {
    let (per, n) = (per(bits), registers.len() * per(bits));
    let mask = u64::MAX >> (64 - bits);
    (0..total).map(|p| registers[p % n / per][p / n % 32] >> (p % per * bits as usize) & mask).collect()
}

/// The registers of a fragment.
fn fragment_of(codes: &[u64], registers: usize, bits: u32) -> Vec<Lanes> {
    let (per, n) = (per(bits), registers * per(bits));
    let mut out = vec![[0u64; 32]; registers];
    for lane in 0..32 {
        for i in 0..n {
            out[i / per][lane] |= codes[(lane * n + i) % codes.len()] << (i % per * bits as usize);
        }
    }
    out
}
