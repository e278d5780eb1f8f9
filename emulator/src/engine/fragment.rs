//! Matrix products whose operands lie in the registers of a warp: `mma.sync`, and the register
//! operands of `wgmma`.
//!
//! Layouts: PTX ISA, "Matrix Fragments for mma" of every shape. They all follow one rule: with
//! `per` elements in a 32-bit register, lane `t` holds, of register `r`, row `t / 4` and columns
//! `per * (t % 4)..` of the 8 x `4 * per` block number `r`, blocks counted along M first, then along K.
//!
//! Arithmetic: MMA-Sim (arXiv 2511.10909) for Hopper and Blackwell, as [`super::mma::sum`]; FP8 inputs
//! are products of 16 K at a time, which is how those chips compute them. PTX leaves it unspecified.

use super::descriptor::{OperandTile, Packing};
use super::format::{Format, Overflow, Rounding};
use super::mma::Arithmetic;
use super::mma::float::{FloatMode, FloatProduct};
use super::mma::fp4::Fp4Product;
use super::mma::operands::Scales;
use super::mma::path::Path;
use super::sparsity::{self, Chunk};
use crate::lanes::double;
use crate::lanes::float::passed;

mod quads;

/// Values of one register in the 32 lanes of a warp.
pub type Lanes = [u64; 32];

/// Element types of A, B and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Floating point of at most 32 bits; `half` accumulators are binary16, else binary32.
    Float {
        /// Format of A.
        a: Format,
        /// Format of B.
        b: Format,
        /// Accumulators are binary16.
        half: bool,
    },
    /// Integers of `bits` bits, accumulated in 32 bits.
    Integer {
        /// 4 or 8.
        bits: u32,
        /// A is signed.
        a_signed: bool,
        /// B is signed.
        b_signed: bool,
        /// Accumulators stop at the limits of 32 bits instead of wrapping.
        saturate: bool,
    },
    /// e2m1, two in a byte, with scale factors; binary32 accumulators.
    Packed4,
    /// Single bits, combined by XOR or AND and counted.
    Bits {
        /// XOR; else AND.
        xor: bool,
    },
    /// Binary64.
    Double,
}

impl Kind {
    /// Bits of one element of A or B.
    pub const fn bits(self) -> u32 {
        match self {
            Kind::Float { a, .. } => match a.bits() {
                4 | 6 => 8,
                bits => bits,
            },
            Kind::Integer { bits, .. } => bits,
            Kind::Packed4 => 4,
            Kind::Bits { .. } => 1,
            Kind::Double => 64,
        }
    }

    /// Elements in one register.
    const fn per(self) -> usize {
        match self {
            Kind::Double => 1,
            _ => 32 / self.bits() as usize,
        }
    }
}

/// M, N and K of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

impl Shape {
    /// Registers of A for a lane.
    pub const fn a_registers(self, kind: Kind) -> usize {
        self.m / 8 * (self.k / (4 * kind.per()))
    }

    /// Registers of B for a lane.
    pub const fn b_registers(self, kind: Kind) -> usize {
        self.n / 8 * (self.k / (4 * kind.per()))
    }

    /// Registers of C or D for a lane; `half` accumulators are binary16, two in a register.
    pub const fn d_registers(self, half: bool) -> usize {
        let elements = self.m * self.n / 32;
        if half { elements / 2 } else { elements }
    }
}

/// Row (or column of B) and K of element `e` of lane `lane`, for a matrix of `rows` rows.
const fn position(lane: usize, e: usize, rows: usize, per: usize) -> (usize, usize) {
    let (register, within) = (e / per, e % per);
    let blocks = rows / 8;
    let (block, step) = (register % blocks, register / blocks);
    (lane / 4 + 8 * block, per * (lane % 4) + within + 4 * per * step)
}

/// Row and column of accumulator `i` of a lane.
pub const fn accumulator(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2)
}

