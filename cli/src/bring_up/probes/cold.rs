//! Probes of loads that miss L2, one after the other.

use super::memory::{flush, with_flush};
use super::{Chip, Probe};
use serde_json::json;

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    [Cold::Box, Cold::Rows(1), Cold::Rows(16), Cold::Rows(64), Cold::Rows(128), Cold::Thread]
        .map(|cold| probe(chip, cold))
        .into()
}

/// What a load is.
#[derive(Clone, Copy)]
enum Cold {
    /// A word, by a thread.
    Thread,
    /// 2 KB, by TMA.
    Box,
    /// This number of rows of 128 bytes, by TMA, from a tensor with longer rows. The next load continues the rows, as in a K loop.
    Rows(u32),
}

/// Loads that miss L2, one after the other.
fn probe(chip: &Chip, cold: Cold) -> Probe {
    // A prime number of 128-byte lines between two, so that they lie in all parts of L2 and DRAM.
    const APART: u32 = 131;
    // Bytes from row to row of the longer rows.
    const PITCH: u32 = 14_336;
    let loads = chip.few(8, 512);
    let (flush, flushed) = flush(chip);
    let by_tma = |bytes: u32, step: &str| {
        chip.fill(include_str!("tma_cold.ptx"), &[("BYTES", &bytes.to_string()), ("STEP", step)])
    };
    let map = |width: u32, rows: u32, height: u32| {
        json!({ "tensor_map": {
            "buffer": "data", "data_type": "u8", "dims": [width, rows], "strides": [width], "box": [128, height], "swizzle": "128b",
        }})
    };
    let (name, about, ptx, parameter, bytes) = match cold {
        Cold::Box => {
            let ptx = by_tma(2048, &format!("    add.u32 %row, %row, {APART};"));
            let about = "a TMA load of 2 KB that misses L2".to_owned();
            let rows = loads * APART;
            ("dram_tma_latency".to_owned(), about, ptx, map(128, rows, 16), u64::from(rows * 128))
        }
        Cold::Rows(height) => {
            let step = format!(
                "    add.u32 %column, %column, 128;\n    setp.ge.u32 %complete, %column, {PITCH};\n    \
                 @%complete mov.b32 %column, 0;\n    @%complete add.u32 %row, %row, {height};"
            );
            let about = format!(
                "a TMA load of {height} rows of 128 bytes, {PITCH} bytes apart, that misses L2; loads continue the rows"
            );
            let rows = height * loads.div_ceil(PITCH / 128);
            let name = format!("dram_tma_latency_of_{height}_rows");
            (name, about, by_tma(128 * height, &step), map(PITCH, rows, height), u64::from(rows * PITCH))
        }
        Cold::Thread => {
            let values = [("STRIDE", (128 * APART).to_string())];
            let ptx = chip.fill(include_str!("l2.ptx"), &values.each_ref().map(|(n, v)| (*n, v.as_str())));
            let (head, rest) = ptx.split_once("WARM:").unwrap_or((&ptx, ""));
            let loop_ = rest.split_once("LOOP:").map_or("", |(_, rest)| rest);
            let ptx = format!("{head}LOOP:{loop_}");
            let about = "a thread's load that misses L2".to_owned();
            let bytes = u64::from(loads * APART * 128);
            ("dram_latency".to_owned(), about, ptx, json!({ "pointer": "data" }), bytes)
        }
    };
    Probe {
        name,
        about,
        ptx: with_flush(ptx),
        buffers: vec![("out", 8 * u64::from(loads)), ("data", bytes), flushed],
        launches: vec![
            flush,
            json!({
                "kernel": "probe", "grid": [1, 1, 1], "block": [32, 1, 1], "dynamic_smem": 20_480,
                "params": [{ "pointer": "out" }, parameter, { "u32": 0 }, { "u32": loads }],
            }),
        ],
        reduce: json!({ "kind": "spread", "unit": "clk" }),
    }
}
