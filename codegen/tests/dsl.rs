//! The language of `dual_gemm!`: what its forms mean, and that every mistake is told where it is.

use proc_macro2::TokenStream;
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{
    AReuse, Accumulators, Buffers, CacheHints, Config, CtaGroup, CtasPerSm, EpilogueWarps, Eviction, KNOBS,
    KOrder, Multicast, Raster, Schedule, Setting, SfLoad, SfPreload, Store, Strategy, Switch, Tile, TmemLoad,
    TmemShape,
};
use silumin_codegen::dsl::{DSL_KNOBS, Declaration, Input, Item, parse};
use silumin_codegen::problem::{Formats, Operation, PreactivationFormat, Shape};
use silumin_codegen::spec::{DEFAULT_GEMM_NAME, DEFAULT_NAME, Spec};
use syn::parse::{ParseStream, Parser};

fn tokens(text: &str) -> TokenStream {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn input_of(operation: Operation, text: &str) -> syn::Result<Input> {
    (|input: ParseStream| parse(operation, input)).parse2(tokens(text))
}

fn input(text: &str) -> syn::Result<Input> {
    input_of(Operation::DualGemm, text)
}

fn expand(tokens: TokenStream) -> TokenStream {
    silumin_codegen::dsl::expand(Operation::DualGemm, tokens)
}

fn declared(text: &str) -> Declaration {
    match input(text) {
        Ok(Input::Expression(declaration)) => *declaration,
        Ok(Input::Items(_)) => panic!("{text}: an item"),
        Err(error) => panic!("{text}: {:?}", messages(error)),
    }
}

fn items(text: &str) -> Vec<Item> {
    match input(text) {
        Ok(Input::Items(items)) => items,
        Ok(Input::Expression(_)) => panic!("{text}: an expression"),
        Err(error) => panic!("{text}: {:?}", messages(error)),
    }
}

fn messages(error: syn::Error) -> Vec<String> {
    error.into_iter().map(|error| error.to_string()).collect()
}

/// Asserts that `text` is refused with exactly these errors: what is underlined, and parts of the
/// message. An error at the end of the input underlines nothing.
fn refused(text: &str, expected: &[(&str, &[&str])]) {
    let Err(error) = input(text) else { panic!("{text}: taken") };
    let found: Vec<(String, String)> = error
        .into_iter()
        .map(|error| {
            let (start, end) = (error.span().start(), error.span().end());
            assert!(start.line == 1 && end.line == 1, "{text}: one line");
            (text[start.column..end.column].to_owned(), error.to_string())
        })
        .collect();
    assert_eq!(found.len(), expected.len(), "{text}: {found:#?}");
    for ((place, message), (expected_place, parts)) in found.iter().zip(expected) {
        assert_eq!(place, expected_place, "{text}: {message}");
        for part in *parts {
            assert!(message.contains(part), "{text}: {message:?} lacks {part:?}");
        }
    }
}

fn swiglu() -> Spec {
    Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &Arch::ALL).unwrap()
}

#[test]
fn everything_may_be_left_out() {
    let expected = Declaration { spec: swiglu(), shape: None, notes: Vec::new() };
    for text in [
        "silu(A @ B1) * (A @ B2)",
        "<> silu(A @ B1) * (A @ B2)",
        "<>silu(A@B1)*(A@B2)",
        "<nvfp4 -> f16> silu(A @ B1) * (A @ B2)",
        "<nvfp4->f16,> silu(A @ B1) * (A @ B2),",
        "<A: nvfp4, B: nvfp4, C: f16> silu(A @ B1) * (A @ B2)",
        "<out: f16, B2: nvfp4, B1: nvfp4> silu(A @ B1) * (A @ B2)",
        "<B1: nvfp4, stages = auto, C: f16, tile = auto> silu(A @ B1) * (A @ B2)",
    ] {
        assert_eq!(declared(text), expected, "{text}");
    }
    for text in
        ["<arch = sm_100a> silu(A @ B1) * (A @ B2)", "<arch = [sm_100a, sm_100a]> silu(A @ B1) * (A @ B2)"]
    {
        let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        assert_eq!(declared(text), Declaration { spec, shape: None, notes: Vec::new() }, "{text}");
    }
    assert_eq!(expected.spec.name, DEFAULT_NAME);
    assert_eq!(expected.spec.formats, Formats::default());
}

