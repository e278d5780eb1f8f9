//! Every variant of every error has an example on the page, or a reason why it has none.

use silumin_testkit::root;
use std::any::type_name;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;

/// An error's crate and name, as in `runtime::LaunchError`, and its variant.
pub type Kind = (String, String);

/// The errors of the library and the command, with the files that declare them.
const ENUMS: &[(&str, &str)] = &[
    ("codegen::ConfigError", "codegen/src/error/mod.rs"),
    ("codegen::EmitError", "codegen/src/frontend/declaration/mod.rs"),
    ("codegen::EvalError", "codegen/src/frontend/gate/eval.rs"),
    ("codegen::GateError", "codegen/src/frontend/gate/mod.rs"),
    ("codegen::ParseKnobError", "codegen/src/config/text.rs"),
    ("codegen::RenderError", "codegen/src/render/mod.rs"),
    ("codegen::SpecFileError", "codegen/src/frontend/declaration/file.rs"),
    ("emulator::ChipError", "emulator/src/time/chip.rs"),
    ("emulator::LaunchError", "emulator/src/launch.rs"),
    ("emulator::LaunchFileError", "emulator/src/launch_file/error.rs"),
    ("emulator::MutateError", "emulator/src/mutate/harness.rs"),
    ("emulator::OutputError", "emulator/src/files.rs"),
    ("emulator::SassError", "emulator/src/time/sass/mod.rs"),
    ("emulator::TimeError", "emulator/src/time/mod.rs"),
    ("emulator::TraceTargetError", "emulator/src/command/trace.rs"),
    ("formats::FormatError", "formats/src/matrix.rs"),
    ("formats::GroupError", "formats/src/groups.rs"),
    ("formats::LayoutError", "formats/src/layout.rs"),
    ("runtime::BucketError", "runtime/src/warmup/buckets.rs"),
    ("runtime::BundleError", "runtime/src/cache/bundle.rs"),
    ("runtime::CheckpointError", "runtime/src/weights/checkpoint/error.rs"),
    ("runtime::CommunicatorError", "runtime/src/communicator/error.rs"),
    ("runtime::DeviceError", "runtime/src/device/mod.rs"),
    ("runtime::DlpackError", "runtime/src/dlpack/error.rs"),
    ("runtime::EntryError", "runtime/src/cache/entry.rs"),
    ("runtime::KernelError", "runtime/src/gemm/mod.rs"),
    ("runtime::LaunchError", "runtime/src/device/launch_error.rs"),
    ("runtime::LoadError", "runtime/src/gemm/mod.rs"),
    ("runtime::MlpError", "runtime/src/mlp/error.rs"),
    ("runtime::ModuleError", "runtime/src/cache/error.rs"),
    ("runtime::PredictError", "runtime/src/predict.rs"),
    ("runtime::PrepareError", "runtime/src/prepare/mod.rs"),
    ("runtime::ReadError", "runtime/src/regular_file.rs"),
    ("runtime::RecordError", "runtime/src/tuned/record.rs"),
    ("runtime::RunError", "runtime/src/device/plain.rs"),
    ("runtime::SpaceError", "runtime/src/tuned/space.rs"),
    ("runtime::TableError", "runtime/src/tuned/table.rs"),
    ("runtime::TensorError", "runtime/src/tensor/error.rs"),
    ("runtime::TuneError", "runtime/src/tune/mod.rs"),
    ("runtime::VerifyError", "runtime/src/gemm/verify.rs"),
    ("runtime::WeightError", "runtime/src/weights/mod.rs"),
    ("verify::BlockError", "verify/src/block.rs"),
    ("verify::CheckError", "verify/src/check/mod.rs"),
    ("verify::InputsError", "verify/src/inputs/mod.rs"),
    ("verify::LaunchFileError", "verify/src/launch_file.rs"),
    ("verify::OutputError", "verify/src/output.rs"),
    ("verify::ReferenceError", "verify/src/reference/mod.rs"),
    ("verify::ToolError", "verify/src/toolchain.rs"),
    ("verify::VectorError", "verify/src/vectors.rs"),
];

/// Variants that no run of this test causes, and why.
const WITHOUT_EXAMPLE: &[(&str, &str, &str)] = &[
    (
        "codegen::GateError",
        "NeedsLlvm",
        "only in a build without LLVM, and this test runs in builds with it, too",
    ),
    (
        "codegen::GateError",
        "BuiltinWidth",
        "only in a build without LLVM, and this test runs in builds with it, too",
    ),
    ("emulator::LaunchError", "Threads", "the machine would have to be out of threads"),
    ("emulator::MutateError", "Read", "the PTX would have to go away between two reads"),
    ("emulator::SassError", "Refused", "needs NVIDIA's assembler, whose words change with its version"),
    ("runtime::CommunicatorError", "Nccl", "needs GPUs with NCCL"),
    ("runtime::CommunicatorError", "Unfinished", "needs GPUs with NCCL"),
    ("runtime::DeviceError", "OldDriver", "needs a driver of before CUDA 12"),
    ("runtime::DeviceError", "UnsupportedChip", "needs a GPU that silumin has no kernels for"),
    ("runtime::LaunchError", "TensorMap", "no legal plan has a tensor map that devices refuse"),
    (
        "runtime::ModuleError",
        "UnknownPtx",
        "needs a driver that refuses a version of PTX that its own version reads",
    ),
    ("runtime::ModuleError", "MissingSymbol", "needs a driver without a linker"),
    ("runtime::ModuleError", "OutOfMemory", "needs a GPU whose memory is full of modules"),
    ("runtime::ModuleError", "SharedMemory", "needs a GPU with less shared memory than its chip has"),
    ("runtime::ModuleError", "Relocatable", "the device loads the PTX itself instead, and returns no error"),
    ("runtime::ModuleError", "Assembler", "needs NVIDIA's assembler to fail after it has told its version"),
    ("runtime::PredictError", "TensorMap", "no legal plan has a tensor map that devices refuse"),
    ("runtime::TableError", "Locked", "a process would have to hold the lock for ten seconds"),
    ("verify::ToolError", "Refused", "needs NVIDIA's assembler, whose words change with its version"),
];

