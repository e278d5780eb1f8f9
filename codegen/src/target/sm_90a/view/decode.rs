//! NVFP4 and MXFP4 weights on their way from shared memory to the registers of an MMA's rows, and activations in the
//! same formats on their way to where MMAs read them in shared memory (sm_90a).
//!
//! **The order of K.** For 16 elements of K an MMA takes two pairs from a thread (PTX ISA 9.7.15.5.1, "Register
//! Fragments", A), which lie in two bytes of packed weights that other threads' bytes surround. But a sum over K has no
//! order of its own, so long as both operands agree: here lane `4 r + q` of a warp takes, from each 64 elements, block
//! `q` of 16: eight adjacent bytes with one scale factor. Pair `j` of the block's eight is elements `j` and `j + 8`,
//! which are at the same place of two halves of a word once the block's two words are halved and joined. MMA `s` takes
//! pairs `2 s` and `2 s + 1`, so the 16-byte unit `j` of an activation's 64 elements has to hold elements `j` and `j + 8`
//! of blocks 0 to 3: seen as a matrix of 8 x 8, the 64 elements are transposed. The warps beside the one that loads do
//! that where activations lie in shared memory (`ldmatrix.trans`, `stmatrix`): once for each, while a weight is decoded
//! once for all the tile's rows of activations. A launch that does it before the MMAs' own pairs elements `j` and `j + 4` of each
//! eight, the two halves of a word as it is: there the order takes no instruction of a weight's. And of each 128 of K it gives lane
//! `4 r + q` blocks `2 q` and `2 q + 1`, for the first 64 that MMAs take and for the second, where tiles and K are multiples of that:
//! a thread's weights of a row are then one load of 16 bytes, of which 8 lanes read 128 without a bank's conflict.
//!
//! **In the order they lie in.** MMAs of both products' rows with many columns leave a thread time for more: it reads all 64 elements of
//! its rows, four lanes the same 32 bytes, and of each word takes the byte that an MMA wants from it. Then activations
//! stay as they are. A byte's two codes get into the lowest bits of two halves; the four scale factors of a row are made two at a time.
//!
//! **One product.** A GEMM's weights are decoded as those of one of two products: 64 elements of K after 64, by turns in two
//! sets of registers, one of which MMAs read meanwhile.
//!
//! **The value.** Sign, exponent and mantissa of two elements are shifted to where they are in two 16-bit numbers;
//! these are then 2^-14 (f16) or 2^-126 (bf16) of what they should be, which the scale factor makes up for but for
//! 2^7: so no step rounds or overflows, subnormal elements and scale factors included, and the sums are multiplied by
//! 2^7 at the end. For bf16 one multiplication of integers puts the sign and, six bits below, exponent and mantissa in place: it
//! runs beside the pipe for shifts and logic, which is what most of the decoding waits for (seen on an H200: 3 to 5 % of a kernel).
//! In an f16 the two would overlap, and are shifted apart.
//!
//! **Repacked weights.** A repacked format ([`OperandFormat::repacks`](crate::problem::OperandFormat::repacks)) needs fewer
//! instructions. A word has four pairs. The first takes a mask. The second and the third take a shift and a mask each. The fourth
//! takes a mask, a multiplication and a mask. These are eight instructions per word; other weights take twelve, a shift and up to one
//! `prmt`. Multiplications by scale factors are not counted. A pair is elements `j` and `j + 8` of a block, so both ways of permuting
//! activations pair them like that. In natural order, a lane takes two pairs of one word per 16 elements, with its own masks and
//! factor. Two `prmt` then make pairs of neighbours. These are nine instructions per four elements with the multiplications by scale
//! factors; other weights take twelve.
//!
//! Two neighbouring lanes share a scale factor of MXFP4, a power of two that may be anything a bf16 can be: a scale factor
//! times 2^126 would overflow. So the numbers of the elements are multiplied first, and are then 1/4 of the elements;
//! their products with any scale factor but NaN are bf16 numbers, from 2^-130 to 1.5 2^127, and sums are multiplied by 4.
//!
//! **Packed activations** arrive beside the place that MMAs read. A lane of the warps beside the one that loads decodes a
//! block of 16 of a row, with the same instructions: pair `j` of block `q` is the word `q` of unit `j`, so that the order
//! costs nothing. A warp's 32 words, from 8 rows and 4 blocks, lie in as many banks, for the swizzle permutes the units of
//! each of the 8 rows differently. Both operands are smaller by the same power of two then.

