use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16> swish(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16> rope(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1, 2) * (A @ B2));
}
