//! Compilers from PTX to a cubin.
//!
//! A [`Compiler`] is the driver's JIT, or NVIDIA's assembler on request. The cache knows only what is part of the
//! key, and calls a compiler at most once per key.

use silumin_codegen::arch::Arch;
use silumin_codegen::kernel::Kernel;

use super::error::{ModuleError, with_lines};
use silumin_verify::toolchain::{Ptxas, ToolError};

/// A kernel's PTX with its requirements.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The kernel's name, for messages.
    pub name: &'a str,
    /// The module's text.
    pub ptx: &'a str,
    /// The chip; it must match exactly.
    pub arch: Arch,
    /// PTX ISA version of the text: major, minor.
    pub ptx_version: (u32, u32),
}

impl<'a> From<&'a Kernel> for Source<'a> {
    fn from(kernel: &'a Kernel) -> Self {
        Source { name: &kernel.name, ptx: &kernel.ptx, arch: kernel.arch, ptx_version: kernel.ptx_version }
    }
}

/// Properties of a compiler that its output depends on. All of them are part of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// `driver` or `ptxas`.
    pub name: String,
    /// The compiler's version, as exactly as it is known.
    pub version: String,
    /// Options that change the code.
    pub options: String,
}

/// A compiler's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The ELF image.
    pub cubin: Vec<u8>,
    /// The compiler's log: registers, spills, warnings.
    pub log: String,
}

/// A compiler of PTX to cubins.
pub trait Compiler: Send + Sync {
    /// The identity that is part of the key.
    fn identity(&self) -> &Identity;

    /// Compiles for exactly the source's chip. It must not run rayon jobs on the caller's thread: other threads wait
    /// for the same key, and a worker that picks up such a waiter would wait for itself.
    ///
    /// # Errors
    ///
    /// [`ModuleError`].
    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError>;
}

/// NVIDIA's assembler as a compiler, with one process per kernel.
#[derive(Clone, Debug)]
pub struct PtxasCompiler {
    ptxas: Ptxas,
    identity: Identity,
}

impl PtxasCompiler {
    /// Uses this assembler; asks it once for its version.
    ///
    /// # Errors
    ///
    /// [`ToolError`] where it does not run.
    pub fn new(ptxas: Ptxas) -> Result<Self, ToolError> {
        let version = ptxas.version()?;
        let options = if ptxas.line_info() { "-O3 -lineinfo" } else { "-O3" };
        let identity = Identity { name: "ptxas".to_owned(), version, options: options.to_owned() };
        Ok(Self { ptxas, identity })
    }
}

impl Compiler for PtxasCompiler {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError> {
        match self.ptxas.assemble(source.ptx, source.arch) {
            Ok(assembled) => Ok(Compiled { cubin: assembled.cubin, log: assembled.log }),
            Err(ToolError::Refused { path, status, log }) => Err(ModuleError::Refused {
                reason: format!("{} failed ({status})", path.display()),
                log: with_lines(&log, source.ptx),
            }),
            Err(error) => Err(ModuleError::Assembler { reason: error.to_string() }),
        }
    }
}
