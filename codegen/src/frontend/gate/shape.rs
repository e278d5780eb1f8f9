//! Names of the holes in a fragment, by what the fragment computes.

use super::expr::{Axis, GateVector};

/// Which part of a gate a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Both products to the result.
    Whole,
    /// The first product to the carried value.
    Early,
    /// The carried value and the second product to the result.
    Late,
}

/// `name.0` to `name.(width - 1)`.
fn elements(name: &str, width: usize) -> impl Iterator<Item = String> {
    (0..width).map(move |i| format!("{name}.{i}"))
}

/// What stands for the two products in a fragment of that role.
pub(super) fn value_names(role: Role) -> [&'static str; 2] {
    match role {
        Role::Whole | Role::Early => ["p1", "p2"],
        Role::Late => ["carried", "p2"],
    }
}

/// The inputs of a fragment, in order.
pub(super) fn inputs(role: Role, width: usize) -> Vec<String> {
    let [first, second] = value_names(role);
    match role {
        Role::Early => elements(first, width).collect(),
        Role::Whole | Role::Late => elements(first, width).chain(elements(second, width)).collect(),
    }
}

/// The inputs that vectors and matrices are, in order: an element for each of a fragment's if they run along N,
/// one for all of them if along M.
pub(super) fn vector_inputs(vectors: &[GateVector], width: usize) -> Vec<String> {
    let holes = vectors.iter().enumerate().flat_map(|(i, vector)| match vector.axis {
        Axis::N | Axis::MN => elements(&format!("v.{i}"), width).collect(),
        Axis::M => vec![format!("v.{i}")],
    });
    holes.collect()
}

/// The outputs of a fragment, in order.
pub(super) fn outputs(role: Role, width: usize) -> Vec<String> {
    match role {
        Role::Early => elements("carried", width).collect(),
        Role::Whole | Role::Late => elements("out", width).collect(),
    }
}
