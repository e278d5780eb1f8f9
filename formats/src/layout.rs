//! Layouts of scale factors: row-major, and the blocked layout that tensor cores read.
//!
//! The blocked layout consists of atoms of 128 rows by 4 scale columns, 512 contiguous bytes each. In an atom the
//! four scale factors of a row are contiguous, followed by those of the rows 32, 64 and 96 further down: byte `(row %
//! 32) * 16 + (row % 128 / 32) * 4 + column % 4`. Atoms run along K first. Rows are padded to 128 and scale columns
//! to 4, with zeros. One atom is what `tcgen05.cp.32x128b.warpx4` copies, and what an NVFP4 MMA reads for 128 rows in
//! a step of K = 64. cuBLASLt documents this order as its 1D block-scaling layout; CUTLASS calls it `SfAtom`.
//!
//! A scale column is one scale factor of each row: a row has K / 16 of them in NVFP4, K / 32 in the MX formats.

use std::borrow::Cow;

use thiserror::Error;

/// Rows of an atom.
pub const ATOM_ROWS: usize = 128;

/// Scale columns of an atom.
pub const ATOM_COLUMNS: usize = 4;

/// Bytes of an atom.
pub const ATOM_BYTES: usize = ATOM_ROWS * ATOM_COLUMNS;

/// Why a buffer cannot hold the scale factors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// K is not a whole number of scale blocks.
    #[error(
        "K = {k} is not a multiple of {block}, the elements that share a scale: pad K with zeros \
         to a multiple of {block}"
    )]
    KNotBlocked {
        /// K, elements.
        k: usize,
        /// Elements that share a scale factor.
        block: usize,
    },
    /// The row-major buffer is not rows * columns bytes long.
    #[error(
        "{rows} x {sf_cols} row-major scale factors take {expected} bytes, but the buffer holds \
         {got}: pass one byte a scale, without padding"
    )]
    LinearLength {
        /// Rows.
        rows: usize,
        /// Scale columns.
        sf_cols: usize,
        /// Required length in bytes.
        expected: usize,
        /// Bytes in the buffer.
        got: usize,
    },
    /// The blocked buffer is not a whole number of atoms.
    #[error(
        "{rows} x {sf_cols} blocked scale factors take {expected} bytes, rows padded to \
         {ATOM_ROWS} and columns to {ATOM_COLUMNS}, but the buffer holds {got}: `to_blocked` pads them"
    )]
    BlockedLength {
        /// Rows.
        rows: usize,
        /// Scale columns.
        sf_cols: usize,
        /// Required length in bytes.
        expected: usize,
        /// Bytes in the buffer.
        got: usize,
    },
    /// The padded shape does not fit the address space.
    #[error("{rows} x {sf_cols} scale factors are larger than the address space: split them by rows")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Scale columns.
        sf_cols: usize,
    },
}

/// Scale columns of a row of `k` elements, of which `block` share a scale factor: 16 in NVFP4, 32 in the MX formats.
///
/// # Errors
///
/// When `k` is not a multiple of `block`.
pub fn sf_columns(k: usize, block: usize) -> Result<usize, LayoutError> {
    if block == 0 || !k.is_multiple_of(block) {
        return Err(LayoutError::KNotBlocked { k, block });
    }
    Ok(k / block)
}

/// Bytes of `rows` x `sf_cols` scale factors in the blocked layout, padding included.
///
/// ```
/// # use silumin_formats::layout::blocked_len;
/// // 72 rows of K = 256: one block of rows, four atoms along K.
/// assert_eq!(blocked_len(72, 256 / 16), Ok(4 * 512));
/// ```
///
/// # Errors
///
/// When the padded shape does not fit the address space.
pub fn blocked_len(rows: usize, sf_cols: usize) -> Result<usize, LayoutError> {
    rows.div_ceil(ATOM_ROWS)
        .checked_mul(sf_cols.div_ceil(ATOM_COLUMNS))
        .and_then(|atoms| atoms.checked_mul(ATOM_BYTES))
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or(LayoutError::TooLarge { rows, sf_cols })
}

/// Byte offset of the scale factor (`row`, `column`) in the blocked layout of a matrix with `sf_cols` scale columns.
/// It is defined for padding too: any row, any column below `sf_cols` rounded up to 4.
#[must_use]
pub const fn blocked_offset(row: usize, column: usize, sf_cols: usize) -> usize {
    let atom = row / ATOM_ROWS * sf_cols.div_ceil(ATOM_COLUMNS) + column / ATOM_COLUMNS;
    atom * ATOM_BYTES + row % 32 * 16 + row % ATOM_ROWS / 32 * 4 + column % ATOM_COLUMNS
}

