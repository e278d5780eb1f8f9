//! Loads, stores, atomics and address arithmetic (ISA sections 9.7.9, 9.7.13.5, 9.7.13.6).

use super::scope::{Symbol, describe};
use super::{Call, Form, Lower, LowerFn};
use crate::engine::descriptor::Packing;
use crate::isa::{Mods, Ty};
use crate::parse::ast::Operand;
use crate::program::{Addr, Op, Rmw, SINK, Slot, Space};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "ld .mmio? sem? scope? space? cop* evict* hint? vec? type",
        section: "9.7.9.8",
        lower: load,
    },
    Form { form: "ldu space? vec? type", section: "9.7.9.10", lower: load },
    Form {
        form: "st .mmio? sem? scope? space? cop? evict* hint? vec? type",
        section: "9.7.9.11",
        lower: store,
    },
    Form { form: "st.bulk .weak? .shared::cta?", section: "9.7.9.13", lower: fill },
    Form { form: "prefetch space? level evict*", section: "9.7.9.15", lower: prefetch },
    Form { form: "prefetch .global .L2::evict_last|.L2::evict_normal", section: "9.7.9.15", lower: prefetch },
    Form { form: "prefetchu .L1", section: "9.7.9.15", lower: prefetch },
    Form { form: "applypriority space? evict*", section: "9.7.9.16", lower: nothing },
    Form { form: "discard space? .L2", section: "9.7.9.17", lower: nothing },
    Form { form: "createpolicy.fractional evict* .b64", section: "9.7.9.18", lower: policy },
    Form { form: "createpolicy.range space? evict* .b64", section: "9.7.9.18", lower: policy },
    Form { form: "createpolicy.cvt .L2 .b64", section: "9.7.9.18", lower: policy },
    Form { form: "isspacep space", section: "9.7.9.19", lower: isspacep },
    Form { form: "cvta .to? space type", section: "9.7.9.20", lower: cvta },
    Form { form: "mapa shared? type", section: "9.7.9.23", lower: mapa },
    Form { form: "getctarank shared? type", section: "9.7.9.24", lower: getctarank },
    Form { form: "atom sem? scope? space? atomop .noftz? hint? vec? type", section: "9.7.13.5", lower: atom },
    Form { form: "red sem? scope? space? atomop .noftz? hint? vec? type", section: "9.7.13.6", lower: atom },
    Form {
        form: "ldmatrix.sync .aligned .m8n8 .x1|.x2|.x4 .trans? shared? .b16",
        section: "9.7.14.5.15",
        lower: ldmatrix,
    },
    Form {
        form: "ldmatrix.sync .aligned .m16n16 .x1|.x2 .trans shared? .b8",
        section: "9.7.14.5.15",
        lower: byte_matrix,
    },
    Form {
        form: "ldmatrix.sync .aligned .m8n16 .x1|.x2|.x4 shared? .b8x16 .b6x16_p32|.b4x16_p64",
        section: "9.7.14.5.15",
        lower: ldmatrix,
    },
    Form {
        form: "ldmatrix.sync .aligned .m16n16 .x1|.x2 .trans shared? .b8x16 .b6x16_p32|.b4x16_p64",
        section: "9.7.14.5.15",
        lower: byte_matrix,
    },
    Form {
        form: "stmatrix.sync .aligned .m16n8 .x1|.x2|.x4 .trans shared? .b8",
        section: "9.7.14.5.16",
        lower: byte_matrix,
    },
    Form {
        form: "stmatrix.sync .aligned .m8n8 .x1|.x2|.x4 .trans? shared? .b16",
        section: "9.7.14.5.16",
        lower: stmatrix,
    },
];

