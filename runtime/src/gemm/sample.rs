//! A sample of C, for shapes whose full reference would take the host too long.
//!
//! The sample has one element in each patch of rows by columns, at a random place, and the first and last row and
//! column. So it covers every tile of a kernel.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin_codegen::arch::Arch;
use silumin_codegen::gate::{Axis, Expr};
use silumin_codegen::problem::{Groups, OutputFormat, Problem};
use silumin_codegen::spec::Spec;
use silumin_verify::vectors::GateVectors;

use super::verify::{expected_by, expected_preactivations_by, kept_preactivations, tensor_core};
use super::{DeviceOperands, VerifyError};
use silumin_formats::Matrix;
use silumin_formats::layout::{blocked_len, blocked_offset};
use silumin_verify::check::{CheckReport, check_bounded, check_output, check_preactivations};
use silumin_verify::inputs::DualGemmInputs;
use silumin_verify::output::Output;
use silumin_verify::reference::{Accumulation, Operand, Reference, gated};

/// Columns that are sampled together if C has scale factors: whole blocks of 16 or 32.
const BLOCK: usize = 32;

/// Sampled rows and columns of C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    rows: Vec<usize>,
    columns: Vec<usize>,
}

/// Some rows of a matrix.
struct Picked<'a> {
    matrix: &'a Matrix,
    rows: &'a [usize],
}

impl Operand for Picked<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn k(&self) -> usize {
        self.matrix.k()
    }

    fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        self.matrix.decode_row(self.rows[row], k_start, out);
    }
}

/// One index in each run of `patch`, and the first and the last index.
fn picks(of: usize, patch: usize, random: &mut ChaCha8Rng) -> Vec<usize> {
    if patch <= 1 {
        return (0..of).collect();
    }
    let one = |start: usize| start + random.next_u32() as usize % patch.min(of - start);
    let mut picks: Vec<usize> = (0..of).step_by(patch).map(one).collect();
    picks.extend([0, of - 1]);
    picks.sort_unstable();
    picks.dedup();
    picks
}

impl Sample {
    /// A sample that takes `macs` multiply-adds over both products; `None` if all of C takes no more, and for batches
    /// and groups, which are compared whole.
    pub fn of(problem: &Problem, macs: f64, seed: u64) -> Option<Self> {
        let shape = problem.shape;
        let all = 2.0 * f64::from(shape.m) * f64::from(shape.n) * f64::from(shape.k);
        if all <= macs || shape.groups != Groups::One {
            return None;
        }
        let (m, n) = (shape.m as usize, shape.n as usize);
        let unit = if problem.formats.c.scales().is_some() { BLOCK } else { 1 };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Beside the streams of operands, vectors and groups.
        random.set_stream(1 << 61);
        // Both sides shrink alike, as far as there is anything to leave out.
        let mut patch = [1usize, 1];
        let count = |patch: [usize; 2]| m.div_ceil(patch[0]) * (n / unit).max(1).div_ceil(patch[1]) * unit;
        while 2.0 * count(patch) as f64 * f64::from(shape.k) > macs && (patch[0] < m || patch[1] < n / unit) {
            let side = usize::from(patch[0] > patch[1] || patch[0] >= m);
            patch[side] *= 2;
        }
        let rows = picks(m, patch[0], &mut random);
        let blocks = picks((n / unit).max(1), patch[1], &mut random);
        let columns =
            blocks.into_iter().flat_map(|block| block * unit..(block * unit + unit).min(n)).collect();
        Some(Self { rows, columns })
    }

