//! Binary64 sums, products, quotients, roots and fused products in every rounding mode, by integer arithmetic,
//! because host arithmetic only rounds to nearest.
//!
//! A number is `significand * 2^exponent` with a significand of up to 126 bits, whose lowest bit is sticky: it is set
//! if any lower bit would be.

use super::float::passed;
use crate::engine::format::Rounding;

/// A finite, nonzero number.
#[derive(Clone, Copy, Debug)]
struct Number {
    negative: bool,
    significand: u128,
    exponent: i32,
}

impl Number {
    fn of(x: f64) -> Self {
        let bits = x.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let (significand, exponent) = match bits >> 52 & 0x7ff {
            0 => (fraction, -1074),
            field => (fraction | 1 << 52, field as i32 - 1075),
        };
        Self { negative: x.is_sign_negative(), significand: u128::from(significand), exponent }
    }

    /// The same number, shifted left until its highest bit is bit 124.
    fn high(self) -> Self {
        let shift = self.significand.leading_zeros() as i32 - 3;
        let significand = self.significand << shift.max(0);
        Self { significand, exponent: self.exponent - shift.max(0), ..self }
    }

    fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            significand: self.significand * other.significand,
            exponent: self.exponent + other.exponent,
        }
    }

    fn plus(self, other: Self) -> Option<Self> {
        let (a, b) = (self.high(), other.high());
        let (a, b) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let low = jam(b.significand, (a.exponent - b.exponent) as u32);
        if a.negative == b.negative {
            return Some(Self { significand: a.significand + low, ..a });
        }
        match a.significand.cmp(&low) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Self { significand: a.significand - low, ..a }),
            std::cmp::Ordering::Less => Some(Self { significand: low - a.significand, ..b.at(a.exponent) }),
        }
    }

    fn at(self, exponent: i32) -> Self {
        Self { exponent, ..self }
    }

    fn round(self, rounding: Rounding) -> u64 {
        let top = 127 - self.significand.leading_zeros() as i32 + self.exponent;
        // The place of the last bit that a binary64 of this size keeps.
        let unit = (top - 52).max(-1074);
        let shift = unit - self.exponent;
        let kept = if shift <= 0 {
            self.significand << -shift
        } else {
            // Two bits more and a sticky one decide.
            let value = if shift > 2 {
                jam(self.significand, shift as u32 - 2)
            } else {
                self.significand << (2 - shift)
            };
            let up = match rounding {
                Rounding::NearestEven => value & 3 > 2 || value & 3 == 2 && value >> 2 & 1 == 1,
                Rounding::NearestAway => value & 3 >= 2,
                Rounding::TowardZero => false,
                Rounding::Down => value & 3 != 0 && self.negative,
                Rounding::Up => value & 3 != 0 && !self.negative,
            };
            (value >> 2) + u128::from(up)
        };
        let sign = u64::from(self.negative) << 63;
        // Bit 52 of a normal number is one more in the exponent field; a carry counts likewise.
        let bits = ((unit + 1074) as u128) * (1 << 52) + kept;
        let infinity = 0x7ff_u128 << 52;
        if bits < infinity {
            return sign | bits as u64;
        }
        let away = match rounding {
            Rounding::NearestEven | Rounding::NearestAway => true,
            Rounding::TowardZero => false,
            Rounding::Down => self.negative,
            Rounding::Up => !self.negative,
        };
        sign | if away { infinity as u64 } else { infinity as u64 - 1 }
    }
}

/// `value / 2^shift`, with the lowest bit set if any bit was lost.
fn jam(value: u128, shift: u32) -> u128 {
    match shift {
        0 => value,
        1..=127 => value >> shift | u128::from(value & ((1 << shift) - 1) != 0),
        _ => u128::from(value != 0),
    }
}

/// The result for sources that are not all finite and nonzero.
fn special<const N: usize>(x: f64, sources: [f64; N]) -> u64 {
    let mut bits = [0; 3];
    for (bits, source) in bits.iter_mut().zip(sources) {
        *bits = source.to_bits();
    }
    passed(x, bits)
}

fn usual(x: f64) -> bool {
    x.is_finite() && x != 0.0
}

/// `a * b + c`, rounded once.
pub(crate) fn fma(a: f64, b: f64, c: f64, rounding: Rounding) -> u64 {
    if !usual(a) || !usual(b) {
        let product = a * b;
        if product == 0.0 && c == 0.0 {
            return zero_sum(product, c, rounding);
        }
        return special(product + c, [b, c, a]);
    }
    let product = Number::of(a).times(Number::of(b));
    if !usual(c) {
        return if c == 0.0 { product.round(rounding) } else { special(c, [b, c, a]) };
    }
    match product.plus(Number::of(c)) {
        Some(sum) => sum.round(rounding),
        None if rounding == Rounding::Down => 1 << 63,
        None => 0,
    }
}

