//! Products with block scales, whatever compiler made them.

use crate::compilers::number::*;
use crate::compilers::product::Run;

/// Formats of elements.
#[derive(Clone, Copy, PartialEq)]
pub enum Element {
    E2m1,
    Eight(Type),
}

/// Formats of scale factors.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Ue8m0,
    Ue4m3,
}

/// Bytes of a matrix of `rows` x `k`, and its values without scale factors.
fn elements(r: &mut Numbers, format: Element, rows: usize, k: usize) -> (Vec<u8>, Vec<f64>) {
    match format {
        Element::Eight(ty) => r.reals(ty, rows * k, -2.0, 2.0),
        Element::E2m1 => {
            let bytes: Vec<u8> = (0..rows * k / 2).map(|_| (r.next() >> 32) as u8).collect();
            let values = bytes.iter().flat_map(|&b| [e2m1(b & 15), e2m1(b >> 4)]).collect();
            (bytes, values)
        }
    }
}

/// Scale factors in rows of `count`, as codes and values.
fn scales(r: &mut Numbers, format: Scale, n: usize) -> (Vec<u8>, Vec<f64>) {
    (0..n)
        .map(|_| match format {
            Scale::Ue8m0 => {
                let code = 124 + (r.next() >> 40) % 7;
                (code as u8, 2f64.powi(code as i32 - 127))
            }
            Scale::Ue4m3 => {
                let code = (0x28 + (r.next() >> 40) % 0x20) as u8;
                (code, E4m3.decode(&[code]))
            }
        })
        .unzip()
}

/// The 128 x 4 blocks that `tcgen05.cp` takes: 32 rows of 16 bytes, four groups of rows side by side.
fn blocks(rows: usize, count: usize, codes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; rows * count];
    for row in 0..rows {
        for k in 0..count {
            let block = row / 128 * (count / 4) + k / 4;
            out[block * 512 + row % 32 * 16 + row % 128 / 32 * 4 + k % 4] = codes[row * count + k];
        }
    }
    out
}

/// A product with block scales: formats, elements to a scale factor, and M, N, K.
pub struct Case {
    pub name: &'static str,
    pub a: Element,
    pub b: Element,
    pub scale: Scale,
    pub block: usize,
    pub size: (usize, usize, usize),
    pub blocked: bool,
    /// Bound of the error, of the sum of the products' magnitudes.
    pub step: f64,
}

impl Case {
    /// Runs the kernel with `run` on buffers `a`, `b`, `sa` and `sb`, and looks at `c`.
    pub fn check(&self, run: Run) {
        let (m, n, k) = self.size;
        let count = k / self.block;
        let mut r = Numbers(51);
        let ((ba, a), (bb, b)) = (elements(&mut r, self.a, m, k), elements(&mut r, self.b, n, k));
        let ((ca, sa), (cb, sb)) =
            (scales(&mut r, self.scale, m * count), scales(&mut r, self.scale, n * count));
        let (ca, cb) = if self.blocked { (blocks(m, count, &ca), blocks(n, count, &cb)) } else { (ca, cb) };
        let inputs = [("a", ba.as_slice()), ("b", &bb), ("sa", &ca), ("sb", &cb)];
        run(self.name, &inputs, &|out| {
            let got = F32.decode_all(&out["c"]);
            assert_eq!(got.len(), m * n);
            for (i, g) in got.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let of = |l: usize| {
                    let scale = sa[row * count + l / self.block] * sb[column * count + l / self.block];
                    a[row * k + l] * b[column * k + l] * scale
                };
                let want: f64 = (0..k).map(of).sum();
                let bound: f64 = (0..k).map(|l| of(l).abs()).sum::<f64>() * self.step;
                assert!(
                    (g - want).abs() <= bound,
                    "{}: C[{row}, {column}] is {g}, should be {want} within {bound}",
                    self.name
                );
            }
        });
    }
}

macro_rules! scaled_products {
    ($run:expr; $($name:ident: $a:expr, $b:expr, $scale:ident, $block:literal, $size:expr, $blocked:literal, $step:literal;)*) => {
        $(#[test]
        fn $name() {
            #[allow(unused_imports, reason = "some lists use one of the formats")]
            use $crate::compilers::{number::*, scaled::Element::*};
            let (name, scale) = (stringify!($name), $crate::compilers::scaled::Scale::$scale);
            let case = $crate::compilers::scaled::Case {
                name, a: $a, b: $b, scale, block: $block, size: $size, blocked: $blocked, step: $step,
            };
            case.check(|name, inputs, check| $run(name, inputs, check));
        })*
    };
}
pub(crate) use scaled_products;
