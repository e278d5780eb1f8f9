//! e4m3, the scale factor of NVFP4 and an element of FP8: one sign bit, four exponent bits of bias 7, three mantissa
//! bits. No infinity; 0x7F and 0xFF are NaN (OCP FP8 1.0, the "fn" variant).
//!
//! Tensor cores read an NVFP4 scale factor as ue4m3, which ignores the sign bit. [`decode`] does not ignore it, so
//! that the reference shows a negative scale factor, which no quantiser writes.

use super::small_float::magnitude_code;

/// Largest finite magnitude, code 0x7E.
pub const MAX: f32 = 448.0;

/// The NaN that the encoder writes.
pub const NAN: u8 = 0x7F;

/// Smallest positive value, 2^-9, code 1.
pub const MIN_POSITIVE: f32 = 1.0 / 512.0;

/// Value of each of the 256 codes.
pub const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = decode_bits(code as u8);
        code += 1;
    }
    values
};

const fn decode_bits(code: u8) -> f32 {
    let exponent = ((code >> 3) & 0xF) as u32;
    let mantissa = (code & 0x7) as u32;
    let magnitude = if code & 0x7F == NAN {
        f32::NAN
    } else if exponent == 0 {
        mantissa as f32 * MIN_POSITIVE
    } else {
        // Bias 7 to bias 127, three mantissa bits to 23.
        f32::from_bits(((exponent + 120) << 23) | (mantissa << 20))
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Value of `code`. Exact: every e4m3 value is an f32.
#[must_use]
pub const fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}

/// The code nearest to `value`, ties to the even mantissa, saturating.
///
/// These are the semantics of `cvt.rn.satfinite.e4m3x2.f32` (PTX ISA, cvt): magnitudes above 448
/// and infinities become 448 with the sign of the input, NaN of either sign becomes 0x7F.
#[must_use]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let sign = u8::from(value.is_sign_negative()) << 7;
    let magnitude = value.abs();
    if magnitude >= MAX {
        return sign | 0x7E;
    }
    let code = magnitude_code(magnitude, 3, 7);
    // Below 448 no rounding reaches past 0x7E, so that the code fits seven bits.
    sign | (code & 0x7F) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use float8::F8E4M3;
    use microfloat::f8e4m3fn;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn every_code_decodes_as_two_other_crates_decode_it() {
        for code in 0..=255u8 {
            let (ours, micro, eight) =
                (decode(code), f8e4m3fn::from_bits(code).to_f32(), F8E4M3::from_bits(code).to_f32());
            if code & 0x7F == NAN {
                assert!(ours.is_nan() && micro.is_nan() && eight.is_nan());
            } else {
                assert_eq!(ours.to_bits(), micro.to_bits(), "{code:#04x}");
                assert_eq!(ours.to_bits(), eight.to_bits(), "{code:#04x}");
            }
        }
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            let expected = if code & 0x7F == NAN { NAN } else { code };
            assert_eq!(encode(decode(code)), expected);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_their_neighbours_to_the_nearer_side() {
        for code in 0..0x7Eu8 {
            // Exact: neighbours differ in one unit of a three-bit mantissa.
            let midpoint = (decode(code) + decode(code + 1)) / 2.0;
            assert_eq!(encode(midpoint), (code + 1) & !1, "{code:#04x}");
            assert_eq!(encode(midpoint.next_down()), code);
            assert_eq!(encode(midpoint.next_up()), code + 1);
            assert_eq!(encode(-midpoint.next_up()), (code + 1) | 0x80);
        }
    }

    #[test]
    fn specials_follow_cvt_satfinite() {
        assert_eq!(encode(f32::NAN), 0x7F);
        assert_eq!(encode(-f32::NAN), 0x7F);
        assert_eq!(encode(f32::INFINITY), 0x7E);
        assert_eq!(encode(f32::NEG_INFINITY), 0xFE);
        assert_eq!(encode(1e9), 0x7E);
        assert_eq!(encode(-0.0), 0x80);
    }

    #[test]
    fn random_floats_encode_as_two_other_crates_encode_them() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut in_range = 0;
        for step in 0..600_000u32 {
            // Over all bit patterns, over [-512, 512), and over the subnormals.
            let value = match step % 3 {
                0 => f32::from_bits(rng.next_u32()),
                1 => (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) * 1024.0,
                _ => (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) / 16.0,
            };
            let ours = encode(value);
            let eight = F8E4M3::from_f32(value).to_bits();
            if value.is_nan() {
                // float8 keeps the sign of a NaN, cvt does not.
                assert_eq!(ours, NAN);
                assert_eq!(eight & 0x7F, NAN);
                continue;
            }
            // float8 saturates, as cvt.satfinite does.
            assert_eq!(ours, eight, "{value:e}");
            let micro = f8e4m3fn::from_f32(value).to_bits();
            if value.abs() <= 464.0 {
                assert_eq!(ours, micro, "{value:e}");
                in_range += 1;
            } else {
                // microfloat does not saturate: beyond the last midpoint it gives NaN.
                assert_eq!(micro & 0x7F, NAN, "{value:e}");
                assert_eq!(ours & 0x7F, 0x7E, "{value:e}");
            }
        }
        assert!(in_range > 300_000);
    }
}
