//! The core of every attention: values, weighted by the softmax of scores.

use kvscatter::ElementType;

use super::bias::Bias;
use super::heads::{Heads, Place, Rows};
use crate::OnnxError;
use crate::fold::call::Call;
use crate::fold::number::{round, to_float};

/// An attention of queries to keys and values. Several heads of queries may share a head of keys and values.
pub(super) struct Weighted<'a> {
    pub(super) queries: Rows<'a>,
    pub(super) keys: Rows<'a>,
    pub(super) values: Rows<'a>,
    /// The factor of each product of a query and a key.
    pub(super) scale: f64,
    /// The limit of the magnitude of each score, or 0.
    pub(super) cap: f64,
    /// What is added to each score after the cap.
    pub(super) bias: Bias,
    /// The type to which the result is rounded.
    pub(super) element: ElementType,
}

impl Weighted<'_> {
    /// Computes `[batch, heads, queries, size]` in float64. `sink` is a score of each head that has no value.
    ///
    /// A query that sees no key gives zeros, as onnx 1.23 corrected.
    ///
    /// # Errors
    /// Returns an error if the heads of the keys do not divide those of the queries, or if it is too much
    /// work.
    pub(super) fn output(
        &self,
        call: &Call<'_>,
        sink: impl Fn(usize) -> f64,
    ) -> Result<Rows<'static>, OnnxError> {
        let shared = self.shared(call, self.values.heads.size)?;
        let Self { queries, values, element, .. } = self;
        let heads = Heads { size: values.heads.size, ..queries.heads };
        Ok(Rows::make(heads, |place| {
            let scores: Vec<f64> = self.scores(place, shared).collect();
            let sink = sink(place.head);
            let most = scores.iter().copied().fold(sink, f64::max);
            let mut total = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - most).exp() };
            let mut sums = vec![0.0; values.heads.size];
            for (slot, score) in scores.into_iter().enumerate().filter(|(_, it)| *it != f64::NEG_INFINITY) {
                let weight = (score - most).exp();
                total += weight;
                let row = values.at(of_key(place, shared, slot));
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
            let least = if total == 0.0 { 1.0 } else { total };
            sums.into_iter().map(move |sum| round(*element, sum / least))
        }))
    }

    /// Computes the scores after the cap and the bias, `[batch, heads, queries, keys]`.
    pub(super) fn masked(&self, call: &Call<'_>) -> Result<Vec<f64>, OnnxError> {
        let shared = self.shared(call, 0)?;
        let rows = self.queries.heads.places().flat_map(|place| self.scores(place, shared));
        Ok(rows.map(|score| round(self.element, score)).collect())
    }

    /// Returns the number of heads of queries that share a head of keys, and charges the work of all scores
    /// and of `more` products for each of them.
    fn shared(&self, call: &Call<'_>, more: usize) -> Result<usize, OnnxError> {
        let (q, k) = (self.queries.heads, self.keys.heads);
        let shared = q.heads.checked_div(k.heads).filter(|it| it.checked_mul(k.heads) == Some(q.heads));
        let shared =
            shared.ok_or_else(|| call.bad_shape(1, "a number of heads that divides the queries'"))?;
        let products = [q.batch, q.heads, q.length, k.length, k.size.saturating_add(more)];
        call.work.charge(products.into_iter().fold(1, usize::saturating_mul))?;
        Ok(shared)
    }

    /// Returns the scores of a query, one for each key.
    fn scores(&self, place: Place, shared: usize) -> impl Iterator<Item = f64> {
        let Self { queries, keys, scale, cap, bias, .. } = self;
        (0..keys.heads.length).map(move |slot| {
            let products = queries.at(place).iter().zip(keys.at(of_key(place, shared, slot)));
            let score = scale * products.map(|(q, k)| q * k).sum::<f64>();
            let score = if *cap > 0.0 { cap * (score / cap).tanh() } else { score };
            score + bias.at(place, slot)
        })
    }
}

/// Returns the place of a key or a value for a query.
fn of_key(place: Place, shared: usize, slot: usize) -> Place {
    Place { head: place.head.checked_div(shared).unwrap_or_default(), token: slot, ..place }
}

/// Returns the score of a sink in a softmax without one.
pub(super) fn no_sink(_head: usize) -> f64 {
    f64::NEG_INFINITY
}

/// Returns the scale of ONNX Runtime's operators for heads of this size. 0 stands for the default.
pub(super) fn scale(call: &Call<'_>, size: usize) -> Result<f64, OnnxError> {
    let scale = call.float("scale", 0.0)?;
    Ok(if scale == 0.0 { default_scale(size) } else { scale })
}

/// Returns the scale for heads of this size.
pub(super) fn default_scale(size: usize) -> f64 {
    to_float(size).sqrt().recip()
}
