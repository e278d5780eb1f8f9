//! Runs NVIDIA's assembler and disassembler, where they are installed: whether a kernel assembles, what resources it
//! takes, and its machine code. Running kernels does not need them.
//!
//! A tool is looked for in the variable `SILUMIN_PTXAS` or `SILUMIN_NVDISASM`, then as
//! `.tools/bin/NAME` in the current folder and in those above it (where `scripts/setup.sh` puts it),
//! then on the PATH.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use silumin_codegen::arch::Arch;
use thiserror::Error;

/// Why a tool cannot be found or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The tool is not installed.
    #[error(
        "`{name}` was not found: not in {variable}, not as .tools/bin/{name} in {} or a folder above \
         it, not on the PATH; `./scripts/setup.sh` fetches it (a package of PyPI, no CUDA needed)",
        from.display()
    )]
    NotFound {
        /// The tool.
        name: &'static str,
        /// The environment variable that can name it.
        variable: &'static str,
        /// Folder where the search began.
        from: PathBuf,
    },
    /// The environment variable names something that is not a file.
    #[error("{variable} names {}, which is not a file; correct it, or unset it to search", path.display())]
    NotAFile {
        /// The variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// The tool did not start, or files for it could not be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The tool.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The tool refused its input.
    #[error("{} failed ({status}):\n{log}", path.display())]
    Refused {
        /// The tool.
        path: PathBuf,
        /// Its exit status, as text.
        status: String,
        /// Everything that it printed.
        log: String,
    },
}

/// Where a tool is looked for.
struct Tool {
    name: &'static str,
    variable: &'static str,
}

impl Tool {
    fn find(&self) -> Result<PathBuf, ToolError> {
        let current = env::current_dir().unwrap_or_default();
        self.find_in(env::var_os(self.variable).as_deref(), &current, env::var_os("PATH").as_deref())
    }

    fn find_in(
        &self,
        named: Option<&OsStr>,
        current: &Path,
        search: Option<&OsStr>,
    ) -> Result<PathBuf, ToolError> {
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            let path = PathBuf::from(named);
            return if path.is_file() {
                Ok(path)
            } else {
                Err(ToolError::NotAFile { variable: self.variable, path })
            };
        }
        let file = format!("{}{}", self.name, env::consts::EXE_SUFFIX);
        let own = current.ancestors().map(|folder| folder.join(".tools").join("bin"));
        let path: Vec<PathBuf> = search.map(|search| env::split_paths(search).collect()).unwrap_or_default();
        own.chain(path).map(|folder| folder.join(&file)).find(|path| path.is_file()).ok_or_else(|| {
            ToolError::NotFound { name: self.name, variable: self.variable, from: current.to_owned() }
        })
    }
}

/// Runs `command` with `input` and returns what it printed to standard output and to standard error.
fn run(path: &Path, command: &mut Command, input: &[u8]) -> Result<(Vec<u8>, String), ToolError> {
    let io_error = |source| ToolError::Io { path: path.to_owned(), source };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io_error)?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // Beside the reader, so that neither side waits for a full pipe. A tool that stops reading
        // says why on its standard error: the broken pipe adds nothing.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })
    .map_err(io_error)?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stdout);
        let log = format!("{printed}{log}").trim_end().to_owned();
        return Err(ToolError::Refused { path: path.to_owned(), status: output.status.to_string(), log });
    }
    Ok((output.stdout, log))
}

/// NVIDIA's assembler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    path: PathBuf,
    line_info: bool,
}

/// Resources of one kernel, as the assembler reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// The entry's name.
    pub entry: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread.
    pub stack_frame: u32,
    /// Bytes of spill stores per thread.
    pub spill_stores: u32,
    /// Bytes of spill loads per thread.
    pub spill_loads: u32,
    /// Bytes of static shared memory per CTA.
    pub static_smem: u32,
    /// Named barriers per CTA.
    pub barriers: u32,
}

/// An assembled module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assembled {
    /// The ELF image.
    pub cubin: Vec<u8>,
    /// Resources of each kernel.
    pub entries: Vec<Resources>,
    /// Warnings, one line each, as printed.
    pub warnings: Vec<String>,
    /// Everything that the assembler printed.
    pub log: String,
}

impl Assembled {
    /// The resources of the entry called `name`.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Resources> {
        self.entries.iter().find(|resources| resources.entry == name)
    }
}

