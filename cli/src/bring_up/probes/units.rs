//! Probes of an SM's units: latencies by dependent chains, intervals by streams of four warps.

use super::{Chip, Probe};
use serde_json::json;

/// The work that a chain or a stream repeats.
struct Unit<'a> {
    name: &'a str,
    about: &'a str,
    threads: u32,
    /// Copies of the work in a round.
    unroll: u32,
    /// Lines before the loop.
    before: &'a str,
    /// One copy of the work; `#` is its number in the round, `@8`, `@3` that number modulo 8, 3 and so on.
    work: &'a str,
    /// Registers whose use keeps the work from being optimised away.
    keep: &'a [&'a str],
}

const X: [&str; 8] = ["%x0", "%x1", "%x2", "%x3", "%x4", "%x5", "%x6", "%x7"];
/// Code that gives each thread a word of shared memory which holds its own address.
const OWN_WORD: &str =
    "shl.b32 %x1, %thread, 2; add.u32 %x1, %x1, %smem; mov.b32 %x0, %x1; st.shared.b32 [%x0], %x0;";
/// Code that gives each lane the address of its 16-byte row, and a zero that the assembler does not know.
const ROWS: &str =
    "shl.b32 %x13, %thread, 4; add.u32 %x13, %x13, %smem; ld.global.b32 %x14, [%data]; mov.b32 %x0, %x14;";
/// Code that makes a tensor map in shared memory, which nothing uses.
const MAP: &str = "mov.b32 %x0, 0; st.shared.v4.b32 [%smem], { %x0, %x0, %x0, %x0 }; fence.proxy.async;";
/// Code that stores zero in the word that loads read.
const ZERO: &str = "mov.b32 %x0, 0; st.global.u32 [%data], %x0; fence.acq_rel.gpu;";
/// Loads in which each address depends on the previous value.
const RELAXED_LOAD: &str =
    "cvt.u64.u32 %y1, %x0; add.u64 %y1, %y1, %data; ld.relaxed.gpu.global.u32 %x0, [%y1];";
const ACQUIRE_LOAD: &str =
    "cvt.u64.u32 %y1, %x0; add.u64 %y1, %y1, %data; ld.acquire.gpu.global.u32 %x0, [%y1];";
const BARRIER: &str = "mbarrier.init.shared::cta.b64 [%smem], 1;";

