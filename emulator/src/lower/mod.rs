//! Lowers the syntax tree to executable form: resolves names to slots and opcodes by the instruction table.
//!
//! - this file: the instruction table and the lowering of whole functions
//! - `scope`: names, registers, constants, operands; `special`: registers of the machine
//! - `module`: variables, parameters, functions and calls
//! - `recursion`: functions that call themselves
//! - `check`: refuses modifiers and operands that do not fit together
//! - `chip`: the instructions that a `.target` and a `.version` have
//! - other files: one for each chapter of the instruction set, with its part of the table

mod alu;
mod asynchronous;
mod check;
mod chip;
mod control;
mod convert;
#[cfg(test)]
mod coverage;
mod indirect;
mod matrix;
mod memory;
pub(crate) mod module;
mod multimem;
mod rare;
mod recursion;
mod scope;
mod select;
mod special;
mod stack;
mod sync;
mod tensor;
mod video;
mod warp;
mod wmma;

use crate::isa::{Form, Mods, Table};
use crate::parse::ast::{InstAst, Operand};
pub(crate) use scope::Lower;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Emits the executable operations of one matched instruction.
pub(crate) type LowerFn = for<'t> fn(&mut Lower<'_, 't>, &Call<'_, 't>) -> Result<(), String>;

/// An instruction that matched a form, with its modifiers and operands.
pub(crate) struct Call<'a, 't> {
    /// First part of the opcode.
    pub head: &'a str,
    /// The whole opcode.
    pub opcode: &'a str,
    pub mods: &'a Mods,
    pub operands: &'a [Operand<'t>],
}

impl<'t> Call<'_, 't> {
    /// Second part of the opcode.
    pub fn head2(&self) -> &str {
        self.opcode.split('.').nth(1).unwrap_or("")
    }

    /// Operand `n`, or an error that it is missing.
    pub fn op(&self, n: usize) -> Result<&Operand<'t>, String> {
        self.operands.get(n).ok_or_else(|| format!("operand {} is missing", n + 1))
    }

    /// Checks the number of operands.
    pub fn arity(&self, range: std::ops::RangeInclusive<usize>) -> Result<(), String> {
        let n = self.operands.len();
        if range.contains(&n) {
            return Ok(());
        }
        Err(format!("expected {} to {} operands, found {n}", range.start(), range.end()))
    }

    /// The type modifier, or an error that it is missing.
    pub fn ty(&self) -> Result<crate::isa::Ty, String> {
        self.mods.ty(0).ok_or_else(|| "the type is missing".to_owned())
    }
}

/// The whole instruction table.
fn table() -> &'static Table<LowerFn> {
    static TABLE: OnceLock<Table<LowerFn>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let parts = [
            alu::FORMS,
            select::FORMS,
            convert::FORMS,
            control::FORMS,
            memory::FORMS,
            multimem::FORMS,
            sync::FORMS,
            warp::FORMS,
            asynchronous::FORMS,
            tensor::FORMS,
            matrix::FORMS,
            wmma::FORMS,
            rare::FORMS,
            stack::FORMS,
        ];
        Table::new(&[&parts[..], &video::FORMS[..]].concat())
    })
}

/// The form that matches an opcode with its modifiers, or why none does.
type Match = Result<(&'static Form<LowerFn>, Mods), String>;

/// Opcodes matched so far. A kernel uses few distinct opcodes, each many times.
#[derive(Default)]
pub(crate) struct Matched<'t> {
    seen: HashMap<Cow<'t, str>, Match>,
    chip: Option<chip::Chip>,
    /// Operations that the kernel may still add before the limit.
    pub budget: usize,
    /// One had more.
    pub exhausted: bool,
}

impl<'t> Matched<'t> {
    /// For a module with this `.version` and `.target`.
    pub fn new(version: Option<(u32, u32)>, target: &[&str]) -> Self {
        Matched {
            seen: HashMap::new(),
            chip: chip::Chip::of(version, target),
            budget: module::MAX_OPERATIONS,
            exhausted: false,
        }
    }

    /// Lowers one instruction.
    pub fn lower(&mut self, lw: &mut Lower<'_, 't>, inst: &InstAst<'t>) -> Result<(), String> {
        let chip = self.chip;
        let found = self.seen.entry(inst.opcode.clone()).or_insert_with(|| {
            let found = table().find(&inst.opcode)?;
            chip.map_or(Ok(()), |c| c.check(&inst.opcode))?;
            Ok(found)
        });
        let (form, mods) = match found {
            Ok(f) => f,
            Err(e) => return Err(e.clone()),
        };
        lw.order = crate::program::Order::of(&inst.opcode);
        lw.scope = crate::program::Scope::of(&inst.opcode);
        let head = inst.head;
        lw.head = head;
        lw.chip = chip.map_or(0, |c| c.number());
        lw.target = chip;
        check::check(lw, inst, head, mods)
            .and_then(|()| {
                (form.lower)(lw, &Call { head, opcode: &inst.opcode, mods, operands: &inst.operands })
            })
            .map_err(|e| format!("{e} in `{}` (PTX ISA {})", inst.opcode, form.section))
    }
}
