//! The one place that knows what is legal.

use super::memory::{SmemParts, tmem_map, tmem_sum};
use super::transfer::{MAX_BLOCKS, descriptors};
use super::{
    Barrier, ElementType, Epilogue, KLoop, Operand, Plan, Scales, Staging, Swizzle, TensorMapRecipe,
};
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, CacheHints, Config, CtaGroup, Eviction, KOrder, Setting, SfPreload, Store, Tile,
};
use crate::error::{ConfigError, Sum};
use crate::problem::{Problem, Shape};

/// Largest M, N and K: TMA coordinates are signed 32-bit and tiles round up.
pub(crate) const SIZE_LIMIT: u32 = 1 << 30;
/// The deepest pipeline and the deepest scale-factor ring beyond it.
const STAGE_LIMIT: u32 = 32;
/// Rows that a CTA contributes to a block-scaled MMA (PTX ISA 9.7.16.2.1).
const MMA_ROWS: u32 = 128;
/// Warps: 0..=3 epilogue, 4 TMA, 5 MMA.
const THREADS: u32 = 6 * 32;
/// Columns that the epilogue holds early under a split tail: as many registers a thread.
const EARLY_COLUMNS: u32 = 64;

/// Decides whether `config` can compute `problem` on `arch`, and if so, everything about the kernel.
///
/// # Errors
/// Every reason that could be found, not only the first: each names its knob, the limit, and the
/// sum that does not fit ([`ConfigError::hint`] has a way out). Never panics, whatever the numbers.
pub fn validate(problem: &Problem, config: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    check_shape(problem, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let tile = config.tile.unwrap_or_else(|| choose_tile(problem.shape, config, arch));
    check_tile(problem.shape, tile, config.cta_group, &mut errors);
    check_accumulators(tile, config.accumulators, &mut errors);
    check_ranges(config, arch, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Draft::new(problem, config, arch, tile).plan(errors)
}

fn check_shape(problem: &Problem, errors: &mut Vec<ConfigError>) {
    let Shape { m, n, k } = problem.shape;
    for (dimension, value) in [("M", m), ("N", n), ("K", k)] {
        if !(1..=SIZE_LIMIT).contains(&value) {
            errors.push(ConfigError::Size { dimension, value, limit: SIZE_LIMIT });
        }
    }
    problem.check_formats(errors);
}

/// 128 x 128 x 256; N = 64 where that still leaves every SM at most one tile, so that a small grid
/// spreads over more of the chip; K no longer than the problem's.
fn choose_tile(shape: Shape, config: &Config, arch: Arch) -> Tile {
    let ctas = config.cta_group.ctas();
    let m = MMA_ROWS * ctas;
    let grid = |n: u32| u64::from(shape.m.div_ceil(m) * ctas) * u64::from(shape.n.div_ceil(n));
    let narrow = config.accumulators == Accumulators::Separate && grid(64) <= u64::from(arch.limits().sms);
    let k = shape.k.next_multiple_of(64).min(256);
    // 192 would leave half of a 128-byte swizzle span unused.
    Tile { m, n: if narrow { 64 } else { 128 }, k: if k == 192 { 256 } else { k } }
}

fn check_tile(shape: Shape, tile: Tile, group: CtaGroup, errors: &mut Vec<ConfigError>) {
    if tile.m != MMA_ROWS * group.ctas() {
        errors.push(ConfigError::TileM {
            given: tile.m,
            ctas: group.ctas(),
            wanted: MMA_ROWS * group.ctas(),
        });
    }
    // Each CTA of a pair holds half of N, in groups of 8 rows.
    let multiple = 8 * group.ctas();
    if !(multiple..=256).contains(&tile.n) || !tile.n.is_multiple_of(multiple) {
        errors.push(ConfigError::TileN { given: tile.n, ctas: group.ctas(), multiple });
    } else {
        let tiles = shape.n.div_ceil(tile.n);
        if tiles > 1 && !tile.n.is_multiple_of(64) {
            errors.push(ConfigError::TileNStart { given: tile.n, tiles });
        }
        if tiles > 65_535 {
            errors.push(ConfigError::Grid { n: shape.n, tile_n: tile.n, tiles });
        }
    }
    if tile.k == 0 || !tile.k.is_multiple_of(64) {
        errors.push(ConfigError::TileK { given: tile.k, multiple: 64 });
    }
}

fn check_accumulators(tile: Tile, accumulators: Accumulators, errors: &mut Vec<ConfigError>) {
    if accumulators == Accumulators::SideBySide && tile.n <= 256 {
        if tile.n > 128 {
            errors.push(ConfigError::SideBySideWidth { tile_n: tile.n, doubled: 2 * tile.n });
        } else if tile.n != 128 {
            errors.push(ConfigError::SideBySideScales { tile_n: tile.n });
        }
    }
}

fn check_ranges(config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
    if let Setting::Fixed(given) = config.stages
        && !(1..=STAGE_LIMIT).contains(&given)
    {
        errors.push(ConfigError::Stages { given });
    }
    if let SfPreload::Ahead(given) = config.sf_preload
        && !(1..=STAGE_LIMIT).contains(&given)
    {
        errors.push(ConfigError::Ahead { given });
    }
    let limit = arch.limits().tmem_columns;
    if let Setting::Fixed(given) = config.tmem_columns
        && !(given.is_power_of_two() && (32..=limit).contains(&given))
    {
        errors.push(ConfigError::TmemColumns { given, limit });
    }
    if config.accumulators == Accumulators::SideBySide {
        if matches!(config.k_order, KOrder::SplitTail(_)) {
            errors.push(ConfigError::SplitTailSideBySide);
        }
        if config.a_reuse == Setting::Fixed(AReuse::Collector) {
            errors.push(ConfigError::NothingToReuse {
                reason: "side_by_side accumulators have one MMA for both products",
            });
        }
    }
}

/// A plan in the making: what is known before memory is laid out.
struct Draft<'a> {
    problem: &'a Problem,
    asked: &'a Config,
    arch: Arch,
    tile: Tile,
    m_tiles: u32,
    n_tiles: u32,
    k_tiles: u32,
    /// MMA steps of a K tile.
    blocks: u32,
    /// Row blocks of scale factors that a tile of B touches.
    b_row_blocks: u32,
    store: Store,
    swizzle: Swizzle,
}

impl<'a> Draft<'a> {
    fn new(problem: &'a Problem, asked: &'a Config, arch: Arch, tile: Tile) -> Self {
        let shape = problem.shape;
        Draft {
            problem,
            asked,
            arch,
            tile,
            m_tiles: shape.m.div_ceil(tile.m),
            n_tiles: shape.n.div_ceil(tile.n),
            k_tiles: shape.k.div_ceil(tile.k),
            blocks: tile.k / problem.formats.a.spec().mma_k,
            b_row_blocks: tile.n.div_ceil(128),
            store: asked.store.unwrap_or_else(|| Store::Direct),
            swizzle: Swizzle::of_row(tile.k / 2),
        }
    }

    fn plan(self, mut errors: Vec<ConfigError>) -> Result<Plan, Vec<ConfigError>> {
        if self.blocks as usize > MAX_BLOCKS {
            // Such a tile's first stage alone is beyond any SMEM; say it with the sum.
            return Err(vec![self.smem_error("tile", self.smem_parts(1))]);
        }
        let columns = self.tmem_columns(&mut errors);
        let row_bytes = u64::from(self.problem.shape.n) * u64::from(self.problem.formats.c.bytes());
        if self.store == Store::Tma && !row_bytes.is_multiple_of(16) {
            errors.push(ConfigError::StoreTma { n: self.problem.shape.n, row_bytes });
        }
        let tail = match self.asked.k_order {
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

    /// Columns to allocate, if they fit.
    fn tmem_columns(&self, errors: &mut Vec<ConfigError>) -> Option<u32> {
        let limit = self.arch.limits().tmem_columns;
        let sum = tmem_sum(self.tile, self.blocks.into(), self.b_row_blocks.into());
        if sum.total() > u64::from(limit) {
            errors.push(ConfigError::Tmem { limit, sum });
            return None;
        }
        let least = (sum.total() as u32).next_power_of_two().max(32);
        match self.asked.tmem_columns {
            Setting::Auto => Some(least),
            Setting::Fixed(given) if given >= least => Some(given),
            Setting::Fixed(given) => {
                errors.push(ConfigError::TmemColumnsTooFew { given, sum });
                None
            }
        }
    }

    fn staging(&self) -> Option<Staging> {
        (self.store == Store::Tma).then(|| {
            let swizzle = Swizzle::of_row(self.tile.n * self.problem.formats.c.bytes());
            let span = swizzle.span();
            let columns = span / self.problem.formats.c.bytes();
            let boxes = self.tile.n / columns;
            let box_bytes = 32 * span;
            let swizzle_mask = span / 16 - 1;
            Staging { span, columns, boxes, box_bytes, warp_bytes: boxes * box_bytes, swizzle_mask }
        })
    }

    fn sf_slots(&self, stages: u32) -> u32 {
        match self.asked.sf_preload {
            SfPreload::PerStage => stages,
            SfPreload::Ahead(ahead) => stages + ahead,
            SfPreload::All => 1,
        }
    }

    /// Bytes of a row block of scale factors in one slot.
    fn sf_row_block(&self) -> u64 {
        let blocks = match self.asked.sf_preload {
            SfPreload::All => self.problem.scale_columns().div_ceil(4),
            _ => self.blocks,
        };
        u64::from(blocks) * 512
    }

    /// K blocks of a box of scale factors: as many as divide a slot, up to the 2048 bytes that a
    /// box of 256 eight-byte elements has.
    fn sf_box_blocks(&self) -> Option<u32> {
        let blocks = (self.sf_row_block() / 512) as u32;
        let largest = (1..=4).rev().find(|size| blocks.is_multiple_of(*size)).unwrap_or(1);
        (self.asked.cta_group == CtaGroup::Two).then_some(largest)
    }

    fn smem_parts(&self, stages: u32) -> SmemParts {
        let scale_barriers = match self.asked.sf_preload {
            SfPreload::PerStage => 0,
            SfPreload::Ahead(_) => 2 * self.sf_slots(stages),
            SfPreload::All => 1,
        };
        SmemParts {
            tile: self.tile,
            ctas: self.asked.cta_group.ctas(),
            span: self.swizzle.span(),
            stages,
            sf_slots: self.sf_slots(stages),
            sf_row_block: self.sf_row_block(),
            b_row_blocks: self.b_row_blocks,
            barriers: 2 * stages + scale_barriers + self.accumulator_barriers(),
            staging: self.staging().map_or(0, |staging| 4 * staging.warp_bytes),
        }
    }

    /// One for both products, or one each where the epilogue starts on the first early.
    fn accumulator_barriers(&self) -> u32 {
        if matches!(self.asked.k_order, KOrder::SplitTail(_)) { 2 } else { 1 }
    }

    fn smem_error(&self, knob: &'static str, parts: SmemParts) -> ConfigError {
        ConfigError::Smem { knob, limit: self.arch.limits().smem_bytes, sum: parts.sum() }
    }

    /// The asked depth if it fits; else, for auto, the deepest that fits and that K can fill.
    fn stages(&self, errors: &mut Vec<ConfigError>) -> Option<u32> {
        let limit = u64::from(self.arch.limits().smem_bytes);
        let fits = |stages: u32| self.smem_parts(stages).sum().total() <= limit;
        if let Setting::Fixed(stages) = self.asked.stages
            && fits(1)
        {
            if !fits(stages) {
                errors.push(self.smem_error("stages", self.smem_parts(stages)));
                return None;
            }
            return Some(stages);
        }
        let deepest = (1..=self.k_tiles.min(STAGE_LIMIT)).rev().find(|stages| fits(*stages));
        if deepest.is_none() {
            let one = self.smem_parts(1);
            let without_scales = Sum::total(&one.sum()) - one.slot_bytes() * u64::from(one.sf_slots);
            let knob = match self.asked.sf_preload {
                SfPreload::PerStage => "tile",
                _ if without_scales > limit => "tile",
                _ => "sf_preload",
            };
            errors.push(self.smem_error(knob, one));
        }
        deepest
    }

    /// Everything, now that it is known to fit.
    fn finish(self, stages: u32, columns: u32, tail: u32) -> Plan {
        let asked = self.asked;
        let parts = self.smem_parts(stages);
        let smem = parts.map();
        let tmem = tmem_map(self.tile, self.blocks, self.b_row_blocks, asked.accumulators, columns);
        let k_loop = self.k_loop(stages, tail);
        let collector = asked.accumulators == Accumulators::Separate
            && k_loop.main_tiles > 0
            && asked.a_reuse.unwrap_or_else(|| AReuse::Collector) == AReuse::Collector;
        let cache = asked.cache.unwrap_or_else(|| self.choose_cache());
        let config = Config {
            tile: Setting::Fixed(self.tile),
            stages: Setting::Fixed(stages),
            a_reuse: Setting::Fixed(if collector { AReuse::Collector } else { AReuse::None }),
            tmem_columns: Setting::Fixed(columns),
            cache: Setting::Fixed(cache),
            store: Setting::Fixed(self.store),
            ..*asked
        };
        Plan {
            problem: *self.problem,
            arch: self.arch,
            asked: *asked,
            config,
            tile: self.tile,
            cta_group: asked.cta_group,
            cta_rows: MMA_ROWS,
            stages,
            k_order: asked.k_order,
            sf_preload: asked.sf_preload,
            accumulators: asked.accumulators,
            collector,
            cache,
            store: self.store,
            m_tiles: self.m_tiles,
            n_tiles: self.n_tiles,
            threads: THREADS,
            k_loop,
            scales: self.scales(&k_loop),
            barriers: self.barriers(&smem, stages),
            descriptors: descriptors(
                self.tile,
                &smem,
                self.swizzle,
                self.sf_row_block() as u32,
                asked.accumulators,
            ),
            tensor_maps: self.tensor_maps(),
            epilogue: self.epilogue(tail > 0),
            smem,
            tmem,
            // kind::mxf4nvf4 came with 8.7, and nothing else here is younger.
            ptx_version: (8, 7),
        }
    }

    /// Weights are read once a wave: they may go first while all tiles of C run at once.
    fn choose_cache(&self) -> CacheHints {
        let ctas = u64::from(self.m_tiles * self.asked.cta_group.ctas()) * u64::from(self.n_tiles);
        let one_wave = ctas <= u64::from(self.arch.limits().sms);
        CacheHints { b: one_wave.then_some(Eviction::First), ..CacheHints::default() }
    }

    fn k_loop(&self, stages: u32, tail: u32) -> KLoop {
        let rest = self.problem.shape.k - (self.k_tiles - 1) * self.tile.k;
        KLoop {
            tiles: self.k_tiles,
            blocks: self.blocks,
            last_blocks: rest.div_ceil(self.problem.formats.a.spec().mma_k),
            tile_bytes: self.tile.k / 2,
            main_tiles: self.k_tiles - tail,
            tail_tiles: tail,
            sf_prologue: match self.asked.sf_preload {
                SfPreload::Ahead(ahead) => ahead.min(self.k_tiles),
                _ => 0,
            },
            sf_slots: self.sf_slots(stages),
        }
    }

    fn scales(&self, k_loop: &KLoop) -> Scales {
        let n = self.problem.shape.n;
        let total = n.div_ceil(128);
        let row_blocks = 1 + 2 * self.b_row_blocks;
        let last_start = (self.n_tiles - 1) * self.tile.n / 128;
        let row_block_bytes = u64::from(self.problem.scale_columns().div_ceil(4)) * 512;
        let smem_row_block_bytes = self.sf_row_block() as u32;
        let (tile_bytes, last_tile_bytes) = (512 * k_loop.blocks, 512 * k_loop.last_blocks);
        let box_blocks = self.sf_box_blocks();
        let (slot, last_slot) = match (self.asked.sf_preload, box_blocks) {
            (SfPreload::All, _) => (smem_row_block_bytes, smem_row_block_bytes),
            // Boxes are loaded whole; what lies beyond the tensor arrives as zeros.
            (_, Some(_)) => (tile_bytes, tile_bytes),
            (_, None) => (tile_bytes, last_tile_bytes),
        };
        Scales {
            b_row_blocks: self.b_row_blocks,
            b_row_blocks_total: total,
            b_clamped: box_blocks.is_none() && last_start + self.b_row_blocks > total,
            b_half_blocks: self.n_tiles > 1 && !self.tile.n.is_multiple_of(128),
            row_block_bytes,
            tile_bytes,
            last_tile_bytes,
            smem_row_block_bytes,
            box_blocks,
            slot_tx: row_blocks * slot,
            last_slot_tx: row_blocks * last_slot,
        }
    }

    fn barriers(&self, smem: &super::SmemMap, stages: u32) -> Vec<Barrier> {
        let mut wanted = vec![("full", stages), ("empty", stages)];
        match self.asked.sf_preload {
            SfPreload::PerStage => {}
            SfPreload::Ahead(_) => {
                wanted.extend([("sf_full", self.sf_slots(stages)), ("sf_empty", self.sf_slots(stages))]);
            }
            SfPreload::All => wanted.push(("sf_full", 1)),
        }
        match self.asked.k_order {
            KOrder::SplitTail(_) => wanted.extend([("product1_done", 1), ("product2_done", 1)]),
            _ => wanted.push(("products_done", 1)),
        }
        let mut offset = smem.barriers;
        let place = |(name, count)| {
            let barrier = Barrier { name, offset, count, arrivals: 1 };
            offset += 8 * count;
            barrier
        };
        wanted.into_iter().map(place).collect()
    }

    fn tensor_maps(&self) -> Vec<TensorMapRecipe> {
        let Shape { m, n, k } = self.problem.shape;
        let load = |operand, rows: u32, box_rows| TensorMapRecipe {
            operand,
            element: ElementType::U8,
            dims: [u64::from(k) / 2, u64::from(rows)],
            row_stride: u64::from(k) / 2,
            box_dims: [self.swizzle.span(), box_rows],
            swizzle: self.swizzle,
            l2_promotion: 256,
        };
        // Of a pair, each CTA loads half the rows of both B, or, side by side, one of them whole.
        let b_rows = match (self.asked.cta_group, self.asked.accumulators) {
            (CtaGroup::Two, Accumulators::Separate) => self.tile.n / 2,
            _ => self.tile.n,
        };
        let mut maps =
            vec![load(Operand::A, m, MMA_ROWS), load(Operand::B1, n, b_rows), load(Operand::B2, n, b_rows)];
        if let Some(blocks) = self.sf_box_blocks() {
            let row_bytes = u64::from(self.problem.scale_columns().div_ceil(4)) * 512;
            let scales = |operand, rows: u32| TensorMapRecipe {
                operand,
                element: ElementType::U64,
                dims: [row_bytes / 8, u64::from(rows.div_ceil(128))],
                row_stride: row_bytes,
                box_dims: [64 * blocks, 1],
                swizzle: Swizzle::None,
                l2_promotion: 256,
            };
            maps.extend([scales(Operand::Sfa, m), scales(Operand::Sfb1, n), scales(Operand::Sfb2, n)]);
        }
        if let Some(staging) = self.staging() {
            maps.push(TensorMapRecipe {
                operand: Operand::C,
                element: ElementType::F16,
                dims: [u64::from(n), u64::from(m)],
                row_stride: u64::from(n) * u64::from(self.problem.formats.c.bytes()),
                box_dims: [staging.columns, 32],
                swizzle: Swizzle::of_row(staging.span),
                l2_promotion: 0,
            });
        }
        maps
    }

    fn epilogue(&self, split: bool) -> Epilogue {
        let Shape { m, n, .. } = self.problem.shape;
        let chunk = [32, 16].into_iter().find(|chunk| self.tile.n.is_multiple_of(*chunk)).unwrap_or(8);
        // The widest store, 16 bytes or less, that never straddles the end of a row.
        let vector = [8, 4, 2].into_iter().find(|vector| n.is_multiple_of(*vector)).unwrap_or(1);
        Epilogue {
            chunk,
            chunks: self.tile.n / chunk,
            early_chunks: if split { self.tile.n.min(EARLY_COLUMNS) / chunk } else { 0 },
            vector,
            rows_ragged: !m.is_multiple_of(self.tile.m),
            columns_ragged: !n.is_multiple_of(self.tile.n),
            row_bytes: u64::from(n) * u64::from(self.problem.formats.c.bytes()),
            staging: self.staging(),
        }
    }
}