const UNITS: &[Unit<'_>] = &[
    chain(
        "loop",
        "a loop of a multiply-add: with it a sum, a comparison, a branch",
        "fma.rn.f32 %x0, %x0, %x1, %x2;",
        1,
    ),
    chain("fma_latency", "dependent fma.rn.f32", "fma.rn.f32 %x0, %x0, %x1, %x2;", 64),
    stream("fma_interval", "fma.rn.f32 of four warps", "fma.rn.f32 %x@8, %x@8, %x8, %x9;"),
    chain("alu_latency", "dependent prmt.b32", "prmt.b32 %x0, %x0, %x1, %x2;", 64),
    stream("alu_interval", "prmt.b32 of four warps", "prmt.b32 %x@8, %x@8, %x8, %x9;"),
    stream("imad_interval", "mad.lo.u32 of four warps", "mad.lo.u32 %x@8, %x@8, 0x1041, %x8;"),
    stream(
        "alu_and_imad_interval",
        "lop3.b32 and mad.lo.u32 of four warps by turns, both",
        "lop3.b32 %x@8, %x@8, 0x0f0f1f0f, %x8, 0x6a; mad.lo.u32 %x@8, %x@8, 0x1041, %x8;",
    ),
    stream(
        "alu_and_convert_interval",
        "lop3.b32 and cvt.rn.bf16x2.f32 of four warps by turns, both",
        "lop3.b32 %x@8, %x@8, 0x0f0f1f0f, %x8, 0x6a; cvt.rn.bf16x2.f32 %x@8, %x@8, %x9;",
    ),
    stream(
        "imad_and_fma_interval",
        "mad.lo.u32 and fma.rn.f32 of four warps by turns, both",
        "mad.lo.u32 %x@8, %x@8, 0x1041, %x8; fma.rn.f32 %x@8, %x@8, %x9, %x10;",
    ),
    chain("exponential_latency", "dependent ex2.approx.ftz.f32", "ex2.approx.ftz.f32 %x0, %x0;", 64),
    stream("exponential_interval", "ex2.approx.ftz.f32 of four warps", "ex2.approx.ftz.f32 %x@8, %x@8;"),
    chain("convert_f16_latency", "dependent cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 %x0, %x0, %x1;", 64),
    stream("convert_f16_interval", "cvt.rn.f16x2.f32 of four warps", "cvt.rn.f16x2.f32 %x@8, %x@8, %x8;"),
    chain("convert_bf16_latency", "dependent cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 %x0, %x0, %x1;", 64),
    stream("convert_bf16_interval", "cvt.rn.bf16x2.f32 of four warps", "cvt.rn.bf16x2.f32 %x@8, %x@8, %x8;"),
    chain(
        "shuffle_latency",
        "dependent shfl.sync.bfly",
        "shfl.sync.bfly.b32 %x0, %x0, 1, 31, 0xffffffff;",
        16,
    ),
    stream(
        "shuffle_interval",
        "shfl.sync.bfly of four warps",
        "shfl.sync.bfly.b32 %x@8, %x@8, 1, 31, 0xffffffff;",
    ),
    Unit {
        before: OWN_WORD,
        ..chain("shared_load_latency", "dependent ld.shared.b32", "ld.volatile.shared.b32 %x0, [%x0];", 64)
    },
    Unit {
        before: OWN_WORD,
        ..chain(
            "shared_round_trip",
            "st.shared.b32 and ld.shared.b32 of the same word",
            "st.volatile.shared.b32 [%x1], %x0; ld.volatile.shared.b32 %x0, [%x1];",
            64,
        )
    },
    Unit {
        before: ROWS,
        keep: &["%x0", "%x12"],
        ..stream(
            "shared_load_interval",
            "ld.shared.v4.b32 of four warps, 512 bytes each",
            "ld.volatile.shared.v4.b32 { %x@a, %x@b, %x@c, %x@d }, [%x13 + @2048]; \
             lop3.b32 %x12, %x12, %x@a, %x@b, 0x96; lop3.b32 %x12, %x12, %x@c, %x@d, 0x96;",
        )
    },
    Unit {
        before: ROWS,
        ..stream(
            "shared_store_interval",
            "st.shared.v4.b32 of four warps, 512 bytes each",
            "st.volatile.shared.v4.b32 [%x13 + @2048], { %x0, %x1, %x2, %x3 };",
        )
    },
    Unit {
        before: ROWS,
        ..chain(
            "ldmatrix_latency",
            "dependent ldmatrix.x4, with the sum that makes its address",
            "add.u32 %x5, %x13, %x0; ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %x0, %x1, %x2, %x3 }, [%x5];",
            64,
        )
    },
    Unit {
        before: ROWS,
        keep: &["%x0", "%x12"],
        ..stream(
            "ldmatrix_interval",
            "ldmatrix.x4 of four warps",
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %x@a, %x@b, %x@c, %x@d }, [%x13 + @2048]; \
             lop3.b32 %x12, %x12, %x@a, %x@b, 0x96; lop3.b32 %x12, %x12, %x@c, %x@d, 0x96; xor.b32 %x13, %x13, %x14;",
        )
    },
    Unit {
        before: "mul.wide.u32 %y1, %thread, 8; add.u64 %y1, %y1, %data; st.global.u64 [%y1], %y1;",
        ..chain(
            "l1_hit",
            "a dependent load that hits L1",
            "ld.global.u64 %y1, [%y1]; cvt.u32.u64 %x0, %y1;",
            16,
        )
    },
    Unit {
        threads: 1,
        ..chain(
            "atom",
            "dependent atom.global.add.u32 of one thread",
            "atom.global.add.u32 %x0, [%data], %x0;",
            1,
        )
    },
    Unit {
        threads: 1,
        ..chain(
            "atom_acq_rel",
            "dependent atom.acq_rel.gpu.global.add.u32 of one thread",
            "atom.acq_rel.gpu.global.add.u32 %x0, [%data], %x0;",
            1,
        )
    },
    chain("fence_cta", "fence.acq_rel.cta with nothing before it", "fence.acq_rel.cta;", 16),
    chain("fence_cluster", "fence.acq_rel.cluster with nothing before it", "fence.acq_rel.cluster;", 16),
    chain("fence_gpu", "fence.acq_rel.gpu with nothing before it", "fence.acq_rel.gpu;", 16),
    chain("fence_proxy_shared", "fence.proxy.async.shared::cta", "fence.proxy.async.shared::cta;", 16),
    chain("fence_proxy", "fence.proxy.async", "fence.proxy.async;", 16),
    chain("fence_proxy_global", "fence.proxy.async.global", "fence.proxy.async.global;", 16),
    Unit {
        threads: 1,
        before: MAP,
        ..chain(
            "tensormap_replace",
            "tensormap.replace of the address, in shared memory",
            "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%smem], %data;",
            16,
        )
    },
    Unit {
        threads: 1,
        before: MAP,
        ..chain(
            "tensormap_replace_global",
            "tensormap.replace of the address, in global memory",
            "tensormap.replace.tile.global_address.global.b1024.b64 [%data], %data;",
            16,
        )
    },
    Unit {
        before: MAP,
        ..chain(
            "tensormap_publish",
            "tensormap.cp_fenceproxy of 128 bytes from shared to global memory",
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%data], [%smem], 128;",
            16,
        )
    },
    Unit {
        before: MAP,
        ..chain(
            "tensormap_acquire",
            "fence.proxy.tensormap::generic.acquire.gpu of 128 bytes",
            "fence.proxy.tensormap::generic.acquire.gpu [%data], 128;",
            16,
        )
    },
    Unit {
        before: MAP,
        ..chain(
            "tensormap_publish_and_acquire",
            "tensormap.cp_fenceproxy and then fence.proxy.tensormap of the same 128 bytes",
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%data], [%smem], 128; \
             fence.proxy.tensormap::generic.acquire.gpu [%data], 128;",
            4,
        )
    },
    Unit {
        threads: 1,
        before: ZERO,
        ..chain("load_relaxed", "dependent ld.relaxed.gpu of one thread", RELAXED_LOAD, 4)
    },
    Unit {
        threads: 1,
        before: ZERO,
        ..chain("load_acquire", "dependent ld.acquire.gpu of one thread", ACQUIRE_LOAD, 4)
    },
    Unit {
        threads: 1,
        ..chain("store_relaxed", "st.relaxed.gpu of one thread", "st.relaxed.gpu.global.u32 [%data], %x0;", 4)
    },
    Unit {
        threads: 1,
        ..chain("store_release", "st.release.gpu of one thread", "st.release.gpu.global.u32 [%data], %x0;", 4)
    },
    Unit {
        threads: 1,
        ..chain(
            "red_release",
            "red.release.gpu of one thread",
            "red.release.gpu.global.add.u32 [%data], %x0;",
            4,
        )
    },
    Unit {
        threads: 1,
        ..chain(
            "atom_acquire",
            "dependent atom.acquire.gpu of one thread",
            "atom.acquire.gpu.global.add.u32 %x0, [%data], %x0;",
            1,
        )
    },
    Unit {
        threads: 1,
        ..chain(
            "atom_release",
            "dependent atom.release.gpu of one thread",
            "atom.release.gpu.global.add.u32 %x0, [%data], %x0;",
            1,
        )
    },
    Unit {
        before: "mul.wide.u32 %y0, %thread, 16; add.u64 %y0, %y0, %data;",
        ..chain(
            "store_and_fence",
            "a store of 16 bytes a lane and fence.acq_rel.gpu, which waits for it",
            "st.global.v4.b32 [%y0], { %x0, %x0, %x0, %x0 }; fence.acq_rel.gpu;",
            4,
        )
    },
    Unit { threads: 32, ..chain("barrier_of_1_warp", "bar.sync of one warp", "bar.sync 0;", 64) },
    Unit { threads: 128, ..chain("barrier_of_4_warps", "bar.sync of 4 warps", "bar.sync 0;", 64) },
    Unit { threads: 256, ..chain("barrier_of_8_warps", "bar.sync of 8 warps", "bar.sync 0;", 64) },
    Unit { threads: 384, ..chain("barrier_of_12_warps", "bar.sync of 12 warps", "bar.sync 0;", 64) },
    Unit {
        threads: 1,
        before: BARRIER,
        ..chain(
            "mbarrier_test",
            "mbarrier.try_wait for a phase that is complete",
            "mbarrier.try_wait.parity.shared::cta.b64 %complete, [%smem], 1; @!%complete bra DONE;",
            4,
        )
    },
    Unit {
        threads: 1,
        before: "mbarrier.init.shared::cta.b64 [%smem], 1; mov.b32 %x0, 0;",
        ..chain(
            "mbarrier_arrive_and_wait",
            "a thread's arrival at an mbarrier and its wait for that phase",
            "mbarrier.arrive.shared::cta.b64 _, [%smem];\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %complete, [%smem], %x0; \
             @!%complete bra WAIT; xor.b32 %x0, %x0, 1;",
            1,
        )
    },
];

