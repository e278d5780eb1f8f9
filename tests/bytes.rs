//! What kernels move is what they must, to the byte: the emulator counts every global read and write, and this
//! file works out from shape, tile and schedule how many there have to be.
//!
//! Every tile of C needs its rows of A, B1 and B2 and their scale factors once; C is written once. Strategies that
//! split the work into several kernels, and schedules that share K out, move their workspace on top and nothing else.

use rayon::prelude::*;
use silumin::codegen::config::{Accumulators, Multicast, Schedule, Setting, SfLoad, Strategy};
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::{Device, EmulatorOptions};
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::{Arch, Shape};

/// Bytes that one launch reads from global memory, and writes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    read: u64,
    written: u64,
}

/// Rows `first..first + count` of a matrix that has `rows`: how many exist.
fn existing(first: u32, count: u32, rows: u32) -> u64 {
    u64::from(rows.saturating_sub(first).min(count))
}

/// Operands and scale factors of one K loop over all tiles, with `b` tensors on the right.
fn loop_reads(plan: &Plan, b: u64) -> u64 {
    let Shape { m, n, k, .. } = plan.problem.shape;
    let ctas = plan.cta_group.ctas();
    // Tiles that a cluster computes at once, along M and N: those beside each other share A, those below each other B.
    let (down, across) = match plan.multicast {
        Multicast::None => (1, 1),
        Multicast::A(neighbours) => (1, neighbours),
        Multicast::B(neighbours) => (neighbours, 1),
    };
    // 512 bytes for every 128 rows and 64 of K, K rounded up. A row of blocks is loaded whole or not at all. Where it has
    // no rows, a tensor map loads nothing, and bulk copies load another one in its place.
    let row_block = u64::from(k.div_ceil(64)) * 512;
    let there = |block: u32, rows: u32| u64::from(plan.scales.box_blocks.is_none() || block * 128 < rows);
    // Each CTA loads what it needs, or one of those that need the same does for all: a shared tile's, and the columns'
    // in a pair.
    let once = plan.config.sf_load == Setting::Fixed(SfLoad::Multicast);
    let mut codes = 0;
    let mut blocks = 0;
    for m_item in 0..plan.m_tiles.div_ceil(down) {
        for n_item in 0..plan.n_tiles.div_ceil(across) {
            let m_tiles = m_item * down..(m_item + 1) * down;
            let n_tiles = n_item * across..(n_item + 1) * across;
            codes += m_tiles.clone().map(|tile| existing(tile * plan.tile.m, plan.tile.m, m)).sum::<u64>();
            codes +=
                b * n_tiles.clone().map(|tile| existing(tile * plan.tile.n, plan.tile.n, n)).sum::<u64>();
            for (m_tile, n_tile) in
                m_tiles.flat_map(|m_tile| n_tiles.clone().map(move |n_tile| (m_tile, n_tile)))
            {
                // What the MMA has as rows is shared out between the CTAs of a pair; of what it has as columns, each has
                // all scale factors.
                let (row_tile, column, width, rows, columns, on_rows, on_columns) = match plan.swap_ab {
                    false => (m_tile, n_tile * plan.tile.n, plan.tile.n, m, n, 1, b),
                    true => (n_tile, m_tile * plan.tile.m, plan.tile.m, n, m, b, 1),
                };
                // Whether the cluster's first tile along the MMA's columns (rows) loads it for all along them.
                let first_along = |shared: u32, tile: u32| !once || tile.is_multiple_of(shared);
                let (beside, below) = if plan.swap_ab { (down, across) } else { (across, down) };
                let column_tile = if plan.swap_ab { m_tile } else { n_tile };
                for cta in 0..ctas {
                    if first_along(beside, column_tile) {
                        blocks += on_rows * there(row_tile * ctas + cta, rows);
                    }
                    if first_along(below, row_tile) && (!once || cta == 0) {
                        let first = column / 128;
                        let touched = first..first + width.div_ceil(128);
                        blocks += on_columns * touched.map(|block| there(block, columns)).sum::<u64>();
                    }
                }
            }
        }
    }
    codes * u64::from(k / 2) + blocks * row_block
}

