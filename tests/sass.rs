//! What the machine code of the default kernel holds.

use silumin::Shape;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::toolchain::{Nvdisasm, Ptxas};

#[test]
fn the_main_loop_is_block_scaled_mmas_fed_by_tma_without_local_memory() {
    let shape = Shape::new(256, 4096, 7168);
    let (spec, arch) = SpecFile::new(shape).read().unwrap();
    let kernel = spec.kernel(shape, arch).unwrap();
    let plan = spec.plan(shape, arch).unwrap();
    let assembled = Ptxas::find().unwrap().assemble(&kernel.ptx, arch).unwrap();
    let resources = assembled.entry(&kernel.name).unwrap();
    assert_eq!((resources.spill_stores, resources.spill_loads, resources.stack_frame), (0, 0, 0));
    assert!(assembled.warnings.is_empty(), "{:?}", assembled.warnings);

    let sass = Nvdisasm::find().unwrap().disassemble(&assembled.cubin).unwrap();
    let count = |mnemonic: &str| sass.lines().filter(|line| line.contains(mnemonic)).count();
    let blocks = plan.k_loop.blocks as usize;
    // UTCOMMA.4X is the block-scaled FP4 MMA with a scale for every 16 of K: two a K block, the
    // first keeping A in the collector, the second reusing it.
    assert_eq!(count("UTCOMMA.4X"), 2 * blocks);
    assert_eq!((count(".A_KEEP"), count(".A_REUSE")), (blocks, blocks));
    assert_eq!(count("UTCCP.T.S.4x32dp128bit"), 3 * blocks);
    // A, B1, B2 by tensor map; their scale factors by bulk copy.
    assert_eq!((count("UTMALDG.2D"), count("UBLKCP")), (3, 3));
    // No local memory: neither loads nor stores.
    assert_eq!((count("LDL"), count("STL")), (0, 0));
}
