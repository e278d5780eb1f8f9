//! Runs mutants under every schedule until one catches them.

use super::earlier::Earlier;
use super::explain::explain;
use super::plan::SurveyOptions;
use super::source::Source;
use super::{BAR, Edit, Kind, Mutant, in_text, maps};
use crate::finding::{Finding, FindingKind};
use crate::launch::{Arg, Launch, LaunchError, Options, Reconvergence, Schedule, Step, Trace, Tracking};
use crate::launch_file::{LaunchFile, LaunchFileError, MAX_PTX_BYTES, slurp};
use crate::module::Module;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Factor on the kernel's own instructions beyond which a mutant counts as endless.
const BUDGET: u64 = 8;
/// Instructions that are added to this limit, for short kernels.
const BUDGET_FLOOR: u64 = 200_000;

/// Why a kernel cannot be mutated.
#[derive(Debug, thiserror::Error)]
pub enum MutateError {
    /// The launch file, its PTX or its buffers.
    #[error(transparent)]
    Launch(#[from] LaunchFileError),
    /// The PTX could not be read again.
    #[error("{path}: {message}")]
    Read {
        /// The file.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// The kernel could not run.
    #[error(transparent)]
    Run(#[from] LaunchError),
    /// The kernel itself has findings.
    #[error(
        "the kernel itself is not right, so its mutants say nothing. Under schedule {schedule}:\n{finding}"
    )]
    Unclean {
        /// The schedule.
        schedule: String,
        /// The first finding.
        finding: Box<Finding>,
    },
    /// The kernel's outputs depend on the schedule.
    #[error(
        "the kernel's outputs under schedule {schedule} are not those of the first schedule: mutants could not be told from it"
    )]
    Unstable {
        /// The schedule.
        schedule: String,
    },
    /// There are no mutants.
    #[error("the PTX has no instruction to mutate{0}")]
    Nothing(String),
}

/// A kernel to mutate.
#[derive(Debug)]
pub struct Subject {
    pub(super) file: LaunchFile,
    pub(super) text: String,
}

