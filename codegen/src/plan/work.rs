//! Who computes what: clusters, tiles of C, shares of K, and what they share them through.

use crate::config::{Raster, Schedule};
use crate::kernel::{WorkspaceBuffer, WorkspaceKind};

/// Bytes of an answer of cluster launch control (PTX ISA, `clusterlaunchcontrol.try_cancel`).
pub(super) const RESPONSE_BYTES: u32 = 16;
/// Answers in flight: one that is being read, one that is on its way.
pub(crate) const RESPONSES: u32 = 2;

/// How the tiles of C are shared out. An item of work is a tile, or a part of a tile's K.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The schedule, with `auto` settled.
    pub schedule: Schedule,
    /// The order of tiles.
    pub raster: Raster,
    /// Items of one K each: tiles of C, or as many neighbours at once as a cluster has. With groups of rows, as many as
    /// the least favourable sizes make.
    pub tiles: u32,
    /// How many of them there are along M, in one matrix of a batch; over all groups of rows.
    pub m_items: u32,
    /// How many of them there are along N.
    pub n_items: u32,
    /// Clusters of the grid.
    pub clusters: u32,
    /// Parts of a tile's K: of each tile with `split_k`, 1 otherwise.
    pub splits: u32,
    /// Parts of a tile's K that are the CTAs of one cluster: with `cluster_split_k`, 1 otherwise.
    pub cluster_parts: u32,
    /// K tiles of an item at least: a tile's K tiles by the parts, or all there are by the clusters.
    pub share: u32,
    /// How many of the first items have one K tile more.
    pub longer: u32,
    /// Slots of partial sums in the workspace, each of a CTA's accumulators.
    pub partials: u32,
    /// Whether a launch says how many rows of A count, so that items behind them are left out.
    pub counts_rows: bool,
}

impl Work {
    /// Whether a cluster may compute more than one item.
    pub fn is_looped(&self) -> bool {
        matches!(self.schedule, Schedule::Persistent | Schedule::Dynamic | Schedule::StreamK)
    }

    /// K tiles of the first [`longer`](Work::longer) items.
    pub(crate) fn longer_share(&self) -> u32 {
        self.share + 1
    }

    /// Whether an item may be a part of a tile's K.
    pub fn has_ranges(&self) -> bool {
        matches!(self.schedule, Schedule::StreamK | Schedule::SplitK(_) | Schedule::ClusterSplitK(_))
    }

    /// Works out the shares. `items` are those along M and N in each of so many `matrices`, `capacity` is how many
    /// clusters the chip runs at once.
    pub(crate) fn new(
        schedule: Schedule,
        raster: Raster,
        items: [u32; 2],
        matrices: u32,
        k_tiles: u32,
        capacity: u32,
    ) -> Work {
        let tiles = items[0] * items[1] * matrices;
        let whole = Work {
            schedule,
            raster,
            tiles,
            m_items: items[0],
            n_items: items[1],
            clusters: tiles,
            splits: 1,
            cluster_parts: 1,
            share: k_tiles,
            longer: 0,
            partials: 0,
            counts_rows: false,
        };
        match schedule {
            Schedule::OneTile | Schedule::Dynamic => whole,
            Schedule::Persistent => Work { clusters: tiles.min(capacity), ..whole },
            Schedule::SplitK(splits) => Work {
                clusters: tiles.saturating_mul(splits),
                splits,
                share: k_tiles / splits,
                longer: k_tiles % splits,
                partials: tiles.saturating_mul(splits),
                ..whole
            },
            Schedule::ClusterSplitK(parts) => {
                Work { cluster_parts: parts, share: k_tiles / parts, longer: k_tiles % parts, ..whole }
            }
            Schedule::StreamK => {
                let units = u64::from(tiles) * u64::from(k_tiles);
                let clusters = u64::from(capacity).min(units);
                Work {
                    clusters: clusters as u32,
                    share: (units / clusters) as u32,
                    longer: (units % clusters) as u32,
                    // A cluster can have the end of one tile and the start of another.
                    partials: 2 * clusters as u32,
                    ..whole
                }
            }
        }
    }

    /// The buffers through which partial sums go: `ctas` of a tile, each with so many bytes of
    /// accumulators.
    pub(super) fn buffers(&self, ctas: u32, bytes: u64) -> Vec<WorkspaceBuffer> {
        if self.partials == 0 {
            return Vec::new();
        }
        let partials = u64::from(self.partials) * u64::from(ctas) * bytes;
        vec![
            WorkspaceBuffer::new(WorkspaceKind::Partials, partials, false),
            WorkspaceBuffer::new(WorkspaceKind::Counters, 4 * u64::from(self.tiles) * u64::from(ctas), true),
        ]
    }
}
