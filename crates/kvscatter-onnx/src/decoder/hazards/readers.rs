//! Finds unexpected readers and writers of a cache.

use std::collections::BTreeSet;

use super::hazard::Hazard;
use crate::decoder::cache::Cache;
use crate::decoder::follow::follow;
use crate::decoder::part::is_product;
use crate::decoder::writer::{appends_nothing, appends_to};
use crate::passing::{is_projection, leads_from_cache, passed_on};
use crate::{Graph, Node};

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
    let mut named = BTreeSet::new();
    follow(graph, cache.past, (), |reader, slot, ()| {
        if known(reader) || reader.reads_shape() || !named.insert(reader.index()) {
            return None;
        }
        let is_passed = slot == Some(0) && passed_on(graph, reader).is_some();
        // The caller of the model reads its outputs.
        if !is_passed || reader.output(0).is_some_and(|value| graph.is_output(value)) {
            let past = cache.past.to_owned();
            let writes = slot == Some(0) && reader.is("TensorScatter");
            hazards.push(if writes {
                Hazard::WrittenTwice { past, first: writer.label(), second: reader.label() }
            } else {
                Hazard::PastReadElsewhere { past, reader: reader.label() }
            });
        }
        is_passed.then_some(())
    });
}

/// Reports the nodes that the present reaches before it meets queries or weights.
fn of_present(graph: &Graph<'_>, cache: &Cache<'_>, writer: &Node<'_>, hazards: &mut Vec<Hazard>) {
    let mut named = BTreeSet::new();
    let followed = follow(graph, cache.written, (), |reader, slot, ()| {
        let slot = slot.filter(|_| !reader.reads_shape())?;
        if !named.insert(reader.index()) {
            return None;
        }
        if is_projection(graph, reader, slot) {
            return Some(());
        }
        if reads_as_attention(graph, reader, slot) {
            return None;
        }
        if slot == 0 && reader.is("TensorScatter") {
            let (first, second) = (writer.label(), reader.label());
            hazards.push(Hazard::WrittenInTurn { past: cache.past.to_owned(), first, second });
            return None;
        }
        // This writes to a copy of the cache.
        let overwrites = reader.is("ScatterND") && reader.input(0) == Some(cache.written);
        if (!overwrites && leads_from_cache(graph, reader, slot)) || passed_on(graph, reader).is_some() {
            return Some(());
        }
        let (present, label) = (cache.present.to_owned(), reader.label());
        let appends = reader.input(slot).is_some_and(|value| appends_to(graph, reader, value));
        hazards.push(match appends {
            true => Hazard::SharedCache { present, reader: label },
            false => Hazard::PresentReadElsewhere { present, reader: label },
        });
        None
    });
    let outputs = followed.into_iter().map(|(value, ())| value).filter(|value| graph.is_output(value));
    let mut copies: BTreeSet<_> = outputs.filter(|value| *value != cache.present).collect();
    copies.extend(&cache.copies);
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
