//! Parses and decodes PTX files, and lists what is wrong with them.
//!
//! `cargo run --release -p silumin-emulator --example check -- FILE.ptx...`

#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use silumin_emulator::Module;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut failed = false;
    for file in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&file) {
            Ok(t) => t,
            Err(e) => {
                println!("{file}: {e}");
                failed = true;
                continue;
            }
        };
        let start = Instant::now();
        match Module::parse(&file, &text) {
            Ok(m) => {
                let kernels: Vec<&str> = m.entries().collect();
                println!(
                    "{file}: {} bytes in {:.3} s, kernels {}",
                    text.len(),
                    start.elapsed().as_secs_f64(),
                    kernels.join(", ")
                );
            }
            Err(e) => {
                println!("{e}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
