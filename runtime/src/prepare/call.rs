//! What launches of prepared kernels take: sizes are known before there are buffers.

use super::{ALIGNMENT, Loaded, PrepareError};
use crate::device::plain::Plain;
use crate::device::{Buffer, Stream};

/// What a kernel does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It reads it.
    Input,
    /// It writes all of it.
    Output,
    /// It writes a part, and does not read it.
    Part,
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// The address of a tensor.
    Tensor {
        /// For errors.
        name: &'static str,
        role: Role,
        /// Exact length.
        bytes: usize,
        /// Rows and columns, for errors.
        sizes: [u32; 2],
    },
    U32(u32),
    F32(f32),
}

/// A launch: its CTAs, and its parameters in order.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub ctas: u32,
    pub slots: Vec<Slot>,
}

impl Loaded {
    /// Checks the buffers, which are those of the call's tensors in order, and launches.
    ///
    /// # Errors
    ///
    /// Buffers of other devices, lengths or alignments, or that overlap; what the device says.
    pub(crate) fn run(&self, stream: &Stream, call: &Call, buffers: &[&Buffer]) -> Result<(), PrepareError> {
        let mut buffers = buffers.iter();
        let mut args = Vec::with_capacity(call.slots.len());
        for slot in &call.slots {
            let argument = match *slot {
                Slot::U32(value) => Some(Plain::U32(value)),
                Slot::F32(value) => Some(Plain::F32(value)),
                Slot::Tensor { name, role, bytes, sizes } => match buffers.next() {
                    Some(buffer) => {
                        self.check(name, buffer, bytes, sizes)?;
                        Some(match role {
                            Role::Input => Plain::Input(name, buffer),
                            Role::Output => Plain::Output(name, buffer),
                            Role::Part => Plain::Part(name, buffer),
                        })
                    }
                    // Callers pass a buffer for each tensor.
                    None => None,
                },
            };
            args.extend(argument);
        }
        self.launch(stream, call.ctas, &args)
    }

    /// Checks a tensor's device, length and alignment.
    fn check(
        &self,
        tensor: &'static str,
        buffer: &Buffer,
        expected: usize,
        [rows, columns]: [u32; 2],
    ) -> Result<(), PrepareError> {
        if *buffer.device() != self.device {
            return Err(self.foreign(tensor));
        }
        if buffer.len() != expected {
            return Err(PrepareError::Length { tensor, found: buffer.len(), expected, rows, columns });
        }
        if !buffer.is_aligned(ALIGNMENT) {
            return Err(PrepareError::Alignment { tensor });
        }
        Ok(())
    }
}

impl Loaded {
    /// Checks K, a multiple of 16, and the scale of a whole tensor. Returns the CTAs that bring `rows` rows to 8 or 4 bits.
    pub(crate) fn ctas_of_rows(&self, rows: u32, k: u32, scale: Option<f32>) -> Result<u32, PrepareError> {
        if !k.is_multiple_of(16) {
            return Err(PrepareError::KNotBlocked { k });
        }
        let ctas = self.ctas(rows, k / 16)?;
        match scale {
            Some(value) if !(value.is_finite() && value > 0.0) => Err(PrepareError::TensorScale { value }),
            _ => Ok(ctas),
        }
    }
}
