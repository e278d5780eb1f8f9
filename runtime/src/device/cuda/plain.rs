//! Launches with plain arguments: addresses and numbers.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{CudaStream, DriverError, sys};
use silumin_codegen::kernel::Launch;

use super::{Cuda, Lane, Module};
use crate::device::Buffer;
use crate::device::plain::Plain;

impl Cuda {
    /// Enqueues the only launch of a kernel; its arguments have been checked.
    pub(crate) fn launch_plain(
        &self,
        module: &Module,
        launch: &Launch,
        args: &[Plain<'_>],
        lane: &Lane,
    ) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let Some(function) = module.functions().first() else { return Ok(()) };
        let lengths: Vec<usize> = args.iter().map(length).collect();
        if !module.takes(&lengths) {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        let captured = lane.is_captured()?;
        // The stream waits for what other streams still do with the buffers. A capture can wait for nothing outside of it:
        // who launches its graph sees to the order.
        if !captured {
            for (buffer, written) in args.iter().filter_map(Plain::buffer) {
                if let Some((memory, _)) = buffer.cuda_memory() {
                    memory.begin(lane, written)?;
                }
            }
        }
        submit(*function, launch, args, &lane.stream)?;
        match captured {
            false => self.streams.done(lane),
            true => Ok(()),
        }
    }
}

/// Bytes of an argument.
fn length(argument: &Plain<'_>) -> usize {
    match argument {
        Plain::Input(..) | Plain::Output(..) | Plain::Part(..) => 8,
        Plain::U32(_) | Plain::F32(_) => 4,
    }
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
        Plain::Input(_, buffer) | Plain::Output(_, buffer) | Plain::Part(_, buffer) => address(buffer),
        Plain::U32(value) => u64::from(*value),
        Plain::F32(value) => u64::from(value.to_bits()),
    };
    let mut words: Vec<u64> = args.iter().map(word).collect();
    let mut places: Vec<*mut c_void> = words.iter_mut().map(|word| ptr::from_mut(word).cast()).collect();
    super::launch::submit(launch, function, &mut places, stream.cu_stream())
}
