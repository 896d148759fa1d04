//! Builds a call of attention, from the few facts that a case names.

use super::case::{AttentionForm, CorpusCall, CorpusCase};
use super::fields::{Fields, list, parsed, wrong};
use crate::attention::{Array, Attention, Float, Inputs, Mask, Positions};
use crate::cases::attention::AttentionCase;
use crate::size;

/// A call of attention over a static cache.
pub(super) struct Attend {
    attention: Attention,
    inputs: Inputs,
    form: AttentionForm,
}

impl Attend {
    /// Reads a call, which `rules.txt` describes.
    pub(super) fn read(text: &str) -> Self {
        let mut fields = Fields::new(text);
        let type_name = fields.text("type").unwrap_or("float");
        let element = Float::ALL.into_iter().find(|element| element.name() == type_name);
        let element = element.unwrap_or_else(|| wrong(text));
        let [q_heads, kv_heads] = fields.numbers("heads").unwrap_or([1, 1]);
        let is_flat = fields.kind == "flat";
        let [mut q, mut k, mut v] = tensors(&mut fields, [q_heads, kv_heads]);
        for array in [&mut q, &mut k, &mut v] {
            array.data.iter_mut().for_each(|value| *value = element.round(*value));
        }
        if let Some(poison) = fields.text("poison") {
            let mut parts = poison.split(':');
            let mut part = || parts.next().unwrap_or_else(|| wrong(text));
            let (sample, slots) = (parsed(part()), list(part()));
            for array in [&mut k, &mut v] {
                overwrite(array, sample, &slots, parsed(part()));
            }
        }
        for (array, name, value) in [(&mut q, "queries", 1.0), (&mut k, "keys", 0.0), (&mut v, "values", 0.0)]
        {
            if let Some(shape) = fields.list::<usize>(name) {
                *array = Array::new(vec![value; size(&shape)], &shape);
            }
        }
        let mask = fields.text("mask").map(shown).or(fields.text("bias").map(|text| bias(text, element)));
        let positions = fields.list("lengths").map_or(Positions::Full, Positions::Lengths);
        let attention = Attention {
            is_causal: fields.value("causal").unwrap_or_default(),
            left_window_size: fields.value("left").unwrap_or(-1),
            right_window_size: fields.value("right").unwrap_or(-1),
            scale: fields.value("scale"),
            softcap: fields.value("softcap").unwrap_or_default(),
            q_num_heads: is_flat.then_some(q_heads as i64),
            kv_num_heads: is_flat.then_some(kv_heads as i64),
            ..Attention::default()
        };
        let form = AttentionForm {
            operator_set: fields.value("operator_set").unwrap_or(24),
            has_present: fields.value("present").unwrap_or_default(),
        };
        fields.finish();
        let inputs = Inputs { element, q, k, v, mask, past_key: None, past_value: None, positions };
        Self { attention, inputs, form }
    }

    /// Changes inputs in a way that few cases need.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Inputs)) -> Self {
        change(&mut self.inputs);
        self
    }

    pub(super) fn case(self, rule: &'static str, name: &'static str, what: &'static str) -> CorpusCase {
        let Self { attention, inputs, form } = self;
        let case = AttentionCase { name: format!("{rule}/{name}"), attention, inputs, painted: false };
        CorpusCase { rule, name, what, call: CorpusCall::Attention(Box::new(case), form) }
    }
}

/// Returns the queries, the keys and the values.
fn tensors(fields: &mut Fields<'_>, [q_heads, kv_heads]: [usize; 2]) -> [Array<f64>; 3] {
    let [batch, queries, slots] = fields.numbers("sizes").unwrap_or_else(|| wrong(fields.kind));
    let (key_size, value_size) = (fields.value("key_size").unwrap_or(4), fields.value("size").unwrap_or(2));
    // Queries of 1 and keys of 0, with the value that a slot has in each head.
    let equal = |key_size: usize, value_size: usize, value: fn(usize) -> f64| {
        let shapes =
            [[q_heads, queries, key_size], [kv_heads, slots, key_size], [kv_heads, slots, value_size]];
        let [q, k, v] = shapes.map(|[heads, rows, size]| [batch, heads, rows, size]);
        let slot = |element: usize| element / value_size % slots;
        let values = (0..size(&v)).map(|element| value(slot(element))).collect();
        [Array::new(vec![1.0; size(&q)], &q), Array::new(vec![0.0; size(&k)], &k), Array::new(values, &v)]
    };
    match fields.kind {
        "seen" => equal(2, 1, |slot| 2_f64.powi(slot as i32)),
        "counted" => equal(value_size, value_size, |slot| slot as f64),
        "computed" => [
            pattern(3, &[batch, q_heads, queries, key_size]),
            pattern(5, &[batch, kv_heads, slots, key_size]),
            pattern(7, &[batch, kv_heads, slots, value_size]),
        ],
        "flat" => [
            pattern(3, &[batch, queries, q_heads * key_size]),
            pattern(5, &[batch, slots, kv_heads * key_size]),
            pattern(7, &[batch, slots, kv_heads * value_size]),
        ],
        kind => wrong(kind),
    }
}

/// Returns different small numbers, all multiples of a quarter between -1.5 and 1.5.
fn pattern(step: usize, shape: &[usize]) -> Array<f64> {
    let values = (0..size(shape)).map(|n| ((n * step + n / 13) % 13) as f64 / 4.0 - 1.5);
    Array::new(values.collect(), shape)
}

/// Reads a boolean mask such as `[2,2]:x-/xx`.
fn shown(text: &str) -> Mask {
    let (shape, shown) = text.split_once(':').unwrap_or_else(|| wrong(text));
    Mask::Bool(Array::new(shown.chars().filter(|c| *c != '/').map(|c| c == 'x').collect(), &list(shape)))
}

/// Reads a mask of numbers such as `[1,2]:[0,-inf]`, in which `lowest` is the lowest number of the type.
fn bias(text: &str, element: Float) -> Mask {
    let (shape, values) = text.split_once(':').unwrap_or_else(|| wrong(text));
    let values: Vec<String> = list(values);
    let value = |text: &String| if text == "lowest" { element.lowest() } else { parsed(text) };
    Mask::Float(Array::new(values.iter().map(value).collect(), &list(shape)))
}

/// Overwrites the rows of these slots of a sample.
fn overwrite(array: &mut Array<f64>, sample: usize, slots: &[usize], value: f64) {
    let [_, heads, rows, columns] = [0, 1, 2, 3].map(|dimension| array.shape[dimension]);
    for (head, slot) in (0..heads).flat_map(|head| slots.iter().map(move |&slot| (head, slot))) {
        let start = ((sample * heads + head) * rows + slot) * columns;
        array.data[start..start + columns].fill(value);
    }
}
