//! Tests charges for small listings of small kernels.

use super::SassError;
use super::charge::{LineCost, check, lines};
use super::listing;
use crate::Module;
use crate::time::Chip;
use std::collections::HashMap;

/// The line number that marks a label. Instructions are `(line, text, stall, write barrier, waits)`.
const LABEL: u32 = 0;

fn costs(ptx: &str, code: &[(u32, &str, u64, u64, u64)]) -> HashMap<u32, LineCost> {
    let mut text = String::from("\t.section\t.text.k,\"ax\",@progbits\n");
    let mut address = 0;
    for (line, what, stall, write, waits) in code {
        if *line == LABEL {
            text += &format!("{what}:\n");
            continue;
        }
        let word = (stall | 1 << 4 | write << 5 | 7 << 8 | waits << 11) << 41;
        text += &format!("\t//## File \".nv_debug_ptx_txt\", line {line}\n");
        text += &format!("  /*{address:04x}*/  {what} ;  /* 0x0 */\n  /* {word:#018x} */\n");
        address += 16;
    }
    let sections = listing::read(&text).expect("a listing");
    let module = Module::parse("k.ptx", ptx).unwrap_or_else(|e| panic!("{e}"));
    let program = module.program("k").expect("the kernel");
    check("k", &sections[0], program).expect("the kernel's listing");
    let chip = [("mufu_latency", 18.0), ("shuffle_latency", 24.0), ("smem_latency", 29.0)]
        .iter()
        .fold(Chip::named("h200").unwrap(), |chip, (name, value)| chip.with(name, *value).unwrap());
    lines(&sections[0].code, program, &chip)
}

fn cost(all: &HashMap<u32, LineCost>, line: u32) -> (f64, f64) {
    all.get(&line).map_or((0.0, 0.0), |c| (c.slots, c.stalls))
}

// Lines 6 to 13.
const LOOP: &str = ".version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .pred %p; .reg .b32 %i, %x, %y; .reg .b64 %a;
  ld.param.u64 %a, [p];
  mov.u32 %i, 0;
LOOP:
  mul.lo.u32 %y, %x, 3;
  st.global.u32 [%a], %y;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, 12;
  @%p bra LOOP;
  ret;
}
";

#[test]
fn what_left_a_loop_is_paid_outside_of_it() {
    let all = costs(
        LOOP,
        &[
            (6, "LDC.64 R2, c[0x0][0x380]", 1, 0, 0),
            (9, "IMAD R4, R0, 0x3, RZ", 4, 7, 0),
            (7, "MOV R5, RZ", 2, 7, 0),
            (LABEL, ".L_x_0", 0, 0, 0),
            (10, "STG.E [R2.64], R4", 1, 7, 1),
            (11, "IADD3 R5, PT, PT, R5, 0x1, RZ", 5, 7, 0),
            (12, "ISETP.NE.U32.AND P0, PT, R5, 0xc, PT", 13, 7, 0),
            (13, "@P0 BRA `(.L_x_0)", 5, 7, 0),
            (14, "EXIT", 5, 7, 0),
        ],
    );
    assert_eq!(cost(&all, 9), (0.0, 0.0));
    assert_eq!((cost(&all, 6).0 + cost(&all, 7).0, cost(&all, 6).1 + cost(&all, 7).1), (3.0, 7.0));
    assert_eq!((cost(&all, 10), cost(&all, 12), cost(&all, 13)), ((1.0, 1.0), (1.0, 13.0), (1.0, 5.0)));
}

#[test]
fn copies_of_an_unrolled_loop_share() {
    let body =
        |i: u32| [(9, "IMAD R4, R0, 0x3, RZ", 4, 7, 0), (10, "STG.E [R2.64], R4", u64::from(1 + i), 7, 1)];
    let mut code = vec![(6, "LDC.64 R2, c[0x0][0x380]", 1, 0, 0), (LABEL, ".L_x_0", 0, 0, 0)];
    (0..4).for_each(|i| code.extend(body(i)));
    code.extend([
        (11, "IADD3 R5, PT, PT, R5, 0x4, RZ", 4, 7, 0),
        (12, "ISETP.NE.U32.AND P0, PT, R5, 0xc, PT", 12, 7, 0),
        (13, "@P0 BRA `(.L_x_0)", 4, 7, 0),
        (14, "EXIT", 5, 7, 0),
    ]);
    let all = costs(LOOP, &code);
    assert_eq!((cost(&all, 9), cost(&all, 10)), ((1.0, 4.0), (1.0, 2.5)));
    assert_eq!((cost(&all, 11), cost(&all, 12), cost(&all, 13)), ((0.25, 1.0), (0.25, 3.0), (0.25, 1.0)));
}

#[test]
fn a_loop_that_is_gone_is_a_copy_for_each_round() {
    let mut code = vec![(6, "LDC.64 R2, c[0x0][0x380]", 1, 0, 0)];
    (0..12).for_each(|_| code.push((10, "STG.E [R2.64], R4", 2, 7, 1)));
    code.push((14, "EXIT", 5, 7, 0));
    let all = costs(LOOP, &code);
    assert_eq!((cost(&all, 10), cost(&all, 13)), ((1.0, 2.0), (0.0, 0.0)));
}

