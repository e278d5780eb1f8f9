//! A kernel against the reference: seeded operands, a C that holds anything but the answer, one
//! launch, every element compared.

use half::f16;
use silumin_codegen::gate::{Axis, EvalError};
use silumin_codegen::problem::{OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use thiserror::Error;

use super::launch::check_scalars;
use super::{Args, DualGemm, GateVectors, LaunchError, LaunchReport, LoadError, LoadedKernel};
use crate::check::{CheckError, CheckReport, Tolerance, check};
use crate::device::{Buffer, Device, DeviceError};
use crate::inputs::{Distribution, DualGemmInputs, InputsError};
use crate::layout::LayoutError;
use crate::reference::{Reference, ReferenceError, dual_gemm_at};

/// Why a kernel could not be judged. A wrong result is none of these: see [`Verification::check`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// There is no kernel.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A format of C that the checker does not know.
    #[error("the checker compares f16 results, and C is {format}: compare with `reference::dual_gemm`")]
    Output {
        /// C's format.
        format: OutputFormat,
    },
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
    /// Blocked scale factors of A.
    pub sfa: Buffer,
    /// Blocked scale factors of B1.
    pub sfb1: Buffer,
    /// Blocked scale factors of B2.
    pub sfb2: Buffer,
    /// C.
    pub c: Buffer,
}

impl DeviceOperands {
    /// Uploads operands, scale factors in blocked order, and a C of
    /// [`initial_output`](DualGemmInputs::initial_output).
    ///
    /// # Errors
    ///
    /// [`VerifyError::Device`], [`VerifyError::Layout`].
    pub fn upload(device: &Device, inputs: &DualGemmInputs) -> Result<Self, VerifyError> {
        let poison: Vec<u8> = inputs.initial_output().iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Self {
            a: device.upload(inputs.a.codes())?,
            b1: device.upload(inputs.b1.codes())?,
            b2: device.upload(inputs.b2.codes())?,
            sfa: device.upload(&inputs.a.blocked_scales()?)?,
            sfb1: device.upload(&inputs.b1.blocked_scales()?)?,
            sfb2: device.upload(&inputs.b2.blocked_scales()?)?,
            c: device.upload(&poison)?,
        })
    }

    /// The arguments of a launch whose gate has no vectors; give it some as
    /// `Args { vectors: &vectors, ..operands.args(&scalars) }`.
    #[must_use]
    pub fn args<'a>(&'a self, scalars: &'a [(&'a str, f32)]) -> Args<'a> {
        let Self { a, b1, b2, sfa, sfb1, sfb2, c } = self;
        Args { a, b1, b2, sfa, sfb1, sfb2, c, scalars, vectors: &[] }
    }

    /// C on the host, row-major `[M, N]`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Uninitialised`] where nothing wrote it, on the emulated device.
    pub fn result(&self) -> Result<Vec<f16>, DeviceError> {
        let bytes = self.c.download()?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|pair| f16::from_le_bytes(*pair)).collect())
    }
}

/// What a kernel of `spec` has to compute of `inputs`: the gate in f64 over products in f64. The gate's
/// vectors are those that [`LoadedKernel::verify`] draws for the seed of `inputs`.
///
/// # Errors
///
/// A scalar of the gate that is missing, unknown or given twice.
pub fn expected(
    spec: &Spec,
    inputs: &DualGemmInputs,
    scalars: &[(&str, f32)],
) -> Result<Reference, VerifyError> {
    let vectors = GateVectors::draw(&spec.gate.expr.vectors(), inputs.shape(), inputs.seed());
    expected_with(spec, inputs, scalars, &vectors)
}

/// The same with vectors of one's own.
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
    let gate = &spec.gate;
    check_scalars(gate, scalars)?;
    let scalars: Vec<(&str, f64)> = scalars.iter().map(|&(name, value)| (name, f64::from(value))).collect();
    let given: Vec<(&str, &[f32])> =
        vectors.iter().map(|(v, elements)| (v.name.as_str(), elements)).collect();
    let vectors = GateVectors::new(&gate.expr, inputs.shape(), &given).map_err(LaunchError::from)?;
    let vectors: Vec<(Axis, &[f32])> = vectors.iter().map(|(v, elements)| (v.axis, elements)).collect();
    let gate = gate.expr.evaluator(&scalars)?;
    Ok(dual_gemm_at(&inputs.a, &inputs.b1, &inputs.b2, |[row, column], first, second| {
        gate.eval_at(first, second, |vector| {
            f64::from(match vectors[vector] {
                (Axis::M, elements) => elements[row],
                (Axis::N, elements) => elements[column],
            })
        })
    })?)
}

impl LoadedKernel {
    /// Runs the kernel on seeded operands, and vectors of the gate from the same seed, and compares every element of C with the reference, with
    /// the tolerance of the public benchmark. C holds anything but the answer beforehand.
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
        let problem = self.kernel().problem;
        if problem.formats.c != OutputFormat::F16 {
            return Err(VerifyError::Output { format: problem.formats.c });
        }
        let inputs = DualGemmInputs::generate(problem.shape, distribution, seed)?;
        let operands = DeviceOperands::upload(self.device(), &inputs)?;
        let vectors = GateVectors::draw(&spec.gate.expr.vectors(), problem.shape, seed);
        let uploaded = vectors.upload(self.device())?;
        let vectors: Vec<_> = uploaded.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let args = Args { vectors: &vectors, ..operands.args(scalars) };
        let launch = self.launch(&self.device().stream(), &args)?;
        let got = operands.result()?;
        let reference = expected(spec, &inputs, scalars)?;
        Ok(Verification { check: check(&got, &reference, Tolerance::default())?, launch })
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
