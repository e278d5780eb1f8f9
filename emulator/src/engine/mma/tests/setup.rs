//! A whole instruction set up from the ISA's tables: operands placed element by element, D looked up
//! element by element, every element's value from the oracle.

use super::super::{Arithmetic, CtaMemory, MmaError, MmaInstruction, OperandA, Variant, execute};
use super::{Noise, oracle};
use crate::engine::format::Format;
use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
use crate::engine::tmem::Tmem;

pub const D: u32 = 0;
pub const SFA: u32 = 300;
pub const SFB: u32 = 322;
const A_TMEM: u32 = 400;
const META: u32 = 420;
/// Shared addresses of A and B.
const A_SMEM: u32 = 1024;
const B_SMEM: u32 = 96 << 10;
pub const SMEM: usize = 192 << 10;
/// Initial value of D's columns outside accumulators.
const SENTINEL: u32 = 0xdead_beef;

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub kind: MmaKind,
    pub vec: Option<ScaleVec>,
    pub group: u32,
    pub m: u32,
    pub n: u32,
    pub a: Format,
    pub b: Format,
    pub a_code: u32,
    pub b_code: u32,
    /// D is f16.
    pub half: bool,
    /// Bytes of swizzle span, 0 for none; 1 for 128 bytes with 32-byte atoms.
    pub swizzle: u32,
    pub a_mn: bool,
    pub b_mn: bool,
    pub a_in_tmem: bool,
    pub negate_a: bool,
    pub accumulate: bool,
    pub id: (u32, u32),
    pub ue4m3: bool,
    pub f_upper: bool,
    /// `.sp`, with this selector.
    pub sparse: Option<u32>,
    /// `.ws`.
    pub stationary: bool,
}

pub const NVFP4: Case = Case {
    kind: MmaKind::Mxf4nvf4,
    vec: Some(ScaleVec::X4),
    group: 1,
    m: 128,
    n: 64,
    a: Format::E2m1,
    b: Format::E2m1,
    a_code: 1,
    b_code: 1,
    half: false,
    swizzle: 128,
    a_mn: false,
    b_mn: false,
    a_in_tmem: false,
    negate_a: false,
    accumulate: true,
    id: (0, 0),
    ue4m3: true,
    f_upper: false,
    sparse: None,
    stationary: false,
};

pub const BF16: Case =
    Case { kind: MmaKind::F16, vec: None, a: Format::Bf16, b: Format::Bf16, a_code: 1, b_code: 1, ..NVFP4 };

pub const F8: Case =
    Case { kind: MmaKind::F8f6f4, a: Format::E4m3, b: Format::E5m2, a_code: 0, b_code: 1, ..BF16 };

impl Case {
    fn k(self) -> u32 {
        match self.kind {
            MmaKind::Tf32 => 8,
            MmaKind::F16 => 16,
            MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => 64,
            _ => 32,
        }
    }

    /// Elements of a row of B.
    pub fn b_k(self) -> u32 {
        self.k() * if self.sparse.is_some() { 2 } else { 1 }
    }

    pub fn idesc(self) -> u32 {
        let mut bits = self.sparse.map_or(0, |s| 4 | s)
            | self.a_code << 7
            | self.b_code << 10
            | u32::from(self.negate_a) << 13
            | u32::from(self.a_mn) << 15
            | u32::from(self.b_mn) << 16
            | (self.n / 8) << 17
            | (self.m / 16) << 24;
        if self.vec.is_some() {
            bits |= self.id.1 << 4 | u32::from(!self.ue4m3) << 23 | self.id.0 << 29;
        } else {
            bits |= u32::from(!self.half) << 4;
        }
        bits
    }

    fn format(self, operand_a: bool) -> Format {
        if operand_a { self.a } else { self.b }
    }

    /// LBO and SBO: wider than need be, so that no two roles coincide.
    fn strides(self, mn_major: bool, rows: u32) -> (u32, u32) {
        let span = if self.swizzle == 1 { 128 } else { self.swizzle };
        match (mn_major, self.swizzle) {
            // K-major: LBO between the two 16-byte columns, SBO between groups of 8 rows.
            (false, 0) => (rows * 16 + 256, 128 + 16),
            (false, _) => (16, 8 * span),
            // MN-major: groups of 16 bytes of MN, groups of 8 k.
            (true, 0) => (rows * 64 + 512, 128 + 32),
            // Rows of `span` bytes of MN apart by LBO, groups of k by SBO.
            (true, _) => (8 * 1024, 1024),
        }
    }

