//! References of `elementwise.cu`.

use super::run;
use crate::compilers::harness::{close, equal, long_words};
use crate::compilers::math::{erf, erfinv, j0, lgamma, remainder};
use crate::compilers::number::*;

/// Rows of results of an array of functions.
fn rows<const N: usize>(f: [&dyn Fn(usize) -> f64; N], n: usize) -> Vec<f64> {
    f.iter().flat_map(|f| (0..n).map(f).collect::<Vec<f64>>()).collect()
}

/// Compares rows of f32 results; a name for each, and how far it may be off.
fn compare_rows(got: &[f64], want: &[f64], n: usize, slack: impl Fn(usize) -> (f64, f64)) {
    assert_eq!(got.len(), want.len());
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        let (relative, absolute) = slack(at / n);
        let ok = (g - w).abs() <= absolute + relative * w.abs() || g == w;
        assert!(ok, "row {}, element {}: {g}, should be {w}", at / n, at % n);
    }
}

#[test]
fn axpy() {
    let mut r = Numbers(101);
    let ((bx, x), (by, y)) = (r.reals(F32, 3003, -4.0, 4.0), r.reals(F32, 3003, -4.0, 4.0));
    let want: Vec<f64> =
        x.iter().zip(&y).map(|(x, y)| F32.round(F32.round(1.75 * x + y) - 0.5).clamp(-3.0, 5.0)).collect();
    run("axpy", &[("x", &bx), ("y", &by)], |out| close(out, "y", F32, &want, 0.0, 0.0));
}

#[test]
fn functions() {
    let n = 256;
    let (bytes, x) = Numbers(102).reals(F32, n, -4.0, 4.0);
    let x = |i: usize| x[i];
    let p = |i: usize| F32.round(x(i).abs() + 0.125);
    let tenth = |i: usize| F32.round(x(i) * f64::from(0.1f32));
    let part = f64::from(0.7f32);
    let large = |i: usize| F32.round(x(i) * 1e6);
    let want = rows(
        [
            &|i| x(i).exp(),
            &|i| x(i).exp2(),
            &|i| 10f64.powf(x(i)),
            &|i| x(i).exp_m1(),
            &|i| p(i).ln(),
            &|i| p(i).log2(),
            &|i| p(i).ln_1p(),
            &|i| x(i).sin(),
            &|i| x(i).cos(),
            &|i| x(i).tan(),
            &|i| large(i).sin(),
            &|i| large(i).cos(),
            &|i| tenth(i).asin(),
            &|i| tenth(i).acos(),
            &|i| x(i).atan(),
            &|i| x(i).atan2(p(i)),
            &|i| x(i).sinh(),
            &|i| x(i).tanh(),
            &|i| x(i).asinh(),
            &|i| erf(x(i)),
            &|i| 1.0 - erf(x(i)),
            &|i| erfinv(tenth(i)),
            &|i| 0.5 + 0.5 * erf(x(i) / 2f64.sqrt()),
            &|i| p(i).powf(x(i)),
            &|i| x(i).cbrt(),
            &|i| x(i).hypot(2.0),
            &|i| p(i).sqrt(),
            &|i| 1.0 / p(i).sqrt(),
            &|i| x(i) % part,
            &|i| remainder(x(i), part),
            &|i| lgamma(p(i)),
            &|i| lgamma(p(i)).exp(),
            &|i| x(i).floor(),
            &|i| x(i).ceil(),
            &|i| x(i).round_ties_even(),
            &|i| x(i).round(),
            &|i| x(i).trunc(),
            &|i| x(i) * 8.0,
            &|i| p(i).copysign(x(i)),
            &|i| (x(i) - 0.5).max(0.0),
            &|i| x(i) / p(i),
            &|i| 1.0 / p(i),
            &|i| j0(x(i)),
            &|i| (std::f64::consts::PI * x(i)).sin(),
        ],
        n,
    );
    run("functions", &[("x", &bytes)], |out| {
        compare_rows(&F32.decode_all(&out["out"]), &want, n, |row| match row {
            // What is exact in single precision.
            28 | 29 | 32..=38 => (0.0, 0.0),
            _ => (1e-6, 5e-7),
        });
    });
}

