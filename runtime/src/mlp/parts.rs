//! How activations travel between the kernels of a block: memory for the largest bucket, sliced for each call.

use silumin_codegen::problem::{ByteScale, Formats, OperandFormat, OutputFormat, ScaleSpec};
use silumin_verify::block as verify;

use super::{MlpError, Source};
use crate::device::{Buffer, Device, DeviceError, Stream};
#[cfg(feature = "emulated")]
use crate::predict::PlainLaunch;
use crate::prepare::{
    Activations, E4m3BlockQuantizer, E4m3Blocks, E4m3Quantizer, E4m3RowQuantizer, Quantizer,
};

/// Bytes that are written at once.
const PIECE: usize = 16 << 20;

/// The format of activations on their way through a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Travel {
    /// That of x.
    Sixteen(Source),
    /// x is quantised, and the first kernel's epilogue quantises the middle.
    Nvfp4,
    /// x is quantised, and the middle, which the first kernel writes in 16 bits, is by a launch of its own: on chips whose kernels
    /// do not write NVFP4.
    Nvfp4Apart(Source),
    /// The same in e4m3, with scales of whole tensors alone.
    E4m3,
    /// In e4m3 with a scale for each token: x is quantised, and the middle, which the first kernel writes in 16 bits, is by a
    /// launch of its own.
    E4m3Rows(Source),
    /// The same with scale factors for blocks of each token.
    Blocks(Source, E4m3Blocks),
    /// In MXFP8: x is quantised, and the first kernel's epilogue quantises the middle.
    Mxfp8,
}

impl Travel {
    /// The ways for weights of a format where the chip multiplies them by no 16-bit activations, the best first. `calibrated`:
    /// whether there are scales for whole tensors of activations.
    pub fn quantised(weights: OperandFormat, source: Source, calibrated: bool) -> Vec<Travel> {
        match weights {
            OperandFormat::Nvfp4 => vec![Travel::Nvfp4, Travel::Nvfp4Apart(source)],
            OperandFormat::E4m3 if calibrated => vec![Travel::E4m3],
            OperandFormat::E4m3 => vec![Travel::E4m3Rows(source)],
            OperandFormat::E4m3Block128 => vec![
                Travel::Blocks(source, E4m3Blocks::Vector128),
                Travel::Mxfp8,
                Travel::Blocks(source, E4m3Blocks::Mxfp8),
            ],
            OperandFormat::Mxfp8 => vec![Travel::Mxfp8, Travel::Blocks(source, E4m3Blocks::Mxfp8)],
            _ => Vec::new(),
        }
    }

    /// The format of the middle, where it is quantised by a launch of its own.
    pub fn between(self) -> Option<Source> {
        match self {
            Travel::Nvfp4Apart(source) | Travel::E4m3Rows(source) | Travel::Blocks(source, _) => Some(source),
            Travel::Sixteen(_) | Travel::Nvfp4 | Travel::E4m3 | Travel::Mxfp8 => None,
        }
    }

    /// Scale factors of blocks in e4m3.
    pub fn blocks(self) -> E4m3Blocks {
        match self {
            Travel::Blocks(_, blocks) => blocks,
            _ => E4m3Blocks::Mxfp8,
        }
    }

    /// The format that kernels read.
    pub fn operand(self) -> OperandFormat {
        match self {
            Travel::Sixteen(Source::Bf16) => OperandFormat::Bf16,
            Travel::Sixteen(Source::F16) => OperandFormat::F16,
            Travel::Nvfp4 | Travel::Nvfp4Apart(_) => OperandFormat::Nvfp4,
            Travel::E4m3 | Travel::E4m3Rows(_) => OperandFormat::E4m3,
            Travel::Blocks(_, blocks) => blocks.format(),
            Travel::Mxfp8 => OperandFormat::Mxfp8,
        }
    }

