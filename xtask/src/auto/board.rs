//! Runs searches side by side: a thread takes the next kernel of the first search that has one.
//!
//! A round of a search is predicted completely before the next one begins, so that rows do not depend on the number
//! of threads.

use super::problems::Problem;
use super::rows::{Difference, Kernel, Line};
use serde::{Deserialize, Serialize};
use silumin::codegen::config::Config;
use silumin::codegen::spec::Spec;
use silumin::runtime::predict::{Chip, TimeOptions, predict};
use silumin::runtime::tune::{Depth, Descent, difference, knobs, rules};
use silumin::{Arch, GroupSizes, Shape};
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Condvar, Mutex};

/// Predicts the time of a configuration, in seconds.
pub fn seconds(spec: &Spec, shape: Shape, arch: Arch, config: Config, chip: &Chip) -> Result<f64, String> {
    let mut spec = spec.clone();
    spec.config = config;
    let kernel = spec.kernel(shape, arch).map_err(|e| e.to_string())?;
    let sizes = shape.groups.by_rows().then(|| GroupSizes::new(shape, &shape.even_sizes()));
    let sizes = sizes.transpose().map_err(|e| e.to_string())?;
    // By the table: rows are the same wherever they are made.
    let time =
        predict(&kernel, sizes.as_ref(), &TimeOptions::new(chip.clone())).map_err(|e| e.to_string())?;
    Ok(time.time() * 1e-9)
}

/// How a problem's row is made.
enum Work {
    Search(Box<Descent>),
    /// By predicting `auto` and this configuration again.
    Again {
        best: Config,
        done: bool,
    },
}

/// One problem.
pub struct Job {
    problem: Problem,
    arch: Arch,
    spec: Spec,
    shape: Shape,
    space: String,
    work: Work,
    /// Configurations being predicted, with their results so far.
    round: Vec<(Config, Option<Option<f64>>)>,
    /// Number of kernels predicted in earlier rounds.
    before: usize,
}

impl Job {
    /// Starts a search, or says why there is none.
    pub fn search(
        problem: Problem,
        arch: Arch,
        depth: Depth,
        space: &str,
        tried: &[Config],
    ) -> Result<Job, String> {
        let (spec, shape) = problem.spec(arch)?;
        if let Err(errors) = spec.plan(shape, arch) {
            let reason = errors.first().map(ToString::to_string).unwrap_or_default();
            return Err(format!("no kernel of {} in {}: {reason}", problem.name(), problem.formats));
        }
        let work = Work::Search(Box::new(Descent::new(&spec, shape, arch, depth).with(tried)));
        let (space, round) = (space.to_owned(), Vec::new());
        Ok(Job { problem, arch, spec, shape, space, work, round, before: 0 })
    }

    /// Makes a row from an earlier one, without a search.
    pub fn again(problem: Problem, arch: Arch, row: &Line) -> Result<Job, String> {
        let (spec, shape) = problem.spec(arch)?;
        let best = knobs(&row.best.knobs, &spec.config).map_err(|e| e.to_string())?;
        let (space, round) = (row.space.clone(), Vec::new());
        let work = Work::Again { best, done: false };
        Ok(Job { problem, arch, spec, shape, space, work, round, before: row.predicted })
    }

    /// Begins the next round; `false` if there is none.
    fn begin(&mut self) -> bool {
        let next = match &mut self.work {
            Work::Search(search) => search.ask().unwrap_or_default(),
            Work::Again { done: true, .. } => Vec::new(),
            Work::Again { best, done } => {
                *done = true;
                let mut spec = self.spec.clone();
                spec.config = *best;
                // Rules change: a best of before may be `auto` by now, or illegal.
                let other = *best != self.spec.config && spec.plan(self.shape, self.arch).is_ok();
                if other { vec![self.spec.config, *best] } else { vec![self.spec.config] }
            }
        };
        self.round = next.into_iter().map(|config| (config, None)).collect();
        !self.round.is_empty()
    }