use super::consumer::accumulator;
use crate::plan::{BarrierKind, Plan};
use crate::problem::{ByteScale, ElementKind, ScaleFormat};
use crate::render::view::Place;
use crate::target::sm_90a::{Wgmma, ordering_passes, ordering_warps};

/// What sums of decoded weights are multiplied with, as hexadecimal digits of an f32: 2^7, or 2^2; with decoded activations
/// the square of it.
pub(super) fn unscale(p: &Plan) -> &'static str {
    match (powers_of_two(p), p.decodes_a()) {
        (false, false) => "43000000",
        (false, true) => "46800000",
        (true, false) => "40800000",
        (true, true) => "41800000",
    }
}

/// Whether weights are MXFP4.
fn powers_of_two(p: &Plan) -> bool {
    p.problem
        .formats
        .b
        .spec()
        .scales
        .is_some_and(|scales| scales.format == ScaleFormat::Byte(ByteScale::Ue8m0))
}

/// Elements of K of a row that four lanes load at a time, 16 bytes each.
pub(super) const WIDE: u32 = 128;

/// Whether weights are in a repacked format.
pub(super) fn is_repacked(p: &Plan) -> bool {
    p.problem.formats.b.repacks().is_some()
}

/// Whether they do: where a launch of its own brings activations into an order that suits.
pub(super) fn is_wide(p: &Plan) -> bool {
    p.orders_first() && p.tile.k.is_multiple_of(WIDE) && p.problem.shape.k.is_multiple_of(WIDE)
}

/// Which rows a thread decodes, and in which order of K: a template each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeLayout {
    /// Two rows of one product, or of the only one, in an order of K into which warps beside it bring activations.
    TwoRows,
    /// The same row of both products, in an order of K into which a launch of its own brings activations.
    Permuted,
    /// The same row of both products, in the order of K they lie in.
    Natural,
    /// As [`Natural`](DecodeLayout::Natural), with repacked weights.
    NaturalRepacked,
}

impl DecodeLayout {
    fn of(p: &Plan) -> Self {
        match (p.interleaved_rows(), p.orders_first()) {
            (false, _) => DecodeLayout::TwoRows,
            (true, true) => DecodeLayout::Permuted,
            (true, false) if is_repacked(p) => DecodeLayout::NaturalRepacked,
            (true, false) => DecodeLayout::Natural,
        }
    }
}

