//! Buckets: the sizes of M that kernels are made for, and which bucket serves an M.

use thiserror::Error;

/// Most cells of the table for each power of two.
const CELLS: u32 = 1024;

/// Why sizes are not valid as buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BucketError {
    /// There are no sizes.
    #[error("there is no size: name at least one M, or Buckets::powers_of_two(most)")]
    Empty,
    /// A size is 0.
    #[error("0 is not a size: kernels have at least one row")]
    Zero,
}

/// Sizes of M, ascending. An M is served by the smallest size that holds it, so requests with any number of tokens
/// use one of a few kernels, all made at model load.
///
/// ```
/// use silumin_runtime::warmup::Buckets;
///
/// let buckets = Buckets::powers_of_two(512).and([48, 96])?;
/// assert_eq!(buckets.sizes(), [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512]);
/// assert_eq!([1, 33, 64, 65, 512].map(|m| buckets.size_for(m)), [1, 48, 64, 96, 512].map(Some));
/// assert_eq!(buckets.size_for(513), None);
/// # Ok::<(), silumin_runtime::warmup::BucketError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    sizes: Vec<u32>,
    /// For M in (2^(o-1), 2^o]: the first cell, and how many low bits of M - 1 a cell covers.
    octaves: [(u32, u32); 33],
    /// For each cell the first size that may serve an M of it; the number of sizes if none does.
    cells: Vec<u32>,
}

impl Buckets {
    /// Buckets of the given sizes, in any order.
    ///
    /// # Errors
    ///
    /// [`BucketError`].
    pub fn new(sizes: impl IntoIterator<Item = u32>) -> Result<Self, BucketError> {
        let mut sizes: Vec<u32> = sizes.into_iter().collect();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes.first() {
            None => Err(BucketError::Empty),
            Some(0) => Err(BucketError::Zero),
            Some(_) => Ok(Self::of(sizes)),
        }
    }

    /// Sizes 1, 2, 4 and so on up to `most`, which is itself a size; 0 counts as 1.
    #[must_use]
    pub fn powers_of_two(most: u32) -> Self {
        let most = most.max(1);
        let mut sizes: Vec<u32> = (0..32).map(|power| 1 << power).take_while(|size| *size < most).collect();
        sizes.push(most);
        Self::of(sizes)
    }

    /// Adds sizes, for example those of the engine's batches.
    ///
    /// # Errors
    ///
    /// [`BucketError::Zero`].
    pub fn and(self, sizes: impl IntoIterator<Item = u32>) -> Result<Self, BucketError> {
        Self::new(self.sizes.into_iter().chain(sizes))
    }

    /// Removes sizes below `least` and adds `least` if needed: for kernels that gain nothing from fewer rows.
    #[must_use]
    pub fn at_least(self, least: u32) -> Self {
        let least = least.max(1);
        let mut sizes: Vec<u32> = self.sizes.into_iter().filter(|size| *size > least).collect();
        sizes.insert(0, least);
        Self::of(sizes)
    }

    /// Builds the table from ascending sizes without 0.
    fn of(sizes: Vec<u32>) -> Self {
        let mut octaves = [(0, 0); 33];
        let mut cells = Vec::new();
        for (octave, place) in octaves.iter_mut().enumerate() {
            // M - 1 has so many bits: it runs from `first` to `last`.
            let (first, last) = match octave {
                0 => (0, 0),
                _ => (1u32 << (octave - 1), u32::MAX >> (32 - octave)),
            };
            let width = last - first;
            // Cells so wide that every size ends one, but not too many.
            let own = sizes.iter().filter(|size| (first..=last).contains(&(**size - 1)));
            let fine = own.map(|size| size.trailing_zeros()).min().unwrap_or(31);
            let least = (width / CELLS).checked_ilog2().map_or(0, |bits| bits + 1);
            let shift = fine.max(least).min((octave as u32).saturating_sub(1));
            *place = (cells.len() as u32, shift);
            for cell in 0..=(width >> shift) {
                let start = first + (cell << shift);
                cells.push(sizes.partition_point(|size| *size - 1 < start) as u32);
            }
        }
        Self { sizes, octaves, cells }
    }

    /// The sizes, ascending.
    #[must_use]
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The index in [`sizes`](Buckets::sizes) of the bucket for `m`; `None` for 0 and beyond the last size. It takes
    /// two table look-ups, and a comparison if two sizes share a cell.
    #[must_use]
    pub fn index_for(&self, m: u32) -> Option<usize> {
        let below = m.checked_sub(1)?;
        let octave = (u32::BITS - below.leading_zeros()) as usize;
        let (start, shift) = self.octaves[octave];
        let first = if octave == 0 { 0 } else { 1 << (octave - 1) };
        let mut index = self.cells[(start + ((below - first) >> shift)) as usize] as usize;
        while *self.sizes.get(index)? < m {
            index += 1;
        }
        Some(index)
    }

    /// The size of the bucket for `m`.
    #[must_use]
    pub fn size_for(&self, m: u32) -> Option<u32> {
        self.index_for(m).map(|index| self.sizes[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plainly(sizes: &[u32], m: u32) -> Option<usize> {
        sizes.iter().position(|size| *size >= m).filter(|_| m > 0)
    }

    #[test]
    fn powers_of_two_take_a_cell_each() {
        let buckets = Buckets::powers_of_two(1 << 20);
        assert_eq!(buckets.sizes().len(), 21);
        assert_eq!(buckets.cells.len(), 33);
        for m in 0..70_000 {
            assert_eq!(buckets.index_for(m), plainly(buckets.sizes(), m), "{m}");
        }
        assert_eq!(buckets.index_for(1 << 20), Some(20));
        assert_eq!(buckets.index_for((1 << 20) + 1), None);
        assert_eq!(buckets.index_for(u32::MAX), None);
    }

    #[test]
    fn ends_and_errors() {
        assert_eq!(Buckets::new([]), Err(BucketError::Empty));
        assert_eq!(Buckets::new([4, 0]), Err(BucketError::Zero));
        assert_eq!(Buckets::powers_of_two(0).sizes(), [1]);
        assert_eq!(Buckets::powers_of_two(24).sizes(), [1, 2, 4, 8, 16, 24]);
        assert_eq!(Buckets::powers_of_two(64).at_least(16).sizes(), [16, 32, 64]);
        assert_eq!(Buckets::powers_of_two(8).at_least(100).sizes(), [100]);
        let most = Buckets::new([u32::MAX]).unwrap();
        assert_eq!([0, 1, u32::MAX].map(|m| most.size_for(m)), [None, Some(u32::MAX), Some(u32::MAX)]);
        let all = Buckets::powers_of_two(u32::MAX);
        assert_eq!((all.sizes().len(), all.size_for((1 << 31) + 1)), (33, Some(u32::MAX)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_table_says_what_a_search_says(
            sizes in proptest::collection::vec(prop_oneof![1..200u32, 1..100_000u32, any::<u32>().prop_map(|m| m.max(1))], 1..40),
            others in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let buckets = Buckets::new(sizes).unwrap();
            prop_assert!(buckets.cells.len() < 33 * (2 * CELLS as usize + 1));
            let near = buckets.sizes().iter().flat_map(|size| [size - 1, *size, size.saturating_add(1)]);
            for m in near.chain(others).chain(0..300) {
                prop_assert_eq!(buckets.index_for(m), plainly(buckets.sizes(), m), "{}", m);
            }
        }
    }
}
