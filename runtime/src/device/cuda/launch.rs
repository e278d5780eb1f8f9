//! Launches on a GPU: addresses, tensor maps and parameters for the driver.
//!
//! A launch allocates nothing and takes no lock, except for things made once: tensor maps of a set of buffers, which
//! are kept by their addresses; a stream's workspace; a graph of a repeated launch.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, PoisonError};

use cudarc::driver::{CudaStream, DevicePtrMut, DriverError, sys};
use silumin_codegen::kernel::{Kernel, Launch, Parameter, WorkspaceBuffer};
use silumin_codegen::plan::{ElementType, Operand, Swizzle, TensorMapRecipe};

use super::graph::{Launched, Values};
use super::module::{Addresses, Map, Module, Workspace};
use super::{Cuda, Lane, driver};
use crate::device::Buffer;
use crate::device::{Args, LaunchError};

/// Parameters of an entry that are kept on the stack; only kernels with very many scalars and vectors have more.
const PLACES: usize = 48;
/// Sets of buffers whose tensor maps a kernel keeps. When it is exceeded, all are dropped and made again on demand.
const MOST_SETS: usize = 1024;

impl Cuda {
    /// Enqueues the kernel's launches, as a graph if `graphs` is set and the launch is a repeated one; the arguments
    /// have been checked.
    pub(crate) fn launch(
        &self,
        module: &Module,
        kernel: &Kernel,
        args: &Args<'_>,
        lane: &Lane,
        graphs: bool,
    ) -> Result<(), LaunchError> {
        let refused = |reason: String| LaunchError::Refused {
            device: args.c.device().to_string(),
            kernel: kernel.name.clone(),
            reason,
        };
        let refuse = |error| refused(driver::in_words(error));
        self.context.bind_to_thread().map_err(refuse)?;
        let captured = lane.is_captured().map_err(refuse)?;
        // The stream waits for what other streams still do with the buffers. A capture can wait for nothing outside of it,
        // and what it takes runs when its graph does: who launches that sees to the order.
        if !captured {
            let operands = args.given().map(|(operand, buffer)| (buffer, operand.is_output()));
            for (buffer, written) in operands.chain(args.vectors.iter().map(|(_, buffer)| (*buffer, false))) {
                if let Some((memory, _)) = buffer.cuda_memory() {
                    memory.begin(lane, written).map_err(refuse)?;
                }
            }
        }
        let workspaces = module.workspaces.pin();
        let workspace = match kernel.workspace.is_empty() {
            true => None,
            false => {
                let key = lane.workspace_key();
                if !workspaces.contains_key(&key) {
                    if captured {
                        let advice = "launch the kernel once on this stream before the capture, so that it has its workspace there";
                        return Err(refused(advice.to_owned()));
                    }
                    Self::reserve(module, kernel, lane).map_err(refuse)?;
                }
                workspaces.get(&key)
            }
        };
        let addresses: Addresses = Operand::ALL.map(|role| operand(args, role));
        // Maps of the workspace are of this stream's own.
        let own =
            workspace.and_then(|workspace| workspace.buffers.first()).map_or(0, |(_, address, _)| *address);
        // A capture takes launches. And a kernel that starts while the one before it in the stream ends would wait for that end at
        // a graph's edge: of several launches the graph saves the host more than that takes.
        let ahead = matches!(&kernel.launches[..], [launch] if launch.programmatic);
        let values = match graphs && !captured && !ahead {
            true => Some(values(kernel, args, &addresses, own, lane)),
            false => None,
        };
        let launched = values
            .as_ref()
            .map_or(Launched::No, |values| module.graphs.launch(values, lane.stream.cu_stream()));
        if launched == Launched::Yes {
            return self.streams.done(lane).map_err(refuse);
        }
        let known = module.maps.pin();
        let set = (addresses, args.rows_of_a(&kernel.problem).unwrap_or(0), own);
        let maps = match known.get(&set) {
            Some(maps) => maps,
            None => {
                let made = encode_all(kernel, args, &addresses, workspace)?;
                if known.len() >= MOST_SETS {
                    known.clear();
                }
                known.get_or_insert(set, made)
            }
        };
        let submit_all = |stream| submit_all(module, kernel, args, workspace, maps, stream);
        submit_all(lane.stream.cu_stream()).map_err(refuse)?;
        if !captured {
            self.streams.done(lane).map_err(refuse)?;
        }
        if let (Some(values), Launched::Wanted) = (values, launched) {
            self.graphs.make(&module.graphs, &values, submit_all);
        }
        Ok(())
    }
}

impl Cuda {
    /// Makes the workspace of a kernel on a stream, unless it is there.
    pub(crate) fn reserve(module: &Module, kernel: &Kernel, lane: &Lane) -> Result<(), DriverError> {
        if kernel.workspace.is_empty() {
            return Ok(());
        }
        let (workspaces, key) = (module.workspaces.pin(), lane.workspace_key());
        // Two threads may launch on one stream: one makes it.
        let _making = module.making.lock().unwrap_or_else(PoisonError::into_inner);
        if !workspaces.contains_key(&key) {
            workspaces.insert(key, workspace(&kernel.workspace, &lane.stream)?);
        }
        Ok(())
    }
}

