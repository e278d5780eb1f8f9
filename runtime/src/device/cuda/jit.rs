//! The driver's compiler, through its linker: unlike a module that is loaded from PTX it hands the cubin out.
//!
//! The linker treats what it is given as relocatable, as `nvcc -rdc=true` does (CUDA driver API, `cuLinkCreate`): the
//! number of a kernel's registers is not settled before all is linked, so that `setmaxnreg` is ignored (ptxas' C7504), and
//! with it the registers that a consumer's accumulators need. Such kernels are not compiled here but where they are loaded,
//! by the driver's other way, whose code is that of a whole program; it keeps them in a cache of its own.

use std::ffi::{CString, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};

use super::driver;
use crate::cache::{Compiled, Compiler, Identity, ModuleError, Source, with_lines};

/// Bytes of each of the compiler's logs.
const LOG_BYTES: usize = 16 << 10;
/// Functions that it takes beyond those of launches.
const NEEDED: [&str; 4] = ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete", "cuLinkDestroy"];

/// The compiler of one context, which is for the context's chip.
pub(super) struct Jit {
    context: Arc<CudaContext>,
    /// The CUDA version that the driver is for: major, minor.
    driver: (u32, u32),
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

    /// Its length, which the driver takes in the place of an address.
    pub fn room(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.0.len())
    }

    /// What the driver wrote, up to the zero byte.
    pub fn text(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).trim_end().to_owned()
    }
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
    pub fn new(context: Arc<CudaContext>, driver: (u32, u32)) -> Self {
        let version = format!("{}.{} {}", driver.0, driver.1, driver::build());
        let identity = Identity {
            name: "driver".to_owned(),
            version: version.trim_end().to_owned(),
            options: String::new(),
        };
        Self { context, driver, identity }
    }
}

impl Compiler for Jit {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError> {
        use sys::CUjit_option as Jit;
        driver::reads(source.ptx_version, self.driver)?;
        if moves_registers(source.ptx) {
            return Err(ModuleError::Relocatable { reason: "it would ignore setmaxnreg".to_owned() });
        }
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
        ];
        // The driver writes lengths back there, and to the logs, as long as the linker lives: they are declared before it.
        let values =
            &mut [info.place(), info.room(), errors.place(), errors.room(), ptr::without_provenance_mut(1)];
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
        match loss(&log) {
            None => Ok(Compiled { cubin, log }),
            Some(reason) => Err(ModuleError::Relocatable { reason: reason.to_owned() }),
        }
    }
}

/// Whether the text has a `setmaxnreg` that is no comment's.
fn moves_registers(ptx: &str) -> bool {
    ptx.lines().any(|line| line.split("//").next().is_some_and(|code| code.contains("setmaxnreg.")))
}

/// What the compiler says is lost by its being relocatable.
fn loss(log: &str) -> Option<&str> {
    // C7504: setmaxnreg is ignored; C7509: wgmma is serialised for calls that may be linked.
    let codes = ["(C7504)", "(C7509)"];
    log.lines().find(|line| codes.iter().any(|code| line.contains(code))).map(str::trim)
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

/// Text as the driver takes it.
pub(super) fn text_of(ptx: &str) -> Result<CString, ModuleError> {
    CString::new(ptx).map_err(|_| ModuleError::Text { reason: "the PTX holds a zero byte".to_owned() })
}

fn failed(call: &'static str, error: DriverError) -> ModuleError {
    match driver::is_out_of_memory(error) {
        true => ModuleError::OutOfMemory { what: call },
        false => ModuleError::Driver { call, reason: driver::in_words(error) },
    }
}

/// A refusal of the compiler or of the loader, with what helps.
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

    #[test]
    fn what_the_linker_would_slow_down_is_told_from_the_text_and_from_the_log() {
        assert!(moves_registers("  setmaxnreg.inc.sync.aligned.u32 232;\n"));
        assert!(moves_registers("ret;\n@%p setmaxnreg.dec.sync.aligned.u32 40; // for others"));
        assert!(!moves_registers("// setmaxnreg.inc would help\nret;"));
        let log = "ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility \
                   across compilation units.\nptxas info    : 0 bytes gmem";
        assert!(loss(log).is_some_and(|line| line.starts_with("ptxas info") && line.ends_with("units.")));
        assert_eq!(
            loss("ptxas info    : (C7510) Potential Performance Loss: of the text's own making"),
            None
        );
    }
}
