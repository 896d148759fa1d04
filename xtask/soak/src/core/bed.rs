//! A prepared operator, its buffers, and calls of it.

use std::fmt;

use kvscatter::{ElementType, Error, Prepared};
use kvscatter_oracle::SampleRows;
use kvscatter_oracle::cases::{Call, Element, Random, View};

use super::call;
use super::lists::Limits;
use super::memory::Memory;
use super::shapes::Shapes;
use super::view::AsLayout;
use crate::tally::Tally;

/// The number of guard elements. It is even, so that a buffer of nibbles begins on a byte.
const GUARD: usize = 2;

pub(super) struct Bed {
    call: Call,
    prepared: Prepared,
    element: ElementType,
    cache: View,
    update: View,
    /// The offsets of the elements of each row in the buffers of the cache and of the update.
    rows: [Vec<Vec<usize>>; 2],
    /// The slots of one layer of the cache, and the number of slots of one sample.
    layer: usize,
    capacity: usize,
    memory: Memory,
    limits: Limits,
}

impl Bed {
    /// Prepares a random operator. Returns `None` if it cannot be prepared, for the reason that the oracle gives.
    pub(super) fn random(r: &mut Random, large: bool) -> Option<Self> {
        let shapes = Shapes::random(r, large);
        let call = &shapes.call;
        let elements: Vec<_> =
            Element::all().iter().filter(|e| call.check_elements([e, e]).is_ok()).collect();
        let named = r.pick(&elements);
        let element = ElementType::from_name(named.name)?;
        let cache = if is_strided(r, &shapes.cache) {
            View::strided(&shapes.cache, GUARD, r)
        } else {
            View::dense(&shapes.cache, GUARD)
        };
        let update = if is_strided(r, &shapes.update) {
            View::broadcast(&shapes.update, GUARD, r)
        } else {
            View::dense(&shapes.update, GUARD)
        };
        let prepared = match call::prepare(call, element, cache.layout(), update.layout()) {
            Ok(prepared) => prepared,
            // The oracle does not know how tensors lie in memory.
            Err(Error::TooManyLoops { loops }) if loops > 3 => return None,
            Err(error) => {
                let refusal = call.samples(&shapes.cache, &shapes.update);
                let refusal =
                    refusal.map_err(|r| call::error(&r, call, &shapes.cache, &shapes.update, element));
                assert_eq!(refusal, Err(error), "prepare {call:?} on {cache:?} and {update:?}");
                return None;
            }
        };
        let [cache_dimensions, update_dimensions] = shapes.row_dimensions();
        let capacity = shapes.capacity();
        let (layers, layer) = match (call, shapes.cache.as_slice()) {
            (Call::KvCacheOperation { .. }, [layers, batch, ..]) => (*layers, batch * capacity),
            _ => (1, 0),
        };
        Some(Self {
            rows: [rows(&cache, &cache_dimensions), rows(&update, &update_dimensions)],
            layer,
            capacity,
            memory: Memory::new(named, &cache, &update),
            limits: Limits { capacity, layers, rows: shapes.rows },
            call: shapes.call,
            prepared,
            element,
            cache,
            update,
        })
    }

    /// Plans one call, and compares the plan and what it writes with the oracle.
    pub(super) fn plan(&mut self, r: &mut Random, tally: &mut Tally) {
        self.limits.redraw(r, &mut self.call);
        let expected = self.call.samples(self.cache.shape(), self.update.shape());
        let checked = match (call::plan(&self.prepared, &self.call), expected) {
            (Ok(plan), Ok(samples)) => {
                tally.accepted += 1;
                let skipped = samples.iter().filter(|sample| sample.slots.is_none()).count();
                if plan.skipped() != skipped {
                    Err(format!("{} samples are skipped, expected {skipped}", plan.skipped()))
                } else if r.below(64) == 0 {
                    self.memory.check_short(&plan)
                } else {
                    let placed =
                        Placed { rows: &self.rows, first: self.first_row(), capacity: self.capacity };
                    self.memory.check(&plan, |copy| placed.each(&samples, copy))
                }
            }
            (Err(error), Err(refusal)) => {
                tally.refused += 1;
                let (cache, update) = (self.cache.shape(), self.update.shape());
                let expected = call::error(&refusal, &self.call, cache, update, self.element);
                if error == expected { Ok(()) } else { Err(format!("{error:?}, expected {expected:?}")) }
            }
            (plan, expected) => Err(format!("{:?}, expected {expected:?}", plan.map(|_| "a plan"))),
        };
        if let Err(difference) = checked {
            panic!("{self:?}\n{difference}");
        }
    }

    /// Returns the number of the cache's row for slot 0 of the first sample.
    fn first_row(&self) -> usize {
        match &self.call {
            Call::KvCacheOperation { layer_id, .. } => {
                layer_id.first().map_or(0, |&layer| layer as usize * self.layer)
            }
            _ => 0,
        }
    }
}

impl fmt::Debug for Bed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, element, cache, update, .. } = self;
        write!(f, "{call:?}\n{element:?}\ncache {cache:?}\nupdate {update:?}")
    }
}

/// Where the rows of a call are.
struct Placed<'a> {
    rows: &'a [Vec<Vec<usize>>; 2],
    first: usize,
    capacity: usize,
}

impl Placed<'_> {
    /// Passes the elements of every row that is written to `copy`, with the elements of the update's row.
    fn each(&self, samples: &[SampleRows], copy: &mut dyn FnMut(&[usize], &[usize])) {
        let [cache, update] = self.rows;
        let mut row = 0;
        for (sample, SampleRows { rows, slots }) in samples.iter().enumerate() {
            let first = self.first + sample * self.capacity;
            for (written, &slot) in slots.iter().flatten().enumerate() {
                copy(&cache[first + slot], &update[row + written]);
            }
            row += rows;
        }
    }
}

fn is_strided(r: &mut Random, shape: &[usize]) -> bool {
    !shape.is_empty() && r.below(3) == 0
}

/// Returns the offsets of the elements of each row. The indices of these dimensions number the rows.
fn rows(view: &View, dimensions: &[usize]) -> Vec<Vec<usize>> {
    let shape = view.shape();
    let mut rows = vec![Vec::new(); dimensions.iter().map(|&dimension| shape[dimension]).product()];
    for (mut flat, place) in view.places().into_iter().enumerate() {
        let mut index = vec![0; shape.len()];
        for (i, &size) in index.iter_mut().zip(shape).rev() {
            *i = flat % size;
            flat /= size;
        }
        let row = dimensions.iter().fold(0, |row, &dimension| row * shape[dimension] + index[dimension]);
        rows[row].push(place);
    }
    rows
}
