//! Multiply-accumulates a second of one core, for every kind of `tcgen05.mma` at 128 x 256.
//!
//! `cargo bench -p silumin-emulator --bench mma`; criterion's `elem/s` are multiply-accumulates.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use silumin_emulator::engine::descriptor::{OperandTile, Packing};
use silumin_emulator::engine::format::Format;
use silumin_emulator::engine::idesc::{CtaGroup, InstructionDescriptor, MmaKind, ScaleVec};
use silumin_emulator::engine::mma::operands::Scales;
use silumin_emulator::engine::mma::path::Path;
use silumin_emulator::engine::mma::product::Product;
use silumin_emulator::engine::mma::{Arithmetic, CtaMemory, MmaInstruction, OperandA, execute};
use silumin_emulator::engine::tmem::Tmem;
use std::convert::Infallible;
use std::hint::black_box;

const M: u32 = 128;
const N: u32 = 256;

/// Name, kind, scale vector size, instruction descriptor.
const KINDS: [(&str, MmaKind, Option<ScaleVec>, u32); 8] = [
    ("mxf4nvf4.4X", MmaKind::Mxf4nvf4, Some(ScaleVec::X4), 0x0840_0480),
    ("mxf4nvf4.2X", MmaKind::Mxf4nvf4, Some(ScaleVec::X2), 0x08c0_0480),
    ("mxf4", MmaKind::Mxf4, Some(ScaleVec::X2), 0x08c0_0480),
    ("mxf8f6f4.e4m3", MmaKind::Mxf8f6f4, Some(ScaleVec::X1), 0x08c0_0000),
    ("f8f6f4.e4m3", MmaKind::F8f6f4, None, 0x0840_0010),
    ("f16.bf16", MmaKind::F16, None, 0x0840_0490),
    ("tf32", MmaKind::Tf32, None, 0x0840_0910),
    ("i8.s8", MmaKind::I8, None, 0x0840_04a0),
];

/// Bytes without pattern, from a fixed seed.
fn noise(seed: u32) -> impl FnMut() -> u8 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }
}

/// Elements of ordinary size: the top exponent bits of every type are kept clear.
fn tile(packing: Packing, rows: u32, seed: u32) -> OperandTile {
    let mut byte = noise(seed);
    let mut rows: Vec<[u8; 32]> = (0..rows).map(|_| std::array::from_fn(|_| byte())).collect();
    let width = match packing {
        Packing::Bits32 => 4,
        Packing::Bits16 => 2,
        _ => 1,
    };
    if packing != Packing::Packed4 {
        for row in &mut rows {
            row.iter_mut().skip(width - 1).step_by(width).for_each(|top| *top &= 0xbf);
        }
    }
    OperandTile { packing, rows }
}

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows");
    for (name, kind, vec, bits) in KINDS {
        let idesc = match InstructionDescriptor::decode(bits, kind, vec, CtaGroup::One) {
            Ok(idesc) => idesc,
            Err(error) => panic!("{name}: {error}"),
        };
        let a = tile(idesc.packing(idesc.a), M, 1);
        let b = tile(idesc.packing(idesc.b), N, 2);
        let mut byte = noise(3);
        // Scale factors around one: 0x38 in ue4m3, 0x7f in ue8m0.
        let ordinary = match idesc.scale {
            Some(factors) if factors.format == Format::Ue8m0 => 0x70,
            _ => 0x30,
        };
        let mut words = |count: u32| -> Vec<u32> {
            (0..count).map(|_| u32::from_le_bytes(std::array::from_fn(|_| byte() & 0xf | ordinary))).collect()
        };
        let scales = idesc.scale.map(|factors| Scales { factors, a: words(M), b: words(N) });
        group.throughput(Throughput::Elements(u64::from(M * N * kind.k())));
        for path in Path::available() {
            for arithmetic in [Arithmetic::Hardware, Arithmetic::F32] {
                let id = BenchmarkId::new(name, format!("{path:?}.{arithmetic:?}"));
                group.bench_function(id, |bench| {
                    let mut d = vec![vec![0u32; N as usize]; M as usize];
                    let product = Product::new(&idesc, arithmetic, path, &a, &b, scales.as_ref());
                    bench.iter(|| {
                        for (row, d) in d.iter_mut().enumerate() {
                            product.accumulate_row(row, black_box(d));
                        }
                    });
                });
            }
        }
    }
    group.finish();
}

/// The whole instruction: operands through descriptors, scale factors and D in Tensor Memory.
fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("execute");
    for (name, kind, scale_vec, idesc) in KINDS {
        let mut tmem = Tmem::new();
        let _ = tmem.alloc(512);
        let mut byte = noise(4);
        for lane in 0..128 {
            for word in tmem.row_mut(lane, 0, 512).into_iter().flatten() {
                *word = 0;
            }
            for (column, word) in tmem.row_mut(lane, 256, 16).into_iter().flatten().enumerate() {
                // The same in every quarter of the lanes.
                *word = (lane % 32 + 32 * column as u32) % 0x0f * 0x0101_0101 + 0x3030_3030;
            }
        }
        let memory: Vec<u8> = (0..48 << 10).map(|_| byte() & 0xbf).collect();
        let instruction = MmaInstruction {
            kind,
            scale_vec,
            cta_group: CtaGroup::One,
            idesc,
            d: 0,
            a: OperandA::Smem(0x4000_4040_0001_0000),
            b: 0x4000_4040_0001_0000 | (16 << 10) >> 4,
            scale_a: 256,
            scale_b: 260,
            enable_input_d: true,
            scale_input_d: 0,
            disabled_lanes: [0; 8],
            variant: Default::default(),
        };
        group.throughput(Throughput::Elements(u64::from(M * N * kind.k())));
        group.bench_function(name, |bench| {
            let mut smem = |address: u32, bytes: &mut [u8]| -> Result<(), Infallible> {
                let at = address as usize;
                bytes.copy_from_slice(&memory[at..at + bytes.len()]);
                Ok(())
            };
            bench.iter(|| {
                let mut ctas = [CtaMemory { tmem: &mut tmem, smem: &mut smem }];
                if let Err(error) = execute(&instruction, &mut ctas, Arithmetic::Hardware) {
                    panic!("{error}");
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rows, whole);
criterion_main!(benches);
