//! Finds the loops in a graph of instructions.

/// A loop: a set of instructions that can all reach each other. Loops inside it come later in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub parent: Option<usize>,
    /// In order.
    pub nodes: Vec<usize>,
}

/// All loops of a graph, and the innermost loop of each node.
pub(super) struct Loops {
    pub list: Vec<Loop>,
    pub innermost: Vec<Option<usize>>,
}

impl Loops {
    /// A loop and the loops around it, innermost first.
    pub fn chain(&self, of: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(of, |&l| self.list[l].parent)
    }

    /// The innermost loop that contains two loops.
    pub fn common(&self, a: Option<usize>, b: Option<usize>) -> Option<usize> {
        self.chain(a).find(|l| self.chain(b).any(|m| m == *l))
    }
}

/// The loops of a graph in which `next[i]` are the successors of node `i`.
pub(super) fn loops(next: &[Vec<usize>]) -> Loops {
    let mut out = Loops { list: Vec::new(), innermost: vec![None; next.len()] };
    // Nodes of a part of the graph, the node that ends its rounds, the loop it is of.
    let mut work: Vec<(Vec<usize>, Option<usize>, Option<usize>)> =
        vec![((0..next.len()).collect(), None, None)];
    let mut inside = vec![false; next.len()];
    while let Some((nodes, header, parent)) = work.pop() {
        for &n in &nodes {
            inside[n] = true;
        }
        let parts = components(&nodes, next, &inside, header);
        for part in parts {
            let round = part.len() > 1 || next[part[0]].contains(&part[0]) && Some(part[0]) != header;
            if !round {
                continue;
            }
            let index = out.list.len();
            let within = |n: &usize| part.binary_search(n).is_ok();
            let entered =
                nodes.iter().filter(|n| !within(n)).flat_map(|&n| &next[n]).filter(|n| within(n)).min();
            let first = entered.copied().unwrap_or(part[0]);
            for &n in &part {
                out.innermost[n] = Some(index);
            }
            out.list.push(Loop { parent, nodes: part.clone() });
            work.push((part, Some(first), Some(index)));
        }
        for &n in &nodes {
            inside[n] = false;
        }
    }
    out
}

/// Strongly connected components of `nodes` without the edges to `header` (Tarjan's algorithm).
fn components(
    nodes: &[usize],
    next: &[Vec<usize>],
    inside: &[bool],
    header: Option<usize>,
) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let mut order = vec![NEW; next.len()];
    let mut low = vec![0; next.len()];
    let mut held = vec![false; next.len()];
    let (mut count, mut stack, mut out) = (0, Vec::new(), Vec::new());
    for &root in nodes {
        if order[root] != NEW {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some(&mut (n, ref mut edge)) = path.last_mut() {
            if *edge == 0 {
                (order[n], low[n], held[n]) = (count, count, true);
                count += 1;
                stack.push(n);
            }
            let to = next[n].get(*edge).copied();
            *edge += 1;
            match to {
                Some(m) if !inside[m] || Some(m) == header => {}
                Some(m) if order[m] == NEW => path.push((m, 0)),
                Some(m) if held[m] => low[n] = low[n].min(order[m]),
                Some(_) => {}
                None => {
                    path.pop();
                    if let Some(&(p, _)) = path.last() {
                        low[p] = low[p].min(low[n]);
                    }
                    if low[n] == order[n] {
                        let from = stack.iter().rposition(|&s| s == n).unwrap_or(0);
                        let mut part = stack.split_off(from);
                        part.iter().for_each(|&m| held[m] = false);
                        part.sort_unstable();
                        out.push(part);
                    }
                }
            }
        }
    }
    out
}

/// The basic block of each node, counted from 0. A block is entered only at its start and left only at its end.
pub(super) fn blocks(next: &[Vec<usize>]) -> Vec<usize> {
    let mut starts = vec![false; next.len() + 1];
    for (i, to) in next.iter().enumerate() {
        if to.as_slice() != [i + 1] {
            starts[i + 1] = true;
            to.iter().for_each(|&t| starts[t] = true);
        }
    }
    let mut block = 0;
    (0..next.len())
        .map(|i| {
            block += usize::from(starts[i] && i > 0);
            block
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_loops_are_found() {
        // 0, then 1..=5 with 2..=3 inside, and 4 alone.
        let next = vec![vec![1], vec![2], vec![3], vec![2, 4], vec![4, 5], vec![1, 6], vec![]];
        let l = loops(&next);
        let nodes: Vec<_> = l.list.iter().map(|l| (l.parent, l.nodes.clone())).collect();
        assert_eq!(nodes.len(), 3);
        assert_eq!(nodes[0], (None, vec![1, 2, 3, 4, 5]));
        assert!(nodes.contains(&(Some(0), vec![2, 3])) && nodes.contains(&(Some(0), vec![4])));
        assert_eq!(l.common(l.innermost[2], l.innermost[4]), Some(0));
        assert_eq!(l.innermost[0], None);
        assert_eq!(blocks(&next), [0, 1, 2, 2, 3, 4, 5]);
    }
}
