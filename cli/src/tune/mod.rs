//! The verb `tune`: finds the fastest knobs for shapes on a device, and stores them in a file that warm-ups read.
//!
//! ```text
//! silumin tune --device cuda:0 --formats bf16,bf16,bf16 --shapes 256x4096x7168,16x14336x4096
//! silumin tune --device emulated:sm_100a        # ranked by bytes and waves: no GPU, no times
//! silumin tune --list
//! silumin tune --out model.tuning --merge from-another-machine.tuning
//! ```
//!
//! The file lies beside the cache, unless `--out` names another one. It is written after each shape, so that a killed run
//! can be continued: shapes with a valid result are skipped (`--again` tunes them again).
//!
//! On a GPU each shape is tuned in its own process. A kernel that destroys the driver's context, ends the process, or gives no
//! output for `--patience` seconds is recorded as failed, and another process continues without it.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

mod trials;

use crate::print;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use serde_json::{Value, json};
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::runtime::regular_file::{SETTINGS_LIMIT, read_text};
use silumin::runtime::tune::{Candidate, FILE, Fate, Found, Step, TuningEntry, Verdict, difference, knobs};
use silumin::runtime::tune::{Ranked, Space, Table, Tune, TuneError, Tuned};
use silumin::{Arch, Cache, Config, Device, DualGemm, Shape};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use trials::Message;

/// Finds the fastest knobs for shapes on a device, and stores them in a file that warm-ups read.
#[derive(Parser)]
pub struct Flags {
    /// The device: `cuda:N`, or an emulated chip such as `emulated:sm_90a`.
    #[arg(long, default_value = "emulated:sm_100a")]
    device: String,
    /// Shapes MxNxK, separated by commas; `:l4` after a shape is a batch of four, `:g8` eight groups of rows.
    #[arg(long, default_value = "256x4096x7168")]
    shapes: String,
    /// Formats of A, B and C; by default the chip's usual ones.
    #[arg(long)]
    formats: Option<String>,
    /// The gate.
    #[arg(long, default_value = "silu(A @ B1) * (A @ B2)")]
    gate: String,
    /// Knobs with fixed values, such as `stages=3 pdl=on`.
    #[arg(long, default_value = "")]
    knobs: String,
    /// A file with the search space: each line has knobs and values to combine, `tile=128x64x64|128x128x64 stages=2|3`. By default
    /// the values that are usually worth trying.
    #[arg(long)]
    space: Option<PathBuf>,
    /// Time for each shape, in seconds.
    #[arg(long, default_value_t = 20.0)]
    budget: f64,
    /// Number of kernels to load: `auto` and those with the best predictions.
    #[arg(long, default_value_t = 32)]
    keep: usize,
    /// Multiply-adds that a check may take; larger problems are checked on a sample, or not run on an emulated device.
    #[arg(long, default_value_t = 2e9)]
    check: f64,
    /// The file of results; by default the one beside the cache.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Also tune shapes that already have a valid result.
    #[arg(long)]
    again: bool,
    /// Seconds without output after which a tuning process is ended; the kernel that it was running counts as failed.
    #[arg(long, default_value_t = 60.0)]
    patience: f64,
    /// Internal: tunes one shape and reports to the parent; standard input lists kernels not to launch.
    #[arg(long, hide = true)]
    child: bool,
    /// Number of kernels shown for each shape.
    #[arg(long, default_value_t = 5)]
    top: usize,
    /// Add the results of another file, without tuning; may be given several times.
    #[arg(long)]
    merge: Vec<PathBuf>,
    /// List the results, without tuning; those that this device does not use come first.
    #[arg(long)]
    list: bool,
    /// Print the results as one JSON document to standard output; what people read goes to standard error.
    #[arg(long)]
    json: bool,
}

