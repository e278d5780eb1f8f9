//! The GPU back end, through the CUDA driver.
//!
//! The driver's library is looked up when a device is asked for, so programs build and run without one. A buffer
//! records which streams read and wrote it last, and work on another stream waits for those.
//!
//! * `mod.rs`: devices and their memory.
//! * `driver.rs`: the driver's library, its version, its errors.
//! * `jit.rs`: the driver's compiler, PTX to cubins.
//! * `image.rs`: what is looked at before the driver gets machine code.
//! * `module.rs`: PTX or cubins to functions.
//! * `order.rs`: order between streams.
//! * `launch.rs`: tensor maps, parameters, launches.
//! * `graph.rs`: graphs of launches that come again.
//! * `plain.rs`: launches with plain arguments.
//! * `capture.rs`: work of several kernels as one graph, and work of other libraries between ours.
//! * `replay.rs`: many launches as one graph, and how long they take.

mod capture;
mod driver;
mod graph;
mod image;
mod jit;
mod launch;
mod module;
mod order;
mod plain;
mod replay;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use silumin_codegen::arch::Arch;

use super::{DeviceError, DeviceFacts};
use crate::cache::ModuleError;
use crate::cache::shared::Shared;
pub(crate) use capture::Recorded;
use driver::failed;
pub(crate) use driver::in_words;
use graph::Maker;
use jit::Jit;
pub(crate) use module::Module;
pub(crate) use order::Lane;
use order::{Streams, Uses};
pub use replay::Replay;

/// A GPU.
pub(crate) struct Cuda {
    context: Arc<CudaContext>,
    streams: Arc<Streams>,
    /// The default stream.
    lane: Arc<Lane>,
    name: String,
    /// The driver's CUDA version: major, minor.
    driver: (u32, u32),
    /// The driver's compiler without and with line information.
    jits: [Jit; 2],
    graphs: Maker,
    /// Loaded modules by their kernels' hashes, and by whether the driver was to add line information.
    modules: Shared<([u8; 32], bool), Module, ModuleError>,
}

impl Cuda {
    /// The GPU with this number, and its chip.
    pub(super) fn open(ordinal: usize) -> Result<(Self, Arch), DeviceError> {
        driver::probe()?;
        let devices = CudaContext::device_count().map_err(|error| failed("cuDeviceGetCount", error))?;
        if usize::try_from(devices).is_ok_and(|devices| ordinal >= devices) {
            return Err(DeviceError::NoDevice { ordinal, devices: devices.max(0) as usize });
        }
        let context = CudaContext::new(ordinal).map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
        Self::of(context)
    }

    /// The GPU of an existing context.
    pub(super) fn of(context: Arc<CudaContext>) -> Result<(Self, Arch), DeviceError> {
        driver::probe()?;
        let name = context.name().map_err(|error| failed("cuDeviceGetName", error))?;
        let capability =
            context.compute_capability().map_err(|error| failed("cuDeviceGetAttribute", error))?;
        // Chips with features of their own are matched exactly: a kernel for one runs on no other.
        let Some(arch) = arch_of(capability) else {
            return Err(DeviceError::UnsupportedChip { name, capability });
        };
        let (streams, lane) = Streams::of(&context)?;
        let driver = driver::version()?;
        let jits = [false, true].map(|line_info| Jit::new(context.clone(), driver, line_info));
        let graphs = Maker::new(context.clone());
        Ok((Self { context, streams, lane, name, driver, jits, graphs, modules: Shared::new() }, arch))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.context == other.context
    }

    /// The driver's number of the GPU.
    pub(crate) fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// The driver's name of the GPU.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its default stream.
    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    pub(super) fn new_stream(&self) -> Result<Arc<Lane>, DeviceError> {
        self.lane_of(self.context.new_stream().map_err(|error| failed("cuStreamCreate", error))?)
    }

    /// A stream of the context's.
    pub(super) fn lane_of(&self, stream: Arc<CudaStream>) -> Result<Arc<Lane>, DeviceError> {
        self.streams.lane(stream)
    }

    /// Properties of the GPU and its driver.
    pub(super) fn facts(&self) -> DeviceFacts {
        use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let capability = self.context.compute_capability().unwrap_or_default();
        let sms = self.context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).unwrap_or_default();
        DeviceFacts {
            name: self.name.clone(),
            capability: (capability.0.max(0) as u32, capability.1.max(0) as u32),
            sms: sms.max(0) as u32,
            driver: self.jits[0].version().to_owned(),
        }
    }

    /// Whether a stream belongs to this GPU's context.
    pub(super) fn owns(&self, stream: &CudaStream) -> bool {
        *stream.context() == self.context
    }

    /// Memory with undefined content; `None` if there is not enough.
    pub(super) fn alloc(&self, bytes: usize) -> Result<Option<CudaMemory>, DeviceError> {
        // SAFETY: bytes of any value are bytes; that they mean nothing yet is what callers ask for.
        match unsafe { self.lane.stream.alloc::<u8>(bytes) } {
            Ok(slice) => self.memory(slice).map(Some),
            Err(error) if driver::is_out_of_memory(error) => Ok(None),
            Err(error) => Err(failed("cuMemAlloc", error)),
        }
    }

    /// Takes over memory that another crate allocated.
    pub(super) fn adopt(&self, mut slice: CudaSlice<u8>) -> Result<CudaMemory, DeviceError> {
        use cudarc::driver::DevicePtrMut;
        // The default stream waits for whatever cudarc has noted of it.
        drop(slice.device_ptr_mut(&self.lane.stream).1);
        self.context.check_err().map_err(|error| failed("cuStreamWaitEvent", error))?;
        self.memory(slice)
    }

    fn memory(&self, slice: CudaSlice<u8>) -> Result<CudaMemory, DeviceError> {
        use cudarc::driver::DevicePtr;
        let address = slice.device_ptr(&self.lane.stream).0;
        let noted = self.streams.done(&self.lane);
        noted.map_err(|error| failed("cuEventRecord", error))?;
        let (streams, lane) = (self.streams.clone(), self.lane.clone());
        Ok(CudaMemory { slice: Some(slice), owner: None, address, streams, lane, uses: Uses::new(0) })
    }

    /// Wraps memory of another owner at `address`, last used on the given stream. The owner is dropped with the memory.
    pub(super) fn lend(&self, address: u64, lane: &Arc<Lane>, owner: Option<Owner>) -> CudaMemory {
        let uses = Uses::new(lane.index());
        CudaMemory { slice: None, owner, address, streams: self.streams.clone(), lane: lane.clone(), uses }
    }

    /// A copy of `data`; `None` if there is not enough memory.
    pub(super) fn upload(&self, data: &[u8]) -> Result<Option<CudaMemory>, DeviceError> {
        let memory = self.alloc(data.len())?;
        if let Some(memory) = &memory {
            memory.write(0, data)?;
        }
        Ok(memory)
    }
}

