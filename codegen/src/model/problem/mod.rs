//! What is computed: `C = gate(A @ B1, A @ B2)`, or `C = gate(A @ B)`, for one shape and one set of formats.
//!
//! The weights of a GEMM, B, are called B1 wherever both operations are spoken of.
//!
//! Layouts, all of them the ones checkpoints and the public NVFP4 benchmark use:
//!
//! | tensor | shape | layout |
//! |---|---|---|
//! | A | M x K | row-major, K contiguous; two e2m1 codes a byte, even K in the low nibble; wider elements little-endian |
//! | B1, B2 | N x K | row-major, K contiguous (a weight `[out_features, in_features]`), packed as A |
//! | scale factors of A, B1, B2 | rows x K/16 or K/32 | a byte each, 128 x 4 blocks of 512 bytes, K blocks fastest; rows padded to 128, columns to 4, pads finite (zero is best) |
//! | f32 scale factors of A | M x K/128 | row-major; of B1, B2: N/128 (rounded up) x K/128, row-major |
//! | C | M x N | row-major; e2m1 packed as A |
//! | scale factors of C | M x N/16 or N/32 | as those of A: the next GEMM's, with N for its K; the kernel writes the pads too, finite |
//! | D1, D2 | M x N | row-major, f32, bf16 or f16: the pre-activations, if they are kept ([`PreactivationFormat`]) |
//!
//! * `mod.rs`: [`Operation`], [`Shape`] and [`Problem`].
//! * `groups.rs`: [`Groups`], several dual GEMMs in one launch, and where their tensors lie.
//! * `operand.rs`: the formats of A and B, as data.
//! * `output.rs`: the formats of C.
//! * `preactivations.rs`: the formats of the pre-activations D1 and D2.
//! * `legal.rs`: [`Formats`], which of them go together, and the MMA for them.

mod groups;
mod legal;
mod operand;
mod output;
mod preactivations;

pub(crate) use groups::GROUP_LIMIT;
pub use groups::Groups;
pub use legal::{Formats, FormatsError, MmaKind};
pub use operand::{ByteScale, ElementKind, FormatSpec, OperandFormat, ScaleFormat, ScaleSpec};
pub use output::{OutputElement, OutputFormat, OutputSpec};
pub use preactivations::PreactivationFormat;

use crate::error::ConfigError;
use crate::suggest::did_you_mean;
use std::fmt;

/// Rows and columns of the product: A is `m x k`, B1 and B2 are `n x k`, C is `m x n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Rows of A and of C (tokens).
    pub m: u32,
    /// Rows of B1 and B2 and columns of C (features of the gate and of the up projection, each).
    pub n: u32,
    /// The summed dimension (features of the input).
    pub k: u32,
    /// Whether it is one dual GEMM or several.
    pub groups: Groups,
}

impl Shape {
    /// A shape from its three sizes in the order every tool uses.
    pub const fn new(m: u32, n: u32, k: u32) -> Self {
        Shape { m, n, k, groups: Groups::One }
    }

    /// Operations of one product, a multiply-add counted as two: `2 m n k` for each matrix of a batch. The M of groups is
    /// their capacity.
    fn product_operations(self) -> f64 {
        2.0 * self.rows() as f64 * f64::from(self.n) * f64::from(self.k)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}{}", self.m, self.n, self.k, self.groups)
    }
}

/// How many products are computed, each with weights of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Two products of one A: `C = gate(A @ B1, A @ B2)`. What [`dual_gemm!`](crate::dsl) declares.
    #[default]
    DualGemm,
    /// One product: `C = gate(A @ B)`. What `gemm!` declares.
    Gemm,
}

impl Operation {
    /// Both.
    pub const ALL: [Operation; 2] = [Operation::DualGemm, Operation::Gemm];

    /// Products: 2 or 1.
    pub const fn products(self) -> u32 {
        match self {
            Operation::DualGemm => 2,
            Operation::Gemm => 1,
        }
    }

    /// The macro that declares it, without the `!`.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::DualGemm => "dual_gemm",
            Operation::Gemm => "gemm",
        }
    }
}

/// The text names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {kind}{}; it is one of: {known}", did_you_mean(given, known.split(", ")))]
pub struct UnknownFormat {
    /// What was written.
    pub given: String,
    kind: &'static str,
    known: String,
}

/// One dual GEMM or GEMM, all but its gate: the gate is an expression and travels beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Sizes.
    pub shape: Shape,
    /// Formats.
    pub formats: Formats,
    /// How many products there are.
    pub operation: Operation,
}

