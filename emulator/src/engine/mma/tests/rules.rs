//! The sum rule on sums worked out by hand.

use super::super::exact::{to_f16_nearest, to_f32_toward_zero, truncate};
use super::super::sum::{Output, SumRule, Term};
use super::oracle;
use crate::engine::format::Format;

/// `significand * 2^exponent`, the significand an integer.
fn term(significand: i64, exponent: i32) -> Term {
    Term { significand, point: 0, exponent }
}

#[test]
fn bits_below_the_aligned_fraction_are_dropped() {
    // 1 + 2^-25 + 2^-26 - 1: the second survives at F = 25, the third does not.
    let terms = [term(1, 0), term(1, -25), term(1, -26), term(-1, 0)];
    assert_eq!(SumRule::TCGEN05.add(&terms), 2f32.powi(-25).to_bits());
    // At F = 35 both do.
    let sum = 2f32.powi(-25) + 2f32.powi(-26);
    assert_eq!(SumRule::TCGEN05_FP4.add(&terms), sum.to_bits());
    // At F = 13 neither.
    assert_eq!(SumRule::WGMMA_FP8.add(&terms), 0);
}

#[test]
fn truncation_is_toward_zero_for_both_signs() {
    let terms = [term(1, 0), term(-3, -26), term(-1, 0)];
    assert_eq!(SumRule::TCGEN05.add(&terms), (-2f32.powi(-25)).to_bits());
    let terms = [term(1, 0), term(3, -26), term(-1, 0)];
    assert_eq!(SumRule::TCGEN05.add(&terms), 2f32.powi(-25).to_bits());
}

#[test]
fn results_are_truncated_not_rounded() {
    // 1 + 2^-24 + 2^-25 would round up to 1 + 2^-23.
    let terms = [term(1, 0), term(1, -24), term(1, -25)];
    assert_eq!(SumRule::TCGEN05.add(&terms), 1f32.to_bits());
    let terms = terms.map(|t| Term { significand: -t.significand, ..t });
    assert_eq!(SumRule::TCGEN05.add(&terms), (-1f32).to_bits());
}

#[test]
fn hopper_fp8_keeps_13_fraction_bits() {
    let terms = [term(3, 0), term(1, -12), term(1, -13)];
    // 3 is 1.5 * 2: the unit of the result is 2^-12.
    assert_eq!(SumRule::WGMMA_FP8.add(&terms), (3.0 + 2f32.powi(-12)).to_bits());
}

#[test]
fn the_alignment_follows_exponent_fields_and_not_values() {
    // 3 * 2^-1 with exponent -1 and point 1 below: significands may exceed 2, and a zero with a
    // large exponent still pushes others out.
    let zero = Term { significand: 0, point: 0, exponent: 30 };
    assert_eq!(SumRule::TCGEN05.add(&[zero, term(1, 5), term(1, 4)]), 32f32.to_bits());
}

#[test]
fn results_leave_the_normal_range_gracefully() {
    assert_eq!(SumRule::TCGEN05.add(&[term(1, 127), term(1, 127)]), 0x7f80_0000);
    assert_eq!(SumRule::TCGEN05.add(&[term(-1, 127), term(-1, 127)]), 0xff80_0000);
    // Truncation never rounds up into infinity.
    let largest = term((1 << 25) - 1, 103);
    assert_eq!(SumRule::TCGEN05_FP4.add(&[largest]), 0x7f7f_ffff);
    assert_eq!(SumRule::TCGEN05.add(&[term(3, -150)]), 1);
    assert_eq!(SumRule::TCGEN05.add(&[term(-1, -150)]), 0);
    assert_eq!(SumRule::TCGEN05.add(&[term(5, -128)]), 0x00a0_0000);
}

#[test]
fn half_accumulators_round_to_nearest_even() {
    let add = |terms: &[Term]| SumRule::TCGEN05_F16.add(terms);
    assert_eq!(add(&[term(2049, 0)]), Format::F16.encode_exact(2048.0));
    assert_eq!(add(&[term(2051, 0)]), Format::F16.encode_exact(2052.0));
    assert_eq!(add(&[term(65519, 0)]), 0x7bff);
    assert_eq!(add(&[term(65520, 0)]), 0x7c00);
    assert_eq!(add(&[term(-65520, 0)]), 0xfc00);
    assert_eq!(add(&[term(1, -24)]), 1);
    assert_eq!(add(&[term(1, -25)]), 0);
    assert_eq!(add(&[term(3, -25)]), 2);
    assert_eq!(SumRule::TCGEN05_F16.output, Output::F16);
}

impl Format {
    /// For values of the format.
    fn encode_exact(self, value: f32) -> u32 {
        use crate::engine::format::{Overflow, Rounding};
        let code = self.encode(value, Rounding::TowardZero, Overflow::Ieee);
        assert_eq!(self.decode(code), value);
        code
    }
}

#[test]
fn conversions_agree_with_the_oracle() {
    let mut noise = super::Noise(7);
    for _ in 0..20_000 {
        // Everything from far below the subnormals of f32 to beyond its range.
        let exponent = noise.below(320) as i32 - 180;
        let value = (noise.next() as i64 >> 14) as f64 * 2f64.powi(exponent - 50);
        assert_eq!(to_f32_toward_zero(value), oracle::f32_toward_zero(value), "{value:e}");
    }
    for _ in 0..300 {
        let exponent = noise.below(50) as i32 - 30;
        let value = (noise.next() as i64 >> (14 + noise.below(40))) as f64 * 2f64.powi(exponent - 50);
        assert_eq!(to_f16_nearest(value), oracle::f16_nearest(value), "{value:e}");
        let halfway = (noise.below(4096) as f64 + 0.5) * 2f64.powi(exponent.min(3));
        assert_eq!(to_f16_nearest(halfway), oracle::f16_nearest(halfway), "{halfway:e}");
    }
    for value in [0.0, -0.0, 0.75, -0.75, 1.0, -1.0, 1.999_999, 2f64.powi(46) + 0.5, -5e-324] {
        assert_eq!(truncate(value), value.trunc(), "{value:e}");
    }
    assert!(truncate(f64::NAN).is_nan());
    assert_eq!(truncate(f64::NEG_INFINITY), f64::NEG_INFINITY);
}
