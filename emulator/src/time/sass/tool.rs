//! Runs NVIDIA's assembler and disassembler, if they are installed.

use super::SassError;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Finds a tool: in its environment variable, then in `.tools/bin` of this folder and of those above it, then on the
/// PATH.
fn find(name: &'static str, variable: &'static str) -> Result<PathBuf, SassError> {
    if let Some(named) = env::var_os(variable).filter(|v| !v.is_empty()) {
        let path = PathBuf::from(named);
        return if path.is_file() { Ok(path) } else { Err(SassError::NotAFile { variable, path }) };
    }
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    let here = env::current_dir().unwrap_or_default();
    let own = here.ancestors().map(|f| f.join(".tools").join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let all = own.chain(env::split_paths(&path)).map(|f| f.join(&file)).find(|p| p.is_file());
    all.ok_or(SassError::NotFound { name, variable })
}

fn run(tool: &Path, command: &mut Command) -> Result<Vec<u8>, SassError> {
    let output =
        command.output().map_err(|e| SassError::Io { path: tool.to_owned(), reason: e.to_string() })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let log =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(SassError::Refused {
        path: tool.to_owned(),
        status: output.status.to_string(),
        log: log.trim().to_owned(),
    })
}

/// Assembles PTX for exactly `target`, with line information, and disassembles the result.
pub(super) fn listing(ptx: &str, target: &str) -> Result<String, SassError> {
    let ptxas = find("ptxas", "SILUMIN_PTXAS")?;
    let nvdisasm = find("nvdisasm", "SILUMIN_NVDISASM")?;
    let io = |e: std::io::Error| SassError::Io { path: ptxas.clone(), reason: e.to_string() };
    let folder = tempfile::tempdir().map_err(io)?;
    let (text, cubin) = (folder.path().join("module.ptx"), folder.path().join("module.cubin"));
    std::fs::write(&text, ptx).map_err(io)?;
    let mut command = Command::new(&ptxas);
    command.args(["--generate-line-info", "--gpu-name", target, "--output-file"]).arg(&cubin).arg(&text);
    run(&ptxas, &mut command)?;
    let mut command = Command::new(&nvdisasm);
    command.args(["--print-line-info-ptx", "--print-instruction-encoding", "--print-code"]).arg(&cubin);
    let printed = run(&nvdisasm, &mut command)?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}
