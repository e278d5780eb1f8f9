//! Instructions that compilers seldom emit, against plain host code.

use crate::common::{Random, finding, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Options, Schedule};

/// Runs `code`, which makes `%r0` of the three words `%r1`, `%r2`, `%r3`, on many words, and compares.
fn check(code: &str, inputs: &[[u32; 3]], f: impl Fn(u32, u32, u32) -> u32) {
    let n = inputs.len() as u32;
    let body = format!(
        "    mov.u32 %r10, %tid.x;
    mul.wide.u32 %rd10, %r10, 16;
    add.u64 %rd11, %out, %rd10;
    ld.global.b32 %r1, [%rd11];
    ld.global.b32 %r2, [%rd11+4];
    ld.global.b32 %r3, [%rd11+8];
    {code}
    st.global.b32 [%rd11+12], %r0;"
    );
    let mut memory = GlobalMemory::new();
    let bytes: Vec<u8> =
        inputs.iter().flat_map(|[a, b, c]| [*a, *b, *c, 0]).flat_map(u32::to_le_bytes).collect();
    let out = memory.alloc_from("out", &bytes);
    let l = launch(1, n, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&kernel(&body)), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{code}: {}", report.findings[0]);
    for (i, (got, [a, b, c])) in memory.read(&out).chunks(16).zip(inputs).enumerate() {
        let got = u32::from_le_bytes(got[12..].try_into().unwrap());
        let want = f(*a, *b, *c);
        assert_eq!(got, want, "{code}: case {i}, {a:#x} {b:#x} {c:#x}: {got:#x}, should be {want:#x}");
    }
}

/// Random words, with small and extreme ones among them.
fn triples(seed: u64) -> Vec<[u32; 3]> {
    let mut r = Random(seed);
    (0..256)
        .map(|i| {
            std::array::from_fn(|k| {
                let v = r.next() as u32;
                match (i + k) % 5 {
                    0 => v % 40,
                    1 => (v % 64).wrapping_sub(32),
                    2 => [0, 1, u32::MAX, i32::MAX as u32, i32::MIN as u32][v as usize % 5],
                    _ => v,
                }
            })
        })
        .collect()
}

#[test]
fn integers() {
    let t = triples(1);
    check("and.b32 %r2, %r2, 31;\n    fns.b32 %r0, %r1, %r2, %r3;", &t, |mask, base, n| {
        let (base, n) = ((base & 31) as i32, n as i32);
        let set = |i: i32| mask >> i & 1 == 1;
        let found = match n {
            0 => Some(base).filter(|&b| set(b)),
            1.. => (base..32).filter(|&i| set(i)).nth(n as usize - 1),
            _ => (0..=base).rev().filter(|&i| set(i)).nth(n.unsigned_abs() as usize - 1),
        };
        found.map_or(u32::MAX, |i| i as u32)
    });
    let extend = |a: u32, n: u32, signed: bool| {
        let field = u64::from(a) & ((1u64 << n) - 1);
        if signed && n > 0 && field >> (n - 1) == 1 {
            (field as u32) | !((1u64 << n) - 1) as u32
        } else {
            field as u32
        }
    };
    check("szext.clamp.s32 %r0, %r1, %r2;", &t, |a, n, _| extend(a, n.min(32), true));
    check("szext.clamp.u32 %r0, %r1, %r2;", &t, |a, n, _| extend(a, n.min(32), false));
    check("szext.wrap.s32 %r0, %r1, %r2;", &t, |a, n, _| extend(a, n % 32, true));
    check("bfind.shiftamt.s32 %r0, %r1;", &t, |a, _, _| {
        let v = if (a as i32) < 0 { !a } else { a };
        if v == 0 { u32::MAX } else { v.leading_zeros() }
    });
    check("max.relu.s32 %r0, %r1, %r2;", &t, |a, b, _| (a as i32).max(b as i32).max(0) as u32);
    check("min.relu.s16x2 %r0, %r1, %r2;", &t, |a, b, _| {
        let f = |s: u32| ((a >> s) as i16).min((b >> s) as i16).max(0) as u16 as u32;
        f(0) | f(16) << 16
    });
}

