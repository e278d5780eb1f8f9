//! A bounded search by predicted times: `auto`, a few configurations of every kind, then neighbours of the best.
//!
//! [`Descent`] says what to predict next and is told the times. It starts no thread and reads no clock, so that a search is the
//! same however its predictions are made, and whatever the machine.

use std::collections::HashSet;

use silumin_codegen::arch::Arch;
use silumin_codegen::config::{CacheHints, Config, Raster, Schedule, Setting};
use silumin_codegen::error::ConfigError;
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::Spec;

use super::bound::{Bounded, draw, keep, neighbours};
use super::space::Space;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depth {
    /// Configurations of the usual space that are predicted beside `auto`, some of each kind.
    pub seeds: usize,
    /// Times that neighbours of the best are predicted.
    pub rounds: usize,
    /// Neighbours of a round, those first that the bound's model puts first.
    pub width: usize,
}

impl Depth {
    /// Minutes of one core for a small problem.
    pub const QUICK: Depth = Depth { seeds: 20, rounds: 4, width: 28 };
    /// As far as anything is found.
    pub const FULL: Depth = Depth { seeds: 64, rounds: 10, width: 200 };
}

/// A round has to bring so much of the time, or it is the last.
const GAIN: f64 = 0.003;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Descent {
    spec: Spec,
    shape: Shape,
    arch: Arch,
    depth: Depth,
    /// Settled configurations that were given out, as the simulator sees them.
    seen: HashSet<Config>,
    /// Configurations that are predicted beside the usual ones.
    more: Vec<Config>,
    /// What is being predicted.
    open: Vec<Bounded>,
    /// What was predicted, in the order of [`Descent::ask`], with seconds.
    tried: Vec<(Bounded, f64)>,
    /// Seconds of the best before this round.
    before: f64,
    round: usize,
}

impl Descent {
    /// A search for the kernels of `spec`, whose knobs stay where it sets them.
    #[must_use]
    pub fn new(spec: &Spec, shape: Shape, arch: Arch, depth: Depth) -> Self {
        let spec = spec.clone();
        let (seen, more, open, tried) = (HashSet::new(), Vec::new(), Vec::new(), Vec::new());
        Descent { spec, shape, arch, depth, seen, more, open, tried, before: f64::MAX, round: 0 }
    }

    /// Adds these knobs to the search; what is illegal for a problem is left out.
    #[must_use]
    pub fn with(mut self, more: &[Config]) -> Self {
        self.more.extend(more);
        self
    }

    /// What to predict now, `auto` first of all; nothing when the search is over. Call [`Descent::told`] in between.
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

    /// Takes the seconds of what [`Descent::ask`] gave out, in its order; `None` for kernels that have no time.
    pub fn told(&mut self, seconds: &[Option<f64>]) {
        let open = std::mem::take(&mut self.open);
        let with = |(one, seconds): (Bounded, &Option<f64>)| seconds.map(|seconds| (one, seconds));
        self.tried.extend(open.into_iter().zip(seconds).filter_map(with));
    }

    /// Configurations that were predicted.
    #[must_use]
    pub fn predicted(&self) -> usize {
        self.tried.len()
    }

    fn best(&self) -> Option<(&Bounded, f64)> {
        // The first of equals: `auto` stays where nothing is faster.
        let least = self.tried.iter().reduce(|x, y| if y.1 < x.1 { y } else { x });
        least.map(|(one, seconds)| (one, *seconds))
    }

    /// The best so far: as asked for, with every `auto` settled, and its seconds.
    #[must_use]
    pub fn fastest(&self) -> Option<(Config, Config, f64)> {
        self.best().map(|(one, seconds)| (one.config, one.settled, seconds))
    }

    /// Seconds of what the spec says itself.
    #[must_use]
    pub fn auto(&self) -> Option<f64> {
        let base = self.spec.config;
        self.tried.iter().find(|(one, _)| one.config == base).map(|(_, seconds)| *seconds)
    }
}

/// What the simulator makes a difference of: it knows no hints for L2, and tiles that all run at once have no order.
fn simulated(settled: &Config) -> Config {
    let looped = matches!(
        settled.schedule,
        Setting::Fixed(Schedule::Persistent | Schedule::Dynamic | Schedule::StreamK)
    );
    let raster = if looped { settled.raster } else { Setting::Fixed(Raster::AlongM) };
    Config { cache: Setting::Fixed(CacheHints::default()), raster, ..*settled }
}

/// Knobs that differ between two plans, with the rule by which the first settled them.
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
