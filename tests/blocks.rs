//! The guide's table of a block's predicted times is that of `evidence/blocks.jsonl`, and blocks can be predicted.

use silumin::codegen::problem::OperandFormat;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::mlp::{Mlp, MlpOptions, MlpStep, MlpWeights};
use silumin::runtime::predict::{Chip, TimeOptions, default_chip};
use silumin::runtime::warmup::Buckets;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Arch, Device};
use silumin_testkit::root;
use std::fs;
use xtask::blocks::{BLOCKS, WIDTHS, line, read_lines, table};

#[test]
fn the_page_has_the_table_of_the_evidence() {
    let lines = read_lines().unwrap();
    let page = fs::read_to_string(root().join("book/src/guide/mlp.md")).unwrap();
    assert!(page.contains(&table(&lines)), "book/src/guide/mlp.md lacks this table:\n{}", table(&lines));
    let names: Vec<&str> = lines.iter().map(|line| &*line.format).collect();
    assert_eq!(names, BLOCKS.map(|(_, _, name)| name), "run `cargo xtask blocks`");
    assert!(lines.iter().all(|line| line.widths == WIDTHS));
}

/// More tokens take no less time, and the large block of the table takes more than a small one.
#[test]
fn a_small_block_is_predicted() {
    let large = read_lines().unwrap();
    for (index, (arch, format, name)) in BLOCKS.into_iter().enumerate().step_by(3) {
        let small = line(arch, format, name, [256, 384]).unwrap();
        assert_eq!((&small.chip, &small.format), (&large[index].chip, &large[index].format));
        assert!(small.us[0] > 0.0 && small.us[0] <= small.us[3], "{small:?}");
        assert!(small.us.iter().zip(large[index].us).all(|(small, large)| *small < large), "{small:?}");
    }
}

/// The kernels of a call for `tokens` tokens, and their predicted times.
fn kernels(arch: Arch, format: OperandFormat, tokens: u32) -> Vec<(MlpStep, f64)> {
    let zeros =
        |rows, k| quantize_to(format, &vec![0.0f32; rows * k], rows, k, TensorScale::FromMax).unwrap();
    let [gate, up, down] = [zeros(128, 256), zeros(128, 256), zeros(256, 128)];
    let gate_up = GateUp::new(Weight::of(&gate).unwrap(), Weight::of(&up).unwrap()).unwrap();
    let weights = MlpWeights::new(gate_up, Weight::of(&down).unwrap()).unwrap();
    let options = MlpOptions::new(Buckets::new([tokens]).unwrap());
    let mlp = Mlp::load(&Device::emulated(arch), &weights, &options).unwrap();
    let chip = Chip::named(default_chip(arch.target()).unwrap()).unwrap();
    let timing = TimeOptions { programmatic: true, ..TimeOptions::new(chip) };
    let predicted = mlp.predict(tokens, &timing).unwrap();
    let times: Vec<_> = predicted.kernels.iter().map(|k| (k.step, k.prediction.time())).collect();
    assert_eq!(predicted.time(), times.iter().map(|(_, time)| time).sum::<f64>());
    times
}

#[test]
fn a_call_has_the_kernels_that_it_launches() {
    use MlpStep::{Down, GateUp, QuantiseMiddle, QuantiseX};
    let steps =
        |arch, format| kernels(arch, format, 16).into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert_eq!(steps(Arch::Sm100a, OperandFormat::Nvfp4), [QuantiseX, GateUp, Down]);
    assert_eq!(steps(Arch::Sm90a, OperandFormat::E4m3), [QuantiseX, GateUp, QuantiseMiddle, Down]);
    assert_eq!(steps(Arch::Sm90a, OperandFormat::Bf16), [GateUp, Down]);
}

/// A CTA quantises eight rows of the middle, which are short. With 1,024 rows the launch starts early; with more it pays a launch,
/// about 1 us.
#[test]
fn small_launches_that_quantise_start_early() {
    let [few, many] = [1024, 1025].map(|tokens| kernels(Arch::Sm90a, OperandFormat::E4m3, tokens)[2].1);
    assert!((900.0..1200.0).contains(&(many - few)), "{few} ns and {many} ns");
}
