//! Gates that need no LLVM: lowered ahead, checked in under `fragments/`, found by their meaning.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::expr::{Expr, Gate};
use super::fragment::Fragment;
use super::{GateCode, SplitCode, shape};

/// Elements a splice of every built-in fragment: a pair, for the packed arithmetic of sm_100a.
pub const BUILTIN_WIDTH: usize = 2;

/// A built-in gate.
pub struct Builtin {
    /// Its name, which is also that of its files.
    pub name: &'static str,
    /// Its expression, in the gate language.
    pub source: &'static str,
}

/// The built-in gates. GLU variants are those of Shazeer, arXiv 2002.05202; `swiglu_oai` is the
/// clamped form of gpt-oss (limit 7, alpha 1.702); `swiglu_scaled` takes the product of the
/// operands' per-tensor scales as its scalar `alpha`.
pub static BUILTINS: [Builtin; 8] = [
    Builtin { name: "swiglu", source: "silu(A @ B1) * (A @ B2)" },
    Builtin { name: "geglu", source: "gelu(A @ B1) * (A @ B2)" },
    Builtin { name: "geglu_tanh", source: "gelu_tanh(A @ B1) * (A @ B2)" },
    Builtin { name: "reglu", source: "relu(A @ B1) * (A @ B2)" },
    Builtin { name: "glu", source: "sigmoid(A @ B1) * (A @ B2)" },
    Builtin { name: "bilinear", source: "(A @ B1) * (A @ B2)" },
    Builtin {
        name: "swiglu_oai",
        source: "min(A @ B1, 7.0) * sigmoid(1.702 * min(A @ B1, 7.0)) \
                 * (clamp(A @ B2, -7.0, 7.0) + 1.0)",
    },
    Builtin { name: "swiglu_scaled", source: "silu(alpha * (A @ B1)) * (alpha * (A @ B2))" },
];

/// The built-in gates of one product. Whatever is affine in the product, `alpha * (A @ B) + bias[n] + residual[m, n]`, is
/// `linear`. `relu_squared` is that of Primer, arXiv 2109.08668.
pub static GEMM_BUILTINS: [Builtin; 7] = [
    Builtin { name: "linear", source: "A @ B" },
    Builtin { name: "silu", source: "silu(A @ B)" },
    Builtin { name: "gelu", source: "gelu(A @ B)" },
    Builtin { name: "gelu_tanh", source: "gelu_tanh(A @ B)" },
    Builtin { name: "relu", source: "relu(A @ B)" },
    Builtin { name: "relu_squared", source: "relu(A @ B) * relu(A @ B)" },
    Builtin { name: "sigmoid", source: "sigmoid(A @ B)" },
];

/// The checked-in text of every built-in gate for one architecture.
struct Texts {
    arch: &'static str,
    /// In the order of [`BUILTINS`]: whole, early, late.
    texts: [[&'static str; 3]; BUILTINS.len()],
    /// In the order of [`GEMM_BUILTINS`]: whole.
    gemms: [&'static str; GEMM_BUILTINS.len()],
}

macro_rules! texts {
    ($arch:literal: $($name:literal),+; $($gemm:literal),+) => {
        Texts {
            arch: $arch,
            gemms: [$(include_str!(concat!("fragments/", $arch, "/", $gemm, ".whole.ptx"))),+],
            texts: [$([
                include_str!(concat!("fragments/", $arch, "/", $name, ".whole.ptx")),
                include_str!(concat!("fragments/", $arch, "/", $name, ".early.ptx")),
                include_str!(concat!("fragments/", $arch, "/", $name, ".late.ptx")),
            ]),+],
        }
    };
}

static TEXTS: [Texts; 2] = [
    texts!("sm_100a": "swiglu", "geglu", "geglu_tanh", "reglu", "glu", "bilinear", "swiglu_oai",
        "swiglu_scaled"; "linear", "silu", "gelu", "gelu_tanh", "relu", "relu_squared", "sigmoid"),
    texts!("sm_90a": "swiglu", "geglu", "geglu_tanh", "reglu", "glu", "bilinear", "swiglu_oai",
        "swiglu_scaled"; "linear", "silu", "gelu", "gelu_tanh", "relu", "relu_squared", "sigmoid"),
];

/// A built-in gate, parsed.
struct Known {
    expr: Expr,
    canonical: (Expr, Vec<String>),
}

fn known() -> &'static [Known] {
    static KNOWN: OnceLock<Vec<Known>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let parsed = BUILTINS.iter().chain(&GEMM_BUILTINS).filter_map(|b| b.source.parse::<Gate>().ok());
        parsed.map(|g| Known { canonical: g.expr.canonical(), expr: g.expr }).collect()
    })
}

/// The gate of that name (`swiglu`, ...), with operands `A`, `B1`, `B2`, or `A`, `B`.
pub fn builtin_gate(name: &str) -> Option<Gate> {
    BUILTINS.iter().chain(&GEMM_BUILTINS).find(|b| b.name == name)?.source.parse().ok()
}

/// The checked-in code of `expr`, where it means the same as a built-in gate: up to the order of
/// factors and terms, the names of scalars, and which product is written first. In the last case
/// there is no split, for the one checked in starts with the other accumulator.
pub fn builtin(expr: &Expr, arch: &str) -> Option<GateCode> {
    let texts = TEXTS.iter().find(|t| t.arch == arch)?;
    [(expr.clone(), false), (expr.swap_products(), true)].into_iter().find_map(|(expr, swapped)| {
        let (canonical, names) = expr.canonical();
        let index = known().iter().position(|k| k.canonical.0 == canonical)?;
        Some(code(texts, index, &names, swapped))
    })
}

fn code(texts: &Texts, index: usize, names: &[String], swapped: bool) -> GateCode {
    let Known { expr, canonical } = &known()[index];
    // The user's name for a scalar of the built-in gate, by its place in the canonical form.
    let rename = |name: &str| {
        let place = canonical.1.iter().position(|n| n == name);
        place.and_then(|i| names.get(i)).cloned().unwrap_or_else(|| name.to_owned())
    };
    let fragment = |expr: &Expr, role: shape::Role, text: &'static str| Fragment {
        arch: texts.arch,
        width: BUILTIN_WIDTH,
        inputs: shape::inputs(role, BUILTIN_WIDTH),
        outputs: shape::outputs(role, BUILTIN_WIDTH),
        scalars: expr.scalars().iter().map(|s| rename(s)).collect(),
        vectors: Vec::new(),
        text: Cow::Borrowed(text),
    };
    let [whole, early, late] = match texts.texts.get(index) {
        Some(texts) => *texts,
        None => [texts.gemms[index - BUILTINS.len()], "", ""],
    };
    let mut whole = fragment(expr, shape::Role::Whole, whole);
    if swapped {
        // The same text, reading the products the other way round.
        let exchanged = whole.text.replace("<p1.", "<#.").replace("<p2.", "<p1.");
        whole.text = Cow::Owned(exchanged.replace("<#.", "<p2."));
        return GateCode { whole, split: None };
    }
    let split = expr.split().map(|split| SplitCode {
        trivial: split.is_trivial(),
        early: fragment(&split.early, shape::Role::Early, early),
        late: fragment(&split.late, shape::Role::Late, late),
    });
    GateCode { whole, split }
}
