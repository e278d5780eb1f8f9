//! Lowers whole modules: variables, kernels, device functions and calls.

use super::chip::threads_of_an_sm;
use super::scope::{Lower, Symbol, describe};
use super::{Matched, check, recursion};
use crate::isa::Ty;
use crate::parse::LineError;
use crate::parse::ast::{DeclSpace, Formal, FuncAst, Init, ModuleAst, Operand, Stmt, Var};
use crate::program::{Inst, Op, ParamInfo, Program, SINK, Slot, Space};
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};

/// First address of module variables.
pub(crate) const MODULE_BASE: u64 = 0x2000_0000_0000;
/// Base of function addresses, for calls through pointers. No memory is there.
const FUNCTION_BASE: u64 = 0x3000_0000_0000;
/// Limit on the operations of all kernels of a module together. A function counts once for each kernel that calls it.
pub(super) const MAX_OPERATIONS: usize = 1 << 23;
/// Limit on module variables, local frames and parameters, in bytes each.
const LIMIT: u64 = 1 << 30;

/// A lowered module: its kernels and the initial values of its variables.
pub(crate) struct Lowered {
    pub kernels: Vec<(String, Program)>,
    /// Bytes of module variables, from `MODULE_BASE` on.
    pub image: Vec<u8>,
}

/// Where a device function's formal parameter lives.
#[derive(Clone, Copy, Debug)]
enum Place {
    Local { offset: u32, bytes: u32 },
    Data(Slot, Ty),
    Pred(u32),
}

#[derive(Clone, Debug)]
struct Callee {
    returns: Vec<Place>,
    params: Vec<Place>,
    pc: Option<u32>,
}

/// Device functions called by the kernel being lowered.
#[derive(Default)]
pub(crate) struct Callees<'t> {
    known: HashMap<&'t str, Callee>,
    waiting: Vec<&'t str>,
    /// The function being lowered, and the functions it calls.
    current: &'t str,
    edges: recursion::Calls<'t>,
}

/// Functions of the module, by name.
#[derive(Default)]
pub(crate) struct Functions<'m, 't> {
    pub by_name: HashMap<&'t str, &'m FuncAst<'t>>,
    /// Functions whose address initialises a variable.
    pub in_tables: BTreeSet<&'t str>,
    /// Functions whose address is taken anywhere; computed on first use.
    pub taken: OnceCell<BTreeSet<&'t str>>,
}

fn size_of(v: &Var<'_>) -> Result<(u64, u32), String> {
    let Some(ty) = Ty::parse(v.ty) else {
        return Err(format!("unknown type `.{}`", v.ty));
    };
    let unit = u64::from(ty.bytes()) * u64::from(v.vector);
    let mut bytes = unit;
    for d in &v.dims {
        let n = match (d, &v.init) {
            (Some(n), _) => *n,
            (None, Some(Init::List(items))) => items.len() as u64,
            (None, _) => 0,
        };
        bytes = bytes.checked_mul(n).filter(|&b| b <= LIMIT).ok_or("the variable is too large")?;
    }
    Ok((bytes, v.align.unwrap_or(unit as u32).max(1)))
}

/// Lowers a parsed module.
pub(crate) fn lower(ast: &ModuleAst<'_>) -> Result<Lowered, Vec<LineError>> {
    let (lowered, errors) = lower_with(ast, false);
    if errors.is_empty() { Ok(lowered) } else { Err(errors) }
}

/// All errors of a module, also in device functions that no kernel calls.
pub(crate) fn problems(ast: &ModuleAst<'_>) -> Vec<LineError> {
    lower_with(ast, true).1
}