/// How many clusters have a part of the K of each tile, or of the tiles that a cluster computes at once.
fn parts(plan: &Plan) -> Vec<u64> {
    let tiles = match plan.multicast {
        Multicast::None => plan.m_tiles * plan.n_tiles,
        Multicast::A(neighbours) => plan.m_tiles * plan.n_tiles.div_ceil(neighbours),
        Multicast::B(neighbours) => plan.m_tiles.div_ceil(neighbours) * plan.n_tiles,
    };
    let k_tiles = plan.problem.shape.k.div_ceil(plan.tile.k);
    match plan.work.schedule {
        Schedule::SplitK(parts) => vec![u64::from(parts); tiles as usize],
        Schedule::StreamK => {
            // All K tiles of all tiles in a row, dealt out as evenly as they go.
            let (units, clusters) = (u64::from(tiles) * u64::from(k_tiles), u64::from(plan.work.clusters));
            let owner = |unit: u64| {
                let (share, longer) = (units / clusters, units % clusters);
                (0..clusters).find(|c| unit < (c + 1) * share + (c + 1).min(longer)).unwrap()
            };
            let owners = |tile: u64| {
                let mut list: Vec<u64> =
                    (tile * u64::from(k_tiles)..(tile + 1) * u64::from(k_tiles)).map(owner).collect();
                list.dedup();
                list.len() as u64
            };
            (0..u64::from(tiles)).map(owners).collect()
        }
        _ => vec![1; tiles as usize],
    }
}

/// Partial sums and counters of the tiles whose K is shared out.
fn shared_out(plan: &Plan, products: u64) -> Moved {
    let neighbours = u64::from(plan.multicast.ctas());
    let accumulators = neighbours * u64::from(plan.tile.m) * u64::from(plan.tile.n) * 4 * products;
    let counts = 4 * neighbours * u64::from(plan.cta_group.ctas());
    let mut moved = Moved::default();
    for parts in parts(plan).into_iter().filter(|parts| *parts > 1) {
        moved.read += parts * (accumulators + counts);
        moved.written += parts * (accumulators + counts);
    }
    // One part only is still counted by nobody: it goes straight from TMEM to C.
    moved
}

/// Every launch of a plan.
fn expected(plan: &Plan) -> Vec<Moved> {
    let Shape { m, n, .. } = plan.problem.shape;
    let c = u64::from(m) * u64::from(n) * 2;
    // fp32 products between launches have rows of whole 16 bytes.
    let product = u64::from(m) * u64::from(n.next_multiple_of(4)) * 4;
    let gemm = |b: u64, products: u64| {
        let shared = shared_out(plan, products);
        Moved { read: loop_reads(plan, b) + shared.read, written: shared.written }
    };
    let (one, both) = (gemm(1, 1), gemm(2, 2));
    let twice = gemm(1, 2);
    let reads = |moved: Moved, read: u64| Moved { read: moved.read + read, ..moved };
    let writes = |moved: Moved, written: u64| Moved { written: moved.written + written, ..moved };
    match plan.strategy {
        Strategy::Interleaved => vec![writes(both, c)],
        // Both products in one kernel, A and its scale factors once for each.
        Strategy::Sequential => {
            vec![writes(reads(twice, loop_reads(plan, 1)), c)]
        }
        Strategy::Single => vec![writes(one, c)],
        Strategy::SecondFused => vec![writes(one, product), writes(reads(one, product), c)],
        Strategy::TwoPass => {
            vec![writes(one, product), writes(one, product), Moved { read: 2 * product, written: c }]
        }
    }
}

/// Tiles that are whole, and tiles that M, N and K end inside of; more tiles than clusters where `sms` says so.
const SHAPES: [Shape; 5] = [
    Shape::new(256, 384, 1024),
    Shape::new(203, 328, 928),
    Shape::new(130, 1001, 1056),
    Shape::new(300, 72, 2080),
    Shape::new(1, 8, 96),
];

