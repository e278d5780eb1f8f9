//! `cvt` (ISA section 9.7.9.21): every scalar conversion, and the packed ones of two elements.

use super::float::half::{bf16_of, f16_of};
use super::round::{encode, to_f32};
use crate::engine::format::{Format, Overflow, Rounding};
use crate::isa::Ty;

/// A decoded `cvt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convert {
    pub dst: Ty,
    pub src: Ty,
    /// Width of the destination register in bits; signed results are sign-extended to it.
    pub reg_bits: u32,
    pub rounding: Rounding,
    /// `.rni`, `.rzi` and so on: round to an integral value.
    pub integral: bool,
    pub ftz: bool,
    pub sat: bool,
    pub satfinite: bool,
    pub relu: bool,
}

/// Format of one element of a small type, and its bits in the packed word.
pub(crate) fn element(ty: Ty) -> Option<(Format, u32)> {
    Some(match ty {
        Ty::F16 | Ty::F16x2 => (Format::F16, 16),
        Ty::Bf16 | Ty::Bf16x2 => (Format::Bf16, 16),
        Ty::Tf32 => (Format::Tf32, 32),
        Ty::E4m3x2 => (Format::E4m3, 8),
        Ty::E5m2x2 => (Format::E5m2, 8),
        Ty::E2m3x2 => (Format::E2m3, 8),
        Ty::E3m2x2 => (Format::E3m2, 8),
        Ty::Ue8m0x2 => (Format::Ue8m0, 8),
        Ty::E2m1x2 => (Format::E2m1, 4),
        _ => return None,
    })
}

fn integer_range(ty: Ty) -> (i128, i128) {
    let bits = ty.bits();
    if ty.signed() { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) }
}

fn integer_value(ty: Ty, x: u64) -> i128 {
    let shift = 64 - ty.bits();
    if ty.signed() { i128::from((x << shift) as i64 >> shift) } else { i128::from(x << shift >> shift) }
}

fn mask(x: u64, bits: u32) -> u64 {
    if bits >= 64 { x } else { x & ((1 << bits) - 1) }
}

