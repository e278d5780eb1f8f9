//! Kernels for mutation: `tests/mutants.rs` runs a sample of their mutants, `cargo xtask mutants` writes
//! `evidence/mutants.jsonl`.

use silumin::codegen::config::Setting;
use silumin::codegen::plan::Operand;
use silumin::codegen::problem::{ByteScale, Problem, ScaleFormat};
use silumin::codegen::spec::SpecFile;
use silumin::formats::layout;
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::launch_file;
use silumin::{Kernel, Plan, Shape};
use silumin_emulator::mutate::{self, Equivalents};
use std::fs;
use std::path::Path;

/// Golden kernels, at sizes that wrap around their rings of stages and are ragged in M, N and K.
pub const KERNELS: &[(&str, Shape)] = &[
    ("default", Shape::new(130, 136, 2400)),
    ("one_token", Shape::new(130, 40, 1952)),
    ("one_cta", Shape::new(130, 72, 3872)),
    ("pair_ragged", Shape::new(130, 136, 3872)),
    ("ragged", Shape::new(130, 72, 1056)),
    ("ragged_tma", Shape::new(130, 200, 2336)),
    ("scalar_gate", Shape::new(128, 72, 2080)),
    ("scales_ahead", Shape::new(130, 72, 2400)),
    ("scales_all", Shape::new(130, 72, 2048)),
    ("side_by_side", Shape::new(130, 72, 2400)),
    ("split_tail", Shape::new(130, 72, 2400)),
    ("wide_tile", Shape::new(130, 72, 2400)),
    ("split_k", Shape::new(130, 72, 2080)),
    ("cluster_split_k", Shape::new(130, 72, 2080)),
    ("swapped", Shape::new(10, 130, 2400)),
    ("swapped_tma", Shape::new(70, 136, 1056)),
    ("multicast_a", Shape::new(130, 200, 1952)),
    ("multicast_b", Shape::new(300, 72, 1440)),
    ("multicast_pair_a", Shape::new(300, 328, 1440)),
    ("multicast_pair_b", Shape::new(520, 72, 2400)),
    ("mxfp8", Shape::new(130, 160, 1184)),
    ("mixed", Shape::new(130, 72, 1152)),
    ("bf16", Shape::new(130, 72, 856)),
    ("nvfp4_out", Shape::new(130, 160, 2080)),
    ("nvfp4_out_tma", Shape::new(130, 160, 2080)),
    ("swapped_nvfp4_out", Shape::new(10, 160, 2400)),
    ("preactivations", Shape::new(130, 75, 1056)),
    ("sequential", Shape::new(130, 72, 1440)),
    ("persistent", Shape::new(300, 200, 1440)),
    ("persistent_pair", Shape::new(300, 200, 1056)),
    ("dynamic", Shape::new(300, 136, 1440)),
    ("dynamic_pair", Shape::new(600, 136, 1056)),
    // An even number of K tiles: with an odd one the bound of `odd_even` has no effect.
    ("two_per_sm", Shape::new(300, 136, 1440)),
    ("stream_k", Shape::new(130, 200, 2080)),
    ("overlapped", Shape::new(300, 200, 1440)),
    ("overlapped_tail", Shape::new(300, 300, 1056)),
    ("lanes", Shape::new(130, 136, 2400)),
    ("batched", Shape::new(200, 136, 800).batch(3)),
    ("grouped_pair", Shape::new(400, 160, 800).grouped(4)),
    ("hopper_default", Shape::new(130, 136, 360)),
    ("hopper_side_by_side", Shape::new(300, 136, 344)),
    ("hopper_ping_pong", Shape::new(200, 200, 360)),
    ("hopper_multicast_b", Shape::new(300, 136, 360)),
    ("hopper_natural", Shape::new(250, 136, 1152)),
    ("hopper_hand_over", Shape::new(300, 392, 520)),
];

