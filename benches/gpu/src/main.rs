//! Checks and times silumin's kernels on a GPU. One binary, which needs an NVIDIA driver and nothing else: see README.md
//! beside it.
//!
//! * `main.rs`: the flags, the order of the jobs, what is shown and written.
//! * `job.rs`: formats, shapes and knobs as text.
//! * `parent.rs`, `child.rs`, `row.rs`: processes, and what they say to each other.
//! * `problem.rs`: a problem on the device.
//! * `inputs.rs`, `reference.rs` and `reference.ptx`, `compare.rs`: whether a kernel is right.
//! * `timing.rs`: how fast it is.
//! * `ready.rs`: how soon kernels are ready, cold and warm; `launches.rs`: what a launch costs the host; `stress.rs`: many threads, streams and kernels at once.
//! * `experts.rs`: the experts of a mixture's layer.
//! * `mlp.rs`: the MLP block on one GPU, and on several; `mlp_check.rs`: compares its results with f64.
//! * `machine.rs`, `read.ptx`, `clock.ptx`: how fast memory is, and the clock.
//! * `raw.rs`: the driver's calls that the runtime has no need of.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

#[macro_use]
extern crate silumin_cli;

mod child;
mod compare;
mod experts;
mod inputs;
mod job;
mod launches;
mod machine;
mod mlp;
mod mlp_check;
mod parent;
mod problem;
mod raw;
mod ready;
mod reference;
mod row;
mod stress;
mod timing;

use clap::Parser;
use job::Job;
use row::{Machine, Row, Status};
use serde::Serialize;
use silumin_runtime::regular_file::read_text;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Checks and times silumin's kernels on a GPU.
#[derive(Parser)]
struct Flags {
    /// Formats, separated by commas: bf16, f16, e4m3, nvfp4, mxfp4, nvfp4w (bf16 x nvfp4), nvfp4w_repacked, mxfp4w, mxfp4w_repacked, or A*B->C.
    #[arg(long, default_value = "bf16")]
    format: String,
    /// Shapes, separated by commas: MxNxK (with :l4 for a batch, :g8 for groups), names of peers' shapes, or `peers`
    /// for all of them.
    #[arg(long, default_value = "gpumode-1")]
    shapes: String,
    /// Knobs of a kernel, such as `tile=128x256x64 stages=4`; alternatives as in `stages=3|4` give a kernel each. May
    /// be given several times.
    #[arg(long)]
    knobs: Vec<String>,
    /// A file of knobs, one configuration per line.
    #[arg(long)]
    sweep: Option<PathBuf>,
    /// The gate.
    #[arg(long, default_value = "silu(A @ B1) * (A @ B2)")]
    gate: String,
    /// A run-time scalar of the gate, NAME=VALUE.
    #[arg(long)]
    scalar: Vec<String>,
    /// Distribution of the operands: peers, benchmark or full.
    #[arg(long, default_value = "peers")]
    inputs: String,
    /// Seed of the operands; by default a new one each time.
    #[arg(long)]
    seed: Option<u64>,
    /// The GPU's number.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Check the kernels without timing them.
    #[arg(long)]
    check_only: bool,
    /// Add line information to the machine code, for Nsight Compute
    #[arg(long)]
    line_info: bool,
    /// Time all kernels of a shape in turns, and report their ratios to the first.
    #[arg(long)]
    interleave: bool,
    /// After all kernels of a shape, time this many of the fastest in turns.
    #[arg(long, default_value_t = 0)]
    top: usize,
    /// Timed replays.
    #[arg(long, default_value_t = 21)]
    reps: usize,
    /// Target duration of a graph in milliseconds.
    #[arg(long, default_value_t = 2.0)]
    graph_ms: f64,
    /// Limit of the relative Frobenius error, instead of the format's.
    #[arg(long)]
    limit: Option<f64>,
    /// Peak rate for the floor, in 10^12 operations per second; by default the one marketed for an H200.
    #[arg(long)]
    peak: Option<f64>,
    /// Number of kernels that the driver compiles at a time; more than 1 makes the `load` time of each longer.
    #[arg(long, default_value_t = 1)]
    load_threads: usize,
    /// Folder for launch files of right kernels, a subfolder for each.
    #[arg(long)]
    emit: Option<PathBuf>,
    /// Do not measure read bandwidth.
    #[arg(long)]
    no_bandwidth: bool,
    /// Seconds without output after which a child is ended.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// File for the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Instead of timing kernels, measure the host's cost of a launch, with this many launches per batch.
    #[arg(long, value_name = "LAUNCHES", num_args = 0..=1, default_missing_value = "200")]
    launch_cost: Option<usize>,
    /// Instead of timing kernels, measure how soon they are ready, and print the times of starts and launches as a
    /// Markdown table. `--reps` is the number of processes started.
    #[arg(long)]
    runtime_table: bool,
    /// PTX for one more row of that table: another compiler's kernel for the same work.
    #[arg(long, value_name = "PTX")]
    beside: Option<PathBuf>,
    /// Launch 64 kernels from 8 threads on 4 streams each for this many seconds, and compare all results.
    #[arg(long, value_name = "SECONDS")]
    stress: Option<f64>,
    /// Instead of timing kernels, time the MLP block of these widths, HIDDENxFEATURES, separated by commas, with weights in
    /// the formats of `--format`.
    #[arg(long, value_name = "BLOCKS")]
    mlp: Option<String>,
    /// Instead of timing kernels, time the experts of these layers, HIDDENxFEATURESxEXPERTSxTOP_K, separated by commas, with
    /// weights in the formats of `--format`.
    #[arg(long, value_name = "LAYERS")]
    experts: Option<String>,
    /// GPUs that share a block's weights, with `--mlp`.
    #[arg(long, default_value_t = 1)]
    ranks: usize,
    /// Numbers of tokens, separated by commas, with `--mlp` and `--experts`.
    #[arg(long, default_value = "1,16,128,1024,8192")]
    tokens: String,
    /// Rows that kernels are made for with `--mlp`, separated by commas, if not those of the tokens.
    #[arg(long)]
    buckets: Option<String>,
    /// Calls that are compared with the first: on several GPUs with `--mlp`, for each number of tokens with `--experts`.
    #[arg(long, default_value_t = 10_000)]
    forwards: u64,
    /// Internal: a start to be measured.
    #[arg(long, hide = true)]
    ready_part: Option<String>,
    /// Internal: read a job from standard input.
    #[arg(long, hide = true)]
    child: bool,
}

