//! Tensor maps of a launch file: the arguments of `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` by name.
//!
//! Source: CUDA driver API, both functions and the enums of their arguments.

use super::params::Buffers;
use super::reader::{Read, Reader};
use super::schema::TensorMapTable;
use crate::Im2colParams;
use crate::engine::swizzle::SwizzleMode;
use crate::engine::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMapError, TensorMapParams,
};
use toml::Spanned;

/// The key whose value violates a rule.
fn culprit(error: &TensorMapError) -> &'static str {
    match error {
        TensorMapError::Rank { .. } | TensorMapError::GlobalDim { .. } | TensorMapError::PackedDim { .. } => {
            "dims"
        }
        TensorMapError::Length { field, .. } => match *field {
            "globalStrides" => "strides",
            "boxDim" => "box",
            _ => "element_strides",
        },
        TensorMapError::Interleave { .. } => "interleave",
        TensorMapError::GlobalAddress { .. } => "offset",
        TensorMapError::StrideAlignment { .. } | TensorMapError::StrideRange { .. } => "strides",
        TensorMapError::BoxDim { .. }
        | TensorMapError::InnerBoxGranularity { .. }
        | TensorMapError::PaddedInnerBox { .. }
        | TensorMapError::InnerBoxSpan { .. } => "box",
        TensorMapError::ElementStride { .. } => "element_strides",
        TensorMapError::PaddedSwizzle { .. } => "swizzle",
        TensorMapError::NanFill { .. } => "oob_fill",
    }
}

/// Encodes a tensor map.
pub(super) fn encode(
    reader: &Reader<'_>,
    buffers: &Buffers<'_>,
    table: &Spanned<TensorMapTable>,
    key: &str,
) -> Read<[u8; 128]> {
    let t = table.get_ref();
    let sub = |k: &str| format!("{key}.{k}");
    let im2col = column(reader, t, key)?;
    let no_box = Spanned::new(table.span(), Vec::new());
    let box_dims = t.box_dims.as_ref().or(im2col.is_some().then_some(&no_box));
    let (Some(buffer), Some(data_type), Some(dims), Some(box_dims)) =
        (&t.buffer, &t.data_type, &t.dims, box_dims)
    else {
        let given = [
            ("buffer", t.buffer.is_some()),
            ("data_type", t.data_type.is_some()),
            ("dims", t.dims.is_some()),
            ("box", t.box_dims.is_some()),
        ];
        let missing: Vec<String> =
            given.iter().filter(|(_, there)| !there).map(|(name, _)| format!("`{name}`")).collect();
        let message = format!(
            "{} missing: a tensor map needs `buffer`, `data_type`, `dims` and `box`; the rest has defaults",
            missing.join(", ")
        );
        return reader.bad(table.span(), key, message);
    };
    let base = buffers.address(reader, buffer, t.offset.as_ref(), &sub("buffer"), &sub("offset"))?;
    let data_type = reader.choice(data_type, &sub("data_type"), &DataType::NAMES)?;
    let word = 0..=i128::from(u64::MAX);
    let half = 0..=i128::from(u32::MAX);
    let global_dims: Vec<u64> = reader.list(dims, &sub("dims"), word.clone(), "")?;
    let global_strides = match &t.strides {
        Some(strides) => reader.list(strides, &sub("strides"), word, "")?,
        None => packed(&global_dims, data_type),
    };
    let params = TensorMapParams {
        data_type,
        global_address: base,
        global_strides,
        box_dims: match &im2col {
            Some(c) => vec![c.channels; global_dims.len()],
            None => reader.list(box_dims, &sub("box"), half.clone(), "")?,
        },
        element_strides: match &t.element_strides {
            Some(list) => reader.list(list, &sub("element_strides"), half, "")?,
            None => vec![1; global_dims.len()],
        },
        global_dims,
        interleave: match &t.interleave {
            Some(name) => reader.choice(name, &sub("interleave"), &Interleave::NAMES)?,
            None => Interleave::None,
        },
        swizzle: match &t.swizzle {
            Some(name) => reader.choice(name, &sub("swizzle"), &SwizzleMode::NAMES)?,
            None => SwizzleMode::None,
        },
        l2_promotion: match &t.l2_promotion {
            Some(name) => reader.choice(name, &sub("l2_promotion"), &L2Promotion::NAMES)?,
            None => L2Promotion::None,
        },
        oob_fill: match &t.oob_fill {
            Some(name) => reader.choice(name, &sub("oob_fill"), &OobFill::NAMES)?,
            None => OobFill::Zeros,
        },
    };
    if let Some(Column { lower, upper, pixels, .. }) = im2col {
        let column = Im2colParams { tensor: params, lower, upper, pixels };
        return column.encode().or_else(|error| reader.bad(table.span(), key, error));
    }
    params.encode().or_else(|error| {
        let which = culprit(&error);
        let span = match which {
            "dims" => dims.span(),
            "box" => box_dims.span(),
            "strides" => t.strides.as_ref().map_or(table.span(), Spanned::span),
            "element_strides" => t.element_strides.as_ref().map_or(table.span(), Spanned::span),
            "interleave" => t.interleave.as_ref().map_or(table.span(), Spanned::span),
            "swizzle" => t.swizzle.as_ref().map_or(table.span(), Spanned::span),
            "oob_fill" => t.oob_fill.as_ref().map_or(table.span(), Spanned::span),
            _ => t.offset.as_ref().map_or(table.span(), Spanned::span),
        };
        reader.bad(span, sub(which), error)
    })
}

