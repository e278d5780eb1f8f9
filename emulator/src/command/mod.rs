//! The `emulate` command: runs a launch file or checks PTX files, and reports as text or JSON.
//!
//! Everything but the parsing of command-line flags is here, so that other programs and tests can use it without
//! starting a process.
//!
//! - this file: what may be asked for, and the run
//! - `check`: listing what is malformed or not supported in PTX files
//! - `output`: writing buffers
//! - `text`, `json`: the two forms of a report
//! - `time`: how long a launch takes
//! - `trace`: following one warp

mod check;
mod json;
mod output;
mod text;
mod time;
mod trace;

pub use time::{Predicted, Timing, predict};
pub use trace::{TraceTarget, TraceTargetError};

use crate::exec::room;
use crate::finding::{FindingKind, Report};
use crate::launch::{Options, Reconvergence, Schedule, Tracking};
use crate::launch_file::LaunchFile;
use crate::memory::{Buffer, GlobalMemory};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Exit status: no findings.
pub const CLEAN: u8 = 0;
/// Exit status: findings, or PTX that is malformed or not supported.
pub const FOUND: u8 = 1;
/// Exit status: bad input; no file was written.
pub const BAD_INPUT: u8 = 2;

/// Most seeds of one command.
pub const MAX_SEEDS: u64 = 1_000_000;
/// Most host threads of one command.
pub const MAX_THREADS: usize = 1024;

/// The schedules to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedules {
    /// This one.
    One(Schedule),
    /// All early, all late, each warp of a CTA starved with its work and alone, and random ones with seeds from 0 up
    /// to this number, each on fresh buffers.
    Seeds(u64),
}

impl Schedules {
    fn list(self, warps: u32) -> Vec<Schedule> {
        match self {
            Schedules::One(schedule) => vec![schedule],
            Schedules::Seeds(n) => {
                let starved = (0..warps).map(|warp| Schedule::Starve { warp, seed: 0 });
                let delayed = (0..warps).map(|warp| Schedule::Delay { warp, seed: 0 });
                let ends = [Schedule::Early, Schedule::Late].into_iter();
                ends.chain(starved).chain(delayed).chain((0..n).map(Schedule::Random)).collect()
            }
        }
    }
}

/// Limits of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time of all schedules together; `None` sets no limit. At the limit the report has the findings so
    /// far and a [`TimeLimit`](crate::FindingKind::TimeLimit), and the exit status is [`FOUND`].
    pub time: Option<Duration>,
    /// [`Options::instruction_limit`]; `None` for its default.
    pub instructions: Option<u64>,
    /// Bytes of host memory for buffers and resident clusters; `None` uses seven eighths of the available memory. A
    /// launch that needs more is bad input and does not run.
    pub memory: Option<u64>,
    /// Clusters that run at a time, at least 1 ([`Options::resident`]); `None` runs as many as the chip may hold.
    pub resident: Option<u32>,
}

impl Limits {
    /// The memory that is left for clusters, in bytes.
    ///
    /// # Errors
    /// The buffers alone take more.
    fn beside_buffers(self, file: &LaunchFile, many: bool) -> Result<u64, String> {
        let limit = self.memory.unwrap_or_else(room::available);
        let bytes: u64 = file.buffers.iter().map(|b| b.bytes).sum();
        let largest = file.buffers.iter().map(|b| b.bytes).max().unwrap_or_default();
        // With a bit for each byte; the outputs of one schedule are kept to compare others with, one buffer at a time.
        let copies = if many { 2 } else { 1 };
        let needed = copies * (bytes + bytes / 8 + largest);
        limit.checked_sub(needed).ok_or_else(|| {
            format!(
                "the buffers of the launch have {bytes} bytes, take {needed} with what is kept about them, and the \
                 memory limit is {limit}: run a smaller problem, or give more with --memory-limit"
            )
        })
    }
}

/// A request to the command.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Run a launch file.
    Run {
        /// The launch file.
        launch: PathBuf,
        /// Folder for the buffers of the first schedule, as `NAME.bin`.
        out: Option<PathBuf>,
        /// The schedules.
        schedules: Schedules,
        /// Whether order is tracked, to find races that a schedule does not show.
        tracking: Tracking,
        /// When diverged lanes of a warp reconverge.
        reconvergence: Reconvergence,
        /// A warp to trace on standard error.
        trace: Option<TraceTarget>,
        /// Host threads; 0 uses one per core.
        threads: usize,
        /// Limits of time, instructions, memory, and resident clusters.
        limits: Limits,
        /// Whether to print one JSON document on standard output, and nothing else.
        json: bool,
    },
    /// Predict how long a launch file takes.
    Time {
        /// The launch file.
        launch: PathBuf,
        /// The chip and the options of the prediction.
        timing: Timing,
        /// Limits of time, instructions and memory.
        limits: Limits,
        /// Whether to print one JSON document on standard output, and nothing else.
        json: bool,
    },
    /// Parse and decode PTX files, and list everything that is malformed or not supported.
    Check {
        /// The files.
        files: Vec<PathBuf>,
        /// Whether to print one JSON document on standard output, and nothing else.
        json: bool,
    },
}

/// The run of one schedule.
pub(crate) struct Run {
    pub schedule: Schedule,
    pub report: Report,
    /// Buffers that differ from those of the first schedule without findings; `None` for a run that was not compared.
    pub differing: Option<Vec<String>>,
}