#[test]
fn one_spec_serves_several_chips() {
    let several = declared("<bf16 -> bf16, arch = [sm_100a, sm_90a]> silu(A @ B1) * (A @ B2)").spec;
    assert_eq!(several.code, swiglu().code);
    let shape = Shape::new(512, 1024, 1024);
    for (arch, mma) in [(Arch::Sm90a, "wgmma.mma_async"), (Arch::Sm100a, "tcgen05.mma")] {
        let ptx = several.kernel(shape, arch).unwrap().ptx;
        assert!(ptx.contains(&format!(".target {arch}\n")) && ptx.contains(mma), "{arch}");
    }
    let hopper =
        declared("<bf16 -> bf16, arch = sm_90a, consumers = ping_pong> silu(A @ B1) * (A @ B2)").spec;
    assert_eq!(hopper.code.len(), 1);
    let error = hopper.kernel(shape, Arch::Sm100a).unwrap_err().to_string();
    assert!(error.contains("consumers = ping_pong: not on sm_100a"), "{error}");
}

#[test]
fn chips_that_are_named_must_all_take_it_and_of_others_one() {
    let gate = "silu(A @ B1) * (A @ B2)";
    // Nobody asked for sm_90a: its knob is taken with formats that it has, tensor memory's with those that others have.
    for text in
        ["bf16 -> bf16, consumers = ping_pong", "bf16 -> bf16, cta_group = 2", "nvfp4 -> f16, cta_group = 2"]
    {
        declared(&format!("<{text}> {gate}"));
    }
    refused(
        &format!("<mxfp8 -> f16, arch = [sm_90a, sm_100a]> {gate}"),
        &[(
            "mxfp8 -> f16",
            &["mxfp8 x mxfp8 -> f16: not on sm_90a", "(on sm_90a)", "use nvfp4, mxfp4, bf16"],
        )],
    );
    refused(
        &format!("<bf16 -> bf16, arch = [sm_90a, sm_100a], consumers = ping_pong> {gate}"),
        &[("ping_pong", &["accumulators are in tensor memory", "(on sm_100a)"])],
    );
    refused(
        &format!("<bf16 -> bf16, arch = sm_90a, ctas_per_sm = 2> {gate}"),
        &[("2", &["accumulators are in registers"])],
    );
    refused(
        &format!("<bf16 -> bf16, arch = sm_90a, cta_group = 2> {gate}"),
        &[("2", &["an MMA is one warpgroup's"])],
    );
    // No chip takes it: what is told is told of one that has the formats and the knobs.
    refused(
        &format!("<tile = [128, 100, 256]> {gate}"),
        &[("[128, 100, 256]", &["is a multiple of 8, from 8 to 256"])],
    );
    refused(
        &format!("<bf16 -> bf16, consumers = cooperative, tile = [100, 128, 64]> {gate}"),
        &[("[100, 128, 64]", &["64, 128, 192 or 256"])],
    );
}

#[test]
fn operands_are_called_what_the_gate_calls_them() {
    for text in [
        "<X: nvfp4, Wg: nvfp4, Wu: nvfp4, Y: f16> silu(X @ Wg) * (X @ Wu)",
        "<A: nvfp4, B: nvfp4, C: f16> silu(X @ Wg) * (X @ Wu)",
        "<C: nvfp4, A: nvfp4, D: nvfp4, E: f16> silu(C @ A) * (C @ D)",
    ] {
        assert_eq!(declared(text).spec.formats, Formats::default(), "{text}");
    }
}

