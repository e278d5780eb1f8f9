//! What the page says of a kernel: collected here, drawn by the page's script.

use super::timeline::{Kind, row};
use super::{memory, waits};
use serde::Serialize;
use silumin::codegen::kernel::Kernel;
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::{Spec, SpecFile};
use silumin::runtime::predict::{Chip, IssueSource, Prediction, TimeOptions, default_chip};
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::launch_file;
use silumin::{GroupSizes, Shape};
use silumin_emulator::time::issue_costs;
use silumin_emulator::{Finding, GlobalMemory, LaunchFile, Options, Tracking};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Seed of the operands of a kernel that is made here.
const SEED: u64 = 1111;

/// How a kernel is looked at.
pub struct Look {
    /// Name of the chip for predicted times; the target's usual one without it.
    pub chip: Option<String>,
    /// Where issue costs come from.
    pub issue: IssueSource,
    /// Whether the kernel is run with values, to find what is wrong with it.
    pub run: bool,
}

/// A kernel on the page.
#[derive(Serialize)]
pub struct Shown {
    /// The file, or the kernel's name.
    pub name: String,
    /// What it computes, and where.
    pub about: String,
    /// Lines of the PTX.
    pub ptx: Vec<String>,
    /// Knobs: name, value, and the rule that chose it; empty where no plan is known.
    pub knobs: Vec<(String, String, String)>,
    /// Maps of memory and the picture of waits, as SVG; empty where no plan is known.
    pub pictures: Vec<String>,
    /// Its launches, in order.
    pub launches: Vec<LaunchShown>,
}

/// A launch on the page.
#[derive(Serialize)]
pub struct LaunchShown {
    /// The entry.
    pub entry: String,
    /// The predicted time, or why there is none.
    pub time: Result<TimeShown, String>,
    /// Where issue costs come from, in a line.
    pub issue: String,
    /// Issue slots and clocks of a warp, by line of the PTX.
    pub costs: BTreeMap<u32, (f64, f64)>,
    /// Machine instructions by line of the PTX; `None` without the tools.
    pub sass: Option<BTreeMap<u32, Vec<String>>>,
    /// What is wrong with it; `None` if it was not run.
    pub findings: Option<Vec<FindingShown>>,
}

/// A finding on the page.
#[derive(Serialize)]
pub struct FindingShown {
    kind: String,
    line: u32,
    place: String,
    message: String,
    count: u64,
    warning: bool,
}

