//! From PTX text to a syntax tree: names are unresolved, opcodes are uninterpreted text.
//!
//! `ast` holds the tree, `cursor` the characters (white space, comments, words, numbers), `grammar`
//! module-level syntax, and `body` statements and operands. Only `lower` reads the tree.

pub(crate) mod ast;
mod body;
mod cursor;
mod grammar;

pub(crate) use grammar::parse;
