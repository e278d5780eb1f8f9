//! Compares results in bf16, f32, e4m3 and the block-scaled formats: each must lie between the two ends of the
//! reference's bounds, both rounded to the format.
//!
//! The rules for an element whose reference is x and whose bound is t:
//!
//! - Elements without scale factors: round(x - t) <= got <= round(x + t). round is to nearest even; for
//!   e4m3 it saturates.
//! - Scale factors. Let [lo, hi] be the range of the block's largest |x| when every x moves by its t and by
//!   2^-16 of itself (kernels use approximate reciprocals). NVFP4: within one code of those that the
//!   rule gives for lo and hi. MX: from the floor rule's code for lo to the round-up rule's code for hi;
//!   for one value the two are equal or one code apart. Padding is any number, not NaN.
//! - Elements of a block, for the step s = scale factor * tensor scale that the kernel wrote: as without
//!   scale factors, for x / s and (t + 2^-20 |x|) / s. Values beyond the largest element saturate.
//!
//! Where the reference is NaN, an element of a format with NaN is NaN, and an e2m1 is +6, as `cvt` gives.

use rayon::prelude::*;
use silumin_codegen::problem::{ByteScale, OutputFormat, ScaleSpec};

use super::{CheckReport, Partial, Rule, ScaleReport};
use crate::output::Output;
use crate::reference::Reference;
use silumin_formats::layout::{ATOM_COLUMNS, blocked_offset};
use silumin_formats::{bf16_from_f64, block_scale, e2m1, e4m3, element, f32_to_odd};

/// Relative room for approximate arithmetic in a scale factor: 2^-16.
const SCALE_ROOM: f64 = 1.0 / 65_536.0;

/// Relative room for approximate arithmetic in the division by a step: 2^-20.
const DIVISION_ROOM: f64 = 1.0 / 1_048_576.0;

pub(super) fn check(got: &Output, reference: &Reference) -> CheckReport {
    let n = reference.n();
    let rows: Vec<(Partial, ScaleReport)> =
        (0..reference.m()).into_par_iter().map(|row| judge_row(got, reference, row)).collect();
    let (parts, scales): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let rule = Rule::Rounded(got.format());
    let mut report = CheckReport::of(&parts, n, reference, rule, |index| {
        let (row, column) = (index / n, index % n);
        let step = block(got).map_or(1.0, |block| got.step(row, column / block).1);
        let value = got.element(index).unwrap_or(f64::NAN) * step;
        (value, round(got.format(), reference.exact()[index], step))
    });
    if let Some(spec) = got.format().scales() {
        let total = scales.into_iter().fold(ScaleReport::default(), |total, row| ScaleReport {
            scales: total.scales + row.scales,
            mismatches: total.mismatches + row.mismatches,
            off_rule: total.off_rule + row.off_rule,
            bad_pads: 0,
            first: total.first.or(row.first),
        });
        let total = ScaleReport { bad_pads: bad_pads(got, spec), ..total };
        report.pass &= total.mismatches == 0 && total.bad_pads == 0;
        report.scales = Some(total);
    }
    report
}

fn block(got: &Output) -> Option<usize> {
    got.format().scales().map(|scales| scales.block as usize)
}

fn judge_row(got: &Output, reference: &Reference, row: usize) -> (Partial, ScaleReport) {
    let n = reference.n();
    let (mut part, mut scales) = (Partial::default(), ScaleReport::default());
    let exact = &reference.exact()[row * n..][..n];
    let bound = |column: usize| match reference.bounds() {
        Some(bounds) => bounds[row * n + column],
        None => exact[column].abs() * 2f64.powi(-19),
    };
    let run = block(got).unwrap_or(n).max(1);
    for (index, values) in exact.chunks(run).enumerate() {
        let (code, step) = got.step(row, index);
        if let Some(spec) = got.format().scales() {
            judge_scale(
                got,
                spec,
                code,
                (row, index),
                values,
                &|offset| bound(index * run + offset),
                &mut scales,
            );
        }
        let room = if got.format().scales().is_some() { DIVISION_ROOM } else { 0.0 };
        for (offset, &value) in values.iter().enumerate() {
            let column = index * run + offset;
            let written = got.element(row * n + column).unwrap_or(f64::NAN) * step;
            let tolerance = bound(column) + room * value.abs();
            let share = judge(&mut part, got.format(), written, value, tolerance, step);
            if part.worst.is_none_or(|(_, most)| share > most) {
                part.worst = Some((column, share));
            }
        }
    }
    (part, scales)
}

