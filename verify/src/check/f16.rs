//! Compares f16 results by the tolerance of the public NVFP4 benchmark.
//!
//! |got - expected| <= atol + rtol * |expected|, with difference and tolerance themselves rounded to
//! f16, as f16 tensor arithmetic does; NaN and both infinities have to stand in the same places.

use half::f16;
use rayon::prelude::*;

use super::{CHUNK, CheckError, CheckReport, Partial, Rule};
use crate::reference::Reference;

/// Tolerance of an element: `atol + rtol * |expected|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative part.
    pub rtol: f32,
    /// Absolute part.
    pub atol: f32,
}

impl Default for Tolerance {
    /// The public benchmark's tolerance: `atol` and `rtol` are both 1e-3.
    fn default() -> Self {
        Self { rtol: 1e-3, atol: 1e-3 }
    }
}

impl Tolerance {
    /// The bound for one element, rounded to f16 after the product and after the sum.
    fn bound(self, expected: f16) -> f16 {
        let relative = f16::from_f32(expected.to_f32().abs() * self.rtol);
        f16::from_f32(relative.to_f32() + self.atol)
    }

    /// Magnitude from which the relative part outweighs the absolute one.
    fn crossover(self) -> f64 {
        if self.rtol > 0.0 { f64::from(self.atol) / f64::from(self.rtol) } else { f64::INFINITY }
    }
}

/// Compares `got`, row-major `[m, n]`, with the reference.
///
/// ```
/// use half::f16;
/// use silumin_verify::check::{Tolerance, check};
/// use silumin_verify::reference::Reference;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let reference = Reference::new(1, 3, vec![1.0, -250.3, 1e6])?;
/// let mut got = reference.rounded().to_vec();
/// assert!(check(&got, &reference, Tolerance::default())?.pass);
/// got[2] = f16::MAX; // the reference overflows to infinity here, and so must the result
/// let report = check(&got, &reference, Tolerance::default())?;
/// assert_eq!((report.mismatches, report.worst.map(|w| w.column)), (1, Some(2)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When `got` has another size than the reference, or a tolerance is negative or not finite.
pub fn check(got: &[f16], reference: &Reference, tolerance: Tolerance) -> Result<CheckReport, CheckError> {
    for (name, value) in [("rtol", tolerance.rtol), ("atol", tolerance.atol)] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(CheckError::Tolerance { name, value });
        }
    }
    let (expected, exact) = (reference.rounded(), reference.exact());
    if got.len() != expected.len() {
        return Err(CheckError::Length {
            m: reference.m(),
            n: reference.n(),
            expected: expected.len(),
            got: got.len(),
        });
    }
    let parts: Vec<Partial> = got
        .par_chunks(CHUNK)
        .zip(expected.par_chunks(CHUNK))
        .zip(exact.par_chunks(CHUNK))
        .map(|((got, expected), exact)| part_of(got, expected, exact, tolerance))
        .collect();
    Ok(CheckReport::of(&parts, CHUNK, reference, Rule::Tolerance(tolerance), |index| {
        (got[index].to_f64(), expected[index].to_f64())
    }))
}

fn part_of(got: &[f16], expected: &[f16], exact: &[f64], tolerance: Tolerance) -> Partial {
    let mut part = Partial::default();
    let crossover = tolerance.crossover();
    for (offset, ((&got, &expected), &exact)) in got.iter().zip(expected).zip(exact).enumerate() {
        let share = judge(&mut part, got, expected, tolerance);
        if part.worst.is_none_or(|(_, most)| share > most) {
            part.worst = Some((offset, share));
        }
        if !expected.is_finite() {
            part.non_finite += 1;
            continue;
        }
        if got.is_finite() {
            let (value, wanted) = (got.to_f64(), expected.to_f64());
            let difference = (value - wanted).abs();
            part.max_abs = part.max_abs.max(difference);
            if wanted.abs() >= crossover && wanted != 0.0 {
                part.max_rel = part.max_rel.max(difference / wanted.abs());
            }
            part.error_square += (value - exact).powi(2);
        } else {
            part.error_square = f64::INFINITY;
        }
        part.exact_square += exact * exact;
    }
    part
}

