//! The driver's compiler, used through its linker, because the linker returns a cubin.
//!
//! The linker treats its input as relocatable, as `nvcc -rdc=true` does (CUDA driver API, `cuLinkCreate`). A kernel's
//! register count is settled only at the end of linking, so `setmaxnreg` is ignored (ptxas' C7504). If all warps have
//! enough registers without it, the code is the same, instruction by instruction. Otherwise code spills that would
//! not; such a kernel is not kept, and the driver compiles it as a whole program when it loads the PTX. The driver
//! keeps that code in its own cache.

use std::ffi::{CString, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};

use super::driver;
use crate::cache::{Compiled, Compiler, Identity, ModuleError, Source, with_lines};
use silumin_verify::toolchain::{Resources, resources};

/// Bytes of each of the compiler's logs.
const LOG_BYTES: usize = 16 << 10;
/// Driver functions for linking, beyond those of launches.
const NEEDED: [&str; 4] = ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete", "cuLinkDestroy"];

/// The compiler of one context, for the context's chip.
pub(super) struct Jit {
    context: Arc<CudaContext>,
    /// The driver's CUDA version: major, minor.
    driver: (u32, u32),
    line_info: bool,
    identity: Identity,
}

/// A buffer for one of the compiler's logs.
pub(super) struct Log(Vec<u8>);

impl Log {
    pub fn new() -> Self {
        Log(vec![0; LOG_BYTES])
    }

    pub fn place(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Its length; the driver takes it in place of an address.
    pub fn room(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.0.len())
    }

    /// The driver's text, up to the zero byte.
    pub fn text(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).trim_end().to_owned()
    }
}

/// The value of an option that is on or off; the driver takes it in place of an address.
pub(super) fn flag(on: bool) -> *mut c_void {
    ptr::without_provenance_mut(on.into())
}

/// A linker, destroyed when it is dropped.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: it was made, and nobody else has it.
        let _ = unsafe { sys::cuLinkDestroy(self.0) }.result();
    }
}

impl Jit {
    /// A compiler that adds line information, or does not.
    pub fn new(context: Arc<CudaContext>, driver: (u32, u32), line_info: bool) -> Self {
        let version = format!("{}.{} {}", driver.0, driver.1, driver::build());
        let identity = Identity {
            name: "driver".to_owned(),
            version: version.trim_end().to_owned(),
            options: if line_info { "line info" } else { "" }.to_owned(),
        };
        Self { context, driver, line_info, identity }
    }

    /// The driver's version and build.
    pub fn version(&self) -> &str {
        &self.identity.version
    }
}

impl Compiler for Jit {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError> {
        use sys::CUjit_option as Jit;
        driver::reads(source.ptx_version, self.driver)?;
        if let Some(symbol) = driver::missing(&NEEDED) {
            return Err(ModuleError::MissingSymbol { symbol: symbol.to_owned() });
        }
        let text = text_of(source.ptx)?;
        let (mut info, mut errors) = (Log::new(), Log::new());
        let options = &mut [
            Jit::CU_JIT_INFO_LOG_BUFFER,
            Jit::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            Jit::CU_JIT_ERROR_LOG_BUFFER,
            Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            Jit::CU_JIT_LOG_VERBOSE,
            Jit::CU_JIT_GENERATE_LINE_INFO,
        ];
        // The driver writes lengths back there, and to the logs, as long as the linker lives: they are declared before it.
        let (verbose, lines) = (flag(true), flag(self.line_info));
        let values = &mut [info.place(), info.room(), errors.place(), errors.room(), verbose, lines];
        self.context.bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error))?;
        let mut state = ptr::null_mut();
        // SAFETY: options and values are as many as is said, and outlive the linker; the result has a place.
        unsafe {
            sys::cuLinkCreate_v2(options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr(), &mut state)
        }
        .result()
        .map_err(|error| failed("cuLinkCreate", error))?;
        let linker = Linker(state);
        let outcome = add_and_complete(&linker, &text);
        drop(linker);
        let cubin = outcome.map_err(|(call, error)| {
            explain(call, error, &errors.text(), source.ptx, source.ptx_version, self.driver)
        })?;
        let log = info.text();
        match loss(&log, source.ptx) {
            None => Ok(Compiled { cubin, log }),
            Some(reason) => Err(ModuleError::Relocatable { reason }),
        }
    }
}

/// The loss of a kernel as relocatable code, read from the compiler's log.
fn loss(log: &str, ptx: &str) -> Option<String> {
    // C7509: wgmma is serialised for calls that may be linked.
    if log.contains("(C7509)") {
        return Some("wgmma would be serialised".to_owned());
    }
    if !log.contains("(C7504)") {
        // The linker has it from the driver's own cache, which keeps no log: whether it lost anything is not known.
        let silent = !log.lines().any(|line| line.contains("ptxas"));
        return (silent && ptx.contains("setmaxnreg."))
            .then(|| "setmaxnreg may be ignored, and the compiler's log is not there to tell".to_owned());
    }
    let most = most_registers(ptx);
    // Without the linker's lines, which are in an order of their own.
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("ptxas")).collect();
    let entries = resources(&lines.join("\n"));
    let enough = |entry: &Resources| {
        let spills = entry.spill_stores + entry.spill_loads;
        entry.registers > 0 && spills == 0 && most.is_some_and(|most| entry.registers < most)
    };
    match !entries.is_empty() && entries.iter().all(enough) {
        true => None,
        false => Some("it ignores setmaxnreg, and registers are scarce without".to_owned()),
    }
}