/// What the templates need to decode weights.
pub(crate) struct DecodeView {
    /// Bytes of a row of weights in a stage.
    pub row_bytes: u32,
    pub layout: DecodeLayout,
    /// Whether it loads 32 elements of a row at a time, and takes half of them for 64 of K and half for the next.
    pub wide: bool,
    /// Rows of such a tile, in quarters of a block of scale factors, and bytes from one block's to the next's in a slot.
    pub row_quarters: u32,
    pub row_block_bytes: u32,
    /// Mask of the row bits that the swizzle folds in.
    pub swizzle_mask: u32,
    /// What weights are loaded of at a time, in order: each 64 elements of a K tile, or each 128; and how many bytes of a row that is.
    pub blocks: Vec<u32>,
    pub block_bytes: u32,
    /// Rows of a warpgroup.
    pub warpgroup_rows: u32,
    /// Bytes of a stage.
    pub stage_bytes: u32,
    /// Bytes to the slots of scale factors, and of a slot.
    pub scales: u32,
    pub slot_bytes: u32,
    /// `f16x2` or `bf16x2`.
    pub pair: &'static str,
    /// Where exponents and mantissas belong in both halves, and with them signs.
    pub magnitude_mask: &'static str,
    pub element_mask: &'static str,
    /// Whether one multiplication brings both to their places.
    pub multiplies: bool,
    /// How pairs of repacked weights are decoded.
    pub repacked: Option<Repacked>,
    /// By how much a scale factor in a half's upper byte is shifted right, and what it is then multiplied with.
    pub scale_shift: u32,
    pub scale_factors: &'static [&'static str],
    /// Where scale factors are powers of two: the least one, which has no exponent's bits, and what magnitudes are multiplied
    /// with.
    pub powers: Option<[&'static str; 2]>,
    /// Which of four scale factors a thread takes.
    pub selectors: Selectors,
    /// Registers of two scale factors each that 64 elements of two rows take.
    pub scale_words: u32,
    /// Whether K ends inside a block of NVFP4's scale factors.
    pub padded: bool,
    /// In the order in which they are decoded and multiplied.
    pub groups: Vec<DecodeGroup>,
    /// How activations get into the same order of K.
    pub order: OrderView,
}

/// Masks of a pair's bits in both halves of a repacked word, and the factors that bring them to the places of a bf16.
pub(crate) struct Repacked {
    pub second_mask: &'static str,
    pub second_factor: u32,
    /// The fourth pair is in the word that was rotated for the third.
    pub fourth_mask: &'static str,
    pub fourth_factor: u32,
}

const REPACKED: Repacked = Repacked {
    second_mask: "0x10381038",
    second_factor: 1 << 3,
    fourth_mask: "0x001b001b",
    // Brings bits 3, 1, 0 and 4 to 15, 8, 7 and 6. No other product of a bit lands there, and none carries.
    fourth_factor: 1 << 12 | 1 << 7 | 1 << 2,
};

/// The places of a thread's scale factors in words of four.
pub(crate) struct Selectors {
    /// The registers of the selectors, one or two, and what makes the second of the first.
    pub registers: &'static [&'static str],
    pub step: &'static str,
    /// Whether two lanes' blocks have one scale factor, or a lane's two blocks have one each.
    pub lanes_share: bool,
    pub lane_has_two: bool,
    /// Whether the upper two of four lanes have theirs in the next block of scale factors.
    pub by_lane: bool,
}

impl Selectors {
    /// Four scale factors are of 64 elements, or, as powers of two, of 128; `wide`: a lane takes two adjacent blocks of 16.
    fn new(powers: bool, wide: bool) -> Self {
        Selectors {
            registers: if powers != wide {
                &["%scale_selector", "%scale_selector_above"]
            } else {
                &["%scale_selector"]
            },
            step: if wide { "0x1111" } else { "0x2020" },
            lanes_share: powers && !wide,
            lane_has_two: wide && !powers,
            by_lane: wide && !powers,
        }
    }
}

/// The warps that bring activations into the order of K that weights are decoded in.
pub(crate) struct OrderView {
    /// The first of them, the last, and how many.
    pub warp: u32,
    pub last_warp: u32,
    pub warps: u32,
    /// Registers of a pass.
    pub units: u32,
    /// A warp's passes over a stage all told, bytes of one, and from a warp's pass to its next.
    pub passes: u32,
    pub pass_bytes: u32,
    pub pass_step: u32,
    /// What a pass moves: four rows of 64 elements at a time.
    pub quads: Vec<OrderQuad>,
    /// Bytes to the barriers that say that a stage is in order.
    pub permuted: Place,
    /// Where activations are decoded on the way.
    pub packed: Option<PackedView>,
}

