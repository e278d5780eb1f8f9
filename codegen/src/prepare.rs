//! Kernels around the multiplications: activations to NVFP4, MXFP8 and e4m3, scale factors to the blocked order, tokens to their
//! experts and back.
//!
//! They are for any number of rows and columns, which are arguments: one module a chip serves a whole model.
//!
//! ```
//! use silumin_codegen::arch::Arch;
//! use silumin_codegen::prepare::{Preparation, Source};
//!
//! let quantizer = Preparation::Quantize(Source::Bf16);
//! let kernel = quantizer.kernel(Arch::Sm100a)?;
//! assert!(kernel.ptx.contains("cvt.rn.satfinite.e2m1x2.f32"));
//! // 16 rows of K = 7168: rows are padded to 128, a thread for each block of 16.
//! assert_eq!(quantizer.ctas(16, 7168 / 16), Some(128 * 448 / 256));
//! # Ok::<(), silumin_codegen::render::RenderError>(())
//! ```

use crate::arch::Arch;
use crate::kernel::{Kernel, Launch};
use crate::problem::{Formats, Problem, Shape};
use crate::render::RenderError;
use crate::target::way_of;
use askama::Template;
use std::fmt;

/// Threads of a CTA of all kernels but one.
const THREADS: u32 = 256;

/// Threads of a CTA of [`Preparation::Route`]: each CTA reads all choices.
const ROUTE_THREADS: u32 = 512;

/// The most experts that [`Preparation::Route`] sorts by: their counts are in shared memory.
pub const MAX_EXPERTS: u32 = 1024;

/// Choices that a thread of [`Preparation::Route`] places at once.
const CHOICES: u32 = 8;

/// Warps of a CTA that quantises rows with a scale of their own.
const ROW_WARPS: u32 = THREADS / 32;

/// Rows that keep all SMs busy with a warp each.
const MANY_ROWS: u32 = 4096;

/// Rows that a thread stores a token to at once. Most mixtures choose eight experts or fewer.
const SCATTERED: u32 = 8;

/// Rows that a thread of [`Preparation::Combine`] loads at once.
const ROWS_AT_ONCE: u32 = 4;

/// What activations are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
}

