//! Tokens to the rows of their experts, and rows back to tokens.

use silumin_codegen::prepare::{MAX_EXPERTS, Preparation};

use super::super::parts::Travel;
use super::super::{MlpError, Source};
use super::memory::Memory;
use crate::device::plain::Plain;
use crate::device::{Buffer, Device, Stream};
use crate::prepare::{E4m3RowQuantizer, Loaded};

/// How x gets to its rows.
#[derive(Clone)]
enum Gather {
    /// As it is.
    Copy(Loaded),
    /// In NVFP4, with scale factors and a scale of the whole tensor.
    Nvfp4(Loaded, f32),
    /// In e4m3, with a scale of the whole tensor.
    E4m3(Loaded, f32),
    /// In e4m3, with a scale for each row; and the middle from its 16 bits, by a launch of its own.
    E4m3Rows(Loaded, E4m3RowQuantizer),
    /// In e4m3, with scale factors of blocks.
    Blocks(Loaded),
}

/// The kernels around the projections.
#[derive(Clone)]
pub(super) struct Router {
    route: Loaded,
    gather: Gather,
    combine: Loaded,
    hidden: u32,
    top_k: u32,
    /// Number of the first expert, and how many there are.
    experts: [u32; 2],
}

/// The tokens of a call, and what they chose.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub count: u32,
    /// `[tokens, hidden]` in the source's format.
    pub x: &'a Buffer,
    /// i32 `[tokens, top_k]`.
    pub experts: &'a Buffer,
    /// f32 `[tokens, top_k]`.
    pub weights: &'a Buffer,
    pub residual: Option<&'a Buffer>,
    pub out: &'a Buffer,
}

impl Router {
    /// Loads the kernels. `scale` is that of the whole x, where there is one.
    pub fn load(
        device: &Device,
        source: Source,
        travel: Travel,
        scale: f32,
        [hidden, top_k]: [u32; 2],
        experts: [u32; 2],
    ) -> Result<Self, MlpError> {
        if !(1..=MAX_EXPERTS).contains(&experts[1]) {
            return Err(MlpError::Experts { found: experts[1] as usize, limit: MAX_EXPERTS });
        }
        let load = |preparation| Loaded::new(device, preparation);
        let gather = match travel {
            Travel::Sixteen(_) => Gather::Copy(load(Preparation::Gather)?),
            Travel::Nvfp4 | Travel::Nvfp4Apart(_) => {
                Gather::Nvfp4(load(Preparation::GatherQuantize(source))?, scale)
            }
            Travel::E4m3 => Gather::E4m3(load(Preparation::GatherQuantizeE4m3(source))?, scale),
            Travel::Blocks(..) | Travel::Mxfp8 => {
                Gather::Blocks(load(travel.blocks().preparations(source)[1])?)
            }
            Travel::E4m3Rows(_) => Gather::E4m3Rows(
                load(Preparation::GatherQuantizeE4m3Rows(source))?,
                E4m3RowQuantizer::load(device, source)?,
            ),
        };
        Ok(Router {
            route: Loaded::new(device, Preparation::Route)?,
            gather,
            combine: Loaded::new(device, Preparation::Combine(source))?,
            hidden,
            top_k,
            experts,
        })
    }

    /// The same kernels for an x with another scale.
    pub fn scaled(&self, scale: f32) -> Self {
        let gather = match &self.gather {
            Gather::Nvfp4(kernel, _) => Gather::Nvfp4(kernel.clone(), scale),
            Gather::E4m3(kernel, _) => Gather::E4m3(kernel.clone(), scale),
            Gather::Copy(_) | Gather::E4m3Rows(..) | Gather::Blocks(_) => self.gather.clone(),
        };
        Router { gather, ..self.clone() }
    }

