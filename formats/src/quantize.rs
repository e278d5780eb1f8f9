//! Quantisers: real numbers to NVFP4 and to every other operand format.
//!
//! A scale factor follows from the largest magnitude of its block; then each element is divided by its scale. All
//! arithmetic is f32, rounded to nearest, ties to even, with subnormals kept, so a GPU that divides likewise
//! (`div.rn.f32`) gets the same bytes.
//!
//! | format | scale factor of a block | source |
//! |---|---|---|
//! | NVFP4 | the e4m3 nearest to amax / 6 / tensor scale | NVIDIA, "Introducing NVFP4"; Transformer Engine's recipe |
//! | the tensor scale | amax of the tensor / (6 * 448) | the same, and what ModelOpt calls `weight_scale_2` |
//! | MXFP4, MXFP8 | 2^(floor(log2(amax)) - emax), emax 2 (e2m1), 8 (e4m3), 15 (e5m2) | OCP Microscaling Formats 1.0, section 6.3 |
//! | e4m3 with f32 scale factors | amax / 448, or 1 if amax is 0 | DeepSeek-V3, arXiv 2412.19437, 3.3.2 |
//! | MXFP4, MXFP8, [`MxRule::Up`] | the least power of two that is not below amax / max | cuBLAS, Transformer Engine |
//!
//! A block of zeros has scale factor 0 in NVFP4 and 2^-127 in the MX formats, and elements 0.

use half::{bf16, f16};
use rayon::prelude::*;
use silumin_codegen::problem::{ByteScale, ElementKind, OperandFormat, ScaleFormat, ScaleSpec};

use super::matrix::code_bytes;
use super::{FormatError, Matrix, block_scale, checked_elements, e2m1, e4m3, element, fp4x2, repack};

/// The scale of the whole tensor, which multiplies every element beside its block's scale factor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum TensorScale {
    /// A scale of 1. In NVFP4 values above 6 * 448 = 2688 saturate, and blocks whose largest magnitude is below about
    /// 2^-10 * 6 become zero.
    #[default]
    One,
    /// The tensor's largest magnitude divided by the largest value of the format (NVFP4: 6 * 448), so that it becomes
    /// the largest element with the largest scale factor. It is 1 for bf16, f16 and the MX formats, which have enough
    /// range.
    FromMax,
    /// A given scale, from calibration; larger values saturate.
    Fixed(f32),
}

/// How scale factors of the MX formats are rounded to powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MxRule {
    /// Down, by the standard: elements that exceed the format's largest value after scaling saturate.
    #[default]
    Floor,
    /// Up, as cuBLAS and Transformer Engine round: nothing saturates, but a block may lose a bit of precision.
    Up,
}

/// A source number type of the quantisers; every value is exact in f32.
pub trait Real: Copy + Sync + sealed::Sealed {
    /// The number as f32.
    fn as_f32(self) -> f32;
}

mod sealed {
    /// Keeps the list of source types closed: a wider type would be rounded twice.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Real for f32 {
    fn as_f32(self) -> f32 {
        self
    }
}