/// What a kernel does.
///
/// The kernels for experts share these arrays. A choice is one of a token's `top_k` experts, i32, `[tokens, top_k]`. Each choice
/// of an expert from `first` to `first + experts - 1` has a row; rows are sorted by expert, and by choice within an expert. Other choices
/// have none. `offsets` is i32 `[experts + 1]`, as grouped kernels read it: the last is the number of rows. `sources` is
/// i32 `[choices, 2]`: a row's token, and its row among scale factors, where each expert starts a new block of 128 rows.
/// `places` is i32 `[tokens, top_k]`: a choice's row, or -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preparation {
    /// Activations, row-major `[rows, K]`, to NVFP4 codes and blocked scale factors. Parameters of the entry: addresses of
    /// the activations, the codes and the scale factors (u64, multiples of 16); rows, blocks of 16 in a row (u32); the
    /// scale of the whole tensor (f32, finite and above 0).
    ///
    /// In f32, each step rounded to nearest even: a block's scale factor is the e4m3 nearest to amax / 6 / tensor scale,
    /// saturating; an element the e2m1 nearest to x / (scale factor * tensor scale), saturating. A block whose scale
    /// factor is 0, or too small for f32 with the tensor scale, has elements 0. A block with NaN or infinity in it has
    /// scale factor NaN and elements 0, so that products show it.
    Quantize(Source),
    /// Activations to e4m3, a byte each. Parameters of the entry: addresses of the activations and the codes (u64, multiples of
    /// 16); their number over 16 (u32); the scale of the whole tensor (f32, finite and above 0).
    ///
    /// An element is the e4m3 nearest to x / tensor scale in f32, ties to even, saturating at 448. NaN and infinity become
    /// NaN, so that products show them.
    QuantizeE4m3(Source),
    /// Activations to e4m3 with a scale for each row. Parameters of the entry: addresses of the activations, the codes (u64,
    /// multiples of 16) and the scales (f32 `[rows]`); rows, K over 16, warps that share a row (u32): 1, 2, 4 or 8. The grid that
    /// [`Preparation::ctas`] gives is for [`Preparation::row_warps`].
    ///
    /// In f32, each step rounded to nearest even: a row's scale is its amax / 448, at least the smallest normal number; 1 for
    /// a row of zeros, and for one with NaN or infinity in it. Elements are those of [`Preparation::QuantizeE4m3`].
    QuantizeE4m3Rows(Source),
    /// Activations to e4m3 with an f32 scale factor for each 128 of a row
    /// ([`OperandFormat::E4m3Vector128`](crate::problem::OperandFormat)). Parameters of the entry: addresses of the activations,
    /// the codes (u64, multiples of 16) and the scale factors (f32 `[rows, K / 128]`); rows, K over 16 (u32), a multiple of 8.
    ///
    /// Scale factors and elements are those of [`Preparation::QuantizeE4m3Rows`], with 128 elements in the place of a row.
    QuantizeE4m3Blocks(Source),
    /// Activations to MXFP8. Parameters of the entry: addresses of the activations, the codes and the blocked scale factors
    /// (u64, multiples of 16); rows, K over 16 (u32), a multiple of 2. Scale factors of pads are not written.
    ///
    /// A scale factor is the least power of two with which no element saturates, at least 2^-127, and 1 beside NaN or
    /// infinity. Elements are those of [`Preparation::QuantizeE4m3`].
    QuantizeMxfp8(Source),
    /// Scale factors of any 8-bit format, row-major `[rows, columns]`, to the 128 x 4 blocked order. Parameters of the
    /// entry: addresses of both (u64, multiples of 16); rows, columns (u32).
    Block,
    /// Sorts choices by expert. Parameters of the entry: addresses of the choices, of `offsets`, `sources` and `places` (u64,
    /// multiples of 4, of `sources` 8); how many choices, choices of a token, the number of the first expert, experts (u32, at
    /// most [`MAX_EXPERTS`]). Where fewer choices have a row, the end of `sources` is not written.
    Route,
    /// Copies tokens of 16-bit elements to their rows. Parameters of the entry: addresses of the tokens `[tokens, K]`, of
    /// `sources`, `offsets` and the rows `[choices, K]` (u64, multiples of 16); choices, K over 16, experts (u32).
    Gather,
    /// [`Preparation::Quantize`] of each token, to the rows of its choices. Parameters of the entry: addresses of the tokens, of
    /// `sources`, `offsets`, `places`, the codes and the scale factors (u64, multiples of 16); tokens, K over 16, experts, choices
    /// of a token (u32); the scale of the whole tensor (f32). Scale factors of rows that pad an expert's last block are not
    /// written. With 0 choices the activations are rows that are sorted already, `[choices, K]`: the kernel quantises them in place, up to
    /// the last offset, and does not read `places`.
    GatherQuantize(Source),
    /// [`Preparation::QuantizeE4m3`] of each token, to the rows of its choices. Parameters of the entry: addresses of the tokens, of
    /// `places` and the codes (u64, multiples of 16); tokens, K over 16, choices of a token (u32); the scale of the whole tensor (f32).
    GatherQuantizeE4m3(Source),
    /// [`Preparation::QuantizeE4m3Rows`] of each token, to the rows of its choices. Parameters of the entry: addresses of the
    /// tokens, of `places`, the codes (u64, multiples of 16) and the scales (f32 `[choices]`); K over 16, choices of a token (u32).
    /// The grid has one CTA for each token, and no more.
    GatherQuantizeE4m3Rows(Source),
    /// [`Preparation::QuantizeE4m3Blocks`] of each token, to the rows of its choices. Parameters of the entry: as for [`Preparation::GatherQuantize`]
    /// without the scale of the tensor.
    GatherQuantizeE4m3Blocks(Source),
    /// [`Preparation::QuantizeMxfp8`] of each token, to the rows of its choices. Parameters of the entry: as for
    /// [`Preparation::GatherQuantizeE4m3Blocks`].
    GatherQuantizeMxfp8(Source),
    /// Sums the rows of each token, each times the weight of its choice, onto the residual, in f32 and in the order of the
    /// choices. Parameters of the entry: addresses of the rows `[choices, K]`, of `places`, of the weights (f32 `[tokens,
    /// top_k]`), of the residual and of the result `[tokens, K]` (u64, multiples of 16), which may be one; tokens, K over
    /// 16, choices of a token, 1 to add the residual or 0 (u32).
    Combine(Source),
}

