//! Builds the folder that `bring_up.py` runs on a machine with a GPU.
//!
//! ```text
//! PACK/bring_up.py, ...           the one command, and the modules that it imports
//! PACK/pack.json                  steps and probes by chip, who built it, and a checksum of every file
//! PACK/check.ptx                  compares results on the GPU
//! PACK/CHIP/5a.ptx, 5a.json       a kernel; its buffers, launches and parameters
//! PACK/CHIP/probe-NAME.ptx, .json the same for a probe
//! PACK/data/HASH.bin              contents of buffers, each once
//! ```

use super::plant::Plant;
use super::{Case, Size, Step, probes, steps};
use serde_json::{Map, Value, json};
use silumin::Arch;
use silumin::codegen::kernel::Kernel;
use silumin::codegen::plan::Operand;
use silumin::codegen::problem::PreactivationFormat;
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::launch_file;
use silumin_emulator::{LaunchFile, Options as EmulatorOptions, Tracking};
use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// Values of the scalars that the gates of cases use.
const SCALARS: [(&str, f32); 1] = [("alpha", 0.75)];
/// Version of the pack's format; `bring_up.py` refuses others.
const FORMAT: u32 = 1;
/// Programs that run on the machine with the GPU.
const PROGRAMS: [(&str, &str); 4] = [
    ("bring_up.py", include_str!("../../hardware/bring_up.py")),
    ("on_gpu.py", include_str!("../../hardware/on_gpu.py")),
    ("page.py", include_str!("../../hardware/page.py")),
    ("run.py", include_str!("../../hardware/run.py")),
];
const CHECK: &str = include_str!("check.ptx");

/// What to build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chips.
    pub arches: Vec<Arch>,
    /// Size of the large shapes.
    pub size: Size,
    /// The steps to build; empty for all.
    pub only: Vec<u32>,
    /// A kernel to damage.
    pub plant: Option<Plant>,
    /// The folder to write; it must be new or empty.
    pub out: PathBuf,
}

/// What was built.
#[derive(Debug)]
pub struct Summary {
    /// Number of kernels, for all chips.
    pub kernels: usize,
    /// Number of probes, for all chips.
    pub probes: usize,
    /// Size of all files in bytes.
    pub bytes: u64,
}

/// The files of a pack while it is written.
struct Writer {
    root: PathBuf,
    /// For each file, by name below the root, its CRC-32 and size.
    files: Mutex<BTreeMap<String, (u32, u64)>>,
    /// Names of the contents written so far.
    data: Mutex<HashSet<String>>,
}

impl Writer {
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        let path = self.root.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut files = self.files.lock().map_err(|_| "another thread failed")?;
        files.insert(name.to_owned(), (crc32fast::hash(bytes), bytes.len() as u64));
        Ok(())
    }

    /// Writes contents, once for all that share them, and returns the file's name.
    fn data(&self, bytes: &[u8]) -> Result<String, Box<dyn Error>> {
        let name = format!("data/{}.bin", &blake3::hash(bytes).to_hex()[..20]);
        let new = self.data.lock().map_err(|_| "another thread failed")?.insert(name.clone());
        if new {
            self.write(&name, bytes)?;
        }
        Ok(name)
    }
}