/// Counts one element and returns its error as a share of the tolerance.
fn judge(part: &mut Partial, format: OutputFormat, got: f64, exact: f64, tolerance: f64, step: f64) -> f64 {
    let expected = round(format, exact, step);
    // NaN rounds to NaN at both ends.
    let [low, high] = [exact - tolerance, exact + tolerance].map(|end| round(format, end, step));
    if expected.is_finite() {
        if got.is_finite() {
            let difference = (got - expected).abs();
            part.max_abs = part.max_abs.max(difference);
            if expected.abs() >= 1.0 {
                part.max_rel = part.max_rel.max(difference / expected.abs());
            }
            let held = exact.clamp(-largest(format) * step, largest(format) * step);
            part.error_square += (got - held).powi(2);
            part.exact_square += held * held;
        } else {
            part.error_square = f64::INFINITY;
        }
    } else {
        part.non_finite += 1;
    }
    if got == expected || got.is_nan() && expected.is_nan() {
        return 0.0;
    }
    let end = if got > expected { high } else { low };
    let share = (got - expected) / (end - expected);
    if (low..=high).contains(&got) {
        return if share.is_finite() { share } else { 1.0 };
    }
    part.mismatches += 1;
    if !(got.is_finite() && expected.is_finite()) {
        part.special_mismatches += 1;
        return f64::INFINITY;
    }
    // No room at all, or none on this side: infinite.
    if share.is_finite() { share } else { f64::INFINITY }
}

/// Rounds `value` to the nearest value of the format under the block's step.
fn round(format: OutputFormat, value: f64, step: f64) -> f64 {
    match format {
        OutputFormat::F32 => f64::from(value as f32),
        OutputFormat::Bf16 => bf16_from_f64(value).to_f64(),
        OutputFormat::F16 => silumin_formats::f16_from_f64(value).to_f64(),
        OutputFormat::Nvfp4 | OutputFormat::Mxfp8 if step == 0.0 => 0.0,
        // Under a scale factor that is NaN nothing is right.
        OutputFormat::Nvfp4 | OutputFormat::Mxfp8 if step.is_nan() => value,
        OutputFormat::Nvfp4 => f64::from(e2m1::decode(e2m1::encode(f32_to_odd(value / step)))) * step,
        _ => f64::from(e4m3::decode(e4m3::encode(f32_to_odd(value / step)))) * step,
    }
}

/// The format's largest element, at which rounding saturates.
fn largest(format: OutputFormat) -> f64 {
    match format {
        OutputFormat::Nvfp4 => f64::from(e2m1::MAX),
        OutputFormat::E4m3 | OutputFormat::Mxfp8 => f64::from(e4m3::MAX),
        _ => f64::INFINITY,
    }
}

/// Checks and counts one scale factor.
fn judge_scale(
    got: &Output,
    spec: ScaleSpec<ByteScale>,
    code: u8,
    (row, column): (usize, usize),
    values: &[f64],
    bound: &dyn Fn(usize) -> f64,
    report: &mut ScaleReport,
) {
    // `max` passes over NaN, as the hardware's does.
    let amax = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let (low, high) = values.iter().enumerate().fold((0.0f64, 0.0f64), |(low, high), (offset, value)| {
        let (value, room) = (value.abs(), bound(offset));
        (low.max(value - room), high.max(value + room))
    });
    let (low, high) = (low * (1.0 - SCALE_ROOM), high * (1.0 + SCALE_ROOM));
    let last = element::max_scale_code(spec.format);
    let allowed = match spec.format {
        ByteScale::Ue4m3 => got.rule(low).saturating_sub(1)..=(got.rule(high) + 1).min(last),
        ByteScale::Ue8m0 => got.rule(low)..=block_scale::mx_up(high, f64::from(e4m3::MAX)),
    };
    report.scales += 1;
    let expected = got.rule(amax);
    if !allowed.contains(&code) {
        report.mismatches += 1;
        report.first.get_or_insert((row, column, code, expected));
    } else if code != expected {
        report.off_rule += 1;
    }
}