    pub fn descriptor(self, address: u32, mn_major: bool, rows: u32) -> u64 {
        let (lbo, sbo) = self.strides(mn_major, rows);
        let swizzle = match self.swizzle {
            0 => 0,
            1 => 1,
            128 => 2,
            64 => 4,
            _ => 6u64,
        };
        u64::from(address / 16)
            | u64::from(lbo / 16) << 16
            | u64::from(sbo / 16) << 32
            | 1 << 46
            | swizzle << 61
    }

    /// Bit position in shared memory of element (mn, k), as the ISA's table has it.
    fn bit(self, start: u32, operand_a: bool, rows: u32, mn: u32, k: u32) -> usize {
        let mn_major = if operand_a { self.a_mn } else { self.b_mn };
        let (lbo, sbo) = self.strides(mn_major, rows);
        let format = self.format(operand_a);
        // Width of a slot, and where in a 16-byte unit the element's data are.
        let packed = self.k() == 64;
        let slot = if packed { 4 } else { format.bits().max(8) };
        let per_unit = 128 / slot;
        let span = if self.swizzle == 1 { 128 } else { self.swizzle };
        let (unit_address, index) = match (mn_major, self.swizzle) {
            (false, 0) => (mn % 8 * 16 + mn / 8 * sbo + k / per_unit * lbo, k % per_unit),
            (false, _) => (mn % 8 * span + mn / 8 * sbo + k / per_unit * 16, k % per_unit),
            (true, 0) => (mn / per_unit * sbo + k % 8 * 16 + k / 8 * lbo, mn % per_unit),
            (true, _) => {
                let wide = span * 8 / slot;
                let along = mn % wide / per_unit * 16 + mn / wide * lbo;
                let group = if self.swizzle == 1 { 4 } else { 8 };
                (along + k % group * span + k / group * sbo, mn % per_unit)
            }
        };
        let address = start + unit_address;
        // The swizzle as a permutation of chunks in a row of 128 bytes.
        let (row, chunk) = (address / 128, address / 16 % 8);
        let chunk = match self.swizzle {
            0 => chunk,
            1 => ((chunk / 2) ^ (row % 4)) * 2 + chunk % 2,
            32 => chunk ^ (row % 2),
            64 => chunk ^ (row % 4),
            _ => chunk ^ (row % 8),
        };
        let address = row * 128 + chunk * 16;
        // Data are packed at the front of a unit: 8 bytes of fp4, 12 of fp6.
        (address * 8 + index * format.bits().min(slot)) as usize
    }

    /// CTA, lane and column of D's element.
    pub fn place(self, m: u32, n: u32) -> (usize, u32, u32) {
        let upper = if self.f_upper { 16 } else { 0 };
        let half = if n < self.n / 2 { 0 } else { 64 };
        match (self.group, self.m) {
            (1, 64) if self.stationary => (0, m + half, n % (self.n / 2)),
            (1, 32) => (0, m + 32 * (n / (self.n / 4)), n % (self.n / 4)),
            (2, 128) if self.sparse.is_some() => {
                let r = m % 64;
                ((m / 64) as usize, r / 16 * 32 + r % 16 + upper, n)
            }
            (1, 128) => (0, m, n),
            (1, _) => (0, m / 16 * 32 + m % 16 + upper, n),
            (_, 256) => ((m / 128) as usize, m % 128, n),
            _ if n < self.n / 2 => ((m / 64) as usize, m % 64, n),
            _ => ((m / 64) as usize, m % 64 + 64, n - self.n / 2),
        }
    }
}

/// The memories of the CTAs and what the operands mean.
pub struct Setup {
    pub case: Case,
    pub tmem: Vec<Tmem>,
    pub smem: Vec<Vec<u8>>,
    pub a: Vec<Vec<u32>>,
    pub b: Vec<Vec<u32>>,
    pub sa: Vec<Vec<u8>>,
    pub sb: Vec<Vec<u8>>,
    pub d: Vec<Vec<u32>>,
    /// For every row of A, which elements of K it holds.
    pub held: Vec<Vec<u32>>,
}

