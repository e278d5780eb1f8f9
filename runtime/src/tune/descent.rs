//! A bounded search by predicted times: `auto`, a few configurations of every kind, then neighbours of the best.
//!
//! [`Descent`] says what to predict next and is given the times. It starts no thread and reads no clock, so a search
//! gives the same result on every machine.

use std::collections::HashSet;

use silumin_codegen::arch::Arch;
use silumin_codegen::config::{CacheHints, Config, Raster, Schedule, Setting};
use silumin_codegen::error::ConfigError;
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::Spec;

use super::Space;
use super::bound::{Bounded, draw, keep, neighbours};

/// Limits of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Configurations of the usual space that are predicted beside `auto`, some of each kind.
    pub seeds: usize,
    /// Rounds, each of which tries neighbours of the best configuration so far.
    pub rounds: usize,
    /// Neighbours per round, in the order of their bounds.
    pub width: usize,
}

impl Depth {
    /// A search of minutes on one core for a small problem.
    pub const QUICK: Depth = Depth { seeds: 20, rounds: 4, width: 28 };
    /// A search until no round gains.
    pub const FULL: Depth = Depth { seeds: 64, rounds: 10, width: 200 };
}

/// Least gain of a round, as a fraction of the time; otherwise the search ends.
const GAIN: f64 = 0.003;

/// A running search.
#[derive(Clone, Debug)]
pub struct Descent {
    spec: Spec,
    shape: Shape,
    arch: Arch,
    depth: Depth,
    /// Settled configurations that were returned, as the simulator distinguishes them.
    seen: HashSet<Config>,
    /// Extra configurations to predict.
    more: Vec<Config>,
    /// Configurations whose times are awaited.
    open: Vec<Bounded>,
    /// Predicted configurations in the order of [`Descent::ask`], with seconds.
    tried: Vec<(Bounded, f64)>,
    /// Best time before this round, in seconds.
    before: f64,
    round: usize,
}

impl Descent {
    /// A search for the kernels of `spec`. Knobs that it sets stay.
    #[must_use]
    pub fn new(spec: &Spec, shape: Shape, arch: Arch, depth: Depth) -> Self {
        let spec = spec.clone();
        let (seen, more, open, tried) = (HashSet::new(), Vec::new(), Vec::new(), Vec::new());
        Descent { spec, shape, arch, depth, seen, more, open, tried, before: f64::MAX, round: 0 }
    }

    /// Adds configurations to the search; illegal ones are skipped.
    #[must_use]
    pub fn with(mut self, more: &[Config]) -> Self {
        self.more.extend(more);
        self
    }

    /// The configurations to predict next, `auto` first of all; empty when the search is over. Call [`Descent::told`]
    /// between two calls.
    ///
    /// # Errors
    /// There is no kernel for the problem.
    pub fn ask(&mut self) -> Result<Vec<Config>, Vec<ConfigError>> {
        let problem = self.spec.problem(self.shape);
        let base = self.spec.config;
        let best = self.best().map(|(one, seconds)| (one.clone(), seconds));
        let wanted = match (&best, self.round) {
            (_, 0) => {
                self.spec.plan(self.shape, self.arch)?;
                let configs = Space::usual(&problem, self.arch).configs(&base);
                let drawn = draw(&self.spec, self.shape, self.arch, 0, &configs);
                let mut kept = keep(drawn.legal, self.depth.seeds + 1).0;
                kept.extend(draw(&self.spec, self.shape, self.arch, 0, &self.more).legal);
                kept
            }
            (Some((best, seconds)), round) if round <= self.depth.rounds => {
                if *seconds > (1.0 - GAIN) * self.before && round > 1 {
                    return Ok(Vec::new());
                }
                self.before = *seconds;
                let near = neighbours(best, &base);
                let drawn = draw(&self.spec, self.shape, self.arch, 0, &near);
                let mut near = drawn.legal;
                near.retain(|one| one.bound < *seconds);
                near.sort_by(|x, y| x.order.total_cmp(&y.order));
                near
            }
            _ => Vec::new(),
        };
        self.round += 1;
        let width = if self.round == 1 { usize::MAX } else { self.depth.width };
        let new = wanted.into_iter().filter(|one| self.seen.insert(simulated(&one.settled)));
        self.open = new.take(width).collect();
        Ok(self.open.iter().map(|one| one.config).collect())
    }

