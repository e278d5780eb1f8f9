//! Gate to PTX through LLVM's NVPTX backend (feature `llvm`).
//!
//! The [`Graph`] becomes a function over `<width x float>` that LLVM optimises and prints. Its
//! inputs are the results of `mov.b32 reg, <hole>` in inline assembly and its outputs the operands of
//! `mov.b32 <hole>, reg`: LLVM keeps these in order, with everything else between them, so the
//! function's body is the fragment once its registers have names of their own. `contract` is the
//! one liberty LLVM has (a product and a sum become one fma); what it leaves apart is marked `.rn`, so
//! that ptxas does not contract it differently in another place.

use std::borrow::Cow;
use std::sync::Once;

use inkwell::OptimizationLevel;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple,
};
use inkwell::types::{BasicTypeEnum, VectorType};
use inkwell::values::{BasicValueEnum, FastMathFlags, FloatValue, InstructionOpcode, VectorValue};
use inkwell::{FloatPredicate, InlineAsmDialect};

use super::expr::{Axis, Expr};
use super::fragment::Fragment;
use super::graph::{Graph, Node, NodeId};
use super::shape::{self, Role};
use super::{GATE_ARCHES, GateCode, GateError, SplitCode};
use crate::gate::Product;

/// Lowers `expr` afresh, whether or not it is built in. `arch` is one of [`GATE_ARCHES`], `width`
/// one of [`GATE_WIDTHS`](super::GATE_WIDTHS).
///
/// # Errors
/// [`GateError::Llvm`] where LLVM fails, which no expression is known to cause.
pub fn lower_gate(expr: &Expr, arch: &'static str, width: usize) -> Result<GateCode, GateError> {
    let fragment = |expr: &Expr, role: Role| {
        lower_fragment(expr, role, arch, width).map_err(|message| GateError::Llvm {
            gate: expr.to_string(),
            arch,
            message,
        })
    };
    let whole = fragment(expr, Role::Whole)?;
    let split = match expr.split() {
        Some(split) => Some(SplitCode {
            trivial: split.is_trivial(),
            early: fragment(&split.early, Role::Early)?,
            late: fragment(&split.late, Role::Late)?,
        }),
        None => None,
    };
    Ok(GateCode { whole, split })
}

fn lower_fragment(expr: &Expr, role: Role, arch: &'static str, width: usize) -> Result<Fragment, String> {
    let graph = Graph::of(expr);
    let vectors = graph.vectors().to_vec();
    let (mut inputs, outputs) = (shape::inputs(role, width), shape::outputs(role, width));
    inputs.extend(shape::vector_inputs(&vectors, width));
    let ptx = compile(&graph, role, arch, width).map_err(|e| e.to_string())?;
    let [first, second] = shape::value_names(role);
    let shown = expr.display(first, second).to_string();
    // PTX is ASCII; names of scalars need not be.
    let shown: String = shown.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
    let result = if role == Role::Early { "carried" } else { "out" };
    let elements = if width == 1 { "1 element".into() } else { format!("{width} elements") };
    let text = format!("// {result} = {shown}  ({elements})\n{}", body(&ptx)?);
    let scalars = graph.scalars().to_vec();
    Ok(Fragment { arch, width, inputs, outputs, scalars, vectors, text: Cow::Owned(text) })
}

