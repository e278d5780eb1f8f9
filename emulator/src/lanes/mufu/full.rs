//! The `.approx` instructions of PTX, composed of the multifunction unit's functions and products as `ptxas` composes
//! them.
//!
//! Without `.ftz`, a subnormal argument is scaled to a normal one and the result is scaled back. With `.ftz`, the
//! unit's function is the whole instruction.

use super::{NAN, cos, ex2, lg2, rcp, rcp64, rsqrt, rsqrt64, sin, sqrt};

/// The smallest normal number.
const SMALLEST: f32 = f32::MIN_POSITIVE;
/// 2^126: the reciprocal of anything larger is subnormal.
const LARGE: f32 = 8.507_059e37;
const UP: f32 = 16_777_216.0;
/// 1 / (2 pi).
const TURN: f32 = 0.159_154_94;

fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn bits(x: f32) -> u32 {
    if x.is_nan() { NAN } else { x.to_bits() }
}

/// A product; `ftz` flushes the factors and the result.
fn times(a: u32, b: u32, ftz: bool) -> u32 {
    let flush = |x: f32| if ftz && x.abs() < SMALLEST { 0f32.copysign(x) } else { x };
    bits(flush(flush(f(a)) * flush(f(b))))
}

fn small(x: u32) -> bool {
    f(x).abs() < SMALLEST
}

/// Applies `of` to `x`, scaled up by 2^24 if it is subnormal, and then multiplies the result by `back`.
fn scaled(x: u32, back: f32, of: fn(u32) -> u32) -> u32 {
    if small(x) { bits(f(of(bits(f(x) * UP))) * back) } else { of(x) }
}

/// `rcp.approx`.
pub(crate) fn rcp_full(x: u32) -> u32 {
    let scale = if f(x).abs() > LARGE {
        0.25
    } else if small(x) {
        UP
    } else {
        1.0
    };
    bits(f(rcp(bits(f(x) * scale))) * scale)
}

/// `rsqrt.approx`.
pub(crate) fn rsqrt_full(x: u32) -> u32 {
    scaled(x, 4096.0, rsqrt)
}

/// `sqrt.approx`.
pub(crate) fn sqrt_full(x: u32) -> u32 {
    scaled(x, 1.0 / 4096.0, sqrt)
}

/// `lg2.approx`.
pub(crate) fn lg2_full(x: u32) -> u32 {
    if small(x) { bits(f(lg2(bits(f(x) * UP))) - 24.0) } else { lg2(x) }
}

/// `ex2.approx`.
pub(crate) fn ex2_full(x: u32) -> u32 {
    if f(x) >= -126.0 || f(x).is_nan() {
        return ex2(x);
    }
    let half = f(ex2(bits(f(x) * 0.5)));
    bits(half * half)
}

/// The argument of `sin` and `cos` in turns, rounded toward zero.
fn turns(x: u32) -> u32 {
    let exact = f64::from(f(x)) * f64::from(TURN);
    bits(f32_toward_zero(exact))
}

fn f32_toward_zero(x: f64) -> f32 {
    crate::lanes::round::to_f32(x, crate::engine::format::Rounding::TowardZero)
}

/// `sin.approx`, with and without `.ftz`.
pub(crate) fn sin_full(x: u32) -> u32 {
    sin(turns(x))
}

/// `cos.approx`, with and without `.ftz`.
pub(crate) fn cos_full(x: u32) -> u32 {
    cos(turns(x))
}

/// `div.approx`.
pub(crate) fn div_approx(x: u32, y: u32, ftz: bool) -> u32 {
    let (x, y) = if !ftz && small(y) { (up(x), up(y)) } else { (x, y) };
    times(rcp(y), x, ftz)
}

/// `div.full`.
pub(crate) fn div_full(x: u32, y: u32, ftz: bool) -> u32 {
    if f(y).abs() > LARGE {
        let quarter = 0.25f32.to_bits();
        return times(rcp(times(y, quarter, ftz)), times(x, quarter, ftz), ftz);
    }
    div_approx(x, y, ftz)
}

fn up(x: u32) -> u32 {
    bits(f(x) * UP)
}

/// `rcp.approx.ftz.f64`.
pub(crate) fn rcp_double(x: u64) -> u64 {
    u64::from(rcp64((x >> 32) as u32)) << 32
}

/// `rsqrt.approx.ftz.f64`.
pub(crate) fn rsqrt_double_ftz(x: u64) -> u64 {
    u64::from(rsqrt64((x >> 32) as u32)) << 32
}

/// `rsqrt.approx.f64`: one third-order step from the unit's value.
pub(crate) fn rsqrt_double(x: u64) -> u64 {
    let v = f64::from_bits(x);
    let step = |v: f64| {
        let y = f64::from_bits(rsqrt_double_ftz(v.to_bits()));
        let rest = (-(y * y)).mul_add(v, 1.0);
        rest.mul_add(0.375, 0.5).mul_add(y * rest, y)
    };
    let sign = x & 1 << 63;
    if v == 0.0 {
        sign | 0x7ff0_0000_0000_0000
    } else if v.is_nan() {
        x | 1 << 51
    } else if sign != 0 {
        0xfff8_0000_0000_0000
    } else if v.is_infinite() {
        0
    } else if v.is_normal() {
        step(v).to_bits()
    } else {
        (step(v * 18_014_398_509_481_984.0) * 134_217_728.0).to_bits()
    }
}
