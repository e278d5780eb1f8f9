//! The step that the cache saves: PTX to a cubin.
//!
//! A [`Compiler`] is the driver's JIT on a GPU, NVIDIA's assembler where it is asked for, and anything else in
//! tests: the cache knows of it what goes into the key, and calls it at most once for a key.

use silumin_codegen::arch::Arch;
use silumin_codegen::kernel::Kernel;

use super::error::{ModuleError, with_lines};
use crate::toolchain::{Ptxas, ToolError};

/// A kernel's text and what it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The kernel's name, for people.
    pub name: &'a str,
    /// The module's text.
    pub ptx: &'a str,
    /// The chip, to be matched exactly.
    pub arch: Arch,
    /// The PTX ISA version it asks for: major, minor.
    pub ptx_version: (u32, u32),
}

impl<'a> From<&'a Kernel> for Source<'a> {
    fn from(kernel: &'a Kernel) -> Self {
        Source { name: &kernel.name, ptx: &kernel.ptx, arch: kernel.arch, ptx_version: kernel.ptx_version }
    }
}

/// What makes one compiler's cubins others than another's. All of it goes into the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// `driver` or `ptxas`.
    pub name: String,
    /// Its version, as exactly as it is known.
    pub version: String,
    /// Options that change the code.
    pub options: String,
}

/// What a compiler made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The ELF image.
    pub cubin: Vec<u8>,
    /// What it said meanwhile: registers, spills, warnings.
    pub log: String,
}

/// Makes cubins of PTX.
pub trait Compiler: Send + Sync {
    /// What goes into the key.
    fn identity(&self) -> &Identity;

    /// Compiles for exactly the source's chip. It must not run rayon's jobs on the caller's thread: others wait for
    /// the same key, and a worker that takes such a waiter up would wait for itself.
    ///
    /// # Errors
    ///
    /// [`ModuleError`].
    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError>;
}

/// NVIDIA's assembler as a compiler: a process a kernel.
#[derive(Clone, Debug)]
pub struct PtxasCompiler {
    ptxas: Ptxas,
    identity: Identity,
}

impl PtxasCompiler {
    /// The assembler, asked once for its version.
    ///
    /// # Errors
    ///
    /// [`ToolError`] where it does not run.
    pub fn new(ptxas: Ptxas) -> Result<Self, ToolError> {
        let version = ptxas.version()?;
        let identity = Identity { name: "ptxas".to_owned(), version, options: "-O3".to_owned() };
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
