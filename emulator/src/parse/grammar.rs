//! Parses the module level: directives, variables and functions.

use super::ast::{DeclSpace, Formal, FuncAst, Init, ModuleAst, RegDecl, Stmt, Var};
use super::body::{self, operand, utf8_len};
use super::cursor::{Cursor, Number, Parsed, Syntax};

/// Parses a module. Errors are collected, so that one run shows all of them.
pub(crate) fn parse(text: &str) -> (ModuleAst<'_>, Vec<Syntax>) {
    let mut c = Cursor::new(text);
    let mut module = ModuleAst::default();
    let mut errors = Vec::new();
    while c.peek() != 0 || c.pos < text.len() {
        if let Err(e) = item(&mut c, &mut module, &mut errors) {
            // What follows a broken header would only be misread, up to the next function.
            errors.push(e);
            c.skip_to_function();
        }
    }
    (module, errors)
}

fn item<'t>(c: &mut Cursor<'t>, module: &mut ModuleAst<'t>, errors: &mut Vec<Syntax>) -> Parsed<()> {
    if c.eat(b';') {
        return Ok(());
    }
    if c.peek() == b'@' && c.at(1) == b'@' {
        c.skip_line();
        return Ok(());
    }
    let line = c.line;
    let mut external = false;
    loop {
        let Some(d) = c.directive() else {
            let found = c.found();
            return c.error(format!("expected a directive, found {found}"));
        };
        match d {
            "extern" => external = true,
            "visible" | "weak" | "common" => {}
            "version" => {
                // `8.6` reads as a float.
                c.skip();
                let at = c.pos;
                c.number()?;
                let s = &c.text[at..c.pos];
                let mut parts = s.split('.');
                let major = parts.next().and_then(|v| v.parse().ok());
                let minor = parts.next().and_then(|v| v.parse().ok());
                match (major, minor) {
                    (Some(a), Some(b)) => module.version = Some((a, b)),
                    _ => return c.error(format!("`{s}` is not a PTX version")),
                }
                return Ok(());
            }
            "target" => {
                module.target.push(c.word()?);
                while c.eat(b',') {
                    module.target.push(c.word()?);
                }
                return Ok(());
            }
            "address_size" => {
                return match c.number()? {
                    Number::Int(64) => Ok(()),
                    _ => c.error("only `.address_size 64` is supported"),
                };
            }
            "file" | "loc" => {
                c.skip_line();
                return Ok(());
            }
            "section" => return section(c),
            "pragma" => return pragma(c),
            "alias" => {
                while !matches!(c.peek(), b';' | 0) {
                    c.pos += utf8_len(c.at(0));
                }
                return c.expect(b';');
            }
            "entry" | "func" => {
                let f = function(c, d == "entry", line, errors)?;
                module.functions.push(f);
                return Ok(());
            }
            _ => {
                let Some(space) = space_of(d) else {
                    return c.error(format!("unknown directive `.{d}`"));
                };
                variables(c, space, external, line, &mut module.vars)?;
                return Ok(());
            }
        }
    }
}

fn space_of(d: &str) -> Option<DeclSpace> {
    Some(match d {
        "global" => DeclSpace::Global,
        "const" => DeclSpace::Const,
        "shared" | "shared::cta" => DeclSpace::Shared,
        "local" => DeclSpace::Local,
        "param" => DeclSpace::Param,
        "reg" => DeclSpace::Reg,
        _ => return None,
    })
}

