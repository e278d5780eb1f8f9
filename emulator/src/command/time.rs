//! `emulate --time`: predicts how long a launch takes on a chip.

use super::{CLEAN, Limits, output};
use crate::files::OutputFolder;
use crate::launch::Options;
use crate::launch_file::{LaunchFile, slurp};
use crate::time::{Chip, Clock, FoundCosts, IssueSource, Prediction, Quantity, TimeOptions, timeline};
use rayon::prelude::*;
use serde_json::json;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Largest chip file.
const MAX_CHIP_FILE: u64 = 1 << 20;

/// Options of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Name of a chip, or path of a chip file.
    pub chip: String,
    /// The clock of its SMs.
    pub clock: Clock,
    /// Changed numbers of the chip: a name with a value, or with `*` and a factor.
    pub what_if: Vec<String>,
    /// Whether products are made and copies move bytes.
    pub values: bool,
    /// Whether buffers are in L2 at the start.
    pub warm: bool,
    /// Whether the launch depends on the one before it programmatically (PDL).
    pub programmatic: bool,
    /// Whether to predict with the ends of the chip's ranges, too.
    pub range: bool,
    /// Number of uncertain numbers of the chip to print, after predicting each at both ends of its range.
    pub sensitivity: Option<usize>,
    /// Source of issue costs.
    pub issue: IssueSource,
    /// File for the timeline of the first CTA: `.svg` or, for Perfetto, `.json`.
    pub timeline: Option<PathBuf>,
}

impl Timing {
    /// A chip at its maximum clock, with L2 cold and issue costs by the table; the time alone, without its range.
    pub fn of(chip: &str) -> Timing {
        Timing {
            chip: chip.to_owned(),
            clock: Clock::Maximum,
            what_if: Vec::new(),
            values: false,
            warm: false,
            programmatic: false,
            range: false,
            sensitivity: None,
            issue: IssueSource::Table,
            timeline: None,
        }
    }
}

/// Reads a chip by name or from a file.
fn chip(name: &str) -> Result<Chip, String> {
    let path = Path::new(name);
    if !name.contains('.') && !name.contains('/') {
        return Chip::named(name).map_err(|e| e.to_string());
    }
    let bytes = slurp(path, MAX_CHIP_FILE).map_err(|e| format!("{name}: {e}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: it is not UTF-8"))?;
    Chip::parse(name, &text).map_err(|e| e.to_string())
}

/// Applies `KEY=VALUE`, or `KEY=*FACTOR`.
fn change(chip: &Chip, text: &str) -> Result<Chip, String> {
    let bad = || format!("--what-if {text}: it is NAME=VALUE, or NAME=*FACTOR, such as dram_rate=*2");
    let (key, value) = text.split_once('=').ok_or_else(bad)?;
    let (factor, value) = match value.strip_prefix('*') {
        Some(v) => (true, v),
        None => (false, value),
    };
    let value: f64 = value.trim().parse().map_err(|_| bad())?;
    let old = chip.number(key.trim()).map_or(1.0, |q| q.value);
    chip.with(key.trim(), if factor { old * value } else { value })
        .map_err(|e| format!("--what-if {text}: {e}"))
}

/// Forms of a timeline.
#[derive(Clone, Copy)]
enum Form {
    Svg,
    Perfetto,
}

/// The form, name and folder of a timeline, checked before the run.
fn drawing(path: &Path, launch: &Path, file: &LaunchFile) -> Result<(Form, String, OutputFolder), String> {
    let form = match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => Form::Svg,
        Some("json") => Form::Perfetto,
        _ => return Err(format!("{}: a timeline is a .svg, or a .json for Perfetto", path.display())),
    };
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((form, name, output::prepare(folder, launch, file).map_err(|e| e.replacen("--out", "--timeline", 1))?))
}

/// The predicted time of a launch. Nothing in it is measured.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The time, and what bounds it.
    pub prediction: Prediction,
    /// Least and largest time in ns with the chip's numbers at the ends of their ranges, if [`Timing::range`] asks for them.
    pub range: Option<(f64, f64)>,
    /// Where issue costs come from.
    pub costs: FoundCosts,
    /// The report that `emulate --time` prints, without the sensitivity.
    pub text: String,
}

/// Predicts the time of a launch, also of one that is no file. [`Timing::sensitivity`] and [`Timing::timeline`] are for files
/// alone, and have no effect. `interrupt` ends the prediction when it becomes true.
///
/// # Errors
/// The text says which chip, number, limit or line is at fault, and a way out.
pub fn predict(
    file: &LaunchFile,
    timing: &Timing,
    limits: Limits,
    interrupt: Option<&AtomicBool>,
) -> Result<Predicted, String> {
    let bench = Bench::new(file, timing, limits, interrupt)?;
    let mut times = bench.all(std::slice::from_ref(&bench.changed), false)?;
    let (prediction, range) = (times.predictions.swap_remove(0), times.range);
    let text = bench.text(&prediction, range);
    Ok(Predicted { prediction, range, costs: bench.costs, text })
}

