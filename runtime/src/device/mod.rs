//! Devices, their memory and their streams.
//!
//! A program takes its device as an argument. Handles are the same for every kind of device; each kind is a private
//! module.
//!
//! * `mod.rs`: [`Device`], [`Stream`].
//! * `buffer.rs`: [`Buffer`].
//! * `emulated.rs`: the device that runs PTX on the CPU, with the feature `emulated`; `emulated_off.rs` without.
//! * `cuda/`: the device that runs it on a GPU, with the feature `cuda`.
//! * `args.rs`, `launch.rs`, `launch_error.rs`: what a launch is handed, what it reports, what can be wrong with it.
//! * `memory.rs`: memory of the emulated device, which knows what has been written.
//! * `plain.rs`: launches of kernels with plain arguments, whatever they are for.

mod args;
mod buffer;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(feature = "emulated")]
pub(crate) mod emulated;
#[cfg(not(feature = "emulated"))]
#[path = "emulated_off.rs"]
pub(crate) mod emulated;
mod launch;
mod launch_error;
mod memory;
pub(crate) mod plain;

pub use args::Args;
pub use buffer::Buffer;
#[cfg(feature = "emulated")]
pub use emulated::{Arithmetic, EmulatorOptions, Finding, FindingKind, Schedule, Tracking};
pub use emulated::{EmulatorStats, Findings};

pub(crate) use launch::Argument;
pub use launch::LaunchReport;
pub use launch_error::LaunchError;

#[cfg(feature = "cuda")]
pub use cuda::Replay;

use std::fmt;
use std::sync::Arc;

use silumin_codegen::arch::Arch;
use thiserror::Error;

use crate::cache::Cache;
use buffer::Memory;
use memory::HostMemory;

/// Errors of a device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A buffer of zero bytes was requested.
    #[error("a buffer of 0 bytes was requested: a buffer has at least 1 byte")]
    Empty,
    /// The device has not enough memory.
    #[error("{device} cannot allocate {bytes} bytes: free buffers, or split the problem")]
    OutOfMemory {
        /// The device, in words.
        device: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A range exceeds its buffer.
    #[error("{len} bytes from byte {offset} on exceed a buffer of {capacity} bytes: {} are left there", .capacity.saturating_sub(*.offset))]
    OutOfBounds {
        /// Start of the range.
        offset: usize,
        /// Its length.
        len: usize,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// Host and device side of a copy differ in length.
    #[error("{given} bytes were given for a buffer of {capacity}: use Buffer::slice for a part of it")]
    Length {
        /// Length of the host side in bytes.
        given: usize,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// Bytes were read that nothing has written. Only the emulated device can tell.
    #[error(
        "byte {offset} of a buffer of {capacity} bytes was never written: upload data or launch a kernel that writes it before reading"
    )]
    Uninitialised {
        /// The first such byte.
        offset: usize,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// No CUDA driver was found.
    #[error(
        "no CUDA driver was found: neither {library} can be loaded; install the NVIDIA driver, or use Device::emulated"
    )]
    NoDriver {
        /// The name of the missing library.
        library: String,
    },
    /// The CUDA driver is too old for clusters or tensor maps.
    #[error("the CUDA driver is too old: it has no {missing}; install one for CUDA 12.7 or newer")]
    OldDriver {
        /// What it lacks.
        missing: String,
    },
    /// There is no GPU with this number.
    #[error(
        "there is no GPU {ordinal}: the driver has {devices}, counted from 0 (see also CUDA_VISIBLE_DEVICES)"
    )]
    NoDevice {
        /// The requested number.
        ordinal: usize,
        /// How many there are.
        devices: usize,
    },
    /// silumin has no kernels for this GPU.
    #[error(
        "{name} has compute capability {}.{}, and kernels are made for: {}; {}",
        .capability.0, .capability.1, Arch::ALL.map(Arch::target).join(", "),
        match .capability {
            (10, 1) => "under a driver of CUDA 13.0 or newer it has 11.0, sm_110a",
            _ => "Device::emulated runs any of them",
        }
    )]
    UnsupportedChip {
        /// The GPU's name.
        name: String,
        /// Its compute capability: major, minor.
        capability: (i32, i32),
    },
    /// A context or stream belongs to another GPU.
    #[error("the {what} does not belong to {device}: create it there")]
    Foreign {
        /// What was passed.
        what: &'static str,
        /// The device.
        device: String,
    },
    /// More streams are in use than a buffer can track.
    #[error(
        "{limit} streams of the GPU are in use, the most that buffers can track: drop handles of streams, or share them"
    )]
    TooManyStreams {
        /// Largest number of streams.
        limit: usize,
    },
    /// A call of the driver failed. An error of an earlier kernel may be returned here.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
}

