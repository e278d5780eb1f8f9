//! Small kernels that are ordered, and the same with one instruction less: happens-before tracking names
//! what is missing, also when the schedule of the run did no harm.

use crate::common;

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Report, Schedule, Tracking};

fn run_body(body: &str, threads: u32, schedule: Schedule, tracking: Tracking) -> Report {
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[1; 4096]);
    let launch = launch(1, threads, vec![Arg::Pointer(memory.address(&out))]);
    run(&parse(&kernel(body)), &launch, &memory, &Options { schedule, tracking, ..Options::default() })
}

/// The kernel is clean under all schedules; without (or with `to` in place of) `from` it is not, and the
/// `witness` schedule shows `kind` when tracking is on.
fn twin_under(
    witness: Schedule,
    body: &str,
    threads: u32,
    from: &str,
    to: &str,
    kind: FindingKind,
) -> String {
    let starved = (0..threads.div_ceil(32)).map(|warp| Schedule::Starve { warp, seed: 3 });
    let schedules = [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)];
    for schedule in schedules.into_iter().chain(starved) {
        let report = run_body(body, threads, schedule, Tracking::Strict);
        assert!(report.is_clean(), "{schedule:?}: {}\n{body}", report.findings[0]);
    }
    assert!(body.contains(from), "`{from}` is not in\n{body}");
    let damaged = body.replacen(from, to, 1);
    let report = run_body(&damaged, threads, witness, Tracking::Strict);
    match report.findings.iter().find(|f| f.kind == kind) {
        Some(f) => f.message.clone(),
        None => panic!("expected {kind:?}, found {:#?}\n{damaged}", report.findings),
    }
}

fn twin(body: &str, threads: u32, from: &str, kind: FindingKind) -> String {
    twin_under(Schedule::Early, body, threads, from, "", kind)
}

#[test]
fn shared_memory_needs_a_barrier_between_warps() {
    let body = r#"
    .shared .align 16 .b32 x[64];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    xor.b32 %r4, %r1, 128;
    add.u32 %r4, %r2, %r4;
    st.shared.u32 [%r3], %r0;
    bar.sync 0; // written
    ld.shared.u32 %r5, [%r4];
    barrier.sync 1, 64; // read
    st.shared.u32 [%r3], %r5;
"#;
    let text = twin(body, 64, "bar.sync 0; // written", FindingKind::RaceShared);
    assert!(text.contains("st.shared.u32 [%r3], %r0;") && text.contains("warp 0"), "{text}");
    let text = twin(body, 64, "barrier.sync 1, 64; // read", FindingKind::SlotOverwritten);
    assert!(text.contains("ld.shared.u32 %r5, [%r4];"), "{text}");
}

#[test]
fn lanes_of_a_warp_need_bar_warp_sync() {
    let body = r#"
    .shared .align 16 .b32 x[32];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    st.shared.u32 [%r3], %r0;
    bar.warp.sync 0xffffffff;
    xor.b32 %r1, %r1, 4;
    add.u32 %r3, %r2, %r1;
    ld.shared.u32 %r4, [%r3];
    fence.proxy.async.shared::cta;
    elect.sync _|%p1, 0xffffffff;
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r2], 128;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
"#;
    let text = twin(body, 32, "bar.warp.sync 0xffffffff;", FindingKind::RaceShared);
    assert!(text.contains("different lanes of one warp"), "{text}");
}

#[test]
fn a_matrix_that_all_lanes_store_needs_bar_warp_sync_before_one_of_them_copies_it_or_arrives_for_all() {
    let store = r#"
    .shared .align 16 .b32 x[32];
    .shared .align 8 .b64 full;
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p2, %r0, 0;
    @%p2 mbarrier.init.shared::cta.b64 [full], 1;
    bar.sync 0;
    setp.ge.u32 %p3, %r0, 32;
    @%p3 bra OTHER;
    and.b32 %r1, %r0, 7;
    shl.b32 %r1, %r1, 4;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], { %r0 };
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
    elect.sync _|%p1, 0xffffffff;
