//! What hardware runs although a strict reading of the ISA forbids it: the run goes on, and says so where that is wanted.
//!
//! Each kernel does one such thing. Under every schedule the default tracking finds what is named, or nothing, and so
//! does strict tracking; the run reaches its end. What compilers write is in `spellings.rs`, the limit on findings in `limits.rs`.

use crate::common::cases::{ALLOCATE, FREE, SCHEDULES, blackwell, geforce, pair};
use silumin_emulator::{FindingKind, Options, Reconvergence, Schedule, Tracking};

#[test]
fn a_shared_address_without_its_state_space_counts_by_its_low_half() {
    let body = |address: &str| {
        format!(
            "
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p1, %tid, 0;
    mov.u32 %r1, bar;
    cvt.u64.u32 %rd1, %r1;
    cvta.shared.u64 %rd2, %rd1;
    @%p1 bra DONE;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [{address}];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
DONE:
"
        )
    };
    for address in ["%r1", "%rd1"] {
        blackwell(128, &body(address)).finds(&[], &[FindingKind::GenericAddress]);
    }
    blackwell(128, &body("%rd2")).finds(&[], &[]);
}

#[test]
fn mbarriers_and_matrices_take_the_low_half_too() {
    let body = "
    .shared .align 128 .b8 rows[512];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    cvt.u64.u32 %rd1, %r1;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra MADE;
    mbarrier.init.b64 [%rd1], 32;
MADE:
    bar.sync 0;
    mov.u32 %r2, rows;
    shl.b32 %r3, %tid, 4;
    add.u32 %r3, %r2, %r3;
    cvt.u64.u32 %rd2, %r3;
    st.shared.v4.u32 [%r3], {%tid, %tid, %tid, %tid};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.b16 {%r4}, [%rd2];
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x1.b16 [%rd2], {%r4};
    mbarrier.arrive.b64 _, [%rd1];
WAIT:
    mbarrier.try_wait.parity.b64 %p2, [%rd1], 0;
    @!%p2 bra WAIT;
";
    blackwell(32, body).finds(&[], &[FindingKind::GenericAddress]);
}

#[test]
fn lanes_of_tensor_memory_are_taken_modulo_128() {
    let body = format!(
        "{ALLOCATE}
    or.b32 %r1, %r41, 0x800000;
    mov.u32 %r2, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r41], {{%r2}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r1];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    st.global.u32 [%rd1], %r3;
{FREE}"
    );
    let case = blackwell(128, &body);
    case.finds(&[], &[FindingKind::TmemLaneWrapped]);
    let (_, out) = case.run(&Options::default());
    assert!(out[..512].chunks(4).all(|w| w == [7, 0, 0, 0]));
}

#[test]
fn a_relaxed_cluster_barrier_orders_loads_of_tensor_memory_before_it_is_freed() {
    let body = format!(
        "{ALLOCATE}
    mov.u32 %r2, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r41], {{%r2}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r41];
    tcgen05.wait::ld.sync.aligned; // loaded
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    tcgen05.fence::after_thread_sync;
    @%p7 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;
FREED:
"
    );
    pair(&body).finds(&[], &[]);
    // The barrier orders what is done; a load without its wait is not.
    let damaged = body.replace("tcgen05.wait::ld.sync.aligned; // loaded", "");
    for tracking in [Tracking::HappensBefore, Tracking::Strict] {
        let (report, _) = pair(&damaged).run(&Options { tracking, ..Options::default() });
        assert!(
            report.findings.iter().any(|f| f.kind == FindingKind::MissingTmemWait),
            "{:#?}",
            report.findings
        );
    }
}

#[test]
fn pairs_that_allocate_at_once_and_address_the_odd_cta_beyond_its_lanes_run() {
    // As public kernels for pairs do: that the peer runs is known to nobody when they allocate, the odd CTA says 128 + lane,
    // and a relaxed barrier comes before the deallocation.
    let body = "
    .shared .align 4 .b32 word;
    mov.u32 %r1, word;
    setp.ne.u32 %p7, %warp, 0;
    @%p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;
ALLOCATED:
    bar.sync 0;
    mov.u32 %r2, %cluster_ctarank;
    shl.b32 %r2, %r2, 23;
    shl.b32 %r3, %warp, 21;
    or.b32 %r4, %r3, %r2;
    mov.u32 %r5, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r5};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r6}, [%r4];
    tcgen05.wait::ld.sync.aligned;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%p7 bra DONE;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 0, 32;
