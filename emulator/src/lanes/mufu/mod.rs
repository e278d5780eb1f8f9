//! Bit-exact model of the SM's multifunction unit, which computes the `.approx` instructions.
//!
//! A function is a table of segments and, within a segment, a quadratic in the lower bits of the argument; the square
//! is computed without its low partial products. The scheme is published (Oberman and Siu, "A High-Performance
//! Area-Efficient Multifunction Interpolator", ARITH 2005). The tables were read out of the Tesla generation
//! (envytools, `nvhw/sfu`), and an H200 gives the same results on all inputs: see `book/src/hardware.md`. PTX
//! instructions also scale subnormal numbers before and after the unit, as `ptxas` writes it; see [`full`].
//!
//! Functions take and return bits. Subnormal inputs count as zero, subnormal results become zero.

mod tables;
#[cfg(test)]
mod tests;

pub(crate) mod full;

const INFINITY: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fff_ffff;
const ONE: u32 = 0x3f80_0000;
const SIGN: u32 = 0x8000_0000;

/// The square of the 17-bit `x` in units of 2^19, without the partial products below that.
fn square(x: u32) -> i64 {
    let sum: u32 = (0..17).filter(|i| x >> i & 1 == 1).map(|i| x >> (18 - i)).sum();
    i64::from(sum >> 1)
}

/// Three terms of segment `index`: the value, slope times `x`, and curvature times the square of `x`. `x` has 17
/// bits.
fn parts(table: &[u64], index: u32, x: u32, square: i64) -> [i64; 3] {
    let entry = table[index as usize];
    let field = |from: u32, bits: u32| (entry >> from & ((1 << bits) - 1)) as i64;
    [field(0, 26), field(26, 16) * i64::from(x), field(42, 11) * square]
}

/// Sign, biased exponent and fraction.
fn fields(x: u32) -> (u32, i32, u32) {
    (x & SIGN, (x >> 23 & 0xff) as i32, x & 0x7f_ffff)
}

/// A number with a significand in [2^23, 2^24] and a biased exponent.
fn pack(sign: u32, exponent: i32, significand: i64) -> u32 {
    let (exponent, fraction) = match significand >> 24 {
        0 => (exponent, significand as u32 & 0x7f_ffff),
        _ => (exponent + 1, 0),
    };
    match exponent {
        ..=0 => sign,
        255.. => sign | INFINITY,
        e => sign | (e as u32) << 23 | fraction,
    }
}

/// `MUFU.RCP`: 1/x.
pub(crate) fn rcp(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match (exponent, fraction) {
        (0, _) => return sign | INFINITY,
        (255, 0) => return sign,
        (255, _) => return NAN,
        _ => {}
    }
    let low = fraction & 0xffff;
    let [value, slope, curve] = parts(&tables::RCP, fraction >> 16, low, square(low << 1));
    pack(sign, 253 - exponent, ((value << 13) - slope + curve + 0x47e7) >> 15)
}

/// Prepares a root's argument for its table: the fraction, with bit 23 set if the exponent is odd; and half the
/// exponent, rounded down.
fn halved(exponent: i32, fraction: u32) -> (u32, i32) {
    let e = exponent - 127;
    (fraction | ((e & 1) as u32) << 23, e >> 1)
}

/// `MUFU.RSQ`: x^-0.5.
pub(crate) fn rsqrt(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match (exponent, fraction) {
        (0, _) => return sign | INFINITY,
        (255, f) if f != 0 => return NAN,
        _ if sign != 0 => return NAN,
        (255, _) => return 0,
        _ => {}
    }
    let (at, half) = halved(exponent, fraction);
    if at == 0 {
        return pack(0, 127 - half, 1 << 23);
    }
    let low = at & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::RSQRT, at >> 17, low, square(low));
    pack(0, 126 - half, ((value << 14) - slope + (curve << 2) + 0x7fff) >> 16)
}

/// `MUFU.EX2`: 2^x. The argument is truncated to 23 fraction bits; a negative one is complemented, not negated.
pub(crate) fn ex2(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    let shift = exponent - 127;
    match (exponent, fraction) {
        (0, _) => return ONE,
        (255, f) if f != 0 => return NAN,
        _ if shift >= 7 => return if sign == 0 { INFINITY } else { 0 },
        _ => {}
    }
    let significand = fraction | 1 << 23;
    let fixed =
        if shift >= 0 { significand << shift } else { significand.checked_shr(-shift as u32).unwrap_or(0) };
    let (whole, part) = ((fixed >> 23) as i32, fixed & 0x7f_ffff);
    let (whole, part) = match (sign, part) {
        (0, _) => (whole, part),
        (_, 0) => (-whole, 0),
        _ => (!whole, !part & 0x7f_ffff),
    };
    let low = part & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::EX2, part >> 17, low, square(low));
    pack(0, whole + 127, ((value << 13) + slope + curve + 0x77e2) >> 15)
}

/// `significand * 2^-scale` truncated to 24 bits, with its sign.
fn normalised(sign: u32, significand: i64, scale: i32) -> u32 {
    if significand == 0 {
        return sign;
    }
    let top = 63 - significand.leading_zeros() as i32;
    let kept = if top >= 23 { significand >> (top - 23) } else { significand << (23 - top) };
    pack(sign, 127 + top - scale, kept)
}