/// What keeps memory of another library until it is dropped.
pub(super) type Owner = Box<dyn Send + Sync>;

/// Memory of a GPU.
pub(crate) struct CudaMemory {
    /// The owned allocation; `None` if another owner frees it.
    slice: Option<CudaSlice<u8>>,
    /// What frees memory of another library when it is dropped.
    owner: Option<Owner>,
    address: u64,
    streams: Arc<Streams>,
    /// The stream for copies: the default stream, or for borrowed memory its owner's.
    lane: Arc<Lane>,
    uses: Uses,
}

impl CudaMemory {
    /// The address of the first byte.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Makes the stream wait for other streams' use of the memory, and records its own use.
    fn begin(&self, lane: &Lane, written: bool) -> Result<(), DriverError> {
        self.uses.begin(&self.streams, lane, written)
    }

    /// Writes `data` at `offset`; the range lies inside.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let lane = &self.lane;
        let order = |error| failed("cuStreamWaitEvent", error);
        lane.stream.context().bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error))?;
        self.begin(lane, true).map_err(order)?;
        let target = self.address + offset as u64;
        // SAFETY: the range lies inside of the allocation, and pageable memory has been read when the call returns (CUDA
        // driver API, "API synchronization behavior").
        unsafe { cudarc::driver::result::memcpy_htod_async(target, data, lane.stream.cu_stream()) }
            .map_err(|error| failed("cuMemcpyHtoDAsync", error))?;
        self.streams.done(lane).map_err(order)
    }

    /// The bytes of a range that lies inside, after all work that writes them.
    pub(super) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, DeviceError> {
        let lane = &self.lane;
        lane.stream.context().bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error))?;
        self.begin(lane, false).map_err(|error| failed("cuStreamWaitEvent", error))?;
        let mut bytes = vec![0; len];
        let source = self.address + offset as u64;
        // SAFETY: the range lies inside of the allocation, and the host's memory is there until the stream is waited for.
        unsafe { cudarc::driver::result::memcpy_dtoh_async(&mut bytes[..], source, lane.stream.cu_stream()) }
            .map_err(|error| failed("cuMemcpyDtoHAsync", error))?;
        // What went wrong in kernels before comes out here.
        lane.stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))?;
        Ok(bytes)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.owner.is_some() {
            // Its owner frees it in the order of the stream that it was borrowed on, behind what other streams still do with it.
            let context = self.lane.stream.context().clone();
            let bound = context.bind_to_thread().and_then(|()| self.begin(&self.lane, true));
            context.record_err(bound);
        }
        let Some(slice) = &self.slice else { return };
        // It is freed in the order of its own stream, behind what other streams still do with it.
        let context = slice.context().clone();
        let bound = context.bind_to_thread().and_then(|()| {
            let made_on = slice.stream().clone();
            self.streams.lane(made_on).map_or(Ok(()), |lane| self.begin(&lane, true))
        });
        context.record_err(bound);
    }
}

/// Waits for all work of a stream.
pub(super) fn synchronize(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))
}

/// The chip of a compute capability, where there are kernels for it.
fn arch_of(capability: (i32, i32)) -> Option<Arch> {
    match capability {
        (9, 0) => Some(Arch::Sm90a),
        (10, 0) => Some(Arch::Sm100a),
        (10, 3) => Some(Arch::Sm103a),
        (11, 0) => Some(Arch::Sm110a),
        (12, 0) => Some(Arch::Sm120a),
        (12, 1) => Some(Arch::Sm121a),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_without_kernels_is_an_error() {
        assert_eq!(arch_of((12, 1)), Some(Arch::Sm121a));
        for capability in [(8, 9), (9, 1), (11, 1), (12, 2)] {
            assert_eq!(arch_of(capability), None, "{capability:?}");
            let error =
                DeviceError::UnsupportedChip { name: "another GPU".to_owned(), capability }.to_string();
            let (major, minor) = capability;
            assert!(
                error.contains(&format!("another GPU has compute capability {major}.{minor}")),
                "{error}"
            );
            assert!(error.contains("sm_120a") && error.contains("Device::emulated"), "{error}");
        }
    }
}
