//! Which items of work a CTA computes, and what it does with the others of its cluster.

use super::TargetView;
use super::cluster::Places;
use crate::config::{Raster, Schedule};
use crate::plan::Plan;
use std::fmt::Display;

/// Which items of work a CTA computes.
pub(crate) struct WorkView {
    /// Whether a CTA may compute more than one item.
    pub looped: bool,
    /// Whether an item may be a part of a tile's K.
    pub ranges: bool,
    pub dynamic: bool,
    /// K tiles of an item: a number or a register.
    pub k_count: String,
    /// The same without the split tail.
    pub main_count: String,
    /// Whether tiles are all in one row, where no raster matters and a division at each item's start is saved.
    pub one_row_of_tiles: bool,
    pub raster_group: u32,
    /// Tiles of a band of the swizzled raster.
    pub raster_band: u64,
    /// The registers of the tile's place on the MMA's row side and column side.
    pub row_tile: &'static str,
    pub column_tile: &'static str,
    /// K tiles of the clusters that have one more than the others.
    pub longer_units: u32,
    /// Whether the CTAs of a cluster share a tile's K.
    pub cluster_parts: bool,
    /// What is added to a tile's counter once the first of its two parts has left its sums in the workspace; 0 where parts are
    /// collected otherwise.
    pub fixup_count: u32,
    pub last_k_tile: u32,
    /// The largest dividend.
    most: u32,
}

impl WorkView {
    /// Bits to shift for a division by a power of two.
    pub fn shift(&self, by: &dyn Display) -> Option<u32> {
        constant(by).filter(|by| by.is_power_of_two()).map(u32::trailing_zeros)
    }

    /// What to multiply with for a division by another constant.
    pub fn reciprocal(&self, by: &dyn Display) -> Option<u32> {
        constant(by).and_then(|by| reciprocal(by, self.most))
    }

    pub fn new(p: &Plan) -> Self {
        let k_count = if p.work.has_ranges() { "%k_count".to_owned() } else { p.k_loop.tiles.to_string() };
        let shape = p.problem.shape;
        WorkView {
            looped: p.work.is_looped(),
            ranges: p.work.has_ranges(),
            dynamic: p.work.schedule == Schedule::Dynamic,
            main_count: match p.k_loop.tail_tiles {
                0 => k_count.clone(),
                _ => p.k_loop.main_tiles.to_string(),
            },
            k_count,
            one_row_of_tiles: p.work.m_items == 1 && !shape.groups.by_rows(),
            raster_group: raster_group(p),
            raster_band: u64::from(raster_group(p)) * u64::from(p.work.n_items),
            row_tile: if p.swap_ab { "%n_tile" } else { "%m_tile" },
            column_tile: if p.swap_ab { "%m_tile" } else { "%n_tile" },
            longer_units: p.work.longer * (p.work.share + 1),
            cluster_parts: p.work.cluster_parts > 1,
            // More than both parts that start.
            fixup_count: if p.has_fixup() { 4 } else { 0 },
            last_k_tile: p.k_loop.tiles - 1,
            most: most(p),
        }
    }
}

/// The largest dividend: the number of a cluster, of an item, or of a K tile among those of all items, or rows rounded up to whole items.
fn most(p: &Plan) -> u32 {
    let units = match p.work.schedule == Schedule::StreamK {
        true => p.work.tiles.saturating_mul(p.k_loop.tiles),
        false => p.work.tiles.max(p.work.clusters),
    };
    units.max(p.problem.shape.m.saturating_add(16 * p.tile.m))
}

/// The number that a template prints, if it is no register.
fn constant(printed: &dyn Display) -> Option<u32> {
    printed.to_string().parse().ok()
}

/// A factor f with which the upper half of n * f is n / `by`, for every n up to `most`; `None` if no factor of 32 bits is exact. f exceeds
/// 2^32 / `by` by at most 1, so the quotient is exact while n * `by` is at most 2^32.
fn reciprocal(by: u32, most: u32) -> Option<u32> {
    let exact = by > 1 && u64::from(most) * u64::from(by) <= 1 << 32;
    exact.then(|| ((1u64 << 32) / u64::from(by)) as u32 + 1)
}

/// The CTAs of a cluster.
pub(crate) struct ClusterView {
    /// CTAs of an MMA: 1, or a pair.
    pub group: u32,
    pub pair: bool,
    /// CTAs that send parts of each other's tiles.
    pub sharers: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    pub several: bool,
    /// A bit for each CTA of a cluster, and for those at the same place of its pairs as the first.
    pub all_ctas: u32,
    pub even_ctas: u32,
    /// Which CTA of a cluster this is.
    pub places: Places,
    /// Whether the cluster shares tiles, whose parts have so many rows and bytes, and the register of
    /// the first row.
    pub shares: bool,
}

impl ClusterView {
    pub fn new(p: &Plan) -> Self {
        let group = p.cta_group.ctas();
        let (cluster_ctas, shared) = (p.cluster_ctas(), p.multicast.ctas());
        ClusterView {
            group,
            pair: group == 2,
            sharers: shared,
            cluster: cluster_ctas,
            several: cluster_ctas > 1,
            all_ctas: (1 << cluster_ctas) - 1,
            even_ctas: 0x5555 & ((1 << cluster_ctas) - 1),
            places: Places::new(p),
            shares: shared > 1,
        }
    }
}

/// Tiles of C in flight.
pub(crate) struct BuffersView {
    /// Whether there are two buffers of accumulators.
    pub buffered: bool,
    /// Whether they share columns, and in how many of the epilogue's chunks those are.
    pub overlapped: bool,
    pub shared_chunks: u32,
}

impl BuffersView {
    /// The number of the last chunk that is shared.
    pub fn last_shared(&self) -> u32 {
        self.shared_chunks.saturating_sub(1)
    }

    pub fn new(p: &Plan, target: &TargetView) -> Self {
        BuffersView {
            buffered: p.isa().buffers() > 1,
            overlapped: target.shared_columns > 0,
            shared_chunks: target.shared_columns / p.epilogue.chunk,
        }
    }
}

/// Rows of tiles in a band of the swizzled raster: no more than there are.
fn raster_group(p: &Plan) -> u32 {
    match p.work.raster {
        Raster::Swizzled(group) => group.min(p.work.m_items),
        Raster::AlongM | Raster::AlongN => p.work.m_items,
    }
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn reciprocals_divide_every_number_up_to_the_most() {
        for by in (2..3000).chain([4096, 65_535, 65_536, 1_000_003]) {
            let most = ((1u64 << 32) / by).min(u64::from(u32::MAX));
            let factor = reciprocal(by as u32, most as u32).unwrap();
            let around = |n: u64| n.saturating_sub(2)..=n + 2;
            // Quotients change at multiples.
            let quotients = (0..=most / by).step_by((most / by / 500).max(1) as usize);
            let numbers = quotients.flat_map(|quotient| around(quotient * by)).chain(around(most));
            for n in numbers.filter(|n| *n <= most) {
                assert_eq!((n * u64::from(factor)) >> 32, n / by, "{n} / {by}");
            }
            assert_eq!(reciprocal(by as u32, most as u32 + 1), None);
        }
        assert_eq!(reciprocal(0, 5), None);
    }
}