/// A probe of one warp in which each copy of the work depends on the one before.
const fn chain<'a>(name: &'a str, about: &'a str, work: &'a str, unroll: u32) -> Unit<'a> {
    Unit { name, about, threads: 32, unroll, before: "", work, keep: &["%x0"] }
}

/// A probe of four warps, one per sub-core, with eight chains each.
const fn stream<'a>(name: &'a str, about: &'a str, work: &'a str) -> Unit<'a> {
    Unit { name, about, threads: 128, unroll: 96, before: "", work, keep: &X }
}

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    let mut probes: Vec<Probe> = UNITS.iter().map(|unit| probe(chip, unit)).collect();
    let about = "two CTAs of a cluster wake each other by mbarriers: arrival, wait, arrival, wait";
    let launch = json!({ "grid": [2, 1, 1], "cluster": [2, 1, 1], "block": [32, 1, 1], "dynamic_smem": 16 });
    for (name, release, acquire) in [
        ("mbarrier_wake_up_remote", "", ""),
        ("mbarrier_wake_up_remote_release", ".release.cluster", ".acquire.cluster"),
    ] {
        let values = [("RELEASE", release), ("ACQUIRE", acquire)];
        let ptx = chip.fill(include_str!("mbarrier_remote.ptx"), &values);
        probes.push(chip.steady(name, about, ptx, 1, "round_trip_clk", &launch, false));
    }
    probes
}