    /// The format in which kernels read weights that the host has in `weights`.
    pub fn weights(self, weights: OperandFormat) -> OperandFormat {
        match self {
            Travel::Blocks(_, E4m3Blocks::Mxfp8) | Travel::Mxfp8 => OperandFormat::Mxfp8,
            // Only Hopper multiplies bf16 by 4-bit weights, and decodes repacked ones with fewer instructions.
            Travel::Sixteen(Source::Bf16) => weights.repacked().unwrap_or(weights),
            Travel::Sixteen(Source::F16)
            | Travel::Nvfp4
            | Travel::Nvfp4Apart(_)
            | Travel::E4m3
            | Travel::E4m3Rows(_)
            | Travel::Blocks(_, E4m3Blocks::Vector128) => weights,
        }
    }

    /// Whether tensors of activations have a scale: one for the whole tensor.
    pub fn scales_tensors(self) -> bool {
        matches!(self, Travel::Nvfp4 | Travel::Nvfp4Apart(_) | Travel::E4m3)
    }

    /// The format that the first kernel writes.
    pub fn output(self) -> OutputFormat {
        match self {
            Travel::Sixteen(source)
            | Travel::Nvfp4Apart(source)
            | Travel::E4m3Rows(source)
            | Travel::Blocks(source, _) => match source {
                Source::Bf16 => OutputFormat::Bf16,
                Source::F16 => OutputFormat::F16,
            },
            Travel::Nvfp4 => OutputFormat::Nvfp4,
            Travel::E4m3 => OutputFormat::E4m3,
            Travel::Mxfp8 => OutputFormat::Mxfp8,
        }
    }

    /// The formats of the kernel of gate and up, and of that of down, whose result is in the source's format.
    pub fn formats(self, weights: OperandFormat, source: Source) -> [Formats; 2] {
        let result = Travel::Sixteen(source).output();
        [self.output(), result].map(|c| Formats::new(self.operand(), self.weights(weights), c))
    }

    /// What the reference rounds activations to.
    pub fn activations(self, scales: [f32; 2]) -> verify::Activations {
        let scales = match self {
            Travel::E4m3Rows(_) => verify::Scales::Rows,
            Travel::Sixteen(_)
            | Travel::Nvfp4
            | Travel::Nvfp4Apart(_)
            | Travel::E4m3
            | Travel::Blocks(..)
            | Travel::Mxfp8 => verify::Scales::Tensors(scales),
        };
        let between = self.between().map(|source| Travel::Sixteen(source).operand());
        verify::Activations { format: self.operand(), scales, between }
    }

    /// The scale of the whole middle tensor if the checkpoint has none. NVFP4: elements up to 168 keep their size, and blocks
    /// whose largest element is 0.006 or more have scale factors of full precision. e4m3: elements up to 448 keep their
    /// size, and those of 0.016 or more their precision.
    pub fn middle_scale(self) -> f32 {
        match self {
            Travel::Nvfp4 | Travel::Nvfp4Apart(_) => 1.0 / 16.0,
            Travel::Sixteen(_) | Travel::E4m3 | Travel::E4m3Rows(_) | Travel::Blocks(..) | Travel::Mxfp8 => {
                1.0
            }
        }
    }
}

/// Activations in the format that a kernel reads.
#[derive(Clone)]
pub(super) struct Quantised {
    quantizer: Kind,
    codes: Buffer,
    scales: Option<Buffer>,
    /// A scale for each row, f32.
    row_scales: Option<Buffer>,
    k: u32,
    /// The scale of the whole tensor.
    pub scale: f32,
}

#[derive(Clone)]
enum Kind {
    Nvfp4(Quantizer),
    E4m3(E4m3Quantizer),
    E4m3Rows(E4m3RowQuantizer),
    Blocks(E4m3BlockQuantizer),
}

/// Codes and scale factors, for a call.
pub(super) struct Part {
    pub codes: Buffer,
    pub scales: Option<Buffer>,
    /// A scale for each row.
    pub row_scales: Option<Buffer>,
}

impl Part {
    /// All of them.
    pub fn buffers(self) -> impl Iterator<Item = Buffer> {
        [self.codes].into_iter().chain(self.scales).chain(self.row_scales)
    }
}

