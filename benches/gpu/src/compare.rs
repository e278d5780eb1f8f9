//! How far C is from what it should be.

use half::{bf16, f16};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat};

/// Elements that one thread compares at a time.
const RUN: usize = 1 << 16;

/// What a comparison of every element found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// sqrt(sum (got - want)^2 / sum want^2), over the elements that are finite.
    pub frobenius: f64,
    /// The most that `frobenius` may be.
    pub limit: f64,
    /// The largest |got - want|.
    pub max_abs: f64,
    /// Elements off by more than rtol * |want| + atol, those that are not finite where they should be included.
    pub outside: u64,
    /// The tolerance of `outside`, relative.
    pub rtol: f64,
    /// And absolute: a share of the root mean square of C.
    pub atol: f64,
    /// Elements (of nvfp4 and mxfp8: scale factors) that still hold what was there before the launch.
    pub unwritten: u64,
    /// Elements that were compared.
    pub elements: u64,
    /// The worst element: its index in C, what it is, what it should be.
    pub worst: Option<(u64, f64, f64)>,
}

impl Errors {
    /// Whether the result is right.
    pub fn pass(&self) -> bool {
        self.outside == 0 && self.unwritten == 0 && self.frobenius <= self.limit
    }
}

/// The relative Frobenius error that is still right, and the relative tolerance of an element.
///
/// Rounding once to b significant bits costs up to 2^-b of a value, 0.41 of that on the average (root mean square over
/// mantissas); the limit of bf16 is a little above what its 8 bits cost (1.66e-3), that of f16 leaves room for what sums in
/// f32 cost. FP8 operands on Hopper are summed with 14 bits between promotions, which the limit for them allows for.
pub fn limits(formats: &Formats) -> (f64, f64) {
    let (frobenius, rtol) = match formats.c {
        OutputFormat::F32 => (2e-5, 1e-4),
        OutputFormat::F16 => (2.4e-4, 1.0 / 1024.0),
        OutputFormat::Bf16 => (1.8e-3, 1.0 / 128.0),
        OutputFormat::E4m3 => (3e-2, 1.0 / 8.0),
        OutputFormat::Mxfp8 => (4e-2, 1.0 / 4.0),
        _ => (1.2e-1, 1.0),
    };
    let narrow = |format| matches!(format, OperandFormat::E4m3 | OperandFormat::E5m2);
    match narrow(formats.a) || narrow(formats.b) {
        true => (frobenius + 1e-3, rtol + 4e-3),
        false => (frobenius, rtol),
    }
}

/// The absolute tolerance as a share of the root mean square of C.
fn atol_share(format: OutputFormat) -> f64 {
    match format {
        OutputFormat::F32 => 1e-4,
        OutputFormat::F16 | OutputFormat::Bf16 => 2e-3,
        OutputFormat::E4m3 | OutputFormat::Mxfp8 => 2e-2,
        _ => 2.5,
    }
}

/// What C holds before a launch: no kernel writes it, and in all float formats it is NaN.
pub const POISON: u8 = 0xFF;

