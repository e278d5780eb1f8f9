//! Allocation and copies. All of them have finished when the call returns.

use crate::graph::not_captured;
use crate::state::{Code, Contents, code, state};
use crate::{put, succeed};
use std::ffi::{c_int, c_uchar, c_void};

/// The largest allocation, in bytes: what the emulator's memory has between two buffers.
pub(crate) const LARGEST: u64 = 15 << 30;

succeed! {
    cuMemPoolTrimTo(pool: *mut c_void, keep: usize);
}

fn allocate(bytes: usize) -> Result<u64, Code> {
    match bytes as u64 {
        0 => Err(Code::InvalidValue),
        bytes if bytes > LARGEST => Err(Code::OutOfMemory),
        bytes => {
            let mut contents = state().contents();
            let number = contents.allocations;
            let buffer = contents.memory.try_alloc(&format!("allocation {number}"), bytes);
            let buffer = buffer.ok_or(Code::OutOfMemory)?;
            contents.allocations += 1;
            let address = contents.memory.address(&buffer);
            contents.buffers.insert(address, buffer);
            Ok(address)
        }
    }
}

/// The buffer that holds `bytes` bytes from `address` on, and where in it they start.
fn find(contents: &Contents, address: u64, bytes: usize) -> Result<(silumin_emulator::Buffer, u64), Code> {
    let (start, buffer) = contents.buffers.range(..=address).next_back().ok_or(Code::InvalidValue)?;
    let offset = address - start;
    let end = offset.checked_add(bytes as u64).ok_or(Code::InvalidValue)?;
    if end > contents.memory.len(buffer) { Err(Code::InvalidValue) } else { Ok((*buffer, offset)) }
}

fn done(result: Result<(), Code>) -> c_int {
    match (state().sticky(), result) {
        (Code::Success, Ok(())) => code(Code::Success),
        (Code::Success, Err(error)) => code(error),
        (failed, _) => code(failed),
    }
}

/// Runs work at once; a stream that is being captured accepts none.
fn at_once(stream: *mut c_void, work: impl FnOnce() -> c_int) -> c_int {
    match not_captured(stream) {
        Ok(()) => work(),
        Err(error) => code(error),
    }
}

/// Allocates.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    match allocate(bytes) {
        // SAFETY: the caller's place.
        Ok(found) => code(unsafe { put(address, found) }),
        Err(error) => code(error),
    }
}

/// Allocates.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemAlloc_v2(address, bytes) })
}

/// Frees what was allocated at `address`.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    let mut contents = state().contents();
    match contents.buffers.remove(&address) {
        Some(buffer) => {
            contents.memory.free(&buffer);
            code(Code::Success)
        }
        None => code(Code::InvalidValue),
    }
}

/// Frees what was allocated at `address`.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemFree_v2(address) })
}

/// Free and total bytes.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    // SAFETY: the caller's places.
    unsafe {
        put(free, LARGEST as usize);
        code(put(total, LARGEST as usize))
    }
}

/// Host to device.
///
/// # Safety
/// As in the driver's API: `bytes` bytes lie at `source`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(target: u64, source: *const c_void, bytes: usize) -> c_int {
    let contents = state().contents();
    done(find(&contents, target, bytes).map(|(buffer, offset)| {
        if bytes > 0 {
            // SAFETY: the caller has so many bytes there.
            let data = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) };
            contents.memory.write(&buffer, offset, data);
        }
    }))
}

/// Host to device.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    target: u64,
    source: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemcpyHtoD_v2(target, source, bytes) })
}

/// Device to host.
///
/// # Safety
/// As in the driver's API: there is room for `bytes` bytes at `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(target: *mut c_void, source: u64, bytes: usize) -> c_int {
    let contents = state().contents();
    done(find(&contents, source, bytes).map(|(buffer, offset)| {
        let data = contents.memory.read_part(&buffer, offset, bytes as u64);
        // SAFETY: the caller has room for so many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target.cast::<u8>(), data.len()) };
    }))
}

/// Device to host.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    target: *mut c_void,
    source: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemcpyDtoH_v2(target, source, bytes) })
}

/// Device to device.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(target: u64, source: u64, bytes: usize) -> c_int {
    let contents = state().contents();
    let found = find(&contents, source, bytes).and_then(|from| Ok((from, find(&contents, target, bytes)?)));
    done(found.map(|((from, start), (to, offset))| {
        let data = contents.memory.read_part(&from, start, bytes as u64);
        contents.memory.write(&to, offset, &data);
    }))
}

/// Device to device.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    target: u64,
    source: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemcpyDtoD_v2(target, source, bytes) })
}

/// Fills with one byte.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(target: u64, value: c_uchar, bytes: usize) -> c_int {
    let contents = state().contents();
    done(find(&contents, target, bytes).map(|(buffer, offset)| {
        contents.memory.write(&buffer, offset, &vec![value; bytes]);
    }))
}

/// Fills with one byte.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    target: u64,
    value: c_uchar,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    at_once(stream, || unsafe { cuMemsetD8_v2(target, value, bytes) })
}
