//! What `dual_gemm!` expands to: the same dual GEMM that its text makes at run time, down to the
//! bytes of its kernels.

use silumin::codegen::gate::{BUILTINS, builtin_gate};
use silumin::codegen::problem::{Formats, PreactivationFormat};
use silumin::{Arch, Config, DualGemm, Shape, Spec, dual_gemm};

/// Shapes that every configuration below takes at least one of.
const SHAPES: [Shape; 2] = [Shape::new(256, 512, 2048), Shape::new(3, 40, 96)];

/// Asserts that the macro's dual GEMM is the one of this gate and these knobs.
fn same(made: &DualGemm, gate: &str, knobs: &[(&str, &str)]) {
    let mut expected = Spec::new(gate.parse().unwrap(), &Arch::ALL).unwrap();
    for (name, value) in knobs {
        expected.config.set(name, value).unwrap();
    }
    assert_eq!(*made.spec(), expected, "{gate}, {knobs:?}");
    assert_eq!(made.shape(), None);
    let kernels = SHAPES.iter().filter_map(|&shape| expected.kernel(shape, Arch::Sm100a).ok());
    let mut compared = 0;
    for kernel in kernels {
        let ours = made.kernel(kernel.problem.shape, Arch::Sm100a).unwrap();
        assert_eq!(ours.ptx, kernel.ptx, "{gate}, {knobs:?}");
        assert_eq!(ours, kernel);
        compared += 1;
    }
    assert!(compared > 0, "{gate}, {knobs:?}: no kernel was compared");
}

/// Hands the same text to the macro and to the run-time readers.
macro_rules! same {
    ([$($knob:ident = $value:tt $(($argument:literal))?),*] $($gate:tt)*) => {
        same(
            &dual_gemm!(<$($knob = $value $(($argument))?),*> $($gate)*),
            stringify!($($gate)*),
            &[$((stringify!($knob), stringify!($value $(($argument))?))),*],
        )
    };
}

#[test]
fn builtin_gates_are_carried_whole() {
    let made = [
        dual_gemm!(silu(A @ B1) * (A @ B2)),
        dual_gemm!(gelu(A @ B1) * (A @ B2)),
        dual_gemm!(gelu_tanh(A @ B1) * (A @ B2)),
        dual_gemm!(relu(A @ B1) * (A @ B2)),
        dual_gemm!(sigmoid(A @ B1) * (A @ B2)),
        dual_gemm!((A @ B1) * (A @ B2)),
        dual_gemm!(
            min(A @ B1, 7.0) * sigmoid(1.702 * min(A @ B1, 7.0)) * (clamp(A @ B2, -7.0, 7.0) + 1.0)
        ),
        dual_gemm!(silu(alpha * (A @ B1)) * (alpha * (A @ B2))),
    ];
    assert_eq!(made.len(), BUILTINS.len());
    for (made, builtin) in made.iter().zip(&BUILTINS) {
        assert_eq!(made.spec().gate, builtin_gate(builtin.name).unwrap());
        same(made, builtin.source, &[]);
    }
}

#[test]
fn gates_keep_the_names_and_the_order_of_their_author() {
    same!([] silu(x @ gate) * (x @ up));
    same!([] (A @ B1) * silu(A @ B2));
    same!([] (scale * (X @ Up)) * silu(scale * (X @ Gate)));
    same!([] silu(s[m] * (x @ gate) * w[n] + b1[n]) * (alpha * (x @ up) - b2[n]));
    same!([k_order = split_tail(1)] (x @ up + b[n]) * gelu(s[m] * (x @ gate)));
    same!([] (clamp(x @ up, -7, 7e0) + 1) * (min(x @ gate, 7) * sigmoid(1.702 * min(x @ gate, 7))));
}

#[test]
fn kept_preactivations_are_carried() {
    for (made, preactivations) in [
        (dual_gemm!(<preactivations = none> silu(A @ B1) * (A @ B2)), None),
        (dual_gemm!(<preactivations = bf16> silu(A @ B1) * (A @ B2)), Some(PreactivationFormat::Bf16)),
        (
            dual_gemm!(<nvfp4 -> f16, preactivations = f16> silu(A @ B1) * (A @ B2)),
            Some(PreactivationFormat::F16),
        ),
        (
            dual_gemm!(<preactivations = f32, stages = 2> silu(A @ B1) * (A @ B2)),
            Some(PreactivationFormat::F32),
        ),
    ] {
        assert_eq!(made.spec().formats, Formats { preactivations, ..Formats::default() });
    }
}