fn lower_with(ast: &ModuleAst<'_>, uncalled: bool) -> (Lowered, Vec<LineError>) {
    let mut errors = Vec::new();
    let mut globals: HashMap<&str, Symbol> = HashMap::new();
    let mut image: Vec<u8> = Vec::new();
    let mut places = Vec::new();
    check::duplicates(ast, &mut errors);
    for (index, v) in ast.vars.iter().enumerate() {
        let (bytes, align) = match size_of(v) {
            Ok(s) => s,
            Err(e) => {
                errors.push(LineError::new(v.line, e));
                continue;
            }
        };
        let symbol = match v.space {
            DeclSpace::Shared if v.external && bytes == 0 => Symbol::Dynamic,
            DeclSpace::Shared => Symbol::ModuleShared(index as u32, bytes as u32, align),
            DeclSpace::Global | DeclSpace::Const => {
                let at = image.len().next_multiple_of(align as usize);
                if at as u64 + bytes > LIMIT {
                    errors.push(LineError::new(v.line, "module variables are too large"));
                    continue;
                }
                image.resize(at + bytes as usize, 0);
                places.push((v, at));
                Symbol::Global(MODULE_BASE + at as u64)
            }
            _ => {
                errors.push(LineError::new(v.line, "this space cannot be used at module scope"));
                continue;
            }
        };
        globals.insert(v.name, symbol);
    }
    for (index, f) in ast.functions.iter().enumerate().filter(|(_, f)| !f.entry) {
        globals.entry(f.name).or_insert(Symbol::Global(FUNCTION_BASE + 16 * index as u64));
    }
    for (v, at) in places {
        if let (Some(init), Some(ty)) = (&v.init, Ty::parse(v.ty)) {
            let mut cursor = at;
            if let Err(e) = initialise(&mut image, &mut cursor, init, ty, &globals) {
                errors.push(LineError::new(v.line, e));
            }
        }
    }
    let mut functions = Functions::default();
    for f in &ast.functions {
        // A definition wins over declarations.
        if f.body.is_some() || !functions.by_name.contains_key(f.name) {
            functions.by_name.insert(f.name, f);
        }
    }
    for init in ast.vars.iter().filter_map(|v| v.init.as_ref()) {
        named(init, &mut |name| {
            functions.in_tables.insert(name);
        });
    }
    let mut kernels = Vec::new();
    let mut matched = Matched::new(ast.version, &ast.target);
    for f in ast.functions.iter().filter(|f| f.entry && f.body.is_some()) {
        let program = kernel(f, &globals, &functions, &mut matched, &mut errors);
        matched.budget = matched.budget.saturating_sub(program.code.len());
        kernels.push((f.name.to_owned(), program));
    }
    if uncalled {
        // All in one program that is never run. What kernels call is found twice, and kept once.
        let mut lw = Lower::new(&globals, &functions);
        lw.open_scope();
        for f in ast.functions.iter().filter(|f| !f.entry && f.body.is_some()) {
            if lw.callees.known.contains_key(f.name) {
                continue;
            }
            match (place_formals(&mut lw, &f.returns), place_formals(&mut lw, &f.params)) {
                (Ok(returns), Ok(params)) => {
                    lw.callees.known.insert(f.name, Callee { returns, params, pc: None });
                    lw.callees.waiting.push(f.name);
                }
                (Err(e), _) | (_, Err(e)) => errors.push(LineError::new(f.line, e)),
            }
            while let Some(name) = lw.callees.waiting.pop() {
                function(&mut lw, name, &mut matched, &mut errors);
            }
        }
        finish(&mut lw, &mut errors);
    }
    errors.sort();
    errors.dedup();
    (Lowered { kernels, image }, errors)
}

/// Calls `note` with every name in an initial value.
fn named<'t>(init: &Init<'t>, note: &mut impl FnMut(&'t str)) {
    match init {
        Init::List(items) => items.iter().for_each(|i| named(i, note)),
        Init::Scalar(Operand::Name(n) | Operand::Offset(n, _)) => note(n),
        Init::Scalar(_) => {}
    }
}

