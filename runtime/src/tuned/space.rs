//! Spaces: knobs and their values to try, as text.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use silumin_codegen::arch::{Arch, TensorCore};
use silumin_codegen::config::{Config, Knob, Strategy};
use silumin_codegen::problem::{Groups, MmaKind, Operation, Problem};
use thiserror::Error;

/// Most combinations of a space.
const MOST: usize = 1 << 18;

/// Why the text of a search space is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// A word has no `knob=value` form.
    #[error("`{word}` is not NAME=VALUE, or NAME=VALUE|VALUE for several")]
    Word {
        /// As written.
        word: String,
    },
    /// The knob does not exist, or does not take the value.
    #[error("{reason}")]
    Knob {
        /// Values that the knob takes.
        reason: String,
    },
    /// A line names a knob twice.
    #[error("`{knob}` is written twice in a line: put its values together, `{knob}=ONE|OTHER`")]
    Twice {
        /// The knob.
        knob: &'static str,
    },
    /// The space has too many combinations.
    #[error("there are {count} combinations, and the limit is {MOST}: leave values out")]
    TooLarge {
        /// Number of combinations, or a lower bound.
        count: usize,
    },
}

/// Values of some knobs; every combination is tried.
type Product = Vec<(&'static str, Vec<String>)>;

/// Configurations to try: for each line of the text every combination of its values. Knobs that a line does not name
/// stay. Illegal combinations are only counted.
///
/// ```
/// use silumin_runtime::tune::Space;
///
/// let space: Space = "
///     tile=128x64x64|128x128x64 stages=3|4     # four configurations
///     swap_ab=on schedule=auto|split_k(2)      # and two
/// ".parse()?;
/// assert_eq!(space.configs(&Default::default()).len(), 6);
/// # Ok::<(), silumin_runtime::tune::SpaceError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    products: Vec<Product>,
}

/// Splits a line of knobs at white space outside brackets.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0usize);
    for c in text.chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c.is_whitespace() && depth == 0 {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        } else {
            word.push(c);
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// The value of a knob; a tile may be written `128x256x64`.
fn value_of(knob: &str, value: &str) -> String {
    if knob == "tile" && value.contains('x') {
        format!("[{}]", value.replace('x', ", "))
    } else {
        value.to_owned()
    }
}

/// Parses knobs onto `base`: `tile=128x256x64 stages=4`, one value each.
///
/// ```
/// use silumin_runtime::tune::knobs;
///
/// let config = knobs("tile=128x64x256 stages=3", &Default::default())?;
/// assert_eq!(config, knobs("tile=[128, 64, 256] stages=3", &config)?);
/// # Ok::<(), silumin_runtime::tune::SpaceError>(())
/// ```
///
/// # Errors
///
/// [`SpaceError::Word`], [`SpaceError::Knob`].
pub fn knobs(text: &str, base: &Config) -> Result<Config, SpaceError> {
    let mut config = *base;
    for word in words(text) {
        let (name, value) = word.split_once('=').ok_or_else(|| SpaceError::Word { word: word.clone() })?;
        let set = config.set(name, &value_of(name, value));
        set.map_err(|error| SpaceError::Knob { reason: error.to_string() })?;
    }
    Ok(config)
}

/// The knobs that differ from `base`, as [`knobs`] reads them; empty if none do.
#[must_use]
pub fn difference(config: &Config, base: &Config) -> String {
    let pairs = config.entries().into_iter().zip(base.entries());
    let set = pairs.filter(|(given, usual)| given != usual);
    let text = |((knob, value), _): ((&str, String), _)| match knob {
        "tile" => format!("tile={}", value.trim_matches(['[', ']']).replace(", ", "x")),
        _ => format!("{knob}={value}"),
    };
    set.map(text).collect::<Vec<_>>().join(" ")
}

fn product(line: &str) -> Result<Product, SpaceError> {
    let mut product = Product::new();
    for word in words(line) {
        let (name, values) = word.split_once('=').ok_or_else(|| SpaceError::Word { word: word.clone() })?;
        let mut texts = Vec::new();
        for value in values.split('|') {
            let text = value_of(name, value.trim());
            let set = Config::default().set(name, &text);
            set.map_err(|error| SpaceError::Knob { reason: error.to_string() })?;
            texts.push(text);
        }
        // A name that was just set is known.
        let Some(knob) = Knob::named(name) else { continue };
        if product.iter().any(|(other, _)| *other == knob.name) {
            return Err(SpaceError::Twice { knob: knob.name });
        }
        product.push((knob.name, texts));
    }
    Ok(product)
}

impl FromStr for Space {
    type Err = SpaceError;

    /// Parses a space: a line per set of combinations; `#` starts a comment.
    fn from_str(text: &str) -> Result<Self, SpaceError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        let mut space = Space::default();
        for line in lines.filter(|line| !line.is_empty()) {
            space.products.push(product(line)?);
        }
        let count = space.products.iter().fold(0usize, |all, product| {
            all.saturating_add(product.iter().fold(1, |n: usize, (_, values)| n.saturating_mul(values.len())))
        });
        if count > MOST { Err(SpaceError::TooLarge { count }) } else { Ok(space) }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for product in &self.products {
            let words = product.iter().map(|(knob, values)| format!("{knob}={}", values.join("|")));
            writeln!(f, "{}", words.collect::<Vec<_>>().join(" "))?;
        }
        Ok(())
    }
}

