//! Tensor maps of im2col mode: columns of pixels for convolutions.
//!
//! A tensor is C, W, H, D, N, the first dimension innermost, with as many of W, H and D as its rank has. A
//! copy takes `channels` elements of each of `pixels` pixels, starting at its coordinates and going
//! along W, H, D and N within a box: a position goes from `lower` to the dimension's last plus `upper`, and the
//! offsets of the instruction are added to it when memory is accessed. Pixels outside of the tensor are
//! filled. Sources: PTX ISA, "Im2col mode"; CUDA driver API, `cuTensorMapEncodeIm2col`.
//!
//! In the 128 bytes corners take the place of box dimensions: bytes 106..112 the lower, 112..118 the upper
//! ones, 120..122 the pixels, and byte 122 is 1.

use super::boxes::{BoxError, Chunk};
use super::encoding::{ForeignTensorMap, seal};
use super::{TensorMapError, TensorMapParams};
use thiserror::Error;

/// Byte that tells the two modes apart.
pub(super) const FLAG: usize = 122;

/// The arguments of `cuTensorMapEncodeIm2col`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Im2colParams {
    /// The tensor, of rank 3 to 5. Only the first dimension of its box counts: the channels of a pixel.
    /// Its element strides are the traversal strides.
    pub tensor: TensorMapParams,
    /// `pixelBoxLowerCorner`: W, H, D.
    pub lower: Vec<i32>,
    /// `pixelBoxUpperCorner`.
    pub upper: Vec<i32>,
    /// `pixelsPerColumn`, from 1 to 1024.
    pub pixels: u32,
}

/// A rule of `cuTensorMapEncodeIm2col` that the arguments break.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Im2colError {
    /// A requirement of both modes is not met.
    #[error(transparent)]
    Tensor(#[from] TensorMapError),
    /// Rank outside 3..=5.
    #[error("tensorRank is {rank}: im2col takes 3 to 5 dimensions")]
    Rank {
        /// The rank.
        rank: usize,
    },
    /// A corner with the wrong number of coordinates, or one outside its range.
    #[error("{field} is {found:?}: for rank {rank} it is {expected} numbers from {low} to {high}")]
    Corner {
        /// Which.
        field: &'static str,
        /// The corner.
        found: Vec<i32>,
        /// The rank.
        rank: usize,
        /// Coordinates.
        expected: usize,
        /// The least.
        low: i32,
        /// The largest.
        high: i32,
    },
    /// Pixels outside 1..=1024.
    #[error("pixelsPerColumn is {pixels}: it must be from 1 to 1024")]
    Pixels {
        /// The number.
        pixels: u32,
    },
}

impl Im2colParams {
    /// The tensor with a box of one pixel.
    fn one_pixel(&self) -> TensorMapParams {
        let mut tensor = self.tensor.clone();
        tensor.box_dims.iter_mut().skip(1).for_each(|d| *d = 1);
        tensor
    }

    /// Checks the rules of the driver.
    ///
    /// # Errors
    /// [`Im2colError`].
    pub fn validate(&self) -> Result<(), Im2colError> {
        let rank = self.tensor.rank();
        if !(3..=5).contains(&rank) {
            return Err(Im2colError::Rank { rank });
        }
        self.one_pixel().validate()?;
        let high = [1 << 15, 1 << 7, 1 << 4][rank - 3] - 1;
        let (low, expected) = (-high - 1, rank - 2);
        for (field, corner) in [("pixelBoxLowerCorner", &self.lower), ("pixelBoxUpperCorner", &self.upper)] {
            if corner.len() != expected || corner.iter().any(|c| !(low..=high).contains(c)) {
                let found = corner.clone();
                return Err(Im2colError::Corner { field, found, rank, expected, low, high });
            }
        }
        if !(1..=1024).contains(&self.pixels) {
            return Err(Im2colError::Pixels { pixels: self.pixels });
        }
        Ok(())
    }

    /// Packs the map into the 128 bytes that [`Im2colParams::decode`] reads.
    ///
    /// # Errors
    /// As [`Im2colParams::validate`].
    pub fn encode(&self) -> Result<[u8; 128], Im2colError> {
        self.validate()?;
        let mut out = self.one_pixel().encode()?;
        out[106..118].fill(0);
        for (start, corner) in [(106, &self.lower), (112, &self.upper)] {
            for (half, &c) in out[start..start + 6].chunks_exact_mut(2).zip(corner) {
                half.copy_from_slice(&(c as i16).to_le_bytes());
            }
        }
        out[120..122].copy_from_slice(&(self.pixels as u16).to_le_bytes());
        out[FLAG] = 1;
        seal(&mut out);
        Ok(out)
    }

    /// Unpacks a map of this mode; `None` for a tiled one.
    ///
    /// # Errors
    /// [`ForeignTensorMap`] for other bytes.
    pub fn decode(bytes: &[u8; 128]) -> Result<Option<Self>, ForeignTensorMap> {
        let tensor = TensorMapParams::decode(bytes)?;
        if bytes[FLAG] == 0 {
            return Ok(None);
        }
        let half = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let corner =
            |start: usize| (0..tensor.rank().saturating_sub(2)).map(|i| half(start + 2 * i).into()).collect();
        let (lower, upper, pixels) = (corner(106), corner(112), half(120) as u16);
        let map = Self { tensor, lower, upper, pixels: pixels.into() };
        match map.validate() {
            Ok(()) => Ok(Some(map)),
            Err(_) => Err(ForeignTensorMap::Field { field: "the bounding box", value: bytes[FLAG] }),
        }
    }

    /// Bytes of a whole column of pixels.
    pub fn transaction_bytes(&self) -> u32 {
        self.one_pixel().transaction_bytes() * self.pixels
    }

    /// Walks the pixels of one copy: a load fills what is outside, a store leaves it out.
    ///
    /// # Errors
    /// [`BoxError`].
    pub fn walk<E>(
        &self,
        coordinates: &[i32],
        offsets: &[u16],
        shared: u32,
        load: bool,
        sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
    ) -> Result<(), BoxError<E>> {
        let map = self.one_pixel();
        map.check_box(coordinates, shared)?;
        let rank = map.rank();
        let bytes = map.shared_row_bytes();
        let mut at: Vec<i64> = coordinates.iter().map(|&c| c.into()).collect();
        for p in 0..self.pixels {
            let mut pixel = [0i32; 5];
            for (d, (to, &from)) in pixel.iter_mut().zip(&at).enumerate() {
                let offset =
                    if (1..rank - 1).contains(&d) { offsets.get(d - 1).copied().unwrap_or(0) } else { 0 };
                *to = (from + i64::from(offset)).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            }
            map.walk(&pixel[..rank], shared.wrapping_add(p * bytes), load, sink)?;
            // The next pixel of the bounding box, then the next image.
            let mut d = 1;
            while d < rank - 1 {
                at[d] += i64::from(map.element_strides[d]);
                let last = map.global_dims[d] as i64 - 1 + i64::from(self.upper[d - 1]);
                if at[d] <= last {
                    break;
                }
                at[d] = self.lower[d - 1].into();
                d += 1;
            }
            if d == rank - 1 {
                at[d] += 1;
            }
        }
        Ok(())
    }
}
