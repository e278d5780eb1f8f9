//! Vector clocks: which events are ordered before a thread or an asynchronous operation.

use std::ops::Range;

/// One counter per component (see the table of the parent module). Components beyond the end are at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u32>);

impl Clock {
    #[inline]
    pub fn get(&self, component: u16) -> u32 {
        self.0.get(component as usize).copied().unwrap_or(0)
    }

    /// Raises a component to at least `value`.
    pub fn raise(&mut self, component: u16, value: u32) {
        let i = component as usize;
        if self.0.len() <= i {
            self.0.resize(i + 1, 0);
        }
        self.0[i] = self.0[i].max(value);
    }

    /// Lowers a component to at most `value`.
    pub fn lower(&mut self, component: u16, value: u32) {
        if let Some(count) = self.0.get_mut(component as usize) {
            *count = (*count).min(value);
        }
    }

    /// The component-wise maximum.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, &b) in self.0.iter_mut().zip(&other.0) {
            *a = (*a).max(b);
        }
    }

    /// The component-wise maximum over some components.
    pub fn join_part(&mut self, other: &Clock, part: Range<usize>) {
        let end = part.end.min(other.0.len());
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        for i in part.start.min(end)..end {
            self.0[i] = self.0[i].max(other.0[i]);
        }
    }

    #[inline]
    pub fn has(&self, component: u16, value: u32) -> bool {
        self.get(component) >= value
    }
}

/// The events that are ordered before a point of execution, by kind of access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Events ordered before accesses of the generic proxy.
    pub all: Clock,
    /// Generic accesses that a proxy fence has made visible to the async proxy.
    pub proxied: Clock,
    /// Accesses of tensor memory by other warps that `tcgen05.fence::after_thread_sync` has ordered.
    pub tensor: Clock,
    /// Accesses of tensor memory that `tcgen05.fence::before_thread_sync` has published and that
    /// synchronisation has brought here.
    pub heard: Clock,
    /// Initialisations of mbarriers that a `fence.mbarrier_init` has published.
    pub inits: Clock,
}

impl View {
    /// The view that one lane announces alone: of its warp's component `own` only the count `met` at which all lanes
    /// last synchronised, and in `lane`, its own component, what it did since.
    pub fn of_lane(mut self, own: u16, met: u32, lane: u16) -> View {
        let View { all, proxied, tensor, heard, inits } = &mut self;
        for clock in [all, proxied, tensor, heard, inits] {
            let now = clock.get(own);
            if now > met {
                clock.raise(lane, now);
                clock.lower(own, met);
            }
        }
        self
    }

    /// Joins what synchronisation carries from another thread. The tensor-memory part takes effect only with the
    /// receiver's fence.
    pub fn hear(&mut self, other: &View) {
        self.all.join(&other.all);
        self.proxied.join(&other.proxied);
        self.heard.join(&other.heard);
        self.inits.join(&other.inits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_take_the_later_of_each_component() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.raise(1, 5);
        b.raise(3, 2);
        b.raise(1, 4);
        a.join(&b);
        assert_eq!((a.get(0), a.get(1), a.get(3), a.get(9)), (0, 5, 2, 0));
        assert!(a.has(3, 2) && !a.has(3, 3));
    }

    #[test]
    fn a_lane_speaks_for_the_others_up_to_where_all_met() {
        let mut view = View::default();
        view.all.raise(2, 9);
        view.inits.raise(2, 3);
        let view = view.of_lane(2, 5, 40);
        assert_eq!((view.all.get(2), view.all.get(40)), (5, 9));
        assert_eq!((view.inits.get(2), view.inits.get(40)), (3, 0));
    }

    #[test]
    fn hearing_does_not_order_tensor_memory() {
        let (mut a, mut b) = (View::default(), View::default());
        b.tensor.raise(2, 7);
        b.heard.raise(2, 7);
        a.hear(&b);
        assert!(a.heard.has(2, 7) && !a.tensor.has(2, 7));
    }
}
