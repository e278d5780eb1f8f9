//! Parses statements and operands of function bodies.

use super::ast::{InstAst, Operand, Stmt};
use super::cursor::{Cursor, Number, Parsed, is_word};
use super::grammar;
use std::borrow::Cow;

/// Limit on nested parentheses, brackets and vectors in an operand.
const MAX_DEPTH: u32 = 64;
/// Limit on nested blocks in a body. A name may be declared in any enclosing block, so that each level costs time.
const MAX_BLOCKS: u32 = 256;
/// Limit on the length of an opcode; the longest in the ISA has about 150 characters.
const MAX_OPCODE: usize = 512;

/// Parses a body from after its opening brace through the closing one.
///
/// Errors are collected; parsing resumes after the next `;`.
pub(super) fn body<'t>(c: &mut Cursor<'t>, errors: &mut Vec<super::cursor::Syntax>) -> Vec<Stmt<'t>> {
    let mut out = Vec::new();
    let mut depth = 0u32;
    loop {
        match c.peek() {
            0 => {
                errors.push(super::cursor::Syntax {
                    line: c.line,
                    pos: c.pos,
                    message: "the file ends inside a function body".to_owned(),
                });
                return out;
            }
            b'{' if depth >= MAX_BLOCKS => {
                let message = format!(
                    "blocks are nested too deeply: at most {MAX_BLOCKS} are allowed; move the inner ones into a function"
                );
                errors.push(super::cursor::Syntax { line: c.line, pos: c.pos, message });
                skip_block(c);
            }
            b'{' => {
                c.pos += 1;
                depth += 1;
                out.push(Stmt::Open);
            }
            b'}' => {
                c.pos += 1;
                if depth == 0 {
                    return out;
                }
                depth -= 1;
                out.push(Stmt::Close);
            }
            b';' => c.pos += 1,
            _ => {
                if let Err(e) = statement(c, &mut out) {
                    errors.push(e);
                    resync(c);
                }
            }
        }
    }
}

/// Skips the block that starts here.
fn skip_block(c: &mut Cursor<'_>) {
    let mut depth = 0u64;
    loop {
        match c.peek() {
            0 => return,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        c.pos += utf8_len(c.at(0));
        if depth == 0 {
            return;
        }
    }
}

/// Skips past the next `;`, or to the next brace.
fn resync(c: &mut Cursor<'_>) {
    loop {
        match c.peek() {
            0 | b'}' => return,
            b';' => {
                c.pos += 1;
                return;
            }
            _ => c.pos += utf8_len(c.at(0)),
        }
    }
}

pub(super) fn utf8_len(first: u8) -> usize {
    match first {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
        _ => 1,
    }
}

fn statement<'t>(c: &mut Cursor<'t>, out: &mut Vec<Stmt<'t>>) -> Parsed<()> {
    if c.peek() == b'.' {
        return grammar::local_directive(c, out);
    }
    let (line, start) = (c.line, c.pos);
    let mut guard = None;
    if c.eat(b'@') {
        if c.at(0) == b'@' {
            c.skip_line();
            return Ok(());
        }
        let negated = c.eat(b'!');
        guard = Some((negated, c.word()?));
    }
    if !is_word(c.peek()) {
        let found = c.found();
        return c.error(format!("expected a statement, found {found}"));
    }
    // A label is a plain word and a single colon.
    let mark = (c.pos, c.line);
    let word = c.word()?;
    c.skip();
    if guard.is_none() && c.at(0) == b':' && c.at(1) != b':' {
        c.pos += 1;
        if c.peek() == b'.' {
            let (pos, l) = (c.pos, c.line);
            match c.directive() {
                Some("branchtargets" | "calltargets") => {
                    let mut names = vec![c.word()?];
                    while c.eat(b',') {
                        names.push(c.word()?);
                    }
                    c.expect(b';')?;
                    out.push(Stmt::Targets(word, names));
                    return Ok(());
                }
                Some("callprototype") => {
                    while !matches!(c.peek(), b';' | 0) {
                        c.pos += utf8_len(c.at(0));
                    }
                    // What it can call is not written: every function whose address is taken.
                    out.push(Stmt::Targets(word, Vec::new()));
                    return c.expect(b';');
                }
                _ => (c.pos, c.line) = (pos, l),
            }
        }
        out.push(Stmt::Label(word, line));
        return Ok(());
    }
    (c.pos, c.line) = mark;
    let first = c.dotted()?;
    let head = first.split('.').next().unwrap_or(first);
    // ptxas takes white space before the dot of a modifier: TileLang writes `.bulk_group .L2::cache_hint`.
    let mut opcode = Cow::Borrowed(first);
    while c.peek() == b'.' && is_word(c.at(1)) {
        opcode.to_mut().push_str(c.dotted()?);
    }
    if opcode.len() > MAX_OPCODE {
        let len = opcode.len();
        return c.error(format!("an opcode of {len} characters: at most {MAX_OPCODE} are allowed"));
    }
    let mut operands = Vec::new();
    if c.peek() != b';' {
        loop {
            operands.push(operand(c, 0)?);
            if !c.eat(b',') {
                break;
            }
        }
    }
    if c.peek() != b';' {
        let found = c.found();
        return c.error(format!("expected `,` or `;` after the operands of `{opcode}`, found {found}"));
    }
    c.pos += 1;
    out.push(Stmt::Inst(InstAst { line, span: start..c.pos, guard, opcode, head, operands }));
    Ok(())
}

