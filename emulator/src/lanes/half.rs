//! f16 and bf16, single and packed (ISA section 9.7.4).

use super::Mode;
use crate::engine::format::{Format, Overflow, Rounding};
use crate::isa::Ty;
use crate::lanes::mufu;
use crate::lanes::round::{encode, fma_odd};
use crate::lanes::{F1, F2, F3, l1, l2, l3};

/// f16 bits to f32.
pub(crate) fn f16_of(x: u64) -> f32 {
    half::f16::from_bits(x as u16).to_f32()
}
/// f16 bits to f32, with subnormal numbers flushed to zero.
pub(crate) fn f16_flushed(x: u64) -> f32 {
    let v = f16_of(x);
    if v.abs() < 6.103_515_6e-5 { 0f32.copysign(v) } else { v }
}
/// bf16 bits to f32.
pub(crate) fn bf16_of(x: u64) -> f32 {
    f32::from_bits((x as u32) << 16)
}

fn of<const BF: bool>(x: u64) -> f32 {
    if BF { bf16_of(x) } else { f16_of(x) }
}

fn to<const BF: bool>(x: f64) -> u64 {
    let format = if BF { Format::Bf16 } else { Format::F16 };
    u64::from(encode(x, format, Rounding::NearestEven, Overflow::Ieee))
}

/// Applies flushing (f16 only), then `.sat` or `.relu`, to a result.
fn finish<const BF: bool>(code: u64, m: u8) -> u64 {
    let (ftz, sat, relu) = (m & 1 != 0, m & 2 != 0, m & 4 != 0);
    let v = of::<BF>(code);
    if sat {
        let small = ftz && v < 6.103_515_6e-5;
        return if v > 0.0 && !small { to::<BF>(f64::from(v.min(1.0))) } else { 0 };
    }
    if relu && v < 0.0 {
        return 0;
    }
    if relu && v == 0.0 {
        return 0;
    }
    if ftz && v != 0.0 && v.abs() < 6.103_515_6e-5 {
        return code & 0x8000;
    }
    code
}

fn src<const BF: bool>(x: u64, m: u8) -> f64 {
    let v = of::<BF>(x & 0xffff);
    let v = if m & 1 != 0 && v.abs() < 6.103_515_6e-5 { 0f32.copysign(v) } else { v };
    f64::from(v)
}

fn add<const BF: bool, const M: u8>(a: u64, b: u64) -> u64 {
    finish::<BF>(to::<BF>(fma_odd(src::<BF>(a, M), 1.0, src::<BF>(b, M))), M)
}
fn sub<const BF: bool, const M: u8>(a: u64, b: u64) -> u64 {
    add::<BF, M>(a, b ^ 0x8000)
}
fn mul<const BF: bool, const M: u8>(a: u64, b: u64) -> u64 {
    finish::<BF>(to::<BF>(src::<BF>(a, M) * src::<BF>(b, M)), M)
}
fn fma<const BF: bool, const M: u8>(a: u64, b: u64, c: u64) -> u64 {
    finish::<BF>(to::<BF>(fma_odd(src::<BF>(a, M), src::<BF>(b, M), src::<BF>(c, M))), M)
}
/// Minimum or maximum. Bits of `M`: 0 for `.ftz`, 1 for `.NaN`, 2 for maximum.
fn minmax<const BF: bool, const M: u8>(a: u64, b: u64) -> u64 {
    let (a, b) = (a & 0xffff, b & 0xffff);
    let (x, y) = (src::<BF>(a, M & 1), src::<BF>(b, M & 1));
    if x.is_nan() || y.is_nan() {
        if M & 2 != 0 || (x.is_nan() && y.is_nan()) {
            return 0x7fff;
        }
        return if x.is_nan() { finish::<BF>(b, M & 1) } else { finish::<BF>(a, M & 1) };
    }
    let first = if x == y { x.is_sign_negative() == (M & 4 == 0) } else { (x < y) == (M & 4 == 0) };
    finish::<BF>(if first { a } else { b }, M & 1)
}

