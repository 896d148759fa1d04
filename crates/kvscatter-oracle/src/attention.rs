//! ONNX `Attention` of operator sets 23, 24 and 25, in float64.
//!
//! The operator computes, for each row (a sample, a query head and a query):
//!
//! 1. the score of every slot, `(q · k) * scale`. The specification scales `q` and `k` by `sqrt(scale)` each,
//!    so that half types do not overflow
//! 2. the softcap, `softcap * tanh(score / softcap)`, if `softcap > 0`
//! 3. the bias, which is the mask's value, or minus infinity where the slot is hidden
//! 4. the softmax of `score + bias` over all slots
//! 5. the sum of the values, weighted by the softmax
//!
//! # Hidden slots
//! A slot is hidden from a row where [`Visibility`] hides it (lengths, causality, windows, rings), where a
//! boolean mask is false, where a float mask is minus infinity, and where a mask is too short. A hidden slot
//! has the weight 0, and its key and value have no influence, not even if they are NaN. This is stricter than
//! the specification, which multiplies the value by 0. The fourth output of modes 0 and 1 still contains the
//! scores of hidden slots. In mode 2 it contains minus infinity there, and in mode 3 it contains 0.
//!
//! A row that sees nothing gives zeros, in the first output and in the fourth output of mode 3.
//!
//! # Caches of int8
//! [`Attention::run_scaled`] takes integers as `K` and `V`, with a scale for each row of both. The score of a slot
//! is multiplied by the scale of its key, before the softcap. The weight of a slot is multiplied by the scale of
//! its value, after the softmax. So a hidden slot may have scales of NaN. [`Float::round`] returns what a cache of a
//! half type stores.
//!
//! # The lowest value in a mask
//! Exported masks often contain the element type's lowest finite value instead of minus infinity. The lowest
//! value absorbs the score that it is added to: in float32 and bfloat16 always, and in float16 if the score
//! is between -16 and 16. This oracle lets it absorb every score.
//!
//! - If the bias of another slot in the row is higher, the lowest value hides its slot like minus infinity.
//! - Otherwise, all slots with the lowest value weigh the same. The row gives the mean of their values.
//! - In mode 2, the fourth output contains the lowest value itself.
//!
//! Other large negative values are added to the score like any number, without rounding.
//!
//! # Where ONNX Runtime 1.31 differs on the CPU
//! - A boolean mask and the operator's own rules add the lowest value. A row in which every bias is the
//!   lowest value or minus infinity gives zeros. So an all-lowest row of a float mask gives zeros there.
//! - The fourth output of mode 2 contains the lowest value where a boolean mask is false.
//! - A NaN in a hidden slot makes the row NaN.
//! - A mask must have rank 2 or more, `S` rows, and `total` columns, or the node fails. Shorter masks and
//!   masks of one row are refused.
//! - It has no operator set 25.
//!
//! # Where the Python reference of onnx 1.23 differs
//! The reference departs from the operator's function body in three places. This oracle follows the body.
//!
//! - The fourth output of mode 0 contains the scores after the softcap.
//! - With causality, it fails on masks of rank 1, and takes the rows of a mask for the number of queries.
//! - It fails if there are no slots.
//!
//! Operator set 25 refuses numbers of heads on inputs of rank 4. This oracle accepts them in every operator
//! set if they equal the dimensions.

mod attributes;
mod float;
mod inputs;
mod refusal;
mod shapes;

pub use attributes::Attention;
pub use float::Float;
pub use inputs::{Array, Inputs, Mask, Positions, Scales};
pub use refusal::AttentionRefusal;

use self::shapes::Shapes;
use crate::visibility::Visibility;

/// The four outputs, without rounding to the element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// `[B, q_heads, S, Dv]`, or `[B, S, q_heads * Dv]` if the inputs have rank 3.
    pub y: Array<f64>,
    /// `[B, kv_heads, total, D]`.
    pub present_key: Array<f64>,
    /// `[B, kv_heads, total, Dv]`.
    pub present_value: Array<f64>,
    /// `[B, q_heads, S, total]`.
    pub qk_matmul_output: Array<f64>,
}

impl Attention {
    /// Computes all four outputs.
    ///
    /// # Errors
    /// Returns the first rule that the call breaks, in this order: attributes, ranks and heads, dimensions of
    /// `K` and `V`, past, mask, lengths.
    pub fn run(&self, inputs: &Inputs) -> Result<Outputs, AttentionRefusal> {
        self.compute(inputs, None)
    }

