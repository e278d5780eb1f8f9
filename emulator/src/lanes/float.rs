//! Floating-point operations of f32, f64 and packed f32x2 (ISA sections 9.7.3 and 9.7.5).
//!
//! f16 and bf16 are in `half`.

use super::mufu::{self, full};
use super::round::{add_odd, div_odd, fma_odd, sqrt_odd, to_f32};
use super::{Cmp, F1, F2, F3, Lanes, l1, l2, lc};
use crate::engine::format::Rounding;
use crate::isa::Ty;

#[path = "half.rs"]
pub(crate) mod half;

/// Modifiers of a floating-point operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Mode {
    pub rounding: Rounding,
    pub ftz: bool,
    pub sat: bool,
    /// `.NaN` of min and max, or `.relu` on instructions that have it.
    pub nan: bool,
    pub relu: bool,
}

const NAN32: u32 = 0x7fff_ffff;

pub(crate) fn f32_of(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
pub(crate) fn f64_of(x: u64) -> f64 {
    f64::from_bits(x)
}

fn flush<const FTZ: bool>(x: f32) -> f32 {
    if FTZ && x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}

fn finish<const FTZ: bool, const SAT: bool>(r: f32) -> u64 {
    let r = flush::<FTZ>(r);
    if SAT {
        // NaN saturates to +0.
        let r = if r > 0.0 { r.min(1.0) } else { 0.0 };
        return u64::from(r.to_bits());
    }
    u64::from(if r.is_nan() { NAN32 } else { r.to_bits() })
}

fn rounding_of(r: u8) -> Rounding {
    match r {
        1 => Rounding::TowardZero,
        2 => Rounding::Down,
        3 => Rounding::Up,
        _ => Rounding::NearestEven,
    }
}

/// An exact zero sum of opposite signs is -0 when rounding down, and only then.
fn down(r: f32, a: f32, b: f32) -> f32 {
    let opposite = a != 0.0 || a.is_sign_negative() != b.is_sign_negative();
    if r == 0.0 && opposite { -0.0 } else { r }
}

fn add1<const R: u8, const FTZ: bool, const SAT: bool>(a: u64, b: u64) -> u64 {
    let (a, b) = (flush::<FTZ>(f32_of(a)), flush::<FTZ>(f32_of(b)));
    let r = if R == 0 { a + b } else { to_f32(add_odd(a.into(), b.into()), rounding_of(R)) };
    let r = if R == 2 { down(r, a, b) } else { r };
    finish::<FTZ, SAT>(r)
}
fn mul1<const R: u8, const FTZ: bool, const SAT: bool>(a: u64, b: u64) -> u64 {
    let (a, b) = (flush::<FTZ>(f32_of(a)), flush::<FTZ>(f32_of(b)));
    let r = if R == 0 { a * b } else { to_f32(f64::from(a) * f64::from(b), rounding_of(R)) };
    finish::<FTZ, SAT>(r)
}
fn fma1<const R: u8, const FTZ: bool, const SAT: bool>(a: u64, b: u64, c: u64) -> u64 {
    let (a, b, c) = (flush::<FTZ>(f32_of(a)), flush::<FTZ>(f32_of(b)), flush::<FTZ>(f32_of(c)));
    let r = to_f32(fma_odd(a.into(), b.into(), c.into()), rounding_of(R));
    // The product is exact in binary64, and zero only if a factor is.
    let product = f64::from(a) * f64::from(b);
    let r = if R == 2 && product == 0.0 { down(r, product as f32, c) } else { r };
    finish::<FTZ, SAT>(r)
}
fn div1<const R: u8, const FTZ: bool, const SAT: bool>(a: u64, b: u64) -> u64 {
    let (a, b) = (flush::<FTZ>(f32_of(a)), flush::<FTZ>(f32_of(b)));
    let r = if R == 0 { a / b } else { to_f32(div_odd(a.into(), b.into()), rounding_of(R)) };
    finish::<FTZ, SAT>(r)
}

fn add32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = add1::<R, FTZ, SAT>(x[i], y[i]);
    }
}
fn sub32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = add1::<R, FTZ, SAT>(x[i], y[i] ^ 0x8000_0000);
    }
}
fn mul32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = mul1::<R, FTZ, SAT>(x[i], y[i]);
    }
}
fn div32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = div1::<R, FTZ, SAT>(x[i], y[i]);
    }
}
fn fma32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, z: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = fma1::<R, FTZ, SAT>(x[i], y[i], z[i]);
    }
}
fn rcp32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = div1::<R, FTZ, SAT>(0x3f80_0000, x[i]);
    }
}
fn sqrt32<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        let a = flush::<FTZ>(f32_of(x[i]));
        let r = if R == 0 { a.sqrt() } else { to_f32(sqrt_odd(a.into()), rounding_of(R)) };
        d[i] = finish::<FTZ, SAT>(r);
    }
}

