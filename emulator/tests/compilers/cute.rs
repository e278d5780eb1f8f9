//! References of the kernels in `corpus/cute`.

use crate::compilers::harness::{self, Results, close};
use crate::compilers::math;
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("cute", name, inputs, check);
}

products! { run;
    wgmma: 128 128 256, F16 -> F16, AlongK, F32_SUM;
    tcgen05: 256 128 256, F16 -> F16, AlongK, F32_SUM;
    pair: 512 128 320, F16 -> F16, AlongK, F32_SUM;
    pairs_multicast: 512 128 320, F16 -> F16, AlongK, F32_SUM;
}

#[test]
fn axpy() {
    let mut r = Numbers(301);
    let ((bx, x), (by, y)) = (r.reals(F32, 1000, -9.0, 9.0), r.reals(F32, 1000, -9.0, 9.0));
    let want: Vec<f64> = x.iter().zip(&y).map(|(x, y)| F32.round(1.75 * x + y)).collect();
    run("axpy", &[("x", &bx), ("y", &by)], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

#[test]
fn gelu_vectors() {
    let (bytes, x) = Numbers(302).reals(F16, 16 * 512, -4.0, 4.0);
    let inner = |v: f64| 0.7978845608 * (v + 0.044715 * v * v * v);
    let want: Vec<f64> = x.iter().map(|&v| 0.5 * v * (1.0 + inner(v).tanh())).collect();
    run("gelu_vectors", &[("x", &bytes)], |out| close(out, "out", F16, &want, 1e-3, 1e-5));
}

#[test]
fn softmax() {
    let (bytes, x) = Numbers(303).reals(F32, 4 * 500, -6.0, 6.0);
    run("softmax", &[("x", &bytes)], |out| close(out, "out", F32, &math::softmax(&x, 500), 4e-6, 0.0));
}

#[test]
fn transpose() {
    let (m, n) = (64, 96);
    let (bytes, x) = Numbers(304).reals(F32, m * n, -1.0, 1.0);
    let want: Vec<f64> = (0..m * n).map(|i| x[i % m * n + i / m]).collect();
    run("transpose", &[("x", &bytes)], |out| close(out, "out", F32, &want, 0.0, 0.0));
}
