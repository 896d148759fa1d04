//! Small operators and shapes, which break no rule.

use kvscatter_oracle::attention::{Attention, Positions};
use kvscatter_oracle::cases::Random;

/// The attributes and sizes of a call. Values are drawn later.
pub(super) struct Shapes {
    pub(super) attention: Attention,
    pub(super) batch: usize,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    /// The number of rows of the past, or `None` for no past.
    pub(super) past: Option<usize>,
    pub(super) head_size: usize,
    pub(super) value_size: usize,
    /// Whether the inputs have rank 3.
    pub(super) flat: bool,
    /// The kind of positions. The numbers are drawn later.
    pub(super) positions: Positions,
    /// The shape of the mask, and whether it is boolean.
    pub(super) mask: Option<(Vec<usize>, bool)>,
}

impl Shapes {
    pub(super) fn random(r: &mut Random) -> Self {
        let (q_heads, kv_heads) = r.pick(&[(1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (3, 1)]);
        let batch = r.pick(&[1, 1, 2, 3]);
        let queries = r.pick(&[1, 1, 1, 2, 3]);
        let keys = r.below(9);
        let past = if r.below(4) == 0 { Some(r.below(4)) } else { None };
        let positions = match r.below(4) {
            _ if past.is_some() => Positions::Full,
            0 => Positions::Full,
            1 => Positions::Ring(Vec::new()),
            _ => Positions::Lengths(Vec::new()),
        };
        let total = keys + past.unwrap_or(0);
        let flat = r.below(2) == 0;
        let size = |r: &mut Random| if r.below(8) == 0 { r.between(5, 8) } else { r.between(1, 4) };
        let head_size = size(r);
        let bound = |r: &mut Random| if r.below(2) == 0 { -1 } else { r.below(total + 2) as i64 };
        let attention = Attention {
            is_causal: r.below(2) == 0,
            scale: r.pick(&[None, None, Some(0.0), Some(0.25), Some(1.0)]),
            softcap: r.pick(&[0.0, 0.0, 0.5, 20.0]),
            q_num_heads: flat.then_some(q_heads as i64),
            kv_num_heads: flat.then_some(kv_heads as i64),
            qk_matmul_output_mode: r.below(4) as i64,
            softmax_precision: None,
            left_window_size: bound(r),
            right_window_size: bound(r),
        };
        let mask = (r.below(2) == 0).then(|| (mask(r, [batch, q_heads, queries, total]), r.below(2) == 0));
        let value_size = size(r);
        Self {
            attention,
            batch,
            q_heads,
            kv_heads,
            queries,
            keys,
            past,
            head_size,
            value_size,
            flat,
            positions,
            mask,
        }
    }

    /// Returns the number of slots, with the past.
    pub(super) fn total(&self) -> usize {
        self.keys + self.past.unwrap_or(0)
    }
}

/// Returns the shape of a mask for scores of the shape `full`. It may have fewer dimensions, may repeat any of them
/// except the last, and may be too short.
fn mask(r: &mut Random, full: [usize; 4]) -> Vec<usize> {
    let mut shape = full.to_vec();
    for dimension in &mut shape[..3] {
        if r.below(2) == 0 {
            *dimension = 1;
        }
    }
    if r.below(4) == 0 {
        shape[3] = r.below(full[3] + 1);
    }
    shape.drain(..r.below(4));
    shape
}
