//! The walk over one box of a tensor map: which global bytes go to which shared bytes.

use super::{DataType, OobFill, TensorMapParams};
use thiserror::Error;

/// One step of a box copy. Chunks come in order of their linear place in the box; they do not
/// overlap, and a chunk never crosses an atom of the swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// `length` contiguous bytes, the same in global and shared memory.
    Copy {
        /// Global address.
        global: u64,
        /// Shared address, swizzled.
        shared: u32,
        /// Bytes.
        length: u32,
    },
    /// Outside the tensor: shared byte i of the chunk becomes `pattern[i % 8]`. Loads only.
    Fill {
        /// Shared address, swizzled.
        shared: u32,
        /// Bytes.
        length: u32,
        /// Bytes to fill with.
        pattern: [u8; 8],
    },
}

/// Why a box cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BoxError<E> {
    /// The instruction's dimension is not the tensor map's.
    #[error("{found} coordinates for a tensor map of rank {rank}")]
    Rank {
        /// Coordinates given.
        found: usize,
        /// Rank of the map.
        rank: usize,
    },
    /// A gather or scatter whose box is not one row.
    #[error(
        "the box has {rows} rows: .tile::gather4 and .tile::scatter4 take tensor maps with boxes of one row"
    )]
    GatherBox {
        /// Rows of the box.
        rows: u32,
    },
    /// The shared address is not aligned.
    #[error("shared address {address:#x} of a TMA box must be a multiple of 128 bytes")]
    SharedAlignment {
        /// The address.
        address: u32,
    },
    /// The inner coordinate is not on the grid of its type: 16 bytes, or that of a packed type.
    #[error("coordinate 0 is {coordinate}: it must be a multiple of {multiple} for {data_type:?}")]
    PackedCoordinate {
        /// The coordinate.
        coordinate: i32,
        /// The required divisor.
        multiple: i32,
        /// The element type.
        data_type: DataType,
    },
    /// A store from before the tensor's start.
    #[error(
        "coordinate {dimension} of a TMA store is {coordinate}: stores may not start at a negative coordinate"
    )]
    NegativeStore {
        /// Which.
        dimension: usize,
        /// The coordinate.
        coordinate: i32,
    },
    /// A store of a type that only loads have.
    #[error("{data_type:?} can be loaded but not stored")]
    LoadOnly {
        /// The element type.
        data_type: DataType,
    },
    /// The caller's sink refused a chunk.
    #[error("{0}")]
    Memory(E),
}

impl TensorMapParams {
    /// Walks the box at `coordinates` (elements, dimension 0 first) of a load to `shared`.
    ///
    /// The map must have passed [`TensorMapParams::validate`], as one from
    /// [`TensorMapParams::decode`] has. Padding of the padded types is left alone.
    ///
    /// # Errors
    /// [`BoxError`]; nothing was handed out unless it is [`BoxError::Memory`].
    pub fn load_box<E>(
        &self,
        coordinates: &[i32],
        shared: u32,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), BoxError<E>> {
        self.check_box(coordinates, shared)?;
        self.walk_all(coordinates, shared, true, sink)
    }

    /// Walks the box at `coordinates` of a store (or reduction) from `shared`: only
    /// [`Chunk::Copy`], and only what lies inside the tensor.
    ///
    /// # Errors
    /// [`BoxError`]; nothing was handed out unless it is [`BoxError::Memory`].
    pub fn store_box<E>(
        &self,
        coordinates: &[i32],
        shared: u32,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), BoxError<E>> {
        self.check_box(coordinates, shared)?;
        if self.data_type.is_padded() {
            return Err(BoxError::LoadOnly { data_type: self.data_type });
        }
        // Rows of a scatter outside the tensor are left out.
        let checked = if self.gathers(coordinates) { &coordinates[..1] } else { coordinates };
        let negative = checked.iter().enumerate().find(|&(_, &c)| c < 0);
        if let Some((dimension, &coordinate)) = negative {
            return Err(BoxError::NegativeStore { dimension, coordinate });
        }
        self.walk_all(coordinates, shared, false, sink)
    }

    /// The rows of `.tile::gather4` and `.tile::scatter4`: five coordinates for a map of rank 2, a
    /// column and four rows. Each row of the box lies after the other in shared memory.
    pub fn gathers(&self, coordinates: &[i32]) -> bool {
        self.rank() == 2 && coordinates.len() == 5
    }

    fn walk_all<E>(
        &self,
        coordinates: &[i32],
        shared: u32,
        fill: bool,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), BoxError<E>> {
        if !self.gathers(coordinates) {
            return self.walk(coordinates, shared, fill, sink);
        }
        let bytes = self.shared_row_bytes();
        for (&row, line) in coordinates[1..].iter().zip(0..) {
            self.walk(&[coordinates[0], row], shared.wrapping_add(line * bytes), fill, sink)?;
        }
        Ok(())
    }

    pub(super) fn check_box<E>(&self, coordinates: &[i32], shared: u32) -> Result<(), BoxError<E>> {
        if !shared.is_multiple_of(128) {
            return Err(BoxError::SharedAlignment { address: shared });
        }
        self.check_coordinates(coordinates)
    }

