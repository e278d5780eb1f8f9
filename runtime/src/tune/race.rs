//! Which of several things timed by turns is the fastest: the statistics of tuning. This module knows nothing about
//! kernels.
//!
//! Every turn times each remaining thing once, in an order that rotates. Two things are compared turn by turn: clock
//! and temperature change both alike, and the ratio within one turn is free of them. The test is the sign test: in
//! how many of the turns was one faster, and how likely is that if it is not faster? It is exact for any distribution
//! of times, with any outliers.
//!
//! 1. After three turns whatever was slower in every turn than the leader in any, by [`Rules::cut`], leaves; an incumbent
//!    stays.
//! 2. At turns fixed beforehand whatever is slower than the leader, the one with the least median, leaves, where the test
//!    says so at a level of [`Rules::alpha`] shared out over all pairs and all such looks (Bonferroni's correction): the
//!    chance that anything as fast as the winner was ever sent away is below alpha, whichever leads.
//! 3. The race ends when the leader is alone, or when the same test says of all that are left that the leader is no slower
//!    than they are by [`Rules::margin`]; or when the time is out.
//!
//! An incumbent that is in the race to the end wins: it is replaced by what was shown to be faster only.

use crate::tuned::Verdict;

/// How a race is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Probability over a whole race that something as fast as the winner is excluded.
    pub alpha: f64,
    /// Relative difference that does not matter.
    pub margin: f64,
    /// A thing that is slower by this fraction in each of the first turns is dropped.
    pub cut: f64,
    /// Turns at most.
    pub turns: usize,
}

impl Default for Rules {
    /// 5 % in all, 0.5 % that does not matter, a cut of 10 %, 200 turns.
    fn default() -> Self {
        Self { alpha: 0.05, margin: 0.005, cut: 0.1, turns: 200 }
    }
}

/// Turns after which the first cut is made.
const CUT_AT: usize = 3;
/// Turn of the first comparison; each later one comes after a third more turns.
const FIRST_LOOK: usize = 12;

/// A race that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The winner.
    pub winner: usize,
    /// Certainty of the result.
    pub verdict: Verdict,
    /// The times of each thing, turn by turn, until it was dropped.
    pub times: Vec<Vec<f64>>,
    /// Whether each thing remained at the end.
    pub in_race: Vec<bool>,
    /// Number of turns.
    pub turns: usize,
}

/// Times `count` things by turns until the fastest is clear. `time` gets an index below `count`; `stop` is called
/// before every turn.
///
/// # Errors
///
/// The first of `time`.
pub fn race<E>(
    count: usize,
    incumbent: Option<usize>,
    rules: &Rules,
    mut time: impl FnMut(usize) -> Result<f64, E>,
    mut stop: impl FnMut(usize) -> bool,
) -> Result<Finish, E> {
    let mut times = vec![Vec::new(); count];
    let mut field: Vec<usize> = (0..count).collect();
    let looks = looks(rules.turns);
    let (mut turns, mut verdict, mut level) = (0, None, rules.alpha);
    while verdict.is_none() && turns < rules.turns && field.len() > 1 && !stop(turns) {
        for step in 0..field.len() {
            // The order turns, so that none always runs behind the same one.
            let one = field[(turns + step) % field.len()];
            times[one].push(time(one)?);
        }
        turns += 1;
        if turns == CUT_AT {
            let leader = leader(&field, &times);
            let most = times[leader].iter().fold(0.0, |most: f64, time| most.max(*time)) * (1.0 + rules.cut);
            // An incumbent stays until the first look, so that there is something to compare the winner with.
            let stays = |one: &usize| *one == leader || Some(*one) == incumbent;
            field.retain(|one| stays(one) || times[*one].iter().any(|time| *time <= most));
            let pairs = field.len() * field.len().saturating_sub(1);
            level = rules.alpha / (pairs.max(1) * looks.len().max(1)) as f64;
        }
        if looks.contains(&turns) {
            let leader = leader(&field, &times);
            field.retain(|one| *one == leader || !is_faster(&times[leader], &times[*one], 1.0, level));
            let room = 1.0 + rules.margin;
            let tied = |one: &usize| *one == leader || is_faster(&times[leader], &times[*one], room, level);
            if field.iter().all(tied) {
                verdict = Some(if field.len() == 1 { Verdict::Clear } else { Verdict::Tied });
            }
        }
    }
    // Nothing was timed where there is one, or where the time was out before the first turn.
    let winner = match incumbent.filter(|one| field.contains(one)) {
        Some(incumbent) => incumbent,
        None => leader(&field, &times),
    };
    let verdict = if field.len() == 1 { Verdict::Clear } else { verdict.unwrap_or(Verdict::Open) };
    let in_race = (0..count).map(|one| field.contains(&one)).collect();
    Ok(Finish { winner, verdict, times, in_race, turns })
}

/// The turns after which all are compared, fixed in advance.
fn looks(turns: usize) -> Vec<usize> {
    let next = |look: &usize| Some(look + look / 3);
    std::iter::successors(Some(FIRST_LOOK), next).take_while(|look| *look <= turns).collect()
}

/// The thing with the least median; the first one if nothing was timed.
fn leader(field: &[usize], times: &[Vec<f64>]) -> usize {
    let key = |one: &usize| Some(median(&times[*one])).filter(|time| !time.is_nan()).unwrap_or(f64::INFINITY);
    field.iter().copied().min_by(|x, y| key(x).total_cmp(&key(y))).unwrap_or(0)
}

