//! `validate` against drawn problems and configurations: legal ones make plans that hold together,
//! illegal ones make errors that say something, and nothing panics.

use proptest::prelude::*;
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{
    AReuse, Accumulators, Buffers, CacheHints, Config, CtaGroup, Eviction, KOrder, Multicast, Raster,
    Schedule, Setting, SfLoad, SfPreload, Store, Strategy as Strategies, Switch, Tile, TmemLoad, TmemShape,
};
use silumin_codegen::error::{ConfigError, explain};
use silumin_codegen::plan::{Plan, Region, Swizzle, validate};
use silumin_codegen::problem::{Problem, Shape};
use silumin_codegen::spec::SpecFile;

fn setting<T: Clone + std::fmt::Debug>(
    values: impl Strategy<Value = T>,
) -> impl Strategy<Value = Setting<T>> {
    prop_oneof![2 => Just(Setting::Auto), 3 => values.prop_map(Setting::Fixed)]
}

fn eviction() -> impl Strategy<Value = Option<Eviction>> {
    prop::option::of(prop::sample::select(vec![Eviction::Normal, Eviction::First, Eviction::Last]))
}

/// Sizes that are often legal, sometimes odd, sometimes absurd.
fn size() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1u32..4000, 3 => (1u32..300).prop_map(|n| n * 32), 1 => any::<u32>()]
}

fn config() -> impl Strategy<Value = Config> {
    let tile_n = prop_oneof![
        4 => prop::sample::select(vec![64u32, 128, 192, 256]),
        2 => (1u32..33).prop_map(|n| 8 * n),
        1 => any::<u32>()
    ];
    let tile_k = prop_oneof![6 => (1u32..9).prop_map(|n| 64 * n), 1 => any::<u32>()];
    let tile_m = prop_oneof![5 => Just(128u32), 4 => Just(256u32), 1 => any::<u32>()];
    let tile = (tile_m, tile_n, tile_k).prop_map(|(m, n, k)| Tile { m, n, k });
    let k_order = setting(prop_oneof![
        Just(KOrder::Forward),
        Just(KOrder::Reverse),
        Just(KOrder::PingPong),
        (0u32..6).prop_map(KOrder::SplitTail),
        any::<u32>().prop_map(KOrder::SplitTail)
    ]);
    let sf_preload = prop_oneof![
        Just(SfPreload::PerStage),
        Just(SfPreload::All),
        (0u32..6).prop_map(SfPreload::Ahead),
        any::<u32>().prop_map(SfPreload::Ahead)
    ];
    let cache =
        (eviction(), eviction(), eviction(), eviction()).prop_map(|(a, b, sf, c)| CacheHints { a, b, sf, c });
    let loads = (
        prop::sample::select(vec![
            TmemShape::S32x32b,
            TmemShape::S16x256b,
            TmemShape::S16x128b,
            TmemShape::S16x64b,
        ]),
        prop::option::of(prop_oneof![4 => prop::sample::select(vec![8u32, 16, 32]), 1 => any::<u32>()]),
    );
    let loads = loads.prop_map(|(shape, chunk)| Store::DirectBy(TmemLoad { shape, chunk }));
    let shapes = (
        setting(tile),
        setting(prop::sample::select(vec![CtaGroup::One, CtaGroup::Two])),
        setting(prop_oneof![5 => 1u32..9, 1 => any::<u32>()]),
        k_order,
        sf_preload,
        prop::sample::select(vec![Accumulators::Separate, Accumulators::SideBySide]),
        setting(prop::sample::select(vec![AReuse::None, AReuse::Collector])),
        setting(prop_oneof![5 => (5u32..10).prop_map(|n| 1 << n), 1 => any::<u32>()]),
        setting(cache),
        setting(prop_oneof![2 => prop::sample::select(vec![Store::Direct, Store::Tma]), 3 => loads]),
    );
    let schedule = prop_oneof![
        6 => prop::sample::select(vec![
            Schedule::OneTile,
            Schedule::Persistent,
            Schedule::Dynamic,
            Schedule::StreamK
        ]),
        2 => (0u32..9).prop_map(Schedule::SplitK),
        2 => prop::sample::select(vec![2u32, 4, 8, 5]).prop_map(Schedule::ClusterSplitK),
        1 => any::<u32>().prop_map(Schedule::ClusterSplitK),
        1 => any::<u32>().prop_map(Schedule::SplitK),
    ];
    let strategies =
        vec![Strategies::TwoPass, Strategies::SecondFused, Strategies::Sequential, Strategies::Interleaved];
    let raster = prop_oneof![
        2 => prop::sample::select(vec![Raster::AlongM, Raster::AlongN]),
        1 => any::<u32>().prop_map(Raster::Swizzled)
    ];
    let shares = (
        setting(prop::sample::select(strategies)),
        setting(schedule),
        raster,
        setting(prop_oneof![5 => 1u32..149, 1 => any::<u32>()]),
        setting(prop_oneof![3 => (0u32..4).prop_map(Buffers::Whole), 2 => Just(Buffers::Overlapped)]),
        prop::sample::select(vec![Switch::Off, Switch::On]),
        setting(prop::sample::select(vec![Switch::Off, Switch::On])),
        prop_oneof![
            4 => Just(Multicast::None),
            2 => prop::sample::select(vec![Multicast::A(2), Multicast::B(2), Multicast::A(8), Multicast::B(4)]),
            1 => any::<u32>().prop_map(Multicast::A),
        ],
        setting(prop::sample::select(vec![SfLoad::Bulk, SfLoad::TensorMap, SfLoad::Multicast])),
    );
    (shapes, shares).prop_map(|(shapes, shares)| {
        let (tile, cta_group, stages, k_order, sf_preload, accumulators, a_reuse, tmem_columns, cache, store) =
            shapes;
        let (strategy, schedule, raster, sms, accumulator_buffers, pdl, swap_ab, multicast, sf_load) = shares;
        Config {
            strategy,
            tile,
            cta_group,
            swap_ab,
            multicast,
            stages,
            k_order,
            sf_preload,
            sf_load,
            accumulators,
            accumulator_buffers,
            a_reuse,
            tmem_columns,
            schedule,
            raster,
            sms,
            cache,
            store,
            pdl,
        }
    })
}

