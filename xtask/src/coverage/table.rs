//! The rows of the table, and how each cell comes about.

use silumin::codegen::arch::TensorCore;
use silumin::codegen::spec::{Spec, SpecFile};
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::inputs::DualGemmInputs;
use silumin::runtime::launch_file;
use silumin::runtime::toolchain::Ptxas;
use silumin::{Arch, Device, Distribution, DualGemm, EmulatorOptions, Formats, Shape};
use silumin_emulator::mutate::{Equivalents, Plan, Subject, text};
use silumin_testkit::launches::launches;
use silumin_testkit::values::{HOPPER_VALUES, SHAPES, VALUES, Value};
use std::fmt::Write;

/// Where schedules and mutants are tried: ragged in M, N and K, several tiles each way of most configurations, and K
/// long enough for most rings to wrap. Elements of 16 bits fill as many K tiles with a quarter of K.
fn small(arch: Arch) -> Shape {
    match arch.tensor_core() {
        TensorCore::Tcgen05 => Shape::new(130, 136, 1440),
        TensorCore::Wgmma => Shape::new(130, 136, 360),
    }
}

/// Share of a row's mutants that must be caught or explained: a sample is too small for the bar of one kernel.
const BAR: f64 = 0.85;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Random schedules, besides all early, all late and one that starves each warp.
    pub seeds: u64,
    /// Mutants of each launch, about.
    pub mutants: usize,
}

impl Effort {
    /// What the document is made with.
    pub const FULL: Effort = Effort { seeds: 64, mutants: 16 };
    /// What the tests spend.
    pub const QUICK: Effort = Effort { seeds: 2, mutants: 3 };
}

/// What all rows share.
pub struct Tools {
    ptxas: Ptxas,
    equivalents: Equivalents,
}

impl Tools {
    /// Reads the list of survivors that are no mistakes.
    pub fn new(ptxas: Ptxas) -> Result<Tools, String> {
        let path = silumin_testkit::root().join("tests/mutants.toml");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Tools { ptxas, equivalents: Equivalents::parse(&text)? })
    }
}

/// What was seen, or what is wrong.
type Cell = Result<String, String>;

/// The columns after the knob's.
pub const COLUMNS: [&str; 5] = ["assembles", "even", "ragged", "schedules", "mutants"];

/// A knob, its value, and what stands beside it.
pub type Entry = (&'static str, &'static str, &'static [Value]);

/// The chips that values are tried on, with the operands that each is usually fed, and the values of each.
pub const CHIPS: [(Arch, &[Entry]); 2] = [(Arch::Sm100a, VALUES), (Arch::Sm90a, HOPPER_VALUES)];

/// A knob's value and what became of it.
pub struct Row {
    arch: Arch,
    knob: &'static str,
    value: &'static str,
    beside: &'static [Value],
    cells: [Cell; COLUMNS.len()],
}

impl Row {
    /// The same cells for another value that has the same kernels.
    pub fn of_value(&self, entry: &Entry) -> Row {
        let (knob, value, beside) = *entry;
        Row { knob, value, beside, cells: self.cells.clone(), ..*self }
    }

    /// The chip.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// `knob = value`, and what stands beside it.
    pub fn name(&self) -> String {
        format!("{}: {} = {} ({})", self.arch, self.knob, self.value, beside(self.beside))
    }

    /// Every cell that does not hold.
    pub fn faults(&self) -> Vec<String> {
        let cells = COLUMNS.iter().zip(&self.cells);
        cells
            .filter_map(|(column, cell)| Some(format!("{}: {column}: {}", self.name(), cell.as_ref().err()?)))
            .collect()
    }
}

/// Knobs that stand beside the one of the row, as the DSL spells them.
fn beside(values: &[Value]) -> String {
    let values: Vec<String> = values.iter().map(|(knob, value)| format!("{knob} = {value}")).collect();
    if values.is_empty() { "-".to_owned() } else { values.join(", ") }
}

/// The first cells of a row: what tells it from the others.
pub fn heading((knob, value, with): &Entry) -> String {
    format!("| `{knob}` | `{value}` | {} |", beside(with))
}

/// The kernels of one value, by their hashes: where two values have the same ones, they need be tried once.
pub fn kernels(arch: Arch, entry: &Entry) -> Result<Vec<[u8; 32]>, String> {
    let hash = |shape: Shape| {
        let kernel = spec(arch, entry, shape)?.kernel(shape, arch);
        Ok(kernel.map_err(|e| e.to_string())?.hash)
    };
    [SHAPES[0], SHAPES[1], small(arch)].into_iter().map(hash).collect()
}

/// The dual GEMM with one value set.
fn spec(arch: Arch, (knob, value, beside): &Entry, shape: Shape) -> Result<Spec, String> {
    let mut file = SpecFile::new(shape);
    file.arch = arch.to_string();
    for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
        file.config.set(knob, value).map_err(|e| e.to_string())?;
    }
    Ok(file.read().map_err(|e| e.to_string())?.0)
}

