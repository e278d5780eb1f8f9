//! The instruction set as data: types, modifier classes, and the match of an opcode with its form.
//!
//! A form is one line of text: the opcode head, then the modifiers it takes, each the name of a class
//! of `CLASSES` or a literal `.x|.y`, with `?` for optional and `*` for any number. Modifiers match
//! in any order, because compilers differ in theirs; only repeated classes (the two types of `cvt`)
//! depend on order. The tables themselves are in `lower`, next to the semantics.

mod pattern;
mod types;

pub(crate) use pattern::{Form, Mods, Table};
pub(crate) use types::Ty;
