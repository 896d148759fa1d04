//! Finds caches of one model that are written in different ways, and inputs that are used as two different
//! positions.

use std::collections::BTreeMap;

use kvscatter::Mode;

use super::hazard::Hazard;
use crate::decoder::Decoder;
use crate::decoder::cache::{Cache, CachePart, WriterStyle};
use crate::decoder::roles::{self, InputRole};
use crate::{Dimension, Node};

pub(super) fn find(decoder: &Decoder<'_>, hazards: &mut Vec<Hazard>) {
    let caches = &decoder.caches;
    // Layers with windows have rings beside the linear caches of other layers. A ring for keys needs one for values.
    let rings = |part| caches.iter().filter(|cache| cache.part == part && cache.is_ring()).count();
    let are_paired = rings(CachePart::Key) == rings(CachePart::Value);
    let style = |cache: &Cache<'_>| match &cache.style {
        WriterStyle::TensorScatter(_) if are_paired => WriterStyle::TensorScatter(Mode::Linear).to_string(),
        style => style.to_string(),
    };
    let styles = grouped(caches.iter().map(|cache| (style(cache), cache)));
    if styles.len() > 1 {
        let styles =
            styles.into_values().map(|(first, count)| (first.style.clone(), first.past.to_owned(), count));
        hazards.push(Hazard::MixedStyles { styles: styles.collect() });
    }
    let static_caches = || caches.iter().filter(|cache| cache.is_static());
    // Each window has its own capacity of rings.
    let linear = static_caches().filter(|cache| !cache.is_ring());
    let capacities = grouped(linear.filter_map(|cache| match cache.capacity() {
        Dimension::Known(capacity) => Some((capacity, cache)),
        _ => None,
    }));
    if capacities.len() > 1 {
        let capacities =
            capacities.into_iter().map(|(capacity, (first, count))| (capacity, first.past.to_owned(), count));
        hazards.push(Hazard::MixedCapacities { capacities: capacities.collect() });
    }
    write_indices(decoder, static_caches(), hazards);
    two_conventions(decoder, hazards);
}

/// Returns the first cache of each kind and the number of caches of that kind.
fn grouped<'c, 'm, K: Ord>(
    caches: impl Iterator<Item = (K, &'c Cache<'m>)>,
) -> BTreeMap<K, (&'c Cache<'m>, usize)> {
    let mut groups = BTreeMap::new();
    for (kind, cache) in caches {
        let (_, count) = groups.entry(kind).or_insert((cache, 0_usize));
        *count = count.saturating_add(1);
    }
    groups
}

/// Reports static caches that are written at different positions, and those that are always written at
/// position 0.
fn write_indices<'c, 'm: 'c>(
    decoder: &Decoder<'m>,
    caches: impl Iterator<Item = &'c Cache<'m>>,
    hazards: &mut Vec<Hazard>,
) {
    let mut first: Option<(&Cache<'_>, Option<&str>)> = None;
    for cache in caches {
        let Some(writer) = &cache.writer else { continue };
        let indices = writer.input(2).map(|value| roles::same(&decoder.graph, value).unwrap_or(value));
        match first {
            None => first = Some((cache, indices)),
            Some((other, others)) if others != indices => hazards.push(Hazard::MixedWriteIndices {
                past: cache.past.to_owned(),
                write_indices: indices.map(str::to_owned),
                other: other.past.to_owned(),
                other_write_indices: others.map(str::to_owned),
            }),
            Some(_) => {}
        }
        if indices.is_none() && matches!(cache.style, WriterStyle::TensorScatter(_)) {
            hazards.push(Hazard::NoWriteIndices { past: cache.past.to_owned(), writer: writer.label() });
        }
    }
}

/// Reports inputs that nodes use as two different positions. An input cannot be a start, a length and a last
/// index at once.
fn two_conventions(decoder: &Decoder<'_>, hazards: &mut Vec<Hazard>) {
    let is_position =
        |role| matches!(role, InputRole::WriteIndices | InputRole::NonpadKvSeqlen | InputRole::SeqlensK);
    let mut first: BTreeMap<&str, Vec<(InputRole, Node<'_>)>> = BTreeMap::new();
    for (input, role, node) in roles::uses(&decoder.graph).filter(|(_, role, _)| is_position(*role)) {
        let uses = first.entry(input).or_default();
        if uses.iter().all(|(other, _)| *other != role) {
            uses.push((role, node));
        }
    }
    for (input, uses) in first {
        let mut uses = uses.into_iter();
        let Some((role, node)) = uses.next() else { continue };
        hazards.extend(uses.map(|(second, second_node)| Hazard::TwoConventions {
            input: input.to_owned(),
            first: role,
            first_node: node.label(),
            second,
            second_node: second_node.label(),
        }));
    }
}
