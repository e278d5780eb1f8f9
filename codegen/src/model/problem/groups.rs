//! Several dual GEMMs in one launch: batches, and groups of rows with weights of their own.

use super::Shape;
use std::fmt;

/// The most matrices of a batch, and the most groups.
pub(crate) const GROUP_LIMIT: u32 = 1 << 16;

/// How many dual GEMMs one launch computes, and how their rows lie in A and C.
///
/// | tensor | `Batch(l)` | `Rows(g)` |
/// |---|---|---|
/// | A | `[L, M, K]` | `[M, K]`, rows sorted by group |
/// | B1, B2 | `[L, N, K]` | `[G, N, K]` |
/// | C | `[L, M, N]` | `[M, N]`, rows as A's |
/// | scale factors of A and of C | blocks of 128 rows, each matrix padded to whole blocks | the same, each group padded to whole blocks |
/// | scale factors of B1, B2 | each matrix padded to whole blocks | the same |
/// | row offsets | - | i32 `[G + 1]`, read by the kernel: group g has the rows from `offsets[g]` up to `offsets[g + 1]` |
/// | vectors of the gate along M | `[L, M]` | `[M]` |
/// | vectors of the gate along N | `[L, N]` | `[G, N]` |
///
/// With groups, M is the capacity: how many rows A and C have. Groups may be empty, and the last offset may be lower; rows of
/// no group are neither computed nor stored. Where the blocks of a group's scale factors start follows from the offsets:
/// behind those of the groups before it, each rounded up to 128 rows (vLLM's `blockscale_offsets`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Groups {
    /// One dual GEMM.
    #[default]
    One,
    /// So many of one shape: a batch.
    Batch(u32),
    /// So many of one N and K, each with some of the M rows: the experts of a mixture. How many rows each has, only the
    /// device knows.
    Rows(u32),
}

impl Groups {
    /// Matrices that B1, and B2, are made of.
    pub const fn count(self) -> u32 {
        match self {
            Groups::One => 1,
            Groups::Batch(count) | Groups::Rows(count) => count,
        }
    }

    /// Whether rows are shared out between groups by offsets on the device.
    pub const fn by_rows(self) -> bool {
        matches!(self, Groups::Rows(_))
    }
}

impl Shape {
    /// The same `l` times, side by side: a batch.
    #[must_use]
    pub const fn batch(self, l: u32) -> Self {
        Shape { groups: Groups::Batch(l), ..self }
    }

    /// The same with its rows shared out between `g` groups, each with weights of its own.
    #[must_use]
    pub const fn grouped(self, g: u32) -> Self {
        Shape { groups: Groups::Rows(g), ..self }
    }

    /// Rows of A and of C in all: M, or of a batch L times M.
    pub const fn rows(self) -> u64 {
        match self.groups {
            Groups::One | Groups::Rows(_) => self.m as u64,
            Groups::Batch(count) => self.m as u64 * count as u64,
        }
    }

    /// Blocks of `block` rows that hold all rows, each matrix or group starting one of its own: of groups, as many as the
    /// least favourable sizes take.
    pub const fn row_blocks(self, block: u32) -> u64 {
        let (m, block) = (self.m as u64, block as u64);
        match self.groups {
            Groups::One => m.div_ceil(block),
            Groups::Batch(count) => m.div_ceil(block) * count as u64,
            Groups::Rows(count) => {
                // A row each, and whole blocks on top.
                let started = if m < count as u64 { m } else { count as u64 };
                (m - started) / block + started
            }
        }
    }

    /// Rows that one dual GEMM has: M, or of groups the mean, rounded up.
    pub const fn typical_rows(self) -> u32 {
        match self.groups {
            Groups::Rows(count) if count > 0 => self.m.div_ceil(count),
            Groups::One | Groups::Batch(_) | Groups::Rows(_) => self.m,
        }
    }

    /// Group sizes that differ as little as they can and make up all rows; one size, M, without groups.
    pub fn even_sizes(self) -> Vec<u32> {
        match self.groups {
            Groups::Rows(count) => {
                let (share, longer) = (self.m / count.max(1), self.m % count.max(1));
                (0..count).map(|group| share + u32::from(group < longer)).collect()
            }
            Groups::One | Groups::Batch(_) => vec![self.m],
        }
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Groups::One => Ok(()),
            Groups::Batch(count) => write!(f, " in a batch of {count}"),
            Groups::Rows(count) => write!(f, " in {count} groups of rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_the_least_favourable_sizes() {
        let blocks = |m, g| Shape::new(m, 8, 32).grouped(g).row_blocks(128);
        // Every way to share out few rows between three groups, tried.
        for m in [1u32, 2, 3, 4, 127, 128, 129, 130, 131, 258, 259] {
            let most = (0..=m)
                .flat_map(|a| (0..=m - a).map(move |b| [a, b, m - a - b]))
                .map(|sizes| sizes.iter().map(|rows| u64::from(rows.div_ceil(128))).sum::<u64>())
                .max();
            assert_eq!(Some(blocks(m, 3)), most, "{m}");
        }
        assert_eq!(Shape::new(130, 8, 32).batch(3).row_blocks(128), 6);
        assert_eq!(Shape::new(130, 8, 32).row_blocks(128), 2);
    }

    #[test]
    fn even_sizes_make_up_all_rows() {
        for (m, g) in [(1, 8), (8, 3), (1024, 7)] {
            let sizes = Shape::new(m, 8, 32).grouped(g).even_sizes();
            assert_eq!((sizes.len() as u32, sizes.iter().sum::<u32>()), (g, m));
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
