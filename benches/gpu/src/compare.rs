//! Compares C with the reference.

use half::{bf16, f16};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use silumin_codegen::problem::{ElementKind, Formats, OperandFormat, OutputFormat};
use silumin_formats::{e4m3, element};

/// Elements that a thread compares at a time.
const RUN: usize = 1 << 16;
/// Smallest magnitude that f16 rounds to infinity.
const F16_OVERFLOW: f64 = 65520.0;
/// Fill byte of C before a launch. No kernel writes it, and it is NaN in all float formats.
pub const POISON: u8 = 0xFF;

/// Errors over all elements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Relative Frobenius error: sqrt(sum (got - want)^2 / sum want^2), over the elements that are finite.
    pub frobenius: f64,
    /// Limit of `frobenius`.
    pub limit: f64,
    /// The largest |got - want|.
    pub max_abs: f64,
    /// Elements with |got - want| > rtol * |want| + atol, including those that are wrongly not finite.
    pub outside: u64,
    /// Relative tolerance for `outside`.
    pub rtol: f64,
    /// Absolute tolerance for `outside` in columns of usual size.
    pub atol: f64,
    /// Elements that still hold the fill byte; for nvfp4 and mxfp8, scale factors.
    pub unwritten: u64,
    /// Elements compared.
    pub elements: u64,
    /// The worst element as text: index in C, actual and expected value.
    pub worst: Option<String>,
}

impl Errors {
    /// Whether the result is right.
    pub fn pass(&self) -> bool {
        self.outside == 0 && self.unwritten == 0 && self.frobenius <= self.limit
    }
}

/// Error that a right kernel may add to the rounding of the result: f32 sums and an approximate exponential. On
/// Hopper, FP8 operands are summed with 14 bits between promotions to f32.
fn slack(formats: &Formats) -> f64 {
    let narrow = |format| {
        use OperandFormat as F;
        matches!(format, F::E4m3 | F::E5m2 | F::E4m3Vector128 | F::E4m3Block128)
    };
    if narrow(formats.a) || narrow(formats.b) { 1e-3 } else { 3e-5 }
}

/// Limit of the relative Frobenius error: slightly more than the error of rounding each element of `want` once (about
/// 1.66e-3 in bf16, 2.07e-4 in f16, 2.6e-2 in e4m3), plus [`slack`]. A C with scale factors has its own limit.
pub fn limit(formats: &Formats, want: &[f64]) -> f64 {
    let kind = match formats.c {
        OutputFormat::F32 => return slack(formats),
        OutputFormat::F16 => ElementKind::F16,
        OutputFormat::Bf16 => ElementKind::Bf16,
        OutputFormat::E4m3 => ElementKind::E4m3,
        OutputFormat::Mxfp8 => return 4e-2,
        _ => return 1.2e-1,
    };
    let squares = |run: &[f64]| {
        run.iter().map(|w| settled(formats.c, *w)).filter(|w| w.is_finite()).fold(
            (0.0, 0.0),
            |(off, all), w| {
                let rounded = f64::from(element::decode(kind, element::encode_f64(kind, w)));
                (off + (rounded - w) * (rounded - w), all + w * w)
            },
        )
    };
    let (off, all) = want.par_chunks(RUN).map(squares).reduce(|| (0.0, 0.0), |x, y| (x.0 + y.0, x.1 + y.1));
    1.02 * if all > 0.0 { (off / all).sqrt() } else { 0.0 } + slack(formats)
}

/// Error bound of FP8 sums on Hopper, relative to a sum of usual size. Each of `steps` MMAs between two promotions to
/// f32 truncates the sum 13 bits below its largest part, in one direction, and an element of C has two such sums.
pub fn narrow_error(steps: u32) -> f64 {
    2.0 * f64::from(steps) * f64::exp2(-13.0)
}

/// The largest of `elements` normal numbers, over their standard deviation. A gate multiplies the error of one product by the other
/// product, which has that size somewhere.
fn tail(elements: usize) -> f64 {
    (2.0 * (elements.max(2) as f64).ln()).sqrt()
}

