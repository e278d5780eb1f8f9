//! A kernel against the reference: seeded operands, a C that holds anything but the answer, one
//! launch, every element compared.

use half::f16;
use silumin_codegen::gate::EvalError;
use silumin_codegen::problem::{OutputFormat, Problem, Shape};
use silumin_codegen::spec::Spec;
use thiserror::Error;

use super::launch::check_scalars;
use super::{Args, DualGemm, LaunchError, LaunchReport, LoadError, LoadedKernel};
use crate::check::{CheckError, CheckReport, check_output};
use crate::device::{Buffer, Device, DeviceError};
use crate::format::{Matrix, e2m1, e4m3};
use crate::inputs::{Distribution, DualGemmInputs, InputsError};
use crate::layout::LayoutError;
use crate::output::{Output, OutputError};
use crate::reference::{Accumulation, Reference, ReferenceError, dual_gemm, dual_gemm_bounded};

/// Why a kernel could not be judged. A wrong result is none of these: see [`Verification::check`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no kernel.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There are no operands.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The launch, and on the emulated device everything that is wrong with the run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The gate has no value.
    #[error(transparent)]
    Gate(#[from] EvalError),
    /// The reference was not computed.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// What the kernel wrote is no C of its format.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The result was not compared.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// A kernel's result against the reference.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// How far off it is.
    pub check: CheckReport,
    /// What the launch said.
    pub launch: LaunchReport,
}

/// The tensors of one dual GEMM on a device.
#[derive(Clone, Debug)]
pub struct DeviceOperands {
    /// Codes of A.
    pub a: Buffer,
    /// Codes of B1.
    pub b1: Buffer,
    /// Codes of B2.
    pub b2: Buffer,
    /// Blocked scale factors of A, where its format has them.
    pub sfa: Option<Buffer>,
    /// Blocked scale factors of B1, where its format has them.
    pub sfb1: Option<Buffer>,
    /// Blocked scale factors of B2, where its format has them.
    pub sfb2: Option<Buffer>,
    /// C.
    pub c: Buffer,
    /// Blocked scale factors of C, where its format has them.
    pub sfc: Option<Buffer>,
    /// The scale of the whole C, where its format has one.
    pub c_scale: Option<f32>,
    problem: Problem,
}

impl DeviceOperands {
    /// Uploads operands, scale factors in blocked order, and a C of
    /// [`initial_output_bytes`](DualGemmInputs::initial_output_bytes). Where C has a scale of the whole
    /// tensor, it is 1.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Device`], [`VerifyError::Layout`].
    pub fn upload(device: &Device, inputs: &DualGemmInputs) -> Result<Self, VerifyError> {
        let problem = inputs.problem();
        let scales = |matrix: &Matrix| -> Result<Option<Buffer>, VerifyError> {
            let scales = matrix.blocked_scales()?;
            if scales.is_empty() { Ok(None) } else { Ok(Some(device.upload(&scales)?)) }
        };
        let sfc = inputs.initial_output_scales()?.map(|scales| device.upload(&scales)).transpose()?;
        Ok(Self {
            a: device.upload(inputs.a.codes())?,
            b1: device.upload(inputs.b1.codes())?,
            b2: device.upload(inputs.b2.codes())?,
            sfa: scales(&inputs.a)?,
            sfb1: scales(&inputs.b1)?,
            sfb2: scales(&inputs.b2)?,
            c: device.upload(&inputs.initial_output_bytes())?,
            sfc,
            c_scale: problem.formats.c.has_tensor_scale().then_some(1.0),
            problem,
        })
    }

