//! Verification of a kernel: seeded operands, a poisoned C, one launch, every element compared with the reference.

use half::f16;
use silumin_codegen::arch::Arch;
use silumin_codegen::gate::{Axis, EvalError, Expr, Product};
use silumin_codegen::kernel::Kernel;
use silumin_codegen::plan::Operand;
use silumin_codegen::problem::{Operation, OutputFormat, Problem, Shape};
use silumin_codegen::spec::Spec;
use silumin_verify::vectors::GateVectors;
use thiserror::Error;

use super::launch::check_scalars;
use super::upload_vectors;
use super::{Args, DualGemm, LaunchError, LaunchReport, LoadError, LoadedKernel};
use crate::device::{Buffer, Device, DeviceError};
use silumin_formats::groups::GroupSizes;
use silumin_formats::layout::{LayoutError, blocked_len};
use silumin_formats::{e2m1, e4m3};
use silumin_verify::check::{CheckError, CheckReport, check_bounded, check_output, check_preactivations};
use silumin_verify::inputs::{Distribution, DualGemmInputs, InputsError};
use silumin_verify::output::{Output, OutputError};
use silumin_verify::reference::{Accumulation, Reference, ReferenceError, Rows, gated};

/// Why a kernel could not be verified. A wrong result is not an error: see [`Verification::check`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no kernel.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The operands could not be drawn.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The launch failed, or the emulated device found something wrong.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The gate could not be evaluated.
    #[error(transparent)]
    Gate(#[from] EvalError),
    /// The reference was not computed.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The kernel's output is not valid in C's format.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The result could not be compared.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// A kernel's result compared with the reference.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// Deviation of C and, if they are kept, of the products.
    pub check: CheckReport,
    /// The launch's report.
    pub launch: LaunchReport,
}

/// The tensors of one dual GEMM, in device memory.
#[derive(Clone, Debug)]
pub struct DeviceOperands {
    /// Codes of A.
    pub a: Buffer,
    /// Codes of B1.
    pub b1: Buffer,
    /// Codes of B2; `None` for a GEMM.
    pub b2: Option<Buffer>,
    /// Scale factors of A in the blocked layout, if its format has them.
    pub sfa: Option<Buffer>,
    /// Scale factors of B1 in the blocked layout, if its format has them.
    pub sfb1: Option<Buffer>,
    /// Scale factors of B2 in the blocked layout, if its format has them.
    pub sfb2: Option<Buffer>,
    /// C.
    pub c: Buffer,
    /// Scale factors of C in the blocked layout, if its format has them.
    pub sfc: Option<Buffer>,
    /// The scale of the whole C, if its format has one.
    pub c_scale: Option<f32>,
    /// Row offsets, if there are groups of rows.
    pub offsets: Option<Buffer>,
    /// D1, if it is kept.
    pub d1: Option<Buffer>,
    /// D2, if it is kept.
    pub d2: Option<Buffer>,
    problem: Problem,
    sizes: GroupSizes,
}

impl DeviceOperands {
    /// Uploads operands, scale factors in the blocked layout, and a C that holds
    /// [`initial_output_bytes`](DualGemmInputs::initial_output_bytes). If C has a scale of the whole tensor, it is 1.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Device`], [`VerifyError::Layout`].
    pub fn upload(device: &Device, inputs: &DualGemmInputs) -> Result<Self, VerifyError> {
        let problem = inputs.problem();
        let scales = |scales: Vec<u8>| -> Result<Option<Buffer>, VerifyError> {
            if scales.is_empty() { Ok(None) } else { Ok(Some(device.upload(&scales)?)) }
        };
        let sizes = inputs.group_sizes().clone();
        let offsets = problem.shape.groups.by_rows().then(|| device.upload(&sizes.offset_bytes()));
        let second = Operand::B2.present(&problem);
        let sfc = inputs.initial_output_scales()?.map(|scales| device.upload(&scales)).transpose()?;
        let product = || inputs.initial_preactivation_bytes().map(|bytes| device.upload(&bytes)).transpose();
        Ok(Self {
            a: device.upload(inputs.a.codes())?,
            b1: device.upload(inputs.b1.codes())?,
            b2: second.then(|| device.upload(inputs.b2.codes())).transpose()?,
            sfa: scales(inputs.blocked_scales_of_a()?)?,
            sfb1: scales(inputs.blocked_scales_of_b(&inputs.b1)?)?,
            sfb2: if second { scales(inputs.blocked_scales_of_b(&inputs.b2)?)? } else { None },
            c: device.upload(&inputs.initial_output_bytes())?,
            sfc,
            c_scale: problem.formats.c.has_tensor_scale().then_some(1.0),
            offsets: offsets.transpose()?,
            d1: product()?,
            d2: if second { product()? } else { None },
            problem,
            sizes,
        })
    }