/// Writes a golden kernel with inputs and its own knobs as launch files to `folder`.
///
/// # Errors
/// What cannot be read, made or written.
pub fn write(name: &str, shape: Shape, folder: &Path, knobs: &[(&str, &str)]) -> Result<Kernel, String> {
    let mut file = spec(name)?;
    for (knob, value) in knobs {
        file.config.set(knob, value).map_err(|e| e.to_string())?;
    }
    let (spec, arch) = file.read().map_err(|e| e.to_string())?;
    let kernel = spec.kernel(shape, arch).map_err(|e| e.to_string())?;
    let inputs = DualGemmInputs::generate_problem(&kernel.problem, None, Distribution::Benchmark, 1111)
        .map_err(|e| e.to_string())?;
    let scalars = &[("alpha", 1.0)][..spec.gate.expr.scalars().len()];
    launch_file::write(folder, &kernel, Some(&inputs), scalars).map_err(|e| e.to_string())?;
    fill_pads(&kernel, &inputs, folder)?;
    Ok(kernel)
}

/// Fills the padding of scale factors with ones: zeros would hide an MMA that reads padding.
fn fill_pads(kernel: &Kernel, inputs: &DualGemmInputs, folder: &Path) -> Result<(), String> {
    let Problem { shape, formats, .. } = kernel.problem;
    let rows_of_a: Vec<usize> = inputs.group_sizes().segments().map(|segment| segment.rows.len()).collect();
    let rows_of_b = vec![shape.n as usize; shape.groups.count() as usize];
    let operands = [
        (Operand::Sfa, formats.a, rows_of_a),
        (Operand::Sfb1, formats.b, rows_of_b.clone()),
        (Operand::Sfb2, formats.b, rows_of_b),
    ];
    for (operand, format, matrices) in operands {
        let Some(scales) = format.spec().scales else { continue };
        let one = match scales.format {
            ScaleFormat::Byte(ByteScale::Ue4m3) => 0x38,
            ScaleFormat::Byte(ByteScale::Ue8m0) => 0x7f,
            // They have no padding.
            ScaleFormat::F32 => continue,
        };
        let path = folder.join(format!("{}.{operand}.bin", kernel.name));
        let mut bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let columns = scales.columns(shape.k) as usize;
        let mut matrix = bytes.as_mut_slice();
        for rows in matrices {
            let there =
                layout::to_blocked(&vec![1; rows * columns], rows, columns).map_err(|e| e.to_string())?;
            let (own, rest) = matrix.split_at_mut(there.len());
            own.iter_mut().zip(there).filter(|(_, there)| *there == 0).for_each(|(byte, _)| *byte = one);
            matrix = rest;
        }
        fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// The plan of a golden kernel at a size.
///
/// # Errors
/// What cannot be read or planned.
pub fn settled(name: &str, shape: Shape) -> Result<Plan, String> {
    let (spec, arch) = spec(name)?.read().map_err(|e| e.to_string())?;
    spec.plan(shape, arch).map_err(|errors| format!("{name} at {shape}: {errors:?}"))
}

/// The knobs of a plan that would be chosen differently at other sizes.
pub fn knobs(plan: &Plan) -> Vec<(&'static str, String)> {
    let pinned = [
        "tile",
        "cta_group",
        "ctas_per_sm",
        "epilogue_warps",
        "swap_ab",
        "multicast",
        "consumers",
        "stages",
        "k_order",
        "sf_preload",
        "accumulators",
        "accumulator_buffers",
        "schedule",
        "cache",
        "store",
    ];
    plan.config.entries().into_iter().filter(|(knob, _)| pinned.contains(knob)).collect()
}

fn spec(name: &str) -> Result<SpecFile, String> {
    let input = crate::root().join("tests/in").join(format!("{name}.toml"));
    let text = fs::read_to_string(&input).map_err(|e| format!("{}: {e}", input.display()))?;
    let mut file: SpecFile = toml::from_str(&text).map_err(|e| format!("{}: {e}", input.display()))?;
    // As at the kernel's own shape: where tiles are few, `auto` has clusters share K, which other kernels here are about.
    if file.config.schedule == Setting::Auto {
        let (spec, arch) = file.read().map_err(|e| e.to_string())?;
        let plan = spec.plan(file.shape(), arch).map_err(|errors| format!("{name}: {errors:?}"))?;
        if plan.tmem().is_some() {
            file.config.schedule = plan.config.schedule;
        }
    }
    Ok(file)
}

/// A plan with one random schedule and the list of known equivalent mutants.
///
/// # Errors
/// What is wrong with their list.
pub fn plan() -> Result<mutate::SurveyOptions, String> {
    let path = crate::root().join("tests/mutants.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(mutate::SurveyOptions {
        seeds: 1,
        equivalents: Equivalents::parse(&text)?,
        ..mutate::SurveyOptions::default()
    })
}
