//! Work on all cores, on threads of its own and not rayon's: a runtime call inside waits for rayon's pool, and
//! a thread of that pool that waits takes up the next item meanwhile, one inside the other, until its
//! stack is full.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `work` makes of each item, in the items' order.
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(index, item);
                    done.lock().expect("no thread panics with the lock held").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock held");
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