DONE:
";
    for schedule in SCHEDULES {
        for tracking in [Tracking::Off, Tracking::HappensBefore] {
            let (report, _) = pair(body).run(&Options { schedule, tracking, ..Options::default() });
            // Where order is tracked, a warning says that they may hang, and nothing is found.
            assert!(report.is_clean(), "{schedule:?} {tracking:?}: {:#?}", report.findings);
            let kinds: Vec<FindingKind> = report.warnings.iter().map(|f| f.kind).collect();
            let wanted: &[FindingKind] = match tracking {
                Tracking::Off => &[],
                Tracking::HappensBefore | Tracking::Strict => &[FindingKind::PairAllocBeforePeer],
            };
            assert_eq!(kinds, wanted, "{schedule:?} {tracking:?}");
            assert!(!report.stopped, "{schedule:?} {tracking:?}");
        }
        let (report, _) =
            pair(body).run(&Options { schedule, tracking: Tracking::Strict, ..Options::default() });
        assert!(!report.stopped && report.findings.iter().any(|f| f.kind == FindingKind::TmemLaneWrapped));
    }
}

#[test]
fn an_mbarrier_that_is_initialised_again_starts_anew() {
    let body = "
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    mbarrier.init.shared::cta.b64 [%r1], 32;
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    st.global.u32 [%out], %tid;
";
    blackwell(32, body).finds(&[FindingKind::MbarrierReinitialised], &[FindingKind::MbarrierReinitialised]);
    // Half of the arrivals of the old life are gone: the new one waits for all of its own.
    let lost = body.replace(
        "    mbarrier.arrive",
        "    mbarrier.arrive.shared::cta.b64 _, [%r1], 1;\n    mbarrier.init.shared::cta.b64 [%r1], 64;\n    mbarrier.arrive",
    );
    let (report, _) = blackwell(32, &lost).run(&Options::default());
    let kinds: Vec<_> = report.findings.iter().map(|f| f.kind).collect();
    assert!(kinds.contains(&FindingKind::Deadlock) && report.stopped, "{kinds:?}");
}

#[test]
fn a_store_over_a_live_mbarrier_ends_it_and_goes_on() {
    let body = "
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra DONE;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    st.shared.u32 [%r1+4], 5;
    ld.shared.u32 %r2, [%r1+4];
    st.global.u32 [%out], %r2;
DONE:
";
    let case = blackwell(32, body);
    case.finds(&[FindingKind::MbarrierOverwritten], &[FindingKind::MbarrierOverwritten]);
    assert_eq!(case.run(&Options::default()).1[..4], [5, 0, 0, 0]);
}

#[test]
fn a_parity_counts_by_its_lowest_bit() {
    let body = "
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    mov.u32 %r2, 2;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra DONE;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %r2;
    @!%p2 bra WAIT;
DONE:
";
    blackwell(32, body).finds(&[FindingKind::PhaseParity], &[FindingKind::PhaseParity]);
}

/// Reads something that nothing wrote into `%r3`, and what follows.
fn unwritten(read: &str, then: &str) -> String {
    format!(
        "{ALLOCATE}
    .shared .align 16 .b8 buffer[1024];
    .shared .align 8 .b64 bar;
    mov.u32 %r10, buffer;
    shl.b32 %r11, %tid, 2;
    add.u32 %r11, %r10, %r11;
    and.b32 %r12, %tid, 31;
    shl.b32 %r12, %r12, 4;
    add.u32 %r12, %r10, %r12;
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    {read}
    {then}
{FREE}"
    )
}