/// Counts one element and returns its error as a share of the tolerance.
fn judge(part: &mut Partial, got: f16, expected: f16, tolerance: Tolerance) -> f64 {
    let same_special = if expected.is_nan() || got.is_nan() {
        expected.is_nan() && got.is_nan()
    } else if expected.is_infinite() || got.is_infinite() {
        got == expected
    } else {
        // The difference is rounded to f16 and can overflow to infinity, which is out of any
        // bound that is finite.
        let difference = f16::from_f32((got.to_f32() - expected.to_f32()).abs());
        let bound = tolerance.bound(expected);
        if difference > bound {
            part.mismatches += 1;
            return difference.to_f64() / bound.to_f64();
        }
        return if difference == f16::ZERO { 0.0 } else { difference.to_f64() / bound.to_f64() };
    };
    if same_special {
        return 0.0;
    }
    part.mismatches += 1;
    part.special_mismatches += 1;
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: usize = 40;
    const N: usize = 1000;

    /// More than one chunk of ordinary values, with an overflow of each sign.
    fn reference() -> Reference {
        let mut exact: Vec<f64> = (0..M * N).map(|i| ((i * 7919 % 10007) as f64 - 5003.0) / 7.0).collect();
        exact[5] = 1e6;
        exact[6] = -1e6;
        Reference::new(M, N, exact).unwrap()
    }

    fn judge(damage: impl FnOnce(&mut [f16])) -> CheckReport {
        let reference = reference();
        let mut got = reference.rounded().to_vec();
        damage(&mut got);
        check(&got, &reference, Tolerance::default()).unwrap()
    }

    fn next(value: f16, units: u16) -> f16 {
        f16::from_bits(value.to_bits() + units)
    }

    #[test]
    fn the_rounded_reference_passes() {
        let report = judge(|_| {});
        assert!(report.pass);
        assert_eq!((report.mismatches, report.non_finite), (0, 2));
        assert_eq!((report.max_abs, report.max_rel), (0.0, 0.0));
        assert!(report.rel_frobenius > 0.0 && report.rel_frobenius < 3e-4, "{report}");
        assert_eq!(report.worst.map(|w| w.of_tolerance), Some(0.0));
    }

    #[test]
    fn one_unit_in_the_last_place_everywhere_passes() {
        let report = judge(|got| {
            for value in got.iter_mut().filter(|v| v.is_finite()) {
                *value = next(*value, 1);
            }
        });
        assert!(report.pass, "{report}");
        assert!(report.max_rel > 4e-4 && report.max_rel < 1e-3);
    }

    #[test]
    fn two_units_at_the_foot_of_a_binade_fail_and_at_its_top_pass() {
        for (value, pass) in [(256.0, false), (500.0, true)] {
            let reference = Reference::new(1, 1, vec![value]).unwrap();
            let got = [next(reference.rounded()[0], 2)];
            let report = check(&got, &reference, Tolerance::default()).unwrap();
            assert_eq!(report.pass, pass, "{report}");
        }
    }

    #[test]
    fn difference_and_tolerance_are_rounded_to_f16() {
        // At zero the bound is the f16 nearest to 1e-3, which is above it: a comparison with 1e-3
        // itself would refuse an error of just that.
        let reference = Reference::new(1, 1, vec![0.0]).unwrap();
        let bound = f16::from_f32(1e-3);
        assert!(bound.to_f64() > 1e-3);
        assert!(check(&[bound], &reference, Tolerance::default()).unwrap().pass);
        let above = next(bound, 1);
        assert!(!check(&[above], &reference, Tolerance::default()).unwrap().pass);
    }

    #[test]
    fn one_wrong_element_fails_wherever_it_is() {
        for index in [0, N - 1, CHUNK - 1, CHUNK, M * N - 1] {
            let report = judge(|got| got[index] = f16::from_f32(got[index].to_f32() * 1.01 + 0.1));
            assert!(!report.pass);
            assert_eq!((report.mismatches, report.special_mismatches), (1, 0));
            let worst = report.worst.unwrap();
            assert_eq!((worst.row, worst.column), (index / N, index % N));
            assert!(worst.of_tolerance > 1.0);
        }
    }

    #[test]
    fn a_wrong_special_value_fails() {
        let cases: [(usize, f16); 7] = [
            (0, f16::NAN),
            (0, f16::INFINITY),
            (5, f16::MAX),
            (5, f16::NEG_INFINITY),
            (6, f16::INFINITY),
            (6, f16::MIN),
            (6, f16::NAN),
        ];
        for (index, value) in cases {
            let report = judge(|got| got[index] = value);
            assert!(!report.pass, "{value} at {index}");
            assert_eq!((report.mismatches, report.special_mismatches), (1, 1));
            assert_eq!(report.worst.unwrap().column, index);
            // Only a special value in place of a finite one makes the norm infinite.
            assert_eq!(report.rel_frobenius.is_infinite(), index == 0);
        }
    }

    #[test]
    fn nan_matches_nan() {
        let reference = Reference::new(1, 2, vec![f64::NAN, 1.0]).unwrap();
        let got = [f16::from_bits(0xFE01), f16::ONE];
        assert!(check(&got, &reference, Tolerance::default()).unwrap().pass);
        assert!(!check(&[f16::ONE; 2], &reference, Tolerance::default()).unwrap().pass);
    }

    #[test]
    fn structural_damage_fails_and_shows_in_the_norm() {
        type Damage = fn(&mut [f16]);
        let cases: [(&str, Damage); 5] = [
            ("a row of zeros", |got| got[3 * N..4 * N].fill(f16::ZERO)),
            ("two rows swapped", |got| got[..2 * N].rotate_left(N)),
            ("a column shift", |got| got.rotate_right(1)),
            ("one sign", |got| got[777] = -got[777]),
            ("all 0.3 % too large", |got| {
                for value in got.iter_mut().filter(|v| v.is_finite()) {
                    *value = f16::from_f32(value.to_f32() * 1.003);
                }
            }),
        ];
        let undamaged = judge(|_| {}).rel_frobenius;
        for (name, damage) in cases {
            let report = judge(damage);
            assert!(!report.pass, "{name}");
            assert!(report.mismatches > 0 && report.max_abs > 0.0, "{name}");
            assert!(report.rel_frobenius > undamaged, "{name}");
            assert!(report.to_string().starts_with("FAIL: "), "{report}");
        }
    }

    #[test]
    fn opposite_extremes_overflow_the_difference_and_fail() {
        let reference = Reference::new(1, 1, vec![65504.0]).unwrap();
        let report = check(&[f16::MIN], &reference, Tolerance::default()).unwrap();
        assert!(!report.pass);
        assert_eq!(report.special_mismatches, 0);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let reference = Reference::new(2, 3, vec![0.0; 6]).unwrap();
        assert_eq!(
            check(&[f16::ZERO; 5], &reference, Tolerance::default()),
            Err(CheckError::Length { m: 2, n: 3, expected: 6, got: 5 })
        );
        let tolerance = Tolerance { rtol: f32::NAN, atol: 0.0 };
        assert!(matches!(
            check(&[f16::ZERO; 6], &reference, tolerance),
            Err(CheckError::Tolerance { name: "rtol", .. })
        ));
        let empty = Reference::new(0, 3, vec![]).unwrap();
        let report = check(&[], &empty, Tolerance::default()).unwrap();
        assert!(report.pass && report.worst.is_none());
    }

    #[test]
    fn zero_tolerance_asks_for_equal_values() {
        let reference = Reference::new(1, 2, vec![1.0, 0.0]).unwrap();
        let exact = Tolerance { rtol: 0.0, atol: 0.0 };
        let got = [f16::ONE, f16::NEG_ZERO];
        assert!(check(&got, &reference, exact).unwrap().pass);
        let report = check(&[next(f16::ONE, 1), f16::ZERO], &reference, exact).unwrap();
        assert_eq!(report.mismatches, 1);
    }
}
