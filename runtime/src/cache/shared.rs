//! Values that many threads request and one makes.
//!
//! The map is papaya's, whose reads are lock-free. Sharded locks (dashmap) stop a reader during an insertion nearby,
//! and a copy per write (arc-swap) is quadratic in the thousands of candidates of a tuning run. The map keeps a value
//! only as long as another handle does.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Number of entries below which dead ones are not removed.
const FEW: usize = 64;

/// The primitives that values are shared through: [`Real`], or loom's, which explore every order of threads.
pub(crate) trait Primitives {
    /// A slot for a value that one thread makes and others wait for.
    type Once<T: Clone + Send + Sync>: Once<T> + Default + Send + Sync;
    /// A map that many threads change.
    type Map<K: Hash + Eq + Copy + Send + Sync, V: Clone + Send + Sync>: Map<K, V> + Default;
}

/// See [`Primitives::Once`].
pub(crate) trait Once<T> {
    /// The value, made by the first caller; if that panics, by the next.
    fn get_or_make(&self, make: impl FnOnce() -> T) -> T;
    /// The value, if it is there.
    fn get(&self) -> Option<T>;
}

/// See [`Primitives::Map`].
pub(crate) trait Map<K, V> {
    /// The value of a key; inserts one if there is none.
    fn get_or_put(&self, key: K, value: impl FnOnce() -> V) -> V;
    /// Removes a key if its value satisfies `such`.
    fn remove_if(&self, key: &K, such: impl Fn(&V) -> bool);
    /// Keeps the entries that satisfy `such`.
    fn retain(&self, such: impl Fn(&V) -> bool);
    /// Keys.
    fn len(&self) -> usize;
}

/// papaya's map and the standard library's cells.
pub(crate) struct Real;

impl Primitives for Real {
    type Once<T: Clone + Send + Sync> = OnceLock<T>;
    type Map<K: Hash + Eq + Copy + Send + Sync, V: Clone + Send + Sync> = papaya::HashMap<K, V>;
}

impl<T: Clone> Once<T> for OnceLock<T> {
    fn get_or_make(&self, make: impl FnOnce() -> T) -> T {
        self.get_or_init(make).clone()
    }

    fn get(&self) -> Option<T> {
        self.get().cloned()
    }
}

impl<K: Hash + Eq + Send + Sync, V: Clone + Send + Sync> Map<K, V> for papaya::HashMap<K, V> {
    fn get_or_put(&self, key: K, value: impl FnOnce() -> V) -> V {
        self.pin().get_or_insert_with(key, value).clone()
    }

    fn remove_if(&self, key: &K, such: impl Fn(&V) -> bool) {
        // Somebody may have put another value there already.
        let _ = self.pin().remove_if(key, |_, value| such(value));
    }

