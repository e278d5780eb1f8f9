//! Tensor Memory: allocation against a model, transfers against the ISA's table.

use crate::engine::descriptor::DescriptorError;
use crate::engine::tmem::copy::CpError;
use crate::engine::tmem::transfer::Transfer;
use crate::engine::tmem::{CpDecompress, CpShape, LdStShape, Tmem, TmemError};
use proptest::prelude::*;

/// Tensor Memory with all columns allocated, in which each word holds its own address.
fn labelled() -> Tmem {
    let mut tmem = Tmem::new();
    assert_eq!(tmem.alloc(512), Ok(Some(0)));
    for lane in 0..128 {
        for column in 0..512 {
            tmem.write(lane << 16 | column, lane << 16 | column).unwrap();
        }
    }
    tmem
}

fn transfer(shape: LdStShape, repeat: u32, address: u32, warp: u32) -> Transfer {
    Transfer { shape, repeat, packed: false, half_split: 0, address, warp }
}

fn load(tmem: &Tmem, transfer: Transfer) -> Vec<[u32; 32]> {
    let count = transfer.shape.registers(transfer.repeat) as usize;
    let mut registers = vec![[0; 32]; count];
    tmem.load_warp(&transfer, &mut registers).unwrap();
    registers
}

/// Lane and column of thread t, register r, by the fragments of the ISA's figures.
fn figure(shape: LdStShape, t: u32, r: u32) -> (u32, u32) {
    match shape {
        LdStShape::S32x32b => (t, r),
        // Eight rows of four threads; rows 8.. belong to the odd threads.
        LdStShape::S16x64b => ((t & 1) * 8 + (t >> 2), r * 2 + (t >> 1 & 1)),
        // A quarter-warp row of four words; odd registers are rows 8.. .
        LdStShape::S16x128b => ((r & 1) * 8 + (t >> 2), (r >> 1) * 4 + (t & 3)),
        // The accumulator fragment of mma.sync.
        LdStShape::S16x256b => ((r >> 1 & 1) * 8 + (t >> 2), (r >> 2) * 8 + (t & 3) * 2 + (r & 1)),
        LdStShape::S16x32bx2 => (t & 15, r),
    }
}

const SHAPES: [LdStShape; 5] =
    [LdStShape::S32x32b, LdStShape::S16x64b, LdStShape::S16x128b, LdStShape::S16x256b, LdStShape::S16x32bx2];

#[test]
fn loads_follow_the_table() {
    let tmem = labelled();
    for shape in SHAPES {
        for warp in 0..8 {
            let (repeat, column) = (8, 40);
            let split = 64;
            let lane = if shape == LdStShape::S32x32b { 0 } else { 16 };
            let address = lane << 16 | column;
            let loaded =
                load(&tmem, Transfer { half_split: split, ..transfer(shape, repeat, address, warp) });
            for (r, threads) in (0..).zip(&loaded) {
                for (t, &word) in (0..).zip(threads) {
                    let (row, c) = figure(shape, t, r);
                    let second = shape == LdStShape::S16x32bx2 && t >= 16;
                    let row = 32 * (warp % 4) + lane + row;
                    let c = column + c + if second { split } else { 0 };
                    assert_eq!(word, row << 16 | c, "{shape:?}, thread {t}, register {r}");
                }
            }
        }
    }
    // A few by hand.
    assert_eq!(LdStShape::S16x64b.place(1, 0), (8, 0));
    assert_eq!(LdStShape::S16x64b.place(31, 1), (15, 3));
    assert_eq!(LdStShape::S16x128b.place(5, 3), (9, 5));
    assert_eq!(LdStShape::S16x256b.place(6, 7), (9, 13));
}

#[test]
fn every_shape_reaches_every_word_once() {
    for shape in SHAPES {
        let repeat = 4;
        let mut words: Vec<_> = (0..shape.registers(repeat))
            .flat_map(|r| (0..32).map(move |t| (t, shape.place(t, r))))
            .map(|(t, place)| (shape == LdStShape::S16x32bx2 && t >= 16, place))
            .collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len() as u32, 32 * shape.registers(repeat));
        let lanes = words.iter().map(|w| w.1.0).max().unwrap() + 1;
        let columns = words.iter().map(|w| w.1.1).max().unwrap() + 1;
        let halves = if shape == LdStShape::S16x32bx2 { 2 } else { 1 };
        assert_eq!(lanes * columns * halves, 32 * shape.registers(repeat), "{shape:?}");
    }
}

