//! How many bytes each launch moves and how many MMAs it issues: the plan's arithmetic, before anything runs.
//!
//! These are exact figures for the kernels that the templates make, not estimates: `tests/bytes.rs` holds them to the
//! emulator's count. Caches are not in them: bytes are those that cross between global memory (L2 or beyond) and SMs.

use crate::config::{Accumulators, Multicast, Schedule, Strategy};
use crate::plan::{Operand, Plan};
use crate::problem::Shape;

/// No more tiles than an item has, and one, lie beyond a tensor in part or whole.
const LAST_TILES: u64 = 32;
/// Bytes of the counter that the parts of a tile are counted in.
const COUNTER_BYTES: u64 = 4;

/// Bytes that one launch moves between global memory and SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Codes of A that are loaded, over all tiles.
    pub a: u64,
    /// Codes of B1 and B2 that are loaded.
    pub b: u64,
    /// Scale factors that are loaded.
    pub scales: u64,
    /// Activations in another order that are written for the next launch, whose `a` they are.
    pub permuted: u64,
    /// fp32 products of earlier launches that are read back.
    pub products_read: u64,
    /// fp32 products that are written for later launches.
    pub products_written: u64,
    /// Partial sums and counters that are written, and read back by the last part of a tile: as many each way.
    pub partials: u64,
    /// Row offsets of groups, which every CTA reads: at most, with cluster launch control, since clusters that others take
    /// over never start.
    pub offsets: u64,
    /// C.
    pub c: u64,
    /// D1 and D2, where they are kept.
    pub kept_preactivations: u64,
}

impl Traffic {
    /// Bytes read.
    pub fn read(&self) -> u64 {
        sum([self.a, self.b, self.scales, self.products_read, self.partials, self.offsets])
    }

    /// Bytes written.
    pub fn written(&self) -> u64 {
        sum([self.permuted, self.products_written, self.partials, self.c, self.kept_preactivations])
    }
}

/// Problems of a size that no memory holds are legal too: their bytes saturate.
fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

fn sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

/// Loads of scale factors that reach all CTAs that need them.
pub(super) struct ScaleSharing {
    /// Whether neighbours share those of the MMA's row side, and those of its column side.
    pub rows: bool,
    pub columns: bool,
    /// Loads of the column side's that one tile makes: a pair's CTAs may have one each.
    pub copies: u64,
}

impl Plan {
    /// What each launch moves, in order: of groups of rows, if they differ as little as they can
    /// ([`Plan::traffic_of`] for others).
    pub fn traffic(&self) -> Vec<Traffic> {
        let Shape { n, groups, .. } = self.problem.shape;
        if groups.by_rows() {
            return self.traffic_of(&self.problem.shape.even_sizes());
        }
        let c = Operand::C.bytes(&self.problem) + Operand::Sfc.bytes(&self.problem);
        let kept_preactivations =
            self.problem.preactivation_bytes().saturating_mul(self.problem.operation.products().into());
        let product = 4 * self.problem.shape.rows() * u64::from(n.next_multiple_of(4));
        match self.strategy {
            _ if self.orders_first() => {
                vec![self.order_traffic(), Traffic { c, kept_preactivations, ..self.operands(1, 2, 2) }]
            }
            Strategy::Interleaved => vec![Traffic { c, kept_preactivations, ..self.operands(1, 2, 2) }],
            Strategy::Sequential => vec![Traffic { c, kept_preactivations, ..self.operands(2, 1, 2) }],
            Strategy::Single => vec![Traffic { c, kept_preactivations, ..self.operands(1, 1, 1) }],
            Strategy::SecondFused => {
                let gemm = self.operands(1, 1, 1);
                vec![
                    Traffic { products_written: product, ..gemm },
                    Traffic { products_read: product, c, kept_preactivations, ..gemm },
                ]
            }
            Strategy::TwoPass => {
                let gemm = Traffic { products_written: product, ..self.operands(1, 1, 1) };
                let gate =
                    Traffic { products_read: 2 * product, c, kept_preactivations, ..Traffic::default() };
                vec![gemm, gemm, gate]
            }
        }
    }

    /// Bytes that all launches read, and that they write.
    pub fn moved_bytes(&self) -> (u64, u64) {
        let traffic = self.traffic();
        (sum(traffic.iter().map(Traffic::read)), sum(traffic.iter().map(Traffic::written)))
    }

    /// What the launch moves that brings activations into order.
    pub(super) fn order_traffic(&self) -> Traffic {
        let permuted = self.loaded_a_bytes();
        Traffic { a: Operand::A.bytes(&self.problem), permuted, ..Traffic::default() }
    }