"#;
    let copied = format!(
        "{store}
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r2], 128;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
OTHER:
"
    );
    let text = twin(&copied, 32, "bar.warp.sync 0xffffffff;", FindingKind::RaceShared);
    assert!(text.contains("different lanes of one warp"), "{text}");
    let announced = format!(
        "{store}
    @%p1 mbarrier.arrive.shared::cta.b64 _, [full];
    ret;
OTHER:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [full], 0;
    @!%p1 bra OTHER;
    and.b32 %r1, %r0, 31;
    shl.b32 %r1, %r1, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    ld.shared.u32 %r4, [%r3];
"
    );
    let text = twin(&announced, 64, "bar.warp.sync 0xffffffff;", FindingKind::RaceShared);
    assert!(text.contains("bar.warp.sync"), "{text}");
}

#[test]
fn neighbouring_bytes_of_two_warps_do_not_conflict() {
    let body = r#"
    .shared .align 16 .b8 x[16];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    mov.u32 %r2, x;
    add.u32 %r2, %r2, %r1;
    cvt.u16.u32 %h0, %r1;
    st.shared.u8 [%r2], %h0;
"#;
    for schedule in [Schedule::Early, Schedule::Random(4)] {
        let report = run_body(body, 128, schedule, Tracking::Strict);
        assert!(report.is_clean(), "{}", report.findings[0]);
    }
}

#[test]
fn warps_may_store_one_value_and_copies_may_overwrite_what_was_read() {
    let body = r#"
    .shared .align 16 .b8 x[64];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, bar;
    mov.u32 %r2, x;
    st.shared.u32 [%r2], 7;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    ld.shared.u32 %r3, [%r2]; // read back
    bar.sync 1;
    @%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%out], 64, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra WAIT;
"#;
    twin(body, 64, "ld.shared.u32 %r3, [%r2]; // read back", FindingKind::MissingProxyFence);
    twin(body, 64, "bar.sync 1;", FindingKind::SlotOverwritten);
    // Each thread stores a value of its own.
    let from = "st.shared.u32 [%r2], 7;";
    twin_under(Schedule::Early, body, 64, from, "st.shared.u32 [%r2], %r0;", FindingKind::RaceShared);
}

#[test]
fn global_memory_needs_a_barrier_or_a_flag() {
    let body = r#"
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra READ;
    st.global.u32 [%out], 7;
READ:
    bar.sync 0;
    @!%p0 bra DONE;
    ld.global.u32 %r1, [%out];
DONE:
"#;
    twin(body, 64, "    bar.sync 0;\n", FindingKind::RaceGlobal);
    let flag = r#"
    mov.u32 %r0, %tid.x;
    bar.sync 0;
    setp.eq.u32 %p0, %r0, 32;
    @%p0 bra READ;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra DONE;
    st.global.u32 [%out], 7;
    st.release.gpu.global.u32 [%out+2048], 1;
    bra DONE;
READ:
    ld.acquire.gpu.global.u32 %r1, [%out+2048];
    setp.ne.u32 %p2, %r1, 1;
    @%p2 bra READ;
    ld.global.u32 %r1, [%out];
DONE:
"#;
    twin_under(
        Schedule::Early,
        flag,
        64,
        "st.release.gpu.global",
        "st.relaxed.gpu.global",
        FindingKind::RaceGlobal,
    );
    twin_under(
        Schedule::Early,
        flag,
        64,
        "ld.acquire.gpu.global",
        "ld.relaxed.gpu.global",
        FindingKind::RaceGlobal,
    );
}

/// A bulk copy to shared memory, and one back.
const BULK: &str = include_str!("common/bodies/bulk.ptx");

#[test]
fn bulk_copies_need_their_waits_and_fences() {
    let wait = "    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n    @!%p1 bra WAIT;\n";
    let text = twin(BULK, 64, wait, FindingKind::MissingMbarrierWait);
    assert!(text.contains("cp.async.bulk.shared::cluster"), "{text}");
    twin(BULK, 64, "fence.proxy.async.shared::cta;", FindingKind::MissingProxyFence);
    twin(BULK, 64, "cp.async.bulk.wait_group.read 0;", FindingKind::SlotOverwritten);
    twin(BULK, 64, "    bar.sync 0; // initialised\n", FindingKind::MbarrierNotVisible);
    twin(BULK, 64, "    bar.sync 0; // read\n", FindingKind::RaceShared);
}

