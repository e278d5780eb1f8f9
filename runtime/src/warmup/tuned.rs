//! Which knobs a kernel is made with: the user's, then tuned ones, then `auto`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use silumin_codegen::config::Config;
use silumin_codegen::problem::Shape;

use crate::cache::Warning;
use crate::device::Device;
use crate::gemm::{DualGemm, LoadError, LoadedKernel};
use crate::tuned::{Found, Stale, Table, TableError};

/// Where a kernel's knobs come from, apart from those that the user has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KnobsBy {
    /// All knobs come from the rules of `auto`.
    #[default]
    Auto,
    /// From a tuning result that is valid for this device, driver, code and the user's knobs.
    Tuning,
    /// Some from the user, the others from the rules of `auto`.
    User,
}

/// Tuning results of a warm-up, and whether they were used.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TuningReport {
    /// The file that was read, if any.
    pub path: Option<PathBuf>,
    /// Shapes whose kernels use tuned knobs.
    pub tuned: Vec<Shape>,
    /// Shapes with results that are not valid here, with the reasons.
    pub stale: Vec<(Shape, Stale)>,
    /// Shapes whose tuned kernel could not be loaded, so that `auto` is used, with the reasons.
    pub refused: Vec<(Shape, String)>,
    /// Damaged lines of the file.
    pub damaged: usize,
    /// Why the file was not read.
    pub unread: Option<String>,
}

/// Source of tuning results.
#[derive(Clone, Debug, Default)]
pub(super) enum Source {
    /// The file beside the device's cache, if there is one.
    #[default]
    Beside,
    /// A table.
    Given(Arc<Table>),
    /// Nowhere.
    Off,
}

/// Makes kernels with the chosen knobs.
pub(super) struct Chooser {
    gemm: DualGemm,
    table: Option<Arc<Table>>,
    report: Mutex<TuningReport>,
}

impl Chooser {
    /// Reads the file if there is one. The cache warns once about an unusable file.
    pub fn new(gemm: &DualGemm, device: &Device, source: &Source) -> Arc<Self> {
        let mut report = TuningReport::default();
        let table = match source {
            Source::Off => None,
            Source::Given(table) => Some(table.clone()),
            Source::Beside => device.cache().and_then(|cache| {
                let path = Table::beside(cache)?;
                let warn = |reason: String| cache.tell(Warning::Tuning { path: path.clone(), reason });
                match Table::read(&path) {
                    Ok(table) => {
                        if let Some(first) = table.damaged().first() {
                            let (count, line) = (table.damaged().len(), first.line);
                            warn(format!(
                                "{count} of its lines are left out, the first is {line}: {}",
                                first.error
                            ));
                        }
                        report.path = Some(path);
                        Some(Arc::new(table))
                    }
                    Err(TableError::Io { reason, .. }) if reason.kind() == std::io::ErrorKind::NotFound => {
                        None
                    }
                    Err(error) => {
                        warn(error.to_string());
                        (report.path, report.unread) = (Some(path.clone()), Some(error.to_string()));
                        None
                    }
                }
            }),
        };
        report.damaged = table.as_ref().map_or(0, |table| table.damaged().len());
        Arc::new(Self { gemm: gemm.clone(), table, report: Mutex::new(report) })
    }

    /// The dual GEMM's name.
    pub fn name(&self) -> String {
        self.gemm.spec().name.to_string()
    }

    fn note(&self, note: impl FnOnce(&mut TuningReport)) {
        note(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The use of the results so far, by shape.
    pub fn report(&self) -> TuningReport {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        report.tuned.sort_unstable();
        report.stale.sort_by_key(|(shape, _)| *shape);
        report.refused.sort_by_key(|(shape, _)| *shape);
        report
    }

    /// Generates and loads the kernel for a shape.
    pub fn load(&self, device: &Device, shape: Shape) -> Result<(LoadedKernel, KnobsBy), LoadError> {
        let spec = self.gemm.spec();
        match self.table.as_ref().map_or(Found::Nothing, |table| table.find(device, spec, shape)) {
            Found::Tuned(_, config) => {
                let tuned = self.gemm.with_config(config).load(device, shape);
                match tuned {
                    Ok(kernel) => {
                        self.note(|report| report.tuned.push(shape));
                        return Ok((kernel, KnobsBy::Tuning));
                    }
                    Err(error) => self.note(|report| report.refused.push((shape, error.to_string()))),
                }
            }
            Found::Stale(_, why) => self.note(|report| report.stale.push((shape, why))),
            Found::Nothing => {}
        }
        let by = if spec.config == Config::default() { KnobsBy::Auto } else { KnobsBy::User };
        self.gemm.load(device, shape).map(|kernel| (kernel, by))
    }
}
