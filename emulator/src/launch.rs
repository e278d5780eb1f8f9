//! Launches: arguments, options, and the checks before a run.

use crate::engine::mma::Arithmetic;
use crate::exec::registers::{GRANULE, SM_REGISTERS, registers_per_thread};
use crate::finding::Report;
use crate::memory::GlobalMemory;
use crate::module::Module;
use crate::program::Program;
use crate::time::{Prediction, TimeError, TimeOptions};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Largest shared memory of a CTA on any chip, static and dynamic, in bytes.
pub const MAX_SMEM: u32 = 227 * 1024;

/// Largest shared memory of a CTA on a chip, static and dynamic, in bytes (CUDA programming guide, table of compute
/// capabilities, `maximum amount of shared memory per thread block`). Chips that are not listed there have
/// [`MAX_SMEM`].
pub fn max_smem(target: &str) -> u32 {
    let number = target.strip_prefix("sm_").map(|n| n.trim_end_matches(['a', 'f']));
    match number.and_then(|n| n.parse().ok()).unwrap_or(0) {
        75u32 => 64 * 1024,
        80 | 87 => 163 * 1024,
        86 | 89 | 120..=129 => 99 * 1024,
        _ => MAX_SMEM,
    }
}
/// Largest cluster in CTAs, with the opt-in for non-portable sizes.
pub const MAX_CLUSTER: u32 = 16;

/// A kernel argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// The raw bytes of a parameter; exactly its size.
    Bytes(Vec<u8>),
    /// 32-bit integer.
    U32(u32),
    /// 64-bit integer.
    U64(u64),
    /// Binary32.
    F32(f32),
    /// A 64-bit global address, e.g. [`GlobalMemory::address`].
    Pointer(u64),
    /// The 128 bytes of an encoded tensor map.
    TensorMap([u8; 128]),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::Bytes(b) => b.clone(),
            Arg::U32(v) => v.to_le_bytes().to_vec(),
            Arg::U64(v) | Arg::Pointer(v) => v.to_le_bytes().to_vec(),
            Arg::F32(v) => v.to_le_bytes().to_vec(),
            Arg::TensorMap(b) => b.to_vec(),
        }
    }
}

/// A launch: grid, block, cluster, shared memory and arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// CTAs of the grid.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster; `[1, 1, 1]` for none.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory; it starts at a multiple of 1024.
    pub dynamic_smem: u32,
    /// Arguments, one per parameter of the kernel.
    pub args: Vec<Arg>,
}

/// When queued asynchronous operations complete, and in which order warps run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// At once: the fastest. Except under strict tracking, a wait that an operation of the same turn satisfies ends
    /// the turn, so that warps reach the same waits.
    #[default]
    Early,
    /// Only when no thread of the cluster can continue without them; newest first.
    Late,
    /// At random times, in a random order that the ISA allows. Warps are switched at random, too.
    Random(u64),
    /// As `Random`, but this warp of every CTA runs only if no other can continue, and its operations complete only
    /// if nothing else can.
    Starve {
        /// Index of the warp in its CTA.
        warp: u32,
        /// Seed of the random order of the others.
        seed: u64,
    },
    /// As `Starve`, but the warp's operations complete like all others: only the warp is late.
    Delay {
        /// Index of the warp in its CTA.
        warp: u32,
        /// Seed of the random order of the others.
        seed: u64,
    },
}

impl Schedule {
    /// The seed, if the schedule is random.
    pub fn seed(self) -> Option<u64> {
        match self {
            Schedule::Early | Schedule::Late => None,
            Schedule::Random(seed) | Schedule::Starve { seed, .. } | Schedule::Delay { seed, .. } => {
                Some(seed)
            }
        }
    }

    /// The warp that runs only if no other can.
    pub fn starved(self) -> Option<u32> {
        match self {
            Schedule::Early | Schedule::Late | Schedule::Random(_) => None,
            Schedule::Starve { warp, .. } | Schedule::Delay { warp, .. } => Some(warp),
        }
    }
}

