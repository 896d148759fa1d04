//! The files of a case that writes a cache.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Data, Tensor};
use kvscatter_oracle::cases::{Call, Case};
use kvscatter_oracle::corpus::{Fault, Form, TwoWrites};
use kvscatter_oracle::tensorrt::UpdateForm;

use super::super::model::{ModelParts, OPERATOR_SET, declared, declared_open, own_node};
use super::super::tensors::{data, element, int32s, int64s, tensor, tensors};
use super::contents::{Contents, InPlace};
use crate::error::CommandError;
use crate::refused::{Refused, of_oracle};

/// Returns the files of a model with one node.
pub(super) fn one(case: &Case, form: Form, what: &str) -> Result<Contents, CommandError> {
    let [past, update] = tensors(case)?;
    let (mut parts, mut inputs) = match &case.call {
        Call::TensorScatter { operator, write_indices, .. } => {
            let mut inputs = vec![past, update];
            inputs.extend(write_indices.as_deref().map(int64s).transpose()?);
            (ModelParts::tensor_scatter(operator.axis, &operator.mode, &inputs), inputs)
        }
        Call::KvCacheUpdate { operator, write_indices, update_lengths, .. } => {
            let mut inputs = vec![past, update, int64s(write_indices)?];
            inputs.extend(update_lengths.as_deref().map(int32s).transpose()?);
            let names = ["cache", "update", "write_indices", "update_lengths"];
            let mut parts = own("KVCacheUpdate", &names, &inputs, 0);
            if operator.update_form == UpdateForm::Packed {
                parts.nodes.iter_mut().for_each(|node| {
                    node.attribute.push(AttributeProto::string("update_form", "packed_nhd"))
                });
            }
            (parts, inputs)
        }
        Call::KvCacheOperation { layer_id, token_offset, seq_len, .. } => {
            let lists = [layer_id, token_offset, seq_len].map(|list| int32s(list));
            let [layer_id, token_offset, seq_len] = lists;
            let inputs = vec![update, layer_id?, past, token_offset?, seq_len?];
            let names = ["new_kv", "layer_id", "past", "token_offset", "seq_len"];
            (own("KVCacheOperation", &names, &inputs, 2), inputs)
        }
    };
    let mut expected = match &case.expected {
        Ok(expected) => Ok(vec![tensor(element(case.elements[0])?, &case.cache_shape, &expected.present)?]),
        Err(refusal) => Err(Refused { kind: of_oracle::write(refusal), reason: what.to_owned() }),
    };
    let is_refused = matches!(form, Form::Fault(_)) || expected.is_err();
    let mut in_place = if is_refused { InPlace::Unchanged } else { InPlace::Yes };
    match form {
        Form::Plain | Form::TypedFields => {}
        Form::Symbols => declare_symbols(&mut parts, &inputs),
        Form::EmptyIndicesName => parts.nodes.iter_mut().for_each(|node| node.input.push(String::new())),
        Form::PastIsOutput => {
            in_place = InPlace::No;
            parts.nodes.push(NodeProto::new("Identity", &["past_cache"], &["past_again"]));
            if let (Some(past), Ok(outputs)) = (inputs.first(), &mut expected) {
                parts.outputs.push(declared("past_again", past));
                outputs.push(past.clone());
            }
        }
        Form::UpdateIsPast => {
            in_place = InPlace::No;
            inputs.remove(1);
            parts.inputs.remove(1);
            parts.nodes.iter_mut().flat_map(|node| node.input.get_mut(1)).for_each(|update| {
                "past_cache".clone_into(update);
            });
        }
        Form::Fault(fault) => {
            break_rule(fault, &mut parts, &mut inputs)?;
            expected = Err(Refused { kind: of_oracle::fault(fault), reason: what.to_owned() });
        }
    }
    let is_typed = form == Form::TypedFields;
    Ok(Contents { parts, inputs, expected, tolerance: None, in_place: Some(in_place), is_typed })
}

