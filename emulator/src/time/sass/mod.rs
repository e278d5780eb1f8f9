//! Issue costs from machine code: the instructions that `ptxas` makes of a kernel, charged to its PTX lines.
//!
//! The assembler decides how many instructions a line becomes, how long a warp waits before its next one (the stall
//! count in each instruction), and what is folded, hoisted out of loops or unrolled. [`SassCosts`] has these costs
//! for one module. A run with a clock charges each executed PTX line its share of the machine code.
//!
//! - `listing`: reads what `nvdisasm` prints
//! - `flow`: loops of PTX and of machine code
//! - `charge`: which line pays for which instruction, and how often
//! - `tool`: runs `ptxas` and `nvdisasm`

mod charge;
mod flow;
mod listing;
#[cfg(test)]
mod tests;
mod tool;

use super::Chip;
use super::cost::{Cost, Unit};
use crate::program::Program;
use charge::LineCost;
use listing::Section;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// The machine code of a module, mapped to its PTX lines.
#[derive(Clone, Debug)]
pub struct SassCosts {
    sections: Vec<Section>,
}

/// Why machine code cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SassError {
    /// The listing has no code.
    #[error("the listing has no section `.text.NAME`: print one with `nvdisasm -gp -hex -c CUBIN`")]
    Empty,
    /// No lines.
    #[error(
        "the listing of `{section}` has no lines of PTX: assemble with `ptxas --generate-line-info`, and print with `nvdisasm -gp -hex -c`"
    )]
    NoLines {
        /// The kernel.
        section: String,
    },
    /// A line of the listing is not an instruction.
    #[error("`{text}` is not what `nvdisasm -gp -hex -c` prints of an instruction")]
    Line {
        /// The line.
        text: String,
    },
    /// The listing is of another module.
    #[error("the listing has no code of the kernel `{entry}`, but of {of}: it belongs to another module")]
    Entry {
        /// The kernel.
        entry: String,
        /// What there is.
        of: String,
    },
    /// The listing is of another version of the module.
    #[error(
        "the listing says that code of `{entry}` comes from line {line}, where the PTX has no instruction: it belongs to another text"
    )]
    Text {
        /// The kernel.
        entry: String,
        /// The line.
        line: u32,
    },
    /// A tool is missing.
    #[error(
        "`{name}` was not found: not in {variable}, not as .tools/bin/{name} in this folder or above it, not on the PATH; `./scripts/setup.sh` fetches it (a package of PyPI, no CUDA needed)"
    )]
    NotFound {
        /// The tool.
        name: &'static str,
        /// The environment variable that can name it.
        variable: &'static str,
    },
    /// The environment variable names something that is not a file.
    #[error("{variable} names {}, which is not a file; correct it, or unset it to search", path.display())]
    NotAFile {
        /// Name of the environment variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A tool could not be started.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The tool.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// A tool refused its input.
    #[error("{} failed ({status}):\n{log}", path.display())]
    Refused {
        /// The tool.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// What it printed.
        log: String,
    },
}

impl SassCosts {
    /// Parses the output of `nvdisasm -gp -hex -c` for a cubin assembled with `ptxas --generate-line-info`.
    ///
    /// # Errors
    ///
    /// [`SassError`] where it is something else.
    pub fn from_listing(text: &str) -> Result<Self, SassError> {
        Ok(SassCosts { sections: listing::read(text)? })
    }

    /// Assembles PTX for exactly `target` and disassembles the result, in two processes that take up to a second.
    ///
    /// The tools are those that `SILUMIN_PTXAS` and `SILUMIN_NVDISASM` name, else those in `.tools/bin` of this
    /// folder or of one above it, else those on the PATH.
    ///
    /// # Errors
    ///
    /// [`SassError`] where a tool is missing or refuses the module.
    pub fn assemble(ptx: &str, target: &str) -> Result<Self, SassError> {
        Self::from_listing(&tool::listing(ptx, target)?)
    }

    /// Number of machine instructions of a kernel.
    pub fn instructions(&self, entry: &str) -> Option<usize> {
        self.section(entry).map(|s| s.code.len())
    }

    /// Machine instructions of a kernel in the order of its code: the line of the PTX that each comes from (0 for none), the
    /// instruction as `nvdisasm` prints it, and the clocks until the warp issues its next one.
    pub fn code(&self, entry: &str) -> impl Iterator<Item = (u32, &str, u8)> {
        let code = self.section(entry).map_or(&[][..], |section| &section.code);
        code.iter().map(|i| (i.line, i.text.as_str(), i.stall))
    }

    fn section(&self, entry: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == entry)
    }

    /// The cost of each line of a kernel.
    fn lines(
        &self,
        entry: &str,
        program: &Program,
        chip: &Chip,
    ) -> Result<HashMap<u32, LineCost>, SassError> {
        let section = self.section(entry).ok_or_else(|| SassError::Entry {
            entry: entry.to_owned(),
            of: self.sections.iter().map(|s| format!("`{}`", s.name)).collect::<Vec<_>>().join(", "),
        })?;
        charge::check(entry, section, program)?;
        let mut out = charge::lines(&section.code, program, chip);
        // Functions that are called stand in sections of their own.
        for other in self.sections.iter().filter(|s| s.name != entry) {
            for (line, cost) in charge::lines(&other.code, program, chip) {
                out.entry(line).or_insert(cost);
            }
        }
        Ok(out)
    }

    /// Replaces the table's costs by those of the machine code.
    ///
    /// A line's first operation carries the line's whole cost, its other operations none. Results are ready once the
    /// line has issued, because stall counts and charged waits already keep readers apart.
    pub(crate) fn apply(
        &self,
        entry: &str,
        program: &Program,
        chip: &Chip,
        costs: &mut [Cost],
    ) -> Result<(), SassError> {
        let lines = self.lines(entry, program, chip)?;
        let mut charged = HashSet::new();
        for (inst, cost) in program.code.iter().zip(costs) {
            let first = charged.insert(inst.line);
            let line = lines.get(&inst.line).filter(|_| first).copied().unwrap_or_default();
            let table = (cost.slots, cost.latency);
            (cost.slots, cost.hold, cost.latency) = (line.slots, line.stalls, 0.0);
            cost.waited = true;
            if line.calls && table.0 > line.slots {
                // The called code has no line of its own.
                (cost.slots, cost.hold, cost.latency) = (table.0, table.0.max(line.stalls), table.1);
            }
            (cost.ports, cost.busy) = (line.ports, line.busy);
            let own = matches!(
                cost.unit,
                Unit::Memory | Unit::Engine | Unit::Branch | Unit::Shuffle | Unit::Matrix
            );
            if !own {
                cost.unit = if line.slots == 0.0 { Unit::Folded } else { Unit::Alu };
            }
        }
        Ok(())
    }
}
