//! A gate as PTX text with holes for registers: what the epilogue template splices in.

use std::borrow::Cow;

use super::expr::{Axis, GateVector};

/// PTX for a gate over `width` elements at once, to be spliced between `{` and `}`.
///
/// The text reads its inputs first and writes its outputs last, so an output may be an input's
/// register. Its own registers are declared in it, 32-bit `%gate_r*`, 64-bit `%gate_rd*` and
/// predicates `%gate_p*`; the names given to [`Fragment::render`] must not begin with `%gate_`.
/// It has no labels and no branches. Everything is f32 (or pairs, `f32x2`, on sm_100a), with
/// subnormal operands and results except where [`functions`](super::functions) says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// The architecture it was lowered for.
    pub arch: &'static str,
    /// Elements a splice.
    pub width: usize,
    /// The f32 inputs, element by element within each value: `p1.0 p1.1 p2.0 p2.1` for a whole
    /// gate of width 2, `p1.*` for an early part, `carried.* p2.*` for a late one; then those of the
    /// vectors: `v.0.0 v.0.1` for the first if it runs along N, `v.0` if it runs along M.
    pub inputs: Vec<String>,
    /// The f32 outputs: `out.*`, or `carried.*` of an early part.
    pub outputs: Vec<String>,
    /// The f32 scalar arguments, by the names the gate's user gave them.
    pub scalars: Vec<String>,
    /// The vector arguments, by the names the gate's user gave them.
    pub vectors: Vec<GateVector>,
    /// The PTX, one instruction a line, with `<p1.0>`, `<out.0>` and `<s.0>` (the first scalar) for
    /// the registers.
    pub text: Cow<'static, str>,
}

/// Why a fragment cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the gate's fragment takes {wanted} {what} ({names}) and was given {given} registers; \
     give one register name for each, in that order"
)]
pub struct FragmentError {
    /// `inputs`, `outputs` or `scalars`.
    pub what: &'static str,
    /// How many it takes.
    pub wanted: usize,
    /// Their names.
    pub names: String,
    /// How many were given.
    pub given: usize,
}

impl Fragment {
    /// A fragment from constants, as generated code has them; the arguments are the fields.
    pub fn from_static(
        arch: &'static str,
        width: usize,
        inputs: &[&str],
        outputs: &[&str],
        scalars: &[&str],
        vectors: &[(&str, Axis)],
        text: &'static str,
    ) -> Self {
        let vector = |&(name, axis): &(&str, Axis)| GateVector { name: name.to_owned(), axis };
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Fragment {
            arch,
            width,
            inputs: owned(inputs),
            outputs: owned(outputs),
            scalars: owned(scalars),
            vectors: vectors.iter().map(vector).collect(),
            text: Cow::Borrowed(text),
        }
    }

    /// The PTX with a register in every hole: `inputs`, `outputs` and `scalars` name one for each
    /// entry of the fields of those names. Each line ends in a newline and starts at column 0.
    ///
    /// # Errors
    /// [`FragmentError`] where the numbers do not match.
    pub fn render(
        &self,
        inputs: &[&str],
        outputs: &[&str],
        scalars: &[&str],
    ) -> Result<String, FragmentError> {
        for (what, names, given) in [
            ("inputs", &self.inputs, inputs.len()),
            ("outputs", &self.outputs, outputs.len()),
            ("scalars", &self.scalars, scalars.len()),
        ] {
            if names.len() != given {
                let (wanted, names) = (names.len(), names.join(", "));
                return Err(FragmentError { what, wanted, names, given });
            }
        }
        let register = |hole: &str| -> Option<&str> {
            if let Some(i) = hole.strip_prefix("s.").and_then(|i| i.parse::<usize>().ok()) {
                return scalars.get(i).copied();
            }
            if let Some(i) = self.inputs.iter().position(|n| n == hole) {
                return Some(inputs[i]);
            }
            self.outputs.iter().position(|n| n == hole).map(|i| outputs[i])
        };
        let mut out = String::with_capacity(self.text.len());
        let mut rest: &str = &self.text;
        while let Some(open) = rest.find('<') {
            out.push_str(&rest[..open]);
            rest = &rest[open + 1..];
            let hole = rest.find('>').and_then(|close| Some((register(&rest[..close])?, close)));
            match hole {
                Some((register, close)) => {
                    out.push_str(register);
                    rest = &rest[close + 1..];
                }
                // Not a hole: the count of a parameterised register declaration.
                None => out.push('<'),
            }
        }
        out.push_str(rest);
        Ok(out)
    }
}