/// Relative tolerance of an element.
fn rtol(formats: &Formats, narrow: f64) -> f64 {
    let rounding = match formats.c {
        OutputFormat::F32 => 1e-4,
        OutputFormat::F16 => 1.0 / 1024.0,
        OutputFormat::Bf16 => 1.0 / 128.0,
        OutputFormat::E4m3 => 1.0 / 8.0,
        OutputFormat::Mxfp8 => 1.0 / 4.0,
        _ => 1.0,
    };
    rounding + narrow.max(4.0 * (slack(formats) - 3e-5))
}

/// Absolute tolerance, as a share of C's root mean square.
fn atol_share(format: OutputFormat) -> f64 {
    match format {
        OutputFormat::F32 => 1e-4,
        OutputFormat::F16 | OutputFormat::Bf16 => 2e-3,
        OutputFormat::E4m3 | OutputFormat::Mxfp8 => 2e-2,
        _ => 2.5,
    }
}

/// The value that a format gives beyond its range: e4m3 saturates, f16 overflows.
fn settled(format: OutputFormat, value: f64) -> f64 {
    match format {
        OutputFormat::E4m3 => value.clamp(-448.0, 448.0),
        OutputFormat::F16 if value.abs() >= F16_OVERFLOW => f64::INFINITY.copysign(value),
        _ => value,
    }
}

/// Error of an element. Close to f16's overflow both infinity and the largest number are right.
fn off(format: OutputFormat, rtol: f64, got: f64, value: f64) -> f64 {
    let want = settled(format, value);
    if got == want || got.is_nan() && want.is_nan() {
        return 0.0;
    }
    let near = format == OutputFormat::F16 && (value.abs() / F16_OVERFLOW - 1.0).abs() < rtol;
    let most = if got.is_infinite() { F16_OVERFLOW.copysign(got) } else { got };
    if near { (most - value).abs() } else { (got - want).abs() }
}

/// An element: error divided by tolerance, index, actual value, expected value.
type Worst = (f64, usize, f64, f64);

/// Sums of the squares of each of `columns` columns, and of all.
fn squares(want: &[f64], columns: usize, finite: impl Fn(&f64) -> f64 + Sync) -> (Vec<f64>, f64) {
    let part = |rows: &[f64]| {
        let mut sums = vec![0.0; columns];
        for row in rows.chunks(columns) {
            row.iter().zip(&mut sums).for_each(|(value, sum)| *sum += finite(value) * finite(value));
        }
        sums
    };
    let add = |mut x: Vec<f64>, y: Vec<f64>| {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        x
    };
    let sums = want.par_chunks(columns * RUN.div_ceil(columns)).map(part).reduce(|| vec![0.0; columns], add);
    let all = sums.iter().sum();
    (sums, all)
}

