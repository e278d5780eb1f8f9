//! What the ranks of a group know of each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::CommunicatorError;

/// The ranks of a group: how many sums each has asked for, who has left, and what went wrong.
pub(super) struct Group {
    /// Sums that each rank has asked for.
    asked: Box<[AtomicU64]>,
    left: Box<[AtomicBool]>,
    /// The devices, in words.
    devices: Box<[String]>,
    failure: Mutex<Option<CommunicatorError>>,
    failed: AtomicBool,
    /// How long a rank waits for others.
    pub limit: Duration,
}

impl Group {
    pub fn new(devices: Box<[String]>, limit: Duration) -> Self {
        let asked = devices.iter().map(|_| AtomicU64::new(0)).collect();
        let left = devices.iter().map(|_| AtomicBool::new(false)).collect();
        Group { asked, left, devices, failure: Mutex::new(None), failed: AtomicBool::new(false), limit }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.devices.len()
    }

    /// The device of a rank, in words.
    pub fn device(&self, rank: usize) -> String {
        self.devices.get(rank).cloned().unwrap_or_default()
    }

    /// Records that a rank asks for its next sum.
    pub fn ask(&self, rank: usize) {
        if let Some(asked) = self.asked.get(rank) {
            asked.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn asked(&self, rank: usize) -> u64 {
        self.asked.get(rank).map_or(0, |asked| asked.load(Ordering::Acquire))
    }

    /// Records that nobody calls a rank any more.
    pub fn leave(&self, rank: usize) {
        if let Some(left) = self.left.get(rank) {
            left.store(true, Ordering::Release);
        }
    }

    /// A rank that has left before it asked for a sum that `waiting` has asked for.
    pub fn gone(&self, waiting: usize) -> Option<CommunicatorError> {
        let number = self.asked(waiting);
        let rank = (0..self.ranks()).find(|rank| {
            self.left.get(*rank).is_some_and(|left| left.load(Ordering::Acquire))
                && self.asked(*rank) < number
        })?;
        let (device, its) = (self.device(rank), self.asked(rank));
        Some(CommunicatorError::Left { rank, device, its, waiting, number })
    }

    /// Why a wait of `waiting` that took `seconds` has no end: the rank that has asked for the fewest sums, if that is
    /// fewer than its own.
    pub fn late(&self, waiting: usize, seconds: u64) -> CommunicatorError {
        let number = self.asked(waiting);
        let slowest = (0..self.ranks()).min_by_key(|rank| self.asked(*rank)).unwrap_or(waiting);
        let its = self.asked(slowest);
        match its < number {
            true => {
                let device = self.device(slowest);
                CommunicatorError::Late { rank: slowest, device, its, waiting, number, seconds }
            }
            false => CommunicatorError::Unfinished { rank: waiting, device: self.device(waiting), seconds },
        }
    }

    /// Records a failure, unless there is an earlier one, and returns it.
    pub fn fail(&self, error: CommunicatorError) -> CommunicatorError {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.store(true, Ordering::Release);
        match &*failure {
            Some(first) => CommunicatorError::Failed { reason: first.to_string() },
            None => failure.insert(error).clone(),
        }
    }

    /// An error if the group failed before.
    pub fn check(&self) -> Result<(), CommunicatorError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = failure.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(CommunicatorError::Failed { reason })
    }
}
