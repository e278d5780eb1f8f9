//! What of a plan is tensor memory's own (`tcgen05`, sm_100a).

use super::descriptor::instruction_descriptor;
use super::tmem::TmemParts;
use super::{LANE_WARPS, MMA_ROWS, OTHER_WARPS, Tcgen05, TmemMap, load, tail};
use crate::config::{
    AReuse, Accumulators, Buffers, Config, CtaGroup, CtasPerSm, EpilogueWarps, Schedule, Setting, SfLoad,
    SfPreload, Store, Strategy, TmemShape,
};
use crate::error::ConfigError;
use crate::heuristics::Rule;
use crate::plan::draft::Draft;
use crate::plan::work::RESPONSES;
use crate::plan::{
    BarrierCount, BarrierKind, EARLY_COLUMNS, MemoryBudget, Plan, Staging, Swizzle, write_regions,
};
use crate::problem::{ElementKind, MmaKind};
use crate::target::{Isa, RuleList, Target};
use std::fmt;

impl Isa for Tcgen05 {
    fn cta_rows(&self) -> u32 {
        MMA_ROWS
    }

    fn mma_rows(&self) -> u32 {
        MMA_ROWS
    }

    fn mmas_of_rows(&self) -> u32 {
        1
    }

    fn threads(&self) -> u32 {
        32 * (self.epilogue_warps + OTHER_WARPS)
    }

    fn least_stages(&self, _: u32) -> u32 {
        1
    }

    fn bands(&self) -> bool {
        false
    }

    fn has_address_word(&self) -> bool {
        true
    }

    fn buffers(&self) -> u32 {
        self.buffers
    }

    fn settle(&self, draft: &Draft<'_>, errors: &mut Vec<ConfigError>) -> (Target, Option<()>, RuleList) {
        let (warps, warps_rule) = epilogue_warps(draft);
        let epilogue_warps = warps.count();
        let ((buffers, shared), rule) = settle_buffers(draft, errors);
        let parts = TmemParts { shared, ..tmem_parts(draft, buffers) };
        let (tmem, fits) = match tmem_columns(draft, parts, errors) {
            Some(columns) => (parts.map(columns), Some(())),
            None => (TmemMap { shared, ..TmemMap::EMPTY }, None),
        };
        let rules = vec![
            ("accumulator_buffers", rule),
            ("epilogue_warps", warps_rule),
            ("tmem_columns", Rule::LeastColumns),
            ("consumers", Rule::OneWarpIssues),
            ("promotion", Rule::SumsAreWhole),
        ];
        (Target::Tcgen05(Tcgen05 { tmem, buffers, collector: false, epilogue_warps }), fits, rules)
    }

    fn finish(&self, draft: &Draft<'_>, main_tiles: u32) -> (Target, RuleList) {
        let (collector, rule) = collector(draft, main_tiles);
        (Target::Tcgen05(Tcgen05 { collector, ..self.clone() }), vec![("a_reuse", rule)])
    }

    fn settled_config(&self, _: &Draft<'_>, config: Config) -> Config {
        Config {
            accumulator_buffers: Setting::Fixed(match self.tmem.shared {
                0 => Buffers::Whole(self.buffers),
                _ => Buffers::Overlapped,
            }),
            epilogue_warps: Setting::Fixed(match self.column_parts() {
                1 => EpilogueWarps::Four,
                _ => EpilogueWarps::Eight,
            }),
            a_reuse: Setting::Fixed(if self.collector { AReuse::Collector } else { AReuse::None }),
            tmem_columns: Setting::Fixed(self.tmem.columns),
            ..config
        }
    }