#[test]
fn products_of_parts() {
    let t = triples(2);
    let s16 = |a: u32, i: u32| i64::from((a >> (16 * i)) as i16);
    let u16_ = |a: u32, i: u32| i64::from((a >> (16 * i)) as u16);
    let s8 = |a: u32, i: u32| i64::from((a >> (8 * i)) as i8);
    let u8_ = |a: u32, i: u32| i64::from((a >> (8 * i)) as u8);
    check("dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        (s16(a, 0) * s8(b, 0) + s16(a, 1) * s8(b, 1) + i64::from(c)) as u32
    });
    check("dp2a.hi.u32.s32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        (u16_(a, 0) * s8(b, 2) + u16_(a, 1) * s8(b, 3) + i64::from(c)) as u32
    });
    check("dp2a.lo.s32.u32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        (s16(a, 0) * u8_(b, 0) + s16(a, 1) * u8_(b, 1) + i64::from(c)) as u32
    });
    let u24 = |v: u32| i64::from(v & 0xff_ffff);
    let s24 = |v: u32| i64::from((v << 8) as i32) / 256;
    check("mul24.hi.u32 %r0, %r1, %r2;", &t, |a, b, _| ((u24(a) * u24(b)) >> 16) as u32);
    check("mul24.lo.s32 %r0, %r1, %r2;", &t, |a, b, _| (s24(a) * s24(b)) as u32);
    check("mad24.hi.s32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        (((s24(a) * s24(b)) >> 16) as u32).wrapping_add(c)
    });
    check("mad24.hi.sat.s32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        (((s24(a) * s24(b)) >> 16) as i32).saturating_add(c as i32) as u32
    });
    check("mad24.lo.u32 %r0, %r1, %r2, %r3;", &t, |a, b, c| ((u24(a) * u24(b)) as u32).wrapping_add(c));
}

#[test]
fn saturated_packing() {
    let t = triples(3);
    let clamp = |v: u32, low: i64, high: i64| i64::from(v as i32).clamp(low, high) as u32;
    check("cvt.pack.sat.s16.s32 %r0, %r1, %r2;", &t, |a, b, _| {
        clamp(a, -32768, 32767) << 16 | clamp(b, -32768, 32767) & 0xffff
    });
    check("cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        c << 16 | clamp(a, 0, 255) << 8 | clamp(b, 0, 255)
    });
    check("cvt.pack.sat.s4.s32.b32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        c << 8 | (clamp(a, -8, 7) & 15) << 4 | clamp(b, -8, 7) & 15
    });
}

#[test]
fn video_instructions() {
    let t = triples(4);
    let bytes = |f: fn(i32, i32) -> i32, signed: bool| {
        move |a: u32, b: u32| -> [i32; 4] {
            std::array::from_fn(|i| {
                let v = |w: u32| match signed {
                    true => i32::from((w >> (8 * i)) as i8),
                    false => i32::from((w >> (8 * i)) as u8),
                };
                f(v(a), v(b))
            })
        }
    };
    let pack = |p: [i32; 4]| p.iter().rev().fold(0u32, |w, &v| w << 8 | v as u8 as u32);
    check("vadd4.u32.u32.u32 %r0, %r1, %r2, %r3;", &t, |a, b, _| pack(bytes(|x, y| x + y, false)(a, b)));
    check("vsub4.s32.s32.s32.sat %r0, %r1, %r2, %r3;", &t, |a, b, _| {
        pack(bytes(|x, y| (x - y).clamp(-128, 127), true)(a, b))
    });
    check("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        c.wrapping_add(bytes(|x, y| (x - y).abs(), false)(a, b).iter().sum::<i32>() as u32)
    });
    check("vavrg4.u32.u32.u32 %r0, %r1, %r2, %r3;", &t, |a, b, _| {
        pack(bytes(|x, y| (x + y + 1) / 2, false)(a, b))
    });
    check("vmax4.s32.s32.s32 %r0, %r1, %r2, %r3;", &t, |a, b, _| pack(bytes(i32::max, true)(a, b)));
    check("vset4.u32.u32.ge %r0, %r1, %r2, %r3;", &t, |a, b, _| {
        pack(bytes(|x, y| i32::from(x >= y), false)(a, b))
    });
    check("vmin2.s32.s32.s32 %r0, %r1, %r2, %r3;", &t, |a, b, _| {
        let f = |s: u32| ((a >> s) as i16).min((b >> s) as i16) as u16 as u32;
        f(0) | f(16) << 16
    });
    check("vset2.s32.s32.lt.add %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        let f = |s: u32| u32::from(((a >> s) as i16) < (b >> s) as i16);
        c.wrapping_add(f(0) + f(16))
    });
}

