//! Loads, stores, atomics, and asynchronous copies.

use crate::common::{finding, kernel, launch, parse, run, words};
use silumin_emulator::{
    Arg, DataType, FindingKind, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, Options, Report,
    Schedule, SwizzleMode, TensorMapParams, Tracking,
};

const SCHEDULES: [Schedule; 4] = [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)];

#[test]
fn vectors_subwords_and_generic_addresses() {
    let got = words(
        "
    .shared .align 16 .b8 s[64];
    .local .align 16 .b8 l[32];
    mov.b32 %r1, 0x80ff7f01;
    st.shared.b32 [s+4], %r1;
    ld.shared.s8 %r0, [s+7];
    st.global.b32 [%out], %r0;
    ld.shared.u16 %r2, [s+6];
    st.global.b32 [%out+4], %r2;
    mov.u64 %rd8, s;
    cvta.shared.u64 %rd0, %rd8;
    ld.b32 %r3, [%rd0+4];
    st.global.b32 [%out+8], %r3;
    mov.u64 %rd1, l;
    cvta.local.u64 %rd2, %rd1;
    st.local.v2.b32 [l+8], {%r1, %r3};
    ld.b64 %rd3, [%rd2+8];
    st.global.b64 [%out+16], %rd3;
    isspacep.local %p0, %rd2;
    selp.b32 %r4, 1, 0, %p0;
    st.global.b32 [%out+12], %r4;
    cvta.to.shared.u64 %rd4, %rd0;
    cvt.u32.u64 %r5, %rd4;
    mov.u32 %r6, s;
    sub.u32 %r7, %r5, %r6;
    st.global.v2.b32 [%out+24], {%r7, %r7};",
        1,
        8,
    );
    assert_eq!(got, [0xffff_ff80, 0x80ff, 0x80ff_7f01, 1, 0x80ff_7f01, 0x80ff_7f01, 0, 0]);
}

#[test]
fn constants_and_module_variables_have_their_values() {
    let text = kernel(
        "
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd0, %r1, 4;
    mov.u64 %rd1, table;
    add.u64 %rd2, %rd1, %rd0;
    ld.const.u32 %r2, [%rd2];
    ld.global.u64 %rd3, [pointer];
    ld.u32 %r3, [%rd3];
    add.u32 %r4, %r2, %r3;
    add.u64 %rd4, %out, %rd0;
    st.global.u32 [%rd4], %r4;",
    )
    .replace(
        ".visible .entry",
        ".const .align 4 .u32 table[4] = {10, 20, 30, 0x28};
.global .align 4 .f32 one = 0f3F800000;
.global .align 4 .u32 cell[2] = {5, 6};
.global .align 8 .u64 pointer = generic(cell)+4;
.visible .entry",
    );
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 16);
    let l = launch(1, 4, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    let got: Vec<u32> =
        memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(got, [16, 26, 36, 46]);
}