/// Compares C, `columns` columns as bytes (f16, bf16, f32 or e4m3) or for other formats as decoded `values`, with `want`,
/// row-major, under a [`limit`]. `narrow` is the kernel's [`narrow_error`], or 0; it applies to elements close to 0 too, because
/// it is an error of the sums. Where a gate multiplies columns by a vector, an element is judged by the size of its column; rows
/// are all judged alike. `gated` says whether a gate multiplies two products.
pub fn compare(
    formats: &Formats,
    columns: usize,
    (narrow, gated): (f64, bool),
    limit: f64,
    bytes: &[u8],
    values: Option<&[f64]>,
    want: &[f64],
) -> Errors {
    let (format, rtol) = (formats.c, rtol(formats, narrow));
    let finite = |value: &f64| Some(settled(format, *value)).filter(|value| value.is_finite()).unwrap_or(0.0);
    let columns = columns.max(1);
    let (of_columns, square) = squares(want, columns, finite);
    let usual = (square / want.len().max(1) as f64).sqrt();
    let rows = (want.len() / columns).max(1) as f64;
    let share = atol_share(format) + narrow * if gated { tail(want.len()) } else { 1.0 };
    let atols: Vec<f64> = of_columns.iter().map(|square| share * (square / rows).sqrt().max(usual)).collect();
    let width = format.bytes() as usize;
    let part = |(index, want): (usize, &[f64])| {
        let mut found = Errors::default();
        let mut worst: Worst = (f64::NEG_INFINITY, 0, 0.0, 0.0);
        for (place, &w) in want.iter().enumerate() {
            let at = index * RUN + place;
            let (got, poison) = match values {
                Some(values) => (values[at], false),
                None => {
                    let raw = &bytes[at * width..][..width];
                    (decode(format, raw), raw.iter().all(|byte| *byte == POISON))
                }
            };
            let off = off(format, rtol, got, w);
            let share = if off.is_finite() {
                off / (rtol * w.abs() + atols[at % columns]).max(1e-300)
            } else {
                f64::INFINITY
            };
            found.unwritten += u64::from(poison);
            if off.is_finite() {
                found.frobenius += off * off;
                found.max_abs = found.max_abs.max(off);
            }
            found.outside += u64::from(share > 1.0);
            if share > worst.0 {
                worst = (share, at, got, w);
            }
        }
        (found, worst)
    };
    let merge = |(mut x, wx): (Errors, Worst), (y, wy): (Errors, Worst)| {
        x.frobenius += y.frobenius;
        x.max_abs = x.max_abs.max(y.max_abs);
        x.outside += y.outside;
        x.unwritten += y.unwritten;
        (x, if wy.0 > wx.0 { wy } else { wx })
    };
    let none = || (Errors::default(), (f64::NEG_INFINITY, 0, 0.0, 0.0));
    let (mut found, (_, at, got, w)) = want.par_chunks(RUN).enumerate().map(part).reduce(none, merge);
    found.frobenius = if square > 0.0 { (found.frobenius / square).sqrt() } else { found.frobenius.sqrt() };
    found.elements = want.len() as u64;
    found.worst = Some(format!("element {at} is {got}, not {w}"));
    Errors { limit, rtol, atol: share * usual, ..found }
}

