//! Kernels with one fault of scope, of order between clusters, of phases or of convergence, which must be
//! found, and their right twins, which must be clean.

use crate::common::{kernel, parse, run};
use silumin_emulator::{
    Arg, FindingKind, GlobalMemory, Launch, Options, Reconvergence, Report, Schedule, Tracking,
};

const SCHEDULES: [Schedule; 4] =
    [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Starve { warp: 0, seed: 2 }];

fn report(body: &str, grid: u32, cluster: u32, threads: u32, options: &Options<'_>) -> Report {
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[0; 4096]);
    let l = Launch {
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        cluster: [cluster, 1, 1],
        dynamic_smem: 0,
        args: vec![Arg::Pointer(memory.address(&out))],
    };
    run(&parse(&kernel(body)), &l, &memory, options)
}

/// `body` is clean under all schedules; with `to` for `from` strict tracking finds `kind` under all.
fn twin(body: &str, (grid, cluster, threads): (u32, u32, u32), (from, to): (&str, &str), kind: FindingKind) {
    assert!(body.contains(from), "`{from}` is not in\n{body}");
    let damaged = body.replacen(from, to, 1);
    for schedule in SCHEDULES {
        let options = Options { schedule, tracking: Tracking::Strict, ..Options::default() };
        let right = report(body, grid, cluster, threads, &options);
        assert!(right.is_clean(), "{schedule:?}: {}\n{body}", right.findings[0]);
        let wrong = report(&damaged, grid, cluster, threads, &options);
        let found = wrong.findings.iter().any(|f| f.kind == kind);
        assert!(found, "{schedule:?}: expected {kind:?}, found {:#?}\n{damaged}", wrong.findings);
    }
}

/// The first CTA (of the cluster, or of the grid) writes data and sets a flag, for which the others wait.
const MESSAGE: &str = "
    mov.u32 %r1, RANK;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READ;
    mov.u32 %r2, 41;
    st.global.u32 [%out], %r2;
    st.release.SCOPE.global.u32 [%out+128], 1;
    bra DONE;
READ:
    ld.acquire.SCOPE.global.u32 %r3, [%out+128];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra READ;
    ld.global.u32 %r4, [%out];
DONE:
";

#[test]
fn a_release_of_the_cta_does_not_reach_the_next_cta() {
    let body = MESSAGE.replace("RANK", "%cluster_ctarank").replace("SCOPE", "cluster");
    for op in ["st.release", "ld.acquire"] {
        let (from, to) = (format!("{op}.cluster"), format!("{op}.cta"));
        twin(&body, (2, 2, 1), (&from, &to), FindingKind::RaceGlobal);
    }
    let fences = body
        .replace("st.release.cluster", "fence.acq_rel.cluster; st.relaxed.cluster")
        .replace("ld.acquire.cluster", "ld.relaxed.cluster")
        .replace("    ld.global.u32 %r4", "    fence.acq_rel.cluster; // here\n    ld.global.u32 %r4");
    twin(&fences, (2, 2, 1), ("fence.acq_rel.cluster; st", "fence.acq_rel.cta; st"), FindingKind::RaceGlobal);
    let second = ("fence.acq_rel.cluster; // here", "fence.acq_rel.cta;");
    twin(&fences, (2, 2, 1), second, FindingKind::RaceGlobal);
    // Among threads of one CTA it is enough.
    let near = MESSAGE.replace("RANK", "%warpid").replace("SCOPE", "cta");
    let options = Options { tracking: Tracking::Strict, ..Options::default() };
    let right = report(&near, 1, 1, 64, &options);
    assert!(right.is_clean(), "{}", right.findings[0]);
}

