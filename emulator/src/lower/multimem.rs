//! `multimem` (ISA sections 9.7.9.14, 9.7.9.26, 9.7.9.27): one device is modelled, so that a multimem
//! address leads to one place. A load that reduces returns what is there, whatever the operation and
//! the precision of its sum; stores and reductions are those of plain memory.

use super::asynchronous::bulk_store;
use super::memory::{atom, rmw, space};
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::program::{Op, Rmw, SINK, Slot, Space};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "multimem.ld_reduce sem? scope? .global? atomop .acc::f32|.acc::f16? vec? type",
        section: "9.7.9.14",
        lower: load,
    },
    Form {
        form: "multimem.ld_reduce sem? scope? .global? atomop .acc::f16? vec? small_float",
        section: "9.7.9.14",
        lower: load,
    },
    Form { form: "multimem.st sem? scope? .global? vec? type", section: "9.7.9.14", lower: store },
    Form { form: "multimem.st sem? scope? .global? vec? small_float", section: "9.7.9.14", lower: store },
    Form { form: "multimem.red sem? scope? .global? atomop vec? type", section: "9.7.9.14", lower: red },
    Form {
        form: "multimem.cp.async.bulk .global .shared::cta .bulk_group .cp_mask?",
        section: "9.7.9.26",
        lower: bulk_store,
    },
    Form {
        form: "multimem.cp.reduce.async.bulk .global .shared::cta .bulk_group atomop .noftz? type",
        section: "9.7.9.27",
        lower: bulk_store,
    },
];

/// The type of an element, by its width.
fn width(c: &Call<'_, '_>) -> Result<Ty, String> {
    let bits = match c.mods.get("small_float") {
        Some("e4m3" | "e5m2") => 8,
        Some(_) => 16,
        None => c.ty()?.bits(),
    };
    Ok(match bits {
        8 => Ty::B8,
        16 => Ty::B16,
        32 => Ty::B32,
        _ => Ty::B64,
    })
}

fn count(c: &Call<'_, '_>, found: usize, ty: Ty) -> Result<(), String> {
    let n: usize = c.mods.get("vec").and_then(|v| v[1..].parse().ok()).unwrap_or(1);
    if found != n || n as u32 * ty.bits() > 128 {
        return Err(format!("{n} elements of .{} are needed, 128 bits at most, found {found}", ty.text()));
    }
    Ok(())
}

fn load<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let ty = width(c)?;
    if matches!(rmw(c.mods.get("atomop"))?, Rmw::Exch | Rmw::Cas | Rmw::Inc | Rmw::Dec) {
        return Err("this is not a reduction of multimem.ld_reduce".to_owned());
    }
    let space = global(lw, c, 1)?;
    let at = lw.addr(c.op(1)?)?;
    let items = lw.elements(c.op(0)?);
    count(c, items.len(), ty)?;
    let dst = items
        .iter()
        .map(|o| lw.dst_loose(o, ty, true).map(|r| r.map_or(SINK, |r| r.slot)))
        .collect::<Result<Vec<Slot>, _>>()?;
    lw.emit(Op::Load { space, at, elem: ty.bytes(), dst: dst.into(), signed: false, reg_bits: ty.bits() });
    Ok(())
}

fn global<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<Space, String> {
    let symbol = lw.addr_symbol(c.op(n)?);
    Ok(if c.mods.has("global") { Space::Global } else { space(c.mods, symbol) })
}

fn store<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let ty = width(c)?;
    let space = global(lw, c, 0)?;
    let at = lw.addr(c.op(0)?)?;
    let items = lw.elements(c.op(1)?);
    count(c, items.len(), ty)?;
    let src = items.iter().map(|o| lw.src_loose(o, ty)).collect::<Result<Vec<Slot>, _>>()?;
    lw.emit(Op::Store { space, at, elem: ty.bytes(), src: src.into() });
    Ok(())
}

/// `multimem.red`, and `red.async` in global memory, lowered as `red`.
pub(super) fn red<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let mut mods = c.mods.clone();
    if mods.get("atomop").is_none() {
        mods.add("atomop", "add");
    }
    if mods.has("global") {
        mods.add("space", "global");
    }
    atom(lw, &Call { head: "red", opcode: c.opcode, mods: &mods, operands: c.operands })
}
