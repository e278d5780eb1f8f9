//! How activations travel between the kernels of a block: memory for the largest bucket, sliced for each call.

use silumin_codegen::problem::{OutputFormat, ScaleSpec};

use super::{MlpError, Source};
use crate::device::{Buffer, Device, DeviceError};
use crate::prepare::{Quantized, Quantizer};

/// x in NVFP4.
#[derive(Clone)]
pub(super) struct Quantised {
    pub quantizer: Quantizer,
    codes: Buffer,
    scales: Buffer,
    k: u32,
    /// The scale of the whole tensor.
    pub scale: f32,
}

impl Quantised {
    pub fn new(
        device: &Device,
        source: Source,
        most: u32,
        k: u32,
        scale: Option<f32>,
    ) -> Result<Self, MlpError> {
        let [codes, scales] = Quantizer::bytes(most, k)?;
        Ok(Quantised {
            quantizer: Quantizer::load(device, source)?,
            codes: device.alloc(codes)?,
            // Blocks that no call has written are read with rows of zeros, and have to be finite.
            scales: device.upload(&vec![0; scales])?,
            k,
            scale: scale.unwrap_or(1.0),
        })
    }

    /// What the quantiser writes for so many tokens, and what a kernel of `rows` rows reads: codes of the tokens, scale
    /// factors of all rows.
    pub fn of(&self, tokens: u32, rows: u32) -> Result<(Quantized, Quantized), MlpError> {
        let [codes, written] = Quantizer::bytes(tokens, self.k)?;
        let [_, read] = Quantizer::bytes(rows, self.k)?;
        let codes = self.codes.slice(0, codes)?;
        let scales = |bytes| self.scales.slice(0, bytes);
        Ok((
            Quantized { codes: codes.clone(), scales: scales(written)? },
            Quantized { codes, scales: scales(read)? },
        ))
    }
}

/// `act(gate(x)) * up(x)`: in NVFP4 with its scale factors, or in 16 bits.
#[derive(Clone)]
pub(super) struct Middle {
    codes: Buffer,
    scales: Option<Buffer>,
    features: u32,
    bits: u32,
    /// The scale of the whole tensor.
    pub scale: f32,
}

/// A bucket's part of it.
pub(super) struct MiddleOf {
    pub codes: Buffer,
    pub scales: Option<Buffer>,
}

impl Middle {
    /// Memory for `most` rows: NVFP4 with that scale of the whole tensor, or 16 bits.
    pub fn new(
        device: &Device,
        most: u32,
        features: u32,
        scale: Option<f32>,
        output: OutputFormat,
    ) -> Result<Self, MlpError> {
        let bits = if scale.is_some() { OutputFormat::Nvfp4.bits() } else { output.bits() };
        let bytes = codes(most, features, bits);
        let scales = scale.map(|_| device.alloc(scales(most, features))).transpose()?;
        Ok(Middle { codes: device.alloc(bytes)?, scales, features, bits, scale: scale.unwrap_or(1.0) })
    }

    /// The part of a bucket of `rows` rows.
    pub fn of(&self, rows: u32) -> Result<MiddleOf, DeviceError> {
        let of = |scales_of: &Buffer| scales_of.slice(0, scales(rows, self.features));
        Ok(MiddleOf {
            codes: self.codes.slice(0, codes(rows, self.features, self.bits))?,
            scales: self.scales.as_ref().map(of).transpose()?,
        })
    }
}

fn codes(rows: u32, features: u32, bits: u32) -> usize {
    rows as usize * features as usize * bits as usize / 8
}

fn scales(rows: u32, features: u32) -> usize {
    ScaleSpec::NVFP4.blocked_bytes(rows, features) as usize
}
