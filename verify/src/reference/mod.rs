//! The reference: GEMM and gated dual GEMM in f64 on decoded values.
//!
//! Operands are decoded to f64, which is exact, and summed in f64; the gate is evaluated in f64, and the result is
//! rounded to f16 once. For NVFP4 without a tensor scale every product is a multiple of 2^-20 below 2^23, so sums are
//! exact up to K = 1024 for any values, and have a relative error around 2^-52 beyond. Other formats have that error
//! at any K. The module does not depend on a kernel's tiles, layouts or order of summation; `bounds.rs` says how far
//! a right kernel may be off.
//!
//! Operands are decoded tile by tile, so that a thread needs a few MiB beside operands and results.

mod bounds;

pub use bounds::Accumulation;

use std::ops::Range;

use half::f16;
use rayon::prelude::*;
use thiserror::Error;

use bounds::Energies;
use silumin_formats::{Matrix, f16_from_f64};

/// Rows, columns and depth of a tile. A thread holds one tile of each product and one panel of each operand in f64: 7
/// MiB for a dual GEMM. Tiles are large enough that decoding (once a tile) costs little, and small enough to occupy
/// many threads.
const TILE_M: usize = 512;
const TILE_N: usize = 256;
const TILE_K: usize = 512;

/// A K-major operand that decodes to f64.
pub trait Operand: Sync {
    /// Rows: M for A, N for B.
    fn rows(&self) -> usize;

    /// Elements a row.
    fn k(&self) -> usize;

    /// Decodes `row` from position `k_start` on into `out`, which it fills. The reference asks only for positions
    /// inside the matrix.
    fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]);
}

impl Operand for Matrix {
    fn rows(&self) -> usize {
        self.rows()
    }

    fn k(&self) -> usize {
        self.k()
    }

    fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        self.decode_row(row, k_start, out);
    }
}

/// A range of a matrix's rows, as an operand.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    matrix: &'a Matrix,
    rows: Range<usize>,
}

impl<'a> Rows<'a> {
    /// The rows `rows` of `matrix`, which must contain them.
    #[must_use]
    pub fn new(matrix: &'a Matrix, rows: Range<usize>) -> Self {
        Rows { matrix, rows }
    }
}

impl Operand for Rows<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn k(&self) -> usize {
        self.matrix.k()
    }

    fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        self.matrix.decode_row(self.rows.start + row, k_start, out);
    }
}

/// Why operands have no product, or values are no reference.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// A and a B disagree on K.
    #[error("A has K = {a} but {name} has K = {b}: both operands are K-major and share K")]
    Contraction {
        /// Which B.
        name: &'static str,
        /// K of A.
        a: usize,
        /// K of that B.
        b: usize,
    },
    /// B1 and B2 disagree on N.
    #[error("B1 has {b1} rows but B2 has {b2}: the gate combines two products of one shape")]
    Columns {
        /// Rows of B1.
        b1: usize,
        /// Rows of B2.
        b2: usize,
    },
    /// The result does not fit the address space.
    #[error("a result of {m} x {n} is larger than the address space: split it by rows")]
    TooLarge {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
    },
    /// The number of values does not fit the size.
    #[error(
        "a result of {m} x {n} has {expected} elements, but the buffer holds {got}: pass exactly {expected}"
    )]
    Length {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
        /// Elements expected by the shape.
        expected: usize,
        /// Elements in the buffer.
        got: usize,
    },
}

/// A reference result, row-major `[m, n]`: f64 values, and the same rounded once to f16.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    m: usize,
    n: usize,
    exact: Vec<f64>,
    rounded: Vec<f16>,
    bounds: Option<Vec<f64>>,
}

impl Reference {
    /// A reference with given values, row-major `[m, n]`.
    ///
    /// # Errors
    ///
    /// When `exact` is not m * n long.
    pub fn new(m: usize, n: usize, exact: Vec<f64>) -> Result<Self, ReferenceError> {
        let expected = checked_area(m, n)?;
        if exact.len() != expected {
            return Err(ReferenceError::Length { m, n, expected, got: exact.len() });
        }
        let rounded = exact.par_iter().map(|&value| f16_from_f64(value)).collect();
        Ok(Self { m, n, exact, rounded, bounds: None })
    }