    /// Ends the round.
    fn end(&mut self) {
        let round: Vec<Option<f64>> = self.round.iter().map(|(_, seconds)| seconds.flatten()).collect();
        if let Work::Search(search) = &mut self.work {
            search.told(&round);
        }
    }

    /// Time of `auto` in seconds, and the best configuration with its time.
    fn result(&self) -> Option<(f64, Config, f64, usize)> {
        match &self.work {
            Work::Search(search) => {
                let (config, _, seconds) = search.fastest()?;
                Some((search.auto()?, config, seconds, search.predicted()))
            }
            Work::Again { .. } => {
                let time = |place: usize| self.round.get(place).and_then(|(_, seconds)| seconds.flatten());
                let auto = time(0)?;
                match (self.round.get(1), time(1)) {
                    (Some((best, _)), Some(seconds)) if seconds < auto => {
                        Some((auto, *best, seconds, self.before))
                    }
                    _ => Some((auto, self.spec.config, auto, self.before)),
                }
            }
        }
    }

    /// The row.
    fn line(&self, chip: &Chip, name: &str, commit: &str) -> Result<Line, String> {
        let missing = || format!("{} in {}: `auto` has no time", self.problem.name(), self.problem.formats);
        let (auto, config, best, predicted) = self.result().ok_or_else(missing)?;
        // What is faster by less than the ratio shows is no better.
        let ratio = (auto / best * 1e4).round() / 1e4;
        let (config, best) = if ratio > 1.0 { (config, best) } else { (self.spec.config, auto) };
        let said = |errors: Vec<_>| silumin::codegen::error::explain(&errors).to_string();
        let plan = self.spec.plan(self.shape, self.arch).map_err(said)?;
        let mut other = self.spec.clone();
        other.config = config;
        let settled = other.plan(self.shape, self.arch).map_err(said)?.config;
        let different = rules(&plan, &settled).into_iter();
        let differences = different.map(|(knob, auto, best, rule)| Difference { knob, auto, best, rule });
        // Times to a tenth of a nanosecond: more says nothing, and makes lines long.
        let us = |seconds: f64| (seconds * 1e10).round() / 1e4;
        Ok(Line {
            problem: self.problem.name(),
            formats: self.problem.formats.to_owned(),
            chip: name.to_owned(),
            clock: chip.clock.value,
            auto: Kernel { knobs: difference(&plan.config, &self.spec.config), us: us(auto) },
            best: Kernel { knobs: difference(&config, &self.spec.config), us: us(best) },
            ratio,
            differences: differences.collect(),
            space: self.space.clone(),
            predicted,
            commit: commit.to_owned(),
        })
    }
}

/// A prediction, stored so that an ended run can continue.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sim {
    problem: String,
    formats: String,
    chip: String,
    commit: String,
    knobs: String,
    seconds: Option<f64>,
}

type Key = (String, String, String);

/// Called with each finished row.
type Done<'a> = &'a mut (dyn FnMut(&Line) -> Result<(), String> + Send);

/// All jobs.
pub struct Board {
    chip: Chip,
    name: String,
    commit: String,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    jobs: Vec<Job>,
    /// Jobs that have not started.
    waiting: VecDeque<usize>,
    /// Kernels to predict: job, and place in its round.
    queue: VecDeque<(usize, usize)>,
    running: usize,
    known: HashMap<Key, Option<f64>>,
    file: Option<fs::File>,
}

