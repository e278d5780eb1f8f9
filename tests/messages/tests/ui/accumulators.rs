use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(
        <accumulator_buffers = overlapped, tile = [128, 192, 256]> silu(A @ B1) * (A @ B2)
    );
    let _ = dual_gemm!(<store = direct(16x256b), swap_ab = on> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> nvfp4, store = direct(16x64b, 16)> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<store = direct(16x32b)> silu(A @ B1) * (A @ B2));
}