#[test]
fn the_second_address_may_lie_in_other_lanes() {
    let tmem = labelled();
    let far = Transfer { half_split: 16 << 16, ..transfer(LdStShape::S16x32bx2, 2, 7, 3) };
    let loaded = load(&tmem, far);
    assert_eq!(loaded[1][3], (96 + 3) << 16 | 8);
    assert_eq!(loaded[1][16 + 3], (96 + 16 + 3) << 16 | 8);
}

#[test]
fn packed_transfers_take_two_columns_a_register() {
    let tmem = labelled();
    for shape in SHAPES {
        let packed = Transfer { packed: true, ..transfer(shape, 4, 96 << 16 | 20, 3) };
        let packed = Transfer { half_split: 100, ..packed };
        for (r, threads) in (0..).zip(load(&tmem, packed)) {
            for (t, word) in (0..).zip(threads) {
                let (_, c) = figure(shape, t, r);
                let second = shape == LdStShape::S16x32bx2 && t >= 16;
                let c = 20 + 2 * c + if second { 100 } else { 0 };
                assert_eq!(word, c | (c + 1) << 16, "{shape:?}");
            }
        }
    }
    let mut tmem = labelled();
    let unpack = Transfer { packed: true, ..transfer(LdStShape::S32x32b, 1, 20, 1) };
    tmem.store_warp(&unpack, &[std::array::from_fn(|t| 0xabcd_0000 + t as u32)]).unwrap();
    assert_eq!(tmem.read((32 + 5) << 16 | 20), Ok(5));
    assert_eq!(tmem.read((32 + 5) << 16 | 21), Ok(0xabcd));
    assert_eq!(tmem.read((32 + 5) << 16 | 22), Ok((32 + 5) << 16 | 22));
}

proptest! {
    #[test]
    fn stores_are_undone_by_loads(
        shape in 0..5usize,
        log in 0..6u32,
        warp in 0..4u32,
        column in 0..100u32,
        packed: bool,
        seed: u32,
    ) {
        let shape = SHAPES[shape];
        let repeat = 1 << log;
        prop_assume!(repeat <= shape.max_repeat());
        let count = shape.registers(repeat) as usize;
        // Columns of one half; the second of `.16x32bx2` follows the first.
        let lanes = if shape == LdStShape::S32x32b { 32 } else { 16 };
        let halves = if shape == LdStShape::S16x32bx2 { 2 } else { 1 };
        let half_split = count as u32 * 32 / lanes / halves * if packed { 2 } else { 1 };
        let column = column.min(512 - half_split * halves);
        let address = (32 * warp) << 16 | column;
        let transfer = Transfer { packed, half_split, ..transfer(shape, repeat, address, warp) };
        let registers: Vec<[u32; 32]> = (0..count)
            .map(|r| std::array::from_fn(|t| (r as u32 * 32 + t as u32).wrapping_mul(seed | 1)))
            .collect();
        let mut tmem = Tmem::new();
        tmem.alloc(512).unwrap();
        tmem.store_warp(&transfer, &registers).unwrap();
        prop_assert_eq!(load(&tmem, transfer), registers);
        // Exactly the words of the shape were written.
        let written = (0..128u32 * 512).filter(|i| tmem.is_written(((i / 512) << 16) | (i % 512))).count();
        prop_assert_eq!(written, 32 * count * if packed { 2 } else { 1 });
    }

    #[test]
    fn allocation_follows_a_model(steps in proptest::collection::vec((any::<bool>(), 0..5u32, any::<u8>()), 1..60)) {
        let mut tmem = Tmem::new();
        let mut model = [false; 512];
        let mut live: Vec<(u32, u32)> = Vec::new();
        let mut last = 512;
        for (allocate, log, pick) in steps {
            if allocate {
                let size = 32 << log;
                let result = tmem.alloc(size);
                if size > last {
                    prop_assert_eq!(
                        result,
                        Err(TmemError::GrowingAllocation { columns: size, earlier: last })
                    );
                    continue;
                }
                let free = |at: &u32| (*at..*at + size).all(|column| !model[column as usize]);
                let expected = (0..512 / size).map(|i| i * size).find(free);
                prop_assert_eq!(result, Ok(expected));
                if let Some(at) = expected {
                    model[at as usize..(at + size) as usize].fill(true);
                    live.push((at, size));
                    last = size;
                }
            } else if !live.is_empty() {
                let (at, size) = live.remove(usize::from(pick) % live.len());
                prop_assert_eq!(tmem.dealloc(at, size), Ok(()));
                model[at as usize..(at + size) as usize].fill(false);
            }
            for (column, &live) in model.iter().enumerate() {
                prop_assert_eq!(tmem.row_mut(3, column as u32, 1).is_ok(), live);
            }
        }
        let mut leaks = tmem.leaks();
        leaks.sort_unstable();
        live.sort_unstable();
        prop_assert_eq!(leaks, live);
    }
}

