//! A plan in the making: what has to fit, before any address is known.

use super::{COUNT_LIMIT, MMA_ROWS, STAGE_LIMIT, counts, load, shares_scales};
use crate::arch::{Arch, TensorCore};
use crate::config::{
    AReuse, Accumulators, Buffers, Config, Consumers, CtaGroup, KOrder, Multicast, Raster, Schedule, Setting,
    SfLoad, SfPreload, Store, Strategy, Tile,
};
use crate::error::{ConfigError, Sum};
use crate::plan::memory::{SmemParts, TmemParts};
use crate::plan::tail;
use crate::plan::transfer::MAX_BLOCKS;
use crate::plan::work::{RESPONSES, Work};
use crate::plan::{Plan, Staging, Swizzle, Warpgroups};
use crate::problem::{Groups, MmaKind, Problem, Shape};

/// What is known of a plan before memory is laid out.
pub(super) struct Draft<'a> {
    pub problem: &'a Problem,
    pub asked: &'a Config,
    pub arch: Arch,
    pub strategy: Strategy,
    pub tile: Tile,
    /// Whether weights are on the MMA's M side.
    pub swap_ab: bool,
    /// The warpgroups that hold accumulators, where tensor memory does not.
    pub warpgroups: Option<Warpgroups>,
    pub m_tiles: u32,
    pub n_tiles: u32,
    pub k_tiles: u32,
    pub kind: MmaKind,
    /// MMA steps of a K tile.
    pub blocks: u32,
    /// Bytes of a row of a K tile in SMEM.
    pub row_bytes: u32,
    pub store: Store,
    pub swizzle: Swizzle,
    pub work: Work,
    /// Tiles of C in flight.
    pub buffers: u32,
    /// Columns of C that their accumulators share.
    pub shared: u32,
    /// The order of the K loop.
    pub k_order: KOrder,
}

/// What is settled before it is known whether anything fits.
#[derive(Clone, Copy)]
pub(super) struct Settled {
    pub strategy: Strategy,
    pub tile: Tile,
    /// Whether weights are on the MMA's M side.
    pub swap_ab: bool,
    /// The warpgroups that hold accumulators, where tensor memory does not.
    pub warpgroups: Option<Warpgroups>,
}

impl<'a> Draft<'a> {
    /// Settles the schedule, so that from here on everything but sizes in memory is known.
    pub fn new(
        problem: &'a Problem,
        asked: &'a Config,
        arch: Arch,
        settled: Settled,
        errors: &mut Vec<ConfigError>,
    ) -> Result<Self, Vec<ConfigError>> {
        let Settled { strategy, tile, swap_ab, warpgroups } = settled;
        let shape = problem.shape;
        let kind = problem.formats.kind(arch).unwrap_or(MmaKind::Mxf4Nvf4);
        let row_bytes = row_bytes(kind, tile);
        // Of a batch, those of one matrix; over all groups of rows, as many as there can be.
        let m_tiles = |rows: u32| match shape.groups {
            Groups::Rows(_) => shape.row_blocks(rows) as u32,
            Groups::One | Groups::Batch(_) => shape.m.div_ceil(rows),
        };
        let n_tiles = shape.n.div_ceil(tile.n);
        let k_tiles = shape.k.div_ceil(tile.k);
        let items = match asked.multicast {
            Multicast::None => [m_tiles(tile.m), n_tiles],
            Multicast::A(ctas) => [m_tiles(tile.m), n_tiles.div_ceil(ctas)],
            Multicast::B(ctas) => [m_tiles(tile.m.saturating_mul(ctas)), n_tiles],
        };
        counts::check(problem, strategy, warpgroups, errors);
        let even = warpgroups.is_some_and(|warpgroups| warpgroups.both);
        let work = settle_work(asked, arch, items, matrices(shape), k_tiles, even);
        let work = work.map_err(|error| {
            errors.push(error);
            std::mem::take(errors)
        })?;
        Ok(Draft {
            problem,
            asked,
            arch,
            strategy,
            tile,
            swap_ab,
            warpgroups,
            m_tiles: m_tiles(tile.m),
            n_tiles,
            k_tiles,
            kind,
            blocks: tile.k / kind.mma_k(),
            row_bytes,
            store: asked.store.unwrap_or_else(|| Store::Direct),
            swizzle: Swizzle::of_row(row_bytes),
            work,
            buffers: 1,
            shared: 0,
            k_order: asked.k_order.unwrap_or_else(|| KOrder::Forward),
        })
    }

