//! Matrices that the gate reads, `r[m, n]`: how a chunk of one comes from global memory to registers.
//!
//! A matrix has C's shape and rows without gaps. A thread reads what it stores of C: the same rows and columns, in the
//! same order of registers.

use super::epilogue::{self, Packing, Ragged};
use super::inputs::names_along;
use super::lanes::FragmentLayout;
use crate::gate::{Axis, Fragment, GateVector};
use crate::plan::Output;
use crate::problem::OutputElement;
use crate::render::gate_text::matrix_register;

/// A matrix of an entry's gate.
pub(crate) struct Matrix {
    pub name: String,
    /// Registers of a chunk's elements, in fp32; words of two, and single ones, on their way there.
    pub registers: u32,
    pub words: u32,
    pub halves: u32,
}

/// The elements of a chunk.
pub(crate) struct MatrixChunk {
    pub name: String,
    pub loads: Vec<MatrixLoad>,
    /// The type that elements are converted from; empty for fp32.
    pub element: &'static str,
    pub pairs: Vec<MatrixPair>,
    pub singles: Vec<MatrixSingle>,
    /// For fp32 elements: the register that the gate reads, and the register of the slot.
    pub copies: Vec<(String, String)>,
}

/// One load: whole words, or one element of 16 bits.
pub(crate) struct MatrixLoad {
    /// Whether rows must be looked at too, where the first column must be compared with N.
    pub guard: Option<bool>,
    /// The predicate that says whether its row is in C.
    pub row: &'static str,
    pub column: u32,
    /// Bytes from the chunk's first element.
    pub byte: u64,
    pub predicate: &'static str,
    /// What is loaded: `.v4.b32`, `.b16`.
    pub width: String,
    pub registers: String,
    /// What a load that does not happen leaves zero.
    pub zeroed: Vec<String>,
    /// The size of one of those: `b32` or `b16`.
    pub size: &'static str,
}

/// Two elements of a word.
pub(crate) struct MatrixPair {
    pub word: String,
    pub low: String,
    pub high: String,
}

/// An element that was loaded alone.
pub(crate) struct MatrixSingle {
    pub half: String,
    pub to: String,
}

/// How an entry's matrices lie and are held.
pub(super) struct Matrices {
    output: Output,
    element: OutputElement,
    /// Columns of a chunk, and registers that a thread has it in.
    chunk: u32,
    registers: u32,
    ragged: Ragged,
    held: FragmentLayout,
}

impl Matrices {
    pub fn new(
        output: Output,
        element: OutputElement,
        [chunk, registers]: [u32; 2],
        ragged: Ragged,
        held: FragmentLayout,
    ) -> Self {
        Matrices { output, element, chunk, registers, ragged, held }
    }

    /// The matrices among an entry's vectors, of which `slots` chunks may wait.
    pub fn of(&self, vectors: &[GateVector], slots: u32) -> Vec<Matrix> {
        let [words, halves] = match (self.element, slots) {
            (OutputElement::F32, 0) => [0; 2],
            _ => self.words().map(|registers| registers * slots.max(1)),
        };
        let matrix = |vector: &GateVector| Matrix {
            name: vector.name.clone(),
            registers: self.registers,
            words,
            halves,
        };
        vectors.iter().filter(|vector| vector.is_matrix()).map(matrix).collect()
    }

    /// Registers of a chunk: words of two elements or one of fp32, and single elements.
    fn words(&self) -> [u32; 2] {
        let (mut words, mut halves) = (0, 0);
        for (first, count, ..) in self.places() {
            match (self.element, count) {
                (OutputElement::F32, _) => words = words.max(first + count),
                (_, 1) => halves = halves.max(first + 1),
                (_, _) => words = words.max((first + count) / 2),
            }
        }
        [words, halves]
    }

    /// Registers that a waiting chunk takes, of all matrices that `fragments` read.
    pub fn waiting(&self, fragments: &[&Fragment]) -> u32 {
        names(fragments).len() as u32 * self.words().iter().sum::<u32>()
    }

    /// Bytes from one chunk to the next.
    pub fn step(&self) -> u64 {
        let bytes = u64::from(self.output.element_bits / 8) * u64::from(self.chunk);
        match self.held {
            FragmentLayout::Column => u64::from(self.chunk) * self.output.row_bytes,
            FragmentLayout::Lanes(lanes) if lanes.transposed() => {
                u64::from(self.chunk) * self.output.row_bytes
            }
            FragmentLayout::Row | FragmentLayout::Lanes(_) => bytes,
        }
    }

