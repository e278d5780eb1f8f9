//! Problems and configurations for property tests, of every knob.

use proptest::prelude::*;
use silumin_codegen::arch::{Arch, TensorCore};
use silumin_codegen::config::{Config, KNOBS, Knob, Setting, Tile};

pub fn setting<T: Clone + std::fmt::Debug>(
    values: impl Strategy<Value = T>,
) -> impl Strategy<Value = Setting<T>> {
    prop_oneof![2 => Just(Setting::Auto), 3 => values.prop_map(Setting::Fixed)]
}

/// Sizes that are often legal, sometimes odd, sometimes absurd.
pub fn size() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1u32..4000, 3 => (1u32..300).prop_map(|n| n * 32), 1 => any::<u32>()]
}

fn tile(core: TensorCore) -> impl Strategy<Value = Tile> {
    let tile_n = prop_oneof![
        4 => prop::sample::select(vec![64u32, 128, 192, 256]),
        2 => (1u32..33).prop_map(|n| 8 * n),
        1 => any::<u32>()
    ];
    // Rows and K of tiles that are usual on the chip; K of a row of 128 bytes and more, and of less.
    let (usual_m, k_step) = match core {
        TensorCore::Wgmma => (vec![64u32, 128, 128, 192, 256], 16),
        TensorCore::Tcgen05 => (vec![128, 256], 64),
        TensorCore::Mma => (vec![64, 128, 128, 192, 256], 32),
    };
    let tile_k = prop_oneof![6 => (1u32..9).prop_map(move |n| k_step * n), 1 => any::<u32>()];
    let tile_m = prop_oneof![9 => prop::sample::select(usual_m), 1 => any::<u32>()];
    // Weights on the row side turn the tile.
    (tile_m, tile_n, tile_k, any::<u8>()).prop_map(|(m, n, k, turned)| match turned % 4 {
        0 => Tile { m: n, n: m, k },
        _ => Tile { m, n, k },
    })
}

/// Values of a knob as the table has them, once in a while one that is rare or refused, or with an absurd number.
fn value(knob: &'static Knob, core: TensorCore) -> impl Strategy<Value = (&'static str, String)> {
    let usual = knob.draws(core);
    let odd: Vec<_> = knob.rare_draws(core).into_iter().chain(knob.foreign_draws(core)).collect();
    let all: Vec<_> = usual.iter().copied().chain(odd.iter().copied()).collect();
    let or_default = |values: Vec<&'static str>| if values.is_empty() { vec![default(knob)] } else { values };
    let (usual, odd) = (or_default(usual), or_default(odd));
    let absurd =
        (prop::sample::select(all), any::<u32>()).prop_map(|(text, number)| absurd(knob, text, number));
    let text = prop_oneof![
        40 => Just(default(knob).to_owned()),
        60 => prop::sample::select(usual).prop_map(str::to_owned),
        1 => prop::sample::select(odd).prop_map(str::to_owned),
        3 => absurd
    ];
    text.prop_map(|text| (knob.name, text))
}

/// What the knob is if nobody sets it.
fn default(knob: &Knob) -> &'static str {
    if knob.has_auto { "auto" } else { knob.values[0].spelling }
}

/// The value with another number in the place of its last one, if that is a value.
fn absurd(knob: &Knob, text: &str, number: u32) -> String {
    let digit = |c: char| c.is_ascii_digit();
    let end = text.trim_end_matches(|c| !digit(c)).len();
    let start = text[..end].trim_end_matches(digit).len();
    let changed = format!("{}{number}{}", &text[..start], &text[end..]);
    match Config::default().set(knob.name, &changed) {
        Ok(()) => changed,
        Err(_) => text.to_owned(),
    }
}

pub fn config(arch: Arch) -> impl Strategy<Value = Config> {
    let core = arch.tensor_core();
    let others = KNOBS.iter().filter(|knob| knob.name != "tile");
    let values: Vec<_> = others.map(|knob| value(knob, core)).collect();
    (setting(tile(core)), values).prop_map(|(tile, values)| {
        let mut config = Config { tile, ..Config::default() };
        for (knob, value) in values {
            config.set(knob, &value).unwrap();
        }
        config
    })
}
