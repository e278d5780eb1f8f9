//! `emit --explain`: why a configuration is legal and what bounds its time, or everything that makes it illegal.

use crate::measure::predicted;
use rayon::prelude::*;
use serde_json::{Value, json};
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::Spec;
use silumin::{Arch, Shape};

/// Prints the explanation; `true` if the configuration is legal. `chip` is the one for predicted times, or `off`.
pub fn run(spec: &Spec, shape: Shape, arch: Arch, chip: &str) -> bool {
    match spec.plan(shape, arch) {
        Ok(plan) => {
            println!("problem   {} on {arch}, gate {}", plan.problem, spec.gate);
            print!("{}", plan.explain());
            println!(
                "floor     {:.2} us for any kernel, {:.2} us with this schedule (by the chip's rates)",
                plan.floor_seconds() * 1e6,
                plan.schedule_floor_seconds() * 1e6
            );
            if chip != "off" {
                times(spec, &plan, chip);
            }
            true
        }
        Err(errors) => {
            println!("{shape} with {}: no such kernel, for {} reason(s)", spec.config, errors.len());
            for error in &errors {
                println!("  {:<20}{error}\n  {:<20}way out: {}", error.knob(), "", error.hint());
            }
            false
        }
    }
}

/// The explanation as a JSON document: why a configuration is legal, or all that makes it illegal. `chip` is as for [`run`].
pub fn document(spec: &Spec, shape: Shape, arch: Arch, chip: &str) -> Value {
    let plan = match spec.plan(shape, arch) {
        Ok(plan) => plan,
        Err(errors) => {
            let reasons: Vec<Value> = (errors.iter())
                .map(|e| json!({ "knob": e.knob(), "reason": e.to_string(), "way_out": e.hint() }))
                .collect();
            return json!({ "legal": false, "shape": shape.to_string(), "arch": arch.to_string(), "reasons": reasons });
        }
    };
    let why = plan.explain();
    let knobs: Vec<Value> = (why.choices.iter())
        .map(|choice| json!({ "knob": choice.knob, "value": choice.value, "rule": choice.rule }))
        .collect();
    let memories: Vec<Value> = (why.rooms.iter())
        .map(|room| {
            let parts: Vec<Value> =
                room.parts.iter().map(|part| json!({ "name": part.name.to_string(), "size": part.size })).collect();
            json!({ "memory": room.name, "unit": room.unit, "limit": room.limit, "used": room.used, "parts": parts })
        })
        .collect();
    let what_ifs: Vec<Value> = (why.what_ifs.iter())
        .map(|what_if| match &what_if.outcome {
            Ok([smem, tmem, stages]) => json!({
                "knob": what_if.knob, "value": what_if.value, "legal": true, "smem_bytes": smem, "tmem_columns": tmem, "stages": stages,
            }),
            Err(errors) => {
                let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
                json!({ "knob": what_if.knob, "value": what_if.value, "legal": false, "reasons": reasons })
            }
        })
        .collect();
    let time = (chip != "off").then(|| {
        let kernel = spec.kernel(shape, arch).map_err(|error| error.to_string());
        match kernel.and_then(|kernel| predicted(&kernel, chip)) {
            Ok(time) => json!({ "chip": chip, "us": time.time() / 1e3 }),
            Err(reason) => json!({ "error": reason }),
        }
    });
    json!({
        "legal": true, "problem": plan.problem.to_string(), "arch": arch.to_string(), "gate": spec.gate.to_string(), "knobs": knobs,
        "memories": memories, "what_ifs": what_ifs, "waves": why.balance.waves, "busy": why.balance.efficiency,
        "floor_us": plan.floor_seconds() * 1e6, "schedule_floor_us": plan.schedule_floor_seconds() * 1e6, "predicted": time,
    })
}

/// Prints the predicted time, what bounds it, and the times of neighbouring configurations.
fn times(spec: &Spec, plan: &Plan, chip: &str) {
    let (shape, arch) = (plan.problem.shape, plan.arch);
    let time = |spec: &Spec| {
        let kernel = spec.kernel(shape, arch).map_err(|error| error.to_string())?;
        predicted(&kernel, chip)
    };
    let neighbours: Vec<(String, Spec)> = (plan.explain().what_ifs.into_iter())
        .filter(|what_if| what_if.outcome.is_ok())
        .map(|what_if| {
            let other = Spec { config: what_if.config, ..spec.clone() };
            (format!("{} = {}", what_if.knob, what_if.value), other)
        })
        .collect();
    let (own, others) = rayon::join(
        || time(spec),
        || neighbours.par_iter().map(|(name, other)| (name, time(other))).collect::<Vec<_>>(),
    );
    let own = match own {
        Ok(own) => own,
        Err(reason) => return println!("predicted no time: {reason}"),
    };
    println!("predicted {:.2} us on chip {chip}, not measured", own.time() / 1e3);
    let longest = own.launches.iter().max_by(|a, b| a.time.total_cmp(&b.time));
    let path = longest.map(|launch| &launch.path).into_iter().flatten();
    let mut path: Vec<_> = path.map(|(cause, ns)| (cause.name(), *ns)).collect();
    path.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (cause, ns) in path.iter().take(4) {
        println!("  {:8.2} us of the critical path: {cause}", ns / 1e3);
    }
    for (name, other) in others {
        match other {
            Ok(other) => println!(
                "  {:8.2} us with {name} ({:+.1} %)",
                other.time() / 1e3,
                100.0 * (other.time() / own.time() - 1.0)
            ),
            Err(reason) => println!("  no time with {name}: {reason}"),
        }
    }
}
