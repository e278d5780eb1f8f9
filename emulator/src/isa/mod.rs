//! The instruction set as data: types, modifier classes, and the matching of an opcode with a form.
//!
//! A form is a line of text: the head of the opcode, then its modifier slots. A slot is the name of a class of
//! `CLASSES` or a literal `.x|.y`; `?` marks an optional slot, `*` one that may match any number of times. Modifiers
//! match in any order, because compilers write them in different orders; the order counts only for a class that is
//! repeated (the two types of `cvt`). The tables are in `lower`, next to the semantics.

mod pattern;
mod types;

pub(crate) use pattern::{Form, Mods, Table};
pub(crate) use types::Ty;