impl Space {
    /// Values worth trying for a problem on a chip: tiles, sides of the MMA, schedules, orders and stores, and
    /// strategies with more kernels, which win if registers bound the tile.
    #[must_use]
    pub fn usual(problem: &Problem, arch: Arch) -> Self {
        let text = match arch.tensor_core() {
            TensorCore::Wgmma => warpgroups(problem),
            TensorCore::Tcgen05 => tensor_memory(problem),
            TensorCore::Mma => warps(problem),
        };
        text.parse().unwrap_or_default()
    }

    /// Adds the configurations of another space.
    #[must_use]
    pub fn and(mut self, other: Space) -> Self {
        self.products.extend(other.products);
        self
    }

    /// Configurations that differ from `one` in one knob, for each value of each knob that `base` does not set.
    pub(crate) fn each(&self, one: &Config, base: &Config) -> Vec<Config> {
        let given = given(base);
        let mut all = Vec::new();
        for (knob, values) in self.products.iter().flatten().filter(|(knob, _)| !given.contains(knob)) {
            let with = |value: &String| {
                let mut config = *one;
                config.set(knob, value).ok().map(|()| config)
            };
            all.extend(values.iter().filter_map(with));
        }
        all
    }

    /// Every distinct configuration on top of `base`, in the order of the text. Knobs that `base` sets stay.
    #[must_use]
    pub fn configs(&self, base: &Config) -> Vec<Config> {
        let given = given(base);
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for product in &self.products {
            let mut configs = vec![*base];
            for (knob, values) in product.iter().filter(|(knob, _)| !given.contains(knob)) {
                let with = |config: &Config| {
                    let config = *config;
                    values.iter().filter_map(move |value| {
                        let mut config = config;
                        // Values have been read once.
                        config.set(knob, value).ok().map(|()| config)
                    })
                };
                configs = configs.iter().flat_map(with).collect();
            }
            all.extend(configs.into_iter().filter(|config| seen.insert(*config)));
        }
        all
    }
}

/// Names of the knobs that a configuration sets.
fn given(base: &Config) -> Vec<&'static str> {
    let usual = Config::default().entries();
    let set = base.entries().into_iter().zip(usual).filter(|(given, usual)| given != usual);
    set.map(|((knob, _), _)| knob).collect()
}

/// Rows per matrix or group, as `auto` counts them.
fn rows(problem: &Problem) -> u32 {
    match problem.shape.groups {
        Groups::One | Groups::Batch(_) => problem.shape.m,
        Groups::Rows(groups) => problem.shape.m.div_ceil(groups.max(1)),
    }
}

