//! The steps for chips with tensor memory. Each adds one thing that no earlier step relies on.

use super::{Case, RESIDUAL, Size, Step, case};
use silumin::Shape;

/// Knobs of the plainest kernel: one CTA, nothing optional.
const PLAIN: &str =
    "cta_group = 1; swap_ab = off; schedule = one_tile; k_order = forward; a_reuse = none; store = direct";
/// Knobs of the plainest kernel for a CTA pair.
const PAIR: &str =
    "cta_group = 2; swap_ab = off; schedule = one_tile; k_order = forward; a_reuse = none; store = direct";

fn plain(shape: Shape, more: &str) -> Case {
    case(shape, &format!("{PLAIN}; {more}"))
}

fn pair(shape: Shape, more: &str) -> Case {
    case(shape, &format!("{PAIR}; {more}"))
}

/// Two cases that differ only in whether A is kept in the collector.
fn reuse(formats: &'static str, tile: &str) -> [Case; 2] {
    let shape = Shape::new(512, 256, 512);
    ["none", "collector"].map(|reuse| {
        let knobs = format!("cta_group = 2; swap_ab = off; schedule = one_tile; {tile}; a_reuse = {reuse}");
        let case = case(shape, &knobs).formats(formats);
        if reuse == "collector" {
            case.adds("R2: the collector keeps A in a pair for this kind")
        } else {
            case
        }
    })
}

