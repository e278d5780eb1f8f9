//! Where the emulated driver is.

use std::path::PathBuf;

/// The emulated driver's library, which is built with the tests.
pub fn library() -> PathBuf {
    // The crate is named so that it is linked, and so built.
    let _ = silumin_emulated_driver::cuInit;
    let name =
        format!("{}silumin_emulated_driver{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = std::env::current_exe().unwrap().parent().unwrap().join(name);
    assert!(library.is_file(), "{} was not built", library.display());
    library
}
