//! The type of each knob.

use std::fmt;

/// A knob's value, or `auto`: leave the choice to `validate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Setting<T> {
    /// `validate` chooses; the plan says what.
    #[default]
    Auto,
    /// This value or an error.
    Fixed(T),
}

impl<T> Setting<T> {
    /// The fixed value, or what `choose` gives.
    pub fn unwrap_or_else(self, choose: impl FnOnce() -> T) -> T {
        match self {
            Setting::Auto => choose(),
            Setting::Fixed(value) => value,
        }
    }

    /// Whether a value was asked for.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Setting::Fixed(_))
    }
}

/// How many kernels compute C, and what each of them multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Three launches: GEMM 1 to fp32, GEMM 2 to fp32, then the gate, element by element.
    TwoPass,
    /// Two launches: GEMM 1 to fp32; GEMM 2, whose epilogue reads that and applies the gate.
    SecondFused,
    /// One kernel; each tile runs all of GEMM 1, then all of GEMM 2, and loads A twice.
    Sequential,
    /// One kernel, one K loop: each K tile of A is loaded once and feeds both products.
    Interleaved,
}

impl Strategy {
    /// Whether both products of a tile are accumulated in one kernel.
    pub const fn is_fused(self) -> bool {
        matches!(self, Strategy::Sequential | Strategy::Interleaved)
    }
}

/// Which cluster computes which tiles of C, and which part of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// A cluster a tile.
    OneTile,
    /// As many clusters as the chip runs at once; each takes every so-many-th tile.
    Persistent,
    /// A cluster a tile at launch; a running one takes over tiles whose clusters have not started
    /// (cluster launch control).
    Dynamic,
    /// As many clusters as the chip runs at once; each takes an equal share of all K tiles of all tiles of C.
    StreamK,
    /// N clusters a tile, each with an equal share of its K tiles; their sums meet in global memory.
    SplitK(u32),
    /// A cluster of N CTAs a tile, each with an equal share of its K tiles; their sums meet in distributed
    /// shared memory, each CTA finishing its part of the columns.
    ClusterSplitK(u32),
}

/// Which operand's tiles a cluster shares: each CTA loads its part of a tile for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Multicast {
    /// Every CTA, or pair, loads its own.
    #[default]
    None,
    /// N CTAs, or pairs, along a row of tiles share A.
    A(u32),
    /// N CTAs, or pairs, down a column of tiles share B1 and B2.
    B(u32),
}

impl Multicast {
    /// CTAs, or pairs, that share.
    pub const fn ctas(self) -> u32 {
        match self {
            Multicast::None => 1,
            Multicast::A(ctas) | Multicast::B(ctas) => ctas,
        }
    }
}

/// How scale factors come to SMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SfLoad {
    /// A plain bulk copy a 128-row block: contiguous in global memory, no tensor map.
    Bulk,
    /// Boxes of a tensor map, which can signal the barrier of a pair's leader.
    TensorMap,
    /// The same, each box loaded by one CTA for all of a cluster that need it: those of B by both CTAs of a
    /// pair, and those of a tile that the cluster shares by all that share it.
    Multicast,
}

/// The order in which tiles of C are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Raster {
    /// Down a column of tiles first: neighbours share B.
    #[default]
    AlongM,
    /// Along a row of tiles first: neighbours share A.
    AlongN,
    /// Down G tiles, then on to the next column, so that a wave covers a block of tiles.
    Swizzled(u32),
}

/// Whether a knob that can only be on is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Not used.
    #[default]
    Off,
    /// Used.
    On,
}

impl Switch {
    /// Whether it is on.
    pub const fn is_on(self) -> bool {
        matches!(self, Switch::On)
    }
}

/// The part of C that one CTA computes, and the K of one pipeline stage, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of C.
    pub m: u32,
    /// Columns of C; the CTA computes as many of each product.
    pub n: u32,
    /// Elements of K in a pipeline stage.
    pub k: u32,
}

/// CTAs that issue one MMA together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CtaGroup {
    /// One CTA, 128 rows.
    #[default]
    One,
    /// A pair of CTAs, 256 rows: each loads its own rows of A and half of the tiles of B, and the
    /// tensor cores of both read both halves.
    Two,
}

