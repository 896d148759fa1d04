//! Builds a call of attention, from the few facts that a case names.

use super::case::{AttentionForm, CorpusCall, CorpusCase};
use crate::attention::{Array, Attention, Float, Inputs, Mask, Positions};
use crate::cases::attention::AttentionCase;
use crate::size;

/// A call of attention over a static cache.
#[derive(Clone)]
pub(super) struct Attend {
    attention: Attention,
    inputs: Inputs,
    form: AttentionForm,
}

/// The numbers that a call needs: samples, query heads, key heads, queries and slots.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    pub(super) slots: usize,
}

impl Sizes {
    /// One head.
    pub(super) fn new(batch: usize, queries: usize, slots: usize) -> Self {
        Self { batch, q_heads: 1, kv_heads: 1, queries, slots }
    }

    pub(super) fn heads(self, q_heads: usize, kv_heads: usize) -> Self {
        Self { q_heads, kv_heads, ..self }
    }
}

impl Attend {
    /// A call whose output names the slots that each query sees: keys are 0, so that all visible slots weigh the
    /// same, and the value of slot s is 2 to the power of s.
    pub(super) fn seen(sizes: Sizes) -> Self {
        let Sizes { batch, q_heads, kv_heads, queries, slots } = sizes;
        let rows = batch * kv_heads;
        let powers = (0..rows).flat_map(|_| (0..slots).map(|slot| 2_f64.powi(slot as i32))).collect();
        Self::new(
            Array::new(vec![1.0; batch * q_heads * queries * 2], &[batch, q_heads, queries, 2]),
            Array::new(vec![0.0; rows * slots * 2], &[batch, kv_heads, slots, 2]),
            Array::new(powers, &[batch, kv_heads, slots, 1]),
        )
    }

    /// A call over a long cache: keys are 0, and the `size` elements of the value of a slot are its index.
    pub(super) fn counted(sizes: Sizes, size: usize) -> Self {
        let Sizes { batch, q_heads, kv_heads, queries, slots } = sizes;
        let rows = batch * kv_heads;
        let indices = (0..rows * slots).flat_map(|row| std::iter::repeat_n((row % slots) as f64, size));
        Self::new(
            Array::new(vec![1.0; batch * q_heads * queries * size], &[batch, q_heads, queries, size]),
            Array::new(vec![0.0; rows * slots * size], &[batch, kv_heads, slots, size]),
            Array::new(indices.collect(), &[batch, kv_heads, slots, size]),
        )
    }

    /// A call with different queries, keys and values, with heads of 4 elements and values of `value_size`.
    pub(super) fn computed(sizes: Sizes, value_size: usize) -> Self {
        let Sizes { batch, q_heads, kv_heads, queries, slots } = sizes;
        Self::new(
            pattern(3, &[batch, q_heads, queries, 4]),
            pattern(5, &[batch, kv_heads, slots, 4]),
            pattern(7, &[batch, kv_heads, slots, value_size]),
        )
    }

    fn new(q: Array<f64>, k: Array<f64>, v: Array<f64>) -> Self {
        let inputs = Inputs {
            element: Float::F32,
            q,
            k,
            v,
            mask: None,
            past_key: None,
            past_value: None,
            positions: Positions::Full,
        };
        let form = AttentionForm { operator_set: 24, has_present: false };
        Self { attention: Attention::default(), inputs, form }
    }

    /// Sets `nonpad_kv_seqlen`.
    pub(super) fn lengths(mut self, lengths: &[i64]) -> Self {
        self.inputs.positions = Positions::Lengths(lengths.to_vec());
        self
    }

    /// Sets `is_causal`.
    pub(super) fn causal(mut self) -> Self {
        self.attention.is_causal = true;
        self
    }

    /// Sets a boolean mask. `shown` contains a character for each element, which is `x` where a slot is shown.
    pub(super) fn shows(mut self, shape: &[usize], shown: &str) -> Self {
        let shown: Vec<_> = shown.chars().filter(|c| !c.is_whitespace()).map(|c| c == 'x').collect();
        self.inputs.mask = Some(Mask::Bool(Array::new(shown, shape)));
        self
    }

    /// Sets a mask of numbers.
    pub(super) fn bias(mut self, shape: &[usize], values: &[f64]) -> Self {
        self.inputs.mask = Some(Mask::Float(Array::new(values.to_vec(), shape)));
        self
    }

    /// Changes attributes, inputs or the operator set in a way that few cases need.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Attention, &mut Inputs)) -> Self {
        change(&mut self.attention, &mut self.inputs);
        self
    }

    pub(super) fn operator_set(mut self, version: i64) -> Self {
        self.form.operator_set = version;
        self
    }

    /// Requests the outputs `present_key` and `present_value`.
    pub(super) fn present(mut self) -> Self {
        self.form.has_present = true;
        self
    }

    /// Changes the element type, and rounds the inputs.
    pub(super) fn element(mut self, element: Float) -> Self {
        let Inputs { q, k, v, .. } = &mut self.inputs;
        for array in [q, k, v] {
            array.data.iter_mut().for_each(|value| *value = element.round(*value));
        }
        self.inputs.element = element;
        self
    }

    /// Overwrites the keys and values of these slots of a sample.
    pub(super) fn poison(mut self, sample: usize, slots: &[usize], key: f64, value: f64) -> Self {
        for (array, poison) in [(&mut self.inputs.k, key), (&mut self.inputs.v, value)] {
            let [_, heads, rows, columns] = [0, 1, 2, 3].map(|dimension| array.shape[dimension]);
            for (head, slot) in (0..heads).flat_map(|head| slots.iter().map(move |&slot| (head, slot))) {
                let start = ((sample * heads + head) * rows + slot) * columns;
                array.data[start..start + columns].fill(poison);
            }
        }
        self
    }

    pub(super) fn case(self, rule: &'static str, name: &'static str, what: &'static str) -> CorpusCase {
        let Self { attention, inputs, form } = self;
        let case = AttentionCase { name: format!("{rule}/{name}"), attention, inputs, painted: false };
        CorpusCase { rule, name, what, call: CorpusCall::Attention(Box::new(case), form) }
    }
}

/// Returns different small numbers, all multiples of a quarter between -1.5 and 1.5.
pub(super) fn pattern(step: usize, shape: &[usize]) -> Array<f64> {
    let values = (0..size(shape)).map(|n| ((n * step + n / 13) % 13) as f64 / 4.0 - 1.5);
    Array::new(values.collect(), shape)
}
