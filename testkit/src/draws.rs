//! Draws configurations and ragged shapes from all knobs, for `tests/lattice.rs`, `tests/hopper.rs` and `tests/geforce.rs` on the
//! emulated device, and for `cargo xtask lattice`, which writes them for a GPU.
//!
//! A draw can be illegal; then `validate` has to say why.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin::codegen::arch::TensorCore;
use silumin::codegen::config::{
    CacheHints, Config, CtaGroup, Eviction, KNOBS, Knob, KnobType, Setting, Switch,
};
use silumin::{Arch, Shape};

/// Random draws for one chip.
pub struct Draws {
    random: ChaCha8Rng,
    arch: Arch,
}

impl Draws {
    /// Draws that the seed determines.
    pub fn new(arch: Arch, seed: u64) -> Self {
        Draws { random: ChaCha8Rng::seed_from_u64(seed), arch }
    }

    fn is_hopper(&self) -> bool {
        self.arch.tensor_core() == TensorCore::Wgmma
    }

    /// A number below the limit.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    /// One of the values.
    pub fn pick<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u32) as usize]
    }

    /// A shape that the emulator runs quickly.
    pub fn shape(&mut self) -> Shape {
        let m = match self.below(4) {
            0 => 1 + self.below(70),
            1 => 128 * (1 + self.below(2)),
            _ => 1 + self.below(300),
        };
        let n = match self.below(4) {
            0 => 64 * (1 + self.below(6)),
            1 => 8 * (1 + self.below(40)),
            _ => 1 + self.below(400),
        };
        let k = match self.below(3) {
            0 => 256 * (1 + self.below(4)),
            // Rows of 16-bit elements are a multiple of 16 bytes with fewer.
            1 if self.is_hopper() => 8 * (1 + self.below(120)),
            _ => 32 * (1 + self.below(40)),
        };
        let shape = Shape::new(m, n, k);
        match self.below(5) {
            0 => shape.batch(1 + self.below(3)),
            1 => shape.grouped(1 + self.below(6)),
            2 if self.below(4) == 0 => shape.grouped(30 + self.below(40)),
            _ => shape,
        }
    }

    /// A legal pair of operand formats.
    pub fn pair(&mut self) -> (String, String) {
        let pairs: &[&str] = match self.is_hopper() {
            true => &[
                "bf16 bf16",
                "bf16 bf16",
                "f16 f16",
                "f16 f16",
                "e4m3 e4m3",
                "e5m2 e4m3",
                "e4m3_1x128 e4m3_128x128",
                "bf16 nvfp4",
                "f16 nvfp4",
                "bf16 mxfp4",
                "bf16 nvfp4_repacked",
                "bf16 mxfp4_repacked",
                "nvfp4 nvfp4",
                "mxfp4 mxfp4",
            ],
            false => &[
                "nvfp4 nvfp4",
                "mxfp4 mxfp4",
                "mxfp8 mxfp8",
                "mxfp8 mxfp4",
                "mxfp4 mxfp8_e5m2",
                "mxfp8_e5m2 mxfp8",
                "e4m3 e4m3",
                "e4m3 e5m2",
                "bf16 bf16",
                "f16 f16",
            ],
        };
        let (a, b) = self.pick(pairs).split_once(' ').unwrap_or_default();
        (a.to_owned(), b.to_owned())
    }

    /// A format of C.
    pub fn output(&mut self) -> String {
        self.pick(&["f16", "bf16", "f32", "e4m3", "nvfp4", "mxfp8"]).to_owned()
    }

    /// A value for every knob, as the table of knobs draws it: often auto, sometimes illegal together. Every second
    /// configuration has a value that the chip refuses, or that few formats allow.
    pub fn config(&mut self) -> Config {
        let core = self.arch.tensor_core();
        let mut config = Config::default();
        for knob in &KNOBS {
            let values = knob.draws(core);
            let value = match knob.name {
                // Its rows depend on the others.
                "tile" => continue,
                "cache" => self.cache(),
                _ if values.is_empty() => continue,
                _ => self.pick(&values).to_owned(),
            };
            set(&mut config, knob.name, &value);
        }
        let tile = self.tile(&config);
        set(&mut config, "tile", &tile);
        if self.below(2) == 0 {
            let rare = |knob: &'static Knob| {
                let values = knob.rare_draws(core).into_iter().chain(knob.foreign_draws(core));
                values.map(|value| (knob.name, value))
            };
            let rare: Vec<_> = KNOBS.iter().flat_map(rare).collect();
            let (name, value) = rare[self.below(rare.len() as u32) as usize];
            set(&mut config, name, value);
        }
        config
    }

    /// A tile, often with the rows of the chip's MMAs.
    fn tile(&mut self, config: &Config) -> String {
        let (rows, columns, k) = match self.arch.tensor_core() {
            TensorCore::Wgmma => (
                self.pick(&["64", "64", "96", "128", "128", "128", "192", "256"]),
                self.pick(&[
                    "8", "16", "24", "32", "40", "56", "64", "64", "72", "96", "104", "128", "128", "160",
                    "192", "256",
                ]),
                self.pick(&["16", "32", "64", "64", "64", "64", "128", "48", "256"]),
            ),
            TensorCore::Mma => (
                self.pick(&["64", "64", "128", "128", "128", "192", "256"]),
                self.pick(&["8", "16", "24", "32", "32", "40", "64", "64", "72", "128", "128", "256"]),
                self.pick(&["32", "64", "64", "128", "128", "256"]),
            ),
            TensorCore::Tcgen05 => (
                if config.cta_group == Setting::Fixed(CtaGroup::Two) { "256" } else { "128" },
                self.pick(&["64", "64", "128", "128", "192", "40", "96", "256"]),
                self.pick(&["64", "128", "192", "256", "256", "512", "320"]),
            ),
        };
        match (self.below(4), config.swap_ab) {
            (0, _) => "auto".to_owned(),
            (_, Setting::Fixed(Switch::On)) => format!("[{columns}, {rows}, {k}]"),
            (_, Setting::Auto | Setting::Fixed(Switch::Off)) => format!("[{rows}, {columns}, {k}]"),
        }
    }

    /// A cache hint for each operand, or none.
    fn cache(&mut self) -> String {
        let values: Vec<&str> =
            [""].into_iter().chain(Eviction::VALUES.iter().map(|value| value.spelling)).collect();
        let hints = CacheHints::default().entries().map(|(operand, _)| {
            let hint = self.pick(&values);
            if hint.is_empty() { String::new() } else { format!("{operand}: {hint}") }
        });
        let hints: Vec<String> = hints.into_iter().filter(|hint| !hint.is_empty()).collect();
        match self.below(3) {
            0 => "auto".to_owned(),
            _ if hints.is_empty() => "none".to_owned(),
            _ => format!("[{}]", hints.join(", ")),
        }
    }
}

fn set(config: &mut Config, knob: &str, value: &str) {
    if let Err(error) = config.set(knob, value) {
        unreachable!("{knob} = {value}: {error}");
    }
}
