//! Gated dual GEMMs on a device: from what `dual_gemm!` makes to a launch.
//!
//! * `mod.rs`: [`DualGemm`], and the [`Kernels`] that a warm-up makes of it.
//! * `launch.rs`: [`LoadedKernel::launch`], and the checks before it.
//! * `error.rs`: what can be wrong with a launch.
//! * `vectors.rs`: the gate's vectors, drawn and checked.
//! * `verify.rs`: a kernel against the reference, on seeded operands.

mod error;
mod launch;
mod vectors;
mod verify;

pub use error::LaunchError;
pub(crate) use launch::Argument;
pub use launch::{Args, LaunchReport, LoadedKernel};
pub use vectors::{GateVectors, VectorError};
pub use verify::{
    DeviceOperands, Verification, VerifyError, expected, expected_products, expected_with, output_scale,
};

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;
use silumin_codegen::arch::Arch;
use silumin_codegen::kernel::Kernel;
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::{EmitError, Spec};
use thiserror::Error;

use crate::cache::ModuleError;
#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::{Backend, Device, emulated};

/// A gated dual GEMM, C = gate(A @ B1^T, A @ B2^T): what `dual_gemm!` expands to. It is the
/// mathematics, the formats and the knobs; kernels are made of it for one shape and one chip each.
///
/// ```
/// use silumin_codegen::{arch::Arch, gate::Gate, problem::Shape, spec::Spec};
/// use silumin_runtime::gemm::DualGemm;
///
/// let gate: Gate = "silu(A @ B1) * (A @ B2)".parse()?;
/// let swiglu = DualGemm::new(Spec::new(gate, &[Arch::Sm100a])?);
/// let kernel = swiglu.kernel(Shape::new(256, 4096, 7168), Arch::Sm100a)?;
/// assert_eq!(kernel.name, "silumin_dual_gemm_m256_n4096_k7168");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DualGemm {
    spec: Arc<Spec>,
    fixed: Option<Shape>,
}

/// Why there is no kernel for a shape.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The dual GEMM was written for another shape.
    #[error("`{name}` is made for {fixed}, not for {given}: leave its shape out to make it for any")]
    FixedShape {
        /// The dual GEMM.
        name: String,
        /// Its shape.
        fixed: Shape,
        /// The shape asked for.
        given: Shape,
    },
    /// The knobs do not fit the shape, or the gate has no code for the chip.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// Why a kernel is not ready to launch.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device does not take it.
    #[error("{device} does not take the kernel `{kernel}`:\n{source}")]
    Module {
        /// The device, in words.
        device: String,
        /// The kernel's name.
        kernel: String,
        /// Why not, and what would help.
        source: ModuleError,
    },
}

/// Shapes whose kernels are not ready.
#[derive(Debug, Error)]
#[error("{}", failed(.failures))]
pub struct WarmupError {
    /// Every one of them, in the order of the call.
    pub failures: Vec<(Shape, LoadError)>,
}

fn failed(failures: &[(Shape, LoadError)]) -> String {
    let lines: Vec<String> = failures.iter().map(|(shape, error)| format!("{shape}: {error}")).collect();
    lines.join("\n")
}

impl DualGemm {
    /// A dual GEMM for any shape.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self { spec: Arc::new(spec), fixed: None }
    }

    /// The same for one shape only.
    #[must_use]
    pub fn with_shape(self, shape: Shape) -> Self {
        Self { fixed: Some(shape), ..self }
    }

    /// Name, gate, formats and knobs.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The only shape it is for, if there is one.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.fixed
    }

    /// Everything that is derived for a shape and a chip, before any PTX.
    ///
    /// # Errors
    ///
    /// [`KernelError`].
    pub fn plan(&self, shape: Shape, arch: Arch) -> Result<Plan, KernelError> {
        self.admit(shape)?;
        Ok(self.spec.plan(shape, arch).map_err(EmitError::Config)?)
    }

    /// The kernel for a shape and a chip.
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

    /// Makes the kernel for one shape and loads it.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(&self, device: &Device, shape: Shape) -> Result<LoadedKernel, LoadError> {
        let kernel = self.kernel(shape, device.arch())?;
        let module = match device.backend() {
            Backend::Emulated(_) => emulated::Module::load(&kernel)
                .map(launch::Module::Emulated)
                .map_err(|reason| ModuleError::Emulator { reason }),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => {
                cuda::Module::load(cuda, &kernel, device.cache()).map(launch::Module::Cuda)
            }
        };
        let module = module.map_err(|source| LoadError::Module {
            device: device.to_string(),
            kernel: kernel.name.clone(),
            source,
        })?;
        Ok(LoadedKernel::new(device.clone(), self.clone(), kernel, module))
    }

    /// Makes and loads the kernels for all `shapes`, on all cores; for no shapes, the one for the
    /// shape that the dual GEMM is for. After that nothing is compiled any more: launches only look
    /// up.
    ///
    /// # Errors
    ///
    /// [`WarmupError`] with every shape that has no kernel, and why.
    pub fn warmup(&self, device: &Device, shapes: &[Shape]) -> Result<Kernels, WarmupError> {
        let fixed = self.fixed.as_slice();
        let mut wanted = if shapes.is_empty() { fixed.to_vec() } else { Vec::new() };
        for shape in shapes {
            if !wanted.contains(shape) {
                wanted.push(*shape);
            }
        }
        let loaded: Vec<_> = wanted.into_par_iter().map(|shape| (shape, self.load(device, shape))).collect();
        let mut kernels = Kernels { name: self.spec.name.to_string(), by_shape: HashMap::new() };
        let mut failures = Vec::new();
        for (shape, result) in loaded {
            match result {
                Ok(kernel) => {
                    kernels.by_shape.insert(shape, kernel);
                }
                Err(error) => failures.push((shape, error)),
            }
        }
        if failures.is_empty() { Ok(kernels) } else { Err(WarmupError { failures }) }
    }
}

