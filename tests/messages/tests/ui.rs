//! What the compiler says to a `dual_gemm!` that makes no kernel. `TRYBUILD=overwrite` rewrites the
//! expected messages; look at where the carets are before you keep them.
//!
//! What compiles is in `tests/forms.rs`. What compiles with a warning is in `tests/user_crate`: it needs the facade.

#[test]
fn messages() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    // This crate never turns LLVM on.
    cases.compile_fail("tests/ui/no_llvm/*.rs");
}
