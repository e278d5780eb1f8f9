//! How the epilogue reads accumulators: what goes with loads that were asked for.

use crate::config::{Config, Setting, Store, Tile, TmemLoad, TmemShape};
use crate::error::ConfigError;
use crate::heuristics::cluster_parts;
use crate::legalize::COUNT_LIMIT;
use crate::problem::Problem;

/// Columns that the epilogue can finish together: as many registers a product.
pub(super) const CHUNKS: [u32; 3] = [32, 16, 8];
/// The most columns where other CTAs' sums, or other warps, take registers beside a chunk's.
const CLUSTER_CHUNK: u32 = 16;

/// The load that was asked for.
pub(super) fn asked(config: &Config) -> Option<TmemLoad> {
    if let Setting::Fixed(Store::DirectBy(load)) = config.store { Some(load) } else { None }
}

/// Whether threads of a warp share lanes, so that none has a row of the accumulators.
pub(super) fn shares_lanes(config: &Config) -> bool {
    asked(config).is_some_and(|load| load.shape != TmemShape::S32x32b)
}

/// What a tile's columns are a multiple of, so that two warps can have half of them each: whole chunks.
pub(super) fn halves(problem: &Problem, config: &Config, swap_ab: bool) -> u32 {
    let least = if problem.formats.c.scales().is_some() && !swap_ab { 32 } else { 8 };
    asked(config).and_then(|load| load.chunk).unwrap_or(least).max(least).saturating_mul(2)
}

/// Parts of a tile's columns that CTAs finish.
fn parts(config: &Config) -> u32 {
    cluster_parts(config).max(1)
}

/// Whether the chunk that was asked for divides what a CTA finishes of a tile's columns.
pub(super) fn takes_columns(config: &Config, columns: u32) -> bool {
    let chunk = asked(config).and_then(|load| load.chunk).filter(|chunk| *chunk > 0);
    chunk.is_none_or(|chunk| (columns / parts(config)).is_multiple_of(chunk))
}

/// Columns that are finished together, of `columns` that a warp finishes. Unless it was asked for, the most that fit;
/// but 8 where threads share lanes: a wider chunk makes no store wider there, and takes registers. `crowded`: whether an SM's
/// registers are dealt out for more than six warps, so that a thread has at most 168.
pub(super) fn chunk(config: &Config, problem: &Problem, columns: u32, swap_ab: bool, crowded: bool) -> u32 {
    let widest = match problem.formats.c.scales() {
        None if shares_lanes(config) => 8,
        // Blocks of C with scale factors are 32, unless they lie across lanes.
        scales if (parts(config) > 1 || crowded) && (scales.is_none() || swap_ab) => CLUSTER_CHUNK,
        _ => 32,
    };
    let asked = asked(config).and_then(|load| load.chunk);
    let fits = |chunk: &u32| *chunk <= widest && columns.is_multiple_of(*chunk);
    asked.unwrap_or_else(|| CHUNKS.into_iter().find(fits).unwrap_or(8))
}

pub(super) fn check(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    let Some(load) = asked(config) else { return };
    let mut refuse =
        |reason: String| errors.push(ConfigError::StoreLoad { store: Store::DirectBy(load), reason });
    let columns = (if swap_ab { tile.m } else { tile.n }) / parts(config);
    if let Some(chunk) = load.chunk {
        if !CHUNKS.contains(&chunk) {
            refuse("the epilogue finishes 8, 16 or 32 columns together".into());
        } else if !columns.is_multiple_of(chunk) {
            refuse(format!("a CTA finishes {columns} columns of a tile, which is no multiple of {chunk}"));
        } else if parts(config) > 1 && chunk > CLUSTER_CHUNK {
            refuse(format!(
                "other CTAs' sums take registers beside a chunk's {chunk} columns, which are at most {CLUSTER_CHUNK} then"
            ));
        } else if problem.formats.c.scales().is_some() && !swap_ab && chunk != 32 {
            refuse(format!("blocks of {} are finished 32 columns at a time", problem.formats.c));
        }
    }
    if load.shape == TmemShape::S32x32b {
        return;
    }
    if let Some(scales) = problem.formats.c.scales() {
        let block = scales.block;
        refuse(format!(
            "the {block} columns of {} that share a scale factor would be in several threads",
            problem.formats.c
        ));
    }
    if swap_ab {
        refuse(
            "with swap_ab neighbouring columns of an accumulator are rows of C, and a warp would store runs of 8 or 16 elements, where a lane a thread makes runs of 32"
                .into(),
        );
    }
    // Stores reach the rows of a thread, 32 of C or of an fp32 product, with constant offsets.
    let reach = 32 * 4 * u64::from(problem.shape.n.next_multiple_of(4));
    if reach > COUNT_LIMIT {
        errors.push(ConfigError::Count {
            knob: "store",
            what: "bytes of 32 rows of C in fp32",
            count: reach,
            limit: COUNT_LIMIT,
        });
    }
}
