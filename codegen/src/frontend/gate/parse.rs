//! The gate language: `silu(A @ B1) * (A @ B2)` to a [`Gate`], with errors where they belong.
//!
//! Grammar, loosest first; `@` binds tighter than `*`, unary minus in between:
//!
//! ```text
//! expr    := term (('+' | '-') term)*
//! term    := unary (('*' | '/') unary)*
//! unary   := '-' unary | atom
//! atom    := NAME '@' NAME | NUMBER | NAME '(' expr (',' expr)* ')' | NAME | NAME '[' axis ']' | '(' expr ')'
//! axis    := 'n' | 'm' | 'm' ',' 'n'
//! ```
//!
//! A `NAME` is an ASCII identifier that is no keyword: beside `@` a matrix, before parentheses a
//! function, before brackets a run-time vector of f32 (`[n]`: an element a column; `[m]`: one a row) or a run-time
//! matrix (`[m, n]`: an element for each of C), and otherwise a run-time scalar (f32). There are one or two products. Both
//! have the same left operand; the right operand that comes first in reading order makes [`Product::First`]. Each product
//! may be written any number of times.
//!
//! As a [`syn::parse::Parse`] the expression ends before the first token that cannot continue it,
//! which has to be `,`, `;` or the end.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, Lit, Result, Token, token};

use super::expr::{Axis, BinaryOp, Expr, Gate, GateSource, MAX_NODES, MAX_VECTORS, Number, Product};
use super::functions::{FUNCTIONS, Function};
use crate::suggest::did_you_mean;

/// How deep parentheses and signs may nest.
const MAX_DEPTH: usize = 64;
/// Characters of a gate's text: [`MAX_NODES`] operations with names of 30 characters are half as long.
const MAX_TEXT: usize = 64 << 10;
/// Characters of one name or number: the tokenizer's time grows with the square of a number's digits.
const MAX_WORD: usize = 256;

/// An error of [`Gate`]'s `FromStr`: what is wrong, and where in the text.
///
/// `Display` writes the message, the line and carets under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateParseError {
    /// What is wrong and what would be right.
    pub message: String,
    /// The text.
    pub text: String,
    /// The place, in characters (not bytes) of `text`.
    pub columns: Range<usize>,
}

impl std::error::Error for GateParseError {}

impl fmt::Display for GateParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.columns.clone();
        // One line, whatever white space the text has, so that columns line up.
        let line: String = self.text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
        let carets = "^".repeat(end.saturating_sub(start).max(1));
        write!(f, "{}\n  {}\n  {}{carets}", self.message, line.trim_end(), " ".repeat(start))
    }
}

impl std::str::FromStr for Gate {
    type Err = GateParseError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let fail = |message: String, columns| GateParseError { message, text: text.to_owned(), columns };
        let length = text.chars().count();
        if length == 0 || text.trim().is_empty() {
            return Err(fail(format!("the gate is empty; {EXAMPLE}"), 0..0));
        }
        // Token trees are built by recursion, before the parser can count.
        let (mut depth, mut word) = (0usize, 0usize);
        for (i, c) in text.chars().enumerate() {
            word = if c.is_alphanumeric() || c == '_' { word + 1 } else { 0 };
            if word > MAX_WORD {
                let start = i + 1 - word;
                let message = format!("a name or a number of more than {MAX_WORD} characters; shorten it");
                return Err(fail(message, start..i + 1));
            }
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_DEPTH {
                return Err(fail(too_deep(), i..i + 1));
            }
        }
        if length > MAX_TEXT {
            // Without the text: nobody finds a place in so much of it.
            return Err(GateParseError {
                message: format!(
                    "the gate has {length} characters, and at most {MAX_TEXT} are read; simplify it"
                ),
                text: String::new(),
                columns: 0..0,
            });
        }
        // Character offsets of the starts of lines, to turn a line and column into one column.
        let lines: Vec<usize> = std::iter::once(0)
            .chain(text.chars().enumerate().filter(|(_, c)| *c == '\n').map(|(i, _)| i + 1))
            .collect();
        let offset = |at: proc_macro2::LineColumn| {
            let line = lines.get(at.line.saturating_sub(1)).copied().unwrap_or(length);
            (line + at.column).min(length)
        };
        let located = |error: Error| {
            let (span, message) = (error.span(), error.to_string());
            let (start, end) = (offset(span.start()), offset(span.end()));
            // An error at the end of the text, outside of brackets, has an empty span.
            if start == end { fail(message, length..length) } else { fail(message, start..end) }
        };
        let tokens: proc_macro2::TokenStream = text.parse().map_err(|e| {
            let e = Error::from(e);
            let (start, end) = (offset(e.span().start()), offset(e.span().end()));
            fail(
                "this is not a token of the gate language: an unmatched bracket or quote, or a \
                 character that has no meaning here"
                    .to_owned(),
                start..end.max(start + 1),
            )
        })?;
        let whole = |input: ParseStream| {
            let gate = Gate::parse(input)?;
            if !input.is_empty() {
                return Err(unexpected(input));
            }
            Ok(gate)
        };
        syn::parse::Parser::parse2(whole, tokens).map_err(located)
    }
}