fn check(knobs: &[(&str, &str)], shapes: &[Shape]) -> Vec<String> {
    shapes
        .par_iter()
        .filter_map(|&shape| {
            let mut file = SpecFile::new(shape);
            for (knob, value) in knobs {
                file.config.set(knob, value).unwrap();
            }
            let (spec, arch) = file.read().unwrap();
            let plan = spec.plan(shape, arch).unwrap_or_else(|errors| {
                panic!("{shape}, {knobs:?}: {}", silumin::codegen::error::explain(&errors))
            });
            let options = EmulatorOptions { threads: 1, ..EmulatorOptions::default() };
            let device = Device::emulated_with(Arch::Sm100a, options);
            let verification =
                DualGemm::new(spec).verify(&device, shape, Distribution::Full, 3, &[]).unwrap();
            assert!(verification.check.pass, "{shape}, {knobs:?}: {}", verification.check);
            let counted: Vec<Moved> = verification
                .launch
                .launches
                .iter()
                .map(|s| Moved { read: s.global_read + s.tma_read, written: s.global_written + s.tma_written })
                .collect();
            let wanted = expected(&plan);
            let modelled: Vec<Moved> =
                plan.traffic().iter().map(|t| Moved { read: t.read(), written: t.written() }).collect();
            let tiles = match plan.multicast {
                Multicast::None => plan.m_tiles * plan.n_tiles,
                Multicast::A(neighbours) => plan.m_tiles * plan.n_tiles.next_multiple_of(neighbours),
                Multicast::B(neighbours) => plan.m_tiles.next_multiple_of(neighbours) * plan.n_tiles,
            };
            let steps = u64::from(tiles) * u64::from(shape.k.div_ceil(64));
            let mmas = steps * if plan.accumulators == Accumulators::SideBySide { 1 } else { 2 };
            let macs: u64 = verification.launch.launches.iter().flat_map(|s| s.mma_macs.values()).sum();
            let wrong = counted != wanted
                || modelled != wanted
                || plan.mmas_issued() != mmas
                || mmas * plan.mma_macs() != macs;
            wrong.then(|| {
                format!(
                    "{shape}, {knobs:?}:\n  counted  {counted:?}\n  wanted   {wanted:?}\n  modelled {modelled:?}\n  {} MMAs modelled, {mmas} wanted, {macs} MACs of {}",
                    plan.mmas_issued(), plan.mma_macs()
                )
            })
        })
        .collect()
}

