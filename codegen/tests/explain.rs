//! What a plan says about itself adds up, whatever the configuration.

use silumin_codegen::arch::Arch;
use silumin_codegen::config::KNOBS;
use silumin_codegen::plan::{Plan, Target};
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::SpecFile;

fn plan(shape: Shape, knobs: &[(&str, &str)]) -> Plan {
    let mut file = SpecFile::new(shape);
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    file.read().unwrap().0.plan(shape, Arch::Sm100a).unwrap()
}

const CONFIGURATIONS: [&[(&str, &str)]; 11] = [
    &[],
    &[("tile", "[128, 64, 128]"), ("sms", "3")],
    &[("cta_group", "2"), ("store", "tma")],
    &[("accumulators", "side_by_side")],
    &[("sf_preload", "all")],
    &[("schedule", "dynamic"), ("store", "tma")],
    &[("schedule", "stream_k")],
    &[("schedule", "persistent"), ("tile", "[256, 128, 256]"), ("sms", "4")],
    &[("accumulator_buffers", "overlapped"), ("accumulators", "side_by_side"), ("store", "direct(16x256b)")],
    &[("schedule", "split_k(2)"), ("strategy", "sequential")],
    &[("strategy", "two_pass"), ("sf_preload", "ahead(2)")],
];

const SHAPES: [Shape; 3] =
    [Shape::new(256, 4096, 7168), Shape::new(130, 1000, 1056), Shape::new(1 << 20, 8192, 1024)];

#[test]
fn parts_and_slack_make_the_whole() {
    for shape in SHAPES {
        for knobs in CONFIGURATIONS {
            let plan = plan(shape, knobs);
            let explanation = plan.explain();
            for room in &explanation.rooms {
                let parts: u32 = room.parts.iter().map(|part| part.size).sum();
                assert_eq!(parts + room.padding, room.used, "{knobs:?}: {room:?}");
                assert_eq!(room.used + room.slack(), room.limit, "{knobs:?}: {room:?}");
            }
            let balance = explanation.balance;
            assert!(balance.efficiency > 0.0 && balance.efficiency <= 1.0, "{knobs:?}: {balance:?}");
            assert!(plan.schedule_floor_seconds() >= plan.floor_seconds());
            assert!(explanation.sm_intensity <= explanation.intensity * 1.001, "{knobs:?}: {explanation:?}");
        }
    }
}

#[test]
fn every_knob_is_named_and_what_auto_chose_has_its_rule() {
    for shape in SHAPES {
        for knobs in CONFIGURATIONS {
            let plan = plan(shape, knobs);
            let explanation = plan.explain();
            assert_eq!(explanation.choices.len(), KNOBS.len());
            let text = explanation.to_string();
            for (choice, (knob, asked)) in explanation.choices.iter().zip(plan.asked.entries()) {
                assert_eq!(choice.knob, knob);
                assert_eq!(choice.rule.is_some(), asked == "auto", "{choice:?}");
                // Warpgroups have knobs too, but there are no warpgroups here.
                assert!(
                    text.contains(knob)
                        && (choice.value != "auto" || ["consumers", "promotion"].contains(&knob)),
                    "{choice:?}"
                );
            }
        }
    }
}

#[test]
fn one_more_stage_than_auto_took_does_not_fit_or_is_of_no_use() {
    let what_if = |shape: Shape, knobs: &[(&str, &str)]| {
        let all = plan(shape, knobs).explain().what_ifs;
        all.into_iter().find(|what_if| what_if.knob == "stages").unwrap().outcome
    };
    let errors = what_if(SHAPES[0], &[]).unwrap_err();
    assert!(errors[0].to_string().contains("shared memory holds 232448 bytes"), "{}", errors[0]);
    // Four K tiles fill four stages: a fifth would fit.
    assert_eq!(what_if(Shape::new(128, 64, 1024), &[]).unwrap()[2], 5);
}

#[test]
fn the_busiest_sm_sets_the_floor_where_the_grid_is_small() {
    // 64 tiles of 128 x 128 on 148 SMs: each SM that works has 128 x 128 x 7168 twice.
    let plan = plan(SHAPES[0], &[("tile", "[128, 128, 256]"), ("schedule", "one_tile")]);
    let seconds = 4.0 * 128.0 * 128.0 * 7168.0 / (plan.arch.limits().fp4_ops_per_second / 148.0);
    assert!((plan.schedule_floor_seconds() / seconds - 1.0).abs() < 1e-9);
    assert!(plan.floor_seconds() < seconds);
    let balance = plan.balance();
    assert_eq!((balance.slots, balance.busiest, balance.k_tiles), (148, 28, 64 * 28));
}

