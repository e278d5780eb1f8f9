//! Barriers of threads, mbarriers, clusters, and what goes wrong with them.

use crate::common::{finding, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Options, Report, Schedule};

#[test]
fn barriers_order_warps_and_reduce() {
    // Every warp writes its number, then all read the sum; then a count of odd threads.
    let got = words(
        "
    .shared .align 4 .b8 numbers[16];
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    mov.u32 %r3, numbers;
    shl.b32 %r4, %r2, 2;
    add.u32 %r4, %r4, %r3;
    add.u32 %r5, %r2, 1;
    st.shared.u32 [%r4], %r5;
    bar.sync 0;
    ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [numbers];
    add.u32 %r10, %r6, %r7;
    add.u32 %r11, %r8, %r9;
    add.u32 %r10, %r10, %r11;
    and.b32 %r12, %r1, 1;
    setp.eq.u32 %p0, %r12, 1;
    barrier.cta.red.popc.aligned.u32 %r13, 1, 128, %p0;
    barrier.cta.red.or.aligned.pred %p1, 2, %p0;
    selp.u32 %r14, 1000, 0, %p1;
    add.u32 %r10, %r10, %r13;
    add.u32 %r10, %r10, %r14;
    mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.u32 [%rd1], %r10;",
        128,
        128,
    );
    assert_eq!(got, vec![10 + 64 + 1000; 128]);
}

#[test]
fn producers_arrive_and_consumers_wait_on_a_named_barrier() {
    let got = words(
        "
    .shared .align 4 .b32 value;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p0, %r1, 32;
    @%p0 bra CONSUMER;
    st.shared.u32 [value], 77;
    bar.arrive 3, 64;
    ret;
CONSUMER:
    bar.sync 3, 64;
    ld.shared.u32 %r2, [value];
    mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.u32 [%rd1], %r2;",
        64,
        32,
    );
    assert_eq!(got, vec![77; 32]);
}

/// One mbarrier at `bar`, initialised for `count` arrivals, and what follows.
fn with_mbarrier(count: u32, code: &str) -> String {
    format!(
        "
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], {count};
READY:
    bar.sync 0;
{code}"
    )
}

#[test]
fn mbarriers_complete_phases_and_return_states() {
    let got = words(
        &with_mbarrier(
            64,
            "
    mbarrier.arrive.shared::cta.b64 %rd2, [bar];
WAIT:
    mbarrier.try_wait.shared::cta.b64 %p1, [bar], %rd2;
    @!%p1 bra WAIT;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0;
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [bar], 1;
    selp.u32 %r2, 1, 0, %p2;
    selp.u32 %r3, 2, 0, %p3;
    add.u32 %r4, %r2, %r3;
    mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.u32 [%rd1], %r4;",
        ),
        64,
        64,
    );
    // Phase 0 has completed; of parity 1 none has since.
    assert_eq!(got, vec![1; 64]);
}

#[test]
fn arrive_drop_lowers_the_count_of_later_phases() {
    let got = words(
        &with_mbarrier(
            2,
            "
    mbarrier.arrive_drop.shared::cta.b64 _, [bar];
    mbarrier.arrive.shared::cta.b64 _, [bar];
    mbarrier.arrive.shared::cta.b64 _, [bar];
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 1;
    selp.u32 %r2, 1, 0, %p1;
    st.global.u32 [%out], %r2;",
        ),
        1,
        1,
    );
    // The second phase needed one arrival only.
    assert_eq!(got, [1]);
}

#[test]
fn transaction_counts_may_go_below_zero_while_an_arrival_is_pending() {
    let got = words(
        &with_mbarrier(
            1,
            "
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 64;
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 0;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 64;
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0;
    selp.u32 %r2, 1, 0, %p1;
    selp.u32 %r3, 10, 0, %p2;
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%out], %r2;",
        ),
        1,
        1,
    );
    assert_eq!(got, [10]);
}

#[test]
fn mbarrier_misuse_is_named() {
    let twice = with_mbarrier(1, "    mbarrier.arrive.shared::cta.b64 _, [bar], 2;");
    let text = finding(&twice, 1, FindingKind::ArrivalOverflow);
    assert!(text.contains("2 arrivals, but the mbarrier at shared offset 0x400 is in phase 0"), "{text}");
    let none = ".shared .align 8 .b64 bar;\n    mbarrier.arrive.shared::cta.b64 _, [bar];";
    let text = finding(none, 1, FindingKind::MbarrierMisuse);
    assert!(text.contains("no initialised mbarrier at shared offset 0x400"), "{text}");
    let again = with_mbarrier(1, "    mbarrier.init.shared::cta.b64 [bar], 1;");
    finding(&again, 1, FindingKind::MbarrierReinitialised);
    let overwritten = with_mbarrier(1, "    st.shared.b64 [bar], %out;");
    finding(&overwritten, 1, FindingKind::MbarrierOverwritten);
    let range = with_mbarrier(1, "    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 2000000;");
    let text = finding(&range, 1, FindingKind::MbarrierMisuse);
    assert!(text.contains("transaction count"), "{text}");
}

