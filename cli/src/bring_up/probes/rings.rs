//! Probes of pipelines: how long a warp is held while products queue, and how long one round of a ring of stages
//! takes.

use super::memory::{flush, with_flush};
use super::{Chip, LARGE, Probe, Size};
use serde_json::{Value, json};

/// Bytes of a row of the tensors: 112 boxes of 128.
const PITCH: u64 = 14_336;
/// Rounds before counting starts, and rounds that count.
const WARM: u32 = 16;
const COUNTED: u32 = 80;

/// The contents of a stage, and the products that read it.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    groups: u32,
    /// Columns of a product, and number of products per K step, each with its own accumulators.
    n: u32,
    units: u32,
    /// Whether each product has its own rows; otherwise its own columns.
    rows_apart: bool,
    a_rows: u32,
    /// Rows of each of two boxes of B.
    b_rows: u32,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "1_n256", groups: 1, n: 256, units: 1, rows_apart: true, a_rows: 64, b_rows: 128 },
    Shape { name: "2_n128", groups: 2, n: 128, units: 1, rows_apart: true, a_rows: 128, b_rows: 64 },
    Shape { name: "2_n256", groups: 2, n: 256, units: 1, rows_apart: true, a_rows: 128, b_rows: 128 },
    Shape { name: "2_n128_rows", groups: 2, n: 128, units: 2, rows_apart: true, a_rows: 256, b_rows: 64 },
    Shape {
        name: "2_n192_columns",
        groups: 2,
        n: 192,
        units: 2,
        rows_apart: false,
        a_rows: 128,
        b_rows: 192,
    },
];

/// Where a ring's operands are read from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// One CTA, from L2.
    One,
    /// All SMs, each its own operands, from L2.
    All,
    /// All SMs, from DRAM, like a product of four row tiles: SMs share A and B.
    Tiles,
}

/// The place of A.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Shared,
    Registers,
}

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    let mut probes = Vec::new();
    for groups in [1, 2] {
        for (n, units) in [(64, 1), (128, 1), (256, 1), (64, 2), (128, 2)] {
            probes.push(hold(chip, groups, n, units, Place::Shared));
        }
    }
    for (groups, n, units) in
        [(1, 8, 1), (1, 16, 1), (1, 32, 1), (1, 64, 1), (1, 16, 2), (2, 16, 1), (2, 64, 1), (3, 16, 1)]
    {
        probes.push(hold(chip, groups, n, units, Place::Registers));
    }
    for shape in SHAPES {
        for stages in [2, 3] {
            for source in [Source::One, Source::All, Source::Tiles] {
                probes.push(ring(chip, shape, stages, source));
            }
        }
    }
    probes
}

fn accumulators(unit: u32, n: u32) -> String {
    let list: Vec<String> = (0..n / 2).map(|i| format!("%d{}", unit * n / 2 + i)).collect();
    list.join(", ")
}

/// Lines that clear a register if a sum has a rare value, so that no product can be optimised away.
fn keep(units: u32, n: u32, bits: u32, register: &str) -> String {
    (0..units)
        .map(|unit| {
            format!(
                "    setp.eq.f32 %more, %d{}, 0f7149F2CA;\n    @%more mov.b{bits} {register}, 0;\n",
                unit * n / 2
            )
        })
        .collect()
}

