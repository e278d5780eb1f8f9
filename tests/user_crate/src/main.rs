//! A gated MLP layer in a user's crate: both forms of the macro, a plan, and kernels that are warmed
//! up and checked on the emulated device. It needs Rust and nothing else.

#![forbid(unsafe_code)]

use silumin::{Arch, Device, Distribution, Shape, dual_gemm};
use std::error::Error;

dual_gemm! {
    /// The gate of most open models, its knobs chosen by hand.
    pub SwiGlu<A: nvfp4, B: nvfp4, C: f16,
               tile = [128, 64, 256], k_order = split_tail(1), cache = [b: evict_first]>
        = silu(A @ B1) * (A @ B2);
}

fn main() -> Result<(), Box<dyn Error>> {
    let scaled = dual_gemm!(<nvfp4 -> f16> silu(alpha * (x @ gate)) * (alpha * (x @ up)));
    // The shape is fixed, so the compiler has checked that its kernel exists.
    let clamped = dual_gemm!(<nvfp4 -> f16, shape = [32, 64, 128], arch = sm_100a>
        min(A @ B1, 7.0) * sigmoid(1.702 * min(A @ B1, 7.0)) * (clamp(A @ B2, -7.0, 7.0) + 1.0));

    let decode = Shape::new(8, 128, 512);
    println!("{}\n", SwiGlu.plan(decode, Arch::Sm100a)?);

    let device = Device::emulated(Arch::Sm100a);
    for (gemm, shape, scalars) in [
        (&*SwiGlu, decode, &[][..]),
        (&scaled, Shape::new(130, 72, 288), &[("alpha", 0.25)][..]),
        (&clamped, clamped.shape().ok_or("it has a shape")?, &[][..]),
    ] {
        let kernels = gemm.warmup(&device, &[shape])?;
        let kernel = kernels.for_problem(shape.m, shape.n, shape.k)?;
        let verification = kernel.verify(Distribution::Benchmark, 1, scalars)?;
        println!("{} on {device}: {}", kernel.kernel().name, verification.check);
        if !verification.check.pass {
            return Err("a kernel computes something else".into());
        }
    }
    Ok(())
}
