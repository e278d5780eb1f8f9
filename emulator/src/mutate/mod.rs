//! Mutants: one mistake at a time in a correct kernel, to check that the emulator catches it.
//!
//! A mutant is an edit of one instruction in the PTX text, or of one field of a tensor map of the launch. Edits are
//! found from the parsed instructions and from where their operands were computed, so PTX of any compiler can be
//! mutated.
//!
//! A mutant is caught if the parser or the launch refuses it, if a run has any finding under one of the schedules
//! (deadlocks and spent instruction limits included), or if outputs differ bit for bit from the kernel's. A survivor
//! is either explained by a rule, because it changes nothing that a program may rely on, or counts against [`BAR`].
//!
//! - this file: what a mutant is
//! - `source`: instructions with their places, and where a register was computed
//! - `removal`, `operands`, `pairs`, `values`: the kinds of mistakes in PTX; `maps`: those in tensor maps
//! - `plan`: what to run; `harness`: running mutants; `explain`: rules for survivors; `earlier`: results of another survey
//! - `report`: text, JSON and Markdown

mod earlier;
mod explain;
mod harness;
mod idle;
mod maps;
mod operands;
mod pairs;
mod plan;
mod removal;
mod report;
pub(crate) mod source;
mod values;

pub use earlier::Earlier;
pub use explain::{Equivalent, Equivalents};
pub use harness::{MutateError, Outcome, Subject, Survey, Verdict};
pub use plan::SurveyOptions;
pub use report::{json, list, markdown, text};

use source::Source;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Fraction of mutants that must be caught or explained.
pub const BAR: f64 = 0.95;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $slug:literal,)*) => {
        /// A class of mistakes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// The name in reports and flags.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $slug,)* }
            }
        }
    };
}

kinds! {
    /// A wait for an mbarrier does not wait.
    Wait = "wait",
    /// An arrival is omitted, or one half of an arrival that also expects bytes.
    Arrive = "arrive",
    /// Another number of bytes is expected at an mbarrier.
    ExpectBytes = "expect-bytes",
    /// An mbarrier is initialised with another number of arrivals, or not at all.
    InitCount = "init-count",
    /// A fence is omitted.
    Fence = "fence",
    /// A commit is omitted.
    Commit = "commit",
    /// `wait_group`, `wait::ld` or `wait::st` is omitted, or leaves one more group pending.
    GroupWait = "group-wait",
    /// A barrier of a CTA or cluster is omitted, or a cluster barrier is replaced by a barrier in each CTA.
    Barrier = "barrier",
    /// A barrier of a warp is omitted.
    WarpBarrier = "warp-barrier",
    /// Another parity is waited for: its first value, its flip, or its use.
    Parity = "parity",
    /// Tensor memory is not allocated, not released, or allocated with another size.
    Allocation = "allocation",
    /// One CTA of a pair does not allocate, free or relinquish tensor memory, or allocates another size.
    Pair = "pair",
    /// A bound of a loop or of a ring of stages is one off.
    Bound = "bound",
    /// The step of a counter is doubled or omitted.
    Step = "step",
    /// A field of a matrix descriptor.
    Descriptor = "descriptor",
    /// A bit of an instruction descriptor.
    InstructionDescriptor = "instruction-descriptor",
    /// A field of a tensor map.
    TensorMap = "tensor-map",
    /// A column of tensor memory.
    TmemAddress = "tmem-address",
    /// A shared-memory address.
    SmemAddress = "smem-address",
    /// A global-memory address or the size of a copy.
    GlobalAddress = "global-address",
    /// A coordinate of a tensor copy.
    Coordinate = "coordinate",
    /// The address of an mbarrier.
    BarrierAddress = "barrier-address",
    /// A multicast reaches other CTAs.
    Multicast = "multicast",
    /// A guard is negated or omitted.
    Guard = "guard",
    /// Whether a product adds to its accumulator.
    Accumulate = "accumulate",
    /// Two operands of a product are swapped.
    Swap = "swap",
    /// A product, a copy, a load or a store is omitted.
    Work = "work",
    /// The collector keeps or gives something else.
    Collector = "collector",
    /// Hints are omitted: prefetch, cache policies, register budgets, the permission to allocate.
    Hint = "hint",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.iter().copied().find(|k| k.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
            format!("`{text}` is no kind of mutant; there are {}", names.join(", "))
        })
    }
}

/// The place of the mistake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Edit {
    /// A byte range of the PTX and its replacement.
    Text(Range<usize>, String),
    /// Bytes of an argument of the launch; `None` if the driver would refuse the tensor map.
    Argument { index: usize, offset: usize, bytes: Option<Vec<u8>> },
}

/// A kernel with one mistake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutant {
    /// The kind of mistake.
    pub kind: Kind,
    /// Line of the PTX, from 1, or 0 for a mistake in the launch.
    pub line: u32,
    /// The original instruction or tensor map.
    pub was: String,
    /// The change.
    pub change: String,
    pub(crate) edit: Edit,
}

impl Mutant {
    /// The PTX with the mistake, if it is a mistake in the PTX.
    pub(crate) fn apply(&self, text: &str) -> Option<String> {
        let Edit::Text(range, new) = &self.edit else { return None };
        Some([text.get(..range.start)?, new, text.get(range.end..)?].concat())
    }

    /// Whether more lanes may execute the instruction than in the kernel.
    pub(crate) fn changes_guard(&self) -> bool {
        self.change == removal::NEGATED || self.change == removal::LEFT_OUT
    }
}

/// Collects mutants, each edit once.
pub(crate) struct Collection<'s, 't> {
    pub source: &'s Source<'t>,
    pub mutants: Vec<Mutant>,
    seen: HashSet<Edit>,
}

impl<'s, 't> Collection<'s, 't> {
    fn new(source: &'s Source<'t>) -> Self {
        Collection { source, mutants: Vec::new(), seen: HashSet::new() }
    }

    /// Replaces bytes within an instruction.
    pub fn replace(
        &mut self,
        kind: Kind,
        at: usize,
        range: Range<usize>,
        new: impl Into<String>,
        change: impl Into<String>,
    ) {
        let new = new.into();
        let inst = &self.source.insts[at];
        if self.source.text.get(range.clone()) == Some(new.as_str()) {
            return;
        }
        // Lines keep their numbers.
        let edit = Edit::Text(range, new);
        if self.seen.insert(edit.clone()) {
            let was = self.source.text[inst.span.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
            self.mutants.push(Mutant { kind, line: inst.line, was, change: change.into(), edit });
        }
    }

    /// Adds the mutant without an instruction.
    pub fn remove(&mut self, kind: Kind, at: usize) {
        let range = self.source.insts[at].span.clone();
        let lines = self.source.text[range.clone()].matches('\n').count();
        self.replace(kind, at, range, format!(";{}", "\n".repeat(lines)), "removed");
    }
}

/// All mutants in the PTX of a kernel and its functions, in the order of lines.
pub(crate) fn in_text(source: &Source<'_>) -> Vec<Mutant> {
    let mut out = Collection::new(source);
    for at in 0..source.insts.len() {
        removal::mutate(&mut out, at);
        operands::mutate(&mut out, at);
        pairs::mutate(&mut out, at);
        values::mutate(&mut out, at);
    }
    out.mutants.sort_by_key(|m| m.line);
    out.mutants
}
