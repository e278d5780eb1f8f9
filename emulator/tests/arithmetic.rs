//! Arithmetic, logic, conversion and selection against values worked out by hand or by the host.

use crate::common::{Random, finding, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options};

/// Runs one-thread code that leaves results in `%r0` up to `%r{n-1}`.
fn results(code: &str, n: usize) -> Vec<u32> {
    let stores: String = (0..n).map(|i| format!("    st.global.b32 [%out+{}], %r{i};\n", 4 * i)).collect();
    words(&format!("{code}\n{stores}"), 1, n)
}

#[test]
fn integer_arithmetic() {
    let code = "
    mov.u32 %r30, 0xffffffff;
    mov.u32 %r31, 7;
    mov.s32 %r32, -20;
    add.u32 %r0, %r30, %r31;
    sub.s32 %r1, %r31, %r32;
    mul.lo.u32 %r2, %r30, %r30;
    mul.hi.u32 %r3, %r30, %r30;
    mul.hi.s32 %r4, %r30, %r31;
    mad.lo.s32 %r5, %r32, %r31, 5;
    div.s32 %r6, %r32, %r31;
    rem.s32 %r7, %r32, %r31;
    div.u32 %r8, %r30, %r31;
    min.s32 %r9, %r32, %r31;
    max.u32 %r10, %r32, %r31;
    abs.s32 %r11, %r32;
    neg.s32 %r12, %r31;
    add.sat.s32 %r13, 0x7fffffff, %r31;
    sad.u32 %r14, %r31, 10, 100;
    mul.wide.s32 %rd0, %r32, %r31;
    mov.b64 {%r15, %r16}, %rd0;
    mad.wide.u32 %rd1, %r30, %r31, %rd0;
    mov.b64 {%r17, %r18}, %rd1;";
    let want: [i64; 19] = [
        6,
        27,
        1,
        0xffff_fffe,
        -1,
        -135,
        -2,
        -6,
        613_566_756,
        -20,
        -20,
        20,
        -7,
        0x7fff_ffff,
        103,
        -140,
        -1,
        -147,
        6,
    ];
    let got = results(code, 19);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(*g, w as u32, "result {i}");
    }
}

#[test]
fn bits_and_fields() {
    let code = "
    mov.b32 %r30, 0x12345678;
    bfe.u32 %r0, %r30, 4, 8;
    bfe.s32 %r1, %r30, 3, 4;
    bfi.b32 %r2, 0xff, %r30, 8, 4;
    prmt.b32 %r3, %r30, 0xaabbccdd, 0x7150;
    prmt.b32 %r4, 0x80, 0, 0x8;
    popc.b32 %r5, %r30;
    clz.b32 %r6, %r30;
    brev.b32 %r7, %r30;
    lop3.b32 %r8, %r30, 0xff00ff00, 0x0f0f0f0f, 0x96;
    shl.b32 %r9, %r30, 33;
    shr.s32 %r10, 0x80000000, 40;
    shr.u32 %r11, %r30, 8;
    shf.l.wrap.b32 %r12, %r30, 0x9abcdef0, 8;
    shf.r.clamp.b32 %r13, %r30, 0x9abcdef0, 40;
    bfind.u32 %r14, %r30;
    not.b32 %r15, %r30;
    and.b32 %r16, %r30, 0xffff;
    xor.b32 %r17, %r30, %r30;
    bfind.shiftamt.u32 %r18, %r30;";
    let got = results(code, 19);
    let x = 0x1234_5678u32;
    let want = [
        0x67,
        0xffff_ffff,
        0x1234_5f78,
        prmt(0x1234_5678, 0xaabb_ccdd, 0x7150),
        // The sign of byte 0, then three times byte 0.
        0x8080_80ff,
        x.count_ones(),
        3,
        x.reverse_bits(),
        x ^ 0xff00_ff00 ^ 0x0f0f_0f0f,
        0,
        0xffff_ffff,
        x >> 8,
        0xbcde_f012,
        0x9abc_def0,
        28,
        !x,
        0x5678,
        0,
        3,
    ];
    assert_eq!(got, want);
}