#[test]
fn what_nothing_wrote_counts_where_it_has_an_effect() {
    use FindingKind::{UninitialisedRegister, UninitialisedShared, UninitialisedTmem};
    let reads = [
        (
            "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r41]; tcgen05.wait::ld.sync.aligned;",
            UninitialisedTmem,
        ),
        ("ld.shared.u32 %r3, [%r11];", UninitialisedShared),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r12];", UninitialisedShared),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r3, %r9}, [%r12];", UninitialisedShared),
        ("", UninitialisedRegister),
    ];
    // Passed on, and used for nothing.
    let passes = [
        "",
        "add.u32 %r4, %r3, 1; mov.b32 %r5, %r4; cvt.u64.u32 %rd2, %r5; lop3.b32 %r6, %r5, %r4, %r3, 0x80;",
        "shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;",
        "setp.eq.u32 %p1, %tid, 0; selp.b32 %r4, %r3, %tid, %p1; prmt.b32 %r5, %r3, %r4, 0x5410;",
        "st.shared.u32 [%r11+512], %r3; ld.shared.u32 %r4, [%r11+512];",
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r41+8], {%r3}; tcgen05.wait::st.sync.aligned;",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r12], {%r3};",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r3;",
        "mov.b64 {%r4, %r5}, %out; mov.b64 %rd2, {%r3, %r4}; mov.b64 {%r6, %r7}, %rd2;",
    ];
    // What has an effect, after what passes it on: `%r4` is a copy.
    let copies = [
        ("add.u32 %r4, %r3, 1;", false),
        ("shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", false),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r3;", false),
        ("st.shared.u32 [%r11+512], %r3; ld.shared.u32 %r4, [%r11+512];", true),
    ];
    let effects = [
        "st.global.u32 [%rd1], %r4;",
        "setp.eq.u32 %p1, %r4, 0;",
        "and.b32 %r5, %r4, 0; add.u32 %r5, %r11, %r5; st.shared.u32 [%r5], %tid;",
        "red.global.add.u32 [%rd1], %r4;",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r4}, {%r4}, {%f4, %f4, %f4, %f4};",
    ];
    for (read, kind) in reads {
        for pass in passes {
            let body = unwritten(read, pass);
            let case = blackwell(128, &body);
            for schedule in [Schedule::Early, Schedule::Late] {
                let (report, _) =
                    case.run(&Options { schedule, tracking: Tracking::Off, ..Options::default() });
                assert!(report.is_clean(), "{schedule:?}: {}\n{body}", report.findings[0]);
            }
        }
        for (copy, through_memory) in copies {
            let kind = if through_memory { UninitialisedShared } else { kind };
            for effect in effects {
                let body = unwritten(read, &format!("mov.f32 %f4, 0f00000000;\n{copy}\n{effect}"));
                let (report, _) = blackwell(128, &body).run(&Options::default());
                assert!(!report.stopped, "{}\n{body}", report.findings[0]);
                assert!(
                    report.findings.iter().any(|f| f.kind == kind),
                    "expected {kind:?}, found {:#?}\n{body}",
                    report.findings
                );
            }
        }
    }
}

#[test]
fn copies_to_tensor_memory_pass_on_what_nothing_wrote() {
    // 128 rows of 16 bytes of shared memory that nothing has written, but for the first word of each.
    let body = |then: &str| {
        let copy = "
    shl.b32 %r13, %tid, 4;
    add.u32 %r13, %r10, %r13;
    st.shared.u32 [%r13], 5;
    fence.proxy.async.shared::cta;
    .shared .align 8 .b64 done;
    mov.u32 %r14, done;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra ISSUED;
    mbarrier.init.shared::cta.b64 [%r14], 1;
    fence.mbarrier_init.release.cluster;
ISSUED:
    bar.sync 0;
    @%p1 bra WAIT;
    shr.u32 %r15, %r10, 4;
    cvt.u64.u32 %rd2, %r15;
    or.b64 %rd2, %rd2, 0x0000400800080000;
    tcgen05.cp.cta_group::1.128x128b [0], %rd2;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r14];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r14], 0;
    @!%p2 bra WAIT;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r20, %r21, %r22, %r23}, [%r41];
    tcgen05.wait::ld.sync.aligned;";
        unwritten(copy, then).replace("buffer[1024]", "buffer[2048]")
    };
    blackwell(128, &body("st.global.u32 [%rd1], %r20;")).finds(&[], &[]);
    for used in ["%r21", "%r23"] {
        let kind = FindingKind::UninitialisedTmem;
        blackwell(128, &body(&format!("st.global.u32 [%rd1], {used};"))).finds(&[kind], &[kind]);
    }
}