/// Size limit of a `--sweep` file in bytes: some hundred thousand kernels.
const LIST_LIMIT: u64 = 16 << 20;

/// The file for `--json`.
#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    peak_tflops: Option<f64>,
    rows: &'a [Row],
}

fn main() -> ExitCode {
    silumin_cli::print::end_with_reader();
    let flags = Flags::parse();
    if flags.child {
        return child();
    }
    let json = flags.json.as_deref();
    if let Some(blocks) = &flags.mlp {
        let (ranks, formats, tokens, forwards) = (flags.ranks, &flags.format, &flags.tokens, flags.forwards);
        let buckets = flags.buckets.as_deref();
        return ended(mlp::run(&mlp::Request { ranks, blocks, formats, tokens, buckets, forwards, json }));
    }
    if let Some(layers) = &flags.experts {
        let (formats, tokens, forwards) = (&flags.format, &flags.tokens, flags.forwards);
        return ended(experts::run(&experts::Request { layers, formats, tokens, forwards, json }));
    }
    ended(match (&flags.ready_part, flags.runtime_table, flags.launch_cost, flags.stress) {
        (Some(part), ..) => {
            ready::Part::read(part).and_then(|part| ready::child(flags.device, part)).map(|()| true)
        }
        (_, true, ..) => ready::run(flags.device, flags.reps, json, flags.beside.as_deref()),
        (_, _, Some(launches), _) => launches::run(flags.device, launches.max(1), flags.reps.max(1), json),
        (.., Some(seconds)) => stress::run(flags.device, seconds),
        _ => run(&flags),
    })
}

