//! Launches kernels from other sources through the driver API.

use cudarc::driver::{CudaStream, DriverError, sys};
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

/// A module with one kernel.
pub struct Raw {
    stream: Arc<CudaStream>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Value {
    /// 32 bits.
    U32(u32),
    /// 64 bits, such as an address.
    U64(u64),
}

impl Value {
    fn place(&mut self) -> *mut c_void {
        match self {
            Value::U32(value) => ptr::from_mut(value).cast(),
            Value::U64(value) => ptr::from_mut(value).cast(),
        }
    }
}

/// Describes a failed call.
pub fn said(call: &str, error: DriverError) -> String {
    match error.error_name() {
        Ok(name) => format!("{call}: {}", name.to_string_lossy()),
        Err(_) => format!("{call}: {:?}", error.0),
    }
}

impl Raw {
    /// Compiles `ptx` with the driver and looks up `entry`.
    pub fn load(stream: &Arc<CudaStream>, ptx: &str, entry: &str) -> Result<Raw, String> {
        stream.context().bind_to_thread().map_err(|e| said("cuCtxSetCurrent", e))?;
        let text = CString::new(ptx).map_err(|e| e.to_string())?;
        let name = CString::new(entry).map_err(|e| e.to_string())?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends in a zero byte, the result has a place; without options their arrays are not read.
        unsafe {
            sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut())
        }
        .result()
        .map_err(|e| said("cuModuleLoadDataEx", e))?;
        // SAFETY: the module is loaded, the name ends in a zero byte, the result has a place.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) }.result();
        let raw = Raw { stream: stream.clone(), module, function };
        found.map_err(|e| said("cuModuleGetFunction", e))?;
        Ok(raw)
    }

    /// Puts a launch in the stream.
    ///
    /// # Safety
    /// The values are the kernel's parameters, and memory that they are the addresses of is as large as it reads and writes.
    pub unsafe fn launch(&self, grid: [u32; 2], block: u32, values: &mut [Value]) -> Result<(), String> {
        let mut places: Vec<*mut c_void> = values.iter_mut().map(Value::place).collect();
        // SAFETY: the caller vouches for the parameters; the function is of a loaded module.
        unsafe {
            sys::cuLaunchKernel(
                self.function,
                grid[0],
                grid[1],
                1,
                block,
                1,
                1,
                0,
                self.stream.cu_stream(),
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
        .result()
        .map_err(|e| said("cuLaunchKernel", e))
    }
}

/// Compiles PTX with the driver and looks up its first kernel. Returns the milliseconds that it took.
pub fn compile(stream: &Arc<CudaStream>, ptx: &str) -> Result<f64, String> {
    let entry = ptx.split_once(".entry").and_then(|(_, rest)| rest.split(['(', '\n', '{']).next());
    let entry = entry.map(str::trim).filter(|name| !name.is_empty()).ok_or("the PTX has no kernel")?;
    let start = Instant::now();
    let raw = Raw::load(stream, ptx, entry)?;
    // A driver that loads lazily puts off what a function needs until it is asked for.
    if attribute(raw.function, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).is_none() {
        return Err(format!("cuFuncGetAttribute of `{entry}` failed"));
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What goes wrong here went wrong in a launch before, which has been told.
        if self.stream.synchronize().is_ok() {
            // SAFETY: the module is loaded, nobody else has it, and its work is done.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// An attribute of a function; `None` if the driver does not provide it.
pub fn attribute(function: sys::CUfunction, attribute: sys::CUfunction_attribute) -> Option<i32> {
    let mut value = 0;
    // SAFETY: the function is of a loaded module, the result has a place.
    unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) }.result().ok().map(|()| value)
}

/// An attribute of the device.
pub fn device_attribute(stream: &CudaStream, attribute: sys::CUdevice_attribute) -> Option<i32> {
    stream.context().attribute(attribute).ok()
}

/// Fills device memory with a byte.
///
/// # Safety
/// There are so many bytes at the address.
pub unsafe fn fill(stream: &CudaStream, address: u64, byte: u8, bytes: usize) -> Result<(), String> {
    // SAFETY: the caller vouches for the memory.
    unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream.cu_stream()) }
        .result()
        .map_err(|e| said("cuMemsetD8Async", e))
}

/// Copies device memory.
///
/// # Safety
/// There are so many bytes at both addresses.
pub unsafe fn copy(stream: &CudaStream, target: u64, source: u64, bytes: usize) -> Result<(), String> {
    // SAFETY: the caller vouches for the memory.
    unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream.cu_stream()) }
        .result()
        .map_err(|e| said("cuMemcpyDtoDAsync", e))
}
