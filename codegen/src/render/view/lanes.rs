//! What of the accumulators a thread's registers hold.
//!
//! A warp has 32 lanes of TMEM. By `.32x32b` a thread has one of them, a row of the tile; by the other shapes a load
//! brings 16 lanes, several threads share a lane, and each has parts of several (PTX ISA, "Data Movement Shape").

use super::epilogue::{Packing, ProductVector, Ragged, Vector, operand, registers, vector_registers, width};
use super::inputs::{ColumnLoad, ColumnLoads};
use crate::config::TmemShape;
use crate::plan::Output;
use std::borrow::Borrow;

/// Predicates that say of a thread's rows whether they are in C, and what guards an instruction with them.
const ROWS: [&str; 4] = ["%row_in_range0", "%row_in_range1", "%row_in_range2", "%row_in_range3"];
const PREDICATES: [&str; 4] =
    ["@%row_in_range0 ", "@%row_in_range1 ", "@%row_in_range2 ", "@%row_in_range3 "];

/// What a thread's registers of a chunk are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FragmentLayout {
    /// Columns of a row of C.
    Row,
    /// Rows of a column of C: operands are swapped.
    Column,
    /// Parts of several rows of C.
    Lanes(Lanes),
}

/// Registers of a chunk that two loads of 16 lanes bring, the second behind the first. Registers that the gate takes
/// as a pair, an even one and the next, are in one row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lanes {
    pub shape: &'static str,
    /// The bits of a thread's number in its warp that say where its columns start: the lowest one, and how many.
    pub column_shift: u32,
    pub column_bits: u32,
    /// Columns between the starts of one thread and the next.
    pub column_step: u32,
    /// Whether odd threads are eight lanes below even ones.
    pub odd_below: bool,
    /// `.xN` of a load.
    pub repeat: u32,
    /// Registers of a load, and loads of a chunk.
    pub half: u32,
    loads: u32,
    /// Whether a thread has one row of each load instead of two, 8 apart.
    one_row: bool,
    /// Whether rows of the accumulators are columns of C.
    transposed: bool,
    kind: TmemShape,
}

/// A row of those that a thread has parts of.
pub(crate) struct HeldRow {
    /// Rows from the thread's first.
    pub offset: u32,
    /// The predicate that says whether it is in C.
    pub in_range: &'static str,
    /// What the names of its elements of vectors end in.
    pub suffix: &'static str,
}

impl FragmentLayout {
    pub fn new(shape: TmemShape, chunk: u32, transposed: bool) -> FragmentLayout {
        let lanes = |column_shift, column_bits, column_step, repeat| {
            FragmentLayout::Lanes(Lanes {
                shape: shape.name(),
                column_shift,
                column_bits,
                column_step,
                odd_below: shape == TmemShape::S16x64b,
                repeat,
                half: chunk / 2,
                loads: 2,
                one_row: false,
                transposed: false,
                kind: shape,
            })
        };
        match shape {
            _ if transposed => FragmentLayout::Column,
            TmemShape::S32x32b => FragmentLayout::Row,
            TmemShape::S16x256b => lanes(0, 2, 2, chunk / 8),
            TmemShape::S16x128b => lanes(0, 2, 1, chunk / 4),
            TmemShape::S16x64b => lanes(1, 1, 1, chunk / 2),
        }
    }

    /// A chunk of the accumulators of a warpgroup's MMA, which has half as many registers as columns: they lie as a
    /// load of 16 lanes by `.16x256b` brings them (PTX ISA 9.7.15.5.2.1, "Register Fragments"). Where an MMA's rows are of
    /// both products, each thread has one row of a product, and half as many registers of it.
    pub fn warpgroup(chunk: u32, transposed: bool, both: bool) -> FragmentLayout {
        FragmentLayout::Lanes(Lanes {
            shape: "",
            column_shift: 0,
            column_bits: 2,
            column_step: 2,
            odd_below: false,
            repeat: 0,
            half: chunk / if both { 4 } else { 2 },
            loads: 1,
            one_row: both,
            transposed,
            kind: TmemShape::S16x256b,
        })
    }

    pub fn lanes(self) -> Option<Lanes> {
        match self {
            FragmentLayout::Lanes(lanes) => Some(lanes),
            FragmentLayout::Row | FragmentLayout::Column => None,
        }
    }

    /// The rows that a thread has parts of.
    pub fn rows(self) -> Vec<HeldRow> {
        let FragmentLayout::Lanes(lanes) = self else {
            return vec![HeldRow { offset: 0, in_range: "%row_in_range", suffix: "" }];
        };
        let rows = lanes.rows().iter().zip(ROWS).zip(["_0", "_1", "_2", "_3"]);
        rows.map(|((offset, in_range), suffix)| HeldRow { offset: *offset, in_range, suffix }).collect()
    }
}

impl HeldRow {
    /// Bytes from the first row's element of a vector to this one's.
    pub fn vector_byte(&self) -> u32 {
        4 * self.offset
    }
}