#[test]
fn intrinsics() {
    let n = 256;
    let (bytes, x) = Numbers(103).reals(F32, n, -3.0, 3.0);
    let x = |i: usize| x[i];
    let p = |i: usize| F32.round(x(i).abs() + 0.125);
    let [small, factor, third] = [1e-3f32, 1.1, 0.3].map(f64::from);
    let want = rows(
        [
            &|i| x(i).exp(),
            &|i| p(i).ln(),
            &|i| p(i).log2(),
            &|i| x(i).sin(),
            &|i| x(i).cos(),
            &|i| p(i).powf(x(i)),
            &|i| x(i) / p(i),
            &|i| x(i).clamp(0.0, 1.0),
            &|i| F32.round(1.0 / p(i)),
            &|i| F32.round(p(i).sqrt()),
            &|i| F32.round(1.0 / p(i).sqrt()),
            &|i| F32.round(x(i) / p(i)),
            &|i| F32.round(x(i) * 0.5).tan(),
            &|i| F32.truncate(x(i) + small),
            &|i| F32.round_by(x(i) + small, f64::ceil),
            &|i| F32.round_by(x(i) + small, f64::floor),
            &|i| F32.truncate(x(i) * factor),
            &|i| F32.round_by(x(i) * factor, f64::ceil),
            &|i| F32.round_by(x(i) * factor + third, f64::floor),
            &|i| F32.round_by(x(i) / p(i), f64::ceil),
            &|i| F32.round_by(p(i).sqrt(), f64::floor),
            &|i| F32.truncate(1.0 / p(i)),
        ],
        n,
    );
    run("intrinsics", &[("x", &bytes)], |out| {
        compare_rows(&F32.decode_all(&out["out"]), &want, n, |row| match row {
            0..=6 => (3e-6, 2e-6),
            12 => (4e-6, 2e-6),
            _ => (0.0, 0.0),
        });
    });
}

#[test]
fn doubles() {
    let n = 128;
    let (bytes, x) = Numbers(104).reals(F64, n, -3.0, 3.0);
    let x = |i: usize| x[i];
    let p = |i: usize| x(i).abs() + 0.125;
    let want = rows(
        [
            &|i| x(i).exp(),
            &|i| p(i).ln(),
            &|i| x(i).sin(),
            &|i| x(i).cos(),
            &|i| (x(i) * 1e9).sin(),
            &|i| x(i).tan(),
            &|i| x(i).atan(),
            &|i| x(i).tanh(),
            &|i| erf(x(i)),
            &|i| p(i).powf(x(i)),
            &|i| x(i).cbrt(),
            &|i| p(i).sqrt(),
            &|i| 1.0 / p(i).sqrt(),
            &|i| x(i) / p(i),
            &|i| x(i).mul_add(x(i), p(i)),
            &|i| x(i) % 0.7,
            &|i| x(i).floor(),
            &|i| x(i).round_ties_even(),
            &|i| lgamma(p(i)).exp(),
            &|i| p(i).ln_1p(),
            &|i| x(i).hypot(p(i)),
        ],
        n,
    );
    run("doubles", &[("x", &bytes)], |out| {
        compare_rows(&F64.decode_all(&out["out"]), &want, n, |row| match row {
            // The references are series, good to fewer digits.
            8 => (0.0, 1e-12),
            18 => (1e-9, 0.0),
            11 | 13..=17 => (0.0, 0.0),
            _ => (2e-15, 2e-15),
        });
    });
}

/// Lanes of a word of packed integers of `bits` bits, zipped.
fn packed(a: u32, b: u32, bits: u32, f: impl Fn(u32, u32) -> u32) -> i32 {
    let mask = u32::MAX >> (32 - bits);
    (0..32 / bits)
        .fold(0, |r, k| r | (f(a >> (k * bits) & mask, b >> (k * bits) & mask) & mask) << (k * bits))
        as i32
}

