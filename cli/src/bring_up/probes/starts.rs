//! Probes of what is slow the first time: a CTA's start, its first loads, parameters and code.

use super::memory::{flush, with_flush};
use super::{Chip, Probe};
use serde_json::json;

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    let mut probes = Vec::new();
    probes.push(issue(chip));
    for by in [By::TensorMap, By::AcquiredMap, By::Bytes] {
        for cold in [false, true] {
            probes.push(start(chip, by, cold));
        }
    }
    for cold in [false, true] {
        probes.push(parameters(chip, cold));
    }
    for count in [128, 512, 2048, 8192] {
        probes.push(code(chip, count, Before::Same));
    }
    for count in [128, 512, 2048] {
        probes.push(code(chip, count, Before::OtherCode));
        probes.push(code(chip, count, Before::Cold));
    }
    for (name, threads, spread) in
        [("turnover", 32, 4001), ("turnover_at_once", 32, 1), ("turnover_of_384_threads", 384, 4001)]
    {
        probes.push(turnover(chip, name, threads, spread));
    }
    probes
}

/// A probe of one launch, with or without L2 emptied before it. `columns` are the numbers that a CTA writes.
fn once(
    chip: &Chip,
    name: &str,
    about: &str,
    ptx: String,
    cold: bool,
    columns: &[&str],
    launch: serde_json::Value,
) -> Probe {
    let ctas = chip.few(2, chip.sms);
    let launch = super::with(
        &launch,
        &[("kernel", json!("probe")), ("grid", json!([ctas, 1, 1])), ("block", json!([32, 1, 1]))],
    );
    let mut probe = Probe {
        name: name.to_owned(),
        about: about.to_owned(),
        ptx,
        buffers: vec![("out", 8 * columns.len() as u64 * u64::from(ctas))],
        launches: vec![launch],
        reduce: json!({ "kind": "columns", "names": columns }),
    };
    if cold {
        let (flush, flushed) = flush(chip);
        probe.name += "_cold";
        probe.about += ", after others have used L2";
        probe.ptx = with_flush(probe.ptx);
        probe.buffers.push(flushed);
        probe.launches.insert(0, flush);
    }
    probe
}

/// How loads name their source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    TensorMap,
    /// By a tensor map of the CTA's own in global memory, acquired before each load, as after a change of the map.
    AcquiredMap,
    Bytes,
}

/// The first loads of a CTA.
fn start(chip: &Chip, by: By, cold: bool) -> Probe {
    let loads: String = (0..4)
        .map(|i| {
            let (place, barrier) = (2048 * i, 8192 + 8 * i);
            let acquire = match by {
                By::AcquiredMap => "    fence.proxy.tensormap::generic.acquire.gpu [%map], 128;\n",
                By::TensorMap | By::Bytes => "",
            };
            let copy = if by != By::Bytes {
                format!(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem + {place}], [%map, {{ 0, %row }}], [%smem + {barrier}];\n    \
                     add.u32 %row, %row, 16;"
                )
            } else {
                format!(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem + {place}], [%data], 2048, [%smem + {barrier}];\n    \
                     add.u64 %data, %data, 2048;"
                )
            };
            format!(
                "{acquire}    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem + {barrier}], 2048;\n    {copy}\n\
                 WAIT{i}:\n    mbarrier.try_wait.parity.shared::cta.b64 %complete, [%smem + {barrier}], 0;\n    \
                 @!%complete bra WAIT{i};\n    mov.u64 %t{}, %clock64;\n",
                i + 1
            )
        })
        .collect();
    let (name, how) = match by {
        By::TensorMap => ("start_tensor_map", "by tensor map"),
        By::AcquiredMap => ("start_tensor_map_acquired", "by a tensor map of its own, acquired before each"),
        By::Bytes => ("start_bulk", "of contiguous bytes"),
    };
    let about = format!(
        "a CTA's start on all SMs: from its first instruction to its first load, and loads of 2 KB {how}"
    );
    // Over what the third load brings.
    let before: String = match by {
        By::AcquiredMap => (0..16)
            .map(|i| {
                let at = 8 * i;
                format!(
                    "    ld.u64 %word, [%map + {at}];\n    st.global.u64 [%data + {}], %word;\n",
                    4096 + at
                )
            })
            .chain(["    add.u64 %map, %data, 4096;\n    fence.proxy.tensormap::generic.release.gpu;\n"
                .to_owned()])
            .collect(),
        By::TensorMap | By::Bytes => String::new(),
    };
    let ptx = chip.fill(
        include_str!("start.ptx"),
        &[("ABOUT", &about), ("BEFORE", &before), ("LOADS", loads.trim_end())],
    );
    let ctas = chip.few(2, chip.sms);
    let map = json!({ "tensor_map": {
        "buffer": "data", "data_type": "u8", "dims": [128, 64 * ctas], "strides": [128], "box": [128, 16], "swizzle": "128b",
    }});
    let launch = json!({
        "dynamic_smem": 120_000, "params": [map, { "pointer": "out" }, { "pointer": "data" }],
    });
    let columns =
        ["to_first_load_clk", "first_load_clk", "second_load_clk", "third_load_clk", "fourth_load_clk"];
    let mut probe = once(chip, name, &about, ptx, cold, &columns, launch);
    probe.buffers.push(("data", 8192 * u64::from(ctas)));
    probe
}

