//! C with scale factors. Where a lane holds a column of C, a block of a row lies across 16 or 32 lanes.

use std::ops::Range;

use super::Role;
use super::epilogue::Ragged;
use super::facts::Facts;
use crate::plan::{Output, Plan};
use crate::problem::{ByteScale, ScaleSpec};

/// Lanes of a warp.
const WARP: u32 = 32;

/// Scale factors of C.
pub(crate) struct OutputScalesView {
    pub block_scaled: bool,
    /// Whether the launch gives a scale of the whole C.
    pub tensor_scale: bool,
    /// Columns that share a scale factor, and the results of a chunk by those.
    pub scale_block: u32,
    pub scale_groups: Vec<Vec<u32>>,
    /// How they come about where a lane holds a column of C.
    pub scales_transposed: Option<TransposedScales>,
    /// Whether rows beyond M, which have scale factors, are among those of a thread.
    pub rows_padded: bool,
    /// The register of the first column of an item; nothing where `%column` counts from C's own.
    pub first_column: &'static str,
    /// Bytes of the scale factors of 128 rows, and rows with their padding.
    pub scale_row_bytes: u64,
    pub padded_rows: String,
    /// What a store of a chunk's scale factors is, and how far behind them pads follow.
    pub scale_store: &'static str,
    pub scale_pads: Vec<u32>,
}

impl OutputScalesView {
    /// The bits of a column's place in its block.
    pub fn block_mask(&self) -> u32 {
        self.scale_block - 1
    }

    pub fn new(p: &Plan, facts: &Facts) -> Self {
        let Facts { role, chunk, transposed, ragged, scales, scale_block, .. } = *facts;
        let shape = p.problem.shape;
        let pads = facts.scale_pads(p);
        OutputScalesView {
            block_scaled: scales.is_some(),
            tensor_scale: scales.is_some() && p.problem.formats.c.has_tensor_scale(),
            scale_block,
            scale_groups: scale_groups(chunk, scale_block),
            scales_transposed: scales
                .filter(|_| transposed)
                .map(|scales| TransposedScales::new(p, scales, chunk)),
            rows_padded: ragged.rows,
            first_column: if role == Role::Gate { "" } else { "%column0" },
            scale_row_bytes: scales.map_or(0, |scales| scales.blocked_bytes(128, p.problem.shape.n)),
            padded_rows: match shape.groups.by_rows() {
                true => "%padded_rows".to_owned(),
                false => shape.m.next_multiple_of(128).to_string(),
            },
            scale_store: if chunk / scale_block == 2 { "b16" } else { "b8" },
            scale_pads: pads.collect(),
        }
    }
}

/// The results of a chunk, by the scale factor they share.
fn scale_groups(chunk: u32, block: u32) -> Vec<Vec<u32>> {
    (0..chunk / block).map(|group| (group * block..(group + 1) * block).collect()).collect()
}

/// How lanes come by the scale factors of a chunk of rows.
pub(crate) struct TransposedScales {
    /// Halvings: lanes of a block compare what they have until each has its own rows'.
    pub folds: Vec<Fold>,
    /// Rows that the lanes of a block have between them at a time.
    pub row_lanes: u32,
    /// The scale factors that a lane then makes.
    pub factors: Vec<OwnFactor>,
    /// Where each row's is found.
    pub shares: Vec<Share>,
    /// The last operand of the shuffles that share them: lanes of one block only.
    pub segment: String,
    /// Columns of C with those that pads of scale factors stand for.
    pub padded_columns: u32,
    /// Whether tiles have rows beyond those that the pads stand for.
    pub rows_beyond_pads: bool,
    /// Rows of all tiles.
    pub rows_covered: u32,
    /// Rows of C with those that pads stand for.
    pub padded_rows: u32,
    /// Rows behind them that pads stand for, a row a lane of a block.
    pub pad_rows: Vec<Range<u32>>,
}

/// One halving.
pub(crate) struct Fold {
    /// How far apart the lanes are.
    pub lanes: u32,
    /// Rows that two lanes share out; none where they have one row left, the same.
    pub pairs: Vec<FoldPair>,
}

/// Two rows, and the register of what becomes of them.
pub(crate) struct FoldPair {
    pub even: u32,
    pub odd: u32,
    pub to: u32,
}

/// A scale factor that a lane makes.
pub(crate) struct OwnFactor {
    /// The register of the block's largest magnitude.
    pub largest: String,
    /// The row in the chunk, without the lane.
    pub row: u32,
}

/// Where the scale factor of a row is.
pub(crate) struct Share {
    /// Which of the lane's.
    pub factor: u32,
    /// The lane in the block.
    pub lane: u32,
}

/// Two rows of 4-bit elements, one for the even lanes and one for the odd ones.
pub(crate) struct Nibbles {
    /// The first row.
    pub row: u32,
    /// Bytes from the even lane's place in C, and in the staging.
    pub byte: u64,
    pub staged_byte: u32,
    pub predicate: &'static str,
}

impl Nibbles {
    /// The row below the first.
    pub fn next_row(&self) -> u32 {
        self.row + 1
    }
}

impl TransposedScales {
    /// The bits of a lane's number among those of a block's rows.
    pub fn row_lane_mask(&self) -> u32 {
        self.row_lanes - 1
    }

    pub(super) fn new(p: &Plan, scales: ScaleSpec<ByteScale>, chunk: u32) -> Self {
        let block = scales.block;
        let mut rows = chunk;
        let mut folds = Vec::new();
        for step in 0..block.trailing_zeros() {
            let pairs = match rows {
                1 => Vec::new(),
                _ => (0..rows / 2).map(|to| FoldPair { even: 2 * to, odd: 2 * to + 1, to }).collect(),
            };
            rows = (rows / 2).max(1);
            folds.push(Fold { lanes: 1 << step, pairs });
        }
        let shape = p.problem.shape;
        // `validate` keeps sizes far from the end of 32 bits, and tiles and neighbours are few beside them.
        let rows_covered = p.work.m_items * p.item_rows();
        let padded_rows = shape.m.next_multiple_of(128);
        TransposedScales {
            folds,
            row_lanes: chunk.min(block),
            factors: (0..rows)
                .map(|i| OwnFactor { largest: format!("%largest{i}"), row: i * block })
                .collect(),
            shares: (0..chunk).map(|row| Share { factor: row / block, lane: row % block }).collect(),
            segment: format!("{:#x}", (WARP - block) << 8 | (WARP - 1)),
            padded_columns: scales.columns(shape.n).next_multiple_of(4) * block,
            rows_beyond_pads: rows_covered > padded_rows,
            rows_covered,
            padded_rows,
            pad_rows: (rows_covered..padded_rows)
                .step_by(block as usize)
                .map(|start| start..start + block)
                .collect(),
        }
    }
}

/// The stores of a chunk of rows of 4-bit elements.
pub(super) fn nibbles(output: &Output, chunk: u32, ragged: Ragged) -> Vec<Nibbles> {
    let span = output.staging.map_or(0, |staging| staging.span);
    (0..chunk)
        .step_by(2)
        .map(|row| Nibbles {
            row,
            byte: u64::from(row) * output.row_bytes,
            staged_byte: row * span,
            predicate: ragged.predicate(),
        })
        .collect()
}
