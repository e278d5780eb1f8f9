//! Activations to e4m3 whose blocks along K have scale factors.

use silumin_codegen::kernel::Kernel;
use silumin_codegen::prepare::{Preparation, Source};
use silumin_codegen::problem::OperandFormat;

use super::call::{Call, Number, Role, Tensor};
use super::{Loaded, PrepareError};
use crate::device::{Buffer, Device, Stream};

/// e4m3 with a scale factor for each block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum E4m3Blocks {
    /// An f32 for each 128 elements, row-major: [`OperandFormat::E4m3Vector128`].
    Vector128,
    /// A power of two for each 32 elements, in the blocked layout: [`OperandFormat::Mxfp8`]. On the host,
    /// [`MxRule::Up`](silumin_formats::quantize::MxRule) gives the same bytes.
    Mxfp8,
}

impl E4m3Blocks {
    /// The operand format.
    #[must_use]
    pub const fn format(self) -> OperandFormat {
        match self {
            E4m3Blocks::Vector128 => OperandFormat::E4m3Vector128,
            E4m3Blocks::Mxfp8 => OperandFormat::Mxfp8,
        }
    }

    /// The kernel, and the one that gathers rows by expert.
    pub(crate) const fn preparations(self, source: Source) -> [Preparation; 2] {
        match self {
            E4m3Blocks::Vector128 => {
                [Preparation::QuantizeE4m3Blocks(source), Preparation::GatherQuantizeE4m3Blocks(source)]
            }
            E4m3Blocks::Mxfp8 => {
                [Preparation::QuantizeMxfp8(source), Preparation::GatherQuantizeMxfp8(source)]
            }
        }
    }
}

/// Quantises activations to e4m3 with a scale factor for each block of a row, on one device: a cheap handle.
///
/// An f32 scale factor is the block's largest magnitude over 448, or 1 for a block of zeros; one of MXFP8 is the least power of two
/// with which no element saturates. An element is the e4m3 nearest to `x / scale`. Beside a number that is not finite the
/// scale factor is 1, and that element is NaN.
///
/// ```
/// use half::bf16;
/// use silumin_codegen::arch::Arch;
/// use silumin_formats::quantize::{TensorScale, quantize_to};
/// use silumin_runtime::device::Device;
/// use silumin_runtime::prepare::{E4m3Blocks, E4m3BlockQuantizer, Source};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (device, blocks) = (Device::emulated(Arch::Sm90a), E4m3Blocks::Vector128);
/// let quantizer = E4m3BlockQuantizer::load(&device, Source::Bf16, blocks)?;
/// let values: Vec<bf16> = (0..3 * 256).map(|i| bf16::from_f32((i as f32).sin())).collect();
/// let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
/// let [code_bytes, scale_bytes] = quantizer.bytes(3, 256)?;
/// let (codes, scales) = (device.alloc(code_bytes)?, device.alloc(scale_bytes)?);
/// quantizer.launch(&device.stream(), &device.upload(&bytes)?, [3, 256], &codes, &scales)?;
///
/// let host = quantize_to(blocks.format(), &values, 3, 256, TensorScale::One)?;
/// assert_eq!((codes.download()?, scales.download()?), (host.codes().to_vec(), host.scales().to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct E4m3BlockQuantizer {
    loaded: Loaded,
    blocks: E4m3Blocks,
}

impl E4m3BlockQuantizer {
    /// Generates and loads the kernel for activations of one format.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Load`].
    pub fn load(device: &Device, source: Source, blocks: E4m3Blocks) -> Result<Self, PrepareError> {
        let [preparation, _] = blocks.preparations(source);
        Ok(Self { loaded: Loaded::new(device, preparation)?, blocks })
    }

    /// The PTX and its launch facts; its grid is [`Preparation::ctas`].
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.kernel
    }

    /// Lengths of codes and of scale factors for `rows` rows, in bytes.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Blocks`].
    pub fn bytes(&self, rows: u32, k: u32) -> Result<[usize; 2], PrepareError> {
        let format = self.blocks.format();
        let block = format.spec().scales.map_or(1, |scales| scales.block);
        if !k.is_multiple_of(block) {
            return Err(PrepareError::Blocks { k, block, format });
        }
        Ok([format.bytes(rows, k) as usize, format.scale_bytes(rows, k) as usize])
    }

    /// Quantises `x`, `[rows, k]`, into buffers of the lengths that [`E4m3BlockQuantizer::bytes`] gives. Scale factors that pad a
    /// block of rows are not written: they have to be finite before, zero for example. It allocates nothing, and on a GPU
    /// it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`PrepareError`]: buffers of other sizes or devices, K that is not whole blocks; what the device says.
    pub fn launch(
        &self,
        stream: &Stream,
        x: &Buffer,
        sizes: [u32; 2],
        codes: &Buffer,
        scales: &Buffer,
    ) -> Result<(), PrepareError> {
        self.loaded.run(stream, &self.call(sizes)?, [x, codes, scales])
    }

    /// A launch for `rows` rows.
    pub(crate) fn call(&self, sizes: [u32; 2]) -> Result<Call<3, 2>, PrepareError> {
        let [rows, k] = sizes;
        let [codes, scales] = self.bytes(rows, k)?;
        let ctas = self.loaded.ctas(rows, k / 16)?;
        let tensor = |name, role, bytes| Tensor { name, role, bytes, sizes };
        let tensors = [
            tensor("x", Role::Input, 2 * codes),
            tensor("codes", Role::Output, codes),
            tensor("scales", Role::Part, scales),
        ];
        let numbers = [Number::U32(rows), Number::U32(k / 16)];
        Ok(Call { ctas, tensors, numbers })
    }
}