/// Four bits of metadata and the places in a chunk that they stand for.
const INDICES: [(u32, [u32; 2]); 7] = [
    (0b0100, [0, 1]),
    (0b1000, [0, 2]),
    (0b1100, [0, 3]),
    (0b1001, [1, 2]),
    (0b1101, [1, 3]),
    (0b0110, [2, 1]),
    (0b1110, [2, 3]),
];

fn codes(k: u32, format: Format, noise: &mut Noise) -> Vec<u32> {
    (0..k)
        .map(|_| {
            let code = noise.next() as u32;
            match format.bits() {
                // Tame exponents, so that a sum has room; the upper half of a word is the number.
                32 => 0x3f80_0000 ^ code & 0x83ff_e000,
                16 => 0x3f80 ^ code & 0x83ff,
                8 => code & 0xbf,
                bits => code & ((1 << bits) - 1),
            }
        })
        .collect()
}

fn put(memory: &mut [u8], bit: usize, width: u32, code: u32) {
    for i in 0..width as usize {
        let (byte, shift) = ((bit + i) / 8, (bit + i) % 8);
        memory[byte] = memory[byte] & !(1 << shift) | ((code >> i & 1) as u8) << shift;
    }
}

impl Setup {
    pub fn new(case: Case, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let ctas = case.group as usize;
        let a: Vec<_> = (0..case.m).map(|_| codes(case.k(), case.a, &mut noise)).collect();
        let b: Vec<_> = (0..case.n).map(|_| codes(case.b_k(), case.b, &mut noise)).collect();
        let count = case.vec.map_or(0, ScaleVec::per_instruction);
        let mut factors = |rows: u32| -> Vec<Vec<u8>> {
            let mut one = || {
                if case.ue4m3 { noise.next() as u8 & 0x7b } else { 120 + noise.below(9) as u8 }
            };
            (0..rows).map(|_| (0..count).map(|_| one()).collect()).collect()
        };
        let (sa, sb) = (factors(case.m), factors(case.n));
        let number = |noise: &mut Noise| {
            let value = noise.below(2000) as f32 * 0.01 - 10.0;
            if case.half { 0x3c00 ^ noise.next() as u32 & 0x87ff } else { value.to_bits() }
        };
        let d = (0..case.m).map(|_| (0..case.n).map(|_| number(&mut noise)).collect()).collect();
        let mut smem = vec![vec![0u8; SMEM]; ctas];
        for bytes in &mut smem {
            // Whatever the padding holds must not matter.
            bytes.iter_mut().for_each(|byte| *byte = noise.next() as u8);
        }
        let tmem = vec![Tmem::new(); ctas];
        let held = vec![(0..case.k()).collect(); case.m as usize];
        let mut setup = Self { case, tmem, smem, a, b, sa, sb, d, held };
        setup.fill();
        if case.sparse.is_some() {
            setup.fill_metadata(&mut noise);
        }
        setup
    }

    fn fill(&mut self) {
        let case = self.case;
        let (rows, columns) = (case.m / case.group, case.n / case.group);
        for m in 0..case.m {
            for k in 0..case.k() {
                let bit = case.bit(A_SMEM, true, rows, m % rows, k);
                let smem = &mut self.smem[(m / rows) as usize];
                put(smem, bit, case.a.bits(), self.a[m as usize][k as usize]);
            }
        }
        for n in 0..case.n {
            for k in 0..case.b_k() {
                let bit = case.bit(B_SMEM, false, columns, n % columns, k);
                let smem = &mut self.smem[(n / columns) as usize];
                put(smem, bit, case.b.bits(), self.b[n as usize][k as usize]);
            }
        }
        for tmem in &mut self.tmem {
            assert_eq!(tmem.alloc(512), Ok(Some(0)));
            for lane in 0..128 {
                // Every column but A's and the scale factors'.
                tmem.row_mut(lane, 0, 300).unwrap().fill(SENTINEL);
            }
        }
        for m in 0..case.m {
            for n in 0..case.n {
                let (cta, lane, column) = case.place(m, n);
                let word = self.d[m as usize][n as usize];
                self.tmem[cta].write(lane << 16 | (D + column), word).unwrap();
            }
        }
        self.fill_scales();
        if case.a_in_tmem {
            self.fill_a();
        }
    }

