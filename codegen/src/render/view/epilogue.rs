//! What the epilogue's warps, and the gate's own kernel, store.

use super::Role;
use crate::config::Strategy;
use crate::plan::{Output, Plan, Staging};

/// Two results that one `cvt` packs.
pub(in crate::render) struct Pair {
    pub index: u32,
    pub low: u32,
    pub high: u32,
}

/// 16 bytes of a row on their way to the staging.
pub(in crate::render) struct Unit {
    pub byte: u32,
    pub registers: String,
}

/// One store to global memory.
pub(in crate::render) struct Vector {
    /// Whether rows must be looked at too, where the first column must be compared with N.
    pub guard: Option<bool>,
    pub column: u32,
    pub byte: u64,
    pub predicate: &'static str,
    pub width: &'static str,
    pub registers: String,
    /// A single 16-bit element of a packed pair.
    pub half: bool,
    /// Bytes from the chunk's place in the staging, where lanes hold columns of C.
    pub staged_byte: u32,
    pub register: u32,
}

/// Four columns of an fp32 product, read back.
pub(in crate::render) struct ProductVector {
    pub guard: Option<bool>,
    pub column: u32,
    pub byte: u64,
    pub width: &'static str,
    pub predicate: &'static str,
    pub registers: String,
    pub second_registers: String,
    /// What a load that does not happen leaves.
    pub zeroed: Vec<String>,
}

/// A TMA store of one box.
pub(in crate::render) struct BoxStore {
    pub column: u32,
    pub offset: u32,
    pub policy: &'static str,
}

/// A chunk of one product on its way through the workspace.
pub(in crate::render) struct PartialProduct {
    /// All registers, for one TMEM load.
    pub registers: String,
    /// The product's first column in TMEM.
    pub column: u32,
    pub vectors: Vec<PartialVector>,
}

/// Four columns of it.
pub(in crate::render) struct PartialVector {
    /// Bytes from the chunk's first column of product 1.
    pub offset: u32,
    pub registers: String,
    pub adds: Vec<PartialAdd>,
}

pub(in crate::render) struct PartialAdd {
    pub to: String,
}

/// Which rows and columns of a launch's tiles can lie outside the tensors.
#[derive(Clone, Copy)]
pub(super) struct Ragged {
    pub rows: bool,
    pub columns: bool,
}

impl Ragged {
    fn guard(self) -> Option<bool> {
        self.columns.then_some(self.rows)
    }

    fn predicate(self) -> &'static str {
        match (self.rows, self.columns) {
            (_, true) => "@%in_range ",
            (true, false) => "@%row_in_range ",
            (false, false) => "",
        }
    }
}

/// `%packed4, %packed5, ...`
fn registers(name: &str, first: u32, count: u32) -> String {
    let names: Vec<String> = (first..first + count).map(|i| format!("%{name}{i}")).collect();
    names.join(", ")
}

pub(super) fn pairs(chunk: u32) -> Vec<Pair> {
    (0..chunk / 2).map(|index| Pair { index, low: 2 * index, high: 2 * index + 1 }).collect()
}

pub(super) fn units(chunk: u32) -> Vec<Unit> {
    (0..chunk / 8).map(|unit| Unit { byte: 16 * unit, registers: registers("packed", 4 * unit, 4) }).collect()
}

/// The stores of `chunk` columns of C, packed in pairs.
pub(super) fn vectors(output: &Output, chunk: u32, ragged: Ragged) -> Vec<Vector> {
    let vector = output.vector.min(chunk);
    let width = match vector {
        8 => ".v4",
        4 => ".v2",
        _ => "",
    };
    (0..chunk / vector)
        .map(|i| {
            let column = i * vector;
            let register = column / 2;
            let registers = match vector {
                1 if column.is_multiple_of(2) => "%low".to_owned(),
                1 => "%high".to_owned(),
                2 => registers("packed", register, 1),
                _ => format!("{{ {} }}", registers("packed", register, vector / 2)),
            };
            Vector {
                guard: ragged.guard(),
                column,
                byte: (column * output.element_bytes).into(),
                predicate: ragged.predicate(),
                width,
                registers,
                half: vector == 1,
                staged_byte: 0,
                register,
            }
        })
        .collect()
}

