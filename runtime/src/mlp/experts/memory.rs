//! Memory between the kernels: for the largest bucket, sliced for each call.

use silumin_codegen::plan::Operand;
use silumin_codegen::problem::Problem;

use super::super::MlpError;
use super::super::parts::{Travel, zeros};
use crate::device::{Buffer, Device, DeviceError};

/// What kernels hand to one another.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// Row offsets of the experts, i32 `[experts + 1]`.
    pub offsets: Buffer,
    /// Each row's token, and its row among scale factors: i32 `[choices, 2]`.
    pub sources: Buffer,
    /// Each choice's row or -1: i32 `[tokens, top_k]`.
    pub places: Buffer,
    /// x in rows sorted by expert.
    pub x: Buffer,
    pub x_scales: Option<Buffer>,
    /// `act(gate(x)) * up(x)`.
    pub middle: Buffer,
    pub middle_scales: Option<Buffer>,
    /// Scales per row, f32, of x and of the middle; `None` without them.
    pub row_scales: Option<[Buffer; 2]>,
    /// The middle in the second kernel's format, where the first does not write that.
    pub middle_codes: Option<Buffer>,
    /// Results of the down projection, in rows sorted by expert.
    pub rows: Buffer,
}

impl Memory {
    /// Memory for the problems of gate and up and of down, with the rows of the largest bucket. All of it is zeros: kernels
    /// load whole tiles, and read what no call has written.
    pub fn new(device: &Device, [up, down]: [&Problem; 2], travel: Travel) -> Result<Self, MlpError> {
        let zeros = |bytes: u64| zeros(device, bytes as usize);
        let scales = |bytes: u64| Ok::<_, DeviceError>(if bytes == 0 { None } else { Some(zeros(bytes)?) });
        let rows = u64::from(up.shape.m);
        Ok(Memory {
            offsets: zeros(Operand::Offsets.bytes(up))?,
            sources: zeros(8 * rows)?,
            places: zeros(4 * rows)?,
            x: zeros(Operand::A.bytes(up))?,
            x_scales: scales(Operand::Sfa.bytes(up))?,
            middle: zeros(Operand::C.bytes(up))?,
            middle_scales: scales(Operand::Sfa.bytes(down))?,
            row_scales: if matches!(travel, Travel::E4m3Rows(_)) {
                Some([zeros(4 * rows)?, zeros(4 * rows)?])
            } else {
                None
            },
            middle_codes: match travel.between() {
                Some(_) => Some(zeros(Operand::A.bytes(down))?),
                None => None,
            },
            rows: zeros(Operand::C.bytes(down))?,
        })
    }

    /// The part of a bucket with these problems, for a call with this number of choices.
    pub fn of(&self, [up, down]: [&Problem; 2], choices: u32) -> Result<Self, DeviceError> {
        let part = |buffer: &Buffer, bytes: u64| buffer.slice(0, bytes as usize);
        let scales =
            |buffer: &Option<Buffer>, bytes| buffer.as_ref().map(|buffer| part(buffer, bytes)).transpose();
        Ok(Memory {
            offsets: self.offsets.clone(),
            sources: part(&self.sources, 8 * u64::from(choices))?,
            places: part(&self.places, 4 * u64::from(choices))?,
            x: part(&self.x, Operand::A.bytes(up))?,
            x_scales: scales(&self.x_scales, Operand::Sfa.bytes(up))?,
            middle: part(&self.middle, Operand::C.bytes(up))?,
            middle_scales: scales(&self.middle_scales, Operand::Sfa.bytes(down))?,
            row_scales: match &self.row_scales {
                Some([x, middle]) => {
                    let bytes = 4 * u64::from(up.shape.m);
                    Some([part(x, bytes)?, part(middle, bytes)?])
                }
                None => None,
            },
            middle_codes: scales(&self.middle_codes, Operand::A.bytes(down))?,
            rows: part(&self.rows, Operand::C.bytes(down))?,
        })
    }

    /// All of it.
    pub fn buffers(self) -> impl Iterator<Item = Buffer> {
        let scales = self.x_scales.into_iter().chain(self.middle_scales).chain(self.middle_codes);
        let scales = scales.chain(self.row_scales.into_iter().flatten());
        [self.offsets, self.sources, self.places, self.x, self.middle, self.rows].into_iter().chain(scales)
    }
}