fn too_deep<T>(c: &Cursor<'_>) -> Parsed<T> {
    c.error(format!("this is nested too deeply: at most {MAX_DEPTH} levels are allowed in an operand"))
}

/// Parses one operand, including pairs `p|q`.
pub(super) fn operand<'t>(c: &mut Cursor<'t>, depth: u32) -> Parsed<Operand<'t>> {
    let first = simple(c, depth)?;
    if c.peek() == b'|' && c.at(1) != b'|' && matches!(first, Operand::Name(_) | Operand::Sink) {
        c.pos += 1;
        let second = simple(c, depth)?;
        return Ok(Operand::Pair(Box::new(first), Box::new(second)));
    }
    Ok(first)
}

fn list<'t>(c: &mut Cursor<'t>, close: u8, depth: u32) -> Parsed<Vec<Operand<'t>>> {
    let mut items = Vec::new();
    if c.eat(close) {
        return Ok(items);
    }
    loop {
        items.push(operand(c, depth + 1)?);
        if !c.eat(b',') {
            break;
        }
    }
    c.expect(close)?;
    Ok(items)
}

fn simple<'t>(c: &mut Cursor<'t>, depth: u32) -> Parsed<Operand<'t>> {
    if depth > MAX_DEPTH {
        return too_deep(c);
    }
    match c.peek() {
        b'{' => {
            c.pos += 1;
            Ok(Operand::Vector(list(c, b'}', depth)?))
        }
        b'[' => {
            c.pos += 1;
            let items = list(c, b']', depth)?;
            // `[a].unified` says how the address was made, which changes nothing.
            let rest = &c.text[c.pos..];
            if let Some(after) = rest.strip_prefix(".unified")
                && !after.starts_with(|x: char| x == '_' || x.is_ascii_alphanumeric())
            {
                c.pos += ".unified".len();
            }
            Ok(Operand::Address(items))
        }
        b'!' => {
            c.pos += 1;
            Ok(Operand::Not(Box::new(simple(c, depth + 1)?)))
        }
        b'(' => {
            // Call arguments, or a parenthesised constant.
            let mark = (c.pos, c.line);
            if let Ok(v) = constant(c, depth) {
                return Ok(v);
            }
            (c.pos, c.line) = mark;
            c.pos += 1;
            Ok(Operand::List(list(c, b')', depth)?))
        }
        b'-' if c.at(1) == b'%' => {
            c.pos += 1;
            Ok(Operand::Minus(Box::new(Operand::Name(c.dotted()?))))
        }
        b'0'..=b'9' | b'-' | b'+' | b'~' => constant(c, depth),
        b'_' if !is_word(c.at(1)) => {
            c.pos += 1;
            Ok(Operand::Sink)
        }
        _ => {
            let name = c.dotted()?;
            if name.starts_with(':') || name.starts_with('.') {
                return c.error(format!("expected an operand, found `{name}`"));
            }
            if name == "WARP_SZ" {
                return Ok(Operand::Int(32));
            }
            match c.peek() {
                b'+' | b'-' => offset(c, Operand::Name(name), depth),
                b'(' if name == "generic" => {
                    c.pos += 1;
                    let inner = c.dotted()?;
                    if c.peek() == b'(' {
                        return c.error("generic() takes a variable, with or without an offset");
                    }
                    let inner = offset(c, Operand::Name(inner), depth + 1)?;
                    c.expect(b')')?;
                    offset(c, inner, depth)
                }
                b'.' => Ok(Operand::Name(component(c, name)?)),
                _ => Ok(Operand::Name(name)),
            }
        }
    }
}

/// Parses the component of `%tid .x`, with white space before the dot.
fn component<'t>(c: &mut Cursor<'t>, name: &'t str) -> Parsed<&'t str> {
    const NAMES: [&str; 24] = [
        "%tid.x",
        "%tid.y",
        "%tid.z",
        "%ntid.x",
        "%ntid.y",
        "%ntid.z",
        "%ctaid.x",
        "%ctaid.y",
        "%ctaid.z",
        "%nctaid.x",
        "%nctaid.y",
        "%nctaid.z",
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
    ];
    let part = c.dotted()?;
    match NAMES.into_iter().find(|full| full.strip_prefix(name) == Some(part)) {
        Some(full) => Ok(full),
        None => c.error(format!("`{part}` after white space is no part of `{name}`")),
    }
}

