//! Passes on how far the crate is optimised: without optimisation kernels run some 40 times slower, which users should hear.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-env=SILUMIN_EMULATOR_OPT_LEVEL={}",
        std::env::var("OPT_LEVEL").unwrap_or_default()
    );
}
