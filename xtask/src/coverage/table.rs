//! Rows of the coverage table, and how each cell is computed.

use serde::{Deserialize, Serialize};
use silumin::codegen::arch::TensorCore;
use silumin::codegen::spec::{Spec, SpecFile};
use silumin::runtime::device::{Schedule, Tracking};
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::launch_file;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Device, Distribution, DualGemm, EmulatorOptions, Formats, Shape};
use silumin_emulator::mutate::{Equivalents, Subject, SurveyOptions, text};
use silumin_testkit::launches::launches;
use silumin_testkit::values::{GEFORCE_VALUES, HOPPER_VALUES, SHAPES, VALUES, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Shape at which schedules and mutants are tried: ragged in M, N and K, several tiles in each direction for most
/// configurations, and K long enough for most rings to wrap. 16-bit elements fill the same number of K tiles with a
/// quarter of K.
fn small(arch: Arch) -> Shape {
    match arch.tensor_core() {
        TensorCore::Tcgen05 => Shape::new(130, 136, 1440),
        TensorCore::Wgmma => Shape::new(130, 136, 360),
        TensorCore::Mma => Shape::new(130, 136, 1440),
    }
}

/// Share of a row's mutants that must be caught or explained: a sample is too small for the bar of one kernel.
const BAR: f64 = 0.85;

/// How much is tried for each row.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Random schedules, beside early, late and one that starves each warp.
    pub seeds: u64,
    /// Approximate number of mutants of each launch.
    pub mutants: usize,
}

impl Effort {
    /// Effort for the document.
    pub const FULL: Effort = Effort { seeds: 64, mutants: 16 };
    /// Effort in tests.
    pub const QUICK: Effort = Effort { seeds: 2, mutants: 3 };
}

/// Tools shared by all rows.
pub struct Tools {
    ptxas: Ptxas,
    equivalents: Equivalents,
}

impl Tools {
    /// Reads the list of survivors that are known to be equivalent.
    pub fn new(ptxas: Ptxas) -> Result<Tools, String> {
        let path = silumin_testkit::root().join("tests/mutants.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Tools { ptxas, equivalents: Equivalents::parse(&text)? })
    }
}

/// A knob, its value, and the knobs set beside it.
pub type Entry = (&'static str, &'static str, &'static [Value]);

/// Chips on which values are tried, with their usual operands and the values for each.
pub const CHIPS: [(Arch, &[Entry]); 3] =
    [(Arch::Sm100a, VALUES), (Arch::Sm90a, HOPPER_VALUES), (Arch::Sm120a, GEFORCE_VALUES)];

/// What became of the mutants of a value's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutants {
    /// Caught.
    pub caught: usize,
    /// Explained.
    pub explained: usize,
    /// Number of mutants run, evenly spaced among those that `silumin mutate --list` shows.
    pub all: usize,
}

/// A line of `evidence/coverage.jsonl`: a knob's value, and what became of it. What is missing does not hold, and `fails` says why.
///
/// Values whose kernels are the same, byte for byte, are tried once: most of those that `auto` chooses anyway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The chip.
    pub chip: String,
    /// Formats of the operands and of C.
    pub formats: String,
    /// The knob.
    pub knob: String,
    /// Its value.
    pub value: String,
    /// Other knobs that are set, because the value needs them or shows more with them. All others are `auto` or the
    /// default.
    pub beside: Vec<(String, String)>,
    /// The most registers per thread, if ptxas assembles the kernels of three shapes without a warning, spills or a
    /// stack.
    pub registers: Option<u32>,
    /// Relative error (Frobenius norm) at the even shape, if every element is right. Operands have all codes and the
    /// whole range of scale factors. An f16 element is right within 1e-3 + 1e-3 of an f64 reference, a bf16 one
    /// within what its rounding and fp32 sums allow.
    pub even: Option<f64>,
    /// Relative error at the ragged shape.
    pub ragged: Option<f64>,
    /// Number of schedules without a finding and with a right result at a small shape: early, late, each warp
    /// starved, and random ones, with tracking that requires all fences.
    pub schedules: Option<usize>,
    /// Mutants at the small shape, with one random seed.
    pub mutants: Option<Mutants>,
    /// Failures by column.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fails: BTreeMap<String, String>,
}

