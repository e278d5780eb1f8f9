//! What of a plan is `mma.sync`'s own (sm_120a). How warps share a tile is as on sm_90a.

use super::{MMA_COLUMNS, MMA_ROWS, Mma};
use crate::config::{Config, Setting};
use crate::error::ConfigError;
use crate::heuristics::Rule;
use crate::plan::draft::Draft;
use crate::plan::{BarrierCount, BarrierKind, Plan, Staging, Work};
use crate::problem::MmaKind;
use crate::target::{Isa, RuleList, Target};
use std::fmt;

impl Isa for Mma {
    fn cta_rows(&self) -> u32 {
        self.groups.tile_rows()
    }

    fn mma_rows(&self) -> u32 {
        MMA_ROWS
    }

    fn mmas_of_rows(&self) -> u32 {
        self.cta_rows() / MMA_ROWS
    }

    fn mmas_of_columns(&self, columns: u32) -> u32 {
        columns / MMA_COLUMNS
    }

    fn threads(&self) -> u32 {
        self.groups.threads()
    }

    fn fixup(&self, work: &Work, k_tiles: u32, kind: MmaKind) -> bool {
        self.groups.fixup(work, k_tiles, kind)
    }

    fn least_stages(&self, _: u32) -> u32 {
        // A stage is read when its last MMA is issued.
        1
    }

    fn bands(&self) -> bool {
        true
    }

    fn settle(&self, _: &Draft<'_>, _: &mut Vec<ConfigError>) -> (Target, Option<()>, RuleList) {
        (Target::Mma(*self), Some(()), Vec::new())
    }

    fn finish(&self, _: &Draft<'_>, _: u32) -> (Target, RuleList) {
        let rules = vec![
            ("promotion", Rule::SumsAreWhole),
            ("consumers", Rule::WarpsOnTile),
            ("cta_group", Rule::WarpMma),
            ("accumulator_buffers", Rule::RegistersAreFull),
            ("a_reuse", Rule::NoCollector),
            ("tmem_columns", Rule::NoTensorMemory),
            ("epilogue_warps", Rule::HoldersFinish),
        ];
        (Target::Mma(*self), rules)
    }

    fn settled_config(&self, draft: &Draft<'_>, config: Config) -> Config {
        Config {
            sf_load: if draft.scale_blocks() == 0 { Setting::Auto } else { config.sf_load },
            tmem_columns: Setting::Auto,
            ..config
        }
    }

    fn chunk(&self, draft: &Draft<'_>, columns: u32) -> u32 {
        self.groups.chunk(draft, columns)
    }

    fn epilogue_warps(&self) -> u32 {
        self.groups.epilogue_warps()
    }

    fn staging(&self, draft: &Draft<'_>) -> Staging {
        self.groups.staging(draft)
    }

    fn barriers(&self, draft: &Draft<'_>, stages: u32) -> Vec<BarrierCount> {
        // Each warp lets go of a stage.
        let mut wanted =
            vec![(BarrierKind::Full, stages, 1), (BarrierKind::Empty, stages, 4 * self.groups.count)];
        if self.fixup(&draft.work, draft.k_tiles, draft.kind) {
            wanted.push((BarrierKind::PartKnown, 1, 1));
        }
        wanted
    }

    fn describe(&self, plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (groups, products) = (self.groups, plan.strategy.products());
        writeln!(
            f,
            "warps     {} that compute, {} rows of a tile each; four more, of which one loads",
            4 * groups.count,
            groups.rows() / 4
        )?;
        write!(
            f,
            "registers {} of a thread for accumulators: {products} x {} x {} fp32 in 32 threads",
            products * groups.product_registers,
            groups.rows() / 4,
            plan.mma_columns
        )?;
        match (groups.count, groups.registers) {
            (1, _) => writeln!(f),
            (_, [computes, loads]) => {
                writeln!(f, "; {computes} where MMAs are issued, {loads} in the warps beside")
            }
        }
    }

    fn store_columns(&self, plan: &Plan, vector: u32) -> u32 {
        self.groups.store_columns(plan, vector)
    }

    #[cfg(feature = "render")]
    fn view(&self, plan: &Plan) -> crate::render::TargetView {
        // Clusters have one CTA. Whether lanes that leave help was not measured (decision 0231).
        crate::render::TargetView { space: "cta", producer_alone: false, ..self.groups.view(plan) }
    }

    #[cfg(feature = "render")]
    fn render(&self, entry: &crate::render::Entry<'_>) -> Result<String, crate::render::RenderError> {
        super::view::render(self, entry)
    }
}
