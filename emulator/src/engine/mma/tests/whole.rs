//! Whole instructions of every kind, layout and group, as [`setup`](super::setup) lays them out.

use super::super::{MmaError, MmaInstruction, Operand, OperandA};
use super::setup::{BF16, Case, F8, NVFP4, SFA, SFB, SMEM, Setup};
use crate::engine::format::Format;
use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
use crate::engine::tmem::{Tmem, TmemError};

pub(super) fn check(case: Case) {
    let mut setup = Setup::new(case, 11);
    let before = setup.tmem.clone();
    let instruction = setup.instruction();
    if let Err(error) = setup.execute(&instruction) {
        panic!("{case:?}: {error}");
    }
    let mut touched = vec![[[false; 300]; 128]; case.group as usize];
    for m in 0..case.m {
        for n in 0..case.n {
            let (cta, lane, column) = case.place(m, n);
            touched[cta][lane as usize][column as usize] = true;
            // The oracle for f16 is slow; a sample of the elements will do.
            if case.half && (m * 7 + n) % 61 != 0 {
                continue;
            }
            let expected = setup.expected(m, n, setup.d[m as usize][n as usize]);
            assert_eq!(setup.word(m, n), expected, "{case:?}: element ({m}, {n})");
        }
    }
    for (cta, touched) in touched.iter().enumerate() {
        for (lane, columns) in (0..).zip(touched) {
            for (column, _) in columns.iter().enumerate().filter(|(_, touched)| !**touched) {
                let at = lane << 16 | column as u32;
                assert_eq!(setup.tmem[cta].read(at), before[cta].read(at), "{case:?}");
            }
        }
    }
}

#[test]
fn nvfp4_from_every_k_major_layout() {
    for swizzle in [0, 32, 64, 128] {
        check(Case { swizzle, ..NVFP4 });
    }
}

#[test]
fn nvfp4_shapes_of_one_cta() {
    for n in [8, 40, 256] {
        check(Case { n, ..NVFP4 });
    }
    check(Case { negate_a: true, ..NVFP4 });
    check(Case { accumulate: false, ..NVFP4 });
    check(Case { ue4m3: false, ..NVFP4 });
    check(Case { a_in_tmem: true, ..NVFP4 });
}

#[test]
fn two_scale_factors_a_row_at_both_selectors() {
    let base = Case { vec: Some(ScaleVec::X2), ue4m3: false, ..NVFP4 };
    for id in [(0, 0), (2, 0), (0, 2), (2, 2)] {
        check(Case { id, ..base });
        check(Case { id, kind: MmaKind::Mxf4, ..base });
    }
}

#[test]
fn mixed_formats_with_one_scale_factor_at_every_selector() {
    let base = Case { kind: MmaKind::Mxf8f6f4, vec: Some(ScaleVec::X1), ue4m3: false, ..F8 };
    for id in 0..4 {
        check(Case { id: (id, 3 - id), ..base });
    }
    let formats = [(Format::E2m1, 5), (Format::E2m3, 3), (Format::E3m2, 4), (Format::E4m3, 0)];
    for (a, a_code) in formats {
        for (b, b_code) in formats {
            for swizzle in [0, 128] {
                check(Case { a, a_code, b, b_code, n: 16, swizzle, ..base });
            }
        }
        check(Case { a, a_code, n: 16, a_in_tmem: true, ..base });
    }
}

#[test]
fn plain_kinds_in_every_major_and_swizzle() {
    for swizzle in [0, 32, 64, 128] {
        for (a_mn, b_mn) in [(false, false), (true, false), (false, true), (true, true)] {
            check(Case { swizzle, a_mn, b_mn, n: 128, ..BF16 });
            check(Case { swizzle, a_mn, b_mn, ..F8 });
        }
    }
    let tf32 =
        Case { kind: MmaKind::Tf32, a: Format::Tf32, b: Format::Tf32, a_code: 2, b_code: 2, n: 32, ..BF16 };
    for swizzle in [0, 32, 64, 128] {
        check(Case { swizzle, ..tf32 });
    }
    check(Case { swizzle: 1, a_mn: true, b_mn: true, ..tf32 });
}

#[test]
fn sixty_four_rows_lie_in_every_second_half_quarter() {
    for f_upper in [false, true] {
        for a_in_tmem in [false, true] {
            check(Case { m: 64, n: 24, f_upper, a_in_tmem, ..BF16 });
        }
    }
}

#[test]
fn half_accumulators() {
    let f16 = Case { a: Format::F16, b: Format::F16, a_code: 0, b_code: 0, half: true, ..BF16 };
    check(Case { n: 16, ..f16 });
    check(Case { n: 16, half: true, ..F8 });
}

#[test]
fn pairs_of_ctas() {
    for case in [BF16, F8, NVFP4] {
        check(Case { group: 2, m: 256, n: 64, ..case });
        check(Case { group: 2, m: 128, n: 64, ..case });
        check(Case { group: 2, m: 128, n: 64, a_in_tmem: true, ..case });
        check(Case { group: 2, m: 256, n: 32, a_in_tmem: true, ..case });
    }
}