/// The sum of two zeros: of unlike signs it is negative only when rounding down.
fn zero_sum(a: f64, b: f64, rounding: Rounding) -> u64 {
    match a.is_sign_negative() == b.is_sign_negative() {
        true => a.to_bits(),
        false => u64::from(rounding == Rounding::Down) << 63,
    }
}

/// `a + b`.
pub(crate) fn add(a: f64, b: f64, rounding: Rounding) -> u64 {
    if a == 0.0 && b == 0.0 { zero_sum(a, b, rounding) } else { fma(a, 1.0, b, rounding) }
}

/// `a - b`.
pub(crate) fn sub(a: f64, b: f64, rounding: Rounding) -> u64 {
    // The sign of a NaN stays.
    if b.is_nan() { special(a - b, [b, a]) } else { add(a, -b, rounding) }
}

/// `a * b`.
pub(crate) fn mul(a: f64, b: f64, rounding: Rounding) -> u64 {
    if !usual(a) || !usual(b) {
        return special(a * b, [b, a]);
    }
    Number::of(a).times(Number::of(b)).round(rounding)
}

/// `a / b`.
pub(crate) fn div(a: f64, b: f64, rounding: Rounding) -> u64 {
    if !usual(a) || !usual(b) {
        return special(a / b, [a, b]);
    }
    let (n, d) = (Number::of(a).high(), Number::of(b));
    // 125 bits over at most 53 leave at least 72.
    let quotient = n.significand / d.significand;
    let rest = n.significand % d.significand;
    Number {
        negative: n.negative != d.negative,
        significand: quotient << 1 | u128::from(rest != 0),
        exponent: n.exponent - d.exponent - 1,
    }
    .round(rounding)
}

/// The square root of `a`.
pub(crate) fn sqrt(a: f64, rounding: Rounding) -> u64 {
    if !usual(a) || a < 0.0 {
        return special(a.sqrt(), [a]);
    }
    let mut n = Number::of(a).high();
    if n.exponent % 2 != 0 {
        n = Number { significand: n.significand << 1, exponent: n.exponent - 1, ..n };
    }
    let root = n.significand.isqrt();
    let rest = n.significand - root * root;
    Number { negative: false, significand: root << 1 | u128::from(rest != 0), exponent: n.exponent / 2 - 1 }
        .round(rounding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits),
            (any::<i32>(), -60i32..60).prop_map(|(m, e)| f64::from(m) * 2f64.powi(e)),
            // Around the subnormals and the largest numbers.
            any::<u64>().prop_map(|b| f64::from_bits(b >> 8)),
            any::<u64>().prop_map(|b| f64::from_bits(0x7fe0_0000_0000_0000 | b >> 11)),
            Just(0.0),
            Just(-0.0),
        ]
    }

    const NEAREST: Rounding = Rounding::NearestEven;

    /// Checks that the directed results bracket the exact one, given the host's result to nearest.
    fn bracket(nearest: u64, f: impl Fn(Rounding) -> u64) -> Result<(), TestCaseError> {
        prop_assert_eq!(f(NEAREST), nearest);
        let [down, up, zero] =
            [Rounding::Down, Rounding::Up, Rounding::TowardZero].map(|r| f64::from_bits(f(r)));
        let nearest = f64::from_bits(nearest);
        if nearest.is_nan() {
            prop_assert!(down.is_nan() && up.is_nan() && zero.is_nan());
            return Ok(());
        }
        prop_assert!(down <= nearest && nearest <= up, "{down} {nearest} {up}");
        prop_assert!(up == down || up == down.next_up(), "{down} {up}");
        prop_assert!(zero.abs() == down.abs().min(up.abs()));
        Ok(())
    }

    proptest! {
        #[test]
        fn sums_and_fused_products_round_as_asked(a in bits(), b in bits(), c in bits()) {
            bracket(special(a + b, [b, a]), |r| add(a, b, r))?;
            bracket(special(a.mul_add(b, c), [b, c, a]), |r| fma(a, b, c, r))?;
        }

        #[test]
        fn products_quotients_and_roots_round_as_asked(a in bits(), b in bits()) {
            bracket(special(a * b, [b, a]), |r| mul(a, b, r))?;
            bracket(special(a / b, [a, b]), |r| div(a, b, r))?;
            bracket(special(a.sqrt(), [a]), |r| sqrt(a, r))?;
        }
    }

    #[test]
    fn inexact_results_lie_between_the_directed_ones() {
        let third = |r| f64::from_bits(div(1.0, 3.0, r));
        assert_eq!(third(Rounding::Up), third(Rounding::Down).next_up());
        assert_eq!(third(Rounding::TowardZero), third(Rounding::Down));
        // A fused product that only its last bits decide.
        let x = 1.0 + f64::EPSILON;
        assert_eq!(fma(x, x, -x * x, Rounding::Up), (f64::EPSILON * f64::EPSILON).to_bits());
        assert_eq!(add(1.0, -1.0, Rounding::Down), (-0f64).to_bits());
    }
}
