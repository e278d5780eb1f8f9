//! A bf16 GEMM by a pair of CTAs: `cta_group::2`, TMA that signals the peer, multicast commit.

mod common;

use common::{Random, parse, run};
use silumin_emulator::{
    Arg, DataType, FindingKind, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, Options, Report,
    Schedule, SwizzleMode, TensorMapParams,
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
    let report = run(&parse(text), &launch, &memory, &Options { schedule, ..Options::default() });
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
