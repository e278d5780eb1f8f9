//! The steps for `sm_120a` and `sm_121a`: from one K tile of bf16 to everything at once.

use super::{Case, RESIDUAL, Size, Step, case};
use silumin::Shape;

/// Why racecheck reports hazards: it knows of no order between the lanes that read a stage and the one that says so for all of them.
const ONE_LANE: &str = "one lane says for its warp that a stage has been read, and racecheck knows of no order between the other lanes and whoever waits";

/// Knobs of the plainest kernel.
const PLAIN: &str = "swap_ab = off; schedule = one_tile; store = direct; k_order = forward";

fn plain(shape: Shape, more: &str) -> Case {
    case(shape, &format!("{PLAIN}; {more}")).racecheck(ONE_LANE)
}

/// All steps in order.
pub fn steps(size: Size) -> Vec<Step> {
    let square = Shape::new(256, 256, 512);
    let few = size.pick(Shape::new(16, 256, 512), Shape::new(16, 14336, 4096));
    let many = size.pick(Shape::new(256, 256, 512), Shape::new(512, 4096, 7168));
    let step = |title, assumption, look, cases| Step {
        number: 0,
        title,
        assumption,
        look,
        look_loop: "the end of the kernel: stores that a next launch overtakes",
        cases,
    };
    let auto = |shape, knobs| case(shape, knobs).racecheck(ONE_LANE);
    vec![
        step(
            "bf16, one tile, by the swizzle's width",
            "ldmatrix of rows whose units of 16 bytes TMA permutes, with 32, 64 and 128-byte swizzles; fragments of mma.sync",
            "the permutation of a lane's place, then the fragment's rows and columns",
            [16, 32, 64]
                .map(|k| {
                    let knobs = format!("tile = [64, 64, {k}]; stages = 1");
                    plain(Shape::new(64, 64, k), &knobs).formats("bf16 bf16 f32")
                })
                .to_vec(),
        ),
        step(
            "the ring of stages, eight and twelve warps",
            "a stage that warps have read goes back to TMA; `setmaxnreg`",
            "the stage that is let go of too early, then registers that setmaxnreg moves",
            vec![
                plain(square, "tile = [64, 64, 64]; stages = 3").formats("bf16 bf16 bf16"),
                plain(square, "tile = [128, 64, 64]").formats("bf16 bf16 bf16"),
                plain(Shape::new(384, 192, 512), "tile = [192, 64, 64]").formats("bf16 bf16 bf16"),
                plain(Shape::new(200, 203, 1000), "tile = [128, 64, 64]").formats("f16 f16 f32"),
            ],
        ),
        step(
            "NVFP4: which lane's scale factors an MMA takes",
            "byte-id and thread-id of `mma.sync...block_scale` with scale_vec::4X; rows r, r + 32, r + 64 and r + 96 of a block",
            "the lane that the selector names, then the place of a row in its block",
            vec![
                plain(Shape::new(64, 64, 64), "tile = [64, 64, 64]; stages = 1").formats("nvfp4 nvfp4 f32"),
                plain(square, "tile = [128, 32, 128]"),
                plain(square, "tile = [128, 128, 128]"),
            ],
        ),
        step(
            "MXFP4, MXFP8 and FP8",
            "2X and 1X scale factors by byte-id; e2m1 beside 8-bit elements in bits 2 to 5 of a byte (`ldmatrix...b4x16_p64`)",
            "the byte-id, then the shift of widened elements",
            vec![
                plain(square, "tile = [128, 64, 128]").formats("mxfp4 mxfp4 bf16"),
                plain(square, "tile = [128, 64, 128]").formats("mxfp8 mxfp8 bf16"),
                plain(square, "tile = [128, 64, 128]").formats("mxfp8 mxfp4 bf16"),
                plain(square, "tile = [128, 64, 128]").formats("e4m3 e4m3 bf16"),
            ],
        ),
        step(
            "whole problems as auto has them",
            "what `auto` chooses for many tokens and for few",
            "the knobs that the kernel's first lines name",
            vec![auto(many, ""), auto(few, "").adds("weights on the MMA's row side")],
        ),
        step(
            "everything at once",
            "persistent CTAs, C through TMA, parts of K, a gate with vectors and matrices",
            "the parity of barriers in a second tile, then the workspace",
            vec![
                auto(square, "schedule = persistent; sms = 2; store = tma"),
                auto(square, "schedule = split_k(2)"),
                auto(square, "schedule = stream_k; sms = 3"),
                auto(square, "").gate(RESIDUAL).formats("bf16 bf16 bf16"),
            ],
        ),
    ]
}
