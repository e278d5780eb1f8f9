//! Machine code in loops: what each role of our kernels issues for an MMA, beside Triton's dual GEMM of the same tile.
//!
//! `tests/sass/triton_dual_gemm.py` made Triton's PTX; the same assembler assembles both. `emit --sass` prints the figures.

use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::sass::{Audit, audit, parse};
use silumin::runtime::toolchain::{Nvdisasm, Ptxas};
use silumin::{Arch, Shape};
use std::path::Path;

const SHAPE: Shape = Shape::new(256, 4096, 7168);

fn audits(ptx: &str) -> Vec<Audit> {
    let assembled = Ptxas::find().unwrap().assemble(ptx, Arch::Sm100a).unwrap();
    let sass = Nvdisasm::find().unwrap().disassemble(&assembled.cubin).unwrap();
    parse(&sass).iter().map(audit).collect()
}

fn ours(knobs: &[(&str, &str)]) -> (Plan, Vec<Audit>) {
    let mut file = SpecFile::new(SHAPE);
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, arch) = file.read().unwrap();
    (spec.plan(SHAPE, arch).unwrap(), audits(&spec.kernel(SHAPE, arch).unwrap().ptx))
}

fn triton(name: &str) -> Audit {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sass").join(name);
    audits(&std::fs::read_to_string(path).unwrap()).remove(0)
}

/// Instructions for an MMA: of the loop that issues MMAs, of the one that issues loads.
fn roles(audit: &Audit) -> (f64, f64) {
    (audit.mma_role().unwrap(), audit.load_role().unwrap())
}

/// The fewest that Triton issues in either of its two forms.
fn fewest() -> (f64, f64) {
    let forms = ["triton_dual_gemm.ptx", "triton_dual_gemm_ws.ptx"].map(|name| roles(&triton(name)));
    (forms[0].0.min(forms[1].0), forms[0].1.min(forms[1].1))
}

const CONFIGURATIONS: [&[(&str, &str)]; 10] = [
    &[],
    &[("tile", "[128, 128, 256]")],
    &[("k_order", "split_tail(2)")],
    &[("cta_group", "2")],
    &[("sf_preload", "all")],
    &[("sf_preload", "ahead(2)")],
    &[("schedule", "persistent")],
    &[("schedule", "stream_k")],
    &[("strategy", "sequential")],
    &[("strategy", "second_fused")],
];

#[test]
fn the_loops_issue_fewer_instructions_for_an_mma_than_triton_s() {
    let (mma, load) = fewest();
    for knobs in CONFIGURATIONS {
        let (plan, audits) = ours(knobs);
        let gemms: Vec<&Audit> = audits.iter().filter(|audit| !audit.mma_loops.is_empty()).collect();
        assert!(!gemms.is_empty(), "{knobs:?}");
        for audit in gemms {
            // An iteration is a K tile: all of its MMAs, and its loads in a loop of their own.
            let main = audit.mma_loops[0];
            assert_eq!(main.mmas, plan.smem.b_tiles * plan.k_loop.blocks, "{knobs:?}: {main:?}");
            assert!(!audit.one_loop(), "{knobs:?}");
            let (our_mma, our_load) = roles(audit);
            assert!(
                our_mma < mma,
                "{knobs:?}: {our_mma:.1} instructions for an MMA in the MMA loop, Triton {mma:.1}"
            );
            assert!(our_load < load, "{knobs:?}: {our_load:.1} in the load loop, Triton {load:.1}");
        }
    }
}

#[test]
fn no_kernel_touches_local_memory() {
    for knobs in CONFIGURATIONS {
        for audit in ours(knobs).1 {
            assert_eq!(audit.local, 0, "{knobs:?}");
        }
    }
}

#[test]
fn triton_s_kernels_are_what_they_are_taken_for() {
    // Both: 128 x 128 x 256 tiles, so four MMAs of K = 64 for each product.
    for name in ["triton_dual_gemm.ptx", "triton_dual_gemm_ws.ptx"] {
        let audit = triton(name);
        assert_eq!(audit.mma_loops[0].mmas, 8, "{name}: {:?}", audit.mma_loops);
        assert_eq!(audit.load_loops[0].loads, 6, "{name}: {:?}", audit.load_loops);
    }
}
