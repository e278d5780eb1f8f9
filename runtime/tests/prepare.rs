//! Kernels that prepare operands: byte for byte what the host makes, on every chip, under schedules that differ.

use half::{bf16, f16};
use proptest::prelude::*;
use silumin_codegen::arch::Arch;
use silumin_codegen::problem::ElementKind;
use silumin_formats::element::encode;
use silumin_formats::layout::to_blocked;
use silumin_formats::quantize::{Real, TensorScale, quantize};
use silumin_runtime::device::{Device, EmulatorOptions, Schedule, Tracking};
use silumin_runtime::prepare::{Activations, E4m3Quantizer, PrepareError, Quantizer, ScaleBlocker, Source};

const CHIPS: [Arch; 2] = [Arch::Sm90a, Arch::Sm100a];

fn device(arch: Arch) -> Device {
    let options = EmulatorOptions {
        schedule: Schedule::Random(7),
        threads: 2,
        tracking: Tracking::HappensBefore,
        ..EmulatorOptions::default()
    };
    Device::emulated_with(arch, options)
}

/// What the kernel has to write: the host's bytes, and NaN for the scale factor of a block that is not finite.
fn expected<T: Number>(values: &[T], rows: usize, k: usize, tensor_scale: f32) -> [Vec<u8>; 2] {
    let mut clean = values.to_vec();
    let bad: Vec<usize> = (0..values.len() / 16)
        .filter(|block| !values[16 * block..][..16].iter().all(|value| value.as_f32().is_finite()))
        .collect();
    for block in &bad {
        clean[16 * block..][..16].fill(T::ZERO);
    }
    let matrix = quantize(&clean, rows, k, TensorScale::Fixed(tensor_scale)).unwrap();
    let mut scales = matrix.scales().to_vec();
    bad.into_iter().for_each(|block| scales[block] = 0x7F);
    [matrix.codes().to_vec(), to_blocked(&scales, rows, k / 16).unwrap()]
}

/// Both sources, so that one loop serves them.
trait Number: Real {
    const SOURCE: Source;
    const ZERO: Self;
    fn bits(self) -> u16;
}