#[test]
fn misuse_of_the_allocator() {
    let mut tmem = Tmem::new();
    for columns in [0, 16, 48, 1024, u32::MAX] {
        assert_eq!(tmem.alloc(columns), Err(TmemError::AllocationSize { columns }));
    }
    assert_eq!(tmem.alloc(256), Ok(Some(0)));
    assert_eq!(tmem.alloc(256), Ok(Some(256)));
    assert_eq!(tmem.alloc(32), Ok(None));
    let wrong = |address, columns| Err(TmemError::NotAllocated { address, columns });
    assert_eq!(tmem.dealloc(0, 128), wrong(0, 128));
    assert_eq!(tmem.dealloc(128, 256), wrong(128, 256));
    assert_eq!(tmem.dealloc(1 << 16, 256), wrong(1 << 16, 256));
    assert_eq!(tmem.dealloc(256, 256), Ok(()));
    assert_eq!(tmem.dealloc(256, 256), wrong(256, 256));
    tmem.relinquish_alloc_permit();
    assert_eq!(tmem.alloc(32), Err(TmemError::Relinquished { columns: 32 }));
    assert_eq!(tmem.leaks(), [(0, 256)]);
}

#[test]
fn words_remember_what_happened_to_them() {
    let mut tmem = Tmem::new();
    assert_eq!(tmem.read(5), Err(TmemError::Unallocated { lane: 0, column: 5 }));
    tmem.alloc(64).unwrap();
    assert_eq!(tmem.read(9 << 16 | 63), Err(TmemError::NeverWritten { lane: 9, column: 63 }));
    assert_eq!(tmem.read(64), Err(TmemError::Unallocated { lane: 0, column: 64 }));
    tmem.row_mut(9, 10, 50).unwrap().fill(1);
    assert!(tmem.row(9, 10, 50).is_ok());
    assert_eq!(tmem.row(9, 10, 51), Err(TmemError::NeverWritten { lane: 9, column: 60 }));
    assert_eq!(tmem.row(9, 9, 2), Err(TmemError::NeverWritten { lane: 9, column: 9 }));
    assert_eq!(tmem.row(9, 60, 5), Err(TmemError::Unallocated { lane: 9, column: 64 }));
    assert_eq!(tmem.row(9, 500, 20), Err(TmemError::OutOfBounds { lane: 9, column: 512 }));
    assert_eq!(tmem.row(128, 0, 1), Err(TmemError::OutOfBounds { lane: 128, column: 0 }));
    tmem.dealloc(0, 64).unwrap();
    assert_eq!(tmem.read(9 << 16 | 10), Err(TmemError::UseAfterFree { lane: 9, column: 10 }));
    assert_eq!(tmem.write(10, 0), Err(TmemError::UseAfterFree { lane: 0, column: 10 }));
    tmem.alloc(64).unwrap();
    assert_eq!(tmem.read(9 << 16 | 10), Err(TmemError::NeverWritten { lane: 9, column: 10 }));
}

