//! Forms that compilers write and a narrow reading of the grammar or of an instruction would refuse.

use crate::common::cases::{blackwell, geforce, kernel};
use silumin_emulator::{FindingKind, Options, Tracking};

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