    /// Bytes of A as the MMAs' launch finds it.
    pub(super) fn loaded_a_bytes(&self) -> u64 {
        let map = self.tensor_maps.iter().find(|map| map.operand == Operand::A);
        match map.and_then(|map| map.workspace) {
            Some(permuted) => permuted.bytes,
            None => Operand::A.bytes(&self.problem),
        }
    }

    /// K loops of `passes` over all of K with `b_tiles` tiles of B each, whose tiles hold `products` sums.
    fn operands(&self, passes: u64, b_tiles: u64, products: u64) -> Traffic {
        let (m_items, n_items) = (u64::from(self.work.m_items), u64::from(self.work.n_items));
        // Rows beyond a tensor are filled with zeros, not loaded: over a column of items, A is there once, however
        // many CTAs an item has and whether they share it.
        let a = product([passes, n_items, self.loaded_a_bytes()]);
        let b = product([passes, b_tiles, m_items, Operand::B1.bytes(&self.problem)]);
        let blocks = product([passes, self.scale_blocks(b_tiles), self.scales.row_block_bytes]);
        let tiles = product([u64::from(self.work.tiles), self.multicast.ctas().into()]);
        let scales = sum([blocks, product([passes, self.factor_bytes(tiles, b_tiles)])]);
        let partials = self.partial_bytes(self.work.tiles.into(), products);
        Traffic { a, b, scales, partials, ..Traffic::default() }
    }

    /// Bytes of f32 scale factors that a K loop over so many tiles loads, with `b_tiles` tensors of B's.
    pub(super) fn factor_bytes(&self, tiles: u64, b_tiles: u64) -> u64 {
        product([4, tiles, self.k_loop.tiles.into(), self.loaded_factors(b_tiles)])
    }

    /// Bytes that the parts of so many tiles leave in the workspace.
    pub(super) fn partial_bytes(&self, tiles: u64, products: u64) -> u64 {
        let ctas = u64::from(self.cluster_ctas());
        let sums = u64::from(self.cta_rows) * u64::from(self.mma_columns) * 4 * products;
        // One of two parts leaves its sums. The counter is counted up by both and again when the sums are there, read, and set back.
        let counter = if self.has_fixup() { 4 * COUNTER_BYTES } else { COUNTER_BYTES };
        product([self.shared_parts(tiles), ctas, sums + counter])
    }

    /// Row blocks of scale factors that one K loop over all tiles loads, with `b_tiles` tensors of them for B.
    fn scale_blocks(&self, b_tiles: u64) -> u64 {
        let group = u64::from(self.cta_group.ctas());
        let neighbours = u64::from(self.multicast.ctas());
        // Tiles along M and along N, those included that only fill an item up.
        let [m_wide, n_wide] = match self.multicast {
            Multicast::None => [1, 1],
            Multicast::A(ctas) => [1, ctas],
            Multicast::B(ctas) => [ctas, 1],
        };
        let m_wide = u64::from(self.work.m_items) * u64::from(m_wide);
        let n_wide = u64::from(self.work.n_items) * u64::from(n_wide);
        // A CTA has one row block on the MMA's row side, and all those of the tile on its column side.
        let (rows, columns, row_tensors, column_tensors) =
            if self.swap_ab { (n_wide, m_wide, b_tiles, 1) } else { (m_wide, n_wide, 1, b_tiles) };
        let boxed = self.scales.box_blocks.is_some();
        let row_blocks = rows * group * u64::from(self.row_row_blocks());
        let row_blocks = if boxed { row_blocks.min(self.scales.rows_total.into()) } else { row_blocks };
        let whole = u64::from(self.column_row_blocks());
        // Bulk copies bring every row block of a tile, the last one again for one that does not exist. Boxes beyond
        // the tensor are filled with zeros; only the last tiles' can be.
        let ends = if boxed { columns.min(LAST_TILES) } else { 0 };
        let there = |tile: u64| {
            let first = tile * u64::from(self.mma_columns) / 128;
            whole.min(u64::from(self.scales.columns_total).saturating_sub(first))
        };
        let column_blocks = (columns - ends) * whole + (columns - ends..columns).map(there).sum::<u64>();
        let sharing = self.scale_sharing();
        let row_loads = if sharing.rows { columns / neighbours } else { columns };
        let column_loads = if sharing.columns { rows / neighbours } else { rows * sharing.copies };
        let on_rows = product([row_tensors, row_blocks, row_loads]);
        let matrix = sum([on_rows, product([column_tensors, column_blocks, column_loads])]);
        product([matrix, self.problem.shape.groups.count().into()])
    }