/// Regions in order, none into the next, inside `limit`.
fn laid_out(regions: &[Region], limit: u32) -> bool {
    let ordered = regions.windows(2).all(|pair| pair[0].offset + pair[0].size <= pair[1].offset);
    ordered && regions.last().is_some_and(|last| last.offset + last.size <= limit)
}

fn holds_together(plan: &Plan) {
    let limits = plan.arch.limits();
    assert!(plan.smem.total <= limits.smem_bytes);
    assert!(laid_out(&plan.smem.regions, plan.smem.total));
    assert!(laid_out(&plan.tmem.regions, plan.tmem.used));
    assert!(plan.tmem.used <= plan.tmem.columns && plan.tmem.columns <= limits.tmem_columns);
    assert!(plan.tmem.columns.is_power_of_two() && plan.tmem.columns >= 32);
    // Buffers that share columns share whole chunks, and have some of their own.
    let (t, chunk) = (&plan.tmem, plan.epilogue.chunk);
    if t.shared > 0 {
        let width = if plan.accumulators == Accumulators::SideBySide { 2 } else { 1 } * plan.mma_columns;
        assert!(plan.buffers == 2 && t.shared < plan.mma_columns && t.shared.is_multiple_of(chunk));
        assert_eq!((t.buffer_step + t.shared, t.buffer_step + t.second + plan.mma_columns), (width, t.sfa));
    }
    // Swizzle patterns start on their boundary, bulk copies on 128 bytes, barriers on 8.
    let span = plan.k_loop.tile_bytes / plan.smem.boxes;
    assert!(plan.smem.a_bytes.is_multiple_of(8 * span) && plan.smem.b_box_bytes.is_multiple_of(8 * span));
    assert!(plan.smem.stage_bytes.is_multiple_of(8 * span));
    assert!(plan.smem.scales.is_multiple_of(128) && plan.smem.barriers.is_multiple_of(8));
    let (rows, columns) = if plan.swap_ab { (plan.tile.n, plan.tile.m) } else { (plan.tile.m, plan.tile.n) };
    assert_eq!((plan.cta_rows * plan.cta_group.ctas(), plan.mma_columns), (rows, columns));
    let mut end = plan.smem.barriers;
    for barrier in &plan.barriers {
        assert_eq!(barrier.offset, end);
        end += 8 * barrier.count;
    }
    assert_eq!(end, plan.smem.tmem_address);
    let work = &plan.work;
    assert_eq!(work.tiles, work.m_items * work.n_items);
    let covered = u64::from(work.tiles) * u64::from(plan.multicast.ctas());
    assert!(covered >= u64::from(plan.m_tiles) * u64::from(plan.n_tiles));
    assert!(work.clusters >= 1 && plan.ctas() < 1 << 31);
    // The shares are all there is, and none is empty.
    let units = u64::from(work.clusters) * u64::from(work.share) + u64::from(work.longer);
    match work.schedule {
        Schedule::StreamK => {
            assert_eq!(units, u64::from(work.tiles) * u64::from(plan.k_loop.tiles));
            assert!(work.share >= 1 && work.longer < work.clusters);
        }
        Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts) => {
            assert_eq!(parts * work.share + work.longer, plan.k_loop.tiles);
            assert!(work.share >= 1 && work.longer < parts);
        }
        _ => assert!(plan.workspace.iter().all(|buffer| buffer.name != "partials")),
    }
    // The transaction count of an mbarrier has 20 bits.
    assert!(plan.cta_group.ctas() * (plan.smem.stage_bytes + plan.scales.slot_tx) < 1 << 20);
    for map in &plan.tensor_maps {
        assert!(map.box_dims.iter().all(|size| (1..=256).contains(size)));
        assert!(map.row_stride.is_multiple_of(16));
        let inner = map.box_dims[0] * map.element.bytes();
        assert!(inner.is_multiple_of(16) && (map.swizzle == Swizzle::None || inner <= map.swizzle.span()));
    }
    let k = &plan.k_loop;
    assert_eq!(k.main_tiles + k.tail_tiles, k.tiles);
    assert!(k.last_blocks >= 1 && k.last_blocks <= k.blocks && k.tail_tiles <= plan.stages);
    assert_eq!((k.tiles - 1) * k.blocks + k.last_blocks, plan.problem.shape.k.div_ceil(64));
    assert_eq!(plan.epilogue.chunk * plan.epilogue.chunks * work.cluster_parts, plan.mma_columns);
    assert!(u64::from(plan.m_tiles) * u64::from(plan.tile.m) >= u64::from(plan.problem.shape.m));
    assert!(u64::from(plan.n_tiles) * u64::from(plan.tile.n) >= u64::from(plan.problem.shape.n));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_draw_is_a_sound_plan_or_a_clear_error(m in size(), n in size(), k in size(), config in config()) {
        match validate(&Problem::nvfp4(Shape::new(m, n, k)), &config, Arch::Sm100a) {
            Ok(plan) => {
                holds_together(&plan);
                // What was settled is itself legal, and settles to itself.
                let again = validate(&plan.problem, &plan.config, plan.arch);
                prop_assert_eq!(again.map(|plan| plan.config), Ok(plan.config));
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for error in &errors {
                    prop_assert!(error.to_string().starts_with(error.knob()), "{}", error);
                    prop_assert!(!error.hint().is_empty());
                }
            }
        }
    }
}

