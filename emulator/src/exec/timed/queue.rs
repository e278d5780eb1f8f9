//! Events in the order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Time and slot of an event. The heap moves these small entries; the events stay in their slots.
#[derive(Clone, Copy, Debug)]
struct Due {
    time: f64,
    sequence: u64,
    slot: u32,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The first is the greatest, as `BinaryHeap` wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.sequence.cmp(&self.sequence))
    }
}

/// Events in the order of time; those of one time in the order in which they were added.
#[derive(Debug)]
pub(super) struct Queue<T> {
    heap: BinaryHeap<Due>,
    slots: Vec<Option<T>>,
    /// Slots without an event.
    free: Vec<u32>,
    pushed: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), pushed: 0 }
    }
}

impl<T> Queue<T> {
    pub fn push(&mut self, time: f64, event: T) {
        self.pushed += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(event);
        self.heap.push(Due { time, sequence: self.pushed, slot });
    }

    /// The first event, and its time.
    pub fn pop(&mut self) -> Option<(f64, T)> {
        let due = self.heap.pop()?;
        let event = self.slots[due.slot as usize].take()?;
        self.free.push(due.slot);
        Some((due.time, event))
    }

    /// The first event, and its time, if it is not after `time`.
    pub fn pop_until(&mut self, time: f64) -> Option<(f64, T)> {
        self.next_time().filter(|next| *next <= time)?;
        self.pop()
    }

    /// Time of the first event.
    pub fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|due| due.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_their_making() {
        let mut queue = Queue::default();
        for (time, name) in [(2.0, "c"), (1.0, "a"), (1.0, "b")] {
            queue.push(time, name);
        }
        assert_eq!(queue.next_time(), Some(1.0));
        assert_eq!(queue.pop_until(0.5), None);
        assert_eq!(queue.pop(), Some((1.0, "a")));
        // A slot that is free again does not change the order.
        queue.push(1.0, "b2");
        queue.push(3.0, "d");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(rest, ["b", "b2", "c", "d"]);
        assert_eq!(queue.next_time(), None);
    }
}
