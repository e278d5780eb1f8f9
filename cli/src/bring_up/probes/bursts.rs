//! Probes of loads that several SMs make of the same lines at about the same time: what L2 serves once.

use super::{BOX, Chip, Probe};
use serde_json::json;

/// Boxes of a burst.
const DEPTH: u32 = 8;
/// Binary logarithms of the nanoseconds from burst to burst: in a small pack, and in a full one.
const TURNS: [u32; 2] = [9, 14];

/// Which SMs load the same boxes.
#[derive(Clone, Copy)]
enum Group {
    /// Neighbours by number. Two of them are a TPC.
    Near(u32),
    /// About this many SMs, as far from each other as their numbers allow.
    Far(u32),
}

/// Bursts of eight loads of boxes from L2 by all SMs at once. SMs of a group load the same boxes, and every second SM of a group begins
/// `late` clocks later. A box has 128 rows of `width` bytes, each in a line of its own.
fn burst(chip: &Chip, group: Group, late: u32, width: u32) -> Probe {
    let (number, suffix, which) = match group {
        Group::Near(number) => (number, "", "next to each other"),
        Group::Far(number) => (number, "_far", "far from each other"),
    };
    let parts = if width == 128 { String::new() } else { format!("_rows_of_{width}") };
    let name = format!("tma_burst_of_{number}{suffix}_{late}_late{parts}");
    let about = format!(
        "bursts of eight TMA loads of 128 rows of {width} bytes from L2 by all SMs, the same boxes by {number} SMs {which}, every second of which begins {late} clk later"
    );
    let box_bytes = 128 * width;
    let rows = chip.few(1024, 262_144);
    let index = match group {
        Group::Near(number) => {
            format!("    rem.u32 %member, %cta, {number};\n    div.u32 %cta, %cta, {number};")
        }
        Group::Far(number) => {
            let groups = (chip.sms / number).max(1);
            format!("    div.u32 %member, %cta, {groups};\n    rem.u32 %cta, %cta, {groups};")
        }
    };
    let loads: String = (0..DEPTH)
        .map(|i| {
            format!(
                "    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem + {}], [%map, {{ 0, %row }}], [%smem + {}];\n    \
                 add.u32 %row, %row, 128;\n    and.b32 %row, %row, {};\n",
                i * box_bytes,
                DEPTH * box_bytes,
                rows - 1
            )
        })
        .collect();
    let values = [
        ("ABOUT", about.as_str()),
        ("DEPTH", &DEPTH.to_string()),
        ("BOX", &box_bytes.to_string()),
        ("BYTES", &(DEPTH * box_bytes).to_string()),
        ("BARRIER", &(DEPTH * box_bytes).to_string()),
        ("TURN", &chip.few(TURNS[0], TURNS[1]).to_string()),
        ("LATE", &late.to_string()),
        ("APART", "2048"),
        ("ROW_MASK", &(rows - 1).to_string()),
        ("INDEX", &index),
        ("LOADS", loads.trim_end()),
    ];
    let ptx = chip.fill(include_str!("bursts.ptx"), &values);
    let ctas = chip.few(4, chip.sms);
    let map = json!({ "tensor_map": {
        "buffer": "data", "data_type": "u8", "dims": [width, rows], "strides": [128], "box": [width, 128], "swizzle": format!("{width}b"),
    }});
    let rounds = [1, chip.few(2, 8), chip.few(3, 24)];
    let launches = rounds.iter().enumerate().map(|(index, rounds)| {
        json!({
            "kernel": "probe", "grid": [ctas, 1, 1], "block": [32, 1, 1], "dynamic_smem": DEPTH * BOX + 128,
            "params": [map, { "pointer": "out", "offset": 8 * index }, { "u32": rounds }],
        })
    });
    Probe {
        launches: launches.collect(),
        buffers: vec![("out", 24), ("data", u64::from(rows) * 128)],
        // Clocks of all SMs together.
        reduce: json!({
            "kind": "line", "counts": rounds.map(|rounds| rounds * ctas), "each": "burst_clk", "first": "first_burst_clk",
        }),
        name,
        about,
        ptx,
    }
}

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    let all = chip.sms;
    let groups = [1, 2, 4, 8, 16, all / 2, all].map(Group::Near).into_iter();
    let groups = groups.chain([2, 4, 8, 16, 33].map(Group::Far));
    let together = groups.map(|group| burst(chip, group, 0, BOX / 128));
    let late = [50, 100, 200, 400, 800, 1600].into_iter().flat_map(|late| {
        [Group::Near(2), Group::Far(2), Group::Far(16)].map(move |group| burst(chip, group, late, BOX / 128))
    });
    let parts = [64, 32].into_iter().flat_map(|width| {
        [
            (Group::Near(1), 0),
            (Group::Near(2), 0),
            (Group::Near(2), 100),
            (Group::Near(16), 0),
            (Group::Near(all), 0),
        ]
        .map(move |(group, late)| burst(chip, group, late, width))
    });
    together.chain(late).chain(parts).collect()
}
