//! Reading knob values. One reader a type, used by the DSL, the command line and TOML alike.

use super::{
    AReuse, Accumulators, Buffers, CacheHints, Consumers, CtaGroup, Eviction, KNOBS, KOrder, Multicast,
    Promotion, Raster, Schedule, Setting, SfLoad, SfPreload, Store, Strategy, Switch, Tile, TmemLoad,
    TmemShape,
};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A knob that does not exist, or text that is no value of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseKnobError {
    /// No knob has this name.
    #[error("there is no knob `{name}`{}; the knobs are: {}", near(name), knob_names())]
    UnknownKnob {
        /// What was written.
        name: String,
    },
    /// The knob exists, the value does not.
    #[error("`{value}` is not a value of `{knob}`; it takes {takes}")]
    Value {
        /// The knob's name.
        knob: &'static str,
        /// What was written.
        value: String,
        /// The values it takes.
        takes: &'static str,
    },
}

impl ParseKnobError {
    pub(super) fn unknown_knob(name: &str) -> Self {
        ParseKnobError::UnknownKnob { name: name.to_owned() }
    }
}

fn knob_names() -> String {
    KNOBS.map(|knob| knob.name).join(", ")
}

/// " (did you mean `stages`?)" for a name that shares its letters with a knob's.
fn near(name: &str) -> String {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().filter(|c| c.is_alphanumeric()).collect();
        letters.sort_unstable();
        letters
    };
    let given = sorted(name);
    KNOBS
        .iter()
        .find(|knob| {
            let letters = sorted(knob.name);
            letters == given || knob.name.starts_with(name) && name.len() > 1 || name.starts_with(knob.name)
        })
        .map(|knob| format!(" (did you mean `{}`?)", knob.name))
        .unwrap_or_default()
}

/// Reads a value of `KNOBS[index]`.
pub(super) fn knob<T: FromStr>(index: usize, value: &str) -> Result<T, ParseKnobError> {
    let knob = &KNOBS[index];
    value.parse().map_err(|_| ParseKnobError::Value {
        knob: knob.name,
        value: value.to_owned(),
        takes: knob.values,
    })
}

/// The text is no value of the type; [`ParseKnobError`] says what would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a value of this knob")]
pub struct NotAValue;

impl<T: FromStr> FromStr for Setting<T> {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "auto" => Ok(Setting::Auto),
            value => value.parse().map(Setting::Fixed).map_err(|_| NotAValue),
        }
    }
}

/// The items of `[a, b, c]`, brackets optional (the command line does without them).
fn list(text: &str) -> Result<Vec<&str>, NotAValue> {
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

/// The argument of `name(argument)`.
fn argument(text: &str, name: &str) -> Result<u32, NotAValue> {
    let inner = text.strip_prefix(name).map(str::trim_start).and_then(|rest| rest.strip_prefix('('));
    let inner = inner.and_then(|rest| rest.strip_suffix(')')).ok_or(NotAValue)?;
    inner.trim().parse().map_err(|_| NotAValue)
}

impl FromStr for Strategy {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "two_pass" => Ok(Strategy::TwoPass),
            "second_fused" => Ok(Strategy::SecondFused),
            "sequential" => Ok(Strategy::Sequential),
            "interleaved" => Ok(Strategy::Interleaved),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for Schedule {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "one_tile" => Ok(Schedule::OneTile),
            "persistent" => Ok(Schedule::Persistent),
            "dynamic" => Ok(Schedule::Dynamic),
            "stream_k" => Ok(Schedule::StreamK),
            other if other.starts_with('c') => {
                argument(other, "cluster_split_k").map(Schedule::ClusterSplitK)
            }
            other => argument(other, "split_k").map(Schedule::SplitK),
        }
    }
}

impl FromStr for Raster {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "along_m" => Ok(Raster::AlongM),
            "along_n" => Ok(Raster::AlongN),
            other => argument(other, "swizzled").map(Raster::Swizzled),
        }
    }
}