    fn store(&self, draft: &Draft<'_>) -> (Store, Option<Rule>) {
        let parts = self.column_parts();
        let several = tiles_can_leave_in_boxes(draft, parts);
        match draft.asked.store {
            Setting::Auto if several => (Store::Tma, Some(Rule::RowsLeaveInBoxes)),
            _ if parts > 1 && leaves_in_boxes(draft) => (Store::Tma, Some(Rule::RowsLeaveInBoxes)),
            // The caller has tried boxes.
            Setting::Fixed(Store::Direct) if several => (Store::Direct, Some(Rule::StagesMatter)),
            Setting::Auto | Setting::Fixed(_) => (draft.store, None),
        }
    }

    /// Where a CTA has one tile, whose epilogue has nothing else to overlap with.
    fn split_tail(&self, draft: &Draft<'_>) -> (u32, Rule) {
        if draft.work.has_ranges() {
            return (0, Rule::TailOfPart);
        }
        if draft.work.is_looped() {
            return (0, Rule::OtherMmasOverlap);
        }
        if draft.strategy != Strategy::Interleaved || draft.asked.layout() == Accumulators::SideBySide {
            return (0, Rule::NoMmaOfEach);
        }
        let ctas = draft.asked.group().ctas();
        let parts = self.column_parts();
        let early = parts * self.early_columns(draft.mma_columns() / parts);
        let model = tail::Model::new([draft.mma_columns(), early], ctas, draft.blocks, draft.scale_blocks());
        let tail::Model { gate, tile } = model;
        match model.tail(draft.k_tiles) {
            0 if gate < tile => (0, Rule::GateIsShorter { gate, tile }),
            0 => (0, Rule::KIsShort),
            tail => (tail, Rule::TailHides { gate, tile }),
        }
    }

    fn chunk(&self, draft: &Draft<'_>, columns: u32) -> u32 {
        let crowded = self.column_parts() * draft.asked.ctas_per_sm() > 1;
        load::chunk(draft.asked, draft.problem, columns, draft.swap_ab, crowded)
    }

    fn load_shape(&self, draft: &Draft<'_>) -> TmemShape {
        load::asked(draft.asked).map_or(TmemShape::S32x32b, |load| load.shape)
    }

    fn epilogue_warps(&self) -> u32 {
        self.epilogue_warps
    }

    /// Half of what four warps hold, if a loop over the other columns needs registers, too: ten warps have at most 168 each.
    fn early_columns(&self, columns: u32) -> u32 {
        match self.column_parts() {
            2 if columns > EARLY_COLUMNS => EARLY_COLUMNS / 2,
            _ => columns.min(EARLY_COLUMNS),
        }
    }

    fn column_parts(&self) -> u32 {
        self.epilogue_warps / LANE_WARPS
    }

    fn staging(&self, draft: &Draft<'_>) -> Staging {
        if !draft.swap_ab {
            // Rows that a warp stores together.
            return draft.staging_of_rows(32, 1);
        }
        // A warp has 32 columns of C: one box, whose rows its lanes write side by side.
        let span = 32 * draft.problem.formats.c.bits() / 8;
        let box_rows = draft.tile.m / self.column_parts();
        let box_bytes = span * box_rows;
        Staging {
            span,
            columns: 32,
            boxes: 1,
            box_rows,
            box_bytes,
            warps: 1,
            warp_bytes: box_bytes,
            swizzle: Swizzle::None,
            swizzle_mask: 0,
        }
    }

