//! What brackets and gate mean together.

use super::brackets::{Brackets, Errors, text};
use super::check::check;
use super::hints;
use crate::arch::Arch;
use crate::config::{Config, KNOBS, Knob, ParseKnobError, Samples, Value};
use crate::gate::{BUILTIN_WIDTH, Gate, GateError, gate_code};
use crate::plan::GateNeeds;
use crate::problem::{Formats, Groups, Operation, PreactivationFormat, Shape};
use crate::spec::{Spec, default_name, gate_targets};
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use std::fmt::Display;
use std::str::FromStr;
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Error, Ident, Result, Token};

/// What the angle brackets take beyond the knobs of [`KNOBS`].
pub const DSL_KNOBS: [Knob; 5] = [
    entry(
        "shape",
        "The one shape, checked while compiling; left out, any shape at run time.",
        &[word("[M, N, K]")],
    ),
    entry(
        "batch",
        "Beside shape: so many dual GEMMs of it, A [L, M, K], B1 and B2 [L, N, K], C [L, M, N].",
        &[word("L")],
    ),
    entry(
        "groups",
        "Beside shape: the M rows belong to groups, each with weights of its own, B1 and B2 [G, N, K].",
        &[word("G")],
    ),
    entry("arch", "The chips; left out, all of them.", &ARCHES),
    entry(
        "preactivations",
        "Format of the kept pre-activations D1 and D2, the products as the gate reads them; left out, they are not kept.",
        &PREACTIVATIONS,
    ),
];

/// Settings that were renamed: old name, current name.
const RENAMED: [(&str, &str); 1] = [("products", "preactivations")];

const ARCHES: [Value; Arch::ALL.len() + 1] = {
    let mut values = [word("[sm_90a, sm_100a, ...]"); Arch::ALL.len() + 1];
    let mut i = 0;
    while i < Arch::ALL.len() {
        values[i] = word(Arch::ALL[i].target());
        i += 1;
    }
    values
};

const PREACTIVATIONS: [Value; PreactivationFormat::ALL.len() + 1] = {
    let mut values = [word(PreactivationFormat::setting_name(None)); PreactivationFormat::ALL.len() + 1];
    let mut i = 0;
    while i < PreactivationFormat::ALL.len() {
        values[i + 1] = word(PreactivationFormat::setting_name(Some(PreactivationFormat::ALL[i])));
        i += 1;
    }
    values
};

const fn entry(name: &'static str, about: &'static str, values: &'static [Value]) -> Knob {
    Knob { name, about, has_auto: false, values, words: &[] }
}

const fn word(spelling: &'static str) -> Value {
    Value::new(spelling, "", Samples::EVERYWHERE)
}

/// One dual GEMM: everything that `dual_gemm!` says about it, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// All but the shape, the gate's code included.
    pub spec: Spec,
    /// The shape, if it is fixed.
    pub shape: Option<Shape>,
    /// What the compiler is to warn of.
    pub notes: Vec<Note>,
}

/// The constant of spellings of an earlier version.
const OLD_SPELLING: &str = "OLD_SPELLING";

/// What is legal, and probably not meant: a spelling of an earlier version, a scalar with a vector's name.
#[derive(Clone, Debug)]
pub struct Note {
    /// What to write.
    pub text: String,
    /// Name of the constant that the compiler says is deprecated.
    pub(super) constant: &'static str,
    /// Where it is written.
    pub(super) span: Span,
}

impl PartialEq for Note {
    fn eq(&self, other: &Note) -> bool {
        self.text == other.text
    }
}

impl Declaration {
    /// Reads `[<...>] GATE`, or for an item `[<...>] = GATE` and up to the `;`.
    ///
    /// # Errors
    /// Everything that is wrong, as far as it can be told apart, each with its place.
    pub(super) fn parse(operation: Operation, input: ParseStream, name: Option<&Ident>) -> Result<Self> {
        let mut errors = Errors::default();
        let declaration = Self::read(operation, input, name, &mut errors);
        errors.finish(declaration)
    }

