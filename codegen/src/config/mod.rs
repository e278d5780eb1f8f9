//! How a problem is computed: every knob, its values, its text form.
//!
//! Each knob has one spelling, shared by the DSL's angle brackets, the command line and TOML: what
//! [`Display`](std::fmt::Display) prints, [`FromStr`](std::str::FromStr) reads. [`KNOBS`] lists
//! them for help texts and error messages.
//!
//! * `mod.rs`: [`Config`] itself, and setting a knob by name.
//! * `knobs.rs`: the type of each knob.
//! * `text.rs`: reading knob values, and their serde form.

mod knobs;
mod text;

pub use knobs::{
    AReuse, Accumulators, Buffers, CacheHints, Consumers, CtaGroup, Eviction, KOrder, Multicast, Promotion,
    Raster, Schedule, Setting, SfLoad, SfPreload, Store, Strategy, Switch, Tile, TmemLoad, TmemShape,
};
pub use text::ParseKnobError;

use serde::{Deserialize, Serialize};
use std::fmt;

/// All knobs of one kernel. `Config::default()` leaves every choice to `validate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Kernels that compute C together. Auto: `interleaved`.
    pub strategy: Setting<Strategy>,
    /// Rows, columns and K of the tile of a CTA, or of a pair. Auto: 128 x 128 x 256 (256 rows for a pair), or N = 64 where that still
    /// leaves no SM with two tiles.
    pub tile: Setting<Tile>,
    /// CTAs that issue one MMA together: 1, or a cluster of 2 along M. Auto: 2 where M is more than one
    /// CTA's 128 rows and nothing else that was asked for rules it out.
    pub cta_group: Setting<CtaGroup>,
    /// Whether weights take the MMA's M side and tokens its N side, so that few tokens make a narrow
    /// MMA. Auto: where M is at most 64 and the tile does not say otherwise.
    pub swap_ab: Setting<Switch>,
    /// Tiles of A or B that the CTAs, or pairs, of a cluster share.
    pub multicast: Multicast,
    /// How warpgroups share tiles of C, where they hold the accumulators (sm_90a). Auto: `cooperative`.
    pub consumers: Setting<Consumers>,
    /// Depth of the SMEM pipeline, in K tiles, 1..=32. Auto: as many as fit and the K loop can use.
    pub stages: Setting<u32>,
    /// The order in which the K loop walks. Auto: up, with a split tail where a CTA computes one tile and GEMM 2's part
    /// of the tail hides the gate's.
    pub k_order: Setting<KOrder>,
    /// When scale factors are brought to SMEM.
    pub sf_preload: SfPreload,
    /// How scale factors come to SMEM. Auto: `multicast` where CTAs of a cluster need the same ones, else `bulk`.
    pub sf_load: Setting<SfLoad>,
    /// Where the two accumulators are, and with how many MMAs they are fed. Auto: `separate`; on sm_90a `side_by_side`
    /// where one MMA of 2N takes 16-bit operands of both products, and where more than 128 tokens meet weights that are
    /// decoded: an MMA's 64 rows are then 32 of each product.
    pub accumulators: Setting<Accumulators>,
    /// Accumulators that a CTA has in TMEM for tiles in flight, 1 or 2: with two, the epilogue of one tile
    /// overlaps the MMAs of the next; `overlapped` ones share the columns that TMEM lacks. Auto: where a CTA
    /// computes several tiles 2 if TMEM holds them, or `overlapped` if they need not share all.
    pub accumulator_buffers: Setting<Buffers>,
    /// Whether A stays in the tensor core's collector between the two MMAs of a K block. Auto: yes where there are
    /// two; with pairs for NVFP4 alone.
    pub a_reuse: Setting<AReuse>,
    /// TMEM columns to allocate: a power of two, 32..=512. Auto: the least that holds the plan.
    pub tmem_columns: Setting<u32>,
    /// Which cluster computes which tiles. Auto: `persistent` where there are more tiles than the chip runs at
    /// once, else `one_tile`.
    pub schedule: Setting<Schedule>,
    /// The order of tiles. Auto: `along_m`; on sm_90a `swizzled(8)` where a CTA computes several tiles.
    pub raster: Setting<Raster>,
    /// SMs that the kernel is made for: what `persistent` and `stream_k` fill, and what `auto` counts
    /// waves of. Auto: all of the chip.
    pub sms: Setting<u32>,
    /// L2 eviction hints. Auto: weights `evict_first` while all tiles that share them run in one
    /// wave, else none.
    pub cache: Setting<CacheHints>,
    /// How C leaves the SM. Auto: `direct`.
    pub store: Setting<Store>,
    /// Programmatic dependent launch: the kernel starts while its predecessor in the stream ends, and waits
    /// for it before it reads or writes global memory.
    pub pdl: Switch,
    /// How often sums of products of 8-bit elements leave the tensor core, which adds them up with 14 bits (sm_90a).
    /// Auto: `every(128)`, or one K tile if that is longer.
    pub promotion: Setting<Promotion>,
}

/// A knob as help texts and error messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The name in the DSL and in TOML; on the command line, with dashes.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// One line on what it does.
    pub about: &'static str,
}

