//! The driver's library: whether it is there, how new it is, what its errors mean.

use cudarc::driver::{DriverError, sys};

use crate::device::DeviceError;

/// Major, minor.
type Version = (u32, u32);

/// What the driver's library is called.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
/// Functions beyond those of old drivers: clusters (CUDA 11.8), tensor maps (CUDA 12.0).
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

/// Whether there is a driver that has what launches need. (cudarc panics where it finds none.)
pub(super) fn probe() -> Result<(), DeviceError> {
    // SAFETY: initialisers of the driver's library have no preconditions, and it is asked for symbols only.
    let library = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok());
    let Some(library) = library else {
        return Err(DeviceError::NoDriver { library: NAMES.join(" nor ") });
    };
    for symbol in NEEDED {
        // SAFETY: the symbol is looked up and never called.
        if unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err() {
            return Err(DeviceError::OldDriver { missing: symbol.to_owned() });
        }
    }
    // The library stays loaded: cudarc is about to load it for good.
    std::mem::forget(library);
    Ok(())
}

/// The CUDA version that the driver is for: major, minor.
pub(super) fn version() -> Result<Version, DeviceError> {
    let mut version = 0;
    // SAFETY: the argument is a place for an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|error| failed("cuDriverGetVersion", error))?;
    let version = version.max(0) as u32;
    Ok((version / 1000, version % 1000 / 10))
}

/// A failed call as an error of the device.
pub(super) fn failed(call: &'static str, error: DriverError) -> DeviceError {
    DeviceError::Driver { call, reason: in_words(error) }
}

pub(super) fn is_out_of_memory(error: DriverError) -> bool {
    error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// The driver's words: the error's name and what it means.
pub(super) fn in_words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let meaning = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, meaning) {
        (Ok(name), Ok(meaning)) => format!("{name}: {meaning}"),
        (Ok(name), Err(_)) => name,
        _ => format!("{:?}", error.0),
    }
}

/// What would read PTX of `version`, if a driver for CUDA `driver` does not.
pub(super) fn too_old(version: Version, driver: Version) -> Option<String> {
    let (_, cuda, branch) = PTX_VERSIONS.into_iter().find(|(ptx, ..)| *ptx >= version)?;
    (driver < cuda).then(|| {
        format!(
            "the kernel is PTX {}.{}, and the driver is for CUDA {}.{}: it takes one for CUDA {}.{} or newer (branch {branch})",
            version.0, version.1, driver.0, driver.1, cuda.0, cuda.1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_judged_by_the_ptx_they_read() {
        assert_eq!(too_old((8, 6), (12, 8)), None);
        assert_eq!(too_old((8, 6), (12, 7)), None);
        assert_eq!(too_old((8, 8), (13, 0)), None);
        let text = too_old((8, 8), (12, 8)).unwrap();
        assert!(text.contains("PTX 8.8") && text.contains("CUDA 12.9") && text.contains("575"), "{text}");
        assert!(too_old((8, 6), (11, 8)).is_some_and(|text| text.contains("CUDA 12.7")));
        assert_eq!(too_old((99, 0), (12, 8)), None, "what is not in the table is the driver's to judge");
    }
}