    /// Adds an error bound for each element: how far a right result may be from it before it is rounded to C's
    /// format.
    ///
    /// # Errors
    ///
    /// When `bounds` is not as long as the reference.
    pub fn with_bounds(self, bounds: Vec<f64>) -> Result<Self, ReferenceError> {
        let Self { m, n, .. } = self;
        let (expected, got) = (self.exact.len(), bounds.len());
        if expected != got {
            return Err(ReferenceError::Length { m, n, expected, got });
        }
        Ok(Self { bounds: Some(bounds), ..self })
    }

    /// Stacks references of `n` columns along rows. The result has bounds where all parts have them.
    ///
    /// # Errors
    ///
    /// A part of another number of columns.
    pub fn stacked(n: usize, parts: Vec<Self>) -> Result<Self, ReferenceError> {
        let mut parts = parts.into_iter();
        let Some(mut all) = parts.next() else { return Self::new(0, n, Vec::new()) };
        for part in parts {
            if part.n != all.n {
                let (m, expected) = (part.m, part.m.saturating_mul(all.n));
                return Err(ReferenceError::Length { m, n: all.n, expected, got: part.exact.len() });
            }
            all.m += part.m;
            all.exact.extend(part.exact);
            all.rounded.extend(part.rounded);
            all.bounds = match (all.bounds, part.bounds) {
                (Some(mut bounds), Some(more)) => {
                    bounds.extend(more);
                    Some(bounds)
                }
                _ => None,
            };
        }
        Ok(all)
    }

    /// Error bound of each element before rounding, row-major, as [`dual_gemm_bounded`] computes them; `None` where
    /// there are none.
    #[must_use]
    pub fn bounds(&self) -> Option<&[f64]> {
        self.bounds.as_deref()
    }

    /// Rows.
    #[must_use]
    pub fn m(&self) -> usize {
        self.m
    }

    /// Columns.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// The f64 result, row-major.
    #[must_use]
    pub fn exact(&self) -> &[f64] {
        &self.exact
    }

    /// The result rounded once to f16, row-major; infinite where f16 overflows.
    #[must_use]
    pub fn rounded(&self) -> &[f16] {
        &self.rounded
    }
}

/// silu(x) = x * sigmoid(x). Where exp(-x) overflows it is negative zero, not NaN.
#[must_use]
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// A @ B^T in f64, row-major `[M, N]`, for A `[M, K]` and B `[N, K]`.
///
/// # Errors
///
/// When the operands disagree on K or the result does not fit.
pub fn gemm(a: &dyn Operand, b: &dyn Operand) -> Result<Vec<f64>, ReferenceError> {
    same_k(a, b, "B")?;
    let (m, n) = (a.rows(), b.rows());
    let mut result = vec![0.0; checked_area(m, n)?];
    let bands = result.par_chunks_mut((TILE_M * n).max(1)).enumerate();
    bands.for_each(|(band, out)| {
        let rows = tile(band, TILE_M, m);
        let tiles = column_tiles(n).map(|columns| {
            let [product] = products(a, [b], rows.clone(), columns);
            product
        });
        scatter(&tiles.collect::<Vec<_>>(), n, out);
    });
    Ok(result)
}

/// gate(A @ B1^T, A @ B2^T) element by element, row-major `[M, N]`, for A `[M, K]` and B1, B2 `[N, K]`.
///
/// ```
/// use silumin_formats::quantize::{TensorScale, quantize};
/// use silumin_verify::reference::{dual_gemm, silu};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 1.5 is 6 times a scale of 0.25, so that nothing rounds: each product is 32 * 2.25 = 72.
/// let operand = quantize(&[1.5f32; 3 * 32], 3, 32, TensorScale::One)?;
/// let swiglu = dual_gemm(&operand, &operand, &operand, |gate, up| silu(gate) * up)?;
/// assert_eq!(swiglu.exact(), [72.0 * 72.0; 9]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When the operands disagree on K, B1 and B2 on N, or the result does not fit.
pub fn dual_gemm(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: &dyn Operand,
    gate: impl Fn(f64, f64) -> f64 + Sync,
) -> Result<Reference, ReferenceError> {
    dual_gemm_at(a, b1, b2, |_, first, second| gate(first, second))
}

/// [`dual_gemm`] with a gate that also gets the position `[row, column]`, as gates with vectors need.
///
/// # Errors
///
/// As [`dual_gemm`].
pub fn dual_gemm_at(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: &dyn Operand,
    gate: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
) -> Result<Reference, ReferenceError> {
    gated(a, b1, Some(b2), gate, |_, _, _| 0.0, None)
}

