//! References of the kernels in `corpus/tilelang`.

use crate::compilers::harness::{self, Results, close};
use crate::compilers::math;
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("tilelang", name, inputs, check);
}

products! { run;
    gemm: 256 128 256, F16 -> F16, AlongK, F32_SUM;
    gemm_small: 64 64 96, F16 -> F32, AlongK, F32_SUM;
    gemm_fp8: 128 64 256, E4m3 -> F32, AlongK, 2e-3;
    gemm_tmem: 256 128 256, Bf16 -> Bf16, AlongK, F32_SUM;
    gemm_tmem_specialised: 256 128 256, Bf16 -> Bf16, AlongK, F32_SUM;
    gemm_roles: 256 128 320, Bf16 -> Bf16, AlongK, F32_SUM;
    gemm_pair: 512 256 320, Bf16 -> Bf16, AlongK, F32_SUM;
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn gemm_bias_silu() {
    let (m, n, k) = (128, 128, 128);
    let mut r = Numbers(201);
    let ((ba, a), (bb, b)) = (r.reals(Bf16, m * k, -1.0, 1.0), r.reals(Bf16, k * n, -1.0, 1.0));
    let (bytes, bias) = r.reals(F32, n, -1.0, 1.0);
    let of = |i: usize| {
        let (row, column) = (i / n, i % n);
        silu((0..k).map(|l| a[row * k + l] * b[l * n + column]).sum::<f64>() + bias[column])
    };
    let want: Vec<f64> = (0..m * n).map(of).collect();
    run("gemm_bias_silu", &[("a", &ba), ("b", &bb), ("bias", &bytes)], |out| {
        close(out, "c", Bf16, &want, 5e-3, 1e-4);
    });
}

#[test]
fn softmax() {
    let (bytes, x) = Numbers(202).reals(F32, 32 * 256, -6.0, 6.0);
    run("softmax", &[("x", &bytes)], |out| close(out, "out", F32, &math::softmax(&x, 256), 4e-6, 0.0));
}

#[test]
fn rms_norm() {
    let n = 1024;
    let mut r = Numbers(203);
    let ((bytes, x), (bw, weight)) = (r.reals(F16, 8 * n, -2.0, 3.0), r.reals(F16, n, 0.5, 1.5));
    let want: Vec<f64> = x
        .chunks(n)
        .flat_map(|row| {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
            row.iter().zip(&weight).map(move |(v, w)| v / (mean + 1e-5).sqrt() * w)
        })
        .collect();
    run("rms_norm", &[("x", &bytes), ("weight", &bw)], |out| close(out, "out", F16, &want, 1e-3, 1e-6));
}

#[test]
fn silu_mul() {
    let mut r = Numbers(204);
    let ((bg, gate), (bu, up)) = (r.reals(F32, 1000, -6.0, 6.0), r.reals(F32, 1000, -2.0, 2.0));
    let want: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
    run("silu_mul", &[("gate", &bg), ("up", &bu)], |out| close(out, "out", F32, &want, 2e-6, 0.0));
}

#[test]
fn column_sums() {
    let n = 64;
    let (bytes, x) = Numbers(205).reals(F32, n * n, -1.0, 1.0);
    let sums: Vec<f64> = (0..n).map(|c| (0..n).map(|r| x[r * n + c]).sum()).collect();
    let running: Vec<f64> = (0..n * n).map(|i| x[i / n * n..=i].iter().sum()).collect();
    run("column_sums", &[("x", &bytes)], |out| {
        close(out, "out", F32, &sums, 0.0, 1e-5);
        close(out, "running", F32, &running, 0.0, 1e-5);
    });
}

#[test]
fn attention() {
    let (heads, length, d) = (2, 128, 64);
    let mut r = Numbers(206);
    let n = heads * length * d;
    let (bq, q) = r.reals(F16, n, -1.0, 1.0);
    let ((bk, k), (bv, v)) = (r.reals(F16, n, -1.0, 1.0), r.reals(F16, n, -1.0, 1.0));
    let mut want = Vec::new();
    for (i, q) in q.chunks(d).enumerate() {
        let head = i / length * length * d;
        let (k, v) = (&k[head..head + length * d], &v[head..head + length * d]);
        let s = k.chunks(d).map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * 0.25);
        let p: Vec<f64> = s.map(f64::exp2).collect();
        let total: f64 = p.iter().sum();
        want.extend((0..d).map(|j| (0..length).map(|l| p[l] * v[l * d + j]).sum::<f64>() / total));
    }
    run("attention", &[("q", &bq), ("k", &bk), ("v", &bv)], |out| close(out, "out", F16, &want, 1e-3, 5e-4));
}
