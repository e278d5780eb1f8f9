//! Computes the expected C: products on the GPU with f64 sums, the gate on the host in f64.

use crate::raw::{Raw, Value};
use cudarc::driver::CudaStream;
use rayon::prelude::*;
use silumin_codegen::gate::{Axis, Expr};
use silumin_codegen::problem::ElementKind;
use silumin_formats::{Matrix, e2m1, e4m3};
use silumin_runtime::device::{Buffer, Device};
use silumin_runtime::gemm::DeviceOperands;
use silumin_verify::inputs::DualGemmInputs;
use silumin_verify::vectors::GateVectors;
use std::sync::Arc;

const TEMPLATE: &str = include_str!("../reference.ptx");

/// Type in which the reference kernel reads an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// As it is.
    Bf16,
    /// As it is.
    F16,
    /// f32, decoded on the host.
    F32,
}

impl Element {
    /// The type for a matrix: 16-bit floats are read as they are, other formats decoded.
    pub fn of(matrix: &Matrix) -> Self {
        match matrix.format().spec().element {
            ElementKind::Bf16 => Element::Bf16,
            ElementKind::F16 => Element::F16,
            _ => Element::F32,
        }
    }

    fn bytes(self) -> usize {
        if self == Element::F32 { 4 } else { 2 }
    }

    /// Code that loads four elements at `source` if `inside` holds, else zeros, and widens them to `value0` to
    /// `value3`.
    fn load_four(self, inside: &str) -> String {
        let mut text = String::new();
        for i in 0..4 {
            text += &match self {
                Element::F32 => format!("    mov.b32 wide{i}, 0;\n"),
                _ => format!("    mov.b16 raw{i}, 0;\n"),
            };
        }
        text += &match self {
            Element::F32 => {
                format!("    @{inside} ld.global.v4.f32 {{wide0, wide1, wide2, wide3}}, [source];\n")
            }
            _ => format!("    @{inside} ld.global.v4.b16 {{raw0, raw1, raw2, raw3}}, [source];\n"),
        };
        for i in 0..4 {
            text += &match self {
                Element::F32 => String::new(),
                Element::F16 => format!("    cvt.f32.f16 wide{i}, raw{i};\n"),
                Element::Bf16 => format!("    mov.b32 wide{i}, {{zero, raw{i}}};\n"),
            };
            text += &format!("    cvt.f64.f32 value{i}, wide{i};\n");
        }
        text
    }
}

/// The reference kernel for these operand types.
pub fn ptx(a: Element, b: Element) -> String {
    let mut text = String::new();
    for line in TEMPLATE.lines() {
        let inside = line.trim().strip_prefix("LOAD_FOUR(").and_then(|rest| rest.strip_suffix(')'));
        match inside {
            Some("inside_a") => text += &a.load_four("inside_a"),
            Some(inside) => text += &b.load_four(inside),
            None => {
                let line = line.replace("A_BYTES", &a.bytes().to_string());
                text += &line.replace("B_BYTES", &b.bytes().to_string());
                text.push('\n');
            }
        }
    }
    text
}

/// A matrix in device memory as the reference kernel reads it: the operand itself, or decoded to f32, which is exact
/// for all formats.
fn readable(device: &Device, matrix: &Matrix, operand: &Buffer) -> Result<Buffer, String> {
    if Element::of(matrix) != Element::F32 {
        return Ok(operand.clone());
    }
    let k = matrix.k();
    let mut bytes = vec![0u8; matrix.rows() * k * 4];
    bytes.par_chunks_exact_mut(k * 4).enumerate().for_each_init(
        || vec![0.0f64; k],
        |row, (index, out)| {
            matrix.decode_row(index, 0, row);
            for (bytes, value) in out.chunks_exact_mut(4).zip(row.iter()) {
                bytes.copy_from_slice(&(*value as f32).to_le_bytes());
            }
        },
    );
    device.upload(&bytes).map_err(|e| e.to_string())
}

/// Both products on the device in f64, row-major `[rows of A, N]`. Rows outside all groups are NaN.
pub struct Products([Buffer; 2]);

