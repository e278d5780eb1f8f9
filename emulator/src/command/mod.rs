//! The `emulate` command: runs a launch file, or checks PTX files, and reports as text or JSON.
//!
//! Everything but the reading of command-line flags is here, so that other programs and tests can do the
//! same without starting a process.
//!
//! - this file: what may be asked for, and the run
//! - `check`: listing what is malformed or not supported in PTX files
//! - `output`: writing buffers
//! - `text`, `json`: the two forms of a report
//! - `trace`: following one warp

mod check;
mod json;
mod output;
mod text;
mod trace;

pub use trace::{TraceTarget, TraceTargetError};

use crate::finding::Report;
use crate::launch::{Options, Reconvergence, Schedule, Tracking};
use crate::launch_file::LaunchFile;
use crate::memory::{Buffer, GlobalMemory};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// Exit status: nothing was found.
pub const CLEAN: u8 = 0;
/// Exit status: there are findings, or PTX that is malformed or not supported.
pub const FOUND: u8 = 1;
/// Exit status: bad input; no file was written.
pub const BAD_INPUT: u8 = 2;

/// Seeds of one command.
pub const MAX_SEEDS: u64 = 1_000_000;
/// Host threads of one command.
pub const MAX_THREADS: usize = 1024;

/// Which schedules to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedules {
    /// This one.
    One(Schedule),
    /// All early, all late, each warp of a CTA starved, and random ones of the seeds from 0 to this,
    /// each on fresh buffers.
    Seeds(u64),
}

impl Schedules {
    fn list(self, warps: u32) -> Vec<Schedule> {
        match self {
            Schedules::One(schedule) => vec![schedule],
            Schedules::Seeds(n) => {
                let starved = (0..warps).map(|warp| Schedule::Starve { warp, seed: 0 });
                let ends = [Schedule::Early, Schedule::Late].into_iter();
                ends.chain(starved).chain((0..n).map(Schedule::Random)).collect()
            }
        }
    }
}

/// What is asked of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run a launch file.
    Run {
        /// The launch file.
        launch: PathBuf,
        /// Where every buffer of the first schedule goes, as `NAME.bin`.
        out: Option<PathBuf>,
        /// The schedules.
        schedules: Schedules,
        /// Whether races are looked for that a schedule does not show.
        tracking: Tracking,
        /// When lanes of a warp that took different ways run together again.
        reconvergence: Reconvergence,
        /// A warp to follow on stderr.
        trace: Option<TraceTarget>,
        /// Host threads; 0 is one a core.
        threads: usize,
        /// One JSON document on stdout, and nothing else.
        json: bool,
    },
    /// Parse and decode PTX files, and list everything that is malformed or not supported.
    Check {
        /// The files.
        files: Vec<PathBuf>,
        /// One JSON document on stdout, and nothing else.
        json: bool,
    },
}

/// The run of one schedule.
pub(crate) struct Run {
    pub schedule: Schedule,
    pub report: Report,
    /// Buffers whose bytes are not those of the first schedule without findings; `None` for a run that
    /// was not compared.
    pub differing: Option<Vec<String>>,
}

/// All runs of a command.
pub(crate) struct Runs<'a> {
    pub file: &'a LaunchFile,
    pub runs: Vec<Run>,
    /// Findings that one run lists at most.
    pub limit: usize,
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

/// Does what is asked; writes the report to `out` and errors to `err`. Returns the exit status:
/// [`CLEAN`], [`FOUND`] or [`BAD_INPUT`].
pub fn execute(request: &Request, out: &mut dyn Write, err: &mut (dyn Write + Send)) -> u8 {
    let (json, result) = match request {
        Request::Run { json, .. } => (*json, run(request, err)),
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
    let Request::Run { launch, out, schedules, tracking, reconvergence, trace, threads, json } = request
    else {
        return Err("there is nothing to run".to_owned());
    };
    if *threads > MAX_THREADS {
        return Err(format!("--threads {threads}: at most {MAX_THREADS}; 0 is one a core"));
    }
    if let Schedules::Seeds(n) = *schedules
        && !(1..=MAX_SEEDS).contains(&n)
    {
        return Err(format!("--seeds {n}: it must be from 1 to {MAX_SEEDS}"));
    }
    let file = LaunchFile::read(launch).map_err(|e| e.to_string())?;
    let target = trace.as_ref().map(|t| t.resolve(&file.launch)).transpose().map_err(|e| e.to_string())?;
    if let Some(folder) = out {
        output::prepare(folder)?;
    }
    let printer = trace::Printer::new(err);
    let sink = |step: crate::launch::Step<'_>| printer.print(&step);
    let list = schedules.list(file.launch.block.iter().product::<u32>().div_ceil(32));
    let many = list.len() > 1;
    let mut first_clean: Option<(GlobalMemory, Vec<Buffer>)> = None;
    let mut runs = Vec::new();
    for (n, schedule) in list.into_iter().enumerate() {
        let (memory, buffers) = file.allocate();
        let options = Options {
            schedule,
            threads: *threads,
            tracking: *tracking,
            reconvergence: *reconvergence,
            trace: target.map(|of| crate::launch::Trace { of: Some(of), sink: &sink }),
            ..Options::default()
        };
        if many && target.is_some() {
            printer.title(&text::schedule(schedule));
        }
        let report =
            file.module.run(&file.kernel, &file.launch, &memory, &options).map_err(|e| e.to_string())?;
        if let Some(folder) = out.as_ref().filter(|_| n == 0) {
            output::write(folder, &file, &memory, &buffers)?;
        }
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
    }
    let runs = Runs { file: &file, runs, limit: Options::default().max_findings };
    let status = if runs.found() { FOUND } else { CLEAN };
    let text = if *json { json::runs(&runs, status) } else { text::runs(&runs) };
    Ok((status, text))
}