/// [`dual_gemm_at`] with error [`bounds`](Reference::bounds) for a kernel that sums as `accumulation` says. Costs an
/// eighth more products and five evaluations of the gate per element.
///
/// # Errors
///
/// As [`dual_gemm`].
pub fn dual_gemm_bounded(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: &dyn Operand,
    gate: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
    accumulation: Accumulation,
) -> Result<Reference, ReferenceError> {
    gated(a, b1, Some(b2), gate, |_, _, _| 0.0, Some(accumulation))
}

/// gate(A @ B1^T, A @ B2^T), or gate(A @ B1^T, 0) without a B2: [`dual_gemm_at`], or [`dual_gemm_bounded`] if it is said how
/// the kernel sums. `rounding` is how far the gate's own steps in f32 may be off
/// ([`Evaluator::rounding_at`](silumin_codegen::gate::Evaluator::rounding_at)).
///
/// # Errors
///
/// As [`dual_gemm`].
pub fn gated(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: Option<&dyn Operand>,
    gate: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
    rounding: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
    accumulation: Option<Accumulation>,
) -> Result<Reference, ReferenceError> {
    let [result, bounds] = values(a, b1, b2, gate, rounding, accumulation)?;
    let reference = Reference::new(a.rows(), b1.rows(), result)?;
    if accumulation.is_some() { reference.with_bounds(bounds) } else { Ok(reference) }
}

/// Computes results and, if asked for, their error bounds.
fn values(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: Option<&dyn Operand>,
    gate: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
    rounding: impl Fn([usize; 2], f64, f64) -> f64 + Sync,
    accumulation: Option<Accumulation>,
) -> Result<[Vec<f64>; 2], ReferenceError> {
    same_k(a, b1, "B1")?;
    if let Some(b2) = b2 {
        same_k(a, b2, "B2")?;
        if b1.rows() != b2.rows() {
            return Err(ReferenceError::Columns { b1: b1.rows(), b2: b2.rows() });
        }
    }
    let (m, n) = (a.rows(), b1.rows());
    let area = checked_area(m, n)?;
    let mut result = vec![0.0; area];
    let energies =
        accumulation.map(|accumulation| (accumulation, [a, b1].map(Energies::of), b2.map(Energies::of)));
    // One element a band where no bounds are asked for, so that both have as many bands.
    let band = (TILE_M * n).max(1);
    let (mut bounds, bound_band) = match energies {
        Some(_) => (vec![0.0; area], band),
        None => (vec![0.0; area.div_ceil(band)], 1),
    };
    let bands = result.par_chunks_mut(band).zip(bounds.par_chunks_mut(bound_band)).enumerate();
    bands.for_each(|(band, (out, out_bounds))| {
        let rows = tile(band, TILE_M, m);
        let tiles = column_tiles(n).map(|columns| {
            let (left, width) = (columns.start, columns.len());
            let [mut gates, mut ups] = pair(a, b1, b2, rows.clone(), columns.clone());
            let energies = energies.as_ref().map(|(accumulation, [a, b1], b2)| {
                let b2 = b2.as_ref().map(|b2| b2 as &dyn Operand);
                (*accumulation, pair(a, b1, b2, rows.clone(), columns))
            });
            for (index, (first, second)) in gates.iter_mut().zip(&mut ups).enumerate() {
                let place = [rows.start + index / width, left + index % width];
                let sums = [*first, *second];
                *first = gate(place, *first, *second);
                if let Some((accumulation, [energy1, energy2])) = &energies {
                    let gate = |first, second| gate(place, first, second);
                    // From here on the second product's place holds the bound.
                    let lost = rounding(place, sums[0], sums[1]);
                    *second =
                        accumulation.of_gate(&gate, *first, sums, [energy1[index], energy2[index]], lost);
                }
            }
            (gates, ups)
        });
        let (gates, ups): (Vec<_>, Vec<_>) = tiles.unzip();
        scatter(&gates, n, out);
        if energies.is_some() {
            scatter(&ups, n, out_bounds);
        }
    });
    Ok([result, bounds])
}

fn same_k(a: &dyn Operand, b: &dyn Operand, name: &'static str) -> Result<(), ReferenceError> {
    if a.k() == b.k() { Ok(()) } else { Err(ReferenceError::Contraction { name, a: a.k(), b: b.k() }) }
}

