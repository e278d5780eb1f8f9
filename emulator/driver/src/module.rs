//! Modules, tensor maps, launches.

use crate::graph::DIRECT;
use crate::link::text_of;
use crate::put;
use crate::state::{Code, Function, Loaded, Mishap, code, state};
use silumin_emulator::{
    Arg, DataType, Interleave, L2Promotion, Launch, LaunchError, Module, OobFill, SwizzleMode,
    TensorMapParams,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A log of the compiler, by its option: `CU_JIT_INFO_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER`. The next
/// option says how long its buffer is.
#[derive(Clone, Copy)]
pub(crate) enum Log {
    Info = 3,
    Error = 5,
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const LAUNCH_CLUSTER: c_uint = 4;
/// PTX versions by the CUDA version that reads them first, ascending (PTX ISA, "Release Notes").
const PTX_OF_CUDA: [(c_int, (u32, u32)); 9] = [
    (12_000, (8, 0)),
    (12_030, (8, 3)),
    (12_040, (8, 4)),
    (12_050, (8, 5)),
    (12_070, (8, 6)),
    (12_080, (8, 7)),
    (12_090, (8, 8)),
    (13_000, (9, 0)),
    (13_010, (9, 1)),
];

/// Prints a message to the user; ignores a closed standard error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "emulated driver: {text}");
}

/// Parses PTX as the compiler does; errors go to the log.
pub(crate) fn load(text: &str) -> Result<Module, (Code, String)> {
    let module = parse(text)?;
    let known = PTX_OF_CUDA.iter().rev().find(|(cuda, _)| *cuda <= state().cuda).map(|(_, ptx)| *ptx);
    if module.version() > known {
        let (major, minor) = module.version().unwrap_or_default();
        return Err((
            Code::UnsupportedPtxVersion,
            format!("ptxas application ptx input, line 1; fatal   : Unsupported .version {major}.{minor}"),
        ));
    }
    match module.target().first() {
        Some(target) if state().chip.runs(target) => Ok(module.on_chip(state().chip.target())),
        target => {
            let target = target.map_or("nothing", String::as_str);
            Err((
                Code::NoBinaryForGpu,
                format!("the PTX is for {target}, the device is {}", state().chip.target()),
            ))
        }
    }
}

fn parse(text: &str) -> Result<Module, (Code, String)> {
    Module::parse("ptx", text).map_err(|errors| {
        let lines: Vec<String> = errors
            .0
            .iter()
            .map(|e| format!("ptxas application ptx input, line {}; error   : {}", e.line, e.message))
            .collect();
        (Code::InvalidPtx, lines.join("\n"))
    })
}

/// Loads PTX text that ends in a zero byte, or an image of the linker. All options but the error log are ignored.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> c_int {
    if image.is_null() {
        return code(Code::InvalidValue);
    }
    // SAFETY: the caller's image, or a text that ends in a zero byte.
    let loaded = match unsafe { text_of(image.cast()) } {
        // Compiled already: what PTX the driver would read is of no concern.
        Some(Ok(text)) => parse(&text).map(|module| (module, state().mishap(&text))),
        Some(Err(error)) => return code(error),
        // SAFETY: it is a text.
        None => match unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_str() {
            Ok(text) => load(text).map(|module| (module, state().mishap(text))),
            Err(_) => {
                say("the image is no PTX text, and cubins of others do not run here");
                return code(Code::NoBinaryForGpu);
            }
        },
    };
    match loaded {
        Ok((parsed, mishap)) => {
            let number = state().number();
            state().contents().modules.insert(number, Loaded { module: Arc::new(parsed), mishap });
            // SAFETY: the caller's place.
            code(unsafe { put(module, ptr::without_provenance_mut(number)) })
        }
        Err((error, log)) => {
            // SAFETY: the caller's options.
            unsafe { write_log(Log::Error, &log, count as usize, options, values) };
            code(error)
        }
    }
}

/// Loads PTX text that ends in a zero byte, or an image of the linker.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe { cuModuleLoadDataEx(module, image, 0, ptr::null_mut(), ptr::null_mut()) }
}

