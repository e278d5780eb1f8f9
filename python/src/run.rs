//! Runs on the emulated GPU, for values and for time.

use crate::fault::{Fault, caught, interruptible};
use crate::launch::{RawLaunch, choice, module};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use silumin_emulator::command::{Limits, MAX_THREADS, Timing};
use silumin_emulator::time::IssueSource;
use silumin_emulator::{
    Finding, GlobalMemory, LaunchFile, Module, Options, Reconvergence, Report, Schedule, Tracking,
};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Ways to track the order of accesses, by their names in flags.
const TRACKING: [(&str, Tracking); 3] =
    [("off", Tracking::Off), ("on", Tracking::HappensBefore), ("strict", Tracking::Strict)];

/// Kinds of schedules.
const SCHEDULES: [(&str, Kind); 5] = [
    ("early", Kind::Early),
    ("late", Kind::Late),
    ("random", Kind::Random),
    ("starve", Kind::Starve),
    ("delay", Kind::Delay),
];

#[derive(Clone, Copy)]
enum Kind {
    Early,
    Late,
    Random,
    Starve,
    Delay,
}

/// How to emulate.
#[derive(FromPyObject)]
pub struct RunOptions {
    /// Kind, warp and seed.
    schedule: (String, u32, u64),
    tracking: String,
    reconvergence: String,
    threads: usize,
    max_findings: usize,
    time_limit: Option<f64>,
    instruction_limit: Option<u64>,
    memory_limit: Option<u64>,
    resident: Option<u32>,
    /// Whether the contents of buffers are wanted.
    values: bool,
}

/// How to predict.
#[derive(FromPyObject)]
pub struct TimeRequest {
    chip: Option<String>,
    clock: String,
    what_if: Vec<String>,
    values: bool,
    warm: bool,
    programmatic: bool,
    range: bool,
    issue: String,
    time_limit: Option<f64>,
    instruction_limit: Option<u64>,
    memory_limit: Option<u64>,
}

/// A number of seconds above 0.
fn seconds(limit: Option<f64>) -> Result<Option<Duration>, Fault> {
    let Some(limit) = limit else { return Ok(None) };
    let duration = Duration::try_from_secs_f64(limit).ok().filter(|duration| !duration.is_zero());
    duration.map(Some).ok_or_else(|| {
        Fault::option(format!("time_limit = {limit}: it is a number of seconds above 0, such as 2.5"))
    })
}

/// A limit of at least 1.
fn positive<T: PartialEq + From<u8>>(name: &str, limit: Option<T>) -> Result<Option<T>, Fault> {
    match limit {
        Some(zero) if zero == T::from(0) => {
            Err(Fault::option(format!("{name} = 0: it is at least 1; None is the default")))
        }
        limit => Ok(limit),
    }
}

impl RunOptions {
    fn options<'a>(&self, stop: &'a AtomicBool) -> Result<Options<'a>, Fault> {
        let named = |fault: Fault| Fault { class: "ArgumentError", ..fault };
        let (kind, warp, seed) = &self.schedule;
        let (warp, seed) = (*warp, *seed);
        if self.threads > MAX_THREADS {
            return Err(Fault::option(format!(
                "threads = {}: at most {MAX_THREADS}; 0 is one a core",
                self.threads
            )));
        }
        let usual = Options::default();
        Ok(Options {
            schedule: match choice("", "schedule", kind, &SCHEDULES).map_err(named)? {
                Kind::Early => Schedule::Early,
                Kind::Late => Schedule::Late,
                Kind::Random => Schedule::Random(seed),
                Kind::Starve => Schedule::Starve { warp, seed },
                Kind::Delay => Schedule::Delay { warp, seed },
            },
            threads: self.threads,
            max_findings: positive("max_findings", Some(self.max_findings))?.unwrap_or(usual.max_findings),
            tracking: choice("", "tracking", &self.tracking, &TRACKING).map_err(named)?,
            reconvergence: choice("", "reconvergence", &self.reconvergence, &Reconvergence::NAMES)
                .map_err(named)?,
            instruction_limit: positive("instruction_limit", self.instruction_limit)?
                .unwrap_or(usual.instruction_limit),
            resident: positive("resident", self.resident)?,
            time_limit: seconds(self.time_limit)?,
            memory_limit: self.memory_limit,
            interrupt: Some(stop),
            ..usual
        })
    }
}

