//! A K-major operand on the host, in any operand format.

use rayon::prelude::*;
use silumin_codegen::problem::{ElementKind, OperandFormat, ScaleSpec};
use thiserror::Error;

use super::{e4m3, e5m2, element, fp4x2, repack};
use crate::layout::{self, LayoutError};

/// Why parts do not make a matrix of their format.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// K is not a whole number of scale blocks.
    #[error(
        "K = {k} is not a multiple of {block}, the elements that share a scale in {format}: pad K \
         with zeros to the next one"
    )]
    KNotBlocked {
        /// K as given, in elements.
        k: usize,
        /// Elements that share a scale factor.
        block: usize,
        /// The format.
        format: OperandFormat,
    },
    /// rows * K does not fit the address space.
    #[error("a matrix of {rows} x {k} elements is larger than the address space: split it by rows")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Elements a row.
        k: usize,
    },
    /// A buffer does not have the length that the shape requires.
    #[error(
        "{what} of a {rows} x {k} matrix take {expected} {unit}, but the buffer holds {got}: pass \
         exactly {expected}"
    )]
    Length {
        /// The buffer's content.
        what: &'static str,
        /// Unit in which the buffer's length is counted.
        unit: &'static str,
        /// Rows.
        rows: usize,
        /// Elements a row.
        k: usize,
        /// Required entries.
        expected: usize,
        /// Entries in the buffer.
        got: usize,
    },
    /// The tensor scale is not a positive finite number.
    #[error("the tensor scale is {value}, but it has to be finite and above 0: use 1 for none")]
    TensorScale {
        /// The tensor scale as given.
        value: f32,
    },
    /// An element is NaN or infinite.
    #[error(
        "element ({row}, {column}) is {value}: no scale makes NaN or infinity fit; clean the input \
         first"
    )]
    NotFinite {
        /// Row of the element.
        row: usize,
        /// Position of the element along K.
        column: usize,
        /// Its value.
        value: f32,
    },
}

/// A K-major matrix in an operand format: elements, a scale factor for every 16, 32 or 128 elements along K, of one row or of
/// 128, in formats that have them, and one f32 tensor scale. It can be A (`[M, K]`) or B (`[N, K]`, where each row is a column of the
/// product's right factor).
///
/// The value of element (r, k) is `element(code) * scale[r / rows][k / block] * tensor_scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    format: OperandFormat,
    rows: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    tensor_scale: f32,
}

impl Matrix {
    /// Makes a matrix from its parts.
    ///
    /// - `codes`: the elements, row-major; two e2m1 a byte, the even one in the low nibble; 16-bit
    ///   elements little-endian;
    /// - `scales`: `rows * k / block` scale codes, row-major (not the blocked order of
    ///   [`crate::layout`]); f32 ones little-endian, `ceil(rows / 128) * k / 128` where 128 rows share one; empty for a format
    ///   without;
    /// - `tensor_scale`: multiplies every element; 1 for none.
    ///
    /// # Errors
    ///
    /// When K is not a whole number of blocks, a buffer has another length, or the tensor scale is
    /// not a positive finite number.
    pub fn new(
        format: OperandFormat,
        rows: usize,
        k: usize,
        codes: Vec<u8>,
        scales: Vec<u8>,
        tensor_scale: f32,
    ) -> Result<Self, FormatError> {
        let elements = checked_elements(format, rows, k)?;
        let scale_bytes = scale_bytes(format, rows, k);
        for (what, buffer, expected) in
            [("the codes", &codes, code_bytes(format, elements)), ("the scales", &scales, scale_bytes)]
        {
            if buffer.len() != expected {
                let got = buffer.len();
                return Err(FormatError::Length { what, unit: "bytes", rows, k, expected, got });
            }
        }
        if !(tensor_scale.is_finite() && tensor_scale > 0.0) {
            return Err(FormatError::TensorScale { value: tensor_scale });
        }
        Ok(Self { format, rows, k, codes, scales, tensor_scale })
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> OperandFormat {
        self.format
    }

    /// Rows: M for A, N for B.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Codes of the elements, row-major; see [`Matrix::new`].
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scale codes, row-major `[rows, K / block]`, or those of f32, see [`Matrix::new`]; empty for formats without scale factors.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// The scale factors as a kernel reads them: f32 ones as they are, others in the blocked layout ([`layout::to_blocked`]).
    /// Empty for formats without scale factors.
    ///
    /// # Errors
    ///
    /// When the padded scales do not fit the address space.
    pub fn blocked_scales(&self) -> Result<Vec<u8>, LayoutError> {
        kernel_scales(self.format, &self.scales, self.rows, self.k)
    }

    /// The scale factors of a range of rows as a kernel reads them: blocked ones padded to whole blocks as for a matrix of
    /// these rows only, f32 ones of all blocks of 128 rows that begin in the range. Rows beyond the last are skipped. Empty
    /// for formats without scale factors.
    ///
    /// # Errors
    ///
    /// When the padded scales do not fit the address space.
    pub fn blocked_scales_of(&self, rows: std::ops::Range<usize>) -> Result<Vec<u8>, LayoutError> {
        let rows = rows.start.min(self.rows)..rows.end.clamp(rows.start.min(self.rows), self.rows);
        let before = |row| scale_bytes(self.format, row, self.k);
        let scales = &self.scales[before(rows.start)..before(rows.end)];
        kernel_scales(self.format, scales, rows.len(), self.k)
    }

    /// The scale of the whole tensor, which a kernel applies in its epilogue.
    #[must_use]
    pub fn tensor_scale(&self) -> f32 {
        self.tensor_scale
    }

    /// Value of element (`row`, `column`), or `None` outside the matrix.
    #[must_use]
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        if row >= self.rows || column >= self.k {
            return None;
        }
        let mut out = [0.0];
        self.decode_row(row, column, &mut out);
        Some(out[0])
    }

