//! The plan itself, once everything is known to fit.

use super::draft::Draft;
use super::transfer::descriptors;
use super::{
    Barrier, BarrierCount, ElementType, Epilogue, KLoop, Operand, Output, Plan, Scales, SmemMap, Swizzle,
    TensorMapRecipe,
};
use crate::config::{
    AReuse, Accumulators, Buffers, Config, CtaGroup, CtasPerSm, Multicast, Setting, SfLoad, SfPreload,
    Strategy, Switch,
};
use crate::heuristics::{Rule, choose_cache, sms};
use crate::kernel::{WorkspaceBuffer, WorkspaceKind};
use crate::legalize::GateNeeds;
use crate::problem::{ElementKind, Groups, MmaKind, OutputFormat, Shape};

/// Columns that the epilogue can hold early, where product 1 is done before product 2: as many registers a thread.
pub(crate) const EARLY_COLUMNS: u32 = 64;

/// Bytes of a line of L2.
const LINE_BYTES: u32 = 128;

/// Tokens of a tile from which on MMAs rather than weights are waited for; between 64 and 128 none were tried.
const MANY_TOKENS: u32 = 96;

impl Draft<'_> {
    /// Everything, now that it is known to fit.
    pub(super) fn lower_plan(mut self, stages: u32, tail: u32) -> Plan {
        let asked = self.asked;
        let parts = self.smem_parts(stages);
        let smem = parts.map();
        let k_loop = self.k_loop(stages, tail);
        let (target, rules) = self.isa().finish(&self, k_loop.main_tiles);
        self.rules.note_all(rules);
        let (auto_cache, rule) = choose_cache(&self);
        let cache = asked.cache.unwrap_or_else(|| auto_cache);
        self.rules.note_all([
            ("cache", rule),
            ("stages", Rule::Deepest),
            ("ctas_per_sm", Rule::OneOfSm),
            ("sf_load", self.choose_sf_load().1),
        ]);
        let config = Config {
            strategy: Setting::Fixed(self.strategy),
            tile: Setting::Fixed(self.tile),
            swap_ab: Setting::Fixed(if self.swap_ab { Switch::On } else { Switch::Off }),
            sf_load: Setting::Fixed(self.sf_load()),
            k_order: Setting::Fixed(self.k_order),
            stages: Setting::Fixed(stages),
            accumulator_buffers: Setting::Fixed(Buffers::Whole(1)),
            a_reuse: Setting::Fixed(AReuse::None),
            consumers: Setting::Auto,
            promotion: Setting::Auto,
            accumulators: Setting::Fixed(asked.layout()),
            schedule: Setting::Fixed(self.work.schedule),
            raster: Setting::Fixed(self.work.raster),
            sms: Setting::Fixed(sms(asked, self.arch)),
            ctas_per_sm: Setting::Fixed(asked.ctas_per_sm.unwrap_or_else(|| CtasPerSm::One)),
            cache: Setting::Fixed(cache),
            store: Setting::Fixed(self.store),
            ..*asked
        };
        let config = target.isa().settled_config(&self, config);
        let ptx_version = self.ptx_version();
        Plan {
            problem: *self.problem,
            arch: self.arch,
            kind: self.kind,
            gate: GateNeeds::default(),
            asked: *asked,
            config,
            rules: self.rules.clone(),
            strategy: self.strategy,
            tile: self.tile,
            cta_group: asked.group(),
            swap_ab: self.swap_ab,
            multicast: asked.multicast,
            mma_columns: self.mma_columns(),
            target,
            cta_rows: self.cta_rows(),
            stages,
            k_order: self.k_order,
            sf_preload: asked.sf_preload,
            accumulators: asked.layout(),
            cache,
            store: self.store,
            pdl: asked.pdl.is_on(),
            m_tiles: self.m_tiles,
            n_tiles: self.n_tiles,
            threads: self.isa().threads(),
            k_loop,
            scales: self.scales(&k_loop),
            barriers: self.placed_barriers(&smem, stages),
            descriptors: descriptors(
                self.isa(),
                self.kind,
                self.elements(),
                self.mma(),
                &smem,
                self.swizzle,
                self.sf_row_block() as u32,
            ),
            tensor_maps: self.tensor_maps(stages),
            epilogue: self.epilogue(),
            workspace: self.workspace(),
            smem,
            work: self.work,
            ptx_version,
        }
    }

    /// The lowest that has all instructions: `kind::mxf4nvf4` and the 4-bit types of tensor maps came with 8.7, `st.async` with 8.1.
    /// Nothing else is younger than the target.
    fn ptx_version(&self) -> (u32, u32) {
        let needs = [(self.kind == MmaKind::Mxf4Nvf4, (8, 7)), (self.work.cluster_parts > 1, (8, 1))];
        let least = needs.into_iter().filter(|(needed, _)| *needed).map(|(_, version)| version);
        least.fold(self.arch.ptx_version(), Ord::max)
    }

    fn k_loop(&self, stages: u32, tail: u32) -> KLoop {
        let rest = self.problem.shape.k - (self.k_tiles - 1) * self.tile.k;
        KLoop {
            tiles: self.k_tiles,
            blocks: self.blocks,
            last_blocks: rest.div_ceil(self.kind.mma_k()),
            tile_bytes: self.row_bytes,
            b_tile_bytes: self.b_row_bytes(),
            main_tiles: self.k_tiles - tail,
            tail_tiles: tail,
            sf_prologue: match self.asked.sf_preload {
                SfPreload::Ahead(ahead) => ahead.min(self.k_tiles),
                SfPreload::PerStage | SfPreload::All => 0,
            },
            sf_slots: self.sf_slots(stages),
        }
    }

    /// The elements on the MMA's row side and column side.
    fn elements(&self) -> [ElementKind; 2] {
        let [a, b] = [self.problem.formats.a, self.problem.formats.b].map(|format| format.spec().element);
        if self.swap_ab { [b, a] } else { [a, b] }
    }

    /// Rows and columns of one MMA.
    fn mma(&self) -> [u32; 2] {
        let columns = match self.asked.layout() {
            Accumulators::Separate | Accumulators::InterleavedRows => self.mma_columns(),
            Accumulators::SideBySide => 2 * self.mma_columns(),
        };
        [self.isa().mma_rows() * self.asked.group().ctas(), columns]
    }

    fn scales(&self, k_loop: &KLoop) -> Scales {
        let Shape { m, n, groups, .. } = self.problem.shape;
        let [a_row_blocks, b_row_blocks] = self.row_blocks();
        // Tiles of one matrix or group along M and N, and its blocks of A and B.
        let wide = [
            self.m_items_together().saturating_mul(self.tiles_of_item()[0]),
            self.work.n_items * self.tiles_of_item()[1],
        ];
        let total = match groups {
            Groups::Rows(_) => [self.problem.shape.row_blocks(128) as u32, n.div_ceil(128)],
            Groups::One | Groups::Batch(_) => [m.div_ceil(128), n.div_ceil(128)],
        };
        // What the MMA has along its rows and along its columns.
        let [[rows_wide, columns_wide], [rows_total, columns_total]] =
            [wide, total].map(|[m, n]| if self.swap_ab { [n, m] } else { [m, n] });
        // One of two neighbouring tiles of 64 rows has the upper half of a block of 128.
        let row_quarters = if self.scale_blocks() == 0 { 4 } else { self.cta_rows() / 32 };
        let rows_wide = ((u64::from(rows_wide) * u64::from(row_quarters)).div_ceil(4)) as u32;
        // Which tile of a group is in its last blocks, only the device knows: one that is not in a block alone can reach
        // beyond them.
        let grouped = |side: bool| groups.by_rows() && self.swap_ab == side;
        let beyond = self.tiles_of_item()[0] > 1 || (self.swap_ab && self.mma_columns() > 128);
        let columns_last = u64::from(columns_wide - 1) * u64::from(self.mma_columns()) / 128;
        let column_blocks = u64::from(self.mma_columns().div_ceil(128));
        let row_blocks = a_row_blocks + self.b_tiles() * b_row_blocks;
        let row_block_bytes = match self.kind.scales_per_mma() {
            0 => 0,
            _ => u64::from(self.problem.scale_columns().div_ceil(4)) * 512,
        };
        let smem_row_block_bytes = self.sf_row_block() as u32;
        let scaled =
            |steps: u32| if self.scale_blocks() == 0 { 0 } else { steps.div_ceil(self.steps_per_block()) };
        let (tile_bytes, last_tile_bytes) = (512 * scaled(k_loop.blocks), 512 * scaled(k_loop.last_blocks));
        let box_blocks = self.sf_box_blocks();
        let (slot, last_slot) = match (self.asked.sf_preload, box_blocks) {
            (SfPreload::All, _) => (smem_row_block_bytes, smem_row_block_bytes),
            // Boxes are loaded whole; what lies beyond the tensor arrives as zeros.
            (_, Some(_)) => (tile_bytes, tile_bytes),
            (_, None) => (tile_bytes, last_tile_bytes),
        };
        let ctas = self.asked.group().ctas();
        Scales {
            a_row_blocks,
            b_row_blocks,
            rows_total,
            row_quarters,
            rows_clamped: box_blocks.is_none()
                && if grouped(false) { beyond } else { rows_wide * ctas > rows_total },
            columns_total,
            columns_clamped: box_blocks.is_none()
                && match grouped(true) {
                    true => beyond,
                    false => columns_last + column_blocks > u64::from(columns_total),
                },
            columns_half_blocks: self.scale_blocks() > 0
                && columns_wide > 1
                && !self.mma_columns().is_multiple_of(128),
            row_block_bytes,
            steps_per_block: self.steps_per_block(),
            tile_bytes,
            last_tile_bytes,
            smem_row_block_bytes,
            box_blocks,
            shared: self.sf_load() == SfLoad::Multicast && self.scale_blocks() > 0,
            slot_tx: row_blocks * slot,
            last_slot_tx: row_blocks * last_slot,
        }
    }

    /// Tiles of C that an item of work has along M and N.
    fn tiles_of_item(&self) -> [u32; 2] {
        match self.asked.multicast {
            Multicast::None => [1, 1],
            Multicast::A(ctas) => [1, ctas],
            Multicast::B(ctas) => [ctas, 1],
        }
    }

    fn placed_barriers(&self, smem: &SmemMap, stages: u32) -> Vec<Barrier> {
        let mut offset = smem.barriers;
        let place = |(kind, count, arrivals): BarrierCount| {
            let barrier = Barrier { kind, offset, count, arrivals };
            offset += 8 * count;
            barrier
        };
        self.barriers(stages).into_iter().map(place).collect()
    }

    fn tensor_maps(&self, stages: u32) -> Vec<TensorMapRecipe> {
        let Shape { m, n, k, groups } = self.problem.shape;
        let formats = self.problem.formats;
        // Rows of all groups lie in one A and one C.
        let (of_rows, of_weights) = match groups {
            Groups::One => (None, None),
            Groups::Batch(count) => (Some(count), Some(count)),
            Groups::Rows(count) => (None, Some(count)),
        };
        let load = |operand, rows: u32, box_rows| {
            let spec = if operand == Operand::A { formats.a.spec() } else { formats.b.spec() };
            let row_stride = u64::from(k) * u64::from(spec.element_bits) / 8;
            // Bytes, whatever the element: only what TMA expands is mapped as it is.
            let (element, row) = match self.kind.expands(spec.element) {
                true => (ElementType::U4Align16, k.into()),
                false => (ElementType::U8, row_stride),
            };
            let decoded = self.kind == MmaKind::Decoded && (operand != Operand::A || self.decodes_a());
            let swizzle = if decoded { Swizzle::of_row(self.b_row_bytes()) } else { self.swizzle };
            // In another order it has whole blocks of 64.
            let workspace = if operand == Operand::A { self.permuted() } else { None };
            let row_stride = if workspace.is_some() { self.ordered_row_bytes() } else { row_stride };
            let row = if workspace.is_some() { row_stride } else { row };
            TensorMapRecipe {
                operand,
                last_tile: false,
                workspace,
                element,
                dims: [row, u64::from(rows)],
                row_stride,
                matrices: if operand == Operand::A { of_rows } else { of_weights },
                box_dims: [swizzle.span(), box_rows],
                swizzle,
                l2_promotion: self.l2_promotion(operand),
            }
        };
        let rows = self.cta_rows();
        // Each CTA of a pair loads half the MMA's columns, or, side by side, B1 or B2 whole; each CTA of a cluster
        // that shares a tile loads its part.
        let (mut a_rows, mut b_rows) = match (self.swap_ab, self.asked.group(), self.asked.layout()) {
            (false, CtaGroup::Two, Accumulators::Separate) => (rows, self.tile.n / 2),
            (false, ..) => (rows, self.tile.n),
            (true, group, _) => (self.tile.m / group.ctas(), rows),
        };
        match self.asked.multicast {
            Multicast::None => {}
            Multicast::A(ctas) => a_rows /= ctas,
            Multicast::B(ctas) => b_rows /= ctas,
        }
        let there = |operand: &Operand| operand.present(self.problem);
        let a_rows = self.a_box_rows(a_rows);
        let operands = [(Operand::A, m, a_rows), (Operand::B1, n, b_rows), (Operand::B2, n, b_rows)];
        let operands = operands.into_iter().filter(|(operand, ..)| there(operand));
        let mut maps: Vec<TensorMapRecipe> =
            operands.map(|(operand, rows, box_rows)| load(operand, rows, box_rows)).collect();
        if let Some(box_rows) = self.a_last_rows(stages) {
            // Beside the other map of A.
            maps.insert(1, TensorMapRecipe { last_tile: true, ..load(Operand::A, m, box_rows) });
        }
        if let Some(blocks) = self.sf_box_blocks() {
            let row_bytes = u64::from(self.problem.scale_columns().div_ceil(4)) * 512;
            let a_blocks =
                if groups.by_rows() { self.problem.shape.row_blocks(128) } else { m.div_ceil(128).into() };
            let scales = |operand, blocks_of_rows: u64, matrices| TensorMapRecipe {
                operand,
                last_tile: false,
                workspace: None,
                element: ElementType::U64,
                dims: [row_bytes / 8, blocks_of_rows],
                row_stride: row_bytes,
                matrices,
                box_dims: [64 * blocks, 1],
                swizzle: Swizzle::None,
                l2_promotion: 256,
            };
            let b_blocks = n.div_ceil(128).into();
            let operands = [
                (Operand::Sfa, a_blocks, of_rows),
                (Operand::Sfb1, b_blocks, of_weights),
                (Operand::Sfb2, b_blocks, of_weights),
            ];
            let operands = operands.into_iter().filter(|(operand, ..)| there(operand));
            maps.extend(operands.map(|(operand, blocks, matrices)| scales(operand, blocks, matrices)));
        }
        if let Some(staging) = self.staging() {
            // Elements of the map: two of C where a byte has two.
            let per = if formats.c.bits() < 8 { 8 / formats.c.bits() } else { 1 };
            maps.push(TensorMapRecipe {
                operand: Operand::C,
                last_tile: false,
                workspace: None,
                element: ElementType::of_output(formats.c.spec().element),
                dims: [u64::from(n / per), u64::from(m)],
                row_stride: u64::from(n) * u64::from(formats.c.bits()) / 8,
                matrices: of_rows,
                box_dims: [staging.columns / per, staging.box_rows],
                swizzle: staging.swizzle,
                l2_promotion: 0,
            });
        }
        maps
    }

    fn epilogue(&self) -> Epilogue {
        let Shape { m, n, .. } = self.problem.shape;
        let (chunk, columns) = self.chunk();
        let rows = |format: OutputFormat| {
            // The widest store, 16 bytes or less, that never straddles the end of a row.
            let widest = 128 / format.bits();
            let fits = |vector: &u32| *vector <= widest && n.is_multiple_of(*vector);
            Output {
                element_bits: format.bits(),
                vector: [32, 16, 8, 4, 2].into_iter().find(fits).unwrap_or(1),
                row_bytes: u64::from(n) * u64::from(format.bits()) / 8,
                staging: None,
            }
        };
        let early = self.products_apart() && !self.work.has_ranges();
        let [m_tiles, n_tiles] = self.tiles_of_item();
        let whole = |tiles: u32, tile: u32, size: u32| u64::from(tiles) * u64::from(tile) == u64::from(size);
        let m_ragged = self.problem.shape.groups.by_rows()
            || !whole(self.m_items_together().saturating_mul(m_tiles), self.tile.m, m);
        let n_ragged = !whole(self.work.n_items * n_tiles, self.tile.n, n);
        let (rows_ragged, columns_ragged) =
            if self.swap_ab { (n_ragged, m_ragged) } else { (m_ragged, n_ragged) };
        Epilogue {
            load: self.isa().load_shape(self),
            chunk,
            chunks: columns / chunk,
            columns,
            column_parts: self.isa().column_parts(),
            early_chunks: if early { self.isa().early_columns(columns) / chunk } else { 0 },
            rows_ragged,
            columns_ragged,
            c: Output { staging: self.staging(), ..rows(self.problem.formats.c) },
            matrix: rows(self.problem.formats.matrix()),
            kept: self.problem.formats.preactivations.map(|format| rows(format.as_output())),
            // Rows are padded to whole vectors, so that one that starts inside a row is written whole.
            product: self.strategy.stores_products().then(|| Output {
                element_bits: 32,
                vector: 4,
                row_bytes: 4 * u64::from(n.next_multiple_of(4)),
                staging: None,
            }),
        }
    }

    /// Bytes of a row of activations in the order of K in which weights are decoded: whole blocks of 64.
    fn ordered_row_bytes(&self) -> u64 {
        let bits = self.kind.container_bits();
        u64::from(self.problem.shape.k.next_multiple_of(64)) * u64::from(bits) / 8
    }

    /// Bytes of an operand that L2 fetches together. Decoded weights are fetched by the line where a row of a box is one, or
    /// where tiles have many tokens. Fetching 256 bytes takes 1.03 of the time for 1 and 16 x 14336 x 4096, 1.01 for 128, but
    /// 0.99 for 64, where a row of a box is half a line, and 0.99 for bf16 weights (seen on an H200).
    fn l2_promotion(&self, operand: Operand) -> u32 {
        let tokens = if self.swap_ab { self.tile.m } else { self.tile.n };
        let decoded = self.kind == MmaKind::Decoded && operand != Operand::A;
        if decoded && (self.b_row_bytes() >= LINE_BYTES || tokens >= MANY_TOKENS) {
            LINE_BYTES
        } else {
            2 * LINE_BYTES
        }
    }

    /// Where a launch of its own leaves the activations in that order.
    fn permuted(&self) -> Option<WorkspaceBuffer> {
        let bytes = || self.problem.shape.rows().saturating_mul(self.ordered_row_bytes());
        self.isa().orders_first().then(|| WorkspaceBuffer::new(WorkspaceKind::Permuted, bytes(), false))
    }

    /// What goes through global memory between launches, and between CTAs.
    fn workspace(&self) -> Vec<WorkspaceBuffer> {
        let Shape { n, .. } = self.problem.shape;
        let rows = self.problem.shape.rows();
        let bytes = 4 * rows * u64::from(n.next_multiple_of(4));
        let product = |kind| WorkspaceBuffer::new(kind, bytes, false);
        let mut buffers = match self.strategy {
            Strategy::TwoPass => vec![product(WorkspaceKind::Product1), product(WorkspaceKind::Product2)],
            Strategy::SecondFused => vec![product(WorkspaceKind::Product1)],
            Strategy::Sequential | Strategy::Interleaved | Strategy::Single => Vec::new(),
        };
        buffers.extend(self.permuted());
        let accumulators =
            4 * u64::from(self.cta_rows()) * u64::from(self.mma_columns()) * u64::from(self.products());
        buffers.extend(self.work.buffers(self.cluster_ctas(), accumulators));
        buffers
    }
}
