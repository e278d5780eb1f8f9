//! How fast the emulator runs a warp-specialised NVFP4 GEMM.
//!
//! `cargo run --release -p silumin-emulator --example gemm_rate -- [M N K]`; the default, 512 x 8192 x 7168, is
//! the work of a dual GEMM of 512 x 4096 x 7168.

#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use silumin_emulator::{
    Arg, DataType, GlobalMemory, Interleave, L2Promotion, Launch, Module, OobFill, Options, SwizzleMode,
    TensorMapParams,
};
use std::error::Error;

fn bytes(n: usize, seed: u64, mask: u8) -> Vec<u8> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8 & mask
        })
        .collect()
}

fn map(address: u64, rows: u64, row_bytes: u64) -> Result<Arg, Box<dyn Error>> {
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

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let [m, n, k] = match given.as_slice() {
        [] => [512, 8192, 7168],
        &[m, n, k] => [m, n, k],
        _ => return Err("expected M N K".into()),
    };
    if m % 128 != 0 || n % 128 != 0 || k % 256 != 0 {
        return Err("M and N are multiples of 128, K of 256".into());
    }
    let module = Module::parse("nvfp4_gemm.ptx", include_str!("../tests/ptx/nvfp4_gemm.ptx"))?;
    let mut memory = GlobalMemory::new();
    let a = memory.alloc_from("a", &bytes(m * k / 2, 1, 0xff));
    let b = memory.alloc_from("b", &bytes(n * k / 2, 2, 0xff));
    let sa = memory.alloc_from("scales_a", &bytes(m * k / 16, 3, 0x3f));
    let sb = memory.alloc_from("scales_b", &bytes(n * k / 16, 4, 0x3f));
    let result = memory.alloc("result", 4 * (m * n) as u64);
    let launch = Launch {
        grid: [n as u32 / 128, m as u32 / 128, 1],
        block: [192, 1, 1],
        cluster: [1, 1, 1],
        dynamic_smem: 4 * 36864,
        args: vec![
            map(memory.address(&a), m as u64, k as u64 / 2)?,
            map(memory.address(&b), n as u64, k as u64 / 2)?,
            Arg::Pointer(memory.address(&sa)),
            Arg::Pointer(memory.address(&sb)),
            Arg::Pointer(memory.address(&result)),
            Arg::U32(n as u32),
            Arg::U32(k as u32 / 256),
        ],
    };
    let report = module.run("nvfp4_gemm", &launch, &memory, &Options::default())?;
    for f in &report.findings {
        println!("{f}");
    }
    let s = &report.stats;
    let seconds = s.time.as_secs_f64();
    let macs: u64 = s.mma_macs.values().sum();
    println!("{m} x {n} x {k}: {seconds:.2} s");
    println!("  {:.2} GMAC/s of tcgen05.mma", macs as f64 / seconds / 1e9);
    println!("  {} PTX instructions, {:.2} M/s", s.instructions, s.instructions as f64 / seconds / 1e6);
    println!("  TMA {} MiB read, {} KiB stored by threads", s.tma_read >> 20, s.global_written >> 10);
    if report.is_clean() { Ok(()) } else { Err("the run had findings".into()) }
}