/// # Safety
/// `options` and `values` have `count` elements, and the buffer among them is as long as is said there.
pub(crate) unsafe fn write_log(
    kind: Log,
    log: &str,
    count: usize,
    options: *mut c_uint,
    values: *mut *mut c_void,
) {
    if count == 0 || options.is_null() || values.is_null() {
        return;
    }
    // SAFETY: the caller vouches for it.
    let (options, values) =
        unsafe { (slice::from_raw_parts(options, count), slice::from_raw_parts_mut(values, count)) };
    let place = |wanted| options.iter().position(|option| *option == wanted);
    let (Some(buffer), Some(size)) = (place(kind as c_uint), place(kind as c_uint + 1)) else { return };
    let room = values[size].addr();
    if room == 0 || values[buffer].is_null() {
        return;
    }
    let kept = log.len().min(room - 1);
    // SAFETY: the buffer has room for so many bytes.
    unsafe {
        let target = values[buffer].cast::<u8>();
        ptr::copy_nonoverlapping(log.as_ptr(), target, kept);
        target.add(kept).write(0);
    }
    values[size] = ptr::without_provenance_mut(kept);
}

/// Unloads a module and its functions.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> c_int {
    let mut contents = state().contents();
    let number = module.addr();
    contents.functions.retain(|_, function| function.module != number);
    code(if contents.modules.remove(&number).is_some() { Code::Success } else { Code::InvalidHandle })
}

/// The kernel of a module with this name.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    if name.is_null() {
        return code(Code::InvalidValue);
    }
    // SAFETY: the caller's name ends in a zero byte.
    let entry = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let number = state().number();
    let mut contents = state().contents();
    let Some(loaded) = contents.modules.get(&module.addr()) else { return code(Code::InvalidHandle) };
    let Some(parameters) = loaded.module.parameters(&entry) else { return code(Code::NotFound) };
    let parameters = parameters.iter().map(|parameter| parameter.bytes).collect();
    contents.functions.insert(number, Function { module: module.addr(), entry, parameters });
    // SAFETY: the caller's place.
    code(unsafe { put(function, ptr::without_provenance_mut(number)) })
}

/// Offset and size of a parameter in bytes; an error beyond the last one (CUDA driver API, `cuFuncGetParamInfo`).
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetParamInfo(
    function: *mut c_void,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> c_int {
    let contents = state().contents();
    let Some(found) = contents.functions.get(&function.addr()) else { return code(Code::InvalidHandle) };
    let Some(bytes) = found.parameters.get(index) else { return code(Code::InvalidValue) };
    // Each parameter is as long as its alignment, or a tensor map, which is aligned to 64 bytes.
    let place = found.parameters[..index].iter().fold(0, |end: usize, bytes| {
        let bytes = *bytes as usize;
        end.next_multiple_of(bytes.clamp(1, 64)) + bytes
    });
    let bytes = *bytes as usize;
    if !offset.is_null() {
        // SAFETY: the caller's place.
        unsafe { offset.write(place.next_multiple_of(bytes.clamp(1, 64))) };
    }
    if !size.is_null() {
        // SAFETY: the caller's place.
        unsafe { size.write(bytes) };
    }
    code(Code::Success)
}

/// Accepts function attributes, which the emulator does not need.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) -> c_int {
    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    let most = state().chip.max_smem();
    if attribute == 8 && !(0..=most).contains(&value) {
        return code(Code::InvalidValue);
    }
    let known = state().contents().functions.contains_key(&function.addr());
    code(if known { Code::Success } else { Code::InvalidHandle })
}

/// A function attribute; registers and local memory are 0, since there is no compiler.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    _attribute: c_int,
    function: *mut c_void,
) -> c_int {
    match state().contents().functions.contains_key(&function.addr()) {
        // SAFETY: the caller's place.
        true => code(unsafe { put(value, 0) }),
        false => code(Code::InvalidHandle),
    }
}

/// Encodes a tensor map by the rules of the driver's function of that name.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut [u8; 128],
    data_type: c_uint,
    rank: c_uint,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    box_dims: *const c_uint,
    element_strides: *const c_uint,
    interleave: c_uint,
    swizzle: c_uint,
    l2_promotion: c_uint,
    oob_fill: c_uint,
) -> c_int {
    let n = rank as usize;
    if !(1..=5).contains(&n) || [dims, strides].iter().any(|p| p.is_null() && n > 1) {
        return code(Code::InvalidValue);
    }
    // SAFETY: arrays have as many elements as the rank, strides one less.
    let (dims, strides, box_dims, element_strides) = unsafe {
        (
            slice::from_raw_parts(dims, n).to_vec(),
            if n > 1 { slice::from_raw_parts(strides, n - 1).to_vec() } else { Vec::new() },
            slice::from_raw_parts(box_dims, n).to_vec(),
            slice::from_raw_parts(element_strides, n).to_vec(),
        )
    };
    let modes = (
        DataType::from_code(data_type),
        Interleave::from_code(interleave),
        SwizzleMode::from_tensor_map_code(swizzle),
        L2Promotion::from_code(l2_promotion),
        OobFill::from_code(oob_fill),
    );
    let (Some(data_type), Some(interleave), Some(swizzle), Some(l2_promotion), Some(oob_fill)) = modes else {
        return code(Code::InvalidValue);
    };
    let params = TensorMapParams {
        data_type,
        global_address: address.addr() as u64,
        global_dims: dims,
        global_strides: strides,
        box_dims,
        element_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    };
    match params.encode() {
        // SAFETY: the caller's place.
        Ok(encoded) => code(unsafe { put(map, encoded) }),
        Err(error) => {
            say(&error.to_string());
            code(Code::InvalidValue)
        }
    }
}

