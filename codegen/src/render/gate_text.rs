//! The gate's fragments with the epilogue's registers in them.

use super::RenderError;
use super::tidy::{names, renamed};
use super::view::FragmentLayout;
use crate::gate::{Axis, Fragment, GateCode, GateVector};
use askama::Template;

/// Elements a splice: a pair, which one `cvt` packs, and which sm_100's packed arithmetic takes.
pub const GATE_WIDTH: usize = crate::gate::BUILTIN_WIDTH;

/// Registers of a pair: `%first4`, `%first5` for the pair that starts at 4.
fn pair(name: &str, start: u32) -> [String; GATE_WIDTH] {
    std::array::from_fn(|i| format!("%{name}{}", start as usize + i))
}

/// The register of a column's element of a vector, by the column's place in its chunk. Digits stand
/// behind the last `_` only, so that no two names make one register.
pub(super) fn column_register(vector: &str, column: u32) -> String {
    format!("%per_column_{vector}_{column}")
}

/// The register in which an element of a vector waits for its chunk, by its number among all that may wait.
pub(super) fn ahead_register(vector: &str, number: u32) -> String {
    format!("%ahead_{vector}_{number}")
}

/// The register of an element of a matrix, by the register of the accumulator that it goes with.
pub(super) fn matrix_register(matrix: &str, register: u32) -> String {
    format!("%at_{matrix}_{register}")
}

/// Registers of the elements of a fragment's vectors, for the pair that starts at register `i`. Where a
/// thread holds a column of C, a column's element is the same for the pair, and a row's is that of `one` of it.
fn elements(vectors: &[GateVector], i: u32, one: usize, held: FragmentLayout) -> Vec<String> {
    let pair = i..i + GATE_WIDTH as u32;
    let elements = |vector: &GateVector| match (vector.axis, held) {
        (Axis::MN, _) => pair.clone().map(|i| matrix_register(&vector.name, i)).collect(),
        (Axis::M, FragmentLayout::Lanes(lanes)) if lanes.transposed() => {
            vec![column_register(&vector.name, lanes.column_index(i + one as u32))]
        }
        (Axis::M, FragmentLayout::Lanes(lanes)) => vec![format!("%per_row_{}_{}", vector.name, lanes.row(i))],
        (Axis::M, _) => vec![format!("%per_row_{}", vector.name)],
        (Axis::N, FragmentLayout::Lanes(lanes)) if lanes.transposed() => {
            vec![format!("%per_row_{}_{}", vector.name, lanes.row(i)); GATE_WIDTH]
        }
        (Axis::N, FragmentLayout::Column) => vec![format!("%per_row_{}", vector.name); GATE_WIDTH],
        (Axis::N, FragmentLayout::Row) => pair.clone().map(|c| column_register(&vector.name, c)).collect(),
        (Axis::N, FragmentLayout::Lanes(lanes)) => {
            pair.clone().map(|i| column_register(&vector.name, lanes.column_index(i))).collect()
        }
    };
    vectors.iter().flat_map(elements).collect()
}

/// The fragment in a scope of its own, indented, for the pair of columns that starts at `i`.
///
/// A fragment has one element of a row for its pair. Where the pair are two rows of C, it is there twice, once with each
/// one's element, and what it makes of the other is dropped.
fn splice(
    fragment: &Fragment,
    i: u32,
    products: &[String],
    outputs: &[String],
    held: FragmentLayout,
) -> Result<String, RenderError> {
    let scalars: Vec<String> = fragment.scalars.iter().map(|name| format!("%scalar_{name}")).collect();
    let scope = |one: usize, outputs: &[String], drops: bool| {
        let inputs = [products, &elements(&fragment.vectors, i, one, held)].concat();
        let text = fragment
            .render(&strs(&inputs), &strs(outputs), &strs(&scalars))
            .map_err(|error| RenderError::Template(error.to_string()))?;
        let lines = without_copies(text.lines().map(str::to_owned).collect());
        super::text(&ScopeTemplate { drops, compact: i > 0, lines: &lines })
    };
    let rows_apart = held.lanes().is_some_and(|lanes| lanes.transposed());
    if !(rows_apart && fragment.vectors.iter().any(|vector| vector.axis == Axis::M)) {
        return scope(0, outputs, false);
    }
    let scopes = (0..outputs.len()).map(|one| {
        let kept = |(other, register): (usize, &String)| match other == one {
            true => register.clone(),
            false => "%dropped".to_owned(),
        };
        let outputs: Vec<String> = outputs.iter().enumerate().map(kept).collect();
        scope(one, &outputs, true)
    });
    Ok(scopes.collect::<Result<Vec<_>, RenderError>>()?.join("\n"))
}

