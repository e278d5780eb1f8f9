//! A bf16 GEMM by a pair of CTAs: `cta_group::2`, TMA that signals the peer, multicast commit.

use crate::common::{Random, parse, run};
use silumin_emulator::{
    Arg, DataType, FindingKind, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, Options, Report,
    Schedule, SwizzleMode, TensorMapParams, Tracking,
};

const TEXT: &str = include_str!("ptx/bf16_pair.ptx");

fn map(address: u64, rows: u64, k: u64, box_rows: u32) -> Arg {
    let params = TensorMapParams {
        data_type: DataType::Bf16,
        global_address: address,
        global_dims: vec![k, rows],
        global_strides: vec![2 * k],
        box_dims: vec![64, box_rows],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: SwizzleMode::B128,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    };
    Arg::TensorMap(params.encode().expect("the tensor map is legal"))
}

/// Small integers, so that every sum is exact.
fn matrix(rows: usize, k: usize, seed: u64) -> (Vec<i32>, Vec<u8>) {
    let mut r = Random(seed);
    let values: Vec<i32> = (0..rows * k).map(|_| (r.next() % 17) as i32 - 8).collect();
    let bytes =
        values.iter().flat_map(|&v| ((v as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect();
    (values, bytes)
}

fn pair_run(text: &str, k: usize, schedule: Schedule) -> (Report, Vec<f32>, Vec<f32>) {
    run_with(text, k, Options { schedule, ..Options::default() })
}

fn tracked_run(text: &str, k: usize, schedule: Schedule) -> (Report, Vec<f32>, Vec<f32>) {
    run_with(text, k, Options { schedule, tracking: Tracking::HappensBefore, ..Options::default() })
}

fn run_with(text: &str, k: usize, options: Options<'_>) -> (Report, Vec<f32>, Vec<f32>) {
    let ((a, ab), (b, bb)) = (matrix(256, k, 1), matrix(128, k, 2));
    let mut memory = GlobalMemory::new();
    let (ga, gb) = (memory.alloc_from("a", &ab), memory.alloc_from("b", &bb));
    let out = memory.alloc("out", 4 * 256 * 128);
    let launch = Launch {
        grid: [2, 1, 1],
        block: [192, 1, 1],
        cluster: [2, 1, 1],
        dynamic_smem: 24576,
        args: vec![
            map(memory.address(&ga), 256, k as u64, 128),
            map(memory.address(&gb), 128, k as u64, 64),
            Arg::Pointer(memory.address(&out)),
            Arg::U32(k as u32 / 64),
        ],
    };
    let report = run(&parse(text), &launch, &memory, &options);
    let got = memory.read(&out).chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    let want = (a.chunks(k).flat_map(|x| b.chunks(k).map(move |y| (x, y))))
        .map(|(x, y)| x.iter().zip(y).map(|(x, y)| x * y).sum::<i32>() as f32)
        .collect();
    (report, got, want)
}

#[test]
fn a_pair_computes_its_tile_under_every_schedule() {
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)] {
        let (report, got, want) = pair_run(TEXT, 192, schedule);
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!(got, want, "{schedule:?}");
        assert_eq!(report.stats.mma_macs["f16"], 256 * 128 * 192);
    }
}

#[test]
fn a_commit_without_multicast_leaves_the_peer_waiting() {
    let text = TEXT.replace(".multicast::cluster.b64 [%r7], %both", ".b64 [%r7]");
    let (report, ..) = pair_run(&text, 64, Schedule::Early);
    let f = &report.findings[0];
    assert_eq!(f.kind, FindingKind::Deadlock);
    // `done` is the third barrier, in CTA 1 of the cluster.
    assert!(f.message.contains("mbarrier at shared address 0x1000410"), "{f}");
}

#[test]
fn bytes_for_the_peer_need_the_pair_qualifier() {
    let text = TEXT.replace("2d.cta_group::2.shared", "2d.shared");
    let (report, ..) = pair_run(&text, 64, Schedule::Early);
    let f = &report.findings[0];
    assert_eq!(f.kind, FindingKind::MbarrierMisuse);
    assert!(f.message.contains("goes to CTA 1 of the cluster, but its mbarrier is in CTA 0"), "{f}");
}

const SYNC: &str =
    "    barrier.cluster.arrive.relaxed.aligned;\n    barrier.cluster.wait.acquire.aligned;\n    setp";
const ALLOC: &str = "    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [tmem_address], 128;";

fn edited(edits: &[(&str, &str)]) -> String {
    edits.iter().fold(TEXT.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

/// The first finding of a kind.
fn found(report: &Report, kind: FindingKind) -> String {
    match report.findings.iter().find(|f| f.kind == kind) {
        Some(f) => f.to_string(),
        None => panic!("expected {kind:?}, found {:#?}", report.findings),
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::Early, Schedule::Late, Schedule::Random(1)];

#[test]
fn an_allocation_before_the_peer_is_known_to_run_is_warned_of_and_the_run_goes_on() {
    let after =
        "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;\n    tcgen05.fence::after";
    // No barrier before it, one that is arrived at only, and one whose wait is another warp's, without a word of it.
    let early = edited(&[(SYNC, "    setp"), ("    bar.sync 0;\n    tcgen05.fence::after", after)]);
    let split = edited(&[
        (SYNC, "    barrier.cluster.arrive.relaxed.aligned;\n    setp"),
        ("    bar.sync 0;\n", "    barrier.cluster.wait.acquire.aligned;\n    bar.sync 0;\n"),
    ]);
    for text in [early, split] {
        for schedule in SCHEDULES {
            let (report, got, want) = tracked_run(&text, 128, schedule);
            let [warning] = report.warnings.as_slice() else { panic!("{:#?}", report.warnings) };
            assert_eq!(warning.kind, FindingKind::PairAllocBeforePeer);
            assert!(warning.message.contains("runs"), "{warning}");
            assert!(!report.findings.iter().any(|f| f.kind.is_fatal()), "{:#?}", report.findings);
            assert_eq!(got, want, "{schedule:?}");
            // Strict tracking lists it among what is wrong.
            let (report, ..) =
                run_with(&text, 128, Options { schedule, tracking: Tracking::Strict, ..Options::default() });
            found(&report, FindingKind::PairAllocBeforePeer);
            assert!(report.warnings.is_empty(), "{:#?}", report.warnings);
        }
    }
}

#[test]
fn a_warp_hears_from_others_that_the_peer_runs() {
    // All arrive at the cluster barrier; warp 5 waits for warp 4 instead, at an mbarrier or at a barrier of two warps.
    let arrive = "    barrier.cluster.arrive.release;\n    setp";
    let no_wait = |hear: &str, tell: &str| {
        edited(&[
            (SYNC, arrive),
            (
                "ALLOCATED:\n",
                &format!("    bra JOIN;\nALLOCATED:\n    barrier.cluster.wait.acquire;\n{tell}JOIN:\n"),
            ),
            (ALLOC, &format!("{hear}{ALLOC}\n    barrier.cluster.wait.acquire;")),
            ("ALLOCATED:\n", "ALLOCATED:\n    setp.eq.u32 %p7, %warp, 4;\n"),
        ])
    };
    let named = no_wait("    bar.sync 1, 64;\n", "    @%p7 bar.arrive 1, 64;\n");
    let mbarrier = no_wait(
        "HEAR:\n    mbarrier.try_wait.parity.shared::cta.b64 %p7, [heard], 0;\n    @!%p7 bra HEAR;\n",
        "    setp.eq.u32 %p7, %r0, 128;\n    @%p7 mbarrier.arrive.shared::cta.b64 _, [heard];\n",
    )
    .replace(
        "    .shared .align 8 .b64 full;",
        "    .shared .align 8 .b64 heard;\n    .shared .align 8 .b64 full;",
    )
    .replace(
        "    mbarrier.init.shared::cta.b64 [full], 1;",
        "    mbarrier.init.shared::cta.b64 [full], 1;\n    mbarrier.init.shared::cta.b64 [heard], 1;",
    );
    // Warp 5 must know of the initialisation, too.
    let mbarrier = mbarrier.replace(
        "    barrier.cluster.arrive.release;",
        "    bar.sync 0;\n    barrier.cluster.arrive.release;",
    );
    let deaf = named.replace("    bar.sync 1, 64;\n", "").replace("    @%p7 bar.arrive 1, 64;\n", "");
    for schedule in SCHEDULES {
        for text in [&named, &mbarrier] {
            let (report, got, want) = tracked_run(text, 128, schedule);
            assert!(report.warnings.is_empty(), "{schedule:?}: {:#?}\n{text}", report.warnings);
            assert_eq!(got, want, "{schedule:?}");
        }
        let (report, ..) = tracked_run(&deaf, 128, schedule);
        assert!(report.warnings.iter().any(|f| f.kind == FindingKind::PairAllocBeforePeer), "{schedule:?}");
    }
}

#[test]
fn what_one_cta_of_a_pair_does_alone_is_found() {
    let dealloc = "    tcgen05.dealloc.cta_group::2.sync.aligned.b32";
    let relinquish = "    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;";
    for (instruction, word) in
        [(ALLOC, "alloc"), (dealloc, "dealloc"), (relinquish, "relinquish_alloc_permit")]
    {
        for rank in [0, 1] {
            let guarded =
                format!("    setp.eq.u32 %p7, %rank, {rank};\n    @%p7 {}", instruction.trim_start());
            let text = edited(&[(instruction, &guarded)]);
            for schedule in SCHEDULES {
                let (report, got, want) = pair_run(&text, 128, schedule);
                let message = found(&report, FindingKind::TmemPairMismatch);
                assert!(
                    message.contains(&format!(
                        "CTA {} of the cluster does not execute this tcgen05.{word}",
                        1 - rank
                    )),
                    "{message}"
                );
                // Neither of these keeps a GPU from going on.
                if word != "alloc" {
                    assert!(!report.findings.iter().any(|f| f.kind.is_fatal()), "{:#?}", report.findings);
                    assert_eq!(got, want, "{word}, {schedule:?}");
                }
            }
        }
    }
}

#[test]
fn both_ctas_of_a_pair_name_one_size_and_one_place() {
    let other = |alloc: &str| {
        format!(
            "    setp.eq.u32 %p7, %rank, 0;\n    @%p7 {};\n    @!%p7 {alloc}",
            ALLOC.trim().trim_end_matches(';')
        )
    };
    let size = other(&ALLOC.trim().replace("128", "64"));
    let place = other(&ALLOC.trim().replace("tmem_address", "tmem_address2"));
    for schedule in SCHEDULES {
        let (report, ..) = pair_run(&edited(&[(ALLOC, &size)]), 64, schedule);
        let text = found(&report, FindingKind::TmemPairMismatch);
        assert!(text.contains("64 columns are asked for here and 128 by CTA 0"), "{text}");
        let text = edited(&[
            (ALLOC, &place),
            (
                "    .shared .align 4 .b32 tmem_address;",
                "    .shared .align 4 .b32 tmem_address;\n    .shared .align 4 .b32 tmem_address2;",
            ),
        ]);
        let (report, ..) = pair_run(&text, 64, schedule);
        let text = found(&report, FindingKind::TmemPairMismatch);
        assert!(text.contains("the even CTA writes both"), "{text}");
    }
}

#[test]
fn the_even_cta_may_have_to_wait_for_the_odd_one() {
    // The odd CTA allocates after it has heard from the even one, which says so after its allocation.
    let text = edited(&[
        (
            ALLOC,
            &format!(
                "    setp.eq.u32 %p7, %rank, 1;\n    @!%p7 bra OWN;\n    barrier.cluster.arrive;\n    barrier.cluster.wait;\nOWN:\n{ALLOC}\n    @%p7 bra TOLD;\n    barrier.cluster.arrive;\n    barrier.cluster.wait;\nTOLD:"
            ),
        ),
        (
            "ALLOCATED:\n",
            "    bra KNOWN;\nALLOCATED:\n    barrier.cluster.arrive;\n    barrier.cluster.wait;\nKNOWN:\n",
        ),
    ]);
    let (report, ..) = pair_run(&text, 64, Schedule::Early);
    assert!(report.is_clean(), "{}", report.findings[0]);
    let (report, ..) = pair_run(&text, 64, Schedule::Late);
    found(&report, FindingKind::Deadlock);
}