impl Number for bf16 {
    const SOURCE: Source = Source::Bf16;
    const ZERO: Self = bf16::ZERO;
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Number for f16 {
    const SOURCE: Source = Source::F16;
    const ZERO: Self = f16::ZERO;
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

fn compare<T: Number>(device: &Device, values: &[T], k: usize, tensor_scale: f32) {
    let rows = values.len() / k;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.bits().to_le_bytes()).collect();
    let quantizer = Quantizer::load(device, T::SOURCE).unwrap();
    let x = device.upload(&bytes).unwrap();
    let from = Activations { x: &x, rows: rows as u32, k: k as u32, tensor_scale };
    let found =
        quantizer.quantize(&device.stream(), &from).unwrap_or_else(|error| panic!("{device}: {error}"));
    let [codes, scales] = expected(values, rows, k, tensor_scale);
    let scales_found = found.scales.download().unwrap();
    assert_eq!(scales_found, scales, "{device}, {rows} x {k}, scale {tensor_scale:e}");
    for (index, (found, wanted)) in found.codes.download().unwrap().iter().zip(&codes).enumerate() {
        let pair = [2 * index, 2 * index + 1].map(|element| values[element].as_f32());
        assert_eq!(found, wanted, "{device}, {rows} x {k}, scale {tensor_scale:e}, elements {pair:?}");
    }
}

#[test]
fn every_pattern_of_sixteen_bits_on_every_chip() {
    for arch in CHIPS {
        let device = device(arch);
        for tensor_scale in [1.0, 0.37, 1e-4] {
            // Neighbours are of one binade here, and strangers there; infinities and NaN are among them.
            for stride in [1usize, 4099] {
                let patterns = (0..1usize << 16).map(|i| (i * stride % (1 << 16)) as u16);
                let brains: Vec<bf16> = patterns.clone().map(bf16::from_bits).collect();
                compare(&device, &brains, 1024, tensor_scale);
                let halves: Vec<f16> = patterns.map(f16::from_bits).collect();
                compare(&device, &halves, 1024, tensor_scale);
            }
        }
    }
}

#[test]
fn every_pattern_of_sixteen_bits_in_e4m3() {
    fn compare<T: Number>(device: &Device, values: &[T], tensor_scale: f32) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bits().to_le_bytes()).collect();
        let (x, codes) = (device.upload(&bytes).unwrap(), device.alloc(values.len()).unwrap());
        let (rows, k) = (values.len() as u32 / 512, 512);
        let quantizer = E4m3Quantizer::load(device, T::SOURCE).unwrap();
        quantizer.launch(&device.stream(), &Activations { x: &x, rows, k, tensor_scale }, &codes).unwrap();
        for (value, found) in values.iter().zip(codes.download().unwrap()) {
            let wanted = match value.as_f32().is_finite() {
                true => encode(ElementKind::E4m3, value.as_f32() / tensor_scale) as u8,
                false => 0x7F,
            };
            assert_eq!(found, wanted, "{device}, scale {tensor_scale:e}: {}", value.as_f32());
        }
    }
    for arch in CHIPS {
        let device = device(arch);
        for tensor_scale in [1.0, 0.37, 1e-4, 3e38] {
            let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
            compare(&device, &brains, tensor_scale);
            let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
            compare(&device, &halves, tensor_scale);
        }
    }
    let device = device(Arch::Sm90a);
    let quantizer = E4m3Quantizer::load(&device, Source::F16).unwrap();
    let (x, codes) = (device.upload(&[0; 64]).unwrap(), device.alloc(32).unwrap());
    let launch = |k: u32, tensor_scale: f32, codes| {
        let from = Activations { x: &x, rows: 1, k, tensor_scale };
        quantizer.launch(&device.stream(), &from, codes).unwrap_err()
    };
    assert!(matches!(launch(24, 1.0, &codes), PrepareError::KNotBlocked { k: 24 }));
    assert!(matches!(launch(32, 0.0, &codes), PrepareError::TensorScale { .. }));
    assert!(matches!(launch(32, 1.0, &x), PrepareError::Length { tensor: "codes", expected: 32, .. }));
}

#[test]
fn quotients_are_those_of_a_division_whatever_the_step() {
    let device = device(Arch::Sm100a);
    let mut state = 11u64;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    for round in 0..120 {
        // Steps of all mantissas; every eighth time of all sizes, about the bounds of either way to divide too.
        let exponent = match round % 8 {
            0 => 1 + draw() % 253,
            1 => 60 + draw() % 12,
            2 => 180 + draw() % 12,
            _ => 105 + draw() % 20,
        };
        let tensor_scale = f32::from_bits(exponent << 23 | draw() & 0x7F_FFFF);
        // A block's elements within a few octaves of each other, as real ones are.
        let values: Vec<bf16> = (0..1 << 14)
            .map(|i| {
                let octave = (i as u32 / 16 * 7919) % 0x70 + 0x08 + exponent / 2;
                let octave = octave.min(0xFC) - draw() % 4;
                bf16::from_bits(((octave << 7) | (draw() & 0x807F)) as u16)
            })
            .collect();
        compare(&device, &values, 1024, tensor_scale);
    }
}

