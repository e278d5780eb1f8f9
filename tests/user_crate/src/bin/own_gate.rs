//! A gate that is not built in: it compiles with the feature `llvm`, and says so without.

use silumin::{Arch, Shape, dual_gemm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gemm = dual_gemm!(<nvfp4 -> f16> tanh(A @ B1) * (A @ B2));
    let kernel = gemm.kernel(Shape::new(128, 64, 256), Arch::Sm100a)?;
    println!("{}: {} bytes of PTX", kernel.name, kernel.ptx.len());
    Ok(())
}