impl PackedView {
    /// Where the unit of a pair is in a row of 128 bytes whose unit 0 is at 0.
    pub fn unit_byte(&self, pair: &usize) -> usize {
        16 * pair
    }
}

/// Activations that are decoded, 8 rows of 64 elements a pass.
pub(crate) struct PackedView {
    /// A pass's number is that of 8 rows times those of 64 of K of a tile, and of the latter: the shift and the mask.
    pub box_shift: u32,
    pub box_mask: u32,
    /// Bytes from 64 of K to the next, decoded, and of a row as it arrives.
    pub box_bytes: u32,
    pub row_bytes: u32,
    /// Bytes of eight such rows.
    pub rows_bytes: u32,
    /// Bytes to packed activations in a stage.
    pub from: u32,
    /// Bytes from 128 rows' scale factors to the next's.
    pub row_block_bytes: u32,
    /// How many bits of the number of 64 of K, and of the number of a lane's block, are those of four scale factors, and of
    /// one.
    pub shared_bits: u32,
    /// The pairs of a block.
    pub pairs: Vec<DecodePair>,
}

/// Four rows of 64 elements, each an 8 x 8 matrix.
pub(crate) struct OrderQuad {
    /// The register of a lane's address in the first rows of this kind, and bytes from there.
    pub address: &'static str,
    pub offset: u32,
    pub registers: String,
}

/// 64 elements of K of one product: four MMAs.
pub(crate) struct DecodeGroup {
    pub product: u32,
    /// Its place among all groups of the K tile, and which set of registers its codes are loaded to.
    pub index: u32,
    pub set: u32,
    /// Which set its scale factors' codes are loaded to, and whether they are made here rather than for the group before, too.
    pub scale_set: u32,
    pub makes_scales: bool,
    /// Whether weights are loaded for it, and the next, just before it is decoded.
    pub loads: bool,
    /// MMAs of other groups that may still run when it is decoded, and whether the K tile before is done by then.
    pub pending: u32,
    pub releases: bool,
    /// Bytes from a stage's start to the weights of both rows, and from the first slot's word to their scale factors.
    pub rows: [u32; 2],
    pub scale_words: [u32; 2],
    /// The register of the selector of its scale factor.
    pub selector: &'static str,
    /// Its place along K.
    pub block: u32,
    /// The accumulators.
    pub d: String,
    pub pairs: Vec<DecodePair>,
    /// In the order they lie in: what the pairs are multiplied with.
    pub scale_pairs: Vec<ScalePair>,
    /// Repacked weights in natural order.
    pub blocks: Vec<NaturalBlock>,
    pub steps: Vec<DecodeStep>,
}

/// Two scale factors of a row, made together.
pub(crate) struct ScalePair {
    /// The registers of their codes and of both, and the selector that brings the codes into the upper bytes of its halves.
    pub codes: String,
    pub pair: String,
    pub selector: &'static str,
    /// Where each is in both halves.
    pub first: String,
    pub second: String,
}

/// What a lane decodes of 16 elements of a row in natural order.
pub(crate) struct NaturalBlock {
    /// The lane's word.
    pub codes: String,
    /// The scale factor's register.
    pub scale: String,
    /// The registers of two pairs of neighbours.
    pub to: [String; 2],
}

/// Two elements of a row.
pub(crate) struct DecodePair {
    /// The register of their scale factor.
    pub scale: String,
    /// In natural order, the word that the thread takes a byte of.
    pub word: String,
    /// The word that holds their codes.
    pub codes: String,
    /// Whether exponents and mantissas are shifted right to their places, and by how much; and signs left to theirs.
    pub magnitudes_right: bool,
    pub magnitude_shift: u32,
    pub sign_shift: u32,
    /// Where one multiplication does both: the word that holds the codes in lower bytes of its halves, the mask of the codes, and
    /// the factor.
    pub lower: String,
    pub code_mask: &'static str,
    pub factor: u32,
    /// Its number among the four pairs of a repacked word, and the register of that word rotated.
    pub of_word: u32,
    pub rotated: String,
    pub to: String,
}

