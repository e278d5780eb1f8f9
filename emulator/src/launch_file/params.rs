//! Parameters of a launch file as bytes for the kernel.

use super::buffers::BufferSpec;
use super::reader::{Read, Reader};
use super::schema::{Integer, Param, StructTable};
use super::tensor_map;
use crate::memory::GlobalMemory;
use std::ops::Range;
use toml::Spanned;

/// Most parameter bytes of a kernel (PTX ISA, kernel function parameters).
const MAX_PARAMETER_BYTES: i128 = 32764;
/// Alignment of a tensor map's address in bytes (CUDA driver API, `CUtensorMap`).
const TENSOR_MAP_ALIGNMENT: usize = 64;
const KINDS: &str = "pointer, null, u8, u16, u32, i32, u64, i64, f32, f64, hex, tensor_map, struct";

/// Buffers by name with their addresses in a fresh memory that holds them in order.
pub(super) struct Buffers<'a> {
    specs: &'a [BufferSpec],
    addresses: Vec<u64>,
}

impl<'a> Buffers<'a> {
    pub fn new(specs: &'a [BufferSpec]) -> Self {
        let mut memory = GlobalMemory::new();
        let addresses = specs
            .iter()
            .map(|spec| {
                let buffer = memory.alloc(&spec.name, 0);
                memory.address(&buffer)
            })
            .collect();
        Buffers { specs, addresses }
    }

    /// The address of a byte of a buffer. One past the end is allowed, as in C.
    pub fn address(
        &self,
        reader: &Reader<'_>,
        name: &Spanned<String>,
        offset: Option<&Integer>,
        key: &str,
        offset_key: &str,
    ) -> Read<u64> {
        let found = self.specs.iter().zip(&self.addresses).find(|(spec, _)| spec.name == *name.get_ref());
        let Some((spec, &address)) = found else {
            let known: Vec<&str> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!(
                "there is no buffer `{}`; there are: {known}. Add a table [buffers.NAME]",
                name.get_ref()
            );
            return reader.bad(name.span(), key, message);
        };
        let offset: u64 = match offset {
            Some(n) => {
                let hint = format!(" bytes, the size of `{}`", spec.name);
                reader.integer(n, offset_key, 0..=i128::from(spec.bytes), &hint)?
            }
            None => 0,
        };
        Ok(address + offset)
    }
}

/// The bytes of each parameter, with its place in the text.
pub(super) fn read(
    reader: &Reader<'_>,
    buffers: &Buffers<'_>,
    params: &[Spanned<Param>],
) -> Read<Vec<(Vec<u8>, Range<usize>)>> {
    let mut out = Vec::new();
    for (i, param) in params.iter().enumerate() {
        out.push((value(reader, buffers, param, &format!("params[{i}]"), false)?, param.span()));
    }
    Ok(out)
}

/// The bytes of a buffer's values, one after another without gaps.
pub(super) fn values(
    reader: &Reader<'_>,
    buffers: &Buffers<'_>,
    values: &[Spanned<Param>],
    key: &str,
) -> Read<Vec<u8>> {
    let mut out = Vec::new();
    for (i, v) in values.iter().enumerate() {
        out.extend(value(reader, buffers, v, &format!("{key}.values[{i}]"), false)?);
    }
    Ok(out)
}