/// Eight products one after the other: the time at which the warp has issued each.
fn hold(chip: &Chip, groups: u32, n: u32, units: u32, place: Place) -> Probe {
    let kinds = if units == 1 { "the same accumulators" } else { "two sets of accumulators by turns" };
    let from = if place == Place::Registers { ", A in registers" } else { "" };
    let about = format!(
        "clocks until each of eight wgmma of bf16 with N = {n} into {kinds} has been issued, and until they are done, {groups} warpgroup(s){from}"
    );
    let a = match place {
        Place::Shared => "%a",
        // Any A will do: B is zero.
        Place::Registers => "{ %thread, %at, %end, %word }",
    };
    // Only one in shared memory can be transposed.
    let transposed = if place == Place::Registers { "0" } else { "0, 0" };
    let products: String = (0..8)
        .map(|i| {
            format!(
                "    wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{ {} }}, {a}, %b, 1, 1, 1, {transposed};\n    mov.u64 %t{}, %clock64;\n",
                accumulators(i % units, n),
                i + 1
            )
        })
        .collect();
    let names: Vec<String> = (1..=8)
        .map(|i| format!("issued_{i}_clk"))
        .chain(["committed_clk".into(), "done_clk".into()])
        .collect();
    let stores: String = (1..=10)
        .map(|i| {
            format!("    sub.u64 %t{i}, %t{i}, %t0;\n    st.global.u64 [%out + {}], %t{i};\n", 8 * (i - 1))
        })
        .collect();
    let registers = units * n / 2;
    let clear: String = (0..registers).map(|i| format!("    mov.f32 %d{i}, 0f00000000;\n")).collect();
    let threads = 128 * groups;
    let keep = keep(units, n, 64, "%t10");
    let values = [
        ("ABOUT", about.as_str()),
        ("THREADS", &threads.to_string()),
        ("STRIDE", &(16 * threads).to_string()),
        ("REGISTERS", &registers.to_string()),
        ("CLEAR", clear.trim_end()),
        ("PRODUCTS", products.trim_end()),
        ("STORES", stores.trim_end()),
        ("KEEP", keep.trim_end()),
    ];
    let sets = if units == 1 { "" } else { "_two_sets" };
    let tag = if place == Place::Registers { "_registers" } else { "" };
    Probe {
        name: format!("wgmma_hold_{groups}_n{n}{sets}{tag}"),
        ptx: chip.fill(include_str!("hold.ptx"), &values),
        about,
        buffers: vec![("out", 80)],
        launches: vec![json!({
            "kernel": "probe", "grid": [1, 1, 1], "block": [threads, 1, 1], "dynamic_smem": 65_536,
            "params": [{ "pointer": "out" }],
        })],
        reduce: json!({ "kind": "columns", "names": names }),
    }
}

