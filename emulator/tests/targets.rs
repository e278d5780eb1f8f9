//! Tests which instructions each target has: the emulator accepts an instruction for a target exactly if the
//! assembler does.
//!
//! Without an assembler (`common/assembler.rs`) the test fails.

use crate::common::assembler::assembler;
use silumin_emulator::Module;
use std::fmt::Write;

/// Consumer and data centre chips, with what their families and all later chips have.
const TARGETS: [&str; 11] = [
    "sm_120a", "sm_120f", "sm_120", "sm_121a", "sm_110a", "sm_110f", "sm_107a", "sm_103a", "sm_100a",
    "sm_100f", "sm_90a",
];

/// The lowest version of the language that knows all of them.
const VERSION: &str = "9.4";

/// Where the two may differ: name, target, and why.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];

/// A module of kernels, one for each probe.
fn module(target: &str, probes: &[(&str, &str)]) -> String {
    let mut text = format!(".version {VERSION}\n.target {target}\n.address_size 64\n");
    for (name, line) in probes {
        let (directive, body) = if line.starts_with('.') { (*line, "") } else { ("", *line) };
        write!(
            text,
            ".entry probe_{name}(.param .u64 out) .maxntid 128 {directive}\n{{\n\
             .reg .pred p; .reg .b8 b<2>; .reg .b16 h<4>; .reg .b32 r<12>; .reg .b64 d<4>; .reg .b128 w; .reg .f32 f<8>;\n\
             {body}\nret;\n}}\n"
        )
        .unwrap();
    }
    text
}

#[test]
fn every_target_has_what_the_assembler_says_it_has() {
    let lines = include_str!("targets.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let probes: Vec<(&str, &str)> =
        lines.map(|l| l.split_once(": ").expect("a name and an instruction")).collect();
    assert!(probes.len() >= 84, "{} probes", probes.len());
    let (mut wrong, mut taken, mut refused) = (String::new(), 0, 0);
    for target in TARGETS {
        let excepted = |name: &str| EXCEPTIONS.iter().any(|(n, t, _)| *n == name && *t == target);
        let emulator = |probe| Module::parse("probe.ptx", &module(target, &[probe])).err();
        let asked = |probe| assembler(target, &module(target, &[probe]));
        let (not, takes): (Vec<_>, Vec<_>) =
            probes.iter().filter(|(name, _)| !excepted(name)).partition(|p| emulator(**p).is_some());
        // All that the emulator takes in one module, which the assembler takes too, if all is well.
        let takes: Vec<(&str, &str)> = takes.into_iter().copied().collect();
        if assembler(target, &module(target, &takes)).is_some() {
            for &probe in &takes {
                if let Some(said) = asked(probe) {
                    let said = said.lines().next().unwrap_or_default().to_owned();
                    writeln!(wrong, "{target} {}: only the assembler refuses it: {said}", probe.0).unwrap();
                }
            }
        }
        for &probe in not {
            if asked(probe).is_none() {
                let said = emulator(probe).map(|e| e.to_string()).unwrap_or_default();
                writeln!(wrong, "{target} {}: only the emulator refuses it: {said}", probe.0).unwrap();
            }
            refused += 1;
        }
        taken += takes.len();
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(taken > 500 && refused > 200, "{taken} taken, {refused} refused");
}
