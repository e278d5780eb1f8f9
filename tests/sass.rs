//! What the machine code of the default kernel holds.

use silumin::Shape;
use silumin::codegen::spec::SpecFile;
use silumin::verify::toolchain::{Nvdisasm, Ptxas};

/// Counts of mnemonics in the kernel that `group` CTAs a tile make of the default problem.
fn audit(group: &str, k_order: &str, counts: impl Fn(usize) -> Vec<(&'static str, usize)>) {
    let shape = Shape::new(256, 4096, 7168);
    let mut file = SpecFile::new(shape);
    file.config.set("cta_group", group).unwrap();
    file.config.set("k_order", k_order).unwrap();
    let (spec, arch) = file.read().unwrap();
    let kernel = spec.kernel(shape, arch).unwrap();
    let plan = spec.plan(shape, arch).unwrap();
    let assembled = Ptxas::find().unwrap().assemble(&kernel.ptx, arch).unwrap();
    let resources = assembled.entry(&kernel.name).unwrap();
    assert_eq!((resources.spill_stores, resources.spill_loads, resources.stack_frame), (0, 0, 0));
    assert!(assembled.warnings.is_empty(), "{:?}", assembled.warnings);
    let sass = Nvdisasm::find().unwrap().disassemble(&assembled.cubin).unwrap();
    let count = |mnemonic: &str| sass.lines().filter(|line| line.contains(mnemonic)).count();
    for (mnemonic, wanted) in counts(plan.k_loop.blocks as usize) {
        assert_eq!(count(mnemonic), wanted, "{mnemonic}");
    }
    // No local memory: neither loads nor stores.
    assert_eq!((count("LDL"), count("STL")), (0, 0));
}

// UTCOMMA.4X is the block-scaled FP4 MMA with a scale for every 16 of K: two a K block, the first keeping A
// in the collector, the second reusing it; three copies of scale factors.

#[test]
fn one_ctas_main_loop_is_block_scaled_mmas_fed_by_tma_without_local_memory() {
    audit("1", "forward", |blocks| {
        vec![
            ("UTCOMMA.4X", 2 * blocks),
            (".A_KEEP", blocks),
            (".A_REUSE", blocks),
            ("UTCCP.T.S.4x32dp128bit", 3 * blocks),
            // A, B1, B2 by tensor map; their scale factors by bulk copy.
            ("UTMALDG.2D", 3),
            ("UBLKCP", 3),
        ]
    });
}

#[test]
fn a_pairs_main_loop_is_the_same_in_mmas_of_two_ctas() {
    audit("2", "forward", |blocks| {
        vec![
            ("UTCOMMA.2CTA.4X", 2 * blocks),
            (".A_KEEP", blocks),
            (".A_REUSE", blocks),
            ("UTCCP.T.S.2CTA.4x32dp128bit", 3 * blocks),
            // Operands and scale factors by tensor map: a bulk copy can't signal the leader. B1's or B2's go to
            // both CTAs.
            ("UTMALDG.2D.2CTA", 4),
            ("UTMALDG.2D.MULTICAST.2CTA", 1),
            ("UBLKCP", 0),
        ]
    });
}

#[test]
fn the_split_tail_that_auto_chooses_costs_no_local_memory_and_no_loads() {
    audit("auto", "auto", |blocks| {
        vec![
            // Only the main loop keeps A; ptxas may unroll the tail's loops.
            (".A_KEEP", blocks),
            (".A_REUSE", blocks),
            ("UTMALDG.2D.2CTA", 4),
            ("UTMALDG.2D.MULTICAST.2CTA", 1),
        ]
    });
}