/// The stores of `chunk` columns of an fp32 product.
pub(super) fn product_stores(chunk: u32, ragged: Ragged) -> Vec<Vector> {
    (0..chunk / 4)
        .map(|i| Vector {
            guard: ragged.guard(),
            column: 4 * i,
            byte: (16 * i).into(),
            predicate: ragged.predicate(),
            width: ".v4",
            registers: format!("{{ {} }}", registers("first", 4 * i, 4)),
            half: false,
            staged_byte: 0,
            register: 0,
        })
        .collect()
}

/// The loads of `chunk` columns of fp32 products.
pub(super) fn product_loads(chunk: u32, ragged: Ragged) -> Vec<ProductVector> {
    (0..chunk / 4)
        .map(|i| ProductVector {
            guard: ragged.guard(),
            column: 4 * i,
            byte: (16 * i).into(),
            width: ".v4",
            predicate: ragged.predicate(),
            registers: format!("{{ {} }}", registers("first", 4 * i, 4)),
            second_registers: format!("{{ {} }}", registers("second", 4 * i, 4)),
            zeroed: (4 * i..4 * i + 4).map(|register| format!("%first{register}")).collect(),
        })
        .collect()
}

/// The same three where a lane holds a column of C and a register a row of it: an element at a time,
/// neighbours in neighbouring lanes.
pub(super) mod transposed {
    use super::{Output, ProductVector, Ragged, Vector, registers};

    pub(in super::super) fn vectors(output: &Output, chunk: u32, ragged: Ragged, span: u32) -> Vec<Vector> {
        (0..chunk)
            .map(|i| Vector {
                guard: ragged.guard(),
                column: i,
                byte: u64::from(i) * output.row_bytes,
                predicate: ragged.predicate(),
                width: "",
                registers: if i % 2 == 0 { "%low" } else { "%high" }.to_owned(),
                half: true,
                staged_byte: i * span,
                register: i / 2,
            })
            .collect()
    }

    pub(in super::super) fn product_stores(output: &Output, chunk: u32, ragged: Ragged) -> Vec<Vector> {
        (0..chunk)
            .map(|i| Vector {
                guard: ragged.guard(),
                column: i,
                byte: u64::from(i) * output.row_bytes,
                predicate: ragged.predicate(),
                width: "",
                registers: registers("first", i, 1),
                half: false,
                staged_byte: 0,
                register: 0,
            })
            .collect()
    }

    pub(in super::super) fn product_loads(output: &Output, chunk: u32, ragged: Ragged) -> Vec<ProductVector> {
        (0..chunk)
            .map(|i| ProductVector {
                guard: ragged.guard(),
                column: i,
                byte: u64::from(i) * output.row_bytes,
                width: "",
                predicate: ragged.predicate(),
                registers: registers("first", i, 1),
                second_registers: registers("second", i, 1),
                zeroed: vec![registers("first", i, 1)],
            })
            .collect()
    }
}

pub(super) fn stores(staging: Staging, policy: &'static str) -> Vec<BoxStore> {
    (0..staging.boxes)
        .map(|i| BoxStore { column: i * staging.columns, offset: i * staging.box_bytes, policy })
        .collect()
}

/// The products that go through the workspace where K is shared out.
pub(super) fn partial_products(p: &Plan, role: Role) -> Vec<PartialProduct> {
    let names: &[&str] = match (p.strategy, role) {
        (Strategy::Interleaved | Strategy::Sequential, _) => &["first", "second"],
        (_, Role::Gated) => &["second"],
        _ => &["first"],
    };
    let chunk = p.epilogue.chunk;
    let product_bytes = p.mma_columns * p.cta_rows * 4;
    (0..)
        .zip(names)
        .map(|(index, name)| PartialProduct {
            registers: registers(name, 0, chunk),
            column: index * p.tmem.second,
            vectors: (0..chunk / 4)
                .map(|i| PartialVector {
                    offset: index * product_bytes + i * 16 * p.cta_rows,
                    registers: registers(name, 4 * i, 4),
                    adds: (0..4).map(|j| PartialAdd { to: format!("%{name}{}", 4 * i + j) }).collect(),
                })
                .collect(),
        })
        .collect()
}
