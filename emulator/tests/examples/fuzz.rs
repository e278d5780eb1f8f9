//! Mutates PTX and launch files and runs what is left of them: nothing may panic, hang, or take memory
//! without bound.
//!
//! `SILUMIN_FUZZ_SECONDS=600 cargo run -p silumin-emulator-tests --example fuzz -- [FOLDER...]`
//!
//! Folders are searched for `.ptx` and `.toml` files; the default is the corpus of the tests. The unoptimised
//! profile checks arithmetic overflow as well. `SILUMIN_FUZZ_SEED` chooses the mutations. A failing case is
//! left in `target/fuzz`, and the exit status is 1.

#![allow(clippy::print_stdout, reason = "printing is what this example is for")]

use silumin_emulator::{
    Arg, GlobalMemory, Launch, LaunchFile, Module, Options, Reconvergence, Schedule, Tracking,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Instructions of one cluster.
const BUDGET: u64 = 20_000;
/// A case that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Resident memory beyond which it counts as without bound: buffers of launch files alone may have 4 GiB.
const MEMORY: u64 = 6 << 30;
/// CTAs and buffer bytes that are still run: larger launches are right and take their time.
const CTAS: u64 = 64;
const BYTES: u64 = 64 << 20;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }
}

/// Numbers at the edges of ranges.
const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "-1",
    "2",
    "15",
    "16",
    "31",
    "32",
    "255",
    "256",
    "65535",
    "2147483647",
    "4294967295",
    "-2147483648",
    "9223372036854775807",
    "18446744073709551615",
];

/// Words, numbers and single signs.
fn tokens(text: &str) -> Vec<&str> {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '%' | '$');
    let mut out = Vec::new();
    let mut from = 0;
    let mut last = false;
    for (i, c) in text.char_indices() {
        if i > from && !(word(c) && last) {
            out.push(&text[from..i]);
            from = i;
        }
        last = word(c);
    }
    out.push(&text[from..]);
    out
}

fn by_tokens(text: &str, other: &str, r: &mut Random) -> String {
    let mut list: Vec<String> = tokens(text).into_iter().map(str::to_owned).collect();
    for _ in 0..=r.below(4) {
        let at = r.below(list.len());
        let Some(token) = list.get(at).cloned() else { break };
        match r.below(7) {
            0 => drop(list.remove(at)),
            1 => list.insert(at, token),
            2 => {
                let to = r.below(list.len());
                list.swap(at, to);
            }
            3 => list[at] = r.pick(&tokens(other)).map_or(String::new(), |t| (*t).to_owned()),
            4 => list[at] = r.pick(&tokens(text)).map_or(String::new(), |t| (*t).to_owned()),
            _ => {
                // The next number.
                let digits = |t: &String| t.bytes().next().is_some_and(|b| b.is_ascii_digit());
                if let Some(n) = list.iter().skip(at).position(digits) {
                    list[at + n] = r.pick(&NUMBERS).map_or(String::new(), |t| (*t).to_owned());
                }
            }
        }
    }
    list.concat()
}

fn by_lines(text: &str, other: &str, r: &mut Random) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let others: Vec<&str> = other.lines().collect();
    for _ in 0..=r.below(3) {
        let at = r.below(lines.len());
        match (r.below(4), r.pick(&others)) {
            (0, _) if at < lines.len() => drop(lines.remove(at)),
            (1, Some(line)) => lines.insert(at, line),
            (2, _) if at < lines.len() => lines.insert(at, lines[at]),
            _ => {
                let to = r.below(lines.len());
                if at < lines.len() && to < lines.len() {
                    lines.swap(at, to);
                }
            }
        }
    }
    lines.join("\n")
}

fn by_bytes(text: &str, r: &mut Random) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=r.below(6) {
        let at = r.below(bytes.len());
        match r.below(4) {
            0 if at < bytes.len() => drop(bytes.remove(at)),
            1 => bytes.insert(at, r.next() as u8),
            2 => bytes.truncate(at.max(1)),
            _ if at < bytes.len() => bytes[at] ^= 1 << r.below(8),
            _ => {}
        }
    }
    bytes
}

fn mutate(text: &str, other: &str, r: &mut Random) -> String {
    match r.below(8) {
        0 => String::from_utf8_lossy(&by_bytes(text, r)).into_owned(),
        1 | 2 => by_lines(text, other, r),
        _ => by_tokens(text, other, r),
    }
}