    /// The elements that `fragments` read of a chunk that starts `base` columns behind the pointers.
    pub fn chunk(&self, fragments: &[&Fragment], base: u32) -> Vec<MatrixChunk> {
        names(fragments).into_iter().map(|name| self.chunk_of(name, base, None)).collect()
    }

    /// The same of a chunk that waits in a slot of registers.
    pub fn waiting_chunk(&self, fragments: &[&Fragment], base: u32, slot: u32) -> Vec<MatrixChunk> {
        names(fragments).into_iter().map(|name| self.chunk_of(name, base, Some(slot))).collect()
    }

    /// Registers of each load: the first, how many, the predicate of its row, its column and byte, and its predicate.
    fn places(&self) -> Vec<(u32, u32, epilogue::Vector)> {
        let packing = Packing { element: self.element, per_word: 32 / self.element.bits(), word: "" };
        let vectors = match self.held {
            FragmentLayout::Row => epilogue::vectors(packing, &self.output, self.chunk, self.ragged),
            FragmentLayout::Lanes(lanes) => lanes.vectors(packing, &self.output, self.ragged),
            FragmentLayout::Column => {
                epilogue::transposed::vectors(packing, &self.output, self.chunk, self.ragged, 0)
            }
        };
        let mut first = 0;
        let count = self.registers / (vectors.len() as u32).max(1);
        let place = |vector| {
            let place = (first, count, vector);
            first += count;
            place
        };
        vectors.into_iter().map(place).collect()
    }

    fn chunk_of(&self, name: &str, base: u32, slot: Option<u32>) -> MatrixChunk {
        let [words, halves] = self.words().map(|registers| registers * slot.unwrap_or(0));
        let base_bytes = u64::from(base / self.chunk.max(1)) * self.step();
        let names = |what: &str, first: u32, count: u32| -> Vec<String> {
            (first..first + count).map(|i| format!("%{what}_{name}_{i}")).collect()
        };
        let mut chunk = MatrixChunk {
            name: name.to_owned(),
            loads: Vec::new(),
            element: match self.element {
                OutputElement::Bf16 => "bf16",
                OutputElement::F16 => "f16",
                OutputElement::F32 | OutputElement::E4m3 | OutputElement::E2m1 => "",
            },
            pairs: Vec::new(),
            singles: Vec::new(),
            copies: Vec::new(),
        };
        for (first, count, vector) in self.places() {
            let elements = || (first..first + count).map(|i| matrix_register(name, i));
            let (size, registers) = match (self.element, count, slot) {
                (OutputElement::F32, _, None) => ("b32", elements().collect()),
                (OutputElement::F32, _, Some(_)) => ("b32", names("word", words + first, count)),
                (_, 1, _) => ("b16", names("half", halves + first, 1)),
                (_, _, _) => ("b32", names("word", words + first / 2, count / 2)),
            };
            match (self.element, count) {
                (OutputElement::F32, _) if slot.is_none() => {}
                (OutputElement::F32, _) => chunk.copies.extend(elements().zip(registers.iter().cloned())),
                (_, 1) => chunk
                    .singles
                    .push(MatrixSingle { half: registers.concat(), to: matrix_register(name, first) }),
                (_, _) => {
                    chunk.pairs.extend((first..).step_by(2).zip(&registers).map(|(low, word)| MatrixPair {
                        word: word.clone(),
                        low: matrix_register(name, low),
                        high: matrix_register(name, low + 1),
                    }))
                }
            }
            let guarded = !vector.predicate.is_empty();
            chunk.loads.push(MatrixLoad {
                guard: vector.guard,
                row: vector.row,
                column: vector.column + base,
                byte: vector.byte + base_bytes,
                predicate: vector.predicate,
                width: format!("{}.{size}", epilogue::width(registers.len() as u32)),
                registers: match &registers[..] {
                    [one] => one.clone(),
                    several => format!("{{ {} }}", several.join(", ")),
                },
                zeroed: if guarded { registers } else { Vec::new() },
                size,
            });
        }
        chunk
    }
}

/// The names of the matrices that fragments read.
fn names<'a>(fragments: &[&'a Fragment]) -> Vec<&'a str> {
    names_along(fragments, Axis::MN)
}