    fn read(
        operation: Operation,
        input: ParseStream,
        name: Option<&Ident>,
        errors: &mut Errors,
    ) -> Result<Self> {
        let brackets = Brackets::parse(input, errors)?;
        if name.is_some() {
            input.parse::<Token![=]>()?;
        }
        let source = upcoming(input);
        let gate = input.parse::<Gate>();
        let formats = formats(&brackets, gate.as_ref().ok(), errors);
        let mut knobs = Knobs::read(&brackets, errors);
        knobs.settle_groups(errors);
        let formats = Formats { preactivations: knobs.preactivations, ..formats };
        if let Some(text) = knobs.config.note(formats) {
            let span = knobs.place("accumulators").span();
            knobs.notes.push(Note { text, constant: OLD_SPELLING, span });
        }
        // What could not be read counts as left out, which would make errors of its own.
        if errors.is_empty() {
            let needs =
                gate.as_ref().map_or_else(|_| GateNeeds::default(), |gate| GateNeeds::from(&gate.expr));
            check(operation, formats, &knobs, &needs, errors);
        }
        let gate = gate?;
        knobs.notes.extend(hints::notes(&gate, &source));
        if gate.expr.operation() != operation {
            return Err(Error::new_spanned(source, wrong_macro(operation, &gate)));
        }
        let code =
            gate_targets(&knobs.arches).into_iter().map(|arch| gate_code(&gate.expr, arch, BUILTIN_WIDTH));
        let code = code
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::new_spanned(source, no_code(error)))?;
        let name = name.map_or(default_name(operation).into(), |name| name.to_string().into());
        let spec = Spec { name, gate, formats, config: knobs.config, code };
        Ok(Declaration { spec, shape: knobs.shape, notes: knobs.notes })
    }
}

/// The gate's tokens, which stay where they are.
fn upcoming(input: ParseStream) -> TokenStream {
    let ahead = input.fork();
    let mut tokens = TokenStream::new();
    while !ahead.is_empty() && !ahead.peek(Token![;]) && !ahead.peek(Token![,]) {
        let Ok(token) = ahead.parse::<TokenTree>() else { break };
        tokens.extend([token]);
    }
    tokens
}

/// Why a gate is not one of this macro.
fn wrong_macro(operation: Operation, gate: &Gate) -> String {
    let source = &gate.source;
    match (operation, &source.b2) {
        (Operation::DualGemm, None) => {
            let (a, b) = (&source.a, &source.b1);
            format!(
                "the gate has one product, `{a} @ {b}`, and `dual_gemm!` has two, with the same left operand\n\
                 help: use `gemm!` for one product, or write a second, as in `silu({a} @ {b}) * ({a} @ B2)`"
            )
        }
        (_, second) => {
            let (a, b1, b2) = (&source.a, &source.b1, second.as_deref().unwrap_or("B2"));
            format!(
                "the gate has two products, `{a} @ {b1}` and `{a} @ {b2}`, and `gemm!` has one\n\
                 help: use `dual_gemm!` for two products of one left operand"
            )
        }
    }
}

fn no_code(error: GateError) -> String {
    match error {
        GateError::NeedsLlvm { gate, known } => format!(
            "the gate `{gate}` is not built in, and to lower it takes LLVM\n\
             help: enable the feature `llvm` of silumin. It needs LLVM 22 with its static libraries where \
             you compile (packages llvm-22-dev and libpolly-22-dev, found through LLVM_SYS_221_PREFIX); \
             your program will not link it\n\
             help: or write a built-in gate, its products scaled and shifted as you like: {known}"
        ),
        other => other.to_string(),
    }
}

/// The knobs that were written.
pub(super) struct Knobs {
    pub(super) config: Config,
    pub(super) shape: Option<Shape>,
    /// What is written beside the shape.
    groups: Groups,
    pub(super) arches: Vec<Arch>,
    preactivations: Option<PreactivationFormat>,
    notes: Vec<Note>,
    /// Each written knob and its value; as `formats` those that were named.
    written: Vec<(&'static str, TokenStream)>,
    /// `<` and `>`.
    ends: TokenStream,
}

impl Knobs {
    fn read(brackets: &Brackets, errors: &mut Errors) -> Self {
        let mut knobs = Knobs {
            config: Config::default(),
            shape: None,
            groups: Groups::One,
            arches: Arch::ALL.to_vec(),
            preactivations: None,
            notes: Vec::new(),
            written: Vec::new(),
            ends: brackets.ends.clone(),
        };
        let formats: TokenStream = (brackets.arrows.iter().chain(&brackets.named))
            .flat_map(|(first, second)| [first.to_token_stream(), second.to_token_stream()])
            .collect();
        if !formats.is_empty() {
            knobs.written.push(("formats", formats));
        }
        for (name, value) in &brackets.knobs {
            if let Err(error) = knobs.set(name, value) {
                errors.push(error);
            }
        }
        knobs
    }

