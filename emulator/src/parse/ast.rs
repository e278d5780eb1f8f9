//! Syntax tree of a PTX module, which borrows from the text.

use std::borrow::Cow;
use std::ops::Range;

/// A state space named in a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
    Reg,
}

/// One element of an initialiser list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Init<'t> {
    Scalar(Operand<'t>),
    List(Vec<Init<'t>>),
}

/// A variable in any state space but registers, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Var<'t> {
    pub line: u32,
    pub space: DeclSpace,
    pub external: bool,
    /// Alignment in bytes, where `.align` gives one.
    pub align: Option<u32>,
    /// Element type text without the dot, e.g. `b8`.
    pub ty: &'t str,
    /// Elements per vector, as in `.v2` and `.v4`; 1 without.
    pub vector: u32,
    pub name: &'t str,
    /// Array dimensions; `None` is an open `[]`.
    pub dims: Vec<Option<u64>>,
    pub init: Option<Init<'t>>,
}

/// `.reg .b32 %r<10>;` (count is Some) or `.reg .b32 %x;` (count is None).
#[derive(Clone, Debug)]
pub(crate) struct RegDecl<'t> {
    pub line: u32,
    pub ty: &'t str,
    pub vector: u32,
    pub name: &'t str,
    pub count: Option<u32>,
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'t> {
    /// Register, special register (`%tid.x`), symbol or label.
    Name(&'t str),
    /// `name + offset` or `name - offset`.
    Offset(&'t str, i64),
    /// An integer constant, as 64-bit two's complement.
    Int(u64),
    /// Decimal floating-point constant.
    Float(f64),
    /// `0f` and eight hexadecimal digits.
    F32(u32),
    /// `0d` and sixteen hexadecimal digits.
    F64(u64),
    /// `!p`.
    Not(Box<Operand<'t>>),
    /// `-r`, of `vmad`.
    Minus(Box<Operand<'t>>),
    /// `{a, b}`.
    Vector(Vec<Operand<'t>>),
    /// `[base, rest...]`.
    Address(Vec<Operand<'t>>),
    /// `p|q`.
    Pair(Box<Operand<'t>>, Box<Operand<'t>>),
    /// `_`.
    Sink,
    /// `(a, b)`, as in calls.
    List(Vec<Operand<'t>>),
}

/// A guarded instruction.
#[derive(Clone, Debug)]
pub(crate) struct InstAst<'t> {
    pub line: u32,
    /// Range of the text in bytes, from the guard to the semicolon.
    pub span: Range<usize>,
    /// `(negated, predicate)`.
    pub guard: Option<(bool, &'t str)>,
    /// The opcode without white space between its parts, and its first part.
    pub opcode: Cow<'t, str>,
    pub head: &'t str,
    pub operands: Vec<Operand<'t>>,
}

/// A statement of a function body. Blocks are a flat list with opening and closing statements.
#[derive(Clone, Debug)]
pub(crate) enum Stmt<'t> {
    Open,
    Close,
    Reg(RegDecl<'t>),
    Var(Var<'t>),
    Label(&'t str, u32),
    /// `name: .branchtargets a, b;`
    Targets(&'t str, Vec<&'t str>),
    Inst(InstAst<'t>),
}

/// A formal parameter of a function: in the parameter space or a register.
#[derive(Clone, Debug)]
pub(crate) enum Formal<'t> {
    Param(Var<'t>),
    Reg(RegDecl<'t>),
}

/// An `.entry` or a `.func`.
#[derive(Clone, Debug)]
pub(crate) struct FuncAst<'t> {
    pub line: u32,
    pub entry: bool,
    pub name: &'t str,
    pub returns: Vec<Formal<'t>>,
    pub params: Vec<Formal<'t>>,
    pub reqntid: Option<[u32; 3]>,
    pub maxntid: Option<[u32; 3]>,
    pub reqnctapercluster: Option<[u32; 3]>,
    pub minnctapersm: Option<u32>,
    pub maxnreg: Option<u32>,
    /// The body; `None` for a declaration.
    pub body: Option<Vec<Stmt<'t>>>,
}

/// A whole module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleAst<'t> {
    pub version: Option<(u32, u32)>,
    pub target: Vec<&'t str>,
    pub vars: Vec<Var<'t>>,
    pub functions: Vec<FuncAst<'t>>,
}