/// Picks one of the instructions that a line of `emulator/src/lower/coverage` stands for.
fn instruction(line: &str, r: &mut Random) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((plain, more)) = rest.split_once('<') {
        out += plain;
        let Some((inner, after)) = more.split_once('>') else { break };
        // Alternatives that are lists themselves are cut up: that is a mutation, too.
        out += r.pick(&inner.split(',').collect::<Vec<_>>()).unwrap_or(&"");
        rest = after;
    }
    out += rest;
    while let Some(at) = out.find("{").filter(|&at| out[..at].ends_with(['r', 'd'])) {
        let Some(end) = out[at..].find('}') else { break };
        let count: usize = out[at + 1..at + end].parse().unwrap_or(1);
        let letter = out.as_bytes()[at - 1] as char;
        let list: Vec<String> = (0..count).map(|_| format!("%{letter}{}", r.below(32))).collect();
        out.replace_range(at - 2..=at + end, &format!("{{{}}}", list.join(", ")));
    }
    out
}

/// A kernel of some instructions of `emulator/src/lower/coverage` on registers that hold addresses and small numbers.
fn kernel(isa: &[(String, Vec<String>)], r: &mut Random) -> String {
    let Some((target, lines)) = r.pick(isa) else { return String::new() };
    let mut body = String::new();
    let word = |r: &mut Random| match r.below(6) {
        0 => "sh".to_owned(),
        1 => format!("{}", 16 * r.below(64)),
        2 => "%tid.x".to_owned(),
        3 => format!("{}", r.next() as u32),
        _ => format!("{}", r.below(40)),
    };
    for i in 0..32 {
        body += &format!("mov.u32 %r{i}, {};\n", word(r));
        body += &match r.below(4) {
            0 => format!("mov.u64 %d{i}, {};\n", r.below(4096)),
            1 => format!("mov.u64 %d{i}, 0x{:x};\n", r.next() & 0xe000_3fff_3fff_3fff | 1 << 46),
            2 => format!("cvta.shared.u64 %d{i}, sh+{};\n", 16 * r.below(64)),
            _ => format!("add.u64 %d{i}, %in, {};\n", 16 * r.below(64)),
        };
        if i < 8 {
            body += &format!("mov.b16 %h{i}, {}; setp.lt.u32 %p{i}, %r{i}, 9;\n", r.below(300));
            body += &format!("mov.b128 %q{}, {{%d{i}, %d{i}}};\n", i % 4);
        }
    }
    body += "mov.b32 {%b0, %b1, %b2, %b3}, %r1;\n";
    for i in 0..=r.below(8) {
        let Some(line) = r.pick(lines) else { break };
        let guard = ["", "", "", "@%p1 ", "@!%p2 "][r.below(5)];
        body += &format!("{guard}{}\n", instruction(line, r).replace("done", &format!("L{i}")));
        body += &format!("L{i}:\n");
    }
    format!(
        ".version 9.2\n.target {target}\n.address_size 64\n.global .align 16 .b32 gl[16];
.func (.reg .b32 x) callee (.reg .b32 y) {{ mov.b32 x, y; ret; }}
.entry k (.param .u64 arg) {{
.reg .pred %p<8>; .reg .b8 %b<8>; .reg .b16 %h<16>; .reg .b32 %r<140>; .reg .b64 %d<32>; .reg .b64 %in;
.reg .b128 %q<4>; .shared .align 128 .b32 sh[1024]; .local .b32 lc[4];
callees: .calltargets callee; proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);
targets: .branchtargets done;
ld.param.u64 %in, [arg];
{body}done: ret; }}\n"
    )
}

/// Runs a kernel of [`kernel`].
fn run_kernel(text: &str, r: &mut Random) -> (u64, u64) {
    let Ok(module) = Module::parse("case.ptx", text) else { return (0, 0) };
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &[0x5a; 8192]);
    let launch = Launch {
        grid: [2, 1, 1],
        block: [[1, 32, 64, 128][r.below(4)], 1, 1],
        cluster: [1 + r.below(2) as u32, 1, 1],
        dynamic_smem: 0,
        args: vec![Arg::Pointer(memory.address(&input))],
    };
    (1, u64::from(module.run("k", &launch, &memory, &options(r)).is_ok()))
}

fn files(folder: &Path, ending: &str, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            files(&path, ending, out);
        } else if path.extension().is_some_and(|e| e == ending) {
            out.push(path);
        }
    }
    out.sort();
}

/// Resident bytes of this process, where the system says.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn options(r: &mut Random) -> Options<'static> {
    let schedules =
        [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Starve { warp: 0, seed: 2 }];
    Options {
        schedule: schedules[r.below(4)],
        tracking: [Tracking::Off, Tracking::HappensBefore, Tracking::Strict][r.below(3)],
        reconvergence: [Reconvergence::Eager, Reconvergence::Forced][r.below(2)],
        instruction_limit: BUDGET,
        threads: 1,
        ..Options::default()
    }
}

/// Runs a launch that is small enough.
fn run(file: &LaunchFile, r: &mut Random) -> bool {
    let ctas: u64 = file.launch.grid.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul);
    let bytes = file.buffers.iter().map(|b| b.bytes).fold(0, u64::saturating_add);
    if ctas > CTAS || bytes > BYTES {
        return false;
    }
    let (memory, _) = file.allocate();
    file.module.run(&file.kernel, &file.launch, &memory, &options(r)).is_ok()
}

