use super::super::exhaustive::tuples;
use super::case::AttentionCase;
use crate::attention::{Array, Attention, Float, Inputs, Mask, Positions};
use crate::size;

/// Returns every call of a small domain. The values are small integers, and `scale` is 1.
///
/// - 1 or 2 samples, 2 query heads, 1 key head, head sizes of 2 and 1, 1 to 3 queries, 0 to 3 slots
/// - all slots filled, with a past of 0 to 2 rows, every combination of lengths, and rings of 0 to 7 tokens (0
///   to 4 for 2 samples)
/// - causal or not, and both bounds of the window from -1 to 2
/// - no mask, and every boolean mask of one row
pub fn exhaustive() -> impl Iterator<Item = AttentionCase> {
    let shapes = (1..=2usize).flat_map(|batch| (1..=3usize).map(move |queries| (batch, queries)));
    shapes.flat_map(|(batch, queries)| {
        (0..=3usize).flat_map(move |keys| {
            positions(batch, keys).into_iter().flat_map(move |(past, positions)| {
                masks(past.unwrap_or(0) + keys).into_iter().flat_map(move |mask| {
                    let inputs = inputs(batch, queries, past, keys, mask, positions.clone());
                    attributes().map(move |attention| {
                        let Attention { is_causal, left_window_size, right_window_size, .. } = attention;
                        let name = format!(
                            "attention_{batch}_{queries}_{keys}_{}_{left_window_size}_{right_window_size}",
                            u8::from(is_causal)
                        );
                        AttentionCase { name, attention, inputs: inputs.clone(), painted: false }
                    })
                })
            })
        })
    })
}

fn attributes() -> impl Iterator<Item = Attention> {
    tuples(2, -1..=2).into_iter().flat_map(|bounds| {
        [false, true].map(|is_causal| Attention {
            is_causal,
            scale: Some(1.0),
            left_window_size: bounds[0],
            right_window_size: bounds[1],
            qk_matmul_output_mode: 3,
            ..Attention::default()
        })
    })
}

/// Returns the rows of the past and the positions.
fn positions(batch: usize, keys: usize) -> Vec<(Option<usize>, Positions)> {
    let past = [None, Some(0), Some(1), Some(2)].map(|past| (past, Positions::Full));
    let lengths = tuples(batch, 0..=keys as i64).into_iter().map(Positions::Lengths);
    let most = if batch == 1 { 7 } else { 4 };
    let rings = tuples(batch, 0..=most).into_iter().map(Positions::Ring);
    past.into_iter().chain(lengths.chain(rings).map(|positions| (None, positions))).collect()
}

fn masks(total: usize) -> Vec<Option<Mask>> {
    let rows = tuples(total, 0..=1).into_iter();
    let mask = |row: Vec<i64>| Mask::Bool(Array::new(row.iter().map(|&bit| bit == 1).collect(), &[total]));
    rows.map(|row| Some(mask(row))).chain([None]).collect()
}

fn inputs(
    batch: usize,
    queries: usize,
    past: Option<usize>,
    keys: usize,
    mask: Option<Mask>,
    positions: Positions,
) -> Inputs {
    Inputs {
        element: Float::F32,
        q: integers(&[batch, 2, queries, 2], 0),
        k: integers(&[batch, 1, keys, 2], 1),
        v: powers(&[batch, 1, keys, 1], past.unwrap_or(0)),
        mask,
        past_key: past.map(|past| integers(&[batch, 1, past, 2], 2)),
        past_value: past.map(|past| powers(&[batch, 1, past, 1], 0)),
        positions,
    }
}

/// Returns integers from -1 to 1 without a period that a dimension could match.
fn integers(shape: &[usize], first: usize) -> Array<f64> {
    let number = |n: usize| ((n * n + n / 3 + first) % 3) as f64 - 1.0;
    Array::new((0..size(shape)).map(number).collect(), shape)
}

/// Returns different powers of two, so that sums show what they consist of.
fn powers(shape: &[usize], first: usize) -> Array<f64> {
    Array::new((0..size(shape)).map(|n| f64::from(1 << (n + first))).collect(), shape)
}
