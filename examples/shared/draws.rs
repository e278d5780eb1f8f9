//! Configurations and ragged shapes drawn from all knobs: what `tests/lattice.rs` and `tests/hopper.rs` run on the emulated
//! device, and what the example `lattice` writes for a GPU.
//!
//! A draw may be illegal: then `validate` has to say why.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin::codegen::arch::TensorCore;
use silumin::codegen::config::Config;
use silumin::{Arch, Shape};

/// A stream of draws for one chip.
pub struct Draws {
    random: ChaCha8Rng,
    arch: Arch,
}

impl Draws {
    /// Draws that the seed repeats.
    pub fn new(arch: Arch, seed: u64) -> Self {
        Draws { random: ChaCha8Rng::seed_from_u64(seed), arch }
    }

    fn is_hopper(&self) -> bool {
        self.arch.tensor_core() == TensorCore::Wgmma
    }

    /// A number from 0 up to the limit, which is not drawn.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    /// One of the values.
    pub fn pick<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u32) as usize]
    }

    /// A shape that the emulator runs in a moment.
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

    /// Operand formats that go together.
    pub fn pair(&mut self) -> (String, String) {
        let pairs: &[&str] = match self.is_hopper() {
            true => &[
                "bf16 bf16",
                "bf16 bf16",
                "f16 f16",
                "f16 f16",
                "e4m3 e4m3",
                "e5m2 e4m3",
                "bf16 nvfp4",
                "f16 nvfp4",
                "bf16 mxfp4",
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

    /// Every knob, often auto, sometimes illegal beside the others.
    pub fn config(&mut self) -> Config {
        let values = if self.is_hopper() { self.of_warpgroups() } else { self.of_tensor_memory() };
        let mut config = Config::default();
        for (knob, value) in values {
            if let Err(error) = config.set(knob, &value) {
                unreachable!("{knob} = {value}: {error}");
            }
        }
        config
    }

    fn of_tensor_memory(&mut self) -> Vec<(&'static str, String)> {
        let tile_n = self.pick(&["64", "64", "128", "128", "192", "40", "96", "256"]).to_owned();
        let tile_k = self.pick(&["64", "128", "192", "256", "256", "512", "320"]);
        let group = self.pick(&["1", "1", "2"]);
        let rows = if group == "2" { 256 } else { 128 };
        let swap = self.pick(&["auto", "off", "on"]);
        let tile = match swap {
            "on" => format!("[{tile_n}, {rows}, {tile_k}]"),
            _ => format!("[{rows}, {tile_n}, {tile_k}]"),
        };
        vec![
            ("tile", self.pick(&["auto", &tile, &tile, &tile]).to_owned()),
            ("cta_group", group.to_owned()),
            ("swap_ab", swap.to_owned()),
            ("multicast", self.pick(&["none", "none", "a(2)", "b(2)", "a(4)", "b(4)"]).to_owned()),
            ("sf_load", self.pick(&["auto", "auto", "auto", "multicast", "tensor_map", "bulk"]).to_owned()),
            ("stages", self.pick(&["auto", "auto", "1", "2", "3", "5", "8"]).to_owned()),
            (
                "k_order",
                self.pick(&[
                    "auto",
                    "forward",
                    "reverse",
                    "ping_pong",
                    "split_tail(1)",
                    "split_tail(2)",
                    "split_tail(3)",
                ])
                .to_owned(),
            ),
            ("sf_preload", self.pick(&["per_stage", "ahead(1)", "ahead(3)", "all"]).to_owned()),
            ("accumulators", self.pick(&["separate", "separate", "side_by_side"]).to_owned()),
            ("a_reuse", self.pick(&["auto", "none", "collector"]).to_owned()),
            ("tmem_columns", self.pick(&["auto", "auto", "128", "256", "512"]).to_owned()),
            ("store", self.store()),
            (
                "strategy",
                self.pick(&["auto", "interleaved", "interleaved", "sequential", "two_pass", "second_fused"])
                    .to_owned(),
            ),
            (
                "accumulator_buffers",
                self.pick(&["auto", "auto", "1", "2", "overlapped", "overlapped"]).to_owned(),
            ),
            (
                "schedule",
                self.pick(&[
                    "auto",
                    "one_tile",
                    "persistent",
                    "dynamic",
                    "stream_k",
                    "split_k(2)",
                    "split_k(3)",
                    "cluster_split_k(2)",
                    "cluster_split_k(4)",
                ])
                .to_owned(),
            ),
            ("raster", self.pick(&["along_m", "along_n", "swizzled(2)", "swizzled(3)"]).to_owned()),
            ("sms", self.pick(&["auto", "2", "3", "5", "8"]).to_owned()),
            ("pdl", self.pick(&["off", "off", "on"]).to_owned()),
            ("cache", self.cache()),
        ]
    }

    fn of_warpgroups(&mut self) -> Vec<(&'static str, String)> {
        let rows = self.pick(&["64", "64", "96", "128", "128", "128", "192", "256"]);
        let columns = self.pick(&[
            "8", "16", "24", "32", "40", "56", "64", "64", "72", "96", "104", "128", "128", "160", "192",
            "256",
        ]);
        let k = self.pick(&["16", "32", "64", "64", "64", "64", "128", "48", "256"]);
        let swap = self.pick(&["auto", "off", "off", "on"]);
        let tile = match swap {
            "on" => format!("[{columns}, {rows}, {k}]"),
            _ => format!("[{rows}, {columns}, {k}]"),
        };
        // What there is none of comes once in a while.
        let rare = self.below(30);
        let or =
            |number: u32, odd: &'static str, usual: &'static str| if rare == number { odd } else { usual };
        vec![
            ("tile", self.pick(&["auto", &tile, &tile, &tile]).to_owned()),
            ("cta_group", or(0, "2", self.pick(&["auto", "1"])).to_owned()),
            ("swap_ab", swap.to_owned()),
            (
                "multicast",
                self.pick(&["none", "none", "none", "a(2)", "b(2)", "a(4)", "b(4)", "a(8)", "b(8)"])
                    .to_owned(),
            ),
            ("consumers", self.pick(&["auto", "cooperative", "ping_pong", "ping_pong"]).to_owned()),
            ("sf_load", or(1, "tensor_map", "auto").to_owned()),
            ("stages", self.pick(&["auto", "auto", "1", "2", "3", "5", "8"]).to_owned()),
            (
                "k_order",
                or(2, "split_tail(2)", self.pick(&["auto", "forward", "reverse", "ping_pong"])).to_owned(),
            ),
            ("sf_preload", or(3, "all", "per_stage").to_owned()),
            ("accumulators", self.pick(&["separate", "separate", "side_by_side"]).to_owned()),
            ("a_reuse", or(4, "collector", self.pick(&["auto", "none"])).to_owned()),
            ("tmem_columns", or(5, "128", "auto").to_owned()),
            ("store", or(6, "direct(16x256b)", self.pick(&["auto", "direct", "tma", "tma"])).to_owned()),
            (
                "strategy",
                self.pick(&["auto", "interleaved", "interleaved", "sequential", "two_pass", "second_fused"])
                    .to_owned(),
            ),
            ("accumulator_buffers", or(7, "2", self.pick(&["auto", "1"])).to_owned()),
            (
                "schedule",
                or(
                    9,
                    "dynamic",
                    self.pick(&[
                        "auto",
                        "one_tile",
                        "persistent",
                        "persistent",
                        "stream_k",
                        "split_k(2)",
                        "split_k(3)",
                        "cluster_split_k(2)",
                        "cluster_split_k(4)",
                    ]),
                )
                .to_owned(),
            ),
            ("raster", self.pick(&["along_m", "along_n", "swizzled(2)", "swizzled(3)"]).to_owned()),
            ("sms", self.pick(&["auto", "2", "3", "5", "8"]).to_owned()),
            ("pdl", self.pick(&["off", "off", "on"]).to_owned()),
            ("cache", self.cache()),
            ("promotion", or(10, "off", or(11, "every(128)", or(12, "every(256)", "auto"))).to_owned()),
        ]
    }

    fn store(&mut self) -> String {
        let shape = self.pick(&["32x32b", "16x256b", "16x256b", "16x128b", "16x64b"]);
        let chunk = self.pick(&["", ", 8", ", 16", ", 32"]);
        match self.below(5) {
            0 => "auto".to_owned(),
            1 => "direct".to_owned(),
            2 => "tma".to_owned(),
            _ => format!("direct({shape}{chunk})"),
        }
    }

    fn cache(&mut self) -> String {
        let hints = ["a", "b", "sf", "c"].map(|operand| {
            let hint = self.pick(&["", "evict_normal", "evict_first", "evict_last"]);
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
