//! D1 and D2: the products as the gate reads them, which a launch with the gate stores beside C.

use super::epilogue::{self, Packing, Ragged, Vector, Word};
use super::lanes::FragmentLayout;
use crate::gate::{Expr, Fragment, Product, pre_activation_code};
use crate::plan::{Operand, Plan};
use crate::problem::OutputElement;
use crate::render::{RenderError, gate_text};

/// The stores of one pre-activation of a chunk.
pub(crate) struct SavedProduct {
    pub operand: Operand,
    /// Its comment in the PTX.
    pub about: String,
    /// The register that points to the chunk.
    pub pointer: String,
    /// What the chunk's registers are called, without the number.
    pub source: &'static str,
    /// What they are rounded to.
    pub element: OutputElement,
    pub words: Vec<Word>,
    pub vectors: Vec<Vector>,
    /// Bytes to the next chunk; 0 where there is none.
    pub step: u64,
    /// Whether the next chunk may be the one before.
    pub both_ways: bool,
}

/// What a launch keeps of the products, and how it comes by it.
pub(super) struct SavedProducts<'a> {
    gate: &'a Expr,
    p: &'a Plan,
    /// Columns of a chunk, and registers that a thread has it in.
    chunk: u32,
    registers: u32,
    ragged: Ragged,
    /// What of the accumulators a thread has.
    held: FragmentLayout,
    /// Whether chunks follow each other.
    looped: bool,
    /// Whether two buffers of accumulators share columns.
    overlapped: bool,
    /// What scales and shifts each product; `None` where the gate reads it as it is.
    code: [Option<Fragment>; 2],
}

impl<'a> SavedProducts<'a> {
    pub fn new(
        p: &'a Plan,
        gate: &'a Expr,
        arch: &'static str,
        [chunk, registers]: [u32; 2],
        ragged: Ragged,
        held: FragmentLayout,
        [looped, overlapped]: [bool; 2],
    ) -> Self {
        let code = [Product::First, Product::Second].map(|product| pre_activation_code(gate, product, arch));
        SavedProducts { gate, p, chunk, registers, ragged, held, looped, overlapped, code }
    }

    fn code(&self, product: Product) -> Option<&Fragment> {
        self.code[usize::from(product == Product::Second)].as_ref()
    }

    /// The fragments that scale and shift `products`: their vectors must be loaded.
    pub fn fragments<'b>(&'b self, products: &[Product]) -> Vec<&'b Fragment> {
        products.iter().filter_map(|product| self.code(*product)).collect()
    }

    /// Adds to the gate of each pair of columns what makes of `products` what the gate has read, in place.
    pub fn scale(&self, steps: &mut [String], products: &[Product]) -> Result<(), RenderError> {
        for product in products {
            let Some(code) = self.code(*product) else { continue };
            let texts = gate_text::in_place(code, source(*product), self.registers, self.held)?;
            for (step, text) in steps.iter_mut().zip(texts) {
                step.push('\n');
                step.push_str(&text);
            }
        }
        Ok(())
    }

    /// The stores of a chunk of `product` that starts `base` columns behind those that
    /// `%columns_left` counts.
    pub fn stores(&self, product: Product, base: u32) -> Option<SavedProduct> {
        let (output, format) = (self.p.epilogue.kept?, self.p.problem.formats.preactivations?);
        let (operand, source) = match product {
            Product::First => (Operand::D1, source(product)),
            Product::Second => (Operand::D2, source(product)),
        };
        let packing = match Packing::of(format.as_output()) {
            packing if !packing.rounds() => Packing { word: source, ..packing },
            packing => Packing { word: "kept", ..packing },
        };
        let mut vectors = match self.held {
            FragmentLayout::Row => epilogue::vectors(packing, &output, self.chunk, self.ragged),
            FragmentLayout::Lanes(lanes) => lanes.vectors(packing, &output, self.ragged),
            FragmentLayout::Column => {
                epilogue::transposed::vectors(packing, &output, self.chunk, self.ragged, 0)
            }
        };
        vectors.iter_mut().for_each(|vector| vector.column += base);
        let about = self.gate.pre_activation(product);
        Some(SavedProduct {
            operand,
            about: about.display("A @ B1", "A @ B2").to_string(),
            pointer: format!("%{operand}"),
            source,
            element: packing.element,
            words: packing.words(self.registers),
            vectors,
            step: match (self.looped, self.held) {
                (false, _) => 0,
                (true, FragmentLayout::Lanes(lanes)) if lanes.transposed() => {
                    u64::from(self.chunk) * output.row_bytes
                }
                (true, FragmentLayout::Column) => u64::from(self.chunk) * output.row_bytes,
                (true, FragmentLayout::Row | FragmentLayout::Lanes(_)) => {
                    u64::from(self.chunk * output.element_bits / 8)
                }
            },
            both_ways: self.looped && self.overlapped,
        })
    }
}

/// What the registers of a product are called.
fn source(product: Product) -> &'static str {
    match product {
        Product::First => "first",
        Product::Second => "second",
    }
}
