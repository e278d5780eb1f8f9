//! Machine code in loops: what each role of our kernels issues for an MMA, beside Triton's dual GEMM of the same tile.
//!
//! `tests/sass/triton_dual_gemm.py` made Triton's PTX; the same assembler assembles both. `emit --sass` prints the figures.

use silumin::codegen::config::Accumulators;
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use silumin::verify::sass::{Audit, audit, parse};
use silumin::verify::toolchain::{Nvdisasm, Ptxas};
use silumin::{Arch, Shape};

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
    let path = silumin_testkit::root().join("tests/sass").join(name);
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

/// Both products in one K loop, an MMA for each.
const INTERLEAVED: [&[(&str, &str)]; 9] = [
    &[],
    &[("tile", "[128, 128, 256]")],
    &[("k_order", "split_tail(2)")],
    &[("cta_group", "2")],
    &[("sf_preload", "all")],
    &[("sf_preload", "ahead(2)")],
    &[("schedule", "persistent")],
    &[("schedule", "dynamic")],
    &[("schedule", "stream_k")],
];

/// One MMA for both products.
const SIDE_BY_SIDE: [&[(&str, &str)]; 2] = [
    &[("accumulators", "side_by_side"), ("tile", "[128, 128, 256]")],
    &[("accumulators", "side_by_side"), ("tile", "[256, 128, 256]"), ("cta_group", "2")],
];

/// A K loop a product: an iteration has half as many MMAs and waits, commits and moves on all the same. So with K tiles
/// of 256 the MMA loop issues more for an MMA than Triton's warp-specialised one; with 512 it does not.
const ONE_PRODUCT: [&[(&str, &str)]; 3] = [
    &[("strategy", "sequential"), ("tile", "[128, 64, 512]")],
    &[("strategy", "second_fused"), ("tile", "[128, 64, 512]")],
    &[("strategy", "two_pass"), ("tile", "[128, 64, 512]")],
];

/// The launches that multiply, which must be there.
fn gemms(knobs: &[(&str, &str)]) -> (Plan, Vec<Audit>) {
    let (plan, mut audits) = ours(knobs);
    audits.retain(|audit| !audit.mma_loops.is_empty());
    assert!(!audits.is_empty(), "{knobs:?}");
    for audit in &audits {
        // An iteration is a K tile: all of its MMAs, and its loads in a loop of their own.
        let together = plan.accumulators == Accumulators::SideBySide;
        let mmas = plan.k_loop.blocks * if together { 1 } else { plan.smem.b_tiles };
        assert_eq!(audit.mma_loops[0].mmas, mmas, "{knobs:?}: {audit:?}");
        assert!(!audit.one_loop(), "{knobs:?}");
    }
    (plan, audits)
}

#[test]
fn the_loops_issue_fewer_instructions_for_an_mma_than_triton_s() {
    let (mma, load) = fewest();
    for knobs in INTERLEAVED.into_iter().chain(ONE_PRODUCT) {
        for audit in gemms(knobs).1 {
            let (our_mma, our_load) = roles(&audit);
            assert!(
                our_mma < mma,
                "{knobs:?}: {our_mma:.1} instructions an MMA in the MMA loop, Triton {mma:.1}"
            );
            assert!(our_load < load, "{knobs:?}: {our_load:.1} in the load loop, Triton {load:.1}");
        }
    }
}

#[test]
fn one_mma_for_both_products_costs_fewer_instructions_a_k_block() {
    // Two of Triton's MMAs are a K block.
    let (mma, load) = fewest();
    for knobs in SIDE_BY_SIDE {
        for audit in gemms(knobs).1 {
            let (our_mma, our_load) = roles(&audit);
            assert!(
                our_mma < 2.0 * mma,
                "{knobs:?}: {our_mma:.1} instructions a K block, Triton {:.1}",
                2.0 * mma
            );
            assert!(
                our_load < 2.0 * load,
                "{knobs:?}: {our_load:.1} in the load loop, Triton {:.1}",
                2.0 * load
            );
        }
    }
}

#[test]
fn a_k_loop_a_product_costs_less_an_iteration_but_more_an_mma() {
    let triton = triton("triton_dual_gemm_ws.ptx");
    for knobs in [&[("strategy", "sequential")], &[("strategy", "second_fused")], &[("strategy", "two_pass")]]
    {
        for audit in gemms(knobs).1 {
            assert!(
                audit.mma_loops[0].instructions < triton.mma_loops[0].instructions,
                "{knobs:?}: {audit:?}"
            );
            assert!(
                audit.load_loops[0].instructions < triton.load_loops[0].instructions,
                "{knobs:?}: {audit:?}"
            );
            // What book/src/sass.md says of them: where this no longer holds, they belong to the test above.
            assert!(audit.mma_role() > triton.mma_role(), "{knobs:?}: {audit:?}");
        }
    }
}

#[test]
fn no_kernel_touches_local_memory() {
    for knobs in INTERLEAVED.into_iter().chain(SIDE_BY_SIDE).chain(ONE_PRODUCT) {
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
