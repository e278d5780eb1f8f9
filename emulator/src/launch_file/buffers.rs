//! Buffers of a launch file: sizes and initial contents.

use super::params;
use super::reader::{Read, Reader};
use super::schema::BufferTable;
use crate::memory::{Buffer, GlobalMemory};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Largest total size of all buffers, in bytes.
pub const MAX_BUFFER_BYTES: u64 = 4 << 30;

/// Initial contents of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Undefined: reading it is reported.
    Uninitialised,
    /// The same byte everywhere.
    Fill(u8),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A buffer of a launch file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// The buffer's name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Initial contents.
    pub contents: Contents,
    /// The file of the contents, if there is one.
    pub source: Option<PathBuf>,
}

impl BufferSpec {
    /// Allocates the buffer in a memory.
    pub(super) fn allocate(&self, memory: &mut GlobalMemory) -> Buffer {
        match &self.contents {
            Contents::Uninitialised => memory.alloc(&self.name, self.bytes),
            Contents::Fill(value) => {
                let buffer = memory.alloc(&self.name, self.bytes);
                memory.fill(&buffer, *value);
                buffer
            }
            Contents::Bytes(bytes) => memory.alloc_from(&self.name, bytes),
        }
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// Sizes are checked before reading, and pipes and devices are never opened.
pub(crate) fn slurp(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let about = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !about.is_file() {
        return Err("this is not a plain file".to_owned());
    }
    let too_large = |n: u64| Err(format!("the file has {n} bytes, at most {limit} are allowed"));
    if about.len() > limit {
        return too_large(about.len());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| e.to_string())?;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > limit {
        return too_large(bytes.len() as u64);
    }
    Ok(bytes)
}

/// Checks a name: it becomes a file name under `--out`, so it must not contain a path.
fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=100).contains(&name.len()) && name.chars().all(legal) && !name.starts_with('.') {
        return Ok(());
    }
    Err("a buffer's name has 1 to 100 letters, digits, `_`, `-` or `.`, and does not start with `.`: it is also \
         the name of its output file"
        .to_owned())
}

/// Reads all buffers and their files.
pub(super) fn read(
    reader: &Reader<'_>,
    folder: &Path,
    tables: &BTreeMap<String, Spanned<BufferTable>>,
) -> Read<Vec<BufferSpec>> {
    let mut total = 0u64;
    let mut out = Vec::new();
    for (name, table) in tables {
        let key = format!("buffers.{name}");
        if let Err(message) = check_name(name) {
            return reader.bad(table.span(), &key, message);
        }
        let spec = one(reader, folder, name, table, MAX_BUFFER_BYTES - total)?;
        total += spec.bytes;
        out.push(spec);
    }
    let given: Vec<_> = (tables.values().enumerate())
        .filter_map(|(i, table)| Some((i, table.get_ref().values.as_ref()?)))
        .collect();
    // Pointers may go into each other's buffers, whose sizes are known after the first time.
    for i in given.iter().map(|(i, _)| *i) {
        out[i].bytes = MAX_BUFFER_BYTES;
    }
    for _ in 0..2 {
        let mut read = Vec::new();
        for &(i, values) in &given {
            let key = format!("buffers.{}", out[i].name);
            read.push((i, params::values(reader, &params::Buffers::new(&out), values, &key)?));
        }
        for (i, bytes) in read {
            out[i].bytes = bytes.len() as u64;
            out[i].contents = Contents::Bytes(bytes);
        }
    }
    Ok(out)
}

fn one(
    reader: &Reader<'_>,
    folder: &Path,
    name: &str,
    table: &Spanned<BufferTable>,
    room: u64,
) -> Read<BufferSpec> {
    let key = |k: &str| format!("buffers.{name}.{k}");
    let BufferTable { file, bytes, fill, values } = table.get_ref();
    if values.is_some() {
        let others =
            [("file", file.as_ref().map(Spanned::span)), ("bytes", bytes.as_ref().map(Spanned::span))];
        let others = others.into_iter().chain([("fill", fill.as_ref().map(Spanned::span))]);
        for (other, span) in others {
            if let Some(span) = span {
                return reader.bad(span, key(other), "there are `values` too: leave out one of them");
            }
        }
        let contents = Contents::Bytes(Vec::new());
        return Ok(BufferSpec { name: name.to_owned(), bytes: 0, contents, source: None });
    }
    let size: Option<u64> = match bytes {
        Some(n) => {
            let most = i128::from(room);
            let hint = format!(
                " (what is left of {MAX_BUFFER_BYTES} bytes for all buffers together); run a smaller problem"
            );
            Some(reader.integer(n, key("bytes"), 0..=most, &hint)?)
        }
        None => None,
    };
    let mut source = None;
    let (bytes, contents) = match (file, size, fill) {
        (Some(_), _, Some(fill)) => {
            return reader.bad(fill.span(), key("fill"), "there is a `file` too: leave out one of them");
        }
        (Some(file), size, None) => {
            let path = folder.join(file.get_ref());
            let at = |message: String| {
                let message = format!(
                    "{}: {message}; paths are relative to the launch file, and buffers may take {room} bytes more",
                    path.display()
                );
                reader.bad(file.span(), key("file"), message)
            };
            let data = match slurp(&path, room) {
                Ok(data) => data,
                Err(message) => return at(message),
            };
            let found = data.len() as u64;
            if let Some(size) = size.filter(|&s| s != found) {
                return at(format!("the file has {found} bytes and `bytes` is {size}: leave out `bytes`"));
            }
            source = Some(path);
            (found, Contents::Bytes(data))
        }
        (None, Some(bytes), None) => (bytes, Contents::Uninitialised),
        (None, Some(bytes), Some(fill)) => {
            (bytes, Contents::Fill(reader.integer(fill, key("fill"), 0..=255, ", one byte")?))
        }
        (None, None, _) => {
            let message =
                "it needs `file = \"NAME\"`, `bytes = N` with an optional `fill = BYTE`, or `values = [..]`";
            return reader.bad(table.span(), format!("buffers.{name}"), message);
        }
    };
    Ok(BufferSpec { name: name.to_owned(), bytes, contents, source })
}
