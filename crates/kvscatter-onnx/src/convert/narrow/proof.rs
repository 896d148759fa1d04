//! Checks what the new nodes compute, and that all other nodes stayed.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kvscatter::ElementType;
use kvscatter::quantize::{dequantize_row, largest_error, quantize_row};

use super::nodes::{self, NarrowNodes, NarrowValues};
use super::sites::{NarrowSite, NarrowSites, PASS};
use crate::convert::cache_type::CacheType;
use crate::convert::refusal::ConvertRefusal;
use crate::fold::{
    Budget, Fold, MAX_VALUES, Value, Values, elements, int_to_float, round, round_to_f32, to_float,
};
use crate::onnx_attention::{KEYS, QUERIES, VALUES};
use crate::proto::NodeProto;
use crate::prove::with_random;
use crate::{Graph, Node, OnnxError};

/// The number of rows on which the nodes are evaluated.
const ROWS: usize = 8;

/// Returns the largest change of a score by a rotation, relative to the lengths of query and key. The rotated query is
/// rounded to the type of the cache before.
fn rotation_error(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => 2.0_f64.powi(-10),
        ElementType::BFloat16 => 2.0_f64.powi(-7),
        _ => 1e-5,
    }
}

/// The size of the rows that are cast.
const CAST_SIZE: usize = 64;

/// Checks a decoder whose caches were made narrower. Returns what was compared.
///
/// # Errors
/// Returns [`ConvertRefusal::PassDiffers`], wrapped with a node of the new graph, and errors of the evaluation.
pub(super) fn check(
    before: &Graph<'_>,
    after: &Graph<'_>,
    sites: &NarrowSites<'_, '_>,
    written: &NarrowNodes,
) -> Result<String, OnnxError> {
    check_others(before, after, sites)?;
    let mut proof = Proof { fold: Fold::with(after, None, Some(Rc::new(Budget::new()))), graph: after };
    let mut queries = BTreeMap::new();
    for (site, values) in sites.caches.iter().zip(&written.caches) {
        proof.rows(sites.asked, site, values)?;
        if site.is_rotated {
            queries.insert(site.cache.present, (site, values));
        }
    }
    for reader in &sites.readers {
        let keys = reader.input(KEYS).and_then(|keys| queries.get(keys));
        if let (Some(&(site, values)), Some(queries)) = (keys, reader.input(QUERIES)) {
            let rotated = written.queries.get(queries).map(String::as_str).unwrap_or_default();
            proof.scores(reader, (site, values), [queries, rotated])?;
        }
    }
    let bound = match sites.asked {
        CacheType::Int8 => {
            "quantisation changes each number by at most 0.394 % of its row's largest magnitude"
        }
        CacheType::Float16 => {
            "rounding changes each number from 2^-14 to 65504 by at most 2^-11 of its magnitude"
        }
        CacheType::BFloat16 => "rounding changes each number by at most 2^-8 of its magnitude",
        CacheType::Float32 => "rounding changes each number by at most 2^-24 of its magnitude",
    };
    Ok(format!("{ROWS} rows of each cache: {bound}; other nodes are the same"))
}

/// Checks that all nodes but the writers of the caches are the same, and that attention has the same inputs but for
/// queries, keys and values.
fn check_others(before: &Graph<'_>, after: &Graph<'_>, sites: &NarrowSites<'_, '_>) -> Result<(), OnnxError> {
    let writers: BTreeSet<usize> = sites.caches.iter().map(|site| site.writer.index()).collect();
    let readers: BTreeSet<usize> = sites.readers.iter().map(Node::index).collect();
    let kept = |node: &Node<'_>| -> NodeProto {
        let mut kept = node.proto().clone();
        kept.input.iter_mut().take(VALUES.saturating_add(1)).for_each(String::clear);
        kept
    };
    for node in before.nodes().iter().filter(|node| !writers.contains(&node.index())) {
        let Some((new, _)) = node.outputs().next().and_then(|output| after.producer(output)) else {
            continue;
        };
        let is_same = match readers.contains(&node.index()) {
            true => kept(node) == kept(&new),
            false => node.proto() == new.proto(),
        };
        if !is_same {
            return Err(new.error(differs(new.output(0).unwrap_or_default())));
        }
    }
    Ok(())
}

fn differs(value: &str) -> ConvertRefusal {
    ConvertRefusal::PassDiffers { pass: PASS, value: value.to_owned() }
}

/// The evaluation of the new graph.
struct Proof<'a, 'm> {
    fold: Fold<'m>,
    graph: &'a Graph<'m>,
}

