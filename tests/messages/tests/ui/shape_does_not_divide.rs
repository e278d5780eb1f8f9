use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, shape = [256, 4096, 7170]> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<tile = [128, 96, 256], shape = [256, 4096, 7168]> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<shape = [256, 4097, 7168], store = tma> silu(A @ B1) * (A @ B2));
}
