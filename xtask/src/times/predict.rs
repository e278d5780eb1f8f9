//! Predicts the time of one row.

use super::rows::{Row, Set};
use serde_json::Value;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, Clock, KernelPrediction, TimeOptions, predict};
use silumin_emulator::command::{Limits, Request, Timing, execute};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Options of predictions.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Folder of launch files.
    pub public: Option<&'a Path>,
    /// A clock that replaces the set's.
    pub clock: Option<Clock>,
    /// Whether to predict at the ends of the chip's ranges too.
    pub range: bool,
    /// Time limit for the simulation of one launch from a launch file, in seconds.
    pub limit: f64,
}

/// Microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Predicted with the chip file's values.
    pub time: f64,
    /// Predicted with all uncertain numbers at their fast ends.
    pub low: f64,
    /// Predicted with all uncertain numbers at their slow ends.
    pub high: f64,
    /// MHz.
    pub clock: f64,
    /// What takes most of the critical path, and its share.
    pub bound: String,
}

/// Predicts a row; `None` if its launch files are missing.
pub fn estimate(set: &Set, row: &Row, options: &Options) -> Result<Option<Estimate>, String> {
    // What a run read, else what the set says.
    let clock = match (options.clock, row.clock, set.sustained) {
        (Some(clock), ..) => clock,
        (None, Some(mhz), _) => Clock::Mhz(mhz),
        (None, None, true) => Clock::Sustained,
        (None, None, false) => Clock::Mhz(set.clock),
    };
    match (&row.formats, options.public) {
        (Some(formats), _) => ours(set, row, formats, clock, options).map(Some),
        (None, Some(folder)) => theirs(set, row, folder, clock, options),
        (None, None) => Ok(None),
    }
}

/// Parses knobs written as `name=value name=value`, or `auto`.
fn spec(set: &Set, row: &Row, formats: &str, target: &str) -> Result<SpecFile, String> {
    let [m, n, k] = row.shape;
    let mut file = SpecFile::new(silumin::Shape::new(m, n, k));
    file.arch = target.to_owned();
    if let Some(gate) = &set.gate {
        file.gate.clone_from(gate);
    }
    let names: Vec<&str> = formats.split(',').collect();
    let [a, b, c] = names[..] else { return Err(format!("`{formats}` is not A,B,C")) };
    (file.formats.a, file.formats.b, file.formats.c) = (a.to_owned(), b.to_owned(), c.to_owned());
    for knob in row.kernel.split_whitespace().filter(|word| *word != "auto") {
        let (name, value) = knob.split_once('=').ok_or_else(|| format!("`{knob}` is not NAME=VALUE"))?;
        file.config.set(name, value).map_err(|e| e.to_string())?;
    }
    Ok(file)
}

fn ours(set: &Set, row: &Row, formats: &str, clock: Clock, options: &Options) -> Result<Estimate, String> {
    let chip = Chip::named(&set.chip).map_err(|e| e.to_string())?;
    let target = match set.chip.as_str() {
        "h100" | "h200" => "sm_90a",
        "b300" => "sm_103a",
        _ => "sm_100a",
    };
    let file = spec(set, row, formats, target)?;
    let (spec, arch) = file.read().map_err(|e| e.to_string())?;
    let kernel = spec.kernel(file.shape(), arch).map_err(|e| e.to_string())?;
    let time = |chip: Chip| {
        let timing = TimeOptions { warm: set.l2 == "warm", ..TimeOptions::new(chip) };
        predict(&kernel, None, &timing)
    };
    let time =
        |chip: Chip| clock.settle(&chip, time, KernelPrediction::tensor_use).map_err(|e| e.to_string());
    let first = time(chip.clone())?;
    let us = first.time() / 1e3;
    let clock = first.launches.first().map_or(chip.clock.value, |launch| launch.clock);
    let (low, high) = match options.range {
        true => (time(chip.extreme(false))?.time() / 1e3, time(chip.extreme(true))?.time() / 1e3),
        false => (us, us),
    };
    let mut path: BTreeMap<String, f64> = BTreeMap::new();
    for (cause, ns) in first.launches.iter().flat_map(|l| &l.path) {
        *path.entry(cause_name(&serde_json::to_value(cause).unwrap_or_default())).or_default() += ns;
    }
    Ok(Estimate { time: us, low: low.min(us), high: high.max(us), clock, bound: bound(&path, us * 1e3) })
}

fn cause_name(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The largest part of a critical path.
fn bound(path: &BTreeMap<String, f64>, total: f64) -> String {
    let longest = path.iter().max_by(|a, b| a.1.total_cmp(b.1));
    longest.map_or_else(String::new, |(cause, ns)| format!("{cause} {:.0} %", 100.0 * ns / total))
}

fn theirs(
    set: &Set,
    row: &Row,
    folder: &Path,
    clock: Clock,
    options: &Options,
) -> Result<Option<Estimate>, String> {
    let files: Vec<_> = row.launch.iter().map(|name| folder.join(name)).collect();
    if !files.iter().all(|file| file.is_file()) {
        return Ok(None);
    }
    let (mut time, mut low, mut high, mut mhz) = (0.0, 0.0, 0.0, 0.0);
    let mut path: BTreeMap<String, f64> = BTreeMap::new();
    for file in files {
        let timing = Timing {
            clock,
            warm: set.l2 == "warm",
            range: options.range,
            // Rows are the same wherever they are made anew: issue costs are the table's.
            ..Timing::of(&set.chip)
        };
        let limits = Limits { time: Some(Duration::from_secs_f64(options.limit)), ..Limits::default() };
        let request = Request::Time { launch: file, timing, limits, json: true };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = execute(&request, &mut out, &mut err);
        if status != 0 {
            let text = [out, err].concat();
            return Err(String::from_utf8_lossy(&text).trim().to_owned());
        }
        let document: Value = serde_json::from_slice(&out).map_err(|e| e.to_string())?;
        let number = |pointer: &str| document.pointer(pointer).and_then(Value::as_f64);
        let us = number("/predicted/time").ok_or("the prediction has no time")? / 1e3;
        time += us;
        mhz = number("/predicted/clock").unwrap_or(0.0);
        low += number("/range/low_ns").map_or(us, |ns| ns / 1e3);
        high += number("/range/high_ns").map_or(us, |ns| ns / 1e3);
        for (cause, ns) in
            document.pointer("/predicted/path").and_then(Value::as_object).into_iter().flatten()
        {
            *path.entry(cause.clone()).or_default() += ns.as_f64().unwrap_or(0.0);
        }
    }
    Ok(Some(Estimate { time, low, high, clock: mhz, bound: bound(&path, time * 1e3) }))
}
