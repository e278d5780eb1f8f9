//! What the views of an epilogue have in common.

use super::epilogue::{Packing, Ragged};
use super::lanes::{FragmentLayout, Lanes};
use super::{Role, TargetView};
use crate::plan::{Output, Plan, Staging};
use crate::problem::{ByteScale, Groups, ScaleSpec};

/// What an entry's epilogue finishes, and how its threads hold it.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub role: Role,
    /// Whether it stores an fp32 product, or applies the gate.
    pub raw: bool,
    pub gated: bool,
    /// Columns that are finished together, and registers that a thread has them of one product in.
    pub chunk: u32,
    pub count: u32,
    /// What of the accumulators a thread has.
    pub held: FragmentLayout,
    pub lanes: Option<Lanes>,
    /// Whether rows of the accumulators are columns of C.
    pub transposed: bool,
    pub ragged: Ragged,
    /// Whether the gate's own kernel has rows for the pads of scale factors only.
    pub gate_pads: bool,
    /// Whether the first product is read back from global memory.
    pub reads_product: bool,
    pub output: Output,
    pub output_name: &'static str,
    pub packing: Packing,
    pub staging: Option<Staging>,
    /// Whether lanes hold columns of C in 4-bit elements.
    pub nibbles: bool,
    /// The scale factors of C that the entry makes, and columns that share one; else a chunk's.
    pub scales: Option<ScaleSpec<ByteScale>>,
    pub scale_block: u32,
    /// Whether there are several matrices or groups.
    pub several: bool,
    /// Whether the gate reads vectors along the accumulators' rows, and along their columns.
    pub row_inputs: bool,
    pub column_inputs: bool,
    /// Whether the gate reads matrices.
    pub matrix_inputs: bool,
}

impl Facts {
    pub fn new(p: &Plan, role: Role, target: &TargetView, vectors: &[crate::gate::GateVector]) -> Facts {
        let raw = role == Role::Product;
        let (output, output_name) = match p.epilogue.product {
            Some(product) if raw => (product, "r1"),
            _ => (p.epilogue.c, "c"),
        };
        let packing = if raw { Packing::PRODUCT } else { Packing::of(p.problem.formats.c) };
        let transposed = p.swap_ab && role != Role::Gate;
        let chunk = match role {
            // All that the largest blocks of C with scale factors have.
            Role::Gate if p.problem.formats.c.scales().is_some() => 32,
            Role::Gate if p.problem.shape.n.is_multiple_of(8) => 8,
            Role::Gate => 4,
            Role::Fused | Role::Product | Role::Gated | Role::Single => p.epilogue.chunk,
        };
        let held = match role {
            Role::Gate => FragmentLayout::Row,
            Role::Fused | Role::Product | Role::Gated | Role::Single => target.held,
        };
        // Registers that a thread has a chunk of one product in.
        let count = match role {
            Role::Gate => chunk,
            Role::Fused | Role::Product | Role::Gated | Role::Single => target.registers,
        };
        let lanes = held.lanes();
        let padded = !p.problem.shape.m.is_multiple_of(128);
        let gate_pads = p.problem.formats.c.scales().is_some() && padded;
        let ragged = match role {
            Role::Gate => Ragged { rows: gate_pads, columns: !p.problem.shape.n.is_multiple_of(chunk) },
            Role::Fused | Role::Product | Role::Gated | Role::Single => {
                Ragged { rows: p.epilogue.rows_ragged, columns: p.epilogue.columns_ragged }
            }
        };
        let reads_product = role == Role::Gated;
        let gated = !raw;
        let scales = p.problem.formats.c.scales().filter(|_| gated);
        let scale_block = scales.map_or(chunk, |scales| scales.block);
        let nibbles = transposed && output.element_bits == 4;
        let staging = output.staging.filter(|_| gated);
        let several = p.problem.shape.groups != Groups::One;
        let vectors = if gated { vectors } else { &[] };
        let matrix_inputs = vectors.iter().any(crate::gate::GateVector::is_matrix);
        let inputs = super::inputs::Inputs::new(vectors, transposed, held);
        let (row_inputs, column_inputs) = (!inputs.rows.is_empty(), !inputs.columns.is_empty());
        Facts {
            role,
            raw,
            gated,
            chunk,
            count,
            held,
            lanes,
            transposed,
            ragged,
            gate_pads,
            reads_product,
            output,
            output_name,
            packing,
            staging,
            nibbles,
            scales,
            scale_block,
            several,
            row_inputs,
            column_inputs,
            matrix_inputs,
        }
    }

    /// Scale factors that pad a row of C, behind those of a chunk.
    pub fn scale_pads(&self, p: &Plan) -> std::ops::Range<u32> {
        match self.scales {
            Some(scales) if !self.transposed => {
                let columns = scales.columns(p.problem.shape.n);
                let first = self.chunk / self.scale_block;
                first..first + columns.next_multiple_of(4) - columns
            }
            Some(_) | None => 0..0,
        }
    }

    /// Whether the entry keeps D1 and D2.
    pub fn keeps(&self, p: &Plan) -> bool {
        self.gated && p.epilogue.kept.is_some()
    }
}
