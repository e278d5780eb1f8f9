//! Built-in gates over products that are scaled and shifted first: what scales and biases make of a
//! gate needs no LLVM.
//!
//! `silu(s[m] * (A @ B1) * w[n]) * (A @ B2 + b[n])` is the built-in `silu(x) * y` with `x` affine in the
//! first product and `y` in the second. The affine parts become plain f32 instructions in front of the
//! built-in fragment, which then reads their results in place of the products.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use super::builtin::{BUILTIN_WIDTH, builtin};
use super::expr::{Axis, BinaryOp, Expr, GateVector, Product};
use super::fragment::Fragment;
use super::graph::{Graph, Node};
use super::split::{Chain, chain, chain_kind, rebuild, with_operands};
use super::{GateCode, SplitCode, shape};

/// Code of a built-in gate whose products are scaled and shifted by scalars, vectors and literals. `None` for other
/// gates, and where scaling and shifting take more than arithmetic.
pub(super) fn affine_builtin(expr: &Expr, arch: &str) -> Option<GateCode> {
    let gathered = expr.gather_free();
    let first = gathered.affine_part(Product::First)?;
    let second = match expr.uses(Product::Second) {
        true => gathered.affine_part(Product::Second)?,
        false => Expr::Product(Product::Second),
    };
    let inner = gathered
        .replace(&first, &Expr::Product(Product::First))
        .replace(&second, &Expr::Product(Product::Second));
    let known = builtin(&inner, arch)?;
    let arguments = Arguments { scalars: expr.scalars(), vectors: expr.vectors() };
    let whole = arguments.front(&known.whole, &[&first, &second])?;
    let split = match known.split {
        None => None,
        Some(split) => Some(SplitCode {
            trivial: split.trivial && first == Expr::Product(Product::First),
            early: arguments.front(&split.early, &[&first])?,
            late: arguments.front(&split.late, &[&second])?,
        }),
    };
    Some(GateCode { whole, split })
}

impl Expr {
    /// Whether no product occurs.
    fn is_free(&self) -> bool {
        !self.uses(Product::First) && !self.uses(Product::Second)
    }

    /// Whether the value is `x * scale + shift`, x being that product and the others free of products.
    fn is_affine(&self, product: Product) -> bool {
        self.affine_parts(product, &mut Vec::new()) == Dependence::Affine
    }

