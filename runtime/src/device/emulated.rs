//! The emulated device: it runs PTX text on the CPU.
//!
//! Each launch gets its own global memory. It holds the launch's tensors by name and far apart, so an access beyond
//! the end of one is found and named. C and its scale factors are copied back if nothing was found.

use silumin_verify::vectors::VectorError;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use silumin_codegen::kernel::{Kernel, Launch as KernelLaunch, WorkspaceBuffer};
use silumin_codegen::plan::{ElementType, Operand, Swizzle, TensorMapRecipe};
use silumin_codegen::problem::Problem;
use silumin_emulator as emulator;
use silumin_emulator::{
    Arg, DataType, GlobalMemory, Interleave, L2Promotion, Launch, OobFill, SwizzleMode, TensorMapError,
    TensorMapParams,
};
pub use silumin_emulator::{Arithmetic, Finding, FindingKind, Schedule, Stats as EmulatorStats, Tracking};

use super::{Args, Argument, LaunchError, LaunchReport};
use crate::device::Buffer;
use crate::device::memory::HostMemory;
use silumin_formats::groups::GroupSizes;

/// A launch that takes longer in a build without optimisation is worth a note.
const SLOW_SECONDS: u64 = 2;

/// Options of the emulated device.
#[derive(Clone)]
pub struct EmulatorOptions {
    /// When asynchronous operations complete.
    pub schedule: Schedule,
    /// Host threads; 0 uses one per core.
    pub threads: usize,
    /// Findings that are kept per launch.
    pub max_findings: usize,
    /// Whether order is tracked, to find races that the schedule did not show.
    pub tracking: Tracking,
    /// How the tensor core rounds its sums.
    pub arithmetic: Arithmetic,
    /// PTX instructions that one cluster may execute, counted once per warp. It ends kernels that spin for ever.
    pub instruction_limit: u64,
    /// Wall-clock time of one call, over all launches of its kernel; `None` sets no limit. Reaching it is a
    /// [`FindingKind::TimeLimit`], beside earlier findings.
    pub time_limit: Option<Duration>,
    /// Called after each cluster, from any thread, with the number of finished CTAs and of all CTAs.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        let emulator::Options {
            schedule,
            threads,
            max_findings,
            mma_arithmetic,
            instruction_limit,
            time_limit,
            tracking,
            ..
        } = emulator::Options::default();
        Self {
            schedule,
            threads,
            max_findings,
            tracking,
            arithmetic: mma_arithmetic,
            instruction_limit,
            time_limit,
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
            .field("tracking", &self.tracking)
            .field("arithmetic", &self.arithmetic)
            .field("instruction_limit", &self.instruction_limit)
            .field("time_limit", &self.time_limit)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// Findings of the emulated device in one launch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Findings {
    /// At least one finding, at most [`EmulatorOptions::max_findings`].
    pub findings: Vec<Finding>,
    /// Counts up to the end of the run.
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
    pub(super) options: EmulatorOptions,
    number: usize,
}

/// A parsed kernel.
pub(crate) struct Module {
    pub(super) module: emulator::Module,
}

impl Module {
    /// Decodes the kernel's PTX.
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

/// The tensors of one launch in emulated memory.
pub(crate) struct Tensors {
    pub memory: GlobalMemory,
    pub buffers: Vec<(Operand, emulator::Buffer)>,
    /// Vectors of the gate, by name.
    pub vectors: Vec<(String, emulator::Buffer)>,
    pub workspace: Vec<(WorkspaceBuffer, emulator::Buffer)>,
}

impl Tensors {
    fn new(args: &Args<'_>, workspace: &[WorkspaceBuffer]) -> Self {
        let mut memory = GlobalMemory::new();
        let mut copied = |name: &str, buffer: &Buffer| {
            let target = memory.alloc(name, buffer.len() as u64);
            // Launches have checked that it is an emulated device's.
            if let Some((host, offset)) = buffer.emulated_memory() {
                host.for_written(offset, buffer.len(), |at, bytes| memory.write(&target, at as u64, bytes));
            }
            target
        };
        let buffers: Vec<_> =
            args.given().map(|(operand, buffer)| (operand, copied(operand.name(), buffer))).collect();
        // A matrix that is C itself has C's memory here, too, so that the emulator sees who reads what is written.
        let c = buffers.iter().find(|(operand, _)| *operand == Operand::C).map(|(_, target)| *target);
        let mut vector = |(name, buffer): &(&str, &Buffer)| {
            let own = || copied(&format!("vector_{name}"), buffer);
            ((*name).to_owned(), c.filter(|_| args.c.is_same(buffer)).unwrap_or_else(own))
        };
        let vectors: Vec<_> = args.vectors.iter().map(&mut vector).collect();
        let workspace = workspace.iter().map(|wanted| {
            let buffer = memory.alloc(wanted.name, wanted.bytes);
            if wanted.zeroed {
                memory.write(&buffer, 0, &vec![0; wanted.bytes as usize]);
            }
            (*wanted, buffer)
        });
        let workspace = workspace.collect();
        Self { memory, buffers, vectors, workspace }
    }

