//! What differs from chip to chip: a folder for each way to multiply.
//!
//! Nothing outside this folder asks which chip a plan is for. What all chips share asks `Target::isa`, and each
//! folder answers it: `sm_90a/` for `wgmma`, `sm_100a/` for `tcgen05`, `sm_120a/` for `mma.sync`.
//!
//! * `mod.rs`: [`Target`], and the questions that each folder answers (`Isa`).
//! * `chip.rs`: one row of facts a chip, and the limits read from `chips/*.toml`.
//! * `fragments.rs`: what `wgmma` and `mma.sync` share, whose accumulators are in registers.
//!
//! A folder has `legalize.rs` (what it refuses), `heuristics.rs` (how it settles `auto`), `plan.rs` (its part of a
//! plan) and `view/` (its part of what templates print).

pub(crate) mod chip;
mod fragments;
pub(crate) mod sm_100a;
pub(crate) mod sm_120a;
pub(crate) mod sm_90a;

pub use sm_90a::{PromotionInterval, Wgmma};
pub use sm_100a::{Tcgen05, TmemMap};
pub use sm_120a::Mma;

use crate::arch::{Arch, TensorCore};
use crate::config::{Config, Store, TmemShape};
use crate::error::ConfigError;
use crate::heuristics::Rule;
use crate::plan::draft::Draft;
use crate::plan::{BarrierCount, EARLY_COLUMNS, Plan, Staging, Swizzle, Work};
use crate::problem::{ElementKind, Formats, MmaKind, Problem};
use std::fmt;

/// How a plan multiplies, with what only that way has.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Warpgroups issue MMAs and hold the accumulators in their registers (`wgmma`, sm_90a).
    Wgmma(Wgmma),
    /// One thread issues MMAs, and accumulators are in tensor memory (`tcgen05`, sm_100a and its relatives).
    Tcgen05(Tcgen05),
    /// Warps issue MMAs and hold operands and accumulators in their registers (`mma.sync`, sm_120a and sm_121a).
    Mma(Mma),
}

impl Target {
    /// What the way to multiply answers.
    pub(crate) fn isa(&self) -> &dyn Isa {
        match self {
            Target::Wgmma(wgmma) => wgmma,
            Target::Tcgen05(tcgen05) => tcgen05,
            Target::Mma(mma) => mma,
        }
    }
}

impl Plan {
    /// Tensor memory, where the chip has it.
    pub fn tmem(&self) -> Option<&TmemMap> {
        match &self.target {
            Target::Tcgen05(tcgen05) => Some(&tcgen05.tmem),
            Target::Wgmma(_) | Target::Mma(_) => None,
        }
    }

    /// Columns of tensor memory that are allocated; 0 where the chip has none.
    pub fn tmem_columns(&self) -> u32 {
        self.tmem().map_or(0, |tmem| tmem.columns)
    }

    /// Whether warpgroups take whole tiles by turns.
    pub fn takes_turns(&self) -> bool {
        match &self.target {
            Target::Wgmma(wgmma) => wgmma.ping_pong,
            Target::Tcgen05(_) | Target::Mma(_) => false,
        }
    }

    /// K of the longest sums that the tensor core adds up with fewer bits than fp32 has; `None` where it adds up in fp32.
    pub fn narrow_sums(&self) -> Option<u32> {
        match &self.target {
            Target::Wgmma(wgmma) if self.kind == MmaKind::F8f6f4 => {
                Some(wgmma.promotion.map_or(self.problem.shape.k, |interval| interval.tiles * self.tile.k))
            }
            Target::Wgmma(_) | Target::Tcgen05(_) | Target::Mma(_) => None,
        }
    }
}

impl Plan {
    /// f32 scale factors that the threads of a tile load for each K tile, with `b_tensors` tensors of B's; 0 where no sums are
    /// multiplied by them.
    pub(crate) fn loaded_factors(&self, b_tensors: u64) -> u64 {
        match &self.target {
            Target::Wgmma(wgmma) if self.problem.formats.scales_sums() => {
                wgmma.loaded_factors(self.mma_columns, self.swap_ab, self.tile.n, b_tensors)
            }
            Target::Wgmma(_) | Target::Tcgen05(_) | Target::Mma(_) => 0,
        }
    }
}

