//! Fragments as kernels, and the assembler to judge them.

use std::path::{Path, PathBuf};
use std::process::Command;

use silumin_codegen::gate::{Fragment, GateCode};

/// The assembler: `SILUMIN_PTXAS`, else `.tools/bin/ptxas` of the repository, else the PATH's.
fn ptxas() -> PathBuf {
    if let Some(path) = std::env::var_os("SILUMIN_PTXAS") {
        return path.into();
    }
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/ptxas");
    if own.exists() { own } else { "ptxas".into() }
}

/// The parts of a gate's code, each with a name that fits into a PTX identifier.
pub fn parts(code: &GateCode) -> Vec<(&'static str, &Fragment)> {
    let split = code.split.iter();
    let split = split.flat_map(|s| [("early", &s.early), ("late", &s.late)]);
    std::iter::once(("whole", &code.whole)).chain(split).collect()
}

/// A kernel that loads a fragment's inputs, runs it in place (each output in an input's register
/// where there is one) and stores its outputs.
fn kernel(name: &str, fragment: &Fragment) -> String {
    let (inputs, outputs) = (fragment.inputs.len(), fragment.outputs.len());
    let names = |prefix: &str, n: usize| -> Vec<String> { (0..n).map(|i| format!("%{prefix}{i}")).collect() };
    let (values, scalars) = (names("value", inputs), names("scalar", fragment.scalars.len()));
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let scalars: Vec<&str> = scalars.iter().map(String::as_str).collect();
    let mut ptx = format!(
        ".visible .entry {name}(.param .u64 data)\n{{\n.reg .b64 %at;\n.reg .b32 %value<{}>;\n\
         .reg .b32 %scalar<{}>;\nld.param.u64 %at, [data];\n",
        inputs.max(outputs),
        scalars.len().max(1)
    );
    for (i, register) in values.iter().chain(&scalars).enumerate() {
        ptx += &format!("ld.global.b32 {register}, [%at+{}];\n", 4 * i);
    }
    let text = fragment.render(&values, &values[..outputs], &scalars).expect("the counts match");
    ptx += &format!("{{\n{text}}}\n");
    for (i, register) in values[..outputs].iter().enumerate() {
        ptx += &format!("st.global.b32 [%at+{}], {register};\n", 4 * i);
    }
    ptx + "ret;\n}\n"
}

/// Assembles fragments, each as a kernel of that name, for `arch` with PTX `version` (`8.6`).
/// Panics with ptxas's words where it fails, warns or spills, and where there is no ptxas.
pub fn assemble(arch: &str, version: &str, fragments: &[(String, &Fragment)]) {
    let mut ptx = format!(".version {version}\n.target {arch}\n.address_size 64\n");
    for (name, fragment) in fragments {
        assert_eq!(fragment.arch, arch);
        assert!(fragment.text.is_ascii());
        ptx += &kernel(name, fragment);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, object) = (folder.path().join("gates.ptx"), folder.path().join("gates.cubin"));
    std::fs::write(&source, &ptx).expect("a temporary file");
    let ptxas = ptxas();
    let output = Command::new(&ptxas)
        .args([&format!("-arch={arch}"), "-v", "-O3", "-o"])
        .arg(&object)
        .arg(&source)
        .output()
        .unwrap_or_else(|e| panic!("{} does not run ({e}); scripts/setup.sh fetches it", ptxas.display()));
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{ptx}");
    assert!(!said.contains("warning"), "{said}\n{ptx}");
    let kernels = said.matches("Used ").count();
    let spotless = said.matches("0 bytes stack frame, 0 bytes spill stores").count();
    assert_eq!((kernels, spotless), (fragments.len(), fragments.len()), "{said}");
}
