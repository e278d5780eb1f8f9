//! C on the host, in any output format.

use half::{bf16, f16};
use rayon::prelude::*;
use silumin_codegen::problem::{ByteScale, OutputFormat};
use thiserror::Error;

use silumin_formats::groups::GroupSizes;
use silumin_formats::layout::{LayoutError, blocked_len, blocked_offset};
use silumin_formats::{bf16_from_f64, block_scale, e2m1, e4m3, element, f16_from_f64, f32_to_odd, fp4x2};

/// Why bytes cannot be an output.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The elements have the wrong length.
    #[error(
        "C of {m} x {n} in {format} takes {expected} bytes, but {got} are given: pass exactly {expected}"
    )]
    Length {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
        /// The format.
        format: OutputFormat,
        /// Required length in bytes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The scale factors have the wrong length.
    #[error(
        "the scale factors of C, {m} x {n} in {format}, take {expected} bytes, but {got} are given: pass exactly {expected}"
    )]
    Scales {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
        /// The format.
        format: OutputFormat,
        /// Required length in bytes.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// N is not a multiple of the block.
    #[error(
        "N = {n} is not a multiple of {block}, the elements of C that share a scale in {format}: pad N with zeros"
    )]
    Block {
        /// Columns.
        n: usize,
        /// Elements that share a scale factor.
        block: usize,
        /// The format.
        format: OutputFormat,
    },
    /// The tensor scale is not a positive finite number, or is not 1 for a format without one.
    #[error("the scale of C is {value}, but in {format} it has to be {wanted}")]
    TensorScale {
        /// As given.
        value: f32,
        /// The format.
        format: OutputFormat,
        /// The allowed values.
        wanted: &'static str,
    },
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// C as a kernel writes it: elements, row-major `[M, N]`, and scale factors in the blocked layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    m: usize,
    n: usize,
    format: OutputFormat,
    codes: Vec<u8>,
    scales: Vec<u8>,
    tensor_scale: f32,
    /// For several matrices or groups: their first rows, and the first rows of their scale factors. Empty for one.
    starts: Vec<[usize; 2]>,
}

impl Output {
    /// Makes C from its parts.
    ///
    /// - `codes`: the elements, row-major; two e2m1 a byte, the even one in the low nibble; wider ones
    ///   little-endian;
    /// - `scales`: scale codes in the blocked order of [`silumin_formats::layout`], pads included; empty for a
    ///   format without;
    /// - `tensor_scale`: multiplies every element; 1 for a format without.
    ///
    /// # Errors
    ///
    /// [`OutputError`], where a buffer or the tensor scale does not fit shape and format.
    pub fn new(
        m: usize,
        n: usize,
        format: OutputFormat,
        codes: Vec<u8>,
        scales: Vec<u8>,
        tensor_scale: f32,
    ) -> Result<Self, OutputError> {
        let expected = m.saturating_mul(n).saturating_mul(format.bits() as usize) / 8;
        if codes.len() != expected {
            return Err(OutputError::Length { m, n, format, expected, got: codes.len() });
        }
        let expected = match format.scales() {
            Some(scales) if !n.is_multiple_of(scales.block as usize) => {
                return Err(OutputError::Block { n, block: scales.block as usize, format });
            }
            Some(scales) => blocked_len(m, n / scales.block as usize)?,
            None => 0,
        };
        if scales.len() != expected {
            return Err(OutputError::Scales { m, n, format, expected, got: scales.len() });
        }
        check_tensor_scale(format, tensor_scale)?;
        Ok(Self { m, n, format, codes, scales, tensor_scale, starts: Vec::new() })
    }

    /// C of all matrices of a batch, or of all groups: as [`Output::new`], but the scale factors of each are padded
    /// to whole blocks.
    ///
    /// # Errors
    ///
    /// As [`Output::new`].
    pub fn grouped(
        sizes: &GroupSizes,
        n: usize,
        format: OutputFormat,
        codes: Vec<u8>,
        scales: Vec<u8>,
        tensor_scale: f32,
    ) -> Result<Self, OutputError> {
        let m = sizes.rows();
        let (expected, got) = match format.scales() {
            Some(spec) => (blocked_len(sizes.padded_rows(), n / spec.block as usize)?, scales.len()),
            None => (0, scales.len()),
        };
        if expected != got {
            return Err(OutputError::Scales { m, n, format, expected, got });
        }
        // Rows that are padded one by one take as much as their sum at least.
        let alone = match format.scales() {
            Some(spec) => blocked_len(m, n / spec.block as usize)?,
            None => 0,
        };
        let output = Self::new(m, n, format, codes, scales[..alone].to_vec(), tensor_scale)?;
        let starts = sizes.segments().map(|segment| [segment.rows.start, segment.padded]).collect();
        Ok(Self { scales, starts, ..output })
    }