impl Preparation {
    /// All of them.
    pub const ALL: [Preparation; 25] = [
        Preparation::Quantize(Source::Bf16),
        Preparation::Quantize(Source::F16),
        Preparation::QuantizeE4m3(Source::Bf16),
        Preparation::QuantizeE4m3(Source::F16),
        Preparation::QuantizeE4m3Rows(Source::Bf16),
        Preparation::QuantizeE4m3Rows(Source::F16),
        Preparation::Block,
        Preparation::Route,
        Preparation::Gather,
        Preparation::GatherQuantize(Source::Bf16),
        Preparation::GatherQuantize(Source::F16),
        Preparation::GatherQuantizeE4m3(Source::Bf16),
        Preparation::GatherQuantizeE4m3(Source::F16),
        Preparation::GatherQuantizeE4m3Rows(Source::Bf16),
        Preparation::GatherQuantizeE4m3Rows(Source::F16),
        Preparation::Combine(Source::Bf16),
        Preparation::Combine(Source::F16),
        Preparation::QuantizeE4m3Blocks(Source::Bf16),
        Preparation::QuantizeE4m3Blocks(Source::F16),
        Preparation::QuantizeMxfp8(Source::Bf16),
        Preparation::QuantizeMxfp8(Source::F16),
        Preparation::GatherQuantizeE4m3Blocks(Source::Bf16),
        Preparation::GatherQuantizeE4m3Blocks(Source::F16),
        Preparation::GatherQuantizeMxfp8(Source::Bf16),
        Preparation::GatherQuantizeMxfp8(Source::F16),
    ];