    /// Sorts the choices by expert, and gathers x into rows.
    pub fn scatter(&self, stream: &Stream, tokens: &Tokens<'_>, memory: &Memory) -> Result<(), MlpError> {
        let (choices, [first, experts]) = (tokens.count * self.top_k, self.experts);
        let args = [
            Plain::Input("experts", tokens.experts),
            Plain::Output("offsets", &memory.offsets),
            Plain::Part("sources", &memory.sources),
            Plain::Output("places", &memory.places),
            Plain::U32(choices),
            Plain::U32(self.top_k),
            Plain::U32(first),
            Plain::U32(experts),
        ];
        self.route.launch(stream, self.route.ctas(choices, experts)?, &args)?;

        let blocks = self.hidden / 16;
        let mut args = vec![Plain::Input("x", tokens.x)];
        if let Gather::Copy(_) | Gather::Nvfp4(..) | Gather::Blocks(_) = self.gather {
            args.extend([Plain::Input("sources", &memory.sources), Plain::Input("offsets", &memory.offsets)]);
        }
        // A thread that quantises stores to all rows of its token. A thread that copies has one row.
        let copies = matches!(self.gather, Gather::Copy(_));
        args.extend((!copies).then_some(Plain::Input("places", &memory.places)));
        args.push(Plain::Part("rows", &memory.x));
        let items = if copies { choices } else { tokens.count };
        args.extend(memory.x_scales.as_ref().map(|scales| Plain::Part("scales", scales)));
        let [count, columns, top_k] = [tokens.count, blocks, self.top_k].map(Plain::U32);
        let kernel = match &self.gather {
            Gather::Copy(kernel) => {
                args.extend([Plain::U32(items), columns, Plain::U32(experts)]);
                kernel
            }
            Gather::Nvfp4(kernel, scale) => {
                args.extend([count, columns, Plain::U32(experts), top_k, Plain::F32(*scale)]);
                kernel
            }
            Gather::Blocks(kernel) => {
                args.extend([count, columns, Plain::U32(experts), top_k]);
                kernel
            }
            Gather::E4m3(kernel, scale) => {
                args.extend([count, columns, top_k, Plain::F32(*scale)]);
                kernel
            }
            Gather::E4m3Rows(kernel, _) => {
                args.extend(memory.row_scales.as_ref().map(|[x, _]| Plain::Part("scales", x)));
                args.extend([columns, top_k]);
                kernel
            }
        };
        Ok(kernel.launch(stream, kernel.ctas(items, blocks)?, &args)?)
    }

    /// Quantises the middle, where the first kernel leaves it in 16 bits and the second wants it in another format. `scale` is that
    /// of the whole middle.
    pub fn requantise(
        &self,
        stream: &Stream,
        [choices, features]: [u32; 2],
        scale: f32,
        memory: &Memory,
    ) -> Result<(), MlpError> {
        let Some(codes) = &memory.middle_codes else { return Ok(()) };
        match (&self.gather, &memory.row_scales, &memory.middle_scales) {
            (Gather::E4m3Rows(_, quantizer), Some([_, scales]), _) => {
                let elements = choices as usize * features as usize;
                let (from, to) = (memory.middle.slice(0, 2 * elements)?, codes.slice(0, elements)?);
                let scales = scales.slice(0, 4 * choices as usize)?;
                quantizer.launch(stream, &from, [choices, features], &to, &scales)?;
            }
            (Gather::Nvfp4(kernel, _) | Gather::Blocks(kernel), _, Some(scales)) => {
                let mut args = vec![
                    Plain::Input("middle", &memory.middle),
                    Plain::Input("sources", &memory.sources),
                    Plain::Input("offsets", &memory.offsets),
                    Plain::Input("places", &memory.places),
                    Plain::Part("codes", codes),
                    Plain::Part("scales", scales),
                    Plain::U32(choices),
                    Plain::U32(features / 16),
                    Plain::U32(self.experts[1]),
                    // In place: no choices.
                    Plain::U32(0),
                ];
                // The kernels for blocks of e4m3 take no tensor scale.
                args.extend(matches!(self.gather, Gather::Nvfp4(..)).then_some(Plain::F32(scale)));
                kernel.launch(stream, kernel.ctas(choices, features / 16)?, &args)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Sums each token's rows, by weight, onto the residual.
    pub fn combine(&self, stream: &Stream, tokens: &Tokens<'_>, memory: &Memory) -> Result<(), MlpError> {
        let blocks = self.hidden / 16;
        let args = [
            Plain::Input("rows", &memory.rows),
            Plain::Input("places", &memory.places),
            Plain::Input("weights", tokens.weights),
            // Not read without a residual.
            Plain::Input("residual", tokens.residual.unwrap_or(tokens.out)),
            Plain::Output("out", tokens.out),
            Plain::U32(tokens.count),
            Plain::U32(blocks),
            Plain::U32(self.top_k),
            Plain::U32(tokens.residual.is_some().into()),
        ];
        Ok(self.combine.launch(stream, self.combine.ctas(tokens.count, blocks)?, &args)?)
    }
}
