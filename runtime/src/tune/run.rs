//! A tuning run: draws configurations, keeps some, and collects outcomes.

use std::cmp::Ordering;
use std::time::Instant;

use silumin_codegen::problem::Problem;

use super::bound::{Bounded, draw, keep};
#[cfg(feature = "cuda")]
use super::timed::LastRace;
use super::trial::Bench;
use super::{Candidate, Counts, Fate, Space, Step, Tune, TuneError, Tuned, difference, refused};
use crate::device::{Backend, Device};
use crate::gemm::{LoadError, LoadedKernel};

/// A configuration in progress.
pub(super) struct Entrant {
    pub bounded: Bounded,
    /// Predicted seconds per launch.
    pub predicted: Option<f64>,
    pub kernel: Option<LoadedKernel>,
    pub fate: Fate,
}

impl Entrant {
    pub fn new(bounded: Bounded) -> Self {
        Entrant { bounded, predicted: None, kernel: None, fate: Fate::Untried }
    }
}

/// One run.
pub(super) struct Run<'a> {
    pub tune: Tune<'a>,
    pub device: &'a Device,
    pub problem: Problem,
    pub start: Instant,
    pub counts: Counts,
    /// `auto` first.
    pub entrants: Vec<Entrant>,
    #[cfg(feature = "cuda")]
    pub last: Option<LastRace>,
}

pub(super) fn run(mut tune: Tune<'_>, device: &Device) -> Result<Tuned, TuneError> {
    let start = Instant::now();
    let (spec, arch, shape) = (tune.gemm.spec(), device.arch(), tune.shape);
    // What the user has set has to make a kernel, or none of what is put on top of it does.
    tune.gemm.plan(shape, arch)?;
    let problem = spec.problem(shape);
    let space = tune.space.take().unwrap_or_else(|| Space::usual(&problem, arch));
    for name in spec.gate.expr.scalars() {
        if !tune.scalars.iter().any(|(known, _)| *known == name) {
            tune.scalars.push((name, 1.0));
        }
    }
    let drawn = draw(spec, shape, arch, device.facts().sms, &space.configs(&spec.config));
    let illegal: Vec<_> = drawn.illegal.into_iter().map(|(knob, (count, why))| (knob, count, why)).collect();
    let (kept, left_out) = keep(drawn.legal, tune.keep);
    let counts = Counts {
        drawn: drawn.drawn,
        illegal: illegal.iter().map(|(_, count, _)| count).sum(),
        same: drawn.same,
        left_out,
        ..Counts::default()
    };
    tune.tell(&Step::Drawn { of: drawn.drawn, kept: kept.len() });
    let base = spec.config;
    let entrants = kept.into_iter().map(Entrant::new).collect();
    let mut run = Run {
        tune,
        device,
        problem,
        start,
        counts,
        entrants,
        #[cfg(feature = "cuda")]
        last: None,
    };
    let (winner, ranked) = match device.backend() {
        #[cfg(feature = "emulated")]
        Backend::Emulated(_) => run.by_prediction()?,
        #[cfg(not(feature = "emulated"))]
        Backend::Emulated(none) => match *none {},
        #[cfg(feature = "cuda")]
        Backend::Cuda(_) => run.by_times()?,
    };
    let candidates = run.ordered(winner);
    Ok(Tuned {
        problem,
        config: run.entrants[winner].bounded.config,
        base,
        ranked,
        candidates,
        counts: run.counts,
        illegal,
        took: start.elapsed(),
    })
}

impl Run<'_> {
    pub fn cancelled(&self) -> Result<(), TuneError> {
        if self.tune.cancel.is_cancelled() { Err(TuneError::Cancelled) } else { Ok(()) }
    }

    pub fn knobs(&self, place: usize) -> String {
        difference(&self.entrants[place].bounded.config, &self.tune.gemm.spec().config)
    }

    pub fn refuse(&mut self, place: usize, error: &LoadError) {
        self.counts.refused += 1;
        self.entrants[place].fate = Fate::Refused(refused(error));
    }

    pub fn none_right(&self) -> TuneError {
        let first = self.entrants.iter().find_map(|entrant| match &entrant.fate {
            Fate::Wrong(why) | Fate::Refused(why) | Fate::Failed(why) => Some(why.clone()),
            _ => None,
        });
        let (problem, tried) = (self.problem, self.entrants.len());
        TuneError::NoneRight {
            problem,
            tried,
            first: first.unwrap_or_else(|| "nothing was tried".to_owned()),
        }
    }

    /// Runs a kernel once and returns whether it is right; otherwise records and reports the outcome.
    pub fn check(&mut self, place: usize, bench: &mut Bench) -> Result<bool, TuneError> {
        let Some(kernel) = self.entrants[place].kernel.clone() else { return Ok(false) };
        if self.is_lost(place) {
            return Ok(false);
        }
        self.trying(place);
        match bench.check(&kernel) {
            Ok(report) if report.pass => return Ok(true),
            Ok(report) => self.wrong(place, report.to_string()),
            Err(error) => {
                self.counts.failed += 1;
                self.entrants[place].fate = Fate::Failed(error.to_string());
                if let Err(lost) = bench.wait().and_then(|()| self.device.stream().synchronize()) {
                    return Err(TuneError::Lost { knobs: self.knobs(place), reason: lost.to_string() });
                }
            }
        }
        self.entrants[place].kernel = None;
        Ok(false)
    }

    /// Whether the kernel ended an earlier process, which is then recorded.
    fn is_lost(&mut self, place: usize) -> bool {
        let knobs = self.knobs(place);
        let Some((_, reason)) = self.tune.lost.iter().find(|(lost, _)| *lost == knobs) else { return false };
        self.counts.failed += 1;
        self.entrants[place].fate = Fate::Failed(reason.clone());
        self.entrants[place].kernel = None;
        true
    }

    /// Reports that a kernel is about to be launched.
    pub fn trying(&self, place: usize) {
        self.tune.tell(&Step::Trying { knobs: self.knobs(place) });
    }

    pub fn wrong(&mut self, place: usize, report: String) {
        self.counts.wrong += 1;
        self.entrants[place].kernel = None;
        self.entrants[place].fate = Fate::Wrong(report.clone());
        self.tune.tell(&Step::Wrong { problem: self.problem, knobs: self.knobs(place), report });
    }

    /// All considered configurations: the winner, timed ones by time, ranked ones by prediction, the rest.
    fn ordered(&self, winner: usize) -> Vec<Candidate> {
        let key = |place: usize| match &self.entrants[place].fate {
            _ if place == winner => (0, 0.0),
            Fate::Timed { in_race: true, us, .. } => (1, *us),
            Fate::Timed { us, .. } => (2, *us),
            Fate::Right | Fate::Ranked => (3, self.entrants[place].predicted.unwrap_or(f64::MAX)),
            Fate::Wrong(_) => (4, 0.0),
            _ => (5, self.entrants[place].bounded.order),
        };
        let mut order: Vec<usize> = (0..self.entrants.len()).collect();
        let compare = |x: &usize, y: &usize| -> Ordering {
            let (x, y) = (key(*x), key(*y));
            x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
        };
        order.sort_by(compare);
        let candidate = |place: usize| {
            let Entrant { bounded, predicted, fate, .. } = &self.entrants[place];
            let Bounded { config, bound, bytes, waves, .. } = *bounded;
            let (bound, predicted) = (bound * 1e6, predicted.map(|seconds| seconds * 1e6));
            Candidate { config, bound, predicted, bytes, waves, fate: fate.clone() }
        };
        order.into_iter().map(candidate).collect()
    }
}
