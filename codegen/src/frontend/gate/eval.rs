//! The gate in f64 on the host: the mathematics that kernels are held to.

use super::expr::{BinaryOp, Expr, GateVector, Product};
use super::functions::Function;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A scalar argument without a value.
    #[error("the gate's scalar `{name}` has no value; give one of each of: {needed}")]
    MissingScalar {
        /// The scalar.
        name: String,
        /// All scalars of the gate.
        needed: String,
    },
}

enum Step {
    Push(Product),
    Constant(f64),
    /// By position in [`Expr::vectors`].
    Vector(usize),
    Neg,
    Binary(BinaryOp),
    Call(Function),
}

/// An expression with its scalars bound, ready to run over many elements.
pub struct Evaluator {
    steps: Vec<Step>,
    depth: usize,
}

/// Relative error of one operation in f32 ([`Evaluator::rounding_at`]); a quotient is approximate to two units in the last place.
const OF_STEP: f64 = 1.0 / (1 << 22) as f64;
/// The same of a function.
const OF_CALL: f64 = 1.0 / (1 << 20) as f64;
/// Arguments of the function with the most of them (`clamp`).
const MAX_ARITY: usize = 3;

impl Expr {
    /// Binds the scalars by name. Scalars that the expression does not use are ignored.
    ///
    /// # Errors
    /// [`EvalError::MissingScalar`] where one that it uses is not given.
    pub fn evaluator(&self, scalars: &[(&str, f64)]) -> Result<Evaluator, EvalError> {
        let mut steps = Vec::new();
        self.flatten(scalars, &self.vectors(), &mut steps).map_err(|name| EvalError::MissingScalar {
            name: name.to_owned(),
            needed: self.scalars().join(", "),
        })?;
        let (mut depth, mut deepest) = (0usize, 0usize);
        for step in &steps {
            match step {
                Step::Push(_) | Step::Constant(_) | Step::Vector(_) => depth += 1,
                Step::Neg => {}
                Step::Binary(_) => depth -= 1,
                Step::Call(f) => depth -= f.arity() - 1,
            }
            deepest = deepest.max(depth);
        }
        Ok(Evaluator { steps, depth: deepest })
    }

    /// The value for one pair of product elements, in f64. [`Expr::evaluator`] is for many.
    ///
    /// # Errors
    /// As [`Expr::evaluator`].
    pub fn eval(&self, first: f64, second: f64, scalars: &[(&str, f64)]) -> Result<f64, EvalError> {
        Ok(self.evaluator(scalars)?.eval(first, second))
    }

    /// Appends the expression's steps; the error is the name of a scalar without a value.
    fn flatten<'a>(
        &'a self,
        scalars: &[(&str, f64)],
        vectors: &[GateVector],
        steps: &mut Vec<Step>,
    ) -> Result<(), &'a str> {
        for child in self.children() {
            child.flatten(scalars, vectors, steps)?;
        }
        let step = match self {
            Expr::Product(p) => Step::Push(*p),
            Expr::Literal(number) => Step::Constant(number.get()),
            Expr::Scalar(name) => {
                let value = scalars.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
                Step::Constant(value.ok_or(name.as_str())?)
            }
            Expr::Vector(vector) => {
                Step::Vector(vectors.iter().position(|v| v == vector).unwrap_or_default())
            }
            Expr::Neg(_) => Step::Neg,
            Expr::Binary(op, ..) => Step::Binary(*op),
            Expr::Call(function, args) if args.len() == function.arity() => Step::Call(*function),
            Expr::Call(..) => {
                // Only a tree built by hand can be here; it has no value.
                steps.truncate(steps.len() - self.children().len());
                Step::Constant(f64::NAN)
            }
        };
        steps.push(step);
        Ok(())
    }
}

/// What an evaluation computes with.
trait Number: Copy {
    /// Where the steps lack one.
    const NONE: Self;
    fn exact(value: f64) -> Self;
    fn neg(self) -> Self;
    fn binary(op: BinaryOp, x: Self, y: Self) -> Self;
    fn call(function: Function, args: &[Self]) -> Self;
}

impl Number for f64 {
    const NONE: Self = f64::NAN;