/// Columns of the MMA for few tokens: all tokens, and smaller sizes.
fn tokens(rows: u32, multiple: u32, most: u32) -> Vec<u32> {
    let whole = rows.next_multiple_of(multiple).min(most);
    let mut sizes = vec![whole];
    sizes.extend([16, 32, 64, 128].into_iter().filter(|size| *size < whole));
    sizes
}

fn tiles(m: &[u32], n: &[u32], k: &[u32]) -> String {
    let mut all = Vec::new();
    for k in k {
        for m in m {
            all.extend(n.iter().map(|n| format!("{m}x{n}x{k}")));
        }
    }
    all.join("|")
}

/// Elements per 128-byte swizzle span of the wider operand.
fn span(problem: &Problem) -> u32 {
    let bits = problem.formats.a.spec().element_bits.max(problem.formats.b.spec().element_bits);
    1024 / bits.max(1)
}

/// The values that tuning tries for a knob, by the table of knobs, separated by `|`.
fn tried(knob: &str, core: TensorCore) -> String {
    Knob::named(knob).map_or(String::new(), |knob| knob.candidates(core).join("|"))
}

/// Strategies that tuning tries: a GEMM has one.
fn strategies(problem: &Problem, core: TensorCore) -> String {
    match problem.operation {
        Operation::DualGemm => tried("strategy", core),
        Operation::Gemm => Strategy::Single.to_string(),
    }
}

fn warpgroups(problem: &Problem) -> String {
    let rows = rows(problem);
    let tried = |knob| tried(knob, TensorCore::Wgmma);
    let (schedules, strategies, shared) =
        (tried("schedule"), strategies(problem, TensorCore::Wgmma), tried("multicast"));
    let (layouts, rasters, consumers) = (tried("accumulators"), tried("raster"), tried("consumers"));
    let decoded = problem.formats.kind(Arch::Sm90a) == Ok(MmaKind::Decoded);
    let k = if decoded { 64 } else { span(problem) };
    let mut lines = Vec::new();
    if rows <= 256 || decoded {
        let m = tokens(rows, 8, if decoded { 256 } else { 128 });
        let swapped = tiles(&m, &[64, 128, 192, 256], &[k, 2 * k, 4 * k]);
        lines.push(format!("swap_ab=on tile={swapped} schedule=auto|{schedules}"));
        let deep = tiles(&m, &[64, 128, 192, 256], &[k, 2 * k]);
        lines.push(format!("swap_ab=on tile={deep} multicast=a(2) schedule=auto|split_k(2)|split_k(4)"));
    }
    if rows > 32 && !decoded {
        let wide = tiles(&[128], &[48, 64, 80, 96, 112, 128], &[k]);
        let tall = tiles(&[192, 256], &[48, 64, 80, 96], &[k]);
        let small = tiles(&[64], &[64, 96, 128], &[k, 2 * k]);
        let deep = tiles(&[128], &[48, 64, 96], &[2 * k]);
        lines.push(format!(
            "swap_ab=off tile={wide}|{tall}|{small}|{deep} accumulators=auto|{layouts} schedule=auto|persistent|stream_k|split_k(2) raster=auto|{rasters}"
        ));
        lines.push(format!(
            "swap_ab=off tile={wide}|{tall} multicast={shared} schedule=auto|persistent raster=auto|along_n"
        ));
        let turns = tiles(&[64, 128], &[64, 96, 128], &[k]);
        lines.push(format!(
            "swap_ab=off consumers={consumers} schedule=persistent tile={turns} multicast=none|b(2) raster=auto|along_n"
        ));
        let apart = tiles(&[128, 256], &[128, 192, 256], &[k]);
        lines.push(format!(
            "swap_ab=off strategy={strategies} tile={apart} schedule=auto|persistent|stream_k"
        ));
    }
    lines.join("\n")
}

