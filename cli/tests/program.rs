//! The program as a shell sees it: documents on standard output, exit statuses, completions.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn silumin(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_silumin"));
    command.args(arguments).current_dir(folder).env("SILUMIN_CACHE_DIR", folder.join("cache"));
    command.output().unwrap()
}

/// The document on standard output, which has nothing beside it, and the exit status.
fn document(folder: &Path, arguments: &[&str]) -> (Value, i32) {
    let Output { status, stdout, stderr } = silumin(folder, arguments);
    let text = String::from_utf8(stdout).unwrap();
    let said = String::from_utf8_lossy(&stderr);
    let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?}: {e}\n{text}\n{said}"));
    (value, status.code().unwrap())
}

#[test]
fn every_verb_has_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = ["--shape", "16,64,256", "--json"];
    let (emitted, status) = document(folder, &[&["emit"], &small[..]].concat());
    assert_eq!((status, &emitted["pass"]), (0, &Value::Bool(true)), "{emitted}");
    assert_eq!(emitted["checks"].as_array().unwrap().len(), 2);
    assert!(emitted["predicted"]["us"].as_f64().unwrap() > 0.0 && emitted["knobs"]["stages"].is_string());
    let launch = emitted["launch_file"].as_str().unwrap();
    assert!(folder.join(launch).is_file(), "{launch}");

    let (why, status) = document(folder, &[&["explain"], &small[..]].concat());
    assert_eq!((status, &why["legal"]), (0, &Value::Bool(true)));
    assert!(why["knobs"].as_array().unwrap().iter().any(|knob| knob["rule"].is_string()), "{why}");
    let (why, status) = document(folder, &["explain", "--json", "--tile", "128,512,256"]);
    assert_eq!((status, &why["legal"]), (1, &Value::Bool(false)));
    let reasons = why["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|of| of["reason"].as_str().unwrap().contains("from 8 to 256")), "{why}");

    let (page, status) =
        document(folder, &[&["view", "--no-verify", "--issue", "table"], &small[..]].concat());
    assert_eq!(status, 0);
    assert!(folder.join(page["written"][0].as_str().unwrap()).is_file());
    let (_, status) = document(folder, &["emulate", launch, "--time", "b200", "--no-range", "--json"]);
    assert_eq!(status, 0);
    let (swept, _) =
        document(folder, &[&["sweep", "--verify-k", "0", "--sweep-knob", "stages=2;3"], &small[..]].concat());
    assert_eq!(swept["configurations"].as_array().unwrap().len(), 2);

    std::fs::create_dir(folder.join("cache")).unwrap();
    let (listed, status) = document(folder, &["cache", "list", "--json"]);
    assert_eq!((status, listed["kernels"].as_array().unwrap().len()), (0, 0));
    assert_eq!(document(folder, &["cache", "verify", "--json"]).1, 0);
    assert_eq!(document(folder, &["cache", "prune", "1M", "--json"]).0["removed"], 0);
    let (tuned, status) = document(folder, &["tune", "--list", "--json", "--out", "none.tuning"]);
    assert_eq!((status, tuned["results"].as_array().unwrap().len()), (0, 0));
    let (pack, status) = document(
        folder,
        &["bring-up", "--out", "pack", "--small", "--only", "1", "--arch", "sm_90a", "--json"],
    );
    assert!(status == 0 && pack["bytes"].as_u64().unwrap() > 0, "{pack}");
}

#[test]
fn statuses_are_those_of_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let status = |arguments: &[&str]| silumin(folder.path(), arguments).status.code().unwrap();
    assert_eq!(status(&["completions", "zsh"]), 0);
    assert_eq!(status(&["man", "--out", "man1"]), 0);
    assert!(folder.path().join("man1/silumin-emit.1").is_file());
    assert_eq!(status(&["explain", "--stages", "31", "--time", "off"]), 1);
    assert_eq!(status(&["emit", "--shape", "nothing"]), 2);
    assert_eq!(status(&["emulate", "none.toml"]), 2);
    let help = silumin(folder.path(), &["--help"]).stdout;
    assert!(String::from_utf8_lossy(&help).contains("Exit status: 0"));
}

#[test]
fn near_misses_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, near) in [
        (&["emit", "--formats", "nvpf4,nvfp4,f16"][..], "did you mean `nvfp4`?"),
        (&["emit", "--schedule", "persistant"], "did you mean `persistent`?"),
        (&["emit", "--arch", "sm_100"], "did you mean `sm_100a`?"),
        (&["emit", "--gate", "sliu(A @ B1) * (A @ B2)"], "did you mean `silu`?"),
        (&["view", "--beside", "stagse=2", "--no-verify", "--shape", "16,64,256"], "did you mean `stages`?"),
    ] {
        let Output { status, stderr, .. } = silumin(folder.path(), arguments);
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && said.contains(near), "{arguments:?}: {said}");
    }
}
