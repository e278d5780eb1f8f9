//! The verb `cache`: lists, verifies, prunes and exports the cache of compiled kernels.
//!
//! ```text
//! silumin cache list
//! silumin cache verify --remove
//! silumin cache prune 100M
//! silumin cache export model.kernels --target sm_90a
//! silumin cache list --bundle model.kernels
//! silumin cache time --shapes 64          (needs a GPU)
//! ```
//!
//! An export is one file, a bundle. With `CacheOptions::bundle(Bundle::open(file)?)` a program loads its kernels without
//! compiling.

use crate::print;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::{Value, json};
use silumin::runtime::cache::{Entry, PtxasCompiler};
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::toolchain::Ptxas;
use silumin::{
    Buckets, Bundle, Cache, CacheOptions, Device, DeviceOperands, Distribution, DualGemm, Shape, Spec, Warmup,
};

/// The command line.
#[derive(Parser)]
#[command(about = "Lists, verifies, prunes and exports the cache of compiled kernels, and times its use")]
pub struct Options {
    /// The cache's folder; by default SILUMIN_CACHE_DIR, or else the platform's cache folder.
    #[arg(long, global = true)]
    folder: Option<PathBuf>,
    /// Print one JSON document instead of lines; `time` has none.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Task,
}

/// What the verb does.
#[derive(Subcommand)]
pub enum Task {
    /// Lists kernels, least recently used first.
    List {
        /// List this bundle instead of the folder.
        #[arg(long)]
        bundle: Option<PathBuf>,
        /// Also print the compiler's log of each kernel.
        #[arg(long)]
        logs: bool,
    },
    /// Reads every entry completely, and fails if one is damaged.
    Verify {
        /// Remove damaged entries.
        #[arg(long)]
        remove: bool,
    },
    /// Removes leftovers of dead processes, and the least recently used kernels until at most LIMIT bytes are left.
    Prune {
        /// Limit in bytes; K, M and G stand for powers of 1024.
        #[arg(value_parser = bytes)]
        limit: u64,
    },
    /// Writes kernels to one file, a bundle, to ship with a model.
    Export {
        /// The bundle to write.
        file: PathBuf,
        /// Only kernels for this target, such as sm_90a.
        #[arg(long)]
        target: Option<String>,
        /// Only kernels whose names contain this text.
        #[arg(long)]
        kernel: Option<String>,
    },
    /// Times cold and warm starts on a GPU, in a new folder inside the cache's folder.
    Time(Time),
}

/// Flags of `cache time`.
#[derive(Args)]
pub struct Time {
    /// Number of the GPU.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Number of shapes; their M is 16, 32, 48 and so on.
    #[arg(long, default_value_t = 16)]
    shapes: u32,
    /// N and K of all shapes.
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [4096, 7168])]
    weights: Vec<u32>,
    /// Formats, written as in `dual_gemm!`.
    #[arg(long, default_value = "bf16 -> bf16")]
    formats: String,
    /// Compile with ptxas instead of the driver.
    #[arg(long)]
    ptxas: bool,
    /// Threads that compile; 0 is one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(place) => text.split_at(place),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("`{unit}` is no unit: use K, M or G, or none")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is no number of bytes: 100M for example"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than any folder has"))
}

/// A result whose error is only shown to the user.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// The flags.
#[must_use]
pub fn command() -> clap::Command {
    Options::command().name("cache")
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    match Options::from_arg_matches(matches) {
        Ok(options) => crate::status(execute(options, &mut print::Out)),
        Err(error) => error.exit(),
    }
}

