//! Launch files: a kernel with its grid, buffers and parameters as TOML beside its PTX, so that any
//! tool that reads them can run it again.
//!
//! ```toml
//! ptx = "kernel.ptx"                 # paths are relative to the launch file
//! kernel = "entry"
//! grid = [1, 32, 1]                  # in CTAs
//! block = [192, 1, 1]
//! cluster = [1, 1, 1]
//! dynamic_smem = 110672              # bytes
//! programmatic = true                # may start before its predecessor in the stream has ended; left out where not
//!
//! [buffers.a]
//! file = "a.bin"                     # or a size and what it holds:
//! [buffers.c]
//! bytes = 131072
//! fill = 0xA5
//!
//! [[params]]                         # in the order of the entry
//! tensor_map = { buffer = "a", ... } # as cuTensorMapEncodeTiled takes them, inner dimension first
//! [[params]]
//! pointer = "c"
//! [[params]]
//! f32 = 1.0
//! ```

use std::fmt::Write;
use std::path::{Path, PathBuf};

use silumin_codegen::gate::GateVector;
use silumin_codegen::kernel::{Kernel, Launch, Parameter, WorkspaceBuffer};
use silumin_codegen::plan::{Operand, TensorMapRecipe};
use silumin_codegen::problem::{ByteScale, ElementKind, Formats, ScaleFormat};
pub use silumin_emulator::files::{OutputError, OutputFolder};
use thiserror::Error;

use crate::inputs::DualGemmInputs;
use crate::vectors::GateVectors;
use silumin_formats::groups::GroupSizes;
use silumin_formats::layout::LayoutError;

/// Why a launch file cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchFileError {
    /// A scalar parameter has no value.
    #[error("the kernel `{kernel}` takes the scalar `{name}`: give it a value")]
    MissingScalar {
        /// The kernel.
        kernel: String,
        /// The scalar.
        name: String,
    },
    /// The operands have the sizes of another problem.
    #[error(
        "the kernel `{kernel}` takes {expected} bytes of {operand}, and these operands have {found}: draw them for its shape"
    )]
    Operand {
        /// The kernel.
        kernel: String,
        /// The tensor.
        operand: Operand,
        /// Bytes that the kernel reads.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// The operands have other formats than the kernel's.
    #[error(
        "the kernel `{kernel}` computes {expected}, and these operands are for {found}: draw them in its formats"
    )]
    Formats {
        /// The kernel.
        kernel: String,
        /// Its formats.
        expected: Formats,
        /// The operands'.
        found: Formats,
    },
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The files could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Contents of a buffer before the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The bytes of a file, named relative to the launch file.
    File(String),
    /// Every byte has this value.
    Fill(u8),
}

/// One launch of a kernel, in the form that is written as a file.
#[derive(Clone, Debug)]
pub struct LaunchFile<'a> {
    kernel: &'a Kernel,
    launch: &'a Launch,
    ptx: String,
    contents: Vec<(Operand, Contents)>,
    written_before: Vec<(&'static str, String)>,
    scalars: &'a [(&'a str, f32)],
    c_scale: f32,
    /// Vector name and file name, for vectors that are read from files.
    vectors: Vec<(String, String)>,
}