    /// The row of the scale-factor matrix for a row of C; padding between matrices shifts it.
    pub(crate) fn scale_row(&self, row: usize) -> usize {
        let behind = self.starts.partition_point(|[first, _]| *first <= row);
        match behind.checked_sub(1).map(|last| self.starts[last]) {
            Some([first, padded]) => padded + row - first,
            None => row,
        }
    }

    /// The output of an exact kernel for `values`, row-major `[m, n]`: every element is rounded once. Scale factors
    /// follow the rules of [`OutputFormat`]; padding is code 0.
    ///
    /// # Errors
    ///
    /// [`OutputError`]; a `values` of another length is an [`OutputError::Length`].
    pub fn encode(
        m: usize,
        n: usize,
        format: OutputFormat,
        values: &[f64],
        tensor_scale: f32,
    ) -> Result<Self, OutputError> {
        if m.checked_mul(n) != Some(values.len()) {
            let expected = m.saturating_mul(n);
            return Err(OutputError::Length { m, n, format, expected, got: values.len() });
        }
        let mut output = Self {
            m,
            n,
            format,
            codes: vec![0; values.len() * format.bits() as usize / 8],
            scales: Vec::new(),
            tensor_scale,
            starts: Vec::new(),
        };
        if let Some(spec) = format.scales() {
            let block = spec.block as usize;
            // A ragged N is refused below.
            output.scales = vec![0; blocked_len(m, n / block)?];
            for (row, values) in values.chunks_exact(n.max(1)).enumerate() {
                for (column, run) in values.chunks_exact(block).enumerate() {
                    let amax = run.iter().fold(0.0f64, |most, value| most.max(value.abs()));
                    let code = output.rule(amax);
                    output.scales[blocked_offset(row, column, n / block)] = code;
                    let step = element::decode_scale(spec.format, code) * f64::from(tensor_scale);
                    for (offset, value) in run.iter().enumerate() {
                        let scaled = if step > 0.0 { value / step } else { 0.0 };
                        output.put(row * n + column * block + offset, scaled);
                    }
                }
            }
        } else {
            for (index, value) in values.iter().enumerate() {
                output.put(index, *value);
            }
        }
        Self::new(m, n, format, output.codes, output.scales, tensor_scale)
    }

    /// The scale code of a block with the largest magnitude `amax`, by the format's first rule; 0 for formats without
    /// scale factors.
    pub(crate) fn rule(&self, amax: f64) -> u8 {
        match self.format.scales().map(|scales| scales.format) {
            Some(ByteScale::Ue4m3) => block_scale::nvfp4(amax, f64::from(self.tensor_scale)),
            Some(ByteScale::Ue8m0) => block_scale::mx(amax, 8),
            None => 0,
        }
    }

    /// Writes the code of an element that has been divided by its scale.
    fn put(&mut self, index: usize, value: f64) {
        match self.format {
            OutputFormat::F16 => self.put_bytes(index, f16_from_f64(value).to_le_bytes()),
            OutputFormat::Bf16 => self.put_bytes(index, bf16_from_f64(value).to_le_bytes()),
            OutputFormat::F32 => self.put_bytes(index, (value as f32).to_le_bytes()),
            OutputFormat::Nvfp4 => {
                let code = e2m1::encode(f32_to_odd(value));
                let (even, odd) = fp4x2::unpack(self.codes[index / 2]);
                self.codes[index / 2] =
                    if index.is_multiple_of(2) { fp4x2::pack(code, odd) } else { fp4x2::pack(even, code) };
            }
            _ => self.put_bytes(index, [e4m3::encode(f32_to_odd(value))]),
        }
    }

    fn put_bytes<const N: usize>(&mut self, index: usize, bytes: [u8; N]) {
        self.codes[index * N..(index + 1) * N].copy_from_slice(&bytes);
    }