const EXAMPLE: &str =
    "a gate is written like `silu(A @ B1) * (A @ B2)`, that of one GEMM like `A @ B + bias[n]`";

fn too_deep() -> String {
    format!("the gate nests deeper than {MAX_DEPTH} levels; simplify it")
}

/// Whether the expression may end here.
fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,]) || input.peek(Token![;])
}

/// The error for a token where an operator or the end belongs.
fn unexpected(input: ParseStream) -> Error {
    input.error("expected `+`, `-`, `*`, `/` or the end of the gate")
}

fn side(axis: Axis) -> &'static str {
    match axis {
        Axis::M => "row",
        Axis::N => "column",
        Axis::MN => "row and column",
    }
}

/// A product as it was written.
struct Written {
    left: Ident,
    right: Ident,
}

impl Written {
    fn error(&self, message: impl fmt::Display) -> Error {
        let mut tokens = self.left.to_token_stream();
        tokens.extend(self.right.to_token_stream());
        Error::new_spanned(tokens, message)
    }
}

/// The state of one parse.
#[derive(Default)]
struct Parser {
    /// Every product in reading order.
    products: Vec<Written>,
    /// Every bare name in reading order.
    scalars: Vec<Ident>,
    /// Every vector in reading order.
    vectors: Vec<(Ident, Axis)>,
    /// The names of the operands, as far as they are known.
    a: Option<String>,
    rights: Vec<String>,
    depth: usize,
    nodes: usize,
    /// The operator that was read last.
    operator: Option<Span>,
}

impl Parse for Gate {
    fn parse(input: ParseStream) -> Result<Self> {
        let start = input.span();
        let mut parser = Parser::default();
        let expr = parser.expr(input)?;
        if !at_end(input) {
            return Err(unexpected(input));
        }
        let source = parser.finish(start)?;
        Ok(Gate { source, expr })
    }
}

