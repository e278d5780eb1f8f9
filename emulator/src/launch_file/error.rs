//! Errors of launch files, with their places.

use crate::module::ParseErrors;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A place in a launch file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The launch file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// That line.
    pub text: String,
}

impl Place {
    /// The place of a byte range of `text`.
    pub(crate) fn of(file: &Path, text: &str, span: Option<Range<usize>>) -> Self {
        let at = span.map_or(0, |s| s.start).min(text.len());
        // A span may start inside a character only if the parser has a fault; it must not be ours.
        let before = text.get(..at).unwrap_or("");
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        Place {
            file: file.to_owned(),
            line: before.matches('\n').count() as u32 + 1,
            column: before[start..].chars().count() as u32 + 1,
            text: text[start..].lines().next().unwrap_or("").trim().to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// Why a launch file cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchFileError {
    /// The launch file could not be read.
    #[error("{}: {message}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
    /// The text is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("{place}: {message}\n    {}", place.text)]
    Syntax {
        /// Where.
        place: Place,
        /// The error, and the allowed keys.
        message: String,
    },
    /// A value is not allowed.
    #[error("{place}: {key}: {message}\n    {}", place.text)]
    Value {
        /// Where.
        place: Place,
        /// The key, e.g. `params[2].tensor_map.box`.
        key: String,
        /// The value, the limit and a way out.
        message: String,
    },
    /// The PTX has errors.
    #[error("{0}")]
    Ptx(ParseErrors),
}
