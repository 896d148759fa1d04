use super::{Case, Element, Origin, Values, View};
use crate::{Outcome, Refusal};

/// A [`Case`] in memory. It contains the whole buffers of both tensors, with their guards, before and after
/// the call.
///
/// Strings are stored as 8-byte numbers, which stand for handles of a caller's strings.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The view of the cache in its buffer.
    pub cache: View,
    /// The view of the update in its buffer.
    pub update: View,
    /// The types in which the elements of the cache and of the update are stored.
    pub stored: [&'static Element; 2],
    /// The buffer of the cache before the call.
    pub past: Values,
    /// The buffer of the update.
    pub new: Values,
    /// The buffers after the call, or the rule that the call breaks. It then changes nothing.
    pub expected: Result<After, Refusal>,
}

/// The buffers after a call that does not break a rule.
#[derive(Clone, Debug)]
pub struct After {
    /// The buffer of the cache after a write in place.
    pub in_place: Values,
    /// The dense present after a write in functional form.
    pub present: Values,
    /// The number of samples left unchanged.
    pub skipped: usize,
}

impl Case {
    /// Returns the same call on tensors with these views. Whole buffers are painted.
    #[must_use]
    pub fn placed(&self, cache: View, update: View) -> Placed {
        let stored = self.elements.map(|element| match element.bits {
            Some(_) => element,
            None => Element::named("uint64").unwrap_or(element),
        });
        let past = Values::painted(stored[0], 0, cache.total());
        let new = Values::painted(stored[1], cache.total(), update.total());
        let outcome = self
            .call
            .check_elements(self.elements)
            .and_then(|()| self.call.run_on_origins(&self.cache_shape, &self.update_shape));
        let expected = outcome.map(|Outcome { present, skipped }| {
            let (slots, rows) = (cache.places(), update.places());
            let mut buffer: Vec<_> = (0..cache.total()).map(Origin::Cache).collect();
            let mut dense = Vec::with_capacity(present.len());
            for (&slot, origin) in slots.iter().zip(present) {
                let origin = match origin {
                    Origin::Cache(kept) => Origin::Cache(slots[kept]),
                    Origin::Update(written) => Origin::Update(rows[written]),
                };
                buffer[slot] = origin;
                dense.push(origin);
            }
            After {
                in_place: Values::gathered(stored[0], &buffer, &past, &new),
                present: Values::gathered(stored[0], &dense, &past, &new),
                skipped,
            }
        });
        Placed { cache, update, stored, past, new, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, View, cases};

    #[test]
    fn a_dense_case_without_guards_is_the_case() {
        for case in cases(5, 600).filter(|case| case.elements[0].bits.is_some()) {
            let placed = case.placed(View::dense(&case.cache_shape, 0), View::dense(&case.update_shape, 0));
            match (&placed.expected, &case.expected) {
                (Ok(after), Ok(expected)) => {
                    assert_eq!([&after.in_place, &after.present], [&expected.present; 2], "{case:?}");
                    assert_eq!(after.skipped, expected.skipped, "{case:?}");
                }
                (placed, case) => assert_eq!(placed.as_ref().err(), case.as_ref().err()),
            }
        }
    }

    #[test]
    fn guards_stay_as_they_are() {
        let case = cases(6, 1).next().unwrap();
        let placed = case.placed(View::dense(&case.cache_shape, 2), View::dense(&case.update_shape, 2));
        let (past, after) = (&placed.past, &placed.expected.unwrap().in_place);
        let ends = |values| {
            let last = placed.cache.total() - 1;
            let origins = [0, 1, last - 1, last].map(Origin::Cache);
            super::Values::gathered(case.elements[0], &origins, values, &placed.new)
        };
        assert_eq!(ends(past), ends(after));
        assert_ne!(past, after);
    }
}