    fn set(&mut self, name: &Ident, value: &TokenStream) -> Result<()> {
        let written = name.to_string();
        let old = RENAMED.iter().find(|(old, _)| *old == written);
        let current = old.map_or(written.as_str(), |(_, current)| current);
        let Some(knob) = KNOBS.iter().chain(&DSL_KNOBS).find(|knob| knob.name == current) else {
            let known = KNOBS.iter().chain(&DSL_KNOBS);
            return Err(Error::new(name.span(), ParseKnobError::unknown_knob(&written, known)));
        };
        if self.is_written(knob.name) {
            return Err(Error::new(name.span(), format!("`{written}` is given a value already")));
        }
        self.written.push((knob.name, value.clone()));
        let text = text(value);
        let renamed = old.map(|_| format!("`{written}` is written `{current}` now"));
        self.notes.extend(renamed.map(|text| Note { text, constant: OLD_SPELLING, span: name.span() }));
        let note = knob.note(&text).map(|text| Note { text, constant: OLD_SPELLING, span: value.span() });
        self.notes.extend(note);
        let located = |error: &dyn Display| Error::new_spanned(value, error);
        match knob.name {
            "shape" => {
                let refused = ParseKnobError::no_value(knob, &text);
                self.shape = Some(shape(&text).ok_or_else(|| located(&refused))?);
            }
            "batch" | "groups" => {
                let refused = ParseKnobError::no_value(knob, &text);
                let count = text.parse().map_err(|_| located(&refused))?;
                self.groups = if knob.name == "batch" { Groups::Batch(count) } else { Groups::Rows(count) };
            }
            "arch" => {
                let arches = items(&text).unwrap_or(vec![text.as_str()]);
                let arches = arches.into_iter().map(Arch::from_str);
                let mut arches: Vec<Arch> =
                    arches.collect::<std::result::Result<_, _>>().map_err(|error| located(&error))?;
                arches.sort_unstable();
                arches.dedup();
                self.arches = arches;
            }
            "preactivations" => {
                self.preactivations =
                    PreactivationFormat::parse_setting(&text).map_err(|error| located(&error))?;
            }
            _ => self.config.set(knob.name, &text).map_err(|error| located(&error))?,
        }
        Ok(())
    }

    /// Makes `batch` or `groups` a part of the shape, which it is nothing without.
    fn settle_groups(&mut self, errors: &mut Errors) {
        let knob = match self.groups {
            Groups::One => return,
            _ if self.is_written("batch") && self.is_written("groups") => {
                let message = "a problem is a batch or has groups of rows, not both: leave one out";
                errors.push(Error::new_spanned(self.place("groups"), message));
                return;
            }
            Groups::Batch(_) => "batch",
            Groups::Rows(_) => "groups",
        };
        let not_understood = self.is_written("shape");
        match &mut self.shape {
            Some(shape) => shape.groups = self.groups,
            // A shape that was not understood has been complained of.
            None if not_understood => {}
            None => {
                let method = if knob == "batch" { "batch" } else { "grouped" };
                let message = format!(
                    "`{knob}` is a part of the shape: write `shape = [M, N, K]` beside it\n\
                     help: or leave both to run time, with `Shape::new(m, n, k).{method}(...)`"
                );
                errors.push(Error::new_spanned(self.place(knob), message));
            }
        }
    }

    pub(super) fn is_written(&self, knob: &str) -> bool {
        self.written.iter().any(|(name, _)| *name == knob)
    }