#[test]
fn every_knob_is_read() {
    let text = "<nvfp4 -> f16, tile = [256, 64, 2_56], cta_group = 2, ctas_per_sm = 1, stages = 3, k_order = split_tail (2),
         sf_preload = ahead(1), accumulators = separate, a_reuse = collector, tmem_columns = 256,
         cache = [a: evict_last, sf: evict_normal], store = tma, strategy = interleaved, schedule = persistent,
         raster = swizzled(4), swap_ab = off, multicast = none, consumers = auto, promotion = auto, sf_load = tensor_map, sms = 100, accumulator_buffers = 1, epilogue_warps = 8, pdl = on, shape = [256, 4_096, 7168],
         batch = 2, arch = sm_100a, preactivations = bf16> bilinear";
    let text = text.replace("bilinear", "(A @ B1) * (A @ B2)").replace('\n', " ");
    let declaration = declared(&text);
    let config = Config {
        strategy: Setting::Fixed(Strategy::Interleaved),
        accumulator_buffers: Setting::Fixed(Buffers::Whole(1)),
        epilogue_warps: Setting::Fixed(EpilogueWarps::Eight),
        schedule: Setting::Fixed(Schedule::Persistent),
        raster: Setting::Fixed(Raster::Swizzled(4)),
        swap_ab: Setting::Fixed(Switch::Off),
        multicast: Multicast::None,
        consumers: Setting::Auto,
        promotion: Setting::Auto,
        sf_load: Setting::Fixed(SfLoad::TensorMap),
        sms: Setting::Fixed(100),
        pdl: Switch::On,
        tile: Setting::Fixed(Tile { m: 256, n: 64, k: 256 }),
        cta_group: Setting::Fixed(CtaGroup::Two),
        ctas_per_sm: Setting::Fixed(CtasPerSm::One),
        stages: Setting::Fixed(3),
        k_order: Setting::Fixed(KOrder::SplitTail(2)),
        sf_preload: SfPreload::Ahead(1),
        accumulators: Setting::Fixed(Accumulators::Separate),
        a_reuse: Setting::Fixed(AReuse::Collector),
        tmem_columns: Setting::Fixed(256),
        cache: Setting::Fixed(CacheHints {
            a: Some(Eviction::Last),
            sf: Some(Eviction::Normal),
            ..CacheHints::default()
        }),
        store: Setting::Fixed(Store::Tma),
    };
    assert_eq!(declaration.spec.config, config);
    assert_eq!(declaration.shape, Some(Shape::new(256, 4096, 7168).batch(2)));
    assert_eq!(declaration.spec.formats.preactivations, Some(PreactivationFormat::Bf16));
    let grouped = "<shape = [256, 4_096, 7168], groups = 1_2> (A @ B1) * (A @ B2)";
    assert_eq!(declared(grouped).shape, Some(Shape::new(256, 4096, 7168).grouped(12)));
    let text = text + grouped;
    for knob in KNOBS.iter().chain(&DSL_KNOBS) {
        assert!(text.contains(&format!("{} =", knob.name)), "{} is not tested", knob.name);
    }
}

#[test]
fn loads_of_accumulators_are_read_with_and_without_their_width() {
    for (text, load) in [
        ("direct(16x256b)", TmemLoad { shape: TmemShape::S16x256b, chunk: None }),
        ("direct (16x64b, 1_6)", TmemLoad { shape: TmemShape::S16x64b, chunk: Some(16) }),
        ("direct(32x32b, 8)", TmemLoad { shape: TmemShape::S32x32b, chunk: Some(8) }),
        ("direct(16x128b, 32)", TmemLoad { shape: TmemShape::S16x128b, chunk: Some(32) }),
    ] {
        let brackets =
            format!("<store = {text}, tile = [128, 64, 256], swap_ab = off> silu(A @ B1) * (A @ B2)");
        let config = declared(&brackets).spec.config;
        assert_eq!(config.store, Setting::Fixed(Store::DirectBy(load)), "{text}");
        let again = declared(&format!("<{config}> silu(A @ B1) * (A @ B2)")).spec.config;
        assert_eq!(config, again);
    }
}

#[test]
fn accumulators_that_do_not_go_with_the_rest_are_refused() {
    for (brackets, place, says) in [
        (
            "accumulator_buffers = overlapped, tile = [128, 192, 256]",
            "overlapped",
            "would share 192 of the 192 columns",
        ),
        (
            "accumulator_buffers = overlapped, schedule = split_k(2)",
            "overlapped",
            "overlapped with schedule = split_k(2): a CTA computes one tile",
        ),
        ("store = direct(16x256b), swap_ab = on", "direct(16x256b)", "rows of C"),
        ("store = direct(16x32b)", "direct(16x32b)", "SHAPE = 32x32b | 16x256b"),
        (
            "nvfp4 -> nvfp4, store = direct(16x64b)",
            "direct(16x64b)",
            "the 16 columns of nvfp4 that share a scale factor",
        ),
        (
            "nvfp4 -> mxfp8, swap_ab = off, store = direct(32x32b, 8)",
            "direct(32x32b, 8)",
            "mxfp8 are finished 32 columns at a time",
        ),
    ] {
        brackets_refused(&format!("<{brackets}>"), &[(place, &[says])]);
    }
}

#[test]
fn what_knobs_print_is_what_the_brackets_take() {
    let text = "tile = [128, 128, 256], k_order = reverse, sf_preload = all, cache = none, stages = 2, \
                accumulators = side_by_side, a_reuse = none, store = direct, tmem_columns = 512, \
                schedule = dynamic, raster = along_n, pdl = on, accumulator_buffers = overlapped";
    let config = declared(&format!("<{text}> silu(A @ B1) * (A @ B2)")).spec.config;
    let again = declared(&format!("<{config}> silu(A @ B1) * (A @ B2)")).spec.config;
    assert_eq!(config, again);
}

