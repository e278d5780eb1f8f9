//! Compares every approximate function with what an H200 computed.

use super::full::*;
use super::*;
use crate::engine::format::Rounding;
use crate::isa::Ty;
use crate::lanes::convert::Convert;
use crate::lanes::float;
use rayon::prelude::*;

const TRUTH: &str = include_str!("approximations.txt");

fn function(name: &str) -> Box<dyn Fn(u32) -> u32 + Sync> {
    const PI: u32 = 0x4049_0fdb;
    match name {
        "ex2.ftz" => Box::new(ex2),
        "rcp.ftz" => Box::new(rcp),
        "rsqrt.ftz" => Box::new(rsqrt),
        "lg2.ftz" => Box::new(lg2),
        "sqrt.ftz" => Box::new(sqrt),
        "sin.ftz" | "sin" => Box::new(sin_full),
        "cos.ftz" => Box::new(cos_full),
        "tanh" => Box::new(tanh),
        "ex2" => Box::new(ex2_full),
        "rcp" => Box::new(rcp_full),
        "rsqrt" => Box::new(rsqrt_full),
        "lg2" => Box::new(lg2_full),
        "sqrt" => Box::new(sqrt_full),
        "x div.full pi" => Box::new(|x| div_full(x, PI, false)),
        "pi div.full x" => Box::new(|x| div_full(PI, x, false)),
        "pi div.approx x" => Box::new(|x| div_approx(PI, x, false)),
        "pi div.full.ftz x" => Box::new(|x| div_full(PI, x, true)),
        "cvt.rna.tf32" => {
            let convert = Convert {
                dst: Ty::Tf32,
                src: Ty::F32,
                reg_bits: 32,
                rounding: Rounding::NearestAway,
                integral: false,
                ftz: false,
                sat: false,
                satfinite: false,
                relu: false,
            };
            Box::new(move |x| convert.apply(u64::from(x)) as u32)
        }
        "ex2.f16x2" => {
            let f = float::one("ex2.approx", Ty::F16x2, float::Mode::default()).expect("it exists");
            Box::new(move |x| {
                let mut out = [0; 32];
                f(&[u64::from(x); 32], &mut out);
                out[0] as u32
            })
        }
        _ => panic!("{name} is not known"),
    }
}

/// Checksum of `f` over the words whose upper half is `upper`.
fn sum(f: &dyn Fn(u32) -> u32, from: u32, upper: u32) -> u32 {
    (0..=0xffff).fold(from, |h: u32, low| h.wrapping_mul(0x0100_0193).wrapping_add(f(upper << 16 | low)))
}

/// Compares checksums with an H200's: of a 512th of the inputs, or of all 2^32 words of every function if
/// `SILUMIN_FULL` is set, which takes minutes.
#[test]
fn approximations_are_those_of_an_h200() {
    let all = std::env::var_os("SILUMIN_FULL").is_some();
    let mut count = 0;
    for line in TRUTH.lines().filter(|l| !l.starts_with('#')) {
        let (name, numbers) = line.split_once(": ").expect("a name");
        let mut numbers = numbers.split(' ');
        let from: u32 = numbers.next().and_then(|n| n.parse().ok()).expect("a number");
        let total = u64::from_str_radix(numbers.next().expect("a total"), 16).expect("a total");
        let f = function(name);
        let sums: Vec<u32> = numbers.map(|n| u32::from_str_radix(n, 16).expect("a sum")).collect();
        assert_eq!(sums.len(), 128);
        let wrong: Vec<u32> = (sums.par_iter().enumerate())
            .filter_map(|(k, &want)| {
                let upper = (k as u32 * 521 + 7) % 65_536;
                (sum(&*f, from, upper) != want).then_some(upper)
            })
            .collect();
        assert!(wrong.is_empty(), "{name} of words that start with {wrong:04x?}");
        if all {
            let sums: Vec<u32> = (0..65_536u32).into_par_iter().map(|upper| sum(&*f, from, upper)).collect();
            let bytes = sums.iter().flat_map(|s| s.to_le_bytes());
            let hash = bytes
                .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
            assert_eq!(hash, total, "{name} of all words");
        }
        count += 1;
    }
    assert_eq!(count, 20);
}