/// Everything that determines a launch's parameter values and tensor maps. The stream is part of it: a graph launched
/// on two streams runs on one before it starts on the other.
fn values(kernel: &Kernel, args: &Args<'_>, addresses: &Addresses, own: u64, lane: &Lane) -> Values {
    let mut values = Values::new();
    addresses.iter().for_each(|address| values.push(*address));
    let (stream, thread) = lane.workspace_key();
    values.push(stream as u64);
    values.push(thread);
    values.push(own);
    let c_scale = args.c_scale.unwrap_or(1.0).to_bits();
    let [rows, of_a] = [args.rows, args.rows_of_a(&kernel.problem)].map(|rows| u64::from(rows.unwrap_or(0)));
    values.push(rows << 32 | of_a);
    values.push(c_scale.into());
    for parameter in kernel.launches.iter().flat_map(|launch| &launch.parameters) {
        match parameter {
            Parameter::Scalar(name) => values.push(scalar(args, name)),
            Parameter::Vector(vector) => values.push(self::vector(args, &vector.name)),
            // These follow from what is there already.
            Parameter::TensorMap(_)
            | Parameter::Pointer(_)
            | Parameter::Workspace(_)
            | Parameter::Rows
            | Parameter::OutputScale => {}
        }
    }
    values
}

/// Enqueues all launches of a kernel.
fn submit_all(
    module: &Module,
    kernel: &Kernel,
    args: &Args<'_>,
    workspace: Option<&Workspace>,
    maps: &[Map],
    stream: sys::CUstream,
) -> Result<(), DriverError> {
    let mut maps = maps.iter();
    kernel.launches.iter().zip(module.functions()).try_for_each(|(launch, function)| {
        let value = |parameter: &Parameter| match parameter {
            Parameter::TensorMap(_) => {
                Value::Map(maps.next().map_or(ptr::null(), |map| ptr::from_ref(&map.0)))
            }
            Parameter::Pointer(role) => Value::Bits(operand(args, *role)),
            Parameter::Workspace(buffer) => Value::Bits(address_in(workspace, buffer)),
            Parameter::Scalar(name) => Value::Bits(scalar(args, name)),
            Parameter::Rows => Value::Bits(args.rows.unwrap_or(kernel.problem.shape.m).into()),
            Parameter::OutputScale => Value::Bits(args.c_scale.unwrap_or(1.0).to_bits().into()),
            Parameter::Vector(vector) => Value::Bits(self::vector(args, &vector.name)),
        };
        with_places(&launch.parameters, value, |places| submit(launch, *function, places, stream))
    })
}

/// The source of a parameter's value.
#[derive(Clone, Copy)]
enum Value {
    /// A kept tensor map.
    Map(*const sys::CUtensorMap),
    /// An address, a number, or the bits of an f32.
    Bits(u64),
}

/// Calls `submit` with a pointer to each parameter's value; all are on the stack unless there are very many.
fn with_places(
    parameters: &[Parameter],
    mut value: impl FnMut(&Parameter) -> Value,
    submit: impl FnOnce(&mut [*mut c_void]) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    // A value of 32 bits is in the first bytes of its word.
    const { assert!(cfg!(target_endian = "little")) };
    let count = parameters.len();
    let (mut few, mut few_places) = ([0u64; PLACES], [ptr::null_mut::<c_void>(); PLACES]);
    let (mut many, mut many_places) = (Vec::new(), Vec::new());
    let (words, places) = match count <= PLACES {
        true => (&mut few[..count], &mut few_places[..count]),
        false => {
            many.resize(count, 0);
            many_places.resize(count, ptr::null_mut());
            (&mut many[..], &mut many_places[..])
        }
    };
    for ((parameter, word), place) in parameters.iter().zip(words).zip(&mut *places) {
        *place = match value(parameter) {
            Value::Map(map) => map.cast_mut().cast(),
            Value::Bits(bits) => {
                *word = bits;
                ptr::from_mut(word).cast()
            }
        };
    }
    submit(places)
}

/// The workspace of a stream. A kernel leaves it as it found it.
fn workspace(wanted: &[WorkspaceBuffer], stream: &Arc<CudaStream>) -> Result<Workspace, DriverError> {
    let mut buffers = Vec::with_capacity(wanted.len());
    for buffer in wanted {
        // SAFETY: bytes of any value are bytes, and the kernel writes them before it reads them, unless they have to be
        // zero.
        let mut slice = unsafe { stream.alloc::<u8>(buffer.bytes as usize) }?;
        if buffer.zeroed {
            stream.memset_zeros(&mut slice)?;
        }
        let address = slice.device_ptr_mut(stream).0;
        buffers.push((*buffer, address, slice));
    }
    Ok(Workspace { stream: stream.clone(), buffers })
}

/// The address of a tensor; 0 if it is not given, which earlier checks exclude.
fn operand(args: &Args<'_>, role: Operand) -> u64 {
    args.operand(role).map_or(0, address)
}