    /// The plan, if everything fits.
    pub fn plan(mut self, mut errors: Vec<ConfigError>) -> Result<Plan, Vec<ConfigError>> {
        if self.blocks as usize > MAX_BLOCKS {
            // Such a tile's first stage alone is beyond any SMEM; say it with the sum.
            return Err(vec![self.smem_error("tile", self.smem_parts(1))]);
        }
        let columns = match self.warpgroups {
            Some(_) => Some(0),
            None => {
                (self.buffers, self.shared) = self.settle_buffers(&mut errors);
                self.tmem_columns(&mut errors)
            }
        };
        let row_bytes = u64::from(self.problem.shape.n) * u64::from(self.problem.formats.c.bits()) / 8;
        if self.store == Store::Tma && !row_bytes.is_multiple_of(16) {
            errors.push(ConfigError::StoreTma { n: self.problem.shape.n, row_bytes });
        }
        // Rows of a box are whole units of 16 bytes; columns that do not fill one would have no place in shared memory.
        let bits = self.problem.formats.c.bits();
        let boxed = self.store == Store::Tma && !self.swap_ab && self.strategy != Strategy::TwoPass;
        if boxed && !(self.tile.n * bits).is_multiple_of(128) {
            errors.push(ConfigError::StoreTmaTile { tile_n: self.tile.n, bytes: self.tile.n * bits / 8 });
        }
        if self.asked.k_order == Setting::Auto {
            self.k_order = self.choose_k_order();
        }
        let tail = match self.k_order {
            KOrder::SplitTail(tail) if !(1..=self.k_tiles).contains(&tail) => {
                errors.push(ConfigError::SplitTailLength { tail, k_tiles: self.k_tiles });
                0
            }
            KOrder::SplitTail(tail) => tail,
            _ => 0,
        };
        let all_tail = tail == self.k_tiles;
        if all_tail && self.asked.a_reuse == Setting::Fixed(AReuse::Collector) {
            errors.push(ConfigError::NothingToReuse { reason: "the split tail is the whole K loop" });
        }
        let stages = self.stages(&mut errors);
        if let Some(stages) = stages
            && tail > stages
        {
            errors.push(ConfigError::SplitTailStages { tail, stages });
        }
        match (stages, columns) {
            (Some(stages), Some(columns)) if errors.is_empty() => Ok(self.finish(stages, columns, tail)),
            _ => Err(errors),
        }
    }

    /// Columns of the tile in the MMA's eyes.
    pub fn mma_columns(&self) -> u32 {
        if self.swap_ab { self.tile.m } else { self.tile.n }
    }

    /// Rows of a tile in one CTA.
    pub fn cta_rows(&self) -> u32 {
        self.warpgroups.map_or(MMA_ROWS, |warpgroups| warpgroups.tile_rows())
    }

    /// Warps that finish tiles.
    fn epilogue_warps(&self) -> u32 {
        self.warpgroups.map_or(4, |warpgroups| 4 * warpgroups.count)
    }

    /// Row blocks of scale factors that a tile of A, and one of B, touches in one CTA.
    pub fn row_blocks(&self) -> [u32; 2] {
        let columns = self.mma_columns().div_ceil(128);
        if self.kind == MmaKind::Decoded && !self.decodes_a() {
            // 96 rows can be in two blocks of 128.
            return [0, if self.has_rows_of_both() && !128u32.is_multiple_of(self.tile.n) { 2 } else { 1 }];
        }
        if self.swap_ab { [columns, 1] } else { [1, columns] }
    }

