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

/// A tensor that a kernel takes by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    /// For errors.
    pub name: &'static str,
    pub role: Role,
    /// Exact length.
    pub bytes: usize,
    /// Rows and columns, for errors.
    pub sizes: [u32; 2],
}

/// A number that a kernel takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    U32(u32),
    F32(f32),
}

/// A launch: its CTAs, and its parameters in order, tensors first.
#[derive(Clone, Debug)]
pub(crate) struct Call<const T: usize, const N: usize> {
    pub ctas: u32,
    pub tensors: [Tensor; T],
    pub numbers: [Number; N],
}

impl Loaded {
    /// Checks the buffers of a call's tensors, and launches.
    ///
    /// # Errors
    ///
    /// Buffers of other devices, lengths or alignments, or that overlap; what the device says.
    pub(crate) fn run<const T: usize, const N: usize>(
        &self,
        stream: &Stream,
        call: &Call<T, N>,
        buffers: [&Buffer; T],
    ) -> Result<(), PrepareError> {
        let mut args = Vec::with_capacity(T + N);
        for (tensor, buffer) in call.tensors.iter().zip(buffers) {
            self.check(tensor, buffer)?;
            args.push(match tensor.role {
                Role::Input => Plain::Input(tensor.name, buffer),
                Role::Output => Plain::Output(tensor.name, buffer),
                Role::Part => Plain::Part(tensor.name, buffer),
            });
        }
        args.extend(call.numbers.iter().map(|number| match *number {
            Number::U32(value) => Plain::U32(value),
            Number::F32(value) => Plain::F32(value),
        }));
        self.launch(stream, call.ctas, &args)
    }

    /// Checks a buffer's device, length and alignment.
    fn check(&self, tensor: &Tensor, buffer: &Buffer) -> Result<(), PrepareError> {
        let Tensor { name, bytes, sizes: [rows, columns], .. } = *tensor;
        if *buffer.device() != self.device {
            return Err(self.foreign(name));
        }
        if buffer.len() != bytes {
            let found = buffer.len();
            return Err(PrepareError::Length { tensor: name, found, expected: bytes, rows, columns });
        }
        if !buffer.is_aligned(ALIGNMENT) {
            return Err(PrepareError::Alignment { tensor: name });
        }
        Ok(())
    }

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
