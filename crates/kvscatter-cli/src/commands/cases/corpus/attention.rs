//! The files of a case of attention.

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto};
use kvscatter_oracle::attention::{Array, Attention, Float, Mask, Positions};
use kvscatter_oracle::cases::attention::AttentionCase;
use kvscatter_oracle::corpus::AttentionForm;

use super::super::model::{ModelParts, declared, declared_open};
use super::super::tensors::{data, int64s};
use super::contents::Contents;
use crate::compare::Tolerance;
use crate::error::CommandError;
use crate::refused::{Refused, of_oracle};

/// The inputs of the operator, in its order.
const INPUTS: [&str; 7] = ["q", "k", "v", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"];

/// The outputs of the operator, in its order.
const OUTPUTS: [&str; 3] = ["y", "present_key", "present_value"];

/// Returns the files of a model with one `Attention`.
pub(super) fn contents(
    case: &AttentionCase,
    form: AttentionForm,
    what: &str,
) -> Result<Contents, CommandError> {
    let inputs = &case.inputs;
    let numbers = |array: &Array<f64>| numbers(inputs.element, array);
    let optional = |array: &Option<Array<f64>>| array.as_ref().map(numbers).transpose();
    let mask = match &inputs.mask {
        None => None,
        Some(Mask::Bool(mask)) => {
            let bytes = mask.data.iter().map(|&shown| u8::from(shown)).collect();
            Some(data(ElementType::Bool, mask.shape.clone(), bytes)?)
        }
        Some(Mask::Float(mask)) => Some(numbers(mask)?),
    };
    let lengths = match &inputs.positions {
        Positions::Lengths(lengths) => Some(int64s(lengths)?),
        Positions::Full | Positions::Ring(_) => None,
    };
    let tensors = [
        Some(numbers(&inputs.q)?),
        Some(numbers(&inputs.k)?),
        Some(numbers(&inputs.v)?),
        mask,
        optional(&inputs.past_key)?,
        optional(&inputs.past_value)?,
        lengths,
    ];
    let last = tensors.iter().rposition(Option::is_some).unwrap_or(0);
    let named = || INPUTS.iter().zip(&tensors).take(last.saturating_add(1));
    let names: Vec<_> = named().map(|(name, tensor)| if tensor.is_some() { *name } else { "" }).collect();
    let declared_inputs = named().filter_map(|(name, tensor)| Some(declared(name, tensor.as_ref()?)));

    let outputs = if form.has_present { &OUTPUTS[..] } else { &OUTPUTS[..1] };
    let mut attention = NodeProto::new("Attention", &names, outputs);
    attention.attribute = attributes(&case.attention);
    let mut parts = ModelParts {
        nodes: vec![attention],
        inputs: declared_inputs.collect(),
        outputs: Vec::new(),
        operator_set: form.operator_set,
    };
    let (expected, tolerance) = match case.expected() {
        Ok(made) => {
            let y = made.y.data.iter().map(|&y| inputs.element.round(y)).collect();
            let tolerance = made.y.data.iter().map(|&y| case.tolerance(y)).fold(0.0, f64::max);
            let arrays = [Array::new(y, &made.y.shape), made.present_key, made.present_value];
            let tensors = arrays.iter().take(outputs.len()).map(numbers).collect::<Result<Vec<_>, _>>()?;
            parts.outputs.extend(outputs.iter().zip(&tensors).map(|(name, tensor)| declared(name, tensor)));
            (Ok(tensors), Some(Tolerance { rtol: 0.0, atol: tolerance }))
        }
        Err(refusal) => {
            let kind = of_oracle::attention(&refusal);
            let query = tensors.first().and_then(Option::as_ref);
            parts.outputs.extend(query.map(|query| declared_open("y", query, "y_")));
            (Err(Refused { kind, reason: what.to_owned() }), None)
        }
    };
    let inputs = tensors.into_iter().flatten().collect();
    Ok(Contents { parts, inputs, expected, tolerance, in_place: None, is_typed: false })
}

/// Returns for each sample, query head and query a text with `x` for each slot that the query sees, and `-` for the
/// others. Returns `None` for a call that must be refused, and for a cache of more slots than a person can read.
pub(super) fn sees(case: &AttentionCase) -> Option<Vec<String>> {
    let attends = case.attention.attends(&case.inputs).ok()?;
    let slots = attends.shape.last().copied().filter(|slots| *slots <= 64)?;
    let text = |row: &[bool]| row.iter().map(|&seen| if seen { 'x' } else { '-' }).collect();
    Some(attends.data.chunks(slots.max(1)).map(text).collect())
}

/// Returns the attributes that differ from their defaults.
fn attributes(attention: &Attention) -> Vec<AttributeProto> {
    let default = Attention::default();
    let mut attributes = Vec::new();
    if attention.is_causal {
        attributes.push(AttributeProto::int("is_causal", 1));
    }
    attributes.extend(attention.scale.map(|scale| AttributeProto::float("scale", float32(scale))));
    if attention.softcap != default.softcap {
        attributes.push(AttributeProto::float("softcap", float32(attention.softcap)));
    }
    let heads = [("q_num_heads", attention.q_num_heads), ("kv_num_heads", attention.kv_num_heads)];
    attributes.extend(heads.into_iter().filter_map(|(name, heads)| Some(AttributeProto::int(name, heads?))));
    let windows = [
        ("left_window_size", attention.left_window_size),
        ("right_window_size", attention.right_window_size),
    ];
    attributes.extend(
        windows
            .into_iter()
            .filter(|(_, size)| *size != -1)
            .map(|(name, size)| AttributeProto::int(name, size)),
    );
    attributes
}

/// Returns a number of the corpus, which float32 represents.
fn float32(value: f64) -> f32 {
    f32::from_le_bytes(Float::F32.to_le_bytes(value).try_into().unwrap_or_default())
}

fn numbers(element: Float, array: &Array<f64>) -> Result<Tensor, CommandError> {
    let ty = match element {
        Float::F32 => ElementType::Float32,
        Float::F16 => ElementType::Float16,
        Float::Bf16 => ElementType::BFloat16,
    };
    data(ty, array.shape.clone(), array.data.iter().flat_map(|&value| element.to_le_bytes(value)).collect())
}
