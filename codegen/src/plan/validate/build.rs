//! The plan itself, once everything is known to fit.

use super::MMA_ROWS;
use super::draft::{Draft, sms};
use crate::config::{
    AReuse, Accumulators, CacheHints, Config, CtaGroup, Eviction, Setting, SfPreload, Strategy,
};
use crate::kernel::WorkspaceBuffer;
use crate::plan::transfer::descriptors;
use crate::plan::{
    Barrier, ElementType, Epilogue, KLoop, Operand, Output, Plan, Scales, SmemMap, Swizzle, TensorMapRecipe,
};
use crate::problem::Shape;

/// Warps: 0..=3 epilogue, 4 TMA, 5 MMA.
const THREADS: u32 = 6 * 32;
/// Columns that the epilogue holds early under a split tail: as many registers a thread.
const EARLY_COLUMNS: u32 = 64;

impl Draft<'_> {
    /// Everything, now that it is known to fit.
    pub(super) fn finish(self, stages: u32, columns: u32, tail: u32) -> Plan {
        let asked = self.asked;
        let parts = self.smem_parts(stages);
        let smem = parts.map();
        let tmem = self.tmem_parts(self.buffers).map(columns);
        let k_loop = self.k_loop(stages, tail);
        let collector = self.collector(k_loop.main_tiles);
        let cache = asked.cache.unwrap_or_else(|| self.choose_cache());
        let config = Config {
            strategy: Setting::Fixed(self.strategy),
            tile: Setting::Fixed(self.tile),
            stages: Setting::Fixed(stages),
            accumulator_buffers: Setting::Fixed(self.buffers),
            a_reuse: Setting::Fixed(if collector { AReuse::Collector } else { AReuse::None }),
            tmem_columns: Setting::Fixed(columns),
            schedule: Setting::Fixed(self.work.schedule),
            sms: Setting::Fixed(sms(asked, self.arch)),
            cache: Setting::Fixed(cache),
            store: Setting::Fixed(self.store),
            ..*asked
        };
        Plan {
            problem: *self.problem,
            arch: self.arch,
            asked: *asked,
            config,
            strategy: self.strategy,
            tile: self.tile,
            cta_group: asked.cta_group,
            cta_rows: MMA_ROWS,
            stages,
            k_order: asked.k_order,
            sf_preload: asked.sf_preload,
            accumulators: asked.accumulators,
            buffers: self.buffers,
            collector,
            cache,
            store: self.store,
            pdl: asked.pdl.is_on(),
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
            epilogue: self.epilogue(),
            workspace: self.workspace(),
            smem,
            tmem,
            work: self.work,
            // kind::mxf4nvf4 came with 8.7, and nothing else here is younger.
            ptx_version: (8, 7),
        }
    }

    /// Weights are read once a wave: they may go first while all tiles of C run at once.
    fn choose_cache(&self) -> CacheHints {
        let ctas = u64::from(self.asked.cta_group.ctas()) * u64::from(self.work.tiles);
        let one_wave = ctas <= u64::from(sms(self.asked, self.arch));
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
        let row_blocks = 1 + self.b_tiles() * self.b_row_blocks;
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

    fn barriers(&self, smem: &SmemMap, stages: u32) -> Vec<Barrier> {
        let mut offset = smem.barriers;
        let place = |(name, count, arrivals)| {
            let barrier = Barrier { name, offset, count, arrivals };
            offset += 8 * count;
            barrier
        };
        self.barrier_counts(stages).into_iter().map(place).collect()
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

    fn epilogue(&self) -> Epilogue {
        let Shape { m, n, .. } = self.problem.shape;
        let chunk = [32, 16].into_iter().find(|chunk| self.tile.n.is_multiple_of(*chunk)).unwrap_or(8);
        // The widest store, 16 bytes or less, that never straddles the end of a row.
        let vector = [8, 4, 2].into_iter().find(|vector| n.is_multiple_of(*vector)).unwrap_or(1);
        let early = self.products_apart() && !self.work.has_ranges();
        Epilogue {
            chunk,
            chunks: self.tile.n / chunk,
            early_chunks: if early { self.tile.n.min(EARLY_COLUMNS) / chunk } else { 0 },
            rows_ragged: !m.is_multiple_of(self.tile.m),
            columns_ragged: !n.is_multiple_of(self.tile.n),
            c: Output {
                element_bytes: self.problem.formats.c.bytes(),
                vector,
                row_bytes: u64::from(n) * u64::from(self.problem.formats.c.bytes()),
                staging: self.staging(),
            },
            // Rows are padded to whole vectors, so that one that starts inside a row is written whole.
            product: (!self.strategy.is_fused()).then(|| Output {
                element_bytes: 4,
                vector: 4,
                row_bytes: 4 * u64::from(n.next_multiple_of(4)),
                staging: None,
            }),
        }
    }

    /// What goes through global memory between launches, and between CTAs.
    fn workspace(&self) -> Vec<WorkspaceBuffer> {
        let Shape { m, n, .. } = self.problem.shape;
        let product = |name| WorkspaceBuffer {
            name,
            bytes: 4 * u64::from(m) * u64::from(n.next_multiple_of(4)),
            zeroed: false,
        };
        let mut buffers = match self.strategy {
            Strategy::TwoPass => vec![product("r1"), product("r2")],
            Strategy::SecondFused => vec![product("r1")],
            Strategy::Sequential | Strategy::Interleaved => Vec::new(),
        };
        let accumulators = 4 * u64::from(MMA_ROWS) * u64::from(self.tile.n) * u64::from(self.products());
        buffers.extend(self.work.buffers(self.asked.cta_group.ctas(), accumulators));
        buffers
    }
}
