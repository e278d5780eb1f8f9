//! Forms of instructions that few compilers emit, against plain host code.

use crate::common::{Random, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, GlobalMemory, Launch, Options};

/// Runs `code`, which makes `%r0` of the words `%r1` to `%r5`, on many words, and compares.
fn check(code: &str, f: impl Fn([u32; 5]) -> u32) {
    let mut r = Random(code.len() as u64);
    let inputs: Vec<[u32; 5]> = (0..256)
        .map(|i| {
            std::array::from_fn(|k| match (i + k) % 5 {
                0 => r.next() as u32 % 40,
                1 => (r.next() as u32 % 64).wrapping_sub(32),
                2 => [0, 1, u32::MAX, i32::MAX as u32, i32::MIN as u32][r.next() as usize % 5],
                _ => r.next() as u32,
            })
        })
        .collect();
    check_on(code, &inputs, f);
}

fn check_on(code: &str, inputs: &[[u32; 5]], f: impl Fn([u32; 5]) -> u32) {
    let loads: String =
        (0..5).map(|i| format!("    ld.global.b32 %r{}, [%rd11+{}];\n", i + 1, 4 * i)).collect();
    let body = format!(
        "    mov.u32 %r10, %tid.x;
    mul.wide.u32 %rd10, %r10, 32;
    add.u64 %rd11, %out, %rd10;
{loads}    {code}
    st.global.b32 [%rd11+20], %r0;"
    );
    let bytes: Vec<u8> = inputs
        .iter()
        .flat_map(|w| [w[0], w[1], w[2], w[3], w[4], 0, 0, 0])
        .flat_map(u32::to_le_bytes)
        .collect();
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &bytes);
    let l = launch(1, inputs.len() as u32, vec![Arg::Pointer(memory.address(&out))]);
    let text = kernel(&body).replace(".version 8.8", ".version 9.1");
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{code}: {}", report.findings[0]);
    for (i, (got, input)) in memory.read(&out).chunks(32).zip(inputs).enumerate() {
        let got = u32::from_le_bytes(got[20..24].try_into().unwrap());
        let want = f(*input);
        assert_eq!(got, want, "{code}: case {i}, {input:x?}: {got:#x}, should be {want:#x}");
    }
}