/// The state space of a memory instruction. Parameters of device functions are in local memory.
pub(super) fn space(mods: &Mods, symbol: Option<Symbol>) -> Space {
    match mods.get("space").or_else(|| mods.get("shared")).or_else(|| mods.get(".global")) {
        Some("global") => Space::Global,
        Some("shared" | "shared::cta") => Space::SharedCta,
        Some("shared::cluster") => Space::SharedCluster,
        Some("local") => Space::Local,
        Some("const") => Space::Const,
        Some("param" | "param::entry" | "param::func") => match symbol {
            Some(Symbol::Local(_)) => Space::Local,
            _ => Space::Param,
        },
        _ => match symbol {
            Some(Symbol::Shared(_) | Symbol::Dynamic) => Space::SharedCta,
            Some(Symbol::Local(_)) => Space::Local,
            Some(Symbol::Param(_)) => Space::Param,
            _ => Space::Generic,
        },
    }
}

fn count_of(c: &Call<'_, '_>) -> usize {
    match c.mods.get("vec") {
        Some("v2") => 2,
        Some("v4") => 4,
        Some("v8") => 8,
        _ => 1,
    }
}

fn check_count(found: usize, n: usize) -> Result<(), String> {
    if found == n { Ok(()) } else { Err(format!("{n} elements are needed, found {found}")) }
}

fn load<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(2..=3)?;
    let symbol = lw.addr_symbol(c.op(1)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(1)?)?;
    let items = lw.elements(c.op(0)?);
    check_count(items.len(), count_of(c))?;
    let mut dst = Vec::with_capacity(items.len());
    let mut reg_bits = ty.bits();
    for item in items {
        match lw.dst_loose(item, ty, true)? {
            Some(r) => {
                reg_bits = r.ty.bits();
                dst.push(r.slot);
                if ty == Ty::B128 {
                    dst.push(r.slot + 1);
                }
            }
            None => {
                dst.push(SINK);
                if ty == Ty::B128 {
                    dst.push(SINK);
                }
            }
        }
    }
    let elem = ty.bytes().min(8);
    lw.emit(Op::Load { space, at, elem, dst: dst.into(), signed: ty.signed(), reg_bits });
    Ok(())
}

pub(super) fn store<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(2..=3)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    if matches!(space, Space::Param | Space::Const) {
        return Err("this space cannot be stored to".to_owned());
    }
    let at = lw.addr(c.op(0)?)?;
    let items = lw.elements(c.op(1)?);
    check_count(items.len(), count_of(c))?;
    let mut src = Vec::with_capacity(items.len());
    for item in items {
        let s = lw.src_loose(item, ty)?;
        src.push(s);
        if ty == Ty::B128 {
            src.push(s + 1);
        }
    }
    lw.emit(Op::Store { space, at, elem: ty.bytes().min(8), src: src.into() });
    Ok(())
}

fn fill<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let dst = lw.addr(c.op(0)?)?;
    let bytes = match lw.src(c.op(1)?, Ty::U64) {
        Ok(s) => s,
        Err(_) => lw.src(c.op(1)?, Ty::U32)?,
    };
    lw.emit(Op::BulkFill { dst, bytes });
    Ok(())
}

fn prefetch<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let space = space(c.mods, None);
    let at = lw.addr(c.op(0)?)?;
    lw.emit(Op::Prefetch { at, space });
    Ok(())
}

fn nothing<'t>(lw: &mut Lower<'_, 't>, _c: &Call<'_, 't>) -> Result<(), String> {
    lw.emit(Op::Nop);
    Ok(())
}

fn policy<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let d = lw.dst(c.op(0)?, Ty::B64)?;
    if !c.opcode.contains(".fractional") {
        // Opaque, and of no effect on values; any constant will do.
        let a = lw.constant(0x1000_0000_0000_0000);
        lw.emit(Op::Mov { d, a });
        return Ok(());
    }
    // As an H200 has it: the priorities from bit 56 on, below them the sixteenths that are of the first, less one.
    let mut priorities = c.opcode.split(".L2::").skip(1).map(|p| p.trim_end_matches(".b64"));
    let first: u64 = match priorities.next() {
        Some("evict_first") => 2,
        Some("evict_last") => 4,
        Some("evict_normal") => 6,
        _ => 0,
    };
    let code = 0x10 | first | u64::from(priorities.next() == Some("evict_first"));
    let fraction = match c.operands.len() {
        1 => lw.constant(u64::from(1f32.to_bits())),
        _ => lw.src(c.op(1)?, Ty::F32)?,
    };
    let f = crate::lanes::Pure::new(move |fraction, _, _| {
        let sixteenths = (f32::from_bits(fraction as u32) * 16.0).ceil().clamp(1.0, 16.0) as u64;
        code << 56 | (sixteenths - 1) << 52
    });
    lw.emit(Op::Pure { f, d, s: [fraction; 3] });
    Ok(())
}