fn halves(f: impl Fn(u64, u64, u64) -> u64, x: u64, y: u64, z: u64) -> u64 {
    f(x & 0xffff_ffff, y & 0xffff_ffff, z & 0xffff_ffff) | f(x >> 32, y >> 32, z >> 32) << 32
}
fn add32x2<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = halves(|a, b, _| add1::<R, FTZ, false>(a, b), x[i], y[i], 0);
    }
}
fn sub32x2<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = halves(|a, b, _| add1::<R, FTZ, false>(a, b ^ 0x8000_0000), x[i], y[i], 0);
    }
}
fn mul32x2<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = halves(|a, b, _| mul1::<R, FTZ, false>(a, b), x[i], y[i], 0);
    }
}
fn fma32x2<const R: u8, const FTZ: bool, const SAT: bool>(x: &Lanes, y: &Lanes, z: &Lanes, d: &mut Lanes) {
    for i in 0..32 {
        d[i] = halves(fma1::<R, FTZ, false>, x[i], y[i], z[i]);
    }
}

/// Picks the instance of `$f` for a set of modifiers.
macro_rules! instance {
    ($f:ident, $m:expr, $t:ty) => {{
        macro_rules! flags {
            ($r:literal) => {
                match ($m.ftz, $m.sat) {
                    (false, false) => $f::<$r, false, false> as $t,
                    (false, true) => $f::<$r, false, true> as $t,
                    (true, false) => $f::<$r, true, false> as $t,
                    (true, true) => $f::<$r, true, true> as $t,
                }
            };
        }
        match $m.rounding {
            Rounding::TowardZero => flags!(1),
            Rounding::Down => flags!(2),
            Rounding::Up => flags!(3),
            _ => flags!(0),
        }
    }};
}

/// The bit that makes a binary64 NaN quiet.
const QUIET: u64 = 1 << 51;

/// The bits of a result. If a source is a NaN, the result has the payload and sign of the first such source, else of
/// the machine's default NaN. Fused products look at the second factor, then the addend, then the first factor.
pub(crate) fn passed(r: f64, sources: [u64; 3]) -> u64 {
    if !r.is_nan() {
        return r.to_bits();
    }
    match sources.into_iter().find(|&s| f64_of(s).is_nan()) {
        Some(nan) => nan | QUIET,
        None => 0xfff8_0000_0000_0000,
    }
}

/// The two-source operation `op` on `ty`.
pub(crate) fn two(op: &str, ty: Ty, m: Mode) -> Option<F2> {
    match (op, ty) {
        ("add", Ty::F32) => return Some(instance!(add32, m, F2)),
        ("sub", Ty::F32) => return Some(instance!(sub32, m, F2)),
        ("mul", Ty::F32) => return Some(instance!(mul32, m, F2)),
        ("div", Ty::F32) => return Some(instance!(div32, m, F2)),
        ("add", Ty::F32x2) => return Some(instance!(add32x2, m, F2)),
        ("sub", Ty::F32x2) => return Some(instance!(sub32x2, m, F2)),
        ("mul", Ty::F32x2) => return Some(instance!(mul32x2, m, F2)),
        ("copysign", Ty::F32) => return Some(l2!(|a, b| a & 0x8000_0000 | b & 0x7fff_ffff)),
        ("copysign", Ty::F64) => return Some(l2!(|a, b| a & 1 << 63 | b & !(1 << 63))),
        _ => {}
    }
    if ty == Ty::F32 && (op == "min" || op == "max") {
        return Some(match (op == "min", m.nan, m.ftz) {
            (true, false, false) => l2!(|a, b| minmax::<true, false, false>(a, b)),
            (true, false, true) => l2!(|a, b| minmax::<true, false, true>(a, b)),
            (true, true, false) => l2!(|a, b| minmax::<true, true, false>(a, b)),
            (true, true, true) => l2!(|a, b| minmax::<true, true, true>(a, b)),
            (false, false, false) => l2!(|a, b| minmax::<false, false, false>(a, b)),
            (false, false, true) => l2!(|a, b| minmax::<false, false, true>(a, b)),
            (false, true, false) => l2!(|a, b| minmax::<false, true, false>(a, b)),
            (false, true, true) => l2!(|a, b| minmax::<false, true, true>(a, b)),
        });
    }
    if ty == Ty::F64 {
        if m.rounding != Rounding::NearestEven {
            return None;
        }
        return Some(match op {
            "add" => l2!(|a, b| passed(f64_of(a) + f64_of(b), [b, a, 0])),
            "sub" => l2!(|a, b| passed(f64_of(a) - f64_of(b), [b, a, 0])),
            "mul" => l2!(|a, b| passed(f64_of(a) * f64_of(b), [b, a, 0])),
            "div" => l2!(|a, b| passed(f64_of(a) / f64_of(b), [a, b, 0])),
            "min" => l2!(|a, b| minmax64::<true>(a, b)),
            "max" => l2!(|a, b| minmax64::<false>(a, b)),
            _ => return None,
        });
    }
    half::two(op, ty, m)
}

