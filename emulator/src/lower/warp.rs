//! Operations across the lanes of a warp (ISA sections 9.7.9.6 and 9.7.13.9 to 9.7.13.14).

use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::lanes::{float, int};
use crate::parse::ast::Operand;
use crate::program::{Op, SINK, Shuffle, Vote};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "vote.sync .all|.any|.uni|.ballot type", section: "9.7.13.9", lower: vote },
    Form { form: "match .any|.all .sync type", section: "9.7.13.10", lower: matching },
    Form { form: "activemask type", section: "9.7.13.11", lower: activemask },
    Form {
        form: "redux.sync .add|.min|.max|.and|.or|.xor .abs? nan? type",
        section: "9.7.13.12",
        lower: redux,
    },
    Form { form: "elect.sync", section: "9.7.13.14", lower: elect },
    Form { form: "shfl.sync .up|.down|.bfly|.idx type", section: "9.7.9.6", lower: shfl },
];

fn vote<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let kind = match () {
        () if c.mods.has("all") => Vote::All,
        () if c.mods.has("any") => Vote::Any,
        () if c.mods.has("uni") => Vote::Uni,
        () => Vote::Ballot,
    };
    let (d, p) = match kind {
        Vote::Ballot => (lw.dst(c.op(0)?, Ty::B32)?, SINK),
        _ => (SINK, lw.pred_dst(c.op(0)?)?),
    };
    let src = lw.pred(c.op(1)?)?;
    let mask = lw.src(c.op(2)?, Ty::B32)?;
    lw.emit(Op::Vote { kind, d, p, src, mask });
    Ok(())
}

fn pair<'t>(lw: &mut Lower<'_, 't>, op: &Operand<'t>, ty: Ty) -> Result<(u32, u32), String> {
    match op {
        Operand::Pair(d, p) => Ok((lw.dst(d, ty)?, lw.pred_dst(p)?)),
        d => Ok((lw.dst(d, ty)?, SINK)),
    }
}

fn matching<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let (d, p) = pair(lw, c.op(0)?, Ty::B32)?;
    let a = lw.src(c.op(1)?, c.ty()?)?;
    let mask = lw.src(c.op(2)?, Ty::B32)?;
    lw.emit(Op::Match { all: c.mods.has("all"), d, p, a, mask });
    Ok(())
}

fn activemask<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    lw.emit(Op::Activemask { d });
    Ok(())
}

fn redux<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=3)?;
    let ty = c.ty()?;
    let op = ["add", "min", "max", "and", "or", "xor"].into_iter().find(|o| c.mods.has(o)).unwrap_or("add");
    let f = if ty == Ty::F32 {
        let mode = float::Mode {
            rounding: crate::engine::format::Rounding::NearestEven,
            ftz: false,
            sat: false,
            nan: c.mods.has("NaN"),
            relu: false,
        };
        float::two(op, ty, mode).filter(|_| matches!(op, "min" | "max"))
    } else {
        int::two(op, ty)
    };
    let Some(f) = f else {
        return Err(format!(".{op} of .{} is not supported", ty.text()));
    };
    let d = lw.dst(c.op(0)?, ty)?;
    let mut a = lw.src(c.op(1)?, ty)?;
    if c.mods.has("abs") {
        if ty != Ty::F32 {
            return Err(".abs exists for .f32 only".to_owned());
        }
        let t = lw.temporary();
        lw.emit(Op::Alu1 { f: crate::lanes::l1!(|v| v & 0x7fff_ffff), d: t, a });
        a = t;
    }
    let mask = lw.src(c.op(2)?, Ty::B32)?;
    lw.emit(Op::Redux { f, d, a, mask });
    Ok(())
}

fn elect<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let (d, p) = match c.op(0)? {
        Operand::Pair(d, p) => (lw.dst(d, Ty::B32)?, lw.pred_dst(p)?),
        _ => return Err("the destination is a pair `r|p`".to_owned()),
    };
    let mask = lw.src(c.op(1)?, Ty::B32)?;
    lw.emit(Op::Elect { d, p, mask });
    Ok(())
}

fn shfl<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(5..=5)?;
    let kind = match () {
        () if c.mods.has("up") => Shuffle::Up,
        () if c.mods.has("down") => Shuffle::Down,
        () if c.mods.has("bfly") => Shuffle::Bfly,
        () => Shuffle::Idx,
    };
    let (d, p) = pair(lw, c.op(0)?, Ty::B32)?;
    let a = lw.src(c.op(1)?, Ty::B32)?;
    let b = lw.src(c.op(2)?, Ty::B32)?;
    let e = lw.src(c.op(3)?, Ty::B32)?;
    let mask = lw.src(c.op(4)?, Ty::B32)?;
    lw.emit(Op::Shfl { kind, d, p, a, b, c: e, mask });
    Ok(())
}
