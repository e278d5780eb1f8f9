//! Names of scalars that usually mean a vector or a matrix.

use super::declare::Note;
use crate::gate::Gate;
use proc_macro2::{Ident, TokenStream, TokenTree};

/// A warning for the first use of each scalar whose name says that it has more elements than one.
pub(super) fn notes(gate: &Gate, source: &TokenStream) -> Vec<Note> {
    let mut idents = Vec::new();
    collect(source.clone(), &mut idents);
    let note = |name: String| {
        let (what, elements, written) = usual(&name)?;
        let text = format!(
            "`{name}` is one number for the whole launch; a {what} has an element {elements}: `{written}`. If one number is meant, \
             give it another name"
        );
        let span = idents.iter().find(|ident| **ident == name)?.span();
        Some(Note { text, constant: "ONE_NUMBER", span })
    };
    gate.expr.scalars().into_iter().filter_map(note).collect()
}

fn collect(tokens: TokenStream, idents: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => idents.push(ident),
            TokenTree::Group(group) => collect(group.stream(), idents),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// What a name usually means, its elements, and how that is written.
fn usual(name: &str) -> Option<(&'static str, &'static str, String)> {
    let parts = || name.split('_').map(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()));
    if parts().any(|part| part == "bias") {
        Some(("bias", "a column", format!("{name}[n]")))
    } else if parts().any(|part| part == "residual") {
        Some(("residual", "for each of C", format!("{name}[m, n]")))
    } else {
        None
    }
}