    /// The entry's name.
    pub const fn name(self) -> &'static str {
        match self {
            Preparation::Quantize(Source::Bf16) => "silumin_quantize_nvfp4_bf16",
            Preparation::Quantize(Source::F16) => "silumin_quantize_nvfp4_f16",
            Preparation::QuantizeE4m3(Source::Bf16) => "silumin_quantize_e4m3_bf16",
            Preparation::QuantizeE4m3(Source::F16) => "silumin_quantize_e4m3_f16",
            Preparation::QuantizeE4m3Rows(Source::Bf16) => "silumin_quantize_e4m3_rows_bf16",
            Preparation::QuantizeE4m3Rows(Source::F16) => "silumin_quantize_e4m3_rows_f16",
            Preparation::Block => "silumin_block_scales",
            Preparation::Route => "silumin_route",
            Preparation::Gather => "silumin_gather",
            Preparation::GatherQuantize(Source::Bf16) => "silumin_gather_quantize_nvfp4_bf16",
            Preparation::GatherQuantize(Source::F16) => "silumin_gather_quantize_nvfp4_f16",
            Preparation::GatherQuantizeE4m3(Source::Bf16) => "silumin_gather_quantize_e4m3_bf16",
            Preparation::GatherQuantizeE4m3(Source::F16) => "silumin_gather_quantize_e4m3_f16",
            Preparation::GatherQuantizeE4m3Rows(Source::Bf16) => "silumin_gather_quantize_e4m3_rows_bf16",
            Preparation::GatherQuantizeE4m3Rows(Source::F16) => "silumin_gather_quantize_e4m3_rows_f16",
            Preparation::Combine(Source::Bf16) => "silumin_combine_bf16",
            Preparation::Combine(Source::F16) => "silumin_combine_f16",
            Preparation::QuantizeE4m3Blocks(Source::Bf16) => "silumin_quantize_e4m3_1x128_bf16",
            Preparation::QuantizeE4m3Blocks(Source::F16) => "silumin_quantize_e4m3_1x128_f16",
            Preparation::QuantizeMxfp8(Source::Bf16) => "silumin_quantize_mxfp8_bf16",
            Preparation::QuantizeMxfp8(Source::F16) => "silumin_quantize_mxfp8_f16",
            Preparation::GatherQuantizeE4m3Blocks(Source::Bf16) => "silumin_gather_quantize_e4m3_1x128_bf16",
            Preparation::GatherQuantizeE4m3Blocks(Source::F16) => "silumin_gather_quantize_e4m3_1x128_f16",
            Preparation::GatherQuantizeMxfp8(Source::Bf16) => "silumin_gather_quantize_mxfp8_bf16",
            Preparation::GatherQuantizeMxfp8(Source::F16) => "silumin_gather_quantize_mxfp8_f16",
        }
    }

    /// Threads of a CTA.
    pub const fn threads(self) -> u32 {
        if matches!(self, Preparation::Route) { ROUTE_THREADS } else { THREADS }
    }

    /// How many CTAs a launch has, along x. `columns` counts blocks of 16 elements in a row, or scale factors; for
    /// [`Preparation::Route`] `rows` counts choices and `columns` experts. `rows` counts tokens where a kernel gathers and quantises
    /// them. `None` for 2^32 items or more, pads included: an
    /// index has 32 bits.
    pub fn ctas(self, rows: u32, columns: u32) -> Option<u32> {
        let (rows, fours) = (u64::from(rows), u64::from(columns).next_multiple_of(4));
        let items = match self {
            Preparation::Quantize(_) | Preparation::Block => rows.next_multiple_of(128).saturating_mul(fours),
            Preparation::GatherQuantize(_) => rows * fours,
            Preparation::QuantizeE4m3(_)
            | Preparation::Gather
            | Preparation::GatherQuantizeE4m3(_)
            | Preparation::QuantizeE4m3Blocks(_)
            | Preparation::QuantizeMxfp8(_)
            | Preparation::GatherQuantizeE4m3Blocks(_)
            | Preparation::GatherQuantizeMxfp8(_)
            | Preparation::Combine(_) => rows * u64::from(columns),
            Preparation::QuantizeE4m3Rows(_) | Preparation::GatherQuantizeE4m3Rows(_) => {
                let warps =
                    if columns == 0 { 0 } else { rows * u64::from(self.row_warps(rows as u32, columns)) };
                let ctas = warps.div_ceil(u64::from(ROW_WARPS)) as u32;
                return (rows * u64::from(columns) <= u64::from(u32::MAX)).then_some(ctas);
            }
            // A CTA for each expert.
            Preparation::Route => return (rows > 0).then_some(columns).or(Some(0)),
        };
        if items > u64::from(u32::MAX) {
            return None;
        }
        let items = if self == Preparation::Block { items / 4 } else { items };
        u32::try_from(items.div_ceil(THREADS.into())).ok()
    }

    /// Warps that share a row in [`Preparation::QuantizeE4m3Rows`]: 1, 2, 4 or 8. A thread quantises 16 elements of a row, or 32 with 4,096
    /// rows and more. For other kernels it is 8.
    pub fn row_warps(self, rows: u32, columns: u32) -> u32 {
        if !matches!(self, Preparation::QuantizeE4m3Rows(_)) {
            return ROW_WARPS;
        }
        let of_thread = if rows >= MANY_ROWS { 2 } else { 1 };
        columns.div_ceil(32 * of_thread).next_power_of_two().clamp(1, ROW_WARPS)
    }

    /// Whether the kernel is launched before the one ahead of it in the stream has ended, and waits for it on the chip. The
    /// kernel for scale factors of weights runs once, when they are loaded.
    const fn waits(self) -> bool {
        !matches!(self, Preparation::Block)
    }

    /// Its kernel for a chip. As rows and columns are arguments, `problem` is empty, the launch has a grid of one CTA
    /// ([`Preparation::ctas`] says how many it takes) and lists no parameters.
    ///
    /// # Errors
    ///
    /// A template that fails; a bug of this crate.
    pub fn kernel(self, arch: Arch) -> Result<Kernel, RenderError> {
        let view = View::new(self, arch);
        let text = match self {
            Preparation::Quantize(_) | Preparation::GatherQuantize(_) => {
                QuantizeTemplate { t: &view }.render()
            }
            Preparation::QuantizeE4m3(_) | Preparation::GatherQuantizeE4m3(_) => {
                E4m3Template { t: &view }.render()
            }
            Preparation::QuantizeE4m3Rows(_) | Preparation::GatherQuantizeE4m3Rows(_) => {
                E4m3RowsTemplate { t: &view }.render()
            }
            Preparation::QuantizeE4m3Blocks(_)
            | Preparation::QuantizeMxfp8(_)
            | Preparation::GatherQuantizeE4m3Blocks(_)
            | Preparation::GatherQuantizeMxfp8(_) => E4m3BlocksTemplate { t: &view }.render(),
            Preparation::Block => BlockTemplate { t: &view }.render(),
            Preparation::Route => RouteTemplate { t: &view }.render(),
            Preparation::Gather => GatherTemplate { t: &view }.render(),
            Preparation::Combine(_) => CombineTemplate { t: &view }.render(),
        };
        let mut ptx = text.map_err(|error| RenderError::Template(error.to_string()))?;
        ptx.push('\n');
        let launch = Launch {
            entry: self.name().to_owned(),
            grid: [1, 1, 1],
            cluster: [1, 1, 1],
            block: [self.threads(), 1, 1],
            dynamic_smem: 0,
            programmatic: self.waits(),
            parameters: Vec::new(),
        };
        let kernel = Kernel {
            name: self.name().to_owned(),
            arch,
            ptx,
            problem: Problem::dual(Shape::new(0, 0, 0), Formats::default()),
            launches: vec![launch],
            workspace: Vec::new(),
            ptx_version: arch.ptx_version(),
            hash: [0; 32],
        };
        Ok(kernel.hashed())
    }
}

