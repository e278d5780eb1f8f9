//! Reading knob values. One reader a type, used by the DSL, the command line and TOML alike.

use super::row::Knob;
use crate::suggest::did_you_mean;
use serde::de::{self, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A knob that does not exist, or text that is no value of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseKnobError {
    /// No knob has this name.
    #[error("there is no knob `{name}`{}; the knobs are: {}", did_you_mean(name, known.iter().copied()), known.join(", "))]
    UnknownKnob {
        /// What was written.
        name: String,
        /// The knobs that there are.
        known: Vec<&'static str>,
    },
    /// The knob exists, the value does not.
    #[error("`{value}` is not a value of `{knob}`{near}; it takes {takes}")]
    Value {
        /// The knob's name.
        knob: &'static str,
        /// What was written.
        value: String,
        /// The value that it is nearest to, as a question in brackets; empty if none is near.
        near: String,
        /// The values it takes.
        takes: String,
    },
}

impl ParseKnobError {
    /// `name` is none of the knobs.
    pub(crate) fn unknown_knob<'a>(name: &str, knobs: impl IntoIterator<Item = &'a Knob>) -> Self {
        let known = knobs.into_iter().map(|knob| knob.name).collect();
        ParseKnobError::UnknownKnob { name: name.to_owned(), known }
    }

    /// `value` is no value of the knob.
    pub(crate) fn no_value(knob: &Knob, value: &str) -> Self {
        let words = knob
            .spellings()
            .filter(|spelling| spelling.starts_with(|first: char| first.is_ascii_lowercase()));
        let near = did_you_mean(value, words.chain(knob.has_auto.then_some("auto")));
        ParseKnobError::Value { knob: knob.name, value: value.to_owned(), near, takes: knob.takes() }
    }
}

/// Reads a value of a knob.
pub(super) fn knob<T: FromStr>(knob: &Knob, value: &str) -> Result<T, ParseKnobError> {
    value.parse().map_err(|_| ParseKnobError::no_value(knob, value))
}

/// The text is no value of the type; [`ParseKnobError`] says what would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a value of this knob")]
pub struct NotAValue;

/// The items of `[a, b, c]`, brackets optional (the command line does without them).
pub(super) fn list(text: &str) -> Result<Vec<&str>, NotAValue> {
    let text = text.trim();
    let inner = match (text.strip_prefix('['), text.ends_with(']')) {
        (Some(rest), true) => &rest[..rest.len() - 1],
        (None, false) => text,
        _ => return Err(NotAValue),
    };
    let mut items: Vec<&str> = inner.split(',').map(str::trim).collect();
    if items.len() > 1 && items.last() == Some(&"") {
        items.pop();
    }
    Ok(items)
}

/// Reads a knob from a string, an integer (`stages = 4`) or a list of integers (`tile = [128, 128, 256]`).
pub(super) struct KnobVisitor<T>(PhantomData<T>);

impl<T> KnobVisitor<T> {
    pub(super) const NEW: Self = KnobVisitor(PhantomData);
}

impl<'de, T: FromStr> Visitor<'de> for KnobVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a knob's value as the DSL spells it")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        value.to_string().parse().map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        value.to_string().parse().map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<T, A::Error> {
        let mut sizes: Vec<String> = Vec::new();
        while let Some(size) = items.next_element::<u32>()? {
            sizes.push(size.to_string());
        }
        let text = format!("[{}]", sizes.join(", "));
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &self))
    }
}

/// Serde's forms of types that have a text form: a string, or what [`KnobVisitor`] reads.
macro_rules! serde_as_text {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> ::serde::Serialize for $type where Self: ::std::fmt::Display {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de, $($generics)*> ::serde::Deserialize<'de> for $type where Self: ::std::str::FromStr {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::config::text::KnobVisitor::NEW)
            }
        }
    };
}

pub(super) use serde_as_text;