    /// Writes the values of `row` from `k_start` on to `out`. They are exact in f64, apart from one rounding of the
    /// product with the tensor scale. Positions outside the matrix give zero, as in a TMA load.
    pub fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        let available = if row < self.rows { self.k.saturating_sub(k_start) } else { 0 };
        let (mut inside, outside) = out.split_at_mut(available.min(out.len()));
        outside.fill(0.0);
        if inside.is_empty() {
            return;
        }
        let spec = self.format.spec();
        let row_bytes = code_bytes(self.format, self.k);
        let codes = &self.codes[row * row_bytes..][..row_bytes];
        let tensor_scale = f64::from(self.tensor_scale);
        let Some(ScaleSpec { format, block, rows: shared }) = spec.scales else {
            decode_run(spec.element, codes, k_start, tensor_scale, inside);
            return;
        };
        let block = block as usize;
        let first = row / shared as usize * (self.k / block);
        let mut column = k_start;
        while !inside.is_empty() {
            // To the end of the block, or of what is asked for.
            let run = (block - column % block).min(inside.len());
            let (now, later) = inside.split_at_mut(run);
            let scale = element::scale_at(format, &self.scales, first + column / block) * tensor_scale;
            match self.format.repacks() {
                None => decode_run(spec.element, codes, column, scale, now),
                Some(_) => {
                    // A block of scale factors has 16 or 32 elements: whole groups of 8 bytes.
                    let (mut copy, bytes) = ([0; 16], code_bytes(self.format, block));
                    copy[..bytes].copy_from_slice(&codes[column / block * bytes..][..bytes]);
                    repack::restore(&mut copy[..bytes]);
                    decode_run(spec.element, &copy[..bytes], column % block, scale, now);
                }
            }
            (inside, column) = (later, column + run);
        }
    }
}

impl Matrix {
    /// Converts between a 4-bit format and its repacked form ([`OperandFormat::repacks`]). Values, scale factors and the tensor
    /// scale do not change. `None` if neither format repacks the other; the matrix itself if `format` is its own.
    #[must_use]
    pub fn in_order_of(mut self, format: OperandFormat) -> Option<Self> {
        if format != self.format {
            match (self.format.repacks(), format.repacks()) {
                (from, _) if from == Some(format) => repack::restore(&mut self.codes),
                (_, to) if to == Some(self.format) => repack::repack(&mut self.codes),
                _ => return None,
            }
        }
        Some(Self { format, ..self })
    }

    /// Decodes a range of rows to f32. `out` has room for exactly these rows.
    pub fn decode_row_range(&self, rows: std::ops::Range<usize>, out: &mut [f32]) {
        let k = self.k.max(1);
        out.par_chunks_mut(k).zip(rows).for_each_init(
            || vec![0.0; k],
            |values, (out, row)| {
                self.decode_row(row, 0, &mut values[..out.len()]);
                out.iter_mut().zip(values.iter()).for_each(|(out, value)| *out = *value as f32);
            },
        );
    }
}