impl<'a> LaunchFile<'a> {
    /// A launch of `kernel` with default contents. `ptx` is the name of the file with the kernel's text, `scalars`
    /// the values of its scalar parameters.
    ///
    /// Operands hold 1.0 (bf16 0.74609375, f16 1.05859375, whose two bytes are equal) and scale factors 0.125, so
    /// that all elements of both products are K / 64, or K without scale factors. Vectors of the gate hold one number
    /// near 0.75, outputs a poison byte, and C's tensor scale is 1. The workspace is zero where the kernel requires
    /// it and uninitialised elsewhere.
    #[must_use]
    pub fn new(kernel: &'a Kernel, launch: &'a Launch, ptx: &str, scalars: &'a [(&'a str, f32)]) -> Self {
        let present = Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem));
        let contents =
            present.map(|operand| (operand, Contents::Fill(fill(operand, kernel.problem.formats))));
        Self {
            kernel,
            launch,
            ptx: ptx.to_owned(),
            contents: contents.collect(),
            written_before: Vec::new(),
            scalars,
            c_scale: 1.0,
            vectors: Vec::new(),
        }
    }

    /// Reads a workspace buffer from a file that an earlier launch has written.
    #[must_use]
    pub fn after(mut self, buffer: &WorkspaceBuffer, file: &str) -> Self {
        self.written_before.push((buffer.name, file.to_owned()));
        self
    }

    /// Sets the tensor scale of C, for formats that have one.
    #[must_use]
    pub fn with_output_scale(mut self, c_scale: f32) -> Self {
        self.c_scale = c_scale;
        self
    }

    /// Reads the elements of a gate vector from a file.
    #[must_use]
    pub fn with_vector(mut self, name: &str, file: &str) -> Self {
        self.vectors.retain(|(other, _)| other != name);
        self.vectors.push((name.to_owned(), file.to_owned()));
        self
    }

    /// Sets the contents of one buffer.
    #[must_use]
    pub fn with(mut self, operand: Operand, contents: Contents) -> Self {
        self.contents.retain(|(other, _)| *other != operand);
        self.contents.push((operand, contents));
        self.contents.sort_by_key(|(operand, _)| *operand);
        self
    }

    /// The launch file as TOML text.
    ///
    /// # Errors
    ///
    /// [`LaunchFileError::MissingScalar`].
    pub fn to_toml(&self) -> Result<String, LaunchFileError> {
        let Self { kernel, launch, .. } = self;
        let mut text = format!("# {} on {}\n", kernel.problem, kernel.arch);
        push(&mut text, "ptx", &string(&self.ptx));
        push(&mut text, "kernel", &string(&launch.entry));
        push(&mut text, "grid", &list(&launch.grid));
        push(&mut text, "block", &list(&launch.block));
        push(&mut text, "cluster", &list(&launch.cluster));
        push(&mut text, "dynamic_smem", &launch.dynamic_smem.to_string());
        if launch.programmatic {
            push(&mut text, "programmatic", "true");
        }
        for (operand, contents) in &self.contents {
            if !takes(launch, *operand) {
                continue;
            }
            text.push_str(&format!("\n[buffers.{operand}]\n"));
            match contents {
                Contents::File(name) => push(&mut text, "file", &string(name)),
                Contents::Fill(byte) => {
                    push(&mut text, "bytes", &operand.bytes(&kernel.problem).to_string());
                    push(&mut text, "fill", &format!("0x{byte:02X}"));
                }
            }
        }
        let mut written = Vec::new();
        for parameter in &launch.parameters {
            // Both tensor maps of A can lead to one buffer.
            if let Some(buffer) = parameter.workspace()
                && !written.contains(&buffer.name)
            {
                written.push(buffer.name);
                text.push_str(&format!("\n[buffers.{}]\n", buffer.name));
                match self.written_before.iter().find(|(name, _)| *name == buffer.name) {
                    Some((_, file)) => push(&mut text, "file", &string(file)),
                    None => push(&mut text, "bytes", &buffer.bytes.to_string()),
                }
                if buffer.zeroed {
                    push(&mut text, "fill", "0");
                }
            }
        }
        for parameter in &launch.parameters {
            let Parameter::Vector(vector) = parameter else { continue };
            text.push_str(&format!("\n[buffers.{}]\n", parameter.name()));
            match self.vectors.iter().find(|(name, _)| *name == vector.name) {
                Some((_, file)) => push(&mut text, "file", &string(file)),
                None => {
                    let bytes = vector.bytes(&kernel.problem);
                    push(&mut text, "bytes", &bytes.to_string());
                    push(&mut text, "fill", &format!("0x{VECTOR_FILL:02X}"));
                }
            }
        }
        for parameter in &launch.parameters {
            text.push_str("\n[[params]]\n");
            match parameter {
                Parameter::TensorMap(recipe) => push(&mut text, "tensor_map", &tensor_map(recipe)),
                Parameter::Pointer(operand) => push(&mut text, "pointer", &string(operand.name())),
                Parameter::Workspace(buffer) => push(&mut text, "pointer", &string(buffer.name)),
                Parameter::Scalar(name) => push(&mut text, "f32", &self.scalar(name)?),
                Parameter::Rows => push(&mut text, "u32", &kernel.problem.shape.m.to_string()),
                Parameter::OutputScale => push(&mut text, "f32", &number(self.c_scale)),
                Parameter::Vector(_) => push(&mut text, "pointer", &string(&parameter.name())),
            }
        }
        Ok(text)
    }

    fn scalar(&self, name: &str) -> Result<String, LaunchFileError> {
        let given = self.scalars.iter().find(|(other, _)| *other == name);
        let (_, value) = given.ok_or_else(|| LaunchFileError::MissingScalar {
            kernel: self.kernel.name.clone(),
            name: name.to_owned(),
        })?;
        Ok(number(*value))
    }
}

