//! Order that published kernels leave to the hardware: fences, and waiters that are overtaken.

use crate::common::cases::{ALLOCATE, FREE, SCHEDULES, blackwell};
use silumin_emulator::{FindingKind, Options, Schedule, Tracking};

#[test]
fn fences_around_a_load_of_tensor_memory_are_asked_for_by_strict_tracking_only() {
    // Warps 0 and 4 reach the same lanes: one stores, the other loads, the first stores again.
    let body = format!(
        "{ALLOCATE}
    mov.u32 %r2, 7;
    setp.ne.u32 %p1, %warp, 4;
    setp.ne.u32 %p2, %warp, 0;
    @%p1 bra STORED;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [0], {{%r2}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync; // stored
STORED:
    bar.sync 0;
    @%p2 bra LOADED;
    tcgen05.fence::after_thread_sync; // stored
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [0];
    tcgen05.wait::ld.sync.aligned;
    tcgen05.fence::before_thread_sync; // loaded
LOADED:
    bar.sync 0;
    @%p1 bra DONE;
    tcgen05.fence::after_thread_sync; // loaded
    tcgen05.st.sync.aligned.32x32b.x1.b32 [0], {{%r2}};
    tcgen05.wait::st.sync.aligned;
DONE:
{FREE}"
    );
    blackwell(160, &body).finds(&[], &[]);
    let missing = [FindingKind::MissingTcgen05Fence];
    for fence in ["tcgen05.fence::before_thread_sync; ", "tcgen05.fence::after_thread_sync; "] {
        for (access, default) in [("// stored", &missing[..]), ("// loaded", &[])] {
            let fence = format!("{fence}{access}");
            assert!(body.contains(&fence));
            blackwell(160, &body.replace(&fence, "")).finds(default, &missing);
        }
    }
}

/// Operands of a product come to shared memory by `cp.async`, and all threads meet.
const COPIES: &str = "
    .shared .align 1024 .b8 data[6144];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, data;
    mov.u32 %r2, bar;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra MADE;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
MADE:
    shl.b32 %r3, %tid, 4;
    add.u32 %r4, %r1, %r3;
    cvt.u64.u32 %rd1, %r3;
    add.u64 %rd1, %out, %rd1;
    cp.async.cg.shared.global [%r4], [%rd1], 16;
    cp.async.cg.shared.global [%r4+2048], [%rd1], 16;
    cp.async.cg.shared.global [%r4+4096], [%rd1], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    // fence
    bar.sync 0;
    @%p1 bra WAIT;
    shr.u32 %r5, %r1, 4;
    cvt.u64.u32 %rd2, %r5;
    or.b64 %rd2, %rd2, 0x0000401000080000;
    add.u64 %rd3, %rd2, 256;
    tcgen05.mma.cta_group::1.kind::f16 [%r41], %rd2, %rd3, 0x08100010, 0;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
";

#[test]
fn a_proxy_fence_between_cp_async_and_a_product_is_asked_for_by_strict_tracking_only() {
    let around = |body: &str| {
        format!("{}{body}{}", ALLOCATE.replace("[%r40], 32", "[%r40], 64"), FREE.replace("0, 32", "0, 64"))
    };
    let missing = [FindingKind::MissingProxyFence];
    blackwell(128, &around(COPIES)).finds(&[], &missing);
    blackwell(128, &around(&COPIES.replace("// fence", "fence.proxy.async.shared::cta;"))).finds(&[], &[]);
    // What threads store is asked for its fence by default.
    let stored = COPIES
        .replace("cp.async.cg.shared.global", "st.shared.v4.u32")
        .replace("[%rd1], 16;", "{%r3, %r3, %r3, %r3};")
        .replace("    cp.async.commit_group;\n    cp.async.wait_group 0;\n", "");
    blackwell(128, &around(&stored)).finds(&missing, &missing);
    // So is what cp.async brings to a bulk copy.
    let bulk = "
    cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], 2048;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    bra WAIT;
    shr.u32";
    let bulk = COPIES.replacen("    shr.u32", bulk, 1).replace("WAIT:\n", "WAIT:\n    bra MET;\n") + "MET:\n";
    blackwell(128, &around(&bulk)).finds(&missing, &missing);
}

/// Thread 0 completes two phases one after the other; warp 1 waits for the first.
const OVERTAKEN: &str = "
    .shared .align 8 .b64 bar;
    mov.u32 %r2, bar;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra MADE;
    mbarrier.init.shared::cta.b64 [%r2], 1;