impl Real for f16 {
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Real for bf16 {
    fn as_f32(self) -> f32 {
        self.to_f32()
    }
}

/// Quantises a row-major `[rows, k]` matrix to NVFP4.
///
/// For every 16 elements along K the scale is the e4m3 nearest to `amax / 6 / tensor_scale`, and
/// each element the e2m1 nearest to `x / (scale * tensor_scale)`, both ties to even and saturating,
/// as the usual host and GPU quantisers do. A scale that rounds down makes its largest element
/// saturate, by at most 1/16 of its value while the scale is a normal e4m3.
///
/// ```
/// use silumin_formats::quantize::{TensorScale, quantize};
/// # fn main() -> Result<(), silumin_formats::FormatError> {
/// let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin()).collect();
/// let matrix = quantize(&values, 2, 32, TensorScale::FromMax)?;
/// let worst = (0..64)
///     .map(|i| (matrix.value(i / 32, i % 32).unwrap_or(f64::NAN) - f64::from(values[i])).abs())
///     .fold(0.0, f64::max);
/// assert!(worst < 1.0 / 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When K is not a multiple of 16, `values` is not rows * k long, a value is NaN or infinite, or a
/// fixed tensor scale is not a positive finite number.
pub fn quantize<T: Real>(
    values: &[T],
    rows: usize,
    k: usize,
    tensor_scale: TensorScale,
) -> Result<Matrix, FormatError> {
    quantize_to(OperandFormat::Nvfp4, values, rows, k, tensor_scale)
}

/// Quantises a row-major `[rows, k]` matrix to `format`.
///
/// - NVFP4: see [`quantize`]; repacked formats: the same elements with their bits permuted;
/// - MX formats: the scale of 32 elements is [`block_scale::mx`] of the largest, each element the
///   nearest to `x / scale`, ties to even, saturating (OCP Microscaling Formats 1.0, section 6.3);
/// - e4m3 with an f32 scale factor for 1 x 128 or 128 x 128 elements: the scale is the largest magnitude over 448, or 1 where
///   all are zero, and each element the nearest to `x / scale`, ties to even;
/// - e4m3, e5m2: the nearest to `x / tensor_scale`, ties to even, saturating;
/// - bf16, f16: the same, and what is too large becomes infinite.
///
/// ```
/// use silumin_codegen::problem::OperandFormat;
/// use silumin_formats::quantize::{TensorScale, quantize_to};
/// # fn main() -> Result<(), silumin_formats::FormatError> {
/// let matrix = quantize_to(OperandFormat::Mxfp8, &[448.0f32; 32], 1, 32, TensorScale::One)?;
/// assert_eq!((matrix.scales(), matrix.codes()[0]), (&[127][..], 0x7E));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`quantize`], with the block of the format in place of 16.
pub fn quantize_to<T: Real>(
    format: OperandFormat,
    values: &[T],
    rows: usize,
    k: usize,
    tensor_scale: TensorScale,
) -> Result<Matrix, FormatError> {
    quantize_with(format, values, rows, k, tensor_scale, MxRule::Floor)
}

/// [`quantize_to`] with another rule for scale factors of the MX formats; others have none of them.
///
/// ```
/// use silumin_codegen::problem::OperandFormat;
/// use silumin_formats::quantize::{MxRule, TensorScale, quantize_with};
/// # fn main() -> Result<(), silumin_formats::FormatError> {
/// let of = |rule| quantize_with(OperandFormat::Mxfp4, &[7.0f32; 32], 1, 32, TensorScale::One, rule);
/// // 7 saturates to 6, or is rounded to 4 times 2, a tie between 6 and 8 in steps of 2.
/// assert_eq!(of(MxRule::Floor)?.value(0, 0), Some(6.0));
/// assert_eq!(of(MxRule::Up)?.value(0, 0), Some(8.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`quantize_to`].
pub fn quantize_with<T: Real>(
    format: OperandFormat,
    values: &[T],
    rows: usize,
    k: usize,
    tensor_scale: TensorScale,
    rule: MxRule,
) -> Result<Matrix, FormatError> {
    let elements = checked_elements(format, rows, k)?;
    if values.len() != elements {
        return Err(FormatError::Length {
            what: "the values",
            unit: "numbers",
            rows,
            k,
            expected: elements,
            got: values.len(),
        });
    }
    if let Some(index) = values.par_iter().position_first(|x| !x.as_f32().is_finite()) {
        return Err(FormatError::NotFinite {
            row: index / k,
            column: index % k,
            value: values[index].as_f32(),
        });
    }
    let tensor_scale = match (tensor_scale, largest(format)) {
        (TensorScale::One, _) | (TensorScale::FromMax, None) => 1.0,
        (TensorScale::Fixed(value), _) => value,
        (TensorScale::FromMax, Some(largest)) => {
            let amax = values.par_iter().map(|x| x.as_f32().abs()).reduce(|| 0.0, f32::max);
            scale_of(amax, largest)
        }
    };
    if !(tensor_scale.is_finite() && tensor_scale > 0.0) {
        return Err(FormatError::TensorScale { value: tensor_scale });
    }

    let kind = format.spec().element;
    let mut codes = vec![0; code_bytes(format, elements)];
    let Some(spec) = format.spec().scales else {
        // Runs of 16: whole bytes of every format.
        values
            .par_chunks(16)
            .zip(codes.par_chunks_mut(code_bytes(format, 16)))
            .with_min_len(1024)
            .for_each(|(run, bytes)| encode_run(kind, run, tensor_scale, bytes));
        return Matrix::new(format, rows, k, codes, Vec::new(), tensor_scale);
    };
    let ScaleFormat::Byte(scale_format) = spec.format else {
        let factors = encode_blocks(values, k, spec, kind, tensor_scale, &mut codes);
        let scales = factors.into_iter().flat_map(f32::to_le_bytes).collect();
        return Matrix::new(format, rows, k, codes, scales, tensor_scale);
    };
    let block = spec.block as usize;
    let mut scales = vec![0; elements / block];
    values
        .par_chunks_exact(block)
        .zip(codes.par_chunks_exact_mut(code_bytes(format, block)))
        .zip(&mut scales)
        .with_min_len(1024)
        .for_each(|((run, bytes), scale)| {
            let amax = run.iter().map(|x| x.as_f32().abs()).fold(0.0, f32::max);
            *scale = match scale_format {
                ByteScale::Ue4m3 => e4m3::encode(amax / e2m1::MAX / tensor_scale),
                ByteScale::Ue8m0 => {
                    let amax = f64::from(amax) / f64::from(tensor_scale);
                    match rule {
                        MxRule::Floor => block_scale::mx(amax, element::max_exponent(kind)),
                        MxRule::Up => block_scale::mx_up(amax, f64::from(element::max(kind))),
                    }
                }
            };
            // Below f32's smallest number both are zero: of such a block nothing is left.
            let step = element::decode_scale(scale_format, *scale) as f32 * tensor_scale;
            if step > 0.0 {
                encode_run(kind, run, step, bytes);
            }
        });
    if format.repacks().is_some() {
        repack::repack(&mut codes);
    }
    Matrix::new(format, rows, k, codes, scales, tensor_scale)
}

/// The scale that makes the largest magnitude the largest of the format. The floor keeps that of tiny values from becoming zero.
fn scale_of(amax: f32, largest: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (amax / largest).max(f32::MIN_POSITIVE) }
}

