//! `emit --explain`: why a configuration is legal and what bounds it, or everything that makes it illegal.

use silumin::codegen::spec::Spec;
use silumin::{Arch, Shape};

/// Prints the explanation; true where the configuration is legal.
pub fn run(spec: &Spec, shape: Shape, arch: Arch) -> bool {
    match spec.plan(shape, arch) {
        Ok(plan) => {
            println!("problem   {} on {arch}, gate {}", plan.problem, spec.gate);
            print!("{}", plan.explain());
            println!(
                "floor     {:.2} us for any kernel, {:.2} us with this schedule (modelled)",
                plan.floor_seconds() * 1e6,
                plan.schedule_floor_seconds() * 1e6
            );
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