#[test]
fn minima_with_signs_and_magnitudes() {
    let mut t = triples(5);
    for (i, [a, b, _]) in t.iter_mut().enumerate() {
        // Floating-point words of all kinds.
        *a = [*a, 0x7fc0_0000, 0x8000_0000, 0x3f80_0000, 0xff80_0000][i % 5];
        *b = [*b, 0xbf00_0000, 0, 0x7fff_ffff][i % 4];
    }
    let f = f32::from_bits;
    let number = |x: f32, y: f32, smaller: bool| match (x.is_nan(), y.is_nan()) {
        (true, true) => None,
        (true, false) => Some(y),
        (false, true) => Some(x),
        _ => Some(if (x < y) == smaller { x } else { y }),
    };
    check("max.xorsign.abs.f32 %r0, %r1, %r2;", &t, |a, b, _| match number(f(a).abs(), f(b).abs(), false) {
        None => 0x7fff_ffff,
        Some(v) => v.to_bits() & 0x7fff_ffff | (a ^ b) & 0x8000_0000,
    });
    check("min.NaN.abs.f32 %r0, %r1, %r2, %r3;", &t, |a, b, c| {
        let v = [a, b, c].map(|v| f(v).abs());
        if v.iter().any(|v| v.is_nan()) { 0x7fff_ffff } else { v[0].min(v[1]).min(v[2]).to_bits() }
    });
    let half = |w: u32, s: u32| half::f16::from_bits((w >> s) as u16).to_f32();
    check("min.xorsign.abs.f16x2 %r0, %r1, %r2;", &t, |a, b, _| {
        let part = |s: u32| match number(half(a, s).abs(), half(b, s).abs(), true) {
            None => 0x7fff,
            Some(v) => u32::from(half::f16::from_f32(v).to_bits()) & 0x7fff | (a ^ b) >> s & 0x8000,
        };
        part(0) | part(16) << 16
    });
    check("set.lt.f16x2.f16x2 %r0, %r1, %r2;", &t, |a, b, _| {
        let part = |s: u32| if half(a, s) < half(b, s) { 0x3c00 } else { 0 };
        part(0) | part(16) << 16
    });
    let bf = |w: u32, s: u32| f32::from_bits((w >> s) << 16);
    check("set.geu.u32.bf16x2 %r0, %r1, %r2;", &t, |a, b, _| {
        let part = |s: u32| if bf(a, s) < bf(b, s) { 0 } else { 0xffff };
        part(0) | part(16) << 16
    });
}

#[test]
fn the_least_magnitude_of_a_warp() {
    let got = words(
        "    mov.u32 %r0, %laneid;
    cvt.rn.f32.u32 %f0, %r0;
    sub.f32 %f0, %f0, 0f41580000;
    redux.sync.min.abs.f32 %f1, %f0, -1;
    redux.sync.max.NaN.f32 %f2, %f0, -1;
    st.global.f32 [%out], %f1;
    st.global.f32 [%out+4], %f2;",
        32,
        2,
    );
    assert_eq!(got.map_f32(), [0.5, 17.5]);
}

trait Floats {
    fn map_f32(&self) -> Vec<f32>;
}

impl Floats for Vec<u32> {
    fn map_f32(&self) -> Vec<f32> {
        self.iter().map(|&v| f32::from_bits(v)).collect()
    }
}

#[test]
fn binary64_rounds_in_every_direction() {
    let got = words(
        "    mov.f64 %fd0, 0d3FF0000000000000;
    mov.f64 %fd1, 0d4008000000000000;
    div.rm.f64 %fd2, %fd0, %fd1;
    div.rp.f64 %fd3, %fd0, %fd1;
    st.global.f64 [%out], %fd2;
    st.global.f64 [%out+8], %fd3;
    sqrt.rz.f64 %fd4, %fd1;
    st.global.f64 [%out+16], %fd4;
    add.rp.f64 %fd5, %fd0, 0d0010000000000000;
    st.global.f64 [%out+24], %fd5;
    fma.rm.f64 %fd6, %fd2, %fd1, 0dBFF0000000000000;
    st.global.f64 [%out+32], %fd6;",
        1,
        10,
    );
    let got: Vec<f64> =
        got.chunks(2).map(|c| f64::from_bits(u64::from(c[0]) | u64::from(c[1]) << 32)).collect();
    assert_eq!(got[1], got[0].next_up());
    assert!(got[0] * 3.0 <= 1.0 && got[2] * got[2] < 3.0 && got[2].next_up() * got[2].next_up() > 3.0);
    assert_eq!(got[3], 1f64.next_up());
    assert!(got[4] < 0.0 && got[4] > -1e-15);
}

#[test]
fn values_sent_to_a_peer_count_at_its_mbarrier() {
    let text = kernel(
        "    .shared .align 16 .b8 box[16];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, 1;
    st.shared.v4.b32 [box], {%r1, %r1, %r1, %r1};
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r2, %r0, 1;
    mov.u32 %r3, box;
    mov.u32 %r4, bar;
    mapa.shared::cluster.u32 %r5, %r3, %r2;
    mapa.shared::cluster.u32 %r6, %r4, %r2;
    add.u32 %r7, %r0, 40;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5], {%r7, %r7}, [%r6];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5+8], %r7, [%r6];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r5+12], %r7, [%r6];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p0, [bar], 0;
    @!%p0 bra WAIT;
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [box];
    mul.wide.u32 %rd0, %r0, 16;
    add.u64 %rd1, %out, %rd0;
    st.global.v4.b32 [%rd1], {%r10, %r11, %r12, %r13};
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;",
    );
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(5)] {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc("out", 32);
        let l = Launch {
            grid: [2, 1, 1],
            block: [1, 1, 1],
            cluster: [2, 1, 1],
            dynamic_smem: 0,
            args: vec![Arg::Pointer(memory.address(&out))],
        };
        let report = run(&parse(&text), &l, &memory, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{}", report.findings[0]);
        let got: Vec<u32> =
            memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(got, [41, 41, 42, 41, 40, 40, 41, 40]);
    }
}

