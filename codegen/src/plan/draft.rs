//! A plan in the making: what has to fit, before any address is known.

use super::memory::SmemParts;
use super::transfer::MAX_BLOCKS;
use super::work::{RESPONSES, Work};
use super::{BarrierCount, Plan, Staging, Swizzle};
use crate::arch::Arch;
use crate::config::{
    AReuse, Config, CtaGroup, KOrder, Multicast, Schedule, Setting, SfLoad, SfPreload, Store, Strategy, Tile,
};
use crate::error::{ConfigError, Sum};
use crate::heuristics::{Rule, Rules, settle_work};
use crate::legalize::{STAGE_LIMIT, counts};
use crate::problem::{Groups, MmaKind, Problem, Shape};
use crate::target::{Isa, Target};

/// What is known of a plan before memory is laid out.
pub(crate) struct Draft<'a> {
    pub problem: &'a Problem,
    pub asked: &'a Config,
    pub arch: Arch,
    pub strategy: Strategy,
    pub tile: Tile,
    /// Whether weights are on the MMA's M side.
    pub swap_ab: bool,
    /// How products are multiplied.
    pub target: Target,
    /// By which rules knobs were settled.
    pub rules: Rules,
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
    /// The order of the K loop.
    pub k_order: KOrder,
}

/// What is settled before it is known whether anything fits.
#[derive(Clone)]
pub(crate) struct Settled {
    pub strategy: Strategy,
    pub tile: Tile,
    /// Whether weights are on the MMA's M side.
    pub swap_ab: bool,
    /// How products are multiplied.
    pub target: Target,
    /// By which rules that was settled.
    pub rules: Rules,
}

/// Rows of a box outside of A from which on they cost time (H200, decision 0210).
const ROWS_OUTSIDE: u32 = 8;

impl<'a> Draft<'a> {
    /// Settles the schedule, so that from here on everything but sizes in memory is known.
    pub fn new(
        problem: &'a Problem,
        asked: &'a Config,
        arch: Arch,
        settled: Settled,
        errors: &mut Vec<ConfigError>,
    ) -> Result<Self, Vec<ConfigError>> {
        let Settled { strategy, tile, swap_ab, target, mut rules } = settled;
        let shape = problem.shape;
        let kind = problem.formats.kind(arch).unwrap_or(MmaKind::Mxf4Nvf4);
        let row_bytes = row_bytes(kind, tile);
        // A batch counts the tiles of one matrix. Groups of rows count the most tiles that they can need.
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
        counts::check(problem, strategy, errors);
        target.isa().check_launches(problem, errors);
        let work = settle_work(asked, arch, target.isa(), items, matrices(shape), k_tiles, &mut rules);
        let work = work.map_err(|error| {
            errors.push(error);
            std::mem::take(errors)
        })?;
        let work = Work { counts_rows: counts_rows(shape, strategy, &work), ..work };
        Ok(Draft {
            problem,
            asked,
            arch,
            strategy,
            tile,
            swap_ab,
            target,
            rules,
            m_tiles: m_tiles(tile.m),
            n_tiles,
            k_tiles,
            kind,
            blocks: tile.k / kind.mma_k(),
            row_bytes,
            store: asked.store.unwrap_or_else(|| Store::Direct),
            swizzle: Swizzle::of_row(row_bytes),
            work,
            k_order: asked.k_order.unwrap_or_else(|| KOrder::Forward),
        })
    }

    /// The plan, if everything fits.
    pub fn plan(mut self, mut errors: Vec<ConfigError>) -> Result<Plan, Vec<ConfigError>> {
        if self.blocks as usize > MAX_BLOCKS {
            // Such a tile's first stage alone is beyond any SMEM; say it with the sum.
            return Err(vec![self.smem_error("tile", self.smem_parts(1))]);
        }
        let (target, accumulators, rules) = self.isa().settle(&self, &mut errors);
        self.target = target;
        self.rules.note_all(rules);
        let (store, rule) = self.isa().store(&self);
        self.store = store;
        self.rules.note_all(rule.map(|rule| ("store", rule)));
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
            let (k_order, rule) = self.choose_k_order();
            self.k_order = k_order;
            self.rules.note("k_order", rule);
        }
        let tail = match self.k_order {
            KOrder::SplitTail(tail) if !(1..=self.k_tiles).contains(&tail) => {
                errors.push(ConfigError::SplitTailLength { tail, k_tiles: self.k_tiles });
                0
            }
            KOrder::SplitTail(tail) => tail,
            KOrder::Forward | KOrder::Reverse | KOrder::Serpentine | KOrder::OddEven => 0,
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
        match (stages, accumulators) {
            (Some(stages), Some(())) if errors.is_empty() => Ok(self.lower_plan(stages, tail)),
            _ => Err(errors),
        }
    }

