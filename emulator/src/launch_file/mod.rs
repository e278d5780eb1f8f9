//! Launch files: a kernel with its grid, buffers and parameters as TOML, so that PTX of any compiler
//! can be run without a program around it.
//!
//! ```toml
//! ptx = "kernel.ptx"                 # paths are relative to the launch file
//! kernel = "entry_name"
//! grid = [2, 2, 1]                   # in CTAs
//! block = [128, 1, 1]
//! cluster = [1, 1, 1]                # the default
//! dynamic_smem = 110672              # bytes, 0 by default; it starts at a multiple of 1024
//! programmatic = true                # may start before the launch before it has ended: without effect here
//!
//! [buffers.a]
//! file = "a.bin"
//! [buffers.c]
//! bytes = 131072
//! fill = 0xA5                        # without it the buffer is uninitialised: reading it is reported
//! [buffers.table]
//! values = [{ pointer = "a" }, { pointer = "a", offset = 64 }, { i32 = 3 }]   # as params, without gaps
//!
//! [[params]]                         # in the order of the kernel's parameters
//! pointer = "a"                      # and `offset = N` for bytes into it; `null = true` for no buffer
//! [[params]]
//! u32 = 256                          # also i32, u64, i64, f32, f64, u8, u16, hex = "00ff"
//! [[params]]
//! tensor_map = { buffer = "a", data_type = "u8", dims = [256, 128], strides = [256], box = [128, 64] }
//! [[params]]
//! struct = { size = 384, fields = [ { offset = 0, pointer = "a" }, { offset = 200, u32 = 7 } ] }
//! ```
//!
//! A tensor map takes the arguments of `cuTensorMapEncodeTiled`, inner dimension first, and obeys its
//! rules: `offset` (bytes into the buffer, 0), `strides` (bytes, rank - 1 of them; without gaps),
//! `element_strides` (ones), `interleave`, `swizzle`, `l2_promotion` and `oob_fill` (all `"none"`) have
//! defaults. With `lower_corner`, `upper_corner`, `channels` and `pixels` instead of `box` it takes those of
//! `cuTensorMapEncodeIm2col`. A field of a struct that is a pointer takes `pointer_offset` for bytes into its buffer.
//!
//! - this file: the file as a whole, checked against its PTX
//! - `schema`: the keys
//! - `reader`: ranges, names, and errors with places
//! - `buffers`, `params`, `tensor_map`: values
//! - `error`: what can be wrong

mod buffers;
mod error;
mod params;
mod reader;
mod schema;
mod tensor_map;

pub(crate) use buffers::slurp;
pub use buffers::{BufferSpec, Contents, MAX_BUFFER_BYTES};
pub use error::{LaunchFileError, Place};

use crate::launch::{Arg, Launch, LaunchError, MAX_SMEM};
use crate::memory::{Buffer, GlobalMemory};
use crate::module::Module;
use reader::{Read, Reader};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Largest launch file in bytes.
const MAX_TOML_BYTES: u64 = 16 << 20;
/// Largest PTX file in bytes.
pub(crate) const MAX_PTX_BYTES: u64 = 256 << 20;

/// A launch file that is ready to run: PTX decoded, buffers read, parameters encoded.
#[derive(Debug)]
pub struct LaunchFile {
    /// The decoded PTX.
    pub module: Module,
    /// Its text.
    pub text: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Grid, block, cluster, shared memory, and parameter bytes. Pointers in them are addresses in a memory that
    /// [`LaunchFile::allocate`] returns.
    pub launch: Launch,
    /// The buffers, in order of their names.
    pub buffers: Vec<BufferSpec>,
}

impl LaunchFile {
    /// Reads a launch file with its PTX and buffers, and checks all of it.
    ///
    /// # Errors
    /// [`LaunchFileError`]: the first thing wrong with the launch file, or everything wrong with the PTX.
    pub fn read(path: &Path) -> Result<LaunchFile, LaunchFileError> {
        let read = |message: String| LaunchFileError::Read { path: path.to_owned(), message };
        let bytes = slurp(path, MAX_TOML_BYTES).map_err(read)?;
        let text = String::from_utf8(bytes)
            .map_err(|e| read(format!("it is not UTF-8 from byte {} on", e.utf8_error().valid_up_to())))?;
        Self::parse(path, &text)
    }