    /// Computes all four outputs of a cache of int8. `K` and `V` contain the codes, and so do the second and the third
    /// output.
    ///
    /// # Errors
    /// Returns the first rule that the call breaks, like [`Self::run`].
    ///
    /// # Panics
    /// Panics if there is a past, or if the scales do not have the shape of the rows, because the calling test is then
    /// wrong.
    pub fn run_scaled(&self, inputs: &Inputs, scales: &Scales) -> Result<Outputs, AttentionRefusal> {
        self.compute(inputs, Some(scales))
    }

    fn compute(&self, inputs: &Inputs, scales: Option<&Scales>) -> Result<Outputs, AttentionRefusal> {
        let shapes = Shapes::new(self, inputs)?;
        let q = heads_outermost(&inputs.q, shapes.q_heads);
        let present_key = concatenate(inputs.past_key.as_ref(), heads_outermost(&inputs.k, shapes.kv_heads));
        let present_value =
            concatenate(inputs.past_value.as_ref(), heads_outermost(&inputs.v, shapes.kv_heads));
        let scale = self.scale.unwrap_or(1.0 / (shapes.head_size as f64).sqrt());
        if let Some(Scales { key, value }) = scales {
            let rows = [shapes.batch, shapes.kv_heads, shapes.total];
            assert_eq!(
                (&*key.shape, &*value.shape, shapes.past),
                (&rows[..], &rows[..], 0),
                "scales of all rows"
            );
        }

        let (mut y, mut qk) = (Vec::new(), Vec::new());
        for [sample, head, query] in shapes.rows() {
            let kv_head = head / (shapes.q_heads / shapes.kv_heads);
            let slots = 0..shapes.total;
            let q = q.row([sample, head, query]);
            let place = |slot| (sample * shapes.kv_heads + kv_head) * shapes.total + slot;
            let scale_of = |slot| scales.map_or([1.0; 2], |scales| scales.row(place(slot)));
            let scores: Vec<_> = slots
                .clone()
                .map(|slot| score(q, present_key.row([sample, kv_head, slot]), scale) * scale_of(slot)[0])
                .collect();
            let capped: Vec<_> = scores.iter().map(|&score| self.cap(score)).collect();
            let biases = self.biases(inputs, &shapes, [sample, head, query]);
            let biased: Vec<_> = capped
                .iter()
                .zip(&biases)
                .map(|(&score, &bias)| {
                    let absorbs = bias == f64::NEG_INFINITY || bias == inputs.element.lowest();
                    if absorbs { bias } else { score + bias }
                })
                .collect();
            let weights = softmax(&biased, &attended(&biases, inputs.element));
            y.extend((0..shapes.value_size).map(|d| {
                slots
                    .clone()
                    .filter(|&slot| weights[slot] != 0.0)
                    .map(|slot| {
                        weights[slot] * scale_of(slot)[1] * present_value.row([sample, kv_head, slot])[d]
                    })
                    // Unlike `sum`, this gives 0 and not -0 if there are no slots.
                    .fold(0.0, |sum, value| sum + value)
            }));
            qk.extend(match self.qk_matmul_output_mode {
                0 => scores,
                1 => capped,
                2 => biased,
                _ => weights,
            });
        }
        let Shapes { batch, q_heads, queries, total, value_size, .. } = shapes;
        let y = Array::new(y, &[batch, q_heads, queries, value_size]);
        Ok(Outputs {
            y: if inputs.q.shape.len() == 3 { heads_innermost(&y) } else { y },
            present_key,
            present_value,
            qk_matmul_output: Array::new(qk, &[batch, q_heads, queries, total]),
        })
    }

    /// Returns which slots influence which rows, as `[B, q_heads, S, total]`. The key and the value of any
    /// other slot may be NaN without an effect on the first output.
    ///
    /// # Errors
    /// Returns the first rule that the call breaks, like [`Self::run`].
    pub fn attends(&self, inputs: &Inputs) -> Result<Array<bool>, AttentionRefusal> {
        let shapes = Shapes::new(self, inputs)?;
        let rows = shapes.rows();
        let attends =
            rows.flat_map(|row| attended(&self.biases(inputs, &shapes, row), inputs.element)).collect();
        Ok(Array::new(attends, &[shapes.batch, shapes.q_heads, shapes.queries, shapes.total]))
    }

