//! Arithmetic of read-modify-write operations (`atom`, `red`, bulk reductions) on one value.

use super::float::half::{bf16_of, f16_of};
use super::float::passed;
use super::round::{encode, fma_odd};
use crate::engine::format::{Format, Overflow, Rounding};
use crate::isa::Ty;
use crate::program::Rmw;

/// Whether `atom` and the bulk reductions have this operation on this type.
pub(crate) fn supported(op: Rmw, ty: Ty) -> bool {
    match op {
        Rmw::Cas | Rmw::Exch => matches!(ty, Ty::B16 | Ty::B32 | Ty::B64),
        Rmw::And | Rmw::Or | Rmw::Xor => matches!(ty, Ty::B32 | Ty::B64),
        Rmw::Inc | Rmw::Dec => ty == Ty::U32,
        Rmw::Add => matches!(
            ty,
            Ty::U32
                | Ty::S32
                | Ty::U64
                | Ty::S64
                | Ty::F32
                | Ty::F64
                | Ty::F16
                | Ty::F16x2
                | Ty::Bf16
                | Ty::Bf16x2
        ),
        Rmw::Min | Rmw::Max => {
            matches!(
                ty,
                Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::F32
            )
        }
    }
}

fn half(op: Rmw, bf: bool, a: u64, b: u64) -> u64 {
    let of = |x| f64::from(if bf { bf16_of(x) } else { f16_of(x) });
    let (x, y) = (of(a & 0xffff), of(b & 0xffff));
    let r = match op {
        Rmw::Add => fma_odd(x, 1.0, y),
        // Zeros of unlike sign differ here: the negative one is the smaller.
        Rmw::Min if x == y => {
            if x.is_sign_negative() {
                x
            } else {
                y
            }
        }
        Rmw::Min => x.min(y),
        _ if x == y => {
            if x.is_sign_negative() {
                y
            } else {
                x
            }
        }
        _ => x.max(y),
    };
    let format = if bf { Format::Bf16 } else { Format::F16 };
    u64::from(encode(r, format, Rounding::NearestEven, Overflow::Ieee))
}

/// As [`combine`], for global memory, where a binary64 NaN is kept unchanged, a signalling one too. `flush` selects
/// the behaviour of `atom` and `red`, whose binary32 sums take subnormal numbers as zero (ISA section 9.7.13.6); bulk
/// reductions do not.
pub(crate) fn combine_global(op: Rmw, ty: Ty, old: u64, b: u64, c: u64, flush: bool) -> u64 {
    let flushed = |v: u64| if v & 0x7f80_0000 == 0 { v & 0x8000_0000 } else { v };
    match (op, ty) {
        (Rmw::Add, Ty::F32) if flush => flushed(combine(op, ty, flushed(old), flushed(b), c)),
        (Rmw::Add, Ty::F64) if f64::from_bits(b).is_nan() => b,
        (Rmw::Add, Ty::F64) if f64::from_bits(old).is_nan() => old,
        _ => combine(op, ty, old, b, c),
    }
}

/// The value that `op` writes, where memory holds `old` and the operands are `b` and `c`.
pub(crate) fn combine(op: Rmw, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    match ty {
        Ty::F16 => return half(op, false, old, b),
        Ty::Bf16 => return half(op, true, old, b),
        Ty::F16x2 | Ty::Bf16x2 => {
            let bf = ty == Ty::Bf16x2;
            return half(op, bf, old, b) | half(op, bf, old >> 16, b >> 16) << 16;
        }
        Ty::F32 => {
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            let r = match op {
                Rmw::Add => x + y,
                Rmw::Min => x.min(y),
                _ => x.max(y),
            };
            return u64::from(if r.is_nan() { 0x7fff_ffff } else { r.to_bits() });
        }
        Ty::F64 => return passed(f64::from_bits(old) + f64::from_bits(b), [old, b, 0]),
        _ => {}
    }
    let wide = ty.bits() == 64;
    let signed = |x: u64| if wide { x as i64 } else { i64::from(x as i32) };
    let r = match op {
        Rmw::And => old & b,
        Rmw::Or => old | b,
        Rmw::Xor => old ^ b,
        Rmw::Exch => b,
        Rmw::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        Rmw::Add => old.wrapping_add(b),
        Rmw::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        Rmw::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        Rmw::Min if ty.signed() => signed(old).min(signed(b)) as u64,
        Rmw::Max if ty.signed() => signed(old).max(signed(b)) as u64,
        Rmw::Min => old.min(b),
        Rmw::Max => old.max(b),
    };
    match ty.bits() {
        16 => r & 0xffff,
        32 => r & 0xffff_ffff,
        _ => r,
    }
}
