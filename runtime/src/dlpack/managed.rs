//! A tensor of another library, and its owner's deleter.

use std::fmt;
use std::ptr::NonNull;

use super::DlpackError;
use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, READ_ONLY, SUBBYTE_PADDED, VERSION};

/// Which struct a tensor travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// `DLManagedTensor`, in Python the capsule `dltensor`.
    Unversioned,
    /// `DLManagedTensorVersioned` of DLPack 1.0, in Python the capsule `dltensor_versioned`.
    Versioned,
}

/// The address of a struct, for the other library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawManaged {
    /// The struct from before DLPack 1.0.
    Unversioned(NonNull<DLManagedTensor>),
    /// The struct since DLPack 1.0.
    Versioned(NonNull<DLManagedTensorVersioned>),
}

/// A tensor of another library, or one for it. Dropping it calls its owner's deleter.
pub struct Managed(RawManaged);

// SAFETY: a deleter may be called on any thread (DLPack, "C API": the consumer calls it when it has no use for the tensor), once;
// the struct does not change before.
unsafe impl Send for Managed {}
// SAFETY: shared handles read the struct, which does not change.
unsafe impl Sync for Managed {}

impl Managed {
    /// Takes over a tensor that another library has exported.
    ///
    /// # Safety
    ///
    /// The struct is valid, and nobody else calls its deleter. Shape and strides have `ndim` entries. The memory is there until the
    /// deleter is called, and elements have been written, or will be by earlier work of the stream that the tensor is used on.
    ///
    /// # Errors
    ///
    /// [`DlpackError::Null`], [`DlpackError::Version`]. The deleter has been called if there is one, as the standard asks.
    pub unsafe fn from_raw(raw: RawManaged) -> Result<Self, DlpackError> {
        let managed = Self(raw);
        if let RawManaged::Versioned(tensor) = raw {
            // SAFETY: the caller's. The first fields are the same in every version.
            let version = unsafe { (*tensor.as_ptr()).version };
            if version.major != VERSION.major {
                return Err(DlpackError::Version { major: version.major, minor: version.minor });
            }
        }
        Ok(managed)
    }

    /// As [`Managed::from_raw`], of the address in a capsule, which may be null.
    ///
    /// # Safety
    ///
    /// As [`Managed::from_raw`], and the address is null or that of a struct of this kind.
    ///
    /// # Errors
    ///
    /// As [`Managed::from_raw`].
    pub unsafe fn from_address(address: *mut std::ffi::c_void, abi: Abi) -> Result<Self, DlpackError> {
        let null = DlpackError::Null { what: "the managed tensor" };
        let raw = match abi {
            Abi::Unversioned => RawManaged::Unversioned(NonNull::new(address.cast()).ok_or(null)?),
            Abi::Versioned => RawManaged::Versioned(NonNull::new(address.cast()).ok_or(null)?),
        };
        // SAFETY: the caller's.
        unsafe { Self::from_raw(raw) }
    }

    /// Hands the tensor to another library, which calls the deleter of the struct once.
    #[must_use = "the memory is never freed unless the deleter is called"]
    pub fn into_raw(self) -> RawManaged {
        std::mem::ManuallyDrop::new(self).0
    }

    /// The tensor.
    pub(super) fn tensor(&self) -> &DLTensor {
        // SAFETY: the struct is valid until it is dropped, by the contract of `from_raw`.
        unsafe {
            match self.0 {
                RawManaged::Unversioned(tensor) => &(*tensor.as_ptr()).dl_tensor,
                RawManaged::Versioned(tensor) => &(*tensor.as_ptr()).dl_tensor,
            }
        }
    }

    fn flags(&self) -> u64 {
        match self.0 {
            RawManaged::Unversioned(_) => 0,
            // SAFETY: as in `tensor`.
            RawManaged::Versioned(tensor) => unsafe { (*tensor.as_ptr()).flags },
        }
    }

    /// Whether its owner allows no writes. Structs from before DLPack 1.0 do not say.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags() & READ_ONLY != 0
    }

    /// Whether elements of less than a byte have a byte each.
    pub(super) fn is_padded(&self) -> bool {
        self.flags() & SUBBYTE_PADDED != 0
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the struct is this handle's own, and its deleter is called here only.
        unsafe {
            match self.0 {
                RawManaged::Unversioned(tensor) => {
                    if let Some(deleter) = (*tensor.as_ptr()).deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                RawManaged::Versioned(tensor) => {
                    if let Some(deleter) = (*tensor.as_ptr()).deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Managed").field(self.tensor()).finish()
    }
}
