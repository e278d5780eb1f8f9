//! Sparse `wgmma`: A from shared memory and from registers, against sums over what metadata names.

use crate::engine::descriptor::Major;
use crate::engine::format::Format;
use crate::engine::fragment::Kind;
use crate::engine::mma::Arithmetic;
use crate::engine::wgmma::{Instruction, OperandA, execute};

const N: usize = 16;

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 33
}

/// Codes of -1, 0, 1 and 2.
fn code(format: Format, v: i64) -> u32 {
    match format {
        Format::F16 => [0xbc00, 0, 0x3c00, 0x4000][(v + 1) as usize],
        Format::Tf32 => [0xbf80_0000, 0, 0x3f80_0000, 0x4000_0000][(v + 1) as usize],
        _ => [0xb8, 0, 0x38, 0x40][(v + 1) as usize],
    }
}

#[test]
fn sparse_products_take_the_elements_that_metadata_names() {
    let mut state = 5;
    for format in [Format::F16, Format::Tf32, Format::E4m3] {
        let bytes = format.bits() as usize / 8;
        let bytes = if format == Format::Tf32 { 4 } else { bytes };
        let (stored, k) = (32 / bytes, 64 / bytes);
        let chunk = if bytes == 4 { 2 } else { 4 };
        let mut number = || (next(&mut state) % 4) as i64 - 1;
        let a: Vec<Vec<i64>> = (0..64).map(|_| (0..stored).map(|_| number()).collect()).collect();
        let b: Vec<Vec<i64>> = (0..N).map(|_| (0..k).map(|_| number()).collect()).collect();
        for (warp, selector, registers) in [(0, 0, false), (2, 0, true), (3, 1, false), (1, 1, true)] {
            if bytes == 1 && selector == 1 {
                continue;
            }
            // No swizzle, K-major: 8 rows of 16 bytes together, then groups of rows, then columns of K.
            let mut smem = vec![0u8; 32 << 10];
            let place = |row: usize, column: usize, rows: usize| {
                row % 8 * 16 + row / 8 * 128 + column / 16 * (rows * 16)
            };
            let put = |smem: &mut Vec<u8>, base: usize, list: &[Vec<i64>]| {
                for (row, line) in list.iter().enumerate() {
                    for (i, &v) in line.iter().enumerate() {
                        let at = base + place(row, i * bytes, list.len()) + i * bytes % 16;
                        smem[at..at + bytes].copy_from_slice(&code(format, v).to_le_bytes()[..bytes]);
                    }
                }
            };
            put(&mut smem, 0, &a);
            put(&mut smem, 16 << 10, &b);
            let descriptor = |base: u64, rows: u64| base >> 4 | (rows * 16 / 16) << 16 | 8 << 32;
            let mut metadata = [0u64; 32];
            let mut held = Vec::new();
            for row in 0..16usize {
                let mut list = Vec::new();
                for c in 0..k / chunk {
                    let pairs = [(0usize, 1usize), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
                    let (i, j) = match bytes {
                        4 => [(0, 1), (2, 3)][next(&mut state) as usize % 2],
                        _ => pairs[next(&mut state) as usize % 6],
                    };
                    match bytes {
                        4 => list.push(2 * c + i / 2),
                        _ => list.extend([4 * c + i, 4 * c + j]),
                    }
                    let index = (j << 2 | i) as u64;
                    let (lane, bit) = if bytes == 1 {
                        (4 * (row % 8) + row / 8 + 2 * (c / 8), 4 * (c % 8))
                    } else {
                        (4 * (row % 8) + 2 * selector + c / 4, 16 * (row / 8) + 4 * (c % 4))
                    };
                    metadata[lane] |= index << bit;
                }
                held.push(list);
            }
            let per = 4 / bytes;
            let fragment = (0..4)
                .map(|r| {
                    std::array::from_fn(|lane| {
                        let row = 16 * warp + lane / 4 + 8 * (r % 2);
                        (0..per)
                            .map(|i| {
                                let v = a[row][per * (lane % 4) + i + 4 * per * (r / 2)];
                                u64::from(code(format, v)) << (8 * bytes * i)
                            })
                            .sum()
                    })
                })
                .collect();
            let instruction = Instruction {
                kind: Kind::Float { a: format, b: format, half: false },
                n: N,
                a: if registers { OperandA::Registers(fragment) } else { OperandA::Smem(descriptor(0, 64)) },
                b: descriptor(16 << 10, N as u64),
                a_major: Major::K,
                b_major: Major::K,
                negate: false,
                warp: warp as u32,
                sparse: Some((metadata, selector as u32)),
            };
            let mut d = vec![[u64::from(1f32.to_bits()); 32]; N / 2];
            let mut read = |at: u32, out: &mut [u8]| -> Result<(), ()> {
                let at = at as usize;
                out.copy_from_slice(smem.get(at..at + out.len()).ok_or(())?);
                Ok(())
            };
            execute(&instruction, Arithmetic::Hardware, &mut d, &mut read).unwrap();
            for lane in 0..32 {
                for (i, words) in d.iter().enumerate() {
                    let (row, column) = (lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2);
                    let sum: i64 = (0..stored).map(|p| a[16 * warp + row][p] * b[column][held[row][p]]).sum();
                    let got = f32::from_bits(words[lane] as u32);
                    assert_eq!(got, (1 + sum) as f32, "{format:?} ({row}, {column}), registers {registers}");
                }
            }
            let wrong = Instruction { sparse: Some(([0; 32], 0)), ..instruction };
            let note = execute(&wrong, Arithmetic::Hardware, &mut d, &mut read).unwrap();
            assert!(note.is_some_and(|n| n.contains("0b0000")));
        }
    }
}
