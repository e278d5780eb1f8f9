//! Writes kernels of several launches as launch files, each of which runs on what the one before left.

use silumin::codegen::kernel::Kernel;
use silumin_emulator::{LaunchFile, Options};
use std::path::{Path, PathBuf};

/// The launch files of a kernel, with the files that each needs from earlier ones.
pub fn launches(kernel: &Kernel, folder: &Path) -> Result<Vec<PathBuf>, String> {
    let name = &kernel.name;
    if kernel.launches.len() == 1 {
        return Ok(vec![folder.join(format!("{name}.toml"))]);
    }
    let mut files = Vec::new();
    for index in 1..=kernel.launches.len() {
        let path = folder.join(format!("{name}.{index}.toml"));
        let file = LaunchFile::read(&path).map_err(|e| e.to_string())?;
        let (memory, buffers) = file.allocate();
        let options = Options { threads: 1, ..Options::default() };
        let report =
            file.module.run(&file.kernel, &file.launch, &memory, &options).map_err(|e| e.to_string())?;
        if let Some(finding) = report.all().next() {
            return Err(finding.to_string());
        }
        let out = folder.join(format!("{name}.{index}.out"));
        std::fs::create_dir_all(&out).map_err(|e| e.to_string())?;
        for (buffer, spec) in buffers.iter().zip(&file.buffers) {
            let bin = out.join(format!("{}.bin", spec.name));
            std::fs::write(bin, memory.read(buffer)).map_err(|e| e.to_string())?;
        }
        files.push(path);
    }
    Ok(files)
}