/// Whether a launch takes a tensor as a parameter.
fn takes(launch: &Launch, operand: Operand) -> bool {
    launch.parameters.iter().any(|parameter| match parameter {
        Parameter::TensorMap(recipe) => recipe.workspace.is_none() && recipe.operand == operand,
        Parameter::Pointer(pointer) => *pointer == operand,
        Parameter::Workspace(_)
        | Parameter::Rows
        | Parameter::Scalar(_)
        | Parameter::OutputScale
        | Parameter::Vector(_) => false,
    })
}

/// Formats an f32 as a TOML float, widened to f64 (exact, because readers parse f64); NaN is in lower case.
fn number(value: f32) -> String {
    if value.is_nan() { "nan".to_owned() } else { format!("{:?}", f64::from(value)) }
}

/// The fill byte of a tensor: about 1.0 for elements, 0.125 for scale factors of a byte and 0.747 for f32 ones, and for outputs a byte that no result
/// repeats.
fn fill(operand: Operand, formats: Formats) -> u8 {
    let format = if operand == Operand::A || operand == Operand::Sfa { formats.a } else { formats.b };
    let spec = format.spec();
    match operand {
        Operand::A | Operand::B1 | Operand::B2 => match spec.element {
            ElementKind::E2m1 => 0x22,
            ElementKind::E4m3 => 0x38,
            ElementKind::E5m2 | ElementKind::F16 => 0x3C,
            ElementKind::Bf16 => 0x3F,
        },
        Operand::Sfa | Operand::Sfb1 | Operand::Sfb2 => match spec.scales.map(|scales| scales.format) {
            Some(ScaleFormat::Byte(ByteScale::Ue8m0)) => 0x7C,
            Some(ScaleFormat::F32) => VECTOR_FILL,
            Some(ScaleFormat::Byte(ByteScale::Ue4m3)) | None => 0x20,
        },
        Operand::C => 0xA5,
        Operand::D1 => 0xA6,
        Operand::D2 => 0xA9,
        Operand::Sfc => 0xFF,
        // Groups without rows: `write` puts other offsets into a file.
        Operand::Offsets => 0,
    }
}

/// Fill byte of vectors, matrices and f32 scale factors: elements are 0.747 in f32 and bf16, 1.81 in f16.
const VECTOR_FILL: u8 = 0x3F;

fn push(text: &mut String, key: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{key} = {value}");
}

fn list<T: std::fmt::Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    format!("[{}]", values.join(", "))
}

