//! The functions a gate may call, as one table: name, parameters, f64 evaluator, f32 lowering.
//!
//! Bounds below are for the lowering against exact mathematics, with every `approx` instruction at
//! the edge of what the PTX ISA allows it ("Floating Point Instructions"). u is 2^-24, half an
//! ulp of 1. They hold for finite arguments; tests measure them on the host model.
//!
//! | function | bound on the f32 result |
//! |---|---|
//! | `min`, `max`, `clamp`, `abs`, `relu` | exact |
//! | `square` | relative u |
//! | `sqrt` | relative 4u |
//! | `exp` | relative (6 + 1.5·\|x\|)·u; subnormal results are kept |
//! | `log` | absolute 4u for 0.5 < x < 2, relative 8u elsewhere |
//! | `sigmoid` | relative (7 + 1.5·\|x\|)·u; results under 2^-126 become 0 |
//! | `silu` | relative (8 + 1.5·\|x\|)·u; for x < -87.3 the result becomes -0 (it is under 1.1e-36) |
//! | `tanh` | relative 18u |
//! | `gelu` | relative 17u for x ≥ 0 and (19 + x²)·u for x < 0; absolute 2e-7·max(1, x) |
//! | `gelu_tanh` | relative (8 + 5·\|z\|)·u with z = 0.79788·(x + 0.044715·x³) |
//!
//! The terms that grow with x are the rounding of the exponent, as in every `ex2`-based `expf`.
//!
//! NaN: every function returns NaN where an argument is NaN, as PyTorch's do; `min`, `max`, `clamp`
//! and `relu` are made of `min.NaN` and `max.NaN`, so that none of them hides one. Infinities:
//! `silu`, `gelu` and `gelu_tanh` are `x` times a probability, hence NaN at -inf (-inf times 0), inf
//! at inf.

use super::graph::{Graph, NodeId};

/// log2(e) in f32.
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln(2) in f32.
const LN_2: f32 = std::f32::consts::LN_2;

/// A function of the gate language; its facts are in [`FUNCTIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "FUNCTIONS says what each one is")]
pub enum Function {
    Min,
    Max,
    Clamp,
    Exp,
    Log,
    Sqrt,
    Abs,
    Tanh,
    Sigmoid,
    Silu,
    Gelu,
    GeluTanh,
    Relu,
    Square,
}

/// One row of [`FUNCTIONS`].
pub struct FunctionInfo {
    /// The function.
    pub function: Function,
    /// Its name in the gate language.
    pub name: &'static str,
    /// Names of its parameters; their number is its arity.
    pub parameters: &'static [&'static str],
    /// What it computes, in f64.
    eval: fn(&[f64]) -> f64,
    /// How it is built from f32 primitives.
    lower: fn(&mut Graph, &[NodeId]) -> NodeId,
}

/// The smaller of two, NaN where one is: `f64::min` would take the other.
fn minimum(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }
}

/// The larger of two, NaN where one is.
fn maximum(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }
}