impl Parser {
    fn node(&mut self, span: Span, expr: Expr) -> Result<Expr> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("the gate has more than {MAX_NODES} operations; simplify it");
            return Err(Error::new(span, message));
        }
        Ok(expr)
    }

    fn expr(&mut self, input: ParseStream) -> Result<Expr> {
        let mut sum = self.term(input)?;
        loop {
            let span = input.span();
            let op = if input.peek(Token![+]) && !input.peek(Token![+=]) {
                input.parse::<Token![+]>()?;
                BinaryOp::Add
            } else if input.peek(Token![-]) && !input.peek(Token![-=]) && !input.peek(Token![->]) {
                input.parse::<Token![-]>()?;
                BinaryOp::Sub
            } else {
                return Ok(sum);
            };
            self.operator = Some(span);
            let term = self.term(input)?;
            sum = self.node(span, sum.binary(op, term))?;
        }
    }

    fn term(&mut self, input: ParseStream) -> Result<Expr> {
        let mut product = self.unary(input)?;
        loop {
            let span = input.span();
            let op = if input.peek(Token![*]) && !input.peek(Token![*=]) {
                input.parse::<Token![*]>()?;
                BinaryOp::Mul
            } else if input.peek(Token![/]) && !input.peek(Token![/=]) {
                input.parse::<Token![/]>()?;
                BinaryOp::Div
            } else {
                return Ok(product);
            };
            self.operator = Some(span);
            let factor = self.unary(input)?;
            product = self.node(span, product.binary(op, factor))?;
        }
    }

    fn unary(&mut self, input: ParseStream) -> Result<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(input.span(), too_deep()));
        }
        let expr = if input.peek(Token![-]) {
            let minus: Token![-] = input.parse()?;
            self.operator = Some(minus.span);
            if input.peek(Lit) {
                let (number, span) = number(input)?;
                let negative = Number::new(-number.get()).unwrap_or(number);
                self.node(span, Expr::Literal(negative))
            } else {
                let x = self.unary(input)?;
                self.node(minus.span, Expr::Neg(Box::new(x)))
            }
        } else {
            self.atom(input)
        }?;
        self.depth -= 1;
        if input.peek(Token![@]) {
            let message = "the operands of `@` are the names of matrices, as in `A @ B1`";
            return Err(input.error(message));
        }
        Ok(expr)
    }

    fn atom(&mut self, input: ParseStream) -> Result<Expr> {
        let span = input.span();
        if input.is_empty() {
            // A macro knows no place behind its last token, except for a closing bracket.
            let at = self.operator.filter(|_| self.depth == 1).unwrap_or(span);
            return Err(Error::new(at, format!("expected an operand; {EXAMPLE}")));
        }
        if input.peek(Lit) {
            let (number, span) = number(input)?;
            return self.node(span, Expr::Literal(number));
        }
        if input.peek(token::Paren) {
            let content;
            syn::parenthesized!(content in input);
            if content.is_empty() {
                return Err(Error::new(span, "these parentheses are empty"));
            }
            return self.inside(&content, "`)`");
        }
        if input.peek(Token![@]) {
            return Err(input.error("`@` has no left operand; a product is written `A @ B1`"));
        }
        if !input.peek(Ident) {
            let message = format!(
                "expected a product (`A @ B1`), a function, a scalar's name, a vector (`b[n]`) or a number; {EXAMPLE}"
            );
            return Err(input.error(message));
        }
        let name = name(input)?;
        if input.peek(Token![@]) {
            self.product(name, input)
        } else if input.peek(token::Paren) {
            self.call(name, input)
        } else if input.peek(token::Bracket) {
            self.vector(name, input)
        } else {
            let expr = Expr::Scalar(name.to_string());
            self.scalars.push(name);
            self.node(span, expr)
        }
    }

    fn vector(&mut self, name: Ident, input: ParseStream) -> Result<Expr> {
        let content;
        let brackets = syn::bracketed!(content in input);
        let text = name.to_string();
        let index: TokenStream = content.parse()?;
        // Without the spaces, which depend on who prints tokens.
        let axis = match index.to_string().replace(' ', "").as_str() {
            "n" => Axis::N,
            "m" => Axis::M,
            "m,n" => Axis::MN,
            other => {
                let written = other.replace(',', ", ");
                let message = format!(
                    "`{text}[{written}]` is no vector or matrix of the gate: write `{text}[n]` for an element a column, \
                     `{text}[m]` for one a row, or `{text}[m, n]` for one for each of C"
                );
                let empty = Error::new(brackets.span.join(), &message);
                return Err(if index.is_empty() { empty } else { Error::new_spanned(index, message) });
            }
        };
        let span = name.span();
        self.vectors.push((name, axis));
        self.node(span, Expr::vector(text, axis))
    }

    /// An expression that fills `content` up to its closing bracket.
    fn inside(&mut self, content: ParseStream, close: &str) -> Result<Expr> {
        let expr = self.expr(content)?;
        if !content.is_empty() {
            return Err(content.error(format!("expected `+`, `-`, `*`, `/` or {close}")));
        }
        Ok(expr)
    }

    fn product(&mut self, left: Ident, input: ParseStream) -> Result<Expr> {
        input.parse::<Token![@]>()?;
        if !input.peek(Ident) {
            let message = format!("expected the name of a matrix after `{left} @`");
            return Err(input.error(message));
        }
        let right = name(input)?;
        if input.peek(token::Paren) {
            let message =
                format!("`{right}(...)` cannot be an operand of `@`; the operands are names of matrices");
            return Err(Error::new(right.span(), message));
        }
        if input.peek(Token![@]) {
            let message = format!(
                "`@` cannot be chained: a gate has products of two matrices, so end this one \
                 after `{left} @ {right}`"
            );
            return Err(input.error(message));
        }
        let written = Written { left, right };
        let product = self.resolve(&written)?;
        let span = written.left.span();
        self.products.push(written);
        self.node(span, Expr::Product(product))
    }

    /// Which product this is, given those before it.
    fn resolve(&mut self, written: &Written) -> Result<Product> {
        let (left, right) = (written.left.to_string(), written.right.to_string());
        if left == right {
            return Err(Error::new(
                written.right.span(),
                format!("`{left}` is used on both sides of `@`; the two sides differ"),
            ));
        }
        let a = self.a.get_or_insert_with(|| left.clone());
        if left != *a {
            let message = if self.rights.contains(&left) {
                format!(
                    "`{left}` is used on both sides: it is the right operand of \
                     `{a} @ {left}` already"
                )
            } else {
                format!(
                    "the left operand is `{a}` in the first product and `{left}` here; both products \
                     share it"
                )
            };
            return Err(Error::new(written.left.span(), message));
        }
        if right == *a {
            let message = format!("`{right}` is used on both sides: it is the left operand");
            return Err(Error::new(written.right.span(), message));
        }
        let known = self.rights.iter().position(|r| *r == right);
        match known.unwrap_or(self.rights.len()) {
            0 => {
                if known.is_none() {
                    self.rights.push(right);
                }
                Ok(Product::First)
            }
            1 => {
                if known.is_none() {
                    self.rights.push(right);
                }
                Ok(Product::Second)
            }
            _ => Err(Error::new(
                written.right.span(),
                format!(
                    "`{right}` is a third right operand, after `{}` and `{}`; a dual GEMM has two",
                    self.rights[0], self.rights[1]
                ),
            )),
        }
    }

    fn call(&mut self, name: Ident, input: ParseStream) -> Result<Expr> {
        let text = name.to_string();
        let Some(function) = Function::from_name(&text) else {
            return Err(Error::new(name.span(), unknown_function(&text)));
        };
        let content;
        let parens = syn::parenthesized!(content in input);
        let mut args = Vec::new();
        while !content.is_empty() {
            args.push(self.expr(&content)?);
            if content.is_empty() {
                break;
            }
            if !content.peek(Token![,]) {
                return Err(content.error("expected `+`, `-`, `*`, `/`, `,` or `)`"));
            }
            content.parse::<Token![,]>()?;
        }
        let arity = function.arity();
        if args.len() != arity {
            let mut tokens = name.to_token_stream();
            tokens.extend(Ident::new("x", parens.span.close()).to_token_stream());
            let message = format!(
                "`{text}` takes {arity} argument{}, ({}), and has {} here",
                if arity == 1 { "" } else { "s" },
                function.info().parameters.join(", "),
                args.len()
            );
            return Err(Error::new_spanned(tokens, message));
        }
        self.node(name.span(), Expr::Call(function, args))
    }

    /// Names of vectors are of nothing else, and there are not too many.
    fn check_vectors(&self, matrices: &HashMap<String, &Written>) -> Result<()> {
        let scalars: HashSet<String> = self.scalars.iter().map(Ident::to_string).collect();
        let mut seen: Vec<(String, Axis)> = Vec::new();
        for (vector, axis) in &self.vectors {
            let name = vector.to_string();
            let fail = |message: String| Err(Error::new(vector.span(), message));
            if let Some(written) = matrices.get(&name) {
                return fail(format!(
                    "`{name}` is a matrix, in `{} @ {}`; give the vector a name of its own",
                    written.left, written.right
                ));
            }
            if let Some(function) = Function::from_name(&name) {
                let parameters = function.info().parameters.join(", ");
                return fail(format!(
                    "`{name}` is a function, `{name}({parameters})`; give the vector a name of its own"
                ));
            }
            if scalars.contains(&name) {
                return fail(format!(
                    "`{name}` is a vector here and a scalar elsewhere in the gate; give them two names"
                ));
            }
            match seen.iter().find(|(other, _)| *other == name) {
                Some((_, other)) if other != axis => {
                    return fail(format!(
                        "`{name}` has an element a {} in `{name}[{}]`, and here one a {}: a vector or matrix has one index",
                        side(*other),
                        other.index(),
                        side(*axis)
                    ));
                }
                Some(_) => {}
                None if seen.iter().filter(|(_, other)| other == axis).count() == MAX_VECTORS => {
                    let (side, index) = (side(*axis), axis.index());
                    return fail(format!(
                        "`{name}[{index}]` is one vector too many: a gate has at most {MAX_VECTORS} with an \
                         element a {side}; combine some beforehand"
                    ));
                }
                None => seen.push((name, *axis)),
            }
        }
        Ok(())
    }

    /// The checks that need the whole expression.
    fn finish(self, start: Span) -> Result<GateSource> {
        // Each operand with the first product that it is of.
        let mut matrices: HashMap<String, &Written> = HashMap::new();
        for written in &self.products {
            for operand in [&written.left, &written.right] {
                matrices.entry(operand.to_string()).or_insert(written);
            }
        }
        for scalar in &self.scalars {
            let name = scalar.to_string();
            if let Some(written) = matrices.get(&name) {
                let message = format!(
                    "`{name}` is a matrix, so it has to stand beside `@`, as in `{} @ {}`",
                    written.left, written.right
                );
                return Err(Error::new(scalar.span(), message));
            }
            if let Some(function) = Function::from_name(&name) {
                let parameters = function.info().parameters.join(", ");
                let message = format!("`{name}` is a function; call it: `{name}({parameters})`");
                return Err(Error::new(scalar.span(), message));
            }
        }
        self.check_vectors(&matrices)?;
        let Some(first) = self.products.first() else {
            let vector = self.vectors.first().map(|(name, _)| name);
            let span = self.scalars.first().or(vector).map_or(start, Ident::span);
            let message = format!("the gate has no product, such as `A @ B`; {EXAMPLE}");
            return Err(Error::new(span, message));
        };
        let Some(a) = self.a else {
            return Err(first.error("this product has no operands"));
        };
        let mut rights = self.rights.into_iter();
        let Some(b1) = rights.next() else {
            return Err(first.error("this product has no right operand"));
        };
        Ok(GateSource { a, b1, b2: rights.next() })
    }
}