/// When diverged lanes of a warp reconverge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reconvergence {
    /// As soon as they are at the same instruction, as hardware usually does.
    #[default]
    Eager,
    /// Only where the program makes them wait for each other: at `bar.warp.sync`, `.sync` and `.aligned`
    /// instructions. PTX promises no more, and a correct kernel needs no more.
    Forced,
}

impl Reconvergence {
    /// Values by their names in flags.
    pub const NAMES: [(&str, Reconvergence); 2] =
        [("eager", Reconvergence::Eager), ("forced", Reconvergence::Forced)];

    /// The value with this name.
    pub fn named(name: &str) -> Option<Reconvergence> {
        Self::NAMES.iter().find(|(n, _)| *n == name).map(|(_, r)| *r)
    }
}

/// Whether the order of accesses is tracked, to find races that this run's schedule did not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// No tracking: the fastest.
    #[default]
    Off,
    /// Two accesses to the same bytes, at least one a write, must be ordered by program order and the kernel's
    /// synchronisation, whatever the schedule. `tcgen05.fence` is required after stores to tensor memory, but only in
    /// kernels that have such a fence: Triton (3.9) emits none and leaves that order to the assembler.
    HappensBefore,
    /// As `HappensBefore`, with everything that the ISA requires, even what published kernels omit although they run
    /// on hardware:
    ///
    /// - `tcgen05.fence` in all kernels, and also after `tcgen05.commit` and `tcgen05.wait::ld`;
    /// - generic addresses for instructions that name no state space, where some kernels use shared-memory addresses;
    /// - lane numbers of tensor memory below 128;
    /// - a proxy fence between `cp.async` and a product that reads the copied bytes;
    /// - no phase of an mbarrier that completes while a thread still waits for the phase before;
    /// - `tcgen05.wait::ld` before the thread signals that tensor memory is free, even if it has used the registers;
    /// - `.cluster` scope for mbarrier operations that order threads of several CTAs;
    /// - a proxy fence between `tcgen05.alloc`'s write of the address and a copy over it;
    /// - `fence.mbarrier_init` or `fence.proxy.async` before the async proxy uses a new mbarrier;
    /// - `cp.async.bulk.wait_group.read` before the CTA exits.
    Strict,
}

/// When the registers of a `tcgen05.ld` may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TmemLoads {
    /// After `tcgen05.wait::ld`, as the ISA says. Compilers put arithmetic, moves and stores before the wait; these
    /// take the value, and are a finding only if no wait follows before the thread arrives at an mbarrier, frees
    /// tensor memory or exits. Any other early use is a finding.
    #[default]
    Awaited,
    /// At once, as if the assembler tracked the registers.
    Interlocked,
}

/// Called from worker threads after each cluster, with the number of finished CTAs and of all CTAs.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// An executed PTX instruction of a traced warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// CTA in the grid.
    pub cta: [u32; 3],
    /// Warp in the CTA.
    pub warp: u32,
    /// Line of the PTX file, from 1.
    pub line: u32,
    /// That line.
    pub text: &'a str,
    /// Lanes that executed it, bit i for lane i; 0 when its guard was false in all.
    pub active: u32,
}

/// Which warps to trace, and the receiver of their instructions.
#[derive(Clone, Copy)]
pub struct Trace<'a> {
    /// Index of the CTA and of the warp in it; `None` traces all warps.
    pub of: Option<([u32; 3], u32)>,
    /// Called from a worker thread, in each warp's program order.
    pub sink: &'a (dyn Fn(Step<'_>) + Sync),
}

