//! The gate's vectors: where the epilogue finds their elements, and when it loads them.
//!
//! An element of a row is loaded once an item. Elements of columns are loaded some columns at a time: the first ones of a chunk
//! before its accumulators are, others right before the gate's splices that read them. Where threads hold accumulators in
//! their registers and chunks are unrolled, they are loaded some chunks ahead instead (`ahead.rs`).

use super::epilogue::Ragged;
use super::lanes::FragmentLayout;
use super::matrices::{Matrix, MatrixChunk};
use crate::gate::{Axis, Fragment, GateVector};
use crate::problem::Shape;
use crate::render::gate_text::{GATE_WIDTH, column_register};

/// Columns whose elements are loaded together, at least, and registers that they may take.
const GROUP: u32 = 8;
const GROUP_REGISTERS: u32 = 64;

/// Columns of a chunk of `count` whose elements of `vectors` vectors are loaded together.
fn group(count: u32, vectors: u32) -> u32 {
    let fits = |columns: &u32| columns * vectors <= GROUP_REGISTERS && count.is_multiple_of(*columns);
    [4 * GROUP, 2 * GROUP].into_iter().find(fits).unwrap_or(GROUP)
}

/// The vectors of an entry's gate.
pub(crate) struct Inputs {
    /// Names of those with an element a row.
    pub rows: Vec<String>,
    /// Names of those with an element a column.
    pub columns: Vec<String>,
    /// Those with an element for each of C.
    pub matrices: Vec<Matrix>,
    /// Chunks whose elements of columns and matrices may wait in registers; 0 if none are loaded ahead.
    pub ahead: u32,
}

impl Inputs {
    /// Where a thread holds a column of C (`transposed`), columns' elements are those of its lane; where it holds parts of
    /// some, rows' are those of its registers.
    pub(super) fn new(vectors: &[GateVector], transposed: bool, held: FragmentLayout) -> Self {
        let along = |axis| vectors.iter().filter(move |v| v.axis == axis).map(|v| v.name.clone()).collect();
        let (rows, columns) = match transposed {
            false => (along(Axis::M), along(Axis::N)),
            true if held.lanes().is_some() => (along(Axis::N), along(Axis::M)),
            true => (along(Axis::N), Vec::new()),
        };
        Inputs { rows, columns, matrices: Vec::new(), ahead: 0 }
    }
}

/// A pair of columns: what has to be loaded before its gate, which is mostly nothing, and the gate.
pub(crate) struct GateStep {
    /// Elements of matrices, for the whole chunk: before its first pair.
    pub matrices: Vec<MatrixChunk>,
    pub loads: Vec<ColumnLoads>,
    pub text: String,
}

impl GateStep {
    /// One that loads nothing.
    pub(super) fn of(text: String) -> Self {
        GateStep { matrices: Vec::new(), loads: Vec::new(), text }
    }
}

/// Loads of the same columns, one for each vector.
pub(crate) struct ColumnLoads {
    /// The first of the columns, to be compared with those that are left, where they can end.
    pub guard: Option<u32>,
    pub loads: Vec<ColumnLoad>,
}

/// Some elements of one vector.
pub(crate) struct ColumnLoad {
    pub name: String,
    /// Bytes from the item's or chunk's first column.
    pub byte: u32,
    pub predicate: &'static str,
    pub width: &'static str,
    pub registers: String,
    /// What a load that does not happen leaves zero.
    pub zeroed: Vec<String>,
}

/// The steps of a chunk that starts `base` columns behind the pointers: `texts` are the splices of
/// `fragments`, a pair of columns each.
pub(super) fn steps(
    fragments: &[&Fragment],
    texts: Vec<String>,
    base: u32,
    ragged: Ragged,
    shape: Shape,
    held: FragmentLayout,
) -> Vec<GateStep> {
    let transposed = held.lanes().is_some_and(|lanes| lanes.transposed());
    let (axis, limit) = along_columns(transposed, shape);
    let columns = names_along(fragments, axis);
    let end = texts.len() as u32 * GATE_WIDTH as u32;
    let group = group(end, columns.len() as u32);
    (0..end)
        .step_by(GATE_WIDTH)
        .zip(texts)
        .map(|(first, text)| {
            let starts = !columns.is_empty() && first.is_multiple_of(group);
            let loads = match starts {
                true => match held.lanes() {
                    // Few columns, and each in all registers' rows.
                    Some(lanes) if first == 0 => {
                        lanes.column_loads(&columns, base, ragged, limit, column_register)
                    }
                    Some(_) => Vec::new(),
                    None => column_loads(&columns, first, group.min(end - first), base, ragged, shape),
                },
                false => Vec::new(),
            };
            GateStep { matrices: Vec::new(), loads, text }
        })
        .collect()
}

/// The axis of the vectors that have an element for each of the accumulator's columns, and the number of elements. A pair of elements
/// must not cross it. It is 1 for groups of rows, which start anywhere.
pub(super) fn along_columns(transposed: bool, shape: Shape) -> (Axis, u32) {
    match transposed {
        false => (Axis::N, shape.n),
        true if shape.groups.by_rows() => (Axis::M, 1),
        true => (Axis::M, shape.m),
    }
}

/// Names of the vectors along an axis that the fragments read.
pub(super) fn names_along<'a>(fragments: &[&'a Fragment], axis: Axis) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for vector in fragments.iter().flat_map(|fragment| &fragment.vectors) {
        if vector.axis == axis && !names.contains(&vector.name.as_str()) {
            names.push(&vector.name);
        }
    }
    names
}

fn column_loads(
    names: &[&str],
    first: u32,
    count: u32,
    base: u32,
    ragged: Ragged,
    shape: Shape,
) -> Vec<ColumnLoads> {
    // Tiles start at multiples of four columns, vectors at 16 bytes; a load may not reach beyond N.
    let wide = [4, 2].into_iter().find(|w| count.is_multiple_of(*w) && shape.n.is_multiple_of(*w));
    let wide = match ragged.columns {
        true => wide.unwrap_or(1),
        false => 4.min(count),
    };
    let load = |name: &str, column: u32| {
        let registers: Vec<String> = (column..column + wide).map(|c| column_register(name, c)).collect();
        ColumnLoad {
            name: name.to_owned(),
            byte: 4 * (base + column),
            predicate: if ragged.columns { "@%in_range " } else { "" },
            width: match wide {
                4 => ".v4",
                2 => ".v2",
                _ => "",
            },
            registers: match wide {
                1 => registers.concat(),
                _ => format!("{{ {} }}", registers.join(", ")),
            },
            zeroed: if ragged.columns { registers } else { Vec::new() },
        }
    };
    (first..first + count)
        .step_by(wide as usize)
        .map(|column| ColumnLoads {
            guard: ragged.columns.then_some(base + column),
            loads: names.iter().map(|name| load(name, column)).collect(),
        })
        .collect()
}
