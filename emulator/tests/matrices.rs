//! Matrix products of warps and warpgroups, and matrices of shared memory, against plain loops. The
//! layouts of fragments are spelled out here for every shape, as the ISA does.

use crate::common::{Random, finding, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Schedule, Tracking};

/// Row and column of element `i` of a lane, from `g = lane / 4` and `t = lane % 4`.
type Place = fn(usize, usize, usize) -> (usize, usize);

/// One `mma.sync`.
struct Case {
    text: &'static str,
    m: usize,
    k: usize,
    /// Bits of an element of A and B.
    bits: usize,
    a: Place,
    /// K and column.
    b: Place,
    /// The code of a small integer.
    code: fn(i64) -> u64,
    /// Values are of -limit..=limit, or of 0..=limit where `unsigned`.
    limit: i64,
    unsigned: bool,
    /// The integer of an accumulator's code.
    value: fn(u64) -> i64,
    /// Bits of an accumulator.
    d_bits: usize,
}

fn f16(v: i64) -> u64 {
    half::f16::from_f64(v as f64).to_bits().into()
}
fn bf16(v: i64) -> u64 {
    ((v as f32).to_bits() >> 16).into()
}
fn f32_code(v: i64) -> u64 {
    (v as f32).to_bits().into()
}
fn f64_code(v: i64) -> u64 {
    (v as f64).to_bits()
}
/// e4m3 of 0, 1, 2 and their negatives.
fn e4m3(v: i64) -> u64 {
    [0, 0x38, 0x40][v.unsigned_abs() as usize] | if v < 0 { 0x80 } else { 0 }
}
fn e5m2(v: i64) -> u64 {
    [0, 0x3c, 0x40][v.unsigned_abs() as usize] | if v < 0 { 0x80 } else { 0 }
}
fn plain(v: i64) -> u64 {
    v as u64
}
fn of_f32(w: u64) -> i64 {
    f32::from_bits(w as u32) as i64
}
fn of_f16(w: u64) -> i64 {
    half::f16::from_bits(w as u16).to_f64() as i64
}
fn of_f64(w: u64) -> i64 {
    f64::from_bits(w) as i64
}
fn of_s32(w: u64) -> i64 {
    (w as i32).into()
}

/// C and D of every shape.
fn accumulator(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
}

macro_rules! case {
    ($text:literal, $m:literal, $k:literal, $bits:literal, $code:ident $limit:literal $unsigned:literal, $value:ident $d:literal, $a:expr, $b:expr) => {
        Case {
            text: $text,
            m: $m,
            k: $k,
            bits: $bits,
            a: $a,
            b: $b,
            code: $code,
            limit: $limit,
            unsigned: $unsigned,
            value: $value,
            d_bits: $d,
        }
    };
}

