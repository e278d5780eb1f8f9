//! References of `elementwise.py`.

use super::run;
use crate::compilers::harness::{Results, close, equal};
use crate::compilers::math::{erf, lgamma};
use crate::compilers::number::*;

#[test]
fn add() {
    let mut r = Numbers(1);
    for (name, ty, n) in [("add", F32, 1000), ("add_bf16", Bf16, 2048)] {
        let ((bx, x), (by, y)) = (r.reals(ty, n, -9.0, 9.0), r.reals(ty, n, -9.0, 9.0));
        let want: Vec<f64> = x.iter().zip(&y).map(|(x, y)| ty.round(x + y)).collect();
        run(name, &[("x", &bx), ("y", &by)], |out| close(out, "out", ty, &want, 0.0, 0.0));
    }
}

#[test]
fn gelu() {
    let (bytes, x) = Numbers(2).reals(F16, 1000, -4.0, 4.0);
    let exact: Vec<f64> = x.iter().map(|x| 0.5 * x * (1.0 + erf(x * 0.5f64.sqrt()))).collect();
    let by_tanh =
        |x: &f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    let approx: Vec<f64> = x.iter().map(by_tanh).collect();
    run("gelu", &[("x", &bytes)], |out| {
        close(out, "out_erf", F32, &exact, 1e-6, 1e-6);
        close(out, "out_tanh", F16, &approx, 1e-3, 1e-5);
    });
}

#[test]
fn functions() {
    let (bytes, x) = Numbers(3).reals(F32, 128, 0.05, 4.0);
    let f: [fn(f64) -> f64; 24] = [
        f64::exp,
        f64::ln,
        f64::sin,
        f64::cos,
        f64::sqrt,
        |v| 1.0 / v.sqrt(),
        f64::exp2,
        f64::log2,
        |v| (v * 8.0).floor(),
        |v| (v * 8.0).ceil(),
        |v| 1.0 / v,
        |v| v * v - v,
        f64::ln_1p,
        f64::exp_m1,
        |v| v.atan2(2.0),
        |v| v.powf(1.75),
        f64::sinh,
        lgamma,
        |v| (v * 8.0).round_ties_even(),
        |v| v % 0.375,
        |v| (v * 0.2f32 as f64).acos(),
        f64::cbrt,
        |v| 1.0 / (1.0 + (-v).exp()),
        |v| v.hypot(1.5),
    ];
    run("functions", &[("x", &bytes)], |out| {
        let rows = F32.decode_all(&out["out"]);
        for (r, f) in f.iter().enumerate() {
            for (i, &x) in x.iter().enumerate() {
                let (got, want) = (rows[r * 128 + i], f(x));
                assert!(
                    (got - want).abs() <= 3e-6 * want.abs() + 1e-6,
                    "row {r}: f({x}) = {got}, not {want}"
                );
            }
        }
    });
}

#[test]
fn doubles() {
    let (bytes, x) = Numbers(4).reals(F64, 128, 0.05, 9.0);
    let f: [fn(f64) -> f64; 8] = [
        f64::exp,
        f64::ln,
        f64::sin,
        f64::sqrt,
        |v| 1.0 / v,
        f64::tanh,
        |v| f64::from(v as f32),
        |v| (v * 1000.0).trunc(),
    ];
    let want: Vec<f64> = f.iter().flat_map(|f| x.iter().map(move |&x| f(x))).collect();
    run("doubles", &[("x", &bytes)], |out| close(out, "out", F64, &want, 4e-16, 1e-15));
}

#[test]
fn integers() {
    let mut r = Numbers(5);
    let (mut bx, mut x) = r.words(256, -(1 << 31), 1 << 31);
    let (mut by, mut y) = r.words(256, -(1 << 31), 1 << 31);
    // Small ones, so that quotients are of all sizes.
    for i in 0..128 {
        x[i] >>= i % 31;
        y[i] = y[i] >> (i * 7 % 31) | 1;
        bx[4 * i..4 * i + 4].copy_from_slice(&x[i].to_le_bytes());
        by[4 * i..4 * i + 4].copy_from_slice(&y[i].to_le_bytes());
    }
    let f: [fn(i32, i32) -> i32; 24] = [
        i32::wrapping_mul,
        i32::wrapping_div,
        i32::wrapping_rem,
        |a, b| (a as u32 / b as u32) as i32,
        |a, b| (a as u32 % b as u32) as i32,
        i32::min,
        |a, b| (a as u32).max(b as u32) as i32,
        |a, b| a >> (b & 31),
        |a, b| (a as u32 >> (b & 31)) as i32,
        |a, b| a << (b & 31),
        |a, b| ((u64::from(a as u32) * u64::from(b as u32)) >> 32) as i32,
        |a, _| a.count_ones() as i32,
        |a, _| a.leading_zeros() as i32,
        |a, _| a.reverse_bits(),
        |a, _| if a == 0 { 0 } else { a.trailing_zeros() as i32 + 1 },
        |a, b| {
            let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
            i32::from_le_bytes([a[0], b[0], a[2], b[1]])
        },
        |a, b| (a ^ b) & !(a | 5),
        |a, _| a.wrapping_abs(),
        |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32,
        |a, b| i32::from((a as i8).wrapping_mul(b as i8)),
        |a, b| i32::from((a as i16).wrapping_div(b as i16 | 1)),
        |a, b| ((i64::from(a) * i64::from(b)) >> 17) as i32,
        |a, b| (i64::from(a) * 1_000_003 / i64::from(b)) as i32,
        |a, b| if a > b { a } else { b.wrapping_neg() },
    ];
    let want: Vec<i32> = f.iter().flat_map(|f| x.iter().zip(&y).map(move |(&a, &b)| f(a, b))).collect();
    run("integers", &[("x", &bx), ("y", &by)], |out| equal(out, "out", &want));
}