    /// The arguments of a launch without vectors. For a gate with vectors write `Args { vectors: &vectors,
    /// ..operands.args(&scalars) }`.
    #[must_use]
    pub fn args<'a>(&'a self, scalars: &'a [(&'a str, f32)]) -> Args<'a> {
        let Self { a, b1, b2, sfa, sfb1, sfb2, c, sfc, c_scale, offsets, d1, d2, problem: _, sizes: _ } =
            self;
        let [b2, sfa, sfb1, sfb2, sfc, offsets, d1, d2] =
            [b2, sfa, sfb1, sfb2, sfc, offsets, d1, d2].map(Option::as_ref);
        Args {
            a,
            b1,
            b2,
            sfa,
            sfb1,
            sfb2,
            c,
            sfc,
            c_scale: *c_scale,
            offsets,
            d1,
            d2,
            scalars,
            vectors: &[],
            rows: None,
            weight_scales: None,
        }
    }

    /// Downloads C as f16, row-major `[M, N]`. A batch has one such matrix after the other; groups have the rows of
    /// all groups.
    ///
    /// # Errors
    ///
    /// On the emulated device, [`DeviceError::Uninitialised`] if a byte of C was never written.
    pub fn result(&self) -> Result<Vec<f16>, DeviceError> {
        let bytes = self.used(&self.c, self.problem.formats.c.bits())?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|pair| f16::from_le_bytes(*pair)).collect())
    }

    /// The problem that the tensors belong to.
    pub(super) fn problem(&self) -> Problem {
        self.problem
    }

    /// Downloads the elements of C, D1 or D2; with groups only those of their rows.
    fn used(&self, output: &Buffer, bits: u32) -> Result<Vec<u8>, DeviceError> {
        let shape = self.problem.shape;
        match self.sizes.rows() * shape.n as usize * bits as usize / 8 {
            0 => Ok(Vec::new()),
            bytes if shape.groups.by_rows() => output.slice(0, bytes.min(output.len()))?.download(),
            _ => output.download(),
        }
    }

    /// Downloads C in its format, with its scale factors; with groups only their rows.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Device`] where nothing wrote it, on the emulated device; [`VerifyError::Output`]
    /// where the fields have been given buffers of other lengths.
    pub fn output(&self) -> Result<Output, VerifyError> {
        let Problem { shape, formats, operation: _ } = self.problem;
        let n = shape.n as usize;
        let scales = match (&self.sfc, formats.c.scales()) {
            (Some(sfc), Some(spec)) if shape.groups.by_rows() => {
                match blocked_len(self.sizes.padded_rows(), spec.columns(shape.n) as usize)? {
                    0 => Vec::new(),
                    bytes => sfc.slice(0, bytes.min(sfc.len()))?.download()?,
                }
            }
            (Some(sfc), _) => sfc.download()?,
            (None, _) => Vec::new(),
        };
        let tensor_scale = self.c_scale.unwrap_or(1.0);
        Ok(Output::grouped(
            &self.sizes,
            n,
            formats.c,
            self.used(&self.c, formats.c.bits())?,
            scales,
            tensor_scale,
        )?)
    }

    /// Downloads D1, and D2 unless it is a GEMM, in their format; `None` if they are not kept.
    ///
    /// # Errors
    ///
    /// As [`DeviceOperands::output`].
    pub fn preactivations(&self) -> Result<Option<Vec<Output>>, VerifyError> {
        let Problem { shape, formats, operation: _ } = self.problem;
        let Some(format) = formats.preactivations else { return Ok(None) };
        let product = |buffer: &Buffer| -> Result<Output, VerifyError> {
            let (n, format) = (shape.n as usize, format.as_output());
            let codes = self.used(buffer, format.bits())?;
            Ok(Output::grouped(&self.sizes, n, format, codes, Vec::new(), 1.0)?)
        };
        Ok(Some([&self.d1, &self.d2].into_iter().flatten().map(product).collect::<Result<_, _>>()?))
    }
}

/// The scale of the whole C that uses its format's range best: the largest magnitude that fits, divided by 6 * 448.
pub fn output_scale(reference: &Reference) -> f32 {
    let amax = reference.exact().iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let scale = (amax / (f64::from(e2m1::MAX) * f64::from(e4m3::MAX))) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}

