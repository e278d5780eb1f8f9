//! The executable form of a kernel: every name resolved to a slot, every modifier to a value.

use crate::engine::descriptor::Major;
use crate::engine::fragment::{Kind, Shape};
use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
use crate::engine::tmem::{CpDecompress, CpShape, LdStShape};
use crate::isa::Ty;
use crate::lanes::convert::Convert;
use crate::lanes::{Cmp, F1, F2, F3, Lanes, Pure};
use std::sync::Arc;

/// Index of a data register, or of a constant from `CONSTANTS` up.
pub(crate) type Slot = u32;
/// "No operand", and the destination `_`.
pub(crate) const SINK: Slot = u32::MAX;
/// Slots from here on are constants of the program.
pub(crate) const CONSTANTS: Slot = 1 << 30;
/// The predicate register that is always true.
pub(crate) const TRUE: u32 = 0;
/// The predicate register that holds the carry flag `CC.CF`.
pub(crate) const CARRY: u32 = 1;
/// First shared-memory offset that programs get: the hardware keeps the first KiB for itself.
pub(crate) const SMEM_BASE: u32 = 1024;

/// A predicate source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pred {
    pub slot: u32,
    pub negated: bool,
}

impl Pred {
    pub const ALWAYS: Pred = Pred { slot: TRUE, negated: false };
}

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
    /// Address of a shared variable: the CTA's rank in the upper byte, this offset below.
    Shared(u32),
    /// The same within dynamic shared memory.
    Dynamic(u32),
    Zero,
}

/// Special registers that change while a warp runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Low,
    High,
    Wide,
    Globaltimer,
    GlobaltimerLo,
    GlobaltimerHi,
}

/// Read-modify-write operations of `atom`, `red` and the bulk reductions.
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
    /// Shared-memory descriptor.
    Smem(Slot),
    /// Tensor-memory address.
    Tmem(Addr),
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
    /// `scale-input-d` exponent.
    pub scale_d: Slot,
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
}

/// Operand A of `wgmma.mma_async`.
#[derive(Clone, Debug)]
pub(crate) enum WgmmaA {
    /// Shared-memory descriptor.
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
}