#[test]
fn atomics_of_many_ctas_add_up() {
    let text = kernel(
        "
    atom.global.add.u32 %r0, [%out], 1;
    red.global.max.u32 [%out+4], %r0;
    mov.f32 %f0, 0f3F800000;
    red.global.add.f32 [%out+8], %f0;
    atom.global.cas.b32 %r1, [%out+12], 7, 8;
    .shared .align 4 .b32 s;
    st.shared.u32 [s], 0;
    bar.sync 0;
    atom.shared.inc.u32 %r2, [s], 9;
    mov.b32 %r5, 0x3c003c00;
    red.global.add.noftz.f16x2 [%out+16], %r5;",
    );
    let mut memory = GlobalMemory::new();
    let mut start = [0u8; 20];
    start[12] = 7;
    let out = memory.alloc_from("out", &start);
    let l = launch(16, 64, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    let got: Vec<u32> =
        memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(got, [1024, 1023, 1024f32.to_bits(), 8, 0x6400_6400]);
}

#[test]
fn faults_say_where() {
    let text = finding("    ld.global.u32 %r0, [%out+4096];", 1, FindingKind::OutOfBounds);
    assert!(text.contains("offset 4096 of buffer `out`, which has 4096 bytes"), "{text}");
    let text = finding("    ld.global.v2.u32 {%r0, %r1}, [%out+4];", 1, FindingKind::Misaligned);
    assert!(text.contains("is not a multiple of 8"), "{text}");
    let text = finding("    ld.global.u32 %r0, [%out];", 1, FindingKind::UninitialisedGlobal);
    assert!(text.contains("nothing has written all of 4 bytes"), "{text}");
    let text = finding(
        "    .shared .align 4 .b8 s[8];\n    st.shared.u32 [s], 1;\n    ld.shared.u32 %r0, [s+4];\n    st.global.u32 [%out], %r0;",
        1,
        FindingKind::UninitialisedShared,
    );
    assert!(text.contains("from shared offset 0x404, where nothing has written"), "{text}");
    let text = finding("    mov.u64 %rd0, 0;\n    ld.global.u32 %r0, [%rd0];", 1, FindingKind::OutOfBounds);
    assert!(text.contains("where no buffer is"), "{text}");
    // The last bytes of the address space have no end to count from.
    for access in ["ld.global.u32 %r0, [%rd0+-4];", "st.global.u32 [%rd0+-4], 1;"] {
        finding(&format!("    mov.u64 %rd0, 0;\n    {access}"), 2, FindingKind::OutOfBounds);
    }
    finding("    .shared .align 4 .b8 s[8];\n    st.shared.u32 [s+8], 1;", 1, FindingKind::OutOfBounds);
}

fn map(
    memory: &GlobalMemory,
    buffer: &silumin_emulator::Buffer,
    data_type: DataType,
    dims: [u64; 2],
    boxed: [u32; 2],
) -> Arg {
    let bytes = u64::from(data_type.bits() / 8);
    let params = TensorMapParams {
        data_type,
        global_address: memory.address(buffer),
        global_dims: dims.to_vec(),
        global_strides: vec![(dims[0] * bytes).next_multiple_of(16)],
        box_dims: boxed.to_vec(),
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: SwizzleMode::None,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    };
    Arg::TensorMap(params.encode().unwrap())
}

/// Loads a 32 x 4 box of f32 at (%x, %y), adds it to `out` (or stores it) at (0, 0).
const BOX: &str = r#".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128], .param .s32 x, .param .s32 y)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 ret;
    mov.b64 %rd0, from;
    cvta.param.u64 %rd0, %rd0;
    mov.b64 %rd1, to;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u32 %r1, [x];
    ld.param.u32 %r2, [y];
    mov.u32 %r3, tile;
    mov.u32 %r4, bar;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 512;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd0, {%r1, %r2}], [%r4];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0;
    @!%p1 bra WAIT;
    STORE [%rd1, {0, 0}], [%r3];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    cp.async.bulk.wait_group 0;
    ret;
}
"#;

