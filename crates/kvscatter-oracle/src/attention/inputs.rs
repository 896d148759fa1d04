use super::Float;
use crate::quantized::Row;
use crate::size;

/// A dense row-major tensor that owns its elements. `data.len()` is the product of `shape`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array<E> {
    /// The elements, last dimension fastest.
    pub data: Vec<E>,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl<E> Array<E> {
    /// Creates a tensor of `data`.
    ///
    /// # Panics
    /// Panics if `data` does not fill `shape`, because the calling test is then wrong.
    #[must_use]
    pub fn new(data: Vec<E>, shape: &[usize]) -> Self {
        assert_eq!(data.len(), size(shape), "data of shape {shape:?}");
        Self { data, shape: shape.to_vec() }
    }

    /// Returns the elements along the last dimension at this index of a tensor of rank 4.
    pub(crate) fn row(&self, [a, b, c]: [usize; 3]) -> &[E] {
        let row = (a * self.shape[1] + b) * self.shape[2] + c;
        &self.data[row * self.shape[3]..][..self.shape[3]]
    }
}

/// The scales of the rows of `K` and `V` that contain codes, `[B, kv_heads, keys]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// The scales of the keys.
    pub key: Array<f64>,
    /// The scales of the values.
    pub value: Array<f64>,
}

impl Scales {
    /// Returns keys or values of rank 4 as codes and scales of rows, `[B, kv_heads, keys, size]` and
    /// `[B, kv_heads, keys]`.
    #[must_use]
    pub fn quantize(rows: &Array<f64>) -> [Array<f64>; 2] {
        let [batch, heads, keys, row_size] = [0, 1, 2, 3].map(|dimension| rows.shape[dimension]);
        let rows =
            (0..batch * heads * keys).map(|row| Row::quantize(&rows.data[row * row_size..][..row_size]));
        let (scales, codes): (Vec<_>, Vec<_>) = rows.map(|row| (row.scale, row.codes)).unzip();
        [
            Array::new(codes.concat(), &[batch, heads, keys, row_size]),
            Array::new(scales, &[batch, heads, keys]),
        ]
    }

    /// Returns the scales of a key and its value.
    pub(crate) fn row(&self, row: usize) -> [f64; 2] {
        [self.key.data[row], self.value.data[row]]
    }
}

/// The inputs of one call. `B` is the batch, `S` the number of queries per sample, and `total` the number of
/// slots of the cache, with the past.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// The element type that the values stand for. Only its [lowest](Float::lowest) value has an effect, in a
    /// mask.
    pub element: Float,
    /// The queries: `[B, q_heads, S, D]`, or `[B, S, q_heads * D]`.
    pub q: Array<f64>,
    /// The keys: `[B, kv_heads, keys, D]`, or `[B, keys, kv_heads * D]`.
    pub k: Array<f64>,
    /// The values: `[B, kv_heads, keys, Dv]`, or `[B, keys, kv_heads * Dv]`.
    pub v: Array<f64>,
    /// The mask, or `None` for none.
    pub mask: Option<Mask>,
    /// The keys of the past: `[B, kv_heads, past, D]`.
    pub past_key: Option<Array<f64>>,
    /// The values of the past: `[B, kv_heads, past, Dv]`.
    pub past_value: Option<Array<f64>>,
    /// Where in its sequence each sample is.
    pub positions: Positions,
}

/// A mask of rank 1 to 4. Its dimensions are those of `[B, q_heads, S, total]`, aligned on the right. Each
/// dimension except the last may be 1, and is then repeated. The last dimension may be shorter than `total`,
/// and the missing entries hide their slots. So a last dimension of 1 is padded and not repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Mask {
    /// A slot is hidden where the mask is false.
    Bool(Array<bool>),
    /// The value is added to the score. Minus infinity hides a slot.
    Float(Array<f64>),
}

impl Mask {
    /// Returns the dimensions of the mask.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Bool(mask) => &mask.shape,
            Self::Float(mask) => &mask.shape,
        }
    }

    /// Returns what is added to the score at `[sample, head, query, slot]`.
    pub(crate) fn bias(&self, index: [usize; 4]) -> f64 {
        let shape = self.shape();
        let [.., last] = shape else { return 0.0 };
        if index[3] >= *last {
            return f64::NEG_INFINITY;
        }
        let index = &index[4 - shape.len()..];
        let offset = shape
            .iter()
            .zip(index)
            .fold(0, |offset, (&dimension, &i)| offset * dimension + if dimension == 1 { 0 } else { i });
        match self {
            Self::Bool(mask) if mask.data[offset] => 0.0,
            Self::Bool(_) => f64::NEG_INFINITY,
            Self::Float(mask) => mask.data[offset],
        }
    }
}

/// Where in its sequence each sample is. With lengths, query `i` of `S` has position `length - S + i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Every slot is filled. Slot `s` contains position `s`, and the first query follows the past. Without a
    /// past its position is 0.
    Full,
    /// The input `nonpad_kv_seqlen`: the tokens of each sample so far. Slot `s` contains position `s`.
    Lengths(Vec<i64>),
    /// `K` and `V` are rings, and this is the number of tokens of each sample so far, which may exceed the
    /// capacity. A mask is indexed by slot. This is a kvscatter extension, not part of the specification.
    Ring(Vec<i64>),
}