/// Writes the values of a row's elements from `start` on, times `scale`, to `out`.
fn decode_run(kind: ElementKind, codes: &[u8], start: usize, scale: f64, out: &mut [f64]) {
    match kind {
        ElementKind::E2m1 => {
            // An odd element is in a byte that starts before it.
            let (first, out) = out.split_at_mut((start % 2).min(out.len()));
            if let [first] = first {
                *first = fp4x2::PAIRS[usize::from(codes[start / 2])][1] * scale;
            }
            let start = start + first.len();
            for (pair, &byte) in out.chunks_mut(2).zip(&codes[start / 2..]) {
                let [even, odd] = fp4x2::PAIRS[usize::from(byte)];
                pair[0] = even * scale;
                if let Some(value) = pair.get_mut(1) {
                    *value = odd * scale;
                }
            }
        }
        ElementKind::E4m3 | ElementKind::E5m2 => {
            let values = if kind == ElementKind::E4m3 { &e4m3::VALUES } else { &e5m2::VALUES };
            for (value, &code) in out.iter_mut().zip(&codes[start..]) {
                *value = f64::from(values[usize::from(code)]) * scale;
            }
        }
        ElementKind::Bf16 => {
            for (value, &bytes) in out.iter_mut().zip(codes[2 * start..].as_chunks::<2>().0) {
                *value = f64::from(f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)) * scale;
            }
        }
        ElementKind::F16 => {
            for (value, &bytes) in out.iter_mut().zip(codes[2 * start..].as_chunks::<2>().0) {
                *value = f64::from(element::decode_f16(u16::from_le_bytes(bytes))) * scale;
            }
        }
    }
}

/// Bytes that `elements` take in the format.
pub fn code_bytes(format: OperandFormat, elements: usize) -> usize {
    // Elements fit the address space eight times: see `checked_elements`.
    elements * format.spec().element_bits as usize / 8
}

/// Bytes of the scale factors of a matrix whose K is whole blocks, row-major.
pub fn scale_bytes(format: OperandFormat, rows: usize, k: usize) -> usize {
    format.spec().scales.map_or(0, |scales| scales.count(rows, k) * scales.format.bytes() as usize)
}

/// Row-major scale factors of a matrix as a kernel reads them.
///
/// # Errors
///
/// When the padded scales do not fit the address space.
pub fn kernel_scales(
    format: OperandFormat,
    scales: &[u8],
    rows: usize,
    k: usize,
) -> Result<Vec<u8>, LayoutError> {
    match format.spec().scales {
        Some(spec) if spec.format.in_mma() => layout::to_blocked(scales, rows, k / spec.block as usize),
        Some(_) => Ok(scales.to_vec()),
        None => Ok(Vec::new()),
    }
}