fn initialise(
    image: &mut [u8],
    at: &mut usize,
    init: &Init<'_>,
    ty: Ty,
    globals: &HashMap<&str, Symbol>,
) -> Result<(), String> {
    match init {
        Init::List(items) => {
            for i in items {
                initialise(image, at, i, ty, globals)?;
            }
            Ok(())
        }
        Init::Scalar(op) => {
            let address = |name: &str, offset: i64| match globals.get(name) {
                Some(Symbol::Global(a)) => Ok(a.wrapping_add(offset as u64)),
                _ => Err(format!("`{name}` is not a global variable")),
            };
            let value = match op {
                Operand::Int(v) => *v,
                Operand::F32(v) => u64::from(*v),
                Operand::F64(v) => *v,
                Operand::Float(v) if ty == Ty::F64 => v.to_bits(),
                Operand::Float(v) => u64::from((*v as f32).to_bits()),
                Operand::Name(n) => address(n, 0)?,
                Operand::Offset(n, o) => address(n, *o)?,
                other => return Err(format!("{} cannot initialise a variable", describe(other))),
            };
            let n = ty.bytes().min(8) as usize;
            let Some(slot) = image.get_mut(*at..*at + n) else {
                return Err("more initial values than elements".to_owned());
            };
            slot.copy_from_slice(&value.to_le_bytes()[..n]);
            *at += n;
            Ok(())
        }
    }
}

fn kernel<'m, 't>(
    f: &'m FuncAst<'t>,
    globals: &'m HashMap<&'t str, Symbol>,
    functions: &'m Functions<'m, 't>,
    matched: &mut Matched<'t>,
    errors: &mut Vec<LineError>,
) -> Program {
    let mut lw = Lower::new(globals, functions);
    lw.open_scope();
    let mut params = Vec::new();
    let mut offset = 0u64;
    for p in &f.params {
        let Formal::Param(v) = p else {
            errors.push(LineError::new(f.line, "kernel parameters are in the .param space"));
            continue;
        };
        if let Err(e) = lw.define(v.name, v.line) {
            errors.push(LineError::new(v.line, e));
        }
        match size_of(v) {
            Ok((bytes, align)) => {
                offset = offset.next_multiple_of(u64::from(align));
                if let Some(s) = lw.scopes.last_mut() {
                    s.symbols.insert(v.name, Symbol::Param(offset as u32));
                }
                params.push(ParamInfo {
                    name: v.name.to_owned(),
                    offset: offset as u32,
                    bytes: bytes as u32,
                });
                offset += bytes;
            }
            Err(e) => errors.push(LineError::new(v.line, e)),
        }
    }
    if offset > 32764 {
        errors
            .push(LineError::new(f.line, format!("{offset} bytes of parameters: at most 32764 are allowed")));
    }
    lw.callees.current = f.name;
    statements(&mut lw, f.body.as_deref().unwrap_or(&[]), matched, errors);
    lw.guard = None;
    let exit_pc = lw.code.len() as u32;
    lw.emit(Op::Ret);
    while let Some(name) = lw.callees.waiting.pop() {
        function(&mut lw, name, matched, errors);
    }
    if let Some(cycle) = recursion::find(&lw.callees.edges) {
        errors
            .push(LineError::new(f.line, format!("function `{cycle}` is recursive, which is not supported")));
    }
    finish(&mut lw, errors);
    if lw.local_bytes > 512 << 10 {
        errors.push(LineError::new(
            f.line,
            format!("{} bytes of local memory a thread: at most 512 KiB", lw.local_bytes),
        ));
    }
    Program {
        exit_pc,
        registers: lw.registers,
        predicates: lw.predicates,
        specials: lw.specials,
        params,
        param_bytes: offset as u32,
        static_end: lw.shared_end,
        local_bytes: lw.local_bytes,
        reqntid: f.reqntid,
        maxntid: f.maxntid,
        reqcluster: f.reqnctapercluster,
        min_ctas: f.minnctapersm,
        sm_threads: threads_of_an_sm(lw.chip),
        max_registers: f.maxnreg,
        hands_registers_over: lw.code.iter().any(|i| matches!(i.op, Op::SetMaxNreg { .. })),
        largest_increase: (lw.code.iter())
            .filter_map(|i| match i.op {
                Op::SetMaxNreg { count, increase: true } => Some(count),
                _ => None,
            })
            .max(),
        wgmma: lw.code.iter().any(|i| matches!(i.op, Op::Wgmma(_))),
        names: lw.names,
        constants: lw.constants,
        code: lw.code,
        opcodes: lw.opcodes,
    }
}

