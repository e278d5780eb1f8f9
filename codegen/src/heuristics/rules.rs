//! The rules by which `auto` is settled. A heuristic returns a value and its rule; a plan keeps the rules, and an
//! explanation prints them.

use super::cluster_slots;
use crate::config::{KOrder, Setting};
use crate::plan::Plan;

/// By which rule a knob was settled. Numbers in its text are the plan's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    OneKernel,
    OneProduct,
    // Sides and tiles.
    FewTokens {
        rows: u32,
    },
    EnoughTokens,
    DecodedInRegisters,
    TokensAreColumns,
    TokensAreRows,
    NarrowTile,
    WideTile,
    LeastWork,
    WarpgroupColumns,
    WarpgroupRows,
    LeastTime,
    WarpColumns {
        shortened: bool,
    },
    WarpRows {
        shortened: bool,
    },
    // CTAs.
    RowsForPair,
    CtasShareK,
    OneCta,
    WarpgroupMma,
    WarpMma,
    // Work.
    AllAtOnce,
    SeveralTiles,
    ByTurns,
    /// `modelled`: no kernel was seen to gain by it on such a chip.
    ClusterSharesK {
        modelled: bool,
    },
    PartsOfK,
    EqualShares,
    AllOfChip,
    Bands,
    DownColumns,
    // Pipeline.
    Deepest,
    NoScales,
    OneLoadsForAll,
    BulkCopies,
    OneWave,
    MoreWaves,
    OutOfStep,
    // The K loop.
    TailHides {
        gate: u32,
        tile: u32,
    },
    TailOfPart,
    OtherMmasOverlap,
    NoMmaOfEach,
    GateIsShorter {
        gate: u32,
        tile: u32,
    },
    KIsShort,
    TailCostsStage,
    WarpsIssueTail,
    // Accumulators.
    MmaOfEach,
    InterleavedRows,
    ReadsAOnce,
    PairReadsAOnce,
    BuffersShare,
    TwoBuffers,
    NoRoomForTwo,
    NothingToOverlap,
    RegistersAreFull,
    SameA,
    PairsOfNvfp4,
    NoSameA,
    NoCollector,
    LeastColumns,
    NoTensorMemory,
    // CTAs of an SM.
    OneOfSm,
    TwoOfSm,
    // Epilogue warps.
    EightFinish,
    EightReadWhole,
    FourFinish,
    FourAddParts,
    CtasShareRegisters,
    MmasOverlapEpilogue,
    HoldersFinish,
    // Warpgroups.
    OneWarpIssues,
    TogetherOnTile,
    WarpsOnTile,
    SumsLeave,
    KEndsBefore,
    SumsAreWhole,
    // Stores.
    FromRegisters,
    TurnedInSmem,
    RowsLeaveWhole,
    RowsLeaveInBoxes,
    StagesMatter,
}