/// Returns the files of a model with two nodes that write one cache.
pub(super) fn two(cases: &[Case; 2], how: TwoWrites, what: &str) -> Result<Contents, CommandError> {
    let [mut contents, next] = [one(&cases[0], Form::Plain, what)?, one(&cases[1], Form::Plain, what)?];
    let past = match how {
        TwoWrites::OfOnePast => "past_cache",
        TwoWrites::InARow => "present_cache",
    };
    for mut node in next.parts.nodes {
        node.input = [past, "update_2", "write_indices_2"].map(str::to_owned).into();
        node.output = vec!["present_cache_2".to_owned()];
        contents.parts.nodes.push(node);
    }
    for (name, input) in ["update_2", "write_indices_2"].iter().zip(next.inputs.into_iter().skip(1)) {
        contents.parts.inputs.push(declared(name, &input));
        contents.inputs.push(input);
    }
    let present = |output| ValueInfoProto { name: Some("present_cache_2".to_owned()), ..output };
    let outputs = next.parts.outputs.into_iter().map(present);
    match how {
        TwoWrites::OfOnePast => {
            contents.in_place = Some(InPlace::No);
            contents.parts.outputs.extend(outputs);
            if let (Ok(expected), Ok(next)) = (&mut contents.expected, next.expected) {
                expected.extend(next);
            }
        }
        TwoWrites::InARow => {
            contents.parts.outputs = outputs.collect();
            contents.expected = next.expected;
        }
    }
    Ok(contents)
}

/// Returns a model of one node of our domain, whose output has the type and shape of input `past`.
fn own(op_type: &str, names: &[&str], inputs: &[Tensor], past: usize) -> ModelParts {
    let names: Vec<_> = names.iter().copied().take(inputs.len()).collect();
    ModelParts {
        nodes: vec![own_node(op_type, &names, "present")],
        outputs: inputs.get(past).map(|past| declared("present", past)).into_iter().collect(),
        inputs: names.iter().zip(inputs).map(|(name, tensor)| declared(name, tensor)).collect(),
        operator_set: OPERATOR_SET,
    }
}

/// Declares every dimension as another symbol. The output has the type and shape of the first input.
fn declare_symbols(parts: &mut ModelParts, inputs: &[Tensor]) {
    let values = parts.inputs.iter_mut().chain(&mut parts.outputs).zip(inputs.iter().chain(inputs.first()));
    for ((value, tensor), prefix) in values.zip(["past_", "update_", "indices_", "present_"]) {
        *value = declared_open(value.name.as_deref().unwrap_or_default(), tensor, prefix);
    }
}

/// Changes a model, so that it breaks a rule of ONNX.
fn break_rule(fault: Fault, parts: &mut ModelParts, inputs: &mut [Tensor]) -> Result<(), CommandError> {
    let Some(node) = parts.nodes.first_mut() else { return Ok(()) };
    match fault {
        Fault::OperatorSet(version) => parts.operator_set = version,
        Fault::UnknownAttribute => node.attribute.push(AttributeProto::int("block_size", 1)),
        Fault::AxisIsString => {
            node.attribute.retain(|attribute| attribute.name.as_deref() != Some("axis"));
            node.attribute.push(AttributeProto::string("axis", "-2"));
        }
        Fault::OneInput => node.input.truncate(1),
        Fault::FourInputs => node.input.push("write_indices".to_owned()),
        Fault::TwoOutputs => node.output.push("second".to_owned()),
        Fault::CircularCacheMode => node.attribute.push(AttributeProto::string("cache_mode", "circular")),
        Fault::Int32Indices => {
            replace_indices(parts, inputs, |indices| {
                let narrow = |index: &[u8]| index.get(..4).unwrap_or_default().to_vec();
                let bytes = bytes(indices).chunks(8).flat_map(narrow).collect();
                data(ElementType::Int32, indices.shape().to_vec(), bytes)
            })?;
        }
        Fault::IndicesOfRank2 => {
            replace_indices(parts, inputs, |indices| {
                let shape = indices.shape().iter().copied().chain([1]).collect();
                data(ElementType::Int64, shape, bytes(indices).to_vec())
            })?;
        }
    }
    Ok(())
}

fn replace_indices(
    parts: &mut ModelParts,
    inputs: &mut [Tensor],
    make: impl FnOnce(&Tensor) -> Result<Tensor, CommandError>,
) -> Result<(), CommandError> {
    if let (Some(indices), Some(info)) = (inputs.get_mut(2), parts.inputs.get_mut(2)) {
        *indices = make(indices)?;
        *info = declared("write_indices", indices);
    }
    Ok(())
}

fn bytes(tensor: &Tensor) -> &[u8] {
    match tensor.data() {
        Data::Bytes(bytes) => bytes,
        Data::Strings(_) => &[],
    }
}