/// Every knob of [`Config`], in its order.
pub const KNOBS: [Knob; 21] = [
    Knob {
        name: "strategy",
        values: "auto | two_pass | second_fused | sequential | interleaved",
        about: "kernels for the two products: GEMM, GEMM, gate; GEMM, gated GEMM; one kernel, one product after the other; one K loop for both",
    },
    Knob { name: "tile", values: "auto | [M, N, K]", about: "rows, columns and K of a CTA's tile" },
    Knob {
        name: "cta_group",
        values: "auto | 1 | 2",
        about: "CTAs that issue one MMA together; two have 256 rows and half of B each",
    },
    Knob {
        name: "swap_ab",
        values: "auto | off | on",
        about: "weights on the MMA's M side, tokens on its N side",
    },
    Knob {
        name: "multicast",
        values: "none | a(N) | b(N)",
        about: "clusters of N CTAs, or pairs, that load each tile of A, or of B1 and B2, once",
    },
    Knob {
        name: "consumers",
        values: "auto | cooperative | ping_pong",
        about: "warpgroups that hold accumulators in registers (sm_90a): all on one tile, or two on tiles of their own, by turns",
    },
    Knob { name: "stages", values: "auto | 1..32", about: "depth of the SMEM pipeline, in K tiles" },
    Knob {
        name: "k_order",
        values: "auto | forward | reverse | ping_pong | split_tail(T)",
        about: "order of the K loop: up; down; up in even tiles of C and down in odd ones; the last T K tiles GEMM 1 first, then GEMM 2",
    },
    Knob {
        name: "sf_preload",
        values: "per_stage | ahead(N) | all",
        about: "scale factors to SMEM: with their tile, N tiles ahead of it, or all before the loop",
    },
    Knob {
        name: "sf_load",
        values: "auto | bulk | tensor_map | multicast",
        about: "scale factors by plain bulk copies, by tensor maps, or by tensor maps once for all CTAs of a cluster that need them",
    },
    Knob {
        name: "accumulators",
        values: "auto | separate | side_by_side",
        about: "two MMAs of N, or one MMA of 2N over adjacent B1 | B2 tiles",
    },
    Knob {
        name: "accumulator_buffers",
        values: "auto | 1 | 2 | overlapped",
        about: "accumulators in TMEM for tiles in flight; with two, an epilogue overlaps the next tile's MMAs; overlapped ones share the columns that TMEM lacks",
    },
    Knob {
        name: "a_reuse",
        values: "auto | none | collector",
        about: "keep A in the collector between the two MMAs",
    },
    Knob {
        name: "tmem_columns",
        values: "auto | 32 | 64 | 128 | 256 | 512",
        about: "TMEM columns to allocate",
    },
    Knob {
        name: "schedule",
        values: "auto | one_tile | persistent | dynamic | stream_k | split_k(N) | cluster_split_k(N)",
        about: "a cluster a tile; a cluster an SM, every so-many-th tile; tiles by cluster launch control; equal shares of K over all tiles; N shares of K a tile, added up in global memory or in a cluster's shared memory",
    },
    Knob {
        name: "raster",
        values: "auto | along_m | along_n | swizzled(G)",
        about: "order of tiles: columns first; rows first; G down, then the next column",
    },
    Knob { name: "sms", values: "auto | 1..", about: "SMs that the kernel is made for" },
    Knob {
        name: "cache",
        values: "auto | none | [a: HINT, b: HINT, sf: HINT, c: HINT], HINT = evict_normal | evict_first | evict_last",
        about: "L2 eviction hints per operand",
    },
    Knob {
        name: "store",
        values: "auto | direct | direct(SHAPE) | direct(SHAPE, 8 | 16 | 32) | tma, SHAPE = 32x32b | 16x256b | 16x128b | 16x64b",
        about: "registers to C, and by which loads from TMEM of how many columns, or through SMEM and TMA",
    },
    Knob {
        name: "pdl",
        values: "off | on",
        about: "programmatic dependent launch: start while the kernel before ends",
    },
    Knob {
        name: "promotion",
        values: "auto | off | every(N)",
        about: "8-bit operands on sm_90a, whose MMAs add up with 14 bits: leave sums there, or add them to fp32 registers every N of K",
    },
];

impl Config {
    /// CTAs that issue one MMA together, once that is settled.
    pub(crate) fn group(&self) -> CtaGroup {
        self.cta_group.unwrap_or_else(|| CtaGroup::One)
    }

    /// The accumulators' layout, once that is settled.
    pub(crate) fn layout(&self) -> Accumulators {
        self.accumulators.unwrap_or_else(|| Accumulators::Separate)
    }

