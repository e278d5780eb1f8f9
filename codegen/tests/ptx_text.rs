//! What every kernel's text must keep to, so that it is read in minutes: golden kernels and drawn ones.
//!
//! `SILUMIN_DRAWN_PTX=FOLDER cargo test -p silumin-codegen --test ptx_text` leaves the drawn kernels in a folder, to compare their
//! machine code before and after a change of templates.

#![cfg(feature = "render")]

mod draws;

use draws::{config, size};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, Switch};
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat, Shape};
use silumin_codegen::spec::Spec;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Kernels drawn for each chip.
const DRAWN: usize = 120;

const GATES: [&str; 4] = [
    "silu(A @ B1) * (A @ B2)",
    "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])",
    "silu(s[m] * (A @ B1) * w[n]) * (t[m] * (A @ B2))",
    "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
];

fn formats(arch: Arch) -> Vec<Formats> {
    use OperandFormat as In;
    use OutputFormat as Out;
    let all = [
        (In::Nvfp4, In::Nvfp4, Out::F16),
        (In::Nvfp4, In::Nvfp4, Out::Nvfp4),
        (In::Bf16, In::Bf16, Out::Bf16),
        (In::Bf16, In::Bf16, Out::E4m3),
        (In::Bf16, In::Nvfp4, Out::Bf16),
        (In::Bf16, In::Mxfp4, Out::Bf16),
        (In::Bf16, In::Nvfp4Repacked, Out::Bf16),
        (In::Bf16, In::Mxfp4Repacked, Out::Bf16),
        (In::E4m3, In::E4m3, Out::Bf16),
        (In::Mxfp8E5m2, In::Mxfp4, Out::F16),
        (In::Mxfp4, In::Mxfp4, Out::F16),
    ];
    let formats = all.map(|(a, b, out)| Formats::new(a, b, out)).to_vec();
    let usable = |f: &Formats| {
        let spec = Spec { formats: *f, ..Spec::new(GATES[0].parse().unwrap(), &[arch]).unwrap() };
        spec.plan(Shape::new(256, 4096, 4096), arch).is_ok()
    };
    formats.into_iter().filter(usable).collect()
}

/// Legal kernels of a chip, the same in each run.
fn drawn(arch: Arch) -> Vec<(String, String)> {
    let specs = GATES.map(|gate| Spec::new(gate.parse().unwrap(), &[arch]).unwrap());
    let sides = draws::setting(prop::sample::select(vec![Switch::Off, Switch::On]));
    let configs = prop_oneof![6 => config(arch), 1 => sides.prop_map(|swap_ab| Config { swap_ab, ..Config::default() })];
    let formats = formats(arch);
    assert!(formats.len() >= 4, "{arch}: {formats:?}");
    let draws = (
        (size(), size(), (1u32..100).prop_map(|k| 32 * k)),
        configs,
        prop::sample::select((0..GATES.len()).collect::<Vec<_>>()),
        prop::sample::select(formats),
        prop::sample::select(vec![None, None, None, Some(PreactivationFormat::Bf16)]),
    );
    let mut runner = TestRunner::deterministic();
    let mut kernels = Vec::new();
    for _ in 0..40 * DRAWN {
        let ((m, n, k), config, gate, formats, preactivations) =
            draws.new_tree(&mut runner).unwrap().current();
        let spec = Spec { formats: Formats { preactivations, ..formats }, config, ..specs[gate].clone() };
        if let Ok(kernel) = spec.kernel(Shape::new(m, n, k), arch) {
            kernels.push((format!("{arch}_{:03}", kernels.len()), kernel.ptx));
        }
        if kernels.len() == DRAWN {
            return kernels;
        }
    }
    panic!("{arch}: only {} of {} draws are legal", kernels.len(), 40 * DRAWN);
}

fn golden() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/out");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let kernels = paths.filter(|path| path.extension().is_some_and(|e| e == "ptx"));
    kernels.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