impl Subject {
    /// Reads a launch file with its PTX and buffers.
    ///
    /// # Errors
    /// [`MutateError::Launch`], [`MutateError::Read`].
    pub fn read(path: &Path) -> Result<Subject, MutateError> {
        let file = LaunchFile::read(path)?;
        let name = file.module.file().to_owned();
        let bytes = slurp(Path::new(&name), MAX_PTX_BYTES)
            .map_err(|message| MutateError::Read { path: name, message })?;
        Ok(Subject { file, text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Name of the kernel.
    pub fn kernel(&self) -> &str {
        &self.file.kernel
    }

    /// All mutants of the given kinds (of all kinds if empty), in the order of lines.
    pub fn mutants(&self, only: &[Kind]) -> Vec<Mutant> {
        let mut all = maps::mutate(&self.file.launch);
        all.extend(in_text(&Source::new(&self.text, &self.file.kernel)));
        all.retain(|m| only.is_empty() || only.contains(&m.kind));
        all
    }

    /// Runs mutants and returns their verdicts.
    ///
    /// # Errors
    /// [`MutateError`] if the kernel itself has findings, or there is nothing to mutate.
    pub fn survey(&self, plan: &SurveyOptions) -> Result<Survey, MutateError> {
        self.survey_with(plan, &[], &Earlier::default())
    }

    /// As [`Subject::survey`], and runs each survivor's counterpart in `others`, which are this kernel at other
    /// sizes: an instruction that does not matter at one size may matter at another. Mutants that `earlier` lists as
    /// caught or explained are not run again.
    ///
    /// # Errors
    /// As [`Subject::survey`], also for `others`.
    pub fn survey_with(
        &self,
        plan: &SurveyOptions,
        others: &[Subject],
        earlier: &Earlier,
    ) -> Result<Survey, MutateError> {
        let mut mutants = self.mutants(&plan.only);
        mutants.retain(|m| plan.lines.is_empty() || plan.lines.contains(&m.line));
        if plan.every > 1 {
            mutants = mutants.into_iter().step_by(plan.every).collect();
        }
        if mutants.is_empty() {
            let of: Vec<&str> = plan.only.iter().map(|k| k.name()).collect();
            let mut of = if of.is_empty() { String::new() } else { format!(" of kind {}", of.join(", ")) };
            if !plan.lines.is_empty() {
                of += &format!(" on the lines {:?}", plan.lines);
            }
            return Err(MutateError::Nothing(of));
        }
        let known = |m: &Mutant| {
            let verdict = earlier.verdict(&self.file.kernel, m)?;
            (verdict != Verdict::Survived || plan.keep).then_some(verdict)
        };
        if mutants.iter().all(|m| known(m).is_some()) {
            return Ok(self.judged(plan, mutants.iter().filter_map(|m| Some((m.clone(), known(m)?)))));
        }
        let runner = Runner::new(self, plan)?;
        let others: Vec<Other<'_>> =
            others.iter().map(|o| Other::new(o, plan)).collect::<Result<_, MutateError>>()?;
        let all = self.mutants(&[]);
        let places = places(&all);
        let lines: Vec<&str> = self.text.lines().collect();
        let launch = &self.file.launch;
        let next = AtomicUsize::new(0);
        let outcomes = Mutex::new(Vec::with_capacity(mutants.len()));
        let threads = match plan.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.min(mutants.len()) {
                scope.spawn(|| {
                    while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let verdict = known(mutant).unwrap_or_else(|| {
                            let sized = |size_only: bool| plan.equivalents.reason(mutant, &lines, size_only);
                            let twin = || {
                                let place = places.get(mutant)?;
                                others.iter().find_map(|o| o.caught(mutant, place))
                            };
                            let rule = explain(mutant, &lines, launch);
                            // No schedule makes a difference to a hint, or to what no lane executes.
                            let schedules = match &rule {
                                None if runner.met.reaches(mutant) => runner.schedules.len(),
                                _ => 1,
                            };
                            let always = || sized(false).or(rule).map(Verdict::Explained);
                            let here = || {
                                let reason = sized(true).or_else(|| runner.idle(mutant));
                                reason.map_or(Verdict::Survived, Verdict::Explained)
                            };
                            runner.judge(mutant, schedules).or_else(always).or_else(twin).unwrap_or_else(here)
                        });
                        let outcome = Outcome { mutant: mutant.clone(), verdict };
                        let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(progress) = plan.progress {
                            progress(&outcome, outcomes.len() + 1, mutants.len());
                        }
                        outcomes.push(outcome);
                    }
                });
            }
        });
        let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(self.sorted(runner.schedules.len(), outcomes))
    }

    /// A survey with known verdicts; only the rules that explain survivors are applied.
    fn judged(&self, plan: &SurveyOptions, known: impl Iterator<Item = (Mutant, Verdict)>) -> Survey {
        let lines: Vec<&str> = self.text.lines().collect();
        let outcomes = known.map(|(mutant, verdict)| {
            let verdict = match verdict {
                Verdict::Survived => {
                    let reason = |size_only| plan.equivalents.reason(&mutant, &lines, size_only);
                    reason(false).or_else(|| reason(true)).map_or(Verdict::Survived, Verdict::Explained)
                }
                other => other,
            };
            Outcome { mutant, verdict }
        });
        self.sorted(schedules(&self.file.launch, plan).len(), outcomes.collect())
    }

    fn sorted(&self, schedules: usize, mut outcomes: Vec<Outcome>) -> Survey {
        outcomes.sort_by(|a, b| {
            let key =
                |o: &Outcome| (o.mutant.line, o.mutant.kind, o.mutant.was.clone(), o.mutant.change.clone());
            key(a).cmp(&key(b))
        });
        Survey { kernel: self.file.kernel.clone(), schedules, outcomes }
    }
}

/// The place of a mutant independent of sizes: line, kind, and its number among mutants of that line and kind.
type At = (u32, Kind, usize);

fn places(mutants: &[Mutant]) -> HashMap<&Mutant, At> {
    let mut count: HashMap<(u32, Kind), usize> = HashMap::new();
    let place = |m: &Mutant, count: &mut HashMap<_, usize>| {
        let n = count.entry((m.line, m.kind)).or_default();
        *n += 1;
        (m.line, m.kind, *n)
    };
    mutants.iter().map(|m| (m, place(m, &mut count))).collect()
}

/// The kernel at another size.
struct Other<'a> {
    runner: Runner<'a>,
    mutants: HashMap<At, Mutant>,
}

