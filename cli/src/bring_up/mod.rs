//! The bring-up pack: kernels for the first hour on a GPU, with operands, the emulator's results and probes.
//!
//! * `mod.rs`: what a step is.
//! * `blackwell.rs`, `hopper.rs`, `geforce.rs`: the steps of chips with tensor memory, of `sm_90a`, and of `sm_120a` and `sm_121a`, in
//!   order of risk.
//! * `probes.rs`: kernels that measure what nobody has published, one PTX template each in `probes/`.
//! * `pack.rs`: builds the folder that `bring_up.py` runs.
//! * `plant.rs`: damages one kernel, to see that the pack names it.
//! * `command.rs`: the flags.

pub mod blackwell;
pub mod command;
pub mod geforce;
pub mod hopper;
pub mod pack;
pub mod plant;
pub mod probes;

use silumin::codegen::arch::TensorCore;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::{Arch, Shape};
use std::error::Error;

/// Size of the large shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Takes a second or less per kernel on the emulator, to test the pack itself.
    Small,
    /// The benchmark's shapes.
    Full,
}

impl Size {
    /// `small` for the emulator, `full` for a GPU.
    fn pick(self, small: Shape, full: Shape) -> Shape {
        match self {
            Size::Small => small,
            Size::Full => full,
        }
    }
}

/// A group of kernels that test one assumption, and what to conclude if one fails.
#[derive(Clone, Debug)]
pub struct Step {
    /// Number in the order of risk, from 1.
    pub number: u32,
    /// A few words.
    pub title: &'static str,
    /// The assumption about the hardware that it tests.
    pub assumption: &'static str,
    /// Where to look first if a single launch fails.
    pub look: &'static str,
    /// Where to look first if only back-to-back launches fail.
    pub look_loop: &'static str,
    /// The kernels.
    pub cases: Vec<Case>,
}

/// One kernel of a step.
#[derive(Clone, Debug)]
pub struct Case {
    /// Id: the step's number and a letter.
    pub id: String,
    /// M, N, K and groups.
    pub shape: Shape,
    /// Formats of A, B and C, separated by spaces; empty for the chip's usual ones.
    pub formats: &'static str,
    /// The gate.
    pub gate: &'static str,
    /// Knobs as `NAME = VALUE; NAME = VALUE`.
    pub knobs: String,
    /// What this kernel adds to the step's assumption, or empty.
    pub adds: &'static str,
    /// Why `compute-sanitizer --tool racecheck` reports hazards that are none; empty where it should report nothing.
    pub racecheck: &'static str,
}

/// For each assumption that few published kernels share (numbered in `book/src/decisions/0003`), knob values that
/// avoid it.
const AVOID: [(&str, &str); 7] = [
    ("R2", "a_reuse = none"),
    ("R3", "multicast = none; for scale factors alone sf_load = tensor_map"),
    ("R4", "schedule = persistent, pdl = off"),
    ("R5", "accumulator_buffers = 1"),
    ("R6", "accumulators = separate"),
    ("R8", "a tile with a multiple of 16 columns"),
    ("R9", "store = direct"),
];

/// The gate of most cases.
const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";
/// That of a GEMM with what a down projection adds.
const RESIDUAL: &str = "alpha * (A @ B) + bias[n] + residual[m, n]";

/// A kernel with the chip's usual formats. `steps` sets its id.
fn case(shape: Shape, knobs: &str) -> Case {
    let knobs = knobs.to_owned();
    Case { id: String::new(), shape, formats: "", gate: SWIGLU, knobs, adds: "", racecheck: "" }
}

impl Case {
    fn formats(mut self, formats: &'static str) -> Self {
        self.formats = formats;
        self
    }

    fn gate(mut self, gate: &'static str) -> Self {
        self.gate = gate;
        self
    }

    fn adds(mut self, adds: &'static str) -> Self {
        self.adds = adds;
        self
    }

    fn racecheck(mut self, why: &'static str) -> Self {
        self.racecheck = why;
        self
    }

    /// Knob values that avoid what this kernel adds; empty if none are known.
    pub fn avoid(&self) -> String {
        let known = AVOID.iter().filter(|(risk, _)| self.adds.contains(risk));
        known.map(|(_, knobs)| *knobs).collect::<Vec<_>>().join("; ")
    }

    /// The problem and its knobs as a configuration document.
    ///
    /// # Errors
    /// A knob or a value that does not exist.
    pub fn spec(&self, arch: Arch) -> Result<SpecFile, Box<dyn Error>> {
        let mut file = SpecFile::new(self.shape);
        file.arch = arch.to_string();
        file.gate = self.gate.to_owned();
        let formats: Vec<&str> = self.formats.split_whitespace().collect();
        if let [a, b, c] = formats[..] {
            file.formats = FormatNames { a: a.into(), b: b.into(), c: c.into(), ..FormatNames::default() };
        }
        for knob in self.knobs.split(';').filter(|knob| !knob.trim().is_empty()) {
            let (name, value) =
                knob.split_once('=').ok_or_else(|| format!("`{knob}` is not NAME = VALUE"))?;
            file.config.set(name.trim(), value.trim())?;
        }
        Ok(file)
    }
}

/// The steps for a chip, numbered, with ids such as `5a`.
pub fn steps(arch: Arch, size: Size) -> Vec<Step> {
    let mut steps = match arch.tensor_core() {
        TensorCore::Tcgen05 => blackwell::steps(size),
        TensorCore::Wgmma => hopper::steps(size),
        TensorCore::Mma => geforce::steps(size),
    };
    for (index, step) in steps.iter_mut().enumerate() {
        step.number = index as u32 + 1;
        for (case, letter) in step.cases.iter_mut().zip('a'..) {
            case.id = format!("{}{letter}", step.number);
        }
    }
    steps
}
