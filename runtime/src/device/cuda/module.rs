//! Loads PTX or cubins as modules.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use silumin_codegen::kernel::{Kernel, Parameter, WorkspaceBuffer};
use silumin_codegen::plan::Operand;

use super::graph::Graphs;
use super::jit::{Log, explain, flag, text_of};
use super::{Cuda, driver, image};
use crate::cache::{Cache, Compiler, Cubin, ModuleError, Origin, Source};

/// More parameters than any kernel has: they may take 32,764 bytes (CUDA programming guide, "Kernel Parameters").
const MOST_PARAMETERS: usize = 1 << 15;

/// A kernel's module in a context.
pub(crate) struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    /// The function handle of each launch, in order.
    functions: Vec<sys::CUfunction>,
    /// Parameter sizes of each launch in bytes; `None` if the driver is too old to tell.
    parameters: Vec<Option<Vec<usize>>>,
    /// Workspaces by stream (`Lane::workspace_key`): one launch at a time may use each.
    pub(super) workspaces: papaya::HashMap<(usize, u64), Workspace>,
    /// Held while a workspace is made.
    pub(super) making: Mutex<()>,
    /// Tensor maps of all launches, in the order of their parameters, keyed by tensor addresses, the rows of A and
    /// the address of the stream's workspace.
    pub(super) maps: papaya::HashMap<(Addresses, u32, u64), Box<[Map]>>,
    /// Graphs of repeated launches.
    pub(super) graphs: Graphs,
    /// The machine code, if there is a cache; kernels that are loaded again share it.
    cubin: Option<Arc<Cubin>>,
}

// SAFETY: a module and its functions may be used by any thread that has their context bound (CUDA driver API,
// "Context Management"), which every use sees to.
unsafe impl Send for Module {}
// SAFETY: as above; nothing here changes but the workspaces and the tensor maps, which are in maps for many threads, and
// graphs, which see to that themselves.
unsafe impl Sync for Module {}

/// The address of each of [`Operand::ALL`], 0 for those that are not given.
pub(super) type Addresses = [u64; Operand::ALL.len()];

/// A tensor map, aligned as the driver wants it.
#[repr(align(64))]
pub(super) struct Map(pub sys::CUtensorMap);

/// A stream's own workspace.
pub(super) struct Workspace {
    /// The stream, kept so that no other stream gets its address.
    #[allow(dead_code)]
    pub stream: Arc<CudaStream>,
    /// The buffers with their addresses.
    pub buffers: Vec<(WorkspaceBuffer, u64, CudaSlice<u8>)>,
}

impl Module {
    /// Compiles and loads the kernel's module once for all callers. With `line_info` the driver's compiler adds lines; what a cache
    /// compiles with ptxas has them or not by ptxas' own setting.
    ///
    /// # Errors
    /// What the cache, the compiler and the driver say, and what would help.
    pub(crate) fn load(
        cuda: &Cuda,
        kernel: &Kernel,
        cache: Option<&Cache>,
        line_info: bool,
    ) -> Result<Arc<Self>, ModuleError> {
        let line_info = line_info && cache.is_none_or(|cache| cache.assembler().is_none());
        cuda.modules.get_or_make((kernel.hash, line_info), || {
            let module = match cache {
                Some(cache) => Self::through(cache, cuda, kernel, line_info),
                None => Self::of_image(cuda, kernel, None, line_info),
            };
            module.map(Arc::new)
        })
    }

    /// Loads a cubin from the cache; compiles again if the driver refuses it.
    fn through(cache: &Cache, cuda: &Cuda, kernel: &Kernel, line_info: bool) -> Result<Self, ModuleError> {
        let source = Source::from(kernel);
        let compiler: &dyn Compiler = match cache.assembler() {
            Some(assembler) => assembler,
            None => &cuda.jits[usize::from(line_info)],
        };
        let cubin = match cache.cubin(&source, compiler) {
            Err(ModuleError::Relocatable { .. }) => {
                cache.compiled_by_loading();
                return Self::of_image(cuda, kernel, None, line_info);
            }
            cubin => cubin?,
        };
        let kept = cubin.origin != Origin::Compiled;
        match Self::of_image(cuda, kernel, Some(cubin), line_info) {
            Err(error) if kept && cache.compiles() && !matches!(error, ModuleError::OutOfMemory { .. }) => {
                let cubin = match cache.renew(&source, compiler, &error.to_string()) {
                    Err(ModuleError::Relocatable { .. }) => {
                        cache.compiled_by_loading();
                        None
                    }
                    cubin => Some(cubin?),
                };
                Self::of_image(cuda, kernel, cubin, line_info)
            }
            other => other,
        }
    }

    /// Loads a cubin, or lets the driver compile the kernel's PTX.
    fn of_image(
        cuda: &Cuda,
        kernel: &Kernel,
        cubin: Option<Arc<Cubin>>,
        line_info: bool,
    ) -> Result<Self, ModuleError> {
        let context = cuda.context.clone();
        context.bind_to_thread().map_err(|error| ModuleError::Driver {
            call: "cuCtxSetCurrent",
            reason: driver::in_words(error),
        })?;
        let module = match &cubin {
            Some(cubin) => {
                let bytes = &cubin.entry.cubin;
                image::check(bytes)
                    .map_err(|reason| ModuleError::Image { kernel: kernel.name.clone(), reason })?;
                open(cuda, kernel, Image::Cubin(bytes), false)
            }
            None => {
                driver::reads(kernel.ptx_version, cuda.driver)?;
                open(cuda, kernel, Image::Text(&text_of(&kernel.ptx)?), line_info)
            }
        }?;
        // From here on dropping unloads it.
        let (workspaces, maps, making) = (papaya::HashMap::new(), papaya::HashMap::new(), Mutex::new(()));
        let (functions, parameters, graphs) = (Vec::new(), Vec::new(), Graphs::new());
        let mut loaded =
            Self { context, module, functions, parameters, workspaces, making, maps, graphs, cubin };
        for launch in &kernel.launches {
            let function = loaded.function(&launch.entry, launch.dynamic_smem)?;
            let found = parameter_bytes(function)?;
            // Plain launches bring their parameters' list with their arguments.
            let expected: Vec<usize> = launch.parameters.iter().map(bytes_of).collect();
            if let Some(found) = found.as_ref().filter(|found| !expected.is_empty() && **found != expected) {
                return Err(ModuleError::Parameters {
                    entry: launch.entry.clone(),
                    expected: in_bytes(&expected),
                    found: in_bytes(found),
                });
            }
            loaded.functions.push(function);
            loaded.parameters.push(found);
        }
        Ok(loaded)
    }