    /// Which loads of scale factors count once for several CTAs.
    pub(super) fn scale_sharing(&self) -> ScaleSharing {
        let shared = self.scales.shared && self.multicast != Multicast::None;
        let rows = shared && matches!(self.multicast, Multicast::A(_)) != self.swap_ab;
        let copies = if self.scales.shared { 1 } else { self.cta_group.ctas().into() };
        ScaleSharing { rows, columns: shared && !rows, copies }
    }

    /// Parts of tiles whose K several clusters share, over all such tiles.
    fn shared_parts(&self, tiles: u64) -> u64 {
        match self.work.schedule {
            Schedule::SplitK(1)
            | Schedule::ClusterSplitK(_)
            | Schedule::OneTile
            | Schedule::Persistent
            | Schedule::Dynamic => 0,
            Schedule::SplitK(parts) => product([parts.into(), tiles]),
            Schedule::StreamK => {
                let k_tiles = u64::from(self.k_loop.tiles);
                let (share, longer) = (u64::from(self.work.share), u64::from(self.work.longer));
                // Each border between two clusters that is not one between tiles makes a part more of its tile.
                let borders = (1..u64::from(self.work.clusters)).map(|c| c * share + c.min(longer));
                let mut shared = 0;
                let mut last_tile = None;
                for tile in borders.filter(|unit| !unit.is_multiple_of(k_tiles)).map(|unit| unit / k_tiles) {
                    shared += if last_tile == Some(tile) || self.has_fixup() { 1 } else { 2 };
                    last_tile = Some(tile);
                }
                shared
            }
        }
    }

    /// M, N and K of one MMA instruction.
    pub fn mma_shape(&self) -> [u32; 3] {
        let n = match self.accumulators {
            Accumulators::Separate | Accumulators::InterleavedRows => self.mma_columns,
            Accumulators::SideBySide => 2 * self.mma_columns,
        };
        [self.isa().mma_rows() * self.cta_group.ctas(), n / self.isa().mmas_of_columns(n), self.kind.mma_k()]
    }

    /// MMA steps of the last K tile. Warpgroups issue the same MMAs for every one: beyond K they add zeros.
    pub(super) fn last_steps(&self) -> u32 {
        if self.isa().multiplies_beyond_k() { self.k_loop.blocks } else { self.k_loop.last_blocks }
    }

    /// Multiply-adds of one MMA instruction, rows, columns and K beyond the problem included.
    pub fn mma_macs(&self) -> u64 {
        self.mma_shape().into_iter().map(u64::from).product()
    }

    /// MMA instructions that all launches issue together; those of a pair of CTAs count once. Groups of rows are
    /// taken to differ as little as they can ([`Plan::mmas_issued_for`] for others).
    pub fn mmas_issued(&self) -> u64 {
        self.mmas_issued_for(&self.problem.shape.even_sizes())
    }

    /// The same for groups of these sizes.
    pub fn mmas_issued_for(&self, sizes: &[u32]) -> u64 {
        let k = &self.k_loop;
        let steps = u64::from(k.tiles - 1) * u64::from(k.blocks) + u64::from(self.last_steps());
        let products = match self.accumulators {
            Accumulators::Separate => u64::from(self.problem.operation.products()),
            Accumulators::SideBySide | Accumulators::InterleavedRows => 1,
        };
        let blocks = u64::from(self.isa().mmas_of_rows() * self.isa().mmas_of_columns(self.mma_columns));
        self.items_of(sizes) * u64::from(self.multicast.ctas()) * steps * products * blocks
    }

    /// Bytes that must cross DRAM: the problem's own, and the workspace once each way.
    pub fn dram_bytes(&self) -> u64 {
        let traffic = self.traffic();
        let extra = traffic.iter().map(|t| {
            sum([t.permuted, t.permuted, t.products_read, t.products_written, t.partials, t.partials])
        });
        sum([self.problem.compulsory_bytes(), sum(extra)])
    }

    /// Bytes that one CTA's K loop loads of one K tile: codes of A and of B, and scale factors.
    pub fn k_tile_bytes(&self) -> [(Operand, u32); 3] {
        let b = self.smem.b_tiles * self.smem.b_box_bytes * self.smem.b_boxes;
        let a = if self.smem.packed_a_bytes > 0 { self.smem.packed_a_bytes } else { self.smem.a_bytes };
        let a = a - self.smem.boxes * self.smem.blank_bytes;
        [(Operand::A, a), (Operand::B1, b), (Operand::Sfa, self.scales.slot_tx)]
    }
}
