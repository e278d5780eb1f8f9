//! Batches and groups of rows: what they make of tensors, plans and names, what is refused, and how they are written.

use silumin_codegen::arch::Arch;
use silumin_codegen::config::Config;
use silumin_codegen::dsl::{Input, parse};
use silumin_codegen::plan::{Operand, Plan, validate};
use silumin_codegen::problem::{Formats, Groups, Operation, OutputFormat, Problem, Shape};
use silumin_codegen::spec::{SpecFile, SpecFileError};
use syn::parse::{ParseStream, Parser};

const SHAPE: Shape = Shape::new(300, 200, 416);

fn plan(shape: Shape, knobs: &[(&str, &str)]) -> Result<Plan, String> {
    let mut config = Config::default();
    for (knob, value) in knobs {
        config.set(knob, value).unwrap();
    }
    validate(&Problem::nvfp4(shape), &config, Arch::Sm100a).map_err(|errors| {
        assert!(errors.iter().all(|error| !error.hint().is_empty()));
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })
}

#[test]
fn tensors_are_those_of_all_matrices() {
    let formats = Formats { c: OutputFormat::Nvfp4, ..Formats::default() };
    let bytes =
        |groups, operand: Operand| operand.bytes(&Problem::dual(Shape { n: 224, groups, ..SHAPE }, formats));
    for operand in Operand::ALL.into_iter().filter(|operand| *operand != Operand::Offsets) {
        assert_eq!(bytes(Groups::Batch(3), operand), 3 * bytes(Groups::One, operand), "{operand}");
        assert_eq!(bytes(Groups::Rows(1), operand), bytes(Groups::One, operand), "{operand}");
    }
    let grouped = |operand| bytes(Groups::Rows(5), operand);
    assert_eq!(grouped(Operand::A), 300 * 208);
    assert_eq!(grouped(Operand::B1), 5 * 224 * 208);
    // 26 scale factors of 16 in 7 fours; five groups of 300 rows touch seven blocks at most: 4 x 1 and 296 in three.
    assert_eq!(grouped(Operand::Sfa), 7 * 7 * 512);
    assert_eq!(grouped(Operand::Sfb1), 5 * 2 * 7 * 512);
    assert_eq!(grouped(Operand::Sfc), 7 * 4 * 512);
    assert_eq!(grouped(Operand::Offsets), 24);
    assert!(!Operand::Offsets.present(&Problem::nvfp4(SHAPE.batch(2))));
    assert!(Operand::Offsets.present(&Problem::nvfp4(SHAPE.grouped(2))));
}

#[test]
fn what_only_the_device_knows_rules_knobs_out() {
    let grouped = SHAPE.grouped(4);
    for (knob, value, reason) in
        [("schedule", "stream_k", "only the device knows"), ("strategy", "two_pass", "only the device knows")]
    {
        let error = plan(grouped, &[(knob, value)]).unwrap_err();
        assert!(error.starts_with(&format!("{knob}: {value} with groups of rows: ")), "{error}");
        assert!(error.contains(reason), "{error}");
        plan(Shape { n: 208, ..SHAPE.batch(4) }, &[(knob, value)]).unwrap();
    }
    for schedule in ["one_tile", "persistent", "dynamic", "split_k(2)", "cluster_split_k(2)"] {
        plan(grouped, &[("schedule", schedule)]).unwrap();
    }
}

