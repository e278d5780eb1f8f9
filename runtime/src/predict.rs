//! Predicted times of kernels, from the emulator's run with a clock.
//!
//! Nothing here is measured. Predictions depend on the chip's numbers, some of which are ranges ([`Chip`]).

use silumin_codegen::kernel::{Kernel, Parameter};
use silumin_codegen::plan::Operand;
use silumin_emulator as emulator;
use silumin_emulator::time::TimeError;
pub use silumin_emulator::time::{
    Cause, Chip, ChipError, Clock, FoundCosts, IssueSource, Prediction, TimeOptions,
};
use silumin_emulator::{Arg, GlobalMemory, Launch, Options, TensorMapError};

use crate::device::Argument;
use crate::device::emulated::{Tensors, encode};
use crate::prepare::{Call, Number, Tensor};
use silumin_formats::groups::GroupSizes;

/// Why a kernel has no predicted time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The emulator refuses the PTX.
    #[error("{0}")]
    Text(#[from] emulator::ParseErrors),
    /// The tensor map of an operand cannot be encoded.
    #[error("the tensor map of {operand}: {source}")]
    TensorMap {
        /// The operand.
        operand: Operand,
        /// Why.
        source: TensorMapError,
    },
    /// A launch has no predicted time.
    #[error("launch `{entry}`: {source}")]
    Time {
        /// Its entry.
        entry: String,
        /// Why.
        source: TimeError,
    },
    /// Machine code was requested, and there is none.
    #[error("{0}")]
    Issue(TimeError),
    /// The chip is not valid.
    #[error(transparent)]
    Chip(#[from] ChipError),
    /// The emulator's clock has no numbers of a chip that runs this target.
    #[error(
        "no time is predicted for {0}: no file of chips/ has the numbers of such a chip; pass a chip file of your own that lists this target"
    )]
    NoChip(String),
    /// The kernel has groups of rows, and their sizes were not given.
    #[error(
        "the kernel has groups of rows, and their sizes were not given: pass the GroupSizes of its shape"
    )]
    Groups,
}

/// Predicted times of a kernel's launches.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelPrediction {
    /// Each launch, in order; L2 is cold at the start of each.
    pub launches: Vec<Prediction>,
}

impl KernelPrediction {
    /// Time of all launches with the gaps before them, in nanoseconds.
    #[must_use]
    pub fn time(&self) -> f64 {
        self.launches.iter().map(|p| p.time).sum()
    }

    /// Fraction of that time for which the tensor cores of all SMs are busy, 0 to 1.
    #[must_use]
    pub fn tensor_use(&self) -> f64 {
        self.launches.iter().map(|p| p.tensor_use() * p.kernel).sum::<f64>() / self.time()
    }
}

/// The default chip of a target: H200 for `sm_90a`, B300 for `sm_103a`, Jetson Thor for `sm_110a`, RTX 5090 for `sm_120a`, DGX
/// Spark for `sm_121a`, B200 for `sm_100a` and for what all chips run.
///
/// # Errors
///
/// [`PredictError::NoChip`] for targets of chips that no file has the numbers of, and for what is no target.
pub fn default_chip(target: &str) -> Result<&'static str, PredictError> {
    let number = target.strip_prefix("sm_").map(|name| name.trim_end_matches(['a', 'f']));
    match number.and_then(|digits| digits.parse().ok()) {
        Some(90) => Ok("h200"),
        Some(103) => Ok("b300"),
        Some(110) => Ok("jetson_thor"),
        Some(120) => Ok("rtx_5090"),
        Some(121) => Ok("dgx_spark"),
        Some(0..=100) => Ok("b200"),
        _ => Err(PredictError::NoChip(target.to_owned())),
    }
}

/// Issue costs of a kernel's launches, for [`TimeOptions::sass`]. They can be used for any number of predictions of
/// that kernel.
///
/// # Errors
///
/// With [`IssueSource::Sass`] whatever keeps machine code from being made, and PTX that the emulator does not take.
pub fn issue_costs(kernel: &Kernel, chip: &Chip, source: IssueSource) -> Result<FoundCosts, PredictError> {
    let module = emulator::Module::parse(&format!("{}.ptx", kernel.name), &kernel.ptx)?;
    source.find(&module, &kernel.ptx, chip).map_err(PredictError::Issue)
}

