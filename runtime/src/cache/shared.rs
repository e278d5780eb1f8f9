//! Values that many threads ask for and one makes.
//!
//! The map is papaya's: reads are lock-free, so that a look-up waits for nobody, where sharded locks (dashmap) stop a
//! reader while a neighbour is put in and a copy on each write (arc-swap) is quadratic in the thousands of candidates
//! of a tuning run. It holds a value only as long as somebody else does.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Entries below which nobody looks for dead ones.
const FEW: usize = 64;

/// A value in the making, or made.
type Flight<V, E> = Arc<OnceLock<Result<Weak<V>, E>>>;

pub(crate) struct Shared<K, V, E> {
    map: papaya::HashMap<K, Flight<V, E>>,
    /// The size at which dead entries are looked for next.
    sweep_at: AtomicUsize,
}

impl<K, V, E> Shared<K, V, E>
where
    K: Hash + Eq + Copy + Send + Sync,
    V: Send + Sync,
    E: Clone + Send + Sync,
{
    pub fn new() -> Self {
        Self { map: papaya::HashMap::new(), sweep_at: AtomicUsize::new(FEW) }
    }

    /// The value, made if nobody has it. Of all who ask at once one makes it, and the others wait for that; an error is
    /// given to all of them, and those who ask later try again.
    pub fn get_or_make(&self, key: K, make: impl Fn() -> Result<Arc<V>, E>) -> Result<Arc<V>, E> {
        loop {
            let flight = self.map.pin().get_or_insert_with(key, Flight::default).clone();
            let mut made = None;
            let state = flight.get_or_init(|| {
                let value = make()?;
                let weak = Arc::downgrade(&value);
                made = Some(value);
                Ok(weak)
            });
            if let Some(value) = made {
                self.sweep();
                return Ok(value);
            }
            match state {
                Ok(weak) => {
                    if let Some(value) = weak.upgrade() {
                        return Ok(value);
                    }
                    // All who had it have dropped it: once more.
                    self.forget(&key, &flight);
                }
                Err(error) => {
                    self.forget(&key, &flight);
                    return Err(error.clone());
                }
            }
        }
    }

    /// Has the next one who asks make it anew.
    pub fn discard(&self, key: &K) {
        self.map.pin().remove(key);
    }

    fn forget(&self, key: &K, flight: &Flight<V, E>) {
        // Somebody may have put the next one there already.
        let _ = self.map.pin().remove_if(key, |_, other| Arc::ptr_eq(other, flight));
    }

    fn sweep(&self) {
        if self.map.len() < self.sweep_at.load(Ordering::Relaxed) {
            return;
        }
        let map = self.map.pin();
        map.retain(|_, flight| match flight.get() {
            Some(Ok(weak)) => weak.strong_count() > 0,
            Some(Err(_)) => false,
            None => true,
        });
        self.sweep_at.store((2 * map.len()).max(FEW), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    type Map = Shared<u64, String, String>;

    #[test]
    fn one_makes_it_and_all_get_it() {
        let (map, made) = (Map::new(), AtomicUsize::new(0));
        let barrier = Barrier::new(16);
        let values: Vec<Arc<String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        map.get_or_make(7, || {
                            made.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(20));
                            Ok(Arc::new("seven".to_owned()))
                        })
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
    }

    #[test]
    fn an_error_is_not_kept_and_a_value_lives_as_long_as_its_holders() {
        let map = Map::new();
        assert_eq!(map.get_or_make(1, || Err("no".to_owned())), Err("no".to_owned()));
        let first = map.get_or_make(1, || Ok(Arc::new("one".to_owned()))).unwrap();
        assert_eq!(*map.get_or_make(1, || Err("asked again".to_owned())).unwrap(), *first);
        drop(first);
        let second = map.get_or_make(1, || Ok(Arc::new("two".to_owned()))).unwrap();
        map.discard(&1);
        let third = map.get_or_make(1, || Ok(Arc::new("three".to_owned()))).unwrap();
        assert_eq!((second.as_str(), third.as_str()), ("two", "three"));
    }

    #[test]
    fn a_panic_lets_the_next_one_try() {
        let map = Map::new();
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| map.get_or_make(1, || std::panic::panic_any("on purpose")));
            thread.join().is_err()
        });
        assert!(panicked);
        assert!(map.get_or_make(1, || Ok(Arc::new(String::new()))).is_ok());
    }

    #[test]
    fn dead_entries_are_swept() {
        let map = Map::new();
        let kept: Vec<_> =
            (0..10u64).map(|key| map.get_or_make(key, || Ok(Arc::new(key.to_string())))).collect();
        for key in 10..10_000 {
            drop(map.get_or_make(key, || Ok(Arc::new(key.to_string()))));
        }
        assert!(map.map.len() <= FEW, "{}", map.map.len());
        // What somebody holds stays.
        for (key, kept) in (0..10).zip(&kept) {
            assert_eq!(map.get_or_make(key, || Err("made anew".to_owned())), *kept);
        }
    }
}
