//! Findings and statistics of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// No warp can run, and no operation is pending.
    Deadlock,
    /// A cluster reached the instruction limit.
    InstructionLimit,
    /// The run reached its time limit.
    TimeLimit,
    /// An undefined register has an effect: it is stored to global memory, compared, used as an address, or an
    /// operand of a matrix product. Moves, arithmetic, selections, shuffles and stores to shared or tensor memory
    /// pass it on.
    UninitialisedRegister,
    /// The result of `tcgen05.ld` was used before `tcgen05.wait::ld`.
    MissingWait,
    /// Undefined shared memory has an effect: a copy or a matrix product reads it, or a thread that loaded it stores
    /// it to global memory, compares it, or uses it as an address.
    UninitialisedShared,
    /// Undefined tensor memory has an effect, as for [`FindingKind::UninitialisedShared`].
    UninitialisedTmem,
    /// Undefined global memory was read.
    UninitialisedGlobal,
    /// Undefined local memory was read.
    UninitialisedLocal,
    /// An access outside every buffer or window.
    OutOfBounds,
    /// A load or a copy reads past the end of its buffer, in the 2 MiB page where the buffer ends. Drivers map whole
    /// pages, so hardware reads some bytes; here they count as undefined.
    ReadPastBuffer,
    /// An address is not a multiple of the access size.
    Misaligned,
    /// A matrix descriptor that hardware does not accept.
    IllegalDescriptor,
    /// Sparsity metadata with an index that has no meaning in the ISA. Hardware uses the elements that its bits name,
    /// and so does the run.
    UndefinedMetadata,
    /// A tensor map, or a box, that hardware does not accept.
    IllegalTensorMap,
    /// An instruction descriptor that hardware does not accept.
    IllegalInstructionDescriptor,
    /// A CTA exits with tensor memory still allocated.
    TmemLeak,
    /// Tensor memory is used after it was deallocated.
    TmemUseAfterFree,
    /// Tensor memory is used without an allocation, or allocated wrongly.
    TmemUnallocated,
    /// A warp accesses lanes of tensor memory that belong to another warp of its warpgroup.
    TmemWrongWarp,
    /// A `tcgen05.mma` reads scale factors, A or metadata from words that a `tcgen05.mma` wrote as sums, or
    /// overwrites them with its own sums. The run continues with the words as they are.
    TmemOperandOverwritten,
    /// A lane beyond 127 in an address of tensor memory; under strict tracking only. Hardware takes it modulo 128.
    TmemLaneWrapped,
    /// Another misuse of tensor memory.
    TmemMisuse,
    /// A shared-memory address in an instruction without a state space, which takes a generic address; under strict
    /// tracking only. Hardware takes its low 32 bits.
    GenericAddress,
    /// An mbarrier is used before or after its life, or with a value out of range.
    MbarrierMisuse,
    /// `mbarrier.init` of a live mbarrier. The ISA leaves it undefined; hardware and the run start the mbarrier
    /// again.
    MbarrierReinitialised,
    /// A store or a copy overwrites a live mbarrier. Hardware writes the bytes; the mbarrier ends.
    MbarrierOverwritten,
    /// A wait for a phase parity other than 0 and 1. Hardware uses the lowest bit, and so does the run.
    PhaseParity,
    /// A named barrier used wrongly.
    BarrierMisuse,
    /// An operand that must be uniform differs between lanes.
    NonUniform,
    /// Only a part of a warp reaches a converged instruction.
    Divergent,
    /// An access to the shared memory of a CTA that has exited.
    PeerExited,
    /// A CTA exits while a copy to its shared memory may be pending; under strict tracking also while a bulk store
    /// may still read from it.
    ExitDuringCopy,
    /// A CTA exits while an arrival from another CTA at its mbarrier may be pending: no thread waited for its phase,
    /// and no release followed. Under strict tracking, commits of `tcgen05` must themselves be waited for.
    ExitDuringArrival,
    /// The kernel executed `trap` or failed an assertion.
    Trap,
    /// Two unordered accesses of different warps to the same bytes of shared memory, at least one a write.
    RaceShared,
    /// Two unordered accesses of different warps to the same words of tensor memory, at least one a write.
    RaceTmem,
    /// Two unordered accesses of different warps or clusters to the same bytes of global memory, at least one a
    /// write.
    RaceGlobal,
    /// Data of a copy or of the tensor core is used without a wait for the mbarrier that announces it.
    MissingMbarrierWait,
    /// The result of `cp.async` or of a bulk store is used without a wait for its group.
    MissingCopyWait,
    /// Accesses of two threads to tensor memory lack `tcgen05.fence::before_thread_sync` or `::after_thread_sync`
    /// around the synchronisation between them; behind a commit or `wait::ld` under strict tracking only.
    MissingTcgen05Fence,
    /// Registers are written and used by `wgmma` without a `wgmma.fence` in between.
    MissingWgmmaFence,
    /// Tensor memory of a `tcgen05.ld` or `st` is used again without `tcgen05.wait::ld` or `::st`.
    MissingTmemWait,
    /// A write of the generic proxy and an access of the async proxy lack `fence.proxy.async`; between `cp.async` and
    /// a product of tensor memory under strict tracking only.
    MissingProxyFence,
    /// Memory is overwritten that a copy, the tensor core or another warp may still read.
    SlotOverwritten,
    /// A thread uses an mbarrier whose initialisation is not ordered before the use.
    MbarrierNotVisible,
    /// A phase of an mbarrier completes while a thread still waits for the phase before; under strict tracking only.
    PhaseSkipped,
    /// Copies deliver another number of bytes than the mbarrier expects.
    TransactionMismatch,
    /// More arrivals at an mbarrier than its phase expects.
    ArrivalOverflow,
    /// Two warps allocate tensor memory without an order.
    TmemAllocRace,
    /// `tcgen05.alloc.cta_group::2` without evidence that the pair's other CTA runs. A warning with tracking, a
    /// finding under strict tracking.
    PairAllocBeforePeer,
    /// Only one CTA of a pair executes `tcgen05.alloc`, `relinquish_alloc_permit` or `dealloc`, or the two use
    /// different operands.
    TmemPairMismatch,
    /// `tcgen05.mma` uses the collector without a fill, or for another operand than was filled.
    CollectorMisuse,
    /// An mbarrier is invalidated or initialised again while a thread, a copy or a commit may still use it.
    MbarrierReused,
    /// Clusters wait in global memory for an event that no running cluster will cause.
    GridDeadlock,
    /// The emulator does not model this case.
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

    /// The kind with this name, as `Debug` prints it.
    pub fn named(name: &str) -> Option<FindingKind> {
        FindingKind::ALL.iter().copied().find(|k| format!("{k:?}") == name)
    }

    /// Whether default tracking only warns, and strict tracking makes it a finding.
    ///
    /// Published kernels do it and run; by the ISA they may hang.
    pub fn is_warning(self) -> bool {
        self == FindingKind::PairAllocBeforePeer
    }

    /// Whether the run stops at this finding.
    ///
    /// It stops where hardware stops (a fault, a trap, threads that wait for ever), where the hardware's next action
    /// is unknown (an undefined descriptor, barriers with different counts, a case that is not modelled), and at
    /// limits. After all other findings the run continues as hardware does.
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

