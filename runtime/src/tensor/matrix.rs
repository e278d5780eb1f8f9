//! A typed matrix in device memory.

use std::fmt;
use std::marker::PhantomData;

use silumin_codegen::problem::{OperandFormat, OutputFormat};
use silumin_formats::quantize::{TensorScale, quantize_to};
use silumin_formats::{Matrix as HostMatrix, layout};

use super::element::sealed::Bytes;
use super::{E4m3, Element, Nvfp4, Plain, Quantised, TensorError, bf16, f16};
use crate::device::{Buffer, Device, DeviceError};

/// Elements that share a scale factor in NVFP4.
const BLOCK: usize = 16;

/// A matrix of `T` in device memory: row-major, `[rows, columns]`, without gaps. Cloning it is cheap, and clones share the memory.
///
/// A and B have K contiguous: A is `[M, K]`, B1 and B2 are `[N, K]`. The value of an element is its number, times its scale factor
/// in NVFP4, times [`Matrix::tensor_scale`].
///
/// ```
/// use silumin_codegen::arch::Arch;
/// use silumin_runtime::device::Device;
/// use silumin_runtime::tensor::{Matrix, Nvfp4, f16};
///
/// let device = Device::emulated(Arch::Sm100a);
/// let values: Vec<f32> = (0..64).map(|i| i as f32 / 4.0).collect();
/// assert_eq!(Matrix::<f16>::upload(&device, &values, 2, 32)?.to_f32()?, values);
///
/// // NVFP4 takes an eighth of the memory of f32, and scale factors, and rounds.
/// let packed = Matrix::<Nvfp4>::upload(&device, &values, 2, 32)?;
/// assert_eq!(packed.buffer().len(), 32);
/// let largest = packed.to_f32()?.into_iter().zip(values).map(|(got, value)| (got - value).abs()).fold(0.0, f32::max);
/// assert!(largest <= 16.0 / 6.0);
/// # Ok::<(), silumin_runtime::tensor::TensorError>(())
/// ```
pub struct Matrix<T: Element> {
    rows: usize,
    columns: usize,
    elements: Buffer,
    scales: Option<Buffer>,
    tensor_scale: f32,
    read_only: bool,
    element: PhantomData<T>,
}

impl<T: Element> Clone for Matrix<T> {
    fn clone(&self) -> Self {
        Self { elements: self.elements.clone(), scales: self.scales.clone(), ..*self }
    }
}

impl<T: Element> fmt::Debug for Matrix<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matrix({} x {} of {} on {})", self.rows, self.columns, T::OUTPUT, self.device())
    }
}

impl<T: Element> Matrix<T> {
    /// Rows: M of A and C, N of B.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row: K of A and B, N of C.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The device that holds it.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.elements.device()
    }

    /// The elements, row-major; two in a byte in NVFP4.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.elements
    }

    /// The scale factors in the blocked layout ([`silumin_formats::layout`]); `None` for all elements but [`Nvfp4`].
    #[must_use]
    pub fn scales(&self) -> Option<&Buffer> {
        self.scales.as_ref()
    }

    /// The scale of the whole matrix. Kernels do not read an operand's scale: the gate applies it through a scalar. A kernel that
    /// writes C in NVFP4 divides by the scale of C.
    #[must_use]
    pub fn tensor_scale(&self) -> f32 {
        self.tensor_scale
    }

    /// Whether the memory is borrowed from an owner that allows no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn read_only(self, read_only: bool) -> Self {
        Self { read_only, ..self }
    }

    /// The handle with another scale of the whole matrix; elements and scale factors stay as they are. For a C in NVFP4: values up to
    /// 2688 times the scale fit.
    ///
    /// # Errors
    ///
    /// [`TensorError::Format`] if it is not finite and above 0.
    pub fn with_tensor_scale(self, tensor_scale: f32) -> Result<Self, TensorError> {
        check_scale(tensor_scale)?;
        Ok(Self { tensor_scale, ..self })
    }

    /// A matrix in buffers, which have been checked.
    fn of(rows: usize, columns: usize, elements: Buffer, scales: Option<Buffer>, tensor_scale: f32) -> Self {
        Self { rows, columns, elements, scales, tensor_scale, read_only: false, element: PhantomData }
    }
}

/// Checks a shape, and returns its number of elements.
fn checked(rows: usize, columns: usize) -> Result<usize, TensorError> {
    if rows == 0 || columns == 0 {
        return Err(TensorError::Empty { rows, columns });
    }
    match rows.checked_mul(columns) {
        // Room for eight bytes an element.
        Some(elements) if elements <= isize::MAX as usize / 8 => Ok(elements),
        _ => Err(TensorError::TooLarge { rows, columns }),
    }
}

fn check_length(
    rows: usize,
    columns: usize,
    unit: &'static str,
    expected: usize,
    given: usize,
) -> Result<(), TensorError> {
    match given == expected {
        true => Ok(()),
        false => Err(TensorError::Length { rows, columns, unit, expected, given }),
    }
}