#[test]
fn integers() {
    let n = 256;
    let mut r = Numbers(105);
    let mut words = |n: usize| -> Vec<i32> {
        // All magnitudes, and no zero.
        (0..n).map(|_| (r.next() as i32 >> (r.next() % 28)) | 1).collect()
    };
    let (x, y) = (words(n), words(n));
    let bytes = |v: &[i32]| -> Vec<u8> { v.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let low24 = |v: i32| i64::from(v << 8 >> 8);
    let half = |v: i32, k: u32| i32::from((v >> (16 * k)) as i16);
    let byte = |v: i32, k: u32| i32::from((v >> (8 * k)) as i8);
    let f: [&dyn Fn(i32, i32) -> i32; 42] = [
        &|a, b| a.wrapping_div(b),
        &|a, b| a.wrapping_rem(b),
        &|a, b| (a as u32 / b as u32) as i32,
        &|a, b| (a as u32 % b as u32) as i32,
        &|a, _| a / 7,
        &|a, _| (a as u32 % 10) as i32,
        &|a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32,
        &|a, b| ((u64::from(a as u32) * u64::from(b as u32)) >> 32) as i32,
        &|a, b| low24(a).wrapping_mul(low24(b)) as i32,
        &|a, _| a.count_ones() as i32,
        &|a, _| a.leading_zeros() as i32,
        &|a, _| if a == 0 { 0 } else { a.trailing_zeros() as i32 + 1 },
        &|a, _| a.reverse_bits(),
        &|a, b| {
            let (pool, pick) = (u64::from(b as u32) << 32 | u64::from(a as u32), 0x5140 ^ (b & 0x7777));
            (0..4).fold(0, |r, k| r | ((pool >> (8 * (pick >> (4 * k) & 7)) & 255) as u32) << (8 * k)) as i32
        },
        &|a, b| (((u64::from(b as u32) << 32 | u64::from(a as u32)) << (b & 31)) >> 32) as i32,
        &|a, b| ((u64::from(b as u32) << 32 | u64::from(a as u32)) >> (b & 31)) as i32,
        &|a, _| a,
        &|a, b| a << (b & 31),
        &|a, b| a >> (b & 31),
        &|a, b| (a as u32 >> (b & 31)) as i32,
        &|a, b| (0..4).map(|k| byte(a, k) * byte(b, k)).sum::<i32>() + 5,
        &|a, b| (0..4).map(|k| (byte(a, k) & 255) * (byte(b, k) & 255)).sum::<i32>() + 5,
        &|a, b| (0..2).map(|k| half(a, k) * byte(b, k)).sum::<i32>() + 3,
        &|a, b| (0..2).map(|k| half(a, k) * byte(b, k + 2)).sum::<i32>() + 3,
        &|a, b| (a.abs_diff(b).wrapping_add(9)) as i32,
        &|a, b| ((a as u32).abs_diff(b as u32).wrapping_add(9)) as i32,
        &|a, _| a.wrapping_abs(),
        &|a, b| a.min(b),
        &|a, b| (a as u32).max(b as u32) as i32,
        &|a, b| ((i64::from(a) + i64::from(b)) >> 1) as i32,
        &|a, b| ((i64::from(a) + i64::from(b) + 1) >> 1) as i32,
        &|a, b| packed(a as u32, b as u32, 8, u32::wrapping_add),
        &|a, b| packed(a as u32, b as u32, 16, u32::wrapping_sub),
        &|a, b| packed(a as u32, b as u32, 16, |a, b| (a as i16).max(b as i16) as u32),
        &|a, b| packed(a as u32, b as u32, 8, u32::abs_diff),
        &|a, b| packed(a as u32, b as u32, 8, |a, b| if a > b { 255 } else { 0 }),
        &|a, b| packed(a as u32, b as u32, 8, u32::min),
        &|a, b| packed(a as u32, b as u32, 8, |a, b| (a + b + 1) >> 1),
        &|a, b| a.max(b).max(77),
        &|a, b| a.wrapping_add(b).min(1000),
        &|a, b| i32::from(a as i16) + i32::from(b as i8),
        &|a, _| (a as u32 >> 5 & 0x3ff) as i32,
    ];
    let want: Vec<i32> =
        f.iter().flat_map(|f| x.iter().zip(&y).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()).collect();
    run("integers", &[("x", &bytes(&x)), ("y", &bytes(&y))], |out| equal(out, "out", &want));
}

#[test]
fn wide() {
    let n = 256;
    let mut r = Numbers(106);
    let mut words =
        |n: usize| -> Vec<i64> { (0..n).map(|_| (r.next() as i64 >> (r.next() % 60)) | 1).collect() };
    let (x, y) = (words(n), words(n));
    let bytes = |v: &[i64]| -> Vec<u8> { v.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let p = |a: i64, b: i64| i128::from(a) * i128::from(b);
    let q = |a: i64, b: i64| u128::from(a as u64) * u128::from(b as u64) + u128::from(a as u64);
    let f: [&dyn Fn(i64, i64) -> i64; 27] = [
        &|a, b| a.wrapping_add(b),
        &|a, b| a.wrapping_sub(b),
        &|a, b| a.wrapping_mul(b),
        &|a, b| a.wrapping_div(b),
        &|a, b| a.wrapping_rem(b),
        &|a, b| (a as u64 / b as u64) as i64,
        &|a, b| (a as u64 % b as u64) as i64,
        &|a, b| (p(a, b) >> 64) as i64,
        &|a, b| ((u128::from(a as u64) * u128::from(b as u64)) >> 64) as i64,
        &|a, _| i64::from(a.count_ones()),
        &|a, _| i64::from(a.leading_zeros()),
        &|a, _| i64::from(a.trailing_zeros()) + 1,
        &|a, _| a.reverse_bits(),
        &|a, b| a << (b & 63),
        &|a, b| a >> (b & 63),
        &|a, b| (a as u64 >> (b & 63)) as i64,
        &|a, _| a / 1000003,
        &|a, b| (p(a, b) >> 40) as i64,
        &|a, b| (q(a, b) >> 64) as i64,
        &|a, b| q(a, b).wrapping_sub(p(a, b) as u128) as i64,
        &|a, _| a as f32 as i64,
        &|_, b| b as f64 as i64,
        &|a, _| a.wrapping_abs(),
        &|a, b| a.min(b),
        &|a, b| (p(a, b) / 12345) as i64,
        &|a, b| if a < b { a } else { b ^ a },
        &|a, _| (a as f64 * 0.5) as i64,
    ];
    let want: Vec<i64> =
        f.iter().flat_map(|f| x.iter().zip(&y).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()).collect();
    run("wide", &[("x", &bytes(&x)), ("y", &bytes(&y))], |out| {
        for (at, (g, w)) in long_words(out, "out").iter().zip(&want).enumerate() {
            assert_eq!(g, w, "row {} of {:#x}, {:#x}", at / n, x[at % n], y[at % n]);
        }
    });
}

/// `x` rounded to a small float format without infinities or NaNs, given the bits of its exponent and of its mantissa.
fn small(exponent: i32, mantissa: i32, x: f64) -> f64 {
    let bias = (1 << (exponent - 1)) - 1;
    let top = (1 << exponent) - 1 - bias;
    let e = if x == 0.0 { 1 - bias } else { (x.abs().log2().floor() as i32).clamp(1 - bias, top) };
    let unit = 2f64.powi(e - mantissa);
    let largest = (2.0 - 2f64.powi(-mantissa)) * 2f64.powi(top);
    ((x / unit).round_ties_even() * unit).clamp(-largest, largest)
}

#[test]
fn conversions() {
    let n = 256;
    let mut r = Numbers(107);
    let values: Vec<f64> =
        (0..n).map(|_| F32.round(r.real(-8.0, 8.0) * 2f64.powi(-((r.next() % 9) as i32)))).collect();
    let v = |i: usize| values[i];
    let w = |i: usize| values[i ^ 1];
    let times = |x: f64, y: f32| F32.round(x * f64::from(y));
    let want = rows(
        [
            &|i| F16.round(v(i)),
            &|i| F16.truncate(v(i)),
            &|i| F16.round_by(v(i), f64::floor),
            &|i| F16.round_by(v(i), f64::ceil),
            &|i| Bf16.round(v(i)),
            &|i| Bf16.truncate(v(i)),
            &|i| F16.round(w(i)),
            &|i| Bf16.round(v(i)),
            &|i| E4m3.round(v(i)),
            &|i| E5m2.round(v(i)),
            &|i| E4m3.round(w(i)),
            &|i| E4m3.round(w(i) * 0.25),
            &|i| E5m2.round(F16.round(v(i))),
            &|i| small(2, 1, v(i)),
            &|i| small(2, 1, w(i)),
            &|i| small(2, 3, v(i)),
            &|i| small(3, 2, w(i)),
            &|i| v(i).abs().log2().ceil().exp2(),
            &|i| v(i).round_ties_even(),
            &|i| v(i).ceil(),
            &|i| v(i).trunc(),
            &|i| v(i).abs().trunc(),
            &|i| F16.round(v(i)).floor(),
            &|i| F16.round(times(v(i), 100.0).trunc()),
            &v,
            &|i| F32.truncate(times(v(i), 1e7).trunc()),
            &|i| F32.round(times(v(i), 1e9).round_ties_even()),
            &|i| F32.round(times(v(i).abs(), 1e15).trunc()),
            &|i| F16.round(F16.round(v(i)) + 0.25).clamp(0.0, 1.0),
            &|i| F16.round(v(i)).trunc(),
            &|i| Bf16.round(Bf16.round(v(i)) * Bf16.round(w(i)) + 0.5),
        ],
        n,
    );
    run("conversions", &[("x", &F32.encode_all(&values))], |out| {
        compare_rows(&F32.decode_all(&out["out"]), &want, n, |_| (0.0, 0.0));
    });
}

fn pairs(name: &str, ty: Type) {
    let n = 512;
    let mut r = Numbers(108);
    let ((bx, x), (by, y)) = (r.reals(ty, n, -3.0, 3.0), r.reals(ty, n, -3.0, 3.0));
    let a = |i: usize| x[i];
    let b = |i: usize| y[i];
    let want = rows(
        [
            &|i| ty.round(a(i) + b(i)),
            &|i| ty.round(a(i) - b(i)),
            &|i| ty.round(a(i) * b(i)),
            &|i| ty.round(a(i) * b(i) + 1.0),
            &|i| a(i) / b(i),
            &|i| a(i).max(b(i)),
            &|i| a(i).min(b(i)),
            &|i| -a(i),
            &|i| b(i).abs(),
            &|i| a(i).exp(),
            &|i| b(i).abs().ln(),
            &|i| a(i).abs().sqrt(),
            &|i| 1.0 / b(i).abs().sqrt(),
            &|i| a(i).floor(),
            &|i| b(i).round_ties_even(),
            &|i| ty.round(a(i) * b(i) + 1.0).max(0.0),
            &|i| if a(i) > b(i) { 1.0 } else { 0.0 },
            &|i| a(i ^ 1),
            &|i| a(i).sin(),
            &|i| b(i).tanh(),
        ],
        n,
    );
    let step = if ty == F16 { 1e-3 } else { 8e-3 };
    run(name, &[("x", &bx), ("y", &by)], |out| {
        compare_rows(&ty.decode_all(&out["out"]), &want, n, |row| match row {
            4 | 9..=12 | 18 | 19 => (step, step / 64.0),
            _ => (0.0, 0.0),
        });
    });
}

#[test]
fn halves() {
    pairs("halves", F16);
}

#[test]
fn bfloats() {
    pairs("bfloats", Bf16);
}
