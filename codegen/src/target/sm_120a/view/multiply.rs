//! Operands and scale factors on their way from shared memory to a warp's registers, and the MMAs that take them.
//!
//! **Operands.** An MMA has 16 rows, 8 columns and 32 bytes of K. `ldmatrix` brings four matrices of 8 rows and 16 bytes: a warp's
//! rows, or 16 columns. Rows of a box are permuted in units of 16 bytes; of a lane's row the permutation is the same in all boxes, so
//! that a step along K flips bits of the lane's place, and all else is a constant.
//!
//! **Scale factors.** A block has 128 rows of four bytes, rows r, r + 32, r + 64 and r + 96 side by side. An MMA takes those of its
//! rows from lanes 0 and 1 of every four, for a row and the one 8 below, and those of its columns from one lane of every four that it
//! names (PTX ISA 9.7.14.3). So one load of up to 16 bytes a lane brings those of 128 columns: lane `4 g + q` has columns
//! `32 i + 8 q + g` in register `i`, and the MMA of columns `32 i + 8 q` and on names lane `q`.

use super::super::Mma;
use crate::config::Strategy;
use crate::plan::Plan;
use crate::problem::{ElementKind, MmaKind};
use crate::render::view::epilogue::registers;
use crate::target::fragments::WARPGROUP_ROWS;
use crate::target::sm_90a::view::consumer::accumulator;

/// Bytes of K of an MMA.
const STEP_BYTES: u32 = 32;
/// Rows of a block of scale factors, bytes of one, and columns that a register has scale factors of.
const BLOCK_ROWS: u32 = 128;
const BLOCK_BYTES: u32 = 512;
const REGISTER_COLUMNS: u32 = 32;

/// How warps multiply.
pub(crate) struct MultiplyView {
    /// The instruction up to its operands.
    pub instruction: String,
    /// Bytes of a row in a box.
    pub span: u32,
    /// Mask of the row bits that the swizzle folds in.
    pub swizzle_mask: u32,
    /// Rows of the tile that four warps have.
    pub group_rows: u32,
    /// Registers of the rows' and columns' operands.
    pub row_registers: u32,
    pub column_registers: u32,
    pub scales: Option<ScalesView>,
    /// Whether K ends before the last tile of it, whose MMAs are fewer then.
    pub ragged: bool,
    pub passes: Vec<MultiplyPass>,
}

/// Where scale factors are.
pub(crate) struct ScalesView {
    /// Registers of the rows' and of the columns'.
    pub row_registers: u32,
    pub column_registers: u32,
    /// Whether a tile of 64 rows can be the upper half of a block.
    pub half_rows: bool,
    /// Whether a tile can start inside a block of columns.
    pub inner_columns: bool,
}

/// A K loop of an item.
pub(crate) struct MultiplyPass {
    /// What labels end in.
    pub suffix: &'static str,
    pub products: Vec<u32>,
    pub steps: Vec<MultiplyStep>,
}

/// MMAs of 32 bytes of K.
pub(crate) struct MultiplyStep {
    /// Whether the last K tile has no such step, nor those after it.
    pub ends: bool,
    /// Which bits of a lane's place differ from those of the first step of a box.
    pub flips: u32,
    pub scale_loads: Vec<ScaleVector>,
    pub row_loads: Vec<MatrixLoad>,
    pub groups: Vec<ColumnGroup>,
}

/// Scale factors on their way to a lane's registers.
pub(crate) struct ScaleVector {
    /// `.v4`, `.v2` or nothing.
    pub width: &'static str,
    pub registers: String,
    /// The register of the lane's place, and bytes from there.
    pub place: &'static str,
    pub byte: u32,
}

/// Matrices of 8 rows and 16 bytes on their way to a warp's registers.
pub(crate) struct MatrixLoad {
    /// 4, or 2.
    pub count: u32,
    pub registers: String,
    /// The register of the lane's place, and bytes from there.
    pub place: &'static str,
    pub byte: u32,
    /// Where elements of 4 bits become bytes on the way, the registers whose elements are then brought to their place.
    pub shifted: Vec<String>,
}

/// Columns that are loaded together, and their MMAs.
pub(crate) struct ColumnGroup {
    pub load: MatrixLoad,
    pub mmas: Vec<WarpMma>,
}

/// One MMA.
pub(crate) struct WarpMma {
    pub d: String,
    pub rows: String,
    pub columns: String,
    /// What follows the accumulators, where operands have scale factors.
    pub scales: String,
}

