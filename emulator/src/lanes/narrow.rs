//! Conversions of `cvt` (ISA section 9.7.9.21) with random bits, and of the fixed-point type s2f6.

use crate::engine::format::{Format, Overflow, Rounding};

/// Rounds stochastically: adds `bits` random bits below the last place kept and truncates. Without `satfinite` it
/// overflows to infinity.
pub(crate) fn stochastic(
    value: f32,
    format: Format,
    (random, bits): (u32, u32),
    satfinite: bool,
    relu: bool,
) -> u32 {
    let overflow = if satfinite { Overflow::Satfinite } else { Overflow::Ieee };
    let value = if relu && value <= 0.0 { 0.0 } else { value };
    if !value.is_finite() || value == 0.0 {
        return format.encode(value, Rounding::NearestEven, overflow);
    }
    let magnitude = f64::from(value.abs());
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let place = exponent.max(format.min_exponent()) - format.mantissa_bits() as i32;
    let power = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
    let scaled = magnitude * power(-place);
    let carried = scaled.fract() + f64::from(random) * power(-(bits as i32)) >= 1.0;
    let rounded = (scaled.trunc() + f64::from(u8::from(carried))) * power(place);
    // Exact, or beyond the range.
    format.encode((rounded as f32).copysign(value), Rounding::NearestEven, overflow)
}

/// Random bits of the first and second of two values of `format`, from a 32-bit word: its halves for 16-bit formats,
/// of which binary16 uses 13 bits (figures 38 and 39).
pub(crate) fn halves(format: Format, word: u32) -> [(u32, u32); 2] {
    let bits = if format == Format::F16 { 13 } else { 16 };
    [word >> 16, word & 0xffff].map(|half| (half & ((1 << bits) - 1), bits))
}

/// Random bits shared by a pair of the four values of a smaller format (figures 40 and 41). The first pair takes the
/// word's upper half, the second its lower half; for e2m1 the first pair takes the upper bytes of both halves, the
/// second the lower bytes. The manual does not say how the two values of a pair share their 16 bits; here both use
/// all of them.
pub(crate) fn quarter(format: Format, word: u32, first: bool) -> (u32, u32) {
    let bits = match (format, first) {
        (Format::E2m1, true) => word >> 16 & 0xff00 | word >> 8 & 0xff,
        (Format::E2m1, false) => word >> 8 & 0xff00 | word & 0xff,
        (_, true) => word >> 16,
        (_, false) => word & 0xffff,
    };
    (bits, 16)
}

/// The value of a ue8m0 scale factor.
fn scale(code: u64) -> f32 {
    Format::Ue8m0.decode(code as u32 & 0xff)
}

/// `value / scale` in s2f6: two's complement in units of 1/64, rounded to nearest even, saturated. NaN gives the
/// largest value.
pub(crate) fn to_s2f6(value: f32, factor: u64, relu: bool) -> u64 {
    let v = f64::from(value) / f64::from(scale(factor));
    let v = if relu && v <= 0.0 { 0.0 } else { v };
    if v.is_nan() {
        return 127;
    }
    ((v * 64.0).round_ties_even().clamp(-128.0, 127.0) as i64 as u64) & 0xff
}

/// s2f6 times `scale`, in bf16.
pub(crate) fn from_s2f6(code: u64, factor: u64, satfinite: bool, relu: bool) -> u64 {
    let v = f32::from(code as u8 as i8) / 64.0;
    let v = if relu && v <= 0.0 { 0.0 } else { v };
    let overflow = if satfinite { Overflow::Satfinite } else { Overflow::Ieee };
    // At most eight significant bits times a power of two: only the range can be left.
    u64::from(Format::Bf16.encode(v * scale(factor), Rounding::NearestEven, overflow))
}
