//! The driver's library: whether it is there, how new it is, what its errors mean.

use cudarc::driver::{DriverError, sys};

use crate::cache::ModuleError;
use crate::device::DeviceError;

/// Major, minor.
type Version = (u32, u32);

/// File names of the driver's library.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
/// Functions that old drivers lack: clusters (CUDA 11.8), tensor maps (CUDA 12.0).
const NEEDED: [&str; 2] = ["cuLaunchKernelEx", "cuTensorMapEncodeTiled"];
/// PTX ISA versions, the CUDA version whose driver reads them first, and that driver's branch (PTX ISA,
/// "Release Notes"; CUDA toolkit release notes, table of drivers).
const PTX_VERSIONS: [(Version, Version, u32); 6] = [
    ((8, 0), (12, 0), 525),
    ((8, 6), (12, 7), 565),
    ((8, 7), (12, 8), 570),
    ((8, 8), (12, 9), 575),
    ((9, 0), (13, 0), 580),
    ((9, 1), (13, 1), 590),
];

/// Checks that there is a driver with the functions that launches need. (cudarc panics without one.)
pub(super) fn probe() -> Result<(), DeviceError> {
    let Some(library) = library() else {
        return Err(DeviceError::NoDriver { library: NAMES.join(" nor ") });
    };
    let missing = first_missing(&library, &NEEDED).map(str::to_owned);
    // The library stays loaded: cudarc is about to load it for good.
    std::mem::forget(library);
    missing.map_or(Ok(()), |missing| Err(DeviceError::OldDriver { missing }))
}

/// The first of these functions that the driver lacks.
pub(super) fn missing(symbols: &[&'static str]) -> Option<&'static str> {
    first_missing(&library()?, symbols)
}

fn library() -> Option<libloading::Library> {
    // SAFETY: initialisers of the driver's library have no preconditions, and it is asked for symbols only.
    NAMES.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok())
}

fn first_missing(library: &libloading::Library, symbols: &[&'static str]) -> Option<&'static str> {
    // SAFETY: the symbols are looked up and never called.
    symbols.iter().copied().find(|symbol| unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err())
}

/// The driver's build, `580.159.03` for example: the suffix of its loaded library, or the version of its kernel
/// module; empty if neither can be read. Its JIT compiler has the same build.
pub(super) fn build() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let module = || std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    build_of_library(&maps).or_else(|| build_of_module(&module())).unwrap_or_default()
}

fn build_of_library(maps: &str) -> Option<String> {
    let names =
        maps.lines().filter_map(|line| line.rsplit_once("/libcuda.so.")).map(|(_, build)| build.trim());
    // The name by which programs link it is no build.
    names.filter(|build| build.contains('.')).map(str::to_owned).next()
}

fn build_of_module(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let build = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(build).map(str::to_owned)
}

/// The driver's CUDA version: major, minor.
pub(super) fn version() -> Result<Version, DeviceError> {
    let mut version = 0;
    // SAFETY: the argument is a place for an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|error| failed("cuDriverGetVersion", error))?;
    let version = version.max(0) as u32;
    Ok((version / 1000, version % 1000 / 10))
}

/// Converts a failed driver call to a device error.
pub(super) fn failed(call: &'static str, error: DriverError) -> DeviceError {
    DeviceError::Driver { call, reason: in_words(error) }
}

pub(super) fn is_out_of_memory(error: DriverError) -> bool {
    error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// The driver's name and description of an error.
pub(crate) fn in_words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let meaning = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, meaning) {
        (Ok(name), Ok(meaning)) => format!("{name}: {meaning}"),
        (Ok(name), Err(_)) => name,
        _ => format!("{:?}", error.0),
    }
}

/// Checks that a driver for CUDA `driver` reads PTX of `version`; the error names a driver that does.
pub(super) fn reads(version: Version, driver: Version) -> Result<(), ModuleError> {
    match PTX_VERSIONS.into_iter().find(|(ptx, ..)| *ptx >= version) {
        Some((_, needed, branch)) if driver < needed => {
            Err(ModuleError::OldDriver { ptx: version, driver, needed, branch })
        }
        // What is not in the table is the driver's to judge.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_judged_by_the_ptx_they_read() {
        assert_eq!(reads((8, 6), (12, 8)), Ok(()));
        assert_eq!(reads((8, 6), (12, 7)), Ok(()));
        assert_eq!(reads((8, 8), (13, 0)), Ok(()));
        let text = reads((8, 8), (12, 8)).unwrap_err().to_string();
        assert!(text.contains("PTX 8.8") && text.contains("CUDA 12.9") && text.contains("575"), "{text}");
        assert!(reads((8, 6), (11, 8)).is_err_and(|error| error.to_string().contains("CUDA 12.7")));
        assert_eq!(reads((99, 0), (12, 8)), Ok(()), "what is not in the table is the driver's to judge");
    }

    #[test]
    fn the_build_is_read_where_it_is_written() {
        let maps = "7f00-7f01 r--p 0 08:01 1 /usr/lib/libc.so.6\n\
                    7f02-7f03 r--p 0 08:01 2 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.03\n";
        assert_eq!(build_of_library(maps).as_deref(), Some("580.159.03"));
        assert_eq!(build_of_library("7f00-7f01 r--p 0 08:01 1 /tmp/x/libcuda.so.1\n"), None);
        let module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 12.2\n";
        assert_eq!(build_of_module(module).as_deref(), Some("580.159.03"));
        assert_eq!(build_of_module("nothing"), None);
    }
}