impl MultiplyView {
    pub fn new(p: &Plan, mma: &Mma, products: &[u32]) -> Self {
        let passes: Vec<Vec<u32>> = match p.strategy {
            Strategy::Sequential => products.iter().map(|product| vec![*product]).collect(),
            Strategy::TwoPass | Strategy::SecondFused | Strategy::Interleaved | Strategy::Single => {
                vec![products.to_vec()]
            }
        };
        let suffixes: &[&str] = if passes.len() > 1 { &["_1", "_2"] } else { &[""] };
        let sides = Sides::new(p, mma);
        let span = p.k_loop.tile_bytes / p.smem.boxes;
        let on_rows = |products: u32| if p.swap_ab { products } else { 1 };
        let most = passes.iter().map(Vec::len).max().unwrap_or(1) as u32;
        let on_columns = if p.swap_ab { 1 } else { most };
        MultiplyView {
            instruction: instruction(p),
            span,
            swizzle_mask: span / 16 - 1,
            group_rows: mma.groups.rows(),
            row_registers: 4 * mma.groups.blocks * on_rows(most),
            column_registers: 4,
            scales: (p.kind.scales_per_mma() > 0).then(|| ScalesView {
                row_registers: on_rows(most),
                column_registers: on_columns * sides.scale_registers(),
                half_rows: p.cta_rows < BLOCK_ROWS,
                inner_columns: p.mma_columns < BLOCK_ROWS,
            }),
            ragged: p.ragged_k(),
            passes: passes
                .into_iter()
                .zip(suffixes)
                .map(|(products, suffix)| MultiplyPass {
                    suffix,
                    steps: (0..p.k_loop.blocks).map(|step| sides.step(step, &products)).collect(),
                    products,
                })
                .collect(),
        }
    }
}

/// `mma.sync...` for these operands (PTX ISA 9.7.14.5.14).
fn instruction(p: &Plan) -> String {
    let formats = p.problem.formats;
    let [a, b] = [formats.a, formats.b].map(|format| format.spec().element.name());
    let (rows, columns) = if p.swap_ab { (b, a) } else { (a, b) };
    let kind = match p.kind {
        MmaKind::Mxf4Nvf4 => ".kind::mxf4nvf4.block_scale.scale_vec::4X",
        MmaKind::Mxf4 => ".kind::mxf4.block_scale.scale_vec::2X",
        MmaKind::Mxf8f6f4 => ".kind::mxf8f6f4.block_scale.scale_vec::1X",
        MmaKind::F8f6f4 => ".kind::f8f6f4",
        MmaKind::F16 | MmaKind::Decoded => "",
    };
    let scales = match p.kind {
        MmaKind::Mxf4Nvf4 => ".ue4m3",
        MmaKind::Mxf4 | MmaKind::Mxf8f6f4 => ".ue8m0",
        MmaKind::F8f6f4 | MmaKind::F16 | MmaKind::Decoded => "",
    };
    format!("mma.sync.aligned.m16n8k{}.row.col{kind}.f32.{rows}.{columns}.f32{scales}", p.kind.mma_k())
}

/// Where both sides of a tile's MMAs are in a stage.
struct Sides<'a> {
    p: &'a Plan,
    blocks: u32,
    span: u32,
}

impl<'a> Sides<'a> {
    fn new(p: &'a Plan, mma: &Mma) -> Self {
        Sides { p, blocks: mma.groups.blocks, span: p.k_loop.tile_bytes / p.smem.boxes }
    }

    /// Registers that a lane has the columns' scale factors of one product in.
    fn scale_registers(&self) -> u32 {
        let columns = self.p.mma_columns;
        match columns.div_ceil(REGISTER_COLUMNS) {
            3 => 4,
            registers => registers,
        }
    }

    /// Whether MMAs take e2m1 of that side as bytes.
    fn widened(&self, on_rows: bool) -> bool {
        let formats = self.p.problem.formats;
        let format = if on_rows == self.p.swap_ab { formats.b } else { formats.a };
        self.p.kind.expands(format.spec().element)
    }

    /// Bytes from a stage's start to an operand's box: of A, or of a product's weights.
    fn operand(&self, k_box: u32, product: Option<u32>, place: u32) -> u32 {
        let smem = &self.p.smem;
        match product {
            None => k_box * smem.a_box_bytes,
            // A stage holds one tile of B, or both.
            Some(product) => {
                let second = if smem.b_tiles == 2 { product - 1 } else { place };
                smem.a_bytes + k_box * smem.b_tiles * smem.b_box_bytes + second * smem.b_box_bytes
            }
        }
    }