fn cases() -> Vec<Case> {
    let a16: Place = |g, t, i| {
        (if i < 2 || (4..6).contains(&i) { g } else { g + 8 }, 2 * t + i % 2 + if i < 4 { 0 } else { 8 })
    };
    let b16: Place = |g, t, i| (2 * t + i % 2 + if i < 2 { 0 } else { 8 }, g);
    let a8: Place = |g, t, i| {
        (if i < 4 || (8..12).contains(&i) { g } else { g + 8 }, 4 * t + i % 4 + if i < 8 { 0 } else { 16 })
    };
    let b8: Place = |g, t, i| (4 * t + i % 4 + if i < 4 { 0 } else { 16 }, g);
    vec![
        case!("m16n8k16.row.col.f32.f16.f16.f32", 16, 16, 16, f16 9 false, of_f32 32, a16, b16),
        case!("m16n8k16.row.col.f16.f16.f16.f16", 16, 16, 16, f16 4 false, of_f16 16, a16, b16),
        case!("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, 16, bf16 9 false, of_f32 32, a16, b16),
        case!("m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 16, f16 9 false, of_f32 32,
            |g, t, i| (if i < 2 { g } else { g + 8 }, 2 * t + i % 2), |g, t, i| (2 * t + i, g)),
        case!("m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8, 16, bf16 9 false, of_f32 32,
            |g, t, i| (if i < 2 { g } else { g + 8 }, 2 * t + i % 2), |g, t, i| (2 * t + i, g)),
        case!("m16n8k4.row.col.f32.tf32.tf32.f32", 16, 4, 32, f32_code 99 false, of_f32 32,
            |g, t, i| (g + 8 * i, t), |g, t, _| (t, g)),
        case!("m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 32, f32_code 99 false, of_f32 32,
            |g, t, i| (g + 8 * (i % 2), t + if i < 2 { 0 } else { 4 }), |g, t, i| (t + 4 * i, g)),
        case!("m16n8k16.row.col.f32.e4m3.e4m3.f32", 16, 16, 8, e4m3 2 false, of_f32 32,
            |g, t, i| (if i < 4 { g } else { g + 8 }, 4 * t + i % 4), |g, t, i| (4 * t + i, g)),
        case!("m16n8k32.row.col.f32.e4m3.e4m3.f32", 16, 32, 8, e4m3 2 false, of_f32 32, a8, b8),
        case!("m16n8k32.row.col.f16.e5m2.e5m2.f16", 16, 32, 8, e5m2 2 false, of_f16 16, a8, b8),
        case!("m8n8k16.row.col.s32.s8.s8.s32", 8, 16, 8, plain 127 false, of_s32 32,
            |g, t, i| (g, 4 * t + i), |g, t, i| (4 * t + i, g)),
        case!("m16n8k16.row.col.s32.u8.u8.s32", 16, 16, 8, plain 255 true, of_s32 32,
            |g, t, i| (if i < 4 { g } else { g + 8 }, 4 * t + i % 4), |g, t, i| (4 * t + i, g)),
        case!("m16n8k32.row.col.s32.s8.s8.s32", 16, 32, 8, plain 127 false, of_s32 32, a8, b8),
        case!("m8n8k32.row.col.s32.s4.s4.s32", 8, 32, 4, plain 7 false, of_s32 32,
            |g, t, i| (g, 8 * t + i), |g, t, i| (8 * t + i, g)),
        case!("m16n8k32.row.col.s32.u4.u4.s32", 16, 32, 4, plain 15 true, of_s32 32,
            |g, t, i| (if i < 8 { g } else { g + 8 }, 8 * t + i % 8), |g, t, i| (8 * t + i, g)),
        case!("m16n8k64.row.col.s32.s4.s4.s32", 16, 64, 4, plain 7 false, of_s32 32,
            |g, t, i| (if i < 8 || (16..24).contains(&i) { g } else { g + 8 }, 8 * t + i % 8 + if i < 16 { 0 } else { 32 }),
            |g, t, i| (8 * t + i % 8 + if i < 8 { 0 } else { 32 }, g)),
        case!("m8n8k128.row.col.s32.b1.b1.s32.and.popc", 8, 128, 1, plain 1 true, of_s32 32,
            |g, t, i| (g, 32 * t + i), |g, t, i| (32 * t + i, g)),
        case!("m16n8k128.row.col.s32.b1.b1.s32.and.popc", 16, 128, 1, plain 1 true, of_s32 32,
            |g, t, i| (if i < 32 { g } else { g + 8 }, 32 * t + i % 32), |g, t, i| (32 * t + i, g)),
        case!("m16n8k256.row.col.s32.b1.b1.s32.and.popc", 16, 256, 1, plain 1 true, of_s32 32,
            |g, t, i| (if i < 32 || (64..96).contains(&i) { g } else { g + 8 }, 32 * t + i % 32 + if i < 64 { 0 } else { 128 }),
            |g, t, i| (32 * t + i % 32 + if i < 32 { 0 } else { 128 }, g)),
        case!("m8n8k4.row.col.f64.f64.f64.f64", 8, 4, 64, f64_code 999 false, of_f64 64,
            |g, t, _| (g, t), |g, t, _| (t, g)),
        case!("m16n8k4.row.col.f64.f64.f64.f64", 16, 4, 64, f64_code 999 false, of_f64 64,
            |g, t, i| (g + 8 * i, t), |g, t, _| (t, g)),
        case!("m16n8k8.row.col.f64.f64.f64.f64", 16, 8, 64, f64_code 999 false, of_f64 64,
            |g, t, i| (g + 8 * (i % 2), t + 4 * (i / 2)), |g, t, i| (t + 4 * i, g)),
        case!("m16n8k16.row.col.f64.f64.f64.f64", 16, 16, 64, f64_code 999 false, of_f64 64,
            |g, t, i| (g + 8 * (i % 2), t + 4 * (i / 2)), |g, t, i| (t + 4 * i, g)),
    ]
}

/// `{%a0, %a1}`.
fn vector(prefix: &str, n: usize) -> String {
    format!("{{{}}}", (0..n).map(|i| format!("%{prefix}{i}")).collect::<Vec<_>>().join(","))
}

#[test]
fn warp_products_of_every_shape() {
    let mut r = Random(3);
    for c in cases() {
        let register = c.bits.max(32);
        let per = register / c.bits;
        let (na, nb) = (c.m * c.k / 32 / per, 8 * c.k / 32 / per);
        let elements = c.m * 8 / 32;
        let nd = elements * c.d_bits / register.min(c.d_bits.max(32)).max(32);
        let mut draw = |n: usize| -> Vec<i64> {
            let span = if c.unsigned { c.limit + 1 } else { 2 * c.limit + 1 };
            (0..n).map(|_| (r.next() % span as u64) as i64 - if c.unsigned { 0 } else { c.limit }).collect()
        };
        let (a, b) = (draw(c.m * c.k), draw(c.k * 8));
        let old: Vec<i64> = (0..c.m * 8).map(|i| i as i64 % 13 - 6).collect();
        // Fragments in memory: all registers of lane 0, of lane 1, and so on.
        let mut bytes = Vec::new();
        let mut put = |codes: &[u64], bits: usize| {
            let per = bits.max(32) / bits;
            for group in codes.chunks(per) {
                let word = group
                    .iter()
                    .enumerate()
                    .fold(0, |w, (i, v)| w | (v & (u64::MAX >> (64 - bits))) << (i * bits));
                bytes.extend_from_slice(&word.to_le_bytes()[..bits.max(32) / 8]);
            }
        };
        let of_int = |v: i64| match c.d_bits {
            64 => f64_code(v),
            16 => f16(v),
            _ if c.text.contains("s32") => plain(v),
            _ => f32_code(v),
        };
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            let fa: Vec<u64> =
                (0..na * per).map(|i| (c.a)(g, t, i)).map(|(m, k)| (c.code)(a[m * c.k + k])).collect();
            let fb: Vec<u64> =
                (0..nb * per).map(|i| (c.b)(g, t, i)).map(|(k, n)| (c.code)(b[k * 8 + n])).collect();
            let fc: Vec<u64> =
                (0..elements).map(|i| accumulator(lane, i)).map(|(m, n)| of_int(old[m * 8 + n])).collect();
            put(&fa, c.bits);
            put(&fb, c.bits);
            put(&fc, c.d_bits);
        }
        let stride = bytes.len() / 32;
        let (ty, step) = if register == 64 { ("b64", 8) } else { ("b32", 4) };
        let loads: String = [("a", na), ("b", nb), ("c", nd)]
            .into_iter()
            .flat_map(|(p, n)| (0..n).map(move |i| (p, i)))
            .enumerate()
            .map(|(at, (p, i))| format!("    ld.global.{ty} %{p}{i}, [%in+{}];\n", at * step))
            .collect();
        let stores: String =
            (0..nd).map(|i| format!("    st.global.{ty} [%to+{}], %d{i};\n", i * step)).collect();
        let text = format!(
            ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{
    .reg .{ty} %a<8>, %b<8>, %c<8>, %d<8>;
    .reg .b32 %lane, %by;
    .reg .b64 %in, %to, %off;
    ld.param.u64 %in, [in];
    ld.param.u64 %to, [out];
    mov.u32 %lane, %laneid;
    mul.wide.u32 %off, %lane, {stride};
    add.u64 %in, %in, %off;
    mul.wide.u32 %off, %lane, {};
    add.u64 %to, %to, %off;
{loads}    mma.sync.aligned.{} {}, {}, {}, {};
{stores}    ret;\n}}\n",
            nd * step,
            c.text,
            vector("d", nd),
            vector("a", na),
            vector("b", nb),
            vector("c", nd),
        );
        let mut memory = GlobalMemory::new();
        let input = memory.alloc_from("in", &bytes);
        let out = memory.alloc("out", (32 * nd * step) as u64);
        let l = launch(1, 32, vec![Arg::Pointer(memory.address(&input)), Arg::Pointer(memory.address(&out))]);
        let report = run(&parse(&text), &l, &memory, &Options::default());
        assert!(report.is_clean(), "{}: {}", c.text, report.findings[0]);
        let got = memory.read(&out);
        let size = c.d_bits / 8;
        for lane in 0..32 {
            for i in 0..elements {
                let (m, n) = accumulator(lane, i);
                let at = (lane * elements + i) * size;
                let mut word = [0; 8];
                word[..size].copy_from_slice(&got[at..at + size]);
                let want = old[m * 8 + n] + (0..c.k).map(|k| a[m * c.k + k] * b[k * 8 + n]).sum::<i64>();
                assert_eq!((c.value)(u64::from_le_bytes(word)), want, "{}: D[{m}, {n}]", c.text);
            }
        }
    }
}

