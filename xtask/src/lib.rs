//! What only the project's own developers run: `cargo xtask VERB`, or `cargo xtask help`.
//!
//! Each verb is a module with its flags (`command`) and what it does with them (`main`). Tables that verbs write lie in `evidence/`.

#[macro_use]
extern crate silumin_cli;

pub mod accuracy;
pub mod agreement;
pub mod auto;
pub mod bless;
pub mod blocks;
pub mod coverage;
pub mod drawn;
pub mod ideas;
pub mod lattice;
pub mod mutants;
pub mod pictures;
pub mod plots;
pub mod times;
pub mod tornado;
pub mod winner;

use silumin_cli::Verb;

/// All verbs, in the order of the help.
pub const VERBS: [Verb; 14] = [
    Verb { command: mutants::command, main: mutants::main },
    Verb { command: coverage::command, main: coverage::main },
    Verb { command: lattice::command, main: lattice::main },
    Verb { command: agreement::command, main: agreement::main },
    Verb { command: auto::command, main: auto::main },
    Verb { command: ideas::command, main: ideas::main },
    Verb { command: winner::command, main: winner::main },
    Verb { command: times::command, main: times::main },
    Verb { command: drawn::command, main: drawn::main },
    Verb { command: accuracy::command, main: accuracy::main },
    Verb { command: blocks::command, main: blocks::main },
    Verb { command: tornado::command, main: tornado::main },
    Verb { command: pictures::command, main: pictures::main },
    Verb { command: bless::command, main: bless::main },
];
