//! Each value of a knob makes a kernel of its own.

use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, KNOBS, Knob};
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::{FormatNames, SpecFile};

/// Values that make a kernel of their own on every chip.
const EVERYWHERE: [(&str, &str); 16] = [
    ("stages", "2"),
    ("k_order", "reverse"),
    ("k_order", "serpentine"),
    ("k_order", "odd_even"),
    ("cache", "[a: evict_first]"),
    ("cache", "[b: evict_last]"),
    ("cache", "[c: evict_first]"),
    ("strategy", "two_pass"),
    ("strategy", "second_fused"),
    ("strategy", "sequential"),
    ("schedule", "stream_k"),
    ("schedule", "split_k(2)"),
    ("schedule", "split_k(3)"),
    ("raster", "along_n"),
    ("raster", "swizzled(2)"),
    ("pdl", "on"),
];
/// Values that do so where accumulators are in registers.
const IN_REGISTERS: [(&str, &str); 5] =
    [("store", "direct"), ("swap_ab", "on"), ("schedule", "one_tile"), ("raster", "along_m"), ("sms", "9")];

#[test]
fn every_knob_value_of_warps_changes_the_ptx() {
    let instructions = |knobs: &[(&str, &str)]| {
        let tile = ("tile", "[128, 64, 128]");
        instructions_of("sm_120a", "nvfp4", &[&[tile, ("sms", "8")], knobs].concat())
    };
    let base = instructions(&[]);
    let own = [
        ("tile", "[128, 32, 128]"),
        ("tile", "[128, 128, 128]"),
        ("tile", "[64, 64, 128]"),
        ("tile", "[128, 64, 64]"),
        ("tile", "[128, 64, 256]"),
        ("cache", "[sf: evict_last]"),
    ];
    let values = [&EVERYWHERE[..], &IN_REGISTERS, &own].concat();
    let texts = texts(&values, "[64, 128, 128]", instructions);
    all_differ(&base, &values, &texts);
    let config = settled("sm_120a", "nvfp4", &[("tile", "[128, 64, 128]"), ("sms", "8")]);
    all_rows_are_tried(Arch::Sm120a, &config, &values);
}

#[test]
fn every_knob_value_of_warpgroups_changes_the_ptx() {
    let instructions = |knobs: &[(&str, &str)]| {
        let tile = ("tile", "[128, 64, 64]");
        instructions_of("sm_90a", "bf16", &[&[tile, ("sms", "8")], knobs].concat())
    };
    let base = instructions(&[]);
    let own = [
        ("tile", "[128, 96, 64]"),
        ("tile", "[64, 64, 64]"),
        ("tile", "[192, 64, 64]"),
        ("tile", "[256, 64, 64]"),
        ("tile", "[128, 64, 32]"),
        ("tile", "[128, 64, 128]"),
        ("consumers", "ping_pong"),
        ("accumulators", "separate"),
        ("multicast", "a(2)"),
        ("multicast", "a(4)"),
        ("multicast", "b(2)"),
        ("schedule", "cluster_split_k(2)"),
        ("schedule", "cluster_split_k(4)"),
    ];
    let values = [&EVERYWHERE[..], &IN_REGISTERS, &own].concat();
    let texts = texts(&values, "[64, 128, 64]", instructions);
    all_differ(&base, &values, &texts);
    let config = settled("sm_90a", "bf16", &[("tile", "[128, 64, 64]"), ("sms", "8")]);
    all_rows_are_tried(Arch::Sm90a, &config, &values);
    // How long the tensor core adds up 8-bit operands by itself.
    let sums = ["off", "every(128)", "every(256)", "every(1024)"]
        .map(|value| instructions_of("sm_90a", "e4m3", &[("tile", "[128, 64, 128]"), ("promotion", value)]));
    for (i, text) in sums.iter().enumerate() {
        assert!(!sums[..i].contains(text), "the same kernel twice: {i}");
    }
    assert!(sums[1] == instructions_of("sm_90a", "e4m3", &[("tile", "[128, 64, 128]")]));
    // What auto settles is what it says.
    for value in
        [("consumers", "cooperative"), ("schedule", "persistent"), ("store", "tma"), ("swap_ab", "off")]
    {
        assert!(instructions(&[value]) == base, "{value:?}");
    }
    // No word of what the chip has not.
    for text in texts.iter().chain([&base]) {
        assert!(!text.contains("tcgen05") && !text.contains("tmem"), "{text}");
    }
}

/// Each row of the table that the chip honours with most formats is what `base` has, or one of `tried`.
fn all_rows_are_tried(arch: Arch, base: &Config, tried: &[(&str, &str)]) {
    for (knob, (_, settled)) in KNOBS.iter().zip(base.entries()) {
        for value in knob.values {
            let alone = Knob { values: std::slice::from_ref(value), has_auto: false, ..*knob };
            let known = tried.iter().any(|(name, text)| *name == knob.name && value.covers(text));
            assert!(
                known || value.covers(&settled) || alone.draws(arch.tensor_core()).is_empty(),
                "{arch}: {} = {} is not tried",
                knob.name,
                value.spelling
            );
        }
    }
}

/// The kernel of each value; where weights take 128 rows and tokens 64 columns, with the tile `swapped`.
fn texts(
    values: &[(&str, &str)],
    swapped: &str,
    instructions: impl Fn(&[(&str, &str)]) -> String,
) -> Vec<String> {
    let text = |value: &(&str, &str)| match *value {
        ("swap_ab", _) => instructions(&[*value, ("tile", swapped)]),
        _ => instructions(&[*value]),
    };
    values.iter().map(text).collect()
}

