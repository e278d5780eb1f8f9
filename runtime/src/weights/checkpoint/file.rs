//! One safetensors file, mapped into memory.
//!
//! The format: eight bytes, little-endian, with the length of the header; the header, JSON; and the tensors' bytes
//! without gaps, at the offsets that the header gives (the format's description in its repository, "Format").

use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::CheckpointError;
use crate::regular_file::{self, ReadError};

/// Bytes of the field with the header's length.
const LENGTH: usize = 8;

/// Longest header in bytes, as in the format's crate: a file of random bytes is not read for gigabytes.
pub(super) const MAX_HEADER: usize = 100_000_000;

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Offset of the tensors' bytes.
    data: usize,
}

/// A tensor in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor<'a> {
    pub path: &'a Path,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub data: &'a [u8],
}

impl File {
    /// Maps a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |source| CheckpointError::io(path, source);
        // Mapped and not read: of any length.
        let (file, facts) = regular_file::open(path, u64::MAX).map_err(|error| match error {
            ReadError::Io { source, .. } => io(source),
            ReadError::NotRegular { .. } | ReadError::TooLong { .. } | ReadError::NotText { .. } => {
                CheckpointError::NoFile { path: path.to_owned() }
            }
        })?;
        let length = facts.len();
        if length < LENGTH as u64 {
            return Err(CheckpointError::Truncated {
                path: path.to_owned(),
                needed: LENGTH as u64,
                found: length,
            });
        }
        // SAFETY: the map is read only, and shared with nobody in this process. That no other process cuts the file short
        // or writes to it meanwhile is what `Checkpoint` asks of its user.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (data, metadata) = read_header(path, &map)?;
        Ok(Self { path: path.to_owned(), map, metadata, data })
    }

    /// Names of its tensors, in no particular order.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// One tensor.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        // In bounds: the header has been checked against the file's length.
        let data = self.map.get(self.data..)?.get(start..end)?;
        Some(Tensor { path: &self.path, dtype: info.dtype, shape: &info.shape, data })
    }
}

/// The offset of the tensors' bytes, and the parsed header.
///
/// The format's crate parses the header. It checks that tensors follow each other without gaps and that each is as
/// long as its shape and type. Lengths are compared here, because the crate's own reader adds the last tensor's end
/// to the header's length without a check, which can overflow.
fn read_header(path: &Path, bytes: &[u8]) -> Result<(usize, Metadata), CheckpointError> {
    let found = bytes.len() as u64;
    let truncated = |needed: u64| CheckpointError::Truncated { path: path.to_owned(), needed, found };
    let Some(length) = bytes.first_chunk::<LENGTH>() else { return Err(truncated(LENGTH as u64)) };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER as u64 {
        return Err(CheckpointError::HeaderTooLarge { path: path.to_owned(), bytes: length });
    }
    let data = LENGTH + length as usize;
    let Some(header) = bytes.get(LENGTH..data) else { return Err(truncated(data as u64)) };
    let malformed = |reason: String| CheckpointError::Header { path: path.to_owned(), reason };
    let metadata: Metadata = serde_json::from_slice(header).map_err(|error| malformed(error.to_string()))?;
    let needed = (data as u64).saturating_add(metadata.data_len() as u64);
    match found {
        _ if found < needed => Err(truncated(needed)),
        _ if found > needed => Err(malformed(format!(
            "{} bytes follow the last tensor, which none says what they are",
            found - needed
        ))),
        _ => Ok((data, metadata)),
    }
}