impl Quantised {
    /// `None` where x stays as it is.
    pub fn new(
        device: &Device,
        travel: Travel,
        source: Source,
        most: u32,
        k: u32,
        scale: Option<f32>,
    ) -> Result<Option<Self>, MlpError> {
        let scale = if travel.scales_tensors() { scale.unwrap_or(1.0) } else { 1.0 };
        let mut row_scales = None;
        let (quantizer, codes, scales) = match travel {
            Travel::Sixteen(_) => return Ok(None),
            Travel::Nvfp4 | Travel::Nvfp4Apart(_) => {
                let [codes, scales] = Quantizer::bytes(most, k)?;
                // The kernel also reads blocks that no call has written.
                let scales = zeros(device, scales)?;
                (Kind::Nvfp4(Quantizer::load(device, source)?), codes, Some(scales))
            }
            Travel::E4m3 => {
                (Kind::E4m3(E4m3Quantizer::load(device, source)?), most as usize * k as usize, None)
            }
            Travel::E4m3Rows(_) => {
                // The kernel also reads scales of rows that no call has written.
                row_scales = Some(zeros(device, 4 * most as usize)?);
                (Kind::E4m3Rows(E4m3RowQuantizer::load(device, source)?), most as usize * k as usize, None)
            }
            Travel::Blocks(..) | Travel::Mxfp8 => {
                let quantizer = E4m3BlockQuantizer::load(device, source, travel.blocks())?;
                let [codes, scales] = quantizer.bytes(most, k)?;
                // The kernel also reads scale factors that no call has written.
                let scales = zeros(device, scales)?;
                (Kind::Blocks(quantizer), codes, Some(scales))
            }
        };
        // The kernel reads whole tiles, also rows that no call has written: on Hopper rows that A lacks cost more (decision 0210).
        let codes = zeros(device, codes)?;
        Ok(Some(Quantised { quantizer, codes, scales, row_scales, k, scale }))
    }

    /// The same kernel and memory for a tensor with another scale.
    pub fn scaled(&self, scale: Option<f32>) -> Self {
        let scale = match self.quantizer {
            Kind::Nvfp4(_) | Kind::E4m3(_) => scale.unwrap_or(1.0),
            Kind::E4m3Rows(_) | Kind::Blocks(_) => 1.0,
        };
        Quantised { scale, ..self.clone() }
    }

    /// Quantises the tokens of a call. Returns what a kernel of `rows` rows reads: beyond the tokens, what an earlier call left.
    pub fn run(&self, stream: &Stream, x: &Buffer, tokens: u32, rows: u32) -> Result<Part, MlpError> {
        let from = Activations { x, rows: tokens, k: self.k, tensor_scale: self.scale };
        let part = self.of(rows)?;
        let codes = part.codes.slice(0, self.bytes(tokens)?[0])?;
        match (&self.quantizer, self.scales.as_ref().or(self.row_scales.as_ref())) {
            (Kind::E4m3Rows(quantizer), Some(scales)) => {
                let written = scales.slice(0, 4 * tokens as usize)?;
                quantizer.launch(stream, x, [tokens, self.k], &codes, &written)?;
            }
            (Kind::Nvfp4(quantizer), Some(scales)) => {
                let [_, written] = self.bytes(tokens)?;
                quantizer.launch(stream, &from, &codes, &scales.slice(0, written)?)?;
            }
            (Kind::Blocks(quantizer), Some(scales)) => {
                let [_, written] = self.bytes(tokens)?;
                quantizer.launch(stream, x, [tokens, self.k], &codes, &scales.slice(0, written)?)?;
            }
            (Kind::E4m3(quantizer), _) => quantizer.launch(stream, &from, &codes)?,
            // These have scales.
            (Kind::Nvfp4(_) | Kind::E4m3Rows(_) | Kind::Blocks(_), None) => {}
        }
        Ok(part)
    }

