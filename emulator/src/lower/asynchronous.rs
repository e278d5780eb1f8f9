//! Asynchronous copies: `cp.async`, bulk copies, tensor copies, cluster launch control
//! (ISA sections 9.7.9.25, 9.7.9.27, 9.7.13.17).

use super::memory::rmw;
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::parse::ast::Operand;
use crate::program::{Addr, MapField, Op, Rmw, SINK, Slot, Space, TensorCopy};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "cp.async .ca|.cg .shared|.shared::cta .global evict* hint?",
        section: "9.7.9.25.3.1",
        lower: cp_async,
    },
    Form {
        form: "cp.async.commit_group",
        section: "9.7.9.25.3.2",
        lower: |lw, _| done(lw, Op::CpAsyncCommit),
    },
    Form { form: "cp.async.wait_group", section: "9.7.9.25.3.3", lower: cp_async_wait },
    Form {
        form: "cp.async.wait_all",
        section: "9.7.9.25.3.3",
        lower: |lw, _| done(lw, Op::CpAsyncWait { groups: 0 }),
    },
    Form {
        form: "cp.async.mbarrier.arrive .noinc? shared? .b64",
        section: "9.7.13.15.15",
        lower: cp_async_arrive,
    },
    Form {
        form: "cp.async.bulk .shared::cluster|.shared::cta .global .mbarrier::complete_tx::bytes .multicast::cluster? hint?",
        section: "9.7.9.25.4.1",
        lower: bulk_load,
    },
    Form {
        form: "cp.async.bulk .shared::cluster .shared::cta .mbarrier::complete_tx::bytes",
        section: "9.7.9.25.4.1",
        lower: bulk_smem,
    },
    Form {
        form: "cp.async.bulk .global .shared::cta .bulk_group hint? .cp_mask?",
        section: "9.7.9.25.4.1",
        lower: bulk_store,
    },
    Form {
        form: "cp.reduce.async.bulk .global .shared::cta .bulk_group hint? atomop .noftz? type",
        section: "9.7.9.25.4.2",
        lower: bulk_store,
    },
    Form {
        form: "cp.reduce.async.bulk .shared::cluster .shared::cta .mbarrier::complete_tx::bytes atomop type",
        section: "9.7.9.25.4.2",
        lower: bulk_smem,
    },
    Form { form: "cp.async.bulk.prefetch .L2 .global hint?", section: "9.7.9.25.4.3", lower: bulk_prefetch },
    Form {
        form: "cp.async.bulk.tensor dim .shared::cluster|.shared::cta .global .tile|.tile::gather4|.im2col|.im2col::w|.im2col::w::128? .mbarrier::complete_tx::bytes .multicast::cluster? group? hint?",
        section: "9.7.9.27.1.2",
        lower: tensor_load,
    },
    Form {
        form: "cp.async.bulk.tensor dim .global .shared::cta .tile|.tile::scatter4|.im2col_no_offs? .bulk_group hint?",
        section: "9.7.9.27.1.2",
        lower: tensor_store,
    },
    Form {
        form: "cp.reduce.async.bulk.tensor dim .global .shared::cta atomop .tile|.im2col_no_offs? .bulk_group hint?",
        section: "9.7.9.27.1.3",
        lower: tensor_store,
    },
    Form {
        form: "cp.async.bulk.prefetch.tensor dim .L2 .global .tile|.tile::gather4|.im2col|.im2col::w|.im2col::w::128? hint?",
        section: "9.7.9.27.1.4",
        lower: tensor_prefetch,
    },
    Form {
        form: "cp.async.bulk.commit_group",
        section: "9.7.9.27.2.1",
        lower: |lw, _| done(lw, Op::BulkCommit),
    },
    Form {
        form: "st.async .weak? .cluster? .shared::cluster? .mbarrier::complete_tx::bytes vec? type",
        section: "9.7.9.12",
        lower: remote,
    },
    Form {
        form: "red.async .relaxed .cluster .shared::cluster? .mbarrier::complete_tx::bytes atomop type",
        section: "9.7.13.7",
        lower: remote,
    },
    Form {
        form: "st.async .mmio? .release .gpu|.sys .global? type",
        section: "9.7.9.12",
        lower: super::memory::store,
    },
    Form {
        form: "red.async .mmio? .release .gpu|.cluster|.sys .global? .add type",
        section: "9.7.13.7",
        lower: super::multimem::red,
    },
    Form {
        form: "tensormap.replace .tile mapfield space? .b1024 .b32|.b64",
        section: "9.7.9.28",
        lower: map_replace,
    },
    Form {
        form: "tensormap.cp_fenceproxy .global .shared::cta .tensormap::generic .release scope .sync .aligned",
        section: "9.7.13.16",
        lower: map_copy,
    },
    Form { form: "cp.async.bulk.wait_group .read?", section: "9.7.9.27.2.2", lower: bulk_wait },
    Form {
        form: "prefetch .const|.param? .tensormap",
        section: "9.7.9.15",
        lower: |lw, _| done(lw, Op::Nop),
    },
    Form {
        form: "clusterlaunchcontrol.try_cancel.async shared? .mbarrier::complete_tx::bytes .multicast::cluster::all? .b128",
        section: "9.7.13.17",
        lower: try_cancel,
    },
    Form {
        form: "clusterlaunchcontrol.query_cancel.is_canceled .pred .b128",
        section: "9.7.13.18",
        lower: is_canceled,
    },
    Form {
        form: "clusterlaunchcontrol.query_cancel.get_first_ctaid .v4? .b32 .b128",
        section: "9.7.13.18",
        lower: |lw, c| first_ctaid(lw, c, 0),
    },
    Form {
        form: "clusterlaunchcontrol.query_cancel.get_first_ctaid::x .b32 .b128",
        section: "9.7.13.18",
        lower: |lw, c| first_ctaid(lw, c, 0),
    },
    Form {
        form: "clusterlaunchcontrol.query_cancel.get_first_ctaid::y .b32 .b128",
        section: "9.7.13.18",
        lower: |lw, c| first_ctaid(lw, c, 1),
    },
    Form {
        form: "clusterlaunchcontrol.query_cancel.get_first_ctaid::z .b32 .b128",
        section: "9.7.13.18",
        lower: |lw, c| first_ctaid(lw, c, 2),
    },
];

