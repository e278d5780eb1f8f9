//! Computes one element of D directly: the reference for the fast paths, and the path for elements with infinities or
//! NaNs.

use super::sum::{Number, SumRule, Term};
use crate::engine::format::Format;

/// Inputs of one element of D.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// Format of A and its codes along K.
    pub a: (Format, &'a [u32]),
    /// Format of B and its codes along K.
    pub b: (Format, &'a [u32]),
    /// Format of the scale factors, those of A's row and those of B's column; empty if unscaled.
    pub scales: Option<(Format, &'a [u8], &'a [u8])>,
    /// A and B enter with opposite signs flipped.
    pub negate: bool,
    /// The accumulator's old value.
    pub c: Number,
    /// How to add.
    pub rule: SumRule,
}

impl Cell<'_> {
    /// The bits of the new accumulator.
    pub fn value(&self) -> u32 {
        match self.scales {
            Some((scale, sa, sb)) if self.a.1.len() == 64 => self.fp4(scale, sa, sb),
            _ => self.products(),
        }
    }

    /// Every product is a term of its own; a scale factor pair only moves exponents.
    fn products(&self) -> u32 {
        let scale = match self.scales {
            None => Number::Finite(Term { significand: 1, point: 0, exponent: 0 }),
            Some((format, sa, sb)) => {
                times(Number::of(format, sa[0].into()), Number::of(format, sb[0].into()))
            }
        };
        let mut terms = Vec::with_capacity(self.a.1.len() + 1);
        let mut infinities = [false; 2];
        let factors = self.a.1.iter().zip(self.b.1).map(|(&a, &b)| {
            let product = times(Number::of(self.a.0, a), Number::of(self.b.0, b));
            let product = times(product, scale);
            if self.negate { minus(product) } else { product }
        });
        for term in factors.chain([self.c]) {
            match term {
                Number::Finite(term) => terms.push(term),
                Number::Infinite { negative } => infinities[usize::from(negative)] = true,
                Number::Nan => return self.rule.nan(),
            }
        }
        match infinities {
            [true, true] => self.rule.nan(),
            [true, false] => self.rule.infinity(false),
            [false, true] => self.rule.infinity(true),
            _ => self.rule.add(&terms),
        }
    }

    /// Each run of 16 elements is one term: an exact dot product times a pair of scale factors.
    fn fp4(&self, format: Format, sa: &[u8], sb: &[u8]) -> u32 {
        let per_scale = 64 / sa.len();
        let mut terms = Vec::with_capacity(5);
        let mut any_nan = self.c == Number::Nan;
        for run in 0..4 {
            let index = 16 * run / per_scale;
            let scale = times(Number::of(format, sa[index].into()), Number::of(format, sb[index].into()));
            // In quarters: both factors are multiples of one half.
            let dot: i64 = (16 * run..16 * run + 16).map(|k| halves(self.a.1[k]) * halves(self.b.1[k])).sum();
            let dot = if self.negate { -dot } else { dot };
            match scale {
                Number::Finite(scale) => {
                    let dot = Term { significand: dot, point: 2, exponent: 0 };
                    terms.push(scale.times(dot));
                }
                _ => any_nan = true,
            }
        }
        match self.c {
            _ if any_nan => self.rule.nan(),
            Number::Infinite { negative } => self.rule.infinity(negative),
            Number::Finite(c) => {
                // What zero does here no hardware has shown: it is taken for subnormal.
                terms.push(Term { exponent: c.exponent.max(-126), ..c });
                self.rule.add(&terms)
            }
            Number::Nan => self.rule.nan(),
        }
    }
}

/// Twice the value of an e2m1 code.
fn halves(code: u32) -> i64 {
    (2.0 * Format::E2m1.decode(code)) as i64
}

fn times(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Finite(a), Number::Finite(b)) => Number::Finite(a.times(b)),
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Infinite { negative: a }, Number::Infinite { negative: b }) => {
            Number::Infinite { negative: a != b }
        }
        (Number::Infinite { negative }, Number::Finite(f))
        | (Number::Finite(f), Number::Infinite { negative }) => match f.significand {
            0 => Number::Nan,
            s => Number::Infinite { negative: negative != (s < 0) },
        },
    }
}

fn minus(number: Number) -> Number {
    match number {
        Number::Finite(t) => Number::Finite(Term { significand: -t.significand, ..t }),
        Number::Infinite { negative } => Number::Infinite { negative: !negative },
        Number::Nan => Number::Nan,
    }
}
