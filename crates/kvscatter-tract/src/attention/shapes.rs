//! The shapes of one call, and the shapes that are known before it.

use tract_onnx::tract_hir::internal::*;

use super::operator::Attention;

/// The sizes of one call, after a check that they are consistent with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub batch: usize,
    pub query_heads: usize,
    pub heads: usize,
    pub queries: usize,
    /// The number of keys of the input, without the past.
    pub keys: usize,
    pub past: usize,
    pub head_size: usize,
    pub value_size: usize,
    /// Whether the inputs have the shape `[batch, length, heads * size]`.
    pub is_rank_3: bool,
}

impl Sizes {
    /// Computes the sizes from the shapes of query, key, value and the pasts.
    ///
    /// # Errors
    /// Returns a message about the first two shapes that are inconsistent.
    pub(super) fn of(
        op: &Attention,
        [query, key, value]: [&[usize]; 3],
        past: Option<[&[usize]; 2]>,
    ) -> Result<Self, String> {
        let (query_heads, heads) = op.heads.unwrap_or((1, 1));
        let [batch, query_heads, queries, head_size] = split("Q", query, query_heads)?;
        let of_key = split("K", key, heads)?;
        let of_value = split("V", value, heads)?;
        if query.len() == 3 && op.heads.is_none() {
            return Err("inputs of rank 3 need q_num_heads and kv_num_heads".to_owned());
        }
        let [_, heads, keys, _] = of_key;
        let value_size = of_value[3];
        agree("K", of_key, [batch, heads, keys, head_size])?;
        agree("V", of_value, [batch, heads, keys, value_size])?;
        if heads == 0 || !query_heads.is_multiple_of(heads) {
            return Err(format!("{query_heads} heads of Q are no multiple of {heads} heads of K"));
        }
        let past = match past {
            None => 0,
            Some([key, value]) => {
                let of_key = split("past_key", key, 0)?;
                agree("past_key", of_key, [batch, heads, of_key[2], head_size])?;
                let of_value = split("past_value", value, 0)?;
                agree("past_value", of_value, [batch, heads, of_key[2], value_size])?;
                of_key[2]
            }
        };
        let is_rank_3 = query.len() == 3;
        if [key.len(), value.len()].into_iter().any(|rank| rank != query.len()) {
            return Err(format!("Q has rank {}, K {} and V {}", query.len(), key.len(), value.len()));
        }
        Ok(Self { batch, query_heads, heads, queries, keys, past, head_size, value_size, is_rank_3 })
    }

    /// Returns the number of keys, including those of the past.
    pub(super) fn total(&self) -> usize {
        self.past + self.keys
    }

    /// Returns the shape of `Y`.
    pub(super) fn output(&self) -> TVec<usize> {
        if self.is_rank_3 {
            tvec!(self.batch, self.queries, self.query_heads * self.value_size)
        } else {
            tvec!(self.batch, self.query_heads, self.queries, self.value_size)
        }
    }

    /// Returns the shape of a present whose rows have this size.
    pub(super) fn present(&self, size: usize) -> TVec<usize> {
        tvec!(self.batch, self.heads, self.total(), size)
    }

    /// Returns the shape of `qk_matmul_output`.
    pub(super) fn scores(&self) -> TVec<usize> {
        tvec!(self.batch, self.query_heads, self.queries, self.total())
    }
}

/// Returns a shape as `[batch, heads, length, size]`. For rank 3, `heads` is the node's attribute, or 0 if
/// rank 3 is not allowed.
fn split(name: &str, shape: &[usize], heads: usize) -> Result<[usize; 4], String> {
    match *shape {
        [batch, heads, length, size] => Ok([batch, heads, length, size]),
        [batch, length, hidden] if heads > 0 => {
            if !hidden.is_multiple_of(heads) {
                return Err(format!("{name}'s {hidden} elements a token are no multiple of {heads} heads"));
            }
            Ok([batch, heads, length, hidden / heads])
        }
        _ => {
            Err(format!("{name} has rank {}, must be 4{}", shape.len(), if heads > 0 { " or 3" } else { "" }))
        }
    }
}

fn agree(name: &str, got: [usize; 4], expected: [usize; 4]) -> Result<(), String> {
    if got == expected {
        Ok(())
    } else {
        Err(format!("{name} is {got:?} as [batch, heads, length, size], must be {expected:?}"))
    }
}

