//! What of a plan is warpgroups' own (`wgmma`, sm_90a).

use super::{ORDER_BLOCK, Wgmma, ordering_passes, ordering_warps};
use crate::config::{Config, Consumers, Promotion, Schedule, Setting};
use crate::error::ConfigError;
use crate::heuristics::Rule;
use crate::legalize::COUNT_LIMIT;
use crate::plan::draft::Draft;
use crate::plan::{BarrierCount, BarrierKind, Plan, Staging, Swizzle, Work};
use crate::problem::{MmaKind, Problem};
use crate::target::fragments::WARPGROUP_ROWS;
use crate::target::{Isa, RuleList, Target};
use std::fmt;

impl Isa for Wgmma {
    fn cta_rows(&self) -> u32 {
        self.tile_rows()
    }

    fn mma_rows(&self) -> u32 {
        WARPGROUP_ROWS
    }

    fn mmas_of_rows(&self) -> u32 {
        self.tile_rows() / self.rows() * self.blocks
    }

    fn threads(&self) -> u32 {
        128 * (self.count + 1)
    }

    fn interleaved_rows(&self) -> bool {
        self.interleaved_rows
    }

    fn orders_first(&self) -> bool {
        self.ordered
    }

    fn fixup(&self, work: &Work, k_tiles: u32, kind: MmaKind) -> bool {
        self.has_fixup(work, k_tiles, kind)
    }

    // A row outside of A costs more than one inside (decisions 0210 and 0239). Warps that decode activations, or bring them into order,
    // read all rows.
    fn clips_boxes(&self, draft: &Draft<'_>) -> bool {
        draft.kind != MmaKind::Decoded || self.ordered || (self.interleaved_rows && !draft.decodes_a())
    }

    // A CTA clears shared memory only before its first tile. In later tiles, rows outside are those of earlier K tiles, which filled every
    // stage.
    fn clips_last_tile(&self, draft: &Draft<'_>, stages: u32) -> bool {
        let persistent = draft.work.schedule == Schedule::Persistent;
        let fills = persistent && !self.ping_pong && draft.k_tiles >= stages;
        self.clips_boxes(draft) && (fills || !draft.work.is_looped())
    }

    fn multiplies_beyond_k(&self) -> bool {
        true
    }

    fn least_stages(&self, k_tiles: u32) -> u32 {
        // A warpgroup lets go of a stage only when the MMAs of the next K tile are under way.
        if k_tiles > 1 { 2 } else { 1 }
    }

    fn bands(&self) -> bool {
        // Seen on an H200, up to 5 % of the time.
        true
    }

    fn row_blocks(&self, draft: &Draft<'_>) -> [u32; 2] {
        if draft.kind != MmaKind::Decoded || draft.decodes_a() {
            return draft.whole_row_blocks();
        }
        // 96 rows can be in two blocks of 128.
        [0, if self.interleaved_rows && !128u32.is_multiple_of(draft.tile.n) { 2 } else { 1 }]
    }

    fn check_launches(&self, problem: &Problem, errors: &mut Vec<ConfigError>) {
        if !self.ordered {
            return;
        }
        let shape = problem.shape;
        let mut check = |what, count, limit| {
            if count > limit {
                errors.push(ConfigError::Count { knob: "accumulators", what, count, limit });
            }
        };
        let k_blocks = u64::from(shape.k.div_ceil(ORDER_BLOCK));
        let ctas = shape.rows().div_ceil(ORDER_BLOCK.into()).saturating_mul(k_blocks);
        check("CTAs of the launch that brings activations into order", ctas, COUNT_LIMIT);
        // Its stores reach a warp's 16 rows with constant offsets.
        let reach = 16 * 2 * u64::from(ORDER_BLOCK) * k_blocks;
        check("bytes of 16 rows of activations in order", reach, COUNT_LIMIT);
    }

    fn settle(&self, _: &Draft<'_>, _: &mut Vec<ConfigError>) -> (Target, Option<()>, RuleList) {
        (Target::Wgmma(*self), Some(()), Vec::new())
    }

    fn finish(&self, draft: &Draft<'_>, _: u32) -> (Target, RuleList) {
        let promotion = match self.promotion {
            Some(_) => Rule::SumsLeave,
            None if draft.kind == MmaKind::F8f6f4 => Rule::KEndsBefore,
            None => Rule::SumsAreWhole,
        };
        let rules = vec![
            ("promotion", promotion),
            ("consumers", Rule::TogetherOnTile),
            ("cta_group", Rule::WarpgroupMma),
            ("accumulator_buffers", Rule::RegistersAreFull),
            ("a_reuse", Rule::NoCollector),
            ("tmem_columns", Rule::NoTensorMemory),
            ("epilogue_warps", Rule::HoldersFinish),
        ];
        (Target::Wgmma(*self), rules)
    }

    fn settled_config(&self, draft: &Draft<'_>, config: Config) -> Config {
        Config {
            sf_load: if draft.scale_blocks() == 0 { Setting::Auto } else { config.sf_load },
            consumers: Setting::Fixed(match self.ping_pong {
                true => Consumers::PingPong,
                false => Consumers::Cooperative,
            }),
            promotion: match self.promotion {
                Some(interval) => Setting::Fixed(Promotion::Every(interval.tiles * draft.tile.k)),
                None if draft.kind == MmaKind::F8f6f4 => Setting::Fixed(Promotion::Off),
                None => Setting::Auto,
            },
            tmem_columns: Setting::Auto,
            ..config
        }
    }