#[test]
fn integer_products_wrap_or_saturate() {
    let body = |sat: &str| {
        format!(
            "    mov.b32 %r0, 0x7f7f7f7f;
    mov.b32 %r1, 0x7fffff00;
    mma.sync.aligned.m8n8k16.row.col{sat}.s32.s8.s8.s32 {{%r2, %r3}}, {{%r0}}, {{%r0}}, {{%r1, %r1}};
    mov.u32 %r4, %laneid;
    mul.wide.u32 %rd0, %r4, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.b32 [%rd1], %r2;"
        )
    };
    let sum = 0x7fff_ff00u32.wrapping_add(16 * 127 * 127);
    assert_eq!(words(&body(""), 32, 32), [sum; 32]);
    assert_eq!(words(&body(".satfinite"), 32, 32), [i32::MAX as u32; 32]);
}

#[test]
fn bits_combine_by_xor_too() {
    let got = words(
        "    mov.b32 %r0, 0xff00ff00;
    mov.b32 %r1, 0x0ff00ff0;
    mov.b32 %r2, 5;
    mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r3, %r4}, {%r0}, {%r1}, {%r2, %r2};
    mov.u32 %r5, %laneid;
    mul.wide.u32 %rd0, %r5, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.b32 [%rd1], %r4;",
        32,
        32,
    );
    assert_eq!(got, [5 + 4 * 16; 32]);
}