impl fmt::Display for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the templates print.
struct View {
    name: &'static str,
    version: &'static str,
    arch: Arch,
    ptx_version: (u32, u32),
    threads: u32,
    source: &'static str,
    bf16: bool,
    /// Whether rows are gathered by expert.
    gathers: bool,
    /// Whether scale factors are those of MXFP8.
    mx: bool,
    max_experts: u32,
    /// Choices that a thread of the router places at once, and all threads; warps of its CTA.
    choices: u32,
    chunk: u32,
    warps: u32,
    /// Distances of a sum over the lanes of a warp.
    distances: [u32; 5],
    rows_at_once: u32,
    /// Rows of a token that are stored to at once.
    scattered: u32,
    /// Warps of a CTA that quantises a row.
    row_warps: u32,
    /// Whether the chip converts f32 to e2m1.
    converts: bool,
    /// The two elements of each word of 16-bit ones.
    pairs: Vec<Pair>,
    /// Where each element's code goes.
    elements: Vec<Element>,
    /// Bytes of four scale factors behind the first, which is always there.
    places: Vec<Place>,
}

struct Pair {
    word: u32,
    low: u32,
    high: u32,
}

struct Element {
    value: u32,
    word: u32,
    shift: u32,
}

struct Place {
    byte: u32,
    shift: u32,
}

impl View {
    fn new(preparation: Preparation, arch: Arch) -> Self {
        let bf16 = match preparation {
            Preparation::Quantize(source)
            | Preparation::QuantizeE4m3(source)
            | Preparation::QuantizeE4m3Rows(source)
            | Preparation::GatherQuantize(source)
            | Preparation::GatherQuantizeE4m3(source)
            | Preparation::GatherQuantizeE4m3Rows(source)
            | Preparation::QuantizeE4m3Blocks(source)
            | Preparation::QuantizeMxfp8(source)
            | Preparation::GatherQuantizeE4m3Blocks(source)
            | Preparation::GatherQuantizeMxfp8(source)
            | Preparation::Combine(source) => source == Source::Bf16,
            Preparation::Block | Preparation::Route | Preparation::Gather => false,
        };
        Self {
            name: preparation.name(),
            version: env!("CARGO_PKG_VERSION"),
            arch,
            ptx_version: arch.ptx_version(),
            threads: preparation.threads(),
            warps: ROUTE_THREADS / 32,
            source: if bf16 { "bf16" } else { "f16" },
            bf16,
            gathers: matches!(
                preparation,
                Preparation::GatherQuantize(_)
                    | Preparation::GatherQuantizeE4m3(_)
                    | Preparation::GatherQuantizeE4m3Rows(_)
                    | Preparation::GatherQuantizeE4m3Blocks(_)
                    | Preparation::GatherQuantizeMxfp8(_)
            ),
            mx: matches!(preparation, Preparation::QuantizeMxfp8(_) | Preparation::GatherQuantizeMxfp8(_)),
            max_experts: MAX_EXPERTS,
            choices: CHOICES,
            chunk: CHOICES * ROUTE_THREADS,
            distances: [1, 2, 4, 8, 16],
            rows_at_once: ROWS_AT_ONCE,
            scattered: SCATTERED,
            row_warps: ROW_WARPS,
            // Chips whose tensor cores multiply it (PTX ISA, cvt: `.e2m1x2`).
            converts: way_of(arch).converts_e2m1,
            pairs: (0..8).map(|word| Pair { word, low: 2 * word, high: 2 * word + 1 }).collect(),
            elements: (0..16)
                .map(|value| Element { value, word: value / 8, shift: 4 * (value % 8) })
                .collect(),
            places: (1..4).map(|byte| Place { byte, shift: 8 * byte }).collect(),
        }
    }
}

