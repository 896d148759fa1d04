//! Determines whether the keys and values of attention are whole caches, and in which order.
//!
//! Exporters repeat each head of a cache for the queries that share it. `Attention` does this by itself, so it can read
//! the cache instead. The nodes between are evaluated on a cache whose numbers all differ.

use std::iter::repeat_n;
use std::rc::Rc;

use super::site::AttentionOverCaches;
use crate::convert::kept::{KeptForm, KeptReason};
use crate::convert::probe::Inputs;
use crate::convert::refusal::ConvertRefusal;
use crate::convert::sample_numbers::{is_by_sample, numbered_by_sample};
use crate::decoder::Cache;
use crate::fold::{Budget, Fold, MAX_VALUES, Value, Values, elements, to_float};
use crate::onnx_attention::{KEYS, VALUES};
use crate::{ExternalData, Graph, OnnxError};

/// The number of samples of the evaluation if the model does not fix it.
const BATCH: usize = 2;

/// An evaluation of the exported graph on a small probe. Its work has a common limit for all caches.
pub(in crate::convert) struct WholeCaches<'m>(Fold<'m>);

impl<'m> WholeCaches<'m> {
    pub(in crate::convert) fn new(
        graph: &Graph<'m>,
        inputs: &Inputs<'m>,
        external: Option<&Rc<ExternalData>>,
    ) -> Result<Self, OnnxError> {
        let mut fold = Fold::with(graph, external, Some(Rc::new(Budget::new())));
        inputs.probe(BATCH, 1, 1).feed(inputs, &mut fold)?;
        Ok(Self(fold))
    }

    /// Checks that keys and values are these caches, and repeat their heads equally many times.
    ///
    /// # Errors
    /// Returns the reason why the node cannot read the caches in their place.
    pub(in crate::convert) fn check(
        &mut self,
        attention: &AttentionOverCaches<'m>,
        caches: [&Cache<'m>; 2],
    ) -> Result<(), KeptReason> {
        let heads = attention.node.attribute("kv_num_heads").and_then(|heads| usize::try_from(heads.i?).ok());
        let mut times = Vec::new();
        for (slot, cache) in [KEYS, VALUES].into_iter().zip(caches) {
            times.push(self.repetition(cache, attention.node.input(slot).unwrap_or_default(), heads)?);
        }
        match *times {
            _ if attention.is_scaled => Err(KeptForm::ScaledCache.into()),
            [Some(keys), Some(values)] if keys == values => Ok(()),
            _ => Err(KeptForm::PartOfCache.into()),
        }
    }

    /// Checks that keys `[batch * heads, ..]` are those of sample 0, then those of sample 1, and so on.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::ScoresShape`] if they are in another order, or are not known.
    /// * Returns the errors of [`Fold::value`].
    pub(in crate::convert) fn check_order(&mut self, cache: &Cache<'m>, keys: &str) -> Result<(), OnnxError> {
        let Value { element, ref shape, .. } = *self.0.value(cache.written)?;
        let shape = shape.clone();
        self.0.set(cache.written, numbered_by_sample(element, shape.clone())?)?;
        let keys = self.0.value(keys)?;
        let rank = keys.rank();
        let is_ordered = is_by_sample(keys, shape.first().copied().unwrap_or_default());
        self.0.set(cache.written, Value::shaped(element, shape)?)?;
        if is_ordered { Ok(()) } else { Err(ConvertRefusal::ScoresShape { rank }.into()) }
    }

    /// Returns how many times keys or values have each head of a cache in a row, or `None` if they are something else.
    /// They are `[batch, heads, slots, head size]`, or `[batch, slots, heads * head size]` with this number of heads.
    ///
    /// # Errors
    /// Returns the errors of [`Fold::value`].
    fn repetition(
        &mut self,
        cache: &Cache<'m>,
        read: &str,
        heads: Option<usize>,
    ) -> Result<Option<usize>, OnnxError> {
        let Value { element, ref shape, .. } = *self.0.value(cache.written)?;
        let shape = shape.clone();
        let count = elements(&shape);
        let &[_, own_heads, slots, size] = shape.as_slice() else { return Ok(None) };
        if count > MAX_VALUES || self.0.value(read)?.element != element {
            return Ok(None);
        }
        let numbers: Vec<_> = (0..count).map(to_float).collect();
        self.0
            .set(cache.written, Value::new(element, shape.clone(), Some(Values::Floats(numbers.clone())))?)?;
        let value = self.0.value(read)?;
        let (heads, is_flat) = match *value.shape.as_slice() {
            [_, heads, _, _] => (Some(heads), false),
            _ => (heads, true),
        };
        let times = heads.and_then(|heads| heads.checked_div(own_heads)).unwrap_or_default();
        // The model may claim any number of heads, but no more of them than there are numbers.
        let found = value.as_floats().filter(|found| Some(found.len()) == count.checked_mul(times));
        let is_whole = found.is_some_and(|found| {
            rows(&numbers, [own_heads, slots, size], times, is_flat).into_iter().flatten().eq(found)
        });
        // The numbers are not needed for other caches.
        self.0.set(cache.written, Value::shaped(element, shape)?)?;
        Ok(is_whole.then_some(times))
    }
}

/// Returns the rows of a cache, each head repeated this many times. They are in the order of
/// `[batch, slots, heads, head size]` if `is_flat`, and of `[batch, heads, slots, head size]` otherwise.
fn rows(numbers: &[f64], [heads, slots, size]: [usize; 3], times: usize, is_flat: bool) -> Vec<&[f64]> {
    let of_head = slots.saturating_mul(size).max(1);
    let mut rows = Vec::new();
    for sample in numbers.chunks(heads.saturating_mul(of_head).max(1)) {
        let by_head = sample.chunks(of_head).flat_map(|head| repeat_n(head, times));
        if !is_flat {
            rows.extend(by_head);
            continue;
        }
        let by_head: Vec<_> = by_head.collect();
        for slot in 0..slots {
            rows.extend(by_head.iter().filter_map(|head| head.chunks(size.max(1)).nth(slot)));
        }
    }
    rows
}
