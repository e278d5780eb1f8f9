//! Rewriting without changing the mathematics: [`Expr::split`] cuts a gate where the first
//! accumulator is done and the second is not; [`Expr::canonical`] makes equal gates look equal.

use std::collections::HashMap;

use super::expr::{BinaryOp, Expr, Number, Product};
use super::functions::Function;

/// A gate in two steps: `late(early(first), second)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Computes the carried value from the first product alone.
    pub early: Expr,
    /// Computes the gate; its [`Product::First`] stands for the carried value.
    pub late: Expr,
}

impl Split {
    /// Whether the carried value is the first product itself.
    pub fn is_trivial(&self) -> bool {
        self.early == Expr::Product(Product::First)
    }
}

/// A chain of factors or of terms: each operand with whether it is inverted (divided, subtracted).
pub(super) type Chain = Vec<(Expr, bool)>;

/// The operands of the outermost chain of `*` and `/`, or of `+` and `-`, left to right.
pub(super) fn chain(expr: &Expr, product: bool) -> Chain {
    fn collect(expr: &Expr, product: bool, inverse: bool, out: &mut Chain) {
        match (expr, product) {
            (Expr::Binary(BinaryOp::Mul, x, y), true) | (Expr::Binary(BinaryOp::Add, x, y), false) => {
                collect(x, product, inverse, out);
                collect(y, product, inverse, out);
            }
            (Expr::Binary(BinaryOp::Div, x, y), true) | (Expr::Binary(BinaryOp::Sub, x, y), false) => {
                collect(x, product, inverse, out);
                collect(y, product, !inverse, out);
            }
            _ => out.push((expr.clone(), inverse)),
        }
    }
    let mut out = Vec::new();
    collect(expr, product, false, &mut out);
    out
}

/// Whether `expr` is the head of a chain, and of which kind.
pub(super) fn chain_kind(expr: &Expr) -> Option<bool> {
    match expr {
        Expr::Binary(BinaryOp::Mul | BinaryOp::Div, ..) => Some(true),
        Expr::Binary(BinaryOp::Add | BinaryOp::Sub, ..) => Some(false),
        _ => None,
    }
}

/// The chain at the head of `expr` with other operands, taken left to right, in the same order and nesting.
pub(super) fn with_operands(expr: &Expr, product: bool, operands: &mut dyn Iterator<Item = Expr>) -> Expr {
    match expr {
        Expr::Binary(op, x, y) if chain_kind(expr) == Some(product) => {
            let x = with_operands(x, product, operands);
            x.binary(*op, with_operands(y, product, operands))
        }
        _ => operands.next().unwrap_or_else(|| expr.clone()),
    }
}

/// The chain put together again: plain operands first, in their order, then the inverted ones.
pub(super) fn rebuild(chain: Chain, product: bool) -> Option<Expr> {
    let (plain, inverse): (Chain, Chain) = chain.into_iter().partition(|(_, inverse)| !inverse);
    let (join, invert) =
        if product { (BinaryOp::Mul, BinaryOp::Div) } else { (BinaryOp::Add, BinaryOp::Sub) };
    let mut inverse = inverse.into_iter().map(|(e, _)| e);
    let head = plain.into_iter().map(|(e, _)| e).reduce(|x, y| x.binary(join, y));
    let head = match head {
        Some(head) => head,
        None if product => Expr::Literal(Number::new(1.0)?).binary(invert, inverse.next()?),
        None => Expr::Neg(Box::new(inverse.next()?)),
    };
    Some(inverse.fold(head, |x, y| x.binary(invert, y)))
}

impl Expr {
    /// The gate cut in two, so that the epilogue can start on the first accumulator while the
    /// second is still being computed. `None` where one of the products is not used.
    ///
    /// `early` is the largest subexpression over the first product (with scalars, vectors and literals) that
    /// leaves `late` with one carried value and the second product. Factors of one product (and
    /// terms of one sum) are gathered first, so `(u + 1) * g * sigmoid(1.702 * g)` carries
    /// `g * sigmoid(1.702 * g)`; rounding may differ from the whole gate's by that reordering.
    /// Where more than one value would have to be carried, `early` is the first product itself.
    pub fn split(&self) -> Option<Split> {
        if !self.uses(Product::First) || !self.uses(Product::Second) {
            return None;
        }
        let gathered = self.gather();
        let mut carried = Vec::new();
        gathered.carried(&mut carried);
        let (early, late) = match carried.as_slice() {
            [one, others @ ..] if others.iter().all(|other| other == one) => {
                let early = (*one).clone();
                let late = gathered.replace(&early, &Expr::Product(Product::First));
                (early, late)
            }
            _ => (Expr::Product(Product::First), self.clone()),
        };
        Some(Split { early, late })
    }

