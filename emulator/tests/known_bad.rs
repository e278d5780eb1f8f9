//! Mistakes that people met on hardware: accumulators of another tile, and mbarriers that are initialised while in use.

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Report, Schedule, Tracking};

const SCHEDULES: [Schedule; 4] = [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)];

/// Runs a body with one CTA; the words of `out`, and the findings.
fn try_run(
    body: &str,
    threads: u32,
    count: usize,
    schedule: Schedule,
    tracking: Tracking,
) -> (Report, Vec<u32>) {
    let mut memory = GlobalMemory::new();
    let input: Vec<u8> = (0..4096u32).flat_map(|i| (i / 32 + 1).to_le_bytes()).collect();
    let _ = memory.alloc_from("in", &input);
    let out = memory.alloc("out", 4 * count as u64);
    let input = memory.alloc_from("input", &input);
    let text = kernel(body).replace(".param .u64 out)", ".param .u64 out, .param .u64 in)");
    let l =
        launch(1, threads, vec![Arg::Pointer(memory.address(&out)), Arg::Pointer(memory.address(&input))]);
    let options = Options { schedule, tracking, instruction_limit: 2_000_000, ..Options::default() };
    let report = run(&parse(&text), &l, &memory, &options);
    (report, memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect())
}

/// Six tiles in a fixed order by two warps: warp 1 multiplies A of tile `t`, whose elements are all `t + 1`, with ones into
/// one of two accumulators; warp 0 stores one element of each, in the meantime.
const TILES: &str = "
    .shared .align 1024 .b8 tiles[32768];
    .shared .align 8 .b64 full[2];
    .shared .align 8 .b64 empty[2];
    .shared .align 4 .b32 place;
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    shl.b32 %r2, %r0, 2;
    mov.u32 %r3, tiles;
    add.u32 %r4, %r3, %r2;
    mov.u32 %r5, 0;
FILL:
    shr.u32 %r6, %r5, 4;
    add.u32 %r6, %r6, 1;
    setp.gt.u32 %p0, %r6, 6;
    @%p0 mov.u32 %r6, 1;
    cvt.rn.f16.u32 %h0, %r6;
    mov.b32 %r6, {%h0, %h0};
    st.shared.u32 [%r4], %r6;
    add.u32 %r4, %r4, 256;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p0, %r5, 128;
    @%p0 bra FILL;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [full], 1;
    mbarrier.init.shared::cta.b64 [full+8], 1;
    mbarrier.init.shared::cta.b64 [empty], 32;
    mbarrier.init.shared::cta.b64 [empty+8], 32;
READY:
    fence.proxy.async.shared::cta;
    setp.ne.u32 %p2, %r1, 1;
    @%p2 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [place], 128;
ALLOCATED:
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.u32 %r10, [place];
    mov.u32 %r20, 0;
    @%p2 bra EPILOGUE;
    elect.sync _|%p3, 0xffffffff;
    @!%p3 bra DONE;
    and.b32 %r3, %r3, 0x3ffff;
    shr.u32 %r3, %r3, 4;
    cvt.u64.u32 %rd0, %r3;
    or.b64 %rd10, %rd0, 0x0000401000080000;
    add.u64 %rd11, %rd10, 1536;
TILE:
    and.b32 %r21, %r20, 1;
    shr.u32 %r22, %r20, 1;
    and.b32 %r22, %r22, 1;
    xor.b32 %r22, %r22, 1;
    mov.u32 %r23, empty;
    mad.lo.u32 %r23, %r21, 8, %r23;
FREE:
    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r23], %r22;
    @!%p4 bra FREE;
    tcgen05.fence::after_thread_sync;
    mad.lo.u32 %r24, %r21, 64, %r10;
    tcgen05.mma.cta_group::1.kind::f16 [%r24], %rd10, %rd11, 0x08100010, 0;
    mov.u32 %r23, full;
    mad.lo.u32 %r23, %r21, 8, %r23;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r23];
    add.u64 %rd10, %rd10, 256;
    add.u32 %r20, %r20, 1;
    setp.lt.u32 %p5, %r20, 6;
    @%p5 bra TILE;
    bra DONE;