#[test]
fn old_names_are_read_with_a_warning_under_the_name() {
    let [old, new] = ["products", "preactivations"]
        .map(|name| declared(&format!("<{name} = bf16> silu(A @ B1) * (A @ B2)")));
    assert_eq!(old.spec, new.spec);
    assert_eq!(old.spec.formats.preactivations, Some(PreactivationFormat::Bf16));
    assert!(new.notes.is_empty());
    let notes: Vec<&str> = old.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(notes, ["`products` is written `preactivations` now"]);
    brackets_refused("<products = f32, preactivations = f32>", &[("preactivations", &["already"])]);
}

#[test]
fn old_spellings_are_read_with_a_warning_under_the_value() {
    for knob in &KNOBS {
        for value in knob.values {
            let Some(old) = value.samples.formerly else { continue };
            let [old, new] = [old, value.spelling]
                .map(|text| declared(&format!("<{} = {text}> silu(A @ B1) * (A @ B2)", knob.name)));
            assert_eq!(old.spec, new.spec);
            assert!(new.notes.is_empty());
            assert_eq!(old.notes.len(), 1, "{}", knob.name);
            assert!(old.notes[0].text.contains(&format!("is written `{}` now", value.spelling)));
        }
    }
    let expression = "<k_order = ping_pong> silu(A @ B1) * (A @ B2)";
    for text in [expression.to_owned(), "Old<k_order = ping_pong> = silu(A @ B1) * (A @ B2);".to_owned()] {
        let expanded = expand(tokens(&text)).to_string();
        assert!(expanded.contains("deprecated") && expanded.contains("`serpentine`"), "{expanded}");
        assert!(!expand(tokens(&text.replace("ping_pong", "serpentine"))).to_string().contains("deprecated"));
    }
}

#[test]
fn a_scalar_with_the_name_of_a_vector_or_matrix_is_warned_of() {
    for (gate, written) in [
        ("silu(A @ B1 + bias) * (A @ B2)", Some("`bias[n]`")),
        ("silu(A @ B1 + bias1) * (A @ B2 + bias1)", Some("`bias1[n]`")),
        ("silu(A @ B1) * (A @ B2 + up_bias)", Some("`up_bias[n]`")),
        ("silu(A @ B1) * (A @ B2 + residual)", Some("`residual[m, n]`")),
        ("silu(A @ B1 + bias[n]) * (A @ B2 + residual[m, n])", None),
        ("silu(alpha * (A @ B1) + biased) * (A @ B2)", None),
    ] {
        let declaration = declared(&format!("<bf16 -> bf16> {gate}"));
        let notes: Vec<&str> = declaration.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(notes.len(), usize::from(written.is_some()), "{gate}: {notes:?}");
        assert!(written.is_none_or(|written| notes[0].contains(written)), "{notes:?}");
    }
    // The program compiles, with the warning under the name.
    let expanded = expand(tokens("<bf16 -> bf16> silu(A @ B1 + bias) * (A @ B2)")).to_string();
    assert!(expanded.contains("deprecated") && expanded.contains("ONE_NUMBER"), "{expanded}");
}

#[test]
fn side_by_side_stands_for_interleaved_rows_where_weights_are_decoded() {
    let declared = |formats: &str, value: &str| {
        declared(&format!("<{formats}, accumulators = {value}> silu(A @ B1) * (A @ B2)"))
    };
    let decoded = "A: bf16, B: nvfp4, C: bf16, arch = sm_90a";
    let (old, new) = (declared(decoded, "side_by_side"), declared(decoded, "interleaved_rows"));
    assert!(old.notes.len() == 1 && old.notes[0].text.contains("`interleaved_rows`"), "{:?}", old.notes);
    assert!(new.notes.is_empty());
    assert!(declared("bf16 -> bf16", "side_by_side").notes.is_empty());
    assert!(declared("nvfp4 -> f16", "side_by_side").notes.is_empty());
    // The same kernel, but for what was asked.
    let shape = Shape::new(128, 1024, 2048);
    let [old, new] = [old, new].map(|declaration| declaration.spec.kernel(shape, Arch::Sm90a).unwrap());
    assert!(old.ptx == new.ptx && old.ptx.contains("accumulators = interleaved_rows"));
    // Nothing else has such rows.
    for (formats, says) in [
        ("bf16 -> bf16, arch = sm_90a", "weights that are decoded"),
        ("nvfp4 -> f16, arch = sm_100a", "not on sm_100a"),
    ] {
        brackets_refused(
            &format!("<{formats}, accumulators = interleaved_rows>"),
            &[("interleaved_rows", &[says])],
        );
    }
}