fn check_scale(value: f32) -> Result<(), TensorError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(silumin_formats::FormatError::TensorScale { value }.into()),
    }
}

impl<T: Plain> Matrix<T> {
    /// A copy of elements on a device, row-major.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::Length`], [`TensorError::Device`].
    pub fn from_elements(
        device: &Device,
        elements: &[T],
        rows: usize,
        columns: usize,
    ) -> Result<Self, TensorError> {
        check_length(rows, columns, "elements", checked(rows, columns)?, elements.len())?;
        Ok(Self::of(rows, columns, device.upload(&T::to_bytes(elements))?, None, 1.0))
    }

    /// A matrix of zeros.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::TooLarge`], [`TensorError::Device`].
    pub fn zeros(device: &Device, rows: usize, columns: usize) -> Result<Self, TensorError> {
        let bytes = vec![0; checked(rows, columns)? * T::SIZE];
        Ok(Self::of(rows, columns, device.upload(&bytes)?, None, 1.0))
    }

    /// A matrix in memory that is not initialised, for a C that a kernel writes completely.
    ///
    /// # Errors
    ///
    /// As [`Matrix::zeros`].
    pub fn uninitialised(device: &Device, rows: usize, columns: usize) -> Result<Self, TensorError> {
        let bytes = checked(rows, columns)? * T::SIZE;
        Ok(Self::of(rows, columns, device.alloc(bytes)?, None, 1.0))
    }

    /// Views a buffer as a matrix, without a copy. Slice a buffer that is longer.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::Length`].
    pub fn from_buffer(buffer: Buffer, rows: usize, columns: usize) -> Result<Self, TensorError> {
        check_length(rows, columns, "bytes", checked(rows, columns)? * T::SIZE, buffer.len())?;
        Ok(Self::of(rows, columns, buffer, None, 1.0))
    }

    /// Copies the elements to the host, after all earlier work on them; row-major. The scale of the whole matrix is not in them.
    ///
    /// # Errors
    ///
    /// As [`Buffer::download`].
    pub fn to_elements(&self) -> Result<Vec<T>, DeviceError> {
        Ok(T::of_bytes(&self.elements.download()?))
    }

    /// Copies elements to the matrix, row-major.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`], [`TensorError::Device`], [`TensorError::ReadOnly`].
    pub fn write(&self, elements: &[T]) -> Result<(), TensorError> {
        if self.read_only {
            return Err(TensorError::ReadOnly);
        }
        check_length(self.rows, self.columns, "elements", self.rows * self.columns, elements.len())?;
        Ok(self.elements.write(&T::to_bytes(elements))?)
    }

    fn values(&self) -> Result<Vec<f32>, TensorError> {
        Ok(self.to_elements()?.into_iter().map(|element| element.value() * self.tensor_scale).collect())
    }
}

macro_rules! in_f32 {
    ($($element:ty),*) => {
        $(
            impl Matrix<$element> {
                /// Rounds row-major values to the nearest elements, ties to even, and copies them to a device. Larger
                /// values than an f16 or bf16 holds become infinite.
                ///
                /// # Errors
                ///
                /// As [`Matrix::from_elements`].
                pub fn upload(device: &Device, values: &[f32], rows: usize, columns: usize) -> Result<Self, TensorError> {
                    check_length(rows, columns, "values", checked(rows, columns)?, values.len())?;
                    let elements: Vec<$element> = values.iter().map(|value| <$element>::nearest(*value)).collect();
                    Self::from_elements(device, &elements, rows, columns)
                }

                /// Copies the values to the host, after all earlier work on them; row-major. They are exact.
                ///
                /// # Errors
                ///
                /// As [`Buffer::download`].
                pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
                    self.values()
                }
            }
        )*
    };
}

in_f32!(f32, bf16, f16);

impl<T: Quantised> Matrix<T> {
    /// Quantises row-major values and copies them to a device. The scale of the whole matrix follows from its largest magnitude, which
    /// becomes the largest value of the format, 448 in e4m3 and 2688 in NVFP4: see [`Matrix::tensor_scale`]. Columns of NVFP4 are a
    /// multiple of 16.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::Length`], [`TensorError::Device`]; [`TensorError::Format`] if a value is NaN or
    /// infinite, or the columns of NVFP4 are no multiple of 16.
    pub fn upload(device: &Device, values: &[f32], rows: usize, columns: usize) -> Result<Self, TensorError> {
        Self::upload_scaled(device, values, rows, columns, TensorScale::FromMax)
    }

    /// Quantises with a choice of the scale of the whole matrix. Magnitudes above the format's largest value times the scale become
    /// that. With [`TensorScale::One`] a gate needs no scalar to apply it.
    ///
    /// # Errors
    ///
    /// As [`Matrix::upload`].
    pub fn upload_scaled(
        device: &Device,
        values: &[f32],
        rows: usize,
        columns: usize,
        scale: TensorScale,
    ) -> Result<Self, TensorError> {
        check_length(rows, columns, "values", checked(rows, columns)?, values.len())?;
        Self::from_host(device, &quantize_to(T::FORMAT, values, rows, columns, scale)?)
    }

