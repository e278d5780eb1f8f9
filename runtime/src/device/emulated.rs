//! The device that runs PTX text on the CPU.
//!
//! Each launch gets a global memory of its own that holds the launch's tensors, each under its
//! name and far from the others, so that an access beyond the end of one is found and named; C is
//! copied back when nothing was found.

use std::fmt;
use std::sync::Arc;

use silumin_codegen::kernel::Kernel;
use silumin_codegen::plan::{ElementType, Operand, Swizzle, TensorMapRecipe};
use silumin_emulator as emulator;
use silumin_emulator::{
    Arg, DataType, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, SwizzleMode, TensorMapError,
    TensorMapParams,
};
pub use silumin_emulator::{Arithmetic, Finding, FindingKind, Schedule, Stats as EmulatorStats};

use crate::gemm::{Args, Argument, LaunchError, LaunchReport};

/// How the emulated device runs kernels.
#[derive(Clone)]
pub struct EmulatorOptions {
    /// When asynchronous operations complete.
    pub schedule: Schedule,
    /// Threads of the host; 0 is one a core.
    pub threads: usize,
    /// Findings kept of one launch.
    pub max_findings: usize,
    /// How the tensor core sums.
    pub arithmetic: Arithmetic,
    /// PTX instructions that one cluster may execute, counted once a warp: where a kernel that spins
    /// for ever ends.
    pub instruction_limit: u64,
    /// Called after each cluster, from any thread, with CTAs done and CTAs in all.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        let emulator::Options { schedule, threads, max_findings, mma_arithmetic, instruction_limit, .. } =
            emulator::Options::default();
        Self {
            schedule,
            threads,
            max_findings,
            arithmetic: mma_arithmetic,
            instruction_limit,
            progress: None,
        }
    }
}

impl fmt::Debug for EmulatorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatorOptions")
            .field("schedule", &self.schedule)
            .field("threads", &self.threads)
            .field("max_findings", &self.max_findings)
            .field("arithmetic", &self.arithmetic)
            .field("instruction_limit", &self.instruction_limit)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// What the emulated device found wrong with a launch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Findings {
    /// At least one, at most [`EmulatorOptions::max_findings`].
    pub findings: Vec<Finding>,
    /// What the kernel did up to there.
    pub stats: EmulatorStats,
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.findings.len();
        write!(f, "{count} {} wrong:", if count == 1 { "thing is" } else { "things are" })?;
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        Ok(())
    }
}

/// An emulated device.
pub(crate) struct Emulated {
    options: EmulatorOptions,
}

/// A parsed kernel.
pub(crate) struct Module {
    module: emulator::Module,
}

impl Module {
    /// Decodes all of the kernel's PTX.
    ///
    /// # Errors
    ///
    /// Every line that the emulator does not take, and why.
    pub(crate) fn load(kernel: &Kernel) -> Result<Self, String> {
        let file = format!("{}.ptx", kernel.name);
        let module = emulator::Module::parse(&file, &kernel.ptx).map_err(|errors| errors.to_string())?;
        Ok(Self { module })
    }
}

/// The tensors of one launch in the emulator's memory.
struct Tensors {
    memory: GlobalMemory,
    /// In the order of [`Operand::ALL`].
    buffers: Vec<emulator::Buffer>,
}

impl Tensors {
    fn new(args: &Args<'_>) -> Self {
        let mut memory = GlobalMemory::new();
        let buffers = Operand::ALL.map(|operand| {
            let buffer = args.operand(operand);
            let target = memory.alloc(operand.name(), buffer.len() as u64);
            let (host, offset) = buffer.emulated_memory();
            host.for_written(offset, buffer.len(), |at, bytes| memory.write(&target, at as u64, bytes));
            target
        });
        Self { memory, buffers: buffers.to_vec() }
    }

    fn buffer(&self, operand: Operand) -> &emulator::Buffer {
        &self.buffers[operand as usize]
    }

    fn address(&self, operand: Operand) -> u64 {
        self.memory.address(self.buffer(operand))
    }
}