#[test]
fn problems_beyond_any_memory_are_explained_too() {
    let plan = plan(Shape::new(1 << 30, 8192, 1 << 30), &[]);
    assert!(plan.moved_bytes().0 > 1 << 60);
    assert!(plan.explain().to_string().contains("waves"));
}

#[test]
fn no_schedule_keeps_sms_busier_than_they_can_be() {
    for schedule in ["one_tile", "persistent", "dynamic", "stream_k", "split_k(3)", "cluster_split_k(4)"] {
        let plan = plan(Shape::new(512, 3072, 7168), &[("schedule", schedule)]);
        let balance = plan.balance();
        assert!(balance.efficiency > 0.0 && balance.efficiency <= 1.0, "{schedule}: {balance:?}");
        assert_eq!(plan.waves(), balance.waves);
    }
}

/// What `auto` took for a knob, and why.
fn choice(shape: Shape, knobs: &[(&str, &str)], knob: &str) -> (String, String) {
    let explanation = plan(shape, knobs).explain();
    let choice = explanation.choices.iter().find(|choice| choice.knob == knob).unwrap();
    (choice.value.clone(), choice.rule.clone().unwrap_or_default())
}

#[test]
fn the_split_tail_hides_the_gate_where_a_cta_has_one_tile_and_k_is_long() {
    let long = Shape::new(256, 4096, 7168);
    for (shape, tail) in [
        (long, 3),
        (Shape::new(512, 4096, 7168), 5),
        // K tiles of half a span
        (Shape::new(256, 3072, 4096), 6),
        (Shape::new(512, 3072, 7168), 5),
        (Shape::new(256, 4096, 2048), 3),
    ] {
        let (value, rule) = choice(shape, &[], "k_order");
        assert_eq!(value, format!("split_tail({tail})"), "{shape}");
        let gate = if shape.m == 512 { "takes 2048 cycles" } else { "takes 1024 cycles" };
        assert!(rule.contains(gate) && rule.contains(&format!("{tail} of")), "{rule}");
    }
    let wide = choice(long, &[("tile", "[256, 128, 256]")], "k_order").1;
    assert!(wide.contains("GEMM 2 on a K tile 384") && wide.ends_with("hide 1920 of them"), "{wide}");
    // Never longer than the pipeline.
    assert_eq!(choice(long, &[("stages", "2")], "k_order").0, "split_tail(2)");
    for (shape, knobs, says) in [
        (Shape::new(256, 4096, 1024), &[][..], "there are 4 K tiles"),
        (
            Shape::new(8, 4096, 7168),
            &[("swap_ab", "on"), ("tile", "[8, 128, 256]")],
            "takes 128 cycles, less than the 264",
        ),
        (Shape::new(1 << 14, 4096, 7168), &[], "other MMAs overlap its epilogue"),
        (long, &[("schedule", "split_k(2)")], "a part of K"),
        (long, &[("accumulators", "side_by_side")], "an MMA for each product"),
        (long, &[("strategy", "sequential")], "an MMA for each product"),
    ] {
        let (value, rule) = choice(shape, knobs, "k_order");
        assert_eq!(value, "forward", "{shape}, {knobs:?}");
        assert!(rule.contains(says), "{shape}, {knobs:?}: {rule}");
    }
}

#[test]
fn tiles_that_follow_each_other_leave_by_tma_unless_stages_are_few() {
    let boxes = (Shape::new(8192, 2048, 768), &[][..]);
    let wide: &[(&str, &str)] =
        &[("tile", "[128, 128, 512]"), ("cta_group", "1"), ("schedule", "persistent")];
    let few = (Shape::new(8192, 2048, 4096), wide);
    for ((shape, knobs), value, why) in
        [(boxes, "tma", "through SMEM"), (few, "direct", "fewer than four stages")]
    {
        let (store, rule) = choice(shape, knobs, "store");
        assert!(store == value && rule.contains(why), "{shape}: {store}, {rule}");
        let (warps, rule) = choice(shape, knobs, "epilogue_warps");
        assert!(warps == "4" && rule.contains("overlap"), "{shape}: {warps}, {rule}");
    }
}

