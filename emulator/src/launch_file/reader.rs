//! Looking at the values of a launch file: ranges, names, and errors that say where.

use super::error::{LaunchFileError, Place};
use super::schema::Integer;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;

pub(crate) type Read<T> = Result<T, LaunchFileError>;

/// The text that values came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl Reader<'_> {
    /// An error at a place.
    pub fn bad<T>(&self, span: Range<usize>, key: impl Display, message: impl Display) -> Read<T> {
        Err(LaunchFileError::Value {
            place: Place::of(self.path, self.text, Some(span)),
            key: key.to_string(),
            message: message.to_string(),
        })
    }

    /// An integer within a range.
    pub fn integer<T>(
        &self,
        value: &Integer,
        key: impl Display,
        range: RangeInclusive<i128>,
        hint: &str,
    ) -> Read<T>
    where
        T: TryFrom<i128>,
    {
        let v = *value.get_ref();
        if range.contains(&v)
            && let Ok(v) = T::try_from(v)
        {
            return Ok(v);
        }
        let message =
            format!("{v} is out of range: it must be from {} to {}{hint}", range.start(), range.end());
        self.bad(value.span(), key, message)
    }

    /// Three dimensions, each within 1 and 2^32 - 1; what they may be together is the launch's.
    pub fn triple(&self, value: &Spanned<Vec<Integer>>, key: &str) -> Read<[u32; 3]> {
        let list = value.get_ref();
        let [x, y, z] = list.as_slice() else {
            let message =
                format!("{} numbers: it must be three, [x, y, z]; write 1 for the rest", list.len());
            return self.bad(value.span(), key, message);
        };
        let one = |v: &Integer| self.integer(v, key, 1..=i128::from(u32::MAX), "");
        Ok([one(x)?, one(y)?, one(z)?])
    }

    /// A list of integers, each within a range.
    pub fn list<T>(
        &self,
        value: &Spanned<Vec<Integer>>,
        key: &str,
        range: RangeInclusive<i128>,
        hint: &str,
    ) -> Read<Vec<T>>
    where
        T: TryFrom<i128>,
    {
        let items = value.get_ref().iter().enumerate();
        items.map(|(i, v)| self.integer(v, format_args!("{key}[{i}]"), range.clone(), hint)).collect()
    }

    /// One of a few names.
    pub fn choice<T: Copy>(&self, value: &Spanned<String>, key: &str, names: &[(&str, T)]) -> Read<T> {
        if let Some((_, v)) = names.iter().find(|(name, _)| name == value.get_ref()) {
            return Ok(*v);
        }
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let message = format!("`{}` is not known: it must be one of {}", value.get_ref(), known.join(", "));
        self.bad(value.span(), key, message)
    }
}
