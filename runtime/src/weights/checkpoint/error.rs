//! What is wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::super::WeightError;
use super::file::MAX_HEADER;

/// Why weights do not come out of a checkpoint.
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
    /// A folder without safetensors.
    #[error(
        "{}: there is no safetensors file, and no model.safetensors.index.json: name the folder of a checkpoint, or a file",
        .path.display()
    )]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// Something else than a file in the place of one.
    #[error("{}: this is no regular file: name a safetensors file", .path.display())]
    NoFile {
        /// What it is.
        path: PathBuf,
    },
    /// An index that cannot be used.
    #[error("{}: this is no index of a checkpoint: {reason}; fetch it again", .path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file that ends before its last tensor does.
    #[error("{}: the file has {found} bytes, and by its header it has {needed}: it is cut short, fetch it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that it has to have; as many as a number can say where it is more.
        needed: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A header that is too long to be one.
    #[error(
        "{}: by its first eight bytes its header has {bytes} bytes, of {MAX_HEADER} at most: this is no safetensors file",
        .path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes of its header.
        bytes: u64,
    },
    /// A header that is none, or contradicts itself.
    #[error("{}: the header is not that of a safetensors file: {reason}; fetch the file again", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that is not there.
    #[error("{}: there is no tensor `{tensor}`{}", .path.display(), perhaps(.near))]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Names that were perhaps meant, the likeliest first.
        near: Vec<String>,
    },
    /// A layer that is not there.
    #[error(
        "{}: `{layer}` has no gate and up weights: neither {} is there{}",
        .path.display(), listed(.tried), perhaps(.near)
    )]
    NoLayer {
        /// The checkpoint.
        path: PathBuf,
        /// The layer.
        layer: String,
        /// Tensors that were looked for.
        tried: Vec<String>,
        /// Layers that have such weights, the likeliest first.
        near: Vec<String>,
    },
    /// An index that names another file.
    #[error("{} lists `{tensor}` in {}, which does not have it: fetch both again", .index.display(), .shard.display())]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// Where it should be.
        shard: PathBuf,
        /// What says so.
        index: PathBuf,
    },
    /// A tensor in two files, and no index to say which one is meant.
    #[error(
        "`{tensor}` is in {} and in {}: open one of the files alone, or put a model.safetensors.index.json beside them",
        .first.display(), .second.display()
    )]
    Twice {
        /// The tensor.
        tensor: String,
        /// One of the files.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// Elements of another type.
    #[error("{}: `{tensor}` has elements of {found}, and {expected} is what it should have: {hint}", .path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type, as the file names it.
        found: String,
        /// What it should be.
        expected: &'static str,
        /// What that may mean.
        hint: &'static str,
    },
    /// Dimensions that do not go together.
    #[error("{}: `{tensor}` is {found:?}, and should be {expected}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<usize>,
        /// What they should be, and why.
        expected: String,
    },
    /// A scale of a whole tensor that no tensor has.
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
    /// Weights that no kernel multiplies by.
    #[error("{}: `{tensor}`: {reason}", .path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// The tensor, or the layer.
        tensor: String,
        /// What is wrong with them.
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