/// Returns the types and shapes of the outputs. They are exact if the shapes of all inputs are known.
///
/// # Errors
/// Returns a message about an error that would occur in every run.
pub(super) fn facts(op: &Attention, inputs: &[&TypedFact]) -> Result<TVec<TypedFact>, String> {
    let ([query, key, value, ..], true) = (inputs, inputs.len() == op.inputs.count) else {
        return Err(format!("takes {} inputs, got {}", op.inputs.count, inputs.len()));
    };
    let past = op.inputs.past.and_then(|(key, value)| Some([*inputs.get(key)?, *inputs.get(value)?]));
    check_types(op, inputs)?;
    let datum = query.datum_type;
    let concrete = |fact: &TypedFact| fact.shape.as_concrete().map(<[usize]>::to_vec);
    let all = [query, key, value].into_iter().chain(past.iter().flatten()).map(|fact| concrete(fact));
    if let Some(shapes) = all.collect::<Option<Vec<_>>>()
        && let [query, key, value, pasts @ ..] = shapes.as_slice()
    {
        let past = match pasts {
            [key, value] => Some([key.as_slice(), value.as_slice()]),
            _ => None,
        };
        Sizes::of(op, [query, key, value], past)?;
    }
    let dims = Dims::of(op, [query, key, value], past.map(|[key, _]| key))?;
    let mut facts = tvec!(datum.fact(dims.output));
    if op.outputs.present_key.is_some() {
        facts.push(datum.fact(dims.present_key));
    }
    if op.outputs.present_value.is_some() {
        facts.push(datum.fact(dims.present_value));
    }
    if op.outputs.scores.is_some() {
        facts.push(datum.fact(dims.scores));
    }
    Ok(facts)
}

fn check_types(op: &Attention, inputs: &[&TypedFact]) -> Result<(), String> {
    let datum = inputs.first().map(|query| query.datum_type).unwrap_or(DatumType::Blob);
    if !matches!(datum, DatumType::F32 | DatumType::F16) {
        return Err(format!("Q is {datum:?}, only float32 and float16 are known"));
    }
    for (index, fact) in inputs.iter().enumerate() {
        let got = fact.datum_type;
        let (expected, words) = if Some(index) == op.inputs.nonpad_kv_seqlen {
            (got == DatumType::I64, "nonpad_kv_seqlen must be int64")
        } else if Some(index) == op.inputs.mask {
            (got == datum || got == DatumType::Bool, "attn_mask must be bool or of Q's type")
        } else {
            (got == datum, "keys and values must be of Q's type")
        };
        if !expected {
            return Err(format!("{words}, got {got:?}"));
        }
    }
    Ok(())
}

/// The outputs' shapes in tract's dimensions, which may be symbols.
struct Dims {
    output: TVec<TDim>,
    present_key: TVec<TDim>,
    present_value: TVec<TDim>,
    scores: TVec<TDim>,
}

impl Dims {
    fn of(
        op: &Attention,
        [query, key, value]: [&TypedFact; 3],
        past: Option<&TypedFact>,
    ) -> Result<Self, String> {
        let split = |fact: &TypedFact, heads: usize| -> Option<[TDim; 4]> {
            match fact.shape.dims() {
                [batch, heads, length, size] => {
                    Some([batch.clone(), heads.clone(), length.clone(), size.clone()])
                }
                [batch, length, hidden] => {
                    Some([batch.clone(), heads.to_dim(), length.clone(), hidden.clone() / heads])
                }
                _ => None,
            }
        };
        let ranks = [query, key, value].map(|fact| fact.rank());
        if ranks[0] == 3 && op.heads.is_none() {
            return Err("inputs of rank 3 need q_num_heads and kv_num_heads".to_owned());
        }
        let (queries, keys) = op.heads.unwrap_or((1, 1));
        let split = (split(query, queries), split(key, keys), split(value, keys));
        let (
            Some([batch, query_heads, queries, _]),
            Some([_, heads, keys, head_size]),
            Some([.., value_size]),
        ) = split
        else {
            return Err(format!("Q, K and V have ranks {ranks:?}, must have 3 or 4"));
        };
        let past = match past.map(|past| past.shape.dims()) {
            Some([_, _, length, _]) => length.clone(),
            Some(dims) => return Err(format!("past_key has rank {}, must be 4", dims.len())),
            None => 0.to_dim(),
        };
        let total = past + keys;
        let output = if ranks[0] == 3 {
            tvec!(batch.clone(), queries.clone(), query_heads.clone() * value_size.clone())
        } else {
            tvec!(batch.clone(), query_heads.clone(), queries.clone(), value_size.clone())
        };
        Ok(Self {
            output,
            present_key: tvec!(batch.clone(), heads.clone(), total.clone(), head_size),
            present_value: tvec!(batch.clone(), heads, total.clone(), value_size),
            scores: tvec!(batch, query_heads, queries, total),
        })
    }
}
