//! `alloca`, `stacksave` and `stackrestore` (ISA section 9.7.17): a stack in the thread's local memory.
//!
//! The stack pointer is a register that starts at the end of a part of the local frame. `stackrestore`, or the end of
//! the kernel, frees what a function took with `alloca`.

use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::lanes::Pure;
use crate::parse::ast::Operand;
use crate::program::{Op, Slot, Special};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "stacksave .u32|.u64", section: "9.7.17.1", lower: save },
    Form { form: "stackrestore .u32|.u64", section: "9.7.17.2", lower: restore },
    Form { form: "alloca .u32|.u64", section: "9.7.17.3", lower: alloca },
];

/// Bytes of stack a thread has.
const STACK: u32 = 16 << 10;
/// Least alignment, as the ISA guarantees it.
const ALIGN: u64 = 8;

fn pointer(lw: &mut Lower<'_, '_>) -> Slot {
    let bottom = match lw.stack {
        Some(bottom) => bottom,
        None => {
            let bottom = lw.place_local(STACK, 128);
            lw.stack = Some(bottom);
            bottom
        }
    };
    lw.special(Special::StackTop(bottom + STACK))
}

fn ty(c: &Call<'_, '_>) -> Ty {
    if c.mods.has("u32") { Ty::U32 } else { Ty::U64 }
}

fn save<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let d = lw.dst(c.op(0)?, ty(c))?;
    let a = pointer(lw);
    lw.emit(Op::Mov { d, a });
    Ok(())
}

fn restore<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let a = lw.src(c.op(0)?, ty(c))?;
    let d = pointer(lw);
    lw.emit(Op::Mov { d, a });
    Ok(())
}

fn alloca<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let align = match c.operands.get(2) {
        None => ALIGN,
        Some(Operand::Int(v)) if v.is_power_of_two() && *v <= 1 << 23 => (*v).max(ALIGN),
        Some(_) => return Err("an alignment is a power of two up to 2^23".to_owned()),
    };
    let size = lw.src(c.op(1)?, ty(c))?;
    let d = lw.dst(c.op(0)?, ty(c))?;
    let pointer = pointer(lw);
    let bottom = lw.constant(u64::from(lw.stack.unwrap_or(0)));
    let wanted = lw.temporary();
    // Below the bottom the address leaves the frame, so that its use is found.
    let f = Pure::new(move |top, size, bottom| match top.checked_sub(size) {
        Some(at) if at & !(align - 1) >= bottom => at & !(align - 1),
        _ => u64::from(u32::MAX) & !(align - 1),
    });
    lw.emit(Op::Pure { f, d: wanted, s: [pointer, size, bottom] });
    lw.emit(Op::Mov { d: pointer, a: wanted });
    lw.emit(Op::Mov { d, a: wanted });
    Ok(())
}