/// A TOML 1.0 basic string, with quotes, backslashes and control characters escaped.
fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn tensor_map(recipe: &TensorMapRecipe) -> String {
    let promotion = match recipe.l2_promotion {
        0 => "none".to_owned(),
        bytes => format!("{bytes}b"),
    };
    let fields = [
        ("buffer", string(recipe.workspace.map_or(recipe.operand.name(), |buffer| buffer.name))),
        ("offset", "0".to_owned()),
        ("data_type", string(recipe.element.name())),
        ("dims", list(&recipe.all_dims())),
        ("strides", list(&recipe.strides())),
        ("box", list(&recipe.all_box_dims())),
        ("element_strides", list(&vec![1; recipe.all_dims().len()])),
        ("interleave", string("none")),
        ("swizzle", string(recipe.swizzle.name())),
        ("l2_promotion", string(&promotion)),
        ("oob_fill", string("none")),
    ];
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// Writes `NAME.ptx` and `NAME.toml` to `folder`, where NAME is the kernel's name, and returns the path of the launch
/// file. With `inputs` it also writes the bytes of every tensor, as `NAME.a.bin` and so on, and gate vectors drawn
/// from the same seed. Group sizes are those of `inputs`, or as even as possible without them.
///
/// A kernel of several launches gets `NAME.1.toml`, `NAME.2.toml` and so on, to be run in this order; the path of the
/// first is returned. Each reads the workspace that the one before left: `NAME.2.toml` expects it in `NAME.1.out`,
/// which `emulate NAME.1.toml --out NAME.1.out` writes.
///
/// # Errors
///
/// [`LaunchFileError`]; then no file has changed.
pub fn write(
    folder: &Path,
    kernel: &Kernel,
    inputs: Option<&DualGemmInputs>,
    scalars: &[(&str, f32)],
) -> Result<PathBuf, LaunchFileError> {
    let mut out = OutputFolder::open(folder, [])?;
    let launch = add(&mut out, kernel, inputs, scalars)?;
    out.commit()?;
    Ok(launch)
}

/// As [`write()`], but adds the files to a folder that commits them together with others.
///
/// # Errors
///
/// [`LaunchFileError`].
pub fn add(
    out: &mut OutputFolder,
    kernel: &Kernel,
    inputs: Option<&DualGemmInputs>,
    scalars: &[(&str, f32)],
) -> Result<PathBuf, LaunchFileError> {
    let folder = out.folder().to_owned();
    let mut save = |name: &str, bytes: &[u8]| out.add(name, bytes).map(|()| folder.join(name));
    let name = &kernel.name;
    let ptx = format!("{name}.ptx");
    let mut files: Vec<LaunchFile<'_>> =
        kernel.launches.iter().map(|launch| LaunchFile::new(kernel, launch, &ptx, scalars)).collect();
    let mut left: Vec<(WorkspaceBuffer, String)> = Vec::new();
    for (index, file) in files.iter_mut().enumerate() {
        for (buffer, path) in &left {
            *file = file.clone().after(buffer, path);
        }
        for parameter in &file.launch.parameters {
            if let Some(buffer) = parameter.workspace()
                && !buffer.zeroed
                && buffer.name != "partials"
                && !left.iter().any(|(other, _)| other == buffer)
            {
                left.push((*buffer, format!("{name}.{}.out/{}.bin", index + 1, buffer.name)));
            }
        }
    }
    // Before any file is written: a scalar that is missing shows here.
    files.iter().try_for_each(|file| file.to_toml().map(drop))?;
    save(&ptx, kernel.ptx.as_bytes())?;
    if let Some(inputs) = inputs {
        let (expected, found) = (kernel.problem.formats, inputs.formats());
        if expected != found {
            return Err(LaunchFileError::Formats { kernel: name.clone(), expected, found });
        }
        for operand in Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem)) {
            let bytes = tensor(inputs, operand)?;
            let (expected, found) = (operand.bytes(&kernel.problem), bytes.len() as u64);
            if expected != found {
                return Err(LaunchFileError::Operand { kernel: name.clone(), operand, expected, found });
            }
            let bin = format!("{name}.{operand}.bin");
            save(&bin, &bytes)?;
            files = files.into_iter().map(|file| file.with(operand, Contents::File(bin.clone()))).collect();
        }
    }
    if inputs.is_none()
        && let Ok(sizes) = GroupSizes::new(kernel.problem.shape, &kernel.problem.shape.even_sizes())
    {
        let bin = format!("{name}.{}.bin", Operand::Offsets);
        save(&bin, &sizes.offset_bytes())?;
        let contents = || Contents::File(bin.clone());
        files = files.into_iter().map(|file| file.with(Operand::Offsets, contents())).collect();
    }
    if let Some(inputs) = inputs {
        let vectors: Vec<GateVector> = kernel.vectors().into_iter().cloned().collect();
        let vectors = GateVectors::draw(&vectors, &kernel.problem, inputs.seed());
        for (vector, bytes) in vectors.bytes() {
            let bin = format!("{name}.vector_{vector}.bin");
            save(&bin, &bytes)?;
            files = files.into_iter().map(|file| file.with_vector(vector, &bin)).collect();
        }
    }
    let mut first = None;
    for (index, file) in files.iter().enumerate() {
        let name = match files.len() {
            1 => format!("{name}.toml"),
            _ => format!("{name}.{}.toml", index + 1),
        };
        let path = save(&name, file.to_toml()?.as_bytes())?;
        first.get_or_insert(path);
    }
    Ok(first.unwrap_or_else(|| folder.join(ptx)))
}