/// The errors that `knobs` get for a shape.
fn errors(shape: [u32; 3], knobs: &[(&str, &str)]) -> Vec<ConfigError> {
    let [m, n, k] = shape;
    let mut config = Config::default();
    for (knob, value) in knobs {
        config.set(knob, value).unwrap();
    }
    validate(&Problem::nvfp4(Shape::new(m, n, k)), &config, Arch::Sm100a).err().unwrap_or_default()
}

#[test]
fn each_limit_is_told_with_its_sum() {
    let large = [512, 4096, 7168];
    let side = ("accumulators", "side_by_side");
    let tmem = "2 x 256 (accumulators) + 4 x 4 (SFA) + 8 x 8 (SFB1, SFB2) = 592";
    for (shape, knobs, knob, says) in [
        ([0, 64, 64], &[][..], "shape", "M = 0 is outside 1..="),
        ([64, 64, 40], &[], "shape", "K = 40 is not a multiple of 32"),
        ([1 << 30, 1 << 30, 32], &[("tile", "[128, 64, 64]")], "tile", "140737488355328"),
        (
            [1 << 20, 1 << 15, 256],
            &[("strategy", "two_pass")],
            "strategy",
            "threads of the gate's own kernel",
        ),
        (large, &[("schedule", "cluster_split_k(3)")], "schedule", "2, 4 or 8 CTAs"),
        (large, &[("schedule", "cluster_split_k(2)"), ("cta_group", "2")], "schedule", "no room for a pair"),
        (large, &[("schedule", "cluster_split_k(8)"), ("tile", "[128, 32, 256]")], "schedule", "32 / 8"),
        (large, &[("schedule", "cluster_split_k(2)"), ("store", "tma")], "schedule", "stored from registers"),
        (large, &[("schedule", "split_k(29)")], "schedule", "split_k(29) with 28 K tiles"),
        (large, &[("sms", "149")], "sms", "149 is outside 2..=148"),
        (large, &[("sms", "1"), ("cta_group", "2")], "sms", "1 is outside 2..=148"),
        (large, &[("raster", "swizzled(0)")], "raster", "groups of no tiles"),
        (large, &[("accumulator_buffers", "3")], "accumulator_buffers", "3 is neither 1 nor 2"),
        (
            large,
            &[("accumulator_buffers", "2"), ("schedule", "one_tile")],
            "accumulator_buffers",
            "nothing to overlap",
        ),
        (
            large,
            &[("accumulator_buffers", "2"), ("tile", "[128, 128, 256]")],
            "accumulator_buffers",
            "4 x 128",
        ),
        (large, &[side, ("strategy", "sequential")], "accumulators", "one product at a time"),
        (
            large,
            &[("k_order", "split_tail(1)"), ("strategy", "two_pass")],
            "k_order",
            "one product at a time",
        ),
        (large, &[("a_reuse", "collector"), ("strategy", "two_pass")], "a_reuse", "one product a K loop"),
        (large, &[("sf_preload", "all"), ("schedule", "stream_k")], "sf_preload", "shares a tile's K out"),
        (
            large,
            &[("k_order", "split_tail(1)"), ("schedule", "split_k(2)")],
            "k_order",
            "shares a tile's K out",
        ),
        (large, &[("tile", "[64, 128, 256]")], "tile", "M = 64"),
        (large, &[("tile", "[256, 128, 256]"), ("cta_group", "1")], "tile", "MMA of 1 CTA(s) has 128 rows"),
        (large, &[("cta_group", "2"), ("tile", "[128, 128, 256]")], "tile", "MMA of 2 CTA(s) has 256 rows"),
        (large, &[("cta_group", "2"), ("tile", "[256, 72, 256]")], "tile", "not a multiple of 16"),
        (large, &[("tile", "[128, 100, 256]")], "tile", "N = 100 is not a multiple of 8"),
        (large, &[("tile", "[128, 96, 256]")], "tile", "starts at row 96"),
        (large, &[("tile", "[128, 128, 100]")], "tile", "K = 100"),
        (large, &[("tile", "[128, 256, 256]")], "tile", tmem),
        (large, &[("tile", "[128, 128, 4096]")], "tile", "786432 (stages of A, B1, B2)"),
        (large, &[("stages", "9"), ("cta_group", "1")], "stages", "9 x 49152 (stages of A, B1, B2)"),
        (large, &[("stages", "33")], "stages", "33 is outside 1..=32"),
        ([512, 4096, 16384], &[("sf_preload", "all")], "sf_preload", "(slots of scale factors)"),
        (large, &[("sf_preload", "ahead(0)")], "sf_preload", "ahead(0)"),
        (large, &[("tmem_columns", "100")], "tmem_columns", "100 is not a power of two"),
        (large, &[("tmem_columns", "256")], "tmem_columns", "256 allocated, but this needs"),
        (large, &[("k_order", "split_tail(0)")], "k_order", "split_tail(0) with 28 K tiles"),
        (large, &[("k_order", "split_tail(5)"), ("cta_group", "1")], "k_order", "the pipeline has 4 stages"),
        (large, &[side, ("k_order", "split_tail(1)")], "k_order", "one MMA for both"),
        (large, &[side, ("tile", "[128, 64, 256]")], "accumulators", "64 rows do not"),
        (large, &[side, ("tile", "[128, 192, 256]")], "accumulators", "2 x 192 = 384"),
        (large, &[side, ("a_reuse", "collector")], "a_reuse", "one MMA for both"),
        ([64, 77, 64], &[("store", "tma")], "store", "154 bytes"),
        (
            large,
            &[("accumulator_buffers", "overlapped"), ("schedule", "one_tile")],
            "accumulator_buffers",
            "overlapped with schedule = one_tile: a CTA computes one tile",
        ),
        (
            large,
            &[("accumulator_buffers", "overlapped"), ("tile", "[128, 192, 256]")],
            "accumulator_buffers",
            "4 x 192 (accumulators) + 4 x 4 (SFA) + 8 x 8 (SFB1, SFB2) = 848: the two would share 192 of the 192 columns",
        ),
        (large, &[("accumulator_buffers", "overlapped"), ("tile", "[128, 256, 256]")], "tile", tmem),
        (large, &[("store", "direct(16x256b, 12)")], "store", "8, 16 or 32 columns"),
        (
            [64, 40, 256],
            &[("store", "direct(16x256b, 16)"), ("tile", "[128, 40, 256]")],
            "store",
            "40 columns of a tile, which is no multiple of 16",
        ),
        (
            large,
            &[
                ("store", "direct(32x32b, 32)"),
                ("schedule", "cluster_split_k(2)"),
                ("tile", "[128, 64, 256]"),
            ],
            "store",
            "other CTAs' sums take registers",
        ),
        (
            large,
            &[("store", "direct(16x256b)"), ("swap_ab", "on")],
            "store",
            "neighbouring columns of an accumulator are rows of C",
        ),
        ([64, 1 << 27, 64], &[("store", "direct(16x64b)")], "store", "bytes of 32 rows of C in fp32"),
        (large, &[("multicast", "a(3)")], "multicast", "2, 4 or 8 CTAs"),
        (large, &[("multicast", "a(8)"), ("cta_group", "2")], "multicast", "2 or 4 pairs"),
        (
            large,
            &[("multicast", "b(4)"), ("cta_group", "2"), ("tile", "[256, 32, 256]")],
            "multicast",
            "16 / 4",
        ),
        (large, &[("multicast", "b(8)"), ("tile", "[128, 32, 256]")], "multicast", "32 / 8"),
        (large, &[("sf_load", "bulk"), ("cta_group", "2")], "sf_load", "its own CTA's barriers only"),
        (large, &[("sf_load", "multicast"), ("cta_group", "1")], "sf_load", "no two CTAs of a cluster"),
        (large, &[side, ("swap_ab", "on")], "swap_ab", "no rows for both"),
        (large, &[("a_reuse", "collector"), ("swap_ab", "on")], "a_reuse", "they share the other operand"),
        (large, &[("swap_ab", "on"), ("tile", "[64, 64, 256]")], "tile", "with swap_ab, N = 64"),
        (large, &[("swap_ab", "on"), ("tile", "[60, 128, 256]")], "tile", "with swap_ab, M = 60"),
        (large, &[("swap_ab", "on"), ("tile", "[96, 128, 256]")], "tile", "starts at row 96"),
    ] {
        let errors = errors(shape, knobs);
        let told = errors.iter().any(|error| error.knob() == knob && error.to_string().contains(says));
        assert!(told, "{knobs:?} should say `{says}`: {}", explain(&errors));
    }
}