#[test]
fn a_short_k_takes_half_spans_and_says_so() {
    let shape = Shape::new(256, 3072, 4096);
    for (shape, knobs, tile, why) in [
        (shape, &[][..], "[256, 64, 128]", "half of a 128-byte"),
        (shape, &[("stages", "5")], "[256, 64, 256]", "one 128-byte"),
        (Shape { k: 7168, ..shape }, &[], "[256, 64, 256]", "one 128-byte"),
        (shape.grouped(2), &[("swap_ab", "off")], "256]", ""),
    ] {
        let (value, rule) = choice(shape, knobs, "tile");
        assert!(value.ends_with(tile) && rule.contains(why), "{shape}, {knobs:?}: {value}, {rule}");
    }
}

#[test]
fn scale_factors_are_loaded_once_where_several_ctas_need_them() {
    let value = |knobs: &[(&str, &str)]| {
        let explanation = plan(Shape::new(512, 4096, 7168), knobs).explain();
        explanation.choices.into_iter().find(|choice| choice.knob == "sf_load").unwrap().value
    };
    assert_eq!(value(&[]), "multicast");
    assert_eq!(value(&[("multicast", "b(2)")]), "multicast");
    assert_eq!(value(&[("cta_group", "1")]), "bulk");
}

/// The plan of 16-bit operands for sm_90a.
fn hopper(shape: Shape, knobs: &[(&str, &str)]) -> Plan {
    let mut file = SpecFile::new(shape);
    file.arch = Arch::Sm90a.to_string();
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, arch) = file.read().unwrap();
    spec.plan(shape, arch).unwrap_or_else(|errors| panic!("{knobs:?}: {}", errors[0]))
}

const OF_WARPGROUPS: [&[(&str, &str)]; 8] = [
    &[],
    &[("consumers", "ping_pong")],
    &[("tile", "[192, 64, 64]"), ("store", "tma"), ("sms", "4")],
    &[("tile", "[256, 96, 64]"), ("accumulators", "side_by_side")],
    &[("multicast", "b(2)"), ("schedule", "stream_k")],
    &[("swap_ab", "on"), ("schedule", "split_k(2)")],
    &[("strategy", "two_pass"), ("tile", "[64, 192, 128]")],
    &[("strategy", "sequential"), ("k_order", "serpentine")],
];

#[test]
fn plans_of_warpgroups_add_up_and_name_registers_instead_of_tensor_memory() {
    for shape in [Shape::new(512, 4096, 4096), Shape::new(130, 1000, 1048), Shape::new(16, 4096, 4096)] {
        for knobs in OF_WARPGROUPS {
            let plan = hopper(shape, knobs);
            let explanation = plan.explain();
            assert_eq!(explanation.rooms.len(), 1, "{knobs:?}");
            let room = &explanation.rooms[0];
            let parts: u32 = room.parts.iter().map(|part| part.size).sum();
            assert_eq!((room.name, parts + room.padding), ("SMEM", room.used), "{knobs:?}");
            let balance = explanation.balance;
            assert!(balance.efficiency > 0.0 && balance.efficiency <= 1.0, "{knobs:?}: {balance:?}");
            assert!(plan.schedule_floor_seconds() >= plan.floor_seconds());
            for (choice, (knob, asked)) in explanation.choices.iter().zip(plan.asked.entries()) {
                assert_eq!((choice.knob, choice.rule.is_some()), (knob, asked == "auto"), "{choice:?}");
                let none = ["tmem_columns", "sf_load", "promotion", "epilogue_warps"].contains(&knob);
                assert!(choice.value != "auto" || none, "{choice:?}");
                let rule = choice.rule.as_deref().unwrap_or_default();
                assert!(!rule.contains("TMEM") && !rule.contains("leader"), "{choice:?}");
            }
            let Target::Wgmma(warpgroups) = &plan.target else { panic!("{:?}", plan.target) };
            let text = plan.to_string();
            let held = plan.strategy.products() * warpgroups.product_registers;
            assert!(text.contains(&format!("registers {held} of a thread")), "{text}");
            assert!(text.contains("one more warpgroup loads"), "{text}");
            for absent in ["TMEM", "scale factors", "columns used"] {
                assert!(!text.contains(absent), "{knobs:?}: {absent} in\n{text}");
            }
            let text = explanation.to_string();
            assert!(!text.contains("columns of TMEM") && !text.contains("+ scale factors"), "{text}");
            assert!(text.contains("consumers = "), "{text}");
        }
    }
}