const NO_ADDR: Addr = Addr { base: SINK, offset: 0 };

fn done(lw: &mut Lower<'_, '_>, op: Op) -> Result<(), String> {
    lw.emit(op);
    Ok(())
}

fn immediate(op: &Operand<'_>) -> Result<u32, String> {
    match op {
        Operand::Int(v) => u32::try_from(*v).map_err(|_| format!("{v} is out of range")),
        _ => Err("an immediate is needed".to_owned()),
    }
}

fn cp_async<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let policy = c.mods.get("hint").is_some();
    let n = c.operands.len() - usize::from(policy && c.operands.len() > 3);
    if !(3..=4).contains(&n) {
        return Err("expected [dst], [src], size and at most one more".to_owned());
    }
    let (dst, src) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    let bytes = immediate(c.op(2)?)?;
    if !matches!(bytes, 4 | 8 | 16) || (c.mods.has("cg") && bytes != 16) {
        return Err(format!("a copy of {bytes} bytes does not exist: 4, 8 or 16, and 16 for .cg"));
    }
    let (mut valid, mut ignore) = (SINK, None);
    if n == 4 {
        let op = c.op(3)?;
        match lw.pred(op) {
            Ok(p) if !matches!(op, Operand::Int(_)) => ignore = Some(p),
            _ => valid = lw.src(op, Ty::U32)?,
        }
    }
    lw.emit(Op::CpAsync { dst, src, bytes, valid, ignore });
    Ok(())
}

fn cp_async_wait<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let groups = immediate(c.op(0)?)?;
    done(lw, Op::CpAsyncWait { groups })
}

fn cp_async_arrive<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = super::memory::space(c.mods, symbol);
    let at = lw.addr(c.op(0)?)?;
    done(lw, Op::CpAsyncArrive { at, space, noinc: c.mods.has("noinc") })
}

/// A 16-bit multicast mask.
fn mask<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<Slot, String> {
    if !c.mods.has("multicast::cluster") {
        return Ok(SINK);
    }
    lw.src(c.op(n)?, Ty::B16)
}

/// The cache policy, which is the last operand.
fn policy<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<Slot, String> {
    match c.mods.get("hint") {
        Some(_) => lw.src(c.op(c.operands.len() - 1)?, Ty::B64),
        None => Ok(SINK),
    }
}

fn bulk_load<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(4..=6)?;
    let (dst, src) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    let bytes = lw.src(c.op(2)?, Ty::U32)?;
    let mbar = lw.addr(c.op(3)?)?;
    let mask = mask(lw, c, 4)?;
    let policy = policy(lw, c)?;
    done(lw, Op::BulkLoad { dst, src, bytes, mbar, mask, policy })
}

fn bulk_smem<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(4..=4)?;
    let (dst, src) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    let bytes = lw.src(c.op(2)?, Ty::U32)?;
    let mbar = lw.addr(c.op(3)?)?;
    let reduce = match c.mods.get("atomop") {
        Some(_) => Some((reduction(c)?, c.ty()?)),
        None => None,
    };
    if let Some((op, ty)) = reduce
        && (!ty.integer() || ty == Ty::S64 || !crate::lanes::atomic::supported(op, ty))
    {
        return Err(format!("this reduction of .{} is not supported", ty.text()));
    }
    done(lw, Op::BulkSmem { dst, src, bytes, mbar, reduce })
}

