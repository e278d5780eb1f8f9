//! Launches from Python, as the emulator takes them.

use crate::fault::Fault;
use pyo3::prelude::*;
use silumin_emulator::launch_file::{BufferSpec, Contents};
use silumin_emulator::{
    Arg, DataType, GlobalMemory, Im2colParams, Interleave, L2Promotion, Launch, LaunchError, LaunchFile,
    Module, OobFill, SwizzleMode, TensorMapParams,
};

/// Most buffers of a launch: that many are far apart in memory, so that an access past the end of one hits no other.
const MAX_BUFFERS: usize = 768;
/// Largest buffer in bytes.
const MAX_BUFFER: u64 = (16 << 30) - (1 << 20);
/// Largest struct in bytes: what the parameters of a kernel may take (PTX ISA, kernel function parameters).
const MAX_STRUCT: usize = 32764;
/// Alignment of a tensor map's address in bytes (CUDA driver API, `CUtensorMap`).
const TENSOR_MAP_ALIGNMENT: usize = 64;

/// A buffer: its name, bytes, contents, and the byte that fills it where there are no contents. With neither it is undefined.
#[derive(FromPyObject)]
pub struct RawBuffer {
    name: String,
    #[pyo3(attribute("size"))]
    bytes: u64,
    data: Option<Vec<u8>>,
    fill: Option<u8>,
}

/// A tensor map. `pixels` makes it an im2col map.
#[derive(FromPyObject)]
pub struct RawMap {
    buffer: usize,
    offset: u64,
    data_type: String,
    dims: Vec<u64>,
    strides: Vec<u64>,
    box_dims: Vec<u32>,
    element_strides: Vec<u32>,
    interleave: String,
    swizzle: String,
    l2_promotion: String,
    oob_fill: String,
    lower_corner: Vec<i32>,
    upper_corner: Vec<i32>,
    channels: u32,
    pixels: Option<u32>,
}

/// An argument; exactly one of the values is there. `offset` is its place in a struct.
#[derive(FromPyObject)]
pub struct RawArg {
    label: String,
    offset: usize,
    #[pyo3(attribute("raw"))]
    bytes: Option<Vec<u8>>,
    integer: Option<i128>,
    #[pyo3(attribute("real"))]
    float: Option<f64>,
    /// Buffer and bytes into it.
    pointer: Option<(usize, u64)>,
    map: Option<RawMap>,
    /// Bytes and fields.
    structure: Option<(usize, Vec<RawArg>)>,
}

/// A launch.
#[derive(FromPyObject)]
pub struct RawLaunch {
    name: String,
    ptx: String,
    entry: Option<String>,
    grid: [u32; 3],
    block: Option<[u32; 3]>,
    cluster: Option<[u32; 3]>,
    shared: u32,
    args: Vec<RawArg>,
    buffers: Vec<RawBuffer>,
    chip: Option<String>,
}

/// Reads PTX, for a chip if one is given.
pub fn module(name: &str, ptx: &str, chip: Option<&str>) -> Result<Module, Fault> {
    let module = Module::parse(name, ptx).map_err(Fault::ptx)?;
    Ok(match chip {
        Some(chip) => module.on_chip(chip),
        None => module,
    })
}

impl RawLaunch {
    /// The launch, checked and ready to run.
    pub fn ready(self) -> Result<LaunchFile, Fault> {
        let module = module(&self.name, &self.ptx, self.chip.as_deref())?;
        let kernel = entry(&module, self.entry)?;
        let block = self.block.or_else(|| module.required_block(&kernel)).ok_or_else(|| {
            Fault::launch(format!(
                "block: `{kernel}` has no .reqntid that says how many threads a CTA has; give the launch a `block`"
            ))
        })?;
        let cluster = self.cluster.or_else(|| module.required_cluster(&kernel)).unwrap_or([1, 1, 1]);
        let addresses = addresses(&self.buffers)?;
        let parameters = module.parameters(&kernel).unwrap_or_default();
        let takes = || -> String {
            let takes: Vec<String> =
                parameters.iter().map(|p| format!("{} ({} bytes)", p.name, p.bytes)).collect();
            if takes.is_empty() { "nothing".to_owned() } else { takes.join(", ") }
        };
        if parameters.len() != self.args.len() {
            return Err(Fault::launch(format!(
                "args: `{kernel}` has {} parameters, and {} arguments were given; it takes: {}",
                parameters.len(),
                self.args.len(),
                takes()
            )));
        }
        let mut args = Vec::new();
        for (parameter, arg) in parameters.iter().zip(&self.args) {
            let bytes = arg.encode(Some(parameter.bytes as usize), &self.buffers, &addresses)?;
            if bytes.len() != parameter.bytes as usize {
                return Err(Fault::launch(format!(
                    "{}: {} bytes, and the parameter `{}` of `{kernel}` has {}{}; it takes: {}",
                    arg.label,
                    bytes.len(),
                    parameter.name,
                    parameter.bytes,
                    arg.way_out(),
                    takes()
                )));
            }
            args.push(Arg::Bytes(bytes));
        }
        let launch = Launch { grid: self.grid, block, cluster, dynamic_smem: self.shared, args };
        module.check(&kernel, &launch).map_err(|error| Fault::launch(explain(&error)))?;
        let buffers = self.buffers.into_iter().map(RawBuffer::spec).collect();
        Ok(LaunchFile { module, text: self.ptx, kernel, launch, buffers })
    }
}

