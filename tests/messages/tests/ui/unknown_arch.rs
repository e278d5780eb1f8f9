use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, arch = sm_80> silu(A @ B1) * (A @ B2));
}