    /// Sets the knob called `name` (underscores or dashes) from its text form.
    ///
    /// # Errors
    /// An unknown name, or a value the knob does not take; the message lists what it would take.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ParseKnobError> {
        match name.replace('-', "_").as_str() {
            "strategy" => self.strategy = text::knob(0, value)?,
            "tile" => self.tile = text::knob(1, value)?,
            "cta_group" => self.cta_group = text::knob(2, value)?,
            "swap_ab" => self.swap_ab = text::knob(3, value)?,
            "multicast" => self.multicast = text::knob(4, value)?,
            "consumers" => self.consumers = text::knob(5, value)?,
            "stages" => self.stages = text::knob(6, value)?,
            "k_order" => self.k_order = text::knob(7, value)?,
            "sf_preload" => self.sf_preload = text::knob(8, value)?,
            "sf_load" => self.sf_load = text::knob(9, value)?,
            "accumulators" => self.accumulators = text::knob(10, value)?,
            "accumulator_buffers" => self.accumulator_buffers = text::knob(11, value)?,
            "a_reuse" => self.a_reuse = text::knob(12, value)?,
            "tmem_columns" => self.tmem_columns = text::knob(13, value)?,
            "schedule" => self.schedule = text::knob(14, value)?,
            "raster" => self.raster = text::knob(15, value)?,
            "sms" => self.sms = text::knob(16, value)?,
            "cache" => self.cache = text::knob(17, value)?,
            "store" => self.store = text::knob(18, value)?,
            "pdl" => self.pdl = text::knob(19, value)?,
            "promotion" => self.promotion = text::knob(20, value)?,
            _ => return Err(ParseKnobError::unknown_knob(name)),
        }
        Ok(())
    }

    /// The knobs with their values as text, in the order of [`KNOBS`].
    pub fn entries(&self) -> [(&'static str, String); KNOBS.len()] {
        let values = [
            self.strategy.to_string(),
            self.tile.to_string(),
            self.cta_group.to_string(),
            self.swap_ab.to_string(),
            self.multicast.to_string(),
            self.consumers.to_string(),
            self.stages.to_string(),
            self.k_order.to_string(),
            self.sf_preload.to_string(),
            self.sf_load.to_string(),
            self.accumulators.to_string(),
            self.accumulator_buffers.to_string(),
            self.a_reuse.to_string(),
            self.tmem_columns.to_string(),
            self.schedule.to_string(),
            self.raster.to_string(),
            self.sms.to_string(),
            self.cache.to_string(),
            self.store.to_string(),
            self.pdl.to_string(),
            self.promotion.to_string(),
        ];
        let mut value = values.into_iter();
        KNOBS.map(|knob| (knob.name, value.next().unwrap_or_default()))
    }
}

/// `tile = [128, 128, 256], stages = auto, ...`: what the DSL's angle brackets would hold.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.entries().iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{name} = {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_set_by_its_name_and_reads_what_it_prints() {
        let written = [
            ("strategy", "sequential"),
            ("tile", "[128, 64, 512]"),
            ("cta_group", "2"),
            ("swap_ab", "on"),
            ("multicast", "a(4)"),
            ("consumers", "ping_pong"),
            ("stages", "3"),
            ("k-order", "split_tail(2)"),
            ("sf_preload", "ahead(4)"),
            ("sf_load", "multicast"),
            ("accumulators", "side_by_side"),
            ("accumulator_buffers", "2"),
            ("a_reuse", "collector"),
            ("tmem-columns", "256"),
            ("schedule", "split_k(4)"),
            ("raster", "swizzled(8)"),
            ("sms", "132"),
            ("cache", "[a: evict_last, b: evict_first]"),
            ("store", "tma"),
            ("pdl", "on"),
            ("promotion", "every(256)"),
        ];
        let mut config = Config::default();
        for (name, value) in written {
            config.set(name, value).unwrap();
        }
        for ((_, value), (_, printed)) in written.iter().zip(config.entries()) {
            assert_eq!(*value, printed);
        }
        let mut again = Config::default();
        for (name, value) in config.entries() {
            again.set(name, &value).unwrap();
        }
        assert_eq!(config, again);
    }

    #[test]
    fn entries_follow_the_fields() {
        let config = Config::default();
        for (name, value) in config.entries() {
            let mut other = config;
            other.set(name, &value).unwrap();
            assert_eq!(config, other, "{name}");
        }
    }

    #[test]
    fn wrong_text_names_the_knob_the_value_and_what_is_taken() {
        for (name, value) in [
            ("tile", "[128, 128]"),
            ("tile", "128,128,256,1"),
            ("tile", "[128, x, 256]"),
            ("stages", "many"),
            ("stages", "-1"),
            ("stages", "99999999999"),
            ("k_order", "sideways"),
            ("k_order", "split_tail"),
            ("k_order", "split_tail()"),
            ("k_order", "forward(2)"),
            ("sf_preload", "ahead(-1)"),
            ("cache", "[a: evict_never]"),
            ("cache", "[d: evict_first]"),
            ("cache", "[a: evict_first, a: evict_last]"),
            ("store", ""),
            ("store", "direct()"),
            ("store", "direct(16x32b)"),
            ("store", "direct(16x256b, many)"),
            ("store", "direct(16x256b"),
            ("promotion", "every"),
            ("promotion", "every(-1)"),
        ] {
            let message = Config::default().set(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
        let message = Config::default().set("stagse", "4").unwrap_err().to_string();
        assert!(message.contains("stagse") && message.contains("stages"), "{message}");
    }
}