/// A kernel of four warps: A (64 x K) and B (N x K) of `bytes` an element, K-major in shared memory
/// without swizzle, or A in registers; D goes out as D[row][column] words.
fn wgmma_text(instruction: &str, tail: &str, k: usize, bytes: usize, before: &str, after: &str) -> String {
    let units = k * bytes / 16;
    // Core matrices of 8 rows x 16 bytes: along K 128 bytes apart, along M or N units * 128.
    let (lbo, sbo) = (128u64, 128 * units as u64);
    let constant = lbo >> 4 << 16 | sbo >> 4 << 32;
    kernel(&format!(
        "    .shared .align 128 .b8 sm[16384];
    .reg .b64 %src, %da, %db;
    .reg .b32 %acc<4>;
    add.u64 %src, %out, 8192;
    mov.u32 %r0, %tid.x;
    mov.u32 %r10, sm;
FILL:
    mul.wide.u32 %rd0, %r0, 4;
    add.u64 %rd1, %src, %rd0;
    ld.global.b32 %r1, [%rd1];
    shl.b32 %r2, %r0, 2;
    add.u32 %r2, %r2, %r10;
    st.shared.b32 [%r2], %r1;
    add.u32 %r0, %r0, 128;
    setp.lt.u32 %p0, %r0, 2048;
    @%p0 bra FILL;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    and.b32 %r3, %r10, 0x3ffff;
    shr.u32 %r3, %r3, 4;
    cvt.u64.u32 %da, %r3;
    or.b64 %da, %da, {constant};
    add.u64 %db, %da, 256;
    mov.f32 %acc0, 0f3f800000;
    mov.f32 %acc1, 0f40000000;
    mov.f32 %acc2, 0f40400000;
    mov.f32 %acc3, 0f40800000;
    mov.u32 %r4, 1;
    setp.eq.u32 %p1, %r4, 1;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.{instruction} {{%acc0, %acc1, %acc2, %acc3}}, %da, %db, %p1{tail};
    wgmma.commit_group.sync.aligned;
{before}
    wgmma.wait_group.sync.aligned 0;
{after}
    mov.u32 %r5, %tid.x;
    shr.u32 %r6, %r5, 5;
    and.b32 %r7, %r5, 31;
    shl.b32 %r6, %r6, 4;
    shr.u32 %r8, %r7, 2;
    add.u32 %r6, %r6, %r8;
    and.b32 %r7, %r7, 3;
    shl.b32 %r7, %r7, 1;
    shl.b32 %r6, %r6, 3;
    add.u32 %r6, %r6, %r7;
    mul.wide.u32 %rd0, %r6, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.f32 [%rd1], %acc0;
    st.global.f32 [%rd1+4], %acc1;
    st.global.f32 [%rd1+256], %acc2;
    st.global.f32 [%rd1+260], %acc3;"
    ))
    .replace("sm_100a", "sm_90a")
}