impl CtaGroup {
    /// CTAs in the group.
    pub const fn ctas(self) -> u32 {
        match self {
            CtaGroup::One => 1,
            CtaGroup::Two => 2,
        }
    }
}

/// The order in which a CTA walks K.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KOrder {
    /// From 0 up.
    #[default]
    Forward,
    /// From the last K tile down.
    Reverse,
    /// Up in even tiles of C, down in odd ones (tiles counted as the grid counts them, M first), so
    /// that a walk over C leaves K where the next tile picks it up.
    PingPong,
    /// Up; but the last T K tiles run GEMM 1 through first, then GEMM 2, so that the epilogue's
    /// work on the first product overlaps the second one's last MMAs.
    SplitTail(u32),
}

/// When scale factors are brought from global memory to SMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SfPreload {
    /// With the operands of their K tile, on the same barrier.
    #[default]
    PerStage,
    /// N K tiles ahead of their operands, through a ring of their own that is N slots deeper.
    Ahead(u32),
    /// All of K before the loop.
    All,
}

/// How the two products are laid out in TMEM and fed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulators {
    /// Two MMAs of N columns a K block, one for each product.
    #[default]
    Separate,
    /// One MMA of 2N columns a K block; the B1 and B2 tiles are adjacent in SMEM.
    SideBySide,
}

/// How the warpgroups that hold accumulators in their registers share tiles of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumers {
    /// All of them on one tile, each with its own rows.
    Cooperative,
    /// Two, each on tiles of its own: while one stores its tile, the other's MMAs run.
    PingPong,
}

/// How often sums leave a tensor core that adds up products of 8-bit elements with fewer bits than fp32 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promotion {
    /// At the end of the K loop: fastest, and with the tensor core's error.
    Off,
    /// After so many of K, a multiple of the K tile: they are added to fp32 registers then, and the tensor core
    /// starts anew.
    Every(u32),
}

/// Accumulators that a CTA has in TMEM for tiles in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffers {
    /// So many, each with columns of its own: 1 or 2.
    Whole(u32),
    /// Two that share the columns which TMEM lacks for two whole ones. The epilogue reads those first, so
    /// that the next tile's MMAs start while it goes on with the rest.
    Overlapped,
}

/// Whether the second MMA of a K block finds A where the first one left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AReuse {
    /// Both read A from SMEM.
    None,
    /// The first fills the tensor core's collector buffer, the second uses it.
    Collector,
}

/// An L2 eviction priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// The default priority, spelt out.
    Normal,
    /// First to go: data that is read once.
    First,
    /// Last to go: data that others will read.
    Last,
}

/// L2 eviction hints for each operand; `None` leaves the access without a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheHints {
    /// Loads of A.
    pub a: Option<Eviction>,
    /// Loads of B1 and B2.
    pub b: Option<Eviction>,
    /// Loads of all scale factors.
    pub sf: Option<Eviction>,
    /// Stores of C.
    pub c: Option<Eviction>,
}

/// The shape of `tcgen05.ld`: which elements of an accumulator a warp's threads get (PTX ISA 9.7.16.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TmemShape {
    /// `.32x32b`: a lane a thread, a column a register.
    S32x32b,
    /// `.16x256b`: four threads have eight columns of a lane, two neighbours each, and of the lane eight below.
    S16x256b,
    /// `.16x128b`: four threads have four columns of a lane, one each, and of the lane eight below.
    S16x128b,
    /// `.16x64b`: two threads have two columns of a lane, one each.
    S16x64b,
}

impl TmemShape {
    /// The name in instructions and in knobs.
    pub const fn name(self) -> &'static str {
        match self {
            TmemShape::S32x32b => "32x32b",
            TmemShape::S16x256b => "16x256b",
            TmemShape::S16x128b => "16x128b",
            TmemShape::S16x64b => "16x64b",
        }
    }
}

/// How the epilogue reads accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmemLoad {
    /// What a thread gets.
    pub shape: TmemShape,
    /// Columns that are read and finished together, 8, 16 or 32. `None`: the most that divide a tile's, or,
    /// where several threads share a lane, 8.
    pub chunk: Option<u32>,
}

