//! The steps for `sm_90a`: from one warpgroup and one K tile to everything at once.

use super::{Case, RESIDUAL, Size, Step, case};
use silumin::Shape;

/// Why racecheck reports hazards: an H200 showed none with the same PTX in which all 32 lanes arrive.
const ONE_LANE: &str = "one lane says for its warp that scale factors have been read, and racecheck knows of no order between the other lanes and whoever waits";

/// Knobs of the plainest kernel: one warpgroup, nothing optional.
const PLAIN: &str =
    "swap_ab = off; schedule = one_tile; consumers = cooperative; store = direct; k_order = forward";

fn plain(shape: Shape, more: &str) -> Case {
    case(shape, &format!("{PLAIN}; {more}"))
}

/// All steps in order.
pub fn steps(size: Size) -> Vec<Step> {
    let square = Shape::new(256, 256, 512);
    let few = size.pick(Shape::new(16, 256, 512), Shape::new(16, 14336, 4096));
    let many = size.pick(Shape::new(256, 256, 512), Shape::new(512, 4096, 7168));
    let step = |title, assumption, look, look_loop, cases| Step {
        number: 0,
        title,
        assumption,
        look,
        look_loop,
        cases,
    };
    let widths = [16, 32, 64];
    let ends = "the end of the kernel: stores that a next launch overtakes";
    vec![
        step(
            "bf16, one tile, by the swizzle's width",
            "operand descriptors with 32, 64 and 128-byte swizzles, wgmma of one CTA, the accumulators' fragment",
            "the swizzle's width in the descriptor and in the tensor map, then the fragment's rows and columns",
            ends,
            widths
                .map(|k| {
                    let knobs = format!("tile = [128, 64, {k}]; stages = 1");
                    plain(Shape::new(128, 64, k), &knobs).formats("bf16 bf16 f32")
                })
                .to_vec(),
        ),
        step(
            "the ring of stages, two and three warpgroups",
            "full and empty barriers over a long K, `setmaxnreg`, groups of MMAs in flight",
            "the stage that is let go of too early, then registers that setmaxnreg moves",
            ends,
            vec![
                plain(square, "tile = [64, 64, 64]; stages = 3"),
                plain(square, "tile = [128, 128, 64]"),
                plain(Shape::new(384, 192, 512), "tile = [192, 96, 64]").adds("three warpgroups on a tile"),
                plain(Shape::new(200, 203, 1000), "tile = [128, 64, 64]")
                    .formats("f16 f16 f32")
                    .adds("ragged M, N and K"),
            ],
        ),
        step(
            "whole problems as auto has them",
            "what `auto` chooses for many tokens and for few",
            "the knobs that the kernel's first lines name",
            ends,
            vec![case(many, ""), case(few, "").adds("weights on the MMA's row side")],
        ),
        step(
            "FP8",
            "wgmma of e4m3 and e5m2 adds up with 13 fraction bits; sums leave the tensor core every 128 or 256 of K, or never",
            "the sums' rounding: differences of one unit in the last place point there",
            ends,
            vec![
                plain(square, "tile = [128, 128, 128]; promotion = off").formats("e4m3 e4m3 bf16"),
                plain(square, "tile = [128, 128, 128]; promotion = every(128)").formats("e4m3 e4m3 bf16"),
                plain(square, "tile = [128, 64, 128]; promotion = every(256)").formats("e5m2 e4m3 bf16"),
            ],
        ),
        step(
            "persistent, and two warpgroups by turns",
            "barriers go on from tile to tile; the order of two consumers",
            "the parity of barriers in a second tile; the turns of the consumers",
            ends,
            vec![
                case(square, "tile = [128, 64, 64]; schedule = persistent; sms = 2; consumers = cooperative"),
                case(
                    square,
                    "tile = [64, 64, 64]; schedule = persistent; sms = 2; consumers = ping_pong; store = tma",
                ),
            ],
        ),
        step(
            "stores through shared memory",
            "stmatrix, TMA stores, and weights on the MMA's row side with `stmatrix.trans`",
            "the staging's swizzle, then the box of the tensor map",
            "staging that is written again while TMA reads it",
            vec![
                case(square, "tile = [128, 64, 64]; store = tma; swap_ab = off"),
                case(Shape::new(64, 256, 512), "swap_ab = on; store = tma"),
                case(Shape::new(64, 256, 512), "swap_ab = on; store = direct"),
                case(square, "tile = [256, 96, 64]; accumulators = side_by_side; store = tma")
                    .adds("one wgmma for both products"),
            ],
        ),
        step(
            "clusters that share loads",
            "multicast masks, barriers of several CTAs, and the end of a cluster",
            "the multicast mask, then the arrival on other CTAs' barriers",
            "a CTA that leaves while others still arrive on its barriers",
            ["a(2)", "b(2)", "a(4)", "b(4)"]
                .map(|value| {
                    case(
                        Shape::new(512, 512, 512),
                        &format!("tile = [128, 64, 64]; swap_ab = off; multicast = {value}"),
                    )
                })
                .to_vec(),
        ),
        step(
            "several CTAs on one tile's K",
            "sums in global memory by atomic counters, sums handed over between two CTAs, sums in distributed shared memory",
            "the counter, then the order of fences around the sums",
            "counters in the workspace that do not return to zero",
            vec![
                case(Shape::new(128, 256, 2048), "schedule = split_k(2)").adds("split-K"),
                case(Shape::new(256, 256, 1024), "tile = [128, 128, 64]; schedule = stream_k; sms = 7")
                    .adds("stream-K"),
                case(Shape::new(300, 392, 520), "tile = [128, 128, 64]; schedule = stream_k; sms = 5")
                    .adds("one CTA hands its sums over to another that waits"),
                case(Shape::new(128, 256, 2048), "schedule = cluster_split_k(2)")
                    .adds("distributed shared memory"),
            ],
        ),
        step(
            "decoded weights",
            "NVFP4 and MXFP4 weights decoded into fragments, in both orders; activations decoded beside the loads",
            "the order of nibbles, then the order that the launch before gives the activations",
            "the launch that puts activations in order, and the one behind it",
            vec![
                case(few, "accumulators = separate").formats("bf16 nvfp4 bf16"),
                case(Shape::new(21, 328, 1056), "accumulators = separate").formats("bf16 mxfp4 bf16"),
                case(size.pick(Shape::new(256, 256, 512), Shape::new(512, 3072, 7168)), "")
                    .formats("bf16 nvfp4 bf16"),
                case(Shape::new(256, 256, 512), "tile = [256, 64, 128]")
                    .formats("bf16 nvfp4 bf16")
                    .racecheck(ONE_LANE)
                    .adds("weights decoded in the order they lie in"),
                case(Shape::new(256, 256, 1024), "tile = [256, 64, 128]; schedule = cluster_split_k(2)")
                    .formats("bf16 nvfp4 bf16")
                    .racecheck(ONE_LANE),
                case(Shape::new(128, 256, 1024), "")
                    .formats("nvfp4 nvfp4 f16")
                    .racecheck(ONE_LANE)
                    .adds("both sides decoded"),
                case(Shape::new(150, 328, 1056), "tile = [64, 128, 128]; schedule = persistent; sms = 4")
                    .formats("mxfp4 mxfp4 bf16")
                    .racecheck(ONE_LANE)
                    .adds("both sides decoded"),
                case(few, "accumulators = separate")
                    .formats("bf16 nvfp4_repacked bf16")
                    .adds("repacked weights"),
                case(Shape::new(139, 328, 1024), "accumulators = interleaved_rows")
                    .formats("bf16 mxfp4_repacked bf16"),
                case(Shape::new(256, 256, 512), "tile = [256, 64, 128]")
                    .formats("bf16 nvfp4_repacked bf16")
                    .racecheck(ONE_LANE)
                    .adds("repacked weights in natural order"),
            ],
        ),
        step(
            "groups and batches",
            "a table of groups in shared memory, tensor maps with a third dimension",
            "the table's first row, then clipping at a matrix's end",
            "the table, read before the launch that writes the offsets has ended",
            vec![
                case(Shape::new(300, 256, 512).grouped(5), ""),
                case(Shape::new(300, 256, 512).grouped(5), "schedule = persistent; sms = 4"),
                case(Shape::new(100, 256, 512).batch(3), ""),
            ],
        ),
        step(
            "several launches, and launches that overlap",
            "what one launch leaves another finds; a launch that starts before its predecessor ends",
            "the workspace between the launches",
            "griddepcontrol.wait must come before everything that the predecessor writes",
            vec![
                case(square, "strategy = two_pass"),
                case(square, "strategy = second_fused; pdl = on"),
                case(square, "tile = [128, 64, 64]; pdl = on"),
                case(Shape::new(300, 256, 512).grouped(5), "schedule = persistent; sms = 4; pdl = on")
                    .adds("groups, persistent and programmatic launch in one kernel"),
                case(square, "tile = [128, 64, 64]")
                    .gate("silu(s[m] * (x @ gate) * w1[n] + b1[n]) * (s[m] * (x @ up) * w2[n] + b2[n])")
                    .adds("vectors of the gate"),
            ],
        ),
        step(
            "one product",
            "GEMMs: MMAs of one product, and matrices that the epilogue reads beside C",
            "the residual's place in C; of decoded weights the two sets of registers that take turns",
            "a residual that is read behind the store to its place",
            vec![
                case(square, "").gate(RESIDUAL),
                case(Shape::new(300, 392, 520), "tile = [128, 256, 64]; schedule = persistent; sms = 4")
                    .gate(RESIDUAL),
                case(few, "").gate(RESIDUAL),
                case(few, "")
                    .formats("bf16 nvfp4 bf16")
                    .gate(RESIDUAL)
                    .adds("one product of decoded weights"),
                case(Shape::new(150, 328, 1056), "tile = [80, 128, 64]; schedule = persistent; sms = 4")
                    .formats("bf16 nvfp4 bf16")
                    .gate(RESIDUAL)
                    .adds("K tiles of one group of MMAs"),
                case(Shape::new(40, 256, 2048), "schedule = stream_k; sms = 7")
                    .formats("bf16 nvfp4 bf16")
                    .gate(RESIDUAL),
                case(Shape::new(128, 256, 1024), "")
                    .formats("nvfp4 nvfp4 f16")
                    .racecheck(ONE_LANE)
                    .gate(RESIDUAL),
                case(Shape::new(300, 256, 512).grouped(5), "").gate(RESIDUAL),
                case(square, "tile = [128, 64, 64]").gate("silu(x @ gate + r[m, n]) * (x @ up)"),
            ],
        ),
    ]
}
