//! Ranges on the host's timeline of Nsight Systems (NVTX), with feature `nvtx`: warm-up and each kernel that it loads, tuning,
//! launches, and calls of whole blocks. Without the feature a range is nothing.
//!
//! Names begin with `silumin`, so that a filter finds them.

use std::fmt;
use std::marker::PhantomData;

/// An open range of this thread. It ends when it is dropped; ranges of a thread nest.
#[must_use]
pub(crate) struct Range {
    /// A range ends on the thread that it began on.
    _thread: PhantomData<*const ()>,
}

/// Begins a range. Nothing is allocated; a name is cut after 255 bytes.
#[cfg_attr(
    not(feature = "nvtx"),
    allow(unused_variables, reason = "without the feature there are no ranges")
)]
pub(crate) fn range(name: fmt::Arguments<'_>) -> Range {
    #[cfg(feature = "nvtx")]
    calls::push(name);
    Range { _thread: PhantomData }
}

#[cfg(feature = "nvtx")]
impl Drop for Range {
    fn drop(&mut self) {
        calls::pop();
    }
}

#[cfg(feature = "nvtx")]
mod calls {
    use std::ffi::{c_char, c_int};
    use std::fmt;
    use std::io::{Cursor, Write};

    // The crate's macros copy a name to the heap twice. These are the functions behind them, which it compiles and links; its
    // version is pinned for their sake.
    use nvtx as _;
    unsafe extern "C" {
        fn ffi_range_push(message: *const c_char) -> c_int;
        fn ffi_range_pop() -> c_int;
    }

    pub fn push(name: fmt::Arguments<'_>) {
        let mut text = [0u8; 256];
        // A name that is too long is cut: the last byte stays zero.
        let _ = write!(Cursor::new(&mut text[..255]), "silumin {name}");
        // SAFETY: the text ends in a zero byte, and a profiler copies it before the call returns.
        unsafe { ffi_range_push(text.as_ptr().cast()) };
    }

    pub fn pop() {
        // SAFETY: it takes nothing. Without an open range it does nothing.
        unsafe { ffi_range_pop() };
    }
}
