//! e2m1, the four-bit element of NVFP4 and MXFP4: one sign bit, two exponent bits of bias 1, one
//! mantissa bit; no infinity and no NaN (OCP Microscaling Formats 1.0, section 5.3.3).

/// Largest magnitude of the format.
pub const MAX: f32 = 6.0;

/// Value of each of the 16 codes. Code 8 is negative zero.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of the code in the low four bits of `code`; the high four are ignored.
#[must_use]
pub const fn decode(code: u8) -> f32 {
    VALUES[(code & 0xF) as usize]
}

/// The code nearest to `value`, ties to the even mantissa, saturating.
///
/// These are the semantics of `cvt.rn.satfinite.e2m1x2.f32` (PTX ISA, cvt): magnitudes above 6 and
/// infinities become 6 with the sign of the input, NaN becomes +6, and a negative value that rounds
/// to zero becomes negative zero (code 8).
#[must_use]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7;
    }
    let magnitude = value.abs();
    // Each bound is the midpoint between two neighbours; a tie goes to the even code of the two.
    let code = if magnitude <= 0.25 {
        0
    } else if magnitude < 0.75 {
        1
    } else if magnitude <= 1.25 {
        2
    } else if magnitude < 1.75 {
        3
    } else if magnitude <= 2.5 {
        4
    } else if magnitude < 3.5 {
        5
    } else if magnitude <= 5.0 {
        6
    } else {
        7
    };
    code | (u8::from(value.is_sign_negative()) << 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use float4::F4E2M1;
    use microfloat::f4e2m1fn;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn every_code_decodes_as_two_other_crates_decode_it() {
        for code in 0..16u8 {
            let ours = decode(code);
            assert_eq!(ours.to_bits(), f4e2m1fn::from_bits(code).to_f32().to_bits());
            assert_eq!(f64::from(ours).to_bits(), F4E2M1::from_bits(code).to_f64().to_bits());
        }
    }

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..16u8 {
            assert_eq!(encode(decode(code)), code);
        }
    }

    #[test]
    fn ties_go_to_even() {
        for (value, expected) in
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
        {
            assert_eq!(decode(encode(value)), expected, "{value}");
            assert_eq!(decode(encode(-value)), -expected, "-{value}");
            // One step off the tie goes to the nearer neighbour on that side.
            assert!(decode(encode(value.next_down())) <= expected);
            assert!(decode(encode(value.next_up())) >= expected);
            assert_ne!(encode(value.next_down()), encode(value.next_up()));
        }
    }

    #[test]
    fn specials_follow_cvt_satfinite() {
        assert_eq!(encode(f32::NAN), 0x7);
        assert_eq!(encode(-f32::NAN), 0x7);
        assert_eq!(encode(f32::INFINITY), 0x7);
        assert_eq!(encode(f32::NEG_INFINITY), 0xF);
        assert_eq!(encode(-0.0), 0x8);
        assert_eq!(encode(-1e-30), 0x8);
    }

    #[test]
    fn random_floats_encode_as_two_other_crates_encode_them() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut compared = 0;
        for step in 0..400_000u32 {
            // Half over all bit patterns, half where the format has its values.
            let value = if step % 2 == 0 {
                f32::from_bits(rng.next_u32())
            } else {
                (rng.next_u32() as f32 / u32::MAX as f32 - 0.5) * 16.0
            };
            if value.is_nan() {
                // microfloat follows ml_dtypes, where NaN becomes negative zero; cvt and float4 give
                // +6 for both signs.
                assert_eq!(encode(value), F4E2M1::from_f64(f64::from(value)).to_bits());
                assert_eq!(f4e2m1fn::from_f32(value).to_bits(), 0x8);
                continue;
            }
            assert_eq!(encode(value), f4e2m1fn::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(encode(value), F4E2M1::from_f64(f64::from(value)).to_bits(), "{value:e}");
            compared += 1;
        }
        assert!(compared > 300_000);
    }
}