/// Fills the cells of one value.
pub fn row(arch: Arch, entry: &Entry, tools: &Tools, effort: Effort) -> Row {
    let (knob, value, beside) = *entry;
    let spec = |shape: Shape| spec(arch, entry, shape);
    let right = |shape: Shape| spec(shape).and_then(|spec| judge(arch, &spec, shape));
    let assembled = || {
        let shapes = [SHAPES[0], SHAPES[1], small(arch)];
        let registers = shapes.map(|shape| assemble(arch, &spec(shape)?, shape, &tools.ptxas));
        let most = registers.into_iter().try_fold(0, |most, one| one.map(|one| most.max(one)));
        most.map(|most| format!("{most} registers"))
    };
    let cells = [
        assembled(),
        right(SHAPES[0]),
        right(SHAPES[1]),
        spec(small(arch)).and_then(|spec| schedules(arch, &spec, effort)),
        spec(small(arch)).and_then(|spec| mutants(arch, &spec, tools, effort)),
    ];
    Row { arch, knob, value, beside, cells }
}

/// Registers of the kernels, which must assemble without spills and warnings.
fn assemble(arch: Arch, spec: &Spec, shape: Shape, ptxas: &Ptxas) -> Result<u32, String> {
    let kernel = spec.kernel(shape, arch).map_err(|e| e.to_string())?;
    let assembled = ptxas.assemble(&kernel.ptx, kernel.arch).map_err(|e| e.to_string())?;
    let clean = assembled.entries.iter().all(|e| e.spill_stores + e.spill_loads + e.stack_frame == 0);
    if !clean || !assembled.warnings.is_empty() {
        return Err(format!("{shape}: spills or warnings:\n{}", assembled.log));
    }
    Ok(assembled.entries.iter().map(|entry| entry.registers).max().unwrap_or(0))
}

/// One run on all e2m1 codes and the whole range of scales, against the reference.
fn judge(arch: Arch, spec: &Spec, shape: Shape) -> Cell {
    let options = EmulatorOptions { threads: 1, ..EmulatorOptions::default() };
    let device = Device::emulated_with(arch, options);
    let verification = DualGemm::new(spec.clone()).verify(&device, shape, Distribution::Full, 7, &[]);
    let verification = verification.map_err(|e| format!("{shape}: {e}"))?;
    match verification.check.pass {
        true => Ok(format!("{:.1e}", verification.check.rel_frobenius)),
        false => Err(format!("{shape}: {}", verification.check)),
    }
}

/// The same of the small shape under one schedule, with happens-before tracking that asks for every fence.
fn track(arch: Arch, spec: &Spec, schedule: Schedule) -> Result<(), String> {
    let options =
        EmulatorOptions { threads: 1, schedule, tracking: Tracking::Strict, ..EmulatorOptions::default() };
    let device = Device::emulated_with(arch, options);
    let verification = DualGemm::new(spec.clone()).verify(&device, small(arch), Distribution::Full, 7, &[]);
    let report = verification.map_err(|e| format!("{schedule:?}: {e}"))?.check;
    if report.pass { Ok(()) } else { Err(format!("{}, {schedule:?}: {report}", small(arch))) }
}

