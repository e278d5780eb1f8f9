//! How long it takes from a problem to PTX: `cargo bench -p silumin-bench-host --bench emission`.

use criterion::{Criterion, criterion_group, criterion_main};
use silumin::codegen::arch::Arch;
use silumin::codegen::config::Config;
use silumin::codegen::plan::validate;
use silumin::codegen::problem::{Problem, Shape};
use silumin::codegen::spec::{Spec, SpecFile};
use std::hint::black_box;

fn spec(knobs: &[(&str, &str)]) -> Spec {
    let mut file = SpecFile::new(SHAPE);
    for (knob, value) in knobs {
        file.config.set(knob, value).expect("a knob");
    }
    file.read().expect("a spec").0
}

const SHAPE: Shape = Shape::new(256, 4096, 7168);

fn emission(criterion: &mut Criterion) {
    criterion.bench_function("validate, default", |bencher| {
        let (problem, config) = (Problem::nvfp4(SHAPE), Config::default());
        bencher.iter(|| validate(black_box(&problem), black_box(&config), Arch::Sm100a));
    });
    for (name, knobs) in [
        ("validate and render, default", &[][..]),
        ("validate and render, split tail", &[("k_order", "split_tail(3)"), ("sf_preload", "ahead(2)")]),
    ] {
        let spec = spec(knobs);
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&spec).kernel(black_box(SHAPE), Arch::Sm100a).expect("a kernel"));
        });
    }
}

criterion_group!(benches, emission);
criterion_main!(benches);
