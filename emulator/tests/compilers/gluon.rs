//! References of the kernels in `corpus/gluon`.

use crate::compilers::harness::{self, Results, close};
use crate::compilers::math;
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};
use crate::compilers::scaled::scaled_products;

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("gluon", name, inputs, check);
}

products! { run;
    one: 256 128 256, F16 -> F16, AlongK, F32_SUM;
    partitions: 256 128 320, F16 -> F16, AlongK, F32_SUM;
    pair: 512 128 320, F16 -> F16, AlongK, F32_SUM;
    pairs_multicast: 512 128 320, F16 -> F16, AlongK, F32_SUM;
    pair_alike: 512 128 256, F16 -> F16, AlongK, F32_SUM;
    stream: 384 256 128, F16 -> F16, AlongK, F32_SUM;
    stream_pair: 768 256 128, F16 -> F16, AlongK, F32_SUM;
    stolen: 384 256 128, F16 -> F16, AlongK, F32_SUM;
    tensor_memory_a: 256 128 128, F16 -> F16, AlongK, F32_SUM;
}

scaled_products! { run;
    nvfp4: E2m1, E2m1, Ue4m3, 16, (256, 128, 512), true, 1e-6;
    mxfp8: Eight(E4m3), Eight(E4m3), Ue8m0, 32, (128, 256, 256), true, 1e-6;
    nvfp4_pair: E2m1, E2m1, Ue4m3, 16, (512, 128, 512), true, 1e-6;
}

#[test]
fn softmax() {
    let (bytes, x) = Numbers(401).reals(F32, 3 * 2048, -6.0, 6.0);
    run("softmax", &[("x", &bytes)], |out| close(out, "y", F32, &math::softmax(&x, 2048), 4e-6, 0.0));
}