    /// Number of sampled elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    fn evaluate(
        &self,
        expr: &Expr,
        inputs: &DualGemmInputs,
        scalars: &[(&str, f32)],
        accumulation: Option<Accumulation>,
        drawn: &GateVectors,
    ) -> Result<Reference, VerifyError> {
        let scalars: Vec<(&str, f64)> =
            scalars.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let elements = |wanted| {
            let found = drawn.iter().find(|(vector, _)| **vector == wanted);
            (wanted.axis, found.map_or(&[][..], |(_, elements)| elements))
        };
        let vectors: Vec<(Axis, &[f32])> = expr.vectors().into_iter().map(elements).collect();
        let evaluator = expr.evaluator(&scalars)?;
        let element = |[row, column]: [usize; 2], vector: usize| {
            let (axis, elements) = vectors[vector];
            let place = match axis {
                Axis::M => self.rows[row],
                Axis::N => self.columns[column],
                Axis::MN => self.rows[row] * inputs.shape().n as usize + self.columns[column],
            };
            f64::from(elements.get(place).copied().unwrap_or(f32::NAN))
        };
        let value = |place, first, second| evaluator.eval_at(first, second, |vector| element(place, vector));
        let rounding =
            |place, first, second| evaluator.rounding_at(first, second, |vector| element(place, vector));
        let a = Picked { matrix: &inputs.a, rows: &self.rows };
        let [b1, b2] = [&inputs.b1, &inputs.b2].map(|matrix| Picked { matrix, rows: &self.columns });
        let second = silumin_codegen::plan::Operand::B2.present(&inputs.problem());
        let b2 = second.then_some(&b2 as &dyn Operand);
        Ok(gated(&a, &b1, b2, value, rounding, accumulation)?)
    }

    /// The sampled elements of C, D1 or D2 with the given number of columns.
    fn pick(
        &self,
        n: usize,
        format: OutputFormat,
        codes: &[u8],
        scales: &[u8],
        tensor_scale: f32,
    ) -> Result<Output, VerifyError> {
        let bits = format.bits() as usize;
        // Elements of less than a byte come in blocks of scale factors.
        let run = if bits < 8 { BLOCK } else { 1 };
        let mut picked = Vec::with_capacity(self.len() * bits / 8);
        for row in &self.rows {
            for column in self.columns.iter().step_by(run) {
                let start = (row * n + column) * bits / 8;
                picked.extend_from_slice(&codes[start..start + run * bits / 8]);
            }
        }
        let mut factors = Vec::new();
        if let Some(spec) = format.scales() {
            let block = spec.block as usize;
            let (of, kept) = (n / block, self.columns.len() / block);
            factors = vec![0; blocked_len(self.rows.len(), kept)?];
            for (place, row) in self.rows.iter().enumerate() {
                for (index, column) in self.columns.iter().step_by(block).enumerate() {
                    factors[blocked_offset(place, index, kept)] =
                        scales[blocked_offset(*row, column / block, of)];
                }
            }
        }
        Ok(Output::new(self.rows.len(), self.columns.len(), format, picked, factors, tensor_scale)?)
    }
}

/// Expected results of one set of operands, whole or sampled.
pub(crate) struct Expectation {
    sample: Option<Sample>,
    accumulation: Option<Accumulation>,
    c: Reference,
    preactivations: Option<Vec<Reference>>,
}

impl Expectation {
    /// Computes the expected results; `narrow` says how the kernel sums if its tensor core keeps fewer bits than
    /// fp32.
    pub fn new(
        spec: &Spec,
        inputs: &DualGemmInputs,
        scalars: &[(&str, f32)],
        sample: Option<Sample>,
        narrow: Option<Accumulation>,
        arch: Arch,
    ) -> Result<Self, VerifyError> {
        let wide = tensor_core(inputs, arch)?;
        // The convention of the public benchmark has no bounds.
        let of_c = match (narrow, inputs.formats().c) {
            (None, OutputFormat::F16) => None,
            _ => Some(narrow.unwrap_or(wide)),
        };
        let of_products = narrow.unwrap_or(wide);
        let kept = inputs.formats().preactivations.is_some();
        let expr = &spec.gate.expr;
        let drawn = GateVectors::draw(&expr.vectors(), &inputs.problem(), inputs.seed());
        let (c, preactivations) = match &sample {
            None => {
                let c = expected_by(spec, inputs, scalars, &drawn, of_c)?;
                (
                    c,
                    kept.then(|| expected_preactivations_by(spec, inputs, scalars, of_products))
                        .transpose()?,
                )
            }
            Some(sample) => {
                super::launch::check_scalars(&spec.gate, scalars)?;
                let of = |expr: &Expr, sums| sample.evaluate(expr, inputs, scalars, sums, &drawn);
                let product = |which| of(&expr.pre_activation(which), Some(of_products));
                let preactivations = match kept {
                    true => {
                        let kept = kept_preactivations(inputs.problem().operation).iter();
                        Some(kept.map(|which| product(*which)).collect::<Result<_, _>>()?)
                    }
                    false => None,
                };
                (of(expr, of_c)?, preactivations)
            }
        };
        Ok(Self { sample, accumulation: narrow, c, preactivations })
    }

    /// Whether the results are for kernels that sum in this way.
    pub fn is_for(&self, narrow: Option<Accumulation>) -> bool {
        self.accumulation == narrow
    }

    /// C in f64, whole or sampled.
    pub fn c(&self) -> &Reference {
        &self.c
    }