    /// Appends the largest affine subexpressions over `product`, each as often as it occurs. One walk: a question for
    /// every node would take the cube of a long chain's length.
    fn affine_parts<'a>(&'a self, product: Product, found: &mut Vec<&'a Expr>) -> Dependence {
        use Dependence::{Affine, Free, Other};
        let start = found.len();
        let dependence = match self {
            Expr::Product(p) if *p == product => Affine,
            Expr::Product(_) => Other,
            Expr::Scalar(_) | Expr::Vector(_) | Expr::Literal(_) => Free,
            Expr::Neg(x) => x.affine_parts(product, found),
            Expr::Binary(op, x, y) => {
                match (x.affine_parts(product, found), y.affine_parts(product, found), op) {
                    (Free, Free, _) => Free,
                    (Affine, Free, _) => Affine,
                    (Free, Affine, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) => Affine,
                    (Free, Affine, BinaryOp::Div) | (Affine, Affine, _) | (Other, _, _) | (_, Other, _) => {
                        Other
                    }
                }
            }
            Expr::Call(_, args) => {
                let all = args.iter().map(|arg| arg.affine_parts(product, found));
                // Every argument is walked, whatever the ones before it are.
                all.fold(Free, |all, one| if (all, one) == (Free, Free) { Free } else { Other })
            }
        };
        if dependence == Affine {
            found.truncate(start);
            found.push(self);
        }
        dependence
    }

    /// The largest affine subexpression over `product`, if all its occurrences are in equal ones.
    fn affine_part(&self, product: Product) -> Option<Expr> {
        let mut found = Vec::new();
        self.affine_parts(product, &mut found);
        match found[..] {
            [one, ref others @ ..] if others.iter().all(|other| *other == one) => Some(one.clone()),
            _ => None,
        }
    }

    /// The expression with factors that are free of products moved to a factor that is affine in one:
    /// `silu(x) * y * s[m]` is `silu(x) * (y * s[m])`. Rounding may differ by that reordering.
    fn gather_free(&self) -> Expr {
        if chain_kind(self) != Some(true) {
            return self.map_children(Expr::gather_free);
        }
        let operands: Chain = chain(self, true).into_iter().map(|(e, i)| (e.gather_free(), i)).collect();
        let free: Vec<bool> = operands.iter().map(|(e, _)| e.is_free()).collect();
        // The product must not occur elsewhere, where it would stay without the factors.
        let place = [Product::Second, Product::First].into_iter().find_map(|product| {
            let mut uses = operands.iter().enumerate().filter(|(_, (e, _))| e.uses(product));
            match (uses.next(), uses.next()) {
                (Some((place, (e, false))), None) if e.is_affine(product) => Some(place),
                _ => None,
            }
        });
        let bound = free.iter().filter(|free| !**free).count();
        match place {
            Some(place) if bound > 1 && bound < operands.len() => {
                let factors = operands.iter().zip(&free).filter(|(_, free)| **free).map(|(factor, _)| factor);
                let joined = std::iter::once(&operands[place]).chain(factors).cloned().collect();
                let Some(joined) = rebuild(joined, true) else { return self.clone() };
                let rest = operands.iter().enumerate().filter(|(i, _)| !free[*i]);
                let rest = rest.map(|(i, (e, inverse))| match i == place {
                    true => (joined.clone(), false),
                    false => (e.clone(), *inverse),
                });
                rebuild(rest.collect(), true).unwrap_or_else(|| self.clone())
            }
            // Each operand has been gathered once: another walk over the chain would double the work a level.
            _ => with_operands(self, true, &mut operands.into_iter().map(|(e, _)| e)),
        }
    }
}

/// How an expression depends on one of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dependence {
    /// Neither product occurs.
    Free,
    /// The value is `x * scale + shift`, x being the product.
    Affine,
    /// Any other, the other product included.
    Other,
}

impl Expr {
    /// The pre-activation of `product`: the largest expression in the gate that is affine in that product alone, with
    /// scalars, vectors, literals and `+ - * /`. The first one of `silu(alpha * (A @ B1) + b[n]) * (A @ B2)` is
    /// `alpha * (A @ B1) + b[n]`. If the product occurs in different such expressions, it is the product itself.
    #[must_use]
    pub fn pre_activation(&self, product: Product) -> Expr {
        match self.affine_part(product) {
            Some(part) if plain(&part).is_some() => part,
            _ => Expr::Product(product),
        }
    }
}

/// Code from the elements of a product, `p1.*`, to what `gate` reads of it, `out.*`; `None` where it reads the
/// product itself.
pub(crate) fn pre_activation_code(gate: &Expr, product: Product, arch: &'static str) -> Option<Fragment> {
    let part = gate.pre_activation(product);
    if part == Expr::Product(product) {
        return None;
    }
    let text = Cow::Owned(plain(&part)?);
    let (scalars, vectors) = (part.scalars(), part.vectors());
    let inputs = shape::inputs(shape::Role::Early, BUILTIN_WIDTH);
    Some(Fragment {
        arch,
        width: BUILTIN_WIDTH,
        inputs: inputs.into_iter().chain(shape::vector_inputs(&vectors, BUILTIN_WIDTH)).collect(),
        outputs: shape::outputs(shape::Role::Whole, BUILTIN_WIDTH),
        scalars,
        vectors,
        text,
    })
}

