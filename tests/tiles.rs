//! Tiles that `auto` takes on Hopper, held against the measured times of others (`evidence/tiles.jsonl`, decision 0212).

use serde_json::Value;
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat};
use silumin::{Arch, Shape, Spec};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Time of the chosen tile over that of the fastest: the geometric mean of a set and the worst of all.
const MEAN: f64 = 1.04;
const WORST: f64 = 1.35;
/// Least part of the problems whose chosen tile was measured.
const KNOWN: f64 = 0.85;

fn formats(names: &str) -> Formats {
    let [a, b, c] = names.split(',').collect::<Vec<_>>()[..] else { panic!("{names}") };
    let operand = |name: &str| name.parse::<OperandFormat>().unwrap();
    Formats { a: operand(a), b: operand(b), c: c.parse::<OutputFormat>().unwrap(), products: None }
}

/// The tile that `auto` takes for a problem, such as `64x32`, or `8x128 swapped` with weights as rows.
fn chosen(of: &Value) -> String {
    let gate = if of["products"] == 2 { "silu(A @ B1) * (A @ B2)" } else { "A @ B" };
    let mut spec = Spec::new(gate.parse().unwrap(), &[Arch::Sm90a]).unwrap();
    spec.formats = formats(of["formats"].as_str().unwrap());
    let [m, n, k] = [0, 1, 2].map(|side| of["shape"][side].as_u64().unwrap() as u32);
    let plan = spec.plan(Shape::new(m, n, k), Arch::Sm90a).unwrap();
    format!("{}x{}{}", plan.tile.m, plan.tile.n, if plan.swap_ab { " swapped" } else { "" })
}

#[test]
fn tiles_are_close_to_the_fastest_that_were_measured() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/tiles.jsonl");
    let text = fs::read_to_string(path).unwrap();
    // The first line says how they were measured.
    let problems: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut sets: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut known = 0;
    for of in &problems {
        let tile = chosen(of);
        let Some(us) = of["us"][&tile].as_f64() else { continue };
        known += 1;
        let times = of["us"].as_object().unwrap().values().map(|time| time.as_f64().unwrap());
        let best = times.fold(f64::INFINITY, f64::min);
        let set = of["set"].as_str().unwrap();
        assert!(us / best < WORST, "{set} {}: {tile} takes {us} us, the fastest {best}", of["shape"]);
        sets.entry(set).or_default().push((us / best).ln());
    }
    assert!(
        known as f64 > KNOWN * problems.len() as f64,
        "{known} of {} tiles were measured",
        problems.len()
    );
    for (set, logs) in sets {
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        assert!(mean < MEAN, "{set}: {mean:.3} of the fastest");
    }
}