/// Instructions only: the header's comments name every knob.
fn instructions(knobs: &[(&str, &str)]) -> String {
    let mut file = SpecFile::new(Shape::new(512, 1024, 2048));
    // Small enough a tile that every value is legal beside it.
    file.config.set("tile", "[128, 128, 128]").unwrap();
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, arch) = file.read().unwrap();
    let ptx = spec.kernel(file.shape(), arch).unwrap().ptx;
    let code: Vec<&str> = ptx.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.join("\n")
}

#[test]
fn every_knob_value_changes_the_ptx() {
    let base = instructions(&[]);
    let values = [
        ("tile", "[128, 64, 256]"),
        ("stages", "2"),
        ("k_order", "reverse"),
        ("k_order", "ping_pong"),
        ("k_order", "forward"),
        ("k_order", "split_tail(1)"),
        ("k_order", "split_tail(3)"),
        ("sf_preload", "ahead(1)"),
        ("sf_preload", "ahead(2)"),
        ("sf_preload", "all"),
        ("accumulators", "side_by_side"),
        ("a_reuse", "none"),
        ("cache", "none"),
        ("cache", "[a: evict_first]"),
        ("cache", "[b: evict_last]"),
        ("cache", "[sf: evict_normal]"),
        ("cache", "[c: evict_first]"),
        ("store", "tma"),
        ("strategy", "two_pass"),
        ("strategy", "second_fused"),
        ("strategy", "sequential"),
        ("swap_ab", "on"),
        ("multicast", "a(2)"),
        ("multicast", "a(4)"),
        ("multicast", "b(2)"),
        ("sf_load", "tensor_map"),
        ("schedule", "persistent"),
        ("schedule", "dynamic"),
        ("schedule", "stream_k"),
        ("schedule", "split_k(2)"),
        ("schedule", "split_k(3)"),
        ("schedule", "cluster_split_k(2)"),
        ("schedule", "cluster_split_k(4)"),
        ("raster", "along_n"),
        ("raster", "swizzled(2)"),
        ("pdl", "on"),
        ("store", "direct(32x32b, 8)"),
        ("store", "direct(32x32b, 16)"),
        ("store", "direct(16x256b)"),
        ("store", "direct(16x256b, 16)"),
        ("store", "direct(16x128b)"),
        ("store", "direct(16x64b)"),
    ];
    let texts = values.map(|value| instructions(&[value]));
    for (i, text) in texts.iter().enumerate() {
        // `assert!`, not `assert_ne!`: the texts are a thousand lines each.
        assert!(*text != base, "{:?} changes nothing", values[i]);
        for (j, other) in texts.iter().enumerate().take(i) {
            assert!(text != other, "{:?} and {:?} make the same kernel", values[i], values[j]);
        }
    }
    // SMs count where the grid is made for them; buffers where a tile leaves room for two.
    let persistent = ("schedule", "persistent");
    assert!(instructions(&[persistent, ("sms", "9")]) != instructions(&[persistent]));
    let narrow = [persistent, ("tile", "[128, 64, 128]")];
    let single = [persistent, ("tile", "[128, 64, 128]"), ("accumulator_buffers", "1")];
    assert!(instructions(&narrow) != instructions(&single));
    let buffers = |value| instructions(&[persistent, ("accumulator_buffers", value)]);
    assert!(buffers("1") != buffers("overlapped"));
    assert!(buffers("auto") == buffers("overlapped"));
    // What a pair shares, and what several pairs do.
    let pair = |knobs: &[(&str, &str)]| {
        instructions(&[&[("cta_group", "2"), ("tile", "[256, 64, 256]")], knobs].concat())
    };
    let pairs = [
        &[][..],
        &[("sf_load", "tensor_map")],
        &[("multicast", "a(2)")],
        &[("multicast", "a(2)"), ("sf_load", "tensor_map")],
        &[("multicast", "a(4)")],
        &[("multicast", "b(2)")],
        &[("multicast", "b(4)")],
    ]
    .map(pair);
    for (i, text) in pairs.iter().enumerate() {
        assert!(!pairs[..i].contains(text), "the same kernel twice: {i}");
    }
    // The rule's tail is the same as one that is asked for.
    assert!(base == instructions(&[("k_order", "split_tail(2)")]));
    // A pair has another tile.
    let two = [("cta_group", "2"), ("tile", "auto")];
    assert!(instructions(&two) != instructions(&[("cta_group", "1"), ("tile", "auto")]));
    // A tile of 128 columns needs all of TMEM as it is; a narrower one leaves a choice.
    let narrow = ("tile", "[128, 64, 128]");
    assert!(instructions(&[narrow]) != instructions(&[narrow, ("tmem_columns", "512")]));
}