/// A dual GEMM without its operation: kernels' hashes are over this text.
impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { shape, formats, operation } = self;
        let mut text = f.debug_struct("Problem");
        text.field("shape", shape).field("formats", formats);
        match operation {
            Operation::DualGemm => text.finish(),
            Operation::Gemm => text.field("operation", operation).finish(),
        }
    }
}

impl Problem {
    /// Two products and a gate.
    pub const fn dual(shape: Shape, formats: Formats) -> Self {
        Problem { shape, formats, operation: Operation::DualGemm }
    }

    /// One product.
    pub const fn gemm(shape: Shape, formats: Formats) -> Self {
        Problem { shape, formats, operation: Operation::Gemm }
    }

    /// A dual GEMM with NVFP4 in, f16 out: the problem of the public benchmark.
    pub fn nvfp4(shape: Shape) -> Self {
        Problem::dual(shape, Formats::default())
    }

    /// Operations of all products, a multiply-add counted as two: `4 m n k` for a dual GEMM, `2 m n k` for a GEMM, for
    /// each matrix of a batch. The M of groups is their capacity.
    pub fn operations(&self) -> f64 {
        f64::from(self.operation.products()) * self.shape.product_operations()
    }

    /// Scale factors of a row of A, B1 or B2 along K, before padding: `k / 16` for NVFP4, `k / 32`
    /// for the MX formats and `k / 128` for f32 ones, rounded up; 0 without scale factors. Formats that go together agree on it.
    pub fn scale_columns(&self) -> u32 {
        self.formats.a.scale_columns(self.shape.k).max(self.formats.b.scale_columns(self.shape.k))
    }

    /// Bytes of C's elements.
    pub fn output_bytes(&self) -> u64 {
        let Shape { n, .. } = self.shape;
        (u128::from(self.shape.rows()) * u128::from(n) * u128::from(self.formats.c.bits()) / 8) as u64
    }

    /// Bytes of C's blocked scale factors, M x N/16 or M x N/32 padded to 128 x 4 in each matrix or group; 0
    /// without.
    pub fn output_scale_bytes(&self) -> u64 {
        let block = |scales: ScaleSpec<ByteScale>| scales.blocked_bytes(128, self.shape.n);
        self.shape.row_blocks(128).saturating_mul(self.formats.c.scales().map_or(0, block))
    }

    /// Bytes of A's elements.
    pub fn a_bytes(&self) -> u64 {
        let Shape { m, k, .. } = self.shape;
        self.formats.a.bytes(m, k).saturating_mul(self.shape.rows() / u64::from(m.max(1)))
    }

    /// Bytes of A's scale factors, blocked ones with each matrix or group padded to whole blocks; 0 without.
    pub fn a_scale_bytes(&self) -> u64 {
        if self.formats.scales_sums() {
            let columns: u64 = self.scale_columns().into();
            return self.shape.rows().saturating_mul(columns).saturating_mul(4);
        }
        self.shape.row_blocks(128).saturating_mul(self.formats.a.scale_bytes(128, self.shape.k))
    }

    /// Bytes of B1's elements, or B2's, over all matrices.
    pub fn b_bytes(&self) -> u64 {
        let Shape { n, k, groups, .. } = self.shape;
        self.formats.b.bytes(n, k).saturating_mul(groups.count().into())
    }

    /// Bytes of B1's scale factors, or B2's, each matrix padded to whole blocks; 0 without.
    pub fn b_scale_bytes(&self) -> u64 {
        let Shape { n, k, groups, .. } = self.shape;
        self.formats.b.scale_bytes(n, k).saturating_mul(groups.count().into())
    }

    /// Bytes of a matrix that the gate reads, over all matrices of a batch.
    pub fn matrix_bytes(&self) -> u64 {
        (u128::from(self.shape.rows()) * u128::from(self.shape.n) * u128::from(self.formats.matrix().bits())
            / 8)
        .min(u64::MAX.into()) as u64
    }

    /// Bytes of D1, and of D2: 0 where they are not kept.
    pub fn preactivation_bytes(&self) -> u64 {
        let bytes = self.formats.preactivations.map_or(0, |format| format.as_output().bytes());
        let elements = u128::from(self.shape.rows()) * u128::from(self.shape.n);
        (elements * u128::from(bytes)).min(u64::MAX.into()) as u64
    }