#[test]
fn scalar_video_selects_saturates_and_merges() {
    let s = |w: u32| i64::from(w as i32);
    let u = i64::from;
    let byte = |w: u32, i: u32| w >> (8 * i) & 0xff;
    let half = |w: u32, i: u32| w >> (16 * i) & 0xffff;
    let clamp = |v: i64, low: i64, high: i64| v.clamp(low, high) as u32;
    let (imin, imax) = (i64::from(i32::MIN), i64::from(i32::MAX));
    check("vadd.s32.u32.s32.sat %r0, %r1, %r2;", |[a, b, ..]| clamp(u(a) + s(b), imin, imax));
    check("vsub.u32.s32.u32.sat %r0, %r1, %r2;", |[a, b, ..]| clamp(s(a) - u(b), 0, u(u32::MAX)));
    check("vabsdiff.u32.s32.s32 %r0, %r1.b3, %r2.h1;", |[a, b, ..]| {
        let (x, y) = (i64::from(byte(a, 3) as i8), i64::from(half(b, 1) as i16));
        (x - y).unsigned_abs() as u32
    });
    check("vmax.s32.s32.u32.add %r0, %r1.h0, %r2.b1, %r3;", |[a, b, c, ..]| {
        let (x, y) = (i64::from(half(a, 0) as i16), u(byte(b, 1)));
        (x.max(y) as u32).wrapping_add(c)
    });
    check("vmin.s32.s32.s32.max %r0, %r1, %r2, %r3;", |[a, b, c, ..]| {
        (a as i32).min(b as i32).max(c as i32) as u32
    });
    check("vadd.s32.s32.s32.sat %r0.b2, %r1, %r2, %r3;", |[a, b, c, ..]| {
        c & !0xff_0000 | (clamp(s(a) + s(b), -128, 127) & 0xff) << 16
    });
    check("vsub.u32.u32.u32.sat %r0.h1, %r1, %r2, %r3;", |[a, b, c, ..]| {
        c & 0xffff | clamp(u(a) - u(b), 0, 0xffff) << 16
    });
    check("vshl.u32.u32.u32.clamp %r0, %r1, %r2;", |[a, b, ..]| if b >= 32 { 0 } else { a << b });
    check("vshl.s32.s32.u32.sat.wrap %r0, %r1, %r2;", |[a, b, ..]| clamp(s(a) << (b & 31), imin, imax));
    check("vshr.s32.s32.u32.clamp %r0, %r1.h1, %r2.b0;", |[a, b, ..]| {
        (i64::from(half(a, 1) as i16) >> byte(b, 0).min(32)) as u32
    });
    check("vset.s32.u32.lt %r0, %r1, %r2;", |[a, b, ..]| u32::from(s(a) < u(b)));
    check("vset.u32.u32.ge.add %r0, %r1.b0, %r2.b1, %r3;", |[a, b, c, ..]| {
        c.wrapping_add(u32::from(byte(a, 0) >= byte(b, 1)))
    });
    let wide = |v: i128, shift: u32| (v >> shift) as u32;
    check("vmad.s32.s32.s32.shr7 %r0, %r1, %r2, %r3;", |[a, b, c, ..]| {
        wide(i128::from(s(a)) * i128::from(s(b)) + i128::from(s(c)), 7)
    });
    check("vmad.s32.s32.s32 %r0, %r1.h0, -%r2.h1, %r3;", |[a, b, c, ..]| {
        let p = i128::from(half(a, 0) as i16) * i128::from(half(b, 1) as i16);
        wide(i128::from(s(c)) - p, 0)
    });
    check("vmad.s32.s32.s32.sat.shr15 %r0, %r1.h0, %r2, -%r3;", |[a, b, c, ..]| {
        let p = i128::from(half(a, 0) as i16) * i128::from(s(b)) - i128::from(s(c));
        (p >> 15).clamp(imin.into(), imax.into()) as u32
    });
    check("vmad.u32.u32.u32.po.sat %r0, %r1.b0, %r2, %r3;", |[a, b, c, ..]| {
        let p = i128::from(byte(a, 0)) * i128::from(b) + i128::from(c) + 1;
        p.clamp(0, u32::MAX.into()) as u32
    });
}

