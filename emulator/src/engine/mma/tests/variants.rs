//! Sparse and weight-stationary instructions, `.ashift`, zero columns.

use super::super::{MmaError, OperandA, Variant};
use super::setup::{BF16, Case, F8, NVFP4, Setup};
use super::whole::check;
use crate::engine::format::Format;
use crate::engine::idesc::{IdescError, MmaKind, ScaleVec};

const TF32: Case =
    Case { kind: MmaKind::Tf32, a: Format::Tf32, b: Format::Tf32, a_code: 2, b_code: 2, ..BF16 };

#[test]
fn sparse_products_of_every_kind() {
    for swizzle in [0, 64, 128] {
        for selector in 0..2 {
            check(Case { sparse: Some(selector), swizzle, n: 32, ..BF16 });
            check(Case { sparse: Some(selector), swizzle, n: 32, ..TF32 });
        }
        check(Case { sparse: Some(0), swizzle, n: 32, ..F8 });
        check(Case { sparse: Some(0), swizzle, n: 32, ..NVFP4 });
    }
    let mx = Case { kind: MmaKind::Mxf8f6f4, vec: Some(ScaleVec::X1), ue4m3: false, n: 32, ..F8 };
    check(Case { sparse: Some(0), id: (1, 2), ..mx });
    check(Case { sparse: Some(0), kind: MmaKind::Mxf4, vec: Some(ScaleVec::X2), ue4m3: false, ..NVFP4 });
    let mixed = Case { a: Format::E2m1, a_code: 5, b: Format::E3m2, b_code: 4, n: 16, ..F8 };
    check(Case { sparse: Some(0), ..mixed });
    check(Case { sparse: Some(0), a_in_tmem: true, ..mixed });
}

#[test]
fn sparse_products_of_every_layout() {
    for base in [BF16, F8, TF32] {
        let base = Case { sparse: Some(0), n: 32, ..base };
        check(Case { m: 64, ..base });
        check(Case { m: 64, f_upper: true, a_in_tmem: true, ..base });
        check(Case { m: 256, group: 2, ..base });
        check(Case { m: 128, group: 2, ..base });
        check(Case { m: 128, group: 2, f_upper: true, a_in_tmem: true, ..base });
        check(Case { a_in_tmem: true, accumulate: false, ..base });
    }
    check(Case { sparse: Some(1), b_mn: true, a_mn: true, ..BF16 });
}

#[test]
fn metadata_without_meaning_is_refused() {
    let mut setup = Setup::new(Case { sparse: Some(0), n: 16, ..F8 }, 3);
    let instruction = setup.instruction();
    let address = instruction.variant.metadata.unwrap_or(0);
    setup.tmem[0].write(5 << 16 | address, 0x4444_4044).unwrap();
    let error = setup.execute(&instruction).unwrap_err();
    assert!(matches!(error, MmaError::Metadata { row: 5, chunk: 2, index: 0, .. }), "{error}");
    let dense = super::super::MmaInstruction { variant: Variant::default(), ..instruction };
    let error = setup.execute(&dense).unwrap_err();
    assert!(matches!(error, MmaError::Idesc(IdescError::Sparse { sparse: false, .. })), "{error}");
}

#[test]
fn weight_stationary_shapes() {
    for base in [BF16, TF32, F8] {
        for m in [32, 64, 128] {
            for n in [64, 256] {
                check(Case { stationary: true, m, n, ..base });
            }
            let base = Case { stationary: true, m, n: 64, ..base };
            check(Case { a_in_tmem: true, ..base });
            check(Case { sparse: Some(0), ..base });
            check(Case { sparse: Some(0), a_in_tmem: true, accumulate: false, ..base });
        }
    }
}

#[test]
fn ashift_takes_the_row_after() {
    for (group, m) in [(1, 128), (2, 256)] {
        let case = Case { a_in_tmem: true, group, m, n: 32, ..BF16 };
        let mut setup = Setup::new(case, 5);
        let mut instruction = setup.instruction();
        instruction.variant.shift_a = true;
        setup.execute(&instruction).unwrap();
        let original = Setup::new(case, 5);
        let mut shifted = Setup::new(case, 5);
        for m in 0..m as usize {
            // The last row of every CTA stays.
            shifted.a[m] = original.a[if m % 128 == 127 { m } else { m + 1 }].clone();
        }
        for m in 0..m {
            for n in 0..32 {
                let old = shifted.d[m as usize][n as usize];
                assert_eq!(setup.word(m, n), shifted.expected(m, n, old), "({m}, {n})");
            }
        }
        instruction.a = OperandA::Smem(0);
        assert!(matches!(setup.execute(&instruction), Err(MmaError::Shift { .. })));
    }
}

/// Starts, first spans, used and skipped columns, and shift, as the manual's examples have them.
fn descriptor(starts: [u64; 4], first: [u64; 4], (used, skipped): (u64, u64), shift: u64) -> u64 {
    let list = |v: [u64; 4], width: usize, at: usize| {
        v.iter().enumerate().map(|(i, v)| v << (at + width * i)).sum::<u64>()
    };
    list(starts, 8, 0) | list(first, 1, 32) | 1 << 39 | skipped << 40 | used << 48 | shift << 56
}

#[test]
fn zero_columns_follow_the_examples_of_the_manual() {
    // The lowest columns first, 1 for zero.
    let cases: [(u32, u64, &[&str]); 3] = [
        (128, descriptor([0; 4], [0; 4], (3, 2), 0), &["00001110000111"]),
        (64, descriptor([0; 4], [1, 0, 0, 0], (3, 2), 0), &["11100001110000111", "0000111000011100"]),
        (
            32,
            descriptor([0, 1, 2, 1], [1, 1, 0, 0], (3, 2), 2),
            &["11100001110000", "1100001110000", "00111000011", "00011100001"],
        ),
    ];
    for (m, zero_columns, masks) in cases {
        let case = Case { stationary: true, m, n: 64, ..BF16 };
        let mut setup = Setup::new(case, 9);
        let mut instruction = setup.instruction();
        instruction.variant.zero_columns = zero_columns;
        let shift = (zero_columns >> 56) as u32;
        if shift > 0 {
            assert!(matches!(setup.execute(&instruction), Err(MmaError::ZeroColumns { limit: 0, .. })));
            instruction.idesc |= 1 << 30;
        }
        setup.execute(&instruction).unwrap();
        let part = 64 / masks.len() as u32;
        for (i, mask) in (0..).zip(masks) {
            for (c, zero) in (0..part).zip(mask.chars()) {
                let n = i * part + c;
                for row in 0..2 {
                    let old = setup.d[row as usize][n as usize];
                    let mut wanted = Setup::new(case, 9);
                    let from = (n + shift) as usize;
                    let Some(b) = wanted.b.get(from).cloned() else { continue };
                    wanted.b[n as usize] = if zero == '1' { vec![0; b.len()] } else { b };
                    assert_eq!(setup.word(row, n), wanted.expected(row, n, old), "M {m}, ({row}, {n})");
                }
            }
        }
    }
}
