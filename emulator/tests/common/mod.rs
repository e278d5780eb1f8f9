//! Helpers of the emulator's tests.

pub mod assembler;
pub mod cases;
pub mod nvfp4_gemm;
pub mod truth;

use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Module, Options, Report};

/// A small generator of test data (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Parses, or panics with the errors. With the environment variable `PTXAS` set to the path of that
/// assembler, the text must assemble too.
pub fn parse(text: &str) -> Module {
    if let Some(ptxas) = std::env::var_os("PTXAS") {
        assemble(&ptxas, text);
    }
    match Module::parse("test.ptx", text) {
        Ok(m) => m,
        Err(e) => panic!("{e}"),
    }
}

fn assemble(ptxas: &std::ffi::OsStr, text: &str) {
    use std::io::Write;
    let arch = text.split_once(".target ").map_or("sm_100a", |(_, t)| t.split_whitespace().next().unwrap());
    let mut child = std::process::Command::new(ptxas)
        .args([&format!("-arch={arch}"), "-o", "/dev/null", "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("ptxas starts");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{text}", String::from_utf8_lossy(&out.stderr));
}

/// A launch of one dimension.
pub fn launch(grid: u32, block: u32, args: Vec<Arg>) -> Launch {
    Launch { grid: [grid, 1, 1], block: [block, 1, 1], cluster: [1, 1, 1], dynamic_smem: 0, args }
}

/// Runs the only kernel of a module.
pub fn run(module: &Module, launch: &Launch, memory: &GlobalMemory, options: &Options<'_>) -> Report {
    let entry = module.entries().next().expect("the module has a kernel").to_owned();
    module.run(&entry, launch, memory, options).expect("the launch is legal")
}

/// A kernel around a body: parameter `out`, the usual registers, and `%out` holding the pointer.
pub fn kernel(body: &str) -> String {
    format!(
        r#".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p<16>;
    .reg .b16 %h<16>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<32>;
    .reg .f32 %f<32>;
    .reg .f64 %fd<8>;
    .reg .b64 %out;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
{body}
    ret;
}}
"#
    )
}

/// Runs a kernel body with one CTA of `threads` and returns the words it left in `out`.
pub fn words(body: &str, threads: u32, count: usize) -> Vec<u32> {
    let module = parse(&kernel(body));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4 * count as u64);
    let l = launch(1, threads, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&module, &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Runs a kernel body that must be found faulty, and returns the first finding's message.
pub fn finding(body: &str, threads: u32, kind: FindingKind) -> String {
    let module = parse(&kernel(body));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4096);
    let l = launch(1, threads, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&module, &l, &memory, &Options::default());
    let found = report.findings.iter().find(|f| f.kind == kind);
    match found {
        Some(f) => f.to_string(),
        None => panic!("expected {kind:?}, found {:#?}", report.findings),
    }
}