/// Runs under adversarial schedules.
fn schedules(arch: Arch, spec: &Spec, effort: Effort) -> Cell {
    let kernel = spec.kernel(small(arch), arch).map_err(|e| e.to_string())?;
    let warps = kernel.launches.iter().map(|launch| launch.block.iter().product::<u32>().div_ceil(32)).max();
    let mut all = vec![Schedule::Early, Schedule::Late];
    all.extend((0..warps.unwrap_or(0)).map(|warp| Schedule::Starve { warp, seed: warp.into() }));
    all.extend((0..effort.seeds).map(Schedule::Random));
    for schedule in &all {
        track(arch, spec, *schedule)?;
    }
    Ok(format!("{}", all.len()))
}

/// A sample of each launch's mutants.
fn mutants(arch: Arch, spec: &Spec, tools: &Tools, effort: Effort) -> Cell {
    let kernel = spec.kernel(small(arch), arch).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let inputs = DualGemmInputs::generate_for(small(arch), spec.formats, Distribution::Benchmark, 1111);
    let inputs = inputs.map_err(|e| e.to_string())?;
    launch_file::write(folder.path(), &kernel, Some(&inputs), &[]).map_err(|e| e.to_string())?;
    let (mut caught, mut explained, mut all) = (0, 0, 0);
    let mut survivors = String::new();
    for launch in launches(&kernel, folder.path())? {
        let subject = Subject::read(&launch).map_err(|e| e.to_string())?;
        let every = (subject.mutants(&[]).len() / effort.mutants).max(1);
        let equivalents = tools.equivalents.clone();
        let plan = Plan { seeds: 1, threads: 1, every, equivalents, ..Plan::default() };
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
    Ok(format!("{caught} + {explained} of {all}"))
}

/// The heading of a chip's table.
pub fn title(arch: Arch) -> String {
    format!("## {arch}, {}", Formats::usual(arch))
}

/// What all tables start with.
const HEAD: &str = "| knob | value | beside | ";

/// What goes before the tables.
pub fn head() -> String {
    let [even, ragged] = SHAPES;
    format!(
        "# Coverage

Every value of every knob that the tests know (`testkit/src/values.rs`), and what was tried with it. Written by
`cargo xtask coverage`, which fails if a cell does not hold. Values whose kernels are the same, byte for byte, are tried
once: most of those that `auto` chooses anyway.

* **beside**: other knobs that are set, because the value needs or is more telling with them. The rest is `auto` or the default.
* **assembles**: ptxas takes the kernels for all three shapes below without a warning, spills or a stack; the most registers of a thread.
* **even**, **ragged**: {even} and {ragged} on the emulator, all codes of the operands and the whole range of scales, every f16 element
  within 1e-3 + 1e-3 of an f64 reference, every bf16 one within what its rounding and fp32 sums allow; the relative error (Frobenius norm).
* **schedules**: {} under so many schedules,
  with happens-before tracking that asks for every fence: all early, all late, each warp starved, and random ones; nothing found and right
  under each.
* **mutants**: of the same shape, evenly spaced among all that `silumin mutate --list` shows: caught + explained of
  all, one random seed. The bar of a row is {:.0} %, for a sample is small; whole surveys are in [mutants.md](mutants.md).
",
        CHIPS.map(|(arch, _)| format!("{} on {arch}", small(arch))).join(", "),
        BAR * 100.0
    )
}

/// A chip's table under its heading, with a blank line before it.
pub fn section(arch: Arch, rows: &[&Row], effort: Effort) -> String {
    let Effort { seeds, mutants } = effort;
    let mut out = format!(
        "\n{}\n\nRandom schedules of each row: {seeds}. Mutants of each launch: about {mutants}.\n\n{HEAD}{} |\n|---|---|---|---|---|---|---|---|\n",
        title(arch),
        COLUMNS.join(" | ")
    );
    for row in rows {
        let cell = |cell: &Cell| cell.clone().unwrap_or_else(|_| "**fails**".to_owned());
        let cells: Vec<String> = row.cells.iter().map(cell).collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} {} |", heading(&(row.knob, row.value, row.beside)), cells.join(" | "));
    }
    out
}

/// The section of a chip in a document.
pub fn section_of(document: &str, arch: Arch) -> Option<&str> {
    let start = document.find(&format!("\n{}\n", title(arch)))?;
    let rest = &document[start..];
    Some(rest.get(1..)?.find("\n## ").map_or(rest, |end| &rest[..end + 1]))
}