    /// Row r: lane r % 32 of every quarter, column r / 32, bytes from the selector on.
    pub fn fill_scales(&mut self) {
        let case = self.case;
        let rows = case.m / case.group;
        let split = case.group == 2 && case.m == 128;
        for cta in 0..case.group {
            for quarter in 0..4 {
                let first = if split && quarter >= 2 { case.n / 2 } else { 0 };
                let columns = if split { case.n / 2 } else { case.n };
                let mut word = |base: u32, row: u32, id: u32, bytes: &[u8]| {
                    let mut le = [0xa5; 4];
                    le[id as usize..id as usize + bytes.len()].copy_from_slice(bytes);
                    let address = (32 * quarter + row % 32) << 16 | (base + row / 32);
                    self.tmem[cta as usize].write(address, u32::from_le_bytes(le)).unwrap();
                };
                for row in 0..rows {
                    word(SFA, row, case.id.0, &self.sa[(cta * rows + row) as usize]);
                }
                for column in 0..columns {
                    word(SFB, column, case.id.1, &self.sb[(first + column) as usize]);
                }
            }
        }
    }

    /// Fills the metadata of sparse A with random chunks for every row, at the places that CUTLASS's layouts give them.
    fn fill_metadata(&mut self, noise: &mut Noise) {
        let case = self.case;
        let rows = case.m / case.group;
        for m in 0..case.m {
            let r = m % rows;
            let mut held = Vec::new();
            let mut bits = 0u64;
            let chunks = if case.k() <= 16 { 8 } else { 16 };
            for chunk in 0..chunks {
                let (index, [i, j]) = match case.kind {
                    MmaKind::Tf32 => INDICES[if noise.below(2) == 0 { 0 } else { 6 }],
                    _ => INDICES[noise.below(7) as usize],
                };
                bits |= u64::from(index) << (4 * chunk);
                let c = chunk as u32;
                match case.kind {
                    // The bits name halves of elements: 0 and 1, or 2 and 3.
                    MmaKind::Tf32 => held.push(2 * c + i / 2),
                    MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => {
                        held.extend([i, j].iter().flat_map(|p| [8 * c + 2 * p, 8 * c + 2 * p + 1]));
                    }
                    _ => held.extend([4 * c + i, 4 * c + j]),
                }
            }
            self.held[m as usize] = held;
            let spread = case.m / case.group == 64 && !case.stationary;
            let copies = if case.stationary { 128 / case.m } else { 1 };
            let upper = if case.f_upper { 16 } else { 0 };
            let first = if spread { r / 16 * 32 + upper } else { r / 16 * 16 };
            let selector = case.sparse.unwrap_or(0);
            let tmem = &mut self.tmem[(m / rows) as usize];
            for copy in 0..copies {
                let first = first + copy * (128 / copies);
                if chunks == 8 {
                    for k in 0..2 {
                        let lane = first + r % 8 + 8 * k;
                        let at = lane << 16 | (META + selector);
                        let half = (bits >> (16 * k) & 0xffff) as u32;
                        let old = tmem.read(at).unwrap_or(0);
                        let shift = r / 8 % 2 * 16;
                        tmem.write(at, old & !(0xffff << shift) | half << shift).unwrap();
                    }
                } else {
                    let lane = first + r % 16;
                    tmem.write(lane << 16 | META, bits as u32).unwrap();
                    tmem.write(lane << 16 | (META + 1), (bits >> 32) as u32).unwrap();
                }
            }
        }
    }