    /// Where errors about a knob belong: under its value, or under the brackets that leave it out.
    pub(super) fn place(&self, knob: &str) -> &TokenStream {
        self.written.iter().find(|(name, _)| *name == knob).map_or(&self.ends, |(_, value)| value)
    }
}

/// The items of `[a, b]`.
fn items(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim_end();
    Some(inner.strip_suffix(',').unwrap_or(inner).split(',').map(str::trim).collect())
}

fn shape(text: &str) -> Option<Shape> {
    let [m, n, k] = items(text)?[..] else { return None };
    Some(Shape::new(m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

/// The formats; those that were not given, or not understood, are the default's. Without a gate
/// nobody knows whose formats the named ones are.
fn formats(brackets: &Brackets, gate: Option<&Gate>, errors: &mut Errors) -> Formats {
    let mut formats = Formats::default();
    let mut arrows = brackets.arrows.iter();
    if let Some((from, to)) = arrows.next() {
        read_format(from, &mut formats.a, errors);
        formats.b = formats.a;
        read_format(to, &mut formats.c, errors);
    }
    let again = arrows.map(|(from, to)| (from, to)).next();
    let mixed = brackets.named.first().filter(|_| !brackets.arrows.is_empty());
    if let Some((first, last)) = again.or(mixed.map(|(name, format)| (name, format))) {
        let mut tokens = first.to_token_stream();
        tokens.extend(last.to_token_stream());
        errors.push(Error::new_spanned(tokens, "the formats are given already, by the first `->`"));
    } else if let Some(gate) = gate {
        named_formats(&brackets.named, gate, &mut formats, errors);
    }
    formats
}

fn read_format<T: FromStr<Err: Display>>(name: &Ident, format: &mut T, errors: &mut Errors) {
    match name.to_string().parse() {
        Ok(known) => *format = known,
        Err(error) => errors.push(Error::new(name.span(), error)),
    }
}

/// Whose format a name gives: an operand's as the gate has it, or as everybody calls it; the
/// output's otherwise.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Left,
    Right,
    Output,
}

fn named_formats(named: &[(Ident, Ident)], gate: &Gate, formats: &mut Formats, errors: &mut Errors) {
    let source = &gate.source;
    // A GEMM has one right operand.
    let rights = [source.b1.as_str(), source.b2.as_deref().unwrap_or(&source.b1)];
    let (scalars, vectors) = (gate.expr.scalars(), gate.expr.vectors());
    let mut seen: Vec<(Role, String)> = Vec::new();
    for (name, format) in named {
        let text = name.to_string();
        let role = match text.as_str() {
            known if known == source.a => Role::Left,
            known if rights.contains(&known) => Role::Right,
            known if scalars.iter().any(|scalar| scalar == known) => {
                let message =
                    format!("`{known}` is a scalar of the gate, always f32; only matrices have formats");
                errors.push(Error::new(name.span(), message));
                continue;
            }
            known if vectors.iter().any(|vector| vector.name == known && vector.is_matrix()) => {
                let message = format!(
                    "`{known}` is a matrix that the gate reads, in the format of C, or in bf16 if C has 4 or 8 bits"
                );
                errors.push(Error::new(name.span(), message));
                continue;
            }
            known if vectors.iter().any(|vector| vector.name == known) => {
                let message =
                    format!("`{known}` is a vector of the gate, always f32; only matrices have formats");
                errors.push(Error::new(name.span(), message));
                continue;
            }
            "A" => Role::Left,
            "B" => Role::Right,
            _ => Role::Output,
        };
        let previous = seen.iter().find(|(other, _)| *other == role).map(|(_, name)| name.clone());
        seen.push((role, text.clone()));
        if let Some(previous) = previous {
            // Both right operands may be named, each once.
            let both = rights.contains(&text.as_str()) && rights.contains(&previous.as_str());
            if both && text != previous {
                let mut other = formats.b;
                read_format(format, &mut other, errors);
                if other != formats.b {
                    let message = format!("`{previous}` is {}, and `{text}` has the same format", formats.b);
                    errors.push(Error::new(format.span(), message));
                }
                continue;
            }
            let whose = match role {
                Role::Left => format!("the left operand's format is given already, as that of `{previous}`"),
                Role::Right => {
                    format!("the right operands' format is given already, as that of `{previous}`")
                }
                Role::Output => {
                    let operands = match &source.b2 {
                        Some(b2) => format!("`{}`, `{}` and `{b2}`", source.a, source.b1),
                        None => format!("`{}` and `{}`", source.a, source.b1),
                    };
                    format!(
                        "the output's format is given already, as that of `{previous}`; the operands are {operands}"
                    )
                }
            };
            errors.push(Error::new(name.span(), whose));
            continue;
        }
        match role {
            Role::Left => read_format(format, &mut formats.a, errors),
            Role::Right => read_format(format, &mut formats.b, errors),
            Role::Output => read_format(format, &mut formats.c, errors),
        }
    }
}