/// `MUFU.LG2`: the binary logarithm.
pub(crate) fn lg2(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match (exponent, fraction) {
        (0, _) => return SIGN | INFINITY,
        (255, f) if f != 0 => return NAN,
        _ if sign != 0 => return NAN,
        (255, _) => return INFINITY,
        _ => {}
    }
    let low = fraction & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::LG2, fraction >> 17, low, square(low));
    let part = if x == ONE { 0 } else { ((value << 12) + slope - (curve << 1) + 0x3345) >> 2 };
    let sum = part + (i64::from(exponent - 127) << 36);
    if sum < 0 { normalised(SIGN, !sum, 36) } else { normalised(0, sum, 36) }
}

/// `MUFU.SIN` and `MUFU.COS` of `x` turns. The argument is truncated to 25 fraction bits.
fn turn(x: u32, cosine: bool) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    if exponent == 255 {
        return NAN;
    }
    let significand = if exponent == 0 { 0 } else { fraction | 1 << 23 };
    let shift = exponent - 127 + 2;
    let fixed = match shift {
        25.. => 0,
        0.. => significand << shift & 0x1ff_ffff,
        _ => significand.checked_shr(-shift as u32).unwrap_or(0),
    };
    let quadrant = (fixed >> 23) + u32::from(cosine);
    let fraction = if quadrant & 1 == 1 { !fixed } else { fixed } & 0x7f_ffff;
    let sign = if cosine { 0 } else { sign } ^ (quadrant >> 1 & 1) << 31;
    let low = fraction & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::SIN, fraction >> 17, low, square(low));
    normalised(sign, (value << 11) + slope - curve, 37)
}

/// `MUFU.SIN`: the sine of `x` turns.
pub(crate) fn sin(x: u32) -> u32 {
    turn(x, false)
}

/// `MUFU.COS`: the cosine of `x` turns.
pub(crate) fn cos(x: u32) -> u32 {
    turn(x, true)
}

/// `MUFU.SQRT`: the square root.
pub(crate) fn sqrt(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match (exponent, fraction) {
        (0, _) => return sign,
        (255, f) if f != 0 => return NAN,
        _ if sign != 0 => return NAN,
        (255, _) => return INFINITY,
        _ => {}
    }
    let (at, half) = halved(exponent, fraction);
    let low = at & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::SQRT, at >> 17, low, square(low));
    // The upper segments are stored at half the scale.
    let place = 17 - (at >> 23);
    let bias = (1 << (place - 2)) - 1;
    pack(0, 127 + half, ((value << (place - 2)) + slope - curve + bias) >> place)
}

/// Log2 of the number of segments of each exponent of [`tables::TANH`], from 2^-8 on.
const TANH_SEGMENTS: [u32; 11] = [0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3];

/// `MUFU.TANH`: tanh(x). Small arguments are returned as they are; from 8 on the result is one.
pub(crate) fn tanh(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match exponent {
        ..=0x76 => return x,
        0x82..=254 => return sign | ONE,
        255 => return if fraction == 0 { sign | ONE } else { NAN },
        _ => {}
    }
    let octave = (exponent - 0x77) as usize;
    let (before, split) = (&TANH_SEGMENTS[..octave], TANH_SEGMENTS[octave]);
    let first: usize = before.iter().map(|s| 1usize << s).sum();
    let bits = 23 - split;
    let [value, slope, curve] = tables::TANH[first + (fraction >> bits) as usize].map(i64::from);
    let low = (fraction & ((1 << bits) - 1)) >> (bits - 17);
    let sum = (value << 17) + slope * i64::from(low) - ((curve * square(low)) << 2);
    normalised(sign, sum, 41 + (127 - exponent).max(0))
}

/// `MUFU.RCP64H`: the upper word of the reciprocal of a binary64, from its upper word.
pub(crate) fn rcp64(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields64(x);
    match (exponent, fraction) {
        (0, _) => return sign | INFINITY64,
        (2047, 0) => return sign,
        (2047, _) => return NAN,
        _ => {}
    }
    let at = fraction << 3;
    let low = at & 0xffff;
    let [value, slope, curve] = parts(&tables::RCP, at >> 16, low, square(low << 1));
    pack64(sign, 2045 - exponent, ((value << 13) - slope + curve + 0x47e7) >> 18)
}

/// `MUFU.RSQ64H`: the upper word of x^-0.5, from the upper word of x.
pub(crate) fn rsqrt64(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields64(x);
    match (exponent, fraction) {
        (0, _) => return sign | INFINITY64,
        (2047, f) if f != 0 => return NAN,
        _ if sign != 0 => return NAN,
        (2047, _) => return 0,
        _ => {}
    }
    let e = exponent - 1023;
    let at = fraction << 3 | ((e & 1) as u32) << 23;
    if at == 0 {
        return pack64(0, 1023 - (e >> 1), 1 << 20);
    }
    let low = at & 0x1_ffff;
    let [value, slope, curve] = parts(&tables::RSQRT, at >> 17, low, square(low));
    pack64(0, 1022 - (e >> 1), ((value << 14) - slope + (curve << 2) + 0x7fff) >> 19)
}

const INFINITY64: u32 = 0x7ff0_0000;

/// Sign, biased exponent and fraction of a binary64, from its upper word.
fn fields64(x: u32) -> (u32, i32, u32) {
    (x & SIGN, (x >> 20 & 0x7ff) as i32, x & 0xf_ffff)
}

/// The upper word of a binary64 with a significand in [2^20, 2^21].
fn pack64(sign: u32, exponent: i32, significand: i64) -> u32 {
    let (exponent, fraction) = match significand >> 21 {
        0 => (exponent, significand as u32 & 0xf_ffff),
        _ => (exponent + 1, 0),
    };
    if exponent <= 0 { sign } else { sign | (exponent as u32) << 20 | fraction }
}
