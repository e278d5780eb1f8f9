//! The device that runs kernels on an NVIDIA GPU, through its driver.
//!
//! The driver's library is looked for when a device is asked for, so that programs build and run where
//! there is none. Order between streams is cudarc's: a buffer remembers the last work that read it and
//! wrote it, and work on another stream waits for that.
//!
//! * `mod.rs`: devices and their memory.
//! * `driver.rs`: the driver's library, its version, its errors.
//! * `jit.rs`: the driver's compiler, PTX to cubins.
//! * `module.rs`: PTX or cubins to functions.
//! * `launch.rs`: tensor maps, parameters, launches.
//! * `replay.rs`: graphs of launches, and how long they take.

mod driver;
mod jit;
mod launch;
mod module;
mod replay;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use silumin_codegen::arch::Arch;

use super::{DeviceError, DeviceFacts};
use crate::cache::ModuleError;
use crate::cache::shared::Shared;
use driver::failed;
use jit::Jit;
pub(crate) use module::Module;
pub use replay::Replay;

/// A GPU.
pub(crate) struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    /// The CUDA version that the driver is for: major, minor.
    driver: (u32, u32),
    jit: Jit,
    /// Loaded modules by their kernels' hashes.
    modules: Shared<[u8; 32], Module, ModuleError>,
}

impl Cuda {
    /// The GPU of that number, and its chip.
    pub(super) fn open(ordinal: usize) -> Result<(Self, Arch), DeviceError> {
        driver::probe()?;
        let devices = CudaContext::device_count().map_err(|error| failed("cuDeviceGetCount", error))?;
        if usize::try_from(devices).is_ok_and(|devices| ordinal >= devices) {
            return Err(DeviceError::NoDevice { ordinal, devices: devices.max(0) as usize });
        }
        let context = CudaContext::new(ordinal).map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
        Self::of(context)
    }

    /// The GPU of a context that somebody else made.
    pub(super) fn of(context: Arc<CudaContext>) -> Result<(Self, Arch), DeviceError> {
        driver::probe()?;
        let name = context.name().map_err(|error| failed("cuDeviceGetName", error))?;
        let capability =
            context.compute_capability().map_err(|error| failed("cuDeviceGetAttribute", error))?;
        // Chips with features of their own are matched exactly: a kernel for one runs on no other.
        let arch = match capability {
            (9, 0) => Arch::Sm90a,
            (10, 0) => Arch::Sm100a,
            (10, 3) => Arch::Sm103a,
            _ => return Err(DeviceError::UnsupportedChip { name, capability }),
        };
        let stream = context.default_stream();
        let driver = driver::version()?;
        let jit = Jit::new(context.clone(), driver);
        Ok((Self { context, stream, name, driver, jit, modules: Shared::new() }, arch))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.context == other.context
    }

    /// What the driver calls it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn new_stream(&self) -> Result<Arc<CudaStream>, DeviceError> {
        self.context.new_stream().map_err(|error| failed("cuStreamCreate", error))
    }

    /// What tells it from other GPUs and drivers.
    pub(super) fn facts(&self) -> DeviceFacts {
        use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let capability = self.context.compute_capability().unwrap_or_default();
        let sms = self.context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).unwrap_or_default();
        DeviceFacts {
            name: self.name.clone(),
            capability: (capability.0.max(0) as u32, capability.1.max(0) as u32),
            sms: sms.max(0) as u32,
            driver: self.jit.version().to_owned(),
        }
    }

    /// Whether a stream is of this GPU's context.
    pub(super) fn owns(&self, stream: &CudaStream) -> bool {
        *stream.context() == self.context
    }

    /// Memory that holds nothing yet; `None` where there is not so much.
    pub(super) fn alloc(&self, bytes: usize) -> Result<Option<CudaMemory>, DeviceError> {
        // SAFETY: bytes of any value are bytes; that they mean nothing yet is what callers ask for.
        match unsafe { self.stream.alloc::<u8>(bytes) } {
            Ok(slice) => Ok(Some(CudaMemory::new(slice))),
            Err(error) if driver::is_out_of_memory(error) => Ok(None),
            Err(error) => Err(failed("cuMemAlloc", error)),
        }
    }

    /// A copy of `data`; `None` where there is not so much memory.
    pub(super) fn upload(&self, data: &[u8]) -> Result<Option<CudaMemory>, DeviceError> {
        let memory = self.alloc(data.len())?;
        if let Some(memory) = &memory {
            memory.write(0, data)?;
        }
        Ok(memory)
    }
}

/// Memory of a GPU. The lock is held while work on it is put in a stream, never while that runs.
pub(crate) struct CudaMemory {
    slice: Mutex<CudaSlice<u8>>,
    address: u64,
}

impl CudaMemory {
    pub(super) fn new(slice: CudaSlice<u8>) -> Self {
        use cudarc::driver::DevicePtr;
        let stream = slice.stream().clone();
        let address = slice.device_ptr(&stream).0;
        Self { slice: Mutex::new(slice), address }
    }

    fn slice(&self) -> MutexGuard<'_, CudaSlice<u8>> {
        // Nothing panics while it holds the lock.
        self.slice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the first byte.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Writes `data` at `offset`; the range lies inside.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Result<(), DeviceError> {
        let mut slice = self.slice();
        let stream = slice.stream().clone();
        let mut part = slice.slice_mut(offset..offset + data.len());
        stream.memcpy_htod(data, &mut part).map_err(|error| failed("cuMemcpyHtoDAsync", error))
    }

    /// The bytes of a range that lies inside, after all work that writes them.
    pub(super) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, DeviceError> {
        let slice = self.slice();
        let stream = slice.stream().clone();
        let bytes = stream
            .clone_dtoh(&slice.slice(offset..offset + len))
            .map_err(|error| failed("cuMemcpyDtoHAsync", error))?;
        // What went wrong in kernels before comes out here.
        stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))?;
        Ok(bytes)
    }
}

/// Waits for all work of a stream.
pub(super) fn synchronize(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))
}
