//! From a shape to a kernel that is shown to be right: the verb `emit` of the program `silumin`, without installing it.
//!
//! ```text
//! cargo run --release --example emit
//! cargo run --release --example emit -- --shape 512,4096,7168 --k-order 'split_tail(2)' --store tma
//! cargo run --release --example emit -- --arch sm_90a
//! ```
//!
//! `cli/src/emit` has what it does.

use silumin_cli::{emit, print};
use std::process::ExitCode;

fn main() -> ExitCode {
    print::end_with_reader();
    emit::main(&emit::command().get_matches())
}
