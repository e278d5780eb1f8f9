//! What the epilogue's warps, and the gate's own kernel, store.

use crate::plan::{Output, Staging};
use crate::problem::{OutputElement, OutputFormat};

/// Whether a thread's row is in C, where it has one.
const ROW: &str = "%row_in_range";

/// How results become words of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Packing {
    /// What results are rounded to, two at a time (`common/round.ptx`); fp32 are the words themselves.
    pub element: OutputElement,
    /// Results of a word: 1, 2, 4 or 8.
    pub per_word: u32,
    /// What the words' registers are called, without the number.
    pub word: &'static str,
}

impl Packing {
    pub fn of(format: OutputFormat) -> Packing {
        let element = format.spec().element;
        let packing = Packing { element, per_word: 32 / element.bits(), word: "packed" };
        if packing.rounds() { packing } else { Packing { word: "result", ..packing } }
    }

    /// An fp32 product as it comes from TMEM.
    pub const PRODUCT: Packing = Packing { element: OutputElement::F32, per_word: 1, word: "first" };

    /// Whether results have to be rounded.
    pub fn rounds(self) -> bool {
        self.element != OutputElement::F32
    }

    /// Words that `chunk` results pack into, each with its results, lowest first.
    pub fn words(self, chunk: u32) -> Vec<Word> {
        if !self.rounds() {
            return Vec::new();
        }
        let results = |index: u32| (index * self.per_word..(index + 1) * self.per_word).collect();
        (0..chunk / self.per_word).map(|index| Word { index, results: results(index) }).collect()
    }
}

/// A word and the results in it.
pub(crate) struct Word {
    pub index: u32,
    pub results: Vec<u32>,
}

impl Word {
    /// The results, two at a time, lowest first.
    pub fn pairs(&self) -> Vec<[u32; 2]> {
        self.results.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
    }
}

/// Up to 16 bytes of a row on their way to the staging.
pub(crate) struct Unit {
    pub byte: u32,
    pub width: &'static str,
    pub registers: String,
}

/// One store to global memory, or, where lanes hold columns of C, to the staging.
pub(crate) struct Vector {
    /// Whether rows must be looked at too, where the first column must be compared with N.
    pub guard: Option<bool>,
    /// The predicate that says whether its row is in C.
    pub row: &'static str,
    pub column: u32,
    pub byte: u64,
    pub predicate: &'static str,
    pub width: &'static str,
    pub registers: String,
    /// Where it is less than a word: the word it is in.
    pub part: Option<Part>,
    /// Bytes from the chunk's place in the staging, where lanes hold columns of C.
    pub staged_byte: u32,
}

/// Two bytes or one of a word.
pub(crate) struct Part {
    /// The word's register.
    pub word: String,
    /// `b16` or `b8`.
    pub size: &'static str,
    /// Whether it is the upper byte of its half.
    pub upper: bool,
}

/// Four columns of an fp32 product, read back.
pub(crate) struct ProductVector {
    pub guard: Option<bool>,
    /// The predicate that says whether its row is in C.
    pub row: &'static str,
    pub column: u32,
    pub byte: u64,
    pub width: &'static str,
    pub predicate: &'static str,
    pub registers: String,
    pub second_registers: String,
    /// What a load that does not happen leaves: of the first product, and of the second.
    pub zeroed: Vec<String>,
    pub second_zeroed: Vec<String>,
}

/// A TMA store of one box.
pub(crate) struct BoxStore {
    pub column: u32,
    pub offset: u32,
    pub policy: &'static str,
}

/// Which rows and columns of a launch's tiles can lie outside the tensors.
#[derive(Clone, Copy)]
pub(crate) struct Ragged {
    pub rows: bool,
    pub columns: bool,
}

impl Ragged {
    pub(super) fn guard(self) -> Option<bool> {
        self.columns.then_some(self.rows)
    }

    pub(super) fn predicate(self) -> &'static str {
        match (self.rows, self.columns) {
            (_, true) => "@%in_range ",
            (true, false) => "@%row_in_range ",
            (false, false) => "",
        }
    }
}

/// `%packed4, %packed5, ...`
pub(crate) fn registers(name: &str, first: u32, count: u32) -> String {
    let names: Vec<String> = (first..first + count).map(|i| format!("%{name}{i}")).collect();
    names.join(", ")
}

pub(super) const fn width(words: u32) -> &'static str {
    match words {
        4 => ".v4",
        2 => ".v2",
        _ => "",
    }
}

