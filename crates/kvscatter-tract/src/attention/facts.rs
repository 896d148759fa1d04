//! The types and shapes that are known before a call.

use kvscatter::ElementType;
use kvscatter_attention::{AttentionError, Operand};
use tract_onnx::tract_hir::internal::*;

use super::operator::{AttentionNode, Operands};
use crate::element;

/// Returns the types and shapes of the outputs. They are exact if the shapes of all inputs are known. Returns a message
/// about an error that would occur in every run.
pub(super) fn facts(node: &AttentionNode, inputs: &[&TypedFact]) -> Result<TVec<TypedFact>, String> {
    let operands = node.inputs.select(inputs);
    let operands =
        operands.ok_or_else(|| format!("takes {} inputs, got {}", node.inputs.count, inputs.len()))?;
    let [element, cached] = check_types(node, &operands)?;
    if let Some(shapes) = operands.shapes(element, |fact| fact.shape.as_concrete()) {
        node.operator(cached).prepare(&shapes).map_err(words)?;
    }
    let Dims { output, presents, scores } = Dims::new(node, &operands).map_err(words)?;
    let presents = presents.into_iter().zip(node.outputs.has_presents);
    let presents = presents.filter_map(|(dims, is_given)| is_given.then_some(dims));
    let scores = node.op.has_scores().then_some(scores);
    let all = [output].into_iter().chain(presents).chain(scores);
    Ok(all.map(|dims| operands.query.datum_type.fact(dims)).collect())
}

/// Returns the types of the queries, and of keys and values. Returns a message for a type that attention does not
/// support.
pub(super) fn elements<T>(
    node: &AttentionNode,
    operands: &Operands<'_, T>,
    datum: impl Fn(&T) -> DatumType,
) -> Result<[ElementType; 2], String> {
    let [query, key] = [operands.query, operands.key].map(datum);
    let element = element::ours(query);
    let element = element.filter(|of| matches!(of, ElementType::Float32 | ElementType::Float16));
    let element = element.ok_or_else(|| format!("Q is {query:?}, only float32 and float16 are known"))?;
    let cached = element::ours(key).filter(|_| node.reads_narrow).unwrap_or(element);
    Ok([element, cached])
}

/// Checks the types of the inputs, and returns that of the queries and that of keys and values.
fn check_types(
    node: &AttentionNode,
    operands: &Operands<'_, &TypedFact>,
) -> Result<[ElementType; 2], String> {
    let elements = elements(node, operands, |fact| fact.datum_type)?;
    let datum = operands.query.datum_type;
    let cached = if node.reads_narrow { operands.key.datum_type } else { datum };
    let others = [operands.key, operands.value].into_iter().chain(operands.past.into_iter().flatten());
    for got in others.map(|fact| fact.datum_type) {
        if got != cached {
            return Err(format!("keys and values must be of Q's type, got {got:?}"));
        }
    }
    if let Some(got) = operands.mask.map(|fact| fact.datum_type)
        && got != datum
        && got != DatumType::Bool
    {
        return Err(format!("attn_mask must be bool or of Q's type, got {got:?}"));
    }
    if let Some(lengths) = operands.lengths {
        if lengths.datum_type != DatumType::I64 {
            return Err(format!("nonpad_kv_seqlen must be int64, got {:?}", lengths.datum_type));
        }
        if lengths.rank() != 1 {
            let rank = lengths.rank();
            return Err(words(AttentionError::Rank { operand: Operand::Lengths, rank, expected: "1" }));
        }
    }
    Ok(elements)
}

/// The outputs' shapes in tract's dimensions, which may be symbols.
struct Dims {
    output: TVec<TDim>,
    presents: [TVec<TDim>; 2],
    scores: TVec<TDim>,
}

impl Dims {
    fn new(node: &AttentionNode, operands: &Operands<'_, &TypedFact>) -> Result<Self, AttentionError> {
        let by_head = |operand, fact: &TypedFact, heads: Option<usize>| match (fact.shape.dims(), heads) {
            ([batch, heads, length, size], _) => {
                Ok([batch.clone(), heads.clone(), length.clone(), size.clone()])
            }
            ([batch, length, hidden], Some(heads)) => {
                Ok([batch.clone(), heads.to_dim(), length.clone(), hidden.clone() / heads])
            }
            ([_, _, _], None) => Err(AttentionError::HeadsMissing),
            (dims, _) => Err(AttentionError::Rank { operand, rank: dims.len(), expected: "3 or 4" }),
        };
        let (of_query, of_key) = node.op.head_counts().unzip();
        let [batch, query_heads, queries, _] = by_head(Operand::Query, operands.query, of_query)?;
        let [_, heads, keys, head_size] = by_head(Operand::Key, operands.key, of_key)?;
        let [.., value_size] = by_head(Operand::Value, operands.value, of_key)?;
        let past = match operands.past.map(|[key, _]| key.shape.dims()) {
            Some([_, _, length, _]) => length.clone(),
            Some(dims) => {
                let rank = dims.len();
                return Err(AttentionError::Rank { operand: Operand::PastKey, rank, expected: "4" });
            }
            None => 0.to_dim(),
        };
        let total = past + keys;
        let output = if operands.query.rank() == 3 {
            tvec!(batch.clone(), queries.clone(), query_heads.clone() * value_size.clone())
        } else {
            tvec!(batch.clone(), query_heads.clone(), queries.clone(), value_size.clone())
        };
        let present = |size| tvec!(batch.clone(), heads.clone(), total.clone(), size);
        Ok(Self {
            output,
            presents: [present(head_size), present(value_size)],
            scores: tvec!(batch.clone(), query_heads, queries, total.clone()),
        })
    }
}

fn words(error: AttentionError) -> String {
    error.to_string()
}
