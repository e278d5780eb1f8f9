//! Checks that modifiers and operands fit together, beyond names and widths, as the assembler does.
//!
//! Lowering reads only what it needs, so it would give an inconsistent instruction one of its possible meanings. What
//! ptxas refuses is therefore refused here too; `tests/damages.rs` compares the two on damaged instructions.

use super::scope::{Lower, Symbol};
use crate::isa::{Mods, Ty};
use crate::parse::LineError;
use crate::parse::ast::{InstAst, ModuleAst, Operand};
use std::collections::HashMap;

/// Checks an instruction whose opcode fits a form.
pub(super) fn check<'t>(
    lw: &mut Lower<'_, 't>,
    inst: &InstAst<'t>,
    head: &str,
    mods: &Mods,
) -> Result<(), String> {
    let parts = Parts(&inst.opcode);
    order(head, parts)?;
    arity(head, parts, mods, &inst.operands)?;
    if let (true, Some(chip)) = (matches!(head, "min" | "max") && inst.operands.len() == 4, lw.target) {
        chip.three_inputs()?;
    }
    vectors(lw, head, parts, &inst.operands)?;
    match (head, mods.ty(0), mods.ty(1)) {
        ("cvt", Some(to), Some(from)) => conversion(parts, to, from)?,
        _ => arithmetic(head, parts, mods)?,
    }
    spaces(lw, head, parts, &inst.operands)
}

/// The words of an opcode.
#[derive(Clone, Copy)]
struct Parts<'a>(&'a str);

impl<'a> Parts<'a> {
    fn has(self, word: &str) -> bool {
        self.0.split('.').skip(1).any(|p| p == word)
    }

    fn first(self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().copied().find(|w| self.has(w))
    }

    fn begins(self, words: &str) -> bool {
        self.0.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];

/// Checks that a memory order comes with a scope, and a scope with an order (ISA 9.7.9.8, 9.7.9.12, 9.7.13.16).
fn order(head: &str, parts: Parts<'_>) -> Result<(), String> {
    if matches!(head, "atom" | "red") {
        return match parts.first(&["volatile", "weak"]) {
            Some(word) => Err(format!("`.{word}` does not go with {head}")),
            None => Ok(()),
        };
    }
    let plain = matches!(head, "ld" | "st") && parts.first(&["async", "bulk"]).is_none();
    let others = (head == "multimem" && !parts.has("cp")) || parts.begins("mbarrier.arrive");
    if !plain && !others {
        return Ok(());
    }
    let order = parts.first(&["relaxed", "acquire", "release"]);
    let scope = parts.first(&SCOPES);
    match (order, scope, parts.first(&["weak", "volatile"])) {
        (Some(order), None, _) => {
            Err(format!("`.{order}` needs a scope: one of .cta, .cluster, .gpu and .sys"))
        }
        (None, Some(scope), _) => Err(format!("the scope `.{scope}` needs an order, such as .relaxed")),
        (Some(_), _, Some(word)) => Err(format!("`.{word}` does not go with an order")),
        _ => Ok(()),
    }
}

/// Checks the number of operands, for instructions of which lowering reads only the first ones.
fn arity(head: &str, parts: Parts<'_>, mods: &Mods, operands: &[Operand<'_>]) -> Result<(), String> {
    let (found, last) = (operands.len(), operands.last());
    let hint = usize::from(parts.has("L2::cache_hint"));
    if hint == 1 && matches!(last, Some(Operand::Address(_) | Operand::Vector(_) | Operand::Sink)) {
        return Err("`.L2::cache_hint` needs a cache policy as its last operand".to_owned());
    }
    let plain = parts.first(&["async", "bulk"]).is_none();
    let wanted = match head {
        "ld" | "st" | "red" if plain => 2 + hint,
        "atom" => 3 + hint + usize::from(parts.has("cas")),
        "setp" | "set" => 3 + usize::from(mods.get("bool").is_some()),
        "bar" | "barrier" if parts.has("arrive") && !parts.has("cluster") => 2,
        "prefetch" | "prefetchu" => 1,
        _ => return Ok(()),
    };
    if found == wanted {
        return Ok(());
    }
    let why = if hint == 1 { ", the cache policy included" } else { "" };
    Err(format!("{wanted} operands are needed{why}, found {found}"))
}