#[test]
fn items_are_named_and_keep_their_attributes() {
    let items = items(
        "/// Doc.
         #[allow(dead_code)] pub(crate) SwiGlu<nvfp4 -> f16, stages = 2> = silu(A @ B1) * (A @ B2);
         GeGlu = gelu(A @ B1) * (A @ B2);",
    );
    let names: Vec<String> = items.iter().map(|item| item.name.to_string()).collect();
    assert_eq!(names, ["SwiGlu", "GeGlu"]);
    assert_eq!(items[0].attributes.len(), 2);
    assert!(matches!(items[0].visibility, syn::Visibility::Restricted(_)));
    assert!(matches!(items[1].visibility, syn::Visibility::Inherited));
    assert_eq!(items[0].declaration.spec.name, "SwiGlu");
    assert_eq!(items[0].declaration.spec.config.stages, Setting::Fixed(2));
    let shape = Shape::new(128, 128, 256);
    let kernel = items[1].declaration.spec.kernel(shape, Arch::Sm100a).unwrap();
    assert_eq!(kernel.name, "GeGlu_n128_k256_m00128");
}

#[test]
fn the_expansion_is_what_the_form_says() {
    let expression = expand(tokens("<shape = [1, 64, 64]> silu(A @ B1) * (A @ B2)"));
    let syn::Expr::MethodCall(call) = syn::parse2(expression).unwrap() else { panic!("no method call") };
    assert_eq!(call.method, "with_shape");
    let file = expand(tokens("/// Doc.\npub SwiGlu = silu(A @ B1) * (A @ B2); Other = (A @ B1) * (A @ B2);"));
    let file: syn::File = syn::parse2(file).unwrap();
    assert_eq!(file.items.len(), 2);
    let syn::Item::Static(first) = &file.items[0] else { panic!("no static") };
    assert_eq!(first.ident, "SwiGlu");
    assert!(matches!(first.vis, syn::Visibility::Public(_)));
    assert!(first.attrs.iter().any(|attribute| attribute.path().is_ident("doc")));
}

#[test]
fn errors_expand_to_what_their_place_takes() {
    let two_errors = "<stages = many, tile = 3> silu(A @ B1) * (A @ B2)";
    let syn::Expr::Block(block) = syn::parse2(expand(tokens(two_errors))).unwrap() else {
        panic!("no block")
    };
    assert_eq!(block.block.stmts.len(), 2);
    let file: syn::File =
        syn::parse2(expand(tokens("X<stages = many, tile = 3> = silu(A @ B1) * (A @ B2);"))).unwrap();
    assert_eq!(file.items.len(), 2);
}

const GATE: &str = "silu(A @ B1) * (A @ B2)";

/// [`refused`] for brackets.
fn brackets_refused(brackets: &str, expected: &[(&str, &[&str])]) {
    refused(&format!("{brackets} {GATE}"), expected);
}

#[test]
fn malformed_brackets() {
    refused("<nvfp4 -> f16", &[("<", &["no closing `>`"])]);
    refused("<stages = auto silu(A @ B1) * (A @ B2)", &[("<", &["no closing `>`"])]);
    brackets_refused("<nvfp4 -> f16", &[("silu", &["expected `,` or `>`"])]);
    brackets_refused("<nvfp4>", &[("nvfp4", &["`nvfp4` is not an entry", "nvfp4 -> f16"])]);
    brackets_refused("<-> f16>", &[("-", &["expected formats"])]);
    brackets_refused("<nvfp4 ->>", &[(">", &["name of a format"])]);
    brackets_refused("<A: 3>", &[("3", &["name of a format"])]);
    brackets_refused("<128, stages = 2>", &[("128", &["expected formats", "or a knob"])]);
    brackets_refused("<,>", &[(",", &["expected formats"])]);
    brackets_refused("<stages = , tile = auto>", &[("=", &["`stages` is given no value"])]);
    brackets_refused("<stages == 2>", &[("stages", &["not an entry"])]);
}