/// Converts row-major `[rows, sf_cols]` scale factors to the blocked layout, padded with zeros.
///
/// # Errors
///
/// When `linear` is not rows * sf_cols bytes long or the padded shape does not fit.
pub fn to_blocked(linear: &[u8], rows: usize, sf_cols: usize) -> Result<Vec<u8>, LayoutError> {
    let length = blocked_len(rows, sf_cols)?;
    // No overflow: the padded product, which is larger, fits.
    let expected = rows * sf_cols;
    if linear.len() != expected {
        return Err(LayoutError::LinearLength { rows, sf_cols, expected, got: linear.len() });
    }
    let mut blocked = vec![0; length];
    for (row, scales) in linear.chunks_exact(sf_cols.max(1)).enumerate() {
        for (group, four) in scales.chunks(ATOM_COLUMNS).enumerate() {
            let offset = blocked_offset(row, group * ATOM_COLUMNS, sf_cols);
            blocked[offset..offset + four.len()].copy_from_slice(four);
        }
    }
    Ok(blocked)
}

/// Converts blocked scale factors to row-major `[rows, sf_cols]` and drops the padding.
///
/// # Errors
///
/// When `blocked` is not [`blocked_len`] bytes long.
pub fn from_blocked(blocked: &[u8], rows: usize, sf_cols: usize) -> Result<Vec<u8>, LayoutError> {
    let expected = blocked_len(rows, sf_cols)?;
    if blocked.len() != expected {
        return Err(LayoutError::BlockedLength { rows, sf_cols, expected, got: blocked.len() });
    }
    let mut linear = vec![0; rows * sf_cols];
    for (row, scales) in linear.chunks_exact_mut(sf_cols.max(1)).enumerate() {
        for (group, four) in scales.chunks_mut(ATOM_COLUMNS).enumerate() {
            let offset = blocked_offset(row, group * ATOM_COLUMNS, sf_cols);
            four.copy_from_slice(&blocked[offset..offset + four.len()]);
        }
    }
    Ok(linear)
}