fn statements<'t>(
    lw: &mut Lower<'_, 't>,
    body: &[Stmt<'t>],
    matched: &mut Matched<'t>,
    errors: &mut Vec<LineError>,
) {
    for s in body {
        if matched.exhausted {
            return;
        }
        let result = match s {
            Stmt::Open => {
                lw.open_scope();
                Ok(())
            }
            Stmt::Close => {
                lw.scopes.pop();
                Ok(())
            }
            Stmt::Reg(d) => {
                lw.line = d.line;
                lw.declare(d)
            }
            Stmt::Var(v) => {
                lw.line = v.line;
                variable(lw, v)
            }
            Stmt::Label(name, line) => {
                lw.line = *line;
                let at = (lw.scope_id(), *name);
                lw.labels.insert(at, lw.code.len() as u32);
                lw.define(name, *line)
            }
            Stmt::Targets(name, targets) => {
                let at = (lw.scope_id(), *name);
                lw.branch_tables.insert(at, targets.clone());
                Ok(())
            }
            Stmt::Inst(inst) => {
                lw.opcode = lw.opcode_number(&inst.opcode);
                lw.line = inst.line;
                let guard = match inst.guard {
                    None => Ok(None),
                    Some((negated, name)) => {
                        lw.pred(&Operand::Name(name)).map(|p| Some(crate::program::Pred { negated, ..p }))
                    }
                };
                guard.and_then(|g| {
                    lw.guard = g;
                    let r = matched.lower(lw, inst);
                    lw.guard = None;
                    r
                })
            }
        };
        if let Err(e) = result {
            let pos = if let Stmt::Inst(inst) = s { Some(inst.span.start) } else { None };
            errors.push(LineError { line: lw.line, pos, message: e });
        }
        if lw.code.len() + lw.fixups.len() > matched.budget && !matched.exhausted {
            let message = format!(
                "the kernels of the module have more than {MAX_OPERATIONS} operations together, functions that several \
                 kernels call counted for each: split the module"
            );
            errors.push(LineError::new(lw.line, message));
            matched.exhausted = true;
            lw.callees.waiting.clear();
            (lw.calls, lw.fixups) = (Vec::new(), Vec::new());
        }
    }
}

fn variable<'t>(lw: &mut Lower<'_, 't>, v: &Var<'t>) -> Result<(), String> {
    lw.define(v.name, v.line)?;
    let (bytes, align) = size_of(v)?;
    let symbol = match v.space {
        DeclSpace::Shared if v.external && bytes == 0 => Symbol::Dynamic,
        DeclSpace::Shared => Symbol::Shared(lw.place_shared(bytes as u32, align)),
        DeclSpace::Local | DeclSpace::Param => Symbol::Local(lw.place_local(bytes as u32, align)),
        _ => return Err("variables of this space belong at module scope".to_owned()),
    };
    if let Some(s) = lw.scopes.last_mut() {
        s.symbols.insert(v.name, symbol);
    }
    Ok(())
}

fn place_formals<'t>(lw: &mut Lower<'_, 't>, formals: &[Formal<'t>]) -> Result<Vec<Place>, String> {
    formals
        .iter()
        .map(|f| {
            Ok(match f {
                Formal::Param(v) => {
                    let (bytes, align) = size_of(v)?;
                    Place::Local { offset: lw.place_local(bytes as u32, align.max(8)), bytes: bytes as u32 }
                }
                Formal::Reg(r) => match Ty::parse(r.ty) {
                    Some(Ty::Pred) => {
                        lw.predicates += 1;
                        Place::Pred(lw.predicates - 1)
                    }
                    Some(ty) => Place::Data(lw.temporary(), ty),
                    None => return Err(format!("unknown type `.{}`", r.ty)),
                },
            })
        })
        .collect()
}