EPILOGUE:
    and.b32 %r21, %r20, 1;
    shr.u32 %r22, %r20, 1;
    and.b32 %r22, %r22, 1;
    mov.u32 %r23, full;
    mad.lo.u32 %r23, %r21, 8, %r23;
COMPLETE:
    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r23], %r22;
    @!%p4 bra COMPLETE;
    tcgen05.fence::after_thread_sync;
    mad.lo.u32 %r24, %r21, 64, %r10;
    mov.u32 %r23, empty;
    mad.lo.u32 %r23, %r21, 8, %r23;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r25}, [%r24];
    tcgen05.wait::ld.sync.aligned;
    tcgen05.fence::before_thread_sync;
    mbarrier.arrive.shared::cta.b64 _, [%r23];
    cvt.u64.u32 %rd1, %r20;
    mad.lo.u64 %rd1, %rd1, 4, %out;
    setp.eq.u32 %p6, %r0, 0;
    @%p6 st.global.u32 [%rd1], %r25;
    add.u32 %r20, %r20, 1;
    setp.lt.u32 %p5, %r20, 6;
    @%p5 bra EPILOGUE;
DONE:
    bar.warp.sync 0xffffffff;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    @%p2 bra LEAVE;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 128;
LEAVE:
";

fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn accumulators_of_another_tile_are_found() {
    let wanted: Vec<u32> = (1..=6).map(|t| (16.0 * t as f32).to_bits()).collect();
    for schedule in SCHEDULES {
        let (report, got) = try_run(TILES, 64, 6, schedule, Tracking::HappensBefore);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!(got, wanted, "{schedule:?}");
    }
    let phase = "    shr.u32 %r22, %r20, 1;\n    and.b32 %r22, %r22, 1;\n    mov.u32 %r23, full;";
    let load =
        "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r25}, [%r24];\n    tcgen05.wait::ld.sync.aligned;\n";
    let arrive = "    mbarrier.arrive.shared::cta.b64 _, [%r23];\n";
    let mistakes = [
        // The epilogue's parity changes with every tile and not with every second one.
        ("parity", edited(TILES, &[(phase, "    and.b32 %r22, %r20, 1;\n    mov.u32 %r23, full;")])),
        // It stays the same: later tiles are taken for complete.
        ("no flip", edited(TILES, &[(phase, "    mov.u32 %r22, 0;\n    mov.u32 %r23, full;")])),
        // The epilogue does not wait at all, or the products do not.
        (
            "no wait for sums",
            edited(
                TILES,
                &[(
                    "    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r23], %r22;\n    @!%p4 bra COMPLETE;\n",
                    "",
                )],
            ),
        ),
        (
            "no wait for room",
            edited(
                TILES,
                &[(
                    "    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r23], %r22;\n    @!%p4 bra FREE;\n",
                    "",
                )],
            ),
        ),
        // The accumulators are free before they are read, or while they are.
        ("free too early", edited(TILES, &[(arrive, ""), (load, &format!("{arrive}{load}"))])),
        (
            "free while read",
            edited(
                TILES,
                &[
                    ("    tcgen05.wait::ld.sync.aligned;\n", ""),
                    (arrive, &format!("{arrive}    tcgen05.wait::ld.sync.aligned;\n")),
                ],
            ),
        ),
        // The epilogue's order is one tile behind.
        (
            "other order",
            edited(
                TILES,
                &[(
                    "EPILOGUE:\n    and.b32 %r21, %r20, 1;",
                    "EPILOGUE:\n    add.u32 %r21, %r20, 1;\n    and.b32 %r21, %r21, 1;",
                )],
            ),
        ),
    ];
    for (name, text) in &mistakes {
        for schedule in SCHEDULES {
            let (report, got) = try_run(text, 64, 6, schedule, Tracking::HappensBefore);
            // Where the roles' orders differ alone, all that each does is ordered, and the numbers are wrong.
            let found = !report.is_clean() || *name == "other order" && got != wanted;
            assert!(found, "{name}, {schedule:?}");
        }
        if name.starts_with("free") {
            // The products that would overwrite them take as long as the reads in any of these schedules.
            continue;
        }
        // One of the schedules shows it without tracking, too.
        let shown = SCHEDULES.into_iter().any(|s| {
            let (report, got) = try_run(text, 64, 6, s, Tracking::Off);
            !report.is_clean() || got != wanted
        });
        assert!(shown, "{name}");
    }
}

