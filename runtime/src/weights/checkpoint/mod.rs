//! Checkpoints: safetensors files, mapped into memory. NVFP4 in two public conventions, FP8, bf16 and f16.
//!
//! * `mod.rs`: [`Checkpoint`]: which files there are, and which tensor is in which.
//! * `file.rs`: one file, its header and its tensors.
//! * `layer.rs`: gate, up and down of one layer, by the names and numbers of a [`Convention`].
//! * `near.rs`: names that were perhaps meant.
//! * `error.rs`: [`CheckpointError`].
//!
//! Nothing in a file is believed: whatever its bytes are, the answer is weights that a kernel can be handed, or an error.

mod error;
mod file;
mod layer;
mod near;

pub use error::CheckpointError;
pub use layer::{Convention, Names};

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;

use file::{File, Tensor};

use crate::regular_file::{self, ReadError};

/// File name of the index of a checkpoint in several files.
const INDEX: &str = "model.safetensors.index.json";

/// File name of a checkpoint in one file.
const SINGLE: &str = "model.safetensors";

/// Longest index in bytes, as for a header.
const MAX_INDEX: u64 = file::MAX_HEADER as u64;

/// A checkpoint on disk: one safetensors file, or a folder of them.
///
/// Files are mapped: opening one reads its header, and other bytes are read from disk when they are used. While the
/// checkpoint is open, no file may be shortened or written to: the operating system would end the process. (Replacing
/// a file by another of the same name is safe.)
///
/// ```
/// use silumin_runtime::weights::Checkpoint;
/// # use silumin_runtime::weights::CheckpointError;
/// # fn main() -> Result<(), CheckpointError> {
/// # let folder = std::path::Path::new("no such folder");
/// match Checkpoint::open(folder) {
///     Ok(checkpoint) => {
///         for layer in checkpoint.layers() {
///             let weights = checkpoint.gate_up(&layer)?;
///             println!("{layer}: {} x {}", weights.n(), weights.k());
///         }
///     }
///     Err(error) => println!("{error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    /// The path that was opened.
    path: PathBuf,
    /// The index, if there is one.
    index: Option<PathBuf>,
    shards: Vec<Shard>,
    /// The shard of each tensor.
    tensors: BTreeMap<String, usize>,
}

/// A file of a checkpoint. With an index, it is opened when one of its tensors is requested.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: OnceLock<File>,
}

impl Shard {
    fn file(&self) -> Result<&File, CheckpointError> {
        match self.file.get() {
            Some(file) => Ok(file),
            None => {
                let file = File::open(&self.path)?;
                // Two threads may open it at once: the first one's stays.
                Ok(self.file.get_or_init(|| file))
            }
        }
    }
}

