//! Puts nodes after the nodes that they read from.

use std::collections::BTreeSet;

/// Returns these nodes and those that they depend on, each after the nodes that it reads from. Otherwise they keep
/// their order. `sources` returns the nodes that a node reads from.
///
/// # Errors
/// Returns a node that depends on itself.
pub(crate) fn sources_first<S: Iterator<Item = usize>>(
    nodes: impl IntoIterator<Item = usize>,
    sources: impl Fn(usize) -> S,
) -> Result<Vec<usize>, usize> {
    let (mut order, mut entered, mut done) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for first in nodes {
        let mut open = vec![first];
        while let Some(&node) = open.last() {
            if done.contains(&node) {
                open.pop();
            } else if entered.insert(node) {
                let mut missing: Vec<_> = sources(node).filter(|source| !done.contains(source)).collect();
                if let Some(&source) = missing.iter().find(|source| entered.contains(source)) {
                    return Err(source);
                }
                // The stack's last entry is visited next.
                missing.sort_unstable_by(|a, b| b.cmp(a));
                open.extend(missing);
            } else {
                open.pop();
                done.insert(node);
                order.push(node);
            }
        }
    }
    Ok(order)
}
