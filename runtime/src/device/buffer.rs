//! Device memory: handles of allocations and of their parts.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::cuda;
use super::memory::HostMemory;
use super::{Device, DeviceError};

/// A range of device memory. Cloning it is cheap; a handle keeps the memory alive.
#[derive(Clone)]
pub struct Buffer {
    allocation: Arc<Allocation>,
    /// Offset from the start of the allocation in bytes.
    offset: usize,
    len: usize,
}

struct Allocation {
    device: Device,
    memory: Memory,
}

pub(super) enum Memory {
    Emulated(HostMemory),
    #[cfg(feature = "cuda")]
    Cuda(cuda::CudaMemory),
}

impl Buffer {
    /// A handle of a whole allocation of `len` bytes on `device`.
    pub(super) fn whole(device: Device, memory: Memory, len: usize) -> Self {
        Self { allocation: Arc::new(Allocation { device, memory }), offset: 0, len }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a buffer has at least one byte. It exists because there is a `len`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that the memory belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.allocation.device
    }

    /// The `len` bytes from byte `offset` on, sharing the memory. Use it for one of several tensors in an allocation,
    /// or for the part of a buffer that a smaller problem needs.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfBounds`], [`DeviceError::Empty`].
    pub fn slice(&self, offset: usize, len: usize) -> Result<Self, DeviceError> {
        if len == 0 {
            return Err(DeviceError::Empty);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(DeviceError::OutOfBounds { offset, len, capacity: self.len });
        }
        Ok(Self { allocation: self.allocation.clone(), offset: self.offset + offset, len })
    }

    /// Copies `data` from the host to the device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Length`] where `data` is not as long as the buffer.
    pub fn write(&self, data: &[u8]) -> Result<(), DeviceError> {
        if data.len() != self.len {
            return Err(DeviceError::Length { given: data.len(), capacity: self.len });
        }
        match &self.allocation.memory {
            Memory::Emulated(memory) => memory.write(self.offset, data),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.write(self.offset, data)?,
        }
        Ok(())
    }

    /// Copies the bytes to the host, after all earlier work on them.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Uninitialised`] on the emulated device, [`DeviceError::Driver`] on a GPU.
    pub fn download(&self) -> Result<Vec<u8>, DeviceError> {
        match &self.allocation.memory {
            Memory::Emulated(memory) => memory
                .read(self.offset, self.len)
                .map_err(|offset| DeviceError::Uninitialised { offset, capacity: self.len }),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.read(self.offset, self.len),
        }
    }

    /// Whether two ranges share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }

    /// Whether two handles are of the same range.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
            && (self.offset, self.len) == (other.offset, other.len)
    }

    /// Whether the address is a multiple of `bytes`, which is a power of two of at most 256.
    #[must_use]
    pub fn is_aligned(&self, bytes: usize) -> bool {
        match &self.allocation.memory {
            // Allocations start at multiples of 256.
            Memory::Emulated(_) => self.offset.is_multiple_of(bytes),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => (memory.address() as usize + self.offset).is_multiple_of(bytes),
        }
    }

    /// The address of the first byte on a GPU, for kernels of your own; `None` on the emulated device. It is valid as
    /// long as a handle of the buffer lives. The caller orders the work of such kernels.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_address(&self) -> Option<u64> {
        self.cuda_memory().map(|(memory, offset)| memory.address() + offset as u64)
    }

    /// The memory of a buffer on the emulated device, and the offset in it.
    pub(crate) fn emulated_memory(&self) -> Option<(&HostMemory, usize)> {
        match &self.allocation.memory {
            Memory::Emulated(memory) => Some((memory, self.offset)),
            #[cfg(feature = "cuda")]
            Memory::Cuda(_) => None,
        }
    }

    /// The memory of a buffer on a GPU, and the offset in it.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda_memory(&self) -> Option<(&cuda::CudaMemory, usize)> {
        match &self.allocation.memory {
            Memory::Emulated(_) => None,
            Memory::Cuda(memory) => Some((memory, self.offset)),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("device", self.device())
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;

    #[test]
    fn slices_share_memory_and_know_their_place() {
        let device = Device::emulated(Arch::Sm100a);
        let whole = device.upload(&[0u8; 64]).unwrap();
        let (left, right) = (whole.slice(0, 40).unwrap(), whole.slice(40, 24).unwrap());
        right.slice(8, 2).unwrap().write(&[7, 9]).unwrap();
        assert_eq!(whole.download().unwrap()[47..51], [0, 7, 9, 0]);
        assert!(whole.overlaps(&left) && whole.overlaps(&right) && left.overlaps(&left));
        assert!(!left.overlaps(&right) && !right.overlaps(&left));
        assert!(!left.overlaps(&device.upload(&[0; 64]).unwrap()));
        assert!(left.is_aligned(256) && right.is_aligned(8) && !right.is_aligned(16));
        assert_eq!(
            right.slice(8, 17).unwrap_err(),
            DeviceError::OutOfBounds { offset: 8, len: 17, capacity: 24 }
        );
        assert!(right.slice(usize::MAX, 2).is_err());
        assert_eq!(right.slice(1, 0).unwrap_err(), DeviceError::Empty);
        assert_eq!(right.write(&[0; 23]), Err(DeviceError::Length { given: 23, capacity: 24 }));
    }

    #[test]
    fn reading_what_nothing_wrote_is_an_error() {
        let device = Device::emulated(Arch::Sm100a);
        let buffer = device.alloc(100).unwrap();
        let unwritten = |offset, capacity| Err(DeviceError::Uninitialised { offset, capacity });
        assert_eq!(buffer.download(), unwritten(0, 100));
        buffer.slice(0, 60).unwrap().write(&[5; 60]).unwrap();
        assert_eq!(buffer.download(), unwritten(60, 100));
        assert_eq!(buffer.slice(50, 20).unwrap().download(), unwritten(10, 20));
        assert_eq!(buffer.slice(50, 10).unwrap().download().unwrap(), [5; 10]);
        assert_eq!(device.alloc(0).unwrap_err(), DeviceError::Empty);
        assert!(matches!(device.alloc(usize::MAX).unwrap_err(), DeviceError::OutOfMemory { .. }));
    }
}
