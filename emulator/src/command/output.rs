//! Writes the buffers of a run to files.

use crate::files::OutputFolder;
use crate::launch_file::LaunchFile;
use crate::memory::{Buffer, GlobalMemory};
use std::path::Path;

/// Creates the output folder before the run. The launch file, its PTX and its buffer files will not be overwritten.
pub(super) fn prepare(folder: &Path, launch: &Path, file: &LaunchFile) -> Result<OutputFolder, String> {
    let sources = file.buffers.iter().filter_map(|b| b.source.as_deref());
    let inputs = [launch, Path::new(file.module.file())].into_iter().chain(sources);
    OutputFolder::open(folder, inputs).map_err(|e| format!("--out {e}"))
}

/// Writes every buffer to `NAME.bin`.
///
/// A file that a buffer was read from is skipped if its bytes are unchanged; if they changed it is an error, and
/// nothing is written.
pub(super) fn write(
    mut out: OutputFolder,
    file: &LaunchFile,
    memory: &GlobalMemory,
    buffers: &[Buffer],
) -> Result<(), String> {
    for (spec, buffer) in file.buffers.iter().zip(buffers) {
        out.add(&format!("{}.bin", spec.name), &memory.read(buffer)).map_err(|e| format!("--out {e}"))?;
    }
    out.commit().map_err(|e| format!("--out {e}"))
}
