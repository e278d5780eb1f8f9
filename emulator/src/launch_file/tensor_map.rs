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

const DATA_TYPES: [(&str, DataType); 16] = [
    ("u8", DataType::U8),
    ("u16", DataType::U16),
    ("u32", DataType::U32),
    ("i32", DataType::I32),
    ("u64", DataType::U64),
    ("i64", DataType::I64),
    ("f16", DataType::F16),
    ("f32", DataType::F32),
    ("f64", DataType::F64),
    ("bf16", DataType::Bf16),
    ("f32_ftz", DataType::F32Ftz),
    ("tf32", DataType::Tf32),
    ("tf32_ftz", DataType::Tf32Ftz),
    ("16u4_align8b", DataType::U4x16Align8B),
    ("16u4_align16b", DataType::U4x16Align16B),
    ("16u6_align16b", DataType::U6x16Align16B),
];

const SWIZZLES: [(&str, SwizzleMode); 7] = [
    ("none", SwizzleMode::None),
    ("32b", SwizzleMode::B32),
    ("64b", SwizzleMode::B64),
    ("128b", SwizzleMode::B128),
    ("128b_atom_32b", SwizzleMode::B128Atom32),
    ("128b_atom_32b_flip_8b", SwizzleMode::B128Atom32Flip8),
    ("128b_atom_64b", SwizzleMode::B128Atom64),
];

const INTERLEAVES: [(&str, Interleave); 3] =
    [("none", Interleave::None), ("16b", Interleave::B16), ("32b", Interleave::B32)];

const PROMOTIONS: [(&str, L2Promotion); 4] = [
    ("none", L2Promotion::None),
    ("64b", L2Promotion::B64),
    ("128b", L2Promotion::B128),
    ("256b", L2Promotion::B256),
];

const FILLS: [(&str, OobFill); 3] = [
    ("none", OobFill::Zeros),
    ("zeros", OobFill::Zeros),
    ("nan_request_zero_fma", OobFill::NanRequestZeroFma),
];

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
    let data_type = reader.choice(data_type, &sub("data_type"), &DATA_TYPES)?;
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
            Some(name) => reader.choice(name, &sub("interleave"), &INTERLEAVES)?,
            None => Interleave::None,
        },
        swizzle: match &t.swizzle {
            Some(name) => reader.choice(name, &sub("swizzle"), &SWIZZLES)?,
            None => SwizzleMode::None,
        },
        l2_promotion: match &t.l2_promotion {
            Some(name) => reader.choice(name, &sub("l2_promotion"), &PROMOTIONS)?,
            None => L2Promotion::None,
        },
        oob_fill: match &t.oob_fill {
            Some(name) => reader.choice(name, &sub("oob_fill"), &FILLS)?,
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
