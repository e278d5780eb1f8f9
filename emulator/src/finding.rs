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
    /// A register was read that nothing wrote.
    UninitialisedRegister,
    /// The result of `tcgen05.ld` was used before `tcgen05.wait::ld`.
    MissingWait,
    /// Shared memory was read that nothing wrote.
    UninitialisedShared,
    /// Tensor memory was read that nothing wrote.
    UninitialisedTmem,
    /// Global memory was read that nothing wrote.
    UninitialisedGlobal,
    /// Local memory was read that nothing wrote.
    UninitialisedLocal,
    /// An access outside every buffer or window.
    OutOfBounds,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A matrix descriptor that the hardware would not accept.
    IllegalDescriptor,
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
    TmemOperandOverwritten,
    /// Another misuse of tensor memory.
    TmemMisuse,
    /// An mbarrier used without or after its life, or beyond its ranges.
    MbarrierMisuse,
    /// A named barrier used wrongly.
    BarrierMisuse,
    /// An operand that must be the same in all lanes is not.
    NonUniform,
    /// A converged instruction reached by a part of its warp.
    Divergent,
    /// Shared memory of a CTA of the cluster that has exited.
    PeerExited,
    /// A CTA exits while a copy to its shared memory may be under way.
    ExitDuringCopy,
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
    /// `::after_thread_sync` around the synchronisation between them.
    MissingTcgen05Fence,
    /// Registers were written and used by `wgmma` without `wgmma.fence` in between.
    MissingWgmmaFence,
    /// Tensor memory that `tcgen05.ld` or `st` accesses is used again without `tcgen05.wait::ld` or `::st`.
    MissingTmemWait,
    /// A write of the generic proxy and an access of the async proxy lack `fence.proxy.async`.
    MissingProxyFence,
    /// Memory is overwritten that a copy, the tensor core or another warp may still be reading.
    SlotOverwritten,
    /// An mbarrier is used by a thread that its initialisation does not come before.
    MbarrierNotVisible,
    /// A phase of an mbarrier completes while a thread still waits for the one before.
    PhaseSkipped,
    /// The bytes that an mbarrier expects are not those that copies delivered.
    TransactionMismatch,
    /// More arrivals at an mbarrier than its phase expects.
    ArrivalOverflow,
    /// Two warps allocate tensor memory without an order.
    TmemAllocRace,
    /// A case the emulator does not model.
    Unsupported,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: &[FindingKind] = &[
        FindingKind::Deadlock,
        FindingKind::InstructionLimit,
        FindingKind::UninitialisedRegister,
        FindingKind::MissingWait,
        FindingKind::UninitialisedShared,
        FindingKind::UninitialisedTmem,
        FindingKind::UninitialisedGlobal,
        FindingKind::UninitialisedLocal,
        FindingKind::OutOfBounds,
        FindingKind::Misaligned,
        FindingKind::IllegalDescriptor,
        FindingKind::IllegalTensorMap,
        FindingKind::IllegalInstructionDescriptor,
        FindingKind::TmemLeak,
        FindingKind::TmemUseAfterFree,
        FindingKind::TmemUnallocated,
        FindingKind::TmemWrongWarp,
        FindingKind::TmemOperandOverwritten,
        FindingKind::TmemMisuse,
        FindingKind::MbarrierMisuse,
        FindingKind::BarrierMisuse,
        FindingKind::NonUniform,
        FindingKind::Divergent,
        FindingKind::PeerExited,
        FindingKind::ExitDuringCopy,
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
        FindingKind::Unsupported,
    ];

    /// The kind of this name, as `Debug` writes it.
    pub fn named(name: &str) -> Option<FindingKind> {
        FindingKind::ALL.iter().copied().find(|k| format!("{k:?}") == name)
    }

    /// Whether the run stops here, because what follows would be noise.
    pub fn is_fatal(self) -> bool {
        !matches!(
            self,
            FindingKind::UninitialisedRegister
                | FindingKind::MissingWait
                | FindingKind::UninitialisedShared
                | FindingKind::UninitialisedGlobal
                | FindingKind::UninitialisedLocal
                | FindingKind::TmemLeak
                | FindingKind::RaceShared
                | FindingKind::RaceTmem
                | FindingKind::RaceGlobal
                | FindingKind::MissingMbarrierWait
                | FindingKind::MissingCopyWait
                | FindingKind::MissingTcgen05Fence
                | FindingKind::MissingWgmmaFence
                | FindingKind::MissingTmemWait
                | FindingKind::MissingProxyFence
                | FindingKind::SlotOverwritten
                | FindingKind::MbarrierNotVisible
                | FindingKind::PhaseSkipped
                | FindingKind::TmemAllocRace
                | FindingKind::ExitDuringCopy
        )
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
    /// What was done.
    pub stats: Stats,
}

impl Report {
    /// True when nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}
