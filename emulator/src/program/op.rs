//! The operations of an executable kernel.

use crate::engine::descriptor::Packing;
use crate::engine::tmem::{CpDecompress, CpShape};
use crate::isa::Ty;
use crate::lanes::convert::Convert;
use crate::lanes::{Cmp, F1, F2, F3, Pure};
use std::sync::Arc;

use super::*;

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
    /// `prmt` without a mode: picks bytes of `s0` and `s1` by the selectors in `s2`.
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
    /// `d` is the entry `2a + b` of a truth table for two predicates.
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
    /// `atom.exch.b128`, or with `swap` `atom.cas.b128`.
    WideAtom {
        space: Space,
        at: Addr,
        d: [Slot; 2],
        b: [Slot; 2],
        swap: Option<[Slot; 2]>,
    },
    LdMatrix {
        space: Space,
        at: Addr,
        trans: bool,
        /// How elements of 4 or 6 bits are widened to bytes.
        slots: Packing,
        dst: Box<[Slot]>,
    },
    StMatrix {
        space: Space,
        at: Addr,
        trans: bool,
        src: Box<[Slot]>,
    },
    /// Copies within the thread's local frame, as calls need it.
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
        /// The cache policy, or `SINK`.
        policy: Slot,
    },
    BulkSmem {
        dst: Addr,
        src: Addr,
        bytes: Slot,
        mbar: Addr,
        reduce: Option<(Rmw, Ty)>,
    },
    BulkStore {
        dst: Addr,
        src: Addr,
        bytes: Slot,
        /// `.cp_mask`: bit i is for byte i of every 16 bytes; or `SINK`.
        mask: Slot,
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
        pair: bool,
    },
    TcDealloc {
        at: Slot,
        columns: Slot,
        pair: bool,
    },
    TcRelinquish {
        pair: bool,
    },
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
        access: TcAccess,
        /// Destinations; for `ld.red` the last one gets the reduction of the others.
        dst: Box<[Slot]>,
        reduce: Option<TcReduce>,
    },
    TcStore {
        access: TcAccess,
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
    SetMaxNreg {
        count: u32,
        increase: bool,
    },
    WarpMma(Box<WarpMma>),
    /// Moves fragments of `wmma`, whose register layout is the emulator's own.
    WmmaMove(Box<WmmaMove>),
    WmmaMma(Box<WarpMma>),
    /// `ldmatrix.m16n16.trans.b8` and `stmatrix.m16n8.trans.b8`.
    ByteMatrix {
        load: bool,
        space: Space,
        at: Addr,
        slots: Packing,
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