#[test]
fn simd_video_picks_parts_of_both_sources() {
    check("vadd2.s32.s32.s32 %r0.h1, %r1.h03, %r2.h21, %r3;", |[a, b, c, ..]| {
        let parts = [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(|h| h as i16);
        c & 0xffff | u32::from(parts[0].wrapping_add(parts[2]) as u16) << 16
    });
    check("vmax4.u32.u32.u32.add %r0.b20, %r1.b7531, %r2.b0246, %r3;", |[a, b, c, ..]| {
        let all = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        let (x, y) = ([all[1], all[3], all[5], all[7]], [all[6], all[4], all[2], all[0]]);
        c.wrapping_add(x[0].max(y[0]).into()).wrapping_add(x[2].max(y[2]).into())
    });
    check("vset4.s32.u32.lt %r0.b31, %r1.b4567, %r2.b1032, %r3;", |[a, b, c, ..]| {
        let all = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        let x = [all[7], all[6], all[5], all[4]].map(|v| i32::from(v as i8));
        let y = [all[2], all[3], all[0], all[1]].map(i32::from);
        let mut out = c.to_le_bytes();
        (out[1], out[3]) = (u8::from(x[1] < y[1]), u8::from(x[3] < y[3]));
        u32::from_le_bytes(out)
    });
}

#[test]
fn sixteen_bit_and_saturated_products() {
    check(
        "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; cvt.u16.u32 %h3, %r3; mad.hi.s16 %h0, %h1, %h2, %h3; cvt.u32.u16 %r0, %h0;",
        |[a, b, c, ..]| {
            let p = i32::from(a as i16) * i32::from(b as i16);
            u32::from(((p >> 16) as u16).wrapping_add(c as u16))
        },
    );
    check("mad.hi.sat.s32 %r0, %r1, %r2, %r3;", |[a, b, c, ..]| {
        let p = (i64::from(a as i32) * i64::from(b as i32)) >> 32;
        (p as i32).saturating_add(c as i32) as u32
    });
}

#[test]
fn out_of_bounds_nan_makes_zero() {
    let half = |w: u32| half::f16::from_bits(w as u16);
    let inputs: Vec<[u32; 5]> = (0..64)
        .map(|i| {
            let mut v = [0x3c00_4000u32, 0x4200_3800, 0x3400_4400, 0, 0];
            if i % 4 > 0 {
                v[i % 4 - 1] = if i % 8 < 4 { 0x7ff7_4000 } else { 0x3c00_fff7 };
            }
            v
        })
        .collect();
    check_on("fma.rn.oob.relu.f16x2 %r0, %r1, %r2, %r3;", &inputs, |[a, b, c, ..]| {
        let one = |s: u32| {
            let w = [a >> s & 0xffff, b >> s & 0xffff, c >> s & 0xffff];
            let filled = |v: u32| v & 0x7fff == 0x7ff7;
            if filled(w[0]) || filled(w[1]) {
                return 0;
            }
            if filled(w[2]) {
                return 0x7fff;
            }
            let [x, y, z] = w.map(|v| f64::from(half(v)));
            u32::from(half::f16::from_f64((x * y + z).max(0.0)).to_bits())
        };
        one(0) | one(16) << 16
    });
}

/// The neighbours of a value among the multiples of its last place, and how far it is from the lower.
fn between(v: f64, mantissa: i32, least: i32) -> (f64, f64, f64) {
    let exponent = if v == 0.0 { least } else { (v.abs().log2().floor() as i32).max(least) };
    let place = 2f64.powi(exponent - mantissa);
    let down = (v.abs() / place).floor();
    (down * place, (down + 1.0) * place, v.abs() / place - down)
}

fn values() -> Vec<[u32; 5]> {
    let mut r = Random(77);
    (0..256)
        .map(|_| {
            let mut v: [u32; 5] = std::array::from_fn(|_| {
                { ((r.next() as i64 as f64 / 2f64.powi(63)) * 2f64.powi((r.next() % 12) as i32 - 8)) as f32 }
                    .to_bits()
            });
            v[4] = r.next() as u32;
            v
        })
        .collect()
}

#[test]
fn stochastic_rounding_goes_up_with_the_chance_of_the_rest() {
    let f = |w: u32| f64::from(f32::from_bits(w));
    let pick = |v: f64, mantissa, least, random: u32, bits: i32| {
        let (low, high, rest) = between(v, mantissa, least);
        let m = if rest + f64::from(random) / 2f64.powi(bits) >= 1.0 { high } else { low };
        if v < 0.0 { -m } else { m }
    };
    check_on("cvt.rs.f16x2.f32 %r0, %r1, %r2, %r5;", &values(), |[a, b, _, _, r]| {
        let h = half::f16::from_f64(pick(f(a), 10, -14, r >> 16 & 0x1fff, 13)).to_bits();
        let l = half::f16::from_f64(pick(f(b), 10, -14, r & 0x1fff, 13)).to_bits();
        u32::from(h) << 16 | u32::from(l)
    });
    check_on("cvt.rs.relu.satfinite.bf16x2.f32 %r0, %r1, %r2, %r5;", &values(), |[a, b, _, _, r]| {
        let one = |v: u32, random| {
            if f(v) <= 0.0 { 0 } else { half::bf16::from_f64(pick(f(v), 7, -126, random, 16)).to_bits() }
        };
        u32::from(one(a, r >> 16)) << 16 | u32::from(one(b, r & 0xffff))
    });
    check_on("cvt.rs.satfinite.e4m3x4.f32 %r0, {%r1, %r2, %r3, %r4}, %r5;", &values(), |[a, b, c, d, r]| {
        let code = |v: u32, random: u32| {
            let m = pick(f(v), 3, -6, random, 16);
            let sign = if f32::from_bits(v).is_sign_negative() { 0x80 } else { 0 };
            // The code of a value that is a multiple of its last place.
            let found = (0..0x7fu32).find(|&c| {
                let (e, t) = (c >> 3, f64::from(c & 7));
                let v = if e == 0 { t / 512.0 } else { (1.0 + t / 8.0) * 2f64.powi(e as i32 - 7) };
                v == m.abs()
            });
            sign | found.expect("a value of the format")
        };
        let (hi, lo) = (r >> 16, r & 0xffff);
        code(a, hi) << 24 | code(b, hi) << 16 | code(c, lo) << 8 | code(d, lo)
    });
    check_on(
        "cvt.rs.satfinite.e2m1x4.f32 %h0, {%r1, %r2, %r3, %r4}, %r5; cvt.u32.u16 %r0, %h0;",
        &values(),
        |[a, b, c, d, r]| {
            let code = |v: u32, random: u32| {
                let m = pick(f(v), 1, 0, random, 16).abs().min(6.0);
                let found = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].iter().position(|&x| x == m);
                let sign = if f32::from_bits(v).is_sign_negative() { 8 } else { 0 };
                sign | found.expect("a value of the format") as u32
            };
            let upper = r >> 16 & 0xff00 | r >> 8 & 0xff;
            let lower = r >> 8 & 0xff00 | r & 0xff;
            code(a, upper) << 12 | code(b, upper) << 8 | code(c, lower) << 4 | code(d, lower)
        },
    );
}