fn section(c: &mut Cursor<'_>) -> Parsed<()> {
    while !matches!(c.peek(), b'{' | 0) {
        c.pos += utf8_len(c.at(0));
    }
    c.expect(b'{')?;
    let mut depth = 1;
    while depth > 0 {
        match c.peek() {
            0 => return c.error("the file ends inside a .section"),
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        c.pos += utf8_len(c.at(0));
    }
    Ok(())
}

fn pragma(c: &mut Cursor<'_>) -> Parsed<()> {
    c.string()?;
    while c.eat(b',') {
        c.string()?;
    }
    c.expect(b';')
}

/// Parses a directive inside a body.
pub(super) fn local_directive<'t>(c: &mut Cursor<'t>, out: &mut Vec<Stmt<'t>>) -> Parsed<()> {
    let line = c.line;
    let Some(d) = c.directive() else {
        let found = c.found();
        return c.error(format!("expected a directive, found {found}"));
    };
    match d {
        "loc" | "file" => c.skip_line(),
        "pragma" => pragma(c)?,
        "section" => section(c)?,
        "reg" => {
            let mut regs = Vec::new();
            registers(c, line, &mut regs)?;
            out.extend(regs.into_iter().map(Stmt::Reg));
            c.expect(b';')?;
        }
        _ => {
            let Some(space) = space_of(d) else {
                return c.error(format!("unknown directive `.{d}` in a function body"));
            };
            let mut vars = Vec::new();
            variables(c, space, false, line, &mut vars)?;
            out.extend(vars.into_iter().map(Stmt::Var));
        }
    }
    Ok(())
}

fn vector_of(d: &str) -> Option<u32> {
    match d {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    }
}

/// Parses `.reg` declarations after the keyword, without the `;`.
fn registers<'t>(c: &mut Cursor<'t>, line: u32, out: &mut Vec<RegDecl<'t>>) -> Parsed<()> {
    let mut vector = 1;
    let mut ty = None;
    while let Some(d) = c.directive() {
        match vector_of(d) {
            Some(v) => vector = v,
            None => ty = Some(d),
        }
    }
    let Some(ty) = ty else {
        return c.error("a .reg declaration needs a type");
    };
    loop {
        let name = c.word()?;
        let mut count = None;
        if c.eat(b'<') {
            match c.number()? {
                Number::Int(n) if n <= 4_000_000 => count = Some(n as u32),
                _ => return c.error("a register range needs a count of at most 4000000"),
            }
            c.expect(b'>')?;
        }
        out.push(RegDecl { line, ty, vector, name, count });
        if c.peek() != b',' {
            return Ok(());
        }
        c.pos += 1;
    }
}

fn variables<'t>(
    c: &mut Cursor<'t>,
    space: DeclSpace,
    external: bool,
    line: u32,
    out: &mut Vec<Var<'t>>,
) -> Parsed<()> {
    if space == DeclSpace::Reg {
        return c.error("module-scope registers are not supported");
    }
    let mut var = var_head(c, space, external, line)?;
    loop {
        var_tail(c, &mut var)?;
        out.push(var.clone());
        if !c.eat(b',') {
            break;
        }
        (var.dims, var.init) = (Vec::new(), None);
    }
    c.expect(b';')
}

/// Parses the qualifiers and the type before a variable's name.
fn var_head<'t>(c: &mut Cursor<'t>, space: DeclSpace, external: bool, line: u32) -> Parsed<Var<'t>> {
    let mut var =
        Var { line, space, external, align: None, ty: "", vector: 1, name: "", dims: Vec::new(), init: None };
    // `.param .u64 .ptr .global .align 16 p`: from `.ptr` on it is about what the pointer points to.
    let mut pointee = false;
    while let Some(d) = c.directive() {
        match d {
            "ptr" => pointee = true,
            "global" | "const" | "shared" | "local" if pointee => {}
            "align" if pointee => {
                c.number()?;
            }
            "align" => match c.number()? {
                Number::Int(n) if n.is_power_of_two() && n <= 1 << 16 => var.align = Some(n as u32),
                _ => return c.error("an alignment is a power of two of at most 65536"),
            },
            "attribute" => {
                c.expect(b'(')?;
                while !matches!(c.peek(), b')' | 0) {
                    c.pos += utf8_len(c.at(0));
                }
                c.expect(b')')?;
            }
            _ => match vector_of(d) {
                Some(v) => var.vector = v,
                None if var.ty.is_empty() => var.ty = d,
                None => return c.error(format!("unexpected `.{d}` in a declaration")),
            },
        }
    }
    if var.ty.is_empty() {
        return c.error("a declaration needs a type");
    }
    Ok(var)
}

