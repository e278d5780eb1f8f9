//! Compares a kernel's result with the reference, and reports how far off it is.
//!
//! * `mod.rs`: the report, and [`check_output`] for results in any format.
//! * `f16.rs`: f16 results, element by element, as the public NVFP4 benchmark judges them.
//! * `rounded.rs`: results in all other formats. The reference has bounds on the error of a right kernel
//!   ([`crate::reference::dual_gemm_bounded`]), which rounds its result once. Rounding keeps order, so a right
//!   element lies between the two ends of the bound, each rounded to the format. In block-scaled formats
//!   the scale factors are checked first, then the elements with the scale factors that the kernel wrote.
//!
//! D1 and D2 are compared by `rounded.rs` in every format, f16 included: rounded sums have tight bounds of their own.
//!
//! One wrong element, scale factor or padding byte fails a result.

mod f16;
mod rounded;

pub use f16::{Tolerance, check};

use std::fmt;

use silumin_codegen::problem::OutputFormat;
use thiserror::Error;

use crate::output::Output;
use crate::reference::Reference;

/// Elements judged by one task. It is fixed, so that sums do not depend on the number of threads.
const CHUNK: usize = 1 << 15;

/// Why a result cannot be judged.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The result and the reference differ in size.
    #[error(
        "the result has {got} elements but the reference is {m} x {n} = {expected}: pass the whole \
         row-major result, without padding between rows"
    )]
    Length {
        /// Rows of the reference.
        m: usize,
        /// Columns of the reference.
        n: usize,
        /// Elements of the reference.
        expected: usize,
        /// Elements of the result.
        got: usize,
    },
    /// A tolerance that is negative, or not finite.
    #[error("the tolerance {name} = {value} has to be finite and not negative")]
    Tolerance {
        /// `rtol` or `atol`.
        name: &'static str,
        /// Its value.
        value: f32,
    },
}

/// How elements are compared with the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The public benchmark's comparison of f16 results.
    Tolerance(Tolerance),
    /// The reference's bounds, rounded to the format.
    Rounded(OutputFormat),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Tolerance(Tolerance { rtol, atol }) => write!(f, "rtol {rtol}, atol {atol}"),
            Rule::Rounded(format) => write!(f, "error bounds, rounded to {format}"),
        }
    }
}

/// The element with the largest error relative to its tolerance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worst {
    /// Row.
    pub row: usize,
    /// Column.
    pub column: usize,
    /// What the kernel wrote.
    pub got: f64,
    /// The reference value.
    pub expected: f64,
    /// Error divided by the tolerance; infinite where only one of the two values is NaN or infinite.
    pub of_tolerance: f64,
}

/// Result of checking the scale factors of C.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScaleReport {
    /// Scale factors checked, without padding.
    pub scales: usize,
    /// Scale factors outside the accepted range.
    pub mismatches: usize,
    /// Accepted scale factors that differ from the one that the format's rule gives for the exact values.
    pub off_rule: usize,
    /// Padding bytes that are NaN; a next GEMM would read them.
    pub bad_pads: usize,
    /// The first mismatch: row, column (in scale factors), code written, code by the rule.
    pub first: Option<(usize, usize, u8, u8)>,
}

/// Result of comparing an output with its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckReport {
    /// Whether all elements, all scale factors, and D1 and D2 where they were kept, are accepted.
    pub pass: bool,
    /// Elements judged.
    pub elements: usize,
    /// Elements out of tolerance.
    pub mismatches: usize,
    /// Elements that are NaN or infinite on one side only, or differently on the two sides; included in `mismatches`.
    pub special_mismatches: usize,
    /// Elements whose reference value is NaN or infinite in C's format.
    pub non_finite: usize,
    /// The element with the largest error relative to its tolerance; `None` for an empty result.
    pub worst: Option<Worst>,
    /// Largest |got - expected| in rounded values, over elements finite on both sides.
    pub max_abs: f64,
    /// Largest |got - expected| / |expected| over elements with |expected| >= atol / rtol (>= 1 under
    /// [`Rule::Rounded`]). Smaller elements would show the rounding only.
    pub max_rel: f64,
    /// Relative Frobenius norm of the error against the f64 reference: norm(got - exact) / norm(exact), over elements
    /// with a finite expected value. It is infinite where the result is not finite at one of them. Where C's format
    /// saturates, `exact` is clamped to the format's largest value. Rounding alone gives about 2e-4 for f16.
    pub rel_frobenius: f64,
    /// How elements were compared.
    pub rule: Rule,
    /// Result for the scale factors; `None` for a C without scale factors.
    pub scales: Option<ScaleReport>,
    /// Results for D1 and D2, in this order; empty where they were not kept.
    pub preactivations: Vec<CheckReport>,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} of {} elements out of tolerance ({})",
            if self.pass { "PASS" } else { "FAIL" },
            self.mismatches,
            self.elements,
            self.rule,
        )?;
        if self.special_mismatches > 0 {
            write!(f, ", {} of them by NaN or infinity", self.special_mismatches)?;
        }
        if let Some(scales) = &self.scales {
            write!(f, "; {} of {} scale factors are wrong", scales.mismatches, scales.scales)?;
            if let Some((row, column, got, expected)) = scales.first {
                write!(
                    f,
                    " (the first at row {row}, column {column}: got {got:#04x}, expected {expected:#04x})"
                )?;
            }
            if scales.bad_pads > 0 {
                write!(f, ", {} pads are NaN", scales.bad_pads)?;
            }
        }
        write!(
            f,
            "; max abs {:.3e}, max rel {:.3e}, rel Frobenius {:.3e}",
            self.max_abs, self.max_rel, self.rel_frobenius
        )?;
        if let Some(worst) = &self.worst {
            write!(
                f,
                "; worst at row {}, column {}: got {}, expected {} ({:.2} of its tolerance)",
                worst.row, worst.column, worst.got, worst.expected, worst.of_tolerance
            )?;
        }
        if self.non_finite > 0 {
            write!(f, "; {} elements overflow C's format in the reference", self.non_finite)?;
        }
        for (name, product) in ["d1", "d2"].iter().zip(&self.preactivations) {
            write!(f, "; {name}: {product}")?;
        }
        Ok(())
    }
}