impl Board {
    /// Jobs on a chip. `kept` is a file of predictions that this run reads and extends.
    pub fn new(
        jobs: Vec<Job>,
        chip: Chip,
        name: &str,
        commit: &str,
        kept: Option<&Path>,
    ) -> Result<Board, String> {
        let mut known = HashMap::new();
        let mut file = None;
        if let Some(path) = kept {
            let text = fs::read_to_string(path).unwrap_or_default();
            // The last line may have been cut.
            let sims = text.lines().filter_map(|line| serde_json::from_str::<Sim>(line).ok());
            let ours = sims.filter(|sim| sim.chip == name && sim.commit == commit);
            known.extend(ours.map(|sim| ((sim.problem, sim.formats, sim.knobs), sim.seconds)));
            let opened = fs::OpenOptions::new().create(true).append(true).open(path);
            file = Some(opened.map_err(|e| format!("{}: {e}", path.display()))?);
        }
        let waiting = (0..jobs.len()).collect();
        let state = State { jobs, waiting, queue: VecDeque::new(), running: 0, known, file };
        Ok(Board {
            chip,
            name: name.to_owned(),
            commit: commit.to_owned(),
            state: Mutex::new(state),
            wake: Condvar::new(),
        })
    }

    /// Works on all jobs and passes on each row when it is finished. Returns the problems without a row.
    pub fn run(self, threads: usize, done: Done<'_>) -> Result<Vec<String>, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let (failed, done) = (Mutex::new(Vec::new()), Mutex::new(done));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&failed, &done));
            }
        });
        Ok(failed.into_inner().unwrap_or_default())
    }

    fn work(&self, failed: &Mutex<Vec<String>>, done: &Mutex<Done<'_>>) {
        let mut state = self.state.lock().expect("no thread panics with the lock held");
        loop {
            let Some((job, place)) = state.queue.pop_front() else {
                if let Some(job) = state.waiting.pop_front() {
                    self.next_round(&mut state, job, failed, done);
                    continue;
                }
                if state.running == 0 {
                    self.wake.notify_all();
                    return;
                }
                state = self.wake.wait(state).expect("no thread panics with the lock held");
                continue;
            };
            let of = &state.jobs[job];
            let (spec, shape, arch, config) = (of.spec.clone(), of.shape, of.arch, of.round[place].0);
            let key = (of.problem.name(), of.problem.formats.to_owned(), difference(&config, &spec.config));
            let found = match state.known.get(&key) {
                Some(seconds) => *seconds,
                None => {
                    state.running += 1;
                    drop(state);
                    let found = seconds(&spec, shape, arch, config, &self.chip).ok();
                    state = self.state.lock().expect("no thread panics with the lock held");
                    state.running -= 1;
                    let (problem, formats, knobs) = key;
                    let (chip, commit) = (self.name.clone(), self.commit.clone());
                    let sim = Sim { problem, formats, chip, commit, knobs, seconds: found };
                    if let (Some(file), Ok(text)) = (&mut state.file, serde_json::to_string(&sim)) {
                        // A prediction that was not kept is made again.
                        let _ = writeln!(file, "{text}");
                    }
                    found
                }
            };
            state.jobs[job].round[place].1 = Some(found);
            if state.jobs[job].round.iter().all(|(_, found)| found.is_some()) {
                state.jobs[job].end();
                self.next_round(&mut state, job, failed, done);
            }
        }
    }

    /// Queues a job's next round before others, so that started jobs finish first; or finishes its row.
    fn next_round(&self, state: &mut State, job: usize, failed: &Mutex<Vec<String>>, done: &Mutex<Done<'_>>) {
        let last = std::mem::take(&mut state.jobs[job].round);
        if state.jobs[job].begin() {
            let places = state.jobs[job].round.len();
            (0..places).rev().for_each(|place| state.queue.push_front((job, place)));
        } else {
            state.jobs[job].round = last;
            let line = state.jobs[job].line(&self.chip, &self.name, &self.commit);
            let written = line.and_then(|line| {
                let mut done = done.lock().map_err(|e| e.to_string())?;
                done(&line)
            });
            if let (Err(reason), Ok(mut failed)) = (written, failed.lock()) {
                failed.push(reason);
            }
        }
        self.wake.notify_all();
    }
}
