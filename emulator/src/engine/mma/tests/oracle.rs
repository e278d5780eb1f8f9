//! The sum rule of the hardware, written from its description with fractions held in binary64:
//! significands in [1, 2) with their sign, exponents apart, truncation by `trunc`.

use crate::engine::format::Format;

/// Significand and exponent; subnormals keep their format's least exponent, zero has -126 here.
pub fn split(value: f64, least: i32) -> (f64, i32) {
    if value == 0.0 {
        return (0.0, -126);
    }
    let mut exponent = 0;
    let mut significand = value;
    while significand.abs() >= 2.0 {
        significand /= 2.0;
        exponent += 1;
    }
    while significand.abs() < 1.0 && exponent > least {
        significand *= 2.0;
        exponent -= 1;
    }
    while exponent < least {
        significand /= 2.0;
        exponent += 1;
    }
    (significand, exponent)
}

/// Adds (significand, exponent) terms; the result as a real number.
pub fn aligned_sum(terms: &[(f64, i32)], fraction_bits: i32) -> f64 {
    let largest = terms.iter().map(|t| t.1).max().unwrap();
    let units: f64 =
        terms.iter().map(|&(s, e)| (s * 2f64.powi((fraction_bits + e - largest).max(-900))).trunc()).sum();
    units * 2f64.powi(largest - fraction_bits)
}

/// f32 bits of a real number, toward zero.
pub fn f32_toward_zero(value: f64) -> u32 {
    if value.is_nan() {
        return 0x7fff_ffff;
    }
    let mut nearest = value as f32;
    // One step back if conversion went away from zero; the step below infinity is the largest f32.
    if f64::from(nearest).abs() > value.abs() && value.abs() < 2f64.powi(128) {
        nearest = f32::from_bits(nearest.to_bits() - 1);
    }
    if nearest == 0.0 { 0 } else { nearest.to_bits() }
}

/// f16 bits of a real number, to nearest even, by looking at both neighbours.
pub fn f16_nearest(value: f64) -> u32 {
    if value.is_nan() {
        return 0x7fff;
    }
    let magnitude = value.abs();
    let sign = if value < 0.0 { 0x8000 } else { 0 };
    // The value that infinity's code would have if the largest binade went on.
    let decode = |code: u32| match code {
        0x7c00 => 65536.0,
        code => f64::from(Format::F16.decode(code)),
    };
    if magnitude >= 65536.0 {
        return sign | 0x7c00;
    }
    let below = (0..0x7c00).rev().find(|&code| decode(code) <= magnitude).unwrap();
    let (low, high) = (magnitude - decode(below), decode(below + 1) - magnitude);
    let code = if low < high || low == high && below % 2 == 0 { below } else { below + 1 };
    if code == 0 { 0 } else { sign | code }
}

/// One element of D of an FP4 kind: codes, scale factors and their format, accumulator.
pub fn fp4(a: &[u32], b: &[u32], format: Format, sa: &[u8], sb: &[u8], c: f32) -> u32 {
    let least = format.min_exponent();
    let mut terms = vec![];
    let mut scales_are_numbers = true;
    for run in 0..4 {
        let at = run * sa.len() / 4;
        let (x, y) = (format.decode(sa[at].into()), format.decode(sb[at].into()));
        scales_are_numbers &= !x.is_nan() && !y.is_nan();
        if !scales_are_numbers {
            break;
        }
        let dot: f64 = (16 * run..16 * run + 16)
            .map(|k| f64::from(Format::E2m1.decode(a[k]) * Format::E2m1.decode(b[k])))
            .sum();
        let ((sx, ex), (sy, ey)) = (split(x.into(), least), split(y.into(), least));
        terms.push((dot * sx * sy, ex + ey));
    }
    if !scales_are_numbers || c.is_nan() {
        return 0x7fff_ffff;
    }
    if c.is_infinite() {
        return c.to_bits();
    }
    terms.push(split(c.into(), -126));
    f32_toward_zero(aligned_sum(&terms, 35))
}

/// A factor; zero is below everything.
fn factor(format: Format, value: f64) -> (f64, i32) {
    match split(value, format.min_exponent()) {
        (s, _) if s == 0.0 => (s, -400),
        other => other,
    }
}

/// One element of D of another floating-point kind; `c` as a real number, of f16 if `half`.
pub fn float(
    (a_format, a): (Format, &[u32]),
    (b_format, b): (Format, &[u32]),
    scale: Option<(u8, u8)>,
    c: f64,
    half: bool,
) -> u32 {
    let real = |format: Format, code: u32| f64::from(format.decode(code));
    let scales =
        scale.map_or([1.0, 1.0], |(x, y)| [real(Format::Ue8m0, x.into()), real(Format::Ue8m0, y.into())]);
    let plain: f64 = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| real(a_format, a) * real(b_format, b) * scales[0] * scales[1])
        .sum::<f64>()
        + c;
    let value = if plain.is_finite() {
        let accumulator = match split(c, if half { -14 } else { -126 }) {
            (s, _) if s == 0.0 && !half => (s, -133),
            other => other,
        };
        let mut terms = vec![accumulator];
        for (&a, &b) in a.iter().zip(b) {
            let (sa, ea) = factor(a_format, real(a_format, a));
            let (sb, eb) = factor(b_format, real(b_format, b));
            let shift: i32 = scales.iter().map(|&s| split(s, -127).1).sum();
            terms.push((sa * sb, ea + eb + shift));
        }
        aligned_sum(&terms, 25)
    } else {
        plain
    };
    if half { f16_nearest(value) } else { f32_toward_zero(value) }
}