/// Splits the blocked scale factors of a stacked tensor `[2 * rows, K]`, gate above up, into those of two matrices of
/// `rows` rows.
///
/// If `rows` is a multiple of 128, the two are parts of the same bytes. Otherwise some blocks hold rows of both, and
/// each matrix gets blocks of its own.
///
/// ```
/// # use silumin_formats::layout::{LayoutError, split_blocked, to_blocked};
/// let stacked = to_blocked(&[7; 256 * 4], 256, 4)?;
/// let [gate, up] = split_blocked(&stacked, 128, 4)?;
/// assert_eq!((gate.as_ptr(), up.as_ptr()), (stacked.as_ptr(), stacked[512..].as_ptr()));
/// # Ok::<(), LayoutError>(())
/// ```
///
/// # Errors
///
/// When `blocked` is not [`blocked_len`] of 2 * `rows` long.
pub fn split_blocked(blocked: &[u8], rows: usize, sf_cols: usize) -> Result<[Cow<'_, [u8]>; 2], LayoutError> {
    let both = rows.checked_mul(2).ok_or(LayoutError::TooLarge { rows, sf_cols })?;
    if rows.is_multiple_of(ATOM_ROWS) {
        let expected = blocked_len(both, sf_cols)?;
        if blocked.len() != expected {
            return Err(LayoutError::BlockedLength { rows: both, sf_cols, expected, got: blocked.len() });
        }
        let (first, second) = blocked.split_at(expected / 2);
        return Ok([first.into(), second.into()]);
    }
    let linear = from_blocked(blocked, both, sf_cols)?;
    let (first, second) = linear.split_at(rows * sf_cols);
    Ok([to_blocked(first, rows, sf_cols)?.into(), to_blocked(second, rows, sf_cols)?.into()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Offset by the benchmark's view of the buffer: a tensor `[32, 4, rest_rows, 4, rest_k, 1]` with strides (16, 4,
    /// rest_k * 512, 1, 512, rest_rows * rest_k * 512), indexed by `[row % 32, row % 128 / 32, row / 128, column % 4,
    /// column / 4, 0]`.
    fn six_dimensional_offset(row: usize, column: usize, rows: usize, sf_cols: usize) -> usize {
        let (rest_rows, rest_k) = (rows.div_ceil(128), sf_cols.div_ceil(4));
        let strides = [16, 4, rest_k * 512, 1, 512, rest_rows * rest_k * 512];
        let index = [row % 32, (row % 128) / 32, row / 128, column % 4, column / 4, 0];
        strides.iter().zip(index).map(|(stride, i)| stride * i).sum()
    }

    fn numbered(rows: usize, sf_cols: usize) -> Vec<u8> {
        // Never zero, so that padding differs from every scale.
        (0..rows * sf_cols).map(|i| (i * 89 % 251 + 1) as u8).collect()
    }

    #[test]
    fn blocked_bytes_are_the_six_dimensional_tensor() {
        for (rows, sf_cols) in [(128, 4), (1, 1), (256, 16), (129, 5), (72, 3), (300, 33), (31, 448)] {
            let linear = numbered(rows, sf_cols);
            let blocked = to_blocked(&linear, rows, sf_cols).unwrap();
            let mut expected = vec![0; rows.div_ceil(128) * 128 * sf_cols.div_ceil(4) * 4];
            for row in 0..rows {
                for column in 0..sf_cols {
                    let offset = six_dimensional_offset(row, column, rows, sf_cols);
                    assert_eq!(expected[offset], 0, "two scales at one offset");
                    expected[offset] = linear[row * sf_cols + column];
                    assert_eq!(offset, blocked_offset(row, column, sf_cols));
                }
            }
            assert_eq!(blocked, expected, "{rows} x {sf_cols}");
        }
    }

    #[test]
    fn the_first_atom_by_hand() {
        let linear = numbered(256, 8);
        let blocked = to_blocked(&linear, 256, 8).unwrap();
        assert_eq!(blocked[0..4], linear[0..4], "row 0, scales 0..4");
        assert_eq!(blocked[4..8], linear[32 * 8..32 * 8 + 4], "row 32 follows row 0");
        assert_eq!(blocked[16..20], linear[8..12], "row 1 is 16 bytes on");
        assert_eq!(blocked[512..516], linear[4..8], "the next atom is along K");
        assert_eq!(blocked[1024..1028], linear[128 * 8..128 * 8 + 4], "then rows 128..256");
    }

    proptest! {
        #[test]
        fn round_trip(rows in 0usize..400, sf_cols in 0usize..40) {
            let linear = numbered(rows, sf_cols);
            let blocked = to_blocked(&linear, rows, sf_cols).unwrap();
            prop_assert_eq!(blocked.len(), blocked_len(rows, sf_cols).unwrap());
            let zeros = blocked.iter().filter(|&&b| b == 0).count();
            prop_assert_eq!(zeros, blocked.len() - linear.len());
            prop_assert_eq!(from_blocked(&blocked, rows, sf_cols).unwrap(), linear);
        }
    }

    proptest! {
        #[test]
        fn halves_are_those_of_the_stacked_matrix(rows in 0usize..300, whole in 0usize..3, sf_cols in 1usize..9) {
            for rows in [rows, whole * ATOM_ROWS] {
                let linear = numbered(2 * rows, sf_cols);
                let stacked = to_blocked(&linear, 2 * rows, sf_cols).unwrap();
                let halves = split_blocked(&stacked, rows, sf_cols).unwrap();
                for (half, linear) in halves.iter().zip([&linear[..rows * sf_cols], &linear[rows * sf_cols..]]) {
                    prop_assert_eq!(half.as_ref(), to_blocked(linear, rows, sf_cols).unwrap());
                    prop_assert_eq!(matches!(half, Cow::Borrowed(_)), rows.is_multiple_of(ATOM_ROWS));
                }
                prop_assert!(split_blocked(&[0; 3], rows, sf_cols).is_err());
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert_eq!(sf_columns(7168, 16), Ok(448));
        assert_eq!(sf_columns(48, 32), Err(LayoutError::KNotBlocked { k: 48, block: 32 }));
        assert_eq!(sf_columns(48, 0), Err(LayoutError::KNotBlocked { k: 48, block: 0 }));
        assert_eq!(
            to_blocked(&[0; 15], 4, 4),
            Err(LayoutError::LinearLength { rows: 4, sf_cols: 4, expected: 16, got: 15 })
        );
        assert_eq!(
            from_blocked(&[0; 16], 4, 4),
            Err(LayoutError::BlockedLength { rows: 4, sf_cols: 4, expected: 512, got: 16 })
        );
        assert!(matches!(blocked_len(usize::MAX, 1 << 20), Err(LayoutError::TooLarge { .. })));
        assert!(matches!(to_blocked(&[], usize::MAX, 4), Err(LayoutError::TooLarge { .. })));
        assert!(matches!(split_blocked(&[], usize::MAX, 4), Err(LayoutError::TooLarge { .. })));
    }
}