/// Rounds to an integral value.
fn integral(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::NearestEven => x.round_ties_even(),
        Rounding::NearestAway => x.round(),
        Rounding::TowardZero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// An integer as f64, rounded to odd when it has more than 53 bits.
fn integer_odd(v: i128) -> f64 {
    let m = v.unsigned_abs() as u64;
    let extra = 64u32.saturating_sub(m.leading_zeros()).saturating_sub(53);
    let mut top = m >> extra;
    if top << extra != m {
        top |= 1;
    }
    let r = top as f64 * (1u64 << extra) as f64;
    if v < 0 { -r } else { r }
}

impl Convert {
    fn source(&self, x: u64) -> f64 {
        let v = match self.src {
            Ty::F64 => return f64::from_bits(x),
            Ty::F32 => f32::from_bits(x as u32),
            Ty::F16 => f16_of(x),
            Ty::Bf16 => bf16_of(x),
            _ => 0.0,
        };
        // To f16 `.ftz` changes nothing.
        if self.ftz && self.src == Ty::F32 && self.dst != Ty::F16 && v.abs() < f32::MIN_POSITIVE {
            return f64::from(0f32.copysign(v));
        }
        f64::from(v)
    }

    fn float_result(&self, v: f64) -> u64 {
        let v = if self.integral { integral(v, self.rounding) } else { v };
        let v = if self.sat { if v > 0.0 { v.min(1.0) } else { 0.0 } } else { v };
        let v = if self.relu && v <= 0.0 { 0.0 } else { v };
        match self.dst {
            Ty::F64 => {
                if v.is_nan() {
                    0x7ff8_0000_0000_0000
                } else {
                    v.to_bits()
                }
            }
            Ty::F32 => {
                let r = to_f32(v, self.rounding);
                let r = if self.ftz && r.abs() < f32::MIN_POSITIVE { 0f32.copysign(r) } else { r };
                u64::from(if r.is_nan() { 0x7fff_ffff } else { r.to_bits() })
            }
            _ => match element(self.dst) {
                Some((format, _)) => u64::from(self.small(v, format)),
                None => 0,
            },
        }
    }

    /// Converts to one element of a small format. Without `.satfinite` it overflows as IEEE 754 does.
    fn small(&self, v: f64, format: Format) -> u32 {
        let v = if self.relu && v <= 0.0 { 0.0 } else { v };
        let overflow = if self.satfinite { Overflow::Satfinite } else { Overflow::Ieee };
        encode(v, format, self.rounding, overflow)
    }

    /// A scalar conversion.
    pub fn apply(&self, x: u64) -> u64 {
        match (self.src.integer(), self.dst.integer()) {
            (true, true) => {
                let mut v = integer_value(self.src, x);
                if self.sat {
                    let (lo, hi) = integer_range(self.dst);
                    v = v.clamp(lo, hi);
                }
                self.extend(v)
            }
            (false, true) => {
                let v = self.source(x);
                if v.is_nan() {
                    let wide = self.src == Ty::F64 || self.dst.bits() == 64;
                    return if wide { 1 << (self.dst.bits() - 1) } else { 0 };
                }
                let (lo, hi) = integer_range(self.dst);
                // `as` saturates, and 64-bit ranges fit i128.
                self.extend((integral(v, self.rounding) as i128).clamp(lo, hi))
            }
            (true, false) => {
                let v = integer_value(self.src, x);
                if self.dst == Ty::F64 {
                    return integer_to_f64(v, self.rounding).to_bits();
                }
                self.float_result(integer_odd(v))
            }
            (false, false) if self.source(x).is_nan() => self.nan(x),
            (false, false) => self.float_result(self.source(x)),
        }
    }

    /// Converts a NaN. Between binary64, binary32 and bf16 its sign and upper bits are kept; elsewhere the result is
    /// the canonical NaN.
    fn nan(&self, x: u64) -> u64 {
        let wide = |v: u64| (v >> 31 & 1) << 63 | 0x7ff8_0000_0000_0000 | (v & 0x7f_ffff) << 29;
        let narrow = |v: u64| (v >> 63) << 31 | 0x7fc0_0000 | v >> 29 & 0x3f_ffff;
        match (self.dst, self.src) {
            _ if self.sat => self.float_result(f64::NAN),
            (Ty::F64, Ty::F32) => wide(x),
            (Ty::F64, Ty::Bf16) => wide(x << 16),
            (Ty::F64, Ty::F16) => (x >> 15 & 1) << 63 | 0x7ff8_0000_0000_0000 | (x & 0x3ff) << 42,
            (Ty::F64, Ty::F64) => x | 1 << 51,
            (Ty::F32, Ty::F64) => narrow(x),
            (Ty::Bf16, Ty::F64) if !self.relu => narrow(x) >> 16,
            (Ty::F32, Ty::Bf16) if !self.ftz => x << 16 & 0xffff_ffff,
            // Saturation takes one place off whatever has the exponent of infinity.
            (Ty::Tf32, Ty::F32) if self.rounding == Rounding::NearestAway => {
                (x & 0xffff_e000) - if self.satfinite { 0x2000 } else { 0 }
            }
            _ => self.float_result(f64::NAN),
        }
    }

    fn extend(&self, v: i128) -> u64 {
        let v = v as u64;
        let low = mask(v, self.dst.bits());
        let extended = if self.dst.signed() { integer_value(self.dst, low) as u64 } else { low };
        mask(extended, self.reg_bits)
    }

    /// A packed conversion of two scalar sources; `hi` goes to the upper half.
    pub fn pack(&self, hi: u64, lo: u64) -> u64 {
        let Some((format, bits)) = element(self.dst) else {
            return 0;
        };
        let (h, l) = (self.small(self.source(hi), format), self.small(self.source(lo), format));
        u64::from(h) << bits | u64::from(l)
    }

    /// A packed conversion of a packed source (`e4m3x2` from `f16x2` and back).
    pub fn repack(&self, x: u64) -> u64 {
        let (Some((to, dbits)), Some((from, sbits))) = (element(self.dst), element(self.src)) else {
            return 0;
        };
        let half = |i: u32| {
            let v = from.decode(mask(x >> (i * sbits), sbits) as u32);
            u64::from(self.small(f64::from(v), to)) << (i * dbits)
        };
        half(0) | half(1)
    }
}

fn integer_to_f64(v: i128, rounding: Rounding) -> f64 {
    let r = v as f64;
    let back = r as i128;
    match rounding {
        Rounding::TowardZero if back.abs() > v.abs() => {
            if r > 0.0 {
                r.next_down()
            } else {
                r.next_up()
            }
        }
        Rounding::Down if back > v => r.next_down(),
        Rounding::Up if back < v => r.next_up(),
        _ => r,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cvt(dst: Ty, src: Ty, rounding: Rounding) -> Convert {
        Convert {
            dst,
            src,
            reg_bits: dst.bits().max(16),
            rounding,
            integral: false,
            ftz: false,
            sat: false,
            satfinite: false,
            relu: false,
        }
    }

    #[test]
    fn integers_extend_by_the_source_and_destination_signs() {
        assert_eq!(cvt(Ty::S64, Ty::S32, Rounding::NearestEven).apply(0xffff_ffff), u64::MAX);
        assert_eq!(cvt(Ty::U64, Ty::U32, Rounding::NearestEven).apply(0xffff_ffff), 0xffff_ffff);
        let narrow = Convert { reg_bits: 32, ..cvt(Ty::S8, Ty::S32, Rounding::NearestEven) };
        assert_eq!(narrow.apply(0x80), 0xffff_ff80);
        let sat = Convert { sat: true, ..cvt(Ty::U8, Ty::S32, Rounding::NearestEven) };
        assert_eq!(sat.apply(0xffff_fff0), 0);
        assert_eq!(sat.apply(300), 255);
    }

    #[test]
    fn floats_to_integers_round_clamp_and_map_nan() {
        let c = |r| cvt(Ty::S32, Ty::F32, r);
        let f = |v: f32| u64::from(v.to_bits());
        assert_eq!(c(Rounding::NearestEven).apply(f(2.5)), 2);
        assert_eq!(c(Rounding::Up).apply(f(2.1)), 3);
        assert_eq!(c(Rounding::TowardZero).apply(f(-2.9)), 0xffff_fffe);
        assert_eq!(c(Rounding::TowardZero).apply(f(1e20)), 0x7fff_ffff);
        assert_eq!(c(Rounding::TowardZero).apply(f(f32::NAN)), 0);
        assert_eq!(cvt(Ty::S64, Ty::F32, Rounding::TowardZero).apply(f(f32::NAN)), 1 << 63);
    }

    #[test]
    fn integers_to_floats_round_once() {
        // 2^24 + 1 is a tie in f32.
        assert_eq!(
            cvt(Ty::F32, Ty::U32, Rounding::NearestEven).apply((1 << 24) + 1),
            u64::from(16_777_216f32.to_bits())
        );
        assert_eq!(
            cvt(Ty::F32, Ty::U32, Rounding::Up).apply((1 << 24) + 1),
            u64::from(16_777_218f32.to_bits())
        );
        let v = u64::MAX - 1;
        assert_eq!(
            cvt(Ty::F32, Ty::U64, Rounding::TowardZero).apply(v),
            u64::from((u64::MAX as f32).next_down().to_bits())
        );
    }

    #[test]
    fn the_first_source_goes_to_the_upper_half() {
        let c = cvt(Ty::F16x2, Ty::F32, Rounding::NearestEven);
        let f = |v: f32| u64::from(v.to_bits());
        assert_eq!(c.pack(f(1.0), f(2.0)), 0x3c00_4000);
        let c = Convert { satfinite: true, ..cvt(Ty::E2m1x2, Ty::F32, Rounding::NearestEven) };
        assert_eq!(c.pack(f(100.0), f(-0.5)), 0x79);
        let back = cvt(Ty::F16x2, Ty::E2m1x2, Rounding::NearestEven);
        assert_eq!(back.repack(0x79), 0x4600_b800);
    }
}
