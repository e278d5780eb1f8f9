//! The table of knobs, and the one place where a knob or a value of one is written down.
//!
//! From a row come the field or variant with its documentation, its text, serde, the tokens of the DSL, flags and their help, error
//! messages, what tests draw and what tuning tries. A new value is a row here; the compiler then lists the matches that have to
//! honour it, and `tests/knobs.rs` and `codegen/tests/table.rs` list the tests that it lacks.

use super::knobs::{CacheHints, Setting, Tile, TmemLoad};
use super::row::{self, Knob, KnobType, Samples, Value, knob_types, knobs};
use super::text::{self, NotAValue, ParseKnobError};
use crate::arch::TensorCore::{Mma, Tcgen05, Wgmma};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const EVERYWHERE: Samples = Samples::EVERYWHERE;
/// For GEMMs alone, so that draws of dual GEMMs leave it out.
const NOWHERE: Samples = Samples::NOWHERE;
const NOT_MMA: Samples = Samples::NOT_MMA;
const TCGEN05: Samples = Samples::TCGEN05;
const WGMMA: Samples = Samples::WGMMA;

knobs! {
    /// Kernels that compute C together. Auto: `interleaved`.
    strategy: Setting<Strategy>,
    /// Rows, columns and K of the tile of a CTA, or of a pair. Auto: 128 rows (256 for a pair), one 128-byte span of K, or half of
    /// one where K is short and has 4 bits, and the columns that leave the busiest SM the least work; on sm_90a the 64 or 128 rows
    /// and the columns that are estimated to take the least time.
    tile: Setting<Tile>,
    /// CTAs that issue one MMA together: 1, or a cluster of 2 along M. Auto: 2 if M is more than one CTA's 128 rows and no other
    /// knob that is set rules it out.
    cta_group: Setting<CtaGroup>,
    /// CTAs that an SM runs at once, each with its part of shared and tensor memory: the epilogue of one runs beside the other's K
    /// loop (`tcgen05` kernels). Auto: 1.
    ctas_per_sm: Setting<CtasPerSm>,
    /// Whether weights take the MMA's M side and tokens its N side, so that few tokens make a narrow MMA. Auto: on if M is at most
    /// 64 (on sm_90a 32 and N is large, on sm_120a 32) and the tile does not say otherwise.
    swap_ab: Setting<Switch>,
    /// Tiles of A or B that the CTAs, or pairs, of a cluster share.
    multicast: Multicast,
    /// How the warpgroups that hold accumulators share tiles of C (sm_90a). Auto: `cooperative`.
    consumers: Setting<Consumers>,
    /// Depth of the SMEM pipeline, in K tiles. Auto: as many as fit and the K loop can use.
    stages: Setting<u32> = [
        Value::new("1..32", "So many K tiles in flight.", EVERYWHERE.draw("1|2|3|5|8"))
    ],
    /// The order in which the K loop walks. Auto: up, with a split tail if a CTA computes one tile and GEMM 2's part of the tail
    /// hides the gate's.
    k_order: Setting<KOrder>,
    /// When scale factors are brought to SMEM.
    sf_preload: SfPreload,
    /// How scale factors come to SMEM. Auto: `multicast` if CTAs of a cluster need the same ones, else `bulk`.
    sf_load: Setting<SfLoad>,
    /// Where the two accumulators are, and how many MMAs feed them. Auto: `separate`; on sm_100a `side_by_side` in pairs without
    /// scale factors, if auto takes 48, 64 or 80 columns; on sm_90a `side_by_side` if one MMA of 2N takes 16-bit operands of both
    /// products, and `interleaved_rows` if more than 128 tokens meet weights that are decoded.
    accumulators: Setting<Accumulators>,
    /// Accumulators that a CTA has in TMEM for tiles in flight, 1 or 2: with two, the epilogue of one tile overlaps the MMAs of the
    /// next. Auto: 2 if a CTA computes several tiles and TMEM holds them, or `overlapped` if they need not share all columns.
    accumulator_buffers: Setting<Buffers>,
    /// Warps of a CTA that take accumulators out of TMEM, apply the gate and store C. Auto: 8 if a CTA computes one tile and
    /// C can leave by TMA, else 4.
    epilogue_warps: Setting<EpilogueWarps>,
    /// Whether A stays in the tensor core's collector between the two MMAs of a K block. Auto: yes if there are two; with pairs for
    /// NVFP4 alone.
    a_reuse: Setting<AReuse>,
    /// TMEM columns to allocate. Auto: the least that holds the plan.
    tmem_columns: Setting<u32> = [
        Value::new("32 | 64 | 128 | 256 | 512", "So many of the 512 columns that an SM has.", TCGEN05.draw("128|256|512"))
    ],
    /// Which cluster computes which tiles. Auto: `persistent` if there are more tiles than the chip runs at once, else `one_tile`.
    schedule: Setting<Schedule>,
    /// The order of tiles. Auto: `along_m`; on sm_90a `swizzled(8)` if a CTA computes several tiles.
    raster: Setting<Raster>,
    /// SMs that the kernel is made for: what `persistent` and `stream_k` fill, and what `auto` counts waves of. Auto: all of the
    /// chip.
    sms: Setting<u32> = [Value::new("1..", "So many SMs.", EVERYWHERE.draw("2|3|5|8"))],
    /// L2 eviction hints for each operand. Auto: weights `evict_first` while all tiles that share them read them in one wave, and at the same time; else none.
    cache: Setting<CacheHints>,
    /// How C leaves the SM. Auto: `direct`; on sm_100a `tma` where auto takes 8 epilogue warps, or a CTA has several tiles; on sm_90a
    /// and sm_120a `tma` wherever TMA can.
    store: Setting<Store>,
    /// Programmatic dependent launch: the kernel starts while its predecessor in the stream ends, and waits for it before it reads or
    /// writes global memory.
    pdl: Switch,
    /// How often sums of products of 8-bit elements leave the tensor core, which adds them up with 14 bits (sm_90a). Auto:
    /// `every(128)`, or one K tile if that is longer.
    promotion: Setting<Promotion>,
}