#[test]
fn a_missing_arrival_is_a_deadlock() {
    let code = with_mbarrier(
        33,
        "
    setp.lt.u32 %p1, %r1, 32;
    @!%p1 bra SLEEP;
    mbarrier.arrive.shared::cta.b64 _, [bar];
SLEEP:
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;",
    );
    let text = finding(&code, 64, FindingKind::Deadlock);
    assert!(
        text.contains("waits for the phase of parity 0 of the mbarrier at shared address 0x400"),
        "{text}"
    );
    assert!(text.contains("1 of 33 arrivals pending"), "{text}");
    assert!(text.contains("warp 0 lanes 0xffffffff") && text.contains("warp 1 lanes 0xffffffff"), "{text}");
    // The same at a thread barrier.
    let code = "
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p0, %r1, 32;
    @%p0 bra LEAVE;
    bar.sync 1, 64;
LEAVE:";
    let text = finding(code, 64, FindingKind::Deadlock);
    assert!(text.contains("barrier 1, where 32 lanes have arrived and 64 threads are expected"), "{text}");
}

#[test]
fn a_peek_that_can_only_fail_gives_up() {
    // The wait before the arrival must return false some time, not hang.
    let got = words(
        &with_mbarrier(
            1,
            "
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    mbarrier.arrive.shared::cta.b64 _, [bar];
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    selp.u32 %r2, 1, 0, %p1;
    selp.u32 %r3, 10, 0, %p2;
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%out], %r2;",
        ),
        1,
        1,
    );
    assert_eq!(got, [10]);
}

fn cluster_run(body: &str, cluster: u32, out_bytes: u64, schedule: Schedule) -> (Report, Vec<u8>) {
    let module = parse(&kernel(body));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", out_bytes);
    let args = vec![Arg::Pointer(memory.address(&out))];
    let l =
        Launch { grid: [cluster, 1, 1], block: [32, 1, 1], cluster: [cluster, 1, 1], dynamic_smem: 0, args };
    let report = run(&module, &l, &memory, &Options { schedule, ..Options::default() });
    (report, memory.read(&out))
}

const EXCHANGE: &str = "
    .shared .align 16 .b8 inbox[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %laneid;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, %cluster_nctarank;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 32;
    fence.mbarrier_init.release.cluster;
READY:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    // To the next CTA of the ring: one word a lane, and an arrival.
    add.u32 %r4, %r2, 1;
    rem.u32 %r4, %r4, %r3;
    mov.u32 %r5, inbox;
    mapa.shared::cluster.u32 %r6, %r5, %r4;
    shl.b32 %r7, %r1, 2;
    add.u32 %r6, %r6, %r7;
    mad.lo.u32 %r8, %r2, 100, %r1;
    st.shared::cluster.u32 [%r6], %r8;
    mov.u32 %r9, bar;
    mapa.shared::cluster.u32 %r10, %r9, %r4;
    getctarank.shared::cluster.u32 %r11, %r10;
    setp.ne.u32 %p1, %r11, %r4;
    @%p1 trap;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    add.u32 %r12, %r5, %r7;
    ld.shared.u32 %r13, [%r12];
    mad.lo.u32 %r14, %r2, 32, %r1;
    mul.wide.u32 %rd0, %r14, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.u32 [%rd1], %r13;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;";

#[test]
fn clusters_exchange_through_distributed_shared_memory() {
    for schedule in [Schedule::Early, Schedule::Random(5)] {
        let (report, out) = cluster_run(EXCHANGE, 4, 4 * 128, schedule);
        assert!(report.is_clean(), "{}", report.findings[0]);
        for (i, c) in out.chunks(4).enumerate() {
            let from = (i / 32 + 3) % 4;
            assert_eq!(u32::from_le_bytes(c.try_into().unwrap()), (100 * from + i % 32) as u32, "word {i}");
        }
    }
}

#[test]
fn arrivals_and_waits_of_a_cluster_barrier_take_turns() {
    let end = "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;";
    let body = EXCHANGE.strip_suffix(end).unwrap();
    let cases = [
        ("    barrier.cluster.wait.aligned;", "without an arrival since the last wait"),
        (
            "    barrier.cluster.arrive.aligned;\n    barrier.cluster.arrive.aligned;",
            "arrives at the cluster barrier twice",
        ),
    ];
    for (last, want) in cases {
        let (report, _) = cluster_run(&format!("{body}{last}"), 4, 4 * 128, Schedule::Early);
        let finding = &report.findings[0];
        assert_eq!(finding.kind, FindingKind::BarrierMisuse, "{finding}");
        assert!(finding.message.contains(want), "{finding}");
    }
}

#[test]
fn addresses_of_another_cta_are_checked() {
    let body = "
    .shared .align 16 .b8 inbox[128];
    mov.u32 %r5, inbox;
    mapa.shared::cluster.u32 %r6, %r5, 1;
    st.shared.u32 [%r6], 1;";
    let (report, _) = cluster_run(body, 1, 4, Schedule::Early);
    assert_eq!(report.findings[0].kind, FindingKind::OutOfBounds);
    assert!(report.findings[0].message.contains("names CTA 1 of the cluster, but this is CTA 0"));
    let (report, _) =
        cluster_run(&body.replace("st.shared.u32", "st.shared::cluster.u32"), 1, 4, Schedule::Early);
    assert!(report.findings[0].message.contains("names CTA 1 of a cluster of 1"), "{}", report.findings[0]);
    // A peer that has left: CTA 1 exits at once, CTA 0 writes to it after a while.
    let body = "
    .shared .align 16 .b8 inbox[128];
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p0, %r2, 1;
    @%p0 exit;
    mov.u32 %r1, 0;
DELAY:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 5000;
    @%p1 bra DELAY;
    mov.u32 %r5, inbox;
    mapa.shared::cluster.u32 %r6, %r5, 1;
    st.shared::cluster.u32 [%r6], 1;";
    let (report, _) = cluster_run(body, 2, 4, Schedule::Early);
    assert_eq!(report.findings[0].kind, FindingKind::PeerExited);
}

/// A kernel whose first warpgroup gives registers back and whose second one, of as many warps, takes some.
fn handed_over(bound: &str, first: &str, second: &str) -> String {
    let body = format!(
        "
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p0, %r1, 128;
    @%p0 bra FIRST;
    {second}
    bra DONE;
FIRST:
    {first}
DONE:
    st.global.u32 [%out], 7;"
    );
    kernel(&body).replace("out)\n{", &format!("out) {bound}\n{{"))
}

fn of_two_warpgroups(text: &str, schedule: Schedule) -> Report {
    let module = parse(text);
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4);
    let launch = launch(1, 256, vec![Arg::Pointer(memory.address(&out))]);
    run(&module, &launch, &memory, &Options { schedule, ..Options::default() })
}

