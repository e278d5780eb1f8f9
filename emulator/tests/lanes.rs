//! Tests what orders the accesses of a warp's lanes. Executing an instruction together does not.

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Report, Schedule, Tracking};

fn run_body(body: &str, threads: u32, schedule: Schedule) -> Report {
    let text = match body.contains("wgmma") {
        true => kernel(body).replace("sm_100a", "sm_90a"),
        false => kernel(body),
    };
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[1; 4096]);
    let launch = launch(1, threads, vec![Arg::Pointer(memory.address(&out))]);
    let options = Options { schedule, tracking: Tracking::Strict, ..Options::default() };
    run(&parse(&text), &launch, &memory, &options)
}

fn schedules(threads: u32) -> impl Iterator<Item = Schedule> {
    let starved = (0..threads.div_ceil(32)).map(|warp| Schedule::Starve { warp, seed: 5 });
    [Schedule::Early, Schedule::Late].into_iter().chain((0..8).map(Schedule::Random)).chain(starved)
}

fn clean(body: &str, threads: u32) {
    for schedule in schedules(threads) {
        let report = run_body(body, threads, schedule);
        assert!(report.is_clean(), "{schedule:?}: {}\n{body}", report.findings[0]);
    }
}

/// Every schedule shows it: what the tracker says does not depend on what happened.
fn found(body: &str, threads: u32, kind: FindingKind, word: &str) {
    for schedule in schedules(threads) {
        let report = run_body(body, threads, schedule);
        let finding = report.findings.iter().find(|f| f.kind == kind);
        let Some(finding) = finding else {
            panic!("{schedule:?}: expected {kind:?}, found {:#?}\n{body}", report.findings)
        };
        assert!(finding.message.contains(word), "{}", finding.message);
    }
}

/// Four warps read what a fifth has had copied; one lane of each lets the slot go. `before` comes before its arrival.
fn slot(before: &str, arrive: &str) -> String {
    format!(
        r#"
    .shared .align 128 .b8 slot[512];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 empty;
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    and.b32 %r2, %r0, 31;
    mov.u32 %r3, full;
    mov.u32 %r4, empty;
    mov.u32 %r5, slot;
    mov.b32 %r10, 0;
    setp.eq.u32 %p4, %r2, 7;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    mbarrier.init.shared::cta.b64 [%r4], 4;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    setp.eq.u32 %p1, %r1, 4;
    @%p1 bra PRODUCER;
    shl.b32 %r6, %r0, 2;
    add.u32 %r6, %r6, %r5;
CONSUME:
    and.b32 %r7, %r10, 1;
FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r7;
    @!%p2 bra FULL;
    ld.shared.u32 %r8, [%r6];
    {before}
    {arrive} mbarrier.arrive.shared::cta.b64 _, [%r4];
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 3;
    @%p3 bra CONSUME;
    bra DONE;
PRODUCER:
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra DONE;
PRODUCE:
    and.b32 %r7, %r10, 1;
    xor.b32 %r7, %r7, 1;
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], %r7;
    @!%p2 bra EMPTY;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%out], 512, [%r3];
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 3;
    @%p3 bra PRODUCE;
DONE:
"#
    )
}

#[test]
fn one_lane_lets_a_slot_go_for_all_once_they_have_met() {
    let met = "bar.warp.sync 0xffffffff;";
    clean(&slot(met, "@%p4"), 160);
    clean(&slot("bar.sync 1, 128;", "@%p4"), 160);
    // An instruction that the warp executes together is none that orders memory.
    let wgmma = "wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
    let vote = "vote.sync.all.pred %p5, %p4, 0xffffffff;";
    let shuffle = "shfl.sync.idx.b32 %r9, %r8, 0, 31, 0xffffffff;";
    let product = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r20, %r21}, {%r8, %r8, %r8, %r8}, {%r8, %r8}, {%r8, %r8};";
    for together in ["", wgmma, vote, shuffle, product] {
        found(&slot(together, "@%p4"), 160, FindingKind::SlotOverwritten, "bar.warp.sync");
        clean(&slot(&format!("{together} {met}"), "@%p4"), 160);
    }
    clean(&slot(&format!("{met} {wgmma}"), "@%p4"), 160);
}

#[test]
fn lanes_that_all_arrive_speak_for_themselves() {
    let all = |before: &str| slot(before, "").replace("[%r4], 4;", "[%r4], 128;");
    clean(&all(""), 160);
    // One after the other, too.
    let apart = "setp.lt.u32 %p5, %r2, 9; @%p5 bra LOW; bra.uni HIGH; LOW: nanosleep.u32 4; HIGH:";
    clean(&all(apart), 160);
}

#[test]
fn lanes_see_each_others_stores_after_bar_warp_sync_only() {
    let body = |between: &str| {
        format!(
            r#"
    .shared .align 16 .b32 x[32];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    xor.b32 %r4, %r1, 4;
    add.u32 %r4, %r2, %r4;
    setp.eq.u32 %p0, %r0, 3;
    st.shared.u32 [%r3], %r0;
    {between}
    ld.shared.u32 %r5, [%r4];
"#
        )
    };
    clean(&body("bar.warp.sync 0xffffffff;"), 32);
    clean(&body("bar.sync 0;"), 32);
    for together in [
        "",
        "shfl.sync.bfly.b32 %r9, %r0, 1, 31, 0xffffffff;",
        "vote.sync.ballot.b32 %r9, %p0, 0xffffffff;",
        "redux.sync.add.s32 %r9, %r0, 0xffffffff;",
        "match.any.sync.b32 %r9, %r0, 0xffffffff;",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r0;",
    ] {
        found(&body(together), 32, FindingKind::RaceShared, "different lanes of one warp");
    }
}

#[test]
fn an_mbarrier_orders_the_lane_that_arrives_before_those_that_wait() {
    let body = |store: &str| {
        format!(
            r#"
    .shared .align 16 .b32 x[32];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, x;
    mov.u32 %r2, bar;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p1, %r0, 9;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
    bar.warp.sync 0xffffffff;
    {store} st.shared.u32 [%r1], 5;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r5, [%r1];
"#
        )
    };
    clean(&body("@%p1"), 32);
    // Another lane's store is not what lane 9 announces.
    found(&body("@%p0"), 32, FindingKind::RaceShared, "different lanes of one warp");
}
