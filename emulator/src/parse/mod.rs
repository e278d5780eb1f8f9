//! Parses PTX text into a syntax tree, with names unresolved and opcodes as text.
//!
//! `ast` is the tree; `cursor` reads characters (white space, comments, words, numbers), `grammar` the module level,
//! `body` statements and operands; `error` makes the excerpts that messages show. Only `lower` reads the tree.

pub(crate) mod ast;
mod body;
mod cursor;
mod error;
mod grammar;

pub(crate) use error::{LineError, excerpt, shortened};
pub(crate) use grammar::parse;
