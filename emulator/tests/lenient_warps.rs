//! What hardware runs although a strict reading of the ISA forbids it, as `lenient.rs` has it: one lane that announces what
//! all lanes have stored alike, and exits that a barrier of the cluster waits for.

use crate::common::cases::{ALLOCATE, blackwell, pair};
use silumin_emulator::{FindingKind, Options, Tracking};

/// Warp 0 stores a word, one of its lanes arrives at an mbarrier, and warp 1 waits and reads the word.
fn announced(store: &str) -> String {
    format!(
        "
    .shared .align 8 .b64 bar;
    .shared .align 4 .b32 word;
    and.b32 %r1, %tid, 31;
    setp.ne.u32 %p0, %tid, 0;
    setp.ne.u32 %p1, %warp, 0;
    setp.lt.u32 %p2, %r1, 16;
    setp.eq.u32 %p3, %r1, 20;
    mov.u32 %r2, 7;
    @!%p0 mbarrier.init.shared::cta.b64 [bar], 1;
    bar.sync 0;
    @%p1 bra WAIT;
    {store}
    @%p3 mbarrier.arrive.release.cta.shared::cta.b64 _, [bar];
    bra DONE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p4, [bar], 0;
    @!%p4 bra WAIT;
    ld.shared.u32 %r3, [word];
    mul.wide.u32 %rd1, %tid, 4;
    add.u64 %rd1, %out, %rd1;
    st.global.u32 [%rd1], %r3;
DONE:
"
    )
}

#[test]
fn one_lane_announces_what_all_lanes_have_stored_alike() {
    let race = [FindingKind::RaceShared];
    blackwell(64, &announced("st.shared.u32 [word], %r2;")).finds(&[], &race);
    blackwell(64, &announced("st.shared.u32 [word], %r2;\n    bar.warp.sync 0xffffffff;")).finds(&[], &[]);
    // Which value stays is not known.
    blackwell(64, &announced("st.shared.u32 [word], %tid;")).finds(&race, &race);
    // The lane that arrives has not stored.
    blackwell(64, &announced("@%p2 st.shared.u32 [word], %r2;")).finds(&race, &race);
}

#[test]
fn the_exit_of_a_warp_counts_as_its_arrival_at_the_barrier_of_the_cluster() {
    let body = format!(
        "{ALLOCATE}
    mov.u32 %r2, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r41], {{%r2}};
    tcgen05.wait::st.sync.aligned;
    // early
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r41];
    tcgen05.wait::ld.sync.aligned; // loaded
    @%p7 bra FREED;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;
FREED:
"
    );
    pair(&body).finds(&[], &[]);
    let wait = [FindingKind::MissingTmemWait];
    let damaged = body.replace("tcgen05.wait::ld.sync.aligned; // loaded", "");
    pair(&damaged).finds(&wait, &wait);
    // What comes between an arrival and the exit is not ordered.
    let arrived = body.replace("    barrier.cluster.arrive.relaxed.aligned;\n", "");
    let arrived = arrived.replace("// early", "barrier.cluster.arrive.relaxed.aligned;");
    for tracking in [Tracking::HappensBefore, Tracking::Strict] {
        let (report, _) = pair(&arrived).run(&Options { tracking, ..Options::default() });
        assert!(report.findings.iter().any(|f| f.kind == wait[0]), "{:#?}", report.findings);
    }
}