/// Bytes of the shared memory that [`wgmma_text`] reads: A at 0, B at 4096.
fn operands(k: usize, bytes: usize, a: &[i64], b: &[i64], code: fn(i64) -> u64) -> Vec<u8> {
    let mut out = vec![0u8; 8192];
    for (base, rows) in [(0, a), (4096, b)] {
        for (i, &v) in rows.iter().enumerate() {
            let (row, at) = (i / k, i % k * bytes);
            let place = base + row / 8 * (128 * (k * bytes / 16)) + at / 16 * 128 + row % 8 * 16 + at % 16;
            out[place..place + bytes].copy_from_slice(&code(v).to_le_bytes()[..bytes]);
        }
    }
    out
}

fn wgmma_run(text: &str, data: &[u8], schedule: Schedule) -> (silumin_emulator::Report, Vec<u32>) {
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[vec![0u8; 8192], data.to_vec()].concat());
    let l = launch(1, 128, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(text), &l, &memory, &Options { schedule, ..Options::default() });
    let words =
        memory.read(&out)[..2048].chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    (report, words)
}

#[test]
fn warpgroup_products_of_every_type() {
    type Row = (&'static str, &'static str, usize, usize, fn(i64) -> u64, i64);
    let rows: [Row; 8] = [
        ("m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", 16, 2, f16, 9),
        ("m64n8k16.f32.bf16.bf16", ", 1, 1, 0, 0", 16, 2, bf16, 9),
        ("m64n8k8.f32.tf32.tf32", ", 1, 1", 8, 4, f32_code, 9),
        ("m64n8k32.f32.e4m3.e4m3", ", 1, 1", 32, 1, e4m3, 2),
        ("m64n8k32.f32.e5m2.e5m2", ", -1, 1", 32, 1, e5m2, 2),
        ("m64n8k32.s32.s8.s8", "", 32, 1, plain, 127),
        ("m64n8k32.s32.s8.s8.satfinite", "", 32, 1, plain, 127),
        ("m64n8k16.f32.f16.f16", ", 1, -1, 0, 0", 16, 2, f16, 9),
    ];
    for (instruction, tail, k, bytes, code, limit) in rows {
        let mut r = Random(11);
        let mut draw = |n: usize| -> Vec<i64> {
            (0..n).map(|_| (r.next() % (2 * limit as u64 + 1)) as i64 - limit).collect()
        };
        let (a, b) = (draw(64 * k), draw(8 * k));
        let data = operands(k, bytes, &a, &b, code);
        let text = wgmma_text(instruction, tail, k, bytes, "", "");
        let sign = if tail.contains("-1") { -1 } else { 1 };
        for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(4)] {
            let (report, got) = wgmma_run(&text, &data, schedule);
            assert!(report.is_clean(), "{instruction}: {}", report.findings[0]);
            for (i, word) in got.iter().enumerate() {
                let (m, n) = (i / 8, i % 8);
                let dot: i64 = (0..k).map(|l| a[m * k + l] * b[n * k + l]).sum();
                // Accumulators 0, 1 and 2, 3 of a lane lie in rows 8 apart.
                let start = f64::from([1, 2, 3, 4][n % 2 + 2 * (m / 8 % 2)]);
                let want = match instruction.contains("s32") {
                    true => (start as f32).to_bits().wrapping_add(dot as u32),
                    false => ((start + (sign * dot) as f64) as f32).to_bits(),
                };
                let saturated = instruction.contains("satfinite");
                let want = match saturated {
                    true => ((start as f32).to_bits() as i32).saturating_add(dot as i32) as u32,
                    false => want,
                };
                assert_eq!(*word, want, "{instruction}: D[{m}, {n}]");
            }
        }
    }
}

