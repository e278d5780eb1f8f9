//! Plans to PTX, through the templates.
//!
//! * `mod.rs`: [`render`], the only entry.
//! * `view/`: the numbers and register lists that templates print, worked out from the plan, so
//!   that templates do no arithmetic.
//! * `parts.rs`: parts of roles that are templates of their own.
//! * `producer.rs`: the template of the producer's role.
//! * `gate_text.rs`: the gate's fragments with the epilogue's registers in them.
//! * `tidy.rs`: takes unused registers, sums with 0 and products with 1 out of the text.

pub(crate) mod gate_text;
mod parts;
mod producer;
mod tidy;
pub(crate) mod view;

use crate::config::Strategy;
use crate::error::ConfigError;
use crate::gate::{Gate, GateCode, GateError, gate_code};
use crate::kernel::{Kernel, Launch, Parameter, WorkspaceKind};
use crate::legalize::{self, GateNeeds};
use crate::plan::{Operand, Plan};
use askama::Template;
pub use gate_text::GATE_WIDTH;
pub(crate) use producer::Producer;
pub(crate) use view::TargetView;
use view::{GATE_THREADS, Role, View};

/// Why a legal plan did not become PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The gate has no code for this chip.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// What `legalize` says of a kernel's name, or of a plan that was made without its gate or for another one: make the plan with
    /// [`Spec::plan`](crate::spec::Spec::plan) or [`validate_gate`](crate::plan::validate_gate).
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A template failed; a bug of this crate.
    #[error("template: {0}; please report this")]
    Template(String),
}

/// Renders `plan` with `gate` as a kernel called `name`.
///
/// # Errors
/// The gate is neither built in nor can be lowered in this build, `name` is no identifier, or the plan was made for
/// another gate.
pub fn render(plan: &Plan, gate: &Gate, name: &str) -> Result<Kernel, RenderError> {
    let code = gate_code(&gate.expr, plan.arch.gate_target(), GATE_WIDTH)?;
    render_with(plan, gate, &code, name)
}

/// Renders `plan` with the gate's code at hand, as macros carry it into a user's binary.
///
/// # Errors
/// `name` is no identifier, or the plan was made for another gate.
pub fn render_with(plan: &Plan, gate: &Gate, code: &GateCode, name: &str) -> Result<Kernel, RenderError> {
    legalize::check_name(name)?;
    legalize::check_gate(plan.arch, plan.swap_ab, &GateNeeds::from(&gate.expr))?;
    let mut entries = Vec::new();
    let mut launches = Vec::new();
    for (ptx, launch) in plan.isa().render_before(plan, name)? {
        entries.push(ptx);
        launches.push(launch);
    }
    for (role, suffix) in roles(plan.strategy) {
        let view = View::new(plan, &gate.expr, code, *role)?;
        let entry = format!("{name}{suffix}");
        let parameters = parameters(plan, code, *role);
        entries.push(match role {
            Role::Gate => text(&GateTemplate { p: plan, t: &view, name: &entry, parameters: &parameters })?,
            Role::Fused | Role::Product | Role::Gated | Role::Single => plan.isa().render(&Entry {
                plan,
                view: &view,
                role: *role,
                name: &entry,
                parameters: &parameters,
            })?,
        });
        let launch = launch(plan, &view, *role, entry, parameters);
        if plan.strategy == Strategy::TwoPass && *role == Role::Product {
            // The same entry, once for each product.
            let second = Launch { parameters: second_product(&launch.parameters, plan), ..launch.clone() };
            launches.extend([launch, second]);
        } else {
            launches.push(launch);
        }
    }
    let module = KernelTemplate {
        p: plan,
        gate: &gate.to_string(),
        name,
        version: env!("CARGO_PKG_VERSION"),
        entries: &entries,
    };
    let ptx = tidy::tidy(&text(&module)?);
    let kernel = Kernel {
        name: name.to_owned(),
        arch: plan.arch,
        ptx,
        problem: plan.problem,
        launches,
        workspace: plan.workspace.clone(),
        ptx_version: plan.ptx_version,
        hash: [0; 32],
    };
    Ok(kernel.hashed())
}

/// An entry of MMAs.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub plan: &'a Plan,
    pub view: &'a View<'a>,
    pub role: Role,
    pub name: &'a str,
    pub parameters: &'a [Parameter],
}

/// The entries of a strategy's module, each with what its name ends in.
fn roles(strategy: Strategy) -> &'static [(Role, &'static str)] {
    match strategy {
        Strategy::TwoPass => &[(Role::Product, "_product"), (Role::Gate, "_gate")],
        Strategy::SecondFused => &[(Role::Product, "_product"), (Role::Gated, "_gated")],
        Strategy::Sequential | Strategy::Interleaved => &[(Role::Fused, "")],
        Strategy::Single => &[(Role::Single, "")],
    }
}

pub(crate) fn text(template: &impl Template) -> Result<String, RenderError> {
    template.render().map_err(|error| RenderError::Template(error.to_string()))
}