#[test]
fn ties_of_elements_and_of_scale_factors_go_to_even() {
    // 6 * 2^e * s in each block, so that a step is s * 2^e, and every multiple of a quarter step beside it.
    let mut values = Vec::new();
    for scale in
        [1.0f32, 1.125, 1.0625, 1.1875, 2f32.powi(-9), 2f32.powi(-10), 3.0 * 2f32.powi(-11), 448.0, 464.0]
    {
        for quarter in 0..24 {
            let mut block = [0.0f32; 16];
            for (place, value) in block.iter_mut().enumerate() {
                let sign = if place % 2 == 0 { 1.0 } else { -1.0 };
                *value = sign * scale * 0.25 * ((quarter + place) % 25) as f32;
            }
            block[0] = 6.0 * scale;
            values.extend(block);
        }
    }
    let k = 16 * 24;
    for arch in CHIPS {
        let device = device(arch);
        let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
        let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        for tensor_scale in [1.0, 0.5, f32::MIN_POSITIVE, f32::from_bits(1), 1e30, f32::MAX] {
            compare(&device, &halves, k, tensor_scale);
            compare(&device, &brains, k, tensor_scale);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape_is_that_of_the_host(
        rows in 1usize..140,
        blocks in 1usize..11,
        bits in any::<u64>(),
        exponent in -30i32..30,
        hopper in any::<bool>(),
    ) {
        let device = device(CHIPS[usize::from(!hopper)]);
        let mut state = bits | 1;
        let values: Vec<bf16> = (0..rows * blocks * 16)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bf16::from_f32(((state >> 33) as f32 / (1u64 << 30) as f32 - 1.0) * 2f32.powi(exponent))
            })
            .collect();
        compare(&device, &values, blocks * 16, 2f32.powi(exponent) * 0.01);
    }

    #[test]
    fn scale_factors_are_blocked_as_on_the_host(rows in 1usize..300, columns in 1usize..19, hopper in any::<bool>()) {
        let device = device(CHIPS[usize::from(!hopper)]);
        let linear: Vec<u8> = (0..rows * columns).map(|i| (i * 89 % 251 + 1) as u8).collect();
        let blocked = to_blocked(&linear, rows, columns).unwrap();
        let (from, to) = (device.upload(&linear).unwrap(), device.alloc(blocked.len()).unwrap());
        let blocker = ScaleBlocker::load(&device).unwrap();
        blocker.launch(&device.stream(), &from, [rows as u32, columns as u32], &to).unwrap();
        prop_assert_eq!(to.download().unwrap(), blocked);
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let device = device(Arch::Sm100a);
    let stream = device.stream();
    let quantizer = Quantizer::load(&device, Source::F16).unwrap();
    let [codes_bytes, scale_bytes] = Quantizer::bytes(3, 64).unwrap();
    let room = device.upload(&[0; 4096]).unwrap();
    let x = room.slice(0, 4 * codes_bytes).unwrap();
    let (codes, scales) = (device.alloc(codes_bytes).unwrap(), device.alloc(scale_bytes).unwrap());
    let from = Activations { x: &x, rows: 3, k: 64, tensor_scale: 1.0 };
    quantizer.launch(&stream, &from, &codes, &scales).unwrap();
    let refused = |from: Activations<'_>| quantizer.launch(&stream, &from, &codes, &scales).unwrap_err();
    assert!(matches!(refused(Activations { k: 40, ..from }), PrepareError::KNotBlocked { k: 40 }));
    assert!(matches!(refused(Activations { rows: 0, ..from }), PrepareError::Empty { rows: 0, .. }));
    assert!(matches!(refused(Activations { rows: u32::MAX, ..from }), PrepareError::TooLarge { .. }));
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(
            refused(Activations { tensor_scale: value, ..from }),
            PrepareError::TensorScale { .. }
        ));
    }
    assert!(matches!(refused(Activations { rows: 4, ..from }), PrepareError::Length { tensor: "x", .. }));
    let odd = room.slice(8, 4 * codes_bytes).unwrap();
    assert!(matches!(refused(Activations { x: &odd, ..from }), PrepareError::Alignment { tensor: "x" }));
    let other = Device::emulated(Arch::Sm100a);
    let there = other.upload(&[0; 384]).unwrap();
    assert!(matches!(refused(Activations { x: &there, ..from }), PrepareError::Foreign { what: "x", .. }));
    let error = quantizer.launch(&other.stream(), &from, &codes, &scales).unwrap_err();
    assert!(matches!(error, PrepareError::Foreign { what: "stream", .. }));
    let shared = room.slice(16, codes_bytes).unwrap();
    let error = quantizer.launch(&stream, &from, &shared, &scales).unwrap_err();
    assert!(matches!(error, PrepareError::Aliasing { one: "codes", other: "x" }), "{error}");
    let error = ScaleBlocker::load(&device).unwrap().launch(&stream, &x, [4, 3], &scales).unwrap_err();
    assert!(error.to_string().contains("`linear` has 384 bytes, and 4 x 3 takes 12"), "{error}");
}