impl Rule {
    /// The rule in words, with the numbers of the plan that it led to.
    pub(crate) fn text(self, plan: &Plan) -> String {
        let sms = plan.config.sms.unwrap_or_else(|| plan.arch.limits().sms);
        let capacity = cluster_slots(&plan.config, plan.arch, plan.cluster_ctas());
        let (tiles, k_tiles) = (plan.work.tiles, plan.k_loop.tiles);
        // How many tiles of groups of rows there are, only the device knows.
        let at_most = if plan.problem.shape.groups.by_rows() { " at most" } else { "" };
        let text = match self {
            Rule::OneKernel => {
                "one kernel and one K loop: A is loaded once, nothing goes through global memory"
            }
            Rule::OneProduct => "one product: one kernel, one K loop",
            Rule::FewTokens { rows: 128 } => "few tokens: weights fill the MMA's rows better",
            Rule::FewTokens { rows } => {
                return format!("few tokens: weights fill the MMA's {rows} rows better");
            }
            Rule::EnoughTokens => "enough tokens to fill the MMA's rows, or another knob needs them there",
            Rule::DecodedInRegisters => "weights are decoded in registers, from which an MMA takes its rows",
            Rule::TokensAreColumns => {
                let [rows, ..] = plan.mma_shape();
                return format!(
                    "weights fill the MMA's {rows} rows; tokens are its columns, as many as there are"
                );
            }
            Rule::TokensAreRows => {
                "tiles of 128 rows of weights would leave SMs idle: narrow tiles with tokens as rows share the work better"
            }
            Rule::NarrowTile => {
                return format!("N = 64 leaves no SM with two tiles: {} CTAs on {sms} SMs", plan.ctas());
            }
            Rule::WideTile => {
                return format!(
                    "N = 128: with 64 there would be more CTAs than {sms} SMs, or MMAs of 2N; {}",
                    whole_or_half_span(plan)
                );
            }
            Rule::LeastWork => {
                return format!(
                    "N = {} leaves the busiest of {sms} SMs the least work; {}",
                    plan.tile.n,
                    whole_or_half_span(plan)
                );
            }
            Rule::WarpgroupColumns => {
                return format!(
                    "weights are the rows of {}; tokens are columns, as many as there are up to 128; K is one 128-byte swizzle span of a row, or the problem's",
                    match plan.threads / 128 - 1 {
                        1 => "one warpgroup: with 64 rows a tile, more SMs have one".to_owned(),
                        count => format!("{count} warpgroups"),
                    }
                );
            }
            Rule::WarpgroupRows => {
                return format!(
                    "{} rows, 64 for each MMA; of all N, {} leaves the busiest of {sms} SMs least to do; K is one 128-byte swizzle span of a row, or the problem's",
                    plan.cta_rows, plan.tile.n
                );
            }
            Rule::LeastTime => {
                return format!(
                    "{} x {} is estimated to take the least time on {sms} SMs; K is one 128-byte swizzle span of a row, or the problem's",
                    plan.cta_rows, plan.tile.n
                );
            }
            Rule::WarpColumns { shortened } => {
                return format!(
                    "weights are the rows of {} warps; tokens are columns, as many as there are up to 128; {}",
                    plan.threads / 32 - 4,
                    span_rule(shortened)
                );
            }
            Rule::WarpRows { shortened } => {
                return format!(
                    "{} rows, 16 for each warp; of all N, {} leaves the busiest of {sms} SMs least to do; {}",
                    plan.cta_rows,
                    plan.tile.n,
                    span_rule(shortened)
                );
            }
            Rule::RowsForPair => "M has rows for a pair: each CTA loads half of B",
            Rule::CtasShareK => "the CTAs of a cluster share K",
            Rule::OneCta => "one CTA's rows are enough, or another knob needs one CTA",
            Rule::WarpgroupMma => "an MMA is one warpgroup's",
            Rule::WarpMma => "an MMA is one warp's",
            Rule::WarpsOnTile => "all warps that compute work on one tile",
            Rule::AllAtOnce => {
                return format!("{tiles} tiles{at_most} on room for {capacity} clusters: all run at once");
            }
            Rule::SeveralTiles => {
                return format!(
                    "{tiles} tiles{at_most} on room for {capacity} clusters, or two accumulator buffers asked for: clusters stay and take several"
                );
            }
            Rule::ByTurns => "warpgroups by turns need tiles that follow each other",
            Rule::ClusterSharesK { modelled } => {
                let unseen = if modelled {
                    ", which takes less than one CTA's loads (modelled; published kernels were not seen to: `schedule = one_tile` avoids it)"
                } else {
                    ""
                };
                return format!(
                    "{tiles} tiles leave SMs idle: {} CTAs share each tile's K and add up through shared memory{unseen}",
                    plan.work.cluster_parts
                );
            }
            Rule::PartsOfK => {
                return format!("{tiles} tiles leave SMs idle: the others take parts of a tile's K");
            }
            Rule::EqualShares => {
                return format!(
                    "{tiles} tiles on room for {capacity} clusters would leave some idle: each takes an equal share of all K tiles"
                );
            }
            Rule::AllOfChip => "all of the chip",
            Rule::Bands => "bands of 8 rows of tiles: a wave's operands stay in L2",
            Rule::DownColumns => "down the columns of C: neighbours share weights",
            Rule::Deepest => "as many as SMEM holds and the K loop can use",
            Rule::NoScales => "the operands have no scale factors",
            Rule::OneLoadsForAll => "CTAs of a cluster need the same ones: one loads them for all",
            Rule::BulkCopies => "bulk copies of contiguous blocks: no tensor map to fetch",
            Rule::OneWave => "all tiles run in one wave: weights may leave L2 first",
            Rule::MoreWaves => "weights are read in more than one wave: L2 keeps what it likes",
            Rule::OutOfStep => "tiles along M read weights at different times: L2 keeps them until then",
            Rule::TailHides { gate, tile } => {
                let tail = if let KOrder::SplitTail(tail) = plan.k_order { tail } else { 0 };
                return format!(
                    "the gate's first part takes {gate} cycles, GEMM 2 on a K tile {tile} (modelled): {tail} of {k_tiles} K tiles hide {} of them",
                    gate.min(tail * tile)
                );
            }
            Rule::TailOfPart => "the products of a part of K are not the gate's",
            Rule::OtherMmasOverlap => "a CTA takes several tiles: other MMAs overlap its epilogue",
            Rule::NoMmaOfEach => "no K loop has an MMA for each product",
            Rule::GateIsShorter { gate, tile } => {
                return format!(
                    "the gate's first part takes {gate} cycles, less than the {tile} of GEMM 2 on a K tile (modelled)"
                );
            }
            Rule::KIsShort => {
                return format!(
                    "a split tail is a fifth of the K loop at most, and there are {k_tiles} K tiles"
                );
            }
            Rule::TailCostsStage => "a split tail's second barrier would cost a stage",
            Rule::WarpsIssueTail => "the warps that would apply the gate to a tail issue its MMAs",
            Rule::MmaOfEach => "an MMA a product: each can be done before the other",
            Rule::InterleavedRows => {
                "an MMA's rows are of both products: tiles of fewer columns of C, or of more tokens"
            }
            Rule::ReadsAOnce => "one MMA of 2N reads A once for both products",
            Rule::PairReadsAOnce => {
                "one MMA of 2N reads A once for both products, where two would wait for their reads (predicted; published kernels were not seen to: `accumulators = separate` avoids it)"
            }
            Rule::BuffersShare => {
                return format!(
                    "a CTA computes several tiles, and TMEM holds two buffers that share {} columns of each product: the rest of an epilogue overlaps the next tile's MMAs (published kernels overlap one product's; `accumulator_buffers = 1` avoids it)",
                    plan.tmem().map_or(0, |tmem| tmem.shared)
                );
            }
            Rule::TwoBuffers => {
                "a CTA computes several tiles, and TMEM holds two buffers: an epilogue overlaps the next tile's MMAs"
            }
            Rule::NoRoomForTwo => "two buffers do not fit TMEM, and would share all their columns",
            Rule::NothingToOverlap => "a CTA computes one tile: there is nothing to overlap",
            Rule::RegistersAreFull => {
                "accumulators take registers, which have no room for those of another tile"
            }
            Rule::SameA => "two MMAs of a K block read the same A",
            Rule::PairsOfNvfp4 => {
                "pairs keep A in the collector for NVFP4 alone: no published kernel was seen to for other kinds"
            }
            Rule::NoSameA => "no two MMAs of a K block read the same A",
            Rule::NoCollector => "tensor cores of this chip have no collector",
            Rule::LeastColumns => {
                return format!(
                    "the least power of two that holds {} columns",
                    plan.tmem().map_or(0, |tmem| tmem.used)
                );
            }
            Rule::EightFinish => {
                "no MMAs of another tile overlap the epilogue: twice as many warps finish it"
            }
            Rule::FourAddParts => "four warps add up the parts of a tile",
            Rule::CtasShareRegisters => "two CTAs share the registers of an SM",
            Rule::EightReadWhole => {
                "there is no room for a second one, and eight epilogue warps do not read overlapped ones"
            }
            Rule::HoldersFinish => "the warps that hold accumulators finish them",
            Rule::FourFinish => {
                "C does not leave in boxes whose rows are whole units of 16 bytes, or their staging would cost a stage"
            }
            Rule::MmasOverlapEpilogue => "the next tile's MMAs overlap the epilogue",
            Rule::OneOfSm => "one CTA has all of an SM: the deepest pipeline and the largest tile",
            Rule::TwoOfSm => "N = 64: two CTAs of an SM have half of its tensor memory each",
            Rule::NoTensorMemory => "this chip has no tensor memory",
            Rule::OneWarpIssues => "accumulators are in tensor memory, and one warp issues all MMAs",
            Rule::TogetherOnTile => {
                "both warpgroups on one tile read the same B, and every schedule has work for them"
            }
            Rule::SumsLeave => {
                "tensor cores add up products of 8-bit elements with fewer bits than fp32 has: sums leave them every 128 of K, or K tile"
            }
            Rule::KEndsBefore => "K ends before sums lose bits",
            Rule::SumsAreWhole => "sums of these operands' products have the bits of fp32",
            Rule::FromRegisters => "from registers: takes any N and no SMEM",
            Rule::TurnedInSmem => {
                "a thread has columns of C: through SMEM, where they are turned, rows leave whole"
            }
            Rule::StagesMatter => "from registers: staging would leave fewer than four stages",
            Rule::RowsLeaveInBoxes => {
                "through SMEM: a row of C for each thread would be a line of L1 for each store"
            }
            Rule::RowsLeaveWhole => "a thread has two columns side by side: through SMEM, rows leave whole",
        };
        text.to_owned()
    }
}