fn both2(f: impl Fn(u64, u64) -> u64, a: u64, b: u64) -> u64 {
    f(a & 0xffff, b & 0xffff) | f(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
}

/// Instances of a two-source function, scalar or packed, for each value of the flag byte.
macro_rules! flags2 {
    ($f:ident, $bf:literal, $packed:expr, $m:expr) => {{
        macro_rules! arm {
            ($v:literal) => {
                if $packed { l2!(|a, b| both2($f::<$bf, $v>, a, b)) } else { l2!(|a, b| $f::<$bf, $v>(a, b)) }
            };
        }
        match $m {
            0 => arm!(0),
            1 => arm!(1),
            2 => arm!(2),
            3 => arm!(3),
            4 => arm!(4),
            5 => arm!(5),
            6 => arm!(6),
            _ => arm!(7),
        }
    }};
}

fn kind(ty: Ty) -> Option<(bool, bool)> {
    match ty {
        Ty::F16 => Some((false, false)),
        Ty::F16x2 => Some((false, true)),
        Ty::Bf16 => Some((true, false)),
        Ty::Bf16x2 => Some((true, true)),
        _ => None,
    }
}

fn flag_byte(m: Mode) -> u8 {
    u8::from(m.ftz) | u8::from(m.sat) << 1 | u8::from(m.relu) << 2
}

/// Two-source operations.
pub(crate) fn two(op: &str, ty: Ty, m: Mode) -> Option<F2> {
    let (bf, packed) = kind(ty)?;
    if m.rounding != Rounding::NearestEven {
        return None;
    }
    let f = flag_byte(m);
    let mm = u8::from(m.ftz) | u8::from(m.nan) << 1 | u8::from(op == "max") << 2;
    Some(match (op, bf) {
        ("add", false) => flags2!(add, false, packed, f),
        ("add", true) => flags2!(add, true, packed, f),
        ("sub", false) => flags2!(sub, false, packed, f),
        ("sub", true) => flags2!(sub, true, packed, f),
        ("mul", false) => flags2!(mul, false, packed, f),
        ("mul", true) => flags2!(mul, true, packed, f),
        ("min" | "max", false) => flags2!(minmax, false, packed, mm),
        ("min" | "max", true) => flags2!(minmax, true, packed, mm),
        _ => return None,
    })
}

/// Three-source operations.
pub(crate) fn three(op: &str, ty: Ty, m: Mode) -> Option<F3> {
    let (bf, packed) = kind(ty)?;
    if op != "fma" || m.rounding != Rounding::NearestEven {
        return None;
    }
    macro_rules! arm {
        ($bf:literal, $v:literal) => {
            if packed {
                l3!(|a, b, c| { fma::<$bf, $v>(a, b, c) | fma::<$bf, $v>(a >> 16, b >> 16, c >> 16) << 16 })
            } else {
                l3!(|a, b, c| fma::<$bf, $v>(a, b, c))
            }
        };
    }
    Some(match (bf, flag_byte(m)) {
        (false, 0) => arm!(false, 0),
        (false, 1) => arm!(false, 1),
        (false, 2) => arm!(false, 2),
        (false, 3) => arm!(false, 3),
        (false, 4) => arm!(false, 4),
        (false, 5) => arm!(false, 5),
        (true, 0) => arm!(true, 0),
        (true, 2) => arm!(true, 2),
        (true, 4) => arm!(true, 4),
        _ => return None,
    })
}

/// f32 to f16 toward zero; values beyond the largest f16 become infinity.
fn cut(x: f32) -> u64 {
    if x.abs() >= 65536.0 {
        return if x < 0.0 { 0xfc00 } else { 0x7c00 };
    }
    u64::from(Format::F16.encode(x, Rounding::TowardZero, Overflow::Ieee))
}

fn both1(f: impl Fn(u64) -> u64, a: u64) -> u64 {
    f(a & 0xffff) | f(a >> 16 & 0xffff) << 16
}

/// One-source operations.
pub(crate) fn one(op: &str, ty: Ty, m: Mode) -> Option<F1> {
    /// The negated value or the magnitude; a NaN becomes the canonical one.
    fn sign<const BF: bool, const FTZ: bool>(a: u64, negate: bool) -> u64 {
        let v = of::<BF>(a);
        if v.is_nan() {
            return 0x7fff;
        }
        let a = if FTZ && v.abs() < 6.103_515_6e-5 { a & 0x8000 } else { a };
        if negate { a ^ 0x8000 } else { a & 0x7fff }
    }
    /// `ex2`: the unit's f32 function, truncated to the type.
    fn ex2<const BF: bool>(a: u64) -> u64 {
        let x = f32::from_bits(mufu::ex2(of::<BF>(a).to_bits()));
        if BF { u64::from(x.to_bits() >> 16) } else { cut(x) }
    }
    fn tanh<const BF: bool>(a: u64) -> u64 {
        let x = f32::from_bits(mufu::tanh(of::<BF>(a).to_bits()));
        if BF { u64::from(x.to_bits() >> 16) } else { cut(x) }
    }
    let (bf, packed) = kind(ty)?;
    Some(match (op, bf, packed) {
        ("neg", false, _) if m.ftz => l1!(|a| both1(|a| sign::<false, true>(a, true), a)),
        ("neg", false, _) => l1!(|a| both1(|a| sign::<false, false>(a, true), a)),
        ("neg", true, _) => l1!(|a| both1(|a| sign::<true, false>(a, true), a)),
        ("abs", false, _) if m.ftz => l1!(|a| both1(|a| sign::<false, true>(a, false), a)),
        ("abs", false, _) => l1!(|a| both1(|a| sign::<false, false>(a, false), a)),
        ("abs", true, _) => l1!(|a| both1(|a| sign::<true, false>(a, false), a)),
        ("ex2.approx", false, false) => l1!(|a| ex2::<false>(a)),
        ("ex2.approx", false, true) => l1!(|a| both1(ex2::<false>, a)),
        ("ex2.approx", true, false) => l1!(|a| ex2::<true>(a)),
        ("ex2.approx", true, true) => l1!(|a| both1(ex2::<true>, a)),
        ("tanh.approx", false, false) => l1!(|a| tanh::<false>(a)),
        ("tanh.approx", false, true) => l1!(|a| both1(tanh::<false>, a)),
        ("tanh.approx", true, false) => l1!(|a| tanh::<true>(a)),
        ("tanh.approx", true, true) => l1!(|a| both1(tanh::<true>, a)),
        _ => return None,
    })
}