fn parameters(chip: &Chip, cold: bool) -> Probe {
    let ptx = chip.fill(include_str!("parameters.ptx"), &[]);
    let about = "a CTA's first reads of kernel parameters: one, its neighbour, one 768 bytes on";
    let launch = json!({ "params": [{ "pointer": "out" }, { "hex": "00".repeat(1024) }] });
    once(chip, "parameters", about, ptx, cold, &["first_clk", "second_clk", "far_clk"], launch)
}

/// Four loads issued one after the other without a wait.
fn issue(chip: &Chip) -> Probe {
    let loads: String = (0..4)
        .map(|i| {
            let (place, barrier) = (2048 * i, 8192 + 8 * i);
            format!(
                "    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem + {barrier}], 2048;\n    \
                 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem + {place}], [%map, {{ 0, %row }}], [%smem + {barrier}];\n    \
                 add.u32 %row, %row, 16;\n    mov.u64 %t{}, %clock64;\n",
                i + 1
            )
        })
        .chain((0..4).map(|i| {
            format!(
                "WAIT{i}:\n    mbarrier.try_wait.parity.shared::cta.b64 %complete, [%smem + {}], 0;\n    \
                 @!%complete bra WAIT{i};\n",
                8192 + 8 * i
            )
        }))
        .collect();
    let about =
        "a CTA's first four TMA loads, issued one after the other on all SMs, each with its expected bytes";
    let ptx = chip
        .fill(include_str!("start.ptx"), &[("ABOUT", about), ("BEFORE", ""), ("LOADS", loads.trim_end())]);
    let ctas = chip.few(2, chip.sms);
    let map = json!({ "tensor_map": {
        "buffer": "data", "data_type": "u8", "dims": [128, 64 * ctas], "strides": [128], "box": [128, 16], "swizzle": "128b",
    }});
    let launch = json!({
        "dynamic_smem": 120_000, "params": [map, { "pointer": "out" }, { "pointer": "data" }],
    });
    let columns =
        ["to_first_load_clk", "first_issue_clk", "second_issue_clk", "third_issue_clk", "fourth_issue_clk"];
    let mut probe = once(chip, "tma_issue", about, ptx, false, &columns, launch);
    probe.buffers.push(("data", 8192 * u64::from(ctas)));
    probe
}

/// What runs before the straight-line code.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    /// The same launch.
    Same,
    /// Other code, more than an SM's instruction caches hold.
    OtherCode,
    /// The same, and reads of more than L2 holds.
    Cold,
}

/// Straight-line code, run twice.
fn code(chip: &Chip, count: u32, before: Before) -> Probe {
    let full = count;
    let count = chip.few(count / 16, count);
    let list: String =
        (0..count).map(|i| format!("    fma.rn.f32 %f{0}, %f{0}, %factor, %factor;\n", i % 8)).collect();
    let about =
        format!("{count} multiply-adds in a row by one warp on all SMs, run for the first time and again");
    let ptx = chip.fill(include_str!("code.ptx"), &[("ABOUT", &about), ("UNROLLED", list.trim_end())]);
    let launch = json!({ "params": [{ "pointer": "out" }, { "f32": 0.5 }] });
    let (suffix, more) = match before {
        Before::Same => ("", ""),
        Before::OtherCode => ("_evicted", ", after other code"),
        Before::Cold => ("_evicted", ", after other code"),
    };
    let name = format!("code_{full}{suffix}");
    let cold = before == Before::Cold;
    let mut probe = once(chip, &name, &(about + more), ptx, cold, &["first_clk", "second_clk"], launch);
    if before != Before::Same {
        let list: String =
            (0..chip.few(64, 12_288)).map(|i| format!("fma.rn.f32 %f{0},%f{0},%f8,%f8;\n", i % 8)).collect();
        probe.ptx += &include_str!("evict.ptx").replace("@UNROLLED@", list.trim_end());
        let ctas = chip.few(1, chip.sms);
        let params = json!([{ "pointer": "out" }, { "f32": 0.5 }]);
        probe.launches.insert(
            0,
            json!({ "kernel": "evict", "grid": [ctas, 1, 1], "block": [32, 1, 1], "dynamic_smem": 120_000, "params": params }),
        );
    }
    probe
}

/// CTAs of which an SM holds one at a time: time from the end of one to the start of the next.
fn turnover(chip: &Chip, name: &str, threads: u32, spread: u32) -> Probe {
    let ctas = chip.few(2, chip.sms) * 4;
    Probe {
        name: name.to_owned(),
        about: format!(
            "from the end of a CTA of {threads} threads to the first instruction of the next one on its SM, {}",
            if spread == 1 { "all at once" } else { "one SM after the other" }
        ),
        ptx: chip.fill(include_str!("turnover.ptx"), &[("THREADS", &threads.to_string())]),
        buffers: vec![("out", 32 * u64::from(ctas))],
        launches: vec![json!({
            "kernel": "probe", "grid": [ctas, 1, 1], "block": [threads, 1, 1], "dynamic_smem": 200_000,
            "params": [{ "pointer": "out" }, { "u32": chip.few(10, 4000) }, { "u32": chip.few(1, spread) }],
        })],
        reduce: json!({ "kind": "turnover" }),
    }
}
