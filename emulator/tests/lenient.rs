//! What hardware runs although a strict reading of the ISA forbids it: the run goes on, and says so where that is wanted.
//!
//! Each kernel does one such thing. Under every schedule the default tracking finds what is named, or nothing, and so
//! does strict tracking; the run reaches its end.

mod common;

use common::{parse, run};
use silumin_emulator::{
    Arg, FindingKind, GlobalMemory, Launch, Options, Reconvergence, Report, Schedule, Tracking,
};

const SCHEDULES: [Schedule; 5] = [
    Schedule::Early,
    Schedule::Late,
    Schedule::Random(1),
    Schedule::Random(2),
    Schedule::Starve { warp: 1, seed: 3 },
];

/// A kernel of the right chip around a body; `%out` is its buffer.
fn kernel(chip: &str, attributes: &str, body: &str) -> String {
    format!(
        r#".version 9.0
.target {chip}
.address_size 64
.visible .entry k(.param .u64 out) {attributes}
{{
    .reg .pred %p<8>;
    .reg .b16 %h<4>;
    .reg .b32 %r<48>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<16>;
    .reg .b64 %out;
    .reg .b32 %tid, %warp;
    mov.u32 %tid, %tid.x;
    shr.u32 %warp, %tid, 5;
    ld.param.u64 %out, [out];
{body}
    ret;
}}
"#
    )
}

struct Case<'a> {
    chip: &'a str,
    cluster: u32,
    threads: u32,
    body: &'a str,
}

impl Case<'_> {
    fn run(&self, options: &Options<'_>) -> (Report, Vec<u8>) {
        let attributes =
            if self.cluster > 1 { format!(".reqnctapercluster {}", self.cluster) } else { String::new() };
        let module = parse(&kernel(self.chip, &attributes, self.body));
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[1; 4096]);
        let launch = Launch {
            grid: [self.cluster, 1, 1],
            block: [self.threads, 1, 1],
            cluster: [self.cluster, 1, 1],
            dynamic_smem: 0,
            args: vec![Arg::Pointer(memory.address(&out))],
        };
        let report = run(&module, &launch, &memory, options);
        (report, memory.read(&out))
    }

    /// Runs under all schedules; by default it finds exactly `default`, strictly exactly `strict`, and goes on to the end.
    fn finds(&self, default: &[FindingKind], strict: &[FindingKind]) {
        for schedule in SCHEDULES {
            for (tracking, wanted) in [
                (Tracking::Off, None),
                (Tracking::HappensBefore, Some(default)),
                (Tracking::Strict, Some(strict)),
            ] {
                let (report, _) = self.run(&Options { schedule, tracking, ..Options::default() });
                let mut found: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
                found.sort();
                found.dedup();
                assert!(!report.stopped, "{schedule:?} {tracking:?}: {}\n{}", report.findings[0], self.body);
                match wanted {
                    Some(wanted) => assert_eq!(
                        found, wanted,
                        "{schedule:?} {tracking:?}: {:#?}\n{}",
                        report.findings, self.body
                    ),
                    None => assert!(
                        found.iter().all(|k| default.contains(k)),
                        "{schedule:?}: {:#?}\n{}",
                        report.findings,
                        self.body
                    ),
                }
            }
        }
    }
}

fn blackwell(threads: u32, body: &str) -> Case<'_> {
    Case { chip: "sm_100a", cluster: 1, threads, body }
}

fn pair(body: &str) -> Case<'_> {
    Case { chip: "sm_100a", cluster: 2, threads: 128, body }
}

fn geforce(threads: u32, body: &str) -> Case<'_> {
    Case { chip: "sm_120a", cluster: 1, threads, body }
}

/// Allocates 32 columns by warp 0, in all threads' way.
const ALLOCATE: &str = "
    .shared .align 16 .b8 word[64];
    mov.u32 %r40, word;
    setp.ne.u32 %p7, %warp, 0;
    @%p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r40], 32;
ALLOCATED:
    bar.sync 0;
    shl.b32 %r41, %warp, 21;
";

const FREE: &str = "
    bar.sync 0;
    @%p7 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;
FREED:
";

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
            // Where order is tracked, that they may hang is said, and nothing else.
            let kinds: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
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