/// Properties of a device on which measured times depend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceFacts {
    /// The driver's name of the device; for an emulated device `emulated` and the chip.
    pub name: String,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors; for an emulated device that of [`Limits`](silumin_codegen::arch::Limits).
    pub sms: u32,
    /// The driver's CUDA version and build, as far as known; `none` for an emulated device.
    pub driver: String,
}

/// A device that kernels run on. Cloning it is cheap, and it can be sent between threads.
///
/// Two handles are equal if buffers of one can be used on the other: handles of one GPU are equal, and an emulated
/// device equals only its clones.
///
/// ```
/// use silumin_runtime::device::Device;
/// use silumin_codegen::arch::Arch;
/// # fn main() -> Result<(), silumin_runtime::device::DeviceError> {
/// let device = Device::emulated(Arch::Sm100a);
/// let buffer = device.upload(&[1, 2, 3, 4])?;
/// assert_eq!(buffer.slice(1, 2)?.download()?, [2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
    cache: Option<Cache>,
    graphs: bool,
    line_info: bool,
}

struct Inner {
    arch: Arch,
    backend: Backend,
}

/// The implementation of a device.
pub(crate) enum Backend {
    Emulated(emulated::Emulated),
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Cuda>),
}

impl Device {
    /// A device of one chip on the CPU: it runs PTX text, slowly, and reports what is wrong with it.
    #[cfg(feature = "emulated")]
    #[must_use]
    pub fn emulated(arch: Arch) -> Self {
        Self::emulated_with(arch, EmulatorOptions::default())
    }

    /// Opens an emulated device with options: schedule, threads, arithmetic, limits, progress.
    #[cfg(feature = "emulated")]
    #[must_use]
    pub fn emulated_with(arch: Arch, options: EmulatorOptions) -> Self {
        let backend = Backend::Emulated(emulated::Emulated::new(options));
        Self { inner: Arc::new(Inner { arch, backend }), cache: None, graphs: true, line_info: false }
    }

