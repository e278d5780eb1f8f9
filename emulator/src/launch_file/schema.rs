//! The keys of a launch file as TOML has them, before their values are checked.
//!
//! Every value has its place in the text. An unknown key is an error that lists the known ones.

use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// An integer of any range that TOML can write.
pub(crate) type Integer = Spanned<i128>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub ptx: Spanned<String>,
    pub kernel: Spanned<String>,
    pub grid: Spanned<Vec<Integer>>,
    pub block: Spanned<Vec<Integer>>,
    pub cluster: Option<Spanned<Vec<Integer>>>,
    pub dynamic_smem: Option<Integer>,
    /// Whether the launch may start before the one before it in the stream ends. The emulator runs each launch alone.
    #[allow(dead_code, reason = "read so that it may stand there")]
    pub programmatic: Option<bool>,
    #[serde(default)]
    pub buffers: BTreeMap<String, Spanned<BufferTable>>,
    #[serde(default)]
    pub params: Vec<Spanned<Param>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BufferTable {
    pub file: Option<Spanned<String>>,
    pub bytes: Option<Integer>,
    pub fill: Option<Integer>,
    /// Values one after another, as parameters are written.
    pub values: Option<Vec<Spanned<Param>>>,
}

/// A parameter, or a field of a struct: exactly one of the kinds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Param {
    /// For a pointer: offset in the buffer in bytes. For a field: offset in the struct in bytes.
    pub offset: Option<Integer>,
    /// For a field that is a pointer: offset in the buffer in bytes.
    pub pointer_offset: Option<Integer>,
    pub pointer: Option<Spanned<String>>,
    pub null: Option<Spanned<bool>>,
    pub u8: Option<Integer>,
    pub u16: Option<Integer>,
    pub u32: Option<Integer>,
    pub i32: Option<Integer>,
    pub u64: Option<Integer>,
    pub i64: Option<Integer>,
    pub f32: Option<Spanned<f64>>,
    pub f64: Option<Spanned<f64>>,
    pub hex: Option<Spanned<String>>,
    pub tensor_map: Option<Spanned<TensorMapTable>>,
    #[serde(rename = "struct")]
    pub structure: Option<Spanned<StructTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StructTable {
    pub size: Integer,
    #[serde(default)]
    pub fields: Vec<Spanned<Param>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorMapTable {
    pub buffer: Option<Spanned<String>>,
    pub offset: Option<Integer>,
    pub data_type: Option<Spanned<String>>,
    pub dims: Option<Spanned<Vec<Integer>>>,
    pub strides: Option<Spanned<Vec<Integer>>>,
    #[serde(rename = "box")]
    pub box_dims: Option<Spanned<Vec<Integer>>>,
    pub element_strides: Option<Spanned<Vec<Integer>>>,
    /// These four instead of `box` make it an im2col map.
    pub lower_corner: Option<Spanned<Vec<Integer>>>,
    pub upper_corner: Option<Spanned<Vec<Integer>>>,
    pub channels: Option<Integer>,
    pub pixels: Option<Integer>,
    pub interleave: Option<Spanned<String>>,
    pub swizzle: Option<Spanned<String>>,
    pub l2_promotion: Option<Spanned<String>>,
    pub oob_fill: Option<Spanned<String>>,
}