/// `{ %packed0, %packed1 }`, or the register alone.
pub(super) fn vector_registers(name: &str, first: u32, count: u32) -> String {
    match count {
        1 => registers(name, first, 1),
        _ => format!("{{ {} }}", registers(name, first, count)),
    }
}

pub(super) fn units(packing: Packing, chunk: u32) -> Vec<Unit> {
    let words = (chunk / packing.per_word).min(4);
    (0..chunk / packing.per_word / words)
        .map(|unit| Unit {
            byte: 4 * words * unit,
            width: width(words),
            registers: vector_registers(packing.word, words * unit, words),
        })
        .collect()
}

/// `count` results from `first` on, as a store's operand: whole words, or a part of one.
pub(crate) fn operand(packing: Packing, first: u32, count: u32) -> (&'static str, String, Option<Part>) {
    let word = first / packing.per_word;
    if count >= packing.per_word {
        let words = count / packing.per_word;
        return (width(words), vector_registers(packing.word, word, words), None);
    }
    // Bits from the word's lowest.
    let (bits, start) = (32 / packing.per_word * count, 32 / packing.per_word * (first % packing.per_word));
    let half = if start < 16 { "%low" } else { "%high" };
    let part = Part {
        word: registers(packing.word, word, 1),
        size: if bits == 16 { "b16" } else { "b8" },
        upper: start % 16 != 0,
    };
    ("", half.to_owned(), Some(part))
}

/// The stores of `chunk` columns of a row.
pub(super) fn vectors(packing: Packing, output: &Output, chunk: u32, ragged: Ragged) -> Vec<Vector> {
    let vector = output.vector.min(chunk);
    (0..chunk / vector)
        .map(|i| {
            let column = i * vector;
            let (width, registers, part) = operand(packing, column, vector);
            Vector {
                guard: ragged.guard(),
                row: ROW,
                column,
                byte: (column * output.element_bits / 8).into(),
                predicate: ragged.predicate(),
                width,
                registers,
                part,
                staged_byte: 0,
            }
        })
        .collect()
}

/// The loads of `chunk` columns of fp32 products.
pub(super) fn product_loads(chunk: u32, ragged: Ragged) -> Vec<ProductVector> {
    (0..chunk / 4)
        .map(|i| ProductVector {
            guard: ragged.guard(),
            row: ROW,
            column: 4 * i,
            byte: (16 * i).into(),
            width: ".v4",
            predicate: ragged.predicate(),
            registers: format!("{{ {} }}", registers("first", 4 * i, 4)),
            second_registers: format!("{{ {} }}", registers("second", 4 * i, 4)),
            zeroed: (4 * i..4 * i + 4).map(|register| format!("%first{register}")).collect(),
            second_zeroed: (4 * i..4 * i + 4).map(|register| format!("%second{register}")).collect(),
        })
        .collect()
}

/// The same where a lane holds a column of C and a register a row of it: an element at a time,
/// neighbours in neighbouring lanes.
pub(super) mod transposed {
    use super::{Output, Packing, ProductVector, ROW, Ragged, Vector, operand, registers};

    pub(in super::super) fn vectors(
        packing: Packing,
        output: &Output,
        chunk: u32,
        ragged: Ragged,
        span: u32,
    ) -> Vec<Vector> {
        (0..chunk)
            .map(|i| {
                let (width, registers, part) = operand(packing, i, 1);
                Vector {
                    guard: ragged.guard(),
                    row: ROW,
                    column: i,
                    byte: u64::from(i) * output.row_bytes,
                    predicate: ragged.predicate(),
                    width,
                    registers,
                    part,
                    staged_byte: i * span,
                }
            })
            .collect()
    }

    pub(in super::super) fn product_loads(output: &Output, chunk: u32, ragged: Ragged) -> Vec<ProductVector> {
        (0..chunk)
            .map(|i| ProductVector {
                guard: ragged.guard(),
                row: ROW,
                column: i,
                byte: u64::from(i) * output.row_bytes,
                width: "",
                predicate: ragged.predicate(),
                registers: registers("first", i, 1),
                second_registers: registers("second", i, 1),
                zeroed: vec![registers("first", i, 1)],
                second_zeroed: vec![registers("second", i, 1)],
            })
            .collect()
    }
}

pub(super) fn stores(staging: Staging, policy: &'static str) -> Vec<BoxStore> {
    (0..staging.boxes)
        .map(|i| BoxStore { column: i * staging.columns, offset: i * staging.box_bytes, policy })
        .collect()
}
