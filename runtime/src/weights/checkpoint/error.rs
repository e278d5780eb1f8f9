//! Errors of checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::super::WeightError;
use super::file::MAX_HEADER;

/// Why weights could not be read from a checkpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its words.
        source: io::Error,
    },
    /// A folder has no safetensors files.
    #[error(
        "{}: there is no safetensors file, and no model.safetensors.index.json: name the folder of a checkpoint, or a file",
        .path.display()
    )]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// The path is not a regular file.
    #[error("{}: this is not a regular file: name a safetensors file", .path.display())]
    NoFile {
        /// What it is.
        path: PathBuf,
    },
    /// An index is not valid.
    #[error("{}: this is not an index of a checkpoint: {reason}; fetch it again", .path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file ends before its last tensor does.
    #[error("{}: the file has {found} bytes, and by its header it has {needed}: it is cut short, fetch it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Required length in bytes, saturating.
        needed: u64,
        /// Actual length in bytes.
        found: u64,
    },
    /// The header's length is implausible.
    #[error(
        "{}: by its first eight bytes its header has {bytes} bytes, of {MAX_HEADER} at most: this is not a safetensors file",
        .path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Length of the header in bytes.
        bytes: u64,
    },
    /// A header is not valid or contradicts itself.
    #[error("{}: the header is not that of a safetensors file: {reason}; fetch the file again", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor is missing.
    #[error("{}: there is no tensor `{tensor}`{}", .path.display(), perhaps(.near))]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Similar names, the likeliest first.
        near: Vec<String>,
    },
    /// A layer is missing.
    #[error(
        "{}: `{layer}` has no gate and up weights: neither {} is there{}",
        .path.display(), listed(.tried), perhaps(.near)
    )]
    NoLayer {
        /// The checkpoint.
        path: PathBuf,
        /// The layer.
        layer: String,
        /// Tensors that were looked up.
        tried: Vec<String>,
        /// Layers that have such weights, the likeliest first.
        near: Vec<String>,
    },
    /// An index names the wrong file for a tensor.
    #[error("{} lists `{tensor}` in {}, which does not have it: fetch both again", .index.display(), .shard.display())]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The file that it names.
        shard: PathBuf,
        /// What says so.
        index: PathBuf,
    },
    /// Two files have the same tensor, and no index says which one to use.
    #[error(
        "`{tensor}` is in {} and in {}: open one of the files alone, or put a model.safetensors.index.json beside them",
        .first.display(), .second.display()
    )]
    Twice {
        /// The tensor.
        tensor: String,
        /// The first file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A tensor has the wrong element type.
    #[error("{}: `{tensor}` has elements of type {found}, and {expected} is expected: {hint}", .path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type, as the file names it.
        found: String,
        /// The expected type.
        expected: &'static str,
        /// A possible reason.
        hint: &'static str,
    },
    /// A tensor has the wrong shape.
    #[error("{}: `{tensor}` is {found:?}, and should be {expected}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<usize>,
        /// The expected shape, with the reason.
        expected: String,
    },
    /// A scale of a whole tensor is not a positive finite number.
    #[error(
        "{}: `{tensor}` is {value}, but a scale is finite and above 0, and so is its reciprocal: the weights were not \
         calibrated, or are damaged",
        .path.display()
    )]
    GlobalScale {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its value.
        value: f32,
    },
    /// No kernel multiplies by these weights.
    #[error("{}: `{tensor}`: {reason}", .path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The tensor, or the layer.
        tensor: String,
        /// The error.
        reason: WeightError,
    },
}

impl CheckpointError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" nor ")
}

fn perhaps(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("; there is {}", names.join(", "))
}
