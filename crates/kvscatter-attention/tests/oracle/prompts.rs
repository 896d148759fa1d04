//! Prompts whose numbers of rows are near those from which on blocks are wide, or end.

use kvscatter_oracle::attention::{self as oracle, Float, Inputs, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::{AttentionCase, paint};

use crate::boundaries::values;
use crate::scene::{Ways, check};
use crate::variants::Variant;

/// The query heads, the heads of keys, and the queries. The rows of a head of keys are 31 to 33, 63 to 65, 96, 127 to
/// 129, and more than a wide block has. The last call has many blocks.
const ROWS: [[usize; 3]; 14] = [
    [1, 1, 31],
    [4, 1, 8],
    [3, 1, 11],
    [1, 1, 63],
    [4, 2, 32],
    [5, 1, 13],
    [6, 2, 32],
    [1, 1, 127],
    [8, 2, 32],
    [3, 1, 43],
    [3, 3, 129],
    [4, 1, 40],
    [9, 3, 90],
    [16, 8, 70],
];

fn case(n: usize) -> AttentionCase {
    let r = &mut Random::new(52, n);
    let element = Float::ALL[n % 3];
    let [q_heads, kv_heads, queries] = ROWS[n % ROWS.len()];
    let batch = r.between(1, 2);
    let head_size = r.pick(&[1, 8, 16, 33, 64, 80]);
    let value_size = r.pick(&[1, 8, 16, 40, 64, 80, 130]);
    let past = r.pick(&[0, 0, 1, 90, 300, 1100]);
    let kind = r.below(4);
    let total = past + queries;
    let (keys, has_past) = if kind == 1 { (queries, true) } else { (total, false) };
    let flat = r.below(2) == 0;
    let mut attention = oracle::Attention {
        is_causal: r.below(4) != 0,
        softcap: r.pick(&[0.0, 0.0, 0.0, 5.0]),
        left_window_size: r.pick(&[-1, -1, 0, 7, 60, 130]),
        ..oracle::Attention::default()
    };
    if flat {
        attention.q_num_heads = Some(q_heads as i64);
        attention.kv_num_heads = Some(kv_heads as i64);
    }
    let positions = match kind {
        2 => Positions::Ring(r.many(batch, |r| (total + r.pick(&[0, 3, 5000])) as i64)),
        3 => Positions::Lengths(r.many(batch, |r| r.between(queries.min(total - past), total) as i64)),
        _ => Positions::Full,
    };
    let shape = |heads: usize, rows: usize, size: usize| {
        if flat { vec![batch, rows, heads * size] } else { vec![batch, heads, rows, size] }
    };
    let range = 1.5 / (head_size as f64).sqrt().sqrt();
    let q = values(r, element, range, false, &shape(q_heads, queries, head_size));
    let k = values(r, element, range, false, &shape(kv_heads, keys, head_size));
    let v = values(r, element, 1.0, false, &shape(kv_heads, keys, value_size));
    let past_of = |r: &mut Random, range, size| {
        has_past.then(|| values(r, element, range, false, &[batch, kv_heads, past, size]))
    };
    let past_key = past_of(r, range, head_size);
    let past_value = past_of(r, 1.0, value_size);
    let inputs = Inputs { element, q, k, v, mask: None, past_key, past_value, positions };
    let name = format!("{n:03}_prompt_{kind}_{batch}x{q_heads}_{kv_heads}x{queries}_{past}");
    let mut case = AttentionCase { name, attention, inputs, painted: false };
    paint(r, &mut case);
    case
}

#[test]
fn prompts_agree_with_the_oracle() {
    let variants = Variant::real();
    (0..3 * ROWS.len()).for_each(|n| check(&case(n), Ways::All, &variants));
}