/// Runs the task; `false` if it found damage.
pub fn execute(Options { folder, json, command }: Options, out: &mut impl Write) -> Outcome<bool> {
    let folder =
        folder.or_else(Cache::default_folder).ok_or("there is no home folder: name one with --folder")?;
    if json {
        let (document, well) = document(&folder, command)?;
        writeln!(out, "{document:#}")?;
        return Ok(well);
    }
    match command {
        Task::List { bundle: Some(bundle), logs } => {
            for entry in Bundle::open(bundle)?.iter() {
                list(out, entry, None, logs)?;
            }
        }
        Task::List { bundle: None, logs } => {
            let (cache, mut total) = (existing(&folder)?, 0);
            for found in cache.list()? {
                total += found.bytes;
                match cache.read(&found) {
                    Ok(entry) => list(out, &entry, Some(found.used), logs)?,
                    Err(reason) => writeln!(out, "{}  {reason}", short(&found.key.to_string()))?,
                }
            }
            writeln!(out, "{total} bytes in {}", folder.display())?;
        }
        Task::Verify { remove } => {
            let (cache, mut damaged) = (existing(&folder)?, 0);
            let all = cache.list()?;
            for found in &all {
                if let Err(reason) = cache.read(found) {
                    damaged += 1;
                    writeln!(out, "{}: {reason}", found.path.display())?;
                    if remove {
                        cache.remove(found.key)?;
                    }
                }
            }
            let fate = if remove { " and removed" } else { "" };
            writeln!(out, "{} entries, {damaged} damaged{fate}", all.len())?;
            return Ok(damaged == 0 || remove);
        }
        Task::Prune { limit } => {
            let gone = existing(&folder)?.prune(limit)?;
            writeln!(out, "{gone} entries removed")?;
        }
        Task::Export { file, target, kernel } => {
            let bundle = export(&folder, &file, target.as_deref(), kernel.as_deref())?;
            writeln!(out, "{} kernels, {} bytes: {}", bundle.len(), file.metadata()?.len(), file.display())?;
            writeln!(out, "for Bundle::open_trusted: {}", bundle.hash())?;
        }
        Task::Time(options) => time(out, &folder, &options)?,
    }
    Ok(true)
}

/// Runs the task; what it found and did as a document, and whether it found no damage.
fn document(folder: &Path, command: Task) -> Outcome<(Value, bool)> {
    let entry = |entry: &Entry, used: Option<SystemTime>| {
        let age = used.and_then(|used| used.elapsed().ok()).map(|age| age.as_secs());
        json!({
            "key": entry.key.to_string(), "bytes": entry.cubin.len(), "target": entry.target, "kernel": entry.kernel,
            "compiler": entry.compiler.name, "compiler_version": entry.compiler.version, "unused_for_seconds": age,
        })
    };
    Ok(match command {
        Task::List { bundle: Some(bundle), .. } => {
            let kernels: Vec<Value> = Bundle::open(bundle)?.iter().map(|of| entry(of, None)).collect();
            (json!({ "kernels": kernels }), true)
        }
        Task::List { bundle: None, .. } | Task::Verify { .. } => {
            let remove = matches!(command, Task::Verify { remove: true });
            let cache = existing(folder)?;
            let (mut kernels, mut damaged, mut bytes) = (Vec::new(), Vec::new(), 0);
            for found in cache.list()? {
                bytes += found.bytes;
                match cache.read(&found) {
                    Ok(of) => kernels.push(entry(&of, Some(found.used))),
                    Err(reason) => {
                        damaged.push(
                            json!({ "file": found.path.display().to_string(), "reason": reason.to_string() }),
                        );
                        if remove {
                            cache.remove(found.key)?;
                        }
                    }
                }
            }
            let well = damaged.is_empty() || remove || matches!(command, Task::List { .. });
            let folder = folder.display().to_string();
            (
                json!({ "folder": folder, "bytes": bytes, "kernels": kernels, "damaged": damaged, "removed": remove }),
                well,
            )
        }
        Task::Prune { limit } => (json!({ "removed": existing(folder)?.prune(limit)? }), true),
        Task::Export { file, target, kernel } => {
            let bundle = export(folder, &file, target.as_deref(), kernel.as_deref())?;
            let (bytes, hash) = (file.metadata()?.len(), bundle.hash().to_string());
            (
                json!({ "file": file.display().to_string(), "kernels": bundle.len(), "bytes": bytes, "hash": hash }),
                true,
            )
        }
        Task::Time(_) => return Err("--json: `cache time` prints a log of times and has no document".into()),
    })
}