    /// Columns of the tile in the MMA's eyes.
    pub fn mma_columns(&self) -> u32 {
        if self.swap_ab { self.tile.m } else { self.tile.n }
    }

    /// What the way to multiply answers.
    pub fn isa(&self) -> &dyn Isa {
        self.target.isa()
    }

    /// Rows of a tile in one CTA.
    pub fn cta_rows(&self) -> u32 {
        self.isa().cta_rows()
    }

    /// Row blocks of scale factors that a tile of A, and one of B, touches in one CTA.
    pub fn row_blocks(&self) -> [u32; 2] {
        self.isa().row_blocks(self)
    }

    /// The same where both operands have scale factors, and MMAs take them.
    pub fn whole_row_blocks(&self) -> [u32; 2] {
        let columns = self.mma_columns().div_ceil(128);
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
        self.strategy.products()
    }

    /// Whether the epilogue hears of product 1 before product 2 is done.
    pub fn products_apart(&self) -> bool {
        self.strategy == Strategy::Sequential || matches!(self.k_order, KOrder::SplitTail(_))
    }

    /// The staging of a TMA store of C.
    pub fn staging(&self) -> Option<Staging> {
        let boxed = self.store == Store::Tma && self.strategy != Strategy::TwoPass;
        boxed.then(|| self.isa().staging(self))
    }

