//! Damaged kernels: what the assembler refuses, the emulator refuses too, or it stands on a list.
//!
//! Without an assembler (`common/assembler.rs`) the tests fail.

use crate::common::assembler::assembler;
use silumin_emulator::Module;

fn emulator(text: &str) -> Option<String> {
    let problems = Module::problems("damaged.ptx", text);
    assert_eq!(problems.is_empty(), Module::parse("damaged.ptx", text).is_ok(), "{text}");
    (!problems.is_empty()).then(|| problems.iter().map(ToString::to_string).collect())
}

fn kernel(target: &str, version: &str, line: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.global .align 16 .b32 gl[16];\n\
         .entry k(.param .b32 arg) .maxntid 128 {{\n\
         .reg .pred %p<4>; .reg .b8 %b<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %d<4>;\n\
         .reg .f32 %f<4>; .reg .f64 %e<4>; .reg .s32 %s<4>; .reg .u16 %us<4>;\n\
         .shared .align 16 .b32 sh[16];\n{line}\ndone: ret;\n}}\n"
    )
}

#[test]
fn what_the_assembler_refuses_is_refused_or_listed() {
    let (mut target, mut version, mut takes, mut count) = ("", "", false, 0);
    let mut wrong = String::new();
    for line in include_str!("damages.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(rest) = line.strip_prefix("target ") {
            (target, version) = rest.split_once(' ').expect("a target and a version");
            continue;
        }
        if line == "takes" {
            takes = true;
            continue;
        }
        count += 1;
        let (good, damaged) = line.split_once(" ==> ").expect("a good and a damaged instruction");
        let texts = [good, damaged].map(|l| kernel(target, version, l));
        for (text, said) in [("assembler", assembler(target, &texts[0])), ("emulator", emulator(&texts[0]))] {
            if let Some(said) = said {
                wrong += &format!("the {text} refuses `{good}`: {said}\n");
            }
        }
        if assembler(target, &texts[1]).is_none() {
            wrong += &format!("the assembler takes `{damaged}`\n");
        }
        match (emulator(&texts[1]), takes) {
            (None, false) => wrong += &format!("the emulator takes `{damaged}`\n"),
            (Some(said), true) => wrong += &format!("`{damaged}` is listed, and refused now: {said}\n"),
            _ => {}
        }
    }
    assert!(count > 90, "{count} damages");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn names_that_are_defined_twice_are_refused_with_both_lines() {
    let body = |lines: &str| format!(".entry k(.param .u64 out) {{\n{lines}\nret;\n}}\n");
    let cases = [
        (body(".reg .b32 a;\n.reg .b32 a;"), Some((6, 5))),
        (body(".reg .b32 %r<4>;\n.reg .b64 %r<9>;"), Some((6, 5))),
        (body(".reg .b32 %r<4>;\n.reg .b32 %r1;"), Some((6, 5))),
        (body(".reg .b32 %r1;\n.reg .b32 %r<4>;"), Some((6, 5))),
        (body(".reg .b32 %r<4>;\n.reg .b32 %r4;"), None),
        (body(".reg .b32 a;\n{ .reg .b64 a; }"), None),
        (body("x: bar.sync 0;\nx: bar.sync 0;"), Some((6, 5))),
        (body("x: bar.sync 0;\n{ x: bar.sync 0; }"), None),
        (body(".reg .b32 x;\nx: bar.sync 0;"), Some((6, 5))),
        (body(".shared .b32 x;\n.local .b32 x;"), Some((6, 5))),
        (body("\n.reg .b32 out;"), Some((6, 4))),
        (body("{\n.param .b32 a;\n.param .b32 a; }"), Some((7, 6))),
        (format!(".global .b32 x;\n.global .b32 x;\n{}", body("")), Some((5, 4))),
        (format!(".global .b32 x;\n{}", body(".shared .b32 x;")), None),
        (".entry k(.param .u64 a,\n.param .u64 a) { ret; }\n".to_owned(), Some((5, 4))),
        (".func f() { ret; }\n.func f() { ret; }\n.entry k() { ret; }\n".to_owned(), Some((5, 4))),
        (".func f();\n.func f() { ret; }\n.entry k() { ret; }\n".to_owned(), None),
        (".func f(.reg .b32 a,\n.reg .b32 a) { ret; }\n.entry k() { ret; }\n".to_owned(), Some((5, 4))),
        (".func f(.reg .b32 a) {\n.reg .b32 a; ret; }\n.entry k() { ret; }\n".to_owned(), Some((5, 4))),
        (".entry k() { ret; }\n.entry k() { ret; }\n".to_owned(), Some((5, 4))),
    ];
    for (text, lines) in cases {
        let text = format!(".version 8.0\n.target sm_90\n.address_size 64\n{text}");
        assert_eq!(assembler("sm_90", &text).is_some(), lines.is_some(), "{text}");
        let problems = Module::problems("twice.ptx", &text);
        let Some((second, first)) = lines else {
            assert!(problems.is_empty(), "{text}{}", problems[0]);
            continue;
        };
        let said = problems.first().unwrap_or_else(|| panic!("{text}")).to_string();
        assert!(said.starts_with(&format!("twice.ptx:{second}:")), "{text}{said}");
        assert!(said.contains(&format!("line {first}")), "{text}{said}");
    }
}