#[test]
fn a_failed_wait_is_repeated_for_nothing() {
    let ptx = ".version 8.7
.target sm_100a
.address_size 64
.visible .entry k() {
  .reg .pred %p; .reg .b32 %s; .shared .b64 bar;
  mov.u32 %s, bar;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%s], 0;
  @!%p bra WAIT;
  ret;
}
";
    let all = costs(
        ptx,
        &[
            (6, "UMOV UR4, 0x400", 1, 7, 0),
            (8, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R7", 2, 0, 0),
            (9, "@!P0 BRA `(.L_x_1)", 5, 7, 1),
            (LABEL, ".L_x_2", 0, 0, 0),
            (10, "EXIT", 5, 7, 0),
            (LABEL, ".L_x_1", 0, 0, 0),
            (8, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R7", 2, 0, 0),
            (9, "@!P0 BRA `(.L_x_1)", 5, 7, 1),
            (9, "BRA `(.L_x_2)", 5, 7, 0),
        ],
    );
    assert_eq!((cost(&all, 8), cost(&all, 9)), ((1.0, 2.0), (1.0, 5.0)));
}

#[test]
fn results_are_waited_for_in_the_order_of_the_machine() {
    let ptx = ".version 8.7
.target sm_100a
.address_size 64
.visible .entry k() {
  .reg .b32 %x, %y, %z;
  ex2.approx.ftz.f32 %x, %x;
  add.f32 %x, %x, %x;
  ex2.approx.ftz.f32 %y, %y;
  add.f32 %y, %y, %y;
  ret;
}
";
    let all = costs(
        ptx,
        &[
            (6, "MUFU.EX2 R0, R0", 8, 0, 0),
            (8, "MUFU.EX2 R1, R1", 1, 1, 0),
            (7, "FADD R0, R0, R0", 4, 7, 1),
            (9, "FADD R1, R1, R1", 4, 7, 2),
            (10, "EXIT", 5, 7, 0),
        ],
    );
    // 18 after the first, of which 9 have passed; 18 after the second, of which 14 have.
    assert_eq!((cost(&all, 6), cost(&all, 7)), ((1.0, 8.0), (1.0, 4.0 + 9.0)));
    assert_eq!((cost(&all, 8), cost(&all, 9)), ((1.0, 1.0), (1.0, 4.0 + 4.0)));
}

#[test]
fn another_text_is_refused() {
    let module = Module::parse("k.ptx", LOOP).expect("PTX");
    let text = "\t.section\t.text.k,\"ax\"\n//## File \"\", line 3\n/*0000*/ STG.E [R2.64], R4 ; /* 0x0 */\n/* 0x000fe20000000000 */";
    let sections = listing::read(text).expect("a listing");
    let found = check("k", &sections[0], module.program("k").expect("the kernel"));
    assert!(matches!(found, Err(SassError::Text { line: 3, .. })), "{found:?}");
}

#[test]
fn a_line_occupies_all_units_that_it_uses() {
    let all = costs(
        LOOP,
        &[
            (6, "LDC.64 R2, c[0x0][0x380]", 1, 0, 0),
            (LABEL, ".L", 0, 0, 0),
            (9, "IMAD R4, R0, 0x3, RZ", 4, 7, 0),
            (9, "LOP3.LUT R4, R4, 0xf, RZ, 0xc0, !PT", 1, 7, 0),
            (9, "F2FP.BF16.F32.PACK_AB R4, R4, R4", 1, 7, 0),
            (9, "HMUL2.BF16_V2 R4, R4, R4", 1, 7, 0),
            (9, "HFMA2.MMA.BF16_V2 R4, R4, R4, -RZ", 1, 7, 0),
            (9, "FFMA R4, R4, R4, R4", 1, 7, 0),
            (10, "STG.E desc[UR4][R2.64], R4", 1, 7, 0),
            (12, "ISETP.GE.AND P0, PT, R4, 0xc, PT", 4, 7, 0),
            (13, "@!P0 BRA `(.L)", 5, 7, 0),
            (14, "EXIT", 5, 7, 0),
        ],
    );
    // Integers, the half that multiplies them, the other half. `FFMA` takes a clock of both halves.
    assert_eq!(all[&9].busy, [4.0, 5.0, 3.0, 0.0, 0.0, 0.0]);
}

#[test]
fn products_on_one_line_are_no_copies() {
    let product =
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %a, %b, 1, 1, 1, 0, 0;";
    let ptx = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
         .reg .pred %p; .reg .b32 %i; .reg .f32 %d<4>; .reg .b64 %a, %b;\n  mov.b64 %a, 0; mov.b64 %b, 0; mov.u32 %i, 0;\n\
         LOOP:\n  add.u32 %i, %i, 1;\n  {product}\n  {product}\n  setp.lt.u32 %p, %i, 12;\n  @%p bra LOOP;\n  ret;\n}}\n"
    );
    let body = |copies: usize| {
        let mut code = vec![(6, "UMOV UR4, URZ", 1, 7, 0), (LABEL, ".L", 0, 0, 0)];
        for _ in 0..copies {
            code.extend([
                (8, "VIADD R0, R0, 0x1", 1, 7, 0),
                // The line of the instruction before them.
                (8, "HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24", 1, 7, 0),
                (8, "HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24", 1, 7, 0),
            ]);
        }
        code.extend([
            (11, "ISETP.GE.AND P0, PT, R0, 0xc, PT", 4, 7, 0),
            (12, "@!P0 BRA `(.L)", 5, 7, 0),
            (13, "EXIT", 5, 7, 0),
        ]);
        costs(&ptx, &code)
    };
    assert_eq!(cost(&body(1), 8), (3.0, 3.0));
    assert_eq!(cost(&body(2), 8), (3.0, 3.0));
}