/// The operation of a bulk reduction.
fn reduction(c: &Call<'_, '_>) -> Result<Rmw, String> {
    let op = rmw(c.mods.get("atomop"))?;
    match op {
        Rmw::Exch | Rmw::Cas => Err("this is not a reduction".to_owned()),
        op => Ok(op),
    }
}

pub(super) fn bulk_store<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let n = 3 + usize::from(c.mods.get("hint").is_some()) + usize::from(c.mods.has("cp_mask"));
    c.arity(n..=n)?;
    let mask = if c.mods.has("cp_mask") { lw.src(c.op(n - 1)?, Ty::B16)? } else { SINK };
    let (dst, src) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    let bytes = lw.src(c.op(2)?, Ty::U32)?;
    let reduce = if c.mods.get("atomop").is_some() {
        let (op, ty) = (reduction(c)?, c.ty()?);
        if !crate::lanes::atomic::supported(op, ty) {
            return Err(format!("this reduction of .{} is not supported", ty.text()));
        }
        Some((op, ty))
    } else {
        None
    };
    done(lw, Op::BulkStore { dst, src, bytes, mask, reduce })
}

fn bulk_prefetch<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let at = lw.addr(c.op(0)?)?;
    done(lw, Op::Prefetch { at, space: crate::program::Space::Global })
}

fn gather(c: &Call<'_, '_>) -> bool {
    c.mods.has("tile::gather4") || c.mods.has("tile::scatter4")
}

/// `[map, {c0, c1}]`.
fn map<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<(Addr, Box<[Slot]>), String> {
    let rank: usize = c.mods.get("dim").and_then(|d| d[..1].parse().ok()).unwrap_or(0);
    let Operand::Address(items) = c.op(n)? else {
        return Err("expected [map, {coordinates}]".to_owned());
    };
    let [base, Operand::Vector(coords)] = items.as_slice() else {
        return Err("expected [map, {coordinates}]".to_owned());
    };
    let rank = if gather(c) { 5 } else { rank };
    if coords.len() != rank {
        return Err(format!("{} coordinates for {rank} dimensions", coords.len()));
    }
    let at = lw.base(base)?;
    let coords = coords.iter().map(|o| lw.src(o, Ty::S32)).collect::<Result<Vec<_>, _>>()?;
    Ok((at, coords.into()))
}

/// `.im2col::w` and `.im2col::w::128`. They decode; running one is an
/// [`FindingKind::Unsupported`](crate::FindingKind) finding.
fn wide(c: &Call<'_, '_>) -> bool {
    c.mods.has("im2col::w") || c.mods.has("im2col::w::128")
}

/// The offsets of `.im2col`, one for each dimension except the first and the last.
fn offsets<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<Option<Box<[Slot]>>, String> {
    let rank: usize = c.mods.get("dim").and_then(|d| d[..1].parse().ok()).unwrap_or(0);
    let (with, without) = (c.mods.has("im2col"), c.mods.has("im2col_no_offs"));
    let wide = wide(c);
    if (with || without || wide) && rank < 3 {
        return Err("im2col takes 3 to 5 dimensions".to_owned());
    }
    if !with && !wide {
        return Ok(without.then(Box::default));
    }
    // The wide modes have a halo and an offset along W, whatever the rank.
    let count = if wide { 2 } else { rank - 2 };
    let items = match c.op(n)? {
        Operand::Vector(items) if items.len() == count => items,
        _ => return Err(format!("this im2col mode takes a vector of {count} offsets")),
    };
    Ok(Some(items.iter().map(|o| lw.src(o, Ty::U16)).collect::<Result<_, _>>()?))
}

fn tensor_load<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=6)?;
    let smem = lw.addr(c.op(0)?)?;
    let (at, coords) = map(lw, c, 1)?;
    let mbar = lw.addr(c.op(2)?)?;
    let im2col = offsets(lw, c, 3)?;
    let mask = mask(lw, c, 3 + usize::from(im2col.is_some()))?;
    let (pair, gather) = (c.mods.has("cta_group::2"), gather(c));
    let policy = policy(lw, c)?;
    let copy = TensorCopy { smem, map: at, coords, mbar, mask, policy, pair, gather, im2col, wide: wide(c) };
    done(lw, Op::TensorLoad(Box::new(copy)))
}

fn tensor_store<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let (at, coords) = map(lw, c, 0)?;
    let smem = lw.addr(c.op(1)?)?;
    let reduce = if c.mods.get("atomop").is_some() { Some(reduction(c)?) } else { None };
    let copy = Box::new(TensorCopy {
        smem,
        map: at,
        coords,
        mbar: NO_ADDR,
        mask: SINK,
        policy: SINK,
        pair: false,
        gather: gather(c),
        im2col: offsets(lw, c, 2)?,
        wide: false,
    });
    done(lw, Op::TensorStore { copy, reduce })
}