/// The instructions of an affine expression of `p1.*` to `out.*`; `None` where it takes a function.
fn plain(part: &Expr) -> Option<String> {
    let (scalars, vectors) = (part.scalars(), part.vectors());
    let mut writer = Writer { scalars: &scalars, vectors: &vectors, registers: 0, text: String::new() };
    let value = writer.part(part, "p1")?;
    let about = part.display("p1", "p2");
    let mut text =
        format!("// to be kept: {about}\n.reg .f32 %gate_a<{}>;\n{}", writer.registers.max(1), writer.text);
    for (element, result) in value.elements.iter().enumerate() {
        let _ = writeln!(text, "mov.f32 <out.{element}>, {result};");
    }
    Some(text)
}

/// The run-time arguments of a whole gate: its parts take theirs in this order.
struct Arguments {
    scalars: Vec<String>,
    vectors: Vec<GateVector>,
}

impl Arguments {
    /// `fragment` with the affine parts of its products computed in front of it.
    fn front(&self, fragment: &Fragment, parts: &[&Expr]) -> Option<Fragment> {
        let used: HashSet<String> =
            parts.iter().flat_map(|part| part.scalars()).chain(fragment.scalars.iter().cloned()).collect();
        let scalars: Vec<String> = self.scalars.iter().filter(|name| used.contains(*name)).cloned().collect();
        let used: HashSet<GateVector> = parts.iter().flat_map(|part| part.vectors()).collect();
        let vectors: Vec<GateVector> = self.vectors.iter().filter(|v| used.contains(*v)).cloned().collect();
        let mut text = renumbered(fragment, &scalars)?;
        let mut writer = Writer { scalars: &scalars, vectors: &vectors, registers: 0, text: String::new() };
        let mut about = String::new();
        for part in parts {
            let name = match part.uses(Product::First) {
                true => "p1",
                false => "p2",
            };
            if matches!(part, Expr::Product(_)) {
                continue;
            }
            let results = writer.part(part, name)?;
            for (element, result) in results.elements.iter().enumerate() {
                text = text.replace(&format!("<{name}.{element}>"), result);
            }
            // Writing to a string does not fail.
            let _ = writeln!(about, "// {name} stands for {}", part.display("p1", "p2"));
        }
        if !about.is_empty() {
            let (head, body) = text.split_once('\n')?;
            text = format!(
                "{head}\n{about}.reg .f32 %gate_a<{}>;\n{}{body}",
                writer.registers.max(1),
                writer.text
            );
        }
        let mut inputs: Vec<String> =
            fragment.inputs.iter().filter(|name| !name.starts_with("v.")).cloned().collect();
        inputs.extend(shape::vector_inputs(&vectors, BUILTIN_WIDTH));
        Some(Fragment { inputs, scalars, vectors, text: Cow::Owned(text), ..fragment.clone() })
    }
}

/// The fragment's text with the holes of its scalars numbered as in `scalars`.
fn renumbered(fragment: &Fragment, scalars: &[String]) -> Option<String> {
    let mut text = fragment.text.to_string();
    for (from, name) in fragment.scalars.iter().enumerate() {
        let to = scalars.iter().position(|scalar| scalar == name)?;
        text = text.replace(&format!("<s.{from}>"), &format!("<#.{to}>"));
    }
    Some(text.replace("<#.", "<s."))
}

/// A value of a graph: a register, hole or constant for each element, all of them one where `uniform`.
#[derive(Clone)]
struct Value {
    elements: [String; BUILTIN_WIDTH],
    uniform: bool,
}

impl Value {
    fn uniform(name: String) -> Self {
        Value { elements: std::array::from_fn(|_| name.clone()), uniform: true }
    }
}

/// Writes graphs as instructions on registers of their own, `%gate_a*`.
struct Writer<'a> {
    scalars: &'a [String],
    vectors: &'a [GateVector],
    registers: usize,
    text: String,
}

