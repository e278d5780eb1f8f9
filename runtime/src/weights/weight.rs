//! A borrowed matrix of weights.

use std::ops::Range;

use silumin_codegen::problem::{ByteScale, OperandFormat, ScaleFormat, ScaleSpec};

use super::WeightError;
use silumin_formats::quantize::{MxRule, TensorScale, quantize_with};
use silumin_formats::{
    FormatError, Matrix, checked_elements, code_bytes, element, kernel_scales, scale_bytes,
};

/// Rows that are requantised at once: whole blocks that share scale factors.
const BAND: usize = 512;

/// A scale for each row of a matrix, borrowed as checkpoints have them: f32 or bf16, little-endian.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowScales<'a> {
    bytes: &'a [u8],
    /// Bytes of a scale.
    size: usize,
}

impl<'a> RowScales<'a> {
    /// Scales in f32, four bytes each.
    #[must_use]
    pub fn f32(bytes: &'a [u8]) -> Self {
        RowScales { bytes, size: 4 }
    }

    /// Scales in bf16, two bytes each.
    #[must_use]
    pub fn bf16(bytes: &'a [u8]) -> Self {
        RowScales { bytes, size: 2 }
    }

    /// The scales, in the order of the rows.
    pub fn values(self) -> impl Iterator<Item = f32> + 'a {
        self.bytes.chunks_exact(self.size).map(|bytes| match *bytes {
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            [a, b] => half::bf16::from_le_bytes([a, b]).to_f32(),
            // Scales have two or four bytes.
            _ => f32::NAN,
        })
    }

    fn slice(self, rows: Range<usize>) -> Self {
        RowScales { bytes: &self.bytes[rows.start * self.size..rows.end * self.size], ..self }
    }
}

/// A `[N, K]` matrix of weights, K contiguous, in one of the operand formats. It borrows its bytes, from a mapped
/// file for example, in the order that checkpoints have.
///
/// The value of element (n, k) is `element(code) * scale[n / rows][k / block] * tensor_scale`, `rows` being 128 where rows share
/// scale factors and 1 elsewhere, times `row_scale[n]` where rows have
/// scales of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight<'a> {
    format: OperandFormat,
    rows: usize,
    k: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    tensor_scale: f32,
    row_scales: Option<RowScales<'a>>,
}

impl<'a> Weight<'a> {
    /// Weights from codes, scale factors and tensor scale:
    ///
    /// - `codes`: the elements, row-major; two e2m1 a byte, the even one in the low nibble; 16-bit elements
    ///   little-endian;
    /// - `scales`: `[rows, k / block]` scale factors, row-major (not the blocked order of [`silumin_formats::layout`]); for
    ///   `e4m3_128x128` `[ceil(rows / 128), k / 128]` in f32 or bf16, told apart by their length; empty for a format without;
    /// - `tensor_scale`: multiplies every element; 1 for none.
    ///
    /// ```
    /// use silumin_codegen::problem::OperandFormat;
    /// use silumin_runtime::weights::Weight;
    ///
    /// // One row of 32: two blocks of NVFP4, all 1 times 0.5 and all 6 times 2.
    /// let codes = [[0x22; 8], [0x77; 8]].concat();
    /// let weight = Weight::new(OperandFormat::Nvfp4, 1, 32, &codes, &[0x30, 0x40], 10.0)?;
    /// assert_eq!(weight.to_matrix()?.value(0, 31), Some(120.0));
    /// # Ok::<(), silumin_runtime::weights::WeightError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// K that is not a whole number of blocks, a buffer of another length, a tensor scale that is not finite and above 0,
    /// a scale factor that is NaN or has a sign.
    pub fn new(
        format: OperandFormat,
        rows: usize,
        k: usize,
        codes: &'a [u8],
        scales: &'a [u8],
        tensor_scale: f32,
    ) -> Result<Self, WeightError> {
        let elements = checked_elements(format, rows, k)?;
        let spec = format.spec().scales;
        let factors = scale_bytes(format, rows, k);
        let halves = spec.is_some_and(|spec| spec.format == ScaleFormat::F32) && scales.len() == factors / 2;
        for (what, buffer, expected) in [
            ("the codes", codes, code_bytes(format, elements)),
            ("the scales", scales, if halves { factors / 2 } else { factors }),
        ] {
            if buffer.len() != expected {
                let got = buffer.len();
                return Err(FormatError::Length { what, unit: "bytes", rows, k, expected, got }.into());
            }
        }
        if !(tensor_scale.is_finite() && tensor_scale > 0.0) {
            return Err(FormatError::TensorScale { value: tensor_scale }.into());
        }
        let weight = Self { format, rows, k, codes, scales, tensor_scale, row_scales: None };
        match spec {
            Some(ScaleSpec { format: ScaleFormat::Byte(format), block, .. }) => {
                check_scales(format, scales, k / block as usize)?;
            }
            Some(ScaleSpec { format: ScaleFormat::F32, block, .. }) => {
                weight.check_factors(k / block as usize)?
            }
            None => {}
        }
        Ok(weight)
    }