#[test]
fn a_message_says_where_the_value_comes_from() {
    let body = unwritten("ld.shared.u32 %r3, [%r11];", "add.u32 %r4, %r3, 1; st.global.u32 [%rd1], %r4;");
    let (report, _) = blackwell(128, &body).run(&Options::default());
    let text = report.findings[0].to_string();
    for part in ["%r4 is read", "computed it from %r3", "was loaded (line", "shared offset"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_word_that_alloc_wrote_may_be_copied_over() {
    let body = format!(
        "{ALLOCATE}
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    setp.ne.u32 %p1, %tid, 32;
    @%p1 bra COPIED;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r40], [%out], 64, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
COPIED:
{FREE}"
    );
    blackwell(128, &body).finds(&[], &[FindingKind::MissingProxyFence]);
}

#[test]
fn a_bulk_copy_past_its_buffer_reads_what_is_mapped_and_stops_where_nothing_is() {
    let body = |offset: &str, store: &str| {
        format!(
            "
    .shared .align 16 .b8 buffer[64];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    mov.u32 %r2, buffer;
    add.u64 %rd1, %out, {offset};
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra COPIED;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 64, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2];
    st.global.u32 [%out], %r3;
    ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2+32];
    {store}
COPIED:
"
        )
    };
    use FindingKind::{OutOfBounds, ReadPastBuffer, UninitialisedShared};
    blackwell(32, &body("4064", "")).finds(&[ReadPastBuffer], &[ReadPastBuffer]);
    // The bytes behind the end are anybody's.
    let (report, _) = blackwell(32, &body("4064", "st.global.u32 [%out+4], %r3;")).run(&Options::default());
    let kinds: Vec<_> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [ReadPastBuffer, UninitialisedShared]);
    let (report, _) = blackwell(32, &body("2097136", "")).run(&Options::default());
    assert_eq!(report.findings[0].kind, OutOfBounds);
    assert!(report.stopped);
}

#[test]
fn an_arrival_of_the_cta_at_a_peers_barrier_is_found_by_strict_tracking_only() {
    let body = "
    .shared .align 8 .b64 bar;
    .shared .b32 x;
    mov.u32 %r1, bar;
    mov.u32 %r2, x;
    mov.u32 %r3, %cluster_ctarank;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
READY:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p1 bra DONE;
    xor.b32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r1, %r4;
    mapa.shared::cluster.u32 %r6, %r2, %r4;
    st.shared::cluster.u32 [%r6], %r3;
    mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r5];
WAIT:
    mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r7, [%r2];
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
";
    pair(body).finds(&[], &[FindingKind::RaceShared]);
}

#[test]
fn an_exit_with_a_bulk_store_still_reading_is_found_by_strict_tracking_only() {
    let body = "
    .shared .align 16 .b32 x[32];
    mov.u32 %r2, x;
    shl.b32 %r3, %tid, 2;
    add.u32 %r3, %r2, %r3;
    st.shared.u32 [%r3], %tid;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra DONE;
    cp.async.bulk.global.shared::cta.bulk_group [%out], [%r2], 128;
    cp.async.bulk.commit_group;
    // wait
DONE:
";
    let case = blackwell(32, body);
    case.finds(&[], &[FindingKind::ExitDuringCopy]);
    for schedule in SCHEDULES {
        let (_, out) = case.run(&Options { schedule, ..Options::default() });
        assert_eq!(out[..8], [0, 0, 0, 0, 1, 0, 0, 0], "{schedule:?}");
    }
    blackwell(32, &body.replace("// wait", "cp.async.bulk.wait_group.read 0;")).finds(&[], &[]);
}