#[test]
fn registers_are_waited_for_until_a_warpgroup_gives_them_back() {
    let (dec, inc) = ("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg.inc.sync.aligned.u32 216;");
    let enough = handed_over(".maxnreg 128 .reqntid 256", dec, inc);
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Starve { warp: 0, seed: 1 }] {
        let report = of_two_warpgroups(&enough, schedule);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
    }
    // A warpgroup that exits gives all of its registers back.
    let exits = handed_over(".maxnreg 128 .reqntid 256", "", "setmaxnreg.inc.sync.aligned.u32 256;");
    assert!(of_two_warpgroups(&exits, Schedule::Early).is_clean());
    // Nothing bounds the registers: ptxas ignores `setmaxnreg`.
    let unbound = handed_over(".reqntid 256", dec, "setmaxnreg.inc.sync.aligned.u32 256;");
    assert!(of_two_warpgroups(&unbound, Schedule::Early).is_clean());
}

#[test]
fn registers_that_no_warp_gives_back_are_waited_for_for_ever() {
    let dec = "setmaxnreg.dec.sync.aligned.u32 40; bar.sync 1, 256;";
    let inc = "setmaxnreg.inc.sync.aligned.u32 224; bar.sync 1, 256;";
    for bound in [".maxnreg 128 .reqntid 256", ".maxntid 256 .minnctapersm 2"] {
        let report = of_two_warpgroups(&handed_over(bound, dec, inc), Schedule::Early);
        let found = report.findings.iter().find(|f| f.kind == FindingKind::Deadlock);
        let said = found.unwrap_or_else(|| panic!("{bound}: {:?}", report.findings)).to_string();
        for part in [
            "setmaxnreg.inc.sync.aligned.u32 224",
            "waits for 96 more",
            "has 64 left",
            "with 128",
            "setmaxnreg.dec",
        ] {
            assert!(said.contains(part), "no `{part}` in {said}");
        }
    }
}

#[test]
fn a_block_with_more_registers_than_an_sm_has_is_refused() {
    let inc = "setmaxnreg.inc.sync.aligned.u32 256;";
    let module = parse(&handed_over(".maxnreg 168", "", inc));
    let refused = |threads| module.check("k", &launch(1, threads, vec![Arg::Pointer(0)]));
    assert!(refused(384).is_ok());
    let said = refused(512).unwrap_err().to_string();
    assert!(said.contains("168 registers") && said.contains("128") && said.contains(".maxnreg"), "{said}");
}

#[test]
fn counts_of_registers_are_checked_as_ptxas_checks_them() {
    for (count, wanted) in [("100", "a multiple of 8"), ("264", "24 to 256"), ("%r1", "constant")] {
        let text = kernel(&format!("setmaxnreg.inc.sync.aligned.u32 {count};"));
        let said = silumin_emulator::Module::parse("bad.ptx", &text).unwrap_err().to_string();
        assert!(said.contains(wanted), "no `{wanted}` in {said}");
    }
}