impl Row {
    /// The same results for another value with the same kernels.
    #[must_use]
    pub fn of_value(&self, (knob, value, beside): &Entry) -> Row {
        Row { knob: (*knob).into(), value: (*value).into(), beside: owned(beside), ..self.clone() }
    }

    /// `knob = value`, and the knobs set beside it.
    #[must_use]
    pub fn name(&self) -> String {
        let beside: Vec<String> =
            self.beside.iter().map(|(knob, value)| format!("{knob} = {value}")).collect();
        format!("{}: {} = {} ({})", self.chip, self.knob, self.value, beside.join(", "))
    }

    /// Whether the row is for this value.
    #[must_use]
    pub fn is_of(&self, chip: Arch, (knob, value, beside): &Entry) -> bool {
        self.chip == chip.target()
            && self.knob == *knob
            && self.value == *value
            && self.beside == owned(beside)
    }

    /// Whether every column holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        let there = self.registers.is_some() && self.even.is_some() && self.ragged.is_some();
        there && self.schedules.is_some() && self.mutants.is_some() && self.fails.is_empty()
    }

    /// All failures.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.fails.iter().map(|(column, why)| format!("{}: {column}: {why}", self.name())).collect()
    }
}

fn owned(values: &[Value]) -> Vec<(String, String)> {
    values.iter().map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned())).collect()
}

/// The lines of a file.
///
/// # Errors
///
/// A file that cannot be read, or a line that is no row.
pub fn read(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let rows = text.lines().enumerate().map(|(index, line)| {
        serde_json::from_str(line).map_err(|e| format!("{}:{}: {e}", path.display(), index + 1))
    });
    rows.collect()
}

/// Hashes of a value's kernels. Values with equal kernels are tried once.
pub fn kernels(arch: Arch, entry: &Entry) -> Result<Vec<[u8; 32]>, String> {
    let hash = |shape: Shape| {
        let kernel = spec(arch, entry, shape)?.kernel(shape, arch);
        Ok(kernel.map_err(|e| e.to_string())?.hash)
    };
    [SHAPES[0], SHAPES[1], small(arch)].into_iter().map(hash).collect()
}

/// The dual GEMM with one knob value set.
fn spec(arch: Arch, (knob, value, beside): &Entry, shape: Shape) -> Result<Spec, String> {
    let mut file = SpecFile::new(shape);
    file.arch = arch.to_string();
    for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
        file.config.set(knob, value).map_err(|e| e.to_string())?;
    }
    Ok(file.read().map_err(|e| e.to_string())?.0)
}

/// Tries one value.
#[must_use]
pub fn row(arch: Arch, entry: &Entry, tools: &Tools, effort: Effort) -> Row {
    let spec = |shape: Shape| spec(arch, entry, shape);
    let right = |shape: Shape| spec(shape).and_then(|spec| judge(arch, &spec, shape));
    let assembled = || {
        let shapes = [SHAPES[0], SHAPES[1], small(arch)];
        let registers = shapes.map(|shape| assemble(arch, &spec(shape)?, shape, &tools.ptxas));
        registers.into_iter().try_fold(0, |most, one| one.map(|one| most.max(one)))
    };
    let mut fails = BTreeMap::new();
    Row {
        chip: arch.target().to_owned(),
        formats: Formats::usual(arch).to_string(),
        knob: entry.0.into(),
        value: entry.1.into(),
        beside: owned(entry.2),
        registers: note(&mut fails, "registers", assembled()),
        even: note(&mut fails, "even", right(SHAPES[0])),
        ragged: note(&mut fails, "ragged", right(SHAPES[1])),
        schedules: note(
            &mut fails,
            "schedules",
            spec(small(arch)).and_then(|spec| schedules(arch, &spec, effort)),
        ),
        mutants: note(
            &mut fails,
            "mutants",
            spec(small(arch)).and_then(|spec| mutants(arch, &spec, tools, effort)),
        ),
        fails,
    }
}

/// The value, or `None` after noting the error.
fn note<T>(fails: &mut BTreeMap<String, String>, column: &str, result: Result<T, String>) -> Option<T> {
    result.map_err(|why| fails.insert(column.to_owned(), why)).ok()
}

