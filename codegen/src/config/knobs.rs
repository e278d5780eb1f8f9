//! The types of knobs that are no plain choice, and what values mean in numbers.

use super::row::{KnobType, Samples, Value};
use super::table::{CtaGroup, CtasPerSm, EpilogueWarps, Eviction, Multicast, Strategy, Switch, TmemShape};
use super::text::{self, NotAValue, list};
use crate::problem::Operation;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use std::fmt;
use std::str::FromStr;

/// A knob's value, or `auto`: leave the choice to `validate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Setting<T> {
    /// `validate` chooses; the plan says what.
    #[default]
    Auto,
    /// This value or an error.
    Fixed(T),
}

impl<T> Setting<T> {
    /// The fixed value, or what `choose` gives.
    pub fn unwrap_or_else(self, choose: impl FnOnce() -> T) -> T {
        match self {
            Setting::Auto => choose(),
            Setting::Fixed(value) => value,
        }
    }

    /// Whether a value was asked for.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Setting::Fixed(_))
    }
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Auto => f.write_str("auto"),
            Setting::Fixed(value) => value.fmt(f),
        }
    }
}

impl<T: FromStr> FromStr for Setting<T> {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "auto" => Ok(Setting::Auto),
            value => value.parse().map(Setting::Fixed).map_err(|_| NotAValue),
        }
    }
}

impl<T: ToTokens> ToTokens for Setting<T> {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(match self {
            Setting::Auto => quote!(::silumin::codegen::config::Setting::Auto),
            Setting::Fixed(value) => quote!(::silumin::codegen::config::Setting::Fixed(#value)),
        });
    }
}

text::serde_as_text!([T] Setting<T>);

/// The part of C that one CTA computes, and the K of one pipeline stage, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of C.
    pub m: u32,
    /// Columns of C; the CTA computes as many of each product.
    pub n: u32,
    /// Elements of K in a pipeline stage.
    pub k: u32,
}

impl KnobType for Tile {
    // Tests draw the sides apart: which rows are legal depends on other knobs.
    const VALUES: &'static [Value] = &[Value::new(
        "[M, N, K]",
        "Rows and columns of C that a CTA or a pair computes, and the K of a stage.",
        Samples::EVERYWHERE.draw("[128, 64, 64]|[128, 128, 128]"),
    )];
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}, {}]", self.m, self.n, self.k)
    }
}

impl FromStr for Tile {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let [m, n, k] = list(text)?[..] else { return Err(NotAValue) };
        let size = |text: &str| text.parse().map_err(|_| NotAValue);
        Ok(Tile { m: size(m)?, n: size(n)?, k: size(k)? })
    }
}

impl ToTokens for Tile {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Tile { m, n, k } = self;
        tokens.extend(quote!(::silumin::codegen::config::Tile { m: #m, n: #n, k: #k }));
    }
}

text::serde_as_text!([] Tile);

/// L2 eviction hints for each operand; `None` leaves the access without a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheHints {
    /// Loads of A.
    pub a: Option<Eviction>,
    /// Loads of B1 and B2.
    pub b: Option<Eviction>,
    /// Loads of all scale factors.
    pub sf: Option<Eviction>,
    /// Stores of C.
    pub c: Option<Eviction>,
}

impl CacheHints {
    /// The hints by operand name.
    pub fn entries(&self) -> [(&'static str, Option<Eviction>); 4] {
        let CacheHints { a, b, sf, c } = *self;
        [("a", a), ("b", b), ("sf", sf), ("c", c)]
    }
}

impl KnobType for CacheHints {
    const VALUES: &'static [Value] = &[
        Value::new("none", "No access has a hint.", Samples::EVERYWHERE),
        Value::new(
            "[a: HINT, b: HINT, sf: HINT, c: HINT]",
            "Hints for loads of A, of B1 and B2 and of scale factors, and for stores of C; any may be left out.",
            Samples::EVERYWHERE
                .draw("[b: evict_first]|[a: evict_normal, c: evict_first]|[a: evict_last, sf: evict_last]"),
        ),
    ];
    const WORDS: &'static [(&'static str, &'static [Value])] = &[("HINT", Eviction::VALUES)];
}

impl fmt::Display for CacheHints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hints: Vec<String> = self
            .entries()
            .into_iter()
            .filter_map(|(name, hint)| hint.map(|hint| format!("{name}: {hint}")))
            .collect();
        if hints.is_empty() { f.write_str("none") } else { write!(f, "[{}]", hints.join(", ")) }
    }
}

