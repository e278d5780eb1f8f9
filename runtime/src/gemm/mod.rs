//! Gated dual GEMMs on a device: load, launch, verify.
//!
//! * `mod.rs`: [`DualGemm`].
//! * `launch.rs`: [`LoadedKernel::launch`], and the checks before it.
//! * `vectors.rs`: the gate's vectors, uploaded and checked.
//! * `sample.rs`: a part of C that stands for all of it.
//! * `verify.rs`: a kernel against the reference, on seeded operands.

mod launch;
mod sample;
mod vectors;
mod verify;

pub use crate::device::{Args, LaunchError, LaunchReport};
pub use launch::LoadedKernel;
pub(crate) use launch::Module;
pub(crate) use sample::{Expectation, Sample};
pub use vectors::upload_vectors;
pub use verify::{
    DeviceOperands, Verification, VerifyError, expected, expected_preactivations, expected_with, output_scale,
};

use std::sync::Arc;

use silumin_codegen::arch::Arch;
use silumin_codegen::config::Config;
use silumin_codegen::kernel::Kernel;
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::{EmitError, Spec};
use thiserror::Error;

use crate::cache::ModuleError;
#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::{Backend, Device, emulated};

/// A gated dual GEMM, `C = gate(A @ B1^T, A @ B2^T)`: mathematics, formats and knobs. `dual_gemm!` expands to one.
/// Kernels are made from it for one shape and one chip each.
///
/// ```
/// use silumin_codegen::{arch::Arch, gate::Gate, problem::Shape, spec::Spec};
/// use silumin_runtime::gemm::DualGemm;
///
/// let gate: Gate = "silu(A @ B1) * (A @ B2)".parse()?;
/// let swiglu = DualGemm::new(Spec::new(gate, &[Arch::Sm100a])?);
/// let kernel = swiglu.kernel(Shape::new(256, 4096, 7168), Arch::Sm100a)?;
/// assert_eq!(kernel.name, "silumin_dual_gemm_n4096_k7168_m00256");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DualGemm {
    spec: Arc<Spec>,
    fixed: Option<Shape>,
}

/// A GEMM, `C = gate(A @ B^T)`: what `gemm!` expands to. It is a [`DualGemm`] whose gate has one product; launch it with
/// [`Args::gemm`].
pub type Gemm = DualGemm;

/// Why a shape has no kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The dual GEMM has a fixed shape, and another was requested.
    #[error("`{name}` has the fixed shape {fixed}, not {given}: leave its shape out to allow any")]
    FixedShape {
        /// The dual GEMM.
        name: String,
        /// Its shape.
        fixed: Shape,
        /// The requested shape.
        given: Shape,
    },
    /// The knobs do not fit the shape, or the gate has no code for the chip.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// Why a kernel could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The kernel could not be generated.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device refused the module.
    #[error("{device} refuses the kernel `{kernel}`:\n{reason}")]
    Module {
        /// The device, in words.
        device: String,
        /// The kernel's name.
        kernel: String,
        /// The reason, and what would help.
        reason: ModuleError,
    },
    /// The warm-up was cancelled before this kernel.
    #[error("the warm-up was cancelled before this kernel")]
    Cancelled,
}

impl DualGemm {
    /// A dual GEMM for any shape.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self { spec: Arc::new(spec), fixed: None }
    }

    /// Fixes the shape.
    #[must_use]
    pub fn with_shape(self, shape: Shape) -> Self {
        Self { fixed: Some(shape), ..self }
    }

    /// Replaces the knobs.
    #[must_use]
    pub fn with_config(&self, config: Config) -> Self {
        let spec = Spec { config, ..Spec::clone(&self.spec) };
        Self { spec: Arc::new(spec), fixed: self.fixed }
    }

    /// Name, gate, formats and knobs.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The fixed shape, if there is one.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.fixed
    }

    /// The plan for a shape and a chip: tile, stages, memory maps, barriers, before any PTX.
    ///
    /// # Errors
    ///
    /// [`KernelError`].
    pub fn plan(&self, shape: Shape, arch: Arch) -> Result<Plan, KernelError> {
        self.admit(shape)?;
        Ok(self.spec.plan(shape, arch).map_err(EmitError::Config)?)
    }

    /// The kernel for a shape and a chip: PTX and launch facts.
    ///
    /// # Errors
    ///
    /// [`KernelError`].
    pub fn kernel(&self, shape: Shape, arch: Arch) -> Result<Kernel, KernelError> {
        self.admit(shape)?;
        Ok(self.spec.kernel(shape, arch)?)
    }

    fn admit(&self, given: Shape) -> Result<(), KernelError> {
        match self.fixed {
            Some(fixed) if fixed != given => {
                Err(KernelError::FixedShape { name: self.spec.name.to_string(), fixed, given })
            }
            _ => Ok(()),
        }
    }

    /// Generates the kernel for one shape and loads it on a device.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(&self, device: &Device, shape: Shape) -> Result<LoadedKernel, LoadError> {
        let kernel = self.kernel(shape, device.arch())?;
        let module = load_module(device, &kernel)?;
        Ok(LoadedKernel::new(device.clone(), self.clone(), kernel, module))
    }
}

/// Loads the module of any kernel.
pub(crate) fn load_module(device: &Device, kernel: &Kernel) -> Result<Module, LoadError> {
    let module = match device.backend() {
        Backend::Emulated(_) => emulated::Module::load(kernel)
            .map(Module::Emulated)
            .map_err(|reason| ModuleError::Emulator { reason }),
        #[cfg(feature = "cuda")]
        Backend::Cuda(cuda) => {
            cuda::Module::load(cuda, kernel, device.cache(), device.line_info()).map(Module::Cuda)
        }
    };
    module.map_err(|reason| LoadError::Module {
        device: device.to_string(),
        kernel: kernel.name.clone(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swiglu() -> DualGemm {
        let gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
        DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).unwrap())
    }

    #[test]
    fn a_fixed_shape_is_the_only_one() {
        let shape = Shape::new(128, 64, 256);
        let gemm = swiglu().with_shape(shape);
        assert_eq!(gemm.shape(), Some(shape));
        assert!(gemm.plan(shape, Arch::Sm100a).is_ok());
        let other = Shape::new(128, 64, 512);
        let error = gemm.kernel(other, Arch::Sm100a).unwrap_err();
        assert!(error.to_string().contains("fixed shape 128 x 64 x 256, not 128 x 64 x 512"), "{error}");
        assert!(matches!(gemm.plan(other, Arch::Sm100a), Err(KernelError::FixedShape { .. })));
    }
}