/// The part of an index that is used.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a safetensors file, an index (`*.index.json`) with the files that it lists, or a folder: its
    /// `model.safetensors.index.json`, else its `model.safetensors`, else all `*.safetensors`.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]: what is not there or is no checkpoint. Files of an index are looked at later, when a tensor of
    /// theirs is asked for.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let metadata = fs::metadata(path).map_err(|source| CheckpointError::io(path, source))?;
        if !metadata.is_dir() && path.to_string_lossy().ends_with(".index.json") {
            // A bare name is of the current folder, which joins as nothing.
            return Self::of_index(path.parent().unwrap_or(Path::new("")), path);
        }
        if !metadata.is_dir() {
            return Self::of_files(path, vec![path.to_owned()]);
        }
        let index = path.join(INDEX);
        if index.exists() {
            return Self::of_index(path, &index);
        }
        let single = path.join(SINGLE);
        if single.exists() {
            return Self::of_files(path, vec![single]);
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(|source| CheckpointError::io(path, source))? {
            let file = entry.map_err(|source| CheckpointError::io(path, source))?.path();
            if file.extension().is_some_and(|extension| extension == "safetensors") {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(CheckpointError::NoCheckpoint { path: path.to_owned() });
        }
        Self::of_files(path, files)
    }

    /// A checkpoint whose tensors are those in the files' headers.
    fn of_files(path: &Path, files: Vec<PathBuf>) -> Result<Self, CheckpointError> {
        let (mut shards, mut tensors) = (Vec::new(), BTreeMap::new());
        for path in files {
            let file = File::open(&path)?;
            for name in file.names() {
                if let Some(earlier) = tensors.insert(name.clone(), shards.len()) {
                    let first: &Shard = &shards[earlier];
                    let (first, second) = (first.path.clone(), path);
                    return Err(CheckpointError::Twice { tensor: name, first, second });
                }
            }
            shards.push(Shard { path, file: OnceLock::from(file) });
        }
        Ok(Self { path: path.to_owned(), index: None, shards, tensors })
    }

    /// A checkpoint whose tensors are those in the index.
    fn of_index(path: &Path, index: &Path) -> Result<Self, CheckpointError> {
        let malformed = |reason: String| CheckpointError::Index { path: index.to_owned(), reason };
        let text = regular_file::read(index, MAX_INDEX).map_err(|error| match error {
            ReadError::Io { source, .. } => CheckpointError::io(index, source),
            ReadError::NotRegular { kind, .. } => malformed(format!("it is {kind}, not a file")),
            ReadError::TooLong { found, limit, .. } => {
                malformed(format!("it has {found} bytes, of {limit} at most"))
            }
            ReadError::NotText { .. } => malformed(error.to_string()),
        })?;
        let Index { weight_map } =
            serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        let (mut shards, mut numbers, mut tensors) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (tensor, name) in weight_map {
            let number = match numbers.get(&name) {
                Some(number) => *number,
                None => {
                    // A file of the folder, and of no other: an index comes from wherever the weights came from.
                    let mut parts = Path::new(&name).components();
                    let plain = matches!(parts.next(), Some(std::path::Component::Normal(_)));
                    if !plain || parts.next().is_some() || name.contains(['/', '\\']) {
                        return Err(malformed(format!(
                            "`{tensor}` is in `{name}`, which is no file of its folder"
                        )));
                    }
                    shards.push(Shard { path: path.join(&name), file: OnceLock::new() });
                    numbers.insert(name, shards.len() - 1);
                    shards.len() - 1
                }
            };
            tensors.insert(tensor, number);
        }
        if tensors.is_empty() {
            return Err(malformed("it lists no tensors".to_owned()));
        }
        Ok(Self { path: path.to_owned(), index: Some(index.to_owned()), shards, tensors })
    }

    /// Names of all tensors, ascending.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// One tensor, by its name.
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let Some(shard) = self.tensors.get(name).and_then(|number| self.shards.get(*number)) else {
            return Err(self.missing(name));
        };
        shard.file()?.tensor(name).ok_or_else(|| CheckpointError::NotInShard {
            tensor: name.to_owned(),
            shard: shard.path.clone(),
            index: self.index.clone().unwrap_or_else(|| self.path.clone()),
        })
    }

    /// The error for a missing tensor, with similar names.
    fn missing(&self, name: &str) -> CheckpointError {
        let near = near::nearest(name, self.tensors());
        CheckpointError::Missing { path: self.path.clone(), tensor: name.to_owned(), near }
    }

    /// The layers that have weights by these names, in the order of their numbers; [`Checkpoint::gate_up_named`]
    /// takes them.
    #[must_use]
    pub fn layers_named(&self, names: &Names) -> Vec<String> {
        let ends = names.suffixes();
        let layers: BTreeSet<&str> = self
            .tensors()
            .filter_map(|tensor| ends.iter().find_map(|end| tensor.strip_suffix(end)))
            .collect();
        let mut layers: Vec<String> = layers.into_iter().map(str::to_owned).collect();
        layers.sort_by_cached_key(|layer| near::by_number(layer));
        layers
    }

    /// The layers that have `gate_proj` and the like, such as `model.layers.0.mlp`; [`Checkpoint::gate_up`] takes
    /// them.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        self.layers_named(&Names::default())
    }
}