    /// The GPU with this number, through the CUDA driver: B200 and GB200 are [`Arch::Sm100a`], B300 and GB300
    /// [`Arch::Sm103a`], Jetson Thor [`Arch::Sm110a`], GeForce RTX 50 and RTX PRO Blackwell [`Arch::Sm120a`], DGX Spark
    /// [`Arch::Sm121a`].
    ///
    /// ```no_run
    /// use silumin_runtime::device::Device;
    ///
    /// let device = Device::cuda(0)?;
    /// let buffer = device.upload(&[1, 2, 3, 4])?;
    /// assert_eq!(buffer.download()?, [1, 2, 3, 4]);
    /// # Ok::<(), silumin_runtime::device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDriver`], [`DeviceError::OldDriver`], [`DeviceError::NoDevice`],
    /// [`DeviceError::UnsupportedChip`], or what the driver says.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self, DeviceError> {
        Self::of_cuda(cuda::Cuda::open(ordinal)?)
    }

    /// The GPU of a cudarc context, for programs that have one, to share memory and streams with.
    ///
    /// # Errors
    ///
    /// As [`Device::cuda`].
    #[cfg(feature = "cuda")]
    pub fn from_cuda(context: Arc<cudarc::driver::CudaContext>) -> Result<Self, DeviceError> {
        Self::of_cuda(cuda::Cuda::of(context)?)
    }

    #[cfg(feature = "cuda")]
    fn of_cuda((device, arch): (cuda::Cuda, Arch)) -> Result<Self, DeviceError> {
        Ok(Self {
            inner: Arc::new(Inner { arch, backend: Backend::Cuda(Box::new(device)) }),
            cache: None,
            graphs: true,
            line_info: false,
        })
    }

    /// The device with a cache: each kernel is compiled once and read from the cache at later starts. Without one the
    /// driver compiles at each load. The emulated device reads PTX and does not use it.
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// The cache that kernels are compiled through.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// The device with CUDA graphs for repeated launches switched on (the default) or off. Without graphs a profiler
    /// shows each launch by itself, and no launch after the first creates anything. Kernels keep the setting of the
    /// handle that they were loaded with. The emulated device has no graphs.
    ///
    /// A graph runs with the priority of its stream and with none of the stream's other settings, such as an L2
    /// window or the SMs of a green context. Launch without graphs if those matter.
    #[must_use]
    pub fn with_graphs(self, graphs: bool) -> Self {
        Self { graphs, ..self }
    }

    /// Whether repeated launches become CUDA graphs: see [`Device::with_graphs`].
    #[must_use]
    pub fn graphs(&self) -> bool {
        self.graphs
    }

    /// The device with line information in the machine code that the driver makes of PTX, so that Nsight Compute shows
    /// each instruction beside its line of PTX. Off by default. The code is the same; a cache keeps it as an entry of its
    /// own. A cache that compiles with ptxas has `Ptxas::with_line_info` for this. The emulated device always reports lines.
    #[must_use]
    pub fn with_line_info(self, line_info: bool) -> Self {
        Self { line_info, ..self }
    }

    /// Whether the driver adds line information: see [`Device::with_line_info`].
    #[must_use]
    pub fn line_info(&self) -> bool {
        self.line_info
    }

    /// The device in words, with its number: `GPU 1, NVIDIA H100 80GB HBM3 (sm_90a)` or `emulated sm_90a, number 2`. Messages about
    /// two devices tell them apart by it.
    pub(crate) fn numbered(&self) -> String {
        match &self.inner.backend {
            Backend::Emulated(emulated) => format!("{self}, number {}", emulated.number()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => format!("GPU {}, {self}", device.ordinal()),
        }
    }

    /// The chip. A kernel runs only on the chip that it was made for.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.inner.arch
    }

    /// The properties on which measured times depend.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        match &self.inner.backend {
            Backend::Emulated(_) => {
                let arch = self.inner.arch;
                let digits: u32 =
                    arch.target().chars().filter_map(|c| c.to_digit(10)).fold(0, |n, d| 10 * n + d);
                DeviceFacts {
                    name: self.to_string(),
                    capability: (digits / 10, digits % 10),
                    sms: arch.limits().sms,
                    driver: "none".to_owned(),
                }
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => device.facts(),
        }
    }

    /// Allocates `bytes` bytes with undefined content, at an address that is a multiple of 256.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.buffer(bytes, || match &self.inner.backend {
            Backend::Emulated(_) => Ok(HostMemory::uninitialised(bytes).map(Memory::Emulated)),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Ok(device.alloc(bytes)?.map(Memory::Cuda)),
        })
    }

    /// Allocates a buffer of the length of `data` and copies it there.
    ///
    /// # Errors
    ///
    /// As [`Device::alloc`].
    pub fn upload(&self, data: &[u8]) -> Result<Buffer, DeviceError> {
        self.buffer(data.len(), || match &self.inner.backend {
            Backend::Emulated(_) => Ok(HostMemory::of(data).map(Memory::Emulated)),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Ok(device.upload(data)?.map(Memory::Cuda)),
        })
    }

    /// Wraps cudarc memory as a buffer, which then owns and frees it: for tensors that another crate has made.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Foreign`] where it is another GPU's, [`DeviceError::Empty`].
    #[cfg(feature = "cuda")]
    pub fn adopt(&self, slice: cudarc::driver::CudaSlice<u8>) -> Result<Buffer, DeviceError> {
        let len = slice.len();
        self.buffer(len, || match &self.inner.backend {
            Backend::Cuda(device) if device.owns(slice.stream()) => {
                Ok(Some(Memory::Cuda(device.adopt(slice)?)))
            }
            _ => Err(DeviceError::Foreign { what: "memory", device: self.to_string() }),
        })
    }

    fn buffer(
        &self,
        len: usize,
        memory: impl FnOnce() -> Result<Option<Memory>, DeviceError>,
    ) -> Result<Buffer, DeviceError> {
        if len == 0 {
            return Err(DeviceError::Empty);
        }
        let memory =
            memory()?.ok_or_else(|| DeviceError::OutOfMemory { device: self.to_string(), bytes: len })?;
        Ok(Buffer::whole(self.clone(), memory, len))
    }

    /// The device's default stream. Work on it runs in the order of the calls.
    #[must_use]
    pub fn stream(&self) -> Stream {
        let order = match &self.inner.backend {
            Backend::Emulated(_) => Order::Emulated,
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Order::Cuda(device.lane().clone()),
        };
        Stream { device: self.clone(), order }
    }

    /// Creates another stream, whose work may overlap that of others. A buffer that several streams use is used in
    /// the order of the calls. Calls made at the same time by several threads have no order.
    ///
    /// # Errors
    ///
    /// [`DeviceError::TooManyStreams`], [`DeviceError::Driver`].
    pub fn new_stream(&self) -> Result<Stream, DeviceError> {
        let order = match &self.inner.backend {
            Backend::Emulated(_) => Order::Emulated,
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Order::Cuda(device.new_stream()?),
        };
        Ok(Stream { device: self.clone(), order })
    }

    /// Wraps a cudarc stream, for example the one on which an engine does its other work.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Foreign`] where it is another GPU's, [`DeviceError::TooManyStreams`].
    #[cfg(feature = "cuda")]
    pub fn stream_of(&self, stream: Arc<cudarc::driver::CudaStream>) -> Result<Stream, DeviceError> {
        match &self.inner.backend {
            Backend::Cuda(device) if device.owns(&stream) => {
                Ok(Stream { device: self.clone(), order: Order::Cuda(device.lane_of(stream)?) })
            }
            _ => Err(DeviceError::Foreign { what: "stream", device: self.to_string() }),
        }
    }

    /// Whether this is a device that runs PTX on the CPU.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        matches!(self.inner.backend, Backend::Emulated(_))
    }

    /// The driver's number of a GPU; `None` for an emulated device.
    #[must_use]
    pub fn ordinal(&self) -> Option<usize> {
        match &self.inner.backend {
            Backend::Emulated(_) => None,
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Some(device.ordinal()),
        }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.inner.backend
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (&self.inner.backend, &other.inner.backend) {
            #[cfg(feature = "cuda")]
            (Backend::Cuda(one), Backend::Cuda(other)) => one.is(other),
            _ => Arc::ptr_eq(&self.inner, &other.inner),
        }
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.backend {
            Backend::Emulated(_) => write!(f, "emulated {}", self.inner.arch),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => write!(f, "{} ({})", device.name(), self.inner.arch),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

/// A queue of work on a device. Cloning it is cheap.
///
/// On the emulated device a launch has finished when it returns; on a GPU it is enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    device: Device,
    order: Order,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Emulated,
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Lane>),
}