fn function<'t>(
    lw: &mut Lower<'_, 't>,
    name: &'t str,
    matched: &mut Matched<'t>,
    errors: &mut Vec<LineError>,
) {
    let Some(f) = lw.functions.by_name.get(name).copied() else {
        return;
    };
    let Some(callee) = lw.callees.known.get_mut(name) else {
        return;
    };
    callee.pc = Some(lw.code.len() as u32);
    let places: Vec<Place> = callee.returns.iter().chain(&callee.params).copied().collect();
    lw.scopes.clear();
    lw.open_scope();
    for (formal, place) in f.returns.iter().chain(&f.params).zip(places) {
        let (formal_name, line) = match formal {
            Formal::Param(v) => (v.name, v.line),
            Formal::Reg(r) => (r.name, r.line),
        };
        if let Err(e) = lw.define(formal_name, line) {
            errors.push(LineError::new(line, e));
        }
        match (formal, place) {
            (Formal::Param(v), Place::Local { offset, .. }) => {
                if let Some(s) = lw.scopes.last_mut() {
                    s.symbols.insert(v.name, Symbol::Local(offset));
                }
            }
            (Formal::Reg(r), Place::Data(slot, ty)) => lw.bind(r.name, slot, ty),
            (Formal::Reg(r), Place::Pred(slot)) => lw.bind(r.name, slot, Ty::Pred),
            _ => {}
        }
    }
    lw.callees.current = name;
    statements(lw, f.body.as_deref().unwrap_or(&[]), matched, errors);
    lw.guard = None;
    lw.emit(Op::Ret);
}

/// Fills in branch targets and call addresses.
fn finish(lw: &mut Lower<'_, '_>, errors: &mut Vec<LineError>) {
    for &(at, n, scope, name, line) in &lw.fixups {
        let mut s = scope;
        let target = loop {
            if let Some(&t) = lw.labels.get(&(s, name)) {
                break Some(t);
            }
            match lw.parents.get(s as usize) {
                Some(&p) if p != u32::MAX => s = p,
                _ => break None,
            }
        };
        let Some(t) = target else {
            errors.push(LineError::new(line, format!("label `{name}` is not defined")));
            continue;
        };
        match lw.code.get_mut(at).map(|i| &mut i.op) {
            Some(Op::Bra { target }) => *target = t,
            Some(Op::Brx { targets, .. }) => {
                if let Some(slot) = targets.get_mut(n) {
                    *slot = t;
                }
            }
            _ => {}
        }
    }
    for &(at, name, line) in &lw.calls {
        let pc = lw.callees.known.get(name).and_then(|c| c.pc);
        match (pc, lw.code.get_mut(at)) {
            (Some(pc), Some(Inst { op: Op::Call { target }, .. })) => *target = pc,
            _ => errors.push(LineError::new(line, format!("function `{name}` has no body"))),
        }
    }
}