/// A launch, and what its predictions share.
struct Bench<'a> {
    file: &'a LaunchFile,
    timing: &'a Timing,
    limits: Limits,
    interrupt: Option<&'a AtomicBool>,
    /// The chip, and with the numbers that [`Timing::what_if`] changes.
    base: Chip,
    changed: Chip,
    costs: FoundCosts,
    /// Bytes for clusters.
    memory: u64,
}

/// Predictions of a bench.
struct Times {
    predictions: Vec<Prediction>,
    range: Option<(f64, f64)>,
}

impl<'a> Bench<'a> {
    fn new(
        file: &'a LaunchFile,
        timing: &'a Timing,
        limits: Limits,
        interrupt: Option<&'a AtomicBool>,
    ) -> Result<Self, String> {
        let base = chip(&timing.chip)?;
        let changed = timing.what_if.iter().try_fold(base.clone(), |c, text| change(&c, text))?;
        let memory = limits.beside_buffers(file, false)?;
        // Once for all runs: no number of a chip changes what ptxas makes.
        let costs = timing.issue.find(&file.module, &file.text, &base).map_err(|e| e.to_string())?;
        Ok(Bench { file, timing, limits, interrupt, base, changed, costs, memory })
    }

    /// Predicts on a chip; `watch` records the first cluster's timeline.
    fn at(&self, chip: Chip, watch: bool) -> Result<Prediction, Box<dyn Error + Send + Sync>> {
        let Bench { file, timing, limits, .. } = self;
        let (memory, _) = file.allocate();
        let options = Options {
            instruction_limit: limits.instructions.unwrap_or(Options::default().instruction_limit),
            time_limit: limits.time,
            interrupt: self.interrupt,
            memory_limit: Some(self.memory / 2),
            ..Options::default()
        };
        let timing = TimeOptions {
            values: timing.values,
            warm: timing.warm,
            programmatic: timing.programmatic,
            timeline: watch.then_some([0; 3]),
            sass: self.costs.sass.clone(),
            ..TimeOptions::new(chip)
        };
        Ok(file.module.time(&file.kernel, &file.launch, &memory, &options, &timing)?)
    }

    /// Predicts on a chip at the clock that is asked for.
    fn predict(&self, chip: Chip, watch: bool) -> Result<Prediction, String> {
        let settled = self.timing.clock.settle(&chip, |chip| self.at(chip, watch), Prediction::tensor_use);
        settled.map_err(|e| e.to_string())
    }

    /// Predicts on chips, the first of them watched if so asked, and at the ends of the first one's ranges.
    fn all(&self, chips: &[Chip], watch: bool) -> Result<Times, String> {
        let mut jobs: Vec<_> = chips.iter().enumerate().map(|(i, c)| (c.clone(), watch && i == 0)).collect();
        if self.timing.range {
            jobs.push((self.changed.extreme(false), false));
            jobs.push((self.changed.extreme(true), false));
        }
        let jobs = jobs.into_par_iter().map(|(c, w)| self.predict(c, w));
        let mut predictions = jobs.collect::<Result<Vec<_>, _>>()?;
        let ends = predictions.split_off(chips.len());
        let (Some(first), [a, b]) = (predictions.first(), ends.as_slice()) else {
            return Ok(Times { predictions, range: None });
        };
        let range = (a.time.min(b.time).min(first.time), a.time.max(b.time).max(first.time));
        Ok(Times { predictions, range: Some(range) })
    }

    /// The report.
    fn text(&self, first: &Prediction, range: Option<(f64, f64)>) -> String {
        let mut text = timeline::text(first, range, &|n| self.line(n));
        // Beside the time that it is part of.
        let head = text.find('\n').map_or(0, |end| end + 1);
        let clock = clock_note(&self.changed, first, self.timing.clock);
        text.insert_str(head, &format!("issue     by {}\n{clock}", self.costs));
        text
    }

    /// A line of the PTX.
    fn line(&self, n: u32) -> String {
        self.file.module.line(n).trim().to_owned()
    }
}