/// 16 elements of K: one MMA.
pub(crate) struct DecodeStep {
    /// From the stage's first descriptor word of the activations.
    pub columns_step: u32,
    pub accumulate: &'static str,
    /// The registers that the MMA takes its rows from.
    pub rows: String,
}

impl DecodeView {
    pub fn new(p: &Plan, warpgroups: &Wgmma) -> Self {
        let row_bytes = p.k_loop.b_tile_bytes;
        let bf16 = p.problem.formats.decoded() == ElementKind::Bf16;
        // The lowest bit of the mantissa's part of two bits and of the exponent's, as an element has them.
        let place = if bf16 { 6 } else { 9 };
        let block_bytes = 512;
        let powers = powers_of_two(p);
        let wide = is_wide(p);
        let selectors = Selectors::new(powers, wide);
        let per_block = if powers { 2 } else { 1 };
        let mut groups = Vec::new();
        let layout = DecodeLayout::of(p);
        let interleaved = p.interleaved_rows();
        let second_row = if interleaved { p.smem.b_box_bytes } else { 8 * row_bytes };
        let second_scales = if interleaved { p.smem.sfb2 - p.smem.sfb1 } else { 128 };
        // The products of an MMA's rows; or the sets of registers for weights that take turns.
        let products: &[u32] = if interleaved || p.strategy.products() == 1 { &[1] } else { &[1, 2] };
        let alone = products.len() as u32 * p.tile.k == 64;
        for block in 0..p.tile.k / 64 {
            for product in products.iter().copied() {
                let first_scales = p.smem.sfb1
                    + (product - 1) * p.scales.smem_row_block_bytes
                    + if wide { block & !1 } else { block } / per_block * block_bytes;
                let index = groups.len() as u32;
                let set = index % 2;
                let weights = if products.len() == 1 { 1 + set } else { product };
                groups.push(DecodeGroup {
                    product,
                    index,
                    set,
                    scale_set: if wide { 0 } else { set },
                    makes_scales: !wide || !powers || set == 0,
                    loads: wide && set == 0 && index > 0,
                    pending: if alone { 0 } else { 1 },
                    releases: alone || index == 1,
                    rows: [0, second_row]
                        .map(|row| p.smem.a_bytes + (product - 1) * p.smem.b_box_bytes + row),
                    scale_words: [0, second_scales].map(|row| p.smem.scales + first_scales + row),
                    selector: selectors.registers[block as usize % selectors.registers.len()],
                    block: if wide { block / 2 } else { block },
                    d: (0..p.mma_columns / 2)
                        .map(|i| match interleaved {
                            // Two of four registers are of a row, and two of that 8 below it.
                            true => accumulator(1 + i / 2 % 2, i / 4 * 2 + i % 2),
                            false => accumulator(product, i),
                        })
                        .collect::<Vec<_>>()
                        .join(", "),
                    pairs: (0..16)
                        .filter_map(|i| match layout {
                            DecodeLayout::Natural => Some(natural_pair(weights, i / 2, i % 2, place, powers)),
                            DecodeLayout::TwoRows if !is_repacked(p) => {
                                Some(pair(PAIRED, weights, i / 2, i % 2, place))
                            }
                            // Words need no `prmt` first.
                            DecodeLayout::TwoRows | DecodeLayout::Permuted => {
                                Some(pair(&format!("%codes{set}_"), weights, i / 2, i % 2, place))
                            }
                            DecodeLayout::NaturalRepacked => None,
                        })
                        .collect(),
                    scale_pairs: match layout {
                        DecodeLayout::Natural | DecodeLayout::NaturalRepacked => scale_pairs(block, powers),
                        DecodeLayout::Permuted | DecodeLayout::TwoRows => Vec::new(),
                    },
                    blocks: match layout {
                        DecodeLayout::NaturalRepacked => {
                            (0..8).map(|i| natural_block(weights, i / 2, i % 2, powers)).collect()
                        }
                        DecodeLayout::Natural | DecodeLayout::Permuted | DecodeLayout::TwoRows => Vec::new(),
                    },
                    steps: (0..4)
                        .map(|s| DecodeStep {
                            columns_step: p.descriptors.a_blocks[(4 * block + s) as usize],
                            accumulate: if block == 0 && s == 0 { "%accumulate" } else { "1" },
                            rows: format!(
                                "{{ {} }}",
                                (0..4).map(|i| decoded(weights, 4 * s + i)).collect::<Vec<_>>().join(", ")
                            ),
                        })
                        .collect(),
                });
            }
        }
        DecodeView {
            row_bytes,
            layout,
            wide,
            row_quarters: p.scales.row_quarters,
            row_block_bytes: p.scales.smem_row_block_bytes,
            swizzle_mask: row_bytes / 16 - 1,
            blocks: (0..p.tile.k / if wide { WIDE } else { 64 }).collect(),
            block_bytes: if wide { 64 } else { 32 },
            warpgroup_rows: warpgroups.rows(),
            stage_bytes: p.smem.stage_bytes,
            scales: p.smem.scales,
            slot_bytes: p.smem.slot_bytes,
            pair: if bf16 { "bf16x2" } else { "f16x2" },
            magnitude_mask: if bf16 { "0x01c001c0" } else { "0x0e000e00" },
            element_mask: "0x81c081c0",
            multiplies: bf16 && !is_repacked(p),
            repacked: is_repacked(p).then_some(REPACKED),
            scale_shift: if bf16 && !powers { 4 } else { 1 },
            scale_factors: match (powers, bf16) {
                (true, _) => &[],
                // 2^127 and 2^112, or 2^15, in both halves.
                (false, true) => &["0x7f007f00", "0x77807780"],
                (false, false) => &["0x78007800"],
            },
            // 2^-127 and 2^124.
            powers: powers.then_some(["0x00400040", "0x7d807d80"]),
            selectors,
            scale_words: if powers { 2 } else { 4 },
            padded: !powers && !p.problem.shape.k.is_multiple_of(64),
            groups,
            order: OrderView::new(p, warpgroups, place),
        }
    }
}