    fn barriers(&self, draft: &Draft<'_>, stages: u32) -> Vec<BarrierCount> {
        let asked = draft.asked;
        let (looped, buffers) = (draft.work.is_looped(), self.buffers);
        // A stage is empty when all that share a tile of it have used it.
        let mut wanted =
            vec![(BarrierKind::Full, stages, 1), (BarrierKind::Empty, stages, asked.multicast.ctas())];
        match asked.sf_preload {
            SfPreload::PerStage => {}
            // Loaded once, and never given back.
            SfPreload::All if !looped && draft.strategy != Strategy::Sequential => {
                wanted.push((BarrierKind::SfFull, 1, 1));
            }
            SfPreload::All | SfPreload::Ahead(_) => {
                let slots = draft.sf_slots(stages);
                // Where others send into a slot, all of them wait for all.
                let users = match draft.sf_load() {
                    SfLoad::Multicast => asked.multicast.ctas(),
                    SfLoad::Bulk | SfLoad::TensorMap => 1,
                };
                wanted.extend([(BarrierKind::SfFull, slots, 1), (BarrierKind::SfEmpty, slots, users)]);
            }
        }
        match draft.products_apart() {
            true => {
                wanted.extend(
                    [BarrierKind::Product1Done, BarrierKind::Product2Done].map(|kind| (kind, buffers, 1)),
                );
            }
            false => wanted.push((BarrierKind::ProductsDone, buffers, 1)),
        }
        if looped {
            // One lane of each epilogue warp of each CTA. Whoever has read the columns that two buffers share has read
            // the tile before, too.
            let readers = self.epilogue_warps * asked.group().ctas();
            wanted.push(match self.tmem.shared {
                0 => (BarrierKind::AccumulatorsFree, buffers, readers),
                _ => (BarrierKind::SharedFree, 1, readers),
            });
        }
        if draft.work.cluster_parts > 1 {
            // A commit of each CTA arrives in all of them.
            wanted.push((BarrierKind::PeersRead, 1, draft.work.cluster_parts));
            wanted.push((BarrierKind::SumsArrived, 1, 1));
        }
        if draft.work.schedule == Schedule::Dynamic {
            // The MMA threads; of each CTA, the TMA thread and one lane of each epilogue warp.
            let readers = draft.cluster_ctas() * (1 + self.epilogue_warps) + asked.multicast.ctas();
            wanted.extend([
                (BarrierKind::AnswerFull, RESPONSES, 1),
                (BarrierKind::AnswerRead, RESPONSES, readers),
            ]);
        }
        wanted
    }

    fn descriptor_bits(&self, swizzle: Swizzle) -> u32 {
        // Bits 61..=63 of a descriptor, and version 1 at bit 46 (PTX ISA 9.7.16.4.1).
        let bits: u32 = match swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 2,
            Swizzle::B64 => 4,
            Swizzle::B32 => 6,
        };
        bits << 29 | 1 << 14
    }

    fn instruction(&self, kind: MmaKind, elements: [ElementKind; 2], mma: [u32; 2]) -> u32 {
        instruction_descriptor(kind, elements, mma)
    }

    fn describe(&self, plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TmemMap { used, columns, shared, .. } = self.tmem;
        let limit = plan.config.tmem_limit(plan.arch);
        writeln!(f, "TMEM      {used} columns used, {columns} allocated of {limit}")?;
        write_regions(f, &self.tmem.regions)?;
        if shared > 0 {
            writeln!(
                f,
                "  two buffers share {shared} of {} columns of each product, which the epilogue reads first",
                plan.mma_columns
            )?;
        }
        Ok(())
    }

    fn store_columns(&self, plan: &Plan, vector: u32) -> u32 {
        match plan.epilogue.load {
            TmemShape::S32x32b => vector,
            TmemShape::S16x256b => vector.min(2),
            TmemShape::S16x128b | TmemShape::S16x64b => 1,
        }
    }

    fn memory(&self, plan: &Plan) -> Option<MemoryBudget> {
        Some(MemoryBudget {
            name: "TMEM",
            unit: "columns",
            limit: plan.config.tmem_limit(plan.arch),
            used: self.tmem.columns,
            parts: self.tmem.regions.clone(),
            padding: self.tmem.columns.saturating_sub(self.tmem.used),
        })
    }

    fn what_ifs(&self) -> Vec<(&'static str, String)> {
        match self.buffers {
            1 => ["2", "overlapped"].map(|value| ("accumulator_buffers", value.to_owned())).into(),
            _ => Vec::new(),
        }
    }

    #[cfg(feature = "render")]
    fn view(&self, plan: &Plan) -> crate::render::TargetView {
        super::view::target_view(self, plan)
    }

    #[cfg(feature = "render")]
    fn render(&self, entry: &crate::render::Entry<'_>) -> Result<String, crate::render::RenderError> {
        super::view::render(self, entry)
    }
}