/// Kernels of one dual GEMM, loaded on one device, by shape.
#[derive(Clone, Debug)]
pub struct Kernels {
    name: String,
    by_shape: HashMap<Shape, LoadedKernel>,
}

/// No kernel for a shape was warmed up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{name}` has no kernel for {shape}: name that shape at warm-up; loaded: {}",
    listed(.loaded)
)]
pub struct UnknownShape {
    /// The dual GEMM.
    pub name: String,
    /// The shape asked for.
    pub shape: Shape,
    /// The shapes there are, ascending.
    pub loaded: Vec<Shape>,
}

fn listed(shapes: &[Shape]) -> String {
    match shapes {
        [] => "none".to_owned(),
        _ => shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Kernels {
    /// The kernel for C `[m, n]` with `k` summed elements.
    ///
    /// # Errors
    ///
    /// [`UnknownShape`] where it was not warmed up, with the shapes that were.
    pub fn for_problem(&self, m: u32, n: u32, k: u32) -> Result<&LoadedKernel, UnknownShape> {
        self.for_shape(Shape::new(m, n, k))
    }

    /// The kernel for a shape that may be a batch or have groups of rows.
    ///
    /// # Errors
    ///
    /// [`UnknownShape`] where it was not warmed up, with the shapes that were.
    pub fn for_shape(&self, shape: Shape) -> Result<&LoadedKernel, UnknownShape> {
        self.by_shape.get(&shape).ok_or_else(|| {
            let mut loaded: Vec<Shape> = self.by_shape.keys().copied().collect();
            loaded.sort_unstable();
            UnknownShape { name: self.name.clone(), shape, loaded }
        })
    }

    /// All kernels, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &LoadedKernel> {
        self.by_shape.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_shape.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_shape.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swiglu() -> DualGemm {
        let gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
        DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).unwrap())
    }

    #[test]
    fn warm_up_loads_each_shape_once_and_lists_what_it_has() {
        let device = Device::emulated(Arch::Sm100a);
        let (small, large) = (Shape::new(1, 64, 64), Shape::new(128, 64, 256));
        let kernels = swiglu().warmup(&device, &[large, small, large]).unwrap();
        assert_eq!((kernels.len(), kernels.is_empty()), (2, false));
        let kernel = kernels.for_problem(128, 64, 256).unwrap();
        assert_eq!((kernel.kernel().problem.shape, kernel.device()), (large, &device));
        let error = kernels.for_problem(2, 64, 64).unwrap_err();
        assert_eq!(error.loaded, [small, large]);
        let text = error.to_string();
        assert!(text.contains("2 x 64 x 64") && text.contains("1 x 64 x 64, 128 x 64 x 256"), "{text}");
        let none = swiglu().warmup(&device, &[]).unwrap();
        assert!(none.is_empty() && none.for_problem(1, 1, 1).unwrap_err().to_string().ends_with("none"));
    }

    #[test]
    fn warm_up_names_every_shape_that_fails() {
        let device = Device::emulated(Arch::Sm100a);
        let shapes = [Shape::new(1, 64, 40), Shape::new(128, 64, 256), Shape::new(0, 64, 64)];
        let error = swiglu().warmup(&device, &shapes).unwrap_err();
        let failed: Vec<Shape> = error.failures.iter().map(|(shape, _)| *shape).collect();
        assert_eq!(failed, [shapes[0], shapes[2]]);
        let text = error.to_string();
        assert!(text.contains("1 x 64 x 40: ") && text.contains("multiple of 32"), "{text}");
    }

    #[test]
    fn a_fixed_shape_is_the_only_one() {
        let shape = Shape::new(128, 64, 256);
        let gemm = swiglu().with_shape(shape);
        assert_eq!(gemm.shape(), Some(shape));
        assert!(gemm.plan(shape, Arch::Sm100a).is_ok());
        let other = Shape::new(128, 64, 512);
        let error = gemm.kernel(other, Arch::Sm100a).unwrap_err();
        assert!(error.to_string().contains("made for 128 x 64 x 256, not for 128 x 64 x 512"), "{error}");
        assert!(matches!(gemm.plan(other, Arch::Sm100a), Err(KernelError::FixedShape { .. })));
        let kernels = gemm.warmup(&Device::emulated(Arch::Sm100a), &[]).unwrap();
        assert!(kernels.for_problem(128, 64, 256).is_ok());
    }
}