/// Writes the codes of 8-bit elements whose f32 scale factors `rows` x `block` elements share, and returns the factors.
fn encode_blocks<T: Real>(
    values: &[T],
    k: usize,
    spec: ScaleSpec,
    kind: ElementKind,
    tensor_scale: f32,
    codes: &mut [u8],
) -> Vec<f32> {
    let (rows, block) = (spec.rows as usize, spec.block as usize);
    let band = (rows * k).max(1);
    let of_band = |(values, codes): (&[T], &mut [u8])| -> Vec<f32> {
        let amax = |column: usize| {
            let runs = values.chunks(k).flat_map(|row| &row[column..column + block]);
            runs.map(|x| x.as_f32().abs()).fold(0.0, f32::max)
        };
        let factors: Vec<f32> = (0..k)
            .step_by(block)
            .map(|column| scale_of(amax(column) / tensor_scale, element::max(kind)))
            .collect();
        for (row, codes) in values.chunks(k).zip(codes.chunks_mut(k)) {
            for ((run, codes), scale) in row.chunks(block).zip(codes.chunks_mut(block)).zip(&factors) {
                encode_run(kind, run, scale * tensor_scale, codes);
            }
        }
        factors
    };
    values.par_chunks(band).zip(codes.par_chunks_mut(band)).flat_map_iter(of_band).collect()
}

/// The largest value of a format that takes a tensor scale; `None` for others.
fn largest(format: OperandFormat) -> Option<f32> {
    match format {
        OperandFormat::Nvfp4 | OperandFormat::Nvfp4Repacked => Some(e2m1::MAX * e4m3::MAX),
        OperandFormat::E4m3 | OperandFormat::E5m2 => Some(element::max(format.spec().element)),
        _ => None,
    }
}

