//! Finds unexpected readers and writers of a cache.

use std::collections::BTreeSet;

use super::hazard::Hazard;
use crate::decoder::cache::Cache;
use crate::decoder::part::is_product;
use crate::decoder::writer::{appends_nothing, appends_to};
use crate::passing::{leads_to_product, passed_on};
use crate::{Graph, Node};

/// The largest number of values that are followed from one cache.
const MAX_VALUES: usize = 64;

pub(super) fn find(graph: &Graph<'_>, cache: &Cache<'_>, hazards: &mut Vec<Hazard>) {
    let Some(writer) = &cache.writer else { return };
    of_past(graph, cache, writer, hazards);
    let turns = cache.earlier.iter().chain([writer]);
    for (first, second) in turns.clone().zip(turns.skip(1)) {
        let (first, second) = (first.label(), second.label());
        hazards.push(Hazard::WrittenInTurn { past: cache.past.to_owned(), first, second });
    }
    of_present(graph, cache, writer, hazards);
}

/// Reports every other node that reads the past or a value between the past and the writer.
fn of_past(graph: &Graph<'_>, cache: &Cache<'_>, writer: &Node<'_>, hazards: &mut Vec<Hazard>) {
    let known = |node: &Node<'_>| {
        let is = |other: &Node<'_>| other.index() == node.index();
        is(writer) || cache.earlier.iter().any(is)
    };
    let mut pending = vec![cache.past];
    let mut seen = BTreeSet::new();
    let mut named = BTreeSet::new();
    while let Some(value) = pending.pop() {
        if seen.len() >= MAX_VALUES || !seen.insert(value) {
            continue;
        }
        for (reader, slot) in graph.uses(value).take(MAX_VALUES) {
            if known(&reader) || reader.reads_shape() || !named.insert(reader.index()) {
                continue;
            }
            if slot == Some(0) && passed_on(graph, &reader).is_some() {
                pending.extend(reader.output(0));
                // The caller of the model reads its outputs.
                if !reader.output(0).is_some_and(|value| graph.is_output(value)) {
                    continue;
                }
            }
            let past = cache.past.to_owned();
            let writes = slot == Some(0) && reader.is("TensorScatter");
            hazards.push(if writes {
                Hazard::WrittenTwice { past, first: writer.label(), second: reader.label() }
            } else {
                Hazard::PastReadElsewhere { past, reader: reader.label() }
            });
        }
    }
}

/// Reports the nodes that the present reaches before it meets queries or weights.
fn of_present(graph: &Graph<'_>, cache: &Cache<'_>, writer: &Node<'_>, hazards: &mut Vec<Hazard>) {
    let mut copies: BTreeSet<_> = cache.copies.iter().copied().collect();
    let mut pending = vec![cache.written];
    let mut seen = BTreeSet::new();
    let mut named = BTreeSet::new();
    while let Some(value) = pending.pop() {
        if seen.len() >= MAX_VALUES || !seen.insert(value) {
            continue;
        }
        if value != cache.present && graph.is_output(value) {
            copies.insert(value);
        }
        for (reader, slot) in graph.uses(value).take(MAX_VALUES) {
            let Some(slot) = slot.filter(|_| !reader.reads_shape()) else { continue };
            if !named.insert(reader.index()) {
                continue;
            }
            if reads_as_attention(graph, &reader, slot) {
                continue;
            }
            if slot == 0 && reader.is("TensorScatter") {
                let (first, second) = (writer.label(), reader.label());
                hazards.push(Hazard::WrittenInTurn { past: cache.past.to_owned(), first, second });
            } else if leads_to_product(&reader) || passed_on(graph, &reader).is_some() {
                pending.extend(reader.output(0));
            } else {
                let (present, label) = (cache.present.to_owned(), reader.label());
                hazards.push(match appends_to(graph, &reader, value) {
                    true => Hazard::SharedCache { present, reader: label },
                    false => Hazard::PresentReadElsewhere { present, reader: label },
                });
            }
        }
    }
    if !copies.is_empty() {
        let copies = copies.into_iter().map(str::to_owned).collect();
        hazards.push(Hazard::PresentGivenTwice { present: cache.present.to_owned(), copies });
    }
}

fn reads_as_attention<'m>(graph: &Graph<'m>, node: &Node<'m>, slot: usize) -> bool {
    is_product(node)
        || (node.op_type().ends_with("Attention") && (slot == 1 || slot == 2))
        || (appends_nothing(graph, node) && (slot == 3 || slot == 4))
}
