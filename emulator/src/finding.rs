//! What a run reports: findings and statistics.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// Nothing can run and nothing is pending.
    Deadlock,
    /// The instruction budget is spent.
    InstructionLimit,
    /// The time that the run was given is over.
    TimeLimit,
    /// A register that nothing wrote has an effect: it is stored to global memory, compared, used as an address, or
    /// an operand of a matrix product. Moves, arithmetic, selections, shuffles and stores to shared or tensor memory pass
    /// it on.
    UninitialisedRegister,
    /// The result of `tcgen05.ld` was used before `tcgen05.wait::ld`.
    MissingWait,
    /// A value of shared memory that nothing wrote has an effect: a copy or a matrix product reads it, or a thread that
    /// loaded it stores it to global memory, compares it or uses it as an address.
    UninitialisedShared,
    /// A value of tensor memory that nothing wrote has an effect, as of [`FindingKind::UninitialisedShared`].
    UninitialisedTmem,
    /// Global memory was read that nothing wrote.
    UninitialisedGlobal,
    /// Local memory was read that nothing wrote.
    UninitialisedLocal,
    /// An access outside every buffer or window.
    OutOfBounds,
    /// A load or a copy reads past the end of its buffer, in the 2 MiB page that the buffer ends in. Drivers map whole
    /// pages, so that hardware reads what happens to be there; the bytes count as never written.
    ReadPastBuffer,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A matrix descriptor that the hardware would not accept.
    IllegalDescriptor,
    /// Sparsity metadata with an index that the ISA gives no meaning. Hardware takes the elements that its bits name, and
    /// so does the run.
    UndefinedMetadata,
    /// A tensor map, or a box of one, that the hardware would not accept.
    IllegalTensorMap,
    /// An instruction descriptor that the hardware would not accept.
    IllegalInstructionDescriptor,
    /// Tensor memory still allocated when the CTA exits.
    TmemLeak,
    /// Tensor memory used after it was deallocated.
    TmemUseAfterFree,
    /// Tensor memory used without an allocation, or allocated wrongly.
    TmemUnallocated,
    /// A warp used lanes of tensor memory that belong to another warp of its warpgroup.
    TmemWrongWarp,
    /// A `tcgen05.mma` reads scale factors, A or metadata where a `tcgen05.mma` put sums, or puts its own sums over them.
    /// The run goes on with the words that are there.
    TmemOperandOverwritten,
    /// An address of tensor memory whose lane is beyond 127; under strict tracking only. Hardware takes it modulo 128.
    TmemLaneWrapped,
    /// Another misuse of tensor memory.
    TmemMisuse,
    /// A shared-memory address where an instruction without a state space takes a generic one; under strict tracking only.
    /// Hardware takes its low 32 bits.
    GenericAddress,
    /// An mbarrier used without or after its life, or beyond its ranges.
    MbarrierMisuse,
    /// `mbarrier.init` where an mbarrier is alive. The ISA leaves it undefined; hardware starts the mbarrier anew, and so
    /// does the run.
    MbarrierReinitialised,
    /// A store or a copy writes over a live mbarrier. Hardware writes the bytes; the mbarrier ends there.
    MbarrierOverwritten,
    /// A wait for a phase parity that is neither 0 nor 1. Hardware looks at the lowest bit, and so does the run.
    PhaseParity,
    /// A named barrier used wrongly.
    BarrierMisuse,
    /// An operand that must be the same in all lanes is not.
    NonUniform,
    /// A converged instruction reached by a part of its warp.
    Divergent,
    /// Shared memory of a CTA of the cluster that has exited.
    PeerExited,
    /// A CTA exits while a copy to its shared memory may be under way; under strict tracking also while a bulk store may
    /// still be reading from there.
    ExitDuringCopy,
    /// A CTA exits while an arrival from another CTA at its mbarrier may be under way: nobody has waited for its phase, and no
    /// release after it has come. Under strict tracking commits of `tcgen05` have to be waited for themselves.
    ExitDuringArrival,
    /// The kernel executed `trap` or failed an assertion.
    Trap,
    /// Two warps access the same bytes of shared memory without an order, and one writes.
    RaceShared,
    /// Two warps access the same words of tensor memory without an order, and one writes.
    RaceTmem,
    /// Two warps, or two clusters, access the same bytes of global memory without an order, and one writes.
    RaceGlobal,
    /// Data of a copy or of the tensor core is used without a wait for the mbarrier that says it is there.
    MissingMbarrierWait,
    /// The result of `cp.async` or of a bulk store is relied on without a wait for its group.
    MissingCopyWait,
    /// Accesses of tensor memory by two threads lack `tcgen05.fence::before_thread_sync` or
    /// `::after_thread_sync` around the synchronisation between them; behind a commit or `wait::ld` under strict tracking.
    MissingTcgen05Fence,
    /// Registers were written and used by `wgmma` without `wgmma.fence` in between.
    MissingWgmmaFence,
    /// Tensor memory that `tcgen05.ld` or `st` accesses is used again without `tcgen05.wait::ld` or `::st`.
    MissingTmemWait,
    /// A write of the generic proxy and an access of the async proxy lack `fence.proxy.async`; between `cp.async` and a product
    /// of tensor memory under strict tracking.
    MissingProxyFence,
    /// Memory is overwritten that a copy, the tensor core or another warp may still be reading.
    SlotOverwritten,
    /// An mbarrier is used by a thread that its initialisation does not come before.
    MbarrierNotVisible,
    /// A phase of an mbarrier completes while a thread still waits for the one before; under strict tracking.
    PhaseSkipped,
    /// The bytes that an mbarrier expects are not those that copies delivered.
    TransactionMismatch,
    /// More arrivals at an mbarrier than its phase expects.
    ArrivalOverflow,
    /// Two warps allocate tensor memory without an order.
    TmemAllocRace,
    /// `tcgen05.alloc.cta_group::2` while nothing shows that the other CTA of the pair runs. A warning where order is tracked, a
    /// finding under strict tracking.
    PairAllocBeforePeer,
    /// `tcgen05.alloc`, `relinquish_alloc_permit` or `dealloc` of a pair that only one of its CTAs executes, or the two
    /// with different operands.
    TmemPairMismatch,
    /// `tcgen05.mma` takes from the collector what was not filled, or another operand than was.
    CollectorMisuse,
    /// An mbarrier is invalidated, or initialised again, while a thread, a copy or a commit may still use it.
    MbarrierReused,
    /// Clusters wait in global memory for what no cluster that runs will do.
    GridDeadlock,
    /// A case the emulator does not model.
    Unsupported,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: &[FindingKind] = &[
        FindingKind::Deadlock,
        FindingKind::InstructionLimit,
        FindingKind::TimeLimit,
        FindingKind::UninitialisedRegister,
        FindingKind::MissingWait,
        FindingKind::UninitialisedShared,
        FindingKind::UninitialisedTmem,
        FindingKind::UninitialisedGlobal,
        FindingKind::UninitialisedLocal,
        FindingKind::OutOfBounds,
        FindingKind::ReadPastBuffer,
        FindingKind::Misaligned,
        FindingKind::IllegalDescriptor,
        FindingKind::UndefinedMetadata,
        FindingKind::IllegalTensorMap,
        FindingKind::IllegalInstructionDescriptor,
        FindingKind::TmemLeak,
        FindingKind::TmemUseAfterFree,
        FindingKind::TmemUnallocated,
        FindingKind::TmemWrongWarp,
        FindingKind::TmemOperandOverwritten,
        FindingKind::TmemLaneWrapped,
        FindingKind::TmemMisuse,
        FindingKind::GenericAddress,
        FindingKind::MbarrierMisuse,
        FindingKind::MbarrierReinitialised,
        FindingKind::MbarrierOverwritten,
        FindingKind::PhaseParity,
        FindingKind::BarrierMisuse,
        FindingKind::NonUniform,
        FindingKind::Divergent,
        FindingKind::PeerExited,
        FindingKind::ExitDuringCopy,
        FindingKind::ExitDuringArrival,
        FindingKind::Trap,
        FindingKind::RaceShared,
        FindingKind::RaceTmem,
        FindingKind::RaceGlobal,
        FindingKind::MissingMbarrierWait,
        FindingKind::MissingCopyWait,
        FindingKind::MissingTcgen05Fence,
        FindingKind::MissingWgmmaFence,
        FindingKind::MissingTmemWait,
        FindingKind::MissingProxyFence,
        FindingKind::SlotOverwritten,
        FindingKind::MbarrierNotVisible,
        FindingKind::PhaseSkipped,
        FindingKind::TransactionMismatch,
        FindingKind::ArrivalOverflow,
        FindingKind::TmemAllocRace,
        FindingKind::PairAllocBeforePeer,
        FindingKind::TmemPairMismatch,
        FindingKind::CollectorMisuse,
        FindingKind::MbarrierReused,
        FindingKind::GridDeadlock,
        FindingKind::Unsupported,
    ];

    /// The kind of this name, as `Debug` writes it.
    pub fn named(name: &str) -> Option<FindingKind> {
        FindingKind::ALL.iter().copied().find(|k| format!("{k:?}") == name)
    }

    /// Whether default tracking warns of this, and strict tracking alone makes it a finding.
    ///
    /// Published kernels do it and run, and the ISA says that they may hang.
    pub fn is_warning(self) -> bool {
        self == FindingKind::PairAllocBeforePeer
    }

    /// Whether the run stops here.
    ///
    /// It stops where hardware does (a fault, a trap, threads that wait for ever), where the emulator cannot know what
    /// hardware does next (an undefined descriptor, barriers used with different counts, a case that is not modelled), and
    /// at its limits. Everything else is reported and the run goes on as hardware does.
    pub fn is_fatal(self) -> bool {
        use FindingKind as K;
        match self {
            // Nothing can go on, or the limit is reached.
            K::Deadlock
            | K::GridDeadlock
            | K::TransactionMismatch
            | K::Divergent
            | K::InstructionLimit
            | K::TimeLimit => true,
            // Hardware faults.
            K::OutOfBounds
            | K::Misaligned
            | K::IllegalTensorMap
            | K::IllegalInstructionDescriptor
            | K::TmemUseAfterFree
            | K::TmemUnallocated
            | K::TmemWrongWarp
            | K::PeerExited
            | K::Trap => true,
            // Not known what hardware does.
            K::IllegalDescriptor
            | K::TmemMisuse
            | K::MbarrierMisuse
            | K::ArrivalOverflow
            | K::BarrierMisuse
            | K::NonUniform
            | K::Unsupported => true,
            // A value is not what the author meant, or may not be.
            K::UninitialisedRegister
            | K::UninitialisedShared
            | K::UninitialisedTmem
            | K::UninitialisedGlobal
            | K::UninitialisedLocal
            | K::ReadPastBuffer
            | K::MissingWait
            | K::UndefinedMetadata
            | K::TmemOperandOverwritten => false,
            // An order, a fence or a release is missing.
            K::RaceShared
            | K::RaceTmem
            | K::RaceGlobal
            | K::MissingMbarrierWait
            | K::MissingCopyWait
            | K::MissingTcgen05Fence
            | K::MissingWgmmaFence
            | K::MissingTmemWait
            | K::MissingProxyFence
            | K::SlotOverwritten
            | K::MbarrierNotVisible
            | K::PhaseSkipped
            | K::TmemAllocRace
            | K::ExitDuringCopy
            | K::ExitDuringArrival
            | K::TmemLeak => false,
            // The ISA forbids it, and hardware is known to go on.
            K::MbarrierReinitialised
            | K::MbarrierOverwritten
            | K::PhaseParity
            | K::TmemLaneWrapped
            | K::GenericAddress
            | K::PairAllocBeforePeer
            | K::TmemPairMismatch
            | K::CollectorMisuse
            | K::MbarrierReused => false,
        }
    }
}

