//! Launches: addresses, tensor maps and parameters as the driver takes them.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, MutexGuard, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, sys};
use silumin_codegen::kernel::{Kernel, Launch, WorkspaceBuffer};
use silumin_codegen::plan::{ElementType, Operand, Swizzle, TensorMapRecipe};

use super::module::{Module, Workspace};
use super::{Cuda, CudaMemory, driver};
use crate::device::Buffer;
use crate::gemm::{Args, Argument, LaunchError};

/// A parameter's bytes, aligned as the driver wants tensor maps.
enum Value {
    Map(sys::CUtensorMap),
    Address(u64),
    F32(f32),
}

impl Value {
    fn place(&mut self) -> *mut c_void {
        match self {
            Value::Map(map) => ptr::from_mut(map).cast(),
            Value::Address(address) => ptr::from_mut(address).cast(),
            Value::F32(value) => ptr::from_mut(value).cast(),
        }
    }
}

impl Cuda {
    /// Puts the kernel's launches in the stream; the arguments have been checked.
    pub(crate) fn launch(
        &self,
        module: &Module,
        kernel: &Kernel,
        launches: &[(&Launch, Vec<Argument<'_>>)],
        args: &Args<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<(), LaunchError> {
        let refused = |reason: String| LaunchError::Refused {
            device: args.c.device().to_string(),
            kernel: kernel.name.clone(),
            reason,
        };
        let refuse = |error| refused(driver::in_words(error));
        self.context.bind_to_thread().map_err(refuse)?;
        // Each allocation once, in the order of addresses, so that two threads never wait for each other.
        let mut memories: Vec<(&CudaMemory, bool)> = Vec::new();
        let outputs = args.given().map(|(operand, buffer)| (buffer, operand.is_output()));
        for (buffer, written) in outputs.chain(args.vectors.iter().map(|(_, buffer)| (*buffer, false))) {
            let Some((memory, _)) = buffer.cuda_memory() else { continue };
            match memories.iter_mut().find(|(other, _)| ptr::eq(*other, memory)) {
                Some((_, already)) => *already |= written,
                None => memories.push((memory, written)),
            }
        }
        memories.sort_by_key(|(memory, _)| memory.address());
        let mut slices: Vec<(MutexGuard<'_, CudaSlice<u8>>, bool)> =
            memories.iter().map(|(memory, written)| (memory.slice(), *written)).collect();
        let captured = is_captured(stream).map_err(refuse)?;
        // The stream waits for what other streams still do with them; dropped, these remember this launch. A capture can
        // wait for nothing outside of it, and what it takes runs when its graph does: who launches that sees to the order.
        let orders: Vec<_> = match captured {
            false => slices.iter_mut().map(|(slice, written)| order(slice, *written, stream)).collect(),
            true => Vec::new(),
        };

        // Kernels without a workspace take no lock of the module's.
        let mut workspaces = (!kernel.workspace.is_empty())
            .then(|| module.workspaces.lock().unwrap_or_else(PoisonError::into_inner));
        if captured && workspaces.as_ref().is_some_and(|all| all.iter().all(|known| known.stream != *stream))
        {
            let advice = "launch the kernel once on this stream before the capture, so that it has its workspace there";
            return Err(refused(advice.to_owned()));
        }
        let workspace = workspaces.as_mut().map(|all| workspace(all, &kernel.workspace, stream));
        let workspace = workspace.transpose().map_err(refuse)?;
        let address = |wanted: &WorkspaceBuffer| {
            let mut buffers = workspace.iter().flat_map(|workspace| &workspace.buffers);
            buffers.find(|(buffer, ..)| buffer == wanted).map_or(0, |(_, address, _)| *address)
        };
        for ((launch, arguments), function) in launches.iter().zip(module.functions()) {
            let mut values = Vec::with_capacity(arguments.len());
            for argument in arguments {
                values.push(match argument {
                    Argument::TensorMap(recipe) => Value::Map(encode(recipe, operand(args, recipe.operand))?),
                    Argument::Pointer(role) => Value::Address(operand(args, *role)),
                    Argument::Workspace(buffer) => Value::Address(address(buffer)),
                    Argument::F32(value) => Value::F32(*value),
                    Argument::Vector(name) => Value::Address(vector(args, name)),
                });
            }
            submit(launch, *function, &mut values, stream).map_err(refuse)?;
        }
        drop(orders);
        // What went wrong while events were waited for or recorded.
        self.context.check_err().map_err(refuse)
    }
}

/// Whether what is put in the stream goes to a graph.
fn is_captured(stream: &CudaStream) -> Result<bool, cudarc::driver::DriverError> {
    Ok(stream.capture_status()? != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Has the stream wait for other streams' work on `slice`, and notes this one's when it is dropped.
fn order<'a>(
    slice: &'a mut CudaSlice<u8>,
    written: bool,
    stream: &'a CudaStream,
) -> cudarc::driver::SyncOnDrop<'a> {
    use cudarc::driver::DevicePtr;
    if written { slice.device_ptr_mut(stream).1 } else { slice.device_ptr(stream).1 }
}

/// The workspace of a stream, made at its first launch. The kernel leaves it as it found it.
fn workspace<'a>(
    all: &'a mut Vec<Workspace>,
    wanted: &[WorkspaceBuffer],
    stream: &Arc<CudaStream>,
) -> Result<&'a Workspace, cudarc::driver::DriverError> {
    let position = match all.iter().position(|workspace| workspace.stream == *stream) {
        Some(position) => position,
        None => {
            let mut buffers = Vec::with_capacity(wanted.len());
            for buffer in wanted {
                // SAFETY: bytes of any value are bytes, and the kernel writes them before it reads them, unless
                // they have to be zero.
                let mut slice = unsafe { stream.alloc::<u8>(buffer.bytes as usize) }?;
                if buffer.zeroed {
                    stream.memset_zeros(&mut slice)?;
                }
                let address = slice.device_ptr_mut(stream).0;
                buffers.push((*buffer, address, slice));
            }
            all.push(Workspace { stream: stream.clone(), buffers });
            all.len() - 1
        }
    };
    Ok(&all[position])
}

/// The address of a tensor; 0 where it is not given, which the checks before have excluded.
fn operand(args: &Args<'_>, role: Operand) -> u64 {
    args.operand(role).map_or(0, address)
}

fn vector(args: &Args<'_>, name: &str) -> u64 {
    args.vectors.iter().find(|(other, _)| *other == name).map_or(0, |(_, buffer)| address(buffer))
}

fn address(buffer: &Buffer) -> u64 {
    buffer.cuda_memory().map_or(0, |(memory, offset)| memory.address() + offset as u64)
}

fn submit(
    launch: &Launch,
    function: sys::CUfunction,
    values: &mut [Value],
    stream: &CudaStream,
) -> Result<(), cudarc::driver::DriverError> {
    let mut places: Vec<*mut c_void> = values.iter_mut().map(Value::place).collect();
    let mut attributes = Vec::with_capacity(2);
    if launch.cluster != [1, 1, 1] {
        // SAFETY: all bits of the union are zero before one member is set.
        let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        value.clusterDim.x = launch.cluster[0];
        value.clusterDim.y = launch.cluster[1];
        value.clusterDim.z = launch.cluster[2];
        attributes.push(sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value,
        });
    }
    if launch.programmatic {
        // SAFETY: as above.
        let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        value.programmaticStreamSerializationAllowed = 1;
        attributes.push(sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value,
        });
    }
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: launch.block[2],
        sharedMemBytes: launch.dynamic_smem,
        hStream: stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    // SAFETY: the function is of a loaded module of the bound context; there is a value of the right size for each
    // of its parameters, for both come from one list; the driver copies them before it returns. Sizes, alignment and
    // device of all buffers have been checked, and their locks are held.
    unsafe { sys::cuLaunchKernelEx(&config, function, places.as_mut_ptr(), ptr::null_mut()) }.result()
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
