//! The rule by which a tensor core adds: align to the largest exponent, truncate, add exactly, round
//! once. Written for clarity on 128-bit integers; the fast paths are tested against it bit for bit.
//!
//! Source: MMA-Sim (arXiv 2511.10909), a model checked against hardware, and what an H200 says otherwise about zeros
//! (book/src/hardware.md); PTX leaves the order and precision of accumulation unspecified.

use crate::engine::format::Format;

/// How a sum of products becomes an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumRule {
    /// Bits kept below the largest term's exponent; each term is truncated there, toward zero.
    pub fraction_bits: u32,
    /// How the exact sum of the truncated terms is rounded.
    pub output: Output,
}

/// How the exact sum of the truncated terms is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// To binary32 toward zero, keeping this many fraction bits (23; 13 in Hopper's FP8 `wgmma`).
    F32 {
        /// Fraction bits kept.
        fraction_bits: u32,
    },
    /// To binary16, nearest, ties to even.
    F16,
}

impl SumRule {
    /// `tcgen05.mma` of every kind but mxf4 and mxf4nvf4, f32 accumulator.
    pub const TCGEN05: Self = Self { fraction_bits: 25, output: Output::F32 { fraction_bits: 23 } };
    /// `tcgen05.mma` with a binary16 accumulator.
    pub const TCGEN05_F16: Self = Self { fraction_bits: 25, output: Output::F16 };
    /// `tcgen05.mma` of kinds mxf4 and mxf4nvf4.
    pub const TCGEN05_FP4: Self = Self { fraction_bits: 35, output: Output::F32 { fraction_bits: 23 } };
    /// `wgmma` on 16-bit and tf32 inputs, f32 accumulator.
    pub const WGMMA: Self = Self::TCGEN05;
    /// `wgmma` on FP8 inputs, f32 accumulator.
    pub const WGMMA_FP8: Self = Self { fraction_bits: 13, output: Output::F32 { fraction_bits: 13 } };
}

/// A finite term: `significand * 2^(exponent - point)`.
///
/// `exponent` is what alignment looks at; the significand need not be normalised (products reach up
/// to 4, subnormals stay below 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Signed integer significand.
    pub significand: i64,
    /// Its bits right of the binary point.
    pub point: u32,
    /// Its exponent.
    pub exponent: i32,
}

/// Exponent that stands in for that of a zero factor, so small that no product with it is the largest. A zero factor
/// thus aligns nothing, however large the other factor: observed on an H200 with every format
/// (`tests/corpus/hardware/matrices.txt`).
pub(super) const ZERO_EXPONENT: i32 = -400;

/// Exponent that stands in for that of a zero accumulator: below 2^-133 nothing is aligned more finely. Observed on
/// an H200 in `wgmma` and `mma.sync` with bf16 and tf32, whose products reach that range: of the floors from -126 to
/// -145 only this one leaves no difference.
pub(super) const ZERO_ACCUMULATOR: i32 = -133;

/// A decoded number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// A finite number; a zero factor has `ZERO_EXPONENT`.
    Finite(Term),
    /// An infinity.
    Infinite {
        /// Negative infinity.
        negative: bool,
    },
    /// Not a number.
    Nan,
}

impl Number {
    /// Takes a value of `format` apart.
    pub fn of(format: Format, code: u32) -> Self {
        match Self::split(format.decode(code), format.min_exponent()) {
            Self::Finite(t) if t.significand == 0 => Self::Finite(Term { exponent: ZERO_EXPONENT, ..t }),
            other => other,
        }
    }

    /// Takes an accumulator apart.
    pub fn of_f32(value: f32) -> Self {
        match Self::split(value, -126) {
            Self::Finite(t) if t.significand == 0 => Self::Finite(Term { exponent: ZERO_ACCUMULATOR, ..t }),
            other => other,
        }
    }

    /// Takes a value apart, its exponent no less than that of its format's subnormals.
    fn split(value: f32, min_exponent: i32) -> Self {
        if value.is_nan() {
            return Self::Nan;
        }
        let negative = value.is_sign_negative();
        if value.is_infinite() {
            return Self::Infinite { negative };
        }
        let bits = value.to_bits();
        let (mut magnitude, mut exponent) = match bits >> 23 & 0xff {
            0 => (i64::from(bits & 0x7f_ffff), -126),
            field => (i64::from(bits & 0x7f_ffff | 0x80_0000), field as i32 - 127),
        };
        if magnitude == 0 {
            exponent = -126;
        } else {
            // Normalise: ue8m0 reaches below the normal numbers of f32.
            while magnitude < 0x80_0000 && exponent > min_exponent {
                magnitude <<= 1;
                exponent -= 1;
            }
            while exponent < min_exponent {
                // Values of the format have enough trailing zeros for this to be exact.
                magnitude >>= 1;
                exponent += 1;
            }
        }
        let significand = if negative { -magnitude } else { magnitude };
        Self::Finite(Term { significand, point: 23, exponent })
    }
}

