//! The launch of `ptx/nvfp4_gemm.ptx`, for its test and for the example that times it.

use silumin_emulator::{
    Arg, Buffer, DataType, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, SwizzleMode,
    TensorMapError, TensorMapParams,
};

/// The kernel.
pub const TEXT: &str = include_str!("../ptx/nvfp4_gemm.ptx");

/// One operand: two e2m1 a byte, row-major, and its scale factors in blocked order.
pub struct Codes<'a> {
    pub elements: &'a [u8],
    pub scales: &'a [u8],
}

fn map(address: u64, rows: u64, row_bytes: u64) -> Result<Arg, TensorMapError> {
    let params = TensorMapParams {
        data_type: DataType::U8,
        global_address: address,
        global_dims: vec![row_bytes, rows],
        global_strides: vec![row_bytes],
        box_dims: vec![128, 128],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: SwizzleMode::B128,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    };
    Ok(Arg::TensorMap(params.encode()?))
}

/// Puts the operands of `m` x `n` x `k` into `memory`; also where the f32 result will be, row-major.
///
/// # Errors
/// A tensor map of a shape that TMA does not take.
pub fn launch(
    memory: &mut GlobalMemory,
    [m, n, k]: [usize; 3],
    a: &Codes<'_>,
    b: &Codes<'_>,
) -> Result<(Launch, Buffer), TensorMapError> {
    let elements = [("a", a), ("b", b)].map(|(name, codes)| memory.alloc_from(name, codes.elements));
    let scales =
        [("scales_a", a), ("scales_b", b)].map(|(name, codes)| memory.alloc_from(name, codes.scales));
    let result = memory.alloc("result", 4 * (m * n) as u64);
    let launch = Launch {
        grid: [n as u32 / 128, m as u32 / 128, 1],
        block: [192, 1, 1],
        cluster: [1, 1, 1],
        dynamic_smem: 4 * 36864,
        args: vec![
            map(memory.address(&elements[0]), m as u64, k as u64 / 2)?,
            map(memory.address(&elements[1]), n as u64, k as u64 / 2)?,
            Arg::Pointer(memory.address(&scales[0])),
            Arg::Pointer(memory.address(&scales[1])),
            Arg::Pointer(memory.address(&result)),
            Arg::U32(n as u32),
            Arg::U32(k as u32 / 256),
        ],
    };
    Ok((launch, result))
}
