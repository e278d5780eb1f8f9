//! Every rung of `examples/ladder.rs` on a small shape.

use silumin::Shape;
#[allow(dead_code)]
use silumin_cli::ladder;

#[test]
fn every_rung_is_right_and_moves_what_its_plan_says() {
    let rungs = ladder::climb(Shape::new(256, 384, 1280), 0, "b200").unwrap();
    assert_eq!(rungs.len(), 12);
    for rung in &rungs {
        assert!(rung.right, "{}", rung.text);
        assert!(rung.predicted > 3.0 && rung.text.contains("not measured"), "{}", rung.text);
        assert!(rung.text.contains("PASS") && rung.text.contains("dual_gemm!(<"), "{}", rung.text);
    }
}

#[test]
fn a_shape_without_a_kernel_says_why() {
    let error = ladder::climb(Shape::new(256, 384, 40), 1, "b200").err().unwrap();
    assert!(error.contains("K = 40"), "{error}");
}