impl View {
    /// Threads with 16 elements each that share a scale factor.
    fn sharers(&self) -> u32 {
        if self.mx { 2 } else { 8 }
    }

    /// Distances of a maximum over these threads.
    fn sharing_distances(&self) -> &[u32] {
        if self.mx { &[1] } else { &[1, 2, 4] }
    }
}

#[derive(Template)]
#[template(path = "prepare/e4m3_blocks.ptx")]
struct E4m3BlocksTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/quantize.ptx")]
struct QuantizeTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/e4m3.ptx")]
struct E4m3Template<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/e4m3_rows.ptx")]
struct E4m3RowsTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/block.ptx")]
struct BlockTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/route.ptx")]
struct RouteTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/gather.ptx")]
struct GatherTemplate<'a> {
    t: &'a View,
}

#[derive(Template)]
#[template(path = "prepare/combine.ptx")]
struct CombineTemplate<'a> {
    t: &'a View,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chip_has_every_preparation_under_a_hash_of_its_own() {
        let mut hashes = std::collections::HashSet::new();
        for arch in Arch::ALL {
            for preparation in Preparation::ALL {
                let kernel = preparation.kernel(arch).unwrap();
                assert!(hashes.insert(kernel.hash), "{preparation} {arch}");
                assert!(kernel.ptx.contains(&format!(".target {arch}\n")), "{arch}");
                assert!(kernel.ptx.contains(&format!(".entry {preparation}(")));
                let converts = kernel.ptx.contains("cvt.rn.satfinite.e2m1x2.f32");
                let nvfp4 = matches!(preparation, Preparation::Quantize(_) | Preparation::GatherQuantize(_));
                assert_eq!(converts, nvfp4 && arch != Arch::Sm90a);
            }
        }
    }

    #[test]
    fn grids_cover_pads_and_end_where_indices_do() {
        let quantize = Preparation::Quantize(Source::F16);
        assert_eq!(quantize.ctas(1, 1), Some(2));
        assert_eq!(quantize.ctas(129, 5), Some(8));
        assert_eq!(Preparation::QuantizeE4m3(Source::Bf16).ctas(129, 5), Some(3));
        assert_eq!(Preparation::QuantizeE4m3(Source::Bf16).ctas(1 << 16, 1 << 16), None);
        assert_eq!(Preparation::GatherQuantize(Source::Bf16).ctas(129, 5), Some(5));
        assert_eq!((Preparation::Route.ctas(70, 9), Preparation::Route.ctas(0, 9)), (Some(9), Some(0)));
        let by_rows = Preparation::QuantizeE4m3Rows(Source::F16);
        assert_eq!((by_rows.ctas(9, 3), by_rows.ctas(9, 0), by_rows.ctas(0, 3)), (Some(2), Some(0), Some(0)));
        assert_eq!((by_rows.ctas(7, 300), by_rows.ctas(7, 33)), (Some(7), Some(2)));
        assert_eq!((by_rows.row_warps(4096, 48), by_rows.row_warps(4095, 48)), (1, 2));
        assert_eq!(by_rows.ctas(1 << 16, 1 << 16), None);
        assert_eq!(Preparation::GatherQuantizeE4m3Rows(Source::F16).ctas(7, 3), Some(7));
        assert_eq!(Preparation::Block.ctas(1, 1), Some(1));
        assert_eq!(Preparation::Block.ctas(129, 12), Some(3));
        assert_eq!((quantize.ctas(0, 7), quantize.ctas(7, 0)), (Some(0), Some(0)));
        assert_eq!(quantize.ctas(u32::MAX, 1), None);
        assert_eq!(quantize.ctas(1 << 31, 2), None);
        assert_eq!(quantize.ctas(u32::MAX, u32::MAX), None);
        assert_eq!(quantize.ctas(128, 1 << 24), Some(1 << 23));
    }
}