impl<'a> Other<'a> {
    fn new(subject: &'a Subject, plan: &SurveyOptions) -> Result<Self, MutateError> {
        let all = subject.mutants(&[]);
        let mutants = places(&all).into_iter().map(|(m, at)| (at, m.clone())).collect();
        Ok(Other { runner: Runner::new(subject, plan)?, mutants })
    }

    /// How the counterpart of a mutant was caught, if it was: at the same place, with the same text apart from
    /// numbers.
    fn caught(&self, mutant: &Mutant, at: &At) -> Option<Verdict> {
        let words = |m: &Mutant| [&m.was, &m.change].map(|t| t.replace(|c: char| c.is_ascii_hexdigit(), ""));
        let twin = self.mutants.get(at).filter(|t| words(t) == words(mutant))?;
        // What is not reached here either is not caught here.
        if !self.runner.met.reaches(twin) {
            return None;
        }
        self.runner.judge(twin, self.runner.schedules.len())
    }
}

/// The verdict on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The parser or the launch refused it.
    Refused(String),
    /// A run had a finding.
    Found {
        /// What it found.
        kind: FindingKind,
        /// Its line and message.
        finding: String,
        /// The schedule that showed it.
        schedule: String,
    },
    /// A buffer differs from the kernel's.
    Output {
        /// Its name.
        buffer: String,
        /// The schedule that showed it.
        schedule: String,
    },
    /// It survived, and an explanation says why it is not a mistake.
    Explained(String),
    /// Nothing showed it.
    Survived,
}

impl Verdict {
    /// How it was caught, as a word; `None` for survivors.
    pub fn means(&self) -> Option<String> {
        match self {
            Verdict::Refused(_) => Some("refused".to_owned()),
            Verdict::Found { kind: FindingKind::Deadlock, .. } => Some("deadlock".to_owned()),
            Verdict::Found { kind: FindingKind::InstructionLimit | FindingKind::TimeLimit, .. } => {
                Some("endless".to_owned())
            }
            Verdict::Found { kind, .. } => Some(format!("{kind:?}")),
            Verdict::Output { .. } => Some("output".to_owned()),
            Verdict::Explained(_) | Verdict::Survived => None,
        }
    }
}

/// A mutant and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The mutant.
    pub mutant: Mutant,
    /// Whether it was caught, explained or neither.
    pub verdict: Verdict,
}

/// Verdicts on all mutants of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The kernel.
    pub kernel: String,
    /// Number of schedules that each survivor passed.
    pub schedules: usize,
    /// In order of lines.
    pub outcomes: Vec<Outcome>,
}

impl Survey {
    /// Number of caught mutants.
    pub fn caught(&self) -> usize {
        self.outcomes.iter().filter(|o| o.verdict.means().is_some()).count()
    }

    /// Number of explained survivors.
    pub fn explained(&self) -> usize {
        self.outcomes.iter().filter(|o| matches!(o.verdict, Verdict::Explained(_))).count()
    }

    /// Fraction of mutants that were caught or explained.
    pub fn share(&self) -> f64 {
        (self.caught() + self.explained()) as f64 / self.outcomes.len().max(1) as f64
    }

    /// Whether the fraction reaches [`BAR`](super::BAR).
    pub fn holds(&self) -> bool {
        self.share() >= BAR
    }

    /// Numbers of caught mutants by how they were caught, most first.
    pub fn means(&self) -> Vec<(String, usize)> {
        let mut count = BTreeMap::new();
        for means in self.outcomes.iter().filter_map(|o| o.verdict.means()) {
            *count.entry(means).or_insert(0) += 1;
        }
        let mut list: Vec<_> = count.into_iter().collect();
        list.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        list
    }
}

fn named(schedule: Schedule) -> String {
    match schedule {
        Schedule::Random(seed) => format!("seed {seed}"),
        Schedule::Starve { warp, seed } => format!("starve warp {warp}, seed {seed}"),
        Schedule::Delay { warp, seed } => format!("delay warp {warp}, seed {seed}"),
        Schedule::Early => "early".to_owned(),
        Schedule::Late => "late".to_owned(),
    }
}

