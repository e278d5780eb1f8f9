//! Why a problem and a configuration make no kernel: the reasons and their messages. A way out of each
//! is in `hint`, the sums that messages spell out are in `sum`.

mod hint;
mod sum;

pub use sum::Sum;

use crate::arch::Arch;
use crate::config::{Buffers, Multicast, Promotion, Schedule, Store, Strategy};
use crate::problem::{Formats, FormatsError, Operation, OutputFormat};

/// Characters of a kernel's name.
pub(crate) const NAME_LIMIT: usize = 200;

/// One reason why a configuration is illegal. The message names the knob, the limit and the sum;
/// [`ConfigError::hint`] names a way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size of the problem is zero or beyond what TMA coordinates reach.
    #[error("shape: {dimension} = {value} is not between 1 and {limit}")]
    Size {
        /// `M`, `N` or `K`.
        dimension: &'static str,
        /// As given.
        value: u32,
        /// Largest legal value.
        limit: u32,
    },
    /// No MMA multiplies the two formats.
    #[error(transparent)]
    Formats(#[from] FormatsError),
    /// A value that a knob has on other chips.
    #[error("{knob} = {value}: not on {arch}: {reason}")]
    NotOnChip {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: String,
        /// The chip.
        arch: Arch,
        /// Why not.
        reason: &'static str,
    },
    /// Formats that the chip's MMAs do not multiply.
    #[error("formats: {formats}: not on {arch}: {reason}")]
    FormatsOnChip {
        /// The formats.
        formats: Formats,
        /// The chip.
        arch: Arch,
        /// Why not.
        reason: &'static str,
    },
    /// What does not go with weights that are decoded on their way to the tensor core.
    #[error("{knob} = {value}: not with {formats}: {reason}")]
    Decoded {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: String,
        /// The formats.
        formats: Formats,
        /// Why not.
        reason: &'static str,
    },
    /// A tile that warpgroups do not divide among them.
    #[error("tile: {side} = {given}: {reason}")]
    WarpgroupTile {
        /// `M` or `N`, with what else says so.
        side: &'static str,
        /// As given.
        given: u32,
        /// What it has to be.
        reason: String,
    },
    /// Accumulators beyond a thread's registers.
    #[error(
        "tile: {sums} of {rows} x {columns} in {} take {registers} registers of a thread, and {limit} are left for them", in_warpgroups(*.warpgroups)
    )]
    Registers {
        /// What there is of that size: accumulators, and sums on their way there.
        sums: &'static str,
        /// Rows of the tile that a warpgroup has.
        rows: u32,
        /// Columns of one accumulator.
        columns: u32,
        /// Warpgroups that share them.
        warpgroups: u32,
        /// Registers that the accumulators take.
        registers: u32,
        /// Registers that there are for them.
        limit: u32,
        /// Whether scale factors of columns are among them.
        scales: bool,
    },
    /// Sums that cannot leave the tensor core after so much of K.
    #[error("promotion: {promotion}: {reason}")]
    Promotion {
        /// As given.
        promotion: Promotion,
        /// Why not.
        reason: String,
        /// Whether f32 scale factors say when sums leave the tensor core.
        scaled: bool,
    },
    /// K is not a multiple of what the formats and TMA need.
    #[error("shape: K = {k} is not a multiple of {multiple}: {}", k_rule(*.k, *.formats))]
    KMultiple {
        /// As given.
        k: u32,
        /// K must be a multiple of this.
        multiple: u32,
        /// The formats.
        formats: Formats,
    },
    /// Several matrices of weights whose blocks of 128 rows are not whole.
    #[error(
        "shape: N = {n} is not a multiple of 128: each of several matrices of weights has whole blocks of 128 rows that share scale factors"
    )]
    RowBlocks {
        /// As given.
        n: u32,
    },
    /// N is not a multiple of what C's format needs.
    #[error(
        "shape: N = {n} is not a multiple of {multiple}: C in {format} is the next GEMM's operand, which has rows of a multiple of 16 bytes and whole blocks of scale factors"
    )]
    NMultiple {
        /// As given.
        n: u32,
        /// N must be a multiple of this.
        multiple: u32,
        /// C's format.
        format: OutputFormat,
    },
    /// More CTAs, or more units of work, than kernels count.
    #[error("{knob}: {what} are {count}, and kernels count to {limit}")]
    Count {
        /// The knob to turn.
        knob: &'static str,
        /// What is counted.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A knob's value that belongs to the interleaved K loop.
    #[error(
        "{knob}: {value} with strategy = {strategy}: {reason}, and this strategy computes one product at a time"
    )]
    NotInterleaved {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: &'static str,
        /// The strategy.
        strategy: Strategy,
        /// Why the two do not go together.
        reason: &'static str,
    },
    /// A strategy for another number of products.
    #[error("strategy = {strategy} computes {}, and the gate has {}", products(strategy.operation()), products(*.operation))]
    StrategyProducts {
        /// The strategy.
        strategy: Strategy,
        /// What the gate computes.
        operation: Operation,
    },
    /// A knob's value that needs all of a tile's K in one place.
    #[error("{knob}: {value} with schedule = {schedule}: {reason}, and this schedule shares a tile's K out")]
    WholeTiles {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: &'static str,
        /// The schedule.
        schedule: Schedule,
        /// Why the two do not go together.
        reason: &'static str,
    },
    /// More parts than K has tiles.
    #[error("schedule: {schedule} with {k_tiles} K tiles; there are from 1 to {k_tiles} parts")]
    SplitK {
        /// The schedule.
        schedule: Schedule,
        /// As given.
        parts: u32,
        /// K tiles of the problem.
        k_tiles: u32,
    },
    /// A cluster that can't share a tile's K.
    #[error("schedule: cluster_split_k({parts}): {reason}")]
    ClusterSplitK {
        /// As given.
        parts: u32,
        /// Why not.
        reason: String,
    },
    /// No buffers, or more than two.
    #[error("accumulator_buffers: {given} is neither 1 nor 2")]
    AccumulatorBuffers {
        /// As given.
        given: u32,
    },
    /// Two buffers where a CTA has one tile.
    #[error(
        "accumulator_buffers: {buffers} with schedule = {schedule}: a CTA computes one tile, and has nothing to overlap"
    )]
    NothingToOverlap {
        /// As given.
        buffers: Buffers,
        /// The schedule.
        schedule: Schedule,
    },
    /// Two buffers that would share all they have.
    #[error(
        "accumulator_buffers: overlapped: tensor memory has {limit} columns, and two whole buffers need {sum}: the two would share {shared} of the {columns} columns of an accumulator, in chunks of {chunk}, and the next tile's MMAs would wait for all of the epilogue's loads, as with one buffer"
    )]
    OverlapAll {
        /// Columns that there are.
        limit: u32,
        /// What two whole buffers need.
        sum: Sum,
        /// Columns that they would share.
        shared: u64,
        /// Columns of an accumulator.
        columns: u32,
        /// Columns that the epilogue reads together.
        chunk: u32,
    },
    /// More SMs than the chip has, or none.
    #[error("sms: {given} is not between {least} and {limit}")]
    Sms {
        /// As given.
        given: u32,
        /// SMs of one cluster.
        least: u32,
        /// SMs of the chip.
        limit: u32,
    },
    /// A cluster that can't share.
    #[error("multicast: {multicast}: {reason}")]
    Multicast {
        /// As given.
        multicast: Multicast,
        /// Why not.
        reason: String,
    },
    /// Two things that need the MMA's sides as they are.
    #[error("swap_ab: on with {knob} = {value}: {reason}")]
    SwapAb {
        /// The other knob.
        knob: &'static str,
        /// Its value.
        value: &'static str,
        /// Why the two do not go together.
        reason: &'static str,
    },
    /// A vector with an element per row of C, with tokens on the MMA's column side.
    #[error(
        "swap_ab: on with `{vector}` in the gate: each thread then holds pairs of results from two rows, and the gate's code \
         takes one element of the vector for both"
    )]
    SwapAbRows {
        /// The vector, as in the gate.
        vector: String,
    },
    /// A name that PTX does not take.
    #[error(
        "name: `{name}` is not a PTX identifier: use letters, digits, `_` and `$`, not a digit first, at most {NAME_LIMIT} \
         characters together with the shape behind it"
    )]
    Name {
        /// The kernel's name, the shape behind it.
        name: String,
    },
    /// A bulk copy that would have to signal another CTA.
    #[error(
        "sf_load: bulk with cta_group = 2: a plain bulk copy signals its own CTA's barriers only, and a pair waits on its leader's"
    )]
    SfLoadPair,
    /// Scale factors for one CTA only.
    #[error(
        "sf_load: multicast with cta_group = 1 and multicast = none: no two CTAs of a cluster need the same scale factors"
    )]
    SfLoadAlone,
    /// C's scale factors don't go with a knob.
    #[error("{knob}: C in {format} has scale factors: {reason}")]
    OutputScales {
        /// The knob.
        knob: &'static str,
        /// C's format.
        format: OutputFormat,
        /// Why the two do not go together.
        reason: String,
    },
    /// A knob's value that needs to know on the host where rows end.
    #[error("{knob}: {value} with groups of rows: {reason}")]
    GroupsOfRows {
        /// The knob.
        knob: &'static str,
        /// Its value.
        value: &'static str,
        /// Why the two do not go together.
        reason: &'static str,
    },
    /// Nothing to load.
    #[error("{knob}: {formats} has no scale factors that MMAs take")]
    NoScales {
        /// The knob.
        knob: &'static str,
        /// The formats.
        formats: Formats,
    },
    /// Groups of no tiles.
    #[error("raster: swizzled(0) has groups of no tiles")]
    RasterGroup,
    /// The tile's M is not the one that an MMA of this many CTAs has.
    #[error("tile: {side} = {given}, but an MMA of {} has {wanted} rows", of_ctas(*.ctas))]
    TileM {
        /// `M`, or N in words where operands are swapped.
        side: &'static str,
        /// As given.
        given: u32,
        /// CTAs of the group.
        ctas: u32,
        /// The one legal M.
        wanted: u32,
    },
    /// The tile's N is not one that the MMA has.
    #[error(
        "tile: {side} = {given}, but the N of an MMA of {} is a multiple of {multiple}, from {multiple} to 256", of_ctas(*.ctas)
    )]
    TileN {
        /// `N`, or M in words where operands are swapped.
        side: &'static str,
        /// As given.
        given: u32,
        /// CTAs of the group.
        ctas: u32,
        /// N must be a multiple of this.
        multiple: u32,
    },
    /// The tile's N starts a tile in the middle of a scale-factor column pair.
    #[error(
        "tile: {side} = {given} with {tiles} tiles along {}: the second tile starts at row {given} of a 128-row scale-factor block, and the MMA can start only at 0 or 64",
        side.trim_start_matches("with swap_ab, ")
    )]
    TileNStart {
        /// `N`, or M in words where operands are swapped.
        side: &'static str,
        /// As given.
        given: u32,
        /// Tiles along N.
        tiles: u32,
    },
    /// The tile's K is not a multiple of the MMA's.
    #[error(
        "tile: K = {given} is not a positive multiple of {multiple}, the K of one MMA and of its scale factors"
    )]
    TileK {
        /// As given.
        given: u32,
        /// The MMA's K.
        multiple: u32,
    },
    /// A pipeline depth outside what the barrier ring is made for.
    #[error("stages: {given} is not between 1 and 32")]
    Stages {
        /// As given.
        given: u32,
    },
    /// A pipeline in which MMAs that run keep the loads that they wait for from starting.
    #[error(
        "stages: {given} with {k_tiles} K tiles: the MMAs of a K tile end while those of the next run, which takes {least} stages"
    )]
    StagesInFlight {
        /// As given.
        given: u32,
        /// Stages at least.
        least: u32,
        /// K tiles there are.
        k_tiles: u32,
    },
    /// Warpgroups by turns, where they do not each take whole tiles.
    #[error(
        "consumers: ping_pong with schedule = {schedule}: two warpgroups take whole tiles by turns, as long as there are any, which is persistent"
    )]
    PingPong {
        /// The schedule.
        schedule: Schedule,
    },
    /// Shared memory does not hold the plan.
    #[error("{knob}: shared memory holds {limit} bytes, this needs {sum}")]
    Smem {
        /// The knob to turn.
        knob: &'static str,
        /// Bytes that the chip has.
        limit: u32,
        /// What is needed.
        sum: Sum,
    },
    /// Tensor memory does not hold the plan.
    #[error("{knob}: tensor memory has {limit} columns, this needs {sum}")]
    Tmem {
        /// The knob to turn.
        knob: &'static str,
        /// Columns that the chip has.
        limit: u32,
        /// What is needed.
        sum: Sum,
    },
    /// An allocation that the instruction does not have.
    #[error("tmem_columns: {given} is not a power of two from 32 to {limit}")]
    TmemColumns {
        /// As given.
        given: u32,
        /// Columns that the chip has.
        limit: u32,
    },
    /// An allocation smaller than the plan.
    #[error("tmem_columns: {given} allocated, but this needs {sum}")]
    TmemColumnsTooFew {
        /// As given.
        given: u32,
        /// What is needed.
        sum: Sum,
    },
    /// A split tail of nothing, or of more than there is.
    #[error("k_order: split_tail({tail}) with {k_tiles} K tiles; the tail has from 1 to {k_tiles} tiles")]
    SplitTailLength {
        /// As given.
        tail: u32,
        /// K tiles of the problem.
        k_tiles: u32,
    },
    /// The tail does not fit the pipeline.
    #[error(
        "k_order: split_tail({tail}) keeps {tail} K tiles in shared memory until GEMM 2 has read them, and the pipeline has {stages} stages"
    )]
    SplitTailStages {
        /// As given.
        tail: u32,
        /// Stages of the plan.
        stages: u32,
    },
    /// One MMA can't be split in two.
    #[error(
        "k_order: split_tail runs GEMM 1 before GEMM 2, and side_by_side accumulators have one MMA for both"
    )]
    SplitTailSideBySide,
    /// `ahead(0)`, or further ahead than the ring goes.
    #[error("sf_preload: ahead({given}) is not between 1 and 32")]
    Ahead {
        /// As given.
        given: u32,
    },
    /// Side by side needs the two scale-factor images to meet.
    #[error(
        "accumulators: side_by_side with tile N = {tile_n}: the scale factors of B2 must follow those of B1 in TMEM without a gap, which whole 128-row blocks do and {tile_n} rows do not"
    )]
    SideBySideScales {
        /// The tile's N.
        tile_n: u32,
    },
    /// The doubled MMA is too wide.
    #[error(
        "accumulators: side_by_side with tile N = {tile_n} needs an MMA of 2 x {tile_n} = {doubled} columns, and the widest has 256"
    )]
    SideBySideWidth {
        /// The tile's N.
        tile_n: u32,
        /// Twice that.
        doubled: u32,
    },
    /// Nothing to reuse.
    #[error("a_reuse: collector keeps A between the two MMAs of a K block, and {reason}")]
    NothingToReuse {
        /// Why there are not two.
        reason: &'static str,
    },
    /// Loads of accumulators that don't go with the rest.
    #[error("store: {store}: {reason}")]
    StoreLoad {
        /// As given.
        store: Store,
        /// Why not.
        reason: String,
    },
    /// Eight epilogue warps with what goes with four alone.
    #[error("epilogue_warps: 8: {reason}")]
    EpilogueWarps {
        /// Why not.
        reason: String,
    },
    /// Rows of a tile of C that are no whole units of a box.
    #[error(
        "store: tma: {tile_n} columns of a tile are {bytes} bytes, and rows of a box are multiples of 16"
    )]
    StoreTmaTile {
        /// The tile's N.
        tile_n: u32,
        /// Its bytes.
        bytes: u32,
    },
    /// TMA can't store rows of this pitch.
    #[error("store: tma with N = {n}: a row of C is {row_bytes} bytes, and TMA needs a multiple of 16")]
    StoreTma {
        /// The problem's N.
        n: u32,
        /// Bytes of a row of C.
        row_bytes: u64,
    },
}