    /// Whether the expression has the first product and not the second.
    fn is_early(&self) -> bool {
        self.uses(Product::First) && !self.uses(Product::Second)
    }

    /// The expression with the early operands of every mixed chain gathered into one, in front.
    fn gather(&self) -> Expr {
        if self.is_early() || !self.uses(Product::First) {
            return self.clone();
        }
        let Some(product) = chain_kind(self) else {
            return self.map_children(Expr::gather);
        };
        let operands = chain(self, product);
        if operands.iter().filter(|(e, _)| e.is_early()).count() < 2 {
            // Each operand once: a walk over the chain's own nodes would look at their operands again and again.
            let mut gathered = operands.iter().map(|(e, _)| e.gather());
            return with_operands(self, product, &mut gathered);
        }
        let (early, rest): (Chain, Chain) = operands.into_iter().partition(|(e, _)| e.is_early());
        let Some(early) = rebuild(early, product) else {
            return self.clone();
        };
        let rest = rest.into_iter().map(|(e, inverse)| (e.gather(), inverse));
        let all = std::iter::once((early, false)).chain(rest).collect();
        rebuild(all, product).unwrap_or_else(|| self.clone())
    }

    /// Appends the largest early subexpressions, each as often as it occurs. Returns whether the first and the second
    /// product occur.
    fn carried<'a>(&'a self, found: &mut Vec<&'a Expr>) -> [bool; 2] {
        let start = found.len();
        let mut uses = match self {
            Expr::Product(product) => [*product == Product::First, *product == Product::Second],
            _ => [false; 2],
        };
        for child in self.children() {
            let [first, second] = child.carried(found);
            uses = [uses[0] | first, uses[1] | second];
        }
        if uses == [true, false] {
            found.truncate(start);
            found.push(self);
        }
        uses
    }

    pub(super) fn replace(&self, from: &Expr, to: &Expr) -> Expr {
        if self == from { to.clone() } else { self.map_children(|c| c.replace(from, to)) }
    }

    /// A normal form in which gates that differ only in the order of factors, terms and arguments
    /// of `min` and `max`, or in the names of their scalars, are equal. `clamp(x, low, high)` is
    /// written `min(max(x, low), high)`, which is what it means; scalars are named `s0`, `s1`, ...
    ///
    /// The second value is the user's name of each of those.
    pub fn canonical(&self) -> (Expr, Vec<String>) {
        let sorted = self.sorted();
        let names = sorted.scalars();
        let places: HashMap<&str, usize> = names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
        let place = |name: &str| places.get(name).copied().unwrap_or_default();
        let renamed = sorted.rename_scalars(&|name| format!("s{}", place(name)));
        (renamed, names)
    }

    fn sorted(&self) -> Expr {
        // Scalars compare equal whatever their names, which must not decide the order.
        let key = |e: &Expr| e.rename_scalars(&|_| String::new());
        if let Some(product) = chain_kind(self) {
            let mut operands: Chain =
                chain(self, product).into_iter().map(|(e, i)| (e.sorted(), i)).collect();
            operands.sort_by_cached_key(|(e, inverse)| (*inverse, key(e)));
            return rebuild(operands, product).unwrap_or_else(|| self.clone());
        }
        match self {
            Expr::Call(Function::Clamp, args) if args.len() == 3 => {
                let raised = Expr::Call(Function::Max, args[..2].to_vec());
                Expr::Call(Function::Min, vec![raised, args[2].clone()]).sorted()
            }
            Expr::Call(function @ (Function::Min | Function::Max), args) => {
                let mut args: Vec<_> = args.iter().map(Expr::sorted).collect();
                args.sort_by_cached_key(key);
                Expr::Call(*function, args)
            }
            _ => self.map_children(Expr::sorted),
        }
    }
}