#[test]
fn wrong_byte_counts_and_surplus_arrivals_are_named() {
    let text =
        twin_under(Schedule::Late, BULK, 64, "[%r1], 64;", "[%r1], 80;", FindingKind::TransactionMismatch);
    assert!(text.contains("transaction count of 16"), "{text}");
    let arrive = "    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;\n";
    let again = format!("{arrive}    mbarrier.arrive.shared::cta.b64 _, [%r1];\n");
    twin_under(Schedule::Late, BULK, 64, arrive, &again, FindingKind::ArrivalOverflow);
}

#[test]
fn small_copies_need_their_wait() {
    let body = r#"
    .shared .align 16 .b8 x[512];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 4;
    mov.u32 %r2, x;
    add.u32 %r2, %r2, %r1;
    cvt.u64.u32 %rd0, %r1;
    add.u64 %rd0, %rd0, %out;
    cp.async.cg.shared.global [%r2], [%rd0], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.u32 %r3, [%r2];
"#;
    twin(body, 32, "cp.async.wait_group 0;", FindingKind::MissingCopyWait);
}

#[test]
fn a_barrier_must_not_run_ahead_of_its_waiters() {
    let body = r#"
    .shared .align 8 .b64 go;
    .shared .align 8 .b64 ack;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, go;
    mov.u32 %r2, ack;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.init.shared::cta.b64 [%r2], 1;
READY:
    bar.sync 0;
    setp.eq.u32 %p1, %r0, 32;
    @%p1 bra WAITER;
    @%p0 bra DONE;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
ACK:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
    @!%p2 bra ACK;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    bra DONE;
WAITER:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAITER;
    mbarrier.arrive.shared::cta.b64 _, [%r2];
DONE:
"#;
    let ack = "    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n    @!%p2 bra ACK;\n";
    let starve = Schedule::Starve { warp: 0, seed: 1 };
    let text = twin_under(starve, body, 64, ack, "", FindingKind::PhaseSkipped);
    assert!(text.contains("runs ahead"), "{text}");
}

/// A word that goes from warp 0 to warp 4 by tensor memory.
const TENSOR: &str = include_str!("common/bodies/tensor.ptx");

#[test]
fn tensor_memory_needs_waits_fences_and_barriers() {
    // Warps 0 and 4 reach the same lanes.
    let tensor = |from: &str, kind| twin(TENSOR, 160, from, kind);
    let text = tensor("tcgen05.fence::before_thread_sync;", FindingKind::MissingTcgen05Fence);
    assert!(text.contains("before_thread_sync by the first thread"), "{text}");
    let text = tensor("tcgen05.fence::after_thread_sync;", FindingKind::MissingTcgen05Fence);
    assert!(text.contains("after_thread_sync by the second thread"), "{text}");
    tensor("tcgen05.wait::st.sync.aligned;", FindingKind::MissingTmemWait);
    tensor("tcgen05.wait::ld.sync.aligned;", FindingKind::MissingTmemWait);
}

#[test]
fn kernels_without_any_fence_of_tcgen05_are_judged_by_strict_tracking_only() {
    let none = TENSOR
        .replace("tcgen05.fence::before_thread_sync;", "")
        .replace("tcgen05.fence::after_thread_sync;", "");
    assert!(run_body(&none, 160, Schedule::Early, Tracking::HappensBefore).is_clean());
    let report = run_body(&none, 160, Schedule::Early, Tracking::Strict);
    assert!(report.findings.iter().any(|f| f.kind == FindingKind::MissingTcgen05Fence), "{report:?}");
}

#[test]
fn two_warps_must_not_race_for_tensor_memory() {
    let body = r#"
    .shared .align 4 .b32 address[2];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    mov.u32 %r2, address;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra SECOND;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32;
SECOND:
    bar.sync 0;
    @!%p0 bra FREE;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+4], 32;
FREE:
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r3, %r2;
    ld.shared.u32 %r3, [%r3];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;