/// Predicts the time of a kernel on operands of its full size, with all scalars 1.
///
/// # Errors
///
/// A kernel for another chip, one with groups whose sizes are not given, or one that does not end.
pub fn predict(
    kernel: &Kernel,
    sizes: Option<&GroupSizes>,
    timing: &TimeOptions,
) -> Result<KernelPrediction, PredictError> {
    let module = emulator::Module::parse(&format!("{}.ptx", kernel.name), &kernel.ptx)?;
    let problem = &kernel.problem;
    let mut memory = GlobalMemory::new();
    let buffers: Vec<_> = Operand::ALL
        .into_iter()
        .filter(|operand| operand.present(problem))
        .map(|operand| (operand, memory.alloc(operand.name(), operand.bytes(problem))))
        .collect();
    if let Some((_, offsets)) = buffers.iter().find(|(operand, _)| *operand == Operand::Offsets) {
        let sizes = sizes.ok_or(PredictError::Groups)?;
        memory.write(offsets, 0, &sizes.offset_bytes());
    }
    let parameters = || kernel.launches.iter().flat_map(|launch| &launch.parameters);
    let mut vectors: Vec<(String, emulator::Buffer)> = Vec::new();
    for parameter in parameters() {
        if let Parameter::Vector(vector) = parameter
            && !vectors.iter().any(|(name, _)| *name == vector.name)
        {
            let bytes = vector.bytes(problem);
            vectors.push((vector.name.clone(), memory.alloc(&vector.name, bytes)));
        }
    }
    let workspace = (kernel.workspace.iter())
        .map(|wanted| {
            let buffer = memory.alloc(wanted.name, wanted.bytes);
            memory.fill(&buffer, 0);
            (*wanted, buffer)
        })
        .collect();
    let tensors = Tensors { memory, buffers, vectors, workspace };
    let mut launches = Vec::with_capacity(kernel.launches.len());
    for facts in &kernel.launches {
        let arguments = facts.parameters.iter().map(|parameter| match parameter {
            Parameter::TensorMap(recipe) => Argument::TensorMap(*recipe),
            Parameter::Pointer(operand) => Argument::Pointer(*operand),
            Parameter::Workspace(buffer) => Argument::Workspace(buffer),
            Parameter::Rows => Argument::U32(kernel.problem.shape.m),
            Parameter::Scalar(_) | Parameter::OutputScale => Argument::F32(1.0),
            Parameter::Vector(vector) => Argument::Vector(&vector.name),
        });
        let args = arguments
            .map(|argument| encode(&argument, &tensors))
            .collect::<Result<_, _>>()
            .map_err(|(operand, source)| PredictError::TensorMap { operand, source })?;
        // The caller knows what is before the first launch; the next ones are behind the kernel's own.
        let programmatic = if launches.is_empty() { timing.programmatic } else { facts.programmatic };
        let timing = TimeOptions { programmatic, ..timing.clone() };
        launches.push(timed(&module, facts, facts.grid, args, &tensors.memory, &timing)?);
    }
    Ok(KernelPrediction { launches })
}

/// A launch of a kernel that prepares operands: its CTAs, and its parameters.
pub(crate) struct PlainLaunch<'a> {
    pub kernel: &'a Kernel,
    pub ctas: u32,
    pub tensors: Vec<Tensor>,
    pub numbers: Vec<Number>,
}

impl<'a> PlainLaunch<'a> {
    /// A kernel's launch for a call.
    pub fn new<const T: usize, const N: usize>(kernel: &'a Kernel, call: &Call<T, N>) -> Self {
        PlainLaunch {
            kernel,
            ctas: call.ctas,
            tensors: call.tensors.to_vec(),
            numbers: call.numbers.to_vec(),
        }
    }

    /// Predicts its time.
    ///
    /// # Errors
    ///
    /// As [`predict`].
    pub fn predict(&self, timing: &TimeOptions) -> Result<KernelPrediction, PredictError> {
        let kernel = self.kernel;
        let module = emulator::Module::parse(&format!("{}.ptx", kernel.name), &kernel.ptx)?;
        let mut memory = GlobalMemory::new();
        let mut args = Vec::new();
        for tensor in &self.tensors {
            let buffer = memory.alloc(tensor.name, tensor.bytes as u64);
            args.push(Arg::Pointer(memory.address(&buffer)));
        }
        args.extend(self.numbers.iter().map(|number| match *number {
            Number::U32(value) => Arg::U32(value),
            Number::F32(value) => Arg::F32(value),
        }));
        let only =
            kernel.only_launch().map(|facts| timed(&module, facts, [self.ctas, 1, 1], args, &memory, timing));
        Ok(KernelPrediction { launches: only.into_iter().collect::<Result<_, _>>()? })
    }
}

/// Predicts the time of one launch.
fn timed(
    module: &emulator::Module,
    facts: &silumin_codegen::kernel::Launch,
    grid: [u32; 3],
    args: Vec<Arg>,
    memory: &GlobalMemory,
    timing: &TimeOptions,
) -> Result<Prediction, PredictError> {
    let launch =
        Launch { grid, block: facts.block, cluster: facts.cluster, dynamic_smem: facts.dynamic_smem, args };
    let timed = module.time(&facts.entry, &launch, memory, &Options::default(), timing);
    timed.map_err(|source| PredictError::Time { entry: facts.entry.clone(), source })
}
