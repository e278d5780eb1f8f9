//! Measures how soon kernels are ready: from the DSL to PTX, to machine code, from disk, to a launch. Prints a
//! Markdown table with a row for each bar of the runtime.
//!
//! What depends on caches is measured in separate processes. Each starts with a folder for our cache and one for the
//! driver's (`CUDA_CACHE_PATH`), which are empty or filled by an earlier process. The program itself opens the device
//! only afterwards, for the other rows. On the emulated driver the rows only show that everything works.

use crate::launches;
use crate::raw;
use crate::timing::{median, quantile};
use serde::{Deserialize, Serialize};
use silumin_codegen::problem::{Formats, OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::cache::Cache;
use silumin_runtime::device::Device;
use silumin_runtime::gemm::{Args, DualGemm};
use silumin_runtime::regular_file::read_text;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Number of shapes in the rows about many: M of 16, 32 and so on to 1024.
const MANY: u32 = 64;
const WEIGHTS: [u32; 2] = [4096, 7168];
/// The shape in the rows about one kernel. Every element of A is 2^-6 and every weight 1, so C is silu(64) * 64.
const ONE: Shape = Shape::new(16, 1024, 4096);
/// Kernels that the driver compiles one after the other.
const COMPILED: u32 = 15;
/// Emissions of each of the many shapes.
const EMISSIONS: usize = 5;

/// Size limit of the PTX for `--beside`, in bytes.
const PTX_LIMIT: u64 = 64 << 20;

/// The measurement that a child makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One kernel: generated, compiled, launched, result read.
    First,
    /// Many kernels: generated and loaded by a warm-up.
    Many,
}

impl Part {
    const ALL: [(Part, &'static str); 2] = [(Part::First, "first"), (Part::Many, "many")];

    /// Parses the name on the command line.
    pub fn read(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(part, _)| part).ok_or_else(|| format!("`{text}` is no part of the table"))
    }

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(part, _)| *part == self).map_or("", |(_, name)| name)
    }
}

/// A child's result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Found {
    /// Description of the device.
    device: String,
    /// Milliseconds until the driver and its context were ready.
    opened_ms: f64,
    /// Milliseconds of the measurement itself.
    took_ms: f64,
    /// Whether every element of C was right; `true` if nothing was launched.
    right: bool,
    compiled: u64,
    by_loading: u64,
    read: u64,
    threads: usize,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: String,
    /// Bar and aim in milliseconds, if they exist.
    bar_ms: Option<[f64; 2]>,
    times_ms: Vec<f64>,
    how: String,
}

/// Formats any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn gemm(device: &Device) -> Result<DualGemm, String> {
    let arch = device.arch();
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().map_err(words)?, &[arch]).map_err(words)?;
    spec.formats = Formats { c: OutputFormat::Bf16, ..Formats::usual(arch) };
    Ok(DualGemm::new(spec))
}

fn many() -> Vec<Shape> {
    (1..=MANY).map(|step| Shape::new(16 * step, WEIGHTS[0], WEIGHTS[1])).collect()
}

/// A child's work.
pub fn child(number: usize, part: Part) -> Result<(), String> {
    let start = Instant::now();
    let cache = Cache::open_default();
    let device = Device::cuda(number).map_err(words)?.with_cache(cache.clone());
    let opened_ms = ms(start);
    let gemm = gemm(&device)?;
    let start = Instant::now();
    let right = match part {
        Part::First => first(&device, &gemm)?,
        Part::Many => {
            let kernels = gemm.warmup(&device, &many()).map_err(words)?;
            kernels.len() == MANY as usize
        }
    };
    let (took_ms, stats) = (ms(start), cache.stats());
    let found = Found {
        device: device.to_string(),
        opened_ms,
        took_ms,
        right,
        compiled: stats.compiled,
        by_loading: stats.by_loading,
        read: stats.read,
        threads: rayon::current_num_threads(),
    };
    println!("{}", serde_json::to_string(&found).map_err(words)?);
    Ok(())
}