fn minmax<const MIN: bool, const NAN: bool, const FTZ: bool>(a: u64, b: u64) -> u64 {
    let (x, y) = (flush::<FTZ>(f32_of(a)), flush::<FTZ>(f32_of(b)));
    let r = if x.is_nan() || y.is_nan() {
        if NAN || (x.is_nan() && y.is_nan()) {
            return u64::from(NAN32);
        }
        if x.is_nan() { y } else { x }
    } else if x == y {
        // Only zeros of unlike sign differ here; -0 is the smaller.
        if x.is_sign_negative() == MIN { x } else { y }
    } else if (x < y) == MIN {
        x
    } else {
        y
    };
    u64::from(r.to_bits())
}

/// Minimum or maximum of binary64. The second of two NaNs is passed on, made quiet, as an H200 does.
fn minmax64<const MIN: bool>(a: u64, b: u64) -> u64 {
    let (x, y) = (f64_of(a), f64_of(b));
    let r = if x.is_nan() {
        y
    } else if y.is_nan() {
        x
    } else if x == y {
        if x.is_sign_negative() == MIN { x } else { y }
    } else if (x < y) == MIN {
        x
    } else {
        y
    };
    if r.is_nan() { b | QUIET } else { r.to_bits() }
}

/// The three-source operation `op` on `ty`.
pub(crate) fn three(op: &str, ty: Ty, m: Mode) -> Option<F3> {
    match (op, ty) {
        ("fma", Ty::F32) => Some(instance!(fma32, m, F3)),
        ("fma", Ty::F32x2) => Some(instance!(fma32x2, m, F3)),
        ("fma", Ty::F64) if m.rounding == Rounding::NearestEven => {
            Some(super::l3!(|a, b, c| passed(f64_of(a).mul_add(f64_of(b), f64_of(c)), [b, c, a])))
        }
        _ => half::three(op, ty, m),
    }
}

/// Lifts a function of bits to every lane.
macro_rules! unit {
    ($f:path) => {
        l1!(|a| u64::from($f(a as u32)))
    };
}

/// The approximate functions of f32 (`ex2`, `lg2`, `sin` and so on).
fn approximate(op: &str, ftz: bool) -> Option<F1> {
    Some(match (op, ftz) {
        ("rcp.approx", true) => unit!(mufu::rcp),
        ("rcp.approx", false) => unit!(full::rcp_full),
        ("sqrt.approx", true) => unit!(mufu::sqrt),
        ("sqrt.approx", false) => unit!(full::sqrt_full),
        ("rsqrt.approx", true) => unit!(mufu::rsqrt),
        ("rsqrt.approx", false) => unit!(full::rsqrt_full),
        ("ex2.approx", true) => unit!(mufu::ex2),
        ("ex2.approx", false) => unit!(full::ex2_full),
        ("lg2.approx", true) => unit!(mufu::lg2),
        ("lg2.approx", false) => unit!(full::lg2_full),
        ("sin.approx", _) => unit!(full::sin_full),
        ("cos.approx", _) => unit!(full::cos_full),
        ("tanh.approx", _) => unit!(mufu::tanh),
        _ => return None,
    })
}

/// `div.approx` and `div.full` of f32.
pub(crate) fn divide(whole: bool, ftz: bool) -> F2 {
    match (whole, ftz) {
        (false, false) => l2!(|a, b| u64::from(full::div_approx(a as u32, b as u32, false))),
        (false, true) => l2!(|a, b| u64::from(full::div_approx(a as u32, b as u32, true))),
        (true, false) => l2!(|a, b| u64::from(full::div_full(a as u32, b as u32, false))),
        (true, true) => l2!(|a, b| u64::from(full::div_full(a as u32, b as u32, true))),
    }
}