/// A refused launch, by the names that the package has.
fn explain(error: &LaunchError) -> String {
    match error {
        LaunchError::Shape { what, .. } => format!("{what}: {error}"),
        LaunchError::SharedMemory { .. } => {
            format!("shared: {error}; give the launch less, or name the chip that it is for with `arch`")
        }
        other => other.to_string(),
    }
}

/// The kernel of that name, or the only one.
fn entry(module: &Module, name: Option<String>) -> Result<String, Fault> {
    let known: Vec<&str> = module.entries().collect();
    match (name, known.as_slice()) {
        (Some(name), known) if known.contains(&name.as_str()) => Ok(name),
        (Some(name), known) => Err(Fault::launch(format!(
            "entry: there is no kernel `{name}` in {}; it has: {}",
            module.file(),
            known.join(", ")
        ))),
        (None, [one]) => Ok((*one).to_owned()),
        (None, []) => {
            Err(Fault::ptx(format!("{}: there is no .entry in it, so nothing can run", module.file())))
        }
        (None, several) => Err(Fault::launch(format!(
            "entry: {} has {} kernels: {}; give the launch an `entry`",
            module.file(),
            several.len(),
            several.join(", ")
        ))),
    }
}

/// Addresses of buffers in a fresh memory that holds them in order.
fn addresses(buffers: &[RawBuffer]) -> Result<Vec<u64>, Fault> {
    if buffers.len() > MAX_BUFFERS {
        return Err(Fault::launch(format!(
            "the launch has {} buffers, and at most {MAX_BUFFERS} are told apart; put some into one array, and use Pointer(array, offset=...)",
            buffers.len()
        )));
    }
    if let Some(large) = buffers.iter().find(|buffer| buffer.bytes > MAX_BUFFER) {
        return Err(Fault::launch(format!(
            "buffer `{}` has {} bytes, and a buffer has at most {MAX_BUFFER}; run a smaller problem",
            large.name, large.bytes
        )));
    }
    let mut memory = GlobalMemory::new();
    Ok(buffers
        .iter()
        .map(|buffer| {
            let buffer = memory.alloc(&buffer.name, 0);
            memory.address(&buffer)
        })
        .collect())
}

impl RawBuffer {
    fn spec(self) -> BufferSpec {
        let contents = match (self.data, self.fill) {
            (Some(bytes), _) => Contents::Bytes(bytes),
            (None, Some(fill)) => Contents::Fill(fill),
            (None, None) => Contents::Uninitialised,
        };
        BufferSpec { name: self.name, bytes: self.bytes, contents, source: None }
    }
}

/// The address of a byte of a buffer. One past the end is allowed, as in C.
fn address(
    label: &str,
    index: usize,
    offset: u64,
    buffers: &[RawBuffer],
    addresses: &[u64],
) -> Result<u64, Fault> {
    let (Some(buffer), Some(address)) = (buffers.get(index), addresses.get(index)) else {
        return Err(Fault::launch(format!("{label}: there is no buffer {index}")));
    };
    if offset > buffer.bytes {
        return Err(Fault::launch(format!(
            "{label}: offset = {offset} is beyond the {} bytes of `{}`",
            buffer.bytes, buffer.name
        )));
    }
    Ok(address + offset)
}

impl RawArg {
    /// The bytes of the argument; Python's numbers take the `size` of their parameter.
    fn encode(
        &self,
        size: Option<usize>,
        buffers: &[RawBuffer],
        addresses: &[u64],
    ) -> Result<Vec<u8>, Fault> {
        let label = &self.label;
        if let Some(bytes) = &self.bytes {
            return Ok(bytes.clone());
        }
        if let Some((index, offset)) = self.pointer {
            return Ok(address(label, index, offset, buffers, addresses)?.to_le_bytes().to_vec());
        }
        if let Some(map) = &self.map {
            return Ok(map.encode(label, buffers, addresses)?.to_vec());
        }
        if let Some((bytes, fields)) = &self.structure {
            return structure(label, *bytes, fields, buffers, addresses);
        }
        let no_size = || {
            Fault::launch(format!(
                "{label}: a field of a struct has no size of its own; give a numpy scalar, such as np.int32(7)"
            ))
        };
        if let Some(value) = self.integer {
            let size = size.ok_or_else(no_size)?;
            let bits = 8 * size as u32;
            if ![8, 16, 32, 64].contains(&bits) {
                return Err(Fault::launch(format!(
                    "{label}: {value} for a parameter of {size} bytes; give bytes, or silumin.Struct({size}, ...)"
                )));
            }
            let (low, high) = (-(1i128 << (bits - 1)), (1i128 << bits) - 1);
            if !(low..=high).contains(&value) {
                return Err(Fault::launch(format!(
                    "{label}: {value} is not between {low} and {high}, which the {size} bytes of the parameter hold"
                )));
            }
            return Ok(value.to_le_bytes()[..size].to_vec());
        }
        let value = self.float.ok_or_else(|| Fault::launch(format!("{label}: there is no value")))?;
        match size.ok_or_else(no_size)? {
            4 if value.is_finite() && !(value as f32).is_finite() => Err(Fault::launch(format!(
                "{label}: {value:e} is beyond f32, which ends at {:e}; give float('inf') if that is meant",
                f32::MAX
            ))),
            4 => Ok((value as f32).to_le_bytes().to_vec()),
            8 => Ok(value.to_le_bytes().to_vec()),
            size => Err(Fault::launch(format!(
                "{label}: a Python float for a parameter of {size} bytes; give a numpy scalar of that size, such as np.float16({value})"
            ))),
        }
    }