#[test]
fn fp8_warpgroup_sums_keep_13_fraction_bits() {
    // 1 + 2^-12 is cut to 1 + 2^-12 (13 bits), 1 + 2^-14 to 1.
    let k = 32;
    let mut a = vec![0i64; 64 * k];
    a[0] = 1;
    let data = operands(k, 1, &a, &[vec![1], vec![0; 8 * k - 1]].concat(), |v| if v == 0 { 0 } else { 0x38 });
    for (bits, want) in [(0x3980_0000u32, 1.0 + 2f32.powi(-12)), (0x3880_0000, 1.0)] {
        let text = wgmma_text("m64n8k32.f32.e4m3.e4m3", ", 1, 1", k, 1, "", "")
            .replace("%acc0, 0f3f800000", &format!("%acc0, 0f{bits:08X}"));
        let (report, got) = wgmma_run(&text, &data, Schedule::Early);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(f32::from_bits(got[0]), want);
    }
}

#[test]
fn results_used_before_the_wait_need_a_wait_before_the_thread_goes_on() {
    let k = 16;
    let data = operands(k, 2, &vec![1; 64 * k], &vec![1; 8 * k], f16);
    let of =
        |before: &str, after: &str| wgmma_text("m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", k, 2, before, after);
    // Compilers let arithmetic float up.
    let early = of("    add.f32 %f0, %acc0, %acc0;", "    mov.f32 %acc0, %f0;");
    for schedule in [Schedule::Early, Schedule::Late] {
        let (report, got) = wgmma_run(&early, &data, schedule);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(f32::from_bits(got[0]), 34.0);
    }
    let never = early.replace("    wgmma.wait_group.sync.aligned 0;\n", "");
    for schedule in [Schedule::Early, Schedule::Late] {
        let (report, _) = wgmma_run(&never, &data, schedule);
        let f = &report.findings[0];
        assert_eq!(f.kind, FindingKind::MissingWait);
        assert!(f.message.contains("wgmma.wait_group"), "{f}");
    }
}

