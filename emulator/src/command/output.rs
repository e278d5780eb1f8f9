//! Writing the buffers of a run to files.

use crate::launch_file::LaunchFile;
use crate::memory::{Buffer, GlobalMemory};
use std::path::Path;

/// Makes the folder, before anything runs.
pub(super) fn prepare(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("--out {}: {e}", folder.display()))
}

/// Writes every buffer to `NAME.bin`.
///
/// A file that a buffer was read from is left alone when its bytes would stay, and is an error when they
/// would not: then nothing is written.
pub(super) fn write(
    folder: &Path,
    file: &LaunchFile,
    memory: &GlobalMemory,
    buffers: &[Buffer],
) -> Result<(), String> {
    let inputs: Vec<_> = file.buffers.iter().filter_map(|b| b.source.as_ref()?.canonicalize().ok()).collect();
    let is_input = |path: &Path| path.canonicalize().is_ok_and(|p| inputs.contains(&p));
    let named = || {
        file.buffers.iter().zip(buffers).map(|(spec, b)| (spec, folder.join(format!("{}.bin", spec.name)), b))
    };
    for (spec, path, buffer) in named() {
        if is_input(&path) && std::fs::read(&path).ok().as_ref() != Some(&memory.read(buffer)) {
            return Err(format!(
                "--out {}: the result of buffer `{}` would overwrite an input of the launch file, {}: name another folder",
                folder.display(),
                spec.name,
                path.display()
            ));
        }
    }
    for (_, path, buffer) in named() {
        if !is_input(&path) {
            std::fs::write(&path, memory.read(buffer)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}