    /// Copies a quantised matrix of the host to a device, scale factors of NVFP4 to the blocked layout.
    ///
    /// # Errors
    ///
    /// [`TensorError::OtherFormat`], [`TensorError::Empty`], [`TensorError::Device`].
    pub fn from_host(device: &Device, host: &HostMatrix) -> Result<Self, TensorError> {
        let (found, expected) = (host.format(), T::FORMAT);
        if found != expected {
            let [found, expected] = [found, expected].map(|format| format.spec().name);
            return Err(TensorError::OtherFormat { found, expected });
        }
        checked(host.rows(), host.k())?;
        let scales = match T::FORMAT.spec().scales {
            Some(_) => Some(device.upload(&host.blocked_scales()?)?),
            None => None,
        };
        Ok(Self::of(host.rows(), host.k(), device.upload(host.codes())?, scales, host.tensor_scale()))
    }
}

impl Matrix<E4m3> {
    /// Copies the values to the host, after all earlier work on them; row-major, times the scale of the whole matrix.
    ///
    /// # Errors
    ///
    /// As [`Buffer::download`].
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        self.values()
    }
}

impl Matrix<Nvfp4> {
    /// Views buffers as a matrix, without a copy. `codes` are row-major, the even column of two in the low four bits of a byte;
    /// `scales` are in the blocked layout, padded to 128 rows and 4 columns.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::Length`], [`TensorError::Format`], [`TensorError::TwoDevices`].
    pub fn from_buffers(
        codes: Buffer,
        scales: Buffer,
        tensor_scale: f32,
        rows: usize,
        columns: usize,
    ) -> Result<Self, TensorError> {
        let (code_bytes, scale_bytes) = sizes(rows, columns)?;
        check_length(rows, columns, "bytes of NVFP4 codes", code_bytes, codes.len())?;
        check_length(rows, columns, "bytes of NVFP4 scale factors", scale_bytes, scales.len())?;
        check_scale(tensor_scale)?;
        if codes.device() != scales.device() {
            let (elements, scales) = (codes.device().numbered(), scales.device().numbered());
            return Err(TensorError::TwoDevices { elements, scales });
        }
        Ok(Self::of(rows, columns, codes, Some(scales), tensor_scale))
    }

    /// A matrix of zeros, with a scale of the whole matrix of 1.
    ///
    /// # Errors
    ///
    /// [`TensorError::Empty`], [`TensorError::TooLarge`], [`TensorError::Device`]; [`TensorError::Format`] if the columns are no
    /// multiple of 16.
    pub fn zeros(device: &Device, rows: usize, columns: usize) -> Result<Self, TensorError> {
        let (codes, scales) = sizes(rows, columns)?;
        let (codes, scales) = (device.upload(&vec![0; codes])?, device.upload(&vec![0; scales])?);
        Ok(Self::of(rows, columns, codes, Some(scales), 1.0))
    }

    /// A matrix in memory that is not initialised, for a C that a kernel writes completely, with a scale of the whole matrix of 1.
    ///
    /// # Errors
    ///
    /// As [`Matrix::zeros`].
    pub fn uninitialised(device: &Device, rows: usize, columns: usize) -> Result<Self, TensorError> {
        let (codes, scales) = sizes(rows, columns)?;
        Ok(Self::of(rows, columns, device.alloc(codes)?, Some(device.alloc(scales)?), 1.0))
    }

    /// Copies codes and scale factors to the host, after all earlier work on them.
    ///
    /// # Errors
    ///
    /// As [`Buffer::download`].
    pub fn to_host(&self) -> Result<HostMatrix, TensorError> {
        let codes = self.elements.download()?;
        let blocked = self.scales.as_ref().map_or(Ok(Vec::new()), Buffer::download)?;
        let scales = layout::from_blocked(&blocked, self.rows, self.columns / BLOCK)?;
        let format = OperandFormat::Nvfp4;
        Ok(HostMatrix::new(format, self.rows, self.columns, codes, scales, self.tensor_scale)?)
    }

    /// Copies the values to the host, after all earlier work on them; row-major, times all scales.
    ///
    /// # Errors
    ///
    /// As [`Buffer::download`].
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        let host = self.to_host()?;
        let (mut values, mut row) = (Vec::with_capacity(self.rows * self.columns), vec![0.0; self.columns]);
        for index in 0..self.rows {
            host.decode_row(index, 0, &mut row);
            values.extend(row.iter().map(|value| *value as f32));
        }
        Ok(values)
    }
}

/// Bytes of codes and of blocked scale factors in NVFP4.
fn sizes(rows: usize, columns: usize) -> Result<(usize, usize), TensorError> {
    let elements = checked(rows, columns)?;
    silumin_formats::checked_elements(OperandFormat::Nvfp4, rows, columns)?;
    const { assert!(OutputFormat::Nvfp4.bits() == 4) };
    Ok((elements / 2, layout::blocked_len(rows, columns / BLOCK)?))
}
