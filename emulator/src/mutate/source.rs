//! Instructions with their places in the text, and where a register was computed.

use crate::parse::ast::{Operand, Stmt};
use crate::parse::parse;
use std::borrow::Cow;
use std::ops::Range;

/// An instruction in the text.
pub(crate) struct Inst<'t> {
    pub line: u32,
    pub span: Range<usize>,
    /// Bytes of the guard, `@` included, and whether it is negated.
    pub guard: Option<(Range<usize>, bool)>,
    pub opcode: &'t str,
    pub opcode_span: Range<usize>,
    pub operands: Vec<(Range<usize>, Operand<'t>)>,
    /// Which function it is in.
    function: usize,
}

impl Inst<'_> {
    /// Whether the opcode has this modifier, without its dot.
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode.split('.').any(|m| m == modifier)
    }

    /// Whether the opcode begins with these words.
    pub fn is(&self, words: &str) -> bool {
        self.opcode
            .strip_prefix(words)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || rest.starts_with(':'))
    }
}

/// The text of a module and its instructions.
pub(crate) struct Source<'t> {
    pub text: &'t str,
    pub insts: Vec<Inst<'t>>,
}

impl<'t> Source<'t> {
    /// The instructions of one kernel and of all functions that are not kernels.
    pub fn new(text: &'t str, kernel: &str) -> Self {
        let (ast, _) = parse(text);
        let mut insts = Vec::new();
        for (function, f) in ast.functions.into_iter().enumerate() {
            if f.entry && f.name != kernel {
                continue;
            }
            for stmt in f.body.unwrap_or_default() {
                let Stmt::Inst(i) = stmt else { continue };
                // An opcode with white space in it is left as it is.
                let Cow::Borrowed(opcode) = i.opcode else { continue };
                let opcode_at = opcode.as_ptr() as usize - text.as_ptr() as usize;
                let opcode_span = opcode_at..opcode_at + opcode.len();
                let ranges = split(text, opcode_span.end..i.span.end.saturating_sub(1));
                if ranges.len() != i.operands.len() {
                    // A comment with a comma among the operands: nothing of ours to edit.
                    continue;
                }
                insts.push(Inst {
                    line: i.line,
                    guard: i.guard.map(|(negated, _)| (i.span.start..opcode_at, negated)),
                    span: i.span,
                    opcode,
                    opcode_span,
                    operands: ranges.into_iter().zip(i.operands).collect(),
                    function,
                });
            }
        }
        Source { text, insts }
    }

    /// The last instruction before `at` in its function that writes a register.
    pub fn definition(&self, at: usize, register: &str) -> Option<usize> {
        let function = self.insts[at].function;
        (0..at)
            .rev()
            .take_while(|&i| self.insts[i].function == function)
            .find(|&i| self.insts[i].operands.first().is_some_and(|(_, o)| writes(o, register)))
    }

    /// Instructions that compute a register from others, nearest first: its definition, those of the
    /// registers that it has as operands, and so on through `depth` steps.
    pub fn slice(&self, at: usize, register: &str, depth: u32) -> Vec<usize> {
        let mut out = Vec::new();
        if depth == 0 {
            return out;
        }
        let Some(i) = self.definition(at, register) else { return out };
        out.push(i);
        for (_, operand) in self.insts[i].operands.iter().skip(1) {
            for name in names(operand) {
                for found in self.slice(i, name, depth - 1) {
                    if !out.contains(&found) {
                        out.push(found);
                    }
                }
            }
        }
        out
    }
}

fn writes(operand: &Operand<'_>, register: &str) -> bool {
    match operand {
        Operand::Name(n) => *n == register,
        Operand::Vector(list) => list.iter().any(|o| writes(o, register)),
        Operand::Pair(a, b) => writes(a, register) || writes(b, register),
        _ => false,
    }
}

/// Registers and symbols in an operand.
pub(crate) fn names<'t>(operand: &Operand<'t>) -> Vec<&'t str> {
    match operand {
        Operand::Name(n) | Operand::Offset(n, _) => vec![n],
        Operand::Not(o) | Operand::Minus(o) => names(o),
        Operand::Vector(list) | Operand::Address(list) | Operand::List(list) => {
            list.iter().flat_map(names).collect()
        }
        _ => Vec::new(),
    }
}

/// Ranges of the parts of a list, without the white space around them.
pub(crate) fn split(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut depth, mut start) = (0i32, range.start);
    let mut out = Vec::new();
    for i in range.clone() {
        match bytes[i] {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth -= 1,
            b',' if depth == 0 => {
                out.push(trim(text, start..i));
                start = i + 1;
            }
            _ => {}
        }
    }
    let last = trim(text, start..range.end);
    if !last.is_empty() || !out.is_empty() {
        out.push(last);
    }
    out
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..start + part.trim().len()
}

/// Ranges of the parts inside the brackets or braces of an operand.
pub(crate) fn inside(text: &str, range: &Range<usize>) -> Vec<Range<usize>> {
    if range.len() < 2 {
        return Vec::new();
    }
    split(text, range.start + 1..range.end - 1)
}