/// Registers of the kernels, which must assemble without spills or warnings.
fn assemble(arch: Arch, spec: &Spec, shape: Shape, ptxas: &Ptxas) -> Result<u32, String> {
    let kernel = spec.kernel(shape, arch).map_err(|e| e.to_string())?;
    let assembled = ptxas.assemble(&kernel.ptx, kernel.arch).map_err(|e| e.to_string())?;
    let clean = assembled.entries.iter().all(|e| e.spill_stores + e.spill_loads + e.stack_frame == 0);
    if !clean || !assembled.warnings.is_empty() {
        return Err(format!("{shape}: spills or warnings:\n{}", assembled.log));
    }
    Ok(assembled.entries.iter().map(|entry| entry.registers).max().unwrap_or(0))
}

/// Runs the kernels on all e2m1 codes and the whole range of scale factors, and compares with the reference.
fn judge(arch: Arch, spec: &Spec, shape: Shape) -> Result<f64, String> {
    let options = EmulatorOptions { threads: 1, ..EmulatorOptions::default() };
    let device = Device::emulated_with(arch, options);
    let verification = DualGemm::new(spec.clone()).verify(&device, shape, Distribution::Full, 7, &[]);
    let verification = verification.map_err(|e| format!("{shape}: {e}"))?;
    match verification.check.pass {
        // Two digits: the others differ from machine to machine.
        true => Ok(format!("{:.1e}", verification.check.rel_frobenius).parse().unwrap_or(f64::NAN)),
        false => Err(format!("{shape}: {}", verification.check)),
    }
}

/// Runs the small shape under one schedule, with happens-before tracking that requires every fence.
fn track(arch: Arch, spec: &Spec, schedule: Schedule) -> Result<(), String> {
    let options =
        EmulatorOptions { threads: 1, schedule, tracking: Tracking::Strict, ..EmulatorOptions::default() };
    let device = Device::emulated_with(arch, options);
    let verification = DualGemm::new(spec.clone()).verify(&device, small(arch), Distribution::Full, 7, &[]);
    let report = verification.map_err(|e| format!("{schedule:?}: {e}"))?.check;
    if report.pass { Ok(()) } else { Err(format!("{}, {schedule:?}: {report}", small(arch))) }
}

/// Runs the small shape under adversarial schedules.
fn schedules(arch: Arch, spec: &Spec, effort: Effort) -> Result<usize, String> {
    let kernel = spec.kernel(small(arch), arch).map_err(|e| e.to_string())?;
    let warps = kernel.launches.iter().map(|launch| launch.block.iter().product::<u32>().div_ceil(32)).max();
    let mut all = vec![Schedule::Early, Schedule::Late];
    all.extend((0..warps.unwrap_or(0)).map(|warp| Schedule::Starve { warp, seed: warp.into() }));
    all.extend((0..effort.seeds).map(Schedule::Random));
    for schedule in &all {
        track(arch, spec, *schedule)?;
    }
    Ok(all.len())
}

/// Runs a sample of each launch's mutants.
fn mutants(arch: Arch, spec: &Spec, tools: &Tools, effort: Effort) -> Result<Mutants, String> {
    let kernel = spec.kernel(small(arch), arch).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let inputs = DualGemmInputs::generate_problem(&kernel.problem, None, Distribution::Benchmark, 1111);
    let inputs = inputs.map_err(|e| e.to_string())?;
    launch_file::write(folder.path(), &kernel, Some(&inputs), &[]).map_err(|e| e.to_string())?;
    let (mut caught, mut explained, mut all) = (0, 0, 0);
    let mut survivors = String::new();
    for launch in launches(&kernel, folder.path())? {
        let subject = Subject::read(&launch).map_err(|e| e.to_string())?;
        let every = (subject.mutants(&[]).len() / effort.mutants).max(1);
        let equivalents = tools.equivalents.clone();
        let plan = SurveyOptions { seeds: 1, threads: 1, every, equivalents, ..SurveyOptions::default() };
        let survey = subject.survey(&plan).map_err(|e| e.to_string())?;
        caught += survey.caught();
        explained += survey.explained();
        all += survey.outcomes.len();
        survivors += &text(&survey);
    }
    let good = caught + explained;
    if (good as f64) < BAR * all as f64 {
        return Err(format!("{good} of {all} caught or explained:\n{survivors}"));
    }
    Ok(Mutants { caught, explained, all })
}