/// The reference result of `spec` on `inputs`: the gate in f64 on products in f64, with the vectors that
/// [`LoadedKernel::verify`] draws for the seed of `inputs`. It has [`bounds`](Reference::bounds) on the error of a
/// right kernel, except for an f16 C, which has the benchmark's tolerance.
///
/// # Errors
///
/// A scalar of the gate that is missing, unknown or given twice.
pub fn expected(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
) -> Result<Reference, VerifyError> {
    let vectors = GateVectors::draw(&spec.gate.expr.vectors(), &inputs.problem(), inputs.seed());
    expected_with(spec, inputs, scalars, &vectors)
}

/// The reference result with given vectors: see [`expected`].
///
/// # Errors
///
/// A scalar of the gate that is missing, unknown or given twice; vectors of another gate or shape.
pub fn expected_with(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
    vectors: &GateVectors,
) -> Result<Reference, VerifyError> {
    let accumulation = match inputs.formats().c {
        OutputFormat::F16 => None,
        _ => Some(tensor_core(inputs, Arch::Sm100a)?),
    };
    expected_by(spec, inputs, scalars, vectors, accumulation)
}

/// The reference result with bounds for a kind of summation, or without bounds.
pub(super) fn expected_by(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
    vectors: &GateVectors,
    accumulation: Option<Accumulation>,
) -> Result<Reference, VerifyError> {
    let gate = &spec.gate;
    check_scalars(gate, scalars)?;
    let given: Vec<(&str, &[f32])> =
        vectors.iter().map(|(v, elements)| (v.name.as_str(), elements)).collect();
    let vectors = GateVectors::new(&gate.expr, &inputs.problem(), &given).map_err(LaunchError::from)?;
    evaluated(&gate.expr, inputs, scalars, &vectors, accumulation)
}

/// The reference of D1, and of D2 unless it is a GEMM, with bounds: see [`PreactivationFormat`](silumin_codegen::problem::PreactivationFormat). The
/// vectors are those of [`expected`].
///
/// # Errors
///
/// A scalar of the gate that is missing, unknown or given twice.
pub fn expected_preactivations(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
) -> Result<Vec<Reference>, VerifyError> {
    expected_preactivations_by(spec, inputs, scalars, tensor_core(inputs, Arch::Sm100a)?)
}

pub(super) fn expected_preactivations_by(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
    accumulation: Accumulation,
) -> Result<Vec<Reference>, VerifyError> {
    let gate = &spec.gate;
    check_scalars(gate, scalars)?;
    let vectors = GateVectors::draw(&gate.expr.vectors(), &inputs.problem(), inputs.seed());
    let of = |product| {
        evaluated(&gate.expr.pre_activation(product), inputs, scalars, &vectors, Some(accumulation))
    };
    kept_preactivations(inputs.problem().operation).iter().map(|product| of(*product)).collect()
}

/// The products that a kernel can keep.
pub(super) const fn kept_preactivations(operation: Operation) -> &'static [Product] {
    match operation {
        Operation::DualGemm => &[Product::First, Product::Second],
        Operation::Gemm => &[Product::First],
    }
}

/// How a tensor core sums that keeps all bits of fp32; in shorter steps where operands are decoded.
pub(super) fn tensor_core(inputs: &DualGemmInputs, arch: Arch) -> Result<Accumulation, VerifyError> {
    let kind = inputs.formats().kind(arch).map_err(InputsError::from)?;
    Ok(Accumulation::tensor_core(kind, inputs.a.k()))
}

/// An expression over both products, with vectors of which some are its own.
fn evaluated(
    expr: &Expr,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
    vectors: &GateVectors,
    accumulation: Option<Accumulation>,
) -> Result<Reference, VerifyError> {
    let scalars: Vec<(&str, f64)> = scalars.iter().map(|&(name, value)| (name, f64::from(value))).collect();
    let elements = |wanted| {
        let found = vectors.iter().find(|(vector, _)| **vector == wanted);
        (wanted.axis, found.map_or(&[][..], |(_, elements)| elements))
    };
    let vectors: Vec<(Axis, &[f32])> = expr.vectors().into_iter().map(elements).collect();
    let expr = expr.evaluator(&scalars)?;
    let n = inputs.shape().n as usize;
    let second = Operand::B2.present(&inputs.problem());
    let parts = inputs.group_sizes().segments().filter(|segment| !segment.rows.is_empty()).map(|segment| {
        let columns = segment.weights * n..(segment.weights + 1) * n;
        let a = Rows::new(&inputs.a, segment.rows.clone());
        let [b1, b2] = [&inputs.b1, &inputs.b2].map(|b| Rows::new(b, columns.clone()));
        let b2 = second.then_some(&b2 as &dyn silumin_verify::reference::Operand);
        let element = |[row, column]: [usize; 2], vector: usize| {
            f64::from(match vectors[vector] {
                (Axis::M, elements) => elements[segment.rows.start + row],
                (Axis::N, elements) => elements[columns.start + column],
                (Axis::MN, elements) => elements[(segment.rows.start + row) * n + column],
            })
        };
        let value = |place, first, second| expr.eval_at(first, second, |vector| element(place, vector));
        let rounding =
            |place, first, second| expr.rounding_at(first, second, |vector| element(place, vector));
        gated(&a, &b1, b2, value, rounding, accumulation)
    });
    let parts: Vec<Reference> = parts.collect::<Result<_, _>>()?;
    Ok(Reference::stacked(n, parts)?)
}