    /// Rows.
    #[must_use]
    pub fn m(&self) -> usize {
        self.m
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> OutputFormat {
        self.format
    }

    /// The bytes of the elements, row-major.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scale factors in the blocked layout; empty for formats without them.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// The scale of the whole tensor, 1 for formats without one.
    #[must_use]
    pub fn tensor_scale(&self) -> f32 {
        self.tensor_scale
    }

    /// The same output with other bytes.
    ///
    /// # Errors
    ///
    /// As [`Output::new`].
    pub fn with_parts(&self, codes: Vec<u8>, scales: Vec<u8>) -> Result<Self, OutputError> {
        Self::new(self.m, self.n, self.format, codes, scales, self.tensor_scale)
    }

    /// The decoded code of the element at `index`, without its scale (see [`Output::codes`]); `None` beyond the end.
    #[must_use]
    pub(crate) fn element(&self, index: usize) -> Option<f64> {
        let bytes = &self.codes;
        Some(match self.format {
            OutputFormat::F16 => f16::from_le_bytes(part(bytes, index)?).to_f64(),
            OutputFormat::Bf16 => bf16::from_le_bytes(part(bytes, index)?).to_f64(),
            OutputFormat::F32 => f64::from(f32::from_le_bytes(part(bytes, index)?)),
            OutputFormat::Nvfp4 => f64::from(e2m1::decode(fp4x2::get(bytes, index)?)),
            _ => f64::from(e4m3::decode(*bytes.get(index)?)),
        })
    }

    /// The scale code of block `column` in a row, and the step that it stands for: the row's elements in that block
    /// are multiples of it. The step is 1 for formats without scale factors.
    pub(crate) fn step(&self, row: usize, column: usize) -> (u8, f64) {
        let Some(spec) = self.format.scales() else { return (0, 1.0) };
        let offset = blocked_offset(self.scale_row(row), column, self.n / spec.block as usize);
        let code = self.scales.get(offset).copied().unwrap_or(element::nan_scale_code(spec.format));
        (code, element::decode_scale(spec.format, code) * f64::from(self.tensor_scale))
    }

    /// The values of the elements, row-major.
    #[must_use]
    pub fn decode(&self) -> Vec<f64> {
        let block = self.format.scales().map_or(self.n, |scales| scales.block as usize).max(1);
        let mut values = vec![0.0; self.m * self.n];
        values.par_chunks_mut(self.n.max(1)).enumerate().for_each(|(row, values)| {
            for (column, run) in values.chunks_mut(block).enumerate() {
                let (_, step) = self.step(row, column);
                for (offset, value) in run.iter_mut().enumerate() {
                    let index = row * self.n + column * block + offset;
                    *value = self.element(index).unwrap_or(f64::NAN) * step;
                }
            }
        });
        values
    }
}

fn part<const N: usize>(bytes: &[u8], index: usize) -> Option<[u8; N]> {
    bytes.as_chunks::<N>().0.get(index).copied()
}

/// Checks a tensor scale against a format.
pub(crate) fn check_tensor_scale(format: OutputFormat, value: f32) -> Result<(), OutputError> {
    let (legal, wanted) = match format.has_tensor_scale() {
        true => (value.is_finite() && value > 0.0, "finite and above 0"),
        false => (value == 1.0, "1: the format has none"),
    };
    if legal { Ok(()) } else { Err(OutputError::TensorScale { value, format, wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::problem::OperandFormat;
    use silumin_formats::quantize::{TensorScale, quantize, quantize_to};

    fn values(m: usize, n: usize) -> Vec<f64> {
        // All octaves from 2^-12 to 2^12, f32s all of them.
        (0..m * n)
            .map(|i| f64::from((i as f32 * 0.7).sin()) * 2f64.powi((i / 16 * 7 % 25) as i32 - 12))
            .collect()
    }

    #[test]
    fn what_is_encoded_is_the_nearest_that_the_format_holds() {
        let (m, n) = (3, 96);
        for format in OutputFormat::ALL {
            let tensor_scale = if format.has_tensor_scale() { 2.0 } else { 1.0 };
            let output = Output::encode(m, n, format, &values(m, n), tensor_scale).unwrap();
            assert_eq!(output.with_parts(output.codes.clone(), output.scales.clone()), Ok(output.clone()));
            // Relative to an element, and beside that the least scale factor's or subnormals' share.
            let (relative, least) = match format {
                OutputFormat::F32 => (2f64.powi(-24), 0.0),
                OutputFormat::F16 => (2f64.powi(-11), 2f64.powi(-25)),
                OutputFormat::Bf16 => (2f64.powi(-8), 0.0),
                OutputFormat::E4m3 => (1.0 / 16.0, 2f64.powi(-10)),
                // Half a step of e2m1 is at most a quarter of a value.
                OutputFormat::Nvfp4 => (0.25, 6.0 * 2f64.powi(-9)),
                // The largest elements of a block saturate.
                _ => (0.125, 0.0),
            };
            for (index, (got, value)) in output.decode().iter().zip(values(m, n)).enumerate() {
                let block = format.scales().map_or(1, |scales| scales.block as usize);
                let start = index / block * block;
                let run = &values(m, n)[start..start + block];
                let amax = run.iter().fold(0.0f64, |most, value| most.max(value.abs()));
                // Beyond 448 e4m3 saturates.
                let value = if format == OutputFormat::E4m3 { value.clamp(-448.0, 448.0) } else { value };
                let bound = relative * value.abs().max(amax / 5.0) + least;
                assert!(
                    (got - value).abs() <= bound,
                    "{format}: {value} became {got} {amax} {:?}",
                    output.step(0, index / block)
                );
            }
        }
    }

    /// What a kernel writes is the operand of the next GEMM: the quantiser's own bytes.
    #[test]
    fn block_scaled_outputs_are_operands() {
        let (m, n) = (130, 96);
        let values = values(m, n);
        let floats: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        let exact: Vec<f64> = floats.iter().map(|&value| f64::from(value)).collect();
        let output = Output::encode(m, n, OutputFormat::Nvfp4, &exact, 0.25).unwrap();
        let operand = quantize(&floats, m, n, TensorScale::Fixed(0.25)).unwrap();
        assert_eq!(output.scales(), operand.blocked_scales().unwrap());
        let off = output.codes().iter().zip(operand.codes()).filter(|(ours, theirs)| ours != theirs).count();
        // The quantiser divides in f32, which can make a tie, and it stores no negative zeros in blocks
        // whose scale is zero.
        assert!(off < output.codes().len() / 100, "{off}");
        let output = Output::encode(m, n, OutputFormat::Mxfp8, &exact, 1.0).unwrap();
        let operand = quantize_to(OperandFormat::Mxfp8, &floats, m, n, TensorScale::One).unwrap();
        assert_eq!(
            (output.scales(), output.codes()),
            (&operand.blocked_scales().unwrap()[..], operand.codes())
        );
    }

    #[test]
    fn wrong_parts_are_refused() {
        let new = |format, codes: usize, scales: usize, tensor_scale| {
            Output::new(2, 64, format, vec![0; codes], vec![0; scales], tensor_scale).map(|_| ())
        };
        assert_eq!(new(OutputFormat::Nvfp4, 64, 512, 0.5), Ok(()));
        assert!(matches!(
            new(OutputFormat::Nvfp4, 65, 512, 1.0),
            Err(OutputError::Length { expected: 64, got: 65, .. })
        ));
        assert!(matches!(
            new(OutputFormat::Mxfp8, 128, 0, 1.0),
            Err(OutputError::Scales { expected: 512, got: 0, .. })
        ));
        assert!(matches!(
            new(OutputFormat::F16, 256, 512, 1.0),
            Err(OutputError::Scales { expected: 0, got: 512, .. })
        ));
        for (format, value) in [(OutputFormat::Nvfp4, 0.0), (OutputFormat::Nvfp4, f32::NAN)] {
            assert!(matches!(new(format, 64, 512, value), Err(OutputError::TensorScale { .. })));
        }
        assert!(matches!(new(OutputFormat::E4m3, 128, 0, 2.0), Err(OutputError::TensorScale { .. })));
        let ragged = Output::encode(1, 40, OutputFormat::Nvfp4, &[0.0; 40], 1.0);
        assert!(matches!(ragged, Err(OutputError::Block { n: 40, block: 16, .. })));
        let short = Output::encode(1, 32, OutputFormat::F32, &[0.0; 31], 1.0);
        assert!(matches!(short, Err(OutputError::Length { expected: 32, got: 31, .. })));
    }
}