/// How K of a tile is chosen on sm_100a.
fn whole_or_half_span(plan: &Plan) -> &'static str {
    match plan.tile.k * plan.kind.container_bits() == 64 * 8 && plan.k_loop.tiles > 1 {
        true => "K is half of a 128-byte swizzle span of a row: it is short",
        false => "K is one 128-byte swizzle span of a row, or the problem's",
    }
}

/// How K of a tile is chosen where shared memory is small.
fn span_rule(shortened: bool) -> &'static str {
    match shortened {
        true => "K is half a 128-byte swizzle span of a row, for three stages of whole ones do not fit SMEM",
        false => "K is one 128-byte swizzle span of a row, or the problem's",
    }
}

/// The rules of a plan's knobs. Those of knobs that were asked for are in it as well, and do not matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rules(Vec<(&'static str, Rule)>);

impl Rules {
    /// Keeps the rule of a knob, in place of one that was kept before.
    pub fn note(&mut self, knob: &'static str, rule: Rule) {
        self.0.retain(|(other, _)| *other != knob);
        self.0.push((knob, rule));
    }

    /// The value of a knob: what was asked for, or what a heuristic gives, whose rule is kept.
    pub fn settle<T>(
        &mut self,
        knob: &'static str,
        asked: Setting<T>,
        auto: impl FnOnce() -> (T, Rule),
    ) -> T {
        asked.unwrap_or_else(|| {
            let (value, rule) = auto();
            self.note(knob, rule);
            value
        })
    }

    /// Keeps several.
    pub fn note_all(&mut self, rules: impl IntoIterator<Item = (&'static str, Rule)>) {
        rules.into_iter().for_each(|(knob, rule)| self.note(knob, rule));
    }

    /// The rule of a knob.
    pub fn of(&self, knob: &str) -> Option<Rule> {
        self.0.iter().find(|(other, _)| *other == knob).map(|(_, rule)| *rule)
    }
}