/// The codes of a fragment, row by row: `rows` times `k` of them.
pub fn unpack(registers: &[Lanes], rows: usize, k: usize, kind: Kind) -> Vec<u64> {
    let per = kind.per();
    let bits = kind.bits();
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let mut out = vec![0; rows * k];
    for (r, register) in registers.iter().enumerate() {
        for (lane, word) in register.iter().enumerate() {
            // A register's elements follow each other along K.
            let (row, at) = position(lane, r * per, rows, per);
            for (within, slot) in (0..per as u32).zip(out.iter_mut().skip(row * k + at)) {
                *slot = word >> (within * bits) & mask;
            }
        }
    }
    out
}

/// Accumulator `i` of every lane: (lane, i, its place in a row-by-row matrix).
fn places(shape: Shape) -> impl Iterator<Item = (usize, usize, usize)> {
    let count = shape.m * shape.n / 32;
    (0..32).flat_map(move |lane| (0..count).map(move |i| (lane, i))).map(move |(lane, i)| {
        let (row, column) = accumulator(lane, i);
        (lane, i, row * shape.n + column)
    })
}

/// Accumulators of a fragment as words, row by row.
fn words(registers: &[Lanes], shape: Shape, half: bool) -> Vec<u64> {
    let mut out = vec![0; shape.m * shape.n];
    for (lane, i, at) in places(shape) {
        out[at] = match half {
            true => registers[i / 2][lane] >> (16 * (i % 2)) & 0xffff,
            false => registers[i][lane],
        };
    }
    out
}

/// The inverse of [`words`].
fn registers(words: &[u64], shape: Shape, half: bool) -> Vec<Lanes> {
    let count = shape.m * shape.n / 32;
    let mut out = vec![[0; 32]; if half { count / 2 } else { count }];
    for (lane, i, at) in places(shape) {
        match half {
            true => out[i / 2][lane] |= (words[at] & 0xffff) << (16 * (i % 2)),
            false => out[i][lane] = words[at],
        }
    }
    out
}

/// Rows of at most 32 bytes of K, from element `from` on, for the tensor core's fast paths.
pub fn tile(codes: &[u64], k: usize, from: usize, count: usize, bits: u32) -> OperandTile {
    let packing = match bits {
        32 => Packing::Bits32,
        16 => Packing::Bits16,
        _ => Packing::Bits8,
    };
    let bytes = (bits / 8).max(1) as usize;
    let rows = (codes.chunks_exact(k))
        .map(|row| {
            let mut out = [0u8; 32];
            for (i, code) in row[from..from + count].iter().enumerate() {
                out[i * bytes..][..bytes].copy_from_slice(&code.to_le_bytes()[..bytes]);
            }
            out
        })
        .collect();
    OperandTile { packing, rows }
}

/// Optional operands of `mma.sync`.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// C is binary16.
    pub c_half: bool,
    /// Rounding of binary64.
    pub rounding: Rounding,
    /// Metadata of a sparse A and its selector.
    pub sparse: Option<(Lanes, u32)>,
    /// Scale factors of the rows of A and the columns of B.
    pub scales: Option<Scales>,
    /// `m8n8k4` of binary16: whether A is column-major and B row-major.
    pub quads: Option<(bool, bool)>,
    /// FP8 is widened to binary16 and multiplied in two parts, C added afterwards.
    pub widened: bool,
}