/// The flags.
#[must_use]
pub fn command() -> clap::Command {
    Flags::command().name("tune")
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let flags = match Flags::from_arg_matches(matches) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    };
    if flags.child {
        child(&flags);
        return ExitCode::SUCCESS;
    }
    let own = || -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("tune");
        Ok(command)
    };
    if !flags.json {
        return crate::status(execute(&flags, &own, &mut print::Out).map(|()| true));
    }
    let said =
        execute(&flags, &own, &mut io::stderr()).and_then(|()| Ok(print::document(&document(&flags)?)?));
    crate::status(said.map(|()| true))
}

/// Makes a command that starts this program again.
pub type Own<'a> = &'a dyn Fn() -> io::Result<Command>;

impl Flags {
    /// The flags of a child for one shape.
    fn child(&self, shape: &str, file: &Path) -> Vec<String> {
        let Flags { device, gate, knobs, budget, keep, check, top, .. } = self;
        let pairs = [
            ("device", device.clone()),
            ("shapes", shape.to_owned()),
            ("gate", gate.clone()),
            ("knobs", knobs.clone()),
            ("budget", budget.to_string()),
            ("keep", keep.to_string()),
            ("check", check.to_string()),
            ("top", top.to_string()),
            ("out", file.display().to_string()),
        ];
        let optional = [
            self.formats.as_ref().map(|formats| ("formats", formats.clone())),
            self.space.as_ref().map(|space| ("space", space.display().to_string())),
        ];
        let flags = pairs.into_iter().chain(optional.into_iter().flatten());
        flags.map(|(name, value)| format!("--{name}={value}")).chain(["--child".to_owned()]).collect()
    }
}

/// Tunes one shape, and reports to the parent process.
pub fn child(flags: &Flags) {
    let tuned = || -> Result<Message, Box<dyn Error>> {
        let lost = trials::heard()?;
        let (device, file) = (device(&flags.device)?, flags.out.clone().ok_or("--child without --out")?);
        let gemm = gemm(flags, &device, shape(flags.shapes.trim())?)?;
        match tune_one(flags, &device, &gemm, shape(flags.shapes.trim())?, &lost, &file) {
            Ok(tuned) => {
                let mut said = Vec::new();
                show(&tuned, flags.top, &mut said)?;
                Ok(Message::Done(String::from_utf8(said)?, row(&tuned)))
            }
            Err(error) => match error.downcast::<TuneError>().map(|error| *error) {
                Ok(TuneError::Lost { knobs, reason }) => Ok(Message::Lost(knobs, reason)),
                Ok(error) => Err(error.into()),
                Err(error) => Err(error),
            },
        }
    };
    trials::say(&tuned().unwrap_or_else(|error| Message::Failed(error.to_string())));
}

/// The device that a name stands for.
fn device(text: &str) -> Result<Device, Box<dyn Error>> {
    match text.split_once(':') {
        Some(("emulated", chip)) => Ok(Device::emulated(chip.parse::<Arch>()?)),
        #[cfg(feature = "cuda")]
        Some(("cuda", number)) => {
            let number = number
                .parse()
                .map_err(|_| format!("--device: `{number}` is no GPU's number, such as cuda:0"))?;
            // Without a cache: hundreds of kernels that lose are not worth a place in one.
            Ok(Device::cuda(number)?)
        }
        _ => Err(format!("--device: `{text}` is neither cuda:NUMBER nor emulated:CHIP").into()),
    }
}