/// Every function of the gate language, in the order of [`Function`].
pub static FUNCTIONS: [FunctionInfo; 14] = [
    FunctionInfo {
        function: Function::Min,
        name: "min",
        parameters: &["x", "y"],
        eval: |a| minimum(a[0], a[1]),
        lower: |g, a| g.min(a[0], a[1]),
    },
    FunctionInfo {
        function: Function::Max,
        name: "max",
        parameters: &["x", "y"],
        eval: |a| maximum(a[0], a[1]),
        lower: |g, a| g.max(a[0], a[1]),
    },
    FunctionInfo {
        function: Function::Clamp,
        name: "clamp",
        parameters: &["x", "low", "high"],
        eval: |a| minimum(maximum(a[0], a[1]), a[2]),
        lower: |g, a| {
            let raised = g.max(a[0], a[1]);
            g.min(raised, a[2])
        },
    },
    FunctionInfo {
        function: Function::Exp,
        name: "exp",
        parameters: &["x"],
        eval: |a| libm::exp(a[0]),
        lower: |g, a| {
            let t = g.scale(a[0], LOG2_E);
            g.ex2(t)
        },
    },
    FunctionInfo {
        function: Function::Log,
        name: "log",
        parameters: &["x"],
        eval: |a| libm::log(a[0]),
        lower: |g, a| {
            let t = g.lg2(a[0]);
            g.scale(t, LN_2)
        },
    },
    FunctionInfo {
        function: Function::Sqrt,
        name: "sqrt",
        parameters: &["x"],
        eval: |a| libm::sqrt(a[0]),
        lower: |g, a| g.sqrt(a[0]),
    },
    FunctionInfo {
        function: Function::Abs,
        name: "abs",
        parameters: &["x"],
        eval: |a| a[0].abs(),
        lower: |g, a| g.abs(a[0]),
    },
    FunctionInfo {
        function: Function::Tanh,
        name: "tanh",
        parameters: &["x"],
        eval: |a| libm::tanh(a[0]),
        lower: |g, a| lower_tanh(g, a[0]),
    },
    FunctionInfo {
        function: Function::Sigmoid,
        name: "sigmoid",
        parameters: &["x"],
        eval: |a| sigmoid(a[0]),
        lower: |g, a| lower_sigmoid(g, a[0]),
    },
    FunctionInfo {
        function: Function::Silu,
        name: "silu",
        parameters: &["x"],
        eval: |a| a[0] * sigmoid(a[0]),
        lower: |g, a| {
            let s = lower_sigmoid(g, a[0]);
            g.mul(a[0], s)
        },
    },
    FunctionInfo {
        function: Function::Gelu,
        name: "gelu",
        parameters: &["x"],
        eval: |a| 0.5 * a[0] * libm::erfc(-a[0] * std::f64::consts::FRAC_1_SQRT_2),
        lower: |g, a| lower_gelu(g, a[0]),
    },
    FunctionInfo {
        function: Function::GeluTanh,
        name: "gelu_tanh",
        parameters: &["x"],
        // 0.5 (1 + tanh z) is sigmoid(2z), without the cancellation for z < 0.
        eval: |a| a[0] * sigmoid(2.0 * SQRT_2_OVER_PI * (a[0] + GELU_CUBIC * a[0] * a[0] * a[0])),
        lower: |g, a| lower_gelu_tanh(g, a[0]),
    },
    FunctionInfo {
        function: Function::Relu,
        name: "relu",
        parameters: &["x"],
        eval: |a| maximum(a[0], 0.0),
        lower: |g, a| {
            let zero = g.constant(0.0);
            g.max(a[0], zero)
        },
    },
    FunctionInfo {
        function: Function::Square,
        name: "square",
        parameters: &["x"],
        eval: |a| a[0] * a[0],
        lower: |g, a| g.mul(a[0], a[0]),
    },
];

impl Function {
    /// The function of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        FUNCTIONS.iter().find(|f| f.name == name).map(|f| f.function)
    }

    /// Its row of [`FUNCTIONS`].
    pub fn info(self) -> &'static FunctionInfo {
        &FUNCTIONS[self as usize]
    }

    /// Its name in the gate language.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// How many arguments it takes.
    pub fn arity(self) -> usize {
        self.info().parameters.len()
    }

    /// Its value in f64; NaN where `args` are not as many as the arity.
    pub fn eval(self, args: &[f64]) -> f64 {
        if args.len() == self.arity() { (self.info().eval)(args) } else { f64::NAN }
    }

    /// Adds the function to `graph`; the constant NaN where `args` are not as many as the arity.
    pub fn lower(self, graph: &mut Graph, args: &[NodeId]) -> NodeId {
        if args.len() == self.arity() { (self.info().lower)(graph, args) } else { graph.constant(f32::NAN) }
    }
}

/// sqrt(2 / pi), of the tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415).
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
/// The cubic coefficient of the same.
const GELU_CUBIC: f64 = 0.044715;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// `1 / (1 + 2^(-x log2 e))`. Flushing is harmless: a subnormal power vanishes beside 1, and the
/// reciprocal is subnormal only where the result is under 2^-126.
fn lower_sigmoid(g: &mut Graph, x: NodeId) -> NodeId {
    let t = g.scale(x, -LOG2_E);
    sigmoid_of_exponent(g, t)
}