impl FromStr for Multicast {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "none" => Ok(Multicast::None),
            other if other.starts_with('a') => argument(other, "a").map(Multicast::A),
            other => argument(other, "b").map(Multicast::B),
        }
    }
}

impl FromStr for SfLoad {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "bulk" => Ok(SfLoad::Bulk),
            "tensor_map" => Ok(SfLoad::TensorMap),
            "multicast" => Ok(SfLoad::Multicast),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for Switch {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "on" => Ok(Switch::On),
            "off" => Ok(Switch::Off),
            _ => Err(NotAValue),
        }
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

impl FromStr for CtaGroup {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "1" => Ok(CtaGroup::One),
            "2" => Ok(CtaGroup::Two),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for KOrder {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "forward" => Ok(KOrder::Forward),
            "reverse" => Ok(KOrder::Reverse),
            "ping_pong" => Ok(KOrder::PingPong),
            other => argument(other, "split_tail").map(KOrder::SplitTail),
        }
    }
}

impl FromStr for Promotion {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "off" => Ok(Promotion::Off),
            other => argument(other, "every").map(Promotion::Every),
        }
    }
}

impl FromStr for SfPreload {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "per_stage" => Ok(SfPreload::PerStage),
            "all" => Ok(SfPreload::All),
            other => argument(other, "ahead").map(SfPreload::Ahead),
        }
    }
}

impl FromStr for Accumulators {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "separate" => Ok(Accumulators::Separate),
            "side_by_side" => Ok(Accumulators::SideBySide),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for Consumers {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "cooperative" => Ok(Consumers::Cooperative),
            "ping_pong" => Ok(Consumers::PingPong),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for Buffers {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "overlapped" => Ok(Buffers::Overlapped),
            number => number.parse().map(Buffers::Whole).map_err(|_| NotAValue),
        }
    }
}

impl FromStr for AReuse {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "none" => Ok(AReuse::None),
            "collector" => Ok(AReuse::Collector),
            _ => Err(NotAValue),
        }
    }
}

impl FromStr for Eviction {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "evict_normal" => Ok(Eviction::Normal),
            "evict_first" => Ok(Eviction::First),
            "evict_last" => Ok(Eviction::Last),
            _ => Err(NotAValue),
        }
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

impl FromStr for Store {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        match text.trim() {
            "direct" => Ok(Store::Direct),
            "tma" => Ok(Store::Tma),
            other => {
                let inner = other.strip_prefix("direct").map(str::trim_start).ok_or(NotAValue)?;
                let inner =
                    inner.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).ok_or(NotAValue)?;
                let (shape, chunk) = match inner.split_once(',') {
                    None => (inner, None),
                    Some((shape, chunk)) => (shape, Some(chunk.trim().parse().map_err(|_| NotAValue)?)),
                };
                let shapes =
                    [TmemShape::S32x32b, TmemShape::S16x256b, TmemShape::S16x128b, TmemShape::S16x64b];
                let shape = shapes.into_iter().find(|known| known.name() == shape.trim());
                Ok(Store::DirectBy(TmemLoad { shape: shape.ok_or(NotAValue)?, chunk }))
            }
        }
    }
}

/// Reads a knob from a string, an integer (`stages = 4`) or a list of integers (`tile = [128, 128, 256]`).
struct KnobVisitor<T>(PhantomData<T>);

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

macro_rules! serde_as_text {
    ($($(#[$meta:meta])* [$($generics:tt)*] $type:ty),* $(,)?) => { $(
        impl<$($generics)*> Serialize for $type where Self: fmt::Display {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de, $($generics)*> Deserialize<'de> for $type where Self: FromStr {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(KnobVisitor(PhantomData))
            }
        }
    )* };
}

serde_as_text!([T] Setting<T>, [] Tile, [] Strategy, [] Schedule, [] Raster, [] Multicast, [] SfLoad, [] Switch, [] CtaGroup, [] KOrder, [] SfPreload, [] Accumulators, [] Consumers, [] Promotion, [] Buffers, [] AReuse, [] CacheHints, [] Store);