impl Ptxas {
    const TOOL: Tool = Tool { name: "ptxas", variable: "SILUMIN_PTXAS" };

    /// Finds the assembler; see the [module](self) for where.
    ///
    /// # Errors
    ///
    /// [`ToolError::NotFound`], which says how to get it, or [`ToolError::NotAFile`].
    pub fn find() -> Result<Self, ToolError> {
        Self::TOOL.find().map(|path| Self { path, line_info: false })
    }

    /// The assembler with `-lineinfo`, or without, as at first: the image then has the PTX and the line that each instruction comes
    /// from (CUDA binary utilities, `-lineinfo`; made for Nsight Compute). The code is the same.
    #[must_use]
    pub fn with_line_info(self, line_info: bool) -> Self {
        Self { line_info, ..self }
    }

    /// Whether images have line information: see [`Ptxas::with_line_info`].
    #[must_use]
    pub fn line_info(&self) -> bool {
        self.line_info
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The assembler's version: the last line of `--version`, which names the build.
    ///
    /// # Errors
    ///
    /// [`ToolError`] where it does not run.
    pub fn version(&self) -> Result<String, ToolError> {
        let (printed, _) = run(&self.path, Command::new(&self.path).arg("--version"), &[])?;
        let printed = String::from_utf8_lossy(&printed);
        Ok(printed.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned())
    }

    /// Assembles a PTX module for exactly `arch`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Refused`] with the assembler's words where it refuses the text.
    pub fn assemble(&self, ptx: &str, arch: Arch) -> Result<Assembled, ToolError> {
        let io_error = |source| ToolError::Io { path: self.path.clone(), source };
        let folder = tempfile::tempdir().map_err(io_error)?;
        let output = folder.path().join("module.cubin");
        let mut command = Command::new(&self.path);
        if self.line_info {
            command.arg("--generate-line-info");
        }
        command.args(["--verbose", "--gpu-name", arch.target(), "-", "--output-file"]).arg(&output);
        let (printed, errors) = run(&self.path, &mut command, ptx.as_bytes())?;
        let log = format!("{}{errors}", String::from_utf8_lossy(&printed));
        let cubin = std::fs::read(&output).map_err(io_error)?;
        Ok(Assembled { cubin, entries: resources(&log), warnings: warnings(&log), log })
    }
}

fn warnings(log: &str) -> Vec<String> {
    log.lines().filter(|line| line.to_ascii_lowercase().contains("warning")).map(str::to_owned).collect()
}

/// Parses the output of `--verbose`: for each kernel its name, then its properties, then its resources.
pub fn resources(log: &str) -> Vec<Resources> {
    let mut entries: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            entries.push(Resources { entry, ..Resources::default() });
            continue;
        }
        let Some(current) = entries.last_mut() else { continue };
        let before = |text: &str| number_before(line, text);
        if let Some(bytes) = before(" bytes stack frame") {
            current.stack_frame = bytes;
            current.spill_stores = before(" bytes spill stores").unwrap_or(0);
            current.spill_loads = before(" bytes spill loads").unwrap_or(0);
        } else if let Some(registers) = before(" registers") {
            current.registers = registers;
            current.barriers = before(" barriers").or_else(|| before(" barrier")).unwrap_or(0);
            current.static_smem = before(" bytes smem").unwrap_or(0);
        }
    }
    entries
}

/// The number right before `text` in the line.
fn number_before(line: &str, text: &str) -> Option<u32> {
    let head = &line[..line.find(text)?];
    let digits = head.len() - head.bytes().rev().take_while(u8::is_ascii_digit).count();
    head[digits..].parse().ok()
}

/// NVIDIA's disassembler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvdisasm {
    path: PathBuf,
}

impl Nvdisasm {
    const TOOL: Tool = Tool { name: "nvdisasm", variable: "SILUMIN_NVDISASM" };