/// The bytes of a parameter, or of a field of a struct.
fn value(
    reader: &Reader<'_>,
    buffers: &Buffers<'_>,
    param: &Spanned<Param>,
    key: &str,
    field: bool,
) -> Read<Vec<u8>> {
    let p = param.get_ref();
    let given = [
        ("pointer", p.pointer.is_some()),
        ("null", p.null.is_some()),
        ("u8", p.u8.is_some()),
        ("u16", p.u16.is_some()),
        ("u32", p.u32.is_some()),
        ("i32", p.i32.is_some()),
        ("u64", p.u64.is_some()),
        ("i64", p.i64.is_some()),
        ("f32", p.f32.is_some()),
        ("f64", p.f64.is_some()),
        ("hex", p.hex.is_some()),
        ("tensor_map", p.tensor_map.is_some()),
        ("struct", p.structure.is_some()),
    ];
    let kinds: Vec<&str> = given.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    let &[kind] = kinds.as_slice() else {
        let message = match kinds.len() {
            0 => format!("it has no value: give one of {KINDS}"),
            _ => format!("it has {} values, {}: leave one", kinds.len(), kinds.join(" and ")),
        };
        return reader.bad(param.span(), key, message);
    };
    let offset = if field { &p.pointer_offset } else { &p.offset };
    let misplaced = if field { None } else { p.pointer_offset.as_ref().map(|v| ("pointer_offset", v)) };
    let useless = offset.as_ref().filter(|_| kind != "pointer").map(|v| ("offset", v));
    if let Some((name, v)) = misplaced.or(useless) {
        let message = match name {
            "pointer_offset" => "outside a struct the offset of a pointer is called `offset`",
            _ if field => "`pointer_offset` goes with `pointer`",
            _ => "`offset` goes with `pointer`; the offset of a tensor map is inside its braces",
        };
        return reader.bad(v.span(), format_args!("{key}.{name}"), message);
    }
    let sub = |k: &str| format!("{key}.{k}");
    let integer = |v: &Integer, name: &str, low: i128, high: i128, bytes: usize| -> Read<Vec<u8>> {
        let hint = format!(" for {name}; `hex` takes any bytes");
        let v: i128 = reader.integer(v, sub(name), low..=high, &hint)?;
        Ok(v.to_le_bytes()[..bytes].to_vec())
    };
    // Exactly one of these is there.
    if let Some(name) = &p.pointer {
        let offset_key = sub(if field { "pointer_offset" } else { "offset" });
        let address = buffers.address(reader, name, offset.as_ref(), &sub("pointer"), &offset_key)?;
        return Ok(address.to_le_bytes().to_vec());
    }
    if let Some(null) = &p.null {
        if !*null.get_ref() {
            return reader.bad(
                null.span(),
                sub("null"),
                "false says nothing: give `pointer = \"BUFFER\"` instead",
            );
        }
        return Ok(vec![0; 8]);
    }
    for (v, name, low, high, bytes) in [
        (&p.u8, "u8", 0, i128::from(u8::MAX), 1),
        (&p.u16, "u16", 0, i128::from(u16::MAX), 2),
        (&p.u32, "u32", 0, i128::from(u32::MAX), 4),
        (&p.i32, "i32", i128::from(i32::MIN), i128::from(i32::MAX), 4),
        (&p.u64, "u64", 0, i128::from(u64::MAX), 8),
        (&p.i64, "i64", i128::from(i64::MIN), i128::from(i64::MAX), 8),
    ] {
        if let Some(v) = v {
            return integer(v, name, low, high, bytes);
        }
    }
    if let Some(v) = &p.f32 {
        let (wide, narrow) = (*v.get_ref(), *v.get_ref() as f32);
        if wide.is_finite() && !narrow.is_finite() {
            let message =
                format!("{wide:e} is beyond f32, which ends at {:e}: write inf, or use f64", f32::MAX);
            return reader.bad(v.span(), sub("f32"), message);
        }
        return Ok(narrow.to_le_bytes().to_vec());
    }
    if let Some(v) = &p.f64 {
        return Ok(v.get_ref().to_le_bytes().to_vec());
    }
    if let Some(text) = &p.hex {
        return hex(reader, text, &sub("hex"));
    }
    if let Some(table) = &p.tensor_map {
        return Ok(tensor_map::encode(reader, buffers, table, &sub("tensor_map"))?.to_vec());
    }
    match &p.structure {
        Some(table) if field => {
            let message =
                "a struct within a struct: give its fields to the outer one, with their offsets there";
            reader.bad(table.span(), sub("struct"), message)
        }
        Some(table) => structure(reader, buffers, table, &sub("struct")),
        None => reader.bad(param.span(), key, format_args!("it has no value: give one of {KINDS}")),
    }
}

/// Raw bytes. Digits may be separated by spaces and underscores.
fn hex(reader: &Reader<'_>, text: &Spanned<String>, key: &str) -> Read<Vec<u8>> {
    let digits: Vec<char> = text.get_ref().chars().filter(|c| !matches!(c, ' ' | '_')).collect();
    if let Some(c) = digits.iter().find(|c| !c.is_ascii_hexdigit()) {
        let message = format!(
            "{c:?} is not a hexadecimal digit: write two of 0-9 a-f for a byte, lowest address first"
        );
        return reader.bad(text.span(), key, message);
    }
    if !digits.len().is_multiple_of(2) {
        let message = format!("{} digits: it must be an even number, two for a byte", digits.len());
        return reader.bad(text.span(), key, message);
    }
    let nibble = |c: char| c.to_digit(16).unwrap_or(0) as u8;
    Ok(digits.chunks_exact(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect())
}

/// A struct passed by value: zeros, with the fields at their offsets.
fn structure(
    reader: &Reader<'_>,
    buffers: &Buffers<'_>,
    table: &Spanned<StructTable>,
    key: &str,
) -> Read<Vec<u8>> {
    let t = table.get_ref();
    let hint = " bytes, what a kernel's parameters may take";
    let size: usize = reader.integer(&t.size, format_args!("{key}.size"), 1..=MAX_PARAMETER_BYTES, hint)?;
    let mut out = vec![0u8; size];
    let mut taken: Vec<Range<usize>> = Vec::new();
    for (i, field) in t.fields.iter().enumerate() {
        let key = format!("{key}.fields[{i}]");
        let bytes = value(reader, buffers, field, &key, true)?;
        let Some(offset) = &field.get_ref().offset else {
            return reader.bad(field.span(), &key, "`offset` is missing: bytes from the start of the struct");
        };
        let hint = format!(
            ": the field has {} bytes and the struct {size}; make `size` larger or `offset` smaller",
            bytes.len()
        );
        let room = size as i128 - bytes.len() as i128;
        if room < 0 {
            return reader.bad(field.span(), &key, format_args!("it does not fit{hint}"));
        }
        let at: usize = reader.integer(offset, format_args!("{key}.offset"), 0..=room, &hint)?;
        if field.get_ref().tensor_map.is_some() && !at.is_multiple_of(TENSOR_MAP_ALIGNMENT) {
            let message =
                format!("{at}: a tensor map must lie at a multiple of {TENSOR_MAP_ALIGNMENT} bytes");
            return reader.bad(offset.span(), format_args!("{key}.offset"), message);
        }
        let range = at..at + bytes.len();
        if let Some(n) = taken.iter().position(|r| r.start < range.end && range.start < r.end) {
            let other = &taken[n];
            let message = format!(
                "bytes {at} to {} overlap fields[{n}], which has bytes {} to {}: move one of them",
                range.end, other.start, other.end
            );
            return reader.bad(offset.span(), format_args!("{key}.offset"), message);
        }
        out[range.clone()].copy_from_slice(&bytes);
        taken.push(range);
    }
    Ok(out)
}
