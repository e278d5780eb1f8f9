//! Plans to PTX, through the templates.
//!
//! * `mod.rs`: [`render`], the only entry.
//! * `view.rs`: the numbers and register lists that templates print, worked out from the plan, so
//!   that templates do no arithmetic.
//! * `gate_text.rs`: the gate's fragments with the epilogue's registers in them.

mod gate_text;
mod view;

use crate::config::{Accumulators, KOrder, SfPreload};
use crate::gate::{Gate, GateCode, GateError, gate_code};
use crate::kernel::{Kernel, Parameter};
use crate::plan::{Operand, Plan};
use askama::Template;
pub use gate_text::GATE_WIDTH;
use view::View;

/// Why a legal plan did not become PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The gate has no code for this chip.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A kernel name that PTX does not take.
    #[error(
        "`{name}` is not a PTX identifier: use letters, digits, `_` and `$`, not a digit first, at most 200 characters"
    )]
    Name {
        /// As given.
        name: String,
    },
    /// A template failed; a bug of this crate.
    #[error("template: {0}; please report this")]
    Template(String),
}

/// Renders `plan` with `gate` as a kernel called `name`.
///
/// # Errors
/// The gate is neither built in nor can be lowered in this build, or `name` is no identifier.
pub fn render(plan: &Plan, gate: &Gate, name: &str) -> Result<Kernel, RenderError> {
    let code = gate_code(&gate.expr, plan.arch.target(), GATE_WIDTH)?;
    render_with(plan, gate, &code, name)
}

/// Renders `plan` with the gate's code at hand, as macros carry it into a user's binary.
///
/// # Errors
/// `name` is no identifier.
pub fn render_with(plan: &Plan, gate: &Gate, code: &GateCode, name: &str) -> Result<Kernel, RenderError> {
    check_name(name)?;
    let parameters = parameters(plan, code);
    let view = View::new(plan, code)?;
    let text = KernelTemplate {
        p: plan,
        t: &view,
        gate: &gate.to_string(),
        name,
        version: env!("CARGO_PKG_VERSION"),
        parameters: &parameters,
    };
    let mut ptx = text.render().map_err(|error| RenderError::Template(error.to_string()))?;
    ptx.push('\n');
    Ok(Kernel::new(plan, name.to_owned(), ptx, parameters))
}

fn check_name(name: &str) -> Result<(), RenderError> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let continues = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    // `_` alone is PTX's sink.
    if starts && continues && name != "_" && name.len() <= 200 {
        return Ok(());
    }
    Err(RenderError::Name { name: name.to_owned() })
}

fn parameters(plan: &Plan, code: &GateCode) -> Vec<Parameter> {
    let mut parameters: Vec<Parameter> =
        plan.tensor_maps.iter().map(|recipe| Parameter::TensorMap(*recipe)).collect();
    if plan.scales.box_blocks.is_none() {
        parameters.extend([Operand::Sfa, Operand::Sfb1, Operand::Sfb2].map(Parameter::Pointer));
    }
    if plan.epilogue.staging.is_none() {
        parameters.push(Parameter::Pointer(Operand::C));
    }
    parameters.extend(code.whole.scalars.iter().cloned().map(Parameter::Scalar));
    parameters
}

#[derive(Template)]
#[template(path = "sm_100a/kernel.ptx")]
struct KernelTemplate<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    gate: &'a str,
    name: &'a str,
    version: &'static str,
    parameters: &'a [Parameter],
}
