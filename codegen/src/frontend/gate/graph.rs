//! The gate in f32 primitives: what the hardware has, before anyone writes an instruction.
//!
//! [`Graph::of`] turns an [`Expr`] into a graph of the operations a GPU executes (`ex2.approx` and
//! its kin included), with equal subexpressions shared. Lowering walks it once; the host model
//! [`Graph::run`] walks it in f32, so that the accuracy of a formula can be measured without a GPU.

use std::collections::HashMap;

use super::expr::{BinaryOp, Expr, GateVector, Product};

/// A node of a [`Graph`], by position; operands come before their users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// The position in [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One f32 operation. `approx` operations carry the error bounds of the PTX ISA, "Floating Point
/// Instructions"; the others round to nearest even once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// An element of a product.
    Input(Product),
    /// A scalar argument, by position in [`Graph::scalars`].
    Scalar(u32),
    /// An element of a vector argument, by position in [`Graph::vectors`].
    Vector(u32),
    /// A constant, by its bits.
    Const(u32),
    /// `x + y`
    Add(NodeId, NodeId),
    /// `x - y`
    Sub(NodeId, NodeId),
    /// `x * y`
    Mul(NodeId, NodeId),
    /// `x * y + z`, rounded once.
    Fma(NodeId, NodeId, NodeId),
    /// `x / y` as `div.full.f32`: 2 ulp, any range.
    Div(NodeId, NodeId),
    /// `min.NaN.f32`: NaN where an operand is.
    Min(NodeId, NodeId),
    /// `max.NaN.f32`: NaN where an operand is.
    Max(NodeId, NodeId),
    /// `-x`
    Neg(NodeId),
    /// `|x|`
    Abs(NodeId),
    /// `sqrt.approx.f32`: 1 ulp.
    Sqrt(NodeId),
    /// `lg2.approx.f32`: 2^-22, absolute for 0.5 < x < 2 and relative elsewhere.
    Lg2(NodeId),
    /// `ex2.approx.f32`: 2 ulp; subnormal results are kept unless `flush`.
    Ex2 {
        /// The exponent.
        x: NodeId,
        /// Subnormal results become 0 (`.ftz`), which saves two instructions.
        flush: bool,
    },
    /// `rcp.approx.f32`: 1 ulp; subnormal results are kept unless `flush`.
    Rcp {
        /// The divisor.
        x: NodeId,
        /// Subnormal operands and results become 0 (`.ftz`).
        flush: bool,
    },
    /// `if x < y { then } else { other }`, without a branch; NaN takes `other`.
    SelectLess {
        /// Left side of the comparison.
        x: NodeId,
        /// Right side of the comparison.
        y: NodeId,
        /// The value where `x < y`.
        then: NodeId,
        /// The value elsewhere.
        other: NodeId,
    },
}

/// A gate as f32 operations; see the module's text.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    known: HashMap<Node, NodeId>,
    scalars: Vec<String>,
    vectors: Vec<GateVector>,
    output: Option<NodeId>,
}

impl Graph {
    /// The graph of `expr`. Its scalars are those of [`Expr::scalars`], its vectors those of
    /// [`Expr::vectors`], in that order.
    pub fn of(expr: &Expr) -> Self {
        let mut graph = Graph { scalars: expr.scalars(), vectors: expr.vectors(), ..Graph::default() };
        let output = graph.build(expr);
        graph.output = Some(output);
        graph
    }

    /// All nodes, operands before their users. Some may be unused.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Names of the scalar arguments.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// The vector arguments.
    pub fn vectors(&self) -> &[GateVector] {
        &self.vectors
    }

    /// The node that is the value of the gate; `None` only for an empty graph.
    pub fn output(&self) -> Option<NodeId> {
        self.output
    }

