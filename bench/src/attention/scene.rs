//! A case in memory: painted operands, and what every subject must compute.

use half::f16;
use kvscatter_attention::Float;
use kvscatter_oracle::attention as oracle;
use kvscatter_session::Tensor;

use super::case::{Attention, Element};
use crate::measure;

/// The operands of a case. All subjects that can read memory of others share them.
pub(crate) struct Scene {
    pub(super) case: Attention,
    /// `[batch, query heads, queries, head size]`
    pub(super) query: Tensor,
    /// `[batch, heads, capacity, head size]`. The rows of the new tokens are already there.
    pub(super) key: Tensor,
    pub(super) value: Tensor,
    /// The valid slots of each sample, with the new tokens.
    pub(super) lengths: Vec<i64>,
    /// The queries as `[batch, queries, query heads * head size]`.
    pub(super) flat_query: Tensor,
    /// The keys and values of the new tokens, `[batch, queries, heads * head size]`.
    pub(super) updates: [Tensor; 2],
    expected: Vec<ExpectedRow>,
}

/// The result for one token.
struct ExpectedRow {
    sample: usize,
    query: usize,
    /// `[query heads, head size]`
    values: Vec<f64>,
}

/// The layout of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[batch, query heads, queries, head size]`
    Heads,
    /// `[batch, queries, query heads * head size]`
    Flat,
}

/// What lies in slots that are not valid. A subject that reads it has another result.
const HIDDEN: f32 = 100.0;

/// The number of consecutive tokens whose results are compared at the start, in the middle and at the end.
const COMPARED: usize = 2;

impl Scene {
    /// Paints the operands, and computes the expected results with the oracle.
    pub(super) fn new(case: &Attention) -> Result<Self, String> {
        match case.element {
            Element::Float32 => Self::of::<f32>(case),
            Element::Float16 => Self::of::<f16>(case),
        }
    }

    /// Compares a result with the oracle's.
    pub(super) fn check<T: Float>(&self, output: &[T], layout: Layout) -> Result<(), String> {
        // The oracle's sums are float64, and values are between -1 and 1. Half types also round the weights
        // in some libraries.
        let tolerance = if self.case.element == Element::Float32 { 1e-5 } else { 4e-3 };
        self.check_within(tolerance, output, layout)
    }

