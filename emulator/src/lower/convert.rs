//! `cvt`, `mov`, and the packing of registers.

use super::alu::rounding;
use super::{Call, Form, Lower, LowerFn};
use crate::engine::format::Rounding;
use crate::isa::Ty;
use crate::lanes::convert::{Convert, element};
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "cvt rnd? irnd? ftz? sat? satfinite? .relu? type type", section: "9.7.9.21", lower: cvt },
    Form { form: "mov type", section: "9.7.9.3", lower: mov },
];

/// A conversion without modifiers.
pub(super) fn plain(dst: Ty, src: Ty, reg_bits: u32) -> Convert {
    Convert {
        dst,
        src,
        reg_bits,
        rounding: Rounding::NearestEven,
        integral: false,
        ftz: false,
        sat: false,
        satfinite: false,
        relu: false,
    }
}

fn cvt<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(dty), Some(sty)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return Err("two types are needed".to_owned());
    };
    let supported = |t: Ty| (t.integer() || t.float() || element(t).is_some()) && t != Ty::F32x2;
    if !supported(dty) || !supported(sty) || c.mods.get("rnd") == Some("rs") {
        return Err(format!("conversion .{}.{} is not supported", dty.text(), sty.text()));
    }
    let d = match lw.dst_loose(c.op(0)?, dty, true)? {
        Some(r) => r,
        None => return Err("the destination cannot be `_`".to_owned()),
    };
    let irnd = c.mods.get("irnd");
    let how = Convert {
        rounding: rounding(c.mods.get("rnd").or(irnd))?,
        integral: irnd.is_some(),
        ftz: c.mods.has("ftz"),
        sat: c.mods.has("sat"),
        satfinite: c.mods.has("satfinite"),
        relu: c.mods.has("relu"),
        ..plain(dty, sty, d.ty.bits())
    };
    let packed_dst = dty.text().ends_with("x2");
    let packed_src = sty.text().ends_with("x2");
    let how = Box::new(how);
    if packed_dst && !packed_src {
        c.arity(3..=3)?;
        let (a, b) = (lw.src_loose(c.op(1)?, sty)?, lw.src_loose(c.op(2)?, sty)?);
        lw.emit(Op::Cvt { how, d: d.slot, a, b, packed: true });
        return Ok(());
    }
    if packed_dst != packed_src {
        return Err(format!("conversion .{}.{} is not supported", dty.text(), sty.text()));
    }
    c.arity(2..=2)?;
    let a = lw.src_loose(c.op(1)?, sty)?;
    lw.emit(Op::Cvt { how, d: d.slot, a, b: SINK, packed: packed_dst });
    Ok(())
}

fn mov<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(2..=2)?;
    if ty == Ty::Pred {
        let d = lw.pred_dst(c.op(0)?)?;
        let a = lw.pred(c.op(1)?)?;
        lw.emit(Op::Truth { d, a, b: Pred::ALWAYS, table: 0b1100 });
        return Ok(());
    }
    match (c.op(0)?, c.op(1)?) {
        (Operand::Vector(d), s) => {
            let n = d.len() as u32;
            let part = part_type(ty, n)?;
            let d = d.iter().map(|o| lw.dst(o, part)).collect::<Result<Vec<_>, _>>()?;
            let s = source_words(lw, s, ty)?;
            lw.emit(Op::Unpack { d: d.into(), s: s.into(), bits: part.bits() });
        }
        (d, Operand::Vector(s)) => {
            let part = part_type(ty, s.len() as u32)?;
            let s = s.iter().map(|o| lw.src(o, part)).collect::<Result<Vec<_>, _>>()?;
            let d = lw.dst(d, ty)?;
            let d = if ty == Ty::B128 { vec![d, if d == SINK { SINK } else { d + 1 }] } else { vec![d] };
            lw.emit(Op::Pack { d: d.into(), s: s.into(), bits: part.bits() });
        }
        (d, s) if ty == Ty::B128 => {
            let d = lw.dst(d, ty)?;
            let s = source_words(lw, s, ty)?;
            lw.emit(Op::Mov { d, a: s[0] });
            lw.emit(Op::Mov { d: d.saturating_add(1), a: s[1] });
        }
        (d, s) => {
            let d = lw.dst(d, ty)?;
            let a = lw.src(s, ty)?;
            lw.emit(Op::Mov { d, a });
        }
    }
    Ok(())
}

fn part_type(ty: Ty, n: u32) -> Result<Ty, String> {
    match ty.bits().checked_div(n) {
        Some(8) => Ok(Ty::B8),
        Some(16) => Ok(Ty::B16),
        Some(32) => Ok(Ty::B32),
        Some(64) => Ok(Ty::B64),
        _ => Err(format!("{n} elements do not make a .{}", ty.text())),
    }
}

fn source_words<'t>(lw: &mut Lower<'_, 't>, s: &Operand<'t>, ty: Ty) -> Result<Vec<u32>, String> {
    let a = lw.src(s, ty)?;
    Ok(if ty == Ty::B128 { vec![a, a + 1] } else { vec![a] })
}