    /// A matrix on the host as weights.
    ///
    /// # Errors
    ///
    /// [`WeightError::ScaleFactor`].
    pub fn of(matrix: &'a Matrix) -> Result<Self, WeightError> {
        let (codes, scales) = (matrix.codes(), matrix.scales());
        Self::new(matrix.format(), matrix.rows(), matrix.k(), codes, scales, matrix.tensor_scale())
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> OperandFormat {
        self.format
    }

    /// N.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// K, elements.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The codes of the elements: see [`Weight::new`].
    #[must_use]
    pub fn codes(&self) -> &'a [u8] {
        self.codes
    }

    /// Scale factors, row-major as they were given (f32 ones perhaps in bf16); empty for formats without them.
    #[must_use]
    pub fn scales(&self) -> &'a [u8] {
        self.scales
    }

    /// Bytes of a scale factor: 1, or 4 or 2 for those in f32 or bf16. 1 for formats without them.
    fn factor_bytes(&self) -> usize {
        let count = self.format.spec().scales.map_or(0, |spec| spec.count(self.rows, self.k));
        self.scales.len().checked_div(count).unwrap_or(1)
    }

    /// f32 scale factors, whatever the checkpoint has them in.
    fn factors(&self) -> impl Iterator<Item = f32> + 'a {
        RowScales { bytes: self.scales, size: self.factor_bytes() }.values()
    }

    /// Checks that all f32 scale factors are finite magnitudes.
    fn check_factors(&self, columns: usize) -> Result<(), WeightError> {
        let wrong = |value: &f32| !(value.is_finite() && *value >= 0.0);
        match self.factors().enumerate().find(|(_, value)| wrong(value)) {
            Some((index, value)) => {
                Err(WeightError::BlockScale { row: index / columns, column: index % columns, value })
            }
            None => Ok(()),
        }
    }

    /// Scale factors as a [`Matrix`] has them.
    fn matrix_scales(&self) -> Vec<u8> {
        match self.factor_bytes() {
            2 => self.factors().flat_map(f32::to_le_bytes).collect(),
            _ => self.scales.to_vec(),
        }
    }

    /// The same weights in MXFP8, for chips whose MMAs take scale factors of 32 elements: the least power of two with which no
    /// element saturates. It is exact where the scale factors of blocks are powers of two. Otherwise elements are rounded once
    /// more, by at most 1/16 of their value, or of the smallest normal e4m3 of their block.
    ///
    /// # Errors
    ///
    /// [`WeightError::RowsScaled`] for rows with scales of their own; values that are NaN or too large for f32.
    pub fn to_mxfp8(&self) -> Result<Matrix, WeightError> {
        let plain = Self { tensor_scale: 1.0, ..*self };
        let (format, rule) = (OperandFormat::Mxfp8, MxRule::Up);
        let mut codes = Vec::with_capacity(code_bytes(format, self.rows * self.k));
        let mut scales = Vec::with_capacity(scale_bytes(format, self.rows, self.k));
        // Some rows at a time, which takes little memory beside the result.
        for start in (0..self.rows).step_by(BAND) {
            let rows = BAND.min(self.rows - start);
            let mut values = vec![0.0; rows * self.k];
            plain.slice(start..start + rows)?.to_matrix()?.decode_row_range(0..rows, &mut values);
            let band = quantize_with(format, &values, rows, self.k, TensorScale::One, rule);
            let band = band.map_err(|error| match error {
                FormatError::NotFinite { row, column, value } => {
                    FormatError::NotFinite { row: start + row, column, value }
                }
                other => other,
            })?;
            codes.extend_from_slice(band.codes());
            scales.extend_from_slice(band.scales());
        }
        Ok(Matrix::new(format, self.rows, self.k, codes, scales, self.tensor_scale)?)
    }

    /// Copies NVFP4 or MXFP4 weights `[rows, K]` to the repacked form of their format ([`OperandFormat::repacks`]), which Hopper's
    /// kernels decode to bf16 with fewer instructions. Values and scale factors do not change. Repacked weights are copied
    /// unchanged.
    ///
    /// ```
    /// use silumin_codegen::problem::OperandFormat;
    /// use silumin_runtime::weights::Weight;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let codes: Vec<u8> = (0..16).collect();
    /// let weight = Weight::new(OperandFormat::Nvfp4, 1, 32, &codes, &[0x38; 2], 1.0)?;
    /// let repacked = weight.to_repacked()?;
    /// assert_ne!(repacked.codes(), codes);
    /// assert_eq!(repacked.value(0, 31), weight.to_matrix()?.value(0, 31));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WeightError::NotRepacked`] for weights in other formats; [`WeightError::RowsScaled`] for rows with scales of their own.
    pub fn to_repacked(&self) -> Result<Matrix, WeightError> {
        let repacked = self.format.repacked().unwrap_or(self.format);
        let matrix = self.to_matrix()?.in_order_of(repacked);
        matrix
            .filter(|matrix| matrix.format().repacks().is_some())
            .ok_or(WeightError::NotRepacked { format: self.format })
    }

    /// Converts the weights to MXFP8 or to a repacked format, without scales of rows. `None` if they are in `format` already, or if
    /// kernels read them unconverted.
    pub(crate) fn converted(&self, format: OperandFormat) -> Result<Option<Matrix>, WeightError> {
        if format == self.format {
            Ok(None)
        } else if format == OperandFormat::Mxfp8 {
            self.to_mxfp8().map(Some)
        } else if format.repacks().is_some() {
            self.without_row_scales().to_repacked().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Views what [`converted`](Self::converted) returned as a weight with this one's scales of rows.
    pub(crate) fn with_elements_of<'m>(&self, matrix: &'m Matrix) -> Result<Weight<'m>, WeightError>
    where
        'a: 'm,
    {
        let converted = Weight::of(matrix)?;
        self.row_scales.map_or(Ok(converted), |scales| converted.with_row_scales(scales))
    }

    /// The scale of the whole tensor.
    #[must_use]
    pub fn tensor_scale(&self) -> f32 {
        self.tensor_scale
    }

    /// The same weight with another tensor scale.
    ///
    /// # Errors
    ///
    /// One that is not finite and above 0.
    pub fn with_tensor_scale(self, tensor_scale: f32) -> Result<Self, WeightError> {
        if tensor_scale.is_finite() && tensor_scale > 0.0 {
            Ok(Self { tensor_scale, ..self })
        } else {
            Err(FormatError::TensorScale { value: tensor_scale }.into())
        }
    }

    /// The same weight with a scale for each row, beside that of the whole tensor: FP8 checkpoints of LLM Compressor and
    /// FBGEMM have such scales.
    ///
    /// # Errors
    ///
    /// Another number of scales than rows; [`WeightError::RowScale`] for one that is not finite and above 0.
    pub fn with_row_scales(self, row_scales: RowScales<'a>) -> Result<Self, WeightError> {
        let (rows, k) = (self.rows, self.k);
        let (got, expected) = (row_scales.bytes.len(), rows * row_scales.size);
        if got != expected {
            let what = "the scales of rows";
            return Err(FormatError::Length { what, unit: "bytes", rows, k, expected, got }.into());
        }
        match row_scales.values().enumerate().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((row, value)) => Err(WeightError::RowScale { row, value }),
            None => Ok(Self { row_scales: Some(row_scales), ..self }),
        }
    }

    /// The scales of the rows, if they have scales of their own.
    #[must_use]
    pub fn row_scales(&self) -> Option<RowScales<'a>> {
        self.row_scales
    }

    /// The same without scales of rows. Read [`Weight::product_scales`] before: products of codes and scale factors are multiplied by
    /// them. What a [`Matrix`] of these weights gives still needs [`Weight::row_scales`].
    #[must_use]
    pub fn without_row_scales(self) -> Self {
        Self { row_scales: None, ..self }
    }

    /// What each row's products are multiplied by: the scale of the tensor, times that of the row.
    pub fn product_scales(&self) -> impl Iterator<Item = f32> + 'a {
        let (tensor_scale, rows) = (self.tensor_scale, self.rows);
        let of_rows = self.row_scales.into_iter().flat_map(RowScales::values);
        of_rows.chain(std::iter::repeat(1.0)).take(rows).map(move |scale| tensor_scale * scale)
    }

    /// A range of rows, without a copy.
    ///
    /// # Errors
    ///
    /// [`WeightError::Rows`]; [`WeightError::RowBlocks`] for a range that cuts a block of rows that share scale factors.
    pub fn slice(&self, rows: Range<usize>) -> Result<Self, WeightError> {
        let Range { start, end } = rows;
        if start > end || end > self.rows {
            return Err(WeightError::Rows { start, end, rows: self.rows });
        }
        let (columns, shared) = match self.format.spec().scales {
            Some(spec) => (self.k / spec.block as usize * self.factor_bytes(), spec.rows as usize),
            None => (0, 1),
        };
        // A block that ends with the matrix ends there in the part, too.
        if !start.is_multiple_of(shared) || !end.is_multiple_of(shared) && end != self.rows {
            return Err(WeightError::RowBlocks { start, end, rows: self.rows, multiple: shared });
        }
        let row_bytes = code_bytes(self.format, self.k);
        Ok(Self {
            rows: end - start,
            codes: &self.codes[start * row_bytes..end * row_bytes],
            scales: &self.scales[start / shared * columns..end.div_ceil(shared) * columns],
            row_scales: self.row_scales.map(|scales| scales.slice(start..end)),
            ..*self
        })
    }

    /// A range of columns, elements of K, copied.
    ///
    /// # Errors
    ///
    /// [`WeightError::RowsScaled`] for rows with scales of their own, which a [`Matrix`] has no place for;
    /// [`WeightError::Columns`] for a range that exceeds K or cuts a block of scale factors or a byte.
    pub fn columns(&self, columns: Range<usize>) -> Result<Matrix, WeightError> {
        if self.row_scales.is_some() {
            return Err(WeightError::RowsScaled);
        }
        let Range { start, end } = columns;
        let spec = self.format.spec();
        let block = spec.scales.map_or(0, |scales| scales.block as usize);
        // Without scale factors, whole bytes.
        let multiple = if block > 0 { block } else { (8 / spec.element_bits as usize).max(1) };
        let whole = |column: usize| column.is_multiple_of(multiple);
        if start > end || end > self.k || !whole(start) || !whole(end) {
            return Err(WeightError::Columns { start, end, k: self.k, multiple });
        }
        let cut = |bytes: &[u8], of: &dyn Fn(usize) -> usize| -> Vec<u8> {
            match of(self.k) {
                0 => Vec::new(),
                row => bytes.chunks_exact(row).flat_map(|row| &row[of(start)..of(end)]).copied().collect(),
            }
        };
        let codes = cut(self.codes, &|elements| code_bytes(self.format, elements));
        let scales = self.matrix_scales();
        let bytes = spec.scales.map_or(1, |scales| scales.format.bytes() as usize);
        let scales = cut(&scales, &|elements| elements.checked_div(block).unwrap_or(0) * bytes);
        Ok(Matrix::new(self.format, self.rows, end - start, codes, scales, self.tensor_scale)?)
    }

    /// Scale factors as kernels read them: in the blocked layout ([`layout::to_blocked`](silumin_formats::layout::to_blocked)), or
    /// row-major f32; empty for formats without them.
    ///
    /// # Errors
    ///
    /// When the padded scale factors do not fit the address space.
    pub fn blocked_scales(&self) -> Result<Vec<u8>, WeightError> {
        Ok(kernel_scales(self.format, &self.matrix_scales(), self.rows, self.k)?)
    }

    /// Copies the weights to a [`Matrix`], for the reference or to look at values.
    ///
    /// # Errors
    ///
    /// [`WeightError::RowsScaled`] for rows with scales of their own, which a matrix has no place for.
    pub fn to_matrix(&self) -> Result<Matrix, WeightError> {
        if self.row_scales.is_some() {
            return Err(WeightError::RowsScaled);
        }
        let (codes, scales) = (self.codes.to_vec(), self.matrix_scales());
        Ok(Matrix::new(self.format, self.rows, self.k, codes, scales, self.tensor_scale)?)
    }
}