/// The one-source operation `op` on `ty`. Approximate functions are named `rcp.approx` and so on.
pub(crate) fn one(op: &str, ty: Ty, m: Mode) -> Option<F1> {
    match (op, ty) {
        ("neg", Ty::F32) if m.ftz => Some(l1!(|a| finish::<true, false>(-f32_of(a)))),
        ("neg", Ty::F32) => Some(l1!(|a| finish::<false, false>(-f32_of(a)))),
        ("abs", Ty::F32) if m.ftz => Some(l1!(|a| finish::<true, false>(f32_of(a).abs()))),
        ("abs", Ty::F32) => Some(l1!(|a| finish::<false, false>(f32_of(a).abs()))),
        ("neg", Ty::F64) => Some(l1!(|a| if f64_of(a).is_nan() { a | QUIET } else { a ^ 1 << 63 })),
        ("abs", Ty::F64) => Some(l1!(|a| if f64_of(a).is_nan() { a | QUIET } else { a & !(1 << 63) })),
        ("rcp", Ty::F32) => Some(instance!(rcp32, m, F1)),
        ("sqrt", Ty::F32) => Some(instance!(sqrt32, m, F1)),
        ("rcp", Ty::F64) => Some(l1!(|a| passed(1.0 / f64_of(a), [a, 0, 0]))),
        ("rcp.approx", Ty::F64) => Some(l1!(|a| full::rcp_double(a))),
        ("sqrt", Ty::F64) => Some(l1!(|a| passed(f64_of(a).sqrt(), [a, 0, 0]))),
        ("rsqrt.approx", Ty::F64) if m.ftz => Some(l1!(|a| full::rsqrt_double_ftz(a))),
        ("rsqrt.approx", Ty::F64) => Some(l1!(|a| full::rsqrt_double(a))),
        (_, Ty::F32) => approximate(op, m.ftz),
        _ => half::one(op, ty, m),
    }
}

/// Floating-point comparison `op`; `.ftz` flushes the sources.
pub(crate) fn compare(op: &str, ty: Ty, ftz: bool) -> Option<Cmp> {
    macro_rules! ops {
        ($of:expr) => {
            match op {
                "eq" => lc!(|a, b| $of(a) == $of(b)),
                "ne" => lc!(|a, b| !$of(a).is_nan() && !$of(b).is_nan() && $of(a) != $of(b)),
                "lt" => lc!(|a, b| $of(a) < $of(b)),
                "le" => lc!(|a, b| $of(a) <= $of(b)),
                "gt" => lc!(|a, b| $of(a) > $of(b)),
                "ge" => lc!(|a, b| $of(a) >= $of(b)),
                "equ" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan() || $of(a) == $of(b)),
                "neu" => lc!(|a, b| $of(a) != $of(b)),
                "ltu" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan() || $of(a) < $of(b)),
                "leu" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan() || $of(a) <= $of(b)),
                "gtu" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan() || $of(a) > $of(b)),
                "geu" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan() || $of(a) >= $of(b)),
                "num" => lc!(|a, b| !$of(a).is_nan() && !$of(b).is_nan()),
                "nan" => lc!(|a, b| $of(a).is_nan() || $of(b).is_nan()),
                _ => return None,
            }
        };
    }
    fn ftz_of(a: u64) -> f32 {
        flush::<true>(f32_of(a))
    }
    Some(match ty {
        Ty::F32 if ftz => ops!(ftz_of),
        Ty::F32 => ops!(f32_of),
        Ty::F64 => ops!(f64_of),
        Ty::F16 if ftz => ops!(half::f16_flushed),
        Ty::F16 => ops!(half::f16_of),
        Ty::Bf16 => ops!(half::bf16_of),
        _ => return None,
    })
}

/// `testp`: floating-point class test.
pub(crate) fn testp(op: &str, ty: Ty) -> Option<Cmp> {
    macro_rules! ops {
        ($of:expr) => {
            match op {
                "finite" => lc!(|a, _b| $of(a).is_finite()),
                "infinite" => lc!(|a, _b| $of(a).is_infinite()),
                "number" => lc!(|a, _b| !$of(a).is_nan()),
                "notanumber" => lc!(|a, _b| $of(a).is_nan()),
                // Zero counts.
                "normal" => lc!(|a, _b| $of(a).is_normal() || $of(a) == 0.0),
                "subnormal" => lc!(|a, _b| $of(a).is_subnormal()),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Ty::F32 => ops!(f32_of),
        Ty::F64 => ops!(f64_of),
        _ => return None,
    })
}