fn prmt(a: u32, b: u32, sel: u32) -> u32 {
    let bytes: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
    u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[(sel >> (4 * i) & 7) as usize]))
}

#[test]
fn carries_chain() {
    let code = "
    mov.b32 %r30, 0xffffffff;
    mov.b32 %r31, 1;
    add.cc.u32 %r0, %r30, %r31;
    addc.cc.u32 %r1, %r30, 0;
    addc.u32 %r2, 0, 0;
    sub.cc.u32 %r3, 0, %r31;
    subc.u32 %r4, 5, 0;
    mad.lo.cc.u32 %r5, %r30, 2, 3;
    madc.hi.u32 %r6, %r30, 2, 0;";
    assert_eq!(results(code, 7), [0, 0, 1, 0xffff_ffff, 4, 1, 2]);
}

#[test]
fn floats_round_flush_and_saturate() {
    let code = "
    mov.f32 %f0, 0f3F800000;
    mov.f32 %f1, 0f33800000;
    add.rn.f32 %f2, %f0, %f1;
    mov.b32 %r0, %f2;
    add.rp.f32 %f2, %f0, %f1;
    mov.b32 %r1, %f2;
    add.rz.f32 %f2, %f0, %f1;
    mov.b32 %r2, %f2;
    mul.ftz.f32 %f2, 0f00800000, 0f3F000000;
    mov.b32 %r3, %f2;
    mul.f32 %f2, 0f00800000, 0f3F000000;
    mov.b32 %r4, %f2;
    add.sat.f32 %f2, %f0, %f0;
    mov.b32 %r5, %f2;
    fma.rn.f32 %f2, 0f3F800001, 0f3F800001, 0fBF800000;
    mov.b32 %r6, %f2;
    sub.f32 %f2, 0f7F800000, 0f7F800000;
    mov.b32 %r7, %f2;
    min.f32 %f2, 0f7FC00000, %f0;
    mov.b32 %r8, %f2;
    min.NaN.f32 %f2, 0f7FC00000, %f0;
    mov.b32 %r9, %f2;
    max.f32 %f2, 0f80000000, 0f00000000;
    mov.b32 %r10, %f2;
    div.rn.f32 %f2, %f0, 0f40400000;
    mov.b32 %r11, %f2;
    sqrt.rn.f32 %f2, 0f40000000;
    mov.b32 %r12, %f2;
    copysign.f32 %f2, 0fBF800000, 0f40000000;
    mov.b32 %r13, %f2;
    rcp.approx.ftz.f32 %f2, 0f40800000;
    mov.b32 %r14, %f2;
    ex2.approx.ftz.f32 %f2, 0f40400000;
    mov.b32 %r15, %f2;
    mov.b32 %r16, 1;";
    let want = [
        0x3f80_0000,
        0x3f80_0001,
        0x3f80_0000,
        0,
        0x0040_0000,
        0x3f80_0000,
        f32::from_bits(0x3f80_0001).mul_add(f32::from_bits(0x3f80_0001), -1.0).to_bits(),
        0x7fff_ffff,
        0x3f80_0000,
        0x7fff_ffff,
        0,
        (1f32 / 3.0).to_bits(),
        2f32.sqrt().to_bits(),
        0xc000_0000,
        0x3e80_0000,
        0x4100_0000,
        1,
    ];
    assert_eq!(results(code, 17), want);
}