/// Builds a pack.
///
/// # Errors
/// The folder has something in it, a kernel is refused, the emulator finds something wrong with one, a file cannot be written, or a
/// damaged kernel's results are not wrong.
pub fn build(options: &Options) -> Result<Summary, Box<dyn Error>> {
    if fs::read_dir(&options.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{}: the folder is not empty: name a new one", options.out.display()).into());
    }
    let writer = Writer { root: options.out.clone(), files: Mutex::default(), data: Mutex::default() };
    let mut chips = Map::new();
    let (mut kernels, mut probe_count, mut planted) = (0, 0, false);
    for &arch in &options.arches {
        let chosen: Vec<Step> = steps(arch, options.size)
            .into_iter()
            .filter(|step| options.only.is_empty() || options.only.contains(&step.number))
            .collect();
        if chosen.is_empty() {
            return Err(format!("no step of {arch} is left: --only takes numbers of steps").into());
        }
        let work: Vec<&Case> = chosen.iter().flat_map(|step| &step.cases).collect();
        let written = crate::parallel::map(&work, |_, case| {
            write_case(&writer, arch, case, options.plant.as_ref())
                .map_err(|error| format!("{arch}, {} ({}): {error}", case.id, case.knobs))
        });
        let mut written = written.into_iter();
        let mut list = Vec::new();
        for step in &chosen {
            let mut cases = Vec::new();
            for _ in &step.cases {
                let (value, damaged) = written.next().ok_or("a case is missing")??;
                planted |= damaged;
                cases.push(value);
            }
            kernels += cases.len();
            list.push(json!({
                "number": step.number, "title": step.title, "assumption": step.assumption,
                "look": step.look, "look_loop": step.look_loop, "cases": cases,
            }));
        }
        let probes = probes::all(arch, options.size);
        for probe in &probes {
            let chip = arch.to_string();
            writer.write(&format!("{chip}/probe-{}.ptx", probe.name), probe.ptx.as_bytes())?;
            let case = serde_json::to_string_pretty(&probe.case(&chip))?;
            writer.write(&format!("{chip}/probe-{}.json", probe.name), case.as_bytes())?;
        }
        probe_count += probes.len();
        let probes: Vec<Value> = probes.iter().map(|probe| probe.document(&arch.to_string())).collect();
        chips.insert(arch.to_string(), json!({ "steps": list, "probes": probes }));
    }
    if let (Some(plant), false) = (&options.plant, planted) {
        return Err(format!("no kernel is called {}: --plant takes one such as 5a", plant.case).into());
    }
    writer.write("check.ptx", CHECK.as_bytes())?;
    for (name, text) in PROGRAMS {
        writer.write(name, text.as_bytes())?;
    }
    let files = writer.files.into_inner().map_err(|_| "a thread failed")?;
    let bytes = files.values().map(|(_, size)| size).sum();
    let files: Map<String, Value> =
        files.into_iter().map(|(name, (crc, size))| (name, json!([crc, size]))).collect();
    let pack = json!({
        "format": FORMAT,
        "silumin": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "built_unix_s": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        "size": match options.size { Size::Small => "small", Size::Full => "full" },
        "planted": options.plant.as_ref().map(|plant| plant.case.clone()),
        "chips": chips,
        "files": files,
    });
    fs::write(options.out.join("pack.json"), serde_json::to_string_pretty(&pack)?)?;
    Ok(Summary { kernels, probes: probe_count, bytes })
}

/// The commit that the program was built from, with `-dirty` if files differ; `unknown` without git.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output =
            Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return "unknown".to_owned() };
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    if dirty { format!("{commit}-dirty") } else { commit }
}

