//! Values of all inputs for one call.

use kvscatter_oracle::attention::{Array, Float, Inputs, Mask, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::size;

use super::shapes::Shapes;

impl Shapes {
    /// Draws all inputs. One call of 32 has lengths that break a rule.
    pub(super) fn inputs(&self, r: &mut Random, element: Float) -> Inputs {
        let Self { batch, q_heads, kv_heads, queries, keys, head_size, value_size, .. } = *self;
        let shape = |heads: usize, rows: usize, size: usize| {
            if self.flat { vec![batch, rows, heads * size] } else { vec![batch, heads, rows, size] }
        };
        // All scores are equal in a part of the calls.
        let range = r.pick(&[0.0, 1.5, 1.5, 1.5]);
        let q = values(r, element, range, &shape(q_heads, queries, head_size));
        let k = values(r, element, 1.5, &shape(kv_heads, keys, head_size));
        let v = values(r, element, 1.0, &shape(kv_heads, keys, value_size));
        let past = |r: &mut Random, size| {
            self.past.map(|past| values(r, element, 1.5, &[batch, kv_heads, past, size]))
        };
        let (past_key, past_value) = (past(r, head_size), past(r, value_size));
        let mask = self.mask.as_ref().map(|(shape, is_bool)| mask(r, element, shape, *is_bool));
        Inputs { element, q, k, v, mask, past_key, past_value, positions: self.positions(r) }
    }

    fn positions(&self, r: &mut Random) -> Positions {
        let draw = |r: &mut Random, is_ring: bool| {
            let most = if is_ring { 3 * self.total() + 3 } else { self.total() };
            let mut tokens = r.many(self.batch, |r| r.below(most + 1) as i64);
            if is_ring && r.below(8) == 0 {
                tokens[0] = r.pick(&[1 << 31, 1 << 40, i64::MAX - 1, i64::MAX]);
            }
            if r.below(32) == 0 {
                match r.below(3) {
                    0 => tokens.push(0),
                    1 => drop(tokens.pop()),
                    _ => tokens[0] = r.pick(&[-1, i64::MIN, most as i64 + 1]),
                }
            }
            tokens
        };
        match self.positions {
            Positions::Full => Positions::Full,
            Positions::Lengths(_) => Positions::Lengths(draw(r, false)),
            Positions::Ring(_) => Positions::Ring(draw(r, true)),
        }
    }
}

/// Returns values between `-range` and `range`.
fn values(r: &mut Random, element: Float, range: f64, shape: &[usize]) -> Array<f64> {
    let value = |r: &mut Random| element.round(range * (r.below(1 << 24) as f64 / f64::from(1 << 23) - 1.0));
    Array::new(r.many(size(shape), value), shape)
}

fn mask(r: &mut Random, element: Float, shape: &[usize], is_bool: bool) -> Mask {
    if is_bool {
        return Mask::Bool(Array::new(r.many(size(shape), |r| r.below(3) != 0), shape));
    }
    let options = [0.0, 0.0, -1.5, 2.0, f64::NEG_INFINITY, element.lowest()];
    Mask::Float(Array::new(r.many(size(shape), |r| r.pick(&options)), shape))
}