    /// Checks the coordinates of any copy, prefetches included.
    ///
    /// # Errors
    /// [`BoxError`]: their number, or an inner one off the grid.
    pub fn check_coordinates<E>(&self, coordinates: &[i32]) -> Result<(), BoxError<E>> {
        if self.gathers(coordinates) {
            if self.box_dims[1] != 1 {
                return Err(BoxError::GatherBox { rows: self.box_dims[1] });
            }
        } else if coordinates.len() != self.rank() {
            return Err(BoxError::Rank { found: coordinates.len(), rank: self.rank() });
        }
        let multiple = match self.data_type {
            DataType::U4x16Align8B => 2,
            DataType::U4x16Align16B | DataType::U6x16Align16B => 128,
            // 16 bytes: an H200 calls anything else an illegal instruction, in every type and mode that is not interleaved
            // (tests/corpus/hardware/tma_grid.txt), and so does Triton's manual of Gluon.
            other => 128 / other.bits() as i32,
        };
        let (coordinate, data_type) = (coordinates[0], self.data_type);
        if coordinate % multiple != 0 {
            return Err(BoxError::PackedCoordinate { coordinate, multiple, data_type });
        }
        Ok(())
    }

    pub(super) fn walk<E>(
        &self,
        coordinates: &[i32],
        shared: u32,
        fill: bool,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), BoxError<E>> {
        let bits = i64::from(self.data_type.bits());
        let row_bytes = self.shared_row_bytes();
        // The part of a row inside the tensor, as elements from the box's edge.
        let start = i64::from(coordinates[0]);
        let inner = i64::from(self.box_dims[0]);
        let first = (-start).clamp(0, inner);
        let last = (self.global_dims[0] as i64 - start).clamp(first, inner);
        let bytes = |elements: i64| (elements * bits / 8) as u32;
        let row = Row {
            map: self,
            pattern: if fill { Some(self.fill_pattern()) } else { None },
            first: bytes(first),
            last: bytes(last),
            length: bytes(inner),
        };
        let mut index = [0u32; 5];
        for line in 0..self.rows() {
            let mut inside = true;
            // Address of the row's first element; only read where the row is inside.
            let mut global = (self.global_address as i64).wrapping_add(start * bits / 8);
            for d in 1..self.rank() {
                let at = i64::from(coordinates[d]) + i64::from(index[d] * self.element_strides[d]);
                inside &= (0..self.global_dims[d] as i64).contains(&at);
                global = global.wrapping_add(at.wrapping_mul(self.global_strides[d - 1] as i64));
            }
            row.walk(global as u64, inside, shared.wrapping_add(line * row_bytes), sink)
                .map_err(BoxError::Memory)?;
            for (d, at) in index.iter_mut().enumerate().take(self.rank()).skip(1) {
                *at += 1;
                if *at < self.taken(d) {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }

    /// Eight bytes that repeat over filled elements.
    fn fill_pattern(&self) -> [u8; 8] {
        if self.oob_fill == OobFill::Zeros {
            return [0; 8];
        }
        // 0x7ff7 whatever the type, as an H200 does it: a NaN of all of them that no arithmetic makes.
        [0xf7, 0x7f, 0xf7, 0x7f, 0xf7, 0x7f, 0xf7, 0x7f]
    }
}

/// Values shared by all rows of a box. Positions are payload bytes from the row's start.
struct Row<'a> {
    map: &'a TensorMapParams,
    pattern: Option<[u8; 8]>,
    first: u32,
    last: u32,
    length: u32,
}

impl Row<'_> {
    fn walk<E>(
        &self,
        global: u64,
        inside: bool,
        shared: u32,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), E> {
        if !inside {
            return self.fill(0, self.length, shared, sink);
        }
        self.fill(0, self.first, shared, sink)?;
        self.pieces(self.first, self.last, shared, &mut |at, shared, length| {
            sink(Chunk::Copy { global: global.wrapping_add(u64::from(at)), shared, length })
        })?;
        self.fill(self.last, self.length, shared, sink)
    }

    fn fill<E>(
        &self,
        from: u32,
        to: u32,
        shared: u32,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.pattern {
            None => Ok(()),
            Some(pattern) => self.pieces(from, to, shared, &mut |_, shared, length| {
                sink(Chunk::Fill { shared, length, pattern })
            }),
        }
    }

    /// Cuts payload bytes `[from, to)` of a row at `shared` where the swizzle or padding moves
    /// them apart, and gives (payload position, shared address, length).
    fn pieces<E>(
        &self,
        from: u32,
        to: u32,
        shared: u32,
        piece: &mut dyn FnMut(u32, u32, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        // Payload bytes of one 16-byte group in shared memory.
        let group = match self.map.data_type {
            DataType::U4x16Align16B => 8,
            DataType::U6x16Align16B => 12,
            _ => 16,
        };
        let swizzle = self.map.swizzle;
        let mut at = from;
        while at < to {
            let (linear, room) = if group == 16 {
                let linear = shared.wrapping_add(at);
                // The row starts on a 16-byte boundary, so that atoms are those of addresses.
                let room = swizzle.atom().map_or(u32::MAX, |atom| atom - linear % atom);
                (linear, room)
            } else {
                let linear = shared.wrapping_add(at / group * 16 + at % group);
                (linear, group - at % group)
            };
            let length = room.min(to - at);
            piece(at, swizzle.apply(linear), length)?;
            at += length;
        }
        Ok(())
    }
}