/// Compares a C in bytes (f16, bf16 or f32) or, of the other formats, in decoded `values`, with `want`, row-major.
pub fn compare(formats: &Formats, bytes: &[u8], values: Option<&[f64]>, want: &[f64]) -> Errors {
    let (limit, rtol) = limits(formats);
    let square: f64 = want
        .par_chunks(RUN)
        .map(|run| run.iter().map(|w| if w.is_finite() { w * w } else { 0.0 }).sum::<f64>())
        .sum();
    let rms = (square / want.len().max(1) as f64).sqrt();
    let atol = atol_share(formats.c) * rms;
    let format = formats.c;
    let width = format.bytes() as usize;
    let part = |index: usize, want: &[f64]| {
        let start = index * RUN;
        let mut found = Errors::default();
        let mut worst = 0.0;
        for (place, &w) in want.iter().enumerate() {
            let at = start + place;
            let (got, poison) = match values {
                Some(values) => (values[at], false),
                None => {
                    let raw = &bytes[at * width..][..width];
                    (decode(format, raw), raw.iter().all(|byte| *byte == POISON))
                }
            };
            // Where the answer is beyond the format, infinity is right.
            let off = if got == w || (w.is_nan() && got.is_nan()) { 0.0 } else { (got - w).abs() };
            let finite = off.is_finite();
            found.unwritten += u64::from(poison);
            if finite {
                found.frobenius += off * off;
                found.max_abs = found.max_abs.max(off);
            }
            if !finite || off > rtol * w.abs() + atol {
                found.outside += 1;
            }
            let share =
                if finite { off / (rtol * w.abs() + atol).max(f64::MIN_POSITIVE) } else { f64::INFINITY };
            if share > worst || found.worst.is_none() {
                worst = share;
                found.worst = Some((at as u64, got, w));
            }
        }
        (found, worst)
    };
    let merge = |(mut x, wx): (Errors, f64), (y, wy): (Errors, f64)| {
        x.frobenius += y.frobenius;
        x.max_abs = x.max_abs.max(y.max_abs);
        x.outside += y.outside;
        x.unwritten += y.unwritten;
        if x.worst.is_none() || wy > wx {
            x.worst = y.worst;
        }
        (x, wx.max(wy))
    };
    let parts = want.par_chunks(RUN).enumerate().map(|(index, run)| part(index, run));
    let (mut found, _) = parts.reduce(|| (Errors::default(), f64::NEG_INFINITY), merge);
    found.frobenius = if square > 0.0 { (found.frobenius / square).sqrt() } else { found.frobenius.sqrt() };
    found.elements = want.len() as u64;
    (found.limit, found.rtol, found.atol) = (limit, rtol, atol);
    found
}

/// The value of a plain float of a format; 0 for a format that is none.
fn decode(format: OutputFormat, raw: &[u8]) -> f64 {
    match (format, raw) {
        (OutputFormat::F16, [x, y]) => f16::from_le_bytes([*x, *y]).to_f64(),
        (OutputFormat::Bf16, [x, y]) => bf16::from_le_bytes([*x, *y]).to_f64(),
        (OutputFormat::F32, [x, y, z, w]) => f32::from_le_bytes([*x, *y, *z, *w]).into(),
        (OutputFormat::E4m3, [x]) => silumin_runtime::format::e4m3::decode(*x).into(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: Formats = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);

    fn encoded(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| bf16::from_f64(*value).to_le_bytes()).collect()
    }

    fn values(count: usize) -> Vec<f64> {
        (0..count).map(|i| ((i * 2654435761) % 100_003) as f64 / 5e4 - 1.0).collect()
    }

    #[test]
    fn a_rounded_answer_passes_close_to_its_limit() {
        let want = values(200_000);
        let found = compare(&BF16, &encoded(&want), None, &want);
        assert!(found.pass(), "{found:?}");
        assert!((1.5e-3..1.75e-3).contains(&found.frobenius), "{found:?}");
        assert_eq!(found.elements, 200_000);
    }

    #[test]
    fn one_wrong_element_is_found_and_named() {
        let want = values(200_000);
        let mut got = want.clone();
        got[150_001] += 0.05;
        let found = compare(&BF16, &encoded(&got), None, &want);
        assert_eq!(found.outside, 1);
        assert_eq!(found.worst.map(|(at, ..)| at), Some(150_001));
        assert!(!found.pass() && found.frobenius < found.limit);
    }

    #[test]
    fn what_nothing_wrote_is_counted() {
        let want = values(70_000);
        let mut bytes = encoded(&want);
        bytes[4..8].fill(POISON);
        let found = compare(&BF16, &bytes, None, &want);
        assert_eq!((found.unwritten, found.outside), (2, 2));
        assert!(!found.pass());
    }

    #[test]
    fn a_little_too_much_everywhere_is_too_much() {
        let want = values(70_000);
        let got: Vec<f64> = want.iter().map(|value| value * 1.003).collect();
        let found = compare(&BF16, &encoded(&got), None, &want);
        assert_eq!(found.outside, 0);
        assert!(found.frobenius > found.limit && !found.pass());
    }

    #[test]
    fn infinity_is_right_where_it_is_the_answer() {
        let want = [f64::INFINITY, 1.0];
        assert!(compare(&BF16, &encoded(&want), None, &want).pass());
        assert_eq!(compare(&BF16, &encoded(&[1.0, 1.0]), None, &want).outside, 1);
        let decoded =
            compare(&Formats { c: OutputFormat::Nvfp4, ..BF16 }, &[], Some(&[1.0, 2.0]), &[1.0, 2.0]);
        assert_eq!((decoded.frobenius, decoded.outside), (0.0, 0));
    }
}
