//! Tuning by measured times: kernels are loaded on all cores, checked one by one, and timed by turns, followed by the
//! neighbours of the fastest.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rayon::prelude::*;
use silumin_codegen::config::Config;

use super::bound::{Bounded, draw, keep, neighbours};
use super::run::{Entrant, Run};
use super::trial::Bench;
use super::{Fate, Finish, Ranked, Rules, Step, TuneError};
use crate::device::{DeviceError, Replay};
use crate::gemm::VerifyError;

/// The last race, and the entrants in it.
pub(super) struct LastRace {
    places: Vec<usize>,
    finish: Finish,
}

/// Turns of the first race, which decides whose neighbours are tried.
const FIRST_TURNS: usize = 16;
/// Turns that run even if time is up.
const LEAST_TURNS: usize = 5;
/// Kernels that enter the second race, and whose neighbours are tried.
const FINALISTS: usize = 6;
const PARENTS: usize = 2;

impl Run<'_> {
    /// Records that this kernel broke the context.
    fn lost(&self, place: usize, error: &DeviceError) -> TuneError {
        TuneError::Lost { knobs: self.knobs(place), reason: error.to_string() }
    }

    fn past(&self, share: f64) -> bool {
        self.start.elapsed() > Duration::from_secs_f64(self.tune.budget.as_secs_f64() * share)
    }

    /// A race among the right kernels of the space, then one among the best of them and their neighbours.
    pub(super) fn by_times(&mut self) -> Result<(usize, Ranked), TuneError> {
        let (gemm, shape, seed, macs) = (self.tune.gemm, self.tune.shape, self.tune.seed, self.tune.macs);
        let mut bench = Bench::new(self.device, gemm, shape, &self.tune.scalars, seed, macs)?;
        let mut field = self.admit(0, &mut bench, 0.35)?;
        bench.fill(self.tune.sets)?;
        let first = Rules { turns: FIRST_TURNS, ..self.tune.rules };
        let mut winner = self.race(&field, &bench, &first, 0.6)?.ok_or_else(|| self.none_right())?;
        if !self.past(0.6) {
            let tried: HashSet<Config> =
                self.entrants.iter().map(|entrant| entrant.bounded.settled).collect();
            let known = self.entrants.len();
            let (best, base) = (self.by_time(&field), gemm.spec().config);
            let near = best.iter().take(PARENTS);
            let near: Vec<Config> =
                near.flat_map(|place| neighbours(&self.entrants[*place].bounded, &base)).collect();
            let drawn = draw(gemm.spec(), shape, self.device.arch(), self.device.facts().sms, &near);
            let fresh: Vec<Bounded> =
                drawn.legal.into_iter().filter(|one| !tried.contains(&one.settled)).collect();
            // The best of them by their bounds; a kernel of the first race leads the list in the place of `auto`.
            let mut legal = vec![self.entrants[winner].bounded.clone()];
            legal.extend(fresh);
            let (kept, _) = keep(legal, self.tune.keep + 1);
            self.entrants.extend(kept.into_iter().skip(1).map(Entrant::new));
            let admitted = self.admit(known, &mut bench, 0.75)?;
            field = best.into_iter().take(FINALISTS).collect();
            if self.entrants[0].kernel.is_some() && !field.contains(&0) {
                field.push(0);
            }
            field.extend(admitted);
            let rules = self.tune.rules;
            winner = self.race(&field, &bench, &rules, 1.0)?.unwrap_or(winner);
        } else {
            let finalists = self.by_time(&field);
            field = finalists;
        }
        self.confirm(winner, &field, &mut bench)
    }

    /// Loads the entrants from `first` on, on all cores, and checks them; returns the right ones. Entrants that have
    /// not started when their share of the time is over are skipped, except for the first.
    fn admit(&mut self, first: usize, bench: &mut Bench, share: f64) -> Result<Vec<usize>, TuneError> {
        let (of, done) = (self.entrants.len() - first, AtomicUsize::new(0));
        let load = |place: usize| {
            if place > 0 && (self.tune.cancel.is_cancelled() || self.past(share)) {
                return (place, None);
            }
            let loaded = self
                .tune
                .gemm
                .with_config(self.entrants[place].bounded.config)
                .load(self.device, self.problem.shape);
            self.tune.tell(&Step::Loaded { done: done.fetch_add(1, Ordering::Relaxed) + 1, of });
            (place, Some(loaded))
        };
        let places: Vec<usize> = (first..self.entrants.len()).collect();
        // One at a time to each thread: a kernel takes long enough, and halves of the list do not end together.
        let loaded: Vec<_> = places.into_par_iter().with_max_len(1).map(load).collect();
        for (place, result) in loaded {
            match result {
                Some(Ok(kernel)) => self.entrants[place].kernel = Some(kernel),
                Some(Err(error)) => self.refuse(place, &error),
                None => {}
            }
        }
        let mut right = Vec::new();
        for place in first..self.entrants.len() {
            self.cancelled()?;
            if (place == 0 || !self.past(share + 0.15)) && self.check(place, bench)? {
                right.push(place);
            }
            self.tune.tell(&Step::Checked { done: place - first + 1, of });
        }
        Ok(right)
    }

    /// Times kernels by turns, records their times, and returns the winner; `None` if none could be timed.
    fn race(
        &mut self,
        field: &[usize],
        bench: &Bench,
        rules: &Rules,
        share: f64,
    ) -> Result<Option<usize>, TuneError> {
        let (mut replays, mut places) = (Vec::new(), Vec::new());
        for place in field.iter().copied() {
            self.cancelled()?;
            let Some(kernel) = self.entrants[place].kernel.clone() else { continue };
            let launch = |set| bench.launch(&kernel, set);
            self.trying(place);
            match Replay::capture(bench.stream(), bench.sets(), self.tune.length, launch, VerifyError::from) {
                Ok(replay) => {
                    replays.push(replay);
                    places.push(place);
                }
                Err(error) => {
                    self.counts.failed += 1;
                    self.entrants[place].fate = Fate::Failed(error.to_string());
                    self.entrants[place].kernel = None;
                    if let Err(lost) = bench.wait() {
                        return Err(self.lost(place, &lost));
                    }
                }
            }
        }
        if replays.is_empty() {
            return Ok(None);
        }
        let incumbent = places.iter().position(|place| *place == 0);
        let stop = |turn: usize| {
            self.tune.tell(&Step::Turn { turn });
            turn >= LEAST_TURNS && (self.past(share) || self.tune.cancel.is_cancelled())
        };
        // A kernel that was right alone may still fail in a row, and take the context along.
        let time = |one: usize| {
            self.trying(places[one]);
            replays[one].time().map_err(|error| self.lost(places[one], &error))
        };
        let finish = super::race::race(replays.len(), incumbent, rules, time, stop);
        let mut finish = finish?;
        self.cancelled()?;
        // One alone is no race, and has a time all the same.
        while finish.times[finish.winner].len() < LEAST_TURNS {
            let us = time(finish.winner)?;
            finish.times[finish.winner].push(us);
        }
        for (one, place) in places.iter().enumerate() {
            let times = &finish.times[one];
            let us = super::median(times);
            self.entrants[*place].fate = Fate::Timed { us, turns: times.len(), in_race: finish.in_race[one] };
        }
        self.last = Some(LastRace { places: places.clone(), finish: finish.clone() });
        Ok(Some(places[finish.winner]))
    }

    /// The timed kernels, fastest first.
    fn by_time(&self, field: &[usize]) -> Vec<usize> {
        let time = |place: &usize| match self.entrants[*place].fate {
            Fate::Timed { us, in_race, .. } => Some((!in_race, us)),
            _ => None,
        };
        let mut order: Vec<usize> = field.iter().copied().filter(|place| time(place).is_some()).collect();
        order.sort_by(|x, y| {
            let (x, y) = (time(x).unwrap_or((true, f64::NAN)), time(y).unwrap_or((true, f64::NAN)));
            x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
        });
        order
    }

    /// Checks the winner's outputs in every operand set after launches back to back, since those may fail where a
    /// single launch does not; if they are wrong, checks the next one.
    fn confirm(
        &mut self,
        winner: usize,
        field: &[usize],
        bench: &mut Bench,
    ) -> Result<(usize, Ranked), TuneError> {
        let mut order = vec![winner];
        order.extend(self.by_time(field).into_iter().filter(|place| *place != winner));
        for place in order {
            self.cancelled()?;
            let Some(kernel) = self.entrants[place].kernel.clone() else { continue };
            for set in 0..bench.sets() {
                bench.poison(set)?;
            }
            self.trying(place);
            for _ in 0..2 {
                (0..bench.sets()).try_for_each(|set| bench.launch(&kernel, set))?;
            }
            bench.wait().map_err(|error| self.lost(place, &error))?;
            // The first, the last and one between: a problem with many sets is a small one.
            let last = bench.sets() - 1;
            let mut report = None;
            for set in [0, last / 2, last] {
                let judged = bench.judge(&kernel, set)?;
                if !judged.pass {
                    report = Some(format!("right alone, wrong in a row of launches: {judged}"));
                    break;
                }
            }
            match report {
                Some(report) => self.wrong(place, report),
                None => {
                    let timed = |entrant: &Entrant| matches!(entrant.fate, Fate::Timed { .. });
                    self.counts.timed = self.entrants.iter().filter(|entrant| timed(entrant)).count();
                    return self.ranked(place).map(|ranked| (place, ranked)).ok_or_else(|| self.none_right());
                }
            }
        }
        Err(self.none_right())
    }

    /// The result of the last race.
    fn ranked(&self, winner: usize) -> Option<Ranked> {
        let LastRace { places, finish } = self.last.as_ref()?;
        let times = |place: usize| {
            let one = places.iter().position(|known| *known == place)?;
            Some(&finish.times[one]).filter(|times| !times.is_empty())
        };
        let (own, auto) = (times(winner)?, times(0));
        let pairs = |auto: &Vec<f64>| own.iter().zip(auto).map(|(own, auto)| own / auto).collect::<Vec<_>>();
        // Where the winner of the race was sent away afterwards, nothing was shown of the next one.
        let same = places.get(finish.winner) == Some(&winner);
        Some(Ranked::Measured {
            us: super::median(own),
            auto_us: auto.map(|auto| super::median(auto)),
            ratio: auto.map(|auto| super::median(&pairs(auto))),
            turns: finish.turns,
            verdict: if same { finish.verdict } else { super::Verdict::Open },
        })
    }
}