    /// The MMAs of a step along K of these products.
    fn step(&self, step: u32, products: &[u32]) -> MultiplyStep {
        let p = self.p;
        let per_box = self.span / STEP_BYTES;
        let (k_box, inside) = (step / per_box, step % per_box);
        let of = |products: &[u32], weights: bool| -> Vec<(Option<u32>, u32)> {
            match weights {
                true => (0..).zip(products).map(|(place, product)| (Some(*product), place)).collect(),
                false => vec![(None, 0)],
            }
        };
        let rows = of(products, p.swap_ab);
        let columns = of(products, !p.swap_ab);
        let mut row_loads = Vec::new();
        for (index, (product, place)) in (0..).zip(&rows) {
            for block in 0..self.blocks {
                let byte = self.operand(k_box, *product, *place) + block * WARPGROUP_ROWS * self.span;
                row_loads.push(self.load(
                    "rows",
                    4 * (index * self.blocks + block),
                    4,
                    "%rows_at",
                    byte,
                    true,
                ));
            }
        }
        let mut groups = Vec::new();
        for (index, (product, place)) in (0..).zip(&columns) {
            for column in (0..p.mma_columns).step_by(16) {
                let count = if column + 8 < p.mma_columns { 4 } else { 2 };
                let byte = self.operand(k_box, *product, *place) + column * self.span;
                let mut mmas = Vec::new();
                for half in 0..count / 2 {
                    for (row_index, (row_product, _)) in (0..).zip(&rows) {
                        let number = product.or(*row_product).unwrap_or(1);
                        for block in 0..self.blocks {
                            mmas.push(self.mma(
                                step,
                                number,
                                [row_index, index],
                                block,
                                column + 8 * half,
                                half,
                            ));
                        }
                    }
                }
                let load = self.load("columns", 0, count, "%columns_at", byte, false);
                groups.push(ColumnGroup { load, mmas });
            }
        }
        MultiplyStep {
            ends: p.ragged_k() && step == p.k_loop.last_blocks,
            flips: STEP_BYTES * inside,
            scale_loads: self.scale_loads(step, &rows, &columns),
            row_loads,
            groups,
        }
    }

    fn load(
        &self,
        name: &str,
        first: u32,
        count: u32,
        place: &'static str,
        byte: u32,
        on_rows: bool,
    ) -> MatrixLoad {
        let widened = self.widened(on_rows);
        MatrixLoad {
            count,
            registers: registers(name, first, count),
            place,
            byte,
            shifted: (first..first + count)
                .filter(|_| widened)
                .map(|register| format!("%{name}{register}"))
                .collect(),
        }
    }

    /// Which of a word's scale factors a step takes, and from which block along K.
    fn scale_place(&self, step: u32) -> (u32, u32) {
        let per_block = self.p.scales.steps_per_block;
        (step / per_block, step % per_block * self.p.kind.scales_per_mma())
    }

    /// Loads of scale factors before a step, where it takes other words than the one before.
    fn scale_loads(
        &self,
        step: u32,
        rows: &[(Option<u32>, u32)],
        columns: &[(Option<u32>, u32)],
    ) -> Vec<ScaleVector> {
        let p = self.p;
        let (k_block, byte) = self.scale_place(step);
        if p.kind.scales_per_mma() == 0 || byte > 0 {
            return Vec::new();
        }
        let start = |product: &Option<u32>, place: &u32| match product {
            None => 0,
            Some(product) => {
                let second = if p.smem.b_tiles == 2 { product - 1 } else { *place };
                p.smem.sfb1 + second * (p.smem.sfb2 - p.smem.sfb1)
            }
        };
        let mut loads = Vec::new();
        for (index, (product, place)) in (0..).zip(rows) {
            loads.push(ScaleVector {
                width: "",
                registers: format!("%row_scale{index}"),
                place: "%row_scales_at",
                byte: start(product, place) + k_block * BLOCK_BYTES,
            });
        }
        let most = self.scale_registers();
        for (index, (product, place)) in (0..).zip(columns) {
            let names = registers("column_scale", index * most, most);
            loads.push(ScaleVector {
                width: match most {
                    1 => "",
                    2 => ".v2",
                    _ => ".v4",
                },
                registers: if most == 1 { names } else { format!("{{ {names} }}") },
                place: "%column_scales_at",
                byte: start(product, place) + k_block * BLOCK_BYTES,
            });
        }
        loads
    }

    /// The MMA of a warp's rows in a block and of 8 columns; `sides` says which of the rows and columns that are loaded.
    fn mma(&self, step: u32, product: u32, sides: [u32; 2], block: u32, column: u32, half: u32) -> WarpMma {
        let p = self.p;
        let first = block * p.mma_columns / 2 + column / 2;
        let d: Vec<String> = (first..first + 4).map(|i| accumulator(product, i)).collect();
        let scales = match p.kind.scales_per_mma() {
            0 => String::new(),
            _ => {
                let byte = self.scale_place(step).1;
                let register = sides[1] * self.scale_registers() + column / REGISTER_COLUMNS;
                let lane = column % REGISTER_COLUMNS / 8;
                format!(
                    ", %row_scale{}, {{ {byte}, 0 }}, %column_scale{register}, {{ {byte}, {lane} }}",
                    sides[0]
                )
            }
        };
        WarpMma {
            d: d.join(", "),
            rows: registers("rows", 4 * (sides[0] * self.blocks + block), 4),
            columns: registers("columns", 2 * half, 2),
            scales,
        }
    }
}

impl ElementKind {
    /// The element's name in `mma.sync`.
    const fn name(self) -> &'static str {
        match self {
            ElementKind::Bf16 => "bf16",
            ElementKind::F16 => "f16",
            ElementKind::E4m3 => "e4m3",
            ElementKind::E5m2 => "e5m2",
            ElementKind::E2m1 => "e2m1",
        }
    }
}