/// The parts of an im2col map that replace the box.
struct Column {
    lower: Vec<i32>,
    upper: Vec<i32>,
    channels: u32,
    pixels: u32,
}

/// The im2col keys: all four and no `box`, or none.
fn column(reader: &Reader<'_>, t: &TensorMapTable, key: &str) -> Read<Option<Column>> {
    let sub = |k: &str| format!("{key}.{k}");
    let (lower, upper, channels, pixels) = match (&t.lower_corner, &t.upper_corner, &t.channels, &t.pixels) {
        (None, None, None, None) => return Ok(None),
        (Some(lower), Some(upper), Some(channels), Some(pixels)) => (lower, upper, channels, pixels),
        (lower, upper, channels, pixels) => {
            let corners = lower.as_ref().or(upper.as_ref()).map(Spanned::span);
            let span = corners.or(channels.as_ref().or(pixels.as_ref()).map(Spanned::span));
            let message =
                "an im2col map has `lower_corner`, `upper_corner`, `channels` and `pixels`, all four";
            return reader.bad(span.unwrap_or_default(), key, message);
        }
    };
    if let Some(extra) = &t.box_dims {
        let message = "an im2col map has no box: `channels` and `pixels` say how large a copy is";
        return reader.bad(extra.span(), sub("box"), message);
    }
    let word = i128::from(i32::MIN)..=i128::from(i32::MAX);
    let half = 0..=i128::from(u32::MAX);
    Ok(Some(Column {
        lower: reader.list(lower, &sub("lower_corner"), word.clone(), "")?,
        upper: reader.list(upper, &sub("upper_corner"), word, "")?,
        channels: reader.integer(channels, sub("channels"), half.clone(), "")?,
        pixels: reader.integer(pixels, sub("pixels"), half, "")?,
    }))
}

/// Strides of a tensor without gaps.
fn packed(dims: &[u64], data_type: DataType) -> Vec<u64> {
    let mut elements = 1u128;
    let outer = dims.len().saturating_sub(1);
    dims.iter()
        .take(outer)
        .map(|&n| {
            elements = elements.saturating_mul(u128::from(n));
            let bytes = elements.saturating_mul(u128::from(data_type.bits())) / 8;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        })
        .collect()
}