    /// Parses a launch file from text. `path` is its name in errors, and relative paths start there.
    ///
    /// # Errors
    /// [`LaunchFileError`].
    pub fn parse(path: &Path, text: &str) -> Result<LaunchFile, LaunchFileError> {
        let reader = Reader { path, text };
        let file: schema::File = toml::from_str(text).map_err(|error| LaunchFileError::Syntax {
            place: Place::of(path, text, error.span()),
            message: error.message().trim_end().to_owned(),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let triple = |v: &Spanned<_>, key| reader.triple(v, key);
        let mut launch = Launch {
            grid: triple(&file.grid, "grid")?,
            block: triple(&file.block, "block")?,
            cluster: file.cluster.as_ref().map_or(Ok([1, 1, 1]), |v| triple(v, "cluster"))?,
            dynamic_smem: match &file.dynamic_smem {
                Some(v) => reader.integer(v, "dynamic_smem", 0..=i128::from(MAX_SMEM), " bytes")?,
                None => 0,
            },
            args: Vec::new(),
        };
        let buffers = buffers::read(&reader, folder, &file.buffers)?;
        let params = params::read(&reader, &params::Buffers::new(&buffers), &file.params)?;
        let (module, ptx) = ptx(&reader, &folder.join(file.ptx.get_ref()), file.ptx.span())?;
        launch.args = params.iter().map(|(bytes, _)| Arg::Bytes(bytes.clone())).collect();
        let kernel = file.kernel.get_ref().clone();
        if let Err(error) = module.check(&kernel, &launch) {
            let (span, key) = blame(&error, &file, &params);
            return reader.bad(span, key, explain(&error, &module, &kernel, &params));
        }
        Ok(LaunchFile { module, text: ptx, kernel, launch, buffers })
    }

    /// A memory with fresh buffers; the handles are in the order of `self.buffers`.
    pub fn allocate(&self) -> (GlobalMemory, Vec<Buffer>) {
        let mut memory = GlobalMemory::new();
        let buffers = self.buffers.iter().map(|spec| spec.allocate(&mut memory)).collect();
        (memory, buffers)
    }
}

/// Reads and decodes the PTX; returns the module and its text. Comments may be in any encoding, so the conversion is
/// lossy.
fn ptx(reader: &Reader<'_>, path: &Path, span: Range<usize>) -> Read<(Module, String)> {
    match slurp(path, MAX_PTX_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let module = Module::parse(&path.display().to_string(), &text).map_err(LaunchFileError::Ptx)?;
            Ok((module, text))
        }
        Err(message) => {
            let message = format!("{}: {message}; paths are relative to the launch file", path.display());
            reader.bad(span, "ptx", message)
        }
    }
}

/// The key of the launch file that a launch error is about.
fn blame(
    error: &LaunchError,
    file: &schema::File,
    params: &[(Vec<u8>, Range<usize>)],
) -> (Range<usize>, String) {
    let own = |key: &str| key.to_owned();
    match error {
        LaunchError::Shape { what: "block", .. } => (file.block.span(), own("block")),
        LaunchError::Shape { what: "cluster", .. } => {
            (file.cluster.as_ref().map_or(file.grid.span(), Spanned::span), own("cluster"))
        }
        LaunchError::Shape { .. } => (file.grid.span(), own("grid")),
        LaunchError::ArgumentCount { .. } => (file.kernel.span(), own("params")),
        LaunchError::ArgumentSize { index, .. } => (
            params.get(*index).map_or(file.kernel.span(), |(_, span)| span.clone()),
            format!("params[{index}]"),
        ),
        LaunchError::SharedMemory { .. } => {
            (file.dynamic_smem.as_ref().map_or(file.kernel.span(), Spanned::span), own("dynamic_smem"))
        }
        _ => (file.kernel.span(), own("kernel")),
    }
}

/// The error as text; for parameters with what the kernel takes and what it was given.
fn explain(error: &LaunchError, module: &Module, kernel: &str, params: &[(Vec<u8>, Range<usize>)]) -> String {
    let mut text = error.to_string();
    if matches!(error, LaunchError::ArgumentCount { .. } | LaunchError::ArgumentSize { .. }) {
        let takes = module.parameters(kernel).unwrap_or_default();
        let takes: Vec<String> = takes.iter().map(|p| format!("{} ({} bytes)", p.name, p.bytes)).collect();
        let given: Vec<String> = params.iter().map(|(bytes, _)| bytes.len().to_string()).collect();
        text += &format!(
            ".\n    `{kernel}` takes: {}\n    [[params]] have {} bytes",
            if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") },
            if given.is_empty() { "no".to_owned() } else { given.join(", ") },
        );
    }
    text
}
