//! TensorRT `KVCacheUpdate`.

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::spec::tensorrt::{self, AttentionIoForm, PackedCall};
use kvscatter::{Argument, ElementType, Integers};

use super::{Operator, partial};
use crate::context::Context;
use crate::input::InputTensor;
use crate::node::Node;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;
use crate::write::{CheckedWrite, PreparedWrites};

/// The operator `KVCacheUpdate(cache, update, write_indices, update_lengths?)`, with the attributes
/// `cache_mode` and `update_form`.
pub(crate) struct KvCacheUpdate {
    form: AttentionIoForm,
    writes: PreparedWrites,
}

const OPERATOR: tensorrt::KvCacheUpdate = tensorrt::KvCacheUpdate::new();

impl Operator for KvCacheUpdate {
    const NAME: &'static CStr = c"KVCacheUpdate";

    fn input_name(argument: Argument) -> &'static str {
        match argument {
            Argument::TensorRtWriteIndices => "write_indices",
            Argument::UpdateLengths => "update_lengths",
            other => other.name(),
        }
    }

    fn new(node: &Node<'_>) -> Result<Self, CallError> {
        match node.string(c"cache_mode")?.as_deref() {
            None | Some("linear") => {}
            Some(other) => {
                return Err(CallError::invalid_argument(format!(
                    "cache_mode must be 'linear', got '{other}'"
                )));
            }
        }
        let form = match node.string(c"update_form")?.as_deref() {
            None | Some("padded") => AttentionIoForm::PaddedBhnd,
            Some("packed_nhd") => AttentionIoForm::PackedNhd,
            Some(other) => {
                return Err(CallError::invalid_argument(format!(
                    "update_form must be 'padded' or 'packed_nhd', got '{other}'"
                )));
            }
        };
        Ok(Self { form, writes: PreparedWrites::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let cache = &context.input(0, Argument::Cache)?;
        let update = &context.input(1, Argument::Update)?;
        let write_indices = context.input(2, Argument::TensorRtWriteIndices)?;
        let write_indices = Indices::read(&write_indices)?;
        let write_indices = write_indices.integers();
        let lengths = match self.form {
            AttentionIoForm::PaddedBhnd => None,
            AttentionIoForm::PackedNhd => Some(context.input(3, Argument::UpdateLengths)?.list()?),
        };
        let prepare = |element, cache: &[usize], update: &[usize]| match self.form {
            AttentionIoForm::PaddedBhnd => OPERATOR.prepare(element, cache, update),
            AttentionIoForm::PackedNhd => OPERATOR.prepare_packed(element, cache, update),
        };
        let prepared = self.writes.get(context, cache, update, prepare)?;
        let plan = match &lengths {
            None => prepared.plan(write_indices),
            Some(lengths) => prepared.plan(PackedCall::new(write_indices, lengths)),
        };
        CheckedWrite::new(&prepared, context, cache, update.bytes()?, 0).write(&plan?)
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), CallError> {
        let input = |index| partial(inputs, index);
        let update_lengths = inputs.get(3).filter(|lengths| lengths.is_present()).map(TensorInfo::partial);
        OPERATOR.infer(self.form, input(0), input(1), input(2), update_lengths)?;
        Ok(())
    }
}

/// `writeIndices`, which have one of two widths.
enum Indices<'a> {
    I32(Cow<'a, [i32]>),
    I64(Cow<'a, [i64]>),
}

impl<'a> Indices<'a> {
    fn read(tensor: &InputTensor<'a>) -> Result<Self, CallError> {
        if tensor.has_element(ElementType::Int32) {
            tensor.list().map(Self::I32)
        } else {
            tensor.list().map(Self::I64)
        }
    }

    fn integers(&self) -> Integers<'_> {
        match self {
            Self::I32(values) => Integers::I32(values),
            Self::I64(values) => Integers::I64(values),
        }
    }
}