/// All steps in order.
pub fn steps(size: Size) -> Vec<Step> {
    let one = Shape::new(128, 128, 256);
    let large = size.pick(Shape::new(256, 256, 1024), Shape::new(256, 4096, 7168));
    let square = Shape::new(512, 512, 512);
    let step = |title, assumption, look, look_loop, cases| Step {
        number: 0,
        title,
        assumption,
        look,
        look_loop,
        cases,
    };
    let mut defaults = Vec::new();
    let timed = [(256, 4096, 7168), (512, 4096, 7168), (256, 3072, 4096), (512, 3072, 7168)];
    let four = [
        "epilogue_warps = 4; a_reuse = none; k_order = forward",
        "epilogue_warps = 4; a_reuse = collector; k_order = forward",
        "epilogue_warps = 4",
    ];
    for (m, n, k) in four.iter().flat_map(|_| timed).chain(timed) {
        let shape = size.pick(Shape::new(m, n / 16, k / 8), Shape::new(m, n, k));
        defaults.push(match four.get(defaults.len() / timed.len()) {
            Some(knobs) => case(shape, knobs),
            None => case(shape, "").adds("eight epilogue warps, and C by TMA from staging"),
        });
    }
    vec![
        step(
            "bf16, one CTA, one tile",
            "operand descriptors with 128-byte swizzle, the bf16 instruction descriptor, allocation of tensor memory, commit to an mbarrier, 32x32b loads of accumulators",
            "tensor maps and descriptors first, then the accumulators' lanes in the epilogue",
            "the end of the kernel: tensor memory that is not freed, or stores that a next launch overtakes",
            vec![
                plain(Shape::new(128, 128, 64), "tile = [128, 128, 64]").formats("bf16 bf16 bf16"),
                plain(Shape::new(256, 256, 1024), "tile = [128, 128, 64]")
                    .formats("bf16 bf16 f32")
                    .adds("the ring of stages wraps; C in f32 shows how sums are rounded"),
            ],
        ),
        step(
            "nvfp4, one K tile, scale factors by bulk copies",
            "scale factors' layout in shared and tensor memory (32x128b.warpx4), the block-scaled instruction descriptor with ue4m3, 4X",
            "scale-factor columns and their order in the 128-row block: wrong bits in a pattern of 32 rows or 16 of K point there",
            "R7: a scale-factor copy overtakes the MMA that still reads the columns",
            vec![
                plain(one, "tile = [128, 128, 256]; sf_load = bulk"),
                plain(one, "tile = [128, 128, 256]; sf_load = bulk")
                    .formats("nvfp4 nvfp4 f32")
                    .adds("C in f32 shows how sums are rounded"),
            ],
        ),
        step(
            "nvfp4 with N = 64",
            "scale factors of an odd tile of 64 columns lie two columns of tensor memory on",
            "the +2 columns: if tile 0 is right and tile 1 is wrong, it is these",
            "R7: a scale-factor copy overtakes the MMA that still reads the columns",
            vec![plain(one, "tile = [128, 64, 256]; sf_load = bulk")],
        ),
        step(
            "a whole problem by single CTAs",
            "the ring of stages over a long K; then the collector that keeps A for the second product; then the split tail",
            "without collector: stages and R7; with: `collector::a::fill` and `lastuse`; split tail: two barriers of products",
            "R7: scale-factor columns written again while an MMA reads them",
            vec![
                plain(large, "tile = [128, 64, 256]").adds("R7: MMA, then a copy into the same columns without a wait"),
                case(large, "cta_group = 1; swap_ab = off; tile = [128, 64, 256]; k_order = forward; a_reuse = collector; store = direct")
                    .adds("the collector in one CTA"),
                case(large, "cta_group = 1; swap_ab = off; tile = [128, 64, 256]; k_order = split_tail(2); a_reuse = collector; store = direct")
                    .adds("the split tail"),
            ],
        ),
        step(
            "a pair of CTAs, one K tile",
            "the allocation of tensor memory for pairs, `cta_group::2` loads that count on the leader's barrier, the leader's commit to both CTAs; then scale factors by multicast",
            "if this hangs and step 4 did not: the allocation of pairs, then the leader's barrier mask (0xFEFFFFFF)",
            "the allocation of pairs (a peer that has not started yet), then R10: the waits at a pair's end for the last `empty` commits",
            vec![
                pair(Shape::new(256, 128, 256), "tile = [256, 128, 256]; sf_load = tensor_map"),
                pair(Shape::new(256, 128, 256), "tile = [256, 128, 256]; sf_load = multicast")
                    .adds("scale factors of B, half by either CTA, multicast to both"),
            ],
        ),
        step(
            "a pair with N = 64",
            "half of 64 columns of B in either CTA, scale factors at +2 columns in both",
            "the +2 columns in the peer",
            "as step 5",
            vec![pair(Shape::new(256, 128, 256), "tile = [256, 64, 256]; sf_load = multicast")],
        ),
        step(
            "the benchmark's defaults",
            "what `auto` chooses for the four shapes: pairs without collector, with it, with the split tail, with eight epilogue warps",
            "the knob that differs from the last good case: a_reuse, then k_order and tile, then epilogue_warps and store",
            "the allocation of pairs, R10",
            defaults,
        ),
        step(
            "persistent, on two SMs",
            "accumulators go back to the MMA warp by an arrival on the leader's barrier; two buffers; buffers that share columns",
            "R1: the arrival that frees accumulators; R5: the shared columns",
            "R1: the arrival that frees accumulators under load (error 719 has been seen on Blackwell elsewhere)",
            vec![
                case(square, "cta_group = 1; tile = [128, 64, 256]; schedule = persistent; sms = 2; accumulator_buffers = 1; store = direct"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; schedule = persistent; sms = 2; accumulator_buffers = 2; store = direct"),
                case(square, "cta_group = 1; tile = [128, 128, 256]; schedule = persistent; sms = 2; accumulator_buffers = overlapped; store = direct")
                    .adds("R5: overlapped accumulators of two products"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; schedule = persistent; sms = 2; accumulator_buffers = 1; store = direct")
                    .adds("R1: an arrival on the leader's barrier frees accumulators"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; schedule = persistent; sms = 2; accumulator_buffers = 2; store = direct")
                    .adds("R1"),
                case(square, "cta_group = 2; tile = [256, 128, 256]; schedule = persistent; sms = 2; accumulator_buffers = overlapped; store = direct")
                    .adds("R1 and R5: overlapped accumulators of two products in a pair"),
            ],
        ),
        step(
            "cluster launch control",
            "a running CTA takes over tiles (`clusterlaunchcontrol.try_cancel`), 16 bytes of answer per CTA, the answer's place used again behind a proxy fence",
            "the answer's bytes and its barrier; for the pair the multicast of the answer",
            "the last request, whose answer nobody waits for",
            vec![
                case(square, "cta_group = 1; tile = [128, 64, 256]; schedule = dynamic; store = direct"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; schedule = dynamic; store = direct")
                    .adds("R1, and the answer's multicast to both CTAs"),
            ],
        ),
        step(
            "other ways to share work",
            "weights on the MMA's row side, TMA stores, sums of several CTAs in global and in distributed shared memory, multicast by CTAs and by pairs",
            "the knob of the case that fails",
            "counters in the workspace that do not return to zero; R3 for clusters of two pairs",
            vec![
                case(Shape::new(64, 512, 512), "swap_ab = on; cta_group = 1").adds("swap_ab: stores along lanes"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; store = tma; epilogue_warps = 4").adds("TMA stores by four warps"),
                case(Shape::new(256, 256, 2048), "cta_group = 1; schedule = split_k(2)").adds("split-K by atomic counters"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; schedule = stream_k; sms = 5").adds("stream-K"),
                case(Shape::new(256, 256, 2048), "cta_group = 1; schedule = cluster_split_k(2)")
                    .adds("sums in distributed shared memory"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; multicast = a(2)").adds("A by multicast to two CTAs"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; multicast = b(2)").adds("B by multicast to two CTAs"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; multicast = a(2)")
                    .adds("R3: clusters of two pairs, scale-factor multicast mask 15, A by masks 5 and 10"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; multicast = b(2)")
                    .adds("R3: clusters of two pairs, B by masks 5 and 10"),
                // More CTAs than SMs, so that the chip runs two on one.
                case(Shape::new(1024, 2048, 512), "cta_group = 1; tile = [128, 64, 256]; schedule = one_tile; ctas_per_sm = 2")
                    .adds("two CTAs on an SM, with 256 columns of tensor memory each"),
                case(square, "cta_group = 1; tile = [128, 64, 256]; schedule = persistent; sms = 2; store = tma")
                    .adds("TMA stores of tiles that follow each other"),
            ],
        ),
        step(
            "other formats on pairs, without and with the collector",
            "instruction descriptors of mxf8f6f4, mxf4, f8f6f4 and f16 in pairs",
            "without collector: the descriptor and the scale factors' ids; only with it: R2",
            "R2",
            [
                reuse("mxfp8 mxfp8 f16", "tile = [256, 64, 128]"),
                reuse("mxfp4 mxfp4 f16", "tile = [256, 64, 256]"),
                reuse("mxfp8 mxfp4 f16", "tile = [256, 64, 128]"),
                reuse("e4m3 e4m3 bf16", "tile = [256, 64, 128]"),
                reuse("bf16 bf16 bf16", "tile = [256, 64, 64]"),
            ]
            .concat(),
        ),
        step(
            "rare layouts and overlapping launches",
            "one MMA for both products, N that is no multiple of 16, loads of accumulators by 16 lanes, a launch that starts before its predecessor ends",
            "the case's own assumption",
            "the launch that starts early: griddepcontrol.wait must come before everything that the predecessor writes",
            vec![
                pair(Shape::new(256, 256, 512), "tile = [256, 128, 256]; accumulators = side_by_side")
                    .adds("R6: B1 in the leader, B2 in the peer, one MMA with N = 256"),
                plain(Shape::new(128, 40, 512), "tile = [128, 40, 256]").adds("R8: N = 40 with M = 128"),
                plain(Shape::new(256, 128, 512), "tile = [128, 64, 256]; store = direct(16x64b, 8)")
                    .adds("R9: 16x64b loads"),
                plain(Shape::new(256, 128, 512), "tile = [128, 64, 256]; store = direct(16x128b, 8)")
                    .adds("R9: 16x128b loads"),
                plain(Shape::new(256, 128, 512), "tile = [128, 64, 256]; store = direct(16x256b, 8)")
                    .adds("16x256b loads"),
                case(square, "cta_group = 2; tile = [256, 64, 256]; pdl = on").adds("programmatic dependent launch"),
                case(Shape::new(500, 256, 512).grouped(4), "cta_group = 1; tile = [128, 64, 256]; schedule = persistent; sms = 2; store = direct"),
                case(Shape::new(500, 256, 512).grouped(4), "cta_group = 1; tile = [128, 64, 256]; schedule = persistent; sms = 2; store = tma")
                    .adds("boxes in which groups end"),
                case(Shape::new(512, 256, 512).grouped(4), "cta_group = 2; tile = [256, 64, 256]; schedule = dynamic; pdl = on")
                    .adds("R4: launch control, programmatic launch and groups in one kernel"),
            ],
        ),
        step(
            "one product",
            "GEMMs: MMAs of one product, and matrices that the epilogue reads beside C",
            "the residual's place in C",
            "a residual that is read behind the store to its place",
            vec![
                plain(Shape::new(128, 256, 512), "").gate(RESIDUAL),
                pair(Shape::new(300, 392, 576), "").gate(RESIDUAL),
                case(Shape::new(64, 512, 512), "swap_ab = on; cta_group = 1").gate(RESIDUAL),
                case(square, "cta_group = 1; tile = [128, 256, 256]; schedule = persistent; sms = 2; store = tma")
                    .gate(RESIDUAL),
                case(Shape::new(256, 256, 2048), "cta_group = 1; schedule = split_k(2)").gate(RESIDUAL),
                case(square, "cta_group = 1; tile = [128, 64, 256]").gate("silu(x @ gate + r[m, n]) * (x @ up)"),
            ],
        ),
    ]
}