/// What the map of tensor memory is made from.
fn tmem_parts(draft: &Draft<'_>, buffers: u32) -> TmemParts {
    let [a_row_blocks, b_row_blocks] = draft.row_blocks();
    TmemParts {
        mma_n: draft.mma_columns(),
        blocks: draft.scale_blocks(),
        a_row_blocks,
        b_row_blocks,
        layout: draft.asked.layout(),
        products: draft.products(),
        b_tiles: draft.b_tiles(),
        buffers,
        shared: 0,
    }
}

/// Warps that finish a tile: eight where nothing else overlaps the epilogue and C leaves in boxes. From registers, a row of C for
/// each thread, the lines of stores would bound eight as they bound four.
fn epilogue_warps(draft: &Draft<'_>) -> (EpilogueWarps, Rule) {
    let asked = draft.asked;
    let halves = load::halves(draft.problem, asked, draft.swap_ab);
    match asked.epilogue_warps {
        Setting::Fixed(EpilogueWarps::Eight) => (EpilogueWarps::Eight, Rule::EightFinish),
        _ if draft.work.is_looped() => (EpilogueWarps::Four, Rule::MmasOverlapEpilogue),
        _ if draft.work.has_ranges() => (EpilogueWarps::Four, Rule::FourAddParts),
        _ if asked.ctas_per_sm == Setting::Fixed(CtasPerSm::Two) => {
            (EpilogueWarps::Four, Rule::CtasShareRegisters)
        }
        // The caller has tried eight.
        Setting::Fixed(EpilogueWarps::Four) => (EpilogueWarps::Four, Rule::FourFinish),
        Setting::Auto if draft.mma_columns().is_multiple_of(halves) && leaves_in_boxes(draft) => {
            (EpilogueWarps::Eight, Rule::EightFinish)
        }
        Setting::Auto => (EpilogueWarps::Four, Rule::FourFinish),
    }
}

/// Whether two warps' halves of C are stored by TMA: if that was asked for; else where a CTA has one tile, whose staging lies over
/// the stages.
fn leaves_in_boxes(draft: &Draft<'_>) -> bool {
    let half = draft.tile.n / 2;
    match draft.asked.store {
        Setting::Fixed(store) => store == Store::Tma && (!has_rows(draft) || are_units(draft, half)),
        Setting::Auto => !draft.work.is_looped() && !draft.work.has_ranges() && rows_are_units(draft, half),
    }
}

/// Whether a CTA has several tiles, and TMA can store them, `parts` of a tile's columns apart. Stores from registers take longer
/// than the MMAs of a tile if K is short.
fn tiles_can_leave_in_boxes(draft: &Draft<'_>, parts: u32) -> bool {
    let looped = draft.work.is_looped() && !draft.work.has_ranges();
    looped && draft.asked.ctas_per_sm() == 1 && rows_are_units(draft, draft.tile.n / parts)
}

/// Whether threads of the epilogue have rows of C.
fn has_rows(draft: &Draft<'_>) -> bool {
    !draft.swap_ab && draft.strategy != Strategy::TwoPass
}

/// Whether threads have rows of C, and both a row of C and `columns` of a tile are whole units of 16 bytes.
fn rows_are_units(draft: &Draft<'_>, columns: u32) -> bool {
    has_rows(draft) && are_units(draft, draft.problem.shape.n) && are_units(draft, columns)
}

/// Whether a row of `columns` of C is whole units of 16 bytes.
fn are_units(draft: &Draft<'_>, columns: u32) -> bool {
    (u64::from(columns) * u64::from(draft.problem.formats.c.bits())).is_multiple_of(128)
}

