//! Nothing: `tests/ui.rs` is all there is, and a package needs a library or a program.