#[test]
fn conversions() {
    let mut r = Numbers(6);
    let mut x: Vec<f64> = (0..512).map(|i| F32.round(r.real(-1.0, 1.0) * 2f64.powi(i % 24 - 17))).collect();
    // Ties of every format, and what is just above them.
    for (i, v) in [1.03125, 1.0625, 1.125, 1.1875, 17.0, 2.5, -3.5, 0.0009765625, -0.0, 100.25, 1.00390625]
        .into_iter()
        .enumerate()
    {
        x[2 * i] = v;
        x[2 * i + 1] = F32.round(v * (1.0 + 2f64.powi(-22)));
    }
    let f: [fn(f64) -> f64; 16] = [
        |v| F16.round(v),
        |v| Bf16.round(v),
        |v| E4m3.round(v),
        |v| E5m2.round(v),
        f64::trunc,
        f64::trunc,
        f64::trunc,
        |v| E5m2.round(F16.round(v)),
        |v| E4m3.round(Bf16.round(v)),
        |v| F16.truncate(v),
        |v| Bf16.truncate(v),
        |v| v.abs().trunc(),
        |v| v,
        |v| v.clamp(-1.5, 2.5),
        f64::trunc,
        |v| f64::from(u8::from(v > 1.0)),
    ];
    let want: Vec<f64> = f.iter().flat_map(|f| x.iter().map(move |&x| f(x))).collect();
    run("conversions", &[("x", &F32.encode_all(&x))], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

#[test]
fn half_precision_arithmetic() {
    let mut r = Numbers(7);
    for (name, ty) in [("halves", F16), ("bfloats", Bf16)] {
        let ((bx, x), (by, y)) = (r.reals(ty, 2048, -3.0, 3.0), r.reals(ty, 2048, -3.0, 3.0));
        let f = |(&a, &b): (&f64, &f64)| {
            let s = ty.round(ty.round(a * b + a) - b).max(ty.round(a * 0.5));
            if s.abs() > 4.0 { -s } else { s }
        };
        let want: Vec<f64> = x.iter().zip(&y).map(f).collect();
        run(name, &[("x", &bx), ("y", &by)], |out| close(out, "out", ty, &want, 0.0, 0.0));
    }
}

#[test]
fn gather() {
    let mut r = Numbers(8);
    let (source, values) = r.reals(F32, 4096, -1.0, 1.0);
    // Distinct indices, some of them negative: not taken.
    let mut index: Vec<i32> = (0..1024).collect();
    for i in (1..1024).rev() {
        index.swap(i, (r.next() % (i as u64 + 1)) as usize);
    }
    index.truncate(600);
    index.iter_mut().step_by(7).for_each(|k| *k = -1);
    let bytes: Vec<u8> = index.iter().flat_map(|k| k.to_le_bytes()).collect();
    let of = |k: i32| if k < 0 { -7.0 } else { values[4 * k as usize] };
    let want: Vec<f64> = index.iter().map(|&k| of(k)).collect();
    let mut scattered = vec![0.0; 2048];
    for &k in index.iter().filter(|k| **k >= 0) {
        scattered[2 * k as usize + 1] = of(k);
    }
    run("gather", &[("index", &bytes), ("source", &source)], |out| {
        close(out, "out", F32, &want, 0.0, 0.0);
        close(out, "scattered", F32, &scattered, 0.0, 0.0);
    });
}

#[test]
fn collatz() {
    let (bytes, x) = Numbers(9).words(512, 1, 400);
    let steps = |&v: &i32| {
        let (mut v, mut n) = (v, 0);
        while v > 1 {
            v = if v % 2 == 0 { v / 2 } else { 3 * v + 1 };
            n += 1;
        }
        n
    };
    let want: Vec<i32> = x.iter().map(steps).collect();
    run("collatz", &[("x", &bytes)], |out| equal(out, "out", &want));
}

/// First word of Philox 4x32-10.
fn philox(counter: u32, key: u64) -> u32 {
    let mut c = [counter, 0, 0, 0];
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xd251_1f53;
        let b = u64::from(c[2]) * 0xcd9e_8d57;
        c = [(b >> 32) as u32 ^ c[1] ^ k0, b as u32, (a >> 32) as u32 ^ c[3] ^ k1, a as u32];
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    c[0]
}

#[test]
fn dropout() {
    let (bytes, x) = Numbers(10).reals(F32, 1024, -1.0, 1.0);
    let keep = |i: usize| {
        let word = philox(i as u32, 77) as i32;
        let word = if word < 0 { -word - 1 } else { word };
        word as f32 * 4.656_612_7e-10 > 0.25
    };
    let want: Vec<f64> = x.iter().enumerate().map(|(i, x)| if keep(i) { x / 0.75 } else { 0.0 }).collect();
    assert!((500..900).contains(&want.iter().filter(|v| **v != 0.0).count()));
    run("dropout", &[("x", &bytes)], |out| close(out, "out", F32, &want, 2e-7, 0.0));
}

#[test]
fn calls() {
    let (bytes, x) = Numbers(11).words(16, -1000, 1000);
    let rounds = |v: i32, count: i32| {
        (0..count).fold(v, |v, k| match k % 3 {
            0 => v.wrapping_mul(2).wrapping_add(1),
            1 => v.wrapping_sub(k),
            _ => v ^ k,
        })
    };
    let want: Vec<i32> = x.iter().map(|&v| rounds(v, 9).wrapping_add(rounds(-v, 11))).collect();
    let check = |out: &Results| equal(out, "out", &want);
    run("calls", &[("x", &bytes)], check);
}