fn var_tail<'t>(c: &mut Cursor<'t>, var: &mut Var<'t>) -> Parsed<()> {
    var.name = c.word()?;
    while c.eat(b'[') {
        if c.eat(b']') {
            var.dims.push(None);
            continue;
        }
        match body::constant(c, 0)? {
            super::ast::Operand::Int(n) => var.dims.push(Some(n)),
            _ => return c.error("an array size is an integer"),
        }
        c.expect(b']')?;
    }
    if c.eat(b'=') {
        var.init = Some(init(c, 0)?);
    }
    Ok(())
}

fn init<'t>(c: &mut Cursor<'t>, depth: u32) -> Parsed<Init<'t>> {
    if depth > 16 {
        return c.error("initialiser is nested too deeply");
    }
    if !c.eat(b'{') {
        return Ok(Init::Scalar(operand(c, 0)?));
    }
    let mut items = Vec::new();
    while !c.eat(b'}') {
        items.push(init(c, depth + 1)?);
        if !c.eat(b',') {
            c.expect(b'}')?;
            break;
        }
    }
    Ok(Init::List(items))
}

fn formals<'t>(c: &mut Cursor<'t>) -> Parsed<Vec<Formal<'t>>> {
    let mut out = Vec::new();
    if !c.eat(b'(') {
        return Ok(out);
    }
    while !c.eat(b')') {
        let line = c.line;
        match c.directive() {
            Some("param") => {
                let mut var = var_head(c, DeclSpace::Param, false, line)?;
                var_tail(c, &mut var)?;
                out.push(Formal::Param(var));
            }
            Some("reg") => {
                let Some(ty) = c.directive() else {
                    return c.error("a register parameter needs a type");
                };
                let name = c.word()?;
                out.push(Formal::Reg(RegDecl { line, ty, vector: 1, name, count: None }));
            }
            _ => {
                let found = c.found();
                return c.error(format!("expected a parameter, found {found}"));
            }
        }
        if !c.eat(b',') {
            c.expect(b')')?;
            break;
        }
    }
    Ok(out)
}

fn dims3(c: &mut Cursor<'_>) -> Parsed<[u32; 3]> {
    let mut out = [1; 3];
    for (i, slot) in out.iter_mut().enumerate() {
        match c.number()? {
            Number::Int(n) if n <= u64::from(u32::MAX) => *slot = n as u32,
            _ => return c.error("expected a dimension"),
        }
        if i == 2 || !c.eat(b',') {
            break;
        }
    }
    Ok(out)
}

fn count(c: &mut Cursor<'_>) -> Parsed<u32> {
    match c.number()? {
        Number::Int(n) if n <= u64::from(u32::MAX) => Ok(n as u32),
        _ => c.error("expected a count"),
    }
}

fn function<'t>(c: &mut Cursor<'t>, entry: bool, line: u32, errors: &mut Vec<Syntax>) -> Parsed<FuncAst<'t>> {
    let returns = if entry { Vec::new() } else { formals(c)? };
    let name = c.word()?;
    let params = formals(c)?;
    let mut f = FuncAst {
        line,
        entry,
        name,
        returns,
        params,
        reqntid: None,
        maxntid: None,
        reqnctapercluster: None,
        minnctapersm: None,
        maxnreg: None,
        body: None,
    };
    while let Some(d) = c.directive() {
        match d {
            "reqntid" => f.reqntid = Some(dims3(c)?),
            "maxntid" => f.maxntid = Some(dims3(c)?),
            "reqnctapercluster" => f.reqnctapercluster = Some(dims3(c)?),
            "minnctapersm" => f.minnctapersm = Some(count(c)?),
            "maxnreg" => f.maxnreg = Some(count(c)?),
            "maxnctapersm" | "maxclusterrank" => {
                c.number()?;
            }
            "explicitcluster" | "noreturn" | "unique" | "blocksareclusters" => {}
            "abi_preserve" | "abi_preserve_control" => {
                c.number()?;
            }
            "pragma" => pragma(c)?,
            "attribute" => {
                c.expect(b'(')?;
                while !matches!(c.peek(), b')' | 0) {
                    c.pos += utf8_len(c.at(0));
                }
                c.expect(b')')?;
            }
            _ => return c.error(format!("unknown performance directive `.{d}`")),
        }
    }
    if c.eat(b';') {
        return Ok(f);
    }
    c.expect(b'{')?;
    f.body = Some(body::body(c, errors));
    Ok(f)
}
