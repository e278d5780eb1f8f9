//! Sums over emulated devices: ranks meet on the host, and each gets the sum.

use half::{bf16, f16};
use silumin_codegen::prepare::Source;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::CommunicatorError;
use super::group::Group;

/// How often a rank that waits looks whether another has left.
const LOOK: Duration = Duration::from_millis(20);

/// The place where the ranks of a group meet for each sum.
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What each rank brought.
    brought: Vec<Option<Vec<u8>>>,
    /// The sum, once all have come.
    sum: Option<Arc<[u8]>>,
    /// Ranks that have taken it.
    taken: usize,
}

impl Meeting {
    pub fn new(ranks: usize) -> Self {
        let state = State { brought: vec![None; ranks], sum: None, taken: 0 };
        Meeting { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Brings a rank's numbers and returns the sum over all ranks, rounded once.
    pub fn add(
        &self,
        group: &Group,
        rank: usize,
        bytes: Vec<u8>,
        source: Source,
    ) -> Result<Arc<[u8]>, CommunicatorError> {
        let start = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = Some(bytes);
        loop {
            if let Err(error) = group.check() {
                self.changed.notify_all();
                return Err(error);
            }
            // The sum before is taken by all before anybody brings numbers for the next.
            if state.sum.is_none()
                && let Some(bytes) = own.take()
            {
                if let Some(place) = state.brought.get_mut(rank) {
                    *place = Some(bytes);
                }
                if state.brought.iter().all(Option::is_some) {
                    let brought: Vec<Vec<u8>> = state.brought.iter_mut().filter_map(Option::take).collect();
                    match sum(&brought, source) {
                        Ok(sum) => state.sum = Some(sum.into()),
                        Err(error) => {
                            self.changed.notify_all();
                            return Err(group.fail(error));
                        }
                    }
                    self.changed.notify_all();
                }
            }
            if own.is_none()
                && let Some(sum) = state.sum.clone()
            {
                state.taken += 1;
                if state.taken == group.ranks() {
                    (state.sum, state.taken) = (None, 0);
                    self.changed.notify_all();
                }
                return Ok(sum);
            }
            let waited = start.elapsed();
            let late = (waited >= group.limit).then(|| group.late(rank, waited.as_secs()));
            if let Some(error) = group.gone(rank).or(late) {
                self.changed.notify_all();
                return Err(group.fail(error));
            }
            let look = LOOK.min(group.limit - waited);
            state = self.changed.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The sum of all ranks' numbers in f64, rounded to their format.
fn sum(brought: &[Vec<u8>], source: Source) -> Result<Vec<u8>, CommunicatorError> {
    let first = brought.first().map_or(0, Vec::len);
    if let Some((rank, other)) = brought.iter().enumerate().find(|(_, other)| other.len() != first) {
        return Err(CommunicatorError::Lengths { first, rank, other: other.len() });
    }
    let decode = |bits: u16| match source {
        Source::Bf16 => bf16::from_bits(bits).to_f64(),
        Source::F16 => f16::from_bits(bits).to_f64(),
    };
    let encode = |value: f64| match source {
        Source::Bf16 => bf16::from_f64(value).to_bits(),
        Source::F16 => f16::from_f64(value).to_bits(),
    };
    let mut sums = vec![0f64; first / 2];
    for bytes in brought {
        for (sum, pair) in sums.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *sum += decode(u16::from_le_bytes(*pair));
        }
    }
    Ok(sums.into_iter().flat_map(|sum| encode(sum).to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
    }

    #[test]
    fn sums_are_rounded_once() {
        // 256 + 0.75 + 0.75 is 257.5, and bf16 has 256 and 258 there: rounded after each step it would stay at 256.
        let ranks = [of(&[256.0]), of(&[0.75]), of(&[0.75])];
        assert_eq!(sum(&ranks, Source::Bf16).unwrap(), of(&[258.0]));
        let error = sum(&[of(&[1.0]), of(&[1.0, 2.0])], Source::Bf16).unwrap_err();
        assert_eq!(error, CommunicatorError::Lengths { first: 2, rank: 1, other: 4 });
    }

    #[test]
    fn rounds_do_not_mix() {
        let group =
            Group::new((0..3).map(|rank| format!("device {rank}")).collect(), Duration::from_secs(20));
        let meeting = Meeting::new(3);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (group, meeting) = (&group, &meeting);
                scope.spawn(move || {
                    for round in 0..200u32 {
                        group.ask(rank);
                        let own = of(&[(round % 50) as f32 + rank as f32]);
                        let sum = meeting.add(group, rank, own, Source::Bf16).unwrap();
                        assert_eq!(sum[..], of(&[3.0 * (round % 50) as f32 + 3.0])[..]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_late_rank_is_named_and_the_group_fails() {
        let group = Group::new(["one".into(), "two".into()].into(), Duration::from_millis(50));
        let meeting = Meeting::new(2);
        group.ask(0);
        let error = meeting.add(&group, 0, of(&[1.0]), Source::Bf16).unwrap_err();
        assert!(
            matches!(error, CommunicatorError::Late { rank: 1, its: 0, waiting: 0, number: 1, .. }),
            "{error}"
        );
        group.ask(1);
        let error = meeting.add(&group, 1, of(&[1.0]), Source::Bf16).unwrap_err();
        assert!(error.to_string().contains("failed before: rank 1 (two) is late"), "{error}");
    }

    #[test]
    fn a_rank_that_left_is_named_at_once() {
        let group = Group::new(["one".into(), "two".into()].into(), Duration::from_secs(3600));
        let meeting = Meeting::new(2);
        group.leave(1);
        group.ask(0);
        let error = meeting.add(&group, 0, of(&[1.0]), Source::Bf16).unwrap_err();
        assert!(matches!(error, CommunicatorError::Left { rank: 1, its: 0, .. }), "{error}");
    }
}