fn isspacep<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let p = lw.pred_dst(c.op(0)?)?;
    let a = lw.src(c.op(1)?, Ty::U64)?;
    lw.emit(Op::IsSpace { p, a, space: space(c.mods, None) });
    Ok(())
}

fn cvta<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let ty = c.ty()?;
    if ty.bits() != 64 {
        return Err("addresses are 64 bits wide".to_owned());
    }
    let symbol = match c.op(1)? {
        Operand::Name(n) | Operand::Offset(n, _) if lw.find_register(n).is_none() => lw.find_symbol(n),
        _ => None,
    };
    let space = space(c.mods, symbol);
    let d = lw.dst(c.op(0)?, ty)?;
    let a = lw.src(c.op(1)?, ty)?;
    lw.emit(if c.mods.has("to") { Op::FromGeneric { d, a, space } } else { Op::ToGeneric { d, a, space } });
    Ok(())
}

fn mapa<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let ty = c.ty()?;
    let d = lw.dst(c.op(0)?, ty)?;
    let a = lw.src_loose(c.op(1)?, ty)?;
    let rank = lw.src(c.op(2)?, Ty::U32)?;
    lw.emit(Op::Mapa { d, a, rank, generic: c.mods.get("shared").is_none() });
    Ok(())
}

fn getctarank<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let d = lw.dst(c.op(0)?, Ty::U32)?;
    let a = lw.src_loose(c.op(1)?, c.ty()?)?;
    lw.emit(Op::GetCtaRank { d, a });
    Ok(())
}

/// The operation of `atom`, `red` and the bulk reductions.
pub(super) fn rmw(text: Option<&str>) -> Result<Rmw, String> {
    Ok(match text {
        Some("and") => Rmw::And,
        Some("or") => Rmw::Or,
        Some("xor") => Rmw::Xor,
        Some("exch") => Rmw::Exch,
        Some("cas") => Rmw::Cas,
        Some("add") => Rmw::Add,
        Some("inc") => Rmw::Inc,
        Some("dec") => Rmw::Dec,
        Some("min") => Rmw::Min,
        Some("max") => Rmw::Max,
        _ => return Err("the operation is missing".to_owned()),
    })
}

pub(super) fn atom<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    let op = rmw(c.mods.get("atomop"))?;
    if ty == Ty::B128 && matches!(op, Rmw::Exch | Rmw::Cas) && c.head == "atom" {
        return wide_atom(lw, c, op == Rmw::Cas);
    }
    if ty == Ty::B128 || !crate::lanes::atomic::supported(op, ty) {
        return Err(format!("this operation on .{} is not supported", ty.text()));
    }
    let n = count_of(c);
    let (d, ops): (Vec<Slot>, &[Operand<'t>]) = if c.head == "atom" {
        let items = lw.elements(c.op(0)?);
        check_count(items.len(), n)?;
        (items.iter().map(|o| lw.dst(o, ty)).collect::<Result<_, _>>()?, &c.operands[1..])
    } else {
        (vec![SINK; n], c.operands)
    };
    let (Some(a), Some(b)) = (ops.first(), ops.get(1)) else {
        return Err("operands are missing".to_owned());
    };
    let symbol = lw.addr_symbol(a);
    let space = space(c.mods, symbol);
    if !matches!(space, Space::Generic | Space::Global | Space::SharedCta | Space::SharedCluster) {
        return Err(format!("{} is not in a space with atomics", describe(a)));
    }
    let at = lw.addr(a)?;
    let items = lw.elements(b);
    check_count(items.len(), n)?;
    let b: Vec<Slot> = items.iter().map(|o| lw.src(o, ty)).collect::<Result<_, _>>()?;
    let e = match (op, ops.get(2)) {
        (Rmw::Cas, Some(o)) => lw.src(o, ty)?,
        (Rmw::Cas, None) => return Err("cas needs two values".to_owned()),
        _ => SINK,
    };
    lw.emit(Op::Atom { space, at, op, ty, d: d.into(), b: b.into(), c: e });
    Ok(())
}

