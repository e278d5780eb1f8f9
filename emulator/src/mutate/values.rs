//! Counters and bounds.

use super::{Collection, Kind};
use crate::parse::ast::Operand;

pub(super) fn mutate(out: &mut Collection<'_, '_>, at: usize) {
    let inst = &out.source.insts[at];
    if inst.is("setp") {
        if let Some((range, Operand::Int(v))) = inst.operands.get(2) {
            for new in [v.wrapping_add(1), v.wrapping_sub(1)] {
                if *v > 0 || new == 1 {
                    out.replace(Kind::Bound, at, range.clone(), new.to_string(), format!("{v} to {new}"));
                }
            }
        }
    } else if inst.is("add")
        && let [(_, Operand::Name(to)), (_, Operand::Name(from)), (range, Operand::Int(v))] =
            inst.operands.as_slice()
        && to == from
        && *v != 0
    {
        let new = v.wrapping_mul(2);
        out.replace(Kind::Step, at, range.clone(), new.to_string(), format!("{v} to {new}"));
        out.remove(Kind::Step, at);
    }
}