/// Number of padding bytes that are NaN.
fn bad_pads(got: &Output, spec: ScaleSpec<ByteScale>) -> usize {
    let columns = got.n() / spec.block as usize;
    let all_columns = columns.next_multiple_of(ATOM_COLUMNS);
    let all_rows = got.scales().len() / all_columns.max(1);
    // Rows of several matrices or groups have pads between them.
    let mut is_row = vec![false; all_rows];
    (0..got.m()).for_each(|row| is_row[got.scale_row(row)] = true);
    let is_nan = |row, column| {
        let code = got.scales()[blocked_offset(row, column, columns)];
        element::decode_scale(spec.format, code).is_nan()
    };
    (0..all_rows)
        .into_par_iter()
        .map(|row| {
            let from = if is_row[row] { columns } else { 0 };
            (from..all_columns).filter(|&column| is_nan(row, column)).count()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check_output;

    const M: usize = 40;
    const N: usize = 320;

    const FORMATS: [OutputFormat; 5] =
        [OutputFormat::Bf16, OutputFormat::F32, OutputFormat::E4m3, OutputFormat::Nvfp4, OutputFormat::Mxfp8];

    fn tensor_scale(format: OutputFormat) -> f32 {
        if format.has_tensor_scale() { 0.125 } else { 1.0 }
    }

    /// Values of both signs over some octaves, exact to 2^-18.
    fn reference() -> Reference {
        let exact: Vec<f64> = (0..M * N)
            .map(|i| ((i * 7919 % 10007) as f64 - 5003.0) / 700.0 * 2f64.powi((i / 64 % 9) as i32 - 4))
            .collect();
        let bounds = exact.iter().map(|value| value.abs() * 2f64.powi(-18)).collect();
        Reference::new(M, N, exact).unwrap().with_bounds(bounds).unwrap()
    }

    fn right(format: OutputFormat) -> Output {
        Output::encode(M, N, format, reference().exact(), tensor_scale(format)).unwrap()
    }

    fn judge(got: &Output) -> CheckReport {
        check_output(got, &reference()).unwrap()
    }

    #[test]
    fn what_is_rounded_once_passes() {
        for format in FORMATS {
            let report = judge(&right(format));
            assert!(report.pass, "{format}: {report}");
            assert_eq!((report.max_abs, report.mismatches, report.non_finite), (0.0, 0, 0));
            assert_eq!(report.elements, M * N);
            let most = if format.bits() > 8 { 2e-3 } else { 0.12 };
            assert!(report.rel_frobenius < most && report.rel_frobenius > 0.0, "{report}");
            assert_eq!(report.scales.map(|s| (s.mismatches, s.off_rule)), format.scales().map(|_| (0, 0)));
        }
    }

    #[test]
    fn errors_within_the_bounds_pass_and_twice_the_bounds_fail() {
        for format in FORMATS {
            let moved = |by: f64| {
                let values: Vec<f64> =
                    reference().exact().iter().map(|value| value * (1.0 + by * 2f64.powi(-18))).collect();
                judge(&Output::encode(M, N, format, &values, tensor_scale(format)).unwrap())
            };
            for by in [0.99, -0.99] {
                let report = moved(by);
                assert!(report.pass, "{format}: {report}");
                assert!(report.worst.is_some_and(|worst| worst.of_tolerance <= 1.0));
            }
            // Only f32 can tell so little from nothing; what is a percent off shows in any format.
            if format == OutputFormat::F32 {
                assert!(moved(2.0).mismatches > M * N / 2);
            }
            assert!(moved(2f64.powi(18) / 100.0).mismatches > M * N / 100, "{format}");
        }
    }

    #[test]
    fn one_step_in_one_element_fails() {
        for format in FORMATS {
            let right = right(format);
            for index in [0, N - 1, 7 * N + 31, M * N - 2] {
                // Neither a midpoint nor saturated, so that no neighbour is right as well.
                let mut codes = right.codes().to_vec();
                let byte = index * format.bits() as usize / 8;
                codes[byte] ^= if format == OutputFormat::Nvfp4 { 1 << (4 * (index % 2)) } else { 1 };
                let report = judge(&right.with_parts(codes, right.scales().to_vec()).unwrap());
                if format == OutputFormat::F32 {
                    // One unit of an f32 is within the bounds; a byte up it is not.
                    assert!(report.pass);
                    let mut codes = right.codes().to_vec();
                    codes[byte + 1] ^= 1;
                    let report = judge(&right.with_parts(codes, Vec::new()).unwrap());
                    assert_eq!(report.mismatches, 1, "{report}");
                    continue;
                }
                assert_eq!(report.mismatches, 1, "{format}: {report}");
                let worst = report.worst.unwrap();
                assert_eq!((worst.row, worst.column), (index / N, index % N));
                assert!(worst.of_tolerance > 1.0 && !report.pass);
            }
        }
    }

    #[test]
    fn structural_damage_fails() {
        type Damage<'a> = &'a dyn Fn(&mut [u8]);
        for format in FORMATS {
            let right = right(format);
            let row = right.codes().len() / M;
            let damage: [(&str, Damage<'_>); 4] = [
                ("two rows swapped", &|codes| codes[..2 * row].rotate_left(row)),
                ("shifted by an element or two", &|codes| codes.rotate_right((row / N).max(1))),
                ("a row of zeros", &|codes| codes[row..2 * row].fill(0)),
                ("one sign", &|codes| codes[row - 1] ^= 0x80),
            ];
            for (name, damage) in damage {
                let mut codes = right.codes().to_vec();
                damage(&mut codes);
                let report = judge(&right.with_parts(codes, right.scales().to_vec()).unwrap());
                assert!(!report.pass, "{format}, {name}");
                assert!(report.to_string().starts_with("FAIL: "), "{report}");
            }
        }
    }

    #[test]
    fn what_the_kernel_has_not_written_fails() {
        use crate::inputs::{Distribution, DualGemmInputs, Shape};
        use silumin_codegen::problem::{Formats, OperandFormat};
        let shape = Shape::new(M as u32, N as u32, 64);
        for c in FORMATS {
            let formats = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, c);
            let inputs = DualGemmInputs::generate_for(shape, formats, Distribution::Benchmark, 1).unwrap();
            let (codes, scales) = (inputs.initial_output_bytes(), inputs.initial_output_scales().unwrap());
            let scales = scales.unwrap_or_default();
            let right = right(c);
            let report = judge(&right.with_parts(codes.clone(), scales.clone()).unwrap());
            assert!(report.mismatches > M * N * 9 / 10, "{c}: {report}");
            // One row of elements, scale factors or pads left out is enough.
            let mut partly = right.codes().to_vec();
            let row = partly.len() / M;
            partly[row..2 * row].copy_from_slice(&codes[row..2 * row]);
            let report = judge(&right.with_parts(partly, right.scales().to_vec()).unwrap());
            assert!(report.mismatches > N / 2, "{c}: {report}");
            if !scales.is_empty() {
                let mut partly = right.scales().to_vec();
                partly[16..20].copy_from_slice(&scales[16..20]);
                let report = judge(&right.with_parts(right.codes().to_vec(), partly).unwrap());
                assert!(
                    !report.pass && report.scales.is_some_and(|scales| scales.mismatches == 4),
                    "{report}"
                );
                let mut pads = right.scales().to_vec();
                *pads.last_mut().unwrap() = scales[0];
                let report = judge(&right.with_parts(right.codes().to_vec(), pads).unwrap());
                assert!(!report.pass && report.scales.is_some_and(|s| s.bad_pads == 1 && s.mismatches == 0));
            }
        }
    }

    /// Writes the scale factors moved by some codes, and the elements that are right under them.
    fn rescaled(format: OutputFormat, by: i16) -> CheckReport {
        let right = right(format);
        let spec = format.scales().unwrap();
        let block = spec.block as usize;
        let mut scales = right.scales().to_vec();
        for row in 0..M {
            for column in 0..N / block {
                let code = &mut scales[blocked_offset(row, column, N / block)];
                *code = (i16::from(*code) + by) as u8;
            }
        }
        let right = right.with_parts(right.codes().to_vec(), scales).unwrap();
        let mut codes = right.codes().to_vec();
        for (index, value) in reference().exact().iter().enumerate() {
            let (_, step) = right.step(index / N, index % N / block);
            if format == OutputFormat::Nvfp4 {
                let shift = 4 * (index % 2);
                let code = e2m1::encode((value / step) as f32) << shift;
                codes[index / 2] = codes[index / 2] & !(0xF << shift) | code;
            } else {
                codes[index] = e4m3::encode((value / step) as f32);
            }
        }
        judge(&right.with_parts(codes, right.scales().to_vec()).unwrap())
    }

    #[test]
    fn scale_factors_are_within_a_code_of_the_rule() {
        for by in [1, -1] {
            let report = rescaled(OutputFormat::Nvfp4, by);
            assert!(report.pass, "{by}: {report}");
            assert_eq!(report.scales.unwrap().off_rule, M * N / 16);
        }
        for by in [2, -2, 5] {
            let report = rescaled(OutputFormat::Nvfp4, by);
            let scales = report.scales.unwrap();
            assert!(!report.pass && scales.mismatches > M * N / 16 * 9 / 10, "{by}: {report}");
            assert_eq!(report.mismatches, 0, "the elements are right under what is written: {report}");
            assert!(report.to_string().contains("scale factors are wrong (the first at row 0"), "{report}");
        }
        assert!(rescaled(OutputFormat::Mxfp8, 0).pass);
        for by in [-1, 2] {
            assert_eq!(rescaled(OutputFormat::Mxfp8, by).scales.unwrap().mismatches, M * N / 32);
        }
        // One up is the rule that rounds up, which is right only where the floor rule saturates.
        let up = rescaled(OutputFormat::Mxfp8, 1).scales.unwrap();
        assert!(up.mismatches > 0 && up.off_rule > 0 && up.mismatches + up.off_rule == M * N / 32);
    }

    #[test]
    fn wrong_nibbles_and_linear_scales_fail() {
        let right = right(OutputFormat::Nvfp4);
        let swapped: Vec<u8> = right.codes().iter().map(|byte| byte.rotate_left(4)).collect();
        assert!(judge(&right.with_parts(swapped, right.scales().to_vec()).unwrap()).mismatches > M * N / 3);
        for format in [OutputFormat::Nvfp4, OutputFormat::Mxfp8] {
            let right = self::right(format);
            let columns = N / format.scales().unwrap().block as usize;
            let mut linear = silumin_formats::layout::from_blocked(right.scales(), M, columns).unwrap();
            linear.resize(right.scales().len(), 0);
            let report = judge(&right.with_parts(right.codes().to_vec(), linear).unwrap());
            assert!(report.scales.unwrap().mismatches > M * columns / 3, "{report}");
        }
    }

    #[test]
    fn ends_of_the_formats_saturate_or_overflow() {
        let exact = [vec![1e6, -1e6, 5e38, -5e38, 1e-46, 0.0, -0.0, f64::NAN], vec![0.25; 24]].concat();
        let reference = Reference::new(1, 32, exact.clone()).unwrap();
        for format in FORMATS {
            let output = Output::encode(1, 32, format, &exact, tensor_scale(format)).unwrap();
            let report = check_output(&output, &reference).unwrap();
            assert!(report.pass, "{format}: {report}");
            let infinite = matches!(format, OutputFormat::Bf16 | OutputFormat::F32);
            let nan = usize::from(format != OutputFormat::Nvfp4);
            assert_eq!(report.non_finite, nan + if infinite { 2 } else { 0 }, "{format}");
            if infinite {
                let bytes = format.bytes() as usize;
                let mut codes = output.codes().to_vec();
                // The largest number in place of an infinity: the code before it.
                codes[3 * bytes - 1] = 0x7F;
                codes[3 * bytes - 2] = 0x7F;
                let report = check_output(&output.with_parts(codes, vec![]).unwrap(), &reference).unwrap();
                assert_eq!((report.mismatches, report.special_mismatches), (1, 1), "{report}");
            }
        }
    }

    #[test]
    fn zeros_have_a_scale_of_any_size_below_the_least() {
        let reference = Reference::new(1, 32, vec![1e-12; 32]).unwrap();
        let output = Output::encode(1, 32, OutputFormat::Nvfp4, &[1e-12; 32], 1.0).unwrap();
        assert_eq!((output.scales()[0], output.codes()), (0, &[0u8; 16][..]));
        assert!(check_output(&output, &reference).unwrap().pass);
        let any = output.with_parts(vec![0x53; 16], output.scales().to_vec()).unwrap();
        assert!(check_output(&any, &reference).unwrap().pass, "what they are multiplied with is zero");
    }

    #[test]
    fn another_size_is_refused() {
        let output = Output::encode(2, 32, OutputFormat::F32, &[0.0; 64], 1.0).unwrap();
        let reference = Reference::new(1, 64, vec![0.0; 64]).unwrap();
        assert!(check_output(&output, &reference).is_err());
        let empty = Output::encode(0, 32, OutputFormat::Mxfp8, &[], 1.0).unwrap();
        let report = check_output(&empty, &Reference::new(0, 32, vec![]).unwrap()).unwrap();
        assert!(report.pass && report.worst.is_none());
    }
}