#[test]
fn operands_of_a_late_product_must_stay() {
    let k = 16;
    let data = operands(k, 2, &vec![1; 64 * k], &vec![1; 8 * k], f16);
    let text = wgmma_text(
        "m64n8k16.f32.f16.f16",
        ", 1, 1, 0, 0",
        k,
        2,
        "    mov.u32 %r20, %tid.x;\n    shl.b32 %r20, %r20, 5;\n    add.u32 %r20, %r20, %r10;\n    st.shared.b64 [%r20], 0;",
        "",
    );
    let (early, late) =
        (wgmma_run(&text, &data, Schedule::Early).1, wgmma_run(&text, &data, Schedule::Late).1);
    assert_ne!(early, late);
}

#[test]
fn accumulators_written_without_a_fence_are_found() {
    let k = 16;
    let data = operands(k, 2, &vec![1; 64 * k], &vec![1; 8 * k], f16);
    let text = wgmma_text("m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", k, 2, "", "")
        .replace("    wgmma.fence.sync.aligned;\n", "");
    let (report, _) = wgmma_run(&text, &data, Schedule::Early);
    let f = &report.findings[0];
    assert_eq!(f.kind, FindingKind::MissingWgmmaFence);
    assert!(f.message.contains("%acc0"), "{f}");
    // An accumulator that is not an input needs none.
    let (report, _) =
        wgmma_run(&text.replace("setp.eq.u32 %p1, %r4", "setp.ne.u32 %p1, %r4"), &data, Schedule::Early);
    assert!(report.is_clean(), "{}", report.findings[0]);
}

#[test]
fn shared_memory_must_stay_until_the_wait_for_a_product() {
    let k = 16;
    let data = operands(k, 2, &vec![1; 64 * k], &vec![1; 8 * k], f16);
    let text = wgmma_text(
        "m64n8k16.f32.f16.f16",
        ", 1, 1, 0, 0",
        k,
        2,
        "    mov.u32 %r20, %tid.x;\n    shl.b32 %r20, %r20, 3;\n    add.u32 %r20, %r20, %r10;\n    st.shared.b64 [%r20], 7;",
        "",
    );
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[vec![0u8; 8192], data].concat());
    let l = launch(1, 128, vec![Arg::Pointer(memory.address(&out))]);
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let report = run(&parse(&text), &l, &memory, &options);
    let found = report.findings.iter().find(|f| f.kind == FindingKind::SlotOverwritten);
    assert!(found.is_some_and(|f| f.message.contains("wgmma.wait_group")), "{:#?}", report.findings);
}

#[test]
fn a_descriptor_of_another_chip_is_refused() {
    let k = 16;
    let data = operands(k, 2, &vec![1; 64 * k], &vec![1; 8 * k], f16);
    let text = wgmma_text("m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", k, 2, "", "")
        .replace("add.u64 %db", "or.b64 %da, %da, 0x400000000000;\n    add.u64 %db");
    let (report, _) = wgmma_run(&text, &data, Schedule::Early);
    assert_eq!(report.findings[0].kind, FindingKind::IllegalDescriptor);
}