/// C with scale factors through shared memory and across lanes: whole bytes in boxes, and a row of them a multiple of 16 bytes.
#[test]
fn packed_elements_are_staged_and_mapped_as_bytes() {
    for (c, m, n, knobs, element, dims, boxes) in [
        (
            "nvfp4",
            200,
            352,
            &[("cta_group", "1"), ("tile", "[128, 128, 256]")][..],
            "u8",
            [176, 200],
            [64, 32],
        ),
        ("nvfp4", 200, 352, &[("cta_group", "1"), ("tile", "[128, 64, 256]")], "u8", [176, 200], [32, 32]),
        ("mxfp8", 200, 352, &[("cta_group", "1"), ("tile", "[128, 128, 256]")], "u8", [352, 200], [128, 32]),
        ("nvfp4", 200, 352, &[("swap_ab", "on"), ("tile", "[64, 128, 256]")], "u8", [176, 200], [16, 64]),
        ("mxfp8", 200, 352, &[("swap_ab", "on"), ("tile", "[64, 128, 256]")], "u8", [352, 200], [32, 64]),
    ] {
        let mut file = SpecFile::new(Shape::new(m, n, 512));
        file.formats.c = c.to_owned();
        file.config.set("store", "tma").unwrap();
        for (knob, value) in knobs {
            file.config.set(knob, value).unwrap();
        }
        let (spec, arch) = file.read().unwrap();
        let plan = spec.plan(file.shape(), arch).unwrap_or_else(|errors| panic!("{}", explain(&errors)));
        let map = plan.tensor_maps.last().unwrap();
        assert_eq!(
            (map.operand.name(), map.element.name(), map.dims, map.box_dims),
            ("c", element, dims, boxes)
        );
        assert_eq!(map.row_stride, dims[0]);
        let staging = plan.epilogue.c.staging.unwrap();
        assert_eq!(staging.box_bytes, boxes[0] * boxes[1]);
        assert_eq!(staging.box_bytes % 128, 0);
    }
}