#[test]
fn formats_are_known_and_given_once() {
    brackets_refused("<fp4 -> f16>", &[("fp4", &["`fp4` is not an operand format", "nvfp4"])]);
    brackets_refused("<nvfp4 -> f61>", &[("f61", &["`f61` is not an output format", "f16"])]);
    brackets_refused(
        "<A: fp4, B2: x, C: y>",
        &[("fp4", &["operand"]), ("x", &["operand"]), ("y", &["output"])],
    );
    brackets_refused("<nvfp4 -> f16, nvfp4 -> f16>", &[("nvfp4 -> f16", &["given already"])]);
    brackets_refused("<A: nvfp4, nvfp4 -> f16>", &[("A: nvfp4", &["given already"])]);
    brackets_refused("<A: nvfp4, A: nvfp4>", &[("A", &["left operand's format is given already"])]);
    brackets_refused("<B: nvfp4, B1: nvfp4>", &[("B1", &["right operands' format", "of `B`"])]);
    brackets_refused("<B2: nvfp4, B2: nvfp4>", &[("B2", &["right operands' format"])]);
    brackets_refused("<B1: nvfp4, B2: mxfp4>", &[("mxfp4", &["`B1` is nvfp4, and `B2` has the same"])]);
    brackets_refused(
        "<A: nvfp4, B: bf16>",
        &[("A: nvfp4, B: bf16", &["no MMA multiplies nvfp4 by bf16", "goes with: nvfp4"])],
    );
    let mixed = declared("<A: mxfp8, B: mxfp4, C: bf16> silu(A @ B1) * (A @ B2)").spec.formats;
    assert_eq!(mixed.to_string(), "mxfp8 x mxfp4 -> bf16");
    brackets_refused(
        "<C: f16, D: f16>",
        &[("D", &["output's format is given already", "`A`, `B1` and `B2`"])],
    );
    let scaled = "<alpha: f16> silu(alpha * (A @ B1)) * (alpha * (A @ B2))";
    refused(scaled, &[("alpha", &["`alpha` is a scalar", "f32"])]);
}

#[test]
fn knobs_are_known_and_given_once() {
    brackets_refused(
        "<stagse = 4>",
        &[("stagse", &["no knob `stagse`", "did you mean `stages`", "shape, batch, groups, arch"])],
    );
    brackets_refused("<cluster = 2>", &[("cluster", &["no knob", "the knobs are: strategy, tile"])]);
    brackets_refused("<tiles = 2>", &[("tiles", &["did you mean `tile`"])]);
    brackets_refused("<k = 2>", &[("k", &["no knob `k`;"])]);
    brackets_refused("<acc = separate>", &[("acc", &["did you mean `accumulators`"])]);
    brackets_refused("<stages = 2, tile = auto, stages = 2>", &[("stages", &["given a value already"])]);
    brackets_refused("<shape = [1, 64, 64], shape = [1, 64, 64]>", &[("shape", &["already"])]);
}

#[test]
fn values_are_what_the_knob_takes() {
    brackets_refused("<stages = many>", &[("many", &["`many` is not a value of `stages`", "auto | 1..32"])]);
    brackets_refused("<tile = [128,128]>", &[("[128,128]", &["`[128, 128]` is not a value", "[M, N, K]"])]);
    brackets_refused("<stages = -1>", &[("-1", &["`-1` is not"])]);
    brackets_refused("<stages = 4u32>", &[("4u32", &["`4u32` is not"])]);
    brackets_refused("<k_order = split_tail>", &[("split_tail", &["split_tail(T)"])]);
    brackets_refused("<k_order = split_tail(1, 2)>", &[("split_tail(1, 2)", &["`split_tail(1, 2)`"])]);
    brackets_refused("<stages = auto nvfp4 -> f16>", &[("auto nvfp4 -> f16", &["`auto nvfp4->f16`"])]);
    brackets_refused(
        "<cache = [a: evict_never]>",
        &[("[a: evict_never]", &["`[a: evict_never]`", "evict_last"])],
    );
    brackets_refused("<shape = 4096>", &[("4096", &["`4096` is not a value of `shape`", "[M, N, K]"])]);
    brackets_refused("<shape = [1, 2, 3, 4]>", &[("[1, 2, 3, 4]", &["`shape`"])]);
    brackets_refused("<shape = [1, -2, 3]>", &[("[1, -2, 3]", &["`shape`"])]);
    brackets_refused(
        "<preactivations = e4m3>",
        &[("e4m3", &["`e4m3` is not a format of pre-activations", "none, f32, bf16, f16"])],
    );
    brackets_refused("<preactivations = f32, preactivations = f32>", &[("preactivations", &["already"])]);
    brackets_refused("<arch = sm_80>", &[("sm_80", &["`sm_80` is not a chip", "sm_100a"])]);
    brackets_refused("<arch = [sm_100a, b200]>", &[("[sm_100a, b200]", &["`b200`"])]);
    let deep = format!("<tile = {}1{}>", "[".repeat(60), "]".repeat(60));
    let value = format!("{}1{}", "[".repeat(60), "]".repeat(60));
    brackets_refused(&deep, &[(&value, &["is not a value of `tile`"])]);
}

#[test]
fn errors_of_brackets_and_gate_are_told_together() {
    refused(
        "<stages = many, fp4 -> f16, stores = tma> swish(A @ B1) * (A @ B2)",
        &[
            ("fp4", &["not an operand format"]),
            ("many", &["stages"]),
            ("stores", &["did you mean `store`"]),
            ("swish", &["unknown function", "`silu`"]),
        ],
    );
}