fn checked_area(m: usize, n: usize) -> Result<usize, ReferenceError> {
    match m.checked_mul(n) {
        Some(area) if area <= isize::MAX as usize / size_of::<f64>() => Ok(area),
        _ => Err(ReferenceError::TooLarge { m, n }),
    }
}

/// The `index`th range of `step` positions, clipped to `end`.
fn tile(index: usize, step: usize, end: usize) -> Range<usize> {
    index * step..((index + 1) * step).min(end)
}

fn column_tiles(n: usize) -> impl IndexedParallelIterator<Item = Range<usize>> {
    (0..n.div_ceil(TILE_N)).into_par_iter().map(move |index| tile(index, TILE_N, n))
}

/// Copies the tiles of one band of rows side by side into the band, row-major with `n` columns.
fn scatter(tiles: &[Vec<f64>], n: usize, band: &mut [f64]) {
    band.par_chunks_mut(n.max(1)).enumerate().for_each(|(row, out)| {
        for (columns, values) in out.chunks_mut(TILE_N).zip(tiles) {
            let start = row * columns.len();
            columns.copy_from_slice(&values[start..start + columns.len()]);
        }
    });
}

/// A[rows] @ B[columns]^T for B1 and B2, row-major; zeros without a B2.
fn pair(
    a: &dyn Operand,
    b1: &dyn Operand,
    b2: Option<&dyn Operand>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> [Vec<f64>; 2] {
    match b2 {
        Some(b2) => products(a, [b1, b2], rows, columns),
        None => {
            let [first] = products(a, [b1], rows, columns);
            let second = vec![0.0; first.len()];
            [first, second]
        }
    }
}

/// A[rows] @ B[columns]^T for each B, row-major. Each panel of A is decoded once for all B.
fn products<const COUNT: usize>(
    a: &dyn Operand,
    bs: [&dyn Operand; COUNT],
    rows: Range<usize>,
    columns: Range<usize>,
) -> [Vec<f64>; COUNT] {
    let (m, n, k) = (rows.len(), columns.len(), a.k());
    let mut results = [(); COUNT].map(|()| vec![0.0; m * n]);
    let depth = TILE_K.min(k);
    let mut a_panel = vec![0.0; m * depth];
    let mut b_panel = vec![0.0; n * depth];
    for step in 0..k.div_ceil(TILE_K) {
        let ks = tile(step, TILE_K, k);
        decode_panel(a, rows.clone(), ks.clone(), &mut a_panel);
        for (b, result) in bs.iter().zip(&mut results) {
            decode_panel(*b, columns.clone(), ks.clone(), &mut b_panel);
            accumulate(&a_panel, &b_panel, [m, n, ks.len()], result);
        }
    }
    results
}

/// Decodes `rows` x `ks` into `panel`, row-major without gaps, from its start.
fn decode_panel(operand: &dyn Operand, rows: Range<usize>, ks: Range<usize>, panel: &mut [f64]) {
    for (row, out) in rows.zip(panel.chunks_exact_mut(ks.len().max(1))) {
        operand.decode_row(row, ks.start, out);
    }
}

/// c += a @ b^T for a `[m, k]`, b `[n, k]`, c `[m, n]`, each row-major without gaps from the start of its slice.
fn accumulate(a: &[f64], b: &[f64], [m, n, k]: [usize; 3], c: &mut [f64]) {
    assert!(a.len() >= m * k && b.len() >= n * k && c.len() >= m * n);
    let (k_stride, n_stride) = (k as isize, n as isize);
    // SAFETY: dgemm reads a[i * k + l] and b[j * k + l] and updates c[i * n + j] for i < m, j < n,
    // l < k only; the assertion keeps all of them inside the slices, c is borrowed mutably, and no
    // two (i, j) share an address.
    unsafe {
        matrixmultiply::dgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            k_stride,
            1,
            b.as_ptr(),
            1,
            k_stride,
            1.0,
            c.as_mut_ptr(),
            n_stride,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Distribution, DualGemmInputs, Shape};

    /// An operand with given values, so that no decoder takes part.
    struct Plain {
        rows: usize,
        k: usize,
        values: Vec<f64>,
    }

    impl Plain {
        fn new(rows: usize, k: usize, f: impl Fn(usize, usize) -> f64) -> Self {
            let values = (0..rows * k).map(|i| f(i / k, i % k)).collect();
            Self { rows, k, values }
        }
    }

    impl Operand for Plain {
        fn rows(&self) -> usize {
            self.rows
        }

        fn k(&self) -> usize {
            self.k
        }

        fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
            out.copy_from_slice(&self.values[row * self.k + k_start..][..out.len()]);
        }
    }

    fn dot(a: &dyn Operand, row: usize, b: &dyn Operand, column: usize) -> f64 {
        let (mut left, mut right) = (vec![0.0; a.k()], vec![0.0; a.k()]);
        a.decode_row(row, 0, &mut left);
        b.decode_row(column, 0, &mut right);
        left.iter().zip(&right).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn tiles_at_every_edge_equal_plain_dot_products() {
        // One past and one short of a tile in every dimension; integers, so that sums are exact.
        for (m, n, k) in [(1, 1, 1), (513, 257, 513), (511, 255, 511), (3, 600, 1030), (1030, 2, 7)] {
            let a = Plain::new(m, k, |i, l| ((i * 31 + l * 17) % 23) as f64 - 11.0);
            let b1 = Plain::new(n, k, |j, l| ((j * 13 + l * 7) % 19) as f64 - 9.0);
            let b2 = Plain::new(n, k, |j, l| ((j * 5 + l * 3) % 29) as f64 - 14.0);
            let single = gemm(&a, &b1).unwrap();
            let dual = dual_gemm(&a, &b1, &b2, |gate, up| 3.0 * gate - up).unwrap();
            assert_eq!((dual.m(), dual.n()), (m, n));
            for i in (0..m).step_by(m.div_ceil(40)).chain([m - 1]) {
                for j in (0..n).step_by(n.div_ceil(40)).chain([n - 1]) {
                    let (gate, up) = (dot(&a, i, &b1, j), dot(&a, i, &b2, j));
                    assert_eq!(single[i * n + j], gate, "({i}, {j}) of {m} x {n} x {k}");
                    assert_eq!(dual.exact()[i * n + j], 3.0 * gate - up);
                }
            }
        }
    }

    #[test]
    fn nvfp4_products_are_exact() {
        let shape = Shape::new(70, 36, 1024);
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let inputs = DualGemmInputs::generate(shape, distribution, 9).unwrap();
            let result = gemm(&inputs.a, &inputs.b1).unwrap();
            for (index, &value) in result.iter().enumerate() {
                let expected = dot(&inputs.a, index / 36, &inputs.b1, index % 36);
                assert_eq!(value, expected, "no order of summation rounds at K = 1024");
            }
        }
    }

    #[test]
    fn the_rounded_result_is_the_f64_result_rounded_once() {
        let shape = Shape::new(33, 17, 64);
        let inputs = DualGemmInputs::generate(shape, Distribution::Full, 3).unwrap();
        let result = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up).unwrap();
        for (&exact, &rounded) in result.exact().iter().zip(result.rounded()) {
            assert_eq!(rounded.to_bits(), f16_from_f64(exact).to_bits());
        }
    }

    #[test]
    fn silu_is_finite_and_signed_at_both_ends() {
        assert_eq!(silu(0.0), 0.0);
        assert_eq!(silu(1000.0), 1000.0);
        assert_eq!(silu(-1000.0).to_bits(), (-0.0f64).to_bits());
        assert!((silu(-8.72799) + 0.001_413_6).abs() < 1e-6);
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let operand = |rows, k| Plain::new(rows, k, |_, _| 1.0);
        let gate = |x: f64, y: f64| x * y;
        assert_eq!(
            dual_gemm(&operand(2, 3), &operand(2, 4), &operand(2, 3), gate),
            Err(ReferenceError::Contraction { name: "B1", a: 3, b: 4 })
        );
        assert_eq!(
            dual_gemm(&operand(2, 3), &operand(2, 3), &operand(2, 4), gate),
            Err(ReferenceError::Contraction { name: "B2", a: 3, b: 4 })
        );
        assert_eq!(
            dual_gemm(&operand(2, 3), &operand(2, 3), &operand(5, 3), gate),
            Err(ReferenceError::Columns { b1: 2, b2: 5 })
        );
        assert!(matches!(
            gemm(&operand(2, 3), &operand(2, 4)),
            Err(ReferenceError::Contraction { name: "B", .. })
        ));
        assert!(matches!(
            Reference::new(2, 2, vec![0.0; 5]),
            Err(ReferenceError::Length { expected: 4, got: 5, .. })
        ));
        assert!(matches!(Reference::new(usize::MAX, 2, vec![]), Err(ReferenceError::TooLarge { .. })));
    }
}