impl Writer<'_> {
    /// Computes `part` of the product in the holes `name.*`; `None` where it takes a function.
    fn part(&mut self, part: &Expr, name: &str) -> Option<Value> {
        let graph = Graph::of(part);
        let nodes = graph.nodes();
        let output = graph.output()?;
        let mut uses = vec![0usize; nodes.len()];
        uses[output.index()] = 1;
        for (index, node) in nodes.iter().enumerate().rev() {
            if uses[index] > 0 {
                for operand in operands(node)? {
                    uses[operand] += 1;
                }
            }
        }
        // A product that only one sum needs becomes that sum's fma.
        let mut fused = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            if let (Node::Add(x, y), true) = (node, uses[index] > 0)
                && let Some(factor) = [x, y]
                    .into_iter()
                    .find(|o| uses[o.index()] == 1 && matches!(nodes[o.index()], Node::Mul(..)))
            {
                fused[factor.index()] = true;
            }
        }
        let mut values: Vec<Value> = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let v = |id: &super::graph::NodeId| values[id.index()].clone();
            let value = match node {
                _ if uses[index] == 0 || fused[index] => Value::uniform(String::new()),
                Node::Input(_) => {
                    Value { elements: std::array::from_fn(|i| format!("<{name}.{i}>")), uniform: false }
                }
                Node::Scalar(i) => {
                    let scalar = graph.scalars().get(*i as usize)?;
                    Value::uniform(format!("<s.{}>", self.scalars.iter().position(|s| s == scalar)?))
                }
                Node::Vector(i) => {
                    let vector = graph.vectors().get(*i as usize)?;
                    let place = self.vectors.iter().position(|v| v == vector)?;
                    match vector.axis {
                        Axis::M => Value::uniform(format!("<v.{place}>")),
                        Axis::N | Axis::MN => Value {
                            elements: std::array::from_fn(|i| format!("<v.{place}.{i}>")),
                            uniform: false,
                        },
                    }
                }
                Node::Const(bits) => Value::uniform(format!("0f{bits:08X}")),
                Node::Add(x, y) => match [(x, y), (y, x)].into_iter().find(|(x, _)| fused[x.index()]) {
                    Some((product, z)) => {
                        let Node::Mul(x, y) = &nodes[product.index()] else { return None };
                        self.instruction("fma.rn.f32", &[v(x), v(y), v(z)])
                    }
                    None => self.instruction("add.rn.f32", &[v(x), v(y)]),
                },
                Node::Sub(x, y) => self.instruction("sub.rn.f32", &[v(x), v(y)]),
                Node::Mul(x, y) => self.instruction("mul.rn.f32", &[v(x), v(y)]),
                Node::Div(x, y) => self.instruction("div.full.f32", &[v(x), v(y)]),
                Node::Rcp { x, flush: false } => self.instruction("rcp.approx.f32", &[v(x)]),
                Node::Neg(x) => self.instruction("neg.f32", &[v(x)]),
                _ => return None,
            };
            values.push(value);
        }
        Some(values.swap_remove(output.index()))
    }

    /// The instruction for each element, or once where all operands are uniform.
    fn instruction(&mut self, opcode: &str, operands: &[Value]) -> Value {
        let uniform = operands.iter().all(|operand| operand.uniform);
        let mut elements: [String; BUILTIN_WIDTH] = Default::default();
        for i in 0..BUILTIN_WIDTH {
            if uniform && i > 0 {
                elements[i] = elements[0].clone();
                continue;
            }
            elements[i] = format!("%gate_a{}", self.registers);
            self.registers += 1;
            let operands: Vec<&str> = operands.iter().map(|o| o.elements[i].as_str()).collect();
            let _ = writeln!(self.text, "{opcode} {}, {};", elements[i], operands.join(", "));
        }
        Value { elements, uniform }
    }
}

/// Positions of a node's operands; `None` for what affine parts are not made of.
fn operands(node: &Node) -> Option<Vec<usize>> {
    Some(match node {
        Node::Input(_) | Node::Scalar(_) | Node::Vector(_) | Node::Const(_) => Vec::new(),
        Node::Add(x, y) | Node::Sub(x, y) | Node::Mul(x, y) | Node::Div(x, y) => {
            vec![x.index(), y.index()]
        }
        Node::Neg(x) | Node::Rcp { x, flush: false } => vec![x.index()],
        _ => return None,
    })
}