"#;
    twin(body, 64, "    bar.sync 0;\n", FindingKind::TmemAllocRace);
}

#[test]
fn a_schedule_replays_exactly() {
    for schedule in [Schedule::Random(9), Schedule::Starve { warp: 1, seed: 9 }] {
        let body = BULK.replacen("    bar.sync 0; // read\n", "", 1);
        let first = run_body(&body, 64, schedule, Tracking::HappensBefore);
        let again = run_body(&body, 64, schedule, Tracking::HappensBefore);
        assert_eq!(first.findings, again.findings);
        assert_eq!(first.stats.instructions, again.stats.instructions);
    }
}

#[test]
fn a_wgmma_group_completes_in_all_warps_of_its_warpgroup() {
    // A at 0 and B at 4096, of zeros. Rows 48 on of A, those of the last warp, are at 1536.
    let text = |before: &str, between: &str, after: &str| {
        kernel(&format!(
            "
    .shared .align 128 .b8 sm[8192];
    .reg .b64 %da, %db;
    mov.u32 %r0, %tid.x;
    mov.u32 %r10, sm;
    mov.u32 %r1, 0;
    shl.b32 %r2, %r0, 4;
    add.u32 %r2, %r2, %r10;
    st.shared.v4.b32 [%r2], {{%r1, %r1, %r1, %r1}};
    st.shared.v4.b32 [%r2+4096], {{%r1, %r1, %r1, %r1}};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u32 %r3, %r10, 4;
    cvt.u64.u32 %da, %r3;
    or.b64 %da, %da, {};
    add.u64 %db, %da, 256;
{before}
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0, %f1, %f2, %f3}}, %da, %db, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
{between}
    wgmma.wait_group.sync.aligned 0;
{after}
LATE:
    bar.sync 0;",
            (128u64 >> 4) << 16 | (256u64 >> 4) << 32
        ))
        .replace("sm_100a", "sm_90a")
    };
    let run = |text: &str, schedule| {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc("out", 4);
        let options = Options { schedule, tracking: Tracking::HappensBefore, ..Options::default() };
        common::run(
            &parse(text),
            &launch(1, 128, vec![Arg::Pointer(memory.address(&out))]),
            &memory,
            &options,
        )
    };
    // CUTLASS has one thread of a warpgroup hand a slot back.
    let overwrite = "
    setp.ne.u32 %p3, %r0, 0;
    @%p3 bra KEEP;
    st.shared.u32 [%r10+1536], %r1;
KEEP:";
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)] {
        let report = run(&text("", "", overwrite), schedule);
        assert!(report.is_clean(), "{schedule:?}: {:#?}", report.findings);
        assert!(!run(&text("", overwrite, ""), schedule).is_clean(), "{schedule:?}: before the wait");
    }
    // A warp whose neighbours never multiply waits for ever.
    let leave = "    setp.ge.u32 %p3, %r0, 32;\n    @%p3 bra LATE;";
    let report = run(&text(leave, "", ""), Schedule::Early);
    let f = report.findings.iter().find(|f| f.kind == FindingKind::Divergent);
    assert!(f.is_some_and(|f| f.message.contains("warpgroup")), "{:#?}", report.findings);
}

#[test]
fn a_warp_may_issue_one_bulk_store_in_all_lanes() {
    // CUTLASS does: every lane stores the same bytes to the same place.
    let body = |source: &str| {
        format!(
            "
    .shared .align 128 .b8 sm[512];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, sm;
    shl.b32 %r2, %r0, 4;
    add.u32 %r3, %r1, %r2;
    st.shared.v4.b32 [%r3], {{%r0, %r0, %r0, %r0}};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    cp.async.bulk.global.shared::cta.bulk_group [%out], [{source}], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;"
        )
    };
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)] {
        let report = run_body(&body("%r1"), 32, schedule, Tracking::HappensBefore);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        let report = run_body(&body("%r3"), 32, schedule, Tracking::HappensBefore);
        let kinds: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
        assert!(kinds.contains(&FindingKind::MissingCopyWait), "{schedule:?}: other bytes: {kinds:?}");
    }
}