/// Whether the sign test shows at this level that `one` takes less than `room` times the time of `other`.
fn is_faster(one: &[f64], other: &[f64], room: f64, level: f64) -> bool {
    let (mut wins, mut losses) = (0, 0);
    for (one, other) in one.iter().zip(other) {
        match one.total_cmp(&(other * room)) {
            std::cmp::Ordering::Less => wins += 1,
            std::cmp::Ordering::Greater => losses += 1,
            // Ties say nothing either way.
            std::cmp::Ordering::Equal => {}
        }
    }
    sign_test(wins, wins + losses) <= level
}

/// Probability of at least `wins` wins in `of` turns if each is equally likely.
#[must_use]
pub fn sign_test(wins: usize, of: usize) -> f64 {
    let (mut chance, mut term) = (0.0, 0.5f64.powi(of.min(1000) as i32));
    // Terms of the binomial distribution from all wins downwards.
    for lost in 0..=of.saturating_sub(wins) {
        chance += term;
        term *= (of - lost) as f64 / (lost + 1) as f64;
    }
    chance.min(1.0)
}

/// The quantile at `share`, linear between neighbours; NaN for no values.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// The median; NaN for no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    /// Times with the noise of a GPU that warms up: a drift that all share, a percent of scatter, and now and then a
    /// replay that takes half as long again.
    struct Machine {
        random: ChaCha8Rng,
        drift: f64,
        timed: usize,
    }

    impl Machine {
        fn new(seed: u64) -> Self {
            Machine { random: ChaCha8Rng::seed_from_u64(seed), drift: 2e-4, timed: 0 }
        }

        fn uniform(&mut self) -> f64 {
            f64::from(self.random.next_u32()) / f64::from(u32::MAX)
        }

        fn time(&mut self, us: f64) -> f64 {
            self.timed += 1;
            let slow = 1.0 + self.drift * self.timed.min(2000) as f64;
            let scatter = 1.0 + 0.01 * (self.uniform() + self.uniform() - 1.0);
            let outlier = if self.uniform() < 0.03 { 1.5 } else { 1.0 };
            us * slow * scatter * outlier
        }
    }

    fn run(us: &[f64], incumbent: Option<usize>, seed: u64) -> (Finish, usize) {
        let mut machine = Machine::new(seed);
        let finish = race(
            us.len(),
            incumbent,
            &Rules::default(),
            |one| Ok::<f64, ()>(machine.time(us[one])),
            |_| false,
        );
        (finish.unwrap(), machine.timed)
    }

    #[test]
    fn the_fastest_wins_under_drift_and_outliers() {
        for seed in 0..100 {
            let us = [60.0, 41.0, 40.0, 42.0, 90.0, 44.0, 40.9, 55.0];
            let (finish, timed) = run(&us, Some(0), seed);
            assert_eq!((finish.winner, finish.verdict), (2, Verdict::Clear), "{seed}: {finish:?}");
            // What is far behind is not timed for long.
            assert_eq!(finish.times[4].len(), CUT_AT);
            assert!(timed < 8 * 60, "{timed}");
        }
    }

    #[test]
    fn what_is_not_shown_to_be_slower_is_kept() {
        let replaced = (0..400).filter(|seed| run(&[50.0; 6], Some(3), *seed).0.winner != 3).count();
        // The level is 5 %, and the correction is on the safe side of it.
        assert!(replaced <= 12, "{replaced} of 400 incumbents were replaced by nothing faster");
        let (finish, _) = run(&[50.0, 50.02, 49.99], Some(0), 5);
        assert!(matches!(finish.verdict, Verdict::Tied | Verdict::Open), "{finish:?}");
        assert!(finish.in_race.iter().filter(|in_race| **in_race).count() > 1);
    }

    #[test]
    fn equals_are_told_from_each_other_no_longer_than_it_matters() {
        let (finish, _) = run(&[50.0, 50.05, 70.0], None, 9);
        assert_eq!(finish.verdict, Verdict::Tied);
        assert!(finish.turns < 200 && finish.in_race == [true, true, false], "{finish:?}");
    }

    #[test]
    fn a_race_of_one_or_without_time_has_a_winner() {
        let timed = |_| Ok::<f64, ()>(1.0);
        let rules = Rules::default();
        let alone = race(1, None, &rules, timed, |_| false).unwrap();
        assert_eq!((alone.winner, alone.verdict, alone.turns), (0, Verdict::Clear, 0));
        let stopped = race(3, Some(1), &rules, timed, |_| true).unwrap();
        assert_eq!((stopped.winner, stopped.verdict, stopped.turns), (1, Verdict::Open, 0));
        assert_eq!(race(3, None, &rules, |one| if one == 2 { Err(7) } else { Ok(1.0) }, |_| false), Err(7));
    }

    #[test]
    fn the_sign_test_is_the_binomial_tail() {
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(10, 10), 0.5f64.powi(10));
        assert!((sign_test(9, 10) - 11.0 / 1024.0).abs() < 1e-12);
        assert!((sign_test(5, 10) - 0.623_046_875).abs() < 1e-12);
        assert!((sign_test(0, 200) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn medians_and_quantiles_are_those_of_numpy() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.1), 1.4);
        assert_eq!((quantile(&[7.0], 0.9), quantile(&[1.0, 2.0], 2.0)), (7.0, 2.0));
        assert!(median(&[]).is_nan());
    }
}