#[test]
fn fixed_point_is_scaled_rounded_and_saturated() {
    let f = |w: u32| f64::from(f32::from_bits(w));
    let code = |v: f64| (v * 64.0).round_ties_even().clamp(-128.0, 127.0) as i32 as u32 & 0xff;
    check_on("cvt.rn.satfinite.s2f6x2.f32 %h0, %r1, %r2; cvt.u32.u16 %r0, %h0;", &values(), |[a, b, ..]| {
        code(f(a)) << 8 | code(f(b))
    });
    check_on(
        "mov.b16 %h1, 0x7e80; cvt.rn.satfinite.relu.scaled::n2::ue8m0.s2f6x2.f32 %h0, %r1, %r2, %h1; cvt.u32.u16 %r0, %h0;",
        &values(),
        |[a, b, ..]| code((f(a) * 2.0).max(0.0)) << 8 | code((f(b) / 2.0).max(0.0)),
    );
    check_on(
        "cvt.u16.u32 %h1, %r5; mov.b16 %h2, 0x817e; cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2 %r0, %h1, %h2;",
        &values(),
        |[.., r]| {
            let one = |c: u32, scale: f64| {
                u32::from(half::bf16::from_f64(f64::from(c as u8 as i8) / 64.0 * scale).to_bits())
            };
            one(r >> 8, 4.0) << 16 | one(r, 0.5)
        },
    );
}

#[test]
fn a_stack_of_its_own_for_every_lane() {
    let body = "    mov.u32 %r1, %tid.x;
    stacksave.u64 %rd9;
    mul.wide.u32 %rd1, %r1, 16;
    add.u64 %rd1, %rd1, 32;
    alloca.u64 %rd2, %rd1, 64;
    st.local.u32 [%rd2], %r1;
    alloca.u64 %rd3, %rd1;
    st.local.u32 [%rd3+28], 7;
    ld.local.u32 %r2, [%rd2];
    sub.u64 %rd4, %rd2, %rd3;
    cvt.u32.u64 %r3, %rd4;
    and.b64 %rd5, %rd2, 63;
    cvt.u32.u64 %r4, %rd5;
    add.u32 %r4, %r4, %r2;
    stackrestore.u64 %rd9;
    alloca.u64 %rd6, %rd1, 64;
    setp.ne.u64 %p1, %rd6, %rd2;
    @%p1 add.u32 %r4, %r4, 1000;
    mul.wide.u32 %rd10, %r1, 8;
    add.u64 %rd11, %out, %rd10;
    st.global.v2.u32 [%rd11], {%r3, %r4};";
    let got = words(body, 32, 64);
    for (lane, pair) in (0..).zip(got.chunks(2)) {
        assert_eq!(pair, [lane * 16 + 32, lane], "lane {lane}");
    }
}