impl Stream {
    /// The device that the stream belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until all work on the stream is done.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`]: what went wrong in that work, too.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        match &self.order {
            Order::Emulated => Ok(()),
            #[cfg(feature = "cuda")]
            Order::Cuda(lane) => cuda::synchronize(&lane.stream),
        }
    }

    /// The cudarc stream; `None` on the emulated device.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda(&self) -> Option<&Arc<cudarc::driver::CudaStream>> {
        match &self.order {
            Order::Cuda(lane) => Some(&lane.stream),
            Order::Emulated => None,
        }
    }

    /// Wraps memory that another crate owns as a buffer, which does not free it. `address` is the first byte, `len`
    /// the number of bytes. All other use of the memory is on this stream, or has been waited for on it.
    ///
    /// Launches on this stream do not wait because of the buffer, and its copies run on this stream.
    ///
    /// # Safety
    ///
    /// `len` bytes of the stream's GPU lie at `address` and stay there until every handle of the buffer is dropped and the
    /// work that was put in streams with it is done. What writes them while a handle lives is ordered by the caller.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Empty`], [`DeviceError::Foreign`] for the emulated device's streams.
    #[cfg(feature = "cuda")]
    pub unsafe fn lend(&self, address: u64, len: usize) -> Result<Buffer, DeviceError> {
        match (&self.order, &self.device.inner.backend) {
            (Order::Cuda(lane), Backend::Cuda(cuda)) => {
                self.device.buffer(len, || Ok(Some(Memory::Cuda(cuda.lend(address, lane, None)))))
            }
            _ => Err(DeviceError::Foreign { what: "memory", device: self.device.numbered() }),
        }
    }

    /// As [`Stream::lend`], with an owner that is dropped with the last handle of the buffer, after this stream has been made to
    /// wait for other streams' use of it.
    ///
    /// # Safety
    ///
    /// `len` bytes of the stream's GPU lie at `address` and stay there until the owner is dropped.
    #[cfg(feature = "cuda")]
    pub(crate) unsafe fn borrow(
        &self,
        address: u64,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Buffer, DeviceError> {
        match (&self.order, &self.device.inner.backend) {
            (Order::Cuda(lane), Backend::Cuda(cuda)) => {
                self.device.buffer(len, || Ok(Some(Memory::Cuda(cuda.lend(address, lane, Some(owner))))))
            }
            _ => Err(DeviceError::Foreign { what: "memory", device: self.device.numbered() }),
        }
    }

    /// The stream's record for ordering buffers; `None` on the emulated device.
    #[cfg(feature = "cuda")]
    pub(crate) fn lane(&self) -> Option<&Arc<cuda::Lane>> {
        match &self.order {
            Order::Cuda(lane) => Some(lane),
            Order::Emulated => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_cross_threads() {
        fn shared<T: Send + Sync + Clone>() {}
        shared::<Device>();
        shared::<Buffer>();
        shared::<Stream>();
    }

    #[test]
    fn a_device_is_itself_and_no_other() {
        let (one, other) = (Device::emulated(Arch::Sm100a), Device::emulated(Arch::Sm100a));
        assert_eq!(one, one.clone());
        assert_ne!(one, other);
        assert_eq!(one.alloc(8).unwrap().device(), &one);
        assert_eq!(one.stream().device(), &one);
        assert_eq!(format!("{one:?}"), "Device(emulated sm_100a)");
    }
}