#[test]
fn warps_keep_to_their_lanes() {
    let tmem = labelled();
    let mut out = vec![[0; 32]; 4];
    let shape = LdStShape::S32x32b;
    assert!(tmem.load_warp(&transfer(shape, 4, 64 << 16, 6), &mut out).is_ok());
    assert!(tmem.load_warp(&transfer(shape, 4, 0, 6), &mut out).is_ok());
    let foreign = tmem.load_warp(&transfer(shape, 4, 32 << 16, 6), &mut out);
    assert!(matches!(foreign, Err(TmemError::ForeignLanes { lane: 32, warp: 2, first: 64, .. })));
    let crooked = tmem.load_warp(&transfer(shape, 4, 16 << 16, 0), &mut out);
    assert!(matches!(crooked, Err(TmemError::LaneAlignment { lane: 16, multiple: 32, .. })));
    let crooked = tmem.load_warp(&transfer(LdStShape::S16x64b, 4, 8 << 16, 0), &mut out);
    assert!(matches!(crooked, Err(TmemError::LaneAlignment { lane: 8, multiple: 16, .. })));
    let beyond = tmem.load_warp(&transfer(shape, 4, 510, 0), &mut out);
    assert!(matches!(beyond, Err(TmemError::OutOfBounds { column: 512, .. })), "{beyond:?}");
    for (shape, repeat) in [(shape, 3), (shape, 256), (LdStShape::S16x256b, 64), (shape, 8)] {
        let wrong = tmem.load_warp(&transfer(shape, repeat, 0, 0), &mut out);
        assert!(matches!(wrong, Err(TmemError::Registers { .. })), "{shape:?} x{repeat}");
    }
    assert_eq!(SHAPES.map(LdStShape::max_repeat), [128, 128, 64, 32, 128]);
}