#[test]
fn counts_are_limited() {
    for (shape, said) in [
        (SHAPE.batch(0), "batch = 0 is not between"),
        (SHAPE.grouped(0), "groups = 0 is not between"),
        (SHAPE.grouped(1 << 17), "groups = 131072 is not between"),
        (Shape::new(1 << 20, 200, 416).batch(1 << 12), "rows of all matrices of A"),
        (Shape::new(300, 1 << 20, 416).grouped(1 << 12), "rows of all matrices of B1"),
        (Shape::new(1 << 20, 128, 1 << 21).batch(2), "bytes of a matrix of A"),
        (SHAPE.grouped(20_000), "table of groups"),
    ] {
        let error = plan(shape, &[]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    // The table takes the place of stages.
    let [few, many] = [4, 4000].map(|groups| plan(Shape::new(8000, 512, 7168).grouped(groups), &[]).unwrap());
    assert!(many.stages < few.stages && many.smem.total <= 232_448);
    let table = many.smem.regions.iter().find(|region| region.name == "table of groups").unwrap();
    assert_eq!((table.size, table.offset % 16), (16 * 4001, 0));
    assert!(!plan(SHAPE, &[]).unwrap().smem.regions.iter().any(|region| region.name == "table of groups"));
}

#[test]
fn tiles_are_counted_per_matrix_and_at_most_per_group() {
    let knobs = [("tile", "[128, 64, 256]"), ("schedule", "one_tile")];
    let [one, batch, rows] =
        [SHAPE, SHAPE.batch(3), SHAPE.grouped(3)].map(|shape| plan(shape, &knobs).unwrap());
    assert_eq!((one.work.tiles, batch.work.tiles), (3 * 4, 3 * 3 * 4));
    // One row, one row, and 298 in three tiles.
    assert_eq!((rows.m_tiles, rows.work.tiles), (5, 5 * 4));
    assert_eq!(rows.items_of(&[128, 0, 172]), 3 * 4);
    assert_eq!(rows.items_of(&[0, 0, 0]), 0);
    assert_eq!(batch.mmas_issued(), 3 * one.mmas_issued());
    // An empty group's weights are not read, a whole one's once a row of tiles.
    let b = |sizes: &[u32]| rows.traffic_of(sizes)[0].b;
    let weights = 2 * 200 * 208;
    assert_eq!(b(&[0, 0, 0]), 0);
    assert_eq!(b(&[1, 0, 0]), weights);
    assert_eq!(b(&[128, 1, 171]), 4 * weights);
}

#[test]
fn auto_looks_at_the_rows_of_a_group() {
    let plan = |m: u32, groups: u32| plan(Shape::new(m, 4096, 7168).grouped(groups), &[]).unwrap();
    // Some three tokens an expert: weights on the row side; 128: one CTA's rows; 512: a pair's.
    let [decode, middle, prefill] = [plan(100, 32), plan(1024, 8), plan(4096, 8)];
    assert!(decode.swap_ab && !middle.swap_ab && !prefill.swap_ab);
    assert_eq!(decode.tile.m, 64);
    assert_eq!((middle.cta_group.ctas(), prefill.cta_group.ctas()), (1, 2));
}

#[test]
fn kernels_are_named_after_their_groups() {
    let (spec, arch) = SpecFile::new(SHAPE).read().unwrap();
    let name = |shape| spec.kernel(shape, arch).unwrap().name;
    assert!(name(SHAPE.batch(3)).ends_with("_n200_k416_m00300_l3"));
    assert!(name(SHAPE.grouped(5)).ends_with("_n200_k416_m00300_g5"));
    let hashes =
        [SHAPE, SHAPE.batch(1), SHAPE.grouped(1)].map(|shape| spec.kernel(shape, arch).unwrap().hash);
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    let text = |shape: Shape| shape.to_string();
    assert_eq!(text(SHAPE.batch(3)), "300 x 200 x 416 in a batch of 3");
    assert_eq!(text(SHAPE.grouped(5)), "300 x 200 x 416 in 5 groups of rows");
    assert_eq!(text(SHAPE), "300 x 200 x 416");
}

#[test]
fn files_hold_what_shapes_say() {
    for shape in [SHAPE, SHAPE.batch(3), SHAPE.grouped(5)] {
        assert_eq!(SpecFile::new(shape).shape(), shape);
    }
    let both = SpecFile { batch: Some(2), ..SpecFile::new(SHAPE.grouped(2)) };
    assert!(matches!(both.read(), Err(SpecFileError::BatchOfGroups)));
}

#[test]
fn brackets_take_them_beside_a_shape() {
    let shape = |knobs: &str| {
        let text = format!("<nvfp4 -> f16, {knobs}> silu(A @ B1) * (A @ B2)");
        let read = |input: ParseStream| parse(Operation::DualGemm, input);
        let declared = match read.parse_str(&text) {
            Ok(Input::Expression(declared)) => Ok(declared.shape),
            Ok(Input::Items(_)) => panic!("{text}: an item"),
            Err(error) => Err(error),
        };
        declared
            .map_err(|error| error.into_iter().map(|error| error.to_string()).collect::<Vec<_>>().join("\n"))
    };
    assert_eq!(shape("shape = [300, 200, 416], groups = 5"), Ok(Some(SHAPE.grouped(5))));
    assert_eq!(shape("batch = 3, shape = [300, 200, 416]"), Ok(Some(SHAPE.batch(3))));
    let refused = |knobs, said: &str| {
        let error = shape(knobs).unwrap_err();
        assert!(error.contains(said), "{knobs}: {error}");
    };
    refused("groups = 5", "part of the shape");
    refused("batch = 5", "Shape::new(m, n, k).batch(...)");
    refused("shape = [300, 200, 416], groups = 5, batch = 5", "leave one out");
    refused("shape = [300, 200, 416], groups = many", "groups");
    refused("shape = [300, 200, 416], groups = 0", "groups = 0 is not between");
    refused("shape = [300, 200, 416], groups = 4, schedule = stream_k", "with groups of rows");
}