impl LoadedKernel {
    /// Runs the kernel on seeded operands and vectors and compares every element of C with the reference: f16 with
    /// the tolerance of the public benchmark, other formats by [`check_output`], and sums that lose bits in Hopper's
    /// tensor cores by [`check_bounded`]. If the pre-activations D1 and D2 are kept, they are compared too ([`check_preactivations`]).
    /// Outputs are poisoned before the launch. If C has a scale of the whole tensor, it is the one that uses the
    /// format's range best.
    ///
    /// # Errors
    ///
    /// [`VerifyError`] where there is no result to compare; a wrong result is a report that says so.
    pub fn verify(
        &self,
        distribution: Distribution,
        seed: u64,
        scalars: &[(&str, f32)],
    ) -> Result<Verification, VerifyError> {
        let problem = self.kernel().problem;
        self.verify_on(&DualGemmInputs::generate_problem(&problem, None, distribution, seed)?, scalars)
    }

    /// Runs the kernel on given operands of its shape and formats, for example with group sizes of your own, and
    /// compares as [`LoadedKernel::verify`].
    ///
    /// # Errors
    ///
    /// As [`LoadedKernel::verify`].
    pub fn verify_on(
        &self,
        inputs: &DualGemmInputs,
        scalars: &[(&str, f32)],
    ) -> Result<Verification, VerifyError> {
        let spec = self.dual_gemm().spec();
        let formats = self.kernel().problem.formats;
        let mut operands = DeviceOperands::upload(self.device(), inputs)?;
        // The kernel first, which can be wrong at once, unless it needs to know how large C is.
        let mut reference = None;
        if formats.c.has_tensor_scale() {
            let known = reference.insert(expected(spec, inputs, scalars)?);
            operands.c_scale = Some(output_scale(known));
        }
        let vectors = GateVectors::draw(&spec.gate.expr.vectors(), &inputs.problem(), inputs.seed());
        let uploaded = upload_vectors(&vectors, self.device())?;
        let vectors: Vec<_> = uploaded.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let args = Args { vectors: &vectors, ..operands.args(scalars) };
        let launch = self.launch(&self.device().stream(), &args)?;
        let got = operands.output()?;
        let narrow = self.narrow_sums();
        let wide = tensor_core(inputs, self.kernel().arch)?;
        let reference = match (reference, narrow) {
            (Some(reference), _) => reference,
            (None, _) => {
                let vectors = GateVectors::draw(&spec.gate.expr.vectors(), &inputs.problem(), inputs.seed());
                let accumulation = match (narrow, formats.c) {
                    // The convention of the public benchmark has no bounds.
                    (None, OutputFormat::F16) => None,
                    _ => Some(narrow.unwrap_or(wide)),
                };
                expected_by(spec, inputs, scalars, &vectors, accumulation)?
            }
        };
        let mut check = match narrow {
            None => check_output(&got, &reference)?,
            Some(_) => check_bounded(&got, &reference)?,
        };
        if let Some(kept) = operands.preactivations()? {
            let references = expected_preactivations_by(spec, inputs, scalars, narrow.unwrap_or(wide))?;
            check = check.with_preactivations(check_preactivations(&kept, &references)?);
        }
        Ok(Verification { check, launch })
    }

    /// How the kernel sums if its tensor core keeps fewer bits than fp32.
    pub(crate) fn narrow_sums(&self) -> Option<Accumulation> {
        let Kernel { problem, arch, .. } = self.kernel();
        let plan = self.dual_gemm().plan(problem.shape, *arch).ok()?;
        plan.narrow_sums().map(|k| Accumulation::narrow(k as usize))
    }
}

impl DualGemm {
    /// Generates the kernel for a shape, loads it, and verifies it: see [`LoadedKernel::verify`].
    ///
    /// # Errors
    ///
    /// [`VerifyError`] where there is no result to compare; a wrong result is a report that says so.
    pub fn verify(
        &self,
        device: &Device,
        shape: Shape,
        distribution: Distribution,
        seed: u64,
        scalars: &[(&str, f32)],
    ) -> Result<Verification, VerifyError> {
        self.load(device, shape)?.verify(distribution, seed, scalars)
    }
}
