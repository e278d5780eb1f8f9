//! Elements of the gate's columns and matrices that are loaded some chunks before the gate that reads them.
//!
//! A load takes as long as the gates of many chunks. Where chunks are unrolled and a thread has registers free, elements of several
//! chunks are under way at once. A chunk's elements wait in a slot of registers. The slot then takes a later chunk's elements.

use super::epilogue::Ragged;
use super::inputs::{ColumnLoads, along_columns, names_along};
use super::lanes::Lanes;
use super::matrices::{Matrices, MatrixChunk};
use crate::gate::Fragment;
use crate::problem::Shape;
use crate::render::gate_text::{ahead_register, column_register};

/// A chunk of an epilogue: its moves out of a slot, and its loads for later chunks.
pub(crate) struct AheadChunk {
    /// Before the first chunk: loads for all slots.
    pub first: Vec<ChunkLoads>,
    /// Elements of columns: the register that the gate reads, and the register of the slot.
    pub moves: Vec<(String, String)>,
    /// Elements of matrices, from the slot to fp32 registers.
    pub matrices: Vec<MatrixChunk>,
    /// Loads of the next chunk that takes this slot.
    pub later: Option<ChunkLoads>,
}

/// All loads of a chunk.
pub(crate) struct ChunkLoads {
    pub columns: Vec<ColumnLoads>,
    pub matrices: Vec<MatrixChunk>,
}

/// An epilogue whose elements are loaded ahead.
pub(super) struct Ahead<'a> {
    pub lanes: Lanes,
    pub matrices: &'a Matrices,
    /// The parts of the gate that read the elements.
    pub fragments: &'a [&'a Fragment],
    pub ragged: Ragged,
    pub shape: Shape,
    /// Columns of a chunk, and chunks.
    pub chunk: u32,
    pub chunks: u32,
    /// Registers of a thread that elements may wait in.
    pub free: u32,
}

impl Ahead<'_> {
    /// The number of slots; 0 if too few registers are free, nothing is loaded, or there is one chunk only.
    pub fn slots(&self) -> u32 {
        if self.chunks < 2 {
            return 0;
        }
        let columns = self.names().len() as u32 * self.elements();
        let registers = columns + self.matrices.waiting(self.fragments);
        self.free.checked_div(registers).unwrap_or(0).min(self.chunks)
    }

    /// Each chunk of the epilogue; none without slots.
    pub fn all(&self) -> Vec<AheadChunk> {
        let slots = self.slots();
        (0..if slots > 0 { self.chunks } else { 0 }).map(|chunk| self.chunk(chunk, slots)).collect()
    }

    fn chunk(&self, chunk: u32, slots: u32) -> AheadChunk {
        let slot = chunk % slots;
        AheadChunk {
            first: if chunk == 0 {
                (0..slots).map(|slot| self.loads(slot, slot)).collect()
            } else {
                Vec::new()
            },
            moves: self
                .names()
                .iter()
                .flat_map(|name| {
                    (0..self.elements()).map(move |i| {
                        (column_register(name, i), ahead_register(name, slot * self.elements() + i))
                    })
                })
                .collect(),
            matrices: self.matrices.waiting_chunk(self.fragments, 0, slot),
            later: (chunk + slots < self.chunks).then(|| self.loads(slots, slot)),
        }
    }

    /// The loads of the chunk that is `distance` chunks ahead.
    fn loads(&self, distance: u32, slot: u32) -> ChunkLoads {
        let base = distance * self.chunk;
        let (_, limit) = along_columns(self.lanes.transposed(), self.shape);
        let waits = |name: &str, index| ahead_register(name, slot * self.elements() + index);
        ChunkLoads {
            columns: match &self.names()[..] {
                [] => Vec::new(),
                names => self.lanes.column_loads(names, base, self.ragged, limit, waits),
            },
            matrices: self.matrices.waiting_chunk(self.fragments, base, slot),
        }
    }

    /// Names of the vectors with an element a column.
    fn names(&self) -> Vec<&str> {
        names_along(self.fragments, along_columns(self.lanes.transposed(), self.shape).0)
    }

    /// A thread's elements of one in a chunk.
    fn elements(&self) -> u32 {
        self.lanes.columns().len() as u32
    }
}
