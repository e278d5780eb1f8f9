//! Seeded operands for a gated dual GEMM.
//!
//! - [`Distribution::Benchmark`]: the distribution of the public NVFP4 dual-GEMM benchmark, and similar
//!   ones for the other formats;
//! - [`Distribution::Full`]: all codes of both formats, planned in the private module `full` with the
//!   ladders of codes in `ladder`.
//!
//! Every row of every tensor has its own random stream, so that the bytes depend on shape, distribution
//! and seed only, not on threads. In `Benchmark` a row does not depend on the number of rows either.
//! The generator is ChaCha8. Bytes and floats are made from its words by formulas in this module, so that no
//! release of another library changes them.

mod full;
mod ladder;
mod rows;

use std::fmt;

use half::f16;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rows::{Parts, below, benchmark_row, fill_rows, normal, stream, unit};
pub use silumin_codegen::problem::Shape;
use silumin_codegen::problem::{
    Formats, FormatsError, OperandFormat, Operation, OutputFormat, PreactivationFormat, Problem, ScaleFormat,
};
use thiserror::Error;

use silumin_formats::groups::{GroupError, GroupSizes};
use silumin_formats::layout::{LayoutError, blocked_len};
use silumin_formats::{FormatError, Matrix, checked_elements, e4m3, element, f16_from_f64, repack};

/// Distribution that operands are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// The distribution of the public benchmark. NVFP4: codes are bytes uniform in 0..=254 with bits 2 and 6 cleared,
    /// which gives the values 0, 0.5, 1 and 1.5 of both signs; scale factors are uniform in [0, 1), rounded to e4m3;
    /// C holds standard normal numbers before the kernel runs. The benchmark itself draws with PyTorch's generator,
    /// so its numbers differ.
    ///
    /// Other formats have elements and scale factors of similar size. e2m1 is drawn as above; ue8m0 scale factors are
    /// uniform in [0, 1), rounded toward zero, with elements from a normal distribution of deviation 3/2; elements
    /// without scale factors have deviation 1/2. A C in another format than f16 is filled with values that no right
    /// result has.
    Benchmark,
    /// All values that the formats can hold. NVFP4: all 16 e2m1 codes, equally likely, and e4m3 scale factors over
    /// the whole finite range, 0 to 448 with subnormals, drawn anew for every block of every row. MX formats: all
    /// finite elements, and scale factors from 2^-100 to 2^100. Formats without scale factors: elements over the
    /// whole finite range with subnormals.
    ///
    /// Uniformly drawn scale factors would overflow f16 everywhere, so scale factors (or elements, without scale
    /// factors) are balanced along K. Where rows of A draw large ones in a block, rows of B draw ones as much
    /// smaller, and the other way round; so every block adds the same variance to every sum. Sums have a standard
    /// deviation of about 24 at any K, as those of `Benchmark` have at K = 7168. With this, f32 accumulation keeps
    /// the benchmark's tolerance, and |C| stays in the range of f16.
    ///
    /// One row of A is aligned with up to three rows of B1 and B2, so that C holds one +inf, one -inf and one result
    /// of a gate far below zero (N >= 3). This works with any seed from K = 512 on and with nearly any from K = 256
    /// on; for two unlike formats, whose aligned sums are as large, an f16 C overflows from about K = 2048 on. In
    /// NVFP4 both A and B draw from the whole range of scale factors from K = 32 on; whether a matrix contains each
    /// of the 127 codes depends on its size (a 256 x 512 matrix does). Before the kernel runs, an f16 C holds -62880,
    /// close to which only the rarest results lie; other formats hold values that no right result has.
    Full,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Benchmark => "benchmark",
            Self::Full => "full",
        })
    }
}

/// Why operands cannot be drawn.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum InputsError {
    /// A dimension is zero.
    #[error("the problem {0} is empty: M, N and K have to be at least 1")]
    Empty(Shape),
    /// An operand's matrix cannot have its format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The operands' formats cannot be combined.
    #[error(transparent)]
    Formats(#[from] FormatsError),
    /// The group sizes do not fit the shape.
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// C does not fit the address space.
    #[error("C of the problem {0} is larger than the address space: split it by rows")]
    TooLarge(Shape),
}