/// One thing wrong with a kernel, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// Line of the PTX file, from 1; 0 when no instruction is to blame.
    pub line: u32,
    /// That line.
    pub text: String,
    /// CTA in the grid.
    pub cta: [u32; 3],
    /// Warp in the CTA.
    pub warp: u32,
    /// First lane concerned, where lanes differ.
    pub lane: Option<u32>,
    /// What happened, with the values involved.
    pub message: String,
    /// How often this kind was met at this line (in the clusters that ran to this point).
    pub count: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.cta;
        write!(f, "{:?}: {}", self.kind, self.message)?;
        write!(f, "\n  CTA ({x}, {y}, {z}), warp {}", self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        if self.line > 0 {
            write!(f, "\n  line {}: {}", self.line, self.text)?;
        }
        if self.count > 1 {
            write!(f, "\n  ({} times)", self.count)?;
        }
        Ok(())
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// PTX instructions executed, counted once per warp.
    pub instructions: u64,
    /// Multiply-accumulates of the tensor cores: `tcgen05.mma` by its kind, `wgmma` and `mma.sync`.
    pub mma_macs: BTreeMap<&'static str, u64>,
    /// Bytes read from global memory by `ld`, `atom` and `cp.async`.
    pub global_read: u64,
    /// Bytes written to global memory by `st`, `atom` and `red`.
    pub global_written: u64,
    /// Bytes that bulk and tensor copies read from global memory, zero fill not counted, a multicast once.
    pub tma_read: u64,
    /// Bytes that bulk and tensor copies wrote to global memory.
    pub tma_written: u64,
    /// Wall-clock time.
    pub time: Duration,
}

impl Stats {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Stats) {
        self.instructions += other.instructions;
        for (k, v) in &other.mma_macs {
            *self.mma_macs.entry(k).or_default() += v;
        }
        self.global_read += other.global_read;
        self.global_written += other.global_written;
        self.tma_read += other.tma_read;
        self.tma_written += other.tma_written;
        self.time += other.time;
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What is wrong, at most as many as the options allow; empty for a run without fault.
    pub findings: Vec<Finding>,
    /// What may go wrong on hardware though kernels that do it are known to run; see [`FindingKind::is_warning`]. Strict tracking
    /// lists it among the findings. At most as many as the options allow of findings.
    pub warnings: Vec<Finding>,
    /// Findings of other kinds or lines that the limit left out of the list.
    pub left_out: u64,
    /// Whether a finding stopped the run: buffers then hold what was written until there.
    pub stopped: bool,
    /// What was done.
    pub stats: Stats,
}

impl Report {
    /// True when nothing was found. Warnings do not count.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings, then warnings: for those who take one for the other.
    pub fn all(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().chain(&self.warnings)
    }
}
