//! Rotates heads by their positions, as ONNX `RotaryEmbedding` and `GroupQueryAttention` do.

use std::borrow::Cow;

use kvscatter_attention::{Float, RotaryOrder};

/// The cosines and sines of each position.
pub(crate) struct AngleTable<'a, T: Float> {
    pub(crate) order: RotaryOrder,
    /// `[positions, half]`.
    pub(crate) cos: Cow<'a, [T]>,
    pub(crate) sin: Cow<'a, [T]>,
    /// Half the number of elements of a head that are rotated.
    pub(crate) half: usize,
}

impl<T: Float> AngleTable<'_, T> {
    /// Returns the cosines and sines of a position, if the table has it.
    pub(crate) fn row(&self, position: i64) -> Option<[&[T]; 2]> {
        let first = usize::try_from(position).ok()?.checked_mul(self.half)?;
        let end = first.checked_add(self.half)?;
        Some([self.cos.get(first..end)?, self.sin.get(first..end)?])
    }
}

/// The number of pairs that are rotated together.
const PAIRS: usize = 32;

/// Rotates the first elements of a head, two for each cosine and sine, and copies the others. The results are computed
/// in float32 and rounded once.
pub(crate) fn rotate<T: Float, O: Float>(
    order: RotaryOrder,
    [cos, sin]: [&[T]; 2],
    from: &[T],
    to: &mut [O],
) {
    let half = cos.len();
    let (from, rest) = from.split_at(2 * half);
    let (to, to_rest) = to.split_at_mut(2 * half);
    convert(rest, to_rest);
    let angles = cos.chunks(PAIRS).zip(sin.chunks(PAIRS));
    match order {
        RotaryOrder::Halves => {
            let (first, second) = from.split_at(half);
            let (to_first, to_second) = to.split_at_mut(half);
            let from = first.chunks(PAIRS).zip(second.chunks(PAIRS));
            let to = to_first.chunks_mut(PAIRS).zip(to_second.chunks_mut(PAIRS));
            for (((cos, sin), (x, y)), (to_x, to_y)) in angles.zip(from).zip(to) {
                let [mut x, mut y] = [wide(x), wide(y)];
                turn([wide(cos), wide(sin)], &mut x, &mut y);
                O::narrow(&x[..to_x.len()], to_x);
                O::narrow(&y[..to_y.len()], to_y);
            }
        }
        RotaryOrder::Interleaved => {
            let pairs = from.chunks(2 * PAIRS).zip(to.chunks_mut(2 * PAIRS));
            for ((cos, sin), (from, to)) in angles.zip(pairs) {
                let [mut x, mut y] = [[0.0; PAIRS]; 2];
                for ((x, y), [one, two]) in x.iter_mut().zip(&mut y).zip(from.as_chunks().0) {
                    (*x, *y) = (one.to_f32(), two.to_f32());
                }
                turn([wide(cos), wide(sin)], &mut x, &mut y);
                for ((x, y), [one, two]) in x.iter().zip(&y).zip(to.as_chunks_mut().0) {
                    (*one, *two) = (O::of_f32(*x), O::of_f32(*y));
                }
            }
        }
    }
}

/// Converts elements to another type. Both slices have the same length.
pub(crate) fn convert<T: Float, O: Float>(from: &[T], to: &mut [O]) {
    for (from, to) in from.chunks(PAIRS).zip(to.chunks_mut(PAIRS)) {
        O::narrow(&wide(from)[..to.len()], to);
    }
}

/// Returns up to [`PAIRS`] elements as float32.
fn wide<T: Float>(from: &[T]) -> [f32; PAIRS] {
    let mut numbers = [0.0; PAIRS];
    T::widen(from, &mut numbers[..from.len()]);
    numbers
}

fn turn([cos, sin]: [[f32; PAIRS]; 2], x: &mut [f32; PAIRS], y: &mut [f32; PAIRS]) {
    for (((x, y), cos), sin) in x.iter_mut().zip(y).zip(cos).zip(sin) {
        (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use kvscatter_attention::RotaryOrder;

    use super::{convert, rotate};

    /// Angles and elements are such that no result is rounded.
    #[test]
    fn pairs_are_rotated_and_the_rest_is_copied() {
        for half in [0, 1, 5, 31, 32, 33, 80] {
            let cos: Vec<f32> = (0..half).map(|pair| [1.0, 0.0, -0.5][pair % 3]).collect();
            let sin: Vec<f32> = (0..half).map(|pair| [0.0, 1.0, 0.25][pair % 3]).collect();
            let from: Vec<f32> = (0..2 * half + 3).map(|element| (element % 17) as f32 - 8.0).collect();
            for (order, of_pair) in [
                (RotaryOrder::Halves, (|half, pair| [pair, pair + half]) as fn(usize, usize) -> [usize; 2]),
                (RotaryOrder::Interleaved, |_, pair| [2 * pair, 2 * pair + 1]),
            ] {
                let mut expected = from.clone();
                for pair in 0..half {
                    let [one, two] = of_pair(half, pair);
                    expected[one] = from[one] * cos[pair] - from[two] * sin[pair];
                    expected[two] = from[one] * sin[pair] + from[two] * cos[pair];
                }
                let (mut wide, mut narrow) = (vec![f32::NAN; from.len()], vec![f16::NAN; from.len()]);
                rotate(order, [&cos, &sin], &from, &mut wide);
                assert_eq!(wide, expected, "{order:?} {half}");
                rotate(order, [&cos, &sin], &from, &mut narrow);
                convert(&narrow, &mut wide);
                assert_eq!(wide, expected, "{order:?} {half}");
            }
        }
    }
}