    /// What to do about a size that is not the parameter's.
    fn way_out(&self) -> &'static str {
        if self.pointer.is_some() {
            " (an array is a pointer of 8 bytes; a scalar is np.int32(7), not an array)"
        } else if self.bytes.is_some() {
            " (a Python int or float takes the parameter's size)"
        } else {
            ""
        }
    }
}

/// A struct passed by value: zeros, with the fields at their offsets.
fn structure(
    label: &str,
    size: usize,
    fields: &[RawArg],
    buffers: &[RawBuffer],
    addresses: &[u64],
) -> Result<Vec<u8>, Fault> {
    if !(1..=MAX_STRUCT).contains(&size) {
        return Err(Fault::launch(format!(
            "{label}: a struct of {size} bytes; a kernel's parameters take 1 to {MAX_STRUCT}"
        )));
    }
    let mut out = vec![0; size];
    let mut taken: Vec<(std::ops::Range<usize>, &str)> = Vec::new();
    for field in fields {
        let bytes = field.encode(None, buffers, addresses)?;
        let (at, label) = (field.offset, field.label.as_str());
        let Some(end) = at.checked_add(bytes.len()).filter(|&end| end <= size) else {
            return Err(Fault::launch(format!(
                "{label}: {} bytes at offset {at} do not fit into the struct's {size}",
                bytes.len()
            )));
        };
        if field.map.is_some() && !at.is_multiple_of(TENSOR_MAP_ALIGNMENT) {
            return Err(Fault::launch(format!(
                "{label}: a tensor map must lie at a multiple of {TENSOR_MAP_ALIGNMENT} bytes, not at {at}"
            )));
        }
        if let Some((range, other)) = taken.iter().find(|(r, _)| r.start < end && at < r.end) {
            return Err(Fault::launch(format!(
                "{label}: bytes {at} to {end} overlap {other}, which has {} to {}",
                range.start, range.end
            )));
        }
        out[at..end].copy_from_slice(&bytes);
        taken.push((at..end, label));
    }
    Ok(out)
}

impl RawMap {
    fn encode(&self, label: &str, buffers: &[RawBuffer], addresses: &[u64]) -> Result<[u8; 128], Fault> {
        let tensor = TensorMapParams {
            data_type: choice(label, "data_type", &self.data_type, &DataType::NAMES)?,
            global_address: address(label, self.buffer, self.offset, buffers, addresses)?,
            global_dims: self.dims.clone(),
            global_strides: self.strides.clone(),
            box_dims: if self.pixels.is_some() {
                vec![self.channels; self.dims.len()]
            } else {
                self.box_dims.clone()
            },
            element_strides: self.element_strides.clone(),
            interleave: choice(label, "interleave", &self.interleave, &Interleave::NAMES)?,
            swizzle: choice(label, "swizzle", &self.swizzle, &SwizzleMode::NAMES)?,
            l2_promotion: choice(label, "l2_promotion", &self.l2_promotion, &L2Promotion::NAMES)?,
            oob_fill: choice(label, "oob_fill", &self.oob_fill, &OobFill::NAMES)?,
        };
        let wrong = |error: &dyn std::fmt::Display| Fault::launch(format!("{label}: tensor map: {error}"));
        match self.pixels {
            None => tensor.encode().map_err(|error| wrong(&error)),
            Some(pixels) => {
                let (lower, upper) = (self.lower_corner.clone(), self.upper_corner.clone());
                Im2colParams { tensor, lower, upper, pixels }.encode().map_err(|error| wrong(&error))
            }
        }
    }
}

/// The value of that name.
pub fn choice<T: Copy>(label: &str, key: &str, name: &str, names: &[(&str, T)]) -> Result<T, Fault> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
        let dot = if label.is_empty() { "" } else { "." };
        Fault::launch(format!("{label}{dot}{key}: `{name}` is not known; it is one of {}", known.join(", ")))
    })
}