/// Predicts the time of a launch file; returns the exit status and the report.
pub(super) fn run(
    launch: &Path,
    timing: &Timing,
    limits: Limits,
    as_json: bool,
) -> Result<(u8, String), String> {
    let file = LaunchFile::read(launch).map_err(|e| e.to_string())?;
    let drawing = timing.timeline.as_ref().map(|path| drawing(path, launch, &file)).transpose()?;
    let bench = Bench::new(&file, timing, limits, None)?;
    let mut chips = vec![bench.changed.clone()];
    if !timing.what_if.is_empty() {
        chips.push(bench.base.clone());
    }
    let Times { predictions, range } = bench.all(&chips, timing.timeline.is_some())?;
    let first = predictions.into_iter().next().ok_or("nothing was timed")?;
    let swings = match timing.sensitivity {
        Some(_) => swings(&bench.changed, &first, &|chip| bench.predict(chip, false))?,
        None => Vec::new(),
    };
    if let Some((form, name, mut results)) = drawing {
        let text = match form {
            Form::Svg => timeline::svg(&first),
            Form::Perfetto => timeline::perfetto(&first, &|n| bench.line(n)),
        };
        results.add(&name, text.as_bytes()).map_err(|e| e.to_string())?;
        results.commit().map_err(|e| e.to_string())?;
    }
    if as_json {
        let range = range.map(|(low, high)| json!({ "low_ns": low, "high_ns": high }));
        let swings: Vec<_> = (swings.iter())
            .map(|s| json!({ "number": s.name, "low": s.ends[0], "high": s.ends[1], "time_ns": s.times }))
            .collect();
        let mut document = json!({
            "predicted": first, "range": range, "exit": CLEAN,
            "issue": { "from": bench.costs.name(), "no_machine_code": bench.costs.missing },
        });
        if timing.sensitivity.is_some() {
            document["sensitivity"] = json!(swings);
        }
        return Ok((CLEAN, format!("{document:#}\n")));
    }
    let mut text = bench.text(&first, range);
    if let Some(most) = timing.sensitivity {
        text += &tornado(&swings, &first, most);
    }
    Ok((CLEAN, text))
}

/// The clock that a load that lasts would fall to, as a note.
fn clock_note(chip: &Chip, first: &Prediction, clock: Clock) -> String {
    let sustained = chip.sustained_clock(first.tensor_use());
    match clock {
        Clock::Maximum if sustained < 0.98 * first.clock => format!(
            "clock     {:.0} MHz, the maximum; a load that lasts lowers it to some {sustained:.0} MHz (--clock sustained)\n",
            first.clock
        ),
        Clock::Maximum | Clock::Mhz(_) | Clock::Sustained => String::new(),
    }
}

/// The effect of one uncertain number of the chip on the time.
struct Swing {
    name: &'static str,
    /// The ends of its range.
    ends: [f64; 2],
    /// Times at the two ends in ns.
    times: [f64; 2],
}

impl Swing {
    /// Decrease and increase from `time` in ns, each at least 0.
    fn parts(&self, time: f64) -> [f64; 2] {
        let [a, b] = self.times;
        [time - time.min(a.min(b)), a.max(b).max(time) - time]
    }
}

/// Predicts the time with each uncertain number at both ends; largest effects first.
fn swings(
    chip: &Chip,
    nominal: &Prediction,
    predict: &(dyn Fn(Chip) -> Result<Prediction, String> + Sync),
) -> Result<Vec<Swing>, String> {
    let numbers: Vec<_> = chip.uncertain().filter(|(name, _)| *name != "clock").collect();
    let swing = |(name, q): (&'static str, Quantity)| -> Result<Swing, String> {
        let ends = [q.low, q.high];
        let mut times = [nominal.time; 2];
        for (time, end) in times.iter_mut().zip(ends) {
            if end != q.value {
                *time = predict(chip.with(name, end).map_err(|e| e.to_string())?)?.time;
            }
        }
        Ok(Swing { name, ends, times })
    };
    let mut all = numbers.into_par_iter().map(swing).collect::<Result<Vec<_>, _>>()?;
    let width = |s: &Swing| s.parts(nominal.time).iter().sum::<f64>();
    all.sort_by(|a, b| width(b).total_cmp(&width(a)));
    Ok(all)
}

/// The numbers that matter most, and the range if all are off independently.
fn tornado(swings: &[Swing], nominal: &Prediction, most: usize) -> String {
    let time = nominal.time;
    let both = |i: usize| swings.iter().map(|s| s.parts(time)[i].powi(2)).sum::<f64>().sqrt();
    let mut out = format!(
        "range     {:.2} to {:.2} us if the chip's numbers are off independently: roots of sums of squares\n",
        (time - both(0)) / 1e3,
        (time + both(1)) / 1e3
    );
    out += "numbers of the chip that matter most, at the ends of their ranges\n";
    for s in swings.iter().take(most).filter(|s| s.times != [time; 2]) {
        let [low, high] = s.ends;
        let [a, b] = s.times.map(|t| t / 1e3);
        out += &format!("    {:<22} {low:>8} {a:>9.2} us   {high:>8} {b:>9.2} us\n", s.name);
    }
    out
}
