//! NVFP4 weights on their way from shared memory to the registers of an MMA's rows (sm_90a).
//!
//! A thread decodes what its place in the MMA's row operand needs (PTX ISA 9.7.15.5.1, "Register Fragments", A): of
//! two rows, in each step of 16 of K, the pairs of elements that two bytes hold. A byte times two powers of two
//! brings its nibbles to where sign, exponent and mantissa are in two 16-bit numbers; these are then 2^-14 (f16) or
//! 2^-126 (bf16) of what they should be, which the scale factor makes up for but for 2^7: so no step rounds or
//! overflows, subnormal elements and scale factors included, and the sums are multiplied by 2^7 at the end.

use super::warpgroups::accumulator;
use crate::plan::{Plan, WARPGROUP_ROWS};
use crate::problem::ElementKind;

/// 2^7 as an f32: what sums of decoded weights are multiplied with.
pub(super) const UNSCALE: &str = "43000000";

/// What the templates need to decode weights.
pub(in crate::render) struct DecodeView {
    /// Bytes of a row of weights in a stage, and of the rows from a thread's first to its second.
    pub row_bytes: u32,
    pub second_row: u32,
    /// Mask of the row bits that the swizzle folds in.
    pub swizzle_mask: u32,
    /// 16-byte units of a row.
    pub units: Vec<u32>,
    /// Rows of a warpgroup.
    pub warpgroup_rows: u32,
    /// Bytes of a stage, and to its weights.
    pub stage_bytes: u32,
    pub weights: u32,
    /// Bytes to the slots of scale factors, and of a slot.
    pub scales: u32,
    pub slot_bytes: u32,
    /// `f16x2` or `bf16x2`.
    pub pair: &'static str,
    /// What a byte is multiplied with to bring both nibbles' exponents and mantissas to their places, and the mask of those.
    pub magnitude: &'static str,
    pub magnitude_mask: &'static str,
    /// By how much a scale factor in a half's upper byte is shifted right, and what it is then multiplied with.
    pub scale_shift: u32,
    pub scale_factors: &'static [&'static str],
    /// Whether K ends inside a block of scale factors.
    pub padded: bool,
    /// In the order in which they are decoded and multiplied.
    pub groups: Vec<DecodeGroup>,
}

/// 64 elements of K of one product: four MMAs.
pub(in crate::render) struct DecodeGroup {
    pub product: u32,
    /// Its place among all groups of the K tile.
    pub index: u32,
    /// Bytes to its weights among those of its stage, and to its scale factors in the slot.
    pub weights: u32,
    pub scales: u32,
    /// Its two 16-byte units of a row.
    pub units: [u32; 2],
    /// The accumulators.
    pub d: String,
    pub steps: Vec<DecodeStep>,
}

/// 16 elements of K: one MMA.
pub(in crate::render) struct DecodeStep {
    /// From the stage's first descriptor word of the activations.
    pub columns_step: u32,
    pub accumulate: &'static str,
    /// `prmt` selector that puts the step's scale factor into the upper byte of both halves.
    pub scale_selector: String,
    /// Words of a row's codes.
    pub words: [u32; 2],
    /// The first of the four registers that the MMA takes its rows from.
    pub first: u32,
}

impl DecodeView {
    pub fn new(p: &Plan) -> Self {
        let row_bytes = p.k_loop.b_tile_bytes;
        let bf16 = p.problem.formats.a.spec().element == ElementKind::Bf16;
        let block_bytes = 512;
        let mut groups = Vec::new();
        for q in 0..p.tile.k / 64 {
            for product in [1, 2] {
                groups.push(DecodeGroup {
                    product,
                    index: groups.len() as u32,
                    weights: (product - 1) * p.smem.b_box_bytes,
                    scales: (product - 1) * p.scales.smem_row_block_bytes + q * block_bytes,
                    units: [2 * q, 2 * q + 1],
                    d: (0..p.mma_columns / 2).map(|i| accumulator(product, i)).collect::<Vec<_>>().join(", "),
                    steps: (0..4)
                        .map(|s| DecodeStep {
                            columns_step: p.descriptors.a_blocks[(4 * q + s) as usize],
                            accumulate: if q == 0 && s == 0 { "%accumulate" } else { "1" },
                            scale_selector: format!("{:#06x}", s << 12 | 0x0400 | s << 4 | 0x4),
                            words: [2 * s, 2 * s + 1],
                            first: 4 * s,
                        })
                        .collect(),
                });
            }
        }
        DecodeView {
            row_bytes,
            second_row: 8 * row_bytes,
            swizzle_mask: row_bytes / 16 - 1,
            units: (0..row_bytes / 16).collect(),
            warpgroup_rows: WARPGROUP_ROWS,
            stage_bytes: p.smem.stage_bytes,
            weights: p.smem.a_bytes,
            scales: p.smem.scales,
            slot_bytes: p.smem.slot_bytes,
            pair: if bf16 { "bf16x2" } else { "f16x2" },
            magnitude: if bf16 { "0x00040040" } else { "0x00200200" },
            magnitude_mask: if bf16 { "0x01c001c0" } else { "0x0e000e00" },
            scale_shift: if bf16 { 4 } else { 1 },
            // 2^127 and 2^112, or 2^15, in both halves.
            scale_factors: if bf16 { &["0x7f007f00", "0x77807780"] } else { &["0x78007800"] },
            padded: !p.problem.shape.k.is_multiple_of(64),
            groups,
        }
    }
}