/// The crate, the name and the variant of an error.
pub fn kind<E: Debug>(error: &E) -> Kind {
    let path = type_name::<E>();
    let (crate_name, _) = path.split_once("::").unwrap_or((path, ""));
    let name = path.rsplit("::").next().unwrap_or(path);
    let text = format!("{error:?}");
    let variant = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    (format!("{}::{name}", crate_name.trim_start_matches("silumin_")), variant.to_owned())
}

/// A variant as it is declared.
struct Declared {
    name: String,
    /// What is written of its message.
    message: String,
}

impl Declared {
    /// Whether the message is another error's, or asks for a report of what is a defect of silumin.
    fn needs_no_example(&self) -> bool {
        self.message.contains("#[error(transparent)]") || self.message.contains("please report this")
    }
}

/// The variants of an enum, from its declaration.
fn declared(name: &str, file: &str) -> Vec<Declared> {
    let source = fs::read_to_string(root().join(file)).unwrap();
    let name = name.rsplit("::").next().unwrap_or(name);
    let head = format!("pub enum {name} {{");
    let (_, body) = source.split_once(&head).unwrap_or_else(|| panic!("{file} does not declare {name}"));
    let mut variants = Vec::new();
    let mut message = String::new();
    for line in body.split_once("\n}").unwrap().0.lines() {
        match line.strip_prefix("    ").filter(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase())) {
            Some(rest) => {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
                variants.push(Declared { name, message: std::mem::take(&mut message) });
            }
            None if line.trim_start().starts_with("///") => {}
            None => message += line,
        }
    }
    variants
}

/// Fails unless each variant has either an example or a reason.
pub fn check(seen: &BTreeSet<Kind>) {
    let mut faults = Vec::new();
    let mut reasons: BTreeSet<Kind> = WITHOUT_EXAMPLE
        .iter()
        .map(|(name, variant, _)| ((*name).to_owned(), (*variant).to_owned()))
        .collect();
    for (name, file) in ENUMS {
        for variant in declared(name, file) {
            let kind = ((*name).to_owned(), variant.name.clone());
            match (seen.contains(&kind), reasons.remove(&kind)) {
                (true, true) => {
                    faults.push(format!("{name}::{} has an example and a reason for none", variant.name))
                }
                (false, false) if !variant.needs_no_example() => {
                    faults.push(format!("{name}::{} has no example", variant.name));
                }
                _ => {}
            }
        }
    }
    faults.extend(
        reasons.iter().map(|(name, variant)| format!("{name}::{variant} has a reason and is not declared")),
    );
    let known = |name: &str| ENUMS.iter().any(|(known, _)| *known == name);
    // A struct is printed by its name.
    let is_struct = |(name, variant): &Kind| name.rsplit("::").next() == Some(variant.as_str());
    let strange = seen.iter().filter(|kind| !known(&kind.0) && !is_struct(kind));
    faults.extend(strange.map(|(name, _)| format!("{name} is not in ENUMS")));
    assert!(faults.is_empty(), "in tests/errors:\n{}", faults.join("\n"));
}

/// An error that is added to a crate is added to [`ENUMS`], too.
#[test]
fn all_errors_of_the_crates_are_listed() {
    let mut missing = Vec::new();
    let mut folders: Vec<_> = ["codegen", "emulator", "formats", "runtime", "verify"]
        .map(|crate_name| (crate_name, root().join(crate_name).join("src")))
        .into();
    while let Some((crate_name, folder)) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push((crate_name, path));
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for (_, rest) in
                source.match_indices("\npub enum ").map(|(at, head)| source.split_at(at + head.len()))
            {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                let whole = format!("{crate_name}::{name}");
                let listed = ENUMS.iter().any(|(known, _)| *known == whole);
                if name.ends_with("Error") && !listed && !OF_FINDINGS.contains(&&*whole) {
                    missing.push(whole);
                }
            }
        }
    }
    assert!(missing.is_empty(), "not in ENUMS: {missing:?}");
}

/// Errors that come as the message of a finding only.
const OF_FINDINGS: [&str; 10] = [
    "emulator::BoxError",
    "emulator::CpError",
    "emulator::DescriptorError",
    "emulator::GatherError",
    "emulator::IdescError",
    "emulator::Im2colError",
    "emulator::MmaError",
    "emulator::TensorMapError",
    "emulator::TmemError",
    "emulator::WgmmaError",
];