    /// Returns what is added to the scores of the row `[sample, head, query]`.
    fn biases(&self, inputs: &Inputs, shapes: &Shapes, [sample, head, query]: [usize; 3]) -> Vec<f64> {
        let (tokens, first_query) = match &inputs.positions {
            Positions::Full => (shapes.total as i64, shapes.past as i64),
            Positions::Lengths(tokens) | Positions::Ring(tokens) => {
                (tokens[sample], tokens[sample] - shapes.queries as i64)
            }
        };
        let bound = |size: i64| u64::try_from(size).ok();
        let visibility = Visibility {
            tokens: tokens as u64,
            capacity: shapes.total as u64,
            ring: matches!(inputs.positions, Positions::Ring(_)),
            left: bound(self.left_window_size),
            right: if self.is_causal { Some(0) } else { bound(self.right_window_size) },
        };
        (0..shapes.total)
            .map(|slot| {
                if !visibility.sees(first_query + query as i64, slot as u64) {
                    return f64::NEG_INFINITY;
                }
                inputs.mask.as_ref().map_or(0.0, |mask| mask.bias([sample, head, query, slot]))
            })
            .collect()
    }

    fn cap(&self, score: f64) -> f64 {
        if self.softcap > 0.0 { (score / self.softcap).tanh() * self.softcap } else { score }
    }
}

impl Shapes {
    /// Returns `[sample, head, query]` of each row of the output.
    fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let (q_heads, queries) = (self.q_heads, self.queries);
        (0..self.batch).flat_map(move |sample| {
            (0..q_heads).flat_map(move |head| (0..queries).map(move |query| [sample, head, query]))
        })
    }
}

fn score(q: &[f64], k: &[f64], scale: f64) -> f64 {
    q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale
}

/// Returns which slots of a row have an influence.
fn attended(biases: &[f64], element: Float) -> Vec<bool> {
    let lowest = element.lowest();
    let better = biases.iter().any(|&bias| bias > lowest);
    biases.iter().map(|&bias| bias != f64::NEG_INFINITY && !(better && bias == lowest)).collect()
}

/// Returns the weights of a row. They are all 0 if no slot is attended, or if every score is minus infinity.
fn softmax(biased: &[f64], attended: &[bool]) -> Vec<f64> {
    let seen = || biased.iter().zip(attended).filter(|(_, attended)| **attended).map(|(score, _)| *score);
    // `max` ignores NaN. It returns in the exponentials.
    let highest = seen().fold(f64::NEG_INFINITY, f64::max);
    if seen().all(|score| score == f64::NEG_INFINITY) {
        return vec![0.0; biased.len()];
    }
    let sum: f64 = seen().map(|score| (score - highest).exp()).sum();
    let weight = |(&score, &attended)| if attended { f64::exp(score - highest) / sum } else { 0.0 };
    biased.iter().zip(attended).map(weight).collect()
}

/// Returns an input of rank 3 or 4 as `[B, heads, rows, size]`.
fn heads_outermost(array: &Array<f64>, heads: usize) -> Array<f64> {
    let &[batch, rows, hidden] = array.shape.as_slice() else { return array.clone() };
    let (size, mut data) = (hidden / heads, Vec::new());
    for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
        for row in 0..rows {
            data.extend_from_slice(&array.data[(sample * rows + row) * hidden + head * size..][..size]);
        }
    }
    Array::new(data, &[batch, heads, rows, size])
}

/// Returns `[B, heads, rows, size]` as `[B, rows, heads * size]`.
fn heads_innermost(array: &Array<f64>) -> Array<f64> {
    let &[batch, heads, rows, size] = array.shape.as_slice() else { return array.clone() };
    let mut data = Vec::new();
    for (sample, row) in (0..batch).flat_map(|sample| (0..rows).map(move |row| (sample, row))) {
        for head in 0..heads {
            data.extend_from_slice(array.row([sample, head, row]));
        }
    }
    Array::new(data, &[batch, rows, heads * size])
}

/// Returns the rows of the past followed by the new rows, for each sample and head.
fn concatenate(past: Option<&Array<f64>>, new: Array<f64>) -> Array<f64> {
    let Some(past) = past else { return new };
    let [batch, heads, rows, size] = [0, 1, 2, 3].map(|d| new.shape[d]);
    let mut data = Vec::new();
    for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
        (0..past.shape[2]).for_each(|row| data.extend_from_slice(past.row([sample, head, row])));
        (0..rows).for_each(|row| data.extend_from_slice(new.row([sample, head, row])));
    }
    Array::new(data, &[batch, heads, past.shape[2] + rows, size])
}