impl Proof<'_, '_> {
    /// Checks what is stored of new rows, and what attention reads of it.
    fn rows(
        &mut self,
        asked: CacheType,
        site: &NarrowSite<'_, '_>,
        values: &NarrowValues,
    ) -> Result<(), OnnxError> {
        let cache = site.cache;
        let size = if site.size == 0 { CAST_SIZE } else { site.size };
        self.set_random(site.update, cache.element, vec![1, 1, ROWS, size], |numbers| {
            at_limits(numbers, size)
        })?;
        let given = self.floats(&values.rows)?;
        let stored = self.fold.value(&values.stored)?.clone();
        let is_asked = stored.element == asked.element();
        let is_read =
            |proof: &mut Self, expected: &mut dyn Iterator<Item = f64>| -> Result<bool, OnnxError> {
                let read = proof.floats(&values.read)?;
                Ok(expected.map(|number| round(cache.element, number)).eq(read))
            };
        let is_near = |given: f64, stored: f64, scale: f64| {
            let bound = largest_error(asked.element(), given, scale);
            bound.is_none_or(|bound| (given - stored).abs() <= bound)
        };
        let is_right = match (asked, &values.scale) {
            (CacheType::Int8, Some(scale)) => {
                let scales = self.fold.value(&scale.update)?.clone();
                let (codes, steps) = (self.floats(&values.stored)?, self.floats(&scale.update)?);
                let rows: Vec<_> = given.iter().map(|&number| round_to_f32(number)).collect();
                let (mut expected, mut numbers) = (vec![0; rows.len()], vec![0.0; rows.len()]);
                let expected_rows = expected.chunks_mut(size).zip(numbers.chunks_mut(size));
                let expected_steps = rows.chunks(size).zip(expected_rows).map(|(row, (codes, numbers))| {
                    let scale = quantize_row(row, codes);
                    dequantize_row(codes, scale, numbers);
                    f64::from(scale)
                });
                let is_rule =
                    expected_steps.eq(steps.iter().copied()) && expected.into_iter().map(f64::from).eq(codes);
                let numbers: Vec<_> = numbers.into_iter().map(f64::from).collect();
                let is_bound = steps.iter().zip(given.chunks(size)).zip(numbers.chunks(size)).all(
                    |((scale, given), stored)| given.iter().zip(stored).all(|(a, b)| is_near(*a, *b, *scale)),
                );
                self.fold.set(cache.present, stored)?;
                self.fold.set(&scale.present, scales)?;
                is_rule && is_bound && is_read(self, &mut numbers.into_iter())?
            }
            _ => {
                let numbers = self.floats(&values.stored)?;
                let is_bound = given.iter().zip(&numbers).all(|(a, b)| is_near(*a, *b, 0.0));
                self.fold.set(cache.present, stored)?;
                is_bound && is_read(self, &mut numbers.into_iter())?
            }
        };
        self.verdict(is_asked && is_right, &values.read)
    }

    /// Checks that the scores of rotated queries and keys are those of the exported ones.
    fn scores(
        &mut self,
        reader: &Node<'_>,
        (site, keys): (&NarrowSite<'_, '_>, &NarrowValues),
        [queries, rotated]: [&str; 2],
    ) -> Result<(), OnnxError> {
        let (element, size) = (site.cache.element, site.size.max(1));
        let keys_before = self.set_random(site.update, element, vec![1, 1, ROWS, size], |_| {})?;
        let keys_after = self.floats(&keys.rows)?;
        let shape = match nodes::flat_heads(reader) {
            Some(heads) => vec![1, 1, usize::try_from(heads).unwrap_or_default().saturating_mul(size)],
            None => vec![1, 1, ROWS, size],
        };
        let queries_before = self.set_random(queries, element, shape, |_| {})?;
        let queries_after = self.floats(rotated)?;
        let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let length = |a: &[f64]| product(a, a).sqrt();
        // A claim of no heads leaves nothing to compare.
        let is_right = !queries_before.is_empty()
            && queries_before.len() == queries_after.len()
            && queries_before.chunks(size).zip(queries_after.chunks(size)).all(|(query, turned)| {
                keys_before.chunks(size).zip(keys_after.chunks(size)).all(|(key, turned_key)| {
                    let difference = (product(query, key) - product(turned, turned_key)).abs();
                    difference <= rotation_error(element) * length(query) * length(key)
                })
            });
        self.verdict(is_right, rotated)
    }

    /// Sets a value to random numbers, changed in a way. Returns the numbers.
    fn set_random(
        &mut self,
        name: &str,
        element: ElementType,
        shape: Vec<usize>,
        change: impl FnOnce(&mut [f64]),
    ) -> Result<Vec<f64>, OnnxError> {
        if elements(&shape) > MAX_VALUES {
            return Err(differs(name).into());
        }
        let known = BTreeMap::from([(name.to_owned(), Value::shaped(element, shape)?)]);
        let Some(mut value) = with_random(&known)?.remove(name) else { return Err(differs(name).into()) };
        if let Some(Values::Floats(numbers)) = &mut value.data {
            // The random numbers are short, and a third of them needs rounding.
            numbers.iter_mut().for_each(|number| *number /= 3.0);
            change(numbers);
            numbers.iter_mut().for_each(|number| *number = round(element, *number));
        }
        let numbers = value.as_floats().unwrap_or_default().to_vec();
        self.fold.set(name, value)?;
        Ok(numbers)
    }

    /// Returns the numbers of a value that is computed.
    fn floats(&mut self, name: &str) -> Result<Vec<f64>, OnnxError> {
        let value = self.fold.value(name)?;
        Ok(match &value.data {
            Some(Values::Floats(numbers)) => numbers.clone(),
            Some(Values::Ints(codes)) => {
                codes.iter().map(|&code| int_to_float(ElementType::Float64, code)).collect()
            }
            _ => return Err(differs(name).into()),
        })
    }

    fn verdict(&self, is_right: bool, value: &str) -> Result<(), OnnxError> {
        match self.graph.producer(value) {
            _ if is_right => Ok(()),
            Some((node, _)) => Err(node.error(differs(value))),
            None => Err(differs(value).into()),
        }
    }
}

/// Puts some rows at the limits of the rule: zeros, numbers whose scale is the smallest, numbers between two codes, and
/// a row and its negative, one of which has its largest magnitude below zero.
fn at_limits(numbers: &mut [f64], size: usize) {
    let mut rows = numbers.chunks_mut(size);
    let mut row = || rows.next().unwrap_or_default();
    row().fill(0.0);
    row().iter_mut().for_each(|number| *number *= 2.0_f64.powi(-110));
    let (between, first, second) = (row(), row(), row());
    for (at, number) in between.iter_mut().enumerate().take(127) {
        *number = if at == 0 { 127.0 } else { to_float(at) + 0.5 };
    }
    first.iter().zip(second).for_each(|(number, negative)| *negative = -number);
}