/// Operands of one dual GEMM, with the seed and distribution they come from.
#[derive(Debug, Clone, PartialEq)]
pub struct DualGemmInputs {
    /// `[M, K]`; of a batch `[L * M, K]`.
    pub a: Matrix,
    /// `[N, K]`, weights of the gate projection; matrices of a batch or of groups are stacked along N.
    pub b1: Matrix,
    /// `[N, K]`, weights of the up projection, stacked likewise; `[0, K]` for a GEMM.
    pub b2: Matrix,
    shape: Shape,
    operation: Operation,
    sizes: GroupSizes,
    output: OutputFormat,
    preactivations: Option<PreactivationFormat>,
    distribution: Distribution,
    seed: u64,
}

/// Sizes and formats of the operands.
#[derive(Debug, Clone, Copy)]
struct Operands {
    m: usize,
    n: usize,
    k: usize,
    a: OperandFormat,
    b: OperandFormat,
}

/// The tensors, numbered as random streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tensor {
    A,
    B1,
    B2,
    C,
    Plan,
}

impl DualGemmInputs {
    /// Draws NVFP4 operands for a kernel with f16 C. The same arguments give the same bytes.
    ///
    /// ```
    /// use silumin_verify::inputs::{Distribution, DualGemmInputs, Shape};
    /// # fn main() -> Result<(), silumin_verify::inputs::InputsError> {
    /// let shape = Shape::new(5, 7, 64);
    /// let inputs = DualGemmInputs::generate(shape, Distribution::Full, 1111)?;
    /// assert_eq!((inputs.a.rows(), inputs.b1.rows(), inputs.b2.k()), (5, 7, 64));
    /// assert_eq!(inputs.initial_output().len(), 35);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a dimension is zero, K is not a multiple of 16 or a matrix does not fit.
    pub fn generate(shape: Shape, distribution: Distribution, seed: u64) -> Result<Self, InputsError> {
        Self::generate_for(shape, Formats::default(), distribution, seed)
    }

    /// Draws operands of any legal formats. The same arguments give the same bytes, whatever C's format is.
    ///
    /// # Errors
    ///
    /// When the formats do not go together, a dimension is zero, K is not a whole number of scale
    /// blocks, or a matrix does not fit. Groups of rows have sizes as [`GroupSizes::draw`] draws them.
    pub fn generate_for(
        shape: Shape,
        formats: Formats,
        distribution: Distribution,
        seed: u64,
    ) -> Result<Self, InputsError> {
        Self::generate_sized(shape, GroupSizes::draw(shape, seed), formats, distribution, seed)
    }

    /// Draws operands as [`generate_for`](Self::generate_for) does, with the given group sizes; the operands' bytes
    /// do not depend on the sizes.
    ///
    /// # Errors
    ///
    /// As [`generate_for`](Self::generate_for), and sizes that are not the shape's.
    pub fn generate_grouped(
        shape: Shape,
        group_sizes: &[u32],
        formats: Formats,
        distribution: Distribution,
        seed: u64,
    ) -> Result<Self, InputsError> {
        let group_sizes = GroupSizes::new(shape, group_sizes)?;
        Self::generate_sized(shape, group_sizes, formats, distribution, seed)
    }