#[test]
fn with_a_shape_everything_is_checked() {
    brackets_refused(
        "<shape = [256, 4096, 7170]>",
        &[("[256, 4096, 7170]", &["K = 7170 is not a multiple of 32", "\nhelp: pad K with zeros to 7200"])],
    );
    brackets_refused("<shape = [0, 64, 64]>", &[("[0, 64, 64]", &["M = 0"])]);
    brackets_refused(
        "<tile = [128, 96, 256], shape = [256, 4096, 7168]>",
        &[("[128, 96, 256]", &["43 tiles along N", "help: use a multiple of 64"])],
    );
    brackets_refused(
        "<shape = [256, 4097, 7168], store = tma>",
        &[("tma", &["a row of C is 8194 bytes", "help: use store = direct"])],
    );
    brackets_refused(
        "<shape = [256, 4096, 512], k_order = split_tail(9)>",
        &[("split_tail(9)", &["2 K tiles"])],
    );
    // Legal for short K only; no knob that was written is too large on its own.
    declared("<sf_preload = all, shape = [128, 64, 1024]> silu(A @ B1) * (A @ B2)");
    brackets_refused(
        "<sf_preload = all, shape = [128, 64, 1048576]>",
        &[("all", &["shared memory holds 232448 bytes", " = ", "help: use per_stage"])],
    );
}

#[test]
fn without_a_shape_what_fits_none_is_an_error() {
    brackets_refused(
        "<tile = [128, 256, 256]>",
        &[(
            "[128, 256, 256]",
            &["512 columns, this needs 2 x 256 (accumulators)", "= 592", "help: use a smaller tile N"],
        )],
    );
    brackets_refused(
        "<tile = [256, 128, 256], cta_group = 1>",
        &[("[256, 128, 256]", &["M = 256", "help: write cta_group = 2"])],
    );
    brackets_refused(
        "<tile = [128, 100, 96]>",
        &[("[128, 100, 96]", &["N = 100"]), ("[128, 100, 96]", &["K = 96"])],
    );
    brackets_refused(
        "<tile = [0, 0, 0]>",
        &[("[0, 0, 0]", &["M = 0"]), ("[0, 0, 0]", &["N = 0"]), ("[0, 0, 0]", &["K = 0"])],
    );
    brackets_refused(
        "<tile = [128, 128, 512], stages = 4>",
        &[("4", &["shared memory holds 232448 bytes", "4 x", "help: write stages = auto"])],
    );
    brackets_refused("<stages = 33>", &[("33", &["not between 1 and 32"])]);
    brackets_refused("<sf_preload = ahead(0)>", &[("ahead(0)", &["ahead(0)"])]);
    brackets_refused("<tmem_columns = 96>", &[("96", &["not a power of two"])]);
    brackets_refused("<tmem_columns = 32>", &[("32", &["32 allocated, but this needs"])]);
    brackets_refused("<k_order = split_tail(33)>", &[("split_tail(33)", &["33 K tiles in shared memory"])]);
    brackets_refused("<k_order = split_tail(0)>", &[("split_tail(0)", &["split_tail(0)"])]);
    brackets_refused("<k_order = split_tail(4294967295)>", &[("split_tail(4294967295)", &["K tiles"])]);
    brackets_refused(
        "<accumulators = side_by_side, k_order = split_tail(2), a_reuse = collector>",
        &[("split_tail(2)", &["side_by_side"]), ("collector", &["one MMA for both"])],
    );
    brackets_refused(
        "<tile = [128, 64, 256], accumulators = side_by_side>",
        &[("side_by_side", &["tile N = 64", "help: use tile N = 128"])],
    );
}

#[test]
fn without_a_shape_what_fits_some_is_taken() {
    for brackets in [
        "tile = [128, 96, 256]",
        "tile = [128, 8, 64], store = tma",
        "k_order = split_tail(4), tile = [128, 128, 256]",
        "k_order = split_tail(2), a_reuse = collector",
        "sf_preload = all, tile = [128, 128, 512]",
        "sf_preload = all, k_order = split_tail(3)",
        "stages = 12",
        "store = tma",
    ] {
        declared(&format!("<{brackets}> {GATE}"));
    }
    // Eight stages leave room for a tile of 64 x 32, which auto takes where C is as narrow.
    declared(&format!("<bf16 -> bf16, arch = sm_90a, stages = 8, schedule = split_k(2), sms = 1> {GATE}"));
}