impl<'t> Lower<'_, 't> {
    pub fn place_local(&mut self, bytes: u32, align: u32) -> u32 {
        let at = self.local_bytes.min(1 << 28).next_multiple_of(align.max(1));
        self.local_bytes = at + bytes.min(1 << 28);
        at
    }

    /// Lowers a call: copies arguments to the parameters, jumps, and copies results back.
    pub fn call(&mut self, name: &'t str, ret: &Operand<'t>, args: &Operand<'t>) -> Result<(), String> {
        let (Operand::List(ret), Operand::List(args)) = (ret, args) else {
            return Err("results and arguments are lists in parentheses".to_owned());
        };
        let Some(f) = self.functions.by_name.get(name).copied() else {
            return Err(format!("function `{name}` is not declared"));
        };
        if f.body.is_none() {
            return self.external(name, ret);
        }
        let current = self.callees.current;
        self.callees.edges.entry(current).or_default().insert(name);
        let callee = match self.callees.known.get(name) {
            Some(c) => c.clone(),
            None => {
                let c = Callee {
                    returns: place_formals(self, &f.returns)?,
                    params: place_formals(self, &f.params)?,
                    pc: None,
                };
                self.callees.known.insert(name, c.clone());
                self.callees.waiting.push(name);
                c
            }
        };
        if callee.params.len() != args.len() || callee.returns.len() != ret.len() {
            return Err(format!("`{name}` takes other numbers of arguments or results"));
        }
        for (arg, place) in args.iter().zip(&callee.params) {
            match *place {
                Place::Local { offset, bytes } => self.copy_in(arg, offset, bytes)?,
                Place::Data(d, ty) => {
                    let a = self.src(arg, ty)?;
                    self.emit(Op::Mov { d, a });
                }
                Place::Pred(d) => {
                    let a = self.pred(arg)?;
                    self.emit(Op::Truth { d, a, b: crate::program::Pred::ALWAYS, table: 0b1100 });
                }
            }
        }
        self.calls.push((self.code.len(), name, self.line));
        self.emit(Op::Call { target: 0 });
        for (r, place) in ret.iter().zip(&callee.returns) {
            match *place {
                Place::Local { offset, bytes } => {
                    let Some(Symbol::Local(d)) = self.symbol_of(r) else {
                        return Err(format!("{} cannot take a result", describe(r)));
                    };
                    self.emit(Op::CopyLocal { dst: d, src: offset, bytes });
                }
                Place::Data(a, ty) => {
                    let d = self.dst(r, ty)?;
                    self.emit(Op::Mov { d, a });
                }
                Place::Pred(a) => {
                    let d = self.pred_dst(r)?;
                    let a = crate::program::Pred { slot: a, negated: false };
                    self.emit(Op::Truth { d, a, b: crate::program::Pred::ALWAYS, table: 0b1100 });
                }
            }
        }
        Ok(())
    }

    fn symbol_of(&mut self, op: &Operand<'t>) -> Option<Symbol> {
        match op {
            Operand::Name(n) => self.find_symbol(n),
            _ => None,
        }
    }

    fn copy_in(&mut self, arg: &Operand<'t>, offset: u32, bytes: u32) -> Result<(), String> {
        match self.symbol_of(arg) {
            Some(Symbol::Local(src)) => {
                self.emit(Op::CopyLocal { dst: offset, src, bytes });
                Ok(())
            }
            _ => {
                let ty = match bytes {
                    4 => Ty::B32,
                    8 => Ty::B64,
                    2 => Ty::B16,
                    _ => return Err(format!("{} cannot be this argument", describe(arg))),
                };
                let s = self.src(arg, ty)?;
                let at = crate::program::Addr { base: SINK, offset: i64::from(offset) };
                self.emit(Op::Store { space: Space::Local, at, elem: bytes, src: [s].into() });
                Ok(())
            }
        }
    }

    /// Lowers a call of a function that the driver provides (`__assertfail`, `vprintf` and a few more).
    fn external(&mut self, name: &str, ret: &[Operand<'t>]) -> Result<(), String> {
        match name {
            "__assertfail" => {
                self.emit(Op::Trap { what: "a device-side assertion failed" });
                Ok(())
            }
            "vprintf" => {
                // Printing has no effect on the emulated memory; the result is a count nobody needs.
                if let Some(Symbol::Local(d)) = ret.first().and_then(|r| self.symbol_of(r)) {
                    let zero = self.constant(0);
                    let at = crate::program::Addr { base: SINK, offset: i64::from(d) };
                    self.emit(Op::Store { space: Space::Local, at, elem: 4, src: [zero].into() });
                }
                Ok(())
            }
            _ => Err(format!("function `{name}` has no body in this module")),
        }
    }
}