fn launch(plan: &Plan, view: &View<'_>, role: Role, entry: String, parameters: Vec<Parameter>) -> Launch {
    let ctas = plan.cluster_ctas();
    let gate = role == Role::Gate;
    Launch {
        entry,
        // `validate` keeps both within 31 bits.
        grid: [
            if gate {
                view.gate_kernel.gate_items.div_ceil(GATE_THREADS.into()) as u32
            } else {
                plan.ctas() as u32
            },
            1,
            1,
        ],
        cluster: [if gate { 1 } else { ctas }, 1, 1],
        block: [if gate { GATE_THREADS } else { plan.threads }, 1, 1],
        dynamic_smem: if gate { 0 } else { plan.smem.total },
        // Behind a launch of the kernel's own, which says at once that this one may be brought in.
        programmatic: plan.pdl || plan.orders_first(),
        parameters,
    }
}

fn parameters(plan: &Plan, code: &GateCode, role: Role) -> Vec<Parameter> {
    let buffer = |kind| plan.buffer(kind).map(Parameter::Workspace);
    let mut parameters: Vec<Parameter> =
        view::maps(plan, role).into_iter().map(Parameter::TensorMap).collect();
    let scaled = plan.kind.scales_per_mma() > 0;
    if scaled && plan.scales.box_blocks.is_none() && role != Role::Gate {
        if plan.scales.a_row_blocks > 0 {
            parameters.push(Parameter::Pointer(Operand::Sfa));
        }
        if role != Role::Gated {
            parameters.push(Parameter::Pointer(Operand::Sfb1));
        }
        if !matches!(role, Role::Product | Role::Single) {
            parameters.push(Parameter::Pointer(Operand::Sfb2));
        }
    }
    if plan.problem.formats.scales_sums() && role != Role::Gate {
        parameters.push(Parameter::Pointer(Operand::Sfa));
        let second = matches!(role, Role::Fused | Role::Gated).then_some(Operand::Sfb2);
        let first = (role != Role::Gated).then_some(Operand::Sfb1);
        parameters.extend(first.into_iter().chain(second).map(Parameter::Pointer));
    }
    if plan.problem.shape.groups.by_rows() {
        parameters.push(Parameter::Pointer(Operand::Offsets));
    }
    if plan.work.counts_rows {
        parameters.push(Parameter::Rows);
    }
    if role != Role::Fused {
        parameters.extend(buffer(WorkspaceKind::Product1));
    }
    if role == Role::Gate {
        parameters.extend(buffer(WorkspaceKind::Product2));
    }
    // Rows at a group's end leave by address.
    let by_address = plan.epilogue.c.staging.is_none() || plan.problem.shape.groups.by_rows();
    if role != Role::Product && (by_address || role == Role::Gate) {
        parameters.push(Parameter::Pointer(Operand::C));
    }
    if role != Role::Product && plan.problem.formats.c.scales().is_some() {
        parameters.push(Parameter::Pointer(Operand::Sfc));
        if plan.problem.formats.c.has_tensor_scale() {
            parameters.push(Parameter::OutputScale);
        }
    }
    if role != Role::Product && plan.epilogue.kept.is_some() {
        let kept = [Operand::D1, Operand::D2].into_iter().filter(|operand| operand.present(&plan.problem));
        parameters.extend(kept.map(Parameter::Pointer));
    }
    if role != Role::Gate {
        parameters.extend([WorkspaceKind::Partials, WorkspaceKind::Counters].into_iter().filter_map(buffer));
    }
    if role != Role::Product {
        parameters.extend(code.whole.scalars.iter().cloned().map(Parameter::Scalar));
        parameters.extend(code.whole.vectors.iter().cloned().map(Parameter::Vector));
    }
    parameters
}

/// The parameters of the product entry for the second product.
fn second_product(parameters: &[Parameter], plan: &Plan) -> Vec<Parameter> {
    let map = |operand| plan.tensor_maps.iter().find(|map| map.operand == operand).copied();
    let second = |parameter: &Parameter| {
        Some(match parameter {
            Parameter::TensorMap(recipe) if recipe.operand == Operand::A => parameter.clone(),
            Parameter::TensorMap(recipe) => Parameter::TensorMap(map(recipe.operand.of_second_product())?),
            Parameter::Pointer(operand) => Parameter::Pointer(operand.of_second_product()),
            Parameter::Workspace(buffer) if buffer.kind == WorkspaceKind::Product1 => {
                Parameter::Workspace(plan.buffer(WorkspaceKind::Product2)?)
            }
            Parameter::Workspace(_)
            | Parameter::Rows
            | Parameter::Scalar(_)
            | Parameter::OutputScale
            | Parameter::Vector(_) => parameter.clone(),
        })
    };
    parameters.iter().filter_map(second).collect()
}

#[derive(Template)]
#[template(path = "common/kernel.ptx")]
struct KernelTemplate<'a> {
    p: &'a Plan,
    gate: &'a str,
    name: &'a str,
    version: &'static str,
    entries: &'a [String],
}

#[derive(Template)]
#[template(path = "common/gate.ptx")]
struct GateTemplate<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    name: &'a str,
    parameters: &'a [Parameter],
}
