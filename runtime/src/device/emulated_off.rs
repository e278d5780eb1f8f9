//! In the emulated device's place where the feature `emulated` is off: types that have no values, so that nothing else needs to know.

use std::fmt;

use silumin_codegen::kernel::{Kernel, Launch as KernelLaunch};

use super::plain::{Plain, RunError};
use super::{Args, Argument, LaunchError, LaunchReport};

/// Counts of an emulated device. Without the feature `emulated` there are none.
#[derive(Clone, Debug, PartialEq)]
pub enum EmulatorStats {}

/// Findings of an emulated device. Without the feature `emulated` there are none.
#[derive(Clone, Debug, PartialEq)]
pub enum Findings {}

impl fmt::Display for Findings {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

pub(crate) enum Emulated {}

pub(crate) enum Module {}

impl Module {
    pub(crate) fn load(_: &Kernel) -> Result<Self, String> {
        Err("this program was built without the feature `emulated`".to_owned())
    }
}

impl Emulated {
    pub(super) fn number(&self) -> usize {
        match *self {}
    }

    pub(crate) fn launch(
        &self,
        _: &Module,
        _: &Kernel,
        _: &[(&KernelLaunch, Vec<Argument<'_>>)],
        _: &Args<'_>,
    ) -> Result<LaunchReport, LaunchError> {
        match *self {}
    }

    pub(crate) fn launch_plain(
        &self,
        _: &Module,
        _: &KernelLaunch,
        _: &[Plain<'_>],
    ) -> Result<EmulatorStats, RunError> {
        match *self {}
    }
}