#[test]
fn clusters_are_ordered_by_flags_of_the_gpu() {
    let body = MESSAGE.replace("RANK", "%ctaid.x").replace("SCOPE", "gpu");
    for op in ["st.release", "ld.acquire"] {
        let (from, to) = (format!("{op}.gpu"), format!("{op}.cluster"));
        twin(&body, (4, 1, 1), (&from, &to), FindingKind::RaceGlobal);
        let (from, to) =
            (format!("{op}.gpu"), op.replace("release", "relaxed").replace("acquire", "relaxed") + ".gpu");
        twin(&body, (4, 1, 1), (&from, &to), FindingKind::RaceGlobal);
    }
    let old = body
        .replace(
            "st.release.gpu.global.u32 [%out+128], 1;",
            "membar.gl; atom.global.add.u32 %r5, [%out+128], 1;",
        )
        .replace("ld.acquire.gpu.global", "ld.volatile.global")
        .replace("    ld.global.u32 %r4", "    membar.gl; // read\n    ld.global.u32 %r4");
    twin(&old, (4, 1, 1), ("membar.gl; atom", "atom"), FindingKind::RaceGlobal);
    twin(&old, (4, 1, 1), ("membar.gl; // read", ""), FindingKind::RaceGlobal);
}

#[test]
fn clusters_must_not_write_the_same_bytes_without_order() {
    let each = "
    mov.u32 %r1, %ctaid.x;
    shl.b32 %r2, %r1, 2;
    cvt.u64.u32 %rd1, %r2;
    add.u64 %rd2, %out, %rd1;
    add.u32 %r3, %r1, 1;
    st.global.u32 [%rd2], %r3;
";
    twin(each, (8, 1, 1), ("shl.b32 %r2, %r1, 2;", "mov.u32 %r2, 0;"), FindingKind::RaceGlobal);
    let sums = "
    mov.u32 %r1, %ctaid.x;
    add.u32 %r1, %r1, 1;
    red.relaxed.gpu.global.add.u32 [%out], %r1;
";
    let weak = "ld.global.u32 %r2, [%out]; add.u32 %r2, %r2, %r1; st.global.u32 [%out], %r2;";
    twin(sums, (8, 1, 1), ("red.relaxed.gpu.global.add.u32 [%out], %r1;", weak), FindingKind::RaceGlobal);
    twin(sums, (8, 1, 1), ("red.relaxed.gpu", "red.relaxed.cta"), FindingKind::RaceGlobal);
    // One value from all is let pass, as within a cluster.
    let same = "mov.u32 %r1, 5; st.global.u32 [%out], %r1;";
    let options = Options { tracking: Tracking::Strict, threads: 1, ..Options::default() };
    let right = report(same, 8, 1, 1, &options);
    assert!(right.is_clean(), "{}", right.findings[0]);
}

#[test]
fn the_last_cta_of_a_reduction_sees_all_parts() {
    // Every CTA writes a part; whoever counts last adds them up.
    let body = "
    .shared .b32 last;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    mad.lo.u32 %r4, %r2, 32, %r1;
    mul.wide.u32 %rd1, %r4, 4;
    add.u64 %rd2, %out, %rd1;
    add.u32 %r5, %r4, 1;
    st.global.u32 [%rd2+1024], %r5;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra COUNTED;
    atom.acq_rel.gpu.global.add.u32 %r6, [%out], 1;
    st.shared.u32 [last], %r6;
COUNTED:
    bar.sync 0;
    ld.shared.u32 %r7, [last];
    sub.u32 %r8, %r3, 1;
    setp.ne.u32 %p2, %r7, %r8;
    @%p2 bra DONE;
    mov.u32 %r9, 0;
    mov.u32 %r10, 0;
ADD:
    mad.lo.u32 %r11, %r10, 32, %r1;
    mul.wide.u32 %rd3, %r11, 4;
    add.u64 %rd4, %out, %rd3;
    ld.global.u32 %r12, [%rd4+1024];
    add.u32 %r9, %r9, %r12;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, %r3;
    @%p3 bra ADD;
    mul.wide.u32 %rd5, %r1, 4;
    add.u64 %rd6, %out, %rd5;
    st.global.u32 [%rd6+64], %r9;
DONE:
";
    twin(body, (6, 1, 32), ("atom.acq_rel.gpu", "atom.relaxed.gpu"), FindingKind::RaceGlobal);
}