    /// Takes the predicted seconds of the configurations that [`Descent::ask`] returned, in their order; `None` for
    /// kernels without a time.
    pub fn told(&mut self, seconds: &[Option<f64>]) {
        let open = std::mem::take(&mut self.open);
        let with = |(one, seconds): (Bounded, &Option<f64>)| seconds.map(|seconds| (one, seconds));
        self.tried.extend(open.into_iter().zip(seconds).filter_map(with));
    }

    /// Number of predicted configurations.
    #[must_use]
    pub fn predicted(&self) -> usize {
        self.tried.len()
    }

    fn best(&self) -> Option<(&Bounded, f64)> {
        // The first of equals: `auto` stays where nothing is faster.
        let least = self.tried.iter().reduce(|x, y| if y.1 < x.1 { y } else { x });
        least.map(|(one, seconds)| (one, *seconds))
    }

    /// The best configuration so far: as asked for, with every `auto` settled, and its seconds.
    #[must_use]
    pub fn fastest(&self) -> Option<(Config, Config, f64)> {
        self.best().map(|(one, seconds)| (one.config, one.settled, seconds))
    }

    /// Predicted seconds of the configuration that the spec gives.
    #[must_use]
    pub fn auto(&self) -> Option<f64> {
        let base = self.spec.config;
        self.tried.iter().find(|(one, _)| one.config == base).map(|(_, seconds)| *seconds)
    }
}

/// A configuration without what the simulator ignores: L2 hints, and the order of tiles that all run at once.
fn simulated(settled: &Config) -> Config {
    let looped = matches!(
        settled.schedule,
        Setting::Fixed(Schedule::Persistent | Schedule::Dynamic | Schedule::StreamK)
    );
    let raster = if looped { settled.raster } else { Setting::Fixed(Raster::AlongM) };
    Config { cache: Setting::Fixed(CacheHints::default()), raster, ..*settled }
}

/// Knobs that differ between two plans, with the rules by which `auto` chose the first.
#[must_use]
pub fn rules(auto: &Plan, other: &Config) -> Vec<(String, String, String, String)> {
    let pairs = auto.config.entries().into_iter().zip(other.entries());
    let choices = auto.explain().choices;
    pairs
        .filter(|(own, theirs)| own != theirs)
        .map(|((knob, own), (_, theirs))| {
            let rule =
                choices.iter().find(|choice| choice.knob == knob).and_then(|choice| choice.rule.clone());
            (knob.to_owned(), own, theirs, rule.unwrap_or_default())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_starts_with_auto_and_ends_where_neighbours_are_no_faster() {
        let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        let shape = Shape::new(64, 4096, 7168);
        let depth = Depth { seeds: 4, rounds: 3, width: 5 };
        let mut search = Descent::new(&spec, shape, Arch::Sm100a, depth);
        let first = search.ask().unwrap();
        assert_eq!((first.len(), first[0]), (5, spec.config));
        // The third is the fastest, and nothing near it is faster.
        search.told(&[Some(9.0), Some(8.0), Some(5.0), None, Some(7.0)]);
        assert_eq!((search.auto(), search.predicted()), (Some(9.0), 4));
        let near = search.ask().unwrap();
        assert!(!near.is_empty() && near.len() <= 5 && !near.contains(&spec.config), "{near:?}");
        search.told(&vec![Some(6.0); near.len()]);
        assert_eq!(search.ask().unwrap(), []);
        assert_eq!(search.fastest().map(|(config, _, seconds)| (config, seconds)), Some((first[2], 5.0)));
    }

    #[test]
    fn a_problem_without_a_kernel_has_no_search() {
        let spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        let mut search = Descent::new(&spec, Shape::new(64, 4096, 0), Arch::Sm100a, Depth::QUICK);
        assert!(search.ask().is_err());
    }
}