/// A run's report as JSON, and the buffers after it.
struct Ran {
    report: Value,
    buffers: Vec<Option<Vec<u8>>>,
}

fn run(file: &LaunchFile, options: &RunOptions, stop: &AtomicBool) -> Result<Ran, Fault> {
    let values = options.values;
    let options = options.options(stop)?;
    let (memory, buffers) = file.allocate();
    let short = file.buffers.iter().zip(&buffers).find(|(spec, buffer)| memory.len(buffer) != spec.bytes);
    if let Some((spec, _)) = short {
        return Err(Fault::launch(format!(
            "buffer `{}`: there is no room for its {} bytes; run a smaller problem",
            spec.name, spec.bytes
        )));
    }
    let report = file.module.run(&file.kernel, &file.launch, &memory, &options).map_err(Fault::launch)?;
    let unwritten =
        |memory: &GlobalMemory| -> Vec<u64> { buffers.iter().map(|b| memory.unwritten(b)).collect() };
    let document = document(file, &report, &unwritten(&memory));
    let buffers = buffers.iter().map(|buffer| values.then(|| memory.read(buffer))).collect();
    Ok(Ran { report: document, buffers })
}

fn finding(f: &Finding) -> Value {
    json!({
        "rule": format!("{:?}", f.kind), "line": f.line, "text": f.text, "message": f.message, "cta": f.cta, "warp": f.warp,
        "lane": f.lane, "count": f.count, "shown": f.to_string(),
    })
}

fn document(file: &LaunchFile, report: &Report, unwritten: &[u64]) -> Value {
    let stats = &report.stats;
    let findings = |list: &[Finding]| list.iter().map(finding).collect::<Vec<_>>();
    json!({
        "kernel": file.kernel, "file": file.module.file(),
        "grid": file.launch.grid, "block": file.launch.block, "cluster": file.launch.cluster, "shared": file.launch.dynamic_smem,
        "findings": findings(&report.findings), "warnings": findings(&report.warnings),
        "left_out": report.left_out, "stopped": report.stopped,
        "stats": {
            "instructions": stats.instructions, "mma_macs": stats.mma_macs, "global_read": stats.global_read,
            "global_written": stats.global_written, "tma_read": stats.tma_read, "tma_written": stats.tma_written,
            "seconds": stats.time.as_secs_f64(),
        },
        "buffers": (file.buffers.iter().zip(unwritten))
            .map(|(b, unwritten)| json!({ "name": b.name, "bytes": b.bytes, "unwritten": unwritten }))
            .collect::<Vec<_>>(),
    })
}

type Answer<'py> = (String, Vec<Option<Bound<'py, PyBytes>>>);

fn answer(py: Python<'_>, ran: Ran) -> Answer<'_> {
    let buffers = ran.buffers.into_iter().map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes)));
    (ran.report.to_string(), buffers.collect())
}