impl Emulated {
    pub(super) fn new(options: EmulatorOptions) -> Self {
        Self { options }
    }

    /// Runs a kernel to its end; its arguments have been checked.
    pub(crate) fn launch(
        &self,
        module: &Module,
        kernel: &Kernel,
        arguments: &[Argument<'_>],
        args: &Args<'_>,
    ) -> Result<LaunchReport, LaunchError> {
        let tensors = Tensors::new(args);
        let launch = Launch {
            grid: kernel.grid,
            block: kernel.block,
            cluster: kernel.cluster,
            dynamic_smem: kernel.dynamic_smem,
            args: arguments.iter().map(|argument| encode(argument, &tensors)).collect::<Result<_, _>>()?,
        };
        let EmulatorOptions { schedule, threads, max_findings, arithmetic, instruction_limit, progress } =
            &self.options;
        let report = |done, all| {
            if let Some(progress) = progress {
                progress(done, all);
            }
        };
        let options = emulator::Options {
            schedule: *schedule,
            threads: *threads,
            max_findings: *max_findings,
            progress: Some(&report),
            mma_arithmetic: *arithmetic,
            instruction_limit: *instruction_limit,
        };
        let name = || kernel.name.clone();
        let report =
            module.module.run(&kernel.name, &launch, &tensors.memory, &options).map_err(|error| {
                let device = args.c.device().to_string();
                LaunchError::Refused { device, kernel: name(), reason: error.to_string() }
            })?;
        let emulator::Report { findings, stats } = report;
        if !findings.is_empty() {
            return Err(LaunchError::Emulator {
                kernel: name(),
                report: Box::new(Findings { findings, stats }),
            });
        }
        for operand in Operand::ALL {
            let (host, offset) = args.operand(operand).emulated_memory();
            if operand != Operand::C && !host.holds(offset, &tensors.memory.read(tensors.buffer(operand))) {
                return Err(LaunchError::InputWritten { kernel: name(), operand });
            }
        }
        let c = tensors.buffer(Operand::C);
        let bytes = tensors.memory.unwritten(c);
        if bytes > 0 {
            return Err(LaunchError::Unwritten { kernel: name(), bytes, of: tensors.memory.len(c) });
        }
        let (host, offset) = args.c.emulated_memory();
        host.write(offset, &tensors.memory.read(c));
        Ok(LaunchReport { emulator: Some(stats) })
    }
}

fn encode(argument: &Argument<'_>, tensors: &Tensors) -> Result<Arg, LaunchError> {
    Ok(match argument {
        Argument::TensorMap(recipe) => {
            let map = tensor_map(recipe, tensors.address(recipe.operand)).map_err(|error| {
                LaunchError::TensorMap { operand: recipe.operand, reason: error.to_string() }
            })?;
            Arg::TensorMap(map)
        }
        Argument::Pointer(operand) => Arg::Pointer(tensors.address(*operand)),
        Argument::F32(value) => Arg::F32(*value),
    })
}

fn tensor_map(recipe: &TensorMapRecipe, address: u64) -> Result<[u8; 128], TensorMapError> {
    TensorMapParams {
        data_type: match recipe.element {
            ElementType::U8 => DataType::U8,
            ElementType::F16 => DataType::F16,
        },
        global_address: address,
        global_dims: recipe.dims.to_vec(),
        global_strides: vec![recipe.row_stride],
        box_dims: recipe.box_dims.to_vec(),
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle: match recipe.swizzle {
            Swizzle::None => SwizzleMode::None,
            Swizzle::B32 => SwizzleMode::B32,
            Swizzle::B64 => SwizzleMode::B64,
            Swizzle::B128 => SwizzleMode::B128,
        },
        l2_promotion: match recipe.l2_promotion {
            64 => L2Promotion::B64,
            128 => L2Promotion::B128,
            256 => L2Promotion::B256,
            _ => L2Promotion::None,
        },
        oob_fill: OobFill::Zeros,
    }
    .encode()
}