impl FromStr for CacheHints {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let mut hints = CacheHints::default();
        if text.trim() == "none" {
            return Ok(hints);
        }
        for item in list(text)? {
            let (name, value) = item.split_once(':').ok_or(NotAValue)?;
            let hint = match name.trim() {
                "a" => &mut hints.a,
                "b" => &mut hints.b,
                "sf" => &mut hints.sf,
                "c" => &mut hints.c,
                _ => return Err(NotAValue),
            };
            if hint.replace(value.parse()?).is_some() {
                return Err(NotAValue);
            }
        }
        Ok(hints)
    }
}

impl ToTokens for CacheHints {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let CacheHints { a, b, sf, c } = self;
        let [a, b, sf, c] = [a, b, sf, c].map(option);
        tokens.extend(quote!(::silumin::codegen::config::CacheHints { a: #a, b: #b, sf: #sf, c: #c }));
    }
}

text::serde_as_text!([] CacheHints);

/// How the epilogue reads accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmemLoad {
    /// What a thread gets.
    pub shape: TmemShape,
    /// Columns that are read and finished together, 8, 16 or 32. `None`: the most that divide a tile's, or,
    /// where several threads share a lane, 8.
    pub chunk: Option<u32>,
}

impl fmt::Display for TmemLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shape.fmt(f)?;
        self.chunk.map_or(Ok(()), |chunk| write!(f, ", {chunk}"))
    }
}

impl FromStr for TmemLoad {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let (shape, chunk) = match text.split_once(',') {
            None => (text, None),
            Some((shape, chunk)) => (shape, Some(chunk.trim().parse().map_err(|_| NotAValue)?)),
        };
        Ok(TmemLoad { shape: shape.parse()?, chunk })
    }
}

impl ToTokens for TmemLoad {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let TmemLoad { shape, chunk } = self;
        let chunk = option(chunk);
        tokens.extend(quote!(::silumin::codegen::config::TmemLoad { shape: #shape, chunk: #chunk }));
    }
}

/// `None` or `Some(VALUE)`, with paths that nothing shadows.
fn option<T: ToTokens>(option: &Option<T>) -> TokenStream {
    match option {
        None => quote!(::std::option::Option::None),
        Some(value) => quote!(::std::option::Option::Some(#value)),
    }
}

impl Strategy {
    /// Products of a tile that one kernel accumulates.
    pub const fn products(self) -> u32 {
        match self {
            Strategy::Sequential | Strategy::Interleaved => 2,
            Strategy::TwoPass | Strategy::SecondFused | Strategy::Single => 1,
        }
    }

    /// Whether products go from one kernel to the next through global memory.
    pub const fn stores_products(self) -> bool {
        match self {
            Strategy::TwoPass | Strategy::SecondFused => true,
            Strategy::Sequential | Strategy::Interleaved | Strategy::Single => false,
        }
    }

    /// What it computes.
    pub const fn operation(self) -> Operation {
        match self {
            Strategy::TwoPass | Strategy::SecondFused | Strategy::Sequential | Strategy::Interleaved => {
                Operation::DualGemm
            }
            Strategy::Single => Operation::Gemm,
        }
    }
}

impl Multicast {
    /// CTAs, or pairs, that share.
    pub const fn ctas(self) -> u32 {
        match self {
            Multicast::None => 1,
            Multicast::A(ctas) | Multicast::B(ctas) => ctas,
        }
    }
}

impl Switch {
    /// Whether it is on.
    pub const fn is_on(self) -> bool {
        matches!(self, Switch::On)
    }
}

impl CtaGroup {
    /// CTAs in the group.
    pub const fn ctas(self) -> u32 {
        match self {
            CtaGroup::One => 1,
            CtaGroup::Two => 2,
        }
    }
}

impl CtasPerSm {
    /// How many.
    pub const fn ctas(self) -> u32 {
        match self {
            CtasPerSm::One => 1,
            CtasPerSm::Two => 2,
        }
    }
}

impl EpilogueWarps {
    /// The number of warps.
    pub const fn count(self) -> u32 {
        match self {
            EpilogueWarps::Four => 4,
            EpilogueWarps::Eight => 8,
        }
    }
}

impl TmemShape {
    /// The name in instructions and in knobs.
    pub fn name(self) -> &'static str {
        self.row().spelling
    }
}
