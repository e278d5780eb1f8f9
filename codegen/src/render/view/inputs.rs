//! The gate's vectors: where the epilogue finds their elements, and when it loads them.
//!
//! An element of a row is loaded once an item. Those of columns are loaded some columns at a time, right before
//! the gate's splices that read them, so that they do not all occupy registers at once.

use super::epilogue::Ragged;
use super::lanes::FragmentLayout;
use super::matrices::{Matrix, MatrixChunk};
use crate::gate::{Axis, Fragment, GateVector};
use crate::problem::Shape;
use crate::render::gate_text::{GATE_WIDTH, column_register};

/// Columns whose elements are loaded together.
const GROUP: u32 = 8;

/// The vectors of an entry's gate.
pub(crate) struct Inputs {
    /// Names of those with an element a row.
    pub rows: Vec<String>,
    /// Names of those with an element a column.
    pub columns: Vec<String>,
    /// Those with an element for each of C.
    pub matrices: Vec<Matrix>,
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
        Inputs { rows, columns, matrices: Vec::new() }
    }
}

/// A pair of columns: what has to be loaded before its gate, which is mostly nothing, and the gate.
pub(crate) struct GateStep {
    /// Elements of matrices, for the whole chunk: before its first pair.
    pub matrices: Vec<MatrixChunk>,
    pub loads: Vec<ColumnLoads>,
    pub text: String,
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
    let mut columns: Vec<&str> = Vec::new();
    let transposed = held.lanes().is_some_and(|lanes| lanes.transposed());
    // The elements along a column of the accumulators, and what pairs of them do not reach beyond: groups of rows start anywhere.
    let (axis, limit) = match transposed {
        false => (Axis::N, shape.n),
        true if shape.groups.by_rows() => (Axis::M, 1),
        true => (Axis::M, shape.m),
    };
    for vector in fragments.iter().flat_map(|fragment| &fragment.vectors) {
        if vector.axis == axis && !columns.contains(&vector.name.as_str()) {
            columns.push(&vector.name);
        }
    }
    let end = texts.len() as u32 * GATE_WIDTH as u32;
    (0..end)
        .step_by(GATE_WIDTH)
        .zip(texts)
        .map(|(first, text)| {
            let starts = !columns.is_empty() && first.is_multiple_of(GROUP);
            let loads = match starts {
                true => match held.lanes() {
                    // Few columns, and each in all registers' rows.
                    Some(lanes) if first == 0 => lanes.column_loads(&columns, base, ragged, limit),
                    Some(_) => Vec::new(),
                    None => column_loads(&columns, first, GROUP.min(end - first), base, ragged, shape),
                },
                false => Vec::new(),
            };
            GateStep { matrices: Vec::new(), loads, text }
        })
        .collect()
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