/// Generates, loads and launches a kernel, reads C, and returns whether every element is right.
fn first(device: &Device, gemm: &DualGemm) -> Result<bool, String> {
    let kernel = gemm.load(device, ONE).map_err(words)?;
    let elements = |rows: u32| rows as usize * ONE.k as usize;
    let scaled = gemm.spec().formats.a.spec().scales.is_some();
    // Codes of A and of weights; two e2m1 of 1 a byte, or bf16 of 2^-6 and of 1.
    let fill = |rows: u32, sixteen: u16| match scaled {
        true => vec![0x22; elements(rows) / 2],
        false => sixteen.to_le_bytes().repeat(elements(rows)),
    };
    // Scale factors, e4m3 of 2^-6 and of 1, for every block of 16; rows are padded to blocks of 128.
    let scales = |rows: u32, code: u8| vec![code; rows.next_multiple_of(128) as usize * ONE.k as usize / 16];
    let a = device.upload(&fill(ONE.m, 0x3C80)).map_err(words)?;
    let b = device.upload(&fill(ONE.n, 0x3F80)).map_err(words)?;
    let c = device.alloc((ONE.m * ONE.n * 2) as usize).map_err(words)?;
    let (sfa, sfb) = match scaled {
        true => (
            Some(device.upload(&scales(ONE.m, 0x08)).map_err(words)?),
            Some(device.upload(&scales(ONE.n, 0x38)).map_err(words)?),
        ),
        false => (None, None),
    };
    let args =
        Args { sfa: sfa.as_ref(), sfb1: sfb.as_ref(), sfb2: sfb.as_ref(), ..Args::new(&a, &b, &b, &c) };
    kernel.launch(&device.stream(), &args).map_err(words)?;
    let result = c.download().map_err(words)?;
    // 4096 in bf16.
    Ok(result.chunks_exact(2).all(|element| element == [0x80, 0x45]))
}