/// The runs of a command.
pub(crate) struct Runs<'a> {
    pub file: &'a LaunchFile,
    pub runs: Vec<Run>,
    /// Most findings that are listed per run.
    pub limit: usize,
    /// Number of requested schedules; the time limit may have left some out.
    pub planned: usize,
}

impl Runs<'_> {
    pub fn found(&self) -> bool {
        self.runs.iter().any(|r| !r.report.is_clean())
    }

    /// Whether all runs without findings left the same bytes; `None` for fewer than two.
    pub fn outputs_equal(&self) -> Option<bool> {
        let compared: Vec<_> = self.runs.iter().filter_map(|r| r.differing.as_ref()).collect();
        (compared.len() > 1).then(|| compared.iter().all(|d| d.is_empty()))
    }
}

/// Executes a request, writes the report to `out` and errors to `err`, and returns the exit status: [`CLEAN`],
/// [`FOUND`] or [`BAD_INPUT`].
pub fn execute(request: &Request, out: &mut dyn Write, err: &mut (dyn Write + Send)) -> u8 {
    let (json, result) = match request {
        Request::Run { json, .. } => (*json, run(request, err)),
        Request::Time { launch, timing, limits, json } => (*json, time::run(launch, timing, *limits, *json)),
        Request::Check { files, json } => (*json, check::check(files, *json)),
    };
    let (status, text) = match result {
        Ok(done) => done,
        Err(message) => {
            // Nobody is left to tell if this fails; the exit status says it too.
            let _ = writeln!(err, "error: {message}");
            (BAD_INPUT, if json { json::error(&message) } else { String::new() })
        }
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => status,
        // Who reads has seen enough.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => status,
        Err(e) => {
            let _ = writeln!(err, "error: writing the report failed: {e}");
            BAD_INPUT
        }
    }
}

fn run(request: &Request, err: &mut (dyn Write + Send)) -> Result<(u8, String), String> {
    let Request::Run { launch, out, schedules, tracking, reconvergence, trace, threads, limits, json } =
        request
    else {
        return Err("there is nothing to run".to_owned());
    };
    if *threads > MAX_THREADS {
        return Err(format!("--threads {threads}: at most {MAX_THREADS}; 0 is one a core"));
    }
    if limits.resident == Some(0) {
        return Err("--resident 0: no cluster would ever start; it must be at least 1".to_owned());
    }
    if let Schedules::Seeds(n) = *schedules
        && !(1..=MAX_SEEDS).contains(&n)
    {
        return Err(format!("--seeds {n}: it must be from 1 to {MAX_SEEDS}"));
    }
    let file = LaunchFile::read(launch).map_err(|e| e.to_string())?;
    let target = trace.as_ref().map(|t| t.resolve(&file.launch)).transpose().map_err(|e| e.to_string())?;
    let list = schedules.list(file.launch.block.iter().product::<u32>().div_ceil(32));
    let planned = list.len();
    let many = planned > 1;
    let memory_limit = limits.beside_buffers(&file, many)?;
    let mut folder = out.as_ref().map(|folder| output::prepare(folder, launch, &file)).transpose()?;
    let start = Instant::now();
    let printer = trace::Printer::new(err);
    let sink = |step: crate::launch::Step<'_>| printer.print(&step);
    let mut first_clean: Option<(GlobalMemory, Vec<Buffer>)> = None;
    let mut runs = Vec::new();
    for schedule in list {
        let time_limit = limits.time.map(|limit| limit.saturating_sub(start.elapsed()));
        let (memory, buffers) = file.allocate();
        let options = Options {
            schedule,
            threads: *threads,
            tracking: *tracking,
            reconvergence: *reconvergence,
            trace: target.map(|of| crate::launch::Trace { of: Some(of), sink: &sink }),
            instruction_limit: limits.instructions.unwrap_or(Options::default().instruction_limit),
            time_limit,
            memory_limit: Some(memory_limit),
            resident: limits.resident,
            ..Options::default()
        };
        if many && target.is_some() {
            printer.title(&text::schedule(schedule));
        }
        let report =
            file.module.run(&file.kernel, &file.launch, &memory, &options).map_err(|e| e.to_string())?;
        if let Some(folder) = folder.take() {
            output::write(folder, &file, &memory, &buffers)?;
        }
        let over = report.findings.iter().any(|f| f.kind == FindingKind::TimeLimit);
        let mut differing = None;
        if many && report.is_clean() {
            let names = first_clean.as_ref().map(|(m, b)| {
                let pairs = b.iter().zip(&buffers).zip(&file.buffers);
                pairs.filter(|((x, y), _)| m.read(x) != memory.read(y)).map(|(_, s)| s.name.clone()).collect()
            });
            differing = Some(names.unwrap_or_default());
            first_clean.get_or_insert((memory, buffers));
        }
        runs.push(Run { schedule, report, differing });
        if over {
            break;
        }
    }
    let limit = Options::default().max_findings;
    let runs = Runs { file: &file, runs, limit, planned };
    let status = if runs.found() { FOUND } else { CLEAN };
    let text = if *json { json::runs(&runs, status) } else { text::runs(&runs) };
    Ok((status, text))
}