    /// The staging where a warp stores `rows` rows of the tile together, `blocks` times.
    pub fn staging_of_rows(&self, rows: u32, blocks: u32) -> Staging {
        let bits = self.problem.formats.c.bits();
        let width = self.tile.n / self.isa().column_parts();
        let swizzle = Swizzle::of_row(width * bits / 8);
        let span = swizzle.span();
        let columns = span * 8 / bits;
        let boxes = width / columns;
        let box_bytes = rows * span;
        Staging {
            span,
            columns,
            boxes,
            box_rows: rows,
            box_bytes,
            warps: 1,
            warp_bytes: boxes * box_bytes * blocks,
            swizzle,
            swizzle_mask: span / 16 - 1,
        }
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
            SfPreload::PerStage | SfPreload::Ahead(_) => self.scale_blocks(),
        };
        u64::from(blocks) * 512
    }

    /// How scale factors come: as asked for, or by the rule.
    pub fn sf_load(&self) -> SfLoad {
        self.asked.sf_load.unwrap_or_else(|| self.choose_sf_load().0)
    }

    /// Each scale factor once a cluster; a plain bulk copy where no other CTA needs it.
    pub fn choose_sf_load(&self) -> (SfLoad, Rule) {
        match self.shares_scales() {
            // Each CTA reads those of its own weights.
            _ if self.kind == MmaKind::Decoded => (SfLoad::Bulk, Rule::BulkCopies),
            false if self.scale_blocks() > 0 => (SfLoad::Bulk, Rule::BulkCopies),
            true if self.scale_blocks() > 0 => (SfLoad::Multicast, Rule::OneLoadsForAll),
            shares => (if shares { SfLoad::Multicast } else { SfLoad::Bulk }, Rule::NoScales),
        }
    }

    /// Whether several CTAs of a cluster need the same scale factors: those of B in a pair, those of a shared tile.
    fn shares_scales(&self) -> bool {
        self.asked.group() == CtaGroup::Two || self.asked.multicast != Multicast::None
    }

    /// K blocks of a box of scale factors: as many as divide a slot, up to the 2048 bytes that a
    /// box of 256 eight-byte elements has.
    pub fn sf_box_blocks(&self) -> Option<u32> {
        let blocks = (self.sf_row_block() / 512) as u32;
        let largest = (1..=4).rev().find(|size| blocks.is_multiple_of(*size)).unwrap_or(1);
        (blocks > 0 && self.sf_load() != SfLoad::Bulk).then_some(largest)
    }

    /// Whether A is decoded as well as B.
    pub fn decodes_a(&self) -> bool {
        self.problem.formats.decodes_a(self.arch)
    }

    /// Rows of a box of A, of which one CTA has `rows`.
    pub fn a_box_rows(&self, rows: u32) -> u32 {
        let m = self.problem.shape.m;
        if rows >= m.saturating_add(ROWS_OUTSIDE) && self.reads_a_alone() && self.isa().clips_boxes(self) {
            m
        } else {
            rows
        }
    }

    /// Rows of a box of A in the last of several tiles along M, if a whole box would have [`ROWS_OUTSIDE`] outside of A.
    pub fn a_last_rows(&self, stages: u32) -> Option<u32> {
        let (m, rows) = (self.problem.shape.m, self.tile.m / self.asked.group().ctas());
        let last = m % rows;
        let clips = last > 0 && m > rows && rows - last >= ROWS_OUTSIDE && self.reads_a_alone();
        (clips && self.isa().clips_last_tile(self, stages)).then_some(last)
    }

    /// Whether all rows of A are one matrix's, and no other CTA loads any of a tile's.
    fn reads_a_alone(&self) -> bool {
        !self.problem.shape.groups.by_rows() && self.asked.multicast == Multicast::None
    }

    /// Bytes of a row of B in a K tile: decoded weights are smaller than what they meet.
    pub fn b_row_bytes(&self) -> u32 {
        if self.kind == MmaKind::Decoded { self.tile.k / 2 } else { self.row_bytes }
    }

    pub(super) fn smem_parts(&self, stages: u32) -> SmemParts {
        let barriers: u32 = self.barriers(stages).iter().map(|(_, count, _)| count).sum();
        SmemParts {
            tile: self.tile,
            ctas: self.asked.group().ctas(),
            b_tiles: self.b_tiles(),
            expanded: [self.problem.formats.a, self.problem.formats.b]
                .map(|format| self.kind.expands(format.spec().element)),
            span: self.swizzle.span(),
            row_bytes: self.row_bytes,
            b_row_bytes: self.b_row_bytes(),
            a_box_rows: self.a_box_rows(self.tile.m / self.asked.group().ctas()),
            a_last_rows: self.a_last_rows(stages),
            packed_a_row_bytes: if self.decodes_a() { self.b_row_bytes() } else { 0 },
            stages,
            sf_slots: self.sf_slots(stages),
            sf_row_block: self.sf_row_block(),
            a_row_blocks: self.row_blocks()[0],
            b_row_blocks: self.row_blocks()[1],
            barriers,
            responses: if self.work.schedule == Schedule::Dynamic { RESPONSES } else { 0 },
            groups: self.groups(),
            tmem: self.isa().has_address_word(),
            marks: self.work.has_ranges(),
            staging: self.staging().map_or(self.cluster_sums(), |staging| {
                self.isa().epilogue_warps() / staging.warps * staging.warp_bytes
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
        let columns = self.mma_columns() / self.work.cluster_parts / self.isa().column_parts();
        (self.isa().chunk(self, columns), columns)
    }

    /// The mbarriers, in the order of their addresses.
    pub fn barriers(&self, stages: u32) -> Vec<BarrierCount> {
        self.isa().barriers(self, stages)
    }

    /// Up; with a split tail of the length that the target gives, as long as its second barrier costs no stage, and no longer
    /// than the pipeline.
    fn choose_k_order(&mut self) -> (KOrder, Rule) {
        let (tail, rule) = self.isa().split_tail(self);
        if tail == 0 {
            return (KOrder::Forward, rule);
        }
        let whole = self.stages(&mut Vec::new());
        self.k_order = KOrder::SplitTail(tail);
        match (whole, self.stages(&mut Vec::new())) {
            (Some(whole), Some(stages)) if stages == whole => (KOrder::SplitTail(tail.min(stages)), rule),
            _ => (KOrder::Forward, Rule::TailCostsStage),
        }
    }

    fn smem_error(&self, knob: &'static str, parts: SmemParts) -> ConfigError {
        ConfigError::Smem { knob, limit: self.asked.smem_limit(self.arch), sum: parts.sum() }
    }

    /// The asked depth if it fits; else, for auto, the deepest that fits and that K can fill.
    fn stages(&self, errors: &mut Vec<ConfigError>) -> Option<u32> {
        let limit = u64::from(self.asked.smem_limit(self.arch));
        let fits = |stages: u32| self.smem_parts(stages).sum().total() <= limit;
        let least = self.isa().least_stages(self.k_tiles);
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
                SfPreload::Ahead(_) | SfPreload::All => "sf_preload",
            };
            errors.push(self.smem_error(knob, one));
        }
        deepest
    }
}

/// Bytes of a row of a K tile in SMEM.
pub(crate) fn row_bytes(kind: MmaKind, tile: Tile) -> u32 {
    (u64::from(tile.k) * u64::from(kind.container_bits()) / 8).min(u32::MAX.into()) as u32
}

/// Whether a launch says how many rows of A count. Kernels that share K out, and those with a separate kernel for the gate, compute all
/// rows.
fn counts_rows(shape: Shape, strategy: Strategy, work: &Work) -> bool {
    shape.groups == Groups::One
        && work.m_items > 1
        && strategy != Strategy::TwoPass
        && matches!(work.schedule, Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic)
}

/// Matrices of the same tiles.
fn matrices(shape: Shape) -> u32 {
    match shape.groups {
        Groups::Batch(count) => count,
        Groups::One | Groups::Rows(_) => 1,
    }
}