#[test]
fn every_knob_is_carried() {
    same!([tile = auto, stages = auto, a_reuse = auto, tmem_columns = auto, cache = auto, store = auto]
        silu(A @ B1) * (A @ B2));
    same!([tile = [128, 64, 256], stages = 3] silu(A @ B1) * (A @ B2));
    same!([cta_group = 1] silu(A @ B1) * (A @ B2));
    same!([cta_group = 2, tile = [256, 64, 256]] silu(A @ B1) * (A @ B2));
    same!([k_order = reverse] silu(A @ B1) * (A @ B2));
    same!([k_order = serpentine, store = direct] silu(A @ B1) * (A @ B2));
    same!([k_order = split_tail(2), sf_preload = ahead(1)] silu(A @ B1) * (A @ B2));
    same!([sf_preload = all, a_reuse = none] silu(A @ B1) * (A @ B2));
    same!([accumulators = side_by_side, tile = [128, 128, 128]] silu(A @ B1) * (A @ B2));
    same!([accumulators = separate, a_reuse = collector, tmem_columns = 512, sf_preload = per_stage]
        silu(A @ B1) * (A @ B2));
    same!([cache = [a: evict_last, b: evict_first, sf: evict_normal, c: evict_first], store = tma]
        silu(A @ B1) * (A @ B2));
    same!([cache = none, k_order = forward] silu(A @ B1) * (A @ B2));
}

dual_gemm! {
    /// Documented, as items are.
    pub SwiGlu<A: nvfp4, B: nvfp4, C: f16, stages = 2> = silu(A @ B1) * (A @ B2);
    GeGlu<X: nvfp4, shape = [1, 64, 64]> = gelu(X @ W1) * (X @ W2);
}

#[test]
fn items_are_statics_with_a_name() {
    assert_eq!(SwiGlu.spec().name, "SwiGlu");
    assert_eq!(SwiGlu.spec().config, Config { stages: "2".parse().unwrap(), ..Config::default() });
    assert_eq!(SwiGlu.shape(), None);
    let shape = Shape::new(1, 64, 64);
    assert_eq!(GeGlu.shape(), Some(shape));
    let kernel = GeGlu.kernel(shape, Arch::Sm100a).unwrap();
    assert!(kernel.ptx.contains(".entry GeGlu_n64_k64_m00001"), "{}", kernel.ptx);
    assert!(kernel.ptx.contains("gelu(X @ W1) * (X @ W2)"));
}

#[test]
fn a_fixed_shape_is_the_only_one() {
    let fixed = dual_gemm!(<nvfp4 -> f16, shape = [256, 512, 2_048], arch = sm_100a> silu(A @ B1) * (A @ B2));
    assert_eq!(fixed.shape(), Some(SHAPES[0]));
    assert!(fixed.kernel(SHAPES[0], Arch::Sm100a).is_ok() && fixed.kernel(SHAPES[1], Arch::Sm100a).is_err());
}

#[test]
fn names_in_the_users_scope_do_not_matter() {
    #[allow(non_camel_case_types, dead_code, reason = "they are in the way on purpose")]
    mod silumin {
        pub struct DualGemm;
    }
    #[allow(dead_code, reason = "it is in the way on purpose")]
    mod std {}
    #[allow(dead_code, reason = "it is in the way on purpose")]
    enum Option {
        Some,
        None,
    }
    #[allow(dead_code, reason = "it is in the way on purpose")]
    struct String;
    let made = dual_gemm!(<cache = [a: evict_first]> silu(alpha * (A @ B1)) * (alpha * (A @ B2)));
    assert_eq!(made.spec().gate.expr.scalars(), ["alpha"]);
}

#[cfg(feature = "llvm")]
#[test]
fn a_gate_of_ones_own_is_lowered_while_compiling() {
    let made = dual_gemm!(tanh(A @ B1) / 3 - square(shift + A @ B2));
    let kernel = made.kernel(SHAPES[1], Arch::Sm100a).unwrap();
    assert!(kernel.ptx.contains("tanh(A @ B1)"));
    // Only the macro has LLVM, unless the run time was asked to have it as well.
    let again = Spec::new(made.spec().gate.clone(), &Arch::ALL);
    match cfg!(feature = "llvm-runtime") {
        true => assert_eq!(again.as_ref(), Ok(made.spec())),
        false => assert!(again.is_err()),
    }
}