fn box_run(text: &str, x: i32, y: i32, schedule: Schedule) -> (Report, Vec<f32>) {
    let mut memory = GlobalMemory::new();
    let values: Vec<u8> = (0..40 * 6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let from = memory.alloc_from("from", &values);
    let to = memory.alloc_from("to", &1f32.to_le_bytes().repeat(32 * 4));
    let args = vec![
        map(&memory, &from, DataType::F32, [40, 6], [32, 4]),
        map(&memory, &to, DataType::F32, [32, 4], [32, 4]),
        Arg::U32(x as u32),
        Arg::U32(y as u32),
    ];
    let module = parse(text);
    let report = run(&module, &launch(1, 32, args), &memory, &Options { schedule, ..Options::default() });
    let out = memory.read(&to).chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    (report, out)
}

#[test]
fn tensor_copies_fill_outside_and_reduce() {
    for schedule in SCHEDULES {
        for (x, y) in [(0, 0), (8, 2), (20, 4), (-4, -2)] {
            for (store, base) in [
                ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", 0.0),
                ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", 1.0),
            ] {
                let (report, out) = box_run(&BOX.replace("STORE", store), x, y, schedule);
                assert!(report.is_clean(), "{}", report.findings[0]);
                for (i, v) in out.iter().enumerate() {
                    let (c, r) = (x + i as i32 % 32, y + i as i32 / 32);
                    let inside = (0..40).contains(&c) && (0..6).contains(&r);
                    let want = if inside { (r * 40 + c) as f32 } else { 0.0 };
                    assert_eq!(*v, want + base, "{schedule:?} box ({x}, {y}) element {i}");
                }
            }
        }
    }
}

#[test]
fn a_box_does_not_start_inside_of_16_bytes() {
    for (load, store) in [(-1, 0), (3, 0), (0, 2)] {
        let to = format!("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {{{store}, 0}}]");
        let (report, _) = box_run(&BOX.replace("STORE [%rd1, {0, 0}]", &to), load, 0, Schedule::Early);
        assert_eq!(report.findings[0].kind, FindingKind::IllegalTensorMap, "{load} {store}");
    }
}

#[test]
fn a_store_may_read_its_source_after_the_cta_ends() {
    let text = BOX
        .replace("STORE", "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group")
        .replace("    cp.async.bulk.wait_group 0;\n", "");
    let (report, out) = box_run(&text, 0, 0, Schedule::Late);
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert_eq!(out[33], 41.0);
    let text = text.replace("    cp.async.bulk.wait_group.read 0;\n", "");
    // Kernels that run on hardware leave their last stores under way; strict tracking says so (lenient.rs).
    let (report, out) = box_run(&text, 0, 0, Schedule::Late);
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert_eq!(out[33], 41.0);
}

#[test]
fn linear_bulk_copies_and_reductions() {
    let body = "
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 bar;
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%out], 256, [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    cp.async.bulk.global.shared::cta.bulk_group [%out+256], [tile], 128;
    cp.async.bulk.commit_group;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out+384], [tile], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 1;
    cp.async.bulk.wait_group 0;";
    for schedule in SCHEDULES {
        let mut memory = GlobalMemory::new();
        let start: Vec<u8> = (0..128u32).flat_map(u32::to_le_bytes).collect();
        let out = memory.alloc_from("out", &start);
        let l = launch(1, 1, vec![Arg::Pointer(memory.address(&out))]);
        let report = run(&parse(&kernel(body)), &l, &memory, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{}", report.findings[0]);
        let got: Vec<u32> =
            memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        for (i, v) in got.iter().enumerate().map(|(i, v)| (i as u32, *v)) {
            let want = match i {
                0..64 => i,
                64..96 => i - 64,
                _ => i + i - 96,
            };
            assert_eq!(v, want, "word {i}");
        }
    }
}

#[test]
fn small_asynchronous_copies_zero_fill_and_signal() {
    let body = "
    .shared .align 16 .b8 tile[512];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 32;
READY:
    bar.sync 0;
    mul.wide.u32 %rd0, %r1, 16;
    add.u64 %rd1, %out, %rd0;
    mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 4;
    add.u32 %r2, %r2, %r3;
    setp.lt.u32 %p1, %r1, 16;
    selp.u32 %r4, 16, 8, %p1;
    cp.async.cg.shared.global [%r2], [%rd1], 16, %r4;
    cp.async.commit_group;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    cp.async.wait_group 0;
    ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r2];
    st.global.v4.u32 [%rd1], {%r8, %r7, %r6, %r5};";
    for schedule in SCHEDULES {
        let mut memory = GlobalMemory::new();
        let start: Vec<u8> = (0..128u32).flat_map(u32::to_le_bytes).collect();
        let out = memory.alloc_from("out", &start);
        let l = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
        let report = run(&parse(&kernel(body)), &l, &memory, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{}", report.findings[0]);
        let got: Vec<u32> =
            memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        for (i, v) in got.iter().enumerate() {
            let (t, k) = (i / 4, 3 - i % 4);
            let want = if t < 16 || k < 2 { 4 * t + k } else { 0 };
            assert_eq!(*v, want as u32, "{schedule:?} word {i}");
        }
    }
}

#[test]
fn multicast_reaches_every_cta_of_the_mask() {
    let body = "
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %cluster_ctarank;
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.ne.u32 %p0, %r1, 1;
    @%p0 bra WAIT;
    mov.b16 %h0, 0xf;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%out], 128, [bar], %h0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    ld.shared.u32 %r2, [tile+64];
    add.u32 %r2, %r2, %r1;
    mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.u32 [%rd1+128], %r2;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;";
    for schedule in SCHEDULES {
        let mut memory = GlobalMemory::new();
        let start: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).chain([0; 16]).collect();
        let out = memory.alloc_from("out", &start);
        let args = vec![Arg::Pointer(memory.address(&out))];
        let l = Launch { grid: [4, 1, 1], block: [1, 1, 1], cluster: [4, 1, 1], dynamic_smem: 0, args };
        let report = run(&parse(&kernel(body)), &l, &memory, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert_eq!(memory.read(&out)[128..], [16u32, 17, 18, 19].map(u32::to_le_bytes).concat());
    }
}

#[test]
fn a_bulk_copy_must_be_aligned() {
    let body = "
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    mbarrier.init.shared::cta.b64 [bar], 1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%out+8], 64, [bar];";
    let text = finding(body, 1, FindingKind::Misaligned);
    assert!(text.contains("is not a multiple of 16"), "{text}");
}

#[test]
fn a_copy_that_nobody_waits_for_is_found_at_the_exit() {
    let body = r#"
    .shared .align 128 .b8 slot[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra DONE;
    mov.u32 %r1, bar;
    mov.u32 %r2, slot;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%out], 128, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra WAIT;
DONE:
"#;
    let finding = |body: &str| {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[1; 128]);
        let launch = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
        let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
        run(&parse(&kernel(body)), &launch, &memory, &options).findings.into_iter().next()
    };
    assert_eq!(finding(body), None);
    let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n    @!%p1 bra WAIT;";
    assert!(body.contains(wait));
    let f = finding(&body.replace(wait, "")).expect("a finding");
    assert_eq!((f.kind, f.lane), (FindingKind::ExitDuringCopy, None), "{f}");
    assert!(
        f.text.starts_with("cp.async.bulk") && f.message.contains("when the last thread of the CTA exits"),
        "{f}"
    );
}
