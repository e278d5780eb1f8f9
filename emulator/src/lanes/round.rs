//! Correct rounding in every direction, through f64 values rounded to odd.
//!
//! Rounding to odd makes the last place sticky. An f64 rounded to odd and then rounded to a format with at least two
//! bits fewer is the exact value rounded once.

use crate::engine::format::{Format, Overflow, Rounding};

/// Rounds to odd: the next f64 away from or toward zero, if `x` is even and not exact.
fn to_odd(x: f64, residual: f64) -> f64 {
    if residual == 0.0 || !x.is_finite() || x.to_bits() & 1 == 1 {
        return x;
    }
    // The exact value lies on the side of `residual`; the odd neighbour is on that side.
    if x == 0.0 {
        return f64::from_bits(1).copysign(residual);
    }
    let outward = (residual > 0.0) == (x > 0.0);
    f64::from_bits(if outward { x.to_bits() + 1 } else { x.to_bits() - 1 })
}

/// `a + b` rounded to odd (two-sum).
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    if !s.is_finite() {
        return s;
    }
    let bb = s - a;
    to_odd(s, (a - (s - bb)) + (b - bb))
}

/// `a * b + c` for values of f32 or smaller formats, rounded to odd: the product is exact in f64.
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// `a / b` rounded to odd.
pub(crate) fn div_odd(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || b.is_infinite() {
        return q;
    }
    let rest = (-q).mul_add(b, a);
    to_odd(q, if b < 0.0 { -rest } else { rest })
}

/// Square root rounded to odd.
pub(crate) fn sqrt_odd(a: f64) -> f64 {
    let r = a.sqrt();
    if !r.is_finite() { r } else { to_odd(r, (-r).mul_add(r, a)) }
}

/// f64 to f32 under `rounding`; overflow gives infinity or the largest number, as in IEEE 754.
pub(crate) fn to_f32(x: f64, rounding: Rounding) -> f32 {
    let r = x as f32;
    let back = f64::from(r);
    if x.is_nan() || back == x {
        return r;
    }
    match rounding {
        Rounding::NearestEven | Rounding::NearestAway => r,
        Rounding::TowardZero => {
            if back.abs() > x.abs() {
                toward_zero(r)
            } else {
                r
            }
        }
        Rounding::Up => {
            if back < x {
                r.next_up()
            } else {
                r
            }
        }
        Rounding::Down => {
            if back > x {
                r.next_down()
            } else {
                r
            }
        }
    }
}

fn toward_zero(r: f32) -> f32 {
    f32::from_bits(r.to_bits().wrapping_sub(1))
}

/// f64 to f32, rounded to odd, so that it can be rounded once more to a smaller format.
pub(crate) fn to_f32_odd(x: f64) -> f32 {
    let t = to_f32(x, Rounding::TowardZero);
    if f64::from(t) == x || !x.is_finite() {
        return t;
    }
    f32::from_bits(t.to_bits() | 1)
}

/// Encodes an f64, exact or rounded to odd, in a small format.
pub(crate) fn encode(x: f64, format: Format, rounding: Rounding, overflow: Overflow) -> u32 {
    format.encode(to_f32_odd(x), rounding, overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_rounding_of_a_sum_brackets_it() {
        // 1 + 2^-40 is not an f32.
        let x = add_odd(1.0, 2f64.powi(-40));
        assert_eq!(to_f32(x, Rounding::NearestEven), 1.0);
        assert_eq!(to_f32(x, Rounding::Up), 1.0f32.next_up());
        assert_eq!(to_f32(x, Rounding::Down), 1.0);
        assert_eq!(to_f32(-x, Rounding::TowardZero), -1.0);
        assert_eq!(to_f32(-x, Rounding::Down), (-1.0f32).next_down());
    }

    #[test]
    fn rounding_to_odd_keeps_what_a_plain_sum_loses() {
        // 1 + 2^-24 is a tie of f32; 2^-80 more must round up, and plain f64 drops the 2^-80.
        let tie = 1.0 + 2f64.powi(-24);
        let x = add_odd(tie, 2f64.powi(-80));
        assert_eq!(to_f32(x, Rounding::NearestEven), 1.0f32.next_up());
        assert_eq!((tie + 2f64.powi(-80)) as f32, 1.0);
    }

    #[test]
    fn overflow_toward_zero_stops_at_the_largest_number() {
        assert_eq!(to_f32(1e300, Rounding::TowardZero), f32::MAX);
        assert_eq!(to_f32(1e300, Rounding::Up), f32::INFINITY);
        assert_eq!(to_f32(-1e300, Rounding::Up), f32::MIN);
    }
}