impl Term {
    /// The product, its exponent the sum of the factors' exponents.
    pub fn times(self, other: Self) -> Self {
        // Factors carry trailing zeros of their f32 form; drop them so that products of three or
        // four factors stay far from 63 bits.
        let (a, b) = (self.reduced(), other.reduced());
        Self {
            significand: a.significand * b.significand,
            point: a.point + b.point,
            exponent: a.exponent + b.exponent,
        }
    }

    fn reduced(self) -> Self {
        let zeros = self.significand.trailing_zeros().min(self.point);
        if self.significand == 0 {
            return Self { point: 0, ..self };
        }
        Self { significand: self.significand >> zeros, point: self.point - zeros, ..self }
    }
}

impl SumRule {
    /// Adds finite terms. Returns the bits of the accumulator: f32, or f16 in the low half.
    ///
    /// `terms` must not be empty, and |significand| * 2^-point of each must be below 2^64 (for products of operands it
    /// is below 2^10).
    pub fn add(&self, terms: &[Term]) -> u32 {
        let largest = terms.iter().map(|t| t.exponent).max().unwrap_or(-126);
        let sum: i128 = terms
            .iter()
            .map(|t| {
                let shift = self.fraction_bits as i32 - t.point as i32 + t.exponent - largest;
                shift_toward_zero(i128::from(t.significand), shift)
            })
            .sum();
        self.round(sum, largest - self.fraction_bits as i32)
    }

    /// Rounds `sum * 2^exponent` to the accumulator's format.
    pub fn round(&self, sum: i128, exponent: i32) -> u32 {
        if sum == 0 {
            return 0;
        }
        let magnitude = sum.unsigned_abs();
        let leading = 127 - magnitude.leading_zeros() as i32 + exponent;
        let sign = u32::from(sum < 0);
        match self.output {
            Output::F32 { fraction_bits } => {
                if leading > 127 {
                    return sign << 31 | 0x7f80_0000;
                }
                let scale = leading.max(-126);
                let unit = scale - fraction_bits as i32;
                let kept = shift_toward_zero(magnitude as i128, exponent - unit) as u32;
                if kept == 0 {
                    // The hardware has no negative zero to give.
                    return 0;
                }
                let field = ((scale + 126) as u32) << 23;
                sign << 31 | (field + (kept << (23 - fraction_bits)))
            }
            Output::F16 => {
                let scale = leading.max(-14);
                if scale > 15 {
                    return sign << 15 | 0x7c00;
                }
                let shift = scale - 10 - exponent;
                let kept = shift_to_nearest_even(magnitude, shift) as u32;
                if kept == 0 {
                    return 0;
                }
                // A carry into the next binade, or into infinity, adds up by itself.
                sign << 15 | ((((scale + 14) as u32) << 10) + kept)
            }
        }
    }

    /// The accumulator's NaN.
    pub const fn nan(&self) -> u32 {
        match self.output {
            Output::F32 { .. } => 0x7fff_ffff,
            Output::F16 => 0x7fff,
        }
    }

    /// The accumulator's infinity.
    pub const fn infinity(&self, negative: bool) -> u32 {
        match self.output {
            Output::F32 { .. } => (negative as u32) << 31 | 0x7f80_0000,
            Output::F16 => (negative as u32) << 15 | 0x7c00,
        }
    }
}

/// `value * 2^shift`, truncated toward zero.
fn shift_toward_zero(value: i128, shift: i32) -> i128 {
    match shift {
        0.. => value << shift,
        -126..=-1 => value / (1 << -shift),
        _ => 0,
    }
}

/// `value / 2^shift` to the nearest integer, ties to even.
fn shift_to_nearest_even(value: u128, shift: i32) -> u128 {
    match shift {
        ..=0 => value << -shift,
        1..=126 => {
            let quotient = value >> shift;
            let rest = value & ((1 << shift) - 1);
            let half = 1 << (shift - 1);
            quotient + u128::from(rest > half || rest == half && quotient & 1 == 1)
        }
        _ => 0,
    }
}