/// A name. Kernels call their parameters after it, so it has to be one in PTX too.
pub(crate) fn name(input: ParseStream) -> Result<Ident> {
    let name: Ident = input.parse()?;
    let text = name.to_string();
    if text.starts_with("r#") || !text.is_ascii() {
        let message =
            format!("`{text}` cannot be a name in PTX; use ASCII letters, digits and `_`, and no `r#`");
        return Err(Error::new(name.span(), message));
    }
    Ok(name)
}

/// A number and its place.
fn number(input: ParseStream) -> Result<(Number, Span)> {
    let lit: Lit = input.parse()?;
    let span = lit.span();
    let fail = |message: String| Err(Error::new(span, message));
    let (digits, suffix) = match &lit {
        Lit::Float(x) => (x.base10_digits().to_owned(), x.suffix().to_owned()),
        Lit::Int(x) => {
            let written = x.to_string();
            if written.starts_with("0x") || written.starts_with("0o") || written.starts_with("0b") {
                return fail(format!("`{written}` is not decimal; write the number as a decimal"));
            }
            (x.base10_digits().to_owned(), x.suffix().to_owned())
        }
        _ => {
            let written = lit.to_token_stream();
            return fail(format!("`{written}` is not a number; literals are like `1.702` or `7`"));
        }
    };
    if !matches!(suffix.as_str(), "" | "f32") {
        return fail(format!("the suffix `{suffix}` has no meaning here: the gate computes in f32; drop it"));
    }
    match digits.parse::<f64>().ok().and_then(Number::new) {
        Some(number) => Ok((number, span)),
        None => fail(format!("`{digits}` overflows f32, the type the gate computes in")),
    }
}

/// Names from elsewhere for functions that this language has under another.
const ALIASES: [(&str, &str); 7] = [
    ("swish", "silu"),
    ("ln", "log"),
    ("fabs", "abs"),
    ("fmin", "min"),
    ("fmax", "max"),
    ("logistic", "sigmoid"),
    ("gelu_erf", "gelu"),
];

fn unknown_function(name: &str) -> String {
    let alias = ALIASES.iter().find(|(from, _)| *from == name.to_lowercase());
    let near = match alias {
        // An alias is near to nothing but what it stands for.
        Some((_, to)) => did_you_mean(to, [*to]),
        None => did_you_mean(name, FUNCTIONS.iter().map(|function| function.name)),
    };
    let known: Vec<_> = FUNCTIONS.iter().map(|function| function.name).collect();
    format!("unknown function `{name}`{near}; the functions are: {}", known.join(", "))
}
