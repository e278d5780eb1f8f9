//! References of the kernels in `corpus/cutlass`.

use crate::compilers::harness::{self, Results};
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};
use crate::compilers::scaled::scaled_products;

fn run(name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    harness::run("cutlass", name, inputs, check);
}

products! { run;
    f16_cooperative: 256 256 256, F16 -> F16, AlongK, F32_SUM;
    bf16_pingpong: 256 256 192, Bf16 -> Bf16, AlongK, F32_SUM;
    e4m3: 128 256 256, E4m3 -> F32, AlongK, 2e-3;
    f16: 256 256 256, F16 -> F16, AlongK, F32_SUM;
    bf16_pair: 512 256 192, Bf16 -> F32, AlongK, F32_SUM;
    stream_k: 384 64 320, F16 -> F16, AlongK, F32_SUM;
}

scaled_products! { run;
    nvfp4: E2m1, E2m1, Ue4m3, 16, (256, 128, 512), true, 1e-6;
    nvfp4_pair: E2m1, E2m1, Ue4m3, 16, (512, 256, 512), true, 1e-6;
    mxfp8: Eight(E4m3), Eight(E4m3), Ue8m0, 32, (128, 256, 256), true, 1e-6;
}