/// The kernel without a mistake: its outputs, and its cost.
pub(super) struct Runner<'a> {
    pub(super) subject: &'a Subject,
    pub(super) schedules: Vec<Schedule>,
    tracking: Tracking,
    reconvergence: Reconvergence,
    limit: u64,
    time_limit: Option<Duration>,
    instruction_limit: u64,
    memory_limit: Option<u64>,
    expected: Vec<Vec<u8>>,
    pub(super) walked: Walk,
    pub(super) met: Met,
}

/// Everything that all warps execute under the early schedule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Lines with an instruction that some lane executed.
    lines: HashSet<u32>,
    /// For each warp: a hash of its lines and active lanes, in order.
    warps: HashMap<([u32; 3], u32), u64>,
}

impl Walk {
    /// Whether some lane executed the instruction that the mutant changes.
    pub(super) fn executes(&self, mutant: &Mutant) -> bool {
        self.lines.contains(&mutant.line)
    }
}

/// Lines that warps reach under any of the schedules.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// Lines that a warp reached, even if its guard was false in all lanes.
    passed: HashSet<u32>,
    /// Lines with an instruction that some lane executed.
    executed: HashSet<u32>,
}

impl Met {
    fn step(&mut self, step: &Step<'_>) {
        self.passed.insert(step.line);
        if step.active != 0 {
            self.executed.insert(step.line);
        }
    }

    /// Whether some lane executed the instruction that the mutant changes.
    pub(super) fn executes(&self, mutant: &Mutant) -> bool {
        self.executed.contains(&mutant.line)
    }

    /// Whether some lane executed the instruction that the mutant changes, or may execute it with another guard.
    pub(super) fn reaches(&self, mutant: &Mutant) -> bool {
        let lines = if mutant.changes_guard() { &self.passed } else { &self.executed };
        mutant.line == 0 || lines.contains(&mutant.line)
    }
}

/// The schedules that a mutant passes until it is caught.
fn schedules(launch: &Launch, plan: &SurveyOptions) -> Vec<Schedule> {
    let warps = crate::launch::product(launch.block).div_ceil(32) as u32;
    // A warp of every role: roles are given out in fours or one by one.
    let starved = || (0..warps).filter(|w| warps <= 8 || w % 4 == 0 || *w + 4 >= warps);
    let mut schedules = vec![Schedule::Early, Schedule::Late];
    schedules.extend((0..plan.seeds).map(Schedule::Random));
    schedules.extend(starved().map(|warp| Schedule::Starve { warp, seed: u64::from(warp) }));
    schedules.extend(starved().map(|warp| Schedule::Delay { warp, seed: u64::from(warp) }));
    schedules
}

impl<'a> Runner<'a> {
    fn new(subject: &'a Subject, plan: &SurveyOptions) -> Result<Self, MutateError> {
        // What a kernel lacks that is clean under strict tracking is a mistake of the mutant, though others run without it.
        match Runner::under(Tracking::Strict, subject, plan) {
            Err(MutateError::Unclean { .. }) => Runner::under(Tracking::HappensBefore, subject, plan),
            other => other,
        }
    }

    fn under(tracking: Tracking, subject: &'a Subject, plan: &SurveyOptions) -> Result<Self, MutateError> {
        let launch = &subject.file.launch;
        let schedules = schedules(launch, plan);
        let mut runner = Runner {
            subject,
            schedules,
            tracking,
            reconvergence: plan.reconvergence,
            limit: u64::MAX,
            time_limit: plan.time_limit,
            instruction_limit: plan.instruction_limit,
            memory_limit: plan.memory_limit,
            expected: Vec::new(),
            walked: Walk::default(),
            met: Met::default(),
        };
        let mut most = 0;
        for &schedule in &runner.schedules {
            let (memory, buffers) = subject.file.allocate();
            let file = &subject.file;
            let met = Mutex::new(std::mem::take(&mut runner.met));
            let sink = |step: Step<'_>| met.lock().unwrap_or_else(PoisonError::into_inner).step(&step);
            let options =
                Options { trace: Some(Trace { of: None, sink: &sink }), ..runner.options(schedule) };
            let report = file.module.run(&file.kernel, launch, &memory, &options)?;
            runner.met = met.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(finding) = report.findings.into_iter().next() {
                return Err(MutateError::Unclean { schedule: named(schedule), finding: Box::new(finding) });
            }
            most = most.max(report.stats.instructions);
            let outputs: Vec<Vec<u8>> = buffers.iter().map(|b| memory.read(b)).collect();
            if runner.expected.is_empty() {
                runner.expected = outputs;
            } else if runner.expected != outputs {
                return Err(MutateError::Unstable { schedule: named(schedule) });
            }
        }
        runner.limit = most.saturating_mul(BUDGET).saturating_add(BUDGET_FLOOR);
        runner.walked = runner.walk(&subject.file.module, launch)?;
        Ok(runner)
    }

