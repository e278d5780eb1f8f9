//! Runs PTX text on the CPU: a model of one GPU with threads, warps and divergence, global, shared, distributed
//! shared, local and tensor memory, mbarriers, TMA and `tcgen05`.
//!
//! [`Module::parse`] reads PTX of any compiler and decodes all of it. [`Module::run`] executes a kernel over a grid
//! and returns a [`Report`] of what is wrong: deadlocks, uses of undefined memory or registers, accesses out of
//! bounds, illegal descriptors, leaked tensor memory. Nothing is assumed about how the PTX was made.
//!
//! A run shows one order of events; [`Schedule`] chooses which. With [`Tracking`] on, accesses that the kernel's
//! synchronisation does not order are reported even if this run's order did no harm: missing waits, fences and
//! barriers; slots that are refilled while they are read; races between clusters; synchronisation with too narrow a
//! scope.
//!
//! [`Module::parse`] refuses textures, surfaces and recursion, with file, line and instruction. All other
//! instructions of PTX ISA 9.1 are decoded. `im2col::w` copies, descriptors that only sm_103a has (K = 96, absolute
//! leading dimension) and interleaved tensor maps are findings when they run.
//!
//! | module | content |
//! |---|---|
//! | `parse` | text to syntax tree |
//! | `isa` | types, and the matching of opcodes against table rows |
//! | `lower` | the instruction table: syntax tree to executable form |
//! | `lanes` | arithmetic on the 32 lanes of a warp |
//! | `memory` | global and shared memory with written-byte tracking |
//! | [`engine`] | tensor maps, descriptors, tensor memory, matrix arithmetic |
//! | `exec` | clusters, warps, barriers and asynchronous engines |
//! | [`launch_file`] | launches as TOML |
//! | [`command`] | the `emulate` command |
//! | [`files`] | folders of results |
//! | [`mutate`] | kernels with one mistake put in, and whether they are caught |

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod command;
pub mod engine;
mod exec;
pub mod files;
mod finding;
mod isa;
mod lanes;
mod launch;
pub mod launch_file;
mod lower;
mod memory;
mod module;
pub mod mutate;
mod parse;
mod program;
pub mod time;

/// Whether the emulator was built without optimisation, in which case kernels run some 40 times slower. [`FAST_BUILD`] changes that.
pub const IS_SLOW_BUILD: bool = matches!(env!("SILUMIN_EMULATOR_OPT_LEVEL").as_bytes(), b"0");
/// The lines for Cargo.toml that optimise the emulator in a debug build.
pub const FAST_BUILD: &str = "[profile.dev.package.silumin-emulator]\nopt-level = 3";

/// Says on standard error, once in a process, that the emulator was built without optimisation, and what changes that.
#[allow(clippy::print_stderr, reason = "a note for whoever builds the program; nothing reads it")]
pub fn note_slow_build() {
    static SAID: std::sync::Once = std::sync::Once::new();
    if IS_SLOW_BUILD {
        SAID.call_once(|| {
            eprintln!(
                "note: silumin's emulator was built without optimisation and is some 40 times slower; build with --release, or put into Cargo.toml:\n{FAST_BUILD}"
            );
        });
    }
}

pub use engine::mma::Arithmetic;
pub use engine::swizzle::SwizzleMode;
pub use engine::tensor_map::im2col::{Im2colError, Im2colParams};
pub use engine::tensor_map::{DataType, Interleave, L2Promotion, OobFill, TensorMapError, TensorMapParams};
pub use finding::{Finding, FindingKind, Report, Stats};
pub use launch::{
    Arg, Launch, LaunchError, MAX_CLUSTER, MAX_SMEM, Options, Progress, Reconvergence, Schedule, Step,
    TmemLoads, Trace, Tracking, max_smem,
};
pub use launch_file::LaunchFile;
pub use memory::{Buffer, GlobalMemory};
pub use module::{Module, Parameter, ParseError, ParseErrors};