#[test]
fn packed_floats_work_on_both_halves() {
    let code = "
    mov.b64 %rd0, {0f3F800000, 0f40000000};
    mov.b64 %rd1, {0f40400000, 0f40800000};
    fma.rn.f32x2 %rd2, %rd0, %rd1, %rd0;
    mov.b64 {%r0, %r1}, %rd2;
    add.rn.f32x2 %rd2, %rd0, %rd1;
    mov.b64 {%r2, %r3}, %rd2;
    mov.b32 %r30, 0x3c004000;
    mov.b32 %r31, 0x40003c00;
    add.rn.f16x2 %r4, %r30, %r31;
    fma.rn.f16x2 %r5, %r30, %r31, %r30;
    mov.b32 %r32, 0x3f804000;
    mov.b32 %r33, 0x40404000;
    mul.rn.bf16x2 %r6, %r32, %r33;
    max.f16x2 %r7, %r30, %r31;
    neg.f16x2 %r8, %r30;";
    let f = f32::to_bits;
    let want =
        [f(4.0), f(10.0), f(4.0), f(6.0), 0x4200_4200, 0x4200_4400, 0x4040_4080, 0x4000_4000, 0xbc00_c000];
    assert_eq!(results(code, 9), want);
}

#[test]
fn conversions_of_every_width() {
    let code = "
    mov.f32 %f0, 0fC0200000;
    cvt.rni.s32.f32 %r0, %f0;
    cvt.rzi.s32.f32 %r1, %f0;
    cvt.rmi.s32.f32 %r2, %f0;
    cvt.rzi.u32.f32 %r3, %f0;
    cvt.rn.f32.s32 %f1, -3;
    mov.b32 %r4, %f1;
    cvt.rn.f16x2.f32 %r5, %f1, %f0;
    cvt.rn.bf16x2.f32 %r6, %f1, %f0;
    cvt.rn.satfinite.e4m3x2.f32 %h0, %f1, 0f44800000;
    cvt.u32.u16 %r7, %h0;
    cvt.rn.f16x2.e4m3x2 %r8, %h0;
    mov.b32 %r30, 0xfffffff0;
    cvt.s64.s32 %rd0, %r30;
    mov.b64 {%r9, %r10}, %rd0;
    cvt.s32.s8 %r11, 0x180;
    cvt.f64.f32 %fd0, %f0;
    cvt.rn.f32.f64 %f2, %fd0;
    mov.b32 %r12, %f2;
    cvt.rni.f32.f32 %f3, 0f40200000;
    mov.b32 %r13, %f3;
    cvt.sat.u8.s32 %r14, 300;
    .reg .b8 %b<4>;
    cvt.rn.satfinite.e2m1x2.f32 %b0, 0f40C00000, 0fBFC00000;
    mov.b32 %r15, {%b0, %b0, %b0, %b0};
    cvt.rn.f16x2.e2m1x2 %r16, %b0;
    cvt.rz.satfinite.ue8m0x2.f32 %h1, 0f40C00000, 0f3F800000;
    cvt.u32.u16 %r17, %h1;";
    let f = f32::to_bits;
    let want = [
        -2i32 as u32,
        -2i32 as u32,
        -3i32 as u32,
        0,
        f(-3.0),
        0xc200_c100,
        0xc040_c020,
        0xc47e,
        0xc200_5f00,
        0xffff_fff0,
        0xffff_ffff,
        0xffff_ff80,
        f(-2.5),
        f(2.0),
        255,
        0x7b7b_7b7b,
        0x4600_be00,
        0x817f,
    ];
    assert_eq!(results(code, 18), want);
}

#[test]
fn comparisons_and_selection() {
    let code = "
    mov.f32 %f0, 0f7FC00000;
    setp.lt.f32 %p0, %f0, 0f3F800000;
    selp.u32 %r0, 1, 0, %p0;
    setp.ltu.f32 %p0, %f0, 0f3F800000;
    selp.u32 %r1, 1, 0, %p0;
    setp.lt.s32 %p1|%p2, -1, 1;
    selp.u32 %r2, 1, 0, %p1;
    selp.u32 %r3, 1, 0, %p2;
    setp.lt.u32 %p1, -1, 1;
    selp.u32 %r4, 1, 0, %p1;
    setp.eq.and.s32 %p3, 4, 4, !%p1;
    selp.u32 %r5, 1, 0, %p3;
    set.gt.u32.f32 %r6, 0f40000000, 0f3F800000;
    slct.s32.s32 %r7, 5, 6, -1;
    xor.pred %p4, %p3, %p1;
    not.pred %p5, %p4;
    selp.u32 %r8, 1, 0, %p5;
    testp.finite.f32 %p6, %f0;
    selp.u32 %r9, 1, 0, %p6;";
    assert_eq!(results(code, 10), [0, 1, 1, 0, 0, 1, 0xffff_ffff, 6, 0, 0]);
}

