//! Branches, calls, thread barriers and other control flow (ISA sections 9.7.12, 9.7.13, 9.7.19).

use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "bra .uni?", section: "9.7.12.3", lower: bra },
    Form { form: "brx.idx .uni?", section: "9.7.12.4", lower: brx },
    Form { form: "call .uni?", section: "9.7.12.5", lower: call },
    Form { form: "ret .uni?", section: "9.7.12.6", lower: |lw, _| done(lw, Op::Ret) },
    Form { form: "exit", section: "9.7.12.7", lower: |lw, _| done(lw, Op::Exit) },
    Form {
        form: "trap",
        section: "9.7.19.4",
        lower: |lw, _| done(lw, Op::Trap { what: "the kernel executed trap" }),
    },
    Form { form: "brkpt", section: "9.7.19.1", lower: |lw, _| done(lw, Op::Nop) },
    Form { form: "pmevent .mask?", section: "9.7.19.3", lower: |lw, _| done(lw, Op::Nop) },
    Form { form: "nanosleep type", section: "9.7.19.2", lower: |lw, _| done(lw, Op::Nop) },
    Form { form: "setmaxnreg .inc|.dec .sync .aligned type", section: "9.7.19.5", lower: setmaxnreg },
    Form {
        form: "griddepcontrol .launch_dependents|.wait",
        section: "9.7.13.13",
        lower: |lw, _| done(lw, Op::Nop),
    },
    Form {
        form: "bar .cta? .sync|.arrive|.red .aligned? .popc|.and|.or? type?",
        section: "9.7.13.1",
        lower: bar,
    },
    Form {
        form: "barrier .cta? .sync|.arrive|.red .aligned? .popc|.and|.or? type?",
        section: "9.7.13.1",
        lower: bar,
    },
    Form { form: "bar.warp.sync", section: "9.7.13.2", lower: bar_warp },
    Form {
        form: "barrier.cluster.arrive .release|.relaxed? .aligned?",
        section: "9.7.13.3",
        lower: |lw, c| done(lw, Op::ClusterArrive { aligned: c.mods.has("aligned") }),
    },
    Form {
        form: "barrier.cluster.wait .acquire? .aligned?",
        section: "9.7.13.3",
        lower: |lw, c| done(lw, Op::ClusterWait { aligned: c.mods.has("aligned") }),
    },
];

fn done(lw: &mut Lower<'_, '_>, op: Op) -> Result<(), String> {
    lw.emit(op);
    Ok(())
}

fn setmaxnreg(lw: &mut Lower<'_, '_>, c: &Call<'_, '_>) -> Result<(), String> {
    c.arity(1..=1)?;
    let count = match c.op(0)? {
        Operand::Int(count) => u32::try_from(*count).ok(),
        _ => return Err("setmaxnreg takes a constant count of registers".to_owned()),
    };
    let Some(count) = count.filter(|n| (24..=256).contains(n) && n.is_multiple_of(8)) else {
        return Err("setmaxnreg takes a multiple of 8 registers from 24 to 256".to_owned());
    };
    done(lw, Op::SetMaxNreg { count, increase: c.mods.has("inc") })
}

fn label<'t>(op: &Operand<'t>) -> Result<&'t str, String> {
    match op {
        Operand::Name(n) => Ok(n),
        _ => Err("a branch needs a label".to_owned()),
    }
}

fn bra<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let name = label(c.op(0)?)?;
    lw.fixups.push((lw.code.len(), 0, lw.scope_id(), name, lw.line));
    lw.emit(Op::Bra { target: 0 });
    Ok(())
}

fn brx<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let index = lw.src(c.op(0)?, Ty::U32)?;
    let name = label(c.op(1)?)?;
    let Some(targets) = lw.targets(name) else {
        return Err(format!("there is no .branchtargets list `{name}`"));
    };
    for (i, t) in targets.iter().enumerate() {
        lw.fixups.push((lw.code.len(), i, lw.scope_id(), t, lw.line));
    }
    lw.emit(Op::Brx { index, targets: vec![0; targets.len()].into() });
    Ok(())
}

/// `call (ret), name, (args);`. `module` completes it, because it knows the functions.
fn call<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let empty = Operand::List(Vec::new());
    let (ret, rest) = match c.operands {
        [r @ Operand::List(_), rest @ ..] => (r, rest),
        rest => (&empty, rest),
    };
    let (Some(Operand::Name(name)), args) = (rest.first(), rest.get(1).unwrap_or(&empty)) else {
        return Err("expected the name of a function".to_owned());
    };
    if lw.find_register(name).is_some() {
        // Without parameters the list of targets follows the pointer.
        let list = match (rest.get(1), rest.get(2)) {
            (_, Some(Operand::Name(list))) | (Some(Operand::Name(list)), None) => list,
            _ => return Err("a call through a pointer needs its targets or prototype".to_owned()),
        };
        let args = if rest.len() > 2 { args } else { &empty };
        return super::indirect::call(lw, (&rest[0], list), ret, args);
    }
    lw.call(name, ret, args)
}

fn bar<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    // `bar` always behaves as `.aligned`; `barrier` only when it says so.
    let aligned = c.head == "bar" || c.mods.has("aligned");
    let kind = match () {
        () if c.mods.has("arrive") => crate::program::BarKind::Arrive,
        () if c.mods.has("popc") => crate::program::BarKind::Popc,
        () if c.mods.has("and") => crate::program::BarKind::And,
        () if c.mods.has("or") => crate::program::BarKind::Or,
        () => crate::program::BarKind::Sync,
    };
    use crate::program::BarKind;
    let (mut d, mut dp, mut p) = (SINK, SINK, Pred::ALWAYS);
    let mut ops = c.operands;
    if matches!(kind, BarKind::Popc | BarKind::And | BarKind::Or) {
        let (Some(first), Some(last)) = (ops.first(), ops.last()) else {
            return Err("operands are missing".to_owned());
        };
        if kind == BarKind::Popc {
            d = lw.dst(first, Ty::U32)?;
        } else {
            dp = lw.pred_dst(first)?;
        }
        p = lw.pred(last)?;
        ops = ops.get(1..ops.len() - 1).ok_or("operands are missing")?;
    }
    let Some(id) = ops.first() else {
        return Err("the barrier number is missing".to_owned());
    };
    let id = lw.src(id, Ty::U32)?;
    let count = match ops.get(1) {
        Some(n) => lw.src(n, Ty::U32)?,
        None if kind == BarKind::Arrive => return Err("arrive needs a thread count".to_owned()),
        None => SINK,
    };
    lw.emit(Op::Bar { kind, id, count, aligned, p, d, dp });
    Ok(())
}

fn bar_warp<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let mask = lw.src(c.op(0)?, Ty::U32)?;
    lw.emit(Op::BarWarpSync { mask });
    Ok(())
}