#[test]
fn calls_through_pointers_reach_their_functions() {
    let text = r#".version 8.8
.target sm_100a
.address_size 64
.func (.param .b32 r) twice(.param .b32 x) {
    .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, %a; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) square(.param .b32 x) {
    .reg .b32 %a; ld.param.b32 %a, [x]; mul.lo.u32 %a, %a, %a; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) next(.param .b32 x) {
    .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, 1; st.param.b32 [r], %a; ret; }
.global .u64 table[3] = {twice, square, next};
.visible .entry k(.param .u64 out) {
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 3;
    mul.wide.u32 %rd2, %r2, 8; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2;
    ld.global.u64 %rd4, [%rd3];
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;
      proto: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (b), %rd4, (a), proto;
      ld.param.b32 %r3, [b]; }
    mov.u64 %rd5, next; setp.lt.u32 %p1, %r1, 16; @%p1 mov.u64 %rd5, twice;
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3;
      list: .calltargets twice, next;
      call (b), %rd5, (a), list;
      ld.param.b32 %r4, [b]; }
    mul.wide.u32 %rd6, %r1, 4; add.u64 %rd7, %rd1, %rd6; st.global.u32 [%rd7], %r4;
    ret; }
"#;
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 128);
    let l = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    for (t, w) in (0..).zip(memory.read(&out).chunks(4)) {
        let first = [t * 2, t * t, t + 1][t as usize % 3];
        let want: u32 = if t < 16 { first * 2 } else { first + 1 };
        assert_eq!(u32::from_le_bytes(w.try_into().unwrap()), want, "thread {t}");
    }
    let wrong = text.replace("mov.u64 %rd5, next;", "mov.u64 %rd5, square;");
    let report = run(&parse(&wrong), &l, &memory, &Options::default());
    assert!(report.findings[0].to_string().contains("none of the functions"), "{}", report.findings[0]);
}

#[test]
fn stores_and_reductions_of_all_kinds_on_global_memory() {
    let body = "    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 0;
    mov.u32 %r2, 5;
    @%p1 st.global.v4.u32 [%out], {%r2, %r2, %r2, %r2};
    @%p1 st.global.v4.u32 [%out+16], {%r2, %r2, %r2, %r2};
    bar.sync 0;
    multimem.red.relaxed.gpu.global.add.u32 [%out], %r1;
    red.async.release.gpu.global.add.u32 [%out+4], 2;
    @%p1 multimem.st.relaxed.gpu.global.u32 [%out+8], 77;
    @%p1 st.async.release.gpu.global.u32 [%out+12], 99;
    bar.sync 0;
    multimem.ld_reduce.relaxed.gpu.global.max.u32 %r3, [%out];
    @%p1 st.global.u32 [%out+16], %r3;";
    let got = words(body, 32, 8);
    assert_eq!(got, [5 + 31 * 16, 5 + 64, 77, 99, 5 + 31 * 16, 5, 5, 5]);
}