/// A ring of stages between a loading warp and multiplying warpgroups: clocks per round, and within them the
/// warpgroup's wait for a stage, its issue of products, and its wait for the products of the round before.
fn ring(chip: &Chip, shape: Shape, stages: u32, source: Source) -> Probe {
    let Shape { groups, n, units, rows_apart, a_rows, b_rows, .. } = shape;
    let stage = (a_rows + 2 * b_rows) * 128;
    let (b, b2) = (a_rows * 128, (a_rows + b_rows) * 128);
    let (full, empty) = (stages * stage, stages * stage + 8 * stages);
    let init: String = (0..stages)
        .map(|i| {
            format!(
                "    mbarrier.init.shared::cta.b64 [%smem + {}], 1;\n    mbarrier.init.shared::cta.b64 [%smem + {}], {groups};\n",
                full + 8 * i,
                empty + 8 * i
            )
        })
        .collect();
    let mut products = String::new();
    for k in 0..4 {
        for unit in 0..units {
            let (a_step, b_step) = match rows_apart {
                true => (unit * 512, 0),
                false => (0, unit * b_rows * 8),
            };
            let first = if k == 0 { "%accumulate" } else { "1" };
            products += &format!(
                "    add.u32 %word, %a, %place;\n    add.u32 %word, %word, {};\n    mov.b64 %matrix_a, {{ %word, 0x40000040 }};\n    \
                 add.u32 %word, %b, %place;\n    add.u32 %word, %word, {};\n    mov.b64 %matrix_b, {{ %word, 0x40000040 }};\n    \
                 wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{ {} }}, %matrix_a, %matrix_b, {first}, 1, 1, 0, 0;\n",
                a_step + 2 * k,
                b_step + 2 * k,
                accumulators(unit, n)
            );
        }
    }
    let place = match source {
        Source::One | Source::All => format!(
            "    mul.lo.u32 %row_a, %cta, {};\n    add.u32 %row_b, %row_a, {a_rows};",
            a_rows + 2 * b_rows
        ),
        Source::Tiles => format!(
            "    and.b32 %row_a, %cta, 3;\n    mul.lo.u32 %row_a, %row_a, {a_rows};\n    shr.u32 %row_b, %cta, 2;\n    \
             mad.lo.u32 %row_b, %row_b, {}, {};",
            2 * b_rows,
            4 * a_rows
        ),
    };
    let moves = groups > 1;
    let threads = 128 * (groups + 1);
    let from = match source {
        Source::One => "one CTA, from L2",
        Source::All => "all SMs, each from its own part of L2",
        Source::Tiles => "all SMs, from DRAM, with A and B shared as tiles of a product share them",
    };
    let about = format!(
        "a ring of {stages} stages of {} KB, {groups} warpgroup(s) with products of N = {n}, {from}",
        stage / 1024
    );
    let registers = units * n / 2;
    let keep = keep(units, n, 32, "%t0");
    let values = [
        ("ABOUT", about.as_str()),
        ("THREADS", &threads.to_string()),
        ("STAGES", &stages.to_string()),
        ("STAGE", &stage.to_string()),
        ("REGISTERS", &registers.to_string()),
        ("GROUPS", &groups.to_string()),
        ("LOADERS_END", &(128 * groups + 32).to_string()),
        ("INIT", init.trim_end()),
        ("DECREASE", if moves { "    setmaxnreg.dec.sync.aligned.u32 40;" } else { "" }),
        ("INCREASE", if moves { "    setmaxnreg.inc.sync.aligned.u32 232;" } else { "" }),
        ("PLACE", &place),
        ("FULL", &full.to_string()),
        ("EMPTY", &empty.to_string()),
        ("B", &b.to_string()),
        ("B2", &b2.to_string()),
        ("B_ROWS", &b_rows.to_string()),
        ("B_UNITS", &(b / 16).to_string()),
        ("GROUP_STEP", &(a_rows / groups * 8).to_string()),
        ("STAGE_UNITS", &(stage / 16).to_string()),
        ("PRODUCTS", products.trim_end()),
        ("WARM", &WARM.to_string()),
        ("KEEP", keep.trim_end()),
    ];
    let ptx = chip.fill(include_str!("ring.ptx"), &values);
    let sms = chip.few(4, chip.sms);
    let ctas = if source == Source::One { 1 } else { sms };
    let rows = u64::from(sms * (a_rows + 2 * b_rows));
    let map = |rows_of_box: u32| -> Value {
        json!({ "tensor_map": {
            "buffer": "data", "data_type": "u8", "dims": [PITCH, rows], "strides": [PITCH], "box": [128, rows_of_box], "swizzle": "128b",
        }})
    };
    let data = match chip.size {
        Size::Small => rows * PITCH,
        // Above what the host would send.
        Size::Full => (rows * PITCH).max(LARGE + 1),
    };
    let (mask, rounds) = match source {
        Source::Tiles => (127, WARM + COUNTED),
        _ => (3, WARM + COUNTED),
    };
    let launch = json!({
        "kernel": "probe", "grid": [ctas, 1, 1], "block": [threads, 1, 1],
        "dynamic_smem": (stages * stage + 16 * stages).max(120_000),
        "params": [map(a_rows), map(b_rows), { "pointer": "out" }, { "u32": rounds }, { "u32": 0 }, { "u32": mask }],
    });
    let names = ["round_clk", "fill_clk", "issue_clk", "drain_clk"];
    let tag = match source {
        Source::One => "one",
        Source::All => "all",
        Source::Tiles => "tiles",
    };
    let (flush, flushed) = flush(chip);
    let cold = source == Source::Tiles;
    let mut buffers = vec![("out", 32 * u64::from(ctas)), ("data", data)];
    buffers.extend(cold.then_some(flushed));
    Probe {
        name: format!("ring_{}_{stages}_stages_{tag}", shape.name),
        about,
        ptx: if cold { with_flush(ptx) } else { ptx },
        buffers,
        launches: if cold { vec![flush, launch] } else { vec![launch] },
        reduce: json!({ "kind": "columns", "names": names }),
    }
}
