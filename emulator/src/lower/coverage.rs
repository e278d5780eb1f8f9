//! Tests that every form of the ISA decodes or is on the list of refused instructions.
//!
//! `coverage/*.txt` cover chapter 9.7 of the manual, one instruction a line. `<a,b>` stands for each of its
//! alternatives, `%r{4}` for a list of four registers. The files name target and PTX version, so that an assembler
//! can check the same lines.

use crate::Module;
use std::collections::BTreeSet;

const FILES: [(&str, &str); 6] = [
    ("scalar", include_str!("coverage/scalar.txt")),
    ("convert", include_str!("coverage/convert.txt")),
    ("memory", include_str!("coverage/memory.txt")),
    ("matrix", include_str!("coverage/matrix.txt")),
    ("tensor", include_str!("coverage/tensor.txt")),
    ("texture", include_str!("coverage/texture.txt")),
];

/// What the emulator refuses, by the beginning of the instruction or by a modifier, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("tex.", "textures are not modelled"),
    ("tld4.", "textures are not modelled"),
    ("txq.", "textures are not modelled"),
    ("istypep.", "textures are not modelled"),
    ("suld.", "surfaces are not modelled"),
    ("sust.", "surfaces are not modelled"),
    ("sured.", "surfaces are not modelled"),
    ("suq.", "surfaces are not modelled"),
];

/// The alternatives between angle brackets, split at commas outside braces.
fn alternatives(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut from) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out
}

fn expand(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut rest = line;
    loop {
        let (plain, more) = rest.split_once('<').map_or((rest, None), |(p, m)| (p, Some(m)));
        out.iter_mut().for_each(|o| o.push_str(plain));
        let Some((inner, after)) = more.and_then(|m| m.split_once('>')) else {
            return out;
        };
        let choices = alternatives(inner);
        out = out.iter().flat_map(|o| choices.iter().map(move |c| format!("{o}{c}"))).collect();
        rest = after;
    }
}

/// Expands `%r{4}` to a list of four registers.
fn lists(line: &str) -> String {
    let mut out = line.to_owned();
    while let Some(at) = out.find(['r', 'd']).and_then(|_| {
        let bytes = out.as_bytes();
        (2..bytes.len()).find(|&i| bytes[i] == b'{' && bytes[i - 2] == b'%' && bytes[i + 1].is_ascii_digit())
    }) {
        let end = at + out[at..].find('}').expect("a closed list");
        let count: usize = out[at + 1..end].parse().expect("a number of registers");
        let letter = out.as_bytes()[at - 1] as char;
        let list: Vec<String> = (10..10 + count).map(|i| format!("%{letter}{i}")).collect();
        out.replace_range(at - 2..=end, &format!("{{{}}}", list.join(", ")));
    }
    out
}

fn kernel(target: &str, version: &str, line: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n\
         .global .align 16 .b32 gl[16];\n\
         .func (.reg .b32 x) callee (.reg .b32 y) {{ mov.b32 x, y; ret; }}\n\
         .entry k (.param .b32 arg) .maxntid 128 {{\n\
         .reg .pred %p<8>; .reg .b8 %b<8>; .reg .b16 %h<16>; .reg .b32 %r<140>; .reg .b64 %d<32>;\n\
         .reg .b128 %q<4>; .shared .align 16 .b32 sh[16]; .local .b32 lc[4];\n\
         callees: .calltargets callee;\n\
         proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n\
         targets: .branchtargets done;\n{}\ndone: ret;\n}}\n",
        lists(line)
    )
}

#[test]
fn every_form_of_the_isa_decodes_or_is_on_the_list() {
    let mut failures = Vec::new();
    let mut unused: BTreeSet<&str> = REFUSED.iter().map(|(r, _)| *r).collect();
    let mut untried: BTreeSet<&str> = super::table().forms().map(|f| f.form).collect();
    let mut count = 0;
    for (file, text) in FILES {
        let (mut target, mut version) = ("", "");
        for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some(rest) = line.strip_prefix("target ") {
                (target, version) = rest.split_once(' ').expect("a target and a version");
                continue;
            }
            for instruction in expand(line) {
                count += 1;
                let refused = REFUSED.iter().find(|(r, _)| {
                    if r.starts_with('.') { instruction.contains(r) } else { instruction.starts_with(r) }
                });
                let opcode = instruction.split([' ', ';']).next().unwrap_or("");
                if let Ok((form, _)) = super::table().find(opcode) {
                    untried.remove(form.form);
                }
                match (Module::parse(file, &kernel(target, version, &instruction)), refused) {
                    (Ok(_), None) => {}
                    (Err(_), Some((r, _))) => {
                        unused.remove(r);
                    }
                    (Ok(_), Some(_)) => failures.push(format!("{instruction} decodes but is on the list")),
                    (Err(e), None) => failures.push(format!("{instruction} {e}")),
                }
            }
        }
    }
    assert!(count > 5000, "only {count} forms were tried");
    assert!(unused.is_empty(), "nothing tries {unused:?}");
    assert!(untried.is_empty(), "rows of the table that no line tries: {untried:#?}");
    let shown = failures.iter().take(2000).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {count} forms:\n{shown}", failures.len());
}