impl ConfigError {
    /// The knob (or `shape`) that the error is about, for the caret of an editor.
    pub fn knob(&self) -> &'static str {
        use ConfigError::*;
        match self {
            Formats(_) | FormatsOnChip { .. } => "formats",
            Size { dimension: dimension @ ("batch" | "groups"), .. } => dimension,
            Size { .. } | KMultiple { .. } | NMultiple { .. } | RowBlocks { .. } => "shape",
            TileM { .. }
            | TileN { .. }
            | TileNStart { .. }
            | TileK { .. }
            | WarpgroupTile { .. }
            | Registers { .. } => "tile",
            Stages { .. } | StagesInFlight { .. } => "stages",
            PingPong { .. } => "consumers",
            Count { knob, .. }
            | GroupsOfRows { knob, .. }
            | NoScales { knob, .. }
            | OutputScales { knob, .. }
            | NotInterleaved { knob, .. }
            | NotOnChip { knob, .. }
            | Decoded { knob, .. }
            | WholeTiles { knob, .. } => knob,
            StrategyProducts { .. } => "strategy",
            SplitK { .. } | ClusterSplitK { .. } => "schedule",
            AccumulatorBuffers { .. } | NothingToOverlap { .. } | OverlapAll { .. } => "accumulator_buffers",
            Sms { .. } => "sms",
            Multicast { .. } => "multicast",
            SwapAb { .. } | SwapAbRows { .. } => "swap_ab",
            Name { .. } => "name",
            SfLoadPair | SfLoadAlone => "sf_load",
            RasterGroup => "raster",
            Promotion { .. } => "promotion",
            Smem { knob, .. } | Tmem { knob, .. } => knob,
            TmemColumns { .. } | TmemColumnsTooFew { .. } => "tmem_columns",
            SplitTailLength { .. } | SplitTailStages { .. } | SplitTailSideBySide => "k_order",
            Ahead { .. } => "sf_preload",
            SideBySideScales { .. } | SideBySideWidth { .. } => "accumulators",
            NothingToReuse { .. } => "a_reuse",
            EpilogueWarps { .. } => "epilogue_warps",
            StoreTma { .. } | StoreTmaTile { .. } | StoreLoad { .. } => "store",
        }
    }
}