/// The bits of a scalar's value.
fn scalar(args: &Args<'_>, name: &str) -> u64 {
    let given = args.scalars.iter().find(|(other, _)| *other == name);
    given.map_or(f32::NAN, |(_, value)| *value).to_bits().into()
}

fn vector(args: &Args<'_>, name: &str) -> u64 {
    args.vectors.iter().find(|(other, _)| *other == name).map_or(0, |(_, buffer)| address(buffer))
}

fn address(buffer: &Buffer) -> u64 {
    buffer.cuda_memory().map_or(0, |(memory, offset)| memory.address() + offset as u64)
}

/// Enqueues a launch with its attributes; `places` are the addresses of its parameters' values.
pub(super) fn submit(
    launch: &Launch,
    function: sys::CUfunction,
    places: &mut [*mut c_void],
    stream: sys::CUstream,
) -> Result<(), DriverError> {
    // SAFETY: of an attribute any bits are ones, and those that count are written below.
    let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    if launch.cluster != [1, 1, 1] {
        let attribute = &mut attributes[count];
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim.x = launch.cluster[0];
        attribute.value.clusterDim.y = launch.cluster[1];
        attribute.value.clusterDim.z = launch.cluster[2];
        count += 1;
    }
    if launch.programmatic {
        let attribute = &mut attributes[count];
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        count += 1;
    }
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: launch.block[2],
        sharedMemBytes: launch.dynamic_smem,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: count as u32,
    };
    // SAFETY: the function is of a loaded module of the bound context; there is a value of the right size for each
    // of its parameters, for both come from one list; the driver copies them before it returns. Sizes, alignment and
    // device of all buffers have been checked, and the caller has handles of them.
    unsafe { sys::cuLaunchKernelEx(&config, function, places.as_mut_ptr(), ptr::null_mut()) }.result()
}

/// The address of a buffer of a stream's workspace.
fn address_in(workspace: Option<&Workspace>, buffer: &WorkspaceBuffer) -> u64 {
    let of = workspace.and_then(|workspace| workspace.buffers.iter().find(|(b, ..)| b == buffer));
    of.map_or(0, |(_, address, _)| *address)
}

/// Tensor maps of all launches, in the order of their parameters.
fn encode_all(
    kernel: &Kernel,
    args: &Args<'_>,
    addresses: &Addresses,
    workspace: Option<&Workspace>,
) -> Result<Box<[Map]>, LaunchError> {
    let parameters = kernel.launches.iter().flat_map(|launch| &launch.parameters);
    let maps = parameters.filter_map(|parameter| match parameter {
        Parameter::TensorMap(recipe) => {
            // The place of an operand among all is its number.
            let place = Operand::ALL.iter().position(|operand| *operand == recipe.operand);
            let address = match &recipe.workspace {
                Some(buffer) => address_in(workspace, buffer),
                None => place.map_or(0, |place| addresses[place]),
            };
            Some(encode(&args.in_rows(recipe, &kernel.problem), address).map(Map))
        }
        _ => None,
    });
    maps.collect()
}

/// A tensor map of the tensor at `address` (CUDA driver API, `cuTensorMapEncodeTiled`).
fn encode(recipe: &TensorMapRecipe, address: u64) -> Result<sys::CUtensorMap, LaunchError> {
    use sys::{
        CUtensorMapDataType as Type, CUtensorMapFloatOOBfill as Fill, CUtensorMapInterleave as Interleave,
        CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Mode,
    };
    // SAFETY: a map is 128 bytes of which any value is one; it is written whole below, or not used.
    let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
    let (dims, strides, box_dims) = (recipe.all_dims(), recipe.strides(), recipe.all_box_dims());
    let element_strides = vec![1u32; dims.len()];
    // SAFETY: dims, box and element strides have as many elements as the rank, strides one less; the address is
    // taken as a number.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            match recipe.element {
                ElementType::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                ElementType::U4Align16 => Type::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
                ElementType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                ElementType::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                ElementType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                ElementType::U64 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT64,
            },
            dims.len() as u32,
            ptr::without_provenance_mut(address as usize),
            dims.as_ptr(),
            strides.as_ptr(),
            box_dims.as_ptr(),
            element_strides.as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            match recipe.swizzle {
                Swizzle::None => Mode::CU_TENSOR_MAP_SWIZZLE_NONE,
                Swizzle::B32 => Mode::CU_TENSOR_MAP_SWIZZLE_32B,
                Swizzle::B64 => Mode::CU_TENSOR_MAP_SWIZZLE_64B,
                Swizzle::B128 => Mode::CU_TENSOR_MAP_SWIZZLE_128B,
            },
            match recipe.l2_promotion {
                64 => Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
                128 => Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                256 => Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                _ => Promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            },
            Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    match result.result() {
        Ok(()) => Ok(map),
        Err(error) => {
            Err(LaunchError::TensorMap { operand: recipe.operand, reason: driver::in_words(error) })
        }
    }
}
