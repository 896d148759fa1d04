//! TensorRT `KVCacheUpdate`.

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::spec::tensorrt::{self, PreparedPacked};
use kvscatter::{Argument, ElementType, Prepared, Starts};

use super::Operator;
use crate::context::{Context, InputTensor};
use crate::node::Node;
use crate::status::Failure;
use crate::tensor_info::{TensorInfo, fill_unknown_sizes};
use crate::write::PreparedWrites;

/// `KVCacheUpdate(cache, update, write_indices, update_lengths?)`, with the attributes `cache_mode` and
/// `update_form`.
pub(crate) struct KvCacheUpdate {
    form: Form,
}

/// The layout of an update.
enum Form {
    /// `[b, d, s, h]`, every sample as long as the longest.
    Padded(PreparedWrites<Prepared>),
    /// `[totalTokens, d, h]`, one sample after the other.
    Packed(PreparedWrites<PreparedPacked>),
}

const OPERATOR: tensorrt::KvCacheUpdate = tensorrt::KvCacheUpdate::new();

impl Operator for KvCacheUpdate {
    const NAME: &'static CStr = c"KVCacheUpdate";

    const RENAMED: &'static [(Argument, &'static str)] =
        &[(Argument::TensorRtWriteIndices, "write_indices"), (Argument::UpdateLengths, "update_lengths")];

    fn new(node: &Node<'_>) -> Result<Self, Failure> {
        match node.string(c"cache_mode")?.as_deref() {
            None | Some("linear") => {}
            Some(other) => {
                return Err(Failure::invalid_argument(format!("cache_mode must be 'linear', got '{other}'")));
            }
        }
        let form = match node.string(c"update_form")?.as_deref() {
            None | Some("padded") => Form::Padded(PreparedWrites::new()),
            Some("packed_nhd") => Form::Packed(PreparedWrites::new()),
            Some(other) => {
                return Err(Failure::invalid_argument(format!(
                    "update_form must be 'padded' or 'packed_nhd', got '{other}'"
                )));
            }
        };
        Ok(Self { form })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), Failure> {
        let cache = &context.input(0, Argument::Cache)?;
        let update = &context.input(1, Argument::Update)?;
        let write_indices = context.input(2, Argument::TensorRtWriteIndices)?;
        let write_indices = Indices::of(&write_indices)?;
        let starts = write_indices.starts();
        match &self.form {
            Form::Padded(writes) => writes.with(
                context,
                cache,
                update,
                |element, cache, update| OPERATOR.prepare(element, cache, update),
                |write| write.write(&write.plan(starts)?),
            ),
            Form::Packed(writes) => {
                let lengths = context.input(3, Argument::UpdateLengths)?;
                let lengths = &lengths.list()?;
                writes.with(
                    context,
                    cache,
                    update,
                    |element, cache, update| OPERATOR.prepare_packed(element, cache, update),
                    |write| write.write(&write.plan(starts, lengths)?),
                )
            }
        }
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), Failure> {
        let is_given = |input: &TensorInfo| input.element.is_some();
        self.check_lengths(inputs.get(3).is_some_and(is_given))?;
        let [cache, update, ..] = inputs else { return Ok(()) };
        let Some(element) = cache.element else { return Ok(()) };
        let sizes = |rank, pairs| fill_unknown_sizes(cache.sizes_or(4), update.sizes_or(rank), pairs);
        match self.form {
            Form::Padded(_) => {
                let (cache, update) = sizes(4, &[(0, 0), (1, 1), (2, 2), (3, 3)]);
                OPERATOR.prepare(element, &cache, &update)?;
            }
            Form::Packed(_) => {
                let (cache, update) = sizes(3, &[(1, 1), (3, 2)]);
                OPERATOR.prepare_packed(element, &cache, &update)?;
            }
        }
        Ok(())
    }
}

impl KvCacheUpdate {
    /// Refuses what TensorRT's builder refuses: packed updates without lengths, and padded ones with them.
    fn check_lengths(&self, given: bool) -> Result<(), Failure> {
        match (&self.form, given) {
            (Form::Packed(_), false) => {
                Err(Failure::fail("update_form packed_nhd needs the input update_lengths"))
            }
            (Form::Padded(_), true) => {
                Err(Failure::fail("update_lengths is for update_form packed_nhd alone"))
            }
            _ => Ok(()),
        }
    }
}

/// `writeIndices`, which come in two widths.
enum Indices<'a> {
    I32(Cow<'a, [i32]>),
    I64(Cow<'a, [i64]>),
}

impl<'a> Indices<'a> {
    fn of(tensor: &InputTensor<'a>) -> Result<Self, Failure> {
        if tensor.has_element(ElementType::Int32) {
            tensor.list().map(Self::I32)
        } else {
            tensor.list().map(Self::I64)
        }
    }

    fn starts(&self) -> Starts<'_> {
        match self {
            Self::I32(values) => Starts::I32(values),
            Self::I64(values) => Starts::I64(values),
        }
    }
}