impl Products {
    /// Multiplies, in f64.
    pub fn new(
        device: &Device,
        stream: &Arc<CudaStream>,
        inputs: &DualGemmInputs,
        operands: &DeviceOperands,
    ) -> Result<Self, String> {
        let words = |e: silumin_runtime::device::DeviceError| e.to_string();
        let (n, k) = (inputs.shape().n as usize, inputs.a.k());
        let rows = inputs.a.rows();
        if !k.is_multiple_of(4) {
            return Err(format!("the reference takes a K that is a multiple of 4, not {k}"));
        }
        let (element_a, element_b) = (Element::of(&inputs.a), Element::of(&inputs.b1));
        let kernel = Raw::load(stream, &ptx(element_a, element_b), "reference")?;
        let a = readable(device, &inputs.a, &operands.a)?;
        let b1 = readable(device, &inputs.b1, &operands.b1)?;
        let b2 = readable(device, &inputs.b2, operands.b2.as_ref().ok_or("the reference takes dual GEMMs")?)?;
        let products =
            [device.alloc(rows * n * 8).map_err(words)?, device.alloc(rows * n * 8).map_err(words)?];
        // The buffers were filled on the device's own stream.
        device.stream().synchronize().map_err(words)?;
        let address = |buffer: &Buffer| buffer.cuda_address().ok_or("the reference needs a GPU");
        for product in &products {
            // SAFETY: the buffer is so long.
            unsafe { crate::raw::fill(stream, address(product)?, 0xFF, product.len())? };
        }
        for segment in inputs.group_sizes().segments().filter(|segment| !segment.rows.is_empty()) {
            let (first, count) = (segment.rows.start, segment.rows.len());
            let at = |buffer: &Buffer, row: usize, width: usize, bytes: usize| {
                address(buffer).map(|start| Value::U64(start + (row * width * bytes) as u64))
            };
            let mut values = [
                at(&a, first, k, element_a.bytes())?,
                at(&b1, segment.weights * n, k, element_b.bytes())?,
                at(&b2, segment.weights * n, k, element_b.bytes())?,
                at(&products[0], first, n, 8)?,
                at(&products[1], first, n, 8)?,
                Value::U32(count as u32),
                Value::U32(n as u32),
                Value::U32(k as u32),
            ];
            let grid = [n.div_ceil(64) as u32, count.div_ceil(64) as u32];
            // SAFETY: the parameters are those of the kernel; the tensors have these sizes, and the kernel stays inside of them.
            unsafe { kernel.launch(grid, 256, &mut values)? };
        }
        stream.synchronize().map_err(|e| crate::raw::said("the reference", e))?;
        Ok(Self(products))
    }

    /// Evaluates an expression over both products, such as a gate, for every element in f64, with the given scalars
    /// and the vectors that [`GateVectors::draw`] draws for the inputs' seed.
    pub fn through(
        &self,
        expr: &Expr,
        inputs: &DualGemmInputs,
        scalars: &[(String, f32)],
    ) -> Result<Vec<f64>, String> {
        let products = &self.0;
        let n = inputs.shape().n as usize;
        let scalars: Vec<(&str, f64)> =
            scalars.iter().map(|(name, value)| (name.as_str(), f64::from(*value))).collect();
        let evaluator = expr.evaluator(&scalars).map_err(|e| e.to_string())?;
        let drawn = GateVectors::draw(&expr.vectors(), &inputs.problem(), inputs.seed());
        let vectors: Vec<(Axis, &[f32])> =
            drawn.iter().map(|(vector, elements)| (vector.axis, elements)).collect();
        let mut weights = vec![0; inputs.a.rows()];
        for segment in inputs.group_sizes().segments() {
            weights[segment.rows.clone()].fill(segment.weights);
        }
        let d1 = products[0].download().map_err(|e| e.to_string())?;
        let d2 = products[1].download().map_err(|e| e.to_string())?;
        let mut c = vec![0.0; inputs.a.rows() * n];
        let row = |(row, out): (usize, &mut [f64])| {
            let values = |bytes: &[u8], column: usize| {
                let at = (row * n + column) * 8;
                bytes[at..at + 8].try_into().map_or(f64::NAN, f64::from_le_bytes)
            };
            for (column, out) in out.iter_mut().enumerate() {
                *out = evaluator.eval_at(values(&d1, column), values(&d2, column), |vector| {
                    f64::from(match vectors[vector] {
                        (Axis::M, elements) => elements[row],
                        (Axis::N, elements) => elements[weights[row] * n + column],
                        (Axis::MN, elements) => elements[row * n + column],
                    })
                });
            }
        };
        c.par_chunks_exact_mut(n).enumerate().for_each(row);
        Ok(c)
    }
}

/// The tensor scale of C that uses nvfp4's range best.
pub fn output_scale(want: &[f64]) -> f32 {
    let finite = want.iter().filter(|value| value.is_finite());
    let most = finite.fold(0.0f64, |most, value| most.max(value.abs()));
    let scale = (most / (f64::from(e2m1::MAX) * f64::from(e4m3::MAX))) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}
