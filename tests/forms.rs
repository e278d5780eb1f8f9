#![deny(warnings, missing_docs)]
//! Every form of `dual_gemm!`, in a crate that forbids warnings.

use silumin::{Arch, DualGemm, Shape, dual_gemm};

dual_gemm! {
    /// The MLP's gate.
    pub SwiGlu<A: nvfp4, B: nvfp4, C: f16, tile = [128, 128, 256], stages = auto,
               k_order = split_tail(2), sf_preload = ahead(1), accumulators = separate>
        = silu(A @ B1) * (A @ B2);
    pub(crate) GeGlu = gelu(x @ gate) * (x @ up);
}

#[test]
fn every_form_compiles_without_a_warning_and_makes_a_kernel() {
    let made: DualGemm = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (A @ B2));
    let fixed = dual_gemm!(<nvfp4->f16,shape=[1,64,64],arch=[sm_100a],>silu(A@B1)*(A@B2));
    let scaled = dual_gemm!(silu(alpha * (A @ B1)) * (alpha * (A @ B2)),);
    for gemm in [&made, &fixed, &scaled, &*SwiGlu, &*GeGlu] {
        let shape = fixed.shape().unwrap_or(Shape::new(256, 512, 1024));
        let shape = if gemm.shape().is_some() { shape } else { Shape::new(256, 512, 1024) };
        assert!(gemm.kernel(shape, Arch::Sm100a).is_ok());
    }
}
