//! Groups caches that differ only in the numbers in their names, so that many caches fit a few lines.

use std::collections::BTreeMap;

use super::facts::WholeCache;
use super::words;

/// Caches that are written in the same way and have names of the same pattern.
pub(super) struct Group<'a> {
    /// The names of past and present, `layer.{0..31}.key`.
    pub(super) past: String,
    pub(super) present: String,
    pub(super) caches: Vec<WholeCache<'a>>,
}

/// Groups caches that differ only in the numbers in their names. The groups are in the order of their first
/// caches.
pub(super) fn groups<'a>(caches: &[WholeCache<'a>]) -> Vec<Group<'a>> {
    let kind = |whole: &WholeCache<'a>| {
        let cache = whole.cache;
        // Exporters have several names for one size, so only numbers distinguish caches.
        let shape: Vec<_> = cache.known_shape.iter().map(|dim| dim.size()).collect();
        let patterns = (pattern(cache.past), pattern(cache.present));
        let style = cache.style.to_string();
        (patterns, style, shape, cache.axis, cache.part, whole.types(), cache.between.len())
    };
    let folded = |caches: Vec<WholeCache<'a>>| Group {
        past: fold(&caches.iter().map(|whole| whole.cache.past).collect::<Vec<_>>()),
        present: fold(&caches.iter().map(|whole| whole.cache.present).collect::<Vec<_>>()),
        caches,
    };
    alike(caches.iter().copied(), kind).into_iter().map(folded).collect()
}

/// Groups things of the same kind, in the order of the first of each group.
pub(super) fn alike<T, K: Ord>(things: impl IntoIterator<Item = T>, kind: impl Fn(&T) -> K) -> Vec<Vec<T>> {
    let mut indices = BTreeMap::new();
    let mut groups: Vec<Vec<T>> = Vec::new();
    for thing in things {
        let index = *indices.entry(kind(&thing)).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.push(thing),
            None => groups.push(vec![thing]),
        }
    }
    groups
}

/// Returns names with their numbers folded, one text for each pattern, in the order of the first names.
pub(super) fn folded(names: &[&str]) -> String {
    let groups = alike(names.iter().copied(), |name| pattern(name));
    groups.iter().map(|names| fold(names)).collect::<Vec<_>>().join(" and ")
}

/// Returns the shape of a group. A size with different names in the group is `?`.
pub(super) fn shape(caches: &[WholeCache<'_>]) -> Vec<String> {
    let mut shapes = caches.iter().map(|whole| &whole.cache.known_shape);
    let Some(first) = shapes.next() else { return Vec::new() };
    let one_name = |axis: usize| shapes.clone().all(|shape| shape.get(axis) == first.get(axis));
    let dims = first.iter().enumerate();
    dims.map(|(axis, dim)| if one_name(axis) { words::dim(dim) } else { "?".to_owned() }).collect()
}

/// Splits a name into alternating pieces of text and numbers. Text comes first.
fn pieces(name: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = name;
    let mut digits = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (piece, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        pieces.push(piece);
        rest = after;
        digits = !digits;
    }
    pieces
}

/// Returns a name without its numbers.
fn pattern(name: &str) -> Vec<&str> {
    pieces(name).into_iter().step_by(2).collect()
}

/// Joins names of one pattern. Different numbers become `{0..31}`, or `{0,4,8..11}` if there are gaps.
fn fold(names: &[&str]) -> String {
    let all: Vec<_> = names.iter().map(|name| pieces(name)).collect();
    let Some(first) = all.first() else { return String::new() };
    let mut folded = String::new();
    for (index, piece) in first.iter().enumerate() {
        let mut values: Vec<_> = all.iter().filter_map(|pieces| pieces.get(index).copied()).collect();
        values.sort_by_key(|value| value.parse::<u64>().ok());
        values.dedup();
        if values.iter().all(|value| value == piece) {
            folded.push_str(piece);
        } else {
            folded.push_str(&set(&values));
        }
    }
    folded
}

/// Formats a set of numbers, which are sorted.
fn set(values: &[&str]) -> String {
    const LISTED: usize = 4;
    let follows = |left: &str, right: &str| {
        let [left, right] = [left, right].map(|value| value.parse::<u64>().ok());
        left.and_then(|left| left.checked_add(1)).is_some_and(|next| Some(next) == right)
    };
    let runs = values.chunk_by(|left, right| follows(left, right)).flat_map(|run| match run {
        [first, _, .., last] => vec![format!("{first}..{last}")],
        short => short.iter().map(|&value| value.to_owned()).collect(),
    });
    let mut runs: Vec<_> = runs.collect();
    if runs.len() > LISTED {
        runs.truncate(LISTED);
        runs.push("…".to_owned());
    }
    format!("{{{}}}", runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn numbers_that_differ_become_sets() {
        for (names, expected) in [
            (&["past.0.key", "past.1.key"][..], "past.{0,1}.key"),
            (&["past.3.key"], "past.3.key"),
            (&["k2.0", "k2.4", "k2.8"], "k2.{0,4,8}"),
            (&["9", "10", "11"], "{9..11}"),
            (&["l0.h0", "l0.h1", "l1.h0", "l1.h1"], "l{0,1}.h{0,1}"),
            (&["l0", "l1", "l2", "l4", "l6", "l7", "l8"], "l{0..2,4,6..8}"),
            (&["a1", "a3", "a5", "a7", "a9"], "a{1,3,5,7,…}"),
            (&["a99999999999999999999", "a1"], "a{99999999999999999999,1}"),
            (&["κ1", "κ2"], "κ{1,2}"),
            (&[], ""),
        ] {
            assert_eq!(fold(names), expected);
        }
    }
}
