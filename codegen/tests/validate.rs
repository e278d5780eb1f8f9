//! `validate` against drawn problems and configurations: legal ones make plans that hold together,
//! illegal ones make errors that say something, and nothing panics.

mod draws;

use draws::{config, size};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Accumulators, Config, Consumers, Schedule, Setting, Store};
use silumin_codegen::error::{ConfigError, explain};
use silumin_codegen::plan::{Plan, Region, Swizzle, Target, Tcgen05, validate};
use silumin_codegen::problem::{Formats, Groups, OperandFormat, OutputFormat, Problem, Shape};
use silumin_codegen::spec::SpecFile;
use std::cell::Cell;

/// Regions in order, none into the next, inside `limit`.
fn laid_out(regions: &[Region], limit: u32) -> bool {
    let ordered = regions.windows(2).all(|pair| pair[0].offset + pair[0].size <= pair[1].offset);
    ordered && regions.last().is_some_and(|last| last.offset + last.size <= limit)
}

fn holds_together(plan: &Plan) {
    let limits = plan.arch.limits();
    assert!(plan.smem.total <= limits.smem_bytes);
    assert!(laid_out(&plan.smem.regions, plan.smem.total));
    match &plan.target {
        Target::Tcgen05(Tcgen05 { tmem, buffers, .. }) => {
            assert!(laid_out(&tmem.regions, tmem.used));
            assert!(tmem.used <= tmem.columns && tmem.columns <= limits.tmem_columns);
            assert!(tmem.columns.is_power_of_two() && tmem.columns >= 32);
            // Buffers that share columns share whole chunks, and have some of their own.
            if tmem.shared > 0 {
                let width =
                    if plan.accumulators == Accumulators::SideBySide { 2 } else { 1 } * plan.mma_columns;
                assert!(*buffers == 2 && tmem.shared < plan.mma_columns);
                assert!(tmem.shared.is_multiple_of(plan.epilogue.chunk));
                assert_eq!(tmem.buffer_step + tmem.shared, width);
                assert_eq!(tmem.buffer_step + tmem.second + plan.mma_columns, tmem.sfa);
            }
        }
        Target::Wgmma(warpgroups) => {
            assert_eq!(warpgroups.tile_rows(), plan.cta_rows);
            assert_eq!(plan.threads, 128 * (warpgroups.count + 1));
            // Accumulators and the rest of a thread's registers, and all threads' those of an SM.
            let products = plan.strategy.products();
            let held = warpgroups.sum_registers(products);
            assert_eq!(128 * warpgroups.product_registers, warpgroups.rows() * plan.mma_columns);
            assert!(held + 32 <= warpgroups.registers[0]);
            let [computes, loads] = warpgroups.registers;
            assert!(warpgroups.count == 1 || 128 * (warpgroups.count * computes + loads) <= 1 << 16);
            // One K tile's MMAs end while those of the next run.
            assert!(plan.stages >= 2 || plan.k_loop.tiles == 1);
            assert!(!warpgroups.ping_pong || plan.work.schedule == Schedule::Persistent);
        }
        Target::Mma(mma) => {
            let groups = mma.groups;
            assert_eq!((groups.tile_rows(), 128 * (groups.count + 1)), (plan.cta_rows, plan.threads));
            assert!(plan.cta_rows <= 128 || plan.kind.scales_per_mma() == 0);
            // Accumulators, an MMA's operands and the rest of a thread's registers, and all threads' those of an SM.
            let held = mma.sum_registers(plan.strategy.products());
            assert_eq!(128 * groups.product_registers, groups.rows() * plan.mma_columns);
            let [computes, loads] = groups.registers;
            assert!(held + 64 <= computes && 128 * (groups.count * computes + loads) <= 1 << 16);
            // Where a tile's columns start, no block of scale factors ends inside it.
            let several = if plan.swap_ab { plan.m_tiles } else { plan.n_tiles } > 1;
            let inside = 128u32.is_multiple_of(plan.mma_columns);
            assert!(inside || !several || plan.kind.scales_per_mma() == 0);
            assert_eq!(plan.cluster_ctas(), 1);
        }
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
    assert!(end <= plan.smem.total && (plan.tmem().is_none() || end == plan.smem.tmem_address));
    let work = &plan.work;
    let matrices = match plan.problem.shape.groups {
        Groups::Batch(matrices) => matrices,
        _ => 1,
    };
    assert_eq!(work.tiles, work.m_items * work.n_items * matrices);
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
    let steps = (k.tiles - 1) * k.blocks + k.last_blocks;
    let of_k = plan.problem.shape.k.div_ceil(plan.kind.mma_k());
    assert!(if plan.tmem().is_some() { steps == of_k } else { (of_k..of_k + k.blocks).contains(&steps) });
    let parts = work.cluster_parts * plan.epilogue.column_parts;
    assert_eq!(plan.epilogue.chunk * plan.epilogue.chunks * parts, plan.mma_columns);
    assert!(u64::from(plan.m_tiles) * u64::from(plan.tile.m) >= u64::from(plan.problem.shape.m));
    assert!(u64::from(plan.n_tiles) * u64::from(plan.tile.n) >= u64::from(plan.problem.shape.n));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_draw_is_a_sound_plan_or_a_clear_error(
        m in size(), n in size(), k in size(), config in config(Arch::Sm100a), thor in any::<bool>(),
    ) {
        let arch = if thor { Arch::Sm110a } else { Arch::Sm100a };
        judge(&Problem::nvfp4(Shape::new(m, n, k)), &config, arch)?;
    }
}

/// What `a_draw_is_a_sound_plan_or_a_clear_error` asks of a draw.
fn judge(problem: &Problem, config: &Config, arch: Arch) -> Result<bool, TestCaseError> {
    match validate(problem, config, arch) {
        Ok(plan) => {
            holds_together(&plan);
            // What was settled is itself legal, and settles to itself.
            let again = validate(&plan.problem, &plan.config, plan.arch);
            prop_assert_eq!(again.map(|plan| plan.config), Ok(plan.config));
            Ok(true)
        }
        Err(errors) => {
            prop_assert!(!errors.is_empty());
            for error in &errors {
                prop_assert!(error.to_string().starts_with(error.knob()), "{}", error);
                prop_assert!(!error.hint().is_empty());
            }
            Ok(false)
        }
    }
}

/// What warpgroups multiply.
fn bf16(shape: Shape) -> Problem {
    let formats = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    Problem::dual(shape, formats)
}

/// Knobs that sm_90a has no use for, back at what they are without.
fn without_tensor_memory(config: Config) -> Config {
    let usual = Config::default();
    Config {
        cta_group: usual.cta_group,
        sf_preload: usual.sf_preload,
        sf_load: usual.sf_load,
        accumulator_buffers: usual.accumulator_buffers,
        a_reuse: usual.a_reuse,
        tmem_columns: usual.tmem_columns,
        store: match config.store {
            Setting::Fixed(Store::DirectBy(_)) => Setting::Auto,
            store => store,
        },
        ..config
    }
}

#[test]
fn a_draw_for_warpgroups_is_a_sound_plan_or_a_clear_error() {
    let legal = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 10_000, ..ProptestConfig::default() });
    let pairs = [
        ("bf16", "bf16"),
        ("f16", "f16"),
        ("e4m3", "e5m2"),
        ("bf16", "nvfp4"),
        ("bf16", "mxfp4"),
        ("bf16", "nvfp4_repacked"),
        ("bf16", "mxfp4_repacked"),
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
    ];
    let draws = (size(), size(), size(), config(Arch::Sm90a), 0u32..8, prop::sample::select(pairs.to_vec()));
    let outcome = runner.run(&draws, |(m, n, k, config, whole, (a, b))| {
        let config = if whole == 0 { config } else { without_tensor_memory(config) };
        let k = if whole % 2 == 0 { k } else { k.checked_next_multiple_of(32).unwrap_or(32) };
        let formats = Formats::new(a.parse().unwrap(), b.parse().unwrap(), OutputFormat::Bf16);
        let taken = judge(&Problem::dual(Shape::new(m, n, k), formats), &config, Arch::Sm90a)?;
        legal.set(legal.get() + u32::from(taken));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(legal.get() > 150, "{} of 10000 draws are legal", legal.get());
}

#[test]
fn a_draw_for_warps_is_a_sound_plan_or_a_clear_error() {
    let legal = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 10_000, ..ProptestConfig::default() });
    let pairs = [
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
        ("mxfp8", "mxfp4"),
        ("bf16", "bf16"),
        ("e4m3", "e5m2"),
        ("bf16", "nvfp4"),
    ];
    let chips = prop::sample::select(vec![Arch::Sm120a, Arch::Sm121a]);
    let draws =
        (size(), size(), size(), config(Arch::Sm120a), 0u32..8, prop::sample::select(pairs.to_vec()), chips);
    let outcome = runner.run(&draws, |(m, n, k, config, whole, (a, b), arch)| {
        let config = if whole == 0 { config } else { without_tensor_memory(config) };
        let k = if whole % 2 == 0 { k } else { k.checked_next_multiple_of(128).unwrap_or(128) };
        let formats = Formats::new(a.parse().unwrap(), b.parse().unwrap(), OutputFormat::Bf16);
        let taken = judge(&Problem::dual(Shape::new(m, n, k), formats), &config, arch)?;
        legal.set(legal.get() + u32::from(taken));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(legal.get() > 150, "{} of 10000 draws are legal", legal.get());
}

#[test]
fn auto_multiplies_any_shape_on_small_chips() {
    let names = [
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
        ("mxfp8", "mxfp8"),
        ("mxfp8", "mxfp4"),
        ("e4m3", "e4m3"),
        ("bf16", "bf16"),
    ];
    for (a, b) in names {
        let formats = Formats::new(a.parse().unwrap(), b.parse().unwrap(), OutputFormat::F16);
        for m in (1..=300).step_by(7).chain([511, 512, 1000, 4096]) {
            for (n, k) in [(328, 128), (328, 2944), (4096, 7168), (14336, 4096)] {
                let shape = Shape::new(m, n, k);
                for shape in [shape, shape.batch(3), shape.grouped(5)] {
                    for problem in [Problem::dual(shape, formats), Problem::gemm(shape, formats)] {
                        for arch in [Arch::Sm120a, Arch::Sm121a] {
                            let plan = validate(&problem, &Config::default(), arch);
                            let plan =
                                plan.unwrap_or_else(|errors| panic!("{problem:?}: {}", explain(&errors)));
                            holds_together(&plan);
                            assert!(plan.stages >= 2 || plan.k_loop.tiles == 1, "{problem:?}: one stage");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn small_chips_refuse_what_they_have_none_of_by_name() {
    let refused = [
        ("cta_group", "2", "one warp's"),
        ("multicast", "a(2)", "a cluster has one CTA"),
        ("schedule", "cluster_split_k(2)", "a cluster has one CTA"),
        ("schedule", "dynamic", "do not ask for tiles"),
        ("sf_load", "multicast", "bulk copies bring them"),
        ("sf_preload", "ahead(2)", "where they read their operands"),
        ("accumulators", "side_by_side", "16 rows and 8 columns"),
        ("consumers", "ping_pong", "on one tile"),
        ("promotion", "off", "add up in fp32"),
        ("tmem_columns", "128", "in registers"),
        ("accumulator_buffers", "2", "in registers"),
        ("store", "direct(16x256b)", "in registers"),
        ("a_reuse", "collector", "A is in registers"),
        ("k_order", "split_tail(2)", "would apply the gate"),
        ("tile", "[256, 64, 128]", "blocks of 128 rows"),
        ("tile", "[96, 64, 128]", "64, 128, 192 or 256"),
        ("tile", "[128, 96, 128]", "inside one block"),
        ("tile", "[128, 256, 128]", "up to 128"),
        ("tile", "[128, 128, 512]", "101376 bytes"),
    ];
    for (knob, value, words) in refused {
        let mut config = Config::default();
        config.set(knob, value).unwrap();
        let problem = Problem::nvfp4(Shape::new(512, 4096, 7168));
        let errors = validate(&problem, &config, Arch::Sm120a).err().unwrap_or_default();
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(text.contains(words) && text.contains(knob), "{knob} = {value}: {text}");
        assert!(errors.iter().all(|error| !error.hint().is_empty()), "{knob} = {value}");
    }
    // Without scale factors tiles are larger, and start anywhere.
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    for tile in ["[256, 64, 32]", "[192, 64, 32]", "[128, 96, 64]"] {
        let mut config = Config::default();
        config.set("tile", tile).unwrap();
        holds_together(
            &validate(&Problem::dual(Shape::new(512, 4096, 7168), bf16), &config, Arch::Sm120a).unwrap(),
        );
    }
    let weights = Formats::new(OperandFormat::Bf16, OperandFormat::Nvfp4, OutputFormat::Bf16);
    let scaled = Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::Nvfp4);
    for (formats, words) in [(weights, "quantise the activations"), (scaled, "two columns of a row")] {
        let problem = Problem::dual(Shape::new(512, 4096, 7168), formats);
        let errors = validate(&problem, &Config::default(), Arch::Sm121a).unwrap_err();
        assert!(errors[0].to_string().contains(words), "{}", explain(&errors));
        assert!(errors[0].to_string().contains("not on sm_121a"), "{}", explain(&errors));
    }
}

#[test]
fn tiles_are_those_that_take_the_least_time() {
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    let e4m3 = Formats::new(OperandFormat::E4m3, OperandFormat::E4m3, OutputFormat::Bf16);
    let blocks = Formats::new(OperandFormat::E4m3Vector128, OperandFormat::E4m3Block128, OutputFormat::Bf16);
    let plan = |formats, [m, n, k]: [u32; 3], knobs: &[(&str, &str)]| {
        let mut config = Config::default();
        knobs.iter().for_each(|(knob, value)| config.set(knob, value).unwrap());
        validate(&Problem::dual(Shape::new(m, n, k), formats), &config, Arch::Sm90a).unwrap()
    };
    // `tests/tiles.rs` has more, with their times.
    for (formats, shape, tile) in [
        (bf16, [192, 2048, 7168], [64, 48]),
        (bf16, [128, 1536, 4096], [64, 32]),
        (bf16, [8, 2048, 7168], [64, 16]),
        (bf16, [8, 14336, 4096], [8, 128]),
        (e4m3, [160, 3072, 4096], [64, 96]),
        (blocks, [256, 2048, 7168], [64, 64]),
        (bf16, [256, 4096, 7168], [128, 64]),
        (bf16, [8192, 28672, 8192], [128, 128]),
    ] {
        let plan = plan(formats, shape, &[]);
        assert_eq!([plan.tile.m, plan.tile.n], tile, "{formats:?} {shape:?}: {}", plan.config);
    }
    // Sizes beyond all memory are errors.
    let huge = Problem::dual(Shape::new(u32::MAX, u32::MAX / 16 * 8, 64), bf16);
    validate(&huge, &Config::default(), Arch::Sm90a).unwrap_err();
    // Tiles that leave no room for given stages are not taken.
    for (shape, stages) in [([160, 4096, 4096], "7"), ([8, 6144, 4096], "12"), ([128, 5632, 4096], "10")] {
        plan(bf16, shape, &[("stages", stages)]);
    }
    assert!(
        !plan(bf16, [8, 6144, 4096], &[]).swap_ab && plan(bf16, [8, 6144, 4096], &[("stages", "12")]).swap_ab
    );
    for arch in [Arch::Sm90a, Arch::Sm120a] {
        let none = Config { sms: Setting::Fixed(0), ..Config::default() };
        let errors = validate(&Problem::dual(Shape::new(200, 512, 512), bf16), &none, arch).unwrap_err();
        assert!(errors[0].to_string().starts_with("sms: 0 is not"), "{}", explain(&errors));
    }
    // Boxes end with A where a tile has at least 8 rows more.
    let box_rows =
        |m: u32, knobs: &[(&str, &str)]| plan(bf16, [m, 4096, 7168], knobs).tensor_maps[0].box_dims[1];
    assert_eq!([96, 120, 121, 128].map(|m| box_rows(m, &[("tile", "[128, 64, 64]")])), [96, 120, 128, 128]);
    assert_eq!(box_rows(40, &[("tile", "[128, 64, 64]"), ("multicast", "a(2)")]), 64);
    let clipped = plan(bf16, [96, 4096, 7168], &[("tile", "[128, 64, 64]")]);
    assert_eq!(clipped.smem.blank_bytes, 32 * 128);
    assert_eq!(clipped.k_tile_bytes()[0].1, 96 * 128);
    // So do those of the last of several tiles, by a map of their own.
    let last_rows = |m: u32, knobs: &[(&str, &str)]| {
        let maps = plan(bf16, [m, 4096, 7168], knobs).tensor_maps;
        maps.iter().find(|map| map.last_tile).map(|map| map.box_dims[1])
    };
    let tile = ("tile", "[128, 64, 64]");
    let rows = [128, 129, 248, 249, 256].map(|m| last_rows(m, &[tile]));
    assert_eq!(rows, [None, Some(1), Some(120), None, None]);
    let schedules = ["split_k(2)", "cluster_split_k(2)", "persistent", "stream_k"];
    let rows = schedules.map(|schedule| last_rows(193, &[tile, ("schedule", schedule)]));
    assert_eq!(rows, [Some(65), Some(65), Some(65), None]);
    assert_eq!(last_rows(193, &[tile, ("multicast", "a(2)")]), None);
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
fn decoded_weights_rule_out_what_their_threads_cannot_do() {
    let formats = Formats::new(OperandFormat::Bf16, OperandFormat::Nvfp4, OutputFormat::Bf16);
    let problem = Problem { formats, ..Problem::nvfp4(Shape::new(64, 256, 512)) };
    let with = |knob: &str, value: &str| {
        let mut config = Config::default();
        config.set(knob, value).unwrap();
        validate(&problem, &config, Arch::Sm90a).err().unwrap_or_default()
    };
    assert_eq!(with("consumers", "cooperative"), []);
    // Four scale factors of MXFP4 are of 128 elements.
    let with_mxfp4 = |k: u32, tile: &str| {
        let formats = Formats { b: OperandFormat::Mxfp4, ..formats };
        let problem = Problem { formats, ..Problem::nvfp4(Shape::new(64, 256, k)) };
        let mut config = Config::default();
        config.set("tile", tile).unwrap();
        let errors = validate(&problem, &config, Arch::Sm90a).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(with_mxfp4(352, "[64, 128, 128]"), "");
    assert!(with_mxfp4(512, "[64, 128, 64]").contains("K = 64"));
    assert!(with_mxfp4(352, "[64, 128, 256]").contains("blocks of 128"));
    let refused = [
        ("swap_ab", "off", "takes its rows only"),
        ("strategy", "two_pass", "the other's weights are decoded"),
        ("sf_preload", "all", "come with their weights"),
        ("consumers", "ping_pong", "a warpgroup decodes 64"),
        ("tile", "[64, 72, 64]", "N is 128"),
        ("tile", "[64, 64, 64]", "K is 128 or 256"),
        ("tile", "[72, 64, 128]", "M is a multiple of 16"),
        ("tile", "[64, 128, 192]", "K is 64, 128 or 256"),
    ];
    for (knob, value, words) in refused {
        let errors = with(knob, value);
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(text.contains(words), "{knob} = {value}: {text}");
        assert!(errors.iter().all(|error| !error.hint().is_empty()), "{knob} = {value}");
    }
}

#[test]
fn auto_decodes_any_number_of_tokens() {
    let names = [
        ("bf16", "nvfp4"),
        ("f16", "nvfp4"),
        ("bf16", "mxfp4"),
        ("bf16", "nvfp4_repacked"),
        ("bf16", "mxfp4_repacked"),
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
    ];
    for (a, b) in names {
        let formats = Formats::new(a.parse().unwrap(), b.parse().unwrap(), OutputFormat::F16);
        for m in (1..=300).chain([511, 512, 1000, 4096]) {
            for k in [32, 992, 2880, 7168] {
                let shape = Shape::new(m, 328, k);
                for shape in [shape, shape.batch(3), shape.grouped(5)] {
                    let plan = validate(&Problem::dual(shape, formats), &Config::default(), Arch::Sm90a);
                    let plan =
                        plan.unwrap_or_else(|errors| panic!("{formats}, {shape}: {}", explain(&errors)));
                    holds_together(&plan);
                }
            }
        }
    }
}

#[test]
fn each_limit_is_told_with_its_sum() {
    let large = [512, 4096, 7168];
    let side = ("accumulators", "side_by_side");
    let tmem = "2 x 256 (accumulators) + 4 x 4 (SFA) + 8 x 8 (SFB1, SFB2) = 592";
    for (shape, knobs, knob, says) in [
        ([0, 64, 64], &[][..], "shape", "M = 0 is not between 1 and"),
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
        (large, &[("sms", "149")], "sms", "149 is not between 2 and 148"),
        (large, &[("sms", "1"), ("cta_group", "2")], "sms", "1 is not between 2 and 148"),
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
        (large, &[("tile", "[256, 128, 256]"), ("cta_group", "1")], "tile", "MMA of one CTA has 128 rows"),
        (
            large,
            &[("cta_group", "2"), ("tile", "[128, 128, 256]")],
            "tile",
            "MMA of a pair of CTAs has 256 rows",
        ),
        (
            large,
            &[("cta_group", "2"), ("tile", "[256, 72, 256]")],
            "tile",
            "is a multiple of 16, from 16 to 256",
        ),
        (large, &[("tile", "[128, 100, 256]")], "tile", "N = 100, but the N of"),
        (large, &[("tile", "[128, 96, 256]")], "tile", "starts at row 96"),
        (large, &[("tile", "[128, 128, 100]")], "tile", "K = 100"),
        (large, &[("tile", "[128, 256, 256]")], "tile", tmem),
        (large, &[("tile", "[128, 128, 4096]")], "tile", "786432 (stages of A, B1, B2)"),
        (large, &[("stages", "9"), ("cta_group", "1")], "stages", "9 x 49152 (stages of A, B1, B2)"),
        (large, &[("stages", "33")], "stages", "33 is not between 1 and 32"),
        ([512, 4096, 16384], &[("sf_preload", "all")], "sf_preload", "(slots of scale factors)"),
        (large, &[("sf_preload", "ahead(0)")], "sf_preload", "ahead(0)"),
        (large, &[("tmem_columns", "100")], "tmem_columns", "100 is not a power of two"),
        (
            large,
            &[("tmem_columns", "256"), ("tile", "[128, 128, 256]")],
            "tmem_columns",
            "256 allocated, but this needs",
        ),
        (large, &[("k_order", "split_tail(0)")], "k_order", "split_tail(0) with 28 K tiles"),
        (
            large,
            &[("k_order", "split_tail(5)"), ("tile", "[128, 128, 256]")],
            "k_order",
            "the pipeline has 4 stages",
        ),
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

#[test]
fn each_limit_of_warpgroups_is_told() {
    let large = [512, 4096, 7168];
    let bf16 = bf16(Shape::new(1, 1, 8)).formats;
    let with = |a, c| Formats::new(a, a, c);
    let swapped = ("swap_ab", "on");
    let side = ("accumulators", "side_by_side");
    let turns = ("consumers", "ping_pong");
    for (shape, formats, knobs, knob, says) in [
        (
            large,
            with(OperandFormat::Mxfp8, OutputFormat::Bf16),
            &[][..],
            "formats",
            "mxfp8 x mxfp8 -> bf16: not on sm_90a: its MMAs take no scale factors",
        ),
        (
            large,
            Formats::default(),
            &[("tile", "[96, 128, 64]")],
            "tile",
            "divides 128 or is a multiple of 64",
        ),
        (large, with(OperandFormat::Bf16, OutputFormat::Nvfp4), &[], "formats", "C with scale factors"),
        ([64, 64, 12], bf16, &[], "shape", "K = 12 is not a multiple of 8"),
        (large, bf16, &[("cta_group", "2")], "cta_group", "2: not on sm_90a: an MMA is one warpgroup's"),
        (large, bf16, &[("tmem_columns", "256")], "tmem_columns", "accumulators are in registers"),
        (large, bf16, &[("accumulator_buffers", "2")], "accumulator_buffers", "consumers = ping_pong"),
        (large, bf16, &[("accumulator_buffers", "overlapped")], "accumulator_buffers", "in registers"),
        (large, bf16, &[("store", "direct(16x256b)")], "store", "accumulators are in registers"),
        (large, bf16, &[("a_reuse", "collector")], "a_reuse", "no collector"),
        (large, bf16, &[("k_order", "split_tail(2)")], "k_order", "the warps that issue the tail's MMAs"),
        (large, bf16, &[("schedule", "dynamic")], "schedule", "no cluster launch control"),
        (large, bf16, &[("schedule", "cluster_split_k(3)")], "schedule", "a cluster has 2, 4 or 8 CTAs"),
        (
            large,
            bf16,
            &[("schedule", "cluster_split_k(2)"), ("store", "tma")],
            "schedule",
            "shared memory holds the sums",
        ),
        (large, bf16, &[("sf_preload", "all")], "sf_preload", "no scale factors"),
        (large, bf16, &[("sf_load", "bulk")], "sf_load", "no scale factors"),
        (large, bf16, &[("tile", "[96, 128, 64]")], "tile", "M = 96: warpgroups have 64 rows each"),
        (large, bf16, &[("tile", "[192, 64, 64]"), turns], "tile", "a warpgroup has 64 or 128 rows"),
        (large, bf16, &[("tile", "[128, 100, 64]")], "tile", "N = 100: one MMA has a multiple of 8 columns"),
        (large, bf16, &[("tile", "[64, 264, 64]")], "tile", "8 to 256"),
        (large, bf16, &[("tile", "[64, 136, 64]"), side], "tile", "those of both products"),
        (large, bf16, &[("tile", "[128, 128, 24]")], "tile", "K = 24"),
        (large, bf16, &[("tile", "[128, 96, 64]"), swapped], "tile", "with swap_ab, N = 96"),
        (large, bf16, &[("tile", "[4, 128, 64]"), swapped], "tile", "with swap_ab, M = 4"),
        (
            large,
            bf16,
            &[("tile", "[128, 256, 64]")],
            "tile",
            "in 2 warpgroups take 256 registers of a thread, and 192",
        ),
        (
            large,
            bf16,
            &[("tile", "[192, 128, 64]")],
            "tile",
            "in 3 warpgroups take 128 registers of a thread, and 96",
        ),
        (large, bf16, &[("tile", "[128, 128, 64]"), turns], "tile", "two accumulators of 128 x 128"),
        (large, bf16, &[swapped, side], "swap_ab", "no rows for both"),
        (
            large,
            with(OperandFormat::Bf16, OutputFormat::F32),
            &[swapped, ("store", "tma")],
            "swap_ab",
            "threads hold columns of C",
        ),
        (large, bf16, &[turns, ("schedule", "one_tile")], "consumers", "ping_pong with schedule = one_tile"),
        (large, bf16, &[turns, ("schedule", "stream_k")], "consumers", "which is persistent"),
        (large, bf16, &[turns, ("schedule", "split_k(2)")], "consumers", "whole tiles by turns"),
        (large, bf16, &[("stages", "1")], "stages", "1 with 112 K tiles"),
        (
            large,
            bf16,
            &[("stages", "8"), ("tile", "[128, 128, 64]")],
            "stages",
            "8 x 49152 (stages of A, B1, B2)",
        ),
        (large, bf16, &[("tile", "[128, 128, 512]")], "tile", "2 x 393216 (stages of A, B1, B2)"),
        (large, bf16, &[("multicast", "a(3)")], "multicast", "2, 4 or 8 CTAs"),
        (large, bf16, &[("multicast", "b(8)"), ("tile", "[128, 32, 64]")], "multicast", "32 / 8"),
        (large, bf16, &[("sms", "133")], "sms", "133 is not between 1 and 132"),
        ([64, 77, 64], bf16, &[("store", "tma")], "store", "154 bytes"),
        (
            large,
            with(OperandFormat::Bf16, OutputFormat::E4m3),
            &[("store", "tma"), ("tile", "[128, 24, 64]")],
            "store",
            "24 columns of a tile are 24 bytes",
        ),
        (
            large,
            bf16,
            &[("promotion", "off")],
            "promotion",
            "only sums of 8-bit elements' products lack bits",
        ),
        (
            large,
            with(OperandFormat::E4m3, OutputFormat::Bf16),
            &[("promotion", "every(96)"), ("tile", "[128, 64, 128]")],
            "promotion",
            "96 is no multiple of 128",
        ),
    ] {
        let [m, n, k] = shape;
        let mut config = Config::default();
        for (knob, value) in knobs {
            config.set(knob, value).unwrap();
        }
        let problem = Problem::dual(Shape::new(m, n, k), formats);
        let errors = validate(&problem, &config, Arch::Sm90a).err().unwrap_or_default();
        let told = errors.iter().find(|error| error.knob() == knob && error.to_string().contains(says));
        let Some(told) = told else { panic!("{knobs:?} should say `{says}`: {}", explain(&errors)) };
        assert!(told.hint().len() > 10, "{told}: {}", told.hint());
    }
    let config = Config { consumers: Setting::Fixed(Consumers::PingPong), ..Config::default() };
    let errors = validate(&Problem::nvfp4(Shape::new(512, 4096, 7168)), &config, Arch::Sm100a).unwrap_err();
    assert!(errors[0].to_string().contains("consumers = ping_pong: not on sm_100a"), "{}", explain(&errors));
    // One K tile takes one stage: nothing is in flight beside it.
    let config = Config { stages: Setting::Fixed(1), ..Config::default() };
    let one = Problem::dual(Shape::new(512, 4096, 64), bf16);
    assert_eq!(validate(&one, &config, Arch::Sm90a).unwrap().stages, 1);
    // Turns are taken where tiles follow each other, if nobody says otherwise.
    let config = Config { consumers: Setting::Fixed(Consumers::PingPong), ..Config::default() };
    assert_eq!(validate(&one, &config, Arch::Sm90a).unwrap().work.schedule, Schedule::Persistent);
}

/// C with scale factors through shared memory and across lanes: whole bytes in boxes, and a row of them a multiple of 16 bytes.
/// `auto` takes eight epilogue warps where their store is legal and fits, and four where it is not.
#[test]
fn auto_takes_eight_epilogue_warps_only_where_they_fit() {
    let plan = |shape, c: &str, knobs: &[(&str, &str)]| {
        let mut file = SpecFile::new(shape);
        if c == "e4m3" {
            (file.formats.a, file.formats.b) = ("e4m3".to_owned(), "e4m3".to_owned());
        }
        file.formats.c = c.to_owned();
        for (knob, value) in knobs {
            file.config.set(knob, value).unwrap();
        }
        let (spec, arch) = file.read().unwrap();
        let plan = spec.plan(file.shape(), arch).unwrap_or_else(|errors| panic!("{}", explain(&errors)));
        (plan.epilogue.column_parts, plan.stages)
    };
    let long = Shape::new(512, 4096, 7168);
    assert_eq!(plan(long, "f16", &[]).0, 2);
    // Half of 48 columns of a byte are 24 bytes.
    for n in ["48", "80", "112", "144"] {
        let tile = format!("[128, {n}, 128]");
        let knobs = [("store", "tma"), ("tile", &*tile), ("schedule", "one_tile")];
        assert_eq!(plan(Shape::new(128, 4096, 512), "e4m3", &knobs).0, 1, "{tile}");
    }
    // The staging of 32-bit elements would not fit beside all scale factors, or cost a stage.
    let all = [("sf_preload", "all"), ("tile", "[256, 128, 256]"), ("cta_group", "2")];
    assert_eq!(plan(long, "f32", &all).0, 1);
    for knobs in [&[][..], &all[..1]] {
        let (_, stages) = plan(long, "f32", knobs);
        let four = plan(long, "f32", &[knobs, &[("epilogue_warps", "4")]].concat());
        assert!(stages >= four.1, "{knobs:?}: {stages} stages, and {} with four warps", four.1);
    }
}

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
        (
            "nvfp4",
            200,
            352,
            &[("cta_group", "1"), ("tile", "[128, 128, 256]"), ("epilogue_warps", "8")],
            "u8",
            [176, 200],
            [32, 32],
        ),
        ("mxfp8", 200, 352, &[("cta_group", "1"), ("tile", "[128, 128, 256]")], "u8", [352, 200], [128, 32]),
        ("nvfp4", 200, 352, &[("swap_ab", "on"), ("tile", "[64, 128, 256]")], "u8", [176, 200], [16, 64]),
        ("mxfp8", 200, 352, &[("swap_ab", "on"), ("tile", "[64, 128, 256]")], "u8", [352, 200], [32, 64]),
    ] {
        let mut file = SpecFile::new(Shape::new(m, n, 512));
        file.formats.c = c.to_owned();
        file.config.set("store", "tma").unwrap();
        file.config.set("epilogue_warps", "4").unwrap();
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
