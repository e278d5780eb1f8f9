//! Rounds f64 to narrower formats in a single rounding.
//!
//! `half::f16::from_f64` goes through f32 where the CPU converts f32 to f16, which rounds twice, and drops the low 32
//! bits of the mantissa where it does not. In both cases a value close to a tie can come out one unit off, which a
//! reference must not.

use half::{bf16, f16};

/// The f16 nearest to `value`, ties to even; overflow gives infinity, NaN gives the quiet NaN of
/// the same sign.
///
/// ```
/// # use silumin_formats::f16_from_f64;
/// assert_eq!(f16_from_f64(65519.999).to_f64(), 65504.0);
/// assert_eq!(f16_from_f64(65520.0).to_f64(), f64::INFINITY);
/// ```
#[must_use]
pub fn f16_from_f64(value: f64) -> f16 {
    let bits = value.to_bits();
    let sign = ((bits >> 48) & 0x8000) as u16;
    let magnitude = value.abs();
    let code = if value.is_nan() {
        0x7E00
    } else if magnitude >= 65520.0 {
        // 65520 is half way between the largest f16 and the next power of two.
        0x7C00
    } else if magnitude < 1.0 / 16384.0 {
        // Subnormal: around 2^28 one f64 unit in the last place is 2^-24, the smallest f16, so that
        // the sum rounds to a multiple of it, ties to even. 1024 units are the least normal code.
        const SHIFTER: f64 = (1u64 << 28) as f64;
        (magnitude + SHIFTER).to_bits() - SHIFTER.to_bits()
    } else {
        let bits = magnitude.to_bits();
        let even = (bits >> 42) & 1;
        // Ten mantissa bits stay of 52; bias 1023 becomes bias 15.
        ((bits + ((1 << 41) - 1) + even) >> 42) - (1008 << 10)
    };
    f16::from_bits(sign | code as u16)
}

/// The bf16 nearest to `value`, ties to even; overflow gives infinity, NaN a quiet NaN.
///
/// ```
/// # use silumin_formats::bf16_from_f64;
/// // Just above a tie, and nearer to it than f32 can tell.
/// assert_eq!(bf16_from_f64(1.00390625 + 1e-12).to_f64(), 1.0078125);
/// ```
#[must_use]
pub fn bf16_from_f64(value: f64) -> bf16 {
    bf16::from_f32(f32_to_odd(value))
}

/// `value` rounded to odd: if it is not an f32, the one of its two f32 neighbours whose last bit is 1. Rounding the
/// result to nearest even in a format with at least two bits fewer equals rounding `value` itself (Boldo and
/// Melquiond, "When double rounding is odd", 2005).
#[must_use]
pub fn f32_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if nearest.is_nan() || f64::from(nearest) == value {
        return nearest;
    }
    // Toward zero: an infinity becomes the largest f32, which is odd.
    let beyond = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(beyond)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn every_f16_survives_a_round_trip() {
        for code in 0..=u16::MAX {
            let value = f16::from_bits(code);
            let back = f16_from_f64(value.to_f64());
            if value.is_nan() {
                assert!(back.is_nan());
                assert_eq!(back.is_sign_negative(), value.is_sign_negative());
            } else {
                assert_eq!(back.to_bits(), code);
            }
        }
    }

    #[test]
    fn midpoints_go_to_even_and_their_f64_neighbours_to_the_nearer_side() {
        for code in 0..0x7BFFu16 {
            let (low, high) = (f16::from_bits(code), f16::from_bits(code + 1));
            let midpoint = (low.to_f64() + high.to_f64()) / 2.0;
            assert_eq!(f16_from_f64(midpoint).to_bits(), (code + 1) & !1);
            assert_eq!(f16_from_f64(midpoint.next_down()).to_bits(), code);
            assert_eq!(f16_from_f64(midpoint.next_up()).to_bits(), code + 1);
            assert_eq!(f16_from_f64(-midpoint.next_up()).to_bits(), (code + 1) | 0x8000);
        }
    }

    #[test]
    fn agrees_with_half_on_values_that_an_f32_holds() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for _ in 0..300_000 {
            let value = f32::from_bits(rng.next_u32());
            if !value.is_nan() {
                assert_eq!(
                    f16_from_f64(f64::from(value)).to_bits(),
                    f16::from_f32(value).to_bits(),
                    "{value:e}"
                );
            }
        }
    }

    #[test]
    fn rounding_to_odd_keeps_what_f32_holds_and_marks_the_rest() {
        let mut rng = ChaCha8Rng::seed_from_u64(31);
        for _ in 0..200_000 {
            let value = f32::from_bits(rng.next_u32());
            if value.is_nan() {
                continue;
            }
            assert_eq!(f32_to_odd(f64::from(value)).to_bits(), value.to_bits());
            if value.is_finite() && value != 0.0 {
                let between = f64::from(value).next_up();
                let odd = f32_to_odd(between);
                assert_eq!(odd.to_bits() & 1, 1);
                let low = f64::from(odd.next_down()) <= between;
                assert!(low && f64::from(odd.next_up()) >= between, "{between:e} became {odd:e}");
            }
        }
        assert_eq!(f32_to_odd(1e300), f32::MAX);
        assert_eq!(f32_to_odd(-1e-300), -f32::from_bits(1));
        assert!(f32_to_odd(f64::NAN).is_nan());
    }

    #[test]
    fn every_bf16_survives_a_round_trip_and_overflow_is_infinite() {
        for code in 0..=u16::MAX {
            let value = bf16::from_bits(code);
            let back = bf16_from_f64(value.to_f64());
            assert!(back.to_bits() == code || back.is_nan() && value.is_nan());
        }
        assert_eq!(bf16_from_f64(1e300), bf16::INFINITY);
        assert_eq!(bf16_from_f64(3.395e38), bf16::MAX);
        assert_eq!(bf16_from_f64(-3.397e38), bf16::NEG_INFINITY);
    }
}