fn warps(problem: &Problem) -> String {
    let (k, rows) = (span(problem), rows(problem));
    let tried = |knob| tried(knob, TensorCore::Mma);
    let (schedules, strategies, rasters) =
        (tried("schedule"), strategies(problem, TensorCore::Mma), tried("raster"));
    let mut lines = Vec::new();
    if rows <= 256 {
        let swapped = tiles(&tokens(rows, 8, 128), &[64, 128], &[k / 2, k, 2 * k]);
        lines.push(format!("swap_ab=on tile={swapped} schedule=auto|{schedules}"));
    }
    if rows > 32 {
        let plain = tiles(&[64, 128], &[32, 64, 128], &[k / 2, k]);
        let tall = tiles(&[192, 256], &[48, 64], &[k / 2, k]);
        lines.push(format!(
            "swap_ab=off tile={plain}|{tall} schedule=auto|persistent|stream_k|split_k(2) store=auto|direct raster=auto|{rasters}"
        ));
        let apart = tiles(&[128], &[128, 256], &[k / 2, k]);
        lines.push(format!(
            "swap_ab=off strategy={strategies} tile={apart} schedule=auto|persistent|stream_k"
        ));
    }
    lines.join("\n")
}

fn tensor_memory(problem: &Problem) -> String {
    let (k, rows) = (span(problem), rows(problem));
    let tried = |knob| tried(knob, TensorCore::Tcgen05);
    let (schedules, strategies, multicasts) =
        (tried("schedule"), strategies(problem, TensorCore::Tcgen05), tried("multicast"));
    let (orders, stores, rasters) = (tried("k_order"), tried("store"), tried("raster"));
    let (layouts, ahead) = (tried("accumulators"), tried("sf_preload"));
    let clusters = schedules.split('|').filter(|schedule| schedule.starts_with("cluster_split_k"));
    let clusters = clusters.collect::<Vec<_>>().join("|");
    let mut lines = Vec::new();
    if rows <= 256 {
        let swapped = tiles(&tokens(rows, 16, 256), &[128], &[k, 2 * k]);
        lines.push(format!(
            "swap_ab=on cta_group=1 tile={swapped} schedule=auto|{schedules} k_order=auto|{orders}"
        ));
    }
    if rows > 32 {
        for (group, m) in [("1", 128), ("2", 256)] {
            let plain = tiles(&[m], &[64, 128, 192, 256], &[k]);
            let deep = tiles(&[m], &[64, 128], &[2 * k]);
            lines.push(format!(
                "swap_ab=off cta_group={group} tile={plain}|{deep} schedule=auto|persistent|dynamic|stream_k|split_k(2) k_order=auto|{orders} store=auto|{stores} raster=auto|{rasters}"
            ));
            lines.push(format!(
                "swap_ab=off cta_group={group} tile={plain} accumulators={layouts} schedule=auto|persistent store=auto|{stores}"
            ));
            lines.push(format!(
                "swap_ab=off cta_group={group} tile={plain} sf_preload={ahead} schedule=auto|persistent"
            ));
            lines.push(format!(
                "swap_ab=off cta_group={group} tile={plain} strategy={strategies} schedule=auto|persistent"
            ));
        }
        let shared = tiles(&[128], &[64, 128], &[k]);
        lines.push(format!("swap_ab=off cta_group=1 tile={shared} schedule={clusters}"));
        lines.push(format!(
            "swap_ab=off cta_group=1 multicast={multicasts} tile={shared} schedule=auto|persistent k_order=auto|{orders}"
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::config::KNOBS;
    use silumin_codegen::plan::validate;
    use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, Shape};

    #[test]
    fn lines_are_combinations_and_each_configuration_comes_once() {
        let space: Space =
            "stages=2|3 tile=128x64x64 # two\n\nstages=3 tile=[128, 64, 64]\n".parse().unwrap();
        let configs = space.configs(&Config::default());
        assert_eq!(configs.len(), 2);
        assert_eq!(difference(&configs[1], &Config::default()), "tile=128x64x64 stages=3");
        assert_eq!(space.to_string().parse::<Space>().unwrap(), space);
    }

    #[test]
    fn what_the_user_set_stays() {
        let base = knobs("stages=4", &Config::default()).unwrap();
        let space: Space = "stages=2|3 pdl=off|on".parse().unwrap();
        let configs = space.configs(&base);
        assert_eq!(configs.len(), 2);
        assert!(configs.iter().all(|config| config.stages == base.stages));
    }

    #[test]
    fn wrong_text_says_what_is_wrong() {
        let said = |text: &str| text.parse::<Space>().unwrap_err().to_string();
        assert!(said("stages").contains("NAME=VALUE"));
        assert!(said("stage=3").contains("did you mean `stages`"));
        assert!(said("stages=3|many").contains("many"));
        assert!(said("stages=3 stages=4").contains("stages=ONE|OTHER"));
        let many = (1..=32).map(|n| n.to_string()).collect::<Vec<_>>().join("|");
        let sms = (1..=9999).map(|n| n.to_string()).collect::<Vec<_>>().join("|");
        assert!(said(&format!("stages={many} sms={sms}")).contains("319968 combinations"));
    }

    #[test]
    fn what_the_table_has_tuning_try_is_tried() {
        use OperandFormat::{Bf16, Nvfp4};
        for (arch, format) in [(Arch::Sm90a, Bf16), (Arch::Sm100a, Nvfp4)] {
            let formats = Formats::new(format, format, OutputFormat::Bf16);
            let spaces: Vec<Space> = [16, 512]
                .map(|m| Space::usual(&Problem::dual(Shape::new(m, 4096, 7168), formats), arch))
                .into();
            for knob in &KNOBS {
                for value in knob.candidates(arch.tensor_core()) {
                    let has = |product: &Product| {
                        product
                            .iter()
                            .any(|(name, values)| *name == knob.name && values.iter().any(|v| v == value))
                    };
                    let tried = spaces.iter().any(|space| space.products.iter().any(has));
                    assert!(tried, "{arch}: no usual space has {} = {value}", knob.name);
                }
            }
        }
    }

    #[test]
    fn every_usual_space_has_legal_configurations_of_several_kinds() {
        use OperandFormat::{Bf16, E4m3, Mxfp4, Mxfp4Repacked, Mxfp8, Nvfp4, Nvfp4Repacked};
        let formats = |a, b| Formats::new(a, b, OutputFormat::Bf16);
        for (arch, formats) in [
            (Arch::Sm90a, formats(Bf16, Bf16)),
            (Arch::Sm90a, formats(E4m3, E4m3)),
            (Arch::Sm90a, formats(Bf16, Nvfp4)),
            (Arch::Sm90a, formats(Bf16, Nvfp4Repacked)),
            (Arch::Sm90a, formats(Nvfp4, Nvfp4)),
            (Arch::Sm90a, formats(Bf16, Mxfp4)),
            (Arch::Sm90a, formats(Bf16, Mxfp4Repacked)),
            (Arch::Sm100a, formats(Nvfp4, Nvfp4)),
            (Arch::Sm100a, formats(Mxfp8, Nvfp4)),
            (Arch::Sm103a, formats(Mxfp8, Mxfp8)),
            (Arch::Sm100f, formats(Bf16, Bf16)),
        ] {
            if formats.check().is_err() {
                continue;
            }
            for m in [1, 16, 64, 128, 512, 4096] {
                let shape = Shape::new(m, 4096, 7168);
                let problem = Problem::dual(shape, formats);
                let configs = Space::usual(&problem, arch).configs(&Config::default());
                let plans: Vec<_> =
                    configs.iter().filter_map(|config| validate(&problem, config, arch).ok()).collect();
                let kinds: HashSet<_> =
                    plans.iter().map(|plan| (plan.tile, plan.work.schedule, plan.strategy)).collect();
                assert!(kinds.len() >= 8, "{arch} {problem}: {} kinds of {}", kinds.len(), configs.len());
            }
        }
    }
}