#[test]
fn a_vector_per_row_and_swapped_sides_are_refused_while_compiling() {
    let gate = "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))";
    for shape in ["", "shape = [16, 4096, 7168], "] {
        let text = format!("<{shape}arch = sm_100a, swap_ab = on> {gate}");
        refused(&text, &[("on", &["swap_ab: on with `s[m]`", "help: write swap_ab = off or auto"])]);
        declared(&format!("<{shape}arch = sm_100a> {gate}"));
        declared(&format!("<{shape}arch = sm_90a, bf16 -> bf16, swap_ab = on> {gate}"));
    }
}

#[test]
fn gates_are_checked_where_they_stand() {
    refused("<nvfp4 -> f16>", &[("", &["expected an operand"])]);
    refused("<> silu(A @ B1)", &[("silu(A @ B1)", &["one product", "use `gemm!`"])]);
    refused("<> silu(A @ B1) * (A @ B2) extra", &[("extra", &["expected `+`"])]);
    refused("<> silu(A @ B1) * (A @ B2), extra", &[("extra", &["expected the end"])]);
    refused("<> silu(A @ B1) * (B1 @ B2)", &[("B1", &["both sides"])]);
}

#[test]
fn gemms_have_one_product_and_a_macro_of_their_own() {
    let of = |text: &str| input_of(Operation::Gemm, text);
    let Ok(Input::Expression(gemm)) = of("<nvfp4 -> bf16> alpha * (A @ B) + bias[n] + residual[m, n]") else {
        panic!("a GEMM is read");
    };
    assert_eq!(gemm.spec.operation(), Operation::Gemm);
    assert_eq!(gemm.spec.name, DEFAULT_GEMM_NAME);
    let Ok(Input::Items(items)) = of("pub Down<A: bf16, w: nvfp4, C: bf16> = A @ w + r[m, n];") else {
        panic!("an item is read");
    };
    assert_eq!(items[0].declaration.spec.name, "Down");
    let refused = |text: &str, part: &str| {
        let told = messages(of(text).err().unwrap_or_else(|| panic!("{text}: taken")));
        assert!(told.iter().any(|message| message.contains(part)), "{text}: {told:?}");
    };
    refused("silu(A @ B1) * (A @ B2)", "use `dual_gemm!`");
    refused("<strategy = interleaved> A @ B", "computes two products, and the gate has one product");
    refused("<k_order = split_tail(2)> A @ B", "this strategy computes one product at a time");
    refused("<A: bf16, r: bf16> A @ B + r[m, n]", "is a matrix that the gate reads");
    refused("A @ B + r[n, m]", "`r[m, n]` for one for each of C");
    refused("A @ B + r[m] + r[m, n]", "a vector or matrix has one index");
    let dual = input("<strategy = single> silu(A @ B1) * (A @ B2)").err().map(messages);
    assert!(dual.is_some_and(|told| told[0].contains("computes one product, and the gate has two products")));
}

#[test]
fn malformed_items() {
    refused("SwiGlu<> silu(A @ B1) * (A @ B2);", &[("silu", &["expected `=`"])]);
    refused("SwiGlu = silu(A @ B1) * (A @ B2)", &[("SwiGlu", &["no `;`"])]);
    refused("pub = silu(A @ B1) * (A @ B2);", &[("=", &["expected"])]);
    let long = "x".repeat(161);
    refused(&format!("{long} = silu(A @ B1) * (A @ B2);"), &[(&long, &["161 characters"])]);
    refused("r#x<stages = 0> = silu(A @ B1) * (A @ B2);", &[("r#x", &["can't name"]), ("0", &["stages"])]);
    refused("pub static = silu(A @ B1) * (A @ B2);", &[("static", &["can't name a kernel"])]);
}

#[cfg(not(feature = "llvm"))]
#[test]
fn without_llvm_a_gate_of_ones_own_is_an_error_under_the_gate() {
    let parts =
        ["`tanh(A @ B1) * (A @ B2)` is not built in", "feature `llvm` of silumin", "llvm-22-dev", "swiglu ="];
    refused("<> tanh(A @ B1) * (A @ B2)", &[("tanh(A @ B1) * (A @ B2)", &parts)]);
    refused("<stages = 0> tanh(A@B1) * (A@B2),", &[("0", &["stages"]), ("tanh(A@B1) * (A@B2)", &parts)]);
    refused("X = tanh(A@B1)*(A@B2);", &[("tanh(A@B1)*(A@B2)", &parts)]);
}

#[cfg(feature = "llvm")]
#[test]
fn with_llvm_a_gate_of_ones_own_is_lowered() {
    let spec = declared("<> tanh(A @ B1) * (A @ B2)").spec;
    assert_eq!(spec, Spec::new("tanh(A @ B1) * (A @ B2)".parse().unwrap(), &Arch::ALL).unwrap());
    // Chips of a generation share their gate code.
    assert_eq!(spec.code.len(), 2);
}
