//! Launches with plain arguments: addresses and numbers.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, MutexGuard};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop, sys};
use silumin_codegen::kernel::Launch;

use super::{Cuda, CudaMemory, Module};
use crate::device::Buffer;
use crate::device::plain::Plain;

impl Cuda {
    /// Puts the only launch of a kernel in the stream; its arguments have been checked.
    pub(crate) fn launch_plain(
        &self,
        module: &Module,
        launch: &Launch,
        args: &[Plain<'_>],
        stream: &Arc<CudaStream>,
    ) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let Some(function) = module.functions().first() else { return Ok(()) };
        // Each allocation once, in the order of addresses, so that two threads never wait for each other.
        let mut memories: Vec<(&CudaMemory, bool)> = Vec::new();
        for (buffer, written) in args.iter().filter_map(Plain::buffer) {
            let Some((memory, _)) = buffer.cuda_memory() else { continue };
            match memories.iter_mut().find(|(other, _)| ptr::eq(*other, memory)) {
                Some((_, already)) => *already |= written,
                None => memories.push((memory, written)),
            }
        }
        memories.sort_by_key(|(memory, _)| memory.address());
        let mut slices: Vec<(MutexGuard<'_, CudaSlice<u8>>, bool)> =
            memories.iter().map(|(memory, written)| (memory.slice(), *written)).collect();
        // The stream waits for what other streams still do with them; dropped, these remember this launch. A capture can
        // wait for nothing outside of it: who launches its graph sees to the order.
        let captured = stream.capture_status()? != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let orders: Vec<_> = match captured {
            false => slices.iter_mut().map(|(slice, written)| order(slice, *written, stream)).collect(),
            true => Vec::new(),
        };
        submit(*function, launch, args, stream)?;
        drop(orders);
        // What went wrong while events were waited for or recorded.
        self.context.check_err()
    }
}

fn order<'a>(slice: &'a mut CudaSlice<u8>, written: bool, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    if written { slice.device_ptr_mut(stream).1 } else { slice.device_ptr(stream).1 }
}

fn submit(
    function: sys::CUfunction,
    launch: &Launch,
    args: &[Plain<'_>],
    stream: &CudaStream,
) -> Result<(), DriverError> {
    let address =
        |buffer: &Buffer| buffer.cuda_memory().map_or(0, |(memory, offset)| memory.address() + offset as u64);
    // A number of 32 bits is in the first bytes of its word.
    const { assert!(cfg!(target_endian = "little")) };
    let word = |argument: &Plain<'_>| match argument {
        Plain::Input(_, buffer) | Plain::Output(_, buffer) => address(buffer),
        Plain::U32(value) => u64::from(*value),
        Plain::F32(value) => u64::from(value.to_bits()),
    };
    let mut words: Vec<u64> = args.iter().map(word).collect();
    let mut places: Vec<*mut c_void> = words.iter_mut().map(|word| ptr::from_mut(word).cast()).collect();
    let [[x, y, z], [u, v, w]] = [launch.grid, launch.block];
    // SAFETY: the function is of a loaded module of the bound context; there is a value for each of its parameters, of
    // its size or longer, which the driver copies before it returns. Sizes, alignment and device of all buffers have been
    // checked, and their locks are held.
    unsafe {
        sys::cuLaunchKernel(
            function,
            x,
            y,
            z,
            u,
            v,
            w,
            launch.dynamic_smem,
            stream.cu_stream(),
            places.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
    .result()
}
