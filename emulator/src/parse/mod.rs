//! From PTX text to a syntax tree: names are unresolved, opcodes are uninterpreted text.
//!
//! `ast` holds the tree, `cursor` the characters (white space, comments, words, numbers), `grammar`
//! module-level syntax, `body` statements and operands, and `error` what messages show of a text. Only `lower` reads the tree.

pub(crate) mod ast;
mod body;
mod cursor;
mod error;
mod grammar;

pub(crate) use error::{LineError, excerpt, shortened};
pub(crate) use grammar::parse;