#[test]
fn wide_exchanges_are_whole() {
    // Every thread adds its number to both halves of 128 bits.
    let body = "    .reg .b128 %q<4>;
    mov.u32 %r1, %tid.x;
    add.u32 %r1, %r1, 1;
    cvt.u64.u32 %rd1, %r1;
    setp.eq.u32 %p1, %r1, 1;
    mov.u64 %rd2, 0;
    @%p1 st.global.v2.u64 [%out], {%rd2, %rd2};
    bar.sync 0;
    ld.global.b128 %q0, [%out];
AGAIN:
    mov.b128 {%rd3, %rd4}, %q0;
    add.u64 %rd3, %rd3, %rd1;
    sub.u64 %rd4, %rd4, %rd1;
    mov.b128 %q1, {%rd3, %rd4};
    atom.global.cas.b128 %q2, [%out], %q0, %q1;
    mov.b128 {%rd5, %rd6}, %q2;
    mov.b128 {%rd7, %rd8}, %q0;
    mov.b128 %q0, %q2;
    setp.ne.u64 %p2, %rd5, %rd7;
    @%p2 bra AGAIN;
    setp.ne.u64 %p2, %rd6, %rd8;
    @%p2 bra AGAIN;
    bar.sync 0;
    mov.b128 %q1, {%rd1, %rd1};
    @%p1 atom.global.exch.b128 %q3, [%out], %q1;
    @%p1 st.global.b128 [%out+16], %q3;";
    let got = words(body, 64, 8);
    let sum = 64 * 65 / 2u32;
    assert_eq!(got, [1, 0, 1, 0, sum, 0, sum.wrapping_neg(), u32::MAX]);
}

#[test]
fn masked_bulk_stores_write_the_bytes_of_their_mask() {
    let body = "    .shared .align 128 .b8 buf[64];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, buf;
    mul.lo.u32 %r3, %r1, 4;
    add.u32 %r4, %r2, %r3;
    mul.lo.u32 %r5, %r1, 0x01010101;
    add.u32 %r5, %r5, 0x04030201;
    st.shared.u32 [%r4], %r5;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd2, %out, %rd1;
    st.global.u32 [%rd2], 0;
    fence.proxy.async;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.b16 %h1, 0x8011;
    cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%out], [%r2], 64, %h1;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:";
    let got = words(body, 16, 16);
    for (i, w) in (0u32..).zip(got) {
        let value = (i * 0x0101_0101 + 0x0403_0201).to_le_bytes();
        let want: Vec<u8> = (0..4)
            .map(|b| if 0x8011u32 >> (4 * (i % 4) + b) & 1 == 1 { value[b as usize] } else { 0 })
            .collect();
        assert_eq!(w.to_le_bytes(), *want, "word {i}");
    }
}

#[test]
fn bulk_reductions_reach_the_other_cta() {
    let text = kernel(
        "    .shared .align 128 .b8 source[128];
    .shared .align 128 .b8 target[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r1, %tid.x;
    mov.u32 %r9, %cluster_ctarank;
    mov.u32 %r2, source; mov.u32 %r3, target; mov.u32 %r4, bar;
    shl.b32 %r5, %r1, 2;
    add.u32 %r6, %r2, %r5; add.u32 %r7, %r3, %r5;
    mad.lo.u32 %r8, %r9, 100, %r1;
    st.shared.u32 [%r6], %r8;
    st.shared.u32 [%r7], 1000;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 128;
    fence.proxy.async;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r10, %r9, 1;
    mapa.shared::cluster.u32 %r11, %r3, %r10;
    mapa.shared::cluster.u32 %r12, %r4, %r10;
    @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r11], [%r2], 128, [%r12];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4], 0;
    @!%p2 bra WAIT;
    ld.shared.u32 %r13, [%r7];
    mad.lo.u32 %r14, %r9, 32, %r1;
    mul.wide.u32 %rd1, %r14, 4; add.u64 %rd2, %out, %rd1;
    st.global.u32 [%rd2], %r13;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    );
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 256);
    let l = Launch {
        grid: [2, 1, 1],
        block: [32, 1, 1],
        cluster: [2, 1, 1],
        dynamic_smem: 0,
        args: vec![Arg::Pointer(memory.address(&out))],
    };
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    for (i, w) in (0u32..).zip(memory.read(&out).chunks(4)) {
        let want = 1000 + if i < 32 { 100 } else { 0 } + i % 32;
        assert_eq!(u32::from_le_bytes(w.try_into().unwrap()), want, "word {i}");
    }
}

