//! Operands of operations: memory, barriers, lanes and matrices.

use crate::engine::collector::Usage;
use crate::engine::descriptor::Major;
use crate::engine::fragment::{Kind, Shape};
use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
use crate::engine::tmem::LdStShape;

use super::{Pred, Slot};

/// State spaces of memory instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    SharedCta,
    SharedCluster,
    Local,
    Param,
    Const,
}

/// `[base + offset]`; `base` may be `SINK` for an absolute address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub base: Slot,
    pub offset: i64,
}

/// Special registers and symbols whose value is fixed when a warp starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Clusterid(u8),
    Nclusterid(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    Laneid,
    Warpid,
    Nwarpid,
    Smid,
    Nsmid,
    Gridid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    DynamicSmemSize,
    TotalSmemSize,
    AggrSmemSize,
    /// Address of a shared variable: this offset, with the CTA's rank in the upper byte.
    Shared(u32),
    /// An offset in dynamic shared memory.
    Dynamic(u32),
    Zero,
    /// Start of the `alloca` stack in the local frame.
    StackTop(u32),
}

/// A special register that changes while a warp runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Low,
    High,
    Wide,
    Globaltimer,
    GlobaltimerLo,
    GlobaltimerHi,
}

/// A read-modify-write operation of `atom`, `red` and the bulk reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rmw {
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Add,
    Inc,
    Dec,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarKind {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// Operand A of a matrix product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MatrixA {
    /// A shared-memory descriptor.
    Smem(Slot),
    /// Tensor-memory address.
    Tmem(Addr),
}

/// The part of tensor memory that `tcgen05.ld` and `tcgen05.st` access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcAccess {
    pub at: Addr,
    pub shape: LdStShape,
    pub repeat: u32,
    /// `.pack::16b` of a load, `.unpack::16b` of a store.
    pub packed: bool,
    pub split: u32,
}

/// How `tcgen05.ld.red` reduces the words of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcReduce {
    pub f: crate::lanes::F2,
    /// Whether magnitudes are compared; the result then is a magnitude.
    pub abs: bool,
}

impl TcReduce {
    /// Reduces all registers of each lane.
    pub fn of(self, values: &[[u32; 32]]) -> [u32; 32] {
        let word = |v: &[u32; 32]| v.map(|w| u64::from(if self.abs { w & 0x7fff_ffff } else { w }));
        let mut words = values.iter().map(word);
        let mut sum = words.next().unwrap_or([0; 32]);
        for w in words {
            let mut out = [0; 32];
            (self.f)(&sum, &w, &mut out);
            sum = out;
        }
        sum.map(|w| w as u32)
    }
}

/// `tcgen05.mma` operands.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub kind: MmaKind,
    pub group: CtaGroup,
    pub d: Addr,
    pub a: MatrixA,
    pub b: Slot,
    pub idesc: Slot,
    /// `(sfa, sfb)` and the number of scales per row of one instruction.
    pub scales: Option<(Addr, Addr, ScaleVec)>,
    pub lane_mask: Box<[Slot]>,
    pub enable_d: Pred,
    /// The exponent of `scale-input-d`.
    pub scale_d: Slot,
    /// `.sp`: the address of the metadata.
    pub metadata: Option<Addr>,
    /// `.ws`.
    pub stationary: bool,
    /// The zero-column mask descriptor, or `SINK`.
    pub zero_columns: Slot,
    /// `.ashift`.
    pub shift_a: bool,
    pub collector: Usage,
}

/// `mma.sync` operands.
#[derive(Clone, Debug)]
pub(crate) struct WarpMma {
    pub shape: Shape,
    pub kind: Kind,
    pub d: Box<[Slot]>,
    pub a: Box<[Slot]>,
    pub b: Box<[Slot]>,
    pub c: Box<[Slot]>,
    pub c_half: bool,
    /// Rounding of binary64.
    pub rounding: crate::engine::format::Rounding,
    /// `m8n8k4` of binary16: whether A is column-major and whether B is row-major.
    pub quads: Option<(bool, bool)>,
    /// Metadata of a sparse A, and its selector.
    pub sparse: Option<(Slot, u32)>,
    pub scale: Option<WarpScale>,
    /// FP8 on chips without an FP8 unit: computed as two products in binary16.
    pub widened: bool,
}

/// Scale factors of `mma.sync`.
#[derive(Clone, Debug)]
pub(crate) struct WarpScale {
    pub format: crate::engine::format::Format,
    pub vec: ScaleVec,
    /// Data, byte selector and thread selector of A and of B.
    pub a: [Slot; 3],
    pub b: [Slot; 3],
}

