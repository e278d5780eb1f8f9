//! The gate as a tree: [`Expr`] over the two products, run-time scalars and vectors, and literals.

use std::collections::BTreeSet;
use std::fmt;

use super::functions::Function;
use crate::problem::{Operation, Problem, Shape};

/// One of the two products of a dual GEMM. `First` is the one the user wrote first, reading from
/// left to right; its accumulator is the one the kernel can finish early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Product {
    /// `A @ B1`.
    First,
    /// `A @ B2`.
    Second,
}

impl Product {
    /// The other product.
    pub fn other(self) -> Self {
        match self {
            Product::First => Product::Second,
            Product::Second => Product::First,
        }
    }
}

/// Along which side of C a vector of the gate runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// `name[m]`: an element a row, M in all (a scale a token).
    M,
    /// `name[n]`: an element a column, N in all (a bias, a scale an output feature).
    N,
    /// `name[m, n]`: an element for each of C, M x N in all (a residual).
    MN,
}

impl Axis {
    /// The index in the language: `m` or `n`.
    pub fn index(self) -> &'static str {
        match self {
            Axis::M => "m",
            Axis::N => "n",
            Axis::MN => "m, n",
        }
    }
}

/// A vector or a matrix that a gate reads. A vector is f32, one element per row or per column of C. A matrix has C's
/// shape and layout, in the format that [`Formats::matrix`](crate::problem::Formats::matrix) says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateVector {
    /// The user's name for it.
    pub name: String,
    /// What its elements belong to.
    pub axis: Axis,
}

impl GateVector {
    /// Elements of it: M, N or M x N of `shape`, over all matrices of a batch; one N per group.
    pub fn elements(&self, shape: Shape) -> u64 {
        match self.axis {
            Axis::M => shape.rows(),
            Axis::N => u64::from(shape.n) * u64::from(shape.groups.count()),
            Axis::MN => shape.rows().saturating_mul(shape.n.into()),
        }
    }

    /// Bytes of it: elements of 4 bytes, or, of a matrix, in [`Formats::matrix`](crate::problem::Formats::matrix).
    pub fn bytes(&self, problem: &Problem) -> u64 {
        match self.axis {
            Axis::M | Axis::N => self.elements(problem.shape).saturating_mul(4),
            Axis::MN => problem.matrix_bytes(),
        }
    }

    /// Whether it has an element for each of C.
    pub fn is_matrix(&self) -> bool {
        self.axis == Axis::MN
    }
}

impl fmt::Display for GateVector {
    /// As it is written in a gate: `b1[n]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.axis.index())
    }
}

/// A finite literal, compared and hashed by its bits so that expressions can be keys.
///
/// It is kept as written (f64): the reference uses it so, and lowering rounds it once to f32.
#[derive(Clone, Copy, Debug)]
pub struct Number(f64);

impl Number {
    /// `value`, or `None` where it is not finite or overflows f32, the type the gate computes in.
    pub fn new(value: f64) -> Option<Self> {
        (value as f32).is_finite().then_some(Number(value))
    }

    /// The number nearest to `value`: `value` itself wherever [`Number::new`] takes it, else the
    /// largest of f32 with its sign, and 0 for NaN. For code that was generated from a number.
    pub const fn nearest(value: f64) -> Self {
        if value.is_nan() {
            return Number(0.0);
        }
        match (value as f32).is_finite() {
            true => Number(value),
            false if value > 0.0 => Number(f32::MAX as f64),
            false => Number(f32::MIN as f64),
        }
    }

    /// The value as written.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl std::hash::Hash for Number {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// A binary operator of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BinaryOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
}

impl BinaryOp {
    fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
        }
    }

    fn precedence(self) -> u8 {
        match self {
            BinaryOp::Add | BinaryOp::Sub => SUM,
            BinaryOp::Mul | BinaryOp::Div => FACTOR,
        }
    }
}

/// A gate expression: what happens, element by element, to the two products of a dual GEMM.
///
/// All of it is real arithmetic: [`Expr::evaluator`] computes it in f64, lowering in f32 with the
/// error bounds that [`functions`](super::functions) states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// An element of one of the products, in f32.
    Product(Product),
    /// A run-time f32 argument of the kernel, by name.
    Scalar(String),
    /// An element of a run-time vector or matrix: that of the row, of the column, or of both.
    Vector(GateVector),
    /// A constant.
    Literal(Number),
    /// `-x`
    Neg(Box<Expr>),
    /// `x + y` and its kin.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// A function of the [table](super::functions::FUNCTIONS) with as many arguments as its arity.
    Call(Function, Vec<Expr>),
}

