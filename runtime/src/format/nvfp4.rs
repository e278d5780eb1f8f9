//! A K-major NVFP4 matrix on the host.

use thiserror::Error;

use super::{e4m3, fp4x2};
use crate::layout::{self, LayoutError};

/// Elements along K that share one NVFP4 scale.
pub const SCALE_BLOCK: usize = 16;

/// What is wrong with the parts of a narrow-format matrix.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// K is not a whole number of scale blocks.
    #[error(
        "K = {k} is not a multiple of {SCALE_BLOCK}, the elements that share an NVFP4 scale: pad K \
         with zeros to {}", k.next_multiple_of(SCALE_BLOCK)
    )]
    KNotBlocked {
        /// The K that was given, elements.
        k: usize,
    },
    /// rows * K does not fit the address space.
    #[error("a matrix of {rows} x {k} elements is larger than the address space: split it by rows")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Elements a row.
        k: usize,
    },
    /// A buffer has another length than the shape asks for.
    #[error(
        "{what} of a {rows} x {k} matrix take {expected} {unit}, but the buffer holds {got}: pass \
         exactly {expected}"
    )]
    Length {
        /// What the buffer holds.
        what: &'static str,
        /// What one entry of the buffer is.
        unit: &'static str,
        /// Rows.
        rows: usize,
        /// Elements a row.
        k: usize,
        /// Entries that the shape asks for.
        expected: usize,
        /// Entries in the buffer.
        got: usize,
    },
    /// The scale of a whole tensor has to be a positive finite number.
    #[error("the tensor scale is {value}, but it has to be finite and above 0: use 1 for none")]
    TensorScale {
        /// The scale that was given.
        value: f32,
    },
    /// A value that no finite scale can hold.
    #[error(
        "element ({row}, {column}) is {value}: NVFP4 holds no NaN and no infinity; clean the input \
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

/// A K-major matrix in NVFP4: e2m1 elements, one e4m3 scale for every 16 along K, one f32 scale for
/// the tensor. It is both A (`[M, K]`) and B (`[N, K]`, each row a column of the product).
///
/// The value of element (r, k) is `e2m1(code) * e4m3(scale[r][k / 16]) * tensor_scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Nvfp4Matrix {
    rows: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    tensor_scale: f32,
}

impl Nvfp4Matrix {
    /// A matrix from its parts.
    ///
    /// - `codes`: `rows * k / 2` bytes, row-major, the even element in the low nibble;
    /// - `scales`: `rows * k / 16` e4m3 codes, row-major (not the blocked order of
    ///   [`crate::layout`]);
    /// - `tensor_scale`: multiplies every element; 1 for none.
    ///
    /// # Errors
    ///
    /// When K is not a multiple of 16, a buffer has another length, or the tensor scale is not a
    /// positive finite number.
    pub fn new(
        rows: usize,
        k: usize,
        codes: Vec<u8>,
        scales: Vec<u8>,
        tensor_scale: f32,
    ) -> Result<Self, FormatError> {
        let elements = checked_elements(rows, k)?;
        for (what, buffer, per_entry) in
            [("the packed e2m1 codes", &codes, 2), ("the e4m3 scales", &scales, SCALE_BLOCK)]
        {
            let expected = elements / per_entry;
            if buffer.len() != expected {
                return Err(FormatError::Length {
                    what,
                    unit: "bytes",
                    rows,
                    k,
                    expected,
                    got: buffer.len(),
                });
            }
        }
        if !(tensor_scale.is_finite() && tensor_scale > 0.0) {
            return Err(FormatError::TensorScale { value: tensor_scale });
        }
        Ok(Self { rows, k, codes, scales, tensor_scale })
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

    /// Packed e2m1 codes, `[rows, K/2]` row-major, even element in the low nibble.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// e4m3 scales, `[rows, K/16]` row-major.
    #[must_use]
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// The scales in the order that a kernel reads: see [`layout::to_blocked`].
    ///
    /// # Errors
    ///
    /// When the padded scales do not fit the address space.
    pub fn blocked_scales(&self) -> Result<Vec<u8>, LayoutError> {
        layout::to_blocked(&self.scales, self.rows, self.k / SCALE_BLOCK)
    }

    /// The scale of the whole tensor; a kernel applies it in its epilogue.
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

    /// Writes the values of `row` from `k_start` on to `out`, exact in f64 but for the tensor
    /// scale's product, which is rounded once. Positions outside the matrix give zero, as a TMA
    /// load fills them.
    pub fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        let available = if row < self.rows { self.k.saturating_sub(k_start) } else { 0 };
        let (inside, outside) = out.split_at_mut(available.min(out.len()));
        outside.fill(0.0);
        let mut row_codes = self.codes.chunks_exact((self.k / 2).max(1));
        let mut row_scales = self.scales.chunks_exact((self.k / SCALE_BLOCK).max(1));
        let (Some(codes), Some(scales)) = (row_codes.nth(row), row_scales.nth(row)) else {
            return;
        };

        // To the next block boundary element by element, then by whole blocks.
        let lead = (k_start.next_multiple_of(SCALE_BLOCK) - k_start).min(inside.len());
        let (lead_out, blocks_out) = inside.split_at_mut(lead);
        for (offset, value) in lead_out.iter_mut().enumerate() {
            let column = k_start + offset;
            let pair = fp4x2::PAIRS[usize::from(codes[column / 2])];
            *value = pair[column % 2] * self.scale(scales[column / SCALE_BLOCK]);
        }
        let first_block = (k_start + lead) / SCALE_BLOCK;
        let block_codes = codes.chunks_exact(SCALE_BLOCK / 2).skip(first_block);
        let block_scales = &scales[first_block.min(scales.len())..];
        for ((values, bytes), &code) in blocks_out.chunks_mut(SCALE_BLOCK).zip(block_codes).zip(block_scales)
        {
            let scale = self.scale(code);
            for (pair, &byte) in values.chunks_mut(2).zip(bytes) {
                let [even, odd] = fp4x2::PAIRS[usize::from(byte)];
                pair[0] = even * scale;
                if let Some(value) = pair.get_mut(1) {
                    *value = odd * scale;
                }
            }
        }
    }

