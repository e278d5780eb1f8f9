//! Tiles that `auto` takes on Hopper, held against the measured times of others (`evidence/tiles.jsonl`, decision 0212), and tiles
//! and schedules for 4-bit weights (`evidence/decoded_tiles.jsonl`, decision 0228).

use serde_json::Value;
use silumin::codegen::config::{Accumulators, Schedule, Setting};
use silumin::codegen::problem::{Formats, OperandFormat, OutputFormat};
use silumin::{Arch, Groups, Plan, Shape, Spec};
use std::collections::BTreeMap;
use std::fs;

/// Limits of the chosen kernel's time over the fastest one's: the geometric mean of a set, and each problem.
struct Limits {
    mean: f64,
    worst: f64,
}

/// Least part of the problems whose choice was measured.
const KNOWN: f64 = 0.85;

fn formats(names: &str) -> Formats {
    let [a, b, c] = names.split(',').collect::<Vec<_>>()[..] else { panic!("{names}") };
    let operand = |name: &str| name.parse::<OperandFormat>().unwrap();
    Formats { a: operand(a), b: operand(b), c: c.parse::<OutputFormat>().unwrap(), preactivations: None }
}

/// What `auto` takes for a problem.
fn plan(of: &Value) -> Plan {
    let gate = if of["products"] == 2 { "silu(A @ B1) * (A @ B2)" } else { "A @ B" };
    let mut spec = Spec::new(gate.parse().unwrap(), &[Arch::Sm90a]).unwrap();
    spec.formats = formats(of["formats"].as_str().unwrap());
    let [m, n, k] = [0, 1, 2].map(|side| of["shape"][side].as_u64().unwrap() as u32);
    spec.plan(Shape::new(m, n, k), Arch::Sm90a).unwrap()
}

/// Holds the choices for the problems of a file of evidence against its times. `name`: what the file calls a choice.
fn judge(file: &str, limits: &Limits, name: impl Fn(&Plan) -> String) {
    let path = silumin_testkit::root().join("evidence").join(file);
    let text = fs::read_to_string(path).unwrap();
    // The first line says how they were measured.
    let problems: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut sets: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut known = 0;
    for of in &problems {
        let choice = name(&plan(of));
        let Some(us) = of["us"][&choice].as_f64() else { continue };
        known += 1;
        let times = of["us"].as_object().unwrap().values().map(|time| time.as_f64().unwrap());
        let best = times.fold(f64::INFINITY, f64::min);
        let set = of["set"].as_str().unwrap();
        assert!(
            us / best < limits.worst,
            "{set} {}: {choice} takes {us} us, the fastest {best}",
            of["shape"]
        );
        sets.entry(set).or_default().push((us / best).ln());
    }
    assert!(
        known as f64 > KNOWN * problems.len() as f64,
        "{known} of {} choices were measured",
        problems.len()
    );
    for (set, logs) in sets {
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        assert!(mean < limits.mean, "{set}: {mean:.3} of the fastest");
    }
}

#[test]
fn tiles_are_close_to_the_fastest_that_were_measured() {
    // `64x32`, or `8x128 swapped` with weights as rows.
    judge("tiles.jsonl", &Limits { mean: 1.04, worst: 1.2 }, |plan| {
        format!("{}x{}{}", plan.tile.m, plan.tile.n, if plan.swap_ab { " swapped" } else { "" })
    });
}

#[test]
fn tiles_and_schedules_of_4_bit_weights_are_close_to_the_fastest_that_were_measured() {
    // `48x64x128 whole`, or `16x128x256 split_k(4)`.
    judge("decoded_tiles.jsonl", &Limits { mean: 1.01, worst: 1.08 }, |plan| {
        let schedule = match plan.work.schedule {
            Schedule::OneTile | Schedule::Persistent => "whole".to_owned(),
            other => other.to_string(),
        };
        format!("{}x{}x{} {schedule}", plan.tile.m, plan.tile.n, plan.tile.k)
    });
}

/// A tile and schedule for repacked weights, as the file of evidence has them.
fn decoded(shape: Shape, set: impl FnOnce(&mut Spec)) -> (u32, Schedule) {
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm90a]).unwrap();
    spec.formats = formats("bf16,nvfp4_repacked,bf16");
    spec.config.accumulators = Setting::Fixed(Accumulators::InterleavedRows);
    set(&mut spec);
    let plan = spec.plan(shape, Arch::Sm90a).unwrap();
    (plan.tile.k, plan.work.schedule)
}

#[test]
fn k_tiles_are_long_only_where_ctas_share_the_k_of_one_matrix() {
    let shape = Shape::new(80, 4096, 7168);
    assert_eq!(decoded(shape, |_| ()), (256, Schedule::StreamK));
    let stream_k = |spec: &mut Spec| spec.config.schedule = Setting::Fixed(Schedule::StreamK);
    assert_eq!(decoded(shape, stream_k), (256, Schedule::StreamK));
    // K is not a multiple of 256; stages are given; tiles of more tokens; several matrices.
    assert_eq!(decoded(Shape::new(80, 4096, 7168 + 128), stream_k).0, 128);
    let stages = |spec: &mut Spec| spec.config.stages = Setting::Fixed(3);
    assert_eq!(decoded(shape, stages).0, 128);
    assert_eq!(decoded(Shape::new(128, 4096, 14336), |_| ()).0, 128);
    assert_eq!(decoded(Shape { groups: Groups::Batch(4), ..shape }, stream_k).0, 128);
}