#[test]
fn a_fresh_barrier_is_made_visible_to_the_cluster_and_to_the_async_proxy() {
    let body = "
    .shared .align 8 .b64 bar;
    .shared .align 128 .b8 buf[128];
    mov.u32 %r1, bar;
    mov.u32 %r2, buf;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %cluster_ctarank;
    setp.eq.u32 %p1, %r3, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r5, %r4, 1;
    mapa.shared::cluster.u32 %r6, %r1, %r5;
    @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
";
    let fence = "@%p1 fence.mbarrier_init.release.cluster;";
    twin(body, (2, 2, 32), (fence, ""), FindingKind::MbarrierNotVisible);
    let copy = "
    .shared .align 8 .b64 bar;
    .shared .align 128 .b8 buf[128];
    mov.u32 %r1, bar;
    mov.u32 %r2, buf;
    mov.u32 %r3, %tid.x;
    setp.eq.u32 %p1, %r3, 0;
    setp.eq.u32 %p3, %r3, 32;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
    @%p1 fence.proxy.async.shared::cta;
    bar.sync 0; // visible
    @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%out], 128, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r6, [%r2];
";
    let fence = "@%p1 fence.proxy.async.shared::cta;";
    twin(copy, (1, 1, 64), (fence, ""), FindingKind::MbarrierNotVisible);
    // Compilers leave this fence out: only strict tracking asks for it.
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let lenient = report(&copy.replace(fence, ""), 1, 1, 64, &options);
    assert!(lenient.is_clean(), "{}", lenient.findings[0]);
}

/// Warp 0 stores to shared memory, and warp 1 goes on with it behind a barrier of the cluster.
const HANDED_OVER: &str = "
    .shared .align 8 .b64 word;
    mov.u32 %r1, word;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %cluster_ctarank;
    setp.eq.u32 %p1, %r3, 0;
    setp.eq.u32 %p2, %r3, 32;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r6, %r1, RANK;
    @%p1 st.shared::cluster.u32 [%r6], %r3;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.aligned;
    @%p2 USE
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
";

#[test]
fn a_relaxed_barrier_of_the_cluster_hands_over_what_the_cta_itself_has_stored() {
    let relaxed = ("arrive.release", "arrive.relaxed");
    for access in ["ld.shared.u32 %r7, [%r1];", "st.shared.u32 [%r1], %r4;", "red.shared.add.u32 [%r1], %r4;"]
    {
        let own = HANDED_OVER.replace("RANK", "%r4").replace("USE", access);
        twin(&own, (2, 2, 64), relaxed, FindingKind::RaceShared);
        // What a peer has stored, or what is not behind the barrier, is not handed over.
        let odd = HANDED_OVER.replace("    mapa", "    xor.b32 %r5, %r4, 1;\n    mapa");
        let peer = odd.replace("RANK", "%r5").replace("USE", access);
        let late = own.replace("    @%p1 st", "    barrier.cluster.arrive.relaxed.aligned;\n    @%p1 st");
        let late = late.replace("    barrier.cluster.arrive.release.aligned;\n", "");
        for schedule in SCHEDULES {
            let options = Options { schedule, tracking: Tracking::HappensBefore, ..Options::default() };
            let ordered = report(&own.replace(relaxed.0, relaxed.1), 2, 2, 64, &options);
            assert!(ordered.is_clean(), "{}", ordered.findings[0]);
            for body in [peer.replace(relaxed.0, relaxed.1), late.clone()] {
                let kinds: Vec<_> =
                    report(&body, 2, 2, 64, &options).findings.iter().map(|f| f.kind).collect();
                assert!(kinds.contains(&FindingKind::RaceShared), "{schedule:?}: {kinds:?}\n{body}");
            }
        }
    }
}