    /// CTAs of a cluster: of a tile, and of those that share its operands.
    pub fn cluster_ctas(&self) -> u32 {
        self.asked.group().ctas() * self.asked.multicast.ctas() * self.work.cluster_parts
    }

    /// Tiles of B in a stage.
    pub fn b_tiles(&self) -> u32 {
        if self.strategy == Strategy::Interleaved { 2 } else { 1 }
    }

    /// Products that a tile accumulates in TMEM.
    pub fn products(&self) -> u32 {
        if self.strategy.is_fused() { 2 } else { 1 }
    }

    /// Whether the epilogue hears of product 1 before product 2 is done.
    pub fn products_apart(&self) -> bool {
        self.strategy == Strategy::Sequential || matches!(self.k_order, KOrder::SplitTail(_))
    }

    pub fn tmem_parts(&self, buffers: u32) -> TmemParts {
        TmemParts {
            mma_n: self.mma_columns(),
            blocks: self.scale_blocks(),
            a_row_blocks: self.row_blocks()[0],
            b_row_blocks: self.row_blocks()[1],
            layout: self.asked.layout(),
            products: self.products(),
            b_tiles: self.b_tiles(),
            buffers,
            shared: 0,
        }
    }

    /// The parts as they were settled.
    pub fn settled_tmem_parts(&self) -> TmemParts {
        TmemParts { shared: self.shared, ..self.tmem_parts(self.buffers) }
    }

    /// Tiles of C in flight, and columns of C that they share: what was asked for, or two where that helps and fits.
    fn settle_buffers(&self, errors: &mut Vec<ConfigError>) -> (u32, u32) {
        let looped = self.work.is_looped();
        let limit = self.asked.tmem_columns.unwrap_or_else(|| self.arch.limits().tmem_columns);
        match self.asked.accumulator_buffers {
            Setting::Fixed(buffers) if !looped && buffers != Buffers::Whole(1) => {
                errors.push(ConfigError::NothingToOverlap { buffers, schedule: self.work.schedule });
                (1, 0)
            }
            Setting::Fixed(Buffers::Whole(buffers)) => (buffers, 0),
            Setting::Fixed(Buffers::Overlapped) => {
                let (two, chunk, columns) = (self.tmem_parts(2), self.chunk().0, self.mma_columns());
                let shared = two.missing(limit, chunk);
                if shared < u64::from(columns) {
                    return (2, shared as u32);
                }
                // One buffer may be too much, too: the tile is to blame then.
                if self.tmem_parts(1).total() <= u64::from(limit) {
                    errors.push(ConfigError::OverlapAll { limit, sum: two.sum(), shared, columns, chunk });
                }
                (1, 0)
            }
            // Two where that helps; if they need not share all they have.
            Setting::Auto => match self.tmem_parts(2).missing(limit, self.chunk().0) {
                shared if looped && shared < u64::from(self.mma_columns()) => (2, shared as u32),
                _ => (1, 0),
            },
        }
    }

    /// Columns to allocate, if they fit.
    fn tmem_columns(&self, errors: &mut Vec<ConfigError>) -> Option<u32> {
        let limit = self.arch.limits().tmem_columns;
        let parts = self.settled_tmem_parts();
        let sum = parts.sum();
        if parts.total() > u64::from(limit) {
            let alone = self.tmem_parts(1).total() <= u64::from(limit);
            let knob = if self.buffers > 1 && alone { "accumulator_buffers" } else { "tile" };
            errors.push(ConfigError::Tmem { knob, limit, sum });
            return None;
        }
        let least = (parts.total() as u32).next_power_of_two().max(32);
        match self.asked.tmem_columns {
            Setting::Auto => Some(least),
            Setting::Fixed(given) if given >= least => Some(given),
            Setting::Fixed(given) => {
                errors.push(ConfigError::TmemColumnsTooFew { given, sum });
                None
            }
        }
    }