#[test]
fn a_load_whose_wait_comes_with_a_later_one_is_found_by_strict_tracking_only() {
    let body = format!(
        "{ALLOCATE}
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    setp.ne.u32 %p1, %tid, 0;
    @%p1 bra MADE;
    mbarrier.init.shared::cta.b64 [%r1], 128;
MADE:
    mov.u32 %r2, 7;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r41], {{%r2, %r2}};
    tcgen05.wait::st.sync.aligned;
    bar.sync 0;
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r41];
    add.u32 %r3, %r3, 1;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r41+1];
    tcgen05.wait::ld.sync.aligned; // both
    add.u32 %r5, %r3, %r4;
    st.global.u32 [%rd1], %r5;
{FREE}"
    );
    blackwell(128, &body).finds(&[], &[FindingKind::MissingWait]);
    // The same if the registers are used after the arrival, which strict tracking sees where a product overwrites them.
    let later = body
        .replace("    add.u32 %r3, %r3, 1;\n", "")
        .replace("    add.u32 %r5", "    add.u32 %r3, %r3, 1;\n    add.u32 %r5")
        .replace(
            "    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}",
            "    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r41], {%tid};\n    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}",
        )
        .replace("; // both", ";\n    tcgen05.wait::st.sync.aligned;");
    blackwell(128, &later).finds(&[], &[FindingKind::MissingTmemWait]);
    for schedule in SCHEDULES {
        let (_, out) = blackwell(128, &later).run(&Options { schedule, ..Options::default() });
        assert_eq!(out[..4], [15, 0, 0, 0], "{schedule:?}");
    }
    // Without any wait it is found by default.
    let never = body.replace("tcgen05.wait::ld.sync.aligned; // both", "");
    let (report, _) = blackwell(128, &never).run(&Options::default());
    assert!(report.findings.iter().any(|f| f.kind == FindingKind::MissingWait), "{:#?}", report.findings);
}

#[test]
fn bytes_that_a_thread_counts_carry_what_its_fence_released() {
    let body = "
    .shared .align 16 .b8 sm[64];
    mov.u32 %r1, sm;
    add.u32 %r2, %r1, 16;
    setp.eq.u32 %p0, %tid, 0;
    setp.lt.u32 %p1, %tid, 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    bar.sync 0;
    @!%p1 bra CONSUMER;
    @!%p0 bra DONE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
    st.shared.b32 [%r2], 7;
    fence.release.sync_restrict::shared::cta.cluster;
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 16;
    bra DONE;
CONSUMER:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra CONSUMER;
    ld.shared.b32 %r3, [%r2];
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    st.global.b32 [%rd1], %r3;
DONE:
";
    geforce(64, body).finds(&[], &[]);
    let damaged = body.replace("fence.release.sync_restrict::shared::cta.cluster;", "");
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let (report, _) = geforce(64, &damaged).run(&options);
    assert_eq!(report.findings[0].kind, FindingKind::RaceShared);
}

#[test]
fn groups_at_one_instruction_merge_when_their_turn_ends() {
    // Lanes take two ways in every round, and meet at ldmatrix, whatever instruction a turn of the warp ends with.
    let body = "
    .shared .align 16 .b8 sm[1024];
    mov.u32 %r1, sm;
    shl.b32 %r2, %tid, 2;
    add.u32 %r3, %r1, %r2;
    st.shared.b32 [%r3], %tid;
    mul.wide.u32 %rd2, %tid, 4;
    add.u64 %rd3, %out, %rd2;
    and.b32 %r4, %tid, 3;
    setp.ne.u32 %p0, %r4, 2;
    and.b32 %r9, %tid, 7;
    shl.b32 %r9, %r9, 4;
    add.u32 %r9, %r9, %r1;
    mov.u32 %r10, 0;
    mov.u32 %r11, 0;
    bar.sync 0;
ROUND:
    @%p0 bra A;
    ld.global.u32 %r5, [%rd3];
    add.u32 %r10, %r10, %r5;
A:
    @%p0 bra B;
    ld.global.u32 %r5, [%rd3];
    add.u32 %r10, %r10, %r5;
B:
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r9];
    add.u32 %r10, %r10, %r6;
    bar.sync 0;
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p1, %r11, 200;
    @%p1 bra ROUND;
    st.global.b32 [%rd3], %r10;
";
    for reconvergence in [Reconvergence::Eager, Reconvergence::Forced] {
        for schedule in SCHEDULES {
            let (report, _) =
                geforce(64, body).run(&Options { schedule, reconvergence, ..Options::default() });
            assert!(report.is_clean(), "{schedule:?} {reconvergence:?}: {}", report.findings[0]);
        }
    }
}