/// A message; LLVM's errors have nothing else in common.
#[derive(Debug)]
struct Failure(String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<BuilderError> for Failure {
    fn from(error: BuilderError) -> Self {
        Failure(error.to_string())
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Failure(message.to_owned())
    }
}

/// The PTX module that LLVM prints for the graph.
fn compile(graph: &Graph, role: Role, arch: &str, width: usize) -> Result<String, Failure> {
    static NVPTX: Once = Once::new();
    NVPTX.call_once(|| Target::initialize_nvptx(&InitializationConfig::default()));
    let (_, version) = GATE_ARCHES.iter().find(|(name, _)| *name == arch).ok_or("unknown architecture")?;
    let triple = TargetTriple::create("nvptx64-nvidia-cuda");
    let target = Target::from_triple(&triple).map_err(|e| Failure(e.to_string()))?;
    let machine: TargetMachine = target
        .create_target_machine(
            &triple,
            arch,
            &format!("+ptx{version}"),
            OptimizationLevel::Aggressive,
            RelocMode::Default,
            CodeModel::Default,
        )
        .ok_or("LLVM has no NVPTX target machine")?;

    let context = Context::create();
    let module = context.create_module("gate");
    module.set_triple(&triple);
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    Emitter::new(&context, &module, width).function(graph, role)?;
    module.verify().map_err(|e| Failure(e.to_string()))?;
    module
        .run_passes("default<O3>", &machine, PassBuilderOptions::create())
        .map_err(|e| Failure(e.to_string()))?;
    let buffer =
        machine.write_to_memory_buffer(&module, FileType::Assembly).map_err(|e| Failure(e.to_string()))?;
    let text = String::from_utf8_lossy(buffer.as_slice());
    Ok(text.trim_end_matches('\0').to_owned())
}

/// Writes the graph as LLVM IR, each value a vector of `width` elements.
struct Emitter<'c, 'm> {
    context: &'c Context,
    module: &'m Module<'c>,
    builder: Builder<'c>,
    vector: VectorType<'c>,
    width: usize,
}

impl<'c, 'm> Emitter<'c, 'm> {
    fn new(context: &'c Context, module: &'m Module<'c>, width: usize) -> Self {
        let vector = context.f32_type().vec_type(width as u32);
        Emitter { context, module, builder: context.create_builder(), vector, width }
    }

    fn function(&self, graph: &Graph, role: Role) -> Result<(), Failure> {
        let kind = self.context.void_type().fn_type(&[], false);
        let function = self.module.add_function("gate", kind, None);
        self.builder.position_at_end(self.context.append_basic_block(function, "entry"));

        let inputs = shape::inputs(role, self.width);
        let mut values = Vec::new();
        for elements in inputs.chunks(self.width) {
            let elements = elements.iter().map(|name| self.read(name));
            values.push(self.gather(elements.collect::<Result<_, _>>()?)?);
        }
        let mut scalars = Vec::new();
        for i in 0..graph.scalars().len() {
            let scalar = self.read(&format!("s.{i}"))?;
            scalars.push(self.gather(vec![scalar; self.width])?);
        }

        let mut vectors = Vec::new();
        for vector in graph.vectors().iter().enumerate().map(|(i, v)| (format!("v.{i}"), v.axis)) {
            let elements: Vec<FloatValue<'c>> = match vector {
                (name, Axis::M) => vec![self.read(&name)?; self.width],
                (name, Axis::N | Axis::MN) => {
                    (0..self.width).map(|i| self.read(&format!("{name}.{i}"))).collect::<Result<_, _>>()?
                }
            };
            vectors.push(self.gather(elements)?);
        }

        let mut nodes: Vec<VectorValue<'c>> = Vec::with_capacity(graph.nodes().len());
        for node in graph.nodes() {
            let value = match node {
                Node::Input(Product::First) => values.first().copied(),
                Node::Input(Product::Second) => values.get(1).copied(),
                Node::Scalar(i) => scalars.get(*i as usize).copied(),
                Node::Vector(i) => vectors.get(*i as usize).copied(),
                _ => Some(self.operation(node, &nodes)?),
            };
            nodes.push(value.ok_or("the gate reads a value that its part does not have")?);
        }
        let output = graph.output().ok_or("the gate is empty")?;
        for (i, name) in shape::outputs(role, self.width).iter().enumerate() {
            let value = self.element(nodes[output.index()], i)?;
            self.write(name, value)?;
        }
        self.builder.build_return(None)?;
        Ok(())
    }

    fn operation(&self, node: &Node, nodes: &[VectorValue<'c>]) -> Result<VectorValue<'c>, Failure> {
        let b = &self.builder;
        let v = |id: &NodeId| nodes[id.index()];
        Ok(match node {
            Node::Input(_) | Node::Scalar(_) | Node::Vector(_) => return Err("not an operation".into()),
            Node::Const(bits) => {
                let value = self.context.f32_type().const_float(f64::from(f32::from_bits(*bits)));
                VectorType::const_vector(&vec![value; self.width])
            }
            Node::Add(x, y) => contract(b.build_float_add(v(x), v(y), "")?)?,
            Node::Sub(x, y) => contract(b.build_float_sub(v(x), v(y), "")?)?,
            Node::Mul(x, y) => contract(b.build_float_mul(v(x), v(y), "")?)?,
            Node::Neg(x) => b.build_float_neg(v(x), "")?,
            Node::Fma(x, y, z) => self.intrinsic("llvm.fma", &[v(x), v(y), v(z)])?,
            Node::Min(x, y) => self.intrinsic("llvm.minimum", &[v(x), v(y)])?,
            Node::Max(x, y) => self.intrinsic("llvm.maximum", &[v(x), v(y)])?,
            Node::Abs(x) => self.intrinsic("llvm.fabs", &[v(x)])?,
            Node::Div(x, y) => self.each("llvm.nvvm.div.full", &[v(x), v(y)])?,
            Node::Sqrt(x) => self.each("llvm.nvvm.sqrt.approx.f", &[v(x)])?,
            Node::Lg2(x) => self.each("llvm.nvvm.lg2.approx.f", &[v(x)])?,
            Node::Ex2 { x, flush: true } => self.each("llvm.nvvm.ex2.approx.ftz", &[v(x)])?,
            Node::Ex2 { x, flush: false } => self.each("llvm.nvvm.ex2.approx", &[v(x)])?,
            Node::Rcp { x, flush: true } => self.each("llvm.nvvm.rcp.approx.ftz.f", &[v(x)])?,
            Node::Rcp { x, flush: false } => {
                // There is no intrinsic for it; an approximate 1 / x is selected as rcp.approx.
                let one = self.context.f32_type().const_float(1.0);
                let ones = VectorType::const_vector(&vec![one; self.width]);
                let quotient = b.build_float_div(ones, v(x), "")?;
                flag(quotient, FastMathFlags::ApproxFunc)?
            }
            Node::SelectLess { x, y, then, other } => {
                let less = b.build_float_compare(FloatPredicate::OLT, v(x), v(y), "")?;
                b.build_select(less, v(then), v(other), "")?.into_vector_value()
            }
        })
    }

    /// A call of an intrinsic that LLVM has for vectors.
    fn intrinsic(&self, name: &str, args: &[VectorValue<'c>]) -> Result<VectorValue<'c>, Failure> {
        let args: Vec<BasicValueEnum> = args.iter().map(|&a| a.into()).collect();
        Ok(self.call(name, &args, self.vector.into())?.into_vector_value())
    }

    /// A call of an NVPTX intrinsic for each element.
    fn each(&self, name: &str, args: &[VectorValue<'c>]) -> Result<VectorValue<'c>, Failure> {
        let mut results = Vec::with_capacity(self.width);
        for i in 0..self.width {
            let args = args.iter().map(|&a| Ok(self.element(a, i)?.into()));
            let args: Vec<BasicValueEnum> = args.collect::<Result<_, Failure>>()?;
            let result = self.call(name, &args, self.context.f32_type().into())?;
            results.push(result.into_float_value());
        }
        self.gather(results)
    }

    fn call(
        &self,
        name: &str,
        args: &[BasicValueEnum<'c>],
        overload: BasicTypeEnum<'c>,
    ) -> Result<BasicValueEnum<'c>, Failure> {
        let unknown = || Failure(format!("LLVM has no intrinsic {name}"));
        let intrinsic = Intrinsic::find(name).ok_or_else(unknown)?;
        let overloads = if intrinsic.is_overloaded() { vec![overload] } else { Vec::new() };
        let function = intrinsic.get_declaration(self.module, &overloads).ok_or_else(unknown)?;
        let args: Vec<_> = args.iter().map(|&a| a.into()).collect();
        let call = self.builder.build_call(function, &args, "")?;
        call.try_as_basic_value().basic().ok_or_else(|| Failure(format!("{name} has no result")))
    }

    fn element(&self, vector: VectorValue<'c>, i: usize) -> Result<FloatValue<'c>, Failure> {
        let i = self.context.i32_type().const_int(i as u64, false);
        Ok(self.builder.build_extract_element(vector, i, "")?.into_float_value())
    }

    fn gather(&self, elements: Vec<FloatValue<'c>>) -> Result<VectorValue<'c>, Failure> {
        let mut vector = self.vector.get_poison();
        for (i, element) in elements.into_iter().enumerate() {
            let i = self.context.i32_type().const_int(i as u64, false);
            vector = self.builder.build_insert_element(vector, element, i, "")?;
        }
        Ok(vector)
    }

    /// The value of a hole.
    fn read(&self, hole: &str) -> Result<FloatValue<'c>, Failure> {
        let kind = self.context.f32_type().fn_type(&[], false);
        let value = self.assembly(kind, format!("mov.b32 $0, <{hole}>;"), "=f", &[])?;
        Ok(value.ok_or("inline assembly without a result")?.into_float_value())
    }

    /// Writes a hole.
    fn write(&self, hole: &str, value: FloatValue<'c>) -> Result<(), Failure> {
        let f32_type = self.context.f32_type();
        let kind = self.context.void_type().fn_type(&[f32_type.into()], false);
        self.assembly(kind, format!("mov.b32 <{hole}>, $0;"), "f", &[value.into()])?;
        Ok(())
    }

    fn assembly(
        &self,
        kind: inkwell::types::FunctionType<'c>,
        text: String,
        constraints: &str,
        args: &[BasicValueEnum<'c>],
    ) -> Result<Option<BasicValueEnum<'c>>, Failure> {
        let assembly = self.context.create_inline_asm(
            kind,
            text,
            constraints.to_owned(),
            true,
            false,
            Some(InlineAsmDialect::ATT),
            false,
        );
        let args: Vec<_> = args.iter().map(|&a| a.into()).collect();
        let call = self.builder.build_indirect_call(kind, assembly, &args, "")?;
        Ok(call.try_as_basic_value().basic())
    }
}

fn contract(value: VectorValue<'_>) -> Result<VectorValue<'_>, Failure> {
    flag(value, FastMathFlags::AllowContract)
}

/// Sets a flag on an instruction; LLVM may have folded it to a constant, which has none.
fn flag(value: VectorValue<'_>, flags: FastMathFlags) -> Result<VectorValue<'_>, Failure> {
    if let Some(instruction) = value.as_instruction()
        && instruction.get_opcode() != InstructionOpcode::Call
    {
        instruction.set_fast_math_flags(flags).map_err(|e| Failure(e.to_string()))?;
    }
    Ok(value)
}

/// The body of the one function in `ptx`, in this crate's style.
fn body(ptx: &str) -> Result<String, String> {
    let start = ptx.find("\n{").ok_or("LLVM printed no function")?;
    let rest = &ptx[start + 2..];
    let end = rest.find("\n}").ok_or("LLVM printed no end of the function")?;
    let mut out = String::new();
    for line in rest[..end].lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if line.is_empty() || line == "ret;" {
            continue;
        }
        if line.ends_with(':') || line.contains(" bra ") || line.starts_with("bra") {
            return Err(format!("LLVM made a branch of it: {line}"));
        }
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if let Some(opcode) = words.first_mut() {
            *opcode = rounded(opcode);
        }
        out.push_str(&words.join(" ").replace("%r", "%gate_r").replace("%p", "%gate_p"));
        out.push('\n');
    }
    Ok(out)
}

/// The opcode with its rounding said; without, ptxas would be free to contract.
fn rounded(opcode: &str) -> String {
    for operation in ["add", "sub", "mul"] {
        for kind in ["f32", "f32x2"] {
            if opcode == format!("{operation}.{kind}") {
                return format!("{operation}.rn.{kind}");
            }
        }
    }
    opcode.to_owned()
}