    /// The launch for `tokens` tokens.
    #[cfg(feature = "emulated")]
    pub fn plain_launch(&self, tokens: u32) -> Result<PlainLaunch<'_>, MlpError> {
        let sizes = [tokens, self.k];
        Ok(match &self.quantizer {
            Kind::Nvfp4(it) => PlainLaunch::new(it.kernel(), &it.call(sizes, self.scale)?),
            Kind::E4m3(it) => PlainLaunch::new(it.kernel(), &it.call(sizes, self.scale)?),
            Kind::E4m3Rows(it) => PlainLaunch::new(it.kernel(), &it.call(sizes)?),
            Kind::Blocks(it) => PlainLaunch::new(it.kernel(), &it.call(sizes)?),
        })
    }

    /// What a kernel of `rows` rows reads.
    pub fn of(&self, rows: u32) -> Result<Part, MlpError> {
        let [codes, read] = self.bytes(rows)?;
        let scales = self.scales.as_ref().map(|scales| scales.slice(0, read)).transpose()?;
        let of_rows = |scales: &Buffer| scales.slice(0, 4 * rows as usize);
        let row_scales = self.row_scales.as_ref().map(of_rows).transpose()?;
        Ok(Part { codes: self.codes.slice(0, codes)?, scales, row_scales })
    }

    /// Bytes of codes and of scale factors.
    fn bytes(&self, rows: u32) -> Result<[usize; 2], MlpError> {
        match &self.quantizer {
            Kind::Nvfp4(_) => Ok(Quantizer::bytes(rows, self.k)?),
            Kind::Blocks(quantizer) => Ok(quantizer.bytes(rows, self.k)?),
            Kind::E4m3(_) | Kind::E4m3Rows(_) => Ok([rows as usize * self.k as usize, 0]),
        }
    }
}

/// Memory of zeros, written piece by piece: for many tokens it is gigabytes.
pub(super) fn zeros(device: &Device, bytes: usize) -> Result<Buffer, DeviceError> {
    let (buffer, piece) = (device.alloc(bytes)?, vec![0; bytes.min(PIECE)]);
    for start in (0..bytes).step_by(PIECE) {
        let len = PIECE.min(bytes - start);
        buffer.slice(start, len)?.write(&piece[..len])?;
    }
    Ok(buffer)
}

/// `act(gate(x)) * up(x)`, with its scale factors where the format has them.
#[derive(Clone)]
pub(super) struct Middle {
    codes: Buffer,
    /// Scale factors, and how many elements share one.
    scales: Option<(Buffer, ScaleSpec<ByteScale>)>,
    features: u32,
    bits: u32,
    /// The scale of the whole tensor.
    pub scale: f32,
}

impl Middle {
    /// Memory for `most` rows. It starts as zeros: the first kernel skips rows that do not count, and the second may load
    /// some of them with its last tile.
    pub fn new(
        device: &Device,
        travel: Travel,
        most: u32,
        features: u32,
        scale: Option<f32>,
    ) -> Result<Self, MlpError> {
        let bits = travel.output().bits();
        let scales = match travel.output().scales() {
            Some(spec) => Some((zeros(device, spec.blocked_bytes(most, features) as usize)?, spec)),
            None => None,
        };
        let scale = Self::scale_of(travel, scale);
        Ok(Middle { codes: zeros(device, codes(most, features, bits))?, scales, features, bits, scale })
    }

    fn scale_of(travel: Travel, scale: Option<f32>) -> f32 {
        if travel.scales_tensors() { scale.unwrap_or(travel.middle_scale()) } else { 1.0 }
    }

    /// The same memory with another layer's scale.
    pub fn scaled(&self, travel: Travel, scale: Option<f32>) -> Self {
        Middle { scale: Self::scale_of(travel, scale), ..self.clone() }
    }

    /// The part of a bucket of `rows` rows.
    pub fn of(&self, rows: u32) -> Result<Part, DeviceError> {
        let of = |(scales, spec): &(Buffer, ScaleSpec<ByteScale>)| {
            scales.slice(0, spec.blocked_bytes(rows, self.features) as usize)
        };
        Ok(Part {
            codes: self.codes.slice(0, codes(rows, self.features, self.bits))?,
            scales: self.scales.as_ref().map(of).transpose()?,
            row_scales: None,
        })
    }
}

fn codes(rows: u32, features: u32, bits: u32) -> usize {
    rows as usize * features as usize * bits as usize / 8
}