/// The operand names of a gate, as its user wrote them: `a @ b1` and `a @ b2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GateSource {
    /// The left operand of both products.
    pub a: String,
    /// The right operand of the product that comes first in reading order.
    pub b1: String,
    /// The right operand of the other product; `None` if the gate has one product, that of a GEMM.
    pub b2: Option<String>,
}

impl Default for GateSource {
    /// `A`, `B1`, `B2`.
    fn default() -> Self {
        GateSource { a: "A".into(), b1: "B1".into(), b2: Some("B2".into()) }
    }
}

/// A parsed gate: the expression and the names its user gave the operands.
///
/// `Display` writes it in the language it was parsed from and parses back to an equal `Gate`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// Operand names.
    pub source: GateSource,
    /// The mathematics.
    pub expr: Expr,
}

/// Nodes a parsed expression may have. Far above any real gate; it bounds recursion.
pub const MAX_NODES: usize = 1024;

/// Vectors along M, and along N, that a parsed gate may have. Assemblers bring their loads forward, so that
/// those of a chunk of columns occupy registers all at once: 32 a vector along N.
pub const MAX_VECTORS: usize = 4;

impl Expr {
    /// A scalar argument.
    pub fn scalar(name: impl Into<String>) -> Self {
        Expr::Scalar(name.into())
    }

    /// A vector argument.
    pub fn vector(name: impl Into<String>, axis: Axis) -> Self {
        Expr::Vector(GateVector { name: name.into(), axis })
    }

    /// `op(self, rhs)`.
    pub fn binary(self, op: BinaryOp, rhs: Expr) -> Self {
        Expr::Binary(op, Box::new(self), Box::new(rhs))
    }

    /// The direct subexpressions, left to right.
    pub fn children(&self) -> Vec<&Expr> {
        match self {
            Expr::Product(_) | Expr::Scalar(_) | Expr::Vector(_) | Expr::Literal(_) => Vec::new(),
            Expr::Neg(x) => vec![x],
            Expr::Binary(_, x, y) => vec![x, y],
            Expr::Call(_, args) => args.iter().collect(),
        }
    }

    /// The same node over `f` of its children.
    pub fn map_children(&self, mut f: impl FnMut(&Expr) -> Expr) -> Expr {
        match self {
            Expr::Product(_) | Expr::Scalar(_) | Expr::Vector(_) | Expr::Literal(_) => self.clone(),
            Expr::Neg(x) => Expr::Neg(Box::new(f(x))),
            Expr::Binary(op, x, y) => {
                let x = f(x);
                Expr::Binary(*op, Box::new(x), Box::new(f(y)))
            }
            Expr::Call(function, args) => Expr::Call(*function, args.iter().map(f).collect()),
        }
    }

    /// Whether `product` occurs in the expression.
    pub fn uses(&self, product: Product) -> bool {
        match self {
            Expr::Product(p) => *p == product,
            Expr::Scalar(_) | Expr::Vector(_) | Expr::Literal(_) => false,
            Expr::Neg(x) => x.uses(product),
            Expr::Binary(_, x, y) => x.uses(product) || y.uses(product),
            Expr::Call(_, args) => args.iter().any(|arg| arg.uses(product)),
        }
    }

    /// What computes the products that occur: one GEMM if there is only one of them.
    pub fn operation(&self) -> Operation {
        match (self.uses(Product::First), self.uses(Product::Second)) {
            (true, true) => Operation::DualGemm,
            (true, false) | (false, _) => Operation::Gemm,
        }
    }

    /// The names of the scalar arguments, each once, in order of first appearance. This is the
    /// order in which fragments and evaluators take them.
    pub fn scalars(&self) -> Vec<String> {
        fn visit(expr: &Expr, seen: &mut BTreeSet<String>, names: &mut Vec<String>) {
            if let Expr::Scalar(name) = expr
                && seen.insert(name.clone())
            {
                names.push(name.clone());
            }
            expr.children().into_iter().for_each(|c| visit(c, seen, names));
        }
        let (mut seen, mut names) = (BTreeSet::new(), Vec::new());
        visit(self, &mut seen, &mut names);
        names
    }