/// Bytes of a buffer before the first launch and after the last.
struct Contents {
    file: bool,
    fill: u8,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Buffers by name, and the launches as JSON documents.
type Ran = (BTreeMap<String, Contents>, Vec<Value>);

/// Writes a kernel with its buffers and results. Returns its entry for `pack.json`, and whether it was damaged.
fn write_case(
    writer: &Writer,
    arch: Arch,
    case: &Case,
    plant: Option<&Plant>,
) -> Result<(Value, bool), Box<dyn Error>> {
    let (spec, arch) = case.spec(arch)?.read()?;
    let kernel = spec.kernel(case.shape, arch)?;
    let inputs = draw(&kernel)?;
    let scratch = tempfile::tempdir()?;
    launch_file::write(scratch.path(), &kernel, Some(&inputs), &SCALARS)?;
    let (buffers, launches) = run(scratch.path(), &kernel)?;
    let mut ptx = kernel.ptx.clone();
    let damaged = plant.filter(|plant| plant.case == case.id);
    if let Some(plant) = damaged {
        ptx = plant.damage(&ptx)?;
        fs::write(scratch.path().join(format!("{}.ptx", kernel.name)), &ptx)?;
        // An error of the emulator is a mistake that shows, too.
        if let Ok((wrong, _)) = run(scratch.path(), &kernel)
            && wrong.iter().all(|(name, contents)| contents.after == buffers[name].after)
        {
            return Err("the damaged kernel's results are right: plant another mistake".into());
        }
    }
    let mut table = Map::new();
    for (name, contents) in &buffers {
        table.insert(name.clone(), buffer(writer, &kernel, name, contents)?);
    }
    writer.write(&format!("{arch}/{}.ptx", case.id), ptx.as_bytes())?;
    let document =
        json!({ "ptx": format!("{arch}/{}.ptx", case.id), "buffers": table, "launches": launches });
    let name = format!("{arch}/{}.json", case.id);
    writer.write(&name, serde_json::to_string_pretty(&document)?.as_bytes())?;
    let asked: Map<String, Value> = spec
        .config
        .entries()
        .into_iter()
        .zip(silumin::codegen::config::Config::default().entries())
        .filter(|(given, usual)| given != usual)
        .map(|((knob, value), _)| (knob.to_string(), value.to_string().into()))
        .collect();
    let settled = kernel.ptx.lines().find_map(|line| line.strip_prefix("// strategy = "));
    let value = json!({
        "id": case.id,
        "file": name,
        "problem": kernel.problem.to_string(),
        "gate": case.gate,
        "knobs": asked,
        "settled": settled.map(|line| format!("strategy = {line}")),
        "adds": case.adds,
        "racecheck": case.racecheck,
        "avoid": case.avoid(),
    });
    Ok((value, damaged.is_some()))
}

/// Draws operands over the whole range of their formats.
fn draw(kernel: &Kernel) -> Result<DualGemmInputs, Box<dyn Error>> {
    Ok(DualGemmInputs::generate_problem(&kernel.problem, None, Distribution::Full, 1)?)
}

/// Runs a kernel's launches in order. Returns its buffers, and the launches as JSON documents.
fn run(folder: &Path, kernel: &Kernel) -> Result<Ran, Box<dyn Error>> {
    let name = &kernel.name;
    let mut buffers: BTreeMap<String, Contents> = BTreeMap::new();
    let mut launches = Vec::new();
    for index in 1..=kernel.launches.len() {
        let path = match kernel.launches.len() {
            1 => folder.join(format!("{name}.toml")),
            _ => folder.join(format!("{name}.{index}.toml")),
        };
        let mut table: toml::Table = fs::read_to_string(&path)?.parse()?;
        // Memory of a GPU holds something in any case: the same here, so that what nobody writes is equal.
        let tables = table.get_mut("buffers").and_then(toml::Value::as_table_mut).ok_or("no buffers")?;
        for (buffer, table) in tables.iter_mut() {
            let table = table.as_table_mut().ok_or("a buffer is a table")?;
            if let Some(contents) = buffers.get(buffer) {
                // As the launches before have left it.
                let file = format!("{index}.{buffer}.left");
                fs::write(folder.join(&file), &contents.after)?;
                table.remove("bytes");
                table.remove("fill");
                table.insert("file".into(), file.into());
            } else if !table.contains_key("file") {
                table.entry("fill").or_insert(0.into());
            }
        }
        let tables = table["buffers"].clone();
        let file = LaunchFile::parse(&path, &toml::to_string(&table)?)?;
        let (memory, allocated) = file.allocate();
        let options = EmulatorOptions { threads: 1, tracking: Tracking::Off, ..EmulatorOptions::default() };
        let before: Vec<Vec<u8>> = allocated.iter().map(|buffer| memory.read(buffer)).collect();
        let report = file.module.run(&file.kernel, &file.launch, &memory, &options)?;
        if let Some(finding) = report.all().next() {
            return Err(finding.to_string().into());
        }
        for ((buffer, spec), before) in allocated.iter().zip(&file.buffers).zip(before) {
            let given = &tables[&spec.name];
            let fill = given.get("fill").and_then(toml::Value::as_integer).unwrap_or(0);
            let contents = buffers.entry(spec.name.clone()).or_insert_with(|| Contents {
                file: given.get("file").is_some(),
                fill: fill as u8,
                before,
                after: Vec::new(),
            });
            contents.after = memory.read(buffer);
        }
        table.remove("buffers");
        table.remove("ptx");
        launches.push(serde_json::to_value(&table)?);
    }
    Ok((buffers, launches))
}

/// A buffer's entry in a case. In back-to-back launches each launch has its own outputs, and all share the workspace.
fn buffer(
    writer: &Writer,
    kernel: &Kernel,
    name: &str,
    contents: &Contents,
) -> Result<Value, Box<dyn Error>> {
    let formats = kernel.problem.formats;
    let outputs = [
        (Operand::C, formats.c.name()),
        (Operand::Sfc, "bytes"),
        (Operand::D1, PreactivationFormat::setting_name(formats.preactivations)),
        (Operand::D2, PreactivationFormat::setting_name(formats.preactivations)),
    ];
    let output = outputs.iter().find(|(operand, _)| operand.name() == name);
    let workspace = kernel.launches.iter().flat_map(|launch| &launch.parameters);
    let workspace = workspace.filter_map(|parameter| parameter.workspace()).any(|buffer| buffer.name == name);
    let mut table = Map::new();
    table.insert("bytes".into(), contents.before.len().into());
    if contents.file {
        table.insert("file".into(), writer.data(&contents.before)?.into());
    } else {
        table.insert("fill".into(), contents.fill.into());
    }
    if let Some((_, element)) = output {
        table.insert("element".into(), (*element).into());
        table.insert("expected".into(), writer.data(&contents.after)?.into());
    } else if workspace && contents.before == contents.after {
        // Counters, which the kernel leaves as they were.
        table.insert("expected".into(), writer.data(&contents.after)?.into());
    }
    let role = match (output.is_some(), workspace) {
        (true, _) => "output",
        (false, true) => "workspace",
        (false, false) => "input",
    };
    table.insert("role".into(), role.into());
    Ok(Value::Object(table))
}
