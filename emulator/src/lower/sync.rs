//! mbarriers and fences (ISA section 9.7.13).

use super::memory::space;
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::parse::ast::Operand;
use crate::program::{Fence, Op, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "mbarrier.init shared? .b64", section: "9.7.13.15.9", lower: init },
    Form { form: "mbarrier.inval shared? .b64", section: "9.7.13.15.10", lower: inval },
    Form { form: "mbarrier.expect_tx sem? scope? shared? .b64", section: "9.7.13.15.11", lower: tx },
    Form { form: "mbarrier.complete_tx sem? scope? shared? .b64", section: "9.7.13.15.12", lower: tx },
    Form {
        form: "mbarrier.arrive .expect_tx? .noComplete? sem? scope? shared? .b64",
        section: "9.7.13.15.13",
        lower: arrive,
    },
    Form {
        form: "mbarrier.arrive_drop .expect_tx? .noComplete? sem? scope? shared? .b64",
        section: "9.7.13.15.14",
        lower: arrive,
    },
    Form {
        form: "mbarrier.test_wait .parity? sem? scope? shared? .b64",
        section: "9.7.13.15.16",
        lower: wait,
    },
    Form {
        form: "mbarrier.try_wait .parity? sem? scope? shared? .b64",
        section: "9.7.13.15.16",
        lower: wait,
    },
    Form { form: "mbarrier.pending_count .b64", section: "9.7.13.15.17", lower: pending },
    Form { form: "membar .cta|.gl|.sys", section: "9.7.13.4", lower: fence },
    Form { form: "membar.proxy .alias|.async", section: "9.7.13.4", lower: fence },
    Form {
        form: "fence sem? scope .sync_restrict::shared::cta|.sync_restrict::shared::cluster?",
        section: "9.7.13.4",
        lower: fence,
    },
    Form { form: "fence.mbarrier_init .release .cluster", section: "9.7.13.4", lower: fence },
    Form {
        form: "fence.proxy .alias|.async .global|.shared::cta|.shared::cluster?",
        section: "9.7.13.4",
        lower: fence,
    },
    Form {
        form: "fence.proxy.async::generic sem scope .sync_restrict::shared::cta|.sync_restrict::shared::cluster?",
        section: "9.7.13.4",
        lower: fence,
    },
    Form { form: "fence.proxy.tensormap::generic sem scope", section: "9.7.13.4", lower: fence },
];

fn fence<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let fence = match c.head2() {
        "mbarrier_init" => Fence::MbarInit,
        // With no state space behind it, and not the fence between generic accesses and completions.
        "proxy" if c.opcode.ends_with(".proxy.async") => Fence::ProxyAll,
        "proxy" if c.opcode.contains(".proxy.async") => Fence::Proxy,
        "proxy" if c.opcode.contains(".tensormap::generic.acquire") => Fence::MapAcquire,
        "proxy" if c.opcode.contains(".tensormap::generic") => Fence::MapRelease,
        "proxy" => Fence::None,
        _ => Fence::Thread,
    };
    lw.emit(Op::Fence(fence));
    Ok(())
}

fn init<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(0)?)?;
    let count = lw.src(c.op(1)?, Ty::U32)?;
    lw.emit(Op::MbarInit { at, space, count });
    Ok(())
}

fn inval<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(0)?)?;
    lw.emit(Op::MbarInval { at, space });
    Ok(())
}

fn tx<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(0)?)?;
    let bytes = lw.src(c.op(1)?, Ty::U32)?;
    lw.emit(Op::MbarTx { at, space, bytes, complete: c.head2() == "complete_tx" });
    Ok(())
}

fn arrive<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    // The state is optional for remote barriers and may be `_`.
    let (state, ops) = match c.operands {
        [Operand::Address(_), ..] => (SINK, c.operands),
        [first, rest @ ..] => (lw.dst(first, Ty::B64)?, rest),
        [] => return Err("operands are missing".to_owned()),
    };
    let Some(a) = ops.first() else {
        return Err("the address is missing".to_owned());
    };
    let symbol = lw.addr_symbol(a);
    let space = space(c.mods, symbol);
    let at = lw.addr(a)?;
    let x = match ops.get(1) {
        Some(o) => lw.src(o, Ty::U32)?,
        None => SINK,
    };
    let (count, expect) = if c.mods.has("expect_tx") { (SINK, x) } else { (x, SINK) };
    if c.mods.has("expect_tx") && expect == SINK {
        return Err("the number of bytes is missing".to_owned());
    }
    lw.emit(Op::MbarArrive { at, space, state, count, expect, drop: c.head2() == "arrive_drop" });
    Ok(())
}

fn wait<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=4)?;
    let p = lw.pred_dst(c.op(0)?)?;
    let symbol = lw.addr_symbol(c.op(1)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(1)?)?;
    let parity = c.mods.has("parity");
    let token = lw.src(c.op(2)?, if parity { Ty::U32 } else { Ty::B64 })?;
    lw.emit(Op::MbarWait { at, space, p, token, parity, blocking: c.head2() == "try_wait" });
    Ok(())
}

fn pending<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let d = lw.dst(c.op(0)?, Ty::U32)?;
    let state = lw.src(c.op(1)?, Ty::B64)?;
    lw.emit(Op::MbarPending { d, state });
    Ok(())
}