impl DecodeView {
    /// The byte of a row, before the swizzle, at which what is loaded at a time starts.
    pub fn block_byte(&self, block: &u32) -> u32 {
        self.block_bytes * block
    }

    /// The words of both rows.
    pub fn row_words(&self) -> [[u32; 2]; 2] {
        [[0, 1], [2, 3]]
    }

    /// What is loaded while `group` is decoded.
    pub fn after(&self, group: &DecodeGroup) -> Option<&DecodeGroup> {
        self.groups.get(group.index as usize + 1).filter(|_| !self.wide)
    }
}

impl OrderView {
    fn new(p: &Plan, warpgroups: &Wgmma, place: u32) -> Self {
        let (passes, rows) = ordering_passes(p.smem.a_bytes / 2, p.decodes_a());
        let warps = ordering_warps(passes);
        OrderView {
            warp: 4 * warpgroups.count + 1,
            last_warp: 4 * warpgroups.count + warps,
            warps,
            units: rows / 4 * 4,
            passes,
            pass_bytes: 128 * rows,
            pass_step: 128 * rows * warps,
            quads: (0..rows / 4)
                .map(|i| OrderQuad {
                    // Rows 4 to 7 of 8 have their units permuted by 4 more.
                    address: if i % 2 == 0 { "%even" } else { "%odd" },
                    offset: 512 * i,
                    registers: (4 * i..4 * i + 4)
                        .map(|r| format!("%units{r}"))
                        .collect::<Vec<_>>()
                        .join(", "),
                })
                .collect(),
            permuted: Place::new(p, BarrierKind::Permuted),
            packed: p.decodes_a().then(|| PackedView {
                box_shift: p.smem.boxes.trailing_zeros(),
                box_mask: p.smem.boxes - 1,
                box_bytes: p.smem.a_box_bytes,
                row_bytes: p.k_loop.b_tile_bytes,
                rows_bytes: 8 * p.k_loop.b_tile_bytes,
                from: p.smem.packed_a,
                row_block_bytes: p.scales.smem_row_block_bytes,
                shared_bits: u32::from(powers_of_two(p)),
                pairs: (0..8)
                    .map(|j| DecodePair { to: format!("%unpacked{j}"), ..pair(PAIRED, 1, j, 0, place) })
                    .collect(),
            }),
        }
    }
}