    /// The arguments of a launch.
    #[must_use]
    pub fn args<'a>(&'a self, scalars: &'a [(&'a str, f32)]) -> Args<'a> {
        let Self { a, b1, b2, sfa, sfb1, sfb2, c, sfc, c_scale, problem: _ } = self;
        let [sfa, sfb1, sfb2, sfc] = [sfa, sfb1, sfb2, sfc].map(Option::as_ref);
        Args { a, b1, b2, sfa, sfb1, sfb2, c, sfc, c_scale: *c_scale, scalars }
    }

    /// An f16 C on the host, row-major `[M, N]`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Uninitialised`] where nothing wrote it, on the emulated device.
    pub fn result(&self) -> Result<Vec<f16>, DeviceError> {
        let bytes = self.c.download()?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|pair| f16::from_le_bytes(*pair)).collect())
    }

    /// C on the host in its format, with its scale factors.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Device`] where nothing wrote it, on the emulated device; [`VerifyError::Output`]
    /// where the fields have been given buffers of other lengths.
    pub fn output(&self) -> Result<Output, VerifyError> {
        let Problem { shape, formats } = self.problem;
        let scales = self.sfc.as_ref().map_or(Ok(Vec::new()), Buffer::download)?;
        let (m, n) = (shape.m as usize, shape.n as usize);
        let tensor_scale = self.c_scale.unwrap_or(1.0);
        Ok(Output::new(m, n, formats.c, self.c.download()?, scales, tensor_scale)?)
    }
}

/// The scale of the whole C that makes the most of its format: the largest magnitude that fits, over 6
/// * 448.
fn output_scale(reference: &Reference) -> f32 {
    let amax = reference.exact().iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let scale = (amax / (f64::from(e2m1::MAX) * f64::from(e4m3::MAX))) as f32;
    if scale.is_normal() { scale } else { 1.0 }
}

/// What a kernel of `spec` has to compute of `inputs`: the gate in f64 over products in f64. With
/// [`bounds`](Reference::bounds) on a right kernel's error, but for an f16 C, which is held to the
/// benchmark's tolerance.
///
/// # Errors
///
/// A scalar of the gate that is missing, unknown or given twice.
pub fn expected(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
) -> Result<Reference, VerifyError> {
    check_scalars(&spec.gate, scalars)?;
    let scalars: Vec<(&str, f64)> = scalars.iter().map(|&(name, value)| (name, f64::from(value))).collect();
    let gate = spec.gate.expr.evaluator(&scalars)?;
    let gate = |first, second| gate.eval(first, second);
    let DualGemmInputs { a, b1, b2, .. } = inputs;
    let formats = inputs.formats();
    if formats.c == OutputFormat::F16 {
        return Ok(dual_gemm(a, b1, b2, gate)?);
    }
    let kind = formats.check().map_err(InputsError::from)?;
    Ok(dual_gemm_bounded(a, b1, b2, gate, Accumulation::tensor_core(kind, a.k()))?)
}

impl LoadedKernel {
    /// Runs the kernel on seeded operands and compares every element of C with the reference: f16 with
    /// the tolerance of the public benchmark, other formats and their scale factors as
    /// [`check_output`] says. C holds anything but the answer beforehand. Where C has a scale of the
    /// whole tensor, it is the one that makes the most of the format.
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
        let spec = self.dual_gemm().spec();
        let Problem { shape, formats } = self.kernel().problem;
        let inputs = DualGemmInputs::generate_for(shape, formats, distribution, seed)?;
        let mut operands = DeviceOperands::upload(self.device(), &inputs)?;
        // The kernel first, which can be wrong at once, unless it needs to know how large C is.
        let mut reference = None;
        if formats.c.has_tensor_scale() {
            let known = reference.insert(expected(spec, &inputs, scalars)?);
            operands.c_scale = Some(output_scale(known));
        }
        let launch = self.launch(&self.device().stream(), &operands.args(scalars))?;
        let got = operands.output()?;
        let reference = match reference {
            Some(reference) => reference,
            None => expected(spec, &inputs, scalars)?,
        };
        Ok(Verification { check: check_output(&got, &reference)?, launch })
    }
}

impl DualGemm {
    /// Makes the kernel for a shape, loads it, and judges it: see [`LoadedKernel::verify`].
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