/// Most registers per thread if all threads of a CTA have equally many: a file of 64 Ki registers divided by threads,
/// in eights, at most 255; for the entry with the most threads. `None` if the text does not give the number of
/// threads.
fn most_registers(ptx: &str) -> Option<u32> {
    let declared = |line: &str| {
        let line = line.trim();
        let counts = line.strip_prefix(".reqntid").or_else(|| line.strip_prefix(".maxntid"))?;
        let mut counts = counts.split(',').map(|count| count.trim().parse::<u32>().ok());
        counts.try_fold(1u32, |product, count| product.checked_mul(count?))
    };
    let threads = ptx.lines().filter_map(declared).max()?;
    Some(((65_536 / threads.max(1)) & !7).min(255))
}

fn add_and_complete(linker: &Linker, text: &CString) -> Result<Vec<u8>, (&'static str, DriverError)> {
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the linker is alive; the text is as long as is said, its zero byte counted, and is not written to.
    unsafe {
        sys::cuLinkAddData_v2(
            linker.0,
            sys::CUjitInputType::CU_JIT_INPUT_PTX,
            bytes.as_ptr().cast_mut().cast(),
            bytes.len(),
            c"kernel.ptx".as_ptr(),
            0,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    }
    .result()
    .map_err(|error| ("cuLinkAddData", error))?;
    let (mut cubin, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the linker is alive, the results have places.
    unsafe { sys::cuLinkComplete(linker.0, &mut cubin, &mut size) }
        .result()
        .map_err(|error| ("cuLinkComplete", error))?;
    if cubin.is_null() || size == 0 {
        return Err(("cuLinkComplete", DriverError(sys::CUresult::CUDA_ERROR_INVALID_IMAGE)));
    }
    // SAFETY: the image is the linker's, has so many bytes, and lives until the linker is destroyed.
    Ok(unsafe { slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec())
}

/// PTX as a C string for the driver.
pub(super) fn text_of(ptx: &str) -> Result<CString, ModuleError> {
    CString::new(ptx).map_err(|_| ModuleError::Text { reason: "the PTX holds a zero byte".to_owned() })
}

fn failed(call: &'static str, error: DriverError) -> ModuleError {
    match driver::is_out_of_memory(error) {
        true => ModuleError::OutOfMemory { what: call },
        false => ModuleError::Driver { call, reason: driver::in_words(error) },
    }
}

/// Converts a refusal of the compiler or loader to an error with advice.
pub(super) fn explain(
    call: &'static str,
    error: DriverError,
    log: &str,
    ptx: &str,
    version: (u32, u32),
    driver: (u32, u32),
) -> ModuleError {
    use sys::CUresult as Code;
    let reason = driver::in_words(error);
    match error.0 {
        Code::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            let target = ptx.split_once(".target").and_then(|(_, rest)| rest.split_whitespace().next());
            ModuleError::WrongTarget { target: target.unwrap_or("another chip").to_owned(), reason }
        }
        Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => match driver::reads(version, driver) {
            Err(error) => error,
            Ok(()) => ModuleError::UnknownPtx { ptx: version, driver, reason },
        },
        Code::CUDA_ERROR_OUT_OF_MEMORY => ModuleError::OutOfMemory { what: call },
        _ if log.is_empty() => ModuleError::Driver { call, reason },
        _ => ModuleError::Refused { reason, log: with_lines(log, ptx) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log as driver 580.159 writes it.
    fn log(registers: u32, spills: u32) -> String {
        format!(
            "ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility across \
             compilation units.\n\
             ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
             ptxas info    : Function properties for k\n\
             ptxas         .     0 bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n\
             ptxas info    : Used {registers} registers, used 1 barriers\n\
             info    : 0 bytes gmem\n\
             info    : Function properties for 'k':\n\
             info    : used {registers} registers, used 1 barriers, 0 stack, 1024 bytes smem, 968 bytes cmem[0], 0 bytes lmem\n"
        )
    }

    #[test]
    fn linked_code_is_kept_where_registers_are_enough() {
        let text = ".visible .entry k()\n.reqntid 384, 1, 1\n.minnctapersm 1\n{ ret; }";
        assert_eq!(most_registers(text), Some(168));
        assert_eq!(loss(&log(132, 0), text), None);
        assert!(loss("", "setmaxnreg.inc.sync.aligned.u32 232;").is_some());
        assert_eq!(loss("", "mov.u32 %r0, 0;"), None);
        assert!(loss(&log(168, 0), text).is_some_and(|reason| reason.contains("setmaxnreg")));
        assert!(loss(&log(160, 8), text).is_some());
        assert!(loss(&log(132, 0), "no declaration").is_some());
        // A log that is cut off says nothing of registers.
        assert!(loss(&log(132, 0)[..200], text).is_some());
        let others = log(168, 8).replace("(C7504)", "(C7510)");
        assert_eq!(loss(&others, text), None, "what the text brings with it is no loss");
        assert!(
            loss(&others.replace("(C7510)", "(C7509)"), text).is_some_and(|reason| reason.contains("wgmma"))
        );
        assert_eq!(most_registers(".maxntid 128\n.reqntid 64, 2, 4\n"), Some(128));
        assert_eq!(most_registers(".reqntid 0"), Some(255));
        assert_eq!(most_registers(".reqntid x\n.reqntid 4294967295, 2"), None);
    }
}
