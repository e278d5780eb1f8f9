//! What `validate` says to a declaration, with the caret under the knob that is to blame.

use super::brackets::Errors;
use super::declare::Knobs;
use crate::config::{AReuse, Config, KOrder, Schedule, Setting, SfPreload};
use crate::error::ConfigError;
use crate::plan::{GateNeeds, SIZE_LIMIT, validate_gate};
use crate::problem::{Formats, Operation, Problem, Shape};
use crate::target::way_of;
use syn::Error;

/// The columns that an epilogue finishes together at most; one warpgroup's rows; one CTA's, more tokens than operands
/// are swapped for; and a pair's.
const MORE_TOKENS: [u32; 4] = [32, 64, 128, 256];

/// Adds what is illegal: for the fixed shape, or, without one, for every shape there is.
///
/// Chips that were named must all take it; of the default's, one is enough: which one a program
/// runs on is known at run time only.
pub(super) fn check(
    operation: Operation,
    formats: Formats,
    knobs: &Knobs,
    gate: &GateNeeds,
    errors: &mut Errors,
) {
    let shape = knobs.shape.unwrap_or_else(|| most_lenient(formats, &knobs.config, true));
    let short = most_lenient(formats, &knobs.config, false);
    let narrow = Shape { n: formats.c.n_multiple(), ..short };
    // Weights that are decoded have whole tiles of K, whose size auto chooses.
    let deep = Shape { k: short.k.max(4096), ..short };
    let result =
        |shape: Shape, arch| validate_gate(&Problem { shape, formats, operation }, &knobs.config, arch, gate);
    let results = knobs.arches.iter().map(|arch| {
        let result = match result(shape, *arch) {
            // What auto settles depends on the tokens: with few of them operands may be swapped, which takes
            // more SMEM; with many a pair has half of B a CTA. And K tiles that follow each other may need a
            // second stage.
            Err(_)
                if knobs.shape.is_none()
                    && [short.m].iter().chain(&MORE_TOKENS).any(|m| {
                        [shape, short, narrow, deep]
                            .iter()
                            .any(|shape| result(Shape { m: *m, ..*shape }, *arch).is_ok())
                    }) =>
            {
                return (arch, Ok(()));
            }
            result => result.map(drop),
        };
        (arch, result)
    });
    let mut failures: Vec<_> =
        results.filter_map(|(arch, result)| result.err().map(|errors| (arch, errors))).collect();
    if failures.len() < knobs.arches.len() && !knobs.is_written("arch") {
        return;
    }
    if !knobs.is_written("arch") {
        // Where nobody named a chip, one stands for all: the one that is asked for the fewest things that it lacks altogether.
        let foreign = |error: &ConfigError| {
            matches!(error, ConfigError::FormatsOnChip { .. } | ConfigError::NotOnChip { .. })
        };
        failures.sort_by_key(|(arch, reasons)| {
            (reasons.iter().filter(|error| foreign(error)).count(), way_of(**arch).error_rank)
        });
    }
    let named = if knobs.is_written("arch") { failures.len() } else { 1 };
    let several = knobs.is_written("arch") && knobs.arches.len() > 1;
    for (arch, reasons) in failures.into_iter().take(named) {
        for reason in reasons {
            let on = if several { format!(" (on {arch})") } else { String::new() };
            let message = format!("{reason}{on}\nhelp: {}", reason.hint());
            errors.push(Error::new_spanned(place(knobs, &reason), message));
        }
    }
}

fn place<'a>(knobs: &'a Knobs, reason: &ConfigError) -> &'a proc_macro2::TokenStream {
    knobs.place(reason.knob())
}

/// The shape that takes most configurations: if this one is illegal for it, it is for every shape.
///
/// One tile of C, since narrow tiles are legal only alone; and as few K tiles as the K loop asks for,
/// since scale factors that are all loaded ahead need room for every one. A tile that is left to
/// `validate` is smallest for such a shape.
///
/// Where K costs nothing it may be `long`: errors that print it are less surprising so.
fn most_lenient(formats: Formats, config: &Config, long: bool) -> Shape {
    let (tile_n, tile_k) = match config.tile {
        Setting::Fixed(tile) => (tile.n.clamp(1, SIZE_LIMIT), tile.k.max(1)),
        Setting::Auto => (64, 256),
    };
    let k_tiles = match config.k_order {
        // The collector needs a K tile outside of the tail.
        Setting::Fixed(KOrder::SplitTail(tail)) => {
            u64::from(tail) + u64::from(config.a_reuse == Setting::Fixed(AReuse::Collector))
        }
        Setting::Auto
        | Setting::Fixed(KOrder::Forward | KOrder::Reverse | KOrder::Serpentine | KOrder::OddEven) => 1,
    };
    let k_tiles = match config.schedule {
        Setting::Fixed(Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts)) => k_tiles.max(parts.into()),
        Setting::Auto
        | Setting::Fixed(Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic | Schedule::StreamK) => {
            k_tiles
        }
    };
    let free = long && matches!(config.tile, Setting::Fixed(_)) && config.sf_preload != SfPreload::All;
    let k_tiles = if free { k_tiles.max(64) } else { k_tiles.max(1) };
    let multiple = u64::from(formats.k_multiple());
    let k = ((k_tiles - 1) * u64::from(tile_k) + 1).next_multiple_of(multiple).min(u64::from(SIZE_LIMIT));
    let n = u64::from(tile_n).next_multiple_of(u64::from(formats.c.n_multiple())).min(u64::from(SIZE_LIMIT));
    Shape::new(1, n as u32, k as u32)
}