/// What words are called whose halves are of one half of a block each.
const PAIRED: &str = "%paired";

/// Pair `j` of a row's block, in words of such a name.
fn pair(words: &str, product: u32, j: u32, row: u32, place: u32) -> DecodePair {
    let from = 4 * (j % 4);
    let word = 2 * row + j / 4;
    let in_byte = from % 8;
    DecodePair {
        scale: format!("%scale{row}"),
        word: String::new(),
        codes: format!("{words}{word}"),
        magnitudes_right: from > place,
        magnitude_shift: from.abs_diff(place),
        sign_shift: 12 - from,
        lower: if from < 8 { format!("{words}{word}") } else { format!("%upper{word}") },
        code_mask: if in_byte == 0 { "0x000f000f" } else { "0x00f000f0" },
        // The code's lowest bit to the mantissa's place, and its highest to the sign's.
        factor: (1 << place | 1 << 12) >> in_byte,
        of_word: j % 4,
        rotated: format!("%rotated{row}"),
        to: decoded(product, 2 * j + row),
    }
}

/// Two elements side by side, of word `j` of a row, in the lowest bits of both halves.
fn natural_pair(set: u32, j: u32, row: u32, place: u32, powers: bool) -> DecodePair {
    // Two words are of one block of 16.
    let block = if powers { j / 4 } else { j / 2 };
    let paired = format!("{PAIRED}{}", (2 * j + row) % 4);
    DecodePair {
        // Words 0 to 7 are of the first row, the others of the second.
        word: format!("%codes{}", 8 * row + j),
        codes: paired.clone(),
        lower: paired,
        scale: format!("%scale{}", 4 * row + block),
        to: decoded(set, 2 * j + row),
        ..pair(PAIRED, set, 0, 0, place)
    }
}

/// Block `s` of a row.
fn natural_block(set: u32, s: u32, row: u32, powers: bool) -> NaturalBlock {
    NaturalBlock {
        codes: format!("%codes{}", 4 * row + s),
        scale: format!("%scale{}", 4 * row + if powers { s / 2 } else { s }),
        to: [0, 2].map(|half| decoded(set, 4 * s + half + row)),
    }
}

/// The scale factors of 64 elements of both rows.
fn scale_pairs(block: u32, powers: bool) -> Vec<ScalePair> {
    let of = |row: u32, part: u32, upper: bool| ScalePair {
        codes: format!("%scale_codes{row}"),
        pair: format!("%two_scales{}", if powers { row } else { 2 * row + part }),
        selector: if upper { "0x3424" } else { "0x1404" },
        first: format!("%scale{}", 4 * row + 2 * part),
        second: format!("%scale{}", 4 * row + 2 * part + 1),
    };
    (0..2)
        .flat_map(|row| match powers {
            // Four scale factors are of 128 elements.
            true => vec![of(row, 0, block % 2 == 1)],
            false => vec![of(row, 0, false), of(row, 1, true)],
        })
        .collect()
}

/// The register of two decoded elements.
fn decoded(product: u32, index: u32) -> String {
    format!("%weights{product}_{index}")
}