#[test]
fn disabled_lanes_keep_their_words() {
    let mut setup = Setup::new(Case { group: 2, m: 256, n: 32, ..BF16 }, 5);
    let mut instruction = setup.instruction();
    instruction.disabled_lanes[1] = 1 << 3;
    instruction.disabled_lanes[6] = 1 << 31;
    setup.execute(&instruction).unwrap();
    for m in 0..256 {
        // Lane 35 of the even CTA and lane 95 of the odd one.
        let kept = m == 35 || m == 128 + 95;
        for n in 0..32 {
            let old = setup.d[m as usize][n as usize];
            assert_eq!(setup.word(m, n) == old, kept, "({m}, {n})");
        }
    }
}

#[test]
fn scale_input_d_divides_the_accumulator() {
    let mut setup = Setup::new(Case { n: 16, ..BF16 }, 5);
    let instruction = MmaInstruction { scale_input_d: 3, ..setup.instruction() };
    setup.execute(&instruction).unwrap();
    for m in 0..128 {
        let old = f32::from_bits(setup.d[m as usize][2]) / 8.0;
        assert_eq!(setup.word(m, 2), setup.expected(m, 2, old.to_bits()));
    }
}

#[test]
fn accumulators_need_not_exist_when_they_are_not_read() {
    let mut setup = Setup::new(NVFP4, 5);
    setup.tmem[0] = {
        let mut fresh = Tmem::new();
        fresh.alloc(512).unwrap();
        fresh
    };
    setup.fill_scales();
    let read = MmaInstruction { d: 100, ..setup.instruction() };
    let missing = TmemError::NeverWritten { lane: 0, column: 100 };
    assert_eq!(setup.execute(&read), Err(MmaError::Tmem { operand: Operand::D, source: missing }));
    setup.execute(&MmaInstruction { enable_input_d: false, ..read }).unwrap();
    setup.execute(&read).unwrap();
}

#[test]
fn scale_factors_must_be_in_every_quarter() {
    let mut setup = Setup::new(NVFP4, 5);
    let at = (64 + 7) << 16 | (SFB + 1);
    let word = setup.tmem[0].read(at).unwrap();
    setup.tmem[0].write(at, word ^ 0x0100_0000).unwrap();
    let error = setup.execute(&setup.instruction()).unwrap_err();
    assert!(
        matches!(
            error,
            MmaError::NotReplicated { operand: Operand::ScaleB, row: 39, first: 7, second: 71, .. }
        ),
        "{error}"
    );
    assert_eq!(setup.word(3, 3), setup.d[3][3], "D changed although the instruction failed");
}

#[test]
fn unused_scale_factor_bytes_may_differ() {
    // Selector 1 of a word whose other bytes differ between quarters.
    let case = Case { kind: MmaKind::Mxf8f6f4, vec: Some(ScaleVec::X1), ue4m3: false, ..F8 };
    let mut setup = Setup::new(Case { id: (1, 1), ..case }, 5);
    let at = (64 + 7) << 16 | SFA;
    let word = setup.tmem[0].read(at).unwrap();
    setup.tmem[0].write(at, word ^ 0xffff_00ff).unwrap();
    setup.execute(&setup.instruction()).unwrap();
    setup.tmem[0].write(at, word ^ 0x0000_0100).unwrap();
    assert!(setup.execute(&setup.instruction()).is_err());
}

#[test]
fn illegal_uses_are_refused() {
    let mut setup = Setup::new(NVFP4, 5);
    let good = setup.instruction();
    let mut refuse = |instruction: MmaInstruction, what: &str| {
        let error = setup.execute(&instruction).unwrap_err().to_string();
        assert!(error.contains(what), "{error:?} does not speak of {what:?}");
    };
    refuse(MmaInstruction { d: 16 << 16, ..good }, "starts at lane 0");
    refuse(MmaInstruction { scale_input_d: 1, ..good }, "scale-input-d is 1");
    refuse(MmaInstruction { disabled_lanes: [1; 8], ..good }, "mask");
    refuse(MmaInstruction { cta_group: CtaGroup::Two, ..good }, "was given the memories of 1");
    refuse(MmaInstruction { b: good.b & !(1 << 46), ..good }, "B of tcgen05.mma");
    refuse(MmaInstruction { scale_b: SFB | 32 << 16, ..good }, "scale factors start at lane 0");
    refuse(MmaInstruction { d: 460, ..good }, "outside the 128 lanes and 512 columns");
    refuse(MmaInstruction { a: OperandA::Tmem(508), ..good }, "A of tcgen05.mma");
    let far = Case { swizzle: 128, ..NVFP4 }.descriptor(SMEM as u32 - 1024, false, 128);
    refuse(MmaInstruction { b: far, ..good }, "0x30000");
}

#[test]
fn scale_factors_of_b_take_a_second_column_that_no_row_needs() {
    let mut setup = Setup::new(Case { n: 32, ..NVFP4 }, 5);
    let last = MmaInstruction { scale_b: 511, ..setup.instruction() };
    let error = setup.execute(&last).unwrap_err().to_string();
    assert!(error.contains("column 512 is outside"), "{error}");
}