#[test]
fn metadata_without_meaning_names_the_elements_of_its_bits() {
    let body = "
    mov.b32 %r1, 0;
    mov.b32 %r2, 0x38383838;
    mov.b32 %r3, 0x7f7f7f7f;
    mov.f32 %f0, 0f00000000;
    mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r2, %r2, %r2, %r2}, {%f0, %f0, %f0, %f0}, %r1, 0, %r3, {0, 0}, %r3, {0, 0};
    mul.wide.u32 %rd1, %tid, 16;
    add.u64 %rd1, %out, %rd1;
    st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};
";
    let case = geforce(32, body);
    case.finds(&[FindingKind::UndefinedMetadata], &[FindingKind::UndefinedMetadata]);
    assert!(case.run(&Options::default()).1[..512].iter().all(|&b| b == 0));
    // With values there, both of a chunk meet the first element of B: 64 / 2 products of 1 and 1.
    let ones = body.replace("{%r1, %r1, %r1, %r1}", "{%r2, %r2, %r2, %r2}");
    let (_, out) = geforce(32, &ones).run(&Options::default());
    assert_eq!(out[..4], 32f32.to_le_bytes());
}

#[test]
fn lanes_may_copy_one_word_together() {
    let body = "
    .shared .align 16 .b8 sm[64];
    mov.u32 %r1, sm;
    add.u32 %r2, %r1, 16;
    setp.eq.u32 %p0, %tid, 0;
    setp.lt.u32 %p1, %tid, 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 32;
    bar.sync 0;
    @!%p1 bra CONSUMER;
    cp.async.ca.shared.global [%r2], [%out], 4;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];
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
    // Lanes that copy different words to one place are a race still.
    let different = body.replace(
        "cp.async.ca.shared.global [%r2], [%out], 4;",
        "mul.wide.u32 %rd2, %tid, 4; add.u64 %rd2, %out, %rd2; st.global.u32 [%rd2], %tid; cp.async.ca.shared.global [%r2], [%rd2], 4;",
    );
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let (report, _) = geforce(64, &different).run(&options);
    assert!(report.findings.iter().any(|f| f.kind == FindingKind::MissingCopyWait), "{:#?}", report.findings);
}

#[test]
fn scale_operands_and_sparse_spellings_of_compilers_are_taken() {
    let accepted = |line: &str| {
        let text = kernel("sm_120a", "", line);
        silumin_emulator::Module::parse("k.ptx", &text).map(drop).map_err(|e| e.to_string())
    };
    let dense = "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f0, %f1, %f2, %f3}, ";
    for scales in ["{%r7}, {%h0, %h0}, {%r8}, {%h0, %h0};", "%r7, {0, 1}, %r8, {0, 3};"] {
        assert_eq!(accepted(&format!("{dense}{scales}")), Ok(()));
    }
    for sparse in [
        "mma.sync.aligned.kind::mxf8f6f4.sp::ordered_metadata.block_scale.scale_vec::1X.m16n8k64.row.col.f32.e4m3.e4m3.f32.ue8m0",
        "mma.sp::ordered_metadata.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k64.row.col.f32.e4m3.e4m3.f32.ue8m0",
    ] {
        let operands = "{%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%f0, %f1, %f2, %f3}, {%r9}, 0x0, {%r10}, {%h0, %h0}, {%r11}, {%h0, %h0};";
        assert_eq!(accepted(&format!("{sparse} {operands}")), Ok(()));
    }
    // What the assembler refuses, with what it could be.
    for (scales, what) in [
        ("%r7, {1, 0}, %r8, {0, 0};", "byte-id of A"),
        ("%r7, {0, 0}, %r8, {2, 0};", "byte-id of B"),
        ("%r7, {0, 2}, %r8, {0, 0};", "thread-id of A"),
        ("%r7, {0, 0}, %r8, {0, 4};", "thread-id of B"),
    ] {
        let message = accepted(&format!("{dense}{scales}")).unwrap_err();
        assert!(message.contains(what) && message.contains("can be 0"), "{message}");
    }
    let two = dense.replace("mxf4nvf4", "mxf4").replace("4X", "2X").replace("ue4m3", "ue8m0");
    assert_eq!(accepted(&format!("{two}%r7, {{2, 0}}, %r8, {{0, 0}};")), Ok(()));
    assert!(accepted(&format!("{two}%r7, {{1, 0}}, %r8, {{0, 0}};")).is_err());
}