/// Removes copies: the fragment reads the input registers and writes the output registers itself.
fn without_copies(mut lines: Vec<String>) -> Vec<String> {
    let is_own = |register: &str| register.starts_with("%gate_");
    let copy = |line: &str| {
        let (to, from) = line.strip_prefix("mov.b32 ")?.strip_suffix(';')?.split_once(", ")?;
        (to.starts_with('%') && from.starts_with('%')).then(|| (to.to_owned(), from.to_owned()))
    };
    let mut at = 0;
    while at < lines.len() {
        let Some((to, from)) = copy(&lines[at]) else {
            at += 1;
            continue;
        };
        // The one other line that names the copied register, if there is only one.
        let source = |lines: &[String]| {
            let mut naming = (0..lines.len()).filter(|i| *i != at && names(&lines[*i], &from));
            naming.next().filter(|_| naming.next().is_none())
        };
        match (is_own(&to), is_own(&from)) {
            (true, false) => {
                lines.remove(at);
                lines.iter_mut().for_each(|line| *line = renamed(line, &to, &from));
            }
            (false, true) => match source(&lines) {
                // An output can be an input's register: what comes behind must not read it.
                Some(made) if !(made + 1..lines.len()).any(|i| i != at && names(&lines[i], &to)) => {
                    lines[made] = renamed(&lines[made], &from, &to);
                    lines.remove(at);
                }
                Some(_) | None => at += 1,
            },
            (true, true) | (false, false) => at += 1,
        }
    }
    lines
}

fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// A chunk of `columns` columns, both products in `%first*` and `%second*`, to `%result*`.
pub(super) fn whole(code: &GateCode, columns: u32, held: FragmentLayout) -> Result<Vec<String>, RenderError> {
    starts(columns).map(|i| two_inputs(&code.whole, pair("first", i), i, held)).collect()
}

/// The part of the gate that needs only product 1, to `%early*` from `base` on.
pub(super) fn early(
    code: &GateCode,
    base: u32,
    columns: u32,
    held: FragmentLayout,
) -> Result<Vec<String>, RenderError> {
    starts(columns)
        .map(|i| match &code.split {
            Some(split) => splice(&split.early, i, &pair("first", i), &pair("early", base + i), held),
            None => copy(i, base),
        })
        .collect()
}

/// The rest, from `%early*` and `%second*` to `%result*`.
pub(super) fn late(
    code: &GateCode,
    base: u32,
    columns: u32,
    held: FragmentLayout,
) -> Result<Vec<String>, RenderError> {
    let fragment = code.split.as_ref().map_or(&code.whole, |split| &split.late);
    starts(columns).map(|i| two_inputs(fragment, pair("early", base + i), i, held)).collect()
}

fn starts(columns: u32) -> impl Iterator<Item = u32> {
    (0..columns).step_by(GATE_WIDTH)
}

fn two_inputs(
    fragment: &Fragment,
    first: [String; GATE_WIDTH],
    i: u32,
    held: FragmentLayout,
) -> Result<String, RenderError> {
    let inputs: Vec<String> = first.into_iter().chain(pair("second", i)).collect();
    splice(fragment, i, &inputs, &pair("result", i), held)
}

/// A fragment of one product on a chunk of `%name*`, its results in place of them.
pub(super) fn in_place(
    fragment: &Fragment,
    name: &str,
    columns: u32,
    held: FragmentLayout,
) -> Result<Vec<String>, RenderError> {
    starts(columns).map(|i| splice(fragment, i, &pair(name, i), &pair(name, i), held)).collect()
}

/// Without a split, product 1 itself is what is carried.
fn copy(i: u32, base: u32) -> Result<String, RenderError> {
    let moves: Vec<(String, String)> = pair("early", base + i).into_iter().zip(pair("first", i)).collect();
    super::text(&CarryTemplate { moves: &moves })
}

/// A fragment in a scope of its own.
#[derive(Template)]
#[template(path = "common/scope.ptx")]
struct ScopeTemplate<'a> {
    /// Whether one of its results is dropped.
    drops: bool,
    /// Whether it stands on one line.
    compact: bool,
    lines: &'a [String],
}

/// Registers to be copied.
#[derive(Template)]
#[template(path = "common/carry.ptx")]
struct CarryTemplate<'a> {
    moves: &'a [(String, String)],
}
