//! Comparison and selection (ISA sections 9.7.6 and 9.7.7).

use super::alu::unsupported;
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::lanes::{Cmp, float, int};
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "testp .finite|.infinite|.number|.notanumber|.normal|.subnormal type",
        section: "9.7.3.1",
        lower: testp,
    },
    Form { form: "setp cmp bool? ftz? type", section: "9.7.6.2, 9.7.7.2", lower: setp },
    Form { form: "set cmp bool? ftz? type type", section: "9.7.6.1, 9.7.7.1", lower: set },
    Form { form: "selp type", section: "9.7.6.3", lower: selp },
    Form { form: "slct ftz? type type", section: "9.7.6.4", lower: slct },
];

fn testp<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    let op = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
        .into_iter()
        .find(|m| c.mods.has(m));
    let Some(f) = op.and_then(|op| float::testp(op, ty)) else {
        return unsupported(ty);
    };
    c.arity(2..=2)?;
    let p = lw.pred_dst(c.op(0)?)?;
    let a = lw.src(c.op(1)?, ty)?;
    lw.emit(Op::Setp { f, p, q: SINK, a, b: a, combine: None });
    Ok(())
}

fn comparison(c: &Call<'_, '_>, ty: Ty) -> Result<Cmp, String> {
    let op = c.mods.get("cmp").unwrap_or("");
    let f = if ty.float() { float::compare(op, ty, c.mods.has("ftz")) } else { int::compare(op, ty) };
    f.ok_or_else(|| format!("comparison .{op} of .{} is not supported", ty.text()))
}

/// Truth table (bit `2a + b`) of a `.and`, `.or`, `.xor` modifier.
fn combination<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<Option<(u8, Pred)>, String> {
    let table = match c.mods.get("bool") {
        None => return Ok(None),
        Some("and") => 0b1000,
        Some("or") => 0b1110,
        Some(_) => 0b0110,
    };
    Ok(Some((table, lw.pred(c.op(3)?)?)))
}

fn setp<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(3..=4)?;
    let (p, q) = match c.op(0)? {
        Operand::Pair(p, q) => (lw.pred_dst(p)?, lw.pred_dst(q)?),
        p => (lw.pred_dst(p)?, SINK),
    };
    let scalar = match ty {
        Ty::F16x2 => Ty::F16,
        Ty::Bf16x2 => Ty::Bf16,
        ty => ty,
    };
    let f = comparison(c, scalar)?;
    let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?);
    let combine = combination(lw, c)?;
    lw.emit(if scalar == ty {
        Op::Setp { f, p, q, a, b, combine }
    } else {
        Op::Setp2 { f, p, q, a, b, combine }
    });
    Ok(())
}

fn set<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(dty), Some(sty)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return unsupported(c.ty()?);
    };
    c.arity(3..=4)?;
    let scalar = match sty {
        Ty::F16x2 => Some(Ty::F16),
        Ty::Bf16x2 => Some(Ty::Bf16),
        _ => None,
    };
    if let Some(scalar) = scalar {
        return set_halves(lw, c, dty, scalar);
    }
    let yes = match dty {
        Ty::F32 => 0x3f80_0000,
        Ty::U32 | Ty::S32 => 0xffff_ffff,
        Ty::F16 => 0x3c00,
        Ty::Bf16 => 0x3f80,
        Ty::U16 | Ty::S16 => 0xffff,
        _ => return unsupported(dty),
    };
    let f = comparison(c, sty)?;
    let d = lw.dst(c.op(0)?, dty)?;
    let (a, b) = (lw.src(c.op(1)?, sty)?, lw.src(c.op(2)?, sty)?);
    let combine = combination(lw, c)?;
    lw.emit(Op::Set { f, d, a, b, combine, yes });
    Ok(())
}

/// `set` on packed halves: each half of the destination gets one comparison's result.
fn set_halves<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, dty: Ty, ty: Ty) -> Result<(), String> {
    let yes = match dty {
        Ty::F16x2 if ty == Ty::F16 => 0x3c00,
        Ty::Bf16x2 if ty == Ty::Bf16 => 0x3f80,
        Ty::U32 | Ty::S32 => 0xffff,
        _ => return unsupported(dty),
    };
    let f = comparison(c, ty)?;
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    let (a, b) = (lw.src(c.op(1)?, Ty::B32)?, lw.src(c.op(2)?, Ty::B32)?);
    let combine = combination(lw, c)?;
    let low = crate::lanes::l1!(|v| v & 0xffff);
    let high = crate::lanes::l1!(|v| v >> 16);
    let mut halves = [0; 2];
    for (half, part) in halves.iter_mut().zip([low, high]) {
        let [x, y, t] = [lw.temporary(), lw.temporary(), lw.temporary()];
        lw.emit(Op::Alu1 { f: part, d: x, a });
        lw.emit(Op::Alu1 { f: part, d: y, a: b });
        lw.emit(Op::Set { f, d: t, a: x, b: y, combine, yes });
        *half = t;
    }
    lw.emit(Op::Pack { d: [d].into(), s: halves.into(), bits: 16 });
    Ok(())
}

fn selp<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(4..=4)?;
    let d = lw.dst(c.op(0)?, ty)?;
    let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?);
    let p = lw.pred(c.op(3)?)?;
    lw.emit(Op::Selp { d, a, b, p });
    Ok(())
}

fn slct<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(ty), Some(cty)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return unsupported(c.ty()?);
    };
    let f = match cty {
        Ty::S32 => crate::lanes::l3!(|a, b, e| if e as i32 >= 0 { a } else { b }),
        // NaN selects b; -0 counts as zero.
        Ty::F32 if c.mods.has("ftz") => {
            crate::lanes::l3!(|a, b, e| if float::f32_of(e) > -f32::MIN_POSITIVE { a } else { b })
        }
        Ty::F32 => crate::lanes::l3!(|a, b, e| if float::f32_of(e) >= 0.0 { a } else { b }),
        _ => return unsupported(cty),
    };
    c.arity(4..=4)?;
    let d = lw.dst(c.op(0)?, ty)?;
    let (a, b, e) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?, lw.src(c.op(3)?, cty)?);
    lw.emit(Op::Alu3 { f, d, a, b, c: e });
    Ok(())
}