/// rows * K, or an error if the format cannot hold such a matrix.
pub fn checked_elements(format: OperandFormat, rows: usize, k: usize) -> Result<usize, FormatError> {
    let block = format.spec().scales.map_or(1, |scales| scales.block as usize);
    if !k.is_multiple_of(block) {
        return Err(FormatError::KNotBlocked { k, block, format });
    }
    // Room for eight bytes an element, which a decoded copy takes.
    match rows.checked_mul(k) {
        Some(elements) if elements <= isize::MAX as usize / 8 => Ok(elements),
        _ => Err(FormatError::TooLarge { rows, k }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    fn random(format: OperandFormat, rows: usize, k: usize, tensor_scale: f32) -> Matrix {
        let mut rng = ChaCha8Rng::seed_from_u64(6);
        let mut codes = vec![0; code_bytes(format, rows * k)];
        rng.fill_bytes(&mut codes);
        let scales = match format.spec().scales {
            Some(spec) if !spec.format.in_mma() => (0..spec.count(rows, k))
                .flat_map(|_| (1.0 + (rng.next_u32() >> 8) as f32).to_le_bytes())
                .collect(),
            _ => (0..scale_bytes(format, rows, k)).map(|_| (rng.next_u32() % 0x7F) as u8).collect(),
        };
        Matrix::new(format, rows, k, codes, scales, tensor_scale).unwrap()
    }

    /// The definition, by way of the crates that know each format.
    fn expected(matrix: &Matrix, row: usize, column: usize) -> f64 {
        let index = row * matrix.k + column;
        let pair = || [matrix.codes[2 * index], matrix.codes[2 * index + 1]];
        let value = match matrix.format.spec().element {
            ElementKind::E2m1 => {
                let mut group: [u8; 8] = matrix.codes.as_chunks().0[index / 16];
                if matrix.format.repacks().is_some() {
                    repack::restore(&mut group);
                }
                let code = fp4x2::get(&group, index % 16).unwrap();
                f64::from(microfloat::f4e2m1fn::from_bits(code).to_f32())
            }
            ElementKind::E4m3 => f64::from(microfloat::f8e4m3fn::from_bits(matrix.codes[index]).to_f32()),
            ElementKind::E5m2 => f64::from(microfloat::f8e5m2::from_bits(matrix.codes[index]).to_f32()),
            ElementKind::Bf16 => half::bf16::from_le_bytes(pair()).to_f64(),
            ElementKind::F16 => half::f16::from_le_bytes(pair()).to_f64(),
        };
        let factors = |rows| {
            let place = 4 * (row / rows * (matrix.k / 128) + column / 128);
            f64::from(f32::from_le_bytes(matrix.scales[place..place + 4].try_into().unwrap()))
        };
        let scale = match matrix.format {
            OperandFormat::E4m3Vector128 => factors(1),
            OperandFormat::E4m3Block128 => factors(128),
            OperandFormat::Nvfp4 | OperandFormat::Nvfp4Repacked => {
                f64::from(microfloat::f8e4m3fn::from_bits(matrix.scales[index / 16]).to_f32())
            }
            OperandFormat::Mxfp4
            | OperandFormat::Mxfp4Repacked
            | OperandFormat::Mxfp8
            | OperandFormat::Mxfp8E5m2 => {
                f64::from(microfloat::f8e8m0fnu::from_bits(matrix.scales[index / 32]).to_f32())
            }
            _ => 1.0,
        };
        value * scale * f64::from(matrix.tensor_scale)
    }

    #[test]
    fn every_window_decodes_as_the_definition_says() {
        for format in OperandFormat::ALL {
            // Rows, and columns, in two blocks of 128.
            let wide = format.spec().k_multiple == 128;
            let (rows, k) = if wide { (130, 256) } else { (3, 96) };
            let matrix = random(format, rows, k, 0.25);
            for row in (0..4).chain(rows - 3..=rows) {
                for start in (0..20).chain(28..36).chain(k - 6..k + 2) {
                    for length in (0..40).chain([100]) {
                        let mut out = vec![f64::NAN; length];
                        matrix.decode_row(row, start, &mut out);
                        for (offset, &value) in out.iter().enumerate() {
                            let column = start + offset;
                            let inside = row < rows && column < k;
                            let expected = if inside { expected(&matrix, row, column) } else { 0.0 };
                            let same = value == expected || value.is_nan() && expected.is_nan();
                            assert!(same, "{format}, row {row}, column {column}: {value}, not {expected}");
                        }
                    }
                }
            }
            let value = matrix.value(rows - 1, k - 1).unwrap();
            assert!(value == expected(&matrix, rows - 1, k - 1) || value.is_nan());
            assert_eq!([matrix.value(rows, 0), matrix.value(0, k)], [None, None]);
        }
    }

    #[test]
    fn wrong_parts_are_refused() {
        let new = |rows, k, codes, scales, tensor_scale| {
            Matrix::new(OperandFormat::Nvfp4, rows, k, codes, scales, tensor_scale)
        };
        assert!(matches!(
            new(1, 24, vec![0; 12], vec![0; 1], 1.0),
            Err(FormatError::KNotBlocked { k: 24, block: 16, .. })
        ));
        assert!(matches!(
            new(2, 32, vec![0; 31], vec![0; 4], 1.0),
            Err(FormatError::Length { expected: 32, got: 31, .. })
        ));
        assert!(matches!(
            new(2, 32, vec![0; 32], vec![0; 5], 1.0),
            Err(FormatError::Length { expected: 4, got: 5, .. })
        ));
        assert!(matches!(new(usize::MAX, 32, vec![], vec![], 1.0), Err(FormatError::TooLarge { .. })));
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(
                new(1, 16, vec![0; 8], vec![0; 1], scale),
                Err(FormatError::TensorScale { .. })
            ));
        }
        let text = new(1, 24, vec![], vec![], 1.0).unwrap_err().to_string();
        assert!(text.contains("K = 24") && text.contains("16"), "{text}");
        let plain = |k, codes, scales| Matrix::new(OperandFormat::Bf16, 2, k, codes, scales, 1.0);
        assert!(plain(5, vec![0; 20], vec![]).is_ok());
        assert!(matches!(plain(5, vec![0; 20], vec![0]), Err(FormatError::Length { expected: 0, .. })));
        assert!(matches!(plain(5, vec![0; 10], vec![]), Err(FormatError::Length { expected: 20, .. })));
    }

    #[test]
    fn empty_matrices_hold_nothing() {
        for format in OperandFormat::ALL {
            for (rows, k) in [(0, 0), (0, 128), (5, 0)] {
                let matrix = Matrix::new(format, rows, k, vec![], vec![], 1.0).unwrap();
                let mut out = [1.0; 4];
                matrix.decode_row(0, 0, &mut out);
                assert_eq!(out, [0.0; 4]);
            }
        }
    }
}
