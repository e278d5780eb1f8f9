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

impl Evaluator {
    /// The gate's value for `first = (A @ B1)[i, j]` and `second = (A @ B2)[i, j]`, for a gate without
    /// vectors: an element of one would count as NaN.
    pub fn eval(&self, first: f64, second: f64) -> f64 {
        self.eval_at(first, second, |_| f64::NAN)
    }

    /// The same with vectors: `element(i)` is what the `i`th of [`Expr::vectors`] holds for the row or
    /// the column.
    pub fn eval_at(&self, first: f64, second: f64, element: impl Fn(usize) -> f64) -> f64 {
        let mut stack = Vec::with_capacity(self.depth);
        let pop = |stack: &mut Vec<f64>| stack.pop().unwrap_or(f64::NAN);
        for step in &self.steps {
            let value = match step {
                Step::Push(Product::First) => first,
                Step::Push(Product::Second) => second,
                Step::Constant(value) => *value,
                Step::Vector(index) => element(*index),
                Step::Neg => -pop(&mut stack),
                Step::Binary(op) => {
                    let y = pop(&mut stack);
                    let x = pop(&mut stack);
                    match op {
                        BinaryOp::Add => x + y,
                        BinaryOp::Sub => x - y,
                        BinaryOp::Mul => x * y,
                        BinaryOp::Div => x / y,
                    }
                }
                Step::Call(function) => {
                    let mut args = [0.0; MAX_ARITY];
                    let args = &mut args[..function.arity()];
                    args.iter_mut().rev().for_each(|a| *a = pop(&mut stack));
                    function.eval(args)
                }
            };
            stack.push(value);
        }
        pop(&mut stack)
    }

    /// How far an evaluation in f32 may be from [`Evaluator::eval_at`]: each step rounds once, functions lose a few bits more, and
    /// what a step gets wrong goes on to the next. First order (Higham, "Accuracy and Stability of Numerical Algorithms", 3.3).
    pub fn rounding_at(&self, first: f64, second: f64, element: impl Fn(usize) -> f64) -> f64 {
        // A value, and its error.
        let mut stack: Vec<[f64; 2]> = Vec::with_capacity(self.depth);
        let pop = |stack: &mut Vec<[f64; 2]>| stack.pop().unwrap_or([f64::NAN; 2]);
        for step in &self.steps {
            let value = match step {
                Step::Push(Product::First) => [first, 0.0],
                Step::Push(Product::Second) => [second, 0.0],
                Step::Constant(value) => [*value, 0.0],
                Step::Vector(index) => [element(*index), 0.0],
                Step::Neg => {
                    let [x, error] = pop(&mut stack);
                    [-x, error]
                }
                Step::Binary(op) => {
                    let [y, of_y] = pop(&mut stack);
                    let [x, of_x] = pop(&mut stack);
                    let (value, before) = match op {
                        BinaryOp::Add => (x + y, of_x + of_y),
                        BinaryOp::Sub => (x - y, of_x + of_y),
                        BinaryOp::Mul => (x * y, x.abs() * of_y + y.abs() * of_x),
                        BinaryOp::Div => (x / y, (of_x + (x / y).abs() * of_y) / y.abs()),
                    };
                    [value, before + OF_STEP * value.abs()]
                }
                Step::Call(function) => {
                    let mut args = [[0.0; 2]; MAX_ARITY];
                    let args = &mut args[..function.arity()];
                    args.iter_mut().rev().for_each(|argument| *argument = pop(&mut stack));
                    let at = |moved: usize, by: f64| {
                        let mut values = [0.0; MAX_ARITY];
                        for (index, (value, [center, error])) in values.iter_mut().zip(&*args).enumerate() {
                            *value = center + if index == moved { by * error } else { 0.0 };
                        }
                        function.eval(&values[..args.len()])
                    };
                    let value = at(0, 0.0);
                    let moved = |index| (at(index, 1.0) - value).abs().max((at(index, -1.0) - value).abs());
                    let before: f64 = (0..args.len()).map(moved).sum();
                    [value, before + OF_CALL * value.abs()]
                }
            };
            stack.push(value);
        }
        let [_, error] = pop(&mut stack);
        error
    }
}
