//! Nodes of TensorRT's `KVCacheUpdate` and Ascend's `KVCacheOperation`, in the domain of the plugin for ONNX Runtime.

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::spec::tensorrt::{AttentionIoForm, KvCacheUpdate, PackedCall};
use kvscatter::spec::{PartialTensor, same_element_type};
use kvscatter::{Argument, ElementType, Integers};
use kvscatter_onnx::{Data, Dimension, OnnxError, Tensor};

use super::rejection::NodeFault;
use super::single_node::SingleNode;

/// Computes `KVCacheUpdate(cache, update, write_indices, update_lengths?)`.
pub(super) fn kv_cache_update(node: &SingleNode<'_>) -> Result<Vec<Option<Tensor>>, NodeFault> {
    node.node.check_attributes(&["cache_mode", "update_form"])?;
    let words = |name| Ok::<_, OnnxError>(node.node.string(name)?.map(String::from_utf8_lossy));
    match words("cache_mode")?.as_deref() {
        None | Some("linear") => {}
        Some(other) => return Err(attribute("cache_mode", other, "linear")),
    }
    let form = match words("update_form")?.as_deref() {
        None | Some("padded") => AttentionIoForm::PaddedBhnd,
        Some("packed_nhd") => AttentionIoForm::PackedNhd,
        Some(other) => return Err(attribute("update_form", other, "padded or packed_nhd")),
    };
    node.check_inputs(3, 4)?;
    let (cache, update, indices) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let lengths = node.input(3);

    let operator = KvCacheUpdate::new();
    let all = [Some(cache), Some(update), Some(indices), lengths].map(|tensor| tensor.map(dimensions));
    let partial = |slot: usize| all.get(slot).and_then(Option::as_ref).map(known);
    let input = |slot| partial(slot).unwrap_or_default();
    let inferred = operator.infer(form, input(0), input(1), input(2), partial(3));
    inferred.map_err(|error| match (error.details().argument, form, lengths) {
        (Some(Argument::UpdateLengths), AttentionIoForm::PackedNhd, None) => NodeFault::UpdateLengthsMissing,
        (Some(Argument::UpdateLengths), AttentionIoForm::PaddedBhnd, _) => NodeFault::UpdateLengthsUnexpected,
        _ => error.into(),
    })?;
    let element = same_element_type(cache.element(), Argument::Update, update.element())?;
    let (starts_32, starts_64) = (int32s(indices), int64s(indices));
    let starts = match indices.element() {
        ElementType::Int32 => Integers::I32(&starts_32),
        _ => Integers::I64(&starts_64),
    };
    let mut present = cache.clone();
    let _ = match lengths.map(int32s) {
        None => {
            let prepared = operator.prepare(element, cache.shape(), update.shape())?;
            present.write(&prepared.plan(starts)?, update)?
        }
        Some(lengths) => {
            let prepared = operator.prepare_packed(element, cache.shape(), update.shape())?;
            present.write(&prepared.plan(PackedCall::new(starts, &lengths))?, update)?
        }
    };
    Ok(vec![Some(present)])
}

/// Computes `KVCacheOperation(new_kv, layer_id, past, token_offset, seq_len)`.
pub(super) fn kv_cache_operation(node: &SingleNode<'_>) -> Result<Vec<Option<Tensor>>, NodeFault> {
    node.node.check_attributes(&[])?;
    node.check_inputs(5, 5)?;
    let (new_kv, past) = (node.required(0)?, node.required(2)?);
    let [layer_id, token_offset, seq_len] = [node.required(1)?, node.required(3)?, node.required(4)?];

    let operator = KvCacheOperation::new();
    let all = [past, new_kv, layer_id, token_offset, seq_len].map(dimensions);
    let [past_type, new_kv_type, layer_type, offset_type, length_type] = all.each_ref().map(known);
    operator.infer(past_type, new_kv_type, layer_type, offset_type, length_type)?;
    let element = same_element_type(past.element(), Argument::NewKv, new_kv.element())?;
    let prepared = operator.prepare(element, past.shape(), new_kv.shape())?;
    let [layer_id, token_offset, seq_len] = [layer_id, token_offset, seq_len].map(int32s);
    let plan = prepared.plan(KvCacheOperationCall::new(&layer_id, &token_offset, &seq_len))?;
    let mut present = past.clone();
    let _ = present.write(&plan, new_kv)?;
    Ok(vec![Some(present)])
}

fn attribute(name: &'static str, value: &str, expected: &'static str) -> NodeFault {
    NodeFault::Attribute { name, value: value.to_owned(), expected }
}

/// Returns the type and the dimensions of a tensor.
fn dimensions(tensor: &Tensor) -> (ElementType, Vec<Dimension<'static>>) {
    (tensor.element(), tensor.shape().iter().map(|&size| Dimension::Known(size)).collect())
}

fn known<'a>((element, shape): &'a (ElementType, Vec<Dimension<'static>>)) -> PartialTensor<'a> {
    PartialTensor { element: Some(*element), shape: Some(shape) }
}

/// Returns the values of an int32 tensor. The list of another tensor is empty.
fn int32s(tensor: &Tensor) -> Vec<i32> {
    match tensor.data() {
        Data::Bytes(bytes) if tensor.element() == ElementType::Int32 => {
            bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the values of an int64 tensor. The list of another tensor is empty.
fn int64s(tensor: &Tensor) -> Vec<i64> {
    tensor.int64s().map(Iterator::collect).unwrap_or_default()
}
