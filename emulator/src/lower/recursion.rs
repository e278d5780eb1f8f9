//! Finds functions that call themselves, directly or through others.

use std::collections::{BTreeMap, BTreeSet};

/// For each function, the functions that it calls.
pub(crate) type Calls<'t> = BTreeMap<&'t str, BTreeSet<&'t str>>;

/// A function that can call itself, if there is one. Linear in the number of calls.
pub(crate) fn find<'t>(calls: &Calls<'t>) -> Option<&'t str> {
    let none = BTreeSet::new();
    let callees = |name: &str| calls.get(name).unwrap_or(&none).iter().copied();
    // Depth first, without recursion of our own: functions on the way, with the callees that are left to visit.
    let mut on_the_way: BTreeSet<&str> = BTreeSet::new();
    let mut visited: BTreeSet<&str> = BTreeSet::new();
    for &start in calls.keys() {
        if !visited.insert(start) {
            continue;
        }
        on_the_way.insert(start);
        let mut path = vec![(start, callees(start))];
        while let Some((name, rest)) = path.last_mut() {
            match rest.next() {
                Some(next) if on_the_way.contains(next) => return Some(next),
                Some(next) if visited.insert(next) => {
                    on_the_way.insert(next);
                    path.push((next, callees(next)));
                }
                Some(_) => {}
                None => {
                    on_the_way.remove(*name);
                    path.pop();
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Calls, find};

    fn calls(edges: &[(&'static str, &'static str)]) -> Calls<'static> {
        let mut calls = Calls::new();
        for &(from, to) in edges {
            calls.entry(from).or_default().insert(to);
        }
        calls
    }

    #[test]
    fn cycles_are_found_and_shared_callees_are_none() {
        assert_eq!(find(&calls(&[])), None);
        assert_eq!(find(&calls(&[("k", "a"), ("k", "b"), ("a", "c"), ("b", "c")])), None);
        assert_eq!(find(&calls(&[("k", "a"), ("a", "a")])), Some("a"));
        assert_eq!(find(&calls(&[("k", "a"), ("a", "b"), ("b", "c"), ("c", "a")])), Some("a"));
        assert_eq!(find(&calls(&[("k", "z"), ("b", "z"), ("z", "b")])), Some("b"));
    }
}