/// Checks register lists: where one is required, that its registers have the same type, and that `_` is allowed.
fn vectors<'t>(
    lw: &mut Lower<'_, 't>,
    head: &str,
    parts: Parts<'_>,
    operands: &[Operand<'t>],
) -> Result<(), String> {
    let keeps = matches!(head, "atom" | "match" | "mbarrier" | "setp" | "lop3" | "elect" | "call" | "bra");
    if matches!(operands.first(), Some(Operand::Sink)) && !keeps {
        return Err("the result cannot be thrown away with `_`".to_owned());
    }
    let lists = match head {
        "mma" => 0..4,
        "wgmma" if parts.has("mma_async") => 0..1,
        "tcgen05" if parts.has("ld") => 0..1,
        "tcgen05" if parts.has("st") => operands.len().saturating_sub(1)..operands.len(),
        "ldmatrix" => 0..1,
        "stmatrix" => 1..2,
        _ => 0..0,
    };
    if let Some(n) =
        lists.clone().find(|&n| operands.get(n).is_some_and(|o| !matches!(o, Operand::Vector(_))))
    {
        return Err(format!("operand {} is a list of registers in braces", n + 1));
    }
    if parts.has("L2::cache_hint")
        && !parts.has("cp_mask")
        && let Some(Operand::Name(name)) = operands.last()
        && lw.find_register(name).is_none_or(|r| r.ty.bits() != 64 || !r.ty.integer())
    {
        return Err(format!("`{name}` is no .b64 register: it should hold the cache policy"));
    }
    if !matches!(head, "ld" | "st" | "multimem") {
        return Ok(());
    }
    for operand in operands {
        let Operand::Vector(items) = operand else { continue };
        let mut first: Option<(&str, Ty)> = None;
        for item in items {
            let Operand::Name(name) = item else { continue };
            let Some(ty) = lw.find_register(name).map(|r| r.ty) else { continue };
            match first {
                None => first = Some((name, ty)),
                Some((other, t)) if t.bits() != ty.bits() => {
                    let (t, ty) = (t.text(), ty.text());
                    return Err(format!("`{other}` is a .{t} register and `{name}` a .{ty}, in one vector"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

fn small(t: Ty) -> bool {
    matches!(t, Ty::F16 | Ty::Bf16)
}

/// Checks the rounding of conversions between plain numbers (ISA 9.7.9.21): whether there has to be one, and which.
fn conversion(parts: Parts<'_>, to: Ty, from: Ty) -> Result<(), String> {
    let plain = |t: Ty| t.integer() || small(t) || matches!(t, Ty::F32 | Ty::F64);
    let relu = parts.first(&["relu", "satfinite"]);
    let rounding = parts.first(&["rn", "rz", "rm", "rp", "rna", "rs"]);
    let whole = parts.first(&["rni", "rzi", "rmi", "rpi"]);
    if let (Some(a), Some(b)) = (rounding, whole) {
        return Err(format!("`.{a}` and `.{b}` are two ways of rounding"));
    }
    if !plain(to) || !plain(from) {
        let packed = matches!(to, Ty::F16x2 | Ty::Bf16x2) && matches!(from, Ty::F32);
        return match rounding {
            None if packed => Err("a rounding is needed: .rn, .rz or .rs".to_owned()),
            Some(r @ ("rm" | "rp" | "rna")) if packed => {
                Err(format!("`.{r}` does not go with a packed conversion"))
            }
            _ => Ok(()),
        };
    }
    let bits = |t: Ty| matches!(t, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64);
    if let Some(t) = [to, from].into_iter().find(|&t| bits(t)) {
        return Err(format!("a .{} is no number: conversions are between .u, .s and .f types", t.text()));
    }
    let (wide, narrow) = (to.bits() > from.bits(), to.bits() < from.bits());
    let needs = match (to.float(), from.float()) {
        (false, false) => Rounding::None,
        (true, false) => Rounding::Needed,
        (false, true) => Rounding::Whole,
        (true, true) if to == from => Rounding::MaybeWhole,
        (true, true) if wide => Rounding::None,
        // .f16 and .bf16 into each other: as the assembler has it, with or without.
        (true, true) if !narrow => Rounding::Maybe,
        (true, true) => Rounding::Needed,
    };
    let pair = format!(".{}.{}", to.text(), from.text());
    match (needs, rounding, whole) {
        (Rounding::None, Some(r), _) | (Rounding::None, _, Some(r)) => {
            return Err(format!("{pair} is exact and takes no `.{r}`"));
        }
        (Rounding::Needed, None, _) => {
            return Err(format!("{pair} needs a rounding: .rn, .rz, .rm or .rp"));
        }
        (Rounding::Whole, _, None) => {
            return Err(format!("{pair} needs a rounding to integers: .rni, .rzi, .rmi or .rpi"));
        }
        (Rounding::MaybeWhole, Some(r), _) => {
            return Err(format!("{pair} changes no format and takes no `.{r}`"));
        }
        _ => {}
    }
    if let Some(word) = relu
        && !(small(to) && from == Ty::F32 && narrow && matches!(rounding, Some("rn" | "rz" | "rs")))
    {
        return Err(format!("`.{word}` does not go with {pair} as it is rounded"));
    }
    if parts.has("ftz") && to != Ty::F32 && from != Ty::F32 {
        return Err(format!("`.ftz` does not go with {pair}: neither is an .f32"));
    }
    if parts.has("sat") && (to == Ty::Bf16 || from == Ty::Bf16) {
        return Err(format!("`.sat` does not go with {pair}"));
    }
    Ok(())
}

/// Which rounding a conversion requires.
enum Rounding {
    None,
    Needed,
    Whole,
    MaybeWhole,
    Maybe,
}

/// Checks that floating-point modifiers are not on integers, nor integer modifiers on floating point.
fn arithmetic(head: &str, parts: Parts<'_>, mods: &Mods) -> Result<(), String> {
    let types: Vec<Ty> = (0..).map_while(|n| mods.ty(n)).collect();
    if types.is_empty() || head.starts_with("tcgen05") || head.contains("mma") {
        return Ok(());
    }
    let names: Vec<String> = types.iter().map(|t| format!(".{}", t.text())).collect();
    let refuse = |word: &str| Err(format!("`.{word}` does not go with {}", names.join("")));
    let float = types.iter().any(|t| t.float());
    let only_wide = types.iter().all(|&t| t == Ty::F64 || !t.float());
    if parts.has("ftz") && only_wide && !parts.has("approx") {
        return refuse("ftz");
    }
    if !matches!(head, "add" | "sub" | "mul" | "mad" | "fma" | "div" | "min" | "max") {
        return Ok(());
    }
    if let Some(word) = parts.first(&["rn", "rz", "rm", "rp"]).filter(|_| !float) {
        return refuse(word);
    }
    if parts.has("NaN") && only_wide {
        return refuse("NaN");
    }
    if matches!((head, types[0]), ("fma", _) | ("mad", Ty::F32 | Ty::F64))
        && parts.first(&["rn", "rz", "rm", "rp"]).is_none()
    {
        return Err("a rounding is needed: .rn, .rz, .rm or .rp".to_owned());
    }
    Ok(())
}

/// Checks that a variable named in an address is in the instruction's state space.
fn spaces<'t>(
    lw: &mut Lower<'_, 't>,
    head: &str,
    parts: Parts<'_>,
    operands: &[Operand<'t>],
) -> Result<(), String> {
    if head == "call" {
        return Ok(());
    }
    let tensor = head == "tcgen05" && parts.first(&["alloc", "commit"]).is_none();
    let one = matches!(head, "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "multimem")
        && parts.first(&["async", "bulk", "cp"]).is_none();
    for operand in operands {
        let Operand::Address(items) = operand else { continue };
        let Some(Operand::Name(name) | Operand::Offset(name, _)) = items.first() else { continue };
        if let Some(register) = lw.find_register(name) {
            if tensor && register.ty.bits() != 32 {
                let ty = register.ty.text();
                return Err(format!(
                    "`{name}` is a .{ty} register, and addresses of tensor memory have 32 bits"
                ));
            }
            continue;
        }
        let Some(symbol) = lw.find_symbol(name) else { continue };
        let parameter = parts.first(&["param", "param::entry", "param::func"]);
        let (fits, is) = match symbol {
            Symbol::Param(_) => (parameter.is_some(), "a parameter of the kernel"),
            _ if !one => continue,
            Symbol::Local(_) => (parts.first(&["global", "const"]).is_none(), "in local memory"),
            Symbol::Shared(_) | Symbol::Dynamic | Symbol::ModuleShared(..) => {
                (parts.first(&["global", "local", "const"]).or(parameter).is_none(), "in shared memory")
            }
            Symbol::Global(_) => {
                let other = parts.first(&["shared", "shared::cta", "shared::cluster", "local"]);
                (other.or(parameter).is_none(), "in global memory")
            }
        };
        if !fits {
            return Err(format!("`{name}` is {is}, where the instruction is not"));
        }
    }
    Ok(())
}

/// Reports variables and functions that are defined twice; a declaration may be repeated.
pub(super) fn duplicates(ast: &ModuleAst<'_>, errors: &mut Vec<LineError>) {
    let mut seen: HashMap<&str, (u32, bool)> = HashMap::new();
    let vars = ast.vars.iter().map(|v| (v.name, v.line, v.external, true));
    let functions = ast.functions.iter().map(|f| (f.name, f.line, f.body.is_none(), false));
    for (name, line, declared, variable) in vars.chain(functions) {
        match seen.get(name) {
            Some(&(first, var)) if !declared || var != variable => {
                let (first, line) = (first.min(line), first.max(line));
                errors
                    .push(LineError::new(line, format!("`{name}` is defined twice, first in line {first}")));
            }
            Some(_) => {}
            None if declared => {}
            None => {
                seen.insert(name, (line, variable));
            }
        }
    }
}