/// The numbers of a chip's file, by name.
pub(crate) type Numbers<'a> = dyn Fn(&str) -> f64 + 'a;

/// What is known of a way to multiply before there is a plan.
pub(crate) struct Way {
    /// Settles every knob of a configuration, and makes the plan if it is legal.
    pub plan: fn(&Problem, &Config, Arch) -> Result<Plan, Vec<ConfigError>>,
    /// Its place among chips that nobody named: the first one's errors stand for those of all that are as near.
    pub error_rank: u32,
    /// Whether a swapped plan can apply a gate that reads a vector with an element per row of C.
    pub swaps_row_vectors: bool,
    /// What such chips are usually fed.
    pub usual_formats: Formats,
    /// Whether MMAs take scale factors; where they do not, 4-bit operands that have them are decoded.
    pub takes_scales: bool,
    /// Whether `cvt` rounds to e2m1.
    pub converts_e2m1: bool,
    /// Columns of tensor memory of an SM.
    pub tmem_columns: u32,
    /// From the numbers of a chip's file: operations of a 16-bit MMA a cycle, and how many of them take as long as one of
    /// an e2m1 MMA, where there is one.
    pub rates: fn(&Numbers<'_>) -> (f64, Option<f64>),
}

/// The way to multiply of a tensor core.
pub(crate) fn way(core: TensorCore) -> &'static Way {
    match core {
        TensorCore::Wgmma => &sm_90a::WAY,
        TensorCore::Tcgen05 => &sm_100a::WAY,
        TensorCore::Mma => &sm_120a::WAY,
    }
}

/// The way to multiply of a chip.
pub(crate) fn way_of(arch: Arch) -> &'static Way {
    way(arch.tensor_core())
}