#[test]
fn tensor_maps_are_made_and_rows_gathered_and_scattered() {
    // A map from zeros, of 16 rows of 32 words; rows 9, 2, 30 (outside) and 4 from column 16 on.
    let text = kernel(
        "    .shared .align 128 .b8 map[128];
    .shared .align 128 .b8 rows[512];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, 0;
    mov.u32 %r1, map;
ZERO:
    st.shared.b32 [%r1], 0;
    add.u32 %r1, %r1, 4;
    add.u32 %r0, %r0, 1;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra ZERO;
    add.u64 %rd0, %out, 1024;
    tensormap.replace.tile.global_address.shared::cta.b1024.b64 [map], %rd0;
    tensormap.replace.tile.rank.shared::cta.b1024.b32 [map], 1;
    tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 0, 16;
    tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 1, 1;
    tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], 0, 32;
    tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], 1, 16;
    tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [map], 0, 128;
    tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [map], 0, 1;
    tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [map], 1, 1;
    tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [map], 2;
    tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [map], 0;
    tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [map], 0;
    tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [map], 0;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%out+512], [map], 128;
    add.u64 %rd1, %out, 512;
    fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;
    mov.u32 %r2, rows;
    mov.u32 %r3, bar;
    mov.b32 %r10, 16;
    mov.b32 %r11, 9;
    mov.b32 %r12, 2;
    mov.b32 %r13, 30;
    mov.b32 %r14, 4;
    cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r2], [%rd1, {%r10, %r11, %r12, %r13, %r14}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [bar], 0;
    @!%p0 bra WAIT;
    mov.u32 %r4, 0;
    mov.u64 %rd2, %out;
COPY:
    ld.shared.b32 %r5, [%r2];
    st.global.b32 [%rd2], %r5;
    add.u32 %r2, %r2, 4;
    add.u64 %rd2, %rd2, 4;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p0, %r4, 64;
    @%p0 bra COPY;
    mov.b32 %r10, 0;
    mov.b32 %r11, 15;
    mov.b32 %r12, 14;
    mov.b32 %r14, 13;
    mov.u32 %r2, rows;
    cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd1, {%r10, %r11, %r12, %r13, %r14}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;",
    );
    for schedule in [Schedule::Early, Schedule::Late] {
        let mut memory = GlobalMemory::new();
        let tensor: Vec<u32> = (0..16 * 32).map(|i| 1000 + i).collect();
        let bytes: Vec<u8> =
            [vec![0u8; 1024], tensor.iter().flat_map(|v| v.to_le_bytes()).collect()].concat();
        let out = memory.alloc_from("out", &bytes);
        let l = launch(1, 1, vec![Arg::Pointer(memory.address(&out))]);
        let report = run(&parse(&text), &l, &memory, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{}", report.findings[0]);
        let words: Vec<u32> =
            memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        let row = |r: u32| (0..16).map(move |c| if r < 16 { 1000 + 32 * r + 16 + c } else { 0 });
        let want: Vec<u32> = [9, 2, 30, 4].into_iter().flat_map(row).collect();
        assert_eq!(words[..64], want);
        for (place, from) in [(15, 9), (14, 2), (13, 4)] {
            let at = 256 + 32 * place;
            assert_eq!(words[at..at + 16], row(from).collect::<Vec<_>>(), "row {place}");
        }
        assert_eq!(words[256 + 32 * 12..256 + 32 * 13], tensor[32 * 12..32 * 13]);
    }
}

#[test]
fn undefined_bytes_travel_but_are_not_computed_with() {
    // As compilers widen a vector of bytes: %r5 and %r6 have never been written.
    let body = "    mov.b32 %r1, 0x11223344;
    prmt.b32 %r2, %r5, %r6, 0x3340U;
    prmt.b32 %r3, %r1, %r2, 0x5410U;
    and.b32 %r4, %r3, 0xffff;
    st.global.b32 [%out], %r4;";
    assert_eq!(words(body, 1, 1), [0x3344]);
    let used = body.replace("%r4, %r3, 0xffff", "%r4, %r2, 0xffff");
    let message = finding(&used, 1, FindingKind::UninitialisedRegister);
    assert!(message.contains("%r4 is read; line 16 computed it from %r5"), "{message}");
}