/// Bulk tensor copy.
#[derive(Clone, Debug)]
pub(crate) struct TensorCopy {
    pub smem: Addr,
    pub map: Addr,
    pub coords: Box<[Slot]>,
    pub mbar: Addr,
    /// Multicast mask, or `SINK`.
    pub mask: Slot,
    pub pair: bool,
    /// `.tile::gather4` or `.tile::scatter4`: a column and four rows.
    pub gather: bool,
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

/// One executable operation.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nop,
    Fence(Fence),
    Alu1 {
        f: F1,
        d: Slot,
        a: Slot,
    },
    Alu2 {
        f: F2,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Alu3 {
        f: F3,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    /// `prmt` in its general form: bytes of `s0` and `s1` by the selectors of `s2`.
    Permute {
        d: Slot,
        s: [Slot; 3],
    },
    /// `d = f(s0, s1, s2)`.
    Pure {
        f: Pure,
        d: Slot,
        s: [Slot; 3],
    },
    Mov {
        d: Slot,
        a: Slot,
    },
    Bfi {
        d: Slot,
        s: [Slot; 4],
        bits: u32,
    },
    Lop3 {
        d: Slot,
        s: [Slot; 3],
        table: u8,
        p: u32,
        combine: Option<(bool, Pred)>,
    },
    Cvt {
        how: Box<Convert>,
        d: Slot,
        a: Slot,
        b: Slot,
        packed: bool,
    },
    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`: `a + b + carry` with `b` inverted for sub.
    Carry {
        d: Slot,
        a: Slot,
        b: Slot,
        subtract: bool,
        use_carry: bool,
        set_carry: bool,
        bits: u32,
    },
    Pack {
        d: Box<[Slot]>,
        s: Box<[Slot]>,
        bits: u32,
    },
    Unpack {
        d: Box<[Slot]>,
        s: Box<[Slot]>,
        bits: u32,
    },
    Setp {
        f: Cmp,
        p: u32,
        q: u32,
        a: Slot,
        b: Slot,
        combine: Option<(u8, Pred)>,
    },
    Set {
        f: Cmp,
        d: Slot,
        a: Slot,
        b: Slot,
        combine: Option<(u8, Pred)>,
        yes: u64,
    },
    /// `setp` on packed halves: `f` compares zero-extended 16-bit values.
    Setp2 {
        f: Cmp,
        p: u32,
        q: u32,
        a: Slot,
        b: Slot,
        combine: Option<(u8, Pred)>,
    },
    Selp {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Pred,
    },
    /// Truth table on two predicates, bit `2a + b`.
    Truth {
        d: u32,
        a: Pred,
        b: Pred,
        table: u8,
    },
    ReadClock {
        d: Slot,
        what: Clock,
    },
    Load {
        space: Space,
        at: Addr,
        elem: u32,
        dst: Box<[Slot]>,
        signed: bool,
        reg_bits: u32,
    },
    Store {
        space: Space,
        at: Addr,
        elem: u32,
        src: Box<[Slot]>,
    },
    Atom {
        space: Space,
        at: Addr,
        op: Rmw,
        ty: Ty,
        d: Box<[Slot]>,
        b: Box<[Slot]>,
        c: Slot,
    },
    LdMatrix {
        space: Space,
        at: Addr,
        trans: bool,
        dst: Box<[Slot]>,
    },
    StMatrix {
        space: Space,
        at: Addr,
        trans: bool,
        src: Box<[Slot]>,
    },
    /// Copy within the thread's local frame, as calls need.
    CopyLocal {
        dst: u32,
        src: u32,
        bytes: u32,
    },
    Prefetch {
        at: Addr,
        space: Space,
    },
    ToGeneric {
        d: Slot,
        a: Slot,
        space: Space,
    },
    FromGeneric {
        d: Slot,
        a: Slot,
        space: Space,
    },
    IsSpace {
        p: u32,
        a: Slot,
        space: Space,
    },
    Mapa {
        d: Slot,
        a: Slot,
        rank: Slot,
        generic: bool,
    },
    GetCtaRank {
        d: Slot,
        a: Slot,
    },
    Bra {
        target: u32,
    },
    Brx {
        index: Slot,
        targets: Box<[u32]>,
    },
    Call {
        target: u32,
    },
    Ret,
    Exit,
    Trap {
        what: &'static str,
    },
    Bar {
        kind: BarKind,
        id: Slot,
        count: Slot,
        aligned: bool,
        p: Pred,
        d: Slot,
        dp: u32,
    },
    BarWarpSync {
        mask: Slot,
    },
    ClusterArrive {
        aligned: bool,
    },
    ClusterWait {
        aligned: bool,
    },
    Vote {
        kind: Vote,
        d: Slot,
        p: u32,
        src: Pred,
        mask: Slot,
    },
    Shfl {
        kind: Shuffle,
        d: Slot,
        p: u32,
        a: Slot,
        b: Slot,
        c: Slot,
        mask: Slot,
    },
    Match {
        all: bool,
        d: Slot,
        p: u32,
        a: Slot,
        mask: Slot,
    },
    Redux {
        f: F2,
        d: Slot,
        a: Slot,
        mask: Slot,
    },
    Activemask {
        d: Slot,
    },
    Elect {
        d: Slot,
        p: u32,
        mask: Slot,
    },
    MbarInit {
        at: Addr,
        space: Space,
        count: Slot,
    },
    MbarInval {
        at: Addr,
        space: Space,
    },
    MbarArrive {
        at: Addr,
        space: Space,
        state: Slot,
        count: Slot,
        expect: Slot,
        drop: bool,
    },
    MbarTx {
        at: Addr,
        space: Space,
        bytes: Slot,
        complete: bool,
    },
    MbarWait {
        at: Addr,
        space: Space,
        p: u32,
        token: Slot,
        parity: bool,
        blocking: bool,
    },
    MbarPending {
        d: Slot,
        state: Slot,
    },
    CpAsync {
        dst: Addr,
        src: Addr,
        bytes: u32,
        valid: Slot,
        ignore: Option<Pred>,
    },
    CpAsyncCommit,
    CpAsyncWait {
        groups: u32,
    },
    CpAsyncArrive {
        at: Addr,
        space: Space,
        noinc: bool,
    },
    BulkLoad {
        dst: Addr,
        src: Addr,
        bytes: Slot,
        mbar: Addr,
        mask: Slot,
    },
    BulkSmem {
        dst: Addr,
        src: Addr,
        bytes: Slot,
        mbar: Addr,
    },
    BulkStore {
        dst: Addr,
        src: Addr,
        bytes: Slot,
        reduce: Option<(Rmw, Ty)>,
    },
    TensorLoad(Box<TensorCopy>),
    TensorStore {
        copy: Box<TensorCopy>,
        reduce: Option<Rmw>,
    },
    TensorPrefetch(Box<TensorCopy>),
    /// `tensormap.replace`.
    MapReplace {
        at: Addr,
        space: Space,
        field: MapField,
        ordinal: Slot,
        value: Slot,
    },
    /// `st.async` and `red.async`.
    Remote {
        at: Addr,
        mbar: Addr,
        space: Space,
        ty: Ty,
        src: Box<[Slot]>,
        reduce: Option<Rmw>,
    },
    /// `tensormap.cp_fenceproxy`.
    MapCopy {
        dst: Addr,
        src: Addr,
    },
    BulkCommit,
    BulkWait {
        groups: u32,
        read: bool,
    },
    BulkFill {
        dst: Addr,
        bytes: Slot,
    },
    TcAlloc {
        dst: Addr,
        space: Space,
        columns: Slot,
    },
    TcDealloc {
        at: Slot,
        columns: Slot,
    },
    TcRelinquish,
    TcCopy {
        at: Addr,
        desc: Slot,
        shape: CpShape,
        decompress: Option<CpDecompress>,
        pair: bool,
    },
    TcMma(Box<Mma>),
    TcShift {
        at: Addr,
        pair: bool,
    },
    TcLoad {
        at: Addr,
        shape: LdStShape,
        repeat: u32,
        packed: bool,
        split: u32,
        dst: Box<[Slot]>,
    },
    TcStore {
        at: Addr,
        shape: LdStShape,
        repeat: u32,
        packed: bool,
        split: u32,
        src: Box<[Slot]>,
    },
    TcWait {
        load: bool,
    },
    TcCommit {
        at: Addr,
        space: Space,
        mask: Slot,
    },
    TryCancel {
        dst: Addr,
        mbar: Addr,
        multicast: bool,
    },
    QueryCanceled {
        p: u32,
        lo: Slot,
    },
    QueryCtaid {
        d: Box<[Slot]>,
        lo: Slot,
        hi: Slot,
        first: u8,
    },
    SetMaxNreg,
    WarpMma(Box<WarpMma>),
    /// `ldmatrix.m16n16.trans.b8` and `stmatrix.m16n8.trans.b8`.
    ByteMatrix {
        load: bool,
        space: Space,
        at: Addr,
        registers: Box<[Slot]>,
    },
    /// `movmatrix`: transposes an 8 x 8 matrix of 16-bit elements.
    MovMatrix {
        d: Slot,
        a: Slot,
    },
    WgmmaFence,
    Wgmma(Arc<Wgmma>),
    WgmmaCommit,
    WgmmaWait {
        groups: u32,
    },
}

/// Memory order that an instruction names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// None is named: weak for loads and stores, the instruction's own default elsewhere.
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

/// What a fence orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// `fence`, `membar`: accesses of the thread.
    Thread,
    /// `fence.proxy.async`: the generic proxy and the async proxy.
    Proxy,
    MbarInit,
    TensorBefore,
    TensorAfter,
    /// Others, which order nothing that is modelled.
    None,
}

/// An operation with its guard and source line.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub guard: Option<Pred>,
    pub op: Op,
    pub line: u32,
    pub order: Order,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParamInfo {
    pub name: String,
    pub offset: u32,
    pub bytes: u32,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    pub code: Vec<Inst>,
    /// The return that ends the kernel's own body.
    pub exit_pc: u32,
    pub registers: u32,
    pub predicates: u32,
    pub constants: Vec<Lanes>,
    pub specials: Vec<(Slot, Special)>,
    pub params: Vec<ParamInfo>,
    pub param_bytes: u32,
    /// There is a `wgmma` in it.
    pub wgmma: bool,
    /// End of the static shared variables, counted from offset 0.
    pub static_end: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    pub reqntid: Option<[u32; 3]>,
    pub maxntid: Option<[u32; 3]>,
    pub reqcluster: Option<[u32; 3]>,
    /// Names of data registers by slot range, for messages: `(first slot, count, name)`.
    pub names: Vec<(Slot, u32, String)>,
}

impl Program {
    /// Name of a data register, for messages.
    pub fn register_name(&self, slot: Slot) -> String {
        let i = self.names.partition_point(|n| n.0 <= slot);
        match i.checked_sub(1).map(|i| &self.names[i]) {
            Some((first, 1, name)) if *first == slot => name.clone(),
            Some((first, count, name)) if slot - first < *count => {
                format!("{name}{}", slot - first)
            }
            _ => format!("register {slot}"),
        }
    }
}