    pub fn staging(&self) -> Option<Staging> {
        let bits = self.problem.formats.c.bits();
        // Rows of the tile that a warp stores together.
        let rows = if self.warpgroups.is_some() { 16 } else { 32 };
        if let (true, Some(warpgroups)) = (self.swap_ab, self.warpgroups) {
            // A warpgroup has 64 columns of C of each of its MMAs, or 32 of an MMA of both products.
            let columns = warpgroups.rows() / warpgroups.blocks.max(1);
            let swizzle = Swizzle::of_row(columns * bits / 8);
            let span = swizzle.span();
            let box_bytes = span * self.tile.m;
            return (self.store == Store::Tma && self.strategy != Strategy::TwoPass).then_some(Staging {
                span,
                columns,
                boxes: 1,
                box_rows: self.tile.m,
                box_bytes,
                warps: 4,
                warp_bytes: box_bytes * warpgroups.blocks,
                swizzle,
                swizzle_mask: span / 16 - 1,
            });
        }
        if self.swap_ab {
            // A warp has 32 columns of C: one box, whose rows its lanes write side by side.
            let span = 32 * bits / 8;
            let box_bytes = span * self.tile.m;
            let boxed = self.store == Store::Tma && self.strategy != Strategy::TwoPass;
            return boxed.then_some(Staging {
                span,
                columns: 32,
                boxes: 1,
                box_rows: self.tile.m,
                box_bytes,
                warps: 1,
                warp_bytes: box_bytes,
                swizzle: Swizzle::None,
                swizzle_mask: 0,
            });
        }
        (self.store == Store::Tma && self.strategy != Strategy::TwoPass).then(|| {
            let swizzle = Swizzle::of_row(self.tile.n * bits / 8);
            let span = swizzle.span();
            let columns = span * 8 / bits;
            let boxes = self.tile.n / columns;
            let box_bytes = rows * span;
            let swizzle_mask = span / 16 - 1;
            Staging {
                span,
                columns,
                boxes,
                box_rows: rows,
                box_bytes,
                warps: 1,
                warp_bytes: boxes * box_bytes * self.warpgroups.map_or(1, |warpgroups| warpgroups.blocks),
                swizzle,
                swizzle_mask,
            }
        })
    }

    pub fn sf_slots(&self, stages: u32) -> u32 {
        match self.asked.sf_preload {
            SfPreload::PerStage => stages,
            SfPreload::Ahead(ahead) => stages + ahead,
            SfPreload::All => 1,
        }
    }

    /// MMA steps that a block of four scale factors serves.
    pub fn steps_per_block(&self) -> u32 {
        self.problem.formats.scale_vector().map_or(4, |vector| 4 * vector / self.kind.mma_k())
    }

    /// Blocks of four scale factors along a K tile; 0 without scale factors.
    pub fn scale_blocks(&self) -> u32 {
        if self.kind.scales_per_mma() == 0 { 0 } else { self.blocks.div_ceil(self.steps_per_block()) }
    }

    /// Bytes of a row block of scale factors in one slot.
    pub fn sf_row_block(&self) -> u64 {
        let blocks = match self.asked.sf_preload {
            SfPreload::All => self.problem.scale_columns().div_ceil(4),
            _ => self.scale_blocks(),
        };
        u64::from(blocks) * 512
    }

    /// Each scale factor once a cluster; a plain bulk copy where no other CTA needs it.
    pub fn sf_load(&self) -> SfLoad {
        self.asked.sf_load.unwrap_or_else(|| match shares_scales(self.asked) {
            // Each CTA reads those of its own weights.
            _ if self.kind == MmaKind::Decoded => SfLoad::Bulk,
            false => SfLoad::Bulk,
            true => SfLoad::Multicast,
        })
    }

