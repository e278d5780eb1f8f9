//! Calls through a pointer (ISA section 9.7.12.5), lowered to one guarded call for each possible function.

use super::scope::Symbol;
use super::{Lower, module::Functions};
use crate::isa::Ty;
use crate::lanes::lc;
use crate::parse::ast::{FuncAst, Operand, Stmt};
use crate::program::{Op, Pred, SINK};
use std::collections::BTreeSet;

/// `call (ret), pointer, (args), list`.
pub(super) fn call<'t>(
    lw: &mut Lower<'_, 't>,
    (pointer, list): (&Operand<'t>, &'t str),
    ret: &Operand<'t>,
    args: &Operand<'t>,
) -> Result<(), String> {
    let Some(mut targets) = lw.targets(list) else {
        return Err(format!("there is no .calltargets or .callprototype `{list}`"));
    };
    if targets.is_empty() {
        let (Operand::List(r), Operand::List(a)) = (ret, args) else {
            return Err("results and arguments are lists in parentheses".to_owned());
        };
        let fits = |f: &FuncAst<'_>| f.returns.len() == r.len() && f.params.len() == a.len();
        targets = (lw.functions.taken.get_or_init(|| taken(lw.functions)).iter().copied())
            .filter(|n| lw.functions.by_name.get(n).is_some_and(|f| fits(f)))
            .collect();
    }
    let a = lw.src(pointer, Ty::U64)?;
    let outer = lw.guard;
    // Lanes that have not found their function yet.
    let rest = lw.predicates;
    lw.predicates += 1;
    lw.emit(Op::Truth { d: rest, a: outer.unwrap_or(Pred::ALWAYS), b: Pred::ALWAYS, table: 0b1100 });
    for name in targets {
        let Some(Symbol::Global(address)) = lw.find_symbol(name) else {
            return Err(format!("function `{name}` is not declared"));
        };
        let b = lw.constant(address);
        let (hit, left) = (lw.predicates, Pred { slot: rest, negated: false });
        lw.predicates += 1;
        lw.guard = outer;
        lw.emit(Op::Setp { f: lc!(|a, b| a == b), p: hit, q: SINK, a, b, combine: Some((0b1000, left)) });
        let hit = Pred { slot: hit, negated: false };
        lw.emit(Op::Truth { d: rest, a: left, b: hit, table: 0b0100 });
        lw.guard = Some(hit);
        let done = lw.call(name, ret, args);
        lw.guard = outer;
        done?;
    }
    lw.guard = Some(Pred { slot: rest, negated: false });
    lw.emit(Op::Trap { what: "a call through a pointer that is none of the functions it can call" });
    lw.guard = outer;
    Ok(())
}

/// Functions whose address the module takes, by name.
fn taken<'t>(functions: &Functions<'_, 't>) -> BTreeSet<&'t str> {
    let mut found = functions.in_tables.clone();
    let mut note = |op: &Operand<'t>| {
        for name in crate::mutate::source::names(op) {
            if let Some((&name, _)) = functions.by_name.get_key_value(name) {
                found.insert(name);
            }
        }
    };
    for f in functions.by_name.values() {
        for s in f.body.iter().flatten() {
            if let Stmt::Inst(i) = s {
                // The name that a direct call names is not taken.
                let direct = i.opcode.starts_with("call");
                i.operands.iter().filter(|o| !direct || !matches!(o, Operand::Name(_))).for_each(&mut note);
            }
        }
    }
    found
}