/// `1 / (1 + 2^t)`
fn sigmoid_of_exponent(g: &mut Graph, t: NodeId) -> NodeId {
    let power = g.ex2_flush(t);
    let one = g.constant(1.0);
    let sum = g.add(power, one);
    g.rcp_flush(sum)
}

/// `x` where tanh goes over from its polynomial to its exponential form.
const TANH_JOIN: f32 = 0.55;

/// (tanh(x) - x) / x³ as a polynomial in x² on |x| <= 0.55: minimax of the error relative to
/// tanh(x) by a Remez exchange in 40 digits (3.6e-8 before the coefficients were rounded).
const TANH_SMALL: [f32; 4] = [-0.333_329_6, 0.133_209_42, -0.052_684_143, 0.016_458_76];

/// tanh, relatively accurate everywhere: `x + x³ P(x²)` near 0, where `1 - 2 / (1 + e^2x)` would
/// cancel, and that form elsewhere.
fn lower_tanh(g: &mut Graph, x: NodeId) -> NodeId {
    let square = g.mul(x, x);
    let p = g.polynomial(square, &TANH_SMALL);
    let cube = g.mul(square, x);
    let small = g.fma(cube, p, x);

    let t = g.scale(x, 2.0 * LOG2_E);
    let r = sigmoid_of_exponent(g, t);
    let (minus_two, one) = (g.constant(-2.0), g.constant(1.0));
    let large = g.fma(r, minus_two, one);

    let magnitude = g.abs(x);
    let join = g.constant(TANH_JOIN);
    g.select_less(magnitude, join, small, large)
}

/// The `c` of `t = 1 / (1 + c y)` in [`NORMAL_TAIL`]; 39/128 is exact, and near the best `c` for a
/// polynomial of this degree.
const NORMAL_TAIL_C: f32 = 0.304_687_5;

/// Phi(-y) e^(y²/2) / t as a polynomial in `t = 1 / (1 + c y)`, Phi the normal distribution: minimax
/// of the relative error on 0 <= y <= 14 by a Remez exchange in 40 digits (9.1e-8 before the
/// coefficients were rounded). Beyond 14, e^(-y²/2) is 0 in f32.
const NORMAL_TAIL: [f32; 8] = [
    0.121_513_22,
    0.122_373_39,
    0.103_113_74,
    0.121_800_46,
    -0.039_569_586,
    0.187_730_4,
    -0.153_711_69,
    0.036_750_116,
];

/// GELU in its erf form, `x Phi(x)`, as `|x|` times `-h` for negative x and `1 - h` for positive,
/// where `h = Phi(-|x|)` comes from its own expansion: `1 + erf` would cancel. The polynomial makes
/// `-h`, so that no sign has to be changed afterwards.
fn lower_gelu(g: &mut Graph, x: NodeId) -> NodeId {
    let one = g.constant(1.0);
    let y = g.abs(x);
    let c = g.constant(NORMAL_TAIL_C);
    let divisor = g.fma(y, c, one);
    let t = g.rcp_flush(divisor);
    let p = g.polynomial(t, &NORMAL_TAIL.map(|c| -c));
    let scaled = g.mul(p, t);

    let square = g.mul(x, x);
    let exponent = g.scale(square, -0.5 * LOG2_E);
    let power = g.ex2_flush(exponent);
    let minus_h = g.mul(scaled, power);

    let rest = g.fma(scaled, power, one);
    let zero = g.constant(0.0);
    let phi = g.select_less(x, zero, minus_h, rest);
    g.mul(y, phi)
}

/// GELU in its tanh form, as `x sigmoid(2 z)` with `z = sqrt(2/pi) (x + 0.044715 x³)`.
fn lower_gelu_tanh(g: &mut Graph, x: NodeId) -> NodeId {
    let linear = -2.0 * SQRT_2_OVER_PI * std::f64::consts::LOG2_E;
    let square = g.mul(x, x);
    let factor = g.polynomial(square, &[linear as f32, (linear * GELU_CUBIC) as f32]);
    let t = g.mul(x, factor);
    let s = sigmoid_of_exponent(g, t);
    g.mul(x, s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (i, row) in FUNCTIONS.iter().enumerate() {
            assert_eq!(row.function as usize, i, "{}", row.name);
            assert_eq!(Function::from_name(row.name), Some(row.function));
        }
    }
}