#[test]
fn random_f32_operations_match_the_host() {
    // 64 threads, each with its own operands from memory.
    let body = "
    .reg .b64 %in;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd0, %r0, 32;
    add.u64 %in, %out, %rd0;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%in];
    add.f32 %f4, %f0, %f1;
    mul.f32 %f5, %f0, %f1;
    fma.rn.f32 %f6, %f0, %f1, %f2;
    div.rn.f32 %f7, %f0, %f1;
    st.global.v4.f32 [%in+16], {%f4, %f5, %f6, %f7};";
    let module = parse(&kernel(body));
    let mut r = Random(7);
    let mut memory = GlobalMemory::new();
    let inputs: Vec<f32> = (0..64 * 8)
        .map(|_| {
            let bits = r.next() as u32;
            // Exponents near one, so that the sums cancel, and some subnormals.
            let e = if r.next().is_multiple_of(8) { 0 } else { 120 + r.next() as u32 % 16 };
            f32::from_bits(bits & 0x807f_ffff | e << 23)
        })
        .collect();
    let bytes: Vec<u8> = inputs.iter().flat_map(|v| v.to_le_bytes()).collect();
    let data = memory.alloc_from("data", &bytes);
    let report =
        run(&module, &launch(1, 64, vec![Arg::Pointer(memory.address(&data))]), &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    let out: Vec<u32> =
        memory.read(&data).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    for t in 0..64 {
        let [a, b, c] = [0, 1, 2].map(|i| inputs[8 * t + i]);
        let want = [a + b, a * b, a.mul_add(b, c), a / b];
        for (i, w) in want.iter().enumerate() {
            let w = if w.is_nan() { 0x7fff_ffff } else { w.to_bits() };
            assert_eq!(out[8 * t + 4 + i], w, "thread {t}, operation {i}: {a} {b} {c}");
        }
    }
}

#[test]
fn a_register_nothing_wrote_is_named() {
    let text = finding(
        "    add.u32 %r0, %r17, 1;\n    st.global.u32 [%out], %r0;",
        1,
        FindingKind::UninitialisedRegister,
    );
    assert!(text.contains("%r0 is read; line 15 computed it from %r17, which nothing has written"), "{text}");
    assert!(text.contains("st.global.u32 [%out], %r0;"), "{text}");
}

#[test]
fn what_is_computed_from_nothing_and_discarded_is_not_a_finding() {
    // As CUTLASS computes with the answer to a launch-control query that there is none of.
    let body = |after: &str| {
        format!(
            "    mov.u32 %r1, %tid.x;
    mad.lo.u32 %r2, %r17, 3, %r1;
    mul.hi.u32 %r3, %r2, %r17;
    setp.gt.u32 %p0, %r1, 99;
    selp.b32 %r4, %r3, 5, %p0;
    {after}
    st.global.b32 [%out], %r4;"
        )
    };
    assert_eq!(words(&body(""), 1, 1), [5]);
    let uses = ["st.global.b32 [%out+8], %r3;", "setp.eq.u32 %p1, %r3, 1;", "ld.global.b32 %r5, [%rd0];"];
    for (n, used) in uses.into_iter().enumerate() {
        let wide = if n == 2 { "mul.wide.u32 %rd0, %r3, 4;" } else { "" };
        finding(&body(&format!("{wide} {used}")), 1, FindingKind::UninitialisedRegister);
    }
}
