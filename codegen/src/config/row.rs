//! What a row of the table of knobs is: [`Knob`], [`Value`], and the macros that turn rows into types.

use super::table::KNOBS;
use crate::arch::TensorCore;
use std::fmt;

/// A knob as help texts, error messages, tests and the tuner see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The name in the DSL and in TOML; on the command line, with dashes.
    pub name: &'static str,
    /// What it does and what `auto` chooses. The first sentence stands alone.
    pub about: &'static str,
    /// Whether `auto` leaves the choice to the rules.
    pub has_auto: bool,
    /// The values it takes.
    pub values: &'static [Value],
    /// Words in the spellings of values, each with the values that it stands for.
    pub words: &'static [(&'static str, &'static [Value])],
}

impl Knob {
    /// The knob of that name, underscores or dashes.
    pub fn named(name: &str) -> Option<&'static Knob> {
        let name = name.replace('-', "_");
        KNOBS.iter().find(|knob| knob.name == name)
    }

    /// The first sentence of [`Knob::about`].
    pub fn brief(&self) -> &'static str {
        let text = self.about.trim_start();
        text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
    }

    /// What to tell someone who writes `value` as earlier versions spelt it: the spelling of today.
    pub fn note(&self, value: &str) -> Option<String> {
        let old = |row: &&Value| row.samples.formerly.is_some_and(|formerly| formerly == value.trim());
        let now = self.values.iter().find(old)?.spelling;
        Some(format!("`{} = {}` is written `{now}` now", self.name, value.trim()))
    }

    /// What it takes, as help texts print it: `auto | direct(SHAPE) | tma, SHAPE = 32x32b | 16x256b`.
    pub fn takes(&self) -> String {
        let auto = self.has_auto.then_some("auto");
        let mut text = auto.into_iter().chain(self.spellings()).collect::<Vec<_>>().join(" | ");
        for (word, values) in self.words {
            let values: Vec<&str> = values.iter().map(|value| value.spelling).collect();
            text.push_str(&format!(", {word} = {}", values.join(" | ")));
        }
        text
    }

    /// What it does, what it takes, and what each value means: several lines.
    pub fn help(&self) -> String {
        let values =
            self.values.iter().map(|value| format!("\n  {}: {}", value.spelling, value.about.trim()));
        format!("{}\n{}{}", self.about.trim(), self.takes(), values.collect::<String>())
    }

    /// How each value is written, without `auto`.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.values.iter().map(|value| value.spelling)
    }

    /// Values for tests to draw on a chip that has this tensor core: those that the chip honours, each as often as its weight
    /// says, and `auto`. Empty if the chip has no use for the knob.
    pub fn draws(&self, core: TensorCore) -> Vec<&'static str> {
        let usual = |value: &&Value| value.samples.is_on(core) && !value.samples.is_rare(core);
        let drawn: Vec<&str> = self.values.iter().filter(usual).flat_map(Value::draws).collect();
        let auto = (self.has_auto && !drawn.is_empty()).then_some("auto");
        auto.into_iter().chain(drawn).collect()
    }

    /// Values for tests to draw now and then: a chip with this tensor core honours them with few formats only.
    pub fn rare_draws(&self, core: TensorCore) -> Vec<&'static str> {
        let rare = |value: &&Value| value.samples.is_on(core) && value.samples.is_rare(core);
        self.values.iter().filter(rare).flat_map(Value::draws).collect()
    }

    /// Values for tests to draw that a chip with this tensor core refuses.
    pub fn foreign_draws(&self, core: TensorCore) -> Vec<&'static str> {
        self.values.iter().filter(|value| !value.samples.is_on(core)).flat_map(Value::draws).collect()
    }

    /// Values that tuning tries beside `auto` on a chip with this tensor core.
    pub fn candidates(&self, core: TensorCore) -> Vec<&'static str> {
        let lists = self.values.iter().flat_map(|value| value.samples.tune);
        let here = lists.filter(|(on, _)| *on == core);
        here.flat_map(|(_, list)| list.split('|')).collect()
    }
}

/// A value of a knob, or a family of values that differ in an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// How it is written, an argument in capitals: `forward`, `split_tail(T)`.
    pub spelling: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Where it works, what tests draw of it and what tuning tries.
    pub samples: Samples,
}

impl Value {
    /// A value that is written as `spelling`.
    pub const fn new(spelling: &'static str, about: &'static str, samples: Samples) -> Self {
        Value { spelling, about, samples }
    }

    /// Whether `text` is this value, or one of its family.
    pub fn covers(&self, text: &str) -> bool {
        let list = self.spelling.starts_with('[') && text.trim_start().starts_with('[');
        list || self.is(text) || self.argument(text).is_some()
    }