/// A finding: what is wrong with a kernel, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// Line of the PTX file, from 1; 0 if no instruction is the cause.
    pub line: u32,
    /// That line.
    pub text: String,
    /// Index of the CTA in the grid.
    pub cta: [u32; 3],
    /// Index of the warp in the CTA.
    pub warp: u32,
    /// First lane concerned, if lanes differ.
    pub lane: Option<u32>,
    /// The event, with its values.
    pub message: String,
    /// How often this kind occurred at this line, in the clusters that ran so far.
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

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// PTX instructions executed, counted once per warp.
    pub instructions: u64,
    /// Multiply-accumulates of the tensor cores by instruction: `tcgen05.mma` by its kind, `wgmma` and `mma.sync`.
    pub mma_macs: BTreeMap<&'static str, u64>,
    /// Bytes read from global memory by `ld`, `atom` and `cp.async`.
    pub global_read: u64,
    /// Bytes written to global memory by `st`, `atom` and `red`.
    pub global_written: u64,
    /// Bytes that bulk and tensor copies read from global memory. Zero fill does not count; a multicast counts once.
    pub tma_read: u64,
    /// Bytes that bulk and tensor copies wrote to global memory.
    pub tma_written: u64,
    /// Wall-clock time.
    pub time: Duration,
}

impl Stats {
    /// Adds the counts of another run.
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

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Findings, at most as many as the options allow; empty for a run without fault.
    pub findings: Vec<Finding>,
    /// Warnings: behaviour that may fail on hardware, though published kernels do it and run
    /// ([`FindingKind::is_warning`]). Under strict tracking they are findings. There are at most as many as the
    /// options allow findings.
    pub warnings: Vec<Finding>,
    /// Findings of other kinds or lines that exceeded the limit.
    pub left_out: u64,
    /// Whether a finding stopped the run. Buffers then hold what was written until then.
    pub stopped: bool,
    /// What was done.
    pub stats: Stats,
}

impl Report {
    /// Whether there are no findings. Warnings do not count.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings, then warnings.
    pub fn all(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().chain(&self.warnings)
    }
}
