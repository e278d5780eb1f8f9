//! From the least change to the fastest kernel, one line of the DSL at a time: `cli/src/ladder.rs` has the rungs.
//!
//! ```text
//! cargo run --release --example ladder
//! cargo run --release --example ladder -- --shape 512,3072,7168
//! ```

use silumin_cli::{ladder, print};
use std::process::ExitCode;

fn main() -> ExitCode {
    print::end_with_reader();
    ladder::main(&ladder::command().get_matches())
}
