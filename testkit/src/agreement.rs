//! Writes kernels with operands and the emulator's results as folders that `scripts/hardware/run.py` runs on a GPU,
//! for `cargo xtask agreement`; and the GPU's results, for `tests/agreement.rs`.

use serde::{Deserialize, Serialize};
use silumin::Kernel;
use silumin::codegen::spec::SpecFile;
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::launch_file;
use silumin_emulator::{LaunchFile, Options};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

/// Values of the scalars that gates may have.
pub const SCALARS: [(&str, f32); 1] = [("alpha", 0.75)];

/// A kernel and its operands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// `ours-FAMILY-NUMBER`.
    pub name: String,
    /// Whether operands are drawn over the whole range of their formats, not as in the benchmark.
    pub full: bool,
    /// The seed of the operands, and of the groups' sizes.
    pub seed: u64,
    /// The problem and the knobs.
    pub spec: SpecFile,
}

/// A kernel's hash and the hashes of its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The hash of its PTX.
    pub ptx: String,
    /// Elements of C.
    pub elements: u64,
    /// Hashes of the buffers that its launches write, by launch and name: `1.c`.
    pub buffers: BTreeMap<String, String>,
}

/// FNV-1a of 64 bits.
pub fn hash(bytes: &[u8]) -> String {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

impl Point {
    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel, Box<dyn Error>> {
        let (spec, arch) = self.spec.read()?;
        Ok(spec.kernel(self.spec.shape(), arch)?)
    }

    fn inputs(&self, kernel: &Kernel) -> Result<DualGemmInputs, Box<dyn Error>> {
        let distribution = if self.full { Distribution::Full } else { Distribution::Benchmark };
        Ok(DualGemmInputs::generate_problem(&kernel.problem, None, distribution, self.seed)?)
    }

    /// Runs the launches on the emulator and writes each to a folder below `root`. The folder has the point's name,
    /// followed by `.1` and so on if there are several launches.
    pub fn write(&self, root: &Path) -> Result<Left, Box<dyn Error>> {
        let kernel = self.kernel()?;
        let inputs = self.inputs(&kernel)?;
        let scratch = root.join(format!(".{}", self.name));
        launch_file::write(&scratch, &kernel, Some(&inputs), &SCALARS)?;
        let count = kernel.launches.len();
        let mut buffers = BTreeMap::new();
        for index in 1..=count {
            let (file, folder) = match count {
                1 => (format!("{}.toml", kernel.name), self.name.clone()),
                _ => (format!("{}.{index}.toml", kernel.name), format!("{}.{index}", self.name)),
            };
            let left = scratch.join(format!("{}.{index}.out", kernel.name));
            for (name, hash) in pack(&scratch.join(file), &root.join(folder), &left)? {
                buffers.insert(format!("{index}.{name}"), hash);
            }
        }
        fs::remove_dir_all(&scratch)?;
        let elements = kernel.problem.shape.rows() * u64::from(kernel.problem.shape.n);
        Ok(Left { ptx: hash(kernel.ptx.as_bytes()), elements, buffers })
    }
}

/// Copies a launch with its files to a folder of its own and runs it there. The results are written to `expected` and
/// to `left`. Returns hashes of the buffers that it changed.
fn pack(launch: &Path, folder: &Path, left: &Path) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let expected = folder.join("expected");
    fs::create_dir_all(&expected)?;
    let mut table: toml::Table = fs::read_to_string(launch)?.parse()?;
    let ptx = table["ptx"].as_str().unwrap_or_default().to_owned();
    fs::copy(launch.with_file_name(&ptx), folder.join("k.ptx"))?;
    table.insert("ptx".into(), "k.ptx".into());
    let buffers = table.get_mut("buffers").and_then(toml::Value::as_table_mut).ok_or("no buffers")?;
    for (name, buffer) in buffers.iter_mut() {
        let buffer = buffer.as_table_mut().ok_or("a buffer is a table")?;
        match buffer.get("file").and_then(toml::Value::as_str) {
            Some(from) => {
                let file = format!("{name}.bin");
                fs::copy(launch.with_file_name(from), folder.join(&file))?;
                buffer.insert("file".into(), file.into());
            }
            // On a GPU memory holds something in any case: the same here, so that what nobody writes is equal.
            None => {
                buffer.entry("fill").or_insert(0.into());
            }
        }
    }
    let path = folder.join("launch.toml");
    fs::write(&path, toml::to_string(&table)?)?;
    let file = LaunchFile::read(&path)?;
    let (memory, buffers) = file.allocate();
    let options = Options { threads: 1, ..Options::default() };
    let report = file.module.run(&file.kernel, &file.launch, &memory, &options)?;
    if let Some(finding) = report.all().next() {
        return Err(finding.to_string().into());
    }
    fs::create_dir_all(left)?;
    let mut changed = Vec::new();
    for (buffer, spec) in buffers.iter().zip(&file.buffers) {
        let (bytes, bin) = (memory.read(buffer), format!("{}.bin", spec.name));
        fs::write(left.join(&bin), &bytes)?;
        // What it reads and leaves alone says nothing.
        let given = folder.join(&bin);
        let unchanged = given.exists() && fs::read(&given)? == bytes;
        if !unchanged && spec.name != "partials" {
            fs::write(expected.join(&bin), &bytes)?;
            changed.push((spec.name.clone(), hash(&bytes)));
        }
    }
    Ok(changed)
}
