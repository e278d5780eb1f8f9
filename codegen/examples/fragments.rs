//! Lowers the built-in gates afresh and writes them to `codegen/src/frontend/gate/fragments`, where the crate
//! has them checked in: `cargo run -p silumin-codegen --features llvm --example fragments`.
//!
//! With expressions as arguments it prints their fragments instead.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use silumin_codegen::gate::{
    BUILTIN_WIDTH, BUILTINS, GATE_ARCHES, GEMM_BUILTINS, Gate, GateCode, SplitCode, lower::lower_gate,
};

fn main() -> Result<(), Box<dyn Error>> {
    let gates: Vec<String> = std::env::args().skip(1).collect();
    for gate in &gates {
        let gate: Gate = gate.parse()?;
        for (arch, _) in GATE_ARCHES {
            for (part, text) in parts(&lower_gate(&gate.expr, arch, BUILTIN_WIDTH)?) {
                writeln!(std::io::stdout(), "{arch}, {part}\n{text}")?;
            }
        }
    }
    if !gates.is_empty() {
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/frontend/gate/fragments");
    for (arch, _) in GATE_ARCHES {
        std::fs::create_dir_all(root.join(arch))?;
        for builtin in BUILTINS.iter().chain(&GEMM_BUILTINS) {
            let gate: Gate = builtin.source.parse()?;
            for (part, text) in parts(&lower_gate(&gate.expr, arch, BUILTIN_WIDTH)?) {
                let path = root.join(arch).join(format!("{}.{part}.ptx", builtin.name));
                let same = std::fs::read_to_string(&path).is_ok_and(|old| old == text);
                if !same {
                    std::fs::write(&path, text)?;
                    writeln!(std::io::stdout(), "wrote {}", path.display())?;
                }
            }
        }
    }
    Ok(())
}

/// The fragments of a gate, each with the name of its part.
fn parts(code: &GateCode) -> Vec<(&'static str, &str)> {
    let mut parts = vec![("whole", &*code.whole.text)];
    if let Some(SplitCode { early, late, .. }) = &code.split {
        parts.push(("early", &*early.text));
        parts.push(("late", &*late.text));
    }
    parts
}
