//! The sum rule of [`super::sum`] in binary64, for the fast paths.
//!
//! Every quantity is exact. A product of decoded elements has at most 22 significant bits, a block
//! of e2m1 with its scale factors 20 (12 of the dot product in quarters, 8 of the scales). Scaled by
//! `2^(F - largest exponent)` and truncated, a term is an integer below 2^46 (F = 35: significand
//! below 576 * 4, times 2^35) or 2^27 (F = 25), and the accumulator one below 2^(F + 1). A sum of at
//! most 33 of them stays below 2^49, and binary64 holds integers to 2^53. Scaling is by powers of two
//! between 2^-600 and 2^600, so that nothing leaves the normal range.
//!
//! Instead of exponents the paths carry their powers of two: the exponent of a product is a product
//! of powers, the largest exponent their maximum, and the scale one subtraction of bit patterns.
//! Infinities and NaNs need no path of their own: they propagate through the sum as IEEE says.

use super::sum::ZERO_ACCUMULATOR;

/// 2^exponent, for exponents of normal numbers.
#[inline(always)]
pub(super) const fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The sign bit.
pub(super) const SIGN: u64 = 1 << 63;
/// The exponent field.
pub(super) const EXPONENT: u64 = 0x7ff << 52;
/// The mantissa bits of a binary64 that a binary32 lacks.
pub(super) const EXCESS: u64 = (1 << 29) - 1;

/// The power of two of an f32 accumulator: 2^-126 for subnormals, and [`ZERO_ACCUMULATOR`] for zero.
#[inline(always)]
pub(super) fn accumulator_power(c: f64) -> f64 {
    let least = if c == 0.0 { power(ZERO_ACCUMULATOR) } else { power(-126) };
    larger(f64::from_bits(c.to_bits() & EXPONENT), least)
}

/// The larger of two numbers that are not NaN, as one instruction.
#[inline(always)]
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// `2^fraction / largest` for a power of two: what terms are multiplied with before truncation.
#[inline(always)]
pub(super) fn alignment(fraction: i32, largest: f64) -> f64 {
    // For an infinite `largest` (an infinite or NaN accumulator) this is some finite number.
    f64::from_bits((((2046 + fraction) as u64) << 52).wrapping_sub(largest.to_bits()))
}

/// Toward zero to an integer, for magnitudes below 2^51, infinities and NaN; without SSE4.1.
#[inline(always)]
pub(super) fn truncate(x: f64) -> f64 {
    const TO_INTEGER: f64 = (1u64 << 52) as f64;
    let magnitude = x.abs();
    let nearest = magnitude + TO_INTEGER - TO_INTEGER;
    let floor = if nearest > magnitude { nearest - 1.0 } else { nearest };
    floor.copysign(x)
}

/// Bits of `value` as f32, rounded toward zero; beyond the range infinity, zero always positive, NaN
/// as the tensor core writes it.
#[inline(always)]
pub(super) fn to_f32_toward_zero(value: f64) -> u32 {
    if value.is_nan() {
        return 0x7fff_ffff;
    }
    let truncated = if value.abs() < power(-126) {
        // On the grid of the subnormals.
        truncate(value * power(149)) * power(-149)
    } else {
        f64::from_bits(value.to_bits() & !EXCESS)
    };
    (truncated as f32 + 0.0).to_bits()
}

/// Bits of `value` as f16, rounded to nearest even in one step; zero always positive.
#[inline(always)]
pub(super) fn to_f16_nearest(value: f64) -> u32 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value < 0.0 { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // Adding 1.5 * 2^52 units of the last place rounds to nearest even.
    let binade = larger(f64::from_bits(magnitude.to_bits() & EXPONENT), power(-14));
    let magic = binade * (power(52 - 10) * 1.5);
    let rounded = (magnitude + magic) - magic;
    if rounded == 0.0 {
        return 0;
    }
    let bits = rounded.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    if exponent < -14 {
        return sign | (rounded * power(24)) as u32;
    }
    sign | ((exponent + 15) as u32) << 10 | (bits >> 42 & 0x3ff) as u32
}
