//! Products of matrices, whatever compiler made them.

use crate::compilers::harness::Results;
use crate::compilers::number::*;

/// How A and B lie in memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Layout {
    /// A is M x K, B is K x N.
    Plain,
    /// A is M x K, B is N x K.
    AlongK,
    /// A is K x M, B is K x N.
    AcrossK,
}
pub use Layout::*;

/// Runs a kernel by name on the contents of its buffers, and hands on the results.
pub type Run = fn(&str, &[(&str, &[u8])], &dyn Fn(&Results));

/// A product: sizes, types, and how far results may be off: `step` of the sum of the products'
/// magnitudes, besides the rounding of the output.
pub struct Product {
    pub name: &'static str,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub input: Type,
    pub output: Type,
    pub layout: Layout,
    pub step: f64,
}

/// Sums of products of f32 accumulators that are cut at 25 bits.
pub const F32_SUM: f64 = 1e-6;

impl Product {
    /// Runs the kernel with `run` on buffers `a` and `b`, and looks at `c`.
    pub fn check(&self, run: Run) {
        let &Product { m, n, k, input, output, .. } = self;
        let mut r = Numbers(31 + (m * n + k) as u64);
        let limit = if input == S8 { 127.0 } else { 1.0 };
        let ((ba, a), (bb, b)) = (r.reals(input, m * k, -limit, limit), r.reals(input, k * n, -limit, limit));
        let (mut want, mut slack) = (Vec::new(), Vec::new());
        for i in 0..m {
            for j in 0..n {
                let at = |l: usize| match self.layout {
                    Plain => (i * k + l, l * n + j),
                    AlongK => (i * k + l, j * k + l),
                    AcrossK => (l * m + i, l * n + j),
                };
                let of = |l: usize| a[at(l).0] * b[at(l).1];
                want.push((0..k).map(of).sum::<f64>());
                slack.push((0..k).map(|l| of(l).abs()).sum::<f64>());
            }
        }
        let unit = match output {
            F16 => 2f64.powi(-11),
            Bf16 => 2f64.powi(-8),
            F32 => 2f64.powi(-24),
            _ => 0.0,
        };
        run(self.name, &[("a", &ba), ("b", &bb)], &|out| {
            let got = output.decode_all(&out["c"]);
            assert_eq!(got.len(), want.len());
            for (i, g) in got.iter().enumerate() {
                let bound = self.step * slack[i] + unit * want[i].abs();
                let (row, column) = (i / n, i % n);
                assert!(
                    (g - want[i]).abs() <= bound,
                    "{}: C[{row}, {column}] is {g}, should be {} within {bound}",
                    self.name,
                    want[i]
                );
            }
        });
    }
}

macro_rules! products {
    ($run:expr; $($name:ident: $m:literal $n:literal $k:literal, $input:ident -> $output:ident, $layout:ident, $step:expr;)*) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            let (input, output) = ($input, $output);
            let layout = $crate::compilers::product::$layout;
            $crate::compilers::product::Product { name, m: $m, n: $n, k: $k, input, output, layout, step: $step }
                .check(|name, inputs, check| $run(name, inputs, check));
        })*
    };
}
pub(crate) use products;