fn ended(done: Result<bool, String>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn child() -> ExitCode {
    let mut text = String::new();
    let job = std::io::stdin().read_to_string(&mut text).map_err(|e| e.to_string());
    let job = job.and_then(|_| serde_json::from_str::<Job>(&text).map_err(|e| e.to_string()));
    match job.and_then(|job| child::run(&job)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            child::say(&row::Message::Note(why));
            ExitCode::from(1)
        }
    }
}

/// Marketed peak of an H200 without sparsity, in 10^12 operations per second, for the widest operand. Formats without
/// MMAs of their own are multiplied in 16 bits.
fn marketed_peak(format: &str) -> Option<f64> {
    let formats = job::formats(format).ok()?;
    match formats.a.spec().element_bits.max(formats.b.spec().element_bits) {
        8 => Some(1979.0),
        _ => Some(989.5),
    }
}

fn scalars(flags: &Flags) -> Result<Vec<(String, f32)>, String> {
    let read = |text: &String| {
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("--scalar: `{text}` is not NAME=VALUE"))?;
        let value = value.parse().map_err(|_| format!("--scalar: `{value}` is no number"))?;
        Ok((name.to_owned(), value))
    };
    flags.scalar.iter().map(read).collect()
}

/// Runs all jobs; `true` if every kernel was right.
fn run(flags: &Flags) -> Result<bool, String> {
    let seed = flags.seed.unwrap_or_else(|| {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
    });
    let list = match &flags.sweep {
        Some(path) => read_text(path, LIST_LIMIT).map_err(|e| format!("--sweep: {e}"))?,
        None => String::new(),
    };
    let patience = Duration::from_secs(flags.patience.max(1));
    let mut machine = Machine::default();
    let mut rows: Vec<Row> = Vec::new();
    println!("seed {seed}");
    for format in flags.format.split(',').map(str::trim) {
        job::formats(format)?;
        let peak = flags.peak.or_else(|| marketed_peak(format));
        for shape in job::shapes(&flags.shapes)? {
            let mut kernels = Vec::new();
            for knobs in &flags.knobs {
                kernels.extend(job::expand(knobs)?);
            }
            kernels.extend(job::sweep(&list, &shape)?);
            if kernels.is_empty() {
                kernels.push(String::new());
            }
            let job = Job {
                device: flags.device,
                formats: format.to_owned(),
                shape: shape.clone(),
                gate: flags.gate.clone(),
                scalars: scalars(flags)?,
                kernels: kernels.into_iter().enumerate().collect(),
                inputs: flags.inputs.clone(),
                seed,
                reps: flags.reps.max(1),
                graph_ms: flags.graph_ms,
                interleave: flags.interleave,
                check_only: flags.check_only,
                line_info: flags.line_info,
                limit: flags.limit,
                load_threads: flags.load_threads,
                emit: flags.emit.clone(),
                bandwidth: !flags.no_bandwidth && !flags.check_only && machine.read_gbytes == 0.0,
            };
            println!("{format} {shape}: {} kernels", job.kernels.len());
            let started = Instant::now();
            let mut outcome = parent::run(&job, patience, &mut show);
            machine = outcome.machine.take().unwrap_or(machine);
            if let Some(error) = &outcome.error {
                println!("  the job failed: {error}");
            }
            let fast = fastest(&outcome.rows, flags.top);
            if fast.len() > 1 {
                println!("  the fastest {} in turns:", fast.len());
                let again = Job { kernels: fast, interleave: true, bandwidth: false, ..job };
                let again = parent::run(&again, patience, &mut show);
                for (number, row) in again.rows {
                    if let Some(place) = outcome.rows.iter().position(|(other, _)| *other == number) {
                        outcome.rows[place].1 = row;
                    }
                }
            }
            for (_, mut row) in outcome.rows {
                row.floor_us = floor(&row, &machine, peak);
                rows.push(row);
            }
            summary(&rows, format, &shape);
            println!("  took {:.1} s", started.elapsed().as_secs_f64());
            // After each shape, so that what is there is not lost with what comes.
            if let Some(path) = &flags.json {
                let report = Report { machine: &machine, peak_tflops: flags.peak, rows: &rows };
                let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
                std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
    }
    if machine.read_gbytes > 0.0 {
        println!("{}: reads {:.0} GB/s", machine.device, machine.read_gbytes);
    }
    let wrong = rows.iter().filter(|row| matches!(row.status, Status::Wrong | Status::Failed)).count();
    let right = rows.iter().filter(|row| row.status == Status::Ok).count();
    println!("{right} right, {wrong} not, {} neither run nor needed", rows.len() - right - wrong);
    Ok(wrong == 0 && right > 0)
}

/// Numbers and knobs of the fastest kernels, fastest first.
fn fastest(rows: &[(usize, Row)], count: usize) -> Vec<(usize, String)> {
    let mut timed: Vec<_> = rows
        .iter()
        .filter(|(_, row)| row.status == Status::Ok)
        .filter_map(|(number, row)| Some((row.us?, *number, row.knobs.clone())))
        .collect();
    timed.sort_by(|x, y| x.0.total_cmp(&y.0));
    timed.into_iter().take(count).map(|(_, number, knobs)| (number, knobs)).collect()
}

/// Lower bound of a kernel's time, in microseconds.
fn floor(row: &Row, machine: &Machine, peak: Option<f64>) -> Option<f64> {
    let bytes = row.gbytes? * row.us?;
    let operations = row.tflops? * row.us?;
    let memory = if machine.read_gbytes > 0.0 { bytes / machine.read_gbytes } else { 0.0 };
    Some(memory.max(operations / peak?))
}

/// Prints a kernel's row.
fn show(row: &Row) {
    let knobs = if row.knobs.is_empty() { "(all auto)" } else { &row.knobs };
    let mut line = match row.status {
        Status::Ok => "  ok    ".to_owned(),
        Status::Wrong => "  WRONG ".to_owned(),
        Status::Illegal => "  none  ".to_owned(),
        Status::Duplicate => "  same  ".to_owned(),
        Status::Failed => "  FAILED".to_owned(),
    };
    if let (Some(us), Some(tflops)) = (row.us, row.tflops) {
        line += &format!(" {us:9.2} us {tflops:7.1} TFLOP/s");
    }
    if let (Some(ratio), Some([low, high])) = (row.ratio, row.ratio_spread) {
        line += &format!(" x{ratio:.3} ({low:.3} to {high:.3})");
    }
    if let Some(error) = &row.error {
        line += &format!(" err {:.2e}", error.frobenius);
        if !error.pass() {
            line += &format!(
                " (limit {:.2e}), {} of {} outside, {} unwritten, max {:.3e}, {}",
                error.limit,
                error.outside,
                error.elements,
                error.unwritten,
                error.max_abs,
                error.worst.as_deref().unwrap_or("")
            );
        }
    }
    if let (Some(registers), Some(local)) = (row.registers, row.local_bytes) {
        line += &format!(" {registers} regs");
        if local > 0 {
            line += &format!(" {local} B local");
        }
    }
    if let Some(mhz) = row.mhz {
        line += &format!(" {mhz:.0} MHz");
    }
    if let Some(load) = row.load_ms {
        line += &format!(" load {load:.0} ms");
    }
    println!("{line}  {knobs}");
    if let Some(why) = &row.why {
        println!("         {}", why.replace('\n', "\n         "));
    }
}

/// Prints the fastest kernels of a shape.
fn summary(rows: &[Row], format: &str, shape: &str) {
    let timed =
        rows.iter().filter(|row| row.format == format && row.shape == shape && row.status == Status::Ok);
    let best = timed.filter_map(|row| Some((row.us?, row))).min_by(|x, y| x.0.total_cmp(&y.0));
    if let Some((us, row)) = best {
        let floor = row.floor_us.map_or(String::new(), |floor| format!(", floor {floor:.2} us"));
        println!("  best {us:.2} us{floor}: {}\n       {}", row.knobs, row.plan);
    }
}