/// Four rounds, each with an mbarrier of its own life: a bulk copy of 128 bytes, which both warps wait for and add up.
const ROUNDS: &str = "
    .shared .align 128 .b8 data[128];
    .shared .align 8 .b64 bar;
    .reg .b64 %in;
    ld.param.u64 %in, [in];
    cvta.to.global.u64 %in, %in;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, data;
    mov.u32 %r2, bar;
    mov.u32 %r3, 0;
    mov.u32 %r4, 0;
    setp.ne.u32 %p0, %r0, 0;
ROUND:
    @%p0 bra LOADED;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%in], 128, [%r2];
LOADED:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra WAIT;
    and.b32 %r5, %r0, 31;
    mad.lo.u32 %r5, %r5, 4, %r1;
    ld.shared.u32 %r6, [%r5];
    add.u32 %r4, %r4, %r6;
    bar.sync 0;
    @%p0 bra ENDED;
    mbarrier.inval.shared::cta.b64 [%r2];
ENDED:
    add.u64 %in, %in, 128;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 4;
    @%p2 bra ROUND;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd1, %rd1, %out;
    st.global.u32 [%rd1], %r4;
";

#[test]
fn an_mbarrier_that_starts_anew_while_in_use_is_found() {
    for schedule in SCHEDULES {
        let (report, got) = try_run(ROUNDS, 64, 64, schedule, Tracking::HappensBefore);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!(got, vec![1 + 2 + 3 + 4; 64], "{schedule:?}");
    }
    let inval = "    mbarrier.inval.shared::cta.b64 [%r2];\n";
    let last = "    add.u32 %r4, %r4, %r6;\n    bar.sync 0;\n";
    // Initialised again, without an end to its first life.
    let alive = edited(ROUNDS, &[(inval, "")]);
    for schedule in SCHEDULES {
        for tracking in [Tracking::Off, Tracking::HappensBefore] {
            let (report, _) = try_run(&alive, 64, 64, schedule, tracking);
            assert!(
                report.findings.iter().any(|f| f.line != 0 && f.text.contains("mbarrier.init")),
                "{:#?}",
                report.findings
            );
        }
    }
    // The other warp may still wait.
    let waited = edited(ROUNDS, &[(last, "    add.u32 %r4, %r4, %r6;\n")]);
    // Nobody waits for the last copy.
    let loads = edited(
        ROUNDS,
        &[("    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;\n    @!%p1 bra WAIT;\n", "")],
    );
    for (name, text) in [("waited", &waited), ("loads", &loads)] {
        for schedule in SCHEDULES {
            let (report, _) = try_run(text, 64, 64, schedule, Tracking::HappensBefore);
            let kinds: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
            assert!(
                kinds.contains(&FindingKind::MbarrierReused),
                "{name}, {schedule:?}: {:#?}",
                report.findings
            );
        }
    }
    // A copy under way is seen without tracking, where it takes its time.
    let (report, _) = try_run(&loads, 64, 64, Schedule::Late, Tracking::Off);
    assert!(
        report
            .findings
            .iter()
            .any(|f| f.kind == FindingKind::MbarrierReused && f.message.contains("128 bytes")),
        "{:#?}",
        report.findings
    );
}