    pub(super) fn walk(&self, module: &Module, launch: &Launch) -> Result<Walk, LaunchError> {
        let walk = Mutex::new(Walk::default());
        let sink = |step: Step<'_>| {
            let mut walk = walk.lock().unwrap_or_else(PoisonError::into_inner);
            let hash = walk.warps.entry((step.cta, step.warp)).or_insert(0xcbf2_9ce4_8422_2325);
            let word = u64::from(step.line) << 32 | u64::from(step.active);
            *hash = (*hash ^ word).wrapping_mul(0x100_0000_01b3);
            if step.active != 0 {
                walk.lines.insert(step.line);
            }
        };
        let (memory, _) = self.subject.file.allocate();
        let mut options = self.options(Schedule::Early);
        options.trace = Some(Trace { of: None, sink: &sink });
        module.run(&self.subject.file.kernel, launch, &memory, &options)?;
        Ok(walk.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn options(&self, schedule: Schedule) -> Options<'static> {
        Options {
            schedule,
            threads: 1,
            max_findings: 1,
            stop_at_limit: true,
            tracking: self.tracking,
            reconvergence: self.reconvergence,
            instruction_limit: self.limit.min(self.instruction_limit),
            time_limit: self.time_limit,
            // What the kernel itself fitted into its mutants fit into.
            memory_limit: if self.limit == u64::MAX { self.memory_limit } else { Some(u64::MAX) },
            ..Options::default()
        }
    }

    /// The PTX and launch with the mistake, or the refusal.
    pub(super) fn mutated(&self, mutant: &Mutant) -> Result<(Option<Module>, Launch), String> {
        let file = &self.subject.file;
        let mut launch = file.launch.clone();
        match &mutant.edit {
            Edit::Text(..) => {
                let text = mutant.apply(&self.subject.text).unwrap_or_default();
                let module = Module::parse(file.module.file(), &text).map_err(|errors| errors.to_string())?;
                return Ok((Some(module), launch));
            }
            Edit::Argument { bytes: None, .. } => return Err("cuTensorMapEncodeTiled refuses it".to_owned()),
            Edit::Argument { index, offset, bytes: Some(new) } => {
                let target: Option<&mut [u8]> = match launch.args.get_mut(*index) {
                    Some(Arg::Bytes(bytes)) => Some(bytes),
                    Some(Arg::TensorMap(bytes)) => Some(bytes),
                    _ => None,
                };
                if let Some(target) = target.and_then(|t| t.get_mut(*offset..*offset + new.len())) {
                    target.copy_from_slice(new);
                }
            }
        }
        Ok((None, launch))
    }

    /// How one of the first `schedules` schedules caught a mutant; `None` for a survivor.
    pub(super) fn judge(&self, mutant: &Mutant, schedules: usize) -> Option<Verdict> {
        let file = &self.subject.file;
        let (mutated, launch) = match self.mutated(mutant) {
            Ok(both) => both,
            Err(why) => return Some(Verdict::Refused(why)),
        };
        let module = mutated.as_ref().unwrap_or(&file.module);
        for &schedule in self.schedules.iter().take(schedules) {
            let (memory, buffers) = file.allocate();
            let report = match module.run(&file.kernel, &launch, &memory, &self.options(schedule)) {
                Ok(report) => report,
                Err(error) => return Some(Verdict::Refused(error.to_string())),
            };
            if let Some(f) = report.findings.first() {
                let finding = format!("line {}: {}", f.line, f.message);
                return Some(Verdict::Found { kind: f.kind, finding, schedule: named(schedule) });
            }
            for ((buffer, spec), expected) in buffers.iter().zip(&file.buffers).zip(&self.expected) {
                if memory.read(buffer) != *expected {
                    return Some(Verdict::Output { buffer: spec.name.clone(), schedule: named(schedule) });
                }
            }
        }
        None
    }
}
