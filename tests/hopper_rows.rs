//! Kernels for sm_90a whose last tile along M has fewer rows than the others, and a tensor map of its own for them (decision 0239).
//!
//! Every way to share out tiles that has such a map, and those that have none, with strict tracking and under several schedules. A commit
//! judges a part; with `SILUMIN_FULL=1` all are judged.

use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::lattice::{Point, fault_beside_plan};
use silumin_testkit::sample;

type Knobs = &'static [(&'static str, &'static str)];
/// Knobs, and whether the last of several tiles has a map of its own.
type Case = (Knobs, bool);

/// Ways to share out tiles.
const CASES: [Case; 16] = [
    (&[("tile", "[64, 32, 64]"), ("schedule", "one_tile")], true),
    (&[("tile", "[128, 48, 64]"), ("schedule", "one_tile"), ("stages", "3")], true),
    (&[("tile", "[64, 64, 128]"), ("schedule", "split_k(2)")], true),
    (&[("tile", "[128, 32, 64]"), ("schedule", "cluster_split_k(2)")], true),
    (&[("tile", "[64, 48, 64]"), ("strategy", "sequential")], true),
    (&[("tile", "[128, 64, 64]"), ("strategy", "two_pass")], true),
    (&[("tile", "[64, 64, 64]"), ("strategy", "second_fused")], true),
    (&[("tile", "[64, 32, 64]"), ("pdl", "on"), ("raster", "along_n")], true),
    (&[("swap_ab", "on"), ("tile", "[56, 64, 64]"), ("schedule", "one_tile")], true),
    (
        &[
            ("swap_ab", "on"),
            ("tile", "[32, 64, 64]"),
            ("schedule", "persistent"),
            ("stages", "4"),
            ("sms", "3"),
        ],
        true,
    ),
    // CTAs get the last tile along M first, or later.
    (&[("tile", "[64, 32, 64]"), ("schedule", "persistent"), ("sms", "3"), ("stages", "4")], true),
    (&[("tile", "[128, 32, 64]"), ("schedule", "persistent"), ("sms", "5"), ("stages", "5")], true),
    // More stages than K tiles; several loads of a tile's rows; parts of a tile's K; warpgroups by turns.
    (&[("tile", "[64, 16, 64]"), ("schedule", "persistent"), ("sms", "3"), ("stages", "12")], false),
    (&[("tile", "[128, 32, 64]"), ("multicast", "a(2)")], false),
    (&[("tile", "[64, 32, 64]"), ("schedule", "stream_k"), ("sms", "5")], false),
    (
        &[("tile", "[64, 32, 64]"), ("consumers", "ping_pong"), ("schedule", "persistent"), ("sms", "3")],
        false,
    ),
];

/// f32 scale factors have K tiles of 128.
const FACTORS: [Case; 4] = [
    (&[("tile", "[64, 32, 128]"), ("schedule", "one_tile")], true),
    (&[("tile", "[128, 64, 128]"), ("schedule", "one_tile"), ("stages", "2")], true),
    (&[("tile", "[64, 64, 128]"), ("schedule", "persistent"), ("sms", "3"), ("stages", "3")], true),
    (&[("swap_ab", "on"), ("tile", "[48, 128, 128]"), ("schedule", "one_tile")], true),
];
/// Weights that are decoded: after a launch that brings activations into order, in natural order (with many tokens), and beside warps that
/// bring them into order.
const DECODED: [Case; 4] = [
    (&[("tile", "[48, 64, 128]"), ("accumulators", "interleaved_rows"), ("schedule", "one_tile")], true),
    (&[("tile", "[48, 64, 128]"), ("accumulators", "interleaved_rows"), ("schedule", "split_k(2)")], true),
    (&[("tile", "[240, 64, 128]"), ("schedule", "one_tile")], true),
    (&[("tile", "[32, 128, 128]"), ("accumulators", "separate"), ("schedule", "one_tile")], false),
];
/// One product.
const SINGLE: [Case; 2] = [
    (&[("tile", "[128, 96, 64]"), ("schedule", "one_tile")], true),
    (&[("tile", "[64, 64, 64]"), ("schedule", "persistent"), ("sms", "3"), ("stages", "4")], true),
];

const DUAL: &str = "silu(A @ B1) * (A @ B2)";
/// Formats of A and B, the gate, and knobs.
const FORMATS: [(&str, &str, &str, &[Case]); 7] = [
    ("bf16", "bf16", DUAL, &CASES),
    ("e4m3", "e4m3", DUAL, &CASES),
    ("e4m3_1x128", "e4m3_128x128", DUAL, &FACTORS),
    ("bf16", "nvfp4", DUAL, &DECODED),
    ("bf16", "nvfp4_repacked", DUAL, &DECODED),
    ("bf16", "bf16", "A @ B", &SINGLE),
    ("e4m3", "e4m3", "A @ B", &SINGLE),
];

#[test]
fn last_tiles_of_fewer_rows_are_right_in_order_and_move_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    let shapes = [
        Shape::new(65, 256, 640),
        Shape::new(200, 256, 640),
        Shape::new(139, 128, 640).batch(2),
        Shape::new(260, 128, 512),
    ];
    let mut runs = Vec::new();
    for (a, b, gate, cases) in FORMATS {
        runs.extend(cases.iter().flat_map(|case| shapes.map(|shape| (a, b, gate, *case, shape))));
    }
    let runs = sample::of(runs, 5);
    let faults = silumin_testkit::faults(&runs, |_, &(index, (a, b, gate, (knobs, has_map), shape))| {
        let mut file = SpecFile::new(shape);
        file.arch = Arch::Sm90a.to_string();
        file.gate = gate.into();
        file.formats = FormatNames { a: a.into(), b: b.into(), c: "bf16".into(), ..FormatNames::default() };
        for (knob, value) in knobs {
            file.config.set(knob, value).unwrap();
        }
        let point = Point::of(&file, silumin_testkit::by_turns(index), index as u64);
        let plan = match point.spec.plan(shape, point.arch) {
            Ok(plan) => plan,
            Err(errors) => return Some(format!("{a} x {b}, {shape}, {knobs:?}: {errors:?}")),
        };
        let outside = plan.m_tiles * plan.tile.m - shape.m;
        let last = plan.tensor_maps.iter().find(|map| map.last_tile).map(|map| map.box_dims[1]);
        let wanted = (has_map && plan.m_tiles > 1 && outside >= 8).then_some(plan.tile.m - outside);
        if last != wanted {
            return Some(format!(
                "{a} x {b}, {shape}, {knobs:?}: last boxes of {last:?} rows, not {wanted:?}"
            ));
        }
        fault_beside_plan(&point, &ptxas)
    });
    sample::assert_none(&faults, runs.len());
}
