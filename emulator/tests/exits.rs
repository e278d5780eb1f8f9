//! CTAs that exit while something from a peer may be under way, and warps that come late to what is over.

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Options, Report, Schedule, Tracking};

/// Two CTAs of one warp: CTA 0 has an mbarrier, and both know of it when the body begins.
fn pair(body: &str, tracking: Tracking, schedule: Schedule) -> Report {
    let text = kernel(&format!(
        "
    .shared .align 8 .b64 bar;
    .shared .align 8 .b64 other;
    mov.u32 %r1, %laneid;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, bar;
    mapa.shared::cluster.u32 %r4, %r3, 0;
    setp.eq.u32 %p0, %r1, 0;
    setp.ne.u32 %p2, %r2, 0;
    @%p0 mbarrier.init.shared::cta.b64 [bar], 1;
    @%p0 mbarrier.init.shared::cta.b64 [other], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
{body}"
    ));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 16);
    let args = vec![Arg::Pointer(memory.address(&out))];
    let l = Launch { grid: [2, 1, 1], block: [32, 1, 1], cluster: [2, 1, 1], dynamic_smem: 0, args };
    run(&parse(&text), &l, &memory, &Options { schedule, tracking, ..Options::default() })
}

const ALL: [Schedule; 5] = [
    Schedule::Early,
    Schedule::Late,
    Schedule::Random(1),
    Schedule::Starve { warp: 0, seed: 1 },
    Schedule::Delay { warp: 0, seed: 1 },
];

fn kinds(body: &str, tracking: Tracking) -> Vec<Vec<FindingKind>> {
    let of = |schedule| pair(body, tracking, schedule).findings.iter().map(|f| f.kind).collect();
    ALL.map(of).to_vec()
}

/// CTA 1 arrives at the mbarrier of CTA 0.
const ARRIVE: &str = "
    and.pred %p1, %p0, %p2;
    @%p1 mbarrier.arrive.shared::cluster.b64 _, [%r4];
    bar.warp.sync 0xffffffff;";

/// CTA 0 waits for it.
const WAIT: &str = "
    @%p2 bra MET;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
MET:";

const RELAXED: &str = "
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;";

const RELEASED: &str = "
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.aligned;";

#[test]
fn an_arrival_of_a_peer_is_waited_for_before_the_exit() {
    for tracking in [Tracking::HappensBefore, Tracking::Strict] {
        for found in kinds(ARRIVE, tracking) {
            assert_eq!(found, [FindingKind::ExitDuringArrival]);
        }
        // Either will do, and also an arrival that counts itself relaxed.
        for body in [format!("{ARRIVE}{WAIT}{RELAXED}"), format!("{ARRIVE}{RELEASED}")] {
            assert!(kinds(&body, tracking).iter().all(Vec::is_empty), "{body}");
        }
        let relaxed = ARRIVE.replace("arrive.shared", "arrive.relaxed.cluster.shared");
        assert!(kinds(&format!("{relaxed}{WAIT}{RELAXED}"), tracking).iter().all(Vec::is_empty));
        for found in kinds(&relaxed, tracking) {
            assert_eq!(found, [FindingKind::ExitDuringArrival]);
        }
    }
}

#[test]
fn an_arrival_before_a_relaxed_barrier_is_found_by_strict_tracking_only() {
    let relaxed = ARRIVE.replace("arrive.shared", "arrive.relaxed.cluster.shared");
    for body in [format!("{ARRIVE}{RELAXED}"), format!("{relaxed}{RELAXED}")] {
        assert!(kinds(&body, Tracking::HappensBefore).iter().all(Vec::is_empty), "{body}");
        for found in kinds(&body, Tracking::Strict) {
            assert_eq!(found, [FindingKind::ExitDuringArrival]);
        }
    }
    // The barrier has to come after the arrival, and the CTA has to wait at it.
    let before = format!("{RELAXED}{ARRIVE}");
    let unwaited = format!(
        "{ARRIVE}
    barrier.cluster.arrive.relaxed.aligned;
    @!%p2 bra GONE;
    barrier.cluster.wait.aligned;
GONE:"
    );
    for found in kinds(&before, Tracking::HappensBefore) {
        assert!(matches!(found[..], [FindingKind::ExitDuringArrival | FindingKind::PeerExited]), "{found:?}");
    }
    for found in kinds(&unwaited, Tracking::HappensBefore) {
        assert_eq!(found, [FindingKind::ExitDuringArrival]);
    }
}