    /// K blocks of a box of scale factors: as many as divide a slot, up to the 2048 bytes that a
    /// box of 256 eight-byte elements has.
    pub fn sf_box_blocks(&self) -> Option<u32> {
        let blocks = (self.sf_row_block() / 512) as u32;
        let largest = (1..=4).rev().find(|size| blocks.is_multiple_of(*size)).unwrap_or(1);
        (blocks > 0 && self.sf_load() != SfLoad::Bulk).then_some(largest)
    }

    /// Whether a launch of its own brings activations into the order of K in which weights are decoded.
    pub fn orders_first(&self) -> bool {
        self.warpgroups.is_some_and(|warpgroups| warpgroups.ordered)
    }

    /// Whether weights are decoded to MMAs whose rows are of both products.
    pub fn has_rows_of_both(&self) -> bool {
        self.warpgroups.is_some_and(|warpgroups| warpgroups.both)
    }

    /// Whether A is decoded as well as B.
    pub fn decodes_a(&self) -> bool {
        self.problem.formats.decodes_a(self.arch)
    }

    /// Bytes of a row of B in a K tile: decoded weights are smaller than what they meet.
    pub fn b_row_bytes(&self) -> u32 {
        if self.kind == MmaKind::Decoded { self.tile.k / 2 } else { self.row_bytes }
    }

    pub fn smem_parts(&self, stages: u32) -> SmemParts {
        let barriers: u32 = self.barrier_counts(stages).iter().map(|(_, count, _)| count).sum();
        SmemParts {
            tile: self.tile,
            ctas: self.asked.group().ctas(),
            b_tiles: self.b_tiles(),
            expanded: [self.problem.formats.a, self.problem.formats.b]
                .map(|format| self.kind.expands(format.spec().element)),
            span: self.swizzle.span(),
            row_bytes: self.row_bytes,
            b_row_bytes: self.b_row_bytes(),
            packed_a_row_bytes: if self.decodes_a() { self.b_row_bytes() } else { 0 },
            stages,
            sf_slots: self.sf_slots(stages),
            sf_row_block: self.sf_row_block(),
            a_row_blocks: self.row_blocks()[0],
            b_row_blocks: self.row_blocks()[1],
            barriers,
            responses: if self.work.schedule == Schedule::Dynamic { RESPONSES } else { 0 },
            groups: self.groups(),
            tmem: self.warpgroups.is_none(),
            marks: self.work.has_ranges(),
            staging: self.staging().map_or(self.cluster_sums(), |staging| {
                self.epilogue_warps() / staging.warps * staging.warp_bytes
            }),
            staging_over_stages: !self.work.is_looped(),
        }
    }

    /// Groups of rows, which a table in SMEM lists; 0 without.
    fn groups(&self) -> u32 {
        match self.problem.shape.groups {
            Groups::Rows(count) => count,
            Groups::One | Groups::Batch(_) => 0,
        }
    }

    /// Items along M that one matrix has, or at most one group of rows.
    pub fn m_items_together(&self) -> u32 {
        match self.asked.multicast {
            Multicast::B(ctas) => self.problem.shape.m.div_ceil(self.tile.m.saturating_mul(ctas)),
            Multicast::None | Multicast::A(_) => self.problem.shape.m.div_ceil(self.tile.m),
        }
    }

    /// Bytes of a CTA's accumulators, where a cluster adds them up in shared memory.
    fn cluster_sums(&self) -> u32 {
        if self.work.cluster_parts == 1 {
            0
        } else {
            4 * self.cta_rows() * self.mma_columns() * self.products()
        }
    }

    /// Columns that are finished together, and columns that a CTA finishes.
    pub fn chunk(&self) -> (u32, u32) {
        let columns = self.mma_columns() / self.work.cluster_parts;
        if self.warpgroups.is_some() {
            // A pair of 8 x 8 blocks of a warp's 16 rows: what one `stmatrix` takes.
            let widest = if self.has_rows_of_both() { 32 } else { 16 };
            return (
                [32, 16].into_iter().find(|c| *c <= widest && columns.is_multiple_of(*c)).unwrap_or(8),
                columns,
            );
        }
        (load::chunk(self.asked, self.problem, columns, self.swap_ab), columns)
    }