/// Copies from memory whose byte at address a is a mix of a.
fn copy(shape: CpShape, decompress: Option<CpDecompress>, descriptor: u64) -> (Tmem, Vec<u8>) {
    let memory: Vec<u8> = (0..32768u32).map(|a| (a.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
    let mut tmem = Tmem::new();
    tmem.alloc(64).unwrap();
    let read = &mut |address: u32, bytes: &mut [u8]| -> Result<(), String> {
        bytes.copy_from_slice(&memory[address as usize..address as usize + bytes.len()]);
        Ok(())
    };
    tmem.copy_from_smem(shape, decompress, 8, descriptor, read).unwrap();
    (tmem, memory)
}

/// No swizzle: LBO between the 16-byte columns, SBO between groups of 8 rows.
const SBO: usize = 144;
const LBO: usize = 4096;
const CP_START: usize = 512;
const CP: u64 = 1 << 46 | (SBO as u64 / 16) << 32 | (LBO as u64 / 16) << 16 | (CP_START as u64 / 16);

#[test]
fn copies_follow_the_table() {
    let lanes = |shape: CpShape, row: usize| match shape {
        CpShape::S128x256b | CpShape::S128x128b => vec![row],
        CpShape::S4x256b => vec![32 * row],
        CpShape::S64x128bWarpx2At02And13 => vec![row, row + 64],
        // Warps 0 and 1 hold the lower 32 rows, 2 and 3 the upper.
        CpShape::S64x128bWarpx2At01And23 if row < 32 => vec![row, row + 32],
        CpShape::S64x128bWarpx2At01And23 => vec![row + 32, row + 64],
        CpShape::S32x128bWarpx4 => vec![row, row + 32, row + 64, row + 96],
    };
    let shapes = [
        (CpShape::S128x256b, 128, 8),
        (CpShape::S128x128b, 128, 4),
        (CpShape::S4x256b, 4, 8),
        (CpShape::S64x128bWarpx2At02And13, 64, 4),
        (CpShape::S64x128bWarpx2At01And23, 64, 4),
        (CpShape::S32x128bWarpx4, 32, 4),
    ];
    for (shape, rows, columns) in shapes {
        let (tmem, memory) = copy(shape, None, CP);
        let mut words = 0;
        for row in 0..rows {
            for lane in lanes(shape, row) {
                for column in 0..columns {
                    let at = CP_START + row % 8 * 16 + row / 8 * SBO + column / 4 * LBO + column % 4 * 4;
                    let expected = u32::from_le_bytes([0, 1, 2, 3].map(|i| memory[at + i]));
                    let address = ((lane << 16) | (8 + column)) as u32;
                    assert_eq!(tmem.read(address), Ok(expected), "{shape:?}, row {row}");
                    words += 1;
                }
            }
        }
        let written = (0..128u32 * 64).filter(|i| tmem.is_written(((i / 64) << 16) | (i % 64))).count();
        assert_eq!(written, words, "{shape:?}");
    }
}

#[test]
fn a_scale_factor_tile_becomes_the_image_the_mma_reads() {
    // 512 contiguous bytes, 128 rows x 4 factors: offset (m % 32) * 16 + m / 32 * 4 + k.
    let contiguous = 1 << 46 | (128 / 16) << 32 | (1024 / 16);
    let (tmem, memory) = copy(CpShape::S32x128bWarpx4, None, contiguous);
    for m in 0..128usize {
        for k in 0..4 {
            let byte = memory[1024 + m % 32 * 16 + m / 32 * 4 + k];
            for quarter in 0..4 {
                let address = (m % 32 + 32 * quarter) << 16 | (8 + m / 32);
                assert_eq!(tmem.read(address as u32).unwrap().to_le_bytes()[k], byte);
            }
        }
    }
}

#[test]
fn copies_read_swizzled_rows() {
    // 128-byte swizzle: row r of 128 bytes, its 16-byte units XORed with r % 8.
    let (tmem, memory) = copy(CpShape::S128x256b, None, 0x4000_4040_0001_0000);
    for row in 0..128usize {
        for column in 0..8usize {
            let unit = (column / 4) ^ (row % 8);
            let at = row * 128 + unit * 16 + column % 4 * 4;
            let expected = u32::from_le_bytes([0, 1, 2, 3].map(|i| memory[at + i]));
            assert_eq!(tmem.read(((row << 16) | (8 + column)) as u32), Ok(expected));
        }
    }
}

#[test]
fn copies_decompress() {
    for (decompress, width, low) in [(CpDecompress::B4x16P64, 4, 2), (CpDecompress::B6x16P32, 6, 0)] {
        let (tmem, memory) = copy(CpShape::S128x128b, Some(decompress), CP);
        for row in 0..128usize {
            let at = CP_START + row % 8 * 16 + row / 8 * SBO;
            let mut unit = [0; 16];
            unit.copy_from_slice(&memory[at..at + 16]);
            let bits = u128::from_le_bytes(unit);
            for element in 0..16usize {
                let code = (bits >> (element * width)) as u8 & ((1 << width) - 1);
                let word = tmem.read(((row << 16) | (8 + element / 4)) as u32).unwrap();
                assert_eq!(word.to_le_bytes()[element % 4], code << low, "{decompress:?}");
            }
        }
    }
}

#[test]
fn copies_are_refused_by_whoever_is_concerned() {
    let mut tmem = Tmem::new();
    tmem.alloc(32).unwrap();
    let fail = &mut |address: u32, _: &mut [u8]| Err(address);
    let shape = CpShape::S128x128b;
    let refused = tmem.copy_from_smem(shape, None, 0, CP, fail);
    assert_eq!(refused, Err(CpError::Memory(CP_START as u32)));
    let refused = tmem.copy_from_smem(shape, None, 0, CP & !(1 << 46), fail);
    assert!(matches!(refused, Err(CpError::Descriptor(DescriptorError::Version { .. }))));
    let read = &mut |_: u32, _: &mut [u8]| Ok::<(), u32>(());
    let refused = tmem.copy_from_smem(shape, None, 30, CP, read);
    assert_eq!(refused, Err(CpError::Tmem(TmemError::Unallocated { lane: 0, column: 32 })));
    let refused = tmem.copy_from_smem(shape, None, 1 << 16, CP, read);
    assert_eq!(refused, Err(CpError::Tmem(TmemError::OutOfBounds { lane: 128, column: 0 })));
}

#[test]
fn shifts_move_lanes_down_by_one() {
    let mut tmem = labelled();
    tmem.shift_down(32 << 16 | 16).unwrap();
    for lane in 0..128u32 {
        for column in 14..26u32 {
            let at = lane << 16 | column;
            let moved = lane >= 32 && lane != 127 && (16..24).contains(&column);
            let expected = match moved {
                true if lane == 63 || lane == 95 => Err(TmemError::NeverWritten { lane, column }),
                true => Ok(at + (1 << 16)),
                false => Ok(at),
            };
            assert_eq!(tmem.read(at), expected);
        }
    }
    let crooked = tmem.shift_down(16 << 16);
    assert!(matches!(crooked, Err(TmemError::LaneAlignment { lane: 16, .. })));
}
