//! Rows of a batch or of groups in A and C: sizes, offsets, and blocks of scale factors.
//!
//! All matrices of a batch have the same number of rows; the rows of a group follow from its offsets. The scale
//! factors of each matrix or group start a new block of 128 rows.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin_codegen::problem::{Groups, Shape};
use thiserror::Error;

use crate::layout::ATOM_ROWS;

/// Why group sizes do not fit a shape.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The number of sizes is not the number of groups.
    #[error(
        "{found} sizes are given, and {shape} has {expected} groups: give one size per group, 0 for an empty one"
    )]
    Count {
        /// The shape.
        shape: Shape,
        /// Groups of the shape.
        expected: usize,
        /// Sizes given.
        found: usize,
    },
    /// The groups together have more rows than the shape.
    #[error("the groups have {rows} rows together, and {shape} has room for {}: give it more rows", .shape.m)]
    Rows {
        /// The shape.
        shape: Shape,
        /// Rows of all groups together.
        rows: u64,
    },
    /// The shape has no groups.
    #[error("{shape} has no groups of rows: leave the sizes out")]
    NoGroups {
        /// The shape.
        shape: Shape,
    },
}

/// The number of rows of each matrix of a batch, or of each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSizes {
    sizes: Vec<u32>,
}

/// Rows of one matrix of a batch, or of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the matrix in B1 and B2 that multiplies its rows.
    pub weights: usize,
    /// Its rows in A and in C.
    pub rows: Range<usize>,
    /// First row of its scale factors, where rows are padded to blocks: a multiple of 128.
    pub padded: usize,
}

impl GroupSizes {
    /// Group sizes for `shape`.
    ///
    /// # Errors
    ///
    /// [`GroupError`].
    pub fn new(shape: Shape, sizes: &[u32]) -> Result<Self, GroupError> {
        let Groups::Rows(count) = shape.groups else { return Err(GroupError::NoGroups { shape }) };
        let (expected, found) = (count as usize, sizes.len());
        if expected != found {
            return Err(GroupError::Count { shape, expected, found });
        }
        let rows = sizes.iter().copied().map(u64::from).sum();
        if rows > shape.m.into() {
            return Err(GroupError::Rows { shape, rows });
        }
        Ok(Self { sizes: sizes.to_vec() })
    }