/// Parses an offset after a name, if one follows: `name + constant` or `name - constant`.
fn offset<'t>(c: &mut Cursor<'t>, base: Operand<'t>, depth: u32) -> Parsed<Operand<'t>> {
    let negative = match c.peek() {
        b'+' => false,
        b'-' => true,
        _ => return Ok(base),
    };
    c.pos += 1;
    match (base, constant(c, depth)?) {
        (Operand::Name(name), Operand::Int(v)) => {
            let v = v as i64;
            Ok(Operand::Offset(name, if negative { v.wrapping_neg() } else { v }))
        }
        _ => c.error("an offset is an integer that follows a name"),
    }
}

/// Parses a constant expression: unary `- + ~`, parentheses, and binary operators with C's precedence.
pub(super) fn constant<'t>(c: &mut Cursor<'t>, depth: u32) -> Parsed<Operand<'t>> {
    binary(c, 0, depth)
}

fn level(c: &mut Cursor<'_>) -> Option<(u32, u8, usize)> {
    let a = c.peek();
    match (a, c.at(1)) {
        (b'*' | b'/' | b'%', _) if !(a == b'%' && is_word(c.at(1))) => Some((5, a, 1)),
        (b'+' | b'-', _) => Some((4, a, 1)),
        (b'<', b'<') | (b'>', b'>') => Some((3, a, 2)),
        (b'&', n) if n != b'&' => Some((2, a, 1)),
        (b'^', _) => Some((1, a, 1)),
        (b'|', n) if n != b'|' => Some((0, a, 1)),
        _ => None,
    }
}

fn binary<'t>(c: &mut Cursor<'t>, min: u32, depth: u32) -> Parsed<Operand<'t>> {
    if depth > MAX_DEPTH {
        return too_deep(c);
    }
    let mut left = unary(c, depth)?;
    while let Some((l, op, len)) = level(c) {
        if l < min {
            break;
        }
        c.pos += len;
        let right = binary(c, l + 1, depth + 1)?;
        let (Operand::Int(a), Operand::Int(b)) = (&left, &right) else {
            return c.error("constant expressions combine integers only");
        };
        let (a, b) = (*a, *b);
        left = Operand::Int(match op {
            b'*' => a.wrapping_mul(b),
            b'/' | b'%' if b == 0 => return c.error("division by zero in a constant expression"),
            b'/' => (a as i64).wrapping_div(b as i64) as u64,
            b'%' => (a as i64).wrapping_rem(b as i64) as u64,
            b'+' => a.wrapping_add(b),
            b'-' => a.wrapping_sub(b),
            b'<' => a.checked_shl(b as u32).unwrap_or(0),
            b'>' => a.checked_shr(b as u32).unwrap_or(0),
            b'&' => a & b,
            b'^' => a ^ b,
            _ => a | b,
        });
    }
    Ok(left)
}

fn unary<'t>(c: &mut Cursor<'t>, depth: u32) -> Parsed<Operand<'t>> {
    if depth > MAX_DEPTH {
        return too_deep(c);
    }
    match c.peek() {
        b'-' => {
            c.pos += 1;
            Ok(match unary(c, depth + 1)? {
                Operand::Int(v) => Operand::Int(v.wrapping_neg()),
                Operand::Float(v) => Operand::Float(-v),
                Operand::F32(v) => Operand::F32(v ^ 0x8000_0000),
                Operand::F64(v) => Operand::F64(v ^ (1 << 63)),
                _ => return c.error("`-` must be followed by a constant"),
            })
        }
        b'+' => {
            c.pos += 1;
            unary(c, depth + 1)
        }
        b'~' => {
            c.pos += 1;
            match unary(c, depth + 1)? {
                Operand::Int(v) => Ok(Operand::Int(!v)),
                _ => c.error("`~` must be followed by an integer"),
            }
        }
        b'(' => {
            c.pos += 1;
            let v = binary(c, 0, depth + 1)?;
            c.expect(b')')?;
            Ok(v)
        }
        b'0'..=b'9' => Ok(match c.number()? {
            Number::Int(v) => Operand::Int(v),
            Number::Float(v) => Operand::Float(v),
            Number::F32(v) => Operand::F32(v),
            Number::F64(v) => Operand::F64(v),
        }),
        _ => {
            let found = c.found();
            c.error(format!("expected a constant, found {found}"))
        }
    }
}
