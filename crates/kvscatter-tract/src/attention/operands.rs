//! One call of the operator. This module converts tract's tensors to rows, and the kernel's results to
//! tensors.

use half::f16;
use tract_onnx::tract_hir::internal::*;

use super::float::Float;
use super::kernel::{Call, Results, Rows};
use super::mask::{Mask, Values};
use super::operator::Attention;
use super::shapes::Sizes;

/// Runs the operator.
///
/// # Errors
/// Returns a message. An error does not change the inputs, because the operator writes only to new tensors.
pub(super) fn run(op: &Attention, inputs: &[TValue]) -> Result<TVec<TValue>, String> {
    match inputs.first().map(|query| query.datum_type()) {
        Some(DatumType::F32) => Operands::<f32>::of(op, inputs)?.run(op),
        Some(DatumType::F16) => Operands::<f16>::of(op, inputs)?.run(op),
        datum => Err(format!("Q is {datum:?}, only float32 and float16 are known")),
    }
}

/// The inputs of one call.
struct Operands<'a, T> {
    sizes: Sizes,
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    past: Option<[&'a [T]; 2]>,
    mask: Option<Mask<'a, T>>,
    lengths: Option<&'a [i64]>,
}

impl<'a, T: Float + Datum> Operands<'a, T> {
    fn of(op: &Attention, inputs: &'a [TValue]) -> Result<Self, String> {
        let at = |index: usize| inputs.get(index).map(|value| &**value).ok_or("an input is missing");
        let (query, key, value) = (at(0)?, at(1)?, at(2)?);
        let past = op.inputs.past.map(|(key, value)| Ok::<_, &str>([at(key)?, at(value)?])).transpose()?;
        let of_past = past.map(|past| past.map(Tensor::shape));
        let sizes = Sizes::of(op, [query.shape(), key.shape(), value.shape()], of_past)?;
        let expected = [sizes.batch, sizes.query_heads, sizes.queries, sizes.total()];
        let mask = match op.inputs.mask {
            None => None,
            Some(index) => {
                let mask = at(index)?;
                let values = if mask.datum_type() == DatumType::Bool {
                    Values::Seen(slice(mask)?)
                } else {
                    Values::Added(slice(mask)?)
                };
                Some(Mask::new(values, mask.shape(), expected)?)
            }
        };
        let past = match past {
            None => None,
            Some([key, value]) => Some([slice(key)?, slice(value)?]),
        };
        let lengths = match op.inputs.nonpad_kv_seqlen {
            None => None,
            Some(index) => Some(lengths(at(index)?, &sizes)?),
        };
        Ok(Self { sizes, query: slice(query)?, key: slice(key)?, value: slice(value)?, past, mask, lengths })
    }

    fn run(&self, op: &Attention) -> Result<TVec<TValue>, String> {
        let Sizes { heads, keys, head_size, value_size, is_rank_3, .. } = self.sizes;
        let joins = self.past.is_some() || op.outputs.presents().next().is_some();
        if !joins {
            let rows = |values, size| Rows::new(values, heads, keys, size, is_rank_3);
            return self.attend(op, rows(self.key, head_size), rows(self.value, value_size));
        }
        let [past_key, past_value] = self.past.unwrap_or([&[], &[]]);
        let key = self.join(past_key, self.key, head_size)?;
        let value = self.join(past_value, self.value, value_size)?;
        let rows = |present, size| {
            Ok::<_, String>(Rows::new(slice(present)?, heads, self.sizes.total(), size, false))
        };
        let mut results = self.attend(op, rows(&key, head_size)?, rows(&value, value_size)?)?;
        if let Some(index) = op.outputs.present_key {
            results.insert(index, key.into());
        }
        if let Some(index) = op.outputs.present_value {
            results.insert(index, value.into());
        }
        Ok(results)
    }

    /// Returns `Y`, and the scores if the node has that output.
    fn attend(&self, op: &Attention, key: Rows<'_, T>, value: Rows<'_, T>) -> Result<TVec<TValue>, String> {
        let Sizes { query_heads, queries, head_size, is_rank_3, .. } = self.sizes;
        let mut output = zeros::<T>(&self.sizes.output())?;
        let mut scores = op.outputs.scores.map(|_| zeros::<T>(&self.sizes.scores())).transpose()?;
        let call = Call {
            sizes: self.sizes,
            query: Rows::new(self.query, query_heads, queries, head_size, is_rank_3),
            key,
            value,
            mask: self.mask,
            lengths: self.lengths,
            scale: op.scale.unwrap_or_else(|| 1.0 / (head_size as f32).sqrt()),
            softcap: op.softcap,
            window: op.window,
            softmax_in_f64: op.softmax_in_f64,
        };
        let which = op.outputs.scores.map(|(_, which)| which);
        let mut results = Results { output: &mut [], scores: None };
        {
            let mut output = output.try_as_plain_ram_mut().map_err(words)?;
            results.output = output.as_slice_mut().map_err(words)?;
            let mut scores = scores.as_mut().map(Tensor::try_as_plain_ram_mut).transpose().map_err(words)?;
            if let (Some(which), Some(scores)) = (which, &mut scores) {
                results.scores = Some((which, scores.as_slice_mut().map_err(words)?));
            }
            call.run(&mut results);
        }
        Ok([Some(output), scores].into_iter().flatten().map(Tensor::into_tvalue).collect())
    }

    /// Returns the past followed by the new rows, `[batch, heads, length, size]`.
    fn join(&self, past: &[T], new: &[T], size: usize) -> Result<Tensor, String> {
        let Sizes { batch, heads, keys, past: length, is_rank_3, .. } = self.sizes;
        let mut present = zeros::<T>(&self.sizes.present(size))?;
        let (of_past, of_new) =
            (Rows::new(past, heads, length, size, false), Rows::new(new, heads, keys, size, is_rank_3));
        let mut view = present.try_as_plain_ram_mut().map_err(words)?;
        let mut free = view.as_slice_mut::<T>().map_err(words)?;
        for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
            let rows = (0..length).map(|at| of_past.row(sample, head, at));
            for row in rows.chain((0..keys).map(|at| of_new.row(sample, head, at))) {
                let (to, rest) = free.split_at_mut(size);
                to.copy_from_slice(row);
                free = rest;
            }
        }
        Ok(present)
    }
}

fn lengths<'a>(lengths: &'a Tensor, sizes: &Sizes) -> Result<&'a [i64], String> {
    if lengths.shape() != [sizes.batch] {
        return Err(format!("nonpad_kv_seqlen has shape {:?}, must be [{}]", lengths.shape(), sizes.batch));
    }
    let lengths = slice::<i64>(lengths)?;
    let fits = |length: &i64| usize::try_from(*length).is_ok_and(|length| length <= sizes.keys);
    match lengths.iter().find(|length| !fits(length)) {
        Some(length) => Err(format!("nonpad_kv_seqlen is {length}, there are {} keys", sizes.keys)),
        None => Ok(lengths),
    }
}

fn slice<T: Datum>(tensor: &Tensor) -> Result<&[T], String> {
    tensor.try_as_plain_ram().and_then(|view| view.as_slice()).map_err(words)
}

fn zeros<T: Datum>(shape: &[usize]) -> Result<Tensor, String> {
    Tensor::zero_dt(T::datum_type(), shape).map_err(words)
}

fn words(error: TractError) -> String {
    error.to_string()
}