    /// Random group sizes for `shape`: uneven, a quarter of them 0, with at most A's rows in total. For a shape
    /// without groups, its own sizes. The same arguments give the same sizes.
    #[must_use]
    pub fn draw(shape: Shape, seed: u64) -> Self {
        let count = match shape.groups {
            Groups::Rows(count) => count as usize,
            Groups::One | Groups::Batch(_) => return Self::fixed(shape),
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Beside the streams of the operands' rows and of the gate's vectors.
        random.set_stream(1 << 62);
        let mut below = |limit: u32| ((u64::from(random.next_u32()) * u64::from(limit)) >> 32) as u32;
        let used = shape.m - below(shape.m / 8 + 1);
        let mut cuts: Vec<u32> = (1..count).map(|_| below(used + 1)).collect();
        cuts.extend([0, used]);
        cuts.sort_unstable();
        let mut sizes: Vec<u32> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for group in 1..sizes.len() {
            if below(4) == 0 {
                sizes[group] += std::mem::take(&mut sizes[group - 1]);
            }
        }
        sizes.truncate(count);
        Self { sizes }
    }

    fn fixed(shape: Shape) -> Self {
        let count = if let Groups::Batch(count) = shape.groups { count as usize } else { 1 };
        Self { sizes: vec![shape.m; count] }
    }

    /// The sizes that a kernel derives from any offsets: each offset is raised to the one before it and limited to 0
    /// ..= rows of A. The first group may start after row 0.
    #[must_use]
    pub fn read(shape: Shape, offsets: &[u8]) -> (usize, Self) {
        let limit = i32::try_from(shape.m).unwrap_or(i32::MAX);
        let offsets =
            offsets.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).clamp(0, limit));
        let mut begins = offsets.scan(0, |most, offset| {
            *most = offset.max(*most);
            Some(*most)
        });
        let first = begins.next().unwrap_or(0);
        let sizes = begins.scan(first, |before, begin| {
            let size = begin - std::mem::replace(before, begin);
            Some(size as u32)
        });
        (first as usize, Self { sizes: sizes.collect() })
    }

    /// The sizes, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.sizes
    }

    /// Total number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.sizes.iter().map(|size| *size as usize).sum()
    }

    /// Total number of rows, with each matrix or group padded to whole blocks of scale factors.
    #[must_use]
    pub fn padded_rows(&self) -> usize {
        self.sizes.iter().map(|size| (*size as usize).next_multiple_of(ATOM_ROWS)).sum()
    }

    /// Row offsets as a kernel reads them: the start of each group, then the end of the last one.
    #[must_use]
    pub fn offsets(&self) -> Vec<i32> {
        let ends = self.sizes.iter().scan(0i32, |end, size| {
            *end = end.saturating_add_unsigned(*size);
            Some(*end)
        });
        [0].into_iter().chain(ends).collect()
    }

    /// The bytes of [`GroupSizes::offsets`].
    #[must_use]
    pub fn offset_bytes(&self) -> Vec<u8> {
        self.offsets().into_iter().flat_map(i32::to_le_bytes).collect()
    }

    /// The matrices or groups in order, empty ones included.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        self.sizes.iter().enumerate().scan((0, 0), |(row, padded), (weights, size)| {
            let size = *size as usize;
            let segment = Segment { weights, rows: *row..*row + size, padded: *padded };
            *row += size;
            *padded += size.next_multiple_of(ATOM_ROWS);
            Some(segment)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::new(300, 8, 32).grouped(5);

    #[test]
    fn drawn_sizes_fit_and_some_are_none() {
        let drawn: Vec<GroupSizes> = (0..50).map(|seed| GroupSizes::draw(SHAPE, seed)).collect();
        assert!(drawn.iter().all(|sizes| sizes.as_slice().len() == 5 && sizes.rows() <= 300));
        assert!(drawn.iter().any(|sizes| sizes.as_slice().contains(&0)));
        assert!(drawn.iter().any(|sizes| sizes.rows() < 300));
        assert_eq!(drawn[3], GroupSizes::draw(SHAPE, 3));
        assert_ne!(drawn[3], drawn[4]);
        assert_eq!(GroupSizes::draw(Shape::new(7, 8, 32).batch(2), 1).as_slice(), [7, 7]);
        assert_eq!(GroupSizes::draw(Shape::new(7, 8, 32), 1).as_slice(), [7]);
    }

    #[test]
    fn offsets_are_read_back_and_wrong_ones_tamed() {
        let sizes = GroupSizes::new(SHAPE, &[5, 0, 129, 0, 1]).unwrap();
        assert_eq!(sizes.offsets(), [0, 5, 5, 134, 134, 135]);
        assert_eq!(GroupSizes::read(SHAPE, &sizes.offset_bytes()), (0, sizes.clone()));
        assert_eq!((sizes.rows(), sizes.padded_rows()), (135, 128 + 256 + 128));
        let padded: Vec<usize> = sizes.segments().map(|segment| segment.padded).collect();
        assert_eq!(padded, [0, 128, 128, 384, 384]);
        let bytes: Vec<u8> =
            [-7i32, 20, 10, i32::MAX, i32::MIN, 40].into_iter().flat_map(i32::to_le_bytes).collect();
        let (first, read) = GroupSizes::read(SHAPE, &bytes);
        assert_eq!((first, read.as_slice()), (0, &[20, 0, 280, 0, 0][..]));
    }

    #[test]
    fn sizes_that_do_not_fit_say_why() {
        let error = |shape, sizes: &[u32]| GroupSizes::new(shape, sizes).unwrap_err().to_string();
        assert!(error(SHAPE, &[1; 4]).contains("4 sizes are given"));
        assert!(error(SHAPE, &[61; 5]).contains("305 rows together"));
        assert!(error(Shape::new(1, 8, 32), &[1]).contains("no groups of rows"));
    }
}
