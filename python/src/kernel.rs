//! Kernels of gated dual GEMMs and GEMMs.

use crate::fault::{Fault, caught};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use silumin::codegen::config::{Config, KNOBS};
use silumin::codegen::gate::{Gate, GateVector};
use silumin::codegen::kernel::{Kernel, Parameter};
use silumin::codegen::plan::{Operand, Plan};
use silumin::codegen::problem::OperandFormat;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::launch_file;
use silumin::{Arch, GroupSizes, Shape};
use std::path::Path;

/// An emitted kernel with its plan.
#[pyclass(frozen)]
pub struct Emitted {
    kernel: Kernel,
    plan: Plan,
    gate: String,
}

/// What to emit.
#[derive(FromPyObject)]
pub struct Request {
    gate: String,
    shape: [u32; 3],
    arch: String,
    a: String,
    b: String,
    c: String,
    preactivations: String,
    batch: Option<u32>,
    groups: Option<u32>,
    name: Option<String>,
    knobs: Vec<(String, String)>,
}

/// Emits a kernel.
#[pyfunction]
pub fn emit(py: Python<'_>, request: Request) -> PyResult<Emitted> {
    caught(py, || {
        let (spec, shape, arch) = declared(request)?;
        let kernel = spec.kernel(shape, arch).map_err(Fault::config)?;
        let plan = spec.plan(shape, arch);
        let plan = plan.map_err(|errors| Fault::config(silumin::codegen::error::explain(&errors)))?;
        Ok(Emitted { kernel, plan, gate: spec.gate.to_string() })
    })
}

/// What a request declares.
pub fn declared(request: Request) -> Result<(Spec, Shape, Arch), Fault> {
    let [m, n, k] = request.shape;
    let mut config = Config::default();
    for (name, value) in &request.knobs {
        config.set(name, value).map_err(|error| Fault::config(format!("config: {error}")))?;
    }
    let file = SpecFile {
        batch: request.batch,
        groups: request.groups,
        arch: request.arch,
        gate: request.gate,
        name: request.name,
        formats: FormatNames {
            a: request.a,
            b: request.b,
            c: request.c,
            preactivations: request.preactivations,
        },
        config,
        ..SpecFile::new(Shape::new(m, n, k))
    };
    let (spec, arch) = file.read().map_err(Fault::config)?;
    Ok((spec, file.shape(), arch))
}

/// Names of the right factors of a gate's products, in reading order.
#[pyfunction]
pub fn right_factors(py: Python<'_>, gate: &str) -> PyResult<Vec<String>> {
    caught(py, || {
        let gate: Gate = gate.parse().map_err(Fault::config)?;
        Ok([Some(gate.source.b1), gate.source.b2].into_iter().flatten().collect())
    })
}

/// A quantised matrix: codes, scale factors in the blocked layout, and the scale of the whole matrix.
type Quantized<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, f32);

/// Quantises row-major f32 values, given as bytes. `scale` is a number; without it, the largest magnitude becomes the largest value of
/// the format.
#[pyfunction]
pub fn quantize<'py>(
    py: Python<'py>,
    format: &str,
    values: &[u8],
    rows: usize,
    columns: usize,
    scale: Option<f32>,
) -> PyResult<Quantized<'py>> {
    let (codes, scales, scale) = caught(py, || {
        let format: OperandFormat = format.parse().map_err(Fault::option)?;
        let values: Vec<f32> =
            values.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let scale = scale.map_or(TensorScale::FromMax, TensorScale::Fixed);
        let matrix = quantize_to(format, &values, rows, columns, scale).map_err(Fault::option)?;
        let scales = matrix.blocked_scales().map_err(Fault::option)?;
        Ok((matrix.codes().to_vec(), scales, matrix.tensor_scale()))
    })?;
    Ok((PyBytes::new(py, &codes), PyBytes::new(py, &scales), scale))
}

/// The knobs with their values and meaning, as JSON.
#[pyfunction]
pub fn knobs(py: Python<'_>) -> PyResult<String> {
    caught(py, || {
        let knobs: Vec<Value> = (KNOBS.iter())
            .map(|knob| json!({ "name": knob.name, "takes": knob.takes(), "help": knob.help() }))
            .collect();
        Ok(json!(knobs).to_string())
    })
}

#[pymethods]
impl Emitted {
    /// The PTX.
    #[getter]
    fn ptx(&self) -> &str {
        &self.kernel.ptx
    }

    /// Names, launches, tensors, knobs, as JSON.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        caught(py, || Ok(facts(&self.kernel, &self.plan).to_string()))
    }

    /// Why the configuration is legal and what bounds its time.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        caught(py, || {
            let Self { plan, gate, .. } = self;
            Ok(format!(
                "problem   {} on {}, gate {gate}\n{}floor     {:.2} us for any kernel, {:.2} us with this schedule (by the chip's rates)\n",
                plan.problem,
                plan.arch,
                plan.explain(),
                plan.floor_seconds() * 1e6,
                plan.schedule_floor_seconds() * 1e6
            ))
        })
    }

    /// Writes PTX and launch files to a folder; returns the path of the first launch file.
    fn write(&self, py: Python<'_>, folder: &str, scalars: Vec<(String, f32)>) -> PyResult<String> {
        caught(py, || {
            let scalars: Vec<(&str, f32)> =
                scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let path = launch_file::write(Path::new(folder), &self.kernel, None, &scalars);
            Ok(path.map_err(Fault::option)?.display().to_string())
        })
    }

    /// Seeded operands, by name.
    fn inputs<'py>(&self, py: Python<'py>, seed: u64) -> PyResult<Vec<(&'static str, Bound<'py, PyBytes>)>> {
        let tensors = caught(py, || {
            let problem = &self.kernel.problem;
            let inputs = DualGemmInputs::generate_problem(problem, None, Distribution::Benchmark, seed);
            let inputs = inputs.map_err(Fault::option)?;
            let present = Operand::ALL.into_iter().filter(|operand| operand.present(problem));
            let tensor = |operand| launch_file::tensor(&inputs, operand).map(|bytes| (operand.name(), bytes));
            present.map(tensor).collect::<Result<Vec<_>, _>>().map_err(Fault::option)
        })?;
        Ok(tensors.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
    }
}

