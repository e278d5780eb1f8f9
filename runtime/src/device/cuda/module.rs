//! PTX to functions, by the driver's compiler.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use silumin_codegen::kernel::{Kernel, WorkspaceBuffer};

use super::{Cuda, driver};

/// Bytes of each of the compiler's logs.
const LOG_BYTES: usize = 16 << 10;

/// A kernel's module in a context.
pub(crate) struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    /// The function of each launch, in order.
    functions: Vec<sys::CUfunction>,
    /// Memory that one launch at a time may use: each stream has its own.
    pub(super) workspaces: Mutex<Vec<Workspace>>,
}

// SAFETY: a module and its functions may be used by any thread that has their context bound (CUDA driver API,
// "Context Management"), which every use sees to.
unsafe impl Send for Module {}
// SAFETY: as above; nothing here changes but the workspaces, which have a lock.
unsafe impl Sync for Module {}

/// A stream's own workspace.
pub(super) struct Workspace {
    pub stream: Arc<CudaStream>,
    /// Each with its address.
    pub buffers: Vec<(WorkspaceBuffer, u64, CudaSlice<u8>)>,
}

impl Module {
    /// Has the driver compile all of the kernel's PTX.
    ///
    /// # Errors
    /// In words: the driver's, with the lines that it means, and what would help.
    pub(crate) fn load(cuda: &Cuda, kernel: &Kernel) -> Result<Self, String> {
        if let Some(reason) = driver::too_old(kernel.ptx_version, cuda.driver) {
            return Err(reason);
        }
        let context = cuda.context.clone();
        context.bind_to_thread().map_err(driver::in_words)?;
        let module = compile(&kernel.ptx)?;
        // From here on dropping unloads it.
        let mut loaded = Self { context, module, functions: Vec::new(), workspaces: Mutex::new(Vec::new()) };
        for launch in &kernel.launches {
            let function = loaded.function(&launch.entry, launch.dynamic_smem)?;
            loaded.functions.push(function);
        }
        Ok(loaded)
    }

    fn function(&self, entry: &str, dynamic_smem: u32) -> Result<sys::CUfunction, String> {
        let name = CString::new(entry).map_err(|_| format!("the name `{entry}` holds a zero byte"))?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte, the result has a place.
        unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) }
            .result()
            .map_err(|error| format!("no entry `{entry}`: {}", driver::in_words(error)))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of a loaded module.
        unsafe { sys::cuFuncSetAttribute(function, attribute, dynamic_smem as i32) }.result().map_err(
            |error| {
                format!("{dynamic_smem} bytes of shared memory for `{entry}`: {}", driver::in_words(error))
            },
        )?;
        Ok(function)
    }

    pub(crate) fn functions(&self) -> &[sys::CUfunction] {
        &self.functions
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A context that is gone has taken its modules along.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the module is loaded, and nobody else has it. Its work has been put in streams, which the
            // driver lets end before it unloads.
            self.context.record_err(unsafe { sys::cuModuleUnload(self.module) }.result());
        }
    }
}

/// Compiles PTX in the thread's context.
fn compile(ptx: &str) -> Result<sys::CUmodule, String> {
    use sys::CUjit_option as Jit;
    let text = CString::new(ptx).map_err(|_| "the PTX holds a zero byte".to_owned())?;
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [Jit::CU_JIT_ERROR_LOG_BUFFER, Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes numbers in the place of addresses, and writes the log's length back there.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES)];
    let mut module = ptr::null_mut();
    // SAFETY: the text ends in a zero byte; options and values are as many as is said; the log is as long as
    // is said, and lives until the call is over.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    match result.result() {
        Ok(()) => Ok(module),
        Err(error) => Err(explain(driver::in_words(error), &log, ptx)),
    }
}

/// The driver's words and its log, with the lines of PTX that the log names.
fn explain(error: String, log: &[u8], ptx: &str) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]);
    let mut text = error;
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        text.push('\n');
        text.push_str(line);
        if let Some(source) = named_line(line).and_then(|number| ptx.lines().nth(number.checked_sub(1)?)) {
            text.push_str("\n    ");
            text.push_str(source.trim());
        }
    }
    text
}

/// The number in `ptxas application ptx input, line 12; error ...`.
fn named_line(message: &str) -> Option<usize> {
    let (_, rest) = message.split_once("line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_s_log_comes_with_its_lines() {
        let mut log = b"ptxas application ptx input, line 2; error   : Unknown symbol 'x'\n".to_vec();
        log.extend([0; 8]);
        let text = explain("CUDA_ERROR_INVALID_PTX".to_owned(), &log, "one\n  two;\nthree");
        assert_eq!(
            text,
            "CUDA_ERROR_INVALID_PTX\nptxas application ptx input, line 2; error   : Unknown symbol 'x'\n    two;"
        );
        assert_eq!(explain("E".to_owned(), b"line 99; x", "one"), "E\nline 99; x");
        assert_eq!(explain("E".to_owned(), b"line 0; x", "one"), "E\nline 0; x");
        assert_eq!(explain("E".to_owned(), b"", "one"), "E");
    }
}