/// How to run.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// When asynchronous operations complete.
    pub schedule: Schedule,
    /// Host threads; 0 uses one per core.
    pub threads: usize,
    /// Findings that are kept. Further ones are counted in [`Report::left_out`], and the run continues.
    pub max_findings: usize,
    /// Whether to stop once `max_findings` are kept, for callers who only ask whether there are findings.
    pub stop_at_limit: bool,
    /// Progress callback.
    pub progress: Option<Progress<'a>>,
    /// Sums of `tcgen05.mma`.
    pub mma_arithmetic: Arithmetic,
    /// When registers of `tcgen05.ld` may be read.
    pub tmem_loads: TmemLoads,
    /// Happens-before tracking of shared, tensor and global memory.
    pub tracking: Tracking,
    /// When diverged lanes reconverge.
    pub reconvergence: Reconvergence,
    /// PTX instructions that one cluster may execute, counted once per warp; beyond it the run ends with
    /// [`FindingKind::InstructionLimit`](crate::FindingKind::InstructionLimit). Clusters that wait for each other may
    /// together execute eight times as many without an event that another could wait for.
    pub instruction_limit: u64,
    /// Clusters that run at a time; by default as many as the chip may hold by its SMs, threads and shared memory.
    pub resident: Option<u32>,
    /// Wall-clock time of the run; `None` sets no limit. At the limit the report has the findings so far and
    /// [`FindingKind::TimeLimit`](crate::FindingKind::TimeLimit).
    pub time_limit: Option<Duration>,
    /// Ends the run soon after it becomes true, as the time limit does; for programs that a user interrupts.
    pub interrupt: Option<&'a AtomicBool>,
    /// Bytes of host memory for registers, shared, local and tensor memory of all resident clusters; `None` uses
    /// seven eighths of the available memory. The need is estimated before anything is allocated. If not all clusters
    /// fit, fewer are resident; if one does not fit alone, that is [`LaunchError::Memory`].
    pub memory_limit: Option<u64>,
    /// The warps to trace.
    pub trace: Option<Trace<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            schedule: Schedule::Early,
            threads: 0,
            max_findings: 20,
            stop_at_limit: false,
            progress: None,
            mma_arithmetic: Arithmetic::Hardware,
            tmem_loads: TmemLoads::Awaited,
            tracking: Tracking::Off,
            reconvergence: Reconvergence::Eager,
            instruction_limit: 1_000_000_000,
            resident: None,
            time_limit: None,
            interrupt: None,
            memory_limit: None,
            trace: None,
        }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("schedule", &self.schedule)
            .field("threads", &self.threads)
            .field("max_findings", &self.max_findings)
            .field("stop_at_limit", &self.stop_at_limit)
            .field("mma_arithmetic", &self.mma_arithmetic)
            .field("tmem_loads", &self.tmem_loads)
            .field("tracking", &self.tracking)
            .field("instruction_limit", &self.instruction_limit)
            .field("time_limit", &self.time_limit)
            .field("memory_limit", &self.memory_limit)
            .finish_non_exhaustive()
    }
}

/// Why a launch was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The module has no kernel with this name.
    #[error("there is no kernel `{name}`; the module has {}", .available.join(", "))]
    NoSuchEntry {
        /// The requested name.
        name: String,
        /// The module's kernels.
        available: Vec<String>,
    },
    /// The number of arguments is wrong.
    #[error(
        "{found} arguments were given, and the kernel takes {expected}: give one for each of its parameters"
    )]
    ArgumentCount {
        /// Parameters.
        expected: usize,
        /// Arguments.
        found: usize,
    },
    /// An argument has the wrong size.
    #[error("argument {index} has {found} bytes, parameter `{name}` has {expected}")]
    ArgumentSize {
        /// Position, from 0.
        index: usize,
        /// Name of the parameter.
        name: String,
        /// Bytes of the parameter.
        expected: u32,
        /// Bytes of the argument.
        found: u32,
    },
    /// No device accepts this grid, block or cluster.
    #[error("{what} {dims:?}: {rule}")]
    Shape {
        /// Grid, block or cluster.
        what: &'static str,
        /// Its dimensions.
        dims: [u32; 3],
        /// The violated rule.
        rule: String,
    },
    /// The kernel needs more shared memory than a CTA may have.
    #[error(
        "{fixed} bytes of static and {dynamic} bytes of dynamic shared memory (which starts at a multiple of 1024) end at {end}; a CTA of {chip} has at most {limit}"
    )]
    SharedMemory {
        /// Static bytes.
        fixed: u32,
        /// Dynamic bytes.
        dynamic: u32,
        /// End of the dynamic part, in bytes.
        end: u64,
        /// The chip.
        chip: String,
        /// Shared memory that a CTA may have, in bytes.
        limit: u32,
    },
    /// A cluster needs more host memory than the limit.
    #[error(
        "a cluster takes {needed} bytes of this machine's memory ({what}), and the run may take {limit}: raise the \
         memory limit, or launch smaller blocks or clusters, or declare fewer registers"
    )]
    Memory {
        /// Memory of one cluster in bytes.
        needed: u64,
        /// Limit for all clusters in bytes.
        limit: u64,
        /// What takes them.
        what: String,
    },
    /// The host threads could not be started.
    #[error("starting host threads failed: {0}")]
    Threads(String),
}

