//! Cases of writes into paged caches, in index space.

use super::exhaustive::tuples;
use super::{Origin, Random};
use crate::paged::{PagedRefusal, PagedWrite};
use crate::{Outcome, Tensor, size};

/// A write into a paged cache, to be tested with elements of every width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedCase {
    /// The operator.
    pub operator: PagedWrite,
    /// The shape of the cache.
    pub cache_shape: Vec<usize>,
    /// The shape of the update.
    pub update_shape: Vec<usize>,
    /// The slot of each token.
    pub slot_mapping: Vec<i64>,
}

impl PagedCase {
    /// Runs the oracle. The outcome contains the origin of each element of the cache.
    ///
    /// # Errors
    /// Returns the first rule that the call breaks.
    pub fn run_on_origins(&self) -> Result<Outcome<Origin>, PagedRefusal> {
        let Self { operator, cache_shape, update_shape, slot_mapping } = self;
        let (cache, update) = Origin::tensors(size(cache_shape), size(update_shape));
        operator.run(Tensor::new(&cache, cache_shape), Tensor::new(&update, update_shape), slot_mapping)
    }
}

/// Returns every write of up to 3 tokens into a cache of up to 3 blocks of up to 3 slots, two heads and head
/// size 1, in both layouts and with both policies. The slots are all lists of numbers from -1 to the first slot
/// that does not exist.
pub fn exhaustive() -> impl Iterator<Item = PagedCase> {
    let sizes = (0..=3).flat_map(|blocks| (0..=3).map(move |block_size| (blocks, block_size)));
    sizes.flat_map(|(blocks, block_size)| {
        (0..=3).flat_map(move |tokens| {
            let slots = (blocks * block_size) as i64;
            tuples(tokens, -1..=slots).into_iter().flat_map(move |slot_mapping| {
                let layouts = [(1, [blocks, block_size, 2, 1]), (2, [blocks, 2, block_size, 1])];
                layouts.into_iter().flat_map(move |(axis, cache_shape)| {
                    let slot_mapping = slot_mapping.clone();
                    [false, true].into_iter().map(move |skip_negative| PagedCase {
                        operator: PagedWrite { axis, skip_negative },
                        cache_shape: cache_shape.to_vec(),
                        update_shape: vec![tokens, 2, 1],
                        slot_mapping: slot_mapping.clone(),
                    })
                })
            })
        })
    })
}

/// Returns a random write of up to 40 tokens, which breaks a rule in about one of four cases.
///
/// The cache has 2 to 5 dimensions. Slots come in runs, in any order, as engines give them to prompts and to new
/// tokens.
#[must_use]
pub fn random(seed: u64) -> PagedCase {
    let r = &mut Random::new(seed, 0);
    let rank = r.between(2, 5);
    let axis = r.between(1, rank - 1);
    let mut cache_shape = r.many(rank, |r| r.pick(&[1, 1, 2, 3, 4]));
    (cache_shape[0], cache_shape[axis]) = (r.between(1, 12), r.pick(&[1, 2, 3, 4, 8]));
    let slots = cache_shape[0] * cache_shape[axis];
    let skip_negative = r.below(2) == 0;

    let mut free = vec![true; slots];
    let mut slot_mapping = Vec::new();
    for _ in 0..r.between(0, 8) {
        let (first, count) = (r.below(slots), r.between(1, 5));
        for (slot, is_free) in free.iter_mut().enumerate().skip(first).take(count) {
            if std::mem::take(is_free) {
                slot_mapping.push(slot as i64);
            }
        }
        if skip_negative && r.below(3) == 0 {
            slot_mapping.push(r.pick(&[-1, -7, i64::MIN]));
        }
    }
    if !slot_mapping.is_empty() && r.below(4) == 0 {
        let (broken, other) = (r.below(slot_mapping.len()), r.pick(&slot_mapping));
        slot_mapping[broken] = r.pick(&[-1, slots as i64, i64::MAX, i64::MIN, 1 << 32, other]);
    }
    let tokens = slot_mapping.len();
    let mut update_shape = cache_shape.clone();
    update_shape.remove(axis);
    update_shape[0] = tokens;
    let axis = axis as i64 - if r.below(2) == 0 { rank as i64 } else { 0 };
    let mut case =
        PagedCase { operator: PagedWrite { axis, skip_negative }, cache_shape, update_shape, slot_mapping };
    match r.below(40) {
        0 => case.update_shape.push(1),
        1 => drop(case.update_shape.pop()),
        2 => case.operator.axis = r.pick(&[0, rank as i64, -(rank as i64), i64::MIN, i64::MAX]),
        3 => case.slot_mapping.push(0),
        4 => *case.update_shape.last_mut().unwrap_or(&mut 0) += 1,
        _ => {}
    }
    case
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{exhaustive, random};
    use crate::cases::tests::variant_name;

    #[test]
    fn the_domain_is_as_large_as_it_says() {
        let sizes = (0..=3_usize).flat_map(|blocks| (0..=3).map(move |block_size| blocks * block_size + 2));
        let lists = sizes.map(|values| 1 + values + values.pow(2) + values.pow(3));
        assert_eq!(exhaustive().count(), 4 * lists.sum::<usize>());
    }

    #[test]
    fn every_rule_of_a_write_is_broken_and_most_cases_write() {
        let mut broken = BTreeSet::new();
        let mut written = 0;
        for seed in 0..10_000 {
            match random(seed).run_on_origins() {
                Ok(outcome) => written += usize::from(outcome.present.iter().any(|o| o.written().is_some())),
                Err(refusal) => drop(broken.insert(variant_name(&refusal))),
            }
        }
        assert!((5_000..9_000).contains(&written), "{written}");
        let rules = "Axis Count Dimension DuplicateSlot NegativeSlot SlotOutOfRange UpdateRank";
        assert_eq!(Vec::from_iter(broken).join(" "), rules);
    }
}