/// The bytes of one tensor as a kernel of these formats takes it: operands, blocked scale factors, and outputs before the launch. A
/// tensor that the problem does not have is empty, or one that no kernel reads.
///
/// # Errors
///
/// Scale factors that have no blocked layout.
pub fn tensor(inputs: &DualGemmInputs, operand: Operand) -> Result<Vec<u8>, LayoutError> {
    Ok(match operand {
        Operand::A => inputs.a.codes().to_vec(),
        Operand::B1 => inputs.b1.codes().to_vec(),
        Operand::B2 => inputs.b2.codes().to_vec(),
        Operand::Sfa => inputs.blocked_scales_of_a()?,
        Operand::Sfb1 => inputs.blocked_scales_of_b(&inputs.b1)?,
        Operand::Sfb2 => inputs.blocked_scales_of_b(&inputs.b2)?,
        Operand::C => inputs.initial_output_bytes(),
        Operand::Sfc => inputs.initial_output_scales()?.unwrap_or_default(),
        Operand::Offsets => inputs.group_sizes().offset_bytes(),
        Operand::D1 | Operand::D2 => inputs.initial_preactivation_bytes().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;
    use silumin_codegen::config::Config;
    use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, Shape};
    use silumin_codegen::spec::Spec;
    use toml::{Table, Value};

    use crate::inputs::Distribution;

    fn kernel(gate: &str, config: Config) -> Kernel {
        let mut spec = Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap();
        spec.config = config;
        spec.kernel(Shape::new(130, 200, 416), Arch::Sm100a).unwrap()
    }

    fn integers(value: &Value) -> Vec<i64> {
        value.as_array().unwrap().iter().map(|value| value.as_integer().unwrap()).collect()
    }

    #[test]
    fn a_launch_file_holds_everything_a_launch_needs() {
        let mut config = Config::default();
        config.set("store", "tma").unwrap();
        config.set("cta_group", "1").unwrap();
        let kernel = kernel("silu(alpha * (X @ Wg)) * (alpha * (X @ Wu))", config);
        let launch = &kernel.launches[0];
        let file = LaunchFile::new(&kernel, launch, "k.ptx", &[("alpha", 0.1)]);
        let table: Table = file.to_toml().unwrap().parse().unwrap();
        assert_eq!(table["ptx"].as_str(), Some("k.ptx"));
        assert_eq!(table["kernel"].as_str(), Some(kernel.name.as_str()));
        for (key, value) in [("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)] {
            assert_eq!(integers(&table[key]), value.map(i64::from), "{key}");
        }
        assert_eq!(table["dynamic_smem"].as_integer(), Some(i64::from(launch.dynamic_smem)));
        let buffers = table["buffers"].as_table().unwrap();
        assert_eq!(buffers.len(), 7);
        for operand in Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem)) {
            let buffer = buffers[operand.name()].as_table().unwrap();
            assert_eq!(buffer["bytes"].as_integer(), Some(operand.bytes(&kernel.problem) as i64));
            assert_eq!(buffer["fill"].as_integer(), Some(i64::from(fill(operand, kernel.problem.formats))));
        }
        let params = table["params"].as_array().unwrap();
        assert_eq!(params.len(), launch.parameters.len());
        let mut maps = 0;
        for (param, parameter) in params.iter().zip(&launch.parameters) {
            let param = param.as_table().unwrap();
            assert_eq!(param.len(), 1);
            match parameter {
                Parameter::TensorMap(recipe) => {
                    maps += 1;
                    let map = param["tensor_map"].as_table().unwrap();
                    assert_eq!(map.len(), 11);
                    assert_eq!(map["buffer"].as_str(), Some(recipe.operand.name()));
                    assert_eq!(map["offset"].as_integer(), Some(0));
                    assert_eq!(map["data_type"].as_str(), Some(recipe.element.name()));
                    assert_eq!(integers(&map["dims"]), recipe.dims.map(|dim| dim as i64));
                    assert_eq!(integers(&map["strides"]), [recipe.row_stride as i64]);
                    assert_eq!(integers(&map["box"]), recipe.box_dims.map(i64::from));
                    assert_eq!(integers(&map["element_strides"]), [1, 1]);
                    assert_eq!(map["interleave"].as_str(), Some("none"));
                    assert_eq!(map["swizzle"].as_str(), Some(recipe.swizzle.name()));
                    let promotion = if recipe.operand == Operand::C { "none" } else { "256b" };
                    assert_eq!(map["l2_promotion"].as_str(), Some(promotion));
                    assert_eq!(map["oob_fill"].as_str(), Some("none"));
                }
                Parameter::Pointer(operand) => assert_eq!(param["pointer"].as_str(), Some(operand.name())),
                Parameter::Workspace(buffer) => panic!("{buffer:?} in a kernel of one launch a tile"),
                Parameter::Rows => assert_eq!(param["u32"].as_integer(), Some(kernel.problem.shape.m.into())),
                Parameter::OutputScale => panic!("an f16 C has no scale"),
                Parameter::Scalar(_) => assert_eq!(param["f32"].as_float().map(|v| v as f32), Some(0.1)),
                Parameter::Vector(vector) => panic!("{vector} in a gate without any"),
            }
        }
        assert_eq!(maps, 4, "a, b1, b2 and c");
    }

    #[test]
    fn a_buffer_that_two_tensor_maps_lead_to_is_listed_once() {
        let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm90a]).unwrap();
        spec.formats = Formats::new(OperandFormat::Bf16, OperandFormat::Nvfp4, OutputFormat::Bf16);
        spec.config.set("accumulators", "interleaved_rows").unwrap();
        spec.config.set("tile", "[48, 64, 128]").unwrap();
        spec.config.set("schedule", "one_tile").unwrap();
        let kernel = spec.kernel(Shape::new(130, 200, 512), Arch::Sm90a).unwrap();
        let maps = kernel.launches[1].parameters.iter().filter(
            |parameter| matches!(parameter, Parameter::TensorMap(recipe) if recipe.workspace.is_some()),
        );
        assert_eq!(maps.count(), 2);
        for launch in &kernel.launches {
            let table: Table =
                LaunchFile::new(&kernel, launch, "k.ptx", &[]).to_toml().unwrap().parse().unwrap();
            assert!(table["buffers"].as_table().unwrap().contains_key("permuted"));
        }
    }

    #[test]
    fn scalars_of_every_kind_are_toml() {
        let kernel = kernel("silu(alpha * (X @ Wg)) * (alpha * (X @ Wu))", Config::default());
        for value in [1.0, -0.0, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let text = LaunchFile::new(&kernel, &kernel.launches[0], "k.ptx", &[("alpha", value)])
                .to_toml()
                .unwrap();
            let table: Table = text.parse().unwrap();
            let param = table["params"].as_array().unwrap().last().unwrap()["f32"].as_float().unwrap();
            assert!(param as f32 == value || (param.is_nan() && value.is_nan()), "{value}: {param}");
            assert_eq!(param.is_sign_negative(), value.is_sign_negative());
        }
        let error = LaunchFile::new(&kernel, &kernel.launches[0], "k.ptx", &[]).to_toml().unwrap_err();
        assert!(error.to_string().contains("`alpha`"), "{error}");
    }

    #[test]
    fn names_are_escaped() {
        let kernel = kernel("silu(A @ B1) * (A @ B2)", Config::default());
        let name = "a \"b\"\\\n\u{7f}é.ptx";
        let table: Table =
            LaunchFile::new(&kernel, &kernel.launches[0], name, &[]).to_toml().unwrap().parse().unwrap();
        assert_eq!(table["ptx"].as_str(), Some(name));
    }

    #[test]
    fn operands_are_written_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel("silu(A @ B1) * (A @ B2)", Config::default());
        let inputs = DualGemmInputs::generate(kernel.problem.shape, Distribution::Full, 5).unwrap();
        let path = write(&folder.path().join("new"), &kernel, Some(&inputs), &[]).unwrap();
        let table: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let read = |name: &Value| std::fs::read(path.with_file_name(name.as_str().unwrap())).unwrap();
        assert_eq!(read(&table["ptx"]), kernel.ptx.as_bytes());
        for operand in Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem)) {
            let buffer = table["buffers"][operand.name()].as_table().unwrap();
            assert_eq!(buffer.len(), 1);
            assert_eq!(read(&buffer["file"]), tensor(&inputs, operand).unwrap());
        }
        let other = DualGemmInputs::generate(Shape::new(130, 200, 448), Distribution::Full, 5).unwrap();
        let error = write(folder.path(), &kernel, Some(&other), &[]).unwrap_err();
        assert!(matches!(error, LaunchFileError::Operand { operand: Operand::A, .. }), "{error}");
        let formats = Formats { a: OperandFormat::E4m3, b: OperandFormat::E4m3, ..Formats::default() };
        let other =
            DualGemmInputs::generate_for(kernel.problem.shape, formats, Distribution::Full, 5).unwrap();
        let error = write(folder.path(), &kernel, Some(&other), &[]).unwrap_err();
        assert!(error.to_string().contains("for e4m3 x e4m3 -> f16"), "{error}");
        let blocked = write(&path, &kernel, None, &[]).unwrap_err();
        assert!(matches!(blocked, LaunchFileError::Output(OutputError::Io { .. })), "{blocked}");
    }

    #[test]
    fn buffers_are_those_of_the_formats() {
        let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        for (a, c, names, scale) in [
            (OperandFormat::Bf16, OutputFormat::F32, &["a", "b1", "b2", "c"][..], None),
            (OperandFormat::Mxfp8, OutputFormat::E4m3, &["a", "b1", "b2", "c", "sfa", "sfb1", "sfb2"], None),
            (OperandFormat::E5m2, OutputFormat::Nvfp4, &["a", "b1", "b2", "c", "sfc"], Some(0.25)),
        ] {
            spec.formats = Formats::new(a, a, c);
            let kernel = spec.kernel(Shape::new(130, 224, 416), Arch::Sm100a).unwrap();
            let file = LaunchFile::new(&kernel, &kernel.launches[0], "k.ptx", &[]).with_output_scale(0.25);
            let table: Table = file.to_toml().unwrap().parse().unwrap();
            let buffers = table["buffers"].as_table().unwrap();
            assert_eq!(buffers.keys().map(String::as_str).collect::<Vec<_>>(), names);
            let scales = table["params"].as_array().unwrap().iter().filter_map(|p| p.get("f32"));
            assert_eq!(scales.map(|value| value.as_float().unwrap()).collect::<Vec<_>>(), scale.as_slice());
            let inputs = DualGemmInputs::generate_for(
                kernel.problem.shape,
                kernel.problem.formats,
                Distribution::Full,
                1,
            );
            for operand in Operand::ALL.into_iter().filter(|operand| operand.present(&kernel.problem)) {
                let bytes = tensor(inputs.as_ref().unwrap(), operand).unwrap();
                assert_eq!(bytes.len() as u64, operand.bytes(&kernel.problem), "{operand}");
            }
        }
    }
}
