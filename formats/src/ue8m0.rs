//! ue8m0, the scale factor of the MX formats: eight exponent bits of bias 127, no sign, no mantissa, no zero; 0xFF is
//! NaN (OCP Microscaling Formats 1.0, section 5.4.1).

/// The only NaN code.
pub const NAN: u8 = 0xFF;

/// Value of `code`: 2^(code - 127), or NaN for 0xFF. Exact; code 0 is the f32 subnormal 2^-127.
#[must_use]
pub const fn decode(code: u8) -> f32 {
    match code {
        NAN => f32::NAN,
        0 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((code as u32) << 23),
    }
}

/// The greatest power of two that is at most `|value|`, saturating.
///
/// It rounds as `cvt.rz.satfinite.ue8m0x2.f32`, and as the MX conversion of OCP Microscaling section 6.3. Zero and
/// magnitudes below 2^-127 give code 0 (there is no zero), infinity gives 254, NaN gives 0xFF. The sign of `value` is
/// ignored, because a scale factor is a magnitude.
#[must_use]
pub fn encode_toward_zero(value: f32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    // The exponent field is the code. The f32 subnormals from 2^-127 on belong to code 0, and those
    // below saturate to it.
    let exponent = (value.to_bits() >> 23) & 0xFF;
    exponent.min(254) as u8
}

/// The least power of two that is at least `|value|`, saturating.
///
/// It rounds as `cvt.rp.satfinite.ue8m0x2.f32`; a block scaled by it never overflows its element format. Special
/// values are as in [`encode_toward_zero`].
#[must_use]
pub fn encode_up(value: f32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let bits = value.to_bits() & 0x7FFF_FFFF;
    let exponent = bits >> 23;
    let mantissa = bits & 0x007F_FFFF;
    // Code 0 is 2^-127, which an f32 holds as a subnormal with mantissa 2^22.
    let exact = if exponent == 0 { 0x0040_0000 } else { 0 };
    (exponent + u32::from(mantissa > exact)).min(254) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use float4::E8M0;
    use microfloat::f8e8m0fnu;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn every_code_decodes_as_two_other_crates_decode_it_and_round_trips() {
        for code in 0..=254u8 {
            let value = decode(code);
            assert_eq!(value, f8e8m0fnu::from_bits(code).to_f32(), "{code}");
            assert_eq!(f64::from(value), E8M0::from_bits(code).to_f64(), "{code}");
            assert_eq!(encode_toward_zero(value), code);
            assert_eq!(encode_up(value), code);
            assert_eq!(encode_up(-value), code);
        }
        assert!(decode(NAN).is_nan());
        assert!(f8e8m0fnu::from_bits(NAN).is_nan());
    }

    #[test]
    fn both_roundings_bracket_the_value() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for _ in 0..200_000 {
            let value = f32::from_bits(rng.next_u32() & 0x7FFF_FFFF);
            if value.is_nan() {
                assert_eq!(encode_up(value), NAN);
                assert_eq!(encode_toward_zero(value), NAN);
                continue;
            }
            let (low, high) = (encode_toward_zero(value), encode_up(value));
            assert!(decode(low) <= value || low == 0, "{value:e}");
            assert!(decode(high) >= value || high == 254, "{value:e}");
            assert!(high - low <= 1);
        }
    }

    #[test]
    fn rounding_up_agrees_with_float4() {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        for _ in 0..200_000 {
            let value = f32::from_bits(rng.next_u32() & 0x7FFF_FFFF);
            // float4 rounds log2(value), which is inexact just above a power of two; those few
            // values are left to the bracket test.
            if value.to_bits() & 0x007F_FFFF > 8 && !value.is_subnormal() && value.is_finite() {
                assert_eq!(encode_up(value), E8M0::from(f64::from(value)).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn specials_saturate() {
        for encode in [encode_up, encode_toward_zero] {
            assert_eq!(encode(f32::INFINITY), 254);
            assert_eq!(encode(0.0), 0);
            assert_eq!(encode(f32::from_bits(1)), 0);
            assert_eq!(encode(f32::NAN), NAN);
        }
        assert_eq!(encode_up(f32::MAX), 254);
        assert_eq!(encode_up(2f32.powi(-127).next_up()), 1);
        assert_eq!(encode_toward_zero(2f32.powi(-126).next_down()), 0);
    }
}