#[test]
fn tensor_memory_is_reduced_while_it_is_loaded() {
    let text = kernel(
        "    .shared .b32 slot;
    mov.u32 %r0, slot;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
    bar.sync 0;
    ld.shared.u32 %r1, [%r0];
    mov.u32 %r2, %laneid;
    sub.u32 %r3, 7, %r2;
    mul.lo.u32 %r4, %r2, %r2;
    xor.b32 %r5, %r2, 21;
    sub.u32 %r6, 3, %r5;
    tcgen05.st.sync.aligned.32x32b.x4.b32 [%r1], {%r3, %r4, %r5, %r6};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.red.sync.aligned.32x32b.x4.min.s32 {%r10, %r11, %r12, %r13}, %r20, [%r1];
    tcgen05.ld.red.sync.aligned.16x32bx2.x2.max.u32 {%r14, %r15}, %r21, [%r1], 2;
    tcgen05.ld.red.sync.aligned.32x32b.x4.max.abs.f32 {%r16, %r17, %r18, %r19}, %r22, [%r1];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %rd1, %r2, 16;
    add.u64 %rd2, %out, %rd1;
    st.global.v4.u32 [%rd2], {%r20, %r21, %r22, %r13};
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    )
    .replace(".target sm_100a", ".target sm_103a");
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 512);
    let l = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    let values = |lane: i32| {
        let e = lane ^ 21;
        [7 - lane, lane * lane, e, 3 - e]
    };
    for (lane, words) in (0i32..).zip(memory.read(&out).chunks(16)) {
        let got: Vec<u32> = words.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        let v = values(lane);
        assert_eq!(got[0] as i32, v.into_iter().min().unwrap(), "lane {lane}");
        // The upper half of the warp starts two columns on, in the lower 16 lanes.
        let w = values(lane % 16);
        let pair = if lane < 16 { [w[0], w[1]] } else { [w[2], w[3]] };
        assert_eq!(got[1], pair.map(|v| v as u32).into_iter().max().unwrap(), "lane {lane}");
        let magnitudes = v.map(|v| f32::from_bits(v as u32 & 0x7fff_ffff));
        let largest = magnitudes.into_iter().fold(0f32, f32::max);
        assert_eq!(got[2], largest.to_bits(), "lane {lane}");
        assert_eq!(got[3] as i32, v[3], "lane {lane}");
    }
}

#[test]
fn matrix_loads_widen_small_elements() {
    for (format, bits) in [("b4x16_p64", 4usize), ("b6x16_p32", 6)] {
        let mask = (1u32 << bits) - 1;
        let element = |row: usize, column: usize| (row * 7 + column * 5 + 3) as u32 & mask;
        // Rows of 16 bytes, packed at the front; the rest is never written.
        let mut stores = String::new();
        for row in 0..8 {
            let mut bytes = [0u8; 16];
            for column in 0..16 {
                for bit in 0..bits {
                    let at = column * bits + bit;
                    bytes[at / 8] |= ((element(row, column) >> bit & 1) as u8) << (at % 8);
                }
            }
            for (i, word) in bytes[..2 * bits].chunks(4).enumerate() {
                let word = u32::from_le_bytes(word.try_into().unwrap());
                stores += &format!("    @%p1 st.shared.u32 [%r1+{}], {word};\n", 16 * row + 4 * i);
            }
        }
        let body = format!(
            "    .shared .align 128 .b8 buf[128];
    mov.u32 %r1, buf; mov.u32 %r2, %laneid;
    setp.eq.u32 %p1, %r2, 0;
{stores}    bar.sync 0;
    and.b32 %r3, %r2, 7; mad.lo.u32 %r4, %r3, 16, %r1;
    ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.{format} {{%r5}}, [%r4];
    mul.wide.u32 %rd1, %r2, 4; add.u64 %rd2, %out, %rd1;
    st.global.u32 [%rd2], %r5;"
        );
        for (lane, word) in words(&body, 32, 32).into_iter().enumerate() {
            let want = [0, 1, 2, 3].map(|i| element(lane / 4, 4 * (lane % 4) + i) as u8);
            assert_eq!(word.to_le_bytes(), want, "{format}, lane {lane}");
        }
    }
}