/// `CUlaunchAttribute`: the number, padding, 64 bytes of value.
#[repr(C)]
pub struct LaunchAttribute {
    id: c_uint,
    pad: [u8; 4],
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// Launches a kernel, which has finished when this returns.
///
/// # Safety
/// As in the driver's API: `parameters` has the address of a value for each of the kernel's parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: *mut c_void,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return code(Code::InvalidValue) };
    let attributes = match config.attributes.is_null() {
        true => &[],
        // SAFETY: there are as many as is said.
        false => unsafe { slice::from_raw_parts(config.attributes, config.attribute_count as usize) },
    };
    let cluster = attributes.iter().find(|attribute| attribute.id == LAUNCH_CLUSTER);
    let launch = Launch {
        grid: config.grid,
        block: config.block,
        cluster: cluster.map_or([1, 1, 1], |a| [a.value[0], a.value[1], a.value[2]]),
        dynamic_smem: config.shared_bytes,
        args: Vec::new(),
    };
    // SAFETY: the caller's parameters.
    code(unsafe { run(config.stream, launch, function, parameters) })
}

/// Launches a kernel without clusters.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    let launch = Launch {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        cluster: [1, 1, 1],
        dynamic_smem: shared_bytes,
        args: Vec::new(),
    };
    // SAFETY: the caller's parameters.
    code(unsafe { run(stream, launch, function, parameters) })
}

/// # Safety
/// `parameters` has the address of a value for each of the function's parameters.
unsafe fn run(
    stream: *mut c_void,
    launch: Launch,
    function: *mut c_void,
    parameters: *mut *mut c_void,
) -> Code {
    if state().sticky() != Code::Success {
        return state().sticky();
    }
    let number = function.addr();
    let contents = state().contents();
    let Some(function) = contents.functions.get(&number) else { return Code::InvalidHandle };
    if parameters.is_null() && !function.parameters.is_empty() {
        return Code::InvalidValue;
    }
    let bytes = |(place, bytes): (usize, &u32)| {
        // SAFETY: there is an address for each parameter, and so many bytes there.
        let value = unsafe { slice::from_raw_parts((*parameters.add(place)).cast::<u8>(), *bytes as usize) };
        Arg::Bytes(value.to_vec())
    };
    let launch = Launch { args: function.parameters.iter().enumerate().map(bytes).collect(), ..launch };
    drop(contents);
    let launch = state().graphs().take(stream, number, launch);
    launch.map_or(Code::Success, |launch| {
        DIRECT.fetch_add(1, Ordering::Relaxed);
        execute(number, &launch)
    })
}

/// Runs a launch of the function with this handle.
pub(crate) fn execute(function: usize, launch: &Launch) -> Code {
    if state().sticky() != Code::Success {
        return state().sticky();
    }
    let contents = state().contents();
    let Some(function) = contents.functions.get(&function) else { return Code::InvalidHandle };
    let Some(Loaded { module, mishap }) = contents.modules.get(&function.module) else {
        return Code::InvalidHandle;
    };
    match mishap {
        Some(Mishap::Fail) => {
            say(&format!("`{}` fails, as SILUMIN_EMULATED_MISHAP asks", function.entry));
            return state().fail();
        }
        Some(Mishap::Abort) => std::process::abort(),
        Some(Mishap::Hang) => loop {
            std::thread::park();
        },
        None => {}
    }
    match module.run(&function.entry, launch, &contents.memory, &state().limits.options()) {
        Ok(report) => {
            for finding in report.all() {
                say(&finding.to_string());
            }
            if report.is_clean() { Code::Success } else { state().fail() }
        }
        Err(error) => {
            say(&error.to_string());
            match error {
                LaunchError::Memory { .. } => Code::OutOfMemory,
                LaunchError::NoSuchEntry { .. }
                | LaunchError::ArgumentCount { .. }
                | LaunchError::ArgumentSize { .. }
                | LaunchError::Shape { .. }
                | LaunchError::SharedMemory { .. }
                | LaunchError::Threads(_) => Code::InvalidValue,
            }
        }
    }
}