fn shape(text: &str) -> Result<Shape, String> {
    let bad = || {
        format!("--shapes: `{text}` is not MxNxK, such as 256x4096x7168 (:l4 for a batch, :g8 for groups)")
    };
    let (sizes, groups) = text.split_once(':').map_or((text, None), |(sizes, groups)| (sizes, Some(groups)));
    let sizes: Vec<u32> =
        sizes.split('x').map(|size| size.trim().parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
    let [m, n, k] = sizes[..] else { return Err(bad()) };
    let whole = Shape::new(m, n, k);
    match groups.map(|text| (text.get(..1).unwrap_or(""), text.get(1..).unwrap_or("").parse::<u32>())) {
        None => Ok(whole),
        Some(("l", Ok(count))) => Ok(whole.batch(count)),
        Some(("g", Ok(count))) => Ok(whole.grouped(count)),
        Some(_) => Err(bad()),
    }
}

/// The file of results.
fn file(flags: &Flags) -> Result<PathBuf, Box<dyn Error>> {
    match (&flags.out, Cache::default_folder()) {
        (Some(file), _) => Ok(file.clone()),
        (None, Some(folder)) => {
            // The cache makes it for its owner alone.
            drop(Cache::open(&folder));
            Ok(folder.join(FILE))
        }
        (None, None) => Err("there is no folder for caches: name a file with --out".into()),
    }
}

/// All results of the file as a JSON document, with whether this device uses them.
///
/// # Errors
/// The file cannot be read, or there is no such device.
pub fn document(flags: &Flags) -> Result<Value, Box<dyn Error>> {
    let (file, device) = (file(flags)?, device(&flags.device)?);
    let table = results(&file)?;
    let stale = table.stale(&device.facts());
    let rows: Vec<Value> = (table.entries())
        .map(|entry| {
            let why = stale.iter().find(|(other, _)| other.key == entry.key).map(|(_, why)| why.to_string());
            let (us, auto_us, source) = match entry.ranked {
                Ranked::Predicted { us, auto_us, chip } => (Some(us), Some(auto_us), format!("predicted on {chip}")),
                Ranked::Measured { us, auto_us, .. } => (Some(us), auto_us, "measured".to_owned()),
                _ => (None, None, "unknown".to_owned()),
            };
            json!({
                "problem": entry.problem(), "knobs": entry.knobs, "us": us, "auto_us": auto_us, "source": source, "tried": entry.tried,
                "not_used": why,
            })
        })
        .collect();
    Ok(json!({ "file": file.display().to_string(), "device": device.to_string(), "results": rows }))
}

/// Runs the verb.
pub fn execute(flags: &Flags, own: Own<'_>, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let file = file(flags)?;
    let device = device(&flags.device)?;
    if !flags.merge.is_empty() {
        return merge(&file, &flags.merge, out);
    }
    if flags.list {
        return list(&file, &device, out);
    }
    tune_all(flags, own, &file, &device, out)
}

/// Reads a file of results; an empty table if there is no file.
fn results(file: &Path) -> Result<Table, Box<dyn Error>> {
    match file.try_exists()? {
        true => {
            let table = Table::read(file)?;
            for damaged in table.damaged() {
                eprintln!("{}:{}: left out: {}", file.display(), damaged.line, damaged.error);
            }
            Ok(table)
        }
        false => Ok(Table::new()),
    }
}

fn merge(file: &Path, others: &[PathBuf], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let before = results(file)?;
    let mut all = before.clone();
    for other in others {
        let table = Table::read(other)?;
        let came = all.merge(&table);
        writeln!(out, "{}: {came} of {} results are new or better", other.display(), table.len())?;
    }
    let saved = all.save(file)?;
    writeln!(out, "{}: {} results, {} before", file.display(), saved.len(), before.len())?;
    Ok(())
}

fn list(file: &Path, device: &Device, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let table = results(file)?;
    let stale = table.stale(&device.facts());
    for (entry, why) in &stale {
        writeln!(out, "not used on {device}: {}: {}\n    {why}", entry.problem(), shown(entry))?;
    }
    for entry in table.entries().filter(|entry| !stale.iter().any(|(other, _)| other.key == entry.key)) {
        writeln!(out, "{}{}: {}", entry.problem(), beside(&entry.key.base), shown(entry))?;
    }
    writeln!(
        out,
        "{}: {} results, {} of them for {device}",
        file.display(),
        table.len(),
        table.len() - stale.len()
    )?;
    Ok(())
}

fn beside(base: &str) -> String {
    if base.is_empty() { String::new() } else { format!(", {base}") }
}

/// Describes a result.
fn shown(entry: &TuningEntry) -> String {
    let knobs = if entry.knobs.is_empty() { "auto" } else { &entry.knobs };
    match entry.ranked {
        Ranked::Predicted { us, auto_us, chip } => {
            format!("{knobs} (predicted {us:.2} us on {chip}, {:.3} of auto)", us / auto_us)
        }
        Ranked::Measured { us, ratio, .. } => {
            let beside = ratio.map(|ratio| format!(", {ratio:.3} of auto")).unwrap_or_default();
            format!("{knobs} ({us:.2} us{beside})")
        }
        _ => knobs.to_owned(),
    }
}

/// What is tuned.
fn gemm(flags: &Flags, device: &Device, shape: Shape) -> Result<DualGemm, Box<dyn Error>> {
    let mut described = SpecFile::new(shape);
    described.arch = device.arch().to_string();
    described.gate.clone_from(&flags.gate);
    if let Some(formats) = &flags.formats {
        let [a, b, c] = <[&str; 3]>::try_from(formats.split(',').collect::<Vec<_>>())
            .map_err(|_| format!("--formats: `{formats}` is not A,B,C, such as bf16,bf16,bf16"))?;
        described.formats = FormatNames { a: a.into(), b: b.into(), c: c.into(), ..FormatNames::default() };
    }
    described.config = knobs(&flags.knobs, &Config::default())?;
    Ok(DualGemm::new(described.read()?.0))
}

fn space(flags: &Flags) -> Result<Option<Space>, Box<dyn Error>> {
    let Some(path) = &flags.space else { return Ok(None) };
    Ok(Some(read_text(path, SETTINGS_LIMIT)?.parse()?))
}

/// Tunes one shape in this process, without launching the kernels in `lost`, and adds the result to the file.
fn tune_one(
    flags: &Flags,
    device: &Device,
    gemm: &DualGemm,
    shape: Shape,
    lost: &trials::Lost,
    file: &Path,
) -> Result<Tuned, Box<dyn Error>> {
    let mut tune = Tune::of(gemm, shape)
        .budget(Duration::from_secs_f64(flags.budget.clamp(0.1, 1e6)))
        .keep(flags.keep)
        .check_up_to(flags.check)
        .on_progress(|step| match step {
            Step::Wrong { .. } => eprintln!("{step}"),
            Step::Trying { knobs } if flags.child => trials::say(&Message::Trying(knobs.clone())),
            _ => {}
        });
    for (knobs, reason) in lost {
        tune = tune.lost(knobs, reason);
    }
    if let Some(space) = space(flags)? {
        tune = tune.space(space);
    }
    let tuned = tune.run(device)?;
    let mut found = Table::new();
    found.add(device, gemm, &tuned)?;
    found.save(file)?;
    Ok(tuned)
}

fn tune_all(
    flags: &Flags,
    own: Own<'_>,
    file: &Path,
    device: &Device,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let texts = flags.shapes.split(',').map(str::trim);
    let shapes: Vec<(&str, Shape)> =
        texts.map(|text| Ok((text, shape(text)?))).collect::<Result<_, String>>()?;
    space(flags)?;
    let gemm = gemm(flags, device, shapes[0].1)?;
    writeln!(out, "{device}: {}", gemm.spec().formats)?;
    let mut rows = Vec::new();
    for (text, shape) in shapes {
        let table = results(file)?;
        if let (false, Found::Tuned(entry, _)) = (flags.again, table.find(device, gemm.spec(), shape)) {
            writeln!(out, "{shape}: there is a result: {}", shown(entry))?;
            continue;
        }
        if flags.device.starts_with("cuda") {
            let patience = Duration::from_secs_f64(flags.patience.clamp(0.1, 1e6));
            let mut started = Ok(());
            let start = || {
                let mut command = own().unwrap_or_else(|error| {
                    started = Err(error);
                    Command::new("")
                });
                command.args(flags.child(text, file));
                command
            };
            let told = |knobs: &str, reason: &str| {
                let knobs = if knobs.is_empty() { "auto" } else { knobs };
                eprintln!(
                    "{shape}: the kernel of `{knobs}` took its process along: {reason}; going on without it"
                );
            };
            let outcome = trials::run(start, patience, told);
            started?;
            let (said, row, _) = outcome?;
            write!(out, "{said}")?;
            rows.push(row);
        } else {
            let tuned = tune_one(flags, device, &gemm, shape, &Vec::new(), file)?;
            show(&tuned, flags.top, out)?;
            rows.push(row(&tuned));
        }
    }
    summary(&rows, out)?;
    writeln!(out, "{}", file.display())?;
    Ok(())
}

fn show(tuned: &Tuned, top: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{tuned}; {:.1} s", tuned.took.as_secs_f64())?;
    // A reason starts with its knob.
    for (_, count, reason) in tuned.illegal.iter().take(top) {
        writeln!(out, "    illegal: {count}, the first by {reason}")?;
    }
    let mut line = |candidate: &Candidate| {
        let knobs = difference(&candidate.config, &tuned.base);
        let knobs = if knobs.is_empty() { "auto" } else { &knobs };
        let what = match &candidate.fate {
            Fate::Timed { us, turns, in_race } => {
                let slower = if *in_race { "" } else { ", shown to be slower" };
                format!("{us:9.2} us, {turns} turns{slower}")
            }
            Fate::Right => "right on the emulator".to_owned(),
            Fate::Ranked => "not run".to_owned(),
            Fate::Wrong(why) => format!("WRONG: {why}"),
            Fate::Refused(why) => format!("refused: {}", why.lines().next().unwrap_or("")),
            Fate::Failed(why) => format!("FAILED: {why}"),
            _ => "not tried".to_owned(),
        };
        let Candidate { bound, predicted, bytes, waves, .. } = candidate;
        let predicted = predicted.map_or_else(String::new, |us| format!("predicted {us:8.2} us, "));
        writeln!(
            out,
            "    {what:<34} {predicted}bound {bound:8.2} us {:8.1} MB {waves:5.2} waves  {knobs}",
            *bytes as f64 / 1e6
        )
    };
    tuned.candidates.iter().take(top).try_for_each(&mut line)?;
    let odd = |candidate: &&Candidate| {
        matches!(candidate.fate, Fate::Wrong(_) | Fate::Failed(_) | Fate::Refused(_))
    };
    tuned.candidates.iter().skip(top).filter(odd).try_for_each(line)
}

/// A row for each shape, for a document.
fn summary(rows: &[String], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n| shape | auto | tuned | ratio | verdict | timed | knobs |\n|---|---|---|---|---|---|---|"
    )?;
    rows.iter().try_for_each(|row| writeln!(out, "{row}"))
}

fn row(tuned: &Tuned) -> String {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let (auto, us, ratio, verdict) = match tuned.ranked {
        Ranked::Measured { us, auto_us, ratio, verdict, .. } => {
            let verdict = match verdict {
                Verdict::Clear => "clear",
                Verdict::Tied => "tied",
                Verdict::Open => "open",
            };
            (figure(auto_us), figure(Some(us)), ratio, verdict)
        }
        Ranked::Predicted { us, auto_us, .. } => {
            (figure(Some(auto_us)), figure(Some(us)), Some(us / auto_us), "predicted")
        }
        _ => ("-".to_owned(), "-".to_owned(), None, "-"),
    };
    let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    let knobs = Some(tuned.knobs()).filter(|knobs| !knobs.is_empty()).unwrap_or_else(|| "auto".to_owned());
    let (shape, timed) = (tuned.problem.shape, tuned.counts.timed);
    format!("| {shape} | {auto} | {us} | {ratio} | {verdict} | {timed} | `{knobs}` |")
}