/// Checks that all scale factors are finite magnitudes.
fn check_scales(format: ByteScale, scales: &[u8], columns: usize) -> Result<(), WeightError> {
    // Codes of finite magnitudes ascend from 0; NaN and whatever has a sign are behind them. A maximum is a matter of
    // vector instructions, a search is not.
    let largest = element::max_scale_code(format);
    if scales.iter().copied().max().is_none_or(|code| code <= largest) {
        return Ok(());
    }
    match scales.iter().enumerate().find(|(_, code)| **code > largest) {
        Some((index, &code)) => Err(WeightError::ScaleFactor {
            row: index / columns,
            column: index % columns,
            code,
            value: element::decode_scale(format, code),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use silumin_formats::quantize::{TensorScale, quantize_to};

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 37) as f32)).collect()
    }

    proptest! {
        #[test]
        fn slices_are_the_rows_of_the_whole(rows in 1usize..300, blocks in 1usize..5, cut in 0.0f64..1.0) {
            for format in OperandFormat::ALL {
                let spec = format.spec();
                let k = spec.k_multiple.max(32) as usize * blocks;
                let matrix = quantize_to(format, &numbers(rows * k), rows, k, TensorScale::FromMax).unwrap();
                let whole = Weight::of(&matrix).unwrap();
                let start = (rows as f64 * cut) as usize;
                let shared = spec.scales.map_or(1, |scales| scales.rows as usize);
                if !start.is_multiple_of(shared) {
                    let cut = matches!(whole.slice(start..rows), Err(WeightError::RowBlocks { multiple: 128, .. }));
                    prop_assert!(cut);
                }
                let start = start / shared * shared;
                let part = whole.slice(start..rows).unwrap();
                prop_assert_eq!(part.to_matrix().unwrap().blocked_scales().unwrap(), part.blocked_scales().unwrap());
                prop_assert_eq!(part.blocked_scales().unwrap(), matrix.blocked_scales_of(start..rows).unwrap());
                let copy = part.to_matrix().unwrap();
                for row in start..rows {
                    prop_assert_eq!(copy.value(row - start, k - 1), matrix.value(row, k - 1));
                }
            }
        }
    }

    #[test]
    fn columns_are_those_of_the_whole() {
        for format in OperandFormat::ALL {
            let unit = format.spec().k_multiple.max(32) as usize;
            let (rows, k) = (5, 4 * unit);
            let matrix = quantize_to(format, &numbers(rows * k), rows, k, TensorScale::FromMax).unwrap();
            let whole = Weight::of(&matrix).unwrap();
            let part = whole.columns(unit..3 * unit).unwrap();
            assert_eq!((part.rows(), part.k(), part.tensor_scale()), (rows, 2 * unit, matrix.tensor_scale()));
            for (row, column) in (0..rows).flat_map(|row| (0..2 * unit).map(move |column| (row, column))) {
                assert_eq!(part.value(row, column), matrix.value(row, unit + column), "{format}");
            }
            for columns in [2 * unit..5 * unit, 0..4 * unit + 1] {
                assert!(matches!(whole.columns(columns), Err(WeightError::Columns { .. })), "{format}");
            }
        }
        let codes = [0; 32];
        let weight = Weight::new(OperandFormat::Nvfp4, 1, 64, &codes, &[0; 4], 1.0).unwrap();
        let error = weight.columns(8..40).unwrap_err().to_string();
        assert!(error.contains("columns 8 to 40 of 64") && error.contains("multiples of 16"), "{error}");
    }

    #[test]
    fn scale_factors_that_no_quantiser_writes_are_found() {
        let codes = [0u8; 3 * 32];
        let new = |format, scales: &[u8]| Weight::new(format, 3, 64, &codes, scales, 1.0).map(drop);
        for (code, value) in [(0x7F, f64::NAN), (0xFF, f64::NAN), (0x80, -0.0), (0xB8, -1.0)] {
            let mut scales = [0x7E; 12];
            assert!(new(OperandFormat::Nvfp4, &scales).is_ok());
            scales[6] = code;
            match new(OperandFormat::Nvfp4, &scales) {
                Err(WeightError::ScaleFactor { row: 1, column: 2, code: found, value: decoded }) => {
                    assert_eq!(found, code);
                    assert!(decoded == value || decoded.is_nan() && value.is_nan());
                }
                other => panic!("{other:?}"),
            }
        }
        let mut scales = [0xFE; 6];
        assert!(new(OperandFormat::Mxfp4, &scales).is_ok());
        scales[5] = 0xFF;
        let error = new(OperandFormat::Mxfp4, &scales).unwrap_err();
        assert!(error.to_string().contains("row 2, block 1 is 0xff (NaN)"), "{error}");
    }

    /// Two rows of blocks, two columns of blocks: the factors of `value(row, column)`.
    const FACTORS: [f32; 4] = [0.5, 3.0, 1e-3, 0.25];

    fn blocks(factors: &[u8]) -> Result<Weight<'_>, WeightError> {
        // 1.0 in all places.
        static CODES: [u8; 130 * 256] = [0x38; 130 * 256];
        Weight::new(OperandFormat::E4m3Block128, 130, 256, &CODES, factors, 2.0)
    }

    #[test]
    fn factors_of_blocks_are_f32_or_bf16() {
        let wide: Vec<u8> = FACTORS.into_iter().flat_map(f32::to_le_bytes).collect();
        let halves: Vec<u8> =
            FACTORS.into_iter().flat_map(|factor| half::bf16::from_f32(factor).to_le_bytes()).collect();
        for (bytes, third) in [(&wide, 1e-3), (&halves, half::bf16::from_f32(1e-3).to_f32())] {
            let weight = blocks(bytes).unwrap();
            let matrix = weight.to_matrix().unwrap();
            let at = |row, column| matrix.value(row, column).unwrap();
            assert_eq!([at(127, 127), at(0, 128), at(129, 255)], [1.0, 6.0, 0.5]);
            assert_eq!(at(128, 0), 2.0 * f64::from(third));
            assert_eq!(weight.blocked_scales().unwrap().len(), 16);
            let part = weight.slice(128..130).unwrap();
            assert_eq!(part.to_matrix().unwrap().value(1, 200), Some(0.5));
            assert_eq!(weight.columns(128..256).unwrap().value(5, 3), Some(6.0));
        }
        assert!(matches!(blocks(&wide[..12]), Err(WeightError::Format(FormatError::Length { .. }))));
        for wrong in [-1.0, f32::NAN, f32::INFINITY] {
            let mut bytes = wide.clone();
            bytes[8..12].copy_from_slice(&wrong.to_le_bytes());
            let error = blocks(&bytes).unwrap_err().to_string();
            assert!(error.contains("block (1, 0) is"), "{error}");
        }
    }

    #[test]
    fn powers_of_two_survive_the_way_to_mxfp8() {
        let k = 256;
        let values = numbers(130 * k);
        let blocks = quantize_to(OperandFormat::E4m3Block128, &values, 130, k, TensorScale::One).unwrap();
        let powers: Vec<u8> = (0..4).flat_map(|index| 2f32.powi(3 * index - 9).to_le_bytes()).collect();
        for (scales, exact) in [(powers.as_slice(), true), (blocks.scales(), false)] {
            let codes = blocks.codes();
            let weight = Weight::new(OperandFormat::E4m3Block128, 130, k, codes, scales, 0.5).unwrap();
            let (before, after) = (weight.to_matrix().unwrap(), weight.to_mxfp8().unwrap());
            assert_eq!((after.format(), after.tensor_scale()), (OperandFormat::Mxfp8, 0.5));
            let mut most: f64 = 0.0;
            for (row, column) in (0..130).flat_map(|row| (0..k).map(move |column| (row, column))) {
                let (before, after) = (before.value(row, column).unwrap(), after.value(row, column).unwrap());
                // A sixteenth, but for the smallest of a block.
                most = most.max((after - before).abs() / before.abs().max(1e-3));
            }
            assert!(if exact { most == 0.0 } else { most > 0.03 && most <= 1.0 / 16.0 }, "{most}");
        }
    }

    #[test]
    fn wrong_parts_are_refused() {
        let new = |k, codes: &[u8], scales: &[u8], scale| {
            Weight::new(OperandFormat::Nvfp4, 2, k, codes, scales, scale).map(drop).unwrap_err()
        };
        assert!(matches!(
            new(24, &[0; 24], &[0; 2], 1.0),
            WeightError::Format(FormatError::KNotBlocked { .. })
        ));
        assert!(matches!(new(32, &[0; 31], &[0; 4], 1.0), WeightError::Format(FormatError::Length { .. })));
        assert!(matches!(new(32, &[0; 32], &[0; 5], 1.0), WeightError::Format(FormatError::Length { .. })));
        assert!(matches!(
            new(32, &[0; 32], &[0; 4], 0.0),
            WeightError::Format(FormatError::TensorScale { .. })
        ));
        let weight = Weight::new(OperandFormat::Nvfp4, 2, 32, &[0; 32], &[0; 4], 1.0).unwrap();
        #[allow(clippy::reversed_empty_ranges)]
        for rows in [1..3, 2..1] {
            assert!(matches!(weight.slice(rows), Err(WeightError::Rows { rows: 2, .. })));
        }
        assert!(weight.with_tensor_scale(f32::INFINITY).is_err());
        assert_eq!(weight.with_tensor_scale(0.5).unwrap().tensor_scale(), 0.5);
    }
}
