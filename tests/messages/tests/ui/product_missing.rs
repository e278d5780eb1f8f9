use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(x) * y);
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * A);
    let _ = dual_gemm!(<nvfp4 -> f16>);
    let _ = dual_gemm!();
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) *);
}
