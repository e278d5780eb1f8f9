//! Looking a kernel up while an engine serves: no allocation, whatever bucket it is, and no lock that a compile holds.

use silumin::runtime::warmup::{Availability, Outside};
use silumin::{Arch, Buckets, Device, DualGemm, Shape, Spec, Warmup};
use silumin_testkit::allocations::allocations;
#[test]
fn a_lookup_allocates_nothing() {
    let gemm = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap());
    let kernels = Warmup::of(&gemm)
        .weights(64, 64)
        .weights(64, 128)
        .buckets(Buckets::powers_of_two(32).and([12, 24, 27]).unwrap())
        .shapes(&[Shape::new(5, 64, 64)])
        .outside(Outside::Background)
        .run(&Device::emulated(Arch::Sm100a))
        .unwrap();
    assert_eq!(allocations(|| drop(vec![1u8])), 1, "allocations are counted");
    let mut rows = 0;
    let count = allocations(|| {
        for m in 1..=32 {
            for k in [64, 128] {
                rows += kernels.for_problem(m, 64, k).unwrap().kernel().problem.shape.m;
            }
        }
    });
    assert_eq!(count, 0);
    assert!(rows > 2 * 33 * 16);
    // A kernel in the making: the first to ask starts a thread; who asks again allocates nothing, before and after.
    assert!(matches!(kernels.choose(40, 64, 64), Ok(Availability::Meanwhile(_))));
    let mut ready = false;
    while !ready {
        let count = allocations(|| ready = matches!(kernels.choose(40, 64, 64), Ok(Availability::Ready(_))));
        assert_eq!(count, 0);
        std::thread::yield_now();
    }
}
