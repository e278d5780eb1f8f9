//! A CUDA driver library without a GPU: it implements functions of `libcuda` with the emulator.
//!
//! Put the library under the driver's name where the loader finds it first. Then a program that uses the driver's API
//! runs its PTX on the CPU, unchanged:
//!
//! ```text
//! mkdir /tmp/driver && ln -s $PWD/target/release/libsilumin_emulated_driver.so /tmp/driver/libcuda.so.1
//! LD_LIBRARY_PATH=/tmp/driver SILUMIN_EMULATED_CHIP=sm_100a ./program
//! ```
//!
//! It has what is needed to load and launch kernels: contexts, streams, events, memory, PTX modules, tensor maps,
//! launches with clusters, and graphs of launches that are captured from a stream. All streams are one, and a launch
//! has finished when its call returns. If the emulator finds something wrong with a kernel, its launch and all later
//! calls fail with `CUDA_ERROR_LAUNCH_FAILED`, and the findings are printed to standard error. The linker's images are
//! the PTX itself in a container, which modules are loaded from as from cubins. Real cubins and managed memory are not
//! supported: their symbols are missing, or their functions return `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! | variable | meaning |
//! |---|---|
//! | `SILUMIN_EMULATED_CHIP` | the chip: `sm_90a`, `sm_100a` (the default), `sm_103a`, `sm_110a` or `sm_120a` |
//! | `SILUMIN_EMULATED_CUDA` | the CUDA version that it reports, `13.0` by default |
//! | `SILUMIN_EMULATED_DEVICES` | number of devices, 1 by default; each has a context, and all share one memory |
//! | `SILUMIN_EMULATED_GRAPHS` | `none`: graphs can be captured but not instantiated; `idle`: their launches run nothing, to measure the rest of a launch |
//! | `SILUMIN_EMULATED_TIME_LIMIT` | seconds that a launch may take before it fails; no limit by default |
//! | `SILUMIN_EMULATED_INSTRUCTION_LIMIT` | PTX instructions that a cluster may execute before its launch fails; 1,000,000,000 by default |
//! | `SILUMIN_EMULATED_MEMORY_LIMIT` | bytes of host memory for registers, shared and local memory of a launch; 7/8 of the available memory by default. A launch that needs more returns `CUDA_ERROR_OUT_OF_MEMORY` |
//! | `SILUMIN_EMULATED_MISHAP` | `fail:TEXT`, `hang:TEXT` or `abort:TEXT`, several with `;`: launches of kernels with TEXT in their PTX make all later calls fail, never end, or end the process; for tests of programs that have to cope with such kernels |
//!
//! * `lib.rs`: the device, contexts, streams, errors.
//! * `graph.rs`: events, captures and graphs.
//! * `link.rs`: the linker: PTX to images.
//! * `memory.rs`: allocation and copies.
//! * `module.rs`: modules, tensor maps, launches.
//! * `state.rs`: the state behind the handles.

mod graph;
mod link;
mod memory;
mod module;
mod state;

use state::{Code, Ordinal, code, state};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// The context handle of a device.
fn context(device: c_int) -> *mut c_void {
    ptr::without_provenance_mut(0x51 + 0x100 * device.max(0) as usize)
}

thread_local! {
    /// The thread's current context; by default that of the first device.
    static CURRENT: Cell<*mut c_void> = Cell::new(context(0));
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `place` is null or a place for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Code {
    if place.is_null() {
        return Code::InvalidValue;
    }
    // SAFETY: the caller vouches for it.
    unsafe { place.write(value) };
    Code::Success
}

macro_rules! succeed {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        $(
            /// Does nothing in this driver.
            ///
            /// # Safety
            /// As in the driver's API.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
                $(let _ = $arg;)*
                state().sticky() as c_int
            }
        )*
    };
}
pub(crate) use succeed;

succeed! {
    cuInit(flags: c_uint);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxSynchronize();
    cuCtxSetFlags(flags: c_uint);
    cuStreamDestroy_v2(stream: *mut c_void);
    cuEventSynchronize(event: *mut c_void);
    cuEventQuery(event: *mut c_void);
}

/// The driver's CUDA version: 1000 major + 10 minor.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(version, state().cuda) })
}

/// The number of devices.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(count, state().devices) })
}

/// The device with this number.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..state().devices).contains(&ordinal) {
        return code(Code::InvalidDevice);
    }
    // SAFETY: the caller's place.
    code(unsafe { put(device, ordinal) })
}

/// The device's name, cut to the caller's room.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) -> c_int {
    let Ok(room @ 1..) = usize::try_from(room) else { return code(Code::InvalidValue) };
    if name.is_null() {
        return code(Code::InvalidValue);
    }
    let text = format!("emulated {}", state().chip.target());
    let kept = text.len().min(room - 1);
    // SAFETY: the caller has room for so many characters.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), name, kept);
        name.add(kept).write(0);
    }
    code(Code::Success)
}

/// An identifier of the device that is the same in every process.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: c_int) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(uuid, *b"silumin emulated") })
}

/// A device attribute: capabilities and sizes; 0 for unknown ones.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    let (major, minor) = state().chip.capability();
    let known = match Ordinal(attribute) {
        Ordinal::MAX_THREADS_PER_BLOCK => 1024,
        Ordinal::WARP_SIZE => 32,
        Ordinal::MULTIPROCESSORS => state().chip.sms(),
        Ordinal::MAJOR => major,
        Ordinal::MINOR => minor,
        Ordinal::SHARED_MEMORY => 48 << 10,
        Ordinal::SHARED_MEMORY_OPTIN => state().chip.max_smem(),
        Ordinal::COOPERATIVE_LAUNCH | Ordinal::CLUSTER_LAUNCH | Ordinal::MEMORY_POOLS => 1,
        _ => 0,
    };
    // SAFETY: the caller's place.
    code(unsafe { put(value, known) })
}

/// The memory of a device: what can be allocated in one piece.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(bytes, memory::LARGEST as usize) })
}

/// The device's context.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut *mut c_void, device: c_int) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(place, context(device)) })
}

/// The thread's context.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(place: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's place.
    code(unsafe { put(place, CURRENT.get()) })
}

/// Binds a context to the thread.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    CURRENT.set(context);
    state().sticky() as c_int
}

/// Creates a stream: another handle of the only one.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    let handle = state().handle();
    // SAFETY: the caller's place.
    code(unsafe { put(stream, handle) })
}

/// Creates an event, which counts as having occurred.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    let handle = state().handle();
    // SAFETY: the caller's place.
    code(unsafe { put(event, handle) })
}

/// The name of an error.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the caller's place.
    unsafe { named(error, text, |known| known.name()) }
}

/// Description of an error.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: the caller's place.
    unsafe { named(error, text, |known| known.meaning()) }
}

/// # Safety
/// `text` is null or a place for an address.
unsafe fn named(error: c_int, text: *mut *const c_char, of: impl Fn(Code) -> &'static CStr) -> c_int {
    let known = Code::ALL.into_iter().find(|known| *known as c_int == error);
    let Some(known) = known else { return code(Code::InvalidValue) };
    // SAFETY: the caller vouches for it.
    code(unsafe { put(text, of(known).as_ptr()) })
}