fn main() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let seconds = number("SILUMIN_FUZZ_SECONDS", 60);
    let seed = number("SILUMIN_FUZZ_SEED", 1);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        folders =
            ["corpus", "ptx", "common", "../src/lower/coverage"].map(|folder| here.join(folder)).to_vec();
    }
    let (mut kernels, mut launches, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for folder in &folders {
        files(folder, "ptx", &mut kernels);
        files(folder, "toml", &mut launches);
        files(folder, "txt", &mut lists);
    }
    let read = |p: &PathBuf| std::fs::read_to_string(p).ok().map(|text| (p.clone(), text));
    let kernels: Vec<(PathBuf, String)> = kernels.iter().filter_map(read).collect();
    let launches: Vec<(PathBuf, String)> = launches.iter().filter_map(read).collect();
    // Targets and their instructions.
    let mut isa: Vec<(String, Vec<String>)> = Vec::new();
    for (_, text) in lists.iter().filter_map(read) {
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            match (line.strip_prefix("target "), isa.last_mut()) {
                (Some(target), _) => {
                    let target = target.split(' ').next().unwrap_or("sm_100a");
                    isa.push((target.to_owned(), Vec::new()));
                }
                (None, Some((_, list))) => list.push(line.to_owned()),
                _ => {}
            }
        }
    }
    println!("{} PTX files, {} launch files, {seconds} s, seed {seed}", kernels.len(), launches.len());
    let out = here.join("../target/fuzz");
    if let Err(e) = std::fs::create_dir_all(&out) {
        println!("{}: {e}", out.display());
        std::process::exit(2);
    }
    let began = Instant::now();
    // Seconds since the start at which the case began, for the watchdog; 0 between cases.
    let case = std::sync::Arc::new(AtomicU64::new(0));
    let watched = case.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let since = watched.load(Ordering::Relaxed);
            if since > 0 && began.elapsed().as_secs() > since + PATIENCE.as_secs() {
                println!("hang: the case in target/fuzz takes more than {PATIENCE:?}");
                std::process::exit(1);
            }
            if resident() > MEMORY {
                println!("memory: the case in target/fuzz takes more than {MEMORY} bytes");
                std::process::exit(1);
            }
        }
    });
    std::panic::set_hook(Box::new(|info| println!("{info}")));
    let mut r = Random(seed);
    let (mut cases, mut parsed, mut ran) = (0u64, 0u64, 0u64);
    while began.elapsed().as_secs() < seconds {
        let (Some(a), Some(b)) = (r.pick(&kernels), r.pick(&kernels)) else { break };
        let launch = r.pick(&launches);
        let seed = r.next();
        cases += 1;
        case.store(began.elapsed().as_secs().max(1), Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let r = &mut Random(seed);
            // A launch file of the corpus, its PTX mutated, or itself; or PTX alone.
            match launch {
                Some((path, text)) if r.below(2) > 0 => {
                    let ptx = path.with_extension("ptx");
                    let Some((_, source)) = kernels.iter().find(|(p, _)| *p == ptx) else { return (0, 0) };
                    let (source, text) = match r.below(4) {
                        0 => (source.clone(), mutate(text, text, r)),
                        _ => (mutate(source, &b.1, r), text.clone()),
                    };
                    let name = ptx.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                    let place = out.join("case.toml");
                    let written =
                        std::fs::write(out.join(&name), source).and_then(|()| std::fs::write(&place, &text));
                    if written.is_err() {
                        return (0, 0);
                    }
                    let file = LaunchFile::parse(&place, &text);
                    let ran = file.as_ref().is_ok_and(|f| run(f, r));
                    let _ = std::fs::remove_file(out.join(&name));
                    (u64::from(file.is_ok()), u64::from(ran))
                }
                _ if r.below(2) == 0 => {
                    let text = kernel(&isa, r);
                    let _ = std::fs::write(out.join("case.ptx"), &text);
                    run_kernel(&text, r)
                }
                _ => {
                    let text = mutate(&a.1, &b.1, r);
                    let _ = std::fs::write(out.join("case.ptx"), &text);
                    (u64::from(Module::parse("case.ptx", &text).is_ok()), 0)
                }
            }
        }));
        match outcome {
            Ok((p, x)) => (parsed, ran) = (parsed + p, ran + x),
            Err(_) => {
                println!("panic in case {cases} of the seed; its files are in {}", out.display());
                std::process::exit(1);
            }
        }
        case.store(0, Ordering::Relaxed);
    }
    println!("{cases} cases, {parsed} parsed, {ran} run, {} MiB resident", resident() >> 20);
}