/// `atom.exch.b128` and `atom.cas.b128`.
fn wide_atom<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, cas: bool) -> Result<(), String> {
    let n = if cas { 4 } else { 3 };
    c.arity(n..=n + usize::from(!cas && c.mods.get("hint").is_some()))?;
    let space = space(c.mods, lw.addr_symbol(c.op(1)?));
    let at = lw.addr(c.op(1)?)?;
    let d = lw.dst(c.op(0)?, Ty::B128)?;
    let d = if d == SINK { [SINK; 2] } else { [d, d + 1] };
    let b = lw.src(c.op(2)?, Ty::B128)?;
    let swap = if cas { Some(lw.src(c.op(3)?, Ty::B128)?) } else { None };
    lw.emit(Op::WideAtom { space, at, d, b: [b, b + 1], swap: swap.map(|s| [s, s + 1]) });
    Ok(())
}

fn matrices(c: &Call<'_, '_>) -> usize {
    if c.mods.has("x4") {
        4
    } else if c.mods.has("x2") {
        2
    } else {
        1
    }
}

fn matrix_address<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<(Space, Addr), String> {
    let symbol = lw.addr_symbol(c.op(n)?);
    Ok((space(c.mods, symbol), lw.addr(c.op(n)?)?))
}

/// How a matrix load widens its elements.
fn slots(c: &Call<'_, '_>) -> Packing {
    match () {
        () if c.mods.has("b6x16_p32") => Packing::Slot6,
        () if c.mods.has("b4x16_p64") => Packing::Slot4,
        () => Packing::Bits8,
    }
}

fn ldmatrix<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let (space, at) = matrix_address(lw, c, 1)?;
    let items = lw.elements(c.op(0)?);
    check_count(items.len(), matrices(c))?;
    let d: Vec<Slot> = items.iter().map(|o| lw.dst(o, Ty::B32)).collect::<Result<_, _>>()?;
    let slots = slots(c);
    lw.emit(Op::LdMatrix { space, at, trans: c.mods.has("trans"), slots, dst: d.into() });
    Ok(())
}

fn stmatrix<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let (space, at) = matrix_address(lw, c, 0)?;
    let items = lw.elements(c.op(1)?);
    check_count(items.len(), matrices(c))?;
    let s: Vec<Slot> = items.iter().map(|o| lw.src(o, Ty::B32)).collect::<Result<_, _>>()?;
    lw.emit(Op::StMatrix { space, at, trans: c.mods.has("trans"), src: s.into() });
    Ok(())
}

fn byte_matrix<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let load = c.head == "ldmatrix";
    let (space, at) = matrix_address(lw, c, usize::from(load))?;
    let items = lw.elements(c.op(usize::from(!load))?);
    check_count(items.len(), matrices(c) * if load { 2 } else { 1 })?;
    let of = |lw: &mut Lower<'_, 't>, o| if load { lw.dst(o, Ty::B32) } else { lw.src(o, Ty::B32) };
    let registers: Vec<Slot> = items.iter().map(|o| of(lw, o)).collect::<Result<_, _>>()?;
    let slots = slots(c);
    lw.emit(Op::ByteMatrix { load, space, at, slots, registers: registers.into() });
    Ok(())
}