knob_types! {
    /// How many kernels compute C, and what each of them multiplies.
    Strategy {
        /// Three launches: GEMM 1 to fp32, GEMM 2 to fp32, then the gate, element by element.
        TwoPass = "two_pass": EVERYWHERE.tune(&[(Tcgen05, "two_pass"), (Wgmma, "two_pass"), (Mma, "two_pass")]),
        /// Two launches: GEMM 1 to fp32; GEMM 2, whose epilogue reads that and applies the gate.
        SecondFused = "second_fused": EVERYWHERE.tune(&[
            (Tcgen05, "second_fused"),
            (Wgmma, "second_fused"),
            (Mma, "second_fused"),
        ]),
        /// One kernel; each tile runs all of GEMM 1, then all of GEMM 2, and loads A twice.
        Sequential = "sequential": EVERYWHERE.tune(&[(Tcgen05, "sequential")]),
        /// One kernel, one K loop: each K tile of A is loaded once and feeds both products.
        Interleaved = "interleaved": EVERYWHERE.weight(2),
        /// One kernel, one product: the strategy of `gemm!`, and of it alone.
        Single = "single": NOWHERE,
    }

    /// Which cluster computes which tiles of C, and which part of K.
    Schedule {
        /// One cluster per tile.
        OneTile = "one_tile": EVERYWHERE,
        /// The grid fills the chip once. With P clusters, each computes every P-th tile.
        Persistent = "persistent": EVERYWHERE.tune(&[
            (Tcgen05, "persistent"),
            (Wgmma, "persistent"),
            (Mma, "persistent"),
        ]),
        /// One cluster per tile at launch; a running one takes over tiles whose clusters have not started (cluster launch control).
        Dynamic = "dynamic": TCGEN05.tune(&[(Tcgen05, "dynamic")]),
        /// The grid fills the chip once. Each cluster computes an equal share of the K tiles of all tiles.
        StreamK = "stream_k": EVERYWHERE.tune(&[(Tcgen05, "stream_k"), (Wgmma, "stream_k"), (Mma, "stream_k")]),
        /// N clusters per tile, each with an equal share of its K tiles; their sums meet in global memory.
        SplitK(parts: u32) = "split_k(N)": EVERYWHERE.draw("split_k(2)|split_k(3)").tune(&[
            (Tcgen05, "split_k(2)|split_k(4)"),
            (Wgmma, "split_k(2)|split_k(3)|split_k(4)|split_k(6)"),
            (Mma, "split_k(2)|split_k(4)"),
        ]),
        /// A cluster of N CTAs per tile, each with an equal share of its K tiles; their sums meet in distributed shared memory, and
        /// each CTA finishes its part of the columns.
        ClusterSplitK(parts: u32) = "cluster_split_k(N)": NOT_MMA.draw("cluster_split_k(2)|cluster_split_k(4)").tune(&[
            (Tcgen05, "cluster_split_k(2)|cluster_split_k(4)|cluster_split_k(8)"),
        ]),
    }

    /// Which operand's tiles a cluster shares: each CTA loads its part of a tile for all of them.
    Multicast (default None) {
        /// Every CTA, or pair, loads its own.
        None = "none": EVERYWHERE.weight(4),
        /// N CTAs, or pairs, along a row of tiles share A.
        A(ctas: u32) = "a(N)": NOT_MMA.draw("a(2)|a(4)|a(8)").tune(&[(Tcgen05, "a(2)"), (Wgmma, "a(2)")]),
        /// N CTAs, or pairs, down a column of tiles share B1 and B2.
        B(ctas: u32) = "b(N)": NOT_MMA.draw("b(2)|b(4)|b(8)").tune(&[(Tcgen05, "b(2)"), (Wgmma, "b(2)")]),
    }

    /// How scale factors come to SMEM.
    SfLoad {
        /// A plain bulk copy per 128-row block: contiguous in global memory, no tensor map.
        Bulk = "bulk": EVERYWHERE.rare(&[Wgmma, Mma]),
        /// Boxes of a tensor map, which can signal the barrier of a pair's leader.
        TensorMap = "tensor_map": TCGEN05,
        /// Boxes of a tensor map, each loaded by one CTA for all of a cluster that need it: those of B for both CTAs of a pair, and
        /// those of a shared tile for all that share it.
        Multicast = "multicast": TCGEN05,
    }

    /// The order in which tiles of C are handed out.
    Raster (default AlongM) {
        /// Down a column of tiles first: neighbours share B.
        AlongM = "along_m": EVERYWHERE,
        /// Along a row of tiles first: neighbours share A.
        AlongN = "along_n": EVERYWHERE.tune(&[(Tcgen05, "along_n"), (Wgmma, "along_n"), (Mma, "along_n")]),
        /// Down G tiles, then on to the next column, so that a wave covers a block of tiles.
        Swizzled(group: u32) = "swizzled(G)": EVERYWHERE.draw("swizzled(2)|swizzled(3)").tune(&[(Wgmma, "swizzled(4)")]),
    }

    /// Whether a knob that can only be on is.
    Switch (default Off) {
        /// Not used.
        Off = "off": EVERYWHERE.weight(2),
        /// Used.
        On = "on": EVERYWHERE,
    }

    /// CTAs that issue one MMA together.
    CtaGroup (default One) {
        /// One CTA, 128 rows.
        One = "1": EVERYWHERE.weight(2),
        /// A pair of CTAs, 256 rows: each loads its own rows of A and half of the tiles of B, and the tensor cores of both read both
        /// halves.
        Two = "2": TCGEN05,
    }

    /// CTAs that an SM runs at once.
    CtasPerSm (default One) {
        /// One, with all of shared and tensor memory.
        One = "1": EVERYWHERE.weight(3),
        /// Two, each with half of shared memory and at most 256 columns of tensor memory.
        Two = "2": TCGEN05,
    }

    /// Warps that finish a tile in TMEM.
    EpilogueWarps {
        /// Each has 32 rows of the tile and all columns.
        Four = "4": TCGEN05.weight(2),
        /// Two warps have the same 32 rows, and half of the columns each.
        Eight = "8": TCGEN05.weight(2),
    }

    /// The order in which a CTA walks K.
    KOrder (default Forward) {
        /// From 0 up.
        Forward = "forward": EVERYWHERE.tune(&[(Tcgen05, "forward")]),
        /// From the last K tile down.
        Reverse = "reverse": EVERYWHERE,
        /// Up in even tiles of C, down in odd ones (tiles counted as the grid counts them, M first), so that a walk over C leaves K
        /// where the next tile picks it up.
        Serpentine = "serpentine": EVERYWHERE.formerly("ping_pong"),
        /// The first K tile, the third and so on; then the second, the fourth and so on.
        OddEven = "odd_even": EVERYWHERE,
        /// Up; but the last T K tiles run GEMM 1 through first, then GEMM 2, so that the epilogue's work on the first product
        /// overlaps the second one's last MMAs.
        SplitTail(tiles: u32) = "split_tail(T)": TCGEN05.draw("split_tail(1)|split_tail(2)|split_tail(3)"),
    }

    /// When scale factors are brought from global memory to SMEM.
    SfPreload (default PerStage) {
        /// With the operands of their K tile, on the same barrier.
        PerStage = "per_stage": EVERYWHERE,
        /// N K tiles ahead of their operands, through a ring of their own that is N slots deeper.
        Ahead(tiles: u32) = "ahead(N)": TCGEN05.draw("ahead(1)|ahead(3)").tune(&[(Tcgen05, "ahead(2)")]),
        /// All of K before the loop.
        All = "all": TCGEN05,
    }

    /// How the two products are laid out in TMEM and fed.
    Accumulators (default Separate) {
        /// Two MMAs of N columns per K block, one for each product.
        Separate = "separate": EVERYWHERE.weight(2).tune(&[(Wgmma, "separate")]),
        /// One MMA of 2N columns per K block; the B1 and B2 tiles are adjacent in SMEM.
        SideBySide = "side_by_side": NOT_MMA.tune(&[(Tcgen05, "side_by_side")]),
        /// One MMA whose 64 rows are 32 of each product, for weights that are decoded on their way to the tensor core: each weight
        /// then meets twice the tokens. A launch before it may bring the activations into order.
        InterleavedRows = "interleaved_rows": WGMMA.rare(&[Wgmma]),
    }

    /// How the warpgroups that hold accumulators in their registers share tiles of C.
    Consumers {
        /// All of them work on one tile, each on its own rows.
        Cooperative = "cooperative": WGMMA,
        /// Two, each on tiles of its own: while one stores its tile, the other's MMAs run.
        PingPong = "ping_pong": WGMMA.weight(2).tune(&[(Wgmma, "ping_pong")]),
    }

    /// How often sums leave a tensor core that adds up products of 8-bit elements with fewer bits than fp32 has.
    Promotion {
        /// At the end of the K loop: fastest, and with the tensor core's error.
        Off = "off": WGMMA.rare(&[Wgmma]),
        /// After N of K, a multiple of the K tile: the sums are added to fp32 registers, and the tensor core starts anew.
        Every(k: u32) = "every(N)": WGMMA.rare(&[Wgmma]).draw("every(128)|every(256)"),
    }

    /// Accumulators that a CTA has in TMEM for tiles in flight.
    Buffers {
        /// So many, each with columns of its own.
        Whole(buffers: u32) = "1 | 2": EVERYWHERE.draw("1|2"),
        /// Two that share the columns which TMEM lacks for two whole ones. The epilogue reads those first, so that the next tile's
        /// MMAs start while it goes on with the rest.
        Overlapped = "overlapped": TCGEN05.weight(2),
    }

    /// Whether the second MMA of a K block finds A where the first one left it.
    AReuse {
        /// Both read A from SMEM.
        None = "none": EVERYWHERE,
        /// The first fills the tensor core's collector buffer, the second uses it.
        Collector = "collector": TCGEN05,
    }

    /// An L2 eviction priority.
    Eviction {
        /// The default priority, spelt out.
        Normal = "evict_normal": EVERYWHERE,
        /// First to go: data that is read once.
        First = "evict_first": EVERYWHERE,
        /// Last to go: data that others will read.
        Last = "evict_last": EVERYWHERE,
    }

    /// The shape of `tcgen05.ld`: which elements of an accumulator a warp's threads get (PTX ISA 9.7.16.2.3).
    TmemShape {
        /// `.32x32b`: a thread has one lane, and a column per register.
        S32x32b = "32x32b": TCGEN05,
        /// `.16x256b`: four threads have eight columns of a lane, two neighbours each, and of the lane eight below.
        S16x256b = "16x256b": TCGEN05,
        /// `.16x128b`: four threads have four columns of a lane, one each, and of the lane eight below.
        S16x128b = "16x128b": TCGEN05,
        /// `.16x64b`: two threads have two columns of a lane, one each.
        S16x64b = "16x64b": TCGEN05,
    }

    /// How C leaves the SM.
    Store where "SHAPE" = TmemShape {
        /// Each thread stores its row's columns from registers.
        Direct = "direct": EVERYWHERE,
        /// From registers, which are loaded from TMEM by instructions of that shape, and so many columns at a time.
        DirectBy(load: TmemLoad) = "direct(SHAPE) | direct(SHAPE, 8 | 16 | 32)": TCGEN05.draw(
            "direct(32x32b)|direct(32x32b, 8)|direct(32x32b, 16)|direct(16x256b)|direct(16x256b, 8)|direct(16x256b, 16)|\
             direct(16x256b, 32)|direct(16x128b)|direct(16x128b, 8)|direct(16x128b, 16)|direct(16x128b, 32)|direct(16x64b)|\
             direct(16x64b, 8)|direct(16x64b, 16)|direct(16x64b, 32)"
        ),
        /// Through SMEM, one TMA store per warp and 64-column box.
        Tma = "tma": EVERYWHERE.weight(4).tune(&[(Tcgen05, "tma")]),
    }
}
