//! The core of every attention: values, weighted by the softmax of scores.

use kvscatter::ElementType;

use super::heads::{Heads, Place, Rows};
use crate::OnnxError;
use crate::fold::call::Call;
use crate::fold::number::round;

/// An attention of queries to keys and values. Several heads of queries may share a head of keys and values.
pub(super) struct Weighted<'a> {
    pub(super) queries: Rows<'a>,
    pub(super) keys: Rows<'a>,
    pub(super) values: Rows<'a>,
    /// The factor of each product of a query and a key.
    pub(super) scale: f64,
    /// The limit of the magnitude of each score, or 0.
    pub(super) cap: f64,
    /// The type to which the result is rounded.
    pub(super) element: ElementType,
}

impl Weighted<'_> {
    /// Computes `[batch, heads, queries, size]` in float64. `bias` is added to each score after the cap, and
    /// `sink` is a score of each head that has no value.
    ///
    /// A query that sees no key gives zeros, as onnx 1.23 corrected.
    ///
    /// # Errors
    /// Returns an error if the heads of the keys do not divide those of the queries, or if it is too much
    /// work.
    pub(super) fn output(
        &self,
        call: &Call<'_>,
        bias: impl Fn(Place, usize) -> f64,
        sink: impl Fn(usize) -> f64,
    ) -> Result<Rows<'static>, OnnxError> {
        let Self { queries, keys, values, scale, cap, element } = self;
        let (q, k, v) = (queries.heads, keys.heads, values.heads);
        let shared = q.heads.checked_div(k.heads).filter(|it| it.checked_mul(k.heads) == Some(q.heads));
        let shared =
            shared.ok_or_else(|| call.bad_shape(1, "a number of heads that divides the queries'"))?;
        let products = [q.batch, q.heads, q.length, k.length, k.size.saturating_add(v.size)];
        call.work.charge(products.into_iter().fold(1, usize::saturating_mul))?;
        let mut output = Vec::new();
        for place in q.places() {
            let row = queries.at(place);
            let at = |slot| Place {
                head: place.head.checked_div(shared).unwrap_or_default(),
                token: slot,
                ..place
            };
            let score = |slot| {
                let score = scale * row.iter().zip(keys.at(at(slot))).map(|(q, k)| q * k).sum::<f64>();
                let score = if *cap > 0.0 { cap * (score / cap).tanh() } else { score };
                score + bias(place, slot)
            };
            let scores: Vec<f64> = (0..k.length).map(score).collect();
            let sink = sink(place.head);
            let most = scores.iter().copied().fold(sink, f64::max);
            let mut total = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - most).exp() };
            let mut sums = vec![0.0; v.size];
            for (slot, score) in scores.into_iter().enumerate().filter(|(_, it)| *it != f64::NEG_INFINITY) {
                let weight = (score - most).exp();
                total += weight;
                sums.iter_mut().zip(values.at(at(slot))).for_each(|(sum, value)| *sum += weight * value);
            }
            let least = if total == 0.0 { 1.0 } else { total };
            output.extend(sums.iter().map(|sum| round(*element, sum / least)));
        }
        Ok(Rows { heads: Heads { size: v.size, ..q }, elements: output.into() })
    }
}

/// Returns the score of a sink in a softmax without one.
pub(super) fn no_sink(_head: usize) -> f64 {
    f64::NEG_INFINITY
}