/// How C leaves the SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Each thread stores its row's columns from registers.
    Direct,
    /// From registers, which are loaded from TMEM as it says.
    DirectBy(TmemLoad),
    /// Through SMEM, one TMA store a warp and 64-column box.
    Tma,
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Auto => f.write_str("auto"),
            Setting::Fixed(value) => value.fmt(f),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::TwoPass => "two_pass",
            Strategy::SecondFused => "second_fused",
            Strategy::Sequential => "sequential",
            Strategy::Interleaved => "interleaved",
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::OneTile => f.write_str("one_tile"),
            Schedule::Persistent => f.write_str("persistent"),
            Schedule::Dynamic => f.write_str("dynamic"),
            Schedule::StreamK => f.write_str("stream_k"),
            Schedule::SplitK(parts) => write!(f, "split_k({parts})"),
            Schedule::ClusterSplitK(parts) => write!(f, "cluster_split_k({parts})"),
        }
    }
}

impl fmt::Display for Raster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raster::AlongM => f.write_str("along_m"),
            Raster::AlongN => f.write_str("along_n"),
            Raster::Swizzled(group) => write!(f, "swizzled({group})"),
        }
    }
}

impl fmt::Display for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Multicast::None => f.write_str("none"),
            Multicast::A(ctas) => write!(f, "a({ctas})"),
            Multicast::B(ctas) => write!(f, "b({ctas})"),
        }
    }
}

impl fmt::Display for SfLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SfLoad::Bulk => "bulk",
            SfLoad::TensorMap => "tensor_map",
            SfLoad::Multicast => "multicast",
        })
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "on" } else { "off" })
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}, {}]", self.m, self.n, self.k)
    }
}

impl fmt::Display for CtaGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ctas().fmt(f)
    }
}

impl fmt::Display for KOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KOrder::Forward => f.write_str("forward"),
            KOrder::Reverse => f.write_str("reverse"),
            KOrder::PingPong => f.write_str("ping_pong"),
            KOrder::SplitTail(tiles) => write!(f, "split_tail({tiles})"),
        }
    }
}

impl fmt::Display for SfPreload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SfPreload::PerStage => f.write_str("per_stage"),
            SfPreload::Ahead(tiles) => write!(f, "ahead({tiles})"),
            SfPreload::All => f.write_str("all"),
        }
    }
}

impl fmt::Display for Accumulators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accumulators::Separate => "separate",
            Accumulators::SideBySide => "side_by_side",
        })
    }
}

impl fmt::Display for Consumers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Consumers::Cooperative => "cooperative",
            Consumers::PingPong => "ping_pong",
        })
    }
}

impl fmt::Display for Promotion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Promotion::Off => f.write_str("off"),
            Promotion::Every(k) => write!(f, "every({k})"),
        }
    }
}

impl fmt::Display for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffers::Whole(buffers) => buffers.fmt(f),
            Buffers::Overlapped => f.write_str("overlapped"),
        }
    }
}

impl fmt::Display for AReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AReuse::None => "none",
            AReuse::Collector => "collector",
        })
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Eviction::Normal => "evict_normal",
            Eviction::First => "evict_first",
            Eviction::Last => "evict_last",
        })
    }
}

impl CacheHints {
    /// The hints by operand name.
    pub fn entries(&self) -> [(&'static str, Option<Eviction>); 4] {
        [("a", self.a), ("b", self.b), ("sf", self.sf), ("c", self.c)]
    }
}

impl fmt::Display for CacheHints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hints: Vec<String> = self
            .entries()
            .into_iter()
            .filter_map(|(name, hint)| hint.map(|hint| format!("{name}: {hint}")))
            .collect();
        if hints.is_empty() { f.write_str("none") } else { write!(f, "[{}]", hints.join(", ")) }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Store::Direct => "direct",
            Store::DirectBy(TmemLoad { shape, chunk: None }) => return write!(f, "direct({})", shape.name()),
            Store::DirectBy(TmemLoad { shape, chunk: Some(chunk) }) => {
                return write!(f, "direct({}, {chunk})", shape.name());
            }
            Store::Tma => "tma",
        })
    }
}