/// Decodes an element of a plain float format; 0 for other formats.
fn decode(format: OutputFormat, raw: &[u8]) -> f64 {
    match (format, raw) {
        (OutputFormat::F16, [x, y]) => f16::from_le_bytes([*x, *y]).to_f64(),
        (OutputFormat::Bf16, [x, y]) => bf16::from_le_bytes([*x, *y]).to_f64(),
        (OutputFormat::F32, [x, y, z, w]) => f32::from_le_bytes([*x, *y, *z, *w]).into(),
        (OutputFormat::E4m3, [x]) => e4m3::decode(*x).into(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: Formats = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);

    fn judged(bytes: &[u8], want: &[f64]) -> Errors {
        compare(&BF16, 1, (0.0, false), limit(&BF16, want), bytes, None, want)
    }

    fn judged_values(c: OutputFormat, got: &[f64], want: &[f64]) -> Errors {
        let formats = Formats { c, ..BF16 };
        compare(&formats, 1, (0.0, false), limit(&formats, want), &[], Some(got), want)
    }

    fn encoded(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| bf16::from_f64(*value).to_le_bytes()).collect()
    }

    /// Numbers evenly spaced in -1..1.
    fn values(count: usize) -> Vec<f64> {
        (0..count).map(|i| ((i * 2_654_435_761) % 100_003) as f64 / 5e4 - 1.0).collect()
    }

    #[test]
    fn a_rounded_answer_passes() {
        let want = values(200_000);
        let found = judged(&encoded(&want), &want);
        assert!(found.pass(), "{found:?}");
        assert!(found.frobenius > 0.9 * found.limit, "{found:?}");
        assert_eq!(found.elements, 200_000);
    }

    #[test]
    fn sums_of_few_bits_may_be_off_by_what_their_steps_cost() {
        let formats = Formats::new(OperandFormat::E4m3, OperandFormat::E4m3, OutputFormat::F32);
        let want = values(1000);
        let outside = |off: f64, steps| {
            let got: Vec<f64> = want.iter().map(|w| w + off).collect();
            compare(&formats, 1, (narrow_error(steps), false), 1.0, &[], Some(&got), &want).outside
        };
        assert_eq!(outside(1e-3, 16), 0);
        assert!(outside(1e-3, 4) > 0);
        assert!(outside(2e-2, 16) > 0);
    }

    #[test]
    fn columns_have_sizes_of_their_own() {
        // The first of four columns is a hundred times as large as the others.
        let scale = |index: usize| if index.is_multiple_of(4) { 100.0 } else { 1.0 };
        let want: Vec<f64> = values(4000).iter().enumerate().map(|(i, w)| w * scale(i)).collect();
        let formats = Formats { c: OutputFormat::F32, ..BF16 };
        let outside = |column: usize, off: f64, columns| {
            let got: Vec<f64> =
                want.iter().enumerate().map(|(i, w)| if i % 4 == column { w + off } else { *w }).collect();
            compare(&formats, columns, (0.0, false), 1.0, &[], Some(&got), &want).outside
        };
        let usual = (want.iter().map(|w| w * w).sum::<f64>() / 4000.0).sqrt();
        let off = 1.5e-4 * usual;
        assert!(outside(0, off, 1) > 0 && outside(0, off, 4) == 0);
        assert!(outside(1, off, 4) > 0);
    }

    #[test]
    fn one_wrong_element_is_found_and_named() {
        let want = values(200_000);
        let mut got = want.clone();
        got[150_001] += 0.05;
        let found = judged(&encoded(&got), &want);
        assert_eq!(found.outside, 1);
        assert!(found.worst.as_ref().unwrap().starts_with("element 150001 is "), "{found:?}");
        assert!(!found.pass() && found.frobenius < found.limit, "{found:?}");
    }

    #[test]
    fn what_nothing_wrote_is_counted() {
        let want = values(70_000);
        let mut bytes = encoded(&want);
        bytes[4..8].fill(POISON);
        let found = judged(&bytes, &want);
        assert_eq!((found.unwritten, found.outside), (2, 2));
        assert!(!found.pass());
    }

    #[test]
    fn a_little_too_much_everywhere_is_too_much() {
        let want = values(70_000);
        let got: Vec<f64> = want.iter().map(|value| value * 1.003).collect();
        let found = judged(&encoded(&got), &want);
        assert_eq!(found.outside, 0);
        assert!(found.frobenius > found.limit && !found.pass());
    }

    #[test]
    fn e4m3_saturates_and_f16_overflows() {
        let inf = f64::INFINITY;
        assert!(judged(&encoded(&[inf, 1.0]), &[inf, 1.0]).pass());
        assert_eq!(judged(&encoded(&[1.0, 1.0]), &[inf, 1.0]).outside, 1);
        assert_eq!(judged(&encoded(&[f64::NAN, 1.0]), &[1.0, 1.0]).outside, 1);
        assert!(judged_values(OutputFormat::E4m3, &[448.0, -448.0, 1.0], &[9e3, -500.0, 1.0]).pass());
        assert!(judged_values(OutputFormat::F16, &[inf, -inf, 1.0], &[9e6, -7e4, 1.0]).pass());
        assert_eq!(judged_values(OutputFormat::F16, &[65504.0, inf, 1.0], &[9e6, 6e4, 1.0]).outside, 2);
        // At the edge either is right.
        for (got, want) in [(65504.0, 65519.0), (65504.0, 65521.0), (inf, 65519.0), (inf, 65521.0)] {
            assert_eq!(
                judged_values(OutputFormat::F16, &[got, 1.0], &[want, 1.0]).outside,
                0,
                "{got} {want}"
            );
        }
    }

    #[test]
    fn limits_are_what_rounding_costs() {
        let want = values(100_000);
        let of = |c| limit(&Formats { c, ..BF16 }, &want);
        assert!((1.4e-3..1.8e-3).contains(&of(OutputFormat::Bf16)));
        assert!((1.9e-4..2.6e-4).contains(&of(OutputFormat::F16)));
        assert!((2e-2..3e-2).contains(&of(OutputFormat::E4m3)));
        assert_eq!(of(OutputFormat::F32), 3e-5);
        // Scale factors cannot be judged alone: the values are.
        assert_eq!(judged_values(OutputFormat::Nvfp4, &[1.0, 2.0], &[1.0, 2.0]).frobenius, 0.0);
    }
}