    /// Up; with a split tail where a CTA has one tile, whose epilogue has nothing else to overlap with, as long as
    /// [`tail`] says, and no longer than the pipeline.
    fn choose_k_order(&mut self) -> KOrder {
        let cannot = self.warpgroups.is_some()
            || self.strategy != Strategy::Interleaved
            || self.asked.layout() == Accumulators::SideBySide
            || self.work.has_ranges()
            || self.work.is_looped();
        let model =
            tail::Model::new(self.mma_columns(), self.asked.group().ctas(), self.blocks, self.scale_blocks());
        let tail = model.tail(self.k_tiles);
        if cannot || tail == 0 {
            return KOrder::Forward;
        }
        let whole = self.stages(&mut Vec::new());
        self.k_order = KOrder::SplitTail(tail);
        match (whole, self.stages(&mut Vec::new())) {
            // Its second barrier must not cost a stage.
            (Some(whole), Some(stages)) if stages == whole => KOrder::SplitTail(tail.min(stages)),
            _ => KOrder::Forward,
        }
    }

    fn smem_error(&self, knob: &'static str, parts: SmemParts) -> ConfigError {
        ConfigError::Smem { knob, limit: self.arch.limits().smem_bytes, sum: parts.sum() }
    }

    /// The asked depth if it fits; else, for auto, the deepest that fits and that K can fill.
    fn stages(&self, errors: &mut Vec<ConfigError>) -> Option<u32> {
        let limit = u64::from(self.arch.limits().smem_bytes);
        let fits = |stages: u32| self.smem_parts(stages).sum().total() <= limit;
        let least = self.least_stages();
        if let Setting::Fixed(stages) = self.asked.stages
            && fits(least)
        {
            if stages < least {
                errors.push(ConfigError::StagesInFlight { given: stages, least, k_tiles: self.k_tiles });
                return None;
            }
            if !fits(stages) {
                errors.push(self.smem_error("stages", self.smem_parts(stages)));
                return None;
            }
            return Some(stages);
        }
        let useful = match self.work.is_looped() || self.strategy == Strategy::Sequential {
            // The next tile's loads, or the next product's, start while this one's MMAs run.
            true => STAGE_LIMIT,
            false => self.k_tiles.min(STAGE_LIMIT),
        };
        let deepest = (least..=useful).rev().find(|stages| fits(*stages));
        if deepest.is_none() {
            let one = self.smem_parts(least);
            let without_scales = Sum::total(&one.sum()) - one.slot_bytes() * u64::from(one.sf_slots);
            let knob = match self.asked.sf_preload {
                _ if one.groups > 0 && Sum::total(&one.sum()) - one.group_bytes() <= limit => "shape",
                SfPreload::PerStage => "tile",
                _ if without_scales > limit => "tile",
                _ => "sf_preload",
            };
            errors.push(self.smem_error(knob, one));
        }
        deepest
    }

    /// Stages without which the K loop would wait for itself: a warpgroup lets go of one only when the MMAs of the next K
    /// tile are under way.
    fn least_stages(&self) -> u32 {
        if self.warpgroups.is_some() && self.k_tiles > 1 { 2 } else { 1 }
    }

    /// Whether A stays in the collector between the two MMAs of a K block. Left to `auto`, pairs use it for NVFP4
    /// alone: published kernels that ran on a B200 do so, and none was found for pairs of the other kinds.
    pub fn collector(&self, main_tiles: u32) -> bool {
        let auto = match (self.asked.group(), self.kind) {
            (CtaGroup::One, _) | (CtaGroup::Two, MmaKind::Mxf4Nvf4) => AReuse::Collector,
            (CtaGroup::Two, _) => AReuse::None,
        };
        self.strategy == Strategy::Interleaved
            && self.warpgroups.is_none()
            && !self.swap_ab
            && self.asked.layout() == Accumulators::Separate
            && main_tiles > 0
            && self.asked.a_reuse.unwrap_or_else(|| auto) == AReuse::Collector
    }
}