#[test]
fn rules_of_warpgroups_say_what_was_chosen() {
    let rule = |shape: Shape, knobs: &[(&str, &str)], knob: &str| {
        let choices = hopper(shape, knobs).explain().choices;
        let choice = choices.into_iter().find(|choice| choice.knob == knob).unwrap();
        (choice.value, choice.rule.unwrap_or_default())
    };
    let large = Shape::new(512, 4096, 4096);
    for (shape, knobs, knob, value, says) in [
        (
            large,
            &[][..],
            "tile",
            "[128, 128, 64]",
            "128 x 128 is estimated to take the least time on 132 SMs",
        ),
        (Shape::new(16, 14336, 4096), &[], "tile", "[16, 128, 64]", "weights are the rows of 2 warpgroups"),
        (
            Shape::new(16, 4096, 4096),
            &[("swap_ab", "on")],
            "tile",
            "[16, 64, 64]",
            "rows of one warpgroup: with 64 rows a tile",
        ),
        (Shape::new(16, 4096, 4096), &[], "tile", "[64, 32, 64]", "64 x 32 is estimated"),
        (Shape::new(16, 4096, 4096), &[], "schedule", "one_tile", "all run at once"),
        (Shape::new(16, 1024, 4096), &[], "schedule", "cluster_split_k(2)", "2 CTAs share each tile's K"),
        (Shape::new(16, 4096, 4096), &[], "swap_ab", "off", "would leave SMs idle"),
        (Shape::new(16, 10240, 8192), &[], "swap_ab", "off", "would leave SMs idle"),
        (Shape::new(16, 18944, 3584), &[], "swap_ab", "off", "would leave SMs idle"),
        // 8 rows reach at most 8 groups, which have 6 tiles of 128 each: 48 tiles.
        (Shape::new(8, 768, 2048).grouped(128), &[], "tile", "[8, 64, 64]", "rows of one warpgroup"),
        (Shape::new(1024, 768, 2048).grouped(128), &[], "tile", "[8, 128, 64]", "rows of 2 warpgroups"),
        (Shape::new(16, 14336, 4096), &[], "swap_ab", "on", "few tokens"),
        (large, &[], "consumers", "cooperative", "both warpgroups on one tile"),
        (large, &[("consumers", "ping_pong")], "schedule", "persistent", "tiles that follow each other"),
        (large, &[], "cta_group", "1", "one warpgroup's"),
        (large, &[], "a_reuse", "none", "no collector"),
        (large, &[], "tmem_columns", "auto", "no tensor memory"),
        (large, &[], "accumulator_buffers", "1", "no room"),
        (large, &[], "k_order", "forward", "issue its MMAs"),
        (large, &[], "sf_load", "auto", "no scale factors"),
    ] {
        let (settled, rule) = rule(shape, knobs, knob);
        assert!(settled == value && rule.contains(says), "{knob} of {shape}: {settled}, {rule}");
    }
    let mut file = SpecFile::new(large);
    (file.arch, file.formats.a, file.formats.b) = ("sm_90a".into(), "e4m3".into(), "e4m3".into());
    let (spec, arch) = file.read().unwrap();
    let plan_of_8_bits = spec.plan(large, arch).unwrap();
    let choices = plan_of_8_bits.explain().choices;
    let promotion = choices.iter().find(|choice| choice.knob == "promotion").unwrap();
    assert!(promotion.value == "every(128)" && promotion.rule.as_ref().unwrap().contains("fewer bits"));
    assert!(plan_of_8_bits.to_string().contains("for sums on their way"), "{plan_of_8_bits}");
    // Elsewhere there are none.
    let choices = plan(SHAPES[0], &[]).explain().choices;
    let consumers = choices.iter().find(|choice| choice.knob == "consumers").unwrap();
    assert!(consumers.rule.as_ref().unwrap().contains("tensor memory"));
}

#[test]
fn mmas_are_those_that_warpgroups_issue() {
    // 4 x 32 tiles of two warpgroups, 64 K tiles of 4 steps, an MMA for each product.
    let plan =
        hopper(Shape::new(512, 4096, 4096), &[("tile", "[128, 128, 64]"), ("accumulators", "separate")]);
    assert_eq!((plan.mmas_issued(), plan.mma_shape()), (4 * 32 * 2 * 64 * 4 * 2, [64, 128, 16]));
    let side = [("tile", "[256, 64, 64]"), ("accumulators", "side_by_side")];
    let plan = hopper(Shape::new(512, 4096, 4000), &side);
    // Beyond K they add zeros.
    assert_eq!((plan.mmas_issued(), plan.mma_shape()), (2 * 64 * 4 * 63 * 4, [64, 128, 16]));
}