    /// The machine code, if there is a cache.
    pub(crate) fn cubin(&self) -> Option<&Cubin> {
        self.cubin.as_deref()
    }

    fn function(&self, entry: &str, dynamic_smem: u32) -> Result<sys::CUfunction, ModuleError> {
        let name = CString::new(entry)
            .map_err(|_| ModuleError::Text { reason: format!("the name `{entry}` holds a zero byte") })?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte, the result has a place.
        unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) }.result().map_err(
            |error| ModuleError::MissingEntry { entry: entry.to_owned(), reason: driver::in_words(error) },
        )?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of a loaded module.
        unsafe { sys::cuFuncSetAttribute(function, attribute, dynamic_smem as i32) }.result().map_err(
            |error| ModuleError::SharedMemory {
                entry: entry.to_owned(),
                bytes: dynamic_smem,
                reason: driver::in_words(error),
            },
        )?;
        Ok(function)
    }

    /// Whether the first function takes parameters of these sizes, as far as the driver can tell. The driver reads as
    /// many as the machine code asks for.
    pub(super) fn takes(&self, lengths: &[usize]) -> bool {
        self.parameters.first().and_then(Option::as_ref).is_none_or(|found| found == lengths)
    }

    pub(crate) fn functions(&self) -> &[sys::CUfunction] {
        &self.functions
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // A context that is gone has taken its modules along.
        if self.context.bind_to_thread().is_ok() {
            // Graphs are of the module's kernels, and go first.
            drop(std::mem::replace(&mut self.graphs, Graphs::new()));
            // SAFETY: the module is loaded, and nobody else has it. Its work has been put in streams, which the
            // driver lets end before it unloads.
            self.context.record_err(unsafe { sys::cuModuleUnload(self.module) }.result());
        }
    }
}

/// Parameter sizes of a function in bytes; `None` before CUDA 12.4, which cannot tell.
fn parameter_bytes(function: sys::CUfunction) -> Result<Option<Vec<usize>>, ModuleError> {
    const CALL: &str = "cuFuncGetParamInfo";
    if driver::missing(&[CALL]).is_some() {
        return Ok(None);
    }
    let mut lengths = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function is of a loaded module, and both results have places.
        match unsafe { sys::cuFuncGetParamInfo(function, lengths.len(), &mut offset, &mut bytes) }.result() {
            Ok(()) if lengths.len() < MOST_PARAMETERS => lengths.push(bytes),
            Ok(()) => return Ok(Some(lengths)),
            // Beyond the last one.
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(Some(lengths)),
            Err(error) => return Err(ModuleError::Driver { call: CALL, reason: driver::in_words(error) }),
        }
    }
}

/// Bytes of a parameter's value.
fn bytes_of(parameter: &Parameter) -> usize {
    match parameter {
        Parameter::TensorMap(_) => size_of::<sys::CUtensorMap>(),
        Parameter::Pointer(_) | Parameter::Workspace(_) | Parameter::Vector(_) => 8,
        Parameter::Rows | Parameter::Scalar(_) | Parameter::OutputScale => 4,
    }
}

fn in_bytes(lengths: &[usize]) -> String {
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    format!("{} ({} bytes)", lengths.len(), lengths.join(", "))
}

/// The image that the driver loads.
enum Image<'a> {
    /// Machine code that passed [`image::check`].
    Cubin(&'a [u8]),
    /// PTX whose only zero byte is its last.
    Text(&'a CStr),
}

/// Loads an image into the thread's context; with `line_info` the driver adds lines to what it compiles.
fn open(
    cuda: &Cuda,
    kernel: &Kernel,
    image: Image<'_>,
    line_info: bool,
) -> Result<sys::CUmodule, ModuleError> {
    let (image, call): (&[u8], _) = match image {
        Image::Cubin(bytes) => (bytes, "cuModuleLoadData (cubin)"),
        Image::Text(text) => (text.to_bytes_with_nul(), "cuModuleLoadData (PTX)"),
    };
    use sys::CUjit_option as Jit;
    let mut log = Log::new();
    let mut options = [
        Jit::CU_JIT_ERROR_LOG_BUFFER,
        Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        Jit::CU_JIT_GENERATE_LINE_INFO,
    ];
    let mut values = [log.place(), log.room(), flag(line_info)];
    let mut module = ptr::null_mut();
    // SAFETY: the image is a text that ends in a zero byte, or a cubin whose headers have been found to lie within its bytes;
    // options and values are as many as is said; the log is as long as is said, and lives until the call is over.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    match result.result() {
        Ok(()) => Ok(module),
        Err(error) => Err(explain(call, error, &log.text(), &kernel.ptx, kernel.ptx_version, cuda.driver)),
    }
}