impl Lanes {
    /// Rows from the thread's first.
    fn rows(self) -> &'static [u32] {
        match self.kind {
            _ if self.one_row => &[0],
            TmemShape::S16x64b => &[0, 16],
            _ if self.loads == 1 => &[0, 8],
            TmemShape::S32x32b | TmemShape::S16x256b | TmemShape::S16x128b => &[0, 8, 16, 24],
        }
    }

    /// The `NAME*` registers of a load, in the instruction's order.
    pub fn registers(self, name: &str, load: u32) -> String {
        let names: Vec<String> = (0..self.half)
            .map(|r| match self.kind {
                // By turns one of each row: rows after each other make pairs.
                TmemShape::S16x128b => r % 2 * (self.half / 2) + r / 2,
                TmemShape::S32x32b | TmemShape::S16x256b | TmemShape::S16x64b => r,
            })
            .map(|r| format!("{name}{}", load * self.half + r))
            .collect();
        names.join(", ")
    }

    /// The address of a column of the lower 16 lanes: lanes are in its upper half.
    pub fn lower_half(self, column: impl Borrow<u32>) -> u32 {
        column.borrow() + 16 * 65536
    }

    /// Whether rows of the accumulators are columns of C.
    pub fn transposed(self) -> bool {
        self.transposed
    }

    /// Which of its rows a register is in.
    pub fn row(self, register: u32) -> usize {
        let (load, r) = (register / self.half, register % self.half);
        let row = match self.kind {
            _ if self.one_row => 0,
            TmemShape::S16x256b => 2 * load + r / 2 % 2,
            TmemShape::S16x128b => 2 * load + r / (self.half / 2),
            TmemShape::S32x32b | TmemShape::S16x64b => load,
        };
        row as usize
    }

    /// Its column, from the thread's first.
    fn column(self, register: u32) -> u32 {
        let r = register % self.half;
        match self.kind {
            _ if self.one_row => 8 * (r / 2) + r % 2,
            TmemShape::S16x256b => 8 * (r / 4) + r % 2,
            TmemShape::S16x128b => 4 * (r % (self.half / 2)),
            TmemShape::S32x32b | TmemShape::S16x64b => 2 * r,
        }
    }

    /// Registers side by side in a row.
    fn neighbours(self) -> u32 {
        if self.kind == TmemShape::S16x256b { 2 } else { 1 }
    }

    /// The columns that a thread has parts of.
    pub fn columns(self) -> Vec<u32> {
        let mut columns: Vec<u32> = (0..self.half).map(|register| self.column(register)).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// Where a register's column is among those.
    pub fn column_index(self, register: u32) -> u32 {
        let column = self.column(register);
        self.columns().iter().take_while(|other| **other < column).count() as u32
    }

    /// The stores of a chunk.
    pub(super) fn vectors(self, packing: Packing, output: &Output, ragged: Ragged) -> Vec<Vector> {
        // Neighbours are rows of C where the operands are swapped.
        let vector = if self.transposed { 1 } else { output.vector.min(self.neighbours()) };
        let bytes = |column: u32| u64::from(column * output.element_bits / 8);
        self.starts(vector)
            .map(|register| {
                let (width, registers, part) = operand(packing, register, vector);
                let (row, column) = (self.row(register), self.column(register));
                Vector {
                    guard: ragged.guard(),
                    row: ROWS[row],
                    column,
                    byte: match self.transposed {
                        false => u64::from(self.rows()[row]) * output.row_bytes + bytes(column),
                        true => u64::from(column) * output.row_bytes + bytes(self.rows()[row]),
                    },
                    predicate: self.predicate(row, ragged),
                    width,
                    registers,
                    part,
                    staged_byte: 0,
                }
            })
            .collect()
    }

    /// The loads of a chunk of fp32 products.
    pub(super) fn product_loads(self, output: &Output, ragged: Ragged) -> Vec<ProductVector> {
        let vector = if self.transposed { 1 } else { self.neighbours() };
        self.starts(vector)
            .map(|register| {
                let (row, column) = (self.row(register), self.column(register));
                ProductVector {
                    guard: ragged.guard(),
                    row: ROWS[row],
                    column,
                    byte: match self.transposed {
                        false => u64::from(self.rows()[row]) * output.row_bytes + u64::from(4 * column),
                        true => u64::from(column) * output.row_bytes + u64::from(4 * self.rows()[row]),
                    },
                    width: width(vector),
                    predicate: self.predicate(row, ragged),
                    registers: vector_registers("first", register, vector),
                    second_registers: vector_registers("second", register, vector),
                    zeroed: (register..register + vector).map(|i| registers("first", i, 1)).collect(),
                    second_zeroed: Vec::new(),
                }
            })
            .collect()
    }

    /// The elements of columns of vectors for a chunk. None reaches beyond their number, `n`. `register` names the
    /// register of a vector's i-th element.
    pub(super) fn column_loads(
        self,
        names: &[&str],
        base: u32,
        ragged: Ragged,
        n: u32,
        register: impl Fn(&str, u32) -> String,
    ) -> Vec<ColumnLoads> {
        let wide = if ragged.columns && !n.is_multiple_of(2) { 1 } else { self.neighbours() };
        let columns = self.columns();
        let load = |name: &str, index: u32, column: u32| {
            let registers: Vec<String> = (index..index + wide).map(|i| register(name, i)).collect();
            ColumnLoad {
                name: name.to_owned(),
                byte: 4 * (base + column),
                predicate: if ragged.columns { "@%in_range " } else { "" },
                width: width(wide),
                registers: match wide {
                    1 => registers.concat(),
                    _ => format!("{{ {} }}", registers.join(", ")),
                },
                zeroed: if ragged.columns { registers } else { Vec::new() },
            }
        };
        (0..)
            .zip(columns)
            .step_by(wide as usize)
            .map(|(index, column)| ColumnLoads {
                guard: ragged.columns.then_some(base + column),
                loads: names.iter().map(|name| load(name, index, column)).collect(),
            })
            .collect()
    }

    /// The first registers of groups of so many.
    fn starts(self, vector: u32) -> impl Iterator<Item = u32> {
        (0..self.loads * self.half).step_by(vector as usize)
    }

    fn predicate(self, row: usize, ragged: Ragged) -> &'static str {
        match ragged {
            Ragged { columns: true, .. } => "@%in_range ",
            Ragged { rows: true, .. } => PREDICATES[row],
            Ragged { .. } => "",
        }
    }
}