fn kernels() -> Vec<(String, String)> {
    let drawn: Vec<_> = [Arch::Sm100a, Arch::Sm90a, Arch::Sm120a].into_iter().flat_map(drawn).collect();
    if let Some(folder) = std::env::var_os("SILUMIN_DRAWN_PTX") {
        for (name, ptx) in &drawn {
            fs::write(Path::new(&folder).join(name).with_extension("ptx"), ptx).unwrap();
        }
    }
    golden().into_iter().chain(drawn).collect()
}

/// The words of a line that are registers' names, `%` included.
fn registers(line: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices('%')
        .map(|(at, _)| {
            let end = line[at + 1..].find(|c| !is_name(c)).map_or(line.len(), |n| at + 1 + n);
            &line[at..end]
        })
        .collect()
}

/// What a kernel's text has that costs a reader time and says nothing.
fn idle(ptx: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Registers of each scope that is open, and whether something uses them.
    let mut scopes: Vec<HashMap<String, bool>> = Vec::new();
    for (number, line) in ptx.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default().trim();
        for statement in code.split(';').map(str::trim) {
            let mut statement = statement;
            while let Some(rest) = statement.strip_prefix('{') {
                scopes.push(HashMap::new());
                statement = rest.trim_start();
            }
            if statement.starts_with('}') {
                let scope = scopes.pop().expect("a closing brace without an opening one");
                let unused = scope.iter().filter(|(_, used)| !**used);
                found.extend(unused.map(|(name, _)| format!("{name} is never used")));
            } else if statement.starts_with(".reg") {
                let scope = scopes.last_mut().expect("registers in a scope");
                scope.extend(registers(statement).into_iter().map(|name| (name.to_owned(), false)));
            } else {
                for name in registers(statement) {
                    // `%sum<4>` declares `%sum0` to `%sum3`: a use of one of them counts.
                    let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
                    let in_scope = |scope: &&mut HashMap<String, bool>| {
                        scope.contains_key(name) || scope.contains_key(family)
                    };
                    if let Some(scope) = scopes.iter_mut().rev().find(in_scope) {
                        for key in [name, family] {
                            scope.entry(key.to_owned()).and_modify(|used| *used = true);
                        }
                    }
                }
                if does_nothing(statement) {
                    found.push(format!("line {}: {statement}", number + 1));
                }
            }
        }
    }
    found
}

/// Whether a statement adds nothing, or multiplies by one.
fn does_nothing(statement: &str) -> bool {
    let (head, operands) = statement.split_once(' ').unwrap_or((statement, ""));
    let (op, operands) = match head.starts_with('@') {
        true => operands.split_once(' ').unwrap_or((operands, "")),
        false => (head, operands),
    };
    let mut operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    operands.push("");
    match op.split('.').next().unwrap_or_default() {
        "add" | "sub" | "or" | "xor" | "shl" | "shr" => operands[2..].contains(&"0"),
        "mul" => op.contains(".lo") && operands[1..].contains(&"1"),
        "mad" => op.contains(".lo") && operands[1..3].contains(&"1") || operands[3] == "0",
        _ => statement.contains(" + 0]"),
    }
}

#[test]
fn nothing_is_declared_or_computed_for_nothing() {
    let mut told = Vec::new();
    for (name, ptx) in kernels() {
        told.extend(idle(&ptx).into_iter().map(|what| format!("{name}: {what}")));
    }
    let shown = told.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(told.is_empty(), "{} times:\n{shown}", told.len());
}

#[test]
fn places_in_shared_memory_have_their_names_behind_them() {
    let mut told = Vec::new();
    for (name, ptx) in kernels() {
        for (number, line) in ptx.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().trim();
            let adds = code.starts_with("add.u32") && code.contains(", %smem, ");
            let is_place = adds || code.starts_with("add.u32 %barrier,") || code.contains("[%smem + ");
            // Those that are initialised stand below their name.
            if is_place && !line.contains("//") && !code.starts_with("mbarrier.init") {
                told.push(format!("{name}: line {}: {line}", number + 1));
            }
        }
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}
