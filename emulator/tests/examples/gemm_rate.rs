//! How fast the emulator runs a warp-specialised NVFP4 GEMM.
//!
//! `cargo run --release -p silumin-emulator-tests --example gemm_rate -- [M N K]`; the default, 512 x 8192 x 7168, is
//! the work of a dual GEMM of 512 x 4096 x 7168.

#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

#[path = "../common/nvfp4_gemm.rs"]
mod nvfp4_gemm;

use nvfp4_gemm::Codes;
use silumin_emulator::{GlobalMemory, Module, Options};
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
    let module = Module::parse("nvfp4_gemm.ptx", nvfp4_gemm::TEXT)?;
    let mut memory = GlobalMemory::new();
    let elements = [(m, 1), (n, 2)].map(|(rows, seed)| bytes(rows * k / 2, seed, 0xff));
    let scales = [(m, 3), (n, 4)].map(|(rows, seed)| bytes(rows * k / 16, seed, 0x3f));
    let operand = |i: usize| Codes { elements: &elements[i], scales: &scales[i] };
    let (launch, _) = nvfp4_gemm::launch(&mut memory, [m, n, k], &operand(0), &operand(1))?;
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