/// No value of a knob makes the kernel `base`, no two make the same.
fn all_differ(base: &str, values: &[(&str, &str)], texts: &[String]) {
    for (i, text) in texts.iter().enumerate() {
        // `assert!`, not `assert_ne!`: the texts are a thousand lines each.
        assert!(text != base, "{:?} changes nothing", values[i]);
        for (j, other) in texts.iter().enumerate().take(i) {
            assert!(text != other, "{:?} and {:?} make the same kernel", values[i], values[j]);
        }
    }
}

/// Instructions only: the header's comments name every knob.
fn instructions(knobs: &[(&str, &str)]) -> String {
    // Small enough a tile that every value is legal beside it.
    instructions_of("sm_100a", "nvfp4", &[&[("tile", "[128, 128, 128]")], knobs].concat())
}

/// The same on another chip, of operands in a format.
fn instructions_of(arch: &str, operands: &str, knobs: &[(&str, &str)]) -> String {
    let file = file(arch, operands, knobs);
    let (spec, arch) = file.read().unwrap();
    let ptx = spec.kernel(file.shape(), arch).unwrap().ptx;
    let code: Vec<&str> = ptx.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.join("\n")
}

/// What a kernel settles on.
fn settled(arch: &str, operands: &str, knobs: &[(&str, &str)]) -> Config {
    let file = file(arch, operands, knobs);
    let (spec, arch) = file.read().unwrap();
    spec.plan(file.shape(), arch).unwrap().config
}

fn file(arch: &str, operands: &str, knobs: &[(&str, &str)]) -> SpecFile {
    let mut file = SpecFile::new(Shape::new(512, 1024, 2048));
    file.arch = arch.to_owned();
    file.formats = FormatNames { a: operands.into(), b: operands.into(), ..file.formats };
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    file
}

#[test]
fn every_knob_value_changes_the_ptx() {
    let base = instructions(&[]);
    let own = [
        ("tile", "[128, 64, 256]"),
        ("k_order", "forward"),
        ("k_order", "split_tail(1)"),
        ("k_order", "split_tail(2)"),
        ("sf_preload", "ahead(1)"),
        ("sf_preload", "ahead(2)"),
        ("sf_preload", "all"),
        ("accumulators", "side_by_side"),
        ("a_reuse", "none"),
        ("cache", "none"),
        ("cache", "[sf: evict_normal]"),
        ("store", "direct"),
        ("swap_ab", "on"),
        ("multicast", "a(2)"),
        ("multicast", "a(4)"),
        ("multicast", "b(2)"),
        ("sf_load", "tensor_map"),
        ("schedule", "persistent"),
        ("schedule", "dynamic"),
        ("schedule", "cluster_split_k(2)"),
        ("schedule", "cluster_split_k(4)"),
        ("store", "direct(32x32b, 8)"),
        ("store", "direct(32x32b, 16)"),
        ("store", "direct(16x256b)"),
        ("store", "direct(16x256b, 16)"),
        ("store", "direct(16x128b)"),
        ("store", "direct(16x64b)"),
    ];
    let values = [&EVERYWHERE[..], &own].concat();
    let texts: Vec<String> = values.iter().map(|value| instructions(&[*value])).collect();
    all_differ(&base, &values, &texts);
    // These are tried below.
    let below = [
        ("sms", "9"),
        ("accumulator_buffers", "1"),
        ("accumulator_buffers", "overlapped"),
        ("cta_group", "2"),
        ("ctas_per_sm", "2"),
        ("epilogue_warps", "4"),
        ("epilogue_warps", "8"),
        ("store", "tma"),
    ];
    let below = [&below[..], &[("sf_load", "multicast"), ("tmem_columns", "512")]].concat();
    let config = settled("sm_100a", "nvfp4", &[("tile", "[128, 128, 128]")]);
    all_rows_are_tried(Arch::Sm100a, &config, &[&values[..], &below].concat());
    // `auto` takes eight epilogue warps and a TMA store, or neither.
    let finished = |warps, store| instructions(&[("epilogue_warps", warps), ("store", store)]);
    let four = [finished("4", "direct"), finished("4", "tma")];
    let eight = [finished("8", "direct"), finished("8", "tma")];
    assert!(four[0] != four[1] && eight[0] != eight[1] && four[0] != eight[0] && four[1] != eight[1]);
    assert!(base == eight[1] && instructions(&[("store", "direct")]) == four[0]);
    // SMs count where the grid is made for them; buffers where a tile leaves room for two.
    let persistent = ("schedule", "persistent");
    assert!(instructions(&[persistent, ("sms", "9")]) != instructions(&[persistent]));
    let narrow = [persistent, ("tile", "[128, 64, 128]")];
    let single = [persistent, ("tile", "[128, 64, 128]"), ("accumulator_buffers", "1")];
    assert!(instructions(&narrow) != instructions(&single));
    let buffers = |value| instructions(&[persistent, ("accumulator_buffers", value)]);
    assert!(buffers("1") != buffers("overlapped"));
    assert!(buffers("auto") == buffers("overlapped"));
    // Two CTAs of an SM have tiles that fit half of its tensor memory, and fill the chip with twice as many.
    let halves = [persistent, ("tile", "[128, 64, 128]"), ("ctas_per_sm", "2")];
    assert!(instructions(&narrow) != instructions(&halves));
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
    assert!(base == instructions(&[("k_order", "split_tail(3)")]));
    // A pair has another tile.
    let two = [("cta_group", "2"), ("tile", "auto")];
    assert!(instructions(&two) != instructions(&[("cta_group", "1"), ("tile", "auto")]));
    // A tile of 128 columns needs all of TMEM as it is; a narrower one leaves a choice.
    let narrow = ("tile", "[128, 64, 128]");
    assert!(instructions(&[narrow]) != instructions(&[narrow, ("tmem_columns", "512")]));
}
