//! The gate, and the pre-activations that are kept.

use super::ahead::{Ahead, AheadChunk};
use super::epilogue::{self, ProductVector};
use super::facts::Facts;
use super::inputs::{self, GateStep, Inputs};
use super::lanes::FragmentLayout;
use super::matrices::Matrices;
use super::preactivations::{SavedProduct, SavedProducts};
use super::{Role, TargetView};
use crate::gate::{Expr, Fragment, GateCode, GateVector, Product};
use crate::plan::Plan;
use crate::render::{RenderError, gate_text};

/// A chunk of columns whose first product is taken early.
pub(crate) struct EarlyChunk {
    pub column: u32,
    pub early: Vec<GateStep>,
    /// D1, which is done when the gate has read product 1.
    pub kept: Vec<SavedProduct>,
    pub late: Vec<GateStep>,
    /// D2.
    pub late_kept: Vec<SavedProduct>,
}

/// The gate, and the pre-activations that are kept.
pub(crate) struct GateView {
    pub scalars: Vec<String>,
    pub inputs: Inputs,
    pub loads_first: bool,
    pub loads_second: bool,
    /// Whether the first product is read back from global memory.
    pub reads_product: bool,
    pub early_registers: u32,
    pub early_chunks: Vec<EarlyChunk>,
    pub loop_chunks: bool,
    pub whole: Vec<GateStep>,
    ahead: Vec<AheadChunk>,
    /// D1 and D2 of a chunk, where they are kept.
    pub kept: Vec<SavedProduct>,
    pub product_vectors: Vec<ProductVector>,
    pub product_row_bytes: u64,
    pub product_chunk_bytes: u64,
    /// Bytes from a chunk of a matrix to the next, and of an element.
    pub matrix_chunk_bytes: u64,
    pub matrix_element_bytes: u32,
    pub matrix_row_bytes: u64,
}

impl GateView {
    pub fn new(
        p: &Plan,
        gate: &Expr,
        code: &GateCode,
        facts: &Facts,
        target: &TargetView,
    ) -> Result<Self, RenderError> {
        let Facts { role, gated, chunk, count, held, transposed, ragged, reads_product, .. } = *facts;
        let shape = p.problem.shape;
        let vectors: &[GateVector] = if gated { &code.whole.vectors } else { &[] };
        let format = p.problem.formats.matrix().spec().element;
        let matrices = Matrices::new(p.epilogue.matrix, format, [chunk, count], ragged, held);
        let kept = SavedProducts::new(
            p,
            gate,
            code.whole.arch,
            [chunk, count],
            ragged,
            held,
            [role != Role::Gate, target.shared_columns > 0],
        );
        let kept = Some(kept).filter(|_| gated && p.epilogue.kept.is_some());
        let both: &[Product] = match role {
            Role::Single => &[Product::First],
            Role::Fused | Role::Product | Role::Gated | Role::Gate => &[Product::First, Product::Second],
        };
        let mut fragments = if gated { vec![&code.whole] } else { Vec::new() };
        fragments.extend(kept.iter().flat_map(|kept| kept.fragments(both)));
        let ahead = held.lanes().filter(|_| p.epilogue.early_chunks == 0).map(|lanes| Ahead {
            lanes,
            matrices: &matrices,
            fragments: &fragments,
            ragged,
            shape,
            chunk,
            chunks: p.epilogue.chunks,
            free: target.free_registers,
        });
        let slots = ahead.as_ref().map_or(0, Ahead::slots);
        let inputs = Inputs {
            matrices: matrices.of(vectors, slots),
            ahead: slots,
            ..Inputs::new(vectors, transposed, held)
        };
        // A part of the gate, and the kept pre-activations of the products that it is the last to read.
        let steps = |part: Option<&Fragment>, mut texts: Vec<String>, base: u32, last: &[Product]| {
            let mut fragments: Vec<&Fragment> = part.into_iter().collect();
            if let Some(kept) = &kept {
                kept.scale(&mut texts, last)?;
                fragments.extend(kept.fragments(last));
            }
            if slots > 0 {
                // Everything was loaded ahead.
                return Ok(texts.into_iter().map(GateStep::of).collect());
            }
            let elements = matrices.chunk(&fragments, base);
            fragments.retain(|_| !transposed || held.lanes().is_some());
            let mut steps = inputs::steps(&fragments, texts, base, ragged, shape, held);
            if let Some(first) = steps.first_mut() {
                first.matrices = elements;
            }
            Ok::<_, RenderError>(steps)
        };
        let stores = |product: Product, base: u32| -> Vec<SavedProduct> {
            kept.as_ref().and_then(|kept| kept.stores(product, base)).into_iter().collect()
        };
        let early_chunks: Result<Vec<EarlyChunk>, RenderError> = (0..p.epilogue.early_chunks)
            .map(|i| {
                let column = i * chunk;
                // Where buffers share columns, the pointers move along.
                let base = if target.shared_columns > 0 { 0 } else { column };
                let split = code.split.as_ref();
                let early = gate_text::early(code, column, count, held)?;
                let late = gate_text::late(code, column, count, held)?;
                let late_code = split.map_or(&code.whole, |split| &split.late);
                Ok(EarlyChunk {
                    column,
                    early: steps(split.map(|split| &split.early), early, base, &[Product::First])?,
                    kept: stores(Product::First, base),
                    // By then the pointers have come this far themselves.
                    late: steps(Some(late_code), late, 0, &[Product::Second])?,
                    late_kept: stores(Product::Second, 0),
                })
            })
            .collect();
        let whole = match gated {
            true => steps(Some(&code.whole), gate_text::whole(code, count, held)?, 0, both)?,
            false => Vec::new(),
        };
        let kept_chunk: Vec<SavedProduct> = both.iter().flat_map(|product| stores(*product, 0)).collect();
        Ok(GateView {
            scalars: if gated { code.whole.scalars.clone() } else { Vec::new() },
            inputs,
            loads_first: !reads_product,
            loads_second: matches!(role, Role::Fused | Role::Gated),
            reads_product,
            early_registers: p.epilogue.early_chunks * chunk,
            early_chunks: early_chunks?,
            loop_chunks: p.epilogue.early_chunks < p.epilogue.chunks,
            whole,
            ahead: ahead.map_or_else(Vec::new, |ahead| ahead.all()),
            kept: kept_chunk,
            matrix_chunk_bytes: matrices.step(),
            matrix_element_bytes: p.epilogue.matrix.element_bytes(),
            matrix_row_bytes: p.epilogue.matrix.row_bytes,
            product_vectors: match (held, p.epilogue.product) {
                (FragmentLayout::Column, Some(product)) => {
                    epilogue::transposed::product_loads(&product, chunk, ragged)
                }
                (FragmentLayout::Lanes(lanes), Some(product)) => lanes.product_loads(&product, ragged),
                _ => epilogue::product_loads(chunk, ragged),
            },
            product_row_bytes: p.epilogue.product.map_or(0, |product| product.row_bytes),
            product_chunk_bytes: match p.epilogue.product.filter(|_| transposed) {
                None => (4 * chunk).into(),
                Some(product) => u64::from(chunk) * product.row_bytes,
            },
        })
    }

    /// Loads and moves of a chunk, by its number; `None` if nothing is loaded ahead.
    pub fn ahead(&self, chunk: &usize) -> Option<&AheadChunk> {
        self.ahead.get(*chunk)
    }
}