    /// The word that the value starts with; empty if the value is a number.
    pub(super) fn name(&self) -> &'static str {
        match self.spelling.split_once('(') {
            Some((name, _)) => name,
            None if self.spelling.starts_with(|first: char| first.is_ascii_lowercase()) => self.spelling,
            None => "",
        }
    }

    /// The value's text with that argument.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        argument: Option<&dyn fmt::Display>,
    ) -> fmt::Result {
        match (self.name(), argument) {
            (_, None) => f.write_str(self.spelling),
            ("", Some(argument)) => argument.fmt(f),
            (name, Some(argument)) => write!(f, "{name}({argument})"),
        }
    }

    /// Whether `text` is this value, which has no argument.
    pub(super) fn is(&self, text: &str) -> bool {
        let text = text.trim();
        text == self.spelling || self.samples.formerly == Some(text)
    }

    /// The argument in `text`, if that is this value with one.
    pub(super) fn argument<'a>(&self, text: &'a str) -> Option<&'a str> {
        let text = text.trim();
        match self.name() {
            // A number starts with a digit.
            "" => text.starts_with(|first: char| first.is_ascii_digit()).then_some(text),
            name => text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')').map(str::trim),
        }
    }

    /// What tests draw of it.
    fn draws(&self) -> impl Iterator<Item = &'static str> + use<> {
        let list = if self.samples.draw.is_empty() { self.spelling } else { self.samples.draw };
        let weight = self.samples.weight;
        list.split('|').flat_map(move |text| std::iter::repeat_n(text, weight))
    }
}

/// What a row of the table says about a value beyond its text: which chips honour it, what tests draw and what tuning tries.
/// Lists are texts with `|` between values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Tensor cores whose kernels honour the value.
    pub on: &'static [TensorCore],
    /// Tensor cores whose kernels honour the value with few formats only.
    pub rare_on: &'static [TensorCore],
    /// Values to draw; empty for the spelling itself.
    pub draw: &'static str,
    /// How many times as often as others each is drawn.
    pub weight: usize,
    /// What tuning tries, by tensor core.
    pub tune: &'static [(TensorCore, &'static str)],
    /// How the value was written in earlier versions; still read.
    pub formerly: Option<&'static str>,
}

impl Samples {
    /// A value that all chips honour and that tests draw as it is written.
    pub const EVERYWHERE: Samples = Samples {
        on: &[TensorCore::Tcgen05, TensorCore::Wgmma, TensorCore::Mma],
        rare_on: &[],
        draw: "",
        weight: 1,
        tune: &[],
        formerly: None,
    };
    /// A value that no kernel of a dual GEMM honours.
    pub const NOWHERE: Samples = Samples { on: &[], ..Samples::EVERYWHERE };
    /// A value that kernels for `tcgen05` alone honour.
    pub const TCGEN05: Samples = Samples { on: &[TensorCore::Tcgen05], ..Samples::EVERYWHERE };
    /// A value of clusters, or of MMAs with columns for both products, which kernels for `mma.sync` do not honour.
    pub const NOT_MMA: Samples =
        Samples { on: &[TensorCore::Tcgen05, TensorCore::Wgmma], ..Samples::EVERYWHERE };
    /// A value that kernels for `wgmma` alone honour.
    pub const WGMMA: Samples = Samples { on: &[TensorCore::Wgmma], ..Samples::EVERYWHERE };

    /// Kernels for these tensor cores honour it with few formats only.
    pub const fn rare(self, rare_on: &'static [TensorCore]) -> Self {
        Samples { rare_on, ..self }
    }

    /// What tests draw, where the spelling has an argument.
    pub const fn draw(self, draw: &'static str) -> Self {
        Samples { draw, ..self }
    }

    /// Tests draw it `weight` times as often as others.
    pub const fn weight(self, weight: usize) -> Self {
        Samples { weight, ..self }
    }

    /// What tuning tries.
    pub const fn tune(self, tune: &'static [(TensorCore, &'static str)]) -> Self {
        Samples { tune, ..self }
    }

    /// How the value was written before.
    pub const fn formerly(self, formerly: &'static str) -> Self {
        Samples { formerly: Some(formerly), ..self }
    }

    fn is_on(&self, core: TensorCore) -> bool {
        self.on.contains(&core)
    }

    fn is_rare(&self, core: TensorCore) -> bool {
        self.rare_on.contains(&core)
    }
}

/// A type that knobs have.
pub trait KnobType {
    /// Its rows of the table.
    const VALUES: &'static [Value];
    /// Words in their spellings, each with the values that it stands for.
    const WORDS: &'static [(&'static str, &'static [Value])] = &[];
    /// Whether it has `auto`.
    const HAS_AUTO: bool = false;
}

/// Numbers have a row with their knob.
impl KnobType for u32 {
    const VALUES: &'static [Value] = &[];
}

impl<T: KnobType> KnobType for super::Setting<T> {
    const VALUES: &'static [Value] = T::VALUES;
    const WORDS: &'static [(&'static str, &'static [Value])] = T::WORDS;
    const HAS_AUTO: bool = true;
}