    fn generate_sized(
        shape: Shape,
        group_sizes: GroupSizes,
        formats: Formats,
        distribution: Distribution,
        seed: u64,
    ) -> Result<Self, InputsError> {
        formats.check()?;
        let [m, n, k] = sizes(shape);
        if m == 0 || n == 0 || k == 0 {
            return Err(InputsError::Empty(shape));
        }
        let Formats { a, b: wanted, c: output, preactivations } = formats;
        // A repacked format gets the values that the usual format gets.
        let b = wanted.repacks().unwrap_or(wanted);
        checked_elements(a, m, k)?;
        checked_elements(b, n, k)?;
        if m.checked_mul(n).is_none_or(|area| area > isize::MAX as usize / 8) {
            return Err(InputsError::TooLarge(shape));
        }
        let operands = Operands { m, n, k, a, b };
        let parts = match distribution {
            Distribution::Benchmark => {
                [(Tensor::A, m, a), (Tensor::B1, n, b), (Tensor::B2, n, b)].map(|(tensor, rows, format)| {
                    fill_rows(format, rows, k, |row, codes, scales| {
                        benchmark_row(format, &mut stream(seed, tensor, row), codes, scales);
                    })
                })
            }
            Distribution::Full => full::generate(&operands, seed),
        };
        let [left, right1, right2] = parts;
        let matrix = |format: OperandFormat, rows, (mut codes, scales): Parts| {
            if format.repacks().is_some() {
                repack::repack(&mut codes);
            }
            Matrix::new(format, rows, k, codes, scales, 1.0)
        };
        Ok(Self {
            a: matrix(a, m, left)?,
            b1: matrix(wanted, n, right1)?,
            b2: matrix(wanted, n, right2)?,
            shape,
            operation: Operation::DualGemm,
            sizes: group_sizes,
            output,
            preactivations,
            distribution,
            seed,
        })
    }

    /// Draws operands for a problem, with the given sizes of groups of rows, or drawn ones. Those of a GEMM are A and B1 of
    /// the dual GEMM with the same sizes and formats.
    ///
    /// # Errors
    ///
    /// As [`generate_for`](Self::generate_for), and sizes that are not the shape's.
    pub fn generate_problem(
        problem: &Problem,
        group_sizes: Option<&[u32]>,
        distribution: Distribution,
        seed: u64,
    ) -> Result<Self, InputsError> {
        let Problem { shape, formats, operation } = *problem;
        let inputs = match group_sizes.filter(|_| shape.groups.by_rows()) {
            Some(sizes) => Self::generate_grouped(shape, sizes, formats, distribution, seed),
            None => Self::generate_for(shape, formats, distribution, seed),
        };
        inputs?.of_operation(operation)
    }

