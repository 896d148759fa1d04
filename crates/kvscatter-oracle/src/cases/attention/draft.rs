use super::super::Random;
use super::case::AttentionCase;
use super::mask::MaskPlan;
use crate::attention::{Array, Attention, Float, Inputs, Positions};
use crate::size;

/// The parts of a case that a theme chooses. The values follow from them.
pub(super) struct Draft {
    pub(super) element: Float,
    pub(super) attention: Attention,
    pub(super) batch: usize,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    /// The number of rows of the past, or `None` for no past.
    pub(super) past: Option<usize>,
    /// The number of slots without the past.
    pub(super) keys: usize,
    pub(super) head_size: usize,
    pub(super) value_size: usize,
    /// Whether the inputs have rank 3.
    pub(super) flat: bool,
    pub(super) positions: Positions,
    pub(super) mask: Option<MaskPlan>,
    /// Whether all queries are 0, so that all scores are 0.
    pub(super) zero_queries: bool,
}

impl Draft {
    pub(super) fn total(&self) -> usize {
        self.past.unwrap_or(0) + self.keys
    }

    /// Returns one length per sample.
    pub(super) fn many(&self, r: &mut Random, mut make: impl FnMut(&mut Random) -> usize) -> Vec<i64> {
        r.many(self.batch, |r| make(r) as i64)
    }

    /// Sets the values of all inputs.
    pub(super) fn finish(mut self, r: &mut Random, name: String) -> AttentionCase {
        let Self { element, batch, q_heads, kv_heads, queries, keys, head_size, value_size, flat, .. } = self;
        if flat {
            self.attention.q_num_heads = Some(q_heads as i64);
            self.attention.kv_num_heads = Some(kv_heads as i64);
        }
        let input = |heads, rows, columns| {
            if flat { vec![batch, rows, heads * columns] } else { vec![batch, heads, rows, columns] }
        };
        let range = if self.zero_queries { 0.0 } else { 1.5 };
        let q = values(r, element, range, &input(q_heads, queries, head_size));
        let k = values(r, element, 1.5, &input(kv_heads, keys, head_size));
        let v = values(r, element, 1.0, &input(kv_heads, keys, value_size));
        let past = |r: &mut Random, range, columns| {
            self.past.map(|past| values(r, element, range, &[batch, kv_heads, past, columns]))
        };
        let (past_key, past_value) = (past(r, 1.5, head_size), past(r, 1.0, value_size));
        let full = [batch, q_heads, queries, self.total()];
        let mask = self.mask.as_ref().map(|plan| plan.mask(r, element, full));
        let inputs = Inputs { element, q, k, v, mask, past_key, past_value, positions: self.positions };
        let mut case = AttentionCase { name, attention: self.attention, inputs, painted: false };
        if r.below(4) != 0 {
            paint(r, &mut case);
        }
        case
    }
}

/// Returns values between `-range` and `range`.
pub(super) fn values(r: &mut Random, element: Float, range: f64, shape: &[usize]) -> Array<f64> {
    let value = |r: &mut Random| element.round(range * (r.below(1 << 24) as f64 / f64::from(1 << 23) - 1.0));
    Array::new(r.many(size(shape), value), shape)
}

/// Overwrites every key and value that no row attends with NaN or infinity, unless the call must be refused.
pub fn paint(r: &mut Random, case: &mut AttentionCase) {
    paint_hidden(r, case, |_| true);
}

/// Overwrites every key and value that the row `[sample, query head, query]` does not attend with NaN or infinity,
/// unless the call must be refused. Other rows may attend some of them.
pub fn paint_for_row(r: &mut Random, case: &mut AttentionCase, row: [usize; 3]) {
    paint_hidden(r, case, |other| other == row);
}

/// Overwrites every key and value that none of the rows attends for which `counts` returns `true`.
fn paint_hidden(r: &mut Random, case: &mut AttentionCase, counts: impl Fn([usize; 3]) -> bool) {
    let Ok(attends) = case.attention.attends(&case.inputs) else { return };
    case.painted = true;
    let Inputs { k, v, past_key, past_value, .. } = &mut case.inputs;
    let past = past_key.as_ref().map_or(0, |past| past.shape[2]);
    let q_heads = attends.shape[1];
    let kv_heads = case.attention.kv_num_heads.map_or_else(|| k.shape[1], |heads| heads as usize);
    let group = q_heads / kv_heads;
    for (sample, kv_head) in (0..attends.shape[0]).flat_map(|b| (0..kv_heads).map(move |head| (b, head))) {
        let heads = kv_head * group..(kv_head + 1) * group;
        let rows = heads.flat_map(|head| (0..attends.shape[2]).map(move |query| [sample, head, query]));
        let rows: Vec<_> = rows.filter(|row| counts(*row)).collect();
        for slot in 0..attends.shape[3] {
            if rows.iter().any(|row| attends.row(*row)[slot]) {
                continue;
            }
            let arrays = if slot < past {
                [past_key.as_mut(), past_value.as_mut()]
            } else {
                [Some(&mut *k), Some(&mut *v)]
            };
            let row = if slot < past { slot } else { slot - past };
            for array in arrays.into_iter().flatten() {
                let poison = r.pick(&[f64::NAN, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
                poison_row(array, [sample, kv_head, row], kv_heads, poison);
            }
        }
    }
}

fn poison_row(array: &mut Array<f64>, [sample, head, row]: [usize; 3], heads: usize, poison: f64) {
    let (start, columns) = match *array.shape.as_slice() {
        [_, rows, hidden] => ((sample * rows + row) * hidden + head * (hidden / heads), hidden / heads),
        [_, _, rows, columns] => (((sample * heads + head) * rows + row) * columns, columns),
        _ => return,
    };
    array.data[start..start + columns].fill(poison);
}