    /// K along 8 columns, little-endian; 4-bit elements of mixed kinds in bits 2..5 of a byte.
    fn fill_a(&mut self) {
        let case = self.case;
        let rows = case.m / case.group;
        for m in 0..case.m {
            let mut bytes = [0u8; 32];
            for (k, &code) in self.a[m as usize].iter().enumerate() {
                let slot = if case.k() == 64 { 4 } else { case.a.bits().max(8) };
                let low = if slot == 8 && case.a == Format::E2m1 { 2 } else { 0 };
                put(&mut bytes, k * slot as usize + low, case.a.bits(), code);
            }
            let r = m % rows;
            let lanes = match (case.group, case.m) {
                (1, m) if case.stationary => (0..128 / m).map(|copy| r + copy * m).collect(),
                (2, 128) if case.sparse.is_some() => {
                    vec![r / 16 * 32 + r % 16 + if case.f_upper { 16 } else { 0 }]
                }
                (1, 64) => vec![r / 16 * 32 + r % 16 + if case.f_upper { 16 } else { 0 }],
                (2, 128) => vec![r, r + 64],
                _ => vec![r],
            };
            for lane in lanes {
                for column in 0..8 {
                    let four = [0, 1, 2, 3].map(|i| bytes[4 * column + i]);
                    let address = lane << 16 | (A_TMEM + column as u32);
                    let tmem = &mut self.tmem[(m / rows) as usize];
                    tmem.write(address, u32::from_le_bytes(four)).unwrap();
                }
            }
        }
    }

    pub fn instruction(&self) -> MmaInstruction {
        let case = self.case;
        let (rows, columns) = (case.m / case.group, case.n / case.group);
        let upper = if case.f_upper { 16 << 16 } else { 0 };
        MmaInstruction {
            kind: case.kind,
            scale_vec: case.vec,
            cta_group: if case.group == 1 { CtaGroup::One } else { CtaGroup::Two },
            idesc: case.idesc(),
            d: D | upper,
            a: if case.a_in_tmem {
                OperandA::Tmem(A_TMEM | upper)
            } else {
                OperandA::Smem(case.descriptor(A_SMEM, case.a_mn, rows))
            },
            b: case.descriptor(B_SMEM, case.b_mn, columns),
            // A byte selector in the top bits, which does not count.
            scale_a: SFA | 0x4000_0000,
            scale_b: SFB | 0x8000_0000,
            enable_input_d: case.accumulate,
            scale_input_d: 0,
            disabled_lanes: [0; 8],
            variant: Variant {
                metadata: case.sparse.map(|_| META | upper),
                stationary: case.stationary,
                ..Variant::default()
            },
        }
    }

    pub fn execute(&mut self, instruction: &MmaInstruction) -> Result<(), MmaError<String>> {
        let mut readers: Vec<_> = self
            .smem
            .iter()
            .map(|smem| {
                move |address: u32, bytes: &mut [u8]| {
                    let at = address as usize;
                    let from = smem.get(at..at + bytes.len()).ok_or(format!("{address:#x}"))?;
                    bytes.copy_from_slice(from);
                    Ok(())
                }
            })
            .collect();
        let mut ctas: Vec<_> =
            self.tmem.iter_mut().zip(&mut readers).map(|(tmem, smem)| CtaMemory { tmem, smem }).collect();
        execute(instruction, &mut ctas, Arithmetic::Hardware)
    }

    pub fn expected(&self, m: u32, n: u32, old: u32) -> u32 {
        let case = self.case;
        let (a, b) = (&self.a[m as usize], &self.b[n as usize]);
        let b = &self.held[m as usize].iter().map(|&k| b[k as usize]).collect::<Vec<u32>>();
        let flip = if case.negate_a { 1 << (case.a.bits() - 1) } else { 0 };
        let a: Vec<u32> = a.iter().map(|code| code ^ flip).collect();
        let old = if case.accumulate { old } else { 0 };
        if case.k() == 64 {
            let format = if case.ue4m3 { Format::Ue4m3 } else { Format::Ue8m0 };
            let (sa, sb) = (&self.sa[m as usize], &self.sb[n as usize]);
            return oracle::fp4(&a, b, format, sa, sb, f32::from_bits(old));
        }
        let scale = case.vec.map(|_| (self.sa[m as usize][0], self.sb[n as usize][0]));
        let c = if case.half { Format::F16.decode(old) } else { f32::from_bits(old) };
        oracle::float((case.a, &a), (case.b, b), scale, c.into(), case.half)
    }

    pub fn word(&self, m: u32, n: u32) -> u32 {
        let (cta, lane, column) = self.case.place(m, n);
        self.tmem[cta].read(lane << 16 | (D + column)).unwrap()
    }
}
