//! How long a split tail pays, as a model of one SM's cycles; nothing in it is measured.
//!
//! The tail runs GEMM 1 to its end before GEMM 2, so that the epilogue takes the gate of product 1 while GEMM 2's
//! last MMAs run. It is long enough when those take as long as that part of the gate. What it costs: A's scale
//! factors are copied to TMEM once a product and not once for both, and A is read for each MMA, not kept in the collector.
//!
//! * The gate: two operations of the special-function unit an element, as silu has (`ex2`, `rcp`); a quarter of an
//!   SM has one warp of the epilogue and finishes four lanes of such an operation a cycle (CUDA programming guide,
//!   "Arithmetic Instructions": 16 a cycle and SM).
//! * An MMA step of 256 bits of a row: a tensor core multiplies 128 rows by two columns a cycle in every kind, the
//!   rate of which [`Limits`](crate::arch::Limits) has the sum over a chip, and shared memory gives it 128 bytes a cycle.
//! * A scale-factor copy: tensor memory gets its bytes four times, at that rate (`tcgen05_copy_scales` of `chips/b200.toml`).

/// Special-function operations an element.
const GATE_OPERATIONS: u32 = 2;
/// Cycles that a warp's 32 lanes take for one.
const GATE_CYCLES: u32 = 8;
/// Rows of the MMA in a CTA, and bytes of K that a step takes of each.
const ROWS: u32 = 128;
const STEP_BYTES: u32 = 32;
/// Bytes a cycle of an SM's shared memory.
const SMEM_BYTES: u32 = 128;
/// Bytes that a copy of a block of scale factors writes: four times 512.
const SCALE_COPY_BYTES: u32 = 2048;
/// A tail is no more than this part of the K loop, since what it costs is paid for each of its tiles.
const LARGEST_PART: u32 = 5;

/// Modelled cycles of one SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The part of the gate that needs product 1 only, on the columns that are taken early.
    pub gate: u32,
    /// GEMM 2 on one K tile of the tail.
    pub tile: u32,
}

impl Model {
    /// For an MMA of `columns`, of which `early` are taken early, by `ctas` CTAs, and K tiles of `steps` MMAs with `scale_blocks` blocks of scale
    /// factors for each 128 rows.
    pub fn new([columns, early]: [u32; 2], ctas: u32, steps: u32, scale_blocks: u32) -> Model {
        let math = columns / 2;
        // Each CTA of a pair reads its half of B for both.
        let reads = (ROWS + columns / ctas) * STEP_BYTES / SMEM_BYTES;
        let copies = scale_blocks * (1 + columns.div_ceil(ROWS)) * SCALE_COPY_BYTES / SMEM_BYTES;
        Model { gate: early * GATE_OPERATIONS * GATE_CYCLES, tile: steps * math.max(reads) + copies }
    }

    /// K tiles of the tail: the most that GEMM 2 finishes within the gate's part, and at most a fifth of the K loop.
    pub fn tail(&self, k_tiles: u32) -> u32 {
        (self.gate / self.tile.max(1)).min(k_tiles / LARGEST_PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_tiles_have_longer_mmas_and_a_longer_gate() {
        // NVFP4 by pairs, K tiles of 256; four warps take 64 columns early, eight 128.
        let [narrow, wide, eight] = [[64, 64], [128, 64], [128, 128]].map(|c| Model::new(c, 2, 4, 4));
        assert_eq!(narrow, Model { gate: 1024, tile: 288 });
        assert_eq!(wide, Model { gate: 1024, tile: 384 });
        assert_eq!(eight, Model { gate: 2048, tile: 384 });
        assert_eq!([narrow, wide, eight].map(|model| model.tail(1000)), [3, 2, 5]);
    }

    #[test]
    fn the_benchmark_s_shapes_get_three_or_five_tiles_and_a_short_k_none() {
        let (narrow, wide) = (Model::new([64, 64], 2, 4, 4), Model::new([128, 128], 2, 4, 4));
        assert_eq!([narrow.tail(28), wide.tail(28), narrow.tail(16), wide.tail(28)], [3, 5, 3, 5]);
        assert_eq!([narrow.tail(4), wide.tail(1), Model::new([8, 8], 1, 4, 4).tail(28)], [0, 0, 0]);
    }
}