    fn retain(&self, such: impl Fn(&V) -> bool) {
        self.pin().retain(|_, value| such(value));
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// A value that is being made or is complete.
type Flight<V, E, P> = Arc<<P as Primitives>::Once<Result<Weak<V>, E>>>;

pub(crate) struct Shared<K, V, E, P = Real>
where
    K: Hash + Eq + Copy + Send + Sync,
    V: Send + Sync,
    E: Clone + Send + Sync,
    P: Primitives,
{
    map: P::Map<K, Flight<V, E, P>>,
    /// Number of entries at which dead ones are removed next.
    sweep_at: AtomicUsize,
}

impl<K, V, E, P> Shared<K, V, E, P>
where
    K: Hash + Eq + Copy + Send + Sync,
    V: Send + Sync,
    E: Clone + Send + Sync,
    P: Primitives,
{
    pub fn new() -> Self {
        Self { map: P::Map::default(), sweep_at: AtomicUsize::new(FEW) }
    }

    /// The value, made if it does not exist. If several callers ask at once, one makes it and the others wait. An error
    /// goes to all of them; later callers try again.
    pub fn get_or_make(&self, key: K, make: impl Fn() -> Result<Arc<V>, E>) -> Result<Arc<V>, E> {
        loop {
            let flight = self.map.get_or_put(key, Flight::<V, E, P>::default);
            let mut made = None;
            let state = flight.get_or_make(|| {
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
                    return Err(error);
                }
            }
        }
    }

    /// Drops the value, so that the next caller makes it again.
    pub fn discard(&self, key: &K) {
        self.map.remove_if(key, |_| true);
    }

    fn forget(&self, key: &K, flight: &Flight<V, E, P>) {
        self.map.remove_if(key, |other| Arc::ptr_eq(other, flight));
    }

    fn sweep(&self) {
        if self.map.len() < self.sweep_at.load(Ordering::Relaxed) {
            return;
        }
        self.map.retain(|flight| match flight.get() {
            Some(Ok(weak)) => weak.strong_count() > 0,
            Some(Err(_)) => false,
            None => true,
        });
        self.sweep_at.store((2 * self.map.len()).max(FEW), Ordering::Relaxed);
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

/// Every order in which threads can go through it, of loom's making.
#[cfg(test)]
mod model {
    use super::*;
    use loom::sync::{Condvar, Mutex};
    use loom::thread;
    use std::collections::HashMap;

    struct Model;

    impl Primitives for Model {
        type Once<T: Clone + Send + Sync> = ModelOnce<T>;
        type Map<K: Hash + Eq + Copy + Send + Sync, V: Clone + Send + Sync> = ModelMap<K, V>;
    }

    enum State<T> {
        Empty,
        Making,
        Made(T),
    }

    struct ModelOnce<T>(Mutex<State<T>>, Condvar);

    impl<T> Default for ModelOnce<T> {
        fn default() -> Self {
            Self(Mutex::new(State::Empty), Condvar::new())
        }
    }

    impl<T: Clone + Send + Sync> Once<T> for ModelOnce<T> {
        fn get_or_make(&self, make: impl FnOnce() -> T) -> T {
            let mut state = self.0.lock().unwrap();
            loop {
                match &*state {
                    State::Made(value) => return value.clone(),
                    State::Making => state = self.1.wait(state).unwrap(),
                    State::Empty => break,
                }
            }
            *state = State::Making;
            drop(state);
            let value = make();
            *self.0.lock().unwrap() = State::Made(value.clone());
            self.1.notify_all();
            value
        }

        fn get(&self) -> Option<T> {
            match &*self.0.lock().unwrap() {
                State::Made(value) => Some(value.clone()),
                _ => None,
            }
        }
    }

    /// Each call is one step, as papaya's are.
    struct ModelMap<K, V>(Mutex<HashMap<K, V>>);

    impl<K, V> Default for ModelMap<K, V> {
        fn default() -> Self {
            Self(Mutex::new(HashMap::new()))
        }
    }

    impl<K: Hash + Eq + Copy, V: Clone> Map<K, V> for ModelMap<K, V> {
        fn get_or_put(&self, key: K, value: impl FnOnce() -> V) -> V {
            self.0.lock().unwrap().entry(key).or_insert_with(value).clone()
        }

        fn remove_if(&self, key: &K, such: impl Fn(&V) -> bool) {
            let mut map = self.0.lock().unwrap();
            if map.get(key).is_some_and(such) {
                map.remove(key);
            }
        }

        fn retain(&self, such: impl Fn(&V) -> bool) {
            self.0.lock().unwrap().retain(|_, value| such(value));
        }

        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }

    type Module = Shared<u8, usize, usize, Model>;

    /// Two threads and this one run `body`, in every order with at most three switches where none is needed.
    fn explore(body: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    #[test]
    fn a_module_is_made_once_for_all_who_hold_it() {
        explore(|| {
            let (map, made) = (Arc::new(Module::new()), Arc::new(AtomicUsize::new(0)));
            let ask = || {
                let (map, made) = (map.clone(), made.clone());
                move || {
                    map.get_or_make(7, || {
                        thread::yield_now();
                        Ok(Arc::new(made.fetch_add(1, Ordering::SeqCst)))
                    })
                    .unwrap()
                }
            };
            let threads = [thread::spawn(ask()), thread::spawn(ask())];
            let own = ask()();
            for thread in threads {
                assert!(Arc::ptr_eq(&own, &thread.join().unwrap()));
            }
            assert_eq!(made.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn a_failure_reaches_those_who_wait_and_is_not_kept() {
        explore(|| {
            let (map, tried) = (Arc::new(Module::new()), Arc::new(AtomicUsize::new(0)));
            // The first try fails, and says so.
            let ask = || {
                let (map, tried) = (map.clone(), tried.clone());
                move || {
                    map.get_or_make(7, || {
                        thread::yield_now();
                        match tried.fetch_add(1, Ordering::SeqCst) {
                            0 => Err(0),
                            later => Ok(Arc::new(later)),
                        }
                    })
                }
            };
            let threads = [thread::spawn(ask()), thread::spawn(ask())];
            let mut results = vec![ask()()];
            results.extend(threads.map(|thread| thread.join().unwrap()));
            // Somebody saw the failure; whoever did not has the one module that was made after it.
            assert!(results.contains(&Err(0)), "{results:?}");
            let made: Vec<&Arc<usize>> = results.iter().flatten().collect();
            assert!(made.windows(2).all(|pair| Arc::ptr_eq(pair[0], pair[1])), "{results:?}");
            // Whoever asks now gets a module, that one if it is there.
            let now = ask()().unwrap();
            assert!(made.iter().all(|one| Arc::ptr_eq(one, &now)), "{results:?} {now}");
            assert!(tried.load(Ordering::SeqCst) <= 2);
        });
    }

    #[test]
    fn a_module_that_is_let_go_of_is_made_anew_and_never_waited_for() {
        explore(|| {
            let (map, made) = (Arc::new(Module::new()), Arc::new(AtomicUsize::new(0)));
            let ask = || {
                let (map, made) = (map.clone(), made.clone());
                move || {
                    let make = || Ok(Arc::new(made.fetch_add(1, Ordering::SeqCst)));
                    let held = map.get_or_make(7, make).unwrap();
                    thread::yield_now();
                    *held
                }
            };
            let discard = {
                let map = map.clone();
                move || map.discard(&7)
            };
            let threads = (thread::spawn(ask()), thread::spawn(discard));
            let own = ask()();
            let other = threads.0.join().unwrap();
            threads.1.join().unwrap();
            assert!(own < 2 && other < 2);
            assert_eq!(ask()() + 1, made.load(Ordering::SeqCst), "nobody holds it any more");
        });
    }
}