    fn build(&mut self, expr: &Expr) -> NodeId {
        match expr {
            Expr::Product(product) => self.add_node(Node::Input(*product)),
            Expr::Scalar(name) => {
                let position = self.scalars.iter().position(|s| s == name).unwrap_or_default();
                self.add_node(Node::Scalar(position as u32))
            }
            Expr::Vector(vector) => {
                let position = self.vectors.iter().position(|v| v == vector).unwrap_or_default();
                self.add_node(Node::Vector(position as u32))
            }
            Expr::Literal(number) => self.constant(number.get() as f32),
            Expr::Neg(x) => {
                let x = self.build(x);
                self.neg(x)
            }
            Expr::Binary(op, x, y) => {
                let (x, y) = (self.build(x), self.build(y));
                match op {
                    BinaryOp::Add => self.add(x, y),
                    BinaryOp::Sub => self.sub(x, y),
                    BinaryOp::Mul => self.mul(x, y),
                    BinaryOp::Div => self.div(x, y),
                }
            }
            Expr::Call(function, args) => {
                let args: Vec<_> = args.iter().map(|a| self.build(a)).collect();
                function.lower(self, &args)
            }
        }
    }

    fn add_node(&mut self, node: Node) -> NodeId {
        *self.known.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            NodeId(self.nodes.len() as u32 - 1)
        })
    }

    /// The constant `value`.
    pub fn constant(&mut self, value: f32) -> NodeId {
        self.add_node(Node::Const(value.to_bits()))
    }

    /// `x + y`
    pub fn add(&mut self, x: NodeId, y: NodeId) -> NodeId {
        self.add_node(Node::Add(x, y))
    }

    /// `x - y`
    pub fn sub(&mut self, x: NodeId, y: NodeId) -> NodeId {
        self.add_node(Node::Sub(x, y))
    }

    /// `x * y`. Constant factors of one product are multiplied here, in f64, and rounded once.
    pub fn mul(&mut self, x: NodeId, y: NodeId) -> NodeId {
        // A constant goes to the right, where the next factor finds it.
        let (x, y) = if self.as_const(x).is_some() { (y, x) } else { (x, y) };
        if let (Node::Mul(inner, c), Some(factor)) = (self.nodes[x.index()], self.as_const(y))
            && let Some(known) = self.as_const(c)
        {
            let both = (f64::from(known) * f64::from(factor)) as f32;
            if both.is_normal() {
                let both = self.constant(both);
                return self.add_node(Node::Mul(inner, both));
            }
        }
        self.add_node(Node::Mul(x, y))
    }

    fn as_const(&self, x: NodeId) -> Option<f32> {
        match self.nodes[x.index()] {
            Node::Const(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// `x * constant`
    pub fn scale(&mut self, x: NodeId, constant: f32) -> NodeId {
        let c = self.constant(constant);
        self.mul(x, c)
    }

    /// `x * y + z`, rounded once.
    pub fn fma(&mut self, x: NodeId, y: NodeId, z: NodeId) -> NodeId {
        self.add_node(Node::Fma(x, y, z))
    }

    /// `x / y`: a multiplication by the reciprocal where `y` is a constant whose reciprocal is a
    /// normal number (1.5 ulp), `rcp.approx` where `x` is 1 (1 ulp), `div.full` elsewhere (2 ulp).
    pub fn div(&mut self, x: NodeId, y: NodeId) -> NodeId {
        if let Some(divisor) = self.as_const(y) {
            let reciprocal = 1.0 / divisor;
            if reciprocal.is_normal() {
                return self.scale(x, reciprocal);
            }
        }
        if self.as_const(x) == Some(1.0) {
            return self.add_node(Node::Rcp { x: y, flush: false });
        }
        self.add_node(Node::Div(x, y))
    }

    /// The smaller of two; NaN where one is.
    pub fn min(&mut self, x: NodeId, y: NodeId) -> NodeId {
        self.add_node(Node::Min(x, y))
    }

    /// The larger of two; NaN where one is.
    pub fn max(&mut self, x: NodeId, y: NodeId) -> NodeId {
        self.add_node(Node::Max(x, y))
    }

    /// `-x`
    pub fn neg(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Neg(x))
    }

    /// `|x|`
    pub fn abs(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Abs(x))
    }

    /// `sqrt(x)`
    pub fn sqrt(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Sqrt(x))
    }

    /// `log2(x)`
    pub fn lg2(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Lg2(x))
    }

    /// `2^x`, subnormal results kept.
    pub fn ex2(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Ex2 { x, flush: false })
    }

    /// `2^x`, subnormal results flushed: for use where they would vanish in a sum anyway.
    pub fn ex2_flush(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Ex2 { x, flush: true })
    }

    /// `1 / x`, subnormal operands and results flushed.
    pub fn rcp_flush(&mut self, x: NodeId) -> NodeId {
        self.add_node(Node::Rcp { x, flush: true })
    }

    /// `if x < y { then } else { other }`
    pub fn select_less(&mut self, x: NodeId, y: NodeId, then: NodeId, other: NodeId) -> NodeId {
        self.add_node(Node::SelectLess { x, y, then, other })
    }

    /// The polynomial with `coefficients` (constant term first) at `x`, by Horner's rule in fma.
    /// No coefficients make 0.
    pub fn polynomial(&mut self, x: NodeId, coefficients: &[f32]) -> NodeId {
        let mut rest = coefficients.iter().rev();
        let mut sum = self.constant(rest.next().copied().unwrap_or(0.0));
        for &c in rest {
            let c = self.constant(c);
            sum = self.fma(sum, x, c);
        }
        sum
    }

    /// Runs the graph on the host in f32 for one element.
    ///
    /// `scalars` are in the order of [`Graph::scalars`] (missing ones count as NaN, and so do elements
    /// of vectors). Each `approx`
    /// operation is computed in f64, rounded to f32, flushed as the node says, and handed to
    /// `approx` with the node, which may move it within the bounds of [`Node`]: the hardware's
    /// exact bits are not public.
    pub fn run(
        &self,
        first: f32,
        second: f32,
        scalars: &[f32],
        mut approx: impl FnMut(&Node, f32) -> f32,
    ) -> f32 {
        let mut values: Vec<f32> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let v = |id: &NodeId| values[id.index()];
            let flushed = |x: f32, flush: bool| {
                if flush && x.is_subnormal() { 0.0 * x } else { x }
            };
            let value = match node {
                Node::Input(Product::First) => first,
                Node::Input(Product::Second) => second,
                Node::Scalar(i) => scalars.get(*i as usize).copied().unwrap_or(f32::NAN),
                Node::Vector(_) => f32::NAN,
                Node::Const(bits) => f32::from_bits(*bits),
                Node::Add(x, y) => v(x) + v(y),
                Node::Sub(x, y) => v(x) - v(y),
                Node::Mul(x, y) => v(x) * v(y),
                Node::Fma(x, y, z) => libm::fmaf(v(x), v(y), v(z)),
                Node::Div(x, y) => approx(node, (f64::from(v(x)) / f64::from(v(y))) as f32),
                // `f32::min` and `f32::max` would take the other operand.
                Node::Min(x, y) | Node::Max(x, y) if v(x).is_nan() || v(y).is_nan() => f32::NAN,
                Node::Min(x, y) => v(x).min(v(y)),
                Node::Max(x, y) => v(x).max(v(y)),
                Node::Neg(x) => -v(x),
                Node::Abs(x) => v(x).abs(),
                Node::Sqrt(x) => approx(node, libm::sqrt(f64::from(v(x))) as f32),
                Node::Lg2(x) => approx(node, libm::log2(f64::from(v(x))) as f32),
                Node::Ex2 { x, flush } => {
                    let exact = libm::exp2(f64::from(flushed(v(x), *flush))) as f32;
                    flushed(approx(node, exact), *flush)
                }
                Node::Rcp { x, flush } => {
                    let exact = (1.0 / f64::from(flushed(v(x), *flush))) as f32;
                    flushed(approx(node, exact), *flush)
                }
                Node::SelectLess { x, y, then, other } => {
                    if v(x) < v(y) {
                        v(then)
                    } else {
                        v(other)
                    }
                }
            };
            values.push(value);
        }
        self.output.map_or(f32::NAN, |o| values[o.index()])
    }
}