    /// Bytes that must cross DRAM at least once: both operands, C, kept pre-activations, and all scale
    /// factors. Groups are taken to fill A, with none of them empty.
    pub fn compulsory_bytes(&self) -> u64 {
        let b = self.b_bytes().saturating_add(self.b_scale_bytes());
        let products =
            b.saturating_add(self.preactivation_bytes()).saturating_mul(self.operation.products().into());
        [self.a_bytes(), self.a_scale_bytes(), products, self.output_bytes(), self.output_scale_bytes()]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What the formats have against the shape, each other, and the kernels there are.
    pub(crate) fn check_formats(&self, errors: &mut Vec<ConfigError>) {
        let Shape { n, k, .. } = self.shape;
        let formats = self.formats;
        if let Err(error) = formats.check() {
            errors.push(error.into());
            return;
        }
        let multiple = formats.k_multiple();
        if !k.is_multiple_of(multiple) {
            errors.push(ConfigError::KMultiple { k, multiple, formats });
        }
        if formats.scales_sums() && self.shape.groups != Groups::One && !n.is_multiple_of(128) {
            errors.push(ConfigError::RowBlocks { n });
        }
        let multiple = formats.c.n_multiple();
        if !n.is_multiple_of(multiple) {
            errors.push(ConfigError::NMultiple { n, multiple, format: formats.c });
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Operation::DualGemm => write!(f, "{}, {}", self.shape, self.formats),
            Operation::Gemm => write!(f, "{}, {}, one product", self.shape, self.formats),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_list_all() {
        for format in OperandFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for format in OutputFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let text = "int4".parse::<OperandFormat>().unwrap_err().to_string();
        assert!(OperandFormat::ALL.iter().all(|format| text.contains(format.spec().name)), "{text}");
        let text = "mxfp4".parse::<OutputFormat>().unwrap_err().to_string();
        assert!(OutputFormat::ALL.iter().all(|format| text.contains(format.name())), "{text}");
    }

    #[test]
    fn one_instruction_takes_256_bits_of_a_row() {
        // No MMA takes repacked weights: they are decoded first.
        for format in OperandFormat::ALL.into_iter().filter(|format| format.repacks().is_none()) {
            let spec = format.spec();
            let a = if format == OperandFormat::E4m3Block128 { OperandFormat::E4m3Vector128 } else { format };
            let b = if format == OperandFormat::E4m3Vector128 { OperandFormat::E4m3Block128 } else { format };
            let kind = Formats::new(a, b, OutputFormat::F32).check().unwrap();
            assert_eq!(spec.mma_k, kind.mma_k(), "{format}");
            assert_eq!(spec.mma_k * spec.element_bits, 256);
            let taken = spec.scales.filter(|scales| scales.format.in_mma());
            assert_eq!(taken.map(|scales| scales.block), kind.scale_vector(), "{format}");
            assert!(!kind.expands(spec.element));
            // Rows of a multiple of 16 bytes, whole blocks of scale factors.
            assert!((spec.k_multiple * spec.element_bits).is_multiple_of(128), "{format}");
            assert!(spec.scales.is_none_or(|scales| spec.k_multiple.is_multiple_of(scales.block)));
        }
        assert_eq!(MmaKind::ALL.map(MmaKind::mma_k), [64, 64, 32, 32, 16, 16]);
        assert_eq!(MmaKind::ALL.map(MmaKind::scales_per_mma), [4, 2, 1, 0, 0, 1]);
    }

    /// The legal pairs, spelled out.
    #[test]
    fn formats_go_together_as_the_instruction_set_has_it() {
        use OperandFormat::*;
        let mx8 =
            [(Mxfp8, Mxfp8), (Mxfp8, Mxfp8E5m2), (Mxfp8, Mxfp4), (Mxfp8E5m2, Mxfp8E5m2), (Mxfp8E5m2, Mxfp4)];
        let plain = [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E5m2)];
        let mut legal = 0;
        for a in OperandFormat::ALL {
            for b in OperandFormat::ALL {
                let is = |list: &[(OperandFormat, OperandFormat)]| {
                    list.contains(&(a, b)) || list.contains(&(b, a))
                };
                let expected = match (a, b) {
                    (Nvfp4, Nvfp4) => Some(MmaKind::Mxf4Nvf4),
                    (Mxfp4, Mxfp4) => Some(MmaKind::Mxf4),
                    (Bf16, Bf16) | (F16, F16) => Some(MmaKind::F16),
                    (Bf16 | F16, Nvfp4) | (Bf16, Mxfp4 | Nvfp4Repacked | Mxfp4Repacked) => {
                        Some(MmaKind::Decoded)
                    }
                    _ if is(&mx8) => Some(MmaKind::Mxf8f6f4),
                    _ if is(&plain) => Some(MmaKind::F8f6f4),
                    (E4m3Vector128, E4m3Block128) => Some(MmaKind::F8f6f4),
                    _ => None,
                };
                let formats = Formats::new(a, b, OutputFormat::F16);
                assert_eq!(formats.check().ok(), expected, "{formats}");
                legal += usize::from(expected.is_some());
                let weights_only = expected == Some(MmaKind::Decoded);
                let expanded = !weights_only && (a == Mxfp4) != (b == Mxfp4);
                if expected.is_some() {
                    let blocks = formats.scales_sums();
                    assert_eq!(formats.k_multiple() == 128, expanded || blocks, "{formats}");
                    assert_eq!(a.scale_columns(4096) != b.scale_columns(4096), weights_only, "{formats}");
                }
            }
        }
        assert_eq!(legal, 22);
        let text =
            Formats::new(E4m3Block128, E4m3Block128, OutputFormat::F16).check().unwrap_err().to_string();
        assert!(text.contains("activations in e4m3_1x128 go with"), "{text}");
        let text = Formats::new(F16, Mxfp4, OutputFormat::F16).check().unwrap_err().to_string();
        assert!(text.contains("bf16 holds all of it; f16 goes with: nvfp4, f16"), "{text}");
        let error = Formats::new(Nvfp4, Mxfp4, OutputFormat::F16).check().unwrap_err();
        assert_eq!(error.partners, [Nvfp4]);
        let error = Formats::new(Mxfp8, E4m3, OutputFormat::F16).check().unwrap_err();
        assert!(error.to_string().ends_with("mxfp8 goes with: mxfp4, mxfp8, mxfp8_e5m2"), "{error}");
    }

    #[test]
    fn bytes_follow_the_formats() {
        use OperandFormat::*;
        let shape = Shape::new(130, 200, 416);
        let bytes = |a, b, c| Problem::dual(shape, Formats::new(a, b, c)).compulsory_bytes();
        let (m, n, k) = (130, 200, 416);
        // Two blocks of 128 rows each; 26 scale factors of 16 make 7 groups of four, 13 of 32 make 4.
        let nvfp4 = (m + 2 * n) * k / 2 + 3 * 2 * 7 * 512;
        assert_eq!(bytes(Nvfp4, Nvfp4, OutputFormat::F16), nvfp4 + m * n * 2);
        assert_eq!(bytes(Mxfp8, Mxfp4, OutputFormat::F32), m * k + n * k + 3 * 2 * 4 * 512 + m * n * 4);
        assert_eq!(bytes(Bf16, Bf16, OutputFormat::E4m3), (m + 2 * n) * k * 2 + m * n);
        // N / 16 = 12.5 scale factors a row of C, in 4 groups; N / 32 = 6.25 in 2.
        assert_eq!(bytes(Nvfp4, Nvfp4, OutputFormat::Nvfp4), nvfp4 + m * n / 2 + 2 * 4 * 512);
        assert_eq!(bytes(Nvfp4, Nvfp4, OutputFormat::Mxfp8), nvfp4 + m * n + 2 * 2 * 512);
        let blocks = Formats::new(E4m3Vector128, E4m3Block128, OutputFormat::Bf16);
        let problem = Problem::dual(Shape::new(130, 200, 512), blocks);
        assert_eq!((problem.a_scale_bytes(), problem.b_scale_bytes()), (4 * 130 * 4, 4 * 2 * 4));
        let problem = Problem::dual(Shape::new(130, 256, 512).batch(3), blocks);
        assert_eq!((problem.a_scale_bytes(), problem.b_scale_bytes()), (3 * 4 * 130 * 4, 3 * 4 * 2 * 4));
        let problem = Problem::dual(Shape::new(130, 256, 512).grouped(3), blocks);
        assert_eq!((problem.a_scale_bytes(), problem.b_scale_bytes()), (4 * 130 * 4, 3 * 4 * 2 * 4));
        let wide = Problem::nvfp4(Shape::new(u32::MAX, u32::MAX, 32));
        assert_eq!(wide.output_bytes(), (u128::from(u32::MAX).pow(2) * 2) as u64);
    }

    #[test]
    fn pairs_without_an_mma_and_shapes_that_do_not_fit_are_refused_by_name() {
        let errors = |a, b, c, n, k| {
            let mut errors = Vec::new();
            Problem::dual(Shape::new(8, n, k), Formats::new(a, b, c)).check_formats(&mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        use OperandFormat::*;
        assert_eq!(errors(Nvfp4, Nvfp4, OutputFormat::F16, 8, 32), "");
        assert_eq!(errors(Nvfp4, Nvfp4, OutputFormat::Bf16, 8, 32), "");
        assert!(errors(Nvfp4, Bf16, OutputFormat::F16, 8, 32).contains("no MMA multiplies nvfp4 by bf16"));
        let text = errors(Mxfp8, Mxfp4, OutputFormat::F16, 8, 96);
        assert!(text.contains("K = 96 is not a multiple of 128"), "{text}");
        let text = errors(Nvfp4, Nvfp4, OutputFormat::Mxfp8, 40, 64);
        assert!(text.contains("N = 40 is not a multiple of 32"), "{text}");
    }
}
