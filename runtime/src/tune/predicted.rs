//! Ranking by predicted times on a device without a clock.

use rayon::prelude::*;

use super::run::Run;
use super::trial::Bench;
use super::{Fate, Ranked, TuneError};
use crate::predict::{Chip, PredictError, TimeOptions, default_chip, predict};
use silumin_formats::groups::GroupSizes;

/// Fraction of a check's multiply-adds that the emulator may take: it is slower than the reference, and runs whole
/// kernels.
const EMULATED_SHARE: f64 = 0.125;
/// Predicted time, as a fraction of that of `auto`, that a kernel must reach to replace it.
const GAIN: f64 = 0.98;

impl Run<'_> {
    /// The fastest configuration by prediction that the emulator does not find wrong, if it can run it in time.
    pub(super) fn by_prediction(&mut self) -> Result<(usize, Ranked), TuneError> {
        let chip = default_chip(self.device.arch().target())?;
        self.predict_all(chip)?;
        let us = |run: &Self, place: usize| run.entrants[place].predicted.map(|seconds| seconds * 1e6);
        let mut order: Vec<usize> =
            (0..self.entrants.len()).filter(|place| us(self, *place).is_some()).collect();
        let time = |place: &usize| us(self, *place).unwrap_or(f64::MAX);
        order.sort_by(|x, y| time(x).total_cmp(&time(y)));
        // `auto` stays where nothing is clearly faster.
        if let (Some(auto), Some(best)) = (us(self, 0), order.first().map(time))
            && best > GAIN * auto
        {
            order.retain(|place| *place != 0);
            order.insert(0, 0);
        }
        let mut winner = order.first().copied();
        let (shape, tune) = (self.problem.shape, &self.tune);
        if self.problem.operations() / 2.0 <= EMULATED_SHARE * tune.macs {
            let mut bench = Bench::new(self.device, tune.gemm, shape, &tune.scalars, tune.seed, tune.macs)?;
            winner = None;
            for place in order {
                self.cancelled()?;
                let config = self.entrants[place].bounded.config;
                match self.tune.gemm.with_config(config).load(self.device, shape) {
                    Ok(kernel) => self.entrants[place].kernel = Some(kernel),
                    Err(error) => self.refuse(place, &error),
                }
                if self.check(place, &mut bench)? {
                    self.entrants[place].fate = Fate::Right;
                    winner = Some(place);
                    break;
                }
            }
        }
        let winner = winner.ok_or_else(|| self.none_right())?;
        let best = us(self, winner).unwrap_or(f64::NAN);
        Ok((winner, Ranked::Predicted { us: best, auto_us: us(self, 0).unwrap_or(best), chip }))
    }

    /// Predicts `auto`, then in the order of their bounds all configurations that could be faster than the best,
    /// until time is up.
    fn predict_all(&mut self, chip: &str) -> Result<(), TuneError> {
        let timing = TimeOptions::new(Chip::named(chip).map_err(PredictError::from)?);
        let shape = self.problem.shape;
        let sizes = GroupSizes::new(shape, &shape.even_sizes()).ok();
        let mut rest: Vec<usize> = (1..self.entrants.len()).collect();
        rest.sort_by(|x, y| self.entrants[*x].bounded.order.total_cmp(&self.entrants[*y].bounded.order));
        rest.insert(0, 0);
        let mut best = f64::MAX;
        while !rest.is_empty() && (best == f64::MAX || self.start.elapsed() < self.tune.budget) {
            self.cancelled()?;
            rest.retain(|place| self.entrants[*place].bounded.bound < best);
            let next: Vec<usize> = rest.drain(..rayon::current_num_threads().min(rest.len())).collect();
            let gemm = self.tune.gemm;
            let entrants = &self.entrants;
            let found: Vec<_> = (next.into_par_iter())
                .map(|place| {
                    let spec = gemm.with_config(entrants[place].bounded.config);
                    let kernel = spec.kernel(shape, self.device.arch()).map_err(|error| error.to_string());
                    let time = kernel.and_then(|kernel| {
                        predict(&kernel, sizes.as_ref(), &timing).map_err(|error| error.to_string())
                    });
                    (place, time)
                })
                .collect();
            for (place, time) in found {
                let entrant = &mut self.entrants[place];
                match time {
                    Ok(time) => {
                        entrant.predicted = Some(time.time() * 1e-9);
                        entrant.fate = Fate::Ranked;
                        best = best.min(time.time() * 1e-9);
                    }
                    Err(reason) => {
                        entrant.fate = Fate::Failed(reason);
                        self.counts.failed += 1;
                    }
                }
            }
        }
        Ok(())
    }
}