/// `mma.sync`: D = A B + C, all in fragments. The register counts are those of [`Shape`], for a sparse A
/// those of half of K.
///
/// Also returns a message if the metadata has an index without meaning in the ISA.
///
/// # Errors
/// A message for a sparsity selector that does not exist.
#[allow(clippy::type_complexity, reason = "a pair, used once")]
pub fn mma(
    shape: Shape,
    kind: Kind,
    arithmetic: Arithmetic,
    [a, b, c]: [&[Lanes]; 3],
    extras: &Extras,
) -> Result<(Vec<Lanes>, Option<String>), String> {
    let half = matches!(kind, Kind::Float { half: true, .. });
    if let Some(layouts) = extras.quads {
        return Ok((quads::mma(kind, arithmetic, [a, b, c], (extras.c_half, half), layouts), None));
    }
    let stored = if extras.sparse.is_some() { shape.k / 2 } else { shape.k };
    let ca = unpack(a, shape.m, stored, kind);
    let cb = unpack(b, shape.n, shape.k, kind);
    let mut d = words(c, shape, extras.c_half);
    convert(&mut d, extras.c_half, half);
    let Some((metadata, selector)) = &extras.sparse else {
        product(shape, kind, arithmetic, (&ca, &cb), &mut d, extras);
        return Ok((registers(&d, shape, half), None));
    };
    let chunk = Chunk::of(kind.bits()).ok_or("these elements have no sparse form")?;
    let (rows, note) = sparsity::rows(kind.bits(), shape.k, metadata, *selector)?;
    let one = Shape { m: 1, k: stored, ..shape };
    for (row, line) in d.chunks_exact_mut(shape.n).enumerate() {
        let held = chunk.held(rows[row], shape.k);
        let b: Vec<u64> =
            cb.chunks_exact(shape.k).flat_map(|column| held.iter().map(|&k| column[k])).collect();
        let scales = extras.scales.as_ref().map(|s| Scales { a: vec![s.a[row]], ..s.clone() });
        let extras = Extras { scales, ..extras.clone() };
        product(one, kind, arithmetic, (&ca[row * stored..][..stored], &b), line, &extras);
    }
    Ok((registers(&d, shape, half), note))
}

/// Accumulators of one width as those of another.
pub(crate) fn convert(d: &mut [u64], from_half: bool, to_half: bool) {
    for word in d.iter_mut().filter(|_| from_half != to_half) {
        *word = u64::from(match to_half {
            false => Format::F16.decode(*word as u32).to_bits(),
            true => Format::F16.encode(f32::from_bits(*word as u32), Rounding::NearestEven, Overflow::Ieee),
        });
    }
}