pub(crate) fn product(d: [u32; 3]) -> u64 {
    d.iter().map(|&v| u64::from(v)).product()
}

/// Start of dynamic shared memory for the module's static variables, in bytes.
pub(crate) fn dynamic_base(program: &Program) -> u32 {
    program.static_end.next_multiple_of(1024)
}

fn check_shape(program: &Program, launch: &Launch) -> Result<(), LaunchError> {
    let bad = |what, dims, rule: String| Err(LaunchError::Shape { what, dims, rule });
    let (grid, block, cluster) = (launch.grid, launch.block, launch.cluster);
    if grid.contains(&0) || grid[0] > 0x7fff_ffff || grid[1] > 65535 || grid[2] > 65535 {
        return bad("grid", grid, "each dimension is at least 1, y and z at most 65535".to_owned());
    }
    if block.contains(&0) || product(block) > 1024 || block[2] > 64 {
        return bad("block", block, "1 to 1024 threads, at most 64 along z".to_owned());
    }
    if cluster.contains(&0) || product(cluster) > u64::from(MAX_CLUSTER) {
        return bad("cluster", cluster, format!("1 to {MAX_CLUSTER} CTAs"));
    }
    if (0..3).any(|i| grid[i] % cluster[i] != 0) {
        return bad("cluster", cluster, format!("the grid {grid:?} is not a multiple of it"));
    }
    if let Some(r) = program.reqntid
        && product(r) != product(block)
    {
        return bad("block", block, format!("the kernel requires .reqntid {r:?}"));
    }
    if let Some(m) = program.maxntid
        && product(block) > product(m)
    {
        return bad("block", block, format!("the kernel allows .maxntid {m:?}"));
    }
    if let Some(r) = program.reqcluster
        && r != cluster
    {
        return bad("cluster", cluster, format!("the kernel requires .reqnctapercluster {r:?}"));
    }
    let threads = product(block);
    let most = registers_per_thread(SM_REGISTERS, 1, threads, program.sm_threads)
        .map(|most| most.next_multiple_of(GRANULE));
    if let Some((each, most)) = program.registers_at_entry(SM_REGISTERS).zip(most)
        && each > most
    {
        let rule = format!(
            "the kernel starts with {each} registers per thread, and a block of {threads} threads can have {most}: lower \
             .maxnreg, or launch fewer threads"
        );
        return bad("block", block, rule);
    }
    Ok(())
}

impl Module {
    /// Checks a launch as [`Module::run`] does, without running it.
    ///
    /// # Errors
    /// [`LaunchError`] for a launch that a device would refuse.
    pub fn check(&self, entry: &str, launch: &Launch) -> Result<(), LaunchError> {
        self.admit(entry, launch).map(|_| ())
    }