/// An argument as what [`Value::write`] takes.
pub(super) fn displayed<T: fmt::Display>(argument: &T) -> Option<&dyn fmt::Display> {
    Some(argument)
}

/// Makes [`Config`](super::Config) and [`KNOBS`](super::KNOBS) of rows `/// ABOUT` `NAME: TYPE`; a number's row ends in `= [VALUES]`.
macro_rules! knobs {
    ($($(#[doc = $about:literal])+ $field:ident: $type:ty $(= [$($value:expr),+])?,)+) => {
        /// All knobs of one kernel. `Config::default()` leaves every choice to `validate`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[doc = $about])+ pub $field: $type,)+
        }

        /// Every knob of [`Config`], in its order.
        pub const KNOBS: [Knob; [$(stringify!($field)),+].len()] = [$(Knob {
            name: stringify!($field),
            about: concat!($($about),+),
            has_auto: <$type as KnobType>::HAS_AUTO,
            values: knobs!(@values $type $(, $($value),+)?),
            words: <$type as KnobType>::WORDS,
        }),+];

        impl Config {
            /// Sets the knob called `name` (underscores or dashes) from its text form.
            ///
            /// # Errors
            /// An unknown name, or a value the knob does not take; the message lists what it would take.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), ParseKnobError> {
                let knob = Knob::named(name).ok_or_else(|| ParseKnobError::unknown_knob(name, &KNOBS))?;
                $(if knob.name == stringify!($field) {
                    self.$field = text::knob(knob, value)?;
                })+
                Ok(())
            }

            /// The knobs with their values as text, in the order of [`KNOBS`].
            pub fn entries(&self) -> [(&'static str, String); KNOBS.len()] {
                [$((stringify!($field), self.$field.to_string())),+]
            }
        }

        /// The expression that makes the configuration again.
        impl ToTokens for Config {
            fn to_tokens(&self, tokens: &mut TokenStream) {
                let Config { $($field),+ } = self;
                tokens.extend(quote!(::silumin::codegen::config::Config { $($field: #$field,)+ }));
            }
        }
    };
    (@values $type:ty) => { <$type as KnobType>::VALUES };
    (@values $type:ty, $($value:expr),+) => { &[$($value),+] };
}

/// Makes the types of knobs: enums whose rows are `/// ABOUT` `VARIANT = SPELLING: SAMPLES`.
macro_rules! knob_types {
    ($(
        $(#[doc = $about:literal])+
        $type:ident $((default $default:ident))? $(where $word:literal = $of:ident)? {
            $($(#[doc = $doc:literal])+ $variant:ident $(($argument:ident: $of_type:ty))? = $spelling:literal: $samples:expr,)+
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[doc = $doc])+ $variant $(($of_type))?,)+
        }

        $(impl Default for $type {
            fn default() -> Self {
                $type::$default
            }
        })?

        impl KnobType for $type {
            const VALUES: &'static [Value] = &[$(Value::new($spelling, concat!($($doc),+), $samples)),+];
            $(const WORDS: &'static [(&'static str, &'static [Value])] = &[($word, $of::VALUES)];)?
        }

        impl $type {
            /// The value's row of the table.
            pub fn row(&self) -> &'static Value {
                match self {
                    $($type::$variant { .. } => {
                        const ROW: &Value = &Value::new($spelling, concat!($($doc),+), $samples);
                        ROW
                    })+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($type::$variant $(($argument))? => self.row().write(f, knob_types!(@argument $($argument)?)),)+
                }
            }
        }

        impl FromStr for $type {
            type Err = NotAValue;

            fn from_str(text: &str) -> Result<Self, NotAValue> {
                $({
                    const ROW: Value = Value::new($spelling, "", $samples);
                    knob_types!(@read ROW, text, $type::$variant $(, $argument)?);
                })+
                Err(NotAValue)
            }
        }

        /// The expression that makes the value again.
        impl ToTokens for $type {
            fn to_tokens(&self, tokens: &mut TokenStream) {
                tokens.extend(match self {
                    $($type::$variant $(($argument))? => {
                        quote!(::silumin::codegen::config::$type::$variant $((#$argument))?)
                    })+
                });
            }
        }

        text::serde_as_text!([] $type);
    )+ };
    (@argument) => { None };
    (@argument $argument:ident) => { row::displayed($argument) };
    (@read $row:ident, $text:ident, $type:ident::$variant:ident) => {
        if $row.is($text) {
            return Ok($type::$variant);
        }
    };
    (@read $row:ident, $text:ident, $type:ident::$variant:ident, $argument:ident) => {
        if let Some($argument) = $row.argument($text) {
            return $argument.parse().map($type::$variant).map_err(|_| NotAValue);
        }
    };
}

pub(super) use {knob_types, knobs};