fn check_all(configurations: &[&[(&str, &str)]]) {
    let faults: Vec<String> = configurations.iter().flat_map(|knobs| check(knobs, &SHAPES)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn interleaved_reads_each_operand_once_a_tile_and_writes_c_once() {
    check_all(&[
        &[],
        &[("tile", "[128, 128, 256]")],
        &[("tile", "[128, 64, 128]"), ("sf_preload", "ahead(2)")],
        &[("tile", "[128, 192, 128]"), ("schedule", "persistent"), ("sms", "2")],
        &[("tile", "[128, 128, 512]"), ("schedule", "dynamic")],
        &[("accumulators", "side_by_side"), ("tile", "[128, 128, 256]"), ("sf_preload", "all")],
        &[("cta_group", "2")],
        &[("cta_group", "2"), ("tile", "[256, 128, 256]"), ("sf_preload", "all")],
        &[("cta_group", "2"), ("tile", "[256, 192, 128]"), ("schedule", "persistent"), ("sms", "4")],
        &[
            ("cta_group", "2"),
            ("accumulators", "side_by_side"),
            ("tile", "[256, 128, 256]"),
            ("schedule", "dynamic"),
        ],
        &[("cta_group", "2"), ("tile", "[256, 64, 320]"), ("sf_preload", "ahead(2)")],
    ]);
}

#[test]
fn swapped_operands_and_shared_tiles_are_read_once_too() {
    check_all(&[
        &[("swap_ab", "on"), ("tile", "[64, 128, 256]")],
        &[("swap_ab", "on"), ("cta_group", "2"), ("schedule", "persistent"), ("sms", "4")],
        &[("sf_load", "tensor_map"), ("tile", "[128, 192, 128]")],
        &[("multicast", "a(2)"), ("tile", "[128, 128, 256]")],
        &[("multicast", "a(4)"), ("schedule", "persistent"), ("sms", "4"), ("sf_load", "tensor_map")],
        &[("multicast", "b(2)"), ("schedule", "stream_k"), ("sms", "4"), ("tile", "[128, 128, 64]")],
        &[("multicast", "b(4)"), ("swap_ab", "on"), ("tile", "[64, 128, 256]")],
    ]);
}

#[test]
fn clusters_of_pairs_read_what_they_share_once() {
    check_all(&[
        &[("cta_group", "2"), ("sf_load", "tensor_map"), ("tile", "[256, 128, 256]")],
        &[("cta_group", "2"), ("multicast", "a(2)")],
        &[("cta_group", "2"), ("multicast", "a(4)"), ("schedule", "persistent"), ("sms", "8")],
        &[("cta_group", "2"), ("multicast", "a(2)"), ("sf_load", "tensor_map"), ("schedule", "dynamic")],
        &[("cta_group", "2"), ("multicast", "b(2)"), ("sf_preload", "ahead(2)")],
        &[("cta_group", "2"), ("multicast", "b(4)"), ("tile", "[256, 192, 128]"), ("sf_preload", "all")],
        &[
            ("cta_group", "2"),
            ("multicast", "b(2)"),
            ("schedule", "stream_k"),
            ("sms", "8"),
            ("tile", "[256, 64, 64]"),
        ],
        &[("cta_group", "2"), ("multicast", "a(2)"), ("swap_ab", "on"), ("tile", "[64, 256, 256]")],
        &[("cta_group", "2"), ("multicast", "b(2)"), ("swap_ab", "on"), ("strategy", "sequential")],
        &[
            ("cta_group", "2"),
            ("multicast", "a(2)"),
            ("accumulators", "side_by_side"),
            ("tile", "[256, 128, 256]"),
        ],
        &[("multicast", "a(2)"), ("sf_load", "bulk")],
        &[("multicast", "b(2)"), ("schedule", "persistent"), ("sms", "4"), ("sf_preload", "ahead(1)")],
    ]);
}

#[test]
fn sharing_reads_less_and_computes_the_same() {
    // Two tiles of a pair each way, at K enough to go round the pipeline.
    let shape = Shape::new(512, 256, 2048);
    let read = |knobs: &[(&str, &str)]| {
        let mut file = SpecFile::new(shape);
        for (knob, value) in [("cta_group", "2"), ("tile", "[256, 128, 256]")].iter().chain(knobs) {
            file.config.set(knob, value).unwrap();
        }
        let gemm = DualGemm::new(file.read().unwrap().0);
        let device = Device::emulated(Arch::Sm100a);
        let verification = gemm.verify(&device, shape, Distribution::Full, 5, &[]).unwrap();
        assert!(verification.check.pass, "{knobs:?}: {}", verification.check);
        verification.launch.launches.iter().map(|launch| launch.tma_read).sum::<u64>()
    };
    let k = u64::from(shape.k);
    // Bytes of K of 128 rows of codes, and of their scale factors.
    let (codes, scales) = (128 * k / 2, 128 * k / 16);
    let alone = read(&[("sf_load", "tensor_map")]);
    // Each of the four tiles has four row blocks: two of A, one of B1, one of B2; and both CTAs have B's scale factors.
    assert_eq!(alone, 4 * (4 * codes + 6 * scales));
    assert_eq!(read(&[]), 4 * (4 * codes + 4 * scales));
    // A once for two tiles beside each other.
    assert_eq!(read(&[("multicast", "a(2)")]), alone - 4 * 2 * scales - 2 * 2 * (codes + scales));
    // B1 and B2 once for two tiles below each other.
    assert_eq!(read(&[("multicast", "b(2)")]), alone - 4 * 2 * scales - 2 * 2 * (codes + scales));
    let codes_only = read(&[("multicast", "b(2)"), ("sf_load", "tensor_map")]);
    assert_eq!(codes_only, alone - 2 * 2 * codes);
}

#[test]
fn tma_stores_and_direct_stores_write_the_same_bytes() {
    let shapes = SHAPES.map(|shape| Shape { n: shape.n.next_multiple_of(8), ..shape });
    for knobs in [
        &[("store", "tma")][..],
        &[("store", "tma"), ("cta_group", "2"), ("schedule", "persistent"), ("sms", "2")],
    ] {
        let faults = check(knobs, &shapes);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

#[test]
fn other_strategies_move_their_workspace_on_top() {
    check_all(&[
        &[("strategy", "sequential")],
        &[("strategy", "sequential"), ("cta_group", "2"), ("schedule", "persistent"), ("sms", "2")],
        &[("strategy", "second_fused")],
        &[("strategy", "second_fused"), ("cta_group", "2")],
        &[("strategy", "two_pass")],
        &[("strategy", "two_pass"), ("cta_group", "2"), ("schedule", "persistent"), ("sms", "2")],
    ]);
}

#[test]
fn shares_of_k_move_their_partial_sums_on_top() {
    check_all(&[
        &[("schedule", "stream_k"), ("sms", "5"), ("tile", "[128, 128, 64]")],
        &[("schedule", "stream_k"), ("sms", "6"), ("cta_group", "2"), ("tile", "[256, 64, 64]")],
        &[("schedule", "stream_k"), ("sms", "3"), ("strategy", "sequential"), ("tile", "[128, 64, 128]")],
        &[("schedule", "stream_k"), ("sms", "5"), ("strategy", "two_pass"), ("tile", "[128, 64, 128]")],
    ]);
    let long = &SHAPES[..4];
    for knobs in [
        &[("schedule", "split_k(2)"), ("tile", "[128, 128, 128]")][..],
        &[("schedule", "split_k(3)"), ("tile", "[256, 128, 256]"), ("cta_group", "2")],
        &[("schedule", "split_k(3)"), ("strategy", "second_fused")],
    ] {
        let faults = check(knobs, long);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