    /// Finds the disassembler; see the [module](self) for where.
    ///
    /// # Errors
    ///
    /// [`ToolError::NotFound`], which says how to get it, or [`ToolError::NotAFile`].
    pub fn find() -> Result<Self, ToolError> {
        Self::TOOL.find().map(|path| Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Disassembles a cubin, as `nvdisasm` prints it.
    ///
    /// # Errors
    ///
    /// [`ToolError::Refused`] where `cubin` is no ELF image of a known chip.
    pub fn disassemble(&self, cubin: &[u8]) -> Result<String, ToolError> {
        let io_error = |source| ToolError::Io { path: self.path.clone(), source };
        let mut file = tempfile::NamedTempFile::new().map_err(io_error)?;
        file.write_all(cubin).map_err(io_error)?;
        let (text, _) = run(&self.path, Command::new(&self.path).arg(file.path()), &[])?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "
        .version 8.7
        .target sm_100a
        .address_size 64
        .visible .entry first(.param .u64 p) {
            .reg .b64 %a;
            .reg .b32 %r;
            .shared .align 8 .b8 s[100];
            ld.param.u64 %a, [p];
            mov.u32 %r, %tid.x;
            st.shared.u32 [s], %r;
            bar.sync 3;
            ld.shared.u32 %r, [s+4];
            st.global.u32 [%a], %r;
            ret;
        }
        .visible .entry second() { ret; }";

    #[test]
    fn the_assembler_reports_each_entry() {
        let assembled = Ptxas::find().unwrap().assemble(MODULE, Arch::Sm100a).unwrap();
        assert_eq!(&assembled.cubin[..4], b"\x7fELF");
        assert_eq!(assembled.entries.len(), 2, "{}", assembled.log);
        let first = assembled.entry("first").unwrap();
        assert!((1..=64).contains(&first.registers));
        assert_eq!((first.static_smem, first.barriers, first.stack_frame), (100, 4, 0));
        assert_eq!(assembled.entry("second").unwrap().static_smem, 0);
        assert_eq!(assembled.warnings, [] as [&str; 0]);
        let sass = Nvdisasm::find().unwrap().disassemble(&assembled.cubin).unwrap();
        assert!(sass.contains("BAR.SYNC") && sass.contains("second"), "{sass}");
    }

    #[test]
    fn what_the_assembler_refuses_comes_with_its_words() {
        let text = MODULE.replace("bar.sync", "bar.sink");
        let error = Ptxas::find().unwrap().assemble(&text, Arch::Sm100a).unwrap_err();
        let ToolError::Refused { log, .. } = &error else { panic!("{error}") };
        assert!(log.contains("line 12") && log.contains(".sink"), "{log}");
        let error = Nvdisasm::find().unwrap().disassemble(b"no cubin").unwrap_err();
        assert!(matches!(error, ToolError::Refused { .. }), "{error}");
    }

    #[test]
    fn a_log_is_read_line_by_line() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas warning : something odd
ptxas info    : Compiling entry function 'k' for 'sm_100a'
ptxas info    : Function properties for k
    128 bytes stack frame, 64 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 128 bytes cumulative stack size, 48 bytes smem
ptxas info    : Compile time = 59.043 ms
";
        let expected = Resources {
            entry: "k".into(),
            registers: 255,
            stack_frame: 128,
            spill_stores: 64,
            spill_loads: 72,
            static_smem: 48,
            barriers: 1,
        };
        assert_eq!(resources(log), [expected]);
        assert_eq!(warnings(log), ["ptxas warning : something odd"]);
    }

    #[test]
    fn the_variable_comes_first_then_folders_upwards_then_the_path() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let file = |folder: &str| format!("{folder}/ptxas{}", env::consts::EXE_SUFFIX);
        let (named, above, on_path) = (at("own/assembler"), at(&file("a/.tools/bin")), at(&file("bin")));
        let below = root.path().join("a/b/c");
        let search = env::join_paths([root.path().join("empty"), root.path().join("bin")]).unwrap();
        let tool = Ptxas::TOOL;
        let find = |variable: Option<&OsStr>, from: &Path| tool.find_in(variable, from, Some(&search));
        assert_eq!(find(Some(named.as_os_str()), &below).unwrap(), named);
        assert_eq!(find(None, &below).unwrap(), above);
        assert_eq!(find(Some(OsStr::new("")), &below).unwrap(), above);
        assert_eq!(find(None, &root.path().join("elsewhere")).unwrap(), on_path);
        let missing = find(Some(OsStr::new("/no/such/file")), &below).unwrap_err();
        assert!(missing.to_string().contains("SILUMIN_PTXAS"), "{missing}");
        let nowhere = tool.find_in(None, &root.path().join("elsewhere"), None).unwrap_err();
        assert!(nowhere.to_string().contains("./scripts/setup.sh"), "{nowhere}");
    }
}