/// Starts a child with these folders. Returns its result, and the milliseconds from its start to its answer.
fn ask(number: usize, part: Part, folder: &Path) -> Result<(Found, f64), String> {
    let program = std::env::current_exe().map_err(words)?;
    let start = Instant::now();
    let mut child = Command::new(program)
        .args(["--ready-part", part.name(), "--device", &number.to_string()])
        .env("SILUMIN_CACHE_DIR", folder.join("ours"))
        .env("CUDA_CACHE_PATH", folder.join("driver"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(words)?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(words)?;
    }
    let took = ms(start);
    let status = child.wait().map_err(words)?;
    let found: Found = serde_json::from_str(&line)
        .map_err(|error| format!("a process for the table said `{}` ({error}); {status}", line.trim()))?;
    match found.right {
        true => Ok((found, took)),
        false => Err("the first kernel's result is wrong".to_owned()),
    }
}

/// Measures all rows, prints the table, and writes the times.
pub fn run(number: usize, reps: usize, json: Option<&Path>, beside: Option<&Path>) -> Result<bool, String> {
    let reps = reps.clamp(1, 41);
    let few = reps.div_ceil(3);
    let fresh = || tempfile::tempdir().map_err(words);
    // Before minutes of measurements: what can't be read ends the program at once.
    let read = |path| read_text(path, PTX_LIMIT).map(|text| (path, text));
    let beside = beside.map(read).transpose().map_err(|e| format!("--beside: {e}"))?;
    let mut rows = Vec::new();
    let (mut cold, mut opened, mut own) = (Vec::new(), Vec::new(), Vec::new());
    let mut device_name = String::new();
    for _ in 0..reps {
        let folder = fresh()?;
        let (found, took) = ask(number, Part::First, folder.path())?;
        if found.compiled + found.by_loading != 1 || found.read != 0 {
            return Err(format!("a first start was to compile one kernel: {found:?}"));
        }
        cold.push(took);
        opened.push(found.opened_ms);
        own.push(found.took_ms);
        device_name = found.device;
    }
    rows.push(Row {
        what: "cold first launch of one kernel, process start to result, cache empty".into(),
        bar_ms: Some([600.0, 350.0]),
        times_ms: cold,
        how: format!(
            "{reps} processes; the driver and its context {:.0} ms of it, made, compiled, run and read {:.0} ms; {ONE}",
            median(&opened),
            median(&own)
        ),
    });
    let (mut all, mut again) = (Vec::new(), Vec::new());
    let (mut last, mut warm) = (Found::default(), Found::default());
    for _ in 0..few {
        let folder = fresh()?;
        last = ask(number, Part::Many, folder.path())?.0;
        all.push(last.took_ms);
        for _ in 0..3 {
            warm = ask(number, Part::Many, folder.path())?.0;
            again.push(warm.took_ms);
        }
        if warm.compiled != 0 {
            return Err(format!("a second start compiled: {warm:?}"));
        }
    }
    let counts = |found: &Found| {
        format!(
            "{} compiled, {} by loading, {} read, {} threads",
            found.compiled, found.by_loading, found.read, found.threads
        )
    };
    let [n, k] = WEIGHTS;
    rows.push(Row {
        what: format!("{MANY} shapes cold"),
        bar_ms: Some([3000.0, 1500.0]),
        times_ms: all,
        how: format!("{few} processes; M of 16 to {}, N {n}, K {k}; {}", 16 * MANY, counts(&last)),
    });
    rows.push(Row {
        what: format!("{MANY} shapes from disk"),
        bar_ms: Some([30.0, 8.0]),
        times_ms: again,
        how: format!("{} processes; {}", 3 * few, counts(&warm)),
    });

    // From here on in this process. The driver keeps nothing: each text is compiled once.
    let device = Device::cuda(number).map_err(words)?;
    let gemm = gemm(&device)?;
    let mut emitted = Vec::new();
    for shape in many() {
        for _ in 0..EMISSIONS {
            let start = Instant::now();
            // The line, too, each time.
            let gate = "silu(A @ B1) * (A @ B2)".parse().map_err(words)?;
            let mut spec = Spec::new(gate, &[device.arch()]).map_err(words)?;
            spec.formats = gemm.spec().formats;
            let kernel = spec.kernel(shape, device.arch()).map_err(words)?;
            emitted.push(ms(start));
            if kernel.ptx.is_empty() {
                return Err("a kernel without text".to_owned());
            }
        }
    }
    rows.insert(
        0,
        Row {
            what: "DSL to PTX".into(),
            bar_ms: Some([1.0, 0.2]),
            times_ms: emitted,
            how: format!("{MANY} shapes, {EMISSIONS} times each, one thread: parsed, validated, rendered"),
        },
    );
    let emulated = device.facts().name.starts_with("emulated");
    let cost = launches::look_up_and_launch(&device, 200, 41, emulated)?;
    let beside_empty = format!("an empty kernel by cuLaunchKernel takes {:.2} us", cost.empty_ns / 1e3);
    rows.push(Row {
        what: "look-up + launch, host".into(),
        bar_ms: Some([0.003, 0.0015]),
        times_ms: cost.batches_ns.iter().map(|ns| ns / 1e6).collect(),
        how: format!(
            "{} batches of 200, one stream{}; {beside_empty}",
            cost.batches_ns.len(),
            if emulated { ", captured and not run" } else { "" }
        ),
    });
    let stream = device.stream();
    let cuda = stream.cuda().ok_or("the device is no GPU")?;
    let mut compiled = Vec::new();
    for step in 0..COMPILED {
        let kernel = gemm.kernel(Shape::new(16 + 24 * step, n, k), device.arch()).map_err(words)?;
        compiled.push(raw::compile(cuda, &unique(&kernel.ptx))?);
    }
    rows.push(Row {
        what: "driver JIT of one of our kernels".into(),
        bar_ms: Some([90.0, 45.0]),
        times_ms: compiled,
        how: format!("cuModuleLoadDataEx of {COMPILED} texts that the driver has never seen, one thread"),
    });
    if let Some((path, text)) = beside {
        let times: Result<Vec<f64>, String> =
            (0..few.max(3)).map(|_| raw::compile(cuda, &unique(&text))).collect();
        rows.push(Row {
            what: format!(
                "driver JIT of {}",
                path.file_name().map_or_else(String::new, |name| name.display().to_string())
            ),
            bar_ms: None,
            times_ms: times?,
            how: "the same way".into(),
        });
    }
    println!("{device_name}, driver {}\n", device.facts().driver);
    println!("| what | bar | aim | here: median (10th to 90th percentile) | of |\n|---|---|---|---|---|");
    for row in &rows {
        let [bar, aim] =
            row.bar_ms.map_or([String::from("-"), String::from("-")], |[bar, aim]| [time(bar), time(aim)]);
        let [low, middle, high] =
            [quantile(&row.times_ms, 0.1), median(&row.times_ms), quantile(&row.times_ms, 0.9)].map(time);
        println!("| {} | {bar} | {aim} | {middle} ({low} to {high}) | {} |", row.what, row.how);
    }
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&rows).map_err(words)?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(true)
}

/// Changes a text without changing its meaning, so that it is in no cache.
fn unique(ptx: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{ptx}\n// {} {}\n", std::process::id(), now.map_or(0, |now| now.as_nanos()))
}

/// Milliseconds, in a suitable unit.
fn time(ms: f64) -> String {
    match ms {
        ms if ms < 0.1 => format!("{:.2} us", ms * 1e3),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}