    fn scale(&self, code: u8) -> f64 {
        f64::from(e4m3::decode(code)) * f64::from(self.tensor_scale)
    }
}

/// rows * k, when the format can hold such a matrix.
pub(crate) fn checked_elements(rows: usize, k: usize) -> Result<usize, FormatError> {
    if !k.is_multiple_of(SCALE_BLOCK) {
        return Err(FormatError::KNotBlocked { k });
    }
    // Room for eight bytes an element, which a decoded copy takes.
    match rows.checked_mul(k) {
        Some(elements) if elements <= isize::MAX as usize / 8 => Ok(elements),
        _ => Err(FormatError::TooLarge { rows, k }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::e2m1;
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    fn random(rows: usize, k: usize, tensor_scale: f32) -> Nvfp4Matrix {
        let mut rng = ChaCha8Rng::seed_from_u64(6);
        let mut codes = vec![0; rows * k / 2];
        rng.fill_bytes(&mut codes);
        let scales = (0..rows * k / 16).map(|_| (rng.next_u32() % 0x7F) as u8).collect();
        Nvfp4Matrix::new(rows, k, codes, scales, tensor_scale).unwrap()
    }

    #[test]
    fn every_window_decodes_as_the_definition_says() {
        let matrix = random(3, 48, 0.25);
        for row in 0..4 {
            for start in 0..50 {
                for length in 0..40 {
                    let mut out = vec![f64::NAN; length];
                    matrix.decode_row(row, start, &mut out);
                    for (offset, &value) in out.iter().enumerate() {
                        let column = start + offset;
                        let expected = if row < 3 && column < 48 {
                            let code = fp4x2::get(&matrix.codes, row * 48 + column).unwrap();
                            let scale = e4m3::decode(matrix.scales[row * 3 + column / 16]);
                            f64::from(e2m1::decode(code)) * f64::from(scale) * 0.25
                        } else {
                            0.0
                        };
                        assert_eq!(value, expected, "row {row}, column {column}");
                        if row < 3 && column < 48 {
                            assert_eq!(matrix.value(row, column), Some(expected));
                        }
                    }
                }
            }
        }
        assert_eq!(matrix.value(3, 0), None);
        assert_eq!(matrix.value(0, 48), None);
    }

    #[test]
    fn wrong_parts_are_refused() {
        let new = Nvfp4Matrix::new;
        assert_eq!(new(1, 24, vec![0; 12], vec![0; 1], 1.0), Err(FormatError::KNotBlocked { k: 24 }));
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
        assert!(text.contains("K = 24") && text.contains("32"), "{text}");
    }

    #[test]
    fn empty_matrices_hold_nothing() {
        for (rows, k) in [(0, 0), (0, 32), (5, 0)] {
            let matrix = Nvfp4Matrix::new(rows, k, vec![], vec![], 1.0).unwrap();
            let mut out = [1.0; 4];
            matrix.decode_row(0, 0, &mut out);
            assert_eq!(out, [0.0; 4]);
        }
    }
}