fn tensor_prefetch<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=3)?;
    let (at, coords) = map(lw, c, 0)?;
    let copy = TensorCopy {
        smem: NO_ADDR,
        map: at,
        coords,
        mbar: NO_ADDR,
        mask: SINK,
        policy: SINK,
        pair: false,
        gather: gather(c),
        im2col: offsets(lw, c, 1)?,
        wide: wide(c),
    };
    done(lw, Op::TensorPrefetch(Box::new(copy)))
}

fn remote<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let ty = c.ty()?;
    let items = lw.elements(c.op(1)?);
    let n: usize = c.mods.get("vec").and_then(|v| v[1..].parse().ok()).unwrap_or(1);
    if items.len() != n || !matches!(ty.bits(), 32 | 64) || n > 4 {
        return Err(format!("{n} values of 32 or 64 bits are needed"));
    }
    let reduce = if c.head == "red" { Some(reduction_or_step(c, ty)?) } else { None };
    let space = if c.mods.has("shared::cluster") { Space::SharedCluster } else { Space::Generic };
    let at = lw.addr(c.op(0)?)?;
    let src = items.iter().map(|o| lw.src(o, ty)).collect::<Result<Vec<_>, _>>()?;
    let mbar = lw.addr(c.op(2)?)?;
    done(lw, Op::Remote { at, mbar, space, ty, src: src.into(), reduce })
}

/// The operation of `red.async`: those of bulk reductions on integers.
fn reduction_or_step(c: &Call<'_, '_>, ty: Ty) -> Result<Rmw, String> {
    let op = reduction(c)?;
    if !ty.integer() || !crate::lanes::atomic::supported(op, ty) {
        return Err(format!("this reduction of .{} does not exist", ty.text()));
    }
    Ok(op)
}

fn map_replace<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (field, wide, ordinal) = match c.mods.get("mapfield") {
        Some("global_address") => (MapField::GlobalAddress, true, false),
        Some("global_stride") => (MapField::GlobalStride, true, true),
        Some("rank") => (MapField::Rank, false, false),
        Some("box_dim") => (MapField::BoxDim, false, true),
        Some("global_dim") => (MapField::GlobalDim, false, true),
        Some("element_stride") => (MapField::ElementStride, false, true),
        Some("elemtype") => (MapField::Elemtype, false, false),
        Some("interleave_layout") => (MapField::Interleave, false, false),
        Some("swizzle_mode") => (MapField::Swizzle, false, false),
        Some("swizzle_atomicity") => (MapField::SwizzleAtomicity, false, false),
        _ => (MapField::Fill, false, false),
    };
    if c.mods.has("b64") != wide {
        return Err(format!("this field is a .{}", if wide { "b64" } else { "b32" }));
    }
    let n = if ordinal { 3 } else { 2 };
    c.arity(n..=n)?;
    let space = match super::memory::space(c.mods, lw.addr_symbol(c.op(0)?)) {
        s @ (Space::Generic | Space::Global | Space::SharedCta) => s,
        _ => return Err("a tensor map is in .global or .shared::cta memory".to_owned()),
    };
    let at = lw.addr(c.op(0)?)?;
    let ordinal = if ordinal { lw.src(c.op(1)?, Ty::B32)? } else { SINK };
    let value = lw.src(c.op(n - 1)?, if wide { Ty::B64 } else { Ty::B32 })?;
    done(lw, Op::MapReplace { at, space, field, ordinal, value })
}

fn map_copy<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let (dst, src) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    match c.op(2)? {
        Operand::Int(128) => done(lw, Op::MapCopy { dst, src }),
        _ => Err("a tensor map has 128 bytes".to_owned()),
    }
}

fn bulk_wait<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let groups = immediate(c.op(0)?)?;
    done(lw, Op::BulkWait { groups, read: c.mods.has("read") })
}

fn try_cancel<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let (dst, mbar) = (lw.addr(c.op(0)?)?, lw.addr(c.op(1)?)?);
    done(lw, Op::TryCancel { dst, mbar, multicast: c.mods.has("multicast::cluster::all") })
}

fn is_canceled<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let p = lw.pred_dst(c.op(0)?)?;
    let lo = lw.src(c.op(1)?, Ty::B128)?;
    done(lw, Op::QueryCanceled { p, lo })
}

fn first_ctaid<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, first: u8) -> Result<(), String> {
    c.arity(2..=2)?;
    let items = lw.elements(c.op(0)?);
    let d = items.iter().map(|o| lw.dst(o, Ty::B32)).collect::<Result<Vec<_>, _>>()?;
    let lo = lw.src(c.op(1)?, Ty::B128)?;
    done(lw, Op::QueryCtaid { d: d.into(), lo, hi: lo + 1, first })
}
