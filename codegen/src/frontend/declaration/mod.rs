//! A dual GEMM or GEMM as its author wrote it: all but the shape. What `dual_gemm!` and `gemm!` expand to.
//!
//! * `mod.rs`: [`Spec`], from which kernels are made shape by shape.
//! * `file.rs`: the same as a document, for files.

mod file;

pub use file::{FormatNames, SpecFile, SpecFileError};

use crate::arch::Arch;
use crate::config::Config;
use crate::error::{ConfigError, explain};
use crate::gate::{BUILTIN_WIDTH, Gate, GateCode, GateError, gate_code};
#[cfg(feature = "render")]
use crate::kernel::Kernel;
use crate::legalize::check_name;
use crate::plan::{GateNeeds, Plan, validate_gate};
use crate::problem::{Formats, Groups, Operation, Problem, Shape};
#[cfg(feature = "render")]
use crate::render::{RenderError, render_with};
use std::borrow::Cow;

/// What kernels of dual GEMMs are called if nobody names them.
pub const DEFAULT_NAME: &str = "silumin_dual_gemm";
/// What kernels of GEMMs are called if nobody names them.
pub const DEFAULT_GEMM_NAME: &str = "silumin_gemm";

/// What kernels are called if nobody names them.
pub const fn default_name(operation: Operation) -> &'static str {
    match operation {
        Operation::DualGemm => DEFAULT_NAME,
        Operation::Gemm => DEFAULT_GEMM_NAME,
    }
}

/// Name, formats, knobs and gate of a dual GEMM or GEMM, with the gate's code for each chip it is meant for.
///
/// ```
/// use silumin_codegen::{arch::Arch, gate::Gate, problem::Shape, spec::Spec};
///
/// let gate: Gate = "silu(A @ B1) * (A @ B2)".parse()?;
/// let spec = Spec::new(gate, &[Arch::Sm100a])?;
/// let kernel = spec.kernel(Shape::new(256, 4096, 7168), Arch::Sm100a)?;
/// assert!(kernel.ptx.contains("tcgen05.mma"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What kernels are called, before the shape: a PTX identifier.
    pub name: Cow<'static, str>,
    /// The mathematics.
    pub gate: Gate,
    /// Operand and output formats.
    pub formats: Formats,
    /// The knobs.
    pub config: Config,
    /// The gate's code, one for each chip.
    pub code: Vec<GateCode>,
}

/// Why a [`Spec`] and a shape make no kernel.
#[cfg(feature = "render")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The configuration is illegal for this problem and chip.
    #[error("{}", explain(.0))]
    Config(Vec<ConfigError>),
    /// The gate has no code for this chip.
    #[error("`{name}` has no code for {arch}; it was made for: {known}")]
    Arch {
        /// The spec's name.
        name: String,
        /// The chip asked for.
        arch: Arch,
        /// The chips it has code for.
        known: String,
    },
    /// Rendering failed.
    #[error(transparent)]
    Render(#[from] RenderError),
}

/// The chips whose gate code `arches` run, each once.
pub(crate) fn gate_targets(arches: &[Arch]) -> Vec<&'static str> {
    let mut targets = Vec::new();
    for arch in arches {
        if !targets.contains(&arch.gate_target()) {
            targets.push(arch.gate_target());
        }
    }
    targets
}

impl Spec {
    /// NVFP4 to f16 with default knobs, the gate's code made or found for `arches`.
    ///
    /// # Errors
    /// The gate is neither built in nor can this build lower it.
    pub fn new(gate: Gate, arches: &[Arch]) -> Result<Self, GateError> {
        let code = gate_targets(arches).into_iter().map(|arch| gate_code(&gate.expr, arch, BUILTIN_WIDTH));
        Ok(Spec {
            name: Cow::Borrowed(default_name(gate.expr.operation())),
            code: code.collect::<Result<_, _>>()?,
            gate,
            formats: Formats::default(),
            config: Config::default(),
        })
    }

    /// How many products there are: those of the gate.
    pub fn operation(&self) -> Operation {
        self.gate.expr.operation()
    }

    /// The problem for one shape.
    pub fn problem(&self, shape: Shape) -> Problem {
        Problem { shape, formats: self.formats, operation: self.operation() }
    }

    /// The plan for one shape and chip.
    ///
    /// # Errors
    /// See [`validate`](crate::plan::validate()). A plan that is legal here renders: [`Spec::kernel`] refuses nothing else but
    /// chips that the gate has no code for.
    pub fn plan(&self, shape: Shape, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
        let plan = validate_gate(&self.problem(shape), &self.config, arch, &GateNeeds::from(&self.gate.expr));
        let Err(error) = check_name(&self.kernel_name(shape)) else { return plan };
        let mut errors = plan.err().unwrap_or_default();
        errors.push(error);
        Err(errors)
    }

    /// What the kernel for one shape is called: the name and the shape, the batch or the groups behind it. In order of their names the
    /// kernels of a layer stand together, by their rows up to 99,999.
    pub fn kernel_name(&self, shape: Shape) -> String {
        let groups = match shape.groups {
            Groups::One => String::new(),
            Groups::Batch(count) => format!("_l{count}"),
            Groups::Rows(count) => format!("_g{count}"),
        };
        format!("{}_n{}_k{}_m{:05}{groups}", self.name, shape.n, shape.k, shape.m)
    }

    /// The kernel for one shape and chip. With the feature `render`. Deterministic: the same input gives the same bytes.
    ///
    /// # Errors
    /// An illegal configuration, a chip the gate has no code for, or a name that is no identifier.
    #[cfg(feature = "render")]
    pub fn kernel(&self, shape: Shape, arch: Arch) -> Result<Kernel, EmitError> {
        let plan = self.plan(shape, arch).map_err(EmitError::Config)?;
        let code = self.code.iter().find(|code| code.whole.arch == arch.gate_target()).ok_or_else(|| {
            let known: Vec<&str> = self.code.iter().map(|code| code.whole.arch).collect();
            EmitError::Arch { name: self.name.to_string(), arch, known: known.join(", ") }
        })?;
        Ok(render_with(&plan, &self.gate, code, &self.kernel_name(shape))?)
    }
}