/// Bytes of a row of a K tile in SMEM.
pub(super) fn row_bytes(kind: MmaKind, tile: Tile) -> u32 {
    (u64::from(tile.k) * u64::from(kind.container_bits()) / 8).min(u32::MAX.into()) as u32
}

/// SMs that the kernel is made for.
pub(super) fn sms(asked: &Config, arch: Arch) -> u32 {
    asked.sms.unwrap_or_else(|| arch.limits().sms)
}

/// Matrices of the same tiles.
fn matrices(shape: Shape) -> u32 {
    match shape.groups {
        Groups::Batch(count) => count,
        Groups::One | Groups::Rows(_) => 1,
    }
}

/// The schedule that was asked for, or persistent clusters where there are more tiles than run at once: `even` ones are no more
/// than it takes for each to have as many tiles as the busiest.
fn settle_work(
    asked: &Config,
    arch: Arch,
    items: [u32; 2],
    matrices: u32,
    k_tiles: u32,
    even: bool,
) -> Result<Work, ConfigError> {
    let parts = match asked.schedule {
        Setting::Fixed(Schedule::ClusterSplitK(parts)) => parts,
        _ => 1,
    };
    let ctas = asked.group().ctas() * asked.multicast.ctas() * parts;
    let tiles = u64::from(items[0]).saturating_mul(u64::from(items[1])).saturating_mul(matrices.into());
    // One CTA an SM: SMEM and TMEM leave no room for two.
    let capacity = sms(asked, arch) / ctas;
    // Two buffers were asked for: there is something to overlap only where tiles follow each other.
    let two = matches!(asked.accumulator_buffers, Setting::Fixed(Buffers::Overlapped | Buffers::Whole(2)));
    let several =
        tiles > u64::from(capacity) || two || asked.consumers == Setting::Fixed(Consumers::PingPong);
    let schedule = asked.schedule.unwrap_or_else(|| match several {
        true => Schedule::Persistent,
        false => Schedule::OneTile,
    });
    let count = |what, count: u64| match count > COUNT_LIMIT {
        true => Err(ConfigError::Count { knob: "tile", what, count, limit: COUNT_LIMIT }),
        false => Ok(()),
    };
    count("CTAs of the grid", tiles.saturating_mul(ctas.into()))?;
    match schedule {
        Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts) if !(1..=k_tiles).contains(&parts) => {
            return Err(ConfigError::SplitK { schedule, parts, k_tiles });
        }
        Schedule::SplitK(parts) => count("CTAs of the grid", tiles * u64::from(ctas) * u64::from(parts))?,
        Schedule::StreamK => count("K tiles of all tiles of C", tiles * u64::from(k_tiles))?,
        _ => {}
    }
    let capacity = match schedule {
        // As soon done, and what they share, L2 and power, is for fewer (seen on an H200: 1 % of 224 tiles by 112 CTAs).
        Schedule::Persistent if even && capacity > 0 => {
            tiles.div_ceil(tiles.div_ceil(capacity.into()).max(1)) as u32
        }
        _ => capacity,
    };
    let work = Work::new(schedule, Raster::AlongM, items, matrices, k_tiles, capacity);
    // Of several waves, a band of tiles has most of its operands in L2 (seen on an H200, up to 5 % of the time).
    let banded = arch.tensor_core() == TensorCore::Wgmma && work.is_looped();
    let raster = asked.raster.unwrap_or_else(|| if banded { Raster::Swizzled(8) } else { Raster::AlongM });
    Ok(Work { raster, ..work })
}