/// Adds A times B to the accumulators, all row by row: codes of A along K, codes of B's columns along K.
pub(crate) fn product(
    shape: Shape,
    kind: Kind,
    arithmetic: Arithmetic,
    (ca, cb): (&[u64], &[u64]),
    d: &mut [u64],
    extras: &Extras,
) {
    let plain = arithmetic == Arithmetic::F32;
    match kind {
        Kind::Float { a, b, half } if extras.widened && !plain => {
            widened(shape, [a, b], half, (ca, cb), d);
        }
        Kind::Float { a, b, half } => {
            let bits = kind.bits();
            let step = if bits == 8 && extras.scales.is_none() { 16 } else { shape.k }.min(shape.k);
            let mode = FloatMode { plain, half, negate: false, narrow: false };
            for from in (0..shape.k).step_by(step) {
                let ta = slots(a, tile(ca, shape.k, from, step, bits));
                let tb = slots(b, tile(cb, shape.k, from, step, bits));
                let product =
                    FloatProduct::new(Path::best(), mode, (a, &ta), (b, &tb), extras.scales.as_ref());
                lines(d, shape.n, |row, sums| product.accumulate_row(row, sums));
            }
        }
        Kind::Packed4 => {
            let pack = |codes: &[u64]| OperandTile {
                packing: Packing::Packed4,
                rows: codes
                    .chunks_exact(shape.k)
                    .map(|row| std::array::from_fn(|i| (row[2 * i] | row[2 * i + 1] << 4) as u8))
                    .collect(),
            };
            if let Some(scales) = &extras.scales {
                let product = Fp4Product::new(Path::best(), plain, false, &pack(ca), &pack(cb), scales);
                lines(d, shape.n, |row, sums| product.accumulate_row(row, sums));
            }
        }
        Kind::Integer { bits, a_signed, b_signed, saturate } => {
            let value = |code: u64, signed: bool| match signed {
                true => (code << (64 - bits)) as i64 >> (64 - bits),
                false => code as i64,
            };
            each(d, shape, ca, cb, |c, pairs| {
                let sum = pairs.fold(0i64, |s, (a, b)| s + value(a, a_signed) * value(b, b_signed));
                let sum = i64::from(c as i32) + sum;
                let sum = if saturate { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
                u64::from(sum as u32)
            });
        }
        Kind::Bits { xor } => each(d, shape, ca, cb, |c, pairs| {
            let count = pairs.map(|(a, b)| if xor { a ^ b } else { a & b }).sum::<u64>();
            u64::from((c as u32).wrapping_add(count as u32))
        }),
        Kind::Double => each(d, shape, ca, cb, |c, pairs| {
            pairs.fold(c, |s, (a, b)| {
                let bits = [a, b, s];
                let [a, b, s] = bits.map(f64::from_bits);
                match extras.rounding {
                    Rounding::NearestEven => passed(a.mul_add(b, s), [bits[1], bits[2], bits[0]]),
                    r => double::fma(a, b, s, r),
                }
            })
        }),
    }
}

/// FP8 on Hopper and on datacentre Blackwell, which have no `mma.sync` unit for it: `ptxas` widens the elements to binary16,
/// multiplies the lower halves of all registers and then the upper ones, from zero, and adds C last, rounded to nearest.
fn widened(shape: Shape, formats: [Format; 2], half: bool, (ca, cb): (&[u64], &[u64]), d: &mut [u64]) {
    let mode = FloatMode { plain: false, half, negate: false, narrow: false };
    let part = |codes: &[u64], format: Format, upper: bool| {
        let k = shape.k / 2;
        let chosen: Vec<u64> = (codes.chunks_exact(shape.k))
            .flat_map(|row| row.iter().enumerate().filter(move |(k, _)| (k % 4 >= 2) == upper))
            .map(|(_, &code)| {
                let value = format.decode(code as u32);
                u64::from(Format::F16.encode(value, Rounding::NearestEven, Overflow::Ieee))
            })
            .collect();
        tile(&chosen, k, 0, k, 16)
    };
    let mut sums = vec![0; d.len()];
    for upper in [false, true] {
        let (ta, tb) = (part(ca, formats[0], upper), part(cb, formats[1], upper));
        let product = FloatProduct::new(Path::best(), mode, (Format::F16, &ta), (Format::F16, &tb), None);
        lines(&mut sums, shape.n, |row, sums| product.accumulate_row(row, sums));
    }
    for (c, sum) in d.iter_mut().zip(sums) {
        // The sum of two binary16 in binary32, rounded again, is as if rounded once.
        let value =
            |word: u64| if half { Format::F16.decode(word as u32) } else { f32::from_bits(word as u32) };
        let total = value(*c) + value(sum);
        *c = u64::from(match half {
            true => Format::F16.encode(total, Rounding::NearestEven, Overflow::Ieee),
            false if total.is_nan() => 0x7fff_ffff,
            false => total.to_bits(),
        });
    }
}

/// Elements of less than 8 bits out of their 8-bit slots: 0b00ABCD00 for 4 bits, low bits for 6.
fn slots(format: Format, mut tile: OperandTile) -> OperandTile {
    let of = |byte: u8| match format.bits() {
        4 => byte >> 2 & 0xf,
        6 => byte & 0x3f,
        _ => byte,
    };
    tile.rows.iter_mut().flatten().for_each(|b| *b = of(*b));
    tile
}

/// Calls `f` with every row of accumulators as 32-bit words.
fn lines(d: &mut [u64], n: usize, f: impl Fn(usize, &mut [u32])) {
    for (row, line) in d.chunks_exact_mut(n).enumerate() {
        let mut sums: Vec<u32> = line.iter().map(|&w| w as u32).collect();
        f(row, &mut sums);
        line.iter_mut().zip(sums).for_each(|(w, s)| *w = u64::from(s));
    }
}

/// Replaces every accumulator by a function of itself and the pairs of codes along K.
fn each(
    d: &mut [u64],
    shape: Shape,
    a: &[u64],
    b: &[u64],
    f: impl Fn(u64, &mut dyn Iterator<Item = (u64, u64)>) -> u64,
) {
    for (line, a) in d.chunks_exact_mut(shape.n).zip(a.chunks_exact(shape.k)) {
        for (c, b) in line.iter_mut().zip(b.chunks_exact(shape.k)) {
            *c = f(*c, &mut a.iter().copied().zip(b.iter().copied()));
        }
    }
}
