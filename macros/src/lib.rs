//! The `dual_gemm!` macro of silumin.