fn facts(kernel: &Kernel, plan: &Plan) -> Value {
    let (problem, formats) = (&kernel.problem, kernel.problem.formats);
    let launches: Vec<Value> = (kernel.launches.iter())
        .map(|launch| {
            json!({
                "entry": launch.entry, "grid": launch.grid, "block": launch.block, "cluster": launch.cluster,
                "shared": launch.dynamic_smem, "programmatic": launch.programmatic,
                "parameters": launch.parameters.iter().map(|each| parameter(each, kernel.problem.shape.m)).collect::<Vec<_>>(),
            })
        })
        .collect();
    let format = |operand: Operand| match operand {
        Operand::A => formats.a.to_string(),
        Operand::B1 | Operand::B2 => formats.b.to_string(),
        Operand::C => formats.c.to_string(),
        Operand::D1 | Operand::D2 => {
            formats.preactivations.map_or_else(String::new, |format| format.to_string())
        }
        Operand::Sfa | Operand::Sfb1 | Operand::Sfb2 if formats.scales_sums() => {
            "f32 scale factors".to_owned()
        }
        Operand::Sfa | Operand::Sfb1 | Operand::Sfb2 | Operand::Sfc => "scale factors".to_owned(),
        Operand::Offsets => "u32".to_owned(),
    };
    let tensors: Vec<Value> = (Operand::ALL.into_iter().filter(|operand| operand.present(problem)))
        .map(|operand| {
            json!({
                "name": operand.name(), "bytes": operand.bytes(problem), "output": operand.is_output(), "format": format(operand),
            })
        })
        .collect();
    let mut vectors: Vec<Value> = Vec::new();
    for parameter in kernel.launches.iter().flat_map(|launch| &launch.parameters) {
        if let Parameter::Vector(vector) = parameter {
            let bytes = vector.bytes(problem);
            let value =
                json!({ "name": parameter.name(), "bytes": bytes, "output": false, "format": "vector" });
            if !vectors.contains(&value) {
                vectors.push(value);
            }
        }
    }
    let shape = problem.shape;
    let groups = shape.groups.by_rows().then(|| GroupSizes::new(shape, &shape.even_sizes()));
    let offsets = groups.and_then(Result::ok).map(|sizes| sizes.offsets().to_vec());
    json!({
        "name": kernel.name, "arch": kernel.arch.target(), "problem": problem.to_string(), "launches": launches,
        "tensors": tensors, "vectors": vectors, "offsets": offsets,
        "workspace": (kernel.workspace.iter())
            .map(|b| json!({ "name": b.name, "bytes": b.bytes, "zeroed": b.zeroed }))
            .collect::<Vec<_>>(),
        "matrix_format": formats.matrix().name(), "gate_vectors": gate_vectors(kernel), "scalars": kernel.scalars(),
        "ptx_version": kernel.ptx_version, "plan": plan.to_string(),
        "knobs": plan.config.entries().into_iter().map(|(knob, value)| (knob.to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>(),
    })
}

/// Names of the gate's vectors and matrices, whether each is a matrix, and bytes.
pub fn gate_vectors(kernel: &Kernel) -> Vec<(String, bool, u64)> {
    let facts =
        |vector: &GateVector| (vector.name.clone(), vector.is_matrix(), vector.bytes(&kernel.problem));
    kernel.vectors().into_iter().map(facts).collect()
}

fn parameter(parameter: &Parameter, rows: u32) -> Value {
    let name = parameter.name();
    match parameter {
        Parameter::TensorMap(recipe) => json!({
            "kind": "tensor_map", "name": name,
            "buffer": recipe.workspace.map_or(recipe.operand.name(), |buffer| buffer.name),
            "data_type": recipe.element.name(), "dims": recipe.all_dims(), "strides": recipe.strides(),
            "box": recipe.all_box_dims(), "swizzle": recipe.swizzle.name(),
            "l2_promotion": if recipe.l2_promotion == 0 { "none".to_owned() } else { format!("{}b", recipe.l2_promotion) },
        }),
        Parameter::Pointer(operand) => json!({ "kind": "pointer", "name": name, "buffer": operand.name() }),
        Parameter::Workspace(buffer) => json!({ "kind": "pointer", "name": name, "buffer": buffer.name }),
        Parameter::Vector(_) => json!({ "kind": "pointer", "name": name, "buffer": name }),
        Parameter::Scalar(scalar) => json!({ "kind": "scalar", "name": name, "scalar": scalar }),
        Parameter::Rows => json!({ "kind": "number", "name": name, "value": rows }),
        Parameter::OutputScale => json!({ "kind": "scalar", "name": name, "scalar": "c_scale" }),
    }
}