/// Tiles of C in flight, and columns of C that they share: what was asked for, or two where that helps and fits.
fn settle_buffers(draft: &Draft<'_>, errors: &mut Vec<ConfigError>) -> ((u32, u32), Rule) {
    let looped = draft.work.is_looped();
    let limit = draft.asked.tmem_columns.unwrap_or_else(|| draft.asked.tmem_limit(draft.arch));
    let columns = draft.mma_columns();
    let four = draft.asked.epilogue_warps != Setting::Fixed(EpilogueWarps::Eight);
    let settled = match draft.asked.accumulator_buffers {
        Setting::Fixed(buffers) if !looped && buffers != Buffers::Whole(1) => {
            errors.push(ConfigError::NothingToOverlap { buffers, schedule: draft.work.schedule });
            (1, 0)
        }
        Setting::Fixed(Buffers::Whole(buffers)) => (buffers, 0),
        Setting::Fixed(Buffers::Overlapped) => {
            let (two, chunk) = (tmem_parts(draft, 2), draft.chunk().0);
            let shared = two.missing(limit, chunk);
            if shared < u64::from(columns) {
                return ((2, shared as u32), Rule::BuffersShare);
            }
            // One buffer may be too much, too: the tile is to blame then.
            if tmem_parts(draft, 1).total() <= u64::from(limit) {
                errors.push(ConfigError::OverlapAll { limit, sum: two.sum(), shared, columns, chunk });
            }
            (1, 0)
        }
        // Two where that helps; if they need not share all they have.
        Setting::Auto => match tmem_parts(draft, 2).missing(limit, draft.chunk().0) {
            0 if looped => (2, 0),
            shared if looped && four && shared < u64::from(columns) => (2, shared as u32),
            _ => (1, 0),
        },
    };
    let rule = match settled {
        (_, 1..) => Rule::BuffersShare,
        (2, 0) => Rule::TwoBuffers,
        (_, 0) if looped && !four => Rule::EightReadWhole,
        (_, 0) if looped => Rule::NoRoomForTwo,
        (_, 0) => Rule::NothingToOverlap,
    };
    (settled, rule)
}

/// Columns to allocate, if they fit.
fn tmem_columns(draft: &Draft<'_>, parts: TmemParts, errors: &mut Vec<ConfigError>) -> Option<u32> {
    let limit = draft.asked.tmem_limit(draft.arch);
    let sum = parts.sum();
    if parts.total() > u64::from(limit) {
        let alone = tmem_parts(draft, 1).total() <= u64::from(limit);
        let knob = if parts.buffers > 1 && alone { "accumulator_buffers" } else { "tile" };
        errors.push(ConfigError::Tmem { knob, limit, sum });
        return None;
    }
    let least = (parts.total() as u32).next_power_of_two().max(32);
    match draft.asked.tmem_columns {
        Setting::Auto => Some(least),
        Setting::Fixed(given) if given >= least => Some(given),
        Setting::Fixed(given) => {
            errors.push(ConfigError::TmemColumnsTooFew { given, sum });
            None
        }
    }
}

/// Whether A stays in the collector between the two MMAs of a K block. Left to `auto`, pairs use it for NVFP4
/// alone: published kernels that ran on a B200 do so, and none was found for pairs of the other kinds.
fn collector(draft: &Draft<'_>, main_tiles: u32) -> (bool, Rule) {
    let auto = match (draft.asked.group(), draft.kind) {
        (CtaGroup::One, _) | (CtaGroup::Two, MmaKind::Mxf4Nvf4) => AReuse::Collector,
        (CtaGroup::Two, _) => AReuse::None,
    };
    let twice = draft.strategy == Strategy::Interleaved
        && !draft.swap_ab
        && draft.asked.layout() == Accumulators::Separate
        && main_tiles > 0;
    match twice && draft.asked.a_reuse.unwrap_or_else(|| auto) == AReuse::Collector {
        true => (true, Rule::SameA),
        false if twice => (false, Rule::PairsOfNvfp4),
        false => (false, Rule::NoSameA),
    }
}