fn probe(chip: &Chip, unit: &Unit<'_>) -> Probe {
    let lines = |text: &str| -> String {
        text.split_inclusive([';', '\n']).map(|line| format!("    {}\n", line.trim())).collect()
    };
    let work: String = (0..unit.unroll)
        .map(|i| {
            let quad = 4 * (i % 3);
            let mut text =
                unit.work.replace("@8", &(i % 8).to_string()).replace("@2048", &(2048 * (i % 8)).to_string());
            for (k, letter) in ["@a", "@b", "@c", "@d"].iter().enumerate() {
                text = text.replace(letter, &(quad + k as u32).to_string());
            }
            lines(&text)
        })
        .collect();
    let first: String = (0..16).map(|i| format!("    mov.b32 %x{i}, %thread;\n")).collect();
    let keep: String = (unit.keep.iter().enumerate())
        .map(|(i, x)| match i {
            0 => format!("    mov.b32 %same, {x};\n"),
            _ => format!("    xor.b32 %same, %same, {x};\n"),
        })
        .collect();
    let before = first + &lines(unit.before);
    let values = [
        ("ABOUT", unit.about),
        ("THREADS", &unit.threads.to_string()),
        ("STRIDE", &(16 * unit.threads).to_string()),
        ("BEFORE", before.trim_end()),
        ("UNROLLED", work.trim_end()),
        ("KEEP", keep.trim_end()),
    ];
    let ptx = chip.fill(include_str!("chain.ptx"), &values);
    let launch = json!({ "grid": [1, 1, 1], "block": [unit.threads, 1, 1], "dynamic_smem": 16_384 });
    chip.steady(unit.name, unit.about, ptx, unit.unroll, "interval_clk", &launch, true)
}