/// The CTAs of a group, in words.
fn of_ctas(count: u32) -> &'static str {
    if count == 1 { "one CTA" } else { "a pair of CTAs" }
}

/// The number of warpgroups, in words.
fn in_warpgroups(count: u32) -> String {
    if count == 1 { "one warpgroup".to_owned() } else { format!("{count} warpgroups") }
}

/// The number of products, in words.
fn products(operation: Operation) -> &'static str {
    match operation {
        Operation::DualGemm => "two products",
        Operation::Gemm => "one product",
    }
}

/// Why K has to be a multiple: the row of a format that is too short, or the expansion of one.
fn k_rule(k: u32, formats: Formats) -> String {
    let Formats { a, b, .. } = formats;
    if let Ok(kind) = formats.check()
        && let Some(narrow) = [a, b].into_iter().find(|format| kind.expands(format.spec().element))
    {
        return format!("{kind} takes {narrow} elements in bytes, and TMA expands rows of a multiple of 128");
    }
    let format = if a.spec().k_multiple < b.spec().k_multiple { b } else { a };
    let bits = format.spec().element_bits;
    let sum = match bits {
        4 => "K/2",
        8 => "K",
        _ => "2K",
    };
    let bytes = u64::from(k) * u64::from(bits) / 8;
    if (u64::from(k) * u64::from(bits)).is_multiple_of(128) || formats.scales_sums() {
        return format!("a scale factor of {format} covers {} elements", format.spec().k_multiple);
    }
    format!(
        "a row of {format} operands is {sum} = {bytes} bytes, and TMA needs row strides of a multiple of 16"
    )
}

/// All reasons, one a line with its hint: what the tools print.
pub fn explain(errors: &[ConfigError]) -> String {
    let lines: Vec<String> =
        errors.iter().map(|error| format!("{error}\n  help: {}", error.hint())).collect();
    lines.join("\n")
}