#[test]
fn an_arrival_of_the_cta_does_not_release_to_the_peer() {
    let body = "
    .shared .align 8 .b64 bar;
    .shared .b32 x;
    mov.u32 %r1, bar;
    mov.u32 %r2, x;
    mov.u32 %r4, %cluster_ctarank;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    st.shared.u32 [%r2], 0;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    xor.b32 %r5, %r4, 1;
    mapa.shared::cluster.u32 %r6, %r1, %r5;
    mapa.shared::cluster.u32 %r7, %r2, %r5;
    st.shared::cluster.u32 [%r7], %r4;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r8, [%r2];
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
";
    for (from, to) in [("release.cluster", "release.cta"), ("acquire.cluster", "acquire.cta")] {
        let (from, to) = (format!("{from}.shared::c"), format!("{to}.shared::c"));
        twin(body, (2, 2, 1), (&from, &to), FindingKind::RaceShared);
    }
}

#[test]
fn a_wait_for_the_wrong_phase_is_found() {
    // Two copies into one slot: the second wait must be for the other parity.
    let body = "
    .shared .align 8 .b64 bar;
    .shared .align 128 .b8 buf[128];
    mov.u32 %r1, bar;
    mov.u32 %r2, buf;
    mov.u32 %r9, 0;
    mov.u32 %r10, 0;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.proxy.async.shared::cta;
LOOP:
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%out], 128, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %r10;
    @!%p2 bra WAIT;
    ld.shared.u32 %r6, [%r2];
    xor.b32 %r10, %r10, 1;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, 4;
    @%p3 bra LOOP;
";
    let options = |schedule| Options { schedule, tracking: Tracking::Strict, ..Options::default() };
    for schedule in SCHEDULES {
        let right = report(body, 1, 1, 1, &options(schedule));
        assert!(right.is_clean(), "{schedule:?}: {}", right.findings[0]);
    }
    // The same phase waited for twice, or one that has not begun: by the schedule the slot is used while
    // the copy is in flight, the barrier is arrived at too often, or the wait never ends.
    let twice = body.replace("xor.b32 %r10, %r10, 1;", "");
    let never = twice.replace("mov.u32 %r10, 0;", "mov.u32 %r10, 1;");
    for schedule in SCHEDULES {
        for wrong in [&twice, &never] {
            let wrong = report(wrong, 1, 1, 1, &options(schedule));
            assert!(!wrong.is_clean(), "{schedule:?}");
        }
    }
}

#[test]
fn nothing_may_rely_on_lanes_running_together_again() {
    // Lanes write on different ways and read what the others wrote, without a bar.warp.sync.
    let body = "
    .shared .align 16 .b32 x[32];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    and.b32 %r4, %r0, 1;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra EVEN;
    add.u32 %r5, %r0, 100;
    st.shared.u32 [%r3], %r5;
    bra JOIN;
EVEN:
    add.u32 %r5, %r0, 200;
    st.shared.u32 [%r3], %r5;
JOIN:
    bar.warp.sync 0xffffffff;
    xor.b32 %r6, %r1, 4;
    add.u32 %r6, %r2, %r6;
    ld.shared.u32 %r7, [%r6];
    activemask.b32 %r8;
    cvt.u64.u32 %rd1, %r1;
    add.u64 %rd2, %out, %rd1;
    st.global.u32 [%rd2], %r8;
    st.global.u32 [%rd2+128], %r7;
";
    for reconvergence in [Reconvergence::Eager, Reconvergence::Forced] {
        for schedule in SCHEDULES {
            let options = Options { schedule, reconvergence, ..Options::default() };
            let right = report(body, 1, 1, 32, &options);
            assert!(right.is_clean(), "{schedule:?} {reconvergence:?}: {}", right.findings[0]);
        }
    }
    let damaged = body.replace("bar.warp.sync 0xffffffff;", "");
    let eager = report(&damaged, 1, 1, 32, &Options::default());
    assert!(eager.is_clean(), "{}", eager.findings[0]);
    let options = Options { reconvergence: Reconvergence::Forced, ..Options::default() };
    let forced = report(&damaged, 1, 1, 32, &options);
    assert!(
        forced.findings.iter().any(|f| f.kind == FindingKind::UninitialisedShared),
        "{:#?}",
        forced.findings
    );
}
