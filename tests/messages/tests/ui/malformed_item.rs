use silumin::dual_gemm;

dual_gemm! { pub SwiGlu<nvfp4 -> f16> silu(A @ B1) * (A @ B2); }
dual_gemm! { GeGlu = gelu(A @ B1) * (A @ B2) }
dual_gemm! { größe = gelu(A @ B1) * (A @ B2); }

fn main() {}