    /// Compares a result with the oracle's. `tolerance` is the largest difference of an element.
    pub(super) fn check_within<T: Float>(
        &self,
        tolerance: f64,
        output: &[T],
        layout: Layout,
    ) -> Result<(), String> {
        let Attention { query_heads, queries, head_size, .. } = self.case;
        for ExpectedRow { sample, query, values } in &self.expected {
            for (head, values) in values.chunks_exact(head_size).enumerate() {
                let row = match layout {
                    Layout::Heads => (sample * query_heads + head) * queries + query,
                    Layout::Flat => (sample * queries + query) * query_heads + head,
                };
                let got = output.get(row * head_size..).unwrap_or_default();
                for (at, expected) in values.iter().enumerate() {
                    let got = got.get(at).map_or(f64::NAN, |got| f64::from(got.to_f32()));
                    let is_close = (got - expected).abs() <= tolerance;
                    if !is_close {
                        return Err(format!(
                            "sample {sample}, token {query}, head {head}, element {at} is {got}, must be {expected}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes of the valid slots of each head, first of its keys and then of its values.
    pub(super) fn valid_bytes(&self) -> impl Iterator<Item = [&[u8]; 2]> {
        let Attention { heads, head_size, capacity, .. } = self.case;
        let row = head_size * self.case.element.size();
        let valid = self.case.valid.iter().flat_map(move |&valid| std::iter::repeat_n(valid, heads));
        valid.enumerate().map(move |(head, valid)| {
            [&self.key, &self.value].map(|cache| &cache.bytes()[head * capacity * row..][..valid * row])
        })
    }

    fn of<T: Float>(case: &Attention) -> Result<Self, String> {
        let Attention { query_heads, heads, head_size, capacity, queries, .. } = *case;
        let batch = case.batch();
        let zeros =
            |shape: &[usize]| Tensor::zeros(case.element.onnx(), shape).map_err(|error| error.to_string());
        let mut query = zeros(&[batch, query_heads, queries, head_size])?;
        // Scores then vary by about 1.
        paint::<T>(&mut query, 1, 4.0);
        let cache = |seed| {
            let mut cache = zeros(&[batch, heads, capacity, head_size])?;
            paint::<T>(&mut cache, seed, 1.0);
            hide::<T>(&mut cache, case);
            Ok::<_, String>(cache)
        };
        let (key, value) = (cache(2)?, cache(3)?);
        let mut flat_query = zeros(&[batch, queries, query_heads * head_size])?;
        flatten::<T>(&query, 0, &vec![0; batch], &mut flat_query);
        let firsts: Vec<_> = case.valid.iter().map(|valid| valid - queries).collect();
        let update = |cache: &Tensor| {
            let mut update = zeros(&[batch, queries, heads * head_size])?;
            flatten::<T>(cache, capacity - queries, &firsts, &mut update);
            Ok::<_, String>(update)
        };
        let updates = [update(&key)?, update(&value)?];
        let lengths = case.valid.iter().map(|&valid| valid as i64).collect();
        let mut scene = Self {
            case: case.clone(),
            query,
            key,
            value,
            lengths,
            flat_query,
            updates,
            expected: Vec::new(),
        };
        scene.expected = scene.expect::<T>()?;
        Ok(scene)
    }

    /// Expects the results of a cache with one slot less.
    #[cfg(test)]
    pub(super) fn expect_one_slot_less(&mut self) {
        let valid = self.case.valid.iter().map(|valid| valid - 1).collect();
        let shorter = Attention { valid, ..self.case.clone() };
        self.expected = Self::new(&shorter).map(|scene| scene.expected).unwrap_or_default();
    }

    /// Computes the results of a few tokens of each sample.
    fn expect<T: Float>(&self) -> Result<Vec<ExpectedRow>, String> {
        let Attention { query_heads, heads, head_size, queries, .. } = self.case;
        let count = COMPARED.min(queries);
        let last = queries - count;
        let mut firsts = vec![0, last / 2, last];
        firsts.dedup();
        let mut rows = Vec::new();
        let wide =
            |bytes: &[u8]| elements::<T>(bytes).iter().map(|&e| f64::from(e.to_f32())).collect::<Vec<_>>();
        for (sample, &valid) in self.case.valid.iter().enumerate() {
            for &first in &firsts {
                // The last token of this call is `first + count - 1`, and it sees no later slot.
                let slots = valid - queries + first + count;
                let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
                for head in 0..query_heads {
                    let row = (sample * query_heads + head) * queries + first;
                    let row_bytes = head_size * size_of::<T>();
                    q.extend(wide(&self.query.bytes()[row * row_bytes..][..count * row_bytes]));
                }
                for [key, value] in self.valid_bytes().skip(sample * heads).take(heads) {
                    let bytes = slots * head_size * size_of::<T>();
                    k.extend(wide(&key[..bytes]));
                    v.extend(wide(&value[..bytes]));
                }
                let array = |data, heads, rows| oracle::Array::new(data, &[1, heads, rows, head_size]);
                let inputs = oracle::Inputs {
                    element: oracle::Float::F32,
                    q: array(q, query_heads, count),
                    k: array(k, heads, slots),
                    v: array(v, heads, slots),
                    mask: None,
                    past_key: None,
                    past_value: None,
                    positions: oracle::Positions::Lengths(vec![slots as i64]),
                };
                let op = oracle::Attention { is_causal: true, ..Default::default() };
                let y = op.run(&inputs).map_err(|refusal| format!("{refusal:?}"))?.y.data;
                rows.extend((0..count).map(|query| {
                    let of_head = |head| &y[(head * count + query) * head_size..][..head_size];
                    let values = (0..query_heads).flat_map(of_head).copied().collect();
                    ExpectedRow { sample, query: first + query, values }
                }));
            }
        }
        Ok(rows)
    }
}

impl measure::Scene for Scene {}

/// Returns the elements of a tensor.
pub(super) fn elements<T: Float>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

/// Fills a tensor with numbers between `-reach` and `reach`.
fn paint<T: Float>(tensor: &mut Tensor, seed: u32, reach: f32) {
    let mut state = seed;
    for value in bytemuck::cast_slice_mut::<u8, T>(tensor.bytes_mut()) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = T::of_f32(((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * reach);
    }
}

/// Overwrites the slots that are not valid.
fn hide<T: Float>(cache: &mut Tensor, case: &Attention) {
    let sample = case.heads * case.capacity * case.head_size;
    let samples = bytemuck::cast_slice_mut::<u8, T>(cache.bytes_mut()).chunks_exact_mut(sample);
    for (sample, valid) in samples.zip(&case.valid) {
        for head in sample.chunks_exact_mut(case.capacity * case.head_size) {
            head[valid * case.head_size..].fill(T::of_f32(HIDDEN));
        }
    }
}

/// Copies rows of `[batch, heads, rows + others, head size]` to `[batch, rows, heads * head size]`, from a first
/// row of each sample on.
fn flatten<T: Float>(from: &Tensor, others: usize, firsts: &[usize], to: &mut Tensor) {
    let &[_, heads, length, head_size] = from.shape() else { return };
    let rows = length - others;
    let from = elements::<T>(from.bytes());
    let to = bytemuck::cast_slice_mut::<u8, T>(to.bytes_mut());
    for (sample, first) in firsts.iter().enumerate() {
        for head in 0..heads {
            for row in 0..rows {
                let source = ((sample * heads + head) * length + first + row) * head_size;
                let target = ((sample * rows + row) * heads + head) * head_size;
                to[target..][..head_size].copy_from_slice(&from[source..][..head_size]);
            }
        }
    }
}