    /// The vector arguments, each once, in order of first appearance. This is the order in which
    /// fragments and evaluators take them.
    pub fn vectors(&self) -> Vec<GateVector> {
        fn visit<'a>(expr: &'a Expr, seen: &mut BTreeSet<&'a GateVector>, vectors: &mut Vec<GateVector>) {
            if let Expr::Vector(vector) = expr
                && seen.insert(vector)
            {
                vectors.push(vector.clone());
            }
            expr.children().into_iter().for_each(|c| visit(c, seen, vectors));
        }
        let (mut seen, mut vectors) = (BTreeSet::new(), Vec::new());
        visit(self, &mut seen, &mut vectors);
        vectors
    }

    /// The expression with its scalars renamed by `f`.
    pub fn rename_scalars(&self, f: &impl Fn(&str) -> String) -> Expr {
        match self {
            Expr::Scalar(name) => Expr::Scalar(f(name)),
            _ => self.map_children(|c| c.rename_scalars(f)),
        }
    }

    /// The expression with its two products exchanged.
    pub fn swap_products(&self) -> Expr {
        match self {
            Expr::Product(p) => Expr::Product(p.other()),
            _ => self.map_children(Expr::swap_products),
        }
    }

    /// The expression as text, with `first` and `second` standing for the products. A name that
    /// is itself an operation (`A @ B1`) is parenthesised where it has to be.
    pub fn display<'a>(&'a self, first: &'a str, second: &'a str) -> impl fmt::Display + 'a {
        Shown { expr: self, first, second }
    }
}

impl fmt::Display for Expr {
    /// With the operand names `A`, `B1`, `B2`, or `A` and `B` if there is one product. Parses back to an equal expression where the first
    /// product in reading order is [`Product::First`], as in every parsed one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Operation::DualGemm => self.display("A @ B1", "A @ B2").fmt(f),
            Operation::Gemm => self.display("A @ B", "A @ B").fmt(f),
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GateSource { a, b1, b2 } = &self.source;
        let second = b2.as_ref().map_or_else(String::new, |b2| format!("{a} @ {b2}"));
        self.expr.display(&format!("{a} @ {b1}"), &second).fmt(f)
    }
}

const ANY: u8 = 0;
const SUM: u8 = 1;
const FACTOR: u8 = 2;
const UNARY: u8 = 3;

struct Shown<'a> {
    expr: &'a Expr,
    first: &'a str,
    second: &'a str,
}

impl Shown<'_> {
    /// Writes `expr` for a place that takes operators of at least `least` precedence.
    fn write(&self, expr: &Expr, least: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match expr {
            Expr::Product(product) => {
                let name = match product {
                    Product::First => self.first,
                    Product::Second => self.second,
                };
                if least > ANY && name.contains(' ') { write!(f, "({name})") } else { f.write_str(name) }
            }
            Expr::Scalar(name) => f.write_str(name),
            Expr::Vector(vector) => write!(f, "{vector}"),
            Expr::Literal(number) => write!(f, "{:?}", number.get()),
            Expr::Neg(x) => {
                f.write_str("-")?;
                if matches!(**x, Expr::Literal(_)) {
                    // `-7.0` would read back as a negative literal.
                    f.write_str("(")?;
                    self.write(x, ANY, f)?;
                    return f.write_str(")");
                }
                self.write(x, UNARY, f)
            }
            Expr::Binary(op, x, y) => {
                let precedence = op.precedence();
                let parens = precedence < least;
                if parens {
                    f.write_str("(")?;
                }
                self.write(x, precedence, f)?;
                write!(f, " {} ", op.symbol())?;
                self.write(y, precedence + 1, f)?;
                if parens {
                    f.write_str(")")?;
                }
                Ok(())
            }
            Expr::Call(function, args) => {
                write!(f, "{}(", function.name())?;
                for (i, arg) in args.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    self.write(arg, ANY, f)?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At the top a bare product is written with its parentheses, as in `(A @ B1) * ...`.
        let least = if matches!(self.expr, Expr::Product(_)) { SUM } else { ANY };
        self.write(self.expr, least, f)
    }
}