    fn exact(value: f64) -> Self {
        value
    }

    fn neg(self) -> Self {
        -self
    }

    fn binary(op: BinaryOp, x: Self, y: Self) -> Self {
        match op {
            BinaryOp::Add => x + y,
            BinaryOp::Sub => x - y,
            BinaryOp::Mul => x * y,
            BinaryOp::Div => x / y,
        }
    }

    fn call(function: Function, args: &[Self]) -> Self {
        function.eval(args)
    }
}

/// A value, and how far an evaluation in f32 may be from it.
#[derive(Clone, Copy)]
struct Rounded {
    value: f64,
    error: f64,
}

impl Number for Rounded {
    const NONE: Self = Rounded { value: f64::NAN, error: f64::NAN };

    fn exact(value: f64) -> Self {
        Rounded { value, error: 0.0 }
    }

    fn neg(self) -> Self {
        Rounded { value: -self.value, ..self }
    }

    fn binary(op: BinaryOp, x: Self, y: Self) -> Self {
        let value = f64::binary(op, x.value, y.value);
        let before = match op {
            BinaryOp::Add | BinaryOp::Sub => x.error + y.error,
            BinaryOp::Mul => x.value.abs() * y.error + y.value.abs() * x.error,
            BinaryOp::Div => (x.error + value.abs() * y.error) / y.value.abs(),
        };
        Rounded { value, error: before + OF_STEP * value.abs() }
    }

    fn call(function: Function, args: &[Self]) -> Self {
        let mut values = [0.0; MAX_ARITY];
        let values = &mut values[..args.len()];
        values.iter_mut().zip(args).for_each(|(value, argument)| *value = argument.value);
        let value = function.eval(values);
        let mut before = 0.0;
        for (index, Rounded { value: center, error }) in args.iter().enumerate() {
            let mut off = |by: f64| {
                values[index] = center + by;
                (function.eval(values) - value).abs()
            };
            before += off(*error).max(off(-error));
            values[index] = *center;
        }
        Rounded { value, error: before + OF_CALL * value.abs() }
    }
}

impl Evaluator {
    /// The gate's value for `first = (A @ B1)[i, j]` and `second = (A @ B2)[i, j]`, for a gate without
    /// vectors: an element of one would count as NaN.
    pub fn eval(&self, first: f64, second: f64) -> f64 {
        self.eval_at(first, second, |_| f64::NAN)
    }

    /// The same with vectors: `element(i)` is what the `i`th of [`Expr::vectors`] holds for the row or
    /// the column.
    pub fn eval_at(&self, first: f64, second: f64, element: impl Fn(usize) -> f64) -> f64 {
        self.run::<f64>(first, second, element)
    }

    /// How far an evaluation in f32 may be from [`Evaluator::eval_at`]: each step rounds once, functions lose a few bits more, and
    /// what a step gets wrong goes on to the next. First order (Higham, "Accuracy and Stability of Numerical Algorithms", 3.3).
    pub fn rounding_at(&self, first: f64, second: f64, element: impl Fn(usize) -> f64) -> f64 {
        self.run::<Rounded>(first, second, element).error
    }

    fn run<N: Number>(&self, first: f64, second: f64, element: impl Fn(usize) -> f64) -> N {
        let mut stack: Vec<N> = Vec::with_capacity(self.depth);
        let pop = |stack: &mut Vec<N>| stack.pop().unwrap_or(N::NONE);
        for step in &self.steps {
            let value = match step {
                Step::Push(Product::First) => N::exact(first),
                Step::Push(Product::Second) => N::exact(second),
                Step::Constant(value) => N::exact(*value),
                Step::Vector(index) => N::exact(element(*index)),
                Step::Neg => pop(&mut stack).neg(),
                Step::Binary(op) => {
                    let y = pop(&mut stack);
                    let x = pop(&mut stack);
                    N::binary(*op, x, y)
                }
                Step::Call(function) => {
                    let mut args = [N::NONE; MAX_ARITY];
                    let args = &mut args[..function.arity()];
                    args.iter_mut().rev().for_each(|a| *a = pop(&mut stack));
                    N::call(*function, args)
                }
            };
            stack.push(value);
        }
        pop(&mut stack)
    }
}