/// Knobs, and by which rules they were settled.
pub(crate) type RuleList = Vec<(&'static str, Rule)>;

/// What the code that all chips share asks of the way to multiply. An answer that is given here is that of a target without the
/// feature in question.
pub(crate) trait Isa {
    /// Rows of a tile in one CTA.
    fn cta_rows(&self) -> u32;
    /// Rows of one MMA in one CTA.
    fn mma_rows(&self) -> u32;
    /// MMAs that cover a CTA's rows of one product.
    fn mmas_of_rows(&self) -> u32;
    /// MMAs side by side that cover so many columns.
    fn mmas_of_columns(&self, _columns: u32) -> u32 {
        1
    }
    /// Threads of a CTA.
    fn threads(&self) -> u32;
    /// Whether an MMA's rows are of both products by turns.
    fn interleaved_rows(&self) -> bool {
        false
    }
    /// Whether a launch of its own brings the activations into the order of K in which weights are decoded.
    fn orders_first(&self) -> bool {
        false
    }
    /// Whether one of two CTAs that share a tile's K hands its sums over to the other.
    fn fixup(&self, _work: &Work, _k_tiles: u32, _kind: MmaKind) -> bool {
        false
    }
    /// Whether a box of A ends with A's last row, where a tile has more rows than A. What shared memory holds beyond is multiplied into
    /// rows of C that nobody stores.
    fn clips_boxes(&self, _draft: &Draft<'_>) -> bool {
        false
    }
    /// Whether boxes of the last of several tiles along M end with A's last row too, in a kernel with `stages` stages.
    fn clips_last_tile(&self, _draft: &Draft<'_>, _stages: u32) -> bool {
        false
    }
    /// Whether MMAs are issued for all of the last K tile, wherever K ends in it.
    fn multiplies_beyond_k(&self) -> bool {
        false
    }
    /// Stages without which the K loop would wait for itself.
    fn least_stages(&self, k_tiles: u32) -> u32;
    /// Whether tiles of several waves are computed in bands, so that L2 holds most of a band's operands.
    fn bands(&self) -> bool;
    /// Whether shared memory has a word for the address of tensor memory.
    fn has_address_word(&self) -> bool {
        false
    }
    /// Tiles of C in flight in a CTA.
    fn buffers(&self) -> u32 {
        1
    }

    /// 128-row blocks of scale factors that a tile of A, and one of B, touches in one CTA.
    fn row_blocks(&self, draft: &Draft<'_>) -> [u32; 2] {
        draft.whole_row_blocks()
    }
    /// Refuses sizes of launches beside the MMAs'.
    fn check_launches(&self, _problem: &Problem, _errors: &mut Vec<ConfigError>) {}
    /// Settles where accumulators are; `None` where they do not fit. The target returned has what could be settled.
    fn settle(&self, draft: &Draft<'_>, errors: &mut Vec<ConfigError>) -> (Target, Option<()>, RuleList);
    /// Adds what depends on the whole plan: `main_tiles` K tiles alternate between the products.
    fn finish(&self, draft: &Draft<'_>, main_tiles: u32) -> (Target, RuleList);
    /// `config` with the target's own knobs as they were settled.
    fn settled_config(&self, draft: &Draft<'_>, config: Config) -> Config;
    /// The length of the split tail that `auto` gives, 0 where there is none, and by which rule.
    fn split_tail(&self, _draft: &Draft<'_>) -> (u32, Rule) {
        (0, Rule::WarpsIssueTail)
    }
    /// Columns that the epilogue finishes together, of `columns` that a CTA finishes.
    fn chunk(&self, draft: &Draft<'_>, columns: u32) -> u32;
    /// The shape of the loads that bring accumulators to registers.
    fn load_shape(&self, _draft: &Draft<'_>) -> TmemShape {
        TmemShape::S32x32b
    }
    /// The staging of a TMA store of C.
    fn staging(&self, draft: &Draft<'_>) -> Staging;
    /// Columns of the first product, of `columns` that a warp finishes, that its threads hold before the second is done.
    fn early_columns(&self, columns: u32) -> u32 {
        columns.min(EARLY_COLUMNS)
    }
    /// How C is stored, where that depends on what else was settled.
    fn store(&self, draft: &Draft<'_>) -> (Store, Option<Rule>) {
        (draft.store, None)
    }
    /// Warps that fill the staging.
    fn epilogue_warps(&self) -> u32;
    /// Warps that have the same rows of a tile, and a part of the columns each.
    fn column_parts(&self) -> u32 {
        1
    }
    /// The mbarriers, in the order of their addresses.
    fn barriers(&self, draft: &Draft<'_>, stages: u32) -> Vec<BarrierCount>;
    /// The bits of a matrix descriptor's high word that say how it is swizzled, and its version.
    fn descriptor_bits(&self, _swizzle: Swizzle) -> u32 {
        0
    }
    /// The instruction descriptor of an MMA of `mma` rows and columns; 0 where the instruction has none.
    fn instruction(&self, _kind: MmaKind, _elements: [ElementKind; 2], _mma: [u32; 2]) -> u32 {
        0
    }

    /// Prints where accumulators are.
    fn describe(&self, plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Columns of C that one store of the epilogue writes, where it can write a whole vector of `vector`.
    fn store_columns(&self, plan: &Plan, vector: u32) -> u32;
    /// Memory beside SMEM that a plan takes.
    fn memory(&self, _plan: &Plan) -> Option<crate::plan::MemoryBudget> {
        None
    }
    /// Values of the target's own knobs to try beside a plan's.
    fn what_ifs(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What the templates need of the target.
    #[cfg(feature = "render")]
    fn view(&self, plan: &Plan) -> crate::render::TargetView;
    /// An entry of MMAs as PTX.
    #[cfg(feature = "render")]
    fn render(&self, entry: &crate::render::Entry<'_>) -> Result<String, crate::render::RenderError>;
    /// Entries that run before those of the strategy, as PTX and as launches.
    #[cfg(feature = "render")]
    fn render_before(
        &self,
        _plan: &Plan,
        _name: &str,
    ) -> Result<Vec<(String, crate::kernel::Launch)>, crate::render::RenderError> {
        Ok(Vec::new())
    }
}