/// Packs the codes of `values / step`.
fn encode_run<T: Real>(kind: ElementKind, values: &[T], step: f32, bytes: &mut [u8]) {
    let code = |value: &T| element::encode(kind, value.as_f32() / step);
    match kind {
        ElementKind::E2m1 => {
            for (pair, byte) in values.chunks_exact(2).zip(bytes) {
                *byte = fp4x2::pack(code(&pair[0]) as u8, code(&pair[1]) as u8);
            }
        }
        ElementKind::E4m3 | ElementKind::E5m2 => {
            for (value, byte) in values.iter().zip(bytes) {
                *byte = code(value) as u8;
            }
        }
        ElementKind::Bf16 | ElementKind::F16 => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *bytes = code(value).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The distance from `value` to the nearest value of a block with step `step`.
    fn least_error(value: f64, step: f64) -> f64 {
        e2m1::VALUES.iter().map(|&code| (f64::from(code) * step - value).abs()).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn every_element_is_the_nearest_and_every_scale_holds_the_maximum(
            values in prop::collection::vec(-3000.0f32..3000.0, 96),
            exponent in -20i32..4,
            from_max in any::<bool>(),
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(exponent)).collect();
            let choice = if from_max { TensorScale::FromMax } else { TensorScale::One };
            let matrix = quantize(&values, 3, 32, choice).unwrap();
            for (index, block) in values.chunks(16).enumerate() {
                let scale = f64::from(e4m3::decode(matrix.scales()[index]));
                let step = scale * f64::from(matrix.tensor_scale());
                let amax = block.iter().fold(0.0f32, |a, v| a.max(v.abs()));
                // The scale is the e4m3 nearest to amax / 6, unless it saturates.
                let wanted = f64::from(amax) / 6.0 / f64::from(matrix.tensor_scale());
                let spacing = (scale / 8.0).max(f64::from(e4m3::MIN_POSITIVE));
                prop_assert!((scale - wanted).abs() <= spacing / 2.0 * 1.0001 || wanted > 448.0);
                for (offset, &value) in block.iter().enumerate() {
                    let (row, column) = (index / 2, index % 2 * 16 + offset);
                    let got = matrix.value(row, column).unwrap();
                    let best = least_error(f64::from(value), step);
                    let error = (got - f64::from(value)).abs();
                    prop_assert!(error <= best * 1.000_001 + 1e-12, "{value} became {got}");
                }
            }
        }
    }

    #[test]
    fn values_of_the_format_come_back_exactly() {
        // Each block holds all eight magnitudes times a power of two, so that amax / 6 is exact.
        let values: Vec<f32> = (0..64).map(|i| e2m1::VALUES[i % 16] * 2f32.powi(i as i32 / 16 - 2)).collect();
        for scale in [TensorScale::One, TensorScale::Fixed(0.5)] {
            let matrix = quantize(&values, 2, 32, scale).unwrap();
            for (i, &value) in values.iter().enumerate() {
                assert_eq!(matrix.value(i / 32, i % 32), Some(f64::from(value)));
            }
        }
    }

    #[test]
    fn halves_quantise_as_the_same_numbers_in_f32() {
        let halves: Vec<f16> = (0..64).map(|i| f16::from_f32((i as f32).cos())).collect();
        let brains: Vec<bf16> = (0..64).map(|i| bf16::from_f32((i as f32).cos())).collect();
        let f16_as_f32: Vec<f32> = halves.iter().map(|v| v.to_f32()).collect();
        let bf16_as_f32: Vec<f32> = brains.iter().map(|v| v.to_f32()).collect();
        let scale = TensorScale::FromMax;
        assert_eq!(quantize(&halves, 2, 32, scale), quantize(&f16_as_f32, 2, 32, scale));
        assert_eq!(quantize(&brains, 2, 32, scale), quantize(&bf16_as_f32, 2, 32, scale));
    }

    #[test]
    fn a_tensor_scale_reaches_what_block_scales_cannot() {
        let values = [1e6f32; 16];
        let saturated = quantize(&values, 1, 16, TensorScale::One).unwrap();
        assert_eq!(saturated.value(0, 0), Some(2688.0));
        let scaled = quantize(&values, 1, 16, TensorScale::FromMax).unwrap();
        assert!((scaled.value(0, 0).unwrap() - 1e6).abs() < 1.0);
        let tiny = quantize(&[1e-40f32; 16], 1, 16, TensorScale::FromMax).unwrap();
        assert!(tiny.tensor_scale() > 0.0);
        let zeros = quantize(&[0f32; 16], 1, 16, TensorScale::FromMax).unwrap();
        assert_eq!((zeros.tensor_scale(), zeros.scales()), (1.0, &[0u8][..]));
    }

    #[test]
    fn wrong_input_is_refused() {
        let mut values = vec![1.0f32; 64];
        assert!(matches!(
            quantize(&values, 2, 24, TensorScale::One),
            Err(FormatError::KNotBlocked { k: 24, .. })
        ));
        assert!(matches!(
            quantize(&values, 3, 32, TensorScale::One),
            Err(FormatError::Length { expected: 96, got: 64, .. })
        ));
        assert!(matches!(
            quantize(&values, 2, 32, TensorScale::Fixed(0.0)),
            Err(FormatError::TensorScale { .. })
        ));
        values[37] = f32::INFINITY;
        assert_eq!(
            quantize(&values, 2, 32, TensorScale::One),
            Err(FormatError::NotFinite { row: 1, column: 5, value: f32::INFINITY })
        );
    }

    proptest! {
        #[test]
        fn every_format_takes_the_nearest_element(
            values in prop::collection::vec(-1.0f32..1.0, 384),
            exponent in -12i32..12,
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(exponent)).collect();
            for format in OperandFormat::ALL {
                let spec = format.spec();
                // The same 384 numbers in rows of whole blocks.
                let k = if spec.k_multiple == 128 { 128 } else { 64 };
                let rows = values.len() / k;
                let matrix = quantize_to(format, &values, rows, k, TensorScale::FromMax).unwrap();
                let grid: Vec<f64> = (0..=element::max_code(spec.element))
                    .map(|code| f64::from(element::decode(spec.element, code)))
                    .collect();
                for (index, &value) in values.iter().enumerate() {
                    let scale = spec.scales.map_or(1.0, |scales| {
                        let row = index / k / scales.rows as usize;
                        let columns = k / scales.block as usize;
                        let column = index % k / scales.block as usize;
                        element::scale_at(scales.format, matrix.scales(), row * columns + column)
                    });
                    let step = scale * f64::from(matrix.tensor_scale());
                    let error = |magnitude: f64| (magnitude * step - f64::from(value).abs()).abs();
                    let after = grid.partition_point(|&magnitude| magnitude * step < f64::from(value).abs());
                    let near = [after.saturating_sub(1), after.min(grid.len() - 1)];
                    let best = near.map(|code| error(grid[code])).into_iter().fold(f64::INFINITY, f64::min);
                    let got = matrix.value(index / k, index % k).unwrap();
                    let off = (got - f64::from(value)).abs();
                    prop_assert!(off <= best * 1.000_001 + 1e-30, "{format}: {value} became {got}");
                    prop_assert!(got == 0.0 || (got < 0.0) == (value < 0.0));
                }
            }
        }
    }

    #[test]
    fn tensor_scales_are_for_formats_without_range() {
        let values = [1e6f32; 128];
        for format in OperandFormat::ALL {
            let matrix = quantize_to(format, &values, 1, 128, TensorScale::FromMax).unwrap();
            let scaled = matches!(
                format.repacks().unwrap_or(format),
                OperandFormat::Nvfp4 | OperandFormat::E4m3 | OperandFormat::E5m2
            );
            assert_eq!(matrix.tensor_scale() != 1.0, scaled, "{format}");
            let value = matrix.value(0, 31).unwrap();
            let expected = if format == OperandFormat::F16 { f64::INFINITY } else { 1e6 };
            // What is between the largest e2m1 and the next power of two saturates.
            assert!(value == expected || (value - expected).abs() < 0.25 * expected, "{format}: {value}");
        }
    }
}