MADE:
    bar.sync 0;
    setp.eq.u32 %p2, %warp, 1;
    @%p2 bra WAIT;
    @%p1 bra DONE;
    mbarrier.arrive.shared::cta.b64 _, [%r2];
    mbarrier.arrive.shared::cta.b64 _, [%r2];
    bra DONE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
    @!%p3 bra WAIT;
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    st.global.u32 [%rd1], %tid;
DONE:
";

#[test]
fn a_suspended_waiter_that_is_overtaken_resumes() {
    // Warp 1 comes last to the barrier, so that its turn goes on to the wait.
    for schedule in [Schedule::Early, Schedule::Late] {
        for (tracking, wanted) in [
            (Tracking::Off, &[][..]),
            (Tracking::HappensBefore, &[]),
            (Tracking::Strict, &[FindingKind::PhaseSkipped]),
        ] {
            let options = Options { schedule, tracking, ..Options::default() };
            let (report, out) = blackwell(64, OVERTAKEN).run(&options);
            let kinds: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
            assert_eq!(kinds, wanted, "{schedule:?} {tracking:?}: {:#?}", report.findings);
            assert!(!report.stopped);
            assert_eq!(out[4 * 63..4 * 64], [63, 0, 0, 0], "{schedule:?} {tracking:?}");
        }
    }
    // One that comes to its wait when both phases are over waits for ever.
    let late =
        OVERTAKEN.replace("    bra DONE;\nWAIT:\n", "    bar.sync 1, 64;\n    bra DONE;\nWAIT:\n").replace(
            "    @%p2 bra WAIT;\n    @%p1 bra DONE;\n",
            "    @!%p2 bra FIRST;\n    bar.sync 1, 64;\n    bra WAIT;\nFIRST:\n    @%p1 bra MET;\n",
        );
    let late =
        late.replace("    bar.sync 1, 64;\n    bra DONE;\n", "MET:\n    bar.sync 1, 64;\n    bra DONE;\n");
    for schedule in SCHEDULES {
        let tracking = Tracking::HappensBefore;
        let (report, _) = blackwell(64, &late).run(&Options { schedule, tracking, ..Options::default() });
        assert_eq!(report.findings[0].kind, FindingKind::Deadlock, "{schedule:?}");
    }
}

#[test]
fn a_waiter_that_resumes_late_has_heard_of_its_own_phase_only() {
    // What is written after the first phase is not what its waiter may read, though the second is over, too.
    let body = OVERTAKEN
        .replace(
            "    mov.u32 %r2, bar;\n",
            "    .shared .b32 x;\n    mov.u32 %r2, bar;\n    mov.u32 %r3, x;\n",
        )
        .replace(
            "    st.global.u32 [%rd1], %tid;\n",
            "    ld.shared.u32 %r4, [%r3];\n    st.global.u32 [%rd1], %r4;\n",
        );
    let arrive = "    mbarrier.arrive.shared::cta.b64 _, [%r2];\n";
    let store = "    st.shared.u32 [%r3], 5;\n";
    for (text, found) in
        [(format!("{store}{arrive}{arrive}"), false), (format!("{arrive}{store}{arrive}"), true)]
    {
        let body = body.replace(&format!("{arrive}{arrive}"), &text);
        for schedule in [Schedule::Early, Schedule::Late] {
            let tracking = Tracking::HappensBefore;
            let (report, _) = blackwell(64, &body).run(&Options { schedule, tracking, ..Options::default() });
            let races: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
            let wanted: &[FindingKind] = if found { &[FindingKind::RaceShared] } else { &[] };
            assert_eq!(races, wanted, "{schedule:?}: {:#?}", report.findings);
        }
    }
}

#[test]
fn warps_that_only_follow_a_barrier_keep_up() {
    // Thread 0 loads and stores in turn, by copies that complete a phase each; the other warps wait for every phase.
    let body = "
    .shared .align 128 .b8 data[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, data;
    mov.u32 %r2, bar;
    mov.u32 %r3, 0;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra MADE;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
MADE:
    bar.sync 0;
ROUND:
    @%p1 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%out], 128, [%r2];
WAIT:
    and.b32 %r4, %r3, 1;
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r4;
    @!%p2 bra WAIT;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r3, 9;
    @%p3 bra ROUND;
";
    for schedule in [Schedule::Early, Schedule::Late] {
        for tracking in [Tracking::Off, Tracking::HappensBefore] {
            let options = Options { schedule, tracking, ..Options::default() };
            let (report, _) = blackwell(128, body).run(&options);
            assert!(report.is_clean(), "{schedule:?} {tracking:?}: {}", report.findings[0]);
        }
    }
    let options = Options { tracking: Tracking::Strict, ..Options::default() };
    let (report, _) = blackwell(128, body).run(&options);
    assert!(report.findings.iter().any(|f| f.kind == FindingKind::PhaseSkipped), "{:#?}", report.findings);
}