/// `wmma.load` and `wmma.store`.
#[derive(Clone, Debug)]
pub(crate) struct WmmaMove {
    pub space: Space,
    pub at: Addr,
    /// Stride in elements; `SINK` for a dense matrix.
    pub stride: Slot,
    /// Number of lines in memory, elements of a line, and bits of an element.
    pub lines: usize,
    pub length: usize,
    pub bits: u32,
    /// Whether lines are rows of the fragment's matrix (for B, columns).
    pub along: bool,
    pub registers: Box<[Slot]>,
    pub store: bool,
}

/// Operand A of `wgmma.mma_async`.
#[derive(Clone, Debug)]
pub(crate) enum WgmmaA {
    /// A shared-memory descriptor.
    Smem(Slot),
    Registers(Box<[Slot]>),
}

/// `wgmma.mma_async` operands.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub kind: Kind,
    pub n: usize,
    pub d: Box<[Slot]>,
    pub a: WgmmaA,
    pub b: Slot,
    pub scale_d: Pred,
    pub negate: bool,
    pub a_major: Major,
    pub b_major: Major,
    /// Metadata of a sparse A, and its selector.
    pub sparse: Option<(Slot, u32)>,
}

/// Bulk tensor copy.
#[derive(Clone, Debug)]
pub(crate) struct TensorCopy {
    pub smem: Addr,
    pub map: Addr,
    pub coords: Box<[Slot]>,
    pub mbar: Addr,
    /// The multicast mask, or `SINK`.
    pub mask: Slot,
    /// The cache policy, or `SINK`.
    pub policy: Slot,
    pub pair: bool,
    /// Whether it is `.tile::gather4` or `.tile::scatter4`, with a column and four rows as coordinates.
    pub gather: bool,
    /// `.im2col` with its offsets; none for `.im2col_no_offs`.
    pub im2col: Option<Box<[Slot]>>,
    /// Whether it is `.im2col::w` or `.im2col::w::128`.
    pub wide: bool,
}

/// A field of a tensor map that `tensormap.replace` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapField {
    GlobalAddress,
    Rank,
    BoxDim,
    GlobalDim,
    GlobalStride,
    ElementStride,
    Elemtype,
    Interleave,
    Swizzle,
    SwizzleAtomicity,
    Fill,
}

/// The memory order that an instruction names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// None: weak for loads and stores, the instruction's own default elsewhere.
    #[default]
    Default,
    Relaxed,
    Acquire,
    Release,
    Both,
}

impl Order {
    /// The order among the modifiers of an opcode.
    pub fn of(opcode: &str) -> Order {
        for part in opcode.split('.').skip(1) {
            match part {
                "relaxed" | "volatile" => return Order::Relaxed,
                "acquire" => return Order::Acquire,
                "release" => return Order::Release,
                "acq_rel" | "sc" => return Order::Both,
                _ => {}
            }
        }
        Order::Default
    }
}

/// The scope that an instruction names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// None. It is taken to be wide enough: published kernels signal mbarriers of other CTAs without a scope,
    /// although the ISA's default is `.cta`.
    #[default]
    Unnamed,
    Cta,
    Cluster,
    /// `.gpu` and `.sys`.
    Gpu,
}

impl Scope {
    /// The scope among the modifiers of an opcode.
    pub fn of(opcode: &str) -> Scope {
        for part in opcode.split('.').skip(1) {
            match part {
                "cta" => return Scope::Cta,
                "cluster" => return Scope::Cluster,
                "gpu" | "sys" | "gl" => return Scope::Gpu,
                _ => {}
            }
        }
        Scope::Unnamed
    }

    /// Whether the scope includes threads of other clusters.
    pub fn abroad(self) -> bool {
        matches!(self, Scope::Unnamed | Scope::Gpu)
    }
}

/// What a fence orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// `fence`, `membar`: the thread's accesses.
    Thread,
    /// `fence.proxy.async`: accesses by the generic proxy and the async proxy.
    Proxy,
    /// The same, for all state spaces.
    ProxyAll,
    /// `fence.proxy.tensormap::generic.acquire`: the SM discards tensor maps that it has read.
    MapAcquire,
    /// `fence.proxy.tensormap::generic.release`.
    MapRelease,
    MbarInit,
    TensorBefore,
    TensorAfter,
    /// Other fences, which order nothing in the model.
    None,
}