/// Writes the kernels of a target, and of names that contain a text, to a bundle.
fn export(folder: &Path, file: &Path, target: Option<&str>, kernel: Option<&str>) -> Outcome<Bundle> {
    let cache = existing(folder)?;
    let wanted = |entry: &Entry| {
        target.is_none_or(|target| *target == *entry.target)
            && kernel.is_none_or(|kernel| entry.kernel.contains(kernel))
    };
    // A damaged entry is left out: the program would compile that one.
    let entries = cache.list()?.into_iter().filter_map(|found| cache.read(&found).ok()).filter(wanted);
    let bundle = Bundle::new(entries);
    bundle.save(file)?;
    Ok(bundle)
}

/// Opens the cache in an existing folder; these commands create none.
fn existing(folder: &Path) -> Outcome<Cache> {
    match folder.is_dir() {
        true => Ok(Cache::open(folder)),
        false => Err(format!(
            "there is no cache in {}: load kernels first, or name another with --folder",
            folder.display()
        )
        .into()),
    }
}

fn short(key: &str) -> &str {
    &key[..16]
}

fn list(out: &mut impl Write, entry: &Entry, used: Option<SystemTime>, logs: bool) -> io::Result<()> {
    let age = used.and_then(|used| used.elapsed().ok()).map_or("-".to_owned(), |age| match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    });
    let (key, compiler) = (entry.key.to_string(), &entry.compiler);
    writeln!(
        out,
        "{}  {:>8} B  {age:>7}  {:8} {} {}{}  {}",
        short(&key),
        entry.cubin.len(),
        entry.target,
        compiler.name,
        compiler.version,
        if compiler.options.is_empty() { String::new() } else { format!(" {}", compiler.options) },
        entry.kernel
    )?;
    for line in entry.log.lines().filter(|_| logs || entry.cubin.is_empty()) {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

#[cfg(feature = "cuda")]
fn gpu(number: usize) -> Outcome<Device> {
    Ok(Device::cuda(number)?)
}

/// This build has none.
#[cfg(not(feature = "cuda"))]
fn gpu(number: usize) -> Outcome<Device> {
    Err(format!("GPU {number}: this program was built without the feature `cuda`").into())
}

fn time(out: &mut impl Write, folder: &Path, options: &Time) -> Outcome<()> {
    let process = Instant::now();
    if options.threads > 0 {
        rayon::ThreadPoolBuilder::new().num_threads(options.threads).build_global()?;
    }
    let device = gpu(options.device)?;
    writeln!(out, "{device}, {} threads", rayon::current_num_threads())?;
    writeln!(out, "{:44} {:9.2} ms", "driver and context", ms(process.elapsed()))?;
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse()?, &[device.arch()])?;
    spec.formats = formats(&options.formats)?;
    let gemm = DualGemm::new(spec);
    let small = Shape::new(16, 256, 256);
    let inputs = DualGemmInputs::generate_for(small, gemm.spec().formats, Distribution::Benchmark, 1)?;
    let start = Instant::now();
    let kernel = gemm.load(&device.clone().with_cache(CacheOptions::new().open()), small)?;
    let operands = DeviceOperands::upload(&device, &inputs)?;
    kernel.launch(&device.stream(), &operands.args(&[]))?;
    drop(operands.c.download()?);
    writeln!(out, "{:44} {:9.2} ms", "a small kernel: made, compiled, run, read", ms(start.elapsed()))?;
    writeln!(out, "{:44} {:9.2} ms", "since the process began", ms(process.elapsed()))?;
    let check = kernel.verify_on(&inputs, &[])?.check;
    writeln!(out, "its result: {}", if check.pass { "right" } else { "WRONG" })?;
    let [n, k] = options.weights[..] else { return Err("--weights takes N,K".into()) };
    let shapes: Vec<Shape> = (1..=options.shapes).map(|step| Shape::new(16 * step, n, k)).collect();
    let folder = folder.join(format!("time-{}", std::process::id()));
    let ptxas = options.ptxas.then(|| PtxasCompiler::new(Ptxas::find()?)).transpose()?;
    let open = |folder: Option<&Path>| {
        let options = folder.map_or(CacheOptions::new(), |folder| CacheOptions::new().folder(folder));
        ptxas.iter().fold(options, |options, ptxas| options.ptxas(ptxas.clone())).open()
    };

    let start = Instant::now();
    let texts: Vec<usize> = shapes
        .iter()
        .map(|shape| Ok(gemm.kernel(*shape, device.arch())?.ptx.len()))
        .collect::<Outcome<_>>()?;
    let each = ms(start.elapsed()) / texts.len() as f64;
    let mean = texts.iter().sum::<usize>() / texts.len();
    writeln!(out, "{:44} {each:9.2} ms, {mean} bytes", "line to PTX, one thread, each")?;

    let start = Instant::now();
    drop(gemm.load(&device, shapes[0])?);
    writeln!(out, "{:44} {:9.2} ms", "first kernel, by the driver, no cache", ms(start.elapsed()))?;
    let few = &shapes[..shapes.len().min(8)];
    let start = Instant::now();
    for shape in few {
        drop(gemm.load(&device, *shape)?);
    }
    let each = ms(start.elapsed()) / few.len() as f64;
    writeln!(out, "{:44} {each:9.2} ms", "one thread, by the driver, no cache, each")?;
    let one_thread = device.clone().with_cache(open(None));
    let start = Instant::now();
    for shape in few {
        drop(gemm.load(&one_thread, *shape)?);
    }
    let each = ms(start.elapsed()) / few.len() as f64;
    writeln!(out, "{:44} {each:9.2} ms", "one thread, through a cache in memory, each")?;

    let mut all = |what: &str, cache: Cache| -> Outcome<()> {
        let before = cache.stats();
        let device = device.clone().with_cache(cache.clone());
        let start = Instant::now();
        let kernels = gemm.warmup(&device, &shapes)?;
        let took = ms(start.elapsed());
        let after = cache.stats();
        let (compiled, read) = (after.compiled - before.compiled, after.read - before.read);
        writeln!(
            out,
            "{:44} {took:9.2} ms ({compiled} compiled, {} by loading, {read} read, {} bundled)",
            format!("{} shapes, {what}", kernels.len()),
            after.by_loading - before.by_loading,
            after.bundled - before.bundled,
        )?;
        Ok(())
    };
    all("without a folder", open(None))?;
    all("into an empty folder", open(Some(&folder)))?;
    for _ in 0..3 {
        all("from the folder", open(Some(&folder)))?;
    }
    let cache = Cache::open(&folder);
    let entries: Vec<Entry> =
        cache.list()?.iter().map(|found| cache.read(found)).collect::<Result<_, _>>()?;
    let log = entries.first().map_or_else(String::new, |entry| entry.log.clone());
    let bundle = Bundle::new(entries);
    let file = folder.join("bundle");
    // Kernels that the driver compiled as it loaded them are its own.
    if bundle.len() == shapes.len() {
        bundle.save(&file)?;
        let start = Instant::now();
        let bundle = Bundle::open(&file)?;
        let opened = ms(start.elapsed());
        all("from a bundle, compiling off", CacheOptions::new().bundle(bundle).compiling(false).open())?;
        let size = file.metadata()?.len();
        writeln!(out, "{:44} {opened:9.2} ms, {size} bytes", "the bundle itself")?;
    }
    std::fs::remove_dir_all(&folder)?;
    let kernels = Warmup::of(&gemm).weights(n, k).buckets(Buckets::powers_of_two(64)).run(&device)?;
    let (start, rounds) = (Instant::now(), 1_000_000u32);
    let mut rows = 0u64;
    for round in 0..rounds {
        rows += u64::from(kernels.for_problem(1 + round % 64, n, k)?.kernel().problem.shape.m);
    }
    let each = 1e6 * ms(start.elapsed()) / f64::from(rounds);
    writeln!(out, "{:44} {each:9.1} ns ({rows} rows)", "a look-up by M among buckets")?;
    writeln!(out, "what the compiler said of one:\n{log}")?;
    Ok(())
}

/// Parses `a, b -> c`, or `a -> c` for equal formats of A and B.
fn formats(text: &str) -> Outcome<silumin::Formats> {
    let (operands, output) = text.split_once("->").ok_or("formats are like `bf16 -> bf16`")?;
    let (a, b) = operands.split_once(',').unwrap_or((operands, operands));
    let [a, b] = [a, b].map(|format| format.trim().parse());
    let formats = silumin::Formats { a: a?, b: b?, c: output.trim().parse()?, ..Default::default() };
    Ok(formats)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