    fn chunk(&self, _: &Draft<'_>, columns: u32) -> u32 {
        // A pair of 8 x 8 blocks of a warp's 16 rows: what one `stmatrix` takes.
        let widest = if self.interleaved_rows { 32 } else { 16 };
        [32, 16].into_iter().find(|c| *c <= widest && columns.is_multiple_of(*c)).unwrap_or(8)
    }

    fn epilogue_warps(&self) -> u32 {
        4 * self.count
    }

    fn staging(&self, draft: &Draft<'_>) -> Staging {
        let bits = draft.problem.formats.c.bits();
        if !draft.swap_ab {
            // Rows that a warp stores together.
            return draft.staging_of_rows(16, self.blocks);
        }
        // A warpgroup has 64 columns of C of each of its MMAs, or 32 of an MMA of both products.
        let columns = self.rows() / self.blocks.max(1);
        let swizzle = Swizzle::of_row(columns * bits / 8);
        let span = swizzle.span();
        let box_bytes = span * draft.tile.m;
        Staging {
            span,
            columns,
            boxes: 1,
            box_rows: draft.tile.m,
            box_bytes,
            warps: 4,
            warp_bytes: box_bytes * self.blocks,
            swizzle,
            swizzle_mask: span / 16 - 1,
        }
    }

    fn barriers(&self, draft: &Draft<'_>, stages: u32) -> Vec<BarrierCount> {
        let decoded = draft.kind == MmaKind::Decoded;
        // Each warpgroup that reads a stage lets go of it, in all CTAs that send to it.
        let users = if self.ping_pong { 1 } else { self.count };
        // Weights that are decoded are read by threads: each warp says when it is done.
        let users = if decoded { 4 * users } else { users };
        let empty = users * draft.asked.multicast.ctas();
        let mut wanted = vec![(BarrierKind::Full, stages, 1), (BarrierKind::Empty, stages, empty)];
        if decoded && !self.interleaved_rows {
            let (passes, _) = ordering_passes(draft.tile.m * draft.tile.k, draft.decodes_a());
            wanted.push((BarrierKind::Permuted, stages, ordering_warps(passes)));
        }
        if self.has_fixup(&draft.work, draft.k_tiles, draft.kind) {
            wanted.push((BarrierKind::PartKnown, 1, 1));
        }
        if draft.work.cluster_parts > 1 {
            // Each warp that computes says so to all other CTAs.
            wanted.push((BarrierKind::PeersRead, 1, 4 * self.count * (draft.work.cluster_parts - 1)));
            wanted.push((BarrierKind::SumsArrived, 1, 1));
        }
        wanted
    }

    fn descriptor_bits(&self, swizzle: Swizzle) -> u32 {
        // Bits 62..=63 of a descriptor (PTX ISA 9.7.15.5.1).
        let bits: u32 = match swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        bits << 30
    }

    fn describe(&self, plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        writeln!(
            f,
            "warps     {}; one more warpgroup loads",
            match (self.count, self.ping_pong) {
                (1, _) => format!("a warpgroup for {rows} rows"),
                (count, true) => format!("{count} warpgroups, by turns a tile of {rows} rows each"),
                (count, false) => format!("{count} warpgroups, {rows} rows of a tile each"),
            }
        )?;
        let products = plan.strategy.products();
        write!(
            f,
            "registers {} of a thread for accumulators: {products} x {rows} x {} fp32 in 128 threads",
            products * self.product_registers,
            plan.mma_columns
        )?;
        if let Some(interval) = self.promotion {
            write!(f, ", {} for sums on their way there", interval.sets * self.product_registers)?;
        }
        match (self.count, self.registers) {
            (1, _) => writeln!(f),
            (_, [computes, loads]) => {
                writeln!(f, "; {computes} where MMAs are issued, {loads} in the warpgroup that loads")
            }
        }
    }

    fn store_columns(&self, plan: &Plan, vector: u32) -> u32 {
        // Two columns of an accumulator, or, swapped, one of C that has neighbours in other lanes.
        vector.min(if plan.swap_ab { 1 } else { 2 })
    }

    fn what_ifs(&self) -> Vec<(&'static str, String)> {
        let other = if self.ping_pong { "cooperative" } else { "ping_pong" };
        vec![("consumers", other.to_owned())]
    }

    #[cfg(feature = "render")]
    fn view(&self, plan: &Plan) -> crate::render::TargetView {
        super::view::target_view(self, plan)
    }

    #[cfg(feature = "render")]
    fn render(&self, entry: &crate::render::Entry<'_>) -> Result<String, crate::render::RenderError> {
        super::view::render(self, entry)
    }

    #[cfg(feature = "render")]
    fn render_before(
        &self,
        plan: &Plan,
        name: &str,
    ) -> Result<Vec<(String, crate::kernel::Launch)>, crate::render::RenderError> {
        super::view::render_before(self, plan, name)
    }
}
