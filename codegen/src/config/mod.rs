//! How a problem is computed: every knob, its values, its text form.
//!
//! Each knob has one spelling, shared by the DSL's angle brackets, the command line and TOML: what
//! [`Display`](std::fmt::Display) prints, [`FromStr`](std::str::FromStr) reads. [`KNOBS`] lists
//! them for help texts, error messages, tests and the tuner.
//!
//! * `table.rs`: the table, a row for each knob and for each value. All else follows from it.
//! * `row.rs`: what a row is, and the macros that make types of rows.
//! * `knobs.rs`: types that are no plain choice, and what values mean in numbers.
//! * `text.rs`: reading knob values, and their serde form.

mod knobs;
mod row;
mod table;
mod text;

pub use knobs::{CacheHints, Setting, Tile, TmemLoad};
pub use row::{Knob, KnobType, Samples, Value};
pub use table::{
    AReuse, Accumulators, Buffers, Config, Consumers, CtaGroup, CtasPerSm, EpilogueWarps, Eviction, KNOBS,
    KOrder, Multicast, Promotion, Raster, Schedule, SfLoad, SfPreload, Store, Strategy, Switch, TmemShape,
};
pub use text::{NotAValue, ParseKnobError};

use crate::arch::Arch;
use crate::problem::{Formats, MmaKind};
use std::fmt;

impl Config {
    /// CTAs that issue one MMA together, once that is settled.
    pub(crate) fn group(&self) -> CtaGroup {
        self.cta_group.unwrap_or_else(|| CtaGroup::One)
    }

    /// CTAs that an SM runs at once.
    pub(crate) fn ctas_per_sm(&self) -> u32 {
        self.ctas_per_sm.unwrap_or_else(|| CtasPerSm::One).ctas()
    }

    /// What a CTA has of its SM's shared memory, in bytes.
    pub(crate) fn smem_limit(&self, arch: Arch) -> u32 {
        arch.limits().smem_of(self.ctas_per_sm())
    }

    /// What a CTA has of its SM's tensor memory, in columns.
    pub(crate) fn tmem_limit(&self, arch: Arch) -> u32 {
        arch.limits().tmem_columns / self.ctas_per_sm()
    }

    /// Whether `accumulators = side_by_side` stands for `interleaved_rows`, as it did before that had a word of its own: weights are
    /// decoded on their way to the tensor core.
    fn means_rows(&self, formats: Formats) -> bool {
        self.accumulators == Setting::Fixed(Accumulators::SideBySide)
            && formats.kind(Arch::Sm90a) == Ok(MmaKind::Decoded)
    }

    /// The configuration with `interleaved_rows` written as it is today.
    pub(crate) fn with_rows_for(self, formats: Formats) -> Config {
        if self.means_rows(formats) {
            Config { accumulators: Setting::Fixed(Accumulators::InterleavedRows), ..self }
        } else {
            self
        }
    }

    /// What to tell someone whose configuration is written as for an earlier version, with these formats.
    pub fn note(&self, formats: Formats) -> Option<String> {
        // Both operands in 4 bits have MMAs that take them side by side on other chips.
        let old = self.means_rows(formats) && !formats.decodes_a(Arch::Sm90a);
        old.then(|| {
            format!("`accumulators = side_by_side` is written `interleaved_rows` now where weights are decoded, as with {formats}")
        })
    }

    /// The accumulators' layout, once that is settled.
    pub(crate) fn layout(&self) -> Accumulators {
        self.accumulators.unwrap_or_else(|| Accumulators::Separate)
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
            ("ctas_per_sm", "2"),
            ("swap_ab", "on"),
            ("multicast", "a(4)"),
            ("consumers", "ping_pong"),
            ("stages", "3"),
            ("k-order", "split_tail(2)"),
            ("sf_preload", "ahead(4)"),
            ("sf_load", "multicast"),
            ("accumulators", "side_by_side"),
            ("accumulator_buffers", "2"),
            ("epilogue_warps", "8"),
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
