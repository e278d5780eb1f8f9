//! What a compiler says to a `dual_gemm!` that makes no kernel. `TRYBUILD=overwrite` rewrites the
//! expected messages; look at where the carets are before you keep them. What compiles is in `forms.rs`: a case here that had to run
//! would have all crates built a second time, where messages need them checked only.

#[test]
fn messages() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    // With LLVM this is no mistake.
    #[cfg(not(feature = "llvm"))]
    cases.compile_fail("tests/ui/no_llvm/*.rs");
}
