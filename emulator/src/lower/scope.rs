//! Names, registers, constants and operands during lowering.

use super::module::{Callees, Functions};
use super::special::{clock, special};
use crate::isa::Ty;
use crate::lanes::Lanes;
use crate::parse::ast::{Operand, RegDecl};
use crate::program::{Addr, CONSTANTS, Inst, Op, Pred, SINK, SMEM_BASE, Slot, Special, TRUE};
use std::collections::{BTreeMap, HashMap};

/// What a name other than a register's refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// A global or constant variable, by address.
    Global(u64),
    /// A shared variable, by offset.
    Shared(u32),
    /// A shared variable of the module as (index, bytes, alignment). It gets its offset when a kernel first names it.
    ModuleShared(u32, u32, u32),
    /// Start of dynamic shared memory.
    Dynamic,
    /// A local variable or function parameter, by offset in the thread's local frame.
    Local(u32),
    /// Kernel parameter.
    Param(u32),
}

/// A declared register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub slot: Slot,
    pub ty: Ty,
}

/// The declarations of one block `{ }`.
#[derive(Default)]
pub(crate) struct Scope<'t> {
    registers: HashMap<&'t str, Register>,
    /// `%r<10>` as prefix -> (first, count).
    families: HashMap<&'t str, (Register, u32)>,
    /// Source lines of registers, variables, parameters and labels.
    lines: HashMap<&'t str, u32>,
    /// Names that end in a number, by their prefix: number and source line.
    numbers: HashMap<&'t str, BTreeMap<u32, u32>>,
    family_lines: HashMap<&'t str, u32>,
    pub symbols: HashMap<&'t str, Symbol>,
    pub id: u32,
}

