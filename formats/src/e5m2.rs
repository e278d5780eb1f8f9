//! e5m2, the wide FP8: one sign bit, five exponent bits of bias 15, two mantissa bits; exponent 31
//! holds the infinities and NaN, as in IEEE formats (OCP FP8 1.0). It is the upper byte of an f16.

use super::small_float::magnitude_code;

/// Largest finite magnitude, code 0x7B.
pub const MAX: f32 = 57344.0;

/// The NaN that the encoder writes.
pub const NAN: u8 = 0x7F;

/// Smallest positive value, 2^-16, code 1.
pub const MIN_POSITIVE: f32 = 1.0 / 65536.0;

/// Value of each of the 256 codes. 0x7C and 0xFC are infinite; the three codes above each are NaN.
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
    let exponent = ((code >> 2) & 0x1F) as u32;
    let mantissa = (code & 0x3) as u32;
    let magnitude = match (exponent, mantissa) {
        (31, 0) => f32::INFINITY,
        (31, _) => f32::NAN,
        (0, _) => mantissa as f32 * MIN_POSITIVE,
        // Bias 15 to bias 127, two mantissa bits to 23.
        _ => f32::from_bits(((exponent + 112) << 23) | (mantissa << 21)),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Value of `code`. Exact: every e5m2 value is an f32.
#[must_use]
pub const fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}

/// Whether `code` is a number.
#[must_use]
pub const fn is_finite(code: u8) -> bool {
    code & 0x7C != 0x7C
}

/// The code nearest to `value`, ties to the even mantissa, saturating.
///
/// These are the semantics of `cvt.rn.satfinite.e5m2x2.f32` (PTX ISA, cvt): magnitudes above 57344
/// and infinities become 57344 with the sign of the input, NaN of either sign becomes 0x7F.
#[must_use]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let sign = u8::from(value.is_sign_negative()) << 7;
    let magnitude = value.abs();
    if magnitude >= MAX {
        return sign | 0x7B;
    }
    let code = magnitude_code(magnitude, 2, 15);
    // Below 57344 no rounding reaches past 0x7B, so that the code fits seven bits.
    sign | (code & 0x7F) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use float8::F8E5M2;
    use half::f16;
    use microfloat::f8e5m2;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn every_code_decodes_as_the_upper_byte_of_an_f16_and_as_another_crate_decodes_it() {
        for code in 0..=255u8 {
            let ours = decode(code);
            let half = f16::from_bits(u16::from(code) << 8).to_f32();
            let micro = f8e5m2::from_bits(code).to_f32();
            assert_eq!(is_finite(code), ours.is_finite());
            if ours.is_nan() {
                assert!(half.is_nan() && micro.is_nan());
            } else {
                assert_eq!(ours.to_bits(), half.to_bits(), "{code:#04x}");
                assert_eq!(ours.to_bits(), micro.to_bits(), "{code:#04x}");
            }
        }
    }

    #[test]
    fn every_finite_code_survives_a_round_trip() {
        for code in (0..=255u8).filter(|&code| is_finite(code)) {
            assert_eq!(encode(decode(code)), code);
        }
    }

    #[test]
    fn midpoints_go_to_even_and_their_neighbours_to_the_nearer_side() {
        for code in 0..0x7Bu8 {
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
        assert_eq!(encode(f32::INFINITY), 0x7B);
        assert_eq!(encode(f32::NEG_INFINITY), 0xFB);
        assert_eq!(encode(1e9), 0x7B);
        assert_eq!(encode(61440.0), 0x7B);
        assert_eq!(encode(-0.0), 0x80);
    }

    #[test]
    fn random_floats_encode_as_two_other_crates_encode_them() {
        let mut rng = ChaCha8Rng::seed_from_u64(12);
        let mut compared = 0;
        for step in 0..600_000u32 {
            let value = match step % 3 {
                0 => f32::from_bits(rng.next_u32()),
                1 => (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) * 1e5,
                _ => (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) / 4096.0,
            };
            if value.is_nan() {
                assert_eq!(encode(value), NAN);
                continue;
            }
            let ours = encode(value);
            assert_eq!(ours, F8E5M2::from_f32(value).to_bits(), "{value:e}");
            let micro = f8e5m2::from_f32(value).to_bits();
            if value.abs() < 61440.0 {
                assert_eq!(ours, micro, "{value:e}");
                compared += 1;
            } else {
                // microfloat does not saturate: beyond the last midpoint it gives infinity.
                assert_eq!(micro & 0x7F, 0x7C, "{value:e}");
                assert_eq!(ours & 0x7F, 0x7B, "{value:e}");
            }
        }
        assert!(compared > 300_000);
    }
}