    /// Checks a launch and returns its kernel and parameter bytes.
    fn admit(&self, entry: &str, launch: &Launch) -> Result<(&Program, Vec<u8>), LaunchError> {
        let Some(program) = self.program(entry) else {
            return Err(LaunchError::NoSuchEntry {
                name: entry.to_owned(),
                available: self.entries().map(str::to_owned).collect(),
            });
        };
        check_shape(program, launch)?;
        if program.params.len() != launch.args.len() {
            return Err(LaunchError::ArgumentCount {
                expected: program.params.len(),
                found: launch.args.len(),
            });
        }
        let mut params = vec![0u8; program.param_bytes as usize];
        for (index, (p, arg)) in program.params.iter().zip(&launch.args).enumerate() {
            let bytes = arg.bytes();
            if bytes.len() != p.bytes as usize {
                return Err(LaunchError::ArgumentSize {
                    index,
                    name: p.name.clone(),
                    expected: p.bytes,
                    found: bytes.len() as u32,
                });
            }
            let at = p.offset as usize;
            params[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let fixed = program.static_end - crate::program::SMEM_BASE;
        let end = u64::from(dynamic_base(program)) + u64::from(launch.dynamic_smem);
        let used = if launch.dynamic_smem == 0 { u64::from(program.static_end) } else { end };
        let limit = max_smem(self.chip());
        if used > u64::from(limit) + u64::from(crate::program::SMEM_BASE) {
            let (dynamic, chip) = (launch.dynamic_smem, self.chip().to_owned());
            return Err(LaunchError::SharedMemory { fixed, dynamic, end, chip, limit });
        }
        Ok((program, params))
    }

    /// Runs a kernel over a whole grid.
    ///
    /// Buffers of `memory` then hold its results. `.global` variables of the module start with their initial values.
    ///
    /// # Errors
    /// [`LaunchError`] for a launch that a device would refuse. What goes wrong inside the kernel is
    /// in the report.
    ///
    /// # Example
    /// ```
    /// use silumin_emulator::{Arg, GlobalMemory, Launch, Module, Options};
    ///
    /// let text = r#"
    /// .version 8.0
    /// .target sm_90a
    /// .address_size 64
    /// .visible .entry triple(.param .u64 out)
    /// {
    ///     .reg .b32 %r<3>;
    ///     .reg .b64 %rd<4>;
    ///     ld.param.u64 %rd1, [out];
    ///     cvta.to.global.u64 %rd1, %rd1;
    ///     mov.u32 %r1, %tid.x;
    ///     mul.lo.u32 %r2, %r1, 3;
    ///     mul.wide.u32 %rd2, %r1, 4;
    ///     add.u64 %rd3, %rd1, %rd2;
    ///     st.global.u32 [%rd3], %r2;
    ///     ret;
    /// }"#;
    /// let module = Module::parse("triple.ptx", text)?;
    /// let mut memory = GlobalMemory::new();
    /// let out = memory.alloc("out", 4 * 64);
    /// let launch = Launch {
    ///     grid: [1, 1, 1],
    ///     block: [64, 1, 1],
    ///     cluster: [1, 1, 1],
    ///     dynamic_smem: 0,
    ///     args: vec![Arg::Pointer(memory.address(&out))],
    /// };
    /// let report = module.run("triple", &launch, &memory, &Options::default())?;
    /// assert!(report.is_clean());
    /// assert_eq!(memory.read(&out)[4 * 63..], 189u32.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run(
        &self,
        entry: &str,
        launch: &Launch,
        memory: &GlobalMemory,
        options: &Options<'_>,
    ) -> Result<Report, LaunchError> {
        let (program, params) = self.admit(entry, launch)?;
        crate::exec::run(self, program, launch, params, memory, options)
    }

    /// Predicts how long a launch takes on a chip. The instruction, time and memory limits of `options` apply.
    ///
    /// The kernel is executed: buffers of `memory` are written, with results if [`TimeOptions::values`] is set.
    ///
    /// # Errors
    /// A launch that a device would refuse, a kernel for another chip, or one that does not end.
    pub fn time(
        &self,
        entry: &str,
        launch: &Launch,
        memory: &GlobalMemory,
        options: &Options<'_>,
        timing: &TimeOptions,
    ) -> Result<Prediction, TimeError> {
        let (program, params) = self.admit(entry, launch)?;
        crate::exec::timed::time(self, program, launch, params, memory, options, timing)
    }
}