#[test]
fn white_space_may_stand_before_the_dot_of_a_modifier() {
    let body = "
    .shared .align 16 .b32 x[32];
    mov .u32 %r1, %tid .x;
    mov.u32 %r2, x;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r2, %r3;
    st .shared /* a comment */ .u32 [ %r3 ] , %r1 ;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p1, %tid, 0;
    @ %p1 bra DONE;
    mov.b64 %rd1, 0x14f0000000000000;
    cp.async.bulk.global.shared::cta.bulk_group
        .L2::cache_hint [%out], [%r2], 128, %rd1;
    cp.async.bulk.commit_group ;
    cp.async.bulk.wait_group 0;
DONE :
";
    let case = blackwell(32, body);
    case.finds(&[], &[]);
    assert_eq!(case.run(&Options::default()).1[4..8], [1, 0, 0, 0]);
    // ptxas takes none after a dot or around a double colon.
    for wrong in
        ["mov. u32 %r1, 0;", "mov . u32 %r1, 0;", "fence.proxy.async.shared ::cta;", "mov.u32 %r1, %tid. x;"]
    {
        let text = kernel("sm_100a", "", wrong);
        assert!(silumin_emulator::Module::parse("k.ptx", &text).is_err(), "{wrong}");
    }
}

/// Reads 30 registers that nothing wrote, in 30 lines, and then does `end`.
fn many(end: &str) -> String {
    let lines: Vec<String> = (1..=30).map(|i| format!("st.global.u32 [%out+{}], %r{i};", 4 * i)).collect();
    format!("{}\nst.global.u32 [%out], %tid;\n{end}", lines.join("\n"))
}

#[test]
fn the_limit_on_findings_ends_the_list_and_not_the_run() {
    let (report, out) = blackwell(1, &many("")).run(&Options::default());
    assert_eq!((report.findings.len(), report.left_out, report.stopped), (20, 10, false));
    assert_eq!(out[..4], [0; 4]);
    // What stops the run is told even so.
    let (report, out) = blackwell(1, &many("trap;")).run(&Options::default());
    assert_eq!(report.findings[0].kind, FindingKind::Trap);
    assert_eq!((report.findings.len(), report.left_out, report.stopped), (20, 11, true));
    assert_eq!(out[..4], [0; 4]);
    // A caller that asks only whether there is a finding stops at the first.
    let options = Options { max_findings: 1, stop_at_limit: true, ..Options::default() };
    let (report, out) = blackwell(1, &many("")).run(&options);
    assert_eq!((report.findings.len(), report.stopped), (1, true));
    assert_eq!(out[..4], [1; 4]);
}

#[test]
fn a_report_says_what_it_leaves_out_and_that_outputs_are_partial() {
    use silumin_emulator::command::{FOUND, Request, Schedules, execute};
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("k.ptx"), kernel("sm_100a", "", &many("trap;"))).unwrap();
    let launch = folder.path().join("k.toml");
    let text = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [1, 1, 1]\n[buffers.o]\nbytes = 4096\nfill = 0\n[[params]]\npointer = \"o\"\n";
    std::fs::write(&launch, text).unwrap();
    let report = |json| {
        let request = Request::Run {
            launch: launch.clone(),
            out: Some(folder.path().join("out")),
            schedules: Schedules::One(Schedule::Early),
            tracking: Tracking::HappensBefore,
            reconvergence: Reconvergence::Eager,
            trace: None,
            threads: 1,
            limits: silumin_emulator::command::Limits::default(),
            json,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(execute(&request, &mut out, &mut err), FOUND, "{}", String::from_utf8_lossy(&err));
        String::from_utf8(out).unwrap()
    };
    let text = report(false);
    assert!(text.contains("partial   a finding stopped the run"), "{text}");
    assert!(text.contains("20 findings, and 11 of other kinds or lines"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&report(true)).unwrap();
    assert_eq!((&json["partial"], &json["findings_left_out"]), (&true.into(), &11.into()));
    assert_eq!(
        (&json["runs"][0]["partial"], &json["runs"][0]["findings_left_out"]),
        (&true.into(), &11.into())
    );
}