/// A predicted time on the page; times are in ns.
#[derive(Serialize)]
pub struct TimeShown {
    chip: String,
    clock: f64,
    /// Time of one launch if launches follow each other in a stream.
    time: f64,
    /// Time from the first instruction to the end.
    kernel: f64,
    /// Causes on the critical path and their times, the longest first.
    path: Vec<(&'static str, f64)>,
    /// Fractions of the chip that are busy.
    shares: Vec<(&'static str, f64)>,
    /// Rows of the timeline: CTA and name.
    rows: Vec<String>,
    /// Row, start, length, kind, line, and the line that ended a wait.
    bars: Vec<(usize, f64, f64, usize, u32, u32)>,
    /// Names and fills of the kinds of bars.
    kinds: Vec<(&'static str, &'static str)>,
    /// Share of all warps' time that is spent at a line.
    lines: BTreeMap<u32, f64>,
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn time_shown(p: &Prediction, role: &dyn Fn(u32) -> Option<&'static str>) -> TimeShown {
    let mut keys: Vec<([u32; 3], u32, String)> = Vec::new();
    for bar in &p.bars {
        let (id, name) = row(bar.track, role);
        let key = (bar.cta, id, format!("CTA {} {name}", bar.cta[0]));
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort();
    let mut bars: Vec<_> = (p.bars.iter())
        .filter_map(|bar| {
            let id = row(bar.track, role).0;
            let at = keys.iter().position(|key| (key.0, key.1) == (bar.cta, id))?;
            let kind = Kind::ALL.iter().position(|kind| *kind == Kind::of(bar))?;
            Some((at, tenths(bar.start), tenths(bar.length), kind, bar.line, bar.ended_by))
        })
        .collect();
    bars.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let lived: f64 = p.warps.iter().map(|warp| warp.lived).sum();
    let mut path: Vec<_> = p.path.iter().map(|(cause, ns)| (cause.name(), tenths(*ns))).collect();
    path.sort_by(|a, b| b.1.total_cmp(&a.1));
    TimeShown {
        chip: p.chip.clone(),
        clock: p.clock,
        time: tenths(p.time),
        kernel: tenths(p.kernel),
        path: path.into_iter().filter(|(_, ns)| *ns >= 5.0).collect(),
        shares: p.shares.iter().map(|share| (share.name, (share.used * 1e4).round() / 1e4)).collect(),
        rows: keys.into_iter().map(|key| key.2).collect(),
        bars,
        kinds: Kind::ALL.map(|kind| (kind.name(), kind.fill())).to_vec(),
        lines: (p.lines.iter())
            .map(|(line, clocks)| (*line, (clocks / lived.max(1.0) * 1e6).round() / 1e6))
            .filter(|(_, share)| *share > 0.0)
            .collect(),
    }
}

fn finding(finding: &Finding, warning: bool) -> FindingShown {
    let [x, y, z] = finding.cta;
    FindingShown {
        kind: format!("{:?}", finding.kind),
        line: finding.line,
        place: format!("CTA {x}, {y}, {z}, warp {}", finding.warp),
        message: finding.message.clone(),
        count: finding.count,
        warning,
    }
}

/// Runs a launch with values; what is wrong with it, and the memory that it leaves.
fn found(file: &LaunchFile, after: Option<&Path>) -> Result<Vec<FindingShown>, Box<dyn Error>> {
    let (memory, buffers): (GlobalMemory, _) = file.allocate();
    let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
    let report = file.module.run(&file.kernel, &file.launch, &memory, &options)?;
    if let Some(folder) = after {
        fs::create_dir_all(folder)?;
        for (spec, buffer) in file.buffers.iter().zip(&buffers) {
            fs::write(folder.join(format!("{}.bin", spec.name)), memory.read(buffer))?;
        }
    }
    let warnings = report.warnings.iter().map(|of| finding(of, true));
    Ok(report.findings.iter().map(|of| finding(of, false)).chain(warnings).collect())
}

fn launch(
    file: &LaunchFile,
    look: &Look,
    after: Option<&Path>,
    role: &dyn Fn(u32) -> Option<&'static str>,
) -> Result<LaunchShown, Box<dyn Error>> {
    let chip = match &look.chip {
        Some(name) => Chip::named(name)?,
        // For targets without a file of numbers any chip serves: predicting refuses them, and the page says so.
        None => Chip::named(default_chip(file.module.chip()).unwrap_or("b200"))?,
    };
    let found_costs = look.issue.find(&file.module, &file.text, &chip)?;
    let findings = if look.run { Some(found(file, after)?) } else { None };
    let timing = TimeOptions {
        timeline: Some([0; 3]),
        sass: found_costs.sass.clone(),
        ..TimeOptions::new(chip.clone())
    };
    let (memory, _) = file.allocate();
    let predicted = file.module.time(&file.kernel, &file.launch, &memory, &Options::default(), &timing);
    let costs = issue_costs(&file.module, &file.kernel, &chip, found_costs.sass.as_ref())?;
    let sass = found_costs.sass.as_ref().map(|sass| {
        let mut lines: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (line, text, stall) in sass.code(&file.kernel) {
            lines.entry(line).or_default().push(format!("{text}  [{stall}]"));
        }
        lines
    });
    Ok(LaunchShown {
        entry: file.kernel.clone(),
        time: predicted.map(|p| time_shown(&p, role)).map_err(|e| e.to_string()),
        issue: found_costs.to_string(),
        costs: costs.iter().map(|cost| (cost.line, (tenths(cost.slots), tenths(cost.clocks)))).collect(),
        sass,
        findings,
    })
}

/// A launch file of any compiler's kernel.
///
/// # Errors
/// The file is not a launch file, or its kernel cannot be run or timed.
pub fn of_launch(path: &Path, look: &Look) -> Result<Shown, Box<dyn Error>> {
    let file = LaunchFile::read(path)?;
    let [x, y, z] = file.launch.grid;
    let shown = launch(&file, look, None, &|_| None)?;
    Ok(Shown {
        name: path.file_stem().and_then(|name| name.to_str()).unwrap_or("kernel").to_owned(),
        about: format!(
            "{} of {}: target {}, grid {x} x {y} x {z}, {} bytes of dynamic shared memory",
            file.kernel,
            path.display(),
            file.module.target().first().map_or("none", String::as_str),
            file.launch.dynamic_smem
        ),
        ptx: file.text.lines().map(str::to_owned).collect(),
        knobs: Vec::new(),
        pictures: Vec::new(),
        launches: vec![shown],
    })
}

fn inputs(kernel: &Kernel, shape: Shape) -> Result<DualGemmInputs, Box<dyn Error>> {
    let formats = kernel.problem.formats;
    Ok(match shape.groups.by_rows() {
        true => {
            let sizes = GroupSizes::new(shape, &shape.even_sizes())?;
            DualGemmInputs::generate_grouped(shape, sizes.as_slice(), formats, Distribution::Benchmark, SEED)?
        }
        false => DualGemmInputs::generate_for(shape, formats, Distribution::Benchmark, SEED)?,
    })
}

/// A kernel of ours, from its description.
///
/// # Errors
/// An illegal configuration, or a kernel that cannot be run or timed.
pub fn of_spec(file: &SpecFile, look: &Look) -> Result<(Plan, Shown), Box<dyn Error>> {
    let (spec, arch): (Spec, _) = file.read()?;
    let shape = file.shape();
    let plan = spec.plan(shape, arch).map_err(|errors| silumin::codegen::error::explain(&errors))?;
    let kernel = spec.kernel(shape, arch)?;
    let scalars: Vec<(&str, f32)> = kernel.scalars().into_iter().map(|name| (name, 1.0)).collect();
    let folder = tempfile::tempdir()?;
    launch_file::write(folder.path(), &kernel, Some(&inputs(&kernel, shape)?), &scalars)?;
    let count = kernel.launches.len();
    let names = (1..=count).map(|index| match count {
        1 => kernel.name.clone(),
        _ => format!("{}.{index}", kernel.name),
    });
    let role = |warp| waits::warp(warp, &plan);
    let mut launches = Vec::new();
    for name in names {
        let after: PathBuf = folder.path().join(format!("{name}.out"));
        // What a launch leaves is what the next one reads: a kernel of several launches is always run.
        let look = Look { run: look.run || count > 1, chip: look.chip.clone(), ..*look };
        let file = LaunchFile::read(&folder.path().join(format!("{name}.toml")))?;
        launches.push(launch(&file, &look, Some(&after), &role)?);
    }
    let choices = plan.explain().choices.into_iter();
    let knobs = choices.map(|choice| {
        let rule = choice.rule.map_or("as asked for".to_owned(), |rule| format!("auto: {rule}"));
        (choice.knob.to_owned(), choice.value, rule)
    });
    let shown = Shown {
        name: kernel.name.clone(),
        about: format!("{}, {arch}, gate {}", plan.problem, spec.gate),
        ptx: kernel.ptx.lines().map(str::to_owned).collect(),
        knobs: knobs.collect(),
        pictures: vec![memory::draw(&plan), waits::draw(&plan)],
        launches,
    };
    Ok((plan, shown))
}