#[test]
fn matrices_of_bytes_are_loaded_and_stored_transposed() {
    let got = words(
        "    .shared .align 16 .b8 from[256];
    .shared .align 16 .b8 to[256];
    mov.u32 %r0, %laneid;
    mov.u32 %r1, from;
    mov.u32 %r2, to;
    // Bytes 8 * lane.. hold their own index.
    shl.b32 %r3, %r0, 3;
    add.u32 %r4, %r1, %r3;
    mul.lo.u32 %r5, %r3, 0x01010101;
    add.u32 %r5, %r5, 0x03020100;
    add.u32 %r6, %r5, 0x04040404;
    st.shared.v2.b32 [%r4], {%r5, %r6};
    bar.warp.sync -1;
    and.b32 %r7, %r0, 15;
    shl.b32 %r7, %r7, 4;
    add.u32 %r8, %r1, %r7;
    ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r10, %r11}, [%r8];
    add.u32 %r9, %r2, %r7;
    stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r9], {%r10, %r11};
    bar.warp.sync -1;
    mul.wide.u32 %rd0, %r0, 16;
    add.u64 %rd1, %out, %rd0;
    add.u32 %r12, %r2, %r3;
    ld.shared.v2.b32 {%r13, %r14}, [%r12];
    st.global.v4.b32 [%rd1], {%r10, %r11, %r13, %r14};",
        32,
        128,
    );
    for lane in 0..32 {
        // Rows 4 * (lane % 4).. of columns lane / 4 and 8 more.
        let byte = |row: usize, column: usize| (16 * row + column) as u32;
        let (g, q) = (lane / 4, 4 * (lane % 4));
        let two = |row: usize| {
            byte(row, g) | byte(row + 1, g) << 8 | byte(row, g + 8) << 16 | byte(row + 1, g + 8) << 24
        };
        assert_eq!(got[4 * lane..4 * lane + 2], [two(q), two(q + 2)], "lane {lane}");
    }
    // The store puts rows 4 q, 4 q + 1 of the load into rows 2 q, 2 q + 1, and 4 q + 2.. into 8 + 2 q...
    let stored: Vec<u8> = got.chunks(4).flat_map(|c| [c[2], c[3]]).flat_map(u32::to_le_bytes).collect();
    for row in 0..16 {
        let source = 4 * (row % 8 / 2) + 2 * (row / 8) + row % 2;
        let want: Vec<u8> = (0..16).map(|c| (16 * source + c) as u8).collect();
        assert_eq!(stored[16 * row..16 * row + 16], want, "row {row}");
    }
}

#[test]
fn movmatrix_transposes() {
    let got = words(
        "    mov.u32 %r0, %laneid;
    shl.b32 %r1, %r0, 1;
    mul.lo.u32 %r2, %r1, 0x10001;
    add.u32 %r2, %r2, 0x10000;
    movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2;
    mul.wide.u32 %rd0, %r0, 4;
    add.u64 %rd1, %out, %rd0;
    st.global.b32 [%rd1], %r3;",
        32,
        32,
    );
    for (lane, word) in got.iter().enumerate() {
        let element = |row: usize, column: usize| (8 * row + column) as u32;
        let (r, c) = (lane / 4, 2 * (lane % 4));
        assert_eq!(*word, element(c, r) | element(c + 1, r) << 16);
    }
}

#[test]
fn products_that_do_not_exist_are_errors_with_a_line() {
    for (line, text) in [
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};",
            "no product of .f16 and .bf16",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};",
            "4 registers are needed, found 2",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd0, %rd1, 1, 1, 1, 0, 0;",
            "m64n12k16",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd0, %rd1, 1, 1, 2, 0, 0;",
            "immediate 1 or -1",
        ),
        ("wgmma.wait_group.sync.aligned 8;", "at most 7"),
    ] {
        let target = if line.starts_with("wgmma") { "sm_90a" } else { "sm_100a" };
        let module = kernel(line).replace("sm_100a", target);
        let e = silumin_emulator::Module::parse("k.ptx", &module).unwrap_err();
        assert!(e.0[0].message.contains(text), "{e}");
        assert_eq!(e.0[0].line, 15);
    }
}

#[test]
fn a_warp_product_needs_its_whole_warp() {
    let message = finding(
        "    mov.u32 %r0, %laneid;
    setp.lt.u32 %p0, %r0, 16;
    mov.b32 %r1, 0;
    @%p0 mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r2, %r3}, {%r1}, {%r1}, {%r1, %r1};
    bar.warp.sync -1;",
        32,
        FindingKind::Divergent,
    );
    assert!(message.contains("mma.sync"), "{message}");
}