    fn workspace(&self, wanted: &WorkspaceBuffer) -> u64 {
        let found = self.workspace.iter().find(|(buffer, _)| buffer == wanted);
        found.map_or(0, |(_, buffer)| self.memory.address(buffer))
    }

    fn vector(&self, name: &str) -> u64 {
        let found = self.vectors.iter().find(|(other, _)| other == name);
        found.map_or(0, |(_, buffer)| self.memory.address(buffer))
    }

    /// The address of a tensor; 0, which is no tensor's address, if it is not given.
    fn address(&self, operand: Operand) -> u64 {
        let found = self.buffers.iter().find(|(other, _)| *other == operand);
        found.map_or(0, |(_, buffer)| self.memory.address(buffer))
    }
}

impl Emulated {
    pub(super) fn new(options: EmulatorOptions) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self { options, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// How many emulated devices the process had before it.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Runs a kernel to its end; its arguments have been checked.
    pub(crate) fn launch(
        &self,
        module: &Module,
        kernel: &Kernel,
        launches: &[(&KernelLaunch, Vec<Argument<'_>>)],
        args: &Args<'_>,
    ) -> Result<LaunchReport, LaunchError> {
        let tensors = Tensors::new(args, &kernel.workspace);
        let EmulatorOptions {
            schedule,
            threads,
            max_findings,
            tracking,
            arithmetic,
            instruction_limit,
            time_limit,
            progress,
        } = &self.options;
        let start = Instant::now();
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
            tracking: *tracking,
            instruction_limit: *instruction_limit,
            ..emulator::Options::default()
        };
        let name = || kernel.name.clone();
        let mut stats = EmulatorStats::default();
        let mut each = Vec::with_capacity(launches.len());
        for (facts, arguments) in launches {
            let launch = Launch {
                grid: facts.grid,
                block: facts.block,
                cluster: facts.cluster,
                dynamic_smem: facts.dynamic_smem,
                args: arguments
                    .iter()
                    .map(|argument| encode(argument, &tensors))
                    .collect::<Result<_, _>>()
                    .map_err(|(operand, error)| LaunchError::TensorMap {
                    operand,
                    reason: error.to_string(),
                })?,
            };
            let time_limit = time_limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let options = emulator::Options { time_limit, ..options };
            let report =
                module.module.run(&facts.entry, &launch, &tensors.memory, &options).map_err(|error| {
                    let device = args.c.device().to_string();
                    LaunchError::Refused { device, kernel: facts.entry.clone(), reason: error.to_string() }
                })?;
            if start.elapsed().as_secs() >= SLOW_SECONDS {
                emulator::note_slow_build();
            }
            stats.add(&report.stats);
            each.push(report.stats.clone());
            // A kernel of this crate has no need of what default tracking only warns of.
            let findings: Vec<_> = report.all().cloned().collect();
            if !findings.is_empty() {
                return Err(LaunchError::Emulator {
                    kernel: facts.entry.clone(),
                    report: Box::new(Findings { findings, stats }),
                });
            }
        }
        for (wanted, buffer) in &tensors.workspace {
            if wanted.zeroed && tensors.memory.read(buffer).iter().any(|byte| *byte != 0) {
                return Err(LaunchError::WorkspaceLeft { kernel: name(), buffer: wanted.name });
            }
        }
        let tensors_of = |outputs: bool| {
            let same = args.given().zip(&tensors.buffers);
            same.filter(move |((operand, _), _)| operand.is_output() == outputs).filter_map(
                |((operand, buffer), (_, target))| Some((operand, buffer.emulated_memory()?, target)),
            )
        };
        for (operand, (host, offset), target) in tensors_of(false) {
            if !host.holds(offset, &tensors.memory.read(target)) {
                return Err(LaunchError::InputWritten { kernel: name(), operand });
            }
        }
        let vectors = args.vectors.iter().zip(&tensors.vectors);
        for ((name, given), (_, buffer)) in vectors.filter(|((_, given), _)| !args.c.is_same(given)) {
            let Some((host, offset)) = given.emulated_memory() else { continue };
            if !host.holds(offset, &tensors.memory.read(buffer)) {
                return Err(
                    VectorError::Written { kernel: kernel.name.clone(), name: (*name).to_owned() }.into()
                );
            }
        }
        let offsets = tensors_of(false).find(|(operand, ..)| *operand == Operand::Offsets);
        let offsets = offsets.map(|(_, _, target)| tensors.memory.read(target));
        let extent = |operand| Extent::of(&kernel.problem, operand, offsets.as_deref());
        if let Some(rows) = args.rows.filter(|_| kernel.counts_rows()) {
            return take_rows(kernel, rows, &tensors.memory, tensors_of(true))
                .map(|()| LaunchReport { emulator: Some(stats), launches: each });
        }
        for (operand, (host, offset), target) in tensors_of(true) {
            let (after, extent) = (tensors.memory.read(target), extent(operand));
            if !extent.outside(after.len()).all(|part| host.holds(offset + part.start, &after[part])) {
                return Err(LaunchError::OutsideGroups { kernel: name(), operand });
            }
            // What belongs to no group may hold nothing.
            let allowed: usize = extent
                .outside(after.len())
                .map(|part| {
                    let mut held = 0;
                    host.for_written(offset + part.start, part.len(), |_, piece| held += piece.len());
                    part.len() - held
                })
                .sum();
            let bytes = tensors.memory.unwritten(target).saturating_sub(allowed as u64);
            if bytes > 0 {
                let of = tensors.memory.len(target);
                return Err(LaunchError::Unwritten { kernel: name(), operand, bytes, of });
            }
        }
        for (operand, (host, offset), target) in tensors_of(true) {
            let after = tensors.memory.read(target);
            let inside = extent(operand).inside(after.len());
            host.write(offset + inside.start, &after[inside]);
        }
        Ok(LaunchReport { emulator: Some(stats), launches: each })
    }
}

/// Takes the outputs of a kernel of which only some rows count: all bytes that were written, and those of these rows have to be.
fn take_rows<'a>(
    kernel: &Kernel,
    rows: u32,
    memory: &GlobalMemory,
    outputs: impl Iterator<Item = (Operand, (&'a HostMemory, usize), &'a emulator::Buffer)>,
) -> Result<(), LaunchError> {
    let outputs: Vec<_> = outputs.collect();
    for (operand, _, target) in outputs.iter().copied() {
        let of = memory.len(target);
        // Rows of scale factors lie among others of their block.
        let (rows, blocks) = match operand {
            Operand::Sfc => (rows / 128 * 128, kernel.problem.shape.m.next_multiple_of(128)),
            _ => (rows, kernel.problem.shape.m),
        };
        let needed = of / u64::from(blocks) * u64::from(rows);
        let written = memory.written(target);
        let there: u64 = written.iter().map(|range| range.end.min(needed).saturating_sub(range.start)).sum();
        if there < needed {
            let kernel = kernel.name.clone();
            return Err(LaunchError::Unwritten { kernel, operand, bytes: needed - there, of });
        }
    }
    for (_, (host, offset), target) in outputs {
        let all = memory.read(target);
        for range in memory.written(target) {
            host.write(offset + range.start as usize, &all[range.start as usize..range.end as usize]);
        }
    }
    Ok(())
}

/// The bytes of an output that a kernel writes: all of them, or those of the groups.
struct Extent(Option<Range<usize>>);

impl Extent {
    fn of(problem: &Problem, operand: Operand, offsets: Option<&[u8]>) -> Self {
        let Some(offsets) = offsets else { return Self(None) };
        let (first, sizes) = GroupSizes::read(problem.shape, offsets);
        let per_row = |bytes: u64, rows: u64| bytes as usize / (rows as usize).max(1);
        Self(Some(match operand {
            Operand::Sfc => {
                let row = per_row(operand.bytes(problem), problem.shape.row_blocks(128) * 128);
                0..sizes.padded_rows() * row
            }
            _ => {
                let row = per_row(operand.bytes(problem), problem.shape.rows());
                first * row..(first + sizes.rows()) * row
            }
        }))
    }

    fn inside(&self, len: usize) -> Range<usize> {
        self.0.clone().map_or(0..len, |range| range.start.min(len)..range.end.min(len))
    }

    fn outside(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        let inside = self.inside(len);
        [0..inside.start, inside.end..len].into_iter()
    }
}

/// Converts an argument for the emulator; an error names an operand whose tensor map cannot be encoded.
pub(crate) fn encode(argument: &Argument<'_>, tensors: &Tensors) -> Result<Arg, (Operand, TensorMapError)> {
    Ok(match argument {
        Argument::TensorMap(recipe) => {
            let address = match &recipe.workspace {
                Some(buffer) => tensors.workspace(buffer),
                None => tensors.address(recipe.operand),
            };
            Arg::TensorMap(tensor_map(recipe, address).map_err(|error| (recipe.operand, error))?)
        }
        Argument::Pointer(operand) => Arg::Pointer(tensors.address(*operand)),
        Argument::Workspace(buffer) => Arg::Pointer(tensors.workspace(buffer)),
        Argument::U32(value) => Arg::U32(*value),
        Argument::F32(value) => Arg::F32(*value),
        Argument::Vector(name) => Arg::Pointer(tensors.vector(name)),
    })
}

fn tensor_map(recipe: &TensorMapRecipe, address: u64) -> Result<[u8; 128], TensorMapError> {
    TensorMapParams {
        data_type: match recipe.element {
            ElementType::U8 => DataType::U8,
            ElementType::U4Align16 => DataType::U4x16Align16B,
            ElementType::F16 => DataType::F16,
            ElementType::Bf16 => DataType::Bf16,
            ElementType::F32 => DataType::F32,
            ElementType::U64 => DataType::U64,
        },
        global_address: address,
        global_dims: recipe.all_dims(),
        global_strides: recipe.strides(),
        element_strides: vec![1; recipe.all_dims().len()],
        box_dims: recipe.all_box_dims(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;
    use silumin_codegen::kernel::Parameter;
    use silumin_codegen::problem::Shape;
    use silumin_codegen::spec::Spec;

    use crate::device::{Backend, Device};

    const SHAPE: Shape = Shape::new(1, 8, 64);

    /// Launches a kernel with the parameters of ours whose one thread stores eight bytes each of
    /// C's sixteen and then runs `body`, where %c and %sfa are addresses.
    fn launch(body: &str, c: &dyn Fn(&Device) -> Buffer) -> (Result<LaunchReport, LaunchError>, Buffer) {
        launch_with(body, EmulatorOptions::default(), c)
    }

    fn launch_with(
        body: &str,
        options: EmulatorOptions,
        c: &dyn Fn(&Device) -> Buffer,
    ) -> (Result<LaunchReport, LaunchError>, Buffer) {
        let device = Device::emulated_with(Arch::Sm100a, options);
        let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        let mut kernel = spec.kernel(SHAPE, Arch::Sm100a).unwrap();
        let launch = &mut kernel.launches[0];
        let (_, parameters) = kernel.ptx.split_once(&format!(".entry {}(", kernel.name)).unwrap();
        let (parameters, _) = parameters.split_once(')').unwrap();
        let parameters = parameters.to_owned();
        launch.block = [1, 1, 1];
        kernel.ptx = format!(
            ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry {}({}) {{
                .reg .b64 %c, %sfa, %value;
                ld.param.u64 %c, [c];
                ld.param.u64 %sfa, [sfa];
                mov.u64 %value, 0x3C003C003C003C00;
                st.global.u64 [%c], %value;
                {body}
                ret;
            }}",
            kernel.name, parameters,
        );
        let module = Module::load(&kernel).unwrap();
        let c = c(&device);
        let bytes = |operand: Operand| vec![0u8; operand.bytes(&kernel.problem) as usize];
        let [a, b, sfa, sfb] = [Operand::A, Operand::B1, Operand::Sfa, Operand::Sfb1]
            .map(|operand| device.upload(&bytes(operand)).unwrap());
        let args = Args::new(&a, &b, &b, &c).scales(&sfa, &sfb, &sfb);
        let launch = &kernel.launches[0];
        let arguments: Vec<Argument<'_>> = launch
            .parameters
            .iter()
            .map(|parameter| match parameter {
                Parameter::TensorMap(recipe) => Argument::TensorMap(*recipe),
                Parameter::Pointer(operand) => Argument::Pointer(*operand),
                Parameter::Workspace(buffer) => Argument::Workspace(buffer),
                Parameter::Rows => Argument::U32(kernel.problem.shape.m),
                Parameter::Scalar(_) | Parameter::OutputScale => Argument::F32(0.0),
                Parameter::Vector(vector) => Argument::Vector(&vector.name),
            })
            .collect();
        let Backend::Emulated(emulator) = device.backend() else { panic!("the device is emulated") };
        (emulator.launch(&module, &kernel, &[(launch, arguments)], &args), c)
    }

    const SECOND: &str = "st.global.u64 [%c+8], %value;";

    #[test]
    fn c_comes_back_where_the_kernel_wrote_all_of_it() {
        let (report, c) = launch(SECOND, &|device| device.alloc(16).unwrap());
        assert_eq!(report.unwrap().emulator.unwrap().global_written, 16);
        assert_eq!(c.download().unwrap(), [0, 0x3C].repeat(8));
    }

    #[test]
    fn a_part_of_c_that_nothing_wrote_is_an_error() {
        let (report, c) = launch("", &|device| device.alloc(16).unwrap());
        assert!(matches!(report, Err(LaunchError::Unwritten { bytes: 8, of: 16, .. })), "{report:?}");
        assert!(c.download().is_err());
        let (report, c) = launch("", &|device| device.upload(&[7; 16]).unwrap());
        report.unwrap();
        assert_eq!(c.download().unwrap()[6..10], [0, 0x3C, 7, 7]);
    }

    #[test]
    fn a_write_to_an_input_is_an_error() {
        let body = format!("{SECOND} st.global.u64 [%sfa+16], %value;");
        let (report, c) = launch(&body, &|device| device.alloc(16).unwrap());
        assert!(matches!(report, Err(LaunchError::InputWritten { operand: Operand::Sfa, .. })), "{report:?}");
        assert!(c.download().is_err(), "C is left as it was");
    }

    #[test]
    fn findings_name_the_tensor_the_line_and_all_of_them() {
        let body = format!("{SECOND} st.global.u64 [%c+16], %value;");
        let (report, _) = launch(&body, &|device| device.alloc(16).unwrap());
        let text = report.unwrap_err().to_string();
        assert!(text.contains("1 thing is wrong") && text.contains("OutOfBounds"), "{text}");
        assert!(text.contains("`c`") && text.contains("st.global.u64 [%c+16]"), "{text}");
    }

    #[test]
    fn what_never_ends_ends_with_the_time_limit() {
        let limited = |limit| EmulatorOptions { time_limit: Some(limit), ..EmulatorOptions::default() };
        let alloc = |device: &Device| device.alloc(16).unwrap();
        let start = Instant::now();
        let spin = format!("{SECOND} SPIN: bra SPIN;");
        let (report, c) = launch_with(&spin, limited(Duration::from_millis(300)), &alloc);
        let text = report.unwrap_err().to_string();
        assert!(text.contains("TimeLimit") && text.contains("bra SPIN"), "{text}");
        assert!(c.download().is_err(), "C is left as it was");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        let (report, _) = launch_with(SECOND, limited(Duration::from_secs(600)), &alloc);
        report.unwrap();
    }

    #[test]
    fn what_the_emulator_does_not_parse_comes_with_its_lines() {
        let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        let mut kernel = spec.kernel(SHAPE, Arch::Sm100a).unwrap();
        kernel.ptx = kernel.ptx.replace("tcgen05.alloc", "tcgen05.allot");
        let text = Module::load(&kernel).err().unwrap();
        assert!(text.contains("n8_k64_m00001.ptx:") && text.contains("tcgen05.allot"), "{text}");
    }
}
