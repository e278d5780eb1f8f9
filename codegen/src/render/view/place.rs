//! Where in C a thread's chunk is.

use super::Role;
use super::facts::Facts;
use super::groups::GroupsView;
use super::lanes::{HeldRow, Lanes};
use crate::plan::Plan;

/// Where in C a thread's chunk is.
pub(crate) struct PlaceView {
    /// Columns that are finished together.
    pub chunk: u32,
    /// Loads of accumulators by which threads share lanes.
    pub lanes: Option<Lanes>,
    /// Rows that a thread has parts of, and the registers of the first one, from the CTA's, and of its first column.
    pub rows: Vec<HeldRow>,
    pub thread_row: &'static str,
    pub thread_column: &'static str,
    pub needs_rows: bool,
    pub needs_columns: bool,
    /// Sizes of C along the accumulator's rows and columns.
    pub row_limit: String,
    pub column_limit: String,
    /// The register of the first row of C that a thread writes, among those of its matrix or group.
    pub first_row: &'static str,
    /// Whether its place among all rows of C is needed; where vectors along the accumulator's rows are read; whether
    /// those along N are read in one of several matrices.
    pub needs_c_row: bool,
    pub vector_row: &'static str,
    pub vector_columns: bool,
    /// The registers of the first row and column of C that a thread writes.
    pub c_row: &'static str,
    /// Where the gate's columns start in its vectors.
    pub vector_start: &'static str,
    /// Dimensions of C's tensor map, and its coordinates but the innermost; with groups of rows, the first row of a box.
    pub c_rank: u32,
    pub c_box_row: &'static str,
    pub c_box_column: &'static str,
    pub c_column: &'static str,
}

impl PlaceView {
    /// Bytes of a chunk's elements of a vector.
    pub fn vector_bytes(&self) -> u32 {
        4 * self.chunk
    }

    /// A thread's elements of a vector in some chunks.
    pub fn ahead_elements(&self, chunks: &u32) -> u32 {
        chunks * self.lanes.map_or(self.chunk, |lanes| lanes.columns().len() as u32)
    }

    pub fn new(p: &Plan, facts: &Facts) -> Self {
        let Facts {
            role,
            raw,
            chunk,
            held,
            lanes,
            transposed,
            ragged,
            reads_product,
            staging,
            scales,
            several,
            row_inputs,
            column_inputs,
            matrix_inputs,
            ..
        } = *facts;
        let shape = p.problem.shape;
        let by_rows = shape.groups.by_rows();
        // Elements at the thread's own place in C are stored or read beside C.
        let keeps = facts.keeps(p) || matrix_inputs;
        let pads = facts.scale_pads(p);
        let m_limit = if by_rows { "%group_rows".to_owned() } else { shape.m.to_string() };
        // In C, in one of several matrices, or among all rows of all groups.
        let box_place = |alone, in_matrix| match (by_rows, several) {
            (true, _) => "%c_first",
            (false, true) => in_matrix,
            (false, false) => alone,
        };
        PlaceView {
            chunk,
            lanes,
            rows: held.rows(),
            thread_row: if lanes.is_some() { "%thread_row" } else { "%thread" },
            thread_column: if lanes.is_some() { "%thread_column" } else { "%column0" },
            needs_rows: staging.is_none() || reads_product || row_inputs || keeps || scales.is_some(),
            needs_columns: (ragged.columns
                && (staging.is_none()
                    || reads_product
                    || column_inputs
                    || keeps
                    || scales.is_some() && !transposed))
                || !pads.is_empty(),
            row_limit: match (p.swap_ab, raw) {
                (false, _) => m_limit.clone(),
                (true, false) => shape.n.to_string(),
                // The gate's kernel reads whole vectors.
                (true, true) => shape.n.next_multiple_of(4).to_string(),
            },
            column_limit: match p.swap_ab {
                true => m_limit,
                // Whole vectors, again, though no thread has all of one.
                false if raw && lanes.is_some() => shape.n.next_multiple_of(4).to_string(),
                false => shape.n.to_string(),
            },
            first_row: match p.swap_ab {
                true if lanes.is_some() => "%thread_column",
                true => "%column0",
                false => "%row",
            },
            needs_c_row: several
                && (staging.is_none()
                    || reads_product
                    || keeps
                    || if transposed { column_inputs } else { row_inputs }),
            vector_row: match (several, transposed) {
                _ if role == Role::Gate => "%row",
                (false, _) => "%row",
                (true, false) => "%c_row",
                (true, true) => "%vector_column",
            },
            vector_columns: several && if transposed { row_inputs } else { column_inputs },
            c_row: match (several, p.swap_ab) {
                (true, _) => "%c_row",
                (false, true) if lanes.is_some() => "%thread_column",
                (false, true) => "%column0",
                (false, false) => "%row",
            },
            vector_start: match (several, role) {
                (true, _) if transposed => "%c_row",
                (true, _) => "%vector_column",
                (false, Role::Gate) => "%column",
                (false, _) if lanes.is_some() => "%thread_column",
                (false, _) => "%column0",
            },
            c_rank: GroupsView::rank((several && !by_rows).then_some(shape.groups.count())),
            c_box_row: box_place("%row0", "%row0, %group"),
            c_box_column: box_place("%column0", "%column0, %group"),
            c_column: match p.swap_ab {
                true => "%row",
                false if lanes.is_some() => "%thread_column",
                false => "%column0",
            },
        }
    }
}