    /// The same operands for a kernel of so many products: a GEMM has no B2.
    ///
    /// # Errors
    ///
    /// None for operands that were drawn.
    pub fn of_operation(self, operation: Operation) -> Result<Self, InputsError> {
        let b2 = match operation {
            Operation::DualGemm => self.b2,
            Operation::Gemm => Matrix::new(self.b1.format(), 0, self.b1.k(), Vec::new(), Vec::new(), 1.0)?,
        };
        Ok(Self { b2, operation, ..self })
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Rows of each matrix of a batch, or of each group.
    #[must_use]
    pub fn group_sizes(&self) -> &GroupSizes {
        &self.sizes
    }

    /// Scale factors of A as a kernel reads them, blocked ones with each matrix or group padded to whole blocks. For
    /// groups, NaN bytes follow, up to the size that the least favourable group sizes would need. Empty for a format
    /// without scale factors.
    ///
    /// # Errors
    ///
    /// When they do not fit the address space.
    pub fn blocked_scales_of_a(&self) -> Result<Vec<u8>, LayoutError> {
        let mut scales = Vec::new();
        for segment in self.sizes.segments() {
            scales.extend(self.a.blocked_scales_of(segment.rows)?);
        }
        if let Some(spec) = self.a.format().spec().scales {
            let bytes = usize::try_from(self.problem().a_scale_bytes()).unwrap_or(usize::MAX);
            let nan = match spec.format {
                ScaleFormat::Byte(format) => element::nan_scale_code(format),
                // Four of them are NaN in f32.
                ScaleFormat::F32 => 0xFF,
            };
            scales.resize(bytes.max(scales.len()), nan);
        }
        Ok(scales)
    }

    /// Scale factors of B1 or B2 as a kernel reads them, blocked ones with each matrix padded to whole blocks. Empty
    /// for a format without scale factors.
    ///
    /// # Errors
    ///
    /// When they do not fit the address space.
    pub fn blocked_scales_of_b(&self, b: &Matrix) -> Result<Vec<u8>, LayoutError> {
        let n = self.shape.n as usize;
        let mut scales = Vec::new();
        for matrix in 0..self.shape.groups.count() as usize {
            scales.extend(b.blocked_scales_of(matrix * n..(matrix + 1) * n)?);
        }
        Ok(scales)
    }

    /// The seed that the operands were drawn from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The formats.
    #[must_use]
    pub fn formats(&self) -> Formats {
        Formats {
            preactivations: self.preactivations,
            ..Formats::new(self.a.format(), self.b1.format(), self.output)
        }
    }

    /// Shape and formats.
    #[must_use]
    pub fn problem(&self) -> Problem {
        Problem { shape: self.shape, formats: self.formats(), operation: self.operation }
    }

    /// Contents of an f16 C before the kernel runs, row-major `[M, N]`: values that no right result has there, so
    /// that an element that is never stored shows as a mismatch. See [`Distribution`].
    #[must_use]
    pub fn initial_output(&self) -> Vec<f16> {
        let (m, n) = (self.shape.rows() as usize, self.shape.n as usize);
        let mut c = vec![f16::ZERO; m * n];
        c.par_chunks_mut(n).enumerate().for_each(|(row, values)| match self.distribution {
            Distribution::Benchmark => {
                let mut rng = stream(self.seed, Tensor::C, row);
                values.fill_with(|| f16_from_f64(normal(&mut rng)));
            }
            Distribution::Full => values.fill(f16::from_bits(full::POISON)),
        });
        c
    }

    /// Bytes of C before the kernel runs. f16: [`initial_output`](Self::initial_output); bf16 and f32: the most
    /// negative number; e4m3 and mxfp8: NaN; nvfp4: the largest magnitude with alternating signs.
    #[must_use]
    pub fn initial_output_bytes(&self) -> Vec<u8> {
        let pattern: [u8; 4] = match self.output {
            OutputFormat::Bf16 => [0x7F, 0xFF, 0x7F, 0xFF],
            OutputFormat::F32 => f32::MIN.to_le_bytes(),
            OutputFormat::E4m3 | OutputFormat::Mxfp8 => [e4m3::NAN; 4],
            OutputFormat::Nvfp4 => [0x7F; 4],
            _ => return self.initial_output().iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        let bytes = self.problem().output_bytes() as usize;
        pattern.into_iter().cycle().take(bytes).collect()
    }

    /// Bytes of D1, and likewise of D2, before the kernel runs: the most negative number. `None` where the kernel
    /// does not keep them.
    #[must_use]
    pub fn initial_preactivation_bytes(&self) -> Option<Vec<u8>> {
        let pattern: [u8; 4] = match self.preactivations? {
            PreactivationFormat::F32 => f32::MIN.to_le_bytes(),
            PreactivationFormat::Bf16 => [0x7F, 0xFF, 0x7F, 0xFF],
            PreactivationFormat::F16 => [0xFF, 0xFB, 0xFF, 0xFB],
        };
        let bytes = self.problem().preactivation_bytes() as usize;
        Some(pattern.into_iter().cycle().take(bytes).collect())
    }

    /// Bytes of C's scale factors before the kernel runs: NaN, in the blocked layout with padding. `None` for a C
    /// without scale factors.
    ///
    /// # Errors
    ///
    /// When they do not fit the address space.
    pub fn initial_output_scales(&self) -> Result<Option<Vec<u8>>, LayoutError> {
        let Some(scales) = self.output.scales() else { return Ok(None) };
        // Checked, though the length of groups is known without.
        blocked_len(self.shape.rows() as usize, scales.columns(self.shape.n) as usize)?;
        let bytes = self.problem().output_scale_bytes() as usize;
        Ok(Some(vec![element::nan_scale_code(scales.format); bytes]))
    }
}

/// Rows of A, rows of B1 and B2, and K, as `usize`.
fn sizes(shape: Shape) -> [usize; 3] {
    let weights = u64::from(shape.n) * u64::from(shape.groups.count());
    [shape.rows(), weights, shape.k.into()].map(|size| size as usize)
}

/// All pairs of operand formats that can be combined.
#[cfg(test)]
pub(crate) fn legal_pairs() -> Vec<(OperandFormat, OperandFormat)> {
    let all = OperandFormat::ALL;
    let pairs = all.into_iter().flat_map(|a| all.into_iter().map(move |b| (a, b)));
    pairs.filter(|&(a, b)| Formats::new(a, b, OutputFormat::F16).check().is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_formats::fp4x2;

    const SHAPE: Shape = Shape::new(96, 128, 1024);

    fn benchmark() -> DualGemmInputs {
        DualGemmInputs::generate(SHAPE, Distribution::Benchmark, 1111).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let draw = |seed| DualGemmInputs::generate(SHAPE, distribution, seed).unwrap();
            let first = draw(7);
            assert_eq!(first, draw(7));
            assert_eq!(first.initial_output(), draw(7).initial_output());
            let other = draw(8);
            assert_ne!(first.a, other.a);
            assert_ne!(first.b1, other.b1);
            assert_ne!(first.b1, first.b2);
            assert_ne!(first.a.codes()[..512], first.b1.codes()[..512]);
        }
    }

    #[test]
    fn bytes_are_pinned() {
        // A change here changes every recorded result that names a seed.
        let inputs = benchmark();
        assert_eq!(inputs.a.codes()[..8], [24, 147, 8, 144, 162, 152, 147, 162]);
        assert_eq!(inputs.a.scales()[..8], [54, 44, 12, 46, 33, 40, 49, 46]);
        let inputs = DualGemmInputs::generate(SHAPE, Distribution::Full, 1111).unwrap();
        assert_eq!(inputs.b2.codes()[..8], [127, 61, 88, 16, 227, 12, 78, 52]);
        assert_eq!(inputs.b2.scales()[..8], [76, 8, 1, 3, 22, 24, 123, 67]);
    }

    #[test]
    fn benchmark_codes_are_the_eight_small_values_in_equal_parts() {
        let inputs = benchmark();
        let mut counts = [0usize; 16];
        for &byte in inputs.b1.codes() {
            let (even, odd) = fp4x2::unpack(byte);
            counts[usize::from(even)] += 1;
            counts[usize::from(odd)] += 1;
        }
        let total: usize = counts.iter().sum();
        for (code, &count) in counts.iter().enumerate() {
            let expected = if code & 4 == 0 { total / 8 } else { 0 };
            assert!(count.abs_diff(expected) < total / 100, "code {code}: {count}");
        }
    }

    #[test]
    fn benchmark_scales_are_uniform_numbers_rounded_to_e4m3() {
        let inputs = benchmark();
        let scales: Vec<f64> = inputs.b1.scales().iter().map(|&s| f64::from(e4m3::decode(s))).collect();
        let count = scales.len() as f64;
        assert!(scales.iter().all(|s| (0.0..=1.0).contains(s)));
        let mean = scales.iter().sum::<f64>() / count;
        let square = scales.iter().map(|s| s * s).sum::<f64>() / count;
        // Uniform in [0, 1): mean 1/2, mean square 1/3, and 1/32 of it rounds to 1.
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((square - 1.0 / 3.0).abs() < 0.02, "{square}");
        let ones = scales.iter().filter(|&&s| s == 1.0).count() as f64 / count;
        assert!((ones - 1.0 / 32.0).abs() < 0.01, "{ones}");
        assert!(scales.iter().any(|&s| s > 0.0 && s < 1.0 / 64.0), "subnormals");
    }

    #[test]
    fn the_benchmark_poison_is_standard_normal() {
        let values: Vec<f64> = benchmark().initial_output().iter().map(|v| v.to_f64()).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / count;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let beyond = values.iter().filter(|v| v.abs() > 2.0).count() as f64 / count;
        assert!((beyond - 0.0455).abs() < 0.01, "{beyond}");
    }

    #[test]
    fn shapes_without_operands_are_refused() {
        let generate =
            |m, n, k| DualGemmInputs::generate(Shape::new(m, n, k), Distribution::Full, 0).map(|_| ());
        assert!(matches!(generate(0, 1, 16), Err(InputsError::Empty(_))));
        assert!(matches!(generate(1, 0, 16), Err(InputsError::Empty(_))));
        assert!(matches!(generate(1, 1, 0), Err(InputsError::Empty(_))));
        assert_eq!(
            generate(1, 1, 40),
            Err(FormatError::KNotBlocked { k: 40, block: 16, format: OperandFormat::Nvfp4 }.into())
        );
        let wide = u32::MAX;
        assert!(matches!(generate(wide, wide, 16), Err(InputsError::TooLarge(_))));
        assert_eq!(generate(1, 1, 16), Ok(()));
    }

    #[test]
    fn every_legal_pair_is_drawn_as_its_format_asks() {
        for (a, b) in legal_pairs() {
            for c in OutputFormat::ALL {
                let kept = [
                    None,
                    Some(PreactivationFormat::F32),
                    Some(PreactivationFormat::Bf16),
                    Some(PreactivationFormat::F16),
                ];
                let formats = Formats { preactivations: kept[c as usize % 4], ..Formats::new(a, b, c) };
                let shape = Shape::new(40, 96, 384);
                for distribution in [Distribution::Benchmark, Distribution::Full] {
                    let draw =
                        |seed| DualGemmInputs::generate_for(shape, formats, distribution, seed).unwrap();
                    let inputs = draw(5);
                    let problem = inputs.problem();
                    assert_eq!(problem, Problem::dual(shape, formats));
                    assert_eq!(inputs, draw(5));
                    assert_ne!(inputs.a, draw(6).a);
                    assert_ne!(inputs.b1, inputs.b2);
                    assert_eq!(inputs.a.codes().len() as u64, a.bytes(40, 384));
                    assert_eq!(inputs.b2.codes().len() as u64, b.bytes(96, 384));
                    let blocked = inputs.b1.blocked_scales().unwrap();
                    assert_eq!(blocked.len() as u64, b.scale_bytes(96, 384));
                    assert_eq!(inputs.initial_output_bytes().len() as u64, problem.output_bytes());
                    let kept = inputs.initial_preactivation_bytes().map(|bytes| bytes.len() as u64);
                    assert_eq!(kept, formats.preactivations.map(|_| problem.preactivation_bytes()));
                    let scales = inputs.initial_output_scales().unwrap().unwrap_or_default();
                    assert_eq!(scales.len() as u64, problem.output_scale_bytes());
                }
            }
        }
        let formats = Formats::new(OperandFormat::Bf16, OperandFormat::F16, OutputFormat::F16);
        let error = DualGemmInputs::generate_for(SHAPE, formats, Distribution::Full, 0).unwrap_err();
        assert!(
            error.to_string().contains("bf16 goes with: nvfp4, mxfp4, bf16, nvfp4_repacked, mxfp4_repacked"),
            "{error}"
        );
    }

    #[test]
    fn the_benchmark_in_other_formats_has_sums_of_the_same_size() {
        let size = |a, b| {
            let formats = Formats::new(a, b, OutputFormat::F16);
            let shape = Shape::new(128, 128, 2048);
            let inputs = DualGemmInputs::generate_for(shape, formats, Distribution::Benchmark, 3).unwrap();
            let sums = crate::reference::gemm(&inputs.a, &inputs.b1).unwrap();
            (sums.iter().map(|sum| sum * sum).sum::<f64>() / sums.len() as f64).sqrt()
        };
        for (a, b) in legal_pairs() {
            let expected = size(OperandFormat::Nvfp4, OperandFormat::Nvfp4);
            let share = size(a, b) / expected;
            assert!(share > 0.3 && share < 1.3, "{a} x {b}: {share}");
        }
    }
}