/// Compares C, in any format, with the reference. f16 is compared by the benchmark's tolerance, other formats by the
/// reference's error bounds; a reference without bounds is taken as exact to 2^-19.
///
/// ```
/// use silumin_codegen::problem::OutputFormat;
/// use silumin_verify::check::check_output;
/// use silumin_verify::output::Output;
/// use silumin_verify::reference::Reference;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let values: Vec<f64> = (0..64).map(|i| f64::from(i) - 31.5).collect();
/// let right = Output::encode(2, 32, OutputFormat::Mxfp8, &values, 1.0)?;
/// let reference = Reference::new(2, 32, values)?;
/// assert!(check_output(&right, &reference)?.pass);
/// let mut codes = right.codes().to_vec();
/// codes[36] ^= 1; // one element, one step off
/// let wrong = right.with_parts(codes, right.scales().to_vec())?;
/// assert_eq!(check_output(&wrong, &reference)?.mismatches, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When C has another size than the reference.
pub fn check_output(got: &Output, reference: &Reference) -> Result<CheckReport, CheckError> {
    let (m, n) = (reference.m(), reference.n());
    if (got.m(), got.n()) != (m, n) {
        let got = got.m().saturating_mul(got.n());
        return Err(CheckError::Length { m, n, expected: reference.exact().len(), got });
    }
    if got.format() == OutputFormat::F16 {
        let halves = got.codes().as_chunks::<2>().0.iter().map(|&pair| half::f16::from_le_bytes(pair));
        return check(&halves.collect::<Vec<_>>(), reference, Tolerance::default());
    }
    Ok(rounded::check(got, reference))
}

/// Compares D1, and D2 if there is one, with their references by the references' error bounds, in f16 too.
///
/// # Errors
///
/// When one of them has another size than its reference.
pub fn check_preactivations(
    got: &[Output],
    references: &[Reference],
) -> Result<Vec<CheckReport>, CheckError> {
    got.iter().zip(references).map(|(got, reference)| check_bounded(got, reference)).collect()
}

/// Compares a result with its reference by the reference's error bounds, in f16 too.
///
/// # Errors
///
/// When C has another size than the reference.
pub fn check_bounded(got: &Output, reference: &Reference) -> Result<CheckReport, CheckError> {
    let (m, n) = (reference.m(), reference.n());
    if (got.m(), got.n()) != (m, n) {
        let got = got.m().saturating_mul(got.n());
        return Err(CheckError::Length { m, n, expected: reference.exact().len(), got });
    }
    Ok(rounded::check(got, reference))
}

impl CheckReport {
    /// Adds the reports on D1 and D2: the whole passes only if all of them do.
    #[must_use]
    pub fn with_preactivations(mut self, preactivations: Vec<CheckReport>) -> Self {
        self.pass &= preactivations.iter().all(|product| product.pass);
        self.preactivations = preactivations;
        self
    }

    /// Sums the findings over runs of `run` elements; `values` gives an element's actual and expected value.
    fn of(
        parts: &[Partial],
        run: usize,
        reference: &Reference,
        rule: Rule,
        values: impl Fn(usize) -> (f64, f64),
    ) -> Self {
        let mut total = Partial::default();
        let mut worst = None;
        for (index, part) in parts.iter().enumerate() {
            if let Some((offset, share)) = part.worst
                && worst.is_none_or(|(_, most)| share > most)
            {
                worst = Some((index * run + offset, share));
            }
            total.add(part);
        }
        CheckReport {
            pass: total.mismatches == 0,
            elements: reference.exact().len(),
            mismatches: total.mismatches,
            special_mismatches: total.special_mismatches,
            non_finite: total.non_finite,
            worst: worst.map(|(index, of_tolerance)| {
                let (got, expected) = values(index);
                let (row, column) = (index / reference.n(), index % reference.n());
                Worst { row, column, got, expected, of_tolerance }
            }),
            max_abs: total.max_abs,
            max_rel: total.max_rel,
            rel_frobenius: total.rel_frobenius(),
            rule,
            scales: None,
            preactivations: Vec::new(),
        }
    }
}

/// Findings in one run of elements.
#[derive(Default)]
struct Partial {
    mismatches: usize,
    special_mismatches: usize,
    non_finite: usize,
    /// Offset in the run and share of the tolerance of the worst element.
    worst: Option<(usize, f64)>,
    max_abs: f64,
    max_rel: f64,
    error_square: f64,
    exact_square: f64,
}

impl Partial {
    fn add(&mut self, other: &Self) {
        self.mismatches += other.mismatches;
        self.special_mismatches += other.special_mismatches;
        self.non_finite += other.non_finite;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_rel = self.max_rel.max(other.max_rel);
        self.error_square += other.error_square;
        self.exact_square += other.exact_square;
    }

    fn rel_frobenius(&self) -> f64 {
        if self.error_square == 0.0 { 0.0 } else { (self.error_square / self.exact_square).sqrt() }
    }
}
