//! A finished kernel: its PTX and everything a host needs to launch it.

use crate::arch::Arch;
use crate::error::NAME_LIMIT;
use crate::gate::GateVector;
use crate::plan::{Operand, TensorMapRecipe};
use crate::problem::Problem;
use std::fmt;

/// PTX text with its launch facts. Any host that follows them can run it: silumin's runtime, a
/// CUDA program of your own, or the emulator.
///
/// One module, one launch for most strategies; those with a kernel a product have two or three,
/// which run in order on one stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Kernel {
    /// The name: of the entry, or what the entries' names start with.
    pub name: String,
    /// The chip: the module's `.target`, to be matched exactly.
    pub arch: Arch,
    /// The module's text.
    pub ptx: String,
    /// What it computes.
    pub problem: Problem,
    /// What is launched, in order.
    pub launches: Vec<Launch>,
    /// Memory that the launches share, beside the tensors of the problem.
    pub workspace: Vec<WorkspaceBuffer>,
    /// The PTX ISA version the module asks for: major, minor.
    pub ptx_version: (u32, u32),
    /// blake3 over the PTX and the launch facts: the key of caches.
    pub hash: [u8; 32],
}

/// One launch of an entry.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Launch {
    /// The entry's name.
    pub entry: String,
    /// CTAs in x, y and z.
    pub grid: [u32; 3],
    /// CTAs of a cluster in x, y and z.
    pub cluster: [u32; 3],
    /// Threads of a CTA in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes. Above 48 KiB it needs
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub dynamic_smem: u32,
    /// Whether it may start before its predecessor in the stream has ended
    /// (`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`); the entry waits where it must.
    pub programmatic: bool,
    /// The entry's parameters, in order.
    pub parameters: Vec<Parameter>,
}

/// What a buffer of the workspace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkspaceKind {
    /// The first product in fp32, between launches.
    Product1,
    /// The second product in fp32, between launches.
    Product2,
    /// Activations in the order of K in which weights are decoded.
    Permuted,
    /// Sums of parts of a tile's K.
    Partials,
    /// How many parts of each tile have left theirs.
    Counters,
}

impl WorkspaceKind {
    /// The name in kernels, plans and launch files.
    pub const fn name(self) -> &'static str {
        match self {
            WorkspaceKind::Product1 => "r1",
            WorkspaceKind::Product2 => "r2",
            WorkspaceKind::Permuted => "permuted",
            WorkspaceKind::Partials => "partials",
            WorkspaceKind::Counters => "counters",
        }
    }
}

/// A buffer that a kernel needs for itself. One launch at a time may use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WorkspaceBuffer {
    /// What it holds.
    pub kind: WorkspaceKind,
    /// The name of that.
    pub name: &'static str,
    /// Bytes, to be 256-byte aligned.
    pub bytes: u64,
    /// Whether it must be zero before the first launch. The kernel leaves it zero.
    pub zeroed: bool,
}

impl WorkspaceBuffer {
    pub(crate) const fn new(kind: WorkspaceKind, bytes: u64, zeroed: bool) -> Self {
        WorkspaceBuffer { kind, name: kind.name(), bytes, zeroed }
    }
}

/// Without the kind, which the name says: kernels' hashes are over this text.
impl fmt::Debug for WorkspaceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkspaceBuffer { kind: _, name, bytes, zeroed } = self;
        f.debug_struct("WorkspaceBuffer")
            .field("name", name)
            .field("bytes", bytes)
            .field("zeroed", zeroed)
            .finish()
    }
}

/// A parameter of a kernel's entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A 128-byte tensor map, 64-byte aligned, encoded from the recipe and the tensor's address.
    TensorMap(TensorMapRecipe),
    /// The address of a tensor, 16-byte aligned.
    Pointer(Operand),
    /// The address of a buffer of the workspace.
    Workspace(WorkspaceBuffer),
    /// An f32 of the gate, by the user's name for it.
    Scalar(String),
    /// How many rows of A count, as u32: at most M. Tiles behind them are left out.
    Rows,
    /// The f32 scale of the whole C, positive and finite: the value of an element of C is its code times
    /// its scale factor times this.
    OutputScale,
    /// The address of a vector of the gate, M or N f32, or of a matrix, M x N in the format that
    /// [`Formats::matrix`](crate::problem::Formats::matrix) says; 16-byte aligned.
    Vector(GateVector),
}

impl Parameter {
    /// The parameter's name in the PTX. Entries that serve both products call theirs `b` and `sfb`.
    pub fn name(&self) -> String {
        match self {
            Parameter::TensorMap(recipe) => format!("{}_map", recipe.name()),
            Parameter::Pointer(operand) => operand.name().to_owned(),
            Parameter::Workspace(buffer) => buffer.name.to_owned(),
            Parameter::Scalar(name) => format!("scalar_{name}"),
            Parameter::Rows => "rows".to_owned(),
            Parameter::OutputScale => "c_scale".to_owned(),
            Parameter::Vector(vector) if vector.is_matrix() => format!("matrix_{}", vector.name),
            Parameter::Vector(vector) => format!("vector_{}", vector.name),
        }
    }

    /// The buffer of the workspace that the parameter leads to, as an address or through a tensor map.
    pub fn workspace(&self) -> Option<&WorkspaceBuffer> {
        match self {
            Parameter::Workspace(buffer) => Some(buffer),
            Parameter::TensorMap(recipe) => recipe.workspace.as_ref(),
            Parameter::Pointer(_)
            | Parameter::Rows
            | Parameter::Scalar(_)
            | Parameter::OutputScale
            | Parameter::Vector(_) => None,
        }
    }
}

impl Kernel {
    /// The hash as 64 hexadecimal digits.
    pub fn hash_hex(&self) -> String {
        self.hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The launch of a kernel that has one only.
    pub fn only_launch(&self) -> Option<&Launch> {
        match &self.launches[..] {
            [launch] => Some(launch),
            _ => None,
        }
    }

    /// Whether a launch says how many rows of A count ([`Parameter::Rows`]).
    pub fn counts_rows(&self) -> bool {
        self.launches.iter().any(|launch| launch.parameters.contains(&Parameter::Rows))
    }

    /// Names of the gate's scalars, each once.
    pub fn scalars(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for parameter in self.launches.iter().flat_map(|launch| &launch.parameters) {
            if let Parameter::Scalar(name) = parameter
                && !names.contains(&name.as_str())
            {
                names.push(name.as_str());
            }
        }
        names
    }

    /// The gate's vectors and matrices, each once.
    pub fn vectors(&self) -> Vec<&GateVector> {
        let mut vectors = Vec::new();
        for parameter in self.launches.iter().flat_map(|launch| &launch.parameters) {
            if let Parameter::Vector(vector) = parameter
                && !vectors.contains(&vector)
            {
                vectors.push(vector);
            }
        }
        vectors
    }

    /// Works out the hash once everything else is in place.
    #[cfg(feature = "render")]
    pub(crate) fn hashed(mut self) -> Kernel {
        let facts = format!("{} {} {:?} {:?}\n", self.name, self.arch, self.launches, self.workspace);
        let mut hasher = blake3::Hasher::new();
        hasher.update(facts.as_bytes());
        hasher.update(self.ptx.as_bytes());
        self.hash = *hasher.finalize().as_bytes();
        self
    }
}

/// Whether a kernel can be called so, with what entries of its module add to their names.
pub(crate) fn is_ptx_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let continues = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    // `_` alone is PTX's sink.
    starts && continues && name != "_" && name.len() <= NAME_LIMIT
}
