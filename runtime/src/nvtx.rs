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

/// Begins a range. Without a profiler this costs a text and a call.
#[cfg_attr(
    not(feature = "nvtx"),
    allow(unused_variables, reason = "without the feature there are no ranges")
)]
pub(crate) fn range(name: fmt::Arguments<'_>) -> Range {
    #[cfg(feature = "nvtx")]
    nvtx::range_push!("silumin {name}");
    Range { _thread: PhantomData }
}

#[cfg(feature = "nvtx")]
impl Drop for Range {
    fn drop(&mut self) {
        nvtx::range_pop!();
    }
}
