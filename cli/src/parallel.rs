//! Runs work on all cores, on its own threads. On rayon's threads, a runtime call inside an item would wait for
//! rayon's pool; the waiting thread would take up the next item inside the first, and so on until its stack is full.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `work` to each item; results are in the items' order.
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