/// Runs a launch; returns a report as JSON, and each buffer's bytes.
#[pyfunction]
pub fn emulate(py: Python<'_>, launch: RawLaunch, options: RunOptions) -> PyResult<Answer<'_>> {
    let ran = interruptible(py, |stop| run(&launch.ready()?, &options, stop))?;
    Ok(answer(py, ran))
}

/// Runs a launch file, as [`emulate`].
#[pyfunction]
pub fn emulate_file(py: Python<'_>, path: String, options: RunOptions) -> PyResult<Answer<'_>> {
    let ran = interruptible(py, |stop| {
        let file = LaunchFile::read(Path::new(&path)).map_err(Fault::launch)?;
        run(&file, &options, stop)
    })?;
    Ok(answer(py, ran))
}

/// A launch, or the path of a launch file.
#[derive(FromPyObject)]
pub enum Source {
    /// A launch file.
    File(String),
    /// A launch.
    Launch(RawLaunch),
}

/// Predicts the time of a launch; returns it as JSON.
#[pyfunction]
pub fn predict(py: Python<'_>, source: Source, request: TimeRequest) -> PyResult<String> {
    interruptible(py, |stop| {
        let file = match source {
            Source::File(path) => LaunchFile::read(Path::new(&path)).map_err(Fault::launch)?,
            Source::Launch(launch) => launch.ready()?,
        };
        let named = |fault: Fault| Fault { class: "ArgumentError", ..fault };
        let target = file.module.target().first().cloned().unwrap_or_default();
        let chip = match request.chip {
            Some(chip) => chip,
            None => silumin::runtime::predict::default_chip(&target).map_err(Fault::prediction)?.to_owned(),
        };
        let timing = Timing {
            chip,
            clock: request.clock.parse().map_err(|error| Fault::option(format!("clock: {error}")))?,
            what_if: request.what_if,
            values: request.values,
            warm: request.warm,
            programmatic: request.programmatic,
            range: request.range,
            sensitivity: None,
            issue: choice("", "issue", &request.issue, &IssueSource::NAMES).map_err(named)?,
            timeline: None,
        };
        let limits = Limits {
            time: seconds(request.time_limit)?,
            instructions: positive("instruction_limit", request.instruction_limit)?,
            memory: request.memory_limit,
            resident: None,
        };
        let predicted = silumin_emulator::command::predict(&file, &timing, limits, Some(stop));
        let predicted = predicted.map_err(|error| Fault::prediction(python_names(&error)))?;
        let breakdown: serde_json::Map<String, Value> = predicted
            .prediction
            .path
            .iter()
            .map(|(cause, ns)| (cause.name().to_owned(), json!(ns / 1e3)))
            .collect();
        let document = json!({
            "prediction": predicted.prediction, "range": predicted.range.map(|(low, high)| [low, high]),
            "bound_by": predicted.prediction.bound().map(|cause| cause.name()), "breakdown": breakdown,
            "issue": predicted.costs.name(), "no_machine_code": predicted.costs.missing, "text": predicted.text,
        });
        Ok(document.to_string())
    })
}

/// The library's errors name flags of its program.
fn python_names(text: &str) -> String {
    text.replace("--what-if ", "what_if: ").replace("--memory-limit", "memory_limit")
}

/// What a PTX text holds: kernels with parameters, target and version, as JSON.
#[pyfunction]
pub fn inspect(py: Python<'_>, name: &str, ptx: &str) -> PyResult<String> {
    caught(py, || {
        let module = module(name, ptx, None)?;
        let kernels: Vec<Value> = (module.entries())
            .map(|entry| {
                let parameters = module.parameters(entry).unwrap_or_default();
                let parameters: Vec<Value> =
                    parameters.iter().map(|p| json!({ "name": p.name, "bytes": p.bytes })).collect();
                json!({
                    "name": entry, "parameters": parameters, "block": module.required_block(entry),
                    "cluster": module.required_cluster(entry),
                })
            })
            .collect();
        let document = json!({ "kernels": kernels, "target": module.target(), "version": module.version() });
        Ok(document.to_string())
    })
}

/// Everything in a PTX text that is malformed or not supported, as JSON.
#[pyfunction]
pub fn check(py: Python<'_>, name: &str, ptx: &str) -> PyResult<String> {
    caught(py, || {
        let problems: Vec<Value> = (Module::problems(name, ptx).iter())
            .map(|p| json!({ "line": p.line, "text": p.text, "message": p.message }))
            .collect();
        Ok(json!(problems).to_string())
    })
}