#[test]
fn the_finding_names_the_arrival() {
    let report = pair(ARRIVE, Tracking::HappensBefore, Schedule::Early);
    let f = &report.findings[0];
    assert!(f.text.contains("mbarrier.arrive.shared::cluster.b64 _, [%r4]"), "{f}");
    assert!(
        f.message.contains("(CTA 1 of the cluster, warp 0) may be under way when the last thread"),
        "{f}"
    );
}

#[test]
fn a_wait_for_an_earlier_phase_is_not_enough() {
    let twice = ARRIVE.replace("@%p1", "@%p1 mbarrier.arrive.shared::cluster.b64 _, [%r4];\n    @%p1");
    let second = "    and.pred %p1, %p0, %p2;\n    @%p1 mbarrier.arrive.shared::cluster.b64 _, [%r4];";
    let acknowledge = "
    setp.eq.u32 %p3, %r2, 0;
    mov.u32 %r5, other;
    mapa.shared::cluster.u32 %r6, %r5, 1;
    and.pred %p1, %p0, %p3;
    @%p1 mbarrier.arrive.shared::cluster.b64 _, [%r6];
    @%p3 bra HEARD;
WAIT_OTHER:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [other], 0;
    @!%p1 bra WAIT_OTHER;
HEARD:
    bar.warp.sync 0xffffffff;";
    assert_ne!(twice, ARRIVE);
    for found in kinds(&format!("{ARRIVE}{WAIT}{acknowledge}{second}{RELAXED}"), Tracking::Strict) {
        assert_eq!(found, [FindingKind::ExitDuringArrival]);
    }
}

/// CTA 0 commits to both mbarriers at `bar`; those waits are left out that `without` names.
fn commits(without: &str, tracking: Tracking) -> Vec<Vec<FindingKind>> {
    let wait = "
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
MET:";
    let wait = if without.is_empty() { wait.to_owned() } else { format!("    @{without} bra MET;{wait}") };
    let body = format!(
        "
    setp.eq.u32 %p3, %r2, 0;
    and.pred %p1, %p0, %p3;
    mov.b16 %h0, 3;
    @%p1 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [bar], %h0;
    bar.warp.sync 0xffffffff;
{wait}{RELAXED}"
    );
    kinds(&body, tracking)
}

#[test]
fn a_commit_of_a_peer_is_waited_for_under_strict_tracking() {
    for tracking in [Tracking::HappensBefore, Tracking::Strict] {
        assert!(commits("", tracking).iter().all(Vec::is_empty));
    }
    // CTA 0 has seen its own arrival of the same commit, and says so by the barrier.
    assert!(commits("%p2", Tracking::HappensBefore).iter().all(Vec::is_empty));
    for found in commits("%p2", Tracking::Strict) {
        assert_eq!(found, [FindingKind::ExitDuringArrival]);
    }
}

/// Warp 0 starts a copy and waits for it. Warp 1 waits for the copy, too, and then completes the next phase, after which the
/// parity that warp 0 waits for does not come again.
const OVERTAKEN: &str = "
    .shared .align 16 .b8 data[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 mbarrier.init.shared::cta.b64 [bar], 1;
    bar.sync 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra WAIT;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [data], [%out], 128, [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    setp.eq.u32 %p3, %r1, 32;
    @%p3 mbarrier.arrive.shared::cta.b64 _, [bar];";

#[test]
fn a_delayed_warp_comes_late_to_what_it_has_issued() {
    let hangs = |schedule: Schedule| {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[1; 128]);
        let l = launch(1, 64, vec![Arg::Pointer(memory.address(&out))]);
        let options = Options { schedule, ..Options::default() };
        let report = run(&parse(&kernel(OVERTAKEN)), &l, &memory, &options);
        assert!(report.findings.iter().all(|f| f.kind == FindingKind::Deadlock));
        !report.is_clean()
    };
    assert!(!hangs(Schedule::Late));
    // What a starved warp has issued is late with it.
    assert!((0..16).all(|seed| !hangs(Schedule::Starve { warp: 0, seed })));
    assert!((0..16).any(|seed| hangs(Schedule::Delay { warp: 0, seed })));
}