/// State while a kernel and the functions that it calls are lowered.
pub(crate) struct Lower<'m, 't> {
    pub globals: &'m HashMap<&'t str, Symbol>,
    pub functions: &'m Functions<'m, 't>,
    pub callees: Callees<'t>,
    pub scopes: Vec<Scope<'t>>,
    pub code: Vec<Inst>,
    pub registers: u32,
    pub predicates: u32,
    pub constants: Vec<Lanes>,
    constant_of: HashMap<u64, Slot>,
    pub specials: Vec<(Slot, Special)>,
    special_of: HashMap<Special, Slot>,
    pub names: Vec<(Slot, u32, String)>,
    /// Size of the local frame so far, in bytes.
    pub local_bytes: u32,
    /// Start of the `alloca` stack in the local frame, once there is one.
    pub stack: Option<u32>,
    /// End of the shared variables placed so far.
    pub shared_end: u32,
    /// Offsets given to shared variables of the module.
    module_shared: HashMap<u32, u32>,
    /// Whether the tcgen05 instructions so far belong to a CTA pair; `None` before the first.
    pub cta_pair: Option<bool>,
    /// Guard and line of the instruction being lowered.
    pub guard: Option<Pred>,
    pub line: u32,
    /// All opcodes with their modifiers, and the number of that instruction's.
    pub opcodes: Vec<String>,
    opcode_numbers: HashMap<String, u32>,
    pub opcode: u32,
    /// First part of that instruction's opcode.
    pub head: &'t str,
    pub order: crate::program::Order,
    pub scope: crate::program::Scope,
    /// Number of the `.target`; 0 if it has none.
    pub chip: u32,
    /// The `.target`, where it restricts instructions.
    pub(super) target: Option<super::chip::Chip>,
    /// The enclosing scope of each scope, and the labels of each scope.
    pub parents: Vec<u32>,
    pub labels: HashMap<(u32, &'t str), u32>,
    pub branch_tables: HashMap<(u32, &'t str), Vec<&'t str>>,
    /// Jumps whose target is not known yet: (index in the code, which target, scope, label, line).
    pub fixups: Vec<(usize, usize, u32, &'t str, u32)>,
    /// Calls: (index in the code, function, line).
    pub calls: Vec<(usize, &'t str, u32)>,
}

impl<'m, 't> Lower<'m, 't> {
    pub fn new(globals: &'m HashMap<&'t str, Symbol>, functions: &'m Functions<'m, 't>) -> Self {
        Lower {
            globals,
            functions,
            callees: Callees::default(),
            scopes: Vec::new(),
            code: Vec::new(),
            registers: 0,
            predicates: 2,
            constants: Vec::new(),
            constant_of: HashMap::new(),
            specials: Vec::new(),
            special_of: HashMap::new(),
            names: Vec::new(),
            local_bytes: 0,
            stack: None,
            shared_end: SMEM_BASE,
            module_shared: HashMap::new(),
            cta_pair: None,
            order: crate::program::Order::Default,
            scope: crate::program::Scope::Unnamed,
            chip: 0,
            target: None,
            guard: None,
            line: 0,
            opcodes: vec![String::new()],
            opcode_numbers: HashMap::new(),
            opcode: 0,
            head: "",
            parents: Vec::new(),
            labels: HashMap::new(),
            branch_tables: HashMap::new(),
            fixups: Vec::new(),
            calls: Vec::new(),
        }
    }

    pub fn emit(&mut self, op: Op) {
        let (guard, line, opcode) = (self.guard, self.line, self.opcode);
        self.code.push(Inst { guard, op, line, opcode, order: self.order, scope: self.scope });
    }

    /// The number of an opcode.
    pub fn opcode_number(&mut self, opcode: &str) -> u32 {
        if let Some(&number) = self.opcode_numbers.get(opcode) {
            return number;
        }
        let number = self.opcodes.len() as u32;
        self.opcodes.push(opcode.to_owned());
        self.opcode_numbers.insert(opcode.to_owned(), number);
        number
    }

    pub fn open_scope(&mut self) {
        let id = self.parents.len() as u32;
        let parent = self.scopes.last().map_or(u32::MAX, |s| s.id);
        self.parents.push(parent);
        self.scopes.push(Scope { id, ..Scope::default() });
    }

    pub fn scope_id(&self) -> u32 {
        self.scopes.last().map_or(0, |s| s.id)
    }

    /// Notes that a name is defined in the innermost `{ }`.
    ///
    /// # Errors
    /// It has been before, and where: registers, variables, parameters and labels share names.
    pub fn define(&mut self, name: &'t str, line: u32) -> Result<(), String> {
        let (prefix, number) = numbered(name);
        let Some(s) = self.scopes.last_mut() else { return Ok(()) };
        let member = number.and_then(|i| s.families.get(prefix).filter(|f| i < f.1));
        let before = match member {
            Some(_) => s.family_lines.get(prefix),
            None => s.lines.get(name),
        };
        if let Some(before) = before {
            return Err(format!("`{name}` is defined twice in one scope, first in line {before}"));
        }
        s.lines.insert(name, line);
        if let Some(number) = number {
            s.numbers.entry(prefix).or_default().insert(number, line);
        }
        Ok(())
    }

    /// As [`Self::define`], for the registers `name0`, `name1` and so on.
    fn define_family(&mut self, name: &'t str, count: u32, line: u32) -> Result<(), String> {
        let Some(s) = self.scopes.last_mut() else { return Ok(()) };
        if let Some(before) = s.family_lines.get(name) {
            return Err(format!("`{name}<{count}>` is defined twice in one scope, first in line {before}"));
        }
        if let Some((n, before)) = s.numbers.get(name).and_then(|members| members.range(..count).next()) {
            return Err(format!("`{name}<{count}>` defines `{name}{n}`, which line {before} has defined"));
        }
        s.family_lines.insert(name, line);
        Ok(())
    }

    pub fn declare(&mut self, d: &RegDecl<'t>) -> Result<(), String> {
        let Some(ty) = Ty::parse(d.ty) else {
            return Err(format!("unknown register type `.{}`", d.ty));
        };
        if d.vector != 1 {
            return Err("vector registers are not supported".to_owned());
        }
        match d.count {
            Some(n) => self.define_family(d.name, n, d.line)?,
            None => self.define(d.name, d.line)?,
        }
        let count = d.count.unwrap_or(1);
        let slot = if ty == Ty::Pred {
            let slot = self.predicates;
            self.predicates = room_for(slot, count, "predicates")?;
            slot
        } else {
            // A 128-bit register is two slots, low half first.
            let width = if ty == Ty::B128 { 2 } else { 1 };
            let slot = self.registers;
            self.registers = room_for(slot, count.saturating_mul(width), "registers")?;
            self.names.push((slot, count * width, d.name.to_owned()));
            slot
        };
        let Some(scope) = self.scopes.last_mut() else {
            return Err("a register outside a function".to_owned());
        };
        let r = Register { slot, ty };
        match d.count {
            Some(n) => {
                scope.families.insert(d.name, (r, n));
            }
            None => {
                scope.registers.insert(d.name, r);
            }
        }
        Ok(())
    }

    /// Gives a name to an existing slot.
    pub fn bind(&mut self, name: &'t str, slot: Slot, ty: Ty) {
        if let Some(s) = self.scopes.last_mut() {
            s.registers.insert(name, Register { slot, ty });
        }
    }

    /// A new data register for a lowered sequence.
    pub fn temporary(&mut self) -> Slot {
        self.registers += 1;
        self.names.push((self.registers - 1, 1, "(temporary)".to_owned()));
        self.registers - 1
    }

    /// The `.branchtargets`, `.calltargets` or (empty) `.callprototype` list of a name.
    pub fn targets(&self, name: &'t str) -> Option<Vec<&'t str>> {
        let mut scope = self.scope_id();
        loop {
            if let Some(t) = self.branch_tables.get(&(scope, name)) {
                return Some(t.clone());
            }
            match self.parents.get(scope as usize) {
                Some(&p) if p != u32::MAX => scope = p,
                _ => return None,
            }
        }
    }

    pub fn find_register(&self, name: &str) -> Option<Register> {
        let (prefix, index) = numbered(name);
        for s in self.scopes.iter().rev() {
            if let Some(r) = s.registers.get(name) {
                return Some(*r);
            }
            if let (Some(i), Some((r, n))) = (index, s.families.get(prefix))
                && i < *n
            {
                let width = if r.ty == Ty::B128 { 2 } else { 1 };
                return Some(Register { slot: r.slot + i * width, ty: r.ty });
            }
        }
        None
    }

    pub fn find_symbol(&mut self, name: &str) -> Option<Symbol> {
        let found = self
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.symbols.get(name))
            .or_else(|| self.globals.get(name))
            .copied()?;
        if let Symbol::ModuleShared(index, bytes, align) = found {
            let place = match self.module_shared.get(&index) {
                Some(&p) => p,
                None => {
                    let p = self.place_shared(bytes, align);
                    self.module_shared.insert(index, p);
                    p
                }
            };
            return Some(Symbol::Shared(place));
        }
        Some(found)
    }

    /// Assigns an offset to a static shared variable.
    pub fn place_shared(&mut self, bytes: u32, align: u32) -> u32 {
        // Far beyond what a launch accepts, and far from overflow.
        let at = self.shared_end.min(1 << 28).next_multiple_of(align.max(1));
        self.shared_end = at + bytes.min(1 << 28);
        at
    }

    pub fn constant(&mut self, value: u64) -> Slot {
        if let Some(&s) = self.constant_of.get(&value) {
            return s;
        }
        let slot = CONSTANTS + self.constants.len() as u32;
        self.constants.push([value; 32]);
        self.constant_of.insert(value, slot);
        slot
    }

    pub fn special(&mut self, s: Special) -> Slot {
        if let Some(&slot) = self.special_of.get(&s) {
            return slot;
        }
        let slot = self.registers;
        self.registers += 1;
        self.names.push((slot, 1, format!("{s:?}")));
        self.specials.push((slot, s));
        self.special_of.insert(s, slot);
        slot
    }

    fn register(&self, name: &str) -> Result<Register, String> {
        self.find_register(name).ok_or_else(|| match name.starts_with('%') {
            true => format!("register `{name}` is not declared"),
            false => format!("`{name}` is not declared"),
        })
    }

    /// A source operand of type `ty`. `loose` allows a wider register, as ld, st and cvt do.
    fn source_sized(&mut self, op: &Operand<'t>, ty: Ty, loose: bool) -> Result<Slot, String> {
        let bits = ty.bits();
        let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        match op {
            Operand::Name(name) => {
                if let Some(r) = self.find_register(name) {
                    check_type(name, r.ty, ty, loose)?;
                    return Ok(r.slot);
                }
                if let Some(slot) = self.special_register(name)? {
                    if self.head != "mov" && !(self.head == "cvt" && ty.integer()) {
                        return Err(format!("`{name}` can be read by mov alone"));
                    }
                    return Ok(slot);
                }
                match self.find_symbol(name) {
                    Some(s) => self.address_of(s, name, 0),
                    None => Err(format!("`{name}` is not declared")),
                }
            }
            Operand::Offset(name, offset) => match self.find_symbol(name) {
                Some(s) => self.address_of(s, name, *offset),
                None => Err(format!("`{name}+{offset}` is not a constant address")),
            },
            Operand::Int(v) if ty.float() => Err(format!(
                "the integer {v} cannot be a .{}: write {v}.0, or its bits after 0f or 0d",
                ty.text()
            )),
            Operand::Int(v) => Ok(self.constant(v & mask)),
            Operand::F32(_) | Operand::F64(_) if ty.integer() && !ty.bit() => {
                Err(format!("a floating-point constant cannot be a .{}", ty.text()))
            }
            Operand::F32(v) => Ok(self.constant(match ty {
                Ty::F64 => f64::from(f32::from_bits(*v)).to_bits(),
                _ => u64::from(*v),
            })),
            Operand::F64(v) => Ok(self.constant(match ty {
                Ty::F32 => u64::from((f64::from_bits(*v) as f32).to_bits()),
                _ => *v,
            })),
            Operand::Float(v) => Ok(self.constant(match ty {
                Ty::F64 => v.to_bits(),
                Ty::F32 => u64::from((*v as f32).to_bits()),
                _ => {
                    return Err(format!("a floating-point constant cannot be a .{}", ty.text()));
                }
            })),
            other => Err(format!("{} cannot be a source of type .{}", describe(other), ty.text())),
        }
    }

    pub fn src(&mut self, op: &Operand<'t>, ty: Ty) -> Result<Slot, String> {
        self.source_sized(op, ty, false)
    }

    /// A source operand whose register may be wider than its type.
    pub fn src_loose(&mut self, op: &Operand<'t>, ty: Ty) -> Result<Slot, String> {
        self.source_sized(op, ty, true)
    }

    /// A variable's address as an operand, which only few instructions take.
    fn address_of(&mut self, s: Symbol, name: &str, offset: i64) -> Result<Slot, String> {
        if matches!(self.head, "mov" | "cvta" | "mapa" | "getctarank" | "call" | "isspacep") {
            return Ok(self.symbol_slot(s, offset));
        }
        Err(format!("`{name}` is a variable, whose address mov puts into a register"))
    }

    fn symbol_slot(&mut self, s: Symbol, offset: i64) -> Slot {
        match s {
            Symbol::Global(a) => self.constant(a.wrapping_add(offset as u64)),
            Symbol::Shared(a) => self.special(Special::Shared(a.wrapping_add(offset as u32))),
            Symbol::Dynamic => self.special(Special::Dynamic(offset as u32)),
            Symbol::ModuleShared(..) => self.constant(0),
            Symbol::Local(a) | Symbol::Param(a) => self.constant(u64::from(a).wrapping_add(offset as u64)),
        }
    }

    /// A destination register; `_` is the sink.
    pub fn dst(&mut self, op: &Operand<'t>, ty: Ty) -> Result<Slot, String> {
        self.dst_loose(op, ty, false).map(|r| r.map_or(SINK, |r| r.slot))
    }

    /// A destination register that may be wider than its type; `None` for the sink `_`.
    pub fn dst_loose(&mut self, op: &Operand<'t>, ty: Ty, loose: bool) -> Result<Option<Register>, String> {
        match op {
            Operand::Sink => Ok(None),
            Operand::Name(name) => {
                let r = self.register(name)?;
                check_type(name, r.ty, ty, loose)?;
                Ok(Some(r))
            }
            other => Err(format!("{} cannot be a destination", describe(other))),
        }
    }

    /// A destination predicate; `_` is the sink.
    pub fn pred_dst(&mut self, op: &Operand<'t>) -> Result<u32, String> {
        match op {
            Operand::Sink => Ok(SINK),
            Operand::Name(name) => {
                let r = self.register(name)?;
                if r.ty != Ty::Pred {
                    return Err(format!("`{name}` is not a predicate"));
                }
                Ok(r.slot)
            }
            other => Err(format!("{} cannot be a destination predicate", describe(other))),
        }
    }

    /// A source predicate: `p`, `!p`, or an integer constant.
    pub fn pred(&mut self, op: &Operand<'t>) -> Result<Pred, String> {
        match op {
            Operand::Int(v) => Ok(Pred { slot: TRUE, negated: *v == 0 }),
            Operand::Not(inner) => {
                let p = self.pred(inner)?;
                Ok(Pred { negated: !p.negated, ..p })
            }
            Operand::Name(name) => {
                let r = self.register(name)?;
                if r.ty != Ty::Pred {
                    return Err(format!("`{name}` is not a predicate"));
                }
                Ok(Pred { slot: r.slot, negated: false })
            }
            other => Err(format!("{} cannot be a predicate", describe(other))),
        }
    }

    /// An address operand `[...]`, without further bracket contents.
    pub fn addr(&mut self, op: &Operand<'t>) -> Result<Addr, String> {
        match op {
            Operand::Address(items) if items.len() == 1 => self.base(&items[0]),
            Operand::Address(_) => Err("unexpected items inside the brackets".to_owned()),
            other => Err(format!("expected an address in brackets, found {}", describe(other))),
        }
    }

    /// The base expression inside an address.
    pub fn base(&mut self, item: &Operand<'t>) -> Result<Addr, String> {
        match item {
            Operand::Int(v) => Ok(Addr { base: SINK, offset: *v as i64 }),
            Operand::Name(name) => self.named_base(name, 0),
            Operand::Offset(name, offset) => self.named_base(name, *offset),
            other => Err(format!("{} cannot be an address", describe(other))),
        }
    }

    fn named_base(&mut self, name: &'t str, offset: i64) -> Result<Addr, String> {
        if let Some(r) = self.find_register(name) {
            if !matches!(r.ty.bits(), 32 | 64) || !r.ty.integer() {
                return Err(format!("`{name}` is a .{} register and cannot hold an address", r.ty.text()));
            }
            return Ok(Addr { base: r.slot, offset });
        }
        match self.find_symbol(name) {
            Some(Symbol::Shared(a)) => Ok(Addr { base: self.special(Special::Shared(a)), offset }),
            Some(Symbol::Dynamic) => Ok(Addr { base: self.special(Special::Dynamic(0)), offset }),
            Some(Symbol::Global(a)) => Ok(Addr { base: SINK, offset: (a as i64).wrapping_add(offset) }),
            Some(Symbol::Local(a) | Symbol::Param(a)) => {
                Ok(Addr { base: SINK, offset: i64::from(a).wrapping_add(offset) })
            }
            Some(Symbol::ModuleShared(..)) | None => Err(format!("`{name}` is not declared")),
        }
    }

    /// The variable that an address operand names, if any.
    pub fn addr_symbol(&mut self, op: &Operand<'t>) -> Option<Symbol> {
        let Operand::Address(items) = op else {
            return None;
        };
        match items.first()? {
            Operand::Name(n) | Operand::Offset(n, _) if self.find_register(n).is_none() => {
                self.find_symbol(n)
            }
            _ => None,
        }
    }

    /// The elements of a vector operand, or the operand itself.
    pub fn elements<'a>(&self, op: &'a Operand<'t>) -> &'a [Operand<'t>] {
        match op {
            Operand::Vector(items) => items,
            other => std::slice::from_ref(other),
        }
    }

    /// Reads a special register that is constant for a warp, or a clock.
    fn special_register(&mut self, name: &str) -> Result<Option<Slot>, String> {
        if !name.starts_with('%') {
            return Ok(None);
        }
        if let Some(clock) = clock(name) {
            let d = self.temporary();
            self.emit(Op::ReadClock { d, what: clock });
            return Ok(Some(d));
        }
        match special(name) {
            Some(s) => Ok(Some(self.special(s))),
            None => Err(format!("`{name}` is neither a declared register nor a supported special register")),
        }
    }
}

/// Limit on declared registers of a kernel, and on its predicates: each takes memory in every thread.
const MAX_REGISTERS: u32 = 500_000;

/// The number of registers with `count` more, or an error above the limit.
fn room_for(before: u32, count: u32, what: &str) -> Result<u32, String> {
    before.checked_add(count).filter(|&n| n < MAX_REGISTERS).ok_or_else(|| {
        format!(
            "too many {what}: {count} more than {before}, and a kernel with the functions that it calls may have \
             {MAX_REGISTERS}; declare fewer"
        )
    })
}

/// Splits a name into prefix and number, as in a family `%r<10>`.
fn numbered(name: &str) -> (&str, Option<u32>) {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (prefix, number) = name.split_at(digits);
    let plain = !number.is_empty() && (number.len() == 1 || !number.starts_with('0'));
    (prefix, if plain { number.parse().ok() } else { None })
}

/// Checks that a register can be an operand of a type (ISA 9.4.1; for packed types, as the assembler does). Untyped
/// bits go with every type of their size, integers with integers, floating-point types only with themselves. `loose`
/// is for loads, stores and conversions, whose registers may be wider.
fn check_type(name: &str, have: Ty, want: Ty, loose: bool) -> Result<(), String> {
    if have == Ty::Pred || want == Ty::Pred {
        return match (have, want) {
            (Ty::Pred, Ty::Pred) => Ok(()),
            (Ty::Pred, _) => Err(format!("`{name}` is a predicate where a .{} is needed", want.text())),
            _ => Err(format!("`{name}` is not a predicate")),
        };
    }
    let same = have.bits() == want.bits();
    // Two halves in a register count as 32 bits.
    let fits = if want.bit() {
        true
    } else if want.integer() {
        have.integer() || have == Ty::B128 || (have == Ty::F16x2 && (same || loose))
    } else {
        have == want || have.bit()
    };
    // Formats that came later have registers of exactly their bits.
    let old = want.integer() || matches!(want, Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64 | Ty::B128);
    if fits && (same || (loose && old && have.bits() >= want.bits())) {
        return Ok(());
    }
    Err(format!("`{name}` is a .{} register where a .{} is needed", have.text(), want.text()))
}

/// Describes an operand, for messages.
pub(crate) fn describe(op: &Operand<'_>) -> String {
    match op {
        Operand::Name(n) => format!("`{n}`"),
        Operand::Offset(n, o) => format!("`{n}+{o}`"),
        Operand::Int(v) => format!("the constant {}", *v as i64),
        Operand::Float(v) => format!("the constant {v}"),
        Operand::F32(v) => format!("the constant 0f{v:08X}"),
        Operand::F64(v) => format!("the constant 0d{v:016X}"),
        Operand::Not(_) => "a negated predicate".to_owned(),
        Operand::Minus(_) => "a negated register".to_owned(),
        Operand::Vector(_) => "a vector".to_owned(),
        Operand::Address(_) => "an address".to_owned(),
        Operand::Pair(..) => "a pair `p|q`".to_owned(),
        Operand::Sink => "`_`".to_owned(),
        Operand::List(_) => "an argument list".to_owned(),
    }
}