    /// Compares a kernel's outputs with the expected results.
    pub fn judge(&self, operands: &DeviceOperands) -> Result<CheckReport, VerifyError> {
        let (got, preactivations) = match &self.sample {
            None => (operands.output()?, operands.preactivations()?),
            Some(sample) => {
                let Problem { shape, formats, operation: _ } = operands.problem();
                let n = shape.n as usize;
                let scales = operands.sfc.as_ref().map(|sfc| sfc.download()).transpose()?.unwrap_or_default();
                let c_scale = operands.c_scale.unwrap_or(1.0);
                let c = sample.pick(n, formats.c, &operands.c.download()?, &scales, c_scale)?;
                let product = |buffer: &crate::device::Buffer, format: OutputFormat| {
                    sample.pick(n, format, &buffer.download()?, &[], 1.0)
                };
                let kept = [&operands.d1, &operands.d2].into_iter().flatten();
                let preactivations: Option<Vec<Output>> = match formats.preactivations {
                    Some(format) => {
                        Some(kept.map(|d| product(d, format.as_output())).collect::<Result<_, _>>()?)
                    }
                    None => None,
                };
                (c, preactivations)
            }
        };
        let report = match self.accumulation {
            None => check_output(&got, &self.c)?,
            Some(_) => check_bounded(&got, &self.c)?,
        };
        Ok(match (preactivations, &self.preactivations) {
            (Some(kept), Some(references)) => {
                report.with_preactivations(check_preactivations(&kept, references)?)
            }
            _ => report,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::gemm::DualGemm;
    use silumin_codegen::arch::Arch;
    use silumin_codegen::problem::{Formats, OperandFormat, PreactivationFormat, Shape};
    use silumin_verify::inputs::Distribution;

    const SHAPE: Shape = Shape::new(150, 192, 256);

    /// Runs a kernel on the emulator and judges it by a sample of `macs` multiply-adds: as it is, and with one byte of C
    /// changed in the element that `damage` picks.
    fn judged(
        formats: Formats,
        macs: f64,
        damage: impl Fn(&Sample) -> Option<(usize, usize)>,
    ) -> (bool, bool) {
        let gate = "silu(s[m] * (A @ B1)) * (A @ B2) + b[n]".parse().unwrap();
        let mut spec = match Spec::new(gate, &[Arch::Sm100a]) {
            Ok(spec) => spec,
            // A build without LLVM has the built-in gates.
            Err(_) => Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap(),
        };
        spec.formats = formats;
        let device = Device::emulated(Arch::Sm100a);
        let kernel = DualGemm::new(spec.clone()).load(&device, SHAPE).unwrap();
        let inputs = DualGemmInputs::generate_for(SHAPE, formats, Distribution::Benchmark, 3).unwrap();
        let sample = Sample::of(&Problem::dual(SHAPE, formats), macs, 3);
        let expectation = Expectation::new(&spec, &inputs, &[], sample.clone(), None, Arch::Sm100a).unwrap();
        let mut operands = DeviceOperands::upload(&device, &inputs).unwrap();
        if formats.c.has_tensor_scale() {
            operands.c_scale = Some(super::super::output_scale(expectation.c()));
        }
        let drawn = crate::gemm::upload_vectors(
            &GateVectors::draw(&spec.gate.expr.vectors(), &spec.problem(SHAPE), 3),
            &device,
        )
        .unwrap();
        let vectors: Vec<_> = drawn.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        kernel
            .launch(&device.stream(), &crate::gemm::Args { vectors: &vectors, ..operands.args(&[]) })
            .unwrap();
        let right = expectation.judge(&operands).unwrap().pass;
        let Some((row, column)) = sample.as_ref().and_then(damage) else { return (right, right) };
        let bytes = formats.c.bits() as usize;
        let start = (row * SHAPE.n as usize + column) * bytes / 8;
        let place = operands.c.slice(start, (bytes / 8).max(1)).unwrap();
        let changed: Vec<u8> = place.download().unwrap().iter().map(|byte| byte ^ 0x55).collect();
        place.write(&changed).unwrap();
        (right, expectation.judge(&operands).unwrap().pass)
    }

    #[test]
    fn samples_of_every_kind_of_output_are_right_and_see_what_is_wrong() {
        let kept = Some(PreactivationFormat::F32);
        for (c, preactivations) in [
            (OutputFormat::F16, None),
            (OutputFormat::Bf16, kept),
            (OutputFormat::F32, None),
            (OutputFormat::E4m3, None),
            (OutputFormat::Nvfp4, None),
            (OutputFormat::Mxfp8, kept),
        ] {
            let formats =
                Formats { preactivations, ..Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, c) };
            let inside = |sample: &Sample| Some((sample.rows[1], sample.columns[1]));
            assert_eq!(judged(formats, 1e6, inside), (true, false), "{c}");
            assert_eq!(judged(formats, 1e18, |_| None), (true, true), "{c}, all of it");
        }
    }

    #[test]
    fn a_sample_is_as_large_as_it_may_be_and_in_every_patch() {
        let problem = Problem::nvfp4(Shape::new(4096, 14336, 4096));
        let sample = Sample::of(&problem, 2e9, 1).unwrap();
        let macs = 2.0 * sample.len() as f64 * 4096.0;
        assert!((0.4e9..2.2e9).contains(&macs), "{macs}");
        assert_eq!((sample.rows[0], *sample.rows.last().unwrap()), (0, 4095));
        assert!(sample.columns.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 64));
        assert!(sample.rows.windows(2).all(|pair| pair[1] - pair[0] <= 64));
        // One row stays, and what is left out is left out of its columns.
        let narrow = Sample::of(&Problem::nvfp4(Shape::new(1, 14336, 4096)), 2e7, 1).unwrap();
        assert_eq!(narrow.rows, [0]);
        assert!(narrow.columns.len() > 1000);
        assert_eq!(Sample::of(&Problem::nvfp4(Shape::new(64, 64, 64)), 2e7, 1), None);
        let tiny = Sample::of(&Problem::nvfp4(Shape::new(2, 3, 64)), 0.0, 1).unwrap();
        assert!(tiny.len() >= 1);
    }
}
