//! What the tests share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `judge` has against each item, on all cores, in the items' order.
///
/// Threads of its own and not rayon's: a runtime call inside waits for rayon's pool, and a thread of that
/// pool that waits takes up the next item meanwhile, one inside the other, until its stack is full.
pub fn faults<T: Sync>(items: &[T], judge: impl Fn(usize, &T) -> Option<String> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    if let Some(fault) = judge(index, item) {
                        found.lock().unwrap().push((index, fault));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_unstable_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, fault)| fault).collect()
}
